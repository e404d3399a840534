"""Emits the MLIR text of a loop's function: blocks, slots for variables, memory and errors, on top of the arithmetic of
:class:`~mlirfuse.lowering.emitter.Emitter`.

The function is ``loop(%args: !llvm.ptr) -> i64``. Variables live in slots (``llvm.alloca``), which LLVM promotes to
registers. It returns 0, or the number of an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import Any, NamedTuple

from mlirfuse.core.errors import located
from mlirfuse.frontend.numpy.loops import words
from mlirfuse.frontend.numpy.loops.callbacks import KEEP
from mlirfuse.frontend.numpy.loops.complex_numbers import ComplexEmitter, ComplexParts, parts
from mlirfuse.frontend.numpy.loops.values import Array, NotOutlinable, Number, Tuple, words_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.lowering import llvm
from mlirfuse.lowering.emitter import Val

MOST_LINES = 60_000  # of one loop's text
MOST_ARRAYS = 400  # variables that are arrays

# Attributes of a call that accesses no memory of arrays.
_OF_ARGUMENTS = (
    "{memory_effects = #llvm.memory_effects<other = none, argMem = readwrite, inaccessibleMem = readwrite, "
    "errnoMem = none, targetMem0 = none, targetMem1 = none>}"
)
_UNOPTIMIZED = "{loop_annotation = #llvm.loop_annotation<disableNonforced = true>}"


class Size(NamedTuple):
    """A count: the symbol of an extent at the loop's start ("" for none) plus a number."""

    symbol: str
    added: int


class Code(ComplexEmitter):
    """The code of one function. ``errors``: for each error number from 1 on, a function that builds the exception from
    two ints."""

    def __init__(self) -> None:
        super().__init__("cpu", llvm.host_processor().features)
        self.errors: list[Callable[[int, int], Exception]] = []
        self.where: tuple[str, int] | None = None  # the user's statement that is being compiled
        self.sites = 0  # number of allocation sites
        self.arrays = 0  # number of variables that are arrays
        self.addresses: list[int | str] = []  # of functions and memory that the code uses, which differ in each process
        self.error_exit = "^exit"  # the block that an error leaves to
        self.rare = False  # the code emitted now runs rarely: LLVM should not optimize its loops
        self._callbacks: set[str] = set()
        self._slots = 0
        self._blocks = 0
        self._sizes: dict[str, Size] = {}  # by name: loop-invariant counts
        self._least: dict[str, int] = {}  # by a symbol's name: its lower bound
        self._created: dict[tuple, Val] = {}
        self.one, self.zero = self.const(1, dt.i64), self.const(0, dt.i64)
        self.entry += [
            f"  %result = llvm.alloca {self.one} x i64 : (i64) -> !llvm.ptr",
            f"  llvm.store {self.zero}, %result : i64, !llvm.ptr",
        ]

    # ---- blocks

    def line(self, text: str) -> None:
        if len(self.lines) > MOST_LINES:
            raise NotOutlinable("the loop's code is too long")
        super().line(text)

    def block(self) -> str:
        """A new block's name."""
        self._blocks += 1
        return f"^bb{self._blocks}"

    def place(self, block: str) -> None:
        """Starts emitting ``block``; code before it does not fall through."""
        self.line(f"{block}:")

    def go(self, block: str) -> None:
        self.line(f"cf.br {block}")

    def again(self, block: str, *carried: Val) -> None:
        """Branches back to a loop's head."""
        values = f"({', '.join(v.name for v in carried)} : {', '.join(v.type for v in carried)})" if carried else ""
        self.line(f"llvm.br {block}{values} {_UNOPTIMIZED}" if self.rare else f"cf.br {block}{values}")

    def fork(self, condition: Val, then: str, otherwise: str) -> None:
        self.line(f"cf.cond_br {condition}, {then}, {otherwise}")

    def branch(self, condition: Val, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Emits an if-else."""
        yes, no, after = self.block(), self.block(), self.block()
        self.fork(condition, yes, no if otherwise else after)
        self.place(yes)
        then()
        self.go(after)
        if otherwise:
            self.place(no)
            otherwise()
            self.go(after)
        self.place(after)

    # ---- errors

    def fail_if(self, condition: Val, error: Exception | Callable[[int, int], Exception], *numbers: Val) -> None:
        """Returns an error where ``condition`` holds; a function that makes it gets the run-time values of two
        numbers."""
        self.errors.append(functools.partial(_at, error, self.where))
        code = self.const(len(self.errors), dt.i64)
        bad, good = self.block(), self.block()
        self.fork(condition, bad, good)
        self.place(bad)
        for k, number in enumerate(numbers):
            self.store(self.cast(number, dt.i64), self.word(k))
        self.line(f"llvm.store {code}, %result : i64, !llvm.ptr")
        self.go(self.error_exit)
        self.place(good)

    # ---- memory

    def slot(self, type_: str) -> str:
        """A stack slot for a variable, allocated at the function's entry."""
        self._slots += 1
        if type_.startswith("complex<"):
            type_ = f"!llvm.array<2 x {type_[8:-1]}>"
        name = f"%slot{self._slots}"
        self.entry.append(f"  {name} = llvm.alloca {self.one} x {type_} : (i64) -> !llvm.ptr")
        return name

    def slot_with(self, val: Val) -> str:
        """A slot that holds a value."""
        slot = self.slot(val.dtype.signless)
        self.store(val, slot)
        return slot

    def offset(self, pointer: str, by: int | Val) -> str:
        """``pointer`` plus a number of bytes."""
        name = self.fresh()
        if isinstance(by, int):
            self.line(f"{name} = llvm.getelementptr {pointer}[{by}] : (!llvm.ptr) -> !llvm.ptr, i8")
        else:
            self.line(f"{name} = llvm.getelementptr inbounds {pointer}[{by}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
        return name

    def word(self, number: int) -> str:
        """A pointer to a word of the function's argument block."""
        return self.offset("%args", 8 * number)

    def _given(self, name: str, word: int, type_: str) -> None:
        """Loads a word of the argument block at the function's entry, as ``name``."""
        self.entry += [
            f"  {name}.at = llvm.getelementptr %args[{8 * word}] : (!llvm.ptr) -> !llvm.ptr, i8",
            f"  {name} = llvm.load {name}.at : !llvm.ptr -> {type_}",
        ]

    def callback(self, number: int) -> str:
        """A pointer to the function whose address is in a word of the argument block."""
        name = f"%callback{number}"
        if name not in self._callbacks:
            self._callbacks.add(name)
            self._given(name, number, "!llvm.ptr")
        return name

    def called(self, number: int, *operands: Val | str, attributes: str = "") -> Val:
        """What the function whose address is in a word of the argument block returns for numbers and pointers."""
        types = ", ".join(v.type if isinstance(v, Val) else "!llvm.ptr" for v in operands)
        given = f"{self.callback(number)}({', '.join(map(str, operands))})"
        return self.op(f"llvm.call {given} {attributes} : !llvm.ptr, ({types}) -> i64", dt.i64)

    def load(self, pointer: str, dtype: DType, memory: bool = False) -> Val:
        """The value at ``pointer``: in a slot or, with ``memory``, in an array, where bools are bytes."""
        if dtype.kind == "c":
            part = dtype.real
            return parts(self.load(pointer, part), self.load(self.offset(pointer, part.bytes), part))
        if memory and dtype is dt.bool_:
            byte = self.op(f"llvm.load {pointer} : !llvm.ptr -> i8", dt.u8)
            return self.cmp("ne", byte, 0)
        return self.op(f"llvm.load {pointer} : !llvm.ptr -> {dtype.signless}", dtype)

    def store(self, val: Val, pointer: str, memory: bool = False) -> None:
        if isinstance(val, ComplexParts):
            self.store(val.re, pointer)
            self.store(val.im, self.offset(pointer, val.re.dtype.bytes))
            return
        if memory and val.dtype is dt.bool_:
            val = self.cast(val, dt.u8)
        self.line(f"llvm.store {val}, {pointer} : {val.type}, !llvm.ptr")

    def load_pointer(self, pointer: str) -> str:
        name = self.fresh()
        self.line(f"{name} = llvm.load {pointer} : !llvm.ptr -> !llvm.ptr")
        return name

    def store_pointer(self, value: str, pointer: str) -> None:
        self.line(f"llvm.store {value}, {pointer} : !llvm.ptr, !llvm.ptr")

    def allocate(self, site: int, count: Val, dtype: DType) -> tuple[Val, str]:
        """Memory for ``count`` elements that no variable uses: its address and a pointer to it."""
        self._declare(site)
        size, number = self.count("muli", count, dtype.bytes), self.const(site, dt.i64)
        given = (f"%site{site}", "%bases", Val("%base_count", dt.i64), size, number, self.word(words.ALLOCATOR))
        address = self.called(words.ALLOCATE, *given, attributes=_OF_ARGUMENTS)
        self.lines[-1] = _Allocation(self.lines[-1], site, size.name, address.name)
        self.fail_if(self.cmp("eq", address, 0), MemoryError("no memory for an array in a compiled loop"))
        return address, self.pointer(address)

    def _declare(self, site: int) -> None:
        self.sites = max(self.sites, site + 1)

    def hold(self, site: int, address: Val) -> None:
        """Keeps the buffer at ``address``, if it was allocated at ``site``, unchanged until the loop's end."""
        self._declare(site)
        called = self.callback(words.HOLD)
        self.line(f"llvm.call {called}(%site{site}, {address}) {_OF_ARGUMENTS} : !llvm.ptr, (!llvm.ptr, i64) -> ()")

    def log(self, count: int) -> str:
        """A pointer to ``count`` new words at the end of the log."""
        wanted = self.count("addi", self.load(self.word(words.LOG), dt.i64), 8 * count)

        def more() -> None:
            created = self.called(words.LOG_MORE, "%args", self.const(8 * count, dt.i64))
            self.fail_if(self.cmp("eq", created, 0), MemoryError("no memory for a list in a compiled loop"))

        self.branch(self.cmp("gt", wanted, self.load(self.word(words.LOG_END), dt.i64)), more)
        at = self.load(self.word(words.LOG), dt.i64)
        self.store(self.count("addi", at, 8 * count), self.word(words.LOG))
        return self.pointer(at)

    def note(self, found: Any, place: str, at: int) -> int:
        """Stores a number's, a tuple's or an array's words at ``place``, from byte ``at`` on; where they end."""
        if isinstance(found, Tuple):
            for item in found.items:
                at = self.note(item, place, at)
            return at
        if isinstance(found, Number):
            val = self.cast(found.val, dt.i64) if found.dtype is dt.bool_ else found.val
            self.store(val, self.offset(place, at))
        else:
            self.store_pointer(found.pointer, self.offset(place, at))
            for k, size in enumerate([*found.shape, *found.strides], 1):
                self.store(size, self.offset(place, at + 8 * k))
        return at + 8 * words_of(found.type)

    def multiply(self, left: Array, right: Array, into: Array) -> None:
        """The product of two matrices of one type by a callback to NumPy, which gets pointers, extents and strides."""
        place = self.slot(f"!llvm.array<{3 * 5} x i64>")
        self.note(Tuple([left, right, into]), place, 0)
        done = self.called(words.MULTIPLY, place, self.const(left.dtype.numpy.num, dt.i64))
        self.fail_if(self.cmp("eq", done, 0), MemoryError("no memory for a product in a compiled loop"))

    def address(self, value: int | str) -> str:
        """A pointer with this value; for a name, to the state of the generator that is this variable."""
        if value not in self.addresses:
            self.addresses.append(value)
        table = self.load_pointer(self.word(words.TABLE))
        return self.load_pointer(self.offset(table, 8 * self.addresses.index(value)))

    def compute(self, place: str, number: int) -> Val:
        """Computes the extern op of this number on the operands at ``place``; whether it succeeded."""
        address, bases = (self.op(f"llvm.ptrtoint {p} : !llvm.ptr to i64", dt.i64) for p in (place, "%bases"))
        return self.cmp("ne", self.called(words.COMPUTE, address, self.const(number, dt.i64), bases), 0)

    def keep(self, address: Val) -> None:
        """Keeps an extern op's result at ``address`` until the loop's end."""
        self.called(words.COMPUTE, address, self.const(KEEP, dt.i64), address)

    def pointer(self, address: Val) -> str:
        name = self.fresh()
        self.line(f"{name} = llvm.inttoptr {address} : i64 to !llvm.ptr")
        return name

    # ---- loop-invariant counts: computed at the entry, so that equal ones share a name

    def extent(self, symbol: int, least: int, word: int) -> Val:
        """An extent at the loop's start, read from a word of the function's argument block."""
        name = f"%n{symbol}"
        if name not in self._least:
            self._least[name] = least
            self._given(name, word, "i64")
        return self.sized(Size(name, 0))

    def size_of(self, val: Val) -> Size | None:
        """The :class:`Size` of a loop-invariant count, else None."""
        known = self.known(val)
        return Size("", known) if isinstance(known, int) and val.dtype is dt.i64 else self._sizes.get(val.name)

    def sized(self, size: Size) -> Val:
        if not size.symbol:
            return self.const(size.added, dt.i64)
        found = self._created.get(size)
        if found is None:
            name = size.symbol
            if size.added:
                by = self.const(size.added, dt.i64)
                name += f".{'m' if size.added < 0 else 'p'}{abs(size.added)}"
                self.entry.append(f"  {name} = arith.addi {size.symbol}, {by} overflow<nsw> : i64")
            found = self._created[size] = Val(name, dt.i64)
            self._sizes[name] = size
        return found

    def range_length(self, start: Val, stop: Val, step: int) -> Val:
        """The length of ``range(start, stop, step)``."""
        far, near = (stop, start) if step > 0 else (start, stop)
        span = self.larger(self.count("addi", self.count("subi", far, near), abs(step) - 1), self.zero)
        return span if abs(step) == 1 else self.div(span, self.const(abs(step), dt.i64))

    def steps(self, span: Val, step: int) -> Val:
        """The number of steps below ``span``, which is not negative."""
        size = self.size_of(span)
        if size is not None and not size.symbol:
            return self.const((size.added + step - 1) // step, dt.i64)
        if size is None:
            return self.div(self.count("addi", span, step - 1), self.const(step, dt.i64))
        name = f"{span.name}.over{step}"
        if name not in self._least:
            self._least[name] = (self.least(span) + step - 1) // step
            more, by = self.count("addi", span, step - 1), self.const(step, dt.i64)
            self.entry.append(f"  {name} = arith.divsi {more}, {by} : i64")
        return self.sized(Size(name, 0))

    def least(self, val: Val) -> int:
        """A lower bound of a count; negative for one that may change."""
        size = self.size_of(val)
        return -(2**62) if size is None else size.added + (self._least[size.symbol] if size.symbol else 0)

    def not_above(self, a: Val, b: Val) -> bool:
        """Whether ``a <= b`` is known."""
        x, y = self.size_of(a), self.size_of(b)
        if x is None or y is None:
            return False
        return x.added <= y.added if x.symbol == y.symbol else not x.symbol and x.added <= self.least(b)

    # ---- counter and address arithmetic, without overflow

    def count(self, op: str, a: Val | int, b: Val | int) -> Val:
        """``addi``, ``subi`` or ``muli`` of 64-bit integers, folded where both are known."""
        a, b = (v if isinstance(v, Val) else self.const(v, dt.i64) for v in (a, b))
        x, y = self.known(a), self.known(b)
        if x is not None and y is not None:
            return self.const({"addi": x + y, "subi": x - y, "muli": x * y}[op], dt.i64)
        one, other = self.size_of(a), self.size_of(b)
        if one is not None and other is not None and op != "muli":
            sign = 1 if op == "addi" else -1
            if not other.symbol:
                return self.sized(Size(one.symbol, one.added + sign * other.added))
            if sign < 0 and one.symbol == other.symbol:
                return self.const(one.added - other.added, dt.i64)
            if sign > 0 and not one.symbol:
                return self.sized(Size(other.symbol, one.added + other.added))
        if (op != "muli" and y == 0) or (op == "muli" and y == 1):
            return a
        if (op == "addi" and x == 0) or (op == "muli" and x == 1):
            return b
        if op == "muli" and 0 in (x, y):
            return self.zero
        return self.op(f"arith.{op} {a}, {b} overflow<nsw> : i64", dt.i64)

    def product(self, counts: Iterable[Val]) -> Val:
        """The product of counts."""
        return functools.reduce(functools.partial(self.count, "muli"), counts, self.one)

    def smaller(self, a: Val, b: Val) -> Val:
        if self.not_above(a, b) or self.not_above(b, a):
            return a if self.not_above(a, b) else b
        return self._binary("arith.minsi", a, b)

    def larger(self, a: Val, b: Val) -> Val:
        if self.not_above(a, b) or self.not_above(b, a):
            return b if self.not_above(a, b) else a
        return self._binary("arith.maxsi", a, b)

    # ---- loops over elements

    @contextmanager
    def each(self, count: Val):
        """A loop over the indices below ``count``; its body must not branch out of it."""
        index = self.fresh()
        if self.rare:
            head, inside, after = self.block(), self.block(), self.block()
            self.line(f"cf.br {head}({self.zero} : i64)")
            self.place(f"{head}({index}: i64)")
            counter = Val(index, dt.i64)
            self.fork(self.cmp("lt", counter, count), inside, after)
            self.place(inside)
            yield counter
            self.again(head, self.count("addi", counter, 1))
            self.place(after)
            return
        self.line(f"scf.for {index} = {self.zero} to {count} step {self.one} : i64 {{")
        self.depth += 1
        yield Val(index, dt.i64)
        self.depth -= 1
        self.line("}")

    @contextmanager
    def each_of(self, shape: list[Val]):
        """A loop nest over the elements of an array of this shape, the last axis innermost."""
        with self._nest(shape, []) as indices:
            yield indices

    @contextmanager
    def _nest(self, shape: list[Val], indices: list[Val]):
        if not shape:
            yield indices
            return
        with self.each(shape[0]) as index, self._nest(shape[1:], [*indices, index]) as inner:
            yield inner

    def array_base(self) -> str:
        """A pointer to where a new array variable keeps the address of its allocation."""
        self.arrays += 1
        return f"%base{self.arrays - 1}"

    def _tables(self) -> list[str]:
        """The stack memory of the allocator: the bases of all array variables, and per site a table of (address, size)
        per buffer that ends with a 0."""
        bases, table = self.arrays or 1, 2 * (self.arrays + 2)
        lines = [
            "  %table_one = arith.constant 1 : i64",
            "  %table_end = arith.constant 0 : i64",
            f"  %base_count = arith.constant {self.arrays} : i64",
            f"  %bases = llvm.alloca %table_one x !llvm.array<{bases} x i64> : (i64) -> !llvm.ptr",
        ]
        for k in range(self.arrays):
            lines += [
                f"  %base{k} = llvm.getelementptr %bases[{k}] : (!llvm.ptr) -> !llvm.ptr, i64",
                f"  llvm.store %table_end, %base{k} : i64, !llvm.ptr",
            ]
        for k in range(self.sites):
            lines += [
                f"  %site{k} = llvm.alloca %table_one x !llvm.array<{table} x i64> : (i64) -> !llvm.ptr",
                f"  llvm.store %table_end, %site{k} : i64, !llvm.ptr",
                f"  %site{k}.second = llvm.getelementptr %site{k}[16] : (!llvm.ptr) -> !llvm.ptr, i8",
                f"  llvm.store %table_end, %site{k}.second : i64, !llvm.ptr",
            ]
        return lines

    def text(self, users: Callable[[int], list[int]]) -> str:  # type: ignore[override]
        """The module. ``users`` gives the numbers of the array variables that may use an allocation site's memory."""
        head = 'module {\nllvm.func @loop(%args: !llvm.ptr) -> i64 attributes {passthrough = ["no-builtins"]} {'
        end = "  cf.br ^exit\n^exit:\n  %left = llvm.load %result : !llvm.ptr -> i64\n  llvm.return %left : i64\n}\n}\n"
        lines = [_reusing(line, users(line.site)) if isinstance(line, _Allocation) else line for line in self.lines]
        return "\n".join([head, *self._tables(), *self.entry, *lines, end])


class _Allocation(str):
    """The line that searches an allocation site for a free buffer of a size. What to emit instead is known once all
    variables are."""

    def __new__(cls, line: str, site: int, size: str, address: str) -> _Allocation:
        created = super().__new__(cls, line)
        created.site, created.size, created.address = site, size, address
        return created

    site: int
    size: str
    address: str


# A site's table has an address and a size for each buffer. Of the first two one that the only variable with such memory
# does not use …
_UNUSED = """\
  {v}.used = llvm.load %base{user} : !llvm.ptr -> i64
  {v}.first = llvm.load %site{site} : !llvm.ptr -> i64
  {v}.taken = arith.cmpi eq, {v}.first, {v}.used : i64
  {v}.unused = arith.select {v}.taken, %site{site}.second, %site{site} : !llvm.ptr
"""
# … and its address, if there is such a buffer, and it is large enough.
_REUSED = """\
  {v}.known = llvm.load {buffer} : !llvm.ptr -> i64
  {v}.at = llvm.getelementptr {buffer}[8] : (!llvm.ptr) -> !llvm.ptr, i8
  {v}.room = llvm.load {v}.at : !llvm.ptr -> i64
  {v}.there = arith.cmpi ne, {v}.known, %table_end : i64
  {v}.large = arith.cmpi sge, {v}.room, {size} : i64
  {v}.fits = arith.andi {v}.there, {v}.large : i1
  cf.cond_br {v}.fits, ^found{n}({v}.known : i64), ^search{n}
^search{n}:
{search}
  cf.br ^found{n}({v}.new : i64)
^found{n}({v}: i64):"""


def _reusing(line: _Allocation, users: list[int]) -> str:
    """The code of an allocation at a site whose memory the variables with these numbers may use: where that is one or
    none, one of the first two buffers is free, and is found inline."""
    if len(users) > 1:
        return line
    v, n = line.address, line.address.removeprefix("%v")
    search = line.replace(f"{v} =", f"{v}.new =", 1)
    if not users:
        return _REUSED.format(v=v, n=n, buffer=f"%site{line.site}", size=line.size, search=search)
    unused = _UNUSED.format(v=v, user=users[0], site=line.site)
    return unused + _REUSED.format(v=v, n=n, buffer=f"{v}.unused", size=line.size, search=search)


def _at(kind: Exception | Callable[[int, int], Exception], where: tuple[str, int] | None, *numbers: int) -> Exception:
    """A new exception, from two ints where it is made from these, with a note of the statement that raised it; its own
    traceback ends at the loop."""
    error = type(kind)(*kind.args) if isinstance(kind, Exception) else kind(*numbers)
    if where is not None:
        error.add_note(located("raised by the statement", where))
    return error
