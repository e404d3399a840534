#include "cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

namespace mlirfuse::cuda {
namespace {

constexpr int kMaxDevices = 64;

// Stubs, one per signature, for missing functions.
template <class Signature>
struct Missing;
template <class... Args>
struct Missing<Result (*)(Args...)> {
  static Result no_driver(Args...) { return kNotInitialized; }
  static Result not_supported(Args...) { return kNotSupported; }
};

struct Library {
  Driver driver;
  std::string problem;  // empty where the driver is usable
};

Library without_driver(std::string problem) {
  Library library;
#define MLIRFUSE_MISSING(member, symbol, parameters) library.driver.member = &Missing<Result(*) parameters>::no_driver;
  MLIRFUSE_CUDA_FUNCTIONS(MLIRFUSE_MISSING)
#undef MLIRFUSE_MISSING
  library.problem = std::move(problem);
  return library;
}

Library make_library() {
  const char* path = std::getenv("MLIRFUSE_LIBCUDA");
  if (!path || !*path) path = "libcuda.so.1";
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* reason = dlerror();
    return without_driver(std::string("the CUDA driver could not be opened: ") + (reason ? reason : path));
  }
  Driver found;
#define MLIRFUSE_RESOLVE(member, symbol, parameters)                             \
  found.member = reinterpret_cast<Result(*) parameters>(dlsym(handle, #symbol)); \
  if (!found.member) found.member = &Missing<Result(*) parameters>::not_supported;
  MLIRFUSE_CUDA_FUNCTIONS(MLIRFUSE_RESOLVE)
#undef MLIRFUSE_RESOLVE

  const Result code = found.init(0);
  if (code != kSuccess) {
    const char* name = nullptr;
    found.error_name(code, &name);
    return without_driver(std::string("cuInit failed with ") + (name ? name : "error " + std::to_string(code)));
  }
  return {found, ""};
}

// The driver's library; null until it is first needed. Never destroyed: other threads may still be launching at exit.
std::atomic<const Library*> opened{nullptr};

// CUDA does not work in the child of a process that has used it; a call may also hang on a lock that another thread
// held.
void close_after_fork() {
  const Library* before = opened.load(std::memory_order_acquire);
  if (before && !before->problem.empty()) return;
  static const Library* forked = new Library(without_driver(
      "this process was forked from one that had opened the CUDA driver, which CUDA does not support: start processes "
      "by the method 'spawn' (multiprocessing.get_context('spawn'))"));
  opened.store(forked, std::memory_order_release);
}

const Library& open_library() {
  static std::mutex mutex;
  static const bool registered = pthread_atfork(nullptr, nullptr, close_after_fork) == 0;
  (void)registered;
  std::lock_guard<std::mutex> lock(mutex);
  if (!opened.load(std::memory_order_acquire)) opened.store(new Library(make_library()), std::memory_order_release);
  return *opened.load(std::memory_order_acquire);
}

const Library& library() {
  const Library* found = opened.load(std::memory_order_acquire);
  return found ? *found : open_library();
}

thread_local Error pending;
thread_local int32_t default_device = 0;

}  // namespace

const Driver& driver() { return library().driver; }

const char* why_unavailable() {
  const std::string& problem = library().problem;
  return problem.empty() ? nullptr : problem.c_str();
}

bool check(Result code, const char* call) {
  if (code == kSuccess) return true;
  if (pending.code == kSuccess) pending = {code, call};
  return false;
}

bool error_pending() { return pending.code != kSuccess; }

Error take_error() {
  const Error error = pending;
  pending = {};
  return error;
}

const char* error_name(Result code) {
  const char* name = nullptr;
  if (driver().error_name(code, &name) == kSuccess && name) return name;
  return code == kNotInitialized ? "CUDA_ERROR_NOT_INITIALIZED" : "CUDA_ERROR_UNKNOWN";
}

const char* error_text(Result code) {
  const char* text = nullptr;
  if (driver().error_string(code, &text) == kSuccess && text) return text;
  const char* problem = why_unavailable();
  return problem ? problem : "unknown error";
}

void set_default_device(int32_t device) { default_device = device; }

Context primary_context(int32_t device) {
  static std::atomic<Context> contexts[kMaxDevices];
  static std::mutex mutex;
  if (device < 0 || device >= kMaxDevices) {
    check(101, "cuDeviceGet");  // CUDA_ERROR_INVALID_DEVICE
    return nullptr;
  }
  Context context = contexts[device].load(std::memory_order_acquire);
  if (context) return context;
  std::lock_guard<std::mutex> lock(mutex);
  context = contexts[device].load(std::memory_order_relaxed);
  if (context) return context;
  Device handle = 0;
  if (!MLIRFUSE_CUDA(device_get, &handle, device)) return nullptr;
  if (!MLIRFUSE_CUDA(primary_context_retain, &context, handle)) return nullptr;
  contexts[device].store(context, std::memory_order_release);
  return context;
}

bool ensure_context() {
  Context current = nullptr;
  if (!MLIRFUSE_CUDA(context_get, &current)) return false;
  if (current) return true;
  const Context context = primary_context(default_device);
  return context && MLIRFUSE_CUDA(context_set, context);
}

ContextScope::ContextScope(int32_t device) {
  const Context primary = primary_context(device);
  Context current = nullptr;
  if (!primary || !MLIRFUSE_CUDA(context_get, &current)) return;
  if (current == primary) {
    ok_ = true;
  } else if (!current) {
    // Left current: a thread's first call pays for it, later calls find it.
    ok_ = MLIRFUSE_CUDA(context_set, primary);
  } else {
    ok_ = pushed_ = MLIRFUSE_CUDA(context_push, primary);
  }
}

ContextScope::~ContextScope() {
  if (!pushed_) return;
  Context popped = nullptr;
  (void)MLIRFUSE_CUDA(context_pop, &popped);
}

}  // namespace mlirfuse::cuda
