"""Inspection of user objects: attributes, and names in functions' code."""

from __future__ import annotations

import functools
import sys
import types

import numpy as np

from mlirfuse.frontend.numpy.source import is_internal

CONSTANT_TYPES = (  # of values that never change
    str, bytes, int, float, complex, type(None), np.dtype, np.generic, np.ufunc, types.BuiltinFunctionType,
)  # fmt: skip
PLAIN_TYPES = (*CONSTANT_TYPES, type, np.ndarray, types.ModuleType)  # of values without attributes of the user's


def namespace_of(value):
    """The namespace of a user's object or class; None for anything else."""
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
    """The location for :func:`read_scope` of a user object's attribute, and its value; (None, None) for attributes that
    need code to run, such as properties."""
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
            )  # of the object: it may get its own attribute
    return None, None


def data_of(value) -> list[tuple]:
    """The data attributes (not methods, properties …) of an object or class: its own, then its classes'."""
    kind = value if isinstance(value, type) else type(value)
    own = {} if kind is value else vars(value)
    names = _class_data(kind, sum(len(vars(base)) for base in kind.__mro__))
    return [*own.items(), *((name, getattr(kind, name)) for name in names if name not in own)]


@functools.lru_cache
def _class_data(kind: type, attributes: int) -> list[str]:
    """The names of data attributes of a user's class; ``attributes``: their number, part of the cache key."""
    found = {
        name: held
        for base in reversed(kind.__mro__)
        if namespace_of(base) is not None
        for name, held in vars(base).items()
    }
    return [name for name, held in found.items() if not name.startswith("__") and not hasattr(type(held), "__get__")]


def words_of(code) -> set[str]:
    """The names and strings in a function's code, nested functions included."""
    out = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, str):
            out.add(constant)
        elif isinstance(constant, types.CodeType):
            out |= words_of(constant)
    return out
