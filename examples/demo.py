"""Two functions in plain NumPy, each one fused kernel: `make demo`, or `python examples/demo.py` where mlirfuse is
installed.

Prints the segmented IR, the number of kernels, the error against NumPy in float64, and the time beside NumPy's; on a
machine with an NVIDIA GPU and torch also the same functions on CUDA tensors, beside torch's own ops.
"""

import statistics
import sys
import time

import numpy as np

import mlirfuse


@mlirfuse.jit
def norm(x, r, w, b1, b2):
    """Bias, residual add, layer norm: the tutorial's function."""
    n = x + b1 + r
    d = n - n.mean(-1, keepdims=True)
    return w * (d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-12)) + b2


@mlirfuse.jit
def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def arguments():
    rng = np.random.default_rng(0)

    def array(*shape):
        return rng.standard_normal(shape, np.float32)

    yield (
        "bias + add + layer norm, 64 x 128 x 1024 float32",
        norm,
        (array(64, 128, 1024), array(64, 128, 1024), array(1024), array(1024), array(1024)),
    )
    yield "GELU (tanh), 4096 x 3072 float32", gelu, (array(4096, 3072),)


def milliseconds(call, times, finish=lambda: None):
    """The median time of a call."""
    taken = []
    for _ in range(times):
        finish()
        start = time.perf_counter()
        result = call()
        finish()
        taken.append((time.perf_counter() - start) * 1e3)
        del result
    return statistics.median(taken)


def error_of(result, fn, args):
    """The largest error against NumPy in float64, relative to the largest result."""
    exact = fn.fn(*(a.astype(np.float64) for a in args))
    return float(np.abs(result - exact).max() / np.abs(exact).max())


def on_cpu(title, fn, args):
    print(f"\n=== {title}\n")
    print(fn.lower(*args).as_text("segmented"))
    start = time.perf_counter()
    result = fn(*args)
    first = (time.perf_counter() - start) * 1e3
    error = error_of(result, fn, args)
    ours, theirs = milliseconds(lambda: fn(*args), 20), milliseconds(lambda: fn.fn(*args), 5)
    print(f"kernels                                   {fn.kernels(*args)}")
    print(f"largest error against NumPy in float64    {error:.1e} of the largest result")
    print(f"first call: traced, compiled or loaded     {first:.0f} ms")
    print(f"a call                                    {ours:.2f} ms")
    print(f"NumPy                                     {theirs:.2f} ms: {theirs / ours:.1f} times as long")
    return error < 2e-6


def on_gpu(torch, title, fn, args):
    tensors = [torch.from_numpy(a).cuda() for a in args]
    error = error_of(fn(*tensors).cpu().numpy(), fn, args)
    eager = {norm: torch_norm, gelu: lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh")}[fn]
    ours = milliseconds(lambda: fn(*tensors), 20, torch.cuda.synchronize)
    theirs = milliseconds(lambda: eager(torch, *tensors), 20, torch.cuda.synchronize)
    print(f"\n=== {title}, on {torch.cuda.get_device_name()}\n")
    print(f"kernels                                   {fn.kernels(*tensors)}")
    print(f"largest error against NumPy in float64    {error:.1e} of the largest result")
    print(f"a call, host time included                {ours:.3f} ms")
    print(f"torch, op by op                           {theirs:.3f} ms")
    return error < 2e-6


def torch_norm(torch, x, r, w, b1, b2):
    return torch.nn.functional.layer_norm(x + b1 + r, x.shape[-1:], w, b2, 1e-12)


def main():
    print(f"mlirfuse {mlirfuse.__version__}")
    right = [on_cpu(*case) for case in arguments()]
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None and torch.cuda.is_available():
        right += [on_gpu(torch, *case) for case in arguments()]
    else:
        print("\nno NVIDIA GPU with torch here; the PTX that one would run: examples/demo.py --ptx")
    if "--ptx" in sys.argv:
        for title, fn, args in arguments():
            print(f"\n=== {title}, PTX for sm_90\n")
            print(mlirfuse.jit(fn.fn, target="cuda:sm_90").lower(*args).as_text("ptx"))
    if not all(right):
        sys.exit("a result is not right")


if __name__ == "__main__":
    main()
