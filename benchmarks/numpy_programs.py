"""NumPy programs as people write them, unchanged, beside NumPy, Numba and JAX: do they run, do they agree, how fast?

    OPENBLAS_NUM_THREADS=1 python benchmarks/numpy_programs.py --json benchmarks/results/numpy-programs.json [NAME…]
    python benchmarks/numpy_programs.py --memory [NAME…]

For each program: the first call (trace, compile, run; nothing is in the cache on disk), then the time of a call at two
sizes. The implementations take turns, there and back, and the best of their calls counts. Arguments are copied anew for
each call, which is not counted. Numba gets the
unchanged function under ``njit``, JAX those programs that ``programs/in_jax.py`` has, with arguments that are JAX's
arrays before the clock starts.

``--memory`` calls each 10,000 times at the small size, and says by how much the process has grown since the 1,000th.

docs/generate_numpy_programs.py writes the table of docs/numpy/programs.md from the JSON.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import os
import statistics
import tempfile
import time
import warnings

os.environ.setdefault("MLIRFUSE_CACHE_DIR", tempfile.mkdtemp(prefix="mlirfuse-programs-"))

import numpy as np
from programs import composed, polybench, various

import mlirfuse

PROGRAMS = polybench.PROGRAMS | various.PROGRAMS | composed.PROGRAMS
SECONDS = 0.2  # of measuring, each
LEAST = 5  # calls, of programs that take longer
SLOWEST = 20.0  # seconds of a first call, after which a peer is not measured


def agree(got, want) -> bool:
    """Whether results and written arguments are the same: integers exactly, floats within 1e-7, those of 32 bits within
    1e-4 (sums are ordered differently, and iterations carry that on)."""
    if isinstance(want, (tuple, list)):
        return type(got) is type(want) and len(got) == len(want) and all(map(agree, got, want))
    if isinstance(want, np.ndarray | np.generic):
        if type(got) is not type(want) or got.dtype != want.dtype or got.shape != want.shape:
            return False
        if want.dtype.kind in "fc":
            scale, single = np.abs(want).max(initial=1e-300), np.finfo(want.dtype).bits == 32
            rtol, atol = (1e-4, 1e-6) if single else (1e-7, 1e-9)
            return bool(np.allclose(got, want, rtol=rtol, atol=atol * scale, equal_nan=True))
        return bool(np.array_equal(got, want))
    if isinstance(want, np.random.Generator):
        return type(got) is type(want) and got.bit_generator.state == want.bit_generator.state
    if isinstance(want, float):
        return type(got) is float and math.isclose(got, want, rel_tol=1e-7)
    return type(got) is type(want) and got == want


def called(fn, args) -> tuple:
    """The result on a copy of the arguments, with those."""
    given = copy.deepcopy(args)
    return fn(*given), list(given)


def once(call) -> tuple:
    """What a call gives, and its seconds."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def timed(calls: dict) -> dict[str, float]:
    """The best time of a call of each, in turns. ``calls``: a function that makes the arguments, and one of those."""
    best = dict.fromkeys(calls, math.inf)
    end, turns = time.perf_counter() + SECONDS * len(calls), 0
    while time.perf_counter() < end or turns < LEAST:
        turns += 1
        order = list(calls.items())
        for name, (make, fn) in order if turns % 2 else reversed(order):  # each comes after itself, too, not after one
            given = make()
            best[name] = min(best[name], once(lambda: fn(*given))[1])  # noqa: B023
    return best


class Numba:
    """The unchanged function under ``njit``."""

    def __init__(self, name: str, fn, args):
        import numba

        self.fn = numba.njit(fn)

    def prepared(self, args):
        return copy.deepcopy(args)

    def agrees(self, args, want) -> bool:
        """Numba gives numbers as Python's, and tuples for lists."""
        result, written = called(self.fn, args)
        flat = [*_leaves(result), *_leaves(written)]
        expected = [*_leaves(want[0]), *_leaves(want[1])]
        return len(flat) == len(expected) and all(map(_near, flat, expected))


class Jax:
    """The program in JAX, where there is one."""

    def __init__(self, name: str, fn, args):
        from programs import in_jax

        made = in_jax.form(name, fn, args)
        if made is None:
            raise NotImplementedError
        import jax

        self.fn = lambda *given: jax.block_until_ready(made(*given))

    def prepared(self, args):
        import jax.numpy as jnp

        return [jnp.asarray(a) if isinstance(a, np.ndarray) else a for a in args]

    def agrees(self, args, want) -> bool:
        """What the program writes is a result."""
        changed = [a for a, b in zip(want[1], args) if isinstance(a, np.ndarray) and not np.array_equal(a, b)]
        expected = [*_leaves(want[0]), *changed]
        found = [np.asarray(x) for x in _leaves(self.fn(*self.prepared(args)))]
        return len(found) == len(expected) and all(map(_near, found, expected))


PEERS = {"numba": Numba, "jax": Jax}


def _leaves(result) -> list:
    if isinstance(result, (tuple, list)):
        return [leaf for item in result for leaf in _leaves(item)]
    return [] if result is None else [result]


def _near(got, want) -> bool:
    scale = np.abs(np.asarray(want, complex)).max(initial=1e-300)
    return np.shape(got) == np.shape(want) and bool(np.allclose(got, want, rtol=1e-6, atol=1e-8 * scale))


def measure(name: str, peers: list[str]) -> dict:
    """What one program does: seconds of first calls and of calls at each size, by implementation."""
    fn, make, sizes = PROGRAMS[name]
    jitted = mlirfuse.jit(fn)
    row: dict = {"name": name, "runs": True, "agrees": True, "first": {}, "times": {"numpy": [], "mlirfuse": []}}
    others: dict = {}
    for at, size in enumerate(sizes):
        args = make(size)
        want = called(fn, args)
        try:
            with warnings.catch_warnings(record=True) as met:
                warnings.simplefilter("always")
                got, seconds = once(lambda: called(jitted, args))  # noqa: B023
            row["first"].setdefault("mlirfuse", seconds)
            if told := [str(w.message) for w in met if "mlirfuse" in str(w.message)]:
                row["fallback"] = told[0]
            row["agrees"] &= agree(got, want) and agree(called(jitted, args), want)
        except Exception as error:
            row["runs"] = row["agrees"] = False
            row["error"] = f"{type(error).__name__}: {error}"
            break
        for peer in peers:
            try:
                if at == 0:
                    others[peer] = PEERS[peer](name, fn, args)
                if peer in others:
                    given = others[peer].prepared(args)
                    _, seconds = once(lambda: others[peer].fn(*given))  # noqa: B023
                    row["first"].setdefault(peer, seconds)
                    if not others[peer].agrees(args, want) or row["first"][peer] > SLOWEST:
                        del others[peer]
            except Exception:
                others.pop(peer, None)  # it does not take the program
        calls = {key: (lambda: copy.deepcopy(args), f) for key, f in (("mlirfuse", jitted), ("numpy", fn))}  # noqa: B023
        calls |= {key: (lambda p=p: p.prepared(args), p.fn) for key, p in others.items()}  # noqa: B023
        for key, seconds in timed(calls).items():
            row["times"].setdefault(key, []).append(seconds)
    row["times"] = {key: found for key, found in row["times"].items() if len(found) == len(row["times"]["numpy"])}
    row["first"] = {key: seconds for key, seconds in row["first"].items() if key in row["times"]}
    return row


def summary(rows: list[dict]) -> str:
    """What the programs come to."""
    both = [pair for row in rows for pair in zip(row["times"]["numpy"], row["times"]["mlirfuse"])]
    slower = [
        row["name"]
        for row in rows
        for n, m in zip(row["times"]["numpy"], row["times"]["mlirfuse"])
        if m > 1.1 * n + 2e-6
    ]
    firsts = [row["first"]["mlirfuse"] for row in rows if row["runs"]]
    text = (
        f"{len(rows)} programs: {sum(r['runs'] for r in rows)} run, {sum(r['agrees'] for r in rows)} agree, "
        f"{len(slower)} of {len(both)} times slower than NumPy by a tenth and 2 µs; geometric mean over NumPy "
        f"{mean(n / m for n, m in both):.2f}; first call {statistics.median(firsts):.2f} s in the median, "
        f"{max(firsts):.2f} s at most"
    )
    for peer in PEERS:
        pairs = [
            pair for row in rows if peer in row["times"] for pair in zip(row["times"][peer], row["times"]["mlirfuse"])
        ]
        if pairs:
            text += f"; over {peer} {mean(p / m for p, m in pairs):.2f} ({len(pairs) // 2} programs)"
    return f"{text}\nslower: {', '.join(slower)}"


def mean(ratios) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(name: str, first: int = 1_000, last: int = 10_000) -> int:
    """By how many bytes the process grows from the call ``first`` to the call ``last`` at the small size."""
    fn, make, sizes = PROGRAMS[name]
    jitted, args, before = mlirfuse.jit(fn), make(sizes[0]), 0
    for k in range(1, last + 1):
        jitted(*copy.deepcopy(args))
        if k in (first, last):
            gc.collect()
            before, now = (resident(), before) if k == first else (before, resident())
    return now - before


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json")
    parser.add_argument("--peers", default="numba,jax", help="beside NumPy, with commas; may be empty")
    parser.add_argument("--memory", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    names = given.names or list(PROGRAMS)
    if given.memory:
        grown = {}
        for name in names:
            grown[name] = growth(name)
            print(f"{name:20} {grown[name] / 1024:8.0f} KiB", flush=True)
        print(f"most: {max(grown.values()) / 1024:.0f} KiB")
        rows: list | dict = grown
    else:
        rows = []
        for name in names:
            row = measure(name, list(filter(None, given.peers.split(","))))
            rows.append(row)
            numpy = row["times"]["numpy"]
            ratios = "  ".join(
                f"{key} {' '.join(f'{n / m:8.2f}' for n, m in zip(numpy, found))}"
                for key, found in row["times"].items()
                if key != "numpy"
            )
            note = row.get("error") or row.get("fallback", "")
            print(
                f"{name:20} first {row['first'].get('mlirfuse', 0):6.2f} s  {ratios}"
                f" {'' if row['agrees'] else 'DIFFERS'} {note[:90].splitlines()[0] if note else ''}",
                flush=True,
            )
        print(f"\n{summary(rows)}")
    if given.json:
        with open(given.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
