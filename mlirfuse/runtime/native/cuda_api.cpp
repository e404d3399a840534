#include "cuda_api.h"

#include "arrays.h"
#include "cuda_driver.h"

namespace mlirfuse {
namespace {

// Runs `call`, which returns whether it succeeded, without the GIL, and raises on failure.
template <class Call>
bool without_gil(Call call) {
  bool ok;
  Py_BEGIN_ALLOW_THREADS ok = call();
  Py_END_ALLOW_THREADS if (!ok) raise_cuda_error();
  return ok;
}

PyObject* none_if(bool ok) {
  if (!ok) return nullptr;
  Py_RETURN_NONE;
}

cuda::DevicePtr as_pointer(unsigned long long value) { return static_cast<cuda::DevicePtr>(value); }
cuda::Stream as_stream(unsigned long long value) { return reinterpret_cast<cuda::Stream>(value); }
cuda::Event as_event(unsigned long long value) { return reinterpret_cast<cuda::Event>(value); }

PyObject* cuda_available(PyObject*, PyObject*) { return PyBool_FromLong(cuda::why_unavailable() == nullptr); }

PyObject* cuda_error(PyObject*, PyObject*) {
  const char* problem = cuda::why_unavailable();
  return problem ? PyUnicode_FromString(problem) : Py_NewRef(Py_None);
}

PyObject* cuda_device_count(PyObject*, PyObject*) {
  int count = 0;
  if (!cuda::why_unavailable() && !without_gil([&] { return MLIRFUSE_CUDA(device_count, &count); })) return nullptr;
  return PyLong_FromLong(count);
}

struct DeviceAttribute {
  const char* name;
  int number;  // CUdevice_attribute
};

constexpr DeviceAttribute kDeviceAttributes[] = {
    {"warp_size", 10},          {"clock_khz", 13},
    {"sm_count", 16},           {"memory_clock_khz", 36},
    {"bus_width", 37},          {"l2_bytes", 38},
    {"max_threads_per_sm", 39}, {"shared_per_sm", 81},
    {"regs_per_sm", 82},        {"shared_per_block_optin", 97},
};
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;

PyObject* cuda_device_attributes(PyObject*, PyObject* args) {
  int ordinal = 0;
  if (!PyArg_ParseTuple(args, "|i:cuda_device_attributes", &ordinal)) return nullptr;
  cuda::Device device = 0;
  char name[256] = "";
  int major = 0, minor = 0, version = 0;
  size_t memory = 0;
  int values[sizeof kDeviceAttributes / sizeof kDeviceAttributes[0]] = {};
  const bool ok = without_gil([&] {
    bool all = MLIRFUSE_CUDA(device_get, &device, ordinal) && MLIRFUSE_CUDA(device_name, name, sizeof name, device) &&
               MLIRFUSE_CUDA(device_attribute, &major, kComputeCapabilityMajor, device) &&
               MLIRFUSE_CUDA(device_attribute, &minor, kComputeCapabilityMinor, device) &&
               MLIRFUSE_CUDA(driver_version, &version) && MLIRFUSE_CUDA(device_total_mem, &memory, device);
    int* value = values;
    for (const DeviceAttribute& attribute : kDeviceAttributes)
      all = all && MLIRFUSE_CUDA(device_attribute, value++, attribute.number, device);
    return all;
  });
  if (!ok) return nullptr;
  Ref dict(Py_BuildValue("{s:s, s:(ii), s:i, s:n}", "name", name, "cc", major, minor, "driver_version", version,
                         "total_memory", static_cast<Py_ssize_t>(memory)));
  const int* value = values;
  for (const DeviceAttribute& attribute : kDeviceAttributes) {
    Ref number(dict ? PyLong_FromLong(*value++) : nullptr);
    if (!number || PyDict_SetItemString(dict.get(), attribute.name, number.get()) < 0) return nullptr;
  }
  return dict.release();
}

PyObject* mem_alloc(PyObject*, PyObject* args) {
  unsigned long long bytes = 0;
  int device = 0;
  if (!PyArg_ParseTuple(args, "K|i:mem_alloc", &bytes, &device)) return nullptr;
  cuda::DevicePtr pointer = 0;
  const bool ok = without_gil([&] {
    cuda::ContextScope context(device);
    return context.ok() && (bytes == 0 || MLIRFUSE_CUDA(mem_alloc, &pointer, static_cast<size_t>(bytes)));
  });
  return ok ? PyLong_FromUnsignedLongLong(pointer) : nullptr;
}

PyObject* mem_free(PyObject*, PyObject* args) {
  unsigned long long pointer = 0;
  if (!PyArg_ParseTuple(args, "K:mem_free", &pointer)) return nullptr;
  return none_if(!pointer ||
                 without_gil([&] { return cuda::ensure_context() && MLIRFUSE_CUDA(mem_free, as_pointer(pointer)); }));
}

// A contiguous buffer, released at the end of the scope.
class Buffer {
 public:
  Buffer(PyObject* object, bool writable)
      : ok_(PyObject_GetBuffer(object, &view_, PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) == 0) {}
  ~Buffer() {
    if (ok_) PyBuffer_Release(&view_);
  }
  bool ok() const { return ok_; }
  void* data() const { return view_.buf; }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_;
  bool ok_;
};

PyObject* copy_to_device(PyObject*, PyObject* args) {
  unsigned long long pointer = 0;
  PyObject* object = nullptr;
  if (!PyArg_ParseTuple(args, "KO:copy_to_device", &pointer, &object)) return nullptr;
  Buffer buffer(object, false);
  if (!buffer.ok()) return nullptr;
  return none_if(buffer.size() == 0 || without_gil([&] {
                   return cuda::ensure_context() &&
                          MLIRFUSE_CUDA(memcpy_to_device, as_pointer(pointer), buffer.data(), buffer.size());
                 }));
}

PyObject* copy_from_device(PyObject*, PyObject* args) {
  unsigned long long pointer = 0;
  PyObject* object = nullptr;
  if (!PyArg_ParseTuple(args, "OK:copy_from_device", &object, &pointer)) return nullptr;
  Buffer buffer(object, true);
  if (!buffer.ok()) return nullptr;
  return none_if(buffer.size() == 0 || without_gil([&] {
                   return cuda::ensure_context() &&
                          MLIRFUSE_CUDA(memcpy_from_device, buffer.data(), as_pointer(pointer), buffer.size());
                 }));
}

PyObject* synchronize(PyObject*, PyObject* args) {
  int device = 0;
  if (!PyArg_ParseTuple(args, "|i:synchronize", &device)) return nullptr;
  return none_if(without_gil([&] {
    cuda::ContextScope context(device);
    return context.ok() && MLIRFUSE_CUDA(context_synchronize);
  }));
}

PyObject* stream_create(PyObject*, PyObject* args) {
  int device = 0;
  if (!PyArg_ParseTuple(args, "|i:stream_create", &device)) return nullptr;
  cuda::Stream stream = nullptr;
  const bool ok = without_gil([&] {
    cuda::ContextScope context(device);
    return context.ok() && MLIRFUSE_CUDA(stream_create, &stream, cuda::kStreamNonBlocking);
  });
  return ok ? PyLong_FromVoidPtr(stream) : nullptr;
}

PyObject* stream_destroy(PyObject*, PyObject* args) {
  unsigned long long stream = 0;
  if (!PyArg_ParseTuple(args, "K:stream_destroy", &stream)) return nullptr;
  return none_if(without_gil([&] { return MLIRFUSE_CUDA(stream_destroy, as_stream(stream)); }));
}

PyObject* stream_synchronize(PyObject*, PyObject* args) {
  unsigned long long stream = 0;
  if (!PyArg_ParseTuple(args, "K:stream_synchronize", &stream)) return nullptr;
  return none_if(
      without_gil([&] { return cuda::ensure_context() && MLIRFUSE_CUDA(stream_synchronize, as_stream(stream)); }));
}

PyObject* event_create(PyObject*, PyObject* args) {
  int device = 0;
  if (!PyArg_ParseTuple(args, "|i:event_create", &device)) return nullptr;
  cuda::Event event = nullptr;
  const bool ok = without_gil([&] {
    cuda::ContextScope context(device);
    return context.ok() && MLIRFUSE_CUDA(event_create, &event, cuda::kEventDefault);
  });
  return ok ? PyLong_FromVoidPtr(event) : nullptr;
}

PyObject* event_destroy(PyObject*, PyObject* args) {
  unsigned long long event = 0;
  if (!PyArg_ParseTuple(args, "K:event_destroy", &event)) return nullptr;
  return none_if(without_gil([&] { return MLIRFUSE_CUDA(event_destroy, as_event(event)); }));
}

PyObject* event_record(PyObject*, PyObject* args) {
  unsigned long long event = 0, stream = 0;
  if (!PyArg_ParseTuple(args, "K|K:event_record", &event, &stream)) return nullptr;
  return none_if(without_gil(
      [&] { return cuda::ensure_context() && MLIRFUSE_CUDA(event_record, as_event(event), as_stream(stream)); }));
}

PyObject* event_synchronize(PyObject*, PyObject* args) {
  unsigned long long event = 0;
  if (!PyArg_ParseTuple(args, "K:event_synchronize", &event)) return nullptr;
  return none_if(without_gil([&] { return MLIRFUSE_CUDA(event_synchronize, as_event(event)); }));
}

PyObject* event_elapsed_ms(PyObject*, PyObject* args) {
  unsigned long long start = 0, end = 0;
  if (!PyArg_ParseTuple(args, "KK:event_elapsed_ms", &start, &end)) return nullptr;
  float milliseconds = 0;
  if (!without_gil([&] { return MLIRFUSE_CUDA(event_elapsed, &milliseconds, as_event(start), as_event(end)); }))
    return nullptr;
  return PyFloat_FromDouble(milliseconds);
}

PyObject* take_cuda_error(PyObject*, PyObject*) {
  const cuda::Error error = cuda::take_error();
  if (!error.code) Py_RETURN_NONE;
  return Py_BuildValue("(ss)", cuda::error_name(error.code), error.call);
}

}  // namespace

PyMethodDef cuda_methods[] = {
    {"cuda_available", cuda_available, METH_NOARGS, "cuda_available()\n--\n\nWhether a CUDA driver is usable."},
    {"cuda_error", cuda_error, METH_NOARGS, "cuda_error()\n--\n\nWhy no CUDA driver is usable, or None."},
    {"cuda_device_count", cuda_device_count, METH_NOARGS, "cuda_device_count()\n--\n\n0 without a driver."},
    {"cuda_device_attributes", cuda_device_attributes, METH_VARARGS,
     "cuda_device_attributes(device=0)\n--\n\nThe properties that schedules depend on, as a dict."},
    {"mem_alloc", mem_alloc, METH_VARARGS, "mem_alloc(nbytes, device=0)\n--\n\nThe address of new device memory."},
    {"mem_free", mem_free, METH_VARARGS, "mem_free(ptr)\n--\n\nFree what mem_alloc returned."},
    {"copy_to_device", copy_to_device, METH_VARARGS,
     "copy_to_device(ptr, buffer)\n--\n\nCopy a contiguous buffer and wait."},
    {"copy_from_device", copy_from_device, METH_VARARGS,
     "copy_from_device(buffer, ptr)\n--\n\nFill a contiguous buffer and wait."},
    {"synchronize", synchronize, METH_VARARGS, "synchronize(device=0)\n--\n\nWait for all work of a device."},
    {"stream_create", stream_create, METH_VARARGS, "stream_create(device=0)\n--\n\nA new non-blocking stream."},
    {"stream_destroy", stream_destroy, METH_VARARGS, "stream_destroy(stream)\n--\n\n"},
    {"stream_synchronize", stream_synchronize, METH_VARARGS, "stream_synchronize(stream)\n--\n\nWait for a stream."},
    {"event_create", event_create, METH_VARARGS, "event_create(device=0)\n--\n\nA new event with timing."},
    {"event_destroy", event_destroy, METH_VARARGS, "event_destroy(event)\n--\n\n"},
    {"event_record", event_record, METH_VARARGS, "event_record(event, stream=0)\n--\n\n"},
    {"event_synchronize", event_synchronize, METH_VARARGS, "event_synchronize(event)\n--\n\nWait for an event."},
    {"event_elapsed_ms", event_elapsed_ms, METH_VARARGS,
     "event_elapsed_ms(start, end)\n--\n\nMilliseconds between two events that have happened."},
    {"take_cuda_error", take_cuda_error, METH_NOARGS,
     "take_cuda_error()\n--\n\nThe calling thread's CUDA error since the last call, as (name, call), or None; "
     "cleared."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace mlirfuse
