"""The dispatch protocols of NumPy, whose functions called on stand-ins come here, and of torch, whose functions are
rejected, naming what to use instead."""

from __future__ import annotations

import operator

import numpy as np

from mlirfuse.core.errors import TraceError
from mlirfuse.frontend.numpy.created_array import as_created, with_known
from mlirfuse.frontend.numpy.graph_breaks.calls import or_called, pure, session_of
from mlirfuse.frontend.numpy.operands import asarray, contains_traced, typed
from mlirfuse.frontend.numpy.registry import HANDLED, METHODS, UFUNCS, suggestion
from mlirfuse.frontend.numpy.source import fail, unsupported
from mlirfuse.frontend.numpy.stand_in import StandIn, SymInt
from mlirfuse.frontend.numpy.ufuncs import call_ufunc
from mlirfuse.ir import ops as table

# torch's names to NumPy's, where they differ.
_NUMPY = {name: row.numpy[0] for row in table.TABLE.values() for name in (row.name, *row.torch) if row.numpy} | {
    "bmm": "matmul", "cat": "concatenate", "clamp": "clip", "flatten": "ravel", "mm": "matmul",
    "true_divide": "divide", "unsqueeze": "expand_dims",
}  # fmt: skip


# Functions that torch dispatches for Python's operators; the stand-in handles those.
_OPERATORS = {name.strip("_") for name in dir(operator) if name.startswith("__")}
_OPERATORS |= {f"r{name}" for name in _OPERATORS} | {"div", "rdiv", "true_divide", "floor_divide", "remainder"}


class TorchFunctionError(TraceError, TypeError):
    """A torch function on a stand-in. Also a TypeError, so that a tensor's operator defers to the stand-in's."""


def torch_function(cls, function, types, args=(), kwargs=None) -> None:
    """Raises :class:`TorchFunctionError`, naming NumPy's or mlirfuse's equivalent function."""
    name = getattr(function, "__name__", str(function))
    there = {f.__name__ for f in (*HANDLED, *UFUNCS)} | set(table.TABLE)
    instead = _NUMPY.get(name, name)
    hint = (
        f"use mlirfuse.numpy.{instead}" if instead in there else "write it with NumPy's or mlirfuse.numpy's functions"
    )
    fail(
        TorchFunctionError,
        f"torch's {name} got an array of a compiled function, which is not a tensor during tracing: {hint}, or "
        'compile the torch function with torch.compile(f, backend="mlirfuse")',
        kept=name.strip("_") not in _OPERATORS,
    )


def array_ufunc(self, ufunc, method: str, *inputs, **kwargs):
    """NumPy's ``__array_ufunc__``."""
    kwargs = {k: v for k, v in kwargs.items() if v is not None or k not in ("out",)}
    if not (contains_traced(inputs) or contains_traced(tuple(kwargs.values()))):
        return NotImplemented
    if method == "__call__":
        if ufunc in (np.isnan, np.isinf, np.isfinite) and isinstance(inputs[0], SymInt):
            return ufunc(0)
        out = kwargs.get("out")
        if isinstance(out, tuple) and any(isinstance(o, np.ndarray) for o in out):
            fail(
                TraceError,
                f"np.{ufunc.__name__} would write a traced value into an array from outside the function: "
                "make that array an argument, or compute into a new one",
            )
        return or_called(lambda *inputs, **kwargs: call_ufunc(ufunc, inputs, kwargs), ufunc, inputs, kwargs)
    if method == "outer":
        a, b = (typed(asarray(x)) for x in inputs)
        return call_ufunc(ufunc, (np.reshape(a, a.shape + (1,) * b.ndim), b), kwargs)
    function = METHODS.get((ufunc, method))
    if function is not None:
        if isinstance(kwargs.get("out"), tuple):
            kwargs["out"] = kwargs["out"][0]
        return or_called(function, getattr(ufunc, method), inputs, kwargs)
    session = session_of(inputs)
    if session is not None:
        return session.call(getattr(ufunc, method), inputs, kwargs, method != "at")
    unsupported(f"np.{ufunc.__name__}.{method}", "compute it outside")


def array_function(self, function, types, args, kwargs):
    """NumPy's ``__array_function__``."""
    constants = with_known((args, kwargs)) if pure(function) and kwargs.get("out") is None else None
    if constants is not None:  # all arguments are known: NumPy evaluates the call
        return as_created(function(*constants[0], **constants[1]))
    ours = HANDLED.get(function)
    session = session_of((*args, *kwargs.values()))
    if ours is None and session is not None:
        return session.call(function, args, kwargs, pure(function))
    if ours is None:
        name = function.__name__
        module = getattr(function, "__module__", None) or "numpy"
        if module.startswith("numpy.random"):
            fail(
                TraceError,
                f"np.random.{name} inside a compiled function: use mlirfuse.numpy.uniform, normal or "
                "dropout with a seed",
            )
        serialized = f"{module.replace('numpy', 'np', 1)}.{name}"
        unsupported(f"the function {serialized}", suggestion(name))
    try:
        return or_called(ours, function, args, kwargs)
    except TypeError as error:
        if "unexpected keyword argument" in str(error) and not getattr(error, "_located", False):
            key = str(error).rsplit("'", 2)[1]
            unsupported(f"np.{function.__name__}: the argument '{key}'")
        raise


StandIn.__array_ufunc__ = array_ufunc
StandIn.__array_function__ = array_function
StandIn.__torch_function__ = classmethod(torch_function)
