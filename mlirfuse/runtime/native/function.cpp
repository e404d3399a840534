#include "function.h"

#include <structmember.h>

#include <utility>
#include <vector>

#include "leaves.h"
#include "scope_guards.h"

namespace mlirfuse {
namespace {

// The guards of a function's scope. A call holds them while it checks them: code that it runs may replace them.
struct Guards {
  std::vector<ScopeGuard> native;
  bool others = false;  // there are entries that only Python can check
  size_t holders = 1;   // under the GIL: std::shared_ptr's atomic counter takes as long as three guards
};

void drop(Guards* guards) {
  if (guards && --guards->holders == 0) delete guards;
}

struct FunctionState {
  std::vector<Ref> fast_paths;  // by the number of arguments; null where there is none
  Guards* guards = nullptr;     // null: nothing is watched
  ~FunctionState() { drop(guards); }
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

// Whether all guards that need no Python code hold.
bool scope_holds(Guards& guards) {
  ++guards.holders;
  bool all = true;
  for (auto guard = guards.native.begin(); all && guard != guards.native.end(); ++guard) all = guard->holds();
  drop(&guards);
  return all;
}

PyObject* call_known(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  static Name check_scope("_check_scope");
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(nargsf));
  const FunctionState& state = state_of(self);
  if (state.guards) {
    const bool others = state.guards->others, changed = !scope_holds(*state.guards);
    if ((others || changed) && !Ref(PyObject_CallMethodOneArg(self, check_scope.get(), changed ? Py_True : Py_False)))
      return nullptr;
  }
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
  if (const Guards* guards = state_of(self).guards)
    for (const ScopeGuard& guard : guards->native) {
      Py_VISIT(guard.space.get());
      Py_VISIT(guard.key.get());
      Py_VISIT(guard.value.get());
      Py_VISIT(guard.content.get());
    }
  return 0;
}

void drop_fast_paths(PyObject* self) {
  std::vector<Ref> dropped;
  dropped.swap(state_of(self).fast_paths);
}

int function_clear(PyObject* self) {
  drop_fast_paths(self);
  drop(std::exchange(state_of(self).guards, nullptr));
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
  drop_fast_paths(self);
  Py_RETURN_NONE;
}

PyObject* set_watched(PyObject* self, PyObject* entries) {
  const Ref list(PySequence_Fast(entries, "_set_watched takes a sequence"));
  if (!list) return nullptr;
  Guards* guards = nullptr;
  if (PySequence_Fast_GET_SIZE(list.get())) {
    guards = new Guards;
    for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(list.get()); ++k)
      guards->others |= !add_scope_guard(PySequence_Fast_GET_ITEM(list.get(), k), guards->native);
  }
  drop(std::exchange(state_of(self).guards, guards));
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
       "_set_watched(entries)\n--\n\nMake calls begin with self._check_scope(True) where an entry of the function's\n"
       "scope, (namespace, key, value) or (namespace, key) for what is not there, is another object than the value: "
       "an\n"
       "item of a dict or list, what a class or an object has as an attribute, the content of a cell (any key), an\n"
       "object's class (key `type`); or where the value of (namespace, key, value, content) is not equal to the\n"
       "content, or a dict or list of (namespace, None, None, size) has another size. With entries of other forms, "
       "the\n"
       "other calls begin with self._check_scope(False)."},
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
