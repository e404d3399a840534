"""A function as Python runs it, on the real arrays: with its loops outlined to native code where it has any.

What a trace cannot follow (a branch on an array's value, a list that grows, an unknown function) is no error where
NumPy can run it. A warning names the line and the cause once.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mlirfuse.core import config
from mlirfuse.core.errors import has_line, located, warn

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.loops.kernel import Loop
    from mlirfuse.frontend.numpy.loops.outline import Outlined

# Every loop jumps backward, which the bytecode shows cheaply. Only functions with loops pay for importing the outliner
# and for parsing their source.
_JUMPS_BACK = {code for name, code in dis.opmap.items() if "JUMP_BACKWARD" in name}


class EagerFunction:
    """The eager version of one function, with its loops outlined where it has any (see
    :mod:`mlirfuse.frontend.numpy.loops`)."""

    def __init__(self, fn: Callable, name: str):
        self.original, self.name = fn, name
        self.loops_failed = False  # no loop ran natively: trace the function instead
        self._reported = False
        self._remedy = ""  # for loops that are not outlined

    @functools.cached_property
    def has_loops(self) -> bool:
        """Whether the function may have loops."""
        fn = self.original
        return isinstance(fn, types.FunctionType) and not _JUMPS_BACK.isdisjoint(fn.__code__.co_code[::2])

    @functools.cached_property
    def outlined(self) -> Outlined | None:
        """The function with its loops outlined; None where none may run natively."""
        if not self.has_loops:
            return None
        from mlirfuse.frontend.numpy.loops import outline

        try:
            return outline.outlined(self.original)  # type: ignore[arg-type]  # has_loops: a function
        except outline.NoSource:
            self._remedy = "\nIts loops run as Python because its source cannot be read: define it in a file"
            return None

    @functools.cached_property
    def fn(self) -> Callable:
        """The function to call: with its loops outlined, or the user's own."""
        return self.original if self.outlined is None else self.outlined.function

    @property
    def loops(self) -> Sequence[Loop]:
        """The outlined loops."""
        return self.outlined.loops if self.outlined else ()

    def log(self, cause: object) -> None:
        """Warns once per function, at the caller's line."""
        if not self._reported:
            self._reported = True
            warn(f"mlirfuse runs {self.name} op by op: {cause}{self._remedy}")

    def first(self, refused: Exception | None, args: Sequence, kwargs: dict[str, Any]) -> Any:
        """The first call that runs eagerly, because of ``refused``. If NumPy raises an error of the same type, raises
        the trace's error instead where that has the line and the remedy. With ``fuse_cpu`` off the user's own function
        runs, loops included, so that breakpoints and tracers see each line."""
        if not config.fuse_cpu:
            return self.original(*args, **kwargs)
        try:
            result = self.fn(*args, **kwargs)
        except Exception as error:
            if refused is not None and isinstance(refused, type(error)) and has_line(refused):
                raise refused from error
            raise
        if refused is None and self.outlined is None:
            return result
        native = any(loop.ran for loop in self.loops)
        if native or (refused is None and self.outlined is not None and self.outlined.preferred):
            self._log_loops()
        elif refused is None:
            self.loops_failed = True
        else:
            self.log(refused)
        return result

    def revive(self) -> None:
        """Retries loops that could not be compiled, for arguments of other types."""
        for loop in self.loops:
            loop.dead = False

    def _log_loops(self) -> None:
        """Warns of a loop that runs as Python."""
        for loop in self.loops:
            if loop.refused is not None and not loop.ran:
                where = (self.original.__code__.co_filename, loop.node.lineno)
                self.log(located(f"one of its loops runs as Python, because of {loop.refused}", where))
