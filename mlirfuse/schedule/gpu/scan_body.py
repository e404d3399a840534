"""What kernels of scans on a GPU share: states as loops carry them, and through shared memory."""

from __future__ import annotations

from mlirfuse.analysis.phases import Analysis, apart
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.access import Access
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.gpu.row_body import at_own_index


class ScanBody(GpuBody):
    """A kernel that goes along the scanned axes in turns, whose states it carries."""

    def __init__(
        self, name: str, analysis: Analysis, slots: Slots, access: Access, threads: int, min_blocks_per_sm: int = 1
    ):
        super().__init__(name, analysis, slots, access, threads, min_blocks_per_sm=min_blocks_per_sm)
        self.scans = analysis.scans
        self.reverse = bool(self.scans[0].attrs["reverse"])
        self.length = sz.product(a.size for a in analysis.reduced)
        along = set(analysis.reduced)
        self.full = [v for v in analysis.outputs if along & set(analysis.axes.flat(v))]
        self.small = [v for v in analysis.outputs if v not in self.full]
        self.loaded = at_own_index(analysis, analysis.inputs)

    def nothing(self, lanes: int) -> list[Val]:
        """The states of nothing, as a loop carries them."""
        return [v for op in self.scans for v in sc.identity(self.e, op, lanes)]

    def grouped(self, flat: list[Val]) -> list[sc.State]:
        """The state of each scan in a list of them all."""
        values = iter(flat)
        return [tuple(next(values) for _ in sc.state_types(op)) for op in self.scans]

    def along(self, env: Env, position: Val, lanes: int) -> tuple[Env, Val]:
        """The env of ``lanes`` elements from this position on, in the order of the scans, and whether they are inside;
        the last ones instead of those past the end."""
        e = self.e
        inside = e.cmp("lt", position, self.size(self.length))
        held = e.min(position, e.sub(self.size(self.length), lanes))
        place = e.sub(e.sub(self.size(self.length), lanes), held) if self.reverse else held
        here = dict(env)
        loops = self.analysis.loops(self.analysis.reduced)
        self.unlinear(here, loops, Index(place, 1, lanes) if lanes > 1 else Index(place))
        return here, inside

    def put(self, offsets: list[int], index: Val, state: sc.State) -> None:
        """Writes a state to shared memory, as its ``index``-th there."""
        for offset, v in zip(offsets, state):
            nbytes = 8 * v.lanes
            self.shared_store(self.shared_address(offset, index, nbytes), v)

    def get(self, offsets: list[int], index: Val, like: sc.State) -> sc.State:
        """Reads the ``index``-th state, of parts such as ``like``."""
        return tuple(
            self.shared_load(self.shared_address(offset, index, 8 * v.lanes), v.dtype, v.lanes)
            for offset, v in zip(offsets, like)
        )


def numbers(analysis: Analysis) -> int:
    """How many numbers the states of a segment's scans have for an element."""
    return sum(len(sc.state_types(op)) for op in analysis.scans)


def pairs(analysis: Analysis) -> bool:
    """Whether an element's states are two numbers of 32 bits, of scans that do not follow from each other: a thread's
    registers hold them for as many elements as one number."""
    held = [dtype.compute.bytes for op in analysis.scans for dtype in sc.state_types(op)]
    return len(held) == 2 and max(held) <= 4 and analysis.once(apart)


def widest_bytes(analysis: Analysis) -> int:
    """Bytes of an element of the widest input or output."""
    return max(analysis.stored(v).bytes for v in analysis.inputs + analysis.outputs)


def power_from(n: int) -> int:
    """The smallest power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()


def power_to(n: int) -> int:
    """The largest power of two that is not above ``n``, which is not below 1."""
    return 1 << n.bit_length() - 1


def elements_of(analysis: Analysis, states: int) -> int:
    """Elements of a thread whose states have no more numbers than so many, a power of two."""
    return 1 << max(1, states // analysis.once(numbers)).bit_length() - 1
