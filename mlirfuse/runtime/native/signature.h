// The key under which a call's record is cached: all properties of its leaves that compiled code may depend on.
#pragma once

#include <vector>

#include "conditions.h"
#include "leaves.h"

namespace mlirfuse {

struct SignatureOptions {
  bool alias_sensitive = false;
  std::vector<bool> is_static;  // by leaf; may be shorter than a call
  std::vector<Condition> conditions;

  bool static_at(size_t i) const { return i < is_static.size() && is_static[i]; }
};

// Words that are compared bitwise, and objects that are compared by value: two calls have one signature where both are
// equal.
struct Signature {
  SmallBuffer<int64_t, 192> words;
  SmallBuffer<PyObject*, 8> objects;  // borrowed from the leaves
  uint64_t hash = 0;

  // Returns false with an exception set where a leaf cannot be part of a key.
  bool build(const Leaves& leaves, const SignatureOptions& options);
};

// Whether two values are the same constant for compiled code: of one type and equal, and for numbers the same bits, so
// that 1, 1.0 and True differ, 0.0 and -0.0 differ, and a NaN equals itself. 1 or 0, or -1 with an exception set.
int same_value(PyObject* a, PyObject* b);

}  // namespace mlirfuse
