"""Inner reductions and normalizations on a GPU: a row (the reduced axes, contiguous) belongs to a warp, a block or a
cluster.

*Persistent*: each thread keeps its part of the row (``chunks`` vectors) in registers or, ``staged``, in shared memory:
memory is read once, however many phases of reductions there are. A row longer than a block shall hold is spread over a
cluster of blocks that combine through each other's shared memory. *Looped* (``chunks == 0``): every phase passes over
the row again. *Split*: a single phase with few rows is spread over several blocks a row, whose accumulators a second
kernel combines.

Threads past the row's end read a clamped vector whose lanes are replaced by the reduction's identity.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis, is_outer
from mlirfuse.core.machine import Machine
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu import staging as gpu_staging
from mlirfuse.schedule.gpu.access import Access, access_of, hint_of, moved
from mlirfuse.schedule.gpu.partial import finish
from mlirfuse.schedule.gpu.row_body import Rows as RowsBody
from mlirfuse.schedule.gpu.row_body import at_own_index, read_by, row_inputs
from mlirfuse.schedule.gpu.row_forms import UNROLL, in_loops, in_registers, in_shared
from mlirfuse.schedule.gpu.row_shift import ShiftedRows
from mlirfuse.schedule.gpu.scheduler import GpuScheduler, check_cluster, check_threads
from mlirfuse.schedule.scheduler import Alignments, Sizes, power_of_two, require

SHIFTED = 6 << 10  # elements of the shortest rows whose vectors may begin before them
REGISTERS = 64 << 10  # of a multiprocessor, on every chip
MOST_HELD = 512  # elements in registers of a thread: more is only longer to compile
SYSTEM_SHARED = 1 << 10  # bytes of shared memory that the system takes for each block


class Params(NamedTuple):
    """``tx`` threads along a row and ``ty`` rows a block; ``chunks`` vectors a thread (0: looped); ``cluster`` blocks a
    row; ``split`` blocks a row that combine in a second kernel; ``whole``: how many of the chunks lie inside the row
    for every thread, so that they need no check; ``recompute``: values are computed again in each phase from what was
    loaded, which needs fewer registers; ``resident``: blocks that shall fit a multiprocessor at a time, which bounds
    their registers; ``online``: softmax's maximum and sum are one reduction; ``staged``: the vectors are kept in shared
    memory, not in registers; ``shifted``: they begin before the row, where memory is aligned for them; ``ahead``:
    weights, and what else is read for the time after the reductions, are under way before them."""

    access: Access
    tx: int
    ty: int
    chunks: int
    cluster: int = 1
    split: int = 1
    whole: int = 0
    recompute: bool = False
    resident: int = 1
    online: bool = False
    staged: bool = False
    shifted: bool = False
    ahead: bool = False


class Rows(GpuScheduler[Params]):
    """Reductions along rows, and what is as long as they are."""

    name = "rows"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        return bool(analysis.phases) and not analysis.partials and not analysis.finishing

    def candidates(self, analysis: Analysis, env: Sizes, alignments: Alignments, machine: Machine) -> Iterator[Params]:
        if is_outer(analysis, env):
            return
        hint = hint_of(analysis, *moved(analysis, env, machine), machine)
        access = access_of(analysis, False, env, alignments, hint)
        kept, length = analysis.values(_extents, env)
        may_shift = length >= SHIFTED and access.lanes * analysis.once(_row).widest < 16
        wider = _shifted_access(analysis, access, env, alignments, machine) if may_shift else access
        first = analysis.remembered(_choice, access, wider, _leading_bits(kept), length, machine)
        yield first
        if not may_shift:
            wider = _shifted_access(analysis, access, env, alignments, machine)
        others = _Rows(analysis, access, wider, kept, length, machine).others()
        yield from (p for p in dict.fromkeys(others) if p != first)

    def better_in_stages(self, analysis: Analysis, p: Params, env: Sizes, machine: Machine) -> bool | None:
        """Where blocks are few and each has much to read."""
        if analysis.once(_row).one_pass:
            return None
        kept, length = analysis.values(_extents, env)
        blocks = -(-kept // p.ty) * p.cluster
        nbytes = kept * length * analysis.once(_row).row_bytes
        if p.chunks:  # in registers, or a cluster's shared memory
            return blocks <= machine.sm_count // 4 and nbytes >= 100_000 * blocks
        return blocks < machine.sm_count // 2 and nbytes >= 250_000 * blocks

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
        """Two if the rows are split."""
        rows = (ShiftedRows if p.shifted else RowsBody)(name, analysis, slots, p)
        form = in_shared if p.staged else in_registers if p.chunks else in_loops
        kernels = [rows.finish(form(rows))]
        if p.split > 1:
            kernels.append(finish(f"{name}_finish", analysis, slots, p.access, p.split, rows.phases[0], points=1))
        return kernels

    def check(self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, machine: Machine) -> None:
        _, length = analysis.values(_extents, env)
        row, lanes = analysis.once(_row), p.access.lanes
        if p.shifted:
            require(p.staged, "shifted: rows that begin at any element are staged")
            wider = _shifted_access(analysis, p.access._replace(lanes=1), env, alignments, machine)
            require(
                lanes == wider.lanes > 1 and p.access.aligns == wider.aligns,
                f"shifted: such vectors have {wider.lanes} elements here"
                if wider.lanes > 1
                else "shifted: not these rows",
            )
        else:
            self.check_access(analysis, p, False, env, alignments, machine)
        check_threads(p.tx, p.ty)
        check_cluster(p.cluster, machine)
        threads, most = p.tx * p.ty, machine.threads_per_sm
        require(p.resident >= 1 and p.resident * threads <= most, f"resident = {p.resident}: at most {most // threads}")
        require(
            p.cluster == 1 or (p.ty == 1 and p.tx >= p.cluster), "cluster: its blocks have one row, and as many threads"
        )
        require(p.chunks >= 0 and p.split >= 1, "chunks, split: not negative")
        if not p.chunks:
            require(
                p.cluster == 1 and not p.staged and not p.ahead,
                "chunks = 0: rows are in no cluster, not staged, not ahead",
            )
            require(p.split == 1 or (p.ty == 1 and row.one_pass), "split: rows alone in a block, in one pass")
            require(power_of_two(p.split), f"split = {p.split}: a power of two")
            return
        require(p.split == 1, "split: rows that are kept are not")
        stride = p.tx * p.cluster * lanes
        held, needed = p.chunks * stride, length + lanes - 1 if p.shifted else length
        require(held >= needed, f"tx * cluster * chunks * lanes = {held}: a row has {needed} elements")
        inside = max(0, (length - lanes) // stride) if p.shifted else length // stride
        require(
            0 <= p.whole <= min(p.chunks, inside),
            f"whole = {p.whole}: {min(p.chunks, inside)} chunks are inside the row",
        )
        if not p.staged:
            held = p.chunks * lanes
            require(held <= MOST_HELD, f"chunks * lanes = {held}: a thread holds at most {MOST_HELD} elements")
            return
        require(machine.async_copies, f"staged: {machine.chip} has no copies to shared memory")
        require(p.ty == 1, f"ty = {p.ty}: staged rows are alone in a block")
        require(p.shifted or analysis.once(_copied_whole, p.access), "staged: rows cannot be copied 16 bytes at a time")
        vector_bytes, accumulators = lanes * row.row_bytes, analysis.once(_accumulators)
        nbytes = _shared_bytes(p.tx, p.cluster, p.chunks, vector_bytes, accumulators)
        room = machine.shared_per_block
        require(nbytes <= room, f"chunks = {p.chunks}: {nbytes} bytes of shared memory, a block has {room}")


def _choice(analysis: Analysis, *given) -> Params:
    """The model's for rows that are given as to :class:`_Rows`."""
    return _Rows(analysis, *given).choice()


def _leading_bits(rows: int) -> int:
    """``rows`` to six bits: for numbers of rows that differ by less than 3% the choice is made once. (Fewer bits would
    not tell one row for each of 132 multiprocessors from fewer.)"""
    rest = max(0, rows.bit_length() - 6)
    return rows >> rest << rest


class _Rows:
    """Rows of given sizes, and the parameters that they may have. ``wider``: an access by vectors that begin before the
    rows, where those are wider.

    The model: a thread keeps about 16 registers of the row, so that several blocks fit a multiprocessor and load while
    another computes (:meth:`registers_wanted`). A row that needs more than a block of 512 threads with 32 registers
    each is kept in shared memory, half of a multiprocessor's at most, or that of a cluster's blocks; beside weights in
    a cluster's registers, if all threads have as much of it. Where it cannot be copied there 16 bytes at a time, it
    takes a cluster of blocks of 256 threads, which exchange less often the more of the row a thread has: 64 registers
    of it, of half types, which take twice as many widened, 32. Long rows that vectors of 16 bytes do not divide are
    copied by such as begin before the row. One that nothing holds is read again in each phase.
    """

    def __init__(self, analysis: Analysis, access: Access, wider: Access, kept: int, length: int, machine):
        self.analysis, self.access, self.wider, self.kept, self.length, self.machine = (
            analysis,
            access,
            wider,
            kept,
            length,
            machine,
        )
        self.row, self.lanes = analysis.once(_row), access.lanes
        self.vectors = max(1, -(-self.length // self.lanes))
        self.registers = max(1, self.lanes * self.row.row_bytes // 4)  # of one chunk
        self.small = (
            self.kept * self.vectors < machine.sm_count * 1024
        )  # not a vector for each thread of half the machine: all in parallel
        self.wide = self.lanes * self.row.widest == 16
        self.wanted, self.least = self.registers_wanted(), self.least_threads()
        self.alone, self.shared = _places(self.vectors, self.registers, machine.cluster_sizes)

    @functools.cached_property
    def best(self) -> tuple[int, int, int] | None:
        """The best place in registers, if there is any. (Looked for once it is asked for, which long rows in shared
        memory do without.)"""
        return min(self.alone or self.shared, key=self.cost, default=None)

    def registers_wanted(self) -> int:
        """How many registers of the row a thread shall have: 16; 32 where it reads as many weights too, whose share of
        its instructions falls with the threads that a row has; 8 of one that is short, of half types without weights,
        or beside weights where the machine has a thread for each vector; and 4 of half types that are only reduced, in
        one pass. Of half types a register is two elements to compute: with more weights than rows, 16 are
        0.4% slower than 32 and compile in 0.6 of the time."""
        row, sm_count, threads = self.row, self.machine.sm_count, self.machine.sm_count * self.machine.threads_per_sm
        if self.vectors < 32 or (row.halves and not row.single and self.vectors < 256):
            return 8
        if row.halves and row.single and self.wide:
            return 4
        if (row.halves and self.lanes > 1 and not row.weights) or (
            row.weights and self.wide and self.kept * self.vectors <= threads
        ):
            return 8
        if row.halves and self.wide and row.weights > row.inputs:
            return 16
        many = self.kept * self.vectors * self.registers // 32 >= threads // 3  # threads, if each has 32
        return (
            32
            if (row.half_weights and self.kept > sm_count) or (row.weights and row.inputs == 1 and self.wide and many)
            else 16
        )

    def least_threads(self) -> int:
        """How many threads a row of 32 vectors or more shall have: those that read a line of the cache, of which fewer
        would spread a warp's accesses; of short rows fewer, since what is beside an access is soon read too."""
        if self.wide or self.vectors >= 128:
            return min(32, 128 // (self.lanes * self.row.widest))
        return 16 if self.vectors >= 64 else 8

    def exact(self, place) -> bool:
        """Whether all threads have as much of a row at (threads along it, blocks a cluster, chunks a thread)."""
        tx, cluster, chunks = place
        return tx * cluster * chunks * self.lanes == self.length

    def cost(self, place) -> tuple:
        """The order of such places in registers: the least is the best."""
        tx, cluster, chunks = place
        held = chunks * self.registers
        if self.vectors >= 32 and tx < self.least:
            return (True,)
        if self.small:
            return (False, cluster * tx > 16 * 1024, chunks > 4, cluster, abs(chunks - 2.5), tx)
        if cluster == 1:
            return (False, held > 32, tx > 512, abs(held - self.wanted), tx)
        if self.row.weights and self.wide:
            wider = tx > 256  # of half types, costs more than blocks that wait for each other
            return (
                False,
                held > 64,
                cluster * tx > 4096,
                not self.exact(place),
                held > 32,
                self.row.halves and wider,
                cluster > 8,
                wider,
                abs(held - 32),
            )
        idle = self.kept * cluster * tx < self.machine.sm_count * 512
        return (
            False,
            held > (64 if self.wide else 56),
            tx > 256,
            cluster > 8,
            idle,
            abs(held - (32 if self.row.halves else 64)),
        )

    def choice(self) -> Params:
        """The model's."""
        row = self.row
        before = next(self.shifted(), None)
        if before and self.better_shifted(before):
            return before
        if row.single and self.small and self.kept < self.machine.sm_count // 16 and self.best and self.best[2] <= 8:
            return self.persistent(*self.best)  # a cluster at a time is sooner done than two kernels
        if (row.one_pass and not self.alone) or (row.single and self.vectors > 2048 and self.wide):
            return self.looped()  # nothing to keep
        if self.alone and not self.crowded:
            assert self.best is not None
            return self.persistent(*self.best)
        staged = [] if self.weights_late() else self.staged()
        if staged:
            return self.in_shared_memory(staged[0])
        if not self.best or self.vectors > 8 * 1024 * max(
            1, 32 // self.registers
        ):  # more than eight blocks hold with room for another cluster
            return self.looped()
        return self.persistent(*self.best)

    def others(self) -> Iterator[Params]:
        """What else is worth trying, the model's choice among it."""
        ordered = [
            self.persistent(*place) for place in sorted(self.alone, key=self.cost) + sorted(self.shared, key=self.cost)
        ]
        yield from map(self.in_shared_memory, self.staged()[:8])
        yield from (*self.shifted(), *ordered, self.looped())
        yield from (p._replace(ahead=not p.ahead) for p in ordered[:2] if self.row.late)
        for p in ordered:
            if p.cluster > 1:
                yield from (p._replace(resident=r) for r in (1, 2, 3, 4) if r != p.resident and r * p.tx <= 1024)

    @property
    def crowded(self) -> bool:
        """Whether a row in registers, half types widened and what the online form does without, would leave a
        multiprocessor to one block."""
        row = self.row
        return bool(
            row.shorter
            and row.halves
            and self.wide
            and not self.small
            and self.best
            and self.best[2] * self.registers > 20
        )

    def weights_late(self) -> bool:
        """Whether a row beside weights belongs into registers, where all of the weights are loaded at once when the
        row's reductions are done."""
        if not (self.row.weights and self.wide and self.best) or self.small or self.crowded:
            return False
        return self.exact(self.best) and self.best[2] * self.registers <= (32 if self.row.halves else 64)

    def persistent(self, tx: int, cluster: int, chunks: int) -> Params:
        """The row in registers."""
        ty = max(1, 128 // tx)
        while ty > 1 and ty * tx > 32 and self.kept // ty < self.machine.sm_count:
            ty //= 2
        resident = 1
        if cluster > 1 and tx == 256:
            held = chunks * self.registers
            resident = (4 if held <= 32 else 2) if self.row.halves else 3 if 32 < held <= 64 else 1
        return Params(
            self.access, tx, ty, chunks, cluster,
            whole=self.length // (tx * cluster * self.lanes),
            recompute=chunks * self.lanes > (32 if self.wide else 16),
            resident=resident,
            online=self.row.shorter and cluster > 1,
            ahead=resident == 1 and self.loaded_first(tx, cluster, chunks),
        )  # fmt: skip

    def loaded_first(self, tx: int, cluster: int, chunks: int) -> bool:
        """Whether threads load all of a row and its weights before they reduce it: what takes few registers, more where
        rows are few. Threads of large blocks have fewer, also for half types widened; where rows are many, two blocks
        of 512 shall fit a multiprocessor."""
        row = self.row
        if not (row.late or row.weights):  # there is nothing else to load
            return False
        loaded = chunks * sum(max(1, self.lanes * size // 4) for size in row.sizes)
        few = self.kept * cluster * tx <= self.machine.sm_count * 256
        if tx > 256:
            widened = chunks * self.lanes if row.halves else 0
            if loaded + widened > (REGISTERS // tx - 32 if few or tx > 512 else REGISTERS // 1024):
                return False
        if few:
            return loaded <= 96
        return loaded <= (64 if row.halves and (not self.wide or row.inputs > 1) else 48)

    def staged(self) -> list[_Place]:
        """Rows in shared memory, best first: few multiprocessors idle, not one block on each with fewer threads than
        several would have, nor fewer than 512 in all without a cluster, all threads with as many vectors, few blocks a
        cluster, which find room sooner. Where threads cannot have as many: several blocks on a multiprocessor, in
        clusters of at most eight."""
        if not (self.machine.async_copies and self.analysis.once(_copied_whole, self.access)):
            return []
        places = [
            p for p in _shared_places(self.analysis, self.vectors, self.lanes, self.kept, self.machine) if p.chunks > 4
        ]
        evenly = [p for p in places if self.exact(p[:3])]
        together = max((p.blocks * p.tx for p in evenly if p.blocks > 1), default=0)

        def cost(p: _Place) -> tuple:
            if not evenly:
                roomy = p.blocks * p.tx >= 768 and (self.row.weights or p.tx == 256)
                return p.idle, p.cluster > 8, not roomy, p.tx != 256, p.blocks == 1, p.cluster
            threads, uneven = p.blocks * p.tx, p not in evenly
            return (
                p.idle,
                p.blocks == 1 and p.tx < together,
                p.cluster == 1 and threads < 512,
                uneven,
                uneven and threads < 768,
                p.cluster,
            )

        return sorted(places, key=cost)

    def in_shared_memory(self, p: _Place) -> Params:
        """The row at such a place."""
        return Params(
            self.access,
            p.tx,
            1,
            p.chunks,
            p.cluster,
            whole=p.chunks - (not self.exact(p[:3])),
            online=self.row.shorter,
            staged=True,
        )

    def shifted(self) -> Iterator[Params]:
        """Rows in shared memory by the wider vectors, best first: few multiprocessors idle; two blocks on each, or
        clusters of at least four of which four are on each; enough threads for those blocks, but each with more vectors
        than the few at the ends, in a cluster a dozen."""
        length, row, lanes = self.length, self.row, self.wider.lanes
        if not self.lanes < lanes <= length // 2:
            return

        def cost(p: _Place) -> tuple:
            if p.cluster == 1:
                return (
                    p.idle,
                    p.blocks < 2,
                    1,
                    p.tx != (512 if row.single or p.blocks <= 3 else 256 if length > 6 * 256 * lanes else 128),
                )
            return p.idle, p.blocks < 4 or p.cluster < 4, p.cluster, p.tx > 256, p.chunks < 12, -p.tx

        places = _shared_places(self.analysis, -(-(length + lanes - 1) // lanes), lanes, self.kept, self.machine)
        for p in sorted((p for p in places if p.cluster == 1 or p.chunks > 4), key=cost):
            whole = (length - lanes) // (p.tx * lanes * p.cluster)
            yield Params(
                self.wider, p.tx, 1, p.chunks, p.cluster, whole=whole, online=row.shorter, staged=True, shifted=True
            )

    def better_shifted(self, p: Params) -> bool:
        """Whether rows take less time so."""
        row, kept, length, sm_count = self.row, self.kept, self.length, self.machine.sm_count
        if (
            kept * p.cluster < sm_count or row.wider_weights
        ):  # of wider weights two vectors each are more to load than their elements
            return False
        if row.single:
            return length >= 24 << 10
        if row.weights > 1:  # of few rows a cluster's registers hold more at once
            return kept >= sm_count and (not self.alone if self.lanes * row.widest <= 2 else length >= 64 << 10)
        return length >= 12 << 10 or kept >= 16 * sm_count

    def looped(self) -> Params:
        """The row in nothing: in parts, where one pass does and there are few rows."""
        row, vectors, sm_count, threads_per_sm = (
            self.row,
            self.vectors,
            self.machine.sm_count,
            self.machine.threads_per_sm,
        )
        tx = 32
        while tx < 512 and vectors > tx * UNROLL:
            tx *= 2
        while (
            tx < 1024
            and tx * 2 <= vectors // UNROLL
            and self.kept * tx < sm_count * threads_per_sm // 2
            and not row.single
        ):
            tx *= 2
        split, blocks, most = 1, sm_count * (threads_per_sm // tx), vectors // (tx * UNROLL * 2)
        if row.one_pass and vectors >= 4 << 20:  # many parts: a multiprocessor that is sooner done takes more of them
            tx, blocks, most = 1024, 16 * sm_count, vectors // (1024 * UNROLL)
        while row.one_pass and split * 2 <= most and split * self.kept < blocks:
            split *= 2
        return Params(self.access, tx, max(1, 128 // tx) if split == 1 else 1, 0, split=split, online=row.shorter)


@functools.lru_cache
def _places(
    vectors: int, registers: int, cluster_sizes: tuple[int, ...]
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Places that hold a row of so many vectors, as (threads along the row, blocks a cluster, chunks a thread): in a
    block alone, and others."""
    alone: list[tuple[int, int, int]] = []
    shared: list[tuple[int, int, int]] = []
    for tx in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        for cluster in cluster_sizes if tx >= 256 else (1,):
            chunks = -(-vectors // (tx * cluster))
            held = chunks * registers
            if tx * cluster >= 2 * vectors and tx > 1:
                break
            if held <= (64 if tx <= 256 else 32):
                by_itself = cluster == 1 and held <= 32 and (tx <= 512 or len(cluster_sizes) == 1)
                (alone if by_itself else shared).append((tx, cluster, chunks))
    return alone, shared


def _extents(analysis: Analysis) -> tuple:
    """Rows and their length."""
    return sz.product(a.size for a in analysis.kept), sz.product(a.size for a in analysis.reduced)


def _accumulators(analysis: Analysis) -> int:
    """How many numbers threads may exchange for a row, each of which has shared memory of its own."""
    return sum(len(red.accumulator_types(op)) for phase in analysis.phases for op in phase)


def _copied_whole(analysis: Analysis, access: Access) -> bool:
    """Whether what differs from row to row can be copied to shared memory 16 bytes at a time."""
    streamed, _ = analysis.once(row_inputs)
    lane = analysis.loops(analysis.reduced)[-1][-1]
    widest = max((v.dtype.bytes for v in streamed), default=0)
    return access.lanes * widest == 16 and gpu_staging.possible(analysis, access, streamed, lane)


class _Place(NamedTuple):
    """Where a row in shared memory is: threads of a block, blocks of a cluster, vectors a thread; multiprocessors that
    have none of it, and how many such blocks find room on one."""

    tx: int
    cluster: int
    chunks: int
    idle: int
    blocks: int


def _shared_places(analysis: Analysis, vectors: int, lanes: int, kept: int, machine) -> tuple[_Place, ...]:
    """The places whose shared memory holds rows of so many vectors."""
    return _places_in_shared(
        vectors,
        lanes * analysis.once(_row).row_bytes,
        analysis.once(_accumulators),
        min(kept, machine.sm_count),
        machine,
    )


@functools.lru_cache
def _places_in_shared(vectors: int, vector_bytes: int, accumulators: int, kept: int, machine) -> tuple[_Place, ...]:
    found = []
    for tx in (256, 128, 512):
        for cluster in machine.cluster_sizes:
            chunks = -(-vectors // (tx * cluster))
            nbytes = _shared_bytes(tx, cluster, chunks, vector_bytes, accumulators)
            if nbytes <= machine.shared_per_block:
                blocks = (machine.shared_per_block + SYSTEM_SHARED) // (nbytes + SYSTEM_SHARED)
                found.append(_Place(tx, cluster, chunks, max(0, machine.sm_count - kept * cluster), blocks))
    return tuple(found)


def _shared_bytes(tx: int, cluster: int, chunks: int, vector_bytes: int, accumulators: int) -> int:
    """Of a block: its part of a row, and what its threads exchange."""
    return chunks * tx * vector_bytes + accumulators * (16 + tx // 4 + cluster * 8)


def _shifted_access(
    analysis: Analysis, access: Access, env: dict[str, int], alignments: dict[Value, int], machine
) -> Access:
    """``access`` with the widest vectors for rows that may begin at any element, of which those begin before it; as it
    is where there are none."""
    lanes, like, steps = analysis.once(_shiftable)
    if not machine.async_copies or lanes <= access.lanes or any(step < 0 for step in steps(env)):
        return access
    if any(alignments.get(v, 16) < min(16, lanes * v.dtype.bytes) for v in analysis.inputs + like if v.rank):
        return access
    aligns = [
        min(16, lanes * v.dtype.bytes) if v in like and v in analysis.outputs else analysis.stored(v).bytes
        for v in analysis.inputs + analysis.outputs
    ]
    return access._replace(lanes=lanes, aligns=tuple(aligns), multiples=frozenset())


def _shiftable(analysis: Analysis) -> tuple:
    """The lanes of vectors that may begin before a row (0: they may not), the inputs and outputs that they are of, and
    how far apart their rows are, given the sizes of a call: all lie along the rows alike, so that they begin as far
    before it."""
    reduced, loops = set(analysis.reduced), analysis.loops(analysis.reduced)
    streamed, shared = analysis.once(row_inputs)
    like = [v for v in dict.fromkeys(streamed + analysis.outputs) if reduced & set(analysis.axes.flat(v))]
    kept = [loop[-1] for loop in analysis.loops(analysis.kept)]
    steps = {tuple(analysis.axis_stride(v, axis) for axis in kept) for v in like}
    plain = all(set(analysis.axes.flat(v)) <= set(analysis.domain) and v not in analysis.passed_on for v in like)
    along = all(analysis.axis_stride(v, loops[-1][-1]) == 1 for v in like + shared) and len(loops) == 1
    sizes = {v.dtype.bytes for v in streamed}
    lanes = min(8, 16 // max(sizes, default=8))
    copied = all(nbytes <= 4 and lanes * nbytes in gpu_staging.SIZES for nbytes in sizes)
    return (
        (lanes if sizes and copied and plain and along and len(steps) == 1 else 0),
        like,
        sz.tuple_function(next(iter(steps), ())),
    )


class _Row(NamedTuple):
    """What is read of a row, and what for: ``row_bytes`` of its elements at one place, of inputs that are not the same
    for all rows, and ``widest``, of one of these; ``single``: rows are only reduced, in one pass; ``one_pass``: what
    else is written needs no reduction; ``shorter``: online forms make it fewer passes; ``halves``: some elements are of
    half types; ``inputs`` and ``weights``: how many there are that differ from row to row, and that all rows share;
    ``half_weights``: some of these are of half types; ``wider_weights``: some are wider than what is read of a row;
    ``sizes``: the bytes of an element of each input that is read where a row's element is; ``late``: some of those are
    read after the first reductions only."""

    row_bytes: int
    widest: int
    single: bool
    one_pass: bool
    shorter: bool
    halves: bool
    inputs: int
    weights: int
    half_weights: bool
    wider_weights: bool
    sizes: tuple[int, ...]
    late: bool


def _row(analysis: Analysis) -> _Row:
    reduced = set(analysis.reduced)
    streamed, shared = analysis.once(row_inputs)
    written = [v for v in analysis.outputs if reduced & set(analysis.axes.flat(v))]
    phases = analysis.once(joint.online)
    halves, half_weights = (any(v.dtype.bits == 16 for v in values) for values in (streamed, shared))
    nbytes = [v.dtype.bytes for v in streamed]
    loaded = at_own_index(analysis, streamed + shared)
    return _Row(
        sum(nbytes),
        max(nbytes, default=4),
        len(phases) == 1 and not written,
        len(phases) == 1 and analysis.late_values().isdisjoint(written),
        len(phases) < len(analysis.phases),
        halves,
        len(streamed),
        len(shared),
        half_weights,
        any(v.dtype.bytes > max(nbytes, default=4) for v in shared),
        tuple(v.dtype.bytes for v in loaded),
        len(read_by(analysis, analysis.phases[0], loaded)) < len(loaded),
    )
