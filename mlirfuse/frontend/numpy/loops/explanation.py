"""Explanations of functions whose loops run natively."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mlirfuse.frontend.numpy.loops.kernel import Loop, LoopRan
from mlirfuse.frontend.numpy.loops.outline import Outlined
from mlirfuse.inspect import listing
from mlirfuse.inspect.call_explanation import CallExplanation
from mlirfuse.inspect.shown import Table
from mlirfuse.runtime import events

_HEADINGS = ("loop", "source", "runs natively", "in all", "runs as Python", "why")


@dataclass
class LoopRuns:
    """How a loop ran in one call. ``seconds``: the total of its native runs. ``as_python``: how often it tried and ran
    as Python; None for a loop that never tries, as it contains something that is not compiled."""

    file: str
    line: int
    natively: int
    seconds: float
    as_python: int | None
    why: str

    @property
    def source(self) -> str:
        """The loop's first line."""
        return listing.source((self.file, self.line))


def explanation(name: str, outlined: Outlined, file: str, args: Sequence, kwargs: dict) -> CallExplanation:
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
    loops = [_runs(loop, ran) for loop in outlined.all_loops()]
    loops += [
        LoopRuns(file, node.lineno, 0, 0.0, None, "contains a statement that is not compiled") for node in outlined.left
    ]
    loops.sort(key=lambda loop: (loop.file != file, loop.file, loop.line))
    text = (
        f"{name} runs as Python with its loops outlined, {sum(loop.natively > 0 for loop in loops)} of {len(loops)} "
        f"natively. This call took {_time(seconds)}, {_time(sum(loop.seconds for loop in loops))} of it in them"
    )
    rows = [
        (
            listing.place((loop.file, loop.line)),
            loop.source,
            loop.natively,
            _time(loop.seconds),
            "always" if loop.as_python is None else loop.as_python,
            loop.why,
        )
        for loop in loops
    ]
    table = Table(_HEADINGS, rows, keys={"in all": [loop.seconds for loop in loops]})
    return CallExplanation(name, text, loops, sum(loop.natively for loop in loops), seconds, [table])


def _runs(loop: Loop, ran: Sequence[LoopRan]) -> LoopRuns:
    mine = [event.seconds for event in ran if event.loop is loop]
    native = [seconds for seconds in mine if seconds is not None]
    why = ""
    if not mine:
        why = "not reached, or inside a native loop"
    elif len(native) < len(mine) and loop.refused:
        why = loop.refused.splitlines()[0]
    return LoopRuns(loop.scope.file, loop.node.lineno, len(native), sum(native), len(mine) - len(native), why)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
