// The DLPack 1.x structures and its C exchange API (the capsule on a type's `__dlpack_c_exchange_api__`), as laid out
// by the specification. Declared here so that building mlirfuse needs no third-party header.
#pragma once

#include <cstdint>

namespace mlirfuse::dlpack {

constexpr uint32_t kMajorVersion = 1;
constexpr uint32_t kMinorVersion = 0;

enum DeviceType : int32_t {
  kCPU = 1,
  kCUDA = 2,
  kCUDAHost = 3,
  kCUDAManaged = 13,
};

enum TypeCode : uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct Device {
  int32_t type;
  int32_t id;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

inline bool operator==(DataType a, DataType b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }
inline bool operator!=(DataType a, DataType b) { return !(a == b); }

// `strides` count elements. They may be null for a contiguous tensor from producers older than DLPack 1.2.
struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

// The unversioned structure, in capsules named "dltensor".
struct ManagedTensor {
  Tensor tensor;
  void* manager_ctx;
  void (*deleter)(ManagedTensor* self);
};

// The versioned structure, in capsules named "dltensor_versioned".
struct ManagedTensorVersioned {
  Version version;
  void* manager_ctx;
  void (*deleter)(ManagedTensorVersioned* self);
  uint64_t flags;
  Tensor tensor;
};

constexpr uint64_t kFlagReadOnly = 1;

using SetError = void (*)(void* context, const char* kind, const char* message);

struct ExchangeAPI {
  Version version;
  void* previous_api;
  int (*managed_tensor_allocator)(Tensor* prototype, ManagedTensorVersioned** out, void* context, SetError set_error);
  int (*managed_tensor_from_py_object_no_sync)(void* object, ManagedTensorVersioned** out);
  int (*managed_tensor_to_py_object_no_sync)(ManagedTensorVersioned* tensor, void** out);
  int (*dltensor_from_py_object_no_sync)(void* object, Tensor* out);  // may be null
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out);
};

static_assert(sizeof(Tensor) == 48 && sizeof(ManagedTensor) == 64 && sizeof(ManagedTensorVersioned) == 80,
              "DLPack's layout on 64-bit machines");
static_assert(sizeof(ExchangeAPI) == 56, "DLPack's layout on 64-bit machines");

}  // namespace mlirfuse::dlpack
