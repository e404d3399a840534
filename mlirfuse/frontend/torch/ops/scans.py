"""Scans along a dimension. ``cummax`` and ``cummin`` stay extern where their indices are used."""

from __future__ import annotations

from typing import Any

from mlirfuse.frontend.torch.ops.rules import Context, axis, rule, without_negative_zero
from mlirfuse.ir.graph import Value


def _scan(c: Context, name: str, x: Value, dim: int) -> Value:
    """A scan of ``x`` in the result's dtype; a copy of a 0-d tensor."""
    x = c.b.cast(x, c.dtype)
    return c.op(name, x, axis=axis(dim, x.rank)) if x.rank else c.op("copy", x)


@rule("aten.cumsum.default")
def cumsum(c: Context, x: Value, dim: int, *, dtype: Any = None) -> Value:
    return without_negative_zero(c, _scan(c, "cumsum", x, dim))


@rule("aten.cumprod.default")
def cumprod(c: Context, x: Value, dim: int, *, dtype: Any = None) -> Value:
    return _scan(c, "cumprod", x, dim)


@rule("aten.logcumsumexp.default")
def logcumsumexp(c: Context, x: Value, dim: int) -> Value:
    return _scan(c, "logcumsumexp", x, dim)
