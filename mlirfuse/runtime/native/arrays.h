// Arrays for results, allocated by the framework of a call's arguments.
#pragma once

#include <string>
#include <vector>

#include "leaves.h"

namespace mlirfuse {

enum class Allocator : uint8_t {
  Pool,      // NumPy, over the buffer pool
  Exchange,  // the DLPack exchange API of a leaf's type (torch)
  CuPy,
  Own,  // mlirfuse's DeviceArray
};

// The device and allocator of a record's results and workspace. Parsed from ("cpu", "numpy"), ("cpu" | "cuda",
// "torch"[, i]), ("cuda", "cupy"[, i]) and ("cuda", "own"[, i]).
struct Placement {
  Allocator allocator = Allocator::Pool;
  bool cuda = false;
  int32_t device_id = 0;
  Ref factory;  // the module cupy, or the class DeviceArray

  bool parse(PyObject* device);
};

// The layout and type of an array to allocate.
struct ArraySpec {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements
  std::vector<int64_t> byte_strides;
  bool contiguous = false;
  int64_t extent = 0;  // elements from the first to past the last
  int64_t item_bytes = 0;
  dlpack::DataType dtype = {};
  Ref descr;  // NumPy's
  Ref shape_tuple, strides_tuple, byte_strides_tuple;

  bool parse(PyObject* shape, PyObject* strides, PyObject* dtype);
};

// A NumPy array over the pool. `byte_strides` may be null for a contiguous array of `bytes`.
PyObject* make_pool_array(PyArray_Descr* descr, int ndim, const int64_t* shape, const int64_t* byte_strides,
                          size_t bytes);

// Returns a new uninitialized array and its data pointer; null with an exception set on failure. `prototype` is the
// leaf whose framework allocates (Allocator::Exchange); `stream` is the stream that will write the array.
PyObject* make_array(const Placement& placement, const ArraySpec& spec, const Leaf* prototype, void* stream,
                     void** data);

// Returns an array that shares the memory of `source`, an argument or a result, from `byte_offset` on.
PyObject* make_view(const Placement& placement, const ArraySpec& spec, PyObject* source, int64_t byte_offset,
                    void* stream);

// make_results_by(maker): allocates torch's results by maker(prototype tensor, (DLPack code, bits), shape), which
// returns a contiguous tensor; None: by torch's exchange API, which is faster.
PyObject* make_results_by(PyObject* self, PyObject* maker);

// Scratch memory for one call.
class Workspace {
 public:
  Workspace() = default;
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  bool allocate(const Placement& placement, int64_t bytes, const Leaf* prototype, void* stream);
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool from_pool_ = false;
  bool from_driver_ = false;
  void* stream_ = nullptr;
  dlpack::ManagedTensorVersioned* managed_ = nullptr;
  Ref array_;
};

// Raises mlirfuse.core.errors.CudaError for the calling thread's pending CUDA error, and clears it.
void raise_cuda_error(const char* detail = nullptr);
// Raises mlirfuse.core.errors.MlirfuseError.
void raise_error(const char* message);

bool register_buffer_type(PyObject* module);

}  // namespace mlirfuse
