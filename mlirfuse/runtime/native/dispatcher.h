// The hot path of a call: from the leaves of a call to the record compiled for their signature.
#pragma once

#include "python.h"

namespace mlirfuse {

bool register_dispatcher_type(PyObject* module);

}  // namespace mlirfuse
