"""Implementations of sorts: torch's functions, for torch's order of equal elements; NumPy's where torch is not
loaded."""

from __future__ import annotations

import sys

import numpy as np

from mlirfuse.runtime import arrays


def argsort(axis: int, descending: bool, stable: bool, array) -> list:
    """The indices that sort ``array`` along ``axis``, as int64. Without ``stable``, equal elements have the framework's
    order."""
    tensor = _tensor(array)
    if tensor is None:
        return [_order(array, axis, descending)]
    # torch.argsort without `stable` sorts as torch.sort does
    return [_like(tensor.argsort(dim=axis, descending=descending, stable=stable), array)]


def topk(axis: int, largest: bool, array, count: int) -> list:
    """The ``count`` largest (or smallest) elements along ``axis`` in order, and their indices as int64."""
    tensor = _tensor(array)
    if tensor is None:
        order = np.take(_order(array, axis, largest), np.arange(count), axis)
        return [np.take_along_axis(array, order, axis), order]
    comparable = tensor.byte() if tensor.dtype == sys.modules["torch"].bool else tensor  # torch.topk rejects bools
    values, indices = comparable.topk(count, dim=axis, largest=largest, sorted=True)
    return [_like(values.to(tensor.dtype), array), _like(indices, array)]


def _tensor(array):
    """``array`` as a torch tensor; None without torch, and for arrays that torch cannot convert."""
    torch = sys.modules.get("torch")
    if arrays.framework(array) == "torch":
        return array
    if torch is None or not isinstance(array, np.ndarray):
        return None
    try:
        return torch.from_numpy(np.ascontiguousarray(array))
    except TypeError:
        return None


def _like(tensor, array):
    return tensor if arrays.framework(array) == "torch" else tensor.numpy()


def _order(array, axis: int, descending: bool):
    """A stable argsort with NumPy or a compatible library."""
    if not descending:
        return array.argsort(axis, kind="stable").astype("int64")
    last = array.shape[axis] - 1
    backwards = np.flip(array, axis).argsort(axis, kind="stable")  # keeps the order of equal elements
    return np.flip(last - backwards, axis).astype("int64")
