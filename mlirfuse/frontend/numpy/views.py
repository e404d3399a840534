"""View steps: each reads a part or a rearrangement of an array, and writes it back. Calls replay them on real arrays of
NumPy, CuPy or torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mlirfuse.analysis import views as noop
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.ops import TABLE, map_sizes, result_shapes
from mlirfuse.ir.sizes import Size
from mlirfuse.runtime import arrays

Strides = tuple[Size, ...]


class Step:
    """A step from an array to a view. ``read_only``: why NumPy makes the view read-only, if it does."""

    read_only: ClassVar[str] = ""

    def out(self, shape) -> tuple[Size, ...]:
        """The view's shape."""
        return shape

    def read(self, t, x: Value) -> Value:
        """The view of ``x``."""
        return x

    def write(self, t, base: Value, new: Value) -> Value:
        """``base`` with the view replaced by ``new``."""
        return fail(ValueError, f"assignment destination is read-only: {self.read_only}") if self.read_only else new

    def strides(self, t, shape: tuple[Size, ...], strides: Strides) -> Strides:
        """The view's strides, from the array's."""
        return strides

    def on(self, array: Any, env: dict[str, int], leaf: Callable[[int], Any]) -> Any:
        """The view of a real array; ``env``: the values of size symbols; ``leaf`` returns an index."""
        return array.view(array.shape) if _is_torchs(array) else array.view()


class OpStep(Step):
    """A step by the op ``op``, whose attributes are the step's fields."""

    op: ClassVar[str]

    def out(self, shape) -> tuple[Size, ...]:
        return result_shapes(TABLE[self.op], [shape], vars(self))[0]

    def attrs(self, t) -> dict[str, Any]:
        """The op's attributes, with sizes simplified by what the trace knows."""
        return map_sizes(TABLE[self.op].attr_types, vars(self), t.canonical)

    def read(self, t, x: Value) -> Value:
        return t.emit(self.op, x, **self.attrs(t))

    def strides(self, t, shape, strides: Strides) -> Strides:
        new = tuple(map(t.canonical, self.out(shape)))
        return noop.view_strides(self.op, self.attrs(t), shape, strides, new) or sz.contiguous_strides(new)


def read_along(t, x: Value, path: Iterable[Step]) -> Value:
    """The view of ``x`` after these steps."""
    for step in path:
        x = step.read(t, x)
    return x


def viewed(array: Any, path: Iterable[Step], leaf: Callable[[int], Any], env: dict[str, int]) -> Any:
    """The view of a real array after these steps. A copy for a negative step in torch, whose views cannot have one."""
    for step in path:
        array = step.on(array, env, leaf)
    return array


def at_indices(path: Iterable[Step], index: Mapping[Any, Any]) -> tuple[Step, ...]:
    """The steps with each index that is known at run time replaced by what ``index`` maps it to."""
    return tuple(At(step.axis, index[step.index]) if isinstance(step, At) else step for step in path)


def _is_torchs(array: Any) -> bool:
    return arrays.framework(array) == "torch"


def _known(sizes: Iterable[Size], env: dict[str, int]) -> tuple[int, ...]:
    return tuple(sz.substitute(n, env) for n in sizes)


@dataclass(frozen=True)
class Permute(OpStep):
    op = "permute"
    dims: tuple[int, ...]

    def write(self, t, base: Value, new: Value) -> Value:
        return t.emit("permute", new, dims=self.inverse().dims)

    def on(self, array: Any, env, leaf) -> Any:
        return array.permute(self.dims) if _is_torchs(array) else array.transpose(self.dims)

    def inverse(self) -> Permute:
        return Permute(tuple(sorted(range(len(self.dims)), key=self.dims.__getitem__)))


@dataclass(frozen=True)
class Reshape(OpStep):
    op = "reshape"
    shape: tuple[Size, ...]

    def write(self, t, base: Value, new: Value) -> Value:
        return t.emit("reshape", new, shape=t.shape(base))

    def on(self, array: Any, env, leaf) -> Any:
        return array.reshape(_known(self.shape, env))


@dataclass(frozen=True)
class ExpandDims(OpStep):
    op = "expand_dims"
    axes: tuple[int, ...]

    def write(self, t, base: Value, new: Value) -> Value:
        return t.emit("squeeze", new, axes=self.axes)

    def on(self, array: Any, env, leaf) -> Any:
        rank = array.ndim + len(self.axes)
        return array[tuple(None if k in self.axes else slice(None) for k in range(rank))]


@dataclass(frozen=True)
class Squeeze(OpStep):
    op = "squeeze"
    axes: tuple[int, ...]

    def out(self, shape) -> tuple[Size, ...]:  # also of an extent that is known to be 1 by now
        return tuple(n for k, n in enumerate(shape) if k not in self.axes)

    def write(self, t, base: Value, new: Value) -> Value:
        return t.emit("expand_dims", new, axes=self.axes)

    def on(self, array: Any, env, leaf) -> Any:
        return array.squeeze(self.axes)


@dataclass(frozen=True)
class Slice(OpStep):
    op = "slice"
    start: tuple[Size, ...]
    size: tuple[Size, ...]
    step: tuple[int, ...]

    def write(self, t, base: Value, new: Value) -> Value:
        if 0 in self.size:
            return base
        maker = new.op
        if maker is not None and maker.name in ("broadcast_in_dim", "full") and maker.operands[0].rank == 0:
            new = maker.operands[0]
        return t.emit("set_slice", base, new, **self.attrs(t))

    def on(self, array: Any, env, leaf) -> Any:
        given = list(zip(_known(self.start, env), _known(self.size, env), self.step))
        back = [axis for axis, step in enumerate(self.step) if step < 0] if _is_torchs(array) else []
        if back:
            array = array.flip(back)
            given = [(array.shape[k] - 1 - a, n, -by) if by < 0 else (a, n, by) for k, (a, n, by) in enumerate(given)]
        ends = [start + size * step for start, size, step in given]
        return array[tuple(slice(a, end if end >= 0 else None, by) for (a, _, by), end in zip(given, ends))]


@dataclass(frozen=True)
class At(Step):
    """One index of an axis, known at run time; removes the axis. ``index``: the value, or, to replay the step, the leaf
    (between graph breaks, the slot) of the call that it is."""

    axis: int
    index: Any

    def out(self, shape) -> tuple[Size, ...]:
        return shape[: self.axis] + shape[self.axis + 1 :]

    def strides(self, t, shape, strides: Strides) -> Strides:
        return self.out(strides)

    def on(self, array: Any, env, leaf) -> Any:
        return array[(slice(None),) * self.axis + (int(leaf(self.index)), ...)]  # a 0-d view stays an array

    def read(self, t, x: Value) -> Value:
        return t.emit("take", x, self.index, axis=self.axis)

    def write(self, t, base: Value, new: Value) -> Value:
        shape = t.shape(base)
        extent = shape[self.axis]
        position = t.emit(
            "iota", shape=tuple(n if k == self.axis else 1 for k, n in enumerate(shape)), axis=self.axis, dtype=dt.i64
        )
        negative = t.emit("lt", self.index, t.builder.size(0))
        index = t.emit("where", negative, t.emit("add", self.index, t.builder.size(extent)), self.index)
        placed = t.emit("expand_dims", new, axes=(self.axis,))
        return t.emit("where", t.emit("eq", position, index), placed, base)


@dataclass(frozen=True)
class Broadcast(OpStep):
    op = "broadcast_in_dim"
    shape: tuple[Size, ...]
    dims: tuple[int, ...]
    read_only = "it is a broadcast view"

    def on(self, array: Any, env, leaf) -> Any:
        shape = _known(self.shape, env)
        return array.expand(shape) if _is_torchs(array) else np.broadcast_to(array, shape)


@dataclass(frozen=True)
class FullView(Step):
    """The whole array, as another array object."""


@dataclass(frozen=True)
class ReadOnly(Step):
    """The same array, read-only in NumPy."""

    read_only = "NumPy gives a read-only view here"

    def on(self, array: Any, env, leaf) -> Any:
        array = super().on(array, env, leaf)
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
        return array


@dataclass(frozen=True)
class Diagonal(Step):
    """The elements of the last two axes from (``row``, ``column``) on, ``length`` of them."""

    row: int
    column: int
    length: Size
    read_only = "NumPy gives a read-only view of a diagonal"

    def out(self, shape) -> tuple[Size, ...]:
        return (*shape[:-2], self.length)

    def strides(self, t, shape, strides: Strides) -> Strides:
        return (*strides[:-2], strides[-2] + strides[-1])

    def on(self, array: Any, env, leaf) -> Any:
        return array.diagonal(self.column - self.row, -2, -1)

    def read(self, t, x: Value) -> Value:
        shape, length = t.shape(x), t.canonical(self.length)
        if length == 0:
            return t.emit("full", t.builder.constant(0, x.dtype), shape=(*shape[:-2], 0))
        step = t.emit("iota", shape=(length,), axis=0, dtype=dt.i64)
        row, column = t.builder.size(self.row), t.builder.size(self.column)
        row, column = t.emit("add", step, row), t.emit("add", step, column)
        at = t.emit("add", t.emit("mul", row, t.builder.size(shape[-1])), column)
        flat = t.emit("reshape", x, shape=(*shape[:-2], t.extent(sz.mul(shape[-2], shape[-1]))))
        found = t.emit("take", flat, at, axis=len(shape) - 2)
        t.views[found] = x, self
        return found


@dataclass(frozen=True)
class ComplexPart(Step):
    """The real or imaginary parts ("real", "imag") of complex elements."""

    name: str

    def read(self, t, x: Value) -> Value:
        return t.emit(self.name, x)

    def write(self, t, base: Value, new: Value) -> Value:
        parts = (new, t.emit("imag", base)) if self.name == "real" else (t.emit("real", base), new)
        return t.emit("complex", *parts)

    def strides(self, t, shape, strides: Strides) -> Strides:
        return tuple(sz.mul(s, 2) for s in strides)

    def on(self, array: Any, env, leaf) -> Any:
        return getattr(array, self.name)
