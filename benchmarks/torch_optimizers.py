#!/usr/bin/env python3
"""An optimizer's step over a model's parameters: `torch.compile(opt.step)` of mlirfuse beside eager's and Inductor's.

    python benchmarks/torch_optimizers.py bert --json benchmarks/results/torch-optimizers-h100.json

Parameters of a model of torch_models.py in float32, one set of gradients. Each implementation takes the first step cold
(compile caches in new folders) and some more, then all take steps in turns: medians. Of the host: the time until a
step's launches are queued. "of copy": the bytes that a step has to move (parameter, gradient and states read once,
parameter and states written once) over its time, beside a copy of the same bytes. Parameters and states after equal
numbers of steps are compared with eager's in float64: the largest error over the tensor's largest magnitude.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import torch
from torch_models import MODELS  # also sets the folders of the compile caches

import mlirfuse.torch  # noqa: F401  (the back end)

OPTIMIZERS = {"AdamW": (torch.optim.AdamW, {}, 2), "SGD": (torch.optim.SGD, {"momentum": 0.9}, 1)}
IMPLEMENTATIONS = {
    "eager foreach": ({"foreach": True}, None),
    "eager fused": ({"fused": True}, None),
    "inductor": ({"foreach": True}, "inductor"),
    "mlirfuse": ({"foreach": True}, "mlirfuse"),
}


class Stepper:
    """An optimizer of its own parameters, which are made of ``values``, with ``gradients``."""

    def __init__(self, made, options, compiler, values, gradients):
        self.params = [torch.nn.Parameter(v.clone()) for v in values]
        for p, g in zip(self.params, gradients):
            p.grad = g.to(p.dtype)
        self.optimizer = made(self.params, lr=1e-3, weight_decay=0.01, **options)
        self.step = torch.compile(self.optimizer.step, backend=compiler) if compiler else self.optimizer.step

    def values(self):
        states = [v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        return [*(p.detach() for p in self.params), *states]


def error(ours, theirs):
    """The largest over all tensors, relative to each one's largest magnitude."""
    worst = 0.0
    for a, b in zip(ours, theirs):
        if b.numel():
            scale = b.abs().max().item() or 1.0
            worst = max(worst, (a.double() - b.double()).abs().max().item() / scale)
    return worst


def timed(step, cuda):
    """Milliseconds on the device (the host's without one) and on the host."""
    if not cuda:
        start = time.perf_counter()
        step()
        spent = (time.perf_counter() - start) * 1e3
        return spent, spent
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(40_000_000)  # what is launched is queued before the first kernel starts
    begin.record()
    start = time.perf_counter()
    step()
    host = (time.perf_counter() - start) * 1e3
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end), host


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="AdamW")
    parser.add_argument("--only", action="append", choices=IMPLEMENTATIONS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json")
    given = parser.parse_args()
    cuda = given.device == "cuda"
    made, options, states = OPTIMIZERS[given.optimizer]
    torch.manual_seed(0)
    model, _ = MODELS[given.model](True, False)
    values = [p.detach().to(given.device) for p in model.parameters()]
    gradients = [torch.randn_like(v) for v in values]
    count = sum(v.numel() for v in values)
    out = {"model": given.model, "optimizer": given.optimizer, "tensors": len(values), "elements": count,
           "device": torch.cuda.get_device_name() if cuda else "cpu", "rows": {}}  # fmt: skip
    truth = Stepper(made, options, None, [v.double() for v in values], gradients)
    steppers, steps = {}, 6
    for name in given.only or IMPLEMENTATIONS:
        kind, compiler = IMPLEMENTATIONS[name]
        one = steppers[name] = Stepper(made, options | kind, compiler, values, gradients)
        start = time.perf_counter()
        one.step()
        if cuda:
            torch.cuda.synchronize()
        out["rows"][name] = {"first_s": round(time.perf_counter() - start, 2)}
    for _ in range(steps):
        truth.step()
    for name, one in steppers.items():
        for _ in range(steps - 1):
            one.step()
        out["rows"][name]["error"] = error(one.values(), truth.values())
    del truth
    times = {name: [] for name in steppers}
    moved = count * 4 * (3 + 2 * states)
    source = torch.empty(moved // 8, device=given.device)
    target, copies = torch.empty_like(source), []
    for _ in range(given.rounds):
        for name, one in steppers.items():
            times[name].append(timed(one.step, cuda))
        copies.append(timed(lambda: target.copy_(source), cuda)[0])
    out["copy_ms"], out["bytes"] = statistics.median(copies), moved
    for name, found in times.items():
        device, host = (statistics.median(side) for side in zip(*found))
        row = out["rows"][name]
        row |= {"ms": device, "host_ms": host, "of_copy": out["copy_ms"] / device}
        print(f"{name:15} first {row['first_s']:6.2f} s, {device:7.3f} ms, {row['of_copy']:5.0%} of a copy, "
              f"host {host:.3f} ms, error {row['error']:.1e}")  # fmt: skip
    print(f"copy of {moved / 1e9:.2f} GB: {out['copy_ms']:.3f} ms; {len(values)} tensors, {count} elements")
    if given.json:
        with open(given.json, "w") as file:
            json.dump(out, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
