"""Time and peak memory of training code, a case after the other: what scripts for one GPU share.

A script gives cases; :func:`main` builds, compiles and measures each. With ``--lock FILE`` several such commands compile
at once and measure one by one (the file's lock is shared while compiling): each first builds all of its cases, which
then hold their parameters alone. Cases of eager, with nothing to compile, are built when it is their turn.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch

import mlirfuse.torch  # noqa: F401  (registers the back end)
from benchmarks.turns import Turns

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Case(NamedTuple):
    """``build()`` gives what runs once and returns a number to compare (a loss), and what is measured."""

    row: dict[str, Any]  # what the case is; "by": the implementation
    build: Callable[[], tuple[Callable[[], float], Callable[[], Any]]]


def _milliseconds(run: Callable[[], Any]) -> float:
    if DEVICE == "cpu":
        start = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - start)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def _allocated() -> int:
    gc.collect()
    return torch.cuda.memory_allocated() if DEVICE == "cuda" else 0


def _first(run: Callable[[], float]) -> float:
    """``run()``, once more where other processes have the memory: its code is compiled then."""
    for _ in range(20):
        try:
            return run()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            time.sleep(2)
    return run()


class _Built:
    """A case, its first run done, and the bytes that it holds."""

    def __init__(self, case: Case):
        self.row, before = case.row, _allocated()
        torch.manual_seed(0)
        first, self.run = case.build()
        start = time.perf_counter()
        value = _first(first)
        self.row = case.row | {"first s": round(time.perf_counter() - start, 1), "value": float(f"{value:.6g}")}
        self.held = _allocated() - before

    def held_at_peak(self, most: int) -> list[str]:
        """What a run has allocated when most is, the largest sizes first: bytes, how many of them, who allocated."""
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
        self.run()
        torch.cuda.synchronize()
        (trace,) = torch.cuda.memory._snapshot()["device_traces"][:1]
        torch.cuda.memory._record_memory_history(enabled=None)
        live: dict[int, tuple[int, str]] = {}
        held = peak = 0
        found: list[tuple[int, str]] = []
        for event in trace:
            if event["action"] == "alloc":
                frames = [f"{os.path.basename(f['filename'])}:{f['line']}" for f in event.get("frames", [])[:3]]
                live[event["addr"]] = event["size"], " < ".join(frames)
                held += event["size"]
            elif event["action"] == "free_completed":
                held -= live.pop(event["addr"], (event["size"], ""))[0]
            if held > peak and event["action"] == "alloc":
                peak, found = held, list(live.values())
        counts = collections.Counter(found)
        order = sorted(counts, key=lambda key: -key[0] * counts[key])[:most]
        return [f"{peak / 1e9:.3f} GB above the start"] + [
            f"{size * counts[size, who] / 1e9:.3f} GB: {counts[size, who]} x {size} by {who}" for size, who in order
        ]

    def measured(self, repeats: int) -> dict[str, Any]:
        """The median of ``repeats`` runs, the least, and the peak without what other cases hold."""
        others = _allocated() - self.held
        for _ in range(3):
            self.run()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        took = [_milliseconds(self.run) for _ in range(repeats)]
        peak = torch.cuda.max_memory_allocated() - others if DEVICE == "cuda" else 0
        return self.row | {"ms": round(statistics.median(took), 3), "least": round(min(took), 3),
                           "GB": round(peak / 1e9, 2)}  # fmt: skip


def rows(cases: Iterable[Case], repeats: int, turns: Turns, held: int) -> Iterator[dict[str, Any]]:
    """The cases with their figures: milliseconds, peak in GB, seconds of the first run, its value. ``held``: of how many
    sizes to print what is held at the peak."""
    torch._dynamo.config.automatic_dynamic_shapes = False  # cases share code objects
    torch._dynamo.config.recompile_limit = 64
    waiting: list[Any] = [_Built(case) if turns.files and case.row["by"] != "eager" else case for case in cases]
    with turns.alone():
        while waiting:
            this = waiting.pop(0)
            if isinstance(this, Case):
                torch._dynamo.reset() if not turns.files else None
                this = _Built(this)
            yield this.measured(repeats) | ({} if turns.quiet else {"quiet": False})
            for line in this.held_at_peak(held) if held and DEVICE == "cuda" else []:
                print("    " + line, flush=True)
            del this


def main(doc: str, kinds: dict[str, Callable[[argparse.Namespace], Iterable[Case]]]) -> None:
    """The command line: a kind of cases, and what it may be told."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(kinds))
    parser.add_argument("--small", action="store_true", help="tiny sizes, also on a CPU: does it run")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--by", type=lambda names: names.split(";"), help="implementations, by semicolons")
    parser.add_argument("--only", type=lambda names: names.split(","), help="names of cases, by commas")
    parser.add_argument("--lock", help="a file to lock: several such commands compile at once and measure one by one")
    parser.add_argument("--patience", type=float, default=1e9, help="seconds after which to measure beside compilers")
    parser.add_argument("--held", type=int, default=0, help="print the N largest sizes of what is held at the peak")
    parser.add_argument("--json")
    args = parser.parse_args()
    found = []
    for row in rows(kinds[args.what](args), args.repeats, Turns(args.lock, args.patience), args.held):
        found.append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if args.json:
        where = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"}
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({**where, "rows": found}, file, indent=1)
