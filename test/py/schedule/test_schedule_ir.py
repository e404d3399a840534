"""Schedules as data: every scheduler by the same checks, and a schedule that is given by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import mlirfuse
import mlirfuse.numpy as mnp
from mlirfuse.core import config
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.core.errors import ScheduleError
from mlirfuse.dialects import fusion
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.schedule import serialize, targets
from mlirfuse.schedule.program import SegmentedProgram
from mlirfuse.schedule.scheduler import SizedCall
from mlirfuse.schedule.tiling import Tiling

f32, f16 = np.float32, np.float16


def layer_norm(x, w, b):
    return mnp.layer_norm(x, w, b, eps=1e-5)


def norm_backward(g, x, w):
    h = g * w
    c = (h * x).mean(-1, keepdims=True)
    return h - x * c, (g * x).sum(0)


def accumulated(x, v):
    t = x._trace
    return TracedArray(t, t.emit("index_put_accumulate", x.value, v[:, 0].astype(np.int64).value, (v + v).value))


def product(x, w):
    t = x._trace
    return TracedArray(t, t.emit("dot", x.value, w.T.value)) + 1


def blurred(x):
    p = np.pad(x * 2, 1)
    return p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]


PROGRAMS = {
    "pointwise": (lambda x, y: np.maximum((x + y) * 1.5, 0), (24, 96), (24, 96)),
    "bias": (lambda x, b: x + b, (24, 97), (97,)),
    "transpose": (lambda x: x.T.copy(), (24, 96)),
    "both orders": (lambda x: (x + 1, (x + 1).T.copy()), (24, 96)),
    "sum 1": (lambda x: x.sum(1), (24, 96)),
    "sum 0": (lambda x: x.sum(0), (24, 96)),
    "softmax 1": (lambda x: mnp.softmax(x, axis=-1), (24, 96)),
    "softmax 0": (lambda x: mnp.softmax(x, axis=0), (24, 96)),
    "layer norm": (layer_norm, (24, 96), (96,), (96,)),
    "cumsum 1": (lambda x: np.cumsum(x * 2, 1), (24, 96)),
    "nucleus": (lambda x: np.cumsum(mnp.softmax(x, axis=-1), 1), (24, 96)),
    "cumsum 0": (lambda x: np.cumsum(x, 0) + x, (24, 96)),
    "recurrence 0": (lambda x: mnp.linear_recurrence(0.5, x, 0) + 1, (24, 96)),
    "scatter_add": (accumulated, (24, 96), (24, 96)),
    "product": (product, (24, 96), (40, 96)),
    "norm backward": (norm_backward, (24, 96), (24, 96), (96,)),
    "joined": (lambda x, y: np.concatenate([x, y[:, 1:], x * 2], 1), (24, 96), (24, 96)),
    "stencil": (blurred, (24, 96)),
    "beside": (lambda x: np.concatenate([x, x * 2], 1), (24, 97)),
}
SIZES = [
    (1, 1 << 20),
    (3, 8191),
    (64, 50257),
    (8192, 1024),
    (4096, 770),
    (131072, 16),
    (50000, 3),
    (2, 1000),
    (600, 64),
    (16384, 77),
]
CHIPS = ("cpu", "cuda:sm_90", "cuda:sm_75")


def compiled(name: str, target: str, dtype) -> bool:
    """Whether kernels compute the program: of products of 16-bit floats on Hopper, else an extern op."""
    return name != "product" or (target == "cuda:sm_90" and dtype is f16)


def program(name: str, target: str, dtype=f32) -> tuple[SegmentedProgram, dict[str, int], list[str]]:
    fn, *shapes = PROGRAMS[name]
    lowered = mlirfuse.jit(fn, target=target).lower(*[np.ones(shape, dtype) for shape in shapes])
    created = SegmentedProgram(lowered.segmented(), targets.of(target), lowered.env)
    return created, lowered.env, [str(n) for n in created.graph.args[0].shape]


@pytest.mark.parametrize("target", CHIPS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [f32, f16])
def test_every_candidate_is_data(name, target, dtype):
    """Candidates differ, stand in text without loss, pass their scheduler's check, and kernels can be written of
    them."""
    if not compiled(name, target, dtype):
        pytest.skip("an extern op")
    created, env, (rows, columns) = program(name, target, dtype)
    schedulers, properties = created.target.schedulers, created.target.properties
    for (n, m), align in itertools.product(SIZES, (256, 4)):
        env = env | {rows: n, columns: m}
        aligned = dict.fromkeys(created.graph.args, align)
        for at, step in enumerate(created.steps):
            found = list(
                itertools.islice(schedulers.candidates(step.analysis, SizedCall(env, aligned, properties)), 24)
            )
            assert len(set(found)) == len(found)
            for params in found:
                schedulers.check(step.analysis, params, SizedCall(env, aligned, properties))
                attributes = schedulers.attributes(params)
                assert serialize.parse(serialize.text(attributes)) == attributes
                assert schedulers.read(attributes, step.analysis, SizedCall(env, aligned, properties)) == params
            everything = list(created.target.parameters(created, env, aligned))
            assert everything[at] == found[0]
            for params in {found[0], found[-1]} if (n, m) in SIZES[::4] else ():
                everything[at] = params
                slots = created.slots()
                try:
                    module = created.target.write(created, tuple(everything), slots)
                except ScheduleError as error:  # candidates that are tried may ask for more than there is
                    assert params != found[0] and "shared memory" in str(error)
                    continue
                assert any(k.name.startswith(step.name) for k in module.kernels)


@pytest.mark.parametrize(
    "name, columns, few, many, wanted",
    [
        ("softmax 1", 70001, 264, 60000, lambda p: p.unaligned),
        ("sum 0", 257, 4096, 1 << 24, lambda p: p.coalesced_rows > 1),
        ("bias", 97, 1 << 16, 1 << 26, lambda p: p.scheduler == "pointwise" and p.own.row_segments == 1),
    ],
)
def test_indices_are_checked_where_rows_are_unaligned_or_coalesced(name, columns, few, many, wanted):
    """A schedule with 32-bit offsets is refused for a tensor of 2**31 elements."""
    created, env, (rows, length) = program(name, "cuda:sm_90", f16)
    schedulers, analysis = created.target.schedulers, created.steps[0].analysis

    def call(count: int) -> SizedCall:
        return SizedCall(env | {rows: count, length: columns}, {}, created.target.properties)

    params = next(filter(wanted, schedulers.candidates(analysis, call(few))))
    schedulers.check(analysis, params, call(few))
    with pytest.raises(ScheduleError, match="64 bits"):
        schedulers.check(analysis, params, call(many))


def test_every_scheduler_is_met():
    """The programs above reach each scheduler of each target."""
    for target in CHIPS[:2]:
        met = set()
        for name, dtype in itertools.product(PROGRAMS, (f32, f16)):
            if not compiled(name, target, dtype):
                continue
            created, env, (rows, columns) = program(name, target, dtype)
            for n, m in (*SIZES, (1 << 17, 2)):  # few columns also of narrow vectors
                sizes = env | {rows: n, columns: m}
                met |= {created.target.schedulers.of(p).name for p in created.target.parameters(created, sizes, {})}
                for _step, p in zip(created.steps, created.target.parameters(created, sizes, {})):
                    for inner in p.own.schedules if p.scheduler == "multi_stage" else ():
                        met.add(created.target.schedulers.of(inner).name)
        assert met == {s.name for s in created.target.schedulers.all}, target


def test_standard_parameters_are_used():
    """Each decides something in one of the schedulers; what a scheduler has of its own has another name."""
    schedulers = [s for target in CHIPS[:2] for s in targets.of(target).schedulers.all]
    assert {name for s in schedulers for name in s.fields} == set(Tiling._fields) - {"scheduler", "own"}
    own = {name for s in schedulers if s.name != "multi_stage" for name in getattr(s.own, "_fields", ())}
    assert own.isdisjoint(Tiling._fields)


def test_parameters_that_exclude_each_other():
    tiling = Tiling("columns", split=4, cluster=2)
    tiling.excludes("split", "stages", "persistent")
    tiling.excludes("stages", "split")
    with pytest.raises(ScheduleError, match="split: excludes stages, cluster"):
        tiling.excludes("split", "stages", "cluster")


def test_text_decides():
    """A segmented graph whose schedules are chosen is read back, and gives the same kernels; another choice gives
    others."""
    created, env, _ = program("softmax 1", "cuda:sm_90")
    chosen = created.target.parameters(created, env, {})
    plain = created.target.write(created, chosen, created.slots()).tiled()
    created.write_schedules(chosen)
    (graph,) = fusion.read(fusion.parse(fusion.to_module_text([created.graph])))
    again = SegmentedProgram(graph, created.target, env)
    assert again.decided and again.target.parameters(again, env, {}) == chosen
    assert again.target.write(again, again.target.parameters(again, env, {}), again.slots()).tiled() == plain
    again.steps[0].segment.schedule = {"vectors_per_thread": 0, "unmasked": 0}
    other = again.target.write(again, again.target.parameters(again, env, {}), again.slots()).tiled()
    assert "scf.for %" in other and "scf.for %" not in plain


SOFTMAX = PROGRAMS["softmax 1"][0]


@pytest.mark.parametrize(
    "given",
    [
        {0: {"vectors_per_thread": 0}},
        {"normalization": {"vectors_per_thread": 0}},
        {0: "{vectors_per_thread = 0 : i64}"},
        {0: {"scheduler": "multi_stage"}},
    ],
)
def test_jit_takes_a_schedule(given):
    """What is given by hand is what runs, for all sizes that it is possible for."""
    f = mlirfuse.jit(SOFTMAX, schedule=given, fallback=False)
    for shape in ((5, 17), (40, 30)):
        x = np.random.default_rng(0).standard_normal(shape, f32)
        wanted = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
        np.testing.assert_allclose(f(x), wanted / wanted.sum(-1, keepdims=True), rtol=1e-5)
        text = f.lower(x).as_text("segmented")
        assert ('scheduler = "multi_stage"' in text) == (given == {0: {"scheduler": "multi_stage"}})
        assert "vectors_per_thread = 0 : i64" in text or "multi_stage" in text


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({0: {"vectors_per_thread": 1}}, "a row has 1000"),
        ({0: {"hold": 1}}, "no parameter 'hold': the parameters are vectors_per_thread, split"),
        ({0: {"vectors_per_thread": True}}, "is not of type int"),
        ({1: {"vectors_per_thread": 0}}, "0 segments match 1; the segments are 0: normalization"),
        ({"reduction": {}}, "0 segments match 'reduction'"),
        ({0: {"scheduler": "transpose"}}, "does not take this segment"),
        ({0: "{vectors_per_thread = "}, "is not an MLIR attribute"),
    ],
)
@pytest.mark.parametrize("fallback", [True, False])
def test_impossible_schedules_are_errors(given, problem, fallback):
    """Not reasons to run op by op."""
    f = mlirfuse.jit(SOFTMAX, schedule=given, fallback=fallback)
    with pytest.raises(ScheduleError, match=problem):
        f(np.ones((4, 1000), f32))
    with pytest.raises(ScheduleError, match=problem):
        f.lower(np.ones((4, 1000), f32)).as_text("segmented")


def test_a_schedule_is_checked_for_new_sizes():
    """Also where a variant with those parameters is compiled: it would compute a part of a longer row only."""
    f = mlirfuse.jit(SOFTMAX, schedule={0: {"vectors_per_thread": 4}}, fallback=False)
    lanes = targets.cpu().properties.vector_bytes // 4
    f(np.ones((4, 4 * lanes), f32))
    with pytest.raises(ScheduleError, match=f"vectors_per_thread = 4: {4 * lanes} elements, a row has {4 * lanes + 1}"):
        f(np.ones((4, 4 * lanes + 1), f32))


def test_what_was_measured_is_kept_as_attributes(tmp_path, monkeypatch):
    """Schedules come back from the disk as they were, and not where they do not hold."""
    from mlirfuse.runtime import tuned_schedules

    monkeypatch.setenv("MLIRFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MLIRFUSE_CACHE", "1")
    created, env, _ = program("layer norm", "cuda:sm_90")
    (step,), properties = created.steps, created.target.properties
    for params in itertools.islice(
        created.target.schedulers.candidates(step.analysis, SizedCall(env, {}, properties)), 1, 4
    ):
        tuned_schedules.store(created, env, (params,))
        assert tuned_schedules.load(created, env, {}) == (params,)
    assert tuned_schedules.load(created, env | {created.symbols[0]: 7}, {}) is None
    if params.access.lanes > 1:
        assert tuned_schedules.load(created, env, dict.fromkeys(created.graph.args, 4)) is None


def test_checks_hold_for_other_machines():
    """What one architecture has another may not."""
    created, env, (rows, columns) = program("softmax 1", "cuda:sm_90")
    env = env | {rows: 4, columns: 131072}
    (params,) = created.target.parameters(created, env, {})
    assert params.cluster > 1
    with pytest.raises(ScheduleError, match="sm_80 has clusters of 1 blocks"):
        created.target.schedulers.check(
            created.steps[0].analysis, params, SizedCall(env, {}, DeviceProperties.of_architecture("sm_80"))
        )


def test_schedules_cost_nothing_where_none_is_given():
    """A call with new sizes reads no attributes."""
    with config.override(fallback=False):
        f = mlirfuse.jit(SOFTMAX)
        f(np.ones((4, 1000), f32))
    kind, _, _env = f.specialization_of(np.ones((4, 1000), f32))
    assert not kind.executor.program.decided
