"""Explanations of calls whose loops run in Python around compiled regions."""

from __future__ import annotations

import copy
import linecache
import time
from dataclasses import dataclass

from mlirfuse.frontend.numpy.device_loops.program import DeviceLoopProgram, on_host
from mlirfuse.frontend.numpy.device_loops.region import NotSplit, Region
from mlirfuse.inspect import listing
from mlirfuse.inspect.shown import Table, Tables


@dataclass
class RegionRan:
    """A region in one call: its first line and that line's source, its number of runs, of compiled functions and of
    statements."""

    line: int
    source: str
    runs: int
    compiled: int
    statements: int


class DeviceLoopsExplanation(Tables):
    """One call of a function whose loops run in Python (:mod:`mlirfuse.frontend.numpy.device_loops`): its ``regions``
    in source order, and ``seconds`` of the call on the host."""

    def __init__(self, name: str, file: str, regions: list[RegionRan], seconds: float):
        self.name, self.file, self.regions, self.seconds = name, file, regions, seconds

    @staticmethod
    def of(name: str, program: DeviceLoopProgram, leaves: list) -> DeviceLoopsExplanation | None:
        """Runs the call twice on copies: to compile, to measure. None where it does not run this way."""
        if on_host(leaves):
            return None
        try:
            return DeviceLoopsExplanation._of(name, program.fn.__code__.co_filename, program, leaves)
        except NotSplit:
            return None

    @staticmethod
    def _of(name: str, file: str, program: DeviceLoopProgram, leaves: list) -> DeviceLoopsExplanation:
        program.device_loops(copy.deepcopy(leaves))
        leaves = copy.deepcopy(leaves)
        before = [region.runs for region in program.regions]
        start = time.perf_counter()
        program.device_loops(leaves)
        seconds = time.perf_counter() - start

        def reported(region: Region, runs: int) -> RegionRan:
            source = linecache.getline(file, region.line).strip()
            return RegionRan(region.line, source, region.runs - runs, region.created, len(region.statements))

        found = [reported(region, runs) for region, runs in zip(program.regions, before)]
        return DeviceLoopsExplanation(name, file, sorted(found, key=lambda s: s.line), seconds)

    def summary(self) -> str:
        """One line: the number of compiled functions and of their runs."""
        compiled = sum(region.compiled for region in self.regions)
        return (
            f"{self.name} runs as Python around {compiled} compiled regions, which ran {self.launches} times. "
            f"This call took the host {self.seconds * 1e3:.3g} ms"
        )

    @property
    def launches(self) -> int:
        """The number of runs of compiled functions."""
        return sum(region.runs * region.compiled for region in self.regions)

    def tables(self) -> list[Table]:
        rows = [
            (
                listing.place((self.file, region.line)),
                region.source,
                region.statements,
                region.compiled,
                region.runs,
            )
            for region in self.regions
        ]
        headings = ("from", "source", "statements", "compiled functions", "runs")
        return [Table(headings, rows)]
