// Indices out of range, as reported by kernels.
#pragma once

#include "python.h"

namespace mlirfuse {

// Returns false, with the Python error set, if a kernel has reported one since the last check.
bool check_bad_index();

extern PyMethodDef bad_index_methods[];

}  // namespace mlirfuse

// A flag (1; 2 while the rest is being written), the index, its site in the user's program, the extent. On a page of
// its own, which a GPU writes into once it is mapped.
extern "C" __attribute__((visibility("default"))) int64_t mlirfuse_bad_index[512];
