"""Which of our functions stands for which of NumPy's. The files of :mod:`mlirfuse.frontend.numpy.functions`, and
:mod:`mlirfuse.frontend.numpy.ufunc_rules`, enter theirs here.
"""

from __future__ import annotations

import difflib

import numpy as np

HANDLED: dict = {}  # NumPy function -> ours


UFUNCS: dict = {}  # ufunc -> (trace, values, input dtypes, output dtypes) -> value or values


COMPLEX: dict = {}  # the same, where the operands are complex and it is not the op's row that does it


CREATION: dict = {}  # NumPy function that makes an array -> ours, which may take extents of traced arrays
METHODS: dict = {}  # (ufunc, its method) -> ours: np.add.reduce …


def implements(*numpy_functions):
    """Decorator: the function stands for these NumPy functions (a name, for what older NumPys lack)."""

    def mark(function):
        for f in numpy_functions:
            f = getattr(np, f, None) if isinstance(f, str) else f
            if f is not None:
                HANDLED[f] = function
        return function

    return mark


def creates(numpy_function):
    """Decorator: the function stands for a NumPy function whose arguments need hold no array, so that NumPy itself does
    not ask us."""

    def mark(function):
        CREATION[numpy_function] = function
        return function

    return mark


def lowers(*ufuncs, rules=UFUNCS):
    """Decorator: the function says how these ufuncs become ops; ``rules``: :data:`COMPLEX` for complex operands."""

    def mark(function):
        for f in ufuncs:
            rules[f] = function
        return function

    return mark


_HINTS = {
    "nonzero": "its result's shape depends on values; use np.where(condition, a, b)",
    "argwhere": "its result's shape depends on values; use np.where(condition, a, b)",
    "flatnonzero": "its result's shape depends on values; use np.where(condition, a, b)",
    "unique": "its result's shape depends on values",
    "compress": "use np.where(condition, a, b)",
    "extract": "use np.where(condition, a, b)",
    "copyto": "use x[...] = y",
    "put": "use np.where",
    "putmask": "use np.where",
    "place": "use np.where",
    "tofile": "write the result outside the compiled function",
    "fft": "transforms are computed outside the compiled function",
}


def suggestion(name: str) -> str:
    """What to use instead of the function ``name``."""
    if name in _HINTS:
        return f": {_HINTS[name]}"
    known = {f.__name__ for f in HANDLED} | {f.__name__ for f in UFUNCS}
    close = difflib.get_close_matches(name, known, 3, 0.5)
    nearest = f"; the nearest that are: {', '.join(close)}" if close else ""
    return f": compute it outside the compiled function{nearest}"
