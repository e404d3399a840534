"""Scans across contiguous memory on a GPU: memory runs along a kept axis, the scanned axes are rows above each other.

``tx`` threads lie along the columns, each with a vector of them, ``ty`` along the rows. In a turn each thread has some
rows, one above the other, which it scans; the block's threads of one column meet in shared memory, where each finds the
state of those above it. The state behind a turn is carried to the next one: one pass over memory.

Long columns of which there are few are *split*, as rows are (``gpu/scan_rows.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mlirfuse.analysis.phases import Analysis, apart, is_outer, size_of
from mlirfuse.core.machine import Machine
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Index
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.access import Access, access_of, hint_of
from mlirfuse.schedule.gpu.column_body import place_of
from mlirfuse.schedule.gpu.models import model_of
from mlirfuse.schedule.gpu.scan_body import ScanBody, numbers, parts_of, power_from
from mlirfuse.schedule.gpu.scheduler import GpuScheduler, check_threads
from mlirfuse.schedule.scheduler import Alignments, Sizes, power_of_two, require

WARP = 32
MOST_HELD = 64  # elements of a turn of a thread: their states are in registers together
MOST_DOWN = 32  # rows of threads: each reads what all of them have left in shared memory
MOST_PARTS = 64  # of columns: a thread combines the states of all before its own, one after the other
SHARED = 48 << 10  # bytes


class Params(NamedTuple):
    """``tx`` threads along the columns, ``ty`` along the rows, each with so many ``rows`` in a turn; ``split``: parts
    of the columns, each of which a block has."""

    access: Access
    tx: int
    ty: int
    rows: int
    split: int = 1


class ScanColumns(GpuScheduler[Params]):
    """Scans down columns, and what is as long as they are."""

    name = "scan_columns"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        return bool(analysis.scans) and bool(analysis.kept)

    def candidates(self, analysis: Analysis, env: Sizes, alignments: Alignments, machine: Machine) -> Iterator[Params]:
        if not is_outer(analysis, env):
            return
        access = access_of(analysis, True, env, alignments, hint_of(analysis, env, machine))
        columns, above, length = analysis.values(_extents, env)
        model = model_of(machine).scans
        tx = min(WARP, power_from(-(-columns // access.lanes)))
        blocks = -(-columns // (tx * access.lanes)) * above
        few = blocks < machine.sm_count

        def params(down: int, rows: int) -> Params:
            rows = max(1, min(rows // min(2, access.lanes), power_from(length)))
            while down > 1 and (down // 2 * rows >= length or _bytes(analysis, tx, down, access.lanes) > SHARED):
                down //= 2
            return Params(access, tx, down, rows)

        usual = MOST_DOWN if few else model.down
        tried = [(usual, model.rows), (1, model.rows), (usual, 1), (model.down, 2 * model.rows), (2, 2)]
        split = params(model.down, model.rows)
        turns = length // (split.ty * split.rows)
        if blocks <= machine.sm_count // 2 and turns >= model.turns and analysis.once(apart):
            parts = min(MOST_PARTS, parts_of(blocks, turns, model.blocks * machine.sm_count))
            yield split._replace(split=parts)
        yield from dict.fromkeys(params(down, rows) for down, rows in tried)

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
        if p.split == 1:
            return [_emit(name, analysis, slots, p)]
        return [_emit(f"{name}_states", analysis, slots, p, states=True), _emit(name, analysis, slots, p)]

    def check(self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, machine: Machine) -> None:
        require(is_outer(analysis, env), "scan_columns: for these sizes memory runs along the scanned axes")
        self.check_access(analysis, p, True, env, alignments, machine)
        check_threads(p.tx, p.ty)
        require(p.ty <= MOST_DOWN, f"ty = {p.ty}: at most {MOST_DOWN}")
        require(1 <= p.split <= MOST_PARTS, f"split = {p.split}: 1 to {MOST_PARTS} parts")
        require(p.split == 1 or analysis.once(apart), "split: scans that follow from each other")
        held = p.rows * p.access.lanes
        require(power_of_two(p.rows) and held <= MOST_HELD, f"rows = {p.rows}: {held} elements of a thread")
        nbytes = _bytes(analysis, p.tx, p.ty, p.access.lanes)
        require(nbytes <= SHARED, f"tx, ty: {nbytes} bytes of shared memory, {SHARED} are there")


def _extents(analysis: Analysis) -> tuple:
    """Columns of the innermost kept loop, points of those around it, and rows."""
    *outer, inner = analysis.loops(analysis.kept)
    return size_of(inner), sz.product(map(size_of, outer)), sz.product(a.size for a in analysis.reduced)


def _bytes(analysis: Analysis, tx: int, ty: int, lanes: int) -> int:
    """Shared memory of a block."""
    return 2 * tx * ty * lanes * 8 * analysis.once(numbers) if ty > 1 else 0


def _emit(name: str, analysis: Analysis, slots: Slots, p: Params, states: bool = False) -> GpuKernel:
    """The kernel that writes the outputs, or that which leaves the ``states`` of parts."""
    body = ScanBody(name, analysis, slots, p.access, p.tx * p.ty)
    e, k, lanes, turn = body.e, body.k, p.access.lanes, p.ty * p.rows
    columns, above, _ = _extents(analysis)
    kept = sz.mul(columns, above)
    across = sz.ceildiv(columns, p.tx * lanes)
    block, part = Index(body.wide(body.block)), body.wide(body.block)
    if p.split > 1:
        block, which = k.divmod(block, p.split)
        part = k.scalar(which.base)
    outer, block_column = k.divmod(block, across)
    place = place_of(body, p, columns, outer, block_column)
    first = body.wide(e.mul(place.y, p.rows))
    offsets = [
        [body.reserve(2 * p.tx * p.ty * lanes * 8) for _ in sc.state_types(op)] if p.ty > 1 else [] for op in body.scans
    ]

    def starts(at: int, op: Op, carried: sc.State, total: sc.State, parity: Val) -> tuple[sc.State, sc.State]:
        """The state before this thread's rows, which together have the state ``total``, and that behind the turn. A
        turn's totals lie beside the last one's, which may still be read."""
        if p.ty == 1:
            return carried, sc.combine(e, op, carried, total)
        slot = e.mul(parity, p.tx * p.ty)
        body.put(offsets[at], e.add(slot, body.thread), total)
        body.barrier()
        begin, state = carried, carried
        for y in range(p.ty):
            found = body.get(offsets[at], e.add(slot, e.add(place.x, y * p.tx)), total)
            begin = sc.select(e, e.cmp("eq", place.y, y), state, begin) if y else begin
            state = sc.combine(e, op, state, found)
        return begin, state

    def one(start: Val, carried: list[Val]) -> list[Val]:
        rows = [body.along(place.env, e.add(e.add(start, first), u), 1) for u in range(p.rows)]
        for value in body.loaded:
            for here, _ in rows:
                k.preload(value, here)
        following: list[Val] = []
        parity = e.and_(e.cast(e.shr(start, turn.bit_length() - 1), dt.i32), 1)
        for at, (op, state) in enumerate(zip(body.scans, body.grouped(carried))):
            nothing, run, runs = sc.identity(e, op, lanes), None, []
            for here, inside in rows:
                element = sc.select(e, inside, sc.element(e, op, k.operands(op, here), lanes), nothing)
                run = element if run is None else sc.combine(e, op, run, element)
                runs.append(run)
            begin, after = starts(at, op, state, runs[-1], parity)
            for (here, _), run in zip(rows, runs):
                if not states:
                    k.bind(op.result, here, sc.result(e, op, sc.combine(e, op, begin, run)))
            following += after
        for here, inside in rows if not states else ():
            body.store_at(body.full, here, analysis.domain, e.and_(place.inside, inside))
        return following

    memories = body.buffers(sz.mul(kept, p.split)) if p.split > 1 else []

    def of_part(number: Val) -> Val:
        """Where the states of this thread's columns in a part lie."""
        column = e.add(e.mul(k.scalar(outer.base), body.size(columns)), place.column)
        return e.add(e.mul(number, body.size(kept)), column)

    def behind(number: Val, carried: list[Val]) -> list[Val]:
        found = body.saved(memories, of_part(number), lanes)
        return [v for op, a, b in zip(body.scans, body.grouped(carried), found) for v in sc.combine(e, op, a, b)]

    low, high = body.part(part, p.split, turn)
    begin = body.nothing(lanes)
    if memories and not states:
        begin = body.loop(e.const(0, body.index), part, 1, begin, behind)
    done = body.loop(low, high, turn, begin, one)
    first_row = e.and_(place.inside, e.cmp("eq", place.y, 0))
    if states:
        with body.leader(first_row):
            body.save(memories, of_part(part), body.grouped(done))
    elif body.small:
        first_row = first_row if p.split == 1 else e.and_(first_row, e.cmp("eq", part, 0))
        body.store_at(body.small, place.env, analysis.kept, first_row)
    return body.finish(sz.mul(across, above, p.split))
