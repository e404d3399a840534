"""A function as Python runs it, on the real arrays: with its loops outlined to native code where it has any.

What a trace cannot follow (a branch on an array's value, a list that grows, an unknown function) is no error where
NumPy can run it. A warning names the line and the cause once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mlirfuse.core import config
from mlirfuse.core.errors import has_line, located, warn
from mlirfuse.frontend.numpy.loops import helpers
from mlirfuse.frontend.numpy.syntax import NoSource, NotOutlinable

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.loops.kernel import Loop
    from mlirfuse.frontend.numpy.loops.outline import Outlined


def located_run(fn: Callable, refused: BaseException | None, args: Sequence, kwargs: dict[str, Any]) -> Any:
    """``fn(*args, **kwargs)``, which is not traced because of ``refused``. Where it raises an error of the same type,
    raises ``refused`` instead if that has the line and the remedy."""
    try:
        return fn(*args, **kwargs)
    except Exception as error:
        if refused is not None and isinstance(refused, type(error)) and has_line(refused):
            raise refused from error
        raise


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
        return helpers.jumps_back(self.original)

    @functools.cached_property
    def may_outline(self) -> bool:
        """Whether the function or functions that it calls may have loops: others need not be parsed."""
        return self.has_loops or helpers.loops_in_helpers(self.original)

    @functools.cached_property
    def outlined(self) -> Outlined | None:
        """The function with its loops outlined; None where none may run natively."""
        if not self.may_outline:
            return None
        from mlirfuse.frontend.numpy.loops import outline

        try:
            return outline.Outlined(self.original)  # type: ignore[arg-type]  # has_loops: a function
        except NotOutlinable as error:
            if isinstance(error, NoSource):
                self._remedy = "\nIts loops run as Python because its source cannot be read: define it in a file"
            return None

    @functools.cached_property
    def fn(self) -> Callable:
        """The function to call: with its loops outlined, or the user's own."""
        return self.original if self.outlined is None else self.outlined.function

    @property
    def loops(self) -> Sequence[Loop]:
        """The outlined loops, and those of functions that it calls."""
        return self.outlined.all_loops() if self.outlined else ()

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
        result = located_run(self.fn, refused, args, kwargs)
        if refused is None and self.outlined is None:
            return result
        native = any(loop.ran for loop in self.loops)
        if native or (refused is None and self.outlined is not None and self.outlined.preferred):
            self._log_loops()
        elif refused is None:
            self.loops_failed = True
        else:
            self.log(refused)
        if self.outlined is not None and all(loop.dead for loop in self.loops):
            self.fn = self.original  # from now on: none of its loops can run natively
        return result

    def revive(self) -> None:
        """Retries loops that could not be compiled, for arguments of other types."""
        if self.outlined is not None:
            self.fn = self.outlined.function
        for loop in self.loops:
            loop.dead = False

    def _log_loops(self) -> None:
        """Warns of a loop that runs as Python."""
        for loop in self.loops:
            if loop.refused is not None and not loop.ran:
                where = (loop.scope.file, loop.node.lineno)
                self.log(located(f"one of its loops runs as Python, because of {loop.refused}", where))
