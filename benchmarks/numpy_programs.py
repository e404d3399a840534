"""NumPy programs as people write them, unchanged, beside NumPy: do they run, do they agree, how fast are they?

    python benchmarks/numpy_programs.py [--json FILE] [--markdown] [NAME…]

For each program: the first call (trace, compile, run), then the time of a call at two sizes beside NumPy's, medians in
turns, on arguments copied anew for each call (the copying is not counted).
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import time
import warnings

import numpy as np
from programs import polybench, various

import mlirfuse

PROGRAMS = polybench.PROGRAMS | various.PROGRAMS
SECONDS = 0.15  # of measuring, each


def agree(got, want) -> bool:
    """Whether results and written arguments are the same: integers exactly, floats within 1e-7 (sums are ordered
    differently, and iterations carry that on)."""
    if isinstance(want, (tuple, list)):
        return type(got) is type(want) and len(got) == len(want) and all(map(agree, got, want))
    if isinstance(want, np.ndarray | np.generic):
        if type(got) is not type(want) or got.dtype != want.dtype or got.shape != want.shape:
            return False
        if want.dtype.kind in "fc":
            scale = np.abs(want).max(initial=1e-300)
            return bool(np.allclose(got, want, rtol=1e-7, atol=1e-9 * scale, equal_nan=True))
        return bool(np.array_equal(got, want))
    if isinstance(want, float):
        return type(got) is float and math.isclose(got, want, rel_tol=1e-7)
    return type(got) is type(want) and got == want


def called(fn, args) -> tuple:
    """The result on a copy of the arguments, with those."""
    given = copy.deepcopy(args)
    return fn(*given), list(given)


def timed(fns, args) -> list[float]:
    """The median time of a call of each, in turns."""
    times: list[list[float]] = [[] for _ in fns]
    end = time.perf_counter() + SECONDS * len(fns)
    while time.perf_counter() < end or len(times[0]) < 3:
        for fn, out in zip(fns, times):
            given = copy.deepcopy(args)
            start = time.perf_counter()
            fn(*given)
            out.append(time.perf_counter() - start)
    return [statistics.median(out) for out in times]


def measure(name: str) -> dict:
    """What one program does."""
    fn, make, sizes = PROGRAMS[name]
    jitted = mlirfuse.jit(fn)
    row: dict = {"name": name, "runs": True, "agrees": True, "numpy": [], "mlirfuse": []}
    for size in sizes:
        args = make(size)
        try:
            want = called(fn, args)
            start = time.perf_counter()
            with warnings.catch_warnings(record=True) as met:
                warnings.simplefilter("always")
                got = called(jitted, args)
            row.setdefault("first", time.perf_counter() - start)
            told = [str(w.message) for w in met if "mlirfuse" in str(w.message)]
            if told:
                row["fallback"] = told[0]
            row["agrees"] &= agree(got, want) and agree(called(jitted, args), want)
            ours, numpys = timed([jitted, fn], args)
        except Exception as error:
            row["runs"] = row["agrees"] = False
            row["error"] = f"{type(error).__name__}: {error}"
            break
        row["mlirfuse"].append(ours)
        row["numpy"].append(numpys)
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json")
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    rows = []
    warnings.simplefilter("ignore")
    for name in given.names or PROGRAMS:
        row = measure(name)
        rows.append(row)
        ratios = [n / m for n, m in zip(row["numpy"], row["mlirfuse"])]
        if given.markdown:
            times = " | ".join(
                f"{n * 1e6:.0f} | {m * 1e6:.0f} | {n / m:.2f}" for n, m in zip(row["numpy"], row["mlirfuse"])
            )
            print(f"| {name} | {row['first']:.2f} | {times} |", flush=True)
        else:
            note = row.get("error") or row.get("fallback", "")
            print(
                f"{name:20} first {row.get('first', 0):6.2f} s  over NumPy {' '.join(f'{r:8.2f}' for r in ratios):18}"
                f" {'' if row['agrees'] else 'DIFFERS'} {note[:150].splitlines()[0] if note else ''}",
                flush=True,
            )
    both = [(n, m) for row in rows for n, m in zip(row["numpy"], row["mlirfuse"])]
    print(
        f"\n{len(rows)} programs: {sum(r['runs'] for r in rows)} run, {sum(r['agrees'] for r in rows)} agree, "
        f"{sum(m > 1.1 * n + 2e-6 for n, m in both)} of {len(both)} times slower than NumPy by a tenth and 2 µs; "
        f"geometric mean over NumPy {math.exp(statistics.fmean(math.log(n / m) for n, m in both)):.2f}; "
        f"first call {statistics.median(r.get('first', 0) for r in rows):.2f} s in the median, "
        f"{max(r.get('first', 0) for r in rows):.2f} s at most"
    )
    if given.json:
        with open(given.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
