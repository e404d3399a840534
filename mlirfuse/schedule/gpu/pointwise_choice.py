"""The choice of parameters for pointwise segments on a GPU, see :mod:`mlirfuse.schedule.gpu.pointwise`.

Blocks have 512 threads along the columns; 256 if there is little work or that leaves fewer threads idle, or along
several rows if there are few columns. Threads have several vectors if vectors are short and there is work for all
threads, or if L2 holds much of the data and the kernel is latency-bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size
from mlirfuse.schedule.gpu.access import (
    WIDEST,
    access_of,
    hint_of,
    known_multiples,
    moved,
    narrowed,
    of_slices,
    widened,
)
from mlirfuse.schedule.gpu.scheduler import WARP
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.gpu.windows import of_window, read_at_once, rows_read, unaligned_reads
from mlirfuse.schedule.scheduler import SizedCall, power_from, power_to
from mlirfuse.schedule.tiling import Access, Tiling


class Rows(NamedTuple):
    """``row_segments``: the rows are coalesced to so many segments, of each of which a thread takes a vector at the
    same offset (0: not coalesced). ``runs``: if none of a thread's vectors crosses a row boundary, elements that
    several of its vectors need are loaded once, in loads of so many elements. ``ragged``: the last vector of all
    elements is partial."""

    row_segments: int = 0
    runs: int = 0
    ragged: bool = False


def tiling(access: Access, tx: int, ty: int, vectors: int, rows: int, own: Rows | None = None) -> Tiling:
    """Parameters with ``tx`` threads along columns and ``ty`` along rows, each with ``vectors`` of each of ``rows``."""
    return Tiling("pointwise", access, tx, ty, vectors, rows, own=own or Rows())


class PointwiseOfSize:
    """Parameters for a segment at some sizes. ``folds``: vectors may cross row boundaries, and the last vector may be
    partial."""

    def __init__(self, analysis: Analysis, call: SizedCall, folds: bool):
        self.analysis, self.call, self.properties = analysis, call, call.properties
        self.heuristics = heuristics = heuristics_of(call.properties).pointwise
        self.cached = sum(moved(analysis, call)) < heuristics_of(call.properties).access.staying
        self.device_threads = call.properties.sm_count * call.properties.threads_per_sm
        self.spread = self.device_threads // heuristics.spread
        self.access = access_of(analysis, True, call, hint_of(analysis, call))
        self.columns, self.rows = analysis.values(extents_of, call.sizes, 0)
        self.row = self.columns  # elements of a row before coalescing
        self.window = bool(analysis.pinned) and analysis.once(unaligned_reads) > 1
        self.at_once = (read_at_once(analysis, call) or 1) if self.window else 0
        self.least = min((analysis.stored(v).bytes for v in analysis.inputs), default=1)
        self.row_segments, self.ragged, self.runs = 0, False, 0
        under, self.odd = self._reads_several_rows()
        if folds and (self.columns % 8 or self.window) and not under:
            self._coalesce()
        if not self.row_segments:
            elements = self.columns * self.rows
            self.access = _narrowed(analysis, self.access, elements, self.spread, heuristics.least_bytes)
        if under and self.window:
            self._widen()

    @property
    def vectors(self) -> int:
        """Vectors of a row, or of the coalesced rows."""
        return -(-self.columns // self.access.lanes)

    def _reads_several_rows(self) -> tuple[bool, bool]:
        """Whether a thread's vectors should be below each other, as each input row is read for several output rows, and
        whether that would be so but for an odd row length, with which rows would be written element by element."""
        analysis, heuristics = self.analysis, self.heuristics
        read_rows = analysis.once(rows_read) if analysis.pinned else 1
        under = read_rows > 1 and self.columns * self.rows >= heuristics.rows_shared
        odd = under and self.columns % 2 == 1 and self.columns >= heuristics.long_under and read_rows <= 3
        odd = odd and self.at_once >= heuristics.at_once and self.least <= 4
        odd = odd and analysis.once(unaligned_reads) > read_rows
        return under and not odd, odd

    def _coalesce(self) -> None:
        """Coalesce rows if that gives wider vectors."""
        found = coalesced(self.analysis, self.access, self.call, self.heuristics.coalesced)
        if found is None or (found[2] and self.columns * self.rows < found[1].lanes * self.spread):
            return  # fetching the code for the last elements of ragged rows takes longer than vectors save
        self.row_segments, self.access, self.ragged = found
        self.columns, self.rows = self.analysis.values(extents_of, self.call.sizes, 1)

    def _widen(self) -> None:
        """Use wider vectors for slices, whose elements are loaded in runs, if they leave few threads idle."""
        heuristics, wide = self.heuristics, of_slices(self.analysis, self.access, self.call)
        lanes = min(wide.lanes, heuristics.lanes_under) if wide else 1
        if wide and lanes > self.access.lanes and _busy(-(-self.columns // lanes)):
            self.access = narrowed(self.analysis, wide, lanes)
            self.runs = max(1, min(self.at_once, heuristics.bytes_under // self.least))

    def params(self, threads: int, wanted: int) -> Tiling:
        """Blocks of ``threads`` threads, each with up to ``wanted`` vectors as long as the device stays full."""
        vectors, rows = self.vectors, self.rows
        tx = threads if vectors >= threads else 1 << max(0, vectors - 1).bit_length()
        # No two threads have the same element: one that overwrites an argument is read only once.
        ty = threads // tx if rows > 1 else 1
        full = self.properties.sm_count * (self.properties.threads_per_sm // threads)
        across, down = 1, 1
        while across * down < wanted:
            if tx == threads and vectors >= tx * across * 2 and vectors * rows // (threads * across * 2) >= full:
                across *= 2
            elif tx < threads and rows // (ty * down * 2) >= full:
                down *= 2
            else:
                break
        return tiling(self.access, tx, ty, across, down, Rows(min(self.row_segments, 1), self.runs, self.ragged))

    def _choice(self) -> Tiling:
        """The choice among those with at most one segment of rows. Rows and vectors that share no loads give a thread
        more of them in flight: elements that are computed of many need one vector of one row."""
        found = self._for_bytes_in_flight()
        if self.analysis.pinned and not found.own.runs:
            most = power_to(max(1, self.heuristics.most_loads // self.analysis.once(_loads)))
            rows = min(found.rows_per_thread, most)
            vectors = max(1, min(found.vectors_per_thread, most // rows))
            return found._replace(rows_per_thread=rows, vectors_per_thread=vectors)
        return found

    def _for_bytes_in_flight(self) -> Tiling:
        """The choice by the bytes that a thread loads, whatever it computes of them."""
        analysis, heuristics = self.analysis, self.heuristics
        if self.row_segments and analysis.pinned:
            return self._of_coalesced_views()
        first = self._usual()
        if self.row_segments:
            return first
        if analysis.pinned and first.vectors_per_thread < heuristics.most_vectors:
            wide = analysis.once(_written) * self.access.lanes >= WIDEST
            if self.cached and wide and analysis.once(_most_concatenated) > 1:
                few = self.params(heuristics.small_block // 2, 1)
                return self._of_several_vectors(few)
            return self._of_several_rows(first)
        if analysis.once(_column_share) >= heuristics.shared:
            return self._that_share_columns(first)
        return first

    def _usual(self) -> Tiling:
        """The choice for a segment without remapped indices."""
        heuristics, vectors = self.heuristics, self.vectors
        rows_a_thread = heuristics.cached_rows[len(self.analysis.inputs) == 1] if self.cached else 1
        if vectors < heuristics.several_rows:  # a block spans rows
            return self.params(self._threads(), rows_a_thread)
        most = heuristics.most_vectors, heuristics.in_flight
        return self.params(self._threads(), self.analysis.once(_vectors_a_thread, self.access.lanes, *most))

    def _threads(self) -> int:
        """Threads per block."""
        vectors, large, small = self.vectors, self.heuristics.block, self.heuristics.small_block
        few = vectors * self.rows < self.device_threads
        if vectors < self.heuristics.several_rows or few or -(-vectors // large) * 2 > -(-vectors // small):
            return small
        return large

    def _of_coalesced_views(self) -> Tiling:
        """The choice for coalesced rows with remapped indices. Sets the vector width and the length of runs."""
        analysis, heuristics, elements = self.analysis, self.heuristics, self.columns * self.rows
        busy = elements >= self.access.lanes * self.spread  # many threads have a vector as wide as memory allows
        several = self._lanes_of_window(busy) if self.window else self._lanes_of_elements()
        alone = self.row == self.columns or self.row % self.access.lanes == 0  # no vector crosses a row boundary
        if self.window and (alone or (busy and self.row >= heuristics.run)):
            self.runs = min(self.at_once, heuristics.at_once)
        if self.runs and self.odd and self.least == 4:
            several, self.runs = heuristics.of_three_rows
        if elements < self.spread * heuristics.soon:
            several, self.runs = 1, 0  # the time of short kernels is dominated by fetching their code
        written = self.access.lanes * analysis.once(_written)
        in_flight = max(1, min(heuristics.most_vectors, heuristics.in_flight // written))
        first = self.params(heuristics.small_block // 2, 1 if several else in_flight)
        across = several if several and self.vectors >= first.tx * several else first.vectors_per_thread
        self.row_segments, first = 1, first._replace(vectors_per_thread=across)
        if self.cached and not self.window:
            return self._of_several_vectors(first)
        return first

    def _lanes_of_elements(self) -> int:
        """Narrow vectors whose elements are read one by one, which few threads would do slowly. Returns 0: any number
        of vectors per thread."""
        least_threads = self.device_threads // self.heuristics.spread_coalesced
        elements = self.columns * self.rows
        fewer = [n for n in (4, 2) if n < self.access.lanes and elements <= n * least_threads]
        if fewer:
            self.access = narrowed(self.analysis, self.access, fewer[-1])
        self.ragged = self.ragged and self.columns % self.access.lanes != 0
        return 0

    def _lanes_of_window(self, busy: bool) -> int:
        """Narrow vectors of windows. Returns the vectors per thread (0: any number)."""
        row = 0 if self.row == self.columns else self.row
        lanes, several = of_window(self.access.lanes, row, busy, self.least, self.heuristics)
        if lanes < self.access.lanes:
            aligned = self.row % lanes == 0
            known = known_multiples(self.analysis, lanes, self.call) if aligned else frozenset()
            self.access = narrowed(self.analysis, self.access, lanes)._replace(multiples=known)
            self.ragged = self.columns % lanes != 0
        return several

    def _resident(self, tx: int, ty: int) -> int:
        """The blocks that the device holds at once."""
        return self.properties.sm_count * (self.properties.threads_per_sm // (tx * ty))

    def _rows_a_thread(self, tx: int, ty: int, vectors: int, most: int) -> int:
        """Rows per thread, at most ``most``, as long as the device stays full; ``vectors`` are those of a row."""
        down = 1
        while down * 2 <= most and -(-vectors // tx) * (self.rows // (ty * down * 2)) >= self._resident(tx, ty):
            down *= 2
        return down

    def _of_several_vectors(self, p: Tiling) -> Tiling:
        """``p`` with more vectors per thread, as long as every multiprocessor has blocks. A thread loads from all
        operands of a concatenation, and these loads are in flight together."""
        heuristics, vectors, rows = self.heuristics, self.vectors, self.rows
        most = vectors * rows // (p.tx * p.ty * heuristics.blocks_joined * self.properties.sm_count)
        most = power_to(max(1, min(most, heuristics.most_vectors)))
        down = min(max(1, most // 2), power_to(max(1, rows // p.ty)))
        across = min(most // down, power_to(max(1, vectors // p.tx)))
        return p._replace(vectors_per_thread=max(across, p.vectors_per_thread), rows_per_thread=down)

    def _of_several_rows(self, p: Tiling) -> Tiling:
        """``p``, or, if remapped rows allow only narrow vectors, parameters with several adjacent rows per thread.
        Those have enough bytes in flight, share values that depend only on the column, and load elements that adjacent
        rows have in common once. The number of threads along a row is chosen to leave few of them idle."""
        analysis, heuristics, lanes = self.analysis, self.heuristics, p.access.lanes
        columns, rows, read, elements = analysis.values(_work, self.call.sizes)
        wide = lanes * analysis.once(_written) >= WIDEST
        operands = analysis.once(_most_concatenated)
        if operands > 1 and wide:
            return self._of_aligned_operands(p)
        if wide or lanes * read >= heuristics.in_flight * max(elements, 1):
            return p
        vectors, runs = -(-columns // lanes), p.own.runs
        threads = heuristics.small_block // 2 if runs and self.least < 4 else heuristics.small_block
        most = min(threads, power_from(vectors))
        idle = {tx: -(-vectors // tx) * tx / vectors for tx in (most, most // 2, most // 4, most // 8) if tx >= WARP}
        fewest = min(idle, key=lambda tx: idle[tx], default=most)
        tx = next((tx for tx, share in idle.items() if share <= heuristics.idle), fewest)
        ty = threads // tx if rows > 1 else 1
        in_flight = heuristics.in_flight_concat if operands > 1 else heuristics.in_flight
        most_rows = heuristics.most_rows // lanes if runs else heuristics.most_rows
        wanted = min(most_rows, round(in_flight * elements / max(1, lanes * read * operands)))
        down = self._rows_a_thread(tx, ty, vectors, wanted)
        more = runs or down > p.vectors_per_thread * p.rows_per_thread
        return p._replace(tx=tx, ty=ty, vectors_per_thread=1, rows_per_thread=down) if more else p

    def _of_aligned_operands(self, p: Tiling) -> Tiling:
        """``p``, or, if vectors of 16 bytes divide long concatenated rows, of which a thread loads all operands,
        parameters with more vectors of half that size."""
        heuristics, access = self.heuristics, narrowed(self.analysis, p.access, p.access.lanes // 2)
        tx, vectors = heuristics.whole_parts, -(-self.columns // access.lanes)
        ty = heuristics.small_block // tx
        down = self._rows_a_thread(tx, ty, vectors, 2 * heuristics.most_vectors - 1)
        return tiling(access, tx, ty, 1, down) if down > 1 and vectors >= tx else p

    def _that_share_columns(self, p: Tiling) -> Tiling:
        """``p``, or parameters with several rows per thread, which share values that depend only on the column, and
        vectors of half the bytes, so that registers hold those values."""
        analysis, heuristics = self.analysis, self.heuristics
        least = min(analysis.stored(v).bytes for v in analysis.inputs + analysis.outputs)
        access = narrowed(analysis, p.access, min(p.access.lanes, max(1, heuristics.shared_bytes // least)))
        vectors = -(-self.columns // access.lanes)
        tx = min(heuristics.small_block, power_from(vectors))
        ty = heuristics.small_block // tx
        blocks = -(-vectors // tx) * (self.rows // (ty * heuristics.shared_rows))
        return p if blocks < self._resident(tx, ty) else tiling(access, tx, ty, 1, heuristics.shared_rows)

    def candidates(self) -> Iterator[Tiling]:
        """Parameters worth measuring, the heuristic's choice first."""
        access, segments = self.access, self.row_segments
        first, small, large = self._choice(), self.heuristics.small_block, self.heuristics.block
        if self.row_segments > 1:
            yield tiling(access, small, 1, 1, segments, Rows(segments))
        yield first
        if runs := first.own.runs:
            yield from (first.replaced(runs=n) for n in (1, 2, 8) if n <= self.at_once and n != runs)
        yield from (self.params(threads, wanted) for threads in (small, small // 2, large) for wanted in (1, 2, 4, 8))


def _narrowed(analysis: Analysis, access: Access, elements: int, threads: int, least: int) -> Access:
    """``access`` with vectors of ``least`` bytes, if ``threads`` threads suffice for all of them: the time of short
    kernels is dominated by fetching their code."""
    sizes = [analysis.stored(v).bytes for v in analysis.inputs + analysis.outputs]
    lanes = max(1, least // max(sizes, default=least))
    if lanes >= access.lanes or elements > threads * lanes:
        return access
    return narrowed(analysis, access, lanes)


def _loads(analysis: Analysis) -> int:
    """The loads for an element of the results: what computing ops read of inputs, each view of one by itself."""
    views, stored = {op.result for op in analysis.ops if op.row.view}, set(analysis.inputs)
    read = {v for op in analysis.ops if not op.row.view for v in op.operands}
    return max(1, sum(v in stored or v in views for v in read))


def _written(analysis: Analysis) -> int:
    """The bytes of an element of the widest output."""
    return max(analysis.stored(v).bytes for v in analysis.outputs)


def _busy(vectors: int) -> bool:
    """Whether warps along a row leave few threads without a vector."""
    return -(-vectors // WARP) * WARP <= 1.25 * vectors


def _column_share(analysis: Analysis) -> float:
    """The instructions, including loads, whose results depend only on the column, relative to those per element."""
    loops = analysis.loops(analysis.kept)
    if len(loops) < 2:
        return 0.0
    column, counts = set(loops[-1]), {True: 0, False: 0}
    costs = [(v, 1) for v in analysis.inputs]
    costs += [(op.result, op.row.cost) for op in analysis.ops if op.results and not op.row.view]
    for value, cost in costs:
        axes = {a for dim in analysis.axes.dims(value) for a in dim}
        if axes:
            counts[axes <= column] += cost
    return counts[True] / max(1, counts[False])


def _most_concatenated(analysis: Analysis) -> int:
    """The most operands of a concatenation; a thread loads an element of each for each of its own."""
    return max((len(op.operands) for op in analysis.ops if op.name == "concatenate"), default=1)


def _work(analysis: Analysis) -> tuple:
    """The numbers of columns and rows, the bytes of inputs, and the number of elements."""
    read = sum((sz.mul(v.numel, v.dtype.bytes) for v in analysis.inputs), 0)
    return (*extents_of(analysis, 0), read, size_of(analysis.domain))


def coalesced(analysis: Analysis, access: Access, call: SizedCall, many: int) -> tuple[int, Access, bool] | None:
    """The number of segments to coalesce rows to, the access, and whether the last vector is partial; None if
    coalescing does not give wider vectors. One segment, or several that share values if many inputs of 16-bit floats
    are read element by element."""
    wide = analysis.once(_contiguous_across_rows)
    if not wide:
        return None
    lanes = min(16 // max(analysis.stored(v).bytes for v in wide), 8)
    rows, *steps = analysis.values(steps_across, call.sizes)
    elements = analysis.values(extents_of, call.sizes, 1)[0]
    limits = [*steps, *(call.alignments.get(v, 16) // analysis.stored(v).bytes for v in wide), lanes]
    lanes = min(n & -n for n in limits if n)
    if lanes <= access.lanes:
        return None
    found = widened(analysis, access, lanes, wide, (), call)
    assert found is not None
    several = lanes == 8 and analysis.once(_by_elements) > 1 and elements >= many
    segments = next((n for n in (4, 2) if elements % (n * lanes) == 0 and rows % n == 0), 1) if several else 1
    return segments, found, elements % lanes != 0


def _contiguous_across_rows(analysis: Analysis) -> list[Value]:
    """The tensors that are contiguous across the two innermost loops (or along the only one); none if an output is not.
    Inputs that are also read at other indices are excluded, because their vectors may be unaligned."""
    loops = analysis.loops(analysis.kept)
    if not loops:
        return []
    inner = loops[-1]
    moved = {v for op in analysis.ops if op.row.indexed for v in op.operands}
    tensors = dict.fromkeys([v for v in analysis.inputs if v not in moved] + analysis.outputs)
    wide = [v for v in tensors if analysis.axis_stride(v, inner[-1]) == 1]
    for middle in loops[-2:-1]:
        wide = [v for v in wide if analysis.axis_stride(v, middle[-1]) == size_of(inner)]
    return wide if set(analysis.outputs) <= set(wide) else []


def _by_elements(analysis: Analysis) -> int:
    """The number of inputs that vary along the columns but not along the rows."""
    inner = analysis.loops(analysis.kept)[-1][-1]
    return sum(
        analysis.axis_stride(v, inner) != 0 and v not in analysis.once(_contiguous_across_rows) for v in analysis.inputs
    )


def steps_across(analysis: Analysis) -> tuple:
    """The extent of the second innermost loop, and the strides along the outer loops of tensors that are accessed by
    vectors across rows."""
    *around, _ = analysis.loops(analysis.kept)
    steps = [analysis.axis_stride(v, loop[-1]) for v in analysis.once(_contiguous_across_rows) for loop in around[:-1]]
    return (size_of(around[-1]) if around else 1, *dict.fromkeys(steps))


def extents_of(analysis: Analysis, segments: int) -> tuple[Size, Size]:
    """The numbers of columns and rows, with rows coalesced to ``segments`` segments (0: not)."""
    sizes = [size_of(loop) for loop in analysis.loops(analysis.kept)] or [1]
    if segments and len(sizes) > 1:
        return sz.mul(sizes[-1], sz.floordiv(sizes[-2], segments)), sz.product(sizes[:-2])
    return sizes[-1], sz.product(sizes[:-1])


def _vectors_a_thread(analysis: Analysis, lanes: int, most: int, in_flight: int) -> int:
    """Vectors along the columns per thread: several inputs, including sliced and concatenated ones, need some bytes in
    flight."""
    columns, domain = set((analysis.loops(analysis.kept) or [[]])[-1]), set(analysis.domain)
    axes = {v: set(analysis.axes.flat(v)) for v in analysis.inputs}
    inputs = [v for v in analysis.inputs if columns & axes[v] or not domain >= axes[v]]
    nbytes = lanes * max(v.dtype.bytes for v in inputs) * len(inputs) if inputs else 0
    return max(1, min(most, in_flight // nbytes)) if len(inputs) > 1 else 1
