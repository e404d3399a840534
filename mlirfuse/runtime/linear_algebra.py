"""NumPy's linear algebra on one matrix without its Python code, which takes longer than the work on a small matrix."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mlirfuse.runtime import extern_ops, numpy_private

# By NumPy's function, the generalized ufuncs that compute it, by the ranks of the operands, and the results' types,
# "t" for the operands'. NumPy computes other types than these in one of them, and converts the results. It silences
# warnings in all of these; in a determinant it does not, where the path would gain nothing.
_FUNCTIONS: dict[Callable[..., Any], tuple[dict[tuple[int, ...], str], str]] = {
    np.linalg.inv: ({(2,): "inv"}, "t"),
    np.linalg.cholesky: ({(2,): "cholesky_lo"}, "t"),
    np.linalg.eigh: ({(2,): "eigh_lo"}, "dt"),
    np.linalg.solve: ({(2, 1): "solve1", (2, 2): "solve"}, "t"),
}
_TYPES = "dD"


def _direct(function: Callable, ufuncs: dict[tuple[int, ...], str], results: str) -> Callable:
    """Return ``function`` with a path to ``ufuncs``. They write NaN where a matrix is singular or an iteration does not
    converge: then, and after an error, ``function`` itself returns or raises."""
    enter, leave = extern_ops.silencing()
    by_types: dict[tuple, Callable] = {}
    for ranks, name in ufuncs.items():
        ufunc = getattr(numpy_private.linear_algebra, name, None)
        if ufunc is None:
            continue
        for t in _TYPES:
            signature = f"{t * len(ranks)}->{results.replace('t', t)}"
            by_types[tuple((t, rank) for rank in ranks)] = functools.partial(ufunc, signature=signature)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        key = tuple([(x.dtype.char, x.ndim) if type(x) is np.ndarray else None for x in args])
        compute = by_types.get(key)
        if compute is None or options:
            return function(*args, **options)
        token = enter()
        try:
            found = compute(*args)
            first = found[0].item(0) if found.__class__ is tuple else found.item(0)
        except (IndexError, TypeError, ValueError):  # empty, or of other extents
            return function(*args)
        finally:
            leave(token)
        if first != first:
            return function(*args)
        return _named(function)(*found) if found.__class__ is tuple else found

    return call


@functools.cache
def _named(function: Callable) -> Callable:
    """The class of the results of ``function``, of which it has several."""
    return type(function(np.eye(1)))


_DIRECT = {function: _direct(function, *how) for function, how in _FUNCTIONS.items()}


def direct(function: Callable) -> Callable:
    """``function``, or the faster function with its results and errors."""
    try:
        return _DIRECT.get(function, function)
    except TypeError:  # not hashable
        return function
