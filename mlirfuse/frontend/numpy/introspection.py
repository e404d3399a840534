"""Queries about objects themselves rather than their elements: class, identity, attributes, bytes. In a rebuilt
function they answer for the object that a stand-in represents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlirfuse.core.errors import TraceError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.effects import give_up
from mlirfuse.frontend.numpy.source import at_users_line
from mlirfuse.frontend.numpy.stand_in import NumberStandIn, StandIn
from mlirfuse.frontend.numpy.traced_array import TracedArray


def type_of(x: Any) -> type:
    """``type(x)``; for a stand-in, the type that it represents."""
    return x._stands_for if isinstance(x, StandIn) else type(x)


class _TypeMeta(type):
    def __call__(cls, *args, **kwargs):
        return type_of(args[0]) if len(args) == 1 and not kwargs else type(*args, **kwargs)

    def __instancecheck__(cls, x):
        return isinstance(x, type)

    def __subclasscheck__(cls, kind):
        return issubclass(kind, type)


class Type(type, metaclass=_TypeMeta):
    """``type``, answering for stand-ins."""


def is_instance(x, kinds):
    """``isinstance``, answering for stand-ins."""
    return issubclass(type_of(x), kinds) if isinstance(x, StandIn) else isinstance(x, kinds)


def has_attribute(x, name):
    """``hasattr``, answering for stand-ins."""
    return hasattr(type_of(x), name) if isinstance(x, StandIn) else hasattr(x, name)


def attribute(x, name, *default):
    """``getattr``; raises, despite a default, for attributes that only stand-ins lack."""
    if not (default and isinstance(x, StandIn)):
        return getattr(x, name, *default)
    if not hasattr(type_of(x), name):
        return default[0]
    with at_users_line(AttributeError, kind=TraceError):
        return getattr(x, name)


def length(x):
    """``len``; of a traced array, a symbolic size."""
    return x.shape[0] if isinstance(x, TracedArray) and x.ndim else len(x)


def identity(x):
    """``id``."""
    return give_up("the identity of an array or number") if isinstance(x, StandIn) else id(x)


def of_memory(kind: Callable[..., Any]):
    """A replacement for ``bytes``, ``bytearray`` or ``memoryview``, which would read an array's memory."""

    def call(*args, **kwargs):
        if args and isinstance(args[0], StandIn) and type_of(args[0]) is not int:
            give_up("the memory of an array")
        return kind(*args, **kwargs)

    return call


def of_class(function):
    """A traceable version of a library's query about its only argument's class."""
    return lambda x: function(np.empty(0) if isinstance(x, StandIn) and type_of(x) is np.ndarray else x)


def without_stand_ins(function):
    """A traceable version of a standard library function whose C code inspects its arguments."""

    def call(*args, **kwargs):
        leaves, _ = trees.flatten((args, kwargs))
        if any(isinstance(leaf, StandIn) for leaf in leaves):
            give_up(f"{function.__module__}.{function.__name__} of an array or number")
        return function(*args, **kwargs)

    return call


_SINGLE_INTS = range(-5, 257)  # which Python caches


def are_one(a: Any, b: Any) -> bool:
    """``a is b``, for the objects that stand-ins represent. Two arguments that are one object have their own
    specialization."""
    if a is b:
        return True
    if not isinstance(a, StandIn):
        a, b = b, a
    if not isinstance(a, StandIn) or type_of(a) is not type_of(b):
        return False
    if type_of(a) is not np.ndarray:
        return _one_number(a, b)
    t = a._trace
    first, second = t.leaf_of.get(id(a)), t.leaf_of.get(id(b))
    if first is None:  # an array that the function created
        return False
    if second is None:
        return False if isinstance(b, StandIn) else give_up("the identity of an array from around the function")
    t.compares = True
    return t.leaf_objects[first] is t.leaf_objects[second]


def _one_number(a: Any, b: Any) -> bool:
    """Whether two numbers of one type are the same object: equal booleans or small integers are."""
    kind = type_of(a)
    if kind in (bool, np.bool_):
        return bool(a) == bool(b)
    if kind is int:
        left, right = int(a), int(b)
        if left != right or left in _SINGLE_INTS:
            return left == right
    elif not _is_given(a) or not (_is_given(b) or not isinstance(b, StandIn)):  # a new object
        return False
    return give_up("the identity of a number")


def _is_given(x: Any) -> bool:
    return isinstance(x, TracedArray) and id(x) in x._trace.leaf_of


def concrete_keys(tree: trees.Tree) -> trees.Tree:
    """A result's structure, with numbers in place of stand-ins among dict keys."""

    def number(key: Any) -> Any:
        if isinstance(key, tuple) and type(key) is tuple:
            return tuple(map(number, key))
        return key.concrete() if isinstance(key, NumberStandIn) else key

    if not any(kind == "dict" for kind, _, _ in tree.nodes):
        return tree
    return trees.Tree(
        tuple((kind, count, tuple(map(number, keys)) if kind == "dict" else keys) for kind, count, keys in tree.nodes)
    )
