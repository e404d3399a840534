"""Rules of casts from and to float8, which is in memory as bytes: :mod:`mlirfuse.frontend.torch.float8`."""

from __future__ import annotations

import functools

import torch

from mlirfuse.frontend.torch.ops.rules import Context, dtype_of, rule
from mlirfuse.frontend.torch.torch_private import disable_current_modes
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value

NAMES = {torch.float8_e4m3fn: "e4m3fn", torch.float8_e5m2: "e5m2"}


@functools.cache
def _saturates(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether torch's cast on ``device`` gives the largest number for larger ones: releases differ."""
    with disable_current_modes(), torch.no_grad():
        return bool(torch.tensor(torch.inf, device=device).to(dtype).float().isfinite())


@rule("mlirfuse.encode_float8.default")
def encode(c: Context, x: Value, dtype: torch.dtype) -> Value:
    """As the installed torch's cast: what rounds to more than the largest number becomes that number, or NaN in e4m3fn
    and an infinity in e5m2."""
    x = c.b.cast(x, dt.f32)
    bits = c.b.op(f"encode_{NAMES[dtype]}", x)
    byte = lambda n: c.b.constant(n, dt.u8)  # noqa: E731
    e4m3 = dtype is torch.float8_e4m3fn
    if not _saturates(dtype, c.out.device):
        next_number = c.b.constant(464.0 if e4m3 else 61440.0, dt.f32)  # from here on, ties to even
        too_large = c.op("gt" if e4m3 else "ge", c.op("abs", x), next_number)
        larger = c.op("bitwise_or", bits, byte(0x7F)) if e4m3 else c.op("add", bits, byte(1))
        bits = c.op("where", too_large, larger, bits)
    return bits if e4m3 else c.op("where", c.op("ne", x, x), c.op("bitwise_or", bits, byte(0x7F)), bits)


@rule("mlirfuse.decode_float8.default")
def decode(c: Context, x: Value, dtype: torch.dtype, to: torch.dtype) -> Value:
    return c.b.cast(c.b.op(f"decode_{NAMES[dtype]}", x), dtype_of(to))
