"""Rules of casts from and to float8, which is in memory as bytes (:mod:`mlirfuse.frontend.torch.rewrites.float8`), and
of its products."""

from __future__ import annotations

import functools

import torch

from mlirfuse.frontend.torch.ops.rules import Context, dtype_of, rule
from mlirfuse.frontend.torch.torch_private import disable_current_modes
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.float8 import encoded
from mlirfuse.ir.graph import Value
from mlirfuse.ir.known_values import known_value

DTYPES = {torch.float8_e4m3fn: dt.f8e4m3fn, torch.float8_e5m2: dt.f8e5m2}


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
    if _saturates(dtype, c.out.device) or _is_clamped(x, largest):
        return encoded(c.b, _without_clamps(x, largest), DTYPES[dtype], saturates=True)
    return encoded(c.b, x, DTYPES[dtype], saturates=False)


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
    return c.b.cast(c.b.op(f"decode_{DTYPES[dtype].name[2:]}", x), dtype_of(to))


@rule("mlirfuse.scaled_mm.default")
def scaled_mm(
    c: Context,
    a: Value,
    b: Value,
    dtype_a: torch.dtype,
    dtype_b: torch.dtype,
    scale_a: Value,
    scale_b: Value,
    bias: Value | None,
    out_dtype: torch.dtype,
    fast_sums: bool,
) -> Value:
    """The sums times the scales, of tensors or of rows and columns, in float32, and then the bias."""
    product = c.b.op(
        "float8_dot", a, b, formats=tuple(DTYPES[dtype].name[2:] for dtype in (dtype_a, dtype_b)), fast_sums=fast_sums
    )
    scales = [c.b.reshape(scale, ()) if scale.numel == 1 else scale for scale in (scale_a, scale_b)]
    if not any(scale.shape for scale in scales):
        scales = [c.b.op("mul", *scales)]
    for scale in scales:
        product = c.b.op("mul", product, c.b.broadcast_to(scale, product.shape) if scale.shape else scale)
    if bias is not None:
        product = c.b.op("add", product, c.b.broadcast_to(c.b.cast(bias, dt.f32), product.shape))
    return c.b.cast(product, dtype_of(out_dtype))
