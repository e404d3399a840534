#!/usr/bin/env python3
"""Images that are resized, beside eager and Inductor: `F.interpolate` and a sigmoid, forward and with the gradient.

    python benchmarks/torch_resizing.py --json benchmarks/results/torch-resizing-h100.json

All implementations in turns, medians; on a GPU CUDA events, the second-level cache flushed before each. The error is
that of the gradient of two images, beside eager in float64.
"""

from __future__ import annotations

import argparse
import functools
import statistics

import timing

timing.use_repository()
timing.cold_caches()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import mlirfuse.torch  # noqa: E402, F401  (the back end)

MODES = {
    "nearest": (32, 64, 64, 64),
    "bilinear": (32, 64, 64, 64),
    "bilinear, aligned corners": (32, 64, 64, 64),
    "bicubic": (16, 64, 64, 64),
    "trilinear": (4, 16, 32, 32, 32),
    "linear": (32, 64, 4096),
}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
IMPLEMENTATIONS = {"mlirfuse": {"backend": "mlirfuse", "options": {"fallback": False}}, "eager": None, "inductor": {}}


def resized(mode: str):
    name, *aligned = mode.split(", ")
    more = {"align_corners": True} if aligned else {}
    return lambda x: torch.sigmoid(F.interpolate(x, scale_factor=2, mode=name, **more))


def gradient(fn, x, incoming):
    return torch.autograd.grad(fn(x), x, incoming)[0]


def row(mode: str, dtype: str, device: str, rounds: int, calls: int) -> dict:
    """Milliseconds of each implementation's forward, without gradients, and of forward and backward."""
    torch._dynamo.reset()
    shape = MODES[mode] if device == "cuda" else (2, 8, *(n // 2 for n in MODES[mode][2:]))
    fn, x = resized(mode), torch.randn(shape, device=device).to(DTYPES[dtype]).requires_grad_()
    incoming = torch.randn_like(fn(x))
    wide = x.detach()[:2].double().requires_grad_()
    want = gradient(fn, wide, incoming[:2].double())
    timer = timing.CudaTimer() if device == "cuda" else timing.HostTimer()
    samplers, errors = {}, {}
    for name, how in IMPLEMENTATIONS.items():
        made = fn if how is None else torch.compile(fn, **how)
        forward = torch.no_grad()(functools.partial(made, x))
        both = functools.partial(gradient, made, x, incoming)
        errors[name] = (both()[:2].double() - want).abs().max().item()
        for what, call in (("forward", forward), ("both", both)):
            call()
            samplers[name, what] = (timer, call, timer.host_seconds(call))
    times = timing.interleaved(samplers, rounds, calls)
    found = {
        name: {what: statistics.median(times[name, what]) for what in ("forward", "both")} | {"error": errors[name]}
        for name in IMPLEMENTATIONS
    }
    return {"mode": mode, "shape": list(shape), "dtype": dtype, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--json")
    given = parser.parse_args()
    torch.manual_seed(0)
    record = {"environment": timing.environment(), "rows": []}
    print(f"{'':32}" + "".join(f"{name + ': forward, both ms (error)':>42}" for name in IMPLEMENTATIONS))
    for mode in MODES:
        for dtype in DTYPES:
            found = row(mode, dtype, given.device, given.rounds, given.calls)
            record["rows"].append(found)
            texts = (
                f"{found[name]['forward']:.4f}, {found[name]['both']:.4f} ({found[name]['error']:.0e})"
                for name in IMPLEMENTATIONS
            )
            print(f"{mode + ' ' + dtype:32}" + "".join(f"{text:>42}" for text in texts), flush=True)
    if given.json:
        timing.write_json(given.json, record)


if __name__ == "__main__":
    main()
