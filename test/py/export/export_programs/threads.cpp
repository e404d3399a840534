// Calls exported functions from eight threads, with an allocator and a loop of the caller's own, and with wrong
// arguments. Prints what each of these gives.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "norm.h"
#include "softmax.h"

namespace {

constexpr int kThreads = 8;
std::atomic<int> loops{0}, allocated{0};

void* allocate(void*, const DLTensor*, size_t bytes) {
  ++allocated;
  return std::aligned_alloc(64, bytes / 64 * 64 + 64);
}

void parallel_for(void*, void (*run)(int64_t, int64_t, void*), void* data, int64_t tasks, int64_t grain) {
  ++loops;
  for (int64_t begin = 0; begin < tasks; begin += grain) run(begin, begin + grain < tasks ? begin + grain : tasks, data);
}

struct Array {
  std::vector<float> data;
  std::vector<int64_t> shape;
  DLTensor tensor;
  explicit Array(std::vector<int64_t> extents) : shape(std::move(extents)) {
    size_t count = 1;
    for (int64_t n : shape) count *= static_cast<size_t>(n);
    data.resize(count + 1);
    for (size_t i = 0; i < count; ++i) data[i] = std::sin(static_cast<float>(i));
    tensor = {data.data(), {kDLCPU, 0}, static_cast<int32_t>(shape.size()), {kDLFloat, 32, 1}, shape.data(), nullptr, 0};
  }
};

void wrong(const char* what, int32_t status) { std::printf("%s: %d %s\n", what, status, norm_error()); }

}  // namespace

int main(int, char** arguments) {
  const int repeats = std::atoi(arguments[1]);
  const Array x({64, 1000}), small({3, 1000});
  Array expected({64, 1000});
  std::atomic<int> failed{0};
  if (softmax(&x.tensor, &expected.tensor, nullptr)) return 1;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      Array y({64, 1000});
      mlirfuse_call call = {};
      call.abi = MLIRFUSE_EXPORT_ABI;
      if (t % 2) call.parallel_for = parallel_for;
      for (int i = 0; i < repeats; ++i) {
        std::fill(y.data.begin(), y.data.end(), -1.0f);
        failed += softmax(&x.tensor, &y.tensor, &call) ||
                  std::memcmp(y.data.data(), expected.data.data(), 64 * 1000 * sizeof(float));
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::printf("threads: failed=%d loops=%d\n", failed.load(), loops.load());

  mlirfuse_call call = {};
  call.allocate = allocate;
  int64_t shape[2];
  DLTensor made = {};
  made.shape = shape;
  const int32_t status = softmax(&small.tensor, &made, &call);
  std::printf("allocated: %d %d [%d, %d] %d\n", status, allocated.load(), static_cast<int>(shape[0]),
              static_cast<int>(shape[1]), std::memcmp(made.data, expected.data.data(), 3 * 1000 * sizeof(float)) != 0);
  std::free(made.data);

  const Array rows({4, 1024}), w({1024});
  Array y({4, 1024}), narrow({4, 1000}), vector({4});
  wrong("right", norm(&rows.tensor, &w.tensor, 1e-5, &y.tensor, nullptr));
  wrong("null", norm(nullptr, &w.tensor, 1e-5, &y.tensor, nullptr));
  wrong("rank", norm(&w.tensor, &w.tensor, 1e-5, &y.tensor, nullptr));
  wrong("shape", norm(&narrow.tensor, &w.tensor, 1e-5, &y.tensor, nullptr));
  wrong("result", norm(&rows.tensor, &w.tensor, 1e-5, &vector.tensor, nullptr));
  DLTensor other = rows.tensor;
  other.dtype.bits = 64;
  wrong("dtype", norm(&other, &w.tensor, 1e-5, &y.tensor, nullptr));
  other = rows.tensor;
  int64_t strides[2] = {1, 4};
  other.strides = strides;
  wrong("strides", norm(&other, &w.tensor, 1e-5, &y.tensor, nullptr));
  other = rows.tensor;
  other.byte_offset = 2;
  wrong("alignment", norm(&other, &w.tensor, 1e-5, &y.tensor, nullptr));
  other = rows.tensor;
  other.device.device_type = kDLCUDA;
  wrong("device", norm(&other, &w.tensor, 1e-5, &y.tensor, nullptr));
  other = rows.tensor;
  wrong("overlap", norm(&rows.tensor, &w.tensor, 1e-5, &other, nullptr));
  call.abi = MLIRFUSE_EXPORT_ABI + 1;
  wrong("abi", norm(&rows.tensor, &w.tensor, 1e-5, &y.tensor, &call));
  norm_set_threads(1);
  wrong("one thread", norm(&rows.tensor, &w.tensor, 1e-5, &y.tensor, nullptr));
  norm_set_threads(0);
  return failed != 0;
}
