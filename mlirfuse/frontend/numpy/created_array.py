"""Constant arrays created inside the function: ``np.zeros(3)``, ``np.arange(n)``, ``np.array([0.25, 0.5, 0.25])``.

They are traced, so that traced values can be written into them. Until then their elements are known at trace time: they
can serve as indices, shapes and numbers, and NumPy evaluates what depends on them alone.
"""

from __future__ import annotations

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.graph_breaks.calls import or_called
from mlirfuse.frontend.numpy.operands import contains_traced
from mlirfuse.frontend.numpy.stand_in import StandIn
from mlirfuse.frontend.numpy.trace_state import Trace, current
from mlirfuse.frontend.numpy.traced_array import Buffer, TracedArray
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value


class CreatedArray(TracedArray):
    """An array whose elements are known until it is written into."""

    __slots__ = ("_elements",)

    def __init__(
        self, trace: Trace, value: Value, elements: np.ndarray, buffer: Buffer | None = None, path: tuple = ()
    ):
        super().__init__(trace, value, buffer, path)
        self._elements = elements

    def known(self) -> np.ndarray | None:
        """The elements (do not write into them); None once the array has been written into."""
        return None if self._buffer.version or self._buffer.touched else self._elements

    def __array__(self, dtype=None, copy=None):
        known = self.known()
        return super().__array__(dtype, copy) if known is None else np.array(known, dtype)

    def __getitem__(self, key):
        known = self.known()
        if known is None or contains_traced(key):
            return super().__getitem__(key)
        elements = known[key]
        if not isinstance(elements, np.ndarray):
            return elements
        view = super().__getitem__(key)
        return CreatedArray(self._trace, view.value, elements, view._buffer, view._path)

    def __iter__(self):
        known = self.known()
        return super().__iter__() if known is None or known.ndim != 1 else iter(known.copy())


def known_elements(x):
    """The elements of a created array that was not written into; None for any other traced array."""
    return x.known() if isinstance(x, CreatedArray) else None


def with_known(nest):
    """Arguments with known elements in place of created arrays; None where they contain another traced array, or no
    created one."""
    leaves, tree = trees.flatten(nest)
    known = [known_elements(x) if isinstance(x, StandIn) else x for x in leaves]
    created = [k for k, x in enumerate(leaves) if isinstance(x, StandIn)]
    if not created or any(known[k] is None for k in created):
        return None
    for k in created:
        known[k] = known[k].copy()
    return tree.unflatten(known)


def as_created(x, alike: bool = False):
    """Wraps NumPy's result on known elements: an array becomes a created array, anything else stays. ``alike``: all
    elements are known to be equal."""
    if isinstance(x, (list, tuple)) and type(x) in (list, tuple):
        return type(x)([as_created(item) for item in x])
    t = current()
    if type(x) is not np.ndarray or t is None:
        return x
    try:
        dt.of(x.dtype)
    except (TypeError, UnsupportedError):
        return x
    if x.dtype.kind == "c":
        return x
    first = x.reshape(-1)[0] if x.size else x.dtype.type(0)
    if alike or x.ndim == 0 or _all_equal(x):
        value = t.emit("full", t.builder.constant(first, dt.of(x.dtype)), shape=x.shape)
    else:
        value = _as_iota(t, x) or t.capture(x).value
    t.strides.setdefault(value, tuple(s // x.itemsize for s in x.strides))
    return CreatedArray(t, value, x)


def _all_equal(x: np.ndarray) -> bool:
    """Whether all elements are bitwise equal; a prefix decides for most arrays."""
    bits = x.reshape(-1).view(f"u{x.itemsize}")
    return all((bits[k : k + _SOME] == bits[0]).all() for k in range(0, bits.size, _SOME))


def _as_iota(t: Trace, x: np.ndarray) -> Value | None:
    """``first + step * index`` along the only dimension of ``x`` longer than 1, where that gives each element exactly;
    kernels compute it from indices instead of reading an array."""
    along = [k for k, n in enumerate(x.shape) if n > 1]
    if len(along) != 1 or x.dtype.kind not in "iuf" or x.itemsize < 4:
        return None
    line, exact = x.reshape(-1), dt.of(x.dtype)
    ends = [line[k].item() for k in (0, 1, -1)]
    limit = 2.0 ** (np.finfo(x.dtype).nmant if x.dtype.kind == "f" else 61)
    if not all(abs(end) < limit and end == int(end) for end in ends):
        return None
    first, second, last = map(int, ends)
    step = second - first
    if (
        step == 0
        or last != first + step * (x.size - 1)
        or line.tobytes() != np.arange(first, last + step, step, dtype=x.dtype).tobytes()
    ):
        return None
    value = t.emit("iota", shape=x.shape, axis=along[0], dtype=exact)
    if step != 1:
        value = t.emit("mul", value, t.builder.constant(step, exact))
    return t.emit("add", value, t.builder.constant(first, exact)) if first else value


_SOME = 1 << 16  # elements compared per chunk
_FILLED = {np.zeros, np.ones}
_OF_ELEMENTS = {np.array, np.asarray, np.asanyarray, np.ascontiguousarray}


def creation_stand_in(eager, ours):
    """A creation function inside a trace: NumPy's where all arguments are constants, else ``ours``."""

    def make(*args, **kwargs):
        t = current()
        if t is None:
            return eager(*args, **kwargs)
        leaves = trees.flatten((args, kwargs))[0] if eager in _OF_ELEMENTS else ()
        numbers = eager in _OF_ELEMENTS and not any(isinstance(x, TracedArray) for x in leaves)
        if not numbers and contains_traced((*args, *kwargs.values())):  # numbers and sizes are for ours
            constants = with_known((args, kwargs))
            if constants is None:
                return or_called(ours, eager, args, kwargs)
            args, kwargs = constants
        result = eager(*args, **kwargs)
        if any(result is x for x in args):
            return result
        if t.device != "cpu" and np.ndim(result):
            return ours(*args, **kwargs)
        return as_created(result, alike=eager in _FILLED)

    make.__name__ = eager.__name__
    return make
