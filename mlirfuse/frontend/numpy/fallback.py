"""Calls that are not compiled: the user's function runs as it is, on the real arrays.

What a trace cannot follow (a branch on an array's value, a list that grows, a function that nobody knows) is no error
where NumPy runs it. The function is told about once, with the line and the cause, and later calls with arguments of
the same types come here at once.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse.core import config
from mlirfuse.core.errors import has_line, located, warn
from mlirfuse.runtime import arrays

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.loops.explanation import LoopsExplanation
    from mlirfuse.frontend.numpy.loops.outline import Outlined

# Every loop jumps back. This is seen in the bytecode at once: what lifts loops is imported, and the source read and
# parsed, for functions with loops alone.
_JUMPS_BACK = {code for name, code in dis.opmap.items() if "JUMP_BACKWARD" in name}


class WithContainers(BaseException):
    """A call is to run as plain Python, with the arguments that :meth:`Jitted._call` has: the caller's own lists and
    dicts, which the function may change. ``refused``: why it is not compiled."""

    def __init__(self, refused: Exception | None):
        super().__init__()
        self.refused = refused


class EagerFunction:
    """How one function runs where it is not compiled whole: as it is, with its loops lifted where it has any (see
    :mod:`mlirfuse.frontend.numpy.loops`). ``loops``: the loops."""

    def __init__(self, fn: Callable, name: str):
        self.original, self.name = fn, name
        self._reported = False
        self._without_source = False  # it has loops, which could run natively if its source could be read
        self.given_up = False  # loops were tried natively, and none of them ran so: a trace is the better way

    @functools.cached_property
    def jumps_back(self) -> bool:
        """Whether the function may have loops."""
        fn = self.original
        return isinstance(fn, types.FunctionType) and not _JUMPS_BACK.isdisjoint(fn.__code__.co_code[::2])

    @functools.cached_property
    def _outlined(self) -> Outlined | None:
        fn = self.original
        if not self.jumps_back:
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
        """What to call."""
        return self.original if self._outlined is None else self._outlined.function

    @functools.cached_property
    def preferred(self) -> bool:
        """Whether the function is better run with its loops lifted than traced: a trace would unroll them."""
        found = self._outlined
        return found is not None and (found.preferred or (found.tried and not self.given_up))

    def explain(self, args: Sequence, kwargs: dict[str, Any]) -> LoopsExplanation:
        """What becomes of the loops in a call, which runs on copies of the arguments."""
        from mlirfuse.frontend.numpy.loops.explanation import (
            LoopsExplanation,  # only those who ask pay for importing it
        )

        assert self._outlined is not None
        file = self.original.__code__.co_filename
        return LoopsExplanation.of(self.name, self._outlined, file, args, kwargs)

    def log(self, cause: object) -> None:
        """Warns once, at the caller's line."""
        if not self._reported:
            self._reported = True
            remedy = "\nIts loops run as Python, as its source cannot be read: define it in a file"
            warn(f"mlirfuse runs {self.name} op by op: {cause}{remedy if self._without_source else ''}")

    def first(self, refused: Exception | None, args: Sequence, kwargs: dict[str, Any]) -> Any:
        """A call that was just found not to be compiled, because of ``refused``. Where NumPy raises an error of that
        type too, the trace's is raised if it has the line and the remedy. With ``fuse_cpu`` off the
        user's own function runs, loops too: breakpoints and tracers see each line."""
        if not config.fuse_cpu:
            return self.original(*args, **kwargs)
        if refused is None:
            result = self.fn(*args, **kwargs)
            found = self._outlined
            if found is not None and not found.preferred and not any(loop.ran for loop in found.loops):
                self.given_up = True
            else:
                self._log_loops()
            return result
        try:
            result = self.fn(*args, **kwargs)
        except Exception as error:
            if isinstance(refused, type(error)) and has_line(refused):
                raise refused from error
            raise
        if self._outlined is not None and any(loop.ran for loop in self._outlined.loops):
            self._log_loops()
        else:
            self.log(refused)
        return result

    def revive(self) -> None:
        """For arguments of other types, loops that could not be compiled are tried again."""
        for loop in self._outlined.loops if self._outlined else ():
            loop.dead = False

    def _log_loops(self) -> None:
        """Warns of a loop that runs as Python."""
        for loop in self._outlined.loops if self._outlined else ():
            if loop.refused is not None and not loop.ran:
                where = (self.original.__code__.co_filename, loop.node.lineno)
                self.log(located(f"a loop of it runs as Python, because of {loop.refused}", where))


def types_of(leaves: Sequence) -> tuple:
    """What decides whether a call is compiled, as cheap as can be: types, dtypes and ranks."""
    return tuple([(x.dtype, x.ndim) if type(x) is np.ndarray else type(x) for x in leaves])


def all_known(leaves: Sequence) -> bool:
    """Whether arrays are of libraries whose views and copies we know."""
    return all(arrays.framework(leaf) in ("numpy", "torch", "cupy", None) for leaf in leaves)


def all_numpy(leaves: Sequence) -> bool:
    """Whether all arrays are NumPy's."""
    return all(arrays.framework(leaf) in ("numpy", None) for leaf in leaves)
