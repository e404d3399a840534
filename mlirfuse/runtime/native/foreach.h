// One launch of a kernel for many sets of arguments, the members.
#pragma once

#include <cstdint>

// Launches a GPU kernel, which takes a table by value: S counts of the blocks before each member (the largest integer
// after the last), then the members' words. `members`, for M members with W words each:
//   M, W, threads, dynamic shared bytes, members of a launch, S, whether to launch early, the workspace's slot
//   M times 1 + W operands: a member's number of blocks, and its words
// An operand is 4 * slot, plus 1 for a slot of ints, plus 2 for one of ints that is an offset into the workspace.
extern "C" void mlirfuse_launch_members(void* kernel, const int64_t* members, void** pointers, const int64_t* ints,
                                        void* stream);

// Host functions of a `fusion.foreach`, for a Record. ints for a GPU: its kernel, `members` as above, and the ints of
// its operands (slots count from the kernel on). For a CPU, with M members of W words each:
//   kernel, M, W, I, grain
//   M + 1 numbers: the number of tasks before each member, and of all
//   M * W slots in pointers, M * I integers
// A CPU kernel takes a member's pointers and integers like those of a call.
extern "C" int32_t mlirfuse_foreach_cpu(void** pointers, const int64_t* ints, void* stream);
extern "C" int32_t mlirfuse_foreach_gpu(void** pointers, const int64_t* ints, void* stream);
