"""Pools of maxima as ops of ours, which tell of each maximum its offset: its place in the window, in a byte.

What torch tells, places in the image, is computed of the offsets for users. A backward that is told such places reads
the bytes themselves, and of the image takes the size alone.

::

    values, places = max_pool2d_with_indices(x)           ->  values, offsets = max_pool(x)
                                                              places = max_pool_indices(offsets, size)
    max_pool2d_with_indices_backward(g, x, …, places)     ->  max_pool_backward(g, offsets, size)

:mod:`mlirfuse.frontend.torch.ops.pools` has their rules; where no kernel is made, torch's own ops run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from mlirfuse.frontend.torch import pool_gradients
from mlirfuse.frontend.torch.torch_private import suggest_memory_format

aten = torch.ops.aten

WINDOW = 64  # elements at most: a kernel has some instructions for each, and their number fits into a byte
# By the dimensions of an image.
_FORWARD = {2: aten.max_pool2d_with_indices.default, 3: aten.max_pool3d_with_indices.default}
_BACKWARD = {2: aten.max_pool2d_with_indices_backward.default, 3: aten.max_pool3d_with_indices_backward.default}
_ADAPTIVE = {2: aten.adaptive_max_pool2d.default, 3: aten.adaptive_max_pool3d.default}
_ADAPTIVE_BACKWARD = {2: aten.adaptive_max_pool2d_backward.default, 3: aten.adaptive_max_pool3d_backward.default}

_library = torch.library.Library("mlirfuse", "FRAGMENT")
_WINDOWS = "int[] kernel, int[] stride, int[] padding, int[] dilation, bool ceil_mode"
_library.define(f"max_pool(Tensor x, {_WINDOWS}) -> (Tensor, Tensor)")
_library.define(f"max_pool_indices(Tensor offsets, SymInt[] size, {_WINDOWS}) -> Tensor")
_library.define(f"max_pool_backward(Tensor gradient, Tensor told, SymInt[] size, {_WINDOWS}) -> Tensor")
_POOL, _INDICES, _POOL_BACKWARD = (
    getattr(torch.ops.mlirfuse, name).default for name in ("max_pool", "max_pool_indices", "max_pool_backward")
)


def by_offsets(graph: Graph) -> None:
    """Has backwards read offsets where they are told places that are computed of them, of the same windows."""
    for node in graph.find_nodes(op="call_function", target=_POOL_BACKWARD):
        places = node.args[1]
        if places.target is _INDICES and _windows_of(places) == _windows_of(node):
            node.update_arg(1, places.args[0])
            if not places.users:
                graph.erase_node(places)


def _windows_of(node: Node) -> tuple[Any, ...]:
    """The size of the image, whose symbols different nodes may tell, and where the windows are."""
    size, *windows = node.args[-6:]
    return torch.fx.map_arg(tuple(size), lambda n: str(n.meta["val"])), windows


# ---- what is traced


def _windows(n: int, numbers: Sequence[int | Sequence[int]], ceil_mode: bool) -> tuple[Any, ...] | None:
    """The arguments that say where windows are, a number for each of ``n`` dimensions; None for those of too many
    elements, or of sizes that are symbols."""
    lists = [list(x) if isinstance(x, Sequence) else [x] for x in numbers]
    kernel, stride, padding, dilation = [x * (n // len(x)) if x else [] for x in lists]
    known = all(isinstance(x, int) for x in (*kernel, *stride, *padding, *dilation))
    return (kernel, stride or kernel, padding, dilation, ceil_mode) if known and math.prod(kernel) <= WINDOW else None


def _decomposed(n: int) -> dict[Any, Callable[..., Any]]:
    """The decompositions of torch's ops over images of ``n`` dimensions."""

    def forward(x: torch.Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
                ceil_mode: bool = False) -> Any:  # fmt: skip
        windows = _windows(n, (kernel, stride, padding, dilation), ceil_mode)
        if windows is None:
            return NotImplemented
        values, offsets = _POOL(x, *windows)
        return values, _INDICES(offsets, x.shape[-n:], *windows)

    def backward(gradient: torch.Tensor, x: torch.Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any,
                 ceil_mode: bool, places: torch.Tensor) -> Any:  # fmt: skip
        windows = _windows(n, (kernel, stride, padding, dilation), ceil_mode)
        return NotImplemented if windows is None else _POOL_BACKWARD(gradient, places, x.shape[-n:], *windows)

    return {_FORWARD[n]: forward, _BACKWARD[n]: backward}


def _adaptive(n: int) -> dict[Any, Callable[..., Any]]:
    """The decompositions of adaptive pools over ``n`` dimensions: others where all windows along a dimension have one
    size, so that none overlap."""

    def windows(image: Sequence[Any], pooled: Sequence[Any]) -> tuple[Any, ...] | None:
        pairs = list(zip(image, pooled))[-n:]
        if any(not isinstance(x, int) or not x for pair in pairs for x in pair) or any(a % b for a, b in pairs):
            return None
        kernel = [a // b for a, b in pairs]
        return _windows(n, (kernel, kernel, 0, 1), False)

    def forward(x: torch.Tensor, size: Sequence[int]) -> Any:
        found = windows(x.shape, (*x.shape[:-n], *size))
        if found is None:
            return NotImplemented
        values, offsets = _POOL(x, *found)
        return values, _INDICES(offsets, x.shape[-n:], *found)

    def backward(gradient: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> Any:
        found = windows(x.shape, gradient.shape)
        if found is None:
            return pool_gradients.DECOMPOSITIONS[_ADAPTIVE_BACKWARD[n]](gradient, x, places)
        return _POOL_BACKWARD(gradient, places, x.shape[-n:], *found)

    return {_ADAPTIVE[n]: forward, _ADAPTIVE_BACKWARD[n]: backward}


DECOMPOSITIONS = {**_decomposed(2), **_decomposed(3), **_adaptive(2), **_adaptive(3)}


# ---- by torch's own ops


def _pool(x: torch.Tensor, kernel: Sequence[int], *how: Any) -> tuple[torch.Tensor, torch.Tensor]:
    n = len(kernel)
    values, rest = _FORWARD[n](x, kernel, *how)
    offsets, count = torch.zeros_like(rest), 1
    for d, first in _firsts(rest, *how):
        extent = x.shape[d]
        offsets += count * torch.div(rest % extent - first, how[2][d], rounding_mode="floor")
        rest, count = rest // extent, count * kernel[d]
    return values, offsets.to(torch.uint8)


def _places(offsets: torch.Tensor, size: Sequence[int], kernel: Sequence[int], *how: Any) -> torch.Tensor:
    rest = offsets.to(torch.int64)
    places, count = torch.zeros_like(rest), 1
    for d, first in _firsts(rest, *how):
        places += count * (first + rest % kernel[d] * how[2][d])
        rest, count = rest // kernel[d], count * size[d]
    return places


def _firsts(
    like: torch.Tensor, stride: Sequence[int], padding: Sequence[int], *_: Any
) -> Iterator[tuple[int, torch.Tensor]]:
    """For each dimension of the image, the last first: its number from the end, and where windows begin along it, in
    the shape of the pool's results."""
    for d in range(-1, -1 - len(stride), -1):
        first = torch.arange(like.shape[d], device=like.device) * stride[d] - padding[d]
        yield d, first.view(-1, *[1] * (-1 - d))


def _pool_backward(gradient: torch.Tensor, reported: torch.Tensor, size: Sequence[int], *windows: Any) -> torch.Tensor:
    """torch's op reads no element of the image."""
    places = reported if reported.dtype is torch.int64 else _places(reported, size, *windows)
    return _BACKWARD[len(size)](gradient, _like_image(gradient, reported, size), *windows, places)


for _op, _function in ((_POOL, _pool), (_INDICES, _places), (_POOL_BACKWARD, _pool_backward)):
    for _key in ("CompositeExplicitAutograd", "Autograd"):  # of the second, dual numbers and gradients are torch's
        _library.impl(_op, _function, _key)


@torch.library.register_fake("mlirfuse::max_pool", lib=_library)
def _fake_pool(x: torch.Tensor, kernel: Sequence[int], *how: Any) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = _FORWARD[len(kernel)](x, kernel, *how)
    return values, torch.empty_like(places, dtype=torch.uint8)


@torch.library.register_fake("mlirfuse::max_pool_indices", lib=_library)
def _fake_indices(offsets: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(offsets, dtype=torch.int64)


@torch.library.register_fake("mlirfuse::max_pool_backward", lib=_library)
def _like_image(gradient: torch.Tensor, reported: torch.Tensor, size: Sequence[int], *_: Any) -> torch.Tensor:
    """An image that lies as the pool's results do, and as the gradient of torch's op."""
    shape = (*gradient.shape[: -len(size)], *size)
    return torch.empty(
        shape, dtype=gradient.dtype, device=gradient.device, memory_format=suggest_memory_format(reported)
    )
