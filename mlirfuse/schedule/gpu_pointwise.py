"""Pointwise segments on a GPU.

The domain is an inner loop (columns, contiguous where possible) and everything outside of it (rows). A block takes a tile of
``ty * unroll_rows`` rows by ``tx * lanes * unroll_columns`` columns; a thread evaluates all of its elements before it stores any, so
that its loads are in flight together. Threads past the edge compute a clamped element and store nothing.

Rows that vectors do not divide are folded, where memory runs through them as through one: vectors run across their ends, and what is read
along one of the two loops alone, such as a bias, is read by elements.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple

from mlirfuse import dtypes as dt
from mlirfuse import sizes as sz
from mlirfuse.lowering.kernel import ZERO, Flat, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.analysis import Analysis, size_of
from mlirfuse.schedule.gpu import Access, GpuBody, GpuKernel
from mlirfuse.sizes import Size


class Params(NamedTuple):
    """Threads along columns and rows, and how many vectors of each a thread takes; ``fold``: how many rows are taken as one (0: all of them)."""

    access: Access
    tx: int
    ty: int
    unroll_columns: int
    unroll_rows: int
    fold: int = 1


def emit(name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
    """The kernel that computes ``analysis``."""
    body = GpuBody(name, analysis, slots, p.access, p.tx * p.ty)
    e, k = body.e, body.k
    loops = analysis.loops(analysis.kept)
    columns, rows = _extents(analysis, p.fold)
    outer = loops[:-2] if p.fold == 0 else loops[:-1]
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

    def column_of(w: int, held: bool):
        """The positions of a thread's vector ``w`` in a row, held inside it if ``held``, and whether they are inside."""
        column, inside = e.add(first_column, w * p.tx * lanes) if w else first_column, None
        if held:
            inside = e.cmp("lt", column, body.size(columns))
            column = e.min(column, e.sub(body.size(columns), lanes))
        index = Index(column, 1, lanes) if lanes > 1 else Index(column)
        return index, inside, k.divmod(index, size_of(loops[-1])) if p.fold != 1 else (ZERO, index)

    def row_of(u: int, held: bool):
        """The env of a thread's row ``u`` without its columns, held inside the domain if ``held``, and whether it is inside."""
        env, row, inside = {}, e.add(first_row, u * p.ty) if u else first_row, None
        if held:
            inside = e.cmp("lt", row, body.size(rows))
            row = e.min(row, e.sub(body.size(rows), 1))
        index, above = Index(row), outer
        if p.fold > 1:
            above, folded = outer[:-1], index
            if above:
                index, folded = k.divmod(index, sz.floordiv(size_of(loops[-2]), p.fold))
            body.set_loop(env, loops[-2], k.scale(folded, p.fold))
        body.unlinear(env, above, index)
        return env, inside

    def at(row, column):
        """The env at a row and a column, whether it is inside, and how its vectors run across rows."""
        (env, row_inside), (index, inside, (down, along)) = row, column
        env, flat = dict(env), None
        if p.fold != 1:
            origin = env.get(loops[-2][-1], ZERO).base
            body.set_loop(env, loops[-2], k.add(Index(origin), down))
            flat = Flat((loops[-2][-1], loops[-1][-1]), size_of(loops[-1]), origin, index, env[loops[-2][-1]], along)
        body.set_loop(env, loops[-1], along)
        return env, inside if row_inside is None else row_inside if inside is None else e.and_(row_inside, inside), flat

    def places(held: bool) -> list:
        if not loops:
            return [({}, e.cmp("eq", t, 0), None)]
        rows = [row_of(u, held) for u in range(p.unroll_rows)] if outer else [({}, None)]
        columns = [column_of(w, held) for w in range(p.unroll_columns)]
        return [at(row, column) for row in rows for column in columns]

    def tile(held: bool) -> None:
        here = places(held)
        for env, _, k.flat in here:
            for value in analysis.outputs:
                k.value(value, env)
        for env, valid, k.flat in here:
            body.store_at(analysis.outputs, env, analysis.kept, valid)
        k.flat = None

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


def candidates(analysis: Analysis, access: Access, env: dict[str, int], alignments: dict[Value, int], machine, cached: bool) -> Iterator[Params]:
    """Parameters worth trying, the model's choice first: blocks of 512 threads over the columns, of 256 where there is little to do or more of
    those would have work, or over several rows where columns are few; several vectors a thread where a vector is short and there is work
    for all threads, or where the second-level cache holds much of what is moved (``cached``) and memory is not what threads wait for."""
    columns, rows = analysis.values(_plain_extents, env)
    fold, access = _folded(analysis, access, env, alignments) if columns % 8 else (1, access)
    if fold == 0:
        columns, rows = analysis.values(_flat_extents, env)
    elif fold > 1:
        columns, rows = columns * fold, rows // fold
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
        return Params(access, tx, ty, across, down, fold)

    several_rows = vectors < 256  # a block spans rows
    few = vectors * rows < machine.sm_count * machine.threads_per_sm
    threads = 256 if several_rows or few or -(-vectors // 512) * 2 > -(-vectors // 256) else 512
    first = params(threads, (2 if cached else 1) if several_rows else analysis.once(_vectors_a_thread, access.lanes))
    yield first
    others = (params(threads, wanted) for threads in (256, 128, 512) for wanted in (1, 2, 4, 8))
    yield from (p for p in dict.fromkeys(others) if p != first)


def _folded(analysis: Analysis, access: Access, env: dict[str, int], alignments: dict[Value, int]) -> tuple[int, Access]:
    """How many rows to take as one for vectors that are longer than what rows admit, and the access then; 1 where there are none."""
    wide = analysis.once(_in_one_line)
    if not wide:
        return 1, access
    lanes = min(16 // max(analysis.stored(v).bytes for v in wide), 8)
    limits = [*analysis.values(_steps_across, env), *(alignments.get(v, 16) // analysis.stored(v).bytes for v in wide), lanes]
    lanes = min(n & -n for n in limits if n)
    if lanes <= access.lanes:
        return 1, access
    aligns = tuple(analysis.stored(v).bytes * (lanes if v in wide else 1) for v in analysis.inputs + analysis.outputs)
    return 0, access._replace(lanes=lanes, aligns=aligns, multiples=frozenset())


def _in_one_line(analysis: Analysis) -> list[Value]:
    """The tensors whose memory runs through the two innermost loops as through one; none where that is not so of all that is written."""
    loops = analysis.loops(analysis.kept)
    if len(loops) < 2 or analysis.pinned:
        return []
    middle, inner = loops[-2:]
    tensors = dict.fromkeys(analysis.inputs + analysis.outputs)
    steps = {v: (analysis.axis_stride(v, inner[-1]), analysis.axis_stride(v, middle[-1])) for v in tensors}
    wide = [v for v in tensors if steps[v] == (1, size_of(inner))]
    return wide if set(analysis.outputs) <= set(wide) else []


def _steps_across(analysis: Analysis) -> tuple:
    """What vectors across rows must divide: the elements of the two innermost loops, and the steps along the others in what they read and write."""
    loops = analysis.loops(analysis.kept)
    steps = [analysis.axis_stride(v, loop[-1]) for v in analysis.once(_in_one_line) for loop in loops[:-2]]
    return (sz.product(size_of(loop) for loop in loops[-2:]), *dict.fromkeys(steps))


def _extents(analysis: Analysis, fold: int) -> tuple[Size, Size]:
    """Columns and rows, so many of them taken as one."""
    sizes = [size_of(loop) for loop in analysis.loops(analysis.kept)] or [1]
    if fold == 0:
        return sz.mul(*sizes[-2:]), sz.product(sizes[:-2])
    return sz.mul(sizes[-1], fold), sz.product([*sizes[:-2], *(sz.floordiv(n, fold) if fold > 1 else n for n in sizes[-2:-1])])


def _plain_extents(analysis: Analysis) -> tuple:
    return _extents(analysis, 1)


def _flat_extents(analysis: Analysis) -> tuple:
    return _extents(analysis, 0) if len(analysis.loops(analysis.kept)) > 1 else (1, 1)


def _vectors_a_thread(analysis: Analysis, lanes: int) -> int:
    """How many vectors of the columns a thread shall take: of several inputs, about 32 bytes under way."""
    columns = set((analysis.loops(analysis.kept) or [[]])[-1])
    inputs = [v for v in analysis.inputs if columns & set(analysis.axes.flat(v))]
    return max(1, min(4, 32 // (lanes * max(v.dtype.bytes for v in inputs) * len(inputs)))) if len(inputs) > 1 else 1
