"""The registry of implementations of NumPy's functions; :mod:`mlirfuse.frontend.numpy.functions` and
:mod:`mlirfuse.frontend.numpy.ufunc_rules` register theirs.
"""

from __future__ import annotations

import difflib

import numpy as np

HANDLED: dict = {}  # NumPy function -> ours


UFUNCS: dict = {}  # ufunc -> (trace, values, input dtypes, output dtypes) -> value or values


COMPLEX: dict = {}  # the same for complex operands, where the op itself does not take them


CREATION: dict = {}  # NumPy creation function -> ours, which may take extents of traced arrays
HELPERS: set = set()  # functions that NumPy calls in its own, traced as those are: no protocol dispatches them
METHODS: dict = {}  # (ufunc, its method) -> ours: np.add.reduce …


def implements(*numpy_functions):
    """Decorator: registers the implementation of these NumPy functions (a name, for one that older NumPys lack)."""
    found = (getattr(np, f, None) if isinstance(f, str) else f for f in numpy_functions)
    return registers(HANDLED, *(f for f in found if f is not None))


def registers(table: dict, *keys):
    """Decorator: enters a function in a table."""

    def mark(function):
        table.update(dict.fromkeys(keys, function))
        return function

    return mark


def creates(*numpy_functions):
    """Decorator: registers a creation function, whose arguments may hold no array, so that NumPy's protocols do not
    dispatch it."""
    return registers(CREATION, *numpy_functions)


def lowers(*ufuncs):
    """Decorator: registers the lowering rule of these ufuncs."""
    return registers(UFUNCS, *ufuncs)


_UNKNOWN_SHAPE = "its result's shape depends on values"
_HINTS = {
    **dict.fromkeys(("nonzero", "argwhere", "flatnonzero"), f"{_UNKNOWN_SHAPE}; use np.where(condition, a, b)"),
    "unique": _UNKNOWN_SHAPE,
    **dict.fromkeys(("compress", "extract"), "use np.where(condition, a, b)"),
    "copyto": "use x[...] = y",
    **dict.fromkeys(("put", "putmask", "place"), "use np.where"),
    "tofile": "write the result outside the compiled function",
    "fft": "compute transforms outside the compiled function",
}


def suggestion(name: str) -> str:
    """A hint for an error message: what to use instead of the function ``name``."""
    if name in _HINTS:
        return _HINTS[name]
    known = {f.__name__ for f in HANDLED} | {f.__name__ for f in UFUNCS}
    close = difflib.get_close_matches(name, known, 3, 0.5)
    nearest = f"; similar supported names: {', '.join(close)}" if close else ""
    return f"compute it outside the compiled function{nearest}"
