/* Kernels on NVIDIA's GPUs, by the driver's API, which is opened when the first call needs it. */
#include <dlfcn.h>

typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;

enum { MOST_DEVICES = 16, CU_SHARED = 8, CU_LARGE_CLUSTERS = 14, CU_MAPPED = 3, CU_MAJOR = 75, CU_MINOR = 76 };

#define DRIVER(X)                                                                                               \
  X(init, "cuInit", (unsigned))                                                                                 \
  X(error, "cuGetErrorName", (int, const char **))                                                              \
  X(device, "cuDeviceGet", (int *, int))                                                                        \
  X(attribute, "cuDeviceGetAttribute", (int *, int, int))                                                       \
  X(retain, "cuDevicePrimaryCtxRetain", (CUcontext *, int))                                                     \
  X(push, "cuCtxPushCurrent_v2", (CUcontext))                                                                   \
  X(pop, "cuCtxPopCurrent_v2", (CUcontext *))                                                                   \
  X(load, "cuModuleLoadData", (CUmodule *, const void *))                                                       \
  X(get, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *))                                         \
  X(allowance, "cuFuncGetAttribute", (int *, int, CUfunction))                                                  \
  X(allow, "cuFuncSetAttribute", (CUfunction, int, int))                                                        \
  X(launch, "cuLaunchKernel", (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                               void *, void **, void **))                                                       \
  X(launch_early, "cuLaunchKernelEx", (const launch_config *, CUfunction, void **, void **))                    \
  X(allocate, "cuMemAllocAsync", (uint64_t *, size_t, void *))                                                  \
  X(release, "cuMemFreeAsync", (uint64_t, void *))                                                              \
  X(map, "cuMemHostRegister_v2", (void *, size_t, unsigned))

typedef struct {
  int id, padding;
  union {
    char bytes[64];
    int allowed;
  } value;
} launch_attribute;

typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream;
  launch_attribute *attributes;
  unsigned count;
} launch_config;

static struct {
#define MEMBER(name, symbol, parameters) int(*name) parameters;
  DRIVER(MEMBER)
#undef MEMBER
} cu;

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static const char *driver_problem;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static CUcontext contexts[MOST_DEVICES];
static int architectures[MOST_DEVICES];
static _Alignas(4096) int64_t bad_on_gpu[512];
static _Thread_local int cuda_status; /* the first failure of a call */

static void open_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    driver_problem = "there is no libcuda.so.1";
    return;
  }
#define OPEN_MEMBER(name, symbol, parameters)             \
  *(void **)&cu.name = dlsym(library, symbol);            \
  if (!cu.name) driver_problem = "the driver is too old: no " symbol;
  DRIVER(OPEN_MEMBER)
#undef OPEN_MEMBER
  if (!driver_problem && cu.init(0)) driver_problem = "cuInit fails";
}

static int note(int status) {
  if (status && !cuda_status) cuda_status = status;
  return status;
}

static int cuda_failed(void) {
  const char *name = "an unknown error";
  if (cu.error) cu.error(cuda_status, &name);
  return failed(MLIRFUSE_CUDA, "the CUDA driver reports %s", name);
}

/* The architecture of a device, 90 for sm_90; negative with the error noted where it cannot be used. */
static int architecture_of(int device) {
  pthread_once(&opened, open_driver);
  if (driver_problem) return -failed(MLIRFUSE_CUDA, "%s", driver_problem);
  if (device < 0 || device >= MOST_DEVICES) return -failed(MLIRFUSE_DEVICE, "no device %d", device);
  pthread_mutex_lock(&loading);
  if (!contexts[device]) {
    int handle, major, minor;
    CUcontext context;
    cuda_status = 0;
    if (!note(cu.device(&handle, device)) && !note(cu.attribute(&major, CU_MAJOR, handle)) &&
        !note(cu.attribute(&minor, CU_MINOR, handle)) && !note(cu.retain(&context, handle))) {
      architectures[device] = 10 * major + minor;
      contexts[device] = context;
    }
  }
  pthread_mutex_unlock(&loading);
  return contexts[device] ? architectures[device] : -cuda_failed();
}

typedef struct {
  const char *cubin, *ptx; /* cubin: NULL where there is none */
  int architecture;        /* of the cubin */
  int reports;             /* whether kernels check indices */
  const char *const *names;
  const char *large; /* for each kernel, whether its clusters are larger than all devices have them */
  int count;
  CUfunction *functions; /* by device and kernel */
} kernels;

/* The kernels on a device, whose context is current; NULL with the error noted. */
static CUfunction *kernels_on(kernels *k, int device) {
  static int mapped;
  CUfunction *found = k->functions + device * k->count;
  pthread_mutex_lock(&loading);
  if (k->reports && !mapped) mapped = !note(cu.map(bad_on_gpu, sizeof bad_on_gpu, CU_MAPPED));
  if (!found[0]) {
    CUmodule module = NULL;
    if (!k->cubin || k->architecture != architectures[device] || cu.load(&module, k->cubin))
      if (note(cu.load(&module, k->ptx))) module = NULL;
    for (int i = k->count - 1; module && i >= 0 && !cuda_status; --i) { /* the first last: it says that all are there */
      CUfunction function;
      if (note(cu.get(&function, module, k->names[i]))) break;
      if (k->large[i] && note(cu.allow(function, CU_LARGE_CLUSTERS, 1))) break;
      found[i] = function;
    }
  }
  pthread_mutex_unlock(&loading);
  return cuda_status ? NULL : found;
}

static int allow_shared(CUfunction function, int bytes) {
  int allowed = 0;
  if (bytes <= 0) return 1;
  if (note(cu.allowance(&allowed, CU_SHARED, function))) return 0;
  return bytes <= allowed || !note(cu.allow(function, CU_SHARED, bytes));
}

UNUSED static void launch_kernel(void *function, int64_t x, int64_t y, int64_t z, int64_t bx, int64_t by, int64_t bz,
                                 int32_t shared, void *stream, void **params, void **extra, size_t count) {
  (void)count;
  if (cuda_status || !allow_shared(function, shared)) return;
  note(cu.launch(function, (unsigned)x, (unsigned)y, (unsigned)z, (unsigned)bx, (unsigned)by, (unsigned)bz,
                 (unsigned)shared, stream, params, extra));
}

/* Blocks may start once all of the kernel before have: programmatic dependent launch. */
UNUSED static void launch_early(void *function, int64_t x, int64_t y, int64_t z, int64_t bx, int64_t by, int64_t bz,
                                int32_t shared, void *stream, void **params, void **extra, size_t count) {
  (void)count;
  if (cuda_status || !allow_shared(function, shared)) return;
  launch_attribute early = {.id = 6, .value.allowed = 1};
  const launch_config config = {{(unsigned)x, (unsigned)y, (unsigned)z}, {(unsigned)bx, (unsigned)by, (unsigned)bz},
                                (unsigned)shared, stream, &early, 1};
  note(cu.launch_early(&config, function, params, extra));
}

UNUSED static int launch_on_gpu(const void *code, void **pointers, int workspace_at, int64_t workspace,
                                const int64_t *ints, const mlirfuse_call *call) {
  void *stream = call ? call->stream : NULL;
  uint64_t memory = 0;
  if (workspace && note(cu.allocate(&memory, (size_t)workspace, stream))) return cuda_failed();
  pointers[workspace_at] = (void *)(uintptr_t)memory;
  ((launch_function)(uintptr_t)code)(pointers, ints, stream);
  if (memory) note(cu.release(memory, stream));
  return cuda_status ? cuda_failed() : MLIRFUSE_OK;
}

/* An index that an earlier call has met: calls are not waited for. */
static int check_earlier_index(void) {
  if (__atomic_load_n(bad_on_gpu, __ATOMIC_ACQUIRE) != 1) return MLIRFUSE_OK;
  __atomic_store_n(bad_on_gpu, 0, __ATOMIC_RELAXED);
  return failed(MLIRFUSE_INDEX, "index %lld of an earlier call is out of bounds for an axis of size %lld",
                (long long)bad_on_gpu[1], (long long)bad_on_gpu[3]);
}
