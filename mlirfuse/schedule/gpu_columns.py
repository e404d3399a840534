"""Outer reductions and normalizations on a GPU: memory runs along a kept axis, the reduced axes are rows above each other.

``tx`` threads lie along the columns, each with a vector of them, ``ty`` along the rows; a thread walks down its rows with several loads
in flight, and the block's threads of one column combine through shared memory. Few columns are split over several blocks, whose
accumulators a second kernel combines. Rows of odd lengths are *folded*: several of them, one behind the other, are one row of a length
that vectors divide; the second kernel combines what came of each column in them. Columns that a block's registers hold are read once, however many
phases there are.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple

from mlirfuse import dtypes as dt
from mlirfuse import sizes as sz
from mlirfuse.graph import Op, Value
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.analysis import RANDOM, Analysis, size_of
from mlirfuse.schedule import joint
from mlirfuse.schedule.gpu import Access, GpuBody, GpuKernel
from mlirfuse.schedule.gpu_block_columns import BlockColumns
from mlirfuse.schedule.gpu_partial import finish, partial_memory


SHARED = 48 << 10  # bytes a block may use without asking
FOLDED, MANY = 64, 8 << 20  # folded rows that are worth it; elements of which a quarter as many are
KEPT = 32  # elements of columns that a thread keeps in registers


class Params(NamedTuple):
    """``tx`` threads along columns and ``ty`` along rows, both powers of two; ``unroll`` rows in flight a thread, ``split`` blocks along the rows;
    ``fold`` rows are taken as one; ``checked``: each turn sees to it that its rows are there, so that what is left over takes one turn and not one a
    row; ``held``: all rows are taken in one turn, and kept in registers."""

    access: Access
    tx: int
    ty: int
    unroll: int
    split: int = 1
    fold: int = 1
    checked: bool = False
    held: bool = False


def emit(name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
    """The kernels that compute ``analysis``: two if it is split."""
    assert p.tx & p.tx - 1 == p.ty & p.ty - 1 == 0
    body = GpuBody(name, analysis, slots, p.access, p.tx * p.ty)
    e, k = body.e, body.k
    lanes = p.access.lanes
    kept_loops, loops = analysis.loops(analysis.kept), analysis.loops(analysis.reduced)
    inner, outer = kept_loops[-1], kept_loops[:-1]
    kept, rows = sz.product(a.size for a in analysis.kept), sz.product(a.size for a in analysis.reduced)
    columns, parts = size_of(inner), p.split * p.fold
    if p.fold > 1:
        columns, rows = sz.mul(columns, p.fold), sz.floordiv(rows, p.fold)
    reduced = set(analysis.reduced)
    wide = [v for v in analysis.outputs if reduced & set(analysis.axes.flat(v))]
    small = [v for v in analysis.outputs if v not in wide]
    late = analysis.late_values()
    early, full = [v for v in wide if v not in late], [v for v in wide if v in late]
    phases = analysis.once(joint.online)

    tile = p.tx * lanes
    across = sz.ceildiv(columns, tile)
    q, part = k.divmod(Index(body.wide(body.block)), p.split) if p.split > 1 else (Index(body.wide(body.block)), Index(0))
    above, block_column = k.divmod(q, across) if outer else (Index(0), q)
    t = body.thread
    x = e.and_(t, p.tx - 1)
    y = e.bitcast(e.shr(e.bitcast(t, dt.u32), p.tx.bit_length() - 1), dt.i32)
    column = e.add(e.mul(k.scalar(block_column.base), tile), body.wide(e.mul(x, lanes)))
    inside = e.cmp("lt", column, body.size(columns))
    held = e.min(column, e.sub(body.size(columns), lanes))
    base_env: Env = {}
    body.unlinear(base_env, outer, above)
    body.set_loop(base_env, inner, Index(held, 1, lanes) if lanes > 1 else Index(held))
    low, high = e.const(0, body.index), body.size(rows)
    if p.split > 1:
        length = body.size(sz.ceildiv(rows, p.split))
        low = e.min(e.mul(k.scalar(part.base), length), high)
        high = e.min(e.add(low, length), high)
    first = e.add(low, body.wide(y))
    block = BlockColumns(body, p.tx, p.ty, x, y)

    def at(row: Val) -> Env:
        env = dict(base_env)
        if p.fold > 1:  # memory is one row: a place in it stands for row and column
            body.set_loop(env, inner, Index(e.add(e.mul(row, body.size(columns)), held), 1, lanes))
            return env
        body.unlinear(env, loops, Index(row))
        return env

    def over_rows(phase: list[Op]) -> list[tuple[Val, ...]]:
        """Each thread's accumulators over its rows; on the way, outputs that need no reduction are written."""
        start = [v for op in phase for v in red.identity(e, op, lanes)]

        def visit(places: list[tuple[Env, Val | None]], state: list[Val]) -> list[Val]:
            for env, _ in places:
                for op in phase:
                    k.value(op.operands[0], env)
            out = []
            for op, before in zip(phase, red.grouped(phase, state)):
                elements = [(e.splat(k.value(op.operands[0], env), lanes), body.position(op, env), there) for env, there in places]
                out += red.accumulate(e, op, before, elements)
            if phase is phases[0]:
                store(early, places)
            return out

        return red.grouped(phase, down_rows(start, visit))

    def store(values: list[Value], places: list[tuple[Env, Val | None]]) -> None:
        for env, there in places:
            body.store_at(values, env, analysis.domain, inside if there is None else e.and_(inside, there))

    def down_rows(carried: list[Val], visit) -> list[Val]:
        """Visits this thread's rows, ``unroll`` at a time: where each is, and whether it is one of the rows (None: it is)."""
        span = p.ty * p.unroll

        def rows_from(i: Val) -> list[Val]:
            return [e.add(i, u * p.ty) if u else i for u in range(p.unroll)]

        def clamped(row: Val) -> tuple[Env, Val]:
            return at(e.min(row, e.sub(high, 1))), e.cmp("lt", row, high)

        if p.held:
            return visit([clamped(row) for row in rows_from(first)], carried)
        if p.checked:
            return body.loop(first, high, span, carried, lambda i, state: visit([(at(i), None), *map(clamped, rows_from(i)[1:])], state))
        last_start = e.sub(high, (p.unroll - 1) * p.ty)
        turns = e.div(e.max(e.add(e.sub(last_start, first), span - 1), 0), span)
        rest = e.add(first, e.mul(turns, span))
        carried = body.loop(first, rest, span, carried, lambda i, state: visit([(at(row), None) for row in rows_from(i)], state))
        return body.loop(rest, high, p.ty, carried, lambda i, state: visit([(at(i), None)], state)) if p.unroll > 1 else carried

    needed = bool(full) or len(phases) > 1  # by all threads, not only by those that store it
    for phase in phases:
        totals = block.combine(phase, over_rows(phase), needed)
        if parts == 1:
            body.bind(phase, totals, base_env)
        else:
            writes = e.and_(inside, e.cmp("eq", y, 0))
            with k.region(f"scf.if {writes} {{"):
                for op, total in zip(phase, totals):
                    for which, v in enumerate(total):
                        memory = partial_memory(body, op, which, sz.mul(kept, parts))
                        of_part = body.size(sz.mul(kept, p.fold))
                        offset = e.add(e.mul(k.scalar(part.base), of_part), e.add(e.mul(k.scalar(above.base), body.size(columns)), held))
                        v = e.cast(v, memory.dtype)
                        align = min(16, lanes * memory.dtype.bytes)  # lanes divide the columns
                        e.line(f"llvm.store {v}, {k.address(memory, offset)} {{alignment = {align} : i64}} : {v.type}, !llvm.ptr<1>")
    if full:

        def write(places, state):
            for env, _ in places:
                for value in full:
                    k.value(value, env)
            store(full, places)
            return []

        down_rows([], write)
    if small and parts == 1:
        body.store_at(small, base_env, analysis.kept, e.and_(inside, e.cmp("eq", y, 0)))
    grid = sz.mul(sz.product(size_of(loop) for loop in outer), across, p.split)
    kernels = [body.finish(grid)]
    if parts > 1:
        kernels.append(finish(f"{name}_finish", analysis, slots, p.access, parts, phases[0], _points_a_warp(p)))
    return kernels


def _points_a_warp(p: Params) -> int:
    """How many neighbouring columns a warp finishes: one where columns are few and have many parts, each with threads of its own."""
    return 1 if p.tx < 32 and p.split * p.fold >= 64 else 8


def in_one_pass(analysis: Analysis) -> bool:
    """Whether one pass over the columns does."""
    return analysis.once(_work)[0]


def better_in_stages(analysis: Analysis, p: Params, env: dict[str, int], machine) -> bool:
    """Whether stages take less time than what is chosen for the columns as a whole: a block walks down them slowly, with a few rows under way."""
    columns, above, rows = analysis.values(_extents, env)
    blocks = -(-columns // (p.tx * p.access.lanes)) * above
    return not p.held and rows >= 32 and (blocks < machine.sm_count or rows >= 1024)


def _extents(analysis: Analysis) -> tuple:
    """Columns, what is above each other of them among the kept axes, rows."""
    loops = analysis.loops(analysis.kept)
    return size_of(loops[-1]), sz.product(size_of(loop) for loop in loops[:-1]), sz.product(a.size for a in analysis.reduced)


def _work(analysis: Analysis) -> tuple[bool, int, int, int, int]:
    """Whether one pass over the columns does; how many accumulators a column has in it, and the bytes of those of all passes, each of which has its
    own shared memory; the bytes of the widest input's elements; how many inputs have elements of their own along the columns."""
    reduced, late, phases = set(analysis.reduced), analysis.late_values(), analysis.once(joint.online)
    wide = [v for v in analysis.outputs if reduced & set(analysis.axes.flat(v))]
    held = [[d for op in phase for d in red.accumulator_types(op)] for phase in phases]
    down = [v.dtype.bytes for v in analysis.inputs if reduced & set(analysis.axes.flat(v))]
    one_pass = len(phases) == 1 and late.isdisjoint(wide)
    return one_pass, len(held[0]), sum(d.bytes for phase in held for d in phase), max(down, default=4), max(1, len(down))


def _folds(analysis: Analysis) -> bool:
    """Whether rows can be folded: all that is read lies in memory row behind row, and only sums over the columns come of it."""
    kept, reduced = analysis.loops(analysis.kept), analysis.loops(analysis.reduced)
    if len(kept) != 1 or len(reduced) != 1 or analysis.pinned or any(op.name in ("argmax", "argmin") for op in analysis.phases[0]):
        return False
    if any(op.name in RANDOM for op in analysis.ops):  # an element's number is counted in its own tensor's shape, from row and column apart
        return False
    domain, size = set(analysis.domain), size_of(kept[0])
    steps = [(analysis.axis_stride(v, kept[0][-1]), analysis.axis_stride(v, reduced[0][-1])) for v in analysis.inputs if v.rank]
    wide = any(set(analysis.reduced) & set(analysis.axes.flat(v)) for v in analysis.outputs)
    return not wide and all(s == (1, size) for s in steps) and all(domain == set(analysis.axes.flat(v)) for v in analysis.inputs if v.rank)


def _widest(analysis: Analysis) -> tuple[list[Value], int]:
    """The inputs with dimensions, and the elements of each that an access of at most 16 bytes has."""
    wide = [v for v in analysis.inputs if v.rank]
    return wide, min(16 // max((v.dtype.bytes for v in wide), default=16), 8)


def _folded(analysis: Analysis, access: Access, env: dict[str, int], alignments: dict[Value, int]) -> tuple[int, Access]:
    """How many rows to take as one so that vectors of 16 bytes divide it, and the access then; 1 where that is not to be had."""
    columns, above, rows = analysis.values(_extents, env)
    wide, lanes = analysis.once(_widest)
    fold = lanes // min(columns & -columns, lanes)
    fewest = FOLDED // 4 if rows * columns >= MANY else FOLDED
    if fold == 1 or access.lanes >= lanes or rows % fold or rows < fewest * fold or not analysis.once(_folds):
        return 1, access
    if any(alignments.get(v, 16) < lanes * v.dtype.bytes for v in wide):
        return 1, access
    aligns = [lanes * v.dtype.bytes if v in wide else v.dtype.bytes for v in analysis.inputs] + [v.dtype.bytes for v in analysis.outputs]
    return fold, access._replace(lanes=lanes, aligns=tuple(aligns), multiples=frozenset())


def candidates(analysis: Analysis, access: Access, env: dict[str, int], alignments: dict[Value, int], machine) -> Iterator[Params]:
    """Parameters worth trying, the model's choice first: a warp's columns or what there is of them, rows for the other threads, and a
    split until the machine is full. Where there are blocks for every multiprocessor without a split, or few rows, there is none: a
    second kernel costs more than it helps."""
    columns, above, rows = analysis.values(_extents, env)
    vectors = -(-columns // access.lanes)
    single, accumulators, held_bytes, element, inputs = analysis.once(_work)
    fold, access = _folded(analysis, access, env, alignments) if single else (1, access)
    if fold > 1:
        columns, rows = columns * fold, rows // fold
        vectors = columns // access.lanes
    tx = 1
    while tx < 32 and tx < vectors:
        tx *= 2
    blocks = -(-vectors // tx) * above
    work = vectors * above * rows
    little = work <= 256 << 10 and blocks < machine.sm_count  # many small blocks for it, but not many parts to finish

    def params(tx: int, threads: int, unroll: int, full: float = 1.0) -> Params:
        ty = max(1, threads // tx)
        while ty > 1 and (ty > rows or (ty + 2) * (tx * access.lanes + 1) * held_bytes > SHARED):
            ty //= 2
        while unroll > 1 and ty * unroll > rows:
            unroll //= 2
        split, across = 1, -(-vectors // tx) * above
        if single:
            wanted = min(full * machine.sm_count * (machine.threads_per_sm // (tx * ty)), 64 * across if little else 1 << 30)
            while split * 2 * across <= wanted and rows // (split * 2) >= ty * unroll * 2:
                split *= 2
        return Params(access, tx, ty, unroll, split, fold)

    def in_one_turn(given: list[Params]) -> Iterator[Params]:
        """Parameters with as many rows a turn as a thread has, where those are few."""
        for p in given:
            for threads in (p.tx * p.ty, 1024):
                ty, lanes = threads // p.tx, p.access.lanes
                unroll = next((n for n in (2, 4, 8, 12, 16) if ty * n >= rows), 0)
                registers = unroll * lanes * element // 4 + lanes * held_bytes // 2  # of the rows, and of accumulators before and after
                if unroll and ty <= 2 * rows and (ty + 2) * (p.tx * lanes + 1) * held_bytes <= SHARED and registers <= 48:
                    yield p._replace(ty=ty, unroll=unroll, split=1, checked=True)

    def narrow() -> list[Params]:
        """Narrower vectors, so that a block for each multiprocessor needs no split."""
        out, lanes = [], access.lanes if fold == 1 else 1  # folded rows take the lanes that they were folded for
        while lanes > 1:
            lanes //= 2
            blocks_now = -(-columns // (lanes * 32)) * above
            enough = machine.sm_count // 2 <= blocks_now < 4 * machine.sm_count
            if enough and single and columns % lanes == 0 and lanes * element >= 4:
                aligns = tuple(min(a, lanes * v.dtype.bytes) for a, v in zip(access.aligns, analysis.inputs + analysis.outputs))
                narrower = access._replace(lanes=lanes, aligns=aligns)
                out += [params(32, threads, unroll)._replace(access=narrower, split=1) for threads in (1024, 512) for unroll in (16, 8)]
        return out

    def in_registers() -> Iterator[Params]:
        """Parameters that keep columns in registers, as few threads as do it: first where a block's rows are 128 bytes, of half types 64; longer
        where there are few rows, so that a thread has some vectors under way, but not so long that multiprocessors have no block."""
        wanted = max(8 if element >= 4 else 4, min(32, 1 << max(512 // max(rows, 1), 1).bit_length() - 1))
        while wanted > 4 and -(-vectors // wanted) * above < machine.sm_count:
            wanted //= 2
        for x in dict.fromkeys(min(tx, x) for x in (wanted, 8, 16, 4, 32)):
            if x < tx and x * access.lanes * element < 64:  # two sectors of memory
                continue
            for threads in (128, 256, 512, 1024):
                unroll = 1 << (-(-rows * x // threads) - 1).bit_length()
                most = KEPT // (access.lanes * inputs) // (2 if threads == 1024 else 1)
                if unroll <= min(max(1, most), 16) and (threads // x + 2) * (x * access.lanes + 1) * held_bytes <= SHARED:
                    yield Params(access, x, threads // x, unroll, held=True)
                    break

    if not single:
        yield from in_registers()
    a_thread = work // (blocks * 64 * 256) if little else 0  # vectors, with as many parts as there are then
    bytes_a_thread = 32 if little else 128 if work * access.lanes * element >= 12 << 20 else 64  # of rows under way
    threads = 512 if work >= 1 << 20 or blocks >= machine.sm_count or a_thread >= 16 else 256
    in_flight = max(2 if little and a_thread < 8 else 4, min(16, bytes_a_thread // (access.lanes * element)))
    halved = 2 if a_thread >= 2 and tx > 2 else 1
    normal = tx // halved, threads if access.lanes * accumulators <= 8 else 128, in_flight, float(halved)
    if single and not little and blocks < machine.sm_count and access.lanes * accumulators <= 8:  # 256 bytes along; all parts run at once, none waits
        along = max(1, min(tx, 256 // (access.lanes * element)))
        normal = along, 512 if work >= 2 << 20 else 256, max(4, min(16, 64 // (access.lanes * element))), 0.375
    at_once = min(tx, 16) if access.lanes > 1 else tx, 512, max(8, in_flight), 0.0  # without a split
    many = vectors * above >= machine.sm_count * 32 and rows <= 256  # columns: few threads share one
    if many:
        at_once = 32, 256 if rows >= 64 and vectors * above < machine.sm_count * 128 else 128, 4 if fold == 1 else 8, 0.0
    alone, short = -(-vectors // 16) * above, access.lanes * element < 16 or element < 4  # blocks without a split; whether a row of one is soon read
    few_rows = blocks < machine.sm_count and fold == 1 and (rows <= 512 or rows <= 1024 and (work <= 4096 or alone >= machine.sm_count // 5))
    if rows <= 512 and blocks < machine.sm_count:  # soon done: little code to fetch, many blocks, and threads for four rows each
        along = min(tx, 16)
        at_once = along, max(128, min(512, along << (-(-rows // 4) - 1).bit_length())), 4, 0.0
    filled = access.lanes * element >= 8 and -(-vectors // at_once[0]) * above >= 0.9 * machine.sm_count
    ordered = [at_once, normal] if single and (few_rows or filled or many) else [normal, at_once]
    narrower = narrow() if few_rows and rows <= 512 and (element < 4 or alone < machine.sm_count) else []
    first = narrower[-1] if narrower else params(*ordered[0])
    if single and few_rows and not narrower and not short and 128 < rows <= 512 and alone < machine.sm_count:
        first = next((p for p in in_one_turn([first]) if p.tx * p.ty == 1024), first)
    yield first
    others = [params(x, threads, unroll, full) for x in (tx, max(1, tx // 2)) for threads in (128, 256, 512) for unroll in (2, 4, 8) for full in (0.375, 1.0)]
    modelled = [*(params(*given) for given in ordered), *narrow()]
    yield from (p for p in dict.fromkeys([*modelled, *in_one_turn([first, *modelled]), *others]) if p != first)
