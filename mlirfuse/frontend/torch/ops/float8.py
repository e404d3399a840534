"""Rules of casts from and to float8, which is in memory as bytes: :mod:`mlirfuse.frontend.torch.rewrites.float8`."""

from __future__ import annotations

import functools

import torch

from mlirfuse.frontend.torch.ops.rules import Context, dtype_of, rule
from mlirfuse.frontend.torch.torch_private import disable_current_modes
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.ir.known_values import known_value

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
    x, largest = c.b.cast(x, dt.f32), torch.finfo(dtype).max
    bits = c.b.op(f"encode_{NAMES[dtype]}", _without_clamps(x, largest))
    if _saturates(dtype, c.out.device) or _is_clamped(x, largest):
        return bits
    e4m3 = dtype is torch.float8_e4m3fn
    next_number = c.b.constant(464.0 if e4m3 else 61440.0, dt.f32)  # from here on, ties to even
    too_large = c.op("gt" if e4m3 else "ge", c.op("abs", x), next_number)
    larger = c.op("bitwise_or", bits, c.b.constant(0x7F, dt.u8)) if e4m3 else c.op("add", bits, c.b.constant(1, dt.u8))
    return c.op("where", too_large, larger, bits)


def _limited(x: Value) -> tuple[Value, float] | None:
    """The other operand and the limit of a minimum or maximum with a constant."""
    if x.op is None or x.op.name not in ("minimum", "maximum"):
        return None
    for other, v in (x.op.operands, x.op.operands[::-1]):
        limit = known_value(v)
        if limit is not None and limit.size == 1:
            return other, float(limit.item())
    return None


def _is_clamped(x: Value, most: float) -> bool:
    """Whether ``x`` is at most ``most`` in magnitude, or NaN: by a minimum and a maximum with constants. A cast between
    floats keeps that, as all of them have ``most``."""
    names: set[str] = set()
    while len(names) < 2:
        found = _limited(x)
        if found is not None and abs(found[1]) <= most:
            names.add(x.op.name)
            x = found[0]
        elif x.op is not None and x.op.name == "cast" and x.op.operands[0].dtype.is_float:
            x = x.op.operands[0]
        else:
            return False
    return True


def _without_clamps(x: Value, most: float) -> Value:
    """``x`` before a minimum with ``most`` and a maximum with ``-most``, which a cast that saturates repeats."""
    while (found := _limited(x)) is not None and found[1] == (most if x.op.name == "minimum" else -most):
        x = found[0]
    return x


@rule("mlirfuse.decode_float8.default")
def decode(c: Context, x: Value, dtype: torch.dtype, to: torch.dtype) -> Value:
    return c.b.cast(c.b.op(f"decode_{NAMES[dtype]}", x), dtype_of(to))
