"""Composite rows of the op table: each is spelled in other ops, by ``expand``, which `fusion-decompose` and the
interpreter apply.

An ``expand(b, *values, **attrs)`` builds through a :class:`mlirfuse.ir.builder.Builder` and gives the result, or the
list of them for an op with several; None leaves the op as it is. Half types are computed in float32 and rounded once,
at the end.

The optional operands of the norms are named by ``has``; without it they are taken in the order weight, bias.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.ops.table import ALL_TYPES, FLOAT, TABLE, _row

# ---------------------------------------------------------------------------------------------------------------- rules


def _floats(dtypes, attrs):
    wrong = [t for t in dtypes if not t.is_float]
    return f"operands must be floats, not {wrong[0]}" if wrong else None


def _first(dtypes, attrs):
    return [dtypes[0]]


def _same_as_first(shapes, attrs):
    return [shapes[0]]


def _composite(name, operands, doc, expand, attrs=None, infer=_same_as_first, result=_first, dtypes=_floats, **more):
    _row(
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


def _reduced_shape(shape, axes):
    axes = {a % len(shape) for a in axes}
    return tuple(1 if k in axes else n for k, n in enumerate(shape))


# ----------------------------------------------------------------------------------------------------------------
# helpers


class _Math:
    """A builder with operators' names, in one compute type."""

    def __init__(self, b, dtype):
        self.b = b
        self.dtype = dtype

    def __call__(self, x):
        """``x`` in the compute type."""
        return self.b.cast(x, self.dtype)

    def const(self, value):
        return self.b.constant(value, self.dtype)

    def number(self, size):
        """A size as a number to compute with."""
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
        """A vector over the channels, as [1, C, 1, …]."""
        return self.b.reshape(x, (1, *x.shape, *(1,) * (rank - 2)))


def _mathematics(b, *values):
    return _Math(b, values[0].dtype.compute)


def _optional(given, has, names=("weight", "bias")):
    """The optional operands by name."""
    has = names[: len(given)] if has is None else has
    if len(has) != len(given) or not set(has) <= set(names):
        raise TypeError(
            f"has = {list(has)} does not name the {len(given)} optional operands; they are called {', '.join(names)}"
        )
    return dict(zip(has, given))


def _tail_axes(x, axes):
    return tuple(sorted(a % x.rank for a in axes))


# ----------------------------------------------------------------------------------------------------------------
# softmax, activations


def _softmax_parts(m, x, axis):
    shifted = m.sub(x, m.b.op("max", x, axes=(axis,), keepdims=True))
    exps = m.exp(shifted)
    return shifted, exps, m.sum(exps, (axis,))


def _softmax(b, x, axis):
    m = _mathematics(b, x)
    _, exps, total = _softmax_parts(m, m(x), axis % x.rank)
    return b.cast(m.div(exps, total), x.dtype)


def _log_softmax(b, x, axis):
    m = _mathematics(b, x)
    shifted, _, total = _softmax_parts(m, m(x), axis % x.rank)
    return b.cast(m.sub(shifted, m.log(total)), x.dtype)


def _softmax_backward(b, dy, y, axis):
    m = _mathematics(b, y)
    g, y32 = m(dy), m(y)
    return b.cast(m.mul(y32, m.sub(g, m.sum(m.mul(g, y32), (axis % y.rank,)))), y.dtype)


def _log_softmax_backward(b, dy, y, axis):
    m = _mathematics(b, y)
    g, y32 = m(dy), m(y)
    return b.cast(m.sub(g, m.mul(m.exp(y32), m.sum(g, (axis % y.rank,)))), y.dtype)


_INNER = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def _gelu(b, x, approximate):
    m = _mathematics(b, x)
    v = m(x)
    if approximate == "tanh":
        inner = m.mul(_INNER, m.add(v, m.mul(_CUBIC, m.mul(v, m.mul(v, v)))))
        bell = m.tanh(inner)
    elif approximate == "none":
        bell = m.erf(m.mul(v, math.sqrt(0.5)))
    else:
        raise TypeError(f"gelu: approximate is '{approximate}'; it is 'none' or 'tanh'")
    return b.cast(m.mul(m.mul(0.5, v), m.add(bell, 1.0)), x.dtype)


def _gelu_backward(b, dy, x, approximate):
    m = _mathematics(b, x)
    g, v = m(dy), m(x)
    if approximate == "tanh":
        square = m.mul(v, v)
        t = m.tanh(m.mul(_INNER, m.add(v, m.mul(_CUBIC, m.mul(v, square)))))
        slope = m.mul(_INNER, m.add(1.0, m.mul(3 * _CUBIC, square)))
        derivative = m.add(m.mul(0.5, m.add(t, 1.0)), m.mul(m.mul(0.5, v), m.mul(m.sub(1.0, m.mul(t, t)), slope)))
    else:
        cdf = m.mul(0.5, m.add(m.erf(m.mul(v, math.sqrt(0.5))), 1.0))
        pdf = m.mul(1 / math.sqrt(2 * math.pi), m.exp(m.mul(-0.5, m.mul(v, v))))
        derivative = m.add(cdf, m.mul(v, pdf))
    return b.cast(m.mul(g, derivative), x.dtype)


def _silu_backward(b, dy, x):
    m = _mathematics(b, x)
    g, v = m(dy), m(x)
    s = m.sigmoid(v)
    return b.cast(m.mul(m.mul(g, s), m.add(1.0, m.mul(v, m.sub(1.0, s)))), x.dtype)


_composite("softmax", "x", "exp(x) over its sum along axis", _softmax, {"axis": -1})
_composite("log_softmax", "x", "the logarithm of softmax", _log_softmax, {"axis": -1})
_composite("softmax_backward", "dy y", "the gradient of softmax, from its result", _softmax_backward, {"axis": -1})
_composite(
    "log_softmax_backward", "dy y", "the gradient of log_softmax, from its result", _log_softmax_backward, {"axis": -1}
)
_composite(
    "gelu",
    "x",
    "x times the normal distribution function of x; approximate is none (erf) or tanh",
    _gelu,
    {"approximate": "none"},
)
_composite("gelu_backward", "dy x", "the gradient of gelu", _gelu_backward, {"approximate": "none"})
_composite("silu_backward", "dy x", "the gradient of silu", _silu_backward)

# ---------------------------------------------------------------------------------------------------------------- norms
# over given axes


def _layer_norm(b, x, *given, axes, eps, has, stats):
    m = _mathematics(b, x)
    axes, v, optional = _tail_axes(x, axes), m(x), _optional(given, has)
    mean = m.mean(v, axes)
    centred = m.sub(v, mean)
    rstd = m.rsqrt(m.add(m.mean(m.mul(centred, centred), axes), eps))
    y = _affine(m, m.mul(centred, rstd), optional)
    return [b.cast(y, x.dtype), mean, rstd] if stats else [b.cast(y, x.dtype)]


def _affine(m, y, optional, arrange=lambda p: p):
    if "weight" in optional:
        y = m.mul(y, arrange(m(optional["weight"])))
    if "bias" in optional:
        y = m.add(y, arrange(m(optional["bias"])))
    return y


def _rms_norm(b, x, *given, axes, eps, has, stats):
    m = _mathematics(b, x)
    axes, v = _tail_axes(x, axes), m(x)
    rstd = m.rsqrt(m.add(m.mean(m.mul(v, v), axes), eps))
    y = b.cast(_affine(m, m.mul(v, rstd), _optional(given, has)), x.dtype)
    return [y, rstd] if stats else [y]


def _norm_gradient(m, g, normal, rstd, axes, centred=True):
    """The gradient of ``normal``, which is x (less its mean if ``centred``) times rstd, given that of the norm before
    its weight."""
    inner = m.sub(g, m.mul(normal, m.mean(m.mul(g, normal), axes)))
    if centred:
        inner = m.sub(inner, m.mean(g, axes))
    return m.mul(rstd, inner)


def _layer_norm_backward(b, dy, x, mean, rstd, *weight, axes):
    m = _mathematics(b, x)
    axes, g, r = _tail_axes(x, axes), m(dy), m(rstd)
    normal = m.mul(m.sub(m(x), m(mean)), r)
    inner = m.mul(g, m(weight[0])) if weight else g
    dx = b.cast(_norm_gradient(m, inner, normal, r, axes), x.dtype)
    if not weight:
        return [dx]
    outer = tuple(k for k in range(x.rank) if k not in axes)
    return [dx, *(b.cast(m.sum(t, outer, False), weight[0].dtype) for t in (m.mul(g, normal), g))]


def _rms_norm_backward(b, dy, x, rstd, *weight, axes):
    m = _mathematics(b, x)
    axes, g, r = _tail_axes(x, axes), m(dy), m(rstd)
    normal = m.mul(m(x), r)
    inner = m.mul(g, m(weight[0])) if weight else g
    dx = b.cast(_norm_gradient(m, inner, normal, r, axes, centred=False), x.dtype)
    if not weight:
        return [dx]
    outer = tuple(k for k in range(x.rank) if k not in axes)
    return [dx, b.cast(m.sum(m.mul(g, normal), outer, False), weight[0].dtype)]


def _with_stats(count):
    """Rules for a norm that also gives ``count`` statistics, in the compute type, when asked for them."""

    def infer(shapes, attrs):
        return [shapes[0]] + [_reduced_shape(shapes[0], attrs["axes"])] * (count if attrs["stats"] else 0)

    def result(dtypes, attrs):
        return [dtypes[0]] + [dtypes[0].compute] * (count if attrs["stats"] else 0)

    return {"infer": infer, "result": result}


def _gradients(first, count):
    """Rules for a backward op: the gradient of operand 1 and, where a weight is operand ``first``, ``count`` more of
    its shape."""

    def infer(shapes, attrs):
        return [shapes[1]] + ([shapes[first]] * count if len(shapes) > first else [])

    def result(dtypes, attrs):
        return [dtypes[1]] + ([dtypes[first]] * count if len(dtypes) > first else [])

    return {"infer": infer, "result": result}


_NORM = {"axes": (-1,), "eps": 1e-5, "has": None, "stats": False}
_composite("layer_norm", "x weight_bias*", "x less its mean, over its standard deviation, along the last axes; with stats also mean and "
           "reciprocal deviation", _layer_norm, _NORM, **_with_stats(2))  # fmt: skip
_composite("rms_norm", "x weight_bias*", "x over its root mean square along the last axes; with stats also its reciprocal", _rms_norm, _NORM,
           **_with_stats(1))  # fmt: skip
_composite("layer_norm_backward", "dy x mean rstd weight*", "gradients of x and, where it is given, of weight and bias", _layer_norm_backward,
           {"axes": (-1,)}, **_gradients(4, 2))  # fmt: skip
_composite("rms_norm_backward", "dy x rstd weight*", "gradients of x and, where it is given, of weight", _rms_norm_backward, {"axes": (-1,)},
           **_gradients(3, 1))  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------- norms
# over channels


def _grouped(x, groups):
    """[N, C, …] as [N, groups, C / groups, …]."""
    return (x.shape[0], groups, sz.floordiv(x.shape[1], groups), *x.shape[2:])


def _group_norm(b, x, *given, groups, eps, has):
    m = _mathematics(b, x)
    v = b.reshape(m(x), _grouped(x, groups))
    axes = tuple(range(2, v.rank))
    centred = m.sub(v, m.mean(v, axes))
    normal = m.mul(centred, m.rsqrt(m.add(m.mean(m.mul(centred, centred), axes), eps)))
    y = _affine(m, b.reshape(normal, x.shape), _optional(given, has), lambda p: m.channels(p, x.rank))
    return [b.cast(y, x.dtype)]


def _group_norm_backward(b, dy, x, *weight, groups, eps):
    m = _mathematics(b, x)
    g, shape = m(dy), _grouped(x, groups)
    inner = b.reshape(m.mul(g, m.channels(m(weight[0]), x.rank)) if weight else g, shape)
    v = b.reshape(m(x), shape)
    axes = tuple(range(2, v.rank))
    centred = m.sub(v, m.mean(v, axes))
    rstd = m.rsqrt(m.add(m.mean(m.mul(centred, centred), axes), eps))
    normal = m.mul(centred, rstd)
    dx = b.cast(b.reshape(_norm_gradient(m, inner, normal, rstd, axes), x.shape), x.dtype)
    return [dx, *_channel_gradients(m, g, b.reshape(normal, x.shape), weight)]


def _channel_gradients(m, g, normal, weight):
    """Those of weight and bias."""
    axes = tuple(k for k in range(g.rank) if k != 1)
    return [m.b.cast(m.sum(t, axes, False), weight[0].dtype) for t in (m.mul(g, normal), g)] if weight else []


def _running_norm(per_instance):
    """batch_norm (statistics over all but the channels), instance_norm (over all but batch and channels)."""

    def expand(b, x, *given, training, momentum, eps, has):
        m = _mathematics(b, x)
        v, optional = m(x), _optional(given, has, _RUNNING)
        axes = tuple(range(2, x.rank)) if per_instance else (0, *range(2, x.rank))

        def arrange(p):
            return m.channels(p, x.rank)

        if not training:
            if "running_mean" not in optional:
                raise TypeError("without training, running_mean and running_var must be given")
            mean, var = (arrange(m(optional[k])) for k in _RUNNING[2:])
            y = _affine(m, m.mul(m.sub(v, mean), m.rsqrt(m.add(var, eps))), optional, arrange)
            return [b.cast(y, x.dtype)]
        mean = m.mean(v, axes)
        centred = m.sub(v, mean)
        var = m.mean(m.mul(centred, centred), axes)
        rstd = m.rsqrt(m.add(var, eps))
        y = b.cast(_affine(m, m.mul(centred, rstd), optional, arrange), x.dtype)
        kept = (x.shape[0], x.shape[1]) if per_instance else (x.shape[1],)
        mean, var, rstd = (b.reshape(t, kept) for t in (mean, var, rstd))
        if "running_mean" not in optional:
            return [y, mean, rstd]
        count = b.numel(x, axes)  # the running variance is the unbiased one
        unbiased = m.mul(var, m.div(m.number(count), m.number(sz.maximum(count - 1, 0))))
        fresh = [m.mean(t, (0,), False) if per_instance else t for t in (mean, unbiased)]
        moved = [m.add(m.mul(1 - momentum, m(optional[k])), m.mul(momentum, t)) for k, t in zip(_RUNNING[2:], fresh)]
        return [y, mean, rstd, *(b.cast(t, optional[k].dtype) for k, t in zip(_RUNNING[2:], moved))]

    def infer(shapes, attrs):
        x = shapes[0]
        if len(x) < 2:
            raise ShapeError("the operand must be [N, C, …]")
        extra = [x[:2] if per_instance else x[1:2]] * 2 if attrs["training"] else []
        return [x] + extra + ([x[1:2]] * 2 if extra and "running_mean" in _names(shapes, attrs) else [])

    def result(dtypes, attrs):
        extra = [dtypes[0].compute] * 2 if attrs["training"] else []
        names = _names(dtypes, attrs)
        running = [dtypes[1 + names.index(k)] for k in _RUNNING[2:]] if extra and "running_mean" in names else []
        return [dtypes[0]] + extra + running

    return {"expand": expand, "infer": infer, "result": result}


_RUNNING = ("weight", "bias", "running_mean", "running_var")


def _names(operands, attrs):
    return list(_RUNNING[: len(operands) - 1] if attrs["has"] is None else attrs["has"])


def _batch_norm_backward(b, dy, x, mean, rstd, *weight, training):
    m = _mathematics(b, x)
    g, axes = m(dy), (0, *range(2, x.rank))
    r = m.channels(m(rstd), x.rank)
    normal = m.mul(m.sub(m(x), m.channels(m(mean), x.rank)), r)
    inner = m.mul(g, m.channels(m(weight[0]), x.rank)) if weight else g
    dx = _norm_gradient(m, inner, normal, r, axes) if training else m.mul(inner, r)
    return [b.cast(dx, x.dtype), *_channel_gradients(m, g, normal, weight)]


def _instance_norm_backward(b, dy, x, mean, rstd, *weight):
    m = _mathematics(b, x)
    g, axes = m(dy), tuple(range(2, x.rank))
    shape = (*x.shape[:2], *(1,) * (x.rank - 2))
    r = b.reshape(m(rstd), shape)
    normal = m.mul(m.sub(m(x), b.reshape(m(mean), shape)), r)
    inner = m.mul(g, m.channels(m(weight[0]), x.rank)) if weight else g
    return [b.cast(_norm_gradient(m, inner, normal, r, axes), x.dtype), *_channel_gradients(m, g, normal, weight)]


_BATCH = {"training": True, "momentum": 0.1, "eps": 1e-5, "has": None}
_composite(
    "group_norm",
    "x weight_bias*",
    "[N, C, …] normalized over groups of channels",
    _group_norm,
    {"groups": ..., "eps": 1e-5, "has": None},
)
_composite("group_norm_backward", "dy x weight*", "gradients of x and, where it is given, of weight and bias", _group_norm_backward,
           {"groups": ..., "eps": 1e-5}, **_gradients(2, 2))  # fmt: skip
_composite(
    "batch_norm",
    "x weight_bias_running_mean_running_var*",
    "[N, C, …] normalized over all but the channels; in training also gives mean and "
    "reciprocal deviation and, where they are given, the new running mean and variance",
    attrs=_BATCH,
    **_running_norm(False),
)
_composite("batch_norm_backward", "dy x mean rstd weight*", "gradients of x and, where it is given, of weight and bias", _batch_norm_backward,
           {"training": True}, **_gradients(4, 2))  # fmt: skip
_composite("instance_norm", "x weight_bias_running_mean_running_var*", "as batch_norm, for each element of the batch by itself", attrs=_BATCH,
           **_running_norm(True))  # fmt: skip
_composite("instance_norm_backward", "dy x mean rstd weight*", "gradients of x and, where it is given, of weight and bias", _instance_norm_backward,
           **_gradients(4, 2))  # fmt: skip

# ----------------------------------------------------------------------------------------------------------------
# dropout, cross entropy


def _dropout(b, x, seed, offset, p):
    m = _mathematics(b, x)
    kept = b.op("lt", b.op("uniform", seed, offset, shape=x.shape, dtype=dt.f32), b.constant(1 - p, dt.f32))
    scaled = m.mul(m(x), 1 / (1 - p) if p < 1 else 0.0)
    return [b.cast(b.op("where", kept, scaled, m.const(0.0)), x.dtype), kept]


def _dropout_backward(b, dy, kept, p):
    m = _mathematics(b, dy)
    return b.cast(b.op("where", kept, m.mul(m(dy), 1 / (1 - p) if p < 1 else 0.0), m.const(0.0)), dy.dtype)


def _dropout_dtypes(dtypes, attrs):
    return (
        None
        if dtypes[0].is_float and set(dtypes[1:]) <= {dt.i64, dt.u64}
        else "takes floats, and a seed and an offset of 64 bits"
    )


_composite(
    "dropout",
    "x seed offset",
    "zeroes elements with probability p, the others over 1 - p; also gives which were kept",
    _dropout,
    {"p": 0.5},
    infer=lambda shapes, attrs: [shapes[0], shapes[0]],
    result=lambda dtypes, attrs: [dtypes[0], dt.bool_],
    dtypes=_dropout_dtypes,
)
_composite(
    "dropout_backward",
    "dy kept",
    "the gradient of dropout",
    _dropout_backward,
    {"p": 0.5},
    dtypes=lambda dtypes, attrs: None if dtypes[0].is_float and dtypes[1] is dt.bool_ else "takes floats and bools",
)

_ENTROPY = {"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0}


def _losses(b, m, logits, target, ignore_index):
    """log softmax over the classes (axis 1, or 0 of a single sample), which targets count, and how many do."""
    axis = 1 if logits.rank > 1 else 0
    shifted, _, total = _softmax_parts(m, m(logits), axis)
    counted = b.op("ne", target, b.constant(ignore_index, target.dtype))
    return axis, m.sub(shifted, m.log(total)), counted


def _count(b, m, counted):
    return b.op("sum", b.cast(counted, m.dtype), axes=None, keepdims=False)


def _cross_entropy(b, logits, target, reduction, ignore_index, label_smoothing):
    m = _mathematics(b, logits)
    axis, logs, counted = _losses(b, m, logits, target, ignore_index)
    picked = b.op("take_along_axis", logs, b.op("expand_dims", target, axes=(axis,)), axis=axis)
    loss = m.neg(b.op("squeeze", picked, axes=(axis,)))
    if label_smoothing:
        even = m.div(m.sum(logs, (axis,), False), m.number(logits.shape[axis]))
        loss = m.sub(m.mul(1 - label_smoothing, loss), m.mul(label_smoothing, even))
    loss = b.op("where", counted, loss, m.const(0.0))
    if reduction == "none":
        return b.cast(loss, logits.dtype)
    if reduction not in ("mean", "sum"):
        raise TypeError(f"cross_entropy: reduction is '{reduction}'; it is mean, sum or none")
    total = b.op("sum", loss, axes=None, keepdims=False)
    return b.cast(m.div(total, _count(b, m, counted)) if reduction == "mean" else total, logits.dtype)


def _cross_entropy_backward(b, dy, logits, target, reduction, ignore_index, label_smoothing):
    m = _mathematics(b, logits)
    axis, logs, counted = _losses(b, m, logits, target, ignore_index)
    spread = b.op("expand_dims", target, axes=(axis,))
    extents = [1] * logits.rank
    extents[axis] = logits.shape[axis]
    classes = b.op("iota", shape=tuple(extents), axis=axis, dtype=target.dtype)
    hot = b.op("where", b.op("eq", classes, spread), m.const(1 - label_smoothing), m.const(0.0))
    if label_smoothing:
        hot = m.add(hot, m.div(m.const(label_smoothing), m.number(logits.shape[axis])))
    g = m(dy)
    if reduction == "mean":
        g = m.div(g, _count(b, m, counted))
    if reduction == "none":
        g = b.op("expand_dims", g, axes=(axis,))
    gradient = m.mul(m.sub(m.exp(logs), hot), g)
    return b.cast(b.op("where", b.op("expand_dims", counted, axes=(axis,)), gradient, m.const(0.0)), logits.dtype)


def _entropy_dtypes(k):
    def check(dtypes, attrs):
        return (
            None
            if all(t.is_float for t in dtypes[:k]) and dtypes[k] in (dt.i32, dt.i64)
            else "takes floats, and targets that are i32 or i64"
        )

    return check


_composite("cross_entropy", "logits target", "minus the logarithm of softmax over axis 1 at the target class; reduction is mean, sum or none",
           _cross_entropy, _ENTROPY, dtypes=_entropy_dtypes(1),
           infer=lambda shapes, attrs: [shapes[1] if attrs["reduction"] == "none" else ()])  # fmt: skip
_composite(
    "cross_entropy_backward",
    "dy logits target",
    "the gradient of cross_entropy",
    _cross_entropy_backward,
    _ENTROPY,
    dtypes=_entropy_dtypes(2),
    infer=lambda shapes, attrs: [shapes[1]],
    result=lambda dtypes, attrs: [dtypes[1]],
)

# ----------------------------------------------------------------------------------------------------------------
# convolution and linear


def _conv_shape(shapes, attrs):
    x, w = shapes[:2]
    rank = len(x) - 2
    if rank < 1 or len(w) != len(x):
        raise ShapeError(
            f"conv: the operand must be [N, C, …] and the weight [O, C / groups, …], of one rank; they have ranks {len(x)} and {len(w)}"
        )
    out = []
    for k in range(rank):
        stride, padding, dilation = (_per_axis(attrs[a], rank)[k] for a in ("stride", "padding", "dilation"))
        out.append(sz.floordiv(x[2 + k] + (2 * padding - 1) - (w[2 + k] - 1) * dilation, stride) + 1)
    return [(x[0], w[0], *out)]


def _per_axis(value, rank):
    values = tuple(value)
    if len(values) not in (1, rank):
        raise ShapeError(f"conv: {list(values)} must have one element or one for each of the {rank} axes")
    return values * rank if len(values) == 1 else values


def _conv_ref(x, w, *bias, stride, padding, dilation, groups):
    rank = x.ndim - 2
    stride, padding, dilation = (_per_axis(v, rank) for v in (stride, padding, dilation))
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:])]
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=tuple(range(2, 2 + rank)))
    windows = windows[
        (slice(None),) * 2 + tuple(slice(None, None, s) for s in stride) + tuple(slice(None, None, d) for d in dilation)
    ]
    taps = (1, *range(2 + rank, 2 + 2 * rank))
    pieces = [
        np.tensordot(part, kernel, axes=(taps, tuple(range(1, 2 + rank))))
        for part, kernel in zip(np.split(windows, groups, 1), np.split(w, groups, 0))
    ]
    out = np.moveaxis(np.concatenate(pieces, -1), -1, 1).astype(x.dtype)
    return out + bias[0].reshape(1, -1, *(1,) * rank) if bias else out


def _conv_bias(b, x, w, *bias, **attrs):
    if not bias:
        return None
    y = b.op("conv", x, w, **attrs)
    return b.op("add", y, b.reshape(bias[0], (1, *bias[0].shape, *(1,) * (x.rank - 2))))


def _linear_bias(b, x, w, *bias):
    return b.elementwise("add", b.op("linear", x, w), bias[0]) if bias else None


_row(
    "conv",
    "library",
    "x w bias*",
    "convolution of [N, C, …] with [O, C / groups, …], plus bias; stride, padding and dilation for each axis",
    takes=FLOAT,
    attrs={"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1},
    infer=_conv_shape,
    ref=_conv_ref,
    expand=_conv_bias,
)

# ----------------------------------------------------------------------------------------------------------------
# statistics


def _mean(b, x, axes, keepdims):
    m = _mathematics(b, x)
    total = b.op("sum", m(x), axes=axes, keepdims=keepdims)
    return b.cast(m.div(total, m.number(b.numel(x, axes))), x.dtype)


def _variance(b, x, axes, keepdims, correction):
    """In two passes over the data: exact where the mean is large against the deviation."""
    m = _mathematics(b, x)
    v = m(x)
    total = b.op("sum", v, axes=axes, keepdims=True)
    count = b.numel(x, axes)
    centred = m.sub(v, m.div(total, m.number(count)))
    squares = b.op("sum", m.mul(centred, centred), axes=axes, keepdims=keepdims)
    return m.div(squares, m.number(sz.maximum(count - correction, 0) if correction > 0 else count - correction))


def _var(b, x, axes, keepdims, correction):
    return b.cast(_variance(b, x, axes, keepdims, correction), x.dtype)


def _std(b, x, axes, keepdims, correction):
    return b.cast(b.op("sqrt", _variance(b, x, axes, keepdims, correction)), x.dtype)


STATISTICS = ("mean", "var", "std")  # reductions that a scheduler may take whole
for _name, _expand in (("linear", _linear_bias), ("mean", _mean), ("var", _var), ("std", _std)):
    TABLE[_name] = dataclasses.replace(TABLE[_name], expand=_expand)

# ----------------------------------------------------------------------------------------------------------------
# slices that are written


def _window(shape, start, size, step):
    """The slices of a window, as NumPy takes them."""
    stops = [s + n * p for s, n, p in zip(start, size, step)]
    return tuple(slice(s, stop if stop >= 0 else None, p) for s, stop, p in zip(start, stops, step))


def _set_slice_ref(x, value, start, size, step):
    out = x.copy()
    out[_window(x.shape, start, size, step)] = value
    return out


def _update_ref(dest, value, start, size, step):
    dest[_window(dest.shape, start, size, step)] = value
    return dest


def _set_slice(b, x, value, start, size, step):
    """Where the position is inside the window, the value's element that belongs there; else x."""
    value = b.broadcast_to(value, size)
    inside = None
    for axis, (first, count, stride) in enumerate(zip(start, size, step)):
        extent = x.shape[axis]
        if (first, count, stride) == (0, extent, 1):
            continue
        at = b.op("iota", shape=tuple(extent if k == axis else 1 for k in range(x.rank)), axis=axis, dtype=dt.i64)
        offset = b.op("sub", at, b.size(first)) if stride > 0 else b.op("sub", b.size(first), at)
        index = b.op("floor_div", offset, b.constant(abs(stride), dt.i64)) if abs(stride) != 1 else offset
        conditions = [] if first == 0 and stride > 0 else [b.op("ge", offset, b.constant(0, dt.i64))]
        if stride != 1 or first + count != extent:
            conditions.append(b.op("lt", index, b.size(count)))
        if abs(stride) != 1:
            conditions.append(b.op("eq", b.op("mul", index, b.constant(abs(stride), dt.i64)), offset))
        for condition in conditions:
            inside = condition if inside is None else b.op("logical_and", inside, condition)
        if stride == 1:
            value = _place(b, value, axis, first, extent)
        elif count != 0:
            rows = b.reshape(b.op("maximum", index, b.constant(0, dt.i64)), (extent,))
            value = b.op("take", value, rows, axis=axis)
    if inside is None:
        return b.op("copy", value)
    if 0 in size:
        return b.op("copy", x)
    return b.op("where", inside, value, x)


def _place(b, value, axis, first, extent):
    """``value`` with zeros around it, so that its element 0 is at ``first`` of ``extent``."""
    low, high = [0] * value.rank, [0] * value.rank
    low[axis], high[axis] = first, extent - first - value.shape[axis]
    return b.op("pad", value, b.constant(0, value.dtype), low=tuple(low), high=tuple(high))


def _window_shape(shapes, attrs):
    x, value = shapes
    if not len(x) == len(attrs["start"]) == len(attrs["size"]) == len(attrs["step"]):
        raise ShapeError(f"start, size and step must have {len(x)} elements, as the first operand has dimensions")
    if 0 in attrs["step"]:
        raise ShapeError("a step is 0")
    if len(value) > len(x):
        raise ShapeError(f"the value has rank {len(value)}, the first operand {len(x)}")
    for n, m in zip(value[::-1], tuple(attrs["size"])[::-1]):
        if isinstance(n, int) and isinstance(m, int) and n not in (1, m):
            raise ShapeError(f"a value of extent {n} does not fill a window of extent {m}")
    return [x]


_WINDOW = {"start": ..., "size": ..., "step": ...}
_row("set_slice", "composite", "x value", "x with the elements start + i * step replaced by value, which repeats to size", takes=ALL_TYPES,
     attrs=_WINDOW, infer=_window_shape, ref=_set_slice_ref, expand=_set_slice)  # fmt: skip
_row("update", "update", "dest value", "writes value into the elements start + i * step of dest, in place; gives dest", takes=ALL_TYPES, attrs=_WINDOW,
     infer=_window_shape, ref=_update_ref)  # fmt: skip
