// The memory of arrays that a compiled loop of the NumPy front end creates.
#pragma once

#include <cstdint>

// A buffer of an allocation site. A site's table ends with one whose address is 0.
struct MlirfuseLoopBuffer {
  int64_t address, size;
};

// The arena for small buffers, and the function that allocates others: it takes the site's number and a size, and
// returns 0 where there is no memory.
struct MlirfuseLoopMemory {
  int64_t (*allocate)(int64_t site, int64_t size);
  int64_t next, end;
};

// The address of a buffer of a site with at least `bytes` bytes that none of the `count` variables with these bases
// uses: one that is free and large enough, else a new one. 0 where there is no memory.
extern "C" int64_t mlirfuse_loop_allocate(MlirfuseLoopBuffer* table, const int64_t* bases, int64_t count, int64_t bytes,
                                          int64_t site, MlirfuseLoopMemory* memory);

// Removes a buffer from its site's table, so that it is not reused.
extern "C" void mlirfuse_loop_hold(MlirfuseLoopBuffer* table, int64_t address);
