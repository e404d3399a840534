#include "conditions.h"

#include <array>
#include <cstring>

namespace mlirfuse {
namespace {

struct StepName {
  const char* text;
  StepCode code;
  int operands;
};

constexpr StepName kNames[] = {
    {"leaf", StepCode::Leaf, 1},     {"extent", StepCode::Extent, 2},     {"value", StepCode::Value, 1},
    {"add", StepCode::Add, 2},       {"subtract", StepCode::Subtract, 2}, {"multiply", StepCode::Multiply, 2},
    {"less", StepCode::Less, 2},     {"at_most", StepCode::AtMost, 2},    {"equal", StepCode::Equal, 2},
    {"divide", StepCode::Divide, 2}, {"negative", StepCode::Negate, 1},   {"absolute", StepCode::Absolute, 1},
};

constexpr int64_t kExactInDouble = int64_t(1) << 53;

bool of_python(PyObject* object, Number* out) {
  if (PyFloat_CheckExact(object)) {
    *out = {false, 0, PyFloat_AS_DOUBLE(object)};
    return true;
  }
  if (!PyLong_CheckExact(object) && !PyBool_Check(object)) return false;
  int overflow = 0;
  *out = {true, PyLong_AsLongLongAndOverflow(object, &overflow), 0};
  return overflow == 0;
}

bool exact(const Number& x) { return !x.is_integer || (x.integer >= -kExactInDouble && x.integer <= kExactInDouble); }

template <class T>
bool compare(StepCode code, T a, T b) {
  return code == StepCode::Less ? a < b : code == StepCode::AtMost ? a <= b : a == b;
}

bool binary(StepCode code, const Number& a, const Number& b, Number* out) {
  const bool compares = code == StepCode::Less || code == StepCode::AtMost || code == StepCode::Equal;
  if (a.is_integer && b.is_integer && code != StepCode::Divide) {
    out->is_integer = true;
    if (compares) {
      out->integer = compare(code, a.integer, b.integer);
      return true;
    }
    if (code == StepCode::Add) return !__builtin_add_overflow(a.integer, b.integer, &out->integer);
    if (code == StepCode::Subtract) return !__builtin_sub_overflow(a.integer, b.integer, &out->integer);
    return !__builtin_mul_overflow(a.integer, b.integer, &out->integer);
  }
  if (!exact(a) || !exact(b)) return false;
  const double x = a.as_double(), y = b.as_double();
  if (code == StepCode::Divide && y == 0) return false;
  if (compares) {
    *out = {true, compare(code, x, y), 0};
    return true;
  }
  out->is_integer = false;
  out->floating = code == StepCode::Add        ? x + y
                  : code == StepCode::Subtract ? x - y
                  : code == StepCode::Multiply ? x * y
                                               : x / y;
  return true;
}

bool unary(StepCode code, const Number& a, Number* out) {
  *out = a;
  if (code == StepCode::Absolute && (a.is_integer ? a.integer >= 0 : !(a.floating < 0))) return true;
  out->floating = -a.floating;
  return !a.is_integer || !__builtin_sub_overflow(int64_t(0), a.integer, &out->integer);
}

}  // namespace

bool Condition::read(PyObject* steps) {
  if (!PyTuple_Check(steps) || PyTuple_GET_SIZE(steps) == 0 ||
      static_cast<size_t>(PyTuple_GET_SIZE(steps)) > kMaxSteps) {
    PyErr_Format(PyExc_TypeError, "a condition is a tuple of 1 to %zu steps", kMaxSteps);
    return false;
  }
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(steps); ++k) {
    const char* text = nullptr;
    PyObject *first = nullptr, *second = nullptr;
    PyObject* item = PyTuple_GET_ITEM(steps, k);
    if (!PyTuple_Check(item)) {
      PyErr_Format(PyExc_TypeError, "a step of a condition is a tuple, not %R", item);
      return false;
    }
    if (!PyArg_ParseTuple(item, "sO|O", &text, &first, &second)) return false;
    const StepName* name = nullptr;
    for (const StepName& known : kNames)
      if (!std::strcmp(known.text, text)) name = &known;
    if (!name || (second != nullptr) != (name->operands == 2)) {
      PyErr_Format(PyExc_ValueError, "no step of a condition: %R", item);
      return false;
    }
    Step step = {name->code, 0, 0, {}};
    if (step.code == StepCode::Value) {
      if (!of_python(first, &step.value)) {
        PyErr_Format(PyExc_ValueError, "no number of 64 bits: %R", first);
        return false;
      }
    } else {
      const Py_ssize_t most = step.code == StepCode::Leaf || step.code == StepCode::Extent ? INT32_MAX : k;
      const Py_ssize_t a = PyNumber_AsSsize_t(first, PyExc_IndexError);
      const Py_ssize_t b = second ? PyNumber_AsSsize_t(second, PyExc_IndexError) : 0;
      if (PyErr_Occurred()) return false;
      if (a < 0 || a >= most || b < 0 || b >= most) {
        PyErr_Format(PyExc_IndexError, "no earlier step: %R", item);
        return false;
      }
      step.first = static_cast<int32_t>(a);
      step.second = static_cast<int32_t>(b);
    }
    steps_.push_back(step);
  }
  return true;
}

Sign Condition::sign(const Leaves& leaves) const {
  std::array<Number, kMaxSteps> values;
  size_t count = 0;
  for (const Step& step : steps_) {
    Number* out = &values[count++];
    switch (step.code) {
      case StepCode::Leaf: {
        const auto at = static_cast<size_t>(step.first);
        if (at >= leaves.size() || leaves[at].kind != LeafKind::Scalar || !of_python(leaves[at].object, out))
          return Sign::Unknown;
        break;
      }
      case StepCode::Extent: {
        const auto at = static_cast<size_t>(step.first);
        if (at >= leaves.size() || leaves[at].kind != LeafKind::Array || step.second >= leaves[at].ndim)
          return Sign::Unknown;
        *out = {true, leaves[at].shape[step.second], 0};
        break;
      }
      case StepCode::Value:
        *out = step.value;
        break;
      case StepCode::Negate:
      case StepCode::Absolute:
        if (!unary(step.code, values[static_cast<size_t>(step.first)], out)) return Sign::Unknown;
        break;
      default:
        if (!binary(step.code, values[static_cast<size_t>(step.first)], values[static_cast<size_t>(step.second)], out))
          return Sign::Unknown;
    }
  }
  const Number& last = values[count - 1];
  if (last.is_integer) return last.integer < 0 ? Sign::Negative : last.integer > 0 ? Sign::Positive : Sign::Zero;
  if (last.floating != last.floating) return Sign::NaN;
  return last.floating < 0 ? Sign::Negative : last.floating > 0 ? Sign::Positive : Sign::Zero;
}

}  // namespace mlirfuse
