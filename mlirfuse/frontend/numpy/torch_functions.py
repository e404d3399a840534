"""``__torch_function__`` of stand-ins: rejects torch functions, naming what to use instead."""

from __future__ import annotations

import operator

from mlirfuse.core.errors import TraceError
from mlirfuse.frontend.numpy.registry import HANDLED, UFUNCS
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.symint import SymInt
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.ir import ops as table

# torch's names to NumPy's, where they differ.
_NUMPY = {name: row.numpy[0] for row in table.TABLE.values() for name in (row.name, *row.torch) if row.numpy} | {
    "bmm": "matmul", "cat": "concatenate", "clamp": "clip", "flatten": "ravel", "mm": "matmul",
    "true_divide": "divide", "unsqueeze": "expand_dims",
}  # fmt: skip


# Functions that torch dispatches for Python's operators; the stand-in handles those.
_OPERATORS = {name.strip("_") for name in dir(operator) if name.startswith("__")}
_OPERATORS |= {f"r{name}" for name in _OPERATORS} | {"div", "rdiv", "true_divide", "floor_divide", "remainder"}


class TorchFunctionError(TraceError, TypeError):
    """A torch function on a stand-in. Also a TypeError, so that a tensor's operator defers to the stand-in's."""


def torch_function(function, arguments) -> None:
    """Raises :class:`TorchFunctionError`, naming NumPy's or mlirfuse's equivalent function."""
    name = getattr(function, "__name__", str(function))
    there = {f.__name__ for f in (*HANDLED, *UFUNCS)} | set(table.TABLE)
    instead = _NUMPY.get(name, name)
    hint = (
        f"use mlirfuse.numpy.{instead}" if instead in there else "write it with NumPy's or mlirfuse.numpy's functions"
    )
    fail(
        TorchFunctionError,
        f"torch's {name} got an array of a compiled function, which is not a tensor during tracing: {hint}, or "
        'compile the torch function with torch.compile(f, backend="mlirfuse")',
        kept=name.strip("_") not in _OPERATORS,
    )


for _class in (TracedArray, SymInt):
    _class.__torch_function__ = classmethod(
        lambda cls, function, types, args=(), kwargs=None: torch_function(function, args)
    )
