"""Scans along contiguous memory on a GPU: a row belongs to some lanes of a warp, to a warp, or to a block.

In a turn each thread has some vectors of the row, a warp's one behind the other. A thread scans its vectors' elements,
the lanes of the warp their totals, by shuffles, and the warps theirs, through shared memory; each element then follows
from the state before the turn, which is carried, that before its warp, before its vector and before its thread. A row
that is longer than a turn takes several, in a loop: one pass over memory, however many scans follow from each other.

Long rows of which there are few are *split*: one kernel leaves the state of each part in the workspace, and another
scans the parts, each from the states of those before it. That reads memory twice.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from mlirfuse.analysis.phases import Analysis, apart, is_outer
from mlirfuse.core.machine import Machine
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index, Memory
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.access import Access, access_of, hint_of
from mlirfuse.schedule.gpu.models import model_of
from mlirfuse.schedule.gpu.row_choice import extents
from mlirfuse.schedule.gpu.scan_body import ScanBody, numbers, parts_of, power_from
from mlirfuse.schedule.gpu.scheduler import GpuScheduler, check_threads
from mlirfuse.schedule.scheduler import Alignments, Sizes, power_of_two, require

WARP = 32
MOST_HELD = 64  # elements of a turn of a thread: their states are in registers together


class Params(NamedTuple):
    """``tx`` threads of a row, ``ty`` rows of a block, ``vectors`` of a thread in a turn; ``looped``: a row may take
    more than one turn; ``split``: parts of a row, each of which a block has."""

    access: Access
    tx: int
    ty: int
    vectors: int
    looped: bool
    split: int = 1


class ScanRows(GpuScheduler[Params]):
    """Scans along rows, and what is as long as they are."""

    name = "scan_rows"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        return bool(analysis.scans)

    def candidates(self, analysis: Analysis, env: Sizes, alignments: Alignments, machine: Machine) -> Iterator[Params]:
        if is_outer(analysis, env):
            return
        access = access_of(analysis, False, env, alignments, hint_of(analysis, env, machine))
        kept, length = analysis.values(extents, env)
        model = model_of(machine).scans
        needed = -(-length // access.lanes)  # vectors of a row

        def params(most_threads: int, vectors: int) -> Params:
            tx = min(power_from(needed), most_threads)
            if needed > WARP:
                tx = max(WARP, min(most_threads, power_from(-(-needed // vectors))))
            vectors = min(vectors, power_from(-(-needed // tx)))
            ty = max(1, min(model.short_block // tx, power_from(kept))) if tx <= WARP else 1
            return Params(access, tx, ty, vectors, needed > tx * vectors)

        usual = max(1, model.elements // (access.lanes * analysis.once(numbers)))
        first = params(model.alone if kept < machine.sm_count else model.block, usual)
        split = params(model.block, usual)
        turns = length // (split.tx * split.vectors * access.lanes)
        few = kept <= machine.sm_count // 2 and turns >= model.turns and split.tx >= WARP
        if few and analysis.once(apart):
            parts = parts_of(kept, turns, model.blocks * machine.sm_count)
            yield split._replace(split=parts, looped=True)
        others = [params(threads, n) for threads in (model.block, WARP, model.alone) for n in (usual, 1, usual // 2)]
        yield from dict.fromkeys(p for p in [first, *others] if p.vectors)

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
        if p.split == 1:
            return [_emit(name, analysis, slots, p)]
        return [_emit(f"{name}_states", analysis, slots, p, states=True), _emit(name, analysis, slots, p)]

    def check(self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, machine: Machine) -> None:
        _, length = analysis.values(extents, env)
        self.check_access(analysis, p, False, env, alignments, machine)
        check_threads(p.tx, p.ty)
        require(p.ty == 1 or p.tx <= WARP, f"ty = {p.ty}: rows of more than a warp are alone in a block")
        held, turn = p.vectors * p.access.lanes, p.tx * p.vectors * p.access.lanes
        require(power_of_two(p.vectors) and held <= MOST_HELD, f"vectors = {p.vectors}: {held} elements of a thread")
        require(p.split >= 1 and power_of_two(p.split), f"split = {p.split}: a power of two")
        alone = p.ty == 1 and p.tx >= WARP and p.looped and analysis.once(apart)
        require(
            p.split == 1 or alone, "split: rows of a warp at least, looped, whose scans do not follow from each other"
        )
        require(p.looped or length <= turn, f"looped = false: {turn} elements a turn, a row has {length}")


def _emit(name: str, analysis: Analysis, slots: Slots, p: Params, states: bool = False) -> GpuKernel:
    """The kernel that writes the outputs, or that which leaves the ``states`` of parts."""
    body = ScanBody(name, analysis, slots, p.access, p.tx * p.ty)
    e, k, lanes = body.e, body.k, p.access.lanes
    kept = sz.product(a.size for a in analysis.kept)
    width, turn = min(p.tx, WARP), p.tx * p.vectors * lanes
    warps = p.tx // width
    x = e.and_(body.thread, p.tx - 1) if p.ty > 1 else body.thread
    lane, warp = e.and_(x, width - 1), body.quotient(x, width)
    row, row_inside, part = body.wide(body.block), None, body.wide(body.block)
    if p.split > 1:
        row, part = (k.scalar(i.base) for i in k.divmod(Index(row), p.split))
    if p.ty > 1:
        row = e.add(e.mul(row, p.ty), body.wide(body.quotient(body.thread, p.tx)))
        row_inside = e.cmp("lt", row, body.size(kept))
        row = e.min(row, e.sub(body.size(kept), 1))
    env: Env = {}
    body.unlinear(env, analysis.loops(analysis.kept), Index(row))
    first = body.wide(e.mul(e.add(e.mul(warp, width * p.vectors), lane), lanes))
    exchange = _Exchange(body, lane, width, warp, warps)
    memories = body.buffers(sz.mul(kept, p.split)) if p.split > 1 else []

    def one(start: Val, carried: list[Val]) -> list[Val]:
        places = []
        for u in range(p.vectors):
            position = e.add(e.add(start, first), u * width * lanes)
            places.append(body.along(env, position, lanes))
        for value in body.loaded:
            for here, _ in places:
                k.preload(value, here)
        following: list[Val] = []
        parity = e.and_(e.cast(e.shr(start, turn.bit_length() - 1), dt.i32), 1)
        for at, (op, state) in enumerate(zip(body.scans, body.grouped(carried))):
            runs = [_runs(body, op, here, inside, lanes) for here, inside in places]
            before, after = exchange.starts(at, op, state, [run[-1] for run in runs], parity)
            for (here, _), run, begun in zip(places, runs, before) if not states else ():
                vals = [sc.result(e, op, sc.combine(e, op, begun, s)) for s in run]
                k.bind(op.result, here, e.from_lanes(vals[::-1] if body.reverse else vals))
            following += after
        for here, inside in places if not states else ():
            valid = inside if row_inside is None else e.and_(row_inside, inside)
            body.store_at(body.full, here, analysis.domain, valid)
        return following

    low, high = body.part(part, p.split, turn)
    begin = exchange.behind(memories, part, row, kept) if memories and not states else body.nothing(1)
    done = body.loop(low, high, turn, begin, one) if p.looped else one(low, begin)
    if states:
        with body.leader(e.cmp("eq", x, 0)):
            body.save(memories, e.add(e.mul(part, body.size(kept)), row), body.grouped(done))
    elif body.small:
        valid = e.cmp("eq", x, 0)
        valid = valid if p.split == 1 else e.and_(valid, e.cmp("eq", part, 0))
        valid = valid if row_inside is None else e.and_(valid, row_inside)
        body.store_at(body.small, env, analysis.kept, valid)
    return body.finish(sz.mul(sz.ceildiv(kept, p.ty), p.split))


def _runs(body: ScanBody, op: Op, here: Env, inside: Val, lanes: int) -> list[sc.State]:
    """The states of a vector's first element, of its first two, and so on, in the order of the scan."""
    e = body.e
    vector = sc.element(e, op, body.k.operands(op, here), lanes)
    order = reversed(range(lanes)) if body.reverse else range(lanes)
    nothing = sc.identity(e, op, 1)
    elements = [sc.select(e, inside, tuple(e.extract(v, lane) for v in vector), nothing) for lane in order]
    out = elements[:1]
    for element in elements[1:]:
        out.append(sc.combine(e, op, out[-1], element))
    return out


class _Exchange:
    """What threads tell each other: the state before each one's vectors."""

    def __init__(self, body: ScanBody, lane: Val, width: int, warp: Val, warps: int):
        self.body, self.e = body, body.e
        self.lane, self.width, self.warp, self.warps = lane, width, warp, warps
        self.offsets = [
            [body.reserve(2 * warps * 8) for _ in sc.state_types(op)] if warps > 1 else [] for op in body.scans
        ]

    def starts(
        self, at: int, op: Op, carried: sc.State, totals: list[sc.State], parity: Val
    ) -> tuple[list[sc.State], sc.State]:
        """The state before each of this thread's vectors, whose ``totals`` these are, and that behind the turn. The
        ``at``-th scan's; ``parity``: of the turn. A turn's totals lie beside the last one's, which may still be
        read."""
        body, e = self.body, self.e
        combine = functools.partial(sc.combine, e, op)
        scanned = [self.along_lanes(op, total, self.width) for total in totals]
        ends = [self.of_last(state, self.width) for state in scanned]
        warp_total = functools.reduce(combine, ends)
        if self.warps > 1:
            slot = e.mul(parity, self.warps)
            with body.leader(e.cmp("eq", self.lane, 0)):
                body.put(self.offsets[at], e.add(slot, self.warp), warp_total)
            body.barrier()
            source = e.add(slot, e.and_(self.lane, self.warps - 1))
            of_warps = self.along_lanes(op, body.get(self.offsets[at], source, warp_total), self.warps)
            after = combine(carried, self.of_last(of_warps, self.warps))
            begin = combine(carried, self.before_own_warp(op, of_warps))
        else:
            after, begin = combine(carried, warp_total), carried
        out = []
        for state, end in zip(scanned, ends):
            out.append(combine(begin, self.before_lane(op, state)))
            begin = combine(begin, end)
        return out, after

    def behind(self, memories: list[list[Memory]], part: Val, row: Val, kept: sz.Size) -> list[Val]:
        """The states behind all parts of a row before ``part``, which the lanes of a warp combine."""
        body, e = self.body, self.e

        def some(first: Val, carried: list[Val]) -> list[Val]:
            at = e.add(first, body.wide(self.lane))
            held = e.min(at, e.sub(part, 1))
            found = body.saved(memories, e.add(e.mul(held, body.size(kept)), row))
            out: list[Val] = []
            for op, before, state in zip(body.scans, body.grouped(carried), found):
                state = sc.select(e, e.cmp("lt", at, part), state, sc.identity(e, op, 1))
                together = self.of_last(self.along_lanes(op, state, WARP), WARP)
                out += sc.combine(e, op, before, together)
            return out

        return body.loop(e.const(0, body.index), part, WARP, body.nothing(1), some)

    def along_lanes(self, op: Op, state: sc.State, width: int) -> sc.State:
        """Each lane's state combined with those of all lanes before it."""

        def before(state: sc.State, nothing: sc.State, n: int) -> sc.State:
            return sc.select(self.e, self.has(n, width), self.up(state, n), nothing)

        return sc.along(self.e, op, state, [1 << n for n in range(width.bit_length() - 1)], before)

    def has(self, n: int, width: int) -> Val:
        """Whether a lane has ``n`` others of its group of ``width`` before it."""
        return self.e.cmp("ge", self.e.and_(self.lane, width - 1) if width < self.width else self.lane, n)

    def up(self, state: sc.State, n: int) -> sc.State:
        return tuple(self.body.exchanged(v, "up", n) for v in state)

    def before_lane(self, op: Op, state: sc.State) -> sc.State:
        """The state of all lanes before each."""
        if self.width == 1:
            return sc.identity(self.e, op, 1)
        return sc.select(self.e, self.has(1, self.width), self.up(state, 1), sc.identity(self.e, op, 1))

    def of_last(self, state: sc.State, width: int) -> sc.State:
        """The state that the last of each group of ``width`` lanes has."""
        last = self.e.or_(self.e.and_(self.body.thread, WARP - 1), width - 1) if width < WARP else WARP - 1
        return tuple(self.body.exchanged(v, "idx", last) for v in state) if width > 1 else state

    def before_own_warp(self, op: Op, of_warps: sc.State) -> sc.State:
        """The state of all warps before this one, where lane n has those up to the n-th."""
        before = self.e.max(self.e.sub(self.warp, 1), 0)
        found = tuple(self.body.exchanged(v, "idx", before) for v in of_warps)
        return sc.select(self.e, self.e.cmp("gt", self.warp, 0), found, sc.identity(self.e, op, 1))
