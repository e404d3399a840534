"""On a GPU: the operations of fd.ops on CUDA tensors against torch, with the tests that the CPU has
(test_definition_ops.py, test_definition_inputs.py), and what is particular to a GPU."""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import test_definition_inputs as inputs
import test_definition_ops as ops
from test_definition_inputs import test_operation  # noqa: F401
from test_definition_ops import (  # noqa: F401
    test_a_scalar_beside_a_tensor,
    test_attention,
    test_batch_norm,
    test_cast,
    test_complex_arguments_as_they_lie_in_memory,
    test_complex_elementwise,
    test_complex_numbers_and_aliases,
    test_complex_programs,
    test_dropout,
    test_elementwise,
    test_embedding,
    test_indexing,
    test_instance_and_group_norm,
    test_layer_norm,
    test_matmul_and_linear,
    test_moments,
    test_nan_and_empty_reductions,
    test_narrow_floats,
    test_promotion_of_tensors,
    test_promotion_with_scalars_and_rank_zero,
    test_random_numbers,
    test_reductions,
    test_rms_norm,
    test_scans_and_sorting,
    test_scatter_and_accumulation,
    test_ternary,
    test_triu,
    test_where_of_scalars,
)

from mlirfuse import DataType, FusionDefinition
from mlirfuse.core import config
from mlirfuse.nvfuser import InputError, PythonProfiler


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch):
    """Arguments go to the GPU; what cannot be compiled fails."""
    monkeypatch.setattr(ops, "DEVICE", "cuda")
    monkeypatch.setattr(inputs, "DEVICE", "cuda")
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    with config.override(fallback=False):
        yield
    torch.backends.cuda.matmul.allow_tf32 = allowed


def define(body, *inputs):
    with FusionDefinition() as fd:
        for out in body(fd, *[fd.from_pytorch(t) for t in inputs]):
            fd.add_output(out)
    return fd


def test_nothing_goes_through_the_host():
    """Library ops between kernels run on the GPU: a call can be captured in a CUDA graph, which no wait for the host
    can."""
    x, rows = torch.randn(64, 32, device="cuda"), torch.randint(0, 64, (128,), device="cuda")
    values, index = torch.randn(128, 32, device="cuda"), torch.randint(0, 64, (8, 32), device="cuda")

    def body(fd, x, rows, values, index):
        o = fd.ops
        return [
            o.neg(o.cumsum(o.exp(x), 1)),
            o.cummax(x, 0),
            o.index_put_accumulate(x, rows, values),
            o.embedding_bwd(values, rows, 64),
            o.scatter(x, index, 1.5, 0),
            o.argsort(x, 1),
            *o.topk(x, 3, 1),
            o.relu(o.matmul(x, o.permute(x, [1, 0]))),
        ]

    fd, inputs = define(body, x, rows, values, index), [x, rows, values, index]
    wanted = [-x.exp().cumsum(1), x.cummax(0).values, x.index_add(0, rows, values), torch.zeros_like(x).index_add(0, rows, values),
              x.scatter(0, index, 1.5), x.argsort(dim=1, stable=True), *x.topk(3, 1), (x @ x.T).relu()]  # fmt: skip
    outs = fd.execute(inputs)
    for given, expected in zip(outs, wanted):
        assert given.is_cuda
        torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        fd.execute(inputs)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = fd.execute(inputs)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(captured[0], -x.exp().cumsum(1), rtol=1e-4, atol=1e-4)


def test_a_cpu_scalar_beside_cuda_tensors():
    x, s = torch.randn(100, device="cuda"), torch.tensor(2.5)
    fd = define(lambda fd, x, s: [fd.ops.mul(x, s)], x, s)
    for number in (2.5, -1.0):
        torch.testing.assert_close(fd.execute([x, torch.tensor(number)])[0], x * number)
    with pytest.raises(InputError, match="CPU scalar tensor"):
        fd.execute([x, s.cuda()])
    alone = define(lambda fd, x, s: [fd.ops.neg(x), fd.ops.add(s, s)], x, s)
    with pytest.raises(InputError, match=r"test_gpu_definition.py:\d+: KernelExecutor does not support the Fusion"):
        alone.execute([x, s])
    with pytest.raises(InputError, match="several devices"):
        define(lambda fd, a, b: [fd.ops.add(a, b)], x, x).execute([x, x.cpu()])


def test_the_profiler_times_each_kernel():
    x, w = torch.randn(4096, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    fd = define(lambda fd, x, w: [fd.ops.relu(fd.ops.linear(fd.ops.neg(x), w)), fd.ops.sum(x, [0])], x, w)
    with PythonProfiler() as prof:
        for _ in range(2):
            outs = fd.execute([x, w])
    torch.testing.assert_close(outs[1], x.sum(0), rtol=1e-3, atol=1e-2)
    last = prof.profile
    times = [k.time_ms for k in last.kernel_profiles]
    assert len(times) > 1 and min(times) > 0 and last.cuda_evt_time_ms >= last.kernel_time_ms > 0
    assert all(k.percentage_peak_bandwidth > 0 and "block" in k.threads for k in last.kernel_profiles)


def test_no_inputs_and_a_device():
    def body(fd):
        return [
            fd.ops.iota(fd.define_scalar(1000), 5, 3, DataType.Int),
            fd.ops.full([3, 4], fd.define_scalar(1.5), DataType.Half),
        ]

    fd = define(body)
    for options in ({}, {"device": "cuda"}, {"device": 0}):
        count, full = fd.execute([], **options)
        assert count.is_cuda and torch.equal(count, torch.arange(5, 3005, 3, device="cuda"))
        assert torch.equal(full, torch.full((3, 4), 1.5, dtype=torch.half, device="cuda"))
    assert all(not t.is_cuda for t in fd.execute([], device="cpu"))


def test_running_statistics_are_written_in_place():
    """One kernel reads and writes them: no element may be written before it was read."""
    for channels, rest in ((3, (50,)), (64, (7, 7)), (700, (3,)), (5, (200, 100))):
        x = torch.randn(9, channels, *rest, device="cuda")
        mean, var = torch.randn(channels, device="cuda"), torch.rand(channels, device="cuda") + 0.5
        wanted = mean.clone(), var.clone()
        fd = define(lambda fd, x, m, v: [fd.ops.batch_norm(x, None, None, m, v, 0.1, 1e-5, True)[0]], x, mean, var)
        for _ in range(3):
            (out,) = fd.execute([x, mean, var])
            expected = torch.nn.functional.batch_norm(x, *wanted, training=True, momentum=0.1)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close((mean, var), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "shape, views",
    [((768, 128, 64), [[768, 128, 64], [64, 12, 128, 64]]), ((384, 100, 60), [[384, 100, 60], [32, 12, 100, 60]])],
)
def test_a_reshape_that_fixes_sizes(shape, views):
    x = torch.randn(shape, device="cuda")
    fd = define(lambda fd, t: [fd.ops.set(fd.ops.permute(fd.ops.reshape(t, views[1]), [0, 2, 1, 3]))], x)
    assert fd.lower([x]).kernels == 1
    assert torch.equal(fd.execute([x])[0], x.view(views[1]).permute(0, 2, 1, 3))
