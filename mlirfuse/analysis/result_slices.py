"""Concatenations of equal parts, computed part by part.

A kernel that iterates over a concatenation computes, at each element, every part, and selects one. It iterates over one
part instead, and each result that follows is stored as parts, at their offsets in its memory, where parts share what
they read, as both halves of a gate's gradient do: each input is loaded, and each part computed, once. Where the
concatenation is reduced along other axes, so is each part."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mlirfuse.analysis.axes import Axes
from mlirfuse.analysis.views import reshaped_strides
from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Op, Value
from mlirfuse.ir.sizes import Size

MOST, MOST_REDUCED = 8, 4  # parts of one result: a thread holds a vector, and partial results, of each
RUN = 64  # bytes: shorter runs of parts would be stored by less than vectors, and by few threads a line
ALLOCATED = 64  # bytes: the alignment of results
VECTOR = 16  # bytes that a part's memory is aligned to, as vectors need


class ResultSlice(NamedTuple):
    """Where a part is stored: the result that it is a part of, the elements from that one's first to its own first, and
    its strides in elements."""

    whole: Value
    start: Size
    strides: tuple[Size, ...]


class SlicedResults(NamedTuple):
    """A segment whose results are ``outputs`` instead of concatenations of the values ``inside``."""

    program: list[Op]
    outputs: list[Value]
    axes: Axes
    inside: dict[Value, ResultSlice]


class _Split(NamedTuple):
    """``parts`` of a value along ``axis``. ``of``: the concatenations that they come from."""

    axis: int
    parts: list[Value]
    of: frozenset[Op]


def sliced_results(
    program: list[Op],
    outputs: list[Value],
    strides_of: Callable[[Value], tuple[Size, ...]],
    hint: Mapping[str, int],
    around: Axes | None,
) -> SlicedResults | None:
    """Return the segment with parts instead of concatenations; None if it has none that all of its results follow from
    part by part, or if that gains nothing. ``strides_of``: of an output in memory."""
    left = {op for op in program if _equal_parts(op)}
    if not left or not all(_moves_or_computes(op) for op in program):
        return None
    while left:
        found = _Parts(program, outputs, left)
        if not found.failed:
            return found.results(strides_of, hint, around)
        left -= found.failed
    return None


def _equal_parts(op: Op) -> bool:
    parts = op.operands
    return op.name == "concatenate" and 1 < len(parts) <= MOST and len({v.shape for v in parts}) == 1


def _sliced(value: Value, axis: int) -> bool:
    """Whether parts along ``axis`` read different elements of an elementwise op's operand."""
    return value.rank > 0 and value.shape[axis] != 1


def _moves_or_computes(op: Op) -> bool:
    """Whether schedulers of pointwise segments and of reductions take the op."""
    return len(op.results) == 1 and op.row.kind in ("elementwise", "reduce", "shape", "create", "index")


def _are_columns(split: _Split) -> bool:
    """Whether a reduction gains by parts: elements of a vector lie along the axis, and few sums are kept. Where all of
    a vector is in one operand, as of rows, only that one is loaded anyway."""
    return len(split.parts) <= MOST_REDUCED and all(n == 1 for n in split.parts[0].shape[split.axis + 1 :])


class _Parts:
    """The ``program`` with the concatenations ``split`` computed part by part. ``failed``: those of them that an op
    needs as a whole."""

    def __init__(self, program: list[Op], outputs: list[Value], split: set[Op]):
        self.b = Builder(Block())
        self.outputs = outputs
        self.split: dict[Value, _Split] = {}
        self.raveled: dict[Value, Value] = {}  # a reshape across parts: a value of the shape before, which is split
        self.alike: dict[Value, Value] = {}  # a part: the first one
        self.late: set[Value] = set()  # values that depend on a reduction, which a kernel knows at their own index only
        self.failed: frozenset[Op] = frozenset()
        for op in program:
            if op.row.kind == "reduce" or any(v in self.late for v in op.operands):
                self.late.add(op.result)
            found = [self.split[self.raveled.get(v, v)] for v in op.operands if v in self.split or v in self.raveled]
            if op in split and not found:
                parts = [self.b.op("copy", v) for v in op.operands]
                self.alike |= dict.fromkeys(parts[1:], parts[0])
                self.split[op.result] = _Split(op.attrs["axis"], parts, frozenset([op]))
            elif not found:
                self.b.block.ops.append(op)
            else:
                with contextlib.suppress(ShapeError):  # of symbolic sizes that are not known to fit
                    if self.computes(op, found):
                        continue
                self.failed = frozenset().union(*(one.of for one in found))
                return

    def computes(self, op: Op, found: list[_Split]) -> bool:
        """Compute ``op`` for each part of its operands, of which ``found`` are split; False if that is impossible."""
        (axis, parts, of), result, attrs = found[0], op.result, dict(op.attrs)
        if any(v in self.raveled for v in op.operands):
            wide = [v for v in op.operands if v.rank]
            if op.row.kind != "elementwise" or len(wide) > 1:
                return False
            made = [self.b.op(op.name, *(part if v.rank else v for v in op.operands), **attrs) for part in parts]
            self.alike |= dict.fromkeys(made[1:], made[0])
            self.raveled[result] = Value(result.dtype, self.raveled[wide[0]].shape)
            self.split[self.raveled[result]] = _Split(axis, made, of)
            return True
        if any((one.axis, one.parts[0].shape[axis]) != (axis, parts[0].shape[axis]) for one in found):
            return False
        shape, length = op.operands[0].shape, parts[0].shape[axis]
        if op.row.kind == "elementwise":
            if any(v in self.late and v not in self.split and _sliced(v, axis) for v in op.operands):
                return False
            operands = [self.parts_of(v, axis, len(parts), length) for v in op.operands]
        elif op.name not in ("reshape", "permute", "squeeze", "expand_dims") and op.row.kind != "reduce":
            return False
        else:
            operands = [parts]
        if op.name == "permute":
            axis = attrs["dims"].index(axis)
        elif op.name == "expand_dims":
            axis = [d for d in range(result.rank) if d not in attrs["axes"]][axis]
        elif op.name == "squeeze" or op.row.kind == "reduce":
            removed = table.axes_of(attrs, len(shape))
            if axis in removed:
                return False
            axis -= 0 if attrs.get("keepdims") else sum(d < axis for d in removed)
        elif op.name == "reshape":
            before = sz.product(shape[:axis])
            outermost = [d for d in range(result.rank) if sz.product(result.shape[:d]) == before]
            fits = [(d, sz.quotient(result.shape[d], shape[axis])) for d in outermost]
            axis, inner = next((both for both in fits if both[1] is not None), (0, None))
            if inner is None:
                self.raveled[result] = op.operands[0]
                return True
            length = sz.mul(length, inner)
            attrs["shape"] = (*result.shape[:axis], length, *result.shape[axis + 1 :])
        made = [self.b.op(op.name, *some, **attrs) for some in zip(*operands)]
        self.alike |= dict.fromkeys(made[1:], made[0])
        self.split[result] = _Split(axis, made, frozenset().union(*(one.of for one in found)))
        return True

    def parts_of(self, value: Value, axis: int, count: int, length: Size) -> list[Value]:
        """What an elementwise op on parts reads of ``value``."""
        if value in self.split:
            return self.split[value].parts
        if not _sliced(value, axis):
            return [value] * count
        return [self.b.slice(value, axis, sz.mul(k, length), length) for k in range(count)]

    def results(
        self, strides_of: Callable[[Value], tuple[Size, ...]], hint: Mapping[str, int], around: Axes | None
    ) -> SlicedResults | None:
        """The segment, if that gains something, and parts are lines of aligned vectors in memory."""
        program, outputs, inside = self.b.block.ops, [], {}
        for value in self.outputs:
            source = self.raveled.get(value, value)
            if source not in self.split:
                outputs.append(value)
                continue
            axis, parts, _ = self.split[source]
            strides: tuple[Size, ...] | None = strides_of(value)
            if source is not value:
                strides = reshaped_strides(value.shape, strides_of(value), source.shape)
            if strides is None:
                return None
            step = sz.mul(strides[axis], parts[0].shape[axis])
            run = sz.supposed(step, hint) * value.dtype.bytes
            if run < RUN or run % VECTOR:
                return None
            for k, part in enumerate(parts):
                part = self.b.op("copy", part) if part in inside else part
                inside[part] = ResultSlice(value, sz.mul(step, k), strides)
                outputs.append(part)
        axes = Axes(program, around, alike=self.alike)
        of_part = {part: one for one in self.split.values() for part in one.parts}
        summed = [of_part[v] for op in program if op.row.kind == "reduce" for v in op.operands if v in of_part]
        gains = all(map(_are_columns, summed)) if summed else self.shared(hint)
        return SlicedResults(program, outputs, axes, inside) if gains and _one_domain(program, outputs, axes) else None

    def shared(self, hint: Mapping[str, int]) -> bool:
        """Whether two parts of a result read the same elements of a tensor that is as large as they are."""
        created = {op.result: op for op in self.b.block.ops}
        for _, parts, _ in self.split.values():
            size = sz.supposed(parts[0].numel, hint)
            found: set[tuple[Value, tuple[Size, ...]]] = set()
            for part in parts:
                needed: set[tuple[Value, tuple[Size, ...]]] = set()
                worklist: list[tuple[Value, tuple[Size, ...]]] = [(part, (0,) * part.rank)]
                while worklist:
                    value, start = worklist.pop()
                    if (value, start) in needed or sz.supposed(value.numel, hint) < size:
                        continue
                    needed.add((value, start))
                    op = created.get(value)
                    if op is None:
                        continue
                    if op.row.kind == "elementwise":
                        worklist += [(v, start) for v in op.operands if v.rank]
                    elif op.name == "slice" and set(op.attrs["step"]) == {1}:
                        both = zip(start, op.attrs["start"])
                        worklist.append((op.operands[0], tuple(sz.total(starts) for starts in both)))
                    elif not any(start) and not op.row.indexed and op.row.kind == "shape":
                        worklist += [(v, (0,) * v.rank) for v in op.operands]
                if needed & found:
                    return True
                found |= needed
        return False


def _one_domain(program: list[Op], outputs: list[Value], axes: Axes) -> bool:
    """Whether one nest of loops goes over all reductions and results."""
    reductions = [op for op in program if op.row.kind == "reduce" and axes.reduced(op)]
    loops = {(frozenset(axes.flat(op.operands[0])), frozenset(axes.reduced(op))) for op in reductions}
    if len(loops) > 1:
        return False
    [(domain, _)] = loops or [(max((frozenset(axes.flat(v)) for v in outputs), key=len), None)]
    return all(domain.issuperset(axes.flat(v)) for v in outputs)


def alignment_of(part: ResultSlice, alignments: Mapping[Value, int], env: Mapping[str, int]) -> int:
    """Return the bytes that a part's address is a multiple of in a call with the sizes ``env``; ``alignments``: those
    of other tensors, where they are not those of allocated results."""
    number = sz.substitute(part.start, env) * part.whole.dtype.bytes | alignments.get(part.whole, ALLOCATED)
    return number & -number
