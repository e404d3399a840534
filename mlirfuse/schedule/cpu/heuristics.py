"""Tuning parameters of the CPU schedulers, each with its reason or the measurement behind it.

To tune for another processor, repeat the measurements (``python benchmarks/cpu_sweep.py``, ``python
benchmarks/cpu.py``), and add an instance to :data:`HEURISTICS`. All values were measured on two cores with AVX-512;
processors with narrower vectors use them unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlirfuse.core.device_properties import HostProperties


@dataclass(frozen=True)
class TaskHeuristics:
    """How work is divided among threads. Sizes are in elements."""

    tile: int = 8192  # of a pointwise task: its inputs and outputs stay in a core's L1 and L2 caches
    grain: int = 16384  # that a thread takes at a time: taking a task costs as much as some hundred elements
    shared: int = 1 << 16  # least work to run on several threads: waking one takes as long as summing half as many
    parts_per_thread: int = 4  # of a split reduction: balances the load if one thread is late
    most_parts: int = 64
    tasks_a_thread: int = 2  # with fewer, threads are idle
    past_caches: float = 0.5  # fraction of the last-level cache: larger outputs are written by non-temporal stores
    # Instructions per element from which on a value that is read at several indices is stored, not recomputed.
    repeated: int = 16
    short: int = 64  # shorter loops can share a vector with the enclosing loop


@dataclass(frozen=True)
class RowHeuristics:
    """Reductions along contiguous memory."""

    in_registers: int = 4  # vectors of a register-resident row: with intermediate values they use all 32 registers
    most_in_registers: int = 32  # limit for user schedules: more only takes longer to compile
    stash: int = 8  # instructions from which on a value is stored, not recomputed: a load and a store cost less
    stash_bytes: int = 128 << 10  # of a row's stash buffers, which are on the stack and in L2


@dataclass(frozen=True)
class ColumnHeuristics:
    """Reductions across contiguous memory."""

    stretch: int = 2048  # columns of a strip: its accumulators stay in L1
    coalesced: int = 512  # approximate columns of several rows treated as one
    rows: int = 8  # rows summed in registers before they are added to the accumulators
    instructions: int = 48  # limit for all those rows together, so that registers suffice
    few: int = 16  # most rows of a reduction with accumulators in registers
    tasks_a_thread: int = 4  # with fewer blocks of columns, rows are split
    rows_per_part: int = 16  # least rows of a part: storing and merging its accumulators costs as much as a few
    across_rows: int = 16  # least rows for vectors that run across rows
    across_height: int = 8  # longest such row: a small fraction of a vector
    across_sums: int = 4  # longest such row for plain sums and full-size outputs
    turned: int = 4  # rows scanned in the time of permuting a vector's state for the next vector
    across_pieces: int = 8  # multiple of `shared` from which on rows of several loops use vectors across rows


@dataclass(frozen=True)
class PointwiseHeuristics:
    """Values read at several indices, and rows shorter than a vector, whose inputs are packed unless they are
    contiguous ("vectors across rows" in benchmarks/HISTORY.md)."""

    positions: int = 4  # index streams from which on software prefetch is used: hardware does not detect so many
    ahead: int = 1024  # prefetch distance in bytes; 512 to 2048 perform the same
    packed: int = 1024  # elements packed at a time: a few such buffers stay in L1
    packed_bytes: int = 64 << 10  # of all packing buffers together, which are on the stack
    line: int = 64  # bytes of a cache line


@dataclass(frozen=True)
class TransposeHeuristics:
    """Blocks transposed in registers."""

    rows: int = 64  # most elements of a task's tile along the reading loop
    columns: int = 256  # most along the writing loop: full cache lines are read and written
    widest: int = 16  # most elements along each side of a block: as many vectors are in registers


@dataclass(frozen=True)
class ScatterAddHeuristics:
    """Scatter-add of values to rows selected by indices. A task owns rows of the result, and reads all indices."""

    columns_a_task: int = 8  # of a row: with fewer, reading indices dominates
    rows_a_task: int = 4  # of the result: with fewer, tasks own columns, which are balanced for any indices


@dataclass(frozen=True)
class CpuHeuristics:
    """The tuning parameters of all CPU schedulers."""

    tasks: TaskHeuristics = field(default_factory=TaskHeuristics)
    rows: RowHeuristics = field(default_factory=RowHeuristics)
    columns: ColumnHeuristics = field(default_factory=ColumnHeuristics)
    pointwise: PointwiseHeuristics = field(default_factory=PointwiseHeuristics)
    transpose: TransposeHeuristics = field(default_factory=TransposeHeuristics)
    scatter_add: ScatterAddHeuristics = field(default_factory=ScatterAddHeuristics)


AVX512 = CpuHeuristics()
HEURISTICS: dict[int, CpuHeuristics] = {64: AVX512}  # by vector bytes


def heuristics_of(host: HostProperties) -> CpuHeuristics:
    """The parameters for processors with this vector width, or else those for AVX-512."""
    return HEURISTICS.get(host.vector_bytes, AVX512)
