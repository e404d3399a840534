"""Single-pass chained scan: blocks scan parts of a row, or of a strip of columns, and pass their prefixes on in a fixed
order.

A block takes the next part by an atomic ticket, so that the blocks of earlier parts have started and it may wait for
them. It publishes the state (aggregate) of its part in the workspace, and reads the states of the earlier parts of its
group. The last part of a group also publishes the prefix up to the group's end, for which all blocks of the next group
wait. States are thus combined in an order that does not depend on timing, and the dependence chain has one step per
group.

A 64-bit word contains 32 bits of a state and a flag in the other half: whoever sees the flag sees the state, without a
fence or a second load. A small kernel clears the words before each scan, so that no state persists between calls, which
streams and graph replays would share.

Compare Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back (2016), where blocks look back as
far as necessary, so that the order of combination differs from call to call."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.kernel import Memory
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.scheduler import KernelSpec

if TYPE_CHECKING:
    from mlirfuse.schedule.gpu.scan_body import ScanKernel

THREADS = 256  # per block of the kernel that clears the words
_WRITTEN = 1 << 32  # the flag in a published word
_ORDER = 'atomic syncscope("device") monotonic {alignment = 8 : i64}'


class States(NamedTuple):
    """The location of the published states of all ``partials``, or of all groups: the index of their first word. The
    first 32-bit halves of all states come first, then all second halves, and so on."""

    first: sz.Size
    partials: sz.Size


class Asker(NamedTuple):
    """What one thread does to get the prefix before its block.

    It reads the states of the parts ``numbers`` of its group. ``leads``: whether it also reads the prefix of the
    previous group, and broadcasts the block's prefix through shared memory, for each scan at index ``at``, which is
    free for reuse. ``shows``: whether it publishes the block's states."""

    numbers: list[Val]
    leads: Val
    shows: Val
    at: Val


class ScanChain:
    """A chain over ``partials`` parts in groups of ``group`` (a power of two), with a state for each of ``points``
    points of the kept axes."""

    def __init__(self, body: ScanKernel, points: sz.Size, partials: sz.Size, group: int):
        self.body, self.e, self.points, self.group = body, body.e, points, group
        self.of_partials = States(1, partials)  # word 0 is the ticket
        self.of_groups = States(1 + sz.mul(sz.mul(points, partials), _state_halves(body)), sz.ceildiv(partials, group))
        groups = self.of_groups.partials
        self.count = 1 + sz.mul(sz.mul(points, partials + groups), _state_halves(body))  # of words
        self.words = _words(body, self.count)

    def ticket(self) -> Val:
        """Take a ticket: the number of this block's part. The blocks of smaller numbers have started."""
        body, e = self.body, self.e
        self._ticket = body.shared_address(body.reserve(4), e.const(0, dt.i32), 4)
        with body.leader(e.cmp("eq", body.thread, 0)):
            counter = body.k.address(self.words, e.const(0, body.index))
            body.shared_store(self._ticket, body.atomic_add(counter, e.const(1, dt.i32)))
        body.barrier()
        return self.ticket_again()

    def ticket_again(self) -> Val:
        """The ticket, loaded again. After a barrier the compiler cannot know that it is unchanged, so that it does not
        keep values derived from it, such as the addresses of all elements, in registers. One row of 2500000 elements:
        91 registers without the reload, 64 with it, so that two blocks fit a multiprocessor instead of one."""
        return self.body.wide(self.body.shared_load(self._ticket, dt.i32))

    def begin(self, partial: Val, point: Val, own: list[sc.State]) -> list[sc.State]:
        """Publish the states ``own`` of part ``partial``, and return the prefix states before it. This thread has those
        at ``point``; vectors also cover the following points."""
        body, e, lanes, asker = self.body, self.e, own[0][0].lanes, self.body.asker()
        group, in_group = e.shr(partial, self.group.bit_length() - 1), e.and_(partial, self.group - 1)
        with body.leader(asker.shows):
            self._publish(self.of_partials, partial, point, own)
        is_needed = [e.cmp("lt", n, in_group) for n in asker.numbers]
        parts = [e.add(e.sub(partial, in_group), e.min(n, e.max(e.sub(in_group, 1), 0))) for n in asker.numbers]
        before, later = e.max(e.sub(group, 1), 0), e.cmp("gt", group, 0)
        seen = [self._read_words(self.of_partials, number, point, lanes) for number in parts]
        nothing_seen = [e.const(0, dt.u64)] * len(seen[0])
        seen_before = body.k.where(
            asker.leads,
            lambda: self._read_words(self.of_groups, before, point, lanes),
            lambda: nothing_seen,
            nothing_seen,
        )
        found = self._wait(self.of_partials, parts, point, lanes, is_needed, seen)
        together = []
        for n, op in enumerate(body.scans):
            nothing = sc.identity(e, op, lanes)
            states = [sc.select(e, here, part_states[n], nothing) for here, part_states in zip(is_needed, found)]
            read = functools.reduce(functools.partial(sc.combine, e, op), states)
            together.append(body.starts(n, op, nothing, [read], e.const(1, dt.i32))[1])  # of all its threads
        with body.leader(asker.leads):  # last, because all of the next group waits for it
            (carried,) = self._wait(self.of_groups, [before], point, lanes, [later], [seen_before])
            begin = [
                sc.combine(e, op, sc.select(e, later, state, sc.identity(e, op, lanes)), all_)
                for op, state, all_ in zip(body.scans, carried, together)
            ]
            with body.leader(e.and_(asker.shows, e.cmp("eq", in_group, self.group - 1))):
                ends = [sc.combine(e, op, a, b) for op, a, b in zip(body.scans, begin, own)]
                self._publish(self.of_groups, group, point, ends)
            for offsets, state in zip(body.offsets, begin):
                body.put(offsets, asker.at, state)
        body.barrier()
        return [body.get(offsets, asker.at, state) for offsets, state in zip(body.offsets, together)]

    def _publish(self, of: States, number: Val, point: Val, states: list[sc.State]) -> None:
        """Publish the states of a part or of a group's prefix at ``point`` and, for vectors, the following points."""
        e, flag = self.e, self.e.const(_WRITTEN, dt.u64)
        halves = [half for state in states for val in state for half in _split_halves(e, val)]
        for half, addresses in zip(halves, self._addresses(of, number, point, halves[0].lanes), strict=True):
            for lane, address in enumerate(addresses):
                word = e.or_(e.cast(e.extract(half, lane), dt.u64), flag)
                e.line(f"llvm.store {word}, {address} {_ORDER} : i64, {self.body.k.pointer_type}")

    def _read_words(self, of: States, number: Val, point: Val, lanes: int) -> list[Val]:
        """The words of these states, written or not."""
        return [self._load_word(a) for addresses in self._addresses(of, number, point, lanes) for a in addresses]

    def _wait(
        self, of: States, numbers: list[Val], point: Val, lanes: int, asks: list[Val], seen: list[list[Val]]
    ) -> list[list[sc.State]]:
        """Spin until all needed states of ``numbers`` are published, and return them. ``asks``: whether each is needed,
        others are undefined; ``seen``: the words of a first read."""
        e = self.e
        words_of_numbers = [self._addresses(of, number, point, lanes) for number in numbers]
        needed = [ask for ask, words in zip(asks, seen) for _ in words]
        flat = [word for words in seen for word in words]
        current, again, found = [e.fresh() for _ in flat], [e.fresh() for _ in flat], e.fresh()
        types = ", ".join("i64" for _ in flat)
        begin = ", ".join(f"{name} = {word}" for name, word in zip(current, flat))
        with self.body.k.region(f"{found}:{len(flat)} = scf.while ({begin}) : ({types}) -> ({types}) {{", "} do {"):
            flag = e.const(_WRITTEN, dt.u64)
            missing = [e.and_(ask, e.cmp("lt", Val(word, dt.u64), flag)) for ask, word in zip(needed, current)]
            e.line(f"scf.condition({functools.reduce(e.or_, missing)}) {', '.join(current)} : {types}")
        with self.body.k.region(f"^bb0({', '.join(f'{name}: i64' for name in again)}):"):
            words = [self._load_word(a) for addresses in words_of_numbers for half in addresses for a in half]
            e.line(f"scf.yield {', '.join(map(str, words))} : {types}")
        of_all = iter(Val(f"{found}#{n}", dt.u64) for n in range(len(flat)))
        return [self._states([e.cast(next(of_all), dt.u32) for _ in words], lanes) for words in seen]

    def _load_word(self, address: str) -> Val:
        return self.e.op(f"llvm.load {address} {_ORDER} : {self.body.k.pointer_type} -> i64", dt.u64)

    def _addresses(self, of: States, number: Val, point: Val, lanes: int) -> list[list[str]]:
        """For each 32-bit half of the states, the addresses of the words of its lanes."""
        body, e = self.body, self.e
        first = e.add(e.add(e.mul(number, body.size(self.points)), point), body.size(of.first))
        apart = body.size(sz.mul(of.partials, self.points))
        halves = [e.add(first, e.mul(apart, n)) if n else first for n in range(_state_halves(body))]
        return [[body.k.address(self.words, e.add(at, n) if n else at) for n in range(lanes)] for at in halves]

    def _states(self, words: list[Val], lanes: int) -> list[sc.State]:
        """The states made of these 32-bit halves, each with ``lanes`` words."""
        e = self.e
        halves = iter([e.from_lanes(words[n : n + lanes]) for n in range(0, len(words), lanes)])
        types = [sc.state_types(op) for op in self.body.scans]
        return [
            tuple(_join_halves(e, [next(halves) for _ in range(_halves_of_type(d))], d) for d in some) for some in types
        ]


def _halves_of_type(dtype: dt.DType) -> int:
    """The 32-bit halves of a number of this type."""
    return max(1, dtype.bits // 32)


def _state_halves(body: GpuBody) -> int:
    """The 32-bit halves of all scans' states at a point."""
    return sum(_halves_of_type(d) for op in body.analysis.scans for d in sc.state_types(op))


def _split_halves(e: Emitter, val: Val) -> list[Val]:
    if val.dtype.bits == 64:
        return list(e.halves(val))
    return [e.bitcast(val, dt.u32) if val.dtype.is_float else e.cast(val, dt.u32)]


def _join_halves(e: Emitter, halves: list[Val], dtype: dt.DType) -> Val:
    if dtype.bits == 64:
        return e.of_halves(halves[0], halves[1], dtype)
    return e.bitcast(halves[0], dtype) if dtype.is_float else e.cast(halves[0], dtype)


def _words(body: GpuBody, count: sz.Size) -> Memory:
    """The memory of the ticket, and of the words of parts and of groups."""
    words = body.buffer((body.analysis.scans[0], "words"), count, dt.u64)
    body.between_blocks.add(words.pointer)
    return words


def emptied(spec: KernelSpec, chain: ScanChain | None) -> list[GpuKernel]:
    """The kernel that sets the words of a chain to 0, before the scan; none without a chain."""
    if chain is None:
        return []
    body = GpuBody(spec._replace(name=f"{spec.name}_words"), THREADS)
    words = _words(body, chain.count)
    return [body.of_each(chain.count, lambda at: body.buffer_store(words, at, body.e.const(0, dt.u64)))]
