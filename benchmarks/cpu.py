#!/usr/bin/env python3
"""The CPU table: mlirfuse, NumPy, torch eager, torch.compile and JAX, interleaved in one run.

    python benchmarks/cpu.py --json benchmarks/results/cpu.json

Every implementation's result is first compared with a float64 reference. Then rounds: in each, every implementation is
called a few times in turn; the figures are medians over all rounds. Each implementation allocates its results as its
users' code does, and they are let go before the next call. "of copy" is model bytes (each input read once, each output
written once) over time, as a share of the bandwidth of a copy into a warm buffer, timed in the same rounds. After the
table: the hot call on 1024 floats, first calls and the time of ``import mlirfuse``, each beside the bound that it is to
keep to.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import timing

IMPLEMENTATIONS = ("mlirfuse", "numpy", "eager", "compile", "jax")
LABELS = {
    "mlirfuse": "mlirfuse",
    "numpy": "NumPy",
    "eager": "torch eager",
    "compile": "torch.compile",
    "jax": "JAX/XLA",
}


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="write every figure to this file")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--calls", type=int, default=2, help="calls of each implementation in a round")
    parser.add_argument("--peers", default="numpy,eager,compile,jax")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument(
        "--only", action="append", default=[], help="only rows whose name holds this text (may be given again)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="512 × 512 and few rounds: to try the script, not to quote"
    )
    return parser.parse_args(argv)


class Copy:
    """A copy into a warm buffer, by NumPy and by torch, of ``nbytes`` read and written."""

    def __init__(self, nbytes: int):
        import numpy as np
        import torch

        count = nbytes // 8
        self.nbytes = count * 8
        source, target = np.ones(count, np.float32), np.ones(count, np.float32)
        a, b = torch.from_numpy(source), torch.from_numpy(target)
        self.calls = {"np.copyto": lambda: np.copyto(target, source), "torch copy_": lambda: b.copy_(a)}


def build(name, w, inputs, mlirfuse):
    """(first call, call) of an implementation on inputs of its own kind; each call waits for its result."""
    import torch

    if name == "mlirfuse":
        fn, given = mlirfuse.jit(w.fused), [t.numpy() for t in inputs]
    elif name == "numpy":
        fn, given = w.numpy or w.fused, [t.numpy() for t in inputs]
    elif name == "eager":
        fn, given = w.torch, inputs
    elif name == "compile":
        torch._dynamo.reset()
        fn, given = torch.compile(w.torch, dynamic=False), inputs
    else:
        import jax

        jitted = jax.jit(w.jax)
        fn, given = lambda *a: jax.block_until_ready(jitted(*a)), [jax.numpy.asarray(t.numpy()) for t in inputs]
    return lambda: fn(*given)


def table(options) -> tuple[list[dict], dict]:
    import torch
    import workloads

    torch.set_grad_enabled(False)
    timer = timing.HostTimer()
    names = [n for n in IMPLEMENTATIONS if n == "mlirfuse" or (not options.no_peers and n in options.peers.split(","))]
    missing, mlirfuse, first_use = {}, None, {}
    try:
        mlirfuse = timing.Mlirfuse()
        start = time.perf_counter()
        import numpy as np

        mlirfuse.jit(lambda a: np.maximum(a * 2 + 1, 0))(np.ones(256, np.float32))
        first_use["mlirfuse"] = time.perf_counter() - start
    except Exception as error:
        missing["mlirfuse"] = timing.summary(error)
    if "compile" in names:
        try:
            start = time.perf_counter()
            torch.compile(lambda a: torch.relu(a * 2 + 1))(torch.ones(256))
            first_use["compile"] = time.perf_counter() - start
        except Exception as error:
            missing["compile"] = timing.summary(error)
    if "jax" in names:
        try:
            import jax

            start = time.perf_counter()
            jax.block_until_ready(jax.jit(lambda a: a * 2 + 1)(jax.numpy.ones(256)))
            first_use["jax"] = time.perf_counter() - start
        except Exception as error:
            missing["jax"] = timing.summary(error)
    for name, why in missing.items():
        print(f"# {LABELS[name]}: n/a ({why})")
    rows = []
    for w in workloads.cpu_table(options.size):
        if options.only and not any(o.lower() in w.name.lower() for o in options.only):
            continue
        inputs = w.make("cpu")
        like = timing.as_tuple(w.torch(*inputs))
        nbytes = w.model_bytes(inputs, like)
        row = {"name": w.name, "shape": w.shape, "dtype": w.dtype, "target": w.target, "model_bytes": nbytes}
        samplers = {}
        for name in names:
            entry = row[name] = {}
            if name in missing:
                entry["error"] = missing[name]
                continue
            try:
                variants = mlirfuse.variants() or 0 if name == "mlirfuse" else 0
                call = build(name, w, inputs, mlirfuse)
                start = time.perf_counter()
                results = call()
                entry["first_ms"] = (time.perf_counter() - start) * 1e3
                if name == "mlirfuse":
                    entry["variants"] = (mlirfuse.variants() or 0) - variants
                if name != "jax":
                    timing.poison(results, inputs)
                del results
                entry["errors"] = timing.compare(
                    call(), inputs, w.reference_function(), w.rows, None if name == "numpy" else like
                )
                samplers[name] = (timer, call, 0.0)
            except Exception as error:
                entry["error"] = timing.summary(error)
        del like
        copy = Copy(nbytes)
        for kind, call in copy.calls.items():
            call()
            samplers["copy: " + kind] = (timer, call, 0.0)
        times = timing.interleaved(samplers, options.rounds, options.calls)
        medians = {n: statistics.median(v) for n, v in times.items()}
        best = min((n for n in medians if n.startswith("copy: ")), key=medians.get)
        row["copy"] = {
            "kind": best.removeprefix("copy: "),
            "ms": medians[best],
            "gb_s": copy.nbytes / medians[best] / 1e6,
        }
        for name in names:
            if name in medians:
                row[name].update(
                    ms=medians[name],
                    least_ms=min(times[name]),
                    share=medians[best] * nbytes / copy.nbytes / medians[name],
                )
        rows.append(row)
        print(line_of(row), flush=True)
    return rows, {"first_use_s": first_use, "missing": missing}


def best_peer(row):
    times = {n: row[n]["ms"] for n in IMPLEMENTATIONS[1:] if row.get(n, {}).get("ms")}
    return min(times.items(), key=lambda item: item[1]) if times else None


def line_of(row) -> str:
    parts = [
        f"{row['name']:<20} {row['model_bytes'] / 1e6:5.0f} MB",
        f"copy {row['copy']['ms']:.2f} ms {row['copy']['gb_s']:.1f} GB/s",
    ]
    for name in IMPLEMENTATIONS:
        entry = row.get(name)
        if entry is None:
            continue
        if "ms" not in entry:
            parts.append(f"{LABELS[name]} n/a ({entry.get('error', '')[:100]})")
            continue
        text = f"{LABELS[name]} {entry['ms']:.2f} ms {entry['share']:.0%}"
        if name == "mlirfuse":
            text += f" (to reach {row['target']:.0%}: {'yes' if entry['share'] >= row['target'] else 'NO'})"
        parts.append(text + (f", first call {entry['first_ms']:.0f} ms" if name != "numpy" and name != "eager" else ""))
    peer = best_peer(row)
    if peer and "ms" in row.get("mlirfuse", {}):
        parts.append(f"{peer[1] / row['mlirfuse']['ms']:.2f}x {LABELS[peer[0]]}")
    return " | ".join(parts)


_IMPORT = """
import json, sys, time
sys.path.insert(0, {root!r})
begin = time.perf_counter()
import numpy
after_numpy = time.perf_counter()
import mlirfuse
imported = time.perf_counter()
x = numpy.linspace(0, 1, 1024, dtype=numpy.float32)
f = mlirfuse.jit(lambda a: numpy.maximum((a + a) * 1.5, 0))
out = {{"numpy_s": after_numpy - begin, "mlirfuse_s": imported - after_numpy}}
try:
    start = time.perf_counter(); f(x); out["first_call_s"] = time.perf_counter() - start
except Exception as error:
    out["error"] = type(error).__name__ + ": " + str(error)[:120]
print(json.dumps(out))
"""


def imports(times: int) -> dict:
    """In fresh processes: the time of ``import mlirfuse`` (NumPy's own apart) and of the first call after it, the disk
    cache empty. Python's bytecode is there, as where the package is installed: one more process makes it."""
    found: dict[str, list[float]] = {}
    folder = os.environ.get("MLIRFUSE_CACHE_DIR", "/tmp/mlirfuse-bench")
    for k in range(times + 1):
        environment = {
            **os.environ,
            "MLIRFUSE_CACHE_DIR": os.path.join(folder, f"import{k}"),
            "PYTHONPYCACHEPREFIX": os.path.join(folder, "bytecode"),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT.format(root=timing.ROOT)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
        )
        if done.returncode:
            return {"error": (done.stderr.strip().splitlines() or ["?"])[-1][:160]}
        result = json.loads(done.stdout.strip().splitlines()[-1]) if k else {}
        if "error" in result:
            found.setdefault("error", result.pop("error"))
        for key, value in result.items():
            found.setdefault(key, []).append(value)
    return {key: statistics.median(v) if isinstance(v, list) else v for key, v in found.items()}


def main() -> int:
    options = arguments()
    if options.quick:
        options.size, options.rounds, options.calls = 512, 3, 2
    timing.cold_caches()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.chdir(timing.ROOT)
    begin = time.monotonic()
    timing.warn_of_load()
    rows, more = table(options)
    import host_overhead

    overhead = host_overhead.measure(
        "cpu", [p for p in ("eager", "compile", "jax") if not options.no_peers and p in options.peers], calls=2000
    )
    importing = imports(1 if options.quick else 3)
    print()
    host_overhead.show(overhead)
    bound = {
        "mlirfuse_s": ("import mlirfuse, NumPy already there", 0.7),
        "first_call_s": ("the first call after it", 0.15),
    }
    for key, (what, limit) in bound.items():
        if key in importing:
            print(f"{what}: {importing[key]:.3f} s (to reach {limit} s: {'yes' if importing[key] <= limit else 'NO'})")
    if "error" in importing:
        print(f"fresh process: n/a ({importing['error']})")
    ours = [r for r in rows if r["mlirfuse"].get("ms")]
    compared = [r for r in ours if best_peer(r)]
    print(
        f"\n{len(ours)} of {len(rows)} rows measured, {sum(r['mlirfuse']['share'] >= r['target'] for r in ours)} at their target, "
        f"{sum(r['mlirfuse']['ms'] > best_peer(r)[1] for r in compared)} slower than the best peer; {time.monotonic() - begin:.0f} s"
    )
    if compared:
        print(
            f"geometric mean over the best peer: {timing.geometric_mean(best_peer(r)[1] / r['mlirfuse']['ms'] for r in compared):.2f}x"
        )
    if options.json:
        timing.write_json(options.json, {
            "benchmark": "cpu", "environment": timing.environment(), **more, "rounds": options.rounds, "calls_a_round": options.calls,
            "rows": rows, "host": overhead, "import": importing,
        })  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
