"""``slice_scatter``, ``select_scatter`` and ``diagonal_scatter`` as in eager, where torch's fake tensors differ.

A result for an overlapping tensor, as ``expand`` gives, is contiguous in eager; torch 2.11's fake tensors repeat the
overlapping strides, which no result can have. Fake tensors check no index and no shape of the source; those that change
from call to call would be read and written out of bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mlirfuse.frontend.torch.fx.sizes import OpaqueSize, hint
from mlirfuse.frontend.torch.torch_private import statically_known_true

aten = torch.ops.aten


def _slice_scatter(x: torch.Tensor, source: torch.Tensor, dim: int = 0, *where: Any) -> Any:
    if _overlaps(x):
        return aten.slice_scatter.default(x.clone(), source, dim, *where)
    if any(isinstance(n, torch.SymInt) for n in where) and _are_backed(where):
        _check_shape(aten.slice.Tensor(x, dim, *where).shape, source)
    return NotImplemented


def _select_scatter(x: torch.Tensor, source: torch.Tensor, dim: int, index: Any) -> Any:
    if _overlaps(x):
        return aten.select_scatter.default(x.clone(), source, dim, index)
    if _are_backed([index]):
        shape = list(x.shape)
        extent = shape.pop(dim)
        if not -extent <= index < extent:
            raise IndexError(f"index {index} is out of range for dimension {dim} with size {extent}")
        _check_shape(shape, source)
    return NotImplemented


def _diagonal_scatter(x: torch.Tensor, source: torch.Tensor, *where: int) -> Any:
    return aten.diagonal_scatter.default(x.clone(), source, *where) if _overlaps(x) else NotImplemented


def _overlaps(x: torch.Tensor) -> bool:
    """Whether elements share memory, by eager's rule: a stride of 0 and an extent above 1."""
    return any(type(s) is int and s == 0 and statically_known_true(n > 1) for n, s in zip(x.shape, x.stride()))


def _are_backed(numbers: Sequence[Any]) -> bool:
    """Whether guards on the numbers can be made: they are not known from tensors' values alone."""
    try:
        for n in numbers:
            if n is not None:
                hint(n)
    except OpaqueSize:
        return False
    return True


def _check_shape(expected: Sequence[int], source: torch.Tensor) -> None:
    """Guards that ``source`` has the shape that it replaces. Raises :class:`RuntimeError`."""
    if source.dim() != len(expected) or any(n != m for n, m in zip(source.shape, expected)):
        raise RuntimeError(f"the source has shape {tuple(source.shape)}, what it replaces {tuple(expected)}")


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
    aten.diagonal_scatter.default: _diagonal_scatter,
}
