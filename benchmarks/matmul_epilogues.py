#!/usr/bin/env python3
"""Matrix products with the ops on their results three ways: the library's product and a kernel of ours, one kernel of
ours, and cuBLASLt's epilogues. Bias, ReLU, tanh-GELU, their backward with the bias gradient, a residual, accumulation
into the output.

    python benchmarks/matmul_epilogues.py --json matmul-epilogues.json
    python benchmarks/matmul_epilogues.py --only bias_gelu --only dgelu_bgrad --shapes 4

For one GPU that nothing else uses. bfloat16 with float32 accumulation. ``library`` is one call of cuBLASLt by the first
algorithm of its heuristic, ``best`` by the fastest of the first eight; ``two`` and ``one`` are the same by
torch.compile with mlirfuse as back end, with ``matmul_epilogues`` "never" and "always"; ``mm`` the product alone.
Milliseconds by events around replays of CUDA graphs, medians of rounds in turn. Results are checked against float64
first.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import pathlib
import re
import statistics
import sys
from typing import Any, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import timing
import torch
import torch.nn.functional as F

import mlirfuse.torch  # noqa: F401  (registers the back end)

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
)

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
    """One kind of product at one shape: the library's call, its results, and the same function for torch."""

    library: Product
    results: list[torch.Tensor]
    function: Any
    operands: list[torch.Tensor]
    product: Any  # without the ops


def normal(*shape, dtype=torch.bfloat16, scale=1.0):
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
    dy, w, u = normal(m, k), normal(k, n, scale=k**-0.5), normal(m, n)
    du, grad = torch.empty_like(u), torch.empty(n, device="cuda").bfloat16()

    def function(dy, w, u):
        grad = gelu_backward(dy @ w, u)
        return (grad, grad.float().sum(0).bfloat16()) if sums else (grad,)

    library = Product(lt, dy, w, du, DGELU | AUX | (BGRAD if sums else 0), grad if sums else None, u)
    return Case(library, [du, grad] if sums else [du], function, [dy, w, u], lambda: dy @ w)


def residual(lt: CublasLt, m: int, n: int, k: int, with_bias: bool) -> Case:
    x, w, r, y = normal(m, k), normal(n, k, scale=k**-0.5), normal(m, n), torch.empty(m, n, device="cuda").bfloat16()
    bias = normal(n) if with_bias else None

    def function(x, w, r, bias):
        return (F.linear(x, w, bias) + r,)

    library = Product(lt, x, w.t(), y, BIAS if with_bias else DEFAULT, bias, c=r)
    return Case(library, [y], function, [x, w, r, bias], lambda: x @ w.t())


def accumulate(lt: CublasLt, m: int, n: int, k: int, dtype: torch.dtype) -> Case:
    """A weight's gradient, added to what is there."""
    dy, x, total = normal(m, n), normal(m, k), normal(n, k, dtype=dtype)

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


CASES = {
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


def errors(case: Case, one) -> list[float]:
    """The relative error of each result, of the library's and of the function ``one``, in the Frobenius norm against
    float64."""
    wide = [None if x is None else x.double() for x in case.operands]
    again = [None if x is None else x.clone() for x in case.operands]
    references = case.function(*wide)
    case.library()
    found = []
    for results in (case.results, one(*again)):
        for result, reference in zip(results, references, strict=True):
            reference = reference.double()
            found.append(((result.double() - reference).norm() / reference.norm()).item())
    return found


def timed(call, repeats: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


def captured(call):
    """``call`` as a CUDA graph, so that the host's time is not measured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def measure(case: Case, ways: dict, flops: float, rounds: int) -> dict:
    """Milliseconds of the product alone, of ``ways``, and of the library's first and fastest algorithm."""
    repeats = max(4, int(4e-3 / (flops / 6e14)))
    calls = {"mm": captured(case.product)}
    calls |= {name: captured(functools.partial(way, *case.operands)) for name, way in ways.items()}
    for number, algorithm in enumerate(case.library.algorithms):
        case.library.chosen = algorithm
        try:
            calls[f"library {number}"] = captured(case.library)
        except RuntimeError as error:
            print("#", timing.summary(error))
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            took[name].append(timed(call, repeats))
    medians = {name: statistics.median(times[1:]) for name, times in took.items()}
    library = [ms for name, ms in medians.items() if name.startswith("library")]
    return {"library": medians.get("library 0"), "best": min(library), **medians}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=tuple(CASES))
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="only the first so many")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json")
    given = parser.parse_args()
    lt = CublasLt()
    rows: list[dict] = []
    print(f"# cuBLASLt {lt.version}")
    print(f"{'':44}{'mm':>9}{'two':>9}{'one':>9}{'library':>9}{'best':>9}  two over one, best  errors")
    for name in given.only or CASES:
        for shape in SHAPES[: given.shapes]:
            row: dict[str, Any] = {"case": name, "shape": shape}
            rows.append(row)
            try:
                torch._dynamo.reset()
                case, ways = CASES[name](lt, *shape), {}
                for way, mode in (("two", "never"), ("one", "always")):
                    options = {"matmul_epilogues": mode, "fallback": False}
                    ways[way] = torch.compile(case.function, backend="mlirfuse", dynamic=False, options=options)
                row["errors"] = errors(case, ways["one"])
                row |= measure(case, ways, 2.0 * shape[0] * shape[1] * shape[2], given.rounds)
            except Exception as error:  # a row that fails is a line that says so
                row["failed"] = timing.summary(error)
                print(f"{name:22}{'x'.join(map(str, shape)):22}{row['failed']}", flush=True)
                continue
            times = "".join(f"{row[way]:9.4f}" for way in ("mm", "two", "one", "library", "best"))
            wrong = "" if max(row["errors"]) < BOUND else "  WRONG"
            print(
                f"{name:22}{'x'.join(map(str, shape)):22}{times}{row['two'] / row['one']:8.3f}"
                f"{row['two'] / row['best']:7.3f}  {' '.join(f'{e:.1e}' for e in row['errors'])}{wrong}",
                flush=True,
            )
        torch.cuda.empty_cache()
    if given.json:
        record = {"environment": timing.environment(), "cublaslt": lt.version, "rows": rows}
        timing.write_json(given.json, record)


if __name__ == "__main__":
    main()
