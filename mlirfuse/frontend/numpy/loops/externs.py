"""Extern ops in compiled loops: a call of a NumPy function that has no code here is one step of the loop, which runs in
Python on views of the loop's arrays.

The types of the results are those of a call with sample arguments of the same types, so only functions are called whose
results' types do not depend on values. The results' memory is NumPy's, which is kept while a variable uses it.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlirfuse import _native
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.loops.draws import is_generator
from mlirfuse.frontend.numpy.loops.values import (
    Array,
    ArrayType,
    NotOutlinable,
    Number,
    NumberType,
    Static,
    Tuple,
    require,
    type_of,
    words_of,
)
from mlirfuse.frontend.numpy.loops.words import array_of, number, put_number
from mlirfuse.ir import dtypes as dt
from mlirfuse.runtime import extern_ops, linear_algebra

_LINALG = "solve inv eigh eigvalsh svd qr cholesky det slogdet pinv lstsq matrix_power matrix_rank cond norm multi_dot"
_NUMPY = (
    "sort argsort lexsort partition argpartition unique histogram histogram2d bincount digitize searchsorted interp "
    "einsum tensordot inner vdot kron cross median percentile quantile average convolve correlate polyfit polyval "
    "gradient cov corrcoef tile repeat meshgrid linspace logspace geomspace trapezoid nonzero flatnonzero argwhere "
    "isclose allclose cumsum cumprod nansum nanmean nanmax nanmin nanstd nanvar nanmedian nanargmax nanargmin ptp "
    "delete insert append pad vander tri isin intersect1d setdiff1d union1d ediff1d select choose take take_along_axis "
    "compress extract unwrap i0 sinc angle round around std var prod arange diff roll triu tril where clip hanning "
    "hamming blackman kaiser nan_to_num array_equal"
)
_PURE = {
    getattr(module, name)
    for module, names in ((np.linalg, _LINALG.split()), (np.fft, np.fft.__all__), (np, _NUMPY.split()))
    for name in names
    if callable(getattr(module, name, None))
}
_OPERANDS = (np.ndarray, np.generic, int, float, complex, bool)


def supported(function: Any) -> bool:
    """Whether a function can be an extern op: its results' types depend on its arguments' types and constants only."""
    if isinstance(function, np.ufunc):
        return function.signature is None and function.nout == 1
    try:
        return function in _PURE or is_generator(getattr(function, "__self__", None))
    except TypeError:
        return False


class Extern:
    """One call in a loop's code. ``args`` and ``keywords``: trees of values; their arrays and unknown numbers are its
    ``operands``, which take words of the call's block in this order, and its results follow. ``shares``: the results
    that are an operand's memory in NumPy, and copies here. ``generator``: the variable whose method it is, if it draws
    numbers."""

    def __init__(self, function: Callable, args: Sequence, keywords: dict[str, Any], generator: str = ""):
        self.function, self.generator = function, generator
        self.operands: list[Array | Number] = []
        enter, leave = extern_ops.silencing()
        self._scope: dict[str, Any] = {
            "block_at": _block_at, "array_of": array_of, "number": number, "float64": np.float64, "enter": enter,
            "leave": leave, "leaves_of": _leaves_of, "layout": _native.array_layout, "put_number": put_number,
            "function": linear_algebra.direct(function), "array": _checked_array, "checked": _checked,
        }  # fmt: skip
        given = [self._argument(arg) for arg in args]
        given += [f"{name}={self._argument(value)}" for name, value in keywords.items()]
        self._called = f"function({', '.join(given)})"
        self._kinds = [v.type for v in self.operands]
        found, samples = self._sampled(2)
        self.results, self.leaves = _types(found)
        self.shares = [any(np.may_share_memory(x, s) for s in samples) for x in trees.flatten(found)[0]]
        self._check_ranks()
        arrays = [*(k for k in self._kinds), *self.leaves]
        if not any(isinstance(kind, ArrayType) for kind in arrays):
            raise NotOutlinable(f"the function {_name(function)} of numbers, which as a step is slower than in Python")
        self._operands_at, self._at = _places(self._kinds, 0)
        self._results_at, self.words = _places(self.leaves, self._at)
        self.variables = 0  # number of the loop's variables that are arrays

    def _constant(self, value: Any) -> str:
        name = f"k{len(self._scope)}"
        self._scope[name] = value
        return name

    def _argument(self, found: Any) -> str:
        """The expression of an argument; ``a0`` is the first operand."""
        if isinstance(found, Static):
            return self._constant(found.value)
        if isinstance(found, Number) and found.known is not None:
            return self._constant(found.known if found.type.python else found.dtype.numpy.type(found.known))
        if isinstance(found, Tuple):
            items = "".join(f"{self._argument(item)}, " for item in found.items)
            return f"[{items}]" if found.is_list else f"({items})"
        one_type = isinstance(found, (Array, Number)) and getattr(found, "other", None) is None
        require(one_type, "an argument that is neither an array nor a number")
        self.operands.append(found)
        return f"a{len(self.operands) - 1}"

    def _check_ranks(self) -> None:
        """Raises NotOutlinable where the results' types depend on extents, as a cross product's and a covariance's do:
        one of other samples gives other types."""
        for extent in (1, 3):
            try:
                found, _ = self._sampled(extent)
            except NotOutlinable:  # the extent does not fit the function, or the other arguments
                continue
            same = _types(found) == (self.results, self.leaves)
            require(same, f"the function {_name(self.function)}, which looks at extents")

    def _sampled(self, extent: int) -> tuple[Any, list]:
        """The results for sample arguments whose axes have this extent, and those."""
        function, owner = self.function, getattr(self.function, "__self__", None)
        if is_generator(owner):  # whose state must not advance
            created = np.random.default_rng(0) if isinstance(owner, np.random.Generator) else np.random.RandomState(0)
            function = getattr(created, function.__name__)
        samples = {f"a{k}": _sample(kind, extent) for k, kind in enumerate(self._kinds)}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return eval(self._called, self._scope | samples | {"function": function}), list(samples.values())
        except Exception as error:
            raise NotOutlinable(f"the function {_name(self.function)} ({type(error).__name__} for a sample)") from None

    # ---- at run time

    def of(self, variables: dict[str, Any]) -> Extern:
        """This call with the generator that is a variable of the loop's call."""
        if not self.generator:
            return self
        created = copy.copy(self)
        method = getattr(variables[self.generator], self.function.__name__)
        created.compute = types.FunctionType(self.compute.__code__, self._scope | {"function": method})
        return created

    @functools.cached_property
    def compute(self) -> Callable[[int], list[tuple[int, np.ndarray]]]:
        """A function that computes the results for the operands in the words at an address, and writes their words
        there. It returns the arrays among them with their addresses."""
        lines = [f"words, floats = block_at(place, {self.words})"]
        lines += [f"a{k} = {self._operand(*where)}" for k, where in enumerate(self._operands_at)]
        names = [f"r{k}" for k in range(len(self.leaves))]
        whole = self.results == trees.LEAF
        lines += ["token = enter()", "try:", f"    {'r0' if whole else 'found'} = {self._called}"]
        lines += ["finally:", "    leave(token)"]
        lines += [] if whole else [f"{''.join(f'{name}, ' for name in names)} = leaves_of(found)"]
        created = ""
        for name, (first, end, kind) in zip(names, self._results_at):
            k = self._constant(kind)
            if not isinstance(kind, ArrayType):
                lines.append(f"put_number(words, {first}, checked({name}, {k}), {self._constant(kind.dtype)})")
                continue
            lines += [f"{name} = array({name}, {k})", f"l{name} = layout({name})[0]", f"words[{first}:{end}] = l{name}"]
            created += f"(l{name}[0], {name}), "
        text = "def compute(place):\n" + "".join(f"    {line}\n" for line in [*lines, f"return [{created}]"])
        exec(compile(text, "<extern op>", "exec"), self._scope)
        return self._scope["compute"]

    def _operand(self, first: int, end: int, kind: Any) -> str:
        """The expression of an operand from its words."""
        if isinstance(kind, ArrayType):
            return f"array_of({self._constant(kind.dtype.numpy)}, *words[{first}:{end}])"
        if kind.dtype is dt.f64:
            return f"floats[{first}]" if kind.python else f"float64(floats[{first}])"
        if kind.python and kind.dtype is dt.i64:
            return f"words[{first}]"
        return f"number(words, {first}, {self._constant(kind)})"

    def used(self, bases: int) -> list[int]:
        """The addresses of the memory that variables use, which begin at ``bases``."""
        return _block_at(bases, self.variables)[0][:]


def _leaves_of(found: Any) -> list:
    """The leaves of a function's result; named tuples take longer than others."""
    return trees.flatten_result(tuple(found) if isinstance(found, tuple) else found)[0]


def _checked(found: Any, kind: Any) -> Any:
    """A number that a function gives, which has the type for which the loop was compiled."""
    if type_of(found) != kind:
        raise _other_type(found, kind)
    return found


def _checked_array(found: Any, kind: ArrayType) -> np.ndarray:
    """An array that a function gives, row-major in memory of its own."""
    if found.__class__ is not np.ndarray or found.dtype != kind.dtype.numpy or found.ndim != kind.rank:
        raise _other_type(found, kind)
    return found if found.base is None and found.flags.c_contiguous else found.copy()


@functools.lru_cache(256)  # loops use the same memory again and again
def _block_at(address: int, count: int) -> tuple:
    """The words at an address, as ints and as floats."""
    return tuple((kind * count).from_address(address) for kind in (ctypes.c_int64, ctypes.c_double))


def _places(kinds: Sequence, at: int) -> tuple[list, int]:
    """Where the words of values of these types begin and end, from ``at`` on; and the end of all."""
    found = []
    for kind in kinds:
        found.append((at, at + words_of(kind), kind))
        at += words_of(kind)
    return found, at


def _name(function: Callable) -> str:
    return getattr(function, "__name__", str(function))


def _sample(kind: Any, extent: int) -> Any:
    if isinstance(kind, NumberType):
        value = 1 if kind.dtype.is_integer or kind.dtype is dt.bool_ else 0.5
        if kind.python:
            return {"f": float, "c": complex}.get(kind.dtype.kind, bool if kind.dtype is dt.bool_ else int)(value)
        return kind.dtype.numpy.type(value)
    shape = (extent,) * kind.rank
    away = np.eye(extent) if kind.rank > 1 else np.arange(extent)  # not singular
    values = np.broadcast_to(away, shape) if kind.rank else np.ones(())
    return values.astype(kind.dtype.numpy) if kind.dtype is dt.bool_ else (values + 0).astype(kind.dtype.numpy)


def _types(found: Any) -> tuple[trees.Tree, list]:
    """The structure of a function's result, in tuples, and the types of its leaves."""
    leaves, tree = trees.flatten(found)
    require({kind for kind, _, _ in tree.nodes} <= {"leaf", "tuple", "named"}, "a function that gives a list")
    return tree, list(map(_type, leaves))


def _type(found: Any) -> Any:
    require(isinstance(found, _OPERANDS), f"a function that gives a {type(found).__name__}")
    kind = type_of(found)
    return ArrayType(kind.dtype, kind.rank, kind.rank > 0) if isinstance(kind, ArrayType) else kind


def _other_type(found: Any, kind: Any) -> TypeError:
    rank = getattr(kind, "rank", 0)
    return TypeError(
        f"a NumPy function in a compiled loop gave {np.asarray(found).dtype} of {np.ndim(found)} axes where it was "
        f"compiled for {kind.dtype} of {rank}: call it in a function that is not compiled"
    )
