"""fusion-one-pass-variance: squared deviations without computing the mean first."""

from __future__ import annotations

import numpy as np

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Block, Graph, Op, Uses, Value
from mlirfuse.ir.ops import axes_of
from mlirfuse.passes.base import Pass, blocks, register


@register
class OnePassVariance(Pass):
    """Recognizes the sum of squared deviations of a tensor from its own mean, in the forms that mean, var and norms
    expand to, and rewrites it to one reduction that needs no mean beforehand (``fusion.m2``). Mean and variance then
    take one pass, or one exchange between threads, not two. Schedulers accumulate it by Welford's and Chan's updates,
    which are at least as accurate as two passes. Where the sum of the deviations themselves, which is 0 but for the
    rounding of the mean, corrects the squares, the reduction's own updates are corrected (``exact_zero``).

    Before::

        %s = "fusion.sum"(%x) {axes = [1], keepdims = true}
        %m = "fusion.div"(%s, %n)                   // %n: the number of elements
        %d = "fusion.sub"(%x, %m)
        %q = "fusion.mul"(%d, %d)
        %v = "fusion.sum"(%q) {axes = [1]}

    After::

        %v = "fusion.m2"(%x) {axes = [1], exact_zero = false}
    """

    name = "fusion-one-pass-variance"

    def run(self, graph: Graph) -> None:
        for block in list(blocks(graph)):
            uses, maxima = Uses(block), [op for op in block.ops if op.name == "maximum"]
            for op in list(block.ops):
                source = _deviations_of(op)
                if source is not None:
                    self._replace(block, uses, op, source, [m.result for m in maxima if _corrects(m, op)])

    def _replace(self, block: Block, uses: Uses, op: Op, source: Value, corrected: list[Value]) -> None:
        attrs = {**op.attrs, "exact_zero": bool(corrected)}
        new = Op("m2", [source], attrs, [Value(op.result.dtype, op.result.shape)], loc=op.loc)
        new.group, new.segment = op.group, op.segment
        block.ops[block.ops.index(op)] = new
        uses.add(new)
        for value in (op.result, *corrected):
            uses.replace(value, new.result)


def _corrects(maximum: Op, squares: Op) -> bool:
    """Whether ``maximum`` is the sum of squared deviations ``squares``, corrected by the sum s of the deviations:
    ``max(squares - min(s * (s / n), the largest number), 0)``."""
    difference, zero = maximum.operands
    if not _is_constant(zero, 0) or difference.op is None or difference.op.name != "sub":
        return False
    rounded, excess = difference.op.operands
    if rounded is not squares.result or excess.op is None or excess.op.name != "minimum":
        return False
    product, largest = excess.op.operands
    if not _is_constant(largest, np.finfo(largest.dtype.numpy).max) or product.op is None or product.op.name != "mul":
        return False
    rest, mean = product.op.operands
    deviation = squares.operands[0].op.operands[0]
    count = sz.product(deviation.shape[a] for a in axes_of(squares.attrs, deviation.rank))
    return (
        (rest.op is not None and rest.op.name == "sum" and rest.op.operands == [deviation])
        and rest.op.attrs == squares.attrs
        and (mean.op is not None and mean.op.name == "div" and mean.op.operands[0] is rest)
        and _is_number(mean.op.operands[1], count, False)
    )


def _deviations_of(op: Op) -> Value | None:
    """Return the tensor whose squared deviations from its mean ``op`` sums, or None."""
    if op.name != "sum" or not op.operands[0].dtype.is_float:
        return None
    square = op.operands[0].op
    if square is None or square.name != "mul" or square.operands[0] is not square.operands[1]:
        return None
    difference = square.operands[0].op
    if difference is None or difference.name != "sub":
        return None
    source, mean = difference.operands
    if source.shape != op.operands[0].shape:
        return None
    axes = axes_of(op.attrs, source.rank)
    while mean.op is not None and mean.op.row.in_order:
        mean = mean.op.operands[0]
    quotient = mean.op
    if quotient is None or quotient.name not in ("div", "mul"):
        return None
    total, count = quotient.operands
    if (
        total.op is None
        or total.op.name != "sum"
        or total.op.operands[0] is not source
        or axes_of(total.op.attrs, source.rank) != axes
    ):
        return None
    number = sz.product(source.shape[a] for a in axes)
    return (
        source
        if _is_number(count, number, quotient.name == "mul") and _aligned(difference.operands[1], total, source, axes)
        else None
    )


def _is_number(value: Value, number: sz.Size, inverted: bool) -> bool:
    """Whether ``value`` is ``number``, or its reciprocal if ``inverted``."""
    while value.op is not None and value.op.name == "cast":
        value = value.op.operands[0]
    if value.op is None:
        return False
    if value.op.name == "size":
        return not inverted and value.op.attrs["value"] == number
    return isinstance(number, int) and _is_constant(value, 1 / number if inverted else number)


def _is_constant(value: Value, number: float) -> bool:
    """Whether ``value`` is the constant ``number``, rounded to its type."""
    if value.op is None or value.op.name != "constant":
        return False
    constant = value.op.attrs["value"]
    return constant == type(constant)(number)


def _aligned(mean: Value, total: Value, source: Value, axes) -> bool:
    """Whether the mean has extent 1 in the reduced axes and the tensor's other axes: it is then each row's own mean."""
    return (
        mean.shape == tuple(1 if d in axes else n for d, n in enumerate(source.shape))
        and sz.product(mean.shape) == total.numel
    )
