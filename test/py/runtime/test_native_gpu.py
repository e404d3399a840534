"""The runtime on a real GPU: a hand-written kernel launched on torch, CuPy and our own arrays."""

import ctypes
import gc
import threading

import numpy as np
import pytest

from mlirfuse import _native
from mlirfuse.core.errors import CudaError
from mlirfuse.runtime.device_array import DeviceArray

if not _native.cuda_available():
    pytest.skip(f"no GPU: {_native.cuda_error()}", allow_module_level=True)

# y[i] = a * x[i] + 1
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry axpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u64 n)
{
  .reg .pred %p;
  .reg .b32 %r<4>;
  .reg .f32 %f<4>;
  .reg .b64 %d<8>;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %d0, %r0, %r1;
  cvt.u64.u32 %d1, %r2;
  add.s64 %d0, %d0, %d1;
  ld.param.u64 %d2, [n];
  setp.ge.s64 %p, %d0, %d2;
  @%p bra done;
  ld.param.u64 %d3, [x];
  ld.param.u64 %d4, [y];
  ld.param.f32 %f0, [a];
  shl.b64 %d5, %d0, 2;
  add.s64 %d3, %d3, %d5;
  add.s64 %d4, %d4, %d5;
  ld.global.f32 %f1, [%d3];
  fma.rn.f32 %f2, %f0, %f1, 0f3F800000;
  st.global.f32 [%d4], %f2;
done:
  ret;
}
"""

Pointer, Int = ctypes.c_void_p, ctypes.c_int64
LaunchType = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Pointer), ctypes.POINTER(Int), Pointer)
symbols = _native.symbols()
launch_kernel = ctypes.CFUNCTYPE(None, Pointer, *[Int] * 6, ctypes.c_int32, Pointer, Pointer, Pointer, ctypes.c_size_t)(
    symbols["mgpuLaunchKernel"]
)
launch_cluster = ctypes.CFUNCTYPE(
    None, Pointer, *[Int] * 9, ctypes.c_int32, Pointer, Pointer, Pointer, ctypes.c_size_t
)(symbols["mgpuLaunchClusterKernel"])


@pytest.fixture(scope="module")
def module():
    return _native.Module(PTX, 0)


@pytest.fixture(scope="module")
def launch(module):
    kernel = module.function("axpy")

    def axpy(pointers, ints, stream):
        alpha = ctypes.cast(ints, ctypes.POINTER(ctypes.c_double))[1]
        values = Pointer(pointers[0]), Pointer(pointers[1]), ctypes.c_float(alpha), Int(ints[0])
        array = (Pointer * 4)(*map(ctypes.addressof, values))
        launch_kernel(kernel, (ints[0] + 255) // 256, 1, 1, 256, 1, 1, 0, stream, array, None, 4)
        return 0

    return LaunchType(axpy)


F4 = np.dtype("f4")


def dispatcher(launch, device, dtype=F4, **fields):
    def miss(leaves):
        x = leaves[0]
        count = x.numel() if hasattr(x, "numel") else x.size
        args = dict(
            ints=[count, 0],
            arg_slots=[0],
            scalars=[(1, 1, "f")],
            outputs=[("new", tuple(x.shape), None, dtype)],
            workspace=1 << 10,
            device=device,
            result=None,
            keep=launch,
        )
        args.update(fields)
        return _native.Record(ctypes.cast(launch, Pointer).value, **args)

    return _native.Dispatcher(miss)


def test_device_and_kernel_attributes(module):
    attributes = _native.cuda_device_attributes(0)
    assert attributes["sm_count"] > 0 and attributes["warp_size"] == 32 and attributes["cc"] >= (7, 0)
    assert attributes["total_memory"] > 1 << 30 and attributes["l2_bytes"] > 0
    kernel = module.function("axpy", dynamic_smem=64 * 1024)
    assert module.attributes(kernel)["registers"] > 0
    assert module.occupancy(kernel, 256, 0) > module.occupancy(kernel, 256, 64 * 1024) > 0


def test_errors_carry_their_cuda_name(module, launch):
    with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_PTX") as caught:
        _native.Module(PTX.replace(b"ret;", b"nonsense;"), 0)
    assert caught.value.name == "CUDA_ERROR_INVALID_PTX" and "nonsense" in str(caught.value)
    with pytest.raises(CudaError) as caught:
        module.function("missing")
    assert caught.value.name == "CUDA_ERROR_NOT_FOUND"
    with pytest.raises(CudaError) as caught:
        _native.mem_alloc(1 << 45, 0)
    assert caught.value.name == "CUDA_ERROR_OUT_OF_MEMORY"
    launch_kernel(module.function("axpy"), 1, 1, 1, 4096, 1, 1, 0, None, None, None, 0)
    assert _native.take_cuda_error() == ("CUDA_ERROR_INVALID_VALUE", "cuLaunchKernel")
    x = DeviceArray.from_numpy(np.ones(4, "f4"))
    assert dispatcher(launch, ("cuda", "own", 0))(x, 2.0).numpy().tolist() == [3] * 4  # and all goes on


def test_cluster_launch(module):
    if _native.cuda_device_attributes(0)["cc"] < (9, 0):
        pytest.skip("clusters need sm_90")
    kernel = module.function("axpy", nonportable_cluster=True)
    x = DeviceArray.from_numpy(np.arange(4096, dtype="f4"))
    y = DeviceArray.from_numpy(np.zeros(4096, "f4"))
    for cluster in (1, 2, 8, 16):
        values = Pointer(x.data_ptr), Pointer(y.data_ptr), ctypes.c_float(cluster), Int(4096)
        array = (Pointer * 4)(*map(ctypes.addressof, values))
        launch_cluster(kernel, cluster, 1, 1, 16, 1, 1, 256, 1, 1, 0, None, array, None, 4)
        assert _native.take_cuda_error() is None
        np.testing.assert_array_equal(y.numpy(), cluster * x.numpy() + 1)


def test_own_arrays_and_threads(launch):
    call = dispatcher(launch, ("cuda", "own", 0))
    x = np.arange(1000, dtype="f4").reshape(10, 100)
    d = DeviceArray.from_numpy(x)
    results = [None] * 8

    def work(i):
        for _ in range(20):
            results[i] = call(d, float(i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result.numpy(), i * x + 1)
    start, end = _native.event_create(), _native.event_create()
    _native.event_record(start)
    call(d, 1.0)
    _native.event_record(end)
    _native.event_synchronize(end)
    assert 0 < _native.event_elapsed_ms(start, end) < 1000


class TestTorch:
    torch = None

    @pytest.fixture(autouse=True)
    def need_torch(self):
        self.torch = pytest.importorskip("torch")
        if not self.torch.cuda.is_available() or not hasattr(self.torch.Tensor, "__dlpack_c_exchange_api__"):
            pytest.skip("needs a torch with CUDA and the DLPack exchange API")

    def test_default_and_other_streams(self, launch):
        torch = self.torch
        call = dispatcher(launch, ("cuda", "torch", 0), (2, 32))
        x = torch.rand(100, 333, device="cuda")
        assert torch.equal(call(x, 2.0), 2 * x + 1)
        assert torch.equal(call(x, torch.tensor(2.0)), 2 * x + 1)  # a 0-d tensor on the host
        for _ in range(50):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(1_000_000)
                y = torch.rand(1000, device="cuda")
                z = call(
                    y, 4.0
                )  # a power of two: the kernel's fused multiply-add rounds once, as torch's two kernels then do
                assert torch.equal(z, 4 * y + 1)

    def test_graph_capture(self, launch):
        torch = self.torch
        call = dispatcher(launch, ("cuda", "torch", 0), (2, 32))
        x = torch.zeros(1000, device="cuda")
        call(x, 2.0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = call(call(x, 2.0), 3.0)
        for value in range(3):
            x.fill_(value)
            graph.replay()
            assert torch.equal(y, 3 * (2 * x + 1) + 1)

    def test_layouts_views_and_memory(self, launch):
        torch = self.torch
        x = torch.rand(30, 40, device="cuda")
        outputs = [("new", (30, 40), (1, 30), (2, 32)), ("view", ("arg", 0), (40, 30), (1, 40), 0, (2, 32)), ("arg", 0)]
        permuted, transposed, same = dispatcher(launch, ("cuda", "torch", 0), outputs=outputs, result="tuple")(x, 1.0)
        assert permuted.stride() == (1, 30) and torch.equal(transposed, x.T) and same is x
        assert torch.equal(permuted.T.flatten(), x.flatten() + 1)
        call = dispatcher(launch, ("cuda", "torch", 0), (2, 32), workspace=1 << 24)
        call(x, 1.0)
        gc.collect()
        before = torch.cuda.memory_allocated()
        for _ in range(100):
            call(x, 1.0)
        assert torch.cuda.memory_allocated() == before

    def test_new_thread(self, launch):
        torch = self.torch
        call = dispatcher(launch, ("cuda", "torch", 0), (2, 32))
        x = torch.rand(1000, device="cuda")
        results = []
        thread = threading.Thread(target=lambda: results.append(call(x, 2.0)))
        thread.start()
        thread.join()
        assert torch.equal(results[0], 2 * x + 1)

    def test_takes_our_arrays_over(self, launch):
        torch = self.torch
        x = np.arange(12, dtype="f4").reshape(3, 4)
        d = DeviceArray.from_numpy(x)
        t = torch.from_dlpack(d)
        assert t.data_ptr() == d.data_ptr and t.shape == (3, 4)
        assert torch.equal(torch.as_tensor(d, device="cuda"), t)
        del d
        gc.collect()
        np.testing.assert_array_equal(t.cpu().numpy(), x)


class TestCuPy:
    cupy = None

    @pytest.fixture(autouse=True)
    def need_cupy(self):
        self.cupy = pytest.importorskip("cupy")

    def test_default_and_other_streams(self, launch):
        cupy = self.cupy
        call = dispatcher(launch, ("cuda", "cupy", 0))
        x = cupy.random.rand(100, 333).astype("f4")
        assert type(call(x, 2.0)) is cupy.ndarray
        cupy.testing.assert_allclose(call(x, 2.0), 2 * x + 1, rtol=1e-6)
        with cupy.cuda.Stream(non_blocking=True):
            for _ in range(50):
                y = cupy.random.rand(1000).astype("f4")
                cupy.testing.assert_allclose(call(y, 3.0), 3 * y + 1, rtol=1e-6)

    def test_layouts_and_views(self, launch):
        cupy = self.cupy
        x = cupy.arange(12, dtype="f4").reshape(3, 4)
        outputs = [
            ("new", (3, 4), (1, 3), np.dtype("f4")),
            ("view", ("arg", 0), (4, 3), (1, 4), 0, np.dtype("f4")),
            ("view", ("out", 0), (2,), (3,), 4, np.dtype("f4")),
        ]
        permuted, transposed, part = dispatcher(launch, ("cuda", "cupy", 0), outputs=outputs, result="tuple")(x, 1.0)
        assert permuted.strides == (4, 12)
        cupy.testing.assert_array_equal(permuted.T.ravel(), cupy.arange(1, 13))
        cupy.testing.assert_array_equal(transposed, x.T)
        cupy.testing.assert_array_equal(part, permuted.T.ravel()[1:5:3])
        call = _native.Dispatcher(lambda leaves: _native.Record(0, [], [], [], [("arg", 0)], 0, ("cuda", "cupy", 0)))
        for view in (x, x.T, x[:, ::2], x[::-1], x[:0]) * 2:
            assert call(view) is view
        assert call.misses == 5 and call.hits == 5
