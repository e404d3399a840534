#!/usr/bin/env python3
"""How far the schedulers' own choice of parameters is from the best of the candidates that ``mlirfuse.autotune``
measures.

    python benchmarks/autotune.py --json benchmarks/results/autotune-h100.json
    python benchmarks/autotune.py --table --heuristics derived h100 calibrated

Over the rows of the GPU table and a grid of other sizes of the operations of ``gpu_sweep.py``. "off" is how much longer
the choice takes than the best candidate; a launch of 10 µs differs by 5% from run to run by itself, so that small sizes
are counted apart. ``--heuristics`` measures the choices of several heuristics in one run: derived from the card's
properties, an H100's file, what ``python -m mlirfuse calibrate`` found. Compilation takes most of the time: to share
it, run ``--part 0/8`` to ``--part 7/8`` at once before, with the same cache.
"""

from __future__ import annotations

import argparse
import gc
import itertools
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


def cases(table: bool):
    """(name, function, inputs), which are made when they are run; ``table``: only the GPU table's rows."""
    import torch
    import workloads

    for w in workloads.gpu_table(False):
        yield f"{w.name} {w.shape} {w.dtype}", w.fused, lambda w=w: [*w.make("cuda"), *w.extra]
    for name, (fn, _, _, kinds) in () if table else gpu_sweep.operations().items():
        for shape in SHAPES:
            for dtype in (torch.float32, torch.bfloat16):

                def make(shape=shape, dtype=dtype, kinds=kinds):
                    made = [torch.randn(gpu_sweep.shape_of(kind, *shape), device="cuda") for kind in kinds]
                    return [t if kind in "mr" else t.to(dtype) for kind, t in zip(kinds, made)]

                yield f"{name} {shape[0]}×{shape[1]} {str(dtype).removeprefix('torch.')}", fn, make


def chosen(call, heuristics: list[str]) -> dict[str, tuple]:
    """The schedules of a call's steps by the heuristics of each name; "own": those that are used."""
    from mlirfuse.runtime import calibration
    from mlirfuse.schedule.gpu import tuning
    from mlirfuse.schedule.gpu.tuning import derived, h100

    properties, found = call.target.properties, {}
    values = {
        "own": lambda: tuning.heuristics_of(properties),
        "derived": lambda: derived.derive(properties),
        "h100": lambda: h100.HEURISTICS,
        "calibrated": lambda: calibration.load(properties),
    }
    for name in heuristics:
        used = values[name]()
        if used is None:
            sys.exit("autotune.py: no calibration of this card: run python -m mlirfuse calibrate first")
        with tuning.using(properties, used):
            found[name] = call.target.parameters(call.program, call.env, call.alignments)
    return found


def measured(name: str, call, options) -> list[dict]:
    """The times of a case's steps, which are printed."""
    schedules, found = chosen(call, options.heuristics), []
    tuned, _ = call.measure(options.repeat, options.limit, list(schedules.values()))
    for at, step in enumerate(tuned):
        best = step.times[step.best]
        row = {
            "case": name,
            "segment": step.segment,
            "candidates": len(step.times),
            "best_ms": best,
            "best": str(step.best),
        }
        for used, params in schedules.items():
            row[used] = {
                "ms": step.times[params[at]],
                "off": step.times[params[at]] / best - 1,
                "choice": str(params[at]),
            }
        found.append(row)
        text = ", ".join(f"{used} {row[used]['off']:.1%}" for used in schedules)
        print(
            f"{name:<52} {step.segment:<14} {len(step.times):3} candidates, best {best:.4f} ms, off: {text}", flush=True
        )
        for used in schedules:
            if row[used]["off"] > 0.05:
                print(f"    {used} {row[used]['choice']}\n    best {row['best']}")
    return found


def totals_of(found: list[dict], heuristics: list[str]) -> dict:
    """By heuristics and duration, how far choices are from the best; printed too."""
    totals: dict = {}
    for used in heuristics:
        for what, some in (
            ("all", found),
            ("long", [f for f in found if f["best_ms"] >= SHORT]),
            ("short", [f for f in found if f["best_ms"] < SHORT]),
        ):
            off = [f[used]["off"] for f in some]
            if off:
                totals[f"{used}, {what}"] = {
                    "choices": len(off),
                    "median_off": statistics.median(off),
                    "mean_off": statistics.fmean(off),
                    "within_1_percent": sum(x <= 0.01 for x in off),
                    "within_5_percent": sum(x <= 0.05 for x in off),
                    "most_off": max(off),
                }
                print(
                    f"{used}, {what}: {len(off)} choices, median {statistics.median(off):.1%} off, mean "
                    f"{statistics.fmean(off):.1%}, {sum(x <= 0.01 for x in off)} within 1%, "
                    f"{sum(x <= 0.05 for x in off)} within 5%, at most {max(off):.0%}"
                )
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="write every figure to this file")
    parser.add_argument(
        "--only", action="append", default=[], help="only cases whose name holds this text (may be given again)"
    )
    parser.add_argument("--table", action="store_true", help="only the rows of the GPU table")
    parser.add_argument("--heuristics", nargs="+", default=["own"], choices=["own", "derived", "h100", "calibrated"])
    parser.add_argument("--part", default="0/1", metavar="K/N", help="every N-th case from the K-th on, from 0")
    parser.add_argument("--limit", type=int, default=40, help="candidates of a segment")
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("autotune.py: torch sees no CUDA device here", file=sys.stderr)
        return 2
    torch.set_grad_enabled(False)
    mlirfuse = timing.Mlirfuse()
    from mlirfuse.runtime.autotune import TunedCall

    found = []
    first, parts = map(int, options.part.split("/"))
    for name, fn, make in itertools.islice(cases(options.table), first, None, parts):
        if options.only and not any(text.lower() in name.lower() for text in options.only):
            continue
        call = TunedCall.of(mlirfuse.jit(fn), make())
        found += measured(name, call, options)
        del call
        gc.collect()
        torch.cuda.empty_cache()
    totals = totals_of(found, options.heuristics)
    if options.json:
        record = {"benchmark": "autotune", "environment": timing.environment(), "short_ms": SHORT}
        timing.write_json(options.json, {**record, "totals": totals, "choices": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
