"""A function's scope (globals, closure variables, defaults, attributes): what it reads is recorded during tracing and
checked at later calls."""

from __future__ import annotations

import collections
import inspect
import types
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.objects import CONSTANT_TYPES, PLAIN_TYPES, attribute_of, namespace_of, words_of
from mlirfuse.frontend.numpy.source import is_internal
from mlirfuse.frontend.numpy.trace_state import Trace
from mlirfuse.runtime.signature import same_value


def roots_of(fn, objects=()) -> tuple[list, set[str]]:
    """The scope that ``fn`` and the user's functions it can call read: (name, root, steps, value); and the names in
    their code. ``objects``: arguments other than arrays and numbers, whose attributes they read."""
    out: list[tuple[str, Any, tuple, Any]] = [("self", value, (), value) for value in objects]
    seen: set[types.CodeType] = set()
    words: set[str] = set()
    queue = [fn, *(value for value in objects if callable(value))]
    while queue and len(seen) < 32:
        fn = queue.pop(0)
        receiver, function = getattr(fn, "__self__", None), getattr(fn, "__func__", fn)
        if receiver is not None:
            out.append(("self", receiver, (), receiver))
        if not isinstance(function, types.FunctionType):
            out.append(("self", function, (), function))
            function = inspect.getattr_static(type(function), "__call__", None)
            if not isinstance(function, types.FunctionType):
                continue
        code = function.__code__
        if code in seen or is_internal(code.co_filename):
            continue
        seen.add(code)
        words |= words_of(code)
        first = len(out)
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            try:
                out.append((name, cell, (("cell", None),), cell.cell_contents))
            except ValueError:
                continue
        scope = function.__globals__
        out += [(name, scope, (("item", name),), scope[name]) for name in code.co_names if name in scope]
        for k, value in enumerate(function.__defaults__ or ()):
            out.append((f"default{k}", function, (("attr", "__defaults__"), ("item", k)), value))
        names = words_of(code)
        for name, _, _, value in out[first:] + [r for r in out[:first] if r[0] == "self"]:
            if isinstance(value, (types.FunctionType, types.MethodType)):
                queue.append(value)
            elif isinstance(value, types.ModuleType) and not is_internal(getattr(value, "__file__", None) or "<frozen"):
                inside = vars(value)
                out += [(f"{name}.{k}", inside, (("item", k),), inside[k]) for k in names if k in inside]
                queue += [inside[k] for k in names if isinstance(inside.get(k), types.FunctionType)]
            elif not isinstance(value, PLAIN_TYPES) and isinstance(getattr(value, "__dict__", None), dict):
                if isinstance(value.__dict__.get("__wrapped__"), types.FunctionType):  # another compiled function
                    queue.append(value.__wrapped__)
                queue += _methods(value, type(value), names)
            elif isinstance(value, type) and namespace_of(value) is not None:
                queue += _methods(value, value, names)
    return out, words


def _methods(value, kind: type, names) -> list:
    """The functions behind these attribute names of ``value``, looked up in its class ``kind``: methods and
    properties."""
    out = []
    for name in names:
        found = inspect.getattr_static(kind, name, None)
        if isinstance(found, (types.FunctionType, classmethod, staticmethod)):
            out.append(getattr(value, name))
        elif isinstance(found, property) and value is not kind and isinstance(found.fget, types.FunctionType):
            out.append(types.MethodType(found.fget, value))
    return out


_SCALARS = (*CONSTANT_TYPES, types.FunctionType)


_MOST_BYTES = 1 << 20  # size limit of arrays whose elements each call compares


class Elements:
    """An array from outside whose elements the trace may have read as constants: not an argument of the graph."""

    def __init__(self, array: np.ndarray):
        self.array, self.content = array, array.tobytes()

    def hold(self, now) -> bool:
        """Whether ``now`` is the same array with the same elements."""
        return now is self.array and now.tobytes() == self.content


def scope_of(t: Trace, returned: set[int]) -> list:
    """What the function reads from its scope and may change between calls: (namespace, key, value) for numbers, strings
    and functions, and for the containers and objects that lead to them; :class:`Elements` for arrays that are not the
    graph's arguments and not just ``returned`` (their ids); and arrays from which others were computed during tracing.
    A key is an attribute's name, an item's key or, for a length, ``len``."""
    kinds = _SCALARS + ((np.ndarray,) if any(not paths for _, _, paths in t.captured.values()) else ())
    arguments = {id(array) for array, _, paths in t.captured.values() if paths} | returned
    out: dict[tuple, tuple] = {}
    seen: set[int] = set()
    queue: collections.deque = collections.deque()

    def meet(namespace, key, value, depth):
        if isinstance(value, types.FunctionType) and value.__dict__:
            meet(None, None, value.__dict__, depth)
        container = isinstance(value, (dict, list, tuple)) or namespace_of(value) is not None
        if isinstance(value, np.ndarray) and id(value) not in arguments and value.nbytes <= _MOST_BYTES:
            value = Elements(value)
        if namespace is not None and (isinstance(value, (*kinds, Elements)) or container):
            out[id(namespace), key] = (namespace, key, value)
        if container and depth < 4 and id(value) not in seen:
            seen.add(id(value))
            queue.append((value, depth + 1))

    for _, root, steps, value in t.roots:
        if not steps:
            meet(None, None, value, 0)
        elif len(steps) == 1 and steps[0][0] != "attr":
            meet(root, steps[0][1], value, 0)
    while queue and len(out) < 1024:
        value, depth = queue.popleft()
        if isinstance(value, dict):
            out[id(value), len] = (value, len, len(value))
            for k, v in list(value.items())[:256]:
                if not isinstance(k, str) or k in t.words or t.words & {"items", "values"}:
                    meet(value, k, v, depth)
        elif isinstance(value, (list, tuple)):
            if isinstance(value, list):
                out[id(value), len] = (value, len, len(value))
            for k, v in enumerate(value[:256]):
                meet(None if isinstance(value, tuple) else value, k, v, depth)
        else:
            for k in t.words:
                namespace, found = attribute_of(value, k)
                if namespace is not None:
                    meet(namespace, k, found, depth)
    return list(out.values())


def read_scope(namespace, key):
    """The current value at a scope entry; ``read_scope`` itself where there is none."""
    try:
        if key is len:
            return len(namespace)
        if type(namespace) is dict or type(namespace) is list:
            return namespace[key]
        return namespace.cell_contents if type(namespace) is types.CellType else getattr(namespace, key)
    except (LookupError, AttributeError, ValueError):
        return read_scope


def unchanged(now, value) -> bool:
    """Whether a scope entry is unchanged. Containers, objects and arrays compare by identity: their contents have
    entries of their own, or are read at each call."""
    if isinstance(value, Elements):
        return value.hold(now)
    return now is value or (isinstance(value, _SCALARS) and same_value(now, value))
