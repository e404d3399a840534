"""Methods and attributes of traced arrays."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

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
from mlirfuse.frontend.numpy.source import fail, is_internal, unsupported
from mlirfuse.frontend.numpy.traced_array import TracedArray, TracedScalar
from mlirfuse.frontend.numpy.ufuncs import call_ufunc


def _set_part(name: str):
    def write(self, value):
        if name == "imag" and self._value.dtype.kind != "c":
            fail(TypeError, "array does not have imaginary part to set")
        setitem(getattr(self, name), Ellipsis, value)

    return write


def _conj(self):
    if isinstance(self, TracedScalar) and self._weak is complex:
        return _part_of(self, "conj", complex, lambda x: x.conjugate())
    return call_ufunc(np.conjugate, (self,)) if self._value.dtype.kind == "c" else self


def _conjugate(self):
    return +self if self._weak in (bool, int, float) else _conj(self)


def _part(name: str, of_arrays: Callable[[TracedArray], Any]):
    def read(self):
        if self._weak is complex:
            return _part_of(self, name, float, operator.attrgetter(name))
        if self._weak is None:
            return of_arrays(self)
        return +self if name == "real" else self._weak(0) + 0  # of bools ints

    return property(read, _set_part(name))


def _part_of(x: TracedScalar, name: str, kind: type, how: Callable[[Any], Any]) -> TracedScalar:
    """An op of a Python complex number: ``how(x)``, of Python's type ``kind``."""
    return TracedScalar(x._trace, x._trace.emit(name, x.value), kind, how, (x,))


class _OfArrays:
    """An attribute of arrays and of NumPy's numbers, which Python's numbers do not have for user code."""

    def __init__(self, name: str, attribute: Any):
        self.name, self.attribute = name, attribute

    def __get__(self, x: Any, owner: type) -> Any:
        if x is not None and x._weak is not None and not is_internal(sys._getframe(1).f_code.co_filename):
            raise AttributeError(f"'{x._class_name}' object has no attribute '{self.name}'")
        return self.attribute.__get__(x, owner)


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
    "real": _part("real", real),
    "imag": _part("imag", imag),
    "conj": _conj,
    "conjugate": _conjugate,
    "fill": fill,
    "__getitem__": lambda self, key: or_called(getitem, operator.getitem, (self, key), {}),
    "__setitem__": lambda self, key, value: or_called(setitem, operator.setitem, (self, key, value), {}),
    "__copy__": lambda self: self if self._scalar else copy(self),
    "__deepcopy__": lambda self, memo: self.__copy__(),
}.items():
    setattr(TracedArray, _name, _attribute)
for _name, _attribute in vars(TracedArray).items():
    if hasattr(np.ndarray, _name) and not _name.startswith("_") and not hasattr(complex, _name):
        setattr(TracedScalar, _name, _OfArrays(_name, vars(TracedScalar).get(_name, _attribute)))
