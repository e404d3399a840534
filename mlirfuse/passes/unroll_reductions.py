"""fusion-unroll-reductions: reductions of a few elements as elementwise ops."""

from __future__ import annotations

from collections.abc import Mapping

from mlirfuse.analysis.views import strides_through
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Op, Value, walk
from mlirfuse.ir.ops import axes_of
from mlirfuse.ir.sizes import Size
from mlirfuse.passes.base import Pass, blocks, register

MOST = 8  # elements
_COMBINED = {"sum": "add", "max": "maximum", "min": "minimum"}
_Strides = Mapping[Value, tuple[Size, ...]]


@register
class UnrollReductions(Pass):
    """Rewrites reductions of up to eight elements to elementwise ops on slices of what they are computed from, where
    these do not lie next to each other in memory, or windows of them overlap: each thread of a kernel of elementwise
    ops reads vectors of all of them, where threads of a reduction would have to add up what they have read. Nothing
    else may need all of what is reduced.

    Before, of an argument with strides (1, 1)::

        %1 = "fusion.sum"(%w) {axes = [1]} : (tensor<?x2xf32>) -> tensor<?xf32>

    After::

        %1 = "fusion.slice"(%w) {start = [0, 0], …} : (tensor<?x2xf32>) -> tensor<?x1xf32>
        %2 = "fusion.slice"(%w) {start = [0, 1], …} : (tensor<?x2xf32>) -> tensor<?x1xf32>
        %3 = "fusion.add"(%1, %2)
        %4 = "fusion.squeeze"(%3) {axes = [1]} : (tensor<?x1xf32>) -> tensor<?xf32>
    """

    name = "fusion-unroll-reductions"

    def run(self, graph: Graph) -> None:
        strides = {v: layout.strides for v, layout in zip(graph.args, graph.layouts) if layout}
        for op in walk(graph.body):
            strides |= {v: steps for v, steps in zip(op.results, op.attrs.get("strides") or ()) if steps}
        for block in blocks(graph):
            short = [op for op in block.ops if op.name in _COMBINED and _few(op)]
            if short:
                self._block(block, short, strides)

    def _block(self, block: Block, short: list[Op], strides: _Strides) -> None:
        users: dict[Value, list[Op]] = {}
        for op in block.ops:
            for value in op.operands:
                users.setdefault(value, []).append(op)
        returned, new = set(block.returns), []
        known: dict[int, dict[Value, bool]] = {}  # by axis
        for op in short:
            chain = _chain(op)
            roots = {v: _strides(v, strides) for v in chain if not _computed(v)}
            found = known.setdefault(_axis(op), dict.fromkeys(returned, False))
            alone = all(_only_reduced(v, _axis(op), users, found) for v in chain)
            if alone and _gains(op, roots):
                new.append(op)
        for op in new:
            b = Builder(Block(), lambda op=op: op.loc)
            block.replace(op.result, _unrolled(b, op))
            at = block.ops.index(op)
            block.ops[at : at + 1] = b.block.ops


def _few(op: Op) -> bool:
    """Whether a reduction is of two to ``MOST`` elements, along one dimension."""
    (axis, *others), source = axes_of(op.attrs, op.operands[0].rank) or (0, 0), op.operands[0]
    extent = source.shape[axis] if source.rank else 1
    return not others and isinstance(extent, int) and 2 <= extent <= MOST and source.dtype.kind not in "bc"


def _axis(op: Op) -> int:
    return axes_of(op.attrs, op.operands[0].rank)[0]


def _computed(value: Value) -> bool:
    return value.op is not None and value.op.row.kind == "elementwise"


def _chain(op: Op) -> list[Value]:
    """What is reduced, and the values of that extent along the axis from which it is computed elementwise."""
    axis, source = _axis(op), op.operands[0]
    found, left = {source: None}, [source]
    while left:
        value = left.pop()
        if value.op is not None and _computed(value):
            for operand in value.op.operands:
                whole = operand.rank == source.rank and operand.shape[axis] == source.shape[axis]
                if whole and operand not in found:
                    found[operand] = None
                    left.append(operand)
    return list(found)


def _only_reduced(value: Value, axis: int, users: dict[Value, list[Op]], known: dict[Value, bool]) -> bool:
    """Whether all that kernels compute from ``value`` are short reductions along ``axis``, and what needs one element
    along it. ``known``: of values, and those that are returned."""
    if value not in known:
        known[value] = all(
            (user.name in _COMBINED and _few(user) and _axis(user) == axis)
            or (user.name == "slice" and user.attrs["size"][axis] == 1)
            or (user.row.kind == "library" and not _computed(value))
            or (user.row.kind == "elementwise" and _only_reduced(user.result, axis, users, known))
            for user in users.get(value, ())
        )
    return known[value]


def _strides(value: Value, known: _Strides) -> tuple[Size, ...] | None:
    """Of a value in memory, or of one that is seen otherwise; None if unknown."""
    if value in known:
        return known[value]
    if value.op is None or not value.op.row.view:
        return sz.contiguous_strides(value.shape)
    steps = _strides(value.op.operands[0], known) if value.op.operands else None
    return None if steps is None else strides_through(value.op, steps)


def _gains(op: Op, roots: Mapping[Value, tuple[Size, ...] | None]) -> bool:
    """Whether windows overlap, or tensors are contiguous along other dimensions than the reduced one."""
    axis, contiguous = _axis(op), False
    for value, steps in roots.items():
        others = [d for d, n in enumerate(value.shape) if d != axis and n != 1]
        if steps is None or (steps[axis] == 1 and all(steps[d] != 1 for d in others)):
            return False
        if steps[axis] != 0 and any(steps[d] == steps[axis] for d in others):
            return True
        contiguous |= any(steps[d] == 1 for d in others)
    return contiguous


def _unrolled(b: Builder, op: Op) -> Value:
    source, axis, wide = op.operands[0], _axis(op), op.result.dtype.compute
    total: Value | None = None
    for k in range(int(source.shape[axis])):  # type: ignore[arg-type]  # a number: _few
        part = b.cast(_element(b, source, axis, k, {}), wide)
        total = part if total is None else b.op(_COMBINED[op.name], total, part)
    assert total is not None
    if op.name == "sum" and wide.is_float:  # sums start from 0, so that the sum of -0 is 0
        total = b.elementwise("add", total, b.constant(0, wide))
    total = b.cast(total, op.result.dtype)
    return total if op.attrs.get("keepdims") else b.op("squeeze", total, axes=(axis,))


def _element(b: Builder, value: Value, axis: int, k: int, known: dict[Value, Value]) -> Value:
    """Element ``k`` of ``value`` along ``axis``, computed of that element of what it is computed from."""
    if value.rank <= axis or value.shape[axis] == 1:
        return value
    if value not in known:
        if value.op is not None and _computed(value):
            operands = [_element(b, v, axis, k, known) for v in value.op.operands]
            known[value] = b.op(value.op.name, *operands, **value.op.attrs)
        else:
            known[value] = b.slice(value, axis, k, 1)
    return known[value]
