"""Shared by GPU scan kernels: iterations along the scanned axes, and states as loop-carried values and in shared
memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlirfuse.analysis.phases import Analysis, apart, size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.gpu.row_body import at_own_index
from mlirfuse.schedule.scheduler import KernelSpec

if TYPE_CHECKING:
    from mlirfuse.schedule.gpu.chained_scan import ScanChain

Places = list[tuple[Env, Val]]  # of vectors, and whether each is inside the row


class ScanBody(GpuBody):
    """A kernel body that iterates along the scanned axes and carries the scan states."""

    def __init__(self, spec: KernelSpec, threads: int = 0, min_blocks_per_sm: int = 0):
        super().__init__(spec, threads, min_blocks_per_sm)
        analysis = spec.analysis
        self.scans = analysis.scans
        self.reverse = bool(self.scans[0].attrs["reverse"])
        self.length = size_of(analysis.reduced)
        self.loaded_inputs = at_own_index(analysis, analysis.inputs)

    def along(self, env: Env, position: Val, lanes: int) -> tuple[Env, Val]:
        """The env of ``lanes`` elements from ``position`` on, in scan order, clamped to the row, and whether they are
        inside."""
        e = self.e
        clamped, inside = self.clamped(position, self.length, lanes)
        index = e.sub(e.sub(self.size(self.length), lanes), clamped) if self.reverse else clamped
        loops = self.analysis.loops(self.analysis.reduced)
        return self.point(loops, Index(index, int(lanes > 1), lanes), env), inside

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


class ScanKernel(ScanBody):
    """A kernel with iterations of ``iteration`` elements of a row or column; with a ``chain``, blocks have one each,
    which is number ``part`` of ``chains`` rows or strips. ``exchange`` computes the states before a thread's elements
    from those of other threads."""

    iteration: int
    chain: ScanChain | None
    chains: sz.Size
    part: Val
    exchange: Any
    lanes_of_state = 1  # of a thread, in a chained block

    def places(self, start: Val) -> list[Places]:
        """Where this thread's elements of an iteration are, in groups that are scanned by themselves."""
        raise NotImplementedError

    def runs_of(self, op: Op, places: list[Places]) -> tuple[Any, Any]:
        """The inclusive scans of this thread's elements, and their totals. Beyond the end of a row they are undefined,
        and not stored."""
        raise NotImplementedError

    def bind_runs(self, op: Op, places: list[Places], runs: Any, before: Any) -> None:
        """Bind the results; ``before``: the states before the runs, as ``exchange`` returns them."""
        raise NotImplementedError

    def continued(self, op: Op, state: sc.State, before: Any) -> Any:
        """The states ``before`` the runs, of elements that follow ``state``."""
        raise NotImplementedError

    def store_places(self, places: list[Places]) -> None:
        """Store full-size outputs."""
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
            before, after = self.exchange.starts(at, op, state, totals, parity)
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
            self.exchange.starts(at, op, nothing[at], totals, zero)
            for at, (op, (_, totals)) in enumerate(zip(self.scans, found))
        ]
        prefixes = chain.begin(self.part, self.own_point(), [after for _, after in states], self.exchange.asker())
        part_again, _ = k.divmod(Index(chain.ticket_again()), self.chains)
        again = self.places(e.mul(k.scalar(part_again.base), self.iteration))
        pairs = [pair for groups in zip(places, again) for pair in zip(*groups)]
        for value in self.loaded_inputs:
            for (place, _), (here, _) in pairs:
                k.bind_loaded(value, here, k.preload(value, place))
        for op, (runs, _), (before, _), state in zip(self.scans, found, states, prefixes):
            self.bind_runs(op, again, runs, self.continued(op, state, before))
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
