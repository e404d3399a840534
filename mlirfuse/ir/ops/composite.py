"""Helpers for composite rows: ops defined by others, through ``expand``, which `fusion-decompose` and the interpreter
apply.

An ``expand(b, *values, **attrs)`` builds through a :class:`mlirfuse.ir.builder.Builder` and returns the result, or a
list for an op with several; None leaves the op as it is. 16-bit floats are computed in float32 and rounded once, at the
end.

The attribute ``has`` names the optional operands of the norms; without it they are taken in the order weight, bias.
"""

from __future__ import annotations

from mlirfuse.ir.ops.registry import FLOAT, check_axes, row


def _floats(dtypes, attrs):
    wrong = [t for t in dtypes if not t.is_float]
    return f"operands must be floats, not {wrong[0]}" if wrong else None


def _first(dtypes, attrs):
    return [dtypes[0]]


def check_given_axes(shape, attrs):
    """Raise :class:`ShapeError` where the attributes name an axis that ``shape`` does not have."""
    given = (attrs["axis"],) if "axis" in attrs else attrs.get("axes")
    check_axes(given, len(shape))


def same_as_first(shapes, attrs):
    check_given_axes(shapes[0], attrs)
    return [shapes[0]]


def composite(name, operands, doc, expand, attrs=None, infer=same_as_first, result=_first, dtypes=_floats, **more):
    row(
        name,
        "composite",
        operands,
        doc,
        takes=FLOAT,
        attrs=attrs or {},
        infer=infer,
        result=result,
        operand_dtypes=dtypes,
        expand=expand,
        **more,
    )


def reduced_shape(shape, axes):
    axes = {a % len(shape) for a in axes}
    return tuple(1 if k in axes else n for k, n in enumerate(shape))


class Math:
    """A builder whose methods are ops, in one compute type."""

    def __init__(self, b, dtype):
        self.b = b
        self.dtype = dtype

    def __call__(self, x):
        """Return ``x`` in the compute type."""
        return self.b.cast(x, self.dtype)

    def const(self, value):
        return self.b.constant(value, self.dtype)

    def number(self, size):
        """Return a size as a value to compute with."""
        return self.const(size) if isinstance(size, int) else self.b.cast(self.b.size(size), self.dtype)

    def __getattr__(self, name):
        def op(*operands, **attrs):
            values = [self.const(v) if isinstance(v, (int, float)) else v for v in operands]
            return self.b.elementwise(name, *values, **attrs)

        return op

    def sum(self, x, axes, keepdims=True):
        return self.b.op("sum", x, axes=tuple(axes), keepdims=keepdims) if axes else x

    def mean(self, x, axes, keepdims=True):
        return self.b.op("mean", x, axes=tuple(axes), keepdims=keepdims) if axes else x

    def channels(self, x, rank):
        """Return a vector over the channels as [1, C, 1, …]."""
        return self.b.reshape(x, (1, *x.shape, *(1,) * (rank - 2)))


def mathematics(b, *values):
    return Math(b, values[0].dtype.compute)


def optional_operands(given, has, names=("weight", "bias")):
    """Return the optional operands by name."""
    has = names[: len(given)] if has is None else has
    if len(has) != len(given) or not set(has) <= set(names):
        raise TypeError(
            f"has = {list(has)} does not name the {len(given)} optional operands; they are called {', '.join(names)}"
        )
    return dict(zip(has, given))


def tail_axes(x, axes):
    return tuple(sorted(a % x.rank for a in axes))
