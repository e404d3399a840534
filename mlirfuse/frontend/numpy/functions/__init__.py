"""NumPy's functions on traced arrays, a file a subject.

Each says with :func:`~mlirfuse.frontend.numpy.registry.implements` which NumPy function it stands for. They take traced
arrays, numbers, and arrays from outside the trace, and give traced arrays. Names are NumPy's own, so that ``sum``,
``max``, ``min`` and ``round`` hide Python's in some of these files.

Importing this package enters all of them in the registry, and gives traced arrays their operators and methods.
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
