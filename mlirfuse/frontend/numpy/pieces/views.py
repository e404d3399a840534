"""Real arrays where a trace has views: the steps from an array to a view of it, done by NumPy, CuPy or torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse.frontend.numpy import views as vw
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.sizes import Size
from mlirfuse.runtime import arrays

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.pieces.tree import State


@dataclass(frozen=True)
class Place:
    """What is in ``slot``, or a view of it by ``path``; ``index``: the slot of each position that is known at run time.
    ``number``: np.generic, or Python's type, where it is a number and no array."""

    slot: int
    path: tuple = ()
    index: tuple[int, ...] = ()
    number: type | None = None


@dataclass(frozen=True)
class RunTime:
    """A step to one position of an axis, the next of a place's ``index``."""

    axis: int


@dataclass(frozen=True)
class Extent:
    """A size, as Python's int."""

    size: Size


@dataclass(frozen=True, eq=False)
class Constant:
    """An object that the function has made or read; arrays are made anew."""

    value: Any


def seen(leaf: Any, state: State) -> Any:
    """The object that a leaf of a call's arguments, or of the result, is in this call."""
    kind = type(leaf)
    if kind is Place:
        found = state.at(leaf.slot)
        if leaf.path:
            found = _view(found, leaf, state)
        if leaf.number is None or not isinstance(found, (np.ndarray, np.generic)):
            return found
        found = found[()]  # type: ignore[index]  # NumPy's numbers take it too
        return found if leaf.number is np.generic else leaf.number(found)
    if kind is Extent:
        return sz.substitute(leaf.size, state.env)
    value = leaf.value
    return value.copy(order="K") if type(value) is np.ndarray else value


def on_host(leaf: Any, state: State) -> Any:
    """As :func:`seen`, where an array is one of NumPy's."""
    found = seen(leaf, state)
    if state.like is None or arrays.framework(found) in (None, "numpy"):
        return found
    found = arrays.to_numpy(found)
    return found if leaf.number is None else found[()]


def _view(array: Any, place: Place, state: State) -> Any:
    env, index = state.env, iter(place.index)

    def known(sizes) -> tuple[int, ...]:
        return tuple(sz.substitute(n, env) for n in sizes)

    steps = _of_torch if arrays.framework(array) == "torch" else _of_numpy
    for step in place.path:
        if isinstance(step, RunTime):
            array = array[(slice(None),) * step.axis + (int(state.at(next(index))), ...)]
        else:
            array = steps(array, step, known)
    return array


def _of_numpy(array: Any, step: Any, known: Callable) -> Any:
    """A view of one of NumPy's arrays, or CuPy's."""
    if isinstance(step, vw.Permute):
        return array.transpose(step.dims)
    if isinstance(step, vw.Reshape):
        return array.reshape(known(step.shape))
    if isinstance(step, vw.ExpandDims):
        return np.expand_dims(array, step.axes)
    if isinstance(step, vw.Squeeze):
        return np.squeeze(array, step.axes)
    if isinstance(step, vw.Slice):
        return array[tuple(_slice(*given) for given in zip(known(step.start), known(step.size), step.step))]
    if isinstance(step, vw.Broadcast):
        return np.broadcast_to(array, known(step.shape))
    if isinstance(step, vw.Part):
        return getattr(array, step.name)
    if isinstance(step, vw.Diagonal):
        return np.diagonal(array, step.column - step.row, -2, -1)
    assert isinstance(step, (vw.Whole, vw.ReadOnly))
    array = array.view()
    if isinstance(step, vw.ReadOnly) and isinstance(array, np.ndarray):
        array.flags.writeable = False
    return array


def _of_torch(array: Any, step: Any, known: Callable) -> Any:
    """A view of a torch tensor; a copy where it runs backwards, which torch's views do not."""
    if isinstance(step, vw.Permute):
        return array.permute(step.dims)
    if isinstance(step, vw.Reshape):
        return array.reshape(known(step.shape))
    if isinstance(step, vw.ExpandDims):
        for axis in sorted(step.axes):
            array = array.unsqueeze(axis)
        return array
    if isinstance(step, vw.Squeeze):
        return array.squeeze(tuple(step.axes))
    if isinstance(step, vw.Slice):
        given = list(zip(known(step.start), known(step.size), step.step))
        back = [axis for axis, (_, _, stride) in enumerate(given) if stride < 0]
        if back:
            array = array.flip(back)
            given = [(array.shape[k] - 1 - a, n, -by) if by < 0 else (a, n, by) for k, (a, n, by) in enumerate(given)]
        return array[tuple(_slice(*one) for one in given)]
    if isinstance(step, vw.Broadcast):
        return array.expand(known(step.shape))
    if isinstance(step, vw.Part):
        return getattr(array, step.name)
    if isinstance(step, vw.Diagonal):
        return array.diagonal(step.column - step.row, -2, -1)
    assert isinstance(step, (vw.Whole, vw.ReadOnly))
    return array.view(array.shape)


def _slice(start: int, size: int, step: int) -> slice:
    stop = start + size * step
    return slice(start, stop if stop >= 0 else None, step)
