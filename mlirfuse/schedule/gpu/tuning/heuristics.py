"""Fields of the GPU schedulers' heuristics, each with the measurement behind it.

Most fields hold for every GPU: they are counts per thread, or relative to a property of the device. Those that are
``scaled`` have an H100's value; :mod:`.derived` computes others'. All figures were measured on H100s (sm_90, 132
multiprocessors), with the tables, the sweep or ``tried-h100.json``, see benchmarks/HISTORY.md; a comment without
figures gives the reason for the value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from mlirfuse.schedule.gpu.tuning.scaled import Scale, scaled
from mlirfuse.schedule.gpu.tuning.scan_heuristics import ScanHeuristics


@dataclass(frozen=True)
class AccessHeuristics:
    """Cache hints for inputs. Sizes are multiples of the L2 size."""

    reduced: float = 4  # reads up to here that are only reduced bypass L1: time -12% for one, +3% for twenty
    # From here on inputs stay in L2; at 1.5 copies -0.5%, transposes -1%, softmax -0.8 to -1.5%.
    staying: float = scaled(1.5, Scale.L2)


@dataclass(frozen=True)
class RowRegisterHeuristics:
    """Register-resident rows: how many 32-bit registers of a row a thread should have, and limits for them."""

    # Best on average over the table: several blocks fit a multiprocessor, and one loads while another computes.
    usual: int = 16
    beside_weights: int = 32  # with fewer threads per row, fewer instructions load weights
    short: int = 8  # for short rows, 16-bit floats without weights, and if the device has a thread for each vector
    reduced_16bit: int = 4  # 16-bit floats that are only reduced: nothing else takes registers
    short_vectors: int = 32  # vectors of a row up to which it is short
    # Elements per thread of short rows without vectors: softmax of 1000000×13 bf16 55 → 27 µs, 7 or 2: 54, 38.
    short_per_thread: int = 4
    # `short_vectors` for 16-bit floats with full-size outputs: widened they take twice the registers.
    short_vectors_16bit: int = 256
    most_alone: int = 32  # for a row in one block; more leaves one block per multiprocessor
    most: int = 64  # for a row in a cluster, and in a block of at most `wide_block` threads
    most_narrow: int = 56  # the same for vectors narrower than 16 bytes: their addresses take registers too
    cluster_16bit: int = 32  # 16-bit floats take twice as many when widened
    wide_block: int = 256  # threads up to which a thread may have `most`
    # Threads per block for a whole row: two of 512 fit a multiprocessor. 16-bit floats with several weights that need
    # so many are in shared memory, up to nine blocks: layer norm of 4096×12288 f16 88 → 53 µs, of 1024×16384 33 → 24.
    largest_block: int = 512
    # Widened 16-bit floats beyond leave one block per multiprocessor: 32 K elements 235 µs, 182 in shared memory.
    crowded: int = 20
    # Elements per thread beyond which values are recomputed in each phase: of narrow vectors, and of wide ones.
    widened_elements: tuple[int, int] = (16, 32)


@dataclass(frozen=True)
class RowThreadHeuristics:
    """Register-resident rows: threads and blocks."""

    # The threads of a long row read at least a cache line; fewer spread a warp's accesses over more lines.
    line_bytes: int = 128
    long_vectors: int = 128  # vectors of a row from which on it is long
    medium_vectors: int = 64
    medium: int = 16  # threads for rows of `medium_vectors`: neighbouring memory is soon read too
    least: int = 8  # threads for shorter rows
    block: int = 128  # threads per block of several rows
    # Threads per multiprocessor; with less work half of the device is idle, and all work is done in parallel.
    parallel: int = scaled(1024, Scale.SM_THREADS)
    parallel_per_thread: float = 2.5  # vectors per thread in that case: 2 or 3 in flight hide the memory latency
    most_parallel_per_thread: int = 4
    most_together: int = scaled(16 * 1024, Scale.CLUSTER)  # most threads of a row's blocks in that case
    most_beside_weights: int = 4096  # most threads of a cluster with weights, which each of its blocks reads
    busy: int = scaled(512, Scale.SM_THREADS)  # threads per multiprocessor below which it counts as idle
    portable_cluster: int = 8  # clusters of 16 take up to 40% longer if blocks wait for each other
    idle: float = 1.25  # most vectors that a row's threads have room for, relative to its vectors: 1408 f32 92 → 73 µs
    one_reduction: int = 8  # vectors per thread of few rows up to which a cluster is faster than two kernels
    few_rows: int = 16  # multiprocessors per row from which on rows are few
    # Blocks per multiprocessor for clusters of 256 threads, up to 32 registers, and beyond.
    min_blocks_16bit: tuple[int, int] = (4, 2)
    min_blocks_32bit: int = 3  # for 33 to 64 registers of floats; else no limit: ptxas spills less


@dataclass(frozen=True)
class RowLoadHeuristics:
    """32-bit registers of a row and its weights that a thread loads before it reduces: more takes up to 1.6 times as
    long ("rows in registers, the two fastest places" in ``tried-h100.json``)."""

    usual: int = 48
    reduced_precision: int = 64  # for 16-bit floats in narrow vectors or with several inputs
    few: int = 96  # with at most `few_threads` threads per multiprocessor: layer norm of 16×8191 f32 7.0 → 5.9 µs
    few_threads: int = scaled(256, Scale.SM_THREADS)  # per multiprocessor
    left_for_others: int = 32  # registers of a large block's threads that are needed for other values


@dataclass(frozen=True)
class SharedRowHeuristics:
    """Rows in the shared memory of a block or cluster."""

    threads: tuple[int, ...] = (256, 128, 512)
    least_per_thread: int = 5  # vectors per thread: fewer fit in registers as well
    # Threads per multiprocessor that hide the copies of the next blocks, if rows do not divide evenly.
    roomy: int = scaled(768, Scale.SM_THREADS)
    # Threads per multiprocessor without a cluster: copies alone then saturate memory.
    least_alone: int = scaled(512, Scale.SM_THREADS)
    # Threads per multiprocessor that hide the loads of weights while others reduce. For 16-bit floats, except in
    # clusters of two: layer norm of 1500×70000 bf16 170 → 155 µs (four blocks), of 3000×50256 241 → 216 (one), RMS norm
    # of 1500×70000 168 → 148, of 3000×40000 f16 187 → 165.
    hiding: int = scaled(1024, Scale.SM_THREADS)
    hiding_blocks: tuple[int, int] = (2, 3)  # blocks per multiprocessor for that, without a cluster and with one


@dataclass(frozen=True)
class UnalignedRows:
    """Rows in shared memory by aligned vectors that start before them ("rows that begin at any element" in
    ``tried-h100.json``)."""

    shortest: int = 6 << 10  # elements: below, the ends cost more than the vectors gain
    plain: int = 12 << 10  # elements from which on they are faster for any number of rows
    reduced: int = 24 << 10  # for rows that are only reduced: loaded into registers they are as fast up to 16 K
    weighted: int = 64 << 10  # for rows with several weights in float32: below, elements in registers are within 5%
    wider: int = 32 << 10  # with one weight in a wider type: RMS norm, 600×140001 f16, float32 weights, 234 → 155 µs
    # Rows per multiprocessor from which on shorter rows are faster too: the end of one hides the start of the next.
    many_rows: int = 16
    few_blocks: int = 3  # blocks per multiprocessor up to which each has `large` threads
    large: int = 512
    # Threads of 16-bit floats' rows with one or two weights, one block per multiprocessor, whose registers hold no
    # more: layer norm of 1500×70001 bf16 190 → 183 µs, of 1000×110001 270 → 200, of 264×70001 50 → 42; of 140×70001
    # clusters take 27, others 33 and more.
    alone: int = 1024
    alone_rows: int = 2  # least rows per multiprocessor for that
    medium: int = 256
    small: int = 128  # threads for rows of at most `medium_per_thread` vectors for each of `medium` threads
    medium_per_thread: int = 6
    cluster_blocks: int = 4  # blocks per multiprocessor, and per cluster, that hide each other's latency
    # Vectors per thread in a cluster that outweigh its few at the ends, and the same with a weight, of which it has as
    # many: 3000×30001 f32 320 → 261 µs.
    cluster_per_thread: tuple[int, int] = (12, 8)


@dataclass(frozen=True)
class LoopedRowHeuristics:
    """Rows that fit nowhere, and those of which one pass suffices."""

    single_vectors: int = 2048  # vectors from which on rows that are only reduced are looped: nothing has to be kept
    # Vectors that eight blocks hold with room for another cluster; longer rows are looped.
    cluster_elements: int = 8 * 1024
    least: int = 32  # threads per row
    usual: int = 512
    most: int = 1024
    huge: int = scaled(4 << 20, Scale.BYTES)  # vectors of rows in many parts, which balance the load of multiprocessors
    huge_blocks: int = 16  # such parts per multiprocessor


@dataclass(frozen=True)
class RowStageHeuristics:
    """When one stage per phase is faster than one kernel ("few rows or columns" in ``tried-h100.json``)."""

    kept_share: int = 4  # resident rows occupy at most this fraction (1/n) of the multiprocessors
    # Least bytes that each block then reads: a launch and a second read cost as much.
    kept_bytes: int = scaled(100_000, Scale.SM_LAUNCH_BYTES)
    looped_share: int = 2  # the same for looped rows
    looped_bytes: int = scaled(250_000, Scale.SM_LAUNCH_BYTES)


@dataclass(frozen=True)
class RowHeuristics:
    """The tuning parameters of rows."""

    registers: RowRegisterHeuristics = field(default_factory=RowRegisterHeuristics)
    threads: RowThreadHeuristics = field(default_factory=RowThreadHeuristics)
    loads: RowLoadHeuristics = field(default_factory=RowLoadHeuristics)
    shared: SharedRowHeuristics = field(default_factory=SharedRowHeuristics)
    unaligned: UnalignedRows = field(default_factory=UnalignedRows)
    looped: LoopedRowHeuristics = field(default_factory=LoopedRowHeuristics)
    stages: RowStageHeuristics = field(default_factory=RowStageHeuristics)


@dataclass(frozen=True)
class PointwiseHeuristics:
    """Tiles of pointwise kernels."""

    block: int = 512  # threads, for long rows that fill the device
    small_block: int = 256  # for little work, or if larger blocks leave threads idle
    several_rows: int = 256  # vectors of a row below which a block has several rows
    # Rows per thread, with several inputs and with one, if L2 holds them: the kernel is latency-bound.
    cached_rows: tuple[int, int] = (2, 4)
    spread: int = 4  # fraction (1/n) of the device's threads up to which vectors are narrower if there is little work
    least_bytes: int = 4  # least bytes of such vectors
    spread_coalesced: int = 2  # the same for coalesced rows read by elements: a stack of 16×257 bf16 4.4 → 3.9 µs
    in_flight: int = 32  # bytes of all inputs that a thread loads before it stores
    # Elements of a row from which on few vectors cross its boundary: for overlapping reads, other vectors share loads.
    # A window of 7, 32768×128 f32, 20.0 → 17.2 µs, 8192×2048 bf16 50 → 33, 65536×244 bf16 56 → 41. Shorter rows, and
    # little work, use vectors that divide the rows: 131072×128 f32 62 → 54, f16 45 → 42.
    run: int = 192
    # The same for vectors of eight 16-bit floats; shorter rows use four: 131072×257 f16 95 → 73 µs.
    run_of_eight: int = 1024
    # Elements per load of such rows, from which unaligned vectors are shifted: the window of 7, 8192×8192 f16 110 → 92
    # µs, f32 192 → 181; and vectors per thread if they divide short rows: 131072×128 f16 37 → 30 µs, f32 50 → 45.
    at_once: int = 4
    most_narrow: int = 2
    # Multiple of `spread` elements below which a thread has one vector: a stencil of 64×4096 f32 5.4 → 4.7 µs.
    soon: int = 4
    # Elements from which on reads of adjacent rows prevent coalescing: a thread has several rows. A stencil of 9
    # points, 6001×9000 bf16, 135 → 118 µs, of 5, 8000×8001 bf16 128 → 119, f32 194 → 191.
    rows_shared: int = scaled(2 << 20, Scale.THREADS)
    # The widest vectors for such rows, and the bytes per load: the stencil of 5, 8192×8192 f16 123 → 102 µs, f32 198 →
    # 185. 16-bit floats use half as many threads: 131072×770 f16 176 → 152 µs.
    lanes_under: int = 2
    bytes_under: int = 8
    # Elements of odd rows from which on reads of up to three adjacent rows are coalesced nevertheless: 8192×8191 f16
    # 122 → 103 µs, 8000×8001 f32 189 → 185.
    long_under: int = 1024
    of_three_rows: tuple[int, int] = (2, 2)  # vectors per thread, and elements per load, of those in float32
    in_flight_concat: int = 48  # bytes of all operands of a concatenation: 1001 and 500 columns f32 189 → 171 µs
    # Threads along rows that are concatenated of full vectors of 16 bytes: each has `most_vectors` rows of half of
    # that. 1024 columns beside 1024, 16384 rows f16 49 → 46.5 µs, f32 49 → 46.3; 512 and twice 256 f32 48.6 → 47.0.
    whole_parts: int = 64
    most_vectors: int = 4
    # Least blocks per multiprocessor if threads have several vectors of a concatenation in L2: 4096×(257 + 256) f16 7.7
    # → 7.3 µs, a stack of 1024×2048 f16 93 → 98% of a copy.
    blocks_joined: int = 2
    most_rows: int = 8  # per thread with narrow vectors: up to `in_flight` bytes
    # Loads of a thread's rows and vectors, if those share none: maxima of 2×2×2, 2×64×47³ f16, 55 → 22 µs with one row
    # instead of four, means of 5×5, 8×33×76² f16, 49 → 9; with four loads an element it makes no difference.
    most_loads: int = 16
    # Fraction of instructions that depend only on the column from which on threads have several rows that share those.
    # Batch norm's backward with ReLU, 128×14×14×1024 bf16, of one norm 118 → 111 µs, of two 238 → 219; norm and ReLU
    # 41.8 → 36.9; SiLU, whose elements cost more, is slower.
    shared: float = 0.75
    shared_rows: int = 4  # rows per thread in that case
    shared_bytes: int = 8  # of its vectors of the narrowest type
    idle: float = 1.125  # most threads along such rows, relative to those that have an element
    # Elements from which on rows of 16-bit floats with several biases are coalesced to several segments.
    coalesced: int = scaled(1 << 20, Scale.THREADS)


@dataclass(frozen=True)
class StencilHeuristics:
    """Neighbours of elements, some of them padding."""

    threads: int = 128
    registers: int = 64  # elements of a thread, read and written


@dataclass(frozen=True)
class ConcatHeuristics:
    """Concatenated and rolled rows, interval by interval."""

    # Slice assignment, 16000×6001 f16, 148 → 143 µs with half as many as before, pad 16000×5001 bf16 111 → 109; of
    # stacks, 20000×3×1333 f16, 110 → 112.
    threads: int = 128
    threads_costly: int = 512  # GELU of three operands, 300000×257 bf16, 145 → 136 µs; no difference for copies
    # Intervals of a row: coalesced, two take as long, 64×65536 bf16 17.9 → 16.9 µs, three longer. And if an operand is
    # computed, or elements of the result are costly: 32768 times 770 and 770, the second doubled, bf16, coalesced 82
    # µs, by intervals 71; GELU of 16384×2046 62 and 55.
    fewest: tuple[int, int] = (3, 2)
    most: int = 8  # each is separate code
    bytes: int = 2  # of the widest type: elements of wider ones are loaded one by one here too
    reads: int = 1  # most indices at which a value is read: coalesced rows load elements that several share once
    wide: int = 2  # vectors of an interval that has blocks of its own; others are computed with their neighbours
    mean: int = 28  # mean vectors per interval of a row: three of 16 70 → 81 µs, of 24 53 → 54, of 32 69 → 63
    costly: int = 16  # instructions per element from which on shorter ones pay: vectors across boundaries compute once
    rolls: bool = False  # of one input: 111 µs coalesced, 118 by intervals (16000×5001 bf16)
    # Elements: the time of short kernels is dominated by fetching their code.
    least: int = scaled(1 << 20, Scale.THREADS)


@dataclass(frozen=True)
class ConcatSharedHeuristics:
    """Rows concatenated of short operands in shared memory."""

    shared: int = 3 << 10  # least bytes per block: of 77, 131 and 49 bf16 4 KB 108 µs, 8 KB 111, 16 KB 120
    most: int = 48 << 10  # most bytes per block
    bytes_a_thread: int = 32
    threads: int = 128
    most_threads: int = 512
    bytes: int = 2  # of the widest type: elements of wider ones are as fast one by one
    # Mean vectors per operand of a row, of cheap and of costly results: longer ones are computed by intervals. Of 257
    # and 257 bf16 71 µs, by intervals 74, with GELU 85 and 78; of 1001 and 500 both 84; of 77, 131 and 49 with GELU 130
    # and 130, without 108, 147; of three times 333, stacked, by intervals 97% of a copy.
    mean: tuple[int, int] = (40, 12)
    least: int = scaled(1 << 20, Scale.THREADS)  # elements


@dataclass(frozen=True)
class TransposeHeuristics:
    """Tiles transposed in shared memory."""

    tile: int = 64  # elements per side, of 4 bytes; `tile_wide` for wider ones
    tile_wide: int = 32
    threads: int = 256
    many_threads: int = 512  # from `many_tiles` tiles per multiprocessor on, if each thread has `thread_bytes` at least
    many_tiles: int = 8
    thread_bytes: int = 32
    # Shorter loops are not transposed, nor those of so many elements, except of pools, whose windows are read across
    # memory instead; nor segments with fewer than `least_elements`.
    least_extent: int = 16
    least_elements: int = 4096
    shared: int = 48 << 10  # bytes of shared memory per block; half of the device's if that has less than twice as much
    stages: int = 1 << 20  # elements from which normalizations leave results in another memory order to this scheduler
    along_reading: int = 4  # ratio of reading to writing loop up to which consecutive blocks are along the reading one
    # Elements of tiles that are none of the tensor's, relative to those of tiles half as long, from which on the latter
    # are taken: 16×144×57² f32 with batch norm and Hardswish 45 → 26 µs, 64×32×64² f16 27 → 10.
    idle: float = 1.1


@dataclass(frozen=True)
class InnerOuterHeuristics:
    """Rows with sums over them, in one pass."""

    block: int = 256  # threads for several rows; 128 if each widens more than `widened` elements
    widened: int = 16
    registers: int = 64  # per thread, for inputs of two iterations and for sums
    most_registers: int = 96
    most_per_thread: int = 16
    most_per_thread_long: int = 32  # for long odd rows of 16-bit floats
    long_threads: int = 256
    # Of odd rows, and of others: -0.3 to -0.7% for other numbers than three.
    stages: tuple[tuple[int, ...], tuple[int, ...]] = ((2, 3, 4, 6), (3, 2, 4, 6))
    left_shared: int = 2048  # bytes of shared memory that two blocks per multiprocessor leave free
    # Bytes that the device reads in the 2 µs that each sum adds to the prologue and epilogue of blocks.
    beginning: int = scaled(6 << 20, Scale.BYTES)
    beginning_elements: int = 8  # divisor of that for rows read by elements, which are even slower in other kernels


@dataclass(frozen=True)
class ColumnBlockHeuristics:
    """Blocks of columns, case by case: bytes of a row per block, threads, and rows in flight per thread. Values without
    a reason were the best of those measured ("columns that meet in blocks and clusters or stay in shared memory" in
    ``tried-h100.json``)."""

    line_bytes: int = 128  # of a row per block of a cluster: one cache line, or a few (`widen`)
    sector_bytes: int = 64  # the same for columns in shared memory, and the least for narrow vectors: two sectors
    most: int = 512  # threads, if they exchange accumulators: two blocks fit a multiprocessor
    largest: int = 1024
    # Unaligned blocks: threads along, across, and rows in flight, the best first.
    unaligned: tuple[tuple[int, int, int], ...] = ((32, 16, 4), (32, 16, 2))
    unaligned_wide: tuple[tuple[int, int, int], ...] = ((64, 8, 4), (64, 8, 2))
    unaligned_small: tuple[tuple[int, int, int], ...] = ((32, 8, 8), (32, 8, 4), (32, 8, 2))
    unaligned_stacked: tuple[tuple[int, int], ...] = ((32, 16), (16, 32))  # with several kept loops
    stacked_rows: tuple[int, int] = (2, 4)  # in flight of those, up to `few_stacked` rows and beyond
    few_stacked: int = 256
    stacked_waste: float = 1.3
    tried_unaligned: tuple[tuple[int, ...], ...] = ((32, 64, 16), (4, 8, 16, 32), (4, 8, 2))
    unaligned_waste: float = 1.25  # most threads along a row, relative to those that have a column
    # One block for all of a column: threads for many columns, and those from `many_rows` rows on if multiprocessors
    # have fewer than `many_vectors` vectors each.
    many_threads: tuple[int, int] = (128, 256)
    many_rows: int = 64
    many_vectors: int = 128
    along: int = 16  # threads along a row, for few columns: others read the next columns
    rows_a_thread: int = 4  # for few rows, in one iteration
    least: int = 128
    in_flight: int = 8  # rows, if there are many
    coalesced_threads: tuple[int, int] = (256, 128)  # Coalesced rows, split: with few accumulators, and with many.
    coalesced_along: tuple[int, int] = (32, 16)  # half as many for short rows
    coalesced_long: tuple[int, int] = (2048, 600)  # vectors of a coalesced row from which on it is long
    # Split columns: bytes of a row per block, so that few partial accumulators remain; and most bytes in flight of all
    # inputs with many accumulators: eight rows of batch norm's three leave registers for one block of 256 threads.
    partial_bytes: int = 256
    partial_threads: int = 256
    partial_rows: int = 8  # in flight with many accumulators
    partial_rows_bytes: int = 64  # in flight per thread with few accumulators: 4 to 16 rows
    large_work: int = scaled(2 << 20, Scale.THREADS)  # vectors from which on concurrent parts have `most` threads
    # The same for parts that wait for others, or from `iterations` iterations on.
    work: int = scaled(1 << 20, Scale.THREADS)
    iterations: int = 16
    in_flight_bytes: tuple[int, int, int] = (32, 64, 128)  # per thread: with little work, usually, from `much` bytes on
    much: int = scaled(12 << 20, Scale.BYTES)
    written_registers: int = 16  # elements in flight if they have full-size outputs
    # With full-size outputs: all blocks run concurrently, three per multiprocessor, for which there are registers.
    # GELU's gradient and its sum, 16384×6144 bf16 279 → 222 µs; SiLU's, 65536×770 bf16 by a power of two of parts 72%
    # of a copy, 85 by as many as fill it; 8192×4097 f32 80 → 92.
    written_threads: int = 256
    written_bytes: int = 64  # of all inputs in flight per thread
    written_wide: int = 32  # elements of all inputs, with many accumulators
    # Argmax and argmin need more instructions: many small blocks. argmax down 16384×5001 f32 164 → 134 µs, 8192×8192
    # bf16 79 → 65; no difference for fewer strips.
    position_threads: int = 128
    position_blocks: int = 32
    # In a cluster: lanes times inputs up to which 8 and 4 rows are in flight, else 2.
    cluster_lanes: tuple[int, int] = (4, 8)
    cluster_several: int = 256  # threads with several accumulators
    cluster_wide_rows: int = 2048  # rows per block up to which wide vectors have at most a warp's worth of rows
    cluster_range: tuple[float, float] = (0.5, 3)  # blocks per multiprocessor that are worth measuring
    in_registers_along: int = 8  # In registers: threads along a row, 128 bytes of it; for 16-bit floats half as many.
    in_registers_rows: int = 512  # rows times threads along, for few rows
    in_registers_iteration: int = 16  # rows per thread
    # For narrow vectors and few columns, up to and from `in_registers_few` rows on.
    in_registers_few_iterations: tuple[int, int] = (4, 8)
    in_registers_few: int = 128
    # Blocks per multiprocessor for a warp along a row, and for fewer threads.
    in_registers_blocks: tuple[float, float] = (1.5, 0.5)
    copied_threads: int = 256  # In shared memory; shares are of a multiprocessor's, per block.
    # Seven blocks for few columns, usually three, with their other needs, and two if a cluster has `copied_cluster`
    # blocks or more.
    copied_shares: tuple[float, float, float] = (1 / 7, 2 / 7, 3 / 7)
    copied_cluster: int = 4


@dataclass(frozen=True)
class ColumnHeuristics:
    """Columns ("columns that meet in blocks and clusters or stay in shared memory" in ``tried-h100.json``: 730 sizes,
    up to 60 sets of parameters each)."""

    # Least coalesced rows, of at least `coalesced_least` rows, for which a second kernel pays.
    coalesced_rows_least: int = 64
    coalesced_least: int = 512
    coalesced_many: int = scaled(8 << 20, Scale.THREADS)  # elements from which on a quarter as many suffice
    in_registers: int = 32  # register-resident elements per thread
    iteration_registers: int = 48  # for an iteration's rows, and accumulators before and after
    few_rows: int = 512  # rows of few columns that are soon read even without a split
    some_rows: int = 1024  # the same, with little work or blocks for `1 / some_share` of the multiprocessors
    some_work: int = 4096
    some_share: int = 5
    # Vectors in all that leave multiprocessors idle: many small blocks, few parts to combine.
    little: int = scaled(256 << 10, Scale.THREADS)
    # Up to so many rows, and with `many_columns` vectors of columns per multiprocessor, few threads share a column.
    many_rows: int = 256
    many_columns: int = 32  # 32×131072 bf16: 11.8 → 8.0 µs
    filled: float = 0.9  # fraction of multiprocessors with a block from which on a split costs more than it gains
    met: float = 0.6  # fraction with unaligned blocks: sum of 256×50257 bf16 17.6 → 14.5 µs
    met_few: float = 0.25  # the same for 257 to 512 rows
    met_rows: int = 64  # rows with several kept loops: 2048×64×333 f32 74 → 67 µs, 64×1000×333 f32 52 → 40
    met_wide: float = 1.5  # blocks of 64 threads along columns per multiprocessor
    # Up to here clusters combine parts: sum of 512×768 bf16 7.1 → 5.3 µs.
    cluster_bytes: int = scaled(128 << 20, Scale.LAUNCH_BYTES)
    cluster_accumulators: int = 12  # lanes times accumulators per thread
    # Rows up to which clusters need columns for less than the fraction `cluster_alone` of the device.
    cluster_long: int = 1024
    cluster_alone: float = 0.4
    cluster_least: float = 0.7  # least blocks of clusters per multiprocessor; `cluster_most` at most
    cluster_most: float = 3
    partials: float = 0.375  # fraction of the device's threads for concurrent parts: 131072×257 bf16 43 → 34 µs
    # The same for vectors of 8 bytes, whose threads have 64 registers: GELU's gradient and its sum, 16384×6144 bf16 229
    # → 219 µs, 30000×3072 f16 213 → 202.
    narrow_partials: float = 0.5
    coalesced_partials: float = 0.27
    # The same with many accumulators and a full-size output: a block per multiprocessor, whose threads have 128
    # registers. The gradients of a layer's scale and bias, 401408×96, of f32 and bf16, on an H200: 520 → 148 µs, which
    # spilled with blocks of 256 threads with eight rows each.
    written_partials: float = 0.25
    written_rows: int = 128  # rows of few columns with full-size outputs from which on they are split
    few_accumulators: int = 8  # lanes times accumulators up to which large blocks exchange little
    # Rows from which on columns use a cluster's shared memory: of float32, and of 16-bit floats with exponentials, up
    # to `shared_most_exponentials`; and of other 16-bit floats.
    shared_least: tuple[int, int] = (513, 257)
    shared_most_exponentials: int = 1024  # more rows are faster in stages: exponentials take longer than a second read
    shared_few: float = 1.5  # blocks per multiprocessor below which columns are few, and seven blocks should fit one
    # Rows from which on stages are worth measuring; from `shared_rows_long` on for any number of columns.
    shared_rows_least: int = 32
    shared_rows_long: int = 1024  # columns standardized, 262144×256 f32: 17774 → 294 µs
    blocks: ColumnBlockHeuristics = field(default_factory=ColumnBlockHeuristics)


@dataclass(frozen=True)
class ScatterAddHeuristics:
    """Scatter-add. Wide rows have threads of their own, after six kernels have sorted the values. Pairs: for values
    added in their own type, and for narrower types, whose 32-bit sums in memory cost more."""

    row_bytes: tuple[int, int] = (192, 128)  # 1000000×48 f32 310 → 252 µs, 131072×64 bf16 50 → 34, ×32 24 → 28
    # Of all values: 8192×770 f32 33 → 36, 4096×512 f16 15 → 15.
    least_bytes: tuple[int, int] = scaled((28 << 20, 6 << 20), Scale.LAUNCH_BYTES)
    few: int = 4096  # elements of a result for sums in shared memory: 1000000→10×64 f32 394 → 165 µs
    rows_a_value: int = 8  # with more rows per value, most rows are visited in vain, if sums are in the result
    threads: int = 128
    chunk: int = 64  # values added one after the other: 128 takes twice as long if few rows have most values
    items_per_thread: int = 4  # values that are loaded at a time, limited by `in_flight`
    in_flight: int = 8  # vectors that a thread loads at a time, half for 64 bits: 16384×8191 bf16 260 → 230 µs
    most_across: int = 9  # vectors per thread along a row
    registers: int = 16  # per thread, for sums: 4096×2048 f32, 32 of them 41 µs, 16 36


class ProductTile(NamedTuple):
    """A tile of a product's result that a block computes at a time; ``stages`` of shared memory for the operands.
    ``apart``: warp groups compute such tiles in turns, one multiplies while the other computes the ops on its sums;
    else they share one. ``rate``: 10⁶ floating-point operations per microsecond that a multiprocessor reaches."""

    rows: int
    columns: int
    stages: int
    apart: bool
    rate: float


class EpilogueCosts(NamedTuple):
    """Microseconds: ``start`` of a kernel, until its first products; of an element of a tile, for each byte of other
    matrices that is read and written for it, and for each instruction of the ops."""

    start: float
    element: float
    byte: float
    instruction: float


_SHARED = EpilogueCosts(3.6, 0.0, 2.17e-5, 4.55e-6)  # of a tile of both warp groups
_APART = EpilogueCosts(6.2, 7.2e-5, 0.0, 1.21e-5)  # of a tile of one, which takes longer alone
_LIBRARY = EpilogueCosts(4.0, 3.44e-5, 0.0, 0.0)


@dataclass(frozen=True)
class MatmulHeuristics:
    """Matrix products with the ops on their results. The figures are fitted to 63 products of seven shapes on an H200,
    with nine kinds of ops: see HISTORY.md."""

    tiles: tuple[ProductTile, ...] = (
        ProductTile(128, 256, 4, False, 6.45),
        ProductTile(128, 192, 4, False, 6.45),
        ProductTile(128, 128, 5, False, 6.0),
        ProductTile(128, 128, 6, True, 6.08),
    )
    group: int = 8  # tiles below each other, computed before those to their right: 4 and 16 are as fast at 8192³
    shared: EpilogueCosts = _SHARED
    apart: EpilogueCosts = _APART
    library_rate: float = 6.4
    library_costs: EpilogueCosts = _LIBRARY
    library_divided: float = 0.5  # of its rate, where it divides sums among multiprocessors that would be idle
    launch: float = 1.2  # of a kernel of the ops alone, besides what it moves
    bandwidth: float = 0.75  # of the memory's, that it reaches
    most_read: float = 4.1  # bytes of an element, of other matrices: estimates were fitted to no more
    most_written: float = 4.1
    margin: float = 0.06  # of the time that a kernel must be expected to gain: estimates are off by 5% in the mean


@dataclass(frozen=True)
class GpuHeuristics:
    """The tuning parameters of all GPU schedulers."""

    access: AccessHeuristics = field(default_factory=AccessHeuristics)
    rows: RowHeuristics = field(default_factory=RowHeuristics)
    columns: ColumnHeuristics = field(default_factory=ColumnHeuristics)
    pointwise: PointwiseHeuristics = field(default_factory=PointwiseHeuristics)
    concat_shared: ConcatSharedHeuristics = field(default_factory=ConcatSharedHeuristics)
    concat: ConcatHeuristics = field(default_factory=ConcatHeuristics)
    stencil: StencilHeuristics = field(default_factory=StencilHeuristics)
    transpose: TransposeHeuristics = field(default_factory=TransposeHeuristics)
    inner_outer: InnerOuterHeuristics = field(default_factory=InnerOuterHeuristics)
    scans: ScanHeuristics = field(default_factory=ScanHeuristics)
    scatter_add: ScatterAddHeuristics = field(default_factory=ScatterAddHeuristics)
    matmul: MatmulHeuristics = field(default_factory=MatmulHeuristics)
