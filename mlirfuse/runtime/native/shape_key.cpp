#include "shape_key.h"

#include <algorithm>
#include <cstdlib>

#include "dtypes.h"

namespace mlirfuse {
namespace {

enum Tag : int64_t { kArrayTag = 1, kScalarTag, kValueTag };

constexpr int32_t kMaxRank = 64;

struct Description {
  SmallBuffer<int64_t, 96> words;  // the key, except constants
  SmallBuffer<int64_t, 96> sizes;
  SmallBuffer<int64_t, 16> alignments;
  SmallBuffer<PyObject*, 8> constants;  // borrowed
  int64_t device = -1;
  bool usual = true;
};

// The properties of strides that compiled code may assume, for each dimension: see layout_of in
// mlirfuse/runtime/signature.py.
void layout_of(const int64_t* shape, const int64_t* strides, int32_t rank, int64_t* out) {
  int32_t order[kMaxRank];
  int32_t count = 0;
  std::fill_n(out, rank, 0);
  if (std::find(shape, shape + rank, 0) != shape + rank) return;
  for (int32_t axis = 0; axis < rank; ++axis)
    if (shape[axis] != 1 && strides[axis] != 0) order[count++] = axis;
  std::sort(order, order + count, [strides](int32_t a, int32_t b) {
    const int64_t sa = std::llabs(strides[a]), sb = std::llabs(strides[b]);
    return sa != sb ? sa < sb : a > b;
  });
  int64_t expected = 1, inner = rank;
  for (int32_t k = 0; k < count; ++k) {
    const int32_t axis = order[k];
    const int64_t stride = strides[axis];
    out[axis] = std::llabs(stride) != expected ? -1 : stride > 0 ? inner + 1 : -2 - inner;
    expected = std::llabs(stride) * shape[axis];
    inner = axis;
  }
}

bool add_constant(PyObject* object, Description* d) {
  return d->words.push(kValueTag) && d->words.push(reinterpret_cast<int64_t>(Py_TYPE(object))) &&
         d->constants.push(object);
}

// A Python integer that does not fit into 64 bits is a constant of the compiled code.
bool fits_64_bits(PyObject* object) {
  if (!PyLong_CheckExact(object)) return true;
  int overflow = 0;
  PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0;
}

bool add_array(const Leaf& leaf, Description* d) {
  dlpack::DataType dtype = leaf.dtype;
  if (leaf.framework == Framework::NumPy && !dlpack_type(PyArray_DESCR(leaf.numpy()), &dtype)) {
    d->usual = false;
    return true;
  }
  const int64_t device = leaf.on_cuda() ? int64_t(leaf.device_id) + 1 : leaf.device_type == dlpack::kCPU ? 0 : -2;
  const bool anywhere = leaf.ndim == 0 && device == 0;  // a 0-d host array may accompany arrays on any device
  if (!anywhere && d->device != -1 && d->device != device) d->usual = false;
  if (!anywhere) d->device = device;
  if (device == -2 || leaf.requires_grad || leaf.lazy_view || leaf.ndim > kMaxRank) d->usual = false;
  if (!d->usual) return true;

  const int32_t rank = leaf.ndim;
  int64_t* words = d->words.extend(3 + 2 * static_cast<size_t>(rank));
  int64_t* sizes = d->sizes.extend(2 * static_cast<size_t>(rank));
  if (!words || !sizes) return false;
  words[0] = kArrayTag | int64_t(leaf.writable) << 4 | int64_t(rank) << 8 | device << 16;
  words[1] = dtype.code | int64_t(dtype.bits) << 8 | int64_t(dtype.lanes) << 16;
  words[2] = reinterpret_cast<int64_t>(Py_TYPE(leaf.object));
  std::copy(leaf.shape, leaf.shape + rank, sizes);
  for (int32_t k = 0; k < rank; ++k) {
    words[3 + k] = std::min<int64_t>(leaf.shape[k], 2);
    int64_t stride = leaf.strides[k];
    if (leaf.strides_in_bytes) {
      if (stride % leaf.item_bytes) d->usual = false;
      stride /= leaf.item_bytes;
    }
    sizes[rank + k] = stride;
  }
  layout_of(sizes, sizes + rank, rank, words + 3 + rank);
  return d->alignments.push(int64_t(1) << leaf.alignment);
}

bool add_leaf(const Leaf& leaf, bool is_static, Description* d) {
  if (leaf.kind == LeafKind::Array) return add_array(leaf, d);
  if (leaf.kind == LeafKind::Value || is_static || !fits_64_bits(leaf.object)) {
    return d->alignments.push(1) && add_constant(leaf.object, d);
  }
  return d->alignments.push(1) && d->words.push(kScalarTag) &&
         d->words.push(reinterpret_cast<int64_t>(Py_TYPE(leaf.object)));
}

PyObject* tuple_of(const SmallBuffer<int64_t, 96>& numbers) {
  Ref out(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  for (size_t i = 0; out && i < numbers.size(); ++i) {
    PyObject* item = PyLong_FromLongLong(numbers[i]);
    if (!item) return nullptr;
    PyTuple_SET_ITEM(out.get(), static_cast<Py_ssize_t>(i), item);
  }
  return out.release();
}

PyObject* key_of(const Description& d) {
  Ref words(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(d.words.data()),
                                      static_cast<Py_ssize_t>(d.words.size() * sizeof(int64_t))));
  if (!words || d.constants.size() == 0) return words.release();
  Ref key(PyTuple_New(static_cast<Py_ssize_t>(d.constants.size() + 1)));
  if (!key) return nullptr;
  PyTuple_SET_ITEM(key.get(), 0, words.release());
  for (size_t i = 0; i < d.constants.size(); ++i) {
    PyObject* text = PyObject_Repr(d.constants[i]);
    if (!text) return nullptr;
    PyTuple_SET_ITEM(key.get(), static_cast<Py_ssize_t>(i + 1), text);
  }
  return key.release();
}

}  // namespace

const char* shape_key_doc =
    "shape_key(leaves, static_leaves)\n--\n\n"
    "The properties of a call that compiled code depends on, as (key, sizes, alignments): a hashable key (types,\n"
    "dtypes, ranks, extents of 0 and 1, layouts, device, types of numbers, constants and the values of the numbers in\n"
    "`static_leaves`); the extents and then the strides in elements of each array leaf; for each leaf the bytes that\n"
    "its address is aligned to, at most 64. None for arguments that compiled code does not support: other dtypes or\n"
    "devices, odd strides, tensors that require grad, arrays on two devices.";

PyObject* shape_key(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "shape_key(leaves, static_leaves) takes two tuples");
    return nullptr;
  }
  const auto size = static_cast<size_t>(PyTuple_GET_SIZE(args[0]));
  std::vector<bool> is_static(size);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[1]); ++i) {
    const size_t at = PyLong_AsSize_t(PyTuple_GET_ITEM(args[1], i));
    if (at == static_cast<size_t>(-1) && PyErr_Occurred()) return nullptr;
    if (at < size) is_static[at] = true;
  }
  Leaves leaves;
  if (!leaves.read(&PyTuple_GET_ITEM(args[0], 0), size)) return nullptr;
  Description d;
  for (size_t i = 0; i < size; ++i) {
    if (!add_leaf(leaves[i], is_static[i], &d)) return nullptr;
    if (!d.usual) Py_RETURN_NONE;
  }
  Ref key(key_of(d)), sizes(key ? tuple_of(d.sizes) : nullptr);
  Ref alignments(sizes ? PyTuple_New(static_cast<Py_ssize_t>(size)) : nullptr);
  if (!alignments) return nullptr;
  for (size_t i = 0; i < size; ++i) {
    PyObject* item = PyLong_FromLongLong(d.alignments[i]);
    if (!item) return nullptr;
    PyTuple_SET_ITEM(alignments.get(), static_cast<Py_ssize_t>(i), item);
  }
  return PyTuple_Pack(3, key.get(), sizes.get(), alignments.get());
}

}  // namespace mlirfuse
