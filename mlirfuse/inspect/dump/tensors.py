"""The levels from ``fusion`` to ``linalg``, ``math``, ``groups`` and the passes' logs: what becomes of a new kind's
graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlirfuse.analysis import traffic
from mlirfuse.core import config, events
from mlirfuse.inspect.dump import labels, texts
from mlirfuse.inspect.dump.output import attempt, write
from mlirfuse.inspect.export import groups
from mlirfuse.ir.graph import Graph
from mlirfuse.passes.base import IR, run_pipeline
from mlirfuse.schedule.program import undecided

NAMES = frozenset(
    {"fusion", "grouped", "guarded", "segmented", "linalg", "math", "groups", "group-log", "segmenter-log"}
)


def traced(event: events.Traced) -> None:
    """A front end has made the graph."""
    if "fusion" in config.dump:
        write("fusion", labels.of_kind(event.kind), _text(event.kind.graph))


def after(event: events.PassRan) -> None:
    """A pass has run."""
    step: Any = event.step
    where, graph, wanted = labels.of_kind(event.kind), event.kind.graph, config.dump
    if step.name == "fusion-group" and "grouped" in wanted:
        write("grouped", where, _text(graph))
    if step.name == "fusion-group" and "guarded" in wanted:
        guarded = graph.copy()
        guarded.device = guarded.device or "of the call"  # a definition's, which has one graph for all
        write("guarded", where, run_pipeline(guarded, "fusion-guard").as_text(locations=True))
    if step.name == "fusion-group" and "group-log" in wanted:
        write("group-log", where, texts.group_log(graph))
    if step.name == "fusion-segment" and "segmenter-log" in wanted:
        write("segmenter-log", where, texts.segmenter_log(step.log, graph))


def segmented(event: events.Segmented) -> None:
    """The graph is cut into segments."""
    executor = event.kind.executor
    assert executor is not None
    where, graph, wanted = labels.of_kind(event.kind), executor.graph, config.dump
    if "segmented" in wanted:
        write("segmented", where, _with_choices(event))
    if "linalg" in wanted:
        write("linalg", where, attempt(lambda: run_pipeline([graph], "convert-fusion-to-linalg").as_text()))
    if "math" in wanted:
        write("math", where, texts.math(graph))
    if "groups" in wanted:
        for at, text in groups(graph, event.env).items():
            write("groups", replace(where, group=at), text)


def _text(graph: Graph) -> str:
    return IR([graph]).as_text(locations=True)


def _with_choices(event: events.Segmented) -> str:
    """The segmented graph, with the schedules for the first call."""
    executor, env = event.kind.executor, event.env
    assert executor is not None

    def choose() -> str:
        executor.check(env)
        arguments = event.kind.arguments(event.call.leaves, env)
        found = executor.alignments(arguments, list(range(len(arguments))))
        for program, segments in executor.programs(env):
            known = {v: found.get(v, 256) for v in program.graph.args}
            program.write_schedules(program.parameters(env, known), segments)
            for step in program.steps:
                segments.get(step.segment, step.segment).params = traffic.spelled(*traffic.of_step(step, env))
        return ""

    with undecided(executor.graph):
        problem = attempt(choose)
        text = _text(executor.graph)
    return (problem + "\n" if problem else "") + text
