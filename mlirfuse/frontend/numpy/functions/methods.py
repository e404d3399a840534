"""Methods and attributes of traced arrays."""

from __future__ import annotations

import operator

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.numpy.functions.diagonals import diagonal, trace
from mlirfuse.frontend.numpy.functions.elementwise import clip, copy, imag, real, round
from mlirfuse.frontend.numpy.functions.indexing import take
from mlirfuse.frontend.numpy.functions.products import dot
from mlirfuse.frontend.numpy.functions.rearranging import repeat
from mlirfuse.frontend.numpy.functions.reductions import all_, any_, argmax, argmin, max, mean, min, prod, std, sum, var
from mlirfuse.frontend.numpy.functions.scans import argsort, cumprod, cumsum, sort
from mlirfuse.frontend.numpy.functions.shaping import matrix_transpose, ravel, reshape, squeeze, swapaxes, transpose
from mlirfuse.frontend.numpy.graph_breaks.calls import of_arrays, or_called
from mlirfuse.frontend.numpy.indexing import getitem, setitem
from mlirfuse.frontend.numpy.memory_order import checked_order, forced, strides_of_array
from mlirfuse.frontend.numpy.operands import fresh
from mlirfuse.frontend.numpy.promotion import dtype_of
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.traced_scalar import TracedScalar
from mlirfuse.frontend.numpy.ufuncs import call_ufunc


def _method(name):
    def mark(function):
        setattr(TracedArray, name, function)
        return function

    return mark


for _name, _f in {
    "sum": sum,
    "prod": prod,
    "max": max,
    "min": min,
    "any": any_,
    "all": all_,
    "mean": mean,
    "var": var,
    "std": std,
    "argmax": argmax,
    "argmin": argmin,
    "clip": clip,
    "round": round,
    "ravel": ravel,
    "squeeze": squeeze,
    "swapaxes": swapaxes,
    "dot": dot,
    "repeat": repeat,
    "diagonal": diagonal,
    "trace": trace,
    "cumsum": cumsum,
    "cumprod": cumprod,
    "argsort": argsort,
}.items():
    setattr(TracedArray, _name, _f)


TracedArray.T = property(lambda self: transpose(self))


TracedArray.mT = property(lambda self: matrix_transpose(self))


def _set_part(name: str):
    def write(self, value):
        if name == "imag" and self._value.dtype.kind != "c":
            fail(TypeError, "array does not have imaginary part to set")
        setitem(getattr(self, name), Ellipsis, value)

    return write


TracedArray.real = property(real, _set_part("real"))


TracedArray.imag = property(imag, _set_part("imag"))


@_method("conjugate")
def _conjugate(self):
    if isinstance(self, TracedScalar) and self._weak is complex:
        return TracedScalar(
            self._trace, self._trace.emit("conj", self.value), complex, lambda: self.concrete().conjugate()
        )
    return call_ufunc(np.conjugate, (self,)) if self._value.dtype.kind == "c" else self


TracedArray.conj = _conjugate


TracedArray.__copy__ = lambda self: self if self._scalar else copy(self)


TracedArray.__deepcopy__ = lambda self, memo: self.__copy__()


@_method("reshape")
def _reshape_method(self, *shape, order="C", copy=None):
    return reshape(self, shape[0] if len(shape) == 1 else shape, order, copy=copy)


@_method("transpose")
def _transpose_method(self, *axes):
    if len(axes) == 1 and not isinstance(axes[0], (int, np.integer)):
        return transpose(self, axes[0])
    return transpose(self, axes or None)


@_method("astype")
def _astype(self, dtype, order="K", casting="unsafe", subok=True, copy=True):
    to, t = dtype_of(dtype), self._trace
    if not np.can_cast(self.dtype, to.numpy, casting):
        fail(TypeError, f"Cannot cast array data from {self.dtype!r} to {to.numpy!r} according to the rule '{casting}'")
    if to is self._value.dtype and not copy and order in ("K", "A"):
        return self
    created = fresh(t, self.value) if to is self._value.dtype else t.emit("cast", self.value, to=to)
    return TracedArray(t, forced(t, created, checked_order(order), strides_of_array(t, self)), scalar=self._scalar)


@_method("copy")
def _copy_method(self, order="C"):
    return copy(self, order)


@_method("flatten")
def _flatten(self, order="C"):
    x = ravel(self, order)
    t = x._trace
    return TracedArray(t, fresh(t, x.value))


@_method("sort")
def _sort_method(self, axis=-1, kind=None, order=None, *, stable=None):
    self.assign(sort(self, axis, kind, order, stable=stable).value)


@_method("view")
def _view_method(self, dtype=None, type=None):
    if dtype is None:
        return self.alias()
    fail(
        UnsupportedError,
        "x.view(dtype), which reinterprets an array's bits, is not supported in a compiled "
        "function: use x.astype(dtype)",
    )


def _getitem(self, key):
    return or_called(getitem, operator.getitem, (self, key), {})


def _setitem(self, key, value):
    or_called(setitem, operator.setitem, (self, key, value), {})


TracedArray.__getitem__ = _getitem


TracedArray.__setitem__ = _setitem


TracedArray.take = take


TracedArray.fill = lambda self, value: setitem(self, Ellipsis, value)


def _or_called(name: str, ours):
    def method(self, *args, **kwargs):
        return or_called(ours, of_arrays(name), (self, *args), kwargs)

    return method


_METHODS = """sum prod max min any all mean var std argmax argmin clip round ravel squeeze swapaxes dot repeat diagonal
trace cumsum cumprod argsort reshape transpose astype copy flatten sort view take"""
for _name in _METHODS.split():
    setattr(TracedArray, _name, _or_called(_name, getattr(TracedArray, _name)))
