"""NumPy's dispatch protocols: NumPy functions called on stand-ins come here."""

from __future__ import annotations

import numpy as np

from mlirfuse.core.errors import TraceError
from mlirfuse.frontend.numpy.created_array import as_created, with_known
from mlirfuse.frontend.numpy.graph_breaks.calls import or_called, pure, session_of
from mlirfuse.frontend.numpy.operands import asarray, contains_traced
from mlirfuse.frontend.numpy.registry import HANDLED, METHODS, suggestion
from mlirfuse.frontend.numpy.source import fail, unsupported
from mlirfuse.frontend.numpy.symint import SymInt
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.ufuncs import call_ufunc


def array_ufunc(ufunc, method: str, inputs, kwargs):
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
        a, b = (asarray(x) for x in inputs)
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


def array_function(function, args, kwargs):
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


for _class in (TracedArray, SymInt):
    _class.__array_ufunc__ = lambda self, ufunc, method, *inputs, **kwargs: array_ufunc(ufunc, method, inputs, kwargs)
    _class.__array_function__ = lambda self, function, types, args, kwargs: array_function(function, args, kwargs)
