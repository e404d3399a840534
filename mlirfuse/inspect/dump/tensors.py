"""The levels from ``fusion`` to ``linalg``, ``math``, ``groups`` and the passes' logs: the transformations of a new
specialization's graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlirfuse.analysis import traffic
from mlirfuse.core import config
from mlirfuse.inspect.dump import labels, texts
from mlirfuse.inspect.dump.output import attempt, write
from mlirfuse.inspect.export import groups
from mlirfuse.ir.graph import Graph
from mlirfuse.passes.base import IR, run_pipeline
from mlirfuse.runtime import events
from mlirfuse.schedule.program import undecided

NAMES = frozenset(
    {"fusion", "grouped", "guarded", "segmented", "linalg", "math", "groups", "group-log", "segmenter-log"}
)


def traced(event: events.Traced) -> None:
    """A front end has created the graph."""
    _traced(labels.of_specialization(event.specialization), event.specialization.graph)


def lowered(event: events.GraphLowered) -> None:
    """As :func:`traced`, for a graph without a specialization."""
    _traced(labels.of_graph(event.graph), event.graph)


def _traced(where: labels.Where, graph: Graph) -> None:
    if "fusion" in config.dump:
        write("fusion", where, _text(graph))


def after(event: events.PassRan) -> None:
    """A pass has run."""
    _after(labels.of_specialization(event.specialization), event.specialization.graph, event.step)


def after_of_graph(event: events.GraphPassRan) -> None:
    """As :func:`after`, for a graph without a specialization."""
    _after(labels.of_graph(event.graph), event.graph, event.step)


def _after(where: labels.Where, graph: Graph, step: Any) -> None:
    dumps = config.dump
    if step.name == "fusion-group" and "grouped" in dumps:
        write("grouped", where, _text(graph))
    if step.name == "fusion-group" and "guarded" in dumps:
        guarded = graph.copy()
        guarded.device = guarded.device or "of the call"  # of a definition, which has one graph for all devices
        write("guarded", where, run_pipeline(guarded, "fusion-guard").as_text(locations=True))
    if step.name == "fusion-group" and "group-log" in dumps:
        write("group-log", where, texts.group_log(graph))
    if step.name == "fusion-segment" and "segmenter-log" in dumps:
        write("segmenter-log", where, texts.segmenter_log(step.log, graph))


def segmented(event: events.Segmented) -> None:
    """The graph is segmented."""
    executor = event.specialization.executor
    assert executor is not None
    where = labels.of_specialization(event.specialization)
    if "segmented" in config.dump:
        write("segmented", where, _with_choices(event))
    _segmented(where, executor.graph, event.env)


def segmented_graph(event: events.GraphSegmented) -> None:
    """As :func:`segmented`, for a graph without a specialization: its schedules are chosen as its programs first
    run."""
    where = labels.of_graph(event.graph)
    if "segmented" in config.dump:
        write("segmented", where, _text(event.graph))
    _segmented(where, event.graph, event.env)


def _segmented(where: labels.Where, graph: Graph, env: dict[str, int]) -> None:
    dumps = config.dump
    if "linalg" in dumps:
        write("linalg", where, attempt(lambda: run_pipeline([graph], "convert-fusion-to-linalg").as_text()))
    if "math" in dumps:
        write("math", where, texts.math(graph))
    if "groups" in dumps:
        for at, text in groups(graph, env).items():
            write("groups", replace(where, group=at), text)


def _text(graph: Graph) -> str:
    return IR([graph]).as_text(locations=True)


def _with_choices(event: events.Segmented) -> str:
    """Return the segmented graph, with the schedules for the first call."""
    executor, env = event.specialization.executor, event.env
    assert executor is not None

    def choose() -> str:
        executor.check(env)
        arguments = event.specialization.arguments(event.call.leaves, env)
        found = executor.alignments(arguments, list(range(len(arguments))))
        for program, segments in executor.programs(env):
            known = {v: found.get(v, 256) for v in program.graph.args}
            program.write_schedules(program.parameters(env, known), segments)
            for step in program.steps:
                segments.get(step.segment, step.segment).params = traffic.serialized(*traffic.of_step(step, env))
        return ""

    with undecided(executor.graph):
        problem = attempt(choose)
        text = _text(executor.graph)
    return (problem + "\n" if problem else "") + text
