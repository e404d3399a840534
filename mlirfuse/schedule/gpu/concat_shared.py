"""Pointwise segments on a GPU with concatenated or padded rows of short operands.

A block computes some rows of the concatenation. In memory these rows of each operand are adjacent, so full vectors of
an operand are read, across row boundaries, and their elements stored at their final offsets in shared memory:

    operand 0   a0 a1 a2 | a3 a4 a5         concatenation   a0 a1 a2 b0 b1 | a3 a4 a5 b2 b3
    operand 1   b0 b1 | b2 b3

There they have the results' layout. After a barrier each thread reads aligned vectors of them, computes everything that
depends on the concatenation, reading other inputs directly, and writes the results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Flat, Index
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.access import WIDEST, check_exact, widest_access
from mlirfuse.schedule.gpu.concat import costly, numbers_elements
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.gpu.scheduler import GpuScheduler
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, power_from, require
from mlirfuse.schedule.tiling import Access, Tiling


class Reserved(NamedTuple):
    """``shared_bytes`` of shared memory, which are reserved for the ``coalesced_rows`` of a block: full vectors of each
    operand."""

    shared_bytes: int


class ConcatOperand(NamedTuple):
    """An operand: ``value``, the offset ``low`` of its first element in a row, and its length along the row."""

    value: Value
    low: Size
    length: Size


class ConcatOp(NamedTuple):
    """``op`` concatenates ``operands`` along the axis ``along`` to rows, which the axis ``down`` enumerates.
    ``in_line``: the inputs and outputs whose rows are adjacent in memory."""

    op: Op
    operands: list[ConcatOperand]
    down: Axis
    along: Axis
    in_line: frozenset[Value]


def _concat(analysis: Analysis) -> ConcatOp | None:
    """The only concatenation or padding of a segment, if the rows of its operands and of outputs are adjacent in
    memory."""
    loops, dims = analysis.loops(analysis.kept), analysis.axes.dims
    remapping = [op for op in analysis.ops if op.row.indexed and op.name != "iota"]
    if numbers_elements(analysis) or len(remapping) != 1 or len(loops) != 2 or len(loops[1]) != 1:
        return None
    (op,), down, (along,) = remapping, loops[0][-1], loops[1]
    at = [d for d, dim in enumerate(dims(op.result)) if list(dim) == [along]]
    operands = _operands(op, at[0]) if len(at) == 1 else []
    rows = {along: along.size}  # the axes along rows, and their lengths
    for operand in operands:
        if operand.value.rank:
            own = dims(operand.value)[at[0]]
            pairs = [pair for d, pair in enumerate(zip(dims(operand.value), dims(op.result))) if d != at[0]]
            if len(own) != 1 or any(a != b for a, b in pairs):  # operand rows must be the result's rows
                return None
            rows[own[0]] = operand.length
    both, in_line = dict.fromkeys(analysis.inputs + analysis.outputs), set()
    for value in both:
        for axis in rows.keys() & set(analysis.axes.flat(value)):
            if (analysis.axis_stride(value, axis), analysis.axis_stride(value, down)) == (1, rows[axis]):
                in_line.add(value)
            elif axis is not along and analysis.axis_stride(value, down) != 0:
                return None
    found = ConcatOp(op, operands, down, along, frozenset(in_line))
    return found if operands and in_line.issuperset(analysis.outputs) else None


def _operands(op: Op, dim: int) -> list[ConcatOperand]:
    """The operands that ``op`` concatenates along the dimension ``dim``; empty if it does something else."""
    if op.name == "pad":
        (operand, fill), low, high = op.operands, op.attrs["low"], op.attrs["high"]
        if any((a, b) != (0, 0) for d, (a, b) in enumerate(zip(low, high)) if d != dim):
            return []
        lengths = [(fill, low[dim]), (operand, operand.shape[dim]), (fill, high[dim])]
    elif op.name == "concatenate" and op.attrs["axis"] == dim:
        lengths = [(value, value.shape[dim]) for value in op.operands]
    else:
        return []
    out, start = [], 0
    for value, length in lengths:
        out += [ConcatOperand(value, start, length)] if length != 0 else []
        start = start + length
    return out


def _shared_dtype(analysis: Analysis) -> dt.DType:
    """The dtype of the concatenation in shared memory: the memory dtype for inputs and for unmodified outputs, else the
    compute dtype."""
    concat = analysis.once(_concat)
    dtype, inputs = concat.op.result.dtype, {*analysis.inputs, *(p.value for p in concat.operands if not p.value.rank)}
    kept = all(op.name == "reshape" for op in analysis.ops if concat.op.result in op.operands)
    kept = kept or inputs.issuperset(p.value for p in concat.operands)
    return dtype if dtype is not dt.bool_ and kept else dtype.compute


class _Body(GpuBody):
    """The kernel body: stores the operands of a block's rows to shared memory, and computes from their
    concatenation."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        self.concat = self.analysis.once(_concat)
        self.dtype = self.analysis.once(_shared_dtype)
        self.offset = self.reserve(self.p.own.shared_bytes)
        self.first = self.e.mul(self.wide(self.block), self.p.coalesced_rows)  # the block's first row

    def each(self, count: Val, lanes: int, body: Callable[[Val], None]) -> None:
        """Run ``body(first element)`` for each vector of this thread, of ``count`` elements of the block's rows."""

        def iteration(number: Val, carried: list[Val]) -> list[Val]:
            body(self.e.mul(number, lanes))
            return carried

        self.loop(self.wide(self.thread), self.e.div(count, lanes), self.threads, [], iteration)

    def positions(self, first: Val, lanes: int, length: Size) -> tuple[Index, Index]:
        """The row of each lane of a vector, counted from the block's first row, and its index in the row. Rows must be
        at least as long as a vector."""
        e = self.e
        down, along = self.k.divmod(Index(first), length)
        if lanes == 1:
            return down, along
        row, column = (e.splat(self.k.scalar(i.base), lanes) for i in (down, along))
        column = e.add(column, e.iota(self.index, lanes))
        size = e.splat(self.size(length), lanes)
        beyond = e.cmp("ge", column, size)
        row = e.select(beyond, e.add(row, 1), row)
        column = e.select(beyond, e.sub(column, size), column)
        return Index(0, 0, lanes, row), Index(0, 0, lanes, column)

    def flat(self, env: Env, axis: Axis, length: Size, first: Val, lanes: int) -> Flat:
        """Set ``env`` to a vector of rows along ``axis`` that may cross row boundaries; returns how it does."""
        down, along = self.positions(first, lanes, length)
        row = self.k.add(Index(self.first), down)
        self.set_loop(env, self.analysis.loops(self.analysis.kept)[0], row)
        env[axis] = along
        return Flat((self.concat.down, axis), length, self.first, Index(first, int(lanes > 1), lanes), row, along)

    def behind(self, condition: Val, this: str, that: str, nbytes: int) -> str:
        """The address ``nbytes`` after ``this`` if the condition holds, else after ``that``."""
        chosen = self.e.fresh()
        self.e.line(f"{chosen} = llvm.select {condition}, {this}, {that} : i1, !llvm.ptr<3>")
        return self.beyond(chosen, nbytes)

    def put(self, operand: ConcatOperand, rows: Val, lanes: int) -> None:
        """Store ``rows`` rows of an operand to shared memory."""
        e, k, concat, nbytes = self.e, self.k, self.concat, self.dtype.bytes
        dim = next(d for d, dim in enumerate(k.dims(concat.op.result)) if list(dim) == [concat.along])
        axis = k.dims(operand.value)[dim][0] if operand.value.rank else concat.along
        length, row = self.size(operand.length), self.size(concat.along.size)

        def one(first: Val) -> None:
            env: Env = {}
            with k.coalesced(self.flat(env, axis, operand.length, first, lanes)):
                val = e.splat(e.cast(k.value(operand.value, env), self.dtype), lanes)
            down, along = map(k.scalar, (i.base for i in k.divmod(Index(first), operand.length)))
            begin = e.add(e.mul(down, row), e.add(along, self.size(operand.low)))
            beyond = e.sub(e.add(begin, row), length)  # base offset for lanes in the next row
            here, there = (self.shared_address(self.offset, e.cast(at, dt.i32), nbytes) for at in (begin, beyond))
            left = e.sub(length, along)
            for lane in range(lanes):
                address = self.behind(e.cmp("gt", left, lane), here, there, lane * nbytes) if lane else here
                self.shared_store(address, e.extract(val, lane))

        self.each(e.mul(rows, length), lanes, one)

    def write(self, rows: Val, lanes: int) -> None:
        """Compute and store all outputs for ``rows`` concatenated rows."""
        e, k, concat = self.e, self.k, self.concat

        def one(first: Val) -> None:
            env: Env = {}
            with k.coalesced(self.flat(env, concat.along, concat.along.size, first, lanes)):
                nbytes = min(WIDEST, lanes * self.dtype.bytes)
                address = self.shared_address(self.offset, e.cast(first, dt.i32), self.dtype.bytes)
                vector = self.shared_load(address, self.dtype, lanes, nbytes)
                k.bind(concat.op.result, env, e.cast(vector, concat.op.result.dtype.compute))
                self.store_at(self.analysis.outputs, env, self.analysis.kept, None)

        self.each(e.mul(rows, self.size(concat.along.size)), lanes, one)

    def all(self, rows: Val, lanes: int) -> None:
        """Process ``rows`` rows of this block."""
        for operand in self.concat.operands:
            self.put(operand, rows, lanes)
        self.barrier()
        self.write(rows, lanes)


class ConcatShared(GpuScheduler):
    """Rows concatenated of short operands."""

    name = "concat_shared"
    fields = "access", "tx", "coalesced_rows"
    own = Reserved

    def takes(self, analysis: Analysis) -> bool:
        return analysis.elementwise and analysis.once(_concat) is not None

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        heuristics = heuristics_of(call.properties).concat_shared
        access = _access(analysis, call)
        rows, length, *operands = analysis.values(_sizes, call.sizes)
        if access is None or min(operands) < access.lanes or rows * length < heuristics.least:
            return
        longest = heuristics.mean[costly(analysis, call.properties)]
        if WIDEST // access.lanes > heuristics.bytes or length > longest * len(operands) * access.lanes:
            return
        row = length * analysis.once(_shared_dtype).bytes
        for least, times in itertools.product((1, 2, 4), (1, 2)):
            many = max(access.lanes, power_from(-(-least * heuristics.shared // row)))
            wanted = 1 << (many * row // heuristics.bytes_a_thread).bit_length() - 1
            threads = min(max(wanted, heuristics.threads), heuristics.most_threads)
            if many * row <= heuristics.most:
                own = Reserved(power_from(many * row))
                yield Tiling(self.name, access, threads * times, coalesced_rows=many, own=own)

    def kernels(self, spec: KernelSpec) -> list[GpuKernel]:
        body, p, analysis = _Body(spec), spec.params, spec.analysis
        e, count = body.e, size_of(analysis.loops(analysis.kept)[0])
        left = e.sub(body.size(count), body.first)
        body.k.where(
            e.cmp("ge", left, p.coalesced_rows),
            lambda: body.all(e.const(p.coalesced_rows, body.index), p.access.lanes),
            lambda: body.all(left, 1),  # vectors may not divide fewer rows
        )
        return [body.finish(sz.ceildiv(count, p.coalesced_rows))]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        check_exact(p.access, _access(analysis, call), "concat_shared: memory is not aligned for vectors")
        lanes = p.access.lanes
        _, length, *operands = analysis.values(_sizes, call.sizes)
        require(min(operands) >= lanes, f"lanes = {lanes}: exceeds some of the operands' row lengths {operands}")
        full = p.coalesced_rows > 0 and p.coalesced_rows % lanes == 0
        p.must("coalesced_rows", full, f"must be a positive multiple of the {lanes} lanes")
        needed = p.coalesced_rows * length * analysis.once(_shared_dtype).bytes
        most = heuristics_of(call.properties).concat_shared.most
        p.must("shared_bytes", needed <= p.own.shared_bytes <= most, f"must be from {needed} to {most} bytes")


def _sizes(analysis: Analysis) -> tuple:
    """The number of rows, their length, and the lengths of the operands."""
    concat, down = analysis.once(_concat), analysis.loops(analysis.kept)[0]
    return size_of(down), concat.along.size, *(operand.length for operand in concat.operands)


def _access(analysis: Analysis, call: SizedCall) -> Access | None:
    """Vectors of 16 bytes of the widest dtype; None if a tensor with adjacent rows is not aligned for them, or if
    ordinary accesses are as wide."""
    in_line = analysis.once(_concat).in_line
    return widest_access(analysis, in_line, in_line, call)
