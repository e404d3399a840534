// Positions that are not in their array, as kernels tell of them.
#pragma once

#include "python.h"

namespace mlirfuse {

// False, with the Python error set, where a kernel has met one since the last check.
bool check_bad_index();

extern PyMethodDef bad_index_methods[];

}  // namespace mlirfuse

// A flag (1; 2 while the rest is written), the position, its place in the user's program, the extent. A page of its
// own, which a GPU writes into where it is mapped.
extern "C" __attribute__((visibility("default"))) int64_t mlirfuse_bad_index[512];
