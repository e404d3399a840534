"""The variables of a loop: their types, which widen until they hold all assigned values, and their slots."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from mlirfuse.frontend.numpy.loops.alternatives import flag_of
from mlirfuse.frontend.numpy.loops.arrays import SIZE_BITS
from mlirfuse.frontend.numpy.loops.code import MOST_ARRAYS, Code
from mlirfuse.frontend.numpy.loops.externs import Extern
from mlirfuse.frontend.numpy.loops.values import (
    PY_INT,
    PYTHONS,
    Array,
    ArrayType,
    Bytes,
    NotOutlinable,
    Number,
    NumberType,
    Site,
    Slots,
    Static,
    Tuple,
    TupleType,
    UnsupportedInt,
    joined,
    kind_of,
    require,
)
from mlirfuse.frontend.numpy.syntax import Scope
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Val


class Retyped(Exception):
    """A variable's type has widened: emit the code again with it."""


class Dependency(NamedTuple):
    """A global of an inlined function that the code holds for: another function, or a number."""

    namespace: dict[str, Any]
    name: str
    value: Any


@dataclass(eq=False)
class Variables:
    """Declares variables, and assigns to and reads them; and the state of a loop's translation, which the classes that
    derive from this one share. The variables' types, ``others`` (the alternative types of numbers), ``roots``
    (the memory that array variables may lie in) and ``extents`` (those known at the loop's start), all by full names,
    grow from one pass to the next."""

    names: dict[str, Any]  # objects that the loop refers to
    objects: Collection[str]  # variables that it assigns and that hold one of these objects at first
    types: dict[str, Any]
    others: dict[str, NumberType]
    roots: dict[str, frozenset]
    extents: dict[str, tuple]
    small: set[str]  # Python ints below 2 ** 40
    loop: list[ast.stmt]  # the whole statement
    leaves: Sequence[ast.stmt]  # statements that leave the function
    lists: Collection[str]  # names of lists that it appends to
    file: str
    caught: bool  # an error leaves the variables' values, too
    code: Code = field(default_factory=Code)
    variables: dict[str, Slots] = field(default_factory=dict)
    definite: set[str] | None = field(default_factory=set)  # variables assigned on all paths; None: unreachable
    bounded: dict[str, int] = field(default_factory=dict)  # counting variables, with a bound of their bits
    unchecked: frozenset = frozenset()  # subscripts (nodes and axes) that are known to be in range
    retyped: bool = False  # something was learned that the code emitted so far does not use
    jumps: list[tuple[str, str]] = field(default_factory=list)  # targets of break and continue
    nesting: int = 0  # branches and loops of the function around the statement
    sites: int = 0  # allocation sites so far
    appends: list[tuple[str, Any]] = field(default_factory=list)  # for each append its list, and the value's type
    calls: dict[tuple, Any] = field(default_factory=dict)  # the values of the statement's calls, which must run once
    externs: list[Extern] = field(default_factory=list)
    extern_sites: set[int] = field(default_factory=set)  # of arrays that extern ops allocate
    prefix: str = ""  # of the names of an inlined function's variables
    inline: list[FunctionType] = field(default_factory=list)
    result: tuple[str, str] | None = None  # of the inlined function: its variable ("": none) and its end block
    scopes: list[Names] = field(default_factory=list)
    depends: dict[tuple, Dependency] = field(default_factory=dict)  # globals of inlined functions, as the code has them
    statics: dict[str, Static | Bytes] = field(default_factory=dict)  # variables, and parameters, that are objects

    def __post_init__(self) -> None:
        e = self.code
        self.left = (e.slot("i64"), e.block())  # the leaving statement's number, the exit block
        e.entry.append(f"  llvm.store {e.zero}, {self.left[0]} : i64, !llvm.ptr")
        if self.caught:
            e.error_exit = self.left[1]

    def declare(self, name: str, kind: Any) -> Slots:
        found = self.variables.get(name)
        if found is None:
            found = self.variables[name] = self._slots(kind)
            if name in self.others:
                found.other = (self.others[name], self.code.slot("i1"))
            false = self.code.const(False, dt.bool_)
            self.code.entry.append(f"  llvm.store {false}, {found.assigned} : i1, !llvm.ptr")
        return found

    def _slots(self, kind: Any) -> Slots:
        e = self.code
        if isinstance(kind, NumberType):
            return Slots(kind, e.slot("i1"), [e.slot(kind.dtype.signless)])
        if isinstance(kind, ArrayType):
            require(e.arrays < MOST_ARRAYS, "too many arrays")
            slots = [e.slot("!llvm.ptr"), *(e.slot("i64") for _ in range(2 * kind.rank))]
            return Slots(kind, e.slot("i1"), slots, e.array_base())
        return Slots(kind, e.slot("i1"), [self._slots(item) for item in kind.items])

    def assign(self, name: str, found: Any) -> None:
        """Assigns to a variable. Raises :class:`Retyped` where that widens its type."""
        name = self.prefix + name
        if name in self.statics:
            require(not self.nesting, f"{name} is an object on some paths only")
            del self.statics[name]
        found = self.stored(found)
        require(not isinstance(found, Static), f"{name} is assigned an object")
        kind = kind_of(found)
        known = self.types.get(name)
        wanted = kind if known is None else joined(known, kind)
        self._learn_other(name, found, known, wanted)
        roots = _roots(found) | self.roots.get(name, frozenset())
        extents = self._extents(name, found)
        if wanted != known or roots != self.roots.get(name, frozenset()) or extents != self.extents.get(name, ()):
            self.types[name], self.roots[name], self.extents[name] = wanted, roots, extents
            self.retyped = self.retyped or name in self.variables
            if name in self.variables and self.variables[name].type != wanted:
                raise Retyped
        variable = self.declare(name, wanted)
        self.put(variable, found)
        self.code.store(self.code.const(True, dt.bool_), variable.assigned)
        self.bounded.pop(name, None)
        if self.definite is not None:
            self.definite.add(name)

    def _extents(self, name: str, found: Any) -> tuple:
        """The common extents of all arrays assigned to a variable, or the bounds of all its ints; None for an unknown
        one."""
        if isinstance(found, Array):
            given = tuple(map(self.code.size_of, found.shape))
        elif isinstance(found, Number) and found.type == PY_INT and found.other is None:
            given = (self.code.size_of(found.val),)
        else:
            given = ()
            if name not in self.extents:
                return given
        before = self.extents.get(name, given)
        return tuple(a if a == b else None for a, b in zip(given, before)) if len(given) == len(before) else ()

    def _learn_other(self, name: str, found: Any, known: Any, wanted: Any) -> None:
        """Records the alternative type of a number that is assigned different types. Raises :class:`Retyped` for a new
        one."""
        if not isinstance(wanted, NumberType):
            return
        kinds = {found.type, known, self.others.get(name), found.other[0] if found.other else None} - {wanted, None}
        require(len(kinds) <= 1, "values of three types are assigned to a variable")
        if kinds and name not in self.others:
            (self.others[name],) = kinds
            if name in self.variables:
                self.types[name] = wanted
                raise Retyped

    def users(self, site: int) -> list[int]:
        """The numbers of the array variables that may use the memory of an allocation site."""
        using = [name for name, roots in self.roots.items() if Site(site) in roots and name in self.variables]
        return [number for name in using for number in _numbers(self.variables[name])]

    def put(self, variable: Slots, found: Any) -> None:
        e = self.code
        if isinstance(variable.type, NumberType):
            kept = e.cast(found.val, variable.type.dtype)
            if found.type == PY_INT and found.bits > _EXACT.get(variable.type.dtype, 64):
                e.fail_if(e.cmp("ne", e.cast(kept, dt.i64), found.val), _rounded())
            e.store(kept, variable.slots[0])
            if variable.other is not None:
                e.store(flag_of(e, found, variable.type)[1], variable.other[1])
        elif isinstance(variable.type, ArrayType):
            e.store_pointer(found.pointer, variable.slots[0])
            for val, slot in zip([*found.shape, *found.strides], variable.slots[1:]):
                e.store(val, slot)
            e.store(found.base, variable.base)
        else:
            for slots, item in zip(variable.slots, found.items):
                self.put(slots, item)

    def get(self, name: str, variable: Slots) -> Any:
        e = self.code
        if isinstance(variable.type, NumberType):
            bits = self.bounded.get(name, SIZE_BITS if name in self.small else 64)
            other = variable.other and (variable.other[0], e.load(variable.other[1], dt.bool_))
            (size,) = self.extents.get(name) or (None,)
            if size is not None and other is None and variable.type == PY_INT:
                return Number(e.sized(size), variable.type, bits)
            return Number(e.load(variable.slots[0], variable.type.dtype), variable.type, bits, other=other)
        if isinstance(variable.type, ArrayType):
            kind = variable.type
            sizes = [e.load(slot, dt.i64) for slot in variable.slots[1:]]
            if kind.inner:
                sizes[-1] = e.const(kind.dtype.bytes, dt.i64)
            base = e.load(variable.base, dt.i64)
            for axis, size in enumerate(self.extents.get(name, ())):
                if size is not None:
                    sizes[axis] = e.sized(size)
            roots = self.roots.get(name, frozenset([name]))
            pointer = e.load_pointer(variable.slots[0])
            return Array(kind.dtype, pointer, sizes[: kind.rank], sizes[kind.rank :], kind.inner, roots, base, name)
        return Tuple([self.get(name, slots) for slots in variable.slots])

    if TYPE_CHECKING:  # methods of one part that parts before it call

        def value(self, node: ast.expr) -> Any: ...
        def array(self, node: ast.expr | Any) -> Array: ...
        def stored(self, found: Any) -> Any: ...
        def integer(self, found: Any) -> Val: ...
        def constant(self, value: int | float | bool | complex) -> Number: ...
        def fresh_site(self) -> int: ...
        def write_back(self, place: Any, found: Any) -> None: ...
        def read(self, name: str) -> Any: ...
        def inlined(
            self, function: FunctionType, node: ast.Call, args: list, keywords: dict, returns: bool = True
        ) -> Any: ...


_EXACT = {dt.f16: 11, dt.f32: 24, dt.f64: 53, dt.c64: 24, dt.c128: 53}  # bits of an int that are never rounded


def _rounded() -> UnsupportedInt:
    return UnsupportedInt("a variable in a compiled loop is a float and, elsewhere, an int that a float does not hold")


def _numbers(variable: Slots) -> list[int]:
    """The numbers of the arrays in a variable."""
    if isinstance(variable.type, TupleType):
        return [number for item in variable.slots for number in _numbers(item)]
    return [int(variable.base.removeprefix("%base"))] if variable.base else []


def _roots(found: Any) -> frozenset:
    if isinstance(found, Array):
        return found.roots
    return frozenset().union(*map(_roots, found.items)) if isinstance(found, Tuple) else frozenset()


class Names(Scope):
    """The names in an inlined function: modules, functions and numbers. ``depends`` receives those that may change
    between calls."""

    def __init__(self, function: FunctionType, depends: dict[tuple, Dependency]):
        super().__init__(function)
        self.function, self._depends = function, depends

    def __contains__(self, name: str) -> bool:
        return name in self.globals or name in self.builtins

    def __getitem__(self, name: str) -> Any:
        if name not in self.globals:
            return self.builtins[name]
        found = self.globals[name]
        users = isinstance(found, FunctionType) and not str(found.__module__).startswith("numpy")
        if users or type(found) in PYTHONS:
            self._depends[id(self.globals), name] = Dependency(self.globals, name, found)
        elif not callable(found) and not isinstance(found, ModuleType):
            raise NotOutlinable(f"the global {name} of a called function")
        return found
