"""Shared by GPU scan kernels: iterations along the scanned axes, and states as loop-carried values and in shared
memory."""

from __future__ import annotations

from mlirfuse.analysis.phases import Analysis, apart, size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.chained_scan import Asker, ScanChain, emptied
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.gpu.row_body import at_own_index
from mlirfuse.schedule.scheduler import KernelSpec

Places = list[tuple[Env, Val]]  # of vectors, and whether each is inside the row


class ScanKernel(GpuBody):
    """A kernel with iterations of ``iteration`` elements along the scanned axes, which carry the scan states. There are
    ``chains`` rows or strips of columns, each of ``iterations``. With a ``chain``, a block has only one of those,
    number ``part``. Threads exchange each scan's state components in shared memory at ``offsets``."""

    iteration: int
    iterations: sz.Size
    chain: ScanChain | None
    chains: sz.Size
    part: Val
    offsets: list[list[int]]
    lanes_of_state = 1  # of a thread

    def __init__(self, spec: KernelSpec, min_blocks_per_sm: int = 0):
        super().__init__(spec, 0, min_blocks_per_sm)
        self.spec, analysis = spec, spec.analysis
        self.scans = analysis.scans
        self.reverse = bool(self.scans[0].attrs["reverse"])
        self.length = size_of(analysis.reduced)
        self.loaded_inputs = at_own_index(analysis, analysis.inputs)

    def begin(self, points: sz.Size, group: int) -> Index:
        """The number of this block's row or strip. A chain has states for ``points`` points of the kept axes, and
        ``group`` parts in a group."""
        self.chain = ScanChain(self, points, self.iterations, group) if self.p.chained else None
        if self.chain is None:
            return Index(self.wide(self.block))
        part, own = self.k.divmod(Index(self.chain.ticket()), self.chains)
        self.part = self.k.scalar(part.base)
        return own

    def emit(self, blocks: sz.Size) -> list[GpuKernel]:
        """The finished kernels, with ``blocks`` blocks if they are not chained."""
        e, nothing = self.e, self.nothing_scanned(self.lanes_of_state)
        low, high = e.const(0, self.index), self.size(self.length)
        if self.chain:
            self.alone(self.chain)
        elif self.p.persistent:
            self.one(low, nothing)
        else:
            self.loop(low, high, self.iteration, nothing, self.one)
        for env, valid in self.points() if self.small else ():
            first = e.cmp("eq", self.part, 0) if self.chain else None
            self.store_at(self.small, env, self.analysis.kept, self.both(valid, first))
        kernel = self.finish(sz.mul(self.chains, self.iterations) if self.chain else blocks)
        return [*emptied(self.spec, self.chain), kernel]

    def along(self, env: Env, position: Val, lanes: int) -> tuple[Env, Val]:
        """The env of ``lanes`` elements from ``position`` on, in scan order, clamped to the row, and whether they are
        inside."""
        e = self.e
        clamped, inside = self.clamped(position, self.length, lanes)
        index = e.sub(e.sub(self.size(self.length), lanes), clamped) if self.reverse else clamped
        loops = self.analysis.loops(self.analysis.reduced)
        return self.point(loops, Index(index, int(lanes > 1), lanes), env), inside

    def reserve_states(self, nbytes: int, needed: bool) -> None:
        """Reserve shared memory, if it is needed: ``nbytes`` for each state component of each scan."""
        self.offsets = [[self.reserve(nbytes) for _ in sc.state_types(op)] if needed else [] for op in self.scans]

    def put(self, offsets: list[int], index: Val, state: sc.State) -> None:
        """Store a state in shared memory, as the ``index``-th."""
        for offset, v in zip(offsets, state):
            nbytes = 8 * v.lanes
            self.shared_store(self.shared_address(offset, index, nbytes), v)

    def get(self, offsets: list[int], index: Val, like: sc.State) -> sc.State:
        """Load the ``index``-th state from shared memory; ``like`` has its types."""
        return tuple(
            self.shared_load(self.shared_address(offset, index, 8 * v.lanes), v.dtype, v.lanes)
            for offset, v in zip(offsets, like)
        )

    def places(self, start: Val) -> list[Places]:
        """Where this thread's elements of an iteration are, in groups that are scanned by themselves."""
        raise NotImplementedError

    def runs_of(self, op: Op, places: list[Places]) -> tuple[list[list[sc.State]], list[sc.State]]:
        """The inclusive scans of this thread's elements, and their totals. Beyond the end of a row they are undefined,
        and not stored."""
        raise NotImplementedError

    def bind_runs(self, op: Op, places: list[Places], runs: list[list[sc.State]], before: list[sc.State]) -> None:
        """Bind the results; ``before``: the states before the runs, as ``exchange`` returns them."""
        raise NotImplementedError

    def starts(
        self, at: int, op: Op, carried: sc.State, totals: list[sc.State], parity: Val
    ) -> tuple[list[sc.State], sc.State]:
        """The state before each of this thread's runs, which have the states ``totals``, and the state after the
        iteration, for the ``at``-th scan. ``parity``: of the iteration. Its totals are in another buffer than those of
        the previous iteration, which may still be read."""
        raise NotImplementedError

    def asker(self) -> Asker:
        """What this thread does for a chained block."""
        raise NotImplementedError

    def store_places(self, places: list[Places]) -> None:
        """Store full-size outputs."""
        raise NotImplementedError

    def points(self) -> list[tuple[Env, Val | None]]:
        """The points of the kept axes whose outputs this thread stores, and whether it has to."""
        raise NotImplementedError

    def own_point(self) -> Val:
        """The point of the kept axes whose state this thread has."""
        raise NotImplementedError

    def loaded(self, start: Val) -> list[Places]:
        """:meth:`places`, with inputs loaded."""
        found = self.places(start)
        for value in self.loaded_inputs:
            for here, _ in (place for group in found for place in group):
                self.k.preload(value, here)
        return found

    def one(self, start: Val, carried: list[Val]) -> list[Val]:
        """An iteration; returns the states after it."""
        e, places = self.e, self.loaded(start)
        following: list[Val] = []
        parity = e.and_(e.cast(e.shr(start, self.iteration.bit_length() - 1), dt.i32), 1)
        for at, (op, state) in enumerate(zip(self.scans, self.by_scan(carried))):
            runs, totals = self.runs_of(op, places)
            before, after = self.starts(at, op, state, totals, parity)
            self.bind_runs(op, places, runs, before)
            following += after
        self.store_places(places)
        return following

    def alone(self, chain: ScanChain) -> None:
        """The iteration of a chained block."""
        e, k, zero = self.e, self.k, self.e.const(0, dt.i32)
        places = self.loaded(e.mul(self.part, self.iteration))
        found = [self.runs_of(op, places) for op in self.scans]
        nothing = self.by_scan(self.nothing_scanned(self.lanes_of_state))
        states = [
            self.starts(at, op, nothing[at], totals, zero)
            for at, (op, (_, totals)) in enumerate(zip(self.scans, found))
        ]
        prefixes = chain.begin(self.part, self.own_point(), [after for _, after in states])
        part_again, _ = k.divmod(Index(chain.ticket_again()), self.chains)
        again = self.places(e.mul(k.scalar(part_again.base), self.iteration))
        pairs = [pair for groups in zip(places, again) for pair in zip(*groups)]
        for value in self.loaded_inputs:
            for (place, _), (here, _) in pairs:
                k.bind_loaded(value, here, k.preload(value, place))
        for op, (runs, _), (before, _), state in zip(self.scans, found, states, prefixes):
            self.bind_runs(op, again, runs, [sc.combine(e, op, state, begun) for begun in before])
        self.store_places(again)


def numbers(analysis: Analysis) -> int:
    """The number of state components per element, of all scans."""
    return sum(len(sc.state_types(op)) for op in analysis.scans)


def pairs(analysis: Analysis) -> bool:
    """Whether an element's states are two 32-bit components of independent scans: registers hold them for as many
    elements as one component."""
    sizes = [dtype.compute.bytes for op in analysis.scans for dtype in sc.state_types(op)]
    return len(sizes) == 2 and max(sizes) <= 4 and analysis.once(apart)


def widest_bytes(analysis: Analysis) -> int:
    """The bytes of an element of the widest input or output."""
    return max(analysis.stored(v).bytes for v in analysis.inputs + analysis.outputs)


def elements_of(analysis: Analysis, states: int) -> int:
    """Elements per thread, a power of two, whose states have at most ``states`` components."""
    return 1 << max(1, states // analysis.once(numbers)).bit_length() - 1
