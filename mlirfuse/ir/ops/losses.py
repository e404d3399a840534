"""Composite rows: dropout, cross entropy, and their gradients."""

from __future__ import annotations

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.ops.activations import softmax_parts
from mlirfuse.ir.ops.composite import composite, mathematics


def _dropout(b, x, seed, offset, p):
    m = mathematics(b, x)
    kept = b.op("lt", b.op("uniform", seed, offset, shape=x.shape, dtype=dt.f32), b.constant(1 - p, dt.f32))
    scaled = m.mul(m(x), 1 / (1 - p) if p < 1 else 0.0)
    return [b.cast(b.op("where", kept, scaled, m.const(0.0)), x.dtype), kept]


def _dropout_backward(b, dy, kept, p):
    m = mathematics(b, dy)
    return b.cast(b.op("where", kept, m.mul(m(dy), 1 / (1 - p) if p < 1 else 0.0), m.const(0.0)), dy.dtype)


def _dropout_dtypes(dtypes, attrs):
    return (
        None
        if dtypes[0].is_float and set(dtypes[1:]) <= {dt.i64, dt.u64}
        else "takes floats, and a seed and an offset of 64 bits"
    )


composite(
    "dropout",
    "x seed offset",
    "zeroes elements with probability p and divides the others by 1 - p; also returns the mask of the kept ones",
    _dropout,
    {"p": 0.5},
    infer=lambda shapes, attrs: [shapes[0], shapes[0]],
    result=lambda dtypes, attrs: [dtypes[0], dt.bool_],
    dtypes=_dropout_dtypes,
)
composite(
    "dropout_backward",
    "dy kept",
    "the gradient of dropout",
    _dropout_backward,
    {"p": 0.5},
    dtypes=lambda dtypes, attrs: None if dtypes[0].is_float and dtypes[1] is dt.bool_ else "takes floats and bools",
)
_ENTROPY = {"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0}


def _losses(b, m, logits, target, ignore_index):
    """Return log softmax over the classes (axis 1, or 0 of a single sample), which targets count, and how many do."""
    axis = 1 if logits.rank > 1 else 0
    shifted, _, total = softmax_parts(m, m(logits), axis)
    counted = b.op("ne", target, b.constant(ignore_index, target.dtype))
    return axis, m.sub(shifted, m.log(total)), counted


def _count(b, m, counted):
    return b.op("sum", b.cast(counted, m.dtype), axes=None, keepdims=False)


def _cross_entropy(b, logits, target, reduction, ignore_index, label_smoothing):
    m = mathematics(b, logits)
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
    m = mathematics(b, logits)
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


composite(
    "cross_entropy",
    "logits target",
    "minus the logarithm of softmax over axis 1 at the target class; reduction is mean, sum or none",
    _cross_entropy,
    _ENTROPY,
    dtypes=_entropy_dtypes(1),
    infer=lambda shapes, attrs: [shapes[1] if attrs["reduction"] == "none" else ()],
)
composite(
    "cross_entropy_backward",
    "dy logits target",
    "the gradient of cross_entropy",
    _cross_entropy_backward,
    _ENTROPY,
    dtypes=_entropy_dtypes(2),
    infer=lambda shapes, attrs: [shapes[1]],
    result=lambda dtypes, attrs: [dtypes[1]],
)
