"""The state of a trace in progress: the graph so far, and the facts and guards about sizes."""

from __future__ import annotations

import contextlib
import math
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from mlirfuse.core.errors import ShapeError, TraceError
from mlirfuse.frontend.numpy.effects import give_up
from mlirfuse.frontend.numpy.scope import access_paths, frame_roots, spec_of
from mlirfuse.frontend.numpy.size_bounds import size_bounds
from mlirfuse.frontend.numpy.source import as_numpys, fail, located, located_error, location, refusals
from mlirfuse.frontend.numpy.stand_in import SymInt
from mlirfuse.frontend.numpy.traced_array import Buffer, TracedArray
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Layout, Value
from mlirfuse.ir.sizes import Expr, Size
from mlirfuse.runtime import arrays
from mlirfuse.runtime.signature import COMPARE, OPPOSITE, ArgSpec, NumberGuard, SizeGuard, layout_of

_current = threading.local()


class TooLong(BaseException):
    """Ends a trace that exceeds the op limit of functions that can fall back. Not an Exception, so that the function's
    own handlers do not catch it."""


def current() -> Trace | None:
    """This thread's current trace, or None."""
    return getattr(_current, "trace", None)


@contextlib.contextmanager
def in_progress(trace: Trace | None):
    """Makes ``trace`` the current one."""
    outer, within = current(), refusals.traced
    _current.trace, refusals.traced = trace, trace is not None
    if trace is not None:
        trace.running = True
    try:
        yield
    except Exception as error:
        if trace is None or within or not hasattr(error, "_leaves_as"):
            raise
        raise located_error(error) from error.__cause__
    finally:
        _current.trace, refusals.traced = outer, within
        if trace is not None:
            trace.running = False


class Trace:
    """A trace in progress: the graph so far, the symbols' values in this call, and the guards recorded from
    decisions."""

    def __init__(self, most_ops: int | None = None):
        self.most_ops = most_ops
        self.block = Block()
        self.builder = Builder(self.block, location)
        self.hints: dict[str, int] = {}
        self.substitution = sz.Substitution()
        self.same: dict[Size, Size] = {}
        self.learned = False  # whether the two above hold anything
        self._canonical: dict[Size, Size] = {}
        self._hints: dict[Size, int] = {}
        self.guards: dict[SizeGuard, None] = {}
        self.equalities: list[tuple[Size, Size]] = []
        self.static_leaves: dict[int, Any] = {}
        self.scalar_ranges: dict[int, set[tuple[int, int]]] = {}
        self.index_ranges: dict[int, list[tuple[Size, Size]]] = {}
        self.number_guards: dict[tuple[Value, str, bool], NumberGuard] = {}
        self.int_ranges: dict[Value | Expr, Any] = {}  # of Python's ints and of sizes: see int_ranges
        self.symbols: dict[str, tuple[int, str, int]] = {}
        self.layouts: list[Layout | None] = []
        self.scalars: set[int] = set()
        self.captured: dict[int, tuple[Any, TracedArray, tuple]] = {}
        self.warnings: dict[str, None] = {}  # that each call repeats, as NumPy does
        self.random_ops = 0  # that draw without a seed
        self.alive: list = []  # arrays whose ids are keys of `captured`
        self.device = "cpu"
        self.thread, self.shared = threading.get_ident(), False  # whether another thread has tried to add ops
        self.checks_indices = True  # kernels report out-of-bounds indices
        self.strides: dict[Value, Any] = {}  # as NumPy would have them: see memory_order
        self.views: dict[Value, tuple[Value, Any]] = {}  # copies of what are views in NumPy: the array and the step
        self.roots: list = []
        self.session: Any = None  # the mlirfuse.frontend.numpy.graph_breaks.session.Session, where there is one
        self.stand_ins: Any = None  # the mlirfuse.frontend.numpy.rebuild.StandIns of the traced function
        self.running = False  # user code runs: it must not see stand-ins as text
        self.leaf_objects: list = []  # the call's own arguments
        self.leaf_of: dict[int, int] = {}  # a stand-in's id to its argument's leaf
        self.compares = False  # the function asks whether two arguments are one object
        self.codes: set[types.CodeType] = set()  # the traced code
        self._counts = {"s": 0, "t": 0}

    def assumptions(self) -> dict[str, Any]:
        """What the trace assumes of calls: the fields of :class:`Assumptions`."""
        return {
            "symbols": self.symbols,
            "size_guards": list(self.guards),
            "equalities": self.equalities,
            "constants": list(self.static_leaves.items()),
            "scalar_ranges": {leaf: sorted(ranges) for leaf, ranges in self.scalar_ranges.items()},
            "index_ranges": self.index_ranges,
            "number_guards": list(self.number_guards.values()),
        }

    # ---- sizes

    def sym(self, size: Size):
        """A size as user code sees it: an int or a :class:`SymInt`."""
        size = self.canonical(size)
        return SymInt(self, size) if isinstance(size, sz.Expr) else size

    def canonical(self, size: Size) -> Size:
        """``size`` simplified by all equalities found so far."""
        if size.__class__ is int or not self.learned:
            return size
        found = self._canonical.get(size)
        if found is None:
            found = self.substitution(size)
            if self.same:
                found = self.same.get(found, found)
            self._canonical[size] = found
        return found

    def shape(self, value: Value) -> tuple[Size, ...]:
        return tuple([self.canonical(n) for n in value.shape]) if self.learned else value.shape

    def hint(self, size: Size) -> int:
        """The size's value in the traced call."""
        if size.__class__ is int:
            return size
        found = self._hints.get(size)
        if found is None:
            found = self._hints[size] = sz.substitute(size, self.hints)
        return found

    def hints_of(self, shape) -> tuple[int, ...]:
        return tuple([n if n.__class__ is int else self.hint(n) for n in shape])

    def decide(self, left: Size, op: str, right: Size) -> bool:
        """Whether ``left op right``; records a guard unless the answer holds for all sizes."""
        left, right = self.canonical(left), self.canonical(right)
        difference = left - right
        if isinstance(difference, int):
            return COMPARE[op](difference, 0)
        low, high = size_bounds(difference)
        at_low, at_high = COMPARE[op](low, 0), COMPARE[op](high, 0)
        if at_low == at_high and (op not in ("==", "!=") or low > 0 or high < 0):
            return at_low
        outcome = COMPARE[op](self.hint(left) - self.hint(right), 0)
        self.guards[SizeGuard(left, op if outcome else OPPOSITE[op], right)] = None
        if outcome if op == "==" else (op == "!=" and not outcome):
            self._learn(left, right)
        return outcome

    def concretise(self, size: Size) -> int:
        """The value of ``size`` in this call; specializes the trace to it."""
        size = self.canonical(size)
        if isinstance(size, int):
            return size
        return self._specialized(size, self.hint(size))

    def _specialized(self, size: Size, value: int) -> int:
        self.guards[SizeGuard(size, "==", value)] = None
        self._learn(size, value)
        return value

    def extent(self, size: Size) -> Size:
        """``size`` as an extent of a new shape: specializes to 0 and 1, rejects negative ones."""
        size = self.canonical(size)
        if isinstance(size, int) or size_bounds(size)[0] >= 2:
            return size
        value = self.hint(size)
        if value <= 1:
            return self._specialized(size, value)
        self.guards[SizeGuard(size, ">", 1)] = None
        return size

    def unify(self, a: Size, b: Size) -> bool:
        """Whether the sizes are equal in this call; if so records their equality as a condition of the trace."""
        a, b = self.canonical(a), self.canonical(b)
        if a == b:
            return True
        if self.hint(a) != self.hint(b):
            return False
        self.equalities.append((a, b))
        self._learn(a, b)
        return True

    def _learn(self, a: Size, b: Size) -> None:
        """Substitutes equal sizes: solves for a symbol where possible, else maps one expression to the other."""
        self.learned = True
        self._canonical = {}
        if isinstance(a, Expr) and a.is_symbol and (isinstance(b, int) or b.is_symbol):
            self._substitute(*((str(a), b) if isinstance(b, int) or _later(str(a), str(b)) else (str(b), a)))
            return
        terms_a, terms_b = sz._terms(a), sz._terms(b)
        if len(terms_a) == 1 and len(terms_b) == 1:  # products: cancel common factors
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
        single = {name: size}
        self.substitution.add(name, size)
        if self.same:
            self.same = {sz.substitute(k, single): sz.substitute(v, single) for k, v in self.same.items()}
            self.same = {k: v for k, v in self.same.items() if k != v and not isinstance(k, int)}

    # ---- ops

    def emit(self, name: str, *operands: Value, **attrs) -> Value:
        """Appends an op; errors name the user's line."""
        if threading.get_ident() != self.thread:
            self.shared = True
            give_up("its arrays in another thread")
        if self.most_ops is not None and len(self.block.ops) >= self.most_ops:
            raise TooLong(located(f"it has more than {self.most_ops} ops: a long loop?"))
        try:
            created = self.builder.op(name, *operands, **attrs)
        except (ShapeError, TypeError) as error:
            raise as_numpys(error) from None
        if self.learned:
            for value in created if isinstance(created, list) else (created,):
                self.refresh(value, self.canonical)
        return created

    @staticmethod
    def refresh(value: Value, size: Callable[[Size], Size]) -> None:
        """Replaces each extent of a value."""
        shape = tuple([size(n) for n in value.shape])
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
        strides = tuple(sz.contiguous_strides(shape) if 0 in spec.shape else self._strides(position, spec, shape))
        self.layouts.append(Layout(strides, spec.align))
        self.strides[value] = strides
        return value

    def _strides(self, position: int, spec: ArgSpec, shape: tuple[Size, ...]) -> list[Size]:
        """The strides of an argument of this shape, with symbols for those that no extents give."""
        rank, flags = len(shape), layout_of(spec.shape, spec.strides)
        strides: list[Size] = [0] * rank
        running: Size = 1
        moving = (a for a in range(rank) if spec.shape[a] != 1 and spec.strides[a] != 0)
        for axis in sorted(moving, key=lambda a: (abs(spec.strides[a]), -a)):
            sign = 1 if spec.strides[axis] > 0 else -1
            if flags[axis] == -1:
                running = sz.mul(self._symbol("t", spec.strides[axis], (position, "stride", axis)), sign)
            strides[axis] = sz.mul(running, sign)
            running = sz.mul(running, shape[axis])
        for axis in reversed(range(rank)):
            if spec.shape[axis] == 1:
                strides[axis] = sz.mul(strides[axis + 1], shape[axis + 1]) if axis + 1 < rank else 1
        return strides

    def capture(self, array) -> TracedArray:
        """An array from outside the function, as a hidden argument of the graph."""
        found = self.captured.get(id(array))
        if found is not None and not found[2] and found[0] is not array and not _same_elements(found[0], array):
            # It was written into since: treat it as a new array. (Captured arrays keep their order.)
            self.captured = {id(f[0]) if f is found else key: f for key, f in self.captured.items()}
            found = None
        if found is None:
            name, paths = access_paths(array, self.roots + frame_roots())
            position, key = len(self.block.args), id(array)
            created_here = not paths and isinstance(array, np.ndarray)  # created during tracing: it may still change
            if created_here and array.nbytes <= _SNAPSHOT:
                self.alive.append(array)
                array = array.copy(order="K")
            if created_here and array.shape and self.session is not None:
                array = self.session.state.own(array)
            spec = spec_of(array)
            if spec.device != self.device and spec.shape:
                hint = (
                    "; create arrays inside the function with mlirfuse.numpy (arange, zeros, ...)"
                    if spec.device == "cpu"
                    else ""
                )
                fail(
                    TraceError,
                    f"an array on {spec.device} from outside the function is used with arguments on "
                    f"{self.device}: move it there before{hint}",
                )
            slot = None if self.session is None else self.session.slot_of_captured(array, paths)
            counts = self._counts
            if slot is not None:  # other traces may capture other arrays, which the same tree of steps holds
                self._counts = dict.fromkeys(counts, _SYMBOLS * -slot)
            value = self.argument(spec, name)
            self._counts = counts
            created = TracedArray(self, value, Buffer(captured=position, writable=False))
            found = self.captured[key] = (array, created, paths)
            if slot is not None:
                self.session.captured(created, slot)
        return found[1]


_SYMBOLS = 10**6  # above the numbers of the symbols of arguments and calls' results
_SNAPSHOT = 64 << 20  # bytes; larger arrays created during tracing are not copied


def _same_elements(a, b) -> bool:
    a = arrays.to_numpy(a)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _later(a: str, b: str) -> bool:
    return (a[0], int(a[1:])) > (b[0], int(b[1:]))
