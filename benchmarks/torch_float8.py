#!/usr/bin/env python3
"""float8: training steps of a gated MLP by torchao's recipes, and casts beside a copy.

    python benchmarks/torch_float8.py steps --json float8.json   # 4096 and 11008 features, 8192 tokens (torchao)
    python benchmarks/torch_float8.py casts --json casts.json    # amax, scale, cast, transposed copy, by kind of scale

``casts``: of bfloat16 matrices of 8192×8192, eight calls a row; rows "by copy" copy as many bytes as such a call has to
read and write. ``--by`` and ``--lock`` as of ``torch_attention.py``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch

from benchmarks.time_and_peak import DEVICE, Case, main

PEERS: dict[str, Callable[..., Any]] = {
    "eager": lambda f: f,
    "Inductor": torch.compile,
    "mlirfuse": lambda f: torch.compile(f, backend="mlirfuse"),
}
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class GatedMLP(torch.nn.Module):
    def __init__(self, features: int, inner: int):
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(features, inner, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(inner, features, bias=False)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


def steps(args) -> Iterator[Case]:
    """Forward and backward, without an optimizer."""
    features, inner, tokens = (64, 128, 32) if args.small else (4096, 11008, 8192)
    for recipe in args.only or ("bfloat16", "tensorwise", "rowwise"):
        for peer in args.by or ("Inductor", "mlirfuse"):

            def build(recipe=recipe, peer=peer):
                model = GatedMLP(features, inner).to(DEVICE, torch.bfloat16)
                x, grad = (torch.randn(tokens, features, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
                if recipe != "bfloat16":
                    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

                    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(recipe))
                called, x = PEERS[peer](model), x.requires_grad_()

                def run():
                    y = called(x)
                    y.backward(grad)
                    model.zero_grad(set_to_none=True)
                    x.grad = None
                    return y

                return lambda: float(run().float().norm()), run

            yield Case({"recipe": recipe, "features": features, "by": peer}, build)


def scaled(x, axis: int | None, dtype):
    """``x`` in float8, and its scales: one, or one for each row (``axis`` 1) or column (0)."""
    largest = x.abs().amax() if axis is None else x.abs().amax(axis, keepdim=True)
    scale = torch.finfo(dtype).max / largest.double().clamp(min=1e-12).float()
    return (x.float() * scale).clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype), scale


def blocks(x, rows: int, columns: int):
    """One scale for each block."""
    parts = x.view(x.shape[0] // rows, rows, x.shape[1] // columns, columns)
    scale = torch.finfo(E4M3).max / parts.abs().amax((1, 3), keepdim=True).float().clamp(min=1e-12)
    return (parts.float() * scale).clamp(-448, 448).to(E4M3).view(x.shape), scale


def both(x, axis: int | None, dtype):
    y, scale = scaled(x, axis, dtype)
    return y, y.t().contiguous(), scale


CASTS: dict[str, tuple[Callable[..., Any], float]] = {  # and bytes moved per element
    "tensorwise, both layouts, e4m3fn": (lambda x: both(x, None, E4M3), 6),
    "tensorwise, both layouts, e5m2": (lambda x: both(x, None, E5M2), 6),
    "amax": (lambda x: x.abs().amax(), 2),
    "row scales": (lambda x: scaled(x, 1, E4M3), 3),
    "column scales, transposed": (lambda x: [y.t().contiguous() for y in scaled(x, 0, E4M3)], 3),
    "blocks of 1x128": (lambda x: blocks(x, 1, 128), 3),
    "blocks of 128x128": (lambda x: blocks(x, 128, 128), 3),
}


def casts(args) -> Iterator[Case]:
    """Calls on other inputs each time, of which no two fit into the second-level cache, queued one after the other. The
    copies are rows, too."""
    size, count = (256, 1) if args.small else (8192, 8)
    given = [torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(count)]

    def cycled(f):
        def first():
            return sum(float(y.float().abs().max()) for y in torch.utils._pytree.tree_leaves(f(given[0])))

        def run():
            for x in given:
                f(x)

        return first, run

    for name, (f, moved) in CASTS.items():
        if args.only and name not in args.only:
            continue
        for peer in args.by or ("Inductor", "mlirfuse"):
            yield Case({"cast": name, "calls": len(given), "by": peer}, lambda f=f, p=peer: cycled(PEERS[p](f)))
        source = torch.empty(int(size * size * moved / 2), dtype=torch.uint8, device=DEVICE)
        out = torch.empty_like(source)
        yield Case(
            {"cast": name, "calls": len(given), "by": "copy"},
            lambda s=source, o=out: cycled(lambda _: o.copy_(s)),
        )


if __name__ == "__main__":
    main(__doc__, {"steps": steps, "casts": casts})
