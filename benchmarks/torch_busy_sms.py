#!/usr/bin/env python3
"""What a training step loses while blocks of another stream hold multiprocessors, as NCCL's do during a collective.

    python benchmarks/torch_busy_sms.py gpt2

The first four layers of a model of ``torch_models.py`` train by eager, Inductor and mlirfuse in turns, while a kernel
of 0 to 24 blocks waits on a stream beside it for longer than a step takes: milliseconds a step, medians of eight. A
block has so much shared memory that nothing else fits beside it, or 40 KB and 640 threads, as NCCL's have.
"""

from __future__ import annotations

import argparse
import statistics

import cupy
import torch
import torch_models

HELD = r"""
extern "C" __global__ void held(long long nanoseconds) {
  extern __shared__ char memory[];
  memory[threadIdx.x] = 1;
  long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}
"""
WHOLE = (200 << 10, 512)  # bytes of shared memory and threads of a block
NCCL = (40 << 10, 640)
HOLDERS = [(0, WHOLE), (8, WHOLE), (16, WHOLE), (24, WHOLE), (16, NCCL), (24, NCCL)]
MILLISECONDS = 40  # longer than a step
LAYERS = 4


def models(which: str, args: argparse.Namespace) -> dict[str, torch_models.Trainer]:
    """A trainer by implementation, with its kernels compiled."""
    make = {
        "gpt2": lambda s, d: torch_models.language("GPT2", 8, 1024, s, d, n_layer=LAYERS),
        "llama": lambda s, d: torch_models.language(
            "Llama", 4, 2048, s, d, **(torch_models.LLAMA | {"num_hidden_layers": LAYERS})
        ),
    }
    torch_models.MODELS["held"] = make[which]
    found = {}
    for name in ("eager", "inductor", "mlirfuse"):
        torch.manual_seed(0)
        found[name] = torch_models.Trainer(args, name)
        for _ in range(4):
            found[name].step()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", choices=["gpt2", "llama"])
    given = parser.parse_args()
    args = argparse.Namespace(model="held", small=False, dropout=False, device="cuda", dtype="bfloat16", kernels=0.0)
    kernel = cupy.RawKernel(HELD, "held")
    kernel.max_dynamic_shared_size_bytes = WHOLE[0]
    beside = cupy.cuda.Stream(non_blocking=True)
    for which in given.models:
        trainers = models(which, args)
        for blocks, (shared, threads) in HOLDERS:
            times: dict[str, list[float]] = {name: [] for name in trainers}
            for _ in range(8):
                for name, trainer in trainers.items():
                    torch.cuda.synchronize()
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    if blocks:
                        with beside:
                            kernel((blocks,), (threads,), (cupy.int64(MILLISECONDS * 10**6),), shared_mem=shared)
                    begin.record()
                    trainer.step()
                    end.record()
                    end.synchronize()
                    times[name].append(begin.elapsed_time(end))
            medians = {name: round(statistics.median(t), 2) for name, t in times.items()}
            print(f"{which}: {blocks} blocks of {shared >> 10} KB and {threads} threads: {medians}", flush=True)


if __name__ == "__main__":
    main()
