"""``mlirfuse.autotune(fn, *args)``: measures schedulers' candidates on this computer's GPU and stores the best on disk.

Each segment's candidates are timed with the other segments at their present choice; times are medians of event timings
with the L2 cache flushed before each launch. The best is used from then on for calls with these sizes, in this process
and, through the compile cache's folder, in later ones.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlirfuse import _native
from mlirfuse.core.errors import CompileError, CudaError, UnsupportedError
from mlirfuse.ir.graph import Value
from mlirfuse.runtime import tuned_schedules
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import serialize
from mlirfuse.schedule.scheduler import Schedulers, SizedCall
from mlirfuse.schedule.tiling import Tiling

FLUSH_BYTES = 256 << 20
HEAD_START = 12  # a millisecond or so


def _return_record(record, leaves):
    return record


@dataclass
class Tuned:
    """One segment's result: times in milliseconds, by parameters; ``heuristics``: the parameters that the heuristics
    chose."""

    segment: str
    heuristics: Tiling
    times: dict[Tiling, float]
    schedulers: Schedulers

    @property
    def best(self):
        return min(self.times, key=self.times.__getitem__)

    @property
    def heuristics_loss(self) -> float:
        """How much slower the heuristics' choice is than the best, as a fraction."""
        return self.times[self.heuristics] / self.times[self.best] - 1

    def __str__(self) -> str:
        rows = sorted(self.times.items(), key=lambda item: item[1])
        lines = [f"{self.segment}: the heuristics' choice is {self.heuristics_loss:.1%} slower than the best"]
        for params, ms in rows[:6]:
            mark = "   <- heuristics" if params == self.heuristics else ""
            lines.append(f"  {ms:.4f} ms  {serialize.serialized(self.schedulers.attributes(params))}{mark}")
        return "\n".join(lines)


class TunedCall:
    """A call of ``program`` with ``leaves`` whose schedules vary. ``record`` makes the Record for the present
    :attr:`Program.tuned`."""

    def __init__(
        self,
        program: Program,
        env: dict[str, int],
        alignments: dict[Value, int],
        record: Callable[[], Any],
        leaves: Sequence[Any],
    ):
        self.program, self.env, self.alignments, self.record, self.leaves = program, env, alignments, record, leaves
        self.target: Any = program.target  # whose schedulers take its own properties
        self.key = program.call_key(env, alignments)

    @classmethod
    def of(cls, fn, args) -> TunedCall:
        """The call of ``fn``, a function compiled by :func:`mlirfuse.jit`, on ``args``. Raises
        :class:`UnsupportedError` for a call that does not run as one program on a GPU."""
        fn(*args)
        specialization, leaves, env = fn.specialization_of(*args)
        executor, leaf_of_arg = specialization.executor, specialization.leaf_of_arg
        if executor is None or executor.program is None or executor.target.name != "cuda":
            raise UnsupportedError("autotune measures functions that run as one program on a GPU")
        alignments = executor.alignments(leaves, leaf_of_arg)
        finisher_leaves = specialization.finisher_leaves
        record = lambda: executor.record(leaves, leaf_of_arg, env, list, finisher_leaves)  # noqa: E731
        return cls(executor.program, env, alignments, record, leaves)

    def timer(self) -> _CpuTimer | GpuTimer:
        """A timer of its target's calls."""
        return _CpuTimer() if self.target.device is None else GpuTimer(self.target.device)

    def with_schedules(self, schedules: tuple) -> Callable[[], Any] | None:
        """The call with these schedules of all steps; None if it needs more shared memory or registers than the device
        has."""
        before = self.program.tuned.get(self.key)
        self.program.tuned[self.key] = schedules
        try:
            dispatch = _native.Dispatcher(functools.partial(_return_record, self.record()))
            dispatch(*self.leaves)
            if self.target.device is not None:
                _native.synchronize(self.target.device)
        except (CompileError, CudaError):
            return None
        finally:
            self.program.tuned.pop(self.key)
            if before is not None:
                self.program.tuned[self.key] = before
        return functools.partial(dispatch, *self.leaves)

    def measure(self, repeat: int = 15, limit: int = 40, others: Sequence[tuple] = ()) -> tuple[list[Tuned], tuple]:
        """Measure at most ``limit`` candidates of each segment, on a CPU by its clock, and those of ``others``, further
        schedules of all steps. Returns one :class:`Tuned` per segment, and the best parameters."""
        program, target, env, alignments = self.program, self.target, self.env, self.alignments
        chosen, out, timer = list(program.parameters(env, alignments)), [], self.timer()
        call_of_sizes = SizedCall(env, program.aligned(alignments, env), target.properties)
        try:
            for at, step in enumerate(program.steps):
                result = Tuned(step.segment.scheduler, chosen[at], {}, target.schedulers)
                found = target.schedulers.candidates(step.analysis, call_of_sizes)
                calls = {}
                for params in dict.fromkeys([chosen[at], *itertools.islice(found, limit), *(o[at] for o in others)]):
                    call = self.with_schedules((*chosen[:at], params, *chosen[at + 1 :]))
                    if call is not None:
                        calls[params] = call
                result.times.update(timer.medians(calls, repeat))
                chosen[at] = result.best
                out.append(result)
        finally:
            timer.close()
        return out, tuple(chosen)


def autotune(fn, *args, repeat: int = 15, limit: int = 40, keep: bool = True) -> list[Tuned]:
    """Measure at most ``limit`` candidates of each segment of ``fn``, a function compiled by :func:`mlirfuse.jit`, on
    ``args``, which are on a GPU.

    Returns one :class:`Tuned` per segment. Raises :class:`UnsupportedError` for a call that does not run as one program
    on a GPU.
    """
    call = TunedCall.of(fn, args)
    out, chosen = call.measure(repeat, limit)
    call.program.tuned[call.key] = chosen
    if keep:
        tuned_schedules.store(call.program, call.env, chosen)
    for entry in fn._entries.values():
        entry.dispatch.clear()
    return out


class _CpuTimer:
    """Times calls by the clock, with warm caches."""

    def medians(self, calls: dict, repeat: int) -> dict:
        times: dict[Any, list[float]] = {name: [] for name in calls}
        for _ in range(repeat + 1):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                times[name].append(1e3 * (time.perf_counter() - start))
        return {name: statistics.median(measured[1:]) for name, measured in times.items()}

    def close(self) -> None:
        pass


class GpuTimer:
    """Times calls on a device, each after a write of more than the L2 cache holds."""

    def __init__(self, device: int):
        self.device = device
        self.buffer = _native.mem_alloc(FLUSH_BYTES, device)
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)
        self.fill = signature(_native.symbols()["mgpuMemset32"])
        self.events = [_native.event_create(device) for _ in range(2)]

    def medians(self, calls: dict, repeat: int) -> dict:
        """Return the median time of each call on the default stream, in milliseconds; the calls alternate, since the
        first to run is slower."""
        times: dict[Any, list[float]] = {name: [] for name in calls}
        for k in range(repeat + 1):
            for name, call in calls.items():
                self.fill(self.buffer, k, FLUSH_BYTES // 4, None)
                _native.event_record(self.events[0], 0)
                call()
                _native.event_record(self.events[1], 0)
                _native.synchronize(self.device)
                times[name].append(_native.event_elapsed_ms(*self.events))
        return {name: statistics.median(measured[1:]) for name, measured in times.items()}

    def warm(self, call: Callable[[], Any], calls: int) -> float:
        """Return the time of one of ``calls`` calls in a row with warm caches, in milliseconds. Writes of
        :data:`HEAD_START` times the buffer keep the device busy while the host issues the calls."""
        for k in range(HEAD_START):
            self.fill(self.buffer, k, FLUSH_BYTES // 4, None)
        call()
        _native.event_record(self.events[0], 0)
        for _ in range(calls):
            call()
        _native.event_record(self.events[1], 0)
        _native.synchronize(self.device)
        return _native.event_elapsed_ms(*self.events) / calls

    def close(self) -> None:
        for event in self.events:
            _native.event_destroy(event)
        _native.mem_free(self.buffer)
