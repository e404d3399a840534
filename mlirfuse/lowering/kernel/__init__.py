"""Emits the elements of a kernel: the value of any tensor of a segment at any index.

A scheduler lays out loops and threads, and then asks :meth:`ElementEmitter.value` for elements. That evaluates
producers recursively: an elementwise op at the same index, a view at the index that it maps to, an input by a load.
Values are memoized by index in the region where they are visible. The value of a reduction must have been set with
:meth:`ElementEmitter.bind`.

An index (:class:`Index`) is a scalar, or has one value per lane. Affine lanes (``base + lane * step``) stay affine
through strides, slices and splits: a load with step 1 is a vector load, with step 0 a scalar load; others gather.
"""

from mlirfuse.lowering.kernel.index import ZERO, Env, Index
from mlirfuse.lowering.kernel.memory import PASS_L1, STAY_L2, WIDEST, Flat, Line, Memory
from mlirfuse.lowering.kernel.values import ElementEmitter

__all__ = ["PASS_L1", "STAY_L2", "WIDEST", "ZERO", "ElementEmitter", "Env", "Flat", "Index", "Line", "Memory"]
