#include "numpy_call.h"

#include <structmember.h>

#include <new>
#include <vector>

namespace mlirfuse {
namespace {

struct NumpyCallData {
  Ref function;             // of the operands; null: their matrix product
  std::vector<Ref> dtypes;  // of the operands
  Ref result;               // dtype of the result
  Ref finish, otherwise;    // Python functions, see the type's docstring
  Ref state, silent;        // the context variable of NumPy's error state, and the state that reports nothing
};

struct NumpyCallObject {
  PyObject_HEAD NumpyCallData* state;
  vectorcallfunc vectorcall;
};

NumpyCallData& data_of(PyObject* self) { return *reinterpret_cast<NumpyCallObject*>(self)->state; }

bool has_dtype(PyObject* object, const Ref& dtype) {
  return PyArray_CheckExact(object) &&
         reinterpret_cast<PyObject*>(PyArray_DESCR(reinterpret_cast<PyArrayObject*>(object))) == dtype.get();
}

// The function's result, computed without floating-point warnings.
Ref computed(const NumpyCallData& data, PyObject* const* operands) {
  Ref token(PyContextVar_Set(data.state.get(), data.silent.get()));
  if (!token) return Ref();
  Ref found(data.function ? PyObject_Vectorcall(data.function.get(), operands, data.dtypes.size(), nullptr)
                          : PyArray_MatrixProduct2(operands[0], operands[1], nullptr));
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  if (!found) PyErr_Fetch(&type, &value, &traceback);
  const int left = PyContextVar_Reset(data.state.get(), token.get());
  if (!found) {
    PyErr_Restore(type, value, traceback);
    return found;
  }
  return left < 0 ? Ref() : std::move(found);
}

// Whether an array is in memory of its own, row-major, and none of the operands.
bool is_owned(const NumpyCallData& data, PyObject* found, PyObject* const* operands) {
  if (!has_dtype(found, data.result)) return false;
  const auto array = reinterpret_cast<PyArrayObject*>(found);
  bool owned = PyArray_BASE(array) == nullptr && PyArray_IS_C_CONTIGUOUS(array);
  for (size_t i = 0; i < data.dtypes.size(); ++i) owned &= found != operands[i];
  return owned;
}

PyObject* numpy_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  const NumpyCallData& data = data_of(self);
  const size_t count = data.dtypes.size();
  bool known = !names && static_cast<size_t>(PyVectorcall_NARGS(nargsf)) == count + 1 && PyArray_CheckExact(args[0]);
  PyObject* const* operands = args + 1;
  for (size_t i = 0; known && i < count; ++i) known = has_dtype(operands[i], data.dtypes[i]);
  if (!known) return PyObject_Vectorcall(data.otherwise.get(), args, nargsf, names);
  Ref found = computed(data, operands);
  if (!found) return nullptr;
  if (!is_owned(data, found.get(), operands)) {
    Ref given(PyTuple_New(static_cast<Py_ssize_t>(count)));
    if (!given) return nullptr;
    for (size_t i = 0; i < count; ++i)
      PyTuple_SET_ITEM(given.get(), static_cast<Py_ssize_t>(i), Py_NewRef(operands[i]));
    found = Ref(PyObject_CallFunctionObjArgs(data.finish.get(), found.get(), given.get(), nullptr));
    if (!found) return nullptr;
  }
  PyObject* list = PyList_New(1);
  if (list) PyList_SET_ITEM(list, 0, found.release());
  return list;
}

PyObject* numpy_call_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"function", "dtypes", "result", "finish", "otherwise", "state", "silent", nullptr};
  PyObject *function = nullptr, *dtypes = nullptr, *result = nullptr, *finish = nullptr, *otherwise = nullptr;
  PyObject *state = nullptr, *silent = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!OOOO!O:NumpyCall", const_cast<char**>(names), &function,
                                   &PyTuple_Type, &dtypes, &result, &finish, &otherwise, &PyContextVar_Type, &state,
                                   &silent))
    return nullptr;
  auto* self = reinterpret_cast<NumpyCallObject*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = numpy_call;
  self->state = new (std::nothrow) NumpyCallData;
  if (!self->state) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  NumpyCallData& data = *self->state;
  if (function != Py_None) data.function = Ref::borrow(function);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(dtypes); ++i)
    data.dtypes.push_back(Ref::borrow(PyTuple_GET_ITEM(dtypes, i)));
  data.result = Ref::borrow(result);
  data.finish = Ref::borrow(finish);
  data.otherwise = Ref::borrow(otherwise);
  data.state = Ref::borrow(state);
  data.silent = Ref::borrow(silent);
  if (data.function || data.dtypes.size() == 2) return reinterpret_cast<PyObject*>(self);
  Py_DECREF(self);
  PyErr_SetString(PyExc_ValueError, "a matrix product has two operands");
  return nullptr;
}

int numpy_call_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (const auto* data = reinterpret_cast<NumpyCallObject*>(self)->state) {
    Py_VISIT(data->function.get());
    Py_VISIT(data->finish.get());
    Py_VISIT(data->otherwise.get());
  }
  return 0;
}

// Whether the objects of a list or tuple are NumPy arrays and Python's numbers alone.
PyObject* numpy_only(PyObject*, PyObject* leaves) {
  if (!PyList_CheckExact(leaves) && !PyTuple_CheckExact(leaves)) Py_RETURN_FALSE;
  PyObject** items = PySequence_Fast_ITEMS(leaves);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(leaves); ++i) {
    PyObject* leaf = items[i];
    if (!PyArray_CheckExact(leaf) && !PyFloat_CheckExact(leaf) && !PyLong_CheckExact(leaf) && !PyBool_Check(leaf) &&
        !PyComplex_CheckExact(leaf))
      Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

}  // namespace

bool register_numpy_call_type(PyObject* module) {
  static PyMethodDef functions[] = {
      {"numpy_only", numpy_only, METH_O,
       "numpy_only(leaves)\n--\n\nWhether a list or tuple has nothing but NumPy arrays and Python's numbers."},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(NumpyCallObject, vectorcall), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(numpy_call_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_with_state<NumpyCallObject>)},
      {Py_tp_traverse, reinterpret_cast<void*>(numpy_call_traverse)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_members, members},
      {Py_tp_doc,
       const_cast<char*>(
           "NumpyCall(function, dtypes, result, finish, otherwise, state, silent)\n--\n\n"
           "call(like, *operands): the list of what `function` returns of NumPy arrays of these dtypes, computed "
           "while\n"
           "the context variable `state` is `silent`; `function` None: their matrix product, of one or two dimensions\n"
           "each. A result of another dtype than `result`, or not row-major in memory of its own, goes through\n"
           "finish(found, operands). For a `like` or operands that are no such arrays it is otherwise(like, *operands)"
           ".")},
      {0, nullptr},
  };
  static PyType_Spec spec = {
      "mlirfuse._native.NumpyCall", sizeof(NumpyCallObject), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE, slots};
  Ref type(PyType_FromSpec(&spec));
  return type && PyModule_AddFunctions(module, functions) == 0 &&
         PyModule_AddObjectRef(module, "NumpyCall", type.get()) == 0;
}

}  // namespace mlirfuse
