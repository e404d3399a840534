"""Functions that NumPy writes in Python, in terms of others: traced like the user's own code."""

from __future__ import annotations

import functools
import inspect

import numpy as np

from mlirfuse.frontend.numpy.registry import HANDLED, HELPERS
from mlirfuse.frontend.numpy.trace_state import current
from mlirfuse.runtime import numpy_private

_COMPOSED = (
    np.angle, np.append, np.atleast_1d, np.atleast_2d, np.atleast_3d, np.column_stack, np.common_type,
    np.diff, np.dsplit, np.dstack, np.flip, np.fliplr, np.flipud, np.hsplit, np.hstack, np.isclose, np.iscomplex,
    np.iscomplexobj, np.isrealobj, np.meshgrid, np.moveaxis, np.nan_to_num, np.ndim, np.outer,
    np.ptp, np.rollaxis, np.select, np.shape, np.sinc, np.size, np.split, np.tensordot, np.trapezoid, np.tril, np.triu,
    np.vsplit, np.vstack, np.linalg.cross, np.linalg.diagonal, np.linalg.matmul, np.linalg.matrix_norm,
    np.linalg.matrix_transpose, np.linalg.outer, np.linalg.tensordot, np.linalg.trace,
    np.fix, *filter(None, [getattr(np, "unstack", None)]),
)  # fmt: skip


def traced(function):
    """``function`` with its creation functions and its own calls of NumPy's functions traced."""
    code = inspect.unwrap(function)

    @functools.wraps(code)
    def call(*args, **kwargs):
        t = current()
        assert t is not None
        return t.stand_ins.rebuilt(code)(*args, **kwargs)

    return call


HANDLED |= {function: traced(function) for function in _COMPOSED}
if numpy_private.replace_nan is not None:
    HANDLED |= {function: traced(function) for function in (np.nanprod, np.nansum)}
    HELPERS.add(numpy_private.replace_nan)
