"""The default generator of random numbers: where a compiled function draws without a seed, each call brings another."""

from __future__ import annotations

import numpy as np

from mlirfuse.core import threads
from mlirfuse.frontend.numpy.trace_state import Trace
from mlirfuse.frontend.numpy.traced_array import Buffer, TracedArray
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.runtime.arrays import spec_of


class Generator:
    """Seeds for calls: of a seed given once, or of the system's entropy."""

    def __init__(self) -> None:
        self._lock = threads.lock()
        self._numbers: np.random.Generator | None = None  # made when first asked for: np.random is slow to import

    def seed(self, number: int | None = None) -> None:
        """Calls from now on draw as after any other ``seed`` of this number; None: from the system's entropy again."""
        with self._lock:
            self._numbers = np.random.Generator(np.random.Philox(number))

    @property
    def drawn(self) -> np.ndarray:
        """The next seed. Functions that draw without one capture this: it is read at each call."""
        with self._lock:
            self._numbers = self._numbers or np.random.Generator(np.random.Philox())
            return np.asarray(self._numbers.integers(2**62))


default = Generator()


def seed_and_offset(t: Trace) -> tuple[Value, Value]:
    """The seed of the call, and how many random ops of the function came before: no two draw the same numbers."""
    found = t.captured.get(id(default))
    if found is None:
        example, position = np.asarray(0, np.int64), len(t.block.args)
        created = TracedArray(t, t.argument(spec_of(example), "seed"), Buffer(captured=position, writable=False))
        found = t.captured[id(default)] = (example, created, ((default, (("attr", "drawn"),)),))
    t.random_ops += 1
    return found[1].value, t.builder.constant(t.random_ops - 1, dt.i64)
