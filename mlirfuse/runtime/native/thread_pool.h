// The CPU threads of compiled parallel loops.
#pragma once

#include <cstdint>

// Calls fn(begin, end, ctx) on chunks that together cover [0, n), each of a multiple of `grain` except the last. Chunks
// run on the calling thread and on persistent workers; the call returns when all are done. With n <= grain, inside
// another parallel loop, and while another thread's loop has the workers, fn(0, n, ctx) runs on the calling thread
// alone.
extern "C" void mlirfuse_parallel_for(void (*fn)(int64_t begin, int64_t end, void* ctx), void* ctx, int64_t n,
                                      int64_t grain);

namespace mlirfuse {

// The number of threads of a loop that this thread starts, itself included: at first the CPUs that the process may run
// on, at most this thread's limit.
int num_threads();
void set_num_threads(int count);

// Limits the threads of the loops that this thread starts from now on, itself included; 0: no limit. Returns the limit
// until now.
int limit_threads(int count);

}  // namespace mlirfuse
