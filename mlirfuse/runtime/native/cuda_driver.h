// The CUDA driver functions that mlirfuse uses. `libcuda.so.1` is opened at first use, so that everything builds and
// imports without a GPU; the few types and constants needed are declared here for the same reason.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mlirfuse::cuda {

using Result = int32_t;
using Device = int32_t;
using DevicePtr = uint64_t;
using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;

constexpr Result kSuccess = 0;
constexpr Result kNotInitialized = 3;
constexpr Result kNotSupported = 801;

constexpr int kJitErrorLogBuffer = 5;
constexpr int kJitErrorLogBufferSize = 6;
constexpr int kJitOptimizationLevel = 7;
constexpr int kFuncAttributeMaxThreads = 0;
constexpr int kFuncAttributeSharedBytes = 1;
constexpr int kFuncAttributeConstBytes = 2;
constexpr int kFuncAttributeLocalBytes = 3;
constexpr int kFuncAttributeRegisters = 4;
constexpr int kFuncAttributePtxVersion = 5;
constexpr int kFuncAttributeBinaryVersion = 6;
constexpr int kFuncAttributeMaxDynamicShared = 8;
constexpr int kFuncAttributeNonPortableCluster = 14;
constexpr int kPointerAttributeDeviceOrdinal = 9;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDefault = 0;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kMemAttachGlobal = 1;
constexpr int kLaunchAttributeClusterDimension = 4;
constexpr int kLaunchAttributeProgrammaticStreamSerialization = 6;

struct LaunchAttribute {
  int32_t id;
  int32_t padding;
  union {
    char bytes[64];
    uint32_t cluster[3];
    int32_t allowed;
  } value;
};

struct LaunchConfig {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  uint32_t attribute_count;
};

struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56 && sizeof(TensorMap) == 128,
              "the driver's layout on 64-bit machines");

// X(name of the member, name of the symbol, parameters)
#define MLIRFUSE_CUDA_FUNCTIONS(X)                                                                             \
  X(init, cuInit, (unsigned flags))                                                                            \
  X(driver_version, cuDriverGetVersion, (int* version))                                                        \
  X(error_name, cuGetErrorName, (Result code, const char** name))                                              \
  X(error_string, cuGetErrorString, (Result code, const char** text))                                          \
  X(device_count, cuDeviceGetCount, (int* count))                                                              \
  X(device_get, cuDeviceGet, (Device * device, int ordinal))                                                   \
  X(device_name, cuDeviceGetName, (char* name, int length, Device device))                                     \
  X(device_attribute, cuDeviceGetAttribute, (int* value, int attribute, Device device))                        \
  X(device_total_mem, cuDeviceTotalMem_v2, (size_t* bytes, Device device))                                     \
  X(primary_context_retain, cuDevicePrimaryCtxRetain, (Context * context, Device device))                      \
  X(context_get, cuCtxGetCurrent, (Context * context))                                                         \
  X(context_set, cuCtxSetCurrent, (Context context))                                                           \
  X(context_push, cuCtxPushCurrent_v2, (Context context))                                                      \
  X(context_pop, cuCtxPopCurrent_v2, (Context * context))                                                      \
  X(context_synchronize, cuCtxSynchronize, ())                                                                 \
  X(module_load, cuModuleLoadDataEx,                                                                           \
    (Module * module, const void* image, unsigned option_count, int* options, void** values))                  \
  X(module_unload, cuModuleUnload, (Module module))                                                            \
  X(module_function, cuModuleGetFunction, (Function * function, Module module, const char* name))              \
  X(function_get, cuFuncGetAttribute, (int* value, int attribute, Function function))                          \
  X(function_set, cuFuncSetAttribute, (Function function, int attribute, int value))                           \
  X(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor,                                                    \
    (int* blocks, Function function, int threads, size_t shared_bytes))                                        \
  X(launch, cuLaunchKernel,                                                                                    \
    (Function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,          \
     unsigned shared_bytes, Stream stream, void** params, void** extra))                                       \
  X(launch_ex, cuLaunchKernelEx, (const LaunchConfig* config, Function function, void** params, void** extra)) \
  X(stream_create, cuStreamCreate, (Stream * stream, unsigned flags))                                          \
  X(stream_destroy, cuStreamDestroy_v2, (Stream stream))                                                       \
  X(stream_synchronize, cuStreamSynchronize, (Stream stream))                                                  \
  X(stream_wait_event, cuStreamWaitEvent, (Stream stream, Event event, unsigned flags))                        \
  X(event_create, cuEventCreate, (Event * event, unsigned flags))                                              \
  X(event_destroy, cuEventDestroy_v2, (Event event))                                                           \
  X(event_record, cuEventRecord, (Event event, Stream stream))                                                 \
  X(event_synchronize, cuEventSynchronize, (Event event))                                                      \
  X(event_elapsed, cuEventElapsedTime, (float* milliseconds, Event start, Event end))                          \
  X(mem_alloc, cuMemAlloc_v2, (DevicePtr * pointer, size_t bytes))                                             \
  X(mem_alloc_managed, cuMemAllocManaged, (DevicePtr * pointer, size_t bytes, unsigned flags))                 \
  X(mem_alloc_async, cuMemAllocAsync, (DevicePtr * pointer, size_t bytes, Stream stream))                      \
  X(mem_free, cuMemFree_v2, (DevicePtr pointer))                                                               \
  X(mem_free_async, cuMemFreeAsync, (DevicePtr pointer, Stream stream))                                        \
  X(memcpy_async, cuMemcpyAsync, (DevicePtr target, DevicePtr source, size_t bytes, Stream stream))            \
  X(memcpy_to_device, cuMemcpyHtoD_v2, (DevicePtr target, const void* source, size_t bytes))                   \
  X(memcpy_from_device, cuMemcpyDtoH_v2, (void* target, DevicePtr source, size_t bytes))                       \
  X(memset32_async, cuMemsetD32Async, (DevicePtr target, unsigned value, size_t count, Stream stream))         \
  X(memset16_async, cuMemsetD16Async, (DevicePtr target, unsigned short value, size_t count, Stream stream))   \
  X(host_register, cuMemHostRegister_v2, (void* pointer, size_t bytes, unsigned flags))                        \
  X(host_unregister, cuMemHostUnregister, (void* pointer))                                                     \
  X(pointer_attribute, cuPointerGetAttribute, (void* value, int attribute, DevicePtr pointer))                 \
  X(tensor_map_tiled, cuTensorMapEncodeTiled,                                                                  \
    (TensorMap * map, int dtype, uint32_t rank, void* address, const uint64_t* dims, const uint64_t* strides,  \
     const uint32_t* box, const uint32_t* element_strides, int interleave, int swizzle, int l2_promotion,      \
     int oob_fill))

// One pointer per function; a function that the installed driver lacks returns CUDA_ERROR_NOT_SUPPORTED.
struct Driver {
#define MLIRFUSE_MEMBER(member, symbol, parameters) Result(*member) parameters;
  MLIRFUSE_CUDA_FUNCTIONS(MLIRFUSE_MEMBER)
#undef MLIRFUSE_MEMBER
};

// The driver's functions. Without a usable driver every function returns CUDA_ERROR_NOT_INITIALIZED, and
// `why_unavailable` returns the reason; it is null otherwise.
const Driver& driver();
const char* why_unavailable();

// This thread's first failure since the last `take_error`, which is the cause of later ones.
struct Error {
  Result code = kSuccess;
  const char* call = "";  // the driver function that failed
};

// Records a failure for this thread; returns whether `code` is a success.
bool check(Result code, const char* call);
bool error_pending();
Error take_error();
const char* error_name(Result code);
const char* error_text(Result code);

// Sets the calling thread's default device (mgpuSetDefaultDevice), whose primary context is made current where none is.
void set_default_device(int32_t device);
bool ensure_context();
// Returns the primary context of a device, retained once per process; null with the error recorded on failure.
Context primary_context(int32_t device);

// Makes the primary context of a device current in a scope, at the cost of one query where it already is.
class ContextScope {
 public:
  explicit ContextScope(int32_t device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  bool ok() const { return ok_; }

 private:
  bool ok_ = false;
  bool pushed_ = false;
};

}  // namespace mlirfuse::cuda

// Calls a driver function and records a failure: `MLIRFUSE_CUDA(launch, ...)` is true on success.
#define MLIRFUSE_CUDA(member, ...) \
  ::mlirfuse::cuda::check(::mlirfuse::cuda::driver().member(__VA_ARGS__), ::mlirfuse::cuda::symbol_##member)

namespace mlirfuse::cuda {
#define MLIRFUSE_SYMBOL(member, symbol, parameters) inline constexpr const char* symbol_##member = #symbol;
MLIRFUSE_CUDA_FUNCTIONS(MLIRFUSE_SYMBOL)
#undef MLIRFUSE_SYMBOL
}  // namespace mlirfuse::cuda
