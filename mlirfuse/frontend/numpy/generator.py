"""The default random generator: compiled functions that draw without a seed get a new seed at each call."""

from __future__ import annotations

import numpy as np

from mlirfuse.core import threads
from mlirfuse.frontend.numpy.trace_state import Trace
from mlirfuse.frontend.numpy.traced_array import Buffer, TracedArray
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.runtime.arrays import spec_of


class Generator:
    """A stream of seeds, from one given seed or from the system's entropy."""

    def __init__(self) -> None:
        self._lock = threads.lock()
        self._numbers: np.random.Generator | None = None  # created on first use: np.random is slow to import

    def seed(self, number: int | None = None) -> None:
        """Restarts the stream from this number; None: from the system's entropy."""
        with self._lock:
            self._numbers = np.random.Generator(np.random.Philox(number))

    @property
    def drawn(self) -> np.ndarray:
        """The next seed. Functions that draw without one capture this property, so each call reads it anew."""
        with self._lock:
            self._numbers = self._numbers or np.random.Generator(np.random.Philox())
            return np.asarray(self._numbers.integers(2**62))


default = Generator()


def seed_and_offset(t: Trace) -> tuple[Value, Value]:
    """The call's seed, and the number of earlier random ops in the function as the offset: no two ops draw the same
    numbers."""
    found = t.captured.get(id(default))
    if found is None:
        example, position = np.asarray(0, np.int64), len(t.block.args)
        created = TracedArray(t, t.argument(spec_of(example), "seed"), Buffer(captured=position, writable=False))
        found = t.captured[id(default)] = (example, created, ((default, (("attr", "drawn"),)),))
    t.random_ops += 1
    return found[1].value, t.builder.constant(t.random_ops - 1, dt.i64)
