"""Explanations of functions whose loops run natively."""

from __future__ import annotations

import copy
import linecache
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mlirfuse.frontend.numpy.loops.kernel import Loop, LoopRan
from mlirfuse.frontend.numpy.loops.outline import Outlined
from mlirfuse.inspect import listing
from mlirfuse.inspect.shown import Table, Tables
from mlirfuse.runtime import events


@dataclass
class LoopRuns:
    """How a loop ran in one call. ``seconds``: the total of its native runs. ``as_python``: how often it tried and ran
    as Python; None for a loop that never tries, as it contains something that is not compiled."""

    file: str
    line: int
    source: str
    natively: int
    seconds: float
    as_python: int | None
    why: str


class LoopsExplanation(Tables):
    """One call of a function with its loops outlined (:mod:`mlirfuse.frontend.numpy.loops`): ``loops`` in source order,
    and ``seconds`` of the whole call."""

    def __init__(self, name: str, loops: list[LoopRuns], seconds: float):
        self.name, self.loops, self.seconds = name, loops, seconds

    @staticmethod
    def of(name: str, outlined: Outlined, file: str, args: Sequence, kwargs: dict) -> LoopsExplanation:
        """Runs the function on copies of the arguments: once to compile, once to measure."""
        outlined.function(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        args, kwargs = copy.deepcopy((args, kwargs))
        ran: list[LoopRan] = []
        stop = events.observe(LoopRan, ran.append)
        try:
            start = time.perf_counter()
            outlined.function(*args, **kwargs)
            seconds = time.perf_counter() - start
        finally:
            stop()
        source = lambda file, line: linecache.getline(file, line).strip()  # noqa: E731
        loops = [_runs(loop, source(loop.scope.file, loop.node.lineno), ran) for loop in outlined.all_loops()]
        loops += [
            LoopRuns(
                file, node.lineno, source(file, node.lineno), 0, 0.0, None, "contains a statement that is not compiled"
            )
            for node in outlined.left
        ]
        return LoopsExplanation(
            name, sorted(loops, key=lambda loop: (loop.file != file, loop.file, loop.line)), seconds
        )

    def summary(self) -> str:
        """One line: the number of native loops, and the call's time."""
        native = sum(loop.natively > 0 for loop in self.loops)
        inside = sum(loop.seconds for loop in self.loops)
        return (
            f"{self.name} runs as Python with its loops outlined, {native} of {len(self.loops)} natively. "
            f"This call took {_time(self.seconds)}, {_time(inside)} of it in them"
        )

    @property
    def launches(self) -> int:
        """The number of native runs of loops."""
        return sum(loop.natively for loop in self.loops)

    def tables(self) -> list[Table]:
        rows = [
            (
                listing.place((loop.file, loop.line)),
                loop.source,
                loop.natively,
                _time(loop.seconds),
                "always" if loop.as_python is None else loop.as_python,
                loop.why,
            )
            for loop in self.loops
        ]
        headings = ("loop", "source", "runs natively", "in all", "runs as Python", "why")
        return [Table(headings, rows, keys={"in all": [loop.seconds for loop in self.loops]})]


def _runs(loop: Loop, source: str, ran: Sequence[LoopRan]) -> LoopRuns:
    mine = [event.seconds for event in ran if event.loop is loop]
    native = [seconds for seconds in mine if seconds is not None]
    why = ""
    if not mine:
        why = "not reached, or inside a native loop"
    elif len(native) < len(mine) and loop.refused:
        why = loop.refused.splitlines()[0]
    return LoopRuns(loop.scope.file, loop.node.lineno, source, len(native), sum(native), len(mine) - len(native), why)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
