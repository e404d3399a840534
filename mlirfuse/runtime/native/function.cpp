#include "function.h"

#include <structmember.h>

#include <vector>

#include "leaves.h"

namespace mlirfuse {
namespace {

struct FunctionState {
  std::vector<Ref> fast_paths;  // by the number of arguments; null where there is none
  bool watched = false;
};

struct FunctionObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  FunctionState* state;
};

FunctionState& state_of(PyObject* self) { return *reinterpret_cast<FunctionObject*>(self)->state; }

// self._call(args, kwargs)
PyObject* call_any(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  static Name call("_call");
  Ref positional(PyTuple_New(static_cast<Py_ssize_t>(count))), keyword(PyDict_New());
  if (!positional || !keyword) return nullptr;
  for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(positional.get(), static_cast<Py_ssize_t>(i), Py_NewRef(args[i]));
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i)
    if (PyDict_SetItem(keyword.get(), PyTuple_GET_ITEM(names, i), args[count + static_cast<size_t>(i)]) < 0)
      return nullptr;
  PyObject* arguments[] = {self, positional.get(), keyword.get()};
  return PyObject_VectorcallMethod(call.get(), arguments, 3, nullptr);
}

// Passes the raised error to self._raised(error), which may replace it.
void report_raised(PyObject* self) {
  static Name raised("_raised");
  PyObject *type = nullptr, *error = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &error, &trace);
  PyErr_NormalizeException(&type, &error, &trace);
  if (trace) PyException_SetTraceback(error, trace);
  if (!Ref(PyObject_CallMethodOneArg(self, raised.get(), error))) PyErr_Clear();
  Py_XDECREF(trace);
  PyErr_Restore(type, error, PyException_GetTraceback(error));
}

PyObject* call_known(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  static Name check_scope("_check_scope");
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(nargsf));
  const FunctionState& state = state_of(self);
  if (state.watched && !Ref(PyObject_CallMethodNoArgs(self, check_scope.get()))) return nullptr;
  if ((names && PyTuple_GET_SIZE(names)) || count >= state.fast_paths.size() || !state.fast_paths[count])
    return call_any(self, args, count, names);
  const Ref target = Ref::borrow(state.fast_paths[count].get());  // the call may clear `fast_paths`
  for (size_t i = 0; i < count; ++i)
    if (!surely_leaf(args[i])) return call_any(self, args, count, names);
  return PyObject_Vectorcall(target.get(), args, count, nullptr);
}

PyObject* function_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  PyObject* result = call_known(self, args, nargsf, names);
  if (!result) report_raised(self);
  return result;
}

PyObject* function_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<FunctionObject*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = function_call;
  self->state = new FunctionState;
  return reinterpret_cast<PyObject*>(self);
}

int function_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (const Ref& target : state_of(self).fast_paths) Py_VISIT(target.get());
  return 0;
}

int function_clear(PyObject* self) {
  std::vector<Ref> dropped;
  dropped.swap(state_of(self).fast_paths);
  return 0;
}

PyObject* set_fast_path(PyObject* self, PyObject* args) {
  Py_ssize_t count = 0;
  PyObject* target = nullptr;
  if (!PyArg_ParseTuple(args, "nO:_set_fast_path", &count, &target)) return nullptr;
  if (count < 0 || !PyCallable_Check(target)) {
    PyErr_SetString(PyExc_TypeError, "_set_fast_path(count, target) takes a number of arguments and a callable");
    return nullptr;
  }
  std::vector<Ref>& fast_paths = state_of(self).fast_paths;
  if (fast_paths.size() <= static_cast<size_t>(count)) fast_paths.resize(static_cast<size_t>(count) + 1);
  Ref former = Ref::borrow(target);
  std::swap(fast_paths[static_cast<size_t>(count)], former);  // released when the table is consistent again
  Py_RETURN_NONE;
}

PyObject* clear_fast_paths(PyObject* self, PyObject*) {
  function_clear(self);
  Py_RETURN_NONE;
}

PyObject* set_watched(PyObject* self, PyObject* on) {
  const int value = PyObject_IsTrue(on);
  if (value < 0) return nullptr;
  state_of(self).watched = value == 1;
  Py_RETURN_NONE;
}

}  // namespace

bool register_function_type(PyObject* module) {
  static PyMethodDef methods[] = {
      {"_set_fast_path", set_fast_path, METH_VARARGS,
       "_set_fast_path(count, target)\n--\n\nMake calls with `count` positional leaves call target(*leaves)."},
      {"_clear_fast_paths", clear_fast_paths, METH_NOARGS,
       "_clear_fast_paths()\n--\n\nRemove the targets of _set_fast_path."},
      {"_set_watched", set_watched, METH_O,
       "_set_watched(on)\n--\n\nSet whether each call begins with self._check_scope()."},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(FunctionObject, vectorcall), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(function_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_with_state<FunctionObject>)},
      {Py_tp_traverse, reinterpret_cast<void*>(function_traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(function_clear)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_methods, methods},
      {Py_tp_members, members},
      {Py_tp_doc,
       const_cast<char*>(
           "A callable base class. Calls go to self._call(args, kwargs), except those whose arguments are all\n"
           "positional and not containers, where _set_fast_path has set a target for their number. An exception is\n"
           "first passed to self._raised(error).")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"mlirfuse._native.Function", sizeof(FunctionObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                                 Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
                             slots};
  Ref type(PyType_FromSpec(&spec));
  return type && PyModule_AddObjectRef(module, "Function", type.get()) == 0;
}

}  // namespace mlirfuse
