#include "foreach.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "thread_pool.h"

extern "C" void mgpuLaunchKernel(void* function, intptr_t grid_x, intptr_t grid_y, intptr_t grid_z, intptr_t block_x,
                                 intptr_t block_y, intptr_t block_z, int32_t shared_bytes, void* stream, void** params,
                                 void** extra, size_t count);

namespace {

using CpuKernel = void (*)(int64_t begin, int64_t end, void* context);

struct Members {
  CpuKernel kernel;
  const int64_t* first;  // tasks before each member
  int64_t count, words, ints_each;
  void** pointers;
  const int64_t* ints;
};

// Tasks [begin, end) of all members' one after the other.
void run_tasks(int64_t begin, int64_t end, void* context) {
  const Members& all = *static_cast<const Members*>(context);
  int64_t member = std::upper_bound(all.first, all.first + all.count + 1, begin) - all.first - 1;
  for (; begin < end; ++member) {
    const int64_t before = all.first[member], stop = std::min(end, all.first[member + 1]);
    void* given[2] = {all.pointers + member * all.words, const_cast<int64_t*>(all.ints + member * all.ints_each)};
    all.kernel(begin - before, stop - before, given);
    begin = stop;
  }
}

}  // namespace

int32_t mlirfuse_foreach_cpu(void** pointers, const int64_t* ints, void*) {
  const int64_t count = ints[1], words = ints[2], ints_each = ints[3], grain = ints[4];
  const int64_t* first = ints + 5;
  const int64_t* slots = first + count + 1;
  std::vector<void*> given(static_cast<size_t>(count * words));
  for (size_t i = 0; i < given.size(); ++i) given[i] = pointers[slots[i]];
  Members members = {
      reinterpret_cast<CpuKernel>(ints[0]), first, count, words, ints_each, given.data(), slots + count * words};
  mlirfuse_parallel_for(run_tasks, &members, first[count], grain);
  return 0;
}

int32_t mlirfuse_foreach_gpu(void** pointers, const int64_t* ints, void* stream) {
  const int64_t count = ints[1], words = ints[2], threads = ints[3], shared = ints[4], most = ints[5], padded = ints[6];
  const int64_t* first = ints + 7;
  const int64_t* slots = first + count + 1;
  const int64_t* values = slots + count * words;
  std::vector<int64_t> table(static_cast<size_t>(padded + most * words));
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t here = std::min(most, count - begin);
    std::fill(table.begin(), table.begin() + padded, std::numeric_limits<int64_t>::max());
    for (int64_t i = 0; i < here; ++i) table[i] = first[begin + i] - first[begin];
    for (int64_t i = 0; i < here * words; ++i) {
      const int64_t slot = slots[begin * words + i];
      table[padded + i] = slot < 0 ? values[begin * words + i] : reinterpret_cast<int64_t>(pointers[slot]);
    }
    void* params[] = {table.data()};
    mgpuLaunchKernel(reinterpret_cast<void*>(ints[0]), first[begin + here] - first[begin], 1, 1, threads, 1, 1,
                     static_cast<int32_t>(shared), stream, params, nullptr, 1);
  }
  return 0;
}
