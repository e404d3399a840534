"""Draws of single numbers from NumPy's generators in compiled loops: calls of the C functions that NumPy exports for
extensions, on the generator's own state, so the numbers are the ones that NumPy draws."""

from __future__ import annotations

import ctypes
import functools
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.loops.values import PY_FLOAT, NotOutlinable, Number, NumberType, require
from mlirfuse.ir import dtypes as dt
from mlirfuse.runtime import numpy_private


def is_generator(value: Any) -> bool:
    """Whether a value is one of NumPy's generators, whose state can be read. NumPy loads them at the first use, which
    takes 13 ms."""
    loaded = sys.modules.get("numpy.random")
    if loaded is None or not isinstance(value, (loaded.Generator, loaded.RandomState)):
        return False
    return isinstance(value, loaded.Generator) or numpy_private.bit_generator(value) is not None


@dataclass(frozen=True)
class Draw:
    """A method's C function, the names and defaults (None: required) of its parameters, and for each of them whether it
    must not be negative ("<"), must be positive ("<="), or neither ("")."""

    symbol: str
    names: tuple[str, ...] = ()
    defaults: tuple[float | None, ...] = ()
    limits: tuple[str, ...] = ()


_DRAWS = {
    "random": Draw("random_standard_uniform"),
    "standard_normal": Draw("random_standard_normal"),
    "standard_exponential": Draw("random_standard_exponential"),
    "normal": Draw("random_normal", ("loc", "scale"), (0.0, 1.0), ("", "<")),
    "uniform": Draw("random_uniform", ("low", "high"), (0.0, 1.0), ("", "")),
    "exponential": Draw("random_exponential", ("scale",), (1.0,), ("<",)),
    "gamma": Draw("random_gamma", ("shape", "scale"), (None, 1.0), ("<", "<")),
    "standard_gamma": Draw("random_standard_gamma", ("shape",), (None,), ("<",)),
    "beta": Draw("random_beta", ("a", "b"), (None, None), ("<=", "<=")),
    "chisquare": Draw("random_chisquare", ("df",), (None,), ("<=",)),
    "lognormal": Draw("random_lognormal", ("mean", "sigma"), (0.0, 1.0), ("", "<")),
    "laplace": Draw("random_laplace", ("loc", "scale"), (0.0, 1.0), ("", "<")),
    "logistic": Draw("random_logistic", ("loc", "scale"), (0.0, 1.0), ("", "<")),
    "rayleigh": Draw("random_rayleigh", ("scale",), (1.0,), ("<",)),
}
_OF_STATE = {"random": "random", "random_sample": "random", "rand": "random", "uniform": "uniform"}  # of RandomState


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        path = numpy_private.generators_library()
        return None if path is None else ctypes.CDLL(path)
    except OSError:
        return None


def _address(symbol: str) -> int:
    try:
        return ctypes.cast(getattr(_library(), symbol), ctypes.c_void_p).value or 0
    except AttributeError:
        raise NotOutlinable(f"{symbol}, which this NumPy does not export") from None


def state_of(owner: Any) -> int:
    """The address of a generator's state."""
    bits = owner.bit_generator if isinstance(owner, np.random.Generator) else numpy_private.bit_generator(owner)
    return int(bits.ctypes.bit_generator.value)


def table_of(addresses: list[int | str], values: dict[str, Any]) -> Any:
    """The table of the addresses that a loop's code uses, those of the states of generators among its variables."""
    found = [(state_of(values[v]) if v in values else 0) if isinstance(v, str) else v for v in addresses]
    return (ctypes.c_int64 * len(found))(*found)


def draw(c, function: Any, args: list, keywords: dict) -> Number:
    """One number of a generator's method. Raises NotOutlinable for other draws."""
    e, owner, name = c.code, function.__self__, function.__name__
    numbers = all(isinstance(v, Number) and v.dtype.kind != "c" for v in (*args, *keywords.values()))
    require(numbers, "a draw by other than numbers")
    state = c.name_of(owner) or state_of(owner)
    if name == "integers":
        return _integer(c, state, args, keywords)
    found = _DRAWS.get(name if isinstance(owner, np.random.Generator) else _OF_STATE.get(name, ""))
    if found is None or len(args) > len(found.names):
        raise NotOutlinable(f"the method {name} of a generator")
    given = dict(zip(found.names, args)) | keywords
    required = {name for name, otherwise in zip(found.names, found.defaults) if otherwise is None}
    require(required <= set(given) <= set(found.names), f"the arguments of the method {name} of a generator")
    vals = []
    for name, otherwise, limit in zip(found.names, found.defaults, found.limits):
        val = e.cast(given[name].val, dt.f64) if name in given else e.const(otherwise, dt.f64)
        if limit:
            e.fail_if(e.cmp("lt" if limit == "<" else "le", val, 0.0), ValueError(f"{name} {limit} 0"))
        vals.append(val)
    if found.symbol == "random_uniform":
        span = e.sub(vals[1], vals[0])
        inside = e.cmp("lt", e.abs(span), float("inf"))
        e.fail_if(e.not_(inside), OverflowError("high - low range exceeds valid bounds"))
        e.fail_if(e.cmp("lt", span, 0.0), ValueError("low > high"))
        vals[1] = span
    types = ", ".join(["!llvm.ptr", *("f64" for _ in vals)])
    called = e.address(_address(found.symbol))
    text = ", ".join([e.address(state), *(v.name for v in vals)])
    return Number(e.op(f"llvm.call {called}({text}) : !llvm.ptr, ({types}) -> f64", dt.f64), PY_FLOAT)


def _integer(c, state: int | str, args: list, keywords: dict) -> Number:
    """``rng.integers(low, high)``, which is below ``high``."""
    ints = not keywords and all(v.dtype.is_integer for v in args)
    require(ints and 1 <= len(args) <= 2, "a draw of integers by other than one or two ints")
    e = c.code
    low, high = (e.zero, c.integer(args[0])) if len(args) == 1 else map(c.integer, args)
    e.fail_if(e.cmp("ge", low, high), lambda low, _: ValueError("low >= high" if low else "high <= 0"), low)
    span = e.op(f"arith.subi {high}, {low} : i64", dt.i64)
    last = e.op(f"arith.subi {span}, {e.one} : i64", dt.i64)
    no = e.const(False, dt.bool_)
    called, bits = e.address(_address("random_bounded_uint64")), e.address(state)
    text = (
        f"llvm.call {called}({bits}, {low}, {last}, {e.zero}, {no}) : !llvm.ptr, (!llvm.ptr, i64, i64, i64, i1) -> i64"
    )
    return Number(e.op(text, dt.i64), NumberType(dt.i64, False))
