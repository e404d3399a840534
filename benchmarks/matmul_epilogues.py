#!/usr/bin/env python3
"""Matrix products with the ops on their results: the library's product and a kernel of ours, one kernel of ours,
Inductor's max-autotune, and cuBLASLt's epilogues. Bias, ReLU, GELU, their backward with the bias gradient, a gate, a
residual of either type, accumulation into the output.

    python benchmarks/matmul_epilogues.py --json matmul-epilogues.json
    python benchmarks/matmul_epilogues.py --only bias_gelu --only dgelu_bgrad --shape 8192x3072x768

For one GPU that nothing else uses. bfloat16 with float32 accumulation. ``two``, ``one`` and ``auto`` are by
torch.compile with mlirfuse as back end, with ``matmul_epilogues`` "never", "always" and "auto"; ``inductor`` by
Inductor's max-autotune; ``library`` is one call of cuBLASLt by the first algorithm of its heuristic, ``best`` by the
fastest of the first eight; ``mm`` the product alone. Milliseconds by events around replays of CUDA graphs, medians of
rounds in turn. Results are checked against float64 first.

``--part K/N --lock FILE``: the Kth of N parts of the rows; of N such commands one measures at a time, once all have compiled.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import itertools
import os
import pathlib
import re
import statistics
import sys
import time
import types
from typing import Any, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import timing
import torch
import torch.nn.functional as F

import mlirfuse.torch  # noqa: F401  (registers the back end)
from benchmarks.turns import Turns

WORKSPACE = 32 << 20  # bytes, what torch gives cuBLASLt on Hopper
ALGORITHMS = 8
BOUND = 8e-3  # relative error of a bfloat16 result in the Frobenius norm

# Rows, columns and reduced extent of a linear layer's forward: BERT, GPT-2, Llama.
SHAPES = (
    (8192, 3072, 768),
    (8192, 768, 3072),
    (8192, 768, 768),
    (4096, 4096, 1024),
    (4096, 1024, 4096),
    (16384, 3072, 768),
    (16384, 768, 3072),
    (8192, 5120, 1280),
    (8192, 4096, 4096),
    (8192, 14336, 4096),
    (8192, 4096, 14336),
    (16384, 11008, 4096),
    (16384, 2304, 768),
    (16384, 768, 768),
    (16384, 1536, 1536),
    (16384, 4096, 1536),
    (16384, 1536, 4096),
    (8192, 8192, 8192),
)
WAYS = ("two", "one", "auto", "inductor", "library")

# cublasLtEpilogue_t
DEFAULT, RELU, BIAS, GELU, DGELU, AUX, BGRAD, BGRADB = 1, 2, 4, 32, 64, 128, 16, 512
# cublasLtMatmulDescAttributes_t
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, AUX_POINTER, AUX_LD, AUX_TYPE, BIAS_TYPE = 3, 4, 7, 8, 11, 12, 22, 26
TYPES = {torch.bfloat16: 14, torch.float16: 2, torch.float32: 0}  # cudaDataType_t
COMPUTE_32F = 68


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class CublasLt:
    """The library that torch has loaded, and a handle of it."""

    def __init__(self):
        torch.mm(torch.ones(16, 16, device="cuda"), torch.ones(16, 16, device="cuda"))
        maps = pathlib.Path("/proc/self/maps").read_text()
        (path, *_) = re.findall(r"\S*libcublasLt\.so\S*", maps)
        self.library = ctypes.CDLL(path)
        self.library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version = self.library.cublasLtGetVersion()
        self.handle = ctypes.c_void_p()
        self.call("Create", ctypes.byref(self.handle))
        self.workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")

    def call(self, name: str, *arguments: Any) -> None:
        """Calls ``cublasLt{name}``. Raises RuntimeError with its status."""
        status = getattr(self.library, f"cublasLt{name}")(*arguments)
        if status:
            raise RuntimeError(f"cublasLt{name}: status {status}")

    def layout(self, rows: int, columns: int, tensor: torch.Tensor) -> ctypes.c_void_p:
        """The layout of ``tensor``, in the library's column-major terms."""
        layout = ctypes.c_void_p()
        self.call(
            "MatrixLayoutCreate",
            ctypes.byref(layout),
            TYPES[tensor.dtype],
            ctypes.c_uint64(rows),
            ctypes.c_uint64(columns),
            ctypes.c_int64(tensor.stride(0)),
        )
        return layout


class Product:
    """``d = epilogue(a @ b) + beta * c`` with row-major results: ``a`` and ``b`` are row-major or transposes of such."""

    def __init__(self, lt: CublasLt, a, b, d, epilogue=DEFAULT, bias=None, aux=None, c=None):
        self.lt, self.keep = lt, (a, b, c, d, bias, aux)
        desc = ctypes.c_void_p()
        lt.call("MatmulDescCreate", ctypes.byref(desc), COMPUTE_32F, 0)

        def put(attribute, value):
            lt.call("MatmulDescSetAttribute", desc, attribute, ctypes.byref(value), ctypes.sizeof(value))

        # The transposed product: the library's A is our b, both in column-major terms.
        layouts = []
        for attribute, x in ((TRANSA, b), (TRANSB, a)):
            put(attribute, ctypes.c_int32(x.stride(1) != 1))
            stored = x if x.stride(1) == 1 else x.t()
            layouts.append(lt.layout(stored.shape[1], stored.shape[0], stored))
        put(EPILOGUE, ctypes.c_int32(epilogue))
        if bias is not None:
            put(BIAS_POINTER, ctypes.c_void_p(bias.data_ptr()))
            put(BIAS_TYPE, ctypes.c_int32(TYPES[bias.dtype]))
        if aux is not None:
            put(AUX_POINTER, ctypes.c_void_p(aux.data_ptr()))
            put(AUX_LD, ctypes.c_int64(aux.stride(0)))
            put(AUX_TYPE, ctypes.c_int32(TYPES[aux.dtype]))
        out = lt.layout(d.shape[1], d.shape[0], d)
        self.alpha, self.beta = ctypes.c_float(1), ctypes.c_float(c is not None)
        c = d if c is None else c
        layouts += [lt.layout(c.shape[1], c.shape[0], c), out]
        self.desc, self.layouts, self.pointers = desc, layouts, [ctypes.c_void_p(x.data_ptr()) for x in (b, a, c, d)]
        self.algorithms = self._heuristic()
        self.chosen = self.algorithms[0]

    def _heuristic(self) -> list[Heuristic]:
        preference, found, count = ctypes.c_void_p(), (Heuristic * ALGORITHMS)(), ctypes.c_int()
        self.lt.call("MatmulPreferenceCreate", ctypes.byref(preference))
        limit = ctypes.c_size_t(WORKSPACE)
        self.lt.call("MatmulPreferenceSetAttribute", preference, 1, ctypes.byref(limit), ctypes.sizeof(limit))
        self.lt.call(
            "MatmulAlgoGetHeuristic",
            self.lt.handle,
            self.desc,
            *self.layouts,
            preference,
            ALGORITHMS,
            found,
            ctypes.byref(count),
        )
        return [h for h in found[: count.value] if h.state == 0]

    def __call__(self) -> None:
        a, b, c, d = self.pointers
        la, lb, lc, ld = self.layouts
        alpha, beta = ctypes.byref(self.alpha), ctypes.byref(self.beta)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        workspace = ctypes.c_void_p(self.lt.workspace.data_ptr())
        size = ctypes.c_size_t(WORKSPACE)
        of = (self.lt.handle, self.desc, alpha, a, la, b, lb, beta, c, lc, d, ld)
        self.lt.call("Matmul", *of, ctypes.byref(self.chosen), workspace, size, stream)


class Case(NamedTuple):
    """One kind of product at one shape: the library's call, if it has one, its results, and the same function for
    torch."""

    library: Product | None
    results: list[torch.Tensor]
    function: Any
    operands: list[torch.Tensor]
    product: Any  # without the ops


@functools.cache
def normal(*shape, dtype=torch.bfloat16, scale=1.0, use=""):
    """Random numbers, the same tensor for all cases of this ``use``."""
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def gelu_backward(dy, u):
    return torch.ops.aten.gelu_backward(dy, u, approximate="tanh")


def forward(lt: CublasLt, m: int, n: int, k: int, epilogue: int, activation, saved: bool = False) -> Case:
    """A linear layer with an activation; ``saved``: with the activation's argument as a second result."""
    x, w, bias, y = normal(m, k), normal(n, k, scale=k**-0.5), normal(n), torch.empty(m, n, device="cuda").bfloat16()
    u = torch.empty_like(y) if saved else None

    def function(x, w, bias):
        before = F.linear(x, w, bias)
        return (activation(before), before) if saved else (activation(before),)

    library = Product(lt, x, w.t(), y, epilogue, bias, u)
    return Case(library, [y, u] if saved else [y], function, [x, w, bias], lambda: x @ w.t())


def backward(lt: CublasLt, m: int, n: int, k: int, sums: bool) -> Case:
    """The gradient of GELU's argument, through the next layer's weight; ``sums``: with the bias gradient."""
    dy, w, u = normal(m, k), normal(k, n, scale=k**-0.5), normal(m, n, use="r")
    du, grad = torch.empty_like(u), torch.empty(n, device="cuda").bfloat16()

    def function(dy, w, u):
        grad = gelu_backward(dy @ w, u)
        return (grad, grad.float().sum(0).bfloat16()) if sums else (grad,)

    library = Product(lt, dy, w, du, DGELU | AUX | (BGRAD if sums else 0), grad if sums else None, u)
    return Case(library, [du, grad] if sums else [du], function, [dy, w, u], lambda: dy @ w)


def residual(lt: CublasLt, m: int, n: int, k: int, with_bias: bool) -> Case:
    x, w, r, y = (
        normal(m, k),
        normal(n, k, scale=k**-0.5),
        normal(m, n, use="r"),
        torch.empty(m, n, device="cuda").bfloat16(),
    )
    bias = normal(n) if with_bias else None

    def function(x, w, r, bias):
        return (F.linear(x, w, bias) + r,)

    library = Product(lt, x, w.t(), y, BIAS if with_bias else DEFAULT, bias, c=r)
    return Case(library, [y], function, [x, w, r, bias], lambda: x @ w.t())


def accumulate(lt: CublasLt, m: int, n: int, k: int, dtype: torch.dtype) -> Case:
    """A weight's gradient, added to what is there."""
    dy, x, total = normal(m, n), normal(m, k), normal(n, k, dtype=dtype).clone()

    def function(dy, x, total):
        return (total.add_(dy.t() @ x),)

    return Case(Product(lt, dy.t(), x, total, c=total), [total], function, [dy, x, total], lambda: dy.t() @ x)


def weight_gradient(lt: CublasLt, m: int, n: int, k: int) -> Case:
    """The gradients of a weight and of its bias."""
    dy, x = normal(m, n), normal(m, k)
    dw, db = torch.empty(n, k, device="cuda").bfloat16(), torch.empty(n, device="cuda").bfloat16()

    def function(dy, x):
        return dy.t() @ x, dy.float().sum(0).bfloat16()

    return Case(Product(lt, dy.t(), x, dw, BGRADB, db), [dw, db], function, [dy, x], lambda: dy.t() @ x)


def elementwise(lt: CublasLt, m: int, n: int, k: int, ops, *others: torch.dtype) -> Case:
    """Any ops on the result and on other matrices of its shape, which the library has no epilogue for."""
    x, w, rest = normal(m, k), normal(n, k, scale=k**-0.5), [normal(m, n, dtype=dtype, use="r") for dtype in others]

    def function(x, w, *rest):
        return (ops(F.linear(x, w), *rest),)

    return Case(None, [], function, [x, w, *rest], lambda: x @ w.t())


def gated(lt: CublasLt, m: int, n: int, k: int) -> Case:
    """The gate of a gated MLP: two products."""
    x, gate, up = normal(m, k), normal(n, k, scale=k**-0.5), normal(n, k, scale=k**-0.5, use="up")

    def function(x, gate, up):
        return (F.silu(F.linear(x, gate)) * F.linear(x, up),)

    return Case(None, [], function, [x, gate, up], lambda: x @ gate.t())


def gate_backward(lt: CublasLt, m: int, n: int, k: int) -> Case:
    """The gradients of a gated MLP's two products, through the weight behind the gate: two matrices are read, two
    written."""
    dy, w = normal(m, k), normal(k, n, scale=k**-0.5)
    gate, up = normal(m, n, use="r"), normal(m, n, use="up")

    def function(dy, w, gate, up):
        grad = dy @ w
        return torch.ops.aten.silu_backward(grad * up, gate), grad * F.silu(gate)

    return Case(None, [], function, [dy, w, gate, up], lambda: dy @ w)


CASES = {
    "none": lambda lt, *s: elementwise(lt, *s, lambda u: u),
    "cast": lambda lt, *s: elementwise(lt, *s, lambda u: u.float()),
    "gelu_erf": lambda lt, *s: elementwise(lt, *s, F.gelu),
    "residual_f32": lambda lt, *s: elementwise(lt, *s, lambda u, r: u + r, torch.float32),
    "gate": lambda lt, *s: elementwise(lt, *s, lambda u, g: F.silu(g) * u, torch.bfloat16),
    "gated_silu": gated,
    "gate_backward": gate_backward,
    "bias": lambda lt, *s: forward(lt, *s, BIAS, lambda u: u),
    "bias_relu": lambda lt, *s: forward(lt, *s, BIAS | RELU, F.relu),
    "bias_gelu": lambda lt, *s: forward(lt, *s, BIAS | GELU, gelu),
    "bias_gelu_aux": lambda lt, *s: forward(lt, *s, BIAS | GELU | AUX, gelu, saved=True),
    "dgelu": lambda lt, *s: backward(lt, *s, sums=False),
    "dgelu_bgrad": lambda lt, *s: backward(lt, *s, sums=True),
    "residual": lambda lt, *s: residual(lt, *s, with_bias=False),
    "bias_residual": lambda lt, *s: residual(lt, *s, with_bias=True),
    "accumulate": lambda lt, *s: accumulate(lt, *s, torch.bfloat16),
    "accumulate_f32": lambda lt, *s: accumulate(lt, *s, torch.float32),
    "weight_bias_gradient": lambda lt, *s: weight_gradient(lt, *s),
}


class Captured:
    """A call as a CUDA graph, so that the host's time is not measured. Its results lie where the next one's do."""

    pool: Any = None

    def __init__(self, call, check=None):
        self.call = call  # has the graph's kernels
        Captured.pool = Captured.pool or torch.cuda.graph_pool_handle()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=Captured.pool):
            results = call()
        self.errors = check(self.graph.replay, results) if check else []

    def milliseconds(self, repeats: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            self.graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / repeats


def checker(case: Case) -> Any:
    """What gives the relative errors of a call's results in the Frobenius norm against float64."""
    given = [None if x is None else x.clone() for x in case.operands]
    references = [y.float() for y in case.function(*(None if x is None else x.double() for x in given))]

    def check(call, results):
        for x, saved in zip(case.operands, given):
            if x is not None:
                x.copy_(saved)  # one is added to
        call()
        pairs = zip(case.results if results is None else results, references, strict=True)
        return [((x.float() - y).norm() / y.norm()).item() for x, y in pairs]

    return check


def prepare(case: Case, names: list[str]) -> tuple[dict[str, Captured], dict[str, float]]:
    """The ways ``names`` of a case, and the seconds that each one's first call took."""
    ways, seconds, check = {"mm": Captured(case.product)}, {}, checker(case)
    for name in names:
        if name == "library":
            continue
        code = case.function.__code__.replace()  # Dynamo keeps what it compiles, and its limits, by code object
        function = types.FunctionType(code, case.function.__globals__, name, None, case.function.__closure__)
        start = time.perf_counter()
        if name == "inductor":
            way = torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)
        else:
            mode = {"two": "never", "one": "always", "auto": "auto"}[name]
            options = {"matmul_epilogues": mode, "fallback": False}
            way = torch.compile(function, backend="mlirfuse", dynamic=False, options=options)
        way(*case.operands)
        torch.cuda.synchronize()
        seconds[name] = round(time.perf_counter() - start, 2)
        ways[name] = Captured(functools.partial(way, *case.operands), check)
    for number, algorithm in enumerate(case.library.algorithms if "library" in names and case.library else ()):
        case.library.chosen = algorithm
        try:
            ways[f"library {number}"] = Captured(case.library, check)
        except RuntimeError as error:
            print("#", timing.summary(error))
    return ways, seconds


def measure(ways: dict[str, Captured], flops: float, rounds: int) -> dict[str, float]:
    """Milliseconds of ``ways``, and of the library's first and fastest algorithm."""
    repeats = max(4, int(4e-3 / (flops / 6e14)))
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            took[name].append(way.milliseconds(repeats))
    medians = {name: round(statistics.median(times[1:]), 5) for name, times in took.items()}
    found = [ms for name, ms in medians.items() if name.startswith("library")]
    return medians | ({"library": medians["library 0"], "best": min(found)} if found else {})


def shape_of(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


def line(row: dict, ways: list[str]) -> str:
    """A row in one line: times, the library's product and a kernel over each way, errors."""
    head = f"{row['case']:22}{'x'.join(map(str, row['shape'])):18}"
    if "failed" in row:
        return head + row["failed"]
    shown = ["mm", *(way for way in [*ways, "best"] if way in row)]
    times = "".join(f" {way} {row[way]:.4f}" for way in shown)
    ratios = "".join(f" {row['two'] / row[way]:.3f}" for way in shown[2:]) if "two" in row else ""
    worst = max(itertools.chain.from_iterable(row["errors"].values()))
    return f"{head}{times} |{ratios} | {worst:.1e}{'' if worst < BOUND else '  WRONG'} {row['compile_s']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=tuple(CASES))
    parser.add_argument("--shape", action="append", type=shape_of, help="as 8192x3072x768")
    parser.add_argument("--ways", default="two,one,library", help=f"by commas, of {', '.join(WAYS)}")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--lock")
    parser.add_argument("--json")
    given = parser.parse_args()
    lt, ways = CublasLt(), given.ways.split(",")
    part, parts = map(int, given.part.split("/"))
    rows: list[dict] = [{"case": name, "shape": s} for s in given.shape or SHAPES for name in given.only or CASES]
    rows = rows[len(rows) * part // parts : len(rows) * (part + 1) // parts]
    record = {"environment": timing.environment(), "cublaslt": lt.version, "rows": rows}
    print(f"# cuBLASLt {lt.version}")
    turns = Turns(given.lock)
    prepared = ((row, prepare_row(row, lt, ways)) for row in rows)
    with_others = list(prepared) if given.lock else prepared
    with turns.alone():
        for row, made in with_others:
            if made:
                m, n, k = row["shape"]
                row |= measure(made, 2.0 * m * n * k, given.rounds)
            print(line(row, ways), flush=True)
            if given.json:
                timing.write_json(given.json, record)


def prepare_row(row: dict, lt: CublasLt, ways: list[str]) -> dict[str, Captured]:
    """The checked ways of a row, which gets their errors; nothing of one that fails, which says so."""
    try:
        made, row["compile_s"] = prepare(CASES[row["case"]](lt, *row["shape"]), ways)
        row["errors"] = {name: way.errors for name, way in made.items()}
        return made
    except Exception as error:
        row["failed"] = timing.summary(error)
        return {}


if __name__ == "__main__":
    main()
