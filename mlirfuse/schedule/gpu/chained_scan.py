"""Blocks of a scan that each have a part of a row, or of a strip of columns, and tell those behind how to begin.

A block takes the next part by a ticket: those that have the parts before have begun then, so that it may wait for them.
It leaves the state of its part in the workspace, and looks for the states of the parts before its own in the same
group. The last part of a group leaves the state behind the group, too, for which all of the next group wait. So states
are combined in one order, whichever block is first, and a chain has as many links as there are groups.

A word of eight bytes has half of them of a state, and one in the other half: who sees the one sees the state, without a
fence and without a second look. A small kernel empties the words before: no state is left from one call to the next,
which several streams and replays of a graph would share.

Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back (2016), whose blocks look back as far as
they have to, which is another order in each call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.kernel import Memory
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.partial import store_partial
from mlirfuse.schedule.gpu.scan_body import ScanBody

THREADS = 256  # of a block of the kernel that empties the words
_BYTES = 8  # of a word
_THERE = 1 << 32  # in a word that has been written
_ORDER = f'atomic syncscope("device") monotonic {{alignment = {_BYTES} : i64}}'


class States(NamedTuple):
    """Where the states of all ``partials``, or of all groups, begin among the words. The first halves of all states
    come first, then the second ones, and so on."""

    first: sz.Size
    partials: sz.Size


class Asker(NamedTuple):
    """What a thread does for its block. It looks for the states of the parts with these ``numbers`` in the group. Where
    ``leads`` holds it looks for those behind the group before, too, and tells them to the block's other threads through
    shared memory: for each scan at ``offsets`` and ``at``, which nobody reads any more. Where ``shows`` holds it leaves
    states. ``after(n, op, state)``: the ``n``-th scan's state behind what all threads of the same points have found."""

    numbers: list[Val]
    leads: Val
    shows: Val
    after: Callable[[int, Op, sc.State], sc.State]
    offsets: list[list[int]]
    at: Val


class ScanChain:
    """``points``: of the kept axes, each with a state for each of so many ``partials``; ``group``: parts, a power of
    two."""

    def __init__(self, body: ScanBody, points: sz.Size, partials: sz.Size, group: int):
        self.body, self.e, self.points, self.group = body, body.e, points, group
        self.of_partials = States(1, partials)  # behind the ticket
        self.of_groups = States(1 + sz.mul(sz.mul(points, partials), _halves(body)), sz.ceildiv(partials, group))
        self.words = _words(body, points, partials, group)

    def ticket(self) -> Val:
        """Which part of all this block has: those with smaller numbers have begun."""
        body, e = self.body, self.e
        self._ticket = body.shared_address(body.reserve(4), e.const(0, dt.i32), 4)
        with body.leader(e.cmp("eq", body.thread, 0)):
            order = 'syncscope("device") monotonic'
            counter = body.k.address(self.words, e.const(0, body.index))
            add = f"llvm.atomicrmw add {counter}, {e.const(1, dt.i32)} {order} : {body.k.pointer_type}, i32"
            body.shared_store(self._ticket, e.op(add, dt.i32))
        body.barrier()
        return self.ticket_again()

    def ticket_again(self) -> Val:
        """The ticket, read another time: across a barrier no compiler knows it for the same, so that none
        keeps in registers what was computed of it, as the addresses of all elements. One row of
        2500000: 91 registers without, 64 with it, so that two blocks fit a multiprocessor, not one."""
        return self.body.wide(self.body.shared_load(self._ticket, dt.i32))

    def begin(self, partial: Val, point: Val, own: list[sc.State], asker: Asker) -> list[sc.State]:
        """The states before the ``partial`` that has the states ``own``, of which this thread has those at ``point``
        and, of vectors, those behind it."""
        body, e, lanes = self.body, self.e, own[0][0].lanes
        group, place = e.shr(partial, self.group.bit_length() - 1), e.and_(partial, self.group - 1)
        with body.leader(asker.shows):
            self._leave(self.of_partials, partial, point, own)
        asks = [e.cmp("lt", n, place) for n in asker.numbers]
        asked = [e.add(e.sub(partial, place), e.min(n, e.max(e.sub(place, 1), 0))) for n in asker.numbers]
        before, later = e.max(e.sub(group, 1), 0), e.cmp("gt", group, 0)
        seen = [self._look(self.of_partials, number, point, lanes) for number in asked]
        nothing_seen = [e.const(0, dt.u64)] * len(seen[0])
        seen_before = body.k.where(
            asker.leads, lambda: self._look(self.of_groups, before, point, lanes), lambda: nothing_seen, nothing_seen
        )
        found = self._wait(self.of_partials, asked, point, lanes, asks, seen)
        together = []
        for n, op in enumerate(body.scans):
            nothing = sc.identity(e, op, lanes)
            states = [sc.select(e, here, some[n], nothing) for here, some in zip(asks, found)]
            together.append(asker.after(n, op, functools.reduce(functools.partial(sc.combine, e, op), states)))
        with body.leader(asker.leads):  # last: the whole next group waits for this
            (carried,) = self._wait(self.of_groups, [before], point, lanes, [later], [seen_before])
            begin = [
                sc.combine(e, op, sc.select(e, later, state, sc.identity(e, op, lanes)), all_)
                for op, state, all_ in zip(body.scans, carried, together)
            ]
            with body.leader(e.and_(asker.shows, e.cmp("eq", place, self.group - 1))):
                ends = [sc.combine(e, op, a, b) for op, a, b in zip(body.scans, begin, own)]
                self._leave(self.of_groups, group, point, ends)
            for offsets, state in zip(asker.offsets, begin):
                body.put(offsets, asker.at, state)
        body.barrier()
        return [body.get(offsets, asker.at, state) for offsets, state in zip(asker.offsets, together)]

    def _leave(self, of: States, number: Val, point: Val, states: list[sc.State]) -> None:
        """Shows the states of a part, or behind a group, at this ``point`` and, of vectors, those behind it."""
        e, there = self.e, self.e.const(_THERE, dt.u64)
        halves = [half for state in states for val in state for half in _halves_of(e, val)]
        for half, addresses in zip(halves, self._addresses(of, number, point, halves[0].lanes), strict=True):
            for lane, address in enumerate(addresses):
                word = e.or_(e.cast(e.extract(half, lane), dt.u64), there)
                e.line(f"llvm.store {word}, {address} {_ORDER} : i64, {self.body.k.pointer_type}")

    def _look(self, of: States, number: Val, point: Val, lanes: int) -> list[Val]:
        """The words of such states, whether they have been written or not."""
        return [self._seen(a) for addresses in self._addresses(of, number, point, lanes) for a in addresses]

    def _wait(
        self, of: States, numbers: list[Val], point: Val, lanes: int, asks: list[Val], seen: list[list[Val]]
    ) -> list[list[sc.State]]:
        """The states of each of these ``numbers``, once all have been written that are needed, as ``asks`` tells;
        ``seen``: what a first look has seen. States that are not needed may be anything."""
        e = self.e
        places = [self._addresses(of, number, point, lanes) for number in numbers]
        needed = [ask for ask, words in zip(asks, seen) for _ in words]
        flat = [word for words in seen for word in words]
        held, again, found = [e.fresh() for _ in flat], [e.fresh() for _ in flat], e.fresh()
        types = ", ".join("i64" for _ in flat)
        begin = ", ".join(f"{name} = {word}" for name, word in zip(held, flat))
        with self.body.k.region(f"{found}:{len(flat)} = scf.while ({begin}) : ({types}) -> ({types}) {{", "} do {"):
            there = e.const(_THERE, dt.u64)
            missing = [e.and_(ask, e.cmp("lt", Val(word, dt.u64), there)) for ask, word in zip(needed, held)]
            e.line(f"scf.condition({functools.reduce(e.or_, missing)}) {', '.join(held)} : {types}")
        with self.body.k.region(f"^bb0({', '.join(f'{name}: i64' for name in again)}):"):
            words = [self._seen(a) for addresses in places for half in addresses for a in half]
            e.line(f"scf.yield {', '.join(map(str, words))} : {types}")
        of_all = iter(Val(f"{found}#{n}", dt.u64) for n in range(len(flat)))
        return [self._states([e.cast(next(of_all), dt.u32) for _ in words], lanes) for words in seen]

    def _seen(self, address: str) -> Val:
        return self.e.op(f"llvm.load {address} {_ORDER} : {self.body.k.pointer_type} -> i64", dt.u64)

    def _addresses(self, of: States, number: Val, point: Val, lanes: int) -> list[list[str]]:
        """For each half of a state's numbers the addresses of its lanes' words."""
        body, e = self.body, self.e
        first = e.add(e.add(e.mul(number, body.size(self.points)), point), body.size(of.first))
        apart = body.size(sz.mul(of.partials, self.points))
        halves = [e.add(first, e.mul(apart, n)) if n else first for n in range(_halves(body))]
        return [[body.k.address(self.words, e.add(at, n) if n else at) for n in range(lanes)] for at in halves]

    def _states(self, words: list[Val], lanes: int) -> list[sc.State]:
        """The states whose halves, each of so many lanes, these are."""
        e = self.e
        halves = iter([e.from_lanes(words[n : n + lanes]) for n in range(0, len(words), lanes)])
        types = [sc.state_types(op) for op in self.body.scans]
        return [tuple(_of_halves(e, [next(halves) for _ in range(_count(d))], d) for d in some) for some in types]


def _count(dtype: dt.DType) -> int:
    """Halves of words that a number takes."""
    return max(1, dtype.bits // 32)


def _halves(body: ScanBody) -> int:
    """Those that all scans' states take at a point."""
    return sum(_count(d) for op in body.scans for d in sc.state_types(op))


def _halves_of(e: Emitter, val: Val) -> list[Val]:
    if val.dtype.bits == 64:
        return list(e.halves(val))
    return [e.bitcast(val, dt.u32) if val.dtype.is_float else e.cast(val, dt.u32)]


def _of_halves(e: Emitter, halves: list[Val], dtype: dt.DType) -> Val:
    if dtype.bits == 64:
        return e.of_halves(halves[0], halves[1], dtype)
    return e.bitcast(halves[0], dtype) if dtype.is_float else e.cast(halves[0], dtype)


def _words(body: ScanBody, points: sz.Size, partials: sz.Size, group: int) -> Memory:
    """The ticket, and the words of the states of parts and of groups."""
    pointer = body.args.temporary((body.scans[0], "links"), sz.mul(_words_count(body, points, partials, group), _BYTES))
    body.between_blocks.add(pointer)
    return Memory(pointer, (), dt.u64, _BYTES)


def _words_count(body: ScanBody, points: sz.Size, partials: sz.Size, group: int) -> sz.Size:
    return 1 + sz.mul(sz.mul(points, partials + sz.ceildiv(partials, group)), _halves(body))


def emptied(body: ScanBody, points: sz.Size, partials: sz.Size, group: int) -> GpuKernel:
    """The kernel that empties the words."""
    e, count = body.e, _words_count(body, points, partials, group)
    words = _words(body, points, partials, group)
    at = e.add(e.mul(body.wide(body.block), THREADS), body.wide(body.thread))
    with body.leader(e.cmp("lt", at, body.size(count))):
        store_partial(body, words, at, e.const(0, dt.u64))
    return body.finish(sz.ceildiv(count, THREADS))
