"""Eager fallback: calls that are not compiled run the user's function on the real arrays.

What a trace cannot follow (a branch on an array's value, a list that grows, an unknown function) is no error where
NumPy can run it. A warning names the line and the cause once; later calls with arguments of the same types come here at
once.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse.core import config
from mlirfuse.core.errors import has_line, located, warn
from mlirfuse.frontend.numpy.loops import helpers
from mlirfuse.runtime import arrays

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.loops.explanation import LoopsExplanation
    from mlirfuse.frontend.numpy.loops.outline import Outlined


class WithContainers(BaseException):
    """Makes a call run eagerly with the original arguments of :meth:`Jitted._call`: the caller's own lists and dicts,
    which the function may mutate. ``refused``: why the call is not compiled."""

    def __init__(self, refused: Exception | None):
        super().__init__()
        self.refused = refused


class EagerFunction:
    """The eager version of one function, with its loops outlined where it has any (see
    :mod:`mlirfuse.frontend.numpy.loops`)."""

    def __init__(self, fn: Callable, name: str):
        self.original, self.name = fn, name
        self._reported = False
        self._without_source = False  # it has loops, which cannot run natively because its source cannot be read
        self.loops_failed = False  # no loop ran natively: trace the function instead

    @functools.cached_property
    def jumps_back(self) -> bool:
        """Whether the function may have loops."""
        return helpers.jumps_back(self.original)

    @functools.cached_property
    def _outlined(self) -> Outlined | None:
        fn = self.original
        if not (self.jumps_back or helpers.loops_in_helpers(fn)):  # others need not be parsed
            return None
        assert isinstance(fn, types.FunctionType)
        from mlirfuse.frontend.numpy.loops import outline

        try:
            return outline.outlined(fn)
        except outline.NoSource:
            self._without_source = True
            return None

    @property
    def outlined(self) -> bool:
        """Whether there are loops that may run natively."""
        return self._outlined is not None

    @functools.cached_property
    def fn(self) -> Callable:
        """The function to call: with its loops outlined, or the user's own."""
        return self.original if self._outlined is None else self._outlined.function

    @functools.cached_property
    def preferred(self) -> bool:
        """Whether to outline the function's loops rather than trace it: a trace would unroll them."""
        found = self._outlined
        return found is not None and (found.preferred or (found.tried and not self.loops_failed))

    def explain(self, args: Sequence, kwargs: dict[str, Any]) -> LoopsExplanation:
        """How the loops of a call run; runs the call on copies of the arguments."""
        from mlirfuse.frontend.numpy.loops.explanation import (
            LoopsExplanation,  # lazy: few programs need it
        )

        assert self._outlined is not None
        file = self.original.__code__.co_filename
        return LoopsExplanation.of(self.name, self._outlined, file, args, kwargs)

    def log(self, cause: object) -> None:
        """Warns once per function, at the caller's line."""
        if not self._reported:
            self._reported = True
            remedy = "\nIts loops run as Python because its source cannot be read: define it in a file"
            warn(f"mlirfuse runs {self.name} op by op: {cause}{remedy if self._without_source else ''}")

    def first(self, refused: Exception | None, args: Sequence, kwargs: dict[str, Any]) -> Any:
        """The first call that runs eagerly, because of ``refused``. If NumPy raises an error of the same type, raises
        the trace's error instead where that has the line and the remedy. With ``fuse_cpu`` off the user's own function
        runs, loops included, so that breakpoints and tracers see each line."""
        if not config.fuse_cpu:
            return self.original(*args, **kwargs)
        if refused is None:
            result = self.fn(*args, **kwargs)
            found = self._outlined
            if found is not None and not found.preferred and not any(loop.ran for loop in found.all_loops()):
                self.loops_failed = True
            else:
                self._log_loops()
            self._drop_dead_loops()
            return result
        try:
            result = self.fn(*args, **kwargs)
        except Exception as error:
            if isinstance(refused, type(error)) and has_line(refused):
                raise refused from error
            raise
        if self._outlined is not None and any(loop.ran for loop in self._outlined.all_loops()):
            self._log_loops()
        else:
            self.log(refused)
        self._drop_dead_loops()
        return result

    def _drop_dead_loops(self) -> None:
        """Calls the user's own function from now on if none of its loops can run natively."""
        if self._outlined is not None and all(loop.dead for loop in self._outlined.all_loops()):
            self.fn = self.original

    def revive(self) -> None:
        """Retries loops that could not be compiled, for arguments of other types."""
        if self._outlined:
            self.fn = self._outlined.function
            for loop in self._outlined.all_loops():
                loop.dead = False

    def _log_loops(self) -> None:
        """Warns of a loop that runs as Python."""
        for loop in self._outlined.all_loops() if self._outlined else ():
            if loop.refused is not None and not loop.ran:
                where = (loop.scope.file, loop.node.lineno)
                self.log(located(f"one of its loops runs as Python, because of {loop.refused}", where))


def types_of(leaves: Sequence) -> tuple:
    """The types, dtypes and ranks of arguments, which decide whether a call is compiled."""
    return tuple([(x.dtype, x.ndim) if type(x) is np.ndarray else type(x) for x in leaves])


def all_known(leaves: Sequence) -> bool:
    """Whether all arrays belong to known libraries (NumPy, torch, CuPy)."""
    return all(arrays.framework(leaf) in ("numpy", "torch", "cupy", None) for leaf in leaves)


def all_numpy(leaves: Sequence) -> bool:
    """Whether all arrays are NumPy's."""
    return all(arrays.framework(leaf) in ("numpy", None) for leaf in leaves)
