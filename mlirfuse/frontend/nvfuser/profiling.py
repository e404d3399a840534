"""nvFuser's ``PythonProfiler``: the kernels, times and bytes of the calls in its block."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from mlirfuse.inspect import timing
from mlirfuse.inspect.explain import Explanation
from mlirfuse.runtime import arrays, events

if TYPE_CHECKING:
    from mlirfuse.frontend.nvfuser.definition import FusionDefinition

NAN = math.nan


@dataclass
class KernelProfile:
    """One segment of a call, by its number. Bytes are those of its inputs and outputs; ``time_ms`` is the time of all
    its launches; ``threads`` describes its blocks and threads, or tasks. ``peak_bandwidth_gbs`` is the memory's, NaN
    where the device does not report it."""

    name: str
    segment_id: int
    scheduler: str
    input_bytes: int
    output_bytes: int
    time_ms: float
    threads: str
    peak_bandwidth_gbs: float = NAN

    @property
    def effective_bandwidth_gbs(self) -> float:
        """Bytes over time, in GB/s."""
        return _rate(self.input_bytes + self.output_bytes, self.time_ms)

    @property
    def percentage_peak_bandwidth(self) -> float:
        """The effective bandwidth as a percentage of the peak."""
        return 100 * self.effective_bandwidth_gbs / self.peak_bandwidth_gbs


@dataclass
class FusionProfile:
    """A call. Times are in milliseconds: ``host_time_ms`` from start to return, ``compile_time_ms`` its share spent on
    new graphs and code, ``kernel_time_ms`` the sum of the kernels' times, ``cuda_evt_time_ms`` until the device was
    done, extern ops included. ``segments`` counts kernels and extern ops. Kernels are launched one by one for
    timing."""

    fusion_id: int
    segments: int
    host_time_ms: float
    compile_time_ms: float
    kernel_time_ms: float
    cuda_evt_time_ms: float
    input_bytes: int
    output_bytes: int
    kernel_profiles: list[KernelProfile] = field(default_factory=list)

    @property
    def effective_bandwidth_gbs(self) -> float:
        """Bytes of inputs and outputs over the kernels' time, in GB/s."""
        return _rate(self.input_bytes + self.output_bytes, self.kernel_time_ms)


def _rate(nbytes: int, ms: float) -> float:
    return nbytes / ms / 1e6 if ms else NAN


class PythonProfiler:
    """Profiles the definitions that are executed in its block::

        with PythonProfiler() as prof:
            fd.execute(inputs)
        print(prof.profile.kernel_time_ms, [(k.scheduler, k.time_ms) for k in prof.profile.kernel_profiles])

    ``profile`` is the last call's, ``profiles`` has all. Each call synchronizes with the device.
    """

    active: ClassVar[list[PythonProfiler]] = []

    def __init__(self, auto_scheduler: bool = True):
        self.profiles: list[FusionProfile] = []

    @property
    def profile(self) -> FusionProfile:
        if not self.profiles:
            raise RuntimeError("nothing was executed in the block of this PythonProfiler")
        return self.profiles[-1]

    def __enter__(self) -> PythonProfiler:
        self.active.append(self)
        return self

    def __exit__(self, exception_type, exception, traceback) -> None:
        self.active.remove(self)


def profiled(definition: FusionDefinition, inputs, run) -> list:
    """The outputs of ``run()``, a call of ``definition`` with ``inputs``, recorded in the active profilers."""
    lowered = definition.lower(inputs) if any(arrays.framework(v) for v in inputs) else None
    explained = Explanation.of(lowered) if lowered else None
    wait = _waiter(inputs)
    with timing.timed() as launched, _compile_seconds() as compiling:
        wait()
        start = time.perf_counter()
        outputs = run()
        host = 1e3 * (time.perf_counter() - start)
        wait()
        until_done = 1e3 * (time.perf_counter() - start)
    taken: dict[str, list[float]] = {}  # times of a kernel's launches in order: equal segments share their code
    for name, ms in launched:
        taken.setdefault(name, []).append(ms)
    peak = (timing.peak_bandwidth(lowered.target) if lowered else 0) or NAN
    profiles = [
        KernelProfile(
            ", ".join(l.name for l in k.launches),
            k.number,
            k.scheduler,
            read,
            written,
            sum(taken[l.name].pop(0) if taken.get(l.name) else NAN for l in k.launches),
            "; ".join(l.threads for l in k.launches),
            peak,
        )
        for k, read, written in (explained.launched() if explained else [])
    ]
    found = FusionProfile(
        fusion_id=definition.id() or 0,
        segments=len(profiles) + (len(explained.outside) if explained else 0),
        host_time_ms=host,
        compile_time_ms=1e3 * sum(compiling),
        kernel_time_ms=sum(ms for _, ms in launched),
        cuda_evt_time_ms=until_done,
        input_bytes=sum(map(_bytes, inputs)),
        output_bytes=sum(map(_bytes, outputs)),
        kernel_profiles=profiles,
    )
    for profiler in PythonProfiler.active:
        profiler.profiles.append(found)
    return outputs


@contextlib.contextmanager
def _compile_seconds() -> Iterator[list[float]]:
    """A list that collects the seconds spent on compilation in the block."""
    found: list[float] = []

    def spent(event: events.Segmented | events.Compiled) -> None:
        found.append(event.seconds)

    stops = [events.observe(events.Segmented, spent), events.observe(events.Compiled, spent)]
    try:
        yield found
    finally:
        for stop in stops:
            stop()


def _waiter(inputs) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and any(arrays.framework(v) == "torch" and v.is_cuda for v in inputs):
        return torch.cuda.synchronize
    return lambda: None


def _bytes(value) -> int:
    return int(value.nbytes) if arrays.framework(value) else 0
