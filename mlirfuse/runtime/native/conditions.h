// Conditions on the numbers of a call, such as h*h != 0, evaluated as Python does. Their signs are in the key of a call
// in place of the numbers, so that a new number finds the record of the last one.
#pragma once

#include <vector>

#include "leaves.h"

namespace mlirfuse {

struct Number {
  bool is_integer;
  int64_t integer;
  double floating;

  double as_double() const { return is_integer ? static_cast<double>(integer) : floating; }
};

// A comparison gives 1 or 0.
enum class StepCode : uint8_t {
  Leaf,
  Extent,
  Value,
  Add,
  Subtract,
  Multiply,
  Divide,
  Less,
  AtMost,
  Equal,
  Negate,
  Absolute
};

// `first` and `second` are earlier steps; of a Leaf its index, of an Extent the leaf and the axis.
struct Step {
  StepCode code;
  int32_t first;
  int32_t second;
  Number value;
};

enum class Sign : int64_t { Negative = -1, Zero, Positive, NaN, Unknown };

class Condition {
 public:
  static constexpr size_t kMaxSteps = 64;

  // Reads a tuple of (name, first[, second]); false with an exception set where it is malformed.
  bool read(PyObject* steps);

  // The sign of the last step. Unknown where a leaf is no Python int, float or bool, where Python would raise an error,
  // and where 64-bit integers do not give Python's value.
  Sign sign(const Leaves& leaves) const;

  const std::vector<Step>& steps() const { return steps_; }

 private:
  std::vector<Step> steps_;
};

}  // namespace mlirfuse
