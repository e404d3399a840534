// The callable object of a compiled function, which dispatches its calls.
#pragma once

#include "python.h"

namespace mlirfuse {

bool register_function_type(PyObject* module);

}  // namespace mlirfuse
