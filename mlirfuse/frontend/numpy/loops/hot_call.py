"""The fast path of a loop's call: a generated Python function, specialized to the types of the variables.

It checks that the variables match the compiled code, packs them into the words of the code's argument block, calls it,
and reads the variables' new values:

    def call(v):
        a = v.get('a', unset)
        if type(a) is not ndarray or a.dtype is not t0: return missed
        …
        memory = words()
        pack_into(memory, 0, …, *p0[0], …)
        status = function(addressof(memory))
        …

:mod:`kernel` handles rare cases (another type, an error, a list that was appended to).
"""

from __future__ import annotations

import ctypes
import functools
import struct
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse import _native
from mlirfuse.frontend.numpy.loops.values import ArrayType, NumberType
from mlirfuse.ir import dtypes as dt

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.loops.kernel import Compiled, Loop
    from mlirfuse.frontend.numpy.loops.variables import Dependency

_MOST_ARRAYS = 5  # limit for pairwise overlap checks
_MOST_SIZES = 256  # limit of cached size tuples that the code holds for


class Missed:
    """The result of a call that does not match the specialization."""


class _NotHere(Exception):
    """A case that the fast path does not support."""


class HotCall:
    """The fast path of one loop and its code for some types: ``call(variables)`` returns the variables' values as
    :class:`Loop` does, or :class:`Missed`. ``sizes``: tuples of extents and ints that the code is valid for."""

    def __init__(self, call: Callable, sizes: set):
        self.call, self.sizes = call, sizes

    def know(self, sizes: tuple) -> None:
        if len(self.sizes) > _MOST_SIZES:
            self.sizes.clear()
        self.sizes.add(sizes)


def hot_call(loop: Loop, compiled: Compiled, values: dict, variables: dict, tools: dict) -> HotCall | None:
    """The fast path for calls like the one with these variables; None where it is not supported. ``tools``: functions
    of :mod:`kernel` that it uses."""
    try:
        return _Writer(loop, compiled, values, variables, tools).created()
    except _NotHere:
        return None


class _Writer:
    def __init__(self, loop: Loop, compiled: Compiled, values: dict, variables: dict, tools: dict):
        self.loop, self.compiled, self.values, self.variables = loop, compiled, values, variables
        self.space: dict[str, Any] = dict(tools) | {
            "ndarray": np.ndarray, "float64": np.float64, "array_layout": _native.array_layout, "missed": Missed,
            "loop": loop, "addressof": ctypes.addressof, "function": compiled.function, "words": compiled.memory,
            "code": compiled, "function_type": types.FunctionType,
            "bytes_of": functools.partial(np.frombuffer, dtype=np.uint8),
        }  # fmt: skip
        self.lines: list[str] = []
        self.local = {name: f"x{k}" for k, name in enumerate(loop.names)}
        self.arrays = [name for name in loop.names if type(values.get(name)) is np.ndarray]

    def created(self) -> HotCall:
        sizes: set = set()
        self.space["sizes"] = sizes
        for name in self.loop.names:
            self._look_up(name)
        for on in self.compiled.depends:
            self._depend(on)
        self._places()
        self._run()
        text = "def call(v):\n" + "".join(f"    {line}\n" for line in self.lines)
        exec(compile(text, "<loop>", "exec"), self.space)
        return HotCall(self.space["call"], sizes)

    def constant(self, value: Any) -> str:
        name = f"k{len(self.space)}"
        self.space[name] = value
        return name

    def miss_if(self, condition: str) -> None:
        self.lines.append(f"if {condition}: return missed")

    # ---- the variables

    def _look_up(self, name: str) -> None:
        """Reads a variable or a scope entry, and checks that it is unchanged."""
        x, scope = self.local[name], self.loop.scope
        if "." in name:
            base, *attributes = name.split(".")
            if name in self.values:
                self.lines.append(f"{x} = attribute_data(v.get({base!r}, unset), {attributes!r})")
                self._compare(name, x, self.values[name])
            return
        here = name in self.variables
        if here:
            self.lines.append(f"{x} = v.get({name!r}, unset)")
        elif self._changed(name):
            self.miss_if(f"{name!r} in v")
            self.lines.append(f"{x} = unset")
        elif name in scope.cells:
            raise _NotHere
        else:
            around, builtins = self.constant(scope.globals), self.constant(scope.builtins)
            self.miss_if(f"{name!r} in v")
            if name in self.values and name in scope.globals:
                self.lines.append(f"{x} = {around}.get({name!r}, unset)")
            elif name in self.values:
                self.miss_if(f"{name!r} in {around}")
                self.lines.append(f"{x} = {builtins}.get({name!r}, unset)")
            else:
                self.miss_if(f"{name!r} in {around} or {name!r} in {builtins}")
                self.lines.append(f"{x} = unset")
        if name in self.values:
            self._compare(name, x, self.values[name])

    def _compare(self, name: str, x: str, value: Any) -> None:
        kind = type(value)
        if kind is np.ndarray:
            self.miss_if(f"type({x}) is not ndarray or {x}.dtype is not {self.constant(value.dtype)}")
        elif kind is int:
            if not -self.space["small"] < value < self.space["small"]:
                raise _NotHere
            self.miss_if(f"type({x}) is not int or not -{self.space['small']} < {x} < {self.space['small']}")
        elif kind in (float, bool, complex) or isinstance(value, np.generic):
            self.miss_if(f"type({x}) is not {self.constant(kind)}")
        elif kind is list and name in self.loop.lists:
            self.miss_if(f"type({x}) is not {self.constant(list)}")
        elif kind is types.FunctionType and not value.__defaults__:
            if value.__closure__:
                raise _NotHere
            code, around = self.constant(value.__code__), self.constant(value.__globals__)
            self.miss_if(f"type({x}) is not function_type or {x}.__code__ is not {code} or {x}.__globals__ is not "
                         f"{around} or {x}.__defaults__")  # fmt: skip
        elif kind is tuple or kind is types.FunctionType:
            raise _NotHere
        elif self.loop.is_owner(name, value):
            self.miss_if(f"type({x}) is not {self.constant(kind)}")
        else:
            self.miss_if(f"{x} is not {self.constant(value)}")

    def _depend(self, on: Dependency) -> None:
        """Checks that a global of a called function is unchanged."""
        self.lines.append(f"g = {self.constant(on.namespace)}.get({on.name!r})")
        self.miss_if(f"g is not {self.constant(on.value)}")
        if on.code is not None:
            self.miss_if(f"g.__code__ is not {self.constant(on.code)}")
            self.miss_if(f"g.__defaults__ is not {self.constant(on.defaults)}")

    def _places(self) -> None:
        """Checks that arrays do not overlap and have extents that the code is valid for."""
        for name in self.arrays:
            array, p = self.values[name], self._place(name)
            self.lines.append(f"{p} = array_layout({self.local[name]})")
            self.lines.append(f"{p}w, {p}a, {p}b, {p}f = {p}")
            self.miss_if(f"{p}f != {_native.array_layout(array)[3]} or len({p}w) != {1 + 2 * array.ndim}")
        places = [self._place(name) for name in self.arrays]
        if len(places) > _MOST_ARRAYS:
            self.miss_if(f"shared({{{', '.join(f'{n!r}: {p}' for n, p in zip(self.arrays, places))}}})")
        else:
            for k, p in enumerate(places):
                for q in places[:k]:
                    self.miss_if(f"{p}a < {q}b and {q}a < {p}b")
        extents = "".join(f"{p}w[1:{1 + self.values[name].ndim}], " for name, p in zip(self.arrays, places))
        fixed = [name for name in self.loop.names if type(self.values.get(name)) is int and not self._changed(name)]
        ints = "".join(f"{self.local[name]}, " for name in fixed)
        self.miss_if(f"(({extents}), ({ints})) not in sizes")

    def _place(self, name: str) -> str:
        return f"p{self.loop.names.index(name)}"

    def _changed(self, name: str) -> bool:
        return name in self.loop.assigned

    # ---- the call

    def _run(self) -> None:
        compiled = self.compiled
        form, given = "", []
        for name, kind in compiled.inputs:
            if isinstance(kind, ArrayType):
                form += f"{1 + 2 * kind.rank}q"
                given.append(f"*{self._place(name)}w")
            elif isinstance(kind, NumberType):
                one, value = _packed(kind, self.local[name])
                form += one
                given += value
            else:
                raise _NotHere
        if compiled.draws:
            raise _NotHere
        header = [*self.space["header"]]
        header[self.space["table"]] = ctypes.addressof(compiled.table)
        room = [f"start + {8 * compiled.words + 63} & -64", f"start + {ctypes.sizeof(compiled.memory)}"]
        arena = self.space["arena"]
        words = [*header[:arena], *room, *header[arena + 2 :], *given]
        self.space["put"] = struct.Struct("=" + "q" * len(header) + form).pack_into
        self.lines += [
            "memory = words()",
            "start = addressof(memory)",
            f"put(memory, 0, {', '.join(map(str, words))})",
            "buffers = thread.buffers = {}",
            "log = thread.log = []",
            *(["thread.externs, thread.kept = code.externs, {}"] if compiled.externs else []),
            "status = function(start)",
            "if status or log:",
            f"    return loop.finish(code, {self._dict(self.loop.names)}, {self._dict_of_places()}, memory, status, "
            "buffers, log)",
            "loop.ran = True",
        ]
        self._results(len(header) + compiled.before)

    def _dict(self, names: list[str]) -> str:
        return "{" + ", ".join(f"{n!r}: {self.local[n]}" for n in names if n in self.values) + "}"

    def _dict_of_places(self) -> str:
        return "{" + ", ".join(f"{n!r}: {self._place(n)}" for n in self.arrays) + "}"

    def _results(self, at: int) -> None:
        form, names, results = "", list[str](), list[str]()
        for name, kind, _, other in self.compiled.outputs:
            before = self.local.get(name, "unset")
            if kind is None:
                results.append(before)
                continue
            n = len(names)
            if isinstance(kind, NumberType):
                one, count, value = self._number(kind, n + 1)
            elif isinstance(kind, ArrayType):
                one, count, value = self._array(kind, n + 1)
            else:
                raise _NotHere
            form += "q" + one
            names += [f"r{n + k}" for k in range(1 + count)]
            if other is not None:
                form += "q"
                names.append(f"r{len(names)}")
                value = f"(as_type({value}, {self.constant(other)}) if {names[-1]} else {value})"
            results.append(f"{value} if r{n} else {before}")
        self.space["get"] = struct.Struct("=" + form + "q").unpack_from
        self.lines.append(f"{', '.join([*names, 'left'])}, = get(memory, {8 * at})")
        if any("made)" in result for result in results):
            arrays = "".join(f"{self._place(n)}w: {self.local[n]}, " for n in reversed(self.arrays))
            self.lines.append(f"made = {{{arrays}}}")
        self.lines.append(f"return {', '.join([*results, 'left'])},")

    def _number(self, kind: NumberType, n: int) -> tuple[str, int, str]:
        if kind.dtype is dt.f64:
            return "d", 1, f"r{n}" if kind.python else f"float64(r{n})"
        if kind.python and kind.dtype is dt.i64:
            return "q", 1, f"r{n}"
        count = 2 if kind.dtype is dt.c128 else 1
        words = "".join(f"r{n + k}, " for k in range(count))
        return "q" * count, count, f"number(({words}), 0, {self.constant(kind)})"

    def _array(self, kind: ArrayType, n: int) -> tuple[str, int, str]:
        """Reuses an input array where the output is one."""
        count = 1 + 2 * kind.rank
        words = "(" + "".join(f"r{n + k}, " for k in range(count)) + ")"
        before, after = "", ""
        for name in self.arrays:
            array = self.values[name]
            if array.dtype == kind.dtype.numpy and array.ndim == kind.rank:
                before += f"{self.local[name]} if {words} == {self._place(name)}w else ("
                after += ")"
        created = f"unpack({words}, 0, {self.constant(kind)}, {{start: bytes_of(memory)}} | buffers, made)[0]"
        return "q" * count, count, f"({before}{created}{after})"


def _packed(kind: NumberType, x: str) -> tuple[str, list[str]]:
    """The struct format of a number in words, and the values to pack."""
    if kind.dtype.kind == "c":
        return "dd" if kind.dtype is dt.c128 else "ff", [f"{x}.real", f"{x}.imag"]
    if kind.dtype is dt.u64:
        raise _NotHere
    if kind.dtype.is_float:
        return ("d" if kind.dtype is dt.f64 else "f4x"), [x]
    return "q", [x if kind.dtype is dt.i64 else f"int({x})"]
