// One launch of a kernel for many sets of arguments, the members.
#pragma once

#include <cstdint>

// Launches a GPU's kernel, which gets a table by value: S numbers of blocks before each member (the largest integer
// behind the last), then the members' words. What it says of M members that have W words each:
//   M, W, threads, dynamic shared bytes, members of a launch, S, whether to launch early, the workspace's slot
//   M times 1 + W places: of a member's number of blocks, and of its words
// A place is 4 * slot, and 1 more where the slot is one of ints, 2 more where that holds an offset into the workspace.
extern "C" void mlirfuse_launch_members(void* kernel, const int64_t* members, void** pointers, const int64_t* ints,
                                        void* stream);

// Both are host functions as a Record calls them, of a `fusion.foreach`. ints for a GPU: its kernel, what is said
// above, and what that calls ints (slots count from the kernel on). For a CPU, of M members that have W words each:
//   kernel, M, W, I, grain
//   M + 1 numbers: tasks of the members before each, and of all
//   M * W slots in pointers, M * I integers
// A CPU kernel gets a member's pointers and integers as it gets those of a call.
extern "C" int32_t mlirfuse_foreach_cpu(void** pointers, const int64_t* ints, void* stream);
extern "C" int32_t mlirfuse_foreach_gpu(void** pointers, const int64_t* ints, void* stream);
