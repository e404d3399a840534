"""Implementations of NumPy's functions for traced arrays, one file per subject.

:func:`~mlirfuse.frontend.numpy.registry.implements` registers each for a NumPy function. They accept traced arrays,
numbers and arrays from outside the trace, and return traced arrays. Names are NumPy's own, so ``sum``, ``max``, ``min``
and ``round`` shadow Python's in some of these files.

Importing this package registers all of them, and gives traced arrays their operators and methods.
"""

from mlirfuse.frontend.numpy import complex_rules, operators, protocols, torch_functions, ufunc_rules
from mlirfuse.frontend.numpy.functions import (
    comparing,
    creation,
    diagonals,
    differences,
    elementwise,
    indexing,
    joining,
    methods,
    nan_reductions,
    norms,
    padding,
    products,
    rearranging,
    reductions,
    scans,
    shaping,
    types_of,
)

__all__ = [
    "comparing",
    "complex_rules",
    "creation",
    "diagonals",
    "differences",
    "elementwise",
    "indexing",
    "joining",
    "methods",
    "nan_reductions",
    "norms",
    "operators",
    "padding",
    "products",
    "protocols",
    "rearranging",
    "reductions",
    "scans",
    "shaping",
    "torch_functions",
    "types_of",
    "ufunc_rules",
]
