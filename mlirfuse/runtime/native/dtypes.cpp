#include "dtypes.h"

#include <cmath>
#include <complex>
#include <cstring>

namespace mlirfuse {
namespace {

using dlpack::DataType;

// ml_dtypes' bfloat16, imported on first use; null with an exception set where it is missing.
PyArray_Descr* bfloat16() {
  static PyArray_Descr* cached = nullptr;
  if (cached) return cached;
  Ref type = import_name("ml_dtypes", "bfloat16");
  PyArray_Descr* descr = nullptr;
  if (type && PyArray_DescrConverter(type.get(), &descr)) cached = descr;
  return cached;
}

bool is_bfloat16(PyArray_Descr* descr) {
  if (descr->type_num < NPY_USERDEF) return false;
  PyArray_Descr* known = bfloat16();
  if (!known) PyErr_Clear();
  return known && known->type_num == descr->type_num;
}

int type_number(DataType type) {
  if (type.lanes != 1) return -1;
  switch (type.code) {
    case dlpack::kInt:
      switch (type.bits) {
        case 8:
          return NPY_INT8;
        case 16:
          return NPY_INT16;
        case 32:
          return NPY_INT32;
        case 64:
          return NPY_INT64;
      }
      return -1;
    case dlpack::kUInt:
      switch (type.bits) {
        case 8:
          return NPY_UINT8;
        case 16:
          return NPY_UINT16;
        case 32:
          return NPY_UINT32;
        case 64:
          return NPY_UINT64;
      }
      return -1;
    case dlpack::kFloat:
      switch (type.bits) {
        case 16:
          return NPY_FLOAT16;
        case 32:
          return NPY_FLOAT32;
        case 64:
          return NPY_FLOAT64;
      }
      return -1;
    case dlpack::kComplex:
      return type.bits == 64 ? NPY_COMPLEX64 : type.bits == 128 ? NPY_COMPLEX128 : -1;
    case dlpack::kBool:
      return type.bits == 8 ? NPY_BOOL : -1;
  }
  return -1;
}

double half_to_double(uint16_t bits) {
  const uint32_t exponent = (bits >> 10) & 0x1f, fraction = bits & 0x3ff;
  double value;
  if (exponent == 0x1f)
    value = fraction ? Py_NAN : Py_HUGE_VAL;
  else if (exponent)
    value = std::ldexp(fraction + 1024.0, static_cast<int>(exponent) - 25);
  else
    value = std::ldexp(fraction, -24);
  return bits >> 15 ? -value : value;
}

double bfloat16_to_double(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

template <class T>
T load(const void* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// A value of any supported type: an integer (`is_integer`), or a real or complex number.
struct Value {
  bool is_integer = false;
  bool is_unsigned = false;
  int64_t integer = 0;
  std::complex<double> number = 0;
};

bool read(const void* data, DataType type, Value* value) {
  const auto integer = [&](int64_t v) { *value = {true, false, v, 0}; };
  const auto natural = [&](uint64_t v) { *value = {true, true, static_cast<int64_t>(v), 0}; };
  const auto number = [&](std::complex<double> v) { *value = {false, false, 0, v}; };
  if (type == DataType{dlpack::kBfloat, 16, 1}) return number(bfloat16_to_double(load<uint16_t>(data))), true;
  switch (type_number(type)) {
    case NPY_BOOL:
      return natural(load<uint8_t>(data) != 0), true;
    case NPY_INT8:
      return integer(load<int8_t>(data)), true;
    case NPY_INT16:
      return integer(load<int16_t>(data)), true;
    case NPY_INT32:
      return integer(load<int32_t>(data)), true;
    case NPY_INT64:
      return integer(load<int64_t>(data)), true;
    case NPY_UINT8:
      return natural(load<uint8_t>(data)), true;
    case NPY_UINT16:
      return natural(load<uint16_t>(data)), true;
    case NPY_UINT32:
      return natural(load<uint32_t>(data)), true;
    case NPY_UINT64:
      return natural(load<uint64_t>(data)), true;
    case NPY_FLOAT16:
      return number(half_to_double(load<uint16_t>(data))), true;
    case NPY_FLOAT32:
      return number(load<float>(data)), true;
    case NPY_FLOAT64:
      return number(load<double>(data)), true;
    case NPY_COMPLEX64:
      return number(load<std::complex<float>>(data)), true;
    case NPY_COMPLEX128:
      return number(load<std::complex<double>>(data)), true;
  }
  PyErr_Format(PyExc_TypeError, "a scalar of DLPack type (%d, %d) cannot be passed to compiled code", type.code,
               type.bits);
  return false;
}

}  // namespace

bool dlpack_type(PyArray_Descr* descr, DataType* out) {
  if (PyDataType_ISBYTESWAPPED(descr)) return false;
  const auto bits = static_cast<uint8_t>(PyDataType_ELSIZE(descr) * 8);
  uint8_t code;
  if (is_bfloat16(descr)) {
    code = dlpack::kBfloat;
  } else if (PyTypeNum_ISBOOL(descr->type_num)) {
    code = dlpack::kBool;
  } else if (PyTypeNum_ISUNSIGNED(descr->type_num)) {
    code = dlpack::kUInt;
  } else if (PyTypeNum_ISINTEGER(descr->type_num)) {
    code = dlpack::kInt;
  } else if (descr->type_num == NPY_FLOAT16 || descr->type_num == NPY_FLOAT32 || descr->type_num == NPY_FLOAT64) {
    code = dlpack::kFloat;
  } else if (descr->type_num == NPY_COMPLEX64 || descr->type_num == NPY_COMPLEX128) {
    code = dlpack::kComplex;
  } else {
    return false;
  }
  *out = {code, bits, 1};
  return true;
}

PyArray_Descr* numpy_dtype(DataType type) {
  if (type == DataType{dlpack::kBfloat, 16, 1}) {
    PyArray_Descr* descr = bfloat16();
    Py_XINCREF(descr);
    return descr;
  }
  const int number = type_number(type);
  if (number >= 0) return PyArray_DescrFromType(number);
  PyErr_Format(PyExc_TypeError, "DLPack type (%d, %d, %d) has no NumPy dtype", type.code, type.bits, type.lanes);
  return nullptr;
}

bool parse_dtype(PyObject* object, DataType* type, Ref* descr) {
  if (PyTuple_Check(object)) {
    int code = 0, bits = 0;
    if (!PyArg_ParseTuple(object, "ii;a dtype as a tuple is (code, bits)", &code, &bits)) return false;
    *type = {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
    *descr = Ref(reinterpret_cast<PyObject*>(numpy_dtype(*type)));
    return static_cast<bool>(*descr);
  }
  PyArray_Descr* converted = nullptr;
  if (!PyArray_DescrConverter(object, &converted)) return false;
  *descr = Ref(reinterpret_cast<PyObject*>(converted));
  if (dlpack_type(converted, type)) return true;
  PyErr_Format(PyExc_TypeError, "results of dtype %R are not supported", descr->get());
  return false;
}

bool scalar_from_memory(const void* data, DataType type, char kind, int64_t* words) {
  Value value;
  if (!read(data, type, &value)) return false;
  if (kind == 'i') {
    if (!value.is_integer) {
      PyErr_SetString(PyExc_TypeError, "a floating-point value was passed where the compiled code takes an integer");
      return false;
    }
    words[0] = value.integer;
    return true;
  }
  if (value.is_integer)
    value.number = value.is_unsigned ? static_cast<double>(static_cast<uint64_t>(value.integer))
                                     : static_cast<double>(value.integer);
  const double parts[2] = {value.number.real(), value.number.imag()};
  std::memcpy(words, parts, kind == 'c' ? 16 : 8);
  return true;
}

bool scalar_from_object(PyObject* object, char kind, int64_t* words) {
  if (kind == 'f') {
    const double value = PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred()) return false;
    std::memcpy(words, &value, sizeof value);
    return true;
  }
  if (kind == 'c') {
    const Py_complex value = PyComplex_AsCComplex(object);
    if (value.real == -1.0 && PyErr_Occurred()) return false;
    std::memcpy(words, &value, sizeof value);
    return true;
  }
  // np.bool_ has no __index__.
  if (PyArray_IsScalar(object, Bool)) {
    words[0] = PyObject_IsTrue(object);
    return true;
  }
  Ref index(PyNumber_Index(object));
  if (!index) return false;
  int overflow = 0;
  words[0] = PyLong_AsLongLongAndOverflow(index.get(), &overflow);
  if (!overflow) return !(words[0] == -1 && PyErr_Occurred());
  if (overflow > 0) {
    const unsigned long long wide = PyLong_AsUnsignedLongLong(index.get());
    if (!(wide == static_cast<unsigned long long>(-1) && PyErr_Occurred())) {
      words[0] = static_cast<int64_t>(wide);
      return true;
    }
    PyErr_Clear();
  }
  PyErr_Format(PyExc_OverflowError, "the integer %R does not fit 64 bits", object);
  return false;
}

}  // namespace mlirfuse
