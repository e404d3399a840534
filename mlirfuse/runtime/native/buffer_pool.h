// Memory for results and workspaces on the CPU. A fresh large buffer costs more in page faults than the arithmetic that
// fills it, so buffers are kept when they are released and handed out again.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mlirfuse {

constexpr size_t kBufferAlignment = 64;

// A buffer of at least `bytes`, aligned to kBufferAlignment; null where memory has run out.
void* pool_allocate(size_t bytes);
// `bytes` as it was asked for.
void pool_release(void* buffer, size_t bytes);

// How much released memory is kept; at first an eighth of the machine's.
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
