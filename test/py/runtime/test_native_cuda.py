"""The CUDA side of the runtime against a stand-in for the driver: device memory is host memory, launches are recorded
and one known kernel is carried out. Each test runs in a process of its own, as the driver is opened once a process."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
if not COMPILER:
    pytest.skip("needs a C compiler", allow_module_level=True)

FAKE_DRIVER = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t ptr;
static char failing[64]; static int failing_code;
static __thread void* current;
static int contexts[2];
int fake_switches, fake_launches, fake_syncs; unsigned fake_config[10]; void* fake_stream; int fake_live; int fake_async_frees;
static int dynamic_shared = 49152, function;
int fake_kept_bytes; char fake_kept[32764]; /* of the first parameter of the latest launch */

void fake_fail(const char* name, int code) { strcpy(failing, name); failing_code = code; }
#define ENTER if (strcmp(failing, __func__) == 0) { return failing_code; }

int cuInit(unsigned f) { const char* code = getenv("FAKE_INIT"); return code ? atoi(code) : 0; }
int cuDriverGetVersion(int* v) { *v = 13000; return 0; }
int cuGetErrorName(int c, const char** n) {
  *n = c == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : c == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : c == 218 ? "CUDA_ERROR_INVALID_PTX"
     : c == 100 ? "CUDA_ERROR_NO_DEVICE" : c == 500 ? "CUDA_ERROR_NOT_FOUND" : c == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : 0;
  return *n ? 0 : 1;
}
int cuGetErrorString(int c, const char** n) { *n = "what it means"; return 0; }
int cuDeviceGetCount(int* n) { *n = 2; return 0; }
int cuDeviceGet(int* d, int i) { *d = i; return i < 2 ? 0 : 101; }
int cuDeviceGetName(char* n, int l, int d) { snprintf(n, l, "Fake %d", d); return 0; }
/* FAKE_KERNELS: a device of sm_80 whose kernels have any names and do nothing, so that functions can be compiled for it. */
static int any_kernel(void) { return getenv("FAKE_KERNELS") != 0; }
int cuDeviceGetAttribute(int* v, int a, int d) {
  *v = a == 75 ? 9 : a == 76 ? 0 : a;
  if (any_kernel()) *v = a == 75 ? 8 : a == 76 ? 0 : a == 39 ? 2048 : a == 97 ? 163 << 10 : a == 38 ? 40 << 20 : 108;
  return 0;
}
int cuDeviceTotalMem_v2(size_t* b, int d) { *b = (size_t)80 << 30; return 0; }
int cuDevicePrimaryCtxRetain(void** c, int d) { *c = &contexts[d]; return 0; }
int cuCtxGetCurrent(void** c) { *c = current; return 0; }
int cuCtxSetCurrent(void* c) { current = c; return 0; }
int cuCtxPushCurrent_v2(void* c) { fake_switches++; current = c; return 0; }
int cuCtxPopCurrent_v2(void** c) { *c = current; current = &contexts[0]; return 0; }
int cuCtxSynchronize(void) { ENTER fake_syncs++; return 0; }
int cuModuleLoadDataEx(void** m, const void* image, unsigned n, int* options, void** values) {
  ENTER
  if (strncmp(image, "bad", 3) == 0) {
    for (unsigned i = 0; i < n; ++i) if (options[i] == 5) strcpy(values[i], "line 3: no such instruction");
    return 218;
  }
  *m = malloc(1); return current ? 0 : 201;
}
int cuModuleUnload(void* m) { free(m); return 0; }
int cuModuleGetFunction(void** f, void* m, const char* name) { *f = &function; return strcmp(name, "axpy") && !any_kernel() ? 500 : 0; }
int cuFuncGetAttribute(int* v, int a, void* f) { *v = a == 8 ? dynamic_shared : 10 + a; return 0; }
int cuFuncSetAttribute(void* f, int a, int v) { ENTER if (a == 8) dynamic_shared = v; return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* b, void* f, int t, size_t s) { *b = 2048 / t; return 0; }
static int launch(void** p, void* stream) {
  if (!current) return 201;
  fake_launches++; fake_stream = stream;
  if (p && fake_kept_bytes) memcpy(fake_kept, p[0], fake_kept_bytes);
  if (p && !any_kernel()) {
    float *x = *(float**)p[0], *y = *(float**)p[1], a = *(float*)p[2]; int64_t n = *(int64_t*)p[3];
    for (int64_t i = 0; i < n; ++i) y[i] = a * x[i] + 1;
  }
  return 0;
}
int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned smem,
                   void* s, void** p, void** e) {
  ENTER
  unsigned c[] = {gx, gy, gz, bx, by, bz, smem, 0, 0, 0}; memcpy(fake_config, c, sizeof c);
  return launch(p, s);
}
struct config { unsigned dims[7]; void* stream; struct { int id, pad; unsigned cluster[16]; }* attrs; unsigned count; };
int cuLaunchKernelEx(const struct config* c, void* f, void** p, void** e) {
  ENTER
  memcpy(fake_config, c->dims, sizeof c->dims);
  if (c->count != 1 || c->attrs->id != 4) return 1;
  memcpy(fake_config + 7, c->attrs->cluster, 12);
  return launch(p, c->stream);
}
int cuStreamCreate(void** s, unsigned f) { *s = malloc(1); return f == 1 ? 0 : 1; }
int cuStreamDestroy_v2(void* s) { free(s); return 0; }
int cuStreamSynchronize(void* s) { ENTER fake_syncs++; return 0; }
int cuStreamWaitEvent(void* s, void* e, unsigned f) { return 0; }
int cuEventCreate(void** e, unsigned f) { *e = malloc(1); return 0; }
int cuEventDestroy_v2(void* e) { free(e); return 0; }
int cuEventRecord(void* e, void* s) { ENTER return 0; }
int cuEventSynchronize(void* e) { return 0; }
int cuEventElapsedTime(float* ms, void* a, void* b) { *ms = 1.5f; return 0; }
int cuMemAlloc_v2(ptr* p, size_t n) { ENTER if (!current) return 201; *p = (ptr)malloc(n); fake_live++; return 0; }
int cuMemAllocAsync(ptr* p, size_t n, void* s) { ENTER *p = (ptr)malloc(n); fake_live++; return 0; }
int cuMemFree_v2(ptr p) { ENTER free((void*)p); fake_live--; return 0; }
int cuMemFreeAsync(ptr p, void* s) { free((void*)p); fake_live--; fake_async_frees++; return 0; }
int cuMemcpyAsync(ptr d, ptr s, size_t n, void* st) { ENTER memcpy((void*)d, (void*)s, n); return 0; }
int cuMemcpyHtoD_v2(ptr d, const void* s, size_t n) { memcpy((void*)d, s, n); return 0; }
int cuMemcpyDtoH_v2(void* d, ptr s, size_t n) { ENTER memcpy(d, (void*)s, n); return 0; }
int cuMemsetD32Async(ptr d, unsigned v, size_t n, void* s) { for (size_t i = 0; i < n; ++i) ((unsigned*)d)[i] = v; return 0; }
int cuMemsetD16Async(ptr d, unsigned short v, size_t n, void* s) {
  for (size_t i = 0; i < n; ++i) ((unsigned short*)d)[i] = v; return 0; }
int cuPointerGetAttribute(void* v, int a, ptr p) {
  *(int*)v = getenv("FAKE_DEVICE") ? atoi(getenv("FAKE_DEVICE")) : 0; return 0; }
/* cuMemHostRegister_v2, cuMemHostUnregister, cuMemAllocManaged and cuTensorMapEncodeTiled are missing: an old driver. */
"""

PRELUDE = """
import ctypes, gc, os, threading
import numpy as np
import ml_dtypes
from mlirfuse import _native
from mlirfuse.core.errors import CudaError
from mlirfuse.runtime.device_array import DeviceArray

fake = ctypes.CDLL(os.environ["MLIRFUSE_LIBCUDA"])
read = lambda name: ctypes.c_int.in_dll(fake, name).value
stream = lambda: ctypes.c_void_p.in_dll(fake, "fake_stream").value
config = lambda: list((ctypes.c_uint * 10).in_dll(fake, "fake_config"))
fail = lambda name, code=700: fake.fake_fail(name.encode(), code)
symbols = _native.symbols()

def mgpu(name, result, *types):
    return ctypes.CFUNCTYPE(result, *types)(symbols[name])

i64, ptr = ctypes.c_int64, ctypes.c_void_p
launch_kernel = mgpu("mgpuLaunchKernel", None, ptr, *[i64] * 6, ctypes.c_int32, ptr, ptr, ptr, ctypes.c_size_t)
launch_cluster = mgpu("mgpuLaunchClusterKernel", None, ptr, *[i64] * 9, ctypes.c_int32, ptr, ptr, ptr, ctypes.c_size_t)
LaunchType = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ptr), ctypes.POINTER(i64), ptr)

def params(*values):
    keep = list(values)
    return (ptr * len(keep))(*[ctypes.addressof(v) for v in keep]), keep

def axpy(pointers, ints, stream):
    alpha = ctypes.cast(ints, ctypes.POINTER(ctypes.c_double))[1]
    array, keep = params(ptr(pointers[0]), ptr(pointers[1]), ctypes.c_float(alpha), i64(ints[0]))
    launch_kernel(kernel, (ints[0] + 255) // 256, 1, 1, 256, 1, 1, 0, stream, array, None, 4)
    return 0

launch = LaunchType(axpy)

def dispatcher(address=ctypes.cast(launch, ptr).value, **fields):
    def miss(leaves):
        x = leaves[0]
        args = dict(
            ints=[x.size, 0], arg_slots=[0], scalars=[(1, 1, "f")], outputs=[("new", x.shape, None, np.dtype("f4"))],
            workspace=0, device=("cuda", "own", 0), result=None, keep=module,
        )
        args.update(fields)
        return _native.Record(address, **args)
    return _native.Dispatcher(miss)

def raises(name, function, *args):
    try:
        function(*args)
    except CudaError as error:
        assert error.name == name and name in str(error), (error.name, str(error))
        return str(error)
    raise AssertionError("nothing was raised")

if _native.cuda_available():
    module = _native.Module(b"fine", 0)
    kernel = module.function("axpy")
"""


@pytest.fixture(scope="module")
def fake_driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    source, library = folder / "fake.c", folder / "libcuda.so.1"
    source.write_text(FAKE_DRIVER)
    subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


@pytest.fixture
def run(fake_driver):
    def run_python(code, **environment):
        environment = {**os.environ, "MLIRFUSE_LIBCUDA": fake_driver, **environment}
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code)], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    return run_python


def test_no_driver():
    code = """
    import ctypes
    from mlirfuse import _native
    from mlirfuse.core.errors import CudaError
    assert not _native.cuda_available() and _native.cuda_device_count() == 0
    assert "could not be opened" in _native.cuda_error() and "/no/such/libcuda" in _native.cuda_error()
    for call in (lambda: _native.Module(b"", 0), lambda: _native.mem_alloc(4, 0), lambda: _native.synchronize(0)):
        try:
            call()
        except CudaError as error:
            assert error.name == "CUDA_ERROR_NOT_INITIALIZED" and "could not be opened" in str(error), error
        else:
            raise AssertionError
    assert ctypes.CFUNCTYPE(ctypes.c_void_p)(_native.symbols()["mgpuStreamCreate"])() is None
    assert _native.take_cuda_error()[0] == "CUDA_ERROR_NOT_INITIALIZED" and _native.take_cuda_error() is None

    import numpy as np
    import mlirfuse
    f, x = lambda x: np.exp(x) * 2, np.ones(5, "f4")
    try:
        mlirfuse.jit(f, target="cuda", fallback=False)(x)
    except mlirfuse.UnsupportedError as error:
        assert "no CUDA device" in str(error) and "/no/such/libcuda" in str(error), error
    else:
        raise AssertionError
    assert np.allclose(mlirfuse.jit(f)(x), f(x))
    assert ".visible .entry" in mlirfuse.jit(f, target="cuda:sm_90").lower(x).as_text("ptx")
    """
    environment = {**os.environ, "MLIRFUSE_LIBCUDA": "/no/such/libcuda.so.1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_driver_without_a_device(run):
    run(
        """
        assert not _native.cuda_available() and _native.cuda_device_count() == 0
        assert _native.cuda_error() == "cuInit failed with CUDA_ERROR_NO_DEVICE"
        """,
        FAKE_INIT="100",
    )


def test_after_a_fork(run):
    """CUDA's own state does not live through a fork: calls in the child say so instead of reaching the driver."""
    run(
        """
        import mlirfuse
        x = DeviceArray.from_numpy(np.ones((300, 40), "f4"))
        f = mlirfuse.jit(lambda x: x * 2, fallback=False)
        f(x)
        launched = read("fake_launches")
        child = os.fork()
        if child == 0:
            try:
                assert not _native.cuda_available() and "forked" in _native.cuda_error()
                for call in (lambda: f(x), lambda: mlirfuse.jit(lambda x: x + 1, fallback=False)(x),
                             lambda: _native.mem_alloc(4, 0)):
                    try:
                        call()
                    except (CudaError, mlirfuse.UnsupportedError) as error:
                        assert "forked" in str(error) and "spawn" in str(error), error
                    else:
                        raise AssertionError("it ran")
                assert read("fake_launches") == launched
                os._exit(0)
            except BaseException as error:
                print(type(error), error, flush=True)
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert f(x).shape == (300, 40) and read("fake_launches") == launched + 1
        """,
        FAKE_KERNELS="1",
    )


def test_device_and_modules(run):
    run("""
        assert _native.cuda_available() and _native.cuda_error() is None and _native.cuda_device_count() == 2
        a = _native.cuda_device_attributes(1)
        assert a["name"] == "Fake 1" and a["cc"] == (9, 0) and a["sm_count"] == 16 and a["total_memory"] == 80 << 30
        assert a["shared_per_block_optin"] == 97 and a["l2_bytes"] == 38 and a["driver_version"] == 13000
        assert "line 3: no such instruction" in raises("CUDA_ERROR_INVALID_PTX", _native.Module, b"bad", 0)
        assert "missing" in raises("CUDA_ERROR_NOT_FOUND", module.function, "missing")
        assert module.attributes(kernel)["registers"] == 14 and module.attributes(kernel)["ptx_version"] == 15
        assert module.occupancy(kernel, 256, 0) == 8
        handle = module.function("axpy", dynamic_smem=100_000, nonportable_cluster=True)
        fail("cuFuncSetAttribute")
        raises("CUDA_ERROR_ILLEGAL_ADDRESS", module.function, "axpy", 10)
        module.unload()
        try:
            module.function("axpy")
        except ValueError as error:
            assert "unloaded" in str(error)
        else:
            raise AssertionError
    """)


def test_memory_streams_and_events(run):
    run("""
        x = np.arange(10, dtype="f4")
        p = _native.mem_alloc(x.nbytes, 0)
        _native.copy_to_device(p, x)
        y = np.empty_like(x)
        _native.copy_from_device(y, p)
        assert (x == y).all()
        _native.mem_free(p)
        _native.mem_free(0)
        assert _native.mem_alloc(0, 0) == 0
        s, a, b = _native.stream_create(1), _native.event_create(), _native.event_create()
        _native.event_record(a, s); _native.event_record(b)
        _native.event_synchronize(b); _native.stream_synchronize(s)
        assert _native.event_elapsed_ms(a, b) == 1.5
        _native.event_destroy(a); _native.event_destroy(b); _native.stream_destroy(s)
        assert read("fake_syncs") == 1
        _native.synchronize(1)
        fail("cuMemAlloc_v2", 2)
        raises("CUDA_ERROR_OUT_OF_MEMORY", _native.mem_alloc, 10, 0)
        assert _native.take_cuda_error() is None
        # in a thread without a context
        fail("", 0)
        thread = threading.Thread(target=lambda: freed.append(_native.mem_free(_native.mem_alloc(4, 1))))
        freed = []
        thread.start(); thread.join()
        assert freed == [None]
    """)


def test_mgpu_abi(run):
    run("""
        alloc = mgpu("mgpuMemAlloc", ptr, ctypes.c_uint64, ptr, ctypes.c_bool)
        copy = mgpu("mgpuMemcpy", None, ptr, ptr, ctypes.c_size_t, ptr)
        fill32 = mgpu("mgpuMemset32", None, ptr, ctypes.c_uint, ctypes.c_size_t, ptr)
        fill16 = mgpu("mgpuMemset16", None, ptr, ctypes.c_ushort, ctypes.c_size_t, ptr)
        free = mgpu("mgpuMemFree", None, ptr, ptr)
        a, b = alloc(32, None, False), alloc(32, None, False)
        fill32(a, 7, 8, None); copy(b, a, 32, None); fill16(b, 1, 4, None)
        got = np.empty(8, "i4")
        _native.copy_from_device(got, b)
        assert got.tolist() == [65537] * 2 + [7] * 6
        free(a, None); free(b, None); free(None, None)

        s = mgpu("mgpuStreamCreate", ptr)()
        e = mgpu("mgpuEventCreate", ptr)()
        mgpu("mgpuEventRecord", None, ptr, ptr)(e, s)
        mgpu("mgpuStreamWaitEvent", None, ptr, ptr)(s, e)
        mgpu("mgpuEventSynchronize", None, ptr)(e)
        mgpu("mgpuStreamSynchronize", None, ptr)(s)
        mgpu("mgpuEventDestroy", None, ptr)(e)
        m = mgpu("mgpuModuleLoad", ptr, ctypes.c_char_p, ctypes.c_size_t)(b"fine", 4)
        assert mgpu("mgpuModuleLoadJIT", ptr, ctypes.c_char_p, ctypes.c_int)(b"fine", 3)
        f = mgpu("mgpuModuleGetFunction", ptr, ptr, ctypes.c_char_p)(m, b"axpy")
        launch_kernel(f, 1, 2, 3, 4, 5, 6, 7, s, None, None, 0)
        assert config() == [1, 2, 3, 4, 5, 6, 7, 0, 0, 0] and stream() == s
        launch_cluster(f, 2, 1, 1, 8, 2, 3, 4, 5, 6, 60000, None, None, None, 0)
        assert config() == [8, 2, 3, 4, 5, 6, 60000, 2, 1, 1]
        mgpu("mgpuModuleUnload", None, ptr)(m)
        mgpu("mgpuStreamDestroy", None, ptr)(s)
        mgpu("mgpuSetDefaultDevice", None, ctypes.c_int32)(1)
        assert _native.take_cuda_error() is None

        # the first failure is kept, with the call that failed; a function that the driver lacks is an error of its own
        fail("cuLaunchKernel")
        launch_kernel(f, 1, 1, 1, 1, 1, 1, 0, None, None, None, 0)
        mgpu("mgpuMemHostRegister", None, ptr, ctypes.c_uint64)(None, 4)
        assert _native.take_cuda_error() == ("CUDA_ERROR_ILLEGAL_ADDRESS", "cuLaunchKernel")
        mgpu("mgpuMemHostRegister", None, ptr, ctypes.c_uint64)(None, 4)
        assert _native.take_cuda_error() == ("CUDA_ERROR_NOT_SUPPORTED", "cuMemHostRegister_v2")
        encode = mgpu("mgpuTensorMapEncodeTiledMemref", ptr, i64, ptr, *[ctypes.c_int] * 5, ptr)
        assert encode(6, None, 7, 0, 0, 0, 0, None) is None
        assert _native.take_cuda_error()[1] == "cuTensorMapEncodeTiled"
    """)


def test_calls_on_device_arrays(run):
    run("""
        call = dispatcher(workspace=512)
        x = DeviceArray.from_numpy(np.arange(12, dtype="f4").reshape(3, 4))
        for alpha in (2.0, 3.0):
            y = call(x, alpha)
            assert isinstance(y, DeviceArray) and y.shape == (3, 4) and y.dtype == np.float32 and y.device == 0
            np.testing.assert_array_equal(y.numpy(), alpha * x.numpy() + 1)
        assert call.hits == 1 and read("fake_launches") == 2 and read("fake_async_frees") == 2
        # a 0-d array on the host beside CUDA arrays is a run-time scalar
        np.testing.assert_array_equal(call(x, np.array(5.0)).numpy(), 5 * x.numpy() + 1)
        call(x, np.array(6.0))
        assert call.hits == 2
        # the result says which stream writes it, and is launched on as an argument
        assert y.__cuda_array_interface__["stream"] == 1 and stream() is None
        s = _native.stream_create()
        z = DeviceArray(x.data_ptr, x.shape, x.dtype, None, 0, x, s)
        assert call(z, 2.0).stream == s and stream() == s
        # in another thread, which has no context
        done = []
        thread = threading.Thread(target=lambda: done.append(call(x, 2.0)))
        thread.start(); thread.join()
        np.testing.assert_array_equal(done[0].numpy(), 2 * x.numpy() + 1)
        live = read("fake_live")
        del y, done
        gc.collect()
        assert read("fake_live") == live - 2
    """)


def test_second_device(run):
    run(
        """
        _native.synchronize(0)
        x = DeviceArray(_native.mem_alloc(4, 1), (1,), "f4", device=1)
        before = read("fake_switches")
        y = dispatcher(device=("cuda", "own", 1))(x, 1.0)
        assert y.device == 1 and read("fake_switches") > before
        """,
        FAKE_DEVICE="1",
    )


def test_driver_errors_in_mid_run(run):
    run("""
        call = dispatcher()
        x = DeviceArray.from_numpy(np.zeros(4, "f4"))
        call(x, 1.0)
        fail("cuLaunchKernel")
        message = raises("CUDA_ERROR_ILLEGAL_ADDRESS", call, x, 1.0)
        assert "cuLaunchKernel" in message and "what it means" in message
        fail("cuMemAlloc_v2", 2)
        raises("CUDA_ERROR_OUT_OF_MEMORY", call, x, 1.0)
        fail("cuMemAllocAsync", 2)
        raises("CUDA_ERROR_OUT_OF_MEMORY", dispatcher(workspace=100), x, 1.0)
        fail("", 0)
        assert call(x, 2.0).numpy().tolist() == [1] * 4
    """)


def test_driver_errors_in_a_compiled_function(run):
    """Raised under the driver's name while a module is loaded, memory is taken and a kernel launched, with the fallback
    on or off; what comes after the failure runs."""
    run(
        """
        import warnings
        import mlirfuse
        warnings.simplefilter("error")
        failed = set()
        x = DeviceArray.from_numpy(np.ones((300, 40), "f4"))
        for fallback in (False, True):
            f = mlirfuse.jit(lambda x: np.tanh(x) * x.sum(0), fallback=fallback)
            for call in ("cuModuleLoadDataEx", "cuMemAlloc_v2", "cuMemAllocAsync", "cuLaunchKernel", "cuLaunchKernelEx"):
                fail(call, 2)
                try:
                    f(x)
                except CudaError as error:
                    assert error.name == "CUDA_ERROR_OUT_OF_MEMORY" and "what it means" in str(error), error
                    failed.add(call)
                fail("", 0)
            before = read("fake_launches")
            y = f(x)
            assert y.shape == (300, 40) and y.dtype == np.float32 and read("fake_launches") > before
        assert failed >= {"cuModuleLoadDataEx", "cuMemAlloc_v2", "cuLaunchKernel"}, failed
        """.replace("import warnings", "failed = set()\n        import warnings", 1),
        FAKE_KERNELS="1",
    )


def test_one_launch_for_many_tensors(run):
    """A call of a function that does the same for each of its tensors is one launch, whose table has their addresses
    and sizes; new sizes compile nothing, nor do they launch more."""
    run(
        """
        import mlirfuse

        def step(*tensors):
            half = len(tensors) // 2
            return tuple(p - 0.5 * g for p, g in zip(tensors[:half], tensors[half:]))

        f = mlirfuse.jit(step, fallback=False)
        kept = ctypes.c_int.in_dll(fake, "fake_kept_bytes")
        seen = set()
        for add in (0, 8, 24, 0):
            for half in (9, 9, 70) if add else (9,):
                shapes = [(16 + add + 8 * k, 4 + k) if k % 2 else (16 + add + 8 * k,) for k in range(half)]
                given = [DeviceArray.from_numpy(np.ones(shape, "f4")) for shape in shapes * 2]
                padded = 1 << (half - 1).bit_length()
                kept.value = 8 * (padded + 4 * half)
                before, compiled = read("fake_launches"), mlirfuse.counters.compiled_programs
                results = f(*given)
                assert read("fake_launches") == before + 1, (add, half)
                assert half not in seen or mlirfuse.counters.compiled_programs == compiled
                seen.add(half)
                table = np.frombuffer((ctypes.c_char * kept.value).in_dll(fake, "fake_kept"), np.int64)
                words = table[padded:].reshape(half, 4).tolist()
                address = lambda x: x.__cuda_array_interface__["data"][0]
                for k, (p, g, made) in enumerate(zip(given, given[half:], results)):
                    assert made.shape == shapes[k]
                    assert sorted(words[k]) == sorted([address(p), address(g), address(made), p.size]), k
                blocks = np.diff([*table[:half], config()[0]]).tolist()
                tiles = [config()[3] * lanes for lanes in (1, 4)]
                assert any(blocks == [-(-p.size // tile) for p in given[:half]] for tile in tiles), blocks
                assert table[0] == 0 and (table[half:padded] == 2**63 - 1).all()
        """,
        FAKE_KERNELS="1",
    )


def test_first_call_of_a_thread_that_outlives_the_main_one(run):
    """The interpreter then waits for it, and code can still be compiled and loaded."""
    run(
        """
        import mlirfuse
        x = DeviceArray.from_numpy(np.ones((300, 40), "f4"))

        def late():
            threading.main_thread().join()
            try:
                assert mlirfuse.jit(lambda x: x * 3 + 1, fallback=False)(x).shape == (300, 40) and read("fake_launches") == 1
            except BaseException as error:
                print(error, flush=True)
                os._exit(1)

        threading.Thread(target=late).start()
        """,
        FAKE_KERNELS="1",
    )


def test_foreign_arrays(run):
    run("""
        class Foreign:
            def __init__(self, array, **extra):
                self.array, self.dtype, self.size, self.shape = array, array.dtype, array.size, array.shape
                self.__class__.__cuda_array_interface__ = property(Foreign.describe)
                self.extra = extra
            def describe(self):
                a = self.array
                return {"shape": a.shape, "typestr": a.dtype.str, "data": (a.ctypes.data, False), "version": 3,
                        "strides": None if a.flags.c_contiguous else a.strides, **self.extra}

        call = dispatcher()
        x = np.arange(6, dtype="f4")
        Foreign(x)
        np.testing.assert_array_equal(call(Foreign(x), 2.0).numpy(), 2 * x + 1)
        call(Foreign(x, stream=2), 2.0)
        assert stream() == 2 and call.hits == 1
        call(Foreign(x[::2]), 2.0)
        assert call.misses == 2
        for bad in (dict(shape=3), dict(data=None), dict(strides=(1, 2)), dict(typestr="<U4"), dict(data=("a", False))):
            try:
                call(Foreign(x, **bad), 2.0)
            except TypeError:
                pass
            else:
                raise AssertionError(bad)
        b = np.ones(3, ml_dtypes.bfloat16)
        copy = dispatcher(outputs=[("new", (3,), None, b.dtype)], scalars=[])
        assert copy(Foreign(b)).dtype == b.dtype

        class ByCapsule:
            def __init__(self, array):
                self.array, self.size, self.shape = array, array.size, array.shape
            def __dlpack__(self, *, stream):
                assert stream == 1
                return self.array.__dlpack__(stream=stream)
            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

        d = DeviceArray.from_numpy(x)
        for _ in range(3):
            np.testing.assert_array_equal(call(ByCapsule(d), 2.0).numpy(), 2 * x + 1)
        from mlirfuse.runtime import device_array
        gc.collect()
        assert not device_array._exported
    """)


def test_device_array(run):
    run("""
        a = np.arange(24, dtype="f4").reshape(4, 6)
        d = DeviceArray.from_numpy(a.T)
        assert d.strides == (16, 4) and d.ndim == 2 and d.size == 24 and len(d) == 6
        np.testing.assert_array_equal(d.numpy(), a.T)
        np.testing.assert_array_equal(np.asarray(d), a.T)
        back = DeviceArray(d.data_ptr + 20 * 4, (3, 2), "f4", (-16, 4), 0, d)
        np.testing.assert_array_equal(back.numpy(), a.T[5:2:-1, :2])
        assert DeviceArray.from_numpy(np.empty((0, 3))).numpy().shape == (0, 3)
        assert DeviceArray.from_numpy(np.float64(3)).numpy() == 3
        h = DeviceArray.from_numpy(np.ones(3, ml_dtypes.bfloat16))
        assert h.numpy().dtype == ml_dtypes.bfloat16 and h.numpy().sum() == 3
        view = dispatcher(0, outputs=[("view", ("arg", 0), (2,), (6,), 8, np.dtype("f4"))])(d, 1.0)
        assert view.numpy().tolist() == [a.T.ravel()[2], a.T.ravel()[8]]
        capsule = d.__dlpack__()
        del capsule
    """)
