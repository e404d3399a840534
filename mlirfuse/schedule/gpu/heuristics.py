"""What the choices of GPU schedulers go by: thresholds with names, and the measurement behind each.

Fitting another GPU is measuring these again (``python benchmarks/autotune.py``, ``python benchmarks/gpu_sweep.py``) and
giving it an instance of its own in :data:`HEURISTICS`. All here were measured on H100s (sm_90, 132 multiprocessors);
other chips take them as they are. Where a line has figures, they are of the table, the sweep or ``tried-h100.json``, as
benchmarks/HISTORY.md tells them; where it has none, it gives the reason for which the value was tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.schedule.gpu.scan_heuristics import ScanHeuristics


@dataclass(frozen=True)
class AccessHeuristics:
    """How caches are told of inputs. Sizes are in second-level caches full."""

    reduced: float = (
        4  # reads up to here of what is only reduced pass the first level: time -12% for one, +3% for twenty
    )
    staying: float = (
        1.5  # from here on inputs stay in the second level: copies -0.5%, transposes -1%, softmax -0.8 to -1.5%
    )


@dataclass(frozen=True)
class RowRegisterHeuristics:
    """Rows in registers: how many of a row's 32-bit registers a thread shall have, and where their number ends."""

    usual: int = (
        16  # the best middle over the table: several blocks fit a multiprocessor and load while another computes
    )
    beside_weights: int = 32  # weights' share of the instructions falls with the threads of a row
    short: int = 8  # of short rows, of half types without weights, and where the machine has a thread for each vector
    reduced_16bit: int = 4  # half types that are only reduced: nothing else takes registers
    short_vectors: int = 32  # vectors of a row that is short
    short_per_thread: int = (
        4  # of a thread of such rows by elements: softmax of 1000000×13 bf16 55 → 27 µs, 7 or 2: 54, 38
    )
    short_vectors_16bit: int = 256  # the same of half types that are written: widened they take twice the registers
    most_alone: int = 32  # of a row in one block; more leaves a multiprocessor to one block
    most: int = 64  # of a row in a cluster, and of one thread in a block of `wide_block` threads or fewer
    most_narrow: int = 56  # the same of vectors narrower than 16 bytes: their addresses take registers too
    cluster_16bit: int = 32  # half types take twice as many widened
    wide_block: int = 256  # threads up to which a thread may have `most`
    largest_block: int = 512  # threads of a block that has all of a row: two of 512 fit a multiprocessor
    crowded: int = (
        20  # widened half types beyond leave one block a multiprocessor: 32 K elements 235 µs, 182 in shared memory
    )
    widened_elements: int = 32  # a thread's elements from which on values are computed again in each phase
    widened_elements_narrow: int = 16


@dataclass(frozen=True)
class RowThreadHeuristics:
    """Rows in registers: threads and blocks."""

    line_bytes: int = 128  # threads of a long row read a line of the cache, of which fewer spread a warp's accesses
    long_vectors: int = 128  # vectors of rows from which on that holds
    medium_vectors: int = 64
    medium: int = (
        16  # threads of rows of `medium_vectors`, and of shorter ones: what is beside an access is soon read too
    )
    least: int = 8
    block: int = 128  # threads of a block of several rows
    parallel: int = 1024  # threads a multiprocessor: with less to do all is done in parallel, half of the machine idle
    parallel_per_thread: float = 2.5  # vectors a thread then: 2 or 3 under way hide the memory's latency
    most_parallel_per_thread: int = 4
    most_together: int = 16 * 1024  # threads of a row's blocks then
    most_beside_weights: int = 4096  # threads of a cluster with weights: they are read by each of its blocks
    busy: int = 512  # threads a multiprocessor below which it counts as idle
    portable_cluster: int = 8  # clusters of 16 take up to 40% longer where blocks wait for each other
    idle: float = 1.25  # vectors that a row's threads have room for, for each that there is: 1408 f32 92 → 73 µs
    one_reduction: int = 8  # vectors a thread of few rows that a cluster is sooner done with than two kernels
    few_rows: int = 16  # one row for so many multiprocessors or fewer
    min_blocks_16bit: tuple[int, int] = (
        4,
        2,
    )  # blocks a multiprocessor of clusters of 256 threads, up to 32 registers, beyond
    min_blocks_32bit: int = 3  # of 33 to 64 registers of floats; else unbounded: ptxas spills less


@dataclass(frozen=True)
class RowLoadHeuristics:
    """What of a row and its weights a thread loads before it reduces, in registers of 32 bits: more takes up to 1.6
    times as long ("rows in registers, the two fastest places" in ``tried-h100.json``)."""

    usual: int = 48
    reduced_precision: int = 64  # of half types in narrow vectors or of several inputs
    few: int = 96  # where each multiprocessor has at most `few_threads` threads: layer norm of 16×8191 f32 7.0 → 5.9 µs
    few_threads: int = 256
    left_for_others: int = 32  # registers of a large block's threads that other things take


@dataclass(frozen=True)
class SharedRowHeuristics:
    """Rows in the shared memory of a block or of a cluster's blocks."""

    threads: tuple[int, ...] = (256, 128, 512)
    least_per_thread: int = 5  # vectors a thread: fewer are held in registers as well
    roomy: int = (
        768  # threads a multiprocessor that hide the copies of the next blocks, where rows do not divide evenly
    )
    least_alone: int = 512  # threads a multiprocessor without a cluster, with which copies alone keep memory busy
    # Threads of a multiprocessor, and its blocks without a cluster and with one, whose weights are under way while
    # others reduce. Half types, not in clusters of two: layer norm of 1500×70000 bf16 170 → 155 µs (four blocks), of
    # 3000×50256 241 → 216 (alone), RMS norm of 1500×70000 168 → 148, of 3000×40000 f16 187 → 165.
    hiding: int = 1024
    hiding_blocks: tuple[int, int] = (2, 3)


@dataclass(frozen=True)
class UnalignedRows:
    """Rows in shared memory by vectors that begin before them ("rows that begin at any element" in
    ``tried-h100.json``)."""

    shortest: int = 6 << 10  # elements: below, the ends cost more than the vectors give
    plain: int = 12 << 10  # elements from which on they are better in any number of rows
    reduced: int = 24 << 10  # of rows that are only reduced: loaded into registers they are as fast up to 16 K
    weighted: int = 64 << 10  # of rows beside several weights in float32: elements in registers are within 5% below
    wider: int = 32 << 10  # beside one weight in a wider type: RMS norm, 600×140001 f16, float32 weights, 234 → 155 µs
    many_rows: int = (
        16  # rows a multiprocessor from which on shorter rows are better too: one's end hides the next one's
    )
    few_blocks: int = 3  # blocks a multiprocessor up to which each has `large` threads
    large: int = 512
    # Threads of half types' rows beside one or two weights that a multiprocessor has one of at a time, and rows for
    # items_per_thread: layer norm of 1500×70001 bf16 190 → 183 µs, of 1000×110001 270 → 200, of 264×70001 50 → 42; of
    # 140×70001 clusters take 27, others 33 and more. Their registers hold no more than that.
    alone: int = 1024
    alone_rows: int = 2
    medium: int = 256
    small: int = 128  # threads of rows of at most `medium_per_thread` vectors for each of `medium` threads
    medium_per_thread: int = 6
    cluster_blocks: int = 4  # blocks a multiprocessor, and blocks a cluster, that hide each other's waiting
    cluster_per_thread: int = 12  # vectors a thread in a cluster: a dozen are worth its few at the ends
    cluster_per_thread_weighted: int = 8  # beside a weight, of which it has as many: 3000×30001 f32 320 → 261 µs


@dataclass(frozen=True)
class LoopedRowHeuristics:
    """Rows that nothing holds, and those that one pass over them does."""

    single_vectors: int = 2048  # vectors from which on rows that are only reduced are in loops: nothing has to be kept
    cluster_elements: int = (
        8 * 1024
    )  # vectors that eight blocks hold with room for another cluster; longer rows are looped
    least: int = 32  # threads of a row
    usual: int = 512
    most: int = 1024
    huge: int = 4 << 20  # vectors of rows in many parts: a multiprocessor that is sooner done takes more of them
    huge_blocks: int = 16  # such parts a multiprocessor


@dataclass(frozen=True)
class RowStageHeuristics:
    """Where phases by themselves take less time than rows as a whole ("few rows or columns" in ``tried-h100.json``)."""

    kept_share: int = 4  # blocks of rows that are in_registers: at most a quarter of the multiprocessors
    kept_bytes: int = 100_000  # that each then has to read at least: a launch and a second read cost as much
    looped_share: int = 2  # of rows in loops: half of them
    looped_bytes: int = 250_000


@dataclass(frozen=True)
class RowHeuristics:
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

    block: int = 512  # threads, of long rows that fill the machine
    small_block: int = 256  # of little work, or where larger ones leave some of their threads without any
    several_rows: int = 256  # vectors of a row below which a block has several
    cached_rows: tuple[int, int] = (
        2,
        4,
    )  # rows a thread, of one input, that the second-level cache holds: latency, not memory
    spread: int = 4  # the share of the machine's threads up to which vectors are narrower where there is little to do
    least_bytes: int = 4  # of such vectors
    spread_coalesced: int = 2  # the same of folded rows, read by elements: a stack of 16×257 bf16 4.4 → 3.9 µs
    in_flight: int = 32  # bytes of all inputs that a thread loads before it stores
    # Elements of a row from which on few vectors run across its end, if they do: where reads overlap, those of others
    # are one. A window of 7, 32768×128 f32, 20.0 → 17.2 µs, 8192×2048 bf16 50 → 33, 65536×244 bf16 56 → 41. Shorter
    # rows, and where there is little to do, have vectors that divide them: 131072×128 f32 62 → 54, f16 45 → 42.
    run: int = 192
    run_of_eight: int = 1024  # the same of vectors of eight half types; shorter rows have four: 131072×257 f16 95 → 73
    # Elements that such rows are read by at once, out of which shifted ones are put together: the window of 7,
    # 8192×8192 f16 110 → 92 µs, f32 192 → 181; and the vectors of a thread where they divide short rows: 131072×128 f16
    # 37 → 30 µs, f32 50 → 45.
    at_once: int = 4
    most_narrow: int = 2
    soon: int = 4  # times `spread` elements, of fewer a thread has one vector: a stencil of 64×4096 f32 5.4 → 4.7 µs
    # Elements from which on rows that are read one under the other are not folded: a thread has several of them. A
    # stencil of 9 points, 6001×9000 bf16, 135 → 118 µs, of 5, 8000×8001 bf16 128 → 119, f32 194 → 191.
    rows_shared: int = 1 << 21
    # The longest vectors that are written of them, and the bytes that are read at once: the stencil of 5, 8192×8192 f16
    # 123 → 102 µs, f32 198 → 185. Of half types half as many threads: 131072×770 f16 176 → 152 µs.
    lanes_under: int = 2
    bytes_under: int = 8
    # Elements of odd rows from which on up to three, one under the other, are folded all the same: 8192×8191 f16
    # 122 → 103 µs, 8000×8001 f32 189 → 185; of float32 with so many vectors, and elements that are read at once.
    long_under: int = 1024
    of_three_rows: tuple[int, int] = (2, 2)
    in_flight_concat: int = 48  # of all parts of a join: 1001 and 500 columns f32 189 → 171 µs
    # Threads along rows that are joined of whole vectors of 16 bytes: each has `most_vectors` rows of half of that.
    # 1024 columns beside 1024, 16384 rows f16 49 → 46.5 µs, f32 49 → 46.3; 512 and twice 256 f32 48.6 → 47.0.
    whole_parts: int = 64
    most_vectors: int = 4
    # Blocks of a multiprocessor that are left where threads have several vectors of what is joined, in the second-level
    # cache: 4096×(257 + 256) f16 7.7 → 7.3 µs, a stack of 1024×2048 f16 93 → 98% of a copy.
    blocks_joined: int = 2
    most_rows: int = 8  # of a thread, where vectors are narrow: up to `in_flight` bytes
    # From this share on of what depends on the column alone, threads have rows that share it. Batch norm's backward
    # with ReLU, 128×14×14×1024 bf16, of one norm 118 → 111 µs, of two 238 → 219; norm and ReLU 41.8 → 36.9; SiLU,
    # whose elements take more, is slower so.
    shared: float = 0.75
    shared_rows: int = 4  # rows a thread then
    shared_bytes: int = 8  # of its vectors of the narrowest type
    idle: float = 1.125  # threads along such rows, of those that have an element, at most
    coalesced: int = (
        1 << 20
    )  # elements from which on rows beside several biases of half types are folded to several parts


@dataclass(frozen=True)
class ConcatHeuristics:
    """Joined and shifted rows, piece by piece."""

    # Slice assignment, 16000×6001 f16, 148 → 143 µs with half as many as before, pad 16000×5001 bf16 111 → 109; of
    # stacks, 20000×3×1333 f16, 110 → 112.
    threads: int = 128
    threads_costly: int = 512  # GELU of three joined, 300000×257 bf16, 145 → 136 µs; of what is only copied no matter
    fewest: int = 3  # pieces of a row: folded, two parts take as long, 64×65536 bf16 17.9 → 16.9 µs, three longer
    # Where something is computed of a part, or much of what is joined: 32768 times 770 and 770, the second doubled,
    # bf16, folded 82 µs, piece by piece 71; GELU of 16384×2046 62 and 55.
    fewest_computed: int = 2
    most: int = 8  # each is code of its own
    bytes: int = 2  # of the widest type: elements of wider ones are loaded one by one here too
    reads: int = 1  # places at which a value is read: what several have in common is read once where rows are folded
    wide: int = 2  # vectors of a piece that has blocks of its own; others are computed with their neighbours
    mean: int = 28  # vectors of a piece, of those of a row: three of 16 70 → 81 µs, of 24 53 → 54, of 32 69 → 63
    costly: int = (
        16  # instructions an element, from which on shorter ones are worth it: vectors across ends compute once
    )
    rolls: bool = False  # of one input: 111 µs folded, 118 piece by piece (16000×5001 bf16)
    least: int = 1 << 20  # elements: what is soon done takes as long as its code, which is loaded from memory first


@dataclass(frozen=True)
class ConcatSharedHeuristics:
    """Rows joined of short parts in shared memory."""

    shared: int = 3 << 10  # bytes that a block joins at least: of 77, 131 and 49 bf16 4 KB 108 µs, 8 KB 111, 16 KB 120
    most: int = 48 << 10  # bytes that a block joins
    bytes_a_thread: int = 32
    threads: int = 128
    most_threads: int = 512
    bytes: int = 2  # of the widest type: elements of wider ones are as fast one by one
    # Vectors of a part, of those of a row: longer ones are computed piece by piece. Of 257 and 257 bf16 71 µs, piece by
    # piece 74, with GELU 85 and 78; of 1001 and 500 both 84; of 77, 131 and 49 with GELU 130 and 130, without 108, 147;
    # of three times 333, stacked, piece by piece 97% of a copy.
    mean: int = 40
    mean_costly: int = 12
    least: int = 1 << 20  # elements


@dataclass(frozen=True)
class TransposeHeuristics:
    """Tiles that are turned in shared memory."""

    tile: int = 64  # elements a side, of 4 bytes; half as many of wider ones
    tile_wide: int = 32
    threads: int = 256
    many_threads: int = 512  # from `many_tiles` tiles a multiprocessor on, where each thread has 32 bytes at least
    many_tiles: int = 8
    thread_bytes: int = 32
    least_extent: int = 16  # loops that short are no transposes, nor is what has fewer elements than `least_elements`
    least_elements: int = 4096
    shared: int = (
        48 << 10
    )  # bytes of shared memory of a block; half of the machine's where that is less than twice as much
    along_reading: int = (
        4  # times as long as the writing loop, up to which blocks follow each other along the reading one
    )


@dataclass(frozen=True)
class InnerOuterHeuristics:
    """Rows with sums over them, in one pass."""

    block: int = 256  # threads of several rows; 128 where each widens more than `widened` elements
    widened: int = 16
    registers: int = 64  # of a thread, of inputs of two turns and of sums
    most_registers: int = 96
    most_per_thread: int = 16
    most_per_thread_long: int = 32  # of long odd rows of half types
    long_threads: int = 256
    stages: tuple[int, ...] = (3, 2, 4, 6)  # -0.3 to -0.7% for other numbers than three; odd rows: two
    stages_odd: tuple[int, ...] = (2, 3, 4, 6)
    left_shared: int = 2048  # bytes of shared memory that two blocks a multiprocessor leave
    beginning: int = (
        6 << 20
    )  # bytes that an H100 reads in the 2 µs that each sum adds to the beginning and end of blocks
    beginning_elements: int = 8  # a share of that where rows are read by elements, by which other kernels lose more


@dataclass(frozen=True)
class ColumnBlockHeuristics:
    """The blocks of columns, case by case: bytes of a row that one reads at a time, threads, and rows a thread has
    under way. What has no reason of its own was the best of those tried ("columns that meet in blocks and clusters or
    stay in shared memory" in ``tried-h100.json``)."""

    line_bytes: int = 128  # of a row that a block of a cluster reads: a line of the cache, or a few (`widen`)
    sector_bytes: int = 64  # the same where columns stay in shared memory, and the least of narrow vectors: two sectors
    most: int = 512  # threads, where they exchange accumulators: two blocks fit a multiprocessor
    largest: int = 1024
    # Gathered: threads along, across, and rows under way, the best first.
    unaligned: tuple[tuple[int, int, int], ...] = ((32, 16, 4), (32, 16, 2))
    unaligned_wide: tuple[tuple[int, int, int], ...] = ((64, 8, 4), (64, 8, 2))
    unaligned_small: tuple[tuple[int, int, int], ...] = ((32, 8, 8), (32, 8, 4), (32, 8, 2))
    unaligned_stacked: tuple[tuple[int, int, int], ...] = ((32, 16, 4), (16, 32, 4))  # of columns above each other
    unaligned_stacked_few: tuple[tuple[int, int, int], ...] = ((32, 16, 2), (16, 32, 2))  # up to `few_stacked` rows
    few_stacked: int = 256
    stacked_waste: float = 1.3
    tried_unaligned: tuple[tuple[int, ...], ...] = ((32, 64, 16), (4, 8, 16, 32), (4, 8, 2))
    unaligned_waste: float = 1.25  # threads along a row, of those that have a column, at most
    # One block for all of a column.
    many_threads: int = 128  # of many columns
    many_threads_long: int = 256  # from `many_rows` rows on where multiprocessors have fewer than 128 vectors each
    many_rows: int = 64
    many_vectors: int = 128
    along: int = 16  # threads along a row, of few columns: others read the next columns
    rows_a_thread: int = 4  # of few rows, in one turn
    least: int = 128
    in_flight: int = 8  # rows, of many
    # Folded rows in parts: with few accumulators, and with many.
    coalesced_threads: tuple[int, int] = (256, 128)
    coalesced_along: tuple[int, int] = (32, 16)
    coalesced_along_short: tuple[int, int] = (16, 8)
    coalesced_long: tuple[int, int] = (2048, 600)  # vectors of a folded row from which on it is long
    # Parts of columns.
    # Of a row: few parts are left to be added up. And of all inputs under way with many accumulators, at most: eight
    # rows of batch norm's three leave registers for one block of 256 threads.
    partial_bytes: int = 256
    partial_threads: int = 256
    partial_rows: int = 8  # under way with many accumulators
    partial_rows_bytes: int = 64  # under way, of a thread, with few: 4 to 16 rows
    large_work: int = 2 << 20  # vectors from which on parts that run at once have `most` threads
    work: int = 1 << 20  # and parts that wait for others, or from `iterations` turns on
    iterations: int = 16
    # What a thread has under way, in bytes.
    bytes_little: int = 32
    bytes_usual: int = 64
    bytes_much: int = 128  # from `much` bytes of work on
    much: int = 12 << 20
    written_registers: int = 16  # elements under way where something is made of all of them
    # Where they are written: all blocks run at once, three a multiprocessor, for which there are registers. GELU's
    # gradient and its sum, 16384×6144 bf16 279 → 222 µs; SiLU's, 65536×770 bf16 by a power of two of parts 72% of a
    # copy, 85 by as many as fill it; 8192×4097 f32 80 → 92.
    written_threads: int = 256
    written_bytes: int = 64  # of all inputs under way, of a thread
    written_wide: int = 32  # elements of all inputs, with many accumulators
    # Positions take instructions: many small blocks. argmax down 16384×5001 f32 164 → 134 µs, 8192×8192 bf16 79 → 65;
    # of fewer strips no matter.
    position_threads: int = 128
    position_blocks: int = 32
    # In a cluster.
    cluster_lanes: tuple[int, int] = (4, 8)  # lanes times inputs up to which 8 and 4 rows are under way, else 2
    cluster_several: int = 256  # threads with several accumulators
    cluster_wide_rows: int = 2048  # rows a block up to which wide vectors have a warp's worth of rows, at most
    cluster_range: tuple[float, float] = (0.5, 3)  # blocks a multiprocessor that are worth trying
    # In registers.
    in_registers_along: int = 8  # threads along: 128 bytes of a row; of half types half as many
    in_registers_rows: int = 512  # rows times threads along, where rows are few
    in_registers_iteration: int = 16  # rows of a thread
    in_registers_few_iterations: tuple[int, int] = (
        4,
        8,
    )  # of narrow vectors and few columns, up to and from `in_registers_few` rows on
    in_registers_few: int = 128
    in_registers_blocks: tuple[float, float] = (
        1.5,
        0.5,
    )  # blocks a multiprocessor for a warp along a row, and for fewer
    # In shared memory, of a multiprocessor's: the share of a block.
    copied_threads: int = 256
    copied_share: float = 2 / 7  # three blocks, with what else they need
    copied_share_cluster: float = 3 / 7  # two, where a cluster has `copied_cluster` blocks or more
    copied_share_few: float = 1 / 7  # seven, of few columns
    copied_cluster: int = 4


@dataclass(frozen=True)
class ColumnHeuristics:
    """Columns ("columns that meet in blocks and clusters or stay in shared memory" in ``tried-h100.json``: 730 sizes,
    up to 60 sets of parameters each)."""

    coalesced_rows_least: int = 64  # folded rows, of `coalesced_least` rows at least, that a second kernel is worth
    coalesced_least: int = 512
    coalesced_many: int = 8 << 20  # elements of which a quarter as many folded rows are
    in_registers: int = 32  # elements of columns that a thread keeps in registers
    iteration_registers: int = 48  # of a turn's rows and of accumulators before and after
    few_rows: int = 512  # rows of few columns that are soon read by what blocks there are
    some_rows: int = 1024  # the same, with little to do or blocks for `some_share` of the multiprocessors
    some_work: int = 4096
    some_share: int = 5
    little: int = 256 << 10  # vectors in all that leave multiprocessors idle: many small blocks, few parts to finish
    many_rows: int = (
        256  # up to so many rows, and `many_columns` vectors of columns a multiprocessor: few threads share one
    )
    many_columns: int = 32  # 32×131072 bf16: 11.8 → 8.0 µs
    filled: float = 0.9  # share of the multiprocessors with a block from which on parts cost more than they help
    met: float = 0.6  # share that gathers odd rows in blocks: sum of 256×50257 bf16 17.6 → 14.5 µs
    met_few: float = 0.25  # of 257 to 512 rows
    met_rows: int = 64  # rows of columns above each other: 2048×64×333 f32 74 → 67 µs, 64×1000×333 f32 52 → 40
    met_wide: float = 1.5  # blocks of 64 threads along columns, from so many a multiprocessor on
    cluster_bytes: int = 128 << 20  # up to here parts meet in clusters: sum of 512×768 bf16 7.1 → 5.3 µs
    cluster_accumulators: int = 12  # lanes times accumulators of a thread
    cluster_long: int = 1024  # rows up to which clusters need columns for fewer than `cluster_alone` of the machine
    cluster_alone: float = 0.4
    cluster_least: float = 0.7  # of the multiprocessors have a block of them at least, three at most
    cluster_most: float = 3
    partials: float = 0.375  # of the machine's threads for parts, which all run at once: 131072×257 bf16 43 → 34 µs
    # The same of vectors of 8 bytes, whose threads have 64 registers: GELU's gradient and its sum, 16384×6144 bf16
    # 229 → 219 µs, 30000×3072 f16 213 → 202.
    narrow_partials: float = 0.5
    coalesced_partials: float = 0.27
    # The same with many accumulators and an output of each element: a block a multiprocessor, whose threads have 128
    # registers. The gradients of a layer's scale and bias, 401408×96, of f32 and bf16, on an H200: 520 → 148 µs, which
    # blocks of 256 threads with eight rows each spilled.
    written_partials: float = 0.25
    written_rows: int = 128  # rows of few columns that are written from which on they are in parts
    few_accumulators: int = 8  # lanes times accumulators up to which large blocks exchange little
    shared_least_16bit: int = 257  # rows from which on columns belong into a cluster's shared memory, of half types
    shared_least: int = (
        513  # of float32, and of half types with exponentials, of those up to `shared_most_exponentials`
    )
    shared_most_exponentials: int = 1024  # more are faster in stages: exponentials take longer than reading once more
    shared_few: float = 1.5  # blocks a multiprocessor below which columns are few, and seven blocks shall fit one
    shared_rows_least: int = (
        32  # rows from which on stages are worth trying, from `shared_rows_long` on whatever the columns
    )
    shared_rows_long: int = 1024  # columns standardized, 262144×256 f32: 17774 → 294 µs
    blocks: ColumnBlockHeuristics = field(default_factory=ColumnBlockHeuristics)


@dataclass(frozen=True)
class ScatterAddHeuristics:
    """Values that are added to rows: wide ones are added up by threads of their own, once six kernels have sorted the
    values. Pairs: of what is added up in its own type, and of narrower types, whose 32-bit sums in memory cost more."""

    row_bytes: tuple[int, int] = (192, 128)  # 1000000×48 f32 310 → 252 µs, 131072×64 bf16 50 → 34, ×32 24 → 28
    least_bytes: tuple[int, int] = (28 << 20, 6 << 20)  # of all values: 8192×770 f32 33 → 36, 4096×512 f16 15 → 15
    few: int = 4096  # elements of a result, which blocks add up in shared memory: 1000000→10×64 f32 394 → 165 µs
    rows_a_value: int = 8  # more rows than so many a value are looked at for nothing, where sums lie in the result
    threads: int = 128
    chunk: int = 64  # values that are added one after the other: 128 takes twice as long where few rows have most
    items_per_thread: int = 4  # of them that are loaded at a time, or fewer:
    in_flight: int = 8  # vectors of a thread that are loaded at a time, half of 64 bits: 16384×8191 bf16 260 → 230 µs
    most_across: int = 9  # vectors of a thread along a row
    registers: int = 16  # of a thread's sums: 4096×2048 f32, 32 of them 41 µs, 16 36


@dataclass(frozen=True)
class GpuHeuristics:
    access: AccessHeuristics = field(default_factory=AccessHeuristics)
    rows: RowHeuristics = field(default_factory=RowHeuristics)
    columns: ColumnHeuristics = field(default_factory=ColumnHeuristics)
    pointwise: PointwiseHeuristics = field(default_factory=PointwiseHeuristics)
    concat_shared: ConcatSharedHeuristics = field(default_factory=ConcatSharedHeuristics)
    concat: ConcatHeuristics = field(default_factory=ConcatHeuristics)
    transpose: TransposeHeuristics = field(default_factory=TransposeHeuristics)
    inner_outer: InnerOuterHeuristics = field(default_factory=InnerOuterHeuristics)
    scans: ScanHeuristics = field(default_factory=ScanHeuristics)
    scatter_add: ScatterAddHeuristics = field(default_factory=ScatterAddHeuristics)


SM_90 = GpuHeuristics()
HEURISTICS: dict[int, GpuHeuristics] = {90: SM_90}  # by architecture


def heuristics_of(properties: DeviceProperties) -> GpuHeuristics:
    """The model that was fitted to a machine's architecture, or else that of sm_90."""
    return HEURISTICS.get(properties.architecture, SM_90)
