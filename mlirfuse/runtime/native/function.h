// What a jitted function is to its callers: a callable that knows what runs its calls.
#pragma once

#include "python.h"

namespace mlirfuse {

bool register_function_type(PyObject* module);

}  // namespace mlirfuse
