#!/usr/bin/env python3
"""What a call costs on the host: hot, with new sizes of a known variant, and the first time.

    python benchmarks/host_overhead.py --device cuda --json benchmarks/results/host-h100.json

Three ops, relu((x + y) * 1.5), on 1024 floats. On CUDA the calls only queue work: the clock is the host's and stops before the wait for the
device, which comes after each batch. "New sizes" are sizes never seen before, multiples of 256 so that alignment does not change; mlirfuse's
counters say that none of them compiled anything. torch.compile is given ``dynamic=True`` there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import timing

BOUNDS = {"hot_us": 8.0, "new_size_us": 30.0, "first_ms": 150.0}


def functions():
    import numpy as np
    import torch

    return {
        "mlirfuse": lambda x, y: np.maximum((x + y) * 1.5, 0),
        "torch": lambda x, y: torch.relu((x + y) * 1.5),
    }


def _hot(call, synchronize, calls: int) -> float:
    """Microseconds of a call: the median over batches of 100 calls, the device waited for between batches."""
    for _ in range(50):
        call()
    synchronize()
    times = []
    for _ in range(max(1, calls // 100)):
        start = time.perf_counter()
        for _ in range(100):
            call()
        times.append((time.perf_counter() - start) * 1e4)
        synchronize()
    return statistics.median(times)


def _new_sizes(fn, make, synchronize, count: int) -> float:
    """Microseconds of the first call with a size: the median over ``count`` sizes never seen before."""
    arguments = [make(1024 + 256 * (k + 3)) for k in range(count)]
    fn(*make(1024 + 512))  # the variant is known from here on
    synchronize()
    times = []
    for given in arguments:
        start = time.perf_counter()
        fn(*given)
        times.append((time.perf_counter() - start) * 1e6)
        synchronize()
    return statistics.median(times)


def measure(device: str, peers=("eager", "compile", "jax"), calls: int = 5000, sizes: int = 200) -> dict:
    import numpy as np
    import torch

    torch.set_grad_enabled(False)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    fns = functions()
    tensors = lambda n: [torch.linspace(k - 1, 1, n, device=device) for k in (0, 1)]  # noqa: E731
    arrays = lambda n: [np.linspace(k - 1, 1, n, dtype=np.float32) for k in (0, 1)]  # noqa: E731
    out: dict = {"device": device, "elements": 1024, "implementations": {}}

    def record(name, body):
        entry = out["implementations"][name] = {}
        try:
            body(entry)
        except Exception as error:
            entry["error"] = timing.summary(error)

    def ours(entry, make):
        mlirfuse = timing.Mlirfuse()
        fn = mlirfuse.jit(fns["mlirfuse"])
        given = make(1024)
        mlirfuse.jit(lambda a: a + 1)(given[0])  # what the process pays once is not this function's first call
        synchronize()
        start = time.perf_counter()
        fn(*given)
        synchronize()
        entry["first_ms"] = (time.perf_counter() - start) * 1e3
        entry["hot_us"] = _hot(lambda: fn(*given), synchronize, calls)
        fn(*make(1024 + 512))
        before = mlirfuse.variants()
        entry["new_size_us"] = _new_sizes(fn, make, synchronize, sizes)
        after = mlirfuse.variants()
        entry["variants_compiled_for_new_sizes"] = None if before is None else after - before

    def theirs(entry, compiled):
        given = tensors(1024)
        fn = fns["torch"]
        if compiled:
            torch.compile(lambda a: a + 1)(given[0])
            torch._dynamo.reset()
            fn = torch.compile(fn, dynamic=False)
        else:
            fn(*given)
        start = time.perf_counter()
        fn(*given)
        synchronize()
        entry["first_ms"] = (time.perf_counter() - start) * 1e3
        entry["hot_us"] = _hot(lambda: fn(*given), synchronize, calls)
        if compiled:
            torch._dynamo.reset()
            fn = torch.compile(fns["torch"], dynamic=True)
            fn(*given)
        entry["new_size_us"] = _new_sizes(fn, tensors, synchronize, sizes)

    def jaxs(entry):
        import jax

        fn = jax.jit(lambda x, y: jax.nn.relu((x + y) * 1.5))
        given = [jax.numpy.asarray(a) for a in arrays(1024)]
        start = time.perf_counter()
        jax.block_until_ready(fn(*given))
        entry["first_ms"] = (time.perf_counter() - start) * 1e3
        entry["hot_us"] = _hot(lambda: fn(*given), lambda: jax.block_until_ready(fn(*given)), calls)

    if device == "cuda":
        record("mlirfuse", lambda entry: ours(entry, tensors))
    else:
        record("mlirfuse", lambda entry: ours(entry, arrays))
        record("mlirfuse, torch tensors", lambda entry: ours(entry, tensors))
        given = arrays(1024)
        record("NumPy", lambda entry: entry.update(hot_us=_hot(lambda: fns["mlirfuse"](*given), synchronize, calls)))
    if "eager" in peers:
        record("torch eager", lambda entry: theirs(entry, False))
    if "compile" in peers:
        record("torch.compile", lambda entry: theirs(entry, True))
    if "jax" in peers:
        record("JAX/XLA", jaxs)
    return out


def show(result) -> None:
    where = "NumPy arrays" if result["device"] == "cpu" else "CUDA tensors"
    print(f"a call on the host, three ops on {result['elements']} floats, {where}:")
    for name, entry in result["implementations"].items():
        if "hot_us" not in entry:
            print(f"  {name:<24} n/a ({entry.get('error')})")
            continue
        text = f"  {name:<24} hot {entry['hot_us']:7.1f} µs"
        if "new_size_us" in entry:
            text += f", new size {entry['new_size_us']:7.1f} µs"
        if "first_ms" in entry:
            text += f", first call {entry['first_ms']:7.1f} ms"
        if name == "mlirfuse":
            text += f" (to reach {', '.join(f'{BOUNDS[k]:g}' + (' NO' if entry.get(k, 0) > BOUNDS[k] else '') for k in BOUNDS)})"
            if entry.get("variants_compiled_for_new_sizes") is not None:
                text += f"; compiled for new sizes: {entry['variants_compiled_for_new_sizes']}"
        print(text + (f"; {entry['error']}" if "error" in entry else ""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="", help="cpu, cuda, or both by a comma (both where there is a GPU)")
    parser.add_argument("--json", help="write every figure to this file")
    parser.add_argument("--peers", default="eager,compile,jax")
    parser.add_argument("--calls", type=int, default=5000)
    options = parser.parse_args()
    timing.cold_caches()
    import os

    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import torch

    timing.warn_of_load()
    devices = options.device.split(",") if options.device else ["cpu"] + ["cuda"] * torch.cuda.is_available()
    results = []
    for device in devices:
        if device == "cuda" and not torch.cuda.is_available():
            print("host_overhead.py: torch sees no CUDA device here", file=sys.stderr)
            return 2
        results.append(measure(device, options.peers.split(","), options.calls))
        show(results[-1])
    if options.json:
        timing.write_json(options.json, {"benchmark": "host_overhead", "environment": timing.environment(), "bounds": BOUNDS, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
