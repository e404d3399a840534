"""Real arrays where a trace has views, and positions that are known at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse.frontend.numpy import real_views
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.sizes import Size
from mlirfuse.runtime import arrays

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.graph_breaks.tree import State


@dataclass(frozen=True)
class SlotView:
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
class Repeated:
    """The object that is also the result number ``at``."""

    at: int


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
    if kind is SlotView:
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


def _view(array: Any, place: SlotView, state: State) -> Any:
    index = iter(place.index)
    for step in place.path:
        if isinstance(step, RunTime):
            array = real_views.at(array, step.axis, int(state.at(next(index))))
        else:
            array = real_views.through(array, step, state.env)
    return array
