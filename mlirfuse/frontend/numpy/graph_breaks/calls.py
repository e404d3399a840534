"""Library functions inside a trace: where graph breaks are allowed, those without an op are called with real arrays."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse.core.errors import TraceError, UnsupportedError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.bytecode import WRITING
from mlirfuse.frontend.numpy.source import refusals
from mlirfuse.frontend.numpy.stand_in import StandIn
from mlirfuse.frontend.numpy.trace_state import current
from mlirfuse.frontend.numpy.traced_array import LeafArray, TracedArray, TracedScalar

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.graph_breaks.session import Session


def pure(function: Callable) -> bool:
    """Whether a function writes into none of its arguments: NumPy's and SciPy's, with exceptions."""
    if isinstance(function, np.ufunc):
        return True
    module = getattr(function, "__module__", None) or ""
    known = module.split(".")[0] in ("numpy", "scipy", "_operator", "operator")
    return known and getattr(function, "__name__", "") not in WRITING


# Names of functions that draw random numbers or write files, and of arguments of those that draw.
_ACTING = {"rvs", "random_state", "rng", "seed", "tofile", "dump"}


def repeatable(function: Callable, constants: Iterable) -> bool:
    """Whether a call of a :func:`pure` function, with these arguments besides arrays, has no effect either, so that it
    may run twice: it writes no file, draws no random numbers and calls no function of the user's."""
    if isinstance(function, np.ufunc):
        return True
    module = getattr(function, "__module__", None) or ""
    try:
        words = {getattr(function, "__name__", ""), *inspect.signature(function).parameters}
    except (TypeError, ValueError):  # written in C
        words = {getattr(function, "__name__", "")}
    calls = any(callable(x) and not isinstance(x, (type, np.ufunc)) for x in constants)
    return not calls and words.isdisjoint(_ACTING) and not module.startswith("scipy.io")


@functools.lru_cache
def of_arrays(name: str) -> Callable:
    """The array method ``name`` as a function."""

    def method(array, *args, **kwargs):
        return getattr(array, name)(*args, **kwargs)

    method.__name__ = name
    method.__module__ = "numpy"
    return method


def vectorized(function: Callable, *given, **options) -> Callable:
    """The traceable ``np.vectorize``."""
    created = np.vectorize(function, *given, **options)

    def call(*args, **kwargs):
        session = session_of((*args, *kwargs.values()))
        if session is None:
            return created(*args, **kwargs)
        return session.call(_vectorize, (function, given, options, args, kwargs), {})

    return call


def _vectorize(function, given, options, args, kwargs):
    return np.vectorize(function, *given, **options)(*args, **kwargs)


def library_function(function: Callable) -> Callable:
    """The traceable version of a library function: with graph breaks it is called with real arrays."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        session = session_of((*args, *kwargs.values()))
        if session is None:
            return function(*args, **kwargs)
        return session.call(function, args, kwargs, pure(function))

    return call


class LibraryObject:
    """The traceable version of a callable library object, such as a SciPy distribution: it and its methods are called
    with real arrays."""

    def __init__(self, real: Any):
        self.__dict__["_real"] = real

    def __call__(self, *args, **kwargs):
        return library_function(self._real)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return library_function(found) if callable(found) else found

    def __setattr__(self, name: str, value: Any) -> None:
        raise TraceError(f"an assignment to the attribute {name} of a {type(self._real).__name__}")


def session_of(nest: Any) -> Session | None:
    """The session in progress, if there is a stand-in among the arguments."""
    t = current()
    if t is None or t.session is None:
        return None
    leaves, _ = trees.flatten(nest)
    return t.session if any(isinstance(x, StandIn) for x in leaves) else None


def or_called(ours: Callable, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``ours(*args, **kwargs)``; with graph breaks NumPy's ``function`` handles what ours does not support."""
    session = session_of((*args, *kwargs.values()))
    if session is None:
        return ours(*args, **kwargs)
    try:
        return ours(*args, **kwargs)
    except (UnsupportedError, TraceError):
        refusals.last = None
        writes = kwargs.get("out") is not None or not pure(function)
        return session.call(function, args, kwargs, not writes)


def lazy(kind: type) -> Callable:
    """The traceable ``bool``, ``int``, ``float`` or ``complex``: a number known later, where tracing can go on without
    the value."""
    return lambda *args, **kwargs: kind(*args, **kwargs) if len(args) != 1 or kwargs else _lazily(args[0], kind)


# The dtype in which numbers of some kinds are converted, which is no error whatever their values are.
_CONVERTED = {int: ("biu", np.int64), float: ("biufn", np.float64), complex: ("biufnc", np.complex128)}


def _lazily(x: Any, kind: type) -> Any:
    kinds, to = _CONVERTED.get(kind, ("", None))
    unread = isinstance(x, TracedArray) and not isinstance(x, (TracedScalar, LeafArray)) and not x.ndim
    if not unread or x._value.dtype.kind not in kinds or x.known() is not None:
        return kind(x)
    return _later(x, kind, x.astype(to))


def _later(x: TracedArray, kind: type, converted: TracedArray) -> TracedScalar:
    """A Python number that a kernel will compute."""
    number = TracedArray(x._trace, converted.value, scalar=True)
    return TracedScalar(x._trace, number.value, kind, lambda: kind(number), later=True)


def python_bool(x: Any) -> Any:
    """``bool(x)`` of a boolean, whose value is not read before the function branches on it."""
    return _later(x, bool, x) if isinstance(x, TracedArray) and not isinstance(x, TracedScalar) else bool(x)
