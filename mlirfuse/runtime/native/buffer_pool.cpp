#include "buffer_pool.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <limits>
#include <mutex>

namespace mlirfuse {
namespace {

// From this size on a buffer is a separate mapping, on huge pages where the kernel has them: fewer page faults when it
// is fresh, fewer TLB misses later.
constexpr size_t kMapThreshold = size_t(4) << 20;
constexpr size_t kHugePage = size_t(2) << 20;
constexpr size_t kSmallest = 64;
// Four size classes an octave: at most a fifth of a buffer is wasted.
constexpr int kStepsPerOctave = 4;
constexpr int kClasses = (64 - 6) * kStepsPerOctave;

struct SizeClass {
  int index;
  size_t bytes;
};

SizeClass size_class(size_t bytes) {
  bytes = std::max(bytes, kSmallest);
  const int octave = 63 - __builtin_clzll(bytes);
  const size_t base = size_t(1) << octave;
  const size_t step = base / kStepsPerOctave;
  const size_t steps = (bytes - base + step - 1) / step;
  return {(octave - 6) * kStepsPerOctave + static_cast<int>(steps), base + steps * step};
}

void* map_huge(size_t bytes) {
  // Mapped with slack and trimmed, so that it starts on a huge page.
  char* raw =
      static_cast<char*>(mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (raw == MAP_FAILED) return nullptr;
  const size_t head = (kHugePage - reinterpret_cast<uintptr_t>(raw) % kHugePage) % kHugePage;
  char* start = raw + head;
  if (head) munmap(raw, head);
  if (head < kHugePage) munmap(start + bytes, kHugePage - head);
  madvise(start, bytes, MADV_HUGEPAGE);  // advice: not every kernel supports it
  return start;
}

void* allocate_fresh(size_t bytes) {
  if (bytes >= kMapThreshold) return map_huge(bytes);
  void* buffer = nullptr;
  return posix_memalign(&buffer, kBufferAlignment, bytes) == 0 ? buffer : nullptr;
}

void give_back(void* buffer, size_t bytes) {
  if (bytes >= kMapThreshold)
    munmap(buffer, bytes);
  else
    std::free(buffer);
}

uint64_t physical_memory() {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  // A container may have less; "max", which is not a number, means no limit.
  uint64_t limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) bytes = std::min(bytes, limit);
  return bytes;
}

class BufferPool {
 public:
  BufferPool() { stats_.idle_limit = physical_memory() / 8; }

  void* allocate(size_t bytes) {
    if (bytes > std::numeric_limits<size_t>::max() / 4) return nullptr;
    const SizeClass size = size_class(bytes);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stats_.live_bytes += size.bytes;
      std::deque<Idle>& idle = idle_[size.index];
      if (!idle.empty()) {
        void* buffer = idle.back().buffer;  // the one used last is the likeliest to be in the cache
        idle.pop_back();
        stats_.idle_bytes -= size.bytes;
        --stats_.idle_buffers;
        ++stats_.reused;
        return buffer;
      }
      ++stats_.fresh;
    }
    void* buffer = allocate_fresh(size.bytes);
    if (!buffer) {
      drop_idle();
      buffer = allocate_fresh(size.bytes);
    }
    if (!buffer) {
      std::lock_guard<std::mutex> lock(mutex_);
      stats_.live_bytes -= size.bytes;
    }
    return buffer;
  }

  void release(void* buffer, size_t bytes) {
    const SizeClass size = size_class(bytes);
    std::unique_lock<std::mutex> lock(mutex_);
    stats_.live_bytes -= size.bytes;
    if (size.bytes > stats_.idle_limit) {
      lock.unlock();
      give_back(buffer, size.bytes);
      return;
    }
    idle_[size.index].push_back({buffer, size.bytes, ++clock_});
    stats_.idle_bytes += size.bytes;
    ++stats_.idle_buffers;
    while (stats_.idle_bytes > stats_.idle_limit) drop_oldest();
  }

  void set_idle_limit(uint64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.idle_limit = bytes;
    while (stats_.idle_bytes > stats_.idle_limit) drop_oldest();
  }

  PoolStats stats() {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }

  std::mutex& mutex() { return mutex_; }

 private:
  struct Idle {
    void* buffer;
    size_t bytes;
    uint64_t since;
  };

  void drop_oldest() {
    std::deque<Idle>* oldest = nullptr;
    for (std::deque<Idle>& idle : idle_)
      if (!idle.empty() && (!oldest || idle.front().since < oldest->front().since)) oldest = &idle;
    const Idle dropped = oldest->front();
    oldest->pop_front();
    stats_.idle_bytes -= dropped.bytes;
    --stats_.idle_buffers;
    give_back(dropped.buffer, dropped.bytes);
  }

  void drop_idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    while (stats_.idle_buffers) drop_oldest();
  }

  std::mutex mutex_;
  std::deque<Idle> idle_[kClasses];
  uint64_t clock_ = 0;
  PoolStats stats_ = {};
};

// Never destroyed: arrays may outlive every static object.
BufferPool& pool() {
  static BufferPool* instance = [] {
    BufferPool* created = new BufferPool;
    // The lock is held across a fork, so that the child finds the lists consistent.
    pthread_atfork([] { pool().mutex().lock(); }, [] { pool().mutex().unlock(); }, [] { pool().mutex().unlock(); });
    return created;
  }();
  return *instance;
}

}  // namespace

void* pool_allocate(size_t bytes) { return pool().allocate(bytes); }
void pool_release(void* buffer, size_t bytes) { pool().release(buffer, bytes); }
void set_pool_limit(uint64_t bytes) { pool().set_idle_limit(bytes); }
PoolStats pool_stats() { return pool().stats(); }

}  // namespace mlirfuse
