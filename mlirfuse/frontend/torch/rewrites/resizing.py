"""Gradients of resized images as sums over windows of pixels, one dimension after the other.

torch's own decomposition differentiates each gather of :func:`torch.nn.functional.interpolate`: the gradient of a
bilinear image is scattered four times, of a bicubic one sixteen times. But resizing is linear and separable, and its
positions are piecewise-linear in the pixel's: an element along one dimension gets a weighted sum of the few pixels that
read it, which are next to each other. So a dimension takes one gather in a fixed order, whatever the mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch.fx import GraphModule

from mlirfuse.frontend.torch.fx import nodes
from mlirfuse.frontend.torch.ops.constant_gathers import Line, line_through
from mlirfuse.frontend.torch.torch_private import functorch_interpreter

# The elements that a pixel reads, counted from the one at or below its position.
_TAPS = {"nearest": (0, 0), "nearest-exact": (0, 0), "linear": (0, 1), "bilinear": (0, 1), "trilinear": (0, 1),
         "bicubic": (-1, 2)}  # fmt: skip
_UNROLLED = 16  # the most weights times taps that are summed one by one; more are a reduction
_CUBIC = -0.75


def gather_gradients(module: GraphModule) -> None:
    """Rewrites calls of ``interpolate`` in Dynamo's graph, where sizes are known, so that their gradients gather."""
    changed = False
    for node, how in nodes.calls_of(module.graph, F.interpolate):
        x = how["input"].meta.get("example_value")
        if how["mode"] not in _TAPS or how["antialias"] or x is None:
            continue
        numbers = [_numbers(how[name], x.dim() - 2) for name in ("size", "scale_factor")]
        if None not in numbers and all(type(n) is int for n in x.shape[2:]):
            node.args = how["input"], *numbers, how["mode"], how["align_corners"], how["recompute_scale_factor"]
            node.kwargs = {}
            node.target, changed = torch.ops.mlirfuse.interpolate.default, True
    if changed:
        module.recompile()


def _numbers(given: Any, count: int) -> list[Any] | None:
    """``given`` for each of ``count`` dimensions; empty where it is None, None where it is not known."""
    found = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given] * count
    return found if all(type(n) in (int, float) for n in found) else None


# As an op, which AOTAutograd's cache can store.
_library = torch.library.Library("mlirfuse", "FRAGMENT")
_library.define("interpolate(Tensor x, int[] size, float[] scale_factor, str mode, bool? align_corners, "
                "bool? recompute_scale_factor) -> Tensor")  # fmt: skip


def _interpolated(x: torch.Tensor, size: Any, scale_factor: Any, mode: str, align_corners: bool | None,
                  recompute_scale_factor: bool | None) -> torch.Tensor:  # fmt: skip
    how: dict[str, Any] = {"size": size or None, "scale_factor": scale_factor or None, "mode": mode}
    how |= {"align_corners": align_corners, "recompute_scale_factor": recompute_scale_factor}
    if x.requires_grad and torch.is_grad_enabled() and functorch_interpreter() is None:
        return _Resized.apply(x, how)
    return F.interpolate(x, **how)


_library.impl("interpolate", _interpolated, "CompositeImplicitAutograd")


class Dimension(NamedTuple):
    """How ``pixels`` along a dimension are computed from ``elements``: that at or below ``(pixel + offset) * scale -
    shift``, and those beside it by :data:`_TAPS`."""

    elements: int
    pixels: int
    mode: str
    scale: float
    offset: float
    shift: float

    def position(self, pixel: Any) -> Any:
        """The position of a pixel among the elements, not bounded, of a tensor or array of floats."""
        found = (pixel + self.offset) * self.scale if self.offset else pixel * self.scale
        return found - self.shift if self.shift else found

    @property
    def taps(self) -> int:
        """How many elements a pixel reads."""
        before, behind = _TAPS[self.mode]
        return behind - before + 1

    @property
    def copies(self) -> bool:
        """Whether each pixel is the element with its number."""
        each = np.arange(self.pixels, dtype=np.float32)
        position = self.position(each)
        position = np.floor(position) if self.mode.startswith("nearest") else position
        return self.elements == self.pixels and bool((position == each).all())

    def windows(self) -> Line:
        """The pixels that read an element, but that windows end with the last pixel. Positions may be rounded as in
        float32 or less."""
        before, behind = _TAPS[self.mode]
        lows, highs = [], []
        for dtype in (np.float32, np.float64):
            below = np.floor(self.position(np.arange(self.pixels, dtype=dtype)))
            lows.append(np.clip(below + before, 0, self.elements - 1))
            highs.append(np.clip(below + behind, 0, self.elements - 1))
        each = np.arange(self.elements)
        first = np.searchsorted(np.max(highs, 0), each, "left")
        last = np.searchsorted(np.min(lows, 0), each, "right") - 1
        return line_through(first, last, self.pixels)

    def weight(self, pixel: torch.Tensor, element: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What ``pixel`` has of ``element``, which are integers."""
        position = self.position(pixel.to(dtype))
        last = self.elements - 1
        if self.mode.startswith("nearest"):
            return (position.to(element.dtype).clamp(max=last) == element).to(dtype)
        if self.mode != "bicubic":
            return (1 - (position.clamp(0, last) - element.to(dtype)).abs()).clamp(min=0)
        below = position.floor()
        t = (position - below).clamp(0, 1)
        found: Any = 0
        for tap, own in zip(range(-1, 3), (_far(t + 1), _near(t), _near(1 - t), _far(2 - t))):
            there = (below.to(element.dtype) + tap).clamp(0, last) == element
            found = found + torch.where(there, own, 0)
        return found


def _near(t: torch.Tensor) -> torch.Tensor:
    return ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1


def _far(t: torch.Tensor) -> torch.Tensor:
    return ((_CUBIC * t - 5 * _CUBIC) * t + 8 * _CUBIC) * t - 4 * _CUBIC


def dimensions(elements: Sequence[int], pixels: Sequence[int], mode: str, align_corners: bool | None = None,
               scale_factor: Any = None, recompute_scale_factor: bool | None = None,
               **_: Any) -> list[Dimension]:  # fmt: skip
    """The dimensions of an image of these many ``elements`` that is resized to ``pixels`` by these arguments of
    ``interpolate``."""
    factors = scale_factor if isinstance(scale_factor, (list, tuple)) else [scale_factor] * len(elements)
    moved = 0.0 if align_corners or mode == "nearest" else 0.5
    found = []
    for size, count, factor in zip(elements, pixels, factors):
        scale = 1 / factor if factor and not recompute_scale_factor else size / count
        if align_corners:
            scale = (size - 1) / (count - 1) if count > 1 else 0.0
        found.append(Dimension(size, count, mode, scale, moved, 0.0 if mode == "nearest-exact" else moved))
    return found


class _Resized(torch.autograd.Function):
    """``interpolate(x, **how)``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, how: dict[str, Any]) -> torch.Tensor:
        found = F.interpolate(x, **how)
        ctx.dimensions = dimensions(x.shape[2:], found.shape[2:], **how)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        for k, dimension in enumerate(ctx.dimensions):
            gradient = gathered(gradient, 2 + k, dimension)
        return gradient, None


def gathered(gradient: torch.Tensor, axis: int, dimension: Dimension) -> torch.Tensor:
    """The gradient of the elements along ``axis``, from that of the pixels; both of the same dtype."""
    if dimension.copies:
        return gradient
    wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
    step, of, add, count = dimension.windows()
    whole = torch.int32 if (dimension.elements + 1) * (dimension.pixels + 1) < 1 << 31 else torch.int64
    element = torch.arange(dimension.elements, dtype=whole, device=gradient.device)
    start = ((element * step + add).clamp(min=0) // of).clamp(max=dimension.pixels - count)
    behind = [1] * (gradient.dim() - axis - 1)
    at: list[Any] = [None] * axis
    if count * dimension.taps <= _UNROLLED:
        total: Any = 0
        for k in range(count):
            pixel = start + k
            read = torch.ops.aten._unsafe_index(gradient, [*at, pixel.long()]).to(wide)
            total = total + read * dimension.weight(pixel, element, wide).view(-1, *behind)
    else:
        pixel = start + torch.arange(count, dtype=whole, device=gradient.device)[:, None]
        read = torch.ops.aten._unsafe_index(gradient, [*at, pixel.long()]).to(wide)
        total = (read * dimension.weight(pixel, element, wide).view(count, -1, *behind)).sum(axis)
    return total.to(gradient.dtype)
