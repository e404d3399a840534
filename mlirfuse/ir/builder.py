"""Appends ops to a graph: shape inference from the op table, uniqued constants, casts and broadcasts where needed."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Block, Op, Value
from mlirfuse.ir.sizes import Size


class Builder:
    """Appends to ``block``. ``loc()`` returns the (file, line) of new ops; front ends pass one that finds the user's
    frame."""

    def __init__(self, block: Block, loc=lambda: None):
        self.block = block
        self.loc = loc
        self._constants: dict[tuple, Value] = {}

    @overload
    def op(self, name: Literal["split"], *operands: Value, **attrs) -> list[Value]: ...

    @overload
    def op(self, name: str, *operands: Value, **attrs) -> Value: ...

    def op(self, name: str, *operands: Value, **attrs) -> Any:
        """Append the op ``name``; return its result, or the list of results where there are several.

        Raises TypeError or :class:`ShapeError` where the operands do not fit the op's row.
        """
        row = ops.TABLE[name]
        full = {}
        for key, default in row.attrs.items():
            full[key] = attrs.pop(key, default)
            if full[key] is ...:
                raise TypeError(f"{name}: attribute '{key}' is missing")
        if attrs:
            raise TypeError(f"{name}: unknown attribute '{next(iter(attrs))}'; it has {', '.join(row.attrs) or 'none'}")
        dtypes = ops.result_dtypes(row, [v.dtype for v in operands], full)
        shapes = ops.result_shapes(row, [v.shape for v in operands], full)
        created = Op(name, operands, full, [Value(d, s) for d, s in zip(dtypes, shapes)], loc=self.loc())
        self.block.ops.append(created)
        return created.results if name == "split" or len(created.results) != 1 else created.result

    def constant(self, value, dtype: DType) -> Value:
        """Return a 0-d constant; equal constants are one value."""
        value = np.asarray(value).astype(dtype.numpy)[()]
        key = (value.tobytes(), dtype)
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = self.op("constant", value=value, dtype=dtype)
        return found

    def cast(self, x: Value, dtype: DType) -> Value:
        """Return ``x`` as ``dtype``; ``x`` itself if it has that type."""
        return x if x.dtype is dtype else self.op("cast", x, to=dtype)

    def size(self, value: Size) -> Value:
        """Return a size as a 0-d i64 tensor."""
        return self.constant(value, dt.i64) if isinstance(value, int) else self.op("size", value=value)

    def reshape(self, x: Value, shape) -> Value:
        return x if tuple(shape) == x.shape else self.op("reshape", x, shape=tuple(shape))

    def permute(self, x: Value, dims) -> Value:
        return x if tuple(dims) == tuple(range(x.rank)) else self.op("permute", x, dims=tuple(dims))

    def align(self, *values: Value) -> list[Value]:
        """Align ranks by NumPy's rule: new axes of extent 1 in front, so that all but 0-d values have one rank."""
        rank = max(v.rank for v in values)
        return [self.op("expand_dims", v, axes=tuple(range(rank - v.rank))) if 0 < v.rank < rank else v for v in values]

    def broadcast_to(self, x: Value, shape) -> Value:
        """Broadcast ``x`` to ``shape`` by NumPy's rule."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        return self.op("broadcast_in_dim", x, shape=shape, dims=tuple(range(len(shape) - x.rank, len(shape))))

    def elementwise(self, name: str, *operands: Value, **attrs) -> Value:
        """Append an elementwise op on operands of any ranks, aligned by NumPy's rule."""
        return self.op(name, *self.align(*operands), **attrs)

    def slice(self, x: Value, axis: int, start: Size, size: Size, step: int = 1) -> Value:
        """Return ``size`` elements of ``axis`` from ``start`` on."""
        if start == 0 and step == 1 and size == x.shape[axis]:
            return x
        starts: list[Size] = [0] * x.rank
        steps = [1] * x.rank
        starts[axis], steps[axis] = start, step
        shape = tuple(size if k == axis else n for k, n in enumerate(x.shape))
        return self.op("slice", x, start=tuple(starts), size=shape, step=tuple(steps))

    def numel(self, x: Value, axes) -> Size:
        """Return the number of elements that the axes span."""
        return sz.product(x.shape[a] for a in (range(x.rank) if axes is None else axes))
