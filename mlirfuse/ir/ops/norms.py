"""Composite rows: normalizations over given axes and over channels, and their gradients."""

from __future__ import annotations

from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.ops.composite import (
    check_given_axes,
    composite,
    mathematics,
    optional_operands,
    reduced_shape,
    tail_axes,
)
from mlirfuse.ir.ops.registry import show


def _layer_norm(b, x, *given, axes, eps, has, stats):
    m = mathematics(b, x)
    axes, v, optional = tail_axes(x, axes), m(x), optional_operands(given, has)
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
    m = mathematics(b, x)
    axes, v = tail_axes(x, axes), m(x)
    rstd = m.rsqrt(m.add(m.mean(m.mul(v, v), axes), eps))
    y = b.cast(_affine(m, m.mul(v, rstd), optional_operands(given, has)), x.dtype)
    return [y, rstd] if stats else [y]


def _norm_gradient(m, g, normal, rstd, axes, centred=True):
    """Return the gradient of ``normal``, which is x (less its mean if ``centred``) times rstd, given that of the norm
    before its weight."""
    inner = m.sub(g, m.mul(normal, m.mean(m.mul(g, normal), axes)))
    if centred:
        inner = m.sub(inner, m.mean(g, axes))
    return m.mul(rstd, inner)


def _layer_norm_backward(b, dy, x, mean, rstd, *weight, axes):
    m = mathematics(b, x)
    axes, g, r = tail_axes(x, axes), m(dy), m(rstd)
    normal = m.mul(m.sub(m(x), m(mean)), r)
    inner = m.mul(g, m(weight[0])) if weight else g
    dx = b.cast(_norm_gradient(m, inner, normal, r, axes), x.dtype)
    if not weight:
        return [dx]
    outer = tuple(k for k in range(x.rank) if k not in axes)
    return [dx, *(b.cast(m.sum(t, outer, False), weight[0].dtype) for t in (m.mul(g, normal), g))]


def _rms_norm_backward(b, dy, x, rstd, *weight, axes):
    m = mathematics(b, x)
    axes, g, r = tail_axes(x, axes), m(dy), m(rstd)
    normal = m.mul(m(x), r)
    inner = m.mul(g, m(weight[0])) if weight else g
    dx = b.cast(_norm_gradient(m, inner, normal, r, axes, centred=False), x.dtype)
    if not weight:
        return [dx]
    outer = tuple(k for k in range(x.rank) if k not in axes)
    return [dx, b.cast(m.sum(m.mul(g, normal), outer, False), weight[0].dtype)]


def _with_stats(count):
    """Return the inference rules of a norm with ``count`` optional statistics, in the compute type."""

    def infer(shapes, attrs):
        check_given_axes(shapes[0], attrs)
        return [shapes[0]] + [reduced_shape(shapes[0], attrs["axes"])] * (count if attrs["stats"] else 0)

    def result(dtypes, attrs):
        return [dtypes[0]] + [dtypes[0].compute] * (count if attrs["stats"] else 0)

    return {"infer": infer, "result": result}


def _gradients(first, count):
    """Return the inference rules of a backward op: the gradient of operand 1 and, where a weight is operand ``first``,
    ``count`` more of its shape."""

    def infer(shapes, attrs):
        check_given_axes(shapes[1], attrs)
        _check_groups(shapes[1], attrs)
        return [shapes[1]] + ([shapes[first]] * count if len(shapes) > first else [])

    def result(dtypes, attrs):
        return [dtypes[1]] + ([dtypes[first]] * count if len(dtypes) > first else [])

    return {"infer": infer, "result": result}


_NORM = {"axes": (-1,), "eps": 1e-5, "has": None, "stats": False}
composite(
    "layer_norm",
    "x weight_bias*",
    "x less its mean, over its standard deviation, along the last axes; with stats also mean and reciprocal deviation",
    _layer_norm,
    _NORM,
    **_with_stats(2),
)
composite(
    "rms_norm",
    "x weight_bias*",
    "x over its root mean square along the last axes; with stats also its reciprocal",
    _rms_norm,
    _NORM,
    **_with_stats(1),
)
composite(
    "layer_norm_backward",
    "dy x mean rstd weight*",
    "gradients of x and, where it is given, of weight and bias",
    _layer_norm_backward,
    {"axes": (-1,)},
    **_gradients(4, 2),
)
composite(
    "rms_norm_backward",
    "dy x rstd weight*",
    "gradients of x and, where it is given, of weight",
    _rms_norm_backward,
    {"axes": (-1,)},
    **_gradients(3, 1),
)


def _grouped(x, groups):
    """Reshape [N, C, …] to [N, groups, C / groups, …]."""
    return (x.shape[0], groups, sz.floordiv(x.shape[1], groups), *x.shape[2:])


def _check_groups(shape, attrs):
    groups = attrs.get("groups", 1)
    if groups < 1 or (len(shape) > 1 and isinstance(shape[1], int) and shape[1] % groups):
        raise ShapeError(f"groups = {groups} does not divide the channels of an operand of shape {show(shape)}")


def _group_norm_shape(shapes, attrs):
    if len(shapes[0]) < 2:
        raise ShapeError("the operand must be [N, C, …]")
    _check_groups(shapes[0], attrs)
    return [shapes[0]]


def _group_norm(b, x, *given, groups, eps, has):
    m = mathematics(b, x)
    v = b.reshape(m(x), _grouped(x, groups))
    axes = tuple(range(2, v.rank))
    centred = m.sub(v, m.mean(v, axes))
    normal = m.mul(centred, m.rsqrt(m.add(m.mean(m.mul(centred, centred), axes), eps)))
    y = _affine(m, b.reshape(normal, x.shape), optional_operands(given, has), lambda p: m.channels(p, x.rank))
    return [b.cast(y, x.dtype)]


def _group_norm_backward(b, dy, x, *weight, groups, eps):
    m = mathematics(b, x)
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
    """Return the gradients of weight and bias."""
    axes = tuple(k for k in range(g.rank) if k != 1)
    return [m.b.cast(m.sum(t, axes, False), weight[0].dtype) for t in (m.mul(g, normal), g)] if weight else []


def _running_norm(per_instance):
    """Return the expansion of batch_norm (statistics over all but the channels) or instance_norm (over all but batch
    and channels)."""

    def expand(b, x, *given, training, momentum, eps, has):
        m = mathematics(b, x)
        v, optional = m(x), optional_operands(given, has, _RUNNING)
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
        return [dtypes[0], *extra, *running]

    return {"expand": expand, "infer": infer, "result": result}


_RUNNING = ("weight", "bias", "running_mean", "running_var")


def _names(operands, attrs):
    return list(_RUNNING[: len(operands) - 1] if attrs["has"] is None else attrs["has"])


def _batch_norm_backward(b, dy, x, mean, rstd, *weight, training):
    m = mathematics(b, x)
    g, axes = m(dy), (0, *range(2, x.rank))
    r = m.channels(m(rstd), x.rank)
    normal = m.mul(m.sub(m(x), m.channels(m(mean), x.rank)), r)
    inner = m.mul(g, m.channels(m(weight[0]), x.rank)) if weight else g
    dx = _norm_gradient(m, inner, normal, r, axes) if training else m.mul(inner, r)
    return [b.cast(dx, x.dtype), *_channel_gradients(m, g, normal, weight)]


def _instance_norm_backward(b, dy, x, mean, rstd, *weight):
    m = mathematics(b, x)
    g, axes = m(dy), tuple(range(2, x.rank))
    shape = (*x.shape[:2], *(1,) * (x.rank - 2))
    r = b.reshape(m(rstd), shape)
    normal = m.mul(m.sub(m(x), b.reshape(m(mean), shape)), r)
    inner = m.mul(g, m.channels(m(weight[0]), x.rank)) if weight else g
    return [b.cast(_norm_gradient(m, inner, normal, r, axes), x.dtype), *_channel_gradients(m, g, normal, weight)]


_BATCH = {"training": True, "momentum": 0.1, "eps": 1e-5, "has": None}
composite(
    "group_norm",
    "x weight_bias*",
    "[N, C, …] normalized over groups of channels",
    _group_norm,
    {"groups": ..., "eps": 1e-5, "has": None},
    infer=_group_norm_shape,
)
composite(
    "group_norm_backward",
    "dy x weight*",
    "gradients of x and, where it is given, of weight and bias",
    _group_norm_backward,
    {"groups": ..., "eps": 1e-5},
    **_gradients(2, 2),
)
composite(
    "batch_norm",
    "x weight_bias_running_mean_running_var*",
    "[N, C, …] normalized over all but the channels; in training also gives mean and reciprocal deviation and, where "
    "they are given, the new running mean and variance",
    attrs=_BATCH,
    **_running_norm(False),
)
composite(
    "batch_norm_backward",
    "dy x mean rstd weight*",
    "gradients of x and, where it is given, of weight and bias",
    _batch_norm_backward,
    {"training": True},
    **_gradients(4, 2),
)
composite(
    "instance_norm",
    "x weight_bias_running_mean_running_var*",
    "as batch_norm, for each element of the batch by itself",
    attrs=_BATCH,
    **_running_norm(True),
)
composite(
    "instance_norm_backward",
    "dy x mean rstd weight*",
    "gradients of x and, where it is given, of weight and bias",
    _instance_norm_backward,
    **_gradients(4, 2),
)
