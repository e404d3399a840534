#include "signature.h"

#include <algorithm>
#include <cstring>

namespace mlirfuse {
namespace {

uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a ^ 0x9e3779b97f4a7c15u) * (b ^ 0xe7037ed1a0b428dbu);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash_words(const int64_t* words, size_t count) {
  uint64_t hash = count;
  size_t i = 0;
  for (; i + 2 <= count; i += 2)
    hash = mix(hash ^ static_cast<uint64_t>(words[i]), static_cast<uint64_t>(words[i + 1]) + hash);
  if (i < count) hash = mix(hash, static_cast<uint64_t>(words[i]));
  return hash;
}

// Reads the floating-point number of a scalar; false where it has another type.
bool floating_bits(PyObject* object, double components[2]) {
  if (PyFloat_Check(object)) {
    components[0] = PyFloat_AS_DOUBLE(object);
    components[1] = 0;
    return true;
  }
  if (!PyComplex_Check(object) && !PyArray_IsScalar(object, Inexact)) return false;
  const Py_complex value = PyComplex_AsCComplex(object);
  if (PyErr_Occurred()) PyErr_Clear();
  components[0] = value.real;
  components[1] = value.imag;
  return true;
}

// An object without a hash is identified by its address: a data class, a set, another library's array. The front end
// decides whether it can be an argument of compiled code.
bool hashable(PyObject* object) { return Py_TYPE(object)->tp_hash != PyObject_HashNotImplemented; }

// A hash that agrees with `same_value`.
bool hash_value(PyObject* object, int64_t* hash) {
  double components[2];
  if (floating_bits(object, components)) {
    int64_t bits[2];
    std::memcpy(bits, components, sizeof bits);
    *hash = static_cast<int64_t>(mix(static_cast<uint64_t>(bits[0]), static_cast<uint64_t>(bits[1])));
    return true;
  }
  if (PyTuple_Check(object)) {
    uint64_t combined = static_cast<uint64_t>(PyTuple_GET_SIZE(object));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      int64_t item = 0;
      if (!hash_value(PyTuple_GET_ITEM(object, i), &item)) return false;
      combined = mix(combined, static_cast<uint64_t>(item));
    }
    *hash = static_cast<int64_t>(combined);
    return true;
  }
  *hash = PyObject_Hash(object);
  if (*hash != -1 || !PyErr_Occurred()) return true;
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) return false;
  PyErr_Clear();
  *hash = static_cast<int64_t>(mix(reinterpret_cast<uintptr_t>(object), 0));
  return true;
}

// A Python integer that does not fit into 64 bits is a constant of the compiled code.
bool too_wide(const Leaf& leaf) {
  if (leaf.kind != LeafKind::Scalar || !PyLong_CheckExact(leaf.object)) return false;
  int overflow = 0;
  PyLong_AsLongLongAndOverflow(leaf.object, &overflow);
  return overflow != 0;
}

// The tag in the first word of a leaf.
enum Tag : int64_t { kArrayTag = 1, kHostScalarTag, kScalarTag, kValueTag };

// The largest array in host memory for which kernels need no more than allocators ensure, kAllocated (log2);
// ArgSpec.useful_alignment says the same.
constexpr int64_t kMostSmall = 1 << 18;
constexpr int64_t kAllocated = 4;

bool is_small(const Leaf& leaf) {
  int64_t bytes = leaf.item_bytes;
  for (int32_t i = 0; i < leaf.ndim; ++i) {
    if (__builtin_mul_overflow(bytes, leaf.shape[i], &bytes)) return false;  // of a broadcast array
  }
  return bytes <= kMostSmall;
}

// The part of an address's alignment that code can use: none where the value alone is passed, for one element its own
// size and for small arrays in host memory what any allocation has, so that accidental alignments do not multiply
// records.
int64_t useful_alignment(const Leaf& leaf, bool by_value) {
  if (by_value) return 0;
  if (leaf.item_bytes <= 0) return leaf.alignment;
  if (leaf.ndim == 0) return std::min<int64_t>(leaf.alignment, __builtin_ctzll(static_cast<uint64_t>(leaf.item_bytes)));
  if (leaf.device_type != dlpack::kCPU || !is_small(leaf)) return leaf.alignment;
  return std::min<int64_t>(leaf.alignment, kAllocated);
}

// The byte range of an array's elements, [begin, end).
struct Extent {
  const char* begin;
  const char* end;
};

Extent extent_of(const Leaf& leaf) {
  const int64_t unit = leaf.strides_in_bytes ? 1 : leaf.item_bytes;
  Extent extent = {leaf.data, leaf.data + leaf.item_bytes};
  for (int32_t i = 0; i < leaf.ndim; ++i) {
    if (leaf.shape[i] == 0) return {leaf.data, leaf.data};
    const int64_t reach = (leaf.shape[i] - 1) * leaf.strides[i] * unit;
    (reach < 0 ? extent.begin : extent.end) += reach;
  }
  return extent;
}

bool same_layout(const Leaf& a, const Leaf& b) {
  return a.data == b.data && a.ndim == b.ndim && a.dtype_key == b.dtype_key &&
         a.strides_in_bytes == b.strides_in_bytes && std::equal(a.shape, a.shape + a.ndim, b.shape) &&
         std::equal(a.strides, a.strides + a.ndim, b.strides);
}

// Two bits per pair of arrays: 0 disjoint, 1 the same elements at the same addresses, 2 overlapping otherwise, 3 one
// object.
bool add_overlaps(const Leaves& leaves, SmallBuffer<int64_t, 192>* words) {
  int64_t word = 0;
  int shift = 0;
  for (size_t j = 0; j < leaves.size(); ++j) {
    const Leaf& b = leaves[j];
    if (b.kind != LeafKind::Array) continue;
    const Extent eb = extent_of(b);
    for (size_t i = 0; i < j; ++i) {
      const Leaf& a = leaves[i];
      if (a.kind != LeafKind::Array) continue;
      const Extent ea = extent_of(a);
      const bool overlap = ea.begin < eb.end && eb.begin < ea.end && ea.begin != ea.end && eb.begin != eb.end;
      const int64_t how = a.object == b.object ? 3 : !overlap ? 0 : same_layout(a, b) ? 1 : 2;
      word |= how << shift;
      shift += 2;
      if (shift == 62) {
        if (!words->push(word)) return false;
        word = 0;
        shift = 0;
      }
    }
  }
  return words->push(word);
}

}  // namespace

int same_value(PyObject* a, PyObject* b) {
  if (a == b) return 1;
  if (Py_TYPE(a) != Py_TYPE(b)) return 0;
  double x[2], y[2];
  // Bits are compared: -0.0 and 0.0 are different constants, and a NaN equals itself.
  // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
  if (floating_bits(a, x) && floating_bits(b, y)) return std::memcmp(x, y, sizeof x) == 0;
  if (PyTuple_Check(a)) {
    if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i) {
      const int same = same_value(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
      if (same != 1) return same;
    }
    return 1;
  }
  if (!hashable(a)) return 0;
  const int same = PyObject_RichCompareBool(a, b, Py_EQ);
  if (same != 1 || !PyType_HasFeature(Py_TYPE(a), Py_TPFLAGS_HEAPTYPE)) return same;
  // Objects of a user's class: `==` may ignore attributes.
  static PyObject* compare = import_name("mlirfuse.runtime.signature", "same_value").release();
  if (!compare) {  // without the compiler
    PyErr_Clear();
    return same;
  }
  Ref answer(PyObject_CallFunctionObjArgs(compare, a, b, nullptr));
  return answer ? PyObject_IsTrue(answer.get()) : -1;
}

bool Signature::build(const Leaves& leaves, const SignatureOptions& options) {
  words.clear();
  objects.clear();
  const auto add_value = [this](PyObject* object) {
    int64_t value_hash = 0;
    if (!hash_value(object, &value_hash)) return false;
    int64_t* out = words.extend(3);
    if (!out) return false;
    out[0] = kValueTag;
    out[1] = reinterpret_cast<int64_t>(Py_TYPE(object));
    out[2] = value_hash;
    return objects.push(object);
  };

  if (!words.push(static_cast<int64_t>(leaves.size()))) return false;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Leaf& leaf = leaves[i];
    if (leaf.kind != LeafKind::Array) {
      if (leaf.kind == LeafKind::Value || options.static_at(i) || too_wide(leaf)) {
        if (!add_value(leaf.object)) return false;
        continue;
      }
      int64_t* out = words.extend(2);
      if (!out) return false;
      out[0] = kScalarTag;
      out[1] = reinterpret_cast<int64_t>(Py_TYPE(leaf.object));
      continue;
    }

    const bool by_value = leaves.by_value(leaf);
    const int64_t alignment = useful_alignment(leaf, by_value);
    const auto ndim = static_cast<size_t>(leaf.ndim);
    int64_t* out = words.extend(3 + 2 * ndim);
    if (!out) return false;
    out[0] = (by_value ? kHostScalarTag : kArrayTag) | int64_t(leaf.device_type) << 4 | int64_t(leaf.ndim) << 12 |
             alignment << 20 | int64_t(leaf.writable) << 24 | int64_t(leaf.requires_grad) << 25 |
             int64_t(leaf.lazy_view) << 26 | int64_t(leaf.device_id) << 32;
    out[1] = leaf.dtype_key;
    out[2] = reinterpret_cast<int64_t>(Py_TYPE(leaf.object));
    std::copy(leaf.shape, leaf.shape + ndim, out + 3);
    std::copy(leaf.strides, leaf.strides + ndim, out + 3 + ndim);

    // A dtype with properties that its number does not include (fields, a unit of time) counts as a value.
    if (leaf.framework == Framework::NumPy && !PyTypeNum_ISNUMBER(PyArray_TYPE(leaf.numpy())) &&
        PyArray_TYPE(leaf.numpy()) < NPY_USERDEF && PyArray_TYPE(leaf.numpy()) != NPY_BOOL)
      if (!add_value(reinterpret_cast<PyObject*>(PyArray_DESCR(leaf.numpy())))) return false;
    // A static 0-d array on the host is identified by its value's bits.
    if (options.static_at(i) && leaf.ndim == 0 && leaf.device_type == dlpack::kCPU && leaf.item_bytes <= 16) {
      int64_t* bits = words.extend(2);
      if (!bits) return false;
      bits[0] = bits[1] = 0;
      std::memcpy(bits, leaf.data, static_cast<size_t>(leaf.item_bytes));
    }
  }
  for (const Condition& condition : options.conditions) {
    const Sign sign = condition.sign(leaves);
    if (!words.push(static_cast<int64_t>(sign))) return false;
    if (sign != Sign::Unknown) continue;
    for (const Step& step : condition.steps())  // the numbers themselves
      if (step.code == StepCode::Leaf && static_cast<size_t>(step.first) < leaves.size() &&
          leaves[static_cast<size_t>(step.first)].kind == LeafKind::Scalar &&
          !add_value(leaves[static_cast<size_t>(step.first)].object))
        return false;
  }
  if (options.alias_sensitive && !add_overlaps(leaves, &words)) return false;
  hash = hash_words(words.data(), words.size());
  return true;
}

}  // namespace mlirfuse
