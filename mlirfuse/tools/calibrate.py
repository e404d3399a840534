"""``python -m mlirfuse calibrate``: measures a GPU for the heuristics of its schedules.

First copies of many sizes and launches, from which :mod:`mlirfuse.schedule.gpu.tuning.derived` derives thresholds of a
GPU without a file of its own; then the thresholds that matter most, each with a few values, by the time of programs."""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mlirfuse import _native
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.core.errors import MlirfuseError, UnsupportedError
from mlirfuse.inspect.listing import bytes_text
from mlirfuse.lowering import devices
from mlirfuse.runtime import cache, calibration
from mlirfuse.runtime.calibration import Calibration
from mlirfuse.schedule.gpu import tuning
from mlirfuse.schedule.gpu.tuning.heuristics import GpuHeuristics
from mlirfuse.schedule.gpu.tuning.measured import Measured

SECONDS = 100  # after which no further threshold is measured
GAIN = 0.02  # least gain of a threshold's value over the present one, beyond what runs differ by
CACHED = 1.15  # rate of copies that L2 serves, relative to memory's
SMALLEST, LARGEST = 1 << 20, 1 << 30  # bytes of copies, read and written
MOST_COPIES = 20  # in a row: the host issues them while the GPU is busy with earlier writes


def _softmax(x, out):
    e = np.exp(x - x.max(-1, keepdims=True))
    out[...] = e / e.sum(-1, keepdims=True)


def _gradient_and_sum(x, out, total):
    gradient = np.tanh(x) * x
    out[...] = gradient
    total[...] = gradient.sum(0)


def _set(f: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    def program(x, out):
        out[...] = f(x)

    return program


# Functions of an array that write the others: no call allocates memory, which takes longer than many kernels.
PROGRAMS: dict[str, Callable[..., None]] = {
    "copy": _set(lambda x: -x),
    "softmax": _softmax,
    "transpose": _set(lambda x: x.T),
    "sum of columns": _set(lambda x: x.sum(0)),
    "cumsum": _set(lambda x: np.cumsum(x, -1)),
    "gradient and its sum": _gradient_and_sum,
    "concatenation": _set(lambda x: np.concatenate([x, 2 * x], -1)),
}


def _written(program: str, rows: int, columns: int) -> list[tuple[int, ...]]:
    """The shapes of the arrays that a program writes for an array of these numbers of rows and columns."""
    others: dict[str, list[tuple[int, ...]]] = {
        "transpose": [(columns, rows)],
        "sum of columns": [(columns,)],
        "gradient and its sum": [(rows, columns), (columns,)],
        "concatenation": [(rows, 2 * columns)],
    }
    return others.get(program, [(rows, columns)])


@dataclass(frozen=True)
class Case:
    """A program of :data:`PROGRAMS` on an array."""

    program: str
    shape: tuple[int, int]
    dtype: str


def _cases(program: str, *shapes: tuple[int, int]) -> tuple[Case, ...]:
    return tuple(Case(program, shape, dtype) for shape in shapes for dtype in ("float32", "float16"))


@dataclass(frozen=True)
class Threshold:
    """A field of the heuristics by its path, factors of its value that are tried, and cases that depend on it."""

    field: str
    factors: tuple[float, ...]
    cases: tuple[Case, ...]


THRESHOLDS = (  # those that matter most first
    Threshold("rows.registers.usual", (0.5, 2), _cases("softmax", (16_384, 2048), (8192, 4096))),
    Threshold("pointwise.block", (0.5,), _cases("copy", (8192, 8192))),
    Threshold("columns.partials", (0.5, 4 / 3), _cases("sum of columns", (65_536, 512), (131_072, 257))),
    Threshold("scans.block", (0.5, 2), _cases("cumsum", (8192, 8192))),
    Threshold("rows.threads.parallel", (0.5, 2), _cases("softmax", (256, 2048), (512, 4096))),
    Threshold("columns.cluster_bytes", (0.25, 4), _cases("sum of columns", (2048, 4096), (16_384, 2048))),
    Threshold("rows.stages.kept_bytes", (0.5, 2), _cases("softmax", (2, 1 << 20), (8, 1 << 18))),
    Threshold("inner_outer.block", (0.5,), _cases("gradient and its sum", (16_384, 2048))),
    Threshold("transpose.tile", (0.5,), _cases("transpose", (8192, 8192))),
    Threshold("access.staying", (0.5, 2), _cases("softmax", (8192, 2048))),
    Threshold("concat.threads", (0.5, 2), _cases("concatenation", (32_768, 257))),
)


class Measurer(Protocol):
    """What measures a device: times in seconds."""

    def copy(self, nbytes: int) -> float:
        """The time of one of several copies in a row of so many bytes, read and written."""

    def times(self, case: Case, candidates: Sequence[GpuHeuristics]) -> list[float | None]:
        """The time of the case with the schedules of each of the heuristics; None if it cannot run."""


class GpuMeasurer:
    """Measures a GPU of this machine."""

    def __init__(self, properties: DeviceProperties, device: int = 0):
        from mlirfuse.runtime.autotune import GpuTimer

        self.properties, self.device, self.timer = properties, device, GpuTimer(device)

    def arguments(self, case: Case) -> list[Any]:
        """The arguments of a case's program, in memory that is not written."""
        from mlirfuse.runtime.device_array import DeviceArray

        arrays, size = [], np.dtype(case.dtype).itemsize
        for shape in [case.shape, *_written(case.program, *case.shape)]:
            pointer = _native.mem_alloc(math.prod(shape) * size, self.device)
            arrays.append(DeviceArray(pointer, shape, case.dtype, None, self.device))
        return arrays

    def copy(self, nbytes: int) -> float:
        from mlirfuse.api import jit

        fn, arrays = jit(PROGRAMS["copy"]), self.arguments(Case("copy", (1, nbytes // 8), "float32"))
        run = functools.partial(fn, *arrays)
        run()
        calls = max(1, min(MOST_COPIES, LARGEST // 16 // nbytes))
        return statistics.median(self.timer.warm(run, calls) for _ in range(5)) * 1e-3

    def times(self, case: Case, candidates: Sequence[GpuHeuristics]) -> list[float | None]:
        from mlirfuse.api import jit
        from mlirfuse.runtime.autotune import TunedCall

        call = TunedCall.of(jit(PROGRAMS[case.program]), self.arguments(case))
        chosen = []
        for heuristics in candidates:
            with tuning.using(self.properties, heuristics):
                chosen.append(call.target.parameters(call.program, call.env, call.alignments))
        calls = {schedules: call.with_schedules(schedules) for schedules in dict.fromkeys(chosen)}
        found = self.timer.medians({key: run for key, run in calls.items() if run is not None}, 15)
        return [found[schedules] * 1e-3 if schedules in found else None for schedules in chosen]


def measured(measurer: Measurer) -> tuple[Measured, dict[int, float]]:
    """What is measured before thresholds, and the rates of copies in bytes per second, by their bytes."""
    launch, sizes, nbytes = measurer.copy(1024), {}, SMALLEST
    while nbytes <= LARGEST:
        sizes[nbytes] = nbytes / max(measurer.copy(nbytes), 1e-9)
        nbytes *= 2
    bandwidth = sizes[LARGEST]
    cached = [nbytes for nbytes, rate in sizes.items() if rate >= CACHED * bandwidth]
    return Measured(bandwidth, launch, max(cached, default=SMALLEST)), sizes


def chosen_value(measurer: Measurer, heuristics: GpuHeuristics, threshold: Threshold) -> tuple[Any, float]:
    """The best value of a threshold, and how much faster its cases are on average than with the present one, as a
    fraction."""
    value = tuning.field(heuristics, threshold.field)
    values = [value, *(type(value)(value * factor) for factor in threshold.factors)]
    candidates = [tuning.replaced(heuristics, {threshold.field: x}) for x in values]
    ratios: list[list[float]] = [[] for _ in values]
    for case in threshold.cases:
        times = measurer.times(case, candidates)
        for ratio, seconds in zip(ratios, times):
            ratio.append(seconds / times[0] if seconds and times[0] else math.inf)
    means = [statistics.fmean(ratio) for ratio in ratios]
    best = min(range(len(values)), key=means.__getitem__)
    gain = 1 - means[best]
    return (values[best], gain) if math.isfinite(gain) and gain >= GAIN else (value, 0.0)


def calibrate(
    properties: DeviceProperties,
    measurer: Measurer,
    report: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Calibration:
    """Measure a device. Thresholds for which no time is left keep their values, which is reported."""
    end = clock() + SECONDS
    found, sizes = measured(measurer)
    for nbytes, rate in sizes.items():
        report(f"copy of {bytes_text(nbytes)}: {rate / 1e9:.0f} GB/s")
    report(f"launch: {found.launch * 1e6:.1f} µs; L2 serves copies up to {bytes_text(found.l2_bytes)}")
    heuristics, fields = calibration.base(properties, found), {}
    for at, threshold in enumerate(THRESHOLDS):
        if clock() >= end:
            report(f"no time left for {', '.join(t.field for t in THRESHOLDS[at:])}, which keep their values")
            break
        before = tuning.field(heuristics, threshold.field)
        try:
            value, gain = chosen_value(measurer, heuristics, threshold)
        except MlirfuseError as error:
            report(f"{threshold.field}: {before}, not measured: {error}")
            continue
        if value != before:
            fields[threshold.field] = value
            heuristics = tuning.replaced(heuristics, fields)
        report(f"{threshold.field}: {value}" + (f" instead of {before}, {gain:.1%} faster" if value != before else ""))
    return Calibration(found, fields)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mlirfuse calibrate",
        description="Measures the first GPU for at most two minutes, and keeps what it finds in the cache's folder. "
        "Functions compiled by processes that start afterwards use it. Nothing else should run on the GPU meanwhile.",
    )
    parser.parse_args(argv)
    try:
        properties = devices.device(0)
    except UnsupportedError as error:
        sys.stderr.write(f"python -m mlirfuse calibrate: error: {error}\n")
        return 1
    if not cache.enabled():
        sys.stderr.write("python -m mlirfuse calibrate: error: the cache, where results are kept, is off\n")
        return 1
    calibration.store(properties, calibrate(properties, GpuMeasurer(properties), print))
    print(f"kept as {cache.folder() / calibration.name(properties)}")
    return 0
