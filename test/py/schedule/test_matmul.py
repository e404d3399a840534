"""Matrix products with the ops on their results as kernels for Hopper's tensor cores: the cut into segments, and what
the kernels compute, by the emulator."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import re
import subprocess

import ml_dtypes
import numpy as np
import pytest
from hopper_emulator import HopperLaunch
from test_gpu_emulated import BOUND, compare, run

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Layout, Value
from mlirfuse.ir.ops.products import FLOAT8
from mlirfuse.lowering import llvm, ptx
from mlirfuse.passes import pipelines
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.gpu.matmul import model, params
from mlirfuse.schedule.scheduler import SizedCall

HOPPER = "cuda:sm_90"
DTYPES = {dt.bf16: ml_dtypes.bfloat16, dt.f16: np.float16}


def graph_of(
    body, *arguments: tuple, dtype=dt.bf16, types: dict | None = None, strides: dict[int, tuple] | None = None
) -> Graph:
    """The graph of ``body(builder, *values)``, whose arguments have these shapes; ``types``: of some of them."""
    block = Block()
    graph = Graph("f", block)
    graph.args.extend(Value((types or {}).get(k, dtype), shape) for k, shape in enumerate(arguments))
    given = strides or {}
    graph.layouts[:] = [Layout(given.get(k, sz.contiguous_strides(v.shape)), 16) for k, v in enumerate(graph.args)]
    found = body(Builder(block, lambda: None), *graph.args)
    block.returns = list(found) if isinstance(found, tuple) else [found]
    graph.number()
    return graph


def segmented(graph: Graph, target: str = HOPPER) -> Graph:
    return pipelines.lower_to_segments(graph, targets.of(target).properties)


def schedulers(graph: Graph) -> list[str]:
    return [segment.scheduler for segment in graph.labels()[1]]


def computed(
    graph: Graph, inputs, only=lambda params: True, alignments=(), changed=lambda params: params
) -> list[np.ndarray]:
    """The graph's results, by the first candidate of each segment that is ``only`` such a one, ``changed``."""
    program = Program(segmented(graph), targets.of(HOPPER), {})
    given = {program.graph.args[k]: n for k, n in dict(alignments).items()}
    return run(program, {}, chosen(program, given, only, changed), inputs)


def chosen(program: Program, alignments: dict[Value, int], only, changed) -> tuple:
    """The parameters of each of the program's segments that :func:`computed` takes."""
    found = []
    for step in program.steps:
        candidates = program.target.schedulers.candidates(
            step.analysis, SizedCall({}, alignments, program.target.properties)
        )
        found.append(changed(next(filter(only, candidates))))
    return tuple(p.replaced(blocks=2) if p.scheduler == "matmul" else p for p in found)  # several tiles a block


def linear(b: Builder, x, w, bias):
    """x times w transposed, plus bias."""
    product = b.op("dot", x, b.permute(w, (1, 0)))
    return b.op("add", product, b.broadcast_to(bias, product.shape))


def data(*shapes, dtype=dt.bf16):
    g = np.random.default_rng(0)
    return [g.standard_normal(shape).astype(np.float32).astype(DTYPES[dtype]) for shape in shapes]


def wide(*arrays):
    return [x.astype(np.float64) for x in arrays]


@pytest.mark.parametrize(
    "m, n, k, width, dtype",
    [
        (256, 128, 64, 128, dt.bf16),  # no ragged edge
        (200, 200, 136, 192, dt.f16),  # an odd number of stores a tile
        (8, 520, 8, 256, dt.bf16),
        (300, 72, 400, 128, dt.bf16),  # more steps along K than stages
    ],
)
def test_a_linear_layer_with_bias_and_relu(m, n, k, width, dtype):
    """Ragged edges, several tiles a block."""
    shapes = (m, k), (n, k), (n,)
    graph = graph_of(lambda b, x, w, bias: b.op("relu", linear(b, x, w, bias)), *shapes, dtype=dtype)
    inputs = data(*shapes, dtype=dtype)
    x, w, bias = wide(*inputs)
    (got,) = computed(graph, inputs, lambda p: p.own.n == width)
    compare(got, np.maximum(x @ w.T + bias, 0), BOUND[got.dtype.name], "")


@pytest.mark.parametrize("apart, tma", [(False, True), (True, True), (False, False)])
def test_float32_operands_by_tf32(apart, tma):
    """Factors are cut to 11 bits: errors of the sums are relative to those of the terms' sizes."""
    m, n, k = 136, 72, 100
    shapes = (m, k), (n, k), (n,)

    def body(b, x, w, bias):
        product = b.op("dot", x, b.permute(w, (1, 0)), tf32=True)
        return b.op("add", product, b.broadcast_to(bias, product.shape))

    inputs = [x.astype(np.float32) for x in data(*shapes)]
    inputs[0] += np.float32(1e-3)  # not exact in 11 bits
    (got,) = computed(
        graph_of(body, *shapes, dtype=dt.f32),
        inputs,
        lambda p: (p.own.apart, p.own.tma) == (apart, tma),
        {} if tma else {0: 4},
    )
    x, w, bias = wide(*inputs)
    assert np.all(abs(got - (x @ w.T + bias)) <= 2**-9 * (abs(x) @ abs(w).T) + 1e-5)


@pytest.mark.parametrize("fast, tma", [(False, True), (True, True), (False, False)])
@pytest.mark.parametrize("formats", list(itertools.product(("e4m3fn", "e5m2"), repeat=2)), ids="-".join)
def test_float8_operands_with_scales(formats, fast, tma):
    """Scales of rows and of a tensor, a bias; more sums than a stage has, ragged edges."""
    m, n, k = 136, 72, 272
    shapes = (m, k), (n, k), (m, 1), (), (n,)

    def body(b, x, w, rows, scale, bias):
        product = b.op("float8_dot", x, b.permute(w, (1, 0)), formats=formats, fast_sums=fast)
        scaled = b.op("mul", b.op("mul", product, b.broadcast_to(rows, product.shape)), scale)
        return b.cast(b.op("add", scaled, b.broadcast_to(bias, product.shape)), dt.bf16)

    types = {0: dt.u8, 1: dt.u8, 2: dt.f32, 3: dt.f32, 4: dt.f32}
    numbers = [x.astype(FLOAT8[name].numpy) for x, name in zip(data(*shapes[:2]), formats)]
    rows, scale, bias = (abs(x.astype(np.float32)) + np.float32(0.5) for x in data(*shapes[2:]))
    inputs = [*(x.view(np.uint8) for x in numbers), rows, np.asarray(scale), bias]
    for apart in (False, True) if fast else (False,):
        graph = graph_of(body, *shapes, types=types)
        assert schedulers(segmented(graph.copy())) == ["matmul"]
        (got,) = computed(graph, inputs, lambda p: (p.own.apart, p.own.tma) == (apart, tma), {} if tma else {0: 1})
        x, w = wide(*numbers)
        compare(got, x @ w.T * rows * float(scale) + bias, BOUND["bfloat16"], "")


@pytest.mark.parametrize(
    "rows, ahead, m, n, k",
    [(64, False, 300, 72, 400), (128, True, 520, 200, 136), (128, True, 300, 72, 400), (128, False, 8, 520, 8)],
)
def test_consumers_with_tiles_of_their_own(monkeypatch, rows, ahead, m, n, k):
    """Several tiles of each consumer, one that has none, other numbers of stages and of panels than those of a tile; the
    second consumer is early, too."""
    monkeypatch.setattr(HopperLaunch, "ahead", ahead)
    shapes = (m, k), (n, k), (n,), (m, n), (m, n)

    def body(b, x, w, bias, scale, residual):
        product = b.op("mul", linear(b, x, w, bias), scale)
        return b.op("add", b.cast(product, dt.f32), residual), product

    graph = graph_of(body, *shapes, types={4: dt.f32})
    *inputs, residual = data(*shapes)
    inputs.append(residual.astype(np.float32))
    x, w, bias, scale, residual = wide(*inputs)
    stages, columns = (3, 256) if rows == 64 else (4, 128)
    own = {"apart": True, "m": rows, "n": columns, "stages": stages, "panels": 2 if ahead else 3}
    total, product = computed(graph, inputs, changed=lambda p: p.replaced(**own))
    compare(product, (x @ w.T + bias) * scale, BOUND["bfloat16"], "")
    np.testing.assert_allclose(total, (x @ w.T + bias) * scale + residual, rtol=0, atol=2e-3)


@pytest.mark.parametrize("a_rows, b_rows", list(itertools.product([True, False], repeat=2)))
def test_operands_in_either_order_of_memory(a_rows, b_rows):
    m, n, k = 136, 200, 72
    shapes = (m, k) if a_rows else (k, m), (k, n) if b_rows else (n, k)

    def body(b, x, y):
        return b.op("dot", x if a_rows else b.permute(x, (1, 0)), y if b_rows else b.permute(y, (1, 0)))

    inputs = data(*shapes)
    x, y = wide(*inputs)
    for apart in (False, True):
        (got,) = computed(graph_of(body, *shapes), inputs, lambda p: p.own.apart == apart)
        compare(got, (x if a_rows else x.T) @ (y if b_rows else y.T), BOUND["bfloat16"], "")


def test_several_results_of_other_types_and_a_residual():
    m, n, k = 72, 136, 72
    shapes = (2, m // 2, k), (n, k), (n,), (2, m // 2, n)

    def body(b, x, w, bias, residual):
        u = b.reshape(linear(b, b.reshape(x, (m, k)), w, bias), (2, m // 2, n))
        added = b.op("add", u, residual)
        return u, b.cast(added, dt.f32), b.op("tanh", added)

    inputs = data(*shapes)
    x, w, bias, residual = wide(*inputs)
    graph = graph_of(body, *shapes)
    u, added, after = computed(graph, inputs)
    want = x @ w.T + bias
    for got, expected in ((u, want), (added, want + residual), (after, np.tanh(want + residual))):
        compare(got, expected, BOUND["bfloat16"], str(got.dtype))
    assert added.dtype == np.float32
    assert schedulers(graph) == ["matmul"]


@pytest.mark.parametrize("width, aligned", [(256, 16), (192, 16), (128, 2)])
def test_other_inputs_of_the_ops(width, aligned):
    """TMA copies them to the stages, several columns of 64 to each; threads load one whose address is not aligned."""
    m, n, k = 200, 200, 72
    shapes = (m, k), (n, k), (n,), (m, n), (m, n)
    inputs = data(*shapes)
    x, w, bias, scale, residual = wide(*inputs)

    def body(b, x, w, bias, scale, residual):
        return b.op("add", b.op("mul", linear(b, x, w, bias), scale), residual)

    def chosen(p):
        return p.own.n == width and len(p.own.added) == (2 if aligned == 16 else 1)

    (got,) = computed(graph_of(body, *shapes), inputs, chosen, {3: aligned})
    compare(got, (x @ w.T + bias) * scale + residual, BOUND["bfloat16"], "")


@pytest.mark.parametrize("m, n, k, width", [(200, 200, 72, 192), (256, 132, 64, 256), (72, 64, 200, 128)])
def test_a_float32_residual(m, n, k, width):
    """TMA copies it, and the result, in columns of 32; a 16-bit input and result beside them in columns of 64."""
    shapes = (m, k), (n, k), (m, n), (m, n)
    x, w, scale, residual = data(*shapes)
    inputs = [x, w, scale, residual.astype(np.float32)]

    def body(b, x, w, scale, residual):
        product = b.op("mul", b.op("dot", x, b.permute(w, (1, 0))), scale)
        total = b.op("add", b.cast(product, dt.f32), residual)
        return (total, product) if aligned else total

    aligned = n % 8 == 0  # else the rows of 16-bit floats are not 16 bytes apart, and threads read them
    graph = graph_of(body, *shapes, types={3: dt.f32})
    total, *product = computed(
        graph, inputs, lambda p: p.own.tma and p.own.n == width and len(p.own.added) == 1 + aligned
    )
    x, w, scale, residual = wide(*inputs)
    for got in product:
        compare(got, (x @ w.T) * scale, BOUND["bfloat16"], "")
    assert total.dtype == np.float32
    np.testing.assert_allclose(total, (x @ w.T) * scale + residual, rtol=0, atol=1e-3)


@pytest.mark.parametrize("m, n, k", [(136, 72, 72), (40, 33, 21)])
def test_what_tma_cannot_copy_is_loaded_by_threads(m, n, k):
    """An address that is not aligned, and rows that are not."""
    shapes = (m, k), (n, k), (n,)
    inputs = data(*shapes)
    x, w, bias = wide(*inputs)
    graph = graph_of(linear, *shapes)
    (got,) = computed(graph, inputs, lambda p: not p.own.tma, {0: 2})
    compare(got, x @ w.T + bias, BOUND["bfloat16"], "")


def test_a_product_of_a_product():
    """The first's result is read from the workspace by the second, with TMA."""
    m, n, k = 136, 200, 72
    shapes = (m, k), (n, k), (n,), (k, n)
    inputs = data(*shapes)
    x, w, bias, v = wide(*inputs)

    def body(b, x, w, bias, v):
        return b.op("dot", b.op("relu", linear(b, x, w, bias)), b.permute(v, (1, 0)))

    graph = graph_of(body, *shapes)
    (got,) = computed(graph, inputs)
    assert schedulers(graph) == ["matmul", "matmul"]
    between = np.maximum(x @ w.T + bias, 0).astype(ml_dtypes.bfloat16).astype(np.float64)
    compare(got, between @ v.T, BOUND["bfloat16"], "")


def test_ops_on_operands_and_reductions_are_kernels_of_their_own():
    shapes = (256, 128), (256, 128), (256,)

    def body(b, x, w, bias):
        u = linear(b, b.op("relu", x), w, bias)
        return b.op("sub", u, b.op("max", u, axes=(1,), keepdims=True))

    graph = segmented(graph_of(body, *shapes))
    assert schedulers(graph) == ["pointwise", "matmul", "normalization"]
    members = {s.scheduler: [op.name for op in graph.ops if op.segment is s] for s in graph.labels()[1]}
    assert "add" in members["matmul"] and "relu" in members["pointwise"] and "max" in members["normalization"]


@pytest.mark.parametrize(
    "target, dtype", [("cpu", dt.bf16), ("cuda:sm_80", dt.bf16), ("cuda:sm_100", dt.f16), (HOPPER, dt.f32)]
)
def test_other_targets_and_types_run_the_library(target, dtype):
    graph = segmented(graph_of(lambda b, x, y: b.op("dot", x, y), (64, 64), (64, 64), dtype=dtype), target)
    assert [op.name for op in graph.ops] == ["matmul"]


def gate_gradients(b, dy, w, gate, up):
    """The gradients of a gated MLP's two products: two matrices are read, two written."""
    grad, wide_gate = b.cast(b.op("dot", dy, w), dt.f32), b.cast(gate, dt.f32)
    sigmoid = b.op("sigmoid", wide_gate)
    act = b.op("mul", wide_gate, sigmoid)
    slope = b.op(
        "add", sigmoid, b.op("mul", act, b.op("sub", b.broadcast_to(b.constant(1, dt.f32), act.shape), sigmoid))
    )
    of_gate = b.op("mul", b.op("mul", grad, b.cast(up, dt.f32)), slope)
    return b.cast(b.op("mul", grad, act), dt.bf16), b.cast(of_gate, dt.bf16)


def test_gradients_of_a_gated_mlp():
    """By both kinds of tiles: the panels of two inputs follow each other, for each warp group's own tiles too."""
    m, n, k = 264, 200, 136
    shapes = (m, k), (k, n), (m, n), (m, n)
    inputs = data(*shapes)
    dy, w, gate, up = wide(*inputs)
    sigmoid = 1 / (1 + np.exp(-gate))
    grad = dy @ w
    want = grad * gate * sigmoid, grad * up * (sigmoid + gate * sigmoid * (1 - sigmoid))
    for own in ({"apart": False, "panels": 1}, {"apart": True, "m": 128, "n": 128, "stages": 4, "panels": 4}):
        got = computed(graph_of(gate_gradients, *shapes), inputs, changed=lambda p, own=own: p.replaced(**own))
        for x, y in zip(got, want, strict=True):
            compare(x, y, BOUND["bfloat16"], "")


@pytest.mark.parametrize("body, shapes", [(linear, [(1024,)]), (gate_gradients, [(1024, 1024)] * 2)])
def test_machine_code_has_no_spills_and_asynchronous_products(body, shapes):
    """By NVIDIA's assembler, which warns where it serializes products."""
    tool = pytest.importorskip("cuda.pathfinder").find_nvidia_binary_utility("ptxas")
    if tool is None:
        pytest.skip("needs ptxas")
    second = (1024, 512) if body is linear else (512, 1024)
    target = targets.of(HOPPER)
    program = Program(segmented(graph_of(body, (1024, 512), second, *shapes)), target, {})
    for p in target.schedulers.candidates(program.steps[0].analysis, SizedCall({}, {}, target.properties)):
        text = ptx.to_ptx(target.write(program, (p,), program.slots()).tiled(), "sm_90")
        layout = params.Layout(p)
        products = text.count(f"wgmma.mma_async.sync.aligned.m64n{layout.n}k16.f32.bf16.bf16")
        assert products == 8 * layout.parts
        command = [tool, "-arch=sm_90a", "-v", "-", "-o", "/dev/null"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.returncode == 0 and "serialized" not in done.stderr, done.stderr
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill", done.stderr)))
        assert spilled <= 128, done.stderr  # of a thread, once a tile


def test_the_host_function_encodes_tensor_maps():
    """It is MLIR that LLVM compiles; two operands and a result have maps."""
    target = targets.of(HOPPER)
    program = Program(segmented(graph_of(linear, (128, 64), (128, 64), (128,))), target, {})
    module = target.write(program, program.parameters({}, {}), program.slots())
    assert module.host.count("llvm.call %mgpuTensorMapEncodeTiled(") == 3
    assert llvm.compile_object(module.launching())


def measured_products():
    path = pathlib.Path(__file__).parents[3] / "benchmarks" / "results" / "matmul-epilogues-h200.json"
    return json.loads(path.read_text())["rows"]


def test_estimates_beside_what_was_measured():
    """On an H200: the estimates are off by 25% at most, 6% in the mean; what a kernel is chosen for has not become
    slower by more than 1%, and four rows of five that gain more than 10% are chosen."""
    h200 = dataclasses.replace(targets.of(HOPPER).properties, memory_bandwidth=4800 * 10**9)
    errors, chosen, gains = [], [], []
    for row in measured_products():
        work = model.Work(*row["work"])
        took = row["apart" if model.best_tiles(work, h200)[0].apart else "shared"]
        estimate = model.kernel_us(work, h200)
        if row["case"] != "none":
            library = model.library_us(work.m, work.n, work.k, h200) + model.elementwise_us(row["bytes_of_ops"], h200)
            gain = row["two"] / took
            fuses = estimate < library * (1 - model.margin(h200))
            chosen += [gain] if fuses else []
            gains += [fuses] if gain > 1.1 else []
        errors.append(abs(np.log(estimate / took)))
    assert max(errors) < 0.25 and np.mean(errors) < 0.06
    assert min(chosen) > 0.99
    assert np.mean(gains) > 0.8
