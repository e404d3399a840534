// What a call with new sizes is known by: the kind of its arguments, apart from their sizes.
#pragma once

#include "leaves.h"

namespace mlirfuse {

// describe(leaves, static_leaves): see the docstring in kind.cpp.
PyObject* describe(PyObject* module, PyObject* const* args, Py_ssize_t count);
extern const char* describe_doc;

}  // namespace mlirfuse
