"""What the choices of CPU schedulers go by: thresholds with names, and the reason or the measurement behind each.

Fitting another processor is measuring these again (``python benchmarks/cpu_sweep.py``, ``python benchmarks/cpu.py``)
and giving it an instance of its own in :data:`HEURISTICS`. All here were fitted on two cores with AVX-512; processors
with narrower vectors take them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlirfuse.core.device_properties import HostProperties


@dataclass(frozen=True)
class TaskHeuristics:
    """How work is shared between threads. Sizes are in elements."""

    tile: int = 8192  # of a pointwise kernel's task: its inputs and outputs stay in a core's first caches
    grain: int = 16384  # that a thread takes at a time: taking a task costs as much as some hundred elements
    shared: int = 1 << 16  # from which on work is shared: waking a thread takes longer than adding up half as many
    parts_per_thread: int = 4  # of a reduction that is split: one that is late does not hold up the others
    most_parts: int = 64
    tasks_a_thread: int = 2  # below which threads are idle
    past_caches: float = 0.5  # share of the last cache that outputs fill, from which on they are stored past it
    # instructions for each element of what is read at several positions, from which on it is stored
    repeated: int = 16
    short: int = 64  # loops shorter than this can share a vector with the loop around them


@dataclass(frozen=True)
class RowHeuristics:
    """Reductions along contiguous memory."""

    in_registers: int = 4  # vectors of a row that stay in registers: with what is computed of them all 32 are taken
    most_in_registers: int = 32  # that a schedule may ask for: more is only longer to compile
    stash: int = (
        8  # instructions from which on a value is kept rather than computed again: a load and a store cost less
    )
    stash_bytes: int = 128 << 10  # of a row's buffers, which lie on the stack and in the second cache


@dataclass(frozen=True)
class ColumnHeuristics:
    """Reductions across contiguous memory."""

    stretch: int = 2048  # columns whose accumulators are worked on together: they stay in the first cache
    coalesced: int = 512  # columns that rows taken as one come to, about
    rows: int = 8  # rows added up in registers before they go to the accumulators
    instructions: int = 48  # of all those rows: more take turns, so that registers are enough
    few: int = 16  # rows of a reduction that accumulators in registers pass over, at most
    tasks_a_thread: int = 4  # blocks of columns below which rows are split
    rows_per_part: int = 16  # least rows of a part: storing and merging its accumulators costs as much as a few
    across_rows: int = 16  # rows that vectors run across at least
    across_height: int = 8  # and the longest of these: a small part of a vector
    across_sums: int = 4  # the longest of which are only added up, or written as long as they are
    turned: int = 4  # rows, one after the other, that are scanned while a vector's state is turned to the next one's
    across_pieces: int = 8  # times as much work as is shared, from which on pieces of longer rows are read so


@dataclass(frozen=True)
class PointwiseHeuristics:
    """What is read at several positions, and rows that are shorter than a vector: what is laid out otherwise is packed
    ("vectors across rows" in benchmarks/HISTORY.md)."""

    positions: int = 4  # from which on caches are told what to fetch: they do not see so many streams in each other
    ahead: int = 1024  # bytes; from 512 to 2048 it is the same
    packed: int = 1024  # elements at a time: a few such buffers stay in the first cache
    packed_bytes: int = 64 << 10  # of all buffers together, which lie on the stack
    line: int = 64  # bytes of the caches', which neighbours share


@dataclass(frozen=True)
class TransposeHeuristics:
    """Blocks that are turned in registers."""

    rows: int = 64  # elements of a task's tile along the reading loop, where it is as long
    columns: int = 256  # and along the writing one: whole lines of the cache are read and written
    widest: int = 16  # elements along each side of a block, at most: that many vectors are in registers


@dataclass(frozen=True)
class ScatterAddHeuristics:
    """Values added to rows that indices choose: a task owns rows of the result, and reads all indices."""

    columns_a_task: int = 8  # of a row: with fewer, tasks read indices more than they add
    rows_a_task: int = 4  # of the result: with fewer, tasks own columns, which balance whatever the indices are


@dataclass(frozen=True)
class CpuHeuristics:
    tasks: TaskHeuristics = field(default_factory=TaskHeuristics)
    rows: RowHeuristics = field(default_factory=RowHeuristics)
    columns: ColumnHeuristics = field(default_factory=ColumnHeuristics)
    pointwise: PointwiseHeuristics = field(default_factory=PointwiseHeuristics)
    transpose: TransposeHeuristics = field(default_factory=TransposeHeuristics)
    scatter_add: ScatterAddHeuristics = field(default_factory=ScatterAddHeuristics)


AVX512 = CpuHeuristics()
HEURISTICS: dict[int, CpuHeuristics] = {64: AVX512}  # by the bytes of a vector


def heuristics_of(host: HostProperties) -> CpuHeuristics:
    """The model that was fitted to processors with such vectors, or else that of AVX-512."""
    return HEURISTICS.get(host.vector_bytes, AVX512)
