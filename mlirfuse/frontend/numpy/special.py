"""Elementwise functions of ``scipy.special`` as ops. Does not import SciPy: looks functions up by name once a program
has imported it.

A rule computes in float64 where SciPy does, also for float32; a function with an op of its own maps to that op.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.numpy.operands import asarray, wrap
from mlirfuse.frontend.numpy.shapes import axes_or_all
from mlirfuse.frontend.numpy.source import fail, unsupported
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.ufunc_rules import formula_rule, of_row, op

_ROWS = {  # SciPy's name: op
    "cbrt": "cbrt", "erf": "erf", "erfc": "erfc", "erfcinv": "erfcinv", "erfinv": "erfinv", "exp2": "exp2",
    "expit": "sigmoid", "expm1": "expm1", "log1p": "log1p",
}  # fmt: skip
_RULES: dict[str, Callable[..., Any]] = {  # those of one expression; others follow
    "boxcox": lambda x, power: np.where(np.abs(power) < 1e-19, np.log(x), _boxcox(np.log(x), power)),
    "exp10": lambda x: np.power(10.0, x),
    "gammaln": lambda x: np.where(x == -np.inf, x, op("lgamma", x)),
    "inv_boxcox": lambda x, power: np.where(power == 0, np.exp(x), np.exp(np.log1p(power * x) / power)),
    "kl_div": lambda x, y: _where_positive(x, y, x * np.log(x / y) - x + y, y),
    "log_expit": lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))),
    "ndtr": lambda x: 0.5 * op("erfc", -x * math.sqrt(0.5)),
    "xlog1py": lambda x, y: np.where((x == 0) & ~np.isnan(y), 0.0, x * np.log1p(y)),
    "xlogy": lambda x, y: np.where((x == 0) & ~np.isnan(y), 0.0, x * np.log(y)),
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {}  # functions along axes
_LOG_OF_SQRT_2_PI = 0.5 * math.log(2 * math.pi)
_EXP_OVERFLOWS = 709.78


def rule_of(ufunc: np.ufunc) -> Callable[..., Any] | None:
    """The lowering rule of a ``scipy.special`` ufunc, as in :mod:`mlirfuse.frontend.numpy.ufunc_rules`."""
    name = ufunc.__name__
    if not (name in _ROWS or name in _RULES) or not _is_scipys(ufunc):
        return None

    rule = of_row(_ROWS[name]) if name in _ROWS else formula_rule(_RULES[name], wide=True)

    def lower(t, values, ins, outs):
        if any(d.kind == "c" for d in ins):
            unsupported(f"scipy.special.{name} of complex numbers")
        return rule(t, values, ins, outs)

    return lower


def function_of(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """The implementation of a ``scipy.special`` function that is not a ufunc."""
    name = getattr(function, "__name__", "")
    return _FUNCTIONS[name] if name in _FUNCTIONS and _is_scipys(function) else None


def _is_scipys(function: Callable[..., Any]) -> bool:
    module = sys.modules.get("scipy.special")
    return module is not None and getattr(module, getattr(function, "__name__", ""), None) is function


def _by_name(table: dict[str, Callable[..., Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that enters a function in a table."""
    return lambda function: table.setdefault(function.__name__, function)


_rule, _function = _by_name(_RULES), _by_name(_FUNCTIONS)


# ---- logarithms and exponentials


@_rule
def exprel(x):
    near = np.where(np.abs(x) < 1e-16, 1.0, np.expm1(x) / x)
    return np.where(x > 717, np.inf, near)


@_rule
def cosm1(x):
    half = np.sin(0.5 * x)
    return -2 * half * half


@_rule
def logit(p):
    s = 2 * (p - 0.5)
    return np.where((p < 0.3) | (p > 0.65), np.log(p / (1 - p)), np.log1p(s) - np.log1p(-s))


def _boxcox(log, power):
    """(exp(power * log) - 1) / power, or ``log`` where power is 0; uses the exponential's logarithm where it would
    overflow."""
    scaled = power * log
    far = np.sign(power) * np.exp(scaled - np.log(np.abs(power))) - 1 / power
    return np.where(scaled < _EXP_OVERFLOWS, np.expm1(scaled) / power, far)


@_rule
def boxcox1p(x, power):
    log = np.log1p(x)
    near = (np.abs(power) < 1e-19) | ((np.abs(log) < 1e-289) & (np.abs(power) < 1e273))
    return np.where(near, log, _boxcox(log, power))


@_rule
def inv_boxcox1p(x, power):
    scaled = power * x
    inside = np.where(np.abs(scaled) < 1e-154, x, np.expm1(np.log1p(scaled) / power))  # as in SciPy
    return np.where(power == 0, np.expm1(x), inside)


# ---- entropies and losses


@_rule
def entr(x):
    inside = np.where(x == 0, 0.0, -x * np.log(x))
    return np.where(x < 0, -np.inf, inside)


@_rule
def rel_entr(x, y):
    ratio = x / y
    near = x * np.log1p((x - y) / y)
    known = (ratio > np.finfo(float).tiny) & (ratio < np.inf)
    far = np.where(known, x * np.log(ratio), x * (np.log(x) - np.log(y)))
    inside = np.where((ratio > 0.5) & (ratio < 2), near, far)
    return _where_positive(x, y, inside, 0.0)


def _where_positive(x, y, inside, at_zero):
    """``inside`` where x and y are positive, ``at_zero`` where x is 0 and y is not negative, else infinity; NaN stays
    NaN."""
    outside = np.where((x == 0) & (y >= 0), at_zero, np.inf)
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.where((x > 0) & (y > 0), inside, outside))


@_rule
def huber(delta, r):
    far = np.abs(r)
    return np.where(delta < 0, np.inf, np.where(far <= delta, 0.5 * r * r, delta * (far - 0.5 * delta)))


@_rule
def pseudo_huber(delta, r):
    v = r / delta
    inside = delta * delta * np.expm1(0.5 * np.log1p(v * v))
    return np.where(delta < 0, np.inf, np.where((delta == 0) | (r == 0), 0.0, inside))


# ---- the normal distribution


@_rule
def log_ndtr(x):
    t = x * math.sqrt(0.5)
    u = 1 / (x * x)
    series = -u * (1 - u * (3 - u * (15 - u * (105 - u * (945 - u * (10395 - u * 135135))))))
    far = -0.5 * x * x - np.log(-x) - _LOG_OF_SQRT_2_PI + np.log1p(series)  # where erfc underflows
    near = np.where(x < -1, np.log(0.5 * op("erfc", -t)), np.log1p(-0.5 * op("erfc", t)))
    return np.where(x < -20, far, near)


@_rule
def ndtri(p):
    middle = math.sqrt(2) * op("erfinv", 2 * p - 1)
    return np.where(np.abs(p - 0.5) < 0.25, middle, -math.sqrt(2) * op("erfcinv", 2 * p))


# ---- along axes


def _floats(x) -> TracedArray:
    x = asarray(x)
    if x._value.dtype.kind == "c":
        fail(UnsupportedError, "scipy.special's functions of complex numbers are not supported in a compiled function")
    return x if x._value.dtype.is_float else asarray(x, np.float64)


def _normalized(row: str, x, axis=None) -> TracedArray:
    """An op along one axis, or over all axes flattened."""
    x = _floats(x)
    axes = axes_or_all(axis, x.ndim)
    if len(axes) == 1:
        return wrap(x._trace, x._trace.emit(row, x.value, axis=axes[0]))
    if len(axes) != x.ndim:
        unsupported(f"scipy.special.{row} along some of the axes")
    flat: Any = np.reshape(x, -1)
    created: Any = wrap(x._trace, x._trace.emit(row, flat.value, axis=0))
    return created.reshape(x.shape)


_FUNCTIONS |= {name: functools.partial(_normalized, name) for name in ("softmax", "log_softmax")}


@_function
def softplus(x, **options):
    if options:
        unsupported("scipy.special.softplus with options of ufuncs")
    return np.logaddexp(_floats(x), 0)


@_function
def logsumexp(a, axis=None, b=None, keepdims=False, return_sign=False):
    if b is not None or return_sign:
        unsupported("scipy.special.logsumexp with weights or signs")
    x = _floats(a)
    wide = asarray(x, np.float64)
    high = np.max(wide, axis=axis, keepdims=True)
    shift = np.where(np.isfinite(high), high, 0.0)
    created = np.log(np.sum(np.exp(wide - shift), axis=axis, keepdims=True)) + shift
    if not keepdims:
        created = np.squeeze(created, axes_or_all(axis, x.ndim))
    return wrap(x._trace, asarray(created, x.dtype).value)
