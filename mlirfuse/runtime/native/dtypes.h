// Element types in DLPack and in NumPy, and values of 0-d arrays.
#pragma once

#include "dlpack.h"
#include "python.h"

namespace mlirfuse {

// Returns the DLPack type of a NumPy dtype; false (no exception) where there is none, or where the bytes are swapped.
bool dlpack_type(PyArray_Descr* descr, dlpack::DataType* out);
// Returns the NumPy dtype of a DLPack type, a new reference (bfloat16 is ml_dtypes'); null with TypeError set where
// there is none.
PyArray_Descr* numpy_dtype(dlpack::DataType type);
// Parses a dtype passed from Python: a NumPy dtype or a tuple (code, bits). Either representation is derived from the
// other.
bool parse_dtype(PyObject* object, dlpack::DataType* type, Ref* descr);

inline int64_t item_bytes(dlpack::DataType type) { return (int64_t(type.bits) * type.lanes + 7) / 8; }

// Converts a run-time scalar to the representation of compiled code: 'f' a double, 'i' an int64 (uint64 wraps), 'c' two
// doubles; `words` receives the bits. Returns false with an exception set where the value does not fit.
bool scalar_from_memory(const void* data, dlpack::DataType type, char kind, int64_t* words);
bool scalar_from_object(PyObject* object, char kind, int64_t* words);

}  // namespace mlirfuse
