"""What the library's functions are in a trace: where a piece may end, those that have no op are called with the real
arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse.core.errors import TraceError, UnsupportedError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.source import refusals
from mlirfuse.frontend.numpy.symint import SymInt
from mlirfuse.frontend.numpy.trace_state import current
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.traced_scalar import LeafArray, TracedScalar

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.graph_breaks.session import Session

# Of functions and of methods; np.sort and np.partition count with them.
_WRITING = {
    "copyto", "put", "putmask", "place", "fill_diagonal", "put_along_axis", "setitem", "sort", "partition", "itemset",
    "resize", "byteswap", "setfield", "setflags", "fill",
}  # fmt: skip


def pure(function: Callable) -> bool:
    """Whether a function writes into none of its arguments: NumPy's and SciPy's, but some."""
    if isinstance(function, np.ufunc):
        return True
    module = getattr(function, "__module__", None) or ""
    known = module.split(".")[0] in ("numpy", "scipy", "_operator", "operator")
    return known and getattr(function, "__name__", "") not in _WRITING


@functools.lru_cache
def of_arrays(name: str) -> Callable:
    """The method of arrays, as a function."""

    def method(array, *args, **kwargs):
        return getattr(array, name)(*args, **kwargs)

    method.__name__ = name
    method.__module__ = "numpy"
    return method


def vectorized(function: Callable, *given, **options) -> Callable:
    """``np.vectorize`` as it is traced."""
    created = np.vectorize(function, *given, **options)

    def call(*args, **kwargs):
        session = session_of((*args, *kwargs.values()))
        if session is None:
            return created(*args, **kwargs)
        return session.call(_vectorize, (function, given, options, args, kwargs), {})

    return call


def _vectorize(function, given, options, args, kwargs):
    return np.vectorize(function, *given, **options)(*args, **kwargs)


def library_function(function: Callable, original: Callable[[Any], Any]) -> Callable:
    """A function of a library as it is traced: in pieces it is called with the real arrays."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        session = session_of((*args, *kwargs.values()))
        if session is None:
            return function(*args, **kwargs)
        return session.call(function, args, kwargs, pure(function))

    return call


class LibraryObject:
    """An object of a library that can be called, such as a distribution of SciPy's, as it is traced: it and its methods
    are called with the real arrays."""

    def __init__(self, real: Any, original: Callable[[Any], Any]):
        self.__dict__.update(_real=real, _original=original)

    def __call__(self, *args, **kwargs):
        return library_function(self._real, self._original)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return library_function(found, self._original) if callable(found) else found

    def __setattr__(self, name: str, value: Any) -> None:
        raise TraceError(f"an assignment to the attribute {name} of a {type(self._real).__name__}")


def session_of(nest: Any) -> Session | None:
    """The session that is going on, where there is a stand-in among the arguments."""
    t = current()
    if t is None or t.session is None:
        return None
    leaves, _ = trees.flatten(nest)
    return t.session if any(isinstance(x, (TracedArray, SymInt)) for x in leaves) else None


def or_called(ours: Callable, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """``ours(*args, **kwargs)``; what it does not do, in pieces, NumPy's ``function`` does."""
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
    """``bool``, ``int``, ``float`` or ``complex`` as it is traced: where a trace goes on without the value, a number
    that is known later."""
    return lambda *args, **kwargs: kind(*args, **kwargs) if len(args) != 1 or kwargs else _lazily(args[0], kind)


def _lazily(x: Any, kind: type) -> Any:
    if not isinstance(x, TracedArray) or isinstance(x, (TracedScalar, LeafArray)) or x.ndim or kind is bool:
        return kind(x)
    dtype = x._value.dtype
    if kind is int and not (dtype.is_integer or dtype.kind == "b"):
        return kind(x)  # NaN and infinity are errors
    if kind is float and dtype.kind == "c":
        return kind(x)
    to = {int: np.int64, float: np.float64, complex: np.complex128}[kind]
    if getattr(x, "known", lambda: None)() is not None:
        return kind(x)
    return _later(x, kind, x.astype(to))


def _later(x: TracedArray, kind: type, converted: TracedArray) -> TracedScalar:
    """A Python number that a kernel computes."""
    number = TracedArray(x._trace, converted.value, scalar=True)
    return TracedScalar(x._trace, number.value, kind, lambda: kind(number), later=True)


def python_bool(x: Any) -> Any:
    """``bool(x)`` of what is true or false, which is not read before the function decides by it."""
    return _later(x, bool, x) if isinstance(x, TracedArray) and not isinstance(x, TracedScalar) else bool(x)
