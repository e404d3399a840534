// A straight-line part of a host program for torch tensors of known layouts: launches, views and matrix products by one
// call, without Python objects for what stays inside.
#pragma once

#include "python.h"

namespace mlirfuse {

bool register_region_type(PyObject* module);

}  // namespace mlirfuse
