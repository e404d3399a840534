"""fusion-topk: replace a sort of which few elements are used by topk."""

from __future__ import annotations

from dataclasses import dataclass

from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.ir.sizes import Size
from mlirfuse.passes.base import Pass, blocks, register

_TYPES = {"f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8"}  # supported by both NumPy's and torch's selection


@register
class TopK(Pass):
    """Replaces a sort whose users are slices of at most ``most`` elements at one end by ``topk``, which a library
    computes without sorting all elements.

    Before::

        %0 = "fusion.sort"(%x) {axis = 1}
        %1 = "fusion.slice"(%0) {start = ["0", "s1 - 1"], size = ["s0", "s1"], step = [1, -1]}
        %2 = "fusion.slice"(%1) {start = ["0", "0"], size = ["s0", "8"], step = [1, 1]}

    After::

        %0 = "fusion.topk"(%x) {axis = 1, count = 8, largest = true}
    """

    name = "fusion-topk"
    most: int = 64
    least: int = 512  # elements along the axis, if known: sorting shorter rows is as fast

    def run(self, graph: Graph) -> None:
        for block in list(blocks(graph)):
            for op in [op for op in block.ops if op.name == "sort" and op.result.dtype.name in _TYPES]:
                self._replace(block, op)

    def _replace(self, block: Block, op: Op) -> None:
        axis = op.attrs["axis"] % op.result.rank
        extent = op.result.shape[axis]
        if isinstance(extent, int) and extent < self.least:
            return
        ends = _cuts(block, op.result, _Cut(0, 1, extent), axis)
        if not ends or not all(cut.at_an_end(extent, self.most) for _, cut in ends):
            return
        created: dict[tuple[int, bool], Op] = {}
        for cut_by, cut in ends:
            assert isinstance(cut.size, int)
            count, largest = cut.size, cut.largest(extent)
            if (count, largest) not in created:
                created[count, largest] = self._topk(block, op, axis, count, largest)
            result = created[count, largest].result
            if largest == (cut.step > 0):
                result = _reversed(block, created[count, largest], axis)
                if cut_by.result in block.returns:  # many a reader takes no negative strides
                    copy = Op("copy", [result], {}, [Value(result.dtype, result.shape)], loc=op.loc)
                    block.ops.insert(block.ops.index(result.op) + 1, copy)
                    result = copy.result
            block.replace(cut_by.result, result)

    @staticmethod
    def _topk(block: Block, op: Op, axis: int, count: int, largest: bool) -> Op:
        shape = (*op.result.shape[:axis], count, *op.result.shape[axis + 1 :])
        attrs = {"axis": axis, "count": count, "largest": largest}
        created = Op("topk", op.operands, attrs, [Value(op.result.dtype, shape)], loc=op.loc)
        block.ops.insert(block.ops.index(op), created)
        return created


@dataclass(frozen=True)
class _Cut:
    """The ``size`` elements along an axis from ``start`` on, with step ``step``."""

    start: Size
    step: int
    size: Size

    def of(self, start: Size, step: int, size: Size) -> _Cut:
        """Return a cut of this cut."""
        return _Cut(self.start + self.step * start, self.step * step, size)

    def largest(self, extent: Size) -> bool:
        """Whether it is at the end of ``extent`` elements."""
        return (self.start if self.step < 0 else self.start + self.size - 1) == extent - 1

    def at_an_end(self, extent: Size, most: int) -> bool:
        """Whether it is a few adjacent elements at the beginning or the end."""
        if not isinstance(self.size, int) or not 1 <= self.size <= most or abs(self.step) != 1:
            return False
        return self.largest(extent) or (self.start if self.step > 0 else self.start - self.size + 1) == 0


def _cuts(block: Block, value: Value, cut: _Cut, axis: int) -> list[tuple[Op, _Cut]] | None:
    """Return the slices that cut ``value``, itself a ``cut`` of the sorted tensor, and the cuts that they take; for a
    reversal, its users' slices. None where something else reads it."""
    readers = block.users().get(value, [])
    if value in block.returns or any(not _is_along(reader, axis) for reader in readers):
        return None
    found = []
    for reader in readers:
        attrs = reader.attrs
        inner = cut.of(attrs["start"][axis], attrs["step"][axis], reader.result.shape[axis])
        if inner.size == cut.size:
            deeper = _cuts(block, reader.result, inner, axis)
            if deeper is None:
                return None
            found += deeper
        else:
            found.append((reader, inner))
    return found


def _is_along(op: Op, axis: int) -> bool:
    """Whether ``op`` is a slice that takes all elements along every other axis."""
    if op.name != "slice" or op.group is not None:
        return False
    shape, attrs = op.operands[0].shape, op.attrs
    dims = enumerate(zip(attrs["start"], attrs["step"], attrs["size"]))
    return all(k == axis or dim == (0, 1, shape[k]) for k, dim in dims)


def _reversed(block: Block, created: Op, axis: int) -> Value:
    shape = created.result.shape
    start, step = [0] * len(shape), [1] * len(shape)
    start[axis], step[axis] = shape[axis] - 1, -1
    attrs = {"start": tuple(start), "size": tuple(shape), "step": tuple(step)}
    op = Op("slice", [created.result], attrs, [Value(created.result.dtype, shape)], loc=created.loc)
    block.ops.insert(block.ops.index(created) + 1, op)
    return op.result
