"""Host time of a training step of a model by part, beside eager and Inductor: what ``host_overhead.py --models`` runs.

The clock starts on an idle device and stops when the step has queued its work, so that neither kernels nor their sum
count. A step is short enough for the device's queue (about a thousand launches) only in part: where the device is
slower than the host, a full queue makes the host wait, so batches are small.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from types import SimpleNamespace

import timing
import torch
import torch_models

IMPLEMENTATIONS = ("eager", "inductor", "reduce-overhead", "mlirfuse", "mlirfuse-reduce-overhead")
PARTS = ("forward", "backward", "optimizer")


class Parts:
    """Observer of the steps of host programs: seconds and calls by kind of step, and from the first to the last."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def watch(self, which, lowered, host) -> None:
        """The observer of :data:`mlirfuse.frontend.torch.backend.observers`."""
        steps = list(host.sequence.steps)
        kinds = [_kind(step) for step in steps]
        begin, first, parts = 0.0, 0.0, self

        class Watch:
            def before(self, place):
                nonlocal begin, first
                begin = time.perf_counter()
                first = first or begin

            def after(self, place):
                nonlocal first
                end = time.perf_counter()
                kind = kinds[place]
                parts.seconds[kind] = parts.seconds.get(kind, 0.0) + end - begin
                parts.calls[kind] = parts.calls.get(kind, 0) + 1
                if place == last:
                    parts.seconds["graph"] = parts.seconds.get("graph", 0.0) + end - first
                    parts.calls["graph"] = parts.calls.get("graph", 0) + 1
                    first = 0.0

        last = max((k for k, step in enumerate(steps) if type(step).__name__ != "Free"), default=-1)
        host.watch(Watch())


@contextlib.contextmanager
def inside(clock=time.perf_counter):
    """A list of seconds by ``clock`` that calls of mlirfuse's and Inductor's compiled graphs take, while the block runs: the rest of
    a step is Dynamo's guards, AOTAutograd's wrappers, autograd and the optimizer. Graphs are compiled within it."""
    from torch._inductor.output_code import CompiledFxGraph

    from mlirfuse.runtime.host_program import HostProgram

    seconds: list[float] = []

    def timed(function):
        def call(*given):
            start = clock()
            try:
                return function(*given)
            finally:
                seconds.append(clock() - start)

        return call

    ours, theirs = HostProgram.function, CompiledFxGraph.__call__
    HostProgram.function = lambda self, env: timed(ours(self, env))
    CompiledFxGraph.__call__ = timed(theirs)
    try:
        yield seconds
    finally:
        HostProgram.function, CompiledFxGraph.__call__ = ours, theirs


def _kind(step) -> str:
    from mlirfuse.frontend.torch.ops.rules import VIEWS
    from mlirfuse.lowering import host_steps as st

    if isinstance(step, st.Kernels):
        return "kernels" if any(op.segment is not None for op in step.ops) else "views"
    if isinstance(step, st.Foreach):
        return "kernels"
    if not isinstance(step, st.Call):
        return "other"
    name = step.op.attrs["callee"] if step.op.row.calls else step.op.name
    return "views" if step.op.row.view or name in VIEWS or "window" in str(name) else "extern ops"


def _launches(trainer) -> int:
    """How many kernels, copies and fills a step launches on a GPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        trainer.step()
        torch.cuda.synchronize()
    return sum(1 for _ in torch_models._on_gpu(profile))


def _clock(device: str):
    """On a CPU processor time: other work may share it, and there is no device to wait for."""
    return time.process_time if device == "cpu" else time.perf_counter


def _pieces(trainer) -> list[float]:
    """Microseconds on the host of the parts of one step, which starts on an idle device."""
    args = trainer.args
    dtype = getattr(torch, args.dtype)
    torch_models.synchronize(args)
    clock = _clock(args.device)
    times = [clock()]
    with torch.autocast(args.device, dtype=dtype, enabled=dtype != torch.float32):
        loss = trainer.loss()
    times.append(clock())
    loss.backward()
    times.append(clock())
    trainer.optimizer.step()
    trainer.optimizer.zero_grad(set_to_none=True)
    times.append(clock())
    return [(b - a) * 1e6 for a, b in itertools.pairwise(times)]


def _measured(trainer, rounds: int) -> dict:
    """The medians over ``rounds`` steps, after the first ones; of a recorded graph without what is inside of it."""
    with inside(_clock(trainer.args.device)) as seconds:
        for _ in range(4):
            trainer.step()
        found, graphs = [], []
        for _ in range(rounds):
            seconds.clear()
            found.append(_pieces(trainer))
            graphs.append(sum(seconds) * 1e6)
    entry = {"graphs_us": statistics.median(graphs)}
    entry |= {f"{part}_us": statistics.median(times) for part, times in zip(PARTS, zip(*found))}
    entry["host_us"] = statistics.median(map(sum, found))
    entry["step_us"] = statistics.median(trainer.timed() for _ in range(rounds)) * 1e3
    if trainer.args.device == "cuda":
        entry["launches"] = _launches(trainer)
        entry["gpu_us"] = sum(torch_models.gpu_time(trainer.args, trainer).values()) * 1e3
    return entry


def by_part(args, rounds: int) -> dict:
    """Of mlirfuse's graphs: microseconds and calls a step by kind of step. The clock adds half a microsecond to each."""
    from mlirfuse.frontend.torch import backend

    parts = Parts()
    torch._dynamo.reset()
    backend.observers.append(parts.watch)
    try:
        trainer = torch_models.Trainer(args, "mlirfuse")
        for _ in range(4):
            trainer.step()
        parts.seconds.clear(), parts.calls.clear()
        for _ in range(rounds):
            torch_models.synchronize(args)
            trainer.step()
    finally:
        backend.observers.remove(parts.watch)
    return {
        kind: {"us": seconds * 1e6 / rounds, "calls": parts.calls[kind] / rounds}
        for kind, seconds in parts.seconds.items()
    }


def measure(model: str, device: str, implementations=IMPLEMENTATIONS, rounds: int = 20, small: bool = True) -> dict:
    """Figures of a model's step for each implementation, which are printed; what fails has its error."""
    print(f"a training step of {model} on the host, {device}:")
    dtype = "bfloat16" if device == "cuda" else "float32"
    args = SimpleNamespace(model=model, small=small, dropout=False, device=device, dtype=dtype, kernels=0.0)
    out: dict = {"model": model, "device": device, "small": small, "implementations": {}}
    for name in implementations:
        torch._dynamo.reset()
        try:
            out["implementations"][name] = _measured(torch_models.Trainer(args, name), rounds)
        except Exception as error:
            out["implementations"][name] = {"error": timing.summary(error)}
        print(_line(name, out["implementations"][name]), flush=True)
    if "mlirfuse" in implementations:
        out["parts"] = by_part(args, rounds)
    return out


def _line(name: str, entry: dict) -> str:
    if "error" in entry:
        return f"  {name:<26} n/a ({entry['error']})"
    times = ", ".join(f"{part} {entry[f'{part}_us']:.0f}" for part in PARTS)
    graphs = f"; in graphs {entry['graphs_us']:.0f}" if entry.get("graphs_us") else ""
    text = f"  {name:<26} host {entry['host_us']:8.0f} µs ({times}{graphs}), step {entry['step_us']:8.0f} µs"
    if count := entry.get("launches"):
        text += f"; {count} launches, {entry['host_us'] / count:.2f} µs each, kernels {entry['gpu_us']:.0f} µs"
    return text


def show_parts(result: dict) -> None:
    """Prints the parts of mlirfuse's graphs; :func:`measure` has printed the other figures."""
    for kind, part in sorted(result.get("parts", {}).items(), key=lambda item: -item[1]["us"]):
        each = part["us"] / part["calls"]
        print(f"    {kind:<10} {part['us']:8.0f} µs in {part['calls']:5.0f} calls, {each:.2f} each", flush=True)
