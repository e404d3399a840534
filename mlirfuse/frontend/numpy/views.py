"""View steps: each reads a part or a rearrangement of an array, and writes it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlirfuse.frontend.numpy.source import fail
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size


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


@dataclass(frozen=True)
class Permute(Step):
    dims: tuple[int, ...]

    def out(self, shape) -> tuple[Size, ...]:
        return tuple(shape[d] for d in self.dims)

    def read(self, t, x: Value) -> Value:
        return t.emit("permute", x, dims=self.dims)

    def write(self, t, base: Value, new: Value) -> Value:
        return t.emit("permute", new, dims=self.inverse().dims)

    def inverse(self) -> Permute:
        return Permute(tuple(sorted(range(len(self.dims)), key=self.dims.__getitem__)))


@dataclass(frozen=True)
class Reshape(Step):
    shape: tuple[Size, ...]

    def out(self, shape) -> tuple[Size, ...]:
        return self.shape

    def read(self, t, x: Value) -> Value:
        return t.emit("reshape", x, shape=tuple(map(t.canonical, self.shape)))

    def write(self, t, base: Value, new: Value) -> Value:
        return t.emit("reshape", new, shape=t.shape(base))


@dataclass(frozen=True)
class ExpandDims(Step):
    axes: tuple[int, ...]

    def out(self, shape) -> tuple[Size, ...]:
        out = list(shape)
        for a in self.axes:
            out.insert(a, 1)
        return tuple(out)

    def read(self, t, x: Value) -> Value:
        return t.emit("expand_dims", x, axes=self.axes)

    def write(self, t, base: Value, new: Value) -> Value:
        return t.emit("squeeze", new, axes=self.axes)


@dataclass(frozen=True)
class Squeeze(Step):
    axes: tuple[int, ...]

    def out(self, shape) -> tuple[Size, ...]:
        return tuple(n for k, n in enumerate(shape) if k not in self.axes)

    def read(self, t, x: Value) -> Value:
        return t.emit("squeeze", x, axes=self.axes)

    def write(self, t, base: Value, new: Value) -> Value:
        return t.emit("expand_dims", new, axes=self.axes)


@dataclass(frozen=True)
class Slice(Step):
    start: tuple[Size, ...]
    size: tuple[Size, ...]
    step: tuple[int, ...]

    def out(self, shape) -> tuple[Size, ...]:
        return self.size

    def read(self, t, x: Value) -> Value:
        start, size = (tuple(map(t.canonical, part)) for part in (self.start, self.size))
        return t.emit("slice", x, start=start, size=size, step=self.step)

    def write(self, t, base: Value, new: Value) -> Value:
        if 0 in self.size:
            return base
        maker = new.op
        if maker is not None and maker.name in ("broadcast_in_dim", "full") and maker.operands[0].rank == 0:
            new = maker.operands[0]
        start, size = (tuple(map(t.canonical, part)) for part in (self.start, self.size))
        return t.emit("set_slice", base, new, start=start, size=size, step=self.step)


@dataclass(frozen=True)
class At(Step):
    """One index of an axis, known at run time; removes the axis."""

    axis: int
    index: Value

    def out(self, shape) -> tuple[Size, ...]:
        return shape[: self.axis] + shape[self.axis + 1 :]

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
class Broadcast(Step):
    """A broadcast."""

    shape: tuple[Size, ...]
    read_only = "it is a broadcast view"

    def out(self, shape) -> tuple[Size, ...]:
        return self.shape

    def read(self, t, x: Value) -> Value:
        shape = tuple(map(t.canonical, self.shape))
        return t.emit("broadcast_in_dim", x, shape=shape, dims=tuple(range(len(shape) - x.rank, len(shape))))


@dataclass(frozen=True)
class FullView(Step):
    """The whole array, as another array object."""


@dataclass(frozen=True)
class ReadOnly(Step):
    """The same array, read-only in NumPy."""

    read_only = "NumPy gives a read-only view here"


@dataclass(frozen=True)
class Diagonal(Step):
    """The elements of the last two axes from (``row``, ``column``) on, ``length`` of them."""

    row: int
    column: int
    length: Size
    read_only = "NumPy gives a read-only view of a diagonal"

    def out(self, shape) -> tuple[Size, ...]:
        return (*shape[:-2], self.length)

    def read(self, t, x: Value) -> Value:
        shape, length = t.shape(x), t.canonical(self.length)
        if length == 0:
            return t.emit("full", t.builder.constant(0, x.dtype), shape=(*shape[:-2], 0))
        step = t.emit("iota", shape=(length,), axis=0, dtype=dt.i64)
        row, column = t.builder.size(self.row), t.builder.size(self.column)
        row, column = t.emit("add", step, row), t.emit("add", step, column)
        at = t.emit("add", t.emit("mul", row, t.builder.size(shape[-1])), column)
        flat = t.emit("reshape", x, shape=(*shape[:-2], t.extent(sz.mul(shape[-2], shape[-1]))))
        return t.emit("take", flat, at, axis=len(shape) - 2)


@dataclass(frozen=True)
class ComplexPart(Step):
    """The real or imaginary parts ("real", "imag") of complex elements."""

    name: str

    def read(self, t, x: Value) -> Value:
        return t.emit(self.name, x)

    def write(self, t, base: Value, new: Value) -> Value:
        parts = (new, t.emit("imag", base)) if self.name == "real" else (t.emit("real", base), new)
        return t.emit("complex", *parts)
