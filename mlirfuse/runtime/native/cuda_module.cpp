// `mlirfuse._native.Module`: a PTX or cubin image loaded on a device.
#include <string>

#include "arrays.h"
#include "cuda_api.h"
#include "cuda_driver.h"

namespace mlirfuse {
namespace {

struct ModuleObject {
  PyObject_HEAD cuda::Module handle;
  int device;
};

ModuleObject* as_module(PyObject* self) { return reinterpret_cast<ModuleObject*>(self); }

bool check_loaded(PyObject* self) {
  if (as_module(self)->handle) return true;
  PyErr_SetString(PyExc_ValueError, "the module was unloaded");
  return false;
}

PyObject* module_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"image", "device", nullptr};
  PyObject* image = nullptr;
  int device = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "S|i:Module", const_cast<char**>(names), &image, &device))
    return nullptr;
  // The characters of a bytes object end in a NUL that is not counted, as PTX needs.
  const char* data = PyBytes_AS_STRING(image);
  cuda::Module handle = nullptr;
  char log[8192] = "";
  bool ok;
  Py_BEGIN_ALLOW_THREADS cuda::ContextScope context(device);
  int options[] = {cuda::kJitErrorLogBuffer, cuda::kJitErrorLogBufferSize};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  ok = context.ok() && MLIRFUSE_CUDA(module_load, &handle, data, 2, options, values);
  Py_END_ALLOW_THREADS if (!ok) {
    log[sizeof log - 1] = 0;
    raise_cuda_error(log);
    return nullptr;
  }
  auto* self = reinterpret_cast<ModuleObject*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->handle = handle;
  self->device = device;
  return reinterpret_cast<PyObject*>(self);
}

// The image stays loaded when the object is destroyed: a captured CUDA graph may still launch its kernels. `unload` is
// explicit.
void module_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* module_unload(PyObject* self, PyObject*) {
  if (!check_loaded(self)) return nullptr;
  cuda::ContextScope context(as_module(self)->device);
  if (!context.ok() || !MLIRFUSE_CUDA(module_unload, as_module(self)->handle)) {
    raise_cuda_error();
    return nullptr;
  }
  as_module(self)->handle = nullptr;
  Py_RETURN_NONE;
}

PyObject* module_function(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"name", "dynamic_smem", "nonportable_cluster", nullptr};
  const char* name = nullptr;
  int dynamic_shared = 0, nonportable_cluster = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|ip:function", const_cast<char**>(names), &name, &dynamic_shared,
                                   &nonportable_cluster) ||
      !check_loaded(self))
    return nullptr;
  cuda::ContextScope context(as_module(self)->device);
  cuda::Function function = nullptr;
  bool ok = context.ok() && MLIRFUSE_CUDA(module_function, &function, as_module(self)->handle, name);
  if (dynamic_shared > 0)
    ok = ok && MLIRFUSE_CUDA(function_set, function, cuda::kFuncAttributeMaxDynamicShared, dynamic_shared);
  if (nonportable_cluster) ok = ok && MLIRFUSE_CUDA(function_set, function, cuda::kFuncAttributeNonPortableCluster, 1);
  if (!ok) {
    raise_cuda_error(name);
    return nullptr;
  }
  return PyLong_FromVoidPtr(function);
}

struct FunctionAttribute {
  const char* name;
  int number;
};

constexpr FunctionAttribute kFunctionAttributes[] = {
    {"registers", cuda::kFuncAttributeRegisters},          {"local_bytes", cuda::kFuncAttributeLocalBytes},
    {"shared_bytes", cuda::kFuncAttributeSharedBytes},     {"const_bytes", cuda::kFuncAttributeConstBytes},
    {"max_threads", cuda::kFuncAttributeMaxThreads},       {"ptx_version", cuda::kFuncAttributePtxVersion},
    {"binary_version", cuda::kFuncAttributeBinaryVersion},
};

PyObject* module_attributes(PyObject* self, PyObject* handle) {
  auto* function = static_cast<cuda::Function>(PyLong_AsVoidPtr(handle));
  if ((!function && PyErr_Occurred()) || !check_loaded(self)) return nullptr;
  cuda::ContextScope context(as_module(self)->device);
  Ref dict(PyDict_New());
  for (const FunctionAttribute& attribute : kFunctionAttributes) {
    int value = 0;
    if (!context.ok() || !MLIRFUSE_CUDA(function_get, &value, attribute.number, function)) {
      raise_cuda_error();
      return nullptr;
    }
    Ref number(PyLong_FromLong(value));
    if (!dict || !number || PyDict_SetItemString(dict.get(), attribute.name, number.get()) < 0) return nullptr;
  }
  return dict.release();
}

PyObject* module_occupancy(PyObject* self, PyObject* args) {
  unsigned long long handle = 0, shared = 0;
  int threads = 0, blocks = 0;
  if (!PyArg_ParseTuple(args, "KiK:occupancy", &handle, &threads, &shared) || !check_loaded(self)) return nullptr;
  cuda::ContextScope context(as_module(self)->device);
  if (!context.ok() || !MLIRFUSE_CUDA(occupancy, &blocks, reinterpret_cast<cuda::Function>(handle), threads,
                                      static_cast<size_t>(shared))) {
    raise_cuda_error();
    return nullptr;
  }
  return PyLong_FromLong(blocks);
}

PyObject* module_device(PyObject* self, void*) { return PyLong_FromLong(as_module(self)->device); }

}  // namespace

bool register_module_type(PyObject* module) {
  static PyMethodDef methods[] = {
      {"function", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(module_function)),
       METH_VARARGS | METH_KEYWORDS,
       "function(name, dynamic_smem=0, nonportable_cluster=False)\n--\n\n"
       "The handle of a kernel that may use that much dynamic shared memory and clusters of more than 8 blocks."},
      {"attributes", module_attributes, METH_O,
       "attributes(handle)\n--\n\nThe driver's attributes of a kernel, as a dict."},
      {"occupancy", module_occupancy, METH_VARARGS,
       "occupancy(handle, block_threads, dynamic_smem)\n--\n\nThe most resident blocks per multiprocessor."},
      {"unload", module_unload, METH_NOARGS,
       "unload()\n--\n\nUnload the image. Nothing may launch its kernels any more, captured graphs included."},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyGetSetDef properties[] = {
      {"device", module_device, nullptr, "The device's number.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(module_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(module_dealloc)},
      {Py_tp_methods, methods},
      {Py_tp_getset, properties},
      {Py_tp_doc,
       const_cast<char*>("Module(image, device=0)\n--\n\nA PTX or cubin image (bytes), loaded on a device.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"mlirfuse._native.Module", sizeof(ModuleObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};
  Ref type(PyType_FromSpec(&spec));
  return type && PyModule_AddObjectRef(module, "Module", type.get()) == 0;
}

}  // namespace mlirfuse
