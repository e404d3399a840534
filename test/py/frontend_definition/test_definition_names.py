"""nvFuser's names beyond fd.ops: the profiler, the cache, fd.fusion, what answers for manual schedules; fd.validate's
bound; the printed form."""

import importlib
import math

import pytest

torch = pytest.importorskip("torch")

from mlirfuse import nvfuser
from mlirfuse.core.errors import ScheduleError
from mlirfuse.nvfuser import (
    DataType,
    DefinitionError,
    FusionCache,
    FusionDefinition,
    LRUCache,
    PythonProfiler,
    TensorView,
)

F = torch.nn.functional


def define(body, *tensors):
    with FusionDefinition() as fd:
        outs = body(fd, *[fd.from_pytorch(t) for t in tensors])
        for out in outs if isinstance(outs, (list, tuple)) else [outs]:
            fd.add_output(out)
    return fd


def test_versions():
    for name in ("nvfuser_version", "nvfuser_direct_version"):
        assert (
            importlib.import_module(f"mlirfuse.nvfuser.{name}").__version__ == nvfuser.version() == nvfuser.__version__
        )


def test_tensor_view():
    def body(fd: FusionDefinition, x: TensorView) -> TensorView:
        assert isinstance(x, TensorView) and not isinstance(fd.define_scalar(1), TensorView)
        return fd.ops.relu(x)

    x = torch.randn(3, 4)
    assert torch.equal(define(body, x).execute([x])[0], x.relu())


def test_fusion(capsys):
    x = torch.randn(3, 4)
    fd = define(lambda fd, x: fd.ops.relu(x), x)
    (given,), (created,) = fd.fusion.inputs(), fd.fusion.outputs()
    assert (given.ndim, given.dtype, created.dtype) == (2, DataType.Float, DataType.Float) and given is not created
    assert "fusion.relu" in fd.fusion.print_math() and "fusion.relu" in capsys.readouterr().out
    assert "vector" in fd.fusion.print_kernel([x]) and "vector" in capsys.readouterr().out
    assert ".visible .entry" in fd.fusion.print_kernel([x], target="cuda:sm_90")
    with pytest.raises(DefinitionError, match="pass inputs"):
        fd.fusion.print_kernel()


def test_cache():
    cache = LRUCache(max_fusions=2)
    x = torch.randn(3)
    fusions = [define(lambda fd, x, f=f: getattr(fd.ops, f)(x), x).fusion for f in ("relu", "neg", "relu", "sin")]
    assert cache.cache_compile(fusions[0]) is cache.cache_compile(fusions[2]) is fusions[0]
    assert cache.cache_compile(fusions[1]) is fusions[1] and cache.num_fusions() == 2
    cache.cache_compile(fusions[3])
    assert cache.num_fusions() == 2 and "Max Fusions Allowed: 2" in cache.stats() and "Cache Hits: 1" in cache.stats()


def test_the_older_cache(capsys):
    FusionCache.reset()
    cache, x = FusionCache.get(max_fusions=100), torch.randn(3)
    for f in ("relu", "neg", "relu"):
        define(lambda fd, x, f=f: getattr(fd.ops, f)(x), x).execute([x])
    assert cache.num_fusions() == 2
    cache.print_stats()
    assert "Fusions in Cache: 2" in capsys.readouterr().out
    FusionCache.reset()
    assert cache.num_fusions() == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda fd, x: x.split(0, 4),
        lambda fd, x: x.merge(0),
        lambda fd, x: x.cache_after(),
        lambda fd, x: fd.manual_execute([]),
        lambda fd, x: fd.schedule(),
        lambda fd, x: fd.sched.split(x, 0, 4),
    ],
)
def test_manual_schedules(call):
    """They say what there is instead, at the user's line."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=[True])
        with pytest.raises(RuntimeError, match=r"test_definition_names.py:\d+: .*FusionDefinition\(schedule="):
            call(fd, x)
    assert not hasattr(x, "split") and not hasattr(x, "no_such_name")


def test_a_schedule_method_of_a_subclass():
    """It cannot be run: an error with its line, unless the call leaves it out."""

    class Scheduled(FusionDefinition):
        def definition(self):
            self.add_output(self.ops.relu(self.define_tensor([-1])))

        def schedule(self):
            self.sched.split(self.outputs[0], 0, 4)

    fd, x = Scheduled(), torch.randn(8)
    with pytest.raises(
        DefinitionError, match=r"test_definition_names.py:\d+: schedule\(self\).*FusionDefinition\(schedule="
    ):
        fd.execute([x])
    assert torch.equal(fd.execute([x], override_user_schedule=True)[0], x.relu())


def test_schedules_as_parameters():
    """What is given is what runs; a definition of the same content without them keeps the model's choice."""

    def body(fd):
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        fd.add_output(fd.ops.sum(x, [0]))

    x = torch.randn(600, 40)
    with FusionDefinition() as plain:
        body(plain)
    with FusionDefinition(schedule={0: {"split": 5}}) as fd:
        body(fd)
    for definition, split in ((fd, 5), (plain, plain.explain([x]).kernels[0].params["split"])):
        torch.testing.assert_close(definition.execute([x])[0], x.sum(0), rtol=1e-4, atol=1e-4)
        assert definition.explain([x]).kernels[0].params["split"] == split
    assert fd.id() != plain.id() and plain.explain([x]).kernels[0].params["split"] != 5
    with FusionDefinition(schedule={0: {"split": -1}}) as fd:
        body(fd)
    with pytest.raises(ScheduleError, match="split"):
        fd.execute([x])
    with FusionDefinition(schedule={"pointwise": {}}) as fd:
        body(fd)
    with pytest.raises(ScheduleError, match="the segments are 0: reduction"):
        fd.execute([x])


def test_profiler():
    x, w = torch.randn(64, 32), torch.randn(16, 32)
    fd = define(lambda fd, x, w: fd.ops.relu(fd.ops.linear(fd.ops.neg(x), w)), x, w)
    with PythonProfiler() as prof:
        fd.execute([x, w])
        fd.execute([x, w])
    first, last = prof.profiles
    assert prof.profile is last and last.fusion_id == fd.id()
    assert last.segments == 3 and [k.scheduler for k in last.kernel_profiles] == ["pointwise", "pointwise"]
    assert first.compile_time_ms > 0 and last.compile_time_ms == 0
    assert last.input_bytes == x.nbytes + w.nbytes and last.output_bytes == 64 * 16 * 4
    assert last.kernel_profiles[0].input_bytes == x.nbytes
    assert last.cuda_evt_time_ms >= last.host_time_ms >= last.kernel_time_ms > 0 and last.effective_bandwidth_gbs > 0
    assert first.host_time_ms >= first.compile_time_ms
    times = [k.time_ms for k in last.kernel_profiles]
    assert min(times) > 0 and math.isclose(sum(times), last.kernel_time_ms)
    assert [k.segment_id for k in last.kernel_profiles] == [0, 1] and "task" in last.kernel_profiles[1].threads
    assert [k.name for k in last.kernel_profiles] == ["mlirfuse_pointwise0", "mlirfuse_pointwise1"]
    assert math.isnan(last.kernel_profiles[0].percentage_peak_bandwidth)  # a CPU does not tell its memory's
    fd.execute([x, w])
    assert len(prof.profiles) == 2
    alone = define(lambda fd, x: fd.ops.relu(x), x)
    with PythonProfiler() as prof:
        alone.execute([x])
    assert prof.profile.kernel_profiles[0].effective_bandwidth_gbs > 0
    twice = define(lambda fd, x, w: fd.ops.relu(fd.ops.linear(fd.ops.relu(fd.ops.linear(x, w)), w)), x[:32], x[:32])
    with PythonProfiler() as prof:
        twice.execute([x[:32], x[:32]])
    shared = prof.profile.kernel_profiles  # two kernels with one code
    assert [k.segment_id for k in shared] == [0, 1] and all(k.time_ms > 0 for k in shared)
    with pytest.raises(RuntimeError, match="nothing was executed"):
        _ = PythonProfiler().profile


# validate


def residuals(fd, x, w, v):
    """Two products with residuals: what is rounded on the way shows in a Float output."""
    o = fd.ops
    half = o.cast(o.add(o.linear(x, w), x), x.dtype)
    return [o.cast(o.add(o.linear(half, v), half), DataType.Float)]


def rotary(fd, x, w, c):
    o = fd.ops
    y = o.linear(x, w)
    n, k = x.size(0), 128
    left, right = o.slice(y, [0, 0], [n, k]), o.slice(y, [0, k], [n, 2 * k])
    turned = o.cat([o.neg(right), left], 1)
    return [o.add(o.mul(y, c), o.mul(turned, c)), o.sum(o.mul(turned, turned), [1])]


def experts(fd, x, w, v):
    o = fd.ops
    gate, up = o.linear(x, w), o.linear(x, v)
    created = o.cast(o.mul(o.silu(gate), up), x.dtype)
    return [o.cast(o.linear(created, w), DataType.Float)]


PROGRAMS = {
    "residuals": (residuals, [(96, 400), (400, 400), (400, 400)]),
    "rotary": (rotary, [(64, 512), (256, 512), (64, 256)]),
    "experts": (experts, [(16, 320), (320, 320), (320, 320)]),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_validate_knows_the_roundings_on_the_way(name, dtype):
    """Half types between products: what is right passes, what is off by four times the roundings does not."""
    body, shapes = PROGRAMS[name]
    generator = torch.Generator().manual_seed(4)
    inputs = [torch.randn(s, generator=generator).to(dtype) for s in shapes]
    fd = define(body, *inputs)
    outputs = fd.validate(inputs)
    wide = [t.double() for t in inputs]
    exact = define(body, *wide).execute(wide)
    for k, out in enumerate(outputs):
        wrong = list(outputs)
        scale = 2.0 ** (-3 if dtype is torch.bfloat16 else -6)
        wrong[k] = out * (1 + scale)
        assert (out.double() - exact[k].double()).abs().max() < (wrong[k].double() - exact[k].double()).abs().max() / 4
        with pytest.raises(AssertionError, match=f"output {k} differs from the reference"):
            fd.validate(inputs, [t.double() for t in wrong])


def test_validate_without_a_seed():
    """The reference draws what the call draws."""
    x = torch.randn(40, 30)
    fd = define(lambda fd, x: fd.ops.mul(fd.ops.rand_like(x), x), x)
    fd.validate([x])


# printing


@pytest.mark.parametrize(
    "body",
    [
        lambda fd, x: fd.ops.stride_order(fd.ops.relu(x), [0, 1, 2]),
        lambda fd, x: fd.ops.slice(x, [0, 1, 0], [2, 3, 4]),
        lambda fd, x: fd.ops.slice(x, [0, 0, 0], fd.ops.shape(x), [1, 2, 1]),
        lambda fd, x: list(fd.ops.sdpfa_fwd(*[fd.ops.broadcast(x, [True, False, False, False])] * 3, is_causal=True))[
            :2
        ],
        lambda fd, x: fd.ops.pad(x, [1, 2], 0.5),
        lambda fd, x: fd.ops.cumsum(x, -1),
        lambda fd, x: fd.ops.sum(x, [-1], keepdim=True),
    ],
)
def test_what_is_printed_gives_the_same_fusion_and_the_same_text(body):
    fd = define(body, torch.randn(2, 3, 4))
    names = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    assert again._finished() is fd._finished()
    assert repr(again) == repr(fd)


def test_stride_orders_of_outputs_are_printed():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, 1, -1], contiguity=[True, None, False], stride_order=[1, 2, 0])
        fd.add_output(fd.ops.relu(x), stride_order=[0, 1, 2])
    names = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    assert repr(again) == repr(fd) and "stride_order=[0, 1, 2]" in repr(fd) and "stride_order=[1, 2, 0]" in repr(fd)
