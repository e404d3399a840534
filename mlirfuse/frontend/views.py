"""The steps that views are made of: each reads a part or another arrangement of an array, and writes such a part back."""

from __future__ import annotations

from dataclasses import dataclass

from mlirfuse import dtypes as dt
from mlirfuse import sizes as sz
from mlirfuse.graph import Value
from mlirfuse.sizes import Size


@dataclass(frozen=True)
class Permute:
    dims: tuple[int, ...]

    def read(self, t, x: Value) -> Value:
        return t.emit("permute", x, dims=self.dims)

    def write(self, t, base: Value, new: Value) -> Value:
        inverse = tuple(sorted(range(len(self.dims)), key=self.dims.__getitem__))
        return t.emit("permute", new, dims=inverse)


@dataclass(frozen=True)
class Reshape:
    shape: tuple[Size, ...]

    def read(self, t, x: Value) -> Value:
        return t.emit("reshape", x, shape=tuple(map(t.canonical, self.shape)))

    def write(self, t, base: Value, new: Value) -> Value:
        return t.emit("reshape", new, shape=t.shape(base))


@dataclass(frozen=True)
class ExpandDims:
    axes: tuple[int, ...]

    def read(self, t, x: Value) -> Value:
        return t.emit("expand_dims", x, axes=self.axes)

    def write(self, t, base: Value, new: Value) -> Value:
        return t.emit("squeeze", new, axes=self.axes)


@dataclass(frozen=True)
class Squeeze:
    axes: tuple[int, ...]

    def read(self, t, x: Value) -> Value:
        return t.emit("squeeze", x, axes=self.axes)

    def write(self, t, base: Value, new: Value) -> Value:
        return t.emit("expand_dims", new, axes=self.axes)


@dataclass(frozen=True)
class Slice:
    start: tuple[Size, ...]
    size: tuple[Size, ...]
    step: tuple[int, ...]

    def read(self, t, x: Value) -> Value:
        start, size = (tuple(map(t.canonical, part)) for part in (self.start, self.size))
        return t.emit("slice", x, start=start, size=size, step=self.step)

    def write(self, t, base: Value, new: Value) -> Value:
        """Elementwise: where an element lies in the region, the one of ``new`` that belongs there, else its own."""
        shape = t.shape(base)
        if 0 in self.size:
            return base
        everywhere = new.op is not None and new.op.name in ("broadcast_in_dim", "full") and new.op.operands[0].rank == 0
        source = new.op.operands[0] if everywhere else new
        mask = None
        low, high = [0] * len(shape), [0] * len(shape)
        for axis, (start, size, step, extent) in enumerate(zip(self.start, self.size, self.step, shape)):
            start, size = t.canonical(start), t.canonical(size)
            if start == 0 and step == 1 and size == extent:
                continue
            last = start + sz.mul(size - 1, step)
            position = t.emit("iota", shape=tuple(n if k == axis else 1 for k, n in enumerate(shape)), axis=axis, dtype=dt.i64)
            first, final = (start, last) if step > 0 else (last, start)
            inside = None
            if size == 1:
                inside = t.emit("eq", position, t.builder.size(start))
            else:
                if first != 0:
                    inside = t.emit("ge", position, t.builder.size(first))
                if final + 1 != extent:
                    upper = t.emit("le", position, t.builder.size(final))
                    inside = upper if inside is None else t.emit("logical_and", inside, upper)
            if abs(step) != 1 and size != 1:
                offset = t.emit("sub", position, t.builder.size(first))
                hit = t.emit("eq", t.emit("mod", offset, t.builder.size(abs(step))), t.builder.size(0))
                inside = hit if inside is None else t.emit("logical_and", inside, hit)
            mask = inside if mask is None else t.emit("logical_and", mask, inside) if inside is not None else mask
            if everywhere:
                continue
            if step < 0 and size != 1:
                steps = tuple(-1 if k == axis else 1 for k in range(len(shape)))
                begin = tuple(size - 1 if k == axis else 0 for k in range(len(shape)))
                source = t.emit("slice", source, start=begin, size=t.shape(source), step=steps)
            if abs(step) != 1 and size != 1:
                flat = t.emit("iota", shape=(extent,), axis=0, dtype=dt.i64)
                nearest = t.emit("floor_div", t.emit("sub", flat, t.builder.size(first)), t.builder.size(abs(step)))
                nearest = t.emit("maximum", nearest, t.builder.size(0))
                source = t.emit("take", source, t.emit("minimum", nearest, t.builder.size(size - 1)), axis=axis)
            elif size != 1:  # an extent of 1 broadcasts to where the mask wants it
                low[axis], high[axis] = first, extent - size - first
        if mask is None:
            return source if not everywhere else new
        if any(n != 0 for n in low + high):
            source = t.emit("pad", source, t.builder.constant(0, source.dtype), low=tuple(low), high=tuple(high))
        made = t.emit("where", mask, source, base)
        return made


@dataclass(frozen=True)
class At:
    """One position of an axis, known at run time: the axis goes."""

    axis: int
    index: Value

    def read(self, t, x: Value) -> Value:
        return t.emit("take", x, self.index, axis=self.axis)

    def write(self, t, base: Value, new: Value) -> Value:
        shape = t.shape(base)
        extent = shape[self.axis]
        position = t.emit("iota", shape=tuple(n if k == self.axis else 1 for k, n in enumerate(shape)), axis=self.axis, dtype=dt.i64)
        negative = t.emit("lt", self.index, t.builder.size(0))
        index = t.emit("where", negative, t.emit("add", self.index, t.builder.size(extent)), self.index)
        placed = t.emit("expand_dims", new, axes=(self.axis,))
        return t.emit("where", t.emit("eq", position, index), placed, base)


@dataclass(frozen=True)
class Broadcast:
    """Repeated; NumPy makes it read-only."""

    shape: tuple[Size, ...]

    def read(self, t, x: Value) -> Value:
        shape = tuple(map(t.canonical, self.shape))
        return t.emit("broadcast_in_dim", x, shape=shape, dims=tuple(range(len(shape) - x.rank, len(shape))))

    def write(self, t, base: Value, new: Value) -> Value:
        from mlirfuse.frontend.tracing import fail

        return fail(ValueError, "assignment destination is read-only: it is a broadcast view")


def keeps_order(step, shape) -> bool:
    """Whether a row-major array without gaps, of this shape, is one still after the step. (Sizes that are not known count as above 1.)"""
    if isinstance(step, (Reshape, ExpandDims, Squeeze)):
        return True
    if isinstance(step, At):
        return all(n == 1 for n in shape[: step.axis])
    if not isinstance(step, Slice):
        return False
    partial = [a for a in range(len(shape)) if (step.start[a], step.size[a], step.step[a]) != (0, shape[a], 1)]
    last = max(partial, default=-1)
    return last < 0 or (all(n == 1 for n in step.size[:last]) and (step.step[last] == 1 or step.size[last] == 1))
