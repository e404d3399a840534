#include "foreach.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "thread_pool.h"

extern "C" {
using Launch = void(void* function, intptr_t grid_x, intptr_t grid_y, intptr_t grid_z, intptr_t block_x,
                    intptr_t block_y, intptr_t block_z, int32_t shared_bytes, void* stream, void** params, void** extra,
                    size_t count);
Launch mgpuLaunchKernel, mlirfuse_launch_early;
}

namespace {

using CpuKernel = void (*)(int64_t begin, int64_t end, void* context);

struct Members {
  CpuKernel kernel;
  const int64_t* first;  // the number of tasks before each member
  int64_t count, words, ints_per_member;
  void** pointers;
  const int64_t* ints;
};

// Runs tasks [begin, end) of all members' tasks in sequence.
void run_tasks(int64_t begin, int64_t end, void* context) {
  const Members& all = *static_cast<const Members*>(context);
  int64_t member = std::upper_bound(all.first, all.first + all.count + 1, begin) - all.first - 1;
  for (; begin < end; ++member) {
    const int64_t before = all.first[member], stop = std::min(end, all.first[member + 1]);
    void* given[2] = {all.pointers + member * all.words, const_cast<int64_t*>(all.ints + member * all.ints_per_member)};
    all.kernel(begin - before, stop - before, given);
    begin = stop;
  }
}

}  // namespace

int32_t mlirfuse_foreach_cpu(void** pointers, const int64_t* ints, void*) {
  const int64_t count = ints[1], words = ints[2], ints_per_member = ints[3], grain = ints[4];
  const int64_t* first = ints + 5;
  const int64_t* slots = first + count + 1;
  std::vector<void*> given(static_cast<size_t>(count * words));
  for (size_t i = 0; i < given.size(); ++i) given[i] = pointers[slots[i]];
  Members members = {
      reinterpret_cast<CpuKernel>(ints[0]), first, count, words, ints_per_member, given.data(), slots + count * words};
  mlirfuse_parallel_for(run_tasks, &members, first[count], grain);
  return 0;
}

void mlirfuse_launch_members(void* kernel, const int64_t* members, void** pointers, const int64_t* ints, void* stream) {
  const int64_t count = members[0], words = members[1], threads = members[2], most = members[4], padded = members[5];
  const auto shared = static_cast<int32_t>(members[3]);
  const auto launch = members[6] ? mlirfuse_launch_early : mgpuLaunchKernel;
  const int64_t workspace = reinterpret_cast<int64_t>(pointers[members[7]]);
  const auto value_at = [=](int64_t operand) {
    const int64_t slot = operand >> 2;
    if ((operand & 3) == 0) return reinterpret_cast<int64_t>(pointers[slot]);
    return (operand & 3) == 1 ? ints[slot] : workspace + ints[slot];
  };
  const int64_t* operand = members + 8;
  std::vector<int64_t> table(static_cast<size_t>(padded + most * words));
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t here = std::min(most, count - begin);
    int64_t blocks = 0;
    int64_t* word = table.data() + padded;
    for (int64_t i = 0; i < here; ++i) {
      table[i] = blocks;
      blocks += value_at(*operand++);
      for (int64_t w = 0; w < words; ++w) *word++ = value_at(*operand++);
    }
    std::fill(table.begin() + here, table.begin() + padded, std::numeric_limits<int64_t>::max());
    void* params[] = {table.data()};
    launch(kernel, blocks, 1, 1, threads, 1, 1, shared, stream, params, nullptr, 1);
  }
}

int32_t mlirfuse_foreach_gpu(void** pointers, const int64_t* ints, void* stream) {
  mlirfuse_launch_members(reinterpret_cast<void*>(ints[0]), ints + 1, pointers, ints, stream);
  return 0;
}
