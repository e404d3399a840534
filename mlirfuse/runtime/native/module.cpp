// The extension module `mlirfuse._native`.
#define MLIRFUSE_IMPORT_ARRAY
#include "python.h"

#include "arrays.h"
#include "bad_index.h"
#include "buffer_pool.h"
#include "cuda_api.h"
#include "cuda_runtime_wrappers.h"
#include "dispatcher.h"
#include "foreach.h"
#include "function.h"
#include "loop_buffers.h"
#include "numpy_call.h"
#include "record.h"
#include "region.h"
#include "shape_key.h"
#include "thread_pool.h"
#include "../../export/c/processor.h"

#include <algorithm>
#include <climits>

namespace mlirfuse {
namespace {

PyObject* symbols(PyObject*, PyObject*) {
  Ref dict(PyDict_New());
  const auto add = [&dict](const char* name, void* address) {
    Ref value(PyLong_FromVoidPtr(address));
    return dict && value && PyDict_SetItemString(dict.get(), name, value.get()) == 0;
  };
  for (const Symbol* symbol = cuda_runtime_symbols; symbol->name; ++symbol)
    if (!add(symbol->name, symbol->address)) return nullptr;
  if (!add("mlirfuse_parallel_for", reinterpret_cast<void*>(&mlirfuse_parallel_for))) return nullptr;
  if (!add("mlirfuse_launch_members", reinterpret_cast<void*>(&mlirfuse_launch_members))) return nullptr;
  if (!add("mlirfuse_foreach_cpu", reinterpret_cast<void*>(&mlirfuse_foreach_cpu))) return nullptr;
  if (!add("mlirfuse_foreach_gpu", reinterpret_cast<void*>(&mlirfuse_foreach_gpu))) return nullptr;
  if (!add("mlirfuse_loop_allocate", reinterpret_cast<void*>(&mlirfuse_loop_allocate))) return nullptr;
  if (!add("mlirfuse_loop_hold", reinterpret_cast<void*>(&mlirfuse_loop_hold))) return nullptr;
  if (!add("mlirfuse_bad_index", mlirfuse_bad_index)) return nullptr;
  return dict.release();
}

PyObject* pool_stats_dict(PyObject*, PyObject*) {
  const PoolStats stats = pool_stats();
  return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K}", "live_bytes", stats.live_bytes, "idle_bytes", stats.idle_bytes,
                       "idle_buffers", stats.idle_buffers, "idle_limit", stats.idle_limit, "reused", stats.reused,
                       "fresh", stats.fresh);
}

PyObject* num_threads_py(PyObject*, PyObject*) { return PyLong_FromLong(num_threads()); }

PyObject* set_num_threads_py(PyObject*, PyObject* args) {
  int count = 0;
  if (!PyArg_ParseTuple(args, "i:set_num_threads", &count)) return nullptr;
  if (count < 1) {
    PyErr_SetString(PyExc_ValueError, "the number of threads is at least 1");
    return nullptr;
  }
  Py_BEGIN_ALLOW_THREADS set_num_threads(count);
  Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

PyObject* limit_threads_py(PyObject*, PyObject* given) {
  const long count = PyLong_AsLong(given);
  if (count == -1 && PyErr_Occurred()) return nullptr;
  return PyLong_FromLong(limit_threads(static_cast<int>(std::clamp<long>(count, 0, INT_MAX))));
}

PyObject* processor_level_py(PyObject*, PyObject*) {
#if defined(__x86_64__)
  return PyLong_FromLong(processor_level());
#else
  return PyLong_FromLong(0);
#endif
}

PyObject* array_layout(PyObject*, PyObject* object) {
  if (!PyArray_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "array_layout takes a NumPy array");
    return nullptr;
  }
  const auto array = reinterpret_cast<PyArrayObject*>(object);
  const int rank = PyArray_NDIM(array);
  const npy_intp size = PyArray_ITEMSIZE(array);
  const auto address = reinterpret_cast<intptr_t>(PyArray_DATA(array));
  Ref words(PyTuple_New(1 + 2 * rank));
  if (!words) return nullptr;
  const auto set = [&words](int at, int64_t value) {
    PyObject* created = PyLong_FromLongLong(value);
    if (created) PyTuple_SET_ITEM(words.get(), at, created);
    return created != nullptr;
  };
  if (!set(0, address)) return nullptr;
  intptr_t low = address, high = address + size;
  for (int d = 0; d < rank; ++d) {
    const npy_intp extent = PyArray_DIM(array, d), stride = PyArray_STRIDE(array, d);
    if (!set(1 + d, extent) || !set(1 + rank + d, stride)) return nullptr;
    (stride < 0 ? low : high) += (extent - 1) * stride;
  }
  if (PyArray_SIZE(array) == 0) low = high = address;
  const int dense = rank > 0 && PyArray_STRIDE(array, rank - 1) == size;
  const int flags = dense + 2 * (PyArray_ISWRITEABLE(array) != 0) + 4 * (PyArray_ISALIGNED(array) != 0);
  return Py_BuildValue("(OLLi)", words.get(), static_cast<long long>(low), static_cast<long long>(high), flags);
}

PyObject* empty(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"shape", "dtype", "strides", nullptr};
  PyObject *shape = nullptr, *dtype = nullptr, *strides = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:empty", const_cast<char**>(names), &shape, &dtype, &strides))
    return nullptr;
  ArraySpec spec;
  if (!spec.parse(shape, Py_None, dtype)) return nullptr;
  if (strides != Py_None) {
    ArraySpec in_bytes;
    if (!in_bytes.parse(shape, strides, dtype)) return nullptr;
    // Parsed as if they counted elements: `extent` then spans bytes, up to the start of the last element.
    const size_t bytes = in_bytes.extent ? static_cast<size_t>(in_bytes.extent - 1 + spec.item_bytes) : 0;
    for (int64_t stride : in_bytes.strides) {
      if (stride >= 0) continue;
      PyErr_SetString(PyExc_ValueError, "a new array cannot have negative strides");
      return nullptr;
    }
    return make_pool_array(reinterpret_cast<PyArray_Descr*>(spec.descr.get()), static_cast<int>(spec.shape.size()),
                           spec.shape.data(), in_bytes.strides.data(), bytes);
  }
  void* data = nullptr;
  return make_array(Placement(), spec, nullptr, nullptr, &data);
}

PyMethodDef methods[] = {
    {"shape_key", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(shape_key)), METH_FASTCALL, shape_key_doc},
    {"symbols", symbols, METH_NOARGS,
     "symbols()\n--\n\nThe addresses of functions that compiled host code calls: MLIR's CUDA runtime, "
     "mlirfuse_parallel_for and mlirfuse_bad_index."},
    {"pool_stats", pool_stats_dict, METH_NOARGS, "pool_stats()\n--\n\nStatistics of the CPU buffer pool, as a dict."},
    {"num_threads", num_threads_py, METH_NOARGS, "num_threads()\n--\n\nThe number of CPU threads of a parallel loop."},
    {"set_num_threads", set_num_threads_py, METH_VARARGS, "set_num_threads(count)\n--\n\n"},
    {"limit_threads", limit_threads_py, METH_O,
     "limit_threads(count)\n--\n\nLimit the threads of parallel loops that this thread starts, itself included; 0: no "
     "limit. Returns the limit until now."},
    {"processor_level", processor_level_py, METH_NOARGS,
     "processor_level()\n--\n\nThe level of x86-64 that this processor has: 1, 3 or 4; 0 on others."},
    {"array_layout", array_layout, METH_O,
     "array_layout(array)\n--\n\nThe layout of a NumPy array: a tuple of its address, extents and strides in bytes, "
     "the addresses where its elements begin and end, and the sum of 1 for a dense last dimension, 2 for writeable, 4 "
     "for aligned."},
    {"empty", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(empty)), METH_VARARGS | METH_KEYWORDS,
     "empty(shape, dtype, strides=None)\n--\n\nAn uninitialized array over the pool; strides are in bytes."},
    {"make_results_by", make_results_by, METH_O,
     "make_results_by(maker)\n--\n\nSet torch's allocator: maker(prototype, (DLPack code, bits), shape), or None."},
    {nullptr, nullptr, 0, nullptr},
};

// What the environment says, as mlirfuse.core.environment has read it; without the compiler, mlirfuse_runtime.settings.
bool apply_settings() {
  Ref name(PyUnicode_FromString("mlirfuse")), compiler(name ? PyImport_GetModule(name.get()) : nullptr);
  if (PyErr_Occurred()) return false;
  Ref settings(PyImport_ImportModule(compiler ? "mlirfuse.core.environment" : "mlirfuse_runtime.settings"));
  Ref threads(settings ? PyObject_GetAttrString(settings.get(), "NUM_THREADS") : nullptr);
  Ref pool_bytes(threads ? PyObject_GetAttrString(settings.get(), "POOL_BYTES") : nullptr);
  if (!pool_bytes) return false;
  const long count = PyLong_AsLong(threads.get());
  if (count > 0) set_num_threads(static_cast<int>(count));
  if (pool_bytes.get() != Py_None) set_pool_limit(PyLong_AsUnsignedLongLong(pool_bytes.get()));
  return !PyErr_Occurred();
}

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "mlirfuse._native",
                          "The native runtime: CUDA driver, CPU threads, buffers and the hot call.",
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace mlirfuse

PyMODINIT_FUNC PyInit__native() {  // NOLINT(bugprone-reserved-identifier): the name is Python's
  using namespace mlirfuse;
  import_array();
  Ref module(PyModule_Create(&definition));
  if (!module || PyModule_AddFunctions(module.get(), cuda_methods) < 0 ||
      PyModule_AddFunctions(module.get(), bad_index_methods) < 0 || !register_buffer_type(module.get()) ||
      !register_record_type(module.get()) || !register_region_type(module.get()) ||
      !register_numpy_call_type(module.get()) || !register_dispatcher_type(module.get()) ||
      !register_function_type(module.get()) || !register_module_type(module.get()) || !apply_settings())
    return nullptr;
  return module.release();
}
