"""The tutorial's norm and a GELU, each one fused kernel: compiled, checked against NumPy in float64, timed beside NumPy.

    make demo
"""

from __future__ import annotations

import time

import numpy as np

import mlirfuse


@mlirfuse.jit
def norm(x, r, w, b1, b2):  # bias, add, layer norm in plain NumPy
    n = x + b1 + r
    d = n - n.mean(-1, keepdims=True)
    return w * (d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-12)) + b2


@mlirfuse.jit
def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def best_of(function, arguments, seconds=1.0) -> float:
    """The shortest of repeated calls, in milliseconds."""
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def show(function, *arguments) -> None:
    """Compiles, checks and times one function."""
    lowered = function.lower(*arguments)
    print(f"---- {function.__name__}: {lowered.kernels} kernel\n{lowered.as_text('segmented')}")
    start = time.perf_counter()
    result = function(*arguments)
    first = (time.perf_counter() - start) * 1e3
    exact = function.fn(*(a.astype(np.float64) for a in arguments))
    error = np.abs(result - exact).max() / np.abs(exact).max()
    assert error < 1e-5, f"{function.__name__} is off by {error}"
    print(f"first call {first:.0f} ms; then {best_of(function, arguments):.2f} ms, NumPy {best_of(function.fn, arguments):.2f} ms; error {error:.1e}\n")


def show_on_gpu(function, *arguments) -> None:
    """The same function on CUDA arrays of torch, where there is a GPU."""
    import torch

    tensors = [torch.from_numpy(a).cuda() for a in arguments]
    result = function(*tensors)
    exact = function.fn(*(a.astype(np.float64) for a in arguments))
    error = np.abs(result.cpu().numpy() - exact).max() / np.abs(exact).max()
    assert error < 1e-5, f"{function.__name__} is off by {error} on the GPU"
    print(f"{function.__name__} on {torch.cuda.get_device_name()}: a {type(result).__module__}.{type(result).__name__}, error {error:.1e}")


def main() -> None:
    rng = np.random.default_rng(0)
    x, r = rng.standard_normal((2, 64, 128, 1024), dtype=np.float32)
    w, b1, b2 = rng.standard_normal((3, 1024), dtype=np.float32)
    wide = rng.standard_normal((4096, 4096), dtype=np.float32)
    show(norm, x, r, w, b1, b2)
    show(gelu, wide)
    try:
        import torch

        there = torch.cuda.is_available()
    except ImportError:
        there = False
    if there:
        show_on_gpu(norm, x, r, w, b1, b2)
        show_on_gpu(gelu, wide)
    print(f"compiled: {mlirfuse.counters.snapshot()}")


if __name__ == "__main__":
    main()
