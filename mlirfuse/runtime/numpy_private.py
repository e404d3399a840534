"""All uses of NumPy's private names, but for ``np._NoValue``: no other file has one.

:data:`NAMES` lists each with what happens where a release of NumPy lacks it. None of them is needed.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, NamedTuple


class Name(NamedTuple):
    """``name`` in the module ``where``; ``instead``: the effect where it does not exist; ``found``: whether it does."""

    where: str
    name: str
    instead: str
    found: bool


NAMES: list[Name] = []


def _use(where: str, name: str, instead: str) -> Any:
    """``name`` in the module ``where``; None where either does not exist."""
    try:
        found = functools.reduce(getattr, name.split("."), importlib.import_module(where))
    except (ImportError, AttributeError):
        found = None
    NAMES.append(Name(where, name, instead, found is not None))
    return found


clip_ufunc = _use("numpy._core.umath", "clip", "np.clip runs as NumPy's own")
clip_method = _use("numpy._core._methods", "_clip", "np.clip runs as NumPy's own")
replace_nan = _use("numpy.lib._nanfunctions_impl", "_replace_nan", "np.nansum and np.nanprod run as NumPy's own")
numeric_name = _use("numpy._core.numeric", "__name__", "NumPy's functions that create arrays by it run as NumPy's own")
_UMATH, _SLOWER = "numpy._core.umath", "extern ops run by way of np.errstate, which is slower"
error_state = _use(_UMATH, "_extobj_contextvar", _SLOWER)  # the context variable of floating-point errors
make_error_state = _use(_UMATH, "_make_extobj", _SLOWER)
linear_algebra = _use("numpy.linalg", "_umath_linalg", "np.linalg's functions run by way of NumPy's Python code")
GENERATORS = "numpy.random._generator"  # a module that NumPy loads at its first use


def generators_library() -> str | None:
    """The path of the library with the C functions of NumPy's generators; None where there is none: loops with draws
    run as Python."""
    return _use(GENERATORS, "__file__", "loops with draws run as Python")


def bit_generator(state: Any) -> Any:
    """The bit generator of a ``RandomState``; None where it has none: its draws in loops run as Python."""
    return getattr(state, "_bit_generator", None)
