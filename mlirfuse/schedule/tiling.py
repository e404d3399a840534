"""The parameters of schedules, for both targets."""

from __future__ import annotations

from typing import Any, NamedTuple

from mlirfuse.core.errors import ScheduleError
from mlirfuse.ir import dtypes as dt


class Access(NamedTuple):
    """What a compiled program assumes about memory. ``index`` is i32 or i64; ``lanes``: the vector width in elements;
    ``aligns``: the alignment in bytes of each input's and output's vector accesses; ``multiples``: sizes known to be
    multiples of the lanes; ``hint``: the cache hint for inputs (see :mod:`mlirfuse.lowering.kernel`): ``PASS_L1`` for
    those that are read once, ``STAY_L2`` also for those of which parts are read."""

    index: dt.DType  # type: ignore[assignment]  # shadows tuple.index, which is not used
    lanes: int
    aligns: tuple[int, ...]
    multiples: frozenset[Any] = frozenset()
    hint: str = ""


class Tiling(NamedTuple):
    """The parameters of ``scheduler``: the standard ones that it lists as its ``fields``, and in ``own`` a named tuple
    of those that no other scheduler has. An *iteration* is what the threads of a block, or the vectors in flight of a
    CPU's thread, process together. Numbers are 0 or 1 and flags false where a scheduler has nothing to decide."""

    scheduler: str
    access: Access = Access(dt.i64, 1, ())  # of a GPU
    tx: int = 1  # threads of a block along contiguous memory
    ty: int = 1  # threads of a block along the other loops
    vectors_per_thread: int = 0  # along contiguous memory, at a time; 0: a loop over any number
    rows_per_thread: int = 1  # at a time
    split: int = 1  # blocks or tasks that share a reduction, a row or the values to add up
    cluster: int = 1  # blocks that share a row or columns through distributed shared memory
    stages: int = 0  # iterations whose inputs are in shared memory, or in flight to it
    coalesced_rows: int = 1  # rows that are treated as one; 0: as many as the sizes allow
    unmasked: int = 0  # vectors of a thread, or passes over full tiles, that check no bounds
    unaligned: bool = False  # rows may start at any element, and are read by aligned vectors
    persistent: bool = False  # what later passes need is kept, not read or computed again
    in_shared: bool = False  # in shared memory, where it is in registers otherwise
    recompute: bool = False  # passes compute values again from the inputs in registers
    online: bool = False  # dependent reductions, as softmax's maximum and sum, take one pass
    prefetch: bool = False  # inputs that are used after the reductions are loaded before them
    chained: int = 0  # iterations are blocks of their own that pass their prefixes on, in groups of so many times `ty`
    min_blocks_per_sm: int = 1  # that must fit a multiprocessor, which limits a thread's registers
    compensation_interval: int = 0  # iterations, or blocks of them, after which sums are added to compensated totals
    streamed: bool = False  # full-size outputs are written with non-temporal stores
    extent: int = 0  # of a loop, or the distance of rows, that the code is compiled for; 0: any
    own: Any = None  # the scheduler's other parameters

    @property
    def width(self) -> int:
        """Elements of a thread along contiguous memory, at a time."""
        return self.access.lanes * self.vectors_per_thread

    def value(self, name: str) -> Any:
        """The value of a parameter."""
        return getattr(self if name in self._fields else self.own, name)

    def replaced(self, **given: Any) -> Tiling:
        """The same with other values of some parameters."""
        standard = {name: given.pop(name) for name in [*given] if name in self._fields}
        return self._replace(**standard, **({"own": self.own._replace(**given)} if given else {}))

    def must(self, name: str, holds: bool, constraint: str) -> None:
        """Raise :class:`ScheduleError`, which names a parameter, its value and the ``constraint``, unless that
        ``holds``."""
        if not holds:
            raise ScheduleError(f"{name} = {self.value(name)}: {constraint}")

    def excludes(self, name: str, *others: str) -> None:
        """Raise :class:`ScheduleError` if this field and any of the ``others`` have other values than by default."""
        if name in self._set() and self._set().intersection(others):
            raise ScheduleError(f"{name}: excludes {', '.join(others)}")

    def _set(self) -> set[str]:
        return {name for name, default in self._field_defaults.items() if getattr(self, name) != default}
