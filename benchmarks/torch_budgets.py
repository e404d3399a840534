#!/usr/bin/env python3
"""Training steps under a budget of saved memory (``torch._functorch.config.activation_memory_budget``), beside Inductor.

    python benchmarks/torch_budgets.py models --json budgets.json            # budgets of 0.5 and 1
    python benchmarks/torch_budgets.py models --only gpt2-0.5 --by mlirfuse  # one row

bfloat16 autocast, fused AdamW. ``--by`` and ``--lock`` as of ``torch_attention.py``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
import transformers

from benchmarks.time_and_peak import DEVICE, Case, main
from benchmarks.torch_attention import PEERS


def gpt2(small: bool):
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    config.n_layer = 2 if small else 12
    return transformers.GPT2LMHeadModel(config), words(50257, *((1, 64) if small else (8, 1024)))


def llama(small: bool):
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8, "num_attention_heads": 16}
    if small:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, vocab_size=500 if small else 32000)
    return transformers.LlamaForCausalLM(config), words(config.vocab_size, *((1, 64) if small else (4, 1024)))


def vit(small: bool):
    sizes = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_hidden_layers": 2 if small else 12}
    images = torch.randn(2 if small else 128, 3, 224, 224)
    labels = torch.randint(0, 1000, (len(images),))
    model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000, **sizes))
    return model, {"pixel_values": images, "labels": labels}


def words(vocabulary: int, batch: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, vocabulary, (batch, length))
    return {"input_ids": ids, "labels": ids.clone(), "use_cache": False}


MODELS = {f.__name__: f for f in (gpt2, llama, vit)}


def training(make, budget: float, compiled, small: bool):
    """The loss and its gradients, compiled under the budget, and a step."""
    with torch.device(DEVICE):
        model, given = make(small)
    optimizer = torch.optim.AdamW(model.train().parameters(), fused=DEVICE == "cuda")
    called = compiled(model)

    def backward():
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = called(**given).loss
        loss.backward()
        return loss.detach()

    def first():
        with torch._functorch.config.patch(activation_memory_budget=budget):
            loss = float(backward())
        optimizer.zero_grad(set_to_none=True)
        return loss

    def run():
        backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return first, run


def models(args) -> Iterator[Case]:
    for name, make in MODELS.items():
        for budget in (0.5, 1.0):
            if args.only and f"{name}-{budget}" not in args.only:
                continue
            for peer in args.by or ("Inductor", "mlirfuse"):
                yield Case(
                    {"model": name, "budget": budget, "by": peer},
                    lambda make=make, budget=budget, peer=peer: training(make, budget, PEERS[peer], args.small),
                )


if __name__ == "__main__":
    main(__doc__, {"models": models})
