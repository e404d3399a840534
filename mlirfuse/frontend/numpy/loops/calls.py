"""The call of a loop's code: a Python function that is generated for the types of the variables.

It checks that the variables are those that the code was compiled for, packs them into the words of the code's argument
block, calls it, and reads the variables' new values:

    def call(v):
        x0 = v.get('a', unset)
        if type(x0) is not ndarray or x0.dtype is not k0 and x0.dtype != k0: return missed
        …
        memory = words()
        put(memory, 0, …, *p0w, …)
        status = function(addressof(memory))
        …

Where the loop cannot be compiled for these types, the call returns None after the checks: it runs as Python.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse import _native
from mlirfuse.frontend.numpy.loops import callbacks, words
from mlirfuse.frontend.numpy.loops.draws import is_generator, table_of
from mlirfuse.frontend.numpy.loops.values import ArrayType, NumberType, TupleType, words_of
from mlirfuse.frontend.numpy.scope import UNSET, content_of
from mlirfuse.frontend.numpy.syntax import attribute_data
from mlirfuse.ir import dtypes as dt

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.loops.compilation import Compiled
    from mlirfuse.frontend.numpy.loops.kernel import Loop

SMALL, LARGE = 2**40, 2**62  # bounds of ints: of counts, and of any
_ALIGNED = 4  # a flag of _native.array_layout
_MOST_ARRAYS = 5  # limit for pairwise overlap checks
_MOST_SIZES = 256  # limit of cached size tuples that the code holds for


class Missed:
    """What a call returns for variables that it was not generated for. ``patterns``: where their types are those of the
    call, the patterns of extents that these types have code for."""

    def __init__(self, patterns: set | None = None):
        self.patterns = patterns


MISSED = Missed()


@dataclass
class Given:
    """What a loop is called with: ``values`` by name, the ``layouts`` of arrays and of bytes by their paths (``a``, in
    a tuple ``t[0]``), the groups of paths whose arrays may be ``shared`` memory, and the names of ``ints`` that the
    loop does not assign."""

    values: dict[str, Any]
    layouts: dict[str, tuple]
    shared: tuple
    ints: list[str]

    @staticmethod
    def of(values: dict[str, Any], changed: Iterable[str]) -> Given | None:
        """The values with what is derived from them; None where code cannot take them."""
        layouts = {}
        for path, value in _leaves(values.items()):
            if type(value) is int and not -LARGE < value < LARGE:
                return None
            if type(value) is np.ndarray:
                layouts[path] = _native.array_layout(value)
                if layouts[path][3] < _ALIGNED:
                    return None
            elif type(value) is bytes and path.isidentifier() and path not in changed:
                layouts[path] = _native.array_layout(bytes_of(value))
        ints = [name for name, value in values.items() if type(value) is int and name not in changed]
        return Given(values, layouts, overlaps(layouts), ints)

    @property
    def sizes(self) -> tuple:
        """The arrays' extents and the ints, which code may be specialized to."""
        extents = tuple([layout[0][1 : len(layout[0]) // 2 + 1] for layout in self.layouts.values()])
        return extents, tuple([self.values[name] for name in self.ints])


def _leaves(named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for path, value in named:
        if type(value) is tuple:
            yield from _leaves((f"{path}[{k}]", item) for k, item in enumerate(value))
        else:
            yield path, value


bytes_of = functools.partial(np.frombuffer, dtype=np.uint8)


def overlaps(layouts: dict[str, tuple]) -> tuple:
    """Groups of paths of arrays that may overlap."""
    arrays = sorted([(low, high, path) for path, (_, low, high, _) in layouts.items() if low < high])
    end = 0
    for low, high, _ in arrays:
        if low < end:
            break
        end = high
    else:
        return ()
    groups: list[list[str]] = []
    end = 0
    for low, high, path in arrays:
        if low >= end:
            groups.append([])
        groups[-1].append(path)
        end = max(end, high)
    return tuple(tuple(sorted(group)) for group in groups if len(group) > 1)


class CallWriter:
    """Writes the call of ``compiled`` for variables like these."""

    def __init__(self, loop: Loop, compiled: Compiled | None, given: Given, variables: dict):
        self.loop, self.compiled, self.given, self.variables = loop, compiled, given, variables
        self.space: dict[str, Any] = {
            "unset": UNSET, "missed": MISSED, "ndarray": np.ndarray, "loop": loop,
            "layout": _native.array_layout, "addressof": ctypes.addressof, "thread": callbacks.running,
            "unpack": words.unpack, "as_type": words.as_type, "content_of": content_of,
            "attribute_data": attribute_data, "overlaps": overlaps, "table_of": table_of, "append": callbacks.append,
            "bytes_of": bytes_of, "defaults_of": _defaults_of,
        }  # fmt: skip
        self.lines: list[str] = []
        self.local: dict[str, str] = {}  # by name: the variable of its value
        self.places = {path: f"p{k}" for k, path in enumerate(given.layouts)}
        self.arrays: dict[str, tuple[str, np.dtype, int]] = {}  # by path: an array's expression, dtype and rank

    def written(self, holds: Callable[[tuple], bool], patterns: set) -> Callable[[dict[str, Any]], Any]:
        """The call, which returns what :class:`Loop` does, or :class:`Missed`. ``holds``: whether the code is for these
        sizes; ``patterns``: those that its types have code for."""
        for name in self.loop.names:
            self._look_up(name)
        self._overlaps()
        self._sizes(holds, patterns)
        if self.compiled is None:
            self.lines.append("return None")
        else:
            self._run(self.compiled)
        text = "def call(v):\n" + "".join(f"    {line}\n" for line in self.lines)
        exec(compile(text, "<loop>", "exec"), self.space)
        return self.space["call"]

    def constant(self, value: Any) -> str:
        name = f"k{len(self.space)}"
        self.space[name] = value
        return name

    def miss_if(self, condition: str) -> None:
        self.lines.append(f"if {condition}: return missed")

    # ---- the checks

    def _look_up(self, name: str) -> None:
        """Reads a variable or a scope entry, and checks that it is unchanged."""
        scope, values = self.loop.scope, self.given.values
        if "." in name and name not in values:
            return
        x = self.local[name] = f"x{len(self.local)}"
        if "." in name:
            base, *attributes = name.split(".")
            self.lines.append(f"{x} = attribute_data(v.get({base!r}, unset), {attributes!r})")
        elif name in self.variables:
            self.lines.append(f"{x} = v.get({name!r}, unset)")
        else:
            self.miss_if(f"{name!r} in v")
            if name in self.loop.changed:
                self.lines.append(f"{x} = unset")
            elif name in scope.cells:
                self.lines.append(f"{x} = content_of({self.constant(scope.cells[name])})")
            elif name in scope.globals:
                self.lines.append(f"{x} = {self.constant(scope.globals)}.get({name!r}, unset)")
            else:
                self.miss_if(f"{name!r} in {self.constant(scope.globals)}")
                self.lines.append(f"{x} = {self.constant(scope.builtins)}.get({name!r}, unset)")
        if name in values:
            self._check(name, x, values[name])
        elif name not in self.loop.changed:
            self.miss_if(f"{x} is not unset")

    def _check(self, path: str, x: str, value: Any) -> None:
        """Checks that ``x`` is what the code was compiled for: ``value``, or one like it."""
        kind = type(value)
        if kind is np.ndarray:
            dtype, p = self.constant(value.dtype), self.places[path]
            self.miss_if(f"type({x}) is not ndarray or ({x}.dtype is not {dtype} and {x}.dtype != {dtype})")
            self.lines.append(f"{p}w, {p}a, {p}b, {p}f = layout({x})")
            self.miss_if(f"{p}f != {self.given.layouts[path][3]} or len({p}w) != {1 + 2 * value.ndim}")
            self.arrays[path] = x, value.dtype, value.ndim
        elif kind is int:
            small = f"-{SMALL} < {x} < {SMALL}"
            size = f"not {small}" if -SMALL < value < SMALL else f"{small} or not -{LARGE} < {x} < {LARGE}"
            self.miss_if(f"type({x}) is not int or {size}")
        elif kind is bytes and path in self.places:
            p = self.places[path]
            self.miss_if(f"type({x}) is not {self.constant(bytes)}")
            self.lines.append(f"{p}w, {p}a, {p}b, {p}f = layout(bytes_of({x}))")
        elif kind in (float, bool, complex) or isinstance(value, np.generic) or self.loop.goes_by_type(path, value):
            self.miss_if(f"type({x}) is not {self.constant(kind)}")
        elif kind is str:
            self.miss_if(f"type({x}) is not {self.constant(str)} or {x} != {value!r}")
        elif kind is tuple:
            self.miss_if(f"type({x}) is not {self.constant(tuple)} or len({x}) != {len(value)}")
            for k, item in enumerate(value):
                self._check(f"{path}[{k}]", f"{x}[{k}]", item)
        elif kind is types.FunctionType:
            self._check_function(path, x, value)
        elif is_generator(value):  # each call may have a new one
            self.miss_if(f"type({x}) is not {self.constant(kind)}")
            for other, y in self.local.items():
                if y != x and is_generator(known := self.given.values.get(other)):
                    self.miss_if(f"{x} is {'not ' if known is value else ''}{y}")
        else:
            self.miss_if(f"{x} is not {self.constant(value)}")

    def _check_function(self, name: str, x: str, value: types.FunctionType) -> None:
        """Checks a function's code, and what it reads that is not an argument."""
        code, around = self.constant(value.__code__), self.constant(value.__globals__)
        self.miss_if(f"type({x}) is not {self.constant(types.FunctionType)} or {x}.__code__ is not {code}")
        defaults = f"defaults_of({x}) != {self.constant(_defaults_of(value))}" if value.__defaults__ else ""
        self.miss_if(f"{x}.__globals__ is not {around} or {defaults or f'{x}.__defaults__'}")
        for k, free in enumerate(value.__code__.co_freevars):
            y = self.local[f"{name}.{free}"] = f"x{len(self.local)}"
            self.lines.append(f"{y} = content_of({x}.__closure__[{k}])")
            if f"{name}.{free}" in self.given.values:
                self._check(f"{name}.{free}", y, self.given.values[f"{name}.{free}"])
            else:
                self.miss_if(f"{y} is not unset")

    def _overlaps(self) -> None:
        """Checks which arrays overlap."""
        places = list(self.places.values())
        if self.given.shared or len(places) > _MOST_ARRAYS:
            layouts = ", ".join(f"{path!r}: ({p}w, {p}a, {p}b, {p}f)" for path, p in self.places.items())
            self.miss_if(f"overlaps({{{layouts}}}) != {self.constant(self.given.shared)}")
            return
        for k, p in enumerate(places):
            for q in places[:k]:
                self.miss_if(f"{p}a < {q}b and {q}a < {p}b")

    def _sizes(self, holds: Callable[[tuple], bool], patterns: set) -> None:
        """Checks that the code is for arrays of these extents, and for these ints."""
        known: set = set()

        def new(sizes: tuple) -> bool:
            if not holds(sizes):
                return False
            if len(known) > _MOST_SIZES:
                known.clear()
            known.add(sizes)
            return True

        self.space |= {"known": known, "new": new, "resized": Missed(patterns)}
        ranks = [len(layout[0]) // 2 for layout in self.given.layouts.values()]
        extents = "".join(f"{p}w[1:{1 + rank}], " for p, rank in zip(self.places.values(), ranks))
        ints = "".join(f"{self.local[name]}, " for name in self.given.ints)
        self.lines += [f"sizes = ({extents}), ({ints})", "if sizes not in known and not new(sizes): return resized"]
        for on in self.compiled.depends if self.compiled else ():
            g, value = self.constant(on.value), on.value
            self.lines.append(f"g = {self.constant(on.namespace)}.get({on.name!r})")
            if isinstance(value, types.FunctionType):
                code, defaults = self.constant(value.__code__), self.constant(value.__defaults__)
                self.miss_if(f"g is not {g} or g.__code__ is not {code} or g.__defaults__ is not {defaults}")
            else:
                self.miss_if(f"g is not {g} and (type(g) is not {self.constant(type(value))} or g != {g})")

    # ---- the call

    def _run(self, compiled: Compiled) -> None:
        form, packed = f"{words.HEADER}q", [str(word) for word in callbacks.HEADER]
        packed[words.ROOM] = f"start + {8 * compiled.words + 63} & -64"
        packed[words.ROOM_END] = f"start + {ctypes.sizeof(compiled.memory)}"
        table = table_of(compiled.addresses, {})
        packed[words.TABLE] = "addressof(table)" if compiled.draws else str(ctypes.addressof(table))
        for name, kind in compiled.inputs:
            more, given = self._packed(name, kind, self.local[name])
            form, packed = form + more, packed + given
        self.space |= {
            "code": compiled, "function": compiled.function, "words": compiled.memory, "errors": compiled.errors,
            "put": struct.Struct("=" + form).pack_into, "table": table,
        }  # fmt: skip
        values = ", ".join(f"{name!r}: {x}" for name, x in self.local.items() if name in self.given.values)
        values = f"{{{values}}}"
        if compiled.draws:
            self.lines.append(f"table = table_of(code.addresses, {values})")
        self.lines += [
            "memory = words()",
            "start = addressof(memory)",
            f"put(memory, 0, {', '.join(packed)})",
            "buffers = thread.buffers = {}",
            "log = thread.log = []",
        ]
        if compiled.externs:
            externs = f"[extern.of({values}) for extern in code.externs]" if compiled.draws else "code.externs"
            self.lines.append(f"thread.externs, thread.kept = {externs}, {{}}")
        self.lines.append("status = function(start)")
        kinds = [kind for _, kind, _ in compiled.outputs if kind is not None]
        if compiled.appends or not all(isinstance(kind, NumberType) for kind in kinds):
            self.lines.append(f"made = {self._arrays()}")
        if compiled.appends:
            arrays = "{start: bytes_of(memory)} | buffers, made"
            self.lines.append(f"if log: append(log, memory, code.appends, {values}, {arrays})")
        self._results(compiled)

    def _arrays(self) -> str:
        """The arrays by their words, of equal ones the first; those that are made of results join them."""
        return "{" + ", ".join(f"{self.places[path]}w: {x}" for path, (x, *_) in reversed(self.arrays.items())) + "}"

    def _packed(self, path: str, kind: Any, x: str) -> tuple[str, list[str]]:
        """The struct format of a value in words, and the values to pack."""
        if isinstance(kind, ArrayType):
            return f"{words_of(kind)}q", [f"*{self.places[path]}w"]
        if isinstance(kind, TupleType):
            items = [self._packed(f"{path}[{k}]", item, f"{x}[{k}]") for k, item in enumerate(kind.items)]
            return "".join(form for form, _ in items), [value for _, given in items for value in given]
        if kind.dtype.kind == "c":
            return words.format_of(kind.dtype), [f"{x}.real", f"{x}.imag"]
        return words.format_of(kind.dtype), [x if kind.dtype.is_float or kind.dtype is dt.i64 else f"int({x})"]

    def _results(self, compiled: Compiled) -> None:
        """Reads the variables' new values, and raises the error that the code has returned."""
        form, names, results = "", list[str](), list[str]()
        for name, kind, other in compiled.outputs:
            before = self.local[name]
            if kind is None:
                results.append(before)
                continue
            n = len(names)
            one, count, value = self._number(kind, n + 1) if isinstance(kind, NumberType) else self._other(kind, n + 1)
            names += [f"r{n + k}" for k in range(1 + count)]
            form += "q" + one
            if other is not None:
                form += "q"
                names.append(f"r{len(names)}")
                value = f"(as_type({value}, {self.constant(other)}) if {names[-1]} else {value})"
            results.append(f"{value} if r{n} else {before}")
        self.space["get"] = struct.Struct("=" + form + "q").unpack_from
        self.lines.append(f"{', '.join([*names, 'left'])}, = get(memory, {8 * compiled.first_output})")
        error = "errors[status - 1](memory[0], memory[1])"
        self.lines.append(f"if status: left = {error}" if self.loop.caught else f"if status: raise {error} from None")
        self.lines += ["loop.ran = True", f"return {', '.join([*results, 'left'])},"]

    def _number(self, kind: NumberType, n: int) -> tuple[str, int, str]:
        """The struct format of a number, how many values that is, and the expression of it from those from ``n`` on."""
        count = 2 if kind.dtype.kind == "c" else 1
        value = f"complex(r{n}, r{n + 1})" if count == 2 else f"r{n}"
        if kind.python:
            value = f"{value} != 0" if kind.dtype is dt.bool_ else value
        else:
            value = f"{self.constant(kind.dtype.numpy.type)}({value})"
        return words.format_of(kind.dtype), count, value

    def _other(self, kind: Any, n: int) -> tuple[str, int, str]:
        """The same of a tuple or an array; an input array is reused where it is one."""
        count = words_of(kind)
        all_words = "(" + "".join(f"r{n + k}, " for k in range(count)) + ")"
        before, after = "", ""
        for path, (x, *of) in self.arrays.items() if isinstance(kind, ArrayType) else ():
            if of == [kind.dtype.numpy, kind.rank]:
                before, after = f"{before}{x} if {all_words} == {self.places[path]}w else (", after + ")"
        buffers = "{start: bytes_of(memory)} | buffers"
        created = f"unpack({all_words}, 0, {self.constant(kind)}, {buffers}, made)[0]"
        return "q" * count, count, f"({before}{created}{after})"


def _defaults_of(function: types.FunctionType) -> list[tuple]:
    """A function's defaults, as comparable values: numbers by type and value, others by identity."""
    defaults = function.__defaults__ or ()
    return [(type(v), repr(v) if type(v) in (bool, int, float, complex) else id(v)) for v in defaults]
