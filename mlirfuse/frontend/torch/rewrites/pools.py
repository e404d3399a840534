"""Max pools as ops of this back end that return each maximum's offset, its index in the window, as a byte.

torch returns flat indices into the image, which are computed from the offsets for users. A backward that gets such
indices reads the offsets instead, and needs only the image's size.

::

    values, places = max_pool2d_with_indices(x)           ->  values, offsets = max_pool(x)
                                                              places = max_pool_indices(offsets, size)
    max_pool2d_with_indices_backward(g, x, …, places)     ->  max_pool_backward(g, offsets, size)

:mod:`mlirfuse.frontend.torch.ops.pools` has their rules; without a kernel, torch's own ops run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from mlirfuse.frontend.torch.rewrites import pool_gradients
from mlirfuse.frontend.torch.torch_private import suggest_memory_format

aten = torch.ops.aten

WINDOW = 64  # maximal elements: a kernel has several instructions for each, and an offset fits into a byte
# By the number of an image's dimensions.
_FORWARD = {2: aten.max_pool2d_with_indices.default, 3: aten.max_pool3d_with_indices.default}
_BACKWARD = {2: aten.max_pool2d_with_indices_backward.default, 3: aten.max_pool3d_with_indices_backward.default}
_ADAPTIVE = {2: aten.adaptive_max_pool2d.default, 3: aten.adaptive_max_pool3d.default}
_ADAPTIVE_BACKWARD = {2: aten.adaptive_max_pool2d_backward.default, 3: aten.adaptive_max_pool3d_backward.default}

_library = torch.library.Library("mlirfuse", "FRAGMENT")
_WINDOWS = "int[] kernel, int[] stride, int[] padding, int[] dilation, bool ceil_mode"
_library.define(f"max_pool(Tensor x, {_WINDOWS}) -> (Tensor, Tensor)")
_library.define(f"max_pool_indices(Tensor offsets, SymInt[] size, {_WINDOWS}) -> Tensor")
_library.define(f"max_pool_backward(Tensor gradient, Tensor offsets, SymInt[] size, {_WINDOWS}) -> Tensor")
_POOL, _INDICES, _POOL_BACKWARD = (
    getattr(torch.ops.mlirfuse, name).default for name in ("max_pool", "max_pool_indices", "max_pool_backward")
)


def read_offsets(graph: Graph) -> None:
    """Makes backwards read offsets instead of indices computed from them, for equal windows."""
    for node in graph.find_nodes(op="call_function", target=_POOL_BACKWARD):
        places = node.args[1]
        if places.target is _INDICES and _windows_of(places) == _windows_of(node):
            node.update_arg(1, places.args[0])
            if not places.users:
                graph.erase_node(places)


def _windows_of(node: Node) -> tuple[Any, ...]:
    """The image's size, whose symbols may come from different nodes, and the window parameters."""
    size, *windows = node.args[-6:]
    return torch.fx.map_arg(tuple(size), lambda n: str(n.meta["val"])), windows


# ---- decompositions


def _windows(n: int, numbers: Sequence[int | Sequence[int]], ceil_mode: bool) -> tuple[Any, ...] | None:
    """The window arguments with a number for each of ``n`` dimensions; None for windows with too many elements, or
    symbolic sizes."""
    lists = [list(x) if isinstance(x, Sequence) else [x] for x in numbers]
    kernel, stride, padding, dilation = [x * (n // len(x)) if x else [] for x in lists]
    known = all(isinstance(x, int) for x in (*kernel, *stride, *padding, *dilation))
    return (kernel, stride or kernel, padding, dilation, ceil_mode) if known and math.prod(kernel) <= WINDOW else None


def _decomposed(n: int) -> dict[Any, Callable[..., Any]]:
    """The decompositions of torch's pools over ``n`` dimensions."""

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
            return _largest(x, n) if all(k == 1 for k in size) and all(x.shape) else NotImplemented
        values, offsets = _POOL(x, *found)
        return values, _INDICES(offsets, x.shape[-n:], *found)

    def backward(gradient: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> Any:
        found = windows(x.shape, gradient.shape)
        if found is None:
            return pool_gradients.DECOMPOSITIONS[_ADAPTIVE_BACKWARD[n]](gradient, x, places)
        return _POOL_BACKWARD(gradient, places, x.shape[-n:], *found)

    return {_ADAPTIVE[n]: forward, _ADAPTIVE_BACKWARD[n]: backward}


def _largest(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum of each image, and its place: a reduction."""
    shape = *x.shape[:-n], *[1] * n
    values, places = torch.max(x.reshape(*x.shape[:-n], math.prod(x.shape[-n:])), -1)
    return values.reshape(shape), places.reshape(shape)


DECOMPOSITIONS = {**_decomposed(2), **_decomposed(3), **_adaptive(2), **_adaptive(3)}


# ---- implementations by torch's own ops


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
    """For each dimension of the image, the last first: its number from the end, and the windows' starts, in the shape
    of the pool's results."""
    for d in range(-1, -1 - len(stride), -1):
        first = torch.arange(like.shape[d], device=like.device) * stride[d] - padding[d]
        yield d, first.view(-1, *[1] * (-1 - d))


def _pool_backward(gradient: torch.Tensor, offsets: torch.Tensor, size: Sequence[int], *windows: Any) -> torch.Tensor:
    """torch's op does not read the image's elements."""
    places = offsets if offsets.dtype is torch.int64 else _places(offsets, size, *windows)
    return _BACKWARD[len(size)](gradient, _like_image(gradient, offsets, size), *windows, places)


for _op, _function in ((_POOL, _pool), (_INDICES, _places), (_POOL_BACKWARD, _pool_backward)):
    for _key in ("CompositeExplicitAutograd", "Autograd"):  # the latter leaves dual numbers and gradients to torch
        _library.impl(_op, _function, _key)


@torch.library.register_fake("mlirfuse::max_pool", lib=_library)
def _fake_pool(x: torch.Tensor, kernel: Sequence[int], *how: Any) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = _FORWARD[len(kernel)](x, kernel, *how)
    return values, torch.empty_like(places, dtype=torch.uint8)


@torch.library.register_fake("mlirfuse::max_pool_indices", lib=_library)
def _fake_indices(offsets: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(offsets, dtype=torch.int64)


@torch.library.register_fake("mlirfuse::max_pool_backward", lib=_library)
def _like_image(gradient: torch.Tensor, offsets: torch.Tensor, size: Sequence[int], *_: Any) -> torch.Tensor:
    """An image in the memory format of the pool's results, as the gradient of torch's op."""
    shape = (*gradient.shape[: -len(size)], *size)
    return torch.empty(
        shape, dtype=gradient.dtype, device=gradient.device, memory_format=suggest_memory_format(offsets)
    )
