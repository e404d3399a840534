#include "arrays.h"

#include <algorithm>

#include "buffer_pool.h"
#include "cuda_driver.h"
#include "dtypes.h"

namespace mlirfuse {
namespace {

// The base object of arrays over the pool: returns the buffer when the last of them is gone.
struct PoolBuffer {
  PyObject_HEAD void* data;
  size_t bytes;
};

void pool_buffer_dealloc(PyObject* self) {
  auto* buffer = reinterpret_cast<PoolBuffer*>(self);
  pool_release(buffer->data, buffer->bytes);
  PyTypeObject* type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyType_Slot pool_buffer_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(pool_buffer_dealloc)},
    {Py_tp_doc, const_cast<char*>("Memory of a result, on loan from mlirfuse's buffer pool.")},
    {0, nullptr},
};
PyType_Spec pool_buffer_spec = {"mlirfuse._native.PoolBuffer", sizeof(PoolBuffer), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, pool_buffer_slots};
PyTypeObject* pool_buffer_type = nullptr;

Ref int_tuple(const std::vector<int64_t>& values) {
  Ref tuple(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  for (size_t i = 0; tuple && i < values.size(); ++i) {
    PyObject* item = PyLong_FromLongLong(values[i]);
    if (!item) return Ref();
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), item);
  }
  return tuple;
}

bool int_vector(PyObject* sequence, std::vector<int64_t>* out) {
  Ref fast(PySequence_Fast(sequence, "a shape and strides are sequences of integers"));
  if (!fast) return false;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast.get());
  out->resize(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    const int64_t value = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast.get(), i));
    if (value == -1 && PyErr_Occurred()) return false;
    (*out)[static_cast<size_t>(i)] = value;
  }
  return true;
}

void* pointer_attribute(PyObject* object, PyObject* name) {
  Ref value(PyObject_GetAttr(object, name));
  return value ? PyLong_AsVoidPtr(value.get()) : nullptr;
}

void set_allocation_error(void*, const char* kind, const char* message) {
  PyErr_Format(std::strcmp(kind, "MemoryError") == 0 ? PyExc_MemoryError : PyExc_RuntimeError, "%s: %s", kind, message);
}

dlpack::ManagedTensorVersioned* allocate_managed(const Placement& placement, const Leaf& prototype,
                                                 dlpack::DataType dtype, int32_t ndim, const int64_t* shape) {
  dlpack::Tensor requested = {};
  requested.device = {placement.cuda ? dlpack::kCUDA : dlpack::kCPU, placement.device_id};
  requested.ndim = ndim;
  requested.dtype = dtype;
  requested.shape = const_cast<int64_t*>(shape);
  dlpack::ManagedTensorVersioned* managed = nullptr;
  if (prototype.array_type->api->managed_tensor_allocator(&requested, &managed, nullptr, set_allocation_error) == 0)
    return managed;
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_MemoryError, "the arrays' framework could not allocate the result");
  return nullptr;
}

// A view with the axes of negative strides reversed, and its copy reversed back: torch has no negative strides.
PyObject* torch_flipped(const ArraySpec& spec, PyObject* source, int64_t first) {
  static Name as_strided("as_strided"), flip("flip");
  Ref strides(PyTuple_New(spec.strides.size())), axes(PyList_New(0));
  if (!strides || !axes) return nullptr;
  for (size_t axis = 0; axis < spec.strides.size(); ++axis) {
    int64_t stride = spec.strides[axis];
    if (stride < 0) {
      first += stride * (spec.shape[axis] - 1);
      stride = -stride;
      Ref number(PyLong_FromSize_t(axis));
      if (!number || PyList_Append(axes.get(), number.get()) != 0) return nullptr;
    }
    PyObject* step = PyLong_FromLongLong(stride);
    if (!step) return nullptr;
    PyTuple_SET_ITEM(strides.get(), axis, step);
  }
  Ref offset(PyLong_FromLongLong(first));
  if (!offset) return nullptr;
  PyObject* arguments[] = {source, spec.shape_tuple.get(), strides.get(), offset.get()};
  Ref view(PyObject_VectorcallMethod(as_strided.get(), arguments, 4, nullptr));
  return view ? PyObject_CallMethodOneArg(view.get(), flip.get(), axes.get()) : nullptr;
}

// torch: tensor.as_strided(shape, strides, offset in elements of the storage).
PyObject* torch_view(const ArraySpec& spec, PyObject* source, int64_t byte_offset) {
  static Name as_strided("as_strided"), storage_offset("storage_offset");
  Ref start(PyObject_CallMethodNoArgs(source, storage_offset.get()));
  int64_t first = start ? PyLong_AsLongLong(start.get()) : -1;
  if (first == -1 && PyErr_Occurred()) return nullptr;
  first += byte_offset / spec.item_bytes;
  if (std::any_of(spec.strides.begin(), spec.strides.end(), [](int64_t stride) { return stride < 0; }))
    return torch_flipped(spec, source, first);
  Ref offset(PyLong_FromLongLong(first));
  if (!offset) return nullptr;
  PyObject* arguments[] = {source, spec.shape_tuple.get(), spec.strides_tuple.get(), offset.get()};
  return PyObject_VectorcallMethod(as_strided.get(), arguments, 4, nullptr);
}

PyObject* result_maker = nullptr;  // null: torch's exchange API allocates results

// Calls the maker: a contiguous tensor on the prototype's device.
PyObject* allocate_by_maker(const ArraySpec& spec, const Leaf& prototype, void** data) {
  static Name data_ptr("data_ptr");
  Ref type(Py_BuildValue("(ii)", int(spec.dtype.code), int(spec.dtype.bits)));
  Ref shape(spec.contiguous ? Py_NewRef(spec.shape_tuple.get()) : Py_BuildValue("(L)", (long long)spec.extent));
  if (!type || !shape) return nullptr;
  PyObject* arguments[] = {prototype.object, type.get(), shape.get()};
  Ref created(PyObject_Vectorcall(result_maker, arguments, 3, nullptr));
  Ref address(created ? PyObject_CallMethodNoArgs(created.get(), data_ptr.get()) : nullptr);
  if (!address) return nullptr;
  *data = PyLong_AsVoidPtr(address.get());
  if (PyErr_Occurred()) return nullptr;
  return spec.contiguous ? created.release() : torch_view(spec, created.get(), 0);
}

PyObject* make_exchange_array(const Placement& placement, const ArraySpec& spec, const Leaf& prototype, void** data) {
  if (result_maker) return allocate_by_maker(spec, prototype, data);
  // The allocator returns contiguous memory; another layout is a view of a flat tensor.
  const int32_t ndim = spec.contiguous ? static_cast<int32_t>(spec.shape.size()) : 1;
  const int64_t* shape = spec.contiguous ? spec.shape.data() : &spec.extent;
  dlpack::ManagedTensorVersioned* managed = allocate_managed(placement, prototype, spec.dtype, ndim, shape);
  if (!managed) return nullptr;
  *data = static_cast<char*>(managed->tensor.data) + managed->tensor.byte_offset;
  void* object = nullptr;
  if (prototype.array_type->api->managed_tensor_to_py_object_no_sync(managed, &object) != 0) return nullptr;
  if (spec.contiguous) return static_cast<PyObject*>(object);
  Ref flat(static_cast<PyObject*>(object));
  return torch_view(spec, flat.get(), 0);
}

// cupy.ndarray(shape, dtype, memory[, byte strides])
PyObject* cupy_over(const Placement& placement, const ArraySpec& spec, PyObject* memory) {
  static Name ndarray("ndarray");
  PyObject* arguments[] = {placement.factory.get(), spec.shape_tuple.get(), spec.descr.get(), memory,
                           spec.byte_strides_tuple.get()};
  return PyObject_VectorcallMethod(ndarray.get(), arguments, 5, nullptr);
}

PyObject* make_cupy_array(const Placement& placement, const ArraySpec& spec, void** data) {
  static Name empty("empty"), data_name("data"), ptr("ptr");
  Ref extent(spec.contiguous ? Py_NewRef(spec.shape_tuple.get()) : PyLong_FromLongLong(spec.extent));
  if (!extent) return nullptr;
  PyObject* arguments[] = {placement.factory.get(), extent.get(), spec.descr.get()};
  Ref array(PyObject_VectorcallMethod(empty.get(), arguments, 3, nullptr));
  Ref memory(array ? PyObject_GetAttr(array.get(), data_name.get()) : nullptr);
  if (!memory) return nullptr;
  *data = pointer_attribute(memory.get(), ptr.get());
  if (PyErr_Occurred()) return nullptr;
  return spec.contiguous ? array.release() : cupy_over(placement, spec, memory.get());
}

PyObject* cupy_view(const Placement& placement, const ArraySpec& spec, PyObject* source, int64_t byte_offset) {
  static Name data_name("data");
  Ref memory(PyObject_GetAttr(source, data_name.get())), offset(PyLong_FromLongLong(byte_offset));
  Ref moved(memory && offset ? PyNumber_Add(memory.get(), offset.get()) : nullptr);
  return moved ? cupy_over(placement, spec, moved.get()) : nullptr;
}

// DeviceArray(pointer, shape, dtype, byte strides, device, owner, stream); without an owner it owns the memory. The
// CUDA array interface has no stream 0: it calls the legacy default stream 1.
PyObject* device_array(const Placement& placement, const ArraySpec& spec, void* data, PyObject* owner, void* stream) {
  return PyObject_CallFunction(placement.factory.get(), "KOOOiOK", reinterpret_cast<unsigned long long>(data),
                               spec.shape_tuple.get(), spec.descr.get(), spec.byte_strides_tuple.get(),
                               static_cast<int>(placement.device_id), owner ? owner : Py_None,
                               stream ? reinterpret_cast<unsigned long long>(stream) : 1ull);
}

PyObject* make_device_array(const Placement& placement, const ArraySpec& spec, void* stream, void** data) {
  cuda::ContextScope context(placement.device_id);
  cuda::DevicePtr pointer = 0;
  const auto bytes = static_cast<size_t>(spec.extent * spec.item_bytes);
  if (!context.ok() || (bytes && !MLIRFUSE_CUDA(mem_alloc, &pointer, bytes))) {
    raise_cuda_error();
    return nullptr;
  }
  *data = reinterpret_cast<void*>(pointer);
  PyObject* array = device_array(placement, spec, *data, nullptr, stream);
  if (!array && pointer) (void)MLIRFUSE_CUDA(mem_free, pointer);
  return array;
}

PyObject* own_view(const Placement& placement, const ArraySpec& spec, PyObject* source, int64_t byte_offset,
                   void* stream) {
  Leaves leaves;
  if (!leaves.read(&source, 1)) return nullptr;
  return device_array(placement, spec, leaves[0].data + byte_offset, source, stream);
}

PyObject* numpy_view(const ArraySpec& spec, PyObject* source, int64_t byte_offset) {
  Ref of_scalar;
  if (PyFloat_Check(source) || PyLong_Check(source) || PyComplex_Check(source)) {  // NumPy's float64 is a float, too
    auto* descr = reinterpret_cast<PyArray_Descr*>(Py_NewRef(spec.descr.get()));   // reference is stolen
    of_scalar = Ref(PyArray_FromAny(source, descr, 0, 0, NPY_ARRAY_FORCECAST, nullptr));
  } else if (PyArray_CheckScalar(source) && !PyArray_Check(source)) {
    of_scalar = Ref(PyArray_FromScalar(source, nullptr));
  }
  if (PyErr_Occurred()) return nullptr;
  if (of_scalar) source = of_scalar.get();
  if (!PyArray_Check(source)) {
    PyErr_SetString(PyExc_TypeError, "a view for NumPy needs a NumPy array to share memory with");
    return nullptr;
  }
  auto* base = reinterpret_cast<PyArrayObject*>(source);
  PyObject* descr = Py_NewRef(spec.descr.get());  // reference is stolen
  PyObject* view = PyArray_NewFromDescr(
      &PyArray_Type, reinterpret_cast<PyArray_Descr*>(descr), static_cast<int>(spec.shape.size()),
      reinterpret_cast<const npy_intp*>(spec.shape.data()), reinterpret_cast<const npy_intp*>(spec.byte_strides.data()),
      PyArray_BYTES(base) + byte_offset, PyArray_FLAGS(base) & NPY_ARRAY_WRITEABLE, nullptr);
  if (!view) return nullptr;
  PyArray_UpdateFlags(reinterpret_cast<PyArrayObject*>(view), NPY_ARRAY_ALIGNED);
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(view), Py_NewRef(source)) < 0) Py_CLEAR(view);
  return view;
}

}  // namespace

bool Placement::parse(PyObject* device) {
  const char *kind = nullptr, *framework = nullptr;
  int index = 0;
  if (!PyTuple_Check(device) ||
      !PyArg_ParseTuple(device, "ss|i;device is a tuple (kind, framework[, index])", &kind, &framework, &index)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "device is a tuple (kind, framework[, index])");
    return false;
  }
  cuda = std::strcmp(kind, "cuda") == 0;
  device_id = index;
  const std::string name(framework);
  if (name == "torch") {
    allocator = Allocator::Exchange;
  } else if (name == "numpy" && !cuda) {
    allocator = Allocator::Pool;
  } else if (name == "cupy" && cuda) {
    allocator = Allocator::CuPy;
    factory = Ref(PyImport_ImportModule("cupy"));
    return static_cast<bool>(factory);
  } else if (name == "own" && cuda) {
    allocator = Allocator::Own;
    factory = import_name("mlirfuse.runtime.device_array", "DeviceArray");
    return static_cast<bool>(factory);
  } else {
    PyErr_Format(PyExc_ValueError, "no allocator for device %R", device);
    return false;
  }
  return true;
}

bool ArraySpec::parse(PyObject* shape_object, PyObject* strides_object, PyObject* dtype_object) {
  if (!parse_dtype(dtype_object, &dtype, &descr) || !int_vector(shape_object, &shape)) return false;
  item_bytes = mlirfuse::item_bytes(dtype);
  int64_t step = 1;
  std::vector<int64_t> dense(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] < 0 || __builtin_mul_overflow(step, shape[i] ? shape[i] : 1, &step)) {
      PyErr_SetString(PyExc_ValueError, "a size is negative, or the array is too large");
      return false;
    }
    dense[i] = step / (shape[i] ? shape[i] : 1);
  }
  if (strides_object == Py_None)
    strides = dense;
  else if (!int_vector(strides_object, &strides))
    return false;
  if (strides.size() != shape.size()) {
    PyErr_SetString(PyExc_ValueError, "shape and strides differ in length");
    return false;
  }
  contiguous = true;
  extent = 1;
  bool empty = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    empty |= shape[i] == 0;
    if (shape[i] > 1) {
      contiguous &= strides[i] == dense[i];
      extent += (shape[i] - 1) * (strides[i] > 0 ? strides[i] : 0);
    }
    byte_strides.push_back(strides[i] * item_bytes);
  }
  if (empty) {
    extent = 0;
    contiguous = true;
  }
  shape_tuple = int_tuple(shape);
  strides_tuple = int_tuple(strides);
  byte_strides_tuple = int_tuple(byte_strides);
  return shape_tuple && strides_tuple && byte_strides_tuple;
}

PyObject* make_pool_array(PyArray_Descr* descr, int ndim, const int64_t* shape, const int64_t* byte_strides,
                          size_t bytes) {
  auto* buffer = PyObject_New(PoolBuffer, pool_buffer_type);
  if (!buffer) return nullptr;
  buffer->bytes = bytes;
  buffer->data = pool_allocate(bytes);
  if (!buffer->data) {
    PyObject_Free(buffer);
    Py_DECREF(pool_buffer_type);
    return PyErr_NoMemory();
  }
  Py_INCREF(descr);  // reference is stolen
  PyObject* array =
      PyArray_NewFromDescr(&PyArray_Type, descr, ndim, reinterpret_cast<const npy_intp*>(shape),
                           reinterpret_cast<const npy_intp*>(byte_strides), buffer->data, NPY_ARRAY_CARRAY, nullptr);
  if (!array) {
    Py_DECREF(buffer);
    return nullptr;
  }
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), reinterpret_cast<PyObject*>(buffer)) < 0)
    Py_CLEAR(array);
  return array;
}

PyObject* make_array(const Placement& placement, const ArraySpec& spec, const Leaf* prototype, void* stream,
                     void** data) {
  switch (placement.allocator) {
    case Allocator::Pool: {
      PyObject* array = make_pool_array(
          reinterpret_cast<PyArray_Descr*>(spec.descr.get()), static_cast<int>(spec.shape.size()), spec.shape.data(),
          spec.contiguous ? nullptr : spec.byte_strides.data(), static_cast<size_t>(spec.extent * spec.item_bytes));
      if (array) *data = PyArray_DATA(reinterpret_cast<PyArrayObject*>(array));
      return array;
    }
    case Allocator::Exchange:
      return make_exchange_array(placement, spec, *prototype, data);
    case Allocator::CuPy:
      return make_cupy_array(placement, spec, data);
    case Allocator::Own:
      return make_device_array(placement, spec, stream, data);
  }
  return nullptr;
}

PyObject* make_view(const Placement& placement, const ArraySpec& spec, PyObject* source, int64_t byte_offset,
                    void* stream) {
  switch (placement.allocator) {
    case Allocator::Pool:
      return numpy_view(spec, source, byte_offset);
    case Allocator::Exchange:
      return torch_view(spec, source, byte_offset);
    case Allocator::CuPy:
      return cupy_view(placement, spec, source, byte_offset);
    case Allocator::Own:
      return own_view(placement, spec, source, byte_offset, stream);
  }
  return nullptr;
}

PyObject* make_results_by(PyObject*, PyObject* maker) {
  PyObject* before = result_maker;
  result_maker = maker == Py_None ? nullptr : Py_NewRef(maker);
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

bool Workspace::allocate(const Placement& placement, int64_t bytes, const Leaf* prototype, void* stream) {
  static Name empty("empty"), data_name("data"), ptr("ptr");
  if (bytes <= 0) return true;
  bytes_ = static_cast<size_t>(bytes);
  if (!placement.cuda) {
    data_ = pool_allocate(bytes_);
    from_pool_ = data_ != nullptr;
    if (!data_) PyErr_NoMemory();
    return from_pool_;
  }
  if (placement.allocator == Allocator::Exchange) {
    managed_ = allocate_managed(placement, *prototype, {dlpack::kUInt, 8, 1}, 1, &bytes);
    if (managed_) data_ = static_cast<char*>(managed_->tensor.data) + managed_->tensor.byte_offset;
    return managed_ != nullptr;
  }
  if (placement.allocator == Allocator::CuPy) {
    Ref size(PyLong_FromLongLong(bytes));
    PyObject* arguments[] = {placement.factory.get(), size.get(), reinterpret_cast<PyObject*>(&PyByteArrType_Type)};
    array_ = Ref(size ? PyObject_VectorcallMethod(empty.get(), arguments, 3, nullptr) : nullptr);
    Ref memory(array_ ? PyObject_GetAttr(array_.get(), data_name.get()) : nullptr);
    if (memory) data_ = pointer_attribute(memory.get(), ptr.get());
    return !PyErr_Occurred();
  }
  cuda::DevicePtr pointer = 0;
  if (!MLIRFUSE_CUDA(mem_alloc_async, &pointer, bytes_, static_cast<cuda::Stream>(stream))) {
    raise_cuda_error();
    return false;
  }
  data_ = reinterpret_cast<void*>(pointer);
  from_driver_ = true;
  stream_ = stream;
  return true;
}

Workspace::~Workspace() {
  if (from_pool_) pool_release(data_, bytes_);
  // In stream order: the memory is reused only after the kernels that were just launched.
  if (from_driver_)
    (void)MLIRFUSE_CUDA(mem_free_async, reinterpret_cast<cuda::DevicePtr>(data_), static_cast<cuda::Stream>(stream_));
  if (managed_ && managed_->deleter) managed_->deleter(managed_);
}

void raise_cuda_error(const char* detail) {
  const cuda::Error error = cuda::take_error();
  const char* name = cuda::error_name(error.code);
  Ref type = import_name("mlirfuse.core.errors", "CudaError");
  Ref message(PyUnicode_FromFormat("%s failed with %s: %s%s%s", error.call, name, cuda::error_text(error.code),
                                   detail && *detail ? "\n" : "", detail ? detail : ""));
  Ref exception(type && message ? PyObject_CallFunction(type.get(), "Os", message.get(), name) : nullptr);
  if (exception) PyErr_SetObject(type.get(), exception.get());
}

void raise_error(const char* message) {
  Ref type = import_name("mlirfuse.core.errors", "MlirfuseError");
  if (type) PyErr_SetString(type.get(), message);
}

bool register_buffer_type(PyObject* module) {
  pool_buffer_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&pool_buffer_spec));
  return pool_buffer_type &&
         PyModule_AddObjectRef(module, "PoolBuffer", reinterpret_cast<PyObject*>(pool_buffer_type)) == 0;
}

}  // namespace mlirfuse
