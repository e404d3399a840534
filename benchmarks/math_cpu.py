"""Time of each elementary function on the CPU, a thread, from the first-level cache: ns for 16 elements, beside
NumPy's.

    python benchmarks/math_cpu.py [function …]

"ops" is the float32 time in multiply-adds of 16 float32, timed in the same run: two of them go into a cycle on most
processors with AVX-512, and the figure holds on a busy machine too.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time

sys.path[:0] = [os.path.join(os.path.dirname(__file__), os.pardir, part) for part in (".", "test/py/helpers")]

import numpy as np  # noqa: E402
from math_harness import CpuKernel  # noqa: E402

from mlirfuse.ir import dtypes as dt  # noqa: E402
from mlirfuse.lowering import math as fm  # noqa: E402

NUMPY = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "cbrt": np.cbrt,
    "sigmoid": None, "softplus": None, "erf": None, "erfc": None, "erfinv": None, "erfcinv": None, "lgamma": None,
    "pow": np.power, "atan2": np.arctan2, "hypot": np.hypot, "fmod": np.fmod,
}  # fmt: skip
RANGE = {
    "acosh": (1, 20),
    "asin": (-1, 1),
    "acos": (-1, 1),
    "atanh": (-1, 1),
    "erfinv": (-1, 1),
    "erfcinv": (0, 2),
    "erfc": (-9, 9),
}
POSITIVE = {"log", "log2", "log10", "log1p", "lgamma", "pow"}
N = 4096  # 32 KiB of arguments and results in float32


def best(call, repeats=100, inner=20) -> float:
    """Seconds of one call: the fastest of many short samples, so that other work on the machine counts little."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(inner):
            call()
        times.append((time.perf_counter() - start) / inner)
    return min(times)


def timed(kernel, *arrays) -> float:
    """Seconds of one call of the compiled loop, without the call itself."""
    _, padded, ins, outs = kernel.prepare(*arrays)
    buffers = [aligned(a, 512 * k) for k, a in enumerate((*ins, *outs))]
    addresses = [a.ctypes.data for a in buffers]
    return best(lambda: kernel._call(padded, *addresses)) - best(lambda: kernel._call(0, *addresses))


def aligned(a, offset: int):
    """A copy at a multiple of 64 bytes, and at different places of the page: the processor compares addresses by
    these."""
    raw = np.empty(a.nbytes + 8192, np.uint8)
    start = -raw.ctypes.data % 4096 + offset
    view = raw[start : start + a.nbytes].view(a.dtype)
    view[:] = a
    return view


def vector_operation() -> float:
    """Seconds of one multiply-add of 16 float32 where nothing waits: the unit in which a function's cost is also
    printed."""

    def chains(e, x):
        ys = [e.add(x, float(k)) for k in range(12)]
        for _ in range(20):
            ys = [e.fma(y, x, x) for y in ys]
        total = ys[0]
        for y in ys[1:]:
            total = e.add(total, y)
        return total

    kernel = CpuKernel(chains, [dt.f32], [dt.f32], 16)
    return timed(kernel, np.full(N, 0.5, np.float32)) / (N / 16) / (12 * 22)


def main(names) -> None:
    rng = np.random.default_rng(0)
    print(f"{'function':10} {'f32 ns':>8} {'ops':>6} {'numpy':>8} {'f64 ns':>8} {'numpy':>8}   for 16 elements")
    copy = CpuKernel(lambda e, x: x, [dt.f32], [dt.f32], 16)
    print(f"{'(copy)':10} {timed(copy, np.ones(N, np.float32)) / N * 16e9:8.1f}")
    for name in names:
        row = []
        binary = name in ("pow", "atan2", "hypot", "fmod")
        for dtype, lanes in ((dt.f32, 16), (dt.f64, 8)):
            low, high = RANGE.get(name, (0.001, 10) if name in POSITIVE else (-10, 10))
            arrays = [rng.uniform(low, high, N).astype(dtype.numpy) for _ in range(1 + binary)]
            kernel = CpuKernel(getattr(fm, name), [dtype] * len(arrays), [dtype], lanes)
            row.append(timed(kernel, *arrays) / N * 16e9)
            out = np.empty_like(arrays[0])
            row.append(
                best(functools.partial(NUMPY[name], *arrays, out=out), 30, 5) / N * 16e9
                if NUMPY[name]
                else float("nan")
            )
        unit = vector_operation() * 1e9
        print(f"{name:10} {row[0]:8.1f} {row[0] / unit:6.0f} {row[1]:8.1f} {row[2]:8.1f} {row[3]:8.1f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("function", nargs="*", help=", ".join(NUMPY))
    given = parser.parse_args().function
    if not NUMPY.keys() >= set(given):
        parser.error(f"functions are {', '.join(NUMPY)}")
    main(given or list(NUMPY))
