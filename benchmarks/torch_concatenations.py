#!/usr/bin/env python3
"""Concatenations whose parts share what they read, as in models: times of kernels that compute each part once, and of
those that compute every part at each element.

    python benchmarks/torch_concatenations.py --json concatenations.json
    python benchmarks/torch_concatenations.py --by-element          # without parts
    python benchmarks/torch_concatenations.py --small               # tiny sizes, also on a CPU: does it run

For one GPU; the least of 30 timings by events, beside the time in which a copy could move the inputs and results.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import timing
import torch
import torch.nn.functional as F

import mlirfuse.torch  # noqa: F401  (registers the back end)
from mlirfuse.analysis import phases
from mlirfuse.passes.permute_slices import PermuteSlices

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COPY = 4.8e12  # bytes a second that an H200's memory moves


def gelu_gate(x, g):
    a, b = x.chunk(2, -1)
    return F.gelu(a) * b * g


def silu_gate(x, g):
    a, b = x.chunk(2, -1)
    return F.silu(a) * b * g


def merged_patches(x, g):
    return torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1) * g


def biased_patches(x, g, bias):
    return merged_patches(x + bias, g)


def heads(x, bias, g):
    """Queries, keys and values of 12 heads: their gradients are joined, and summed for the bias."""
    batch, words, _ = x.shape
    q, k, v = (t.view(batch, words, 12, -1).transpose(1, 2) for t in (x + bias).chunk(3, -1))
    return torch.cat([q * g[0], k * g[1], v * g[2]], 0)


def rotated(q, cosine, sine):
    half = q.shape[-1] // 2
    return q * cosine + torch.cat([-q[..., half:], q[..., :half]], -1) * sine


def steps_summed(a, *steps):
    """A sum over 64 joined steps, as a recurrence's gradient has it."""
    return (torch.stack([step * step for step in steps], 2) * a).sum((0, 2))


def cases(small: bool) -> dict[str, tuple[Callable, list[torch.Tensor]]]:
    def made(*shape: int, grad: bool = False, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        shape = (min(shape[0], 2), *shape[1:]) if small else shape
        return torch.randn(*shape, device=DEVICE, dtype=dtype).requires_grad_(grad)

    def fixed(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)

    f32 = torch.float32
    return {
        "ModernBERT's gate": (gelu_gate, [made(16384, 2304, grad=True), made(16384, 1152)]),
        "an expert's gate": (silu_gate, [made(65536, 1536, grad=True), made(65536, 768)]),
        "merged patches": (merged_patches, [made(64, 56, 56, 96, grad=True), made(64, 28, 28, 384)]),
        "with a bias": (
            biased_patches,
            [made(64, 56, 56, 96, grad=True), made(64, 28, 28, 384), fixed(96).requires_grad_()],
        ),
        "heads with a bias": (
            heads,
            [made(16, 1024, 2304, grad=True), fixed(2304).requires_grad_(), fixed(3, 1, 12, 1024, 64)],
        ),
        "rotated": (
            rotated, [made(8, 32, 2048, 96, grad=True), fixed(2048, 96), fixed(2048, 96)]
        ),
        "64 steps summed": (
            steps_summed, [made(32, 1024, 64, 16, dtype=f32), *(made(32, 1024, 16, dtype=f32) for _ in range(64))]
        ),
    }  # fmt: skip


def microseconds(step: Callable[[], object]) -> float:
    if DEVICE == "cpu":
        start = time.perf_counter()
        step()
        return 1e6 * (time.perf_counter() - start)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(2_000_000)  # the host queues ahead
    start.record()
    step()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end)


def measured(fn: Callable, args: list[torch.Tensor]) -> dict[str, float]:
    """Of the gradients, or of the call where none are wanted."""
    torch._dynamo.reset()
    run = torch.compile(fn, backend="mlirfuse", options={"fallback": False}, dynamic=False)
    wanted = [x for x in args if x.requires_grad]
    result = run(*args)
    gradient = torch.randn_like(result)
    exact = fn(*(x.detach().double() for x in args))
    error = float((result.detach().double() - exact).abs().max() / exact.abs().max())
    del exact

    def step():
        return torch.autograd.grad(result, wanted, gradient, retain_graph=True) if wanted else run(*args)

    times = [microseconds(step) for _ in range(35)][5:]
    moved = sum(x.numel() * x.element_size() for x in [*args, *wanted, gradient])
    return {"us": round(min(times), 1), "copy_us": round(1e6 * moved / COPY, 1), "error": error}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--by-element", action="store_true", help="compute every part at each element")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.by_element:
        phases.sliced_results = lambda *_: None
        PermuteSlices.run = lambda *_: None
    found = {}
    for name, (fn, given) in cases(args.small).items():
        found[name] = measured(fn, given)
        print(name, found[name], flush=True)
    if args.json:
        timing.write_json(args.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
