"""A model's step, each kernel beside what the device could do: the times of :mod:`mlirfuse.frontend.torch.profile`
against bounds that are measured (:mod:`mlirfuse.inspect.audit`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from mlirfuse.analysis import traffic
from mlirfuse.frontend.torch.profile import Profile, Row, profile
from mlirfuse.inspect import launch_audit, memory
from mlirfuse.inspect.audit import Audit, AuditedKernel, merged
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Segment, walk
from mlirfuse.lowering import host_steps as st
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.runtime.program import Program


def audit(model: Any, *args: Any, tune: bool = False, options: dict[str, Any] | None = None, **kwargs: Any) -> Audit:
    """Compiles ``model``, a module or a function, for these arguments and times a step of it, as :func:`profile` does:
    a call, and the gradients where the outputs have some. Gives each kernel of ours beside its bound, by the time that
    it loses. ``tune`` also measures other schedules of each kernel. Raises what compiling raises.
    """
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    found = profile(model, *args, options=options, **kwargs)
    measured = torch.cuda.max_memory_allocated() if on_gpu else 0
    return of_profile(found, tune, measured)


def of_profile(found: Profile, tune: bool = False, measured: int = 0) -> Audit:
    """The audit of a step that was profiled. ``measured``: bytes of a GPU's memory at its peak, where they are
    known."""
    device = next((g.host.target.device for g in found.graphs if g.host.target.device is not None), None)
    known = {at: _Graph(graph.host, tune) for at, graph in enumerate(found.graphs)}
    kernels = [
        known[row.graph].kernel(row, found.graphs[row.graph].which)
        for row in found.rows
        if row.kind == "kernel" and row.graph is not None
    ]
    other: dict[str, tuple[float, int]] = {}
    for row in found.rows:
        if row.kind not in ("kernel", "view"):
            ms, count = other.get(row.kind, (0.0, 0))
            other[row.kind] = ms + row.ms, count + 1
    held = list(_memory(found))
    peak = max(measured if device is not None else 0, sum(n for _, n in held))
    if peak > (known_bytes := sum(n for _, n in held)):
        held.append(
            ("workspaces, gradients of the other graphs, and what torch caches for its own ops", peak - known_bytes)
        )
    held.sort(key=lambda pair: -pair[1])
    name = launch_audit.device_name(device)
    return Audit(name, merged(kernels), found.ms, found.host_ms, other, held, peak)


class _Graph:
    """What is known of a graph's segments: their ops, schedules, and what better ones save."""

    def __init__(self, host: HostProgram, tune: bool):
        self.target, self.env = host.target, host.last_sizes
        self.ops: dict[Segment, list[Op]] = {}
        for op in walk(host.graph.body):
            if op.segment is not None:
                self.ops.setdefault(op.segment, []).append(op)
        self.schedules: dict[Segment, str] = {}
        self.gains: dict[Segment, float] = {}
        self.features: dict[Segment, dict[str, float]] = {}
        measured: dict[Program, launch_audit.Gains] = {}
        for step in host.sequence.walk():
            if not isinstance(step, st.Kernels):
                continue
            program = host.launches[step.region].program(self.env)
            own = {s: step.segments.get(s.segment, s.segment) for s in program.steps}
            self.features |= {own[s]: launch_audit.features_of(s, self.env) for s in program.steps}
            for compiled in list(program.compiled_programs.values())[-1:]:
                for s, schedule in zip(program.steps, host.target.schedules(program, compiled.params)):
                    self.schedules[own[s]] = launch_audit.schedule_text(schedule)
            if tune:
                if program not in measured:
                    measured[program] = launch_audit.tuned(program, self.env)
                self.gains |= {
                    own[s]: gain for s in program.steps if (gain := measured[program].get(s.name)) is not None
                }

    def kernel(self, row: Row, which: str) -> AuditedKernel:
        assert row.segment is not None
        ops = self.ops[row.segment]
        size = traffic.operations(ops)
        found = AuditedKernel(
            which, row.what, row.ops, row.lines, self.schedules.get(row.segment, ""), 1, row.ms, row.read, row.written,
            size if isinstance(size, int) else _known(size, self.env),
        )  # fmt: skip
        found.features = self.features.get(row.segment, {})
        if row.segment in self.gains:
            found.best_ms = max(row.ms - self.gains[row.segment], 0.0)
        launch_audit.judge(found, self.target, ops)
        return found


def _known(size: sz.Size, env: dict[str, int]) -> int:
    """0 for sizes that are those of a foreach's members, each its own."""
    try:
        return sz.known(size, env)
    except KeyError:
        return 0


def _memory(found: Profile) -> Iterator[tuple[str, int]]:
    """What holds memory in the graph that has the highest peak."""
    graphs = [(memory.peak(graph.host, graph.host.last_sizes), graph) for graph in found.graphs]
    if not graphs:
        return
    held, graph = max(graphs, key=lambda pair: pair[0].nbytes)
    saved: list[tuple[str, int]] = []
    if graph.which == "backward":
        env = {name: n for g in found.graphs for name, n in g.host.last_sizes.items()}
        saved = [(f"saved {name}", sz.known(sz.parse(str(n)), env)) for g in found.graphs for name, n in g.saved]
    rest = held.arguments - sum(n for _, n in saved)
    if rest < 0:  # some were freed before the peak
        saved, rest = [], held.arguments
    name = (
        "parameters, inputs and saved tensors" if graph.which == "backward" and not saved else "parameters and inputs"
    )
    yield f"{name} of the {graph.which}", rest
    yield from saved
    yield from held.others
