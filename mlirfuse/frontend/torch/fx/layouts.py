"""Strides: eager tensors' memory layouts, and permuted views that give a kernel's row-major result such a layout.

AOTAutograd does not check strides; wrong ones reach the user. So kernels' results get the traced fake tensors' strides:
a kernel writes the dimensions in memory order, and the tensor is a permuted view of that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mlirfuse.frontend.torch.fx.sizes import OpaqueSize, hint, shape
from mlirfuse.frontend.torch.fx.sizes import strides as strides_of
from mlirfuse.frontend.torch.torch_private import statically_known_true
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.sizes import Size


def memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The dimensions from outermost to innermost in memory, for a tensor without gaps or overlap; None for others.
    Dimensions of extent 1 keep their positions."""
    extents, strides = shape(tensor.shape), strides_of(tensor)
    if is_dense(extents, strides):
        return tuple(range(len(extents)))
    try:
        weights = [hint(s) for s in tensor.stride()]
    except OpaqueSize:
        return None
    real = [k for k in range(len(extents)) if extents[k] != 1]
    ordered = sorted(real, key=lambda k: (-weights[k], k))
    places = iter(ordered)
    order = tuple(k if extents[k] == 1 else next(places) for k in range(len(extents)))
    return order if is_dense([extents[k] for k in order], [strides[k] for k in order]) else None


def is_dense(extents, strides) -> bool:
    """Whether these are contiguous row-major strides; those of extents of 1 may have any value."""
    running: Size = 1
    for n, s in zip(reversed(extents), reversed(strides)):
        if n == 1:
            continue
        if s != running:
            return False
        running = sz.mul(running, n)
    return True


def fills(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor of this shape and strides, in integers, has no gaps and no overlap."""
    real = sorted((s, n) for n, s in zip(shape, strides) if n != 1)
    running = 1
    for s, n in real:
        if s != running:
            return False
        running *= n
    return True


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The inverse permutation."""
    out = [0] * len(order)
    for k, d in enumerate(order):
        out[d] = k
    return tuple(out)


def natural_strides(extents, order: tuple[int, ...]) -> tuple[Size, ...]:
    """The strides, by dimension, of a permuted view of a row-major tensor whose dimensions in memory are ``order``."""
    inner = sz.contiguous_strides([extents[k] for k in order])
    out: list[Size] = [0] * len(order)
    for k, d in enumerate(order):
        out[d] = inner[k]
    return tuple(out)


def storage(tensor: object) -> int | None:
    """An identifier of a tensor's storage; None for a tensor without one, such as a sparse tensor."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # a subclass without one
        return None


def alone_in_memory(tensors: Sequence[object]) -> set[int]:
    """The indices of tensors that fill a storage which none of the others shares."""
    storages = [storage(tensor) for tensor in tensors]
    found = set()
    for k, tensor in enumerate(tensors):
        if isinstance(tensor, torch.Tensor) and storages[k] is not None and storages.count(storages[k]) == 1:
            whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
            if statically_known_true(whole):
                found.add(k)
    return found
