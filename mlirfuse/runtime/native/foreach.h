// One launch of a kernel for many sets of arguments, the members of a `fusion.foreach`.
#pragma once

#include <cstdint>

// Both are host functions as a Record calls them. ints, of M members that have W words each:
//   kernel, M, W, and for a CPU   : I, grain
//                 for a GPU   : threads, dynamic shared bytes, members of a launch, S
//   M + 1 numbers: tasks or blocks of the members before each, and of all
//   M * W slots in pointers (GPU: -1 where a word is an integer)
//   M * I integers for a CPU, M * W for a GPU
// A CPU kernel gets a member's pointers and integers as it gets those of a call. A GPU kernel gets a table by value: S
// numbers of blocks before each member (the largest integer behind the last), then the members' words.
extern "C" int32_t mlirfuse_foreach_cpu(void** pointers, const int64_t* ints, void* stream);
extern "C" int32_t mlirfuse_foreach_gpu(void** pointers, const int64_t* ints, void* stream);
