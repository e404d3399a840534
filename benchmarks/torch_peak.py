#!/usr/bin/env python3
"""Peak memory of a training step on a CPU: what torch's allocator hands out, weights and gradients aside.

    python benchmarks/torch_peak.py resnet50 --batch 128 --json benchmarks/results/torch-peak.json

Bytes are the same from run to run; nothing is timed. bfloat16 autocast, random weights, no dropout, channels-last for
ours as on a GPU, implementations one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
import transformers
from torch.profiler import ProfilerActivity, profile


def resnet50():
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))


def efficientnet():
    sizes = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "image_size": 224, "hidden_dim": 1280}
    config = transformers.EfficientNetConfig(num_labels=1000, dropout_rate=0.0, drop_connect_rate=0.0, **sizes)
    return transformers.EfficientNetForImageClassification(config)


MODELS = {f.__name__: f for f in (resnet50, efficientnet)}
PEERS = {
    "mlirfuse": lambda model: torch.compile(model, backend="mlirfuse", options={"channels_last": True}),
    "Inductor": torch.compile,
    "eager": lambda model: model,
}


def peak_of(run) -> int:
    """The most bytes that are allocated at a time while ``run()`` does, beside those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def measured(name: str, peer: str, batch: int) -> int:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = MODELS[name]().train()
    called = PEERS[peer](model)
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(called(images).logits, labels)
        loss.backward()
        model.zero_grad()

    step()
    step()
    return peak_of(step)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--json")
    args = parser.parse_args(argv)
    found = {}
    for name in args.models:
        found[name] = {peer: measured(name, peer, args.batch) for peer in PEERS}
        print(name, *[f"{peer} {n / 1e9:.3f} GB" for peer, n in found[name].items()], flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"torch": torch.__version__, "batch": args.batch, "peak": found}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
