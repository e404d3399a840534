"""Rows of reductions over axes, complete or partial; 16-bit floats accumulate in float32."""

from __future__ import annotations

import math as pymath

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.ops.composite import mathematics
from mlirfuse.ir.ops.registry import ANY, COMPLEX, FLOAT, NUMBER, axes_of, check_axes, quietly, row


def _reduced(shapes, attrs):
    (shape,) = shapes
    check_axes(attrs["axes"], len(shape))
    axes = axes_of(attrs, len(shape))
    if attrs.get("keepdims"):
        return [tuple(1 if k in axes else n for k, n in enumerate(shape))]
    return [tuple(n for k, n in enumerate(shape) if k not in axes)]


def _np_axes(x, axes):
    return tuple(range(x.ndim)) if axes is None else tuple(axes)


def _reduction(
    name,
    doc,
    function,
    takes=NUMBER,
    result="same",
    numpy=None,
    nvfuser=None,
    accumulator="value",
    expand=None,
    **attrs,
):
    def ref(x, axes=None, keepdims=False, **kwargs):
        wide = x.astype(np.float32) if x.dtype.itemsize == 2 and dt.of(x.dtype).is_float else x
        return np.asarray(function(wide, axis=_np_axes(x, axes), keepdims=keepdims, **kwargs))

    row(
        name,
        "reduce",
        "x",
        doc,
        takes=takes,
        result=result,
        attrs={"axes": None, "keepdims": False, **attrs},
        infer=_reduced,
        expand=expand,
        accumulator=accumulator,
        ref=quietly(ref),
        numpy=name if numpy is None else numpy,
        nvfuser=name if nvfuser is None else nvfuser,
    )


def _arg(function):
    def ref(x, axis, keepdims):
        axes = sorted(a % x.ndim for a in axis)
        kept = tuple(n for k, n in enumerate(x.shape) if k not in axes)
        rows = np.moveaxis(x, axes, range(-len(axes), 0)) if axes else x
        found = function(rows.reshape((*kept, pymath.prod(x.shape[a] for a in axes))), axis=-1).astype(np.int64)
        return found.reshape(tuple(1 if k in axes else n for k, n in enumerate(x.shape))) if keepdims else found

    return ref


def _mean(b, x, axes, keepdims):
    m = mathematics(b, x)
    total = b.op("sum", m(x), axes=axes, keepdims=keepdims)
    return b.cast(m.div(total, m.number(b.numel(x, axes))), x.dtype)


def _variance(b, x, axes, keepdims, correction, exact_zero):
    """In two passes over the data: accurate even where the mean is large relative to the deviation. ``exact_zero``:
    the mean's rounding is subtracted again (Chan, Golub and LeVeque's corrected two-pass algorithm). Where all elements
    are equal, deviations are a few units in the last place, whose sums and their product are exact. Squares that are
    infinite stay so."""
    m = mathematics(b, x)
    v = m(x)
    total = b.op("sum", v, axes=axes, keepdims=True)
    count = b.numel(x, axes)
    centred = m.sub(v, m.div(total, m.number(count)))
    squares = b.op("sum", m.mul(centred, centred), axes=axes, keepdims=keepdims)
    if exact_zero:
        rest = b.op("sum", centred, axes=axes, keepdims=keepdims)
        excess = m.minimum(m.mul(rest, m.div(rest, m.number(count))), float(np.finfo(m.dtype.numpy).max))
        squares = m.maximum(m.sub(squares, excess), 0.0)
    return m.div(squares, m.number(sz.maximum(count - correction, 0) if correction > 0 else count - correction))


def _moment(function):
    """The reference of a reduction that is the same for ``x`` minus its first elements: exactly 0 if all are equal."""

    def ref(x, axis, exact_zero=False, **kwargs):
        first = tuple(slice(0, 1) if k in axis else slice(None) for k in range(x.ndim))
        return function(x - x[first] if exact_zero else x, axis=axis, **kwargs)

    return ref


def _var(b, x, axes, keepdims, **more):
    return b.cast(_variance(b, x, axes, keepdims, **more), x.dtype)


def _std(b, x, axes, keepdims, **more):
    return b.cast(b.op("sqrt", _variance(b, x, axes, keepdims, **more)), x.dtype)


_reduction("sum", "sum", lambda x, **k: np.sum(x, dtype=x.dtype, **k), NUMBER + COMPLEX)
_reduction("prod", "product", lambda x, **k: np.prod(x, dtype=x.dtype, **k))
_reduction("max", "largest; NaN if any is", np.max, ANY, numpy="max amax")
_reduction("min", "smallest; NaN if any is", np.min, ANY, numpy="min amin")
_reduction("any", "is any nonzero", np.any, ANY, "bool", nvfuser="", accumulator="truth")
_reduction("all", "are all nonzero", np.all, ANY, "bool", nvfuser="", accumulator="truth")
_reduction(
    "argmax",
    "index in row-major order along the axes, of the first largest; of the first NaN if there is one",
    _arg(np.argmax),
    ANY,
    "i64",
    nvfuser="",
    accumulator="position",
)
_reduction(
    "argmin",
    "index in row-major order along the axes, of the first smallest; of the first NaN if there is one",
    _arg(np.argmin),
    ANY,
    "i64",
    nvfuser="",
    accumulator="position",
)
_reduction("mean", "arithmetic mean", np.mean, FLOAT, expand=_mean)
_reduction(
    "m2",
    "sum of squared deviations from the mean, in one pass (Welford; Chan, Golub and LeVeque 1979); exact_zero: 0 if "
    "all elements are equal",
    _moment(lambda x, axis, **k: np.sum((x - np.mean(x, axis, keepdims=True)) ** 2, axis, **k)),
    FLOAT,
    numpy="",
    nvfuser="",
    accumulator="moments",
    exact_zero=False,
)
_reduction(
    "var",
    "variance, divisor n - correction; exact_zero: 0 if all elements are equal",
    _moment(lambda x, correction, **k: np.var(x, ddof=correction, **k)),
    FLOAT,
    correction=0,
    exact_zero=False,
    expand=_var,
)
_reduction(
    "std",
    "standard deviation, divisor n - correction; exact_zero: 0 if all elements are equal",
    _moment(lambda x, correction, **k: np.std(x, ddof=correction, **k)),
    FLOAT,
    correction=0,
    exact_zero=False,
    expand=_std,
)


def _partial(shapes, attrs):
    (shape,) = shapes
    check_axes(attrs["axes"], len(shape))
    if attrs["parts"] < 1:
        raise ShapeError(f"partial_sum: {attrs['parts']} partials; there must be at least 1")
    return [(attrs["parts"], *tuple(n for k, n in enumerate(shape) if k not in attrs["axes"]))]


def _partial_ref(x, axes, parts):
    rows = np.moveaxis(x, axes, range(len(axes))).reshape(
        (-1, *tuple(n for k, n in enumerate(x.shape) if k not in axes))
    )
    return np.stack([np.sum(rows[p::parts], axis=0, dtype=x.dtype) for p in range(parts)])


row(
    "partial_sum",
    "partial",
    "x",
    "partial sums over axes: partial p sums every parts-th row from row p on; the sum of the partials is the total",
    takes=NUMBER,
    attrs={"axes": ..., "parts": ...},
    infer=_partial,
    ref=_partial_ref,
)
