// The ABI of MLIR's CUDA runtime (`mgpu*`), over the driver table of cuda_driver.h. Unlike upstream's, a failure is
// kept in a thread-local state (see `mlirfuse_take_cuda_error`) instead of printed, the context that is current in the
// calling thread is respected, and no call synchronizes unless its name says so.
#include "cuda_runtime_wrappers.h"

#include <cstddef>
#include <cstdint>

#include "cuda_driver.h"

using namespace mlirfuse;

#define MLIRFUSE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

cuda::DevicePtr device_pointer(void* pointer) { return reinterpret_cast<cuda::DevicePtr>(pointer); }

// A kernel that uses more dynamic shared memory than the default limit needs its limit raised before. The query is a
// read of host memory, far cheaper than setting the limit at every launch.
bool allow_dynamic_shared(cuda::Function function, int32_t bytes) {
  if (bytes <= 0) return true;
  int allowed = 0;
  if (!MLIRFUSE_CUDA(function_get, &allowed, cuda::kFuncAttributeMaxDynamicShared, function)) return false;
  return bytes <= allowed || MLIRFUSE_CUDA(function_set, function, cuda::kFuncAttributeMaxDynamicShared, bytes);
}

struct Extents {
  intptr_t x, y, z;
};

// Launches a kernel with one attribute.
void launch_with(cuda::LaunchAttribute* attribute, cuda::Function function, Extents grid, Extents block,
                 int32_t shared_bytes, cuda::Stream stream, void** params, void** extra) {
  if (!cuda::ensure_context() || !allow_dynamic_shared(function, shared_bytes)) return;
  const cuda::LaunchConfig config = {
      {static_cast<uint32_t>(grid.x), static_cast<uint32_t>(grid.y), static_cast<uint32_t>(grid.z)},
      {static_cast<uint32_t>(block.x), static_cast<uint32_t>(block.y), static_cast<uint32_t>(block.z)},
      static_cast<uint32_t>(shared_bytes),
      stream,
      attribute,
      1};
  (void)MLIRFUSE_CUDA(launch_ex, &config, function, params, extra);
}

// What `memref` lowers to: two pointers and an offset, then `rank` sizes and `rank` strides.
struct MemRef {
  char* allocated;
  char* aligned;
  int64_t offset;
  int64_t sizes_and_strides[1];
};

char* data_of(const MemRef* memref, int64_t element_bytes) { return memref->aligned + memref->offset * element_bytes; }

}  // namespace

// Reads and clears the calling thread's error: its code (0 for none), its CUDA name and the call that failed.
MLIRFUSE_EXPORT int32_t mlirfuse_take_cuda_error(const char** name, const char** call) {
  const cuda::Error error = cuda::take_error();
  if (name) *name = error.code ? cuda::error_name(error.code) : "CUDA_SUCCESS";
  if (call) *call = error.call;
  return error.code;
}

MLIRFUSE_EXPORT cuda::Module mgpuModuleLoad(void* data, size_t /*bytes*/) {
  cuda::Module module = nullptr;
  if (cuda::ensure_context()) (void)MLIRFUSE_CUDA(module_load, &module, data, 0, nullptr, nullptr);
  return module;
}

MLIRFUSE_EXPORT cuda::Module mgpuModuleLoadJIT(void* data, int optimization_level) {
  cuda::Module module = nullptr;
  int options[] = {cuda::kJitOptimizationLevel};
  void* values[] = {reinterpret_cast<void*>(static_cast<intptr_t>(optimization_level))};
  if (cuda::ensure_context()) (void)MLIRFUSE_CUDA(module_load, &module, data, 1, options, values);
  return module;
}

MLIRFUSE_EXPORT void mgpuModuleUnload(cuda::Module module) { (void)MLIRFUSE_CUDA(module_unload, module); }

MLIRFUSE_EXPORT cuda::Function mgpuModuleGetFunction(cuda::Module module, const char* name) {
  cuda::Function function = nullptr;
  (void)MLIRFUSE_CUDA(module_function, &function, module, name);
  return function;
}

MLIRFUSE_EXPORT void mgpuLaunchKernel(cuda::Function function, intptr_t grid_x, intptr_t grid_y, intptr_t grid_z,
                                      intptr_t block_x, intptr_t block_y, intptr_t block_z, int32_t shared_bytes,
                                      cuda::Stream stream, void** params, void** extra, size_t /*params_count*/) {
  if (!cuda::ensure_context() || !allow_dynamic_shared(function, shared_bytes)) return;
  (void)MLIRFUSE_CUDA(launch, function, static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y),
                      static_cast<unsigned>(grid_z), static_cast<unsigned>(block_x), static_cast<unsigned>(block_y),
                      static_cast<unsigned>(block_z), static_cast<unsigned>(shared_bytes), stream, params, extra);
}

MLIRFUSE_EXPORT void mgpuLaunchClusterKernel(cuda::Function function, intptr_t cluster_x, intptr_t cluster_y,
                                             intptr_t cluster_z, intptr_t grid_x, intptr_t grid_y, intptr_t grid_z,
                                             intptr_t block_x, intptr_t block_y, intptr_t block_z, int32_t shared_bytes,
                                             cuda::Stream stream, void** params, void** extra,
                                             size_t /*params_count*/) {
  cuda::LaunchAttribute cluster = {};
  cluster.id = cuda::kLaunchAttributeClusterDimension;
  cluster.value.cluster[0] = static_cast<uint32_t>(cluster_x);
  cluster.value.cluster[1] = static_cast<uint32_t>(cluster_y);
  cluster.value.cluster[2] = static_cast<uint32_t>(cluster_z);
  launch_with(&cluster, function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, params,
              extra);
}

// Like mgpuLaunchKernel, but blocks may start once all blocks of the preceding kernel on the stream have started:
// programmatic dependent launch. A kernel that needs the preceding one's results waits for its end itself. For sm_90
// and later, between kernels of one call only.
MLIRFUSE_EXPORT void mlirfuse_launch_early(cuda::Function function, intptr_t grid_x, intptr_t grid_y, intptr_t grid_z,
                                           intptr_t block_x, intptr_t block_y, intptr_t block_z, int32_t shared_bytes,
                                           cuda::Stream stream, void** params, void** extra, size_t /*params_count*/) {
  cuda::LaunchAttribute early = {};
  early.id = cuda::kLaunchAttributeProgrammaticStreamSerialization;
  early.value.allowed = 1;
  launch_with(&early, function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, params,
              extra);
}

MLIRFUSE_EXPORT cuda::Stream mgpuStreamCreate() {
  cuda::Stream stream = nullptr;
  if (cuda::ensure_context()) (void)MLIRFUSE_CUDA(stream_create, &stream, cuda::kStreamNonBlocking);
  return stream;
}

MLIRFUSE_EXPORT void mgpuStreamDestroy(cuda::Stream stream) { (void)MLIRFUSE_CUDA(stream_destroy, stream); }

MLIRFUSE_EXPORT void mgpuStreamSynchronize(cuda::Stream stream) {
  if (cuda::ensure_context()) (void)MLIRFUSE_CUDA(stream_synchronize, stream);
}

MLIRFUSE_EXPORT void mgpuStreamWaitEvent(cuda::Stream stream, cuda::Event event) {
  if (cuda::ensure_context()) (void)MLIRFUSE_CUDA(stream_wait_event, stream, event, 0);
}

MLIRFUSE_EXPORT cuda::Event mgpuEventCreate() {
  cuda::Event event = nullptr;
  if (cuda::ensure_context()) (void)MLIRFUSE_CUDA(event_create, &event, cuda::kEventDisableTiming);
  return event;
}

MLIRFUSE_EXPORT void mgpuEventDestroy(cuda::Event event) { (void)MLIRFUSE_CUDA(event_destroy, event); }

MLIRFUSE_EXPORT void mgpuEventSynchronize(cuda::Event event) { (void)MLIRFUSE_CUDA(event_synchronize, event); }

MLIRFUSE_EXPORT void mgpuEventRecord(cuda::Event event, cuda::Stream stream) {
  if (cuda::ensure_context()) (void)MLIRFUSE_CUDA(event_record, event, stream);
}

MLIRFUSE_EXPORT void* mgpuMemAlloc(uint64_t bytes, cuda::Stream /*stream*/, bool host_shared) {
  cuda::DevicePtr pointer = 0;
  if (!bytes || !cuda::ensure_context()) return nullptr;
  if (host_shared)
    (void)MLIRFUSE_CUDA(mem_alloc_managed, &pointer, bytes, cuda::kMemAttachGlobal);
  else
    (void)MLIRFUSE_CUDA(mem_alloc, &pointer, bytes);
  return reinterpret_cast<void*>(pointer);
}

MLIRFUSE_EXPORT void mgpuMemFree(void* pointer, cuda::Stream /*stream*/) {
  if (pointer && cuda::ensure_context()) (void)MLIRFUSE_CUDA(mem_free, device_pointer(pointer));
}

MLIRFUSE_EXPORT void mgpuMemcpy(void* target, void* source, size_t bytes, cuda::Stream stream) {
  if (cuda::ensure_context())
    (void)MLIRFUSE_CUDA(memcpy_async, device_pointer(target), device_pointer(source), bytes, stream);
}

MLIRFUSE_EXPORT void mgpuMemset32(void* target, unsigned value, size_t count, cuda::Stream stream) {
  if (cuda::ensure_context()) (void)MLIRFUSE_CUDA(memset32_async, device_pointer(target), value, count, stream);
}

MLIRFUSE_EXPORT void mgpuMemset16(void* target, unsigned short value, size_t count, cuda::Stream stream) {
  if (cuda::ensure_context()) (void)MLIRFUSE_CUDA(memset16_async, device_pointer(target), value, count, stream);
}

MLIRFUSE_EXPORT void mgpuMemHostRegister(void* pointer, uint64_t bytes) {
  if (cuda::ensure_context()) (void)MLIRFUSE_CUDA(host_register, pointer, bytes, 0);
}

MLIRFUSE_EXPORT void mgpuMemHostUnregister(void* pointer) {
  if (cuda::ensure_context()) (void)MLIRFUSE_CUDA(host_unregister, pointer);
}

MLIRFUSE_EXPORT void mgpuMemHostRegisterMemRef(int64_t rank, MemRef* memref, int64_t element_bytes) {
  uint64_t bytes = static_cast<uint64_t>(element_bytes);
  for (int64_t i = 0; i < rank; ++i) bytes *= static_cast<uint64_t>(memref->sizes_and_strides[i]);
  mgpuMemHostRegister(data_of(memref, element_bytes), bytes);
}

MLIRFUSE_EXPORT void mgpuMemHostUnregisterMemRef(int64_t /*rank*/, MemRef* memref, int64_t element_bytes) {
  mgpuMemHostUnregister(data_of(memref, element_bytes));
}

MLIRFUSE_EXPORT void mgpuSetDefaultDevice(int32_t device) { cuda::set_default_device(device); }

MLIRFUSE_EXPORT void mgpuTensorMapEncodeTiled(cuda::TensorMap* map, int dtype, uint32_t rank, void* address,
                                              const uint64_t* dims, const uint64_t* strides, const uint32_t* box,
                                              const uint32_t* element_strides, int interleave, int swizzle,
                                              int l2_promotion, int oob_fill) {
  if (cuda::ensure_context())
    (void)MLIRFUSE_CUDA(tensor_map_tiled, map, dtype, rank, address, dims, strides, box, element_strides, interleave,
                        swizzle, l2_promotion, oob_fill);
}

// Encodes a tensor map for a ranked memref and returns its address in device memory. TMA counts dimensions from the
// innermost.
MLIRFUSE_EXPORT void* mgpuTensorMapEncodeTiledMemref(int64_t rank, void* descriptor, int dtype, int interleave,
                                                     int swizzle, int l2_promotion, int oob_fill, int64_t* box_dims) {
  constexpr int64_t kMaxRank = 5;
  // By CUtensorMapDataType: u8 u16 u32 i32 u64 i64 f16 f32 f64 bf16 f32-ftz tf32 tf32-ftz.
  constexpr uint64_t kElementBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  constexpr int kTypes = sizeof(kElementBytes) / sizeof(kElementBytes[0]);
  if (rank < 1 || rank > kMaxRank || dtype < 0 || dtype >= kTypes) {
    cuda::check(1, cuda::symbol_tensor_map_tiled);  // CUDA_ERROR_INVALID_VALUE
    return nullptr;
  }
  const MemRef* memref = static_cast<const MemRef*>(descriptor);
  const int64_t* sizes = memref->sizes_and_strides;
  const int64_t* element_counts = sizes + rank;
  uint64_t dims[kMaxRank], strides[kMaxRank] = {};
  uint32_t box[kMaxRank], element_strides[kMaxRank];
  for (int64_t i = 0; i < rank; ++i) {
    dims[i] = static_cast<uint64_t>(sizes[rank - 1 - i]);
    box[i] = static_cast<uint32_t>(box_dims[rank - 1 - i]);
    element_strides[i] = 1;
    if (i + 1 < rank) strides[i] = static_cast<uint64_t>(element_counts[rank - 2 - i]) * kElementBytes[dtype];
  }
  cuda::TensorMap map;
  char* address = data_of(memref, static_cast<int64_t>(kElementBytes[dtype]));
  cuda::DevicePtr copy = 0;
  if (!cuda::ensure_context() ||
      !MLIRFUSE_CUDA(tensor_map_tiled, &map, dtype, static_cast<uint32_t>(rank), address, dims, strides, box,
                     element_strides, interleave, swizzle, l2_promotion, oob_fill) ||
      !MLIRFUSE_CUDA(mem_alloc, &copy, sizeof map) || !MLIRFUSE_CUDA(memcpy_to_device, copy, &map, sizeof map))
    return nullptr;
  return reinterpret_cast<void*>(copy);
}

#define MLIRFUSE_SYMBOL(name) {#name, reinterpret_cast<void*>(&name)}
const Symbol mlirfuse::cuda_runtime_symbols[] = {
    MLIRFUSE_SYMBOL(mlirfuse_take_cuda_error),
    MLIRFUSE_SYMBOL(mgpuModuleLoad),
    MLIRFUSE_SYMBOL(mgpuModuleLoadJIT),
    MLIRFUSE_SYMBOL(mgpuModuleUnload),
    MLIRFUSE_SYMBOL(mgpuModuleGetFunction),
    MLIRFUSE_SYMBOL(mgpuLaunchKernel),
    MLIRFUSE_SYMBOL(mgpuLaunchClusterKernel),
    MLIRFUSE_SYMBOL(mlirfuse_launch_early),
    MLIRFUSE_SYMBOL(mgpuStreamCreate),
    MLIRFUSE_SYMBOL(mgpuStreamDestroy),
    MLIRFUSE_SYMBOL(mgpuStreamSynchronize),
    MLIRFUSE_SYMBOL(mgpuStreamWaitEvent),
    MLIRFUSE_SYMBOL(mgpuEventCreate),
    MLIRFUSE_SYMBOL(mgpuEventDestroy),
    MLIRFUSE_SYMBOL(mgpuEventSynchronize),
    MLIRFUSE_SYMBOL(mgpuEventRecord),
    MLIRFUSE_SYMBOL(mgpuMemAlloc),
    MLIRFUSE_SYMBOL(mgpuMemFree),
    MLIRFUSE_SYMBOL(mgpuMemcpy),
    MLIRFUSE_SYMBOL(mgpuMemset32),
    MLIRFUSE_SYMBOL(mgpuMemset16),
    MLIRFUSE_SYMBOL(mgpuMemHostRegister),
    MLIRFUSE_SYMBOL(mgpuMemHostUnregister),
    MLIRFUSE_SYMBOL(mgpuMemHostRegisterMemRef),
    MLIRFUSE_SYMBOL(mgpuMemHostUnregisterMemRef),
    MLIRFUSE_SYMBOL(mgpuSetDefaultDevice),
    MLIRFUSE_SYMBOL(mgpuTensorMapEncodeTiled),
    MLIRFUSE_SYMBOL(mgpuTensorMapEncodeTiledMemref),
    {nullptr, nullptr},
};
#undef MLIRFUSE_SYMBOL
