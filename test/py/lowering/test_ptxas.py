"""What NVIDIA's assembler says of the kernels' PTX, which needs no GPU: it is valid for every architecture that the
assembler knows, and no kernel of the benchmarks' table spills registers. The test extra of pyproject.toml has the
assembler of the driver that the figures in docs/reference/performance.md are from.
"""

import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

import mlirfuse

PTXAS = pytest.importorskip("cuda.pathfinder").find_nvidia_binary_utility("ptxas")
pytestmark = pytest.mark.skipif(PTXAS is None, reason="needs ptxas")


class Kernel(NamedTuple):
    """What a kernel takes: registers of a thread, bytes of local memory and of spills."""

    registers: int
    stack: int
    spilled: int


def assembled(fn, *args, chip: str) -> dict[str, Kernel]:
    """The kernels of ``fn`` for these arguments by name, as the assembler made them."""
    text = mlirfuse.jit(fn, target=f"cuda:{chip}").lower(*args).as_text("ptx")
    found = {}
    for module in re.split(r"(?=^\.version)", text, flags=re.MULTILINE)[1:]:
        done = subprocess.run(
            [PTXAS, f"-arch={chip}", "-v", "-", "-o", "/dev/null"], input=module, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        sizes = re.findall(
            r"properties for (\w+)\n\s+(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n.*?Used (\d+) registers",
            done.stderr,
        )
        found |= {
            name: Kernel(int(registers), int(stack), int(stores) + int(loads))
            for name, stack, stores, loads, registers in sizes
        }
        assert len(sizes) == module.count(".visible .entry ")
    return found


def array(x):
    """A torch tensor that has no memory as an array that has none yet."""
    if not hasattr(x, "untyped_storage"):
        return x
    name = str(x.dtype).removeprefix("torch.")
    return np.empty(tuple(x.shape), ml_dtypes.bfloat16 if name == "bfloat16" else name)


def table(which):
    sys.path.append(str(pathlib.Path(__file__).parents[3] / "benchmarks"))
    try:
        import second_table
        import workloads
    except ImportError:  # torch is not here
        return []
    rows = workloads.gpu_table() if which == "first" else second_table.second_table()
    return [pytest.param(w, id=f"{w.name} {w.shape} {w.dtype}") for w in rows]


def kernels_of(workload):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        inputs = workload.make("cpu")
    return assembled(workload.fused, *[array(x) for x in (*inputs, *workload.extra)], chip="sm_90")


@pytest.mark.parametrize("workload", table("first"))
def test_no_kernel_of_the_table_spills(workload):
    kernels = kernels_of(workload)
    assert kernels and all(name.startswith("mlirfuse_") for name in kernels)
    assert all(k.stack == k.spilled == 0 and k.registers <= 128 for k in kernels.values()), kernels


@pytest.mark.parametrize("workload", table("second"))
def test_no_kernel_of_the_second_table_spills(workload):
    assert all(k.stack == k.spilled == 0 for k in kernels_of(workload).values())


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def norm_backward(g, x):
    return g - x * (g * x).sum(-1, keepdims=True), (g * x).sum(0)


def scaled_gradients(g, r, scale, y):
    """The gradients of ``r = x + scale * y`` and of the bias in ``y``, in float32 and half types."""
    total = r + g.astype(np.float32)
    inner = (total * scale).astype(y.dtype)
    return total, (total * y.astype(np.float32)).sum(0), inner, inner.astype(np.float32).sum(0)


def batch_norm_gradients(g, out, x, mean, deviation):
    g = np.where(out <= 0, np.float32(0), g.astype(np.float32))
    centered = x.astype(np.float32) - mean
    sums = g.sum(0), (g * centered).sum(0)
    return (g - (sums[0] + centered * deviation * sums[1]) / len(x)).astype(x.dtype), *sums


@pytest.mark.parametrize("columns", [96, 144, 256, 768])
@pytest.mark.parametrize("fn, vectors", [(scaled_gradients, 1), (batch_norm_gradients, 2)])
def test_columns_of_several_inputs_do_not_spill(fn, vectors, columns):
    """Rows under way are fewer the more inputs there are, and the more is made of them."""
    half, full = ml_dtypes.bfloat16, np.float32
    x = np.empty((100_000, columns), half)
    along = [np.empty(columns, full) for _ in range(vectors)]
    args = (x, x.astype(full), *along, x) if fn is scaled_gradients else (x, x, x, *along)
    kernels = assembled(fn, *args, chip="sm_90")
    assert all(k.stack == k.spilled == 0 and k.registers <= 128 for k in kernels.values()), kernels


@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("fn, shapes", [
    (lambda x, b: np.tanh(x) + b, [(4096, 770), (770,)]),
    (lambda x: (x + 1).T.copy(), [(4096, 1000)]),
    (softmax, [(4096, 257)]),
    (softmax, [(64, 65_536)]),
    (lambda x: x.sum(0), [(8192, 1024)]),
    (lambda x: (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), [(8192, 1001)]),
    (lambda x: x.sum(), [(8192, 1024)]),
    (norm_backward, [(4096, 1024), (4096, 1024)]),
])  # fmt: skip
def test_every_architecture(fn, shapes, dtype, chip):
    assert assembled(fn, *[np.empty(shape, dtype) for shape in shapes], chip=chip)
