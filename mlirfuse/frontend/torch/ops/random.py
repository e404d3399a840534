"""Random numbers by seed and stream (:mod:`mlirfuse.frontend.torch.rewrites.random`)."""

from __future__ import annotations

from typing import Any

import torch

from mlirfuse.frontend.torch.ops.rules import Context, rule
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value


def _numbers(c: Context, name: str, seed: Value, offset: int) -> Value:
    return c.op(name, seed, c.b.constant(offset, dt.i64), shape=c.shape, dtype=c.dtype)


@rule("mlirfuse.uniform.default")
def uniform(c: Context, seed: Value, offset: int, size: Any, dtype: torch.dtype) -> Value:
    return _numbers(c, "uniform", seed, offset)


@rule("mlirfuse.normal.default")
def normal(c: Context, seed: Value, offset: int, size: Any, dtype: torch.dtype) -> Value:
    return _numbers(c, "normal", seed, offset)
