"""The analysis of a segment for schedulers: its iteration domain, its reductions in phases, its inputs and outputs."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlirfuse.analysis.axes import Axes, Axis, equal_ends
from mlirfuse.analysis.result_slices import ResultSlice, sliced_results
from mlirfuse.core.errors import CompileError
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Layout, Op, Value
from mlirfuse.ir.sizes import Size


@dataclass
class Analysis:
    """The analysis of a segment.

    ``kept`` and ``reduced`` are the axes of the domain, outermost first; ``phases`` the reductions by dependency: those
    of one phase depend only on earlier phases. ``scans``: in program order; ``reduced`` are then the axes that they run
    along, in row-major order, and the segment's reductions, over the same axes, depend on no scan. ``strides``: of
    every tensor in memory (inputs and outputs). ``scatter_add``: the op that adds the values, which the domain runs
    over, to rows of its result, which is then the only output. ``product``: the matrix product whose result the
    other ops work on, element by element; the domain is its result's.
    """

    ops: list[Op]
    inputs: list[Value]
    outputs: list[Value]
    scalars: list[Value]
    axes: Axes
    kept: list[Axis]
    reduced: list[Axis]
    phases: list[list[Op]]
    strides: dict[Value, tuple[Size, ...]]
    partials: list[Op] = field(default_factory=list)  # partial sums over the kept axes (rows), see inner_outer
    finishing: list[Op] = field(default_factory=list)  # the sums of the partial sums, and the ops that depend on them
    scans: list[Op] = field(default_factory=list)
    scatter_add: Op | None = None
    product: Op | None = None
    pinned: set[Axis] = field(default_factory=set)  # axes whose index is used: never merged with others
    hint: Mapping[str, int] = field(default_factory=dict)  # one call's sizes; the order of strides is every call's
    passed_on: frozenset[Value] = frozenset()  # values passed between the kernels of one segment
    results: dict[Value, tuple[Size, ...]] = field(
        default_factory=dict
    )  # those that are outputs too, with their strides as outputs
    inside: dict[Value, ResultSlice] = field(default_factory=dict)  # outputs that are stored as parts of others
    _strides: dict[Value, defaultdict[Axis, Size]] = field(default_factory=dict)
    _loops: dict[tuple[Axis, ...], list[list[Axis]]] = field(default_factory=dict)
    _once: dict[object, Any] = field(default_factory=dict)
    _last: dict[object, tuple[dict[str, int], tuple[int, ...]]] = field(default_factory=dict)

    @property
    def domain(self) -> list[Axis]:
        return self.kept + self.reduced

    @property
    def written(self) -> list[Value]:
        """The tensors that outputs are stored in: themselves, or those that they are parts of."""
        return list(dict.fromkeys(map(self.whole, self.outputs)))

    def whole(self, value: Value) -> Value:
        """Return the tensor that ``value`` is stored in: itself, or the one that it is a part of."""
        return self.inside[value].whole if value in self.inside else value

    @property
    def reduces(self) -> bool:
        """Whether it has reductions within rows, and otherwise only elementwise ops."""
        return bool(self.phases) and not (self.partials or self.finishing or self.scans)

    @property
    def elementwise(self) -> bool:
        """Whether each element of an output depends on elements of inputs alone."""
        return not (self.phases or self.partials or self.finishing or self.scans or self.scatter_add or self.product)

    def once(self, function: Callable[..., Any], *args) -> Any:
        """Return ``function(self, *args)``, computed once: for results that do not depend on the sizes of a call."""
        key = function, args
        found = self._once.get(key)
        if found is None:
            found = self._once[key] = function(self, *args)
        return found

    def remembered(self, function: Callable[..., Any], *args) -> Any:
        """Return ``function(self, *args)``, cached for the last thousand ``args``: for results that depend on a few
        numbers of a call."""
        return self.once(_remembering, function)(*args)

    def values(self, function: Callable[..., Iterable[Size]], env: dict[str, int], *args) -> tuple[int, ...]:
        """Return the values, for the sizes ``env`` of a call, of the symbolic sizes that ``function(self, *args)``
        lists, compiled into one function of ``env``. The last result is cached: several schedulers ask for the same."""
        key = function, args
        last = self._last.get(key)
        if last is not None and last[0] is env:
            return last[1]
        values = self.once(_compiled, function, *args)(env)
        self._last[key] = env, values
        return values

    def late_values(self) -> set[Value]:
        """Return the values that depend on a reduction of the segment."""
        late: set[Value] = {op.result for phase in self.phases for op in phase}
        for op in self.ops:
            if any(v in late for v in op.operands):
                late.update(op.results)
        return late

    def stored(self, value: Value) -> DType:
        """Return the type that a tensor's elements have in memory. Values passed between kernels of one segment are
        kept as computed: 16-bit floats in float32."""
        return value.dtype.compute if value in self.passed_on else value.dtype

    def axis_stride(self, value: Value, axis: Axis) -> Size:
        """Return the stride, in elements, of a tensor in memory along an axis; 0 where it does not have the axis."""
        found = self._strides.get(value)
        if found is None:
            found = self._strides[value] = _axis_strides(self.axes, value, self.strides[value])
        return found[axis]

    def span(self, value: Value) -> Size:
        """Return the number of elements of memory from a tensor's first element to its last, where no stride is
        negative."""
        return sum((sz.mul(n - 1, s) for n, s in zip(value.shape, self.strides[value])), 0) + 1

    def loops(self, axes: list[Axis]) -> list[list[Axis]]:
        """Return ``axes`` merged into as few loops as possible: neighbours merge where both are one dimension in the
        memory of every tensor."""
        key = tuple(axes)
        if key not in self._loops:
            self._loops[key] = self._merged(axes)
        return self._loops[key]

    def _merged(self, axes: list[Axis]) -> list[list[Axis]]:
        loops: list[list[Axis]] = []
        tensors = [v for v in self.inputs + self.outputs if self._direct(v)]
        rows: list[Callable[[Axis], Size]] = [functools.partial(self.axis_stride, v) for v in tensors]
        for op in self.ops:
            if op.row.kind == "random":  # counts elements in row-major order, like a tensor in memory
                strides = sz.contiguous_strides(op.result.shape)
                rows.append(_axis_strides(self.axes, op.result, strides).__getitem__)
        for axis in axes:
            if loops:
                outer = loops[-1][-1]
                fits = outer not in self.pinned and axis not in self.pinned
                if fits and all(row(outer) == sz.mul(row(axis), axis.size) for row in rows):
                    loops[-1].append(axis)
                    continue
            loops.append([axis])
        return loops

    def _direct(self, value: Value) -> bool:
        domain = set(self.domain)
        return any(a in domain for dim in self.axes.dims(value) for a in dim)


def _compiled(analysis: Analysis, function: Callable[..., Iterable[Size]], *args) -> Callable[..., tuple[int, ...]]:
    return sz.tuple_function(function(analysis, *args))


def _remembering(analysis: Analysis, function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.lru_cache(1024)(functools.partial(function, analysis))


def _axis_strides(axes: Axes, value: Value, strides: Iterable[Size]) -> defaultdict[Axis, Size]:
    """The stride along each axis of ``value`` in memory where its dimensions have ``strides``; 0 along any other."""
    found: defaultdict[Axis, Size] = defaultdict(int)
    for dim, stride in zip(axes.dims(value), strides):
        for axis in reversed(dim):
            found.setdefault(axis, stride)
            stride = sz.mul(stride, axis.size)
    return found


def size_of(loop: list[Axis]) -> Size:
    """Return the trip count of a loop over merged axes."""
    return sz.product(a.size for a in loop)


def points_of(loops: Iterable[list[Axis]]) -> Size:
    """Return the number of points of a nest of loops."""
    return sz.product(map(size_of, loops))


def row_extents(analysis: Analysis) -> tuple[Size, Size]:
    """The numbers of points of the kept axes and of the reduced axes: of rows, and their length."""
    return sz.product(a.size for a in analysis.kept), sz.product(a.size for a in analysis.reduced)


def kept_extents(analysis: Analysis) -> list[Size]:
    """The extents of the kept loops."""
    return [size_of(loop) for loop in analysis.loops(analysis.kept)]


def is_reduction(op: Op) -> bool:
    return op.row.kind == "reduce"


def is_scan(op: Op) -> bool:
    return op.row.kind == "scan"


def apart(analysis: Analysis) -> bool:
    """Whether no scan of a segment depends on another: the state of a section of a row is then known without the
    sections before it."""
    scanned = {op.result for op in analysis.scans}
    for op in analysis.ops:
        if any(v in scanned for v in op.operands):
            if op in analysis.scans:
                return False
            scanned.update(op.results)
    return True


def is_scatter_add(op: Op) -> bool:
    return op.row.kind == "accumulate"


def is_product(op: Op) -> bool:
    return op.row.kind == "product"


def phases_of(program: list[Op], axes: Axes) -> list[list[Op]]:
    """Return the reductions of ``program`` by depth: the number of reductions that each one depends on in a chain."""
    depth: dict[Value, int] = {}
    phases: list[list[Op]] = []
    for op in program:
        level = max((depth.get(v, 0) for v in op.operands), default=0)
        if is_reduction(op) and axes.reduced(op):
            while len(phases) <= level:
                phases.append([])
            phases[level].append(op)
            level += 1
        for result in op.results:
            depth[result] = level
    return phases


def analyze(
    program: list[Op],
    outputs: list[Value],
    layouts: dict[Value, Layout],
    scalars: set[Value],
    hint: Mapping[str, int],
    around: Axes | None = None,
    by_parts: bool = True,
) -> Analysis:
    """Analyze one segment. ``layouts``: the strides of values in memory; others are contiguous. ``hint``: the sizes of
    one call, for the order of axes; ``around``: the axes of the program that the segment is from."""

    def strides_of(value: Value) -> tuple[Size, ...]:
        layout = layouts.get(value)
        found = layout.strides if layout else sz.contiguous_strides(value.shape)
        return tuple(0 if n == 1 else s for n, s in zip(value.shape, found))

    split = sliced_results(program, outputs, strides_of, hint, around) if by_parts else None
    program, outputs, axes, inside = split or (program, outputs, Axes(program, around), {})
    created = {v for op in program for v in op.results}
    read = list(dict.fromkeys(v for op in program for v in op.operands if v not in created))
    inputs = [v for v in read if v not in scalars]
    inputs.extend(value for value in outputs if value not in created)
    strides = {value: strides_of(value) for value in inputs + outputs}
    strides |= {value: part.strides for value, part in inside.items()}
    _adopt_reshapes(program, [v for v in inputs if v not in outputs], strides, axes)
    partials = [op for op in program if op.row.kind == "partial"]
    finishing = following(program, partials)
    phases = phases_of([op for op in program if op not in finishing], axes)
    scans = [op for op in program if is_scan(op) and axes.scanned(op)]
    scatter_add = next(filter(is_scatter_add, program), None)
    product = next(filter(is_product, program), None)
    if scans:
        reduced = axes.scanned(scans[0])
        kept = [a for a in axes.flat(scans[0].result) if a not in reduced]
    elif phases:
        first = phases[0][0]
        reduced = axes.reduced(first)
        full = axes.flat(first.operands[0])
        kept = [a for a in full if a not in reduced]
    elif scatter_add is not None:
        kept, reduced = axes.flat(scatter_add.operands[2]), []
    elif product is not None:
        kept, reduced = axes.flat(product.result), []
    elif partials:
        full = axes.flat(partials[0].operands[0])
        kept = [a for d in partials[0].attrs["axes"] for a in axes.dims(partials[0].operands[0])[d]]
        reduced = [a for a in full if a not in kept]
    else:
        widest = max(outputs, key=lambda v: len(axes.flat(v)))
        kept, reduced = axes.flat(widest), []
    analysis = Analysis(
        program,
        inputs,
        outputs,
        [v for v in read if v in scalars],
        axes,
        kept,
        reduced,
        phases,
        strides,
        partials,
        finishing,
        scans,
        scatter_add,
        product,
        inside=inside,
    )
    for value in outputs:
        if value.op in partials or value.op in finishing or value.op is scatter_add is not None:
            continue
        if not set(axes.flat(value)) <= set(analysis.domain):
            raise CompileError(
                f"{value!r} has axes that its segment lacks: fusion-segment and the kernels disagree about the axes"
            )
    analysis.pinned, analysis.hint = _pinned(program, axes), hint
    _order(analysis, hint)
    return analysis


def following(program: list[Op], some: list[Op]) -> list[Op]:
    """Return the ops that depend on results of ``some`` of them."""
    reached, out = {v for op in some for v in op.results}, []
    for op in program:
        if any(v in reached for v in op.operands):
            reached.update(op.results)
            out.append(op)
    return out


def _adopt_reshapes(program: list[Op], inputs: list[Value], strides: dict[Value, tuple], axes: Axes) -> None:
    """Give each contiguous input of which only one reshape is used, and which has the same memory layout, the axes of
    that reshape, where its own differ."""
    reshaped = {op.operands[0] for op in program if op.name == "reshape"}
    for value in inputs:
        if value not in reshaped:
            continue
        first, *others = [op for op in program if value in op.operands]
        plain = tuple(0 if n == 1 else s for n, s in zip(value.shape, sz.contiguous_strides(value.shape)))
        if (
            strides[value] == plain
            and any(n != 1 for n in value.shape)
            and all(op.name == "reshape" for op in (first, *others))
        ):
            flat = axes.flat(first.result)
            if flat != axes.flat(value) and all(axes.flat(op.result) == flat for op in others):
                axes.adopt(value, first.result)


def _pinned(program: list[Op], axes: Axes) -> set[Axis]:
    """Return the axes whose index is mapped at some use. Merged with another, such an axis would carry the index of
    both, and that use would get the wrong index."""
    pinned: set[Axis] = set()
    for op in program:
        if op.row.indexed:
            dims = list(axes.dims(op.result))
            for operand in op.operands:
                for d, dim in enumerate(axes.dims(operand)):
                    if d >= len(dims) or dim != dims[d]:
                        pinned.update(dim)
            for d, dim in enumerate(dims):
                same = op.operands and op.operands[0].rank == len(dims) and axes.dims(op.operands[0])[d] == dim
                if not same:
                    pinned.update(dim)
            if is_scatter_add(op):
                pinned.update(a for v in (op.result, *op.operands[2::2]) for a in axes.dims(v)[0])
            if op.name == "take":
                pinned.update(a for dim in axes.dims(op.operands[1]) for a in dim)
            if op.name == "take_along_axis":
                pinned.update(axes.dims(op.operands[0])[op.attrs["axis"]] + dims[op.attrs["axis"]])
        elif op.name == "reshape":
            given, made = axes.flat(op.operands[0]), axes.flat(op.result)
            if given != made:
                first, last = equal_ends(given, made)
                pinned.update(given[first : len(given) - last], made[first : len(made) - last])
        elif op.row.kind in ("elementwise", "scan"):
            for operand in op.operands:
                for d in range(operand.rank):
                    if operand.shape[d] != 1 and axes.dims(operand)[d] != axes.dims(op.result)[d]:
                        pinned.update(axes.dims(op.result)[d], axes.dims(operand)[d])
        elif op.name == "broadcast_in_dim":
            for k, d in enumerate(op.attrs["dims"]):
                if op.operands[0].shape[k] != 1 and axes.dims(op.operands[0])[k] != axes.dims(op.result)[d]:
                    pinned.update(axes.dims(op.result)[d], axes.dims(op.operands[0])[k])
        elif op.row.accumulator == "position":
            pinned.update(axes.reduced(op))
    return pinned


def maps_index(op: Op, axes: Axes) -> bool:
    """Return whether ``op`` may read an operand at another index than its result's."""
    return bool(_pinned([op], axes))


def reads_elsewhere(analysis: Analysis, argument: Value) -> bool:
    """Return whether an element that depends on ``argument`` may read it at another index than its own."""
    reached = {argument}
    for op in analysis.ops:
        if any(v in reached for v in op.operands):
            if maps_index(op, analysis.axes):
                return True
            reached.update(op.results)
    return False


def _order(analysis: Analysis, hint: Mapping[str, int]) -> None:
    """Order the domain's axes by memory: the reduced ones as in the largest input; the kept ones as in the first output
    over them, or, in a reduction that reads several times as much as it writes, as in the largest input; scanned axes
    keep their order. ``hint``: sizes of one call; all calls of a specialization have the same order of strides."""
    of_memory = [(analysis.kept, _decisive(analysis))]
    if not analysis.scans:
        of_memory.append((analysis.reduced, analysis.inputs))
    for axes, tensors in of_memory:
        covering = [v for v in tensors if set(axes) <= set(analysis.axes.flat(v))]
        if covering and axes:
            main = max(covering, key=lambda v: len(analysis.axes.flat(v)))
            axes.sort(key=lambda a: -abs(sz.substitute(analysis.axis_stride(main, a), hint)))


def _decisive(analysis: Analysis) -> list[Value]:
    """Return the tensors whose memory order the kept axes take over."""
    domain = set(analysis.domain)
    stores_rows = any(set(analysis.axes.flat(v)) == domain for v in analysis.outputs)
    if not analysis.phases or analysis.scans or stores_rows:
        return analysis.outputs
    rows = [v for v in analysis.inputs if set(analysis.axes.flat(v)) == domain]
    return rows or analysis.outputs


def depends_on(analysis: Analysis, axes) -> set[Value]:
    """Return the values of the segment with any of ``axes``."""
    axes = set(axes)
    return {v for op in analysis.ops for v in op.results if axes & set(analysis.axes.flat(v))}


def is_outer(analysis: Analysis, env: dict[str, int]) -> bool:
    """Whether memory is contiguous along a kept axis: the smallest stride of the widest input is not a reduced axis'.

    The axes of an input that is sliced, concatenated or padded along a dimension are its own; they count as the axis
    of the domain that they become, kept or reduced. Where that is not known, as of a gather, they count as the pinned
    axis that they are indexed from."""
    return analysis.once(_outer)(env)


def _outer(analysis: Analysis):
    """Return :func:`is_outer` as a function of the sizes."""
    domain = set(analysis.domain)

    def visited(value: Value) -> set[Axis]:
        """The axes of the domain along which other elements are read; of a gather, those of its indices, too."""
        axes = set(analysis.axes.flat(value))
        return axes & domain | (set() if axes <= domain else analysis.pinned & domain)

    inputs = [v for v in analysis.inputs if visited(v) & set(analysis.reduced)]
    if not inputs or not analysis.kept or not analysis.reduced:
        return lambda env: False
    main = max(inputs, key=lambda v: len(visited(v)))
    along_kept, becomes = analysis.pinned.isdisjoint(analysis.reduced), _becomes(analysis)
    kept, reduced = list(analysis.kept), list(analysis.reduced)
    for axis in analysis.axes.flat(main):
        if axis not in analysis.domain:
            found = becomes.get(axis, set()) & domain
            is_kept = not found.isdisjoint(analysis.kept) if found else along_kept
            (kept if is_kept else reduced).append(axis)
    strides = [[analysis.axis_stride(main, axis) for axis in axes] for axes in (kept, reduced)]
    least = [f"min({sz.serialized(f'abs({n}) or {1 << 62}' for n in some)})" for some in strides]
    return sz.function(" < ".join(least), sz.symbols_of(strides[0] + strides[1]))


def _becomes(analysis: Analysis) -> dict[Axis, set[Axis]]:
    """The axes that a value's own axes are seen as where it is sliced, concatenated or padded, through all such ops."""
    found: dict[Axis, set[Axis]] = {}
    for op in reversed(analysis.ops):
        if op.row.indexed and op.row.kind == "shape":
            for value in op.operands:
                if value.rank == op.result.rank:
                    for given, made in zip(analysis.axes.dims(value), analysis.axes.dims(op.result)):
                        behind = set(made).union(*(found.get(axis, set()) for axis in made))
                        for axis in given if given != made else ():
                            found.setdefault(axis, set()).update(behind)
    return found


def late_outputs(analysis: Analysis) -> tuple[list[Value], list[Value]]:
    """Return the outputs with a reduced axis, and the outputs over kept axes only."""
    reduced = set(analysis.reduced)
    full = [v for v in analysis.outputs if reduced & set(analysis.axes.flat(v))]
    return full, [v for v in analysis.outputs if v not in full]
