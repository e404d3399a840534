"""Predicts the time of a kernel from what it does: bytes, instructions, gathers, reductions and their passes.

The coefficients of a device are fitted on measured kernels of all schedulers (``python -m mlirfuse.tools.fit_costs``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from mlirfuse.analysis.axes import Axes, Axis
from mlirfuse.analysis.memory_order import innermost, strided
from mlirfuse.analysis.phases import Analysis, is_reduction, is_scan, is_scatter_add, phases_of
from mlirfuse.analysis.work import Work, cost_of, work_of
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Layout, Op, Value

VECTOR = 4  # elements of a thread along the innermost axis


class Features(NamedTuple):
    """Of one launch, over all of its threads. A pass is a walk over the elements of the rows that are reduced."""

    moved: float  # bytes read and written, those of each tensor once
    again: float = 0  # bytes loaded again, at other indices
    strided: float = 0  # bytes of tensors that are not contiguous along the kernel's innermost axis
    gathered: float = 0  # elements loaded at indices that memory holds
    shifted: float = 0  # elements of rows that are reduced, loaded one by one as they lie at other indices of the row
    instructions: float = 0  # OpDef.cost of each element that an op computes or reduces
    reduced: float = 0  # elements reduced along the axis that is contiguous in memory
    columns: float = 0  # elements reduced along other axes
    row: float = 0  # elements of a row or column that is reduced
    phases: float = 0  # reductions that depend on each other
    reread: float = 0  # bytes that the passes after the first read again, unless the multiprocessor keeps the rows
    repeated: float = 0  # instructions that they repeat then
    scanned: float = 0  # elements
    added: float = 0  # elements added at indices
    code: float = 0  # instructions in the kernel's text


@dataclass(frozen=True)
class Coefficients:
    """Of a device, in seconds. Each is that of one byte, instruction or element, over all of the device."""

    launch: float = 3e-6
    byte: float = 2.5e-13  # of memory
    cached_byte: float = 1.2e-13  # of tensors that the last-level cache holds all together
    again: float = 3e-14  # a byte that was loaded before
    strided: float = 1e-13  # beyond ``byte``
    gathered: float = 2e-13  # an element
    shifted: float = 1e-12  # an element
    instruction: float = 5e-14
    reduced: float = 5e-14  # an element
    columns: float = 5e-14
    phase: float = 1e-6  # a reduction that waits for another
    scanned: float = 1e-13
    added: float = 2e-12  # an element added at an index
    code: float = 1e-9  # an instruction of the text
    cache: int = 32 << 20  # bytes
    row: int = 1 << 16  # elements of a row that stay on a multiprocessor, and of a column
    column: int = 1 << 10
    vector: int = VECTOR

    def keeps(self, kernel: Features) -> bool:
        """Whether a multiprocessor keeps the rows, or columns, that ``kernel`` reduces."""
        return kernel.row <= (self.column if kernel.columns else self.row)


def seconds(features: Features, device: Coefficients) -> float:
    """The predicted time. Memory and instructions overlap, in part."""
    f, c = features, device
    reread, repeated = (0.0, 0.0) if device.keeps(f) else (f.reread, f.repeated)
    in_cache = f.moved <= c.cache
    memory = (c.cached_byte if in_cache else c.byte) * (f.moved + reread) + c.strided * f.strided + c.again * f.again
    computed = c.instruction * (f.instructions + repeated) + c.reduced * f.reduced + c.columns * f.columns
    computed += c.scanned * f.scanned + c.shifted * f.shifted
    busy = math.hypot(memory, computed) + c.gathered * f.gathered + c.added * f.added
    return c.launch + c.phase * f.phases + c.code * f.code + busy


def of_kernel(
    ops: Iterable[Op],
    outputs: Iterable[Value],
    axes: Axes,
    layouts: Mapping[Value, Layout],
    elements: Callable[[Value], int],
    free: Callable[[Value], bool] = lambda _: False,
    vector: int = VECTOR,
    work: Work | None = None,
) -> Features:
    """The features of a kernel of ``ops``, in program order, that stores ``outputs``. ``elements``: the number of
    elements of a value; ``free``: inputs that are not read from memory; ``vector``: elements of a thread along the
    innermost axis, which share what does not have it; ``work``: its work, where it is known."""
    program, stored = list(ops), list(outputs)
    work = work or work_of(reversed(program), stored, elements)
    made = {value for op in program for value in op.results}
    loads = {v: n for v, n in work.counts.items() if isinstance(v, Value) and v not in made and not free(v)}
    read = {v: min(n, elements(v)) * v.dtype.bytes for v, n in loads.items()}
    written = {v: elements(v) * v.dtype.bytes for v in stored}
    along = _along(program, stored, axes, layouts, elements)
    memory = [*read.items(), *written.items()]
    against = sum(n for v, n in memory if along is not None and strided(v, along, axes, layouts))
    loops = loops_of(program, stored, axes, along, vector, elements)
    instructions = {op: cost_of(op) * n * _reduced_by(op, elements) * loops.times(op.results[0])
                    for op, n in work.counts.items() if isinstance(op, Op)}  # fmt: skip
    gathers = [op for op in program if op.row.kind == "index" and op in work.counts]
    found = Features(
        sum(read.values()) + sum(written.values()),
        sum((n - min(n, elements(v))) * v.dtype.bytes for v, n in loads.items()),
        against,
        sum(work.counts[op] for op in gathers),
        instructions=sum(instructions.values()),
        scanned=sum(elements(op.result) for op in program if is_scan(op) and axes.scanned(op)),
        added=sum(map(elements, (v for op in program if is_scatter_add(op) for v in op.operands[2::2]))),
        code=work.code,
    )
    return _of_reductions(found, program, stored, axes, layouts, elements, read, instructions, work.counts)


def times_computed(program: list[Op], stored: list[Value], axes: Axes, layouts: Mapping[Value, Layout],
                   elements: Callable[[Value], int], device: Coefficients) -> dict[Op, float]:  # fmt: skip
    """How often a kernel of ``program``, in order, that stores ``stored`` computes each element of an op's result: at
    several indices, for elements that it is broadcast to, and, about twice, in each pass over rows that are not
    kept."""
    work = work_of(reversed(program), stored, elements)
    found = of_kernel(program, stored, axes, layouts, elements, work=work)
    along = _along(program, stored, axes, layouts, elements)
    loops = loops_of(program, stored, axes, along, device.vector, elements)
    passes = 2 if found.repeated and not device.keeps(found) else 1
    return {
        op: n / elements(op.results[0]) * loops.times(op.results[0]) * (1 if op.results[0] in loops.late else passes)
        for op, n in work.counts.items()
        if isinstance(op, Op)
    }


def of_segment(analysis: Analysis, env: Mapping[str, int]) -> Features:
    """The features of an analyzed segment in a call with the sizes ``env``."""
    layouts = {value: Layout(strides) for value, strides in analysis.strides.items()}
    sizes: dict[Value, int] = {}

    def elements(value: Value) -> int:
        if value not in sizes:
            sizes[value] = max(1, sz.known(value.numel, env))
        return sizes[value]

    scalars = set(analysis.scalars)
    return of_kernel(analysis.ops, analysis.outputs, analysis.axes, layouts, elements, scalars.__contains__)


class Loops:
    """What a kernel's threads go over: ``domain``, ``size`` elements, ``vector`` at a time along the axis ``along``.
    They reduce the axes ``reduced``, on which the values ``late`` depend."""

    def __init__(self, domain: Set[Axis], size: int, reduced: Set[Axis], along: Axis | None, vector: int,
                 late: Set[Value], axes: Axes, elements: Callable[[Value], int]):  # fmt: skip
        self.domain, self.size, self.reduced, self.late = domain, size, reduced, late
        self.along, self.vector, self.axes, self.elements = along, vector, axes, elements

    def times(self, value: Value) -> float:
        """How often the kernel computes each element of ``value``, which results are broadcast from: threads do not
        share it, unless it is one of a row that they reduce together, or of a vector. Integers count once: mostly they
        are indices, which take less than the instructions of their ops."""
        own, count = set(self.axes.flat(value)), self.elements(value)
        if not own < self.domain or value in self.late or value.dtype.kind not in "fc":
            return 1
        if self.reduced:
            return self.size / count if own & self.reduced else 1
        return max(1, self.size / count / (1 if self.along in own else self.vector))


def loops_of(program: list[Op], stored: list[Value], axes: Axes, along: Axis | None, vector: int,
             elements: Callable[[Value], int]) -> Loops:  # fmt: skip
    """The loops of a kernel of ``program`` that stores ``stored``."""
    reductions = [op for op in program if is_reduction(op) and axes.reduced(op)]
    reduced = {axis for op in reductions for axis in axes.reduced(op)}
    widest = max([*stored, *(op.operands[0] for op in reductions)], key=elements, default=None)
    late = {value for op in reductions for value in op.results}
    for op in program if late else ():
        if any(v in late for v in op.operands):
            late.update(op.results)
    domain = set() if widest is None else set(axes.flat(widest))
    size = 1 if widest is None else elements(widest)
    return Loops(domain, size, reduced, along, vector, late, axes, elements)


def _reduced_by(op: Op, elements: Callable[[Value], int]) -> float:
    """How many elements the op goes through for each of its result."""
    return max(1.0, elements(op.operands[0]) / elements(op.results[0])) if is_reduction(op) else 1.0


def _along(
    program: list[Op],
    stored: list[Value],
    axes: Axes,
    layouts: Mapping[Value, Layout],
    elements: Callable[[Value], int],
) -> Axis | None:
    """The axis that is contiguous in the largest output."""
    main = max(stored, key=elements, default=None)
    return None if main is None else innermost(main, axes, layouts)


def _shifts(op: Op, source: Value, along: Axis | None, axes: Axes) -> bool:
    """Whether ``op`` reads its operand at other indices along the dimension that ``along`` is of ``source``. Operands
    of a concatenation lie there as they are, and gathers have their own price."""
    if not (op.operands and op.row.indexed) or op.row.kind == "index" or op.name == "concatenate":
        return False
    given, made = axes.dims(op.operands[0]), axes.dims(op.result)
    dims = [k for k, dim in enumerate(axes.dims(source)) if along in dim]
    return len(given) == len(made) == source.rank and any(given[k] != made[k] for k in dims)


def _of_reductions(
    found: Features,
    program: list[Op],
    stored: list[Value],
    axes: Axes,
    layouts: Mapping[Value, Layout],
    elements: Callable[[Value], int],
    read: dict[Value, int],
    instructions: dict[Op, float],
    counts: Mapping[Op | Value, int],
) -> Features:
    """``found`` with what concerns reductions."""
    phases = phases_of(program, axes)
    if not phases:
        return found
    reductions = [op for phase in phases for op in phase]
    widest = max(reductions, key=lambda op: elements(op.operands[0])).operands[0]
    size = elements(widest)
    reduced_axes = {axis for op in reductions for axis in axes.reduced(op)}
    source = max((v for v in read if reduced_axes & set(axes.flat(v))), key=elements, default=widest)
    along = innermost(source, axes, layouts)
    inner = along in reduced_axes
    shifted = sum(counts.get(op, 0) for op in program if inner and _shifts(op, source, along, axes))
    late = {value for op in reductions for value in op.results}
    for op in program:
        if any(v in late for v in op.operands):
            late.update(op.results)
    results_in_rows = any(2 * elements(v) > size for v in stored if v in late)
    passes = len(phases) + results_in_rows
    # what full rows are computed from
    early = sum(n for op, n in instructions.items() if op.results[0] not in late and 2 * elements(op.results[0]) > size)
    wide = sum(n for v, n in read.items() if 2 * elements(v) > size)
    walked = float(sum(elements(op.operands[0]) for op in reductions))
    return found._replace(
        reduced=walked if inner else 0,
        columns=0 if inner else walked,
        shifted=shifted,
        row=max(size / elements(op.results[0]) for op in reductions),
        phases=len(phases),
        reread=(passes - 1) * wide,
        repeated=(passes - 1) * early,
    )
