"""Tracing: a Python function runs once on stand-ins for its arguments, and what it does to them is written down as a
graph.

:func:`trace` gives a :class:`Traced`. The stand-ins are :class:`TracedArray` (an array; :class:`TracedScalar` a number known only at
run time), and :class:`SymInt` for what ``x.shape`` holds. Sizes stay symbolic until the function decides something by
them; then the decision is recorded as a :class:`SizeGuard` under which the trace holds. How NumPy's functions become
ops is
:mod:`mlirfuse.frontend.numpy.api`.

Writing into arrays is made functional here: a :class:`Buffer` is the memory that an array and its views share. A view
is a path of steps from the buffer; it is read by replaying the path and written by inverting it, so that a write
through one view is seen through all the others, as in NumPy.
"""

from __future__ import annotations

import collections
import functools
import inspect
import linecache
import math
import numbers
import operator
import os
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirfuse.core.errors import ShapeError, TraceError, UnsupportedError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.views import reshapes_are_views
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.effects import VIEWS
from mlirfuse.ir.graph import Block, Graph, Layout, Value, walk
from mlirfuse.ir.ops.table import SIZE_ATTRS
from mlirfuse.ir.sizes import Expr, Size

# ---------------------------------------------------------------------------------------------------------------- what
# jit passes in


@dataclass(frozen=True)
class ArgSpec:
    """An array or number argument. Strides are in elements; ``align`` in bytes.

    ``scalar``: passed by value (a Python or NumPy number, or a 0-d host array beside CUDA arrays). ``weak``: a Python
    number, by NumPy's promotion. ``writable`` False: writing into it is an error (for a number: ``+=`` makes a new
    one). ``value`` is the number itself for a scalar or a 0-d host array, read where the function uses it as a
    constant.
    """

    dtype: DType
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    align: int = 1
    scalar: bool = False
    weak: bool = False
    device: str = "cpu"
    writable: bool = True
    value: Any = field(default=None, compare=False)

    @staticmethod
    def of(value) -> ArgSpec | Static:
        """What a NumPy array or a number is to a trace; anything else is :class:`Static`."""
        if isinstance(value, np.ndarray):
            dtype, size = dt.of(value.dtype), value.itemsize
            if any(s % size for s in value.strides):
                raise UnsupportedError(
                    f"an array whose strides {value.strides} are no multiples of its items' {size} bytes: pass a copy"
                )
            address = value.ctypes.data
            return ArgSpec(dtype, value.shape, tuple(s // size for s in value.strides), (address & -address) & 0xFF or 256,
                           writable=value.flags.writeable, value=None if value.ndim else value[()])  # fmt: skip
        if isinstance(value, np.generic):
            return ArgSpec(dt.of(value.dtype), scalar=True, writable=False, value=value)
        if type(value) in _WEAK and not (type(value) is int and not -(2**63) <= value < 2**63):
            return ArgSpec(_WEAK[type(value)], scalar=True, weak=type(value) is not bool, writable=False, value=value)
        return Static(value)


@dataclass(frozen=True)
class Static:
    """An argument that is a constant of the compiled function: a string, None, a dtype …"""

    value: Any


_WEAK = {bool: dt.bool_, int: dt.i64, float: dt.f64, complex: dt.c128}


def layout_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """What compiled code may assume of strides, for each dimension. Part of the key of a call.

    ``k >= 0``: the stride is the product of the extents of the dimensions inside it, ``k`` being the dimension next
    inside (the rank: it is innermost, stride 1); ``-2 - k``: the same, negated; -1: it can be anything. A dimension of
    extent 1, and one of stride 0, is 0.
    """
    rank = len(shape)
    out = [0] * rank
    if 0 in shape:
        return tuple(out)
    expected, inner = 1, rank
    for axis in sorted(
        (a for a in range(rank) if shape[a] != 1 and strides[a] != 0), key=lambda a: (abs(strides[a]), -a)
    ):
        stride = strides[axis]
        if abs(stride) == expected:
            out[axis] = inner + 1 if stride > 0 else -2 - inner
        else:
            out[axis] = -1
        expected, inner = abs(stride) * shape[axis], axis
    return tuple(out)


# ---------------------------------------------------------------------------------------------------------------- what
# jit gets out


@dataclass(frozen=True)
class SizeGuard:
    """What must hold of the sizes of a call for the trace to be right: ``left op right``, op being ==, !=, <, <=, > or
    >=."""

    left: Size
    op: str
    right: Size

    def holds(self, values: dict[str, int]) -> bool:
        """Whether it holds where the symbols have these values."""
        return _COMPARE[self.op](sz.substitute(self.left, values), sz.substitute(self.right, values))

    def __str__(self) -> str:
        """Python source over the symbols."""
        return f"{self.left} {self.op} {self.right}"


_COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@dataclass(frozen=True)
class Out:
    """A leaf of the result.

    ``kind`` "result": the graph's result ``index``; "argument": the caller's own object at leaf ``index``; "size": the
    size ``value``, an int; "constant": the object ``value``. ``scalar``: np.generic, int, float, bool or complex where
    NumPy would return a number of that kind and not an array.
    """

    kind: str
    index: int = -1
    value: Any = None
    scalar: type | None = None


@dataclass(frozen=True, eq=False)
class Captured:
    """An array from outside the function. ``paths`` are the ways to it that the function may have taken, each ``(root,
    ((how, key), …))``, how being "attr", "item" or "cell"; none where none was found (it was computed while the
    function was traced) and the array is kept."""

    array: Any
    paths: tuple = ()

    def read(self) -> Any:
        """The array that is there now. Raises LookupError or AttributeError where that is not certain: then the
        function is to be traced again."""
        if not self.paths:
            return self.array
        found = _follow(self.paths[0])
        for path in self.paths[1:]:
            if _follow(path) is not found:
                raise LookupError("the ways to a captured array lead to different arrays now")
        return found


def _follow(path):
    at, steps = path
    for how, key in steps:
        at = at.cell_contents if how == "cell" else getattr(at, key) if how == "attr" else at[key]
    return at


@dataclass
class Traced:
    """A traced function. The trace is right for a call where

    - its arguments have the same dtypes, ranks, extents of 0 and 1 and layouts (:func:`layout_of`),
    - the leaves in ``static_leaves`` have the same values,
    - all ``size_guards`` hold, in their order,
    - all ``equalities`` hold, pairs of sizes (tracing again where one fails raises NumPy's error at the user's line),
    - every number in ``scalar_ranges`` and ``index_ranges`` (by leaf) lies in its ranges, both ends in them.

    ``symbols``: for each symbol, (the graph's argument, "shape" or "stride", axis) that it is read from.
    ``arg_leaves``: the leaf of each of the graph's arguments; after them come those of ``captured``. ``mutated``: leaf
    position to the graph's result with its new value. ``scope``: (dict or cell, key, value) for the numbers and strings
    that the function reads from around it, which are constants in the trace, and for arrays that others were computed
    from before they met a traced one; :meth:`scope_holds` checks it.
    """

    graph: Graph
    out_tree: trees.Tree
    outs: list[Out]
    static_leaves: dict[int, Any]
    size_guards: list[SizeGuard]
    equalities: list[tuple[Size, Size]]
    mutated: dict[int, int]
    captured: list[Captured]
    symbols: dict[str, tuple[int, str, int]]
    arg_leaves: list[int]
    scalar_ranges: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    index_ranges: dict[int, list[tuple[Size, Size]]] = field(default_factory=dict)
    scope: list[tuple[Any, str, Any]] = field(default_factory=list)

    def scope_holds(self) -> bool:
        """Whether what the function read from around it is there still."""
        return all(unchanged(read_scope(namespace, key), value) for namespace, key, value in self.scope)

    def sizes(self, arrays) -> dict[str, int]:
        """The symbols' values in a call, from the NumPy arrays of the graph's arguments."""
        out = {}
        for name, (position, what, axis) in self.symbols.items():
            array = arrays[position]
            out[name] = array.shape[axis] if what == "shape" else array.strides[axis] // array.itemsize
        return out

    def result(self, results, leaves, sizes: dict[str, int]):
        """What the function returns, from the graph's results, the leaves of the call and the symbols' values."""
        out = []
        for o in self.outs:
            if o.kind == "result":
                x = results[o.index]
                if o.scalar is not None and isinstance(x, np.ndarray):
                    x = x[()] if o.scalar is np.generic else o.scalar(x[()])
                out.append(x)
            elif o.kind == "argument":
                out.append(leaves[o.index])
            else:
                out.append(sz.substitute(o.value, sizes) if o.kind == "size" else o.value)
        return self.out_tree.unflatten(out)


# ---------------------------------------------------------------------------------------------------------------- the
# user's line

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_NUMPYS = os.path.dirname(os.path.abspath(np.__file__)) + os.sep
_internal: dict[str, bool] = {}


def user_frame():
    """The innermost frame that is neither ours nor NumPy's; None if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        internal = _internal.get(name)
        if not (_is_internal(name) if internal is None else internal):
            return frame
        frame = frame.f_back
    return None


def _is_internal(file: str) -> bool:
    found = _internal.get(file)
    if found is None:
        found = _internal[file] = file.startswith((_OURS, _NUMPYS, "<__array_function__", "<frozen"))
    return found


def _location() -> tuple[str, int] | None:
    frame = user_frame()
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def located(message: str, where: tuple[str, int] | None = None) -> str:
    """``message`` with the user's file, line and source: those that an op came from, or those that run now."""
    where = where or _location()
    if where is None:
        return message
    source = linecache.getline(*where).strip()
    return f"{message}\n  at {where[0]}:{where[1]}" + (f": {source}" if source else "")


class UnsupportedAttribute(UnsupportedError, AttributeError):
    """An attribute of arrays that traced arrays do not have."""


def _located_error(error: Exception) -> Exception:
    if getattr(error, "_located", False):
        return error
    made = type(error)(located(str(error)))
    made._located = True
    return made


def fail(kind: type[Exception], message: str):
    """Raises ``kind`` with the user's line."""
    raise _located_error(kind(message))


# ----------------------------------------------------------------------------------------------------------------
# symbolic ints


def _bound(size: Size, low: bool) -> float:
    """A number that ``size`` is known not to be below (or above), symbols being at least 2."""
    if isinstance(size, int):
        return size
    total = 0.0
    for factors, coefficient in size.terms:
        least, most = 1.0, 1.0
        for atom in factors:
            a, b = _atom_bounds(atom)
            if a < 0:
                return -math.inf if low else math.inf
            least, most = least * a, math.inf if most == math.inf or b == math.inf else most * b
        total += coefficient * (least if (coefficient > 0) == low else most)
        if total != total:
            return -math.inf if low else math.inf
    return total


def _atom_bounds(atom) -> tuple[float, float]:
    if atom.op == "sym":
        return (2, math.inf) if atom.args[0][0] == "s" else (-math.inf, math.inf)
    a, b = atom.args
    if atom.op == "mod":
        return (0, _bound(b, False) - 1) if _bound(b, True) > 0 else (-math.inf, math.inf)
    if atom.op == "floordiv":
        if isinstance(b, int) and b > 0:
            high = _bound(a, False)
            low = _bound(a, True)
            return (low // b if low > -math.inf else low, high // b if high < math.inf else high)
        return (0, math.inf) if _bound(a, True) >= 0 and _bound(b, True) > 0 else (-math.inf, math.inf)
    choose = max if atom.op == "max" else min
    return choose(_bound(a, True), _bound(b, True)), choose(_bound(a, False), _bound(b, False))


class SymInt:
    """An extent known only at run time, as ``x.shape`` holds it. Arithmetic stays symbolic; a comparison, ``int()``,
    ``range()`` or an index fixes what it found as a guard. Used with arrays it is a number computed at run time."""

    __slots__ = ("size", "trace")
    __array_priority__ = 1000

    def __init__(self, trace: Trace, size: Expr):
        self.trace = trace
        self.size = size

    def __int__(self) -> int:
        return self.trace.concretise(self.size)

    __index__ = __int__

    def __float__(self) -> float:
        return float(int(self))

    def __complex__(self) -> complex:
        return complex(int(self))

    def __hash__(self):
        return hash(int(self))

    def __bool__(self) -> bool:
        return self.trace.decide(self.size, "!=", 0)

    def __repr__(self) -> str:
        return f"SymInt({self.size})"

    def __str__(self) -> str:
        return str(int(self))

    def __format__(self, spec: str) -> str:
        return format(int(self), spec)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(int(self), dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return api.array_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, function, types, args, kwargs):
        return api.array_function(function, args, kwargs)

    def __neg__(self):
        return self.trace.sym(sz.mul(self.size, -1))

    def __pos__(self):
        return self

    def __abs__(self):
        return self if self.trace.decide(self.size, ">=", 0) else -self

    def __invert__(self):
        return self.trace.sym(-self.size - 1)

    def __round__(self, digits=None):
        return self

    def __trunc__(self):
        return self

    __floor__ = __ceil__ = __trunc__

    def __divmod__(self, other):
        return self // other, self % other

    def __rdivmod__(self, other):
        return other // self, other % self

    def __pow__(self, other, modulo=None):
        if modulo is None and isinstance(other, int) and 0 <= other <= 8:
            return self.trace.sym(sz.mul(1, *[self.size] * other))
        return _sym_arith(operator.pow, self, other)

    def __rpow__(self, other):
        return _sym_arith(operator.pow, other, self)


numbers.Integral.register(SymInt)


def _size_of(x) -> Size | None:
    """The size that a Python or NumPy integer or SymInt is, else None."""
    cls = x.__class__
    if cls is int or cls is bool:
        return int(x)
    if cls is SymInt:
        return x.size
    return int(x) if isinstance(x, np.integer) else None


def _sym_arith(function, a, b):
    if isinstance(a, (list, tuple, str)) or isinstance(b, (list, tuple, str)):
        return function(int(a) if isinstance(a, SymInt) else a, int(b) if isinstance(b, SymInt) else b)
    if isinstance(a, (numbers.Number, np.generic, SymInt)) and isinstance(b, (numbers.Number, np.generic, SymInt)):
        return api.scalar_operator(function, a, b)
    return NotImplemented


def _sym_method(function, on_sizes, reflected):
    def method(self, other):
        size = _size_of(other)
        if size is None:
            return _sym_arith(function, *((other, self) if reflected else (self, other)))
        a, b = (size, self.size) if reflected else (self.size, size)
        if function in (operator.floordiv, operator.mod) and b == 0:
            raise ZeroDivisionError("integer division or modulo by zero")
        return self.trace.sym(on_sizes(a, b))

    return method


for _name, _function, _on_sizes in (
    ("add", operator.add, lambda a, b: a + b),
    ("sub", operator.sub, lambda a, b: a - b),
    ("mul", operator.mul, sz.mul),
    ("floordiv", operator.floordiv, sz.floordiv),
    ("mod", operator.mod, sz.mod),
):
    setattr(SymInt, f"__{_name}__", _sym_method(_function, _on_sizes, False))
    setattr(SymInt, f"__r{_name}__", _sym_method(_function, _on_sizes, True))

SymInt.__truediv__ = lambda self, other: _sym_arith(operator.truediv, self, other)
SymInt.__rtruediv__ = lambda self, other: _sym_arith(operator.truediv, other, self)


def _sym_compare(op):
    function = _COMPARE[op]

    def method(self, other):
        size = _size_of(other)
        if size is not None:
            return self.trace.decide(self.size, op, size)
        if isinstance(other, float):
            return function(int(self), other)
        return NotImplemented

    return method


for _name, _op in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    setattr(SymInt, f"__{_name}__", _sym_compare(_op))


# ---------------------------------------------------------------------------------------------------------------- the
# trace

_current = threading.local()


def current() -> Trace | None:
    """The trace that is being made in this thread."""
    return getattr(_current, "trace", None)


class Trace:
    """One tracing in progress: the graph so far, the symbols' values in this call, and what has been decided by
    them."""

    def __init__(self):
        self.block = Block()
        self.builder = Builder(self.block, _location)
        self.hints: dict[str, int] = {}
        self.substitution: dict[str, Size] = {}
        self.same: dict[Size, Size] = {}
        self.learned = False  # whether the two above hold anything
        self._canonical: dict[Size, Size] = {}
        self._hints: dict[Size, int] = {}
        self.guards: dict[SizeGuard, None] = {}
        self.equalities: list[tuple[Size, Size]] = []
        self.static_leaves: dict[int, Any] = {}
        self.scalar_ranges: dict[int, set[tuple[int, int]]] = {}
        self.index_ranges: dict[int, list[tuple[Size, Size]]] = {}
        self.symbols: dict[str, tuple[int, str, int]] = {}
        self.layouts: list[Layout | None] = []
        self.scalars: set[int] = set()
        self.captured: dict[int, tuple[Any, TracedArray, tuple]] = {}
        self.alive: list = []  # arrays whose ids are keys of `captured`
        self.device = "cpu"
        self.contiguous: set[Value] = set()  # arguments that are row-major without gaps
        self.roots: list = []
        self.words: set[str] = set()  # the names and strings in the code that is traced
        self._counts = {"s": 0, "t": 0}

    # ---- sizes

    def sym(self, size: Size):
        """What a user sees of a size: an int or a :class:`SymInt`."""
        size = self.canonical(size)
        return size if size.__class__ is int else SymInt(self, size)

    def canonical(self, size: Size) -> Size:
        """``size`` after all equalities found so far."""
        if size.__class__ is int or not self.learned:
            return size
        found = self._canonical.get(size)
        if found is None:
            if size.is_symbol:
                found = self.substitution.get(size.terms[0][0][0].args[0], size)
            else:
                found = sz.substitute(size, self.substitution)
            if self.same:
                found = self.same.get(found, found)
            self._canonical[size] = found
        return found

    def shape(self, value: Value) -> tuple[Size, ...]:
        return tuple([self.canonical(n) for n in value.shape]) if self.learned else value.shape

    def hint(self, size: Size) -> int:
        """The size in the call that is being traced."""
        if size.__class__ is int:
            return size
        found = self._hints.get(size)
        if found is None:
            found = self._hints[size] = sz.substitute(size, self.hints)
        return found

    def hints_of(self, shape) -> tuple[int, ...]:
        return tuple([n if n.__class__ is int else self.hint(n) for n in shape])

    def decide(self, left: Size, op: str, right: Size) -> bool:
        """Whether ``left op right``; recorded as a guard unless it always holds or never."""
        left, right = self.canonical(left), self.canonical(right)
        difference = left - right
        if isinstance(difference, int):
            return _COMPARE[op](difference, 0)
        low, high = _bound(difference, True), _bound(difference, False)
        if op in ("==", "!=") and (low > 0 or high < 0):
            return op == "!="
        if op == "<" and (high < 0 or low >= 0):
            return high < 0
        if op == "<=" and (high <= 0 or low > 0):
            return high <= 0
        if op == ">" and (low > 0 or high <= 0):
            return low > 0
        if op == ">=" and (low >= 0 or high < 0):
            return low >= 0
        outcome = _COMPARE[op](self.hint(left) - self.hint(right), 0)
        self.guards[SizeGuard(left, op if outcome else _OPPOSITE[op], right)] = None
        if outcome if op == "==" else (op == "!=" and not outcome):
            self._learn(left, right)
        return outcome

    def concretise(self, size: Size) -> int:
        """The value of ``size`` in this call, to which the trace is fixed from here on."""
        size = self.canonical(size)
        if isinstance(size, int):
            return size
        value = self.hint(size)
        self.guards[SizeGuard(size, "==", value)] = None
        self._learn(size, value)
        return value

    def extent(self, size: Size) -> Size:
        """``size`` as an extent of a new shape: 0 and 1, and nothing below, are always ints."""
        size = self.canonical(size)
        if isinstance(size, int) or _bound(size, True) >= 2:
            return size
        value = self.hint(size)
        if value <= 1:
            self.guards[SizeGuard(size, "==", value)] = None
            self._learn(size, value)
            return value
        self.guards[SizeGuard(size, ">", 1)] = None
        return size

    def unify(self, a: Size, b: Size) -> bool:
        """False if the sizes differ in this call. Otherwise that they are equal becomes a condition of the trace."""
        a, b = self.canonical(a), self.canonical(b)
        if a == b:
            return True
        if self.hint(a) != self.hint(b):
            return False
        self.equalities.append((a, b))
        self._learn(a, b)
        return True

    def _learn(self, a: Size, b: Size) -> None:
        """Makes equal sizes one: by solving for a symbol where that works, else by naming one expression for the
        other."""
        self.learned = True
        self._canonical = {}
        if isinstance(a, Expr) and a.is_symbol and (isinstance(b, int) or b.is_symbol):
            self._substitute(*((str(a), b) if isinstance(b, int) or _later(str(a), str(b)) else (str(b), a)))
            return
        terms_a, terms_b = sz._terms(a), sz._terms(b)
        if len(terms_a) == 1 and len(terms_b) == 1:  # products: without what they share
            (left, ca), (right, cb) = terms_a[0], terms_b[0]
            left, right = list(left), list(right)
            for factor in [f for f in left if f.op == "sym"]:
                if factor in right:
                    left.remove(factor)
                    right.remove(factor)
            common = math.gcd(ca, cb) or 1
            a, b = sz._make({tuple(left): ca // common}), sz._make({tuple(right): cb // common})
        difference = a - b
        if isinstance(difference, int):
            return
        multiple = sz.known_multiple(difference)
        if multiple is not None:
            self._substitute(*multiple)
            return
        best = None
        for factors, coefficient in difference.terms:
            if len(factors) == 1 and factors[0].op == "sym" and abs(coefficient) == 1:
                name = factors[0].args[0]
                rest = sz.mul(difference - sz.mul(sz.symbol(name), coefficient), -coefficient)
                if name not in sz.symbols(rest) and (best is None or _later(name, best[0])):
                    best = (name, rest)
        if best is None:
            keep, drop = (a, b) if isinstance(a, int) or len(str(a)) <= len(str(b)) else (b, a)
            if not isinstance(drop, int):
                self.same[drop] = keep
            return
        self._substitute(*best)

    def _substitute(self, name: str, size: Size) -> None:
        single, old = {name: size}, sz.symbol(name)
        renewed = {
            k: size if v == old else v if isinstance(v, int) else sz.substitute(v, single)
            for k, v in self.substitution.items()
        }
        self.substitution = renewed | single
        if self.same:
            self.same = {sz.substitute(k, single): sz.substitute(v, single) for k, v in self.same.items()}
            self.same = {k: v for k, v in self.same.items() if k != v and not isinstance(k, int)}

    # ---- ops

    def emit(self, name: str, *operands: Value, **attrs) -> Value:
        """Appends an op, with errors that name the user's line."""
        try:
            made = self.builder.op(name, *operands, **attrs)
        except (ShapeError, TypeError) as error:
            raise _located_error(error) from None
        if self.learned:
            for value in made if isinstance(made, list) else (made,):
                self._refresh(value)
        return made

    def _refresh(self, value: Value) -> None:
        shape = tuple([self.canonical(n) for n in value.shape])
        if shape != value.shape:
            value.shape = shape
            value.type = Value(value.dtype, shape).type

    # ---- arguments

    def _symbol(self, prefix: str, hint: int, where) -> Expr:
        name = f"{prefix}{self._counts[prefix]}"
        self._counts[prefix] += 1
        self.hints[name] = hint
        self.symbols[name] = where
        symbol = sz.symbol(name)
        self._hints[symbol] = hint
        return symbol

    def argument(self, spec: ArgSpec, name: str | None) -> Value:
        position = len(self.block.args)
        shape = tuple(
            n if n in (0, 1) else self._symbol("s", n, (position, "shape", axis)) for axis, n in enumerate(spec.shape)
        )
        value = Value(spec.dtype, shape, name=name)
        self.block.args.append(value)
        if spec.scalar:
            self.scalars.add(position)
            self.layouts.append(None)
            return value
        strides: list = list(sz.contiguous_strides(shape))
        if 0 not in spec.shape:
            for axis, flag in enumerate(layout_of(spec.shape, spec.strides)):
                if spec.shape[axis] == 1:
                    continue
                if flag == -1:
                    strides[axis] = None
                elif flag == 0:
                    strides[axis] = 0
            order = sorted(
                (a for a in range(len(shape)) if spec.shape[a] != 1 and spec.strides[a] != 0),
                key=lambda a: (abs(spec.strides[a]), -a),
            )
            running: Size = 1
            for axis in order:
                if strides[axis] is None:
                    strides[axis] = running = self._symbol("t", spec.strides[axis], (position, "stride", axis))
                    running = running if spec.strides[axis] > 0 else -running
                else:
                    strides[axis] = running if spec.strides[axis] > 0 else sz.mul(running, -1)
                running = sz.mul(running, shape[axis])
            for axis in reversed(range(len(shape))):
                if spec.shape[axis] == 1:
                    strides[axis] = sz.mul(strides[axis + 1], shape[axis + 1]) if axis + 1 < len(shape) else 1
        self.layouts.append(Layout(tuple(strides), spec.align))
        if tuple(strides) == sz.contiguous_strides(shape):
            self.contiguous.add(value)
        return value

    def capture(self, array) -> TracedArray:
        """An array from outside the function, as an argument that the function's caller does not see."""
        found = self.captured.get(id(array))
        if found is not None and not found[2] and found[0] is not array and not _same_elements(found[0], array):
            # Written into since: what it is now is another array. (The captured arrays stay in their order.)
            self.captured = {id(f[0]) if f is found else key: f for key, f in self.captured.items()}
            found = None
        if found is None:
            spec = api.spec_of(array)
            if spec.device != self.device and spec.shape:
                made = (
                    "; one that the function makes, make with mlirfuse.numpy (arange, zeros, ...)"
                    if spec.device == "cpu"
                    else ""
                )
                fail(
                    TraceError,
                    f"an array on {spec.device} from outside the function is used with arguments on {self.device}: move it there before{made}",
                )
            name, paths = _find(array, self.roots + _frame_roots())
            position, key = len(self.block.args), id(array)
            if (
                not paths and isinstance(array, np.ndarray) and array.nbytes <= _SNAPSHOT
            ):  # made while the function is traced: it may change yet
                self.alive.append(array)
                array = array.copy(order="K")
                spec = api.spec_of(array)
            made = TracedArray(self, self.argument(spec, name), Buffer(captured=position, writable=False))
            found = self.captured[key] = (array, made, paths)
        return found[1]


_SNAPSHOT = 64 << 20  # bytes; larger arrays made while a function is traced are not copied


def _same_elements(a, b) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _later(a: str, b: str) -> bool:
    return (a[0], int(a[1:])) > (b[0], int(b[1:]))


def _frame_roots() -> list:
    """Where the user's code at work may have got an array from: (name, root, steps, value)."""
    out = []
    frame = user_frame()
    while frame is not None and len(out) < 256:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):
            out += [
                (name, frame.f_globals, (("item", name),), frame.f_globals[name])
                for name in code.co_names
                if name in frame.f_globals
            ]
        elif code.co_name == "trace":
            break
        frame = frame.f_back
    return out


_PLAIN_TYPES = (str, bytes, int, float, complex, type(None), type, np.ndarray, np.dtype, np.generic, np.ufunc, types.ModuleType,
                types.BuiltinFunctionType)  # fmt: skip


def _find(array, roots) -> tuple[str | None, tuple]:
    """A name for a captured array, and the ways to it from the roots."""
    seen, queue, found, first = set(), collections.deque(roots), {}, None
    budget = 2000
    while queue and budget and len(found) < 8:
        budget -= 1
        name, root, steps, value = queue.popleft()
        if value is array:
            found[id(root), steps] = (root, steps)
            first = first or name
            continue
        plain = isinstance(value, (*_PLAIN_TYPES, TracedArray)) and not (
            isinstance(value, type) and _namespace(value) is not None
        )
        if plain or id(value) in seen or len(steps) > 4:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            queue.extend((f"{name}[{k!r}]", root, (*steps, ("item", k)), v) for k, v in list(value.items())[:256])
        elif isinstance(value, (list, tuple)):
            queue.extend((f"{name}[{k}]", root, (*steps, ("item", k)), v) for k, v in enumerate(value[:256]))
        elif isinstance(value, type) or isinstance(getattr(value, "__dict__", None), dict):
            queue.extend((f"{name}.{k}", root, (*steps, ("attr", k)), v) for k, v in _data(value)[:256])
    return first, tuple(found.values())


def _data(value) -> list[tuple]:
    """The attributes of an object or a class that are no methods, properties or the like: its own, then those of its
    classes."""
    kind = value if isinstance(value, type) else type(value)
    own = {} if kind is value else vars(value)
    names = _class_data(kind, sum(len(vars(base)) for base in kind.__mro__))
    return [*own.items(), *((name, getattr(kind, name)) for name in names if name not in own)]


@functools.lru_cache
def _class_data(kind: type, attributes: int) -> list[str]:
    """The names of the data that a user's class, with so many attributes, holds."""
    found = {
        name: held
        for base in reversed(kind.__mro__)
        if _namespace(base) is not None
        for name, held in vars(base).items()
    }
    return [name for name, held in found.items() if not name.startswith("__") and not hasattr(type(held), "__get__")]


# ----------------------------------------------------------------------------------------------------------------
# traced arrays


class Buffer:
    """The memory of an array and its views. ``value`` is what it holds now; ``version`` counts the writes.

    ``origin`` is what it held first, ``leaf`` the position of the argument that it belongs to, ``captured`` that of an
    array from outside among the graph's arguments.
    """

    __slots__ = ("captured", "leaf", "origin", "value", "version", "writable")

    def __init__(
        self, value: Value | None = None, leaf: int | None = None, captured: int | None = None, writable: bool = True
    ):
        self.value = self.origin = value
        self.version = 0
        self.leaf = leaf
        self.captured = captured
        self.writable = writable


class TracedArray:
    """Stands for an array while a function is traced. Has NumPy's operators, methods and attributes."""

    __slots__ = ("__weakref__", "_buffer", "_path", "_scalar", "_trace", "_value", "_version")
    __array_priority__ = 1000
    _weak: type | None = None

    def __init__(
        self, trace: Trace, value: Value, buffer: Buffer | None = None, path: tuple = (), scalar: bool = False
    ):
        self._trace = trace
        self._value = value
        if buffer is None:
            buffer = Buffer(value)
        elif buffer.value is None:
            buffer.value = buffer.origin = value
        self._buffer = buffer
        self._path = path
        self._version = buffer.version
        self._scalar = scalar  # NumPy would have a number here, no 0-d array

    # ---- value

    @property
    def value(self) -> Value:
        """What the array holds at this point of the function."""
        if self._version != self._buffer.version:
            self._check_reshapes()
            value = self._buffer.value
            for step in self._path:
                value = step.read(self._trace, value)
            self._value, self._version = value, self._buffer.version
        return self._value

    def step(self, step) -> TracedArray:
        """The view that is one step (see :mod:`mlirfuse.frontend.numpy.views`) from this one."""
        value = step.read(self._trace, self.value)
        return (
            TracedArray(self._trace, value)
            if self._scalar
            else TracedArray(self._trace, value, self._buffer, (*self._path, step))
        )

    def alias(self) -> TracedArray:
        """Another array with the same memory (of a number: one with its value)."""
        return (
            TracedArray(self._trace, self.value)
            if self._scalar
            else TracedArray(self._trace, self.value, self._buffer, self._path)
        )

    def _check_reshapes(self) -> None:
        if not reshapes_are_views(self._trace, self._buffer.origin, self._path):
            fail(
                TraceError,
                "an array and a reshape of it are written and read here, and whether NumPy made the reshape a view or a copy depends "
                "on how the array lies in memory: write into the array before it is reshaped, or reshape a copy of it",
            )

    def assign(self, new: Value) -> None:
        """Makes the memory of this array hold ``new``, which has its dtype and shape."""
        buffer = self._buffer
        if self._scalar:
            fail(TypeError, "a number cannot be assigned to: it is no array")
        if buffer.captured is not None:
            fail(
                TraceError,
                "writing into an array from outside the function: pass it as an argument, or write into a copy of it",
            )
        self._check_reshapes()
        if not buffer.writable:
            fail(ValueError, "assignment destination is read-only")
        buffer.value = self._written(buffer.value, 0, new)
        buffer.version += 1
        if not self._path:
            self._value, self._version = new, buffer.version

    def _written(self, base: Value, depth: int, new: Value) -> Value:
        if depth == len(self._path):
            return new
        step = self._path[depth]
        inner = self._written(step.read(self._trace, base), depth + 1, new) if depth + 1 < len(self._path) else new
        return step.write(self._trace, base, inner)

    # ---- attributes

    @property
    def dtype(self) -> np.dtype:
        return self._value.dtype.numpy

    @property
    def shape(self) -> tuple:
        trace = self._trace
        return tuple([n if n.__class__ is int else trace.sym(n) for n in self._value.shape])

    @property
    def ndim(self) -> int:
        return len(self._value.shape)

    @property
    def size(self):
        return self._trace.sym(self._value.numel)

    @property
    def itemsize(self) -> int:
        return self._value.dtype.bytes

    @property
    def nbytes(self):
        return self.size * self.itemsize

    def __len__(self) -> int:
        if not self._value.shape:
            raise TypeError("len() of unsized object")
        return self._trace.concretise(self._value.shape[0])

    def __iter__(self):
        if not self._value.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return f"TracedArray({self._value.dtype}[{', '.join(map(str, self._trace.shape(self._value)))}])"

    def __getattr__(self, name: str):
        if not name.startswith("_") and hasattr(np.ndarray, name):
            fail(
                UnsupportedAttribute,
                f"the array method or attribute '{name}' is not supported in a compiled function{api.suggestion(name)}",
            )
        raise AttributeError(f"'TracedArray' object has no attribute '{name}'")

    # ---- what a traced array cannot be

    def __bool__(self) -> bool:
        fail(
            TraceError,
            f"the truth of a traced array ({self!r}) is not known while the function is compiled: it cannot decide an 'if', "
            "'while', 'and' or 'assert'. Use np.where(condition, a, b), or np.logical_and / & and | for conditions",
        )

    def _no_number(self, what: str):
        fail(TraceError, f"{what} needs a number, and the value of a traced array ({self!r}) is not known while the function is compiled. "
             "Keep it as an array, or compute the number outside the function and pass it as an argument")  # fmt: skip

    def __float__(self):
        self._no_number("float()")

    def __int__(self):
        self._no_number("int()")

    def __complex__(self):
        self._no_number("complex()")

    def __index__(self):
        self._no_number("an index, a shape or range()")

    def item(self, *args):
        self._no_number("item()")

    def tolist(self):
        self._no_number("tolist()")

    __hash__ = None

    def __array__(self, dtype=None, copy=None):
        fail(TraceError, f"a traced array ({self!r}) cannot become a NumPy array while the function is compiled. np.array and np.asarray "
             "of traced values: use mlirfuse.numpy.asarray, or np.stack for a list of them; a function of another library: call it "
             "outside the compiled function")  # fmt: skip

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return api.array_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, function, types, args, kwargs):
        return api.array_function(function, args, kwargs)


class TracedScalar(TracedArray):
    """A number that is an argument, or computed from such: known at run time. Where the function needs it while it is
    traced (as an axis, a shape, a condition …) its value in this call becomes a constant that calls are checked for."""

    __slots__ = ("_thunk", "_weak")

    def __init__(self, trace: Trace, value: Value, weak: type | None, thunk: Callable[[], Any]):
        super().__init__(trace, value, scalar=True)
        self._weak = weak
        self._thunk = thunk

    def concrete(self):
        """Its value in this call, to which the trace is fixed from here on."""
        return self._thunk()

    def __bool__(self) -> bool:
        return bool(self.concrete())

    def __int__(self) -> int:
        return int(self.concrete())

    def __float__(self) -> float:
        return float(self.concrete())

    def __complex__(self) -> complex:
        return complex(self.concrete())

    def __index__(self) -> int:
        return operator.index(self.concrete())

    def __hash__(self) -> int:
        return hash(self.concrete())

    def __str__(self) -> str:
        return str(self.concrete())

    def __format__(self, spec: str) -> str:
        return format(self.concrete(), spec)

    def __round__(self, digits=None):
        return round(self.concrete(), digits)

    def __trunc__(self):
        return math.trunc(self.concrete())

    def __floor__(self):
        return math.floor(self.concrete())

    def __ceil__(self):
        return math.ceil(self.concrete())

    def item(self, *args):
        return self.concrete().item() if isinstance(self.concrete(), np.generic) else self.concrete()

    tolist = item

    def is_integer(self) -> bool:
        return self.concrete().is_integer()

    def bit_length(self) -> int:
        return self.concrete().bit_length()

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.concrete(), dtype)


numbers.Number.register(TracedScalar)


class LeafScalar(TracedScalar):
    """A number that is an argument itself."""

    __slots__ = ("leaf", "spec")

    def __init__(self, trace: Trace, value: Value, spec: ArgSpec, leaf: int):
        is_python = spec.weak or spec.value.__class__ is bool
        super().__init__(
            trace, value, {"b": bool, "i": int, "f": float, "c": complex}[spec.dtype.kind] if is_python else None, None
        )
        self.spec = spec
        self.leaf = leaf

    def concrete(self):
        self._trace.static_leaves[self.leaf] = self.spec.value
        return self.spec.value


class LeafArray(TracedArray):
    """A 0-d array on the host that is an argument. Until it is written into, it can become a constant as a number
    can."""

    __slots__ = ("leaf", "spec")

    def concrete(self):
        """Its value in this call, to which the trace is fixed from here on; None where it is not known."""
        if self._buffer.version or self.spec.value is None:
            return None
        self._trace.static_leaves[self.leaf] = self.spec.value
        return self.spec.value


def _or_concrete(name: str, convert):
    general = getattr(TracedArray, name)

    def method(self, *args):
        value = self.concrete()
        return general(self) if value is None else convert(value)

    setattr(LeafArray, name, method)


for _name, _convert in (
    ("__bool__", bool),
    ("__int__", int),
    ("__float__", float),
    ("__complex__", complex),
    ("__index__", operator.index),
):
    _or_concrete(_name, _convert)
for _name in ("item", "tolist"):
    _or_concrete(_name, lambda value: value.item())


# ----------------------------------------------------------------------------------------------------------------
# tracing


def trace(fn, leaves, tree: trees.Tree, name: str | None = None, aliases: dict[int, int] | None = None) -> Traced:
    """Traces ``fn`` on arguments whose tree is ``((positional…), {keyword…})``.

    ``aliases`` maps a leaf to an earlier one that is the same memory in the same layout. Raises TraceError, ShapeError,
    UnsupportedError or what the function itself raises.
    """
    t = Trace()
    paths = argument_names(fn, tree)
    stand_ins, arg_leaves, arrays = [], [], {}
    device = "cpu"
    for leaf, spec in enumerate(leaves):
        if isinstance(spec, Static):
            stand_ins.append(spec.value)
            continue
        arg_leaves.append(leaf)
        value = t.argument(spec, paths[leaf] or None)
        if spec.device != "cpu":
            device = spec.device
        if spec.scalar and not spec.writable:
            stand_ins.append(LeafScalar(t, value, spec, leaf))
            continue
        origin = (aliases or {}).get(leaf)
        if (
            origin in arrays
        ):  # the same memory: one value, so that what is written through one is read through the other
            value, buffer = arrays[origin]._value, arrays[origin]._buffer
        else:
            buffer = Buffer(value, leaf, writable=spec.writable)
        arrays[leaf] = LeafArray(t, value, buffer) if spec.value is not None else TracedArray(t, value, buffer)
        if spec.value is not None:
            arrays[leaf].spec, arrays[leaf].leaf = spec, leaf
        stand_ins.append(arrays[leaf])
        if spec.scalar:
            buffer.writable = False
    t.device = device
    if device != "cpu":
        for leaf, spec in enumerate(leaves):
            if isinstance(spec, ArgSpec) and not spec.scalar and spec.device != device:
                fail(TraceError, f"arguments on two devices: '{paths[leaf]}' is on {spec.device}, others on {device}. Move them to one; only "
                     "numbers and 0-d arrays may stay on the host")  # fmt: skip
    position = {leaf: k for k, leaf in enumerate(arg_leaves)}
    args, kwargs = tree.unflatten(stand_ins)
    statics = [spec.value for spec in leaves if isinstance(spec, Static)]
    objects = [
        value
        for value in statics
        if not isinstance(value, _PLAIN_TYPES) or (isinstance(value, type) and _namespace(value) is not None)
    ]
    t.roots, t.words = _roots(fn, objects)
    outer = current()
    _current.trace = t
    generators = _generator_states(t.roots)
    try:
        result = fn(*args, **kwargs)
    finally:
        _current.trace = outer
    if generators and _generator_states(t.roots) != generators:
        raise TraceError(
            f"{getattr(fn, '__name__', 'the function')} draws NumPy random numbers: they would be drawn once, when it is compiled. "
            "Use mlirfuse.numpy.uniform, normal or dropout with a seed that is an argument, or draw outside and pass the array"
        )
    out_leaves, out_tree = trees.flatten(result)
    returns: list[Value] = []
    where: dict[int, int] = {}
    identity = {id(stand_in): leaf for leaf, stand_in in enumerate(stand_ins) if isinstance(stand_in, TracedArray)}

    def add(value: Value, own: bool) -> int:
        if own and (value.op is None or value in returns):
            value = t.emit("copy", value)
        returns.append(value)
        return len(returns) - 1

    outs = []
    for x in out_leaves:
        if isinstance(x, TracedArray):
            if x._trace is not t:
                raise TraceError(
                    "the function returns a traced array of another compiled function's trace: it was kept from there"
                )
            if id(x) in identity:
                outs.append(Out("argument", identity[id(x)], scalar=_number_type(x)))
                continue
            if id(x) not in where:
                value, buffer = x.value, x._buffer
                if (
                    buffer.leaf is None and buffer.captured is None and _in_argument(value)
                ):  # new memory in NumPy: flatten, np.tile(x, 1)
                    value = t.emit("copy", value)
                where[id(x)] = add(value, True)
            outs.append(Out("result", where[id(x)], scalar=_number_type(x)))
        elif isinstance(x, SymInt):
            size = t.canonical(x.size)
            outs.append(
                Out("constant", value=size, scalar=int)
                if isinstance(size, int)
                else Out("size", value=size, scalar=int)
            )
        else:
            outs.append(Out("constant", value=x))
    graph_aliases, mutated = {}, {}
    for leaf, array in arrays.items():
        buffer = array._buffer
        if buffer.version and buffer.leaf == leaf and buffer.value is not t.block.args[position[leaf]]:
            result_position = add(buffer.value, True)
            graph_aliases[result_position] = position[leaf]
            mutated[leaf] = result_position
    t.block.returns = returns
    graph = Graph(
        name or getattr(fn, "__name__", "f").replace("<", "").replace(">", ""),
        t.block,
        t.layouts,
        t.scalars,
        graph_aliases,
        device,
    )
    _finish(t, graph)
    captured = [Captured(array, paths) for array, _, paths in t.captured.values()]
    return Traced(graph, out_tree, outs, t.static_leaves, list(t.guards), t.equalities, mutated, captured, t.symbols, arg_leaves,
                  {k: sorted(v) for k, v in t.scalar_ranges.items()}, t.index_ranges, _scope(t))  # fmt: skip


def _in_argument(value: Value) -> bool:
    """Whether an array of these elements could be a view of an argument."""
    while value.op is not None and value.op.name in VIEWS:
        value = value.op.operands[0]
    return value.op is None


def _number_type(x: TracedArray) -> type | None:
    if x._weak is not None:
        return x._weak
    return np.generic if x._scalar else None


def _finish(t: Trace, graph: Graph) -> None:
    """Writes the equalities into the whole graph, so that equal sizes are one symbol everywhere."""
    if not t.learned:
        return
    canonical = t.canonical
    for value in graph.args:
        t._refresh(value)
    graph.layouts = [layout and Layout(tuple(map(canonical, layout.strides)), layout.align) for layout in graph.layouts]
    for op in walk(graph.body):
        for value in op.results:
            t._refresh(value)
        for key, attr in op.attrs.items():
            if key in SIZE_ATTRS:
                op.attrs[key] = tuple(map(canonical, attr))
            elif key == "value" and op.name == "size":
                op.attrs[key] = canonical(attr)


def argument_names(fn, tree: trees.Tree) -> list[str]:
    """What to call each leaf of the arguments of ``fn``."""
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    names = list(code.co_varnames[: code.co_argcount]) if code else []
    if hasattr(fn, "__func__") and names:
        names = names[1:]
    positional, keyword = tree.children
    out = []
    for k, child in enumerate(positional.children):
        out += child.paths(names[k] if k < len(names) else f"args[{k - len(names)}]")
    for key, child in zip(keyword.keys or (), keyword.children):
        out += child.paths(str(key))
    return out


def _roots(fn, objects=()) -> tuple[list, set[str]]:
    """What ``fn``, and the user's functions that it can call, read from around them: (name, root, steps, value). And
    the names in their code. ``objects``: arguments that are neither arrays nor numbers, whose attributes they read."""
    out, seen, words = [("self", value, (), value) for value in objects], set(), set()
    queue = [fn, *(value for value in objects if callable(value))]
    while queue and len(seen) < 32:
        fn = queue.pop(0)
        receiver, function = getattr(fn, "__self__", None), getattr(fn, "__func__", fn)
        if receiver is not None:
            out.append(("self", receiver, (), receiver))
        if not isinstance(function, types.FunctionType):
            out.append(("self", function, (), function))
            function = getattr(type(function), "__call__", None)
            if not isinstance(function, types.FunctionType):
                continue
        code = function.__code__
        if code in seen or _is_internal(code.co_filename):
            continue
        seen.add(code)
        words |= _words(code)
        first = len(out)
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            try:
                out.append((name, cell, (("cell", None),), cell.cell_contents))
            except ValueError:
                continue
        scope = function.__globals__
        out += [(name, scope, (("item", name),), scope[name]) for name in code.co_names if name in scope]
        for k, value in enumerate(function.__defaults__ or ()):
            out.append((f"default{k}", function, (("attr", "__defaults__"), ("item", k)), value))
        names = _words(code)
        for name, root, steps, value in out[first:] + [r for r in out[:first] if r[0] == "self"]:
            if isinstance(value, (types.FunctionType, types.MethodType)):
                queue.append(value)
            elif isinstance(value, types.ModuleType) and not _is_internal(
                getattr(value, "__file__", None) or "<frozen"
            ):
                inside = vars(value)
                out += [(f"{name}.{k}", inside, (("item", k),), inside[k]) for k in names if k in inside]
                queue += [inside[k] for k in names if isinstance(inside.get(k), types.FunctionType)]
            elif not isinstance(value, _PLAIN_TYPES) and isinstance(getattr(value, "__dict__", None), dict):
                if isinstance(value.__dict__.get("__wrapped__"), types.FunctionType):  # another compiled function
                    queue.append(value.__wrapped__)
                queue += _methods(value, type(value), names)
            elif isinstance(value, type) and _namespace(value) is not None:
                queue += _methods(value, value, names)
    return out, words


def _methods(value, kind: type, names) -> list:
    """The functions behind attributes with these names of ``value``, which finds them in the class ``kind``: methods
    and properties."""
    out = []
    for name in names:
        found = inspect.getattr_static(kind, name, None)
        if isinstance(found, (types.FunctionType, classmethod, staticmethod)):
            out.append(getattr(value, name))
        elif isinstance(found, property) and value is not kind and isinstance(found.fget, types.FunctionType):
            out.append(types.MethodType(found.fget, value))
    return out


_SCALARS = (
    int,
    float,
    bool,
    complex,
    str,
    bytes,
    type(None),
    np.generic,
    np.dtype,
    np.ufunc,
    types.FunctionType,
    types.BuiltinFunctionType,
)


def _scope(t: Trace) -> list:
    """What the function reads from around it and could find changed at a later call: (namespace, key, value) for
    numbers, strings and functions, and for the containers and objects that lead to them; where arrays were computed
    from outside ones while the function was traced, the arrays, too. A key is an attribute's name, an item's key or,
    for its length, ``len``."""
    kinds = _SCALARS + ((np.ndarray,) if any(not paths for _, _, paths in t.captured.values()) else ())
    out: dict[tuple, tuple] = {}
    seen: set[int] = set()
    queue: collections.deque = collections.deque()

    def meet(namespace, key, value, depth):
        container = isinstance(value, (dict, list, tuple)) or _namespace(value) is not None
        if namespace is not None and (isinstance(value, kinds) or container):
            out[id(namespace), key] = (namespace, key, value)
        if container and depth < 4 and id(value) not in seen:
            seen.add(id(value))
            queue.append((value, depth + 1))

    for _, root, steps, value in t.roots:
        if not steps:
            meet(None, None, value, 0)
        elif len(steps) == 1 and steps[0][0] != "attr":
            meet(root, steps[0][1], value, 0)
    while queue and len(out) < 1024:
        value, depth = queue.popleft()
        if isinstance(value, dict):
            out[id(value), len] = (value, len, len(value))
            for k, v in list(value.items())[:256]:
                if not isinstance(k, str) or k in t.words or t.words & {"items", "values"}:
                    meet(value, k, v, depth)
        elif isinstance(value, (list, tuple)):
            if isinstance(value, list):
                out[id(value), len] = (value, len, len(value))
            for k, v in enumerate(value[:256]):
                meet(None if isinstance(value, tuple) else value, k, v, depth)
        else:
            for k in t.words:
                namespace, found = _attribute(value, k)
                if namespace is not None:
                    meet(namespace, k, found, depth)
    return list(out.values())


def read_scope(namespace, key):
    """What is now where the scope of a trace says; ``read_scope`` itself where nothing is."""
    try:
        if key is len:
            return len(namespace)
        if type(namespace) is dict or type(namespace) is list:
            return namespace[key]
        return namespace.cell_contents if type(namespace) is types.CellType else getattr(namespace, key)
    except (LookupError, AttributeError, ValueError):
        return read_scope


def unchanged(now, value) -> bool:
    """Whether what a trace read is the same now. Containers, objects and arrays are told by identity: what they hold is
    watched by itself, or read at each call."""
    return now is value or (isinstance(value, _SCALARS) and same_value(now, value))


def same_value(a, b) -> bool:
    """Whether two constants are one. 0.0 and -0.0 are two, and a NaN is one."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, (float, complex, np.inexact)):
        return np.asarray(a).tobytes() == np.asarray(b).tobytes()
    try:
        return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)
    except Exception:  # whatever the objects' own comparison does
        return False


def _namespace(value):
    """Where the attributes of a user's object or class are read from; None for anything else."""
    if isinstance(value, type):
        return (
            value
            if not _is_internal(getattr(sys.modules.get(value.__module__), "__file__", None) or "<frozen")
            else None
        )
    if isinstance(value, (*_PLAIN_TYPES, types.FunctionType, types.MethodType)):
        return None
    inside = getattr(value, "__dict__", None)
    return inside if isinstance(inside, dict) else None


def _attribute(value, name: str) -> tuple:
    """Where :func:`read_scope` finds an attribute of a user's object or class, and what it is; None twice for what
    running code alone can tell, as of properties."""
    inside = {} if isinstance(value, type) else _namespace(value)
    if name in inside:
        return inside, inside[name]
    for kind in (value if isinstance(value, type) else type(value)).__mro__:
        if name in vars(kind):
            found = vars(kind)[name]
            if isinstance(found, types.FunctionType):
                return kind, found
            return (
                (None, None) if hasattr(type(found), "__get__") else (value, found)
            )  # of the object: it may get one of its own
    return None, None


def _words(code) -> set[str]:
    """The names and strings in a function's code and the functions within it."""
    out = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, str):
            out.add(constant)
        elif isinstance(constant, types.CodeType):
            out |= _words(constant)
    return out


def _generator_states(roots) -> list:
    """What tells whether NumPy random numbers were drawn: from NumPy's own generator, or one that the function can
    see."""
    module = sys.modules.get("numpy.random.mtrand")
    if module is None:
        return []
    state = module._rand.get_state(legacy=False)
    out = (
        [(state["state"]["pos"], int(state["state"]["key"][0]), state["has_gauss"], state["gauss"])]
        if "key" in state["state"]
        else []
    )
    for _, _, _, value in roots:
        if isinstance(value, np.random.Generator):
            out.append(str(value.bit_generator.state))
        elif isinstance(value, np.random.RandomState):
            out.append(str(value.get_state()))
    return out


from mlirfuse.frontend.numpy import api  # noqa: E402  (these need the classes above)
from mlirfuse.frontend.numpy import functions, indexing  # noqa: E402, F401
