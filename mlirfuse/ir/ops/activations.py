"""Composite rows: softmax, activation functions, and their gradients."""

from __future__ import annotations

import math

from mlirfuse.ir.ops.composite import composite, mathematics


def softmax_parts(m, x, axis):
    shifted = m.sub(x, m.b.op("max", x, axes=(axis,), keepdims=True))
    exps = m.exp(shifted)
    return shifted, exps, m.sum(exps, (axis,))


def _softmax(b, x, axis):
    m = mathematics(b, x)
    _, exps, total = softmax_parts(m, m(x), axis % x.rank)
    return b.cast(m.div(exps, total), x.dtype)


def _log_softmax(b, x, axis):
    m = mathematics(b, x)
    shifted, _, total = softmax_parts(m, m(x), axis % x.rank)
    return b.cast(m.sub(shifted, m.log(total)), x.dtype)


def _softmax_backward(b, dy, y, axis):
    m = mathematics(b, y)
    g, y32 = m(dy), m(y)
    return b.cast(m.mul(y32, m.sub(g, m.sum(m.mul(g, y32), (axis % y.rank,)))), y.dtype)


def _log_softmax_backward(b, dy, y, axis):
    m = mathematics(b, y)
    g, y32 = m(dy), m(y)
    return b.cast(m.sub(g, m.mul(m.exp(y32), m.sum(g, (axis % y.rank,)))), y.dtype)


_INNER = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def _gelu(b, x, approximate):
    m = mathematics(b, x)
    v = m(x)
    if approximate == "tanh":
        return b.cast(m.mul(v, _share(m, v, m.mul(v, v))), x.dtype)
    if approximate != "none":
        raise TypeError(f"gelu: approximate is '{approximate}'; it is 'none' or 'tanh'")
    return b.cast(m.mul(m.mul(0.5, v), m.add(m.erf(m.mul(v, math.sqrt(0.5))), 1.0)), x.dtype)


def _share(m, v, square):
    """``(1 + tanh(u)) / 2``, ``u = sqrt(2/pi) (v + 0.044715 v³)``, as ``sigmoid(2 u)``: no cancellation for negative
    ``u``, and fewer instructions."""
    return m.sigmoid(m.mul(v, m.add(2 * _INNER, m.mul(2 * _INNER * _CUBIC, square))))


def _gelu_backward(b, dy, x, approximate):
    m = mathematics(b, x)
    g, v = m(dy), m(x)
    if approximate == "tanh":
        square = m.mul(v, v)
        s = _share(m, v, square)
        slope = m.add(2 * _INNER, m.mul(6 * _INNER * _CUBIC, square))
        derivative = m.add(s, m.mul(v, m.mul(m.mul(s, m.sub(1.0, s)), slope)))
    else:
        cdf = m.mul(0.5, m.add(m.erf(m.mul(v, math.sqrt(0.5))), 1.0))
        pdf = m.mul(1 / math.sqrt(2 * math.pi), m.exp(m.mul(-0.5, m.mul(v, v))))
        derivative = m.add(cdf, m.mul(v, pdf))
    return b.cast(m.mul(g, derivative), x.dtype)


def _silu_backward(b, dy, x):
    m = mathematics(b, x)
    g, v = m(dy), m(x)
    s = m.sigmoid(v)
    return b.cast(m.mul(m.mul(g, s), m.add(1.0, m.mul(v, m.sub(1.0, s)))), x.dtype)


composite("softmax", "x", "exp(x) over its sum along axis", _softmax, {"axis": -1})
composite("log_softmax", "x", "the logarithm of softmax", _log_softmax, {"axis": -1})
composite("softmax_backward", "dy y", "the gradient of softmax, from its result", _softmax_backward, {"axis": -1})
composite(
    "log_softmax_backward", "dy y", "the gradient of log_softmax, from its result", _log_softmax_backward, {"axis": -1}
)
composite(
    "gelu",
    "x",
    "x times the normal distribution function of x; approximate is none (erf) or tanh",
    _gelu,
    {"approximate": "none"},
)
composite("gelu_backward", "dy x", "the gradient of gelu", _gelu_backward, {"approximate": "none"})
composite("silu_backward", "dy x", "the gradient of silu", _silu_backward)
