#!/usr/bin/env python3
"""First training steps of models, cold and warm, of two checkouts: what a change costs whoever compiles a model.

    git worktree add /tmp/before REVISION    # and build its native module there
    python benchmarks/first_steps.py /tmp/before . --models bert gpt2 resnet50 --rounds 5

Each step is the first of a new process, timed after the imports: a cold one with empty caches on disk, then a warm one
with the caches that it has left. The checkouts take turns, and who begins changes from round to round. Each checkout
runs its own ``benchmarks/torch_models.py`` on the CPU, with the batch of ``--small``. Prints medians and the ratio of
the second checkout's to the first's, with the least and the largest ratio within a round: by the clock, and in seconds
of the processor, which other processes disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WORKER = """
import json, os, sys, time
name, dtype, folder, root, *processors = sys.argv[1:]
os.sched_setaffinity(0, map(int, processors))
import torch_models  # puts its own folders for caches into the environment
for cache in torch_models.CACHES:
    os.environ[cache] = os.path.join(folder, cache)
import argparse
import mlirfuse.torch
assert os.path.dirname(os.path.dirname(os.path.abspath(mlirfuse.__file__))) == root, mlirfuse.__file__
import importlib.util
if importlib.util.find_spec("torchvision") is None:  # transformers has the same network
    import transformers
    network = lambda: transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))
    torch_models.MODELS["resnet50"] = lambda small, dropout: torch_models.images(network, 128, small)
args = argparse.Namespace(model=name, device="cpu", dtype=dtype, small=True, dropout=False, inference=False)
torch_models.import_what_all_share()
trainer = torch_models.Trainer(args, "mlirfuse")
began = time.perf_counter(), time.process_time()
loss = float(trainer.step())
print(json.dumps([time.perf_counter() - began[0], time.process_time() - began[1], loss]))
"""
CLOCKS = ("clock", "processor")


def first_step(args, root: Path, model: str, folder: str, processors: list[int]) -> list[float]:
    """Seconds by the clock, seconds of the processor, and the loss of a step in a new process."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", WORKER, model, args.dtype, folder, str(root), *map(str, processors)]
    done = subprocess.run(command, cwd=root / "benchmarks", env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-2000:])
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def one_round(args, model: str, number: int, processors: list[int]) -> dict[str, list[list[float]]]:
    """For cold and warm, the steps of both checkouts."""
    row: dict[str, list] = {"cold": [None, None], "warm": [None, None]}
    for side in (0, 1) if number % 2 == 0 else (1, 0):
        with tempfile.TemporaryDirectory() as folder:
            for how in ("cold", "warm"):
                row[how][side] = first_step(args, args.roots[side], model, folder, processors)
    return row


def measured(args, model: str) -> dict[str, list]:
    """For cold and warm, the steps of each round: one a checkout."""
    available = sorted(os.sched_getaffinity(0))
    each = len(available) // args.lanes
    lanes: queue.SimpleQueue = queue.SimpleQueue()
    for lane in range(args.lanes):
        lanes.put(available[lane * each : (lane + 1) * each])

    def in_lane(number: int) -> dict[str, list]:
        processors = lanes.get()
        try:
            return one_round(args, model, number, processors)
        finally:
            lanes.put(processors)

    with ThreadPoolExecutor(args.lanes) as pool:
        rounds = list(pool.map(in_lane, range(args.rounds)))
    return {how: [row[how] for row in rounds] for how in ("cold", "warm")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path, help="a checkout with its native module built")
    parser.add_argument("after", type=Path)
    parser.add_argument("--models", nargs="+", default=["bert", "gpt2", "resnet50"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lanes", type=int, default=1, help="rounds at a time, each on processors of its own")
    parser.add_argument("--json")
    args = parser.parse_args()
    args.roots = [args.before.resolve(), args.after.resolve()]
    every = {}
    print("| model | step | rounds | before s | after s | ratio | least and largest | by |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for model in args.models:
        every[model] = measured(args, model)
        for how, rounds in every[model].items():
            for at, clock in enumerate(CLOCKS):
                before, after = (statistics.median(both[side][at] for both in rounds) for side in (0, 1))
                ratios = [both[1][at] / both[0][at] for both in rounds]
                figures = f"{before:.2f} | {after:.2f} | {after / before:.3f} | {min(ratios):.3f} to {max(ratios):.3f}"
                print(f"| {model} | {how} | {len(rounds)} | {figures} | {clock} |", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(every))


if __name__ == "__main__":
    main()
