"""nvFuser's ``PythonProfiler``: what the calls in its block ran, how long they took and what they moved."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from mlirfuse.core import counters
from mlirfuse.inspect.explain import Explanation
from mlirfuse.runtime import arrays

if TYPE_CHECKING:
    from mlirfuse.frontend.nvfuser.definition import FusionDefinition

NAN = math.nan


@dataclass
class KernelProfile:
    """One segment of a call. Bytes are those of its inputs and outputs; what is not measured is NaN: the time of one of
    several kernels."""

    name: str
    segment_id: int
    scheduler: str
    input_bytes: int
    output_bytes: int
    time_ms: float = NAN

    @property
    def effective_bandwidth_gbs(self) -> float:
        """Bytes over time, in 10^9 bytes a second."""
        return (self.input_bytes + self.output_bytes) / self.time_ms / 1e6 if self.time_ms else NAN


@dataclass
class FusionProfile:
    """A call. Times are in milliseconds: ``host_time_ms`` from its beginning to its return, ``compile_time_ms`` the
    same where something was compiled in it, else 0, ``kernel_time_ms`` until the device was done; ``segments`` counts
    kernels and ops of a library."""

    fusion_id: int
    segments: int
    host_time_ms: float
    compile_time_ms: float
    kernel_time_ms: float
    input_bytes: int
    output_bytes: int
    kernel_profiles: list[KernelProfile] = field(default_factory=list)

    @property
    def cuda_evt_time_ms(self) -> float:
        """nvFuser's name of ``kernel_time_ms``."""
        return self.kernel_time_ms

    @property
    def effective_bandwidth_gbs(self) -> float:
        """Bytes of inputs and outputs over time, in 10^9 bytes a second."""
        return (self.input_bytes + self.output_bytes) / self.kernel_time_ms / 1e6 if self.kernel_time_ms else NAN


class PythonProfiler:
    """Profiles the definitions that are executed in its block::

        with PythonProfiler() as prof:
            fd.execute(inputs)
        print(prof.profile.kernel_time_ms, [k.scheduler for k in prof.profile.kernel_profiles])

    ``profile`` is that of the last call, ``profiles`` of all. Each call waits for the device.
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
    """The outputs of ``run()``, a call of ``definition`` with ``inputs``, noted in the profilers that are active."""
    explained = Explanation.of(definition.lower(inputs)) if any(arrays.framework(v) for v in inputs) else None
    wait = _waiter(inputs)
    wait()
    known, start = counters.variants, time.perf_counter()
    outputs = run()
    host = 1e3 * (time.perf_counter() - start)
    wait()
    until_done = 1e3 * (time.perf_counter() - start)
    kernels = [k for k in explained.kernels if k.launches] if explained else []
    found = FusionProfile(
        fusion_id=definition.id() or 0,
        segments=len(kernels) + (len(explained.outside) if explained else 0),
        host_time_ms=host,
        compile_time_ms=host if counters.variants != known else 0.0,
        kernel_time_ms=until_done,
        input_bytes=sum(map(_bytes, inputs)),
        output_bytes=sum(map(_bytes, outputs)),
        kernel_profiles=[
            KernelProfile(", ".join(l.name for l in k.launches), k.number, k.scheduler, k.bytes_read, k.bytes_written)
            for k in kernels
        ],
    )
    if len(found.kernel_profiles) == found.segments == 1:
        found.kernel_profiles[0].time_ms = until_done
    for profiler in PythonProfiler.active:
        profiler.profiles.append(found)
    return outputs


def _waiter(inputs) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and any(arrays.framework(v) == "torch" and v.is_cuda for v in inputs):
        return torch.cuda.synchronize
    return lambda: None


def _bytes(value) -> int:
    return int(value.nbytes) if arrays.framework(value) else 0
