"""Compiles subscripts: elements, and views by numbers, slices, None and Ellipsis."""

from __future__ import annotations

import ast
from typing import Any

from mlirfuse.frontend.numpy.loops import arrays, indices
from mlirfuse.frontend.numpy.loops.arrays import number
from mlirfuse.frontend.numpy.loops.code import Code
from mlirfuse.frontend.numpy.loops.values import Array, Lazy, NotOutlinable, Number, Tuple
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
        if isinstance(found, Lazy):
            found = self.array(found)
        if not isinstance(found, Array):
            raise NotOutlinable("a subscript of something other than an array")
        chosen = self.chosen(node)
        if chosen is not None:
            return indices.read(self.code, found, chosen, self.fresh_site)
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
        if len(found) == 1 and isinstance(found[0], Tuple):
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

    def viewed(self, array: Array, node: ast.Subscript) -> Array:
        """The view that a subscript of numbers, slices, None and Ellipsis selects."""
        e, items = self.code, self._items(node)
        is_none = lambda i: (isinstance(i, ast.Constant) and i.value is None) or ast.unparse(i) == "np.newaxis"  # noqa: E731
        is_dots = lambda i: isinstance(i, ast.Constant) and i.value is Ellipsis  # noqa: E731
        taken = sum(not is_none(i) and not is_dots(i) for i in items)
        if taken > len(array.shape):
            raise NotOutlinable("more subscripts than axes")
        full: list[ast.expr] = [ast.Slice()] * (len(array.shape) - taken)
        dots = next((k for k, item in enumerate(items) if is_dots(item)), None)
        items = items + full if dots is None else [*items[:dots], *full, *items[dots + 1 :]]
        shape: list[Val] = []
        strides: list[Val] = []
        offset = e.const(0, dt.i64)
        axis, inner = 0, False
        for item in items:
            if is_none(item):
                shape.append(e.const(1, dt.i64))
                strides.append(e.const(0, dt.i64))
                inner = False
                continue
            extent, stride = array.shape[axis], array.strides[axis]
            last = axis == len(array.shape) - 1
            if isinstance(item, ast.Slice):
                bounds = [
                    None if b is None else self.integer(self.value(b)) for b in (item.lower, item.upper, item.step)
                ]
                if not any(b is not None for b in bounds):
                    shape.append(extent)
                    strides.append(stride)
                    inner = array.inner and last
                else:
                    begin, count, step = arrays.sliced(e, extent, *bounds)
                    if bounds[2] is not None and e.least(count) <= 0:
                        begin = e.select(e.cmp("gt", count, 0), begin, 0)
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
