"""Extern ops in compiled loops: a call of a NumPy function that has no code here is one step of the loop, which runs in
Python on views of the loop's arrays.

The types of the results are those of a call with sample arguments of the same types, so only functions are called whose
results' types do not depend on values. The results' memory is NumPy's, which is kept while a variable uses it.
"""

from __future__ import annotations

import copy
import ctypes
import functools
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
from mlirfuse.runtime import extern_ops

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
    ``operands``, which take words of the call's block in this order, and its results follow. ``generator``: the
    variable whose method it is, if it draws numbers."""

    def __init__(self, function: Callable, args: Sequence, keywords: dict[str, Any], generator: str = ""):
        self.function, self.generator = function, generator
        self.operands: list[Array | Number] = []
        self._args = [self._structure(arg) for arg in args]
        self._keywords = {name: self._structure(value) for name, value in keywords.items()}
        self._kinds = [v.type for v in self.operands]
        self.results, self.leaves = _types(self._sampled(2))
        self._check_ranks()
        arrays = [*(k for k in self._kinds), *self.leaves]
        if not any(isinstance(kind, ArrayType) for kind in arrays):
            raise NotOutlinable(f"the function {_name(function)} of numbers, which as a step is slower than in Python")
        self._operands_at, self._at = _places(self._kinds, 0)
        self._results_at, self.words = _places(self.leaves, self._at)
        self.variables = 0  # number of the loop's variables that are arrays
        self._call = extern_ops.quiet(self._called)

    def _structure(self, found: Any) -> Callable[[Sequence], Any]:
        """A function from the operands' values to the argument."""
        if isinstance(found, Static):
            return lambda given: found.value
        if isinstance(found, Number) and found.known is not None:
            value = found.known if found.type.python else found.dtype.numpy.type(found.known)
            return lambda given: value
        if isinstance(found, Tuple):
            items, kind = [self._structure(item) for item in found.items], list if found.is_list else tuple
            return lambda given: kind([item(given) for item in items])
        one_type = isinstance(found, (Array, Number)) and getattr(found, "other", None) is None
        require(one_type, "an argument that is neither an array nor a number")
        self.operands.append(found)
        k = len(self.operands) - 1
        return lambda given: given[k]

    def _called(self, given: Sequence) -> Any:
        return self.function(*[arg(given) for arg in self._args], **{k: v(given) for k, v in self._keywords.items()})

    def _check_ranks(self) -> None:
        """Raises NotOutlinable where the results' types depend on extents, as a cross product's and a covariance's do:
        one of other samples gives other types."""
        for extent in (1, 3):
            try:
                found = self._sampled(extent)
            except NotOutlinable:  # the extent does not fit the function, or the other arguments
                continue
            same = _types(found) == (self.results, self.leaves)
            require(same, f"the function {_name(self.function)}, which looks at extents")

    def _sampled(self, extent: int) -> Any:
        """The results for sample arguments whose axes have this extent."""
        kept, owner = self.function, getattr(self.function, "__self__", None)
        if is_generator(owner):  # whose state must not advance
            created = np.random.default_rng(0) if isinstance(owner, np.random.Generator) else np.random.RandomState(0)
            self.function = getattr(created, self.function.__name__)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self._called([_sample(kind, extent) for kind in self._kinds])
        except Exception as error:
            raise NotOutlinable(f"the function {_name(kept)} ({type(error).__name__} for a sample)") from None
        finally:
            self.function = kept

    # ---- at run time

    def of(self, variables: dict[str, Any]) -> Extern:
        """This call with the generator that is a variable of the loop's call."""
        if not self.generator:
            return self
        created = copy.copy(self)
        created.function = getattr(variables[self.generator], self.function.__name__)
        created._call = extern_ops.quiet(created._called)
        return created

    def compute(self, place: int) -> list[tuple[int, np.ndarray]]:
        """Computes the results for the operands in the words at ``place``, and writes their words there. Returns the
        arrays among them with their addresses."""
        words, floats = _block_at(place, self.words)
        found = self._call(self._given(words[:], floats))
        values = trees.flatten_result(tuple(found) if isinstance(found, tuple) else found)[0]  # named ones take longer
        created = []
        for value, (first, end, kind) in zip(values, self._results_at, strict=True):
            if kind.__class__ is not ArrayType:
                if type_of(value) != kind:
                    raise _other_type(value, kind)
                put_number(words, first, value, kind.dtype)
                continue
            if value.__class__ is not np.ndarray or value.dtype != kind.dtype.numpy or value.ndim != kind.rank:
                raise _other_type(value, kind)
            if value.base is not None or not value.flags.c_contiguous:
                value = value.copy()
            layout = _native.array_layout(value)[0]
            words[first:end] = layout
            created.append((layout[0], value))
        return created

    def used(self, bases: int) -> list[int]:
        """The addresses of the memory that variables use, which begin at ``bases``."""
        return _block_at(bases, self.variables)[0][:]

    def _given(self, words: list[int], floats: Any) -> list:
        given: list[Any] = []
        for first, end, kind in self._operands_at:
            if kind.__class__ is ArrayType:
                given.append(array_of(kind.dtype.numpy, *words[first:end]))
            elif kind.dtype is dt.f64:
                given.append(floats[first] if kind.python else np.float64(floats[first]))
            elif kind.python and kind.dtype is dt.i64:
                given.append(words[first])
            else:
                given.append(number(words, first, kind))
        return given


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
