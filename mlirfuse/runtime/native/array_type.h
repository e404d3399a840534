// The key of a call for the shape cache: the properties of its arguments except their sizes.
#pragma once

#include "leaves.h"

namespace mlirfuse {

// describe(leaves, static_leaves): see the docstring in array_type.cpp.
PyObject* describe(PyObject* module, PyObject* const* args, Py_ssize_t count);
extern const char* describe_doc;

}  // namespace mlirfuse
