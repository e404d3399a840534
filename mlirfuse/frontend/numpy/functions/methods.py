"""Methods and attributes of traced arrays."""

from __future__ import annotations

import operator

import numpy as np

from mlirfuse.frontend.numpy.functions.elementwise import copy, imag, real
from mlirfuse.frontend.numpy.functions.scans import sort
from mlirfuse.frontend.numpy.functions.shaping import matrix_transpose, ravel, reshape, transpose
from mlirfuse.frontend.numpy.graph_breaks.calls import of_arrays, or_called
from mlirfuse.frontend.numpy.indexing import fill, getitem, setitem
from mlirfuse.frontend.numpy.memory_order import checked_order, forced, strides_of_array
from mlirfuse.frontend.numpy.operands import fresh
from mlirfuse.frontend.numpy.promotion import dtype_of
from mlirfuse.frontend.numpy.registry import HANDLED
from mlirfuse.frontend.numpy.source import fail, unsupported
from mlirfuse.frontend.numpy.traced_array import TracedArray, TracedScalar
from mlirfuse.frontend.numpy.ufuncs import call_ufunc


def _set_part(name: str):
    def write(self, value):
        if name == "imag" and self._value.dtype.kind != "c":
            fail(TypeError, "array does not have imaginary part to set")
        setitem(getattr(self, name), Ellipsis, value)

    return write


def _conjugate(self):
    if isinstance(self, TracedScalar) and self._weak is complex:
        t = self._trace
        return TracedScalar(t, t.emit("conj", self.value), complex, lambda: self.concrete().conjugate())
    return call_ufunc(np.conjugate, (self,)) if self._value.dtype.kind == "c" else self


def _reshape(self, *shape, order="C", copy=None):
    return reshape(self, shape[0] if len(shape) == 1 else shape, order, copy=copy)


def _transpose(self, *axes):
    if len(axes) == 1 and not isinstance(axes[0], (int, np.integer)):
        return transpose(self, axes[0])
    return transpose(self, axes or None)


def _astype(self, dtype, order="K", casting="unsafe", subok=True, copy=True):
    to, t = dtype_of(dtype), self._trace
    if not np.can_cast(self.dtype, to.numpy, casting):
        fail(TypeError, f"Cannot cast array data from {self.dtype!r} to {to.numpy!r} according to the rule '{casting}'")
    if to is self._value.dtype and not copy and order in ("K", "A"):
        return self
    created = fresh(t, self.value) if to is self._value.dtype else t.emit("cast", self.value, to=to)
    return TracedArray(t, forced(t, created, checked_order(order), strides_of_array(t, self)), scalar=self._scalar)


def _copy(self, order="C"):
    return self if self._scalar else copy(self, order)


def _flatten(self, order="C"):
    x = ravel(self, order)
    return TracedArray(x._trace, fresh(x._trace, x.value))


def _sort(self, axis=-1, kind=None, order=None, *, stable=None):
    self.assign(sort(self, axis, kind, order, stable=stable).value)


def _view(self, dtype=None, type=None):
    if dtype is None:
        return self.seen_whole()
    unsupported("x.view(dtype), which reinterprets bits,", "use x.astype(dtype)")


def _or_called(name: str, ours):
    """The method; with graph breaks NumPy's handles what it does not support."""

    def method(self, *args, **kwargs):
        return or_called(ours, of_arrays(name), (self, *args), kwargs)

    return method


for _name in dir(np.ndarray):  # methods like the functions of their names
    _function = HANDLED.get(getattr(np, _name, None))
    if _function is not None and callable(getattr(np.ndarray, _name)):
        setattr(TracedArray, _name, _or_called(_name, _function))
for _own in (_reshape, _transpose, _astype, _copy, _flatten, _sort, _view):
    setattr(TracedArray, _own.__name__[1:], _or_called(_own.__name__[1:], _own))
for _name, _attribute in {
    "T": property(transpose),
    "mT": property(matrix_transpose),
    "real": property(real, _set_part("real")),
    "imag": property(imag, _set_part("imag")),
    "conj": _conjugate,
    "conjugate": _conjugate,
    "fill": fill,
    "__getitem__": lambda self, key: or_called(getitem, operator.getitem, (self, key), {}),
    "__setitem__": lambda self, key, value: or_called(setitem, operator.setitem, (self, key, value), {}),
    "__copy__": lambda self: self if self._scalar else copy(self),
    "__deepcopy__": lambda self, memo: self.__copy__(),
}.items():
    setattr(TracedArray, _name, _attribute)
