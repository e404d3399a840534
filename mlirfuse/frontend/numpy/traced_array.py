"""Stand-ins for arrays, and for numbers whose values the function may need during tracing.

They make array writes functional. A :class:`Buffer` is the memory that an array and its views share. A view is a path
of steps from the buffer: reads replay the path, writes invert it, so a write through one view is visible through all
others, as in NumPy."""

from __future__ import annotations

import math
import numbers
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mlirfuse.core.errors import TraceError
from mlirfuse.frontend.numpy.effects import give_up
from mlirfuse.frontend.numpy.memory_order import along, is_view, order_of, strides_of
from mlirfuse.frontend.numpy.registry import suggestion
from mlirfuse.frontend.numpy.source import UnsupportedAttribute, fail, is_internal
from mlirfuse.frontend.numpy.stand_in import NumberStandIn, StandIn
from mlirfuse.frontend.numpy.views import FullView, Permute, Reshape, read_along
from mlirfuse.ir.graph import Value
from mlirfuse.runtime.signature import ArgSpec

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.trace_state import Trace


_NO_TRUTH = (
    "{} of a traced array ({}) is not known during compilation: it cannot decide an 'if', 'while', 'and' or 'assert'. "
    "Use np.where(condition, a, b), or np.logical_and / & and | for conditions"
)
_NO_NUMBER = (
    "{} needs a number, and the value of a traced array ({}) is not known during compilation. Keep it as an array, or "
    "compute the number outside the function and pass it as an argument"
)


@dataclass(frozen=True)
class Method:
    """The call ``x.name(*args)`` as a function of ``x``; equal ones compare equal."""

    name: str
    args: tuple = ()

    def __call__(self, x: Any) -> Any:
        return getattr(x, self.name)(*self.args)


_MADE_BY_WRITES = {"set_slice", "broadcast_in_dim", "full"}  # ops that only assignments emit


class Buffer:
    """The memory of an array and its views. ``value`` is the current content; ``version`` counts writes.

    ``origin`` is the initial content, ``leaf`` the index of the argument it belongs to, ``captured`` the graph
    argument's index of an array from outside.
    """

    __slots__ = ("captured", "fixed", "leaf", "origin", "slot", "touched", "value", "version", "writable")

    def __init__(
        self, value: Value | None = None, leaf: int | None = None, captured: int | None = None, writable: bool = True
    ):
        # None only until the array is constructed.
        self.value: Value = value  # type: ignore[assignment]
        self.origin: Value = value  # type: ignore[assignment]
        self.version = 0
        self.leaf = leaf
        self.captured = captured
        self.writable = writable
        # With graph breaks: the real array's slot, whether it was written into before, and whether it is now read-only.
        self.slot: int | None = None
        self.touched = self.fixed = False


class TracedArray(StandIn):
    """Represents an array during tracing. Has NumPy's operators, methods and attributes."""

    __slots__ = ("__weakref__", "_buffer", "_path", "_scalar", "_trace", "_value", "_version")
    _weak: type | None = None

    if TYPE_CHECKING:  # methods that functions/methods.py attaches to the class
        __contains__: ClassVar[Callable[..., Any]]
        __getitem__: ClassVar[Callable[..., Any]]
        __setitem__: ClassVar[Callable[..., Any]]
        __copy__: ClassVar[Callable[..., Any]]

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
        self._scalar = scalar  # NumPy would return a number here, not a 0-d array
        if trace.session is not None:
            trace.session.meet(self)

    # ---- value

    @property
    def value(self) -> Value:
        """The array's content at this point of the function."""
        if self._version != self._buffer.version:
            self._check_reshapes()
            self._value = read_along(self._trace, self._buffer.value, self._path)
            self._version = self._buffer.version
        return self._value

    def step(self, step) -> TracedArray:
        """The view after one more step (see :mod:`mlirfuse.frontend.numpy.views`)."""
        if isinstance(step, Permute) and self._path and self._path[-1] == step.inverse():
            before = self._path[:-1]
            return self._view(read_along(self._trace, self._buffer.value, before), before or (FullView(),))
        return self._view(step.read(self._trace, self.value), (*self._path, step))

    def alias(self) -> TracedArray:
        """Another array with the same memory; of a number, one with its value."""
        return self._view(self.value, self._path or (FullView(),))

    def _view(self, value: Value, path: tuple) -> TracedArray:
        """The view of the same memory at ``path``, which has this value; of a number, a new one."""
        if self._scalar:
            return TracedArray(self._trace, value)
        return TracedArray(self._trace, value, self._buffer, path)

    def seen_whole(self) -> TracedArray:
        """A view of all of an array; a number itself, as NumPy's functions of views give it."""
        return self if self._scalar else self.alias()

    def _check_reshapes(self) -> None:
        if any(isinstance(step, Reshape) for step in self._path) and not self._is_view():
            fail(
                TraceError,
                "an array and a reshape of it are written and read here, and whether NumPy made the "
                "reshape a view or a copy depends "
                "on the array's memory layout: write into the array before it is reshaped, or reshape a copy of it",
            )

    def _is_view(self) -> bool:
        """Whether all reshapes on this array's path are views in every call."""
        t, shape, strides = self._trace, self._buffer.origin.shape, strides_of(self._trace, self._buffer.origin)
        for step in self._path:
            if isinstance(step, Reshape) and not is_view(t, strides, shape, step.shape):
                return False
            strides, shape = along(t, strides, shape, (step,)), step.out(shape)
        return True

    def assign(self, new: Value) -> None:
        """Replaces the array's content by ``new``, which has its dtype and shape."""
        buffer = self._buffer
        if self._scalar:
            fail(TypeError, "a number does not support in-place assignment")
        if buffer.captured is not None:
            fail(
                TraceError,
                "writing into an array from outside the function: pass it as an argument, or write into a copy of it",
            )
        self._check_reshapes()
        if buffer.fixed:
            self._trace.session.abort("it writes into an array that shares memory with another")
        if not buffer.writable:
            fail(ValueError, "assignment destination is read-only")
        buffer.value = self._in_memory(self._written(buffer.value, 0, new))
        buffer.version += 1
        if not self._path:
            self._value, self._version = new, buffer.version

    def _in_memory(self, value: Value) -> Value:
        """``value`` for the buffer, with the buffer's layout; a copy where it may alias another array."""
        t, buffer = self._trace, self._buffer
        lies = strides_of(t, buffer.origin)
        if value.rank < 2 or lies is None:
            return value
        if value in t.strides or value.op is None or value.op.name not in _MADE_BY_WRITES:
            known = strides_of(t, value)
            repeats = known is not None and any(n != 1 and s == 0 for n, s in zip(value.shape, known))
            if not repeats and order_of(t, known, value.shape) == order_of(t, lies, value.shape):
                return value
            value = t.emit("copy", value)
        t.strides[value] = lies
        return value

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

    @shape.setter
    def shape(self, shape: Any) -> None:
        """Reshapes in place, which NumPy allows where no copy is needed."""
        if self._buffer.leaf is not None and not self._path:
            fail(TraceError, "an argument's shape is set: reshape it to a new variable")
        found = self.reshape(shape)
        if found._buffer is not self._buffer:
            fail(TraceError, "the shape of an array is set that would need a copy: reshape it to a new variable")
        self._value, self._path, self._version = found._value, found._path, found._version

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
            raise TypeError(
                f"object of type '{self._class_name}' has no len()" if self._scalar else "len() of unsized object"
            )
        return self._trace.concretise(self._value.shape[0])

    def __iter__(self):
        if not self._value.shape:
            raise TypeError(
                f"'{self._class_name}' object is not iterable" if self._scalar else "iteration over a 0-d array"
            )
        return (self[k] for k in range(len(self)))

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The array API standard's functions: the traced NumPy module."""
        return self._trace.stand_ins.of(np)

    @property
    def device(self) -> str:
        """The array API's device: "cpu" or the GPU."""
        return self._trace.device

    def to_device(self, device: str, /, *, stream: Any = None) -> TracedArray:
        """The array itself, if ``device`` is its own. Raises ValueError for another device."""
        if device != self._trace.device:
            fail(ValueError, f"Unsupported device: {device!r}. Only {self._trace.device!r} is allowed.")
        return self

    def _described(self) -> str:
        """The array's name in error messages."""
        return f"TracedArray({self._value.dtype}[{', '.join(map(str, self._trace.shape(self._value)))}])"

    @property
    def _stands_for(self) -> type:
        """The class that the array has in NumPy."""
        return self._weak or (self.dtype.type if self._scalar else np.ndarray)

    @property
    def _class_name(self) -> str:
        """The name of that class in Python's error messages."""
        kind = self._stands_for
        return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"

    def __getattr__(self, name: str):
        if self._weak is not None and hasattr(self._weak, name):
            return getattr(self.known(), name)
        if self._weak is None and not name.startswith("_") and hasattr(self._stands_for, name):
            if self._trace.session is not None:
                return self._trace.session.attribute(self, name)
            fail(
                UnsupportedAttribute,
                f"the array method or attribute '{name}' is not supported in a compiled function: {suggestion(name)}",
                kept=not is_internal(sys._getframe(1).f_code.co_filename),
            )
        raise AttributeError(f"'{self._class_name}' object has no attribute '{name}'")

    # ---- conversions that need the array's value

    def known(self) -> Any:
        """The value, if it is known during tracing, or can be by specializing the trace to it; else None."""
        return None

    def _number(self, how: Callable[[Any], Any], what: str) -> Any:
        """``how(x)``, which needs the value. Raises TraceError, which names ``what`` it is for, where nothing tells
        it."""
        known = self.known()
        if known is not None:
            return how(known)
        if self._trace.session is not None:
            return self._trace.session.read(self, how)
        fail(TraceError, (_NO_TRUTH if how is bool else _NO_NUMBER).format(what, self._described()))

    def __bool__(self) -> bool:
        return self._number(bool, "the truth")

    def _text(self, how: Callable[[Any], str]) -> str:
        """``how(x)``, the text of the array for user code."""
        if not self._trace.running:
            return self._described()
        return self._number(how, "the text of an array")

    def __format__(self, spec: str) -> str:
        return self._text(Method("__format__", (spec,)))

    def __str__(self) -> str:
        return self._text(str)

    def __repr__(self) -> str:
        return self._text(repr)

    def __bytes__(self) -> bytes:
        return self._number(bytes, "bytes()")

    def __reduce_ex__(self, protocol):
        give_up("the array's value, to pickle it")

    def __float__(self):
        return self._number(float, "float()")

    def __int__(self):
        return self._number(int, "int()")

    def __complex__(self):
        return self._number(complex, "complex()")

    def __index__(self):
        return self._number(operator.index, "an index, a shape or range()")

    def item(self, *args):
        return self._number(Method("item", args), "item()")

    def tolist(self):
        return self._number(Method("tolist"), "tolist()")

    def __hash__(self) -> int:
        if not self._scalar:
            raise TypeError("unhashable type: 'numpy.ndarray'")
        give_up("the hash of a computed number")

    def __array__(self, dtype=None, copy=None):
        if self._trace.session is not None:
            self._trace.session.abort("a function that is not traced reads an array")
        fail(
            TraceError,
            f"a traced array ({self._described()}) cannot become a NumPy array during compilation. np.array and "
            "np.asarray of traced values: use mlirfuse.numpy.asarray, or np.stack for a list of them; a function of "
            "another library: call it outside the compiled function",
        )


class TracedScalar(NumberStandIn, TracedArray):
    """A number that is an argument or computed from some: known at run time. Where tracing needs it (an axis, a shape,
    a condition …), its value in this call becomes a constant with a guard."""

    __slots__ = ("_compute", "_found", "_operands", "_weak", "later")

    def __init__(
        self,
        trace: Trace,
        value: Value,
        weak: type | None,
        compute: Callable[..., Any] | None,
        operands: Sequence = (),
        later: bool = False,
    ):
        """``compute`` returns the value in this call from those of ``operands``; None where a subclass overrides
        :meth:`concrete`. ``later``: a kernel computes it before the next graph break."""
        super().__init__(trace, value, scalar=True)
        self._weak = weak
        self._compute, self._operands = compute, operands
        self._found: tuple[Any, ...] = ()  # the value, once known
        self.later: bool = later or any(isinstance(x, TracedScalar) and x.later for x in operands)

    def concrete(self):
        """The value in this call; specializes the trace to it."""
        for number in operands_first(self, lambda x: bool(x._found) or x._compute is None):
            operands = [x.concrete() if isinstance(x, NumberStandIn) else x for x in number._operands]
            number._found = (number._compute(*operands),)  # type: ignore[misc]
        return self._found[0]

    def known(self):
        return self.concrete()

    def item(self, *args):
        return self.concrete().item() if isinstance(self.concrete(), np.generic) else self.concrete()

    tolist = item


numbers.Number.register(TracedScalar)


def operands_first(
    x: TracedScalar, known: Callable[[TracedScalar], bool], most: float = math.inf
) -> Iterator[TracedScalar]:
    """``x`` and the numbers that it is computed from, each after its operands and without recursion: a loop's result
    may be as deep as its number of iterations. Leaves out those that are ``known`` when their turn comes, and ends
    early where more than ``most`` wait for their operands."""
    left = [x]
    while left and len(left) <= most:
        last = left[-1]
        done = known(last)
        before = [] if done else [y for y in last._operands if isinstance(y, TracedScalar) and not known(y)]
        left += before
        if not before:
            left.pop()
            if not done:
                yield last


def is_number(x: Any) -> bool:
    """Whether an operand is a number, perhaps known only at run time, rather than a traced array."""
    return not isinstance(x, TracedArray) or isinstance(x, TracedScalar)


class LeafScalar(TracedScalar):
    """A number that is an argument."""

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
    """A 0-d array on the host that is an argument. Until it is written into, the trace can specialize to its value."""

    __slots__ = ("leaf", "spec")
    leaf: int
    spec: ArgSpec

    def known(self):
        """The value in this call; specializes the trace to it. None where it is unknown."""
        if self._buffer.version or self.spec.value is None:
            return None
        self._trace.static_leaves[self.leaf] = self.spec.value
        return np.asarray(self.spec.value)
