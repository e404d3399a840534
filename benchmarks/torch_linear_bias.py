#!/usr/bin/env python3
"""A linear layer or a convolution with a bias under an activation, two ways: torch's own op adds the bias, or the kernel
of the activation does.

    python benchmarks/torch_linear_bias.py                  # processor time of one thread
    python benchmarks/torch_linear_bias.py --device cuda    # time by events, bfloat16 and float32
    python benchmarks/torch_linear_bias.py --small          # tiny sizes: does it run

Each row: milliseconds of a forward, then of a forward and a backward, with torch's op, with the bias apart, and the
ratio of the two (above 1: apart is faster). Medians of calls in turn, in one process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from functools import partial

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
import torch.nn.functional as F

import mlirfuse.torch  # noqa: F401  (registers the back end)

LINEAR = {"small": (256, 256, 1024), "block": (2048, 768, 3072), "large": (8192, 1024, 4096)}  # rows, in, out
CONVOLUTIONS = {"small": (4, 32, 28, 32), "stage": (8, 64, 56, 64), "large": (16, 64, 112, 128)}  # n, in, side, out


def linear(x, w, b):
    return F.gelu(F.linear(x, w, b))


def linear_apart(x, w, b):
    return F.gelu(F.linear(x, w) + b)


def convolution(x, w, b):
    return F.silu(F.conv2d(x, w, b, padding=1))


def convolution_apart(x, w, b):
    return F.silu(F.conv2d(x, w, padding=1) + b.view(-1, 1, 1))


def cases(small: bool):
    """Each row's name, the two functions, and the shapes of their operands."""
    for name, (rows, inner, outer) in LINEAR.items():
        rows = min(rows, 64) if small else rows
        yield f"linear, {name}", linear, linear_apart, [(rows, inner), (outer, inner), (outer,)]
    for name, (n, inner, side, outer) in CONVOLUTIONS.items():
        n, side = (1, 14) if small else (n, side)
        yield (
            f"convolution, {name}",
            convolution,
            convolution_apart,
            [(n, inner, side, side), (outer, inner, 3, 3), (outer,)],
        )


def timed(runs, device: str, repeats: int) -> list[float]:
    """Median milliseconds of each of ``runs``, called in turn; on the CPU of its processor time."""
    took: list[list[float]] = [[] for _ in runs]
    for repeat in range(repeats + 3):
        for k, run in enumerate(runs):
            if device == "cuda":
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                run()
                end.record()
                end.synchronize()
                spent = start.elapsed_time(end)
            else:
                begin = time.process_time()
                run()
                spent = 1000 * (time.process_time() - begin)
            if repeat >= 3:
                took[k].append(spent)
    return [statistics.median(t) for t in took]


def step(function, operands, gradient):
    torch.autograd.grad(function(*operands), operands, gradient)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    dtypes = (torch.bfloat16, torch.float32) if given.device == "cuda" else (torch.float32,)
    print(f"{'':28}{'forward':>28}{'forward and backward':>28}")
    for dtype in dtypes:
        for name, *functions, shapes in cases(given.small):
            operands = [(torch.randn(s, device=given.device) * 0.05).to(dtype).requires_grad_() for s in shapes]
            gradient = torch.randn_like(functions[0](*operands))
            torch._dynamo.reset()
            compiled = [torch.compile(f, backend="mlirfuse", options={"fallback": False}) for f in functions]
            with torch.no_grad():
                runs = [partial(f, *operands) for f in compiled]
                forward = timed(runs, given.device, given.repeats)
            both = timed([partial(step, f, operands, gradient) for f in compiled], given.device, given.repeats)
            columns = "".join(f"{a:10.3f}{b:10.3f}{a / b:8.2f}" for a, b in (forward, both))
            print(f"{name + ', ' + str(dtype)[6:]:28}{columns}", flush=True)


if __name__ == "__main__":
    main()
