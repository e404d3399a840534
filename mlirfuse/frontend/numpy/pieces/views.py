"""Real arrays where a trace has views: the steps from an array to a view of it, done by NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse.frontend.numpy import views as vw
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.sizes import Size

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


def _view(array: np.ndarray, place: Place, state: State) -> np.ndarray:
    env, index = state.env, iter(place.index)

    def known(sizes) -> tuple[int, ...]:
        return tuple(sz.substitute(n, env) for n in sizes)

    for step in place.path:
        if isinstance(step, vw.Permute):
            array = array.transpose(step.dims)
        elif isinstance(step, vw.Reshape):
            array = array.reshape(known(step.shape))
        elif isinstance(step, vw.ExpandDims):
            array = np.expand_dims(array, step.axes)
        elif isinstance(step, vw.Squeeze):
            array = np.squeeze(array, step.axes)
        elif isinstance(step, vw.Slice):
            array = array[tuple(_slice(*given) for given in zip(known(step.start), known(step.size), step.step))]
        elif isinstance(step, RunTime):
            array = array[(slice(None),) * step.axis + (int(state.at(next(index))), ...)]
        elif isinstance(step, vw.Broadcast):
            array = np.broadcast_to(array, known(step.shape))
        elif isinstance(step, vw.Part):
            array = getattr(array, step.name)
        elif isinstance(step, vw.Diagonal):
            array = np.diagonal(array, step.column - step.row, -2, -1)
        else:
            assert isinstance(step, (vw.Whole, vw.ReadOnly))
            array = array.view()
            if isinstance(step, vw.ReadOnly):
                array.flags.writeable = False
    return array


def _slice(start: int, size: int, step: int) -> slice:
    stop = start + size * step
    return slice(start, stop if stop >= 0 else None, step)
