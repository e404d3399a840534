"""Pointwise segments whose rows are joined, padded or shifted at any element, on a GPU.

Results lie in one line of memory, in aligned vectors of it a thread computes one. What a row is joined of cuts the line
into pieces; in one piece all elements come by the same ops from runs of the inputs, which is known when the code is
written: ``|`` ends a vector of four of rows that are joined of three and of six elements,

    a a a b | b b b b | b a a a | b b b b | b b a a | ...

Wide pieces have blocks for the vectors inside of them. Vectors that reach across the end of one, and over narrow ones
behind it, have others: these compute a vector of each piece and choose lanes. Inputs are read at any element, in
vectors that memory is aligned for (:meth:`mlirfuse.lowering.kernel.memory.Accesses._load_past`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index, Line
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.access import WIDEST, Access, access_of, hint_of
from mlirfuse.schedule.gpu.heuristics import heuristics_of
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.gpu.scheduler import GpuScheduler, check_threads
from mlirfuse.schedule.gpu.windows import unaligned_reads
from mlirfuse.schedule.scheduler import Alignments, Sizes, power_of_two, require

MOVING = ("slice", "pad", "concatenate", "roll")  # what may index along a dimension here


class Params(NamedTuple):
    """Threads of a block; ``rows`` whose pieces blocks that follow each other compute; ``wide``: the pieces that have
    blocks of their own."""

    access: Access
    threads: int
    rows: int
    wide: tuple[int, ...]


class Interval(NamedTuple):
    """``low … high-1`` of the axis along which rows are cut, and where in a row it begins."""

    low: Size
    high: Size
    start: Size
    length: Size


class ConcatRows(NamedTuple):
    """The rows of a segment: their loops, the innermost loop, the axis along which they are cut, the pieces of one, its
    length, and the tensors that lie in memory as the results do."""

    outer: list[list[Axis]]
    inner: list[Axis]
    cut: Axis
    intervals: list[Interval]
    length: Size
    in_line: frozenset[Value]

    @property
    def number(self) -> Size:
        return sz.product(size_of(loop) for loop in self.outer)


class Cell(NamedTuple):
    """What blocks of one kind compute of each row: ``vectors`` inside of a piece, or across the end of the first of
    ``intervals``, up to the last one. Pieces from ``wraps`` on are those of the next row."""

    intervals: list[Interval]
    wraps: int
    vectors: Size


def _rows(analysis: Analysis) -> ConcatRows | None:
    """The rows of a segment that can be computed piece by piece."""
    loops, outputs = analysis.loops(analysis.kept), analysis.outputs
    indexed = [op for op in analysis.ops if op.row.indexed and op.name != "iota"]
    if not loops or not indexed or numbers_elements(analysis) or any(op.name not in MOVING for op in indexed):
        return None
    line = [sz.product(a.size for a in analysis.kept[k + 1 :]) for k in range(len(analysis.kept))]
    whole = {a: s for a, s in zip(analysis.kept, line) if a.size != 1}
    in_line = frozenset(
        v
        for v in analysis.inputs + outputs
        if set(whole) <= set(analysis.axes.flat(v)) and all(analysis.axis_stride(v, a) == s for a, s in whole.items())
    )
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
    """Whether ops need to know where their elements are among all: random numbers, and reshapes, but of what is only
    written as it lies."""
    flat = analysis.axes.flat
    return any(
        op.row.kind == "random"
        or (op.name == "reshape" and (op.result not in analysis.outputs or flat(op.result) != flat(op.operands[0])))
        for op in analysis.ops
    )


def _cuts(analysis: Analysis, axis: Axis) -> list[Size] | None:
    """Where rows along ``axis`` are cut, in order; None where nobody knows the order."""
    found: list[Size] = []
    for op in analysis.ops:
        if op.name not in MOVING:
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
            for cut in here if found else ():  # those of one op are in order
                at = next((k for k, other in enumerate(found) if not sz.at_least(cut, other)), len(found))
                if any(not sz.at_least(other, cut) for other in found[at:]):
                    return None
                found.insert(at, cut)
            found = found or here
    return found


def _stacked(analysis: Analysis, axis: Axis) -> bool:
    """Whether ``axis`` is one along which tensors are joined that have an extent of 1."""
    return any(
        op.name == "concatenate"
        and list(analysis.axes.dims(op.result)[op.attrs["axis"]]) == [axis]
        and all(v.shape[op.attrs["axis"]] == 1 for v in op.operands)
        for op in analysis.ops
    )


def _sources(analysis: Analysis) -> list[Value]:
    """What differs from piece to piece, of which the results follow element by element in all of them alike."""
    created, dims = {op.result: op for op in analysis.ops}, analysis.axes.dims
    found: dict[Value, bool] = {}  # whether it is a source
    waiting = list(analysis.outputs)
    while waiting:
        value = waiting.pop()
        if value in found:
            continue
        op = created.get(value)
        operands = op.operands if op and op.row.kind == "elementwise" and op.name != "where" else []
        found[value] = not operands or any(dims(v) not in ([], dims(value)) for v in operands)
        waiting += [] if found[value] else operands
    return [value for value, source in found.items() if source and dims(value)]


def _cells(rows: ConcatRows, wide: tuple[int, ...], lanes: int) -> list[Cell]:
    """The kinds of blocks: for each wide piece one, and one for what is between it and the next."""
    intervals, out = rows.intervals, []
    for first, following in zip(wide, (*wide[1:], len(intervals) + wide[0])):
        out.append(Cell([intervals[first]], 1, sz.floordiv(intervals[first].length, lanes)))
        across = [intervals[k % len(intervals)] for k in range(first, following + 1)]
        narrow = sum((interval.length for interval in across[1:-1]), 0)
        out.append(Cell(across, len(intervals) - first, sz.floordiv(narrow + 2 * (lanes - 1), lanes)))
    return out


def _blocks(cell: Cell, p: Params) -> Size:
    """The blocks of a cell, of so many rows."""
    return sz.ceildiv(sz.mul(cell.vectors, p.rows), p.threads)


class _Body(GpuBody):
    """Vectors of the line of results."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, p: Params, rows: ConcatRows):
        super().__init__(name, analysis, slots, p.access, p.threads)
        self.p, self.rows, self.lanes = p, rows, p.access.lanes
        self.k.past = True

    def row_at(self, row: Val, interval: Interval, vector: Val, begin: Val) -> Env:
        """The env of the vector at ``vector`` in the line, in a piece that begins at ``begin``."""
        rows = self.rows
        env: Env = {}
        self.unlinear(env, rows.outer, Index(row))
        column, span = self.e.sub(vector, begin), (interval.low, interval.high)
        if rows.cut is rows.inner[-1]:
            column = self.e.add(column, self.size(interval.low)) if interval.low != 0 else column
            self.set_loop(env, rows.inner, Index(column, 1, self.lanes, divisor=1, span=span))
        else:
            env[rows.cut] = self.k.moved(Index(0, span=(0, 1)), interval.low)
            self.set_loop(env, rows.inner, Index(column, 1, self.lanes, divisor=1))
        return env

    def inside(self, cell: Cell, row: Val, number: Val) -> None:
        """The whole vectors of a piece."""
        e, (interval,) = self.e, cell.intervals
        begin = e.add(e.mul(row, self.size(self.rows.length)), self.size(interval.start))
        first = e.and_(e.add(begin, self.lanes - 1), -self.lanes)
        vector = e.add(first, e.mul(number, self.lanes))
        valid = e.cmp("le", e.add(vector, self.lanes), e.add(begin, self.size(interval.length)))
        env = self.row_at(row, interval, vector, begin)
        self.store([(value, self.at(value, env, vector)) for value in self.analysis.outputs], env, vector, valid)

    def across(self, cell: Cell, row: Val, number: Val) -> None:
        """What reaches across the end of a piece. ``row`` is that of the pieces from ``cell.wraps`` on, where there are
        any: one more than there are then."""
        e, length, count = self.e, self.size(self.rows.length), self.size(self.rows.number)
        wraps = cell.wraps < len(cell.intervals)
        before = e.sub(row, 1) if wraps else row
        places = [before] * cell.wraps + [row] * (len(cell.intervals) - cell.wraps)
        begins = [e.add(e.mul(at, length), self.size(interval.start)) for at, interval in zip(places, cell.intervals)]
        first = e.and_(e.add(begins[0], self.size(cell.intervals[0].length)), -self.lanes)
        vector = e.add(first, e.mul(number, self.lanes))
        valid, elements = e.cmp("lt", vector, begins[-1]), e.mul(count, length)
        if wraps:
            valid = e.and_(valid, e.and_(e.cmp("ge", vector, 0), e.cmp("lt", vector, elements)))
        lane = e.iota(self.index, self.lanes)
        found: dict[Value, Val] = {}
        for at, interval, begin in zip(places, cell.intervals, begins):
            held = e.max(e.min(at, e.sub(count, 1)), 0) if wraps else at
            env = self.row_at(held, interval, vector, begin)
            here = e.cmp("ge", lane, e.splat(e.sub(begin, vector), self.lanes))
            with self.k.forget():  # what follows from these is computed of all lanes
                for value in self.analysis.once(_sources):
                    val = self.at(value, env, vector)
                    found[value] = e.select(here, val, found[value]) if value in found else val
        for value, val in found.items():
            self.k.bind(value, env, val)
        values = [(value, self.at(value, env, vector)) for value in self.analysis.outputs]
        self.store(values, env, vector, valid, elements if wraps else None)

    def at(self, value: Value, env: Env, vector: Val) -> Val:
        self.k.line = Line(self.rows.in_line, env, vector, self.lanes)
        return self.k.value(value, env)

    def store(
        self, values: list[tuple[Value, Val]], env: Env, vector: Val, valid: Val, elements: Val | None = None
    ) -> None:
        """Stores vectors; lane by lane where there may be fewer ``elements`` than that."""
        e, k, line = self.e, self.k, self.k.line
        assert line is not None
        with k.region(f"scf.if {valid} {{"):
            if elements is None:
                for value, val in values:
                    k.store(value, env, val)
                return
            whole = e.cmp("le", e.add(vector, self.lanes), elements)
            with k.region(f"scf.if {whole} {{", "} else {"):
                for value, val in values:
                    k.store(value, env, val)
            with k.region("", "}"):
                for lane in range(self.lanes):
                    at = e.add(vector, lane)
                    with k.region(f"scf.if {e.cmp('lt', at, elements)} {{"):
                        k.line = replace(line, offset=at, lanes=1)
                        for value, val in values:
                            k.store(value, env, e.extract(val, lane))


def _emit(name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
    """The kernel that computes ``analysis``."""
    rows = analysis.once(_rows)
    body = _Body(name, analysis, slots, p, rows)
    e, k = body.e, body.k
    cells = _cells(rows, p.wide, body.lanes)
    ends = list(itertools.accumulate(_blocks(cell, p) for cell in cells))
    iteration, here = k.divmod(Index(body.wide(body.block)), ends[-1])
    block, first_row = k.scalar(here.base), e.mul(k.scalar(iteration.base), p.rows)

    def of(cell: Cell, start: Size) -> None:
        number = e.add(e.mul(e.sub(block, body.size(start)), p.threads), body.wide(body.thread))
        down, along = k.divmod(Index(number), cell.vectors)
        row = e.add(first_row, k.scalar(down.base))
        wraps = len(cell.intervals) > max(cell.wraps, 1)
        last = body.size(rows.number) if wraps else e.sub(body.size(rows.number), 1)
        exists = e.and_(e.cmp("lt", k.scalar(down.base), p.rows), e.cmp("le", row, last))
        with k.region(f"scf.if {exists} {{"):
            (body.inside if len(cell.intervals) == 1 else body.across)(cell, row, k.scalar(along.base))

    def choose(at: int) -> None:
        start = ends[at - 1] if at else 0
        if at == len(cells) - 1:
            of(cells[at], start)
            return
        with k.region(f"scf.if {e.cmp('lt', block, body.size(ends[at]))} {{", "} else {"):
            of(cells[at], start)
        with k.region("", "}"):
            choose(at + 1)

    choose(0)
    return [body.finish(sz.mul(ends[-1], sz.ceildiv(rows.number + 1, p.rows)))]


class Concat(GpuScheduler[Params]):
    """Joined and shifted rows."""

    name = "concat"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        return analysis.elementwise and analysis.once(_rows) is not None

    def candidates(
        self, analysis: Analysis, env: Sizes, alignments: Alignments, properties: DeviceProperties
    ) -> Iterator[Params]:
        heuristics, heavy = heuristics_of(properties).concat, costly(analysis, properties)
        found = _access(analysis, env, alignments, properties)
        lengths, sizes = analysis.values(_lengths, env), analysis.values(_sizes, env)
        fewest = heuristics.fewest if not heavy and analysis.once(_moved_as_loaded) else heuristics.fewest_computed
        if found is None or not fewest <= len(lengths) <= heuristics.most or sizes[0] * sizes[1] < heuristics.least:
            return
        if WIDEST // found.lanes > heuristics.bytes or analysis.once(unaligned_reads) > heuristics.reads:
            return
        wide = tuple(k for k, n in enumerate(lengths) if n >= heuristics.wide * found.lanes)
        if not wide or min(lengths) < 0:
            return
        if not heavy and sum(lengths) < heuristics.mean * len(lengths) * found.lanes:
            return
        if not heuristics.rolls and any(op.name == "roll" for op in analysis.ops):
            return
        usual = heuristics.threads_costly if heavy else heuristics.threads
        for threads in (usual, usual // 2, usual * 2):
            yield _of_rows(analysis, Params(found, threads, threads, wide), env)

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
        return _emit(name, analysis, slots, p)

    def check(
        self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, properties: DeviceProperties
    ) -> None:
        check_threads(p.threads, 1)
        require(power_of_two(p.rows) and p.rows <= p.threads, f"rows = {p.rows}: a power of two up to the threads")
        found, lanes = _access(analysis, env, alignments, properties), p.access.lanes
        require(found is not None, "pieces: results are not aligned for vectors")
        assert found is not None
        same = found._replace(index=p.access.index, hint=p.access.hint) == p.access
        require(same, f"access: vectors have {found.lanes} elements here, and alignments are {found.aligns}")
        require(p.access.index is dt.i64 or found.index is dt.i32, "index = i32: offsets need 64 bits for these sizes")
        lengths = analysis.values(_lengths, env)
        require(min(lengths) >= 0, f"pieces: for these sizes they have {lengths} elements")
        ordered = p.wide == tuple(sorted(set(p.wide))) and p.wide[:1] and p.wide[0] >= 0 and p.wide[-1] < len(lengths)
        require(bool(ordered), f"wide = {p.wide}: the numbers of some of {len(lengths)} pieces")
        require(all(lengths[k] >= lanes for k in p.wide), f"wide = {p.wide}: pieces have {lengths} elements")


def costly(analysis: Analysis, properties: DeviceProperties) -> bool:
    """Whether an element takes so many instructions that blocks shall have more threads to take turns."""
    return sum(op.row.cost for op in analysis.ops if not op.row.view) >= heuristics_of(properties).concat.costly


def _moved_as_loaded(analysis: Analysis) -> bool:
    """Whether what is joined or shifted is inputs, in the types that memory holds: nothing is computed before."""
    created = {v: op for op in analysis.ops for v in op.results}
    moving = [op for op in analysis.ops if op.name in MOVING]
    return all(v not in created or created[v] in moving for op in moving for v in op.operands)


def _of_rows(analysis: Analysis, p: Params, env: Sizes) -> Params:
    """``p`` with as many rows at a time as leave the fewest threads without a vector."""
    cells, rows = _cells(analysis.once(_rows), p.wide, p.access.lanes), analysis.values(_sizes, env)[0]
    vectors = [sz.substitute(cell.vectors, env) for cell in cells]

    def blocks(n: int) -> int:
        return -(-(rows + 1) // n) * sum(-(-n * v // p.threads) for v in vectors)

    sizes = [p.threads >> k for k in range(p.threads.bit_length())]
    return p._replace(rows=min(sizes, key=blocks))


def _access(analysis: Analysis, env: Sizes, alignments: Alignments, properties: DeviceProperties) -> Access | None:
    """Vectors of the widest type's, as wide as memory allows; None where results are not aligned for them, or where
    vectors do without this."""
    both = analysis.inputs + analysis.outputs
    widest = max(analysis.stored(v).bytes for v in both)
    lanes = min(WIDEST // widest, 8)
    plain = access_of(analysis, True, env, alignments, hint_of(analysis, env, properties))
    if plain.lanes >= lanes or lanes == 1 or any(n < 0 for n in analysis.values(_strides, env)):
        return None
    aligns = []
    for value in both:
        nbytes = lanes * analysis.stored(value).bytes
        aligned = alignments.get(value, WIDEST) % nbytes == 0
        if value in analysis.outputs and not aligned:
            return None
        aligns.append(nbytes if aligned else analysis.stored(value).bytes)
    return plain._replace(lanes=lanes, aligns=tuple(aligns), multiples=frozenset())


def _lengths(analysis: Analysis) -> tuple:
    return tuple(interval.length for interval in analysis.once(_rows).intervals)


def _sizes(analysis: Analysis) -> tuple:
    """Rows, and their length."""
    rows = analysis.once(_rows)
    return rows.number, rows.length


def _strides(analysis: Analysis) -> tuple:
    return tuple(s for v in analysis.inputs for s in analysis.strides[v])
