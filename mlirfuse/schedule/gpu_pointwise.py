"""Pointwise segments on a GPU.

The domain is an inner loop (columns, contiguous where possible) and everything outside of it (rows). A block takes a tile of
``ty * unroll_rows`` rows by ``tx * lanes * unroll_columns`` columns; a thread evaluates all of its elements before it stores any, so
that its loads are in flight together. Threads past the edge compute a clamped element and store nothing.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple

from mlirfuse import dtypes as dt
from mlirfuse import sizes as sz
from mlirfuse.lowering.kernel import Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.analysis import Analysis, size_of
from mlirfuse.schedule.gpu import Access, GpuBody, GpuKernel


class Params(NamedTuple):
    """Threads along columns and rows, and how many vectors of each a thread takes."""

    access: Access
    tx: int
    ty: int
    unroll_columns: int
    unroll_rows: int


def emit(name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
    """The kernel that computes ``analysis``."""
    body = GpuBody(name, analysis, slots, p.access, p.tx * p.ty)
    e, k = body.e, body.k
    loops = analysis.loops(analysis.kept)
    inner, outer = (loops[-1], loops[:-1]) if loops else ([], [])
    columns, rows = size_of(inner), sz.product(size_of(loop) for loop in outer)
    lanes = p.access.lanes
    tile_columns, tile_rows = p.tx * lanes * p.unroll_columns, p.ty * p.unroll_rows
    across = sz.ceildiv(columns, tile_columns)
    block = body.wide(body.block)
    if across == 1 or not outer:
        block_row, block_column = (block, e.const(0, body.index)) if across == 1 and outer else (e.const(0, body.index), block)
    else:
        q, r = k.divmod(Index(block), across)
        block_row, block_column = k.scalar(q.base), k.scalar(r.base)
    t = body.thread
    x = e.and_(t, p.tx - 1) if p.ty > 1 else t
    y = e.bitcast(e.shr(e.bitcast(t, dt.u32), p.tx.bit_length() - 1), dt.i32) if p.ty > 1 else e.const(0, dt.i32)
    first_column = e.add(e.mul(block_column, tile_columns), body.wide(e.mul(x, lanes)))
    first_row = e.add(e.mul(block_row, tile_rows), body.wide(y))

    def at(u: int, w: int, held: bool):
        """The env of a thread's vector ``w`` in its row ``u``, clamped to the domain if ``held``, and whether it is inside."""
        env, valid = {}, None
        if outer:
            row = e.add(first_row, u * p.ty) if u else first_row
            if held:
                valid = e.cmp("lt", row, body.size(rows))
                row = e.min(row, e.sub(body.size(rows), 1))
            body.unlinear(env, outer, Index(row))
        if not inner:
            return env, e.cmp("eq", t, 0)
        column = e.add(first_column, w * p.tx * lanes) if w else first_column
        if held:
            inside = e.cmp("lt", column, body.size(columns))
            valid = inside if valid is None else e.and_(valid, inside)
            column = e.min(column, e.sub(body.size(columns), lanes))
        body.set_loop(env, inner, Index(column, 1, lanes) if lanes > 1 else Index(column))
        return env, valid

    def tile(held: bool) -> None:
        places = [at(u, w, held) for u in range(p.unroll_rows) for w in range(p.unroll_columns)]
        for env, _ in places:
            for value in analysis.outputs:
                k.value(value, env)
        for env, valid in places:
            body.store_at(analysis.outputs, env, analysis.kept, valid)

    if p.unroll_rows * p.unroll_columns == 1:
        tile(True)
    else:  # a tile inside the domain needs no check a vector, which would keep its loads from being in flight together
        last_column = e.add(e.mul(block_column, tile_columns), tile_columns)
        whole = e.cmp("le", last_column, body.size(columns))
        if outer:
            whole = e.and_(whole, e.cmp("le", e.add(e.mul(block_row, tile_rows), tile_rows), body.size(rows)))
        with k.region(f"scf.if {whole} {{", "} else {"):
            tile(False)
        with k.region("", "}"):
            tile(True)
    grid = sz.mul(across, sz.ceildiv(rows, tile_rows)) if loops else 1
    return [body.finish(grid)]


def candidates(analysis: Analysis, access: Access, env: dict[str, int], machine, cached: bool) -> Iterator[Params]:
    """Parameters worth trying, the model's choice first: blocks of 512 threads over the columns, of 256 where there is little to do or more of
    those would have work, or over several rows where columns are few; several vectors a thread where a vector is short and there is work
    for all threads, or where the second-level cache holds much of what is moved (``cached``) and memory is not what threads wait for."""
    columns, rows = analysis.values(_extents, env)
    vectors = -(-columns // access.lanes)

    def params(threads: int, wanted: int) -> Params:
        tx = threads if vectors >= threads else 1 << max(0, vectors - 1).bit_length()
        ty = threads // tx
        full = machine.sm_count * (machine.threads_per_sm // threads)
        across, down = 1, 1
        while across * down < wanted:
            if tx == threads and vectors >= tx * across * 2 and vectors * rows // (threads * across * 2) >= full:
                across *= 2
            elif tx < threads and rows // (ty * down * 2) >= full:
                down *= 2
            else:
                break
        return Params(access, tx, ty, across, down)

    several_rows = vectors < 256  # a block spans rows
    few = vectors * rows < machine.sm_count * machine.threads_per_sm
    threads = 256 if several_rows or few or -(-vectors // 512) * 2 > -(-vectors // 256) else 512
    first = params(threads, (2 if cached else 1) if several_rows else analysis.once(_vectors_a_thread, access.lanes))
    yield first
    others = (params(threads, wanted) for threads in (256, 128, 512) for wanted in (1, 2, 4, 8))
    yield from (p for p in dict.fromkeys(others) if p != first)


def _extents(analysis: Analysis) -> tuple:
    """Columns and rows."""
    loops = analysis.loops(analysis.kept)
    return (size_of(loops[-1]), sz.product(size_of(loop) for loop in loops[:-1])) if loops else (1, 1)


def _vectors_a_thread(analysis: Analysis, lanes: int) -> int:
    """How many vectors of the columns a thread shall take: of several inputs, about 32 bytes under way."""
    columns = set((analysis.loops(analysis.kept) or [[]])[-1])
    inputs = [v for v in analysis.inputs if columns & set(analysis.axes.flat(v))]
    return max(1, min(4, 32 // (lanes * max(v.dtype.bytes for v in inputs) * len(inputs)))) if len(inputs) > 1 else 1
