"""Shared by GPU scan kernels: states as loop-carried values, and in shared memory."""

from __future__ import annotations

from mlirfuse.analysis.phases import Analysis, apart
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.coalesced_columns import written
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.gpu.row_body import at_own_index
from mlirfuse.schedule.tiling import Access


class ScanBody(GpuBody):
    """A kernel body that iterates along the scanned axes and carries the scan states."""

    def __init__(
        self, name: str, analysis: Analysis, slots: Slots, access: Access, threads: int, min_blocks_per_sm: int = 1
    ):
        super().__init__(name, analysis, slots, access, threads, min_blocks_per_sm=min_blocks_per_sm)
        self.scans = analysis.scans
        self.reverse = bool(self.scans[0].attrs["reverse"])
        self.length = sz.product(a.size for a in analysis.reduced)
        self.full = written(analysis)
        self.small = [v for v in analysis.outputs if v not in self.full]
        self.loaded = at_own_index(analysis, analysis.inputs)

    def along(self, env: Env, position: Val, lanes: int) -> tuple[Env, Val]:
        """The env of ``lanes`` elements from ``position`` on, in scan order, clamped to the row, and whether they are
        inside."""
        e = self.e
        inside = e.cmp("lt", position, self.size(self.length))
        clamped = e.min(position, e.sub(self.size(self.length), lanes))
        index = e.sub(e.sub(self.size(self.length), lanes), clamped) if self.reverse else clamped
        here = dict(env)
        loops = self.analysis.loops(self.analysis.reduced)
        self.unlinear(here, loops, Index(index, 1, lanes) if lanes > 1 else Index(index))
        return here, inside

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


def power_from(n: int) -> int:
    """The smallest power of two that is at least ``n``."""
    return 1 << max(0, n - 1).bit_length()


def power_to(n: int) -> int:
    """The largest power of two that is at most ``n``, for ``n`` >= 1."""
    return 1 << n.bit_length() - 1


def elements_of(analysis: Analysis, states: int) -> int:
    """Elements per thread, a power of two, whose states have at most ``states`` components."""
    return 1 << max(1, states // analysis.once(numbers)).bit_length() - 1
