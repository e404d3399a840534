// The record of a cache hit: a compiled function with all of its inputs that do not change from call to call.
#pragma once

#include "leaves.h"

namespace mlirfuse {

extern PyTypeObject* record_type;

// Allocates the outputs, launches, and returns the call's result; null with an exception set on failure.
PyObject* run_record(PyObject* record, const Leaves& leaves);

bool register_record_type(PyObject* module);

}  // namespace mlirfuse
