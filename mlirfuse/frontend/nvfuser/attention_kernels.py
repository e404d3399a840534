"""Implementations of a definition's attention, forward and backward: torch's kernels where they accept the operands,
else the formulas in float32 (float64 for float64), in torch or NumPy.

Shapes: queries (…, L, E), keys (…, S, E), values (…, S, Ev); bias and mask broadcast to (…, L, S). The rows' logsumexp
is (…, L). The random state is two numbers; a third, an offset, is there for nvFuser's signature.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse.runtime import arrays


@dataclass(frozen=True)
class Options:
    """The constant options, and which operands follow query, key and value (in the gradient after the output and its
    logsumexp)."""

    causal: bool | None
    dropout: float | None
    scale: float | None
    optional: tuple[str, ...]  # of "bias", "mask", "dropout", "causal", "scale", "state": the operands that are given

    def of(self, operands) -> dict[str, Any]:
        """All options of a call, with those passed as operands."""
        found: dict[str, Any] = {
            "bias": None,
            "mask": None,
            "state": None,
            "causal": self.causal,
            "dropout": self.dropout,
            "scale": self.scale,
        }
        found.update(zip(self.optional, operands))
        for key, kind in (("causal", bool), ("dropout", float), ("scale", float)):
            found[key] = None if found[key] is None else kind(found[key])
        return found | {"causal": bool(found["causal"]), "dropout": found["dropout"] or 0.0}


def forward(options: Options, query, key, value, *more) -> list:
    """[result, logsumexp, random state, offset]."""
    o = options.of(more)
    scale = 1 / math.sqrt(query.shape[-1]) if o["scale"] is None else o["scale"]
    plain = o["bias"] is None and o["mask"] is None
    torch = _torch_of(query)
    if torch and plain and _flash_takes(query, key, value):
        flat = [_rank_4(t) for t in (query, key, value)]
        if query.is_cuda:
            created = torch.ops.aten._scaled_dot_product_flash_attention(
                *flat, o["dropout"], o["causal"], False, scale=scale
            )
            out, logs, state = created[0], created[1], created[6]
        elif not o["dropout"]:
            out, logs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*flat, 0.0, o["causal"], scale=scale)
            state = torch.zeros(2, dtype=torch.uint64)
        else:
            return _formulas_forward(query, key, value, scale, o)
        return [
            out.reshape(*query.shape[:-1], value.shape[-1]),
            logs.reshape(query.shape[:-1]),
            state.to(torch.uint64),
            torch.zeros((), dtype=torch.uint64, device=query.device),
        ]
    return _formulas_forward(query, key, value, scale, o)


def backward(options: Options, grad, query, key, value, out, logs, *more) -> list:
    """The gradients of query, key and value."""
    o = options.of(more)
    scale = 1 / math.sqrt(query.shape[-1]) if o["scale"] is None else o["scale"]
    plain = o["bias"] is None and o["mask"] is None
    torch = _torch_of(query)
    if torch and plain and query.is_cuda and _flash_takes(query, key, value):
        length, keys = query.shape[-2], key.shape[-2]
        state = o["state"] if o["state"] is not None else torch.zeros(2, dtype=torch.uint64, device=query.device)
        unused = torch.zeros((), dtype=torch.uint64, device=query.device)
        created = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *map(_rank_4, (grad, query, key, value, out)),
            logs.reshape(-1, *logs.shape[-2:]),
            None,
            None,
            length,
            keys,
            o["dropout"],
            o["causal"],
            state,
            unused,
            scale=scale,
        )
        return [g.reshape(t.shape) for g, t in zip(created, (query, key, value))]
    xp = torch or np
    q, k, v, g, result, rows = (_widened(t) for t in (query, key, value, grad, out, logs))
    weights = xp.exp(_scores(xp, q, k, scale, o) - rows[..., None])
    kept = _kept(weights, o)
    by_weights = (g @ v.mT) * kept
    by_scores = weights * (by_weights - xp.sum(g * result, axis=-1, keepdims=True)) * scale
    return [
        _narrowed(x, t) for x, t in zip((by_scores @ k, by_scores.mT @ q, (weights * kept).mT @ g), (query, key, value))
    ]


def _formulas_forward(query, key, value, scale: float, o: dict) -> list:
    torch = _torch_of(query)
    xp = torch or np
    if not o["dropout"]:
        seed = 0
    else:
        seed = int(torch.randint(2**62, ())) if torch else int(np.random.randint(2**62))
    state = (
        xp.asarray(np.array([seed, 0], np.uint64))
        if not torch
        else torch.tensor([seed, 0], dtype=torch.uint64, device=query.device)
    )
    q, k, v = (_widened(t) for t in (query, key, value))
    scores = _scores(xp, q, k, scale, o)
    highest = xp.amax(scores, axis=-1, keepdims=True)
    highest = xp.where(xp.isinf(highest), xp.zeros_like(highest), highest)  # a fully masked row
    sums = xp.exp(scores - highest)
    total = xp.sum(sums, axis=-1, keepdims=True)
    logs = (highest + xp.log(total))[..., 0]
    out = (sums / total * _kept(sums, {**o, "state": state})) @ v
    return [_narrowed(out, query), logs, state, xp.zeros_like(state[0])]


def _scores(xp, query, key, scale: float, o: dict):
    scores = (query @ key.mT) * scale
    if o["bias"] is not None:
        scores = scores + _widened(o["bias"])
    if o["mask"] is not None:
        scores = xp.where(o["mask"], scores, xp.full_like(scores, -math.inf))
    if o["causal"]:
        scores = xp.where(xp.tril(xp.ones_like(scores)) != 0, scores, xp.full_like(scores, -math.inf))
    return scores


def _kept(like, o: dict):
    """1 / (1 - p) where dropout keeps a weight, else 0, from NumPy's Philox with the random state, so that the gradient
    uses the same mask."""
    if not o["dropout"]:
        return 1.0
    seed = int(np.asarray(arrays.to_numpy(o["state"])).reshape(-1)[0])
    draw = np.random.Generator(np.random.Philox(key=seed)).random(tuple(like.shape)) >= o["dropout"]
    return (
        arrays.from_numpy((draw / (1 - o["dropout"])).astype(np.float64), like)
        if _torch_of(like) is None
        else (sys.modules["torch"].from_numpy(draw / (1 - o["dropout"])).to(like))
    )


def _torch_of(array):
    return sys.modules["torch"] if arrays.framework(array) == "torch" else None


def _flash_takes(query, key, value) -> bool:
    torch = sys.modules["torch"]
    halves = (torch.float16, torch.bfloat16)
    width = query.shape[-1]
    if 0 in (*query.shape, *key.shape) or value.shape[-1] != width or query.shape[:-2] != key.shape[:-2]:
        return False
    if query.is_cuda:
        return query.dtype in halves and width % 8 == 0 and width <= 256
    return query.dtype in (*halves, torch.float32, torch.float64)


def _rank_4(t):
    return t.reshape(-1, *t.shape[-3:])


def _widened(t):
    if arrays.framework(t) == "torch":
        return t if t.dtype == sys.modules["torch"].float64 else t.float()
    return t if t.dtype == np.float64 else t.astype(np.float32)


def _narrowed(t, like):
    return t.to(like.dtype) if arrays.framework(like) == "torch" else t.astype(like.dtype)
