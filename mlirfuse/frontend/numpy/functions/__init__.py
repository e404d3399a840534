"""Implementations of NumPy's functions for traced arrays, one file per subject.

:func:`~mlirfuse.frontend.numpy.registry.implements` registers each for a NumPy function. They accept traced arrays,
numbers and arrays from outside the trace, and return traced arrays. Names are NumPy's own, so ``sum``, ``max``, ``min``
and ``round`` shadow Python's in some of these files.

Importing this package registers all of them (files that are not named here are imported by those that are), and gives
traced arrays their operators and methods.
"""

# ruff: noqa: F401
from mlirfuse.frontend.numpy import indexing, operators, protocols, ufunc_rules
from mlirfuse.frontend.numpy.functions import composed, linear_algebra, queries, scans

from mlirfuse.frontend.numpy.functions import methods  # isort: skip  (of the functions above)
