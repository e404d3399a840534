// The key of a call in the shape cache: the properties of its arguments except their sizes.
#pragma once

#include "leaves.h"

namespace mlirfuse {

// shape_key(leaves, static_leaves): see the docstring in shape_key.cpp.
PyObject* shape_key(PyObject* module, PyObject* const* args, Py_ssize_t count);
extern const char* shape_key_doc;

}  // namespace mlirfuse
