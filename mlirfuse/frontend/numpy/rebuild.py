"""Rebuilds the user's functions over replaced globals for tracing: ``np`` becomes a stand-in with traceable creation
functions, so that ``out = np.zeros(n); out[i] = x`` is traced, and functions with effects outside the program (print,
clocks, random numbers) end the trace. Nothing in the process is patched: other threads see NumPy unchanged.

A rebuilt function runs the user's code with a :class:`Scope` as globals: it looks names up in the user's globals at
each read and replaces what it finds (:meth:`StandIns.of`): user functions by rebuilt ones, modules by stand-ins. Nested
functions share these globals.
"""

from __future__ import annotations

import builtins
import datetime
import dis
import functools
import operator
import sys
import sysconfig
import types
from collections.abc import Collection
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy import introspection as intro
from mlirfuse.frontend.numpy import special
from mlirfuse.frontend.numpy.created_array import creation_stand_in
from mlirfuse.frontend.numpy.effects import ACTING_BUILTINS, ACTING_MODULES, CONCURRENT, acts, is_concurrent, stop
from mlirfuse.frontend.numpy.graph_breaks.calls import LibraryObject, lazy, library_function, vectorized
from mlirfuse.frontend.numpy.registry import CREATION, HELPERS
from mlirfuse.frontend.numpy.scope import UNSET, content_of
from mlirfuse.frontend.numpy.source import is_internal
from mlirfuse.frontend.numpy.trace_state import current
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.runtime import numpy_private

_LIBRARIES = tuple(
    {path for key, path in sysconfig.get_paths().items() if key in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_PLAIN = (int, float, complex, bool, str, bytes, type(None), np.ndarray, np.generic, np.ufunc, np.dtype, type)


def _is_users(file: str) -> bool:
    return not is_internal(file) and not file.startswith(_LIBRARIES) and "site-packages" not in file


def _is_librarys(value) -> bool:
    """Whether ``value`` is a library function that NumPy's protocols do not dispatch to us."""
    if isinstance(value, type) or not callable(value):
        return False
    return _has_functions_to_call(getattr(value, "__module__", None) or "builtins")


def _has_functions_to_call(module: str) -> bool:
    """Whether a module belongs to a library of functions on NumPy arrays."""
    top = module.split(".")[0]
    others = ("numpy", "mlirfuse", "builtins", "torch", "cupy", "jax", "_")  # handled elsewhere
    return top not in sys.stdlib_module_names and not top.startswith(others)


_OF_MODULES = ("__name__", "__package__", "__spec__")  # of globals, which relative imports read


class Scope(dict):
    """The globals of rebuilt functions: own entries are the trace's writes; all other names are read from the user's
    globals."""

    def __init__(self, real: dict, stand_ins: StandIns):
        super().__init__({name: real[name] for name in _OF_MODULES if name in real}, __builtins__=stand_ins.builtins)
        self.real = real
        self.stand_ins = stand_ins

    def __missing__(self, name):
        return self.stand_ins.of(self.real[name])


class _Module(types.ModuleType):
    """A module that replaces its attributes on read. Writing to it is a side effect, which ends the trace."""

    def __init__(self, real: types.ModuleType, stand_ins: StandIns):
        super().__init__(real.__name__)
        types.ModuleType.__getattribute__(self, "__dict__").update(_real=real, _stand_ins=stand_ins)

    def __getattribute__(self, name):
        inside = types.ModuleType.__getattribute__(self, "__dict__")
        return inside["_stand_ins"].of(getattr(inside["_real"], name))

    def __setattr__(self, name, value):
        stop(f"an assignment to the attribute {name} of a module")


def _errstate(**kinds):
    """``np.errstate`` with 'ignore'; compiled code gives no floating-point warnings or errors, so any other value ends
    the trace."""
    if any(kind not in (None, "ignore") for kind in kinds.values()):
        stop("np.errstate with a value other than 'ignore'")
    return np.errstate(**kinds)


class StandIns:
    """The replacements that one trace uses for the objects that the user's functions refer to."""

    def __init__(self) -> None:
        self._memo: dict[int, tuple[Any, Any]] = {id(real): (real, ours) for real, ours in _REPLACED.items()}
        self._scopes: dict[int, Scope] = {}
        self._cells: dict[int, tuple[Any, types.CellType, Any]] = {}
        self.builtins = dict(vars(builtins)) | {name: _Acting(name) for name in ACTING_BUILTINS}
        self.builtins |= {
            "len": intro.length, "isinstance": intro.is_instance, "type": intro.Type, "hasattr": intro.has_attribute,
            "getattr": intro.attribute, "id": intro.identity,
        }  # fmt: skip
        self.builtins |= {_called(kind.__name__): lazy(kind) for kind in _NUMBERS}
        self.builtins |= {_called(kind.__name__): intro.of_memory(kind) for kind in _MEMORY}
        self.builtins["__import__"] = self._import

    def of(self, value):
        """The replacement for ``value`` in the trace; mostly itself."""
        found = self._memo.get(id(value))
        if found is None:
            if isinstance(value, _PLAIN) and not (isinstance(value, type) and is_concurrent(value)):
                return value
            self._memo[id(value)] = (value, value)  # ends recursion of self-referential values
            found = self._memo[id(value)] = (value, self._make(value))
        return found[1]

    def _import(self, name, *args, **kwargs):
        """``import``, and ``is``, which is compiled to it (:func:`with_our_names`): the operands are the last two
        arguments."""
        if name not in _IDENTITY:
            return self.of(builtins.__import__(name, *args, **kwargs))
        left, right = args[-1:-3:-1] if len(args) > 2 else args
        one = intro.are_one(left, right) or self.original(left) is self.original(right)
        return one == (name == _IDENTITY[0])

    def original(self, value):
        """The object that ``value`` replaces, or ``value``."""
        return next((real for real, created in self._memo.values() if created is value), value)

    def _make(self, value):
        action = acts(value)
        if action is not None:
            return _Acting(action)
        if isinstance(value, types.FunctionType):
            traced = value in HELPERS or (special.function_of(value) is None and _is_users(value.__code__.co_filename))
            return self._function(value) if traced else self._created(value)
        if isinstance(value, types.ModuleType):
            name = value.__name__
            file = getattr(value, "__file__", None)
            users = name.partition(".")[0] not in sys.stdlib_module_names and (file is None or _is_users(file))
            listed = name in _REPLACED_MODULES or name.partition(".")[0] in CONCURRENT
            replaced = listed or users or _has_functions_to_call(name)
            return _Module(value, self) if replaced else value
        if isinstance(value, types.MethodType):
            function = self.of(value.__func__)
            return value if function is value.__func__ else types.MethodType(function, value.__self__)
        if isinstance(value, functools.partial):
            return functools.partial(self.of(value.func), *value.args, **value.keywords)
        return self._created(value)

    def _created(self, value):
        try:
            ours = CREATION.get(value) or special.function_of(value)
        except TypeError:  # not hashable
            ours = None
        if ours is None:
            if getattr(value, "__module__", None) == "json" and callable(value) and not isinstance(value, type):
                return intro.without_stand_ins(value)
            if value is operator.is_ or value is operator.is_not:  # an object may be equal to anything
                return functools.partial(self._import, _IDENTITY[value is operator.is_not])
            name = getattr(value, "__name__", "")
            if _is_librarys(value) and _gives_namespace(value, name):
                return self._namespace
            if _is_librarys(value) and name.startswith("is_") and name.endswith("_array"):  # is_numpy_array
                return intro.of_class(value)
            if _is_librarys(value):
                return library_function(value) if hasattr(value, "__name__") else LibraryObject(value)
            return value
        return creation_stand_in(value, ours)

    def _namespace(self, *arrays, **options):
        """A replacement for ``array_namespace`` of array-api-compat and of its vendored copies."""
        found = [x for x in arrays if isinstance(x, TracedArray)]
        return found[0].__array_namespace__() if found else self.of(np)

    def rebuilt(self, fn: types.FunctionType) -> types.FunctionType:
        """The function over replaced globals."""
        found = self._memo.get(id(fn))
        return self._function(fn) if found is None else found[1]

    def _function(self, fn: types.FunctionType) -> types.FunctionType:
        cells = tuple(self._cell(cell) for cell in fn.__closure__ or ())
        scope = self._scopes.setdefault(id(fn.__globals__), Scope(fn.__globals__, self))
        # a copy of the code: the interpreter specializes code to the globals it runs with
        code = with_our_names(fn.__code__.replace(), fn.__globals__)
        created = types.FunctionType(code, scope, fn.__name__, fn.__defaults__, cells)
        created.__kwdefaults__ = fn.__kwdefaults__
        created.__qualname__, created.__module__, created.__doc__ = fn.__qualname__, fn.__module__, fn.__doc__
        created.__dict__ = fn.__dict__
        self._memo[id(fn)] = (fn, created)
        for cell in fn.__closure__ or ():
            self._fill(cell)
        return created

    def _cell(self, cell: types.CellType) -> types.CellType:
        if id(cell) not in self._cells:
            self._cells[id(cell)] = (cell, types.CellType(), UNSET)
        return self._cells[id(cell)][1]

    def _fill(self, cell: types.CellType) -> None:
        _, created, known = self._cells[id(cell)]
        content = content_of(cell)
        if known is UNSET and content is not UNSET:
            created.cell_contents = self.of(content)
            self._cells[id(cell)] = (cell, created, created.cell_contents)

    def written(self) -> str | None:
        """A global or enclosing-scope variable that the trace has written, in its own copy; not the registry in which
        Python notes that a warning was shown."""
        for scope in self._scopes.values():
            for name in scope:
                if name not in ("__builtins__", "__warningregistry__", *_OF_MODULES):
                    return f"the global {name}"
        for _, created, content in self._cells.values():
            if content_of(created) is not content:
                return "a variable of an enclosing function"
        return None


def _gives_namespace(value, name: str) -> bool:
    """Whether a library's function is ``array_namespace``; array-api-compat has ``get_namespace`` as an older name of
    it, which gives more elsewhere."""
    return name == "array_namespace" or (name == "get_namespace" and "array_api_compat" in value.__module__)


_NUMBERS = (bool, int, float, complex)
_MEMORY = (bytes, bytearray, memoryview)
_IDENTITY = ("mlirfuse is", "mlirfuse is not")


def _called(name: str) -> str:
    return f"mlirfuse {name}"


_CALLED = {kind.__name__ for kind in (*_NUMBERS, *_MEMORY)}
_LOAD_GLOBAL, _EXTENDED = dis.opmap["LOAD_GLOBAL"], dis.opmap["EXTENDED_ARG"]
_IS, _IMPORT = dis.opmap["IS_OP"], dis.opmap["IMPORT_NAME"]


def with_our_names(code: types.CodeType, own: Collection[str]) -> types.CodeType:
    """The code with calls of builtins such as ``float(x)`` renamed to our versions; other uses (``dtype=float``) stay.
    Compiles ``a is b`` to an import, which also takes two operands, gives one, and calls ``__import__``, which Python
    lets us replace. ``own``: names that the user has redefined."""
    names, steps = list(code.co_names), bytearray(code.co_code)

    def place(name: str) -> int:
        if name not in names:
            names.append(name)
        return names.index(name)

    for k in range(0, len(steps), 2):
        if steps[k] == _LOAD_GLOBAL and steps[k + 1] & 1 and (k == 0 or steps[k - 2] != _EXTENDED):  # a call
            name = code.co_names[steps[k + 1] >> 1]
            if name in _CALLED - set(own) and (at := place(_called(name))) < 128:
                steps[k + 1] = at << 1 | 1
        elif steps[k] == _IS and (at := place(_IDENTITY[steps[k + 1]])) < 256:
            steps[k], steps[k + 1] = _IMPORT, at
    constants = tuple(with_our_names(c, own) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.replace(co_names=tuple(names), co_code=bytes(steps), co_consts=constants)


def as_traced(fn):
    """``fn``, called while another function is traced, as a traceable function."""
    trace = current()
    return fn if trace is None or trace.stand_ins is None else trace.stand_ins.of(fn)


_NUMPYS = {"numpy", numpy_private.numeric_name}
_REPLACED_MODULES = ACTING_MODULES | _NUMPYS | {"datetime", "json", "operator", "os", "sys"}


class _Acting:
    """Replaces an object with effects outside the program: any use ends the trace."""

    def __init__(self, action: str):
        self.__dict__["_action"] = action

    def __exit__(self, *exc):
        return False


for _use in ("__call__", "__getattr__", "__setattr__", "__next__", "__iter__", "__enter__"):
    setattr(_Acting, _use, lambda self, *args, **kwargs: stop(self.__dict__["_action"]))


def _clock(kind: type) -> type:
    """``datetime.datetime`` or ``datetime.date`` with the methods that read the clock ending the trace."""
    reading = {
        name: staticmethod(lambda *args, name=name: stop(f"datetime.{name}"))
        for name in ("now", "utcnow", "today")
        if hasattr(kind, name)
    }
    return type(kind.__name__, (kind,), reading)


_REPLACED: dict[Any, Any] = {kind: _clock(kind) for kind in (datetime.datetime, datetime.date)} | {
    np.vectorize: vectorized, np.errstate: _errstate
}  # fmt: skip
