"""Fields of the heuristics of GPU scans, each with the measurement behind it; see :mod:`.heuristics`."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlirfuse.schedule.gpu.tuning.scaled import Scale, scaled


@dataclass(frozen=True)
class StripedScanHeuristics:
    """Rows whose elements are exchanged through shared memory, whose size limits how many are in flight."""

    threads: int = 128  # per row: three times as many have 15% less bandwidth
    elements: int = 32  # state components per thread and iteration of a long row
    reduced: int = 20  # the same for rows that are reduced first, so that registers hold them
    short: int = 16  # the same for short rows, which have fewer threads
    few: int = 7  # per lane, for at most a warp per row: 806451×31 f32 210 → 72 µs, 196850×127 bf16 65 → 44
    alone: int = 4  # of a row with one thread: 5000000×5 bf16 61 → 51 µs, 1666666×15 251 → 46
    block: int = 64  # threads per block of several rows
    block_of_few: int = 128  # the same if threads have few elements: 757575×33 bf16 61 → 47 µs
    # Threads per multiprocessor for long rows, if at most ``alone`` threads per row suffice for that: 16×8191 bf16 7.0
    # → 5.8 µs, softplus before a sum 500×60001 bf16 129 → 105.
    busy: int = scaled(512, Scale.SM_THREADS)
    wide: int = 8  # elements of such threads, if rows exceed an iteration of short ones: 256×50257 f16 46 → 33 µs
    costly: int = 8  # elements of long rows with many instructions: softplus 8192×5121 bf16 441 → 126 µs


@dataclass(frozen=True)
class ChainedScanHeuristics:
    """Few long rows or columns: chained scans, with a block per iteration."""

    block: int = 512  # threads along a row: 12×2500000 f32 125 µs, 137 with half of the elements, 123 and 158 with 256
    elements: int = 32  # state components per thread and iteration
    striped: int = 256  # threads along an odd row: 7×3000001 f32 93 µs, 115 with 512 and half of the elements
    iterations: int = 4  # least per row: a step of the chain takes as long as several


@dataclass(frozen=True)
class ChainedColumnHeuristics:
    """Chained scans of strips of columns, with a block of ``ColumnScanHeuristics.block`` threads per iteration, a warp
    wide. For 13 sizes they are within 3% of the best of 12 to 67 candidates each."""

    # Columns per thread: 65536×512 bf16 67 µs, 71 with 4; one if there are fewer than 64 columns, or states are pairs.
    lanes: int = 2
    idle: float = 1.1  # most idle threads, relative to those with vectors of one column: 262144×96 bf16 61 → 55 µs
    few: int = 1024  # least rows, if there are too few strips for an unchained scan: clearing the words takes 3 µs
    many: int = 2048  # the same if there are enough strips: 5000×6144 f32 92 µs, 104 unchained; 1024×8191 bf16 equal
    # Elements per thread and iteration for a single chain of at least ``tall_columns`` columns and ``tall_blocks``
    # blocks per multiprocessor: 2500000×12 f32 138 → 114 µs, 2000000×24 f16 224 → 124, 1000000×31 f32 125 → 106,
    # 131072×32 bf16 22 → 16; also for pairs, a recurrence of 400000×24 f32 83 → 66. Sums by 64 take 270 ms to compile.
    tall: int = 32
    tall_bytes: int = 4 << 10  # most bytes of a row of threads
    tall_columns: int = 5
    tall_blocks: int = 1
    # Columns per multiprocessor below which strips of single columns have iterations of twice the rows: 700000×40 f32
    # 113 → 102 µs; for odd rows, if elements are short: 193798×129 bf16 77 → 68.
    tall_strips: float = 8


@dataclass(frozen=True)
class UnalignedColumnScanHeuristics:
    """Strips of columns of rows that are not aligned for vectors, for 40 sizes with up to 24 candidates each. If each
    multiprocessor has several strips, a thread has several columns: 1024×50257 bf16 119 → 98 µs, f32 204 → 173,
    700×150001 f32 437 → 366. Others are chained: 131072×257 bf16 111 → 96, 8192×9999 bf16 194 → 169."""

    least: int = 256  # least elements of a column
    vectors_per_thread: int = 4  # columns per thread; half as many if there were too few strips
    # Strips per multiprocessor; multiplied by an element's state components for all columns per thread.
    enough: float = 1.75
    warps: int = 36  # of all strips of a multiprocessor
    together: int = 16  # most strips of a multiprocessor that are resident at once; beyond that each has `beyond` warps
    beyond: int = 8
    bytes: int = 32  # per thread and iteration; half as many for short elements and many strips
    few: float = 3.5  # strips per multiprocessor up to which they are few
    short: int = 2  # bytes of an element up to which it is short
    rows: int = 2  # least rows per thread and iteration
    iteration: int = 256  # rows of a chained iteration with fewer strips of a warp than multiprocessors, else half


@dataclass(frozen=True)
class ColumnScanHeuristics:
    """Strips of neighbouring columns, each scanned by one block. Narrow strips make more blocks, but each reads memory
    in shorter contiguous ranges."""

    strips: tuple[int, ...] = (256, 128, 64, 32)  # bytes of a strip's row; the widest with enough blocks is chosen
    enough: float = 1.5  # blocks per multiprocessor
    least: float = 0.9  # the same for narrower strips, if no width has enough
    many: float = 6  # blocks per multiprocessor from which on they have fewer threads
    narrow: int = 64  # bytes of a strip's row up to which threads have ``word`` bytes of it, else ``pair``
    word: int = 4
    pair: int = 8
    # Elements per thread, iteration and column (half for odd rows), for states of one component or of a pair of 32
    # bits. Pairs: logcumsumexp 5000×6144 f32 144 → 110 µs, 100000×128 bf16 69 → 48, a recurrence 5000×6144 f32 156 →
    # 137, 100000×128 bf16 70 → 56, 1024×8192 31 → 26.
    rows: int = 16
    threads: int = 256  # per block of a few short columns
    block: int = 512  # threads per chained block, and at most for odd rows
    in_flight: tuple[int, int, int] = (16 << 10, 32 << 10, 64 << 10)  # bytes per block, with many blocks, enough, few
    chained: ChainedColumnHeuristics = field(default_factory=ChainedColumnHeuristics)
    odd: UnalignedColumnScanHeuristics = field(default_factory=UnalignedColumnScanHeuristics)


@dataclass(frozen=True)
class ScanHeuristics:
    """Scans, measured on an H100 with candidates for rows and columns of many lengths, in f32 and bf16."""

    elements: int = 16  # state components per thread and iteration of a row, the same as `RowRegisterHeuristics.usual`
    block: int = 256  # threads per long row: eight such blocks, each with 16 KB in flight, fill a multiprocessor
    alone: int = 512  # threads per row if rows are few: more have few registers each
    few: int = 2  # rows per multiprocessor below which they are few: 256×131072 f16 63 → 51 µs, f32 98.5 → 98.1
    short_block: int = 128  # threads per block of several rows
    vector: int = 4  # least bytes of vectors along a row: for narrower ones elements are striped
    # Instructions per element, besides its scans or of a scan, from which on the last iteration of a row should be
    # full, as for scans with several state components: logcumsumexp 8192×5120 bf16 142 → 122 µs.
    costly: int = 16
    costly_scan: int = 100
    # Least vector width of expensive scans, except for vectors of 16 bytes; narrower ones are striped: 4096×770 f32
    # 16.1 → 13.4 µs.
    lanes: int = 4
    # Bytes up to which an element is short. With many instructions besides scans, a thread has half as many of those:
    # softplus before a sum 8192×5120 bf16 101 → 91 µs. Otherwise it has all of `elements` in the iterations of a long
    # row, whatever their states: logcumsumexp 1000×40000 f16 89 → 73, a recurrence of 500×60000 bf16 74 → 69.
    short: int = 2
    striped: StripedScanHeuristics = field(default_factory=StripedScanHeuristics)
    chained: ChainedScanHeuristics = field(default_factory=ChainedScanHeuristics)
    columns: ColumnScanHeuristics = field(default_factory=ColumnScanHeuristics)
