// Memory for results and workspaces on the CPU. A fresh large buffer costs more in page faults than the arithmetic that
// fills it, so released buffers are kept and reused.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mlirfuse {

constexpr size_t kBufferAlignment = 64;

// Returns a buffer of at least `bytes`, aligned to kBufferAlignment; null if out of memory.
void* pool_allocate(size_t bytes);
// `bytes`: the size that was requested.
void pool_release(void* buffer, size_t bytes);

// The most released memory that is kept; initially an eighth of the physical memory.
void set_pool_limit(uint64_t bytes);

struct PoolStats {
  uint64_t live_bytes;
  uint64_t idle_bytes;
  uint64_t idle_buffers;
  uint64_t idle_limit;
  uint64_t reused;
  uint64_t fresh;
};
PoolStats pool_stats();

}  // namespace mlirfuse
