"""A function's scope (globals, closure variables, defaults, attributes): what it reads is recorded during tracing and
checked at later calls; arrays found in it are captured, and read again by each call."""

from __future__ import annotations

import array
import builtins
import collections
import copy
import functools
import gc
import inspect
import itertools
import operator
import sys
import types
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.numpy.bytecode import READ_ALL, asks, globals_of, names_of, read_openly, words_of
from mlirfuse.frontend.numpy.source import OURS, at_users_line, is_internal, user_frame
from mlirfuse.frontend.numpy.stand_in import StandIn
from mlirfuse.runtime import arrays
from mlirfuse.runtime.signature import own_slots, same_value

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.trace_state import Trace

CONSTANT_TYPES = (  # of values that never change
    str, bytes, int, float, complex, type(None), np.dtype, np.generic, np.ufunc, types.BuiltinFunctionType,
)  # fmt: skip
PLAIN_TYPES = (*CONSTANT_TYPES, type, np.ndarray, types.ModuleType)  # of values without attributes of the user's


def namespace_of(value):
    """The namespace of a user's object or class; None for anything else."""
    if isinstance(value, type):
        return None if is_internal(_file_of(sys.modules.get(value.__module__))) else value
    if isinstance(value, (*PLAIN_TYPES, types.FunctionType, types.MethodType)):
        return None
    inside = getattr(value, "__dict__", None)
    return inside if isinstance(inside, dict) else slots_of(value) if slot_names(value) else None


def slot_names(value) -> tuple[str, ...]:
    """The attributes that a user's object has in slots, set or not."""
    kind: Any = type(value)
    return _slot_names(kind)


@functools.lru_cache(4096)
def _slot_names(kind: type) -> tuple[str, ...]:
    return tuple([name for base in kind.__mro__ if namespace_of(base) is not None for name in own_slots(base)])


def slots_of(value) -> dict[str, Any]:
    """The attributes that a user's object has in slots, with their values; a new dict."""
    return {k: getattr(value, k) for k in slot_names(value) if hasattr(value, k)}


def _file_of(module: types.ModuleType | None) -> str:
    """The file of a module; "<frozen" for one of the interpreter's own, "" for code that was executed from a string."""
    imported = getattr(module, "__spec__", None) is not None or module is None
    return getattr(module, "__file__", None) or ("<frozen" if imported else "")


def vars_of(value) -> dict[str, Any]:
    """An object's ``__dict__``; an empty one where it has none."""
    found = getattr(value, "__dict__", None)
    return found if isinstance(found, dict) else {}


def has_attributes(value) -> bool:
    """Whether an object has attributes of its own, in a ``__dict__`` or in slots of a user's class."""
    return isinstance(getattr(value, "__dict__", None), dict) or bool(slot_names(value))


def attribute_of(value, name: str) -> tuple:
    """The location for :func:`read_scope` of a user object's attribute, and its value; (None, None) for attributes that
    need code to run, such as properties."""
    if name in slot_names(value):
        return (value, getattr(value, name)) if hasattr(value, name) else (None, None)
    inside = {} if isinstance(value, type) else namespace_of(value)
    if name in inside:
        return inside, inside[name]
    for kind in (value if isinstance(value, type) else type(value)).__mro__:
        if name in vars(kind):
            found = vars(kind)[name]
            if isinstance(found, types.FunctionType):
                return kind, found
            data = not hasattr(type(found), "__get__")
            return (value, found) if data else (None, None)  # of the object: it may get its own attribute
    return None, None


def data_of(value) -> list[tuple]:
    """The data attributes (not methods, properties …) of an object or class: its own, then its classes'."""
    kind = value if isinstance(value, type) else type(value)
    own = {} if kind is value else slots_of(value) | vars_of(value)
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


def parts_of(value: functools.partial) -> tuple:
    """The arguments that a partial holds, which it keeps."""
    return (*value.args, *value.keywords.values())


# Functions with a cache that ran during a trace with effects: where the cache is dropped, they have them again.
caching_effects: weakref.WeakSet = weakref.WeakSet()


def caches_of(function: functools._lru_cache_wrapper) -> list[dict]:
    """The dict from arguments to results of a function with ``functools.lru_cache``, which bears the loss of any."""
    own = vars(function)
    found = [value for value in gc.get_referents(function) if type(value) is dict and value is not own]
    return found if len(found) == 1 else []


UNSET = object()  # marks a variable without a value


def content_of(cell: types.CellType) -> Any:
    """The value of a closure variable; :data:`UNSET` where it has none."""
    try:
        return cell.cell_contents
    except ValueError:
        return UNSET


@dataclass(frozen=True, eq=False)
class Captured:
    """An array, or another object, from outside the function. ``paths``: the access paths through which the function
    may have read it, each ``(root, ((how, key), …))`` with how "attr", "item" or "cell"; empty for an array computed
    during tracing, which is kept itself."""

    array: Any
    paths: tuple = ()

    def read(self) -> Any:
        """The current array. Raises LookupError or AttributeError where the paths no longer agree on one: the function
        must then be traced again."""
        if not self.paths:
            return self.array
        found = follow(*self.paths[0])
        for path in self.paths[1:]:
            if follow(*path) is not found:
                raise LookupError("the access paths of a captured array lead to different arrays now")
        return found

    def is_of(self, array: Any, paths: tuple) -> bool:
        """Whether an array read through these paths is this one."""
        ways, own = ({(id(root), steps) for root, steps in some} for some in (paths, self.paths))
        return self.array is array or (bool(ways) and ways == own)


def follow(at: Any, steps: tuple) -> Any:
    """The object that an access path leads to from ``at``. Raises LookupError or AttributeError."""
    for how, key in steps:
        at = at.cell_contents if how == "cell" else getattr(at, key) if how == "attr" else at[key]
    return at


def frame_roots() -> list:
    """Where the running user code may have read an array: (name, root, steps, value)."""
    out: list[tuple] = []
    frame = user_frame()
    while frame is not None and len(out) < 256:
        code, namespace = frame.f_code, getattr(frame.f_globals, "real", frame.f_globals)
        if not code.co_filename.startswith(OURS):
            out += [
                (name, namespace, (("item", name),), namespace[name]) for name in code.co_names if name in namespace
            ]
        elif code.co_name == "trace":
            break
        frame = frame.f_back
    return out


def access_paths(x, roots) -> tuple[str | None, tuple]:
    """A name for an object from outside the function, and its access paths from the roots."""
    first = None
    found: dict[Any, Any] = {}
    for name, root, steps, value in _reachable(roots):
        if value is x:
            found[id(root), steps] = (root, steps)
            first = first or name
            if len(found) == 8:
                break
    return first, tuple(found.values())


def containers_of(roots) -> set[int]:
    """The ids of the lists and dicts from outside the function."""
    return {id(value) for *_, value in _reachable(roots) if type(value) in (list, dict)}


def _reachable(roots) -> Iterator[tuple[str, Any, tuple, Any]]:
    """The objects that the roots lead to, as (name, root, steps, value), the nearest first; up to 2000."""
    seen: set[int] = set()
    queue = collections.deque(roots)
    for _ in range(2000):
        if not queue:
            return
        name, root, steps, value = queue.popleft()
        yield name, root, steps, value
        plain = isinstance(value, (*PLAIN_TYPES, StandIn)) and not (
            isinstance(value, type) and namespace_of(value) is not None
        )
        if plain or id(value) in seen or len(steps) > 4:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            queue.extend((f"{name}[{k!r}]", root, (*steps, ("item", k)), v) for k, v in list(value.items())[:256])
        elif isinstance(value, (list, tuple)):
            queue.extend((f"{name}[{k}]", root, (*steps, ("item", k)), v) for k, v in enumerate(value[:256]))
        elif isinstance(value, functools.partial):
            queue.extend((f"{name}.{k}", root, (*steps, ("attr", k)), getattr(value, k)) for k in ("args", "keywords"))
        elif isinstance(value, type) or has_attributes(value):
            queue.extend((f"{name}.{k}", root, (*steps, ("attr", k)), v) for k, v in data_of(value)[:256])


def spec_of(array):
    """The :class:`ArgSpec` of an array from outside the function. Raises UnsupportedError."""
    with at_users_line(TypeError, UnsupportedError, kind=UnsupportedError):
        return arrays.describe(array)


def roots_of(fn, objects=()) -> tuple[list, set[types.CodeType]]:
    """The scope that ``fn`` and the user's functions it can call read: (name, root, steps, value); and their code. The
    value of a variable that is not there, where the code may go on without it, is :func:`read_scope`.
    ``objects``: arguments other than arrays and numbers, whose attributes they read."""
    out: list[tuple[str, Any, tuple, Any]] = []
    absent: list[tuple[str, Any, tuple, Any]] = []
    always: list[tuple[str, Any, tuple, Any]] = []  # what the functions are themselves, and builtins
    selves: set[int] = set()  # ids of objects of ``out`` that methods have
    seen: set[types.CodeType] = set()
    queue = [fn, *(value for value in objects if callable(value))]
    held: list = []  # functions in containers, which come last

    def has_self(value: Any) -> None:
        if id(value) not in selves:
            selves.add(id(value))
            out.append(("self", value, (), value))

    for value in objects:
        has_self(value)
    while (queue or held) and len(seen) < 32:
        fn = (queue or held).pop(0)
        if isinstance(fn, functools._lru_cache_wrapper):
            has_self(fn)
            fn = fn.__wrapped__
        receiver, function = getattr(fn, "__self__", None), getattr(fn, "__func__", fn)
        if receiver is not None:
            has_self(receiver)
        if not isinstance(function, types.FunctionType):
            has_self(function)
            function = inspect.getattr_static(type(function), "__call__", None)
            if not isinstance(function, types.FunctionType):
                continue
        code = function.__code__
        if code in seen or is_internal(code.co_filename):
            continue
        seen.add(code)
        first = len(out)
        cells = [(name, cell, content_of(cell)) for name, cell in zip(code.co_freevars, function.__closure__ or ())]
        out += [(name, cell, (("cell", None),), value) for name, cell, value in cells if value is not UNSET]
        absent += [(name, cell, (("cell", None),), read_scope) for name, cell, value in cells if value is UNSET]
        scope = function.__globals__
        out += [(name, scope, (("item", name),), scope[name]) for name in names_of(code) if name in scope]
        built_in = vars(builtins)
        for name in globals_of(code):
            if name not in scope:
                (always if name in built_in else absent).append((name, scope, (("item", name),), read_scope))
                always += [(name, built_in, (("item", name),), built_in[name])] * (name in built_in)
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            always.append((f"{function.__name__}.{name}", function, (("attr", name),), getattr(function, name)))
        for k, value in enumerate(function.__defaults__ or ()):
            out.append((f"default{k}", function, (("attr", "__defaults__"), ("item", k)), value))
        for name, value in (function.__kwdefaults__ or {}).items():
            out.append((name, function, (("attr", "__kwdefaults__"), ("item", name)), value))
        names = words_of(code)
        for name, _, _, value in out[first:] + [r for r in out[:first] if r[0] == "self"]:
            if isinstance(value, (types.FunctionType, types.MethodType)):
                queue.append(value)
            elif isinstance(value, (list, tuple, dict)):
                items = value.values() if isinstance(value, dict) else value
                held += [
                    f for f in itertools.islice(items, 256) if isinstance(f, (types.FunctionType, types.MethodType))
                ]
            elif isinstance(value, functools.partial):
                queue.append(value.func)
                for part in parts_of(value):
                    if not isinstance(part, PLAIN_TYPES):
                        has_self(part)
            elif isinstance(value, types.ModuleType) and not is_internal(_file_of(value)):
                inside = vars(value)
                out += [(f"{name}.{k}", inside, (("item", k),), inside[k]) for k in names if k in inside]
                absent.append((name, inside, (("item", len),), len(inside)))
                queue += [inside[k] for k in names if isinstance(inside.get(k), types.FunctionType)]
            elif not isinstance(value, PLAIN_TYPES) and has_attributes(value):
                if isinstance(vars_of(value).get("__wrapped__"), types.FunctionType):  # another compiled function
                    queue.append(value.__wrapped__)
                queue += _methods(value, type(value), names | _special_names(type(value)))
            elif isinstance(value, type) and namespace_of(value) is not None:
                queue += _methods(value, value, names | _special_names(value))
    return out + always + absent * any(map(asks, seen)), seen


_FUNCTIONS = (types.FunctionType, classmethod, staticmethod)
_OF_TEXT_AND_COPIES = {
    "__repr__", "__str__", "__format__", "__hash__", "__del__", "__reduce__", "__reduce_ex__", "__getstate__",
    "__setstate__", "__sizeof__", "__dir__", "__class_getitem__", "__init_subclass__", "__set_name__",
}  # fmt: skip


def _special_names(kind: type) -> set[str]:
    """The special methods of the user's classes that calls, operators and statements run (``__new__``, ``__add__``,
    ``__enter__`` …), which no code names."""
    return {
        name
        for base in kind.__mro__
        if namespace_of(base) is not None
        for name, held in vars(base).items()
        if name.startswith("__") and name not in _OF_TEXT_AND_COPIES and isinstance(held, _FUNCTIONS)
    }


def _methods(value, kind: type, names) -> list:
    """The functions behind these attribute names of ``value``, in its class ``kind``, and in those that
    ``super()`` leads to: methods, properties and descriptors."""
    out: list = []
    for name in sorted(names):  # the same order in each process
        for found in (vars(base)[name] for base in kind.__mro__ if name in vars(base)):  # none of the metaclass's
            if isinstance(found, _FUNCTIONS):
                out.append(found.__get__(None if value is kind else value, kind))
            elif isinstance(found, functools._lru_cache_wrapper):
                out.append(found)
            elif isinstance(found, property) and value is not kind and isinstance(found.fget, types.FunctionType):
                out.append(types.MethodType(found.fget, value))
            elif namespace_of(type(found)) is not None:  # a descriptor
                access = (inspect.getattr_static(type(found), n, None) for n in ("__get__", "__set__"))
                out += [types.MethodType(method, found) for method in access if isinstance(method, types.FunctionType)]
            function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
            if not isinstance(function, types.FunctionType) or "super" not in names_of(function.__code__):
                break
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


_CONTAINERS = (dict, types.MappingProxyType, list, tuple)
_MEMBERS = (set, bytearray, array.array, collections.deque)


class Members:
    """A container of these types whose members the trace may have read as constants."""

    def __init__(self, container: Any):
        self.container, self.content = container, copy.copy(container)

    def hold(self, now) -> bool:
        """Whether ``now`` is the same container with the same members; of a deque, the same objects."""
        if now is not self.container or len(now) != len(self.content):
            return False
        if isinstance(now, collections.deque):
            return all(map(operator.is_, now, self.content))
        return now == self.content


def scope_of(t: Trace, returned: set[int]) -> list:
    """What the function reads from its scope and may change between calls: (namespace, key, value) for numbers, strings
    and functions, and for the containers and objects that lead to them; :class:`Elements` for arrays that are not the
    graph's arguments and not just ``returned`` (their ids); and arrays from which others were computed during tracing.
    A key is an attribute's name, an item's key or, for a length, ``len``; the value of an attribute that is not there
    is :func:`read_scope`."""
    kinds = _SCALARS + ((np.ndarray,) if any(not paths for _, _, paths in t.captured.values()) else ())
    arguments = {id(array) for array, _, paths in t.captured.values() if paths} | returned
    words: set[str] = set().union(*map(words_of, t.codes))
    opened: set[str] = set().union(*map(read_openly, t.codes))
    missing = any(map(asks, t.codes))
    out: dict[tuple, tuple] = {}
    seen: set[tuple[int, bool]] = set()
    kinds_seen: dict[tuple[int, bool], set[str] | None] = {}
    queue: collections.deque = collections.deque()

    def meet(namespace, key, value, depth, everything):
        """``everything``: of a container or object, any item may be read."""
        if isinstance(value, types.FunctionType) and value.__dict__:
            meet(None, None, value.__dict__, depth, False)
        if isinstance(value, functools._lru_cache_wrapper) and value in caching_effects:
            for cache in filter(None, caches_of(value)):  # the newest result is there until all are dropped
                newest = next(reversed(cache))
                out[id(cache), newest] = (cache, newest, cache[newest])
        container = isinstance(value, _CONTAINERS) or namespace_of(value) is not None
        if isinstance(value, np.ndarray) and id(value) not in arguments and value.nbytes <= _MOST_BYTES:
            value = Elements(value)
        if isinstance(value, _MEMBERS):
            container = isinstance(value, collections.deque)
            inner, value = value, Members(value)
        if namespace is not None and (isinstance(value, (*kinds, Elements, Members)) or not _is_array(value)):
            out[id(namespace), key] = (namespace, key, value)
        if isinstance(value, Members):
            value = inner
        if container and depth < 4 and (id(value), everything) not in seen:
            seen.add((id(value), everything))
            queue.append((value, depth + 1, everything))

    for name, root, steps, value in t.roots:
        if len(steps) == 1:
            meet(root, steps[0][1], value, 0, steps[0][0] == "attr" or (steps[0][1] or name) in opened)
        else:
            meet(None, None, value, 0, True)
    while queue and len(out) < 1024:
        value, depth, everything = queue.popleft()
        if isinstance(value, (dict, types.MappingProxyType)):
            out[id(value), len] = (value, len, len(value))
            for k, v in list(value.items())[:256]:
                if everything or not isinstance(k, str) or k in words:
                    meet(value, k, v, depth, everything or k in opened)
        elif isinstance(value, (list, tuple)):
            if isinstance(value, list):
                out[id(value), len] = (value, len, len(value))
            for k, v in enumerate(value[:256]):
                meet(None if isinstance(value, tuple) else value, k, v, depth, True)
        elif isinstance(value, functools.partial):
            for part in parts_of(value):
                meet(None, None, part, depth, True)
        elif isinstance(value, collections.deque):
            for part in itertools.islice(value, 256):
                meet(None, None, part, depth, True)
        else:
            for namespace, k, found in _attributes_read(value, words, opened, missing, kinds_seen):
                meet(namespace, k, found, depth, k in opened)
    return list(out.values())


def _attributes_read(
    value, words: set[str], opened: set[str], missing: bool, seen: dict[tuple[int, bool], set[str] | None]
) -> Iterator[tuple]:
    """The attributes of an object or class that code with these words may read, as (namespace, name, value); the number
    of all, its classes' too, where the code may go on without one that is ``missing``. ``seen``: by class, the names
    that lead to something there."""
    inside = {} if isinstance(value, type) else vars_of(value)
    if missing:
        yield inside, len, len(inside)
        kinds = (value if isinstance(value, type) else type(value)).__mro__
        yield from ((kind, len, len(vars(kind))) for kind in kinds if namespace_of(kind) is not None)
        yield from ((value, k, read_scope) for k in slot_names(value) if k in words and not hasattr(value, k))
    if "super" in words:  # leads to what a class overrides
        for kind in (value if isinstance(value, type) else type(value)).__mro__:
            held = vars(kind) if namespace_of(kind) is not None else {}
            yield from ((kind, k, v) for k, v in held.items() if k in words and getattr(kind, k, None) is v)
    every = words & READ_ALL or "getattr" in opened
    owner: type = value if isinstance(value, type) else type(value)
    kinds_of = [owner] if value is not owner else [owner, type(owner)]
    at = id(owner), value is owner
    if at not in seen:
        seen[at] = None
        if class_attribute(type(value), "__getattr__") is read_scope:  # else any name may lead to something
            seen[at] = {name for kind in kinds_of for base in kind.__mro__ for name in vars(base)} & words
        for kind in kinds_of:
            special = _special_names(kind) if namespace_of(kind) is not None else ()
            yield from ((kind, k, class_attribute(kind, k)) for k in special)
    own, of_kind = {*inside, *slot_names(value)}, seen[at]
    for k in own | words if every else words if of_kind is None else (own & words) | of_kind:
        yield from _lookups(value, inside, k)
    if value is not owner and namespace_of(owner) is not None:
        yield value, type, owner


def _lookups(value, inside: dict[str, Any], name: str) -> Iterator[tuple]:
    """The scope entries that decide what an attribute of an object or class is: its own, and its class's, which may be
    a method or compute it."""
    if name in slot_names(value):
        if hasattr(value, name):
            yield value, name, getattr(value, name)
        return
    found = class_attribute(value, name) if isinstance(value, type) else inside.get(name, read_scope)
    kind = type(value)
    of_kind = class_attribute(kind, name) if namespace_of(kind) is not None else read_scope
    if of_kind is not read_scope and (found is read_scope or hasattr(type(of_kind), "__set__")):
        yield kind, name, of_kind
        if hasattr(type(of_kind), "__set__"):
            return
    elif found is read_scope:
        if class_attribute(kind, "__getattr__") is read_scope:
            return  # an error
        yield kind, name, read_scope
    if isinstance(value, type) or isinstance(getattr(value, "__dict__", None), dict):
        yield value if isinstance(value, type) else inside, name, found


def class_attribute(kind: type, name: str) -> Any:
    """What a class, or one that it inherits from, has under a name: a method, property or value; ``read_scope`` where
    they have none."""
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return read_scope


def _is_array(value: Any) -> bool:
    """Whether it is an array, by its class: an object's ``__getattr__`` may do anything, as importing a module."""
    if isinstance(value, np.ndarray):
        return True
    plain = class_attribute(type(value), "__getattr__") is read_scope
    return plain and arrays.framework(value) is not None


def read_scope(namespace, key):
    """The current value at a scope entry; ``read_scope`` itself where there is none."""
    try:
        if key is len:
            return len(vars(namespace) if isinstance(namespace, type) else namespace)
        if isinstance(namespace, dict):  # without what a subclass computes (defaultdict)
            return dict.__getitem__(namespace, key)
        if isinstance(namespace, list):
            return list.__getitem__(namespace, key)
        if isinstance(namespace, types.MappingProxyType):
            return namespace[key]
        if key is type:
            return type(namespace)
        if isinstance(namespace, type):
            return class_attribute(namespace, key)
        return namespace.cell_contents if type(namespace) is types.CellType else getattr(namespace, key)
    except (LookupError, AttributeError, ValueError):
        return read_scope


def unchanged(now, value) -> bool:
    """Whether a scope entry is unchanged. Containers, objects and arrays compare by identity: their contents have
    entries of their own, or are read at each call."""
    if isinstance(value, (Elements, Members)):
        return value.hold(now)
    return now is value or (isinstance(value, _SCALARS) and same_value(now, value))
