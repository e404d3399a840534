#!/usr/bin/env python3
"""What a call costs on the host: hot, with new sizes of a known variant, and the first time.

    python benchmarks/host_overhead.py --device cuda --json benchmarks/results/host-h100.json
    python benchmarks/host_overhead.py --device cuda --models whisper,swin,resnet50

Three ops, relu((x + y) * 1.5), on 1024 floats. On CUDA the calls only queue work: the clock is the host's and stops
before the wait for the device, which comes after each batch. "New sizes" are sizes never seen before, multiples of 256
so that alignment does not change; mlirfuse's counters say that none of them compiled anything. torch.compile is given
``dynamic=True`` there.

``--models``: instead, what a training step of each of these models of ``torch_models.py`` costs on the host, a launch,
and by part, beside eager and Inductor (:mod:`host_graphs`).
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


ROUNDS = 5  # of all implementations in turn: a shared host is slower for a while


def _hot(call, synchronize, calls: int) -> list[float]:
    """Microseconds of a call, for each batch of 100 calls, the device waited for between batches."""
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
    return times


def _first_calls(fn, arguments, synchronize) -> list[float]:
    """Microseconds of the first call with each of these arguments."""
    times = []
    for given in arguments:
        start = time.perf_counter()
        fn(*given)
        times.append((time.perf_counter() - start) * 1e6)
        synchronize()
    return times


class Measured:
    """One implementation: ``fn`` for hot calls, ``varying`` for sizes not seen before (None: not measured), ``make``
    its arguments of a size."""

    def __init__(self, entry: dict, fn, make, synchronize, varying=None):
        self.entry, self.fn, self.make, self.synchronize, self.varying = entry, fn, make, synchronize, varying
        given = make(1024)
        synchronize()
        start = time.perf_counter()
        fn(*given)
        synchronize()
        entry["first_ms"] = (time.perf_counter() - start) * 1e3
        self.call = lambda: fn(*given)

    def grow(self, sizes: list[int]) -> list[float]:
        return _first_calls(self.varying, [self.make(n) for n in sizes], self.synchronize)


def _in_turn(measured: list[Measured], measure) -> dict[Measured, float]:
    """The medians over rounds of all implementations; what fails is left out, with the error in its entry."""
    times: dict[Measured, list[float]] = {m: [] for m in measured}
    for turn in range(ROUNDS):
        for m in list(times):
            try:
                times[m] += measure(m, turn)
            except Exception as error:
                m.entry["error"] = timing.summary(error)
                del times[m]
    return {m: statistics.median(t) for m, t in times.items()}


def measure(device: str, peers=("eager", "compile", "jax"), calls: int = 5000, sizes: int = 200) -> dict:
    import numpy as np
    import torch

    torch.set_grad_enabled(False)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    fns = functions()
    tensors = lambda n: [torch.linspace(k - 1, 1, n, device=device) for k in (0, 1)]  # noqa: E731
    arrays = lambda n: [np.linspace(k - 1, 1, n, dtype=np.float32) for k in (0, 1)]  # noqa: E731
    out: dict = {"device": device, "elements": 1024, "implementations": {}}
    found: list[Measured] = []

    def record(name, build):
        entry = out["implementations"][name] = {}
        try:
            found.append(build(entry))
        except Exception as error:
            entry["error"] = timing.summary(error)

    def hot(some: list[Measured]) -> None:
        for m, median in _in_turn(some, lambda m, _: _hot(m.call, m.synchronize, calls // ROUNDS)).items():
            m.entry["hot_us"] = median

    mlirfuse = timing.Mlirfuse()

    def ours(entry, make):
        fn = mlirfuse.jit(fns["mlirfuse"])
        mlirfuse.jit(lambda a: a + 1)(make(1024)[0])  # what the process pays once is not this function's first call
        return Measured(entry, fn, make, synchronize, fn)

    def compiled(entry):
        torch.compile(lambda a: a + 1)(tensors(1024)[0])
        torch._dynamo.reset()
        varying = torch.compile(lambda x, y: fns["torch"](x, y), dynamic=True)
        return Measured(entry, torch.compile(fns["torch"], dynamic=False), tensors, synchronize, varying)

    def jaxs(entry):
        import jax

        fn = jax.jit(lambda x, y: jax.nn.relu((x + y) * 1.5))
        make = lambda n: [jax.numpy.asarray(a) for a in arrays(n)]  # noqa: E731
        small, after = make(1)[0], jax.jit(lambda a: a + 1)
        return Measured(
            entry, fn, make, lambda: jax.block_until_ready(after(small))
        )  # kernels of a device run one after the other

    if device == "cuda":
        record("mlirfuse", lambda entry: ours(entry, tensors))
    else:
        record("mlirfuse", lambda entry: ours(entry, arrays))
        record("mlirfuse, torch tensors", lambda entry: ours(entry, tensors))
        record("NumPy", lambda entry: Measured(entry, fns["mlirfuse"], arrays, synchronize))
    if "eager" in peers:
        record("torch eager", lambda entry: Measured(entry, fns["torch"], tensors, synchronize, fns["torch"]))
    if "compile" in peers:
        record("torch.compile", compiled)
    hot(found)
    varying = [m for m in found if m.varying]
    for m in varying:  # the variant is known from here on
        m.grow([1024, 1024 + 512])
    before = mlirfuse.variants()
    share = sizes // ROUNDS
    for m, median in _in_turn(
        varying, lambda m, turn: m.grow([1024 + 256 * (3 + turn * share + k) for k in range(share)])
    ).items():
        m.entry["new_size_us"] = median
    after = mlirfuse.variants()
    if "jax" in peers:  # by itself: its threads would take the others' cores
        record("JAX/XLA", jaxs)
        hot(found[-1:])
    for m in found:
        if m.entry is out["implementations"]["mlirfuse"]:
            m.entry["variants_compiled_for_new_sizes"] = None if before is None else after - before
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


def _of_models(device: str, options) -> list[dict]:
    import host_graphs

    chosen = options.implementations.split(",") if options.implementations else host_graphs.IMPLEMENTATIONS
    found = []
    for model in options.models.split(","):
        found.append(host_graphs.measure(model, device, chosen, small=not options.full))
        host_graphs.show_parts(found[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="", help="cpu, cuda, or both by a comma (both where there is a GPU)")
    parser.add_argument("--json", help="write every figure to this file")
    parser.add_argument("--peers", default="eager,compile,jax")
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--models", help="measure training steps of these models instead, by commas")
    parser.add_argument("--implementations", help="with --models: by commas; all of host_graphs.py without it")
    parser.add_argument("--full", action="store_true", help="with --models: the batches of torch_models.py")
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
        if options.models:
            results += _of_models(device, options)
            continue
        results.append(measure(device, options.peers.split(","), options.calls))
        show(results[-1])
    if options.json:
        timing.write_json(
            options.json,
            {"benchmark": "host_overhead", "environment": timing.environment(), "bounds": BOUNDS, "results": results},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
