#include "scope_guards.h"

#include <cstring>

namespace mlirfuse {

using Kind = ScopeGuard::Kind;

namespace {

// Whether a Python object is an index or size.
bool to_size(PyObject* object, Py_ssize_t& size) {
  if (!object || !PyLong_CheckExact(object)) return false;
  size = PyLong_AsSsize_t(object);
  if (PyErr_Occurred()) PyErr_Clear();
  return size >= 0;
}

}  // namespace

bool add_scope_guard(PyObject* entry, std::vector<ScopeGuard>& guards) {
  if (!PyTuple_Check(entry) || PyTuple_GET_SIZE(entry) < 2) return false;
  PyObject *space = PyTuple_GET_ITEM(entry, 0), *key = PyTuple_GET_ITEM(entry, 1);
  ScopeGuard guard;
  guard.space = Ref::borrow(space);
  guard.key = Ref::borrow(key);
  if (PyTuple_GET_SIZE(entry) >= 3) guard.value = Ref::borrow(PyTuple_GET_ITEM(entry, 2));
  if (PyTuple_GET_SIZE(entry) == 4) guard.content = Ref::borrow(PyTuple_GET_ITEM(entry, 3));
  if (guard.content && guard.value.get() == Py_None) {
    if (!PyDict_CheckExact(space) && !PyList_CheckExact(space)) return false;
    guard.kind = PyDict_CheckExact(space) ? Kind::kDictSize : Kind::kListSize;
    if (!to_size(guard.content.get(), guard.number)) return false;
    guard.content = Ref();
  } else if (PyCell_Check(space)) {
    guard.kind = Kind::kCell;
  } else if (PyList_Check(space)) {
    guard.kind = Kind::kListItem;
    if (!to_size(key, guard.number)) return false;
  } else if (PyDict_Check(space)) {
    guard.kind = Kind::kDictItem;
  } else if (key == reinterpret_cast<PyObject*>(&PyType_Type)) {
    guard.kind = Kind::kClass;
  } else if (!PyUnicode_CheckExact(key)) {
    return false;
  } else if (PyType_Check(space)) {
    guard.kind = Kind::kClassAttribute;
  } else if (PyFunction_Check(space)) {
    const char* name = PyUnicode_AsUTF8(key);
    if (!name) PyErr_Clear();
    if (!name) return false;
    if (!std::strcmp(name, "__code__"))
      guard.kind = Kind::kCode;
    else if (!std::strcmp(name, "__defaults__"))
      guard.kind = Kind::kDefaults;
    else if (!std::strcmp(name, "__kwdefaults__"))
      guard.kind = Kind::kKwDefaults;
    else
      guard.kind = Kind::kAttribute;
  } else {
    guard.kind = Kind::kAttribute;
  }
  guards.push_back(std::move(guard));
  return true;
}

}  // namespace mlirfuse
