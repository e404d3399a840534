// A call of a NumPy function on arrays of known dtypes, as host programs make it for extern ops.
#pragma once

#include "python.h"

namespace mlirfuse {

bool register_numpy_call_type(PyObject* module);

}  // namespace mlirfuse
