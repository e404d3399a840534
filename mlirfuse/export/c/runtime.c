/* What the code of exported functions needs around it: checks with messages, a thread pool, a workspace. The generated
   part follows below. */
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define UNUSED __attribute__((unused))
#define EXPORTED __attribute__((visibility("default")))

static _Thread_local char message[512];

static int failed(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int failed(int status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return status;
}

/* ---- sizes, as Python computes them */

UNUSED static int64_t floor_div(int64_t a, int64_t b) { return b ? a / b - (a % b != 0 && (a < 0) != (b < 0)) : 0; }
UNUSED static int64_t floor_mod(int64_t a, int64_t b) { return b ? a - floor_div(a, b) * b : 0; }
UNUSED static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
UNUSED static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
/* `factor | shift << 32`: what indices are multiplied by and shifted instead of being divided by `size`. */
UNUSED static int64_t inverse_of(int64_t size) {
  int shift = 31;
  if (size < 1) size = 1;
  while (((int64_t)1 << (shift - 31)) < size) ++shift;
  return (((int64_t)1 << shift) / size + 1) | (int64_t)shift << 32;
}

/* ---- arrays */

typedef struct {
  const char *name;
  int32_t ndim;
  DLDataType dtype;
} expected;

static void *address_of(const DLTensor *x) { return (char *)x->data + x->byte_offset; }
static int64_t alignment_of(const void *address) {
  const int64_t bits = (int64_t)(intptr_t)address;
  return bits ? smaller(bits & -bits, 256) : 256;
}
static int64_t elements_of(const DLTensor *x) {
  int64_t count = 1;
  for (int32_t d = 0; d < x->ndim; ++d) count *= x->shape[d];
  return count;
}
static int64_t contiguous_stride(const DLTensor *x, int32_t axis) {
  int64_t stride = 1;
  for (int32_t d = axis + 1; d < x->ndim; ++d) stride *= x->shape[d];
  return stride;
}
static int64_t stride_of(const DLTensor *x, int32_t axis) {
  return x->strides ? x->strides[axis] : contiguous_stride(x, axis);
}

static int check_array(const DLTensor *x, const expected *e, const DLDevice *device) {
  static const char *const codes[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  if (!x) return failed(MLIRFUSE_TYPE, "%s is NULL", e->name);
  if (x->dtype.code != e->dtype.code || x->dtype.bits != e->dtype.bits || x->dtype.lanes != 1)
    return failed(MLIRFUSE_TYPE, "%s has dtype %s%d, expected %s%d", e->name,
                  x->dtype.code < 7 ? codes[x->dtype.code] : "?", x->dtype.bits, codes[e->dtype.code], e->dtype.bits);
  if (x->ndim != e->ndim) return failed(MLIRFUSE_TYPE, "%s has %d dimensions, expected %d", e->name, x->ndim, e->ndim);
  if (x->ndim && !x->shape) return failed(MLIRFUSE_TYPE, "%s has no shape", e->name);
  int64_t bytes = larger(1, x->dtype.bits / 8);
  for (int32_t d = 0; d < x->ndim; ++d) {
    if (x->shape[d] < 0)
      return failed(MLIRFUSE_SHAPE, "%s has extent %lld in dimension %d", e->name, (long long)x->shape[d], d);
    if (__builtin_mul_overflow(bytes, larger(1, x->shape[d]), &bytes))
      return failed(MLIRFUSE_SHAPE, "%s is larger than the memory", e->name);
  }
  if (x->device.device_type != device->device_type || x->device.device_id != device->device_id)
    return failed(MLIRFUSE_DEVICE, "%s is on device %d:%d, expected %d:%d", e->name, x->device.device_type,
                  x->device.device_id, device->device_type, device->device_id);
  return MLIRFUSE_OK;
}

UNUSED static int check_extent(const DLTensor *x, const char *name, int32_t axis, int64_t size, const char *why) {
  if (x->shape[axis] == size) return MLIRFUSE_OK;
  return failed(MLIRFUSE_SHAPE, "%s has extent %lld in dimension %d, expected %s = %lld", name,
                (long long)x->shape[axis], axis, why, (long long)size);
}

UNUSED static int check_stride(const DLTensor *x, const char *name, int32_t axis, int64_t stride, const char *why) {
  if (x->shape[axis] == 1 || elements_of(x) == 0 || stride_of(x, axis) == stride) return MLIRFUSE_OK;
  return failed(MLIRFUSE_STRIDES, "%s has stride %lld in dimension %d, expected %s = %lld", name,
                (long long)stride_of(x, axis), axis, why, (long long)stride);
}

/* That no two elements of what is written share memory. */
UNUSED static int check_distinct(const DLTensor *x, const char *name) {
  if (elements_of(x) == 0) return MLIRFUSE_OK;
  for (int32_t d = 0; d < x->ndim; ++d) {
    int64_t reach = 1; /* of the dimensions with smaller strides */
    const int64_t stride = llabs(stride_of(x, d));
    for (int32_t i = 0; i < x->ndim; ++i) {
      const int64_t other = llabs(stride_of(x, i));
      if (i != d && x->shape[i] != 1 && (other < stride || (other == stride && i < d)))
        reach = larger(reach, other * x->shape[i]);
    }
    if (x->shape[d] != 1 && stride < reach)
      return failed(MLIRFUSE_STRIDES, "%s, which is written, has elements that share memory", name);
  }
  return MLIRFUSE_OK;
}

static int check_address(const DLTensor *x, const char *name) {
  const int64_t bytes = larger(1, x->dtype.bits / 8);
  if (elements_of(x) == 0) return MLIRFUSE_OK;
  if (!x->data) return failed(MLIRFUSE_TYPE, "%s has no data", name);
  if (alignment_of(address_of(x)) >= bytes) return MLIRFUSE_OK;
  return failed(MLIRFUSE_ALIGNMENT, "%s lies at %p, no multiple of its elements' %lld bytes", name, address_of(x),
                (long long)bytes);
}

static void bounds_of(const DLTensor *x, const char **low, const char **high) {
  const int64_t bytes = larger(1, x->dtype.bits / 8);
  *low = address_of(x);
  *high = *low + bytes;
  for (int32_t d = 0; d < x->ndim; ++d) {
    const int64_t span = (x->shape[d] - 1) * stride_of(x, d) * bytes;
    if (span < 0)
      *low += span;
    else
      *high += span;
  }
  if (elements_of(x) == 0) *high = *low;
}

UNUSED static int check_apart(const DLTensor *written, const char *name, const DLTensor *x, const char *other) {
  const char *low, *high, *other_low, *other_high;
  bounds_of(written, &low, &high);
  bounds_of(x, &other_low, &other_high);
  if (low >= other_high || other_low >= high) return MLIRFUSE_OK;
  return failed(MLIRFUSE_OVERLAP, "%s, which is written, shares memory with %s", name, other);
}

UNUSED static int describe_result(DLTensor *x, const expected *e, const DLDevice *device, const int64_t *shape) {
  if (!x || (e->ndim && !x->shape)) return failed(MLIRFUSE_TYPE, "%s has no room for its shape", e->name);
  x->device = *device, x->ndim = e->ndim, x->dtype = e->dtype, x->byte_offset = 0;
  for (int32_t d = 0; d < e->ndim; ++d) x->shape[d] = shape[d];
  for (int32_t d = 0; x->strides && d < e->ndim; ++d) x->strides[d] = contiguous_stride(x, d);
  return MLIRFUSE_OK;
}

/* A result: as the caller has made it, or made by the caller's allocator. */
UNUSED static int prepare_result(DLTensor *x, const expected *e, const DLDevice *device, const int64_t *shape,
                                 const mlirfuse_call *call) {
  if (!x) return failed(MLIRFUSE_TYPE, "%s is NULL", e->name);
  if (!x->data && call && call->allocate) {
    const int described = describe_result(x, e, device, shape);
    if (described) return described;
    const int64_t bytes = elements_of(x) * larger(1, e->dtype.bits / 8);
    x->data = call->allocate(call->context, x, (size_t)bytes);
    if (!x->data && bytes) return failed(MLIRFUSE_MEMORY, "no %lld bytes for %s", (long long)bytes, e->name);
  }
  int status = check_array(x, e, device);
  for (int32_t d = 0; d < e->ndim && !status; ++d) status = check_extent(x, e->name, d, shape[d], "the result's");
  for (int32_t d = 0; d < e->ndim && !status; ++d)
    status = check_stride(x, e->name, d, contiguous_stride(x, d), "C-contiguous");
  return status ? status : check_address(x, e->name);
}

/* Whether there is something to compute: -1 where a tensor on the way has no elements. */
UNUSED static int check_extents(const int64_t *extents, int count) {
  int empty = 0;
  for (int k = 0; k < count; ++k) {
    if (extents[k] < 0) return failed(MLIRFUSE_SHAPE, "a size is %lld for this call", (long long)extents[k]);
    empty |= extents[k] == 0;
  }
  return empty ? -1 : MLIRFUSE_OK;
}

/* ---- the workspace: what is never needed at the same time shares memory */

typedef struct {
  int slot, first, last;
} span;

UNUSED static int64_t place(const int64_t *bytes, const span *spans, int count, int64_t *ints) {
  int64_t workspace = 0;
  int order[count + 1]; /* those that have a place, by where it begins */
  for (int k = 0; k < count; ++k) {
    const int64_t size = (bytes[k] + 255) / 256 * 256;
    int64_t offset = 0;
    for (int i = 0; i < k; ++i) {
      const span *other = &spans[order[i]];
      const int64_t start = ints[other->slot], end = start + (bytes[order[i]] + 255) / 256 * 256;
      if (other->first <= spans[k].last && spans[k].first <= other->last && start < offset + size && offset < end)
        offset = end;
    }
    ints[spans[k].slot] = offset;
    int at = k;
    for (; at > 0 && ints[spans[order[at - 1]].slot] > offset; --at) order[at] = order[at - 1];
    order[at] = k;
    workspace = larger(workspace, offset + size);
  }
  return workspace;
}

/* ---- threads: one loop at a time; who finds the workers taken runs alone */

typedef void (*loop_body)(int64_t begin, int64_t end, void *data);

enum { MOST_THREADS = 256, CHUNKS_A_THREAD = 4, SPINS = 2000 };

static struct {
  pthread_mutex_t lock; /* held by the caller of a loop */
  pthread_mutex_t sleep;
  pthread_cond_t wake;
  pthread_t workers[MOST_THREADS];
  int count, threads;
  loop_body body;
  void *data;
  int64_t tasks, chunk;
  _Atomic int64_t next;
  _Atomic int inside; /* workers in the loop; OPEN while more may join */
  _Atomic unsigned epoch;
  _Atomic int stopping;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .sleep = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

enum { OPEN = 1 << 30 };

static _Thread_local int in_loop;
static _Thread_local const mlirfuse_call *this_call;

static void relax(void) { __builtin_ia32_pause(); }

static void work(void) {
  for (;;) {
    const int64_t begin = atomic_fetch_add_explicit(&pool.next, pool.chunk, memory_order_relaxed);
    if (begin >= pool.tasks) return;
    pool.body(begin, smaller(pool.tasks, begin + pool.chunk), pool.data);
  }
}

static void *serve(void *started) {
  unsigned seen = (unsigned)(uintptr_t)started;
  in_loop = 1;
  for (;;) {
    for (int spins = 0; spins < SPINS && atomic_load(&pool.epoch) == seen; ++spins) relax();
    pthread_mutex_lock(&pool.sleep);
    while (atomic_load(&pool.epoch) == seen) pthread_cond_wait(&pool.wake, &pool.sleep);
    pthread_mutex_unlock(&pool.sleep);
    seen = atomic_load(&pool.epoch);
    if (atomic_load(&pool.stopping)) return NULL;
    int inside = atomic_load(&pool.inside);
    while ((inside & OPEN) && !atomic_compare_exchange_weak(&pool.inside, &inside, inside + 1)) {
    }
    if (!(inside & OPEN)) continue;
    work();
    atomic_fetch_sub(&pool.inside, 1);
  }
}

static void wake_all(void) {
  pthread_mutex_lock(&pool.sleep);
  atomic_fetch_add(&pool.epoch, 1);
  pthread_cond_broadcast(&pool.wake);
  pthread_mutex_unlock(&pool.sleep);
}

static int processors(void) {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

static void forget_workers(void) { /* in a child after fork, which has none of them */
  pthread_mutex_init(&pool.lock, NULL);
  pthread_mutex_init(&pool.sleep, NULL);
  pthread_cond_init(&pool.wake, NULL);
  pool.count = 0, in_loop = 0;
  atomic_store(&pool.inside, 0);
}

static void start_workers(void) {
  static int watching;
  if (!watching) watching = pthread_atfork(NULL, NULL, forget_workers) == 0;
  if (!pool.threads) pool.threads = processors();
  while (pool.count < pool.threads - 1 && pool.count < MOST_THREADS &&
         pthread_create(&pool.workers[pool.count], NULL, serve, (void *)(uintptr_t)atomic_load(&pool.epoch)) == 0)
    ++pool.count;
}

/* With the lock held. */
static void stop_workers(void) {
  atomic_store(&pool.stopping, 1);
  wake_all();
  for (int k = 0; k < pool.count; ++k) pthread_join(pool.workers[k], NULL);
  pool.count = 0;
  atomic_store(&pool.stopping, 0);
}

__attribute__((destructor)) static void unload(void) {
  if (pthread_mutex_trylock(&pool.lock) == 0) {
    stop_workers();
    pthread_mutex_unlock(&pool.lock);
  }
}

UNUSED static void set_threads(int threads) {
  pthread_mutex_lock(&pool.lock);
  stop_workers();
  pool.threads = threads < 1 ? 0 : threads < MOST_THREADS ? threads : MOST_THREADS;
  pthread_mutex_unlock(&pool.lock);
}

UNUSED static void parallel_for(loop_body body, void *data, int64_t tasks, int64_t grain) {
  if (tasks <= 0) return;
  grain = larger(grain, 1);
  if (this_call && this_call->parallel_for) {
    this_call->parallel_for(this_call->context, body, data, tasks, grain);
    return;
  }
  if (tasks <= grain || in_loop || pthread_mutex_trylock(&pool.lock)) {
    body(0, tasks, data);
    return;
  }
  start_workers();
  const int64_t parts = (int64_t)(pool.count + 1) * CHUNKS_A_THREAD, share = (tasks + parts - 1) / parts;
  pool.body = body, pool.data = data, pool.tasks = tasks;
  pool.chunk = (larger(grain, share) + grain - 1) / grain * grain;
  atomic_store(&pool.next, 0);
  atomic_store(&pool.inside, OPEN);
  if (pool.count) wake_all();
  in_loop = 1;
  work();
  in_loop = 0;
  atomic_fetch_and(&pool.inside, ~OPEN);
  for (int spins = 0; atomic_load(&pool.inside); ++spins) {
    if (spins < 4096)
      relax();
    else
      sched_yield();
  }
  pthread_mutex_unlock(&pool.lock);
}

/* ---- a call */

typedef int32_t (*launch_function)(void **pointers, const int64_t *ints, void *stream);

UNUSED static int launch_on_cpu(const void *code, void **pointers, int workspace_at, int64_t workspace, int64_t *ints,
                                const int64_t *bad_index, const mlirfuse_call *call) {
  void *memory = NULL;
  if (workspace && posix_memalign(&memory, 256, (size_t)workspace))
    return failed(MLIRFUSE_MEMORY, "no %lld bytes for the workspace", (long long)workspace);
  pointers[workspace_at] = memory;
  const mlirfuse_call *outer = this_call;
  this_call = call;
  ((launch_function)(uintptr_t)code)(pointers, ints, NULL);
  this_call = outer;
  free(memory);
  if (bad_index[0] != 1) return MLIRFUSE_OK;
  return failed(MLIRFUSE_INDEX, "index %lld is out of bounds for an axis of size %lld", (long long)bad_index[1],
                (long long)bad_index[3]);
}
