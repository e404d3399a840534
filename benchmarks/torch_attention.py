#!/usr/bin/env python3
"""Steps of decoders whose graph makes the mask, losses without logits and flex attention, beside Inductor and eager:
time and peak.

    python benchmarks/torch_attention.py masks --json masks.json    # decoders with causal, padded, packed, window masks
    python benchmarks/torch_attention.py loss --json loss.json      # a linear layer and its loss, by vocabulary
    python benchmarks/torch_attention.py steps --json steps.json    # whole steps, logits in chunks and whole
    python benchmarks/torch_attention.py flex --json flex.json      # flex attention of 8192 words, by mask
    python benchmarks/torch_attention.py masks --small              # tiny sizes, also on a CPU: does it run

Compilation dominates: fill the caches first by several processes side by side (``--by``, ``--only``), then measure.

For one GPU that nothing else uses; bfloat16 autocast, fused AdamW, medians of steps timed by events, one implementation
after the other in one process. ``differs`` is the largest relative difference of the loss from eager's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from importlib.metadata import version

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch

import mlirfuse.torch  # noqa: F401  (registers the back end)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PEERS = {
    "eager": lambda f: f,
    "Inductor": torch.compile,
    "mlirfuse": lambda f: torch.compile(f, backend="mlirfuse"),
    "mlirfuse, never": lambda f: torch.compile(f, backend="mlirfuse", options={"chunked_loss": "never"}),
    "mlirfuse, always": lambda f: torch.compile(f, backend="mlirfuse", options={"chunked_loss": "always"}),
}


def timed(run, repeats: int) -> tuple[float, int]:
    """Median milliseconds of ``run()``, and the peak of its memory in bytes."""
    for _ in range(3):
        run()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    took = []
    for _ in range(repeats):
        if DEVICE == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            end.synchronize()
            took.append(start.elapsed_time(end))
        else:
            start = time.perf_counter()
            run()
            took.append(1000 * (time.perf_counter() - start))
    return statistics.median(took), torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0


def decoder(kind: str, small: bool, words: int = 32000):
    import transformers

    sizes = {"vocab_size": words, "hidden_size": 1024, "num_hidden_layers": 14, "intermediate_size": 3072,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}  # fmt: skip
    if small:
        sizes |= {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "head_dim": 16}  # fmt: skip
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
    """A step, and its last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=DEVICE == "cuda")

    def loss_of(given):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            out = model(**given, use_cache=False)
        return out.loss

    called, last = compiled(loss_of), []

    def run():
        loss = called(given)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last[:] = [loss.detach()]

    return run, last


def rows_of_steps(cases, peers, small: bool, repeats: int):
    """A row for each case and peer: step time, peak, first step, relative difference of the loss from the first's."""
    for kind, mask, batch, length, words in cases:
        expected = None
        for peer in peers:
            torch._dynamo.reset()
            torch.manual_seed(0)
            model = decoder(kind, small, words).to(DEVICE).train()
            given = inputs(mask, batch, length, words)
            run, last = training(model, given, PEERS[peer])
            start = time.perf_counter()
            run()
            first, loss = time.perf_counter() - start, float(last[0])
            expected = loss if expected is None else expected
            took, peak = timed(run, repeats)
            yield {"model": kind, "mask": mask, "batch": f"{batch}x{length}", "words": words, "by": peer,
                   "ms": round(took, 2), "GB": round(peak / 1e9, 2), "first s": round(first, 1),
                   "differs": abs(loss - expected) / abs(expected)}  # fmt: skip
            del model, run, last
            gc.collect()


def masks(small: bool, repeats: int, by, only):
    batch, length, words = (2, 64, 500) if small else (6, 2048, 32000)
    kinds = [("qwen3", "causal"), ("llama", "causal"), ("llama", "padded"), ("llama", "packed"), ("mistral", "causal")]
    cases = [(kind, mask, batch, length, words) for kind, mask in kinds]
    cases = [case for case in cases if not only or f"{case[0]}-{case[1]}" in only]
    yield from rows_of_steps(cases, by or ("eager", "Inductor", "mlirfuse, never"), small, repeats)


def steps(small: bool, repeats: int, by, only):
    batch, length = (2, 64) if small else (4, 2048)
    cases = [("llama", "causal", batch, length, words) for words in ([500] if small else [32000, 128256])]
    yield from rows_of_steps(cases, by or ("eager", "Inductor", "mlirfuse, never", "mlirfuse, always"), small, repeats)


def loss(small: bool, repeats: int, by, only):
    """The loss alone, forward and backward: 8192 rows of 4096 features."""
    rows, features = (256, 64) if small else (8192, 4096)
    for words in [500] if small else [32000, 128256, 256000]:
        expected = None
        for peer in by or ("eager", "Inductor", "mlirfuse, never", "mlirfuse, always"):
            torch._dynamo.reset()
            torch.manual_seed(0)
            x = torch.randn(rows, features, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
            weight = (torch.randn(words, features, device=DEVICE) / features**0.5).requires_grad_()
            labels = torch.randint(0, words, (rows,), device=DEVICE)

            def entropy(x, weight, labels):
                with torch.autocast(DEVICE, dtype=torch.bfloat16):
                    logits = torch.nn.functional.linear(x, weight)
                return torch.nn.functional.cross_entropy(logits.float(), labels)

            called = PEERS[peer](entropy)

            def run(called=called, x=x, weight=weight, labels=labels):
                found = called(x, weight, labels)
                torch.autograd.grad(found, (x, weight))
                return found.detach()

            value = float(run())
            expected = value if expected is None else expected
            took, peak = timed(run, repeats)
            yield {"words": words, "by": peer, "ms": round(took, 2), "GB": round(peak / 1e9, 2),
                   "differs": abs(value - expected) / abs(expected)}  # fmt: skip
            x = weight = run = None
            gc.collect()


def flex(small: bool, repeats: int, by, only):
    """Flex attention, forward and backward, after a product: 8192 words, 16 heads of 128."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch, length, heads, features = (1, 256, 2, 16) if small else (2, 8192, 16, 128)
    documents = torch.arange(length, device=DEVICE) // (length // 8)
    slopes = torch.randn(heads, device=DEVICE).requires_grad_(DEVICE == "cuda")
    cases = {
        "causal": (lambda b, h, q, k: k <= q, None),
        "window": (lambda b, h, q, k: (k <= q) & (q - k < length // 8), None),
        "documents": (lambda b, h, q, k: (k <= q) & (documents[q] == documents[k]), None),
        "bias": (lambda b, h, q, k: k <= q, lambda score, b, h, q, k: score - slopes[h] * (q - k)),
    }
    for case, (shown, score) in cases.items():
        if only and case not in only:
            continue
        block_mask = create_block_mask(shown, None, None, length, length, device=DEVICE)
        shape = (batch, heads, length, features)
        dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
        torch.manual_seed(0)
        q, k, v = (torch.randn(shape, device=DEVICE, dtype=dtype).requires_grad_(DEVICE == "cuda") for _ in range(3))
        given = [q, k, v, *([slopes] if score is not None else [])]
        expected = None
        for peer in by or ("Inductor", "mlirfuse"):
            torch._dynamo.reset()

            def attend(q, k, v, mask, score=score):
                return flex_attention(q * 1.5, k, v, score_mod=score, block_mask=mask)

            called = PEERS[peer](attend)

            def run(called=called, q=q, k=k, v=v, mask=block_mask, given=given):
                out = called(q, k, v, mask)
                return [out, *torch.autograd.grad(out, given, out)] if out.requires_grad else [out]

            start = time.perf_counter()
            found = [x.detach().float() for x in run()]
            first = time.perf_counter() - start
            expected = [x.cpu() for x in found] if expected is None else expected
            differs = [float((a.cpu() - b).norm() / b.norm()) for a, b in zip(found, expected)]
            del found
            took, peak = timed(run, repeats)
            yield {"mask": case, "words": length, "by": peer, "ms": round(took, 2), "GB": round(peak / 1e9, 2),
                   "first s": round(first, 1), "differs": max(differs)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["masks", "loss", "steps", "flex"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--by", type=lambda names: names.split(";"), help="peers, by semicolons")
    parser.add_argument("--only", type=lambda names: names.split(","), help="cases of masks: MODEL-MASK, by commas")
    parser.add_argument("--json")
    given = parser.parse_args()
    found = []
    for row in {"masks": masks, "loss": loss, "steps": steps, "flex": flex}[given.what](
        given.small, given.repeats, given.by, given.only
    ):
        found.append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if given.json:
        where = {"torch": torch.__version__, "transformers": version("transformers"), "device": DEVICE}
        where["name"] = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({**where, "rows": found}, file, indent=1)


if __name__ == "__main__":
    main()
