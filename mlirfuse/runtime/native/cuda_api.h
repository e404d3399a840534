// The module's functions and types over the CUDA driver.
#pragma once

#include "python.h"

namespace mlirfuse {

extern PyMethodDef cuda_methods[];
bool register_module_type(PyObject* module);

}  // namespace mlirfuse
