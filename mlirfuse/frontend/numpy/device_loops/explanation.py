"""What becomes of a call whose loops stay Python's, for people."""

from __future__ import annotations

import copy
import linecache
import time
from dataclasses import dataclass

from mlirfuse.frontend.numpy.device_loops.program import Stretched, on_host
from mlirfuse.frontend.numpy.device_loops.region import NotStretched, Stretch
from mlirfuse.inspect import listing
from mlirfuse.inspect.shown import Table, Tables


@dataclass
class StretchRan:
    """A stretch in one call: its first line and that line's source, how often it ran, how many functions of it are
    compiled, and how many of its statements there are."""

    line: int
    source: str
    runs: int
    compiled: int
    statements: int


class StretchesExplanation(Tables):
    """One call of a function whose loops stay Python's (:mod:`mlirfuse.frontend.numpy.device_loops`): its ``stretches``
    in the source's order, and ``seconds`` of the whole call on the host."""

    def __init__(self, name: str, file: str, stretches: list[StretchRan], seconds: float):
        self.name, self.file, self.stretches, self.seconds = name, file, stretches, seconds

    @staticmethod
    def of(name: str, program: Stretched, leaves: list) -> StretchesExplanation | None:
        """Of a call that runs twice on copies: to compile, to measure. None where it does not run so."""
        if on_host(leaves):
            return None
        try:
            return StretchesExplanation._of(name, program.fn.__code__.co_filename, program, leaves)
        except NotStretched:
            return None

    @staticmethod
    def _of(name: str, file: str, program: Stretched, leaves: list) -> StretchesExplanation:
        program.stretched(copy.deepcopy(leaves))
        leaves = copy.deepcopy(leaves)
        before = [stretch.runs for stretch in program.stretches]
        start = time.perf_counter()
        program.stretched(leaves)
        seconds = time.perf_counter() - start

        def told(stretch: Stretch, runs: int) -> StretchRan:
            source = linecache.getline(file, stretch.line).strip()
            return StretchRan(stretch.line, source, stretch.runs - runs, stretch.made, len(stretch.statements))

        found = [told(stretch, runs) for stretch, runs in zip(program.stretches, before)]
        return StretchesExplanation(name, file, sorted(found, key=lambda s: s.line), seconds)

    def summary(self) -> str:
        """One line: how many functions are compiled, and how often they run."""
        compiled = sum(stretch.compiled for stretch in self.stretches)
        return (
            f"{self.name} runs as Python around {compiled} compiled stretches, which ran {self.launches} times. "
            f"This call took the host {self.seconds * 1e3:.3g} ms"
        )

    @property
    def launches(self) -> int:
        """How often compiled functions ran."""
        return sum(stretch.runs * stretch.compiled for stretch in self.stretches)

    def tables(self) -> list[Table]:
        rows = [
            (
                listing.place((self.file, stretch.line)),
                stretch.source,
                stretch.statements,
                stretch.compiled,
                stretch.runs,
            )
            for stretch in self.stretches
        ]
        headings = ("from", "source", "statements", "compiled functions", "runs")
        return [Table(headings, rows)]
