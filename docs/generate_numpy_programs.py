"""Writes the table of docs/numpy/programs.md from benchmarks/results/numpy-programs.json.

Run it from the repository: ``python docs/generate_numpy_programs.py``; with ``--check`` it only says whether the page is
up to date.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from pages import wrapped, write_or_check

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(HERE, "numpy", "programs.md")
RESULTS = os.path.join(HERE, "..", "benchmarks", "results", "numpy-programs.json")
MEMORY = os.path.join(HERE, "..", "benchmarks", "results", "numpy-programs-memory.json")
BEGIN = "## Programs beside NumPy"
COLUMNS = ("mlirfuse", "numpy", "numba", "jax")
LABELS = {"mlirfuse": "mlirfuse", "numpy": "NumPy", "numba": "Numba", "jax": "JAX"}


def microseconds(row: dict, name: str, size: int) -> str:
    """A time with three digits; in bold where it is the best of the row."""
    if name not in row["times"]:
        return "–"
    found = row["times"][name][size]
    text = f"{found * 1e6:.1f}" if found < 1e-4 else f"{found * 1e6:.0f}"
    return f"**{text}**" if found == min(times[size] for times in row["times"].values()) else text


def mean(ratios) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def over(rows: list[dict], name: str) -> tuple[float, int]:
    """How many times as fast as ``name``, over the programs that it runs, and how many those are."""
    some = [row for row in rows if name in row["times"]]
    return mean(p / m for row in some for p, m in zip(row["times"][name], row["times"]["mlirfuse"])), len(some)


def section() -> str:
    with open(RESULTS, encoding="utf-8") as file:
        rows = json.load(file)
    pairs = [pair for row in rows for pair in zip(row["times"]["numpy"], row["times"]["mlirfuse"])]
    slower = sum(m > 1.1 * n + 2e-6 for n, m in pairs)
    firsts = {k: [row["first"][k] for row in rows if k in row["first"]] for k in ("mlirfuse", "numba", "jax")}
    (jax, in_jax), (numba, in_numba) = over(rows, "jax"), over(rows, "numba")
    with open(MEMORY, encoding="utf-8") as file:
        grown = json.load(file)
    agree = sum(row["agrees"] for row in rows)
    plain = sum("fallback" in row for row in rows)
    text = f"""{BEGIN}

The 30 kernels of PolyBench as public NumPy ports write them, and {len(rows) - 30} programs of other fields
([benchmarks/programs](../../benchmarks/programs)), run unchanged. {sum(r["runs"] for r in rows)} run, {agree} agree with
NumPy, and {plain or "none"} fall back to NumPy, as a whole or with a loop. Numba compiles {in_numba} of them unchanged (`njit`),
and {in_jax} have a straightforward form in JAX ([in_jax.py](../../benchmarks/programs/in_jax.py)).

| compared with | times as fast (geometric mean, both sizes) | programs |
| --- | --- | --- |
| NumPy | {over(rows, "numpy")[0]:.2f} | {len(rows)} |
| Numba | {numba:.2f} | {in_numba} |
| JAX | {jax:.2f} | {in_jax} |

{slower} of {len(pairs)} times are slower than NumPy's by more than a tenth and 2 µs. First calls, with nothing on disk:
mlirfuse {statistics.median(firsts["mlirfuse"]):.2f} s in the median and {max(firsts["mlirfuse"]):.1f} s at most, Numba
{statistics.median(firsts["numba"]):.2f} and {max(firsts["numba"]):.1f} s, JAX {statistics.median(firsts["jax"]):.2f}
and {max(firsts["jax"]):.1f} s.

From the 1,000th to the 10,000th call of a program (small size) the process grows by {max(grown.values()) / 1024:.0f}
KiB at most, over the {len(grown)} (`--memory`).

`OPENBLAS_NUM_THREADS=1 python benchmarks/numpy_programs.py --json benchmarks/results/numpy-programs.json`, 2026-11-23, 2
cores with AVX-512: the implementations run in turns, and each one's best call counts. Times of a call in µs at two
sizes, the best in bold:

| program | first call, s: mlirfuse | Numba | JAX | small: {" | ".join(LABELS[c] for c in COLUMNS)} | middle: {" | ".join(LABELS[c] for c in COLUMNS)} |
| --- | --- | --- | --- | {" | ".join(["---"] * 8)} |
"""
    for row in rows:
        first = [f"{row['first'][k]:.2f}" if k in row["first"] else "–" for k in ("mlirfuse", "numba", "jax")]
        times = [microseconds(row, name, size) for size in (0, 1) for name in COLUMNS]
        text += f"| {row['name']} | {' | '.join([*first, *times])} |\n"
    return text


def page() -> str:
    with open(PAGE, encoding="utf-8") as file:
        before = file.read().partition(BEGIN)[0]
    return wrapped(before + section())


if __name__ == "__main__":
    raise SystemExit(write_or_check(PAGE, page(), "generate_numpy_programs.py"))
