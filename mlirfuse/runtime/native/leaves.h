// The arguments of a call: the type of each leaf, and the memory and layout of arrays.
#pragma once

#include <memory>
#include <vector>

#include "dlpack.h"
#include "python.h"

namespace mlirfuse {

enum class LeafKind : uint8_t {
  Array,
  Scalar,  // a Python number or a NumPy scalar
  Value,   // anything else
};

enum class Framework : uint8_t {
  NumPy,
  Exchange,   // has DLPack's C exchange API (torch)
  Interface,  // has __cuda_array_interface__ or __dlpack__ in Python (CuPy, mlirfuse's DeviceArray)
};

// The properties of an array type; determined once and cached.
struct ArrayType {
  Framework framework;
  const dlpack::ExchangeAPI* api;  // Framework::Exchange
  bool has_cuda_interface;         // Framework::Interface
  bool has_requires_grad;
  bool has_lazy_views;  // torch: is_neg and is_conj views, whose memory differs from the tensor's values, and
                        // ZeroTensors, which have none
  bool is_cupy;
};

struct Leaf {
  PyObject* object;  // borrowed from the call
  LeafKind kind;
  Framework framework;
  uint8_t alignment;  // log2 of the data pointer's, at most 6
  bool writable;
  bool requires_grad;  // and gradients are enabled
  bool lazy_view;
  bool strides_in_bytes;  // NumPy; in elements otherwise
  int32_t ndim;
  int32_t device_type;  // DLPack's code
  int32_t device_id;
  int64_t dtype_key;  // equal for equal dtypes
  int64_t item_bytes;
  char* data;
  const int64_t* shape;
  const int64_t* strides;
  dlpack::DataType dtype;       // not NumPy
  const ArrayType* array_type;  // not NumPy
  int64_t stream;               // Framework::Interface: the stream of its producer, -1 where it names none

  bool on_cuda() const { return device_type == dlpack::kCUDA || device_type == dlpack::kCUDAManaged; }
  PyArrayObject* numpy() const { return reinterpret_cast<PyArrayObject*>(object); }
};

class Leaves {
 public:
  Leaves() = default;
  ~Leaves();
  Leaves(const Leaves&) = delete;
  Leaves& operator=(const Leaves&) = delete;

  // Returns false with an exception set where a leaf cannot be read. `grads`: whether to ask which tensors need them.
  bool read(PyObject* const* objects, size_t count, bool grads = true);

  size_t size() const { return leaves_.size(); }
  const Leaf& operator[](size_t i) const { return leaves_[i]; }
  bool any_cuda() const { return any_cuda_; }
  // Whether a leaf is a host scalar in a call on CUDA: a 0-d array, passed by value.
  bool by_value(const Leaf& leaf) const { return any_cuda_ && leaf.ndim == 0 && !leaf.on_cuda(); }

 private:
  bool read_one(PyObject* object, Leaf* leaf, bool grads);
  void read_numpy(Leaf* leaf);
  bool read_exchange(Leaf* leaf);
  bool read_zeros(Leaf* leaf);  // of a tensor that torch knows to be zero: new memory for this call
  bool read_interface(Leaf* leaf);
  bool read_cuda_interface(Leaf* leaf);
  bool read_dlpack_capsule(Leaf* leaf);
  void set_tensor(const dlpack::Tensor& tensor, Leaf* leaf);
  int64_t* make_dims(size_t count);

  SmallBuffer<Leaf, 12> leaves_;
  std::vector<std::unique_ptr<int64_t[]>> dims_;
  std::vector<PyObject*> owned_;  // what owns the memory of Interface leaves and of torch's zeros
  bool any_cuda_ = false;
};

// Whether an argument is certainly a leaf: a number, a string, None or an array. Others may be containers, or values
// that are being traced.
bool surely_leaf(PyObject* object);

// Returns CuPy's current stream in this thread; false with an exception set on failure.
bool cupy_current_stream(void** stream);

}  // namespace mlirfuse
