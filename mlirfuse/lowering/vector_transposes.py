"""Transposes of blocks in vector registers."""

from __future__ import annotations

from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Emitter, Val


def transposed(e: Emitter, rows: list[Val]) -> list[Val]:
    """The columns of a block whose sides are powers of two. Elements are first interleaved within 128 bits, then
    128-bit units are permuted: both are single instructions on x86, unlike other cross-lane moves. Short rows are
    concatenated to vectors before that, long ones split after it."""
    dtype, height, width = rows[0].dtype, rows[0].lanes, len(rows)
    word = {8: dt.u8, 16: dt.u16, 32: dt.u32, 64: dt.u64}[dtype.bits]
    rows = [e.cast(v, dt.u8) if dtype is dt.bool_ else e.bitcast(v, word) for v in rows]
    unit = min(height, width, 128 // dtype.bits)
    if height < width:
        together = width // height
        starts = [g + i for g in range(0, width, unit * together) for i in range(unit)]
        rows = [_concatenated(e, [rows[s + c * unit] for c in range(together)]) for s in starts]
    groups = [_interleaved(e, rows[g : g + unit], unit) for g in range(0, len(rows), unit)]
    out = rows[:1] * height  # each is set below
    for n in range(unit):
        of = [group[n] for group in groups]
        if height <= width:
            columns = _permuted(e, of, unit)
        else:
            columns = [
                _concatenated(e, [e.shuffle(v, v, range(s, s + unit)) for v in of]) for s in range(0, height, unit)
            ]
        out[n::unit] = columns
    return [e.cmp("ne", v, 0) if dtype is dt.bool_ else e.bitcast(v, dtype) for v in out]


def _concatenated(e: Emitter, rows: list[Val]) -> Val:
    """Concatenate vectors to one."""
    while len(rows) > 1:
        rows = [e.shuffle(a, b, range(2 * a.lanes)) for a, b in zip(rows[::2], rows[1::2])]
    return rows[0]


def _interleaved(e: Emitter, rows: list[Val], unit: int) -> list[Val]:
    """Transpose the squares that ``unit`` rows have in each 128 bits."""
    lanes, half = rows[0].lanes, unit // 2
    starts = range(0, lanes, unit)
    low = [i for s in starts for k in range(half) for i in (s + k, lanes + s + k)]
    high = [i + half for i in low]
    count = len(rows) // 2
    for _ in range(unit.bit_length() - 1):
        rows = [v for a, b in zip(rows[:count], rows[count:]) for v in (e.shuffle(a, b, low), e.shuffle(a, b, high))]
    return rows


def _permuted(e: Emitter, rows: list[Val], unit: int) -> list[Val]:
    """Gather the c-th unit of each row in the c-th result."""
    if len(rows) == 1:
        return rows
    lanes = rows[0].lanes
    even = [s + k for s in range(0, 2 * lanes, 2 * unit) for k in range(unit)]
    odd = [i + unit for i in even]
    pairs = list(zip(rows[::2], rows[1::2]))
    evens = _permuted(e, [e.shuffle(a, b, even) for a, b in pairs], unit)
    odds = _permuted(e, [e.shuffle(a, b, odd) for a, b in pairs], unit)
    return [v for pair in zip(evens, odds) for v in pair]
