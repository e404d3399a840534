#!/usr/bin/env python3
"""Steps of decoders whose graph makes the mask, losses without logits and flex attention, beside Inductor and eager:
time and peak.

    python benchmarks/torch_attention.py masks --json masks.json    # decoders with causal, padded, packed, window masks
    python benchmarks/torch_attention.py loss --json loss.json      # a linear layer and its loss, by vocabulary
    python benchmarks/torch_attention.py steps --json steps.json    # whole steps, logits in chunks and whole
    python benchmarks/torch_attention.py flex --json flex.json      # flex attention of 8192 words, by mask
    python benchmarks/torch_attention.py given --json given.json    # attention whose mask is an input
    python benchmarks/torch_attention.py masks --small              # tiny sizes, also on a CPU: does it run

Compilation dominates: run several processes side by side (``--by``, ``--only``) with one ``--lock``.

For one GPU that nothing else uses; bfloat16 autocast, fused AdamW, medians of steps timed by events, one implementation
after the other. "value" is the first loss, or of flex attention the norm of result and gradients.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.time_and_peak import DEVICE, Case, main


def within(budget: float, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """``compiled``, with a budget of saved memory where its first call compiles it."""

    def called(*args):
        with torch._functorch.config.patch(activation_memory_budget=budget):
            return compiled(*args)

    return called


PEERS: dict[str, Callable[..., Any]] = {
    "eager": lambda f: f,
    "Inductor": torch.compile,
    "mlirfuse": lambda f: torch.compile(f, backend="mlirfuse"),
    "mlirfuse, never": lambda f: torch.compile(f, backend="mlirfuse", options={"chunked_loss": "never"}),
    "mlirfuse, budget 0.9": lambda f: within(0.9, torch.compile(f, backend="mlirfuse")),
    "mlirfuse, always": lambda f: torch.compile(f, backend="mlirfuse", options={"chunked_loss": "always"}),
    "mlirfuse, always, budget 0.9": lambda f: within(0.9, PEERS["mlirfuse, always"](f)),
}


def decoder(kind: str, small: bool, words: int = 32000):
    import transformers

    sizes = {"vocab_size": words, "hidden_size": 1024, "num_hidden_layers": 14, "intermediate_size": 3072,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}  # fmt: skip
    if small:
        sizes |= {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "head_dim": 16}  # fmt: skip
    with torch.device(DEVICE):
        if kind == "mistral":
            config = transformers.MistralConfig(**sizes, sliding_window=16 if small else 512)
            return transformers.MistralForCausalLM(config)
        if kind == "llama":
            return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=True))
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes))


def inputs(mask: str, batch: int, length: int, words: int) -> dict[str, torch.Tensor]:
    """``mask``: causal, padded (each sequence of another length), packed (documents of a quarter)."""
    ids = torch.randint(0, words, (batch, length), device=DEVICE)
    given = {"input_ids": ids, "labels": ids.clone()}
    if mask == "padded":
        lengths = torch.linspace(length // 2, length, batch, device=DEVICE).long()
        given["attention_mask"] = (torch.arange(length, device=DEVICE)[None] < lengths[:, None]).long()
        given["labels"][given["attention_mask"] == 0] = -100
    if mask == "packed":
        given["position_ids"] = (torch.arange(length, device=DEVICE) % (length // 4))[None].expand(batch, -1).clone()
    return given


def training(model, given, compiled):
    """The loss and its gradients, and a step."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=DEVICE == "cuda")

    def loss_of(given):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            out = model(**given, use_cache=False)
        return out.loss

    called = compiled(loss_of)

    def first():
        loss = called(given)
        loss.backward()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def run():
        called(given).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return first, run


def decoders(cases, peers, small: bool) -> Iterator[Case]:
    """Steps of decoders: ``cases`` of (model, mask, batch, words a sequence, vocabulary)."""
    for kind, mask, batch, length, words in cases:
        for peer in peers:

            def build(kind=kind, mask=mask, batch=batch, length=length, words=words, peer=peer):
                model = decoder(kind, small, words).train()
                return training(model, inputs(mask, batch, length, words), PEERS[peer])

            yield Case({"model": kind, "mask": mask, "batch": f"{batch}x{length}", "words": words, "by": peer}, build)


def masks(args) -> Iterator[Case]:
    batch, length, words = (2, 64, 500) if args.small else (6, 2048, 32000)
    kinds = [("qwen3", "causal"), ("llama", "causal"), ("llama", "padded"), ("llama", "packed"), ("mistral", "causal")]
    cases = [(kind, mask, batch, length, words) for kind, mask in kinds]
    cases = [case for case in cases if not args.only or f"{case[0]}-{case[1]}" in args.only]
    return decoders(cases, args.by or ("eager", "Inductor", "mlirfuse, never"), args.small)


def steps(args) -> Iterator[Case]:
    batch, length = (2, 64) if args.small else (4, 2048)
    cases = [("llama", "causal", batch, length, words) for words in ([500] if args.small else [32000, 128256])]
    cases = [case for case in cases if not args.only or str(case[-1]) in args.only]
    return decoders(cases, args.by or ("eager", "Inductor", "mlirfuse, never", "mlirfuse, always"), args.small)


def loss(args) -> Iterator[Case]:
    """The loss alone, forward and backward: 8192 rows of 4096 features."""
    rows, features = (256, 64) if args.small else (8192, 4096)
    for words in [500] if args.small else [32000, 128256, 256000]:
        for peer in args.by or ("eager", "Inductor", "mlirfuse, never", "mlirfuse, always"):

            def build(words=words, peer=peer):
                x = torch.randn(rows, features, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
                weight = (torch.randn(words, features, device=DEVICE) / features**0.5).requires_grad_()
                labels = torch.randint(0, words, (rows,), device=DEVICE)

                def entropy(x, weight, labels):
                    with torch.autocast(DEVICE, dtype=torch.bfloat16):
                        logits = torch.nn.functional.linear(x, weight)
                    return torch.nn.functional.cross_entropy(logits.float(), labels)

                called = PEERS[peer](entropy)

                def run():
                    found = called(x, weight, labels)
                    torch.autograd.grad(found, (x, weight))
                    return found.detach()

                return lambda: float(run()), run

            if not args.only or str(words) in args.only:
                yield Case({"words": words, "by": peer}, build)


def given(args) -> Iterator[Case]:
    """Attention with a Boolean mask that is an input, forward and backward: causal with padding, and by chance."""
    batch, length, heads, features = (2, 256, 2, 16) if args.small else (6, 2048, 16, 128)
    q, k = torch.arange(length, device=DEVICE)[:, None], torch.arange(length, device=DEVICE)[None]
    lengths = torch.linspace(length // 2, length, batch, device=DEVICE).long()[:, None, None, None]
    cases = {"padded": (k <= q) & (k < lengths), "by chance": torch.rand(batch, 1, length, length, device=DEVICE) < 0.5}
    for case in args.only or cases:
        for peer in args.by or ("eager", "Inductor", "mlirfuse"):

            def build(mask=cases[case], peer=peer):
                shape, dtype = (batch, heads, length, features), torch.bfloat16
                made = [torch.randn(shape, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3)]
                called = PEERS[peer](lambda q, k, v, mask: scaled_dot_product_attention(q * 1.5, k, v, mask))

                def run():
                    out = called(*made, mask)
                    return [out, *torch.autograd.grad(out, made, out)]

                return lambda: sum(float(x.float().norm()) for x in run()), run

            yield Case({"mask": case, "words": length, "by": peer}, build)


def flex(args) -> Iterator[Case]:
    """Flex attention, forward and backward, after a product: 8192 words, 16 heads of 128."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch, length, heads, features = (1, 256, 2, 16) if args.small else (2, 8192, 16, 128)
    documents = torch.arange(length, device=DEVICE) // (length // 8)
    slopes = torch.randn(heads, device=DEVICE).requires_grad_(DEVICE == "cuda")
    cases: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
        "causal": (lambda b, h, q, k: k <= q, None),
        "window": (lambda b, h, q, k: (k <= q) & (q - k < length // 8), None),
        "documents": (lambda b, h, q, k: (k <= q) & (documents[q] == documents[k]), None),
        "bias": (lambda b, h, q, k: k <= q, lambda score, b, h, q, k: score - slopes[h] * (q - k)),
    }
    for case in args.only or cases:
        for peer in args.by or ("Inductor", "mlirfuse"):

            def build(case=case, peer=peer):
                shown, score = cases[case]
                mask = create_block_mask(shown, None, None, length, length, device=DEVICE)
                dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
                made = (torch.randn((batch, heads, length, features), device=DEVICE, dtype=dtype) for _ in range(3))
                q, k, v = (x.requires_grad_(DEVICE == "cuda") for x in made)
                given = [q, k, v, *([slopes] if score is not None else [])]

                def attend(q, k, v, mask):
                    return flex_attention(q * 1.5, k, v, score_mod=score, block_mask=mask)

                called = PEERS[peer](attend)

                def run():
                    out = called(q, k, v, mask)
                    return [out, *torch.autograd.grad(out, given, out)] if out.requires_grad else [out]

                return lambda: sum(float(x.float().norm()) for x in run()), run

            yield Case({"mask": case, "words": length, "by": peer}, build)


if __name__ == "__main__":
    main(__doc__, {"masks": masks, "given": given, "loss": loss, "steps": steps, "flex": flex})
