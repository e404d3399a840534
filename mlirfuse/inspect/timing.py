"""Launches kernels one by one and times each: for dumps and profilers."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mlirfuse import _native
from mlirfuse.core import config
from mlirfuse.lowering import devices
from mlirfuse.runtime import events, load
from mlirfuse.runtime.program import CompiledProgram, Program

_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p
)
Times = list[tuple[str, float]]  # names and milliseconds of kernels in launch order
Hold = Callable[[int, int], None]


class OneByOne:
    """Runs a compiled program's kernels one by one; ``address``: that of its host function, for calls with the sizes
    ``env``. It references its compiled program, but not the program. ``reported`` gets the times of each call, by the
    CPU's clock or by CUDA events, which the call waits for. ``hold`` gets the stream and
    the number of kernels before a call's first event, and keeps the device busy until the host has queued them:
    without it the times contain the host's."""

    def __init__(
        self,
        program: Program,
        compiled_program: CompiledProgram,
        env: dict[str, int],
        reported: Callable[[Times], None] | None = None,
        hold: Hold | None = None,
    ):
        self.target, self.steps, self.compiled_program, self.env, self.reported = (
            program.target,
            program.steps,
            compiled_program,
            env,
            reported,
        )
        self.kernels = list(compiled_program.module.kernels)
        self.hold = hold
        self.gpu = compiled_program.module.on_gpu
        # Each kernel with a host function of its own. The slots are the compiled program's: its plan has filled them.
        target: Any = program.target  # of the device that these kernels are for
        hosts = [target.host([k], compiled_program.slots, f"launch{at}") for at, k in enumerate(self.kernels)]
        self.code = load.host_code(replace(compiled_program.module, host="\n".join(hosts)).launching())
        self.launches = [_LAUNCH(self.code.address(f"launch{at}")) for at in range(len(self.kernels))]
        events_needed = len(self.kernels) + 1 if self.gpu else 0
        self.events = [_native.event_create(target.device) for _ in range(events_needed)]
        for event in self.events:
            weakref.finalize(self, _native.event_destroy, event).atexit = False
        self._entry = _LAUNCH(self._run)
        self.address: int = ctypes.cast(self._entry, ctypes.c_void_p).value or 0

    def _run(self, pointers, ints, stream) -> int:
        try:
            return self.run(pointers, ints, stream)
        except Exception as error:  # it cannot propagate out of a callback
            sys.stderr.write(f"mlirfuse: a call cannot be timed: {type(error).__name__}: {error}\n")
            return 1

    def run(self, pointers, ints, stream) -> int:
        """Run one call; return the launches' status."""
        status, times = self.timed(pointers, ints, stream)
        if self.reported is not None:
            self.reported(times)
        return status

    def timed(self, pointers, ints, stream) -> tuple[int, Times]:
        """Launch, and wait for the end."""
        status, times = 0, []
        if not self.gpu:
            for launch in self.launches:
                start = time.perf_counter()
                status = launch(pointers, ints, stream) or status
                times.append(1e3 * (time.perf_counter() - start))
        else:
            if self.hold is not None:
                self.hold(stream or 0, len(self.launches))
            _native.event_record(self.events[0], stream or 0)
            for launch, event in zip(self.launches, self.events[1:]):
                status = launch(pointers, ints, stream) or status
                _native.event_record(event, stream or 0)
            _native.event_synchronize(self.events[-1])
            times = [_native.event_elapsed_ms(a, b) for a, b in zip(self.events, self.events[1:])]
        return status, list(zip((k.name for k in self.kernels), times))


def peak_bandwidth(target: Any) -> float:
    """Return the memory bandwidth in GB/s of a present GPU that reports it; else 0."""
    if target.device is None:
        return 0.0
    return devices.memory_bandwidth(_native.cuda_device_attributes(target.device)) / 1e9


@contextlib.contextmanager
def timed(hold: Hold | None = None) -> Iterator[Times]:
    """Return a list that receives the name and time of each kernel launched in the block. ``hold`` as for
    :class:`OneByOne`."""
    found: Times = []
    with each_call(lambda call, times: found.extend(times), hold):
        yield found


@contextlib.contextmanager
def each_call(reported: Callable[[events.Launching, Times], None], hold: Hold | None = None) -> Iterator[None]:
    """Calls ``reported`` with each call of a program in the block and its kernels' times. ``hold`` as for
    :class:`OneByOne`."""

    def launching(event: events.Launching) -> None:
        call = functools.partial(reported, event)
        event.keep = OneByOne(event.program, event.compiled_program, event.env, call, hold)
        event.launch = event.keep.address

    stop = events.observe(events.Launching, launching)
    config.look_up_anew()
    try:
        yield
    finally:
        stop()
        config.look_up_anew()


class Fills:
    """A :data:`Hold` by filling memory of a device, where no framework is there to let it wait: 64 MiB, which take some
    30 µs on a large GPU, for every launch and some more."""

    _NBYTES = 64 << 20

    def __init__(self, device: int):
        self.buffer = _native.mem_alloc(self._NBYTES, device)
        weakref.finalize(self, _native.mem_free, self.buffer).atexit = False
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)
        self.fill = signature(_native.symbols()["mgpuMemset32"])

    def __call__(self, stream: int, launches: int) -> None:
        for _ in range(2 + launches):
            self.fill(self.buffer, 0, self._NBYTES // 4, stream or None)
