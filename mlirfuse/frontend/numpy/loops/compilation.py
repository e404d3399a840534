"""Compiles a loop for what it is called with: the function of its statements between loads of the variables from the
argument block and stores back to it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse.core import deadline
from mlirfuse.frontend.numpy.loops import words
from mlirfuse.frontend.numpy.loops.calls import SMALL, Given
from mlirfuse.frontend.numpy.loops.externs import Extern
from mlirfuse.frontend.numpy.loops.statements import Statements
from mlirfuse.frontend.numpy.loops.values import (
    Array,
    ArrayType,
    Bytes,
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
from mlirfuse.ir import dtypes as dt
from mlirfuse.runtime import load

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.loops.kernel import Loop

_ROOM = 512  # words at the end of the argument block, an arena for small arrays
_BYTES = ArrayType(dt.u8, 1, True)  # the type of the array of a bytes object
_MOST_PASSES = 12  # until the variables' types are found


@dataclass
class Compiled:
    """A loop's code for some variable types. ``inputs``: names and types of the variables it reads; ``outputs``: names
    and types of those it assigns, None for an unknown type, with the alternative types of numbers; ``appends``: for
    each append the list and the type of the value."""

    code: Any
    function: Callable
    errors: list
    inputs: list[tuple[str, Any]]
    outputs: list[tuple[str, Any, Any]]
    appends: list[tuple[str, Any]]
    memory: type
    words: int  # without the arena for small arrays
    first_output: int  # the number of its word
    depends: list[Dependency]
    externs: list[Extern]
    addresses: list[int | str]  # that the code uses; of a generator's state its name

    @property
    def draws(self) -> bool:
        """Whether it draws from generators that are variables."""
        return any(isinstance(v, str) for v in self.addresses) or any(extern.generator for extern in self.externs)


def compiled(loop: Loop, given: Given, pattern: tuple | None) -> Compiled:
    """The code for these values, and for arrays and ints that match the ``pattern`` of sizes (None: for any). Raises
    NotOutlinable and CompileError."""
    values = given.values
    known = dict(zip([*given.layouts, *given.ints], pattern or ()))
    inputs: list[tuple[str, Any]] = []
    names: dict[str, Any] = {}
    for name, value in values.items():
        try:
            is_bytes = type(value) is bytes and name in given.layouts
            inputs.append((name, _BYTES if is_bytes else type_of(value)))
        except NotOutlinable:
            names[name] = value
    roots: dict[str, frozenset] = {path: frozenset(group) for group in given.shared for path in group}
    for name, value in values.items():
        if type(value) is np.ndarray and not value.flags.writeable:
            roots[name] = roots.get(name, frozenset([name])) | {Copied(-1)}
    small = {name for name in given.ints if -SMALL < values[name] < SMALL}
    learned: tuple[dict, dict, dict, dict] = {}, {}, roots, {}
    for _ in range(_MOST_PASSES):
        writer = Statements(names, loop.changed & names.keys(), *learned, small, [loop.node], loop.leaves, loop.lists,
                            loop.scope.file, loop.caught)  # fmt: skip
        try:
            outputs, end = _write(writer, loop, inputs, known)
        except Retyped:
            continue
        if not writer.retyped:
            break
    else:
        raise NotOutlinable("types that do not converge")
    e = writer.code
    for extern in writer.externs:
        extern.variables = e.arrays
    deadline.check()
    code = load.host_code(e.text(writer.users), scalar_loops=True)
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(code.address("loop"))
    memory = ctypes.c_int64 * (end + (_ROOM if e.sites else 0))
    first_output = words.HEADER + sum(words_of(kind) for _, kind in inputs)
    return Compiled(code, function, e.errors, inputs, outputs, writer.appends, memory, end, first_output,
                    list(writer.depends.values()), writer.externs, e.addresses)  # fmt: skip


def _write(writer: Statements, loop: Loop, inputs: list, known: dict[str, tuple]) -> tuple[list, int]:
    """Emits the whole function; the output variables, and the number of words of its argument block."""
    e, at = writer.code, words.HEADER
    given = []
    for name, kind in inputs:
        found, at = _incoming(writer, name, kind, at, known)
        given.append((name, found))
    for name, found in given:
        if isinstance(found, Bytes):
            writer.statics[name] = found
        else:
            writer.assign(name, found)
    for name in [name for name, _ in given if name in writer.variables]:
        e.store(e.const(False, dt.bool_), writer.variables[name].assigned)
    writer.body([loop.node])
    left, end = writer.left
    e.go(end)
    e.place(end)
    flag = lambda slot, at: e.store(e.cast(e.load(slot, dt.bool_), dt.i64), e.word(at))  # noqa: E731
    outputs: list[tuple[str, Any, Any]] = []
    for name in loop.assigned:
        variable = writer.variables.get(name)
        if variable is None:
            outputs.append((name, None, None))
            continue
        outputs.append((name, variable.type, variable.other and variable.other[0]))
        flag(variable.assigned, at)
        at = e.note(writer.get(name, variable), "%args", 8 * (at + 1)) // 8
        if variable.other is not None:
            flag(variable.other[1], at)
            at += 1
    e.store(e.load(left, dt.i64), e.word(at))
    return outputs, at + 1


def _incoming(writer: Statements, path: str, kind: Any, at: int, known: dict[str, tuple]) -> tuple[Any, int]:
    """Emits the load of a value from word ``at`` on; where its words end. ``known``: by path, what is known of an
    array's extents, or of an int."""
    e = writer.code
    word = lambda k, dtype=dt.i64: e.load(e.word(k), dtype)  # noqa: E731
    if isinstance(kind, NumberType):
        if kind.dtype is dt.bool_:
            return Number(e.cmp("ne", word(at), 0), kind), at + 1
        if known.get(path):
            ((number, least),) = known[path]
            return Number(e.extent(number, least, at), kind), at + 1
        return Number(word(at, kind.dtype), kind), at + words_of(kind)
    if isinstance(kind, TupleType):
        items = []
        for k, item in enumerate(kind.items):
            found, at = _incoming(writer, f"{path}[{k}]", item, at, known)
            items.append(found)
        return Tuple(items), at
    pointer = e.load_pointer(e.word(at))
    sizes = [word(at + 1 + k) for k in range(2 * kind.rank)]
    for axis, (number, least) in enumerate(known.get(path, ())):
        sizes[axis] = e.one if number < 0 else e.extent(number, least, at + 1 + axis)
    if kind.inner:
        sizes[-1] = e.const(kind.dtype.bytes, dt.i64)
    shape, strides = sizes[: kind.rank], sizes[kind.rank :]
    roots = writer.roots.get(path, frozenset([path]))
    array = Array(kind.dtype, pointer, shape, strides, kind.inner, roots, e.zero)
    return Bytes(array) if kind is _BYTES else array, at + words_of(kind)
