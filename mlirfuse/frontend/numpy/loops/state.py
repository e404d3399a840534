"""The state of the translation of one loop, which the classes of its parts share."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any

from mlirfuse.frontend.numpy.loops.code import Code
from mlirfuse.frontend.numpy.loops.externs import Extern
from mlirfuse.frontend.numpy.loops.values import Array, Number, NumberType, Slots, Static, Tuple
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Val

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.loops.variables import Dependency


@dataclass(eq=False)
class State:
    """What is known of a loop so far. The variables' types, ``others`` (the alternative types of numbers), ``roots``
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
    scopes: list[dict[str, Any]] = field(default_factory=list)
    depends: dict[tuple, Dependency] = field(default_factory=dict)  # globals of inlined functions, as the code has them
    statics: dict[str, Static] = field(default_factory=dict)  # parameters of inlined functions that are objects

    def __post_init__(self) -> None:
        e = self.code
        self.left = (e.slot("i64"), e.block())  # the leaving statement's number, the exit block
        e.entry.append(f"  llvm.store {e.const(0, dt.i64)}, {self.left[0]} : i64, !llvm.ptr")
        if self.caught:
            e.error_exit = self.left[1]

    if TYPE_CHECKING:  # methods of one part that parts before it call

        def value(self, node: ast.expr) -> Any: ...
        def array(self, node: ast.expr | Any) -> Array: ...
        def array_of(self, found: Tuple) -> Array: ...
        def integer(self, found: Any) -> Val: ...
        def constant(self, value: int | float | bool | complex) -> Number: ...
        def fresh_site(self) -> int: ...
        def read(self, name: str) -> Any: ...
        def assign(self, name: str, found: Any) -> None: ...
        def write_back(self, place: Any, found: Any) -> None: ...
        def note(self, found: Any, place: str, at: int) -> int: ...
        def body(self, statements: list[ast.stmt]) -> None: ...
        def trip(self, statements: list[ast.stmt], again: str, after: str) -> None: ...
        def inlined(
            self, function: FunctionType, node: ast.Call, args: list, keywords: dict, returns: bool = True
        ) -> Any: ...
