// What a Region is made of, and how it is read from Python.
#pragma once

#include <cstdint>
#include <vector>

#include "leaves.h"
#include "python.h"

namespace mlirfuse::region {

// torch's C shim (torch/csrc/inductor/aoti_torch/c/shim.h), whose ABI is stable. A handle is the address of an
// at::Tensor, which is one pointer: to a TensorImpl. Functions return 0, or an error that torch has printed.
using Handle = void*;
struct Shim {
  int32_t (*empty_strided)(int64_t rank, const int64_t* shape, const int64_t* strides, int32_t dtype,
                           int32_t device_type, int32_t device, Handle* out);
  int32_t (*reinterpret)(Handle self, int64_t rank, const int64_t* shape, const int64_t* strides, int64_t offset,
                         Handle* out);
  int32_t (*delete_tensor)(Handle);
  int32_t (*data_ptr)(Handle, void** out);
  PyObject* (*wrap)(Handle);  // a new reference to the tensor's Python object
};
using Product = int32_t (*)(Handle out, Handle a, Handle b);
using ProductSum = int32_t (*)(Handle out, Handle bias, Handle a, Handle b, double beta, double alpha);

constexpr int32_t kByte = 0;  // c10::ScalarType of workspaces

struct Layout {
  std::vector<int64_t> shape, strides;  // strides in elements
  int32_t dtype = 0;                    // c10::ScalarType

  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
};

struct Launch {
  Ref record;
  std::vector<size_t> args;
  std::vector<Py_ssize_t> outputs;  // the register of each of the record's outputs; -1: dropped after the launch
  std::vector<Layout> layouts;      // of the new outputs, in order
};

struct View {
  size_t from, to;
  Layout layout;
  int64_t bytes, elements;  // from the source's first element
  bool handle;              // needed by a product or a result
};

struct Multiply {
  void* address;
  std::vector<size_t> args;
  size_t to;
  Layout layout;
  Ref function;  // torch's, called for its error
};

enum class Code : uint8_t { Launch, View, Multiply, Free };

struct Step {
  Code code;
  size_t at;  // in the vector of its kind
};

// What an argument has to be like.
struct Expected {
  Ref type;
  int64_t dtype_key;
  int32_t device_type, device_id;
  uint8_t alignment;
  bool handle;  // a product or a view needs it
  std::vector<int64_t> shape, strides;
};

struct RegionData {
  Shim shim = {};
  bool cuda = false;
  int32_t device_id = 0;
  size_t registers = 0;
  std::vector<Expected> inputs;
  std::vector<Step> steps;
  std::vector<Launch> launches;
  std::vector<View> views;
  std::vector<Multiply> products;
  std::vector<std::vector<size_t>> frees;
  std::vector<size_t> outputs;
  Ref fallback;
  Ref out_of_memory;  // called with a number of bytes that the shim could not allocate
  uint64_t hits = 0;
};

// layouts(tensors): what a Region expects of inputs like these, in a capsule; None where it cannot take them.
PyObject* layouts(PyObject* module, PyObject* tensors);

// Reads tensors that a Region may take: 1; 0 where one has no memory, as torch's zeros of a derivative, and -1 for an
// error.
int read(PyObject* const* tensors, size_t count, Leaves* leaves);

// Reads the arguments of Region(...) into `data`; false with an error set.
bool parse(PyObject* args, PyObject* kwargs, RegionData* data);

}  // namespace mlirfuse::region
