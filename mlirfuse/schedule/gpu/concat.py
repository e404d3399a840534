"""Pointwise segments on a GPU with concatenated, padded or rolled rows, whose operands may start at any element.

Results are contiguous, and each thread computes one aligned vector of them. The operands split a row into intervals; in
one interval all elements are computed by the same ops from contiguous input ranges, which are known at compile time.
Rows concatenated of three and of six elements, with vectors of four separated by ``|``:

    a a a b | b b b b | b a a a | b b b b | b b a a | ...

Wide intervals have blocks for the vectors inside of them. Other blocks process the vectors that cross the end of a wide
interval, and the narrow intervals after it: they compute a vector of each interval and select lanes. Inputs may be
unaligned, and are read by aligned vectors (:meth:`mlirfuse.lowering.kernel.memory.Accesses._load_past`)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, points_of, size_of
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index, Line
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.access import WIDEST, check_exact, widest_access
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.gpu.scheduler import GpuScheduler
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.gpu.windows import input_strides, unaligned_reads
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, Sizes, power_of_two, require
from mlirfuse.schedule.tiling import Access, Tiling

REMAPPING = ("slice", "pad", "concatenate", "roll")  # the index-remapping ops that are supported


class Wide(NamedTuple):
    """``wide``: the intervals that have blocks of their own. Consecutive blocks compute ``coalesced_rows`` rows."""

    wide: tuple[int, ...]


class Interval(NamedTuple):
    """The indices ``low … high-1`` of the concatenation axis, the first element's offset ``start`` in a row, and the
    length."""

    low: Size
    high: Size
    start: Size
    length: Size


class ConcatRows(NamedTuple):
    """The rows of a segment: their loops, the innermost loop, the axis that intervals split, the intervals, the row
    length, and the tensors with the results' memory layout."""

    outer: list[list[Axis]]
    inner: list[Axis]
    cut: Axis
    intervals: list[Interval]
    length: Size
    in_line: frozenset[Value]

    @property
    def number(self) -> Size:
        """The number of rows."""
        return points_of(self.outer)


class Cell(NamedTuple):
    """The part of each row that one kind of block computes: ``vectors`` inside of one interval, or across the end of
    the first of ``intervals`` up to the last. Intervals from ``wraps`` on belong to the next row."""

    intervals: list[Interval]
    wraps: int
    vectors: Size


def _rows(analysis: Analysis) -> ConcatRows | None:
    """The rows of a segment that this scheduler supports, or None."""
    loops, outputs = analysis.loops(analysis.kept), analysis.outputs
    indexed = [op for op in analysis.ops if op.row.indexed and op.name != "iota"]
    if not loops or not indexed or numbers_elements(analysis) or any(op.name not in REMAPPING for op in indexed):
        return None
    line = [sz.product(a.size for a in analysis.kept[k + 1 :]) for k in range(len(analysis.kept))]
    strides = {a: s for a, s in zip(analysis.kept, line) if a.size != 1}
    both = [v for v in analysis.inputs + outputs if set(strides) <= set(analysis.axes.flat(v))]
    in_line = frozenset(v for v in both if all(analysis.axis_stride(v, a) == s for a, s in strides.items()))
    if not in_line.issuperset(outputs) or in_line.issuperset(analysis.inputs):
        return None
    inner = loops[-1]
    cuts = _cuts(analysis, inner[-1]) if len(inner) == 1 else []
    if cuts is None:
        return None
    above = loops[-2] if len(loops) > 1 else []
    if not cuts and len(above) == 1 and isinstance(above[0].size, int) and _stacked(analysis, above[0]):
        length = size_of(inner)
        intervals = [Interval(k, k + 1, sz.mul(k, length), length) for k in range(above[0].size)]
        return ConcatRows(loops[:-2], inner, above[0], intervals, sz.mul(length, above[0].size), in_line)
    ends = [0, *cuts, size_of(inner)]
    intervals = [Interval(low, high, low, high - low) for low, high in itertools.pairwise(ends)]
    return ConcatRows(loops[:-1], inner, inner[-1], intervals, size_of(inner), in_line)


def numbers_elements(analysis: Analysis) -> bool:
    """Whether ops depend on the linear index of their elements: random numbers, and reshapes other than of an output's
    layout."""
    flat = analysis.axes.flat
    return any(
        op.row.kind == "random"
        or (op.name == "reshape" and (op.result not in analysis.outputs or flat(op.result) != flat(op.operands[0])))
        for op in analysis.ops
    )


def _cuts(analysis: Analysis, axis: Axis) -> list[Size] | None:
    """The boundaries between intervals along ``axis``, in order; None if the order depends on sizes."""
    found: list[Size] = []
    for op in analysis.ops:
        if op.name not in REMAPPING:
            continue
        for d, dim in enumerate(analysis.axes.dims(op.result)):
            if list(dim) != [axis]:
                continue
            if op.name == "pad":
                low = op.attrs["low"][d]
                here = [low, low + op.operands[0].shape[d]] if (low, op.attrs["high"][d]) != (0, 0) else []
            elif op.name == "slice" or op.attrs["axis"] != d:
                here = []
            elif op.name == "roll":
                here = [op.attrs["shift"]]
            else:
                here = list(itertools.accumulate(v.shape[d] for v in op.operands))
            here = [cut for cut in dict.fromkeys(here) if cut not in (0, axis.size, *found)]
            for cut in here if found else ():  # those of one op are ordered
                at = next((k for k, other in enumerate(found) if not sz.at_least(cut, other)), len(found))
                if any(not sz.at_least(other, cut) for other in found[at:]):
                    return None
                found.insert(at, cut)
            found = found or here
    return found


def _stacked(analysis: Analysis, axis: Axis) -> bool:
    """Whether operands with an extent of 1 are concatenated along ``axis``."""
    return any(
        op.name == "concatenate"
        and list(analysis.axes.dims(op.result)[op.attrs["axis"]]) == [axis]
        and all(v.shape[op.attrs["axis"]] == 1 for v in op.operands)
        for op in analysis.ops
    )


def _sources(analysis: Analysis) -> list[Value]:
    """The values that are computed differently in each interval, and from which the results follow elementwise."""
    created, dims = {op.result: op for op in analysis.ops}, analysis.axes.dims
    found: dict[Value, bool] = {}  # whether it is a source
    worklist = list(analysis.outputs)
    while worklist:
        value = worklist.pop()
        if value in found:
            continue
        op = created.get(value)
        operands = op.operands if op and op.row.kind == "elementwise" and op.name != "where" else []
        found[value] = not operands or any(dims(v) not in ([], dims(value)) for v in operands)
        worklist += [] if found[value] else operands
    return [value for value, source in found.items() if source and dims(value)]


def _cells(rows: ConcatRows, wide: tuple[int, ...], lanes: int) -> list[Cell]:
    """The kinds of blocks: for each wide interval one, and one for what is between it and the next."""
    intervals, out = rows.intervals, []
    for first, following in zip(wide, (*wide[1:], len(intervals) + wide[0])):
        out.append(Cell([intervals[first]], 1, sz.floordiv(intervals[first].length, lanes)))
        across = [intervals[k % len(intervals)] for k in range(first, following + 1)]
        narrow = sum((interval.length for interval in across[1:-1]), 0)
        out.append(Cell(across, len(intervals) - first, sz.floordiv(narrow + 2 * (lanes - 1), lanes)))
    return out


def _blocks(cell: Cell, p: Tiling) -> Size:
    """The number of blocks of a cell, for ``p.coalesced_rows`` rows."""
    return sz.ceildiv(sz.mul(cell.vectors, p.coalesced_rows), p.tx)


class _Body(GpuBody):
    """The kernel body: computes vectors of the results' linear memory."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec, past_end=True)
        self.rows = spec.analysis.once(_rows)

    def row_at(self, row: Val, interval: Interval, vector: Val, begin: Val) -> Env:
        """The env of the vector at linear index ``vector``, in an interval that starts at ``begin``."""
        rows, env = self.rows, self.point(self.rows.outer, Index(row))
        column, span = self.e.sub(vector, begin), (interval.low, interval.high)
        if rows.cut is rows.inner[-1]:
            column = self.e.add(column, self.size(interval.low)) if interval.low != 0 else column
            self.set_loop(env, rows.inner, Index(column, 1, self.lanes, divisor=1, span=span))
        else:
            env[rows.cut] = self.k.moved(Index(0, span=(0, 1)), interval.low)
            self.set_loop(env, rows.inner, Index(column, 1, self.lanes, divisor=1))
        return env

    def inside(self, cell: Cell, row: Val, number: Val) -> None:
        """Compute the full vectors of an interval."""
        e, (interval,) = self.e, cell.intervals
        begin = e.add(e.mul(row, self.size(self.rows.length)), self.size(interval.start))
        first = e.and_(e.add(begin, self.lanes - 1), -self.lanes)
        vector = e.add(first, e.mul(number, self.lanes))
        valid = e.cmp("le", e.add(vector, self.lanes), e.add(begin, self.size(interval.length)))
        env = self.row_at(row, interval, vector, begin)
        self.store([(value, self.at(value, env, vector)) for value in self.analysis.outputs], env, vector, valid)

    def across(self, cell: Cell, row: Val, number: Val) -> None:
        """Compute the vectors across the end of an interval. ``row`` is the row of the intervals from ``cell.wraps``
        on; if there are any, it also takes the value of one row after the last."""
        e, length, count = self.e, self.size(self.rows.length), self.size(self.rows.number)
        wraps = cell.wraps < len(cell.intervals)
        before = e.sub(row, 1) if wraps else row
        row_numbers = [before] * cell.wraps + [row] * (len(cell.intervals) - cell.wraps)
        both = zip(row_numbers, cell.intervals)
        begins = [e.add(e.mul(at, length), self.size(interval.start)) for at, interval in both]
        first = e.and_(e.add(begins[0], self.size(cell.intervals[0].length)), -self.lanes)
        vector = e.add(first, e.mul(number, self.lanes))
        valid, elements = e.cmp("lt", vector, begins[-1]), e.mul(count, length)
        if wraps:
            valid = e.and_(valid, e.and_(e.cmp("ge", vector, 0), e.cmp("lt", vector, elements)))
        lane = e.iota(self.index, self.lanes)
        found: dict[Value, Val] = {}
        for at, interval, begin in zip(row_numbers, cell.intervals, begins):
            clamped = e.max(e.min(at, e.sub(count, 1)), 0) if wraps else at
            env = self.row_at(clamped, interval, vector, begin)
            here = e.cmp("ge", lane, e.splat(e.sub(begin, vector), self.lanes))
            with self.k.forget():  # values derived from these are computed after the lanes are selected
                for value in self.analysis.once(_sources):
                    val = self.at(value, env, vector)
                    found[value] = e.select(here, val, found[value]) if value in found else val
        for value, val in found.items():
            self.k.bind(value, env, val)
        values = [(value, self.at(value, env, vector)) for value in self.analysis.outputs]
        self.store(values, env, vector, valid, elements if wraps else None)

    def at(self, value: Value, env: Env, vector: Val) -> Val:
        """``value`` for the vector at linear index ``vector``."""
        with self.k.contiguous(Line(self.rows.in_line, env, vector, self.lanes)):
            return self.k.value(value, env)

    def store(
        self, values: list[tuple[Value, Val]], env: Env, vector: Val, valid: Val, elements: Val | None = None
    ) -> None:
        """Store vectors; lane by lane if the tensors end at linear index ``elements`` within the vector."""
        e, k, line = self.e, self.k, Line(self.rows.in_line, env, vector, self.lanes)

        def store_all() -> None:
            for value, val in values:
                k.store(value, env, val)

        def store_lanes() -> None:
            for lane in range(self.lanes):
                at = e.add(vector, lane)
                with self.leader(e.cmp("lt", at, elements)), k.contiguous(replace(line, offset=at, lanes=1)):
                    for value, val in values:
                        k.store(value, env, e.extract(val, lane))

        with self.leader(valid), k.contiguous(line):
            if elements is None:
                store_all()
            else:
                k.where(e.cmp("le", e.add(vector, self.lanes), elements), store_all, store_lanes)


class Concat(GpuScheduler):
    """Concatenated, padded and rolled rows with long operands."""

    name = "concat"
    fields = "access", "tx", "coalesced_rows"
    own = Wide

    def takes(self, analysis: Analysis) -> bool:
        return analysis.elementwise and analysis.once(_rows) is not None

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        heuristics, heavy = heuristics_of(call.properties).concat, costly(analysis, call.properties)
        found = _access(analysis, call)
        rows, length, *lengths = analysis.values(_sizes, call.sizes)
        fewest = heuristics.fewest[heavy or not analysis.once(_remaps_inputs_only)]
        many = fewest <= len(lengths) <= heuristics.most and rows * length >= heuristics.least
        if found is None or not many or WIDEST // found.lanes > heuristics.bytes:
            return
        wide = tuple(k for k, n in enumerate(lengths) if n >= heuristics.wide * found.lanes)
        short = not heavy and sum(lengths) < heuristics.mean * len(lengths) * found.lanes
        if not wide or min(lengths) < 0 or short or analysis.once(unaligned_reads) > heuristics.reads:
            return
        if not heuristics.rolls and any(op.name == "roll" for op in analysis.ops):
            return
        usual = heuristics.threads_costly if heavy else heuristics.threads
        for threads in (usual, usual // 2, usual * 2):
            p = Tiling(self.name, found, threads, coalesced_rows=threads, own=Wide(wide))
            yield _of_rows(analysis, p, call.sizes)

    def kernels(self, spec: KernelSpec) -> list[GpuKernel]:
        body = _Body(spec)
        e, k, p, rows = body.e, body.k, body.p, body.rows
        cells = _cells(rows, p.own.wide, body.lanes)
        ends = list(itertools.accumulate(_blocks(cell, p) for cell in cells))
        iteration, here = k.divmod(Index(body.wide(body.block)), ends[-1])
        block, first_row = k.scalar(here.base), e.mul(k.scalar(iteration.base), p.coalesced_rows)

        def of(cell: Cell, start: Size) -> None:
            number = e.add(e.mul(e.sub(block, body.size(start)), p.tx), body.wide(body.thread))
            down, along = k.divmod(Index(number), cell.vectors)
            row = e.add(first_row, k.scalar(down.base))
            wraps = len(cell.intervals) > max(cell.wraps, 1)
            last = body.size(rows.number) if wraps else e.sub(body.size(rows.number), 1)
            exists = e.and_(e.cmp("lt", k.scalar(down.base), p.coalesced_rows), e.cmp("le", row, last))
            with body.leader(exists):
                (body.inside if len(cell.intervals) == 1 else body.across)(cell, row, k.scalar(along.base))

        def choose(at: int) -> None:
            own = functools.partial(of, cells[at], ends[at - 1] if at else 0)
            if at == len(cells) - 1:
                own()
            else:
                k.where(e.cmp("lt", block, body.size(ends[at])), own, lambda: choose(at + 1))

        choose(0)
        return [body.finish(sz.mul(ends[-1], sz.ceildiv(rows.number + 1, p.coalesced_rows)))]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        fits = power_of_two(p.coalesced_rows) and p.coalesced_rows <= p.tx
        p.must("coalesced_rows", fits, "must be a power of two up to tx")
        check_exact(p.access, _access(analysis, call), "concat: results are not aligned for vectors")
        (_, _, *lengths), wide = analysis.values(_sizes, call.sizes), p.own.wide
        require(min(lengths) >= 0, f"concat: for these sizes the intervals of a row have {lengths} elements")
        ordered = wide == tuple(sorted(set(wide))) and bool(wide) and wide[0] >= 0 and wide[-1] < len(lengths)
        p.must("wide", ordered, f"must be ascending numbers of some of the {len(lengths)} intervals")
        full = all(lengths[k] >= p.access.lanes for k in wide)
        p.must("wide", full, f"intervals of {lengths} elements must have a vector of {p.access.lanes}")


def costly(analysis: Analysis, properties: DeviceProperties) -> bool:
    """Whether an element takes so many instructions that blocks should have more threads, to hide latency."""
    return sum(op.row.cost for op in analysis.ops if not op.row.view) >= heuristics_of(properties).concat.costly


def _remaps_inputs_only(analysis: Analysis) -> bool:
    """Whether all remapped operands are inputs in their memory dtype: nothing is computed before."""
    created = {v: op for op in analysis.ops for v in op.results}
    remapping = [op for op in analysis.ops if op.name in REMAPPING]
    return all(v not in created or created[v] in remapping for op in remapping for v in op.operands)


def _of_rows(analysis: Analysis, p: Tiling, env: Sizes) -> Tiling:
    """``p`` with the number of rows per group of blocks that leaves the fewest threads idle."""
    cells, rows = _cells(analysis.once(_rows), p.own.wide, p.access.lanes), analysis.values(_sizes, env)[0]
    vectors = [sz.substitute(cell.vectors, env) for cell in cells]

    def blocks(n: int) -> int:
        return -(-(rows + 1) // n) * sum(-(-n * v // p.tx) for v in vectors)

    sizes = [p.tx >> k for k in range(p.tx.bit_length())]
    return p._replace(coalesced_rows=min(sizes, key=blocks))


def _access(analysis: Analysis, call: SizedCall) -> Access | None:
    """Vectors as wide as the widest dtype allows; None if results are not aligned for them, or if ordinary accesses are
    as wide."""
    if any(n < 0 for n in analysis.values(input_strides, call.sizes)):
        return None
    return widest_access(analysis, analysis.inputs + analysis.outputs, analysis.outputs, call)


def _sizes(analysis: Analysis) -> tuple:
    """The number of rows, their length, and the lengths of their intervals."""
    rows = analysis.once(_rows)
    return rows.number, rows.length, *(interval.length for interval in rows.intervals)
