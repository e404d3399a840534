"""Real arrays for the views of a trace, with indices known at run time."""

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
    """The object in ``slot``, or its view by ``path``. ``number``: np.generic or Python's type, where it is a number
    instead of an array."""

    slot: int
    path: tuple = ()
    number: type | None = None


@dataclass(frozen=True)
class Repeated:
    """The same object as result ``at``."""

    at: int


@dataclass(frozen=True)
class Extent:
    """A size as a Python int."""

    size: Size


@dataclass(frozen=True, eq=False)
class Constant:
    """An object that the function created or read; arrays are created anew in each call."""

    value: Any


def seen(leaf: Any, state: State) -> Any:
    """The object of a leaf of a call's arguments, or of the result, in this call."""
    kind = type(leaf)
    if kind is SlotView:
        found = real_views.viewed(state[leaf.slot], leaf.path, state.__getitem__, state.env)
        if leaf.number is None or not isinstance(found, (np.ndarray, np.generic)):
            return found
        found = found[()]  # type: ignore[index]  # works on NumPy scalars too
        return found if leaf.number is np.generic else leaf.number(found)
    if kind is Extent:
        return sz.substitute(leaf.size, state.env)
    value = leaf.value
    return value.copy(order="K") if type(value) is np.ndarray else value


def on_host(leaf: Any, state: State) -> Any:
    """:func:`seen` with the array converted to NumPy's."""
    found = seen(leaf, state)
    if state.like is None or arrays.framework(found) in (None, "numpy"):
        return found
    found = arrays.to_numpy(found)
    return found if leaf.number is None else found[()]
