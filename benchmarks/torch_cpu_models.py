#!/usr/bin/env python3
"""Small nets of many kinds on the CPU (``cpu_nets.py``), inference and training, beside eager and Inductor by
processor time.

    python benchmarks/torch_cpu_models.py --json benchmarks/results/torch-cpu-models.json
    python benchmarks/torch_cpu_models.py graph mlp --threads 2 --rounds 40

A net, in evaluation or in training, is a process. The implementations take turns there; the least and the median of the
processor time of their calls are stated, which other work on the machine adds little to. With more than one thread, the
time of all threads counts, and threads that wait sleep (``OMP_WAIT_POLICY=passive``). A training step is the forward,
the backward of a mean square and an SGD step by hand-written foreach ops, which are eager for all. Results and
gradients are compared with eager's in float64: an error counts where it is over three times eager's and the type's
rounding.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time

IMPLEMENTATIONS = ("eager", "inductor", "mlirfuse")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="of nets; all without any")
    parser.add_argument("--modes", default="inference,training")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--peers", default="eager,inductor")
    parser.add_argument("--json")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def flattened(found):
    return [found] if not isinstance(found, (tuple, list)) else list(found)


class Contender:
    """A net under one implementation; ``training``: its call is a step."""

    def __init__(self, make, how: str, training: bool, double: bool = False):
        import torch

        torch.manual_seed(1)
        net, inputs = make()
        cast = lambda x: [*map(cast, x)] if isinstance(x, list) else x.double() if x.is_floating_point() else x  # noqa: E731
        self.torch, self.training = torch, training
        self.net = (net.double() if double else net).train(training)
        self.inputs = [cast(x) for x in inputs] if double else inputs
        backend = {"mlirfuse": "mlirfuse", "inductor": "inductor"}.get(how)
        self.run = torch.compile(self.net, backend=backend) if backend else self.net
        self.weights = list(self.net.parameters())

    def call(self):
        torch = self.torch
        if not self.training:
            with torch.no_grad():
                return [self.run(*self.inputs)]
        loss = self.run(*self.inputs).square().mean()
        loss.backward()
        with torch.no_grad():
            torch._foreach_add_(self.weights, [w.grad for w in self.weights], alpha=-1e-6)
        found = [loss.detach(), *(w.grad for w in self.weights)]
        for w in self.weights:
            w.grad = None
        return found


def relative_error(found, expected) -> float:
    up = sum(float((a.double() - b).square().sum()) for a, b in zip(found, expected))
    return math.sqrt(up / max(sum(float(b.square().sum()) for b in expected), 1e-60))


def measure(name: str, mode: str, options) -> dict:
    import torch
    from cpu_nets import NETS

    import mlirfuse.torch  # noqa: F401  (the back end)

    torch.set_num_threads(options.threads)
    training, make = mode == "training", NETS[name]
    torch._dynamo.config.allow_rnn = False
    hows = [how for how in IMPLEMENTATIONS if how == "mlirfuse" or how in options.peers.split(",")]
    random = training and any(isinstance(m, torch.nn.Dropout) and m.p for m in make()[0].modules())
    expected = Contender(make, "eager", training, double=True).call()
    row: dict = {"net": name, "mode": mode, "errors": {}, "least_ms": {}, "median_ms": {}, "first_s": {}}
    contenders = {how: Contender(make, how, training) for how in hows}
    for how, contender in contenders.items():
        start = time.perf_counter()
        found = contender.call()
        row["first_s"][how] = time.perf_counter() - start
        row["errors"][how] = None if random else relative_error(found, expected)
        for _ in range(3):
            contender.call()
    times = {how: [] for how in hows}
    for turn in range(options.rounds):
        for how in hows[:: 1 - 2 * (turn % 2)]:
            contenders[how].call()
            start = time.process_time()
            contenders[how].call()
            times[how].append((time.process_time() - start) * 1e3)
    for how, found in times.items():
        row["least_ms"][how], row["median_ms"][how] = min(found), statistics.median(found)
    return row


def line(row: dict) -> str:
    ours, least = row["least_ms"]["mlirfuse"], row["least_ms"]
    text = f"{row['net']:16} {row['mode']:9} {ours:9.3f} ms"
    for peer in ("eager", "inductor"):
        if peer in least:
            text += f"  over {peer} {least[peer] / ours:5.2f} ({row['median_ms'][peer] / row['median_ms']['mlirfuse']:4.2f})"
    errors = row["errors"]
    bad = errors["mlirfuse"] is not None and errors["mlirfuse"] > max(3 * errors.get("eager", 1e-6), 2e-6)
    return text + (f"  ERROR {errors['mlirfuse']:.1e}" if bad else "")


def main() -> None:
    options = arguments()
    if options.one:
        print(json.dumps(measure(options.names[0], options.modes, options)))
        return
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import timing

    timing.use_repository()
    from cpu_nets import NETS

    path = [os.path.dirname(os.path.dirname(os.path.abspath(__file__))), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads), "OMP_WAIT_POLICY": "passive",
                                "PYTHONPATH": os.pathsep.join(path)}  # fmt: skip
    given = ["--one", "--threads", str(options.threads), "--rounds", str(options.rounds), "--peers", options.peers]
    rows = []
    for name in options.names or NETS:
        for mode in options.modes.split(","):
            ran = subprocess.run([sys.executable, __file__, name, "--modes", mode, *given],
                                 env=environment, capture_output=True, text=True)  # fmt: skip
            if ran.returncode:
                print(f"{name:16} {mode:9} failed: {ran.stderr.strip().splitlines()[-1][:200]}", flush=True)
                continue
            rows.append(json.loads(ran.stdout.strip().splitlines()[-1]))
            print(line(rows[-1]), flush=True)
    for peer in ("eager", "inductor"):
        for mode in options.modes.split(","):
            found = [
                r["least_ms"][peer] / r["least_ms"]["mlirfuse"]
                for r in rows
                if peer in r["least_ms"] and r["mode"] == mode
            ]
            if found:
                print(f"{mode}: geometric mean over {peer} {statistics.geometric_mean(found):.3f} of {len(found)}")
    if options.json:
        timing.write_json(options.json, {"rows": rows, "threads": options.threads})


if __name__ == "__main__":
    main()
