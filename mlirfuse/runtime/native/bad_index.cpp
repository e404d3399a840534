#include "bad_index.h"

#include <atomic>

#include "arrays.h"
#include "cuda_driver.h"

extern "C" {
alignas(4096) __attribute__((visibility("default"))) int64_t mlirfuse_bad_index[512] = {};
}

namespace mlirfuse {
namespace {

PyObject* raiser = nullptr;  // the Python function of (site, index, extent) that raises

constexpr unsigned kPortableAndMapped = 3;

PyObject* raise_bad_index_by(PyObject*, PyObject* function) {
  Py_XSETREF(raiser, Py_NewRef(function));
  Py_RETURN_NONE;
}

PyObject* check(PyObject*, PyObject*) {
  if (!check_bad_index()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* map_bad_index(PyObject*, PyObject* args) {
  static bool mapped = false;
  int device = 0;
  if (!PyArg_ParseTuple(args, "i:map_bad_index", &device)) return nullptr;
  if (!mapped) {
    const cuda::ContextScope context(device);
    if (!context.ok() ||
        !MLIRFUSE_CUDA(host_register, mlirfuse_bad_index, sizeof(mlirfuse_bad_index), kPortableAndMapped)) {
      raise_cuda_error();
      return nullptr;
    }
    mapped = true;
  }
  Py_RETURN_NONE;
}

}  // namespace

bool check_bad_index() {
  auto* flag = reinterpret_cast<std::atomic<int64_t>*>(mlirfuse_bad_index);
  if (flag->load(std::memory_order_acquire) != 1) return true;
  flag->store(0, std::memory_order_relaxed);
  if (!raiser) {
    PyErr_SetString(PyExc_IndexError, "an index is out of range");
    return false;
  }
  Ref done(PyObject_CallFunction(raiser, "LLL", static_cast<long long>(mlirfuse_bad_index[2]),
                                 static_cast<long long>(mlirfuse_bad_index[1]),
                                 static_cast<long long>(mlirfuse_bad_index[3])));
  return static_cast<bool>(done);
}

PyMethodDef bad_index_methods[] = {
    {"raise_bad_index_by", raise_bad_index_by, METH_O,
     "raise_bad_index_by(raiser)\n--\n\nSets the function that raises for an index out of range: raiser(site, index, "
     "extent)."},
    {"check_bad_index", check, METH_NOARGS,
     "check_bad_index()\n--\n\nRaises if a kernel has found an index out of range."},
    {"map_bad_index", map_bad_index, METH_VARARGS,
     "map_bad_index(device)\n--\n\nMaps mlirfuse_bad_index into a GPU's address space."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace mlirfuse
