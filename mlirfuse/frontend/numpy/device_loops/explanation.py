"""Explanations of calls whose loops run in Python around compiled regions."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass

from mlirfuse.frontend.numpy.device_loops.program import DeviceLoopProgram, on_host
from mlirfuse.frontend.numpy.device_loops.region import NotSplit
from mlirfuse.inspect import listing
from mlirfuse.inspect.call_explanation import CallExplanation
from mlirfuse.inspect.shown import Table

_HEADINGS = ("from", "source", "statements", "compiled functions", "runs")


@dataclass
class RegionRan:
    """A region in one call: its first line and that line's source, its number of runs, of compiled functions and of
    statements."""

    line: int
    source: str
    runs: int
    compiled: int
    statements: int


def explanation(name: str, program: DeviceLoopProgram, leaves: list) -> CallExplanation | None:
    """Runs the call twice on copies: to compile, to measure; seconds are the host's. None where it does not run this
    way."""
    if on_host(leaves):
        return None
    try:
        program.device_loops(copy.deepcopy(leaves))
        leaves = copy.deepcopy(leaves)
        before = [region.runs for region in program.regions]
        start = time.perf_counter()
        program.device_loops(leaves)
        seconds = time.perf_counter() - start
    except NotSplit:
        return None
    file = program.fn.__code__.co_filename
    regions = [
        RegionRan(r.line, listing.source((file, r.line)), r.runs - runs, r.created, len(r.statements))
        for r, runs in zip(program.regions, before)
    ]
    regions.sort(key=lambda region: region.line)
    launches = sum(region.runs * region.compiled for region in regions)
    text = (
        f"{name} runs as Python around {sum(region.compiled for region in regions)} compiled regions, which ran "
        f"{launches} times. This call took the host {seconds * 1e3:.3g} ms"
    )
    rows = [(listing.place((file, r.line)), r.source, r.statements, r.compiled, r.runs) for r in regions]
    return CallExplanation(name, text, regions, launches, seconds, [Table(_HEADINGS, rows)])
