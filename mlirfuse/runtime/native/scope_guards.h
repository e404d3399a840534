// Fast checks that what a function reads from its scope is what it was.
#pragma once

#include <vector>

#include "python.h"

namespace mlirfuse {

// That a dict, list, closure cell, class or object has the same object as before under a key, or none, or as many.
struct ScopeGuard {
  enum class Kind {
    kDictItem,
    kDictSize,
    kListItem,
    kListSize,
    kCell,
    kClassAttribute,
    kAttribute,
    kCode,
    kDefaults,
    kKwDefaults,
    kClass
  };

  Kind kind;
  Ref space, key, value;  // value: null where there was none
  Ref content;            // what a container, the value, is equal to; null for others
  Py_ssize_t number = 0;  // an index or a size

  bool holds() const;  // sets no error

 private:
  bool has_value() const;
};

inline bool ScopeGuard::has_value() const {
  PyObject* now = nullptr;
  switch (kind) {
    case Kind::kDictItem:
      now = PyDict_GetItemWithError(space.get(), key.get());
      if (!now) PyErr_Clear();
      return now == value.get();
    case Kind::kListItem:
      return number < PyList_GET_SIZE(space.get()) && PyList_GET_ITEM(space.get(), number) == value.get();
    case Kind::kDictSize:
      return PyDict_GET_SIZE(space.get()) == number;
    case Kind::kListSize:
      return PyList_GET_SIZE(space.get()) == number;
    case Kind::kCell:
      return PyCell_GET(space.get()) == value.get();
    case Kind::kClassAttribute:
      return _PyType_Lookup(reinterpret_cast<PyTypeObject*>(space.get()), key.get()) == value.get();
    case Kind::kCode:
      return PyFunction_GET_CODE(space.get()) == value.get();
    case Kind::kDefaults:
      now = PyFunction_GET_DEFAULTS(space.get());
      return (now ? now : Py_None) == value.get();
    case Kind::kKwDefaults:
      now = PyFunction_GET_KW_DEFAULTS(space.get());
      return (now ? now : Py_None) == value.get();
    case Kind::kClass:
      return reinterpret_cast<PyObject*>(Py_TYPE(space.get())) == value.get();
    case Kind::kAttribute: {
      const Ref found(PyObject_GetAttr(space.get(), key.get()));
      if (!found) PyErr_Clear();
      return found.get() == value.get();
    }
  }
  return false;
}

inline bool ScopeGuard::holds() const {
  if (!has_value()) return false;
  if (!content) return true;
  const int equal = PyObject_RichCompareBool(value.get(), content.get(), Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

// Appends the guard of an entry of Function._set_watched. False if only Python can check it.
bool add_scope_guard(PyObject* entry, std::vector<ScopeGuard>& guards);

}  // namespace mlirfuse
