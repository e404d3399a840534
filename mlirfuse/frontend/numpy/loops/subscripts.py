"""Compiles subscripts: elements, and views by numbers, slices, None and Ellipsis."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.loops import arrays, indices
from mlirfuse.frontend.numpy.loops.arrays import number
from mlirfuse.frontend.numpy.loops.code import Code
from mlirfuse.frontend.numpy.loops.mixed_indices import Advanced, Basic, Selection, true_at
from mlirfuse.frontend.numpy.loops.values import Array, Lazy, NotOutlinable, Number, Static, Tuple
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Val


class Subscripts:
    """Compiles subscripts. ``unchecked``: those (nodes and axes) that are known to be in range."""

    code: Code
    unchecked: frozenset

    def value(self, node: ast.expr) -> Any:
        raise NotImplementedError

    def array(self, node: ast.expr | Any) -> Array:
        raise NotImplementedError

    def integer(self, found: Any) -> Val:
        raise NotImplementedError

    def fresh_site(self) -> int:
        raise NotImplementedError

    def view(
        self, array: Array, shape: list, strides: list, inner: bool, pointer: str = "", serialized: str = ""
    ) -> Array:
        """Another view of the memory of ``array``."""
        return Array(array.dtype, pointer or array.pointer, shape, strides, inner, array.roots, array.base, serialized)

    def _Subscript(self, node: ast.Subscript) -> Any:
        found = self.value(node.value)
        if isinstance(found, Tuple):
            return self._of_tuple(found, node)
        if isinstance(found, Static) and (found.value is np.mgrid or found.value is np.ogrid):
            return self._grid(node, found.value is np.mgrid)
        if isinstance(found, Lazy):
            found = self.array(found)
        if not isinstance(found, Array):
            raise NotOutlinable("a subscript of something other than an array")
        chosen = self.chosen(node)
        if chosen is not None:
            return indices.read(self.code, found, chosen, self.fresh_site)
        selection = self.selected(found, node)
        if selection is not None:
            return selection.read()
        element = self.element_of(found, node)
        if element is not None:
            return number(self.code.load(element, found.dtype, memory=True))
        return self.viewed(found, node)

    def _of_tuple(self, found: Tuple, node: ast.Subscript) -> Any:
        index = self.value(node.slice) if not isinstance(node.slice, ast.Slice) else None
        if not isinstance(index, Number) or not isinstance(index.known, int):
            raise NotOutlinable("a subscript of a tuple that is not constant")
        try:
            return found.items[index.known]
        except IndexError:
            raise NotOutlinable("a tuple that is too short") from None

    def _items(self, node: ast.Subscript) -> list[ast.expr]:
        return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]

    def element_of(self, array: Array, node: ast.Subscript) -> str | None:
        """A pointer to the element that a subscript selects; None where it selects no single element."""
        items = self._items(node)
        if len(items) != len(array.shape) or any(isinstance(item, ast.Slice) for item in items):
            return None
        found = [self.value(item) for item in items]
        if len(found) == 1 and isinstance(found[0], Tuple) and not found[0].is_list:
            found = found[0].items
            items = [node] * len(found)
        if len(found) != len(array.shape) or not all(isinstance(v, Number) for v in found):
            return None
        indices = []
        for axis, (index, extent) in enumerate(zip(found, array.shape)):
            checked = (id(node), axis) not in self.unchecked
            indices.append(arrays.position(self.code, self.integer(index), extent, axis, checked))
        return arrays.element_pointer(self.code, array, indices)

    def chosen(self, node: ast.Subscript) -> Array | None:
        """The index array or mask that is the only item of a subscript; None for other subscripts."""
        if isinstance(node.slice, (ast.Tuple, ast.Slice, ast.Constant)):
            return None
        found = self.value(node.slice)
        return self.array(found) if isinstance(found, (Array, Lazy)) else None

    def selected(self, array: Array, node: ast.Subscript) -> Selection | None:
        """The elements that a subscript with index arrays, lists or masks among its items selects; None where it has
        none."""
        e, items = self.code, _filled(self._items(node), array, self._mask_axes)
        if items is None:
            return None
        found: list[Basic | Advanced] = []
        axis = 0
        for item in items:
            if _is_none(item):
                one, zero = e.const(1, dt.i64), e.const(0, dt.i64)
                found.append(Basic(one, zero, zero))
                continue
            extent, stride = array.shape[axis], array.strides[axis]
            if isinstance(item, ast.Slice):
                begin, count, step = self.slice_of(extent, item)
                found.append(Basic(count, e.count("muli", stride, step), e.count("muli", begin, stride)))
                axis += 1
                continue
            value = self._index_of(item)
            if isinstance(value, Number):
                at = arrays.position(e, self.integer(value), extent, axis, True)
                found.append(Advanced(number(at), axis, extent, stride))
                axis += 1
                continue
            if value.dtype is not dt.bool_:
                found.append(Advanced(value, axis, extent, stride))
                axis += 1
                continue
            indices.check_mask(e, array.shape[axis:], value, axis)
            for index in true_at(e, value, self.fresh_site):
                found.append(Advanced(index, axis, array.shape[axis], array.strides[axis]))
                axis += 1
        return Selection(e, array, found)

    def _index_of(self, item: ast.expr) -> Any:
        found = self.value(item)
        if isinstance(found, Tuple) and found.is_list:
            found = self.array_of(found)
        return self.array(found) if isinstance(found, (Array, Lazy)) else found

    def _mask_axes(self, item: ast.expr) -> int:
        """The number of axes that an index array or mask covers; 0 for another item."""
        if isinstance(item, (ast.Slice, ast.Constant)):
            return 0
        found = self.value(item)
        if isinstance(found, (Array, Lazy)):
            return len(found.shape) if found.dtype is dt.bool_ else 1
        return int(isinstance(found, Tuple) and found.is_list)

    def slice_of(self, extent: Val, item: ast.Slice) -> tuple[Val, Val, Val]:
        """Start, count and step of a slice; its start is in the array even if it is empty."""
        e = self.code
        bounds = [None if b is None else self.integer(self.value(b)) for b in (item.lower, item.upper, item.step)]
        begin, count, step = arrays.sliced(e, extent, *bounds)
        if bounds[2] is not None and e.least(count) <= 0:
            begin = e.select(e.cmp("gt", count, 0), begin, 0)
        return begin, count, step

    def _grid(self, node: ast.Subscript, dense: bool) -> Tuple:
        """``np.mgrid[…]`` or ``np.ogrid[…]`` of ints, as its items."""
        e, zero = self.code, self.code.const(0, dt.i64)
        starts, counts, steps = [], [], []
        for item in self._items(node):
            if not isinstance(item, ast.Slice) or item.upper is None:
                raise NotOutlinable("a grid of other than slices")
            low, high, step = (
                otherwise if b is None else self.integer(self.value(b))
                for b, otherwise in ((item.lower, zero), (item.upper, zero), (item.step, e.const(1, dt.i64)))
            )
            by = e.known(step)
            if not by or by < 0:
                raise NotOutlinable("a grid whose step is not a positive constant")
            span = e.count("addi", e.count("subi", high, low), by - 1)
            starts.append(low)
            counts.append(e.larger(e.div(span, step) if by > 1 else span, zero))
            steps.append(step)
        if len(counts) < 2:
            raise NotOutlinable("a grid of one axis")

        def along(k: int) -> Lazy:
            at = lambda indices, uniform: e.count("addi", starts[k], e.count("muli", indices[k], steps[k]))  # noqa: E731
            one = e.const(1, dt.i64)
            return Lazy(dt.i64, counts if dense else [n if j == k else one for j, n in enumerate(counts)], at, [])

        return Tuple([along(k) for k in range(len(counts))])

    def array_of(self, found: Tuple) -> Array:
        raise NotImplementedError

    def viewed(self, array: Array, node: ast.Subscript) -> Array:
        """The view that a subscript of numbers, slices, None and Ellipsis selects."""
        e, items = self.code, self._items(node)
        taken = sum(not _is_none(i) and not _is_dots(i) for i in items)
        items = _completed(items, len(array.shape) - taken)
        shape: list[Val] = []
        strides: list[Val] = []
        offset = e.const(0, dt.i64)
        axis, inner = 0, False
        for item in items:
            if _is_none(item):
                shape.append(e.const(1, dt.i64))
                strides.append(e.const(0, dt.i64))
                inner = False
                continue
            extent, stride = array.shape[axis], array.strides[axis]
            last = axis == len(array.shape) - 1
            if isinstance(item, ast.Slice):
                if item.lower is item.upper is item.step is None:
                    shape.append(extent)
                    strides.append(stride)
                    inner = array.inner and last
                else:
                    begin, count, step = self.slice_of(extent, item)
                    offset = e.count("addi", offset, e.count("muli", begin, stride))
                    shape.append(count)
                    strides.append(e.count("muli", stride, step))
                    inner = array.inner and last and e.known(step) == 1
            else:
                found = self.value(item)
                if not isinstance(found, Number):
                    raise NotOutlinable("a subscript by an array")
                checked = (id(node), axis) not in self.unchecked
                at = arrays.position(e, self.integer(found), extent, axis, checked)
                offset = e.count("addi", offset, e.count("muli", at, stride))
                inner = False
            axis += 1
        return self.view(array, shape, strides, inner, e.offset(array.pointer, offset), ast.unparse(node))


def _is_none(item: ast.expr) -> bool:
    return (isinstance(item, ast.Constant) and item.value is None) or ast.unparse(item) == "np.newaxis"


def _is_dots(item: ast.expr) -> bool:
    return isinstance(item, ast.Constant) and item.value is Ellipsis


def _completed(items: list[ast.expr], missing: int) -> list[ast.expr]:
    """The items of a subscript with full slices for its ``...`` and for the axes behind it."""
    if missing < 0:
        raise NotOutlinable("more subscripts than axes")
    full: list[ast.expr] = [ast.Slice()] * missing
    dots = next((k for k, item in enumerate(items) if _is_dots(item)), None)
    return items + full if dots is None else [*items[:dots], *full, *items[dots + 1 :]]


def _filled(items: list[ast.expr], array: Array, covers: Callable[[ast.expr], int]) -> list[ast.expr] | None:
    """The items of a subscript with index arrays among them, completed; None where there are none."""
    axes = [covers(item) for item in items]
    if not any(axes):
        return None
    taken = sum(n or int(not _is_none(i) and not _is_dots(i)) for n, i in zip(axes, items))
    return _completed(items, len(array.shape) - taken)
