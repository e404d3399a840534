#include "thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace mlirfuse {
namespace {

// Average number of chunks per thread: more balance the load better, fewer have less overhead.
constexpr int64_t kChunksPerThread = 4;
// How long an idle worker spins before it sleeps: longer than the gap between two loops of one program, far shorter
// than a scheduler's time slice.
constexpr auto kSpinTime = std::chrono::microseconds(30);
// Sleeping workers that one thread wakes; those wake the next ones, so that no thread pays for all.
constexpr int kWakeFanout = 2;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_wait(std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>* word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

int default_thread_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

thread_local bool inside_loop = false;
thread_local int limit = 0;  // of the threads of this thread's loops; 0: none

struct Loop {
  void (*fn)(int64_t, int64_t, void*) = nullptr;
  void* ctx = nullptr;
  int64_t n = 0;
  int64_t chunk = 0;
  alignas(64) std::atomic<int64_t> next{0};

  void work() {
    for (;;) {
      const int64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
      if (begin >= n) return;
      fn(begin, std::min(n, begin + chunk), ctx);
    }
  }
  bool exhausted() const { return next.load(std::memory_order_relaxed) >= n; }
};

// Runs one loop at a time. Workers join it through `gate_`, which counts those inside while it is open; the caller
// closes the gate when no chunk is left and waits only for the workers inside, so that a slow worker delays nobody.
class ThreadPool {
 public:
  explicit ThreadPool(int threads) : threads_(threads) {}

  int threads() const { return threads_.load(std::memory_order_relaxed); }

  // Returns false, without having run anything, if the workers are busy. `threads`: at most, this one included.
  bool run(void (*fn)(int64_t, int64_t, void*), void* ctx, int64_t n, int64_t grain, int64_t threads) {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    threads = std::min<int64_t>(threads, this->threads());
    start_workers(threads - 1);
    helpers_.store(static_cast<uint32_t>(threads - 1), std::memory_order_relaxed);
    const int64_t share = (n + threads * kChunksPerThread - 1) / (threads * kChunksPerThread);
    loop_.fn = fn;
    loop_.ctx = ctx;
    loop_.n = n;
    loop_.chunk = (std::max(grain, share) + grain - 1) / grain * grain;
    loop_.next.store(0, std::memory_order_relaxed);
    gate_.store(kOpen, std::memory_order_release);
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    wake(threads - 1);
    loop_.work();
    gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (int spins = 0; gate_.load(std::memory_order_acquire) != 0; ++spins) {
      if (spins < 4096)
        pause();
      else
        sched_yield();
    }
    busy_.store(false, std::memory_order_release);
    return true;
  }

  void resize(int threads) {
    while (busy_.exchange(true, std::memory_order_acquire)) sched_yield();
    stopping_.store(true, std::memory_order_seq_cst);
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&epoch_, static_cast<int>(workers_.size()));
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    stopping_.store(false, std::memory_order_seq_cst);
    threads_.store(threads, std::memory_order_relaxed);
    busy_.store(false, std::memory_order_release);
  }

 private:
  static constexpr uint32_t kOpen = 1u << 31;

  void start_workers(int64_t count) {
    while (static_cast<int64_t>(workers_.size()) < count) {
      try {
        workers_.emplace_back([this, seen = epoch_.load(std::memory_order_relaxed)] { serve(seen); });
      } catch (const std::system_error&) {
        return;  // the limit on threads is reached: continue with fewer
      }
    }
  }

  void wake(int64_t missing) {
    const int count = static_cast<int>(std::min<int64_t>(missing, kWakeFanout));
    if (count > 0 && sleepers_.load(std::memory_order_seq_cst) > 0) futex_wake(&epoch_, count);
  }

  void serve(uint32_t seen) {
    inside_loop = true;
    for (;;) {
      seen = wait_for_change(seen);
      if (stopping_.load(std::memory_order_seq_cst)) return;
      uint32_t gate = gate_.load(std::memory_order_acquire);
      const uint32_t helpers = helpers_.load(std::memory_order_relaxed);
      bool inside = false;
      while ((gate & kOpen) && (gate & ~kOpen) < helpers && !inside)
        inside = gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire, std::memory_order_relaxed);
      if (!inside) continue;
      if (!loop_.exhausted()) {
        wake(static_cast<int64_t>(helpers) - (gate & ~kOpen) - 1);
        loop_.work();
      }
      gate_.fetch_sub(1, std::memory_order_release);
    }
  }

  uint32_t wait_for_change(uint32_t seen) {
    const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int i = 0; i < 64; ++i) {
        const uint32_t epoch = epoch_.load(std::memory_order_acquire);
        if (epoch != seen) return epoch;
        pause();
      }
    } while (std::chrono::steady_clock::now() < deadline);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    uint32_t epoch;
    while ((epoch = epoch_.load(std::memory_order_seq_cst)) == seen) futex_wait(&epoch_, seen);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return epoch;
  }

  Loop loop_;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<uint32_t> gate_{0};
  std::atomic<uint32_t> helpers_{0};  // workers that may be inside at once
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> busy_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<int> threads_;
  std::vector<std::thread> workers_;  // guarded by busy_
};

ThreadPool*& pool_slot() {
  static ThreadPool* pool = nullptr;
  return pool;
}

// After a fork the workers do not exist in the child: it starts a new pool of the same width and abandons the old one,
// whose threads cannot be joined.
void renew_after_fork() {
  pool_slot() = new ThreadPool(pool_slot()->threads());
  inside_loop = false;
}

// Never destroyed: the workers must not find it gone while the process exits.
ThreadPool& pool() {
  static const bool ready = [] {
    pool_slot() = new ThreadPool(default_thread_count());
    pthread_atfork(nullptr, nullptr, renew_after_fork);
    return true;
  }();
  (void)ready;
  return *pool_slot();
}

}  // namespace

int num_threads() { return limit > 0 ? std::min(limit, pool().threads()) : pool().threads(); }

void set_num_threads(int count) { pool().resize(std::max(1, count)); }

int limit_threads(int count) { return std::exchange(limit, count); }

}  // namespace mlirfuse

extern "C" __attribute__((visibility("default"))) void mlirfuse_parallel_for(void (*fn)(int64_t, int64_t, void*),
                                                                             void* ctx, int64_t n, int64_t grain) {
  using namespace mlirfuse;
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (const int threads = num_threads(); n > grain && !inside_loop && threads > 1) {
    inside_loop = true;
    const bool done = pool().run(fn, ctx, n, grain, threads);
    inside_loop = false;
    if (done) return;
  }
  fn(0, n, ctx);
}
