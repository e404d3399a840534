#!/usr/bin/env python3
"""What the forward keeps for the backward, and what kernels move, beside torch's own min cut: bytes, nothing is timed.

    python benchmarks/torch_saved_bytes.py --json benchmarks/results/torch-saved-bytes.json

Small models of equal layers, a training step under bfloat16 autocast on the CPU; the same compiler in both columns but
for ``partition_fn``. Bytes are those of ``mlirfuse.torch.explain``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
import transformers
from functorch.compile import min_cut_rematerialization_partition

import mlirfuse.torch
from mlirfuse.frontend.torch import backend

SIZES = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}


class Step(torch.nn.Module):
    """The loss of a model, under autocast."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model.train(), loss

    def forward(self, *given):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.loss(self.model, *given)


def language(name, config, **more):
    model = getattr(transformers, name)(config)
    ids = torch.randint(0, 1000, (4, 128))
    return Step(model, lambda model, ids: model(input_ids=ids, labels=ids, **more).loss), (ids,)


def images(model, logits):
    entropy = torch.nn.functional.cross_entropy
    given = torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))
    return Step(model, lambda model, x, labels: entropy(logits(model(x)), labels)), given


def bert():
    return language("BertForMaskedLM", transformers.BertConfig(vocab_size=1000, **SIZES))


def gpt2():
    sizes = {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 128}
    return language("GPT2LMHeadModel", transformers.GPT2Config(vocab_size=1000, **sizes), use_cache=False)


def llama():
    config = transformers.LlamaConfig(vocab_size=1000, num_key_value_heads=2, **SIZES)
    return language("LlamaForCausalLM", config, use_cache=False)


def vit():
    config = transformers.ViTConfig(image_size=64, patch_size=8, num_labels=10, **SIZES)
    return images(transformers.ViTForImageClassification(config), lambda out: out.logits)


def resnet():
    config = transformers.ResNetConfig(embedding_size=32, hidden_sizes=[64, 128], depths=[2, 2], num_labels=10)
    return images(transformers.ResNetForImageClassification(config), lambda out: out.logits)


MODELS = {f.__name__: f for f in (bert, gpt2, llama, vit, resnet)}


def measured(name: str, cut) -> dict[str, int]:
    """Bytes kept, and bytes that kernels move, with ``cut`` as the partitioner."""
    torch.manual_seed(0)
    step, given = MODELS[name]()
    with mock.patch.object(backend, "partition", cut):
        graphs = mlirfuse.torch.explain(step, *given).graphs
    kept = sum(n for g in graphs for _, n in g.saved)
    return {"kept": kept, "moved": sum(k.read + k.written for g in graphs for k in g.kernels)}


def torchs(joint, inputs, backend_options=None, **options):
    return min_cut_rematerialization_partition(joint, inputs, **options)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--json")
    args = parser.parse_args(argv)
    found = {}
    print(f"{'':8}{'kept MB':>9}{'torch':>8}{'less':>7}{'moved MB':>10}{'torch':>8}{'less':>7}")
    for name in args.models:
        ours, theirs = measured(name, backend.partition), measured(name, torchs)
        found[name] = {"mlirfuse": ours, "torch": theirs}
        cells = [
            f"{ours[k] / 1e6:{w}.2f}{theirs[k] / 1e6:8.2f}{1 - ours[k] / theirs[k]:7.1%}"
            for k, w in (("kept", 9), ("moved", 10))
        ]
        print(f"{name:8}{''.join(cells)}", flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"torch": torch.__version__, "models": found}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
