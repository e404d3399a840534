"""NumPy's functions, and some that NumPy lacks: ``import mlirfuse.numpy as mnp``.

Inside a compiled function they are traced; outside, on real arrays, they compute at once. NumPy's own functions work
inside a compiled function too: ``mnp.exp`` is ``np.exp``. Only two groups differ from NumPy's: functions that create
arrays (``zeros``, ``arange`` …), which accept traced sizes without specializing to them, and the functions below that
NumPy lacks.
"""

from __future__ import annotations

import functools
import operator
from types import SimpleNamespace

import ml_dtypes
import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy import generator
from mlirfuse.frontend.numpy.functions.creation import arange
from mlirfuse.frontend.numpy.operands import asarray as _traced
from mlirfuse.frontend.numpy.operands import contains_traced, operand, trace_of, value_of, wrap
from mlirfuse.frontend.numpy.promotion import dtype_of
from mlirfuse.frontend.numpy.registry import CREATION
from mlirfuse.frontend.numpy.shapes import axes_of, axis_of, shape_of
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.trace_state import current
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.tracing import trace
from mlirfuse.frontend.numpy.ufuncs import store
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import interpreter
from mlirfuse.ir import sizes as sz
from mlirfuse.runtime.signature import ArgSpec, Static

bfloat16 = ml_dtypes.bfloat16
_own: list[str] = ["bfloat16", "random"]


def __getattr__(name: str):
    return getattr(np, name)


def __dir__():
    return sorted({*_own, *dir(np)})


def _public(function):
    """Exports ``function``: traced inside a trace, computed at once outside one."""
    _own.append(function.__name__)

    @functools.wraps(function)
    def call(*args, **kwargs):
        if current() is not None or contains_traced(args):
            return function(*args, **kwargs)
        return _at_once(function, args, kwargs)

    return call


def _at_once(function, args, kwargs):
    """Traces ``function`` and runs the trace with the op table's NumPy references."""
    leaves, tree = trees.flatten((args, kwargs))
    specs = [ArgSpec.of(x) if isinstance(x, np.ndarray) else Static(x) for x in leaves]
    traced = trace(function, specs, tree)
    arrays = [leaves[k] for k in traced.arg_leaves] + [c.read() for c in traced.captured]
    sizes = traced.sizes(arrays)
    results = interpreter.run(traced.graph, arrays, sizes)
    for leaf, position in traced.mutated.items():
        leaves[leaf][...] = results[position]
    return traced.result(results, leaves, sizes)


def _floating(x) -> TracedArray:
    """``x`` as a traced floating-point array: integers become float64, as in NumPy."""
    x = _traced(x)
    return x if x._value.dtype.is_float else _traced(x, np.float64)


def _emit(name: str, *arrays, **attrs) -> TracedArray:
    """Emits an op; its first result."""
    t = arrays[0]._trace
    created = t.emit(name, *[x.value for x in arrays], **attrs)
    return wrap(t, created[0] if isinstance(created, list) else created)


# ----------------------------------------------------------------------------------------------------------------
# elementwise


def _elementwise(name: str, doc: str, row: str | None = None):
    def function(x):
        return _emit(row or name, _floating(x))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    globals()[name] = _public(function)


_elementwise("rsqrt", "1 / sqrt(x).")
_elementwise("erf", "The error function, elementwise.")
_elementwise("erfc", "1 - erf(x), without cancellation.")
_elementwise("erfinv", "The inverse of erf.")
_elementwise("erfcinv", "The inverse of erfc.")
_elementwise("lgamma", "The logarithm of the absolute value of the gamma function.")
_elementwise("sigmoid", "1 / (1 + exp(-x)).")
_elementwise("silu", "x * sigmoid(x).")


@_public
def relu(x):
    """max(x, 0); NaN stays NaN."""
    x = _traced(x)
    return _emit("relu", x if x._value.dtype is not dt.bool_ else _traced(x, np.int8))


@_public
def gelu(x, approximate="none"):
    """x times the normal distribution's CDF at x; ``approximate`` is "none" (with erf) or "tanh"."""
    approximate = {True: "tanh", False: "none"}.get(approximate, approximate)
    if approximate not in ("none", "tanh"):
        fail(ValueError, f"gelu: approximate is {approximate!r}; it is 'none' or 'tanh'")
    return _emit("gelu", _floating(x), approximate=approximate)


@_public
def softplus(x):
    """log(1 + exp(x))."""
    return np.logaddexp(_floating(x), 0)


@_public
def leaky_relu(x, negative_slope=0.01):
    """x where it is positive, else x * negative_slope."""
    x = _floating(x)
    return np.where(x >= 0, x, x * negative_slope)


@_public
def elu(x, alpha=1.0):
    """x where it is positive, else alpha * (exp(x) - 1)."""
    x = _floating(x)
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


@_public
def cast(x, dtype):
    """x converted to ``dtype``."""
    return _traced(x).astype(dtype)


# ----------------------------------------------------------------------------------------------------------------
# along axes


def _axis(x, axis) -> int:
    return axis_of(axis, x.ndim)


@_public
def softmax(x, axis=-1):
    """exp(x) / sum(exp(x)) along ``axis``."""
    x = _floating(x)
    return _emit("softmax", x, axis=_axis(x, axis))


@_public
def log_softmax(x, axis=-1):
    """log(softmax(x)) along ``axis``."""
    x = _floating(x)
    return _emit("log_softmax", x, axis=_axis(x, axis))


@_public
def logsumexp(x, axis=None, keepdims=False):
    """log(sum(exp(x))) along ``axis``, without overflow."""
    x = _floating(x)
    wide = _traced(x, x._value.dtype.compute.numpy)
    high = np.max(wide, axis=axis, keepdims=True)
    high = np.where(np.isfinite(high), high, wide.dtype.type(0))
    result = np.log(np.sum(np.exp(wide - high), axis=axis, keepdims=True)) + high
    if not keepdims:
        result = np.squeeze(result, tuple(range(x.ndim)) if axis is None else axis)
    return wrap(x._trace, _traced(result, x.dtype).value)


@_public
def logcumsumexp(x, axis=-1):
    """log(cumsum(exp(x))) along ``axis``, without overflow."""
    x = _floating(x)
    return _emit("logcumsumexp", x, axis=axis_of(axis, x.ndim))


@_public
def linear_recurrence(a, b, axis=-1, reverse=False):
    """The recurrence ``h[t] = a[t] * h[t - 1] + b[t]`` along ``axis``, with ``h[0] = b[0]``; with ``reverse`` from the
    last element on. ``a`` and ``b`` broadcast; for an exponential average ``a`` is a number.

    The parallel scan multiplies runs of ``a``: such a product must not overflow where h is not 0."""
    t = trace_of(a, b)
    a, b = operand(t, a), operand(t, b)
    like = _traced(np.add(a, b))  # their common dtype and shape
    x, h = (np.broadcast_to(_traced(v, like.dtype), like.shape) for v in (a, b))
    return _emit("linear_recurrence", x, h, axis=axis_of(axis, like.ndim), reverse=bool(reverse))


def _tail(x, axis) -> tuple[int, ...]:
    return tuple(sorted(axes_of(axis if isinstance(axis, (tuple, list)) else (axis,), x.ndim)))


def _parameters(x, axes, **given):
    """The optional operands of a norm: their names, and their values with the extents of ``axes``."""
    t, names, values = x._trace, [], []
    for name, p in given.items():
        if p is None:
            continue
        p = _floating(p)
        extents = tuple(x._value.shape[a] for a in axes)
        own = t.shape(p._value)
        if len(own) != len(extents) or not all(t.unify(n, m) for n, m in zip(own, extents)):
            fail(
                ShapeError,
                f"{name} has shape {t.hints_of(own)}; the normalized axes have extents {t.hints_of(extents)}",
            )
        names.append(name)
        values.append(p)
    return tuple(names), values


def _consecutive_tail(x, axes) -> bool:
    return axes == tuple(range(x.ndim - len(axes), x.ndim))


@_public
def layer_norm(x, weight=None, bias=None, axis=-1, eps=1e-5):
    """(x - mean) / sqrt(var + eps) along ``axis``, times ``weight``, plus ``bias``; both have the axes' extents."""
    x = _floating(x)
    axes = _tail(x, axis)
    names, values = _parameters(x, axes, weight=weight, bias=bias)
    if not _consecutive_tail(x, axes) and values:
        values = [np.reshape(p, tuple(x.shape[k] if k in axes else 1 for k in range(x.ndim))) for p in values]
    return _emit("layer_norm", x, *values, axes=axes, eps=float(eps), has=names)


@_public
def rms_norm(x, weight=None, axis=-1, eps=1e-5):
    """x / sqrt(mean(x²) + eps) along ``axis``, times ``weight``, which has the axes' extents."""
    x = _floating(x)
    axes = _tail(x, axis)
    names, values = _parameters(x, axes, weight=weight)
    if not _consecutive_tail(x, axes) and values:
        values = [np.reshape(p, tuple(x.shape[k] if k in axes else 1 for k in range(x.ndim))) for p in values]
    return _emit("rms_norm", x, *values, axes=axes, eps=float(eps), has=names)


@_public
def group_norm(x, groups, weight=None, bias=None, eps=1e-5):
    """[N, C, …] normalized over ``groups`` groups of channels; ``weight`` and ``bias`` have shape [C]."""
    x = _floating(x)
    names, values = _parameters(x, (1,), weight=weight, bias=bias)
    t, groups = x._trace, operator.index(groups)
    if t.hint(x._value.shape[1]) % groups:
        fail(ShapeError, f"{t.hint(x._value.shape[1])} channels cannot be split into {groups} groups")
    t.unify(sz.mod(t.shape(x._value)[1], groups), 0)
    return _emit("group_norm", x, *values, groups=groups, eps=float(eps), has=names)


@_public
def batch_norm(x, weight=None, bias=None, running_mean=None, running_var=None, training=True, momentum=0.1, eps=1e-5):
    """[N, C, …] normalized over all axes but the channels. In training it uses x's statistics and updates the running
    ones, where given, in place with ``momentum``; otherwise it uses the running statistics."""
    x = _floating(x)
    names, values = _parameters(x, (1,), weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    if (running_mean is None) != (running_var is None) or (not training and running_mean is None):
        fail(
            ValueError,
            "batch_norm: running_mean and running_var must be given together, and are required when training is False",
        )
    t = x._trace
    created = t.emit(
        "batch_norm",
        x.value,
        *[v.value for v in values],
        training=bool(training),
        momentum=float(momentum),
        eps=float(eps),
        has=names,
    )
    if not isinstance(created, list):
        return TracedArray(t, created)
    if running_mean is not None and training:
        for target, fresh in zip((running_mean, running_var), created[3:]):
            if isinstance(target, TracedArray):
                store(t, target, fresh, "batch_norm")
    return TracedArray(t, created[0])


@_public
def cross_entropy(logits, target, axis=-1, ignore_index=-100):
    """-log_softmax(logits) along ``axis`` at the target class, an integer; 0 where the target is ``ignore_index``."""
    logits, target = _floating(logits), _traced(target)
    axis = _axis(logits, axis)
    if not target._value.dtype.is_integer:
        fail(TypeError, f"cross_entropy: targets must be integers, not {target.dtype}")
    target = target if target._value.dtype in (dt.i32, dt.i64) else _traced(target, np.int64)
    t = logits._trace
    rest = tuple(n for k, n in enumerate(t.shape(logits._value)) if k != axis)
    own = t.shape(target._value)
    if len(own) != len(rest) or not all(t.unify(n, m) for n, m in zip(own, rest)):
        fail(
            ShapeError,
            f"cross_entropy: targets of shape {t.hints_of(own)} for logits of shape "
            f"{t.hints_of(t.shape(logits._value))}",
        )
    if logits.ndim > 1 and axis != 1:
        logits = np.moveaxis(logits, axis, 1)
    return _emit("cross_entropy", logits, target, reduction="none", ignore_index=operator.index(ignore_index))


@_public
def embedding(weight, indices):
    """The rows of ``weight`` at ``indices``: shape ``indices.shape + weight.shape[1:]``."""
    return np.take(_traced(weight), _traced(indices), axis=0)


@_public
def one_hot(x, num_classes, dtype=np.float32):
    """1 where the new last axis, of extent ``num_classes``, has index x, else 0."""
    x = _traced(x)
    if x.itemsize < 4:  # its dtype may not hold all classes: a uint8 cannot hold 300
        x = _traced(x, np.float32 if x._value.dtype.is_float else np.int32)
    return (np.expand_dims(x, -1) == arange(num_classes, dtype=x.dtype)).astype(dtype)


# ----------------------------------------------------------------------------------------------------------------
# shapes


@_public
def broadcast_in_dim(x, shape, broadcast_dimensions):
    """x with dimension k at ``broadcast_dimensions[k]`` of ``shape``; the other dimensions broadcast."""
    x = _traced(x)
    t = x._trace
    target = shape_of(t, shape)
    dims = tuple(operator.index(d) for d in broadcast_dimensions)
    for d, n in zip(dims, t.shape(x._value)):
        if 0 <= d < len(target) and n != 1 and not t.unify(n, target[d]):
            fail(
                ShapeError,
                f"broadcast_in_dim: extent {t.hint(n)} does not broadcast to {t.hint(target[d])} in dimension {d}",
            )
    return TracedArray(t, t.emit("broadcast_in_dim", x.value, shape=tuple(map(t.canonical, target)), dims=dims))


# ----------------------------------------------------------------------------------------------------------------
# random numbers


def _seed(t, x):
    x = operand(t, x)
    if x.__class__ is int and x >= 2**63:
        return value_of(t, x, dt.u64)
    x = _traced(x)
    if not x._value.dtype.is_integer or x.ndim:
        fail(TypeError, "a seed or an offset must be one integer")
    return x.value if x._value.dtype in (dt.i64, dt.u64) else value_of(t, x, dt.i64)


def _numbers(t, seed, offset):
    """The seed and offset operands; the default generator's where no seed is given."""
    if seed is not None:
        return _seed(t, seed), _seed(t, offset)
    if offset.__class__ is not int or offset:
        fail(ValueError, "an offset needs a seed: give both or neither")
    return generator.seed_and_offset(t)


def _random(row: str, shape, seed, offset, dtype):
    t = trace_of(shape, seed, offset)
    extents = tuple(t.extent(n) for n in shape_of(t, shape))
    return TracedArray(t, t.emit(row, *_numbers(t, seed, offset), shape=extents, dtype=dtype_of(dtype)))


@_public
def uniform(shape, seed=None, offset=0, dtype=np.float32):
    """Numbers in [0, 1), from Philox with this seed and offset and each element's position: the same on every target.
    Without a seed each call draws new numbers: see :func:`seed`."""
    return _random("uniform", shape, seed, offset, dtype)


@_public
def normal(shape, seed=None, offset=0, dtype=np.float32):
    """Standard normal numbers, from Philox; without a seed each call draws new numbers."""
    return _random("normal", shape, seed, offset, dtype)


@_public
def dropout(x, p=0.5, seed=None, offset=0, training=True):
    """x with elements zeroed with probability p and the others divided by 1 - p; without a seed each call draws a new
    mask. x itself when not training."""
    x = _floating(x)
    if not training:
        return x
    t = x._trace
    if isinstance(p, TracedArray):
        kept = uniform(x.shape, seed, offset) < 1 - p
        return np.where(kept, x * np.asarray(1, x.dtype)[()] / _traced(1 - p, x.dtype), x.dtype.type(0))
    if not 0 <= p <= 1:
        fail(ValueError, f"dropout: the probability is {p}, not in [0, 1]")
    return wrap(t, t.emit("dropout", x.value, *_numbers(t, seed, offset), p=float(p))[0])


def seed(number: int | None = None) -> None:
    """Seeds the default generator, which calls of compiled functions without a seed draw from; None, as at first, takes
    a seed from the system's entropy."""
    generator.default.seed(number)


random = SimpleNamespace(uniform=uniform, normal=normal, dropout=dropout, seed=seed)

# ----------------------------------------------------------------------------------------------------------------
# arrays creation


def _creation(eager, function):
    """Exports a creation function that NumPy has too: NumPy's own outside a trace."""
    name = eager.__name__
    _own.append(name)

    @functools.wraps(function)
    def call(*args, **kwargs):
        if current() is None and not contains_traced(args):
            return eager(*args, **kwargs)
        return function(*args, **kwargs)

    globals()[name] = call


for _eager, _function in CREATION.items():
    _creation(_eager, _function)
