#include "leaves.h"

#include <algorithm>
#include <unordered_map>

#include "cuda_driver.h"
#include "dtypes.h"

namespace mlirfuse {
namespace {

constexpr uint8_t kMaxAlignment = 6;
constexpr size_t kMaxKnownTypes = 1024;
constexpr uintptr_t kLowAddresses = uintptr_t(1) << 32;  // few programs have memory below

static_assert(sizeof(npy_intp) == sizeof(int64_t), "shapes are read in place as int64");

uint8_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | (uintptr_t(1) << kMaxAlignment);
  return static_cast<uint8_t>(__builtin_ctzll(address));
}

bool has_attribute(PyObject* object, const char* name) {
  Ref found(PyObject_GetAttrString(object, name));
  if (!found) PyErr_Clear();
  return static_cast<bool>(found);
}

// Returns the exchange API of a type; null where there is none of a supported version. Its capsule lives as long as its
// framework.
const dlpack::ExchangeAPI* exchange_api(PyObject* type) {
  Ref capsule(PyObject_GetAttrString(type, "__dlpack_c_exchange_api__"));
  if (!capsule || !PyCapsule_IsValid(capsule.get(), "dlpack_exchange_api")) {
    PyErr_Clear();
    return nullptr;
  }
  auto* api = static_cast<const dlpack::ExchangeAPI*>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
  while (api && api->version.major != dlpack::kMajorVersion)
    api = static_cast<const dlpack::ExchangeAPI*>(api->previous_api);
  return api && api->dltensor_from_py_object_no_sync ? api : nullptr;
}

ArrayType probe(PyTypeObject* type_object, bool* is_array) {
  PyObject* type = reinterpret_cast<PyObject*>(type_object);
  ArrayType found = {};
  found.api = exchange_api(type);
  found.has_cuda_interface = !found.api && has_attribute(type, "__cuda_array_interface__");
  *is_array = found.api || found.has_cuda_interface ||
              (has_attribute(type, "__dlpack__") && has_attribute(type, "__dlpack_device__"));
  found.framework = found.api ? Framework::Exchange : Framework::Interface;
  found.has_requires_grad = *is_array && has_attribute(type, "requires_grad");
  found.has_lazy_views = found.api && has_attribute(type, "is_neg") && has_attribute(type, "is_conj");
  Ref module(PyObject_GetAttrString(type, "__module__"));
  const char* home = module ? PyUnicode_AsUTF8(module.get()) : nullptr;
  if (!home) PyErr_Clear();
  found.is_cupy = home && std::strncmp(home, "cupy", 4) == 0;
  return found;
}

// Returns the description of `type`, or null where it is not an array type. Types are kept alive, as their addresses
// are the keys; beyond a limit no program reaches, the rest are probed at each call.
const ArrayType* array_type(PyTypeObject* type) {
  static auto* known = new std::unordered_map<PyTypeObject*, std::unique_ptr<ArrayType>>;
  const auto it = known->find(type);
  if (it != known->end()) return it->second.get();
  bool is_array = false;
  const ArrayType found = probe(type, &is_array);
  if (!is_array && known->size() >= kMaxKnownTypes) return nullptr;
  std::unique_ptr<ArrayType>& slot = (*known)[type];
  if (!slot && is_array) slot = std::make_unique<ArrayType>(found);
  Py_INCREF(type);
  return slot.get();
}

// Calls a method without arguments that returns a bool; false where it raises (the exception is dropped).
bool call_predicate(PyObject* object, PyObject* name) {
  Ref answer(PyObject_CallMethodNoArgs(object, name));
  if (!answer) PyErr_Clear();
  return answer.get() == Py_True;
}

// Whether a tensor at a low address has memory. Others have none at an address of 0; a view of one of torch's has its
// offset as the address.
bool has_memory(const Leaf& leaf) {
  if (std::find(leaf.shape, leaf.shape + leaf.ndim, 0) != leaf.shape + leaf.ndim) return true;
  int64_t offset = 0;
  if (leaf.data && leaf.array_type->has_lazy_views) {
    static Name name("storage_offset");
    Ref elements(PyObject_CallMethodNoArgs(leaf.object, name.get()));
    offset = elements ? PyLong_AsLongLong(elements.get()) * leaf.item_bytes : 0;
    PyErr_Clear();
  }
  return leaf.data != reinterpret_cast<char*>(offset);
}

// Whether autograd would record an operation on a tensor now.
bool grad_is_enabled() {
  static PyObject* question = import_name("torch", "is_grad_enabled").release();
  Ref answer(question ? PyObject_CallNoArgs(question) : nullptr);
  if (!answer) PyErr_Clear();
  return answer.get() != Py_False;
}

// torch's negated and conjugated views are views of complex tensors, whose strides are even (in real numbers); querying
// every tensor would cost more than reading it.
bool may_be_lazy_view(const Leaf& leaf) {
  if (leaf.dtype.code == dlpack::kComplex) return true;
  if (leaf.dtype.code != dlpack::kFloat) return false;
  for (int32_t i = 0; i < leaf.ndim; ++i)
    if (leaf.shape[i] != 1 && leaf.strides[i] % 2) return false;
  return true;
}

bool dims_from_tuple(PyObject* tuple, int64_t* out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    if (out[i] == -1 && PyErr_Occurred()) return false;
  }
  return true;
}

void contiguous_strides(const int64_t* shape, int32_t ndim, int64_t* strides) {
  int64_t step = 1;
  for (int32_t i = ndim; i-- > 0; step *= shape[i]) strides[i] = step;
}

// Returns the device of a pointer's memory; device 0 without a query where there is no other.
int32_t device_of_pointer(const void* data) {
  int count = 0;
  if (cuda::driver().device_count(&count) != cuda::kSuccess || count < 2 || !data) return 0;
  int32_t device = 0;
  if (cuda::driver().pointer_attribute(&device, cuda::kPointerAttributeDeviceOrdinal,
                                       reinterpret_cast<cuda::DevicePtr>(data)) != cuda::kSuccess)
    return 0;
  return device;
}

// Converts the typestr of a CUDA array interface, such as "<f4", to a DLPack type; "|V2" is resolved by the object's
// dtype.
bool dtype_of_interface(PyObject* object, PyObject* typestr, dlpack::DataType* out) {
  Ref dtype;
  const char* text = typestr ? PyUnicode_AsUTF8(typestr) : nullptr;
  if (!text) PyErr_Clear();
  if (text && std::strlen(text) > 1 && text[1] != 'V') {
    PyArray_Descr* descr = nullptr;
    if (!PyArray_DescrConverter(typestr, &descr)) return false;
    dtype = Ref(reinterpret_cast<PyObject*>(descr));
  } else {
    static Name name("dtype");
    dtype = Ref(PyObject_GetAttr(object, name.get()));
    if (!dtype) return false;
  }
  if (PyArray_DescrCheck(dtype.get()) && dlpack_type(reinterpret_cast<PyArray_Descr*>(dtype.get()), out)) return true;
  PyErr_Format(PyExc_TypeError, "arrays of dtype %R are not supported", dtype.get());
  return false;
}

int64_t key_of(dlpack::DataType type) {
  // Disjoint from NumPy's keys, which are never negative.
  return ~int64_t(type.code | type.bits << 8 | type.lanes << 16);
}

}  // namespace

bool surely_leaf(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (PyArray_Check(object) || type == &PyFloat_Type || type == &PyLong_Type || type == &PyBool_Type ||
      type == &PyComplex_Type || type == &PyUnicode_Type || object == Py_None || PyArray_IsScalar(object, Generic))
    return true;
  if (PyTuple_Check(object) || PyDict_Check(object)) return false;
  const ArrayType* found = array_type(type);
  return found && (found->api || found->has_cuda_interface);  // the front end converts other DLPack arrays to NumPy's
}

bool cupy_current_stream(void** stream) {
  static Name get("get_current_stream"), ptr("ptr");
  Ref module(PyImport_ImportModule("cupy.cuda"));
  Ref current(module ? PyObject_CallMethodNoArgs(module.get(), get.get()) : nullptr);
  Ref handle(current ? PyObject_GetAttr(current.get(), ptr.get()) : nullptr);
  if (!handle) return false;
  *stream = PyLong_AsVoidPtr(handle.get());
  return !PyErr_Occurred();
}

Leaves::~Leaves() {
  for (PyObject* object : owned_) Py_DECREF(object);
}

bool Leaves::read(PyObject* const* objects, size_t count, bool grads) {
  Leaf* leaves = leaves_.extend(count);
  if (!leaves) return false;
  for (size_t i = 0; i < count; ++i) {
    if (!read_one(objects[i], &leaves[i], grads)) return false;
    any_cuda_ |= leaves[i].kind == LeafKind::Array && leaves[i].on_cuda();
  }
  return true;
}

bool Leaves::read_one(PyObject* object, Leaf* leaf, bool grads) {
  *leaf = {};
  leaf->object = object;
  leaf->stream = -1;
  PyTypeObject* type = Py_TYPE(object);
  if (type == &PyArray_Type || PyArray_Check(object)) {
    read_numpy(leaf);
    return true;
  }
  if (type == &PyFloat_Type || type == &PyLong_Type || type == &PyBool_Type || type == &PyComplex_Type) {
    leaf->kind = LeafKind::Scalar;
    return true;
  }
  leaf->kind = LeafKind::Value;
  if (object == Py_None || type == &PyUnicode_Type || type == &PyTuple_Type) return true;
  if (PyArray_IsScalar(object, Generic)) {
    // Not np.number: ml_dtypes' scalars are generic only. Strings, records and times are not numbers.
    if (!PyArray_IsScalar(object, Flexible) && !PyArray_IsScalar(object, Datetime) &&
        !PyArray_IsScalar(object, Timedelta) && !PyArray_IsScalar(object, Object))
      leaf->kind = LeafKind::Scalar;
    return true;
  }
  leaf->array_type = array_type(type);
  if (!leaf->array_type) return true;
  leaf->kind = LeafKind::Array;
  leaf->framework = leaf->array_type->framework;
  leaf->writable = true;
  if (!(leaf->framework == Framework::Exchange ? read_exchange(leaf) : read_interface(leaf))) return false;
  if (grads && leaf->array_type->has_requires_grad) {
    static Name name("requires_grad");
    Ref answer(PyObject_GetAttr(object, name.get()));
    if (!answer) return false;
    leaf->requires_grad = answer.get() == Py_True && grad_is_enabled();
  }
  return true;
}

void Leaves::read_numpy(Leaf* leaf) {
  PyArrayObject* array = leaf->numpy();
  PyArray_Descr* descr = PyArray_DESCR(array);
  leaf->kind = LeafKind::Array;
  leaf->framework = Framework::NumPy;
  leaf->device_type = dlpack::kCPU;
  leaf->ndim = PyArray_NDIM(array);
  leaf->shape = reinterpret_cast<const int64_t*>(PyArray_DIMS(array));
  leaf->strides = reinterpret_cast<const int64_t*>(PyArray_STRIDES(array));
  leaf->strides_in_bytes = true;
  leaf->data = PyArray_BYTES(array);
  leaf->writable = PyArray_ISWRITEABLE(array);
  leaf->item_bytes = PyDataType_ELSIZE(descr);
  leaf->dtype_key = int64_t(descr->type_num) << 40 | int64_t(static_cast<uint8_t>(descr->byteorder)) << 32 |
                    (leaf->item_bytes & 0xffffffff);
  leaf->alignment = alignment_of(leaf->data);
}

bool Leaves::read_exchange(Leaf* leaf) {
  dlpack::Tensor tensor;
  if (leaf->array_type->api->dltensor_from_py_object_no_sync(leaf->object, &tensor) != 0) return false;
  set_tensor(tensor, leaf);
  if (reinterpret_cast<uintptr_t>(leaf->data) < kLowAddresses && !has_memory(*leaf)) return read_zeros(leaf);
  if (leaf->array_type->has_lazy_views && may_be_lazy_view(*leaf)) {
    static Name is_neg("is_neg"), is_conj("is_conj");
    leaf->lazy_view = call_predicate(leaf->object, is_neg.get()) || call_predicate(leaf->object, is_conj.get());
  }
  return true;
}

bool Leaves::read_zeros(Leaf* leaf) {
  Ref function, zeros;
  if (leaf->array_type->has_lazy_views) {
    function = import_name("mlirfuse.runtime.arrays", "zeros_in_memory");
    if (function) zeros = Ref(PyObject_CallOneArg(function.get(), leaf->object));
  }
  dlpack::Tensor tensor;
  if (!zeros || zeros.get() == Py_None) {
    PyErr_Format(PyExc_ValueError, "a %s has no memory: compiled code runs on real tensors only",
                 Py_TYPE(leaf->object)->tp_name);
    return false;
  }
  if (leaf->array_type->api->dltensor_from_py_object_no_sync(zeros.get(), &tensor) != 0) return false;
  owned_.push_back(zeros.release());
  set_tensor(tensor, leaf);
  leaf->lazy_view = true;
  leaf->writable = false;
  return true;
}

void Leaves::set_tensor(const dlpack::Tensor& tensor, Leaf* leaf) {
  leaf->device_type = tensor.device.type == dlpack::kCUDAHost ? dlpack::kCPU : tensor.device.type;
  leaf->device_id = tensor.device.id;
  leaf->ndim = tensor.ndim;
  leaf->dtype = tensor.dtype;
  leaf->dtype_key = key_of(tensor.dtype);
  leaf->item_bytes = item_bytes(tensor.dtype);
  leaf->shape = tensor.shape;
  leaf->strides = tensor.strides;
  leaf->data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  leaf->alignment = alignment_of(leaf->data);
  if (!tensor.strides && tensor.ndim) {
    int64_t* strides = make_dims(static_cast<size_t>(tensor.ndim));
    contiguous_strides(tensor.shape, tensor.ndim, strides);
    leaf->strides = strides;
  }
}

bool Leaves::read_interface(Leaf* leaf) {
  if (!leaf->array_type->has_cuda_interface) return read_dlpack_capsule(leaf);
  return read_cuda_interface(leaf);
}

bool Leaves::read_cuda_interface(Leaf* leaf) {
  static Name interface("__cuda_array_interface__"), shape_key("shape"), strides_key("strides"), typestr_key("typestr"),
      data_key("data"), stream_key("stream");
  Ref described(PyObject_GetAttr(leaf->object, interface.get()));
  if (!described) return false;
  PyObject* dict = described.get();
  const auto item = [dict](const Name& key) {
    return PyDict_Check(dict) ? PyDict_GetItemWithError(dict, key.get()) : nullptr;
  };
  PyObject *shape = item(shape_key), *strides = item(strides_key), *data = item(data_key), *stream = item(stream_key);
  if (!shape || !PyTuple_Check(shape) || !data || !PyTuple_Check(data) || PyTuple_GET_SIZE(data) != 2 ||
      (strides && strides != Py_None &&
       (!PyTuple_Check(strides) || PyTuple_GET_SIZE(strides) != PyTuple_GET_SIZE(shape)))) {
    if (!PyErr_Occurred())
      PyErr_Format(PyExc_TypeError, "the __cuda_array_interface__ of a %s is malformed",
                   Py_TYPE(leaf->object)->tp_name);
    return false;
  }
  if (!dtype_of_interface(leaf->object, item(typestr_key), &leaf->dtype)) return false;
  leaf->dtype_key = key_of(leaf->dtype);
  leaf->item_bytes = item_bytes(leaf->dtype);
  leaf->ndim = static_cast<int32_t>(PyTuple_GET_SIZE(shape));
  int64_t* dims = make_dims(2 * static_cast<size_t>(leaf->ndim));
  leaf->shape = dims;
  leaf->strides = dims + leaf->ndim;
  if (!dims_from_tuple(shape, dims)) return false;
  if (strides && strides != Py_None) {
    if (!dims_from_tuple(strides, dims + leaf->ndim)) return false;
    leaf->strides_in_bytes = true;
  } else {
    contiguous_strides(dims, leaf->ndim, dims + leaf->ndim);
  }
  leaf->data = static_cast<char*>(PyLong_AsVoidPtr(PyTuple_GET_ITEM(data, 0)));
  leaf->writable = PyObject_IsTrue(PyTuple_GET_ITEM(data, 1)) == 0;
  if (stream && stream != Py_None) leaf->stream = PyLong_AsLongLong(stream);
  if (PyErr_Occurred()) return false;
  // One unit for strides, so that an array always has the same signature.
  if (leaf->strides_in_bytes) {
    leaf->strides_in_bytes = false;
    for (int32_t i = 0; i < leaf->ndim; ++i) {
      if (dims[leaf->ndim + i] % leaf->item_bytes) {
        PyErr_SetString(PyExc_ValueError, "strides that are not multiples of the item size are not supported on CUDA");
        return false;
      }
      dims[leaf->ndim + i] /= leaf->item_bytes;
    }
  }
  leaf->device_type = dlpack::kCUDA;
  leaf->device_id = device_of_pointer(leaf->data);
  leaf->alignment = alignment_of(leaf->data);
  return true;
}

bool Leaves::read_dlpack_capsule(Leaf* leaf) {
  static Name device_name("__dlpack_device__"), dlpack_name("__dlpack__"), stream_name("stream");
  Ref device(PyObject_CallMethodNoArgs(leaf->object, device_name.get()));
  int type = 0, id = 0;
  if (!device || !PyArg_ParseTuple(device.get(), "ii;__dlpack_device__ must return (type, id)", &type, &id))
    return false;
  Ref capsule;
  if (type == dlpack::kCUDA || type == dlpack::kCUDAManaged) {
    // The producer makes the data ready on the legacy default stream (1), on which the kernels are launched.
    Ref stream(PyLong_FromLong(1)), method(PyObject_GetAttr(leaf->object, dlpack_name.get()));
    Ref names(Py_BuildValue("(O)", stream_name.get()));
    if (!stream || !method || !names) return false;
    PyObject* arguments[] = {stream.get()};
    capsule = Ref(PyObject_Vectorcall(method.get(), arguments, 0, names.get()));
    leaf->stream = 1;
  } else {
    capsule = Ref(PyObject_CallMethodNoArgs(leaf->object, dlpack_name.get()));
  }
  if (!capsule) return false;
  const dlpack::Tensor* tensor = nullptr;
  if (PyCapsule_IsValid(capsule.get(), "dltensor")) {
    tensor = &static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.get(), "dltensor"))->tensor;
  } else if (PyCapsule_IsValid(capsule.get(), "dltensor_versioned")) {
    auto* managed =
        static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.get(), "dltensor_versioned"));
    if (managed->version.major == dlpack::kMajorVersion) {
      tensor = &managed->tensor;
      leaf->writable = !(managed->flags & dlpack::kFlagReadOnly);
    }
  }
  if (!tensor) {
    PyErr_Format(PyExc_TypeError, "__dlpack__ of a %s did not return a usable capsule", Py_TYPE(leaf->object)->tp_name);
    return false;
  }
  owned_.push_back(capsule.release());
  set_tensor(*tensor, leaf);
  return true;
}

int64_t* Leaves::make_dims(size_t count) {
  dims_.push_back(std::make_unique<int64_t[]>(count ? count : 1));
  return dims_.back().get();
}

}  // namespace mlirfuse
