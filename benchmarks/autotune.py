#!/usr/bin/env python3
"""How far the schedulers' own choice of parameters is from the best of the candidates that ``mlirfuse.autotune``
measures.

    python benchmarks/autotune.py --json benchmarks/results/autotune-h100.json

Over the rows of the GPU table and a grid of other sizes of the operations of ``gpu_sweep.py``. "off" is how much longer
the model's choice takes than the best candidate; a launch of 10 µs differs by 5% from run to run by itself, so that
small sizes are counted apart.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys

import gpu_sweep
import timing

SHORT = 0.02  # milliseconds under which a launch's own time is much of it
SHAPES = [
    (256, 257),
    (1024, 1024),
    (131072, 32),
    (16384, 770),
    (4096, 8191),
    (256, 50257),
    (2048, 16384),
    (1024, 65536),
]


def cases(only: list[str]):
    """(name, function, inputs): made when it is their turn."""
    import torch
    import workloads

    for w in workloads.gpu_table(False):
        yield f"{w.name} {w.shape} {w.dtype}", w.fused, lambda w=w: [*w.make("cuda"), *w.extra]
    for name, (fn, _, _, kinds) in gpu_sweep.operations().items():
        for shape in SHAPES:
            for dtype in (torch.float32, torch.bfloat16):

                def make(shape=shape, dtype=dtype, kinds=kinds):
                    made = [torch.randn(gpu_sweep.shape_of(kind, *shape), device="cuda") for kind in kinds]
                    return [t if kind in "mr" else t.to(dtype) for kind, t in zip(kinds, made)]

                yield f"{name} {shape[0]}×{shape[1]} {str(dtype).removeprefix('torch.')}", fn, make


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="write every figure to this file")
    parser.add_argument(
        "--only", action="append", default=[], help="only cases whose name holds this text (may be given again)"
    )
    parser.add_argument("--limit", type=int, default=40, help="candidates of a segment")
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("autotune.py: torch sees no CUDA device here", file=sys.stderr)
        return 2
    torch.set_grad_enabled(False)
    mlirfuse = timing.Mlirfuse()
    from mlirfuse.runtime.autotune import autotune

    found = []
    for name, fn, make in cases(options.only):
        if options.only and not any(text.lower() in name.lower() for text in options.only):
            continue
        compiled, inputs = mlirfuse.jit(fn), make()
        for tuned in autotune(compiled, *inputs, repeat=options.repeat, limit=options.limit, keep=False):
            model, best = tuned.times[tuned.heuristics], tuned.times[tuned.best]
            found.append({"case": name, "segment": tuned.segment, "candidates": len(tuned.times), "model_ms": model, "best_ms": best,
                          "off": tuned.model_loss, "model": str(tuned.heuristics), "best": str(tuned.best)})  # fmt: skip
            print(
                f"{name:<52} {tuned.segment:<14} {len(tuned.times):3} candidates, model {model:.4f} ms, best {best:.4f} ms: {tuned.model_loss:.1%} off",
                flush=True,
            )
            if tuned.model_loss > 0.05:
                print(f"    model {tuned.heuristics}\n    best  {tuned.best}")
        del compiled, inputs, tuned
        gc.collect()
        torch.cuda.empty_cache()
    totals = {}
    for what, some in (
        ("all", found),
        ("long", [f for f in found if f["best_ms"] >= SHORT]),
        ("short", [f for f in found if f["best_ms"] < SHORT]),
    ):
        off = [f["off"] for f in some]
        if off:
            totals[what] = {"choices": len(off), "median_off": statistics.median(off), "within_1_percent": sum(x <= 0.01 for x in off),
                            "within_5_percent": sum(x <= 0.05 for x in off), "most_off": max(off)}  # fmt: skip
            print(f"{what}: {len(off)} choices, median {statistics.median(off):.1%} off, {sum(x <= 0.01 for x in off)} within 1%, "
                  f"{sum(x <= 0.05 for x in off)} within 5%, at most {max(off):.0%}")  # fmt: skip
    if options.json:
        timing.write_json(
            options.json,
            {
                "benchmark": "autotune",
                "environment": timing.environment(),
                "short_ms": SHORT,
                "totals": totals,
                "choices": found,
            },
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
