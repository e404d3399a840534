"""Looking into the user's objects: their attributes, and the names in the code of functions."""

from __future__ import annotations

import functools
import sys
import types

import numpy as np

from mlirfuse.frontend.numpy.source import is_internal

PLAIN_TYPES = (
    str,
    bytes,
    int,
    float,
    complex,
    type(None),
    type,
    np.ndarray,
    np.dtype,
    np.generic,
    np.ufunc,
    types.ModuleType,
    types.BuiltinFunctionType,
)


def namespace_of(value):
    """Where the attributes of a user's object or class are read from; None for anything else."""
    if isinstance(value, type):
        return (
            value
            if not is_internal(getattr(sys.modules.get(value.__module__), "__file__", None) or "<frozen")
            else None
        )
    if isinstance(value, (*PLAIN_TYPES, types.FunctionType, types.MethodType)):
        return None
    inside = getattr(value, "__dict__", None)
    return inside if isinstance(inside, dict) else None


def attribute_of(value, name: str) -> tuple:
    """Where :func:`read_scope` finds an attribute of a user's object or class, and what it is; None twice for what
    running code alone can tell, as of properties."""
    inside = {} if isinstance(value, type) else namespace_of(value)
    if name in inside:
        return inside, inside[name]
    for kind in (value if isinstance(value, type) else type(value)).__mro__:
        if name in vars(kind):
            found = vars(kind)[name]
            if isinstance(found, types.FunctionType):
                return kind, found
            return (
                (None, None) if hasattr(type(found), "__get__") else (value, found)
            )  # of the object: it may get one of its own
    return None, None


def data_of(value) -> list[tuple]:
    """The attributes of an object or a class that are no methods, properties or the like: its own, then those of its
    classes."""
    kind = value if isinstance(value, type) else type(value)
    own = {} if kind is value else vars(value)
    names = _class_data(kind, sum(len(vars(base)) for base in kind.__mro__))
    return [*own.items(), *((name, getattr(kind, name)) for name in names if name not in own)]


@functools.lru_cache
def _class_data(kind: type, attributes: int) -> list[str]:
    """The names of the data that a user's class, with so many attributes, holds."""
    found = {
        name: held
        for base in reversed(kind.__mro__)
        if namespace_of(base) is not None
        for name, held in vars(base).items()
    }
    return [name for name, held in found.items() if not name.startswith("__") and not hasattr(type(held), "__get__")]


def words_of(code) -> set[str]:
    """The names and strings in a function's code and the functions within it."""
    out = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, str):
            out.add(constant)
        elif isinstance(constant, types.CodeType):
            out |= words_of(constant)
    return out
