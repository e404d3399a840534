#!/usr/bin/env python3
"""Where a model's first training step spends its time: cold, and in a new process with warm caches.

    python benchmarks/torch_first_step.py bert --json benchmarks/results/torch-first-step-bert-cpu.json

Each row is the time within a part and outside of the parts it calls, in seconds, of a process of its own: on a CPU the
processor's, with a GPU, whose kernels several threads compile, that by the clock.
Both processes share new folders for caches, so the first finds nothing and the second what the first has left. On the
CPU the batch is that of ``torch_models.py --small``, and "the rest" has torch's own kernels in it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = {  # the table's rows
    "Dynamo": "bytecode to graphs, guards",
    "AOTAutograd": "tracing, decompositions, wrappers",
    "partition": "what is kept, and the cut",
    "lowering": "ATen to our ops",
    "passes": "ours",
    "host program": "its plan and its text",
    "schedules": "choices, kernels as MLIR",
    "code": "MLIR to machine code, or to PTX and by the driver",
    "the rest": "imports, torch's own kernels, autograd",
}


class Clock:
    """Seconds in each part, without the parts that are called in it."""

    def __init__(self, now):
        self.now = now
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.stack = []

    def times(self, owner, name: str, part: str) -> None:
        """From now on calls of ``owner``'s function ``name`` belong to ``part``."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args, **kwargs):
            with self.within(part):
                return function(*args, **kwargs)

        setattr(owner, name, timed)

    def within(self, part: str):
        return _Within(self, part)


class _Within:
    def __init__(self, clock, part):
        self.clock, self.part = clock, part

    def __enter__(self):
        self.clock.stack.append(0.0)
        self.start = self.clock.now()

    def __exit__(self, *_):
        taken = self.clock.now() - self.start
        inner = self.clock.stack.pop()
        self.clock.seconds[self.part] += taken - inner
        if self.clock.stack:
            self.clock.stack[-1] += taken


def first_step(args) -> dict[str, float]:
    """The parts of this process's first step."""
    import torch_models  # puts its own folders for caches into the environment

    for name in ("TORCHINDUCTOR_CACHE_DIR", "MLIRFUSE_CACHE_DIR"):
        os.environ[name] = os.path.join(args.worker, name)
    import torch
    import torch._dynamo.convert_frame

    import mlirfuse.torch  # noqa: F401
    from mlirfuse.frontend.torch import backend, warm
    from mlirfuse.runtime import async_compile, program
    from mlirfuse.schedule import targets

    now = time.perf_counter if args.device == "cuda" else time.process_time
    clock = Clock(now)
    clock.times(torch._dynamo.convert_frame, "_compile", "Dynamo")
    clock.times(backend.trace, "compiled", "AOTAutograd")
    clock.times(backend, "partition", "partition")
    clock.times(backend, "lower", "lowering")
    clock.times(backend.pipelines, "lower_to_segments", "passes")
    clock.times(backend, "host_program", "host program")
    clock.times(warm, "host_program", "host program")
    for target in (targets.CpuTarget, targets.GpuTarget):
        clock.times(target, "parameters", "schedules")
        clock.times(target, "write", "schedules")
    for function in ("begin", "finish"):
        clock.times(async_compile, function, "code")
    clock.times(program.Program, "_compile", "code")
    trainer = torch_models.Trainer(args, "mlirfuse")
    with clock.within("the rest"):
        trainer.step()
        torch_models.synchronize(args)
    start = now()
    trainer.step()
    torch_models.synchronize(args)
    return clock.seconds | {"second step": now() - start}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    args.small, args.dropout = args.device == "cpu", False
    if args.worker:
        print(json.dumps(first_step(args)))
        return 0
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for how in ("cold", "warm"):
            command = [sys.executable, __file__, args.model, "--device", args.device, "--dtype", args.dtype]
            done = subprocess.run(
                [*command, "--worker", folder], stdout=subprocess.PIPE, text=True, check=True, cwd=HERE
            )
            found[how] = json.loads(done.stdout.splitlines()[-1])
    print(f"{'':14}{'cold s':>8}{'warm s':>8}")
    for part, what in PARTS.items():
        print(f"{part:14}{found['cold'][part]:8.2f}{found['warm'][part]:8.2f}  {what}")
    for how in ("cold", "warm"):
        found[how]["first step"] = sum(found[how][part] for part in PARTS)
    for row in ("first step", "second step"):
        print(f"{row:14}{found['cold'][row]:8.2f}{found['warm'][row]:8.2f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"model": args.model, "device": args.device, "dtype": args.dtype, **found}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
