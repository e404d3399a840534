"""Side effects that must happen at every call and not once during tracing: output, clocks, random numbers, files, and
writes to the function's scope.

:class:`SideEffect` reports one after everything that the trace changed was restored; the caller then runs the function
eagerly. Functions that act outside the program are stopped before they run (:func:`acts`); changes of Python objects
are detected and undone afterwards by :class:`Snapshot`.
"""

from __future__ import annotations

import collections
import functools
import io
import logging
import random
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from mlirfuse.core.errors import TraceError
from mlirfuse.frontend.numpy import bytecode
from mlirfuse.frontend.numpy.scope import caches_of, caching_effects, namespace_of, parts_of, slots_of, vars_of
from mlirfuse.frontend.numpy.source import located
from mlirfuse.runtime import numpy_private


class SideEffect(TraceError):
    """The function has a side effect that must happen at every call. None of it has happened yet."""


class Stop(BaseException):
    """Ends a trace at a forbidden operation. Not an Exception, so that the function's own handlers do not catch it."""


# Every function of these modules reads or changes state outside the program.
ACTING_MODULES = {
    "time", "_random", "random", "secrets", "uuid", "logging", "subprocess", "_posixsubprocess", "socket", "_socket",
    "tempfile", "shutil", "glob", "posix", "nt", "warnings", "_warnings", "numpy.random", "numpy.random.mtrand",
    numpy_private.GENERATORS,
}  # fmt: skip
CONCURRENT = {"threading", "concurrent", "multiprocessing", "asyncio", "joblib"}  # a trace is of one thread
ACTING_BUILTINS = {"print", "open", "input", "breakpoint"}
_ACTING_NUMPY = {
    "save", "savez", "savez_compressed", "savetxt", "load", "loadtxt", "genfromtxt", "fromfile", "fromregex", "memmap",
    "seterr", "seterrcall", "setbufsize", "set_printoptions",
}  # fmt: skip


def acts(value) -> str | None:
    """A name for ``value`` if calling or reading it acts outside the program; else None."""
    if isinstance(value, (io.IOBase, logging.Logger)):
        return f"a {type(value).__name__}"
    if draws(value):
        return "a generator of random numbers"
    if hasattr(type(value), "__next__"):
        return f"the iterator {getattr(value, '__name__', type(value).__name__)}"
    kind = value if isinstance(value, type) else type(value)
    if is_concurrent(kind):
        return f"{kind.__module__}.{kind.__name__}"
    if isinstance(value, type) or not callable(value):
        return None
    name, module = getattr(value, "__name__", ""), getattr(value, "__module__", None)
    owner = getattr(value, "__self__", None)
    if isinstance(owner, types.ModuleType):
        module = owner.__name__
    if module == "builtins" or module == "_io":
        return name if name in ACTING_BUILTINS else None
    if module == "numpy" or (module or "").startswith("numpy.lib"):
        return f"np.{name}" if name in _ACTING_NUMPY else None
    if owner is not None and draws(owner):
        return f"random.{name}" if isinstance(owner, random.Random) else f"np.random.{name}"
    if isinstance(owner, (io.IOBase, logging.Logger)) or hasattr(type(owner), "__next__"):
        return f"{name} of {acts(owner)}"
    return f"{module}.{name}" if module in ACTING_MODULES or str(module).partition(".")[0] in CONCURRENT else None


def is_concurrent(kind: type) -> bool:
    """Whether a class is one of threads, processes, pools or their locks."""
    return any(str(base.__module__).partition(".")[0] in CONCURRENT for base in kind.__mro__)


def draws(value) -> bool:
    """Whether ``value`` is a generator of random numbers."""
    if isinstance(value, random.Random):
        return True
    loaded = sys.modules.get("numpy.random")
    return loaded is not None and isinstance(value, (loaded.Generator, loaded.RandomState, loaded.BitGenerator))


def stop(what: str):
    """Aborts the current trace at the user's line."""
    raise Stop(located(f"it uses {what}, which must happen at every call"))


def give_up(what: str) -> NoReturn:
    """Aborts the current trace at the user's line, where the code needs the real array or number; the function then
    runs eagerly."""
    raise Stop(located(f"it needs {what}"))


# Bytes of arrays, the nearest first, that are copied to detect writes: where code writes into arrays, and elsewhere.
_MOST_BYTES = 256 << 20, 16 << 20


class Snapshot:
    """The state reachable from a function's scope before the trace: containers, attributes, generators' states and
    array elements. Of code that does not seem to write fewer are kept: it may call a ufunc from a dict, a
    ``functools.partial``, code in C."""

    def __init__(self, values, codes):
        self.kept: list[tuple[str, Any, Any]] = []
        self._caches: list[tuple[Any, dict, set]] = []  # functions' caches, with the arguments that have results
        # What import hooks count or cache, imports of the compiler's own modules change too.
        seen = set(map(id, sys.meta_path))
        left = _MOST_BYTES[not any(map(bytecode.writes, codes))]
        queue = collections.deque((name, value, 0) for name, value in values)
        while queue and len(self.kept) < 1024:
            name, value, depth = queue.popleft()
            if id(value) in seen or depth > 4:
                continue
            seen.add(id(value))
            inside: Any = ()
            if isinstance(value, np.ndarray):
                if 0 < value.nbytes <= left and value.flags.writeable:
                    left -= value.nbytes
                    self.kept.append((name, value, value.copy()))
            elif isinstance(value, dict):
                inside = [(f"{name}[{k!r}]", v) for k, v in list(value.items())[:256]]
                self.kept.append((name, value, dict(value)))
            elif isinstance(value, (list, collections.deque)):
                inside = [(f"{name}[{k}]", v) for k, v in enumerate(list(value)[:256])]
                self.kept.append((name, value, list(value)))
            elif isinstance(value, tuple):
                inside = [(f"{name}[{k}]", v) for k, v in enumerate(value[:256])]
            elif isinstance(value, (set, bytearray)):
                self.kept.append((name, value, type(value)(value)))
            elif draws(value):
                self.kept.append((name, value, _state(value)[0]()))
            elif isinstance(value, type):
                if namespace_of(value) is not None:
                    held = _attributes(value)
                    inside = [(f"{name}.{k}", v) for k, v in held.items()]
                    self.kept.append((name, value, held))
            elif isinstance(value, types.FunctionType):
                queue.append((name, value.__dict__, depth))
            elif isinstance(value, functools._lru_cache_wrapper):
                self._caches += [(value, cache, set(cache)) for cache in caches_of(value)]
            elif isinstance(value, functools.partial):
                inside = [(name, part) for part in (value.func, *parts_of(value))]
            elif _is_ours(value):  # a compiled function, which may have the user's attributes
                self.kept.append((name, value, _attributes(value)))
            elif isinstance(value, (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)):
                inside = [(name, value.__self__)]
            elif namespace_of(value) is not None:
                space, slots = vars_of(value), slots_of(value)
                seen.add(id(space))
                inside = [(f"{name}.{k}", v) for k, v in list((space | slots).items())[:256]]
                self.kept += [(name, space, dict(space)), (name, _Slots(value), slots)]
            queue.extend((n, v, depth + 1) for n, v in inside)

    def restore(self) -> str | None:
        """Restores what changed; the name of the first such thing, or None. Results that functions cached meanwhile
        are no change, but where there is one, the functions have to run again to make it."""
        changed = None
        for name, value, before in self.kept:
            if _restored(value, before):
                changed = changed or name
        if changed:
            for function, cache, known in self._caches:
                for arguments in cache.keys() - known:
                    del cache[arguments]
                    caching_effects.add(function)
        return changed


def _state(generator) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """The functions that return and set a generator's state."""
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if hasattr(generator, "set_state"):
        return functools.partial(generator.get_state, legacy=False), generator.set_state
    owner = generator if hasattr(generator, "state") else generator.bit_generator
    return lambda: owner.state, functools.partial(setattr, owner, "state")


def _restored(value, before) -> bool:
    """Restores ``value`` to ``before``; whether it had changed."""
    if isinstance(value, np.ndarray):
        if value.shape == before.shape and _same_elements(value, before):
            return False
        if value.shape != before.shape:
            value.shape = before.shape
        value[...] = before
    elif isinstance(value, (dict, list, set, bytearray, collections.deque)):
        if _holds(value, before):
            return False
        value.clear()
        (value.update if isinstance(value, (dict, set)) else value.extend)(before)
    elif isinstance(value, (type, _Slots)) or _is_ours(value):
        now = _attributes(value)
        if now.keys() == before.keys() and _same(now, before):
            return False
        for key in now.keys() - before.keys():
            delattr(value, key)
        for key, held in before.items():
            if now.get(key) is not held:
                setattr(value, key, held)
    else:
        state, set_state = _state(value)
        if str(state()) == str(before):
            return False
        set_state(before)
    return True


def _same_elements(array: np.ndarray, before: np.ndarray) -> bool:
    """Whether two arrays of one shape hold the same bits; arrays of objects, the same objects."""
    if array.dtype.kind == "T":  # strings of variable width, whose bits are addresses
        return np.array_equal(array, before)
    if array.dtype.hasobject:
        return array.tobytes() == before.tobytes()
    now, then = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (array, before))
    return np.array_equal(now, then)


def _holds(container, before) -> bool:
    """Whether a container holds what it did: the same objects, or equal numbers and members of a set."""
    if isinstance(container, (set, bytearray)):
        return container == before
    same = len(container) == len(before) and all(a is b for a, b in zip(container, before))
    return same and (not isinstance(container, dict) or _same(container, before))


def _is_ours(value) -> bool:
    return type(value).__module__.startswith("mlirfuse.") and hasattr(value, "__dict__")


class _Slots:
    """What a user's object has in slots, as attributes of this."""

    owner: Any

    def __init__(self, owner: Any):
        self.__dict__["owner"] = owner

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self.owner, name, value)  # of frozen data classes, too

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self.owner, name)


def _attributes(value) -> dict:
    """The attributes set on a class, in slots or on one of our objects; for ours without private ones."""
    if isinstance(value, _Slots):
        return slots_of(value.owner)
    prefix = "__" if isinstance(value, type) else "_"
    return {k: v for k, v in vars(value).items() if not k.startswith(prefix)}


def _same(now, before) -> bool:
    return all(now[key] is held for key, held in before.items())
