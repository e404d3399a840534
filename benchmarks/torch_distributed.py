#!/usr/bin/env python3
"""Training steps on several GPUs of one host: DDP and FSDP2 by mlirfuse, Inductor and eager, in one run.

    NCCL_NVLS_ENABLE=0 torchrun --nproc-per-node 2 benchmarks/torch_distributed.py \
        gpt2:one llama:one gpt2:ddp llama:fsdp2 --json benchmarks/results/torch-distributed-h200.json

A case is a model and how it is trained. ``one``: on one card alone; these are dealt to the ranks, which run them at the
same time. ``accumulated``: one card alone takes the batches of all ranks in turn, what the losses of the other forms
are compared with. ``ddp``: the model in DistributedDataParallel, compiled as a whole (DDPOptimizer cuts it at the buckets),
under bfloat16 autocast. ``fsdp2``: each layer compiled and sharded by ``fully_shard``, then the model, parameters in
bfloat16 and reduction in float32. Every rank has a batch of the size that ``torch_models.py`` has.

The implementations take their first step, cold, and some more; then they take turns: a time is of ``--steps`` steps,
and the medians are of ``--rounds`` of them. Peak memory is of an implementation's own steps, beside what the others
hold. Exposed is the time a step in which only collectives run on the GPU, by the profiler. ``--device cpu --small`` tries
the script over gloo.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch_models
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_models import MODELS, device_name, synchronize

ALONE = ("one", "accumulated")
COMPILED = {"eager": None, "inductor": {}, "aot_eager": {"backend": "aot_eager"}, "mlirfuse": {"backend": "mlirfuse"}}


class Trainer:
    """One implementation of a case on this rank: its model, its optimizer, its step."""

    def __init__(self, args, model_name: str, how: str, implementation: str):
        self.args, self.name, self.how = args, implementation, how
        torch.manual_seed(0)
        self.model, batch = MODELS[model_name](args.small, False)
        if args.layers:
            keep(self.model, args.layers)
        seeds = {"one": [0], "accumulated": range(dist.get_world_size())}.get(how, [dist.get_rank()])
        self.batches = [self._batch(batch, seed) for seed in seeds]
        self.model = self.model.to(args.device).train()
        if implementation == "mlirfuse":
            import mlirfuse.torch  # noqa: F401 known to torch without an installation, too
        self.run = self._spread(COMPILED[implementation])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=args.device == "cuda")

    def _batch(self, words, seed: int):
        """The words of one rank."""
        torch.manual_seed(seed)
        return {name: mixed(value).to(self.args.device) for name, value in words.items()}

    def _spread(self, compiled):
        if self.how == "fsdp2":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            mesh = dist.init_device_mesh(self.args.device, (dist.get_world_size(),))
            for layer in layers(self.model):
                if compiled is not None:
                    layer.compile(**compiled)
                fully_shard(layer, mesh=mesh, mp_policy=policy)
            return fully_shard(self.model, mesh=mesh, mp_policy=policy)
        run = self.model
        if self.how == "ddp":
            devices = [torch.cuda.current_device()] if self.args.device == "cuda" else None
            run = DistributedDataParallel(run, device_ids=devices)
        return run if compiled is None else torch.compile(run, **compiled)

    def step(self):
        mixed_precision = self.how != "fsdp2"  # there the parameters are in bfloat16 already
        losses = []
        for batch in self.batches:
            with torch.autocast(self.args.device, dtype=torch.bfloat16, enabled=mixed_precision):
                losses.append(self.run(**batch).loss / len(self.batches))
            losses[-1].backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return sum(loss.detach() for loss in losses)

    def timed(self, steps: int) -> float:
        """Milliseconds of a step, the GPU's work included."""
        if self.how not in ALONE:
            dist.barrier()
        synchronize(self.args)
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        synchronize(self.args)
        return (time.perf_counter() - start) * 1e3 / steps


def layers(model):
    """The layers of a model of transformers."""
    return max((m for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)


def keep(model, count: int):
    """The first layers alone, for trying the script."""
    del layers(model)[count:]


def mixed(words):
    """Other words on each rank."""
    return words[:, torch.randperm(words.shape[1])]


def exposed_ms(intervals: list[tuple[str, float, float]]) -> float:
    """Milliseconds in which only collectives run; ``intervals``: kernel, start and end in microseconds."""
    edges = []
    for name, start, end in intervals:
        kind = int("nccl" in name.lower())
        edges += [(start, kind, 1), (end, kind, -1)]
    running, exposed, last = [0, 0], 0.0, 0.0
    for at, kind, change in sorted(edges):
        if running[1] and not running[0]:
            exposed += at - last
        running[kind] += change
        last = at
    return exposed / 1e3


def profiled(args, trainer, steps=2) -> dict[str, float]:
    """Milliseconds a step that collectives take on the GPU, and in which nothing else runs."""
    if args.device != "cuda":
        trainer.step()
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            trainer.step()
        synchronize(args)
    found = [
        (e.name, e.time_range.start, e.time_range.end)
        for e in profile.events()
        if e.device_type == torch.autograd.DeviceType.CUDA
    ]
    nccl = sum(end - start for name, start, end in found if "nccl" in name.lower())
    return {"collectives_ms": round(nccl / 1e3 / steps, 3), "exposed_ms": round(exposed_ms(found) / steps, 3)}


def first_steps(args, trainer, before: int) -> dict:
    """The first step and some more."""
    synchronize(args)
    start = time.perf_counter()
    losses = [trainer.step()]
    synchronize(args)
    out = {"first_step_s": round(time.perf_counter() - start, 2)}
    losses += [trainer.step() for _ in range(3)]
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        trainer.step(), trainer.step()
        synchronize(args)
        out["peak_gb"] = round((torch.cuda.max_memory_allocated() - before) / 1e9, 2)
    losses = torch.stack(losses)
    if trainer.how not in ALONE:
        dist.all_reduce(losses)
        losses /= dist.get_world_size()
    out["losses"] = [round(loss, 4) for loss in losses.tolist()]
    return out


def case(args, model: str, how: str) -> dict:
    """All implementations of one case."""
    result, trainers = {}, []
    for name in args.only.split(","):
        torch._dynamo.reset()
        before = torch.cuda.memory_allocated() if args.device == "cuda" else 0
        trainer = Trainer(args, model, how, name)
        result[name] = first_steps(args, trainer, before)
        trainers.append(trainer)
        if args.profile:
            result[name] |= profiled(args, trainer)
        if dist.get_rank() == 0 or how in ALONE:
            print(model, how, name, result[name], flush=True)
    times = {trainer.name: [] for trainer in trainers}
    for _ in range(args.rounds):
        for trainer in trainers:
            times[trainer.name].append(trainer.timed(args.steps))
    for name, measured in times.items():
        result[name]["step_ms"] = round(statistics.median(measured), 2)
        result[name]["steps_ms"] = [round(t, 2) for t in measured]
    print(f"rank {dist.get_rank()}", model, how, {name: result[name]["step_ms"] for name in times}, flush=True)
    trainers.clear()
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()
    return result


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="+", help="MODEL:one, MODEL:accumulated, MODEL:ddp or MODEL:fsdp2")
    parser.add_argument("--only", default="eager,inductor,mlirfuse", help="implementations, by commas")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="a small batch: to try the script, not to quote")
    parser.add_argument("--layers", type=int, default=0, help="the first layers alone, as --small")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="steps that one time is of")
    parser.add_argument("--no-profile", dest="profile", action="store_false")
    parser.add_argument("--json")
    args = parser.parse_args(argv)
    cases = [tuple(c.split(":")) for c in args.cases]
    local = int(os.environ.get("LOCAL_RANK", 0))
    if args.device == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    alone = [c for c in cases if c[1] in ALONE]
    found = {f"{model}:{how}": case(args, model, how) for model, how in alone[rank::ranks]}
    everyones = [None] * ranks
    dist.all_gather_object(everyones, found)
    result = {"device": device_name(args), "ranks": ranks, "torch": torch.__version__}
    for part in everyones:
        result |= part
    for model, how in cases:
        if how not in ALONE:
            result[f"{model}:{how}"] = case(args, model, how)
    if rank == 0 and args.json:
        with open(args.json, "w") as file:
            json.dump(result, file, indent=1)
    dist.barrier()
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    assert torch_models  # which has set the folders of the compile caches
    sys.exit(main())
