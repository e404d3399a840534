"""Replays a trace's view steps on real arrays of NumPy, CuPy or torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy import views as vw
from mlirfuse.ir import sizes as sz
from mlirfuse.runtime import arrays


@dataclass(frozen=True)
class IndexStep:
    """A step to one index of an axis, an int that is leaf (or, between graph breaks, slot) ``leaf`` of the call."""

    axis: int
    leaf: int


def at(array: Any, axis: int, index: int) -> Any:
    """The view of an array at one index of an axis; a 0-d view stays an array."""
    return array[(slice(None),) * axis + (index, ...)]


def viewed(array: Any, path: Iterable, leaf: Callable[[int], Any], env: dict[str, int]) -> Any:
    """The view of an array of NumPy, CuPy or torch after these steps; ``leaf`` returns an index; ``env``: the values
    of size symbols."""
    for step in path:
        if isinstance(step, IndexStep):
            array = at(array, step.axis, int(leaf(step.leaf)))
        else:
            array = through(array, step, env)
    return array


def through(array: Any, step: Any, env: dict[str, int]) -> Any:
    """The view of an array of NumPy, CuPy or torch after one step; ``env``: the values of size symbols. A copy for a
    negative step in torch, whose views cannot have one."""

    def known(sizes) -> tuple[int, ...]:
        return tuple(sz.substitute(n, env) for n in sizes)

    torch = arrays.framework(array) == "torch"
    if isinstance(step, vw.Permute):
        return array.permute(step.dims) if torch else array.transpose(step.dims)
    if isinstance(step, vw.Reshape):
        return array.reshape(known(step.shape))
    if isinstance(step, vw.ExpandDims):
        for axis in sorted(step.axes):
            array = array.unsqueeze(axis) if torch else np.expand_dims(array, axis)
        return array
    if isinstance(step, vw.Squeeze):
        return array.squeeze(tuple(step.axes))
    if isinstance(step, vw.Slice):
        return _sliced(array, list(zip(known(step.start), known(step.size), step.step)), torch)
    if isinstance(step, vw.Broadcast):
        return array.expand(known(step.shape)) if torch else np.broadcast_to(array, known(step.shape))
    if isinstance(step, vw.ComplexPart):
        return getattr(array, step.name)
    if isinstance(step, vw.Diagonal):
        return array.diagonal(step.column - step.row, -2, -1)
    assert isinstance(step, (vw.FullView, vw.ReadOnly))
    array = array.view(array.shape) if torch else array.view()
    if isinstance(step, vw.ReadOnly) and isinstance(array, np.ndarray):
        array.flags.writeable = False
    return array


def _sliced(array: Any, given: list[tuple[int, int, int]], torch: bool) -> Any:
    back = [axis for axis, (_, _, by) in enumerate(given) if by < 0] if torch else []
    if back:
        array = array.flip(back)
        given = [(array.shape[k] - 1 - a, n, -by) if by < 0 else (a, n, by) for k, (a, n, by) in enumerate(given)]
    return array[tuple(_slice(*one) for one in given)]


def _slice(start: int, size: int, step: int) -> slice:
    stop = start + size * step
    return slice(start, stop if stop >= 0 else None, step)
