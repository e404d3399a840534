"""The linalg level means what the function means: MLIR's own passes lower it to loops, which run on the CPU and agree
with NumPy."""

import ctypes
import pathlib
import re

import linalg_emulated
import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
import random_programs

import mlirfuse
import mlirfuse.numpy as mnp
from mlirfuse.core import mlir
from mlirfuse.dialects import fusion
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Value
from mlirfuse.lowering import llvm as code
from mlirfuse.lowering.linalg import to_linalg
from mlirfuse.passes import base
from mlirfuse.passes.base import Pass, register, run_pipeline

LOOPS = (
    "builtin.module(one-shot-bufferize{bufferize-function-boundaries=true "
    "function-boundary-type-conversion=identity-layout-map allow-return-allocs-from-loops=true},"
    "convert-linalg-to-loops,loops-to-llvm)"
)


def descriptor(rank):
    """MLIR's memref descriptor."""
    sizes = [("sizes", ctypes.c_int64 * rank), ("strides", ctypes.c_int64 * rank)] if rank else []
    fields = [("allocated", ctypes.c_void_p), ("aligned", ctypes.c_void_p), ("offset", ctypes.c_int64), *sizes]
    return type(f"Memref{rank}", (ctypes.Structure,), {"_fields_": fields})


def describe(array):
    created = descriptor(array.ndim)(array.ctypes.data, array.ctypes.data, 0)
    if array.ndim:
        created.sizes[:] = array.shape
        created.strides[:] = [s // array.itemsize for s in array.strides]
    return created


def as_array(created, dtype, rank):
    shape = tuple(created.sizes) if rank else ()
    strides = tuple(s * dtype.itemsize for s in created.strides) if rank else ()
    out = np.empty(shape, dtype)
    if out.size:
        span = sum((n - 1) * s for n, s in zip(shape, strides)) + dtype.itemsize
        raw = ctypes.string_at(created.aligned + created.offset * dtype.itemsize, span)
        out[...] = np.ndarray(shape, dtype, raw, 0, strides)
    return out


class Unranked(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int64), ("descriptor", ctypes.c_void_p)]


@ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.POINTER(Unranked), ctypes.POINTER(Unranked))
def memref_copy(nbytes, source, target):
    """What MLIR calls to copy between strided buffers."""
    views = []
    for unranked in (source.contents, target.contents):
        rank = unranked.rank
        d = descriptor(rank).from_address(unranked.descriptor)
        shape, strides = tuple(d.sizes) if rank else (), tuple(s * nbytes for s in d.strides) if rank else ()
        span = sum((n - 1) * s for n, s in zip(shape, strides)) + nbytes if 0 not in shape else 0
        buffer = (ctypes.c_char * span).from_address(d.aligned + d.offset * nbytes)
        views.append(np.ndarray(shape, np.dtype(f"V{nbytes}"), buffer, 0, strides))
    views[1][...] = views[0]


_keep = []


def run_linalg(text, name, args, results):
    """Runs ``@name`` of a module of linalg on tensors. ``results``: (dtype, rank) of each result."""
    module = fusion.parse(text)
    for op in module.body.operations:
        if op.operation.attributes["sym_name"].value == name:
            with module.context:
                op.operation.attributes["llvm.emit_c_interface"] = mlir.ir.UnitAttr.get()
    module = run_pipeline(module, LOOPS).module
    compiled = llvm.parse_assembly(code.translate(module))
    llvm.add_symbol("memrefCopy", ctypes.cast(memref_copy, ctypes.c_void_p).value)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    host = dict(cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten())
    properties = llvm.Target.from_default_triple().create_target_machine(
        **host, codemodel="large"
    )  # its sections may lie far from each other
    engine = llvm.create_mcjit_compiler(compiled, properties)
    engine.finalize_object()
    _keep.append(engine)
    address = engine.get_function_address(f"_mlir_ciface_{name}")
    kinds = [descriptor(rank) for _, rank in results]
    together = type("Results", (ctypes.Structure,), {"_fields_": [(f"r{k}", kind) for k, kind in enumerate(kinds)]})()
    given = [describe(a) for a in args]
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(given) + 1))(address)(
        ctypes.byref(together), *[ctypes.byref(d) for d in given]
    )
    return [as_array(getattr(together, f"r{k}"), np.dtype(dtype), rank) for k, (dtype, rank) in enumerate(results)]


def check(fn, *args, target="cpu", tolerance=1e-6, exact=None):
    """``fn`` by way of its linalg level against ``fn`` itself on float64 copies; ``exact``: against these results."""
    args = tuple(np.asarray(a) for a in args)
    lowered = mlirfuse.jit(fn, target=target).lower(*args)
    text = lowered.as_text("linalg")
    reparsed = fusion.parse(text)
    assert str(fusion.parse(str(reparsed))) == str(reparsed)
    wide = [a.astype(np.float64) if a.dtype.kind == "f" or a.dtype == ml_dtypes.bfloat16 else a for a in args]
    expected = exact if exact is not None else fn(*wide)
    expected = [np.asarray(e) for e in (expected if isinstance(expected, (tuple, list)) else [expected])]
    actual = mlirfuse.jit(fn)(*args)
    actual = [np.asarray(a) for a in (actual if isinstance(actual, (tuple, list)) else [actual])]
    name = lowered.segmented().name
    given = [np.asarray(argument) for argument in lowered.arguments]
    got = run_linalg(text, name, given, [(a.dtype, a.ndim) for a in actual])
    for g, a, e in zip(got, actual, expected):
        assert g.shape == e.shape and g.dtype == a.dtype
        if a.dtype.kind in "iub":
            assert np.array_equal(g, e), fn
        else:
            bound = {2: 1e-2, 4: tolerance, 8: 1e-12}[a.dtype.itemsize]
            np.testing.assert_allclose(
                g.astype(np.float64), e, rtol=bound, atol=bound * max(1.0, np.abs(e).max(initial=0))
            )
    return text


def floats(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def norm(x, r, w, b1, b2):
    n = x + b1 + r
    d = n - n.mean(-1, keepdims=True)
    return w * (d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-12)) + b2


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_norm(target):
    w, b1, b2 = floats(3, 40)
    text = check(norm, floats(4, 5, 40), floats(4, 5, 40, seed=1), w, b1, b2, target=target, tolerance=1e-5)
    assert text.count("func.func private") == 1 and '"reduction"' in text and "fusion.scheduler" in text


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_softmax(dtype):
    check(softmax, floats(7, 33, dtype=dtype))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


FUNCTIONS = {
    "gelu": (gelu, lambda: [floats(5, 9)]),
    "reductions": (lambda x: (x.sum(), x.max(0), x.min(1, keepdims=True), x.prod(1), (x > 0).any(0), (x > 9).all()),
        lambda: [floats(4, 6)]),
    "positions": (lambda x: (x.argmax(), x.argmin(1), x.argmax(0)), lambda: [floats(5, 7)]),
    "variance": (lambda x: (x.var(0), x.std(1, ddof=1)), lambda: [floats(6, 5)]),
    "integers": (lambda i: (i // 7, i % 7, i << 2, -i, i.max(0), i.sum(1)), lambda: [np.arange(-10, 10).reshape(4, 5)]),
    "unsigned": (lambda i: (i // np.uint8(7), i > 100, i.max()),
        lambda: [np.arange(236, 256, dtype=np.uint8).reshape(4, 5)]),
    "bools": (lambda x, y: (np.where(x > y, x, y), (x > 0) & (y > 0), ~(x > 0)),
        lambda: [floats(3, 4), floats(3, 4, seed=1)]),
    "broadcasts": (lambda x, w: (x[:, None] * (w + 1)).sum(0), lambda: [floats(6), floats(5)]),
    "transposed": (lambda x: x + x.T, lambda: [floats(6, 6)]),
    "permuted": (lambda x: np.exp(x.transpose(2, 0, 1)).sum(1).copy(), lambda: [floats(3, 4, 5)]),
    "reshaped": (lambda x: (x.reshape(12, 5).sum(1), (x + 1).reshape(-1), x.reshape(3, 2, 2, 5) * 2),
        lambda: [floats(3, 4, 5)]),
    "whole_reshape": (lambda x: (x * 2).reshape(4, 9) + 1, lambda: [floats(6, 6)]),
    "one_element": (lambda x: (x.reshape(()), x.sum().reshape(1, 1), x.squeeze() + 1), lambda: [floats(1, 1)]),
    "unit_axes": (lambda x: (x.max(1), x.sum((0, 2), keepdims=True)), lambda: [floats(4, 1, 5)]),
    "slices": (lambda x: (x[1:3, ::2] * 2, x[::-1], (x + 1)[..., -1]), lambda: [floats(4, 6)]),
    "rotated": (lambda x: np.concatenate([-x[..., 3:], x[..., :3]], -1) * 2, lambda: [floats(4, 6)]),
    "padded": (lambda x: np.pad(x + 1, ((1, 2), (0, 3))) * 2, lambda: [floats(3, 4)]),
    "stacked": (lambda x, y: np.stack([x, y], 1), lambda: [floats(3, 4), floats(3, 4, seed=1)]),
    "taken": (lambda x, i: np.take(x, i, 0) + 1, lambda: [floats(5, 3), np.array([0, -1, 4, 2])]),
    "taken_along": (lambda x, i: np.take_along_axis(x, i, 1), lambda: [floats(2, 5), np.array([[0, 4], [3, -1]])]),
    "sizes": (lambda x: x * x.shape[0] + mnp.arange(x.shape[1]).astype(x.dtype) + np.ones_like(x),
        lambda: [floats(4, 6)]),
    "scalars": (lambda x, k: x * k + 1, lambda: [floats(4, 6), np.float32(2.5)]),
    "cast": (lambda x: (x.astype(np.int32), x.astype(np.float64) / 3, (x * 100).astype(np.int8)),
        lambda: [floats(4, 6)]),
    "products": (lambda x, w: np.tanh(x @ w) * 2, None),
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if FUNCTIONS[n][1]])
def test_function(name):
    fn, args = FUNCTIONS[name]
    check(fn, *args(), tolerance=1e-5)


def test_half_precision_between_generics():
    """Values between the generics of a segment are not rounded to the half type."""
    x = floats(8, 64, dtype=np.float16)
    text = check(lambda x: x * 1.001 - (x * 1.001).mean(-1, keepdims=True), x)
    assert (
        text.count("tensor.empty") == 4
        and len([line for line in text.splitlines() if "tensor.empty" in line and "f16" in line]) == 1
    )


def test_random_numbers():
    x = np.ones((5, 7), np.float32)
    fn = lambda x: mnp.dropout(x, 0.3, seed=7)  # noqa: E731
    check(fn, x, exact=mlirfuse.jit(fn)(x))


def test_partial_sums():
    """What the GPU's passes split: the backward of a layer norm."""

    def backward(g, x, w, mean, rstd):
        h = (x - mean) * rstd
        gw = g * w
        dx = rstd * (gw - gw.mean(-1, keepdims=True) - h * (gw * h).mean(-1, keepdims=True))
        return dx, (g * h).sum(0), g.sum(0)

    n = 300
    args = [floats(n, 32, seed=k) for k in range(2)] + [floats(32), floats(n, 1), np.abs(floats(n, 1)) + 1]
    assert "partial_sum" in mlirfuse.jit(backward, target="cuda:sm_90").lower(*args).as_text("segmented")
    check(backward, *args, target="cuda:sm_90", tolerance=1e-4)


def test_library_ops_are_calls():
    text = mlirfuse.jit(FUNCTIONS["products"][0]).lower(floats(4, 5), floats(5, 6)).as_text("linalg")
    assert 'fusion.op = "matmul"' in text and text.count(" call @") == 2


def test_complex_numbers_as_parts():
    text = mlirfuse.jit(lambda x: x * 2j).lower(np.ones(3, np.complex64)).as_text("linalg")
    assert "complex" not in text and "linalg.generic" in text


def every_elementwise(dtype):
    """A graph of every elementwise op that takes ``dtype``, on arguments between 0 and 1, and what NumPy gives."""
    rng = np.random.default_rng(3)
    inputs = [rng.uniform(0.1, 0.9, (3, 5)) for _ in range(2)]
    inputs = [(a * 10).astype(dtype.numpy) if not dtype.is_float else a.astype(dtype.numpy) for a in inputs]
    if dtype is dt.bool_:
        inputs = [rng.uniform(size=(3, 5)) > 0.5 for _ in range(2)]
    args = [Value(dtype, (sz.symbol("s0"), sz.symbol("s1"))) for _ in inputs]
    block = Block(args)
    builder, expected = Builder(block), []
    for row in ops.TABLE.values():
        if (
            row.kind != "elementwise"
            or row.operand_dtypes
            or dtype.kind not in row.takes
            or "to" in row.attrs
            or row.name in ("acosh", "complex")
        ):
            continue
        operands = args[: len(row.operands)]
        block.returns.append(builder.op(row.name, *operands))
        with np.errstate(all="ignore"):
            expected.append((row.name, np.asarray(row.ref(*inputs[: len(operands)]))))
    return Graph("every", block, [None, None]), inputs, expected


@pytest.mark.parametrize("dtype", [dt.f32, dt.f16, dt.i32, dt.u64, dt.bool_], ids=str)
def test_every_elementwise_op(dtype):
    graph, inputs, expected = every_elementwise(dtype)
    assert len(expected) > (15 if dtype is dt.bool_ else 30)
    run_pipeline([graph], "builtin.module(fusion-group{single-op=true horizontal=true},fusion-segment)")
    text = str(to_linalg([graph]))
    kinds = [(v.dtype.numpy, v.rank) for v in graph.returns]
    for (name, want), got, (kind, _) in zip(expected, run_linalg(text, "every", inputs, kinds), kinds):
        if np.dtype(kind).kind in "iub":
            assert np.array_equal(got, want.astype(kind)), name
        else:
            bound = {2: 3e-3, 4: 3e-6, 8: 1e-13}[np.dtype(kind).itemsize]
            np.testing.assert_allclose(
                got.astype(np.float64), want.astype(np.float64), rtol=bound, atol=bound, err_msg=name
            )


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize("seed", [3, 14, 20, 31, 47, 58])
def test_random_programs(seed, target):
    program = random_programs.make(seed)
    runs = random_programs.reference(program, program.calls[0])
    given = random_programs.instantiate(program.calls[0], False)
    lowered = mlirfuse.jit(program.function(), fallback=False, target=target).lower(
        *[given[a.name] for a in program.args]
    )
    text, graph = lowered.as_text("linalg"), lowered.segmented()
    if "fusion.op" in text or any(0 in np.shape(x) for x in given.values()):
        pytest.skip("calls a library, or is empty")
    args = []
    for value, argument in zip(graph.args, lowered.arguments):
        x = np.asarray(argument)
        args.append(np.ascontiguousarray(x.astype(value.dtype.numpy)).reshape(x.shape))
    results = run_linalg(text, graph.name, args, [(v.dtype.numpy, v.rank) for v in graph.returns])
    for k, (out, name) in enumerate(zip(lowered._specialization.traced.outs, program.returns)):
        if out.kind == "result":
            key = f"result {k} ({name})"
            got = results[out.index]
            got = got if isinstance(runs.plain[key], np.ndarray) else got[()]
            assert random_programs.difference(key, got, runs) is None, program.show(program.calls[0])


# ---- jit(lowering="linalg"), and pipelines of the caller's


def by_linalg(fn, **options):
    return mlirfuse.jit(fn, fallback=False, lowering="linalg", **options)


def test_a_variant_for_each_set_of_sizes():
    f = by_linalg(softmax)
    before = mlirfuse.counters.specializations, mlirfuse.counters.compiled_programs
    for shape in ((4, 33), (5, 7), (4, 33)):
        np.testing.assert_allclose(f(floats(*shape)), softmax(floats(*shape)), rtol=1e-5)
    assert (mlirfuse.counters.specializations - before[0], mlirfuse.counters.compiled_programs - before[1]) == (1, 2)


@pytest.mark.parametrize("view", [np.s_[:, ::2], np.s_[::-1], np.s_[::-2, ::-1], np.s_[:0:-1, 1:]])
def test_strides(view):
    x = floats(6, 8)[view]
    np.testing.assert_allclose(by_linalg(lambda x: x.sum(0) + x[-1])(x), x.sum(0) + x[-1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("view", [np.s_[:], np.s_[::-1, ::-1]])
def test_writes_into_an_argument(view):
    """The argument is read at other places than it is written."""

    def update(x, y):
        x[...] = x.T + y
        return x.sum(0)

    x, y = np.arange(9.0).reshape(3, 3), np.arange(9.0, 18.0).reshape(3, 3)
    other = x.copy()
    got, want = by_linalg(update)(x[view], y), update(other[view], y)
    np.testing.assert_array_equal(x, other)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("number", [2.5, 3, True, np.float16(0.1), np.uint8(200)])
def test_numbers_by_value(number):
    x = floats(5)
    np.testing.assert_allclose(by_linalg(lambda x, k: x * k)(x, number), x * number, rtol=1e-6)


def test_complex_numbers():
    z = np.arange(6).reshape(2, 3) * (1 - 2j)
    np.testing.assert_allclose(by_linalg(lambda x: np.exp(x.T * 2j) + x.sum())(z), np.exp(z.T * 2j) + z.sum())


def test_options_that_there_are_not():
    with pytest.raises(ValueError, match="'affine'"):
        mlirfuse.jit(softmax, lowering="affine")
    with pytest.raises(ValueError, match="'tiled'"):
        mlirfuse.jit(softmax, pipeline="builtin.module(canonicalize)", from_level="tiled")
    with pytest.raises(mlirfuse.MlirfuseError, match="convert-linalg-to-loop"):
        mlirfuse.jit(softmax, pipeline="builtin.module(convert-linalg-to-loop)")


DOWN = "linalg-to-buffers,allocs-to-workspace,convert-linalg-to-loops,loops-to-llvm"
INCOMPLETE = {
    "linalg-to-buffers": "end in the LLVM dialect and leaves .*linalg.generic",
    "linalg-to-buffers,convert-linalg-to-loops,loops-to-llvm": "calls malloc, which are not defined: put allocs",
    f"{DOWN},symbol-privatize,symbol-dce": "no llvm.func @entry",
    "canonicalize{x=1}": "canonicalize",
}  # fmt: skip


@pytest.mark.parametrize("pipeline", INCOMPLETE)
def test_a_pipeline_that_does_not_end_where_it_has_to(pipeline):
    with pytest.raises(mlirfuse.MlirfuseError, match=INCOMPLETE[pipeline]):
        mlirfuse.jit(softmax, pipeline=f"builtin.module({pipeline})", fallback=False)(floats(4, 5))


@pytest.fixture
def own_passes(monkeypatch):
    """What is registered in the test is forgotten after it."""
    monkeypatch.setattr(base, "PASSES", dict(base.PASSES))


def test_an_entry_of_another_type(own_passes):
    """What a pass made of the entry's signature is compared with what its caller gives."""

    @register
    class OneArgument(Pass):
        name = "one-argument"

        def run_on_module(self, module):
            return fusion.parse("llvm.func @entry(%x: i64) { llvm.return }")

    with pytest.raises(
        mlirfuse.MlirfuseError, match=r"gives @entry the type !llvm.func<void \(i64\)>; its caller takes"
    ):
        mlirfuse.jit(softmax, pipeline="builtin.module(one-argument)", fallback=False)(floats(4, 5))


def test_the_page_about_own_passes(capsys, own_passes):
    """The code of docs/internals/own-passes.md runs, and its pass does what it says."""
    page = (pathlib.Path(__file__).parents[3] / "docs" / "internals" / "own-passes.md").read_text()
    (code_,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    scope: dict = {}
    exec(code_, scope)
    np.testing.assert_allclose(eval(capsys.readouterr().out.replace(" ", ",")), [5 / 3] * 4, rtol=1e-6)
    text = mlirfuse.jit(lambda x: x / np.float32(3)).lower(floats(4)).as_text("linalg")
    assert "arith.divf" in text
    module = run_pipeline(fusion.parse(text), "builtin.module(divisions-to-products)").module
    assert "arith.divf" not in str(module) and "arith.mulf" in str(module)


# ---- for a GPU: PTX, run in the emulator


def test_deviations_of_infinities_on_a_gpu():
    """They are NaN, as NumPy's."""
    x = np.ones((2, 5), np.float32)
    x[0, 2], x[1, 4] = np.inf, -np.inf
    (got,) = linalg_emulated.run(lambda x: x.var(-1), x)
    assert np.isnan(got).all()


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if FUNCTIONS[n][1]])
def test_function_on_a_gpu(name):
    fn, args = FUNCTIONS[name]
    args = args()
    with np.errstate(all="ignore"):
        wanted = fn(*[a.astype(np.float64) if a.dtype.kind == "f" else a for a in map(np.asarray, args)])
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for got, want in zip(linalg_emulated.run(fn, *args), wanted, strict=True):
        want = np.asarray(want)
        if got is None:  # a view: no kernel
            continue
        assert got.shape == want.shape
        bound = 1e-5 * max(1.0, np.abs(want.astype(np.float64)).max(initial=0))
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=bound)


@pytest.mark.parametrize("fn", [softmax, gelu], ids=["softmax", "gelu"])
@pytest.mark.parametrize("chip", ["sm_75", "sm_90", "sm_120"])
def test_ptx(fn, chip):
    """Each kernel is launched in blocks of 128 threads, as many as hold all elements."""
    lowered = mlirfuse.jit(fn, target=f"cuda:{chip}", lowering="linalg").lower(floats(30, 40))
    text = lowered.as_text("ptx")
    assert f".target {chip}" in text and ".extern" not in text
    assert text.count(".entry") == text.count(".maxntid 128") == lowered.as_text("host").count("mgpuLaunchKernel(")
    assert lowered.levels[-2:] == ("ptx", "host")


DOWN_ON_GPU = (
    "linalg-to-buffers,allocs-to-workspace,convert-linalg-to-parallel-loops,fold-memref-alias-ops,"
    "flatten-parallel-loops,parallel-loops-to-kernels,nvvm-attach-target{chip=sm_90 features=+ptx80},kernels-to-nvvm,"
    "gpu-module-to-binary{format=isa}"
)
INCOMPLETE_ON_GPU = {
    "linalg-to-buffers": "end in one gpu.binary and leaves 0",
    DOWN_ON_GPU.replace("flatten-parallel-loops,", ""): "launched in several dimensions",
    DOWN_ON_GPU.replace("allocs-to-workspace,", ""): "memref.alloc",
}


def test_a_pipeline_for_a_gpu():
    x = floats(6, 10)
    (got,) = linalg_emulated.run(softmax, x, pipeline=f"builtin.module(linalg-fuse-elementwise-ops,{DOWN_ON_GPU})")
    np.testing.assert_allclose(got, softmax(x.astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize("pipeline", INCOMPLETE_ON_GPU)
def test_a_pipeline_for_a_gpu_that_does_not_end_where_it_has_to(pipeline):
    with pytest.raises(mlirfuse.MlirfuseError, match=INCOMPLETE_ON_GPU[pipeline]):
        linalg_emulated.run(softmax, floats(6, 10), pipeline=f"builtin.module({pipeline})")
