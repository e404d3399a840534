"""A segmented graph as schedulers see it: analysed segments in execution order, and the argument slots that kernels
use."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlirfuse.analysis import in_place, traffic
from mlirfuse.analysis import phases as an
from mlirfuse.analysis.axes import Axes
from mlirfuse.analysis.result_slices import alignment_of
from mlirfuse.core import old_names
from mlirfuse.core.errors import CompileError, ScheduleError
from mlirfuse.dialects import fusion
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph, Group, Layout, Op, Segment, Value
from mlirfuse.ir.order import topological
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.foreach import LEAST
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule import serialize

if TYPE_CHECKING:
    from mlirfuse.schedule.targets import Target

WRITES_ARGUMENT = "writes an argument that others still read"


@dataclass(eq=False)
class Step:
    """One segment in order of execution, analysed."""

    segment: Segment
    analysis: an.Analysis
    name: str = ""  # of the kernel, also in profiles; several kernels add a suffix after an underscore


def _reductions_first(steps: list[Step]) -> list[Step]:
    """``steps`` in a topological order that runs reductions before independent steps: those hide the tail of a
    reduction's small last kernel."""
    created_by = {v: step for step in steps for v in step.analysis.written}
    left = list(steps)
    out: list[Step] = []
    while left:
        ready = [s for s in left if all(created_by.get(v, s) in (*out, s) for v in s.analysis.inputs)]
        step = next((s for s in ready if s.analysis.phases), ready[0])
        left.remove(step)
        out.append(step)
    return out


def _computed(analysis: an.Analysis) -> tuple:
    """A key that is equal for segments that compute the same function, whatever the sizes of their tensors."""
    numbers: dict[Value, int] = {}

    def number(values: Iterable[Value]) -> tuple:
        return tuple((numbers.setdefault(v, len(numbers)), v.dtype) for v in values)

    def key(op: Op) -> tuple:
        types = op.row.attr_types
        kept = {k: v for k, v in op.attrs.items() if k != "note" and (k not in types or types[k].sizes is None)}
        return op.name, number(op.operands), number(op.results), repr(sorted(kept.items()))

    return tuple(map(key, analysis.ops)), number(analysis.inputs), number(analysis.outputs)


Schedules = Mapping[int | str, str | Mapping[str, Any]] | None  # of some segments, by number or scheduler name


def decide(graph: Graph, given: Mapping[int | str, str | Mapping[str, Any]]) -> None:
    """Set full or partial schedules on segments of ``graph``. A key is a segment's number, or its kind if no other
    segment has that kind. Raises :class:`ScheduleError` if a key does not match exactly one segment."""
    segments = graph.labels()[1]
    for which, schedule in given.items():
        if isinstance(which, str):
            which = old_names.renamed("the scheduler", which, old_names.SCHEDULERS)
        found = [s for s in segments if which in (s.number, s.scheduler)]
        if len(found) != 1:
            kinds = ", ".join(f"{s.number}: {s.scheduler}" for s in segments)
            raise ScheduleError(f"schedule: {len(found)} segments match {which!r}; the segments are {kinds or 'none'}")
        attributes = serialize.parse(schedule) if isinstance(schedule, str) else dict(schedule)
        if not isinstance(attributes, dict):
            raise ScheduleError(f"schedule: {schedule!r} is not a dictionary of parameters")
        found[0].schedule = attributes


@contextlib.contextmanager
def undecided(graph: Graph) -> Iterator[None]:
    """A context that restores the segments' schedules and parameters on exit. Used to print what one call chose."""
    saved = [(segment, segment.params, segment.schedule) for segment in graph.labels()[1]]
    try:
        yield
    finally:
        for segment, params, schedule in saved:
            segment.params, segment.schedule = params, schedule


class SegmentedProgram:
    """A segmented ``graph`` with its execution order.

    ``hint`` has the sizes of the call that it was compiled for; ``target`` (:mod:`mlirfuse.schedule.targets`) writes
    the kernels. ``axes`` are those that `fusion-segment` computed, if the graph is a part of the block that it
    segmented."""

    def __init__(self, graph: Graph, target: Target, hint: dict[str, int], axes: Axes | None = None):
        self.graph, self.target = graph, target
        strides = [n for layout in graph.layouts if layout for n in layout.strides]
        self.symbols = sorted(sz.symbols_of([n for v in graph.args for n in v.shape] + strides) | hint.keys())
        self.pointer_args = [k for k in range(len(graph.args)) if k not in graph.scalars]
        self._copy_views()
        self.views = traffic.result_views(graph)  # results that are views of an argument or of another, with no kernel
        self.axes = axes or Axes(graph.ops, own=graph.own_results)
        self._copy_aside()
        self.steps = self._steps(hint)
        if self._overwrite_donated() | self._write_late():
            self.steps = self._steps(hint)
        self.outputs = list(dict.fromkeys(graph.returns))
        self.inside = {v: part for step in self.steps for v, part in step.analysis.inside.items()}
        self.launches = self._group_launches()
        # Some schedule was set by the user or by fusion-choose.
        self.decided = any(step.segment.schedule for step in self.steps)

    # ---- segments

    def _steps(self, hint: Mapping[str, int]) -> list[Step]:
        graph = self.graph
        scalars = {graph.args[k] for k in graph.scalars}
        known = {v: layout for v, layout in zip(graph.args, graph.layouts) if layout}
        written = {graph.returns[k]: graph.layouts[a] for k, a in graph.aliases.items()}
        layouts = known | {v: layout for v, layout in written.items() if layout}
        layouts |= {graph.returns[k]: self._layout_of(k) for k in graph.windows}
        users = graph.body.users()
        returned = set(graph.returns) - set(self.views)
        loose = [op for op in graph.ops if op.segment is None]
        if loose:
            raise CompileError(f"operation '{loose[0].name}' belongs to no segment: run fusion-segment first")
        ordered = topological(graph.ops, {op: op.segment for op in graph.ops})
        members: dict[Segment, list[Op]] = {}
        for op in ordered:
            assert op.segment is not None
            members.setdefault(op.segment, []).append(op)
        over = {graph.returns[k]: a for k, a in graph.aliases.items()}
        steps = []
        for segment, ops in members.items():
            inside, read = set(ops), {v for op in ops for v in op.operands}
            outs = [
                v for op in ops for v in op.results if v in returned or any(u not in inside for u in users.get(v, ()))
            ]
            if outs:
                live = traffic.live(ops, outs)
                analysis = an.analyze(live, outs, layouts, scalars, hint, self.axes)
                written_over = [(v, over[v]) for v in outs if v in over and graph.args[over[v]] in read]
                if analysis.inside and not all(self._overwrites(analysis, v, a) for v, a in written_over):
                    analysis = an.analyze(live, outs, layouts, scalars, hint, self.axes, by_parts=False)
                steps.append(Step(segment, analysis))
        if self.target.early_launch:
            steps = _reductions_first(steps)
        steps.sort(key=lambda step: step.segment.why == WRITES_ARGUMENT)
        graph.number()
        for step in steps:
            kind = re.sub("[^a-z]", "_", step.segment.scheduler) or "kernel"
            step.name = f"mlirfuse_{kind}{step.segment.number}"
        return steps

    def _group_launches(self) -> list[range]:
        """Group steps that one launch may run, and return ranges of step numbers in execution order. The steps of one
        range compute the same function on independent tensors of any sizes. Reorders the steps so that each group is
        adjacent."""
        alike: dict[tuple, list[Step]] = {}
        if self.target.one_launch:
            levels = self._levels()
            for step in self.steps:
                if step.segment.scheduler == "pointwise":
                    alike.setdefault((levels[step], step.analysis.once(_computed)), []).append(step)
        sets = [steps for steps in alike.values() if len(steps) >= LEAST]
        if not sets:
            return [range(at, at + 1) for at in range(len(self.steps))]
        number = {step: at for at, steps in enumerate(sets) for step in steps}
        self.steps.sort(key=lambda step: (levels[step], number.get(step, len(sets))))
        found: list[range] = []
        while (at := found[-1].stop if found else 0) < len(self.steps):
            step = self.steps[at]
            found.append(range(at, at + (len(sets[number[step]]) if step in number else 1)))
        return found

    def _levels(self) -> dict[Step, int]:
        """For each step, the length of the longest dependence chain before it."""
        buffer = {self.graph.returns[k]: self.graph.args[a] for k, a in self.graph.aliases.items()}
        levels: dict[Step, int] = {}
        read: dict[Value, int] = {}  # the first level that may write this buffer
        written: dict[Value, int] = {}  # the first level that may read or write this buffer
        for step in self.steps:
            reads = {buffer.get(v, v) for v in step.analysis.inputs}
            writes = {buffer.get(v, v) for v in step.analysis.written}
            before = [written.get(v, 0) for v in reads | writes] + [read.get(v, 0) for v in writes]
            levels[step] = level = max(before, default=0)
            read |= {v: max(level + 1, read.get(v, 0)) for v in reads}
            written |= dict.fromkeys(writes, level + 1)
        return levels

    def _overwrite_donated(self) -> bool:
        """Write results over donated arguments of the same dtype, shape and layout where that is safe. Returns whether
        any result was aliased."""
        graph, before = self.graph, len(self.graph.aliases)
        shown = {root for root, _, _ in self.views.values()}
        free = {k for k in graph.donated if graph.args[k] not in shown} - set(graph.aliases.values())

        def fits(place: int, value: Value) -> bool:
            argument, layout = graph.args[place], graph.layouts[place]
            alike = argument.dtype is value.dtype and argument.shape == value.shape
            packed = layout is not None and layout.strides == sz.contiguous_strides(value.shape)
            return alike and packed and self._in_place(value, place)

        for k, value in enumerate(graph.returns):
            if k in graph.aliases or value in self.views:
                continue
            found = next((place for place in sorted(free) if fits(place, value)), None)
            if found is not None:
                graph.aliases[k] = found
                free.remove(found)
        return len(graph.aliases) > before

    def _copy_views(self) -> None:
        """Copy what is returned as a view of an argument and becomes another argument's value, too (``b[:] = a[::-1];
        return a[::-1]``)."""
        graph = self.graph
        results = [v for k, v in enumerate(graph.returns) if k not in graph.aliases]
        views = traffic.result_views(graph, results)
        for k in graph.aliases:
            value = graph.returns[k]
            if value in views:
                graph.returns[k] = self._copy(value, "writes what is a view, too", value.op.segment)

    def _copy_aside(self) -> None:
        """Copy an argument's old elements first if they become another argument's value, or its own at other indices
        (``b[::-1] = b``)."""
        graph = self.graph
        written = {graph.args[a] for a in graph.aliases.values()}
        read = dict.fromkeys(graph.returns[k] for k in graph.aliases if graph.returns[k] in written)
        copies = {value: self._copy(value, "reads an argument that is written") for value in read}
        for k in graph.aliases:
            graph.returns[k] = copies.get(graph.returns[k], graph.returns[k])

    def _write_late(self) -> bool:
        """Compute an argument's new value in a temporary, and copy it last, if it cannot be written in place. Returns
        whether any was."""
        graph, changed = self.graph, False
        for k, argument in graph.aliases.items():
            value = graph.returns[k]
            if value.op is not None and value.op.segment is not None and value.op.segment.why == WRITES_ARGUMENT:
                continue  # an earlier call made this copy
            if not self._in_place(value, argument):
                graph.returns[k] = self._copy(value, WRITES_ARGUMENT)
                changed = True
        return changed

    def _copy(self, value: Value, why: str, segment: Segment | None = None) -> Value:
        """A copy of ``value``, in ``segment`` or a new one of its own."""
        copy = Op("copy", [value], {}, [Value(value.dtype, value.shape)])
        copy.segment = segment or Segment(Group(), "pointwise", {}, why)
        copy.group = copy.segment.group
        self.graph.ops.append(copy)
        return copy.result

    def _in_place(self, value: Value, place: int) -> bool:
        """Whether a kernel can write ``value`` over the argument ``place`` while it computes: no other kernel reads the
        old elements.

        This holds if only the kernel that computes ``value`` reads the argument, each element at the index that it
        writes."""
        if value in self.graph.args or self.graph.returns.count(value) > 1:
            return False
        argument = self.graph.args[place]
        return all(self._overwrites(s.analysis, value, place) for s in self.steps if argument in s.analysis.inputs)

    def _overwrites(self, analysis: an.Analysis, value: Value, place: int) -> bool:
        """Whether the kernels of a segment that reads the argument ``place`` may write ``value`` over it: with
        reductions only over donated ones, see :func:`in_place.overwrites_full`."""
        argument = self.graph.args[place]
        window = self.graph.windows.get(self.graph.returns.index(value))
        if window is not None:
            return in_place.overwrites_window(analysis, value, argument, window)
        full = place in self.graph.donated
        return in_place.overwrites(analysis, value, argument) or (
            full and in_place.overwrites_full(analysis, value, argument)
        )

    def _layout_of(self, k: int) -> Layout:
        """The layout of result ``k``, which is written into a window of an argument."""
        graph, window = self.graph, self.graph.windows[k]
        strides = self._strides_of(graph.aliases[k])
        return Layout(tuple(sz.mul(s, p) for s, p in zip(strides, window.step)))

    def _strides_of(self, argument: int) -> tuple[Size, ...]:
        layout = self.graph.layouts[argument]
        return layout.strides if layout else sz.contiguous_strides(self.graph.args[argument].shape)

    def sizes_key(self, env: dict[str, int]) -> tuple:
        """The sizes of a call as a hashable key."""
        return tuple(env[s] for s in self.symbols)

    def call_key(self, env: dict[str, int], alignments: dict[Value, int]) -> tuple:
        """The sizes and alignments of a call as a hashable key."""
        return self.sizes_key(env), tuple(alignments.get(self.graph.args[k]) for k in self.pointer_args)

    @functools.cached_property
    def text(self) -> str:
        """The segmented graph as MLIR text, independent of the larger graph that contains it."""
        return fusion.to_text(self.graph, numbers=False)

    def aligned(self, alignments: dict[Value, int], env: dict[str, int]) -> dict[Value, int]:
        """``alignments`` (bytes of each argument's address), extended by those of results written over arguments, and
        of results stored as parts of others in a call with the sizes ``env``."""
        graph = self.graph
        if not graph.aliases and not self.inside:
            return alignments
        alignments = alignments | {
            graph.returns[k]: alignments[graph.args[a]] if k not in graph.windows else graph.args[a].dtype.bytes
            for k, a in graph.aliases.items()
            if graph.args[a] in alignments
        }
        return alignments | {v: alignment_of(part, alignments, env) for v, part in self.inside.items()}

    def write_schedules(self, params: tuple, segments: Mapping[Segment, Segment] | None = None) -> None:
        """Set the complete schedule of each step on its segment. ``params`` are those of the target's ``parameters``;
        ``segments`` maps this graph's segments to those of another graph, which get the schedules instead."""
        for step, schedule in zip(self.steps, self.target.schedules(self, params), strict=True):
            segment = (segments or {}).get(step.segment, step.segment)
            segment.schedule = schedule

    def slots(self) -> Slots:
        """The pointer slots of arguments, outputs and the workspace of one compiled program."""
        slots = Slots(inside={v: (part.whole, part.start) for v, part in self.inside.items()})
        for k in self.pointer_args:
            slots.pointers[self.graph.args[k]] = len(slots.pointers)
        for k, argument in self.graph.aliases.items():
            value = self.graph.returns[k]
            slots.pointers[value] = slots.pointers[self.graph.args[argument]]
            if k in self.graph.windows:
                start = zip(self.graph.windows[k].start, self._strides_of(argument))
                slots.starts[value] = sz.mul(sum((sz.mul(n, s) for n, s in start), 0), value.dtype.bytes)
        passed = slots.pointers.keys() | set(self.graph.args)  # results may be arguments passed by value
        created = [v for v in self.outputs if v not in passed and v not in self.views]
        for k, value in enumerate(created):
            slots.pointers[value] = len(self.pointer_args) + k
        slots.workspace = len(self.pointer_args) + len(created)
        return slots

    def lifetimes(self, slots: Slots) -> dict[object, tuple[int, int]]:
        """The first and last step that use each value in the workspace. Steps of one launch count as its first step; a
        scheduler's own buffer lives for its step."""
        spans: dict[object, tuple[int, int]] = {}
        for at, step in ((numbers.start, self.steps[number]) for numbers in self.launches for number in numbers):
            for value in step.analysis.inputs + step.analysis.written:
                first, _ = spans.get(value, (at, at))
                spans[value] = first, at
            for key in slots.temporaries:
                if isinstance(key, tuple) and key[0].results[0].op in step.analysis.ops:
                    spans[key] = at, at
        return spans
