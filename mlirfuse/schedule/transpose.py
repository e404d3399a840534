"""Pointwise segments on the CPU that read along one loop and write along another.

A task is a tile of the two loops, taken in square blocks of as many elements as a vector has. What comes of inputs that are contiguous
along the *reading* loop alone is computed in vectors along it; the block is then transposed in registers, and the rest is computed and
stored in vectors along the *writing* loop. What is left over at the edges is gathered.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirfuse import dtypes as dt
from mlirfuse import ops as table
from mlirfuse import sizes as sz
from mlirfuse.graph import Value
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.machine import Host
from mlirfuse.schedule.analysis import Analysis, size_of
from mlirfuse.schedule.cpu import CpuBody, CpuKernel, lanes_of, rows_grain, store_all

TILE = 64  # elements along each side of a task's tile
WIDEST = 16  # elements along each side of a block, at most: that many vectors are in registers


@dataclass(frozen=True)
class Params:
    """``reading``: which loop the inputs are contiguous along. ``streamed``: outputs are stored past the caches."""

    reading: int
    streamed: bool = False


def side_of(analysis: Analysis, host: Host) -> int:
    """The side of a block."""
    return min(lanes_of(analysis, host), WIDEST)


def reading_loop(analysis: Analysis, host: Host, env: dict[str, int]) -> int | None:
    """The loop that most of what is read is contiguous along, where that is not the one that is written along and a block fits; else None."""
    loops = analysis.loops(analysis.kept)
    if len(loops) < 2:
        return None
    tensors = analysis.once(_whole_inputs)
    values = analysis.values(_strides_and_extents, env)
    strides, extents = values[: len(tensors) * len(loops)], values[len(tensors) * len(loops) :]
    votes = [0] * len(loops)
    for at, value in enumerate(tensors):
        here = strides[at * len(loops) : (at + 1) * len(loops)]
        if here[-1] not in (0, 1) and 1 in here:
            votes[here.index(1)] += value.dtype.bytes
    best = max(range(len(loops)), key=votes.__getitem__)
    side = side_of(analysis, host)
    return best if votes[best] and min(extents[best], extents[-1]) >= side > 1 else None


def _whole_inputs(analysis: Analysis) -> list[Value]:
    """The inputs that are read at the index of the loops themselves."""
    domain = set(analysis.kept)
    axes = {v: set(analysis.axes.flat(v)) for v in analysis.inputs}
    return [v for v, of in axes.items() if len(of) > 1 and of <= domain and not of & analysis.pinned]


def _strides_and_extents(analysis: Analysis):
    loops = analysis.loops(analysis.kept)
    return [analysis.axis_stride(v, loop[-1]) for v in _whole_inputs(analysis) for loop in loops] + [size_of(loop) for loop in loops]


def _staged(analysis: Analysis, reading, writing) -> list[Value]:
    """What is computed along the reading loop: the inputs that are contiguous along it or, if these are no more, what comes of them alone."""
    of = lambda v, loop: analysis.axis_stride(v, loop[-1])  # noqa: E731
    inputs = [v for v in analysis.once(_whole_inputs) if of(v, reading) == 1 and of(v, writing) not in (0, 1)]
    alone, needed = set(inputs), []
    for op in analysis.ops:
        simple = op.name in table.TABLE and table.TABLE[op.name].kind in ("elementwise", "create")
        if simple and op.operands and all(v in alone or not v.rank for v in op.operands):
            alone.update(op.results)
        else:
            needed += [v for v in op.operands if v in alone]
    needed = list(dict.fromkeys(needed + [v for v in analysis.outputs if v in alone]))
    return needed if len(needed) <= len(inputs) else inputs


def cpu(name: str, analysis: Analysis, slots: Slots, params: Params, host: Host) -> list[CpuKernel]:
    """The kernel that computes ``analysis``."""
    body = CpuBody(name, analysis, slots, host, analysis.outputs if params.streamed else ())
    e, k = body.e, body.k
    loops = analysis.loops(analysis.kept)
    writing, reading = loops[-1], loops[params.reading]
    outer = [loop for n, loop in enumerate(loops[:-1]) if n != params.reading]
    width, height = size_of(writing), size_of(reading)
    side = side_of(analysis, host)
    staged = _staged(analysis, reading, writing)

    def at(env: Env, r: Index, w: Index) -> Env:
        here = dict(env)
        body.set_loop(here, reading, r)
        body.set_loop(here, writing, w)
        return here

    def block(env: Env, r: Val, w: Val) -> None:
        across = [at(env, Index(e.add(r, u) if u else r), Index(w, 1, side)) for u in range(side)]
        along = [at(env, Index(r, 1, side), Index(e.add(w, u) if u else w)) for u in range(side)]
        for value in staged:
            read = value in analysis.inputs
            rows = [e.splat(k.preload(value, here) if read else k.value(value, here), side) for here in along]
            for here, row in zip(across, transposed(e, rows)):
                (k.bind_loaded if read else k.bind)(value, here, row)
        for here in across:
            store_all(body, analysis.outputs, [here], analysis.kept)

    def task(index):
        env: Env = {}
        place, r_tile = k.divmod(Index(index), sz.ceildiv(height, TILE))
        place, w_tile = k.divmod(place, sz.ceildiv(width, TILE))
        body.unlinear(env, outer, k.scalar(place.base))
        low_r, low_w = (e.mul(k.scalar(tile.base), TILE) for tile in (r_tile, w_tile))
        high_r, high_w = (e.min(e.add(low, TILE), body.size(n)) for low, n in ((low_r, height), (low_w, width)))
        middle_r, middle_w = (e.add(low, e.and_(e.sub(high, low), -side)) for low, high in ((low_r, high_r), (low_w, high_w)))
        body.loop(low_w, middle_w, side, [], lambda w, _: body.loop(low_r, middle_r, side, [], lambda r, _: block(env, r, w) or []))
        body.loop(low_r, high_r, 1, [], lambda r, _: edge(env, r, e.select(e.cmp("lt", r, middle_r), middle_w, low_w), high_w) or [])

    def edge(env: Env, r: Val, low: Val, high: Val) -> None:
        def some(w, _):
            with k.masked(body.below(e.sub(high, w), side)):
                store_all(body, analysis.outputs, [at(env, Index(r), Index(w, 1, side))], analysis.kept)
            return []

        body.loop(low, high, side, [], some)

    body.tasks(task)
    tasks = sz.mul(sz.product(size_of(loop) for loop in outer), sz.ceildiv(height, TILE), sz.ceildiv(width, TILE))
    return [body.finish(tasks, rows_grain(TILE * TILE))]


def transposed(e: Emitter, rows: list[Val]) -> list[Val]:
    """The columns of a square block. Elements are first zipped inside of 128 bits, then pieces of 128 bits are sorted: both are single
    instructions on x86, unlike what moves elements further."""
    dtype, side = rows[0].dtype, len(rows)
    word = {8: dt.u8, 16: dt.u16, 32: dt.u32, 64: dt.u64}[dtype.bits]
    rows = [e.cast(v, dt.u8) if dtype is dt.bool_ else e.bitcast(v, word) for v in rows]
    piece = min(side, 128 // dtype.bits)
    groups = [_zipped(e, rows[g : g + piece], piece) for g in range(0, side, piece)]
    out: list[Val | None] = [None] * side
    for n in range(piece):
        for c, v in enumerate(_sorted(e, [group[n] for group in groups], piece)):
            out[c * piece + n] = v
    return [e.cmp("ne", v, 0) if dtype is dt.bool_ else e.bitcast(v, dtype) for v in out]


def _zipped(e: Emitter, rows: list[Val], piece: int) -> list[Val]:
    """Transposes the squares that ``piece`` rows have in each 128 bits."""
    lanes, half = rows[0].lanes, piece // 2
    starts = range(0, lanes, piece)
    low = [i for s in starts for k in range(half) for i in (s + k, lanes + s + k)]
    high = [i + half for i in low]
    count = len(rows) // 2
    for _ in range(piece.bit_length() - 1):
        rows = [v for a, b in zip(rows[:count], rows[count:]) for v in (_shuffle(e, a, b, low), _shuffle(e, a, b, high))]
    return rows


def _sorted(e: Emitter, rows: list[Val], piece: int) -> list[Val]:
    """Each row's c-th piece in the c-th result."""
    if len(rows) == 1:
        return rows
    lanes = rows[0].lanes
    even = [s + k for s in range(0, 2 * lanes, 2 * piece) for k in range(piece)]
    odd = [i + piece for i in even]
    pairs = list(zip(rows[::2], rows[1::2]))
    evens = _sorted(e, [_shuffle(e, a, b, even) for a, b in pairs], piece)
    odds = _sorted(e, [_shuffle(e, a, b, odd) for a, b in pairs], piece)
    return [v for pair in zip(evens, odds) for v in pair]


def _shuffle(e: Emitter, a: Val, b: Val, lanes: list[int]) -> Val:
    return e.op(f"vector.shuffle {a}, {b} [{', '.join(map(str, lanes))}] : {a.type}, {b.type}", a.dtype, len(lanes))
