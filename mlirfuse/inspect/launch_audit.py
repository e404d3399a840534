"""Audits what is launched while something runs, whichever front end made it: kernels by the programs' own events."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirfuse import _native
from mlirfuse.analysis import cost, traffic
from mlirfuse.inspect import listing, rates
from mlirfuse.inspect.audit import Audit, AuditedKernel, merged
from mlirfuse.inspect.launches import is_of
from mlirfuse.inspect.timing import Times, each_call
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.runtime import arrays, autotune, events
from mlirfuse.runtime.device_array import DeviceArray
from mlirfuse.runtime.launch_template import LaunchTemplate
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import serialize

_ROUNDS = 7
Gains = dict[str, float]  # a step's name -> how many milliseconds its best schedule saves


@dataclass
class Calls:
    """The calls of one program with one set of sizes and schedules, and the times of their kernels."""

    program: Program
    params: tuple
    env: dict[str, int]
    times: list[Times] = field(default_factory=list)

    def kernels(self, rounds: int, tune: bool = False) -> Iterator[AuditedKernel]:
        """Its kernels, each launch with the median time, in a step that is one of ``rounds`` that ran."""
        taken = {s.name: statistics.median(_of(s, call) for call in self.times) for s in self.program.steps}
        gains = tuned(self.program, self.env) if tune else {}
        times = max(round(len(self.times) / rounds), 1)
        schedules = self.program.target.schedules(self.program, self.params)
        for numbers in self.program.launches:
            steps = list(zip(self.program.steps, schedules))[numbers.start : numbers.stop]
            if all(taken[s.name] for s, _ in steps):
                for pair in steps:
                    yield self._kernel([pair], taken[pair[0].name], times, gains)
            else:  # done in one launch
                yield self._kernel(steps, sum(taken[s.name] for s, _ in steps), times, gains)

    def _kernel(self, steps: list[tuple[Any, Any]], ms: float, times: int, gains: Gains) -> AuditedKernel:
        ops = [op for s, _ in steps for op in s.analysis.ops]
        moved = [traffic.of_step(s, self.env) for s, _ in steps]
        names = [op.name for op in ops if op.row.kind != "create"]
        found = AuditedKernel(
            self.program.graph.name,
            ", ".join(dict.fromkeys(s.segment.scheduler for s, _ in steps)),
            listing.counted(names),
            ", ".join(dict.fromkeys(listing.place(op.loc) for op in ops if op.loc)),
            schedule_text(steps[0][1]),
            times,
            ms * times,
            sum(read for read, _ in moved),
            sum(written for _, written in moved),
            sz.known(traffic.operations(ops), self.env),
        )
        if len(steps) == 1:
            found.features = features_of(steps[0][0], self.env)
        if len(steps) == 1 and steps[0][0].name in gains:
            found.best_ms = max(found.ms - gains[steps[0][0].name] * times, 0.0)
        judge(found, self.program.target, ops)
        return found


def features_of(step: Any, env: dict[str, int]) -> dict[str, float]:
    """The features of a segment's kernels, those that are not 0."""
    found = cost.of_segment(step.analysis, env)
    return {name: n for name, n in found._asdict().items() if n}


def judge(kernel: AuditedKernel, target: Any, ops: list[Op]) -> None:
    """Gives ``kernel``, which computes ``ops`` on ``target``, its bound."""
    device = target.device
    cache = target.properties.last_cache if device is None else target.properties.l2_bytes
    double = any(v.dtype is dt.f64 for op in ops for v in op.results)
    kernel.judge(rates.of(device), cache, double)


def schedule_text(schedule: dict[str, Any]) -> str:
    """A schedule's parameters that are on."""
    return ", ".join(f"{key}={value}" for key, value in serialize.flat(schedule).items() if value is not False)


def _of(step: Any, times: Times) -> float:
    return sum(ms for name, ms in times if is_of(step, name))


@contextlib.contextmanager
def calls(hold: Any = None) -> Iterator[dict[tuple, Calls]]:
    """A dict that gets the calls of all programs in the block. ``hold`` as for
    :class:`mlirfuse.inspect.timing.OneByOne`."""
    found: dict[tuple, Calls] = {}

    def reported(event: events.Launching, times: Times) -> None:
        params = event.compiled_program.params
        key = event.program, params, tuple(map(type, params)), tuple(sorted(event.env.items()))
        found.setdefault(key, Calls(event.program, params, dict(event.env))).times.append(times)

    with each_call(reported, hold):
        yield found


def audited(run: Callable[[], Any], given: Iterable[Any], tune: bool = False) -> Audit:
    """The audit of ``run()``, which is called some times and is to do the same each time: what it launches on the GPU
    where one of the arrays ``given`` lies, else on the processor."""
    devices = (arrays.device_of(x) for x in given if arrays.framework(x) is not None)
    device = next((found[1] for found in devices if found is not None and found[0] == "cuda"), None)
    run()  # compiles
    ms, host_ms = _step(run, device)
    with calls(None if device is None else rates.of(device).hold) as found:
        for _ in range(_ROUNDS + 1):
            run()
            if device is not None:
                _native.synchronize(device)
    for each in found.values():  # the first round made what times the kernels, and has pages and caches to itself
        del each.times[: len(each.times) // (_ROUNDS + 1)]
    kernels = [k for each in found.values() if each.times for k in each.kernels(_ROUNDS, tune)]
    return Audit(device_name(device), merged(kernels), ms, host_ms)


def audited_once(run: Callable[[], Any], tune: bool = False) -> Audit:
    """The audit of ``run()``, which is called once: all that it launches, on the processor or on the first GPU. The
    first call of each program counts as those behind it take, where there are some: it also finds pages and caches."""
    start = time.perf_counter()
    with calls(rates.of(0).hold if _native.cuda_available() else None) as found:
        run()
    ms = 1e3 * (time.perf_counter() - start)
    kernels, device = [], None
    for each in found.values():
        count = len(each.times)
        each.times = each.times[1:] or each.times
        kernels += [k.repeated(count) for k in each.kernels(len(each.times), tune)]
        device = each.program.target.device if each.program.target.device is not None else device
    return Audit(device_name(device), merged(kernels), ms, ms)


def device_name(device: int | None) -> str:
    """The device in words."""
    if device is None:
        return f"CPU, {rates.cpu().target.properties.threads} threads"
    return str(_native.cuda_device_attributes(device)["name"])


def _step(run: Callable[[], Any], device: int | None) -> tuple[float, float]:
    """Milliseconds of the fastest of some calls, and those that the host needs to queue it."""
    spent, queued = [], []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        run()
        queued.append(1e3 * (time.perf_counter() - start))
        if device is not None:
            _native.synchronize(device)
        spent.append(1e3 * (time.perf_counter() - start))
    return min(spent), min(queued)


# ---- what the best schedule takes


def tuned(program: Program, env: dict[str, int], limit: int = 40) -> Gains:
    """By the autotuner's measure, of all steps of ``program``, on arguments of random numbers: integers index any of
    its tensors."""
    graph, rng = program.graph, np.random.default_rng(0)
    device = program.target.device
    least = min([n for v in graph.args for n in (sz.known(m, env) for m in v.shape) if n > 1] or [1])
    leaves: list[Any] = []
    for k, value in enumerate(graph.args):
        numbers = functools.partial(_numbers, rng, value.dtype, least)
        if k in graph.scalars:
            leaves.append(numbers(1)[0].item())
            continue
        shape, layout = tuple(sz.known(n, env) for n in value.shape), graph.layouts[k]
        strides = [sz.known(n, env) for n in (sz.contiguous_strides(shape) if layout is None else layout.strides)]
        leaves.append(_strided(numbers, value.dtype, shape, strides, device))
    alignments = {graph.args[k]: arrays.spec_of(leaves[k]).align for k in program.pointer_args}
    template = LaunchTemplate(graph, program, list(range(len(leaves))), ())

    def record() -> Any:
        return template.record(program.compiled_program(env, alignments), leaves, env, list)

    found, _ = autotune.TunedCall(program, env, alignments, record, leaves).measure(limit=limit)
    return {
        s.name: t.times[t.heuristics] - t.times[t.best] for s, t in zip(program.steps, found) if t.heuristics in t.times
    }


def _numbers(rng: np.random.Generator, dtype: dt.DType, least: int, n: int) -> np.ndarray:
    if dtype.is_integer or dtype is dt.bool_:
        return rng.integers(0, 2 if dtype is dt.bool_ else min(least, 127), n).astype(dtype.numpy)
    return rng.standard_normal(n, np.float32).astype(dtype.numpy)


def _strided(numbers: Callable[[int], np.ndarray], dtype: dt.DType, shape: tuple[int, ...], strides: Sequence[int],
             device: int | None) -> Any:  # fmt: skip
    """An array of ``numbers``, on a GPU or in the host's memory."""
    flat = numbers(1 + sum((n - 1) * stride for n, stride in zip(shape, strides)))
    steps = [stride * dtype.bytes for stride in strides]
    if device is None:
        return np.lib.stride_tricks.as_strided(flat, shape, steps)
    held = DeviceArray.from_numpy(flat, device)
    return DeviceArray(held.data_ptr, shape, dtype.numpy, steps, device, owner=held)
