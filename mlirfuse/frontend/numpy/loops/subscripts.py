"""Compiles subscripts: elements, and views by numbers, slices, None and Ellipsis."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.loops import arrays, functions
from mlirfuse.frontend.numpy.loops.arrays import number
from mlirfuse.frontend.numpy.loops.indices import Advanced, Basic, Masked, Selection, check_mask, true_at
from mlirfuse.frontend.numpy.loops.values import (
    PY_INT,
    Array,
    Bytes,
    Lazy,
    NotOutlinable,
    Number,
    Static,
    Tuple,
    require,
)
from mlirfuse.frontend.numpy.loops.variables import Variables
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Val


class Subscripts(Variables):
    """Compiles subscripts."""

    def view(
        self, array: Array, shape: list, strides: list, inner: bool, pointer: str = "", serialized: str = ""
    ) -> Array:
        """Another view of the memory of ``array``."""
        return Array(array.dtype, pointer or array.pointer, shape, strides, inner, array.roots, array.base, serialized)

    def _Subscript(self, node: ast.Subscript) -> Any:
        found = self.value(node.value)
        if isinstance(found, Tuple):
            return self._of_tuple(found, node)
        if isinstance(found, Bytes):
            return self._of_bytes(found.array, node)
        if isinstance(found, Static) and (found.value is np.mgrid or found.value is np.ogrid):
            return self._grid(node, found.value is np.mgrid)
        array = self.array(found)
        return self.read_place(array, self.place(array, node))

    def read_place(self, array: Array, place: str | Array | Masked | Selection) -> Any:
        """The value at what a subscript of ``array`` selects."""
        if isinstance(place, str):
            return number(self.code.load(place, array.dtype, memory=True))
        return place if isinstance(place, Array) else place.read()

    def _of_tuple(self, found: Tuple, node: ast.Subscript) -> Any:
        index = self.value(node.slice) if not isinstance(node.slice, ast.Slice) else None
        if not isinstance(index, Number) or not isinstance(index.known, int):
            raise NotOutlinable("a subscript of a tuple that is not constant")
        try:
            return found.items[index.known]
        except IndexError:
            raise NotOutlinable("a tuple that is too short") from None

    def _of_bytes(self, array: Array, node: ast.Subscript) -> Number:
        require(not isinstance(node.slice, ast.Slice), "a slice of bytes")
        index = self.integer(self.value(node.slice))
        at = arrays.position(self.code, index, array.shape[0], None, (id(node), 0) not in self.unchecked)
        byte = self.code.load(arrays.element_pointer(self.code, array, [at]), array.dtype, memory=True)
        return Number(self.code.cast(byte, dt.i64), PY_INT, array.dtype.bits)

    def _items(self, node: ast.Subscript) -> list[ast.expr]:
        return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]

    def place(self, array: Array, node: ast.Subscript) -> str | Array | Masked | Selection:
        """What a subscript selects: a pointer to an element, a view, or elements by masks and index arrays."""
        items = [item if isinstance(item, ast.Slice) else self._item(item) for item in self._items(node)]
        if len(items) == 1 and isinstance(items[0], Tuple):
            items = items[0].items
        advanced = [item for item in items if isinstance(item, (Array, Lazy))]
        if len(items) == len(advanced) == 1 and advanced[0].dtype is dt.bool_:
            return Masked(self.code, array, advanced[0], self.fresh_site)
        if len(items) == len(array.shape) and all(isinstance(item, Number) for item in items):
            at = [self._index(node, item, axis, extent) for axis, (item, extent) in enumerate(zip(items, array.shape))]
            return arrays.element_pointer(self.code, array, at)
        parts = self._parts(array, node, _completed(items, len(array.shape)))
        return Selection(self.code, array, parts) if advanced else self._viewed(array, node, parts)

    def _item(self, item: ast.expr) -> Any:
        found = self.value(item)
        return functions.array(self, found) if isinstance(found, Tuple) and found.is_list else found

    def _index(self, node: ast.Subscript, item: Any, axis: int, extent: Val) -> Val:
        """A number among the items, as an index that is not negative."""
        checked = (id(node), axis) not in self.unchecked
        return arrays.position(self.code, self.integer(item), extent, axis, checked)

    def _parts(self, array: Array, node: ast.Subscript, items: list) -> list[Basic | Advanced]:
        """What each item of a subscript selects of its axes."""
        e = self.code
        found: list[Basic | Advanced] = []
        axis = 0
        for item in items:
            if isinstance(item, Static):
                found.append(Basic(e.one, e.zero, e.zero))
                continue
            extent, stride = array.shape[axis], array.strides[axis]
            if isinstance(item, ast.Slice):
                begin, count, step = self.slice_of(extent, item)
                inner = array.inner and axis == len(array.shape) - 1 and e.known(step) == 1
                found.append(Basic(count, e.count("muli", stride, step), e.count("muli", begin, stride), inner))
            elif isinstance(item, Number):
                found.append(Advanced(number(self._index(node, item, axis, extent)), axis, extent, stride))
            elif item.dtype is dt.bool_:
                mask = self.array(item)
                check_mask(e, array.shape[axis:], mask.shape, axis)
                for k, index in enumerate(true_at(e, mask, self.fresh_site), axis):
                    found.append(Advanced(index, k, array.shape[k], array.strides[k]))
            else:
                found.append(Advanced(self.array(item), axis, extent, stride))
            axis += _axes(item)
        return found

    def slice_of(self, extent: Val, item: ast.Slice) -> tuple[Val, Val, Val]:
        """Start, count and step of a slice; its start is in the array even if it is empty."""
        e = self.code
        if item.lower is item.upper is item.step is None:
            return e.zero, extent, e.one
        bounds = [None if b is None else self.integer(self.value(b)) for b in (item.lower, item.upper, item.step)]
        begin, count, step = arrays.sliced(e, extent, *bounds)
        if bounds[2] is not None and e.least(count) <= 0:
            begin = e.select(e.cmp("gt", count, 0), begin, 0)
        return begin, count, step

    def _grid(self, node: ast.Subscript, dense: bool) -> Tuple:
        """``np.mgrid[…]`` or ``np.ogrid[…]`` of ints, as its items."""
        e = self.code
        starts, counts, steps = [], [], []
        for item in self._items(node):
            if not isinstance(item, ast.Slice) or item.upper is None:
                raise NotOutlinable("a grid of other than slices")
            low, high, step = (
                otherwise if b is None else self.integer(self.value(b))
                for b, otherwise in ((item.lower, e.zero), (item.upper, e.zero), (item.step, e.one))
            )
            by = e.known(step)
            require(by and by > 0, "a grid whose step is not a positive constant")
            starts.append(low)
            counts.append(e.range_length(low, high, by))
            steps.append(step)
        require(len(counts) >= 2, "a grid of one axis")

        def along(k: int) -> Lazy:
            at = lambda indices, uniform: e.count("addi", starts[k], e.count("muli", indices[k], steps[k]))  # noqa: E731
            return Lazy(dt.i64, counts if dense else [n if j == k else e.one for j, n in enumerate(counts)], at, [])

        return Tuple([along(k) for k in range(len(counts))])

    def _viewed(self, array: Array, node: ast.Subscript, parts: list[Basic | Advanced]) -> Array:
        """The view that numbers, slices and None select."""
        e = self.code
        offset = e.zero
        for part in parts:
            by = part.offset if isinstance(part, Basic) else e.count("muli", part.index.val, part.stride)
            offset = e.count("addi", offset, by)
        kept = [part for part in parts if isinstance(part, Basic)]
        inner = parts[-1:] == kept[-1:] and any(part.inner for part in kept[-1:])
        shape, strides = [part.count for part in kept], [part.stride for part in kept]
        return self.view(array, shape, strides, inner, e.offset(array.pointer, offset), ast.unparse(node))


def _axes(item: Any) -> int:
    """The number of axes that an item of a subscript covers."""
    if isinstance(item, Static):  # None or Ellipsis
        require(item.value is None or item.value is Ellipsis, "a subscript by an object")
        return 0
    return len(item.shape) if isinstance(item, (Array, Lazy)) and item.dtype is dt.bool_ else 1


def _completed(items: list, rank: int) -> list:
    """The items of a subscript with full slices for its ``...`` and for the axes behind it."""
    missing = rank - sum(map(_axes, items))
    require(missing >= 0, "more subscripts than axes")
    full = [ast.Slice()] * missing
    dots = [k for k, item in enumerate(items) if isinstance(item, Static) and item.value is Ellipsis]
    require(len(dots) < 2, "more than one ellipsis")
    return [*items[: dots[0]], *full, *items[dots[0] + 1 :]] if dots else items + full
