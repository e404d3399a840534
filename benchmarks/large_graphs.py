#!/usr/bin/env python3
"""How long the first call of a deep or wide function takes, its compilation that is, beside XLA and Inductor.

    python benchmarks/large_graphs.py --json benchmarks/results/large-graphs.json

"chain": ops on one array, one after another; "arguments": the sum of so many arrays; "sines": sums of sines of ``x * k``,
three ops each. Each point is a process of its own with empty caches, in which a small function is compiled first. The
result is checked against float64. A point that takes longer than ``--limit`` seconds is ended, and larger ones of its
row are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time

import timing

SIZES = (100, 300, 1000, 3000, 10_000)
IMPLEMENTATIONS = {"mlirfuse": "mlirfuse", "jax": "JAX/XLA", "inductor": "torch.compile"}


def chain(count: int, sin):
    def function(x):
        for k in range(count // 2):
            x = x * 0.75 + (k % 7)
        return x

    return function, 1


def arguments(count: int, sin):
    def function(*xs):
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total

    return function, count


def sines(count: int, sin):
    def function(x):
        total = sin(x)
        for k in range(1, count // 3):
            total = total + sin(x * (1 + k / 10_000))
        return total

    return function, 1


FAMILIES = {"chain": chain, "arguments": arguments, "sines": sines}


def compiler(name: str):
    """How to compile a function, its sine, and how to make its arguments of NumPy's arrays."""
    import numpy as np

    if name == "mlirfuse":
        timing.use_repository()
        import mlirfuse

        return lambda f: mlirfuse.jit(f, fallback=False), np.sin, lambda x: x
    if name == "jax":
        import jax

        return jax.jit, jax.numpy.sin, jax.numpy.asarray
    import torch

    return lambda f: torch.compile(f, dynamic=False), torch.sin, torch.from_numpy


def measure(name: str, family: str, count: int) -> float:
    """Seconds of a first call."""
    import numpy as np

    timing.cold_caches()
    compile_, sin, array = compiler(name)
    np.asarray(compile_(lambda x: sin(x) + 1)(array(np.ones(8, np.float32))))
    function, number = FAMILIES[family](count, sin)
    given = [np.linspace(0, 1, 15, dtype=np.float32).reshape(3, 5) + k % 11 for k in range(number)]
    arrays = [array(x) for x in given]
    start = time.perf_counter()
    result = np.asarray(compile_(function)(*arrays))
    seconds = time.perf_counter() - start
    exact = FAMILIES[family](count, np.sin)[0](*[x.astype(np.float64) for x in given])
    np.testing.assert_allclose(result, exact, rtol=1e-3, atol=1e-3)  # one chain of additions, as written
    return seconds


def measure_apart(name: str, family: str, count: int, limit: float) -> dict:
    """The same in a process of its own: seconds, or why there are none."""
    command = [sys.executable, __file__, "--point", name, family, str(count)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=limit + 30)  # the imports and the small function come before
    except subprocess.TimeoutExpired:
        out, err = "", f"more than {limit:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # compilers that it started
    if process.returncode == 0 and out:
        seconds = float(out.split()[-1])
        return {"seconds": seconds} if seconds <= limit else {"error": f"more than {limit:.0f} s"}
    return {"error": (err.strip().splitlines() or ["?"])[-1][:160]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="write every figure to this file")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--limit", type=float, default=60, help="seconds of a point")
    parser.add_argument("--peers", default="jax,inductor")
    parser.add_argument("--point", nargs=3, metavar=("IMPLEMENTATION", "FAMILY", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        name, family, count = options.point
        print(measure(name, family, int(count)))
        return 0
    timing.warn_of_load()
    names = ["mlirfuse", *filter(None, options.peers.split(","))]
    figures, ended = [], set()
    for family in FAMILIES:
        for count in map(int, options.sizes.split(",")):
            row = {"family": family, "ops": count}
            for name in names:
                if (family, name) in ended:
                    row[name] = {"error": "left out"}
                    continue
                row[name] = measure_apart(name, family, count, options.limit)
                if "error" in row[name]:
                    ended.add((family, name))
            figures.append(row)
            texts = [f"{row[n]['seconds']:.2f} s" if "seconds" in row[n] else f"n/a ({row[n]['error']})" for n in names]
            print(
                f"{family:<10} {count:>6}  " + " | ".join(f"{IMPLEMENTATIONS[n]} {t}" for n, t in zip(names, texts)),
                flush=True,
            )
    if options.json:
        import torch  # noqa: F401  (its version is part of the record)

        record = {"benchmark": "large_graphs", "environment": timing.environment(), "limit_s": options.limit}
        timing.write_json(options.json, {**record, "figures": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
