"""nvFuser's PyTorch helpers: ``DataType`` from torch dtypes and Python numbers."""

from __future__ import annotations

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.nvfuser.promotion import DataType, from_dtype
from mlirfuse.runtime.arrays import torch_dtypes

_OF_PYTHON = {complex: DataType.ComplexDouble, float: DataType.Double, int: DataType.Int, bool: DataType.Bool}


def torch_dtype_to_nvfuser_dtype(dtype) -> DataType:
    """The ``DataType`` of a torch dtype, or of Python's bool, int, float or complex."""
    if dtype in _OF_PYTHON:
        return _OF_PYTHON[dtype]
    ours = torch_dtypes().get(dtype)
    if ours is None:
        for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2"):
            if str(dtype) == f"torch.{name}":
                return DataType[name.capitalize()]
        raise UnsupportedError(f"{dtype} has no nvFuser DataType")
    return from_dtype(ours)


def python_scalar_to_nvfuser_dtype(value) -> DataType:
    """The ``DataType`` of a Python number."""
    return _OF_PYTHON[type(value)]
