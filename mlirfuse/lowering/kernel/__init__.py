"""Writes one kernel's body: the value of any tensor of a segment at any index.

A scheduler lays out loops and threads and then asks :meth:`Kernel.value` for elements. It evaluates producers
recursively: an elementwise op at the same index, a view at the index it maps to, an input by a load. What was computed
for an index once is not computed again inside the region where it is visible. A reduction's value must have been given
with :meth:`Kernel.bind`.

An index (:class:`Index`) is a scalar, or one a lane: affine lanes (``base + lane * step``) stay affine through strides,
slices and splits, so that a load of step 1 is one vector load, of step 0 one scalar load, and others gather.
"""

from mlirfuse.lowering.kernel.index import ZERO, Env, Index
from mlirfuse.lowering.kernel.memory import PASS_L1, STAY_L2, WIDEST, Flat, Line, Memory
from mlirfuse.lowering.kernel.values import Kernel

__all__ = ["PASS_L1", "STAY_L2", "WIDEST", "ZERO", "Env", "Flat", "Index", "Kernel", "Line", "Memory"]
