"""The host program: library ops and calls between programs of kernels, views, sizes that values tell, lifetimes,
arguments that are written, branches, loops and guards."""

from __future__ import annotations

import gc
import re
import weakref

import numpy as np
import pytest
from heuristics_override import fit
from test_linalg import run_linalg

import mlirfuse
from mlirfuse.core import config, sites
from mlirfuse.core.errors import ShapeError
from mlirfuse.dialects import fusion
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Layout, Value
from mlirfuse.lowering import devices
from mlirfuse.lowering import host_steps as st
from mlirfuse.passes.base import run_pipeline
from mlirfuse.runtime import arrays, async_compile, load, size_cache
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.schedule import targets
from mlirfuse.tools.run import of_text


def program(text: str, **options):
    return of_text(text, **options)


def kinds(sequence: st.Sequence) -> list[str]:
    return [type(step).__name__ for step in sequence.walk() if not isinstance(step, (st.Free, st.Assign))]


def floats(*shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


LAYERS = """
func.func @f(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %w: tensor<?x?xf32> {fusion.shape = ["s1", "s1"]})
    -> tensor<?x?xf32> attributes {fusion.device = "cpu"} {
  %0 = "fusion.matmul"(%x, %w) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.tanh"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.matmul"(%1, %w) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "fusion.tanh"(%2) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %4 = "fusion.matmul"(%3, %w) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %5 = "fusion.exp"(%4) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %5 : tensor<?x?xf32>
}"""


def layers(x, w):
    x, w = np.float64(x), np.float64(w)
    return np.exp(np.tanh(np.tanh(x @ w) @ w) @ w)


def test_equal_groups_compile_once():
    f = program(LAYERS)
    x, w = floats(8, 16), floats(16, 16) / 8
    np.testing.assert_allclose(f(x, w)[0], layers(x, w), rtol=1e-5)
    assert kinds(f.host.sequence) == ["Call", "Kernels"] * 3
    first, second, third = [f.host.launches[step.region] for step in f.host.kernels]
    assert first is second and first is not third
    assert len(first.program({}).compiled_programs) == 1


TWO_PROGRAMS = """
func.func @f(%x: tensor<8x16xf32>, %w: tensor<16x16xf32>, %b: tensor<3x8xf32>, %u: tensor<8x8xf32>)
    -> (tensor<8x16xf32>, tensor<3x8xf32>) attributes {fusion.device = "cpu"} {
  %0 = "fusion.tanh"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = "fusion.exp"(%b) : (tensor<3x8xf32>) -> tensor<3x8xf32>
  %2 = "fusion.matmul"(%0, %w) : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %3 = "fusion.matmul"(%1, %u) : (tensor<3x8xf32>, tensor<8x8xf32>) -> tensor<3x8xf32>
  %4 = "fusion.atan2"(%2, %x) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %5 = "fusion.exp"(%3) : (tensor<3x8xf32>) -> tensor<3x8xf32>
  return %4, %5 : tensor<8x16xf32>, tensor<3x8xf32>
}"""


def test_equal_kernels_of_other_programs_compile_once():
    """Wherever their tensors stand among those of a call."""
    f = program(TWO_PROGRAMS)
    x, w, b, u = floats(8, 16), floats(16, 16) / 8, floats(3, 8), floats(8, 8) / 8
    results = f(x, w, b, u)
    np.testing.assert_allclose(results[0], np.arctan2(np.tanh(x) @ w, x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results[1], np.exp(np.exp(b) @ u), rtol=1e-4)
    created = [v for s in f.host.kernels for v in f.host.launches[s.region].program({}).compiled_programs.values()]
    (tanh, first), (atan2, second) = [v.module.kernels for v in created]
    assert first.text != second.text and first.passed != second.passed
    loaded = created[0].keep[1] | created[1].keep[1]
    assert loaded[first.name] is loaded[second.name] and loaded[tanh.name] is not loaded[atan2.name]


def test_equal_kernels_of_other_programs_are_loaded_once_on_a_gpu(monkeypatch):
    """On a driver that only counts."""
    images = []

    class Module:
        def __init__(self, image, device):
            images.append(re.findall(r"\.entry (\w+)", image.decode()))

        def function(self, name, dynamic_shared=0, nonportable_cluster=False):
            return 1000 * len(images) + images[-1].index(name)

    monkeypatch.setattr(load._native, "Module", Module)
    target = targets.GpuTarget(devices.named("cuda:sm_90"), 0)
    f = program(TWO_PROGRAMS, target="cuda:sm_90")
    known, addresses = {}, {}
    for step in f.host.kernels:
        kernels = f.host.launches[step.region].program({})
        slots = kernels.slots()
        module = target.write(kernels, target.parameters(kernels, {}, {}), slots)
        load.start_loading(target, module, slots, known)()
        addresses |= {kernel.name: slots.functions[kernel.name] for kernel in module.kernels}
    tanh, first, atan2, second = addresses
    assert images == [[tanh, first], [atan2]]
    assert addresses == {tanh: 1000, first: 1001, atan2: 2000, second: 1001}


SIZES = """
func.func @f(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %w: tensor<?x?xf32> {fusion.shape = ["s1", "s1"]})
    -> (tensor<?xf32>, tensor<?x?xf32>) attributes {fusion.device = "cpu"} {
  %0 = "fusion.matmul"(%x, %w) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.exp"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.sum"(%1) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %3 = "fusion.cumsum"(%1) {axis = 0 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %2, %3 : tensor<?xf32>, tensor<?x?xf32>
}"""


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A GPU target on a driver that only counts, and what was written by schedulers since it was asked last."""
    monkeypatch.setenv("MLIRFUSE_CACHE_DIR", str(tmp_path))
    module = type("Module", (), {"__init__": lambda *_: None, "function": lambda *_: 1000})
    monkeypatch.setattr(load._native, "Module", module)
    monkeypatch.setattr(load._native, "map_bad_index", lambda device: None)
    seen = []
    write, choose = targets.GpuTarget.write, targets.GpuTarget.parameters
    monkeypatch.setattr(targets.GpuTarget, "write", lambda *a: (seen.append("write"), write(*a))[1])
    monkeypatch.setattr(targets.GpuTarget, "parameters", lambda *a: (seen.append("choose"), choose(*a))[1])

    def compiled_programs(text=TWO_PROGRAMS, sm="sm_90", **env):
        seen.clear()
        f = program(text, target=f"cuda:{sm}")
        host = HostProgram(f.host.graph, targets.GpuTarget(devices.named(f"cuda:{sm}"), 0))
        async_compile.begin(host.launches.values(), env)
        for launches in host.launches.values():
            if launches.finish is not None:  # the first has them all finished
                launches.finish()
        aligned = [launches.program(env) for launches in host.launches.values()]
        found = [p.compiled_program(env, {p.graph.args[k]: 256 for k in p.pointer_args}) for p in aligned]
        plans = [p.plan(v, env) for p, v in zip(aligned, found)]
        return [(v.params, v.module, plan, v.slots.pointers.values()) for v, plan in zip(found, plans)], list(seen)

    return compiled_programs


def test_what_an_earlier_process_wrote_is_neither_chosen_nor_written_again(counted):
    first, seen = counted()
    again, seen_again = counted()
    assert seen.count("write") == 2 and seen_again == []
    for one, other in zip(first, again):
        assert one[:3] == other[:3] and list(one[3]) == list(other[3])
    assert counted(sm="sm_80")[1].count("write") == 2  # another machine's


def test_kernels_that_check_positions_are_found_again(counted, monkeypatch):
    """With the lines of the user's that a position belongs to, which their code names by numbers."""
    text = """
        func.func @f(%x: tensor<16xf32>, %at: tensor<8xsi64>, %w: tensor<8x8xf32>) -> (tensor<8xf32>, tensor<8x8xf32>)
            attributes {fusion.device = "cpu"} {
          %0 = "fusion.position"(%at) {extent = "16", axis = 0 : i64, checked = true} : (tensor<8xsi64>) -> tensor<8xsi64>
          %1 = "fusion.take"(%x, %0) {axis = 0 : i64} : (tensor<16xf32>, tensor<8xsi64>) -> tensor<8xf32>
          %2 = "fusion.matmul"(%w, %w) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
          %3 = "fusion.exp"(%2) : (tensor<8x8xf32>) -> tensor<8x8xf32>
          return %1, %3 : tensor<8xf32>, tensor<8x8xf32>
        }"""
    monkeypatch.setattr(sites, "_SITES", {})
    assert counted(text)[1].count("write") == 2
    told = dict(sites._SITES)
    sites._SITES.clear()
    assert counted(text)[1].count("write") == 0
    assert told
    assert told == sites._SITES


def test_another_model_chooses_anew(counted, monkeypatch):
    counted()
    assert counted()[1] == []
    fit(monkeypatch, "scans", block=128)
    assert counted()[1].count("write") == 2


def test_what_was_written_for_other_sizes_is_not_taken(counted):
    first, _ = counted(SIZES, s0=64, s1=16)
    again, seen = counted(SIZES, s0=64, s1=16)
    assert [a[:3] for a in again] == [a[:3] for a in first] and seen == []
    long, seen = counted(SIZES, s0=1000000, s1=16)
    assert seen.count("write") == 1 and long[0][0] != first[0][0]
    assert [a[:3] for a in counted(SIZES, s0=1000000, s1=16)[0]] == [a[:3] for a in long]


def test_what_was_written_in_stages_is_found_again(counted):
    """Whose parts lie in the workspace, known by reductions that the schedulers made."""
    text = """
        func.func @f(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?xf32>, tensor<?xf32>)
            attributes {fusion.device = "cpu"} {
          %0 = "fusion.sum"(%x) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
          %1 = "fusion.m2"(%x) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
          return %0, %1 : tensor<?xf32>, tensor<?xf32>
        }"""
    (first,), seen = counted(text, s0=1000000, s1=16)
    ((again,), seen_again) = counted(text, s0=1000000, s1=16)
    assert len(first[1].kernels) > 1 and first[2].workspace > 0 and seen.count("write") == 1
    assert first[:3] == again[:3] and seen_again == []


def test_other_sizes_compile_nothing():
    f = program(LAYERS)
    w = floats(16, 16) / 8
    f(floats(8, 16), w)
    known = [dict(f.host.launches[step.region].program({}).compiled_programs) for step in f.host.kernels]
    x = floats(40, 16, seed=1)
    np.testing.assert_allclose(f(x, w)[0], layers(x, w), rtol=1e-5)
    assert [f.host.launches[step.region].program({}).compiled_programs for step in f.host.kernels] == known


def test_more_sizes_than_are_kept(monkeypatch):
    monkeypatch.setattr(size_cache, "_MOST", 3)
    found, w = program(LAYERS), floats(8, 8, seed=1) / 8
    sizes = [3, 4, 5, 6, 7, 3, 4]
    for n in sizes:
        np.testing.assert_allclose(found(floats(n, 8), w)[0], layers(floats(n, 8), w), rtol=1e-5)
        caches = [found.host._functions, *(x._by_sizes for x in found.host.launches.values())]
        assert all(0 < len(cache) <= 3 for cache in caches)


def test_torch_tensors_stay_torchs():
    torch = pytest.importorskip("torch")
    x, w = floats(8, 16), floats(16, 16) / 8
    (result,) = program(LAYERS)(torch.from_numpy(x), torch.from_numpy(w))
    assert isinstance(result, torch.Tensor)
    np.testing.assert_allclose(result.numpy(), layers(x, w), rtol=1e-5)


def test_no_elements():
    f = program(LAYERS)
    (result,) = f(floats(0, 16), floats(16, 16))
    assert result.shape == (0, 16) and result.dtype == np.float32


def test_a_tensor_of_another_shape_is_an_error():
    f = program(LAYERS)
    with pytest.raises(ShapeError, match=r"argument 1 .* shape \(8, 16\), expected \(16, 16\)"):
        f(floats(4, 16), floats(8, 16))


def test_a_switch_looks_every_signature_up_anew(capfd):
    """What a dump of each call prints is printed for programs that have run before, too."""
    fn = mlirfuse.jit(lambda x, w: np.exp(np.tanh(x) @ w))
    x, w = floats(8, 16), floats(16, 16) / 8
    with config.override(dump="kernel-args"):
        fn(x, w)
        capfd.readouterr()
        fn(x, w)
        each_call = capfd.readouterr().err
    fn(x, w)
    assert not capfd.readouterr().err
    with config.override(dump="kernel-args"):
        fn(x, w)
        assert capfd.readouterr().err.count("kernel-args") == each_call.count("kernel-args") == 2


# ---- calls


def graph_with_call(function, strides=None, shape=("s0", "s1"), after="exp"):
    """exp(function(neg(x))), with what ``function`` gives of this layout and shape."""
    sizes = tuple(sz.parse(n) for n in ("s0", "s1"))
    x = Value(dt.f32, sizes)
    graph = Graph("f", Block([x]), [Layout(sz.contiguous_strides(sizes), 16)], device="cpu")
    b = Builder(graph.body)
    created = tuple(sz.parse(n) for n in shape)
    strides = None if strides is None else [tuple(map(sz.parse, strides))]
    called = b.op(
        "call", b.op("neg", x), callee="test.f", dtypes=[dt.f32], shapes=[created], strides=strides, function=function
    )
    graph.body.returns = [b.op(after, called) if after else called]
    return HostProgram(run_pipeline([graph], "fusion-to-segments").graphs[0], targets.cpu())


def test_what_a_call_gives_is_read_as_it_lies():
    seen = []

    def transposed(x):
        created = np.asfortranarray(2 * x)
        seen.append(created)
        return [created]

    host = graph_with_call(transposed, strides=("1", "s0"))
    x = floats(5, 7)
    (result,) = host.run([x], {"s0": 5, "s1": 7})
    np.testing.assert_allclose(result, np.exp(np.float64(-2 * x)), rtol=1e-6)
    assert "Pack" not in kinds(host.sequence)


@pytest.mark.parametrize("strides", [None, ("s1", "1")])
def test_a_call_that_gives_another_layout_than_it_stated(strides):
    host = graph_with_call(lambda x: [np.asfortranarray(2 * x)], strides=strides)
    x = floats(5, 7)
    for _ in range(2):
        (result,) = host.run([x], {"s0": 5, "s1": 7})
        np.testing.assert_allclose(result, np.exp(np.float64(-2 * x)), rtol=1e-6)


def test_a_call_that_gives_another_shape_is_an_error():
    host = graph_with_call(lambda x: [x[:-1]])
    with pytest.raises(ShapeError, match=r"call gave f32\[4, 7\], the program was compiled for f32\[5, 7\]"):
        host.run([floats(5, 7)], {"s0": 5, "s1": 7})


def test_sizes_that_a_result_tells():
    host = graph_with_call(lambda x: [x[x[:, 0] > 0]], shape=("u0", "s1"))
    for seed in (1, 2, 3, 4):
        x = floats(40, 7, seed=seed)
        (result,) = host.run([x], {"s0": 40, "s1": 7})
        np.testing.assert_allclose(result, np.exp(np.float64(-x)[-x[:, 0] > 0]), rtol=1e-6)
    assert len(host.launches[host.kernels[-1].region].program({}).compiled_programs) == 1


def test_no_rows_were_found():
    host = graph_with_call(lambda x: [x[:0]], shape=("u0", "s1"))
    assert host.run([floats(3, 7)], {"s0": 3, "s1": 7})[0].shape == (0, 7)


def test_values_are_freed_after_their_last_reader():
    class Array(np.ndarray):
        pass

    alive, seen = [], []

    def function(x):
        gc.collect()
        alive.append(seen[0]() is not None if seen else None)
        created = (2 * x).view(Array)
        seen.append(weakref.ref(created))
        return [np.asarray(created)]

    sizes = (sz.parse("s0"),)
    x = Value(dt.f32, sizes)
    graph = Graph("f", Block([x]), [Layout((1,), 16)], device="cpu")
    b = Builder(graph.body)
    call = dict(callee="test.f", dtypes=[dt.f32], shapes=[sizes], function=function)
    first = b.op("call", x, **call)
    second = b.op("call", b.op("exp", first), **call)
    graph.body.returns = [second]
    host = HostProgram(run_pipeline([graph], "fusion-to-segments").graphs[0], targets.cpu())
    given = floats(10)
    np.testing.assert_allclose(host.run([given], {"s0": 10})[0], 2 * np.exp(2 * np.float64(given)), rtol=1e-6)
    assert alive == [None, False]


def test_an_argument_that_nobody_holds_is_freed():
    watched = []
    host = graph_with_call(lambda x: watched.append(watched[0]() is None) or [x])
    given = [floats(5, 7)]
    watched.append(weakref.ref(given[0]))
    host.function({"s0": 5, "s1": 7})(given)
    assert given == [] and watched[1] is True


# ---- views


def test_views_between_library_ops_are_no_copies():
    f = program("""
func.func @f(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?x?xf32>, tensor<?x?xf32>)
    attributes {fusion.device = "cpu"} {
  %0 = "fusion.permute"(%x) {dims = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.matmul"(%x, %0) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0, %1 : tensor<?x?xf32>, tensor<?x?xf32>
}""")
    x = floats(4, 6)
    view, product = f(x)
    assert np.shares_memory(view, x) and view.strides == x.T.strides
    np.testing.assert_allclose(product, np.float64(x) @ np.float64(x).T, rtol=1e-5, atol=1e-6)


def test_views_that_are_left_alone_are_views():
    """Without groups of one op, views run by themselves."""
    text = """
func.func @f(%x: tensor<6x8xf32>) -> (V) attributes {fusion.device = "cpu"} {
  %0 = OP : (tensor<6x8xf32>) -> V
  return %0 : V
}"""
    x = floats(6, 8)
    for op, type_, expected in (
        ('"fusion.permute"(%x) {dims = [1, 0]}', "tensor<8x6xf32>", x.T),
        ('"fusion.reshape"(%x) {shape = ["4", "12"]}', "tensor<4x12xf32>", x.reshape(4, 12)),
        ('"fusion.expand_dims"(%x) {axes = [1]}', "tensor<6x1x8xf32>", x[:, None]),
        (
            '"fusion.slice"(%x) {start = ["5", "1"], size = ["6", "3"], step = [-1, 2]}',
            "tensor<6x3xf32>",
            x[::-1, 1:6:2],
        ),
        (
            '"fusion.broadcast_in_dim"(%x) {shape = ["6", "5", "8"], dims = [0, 2]}',
            "tensor<6x5x8xf32>",
            np.broadcast_to(x[:, None], (6, 5, 8)),
        ),
    ):
        f = program(text.replace("OP", op).replace("V", type_), passes="fusion-group,fusion-segment")
        (result,) = f(x)
        assert [type(step).__name__ for step in f.host.sequence.walk()][:1] == ["Call"]
        np.testing.assert_array_equal(result, expected)
        assert np.shares_memory(result, x)


# ---- loops

JACOBI = """
func.func @jacobi(%u: T {fusion.shape = ["s0", "s1"]}, %n: index) -> T
    attributes {fusion.device = "cpu"} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %half = "fusion.constant"() {value = 0.5 : f32, dtype = f32} : () -> tensor<f32>
  %out = scf.for %t = %zero to %n step %one iter_args(%v = %u) -> T {
    %a = "fusion.slice"(%v) {start = ["0", "1"], size = ["s0-2", "s1-2"], step = [1, 1]} : (T) -> T
    %b = "fusion.slice"(%v) {start = ["2", "1"], size = ["s0-2", "s1-2"], step = [1, 1]} : (T) -> T
    %c = "fusion.add"(%a, %b) : (T, T) -> T
    %d = "fusion.mul"(%c, %half) : (T, tensor<f32>) -> T
    %e = "fusion.set_slice"(%v, %d) {start = ["1", "1"], size = ["s0-2", "s1-2"], step = [1, 1]} : (T, T) -> T
    scf.yield %e : T
  }
  return %out : T
}""".replace("T", "tensor<?x?xf32>")


def jacobi(u, n):
    u = np.float64(u)
    for _ in range(n):
        u[1:-1, 1:-1] = 0.5 * (u[:-2, 1:-1] + u[2:, 1:-1])
    return u


@pytest.mark.parametrize("n", [0, 1, 7])
def test_a_loop_of_kernels(n):
    f = program(JACOBI)
    u = floats(9, 12)
    before = u.copy()
    (result,) = f(u, n)
    np.testing.assert_allclose(result, jacobi(u, n), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(u, before)
    assert kinds(f.host.sequence) == ["Compute", "Compute", "For", "Kernels"]


def test_a_loop_keeps_two_buffers():
    """What an iteration read is freed before the next one asks for memory."""
    f = program(JACOBI)
    u = floats(64, 64)
    seen = set()
    body = f.host.kernels[0]
    at = f.host.launches[body.region].at

    def watched(env):
        launch = at(env)

        def call(x):
            created = launch(x)
            seen.add(created.ctypes.data)
            return created

        return call

    f.host.launches[body.region].at = watched
    f(u, 20)
    assert len(seen) <= 2


ROWS = """
func.func @rows(%u: T {fusion.shape = ["s0", "s1"]}, %n: index) -> T attributes {fusion.device = "cpu"} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %out = scf.for %t = %zero to %n step %one iter_args(%v = %u) -> T {
    %a = "fusion.slice"(%v) {start = ["0", "0"], size = ["1", "s1"], step = [1, 1]} : (T) -> ROW
    %b = "fusion.slice"(%v) {start = ["s0-1", "s1-1"], size = ["1", "s1"], step = [1, -1]} : (T) -> ROW
    %d = "fusion.add"(%a, %b) : (ROW, ROW) -> ROW
    %e = "fusion.set_slice"(%v, %d) {start = ["0", "s1-1"], size = ["1", "s1"], step = [1, -1]} : (T, ROW) -> T
    %f = "fusion.set_slice"(%e, %a) {start = ["1", "0"], size = ["1", "s1"], step = [1, 1]} : (T, ROW) -> T
    scf.yield %f : T
  }
  return %out : T
}""".replace("ROW", "tensor<1x?xf32>").replace("T", "tensor<?x?xf32>")


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_slice_of_what_a_loop_carries_is_written_in_place(framework):
    """The array that the loop began with is left alone."""
    u = floats(6, 5)
    given = u.copy()
    if framework == "torch":
        given = pytest.importorskip("torch").from_numpy(given)
    text = ROWS.replace('fusion.set_slice"(%e, %a)', 'fusion.set_slice"(%e, %d)')
    for n in (0, 1, 5):
        f = program(text)
        (result,) = f(given, n)
        expected = np.float64(u)
        for _ in range(n):
            d = expected[0] + expected[-1, ::-1]
            expected[0, ::-1], expected[1] = d, d
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(np.asarray(given), u)
    assert [step.op.name for step in f.host.sequence.walk() if isinstance(step, st.Call)][-2:] == ["update", "update"]


def test_a_view_that_is_read_after_the_write_keeps_the_loop_as_it_was():
    u = floats(6, 5)
    (result,) = program(ROWS)(u, 3)
    expected = np.float64(u)
    for _ in range(3):
        a = expected[0].copy()
        expected[0, ::-1] = a + expected[-1, ::-1]
        expected[1] = a
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


WHILE = """
func.func @halve(%x: tensor<?xf32> {fusion.shape = ["s0"]}, %bound: tensor<f32>) -> (tensor<?xf32>, index)
    attributes {fusion.device = "cpu"} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %half = "fusion.constant"() {value = 0.5 : f32, dtype = f32} : () -> tensor<f32>
  %0, %1 = scf.while (%a = %x, %i = %zero) : (tensor<?xf32>, index) -> (tensor<?xf32>, index) {
    %m = "fusion.max"(%a) {axes = [0]} : (tensor<?xf32>) -> tensor<f32>
    %big = "fusion.gt"(%m, %bound) : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %go = tensor.extract %big[] : tensor<i1>
    scf.condition(%go) %a, %i : tensor<?xf32>, index
  } do {
  ^bb0(%b: tensor<?xf32>, %j: index):
    %h = "fusion.mul"(%b, %half) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
    %k = arith.addi %j, %one : index
    scf.yield %h, %k : tensor<?xf32>, index
  }
  return %0, %1 : tensor<?xf32>, index
}"""


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_condition_is_read_back_from_a_value(framework):
    f = program(WHILE)
    x = np.abs(floats(10)) + 1
    x[3] = 40
    given = [x, np.float32(3)]
    if framework == "torch":
        torch = pytest.importorskip("torch")
        given = [torch.from_numpy(x), torch.tensor(3.0)]
    else:
        given[1] = np.asarray(given[1])
    result, count = f(*given)
    assert count == 4 and isinstance(result, type(given[0]))
    np.testing.assert_array_equal(np.asarray(result), x / 16)
    assert f(*given[:1], given[1] * 100)[1] == 0


NESTED = """
func.func @nested(%x: tensor<?xf32> {fusion.shape = ["s0"]}, %n: index, %c: i1) -> tensor<?xf32>
    attributes {fusion.device = "cpu"} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %out = scf.for %i = %zero to %n step %one iter_args(%v = %x) -> tensor<?xf32> {
    %w = scf.for %j = %zero to %i step %one iter_args(%y = %v) -> tensor<?xf32> {
      %1 = "fusion.add"(%y, %x) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
      scf.yield %1 : tensor<?xf32>
    }
    %z = scf.if %c -> tensor<?xf32> {
      %2 = "fusion.neg"(%w) : (tensor<?xf32>) -> tensor<?xf32>
      scf.yield %2 : tensor<?xf32>
    } else {
      scf.yield %v : tensor<?xf32>
    }
    scf.yield %z : tensor<?xf32>
  }
  return %out : tensor<?xf32>
}"""


@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("condition", [False, True])
def test_loops_in_loops_and_branches(n, condition):
    x = floats(10)
    expected = np.float64(x)
    for i in range(n):
        expected = -(expected + i * np.float64(x)) if condition else expected
    (result,) = program(NESTED)(x, n, condition)
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


def test_carried_arrays_may_grow():
    """Sizes that an iteration changes are read anew in each."""
    f = program("""
func.func @grow(%x: tensor<?xf32> {fusion.shape = ["s0"]}, %n: index) -> tensor<?xf32>
    attributes {fusion.device = "cpu"} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %out = scf.for %i = %zero to %n step %one iter_args(%v = %x) -> tensor<?xf32> {
    %1 = "fusion.concatenate"(%v, %x) {axis = 0 : i64} : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
    scf.yield %1 : tensor<?xf32>
  }
  return %out : tensor<?xf32>
}""")
    x = floats(3)
    np.testing.assert_array_equal(f(x, 4)[0], np.tile(x, 5))


# ---- guards

GUARDED = """
func.func @f(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"], fusion.strides = ["s1", "1"], fusion.align = 16 : i64})
    -> tensor<?x?xf32> attributes {fusion.device = "cpu"} {
  %0 = "fusion.exp"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.neg"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}"""


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_guard_decides_between_kernels_and_the_fallback(framework):
    f = program(GUARDED, passes="fusion-group,fusion-guard,fusion-segment")
    (kernels,) = f.host.kernels
    launched = []
    launches = f.host.launches[kernels.region]
    at = launches.at
    launches.at = lambda env: lambda *given: launched.append(1) or at(env)(*given)
    x = np.ascontiguousarray(floats(8, 16))
    misaligned = np.zeros(8 * 16 + 8, np.float32)[1:129].reshape(8, 16)
    misaligned[:] = x
    for given, enters in ((x, True), (misaligned, False), (x, True)):
        if framework == "torch":
            torch = pytest.importorskip("torch")
            given = torch.from_numpy(given)
        launched.clear()
        (result,) = f(given)
        aligned = arrays.describe(given).align >= 16
        assert bool(launched) is (enters and aligned)
        assert isinstance(result, type(given))
        np.testing.assert_allclose(np.asarray(result), -np.exp(np.float64(np.asarray(given))), rtol=1e-6)


# ---- writes

WRITES = """
func.func @f(%x: tensor<?xf32> {fusion.shape = ["s0"]}, %y: tensor<?x?xf32> {fusion.shape = ["s0", "s0"]})
    -> (tensor<?xf32> {fusion.alias = 0 : i64}, tensor<?xf32>, tensor<?xf32>) attributes {fusion.device = "cpu"} {
  %0 = "fusion.matmul"(%y, %x) : (tensor<?x?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %1 = "fusion.exp"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  %2 = "fusion.slice"(%x) {start = ["0"], size = ["s0"], step = [1]} : (tensor<?xf32>) -> tensor<?xf32>
  return %1, %0, %2 : tensor<?xf32>, tensor<?xf32>, tensor<?xf32>
}"""


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_arguments_are_written_at_the_end(framework):
    """A view of the argument that is given back beside it holds the old elements."""
    f = program(WRITES)
    x, y = floats(5), floats(5, 5)
    given = [x.copy(), y]
    if framework == "torch":
        torch = pytest.importorskip("torch")
        given = [torch.from_numpy(a) for a in given]
    written, product, view = f(*given)
    assert written is given[0]
    np.testing.assert_allclose(np.asarray(product), np.float64(y) @ x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(written), np.exp(np.float64(y) @ x), rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(view), x)


def both(x, y, a, z):
    product = a @ y
    x += product
    y += z @ a
    return product


def through_a_view(x, y, a, z):
    backwards = x[::-1]
    x += a @ y
    y *= backwards  # of the new elements
    return (y @ z) * a


def by_sums(x, y, a, z):
    x += a @ y
    x -= x.sum()
    y[:] = z.sum() + y.max()
    return y


def overlapping(which: str) -> list[np.ndarray]:
    rng, line = np.random.default_rng(1), np.linspace(1, 2, 18)
    x, y, a, z = rng.normal(size=9), rng.normal(size=9), rng.normal(size=(9, 9)), rng.normal(size=9)
    return {
        "apart": [x, y, a, z],
        "one read and written": [x, y, a, x],
        "neighbours": [line[:9], line[9:], a, z],
        "in turns": [line[::2], line[1::2], a, z],
        "over each other": [line[1:10], line[2:11], a, z],
        "a row": [x, a[3], a, z],
    }[which]


@pytest.mark.parametrize(
    "which", ["apart", "one read and written", "neighbours", "in turns", "over each other", "a row"]
)
@pytest.mark.parametrize("fn", [both, through_a_view, by_sums])
def test_what_is_written_last_is_written_where_it_belongs(fn, which):
    jitted = mlirfuse.jit(fn)
    for _ in range(2):
        got, want = overlapping(which), overlapping(which)
        np.testing.assert_allclose(jitted(*got), fn(*want), rtol=1e-12)
        for mine, theirs in zip(got, want):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_an_argument_is_written_that_no_op_reads():
    def fill_and_sort(a, b):
        b[:] = 1
        a[:] = np.sort(a)

    a, b = floats(9), floats(9)
    want = np.sort(a)
    mlirfuse.jit(fill_and_sort, fallback=False)(a, b)
    np.testing.assert_array_equal(a, want)
    np.testing.assert_array_equal(b, np.ones(9))


def test_kernels_write_into_arguments():
    kind = mlirfuse.jit(both)
    x, y, a, z = floats(9), floats(9), floats(9, 9), floats(9)
    kind(x, y, a, z)
    (steps,) = [kind.specialization_of(x, y, a, z)[0].executor.host.kernels]
    assert [step.region.graph.aliases for step in steps] == [{0: 0, 1: 2}]


# ---- linalg


@pytest.mark.parametrize("n", [0, 5])
def test_loops_and_branches_run_through_linalg(n):
    """MLIR's own passes lower the linalg level of a function with control flow to native code, loops and all."""
    u = floats(9, 12)
    text = JACOBI.replace(", %n: index", "").replace(
        "%zero = arith", f"%n = arith.constant {n} : index\n  %zero = arith"
    )
    (result,) = run_linalg(linalg_of(text), "jacobi", [u], [(np.float32, 2)])
    np.testing.assert_allclose(result, jacobi(u, n), rtol=1e-6, atol=1e-6)
    bound = np.array(3, np.float32)
    text = WHILE.replace("-> (tensor<?xf32>, index)\n", "-> tensor<?xf32>\n")
    text = text.replace("return %0, %1 : tensor<?xf32>, index", "return %0 : tensor<?xf32>")
    x = np.float32([1, 40, 7])
    (result,) = run_linalg(linalg_of(text), "halve", [x, bound], [(np.float32, 1)])
    np.testing.assert_array_equal(result, x / 16)


def linalg_of(text: str) -> str:
    return run_pipeline(fusion.read(fusion.parse(text)), "fusion-to-linalg").as_text()


def test_the_host_level_shows_what_stands_between_launches():
    fn = mlirfuse.jit(lambda x, w: np.exp(np.tanh(x) @ w))
    text = fn.lower(floats(4, 4), floats(4, 4)).as_text("host")
    first, *launches = text.split("// -----\n")
    steps = [line.split()[2] for line in first.splitlines() if line.lstrip().startswith("%")]
    assert [step.split("(")[0] for step in steps] == ["call", '"fusion.matmul"', "call"]
    assert len(launches) == 2 and all("func.func @launch(" in launch for launch in launches)


# ---- the graph fuser's passes


def test_what_the_graph_fuser_makes_runs():
    f = program(FUSED, passes="fusion-graph-fuser")
    x, w, b = floats(4, 8), floats(8, 8, seed=1) / 4, floats(8, seed=2)
    misaligned = np.zeros(4 * 8 + 8, np.float32)[1:33].reshape(4, 8)
    misaligned[:] = x
    for given in (x, misaligned):
        for n in (0, 2):
            y = np.float64(x) @ np.float64(w).T + b
            for _ in range(n):
                e = np.exp(np.exp(y) - np.exp(y).max(1, keepdims=True))
                y = e / e.sum(1, keepdims=True)
            carried, result = f(given, w, b, n)
            np.testing.assert_allclose(carried, y, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(result, np.tanh(y @ np.float64(w).T + b), rtol=1e-5, atol=1e-6)


FUSED = """
func.func @fuser(%x: T {fusion.shape = ["s0", "s1"], fusion.strides = ["s1", "1"], fusion.align = 16 : i64},
                 %w: T {fusion.shape = ["s1", "s1"], fusion.strides = ["s1", "1"]},
                 %b: tensor<?xf32> {fusion.shape = ["s1"], fusion.strides = ["1"]}, %n: index) -> (T, T)
    attributes {fusion.device = "cpu"} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %y = "fusion.linear"(%x, %w, %b) : (T, T, tensor<?xf32>) -> T
  %o = scf.for %i = %zero to %n step %one iter_args(%v = %y) -> T {
    %0 = "fusion.exp"(%v) : (T) -> T
    %1 = "fusion.softmax"(%0) {axis = 1 : i64} : (T) -> T
    scf.yield %1 : T
  }
  %z = "fusion.linear"(%o, %w, %b) : (T, T, tensor<?xf32>) -> T
  %t = "fusion.tanh"(%z) {inplace = true} : (T) -> T
  return %o, %t : T, T
}""".replace("T", "tensor<?x?xf32>")
