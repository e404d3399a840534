"""What the choices of scans go by, for :mod:`mlirfuse.schedule.gpu.heuristics`: thresholds with names, and the
measurement behind each."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class StripedScanHeuristics:
    """Rows whose elements go through shared memory: what they take there limits how many are under way."""

    threads: int = 128  # of a row: three times as many have 15% less
    elements: int = 32  # numbers of states of a thread in a turn of a long row
    reduced: int = 20  # of a row that is reduced first, so that registers hold it
    short: int = 16  # of a short row's, where a row has fewer threads
    few: int = 7  # of a lane of a warp, up to whole warps: 806451×31 f32 210 → 72 µs, 196850×127 bf16 65 → 44
    alone: int = 4  # of a row that a thread has alone: 5000000×5 bf16 61 → 51, 1666666×15 251 → 46
    block: int = 64  # threads of several rows
    block_of_few: int = 128  # the same where a thread has few elements: 757575×33 bf16 61 → 47
    # Threads of a multiprocessor that long rows shall have, if up to ``alone`` a row make as many: 16×8191 bf16
    # 7.0 → 5.8 µs, softplus before a sum 500×60001 bf16 129 → 105.
    busy: int = 512
    wide: int = 8  # elements of such a row's threads, if it is longer than a turn of short ones: 256×50257 f16 46 → 33
    costly: int = 8  # elements of long rows that take many instructions: softplus 8192×5121 bf16 441 → 126 µs


@dataclass(frozen=True)
class ChainedScanHeuristics:
    """Few long rows, or columns, whose turns are blocks of their own."""

    block: int = 512  # threads along a row: 12×2500000 f32 125 µs, 137 with half of the elements, 123 and 158 with 256
    elements: int = 32  # numbers of states of a thread's turn
    striped: int = 256  # threads along an odd row: 7×3000001 f32 93 µs, 115 with 512 and half of the elements
    iterations: int = 4  # of a row, at least: links take as long as some


@dataclass(frozen=True)
class ChainedColumnHeuristics:
    """Strips of columns whose turns are blocks of their own, each of ``ColumnScanHeuristics.block`` threads, a warp
    wide. Of 13 sizes they are 3% slower than the best of 12 to 67 candidates each; what was chosen before, 18%."""

    # Columns of a thread: 65536×512 bf16 67 µs, 71 with 4; one where there are no 64, or states are pairs.
    lanes: int = 2
    idle: float = 1.1  # times the threads that vectors of one column leave idle, at most: 262144×96 bf16 61 → 55 µs
    few: int = 1024  # rows, at least, where there are too few strips to go down: the words are emptied first, 3 µs
    many: int = 2048  # where there are enough: 5000×6144 f32 92 µs, 104 by strips; 1024×8191 bf16 no matter
    # Elements of a thread's turn where few columns, at least so many, are one chain of at least so many blocks for each
    # multiprocessor: 2500000×12 f32 138 → 114 µs, 2000000×24 f16 224 → 124, 1000000×31 f32 125 → 106, 131072×32 bf16
    # 22 → 16; of pairs as well, a recurrence of 400000×24 f32 83 → 66. Sums by 64 take 270 ms to compile. No more bytes
    # of a row of threads.
    tall: int = 32
    tall_bytes: int = 4 << 10
    tall_columns: int = 5
    tall_blocks: int = 1
    # Columns a multiprocessor below which strips of single columns have turns twice as high: 700000×40 f32 113 → 102
    # µs; of odd rows, if elements are short: 193798×129 bf16 77 → 68.
    tall_strips: float = 8


@dataclass(frozen=True)
class UnalignedColumnScanHeuristics:
    """Strips of columns of rows that are not aligned for vectors, of 40 sizes with up to 24 candidates each. Where each
    multiprocessor has several strips a thread has several columns: 1024×50257 bf16 119 → 98 µs, f32 204 → 173,
    700×150001 f32 437 → 366. Others are chained: 131072×257 bf16 111 → 96, 8192×9999 bf16 194 → 169."""

    least: int = 256  # elements of a column, at least, to count as such
    vectors_per_thread: int = 4  # columns of a thread, or half as many where strips are then too few
    enough: float = 1.75  # strips a multiprocessor; for the more columns so many for each number of an element's states
    warps: int = 36  # of all strips of a multiprocessor
    together: int = 16  # strips of a multiprocessor that are under way at once, at most; more have as many warps as
    beyond: int = 8
    bytes: int = 32  # of a thread's turn; half of them where elements are short and strips are not few
    few: float = 3.5  # strips a multiprocessor, at most, to count as such
    short: int = 2  # bytes of an element, at most, to count as such
    rows: int = 2  # of a thread's turn, at least
    iteration: int = (
        256  # rows of a linked one where there are fewer strips, a warp wide, than multiprocessors, else half
    )


@dataclass(frozen=True)
class ColumnScanHeuristics:
    """Columns: strips of neighbouring ones, each of which a block goes down. Narrow ones make more blocks, and each of
    those reads memory in shorter pieces."""

    strips: tuple[int, ...] = (256, 128, 64, 32)  # bytes of a row of a strip, the widest of which there are enough
    enough: float = 1.5  # blocks a multiprocessor
    least: float = 0.9  # of the narrower ones, where no width has enough
    many: float = 6  # whose blocks have fewer threads
    narrow: int = 64  # bytes, and less: strips whose threads have ``word`` bytes of a row, those of others ``pair``
    word: int = 4
    pair: int = 8
    # Elements of a thread's turn for each column, half of odd rows, whose states are a number or a pair of 32 bits.
    # Pairs, twice as many as before: logcumsumexp 5000×6144 f32 144 → 110 µs, 100000×128 bf16 69 → 48, a recurrence
    # 5000×6144 f32 156 → 137, 100000×128 bf16 70 → 56, 1024×8192 31 → 26.
    rows: int = 16
    threads: int = 256  # of blocks of short columns of which there are few
    block: int = 512  # threads of linked blocks, and of odd rows at most
    in_flight: tuple[int, int, int] = (16 << 10, 32 << 10, 64 << 10)  # bytes of a block: of many, of enough, of few
    chained: ChainedColumnHeuristics = field(default_factory=ChainedColumnHeuristics)
    odd: UnalignedColumnScanHeuristics = field(default_factory=UnalignedColumnScanHeuristics)


@dataclass(frozen=True)
class ScanHeuristics:
    """Scans, as measured on an H100 with candidates of rows and columns of many lengths, in f32 and bf16."""

    elements: int = 16  # numbers of states of a thread's turn along a row: as many as `RowRegisterHeuristics.usual`
    block: int = 256  # threads of a long row: eight such, each with 16 KB under way, fill a multiprocessor
    alone: int = 512  # threads of a row where there are few: more have few registers each
    few: int = 2  # rows a multiprocessor, less than which are few: 256×131072 f16 63 → 51 µs, f32 98.5 → 98.1
    short_block: int = 128  # threads of a block of several rows
    vector: int = 4  # bytes of vectors along a row, at least: of narrower ones elements are striped
    # Instructions of an element besides its scans, or of a scan, from which on the last turn of a row shall be full:
    # logcumsumexp 8192×5120 bf16 142 → 122 µs; so shall that of scans whose states are several numbers.
    costly: int = 16
    costly_scan: int = 100
    # Such a scan's vectors have so many elements at least, but for whole ones of 16 bytes, or those are striped:
    # 4096×770 f32 16.1 → 13.4 µs.
    lanes: int = 4
    # Bytes of an element, at most, to be short. Of such that take many instructions besides scans a thread has half as
    # many: softplus before a sum 8192×5120 bf16 101 → 91 µs. Of others it has all of `elements` in a long row's turns,
    # whatever their states: logcumsumexp 1000×40000 f16 89 → 73, a recurrence of 500×60000 bf16 74 → 69.
    short: int = 2
    striped: StripedScanHeuristics = field(default_factory=StripedScanHeuristics)
    chained: ChainedScanHeuristics = field(default_factory=ChainedScanHeuristics)
    columns: ColumnScanHeuristics = field(default_factory=ColumnScanHeuristics)
