"""One loop at run time: caches its code by the types of the variables, and calls it."""

from __future__ import annotations

import ast
import ctypes
import time
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse import _native
from mlirfuse.core import deadline, threads
from mlirfuse.core.errors import CompileError
from mlirfuse.frontend.numpy.loops import callbacks
from mlirfuse.frontend.numpy.loops.draws import is_generator, state_of
from mlirfuse.frontend.numpy.loops.externs import Extern
from mlirfuse.frontend.numpy.loops.hot_call import HotCall, Missed, hot_call
from mlirfuse.frontend.numpy.loops.statements import Statements
from mlirfuse.frontend.numpy.loops.values import (
    Array,
    Copied,
    NotOutlinable,
    Number,
    NumberType,
    Tuple,
    TupleType,
    type_of,
    words_of,
)
from mlirfuse.frontend.numpy.loops.variables import Dependency, Retyped
from mlirfuse.frontend.numpy.loops.words import as_type, number, pack, unpack
from mlirfuse.frontend.numpy.syntax import attribute_data, has_attributes, only_for_attributes
from mlirfuse.ir import dtypes as dt
from mlirfuse.runtime import events, load

_ROOM = 512  # words at the end of the argument block, an arena for small arrays
_SMALL, _LARGE = 2**40, 2**62
_ALIGNED = 4  # a flag of _native.array_layout
_MOST_TYPES = 16  # limit of type combinations per loop
_MOST_PATTERNS = 2  # limit of extent patterns per type combination; then code for any extents
_LARGE_EXTENT = 4  # from here on, a stencil's margins surely fit


class Unset:
    """Marks a variable without a value after a loop."""


@dataclass
class Compiled:
    """A loop's code for some variable types. ``inputs``: names and types of the variables it reads; ``outputs``: names
    and types of those it assigns, None for an unknown type; ``appends``: for each append the list and the type of the
    value."""

    code: Any
    function: Callable
    errors: list
    inputs: list[tuple[str, Any]]
    outputs: list[tuple[str, Any, int, Any]]
    appends: list[tuple[str, Any]]
    memory: type
    words: int  # without the arena for small arrays
    before: int  # words before the outputs, without the first
    depends: list[Dependency]
    externs: list[Extern]
    addresses: list[int | str]  # that the code uses; of a generator's state its name
    table: Any  # the addresses, those of states 0
    hot: HotCall | None = None
    called: bool = False

    @property
    def draws(self) -> bool:
        """Whether it draws from generators that are variables."""
        return any(isinstance(v, str) for v in self.addresses) or any(extern.generator for extern in self.externs)


@dataclass(eq=False)
class LoopRan(events.Event):
    """A loop outlined from a function was called. ``seconds``: of its native code, compilation included; None where it
    runs as Python."""

    loop: Loop
    seconds: float | None


@dataclass(eq=False)
class Loop:
    """A loop statement. ``assigned``: the variables it assigns, whose values :meth:`__call__` returns in that order;
    ``leaves``: the statements in it that leave the function; ``lists``: names of lists that it only appends to;
    ``over``: the variables that it iterates over, by index: arrays; ``caught``: a handler may catch its errors."""

    node: ast.stmt
    assigned: list[str]
    names: list[str]
    scope: Any
    leaves: Sequence[ast.stmt]
    lists: Collection[str]
    over: Collection[str]
    caught: bool
    refused: str | None = None  # why it runs as Python
    ran: bool = False  # it has run natively
    dead: bool = False  # do not try again: nothing of it could be compiled

    def __post_init__(self) -> None:
        self._changed = frozenset(self.assigned)
        self._owners = only_for_attributes(self.node, self.names)
        self._by_types: dict[tuple, Compiled | None] = {}
        self._patterns: dict[tuple, tuple] = {}  # extents -> pattern, of recent calls
        self._known_patterns: dict[tuple, set] = {}  # types -> the patterns that have code
        self._compiled = 0  # number of type combinations compiled
        self._hot: Callable | None = None  # the fast path for calls like the last
        self._held: list[dict] = []
        self._lock = threads.lock()

    def __call__(self, variables: dict[str, Any]) -> tuple | None:
        """Runs the loop natively: the values of the assigned variables (:class:`Unset` for one without), and the
        number, from 1, of the statement that left the loop, or 0, or the error that did where a handler may catch it;
        None where it must run as Python."""
        if not LoopRan.observers:
            if self._hot is not None:
                found = self._hot(variables)
                if found is not Missed:
                    return found
            return None if self.dead else self._answer(variables)
        start = time.perf_counter()
        found = None if self.dead else self._answer(variables)
        events.report(LoopRan(self, None if found is None else time.perf_counter() - start))
        return found

    def _answer(self, variables: dict[str, Any]) -> tuple | None:
        for name in self.over:
            if type(variables.get(name)) is not np.ndarray:
                return None
        values = {}
        places: dict[str, tuple] = {}
        ints: list[int] = []  # loop-invariant ints
        key: list = []
        drawn: dict[int, int] = {}
        for name, value in self._given(variables):
            kind = type(value)
            if kind is np.ndarray:
                place = places[name] = _native.array_layout(value)
                if place[3] < _ALIGNED:
                    return None
                key += (name, value.dtype, len(place[0]), place[3])
            elif kind is int:
                if not -_LARGE < value < _LARGE:
                    return None
                key += (name, kind, -_SMALL < value < _SMALL)
                if name not in self._changed:
                    ints.append(value)
            elif kind is float or kind is bool or kind is complex or isinstance(value, np.generic):
                key += (name, kind)
            elif kind is str:
                key += (name, value)
            elif kind is tuple:
                key += (name, *map(type, value))
            elif kind is list and name in self.lists:
                key += (name, kind)
            elif kind is types.FunctionType:
                key += (name, value.__code__, id(value.__globals__), *map(_default, value.__defaults__ or ()))
            elif is_generator(value):  # each call may have a new one
                key += (name, kind, drawn.setdefault(id(value), len(drawn)))
            elif self.is_owner(name, value):
                key += (name, kind)
            else:
                key += (name, id(value))
            values[name] = value
        shared = _shared(places) if len(places) > 1 else ()
        sizes: Any = tuple([place[0][1 : len(place[0]) // 2 + 1] for place in places.values()]), tuple(ints)
        pattern = self._patterns.get(sizes)
        if pattern is None:
            pattern = self._pattern_of(*sizes)
        found = (*key, shared, pattern)
        compiled: Any = self._by_types.get(found, Unset)
        if compiled is not None and compiled is not Unset and not all(on.holds() for on in compiled.depends):
            self._drop(found)
            compiled = Unset
        if compiled is Unset:
            compiled = self._compile(found, values, shared, pattern)
        if compiled is None:
            return None
        if not shared:
            self._warm(compiled, values, variables, sizes)
        return self._run(compiled, values, places)

    def is_owner(self, name: str, value: Any) -> bool:
        """Whether a variable is a user's object of which the loop only reads attributes, which have variables of their
        own."""
        return name in self._owners and not isinstance(value, type) and has_attributes(value)

    def _warm(self, compiled: Compiled, values: dict, variables: dict, sizes: tuple) -> None:
        """Generates the fast path for calls like this one."""
        if not compiled.called:
            compiled.called, compiled.hot = True, hot_call(self, compiled, values, variables, _TOOLS)
        if compiled.hot is not None:
            compiled.hot.know(sizes)
            self._hot = compiled.hot.call

    def _given(self, variables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """The values of names at the loop's start: variables, scope entries and, as ``function.name``, the closure
        variables of nested functions."""
        for name in self.names:
            if "." in name:
                base, *attributes = name.split(".")
                value = attribute_data(variables.get(base, Unset), attributes)
                if value is not attribute_data:
                    yield name, value
                continue
            value = variables.get(name, Unset)
            if value is Unset:
                if name in self._changed:  # a local variable without a value yet
                    continue
                try:
                    value = self.scope(name)
                except LookupError:
                    continue
            yield name, value
            if type(value) is types.FunctionType and value.__closure__:
                for free, cell in zip(value.__code__.co_freevars, value.__closure__):
                    try:
                        yield f"{name}.{free}", cell.cell_contents
                    except ValueError:  # an empty cell
                        continue

    # ---- compiling

    def _pattern_of(self, extents: tuple, ints: tuple) -> tuple:
        """The pattern of extents and ints that the code is specialized to: per extent a number shared by equal ones and
        a lower bound, or (-1, 1) for extent 1; the same for ints that equal an extent, else None."""
        numbers: dict[int, int] = {}

        def about(n: int) -> tuple:
            least = 0 if n == 0 else 2 if n < _LARGE_EXTENT else _LARGE_EXTENT
            return (-1, 1) if n == 1 else (numbers.setdefault(n, len(numbers)), least)

        if len(self._patterns) > 256:
            self._patterns.clear()
        of_arrays = tuple([tuple(map(about, shape)) for shape in extents])
        found = of_arrays + tuple([(about(n),) if n in numbers and n >= _LARGE_EXTENT else () for n in ints])
        self._patterns[extents, ints] = found
        return found

    def _compile(self, key: tuple, values: dict[str, Any], shared: tuple, pattern: tuple | None) -> Compiled | None:
        with self._lock:
            if key in self._by_types:
                return self._by_types[key]
            patterns = self._known_patterns.setdefault(key[:-1], set())
            if pattern is not None and len(patterns) >= _MOST_PATTERNS:
                created = self._by_types[key] = self._compile((*key[:-1], None), values, shared, None)
                return created
            created = None
            patterns.add(pattern)
            self._compiled += 1
            if self._compiled <= _MOST_TYPES:
                try:
                    with deadline.compiling(True):
                        created = self._written(values, shared, pattern)
                except (NotOutlinable, CompileError) as why:
                    self.refused = str(why)
                except RecursionError:
                    self.refused = "an expression that is too deep"
                except Exception as error:  # an error of ours: fall back to Python
                    self.refused = f"an internal compiler error: {type(error).__name__}: {error}"
            self._by_types[key] = created
            held = {k: v for k, v in values.items() if type(v) is not np.ndarray and k not in self.lists}
            self._held.append(held)  # the key has ids: keep the objects alive
            self.dead = created is None and not any(self._by_types.values())
            return created

    def _drop(self, key: tuple) -> None:
        """Forgets code for which a global of a called function had another value."""
        with self._lock:
            for known in (key, (*key[:-1], None)):
                self._by_types.pop(known, None)
            self._known_patterns.pop(key[:-1], None)

    def _written(self, values: dict[str, Any], shared: tuple, pattern: tuple | None) -> Compiled:
        arrays = [name for name, value in values.items() if type(value) is np.ndarray]
        ints = [name for name, value in values.items() if type(value) is int and name not in self._changed]
        known = dict(zip([*arrays, *ints], pattern or ()))
        inputs: list[tuple[str, Any]] = []
        names: dict[str, Any] = {}
        for name, value in values.items():
            try:
                inputs.append((name, type_of(value)))
            except NotOutlinable:
                names[name] = value
        fixed = {name for name, value in values.items() if type(value) is int and name not in self._changed}
        kinds: dict[str, Any] = {}
        others: dict[str, NumberType] = {}
        roots: dict[str, frozenset] = {name: frozenset(group) for group in shared for name in group}
        for name in arrays:
            if not values[name].flags.writeable:
                roots[name] = roots.get(name, frozenset([name])) | {Copied(-1)}
        extents: dict[str, tuple] = {}
        for _ in range(12):
            small = {n for n in fixed if -_SMALL < values[n] < _SMALL}
            writer = Statements(names, self._changed & names.keys(), kinds, others, roots, extents, small, [self.node],
                                self.leaves, self.lists, self.scope.file, self.caught)  # fmt: skip
            try:
                outputs, words = _write(writer, self.node, inputs, self.assigned, known)
            except Retyped:
                continue
            if not writer.retyped:
                break
        else:
            raise NotOutlinable("types that do not converge")
        for extern in writer.externs:
            extern.variables = writer.code.arrays
        deadline.check()
        code = load.host_code(writer.code.text(), scalar_loops=True)
        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(code.address("loop"))
        before = sum(words_of(kind) for _, kind in inputs)
        memory = ctypes.c_int64 * (words + (_ROOM if writer.code.sites else 0))
        return Compiled(code, function, writer.code.errors, inputs, outputs, writer.appends, memory, words, before,
                        list(writer.depends.values()), writer.externs,
                        writer.code.addresses, _table(writer.code.addresses, {}))  # fmt: skip

    # ---- calling

    def _run(self, compiled: Compiled, values: dict[str, Any], places: dict[str, tuple]) -> tuple:
        words = [*callbacks.FIRST_WORDS]
        for name, kind in compiled.inputs:
            if name in places:
                words += places[name][0]
            else:
                pack(words, values[name], kind)
        memory = compiled.memory(*words)
        start = ctypes.addressof(memory)
        memory[callbacks.ARENA], memory[callbacks.ARENA + 1] = (
            start + 8 * compiled.words + 63 & -64,
            start + 8 * len(memory),
        )
        buffers = callbacks.running.buffers = {}
        log: list = []
        table, externs = compiled.table, compiled.externs
        if compiled.draws:
            table = _table(compiled.addresses, values)
            externs = [extern.of(values) for extern in externs]
        memory[callbacks.TABLE] = ctypes.addressof(table)
        callbacks.running.log, callbacks.running.externs, callbacks.running.kept = log, externs, {}
        status = compiled.function(start)
        return self.finish(compiled, values, places, memory, status, buffers, log)

    def finish(
        self, compiled: Compiled, values: dict, places: dict, memory: Any, status: int, buffers: dict, log: list
    ) -> tuple:
        """The result of a call, after the code returned ``status``."""
        words = memory[: compiled.words]
        buffers = {ctypes.addressof(memory): np.frombuffer(memory, np.uint8)} | buffers
        arrays = {places[name][0]: values[name] for name in reversed(places)}
        if log:
            log[-1][1] = callbacks.filled(log[-1][0], words[3])
            _append(log, compiled.appends, values, buffers, arrays)
        left: Any = words[-1]
        if status:
            left = compiled.errors[status - 1](words[0], words[1])
            if not self.caught:
                raise left from None
        self.ran = True
        out = []
        for name, kind, at, other in compiled.outputs:
            if kind is None or not words[at]:
                out.append(values.get(name, Unset))
            elif other is not None and words[at + 1 + words_of(kind)]:
                out.append(as_type(number(words, at + 1, kind), other))
            elif kind.__class__ is NumberType:
                out.append(number(words, at + 1, kind))
            else:
                out.append(unpack(words, at + 1, kind, buffers, arrays)[0])
        return *out, left


def _table(addresses: list[int | str], values: dict) -> Any:
    """The table of addresses of a call with these variables."""
    found = [(state_of(values[v]) if v in values else 0) if isinstance(v, str) else v for v in addresses]
    return (ctypes.c_int64 * len(found))(*found)


def _default(value: Any) -> tuple:
    """A default of a called function, as part of a key."""
    return type(value), repr(value) if type(value) in (bool, int, float, complex) else id(value)


def _append(log: list, appends: list[tuple[str, Any]], values: dict, buffers: dict, arrays: dict) -> None:
    """Appends the logged values to the lists."""
    if len(appends) == 1 and isinstance(appends[0][1], NumberType) and appends[0][1].dtype is dt.f64:
        ((name, kind),) = appends
        for chunk, count in log:
            numbers = chunk[1:count:2].view(np.float64)
            values[name].extend(numbers.tolist() if kind.python else list(numbers))
        return
    lists = [values[name].append for name, _ in appends]
    for chunk, count in log:
        words, at = chunk[:count].tolist(), 0
        while at < count:
            number = words[at]
            found, at = unpack(words, at + 1, appends[number][1], buffers, arrays)
            lists[number](found)


def _write(
    writer: Statements, node: ast.stmt, inputs: list, assigned: list[str], known: dict[str, tuple]
) -> tuple[list, int]:
    """Emits the whole function; the output variables, and the number of words of its argument block."""
    e = writer.code
    at = callbacks.HEADER
    given = []
    for name, kind in inputs:
        found, at = _incoming(writer, name, kind, at, known.get(name, ()))
        given.append((name, found))
    for name, found in given:
        writer.assign(name, found)
    for name, _ in given:
        e.store(e.const(False, dt.bool_), writer.variables[name].assigned)
    writer.body([node])
    left, end = writer.left
    e.go(end)
    e.place(end)
    flag = lambda slot, at: e.store(e.cast(e.load(slot, dt.bool_), dt.i64), e.offset("%args", 8 * at))  # noqa: E731
    outputs: list[tuple[str, Any, int, Any]] = []
    for name in assigned:
        variable = writer.variables.get(name)
        if variable is None:
            outputs.append((name, None, 0, None))
            continue
        outputs.append((name, variable.type, at, variable.other and variable.other[0]))
        flag(variable.assigned, at)
        at = writer.note(writer.get(name, variable), "%args", 8 * (at + 1)) // 8
        if variable.other is not None:
            flag(variable.other[1], at)
            at += 1
    e.store(e.load(left, dt.i64), e.offset("%args", 8 * at))
    return outputs, at + 1


def _incoming(writer: Statements, name: str, kind: Any, at: int, known: tuple = ()) -> tuple[Any, int]:
    """Emits the load of a variable at the loop's start; ``known``: what is known of an array's extents or of an int."""
    e = writer.code
    word = lambda k, dtype=dt.i64: e.load(e.offset("%args", 8 * k), dtype)  # noqa: E731
    if isinstance(kind, NumberType):
        if kind.dtype is dt.bool_:
            return Number(e.cmp("ne", word(at), 0), kind), at + 1
        if known:
            ((number, least),) = known
            return Number(e.extent(number, least, at), kind), at + 1
        return Number(word(at, kind.dtype), kind), at + words_of(kind)
    if isinstance(kind, TupleType):
        items = []
        for item in kind.items:
            found, at = _incoming(writer, name, item, at)
            items.append(found)
        return Tuple(items), at
    pointer = e.load_pointer(e.offset("%args", 8 * at))
    sizes = [word(at + 1 + k) for k in range(2 * kind.rank)]
    for axis, (number, least) in enumerate(known):
        sizes[axis] = e.const(1, dt.i64) if number < 0 else e.extent(number, least, at + 1 + axis)
    if kind.inner:
        sizes[-1] = e.const(kind.dtype.bytes, dt.i64)
    shape, strides = sizes[: kind.rank], sizes[kind.rank :]
    roots = writer.roots.get(name, frozenset([name]))
    array = Array(kind.dtype, pointer, shape, strides, kind.inner, roots, e.const(0, dt.i64))
    return array, at + words_of(kind)


def _shared(places: dict[str, tuple]) -> tuple:
    """Groups of names of arrays that may overlap."""
    arrays = sorted([(low, high, name) for name, (_, low, high, _) in places.items() if low < high])
    end = 0
    for low, high, _ in arrays:
        if low < end:
            break
        end = high
    else:
        return ()
    groups, group, end = [], [arrays[0][2]], arrays[0][1]
    for low, high, name in arrays[1:]:
        if low < end:
            group.append(name)
        else:
            groups.append(group)
            group = [name]
        end = max(end, high)
    groups.append(group)
    return tuple(tuple(sorted(g)) for g in groups if len(g) > 1)


# The functions of this module that a hot call uses.
_TOOLS = {
    "header": callbacks.FIRST_WORDS, "arena": callbacks.ARENA, "table": callbacks.TABLE, "small": _SMALL,
    "unset": Unset, "shared": _shared, "thread": callbacks.running,
    "number": number, "unpack": unpack, "as_type": as_type, "attribute_data": attribute_data,
}  # fmt: skip
