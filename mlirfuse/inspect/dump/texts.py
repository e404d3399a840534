"""``math``, ``group-log``, ``segmenter-log``: a graph and the passes' decisions about it, as text."""

from __future__ import annotations

from typing import Any

from mlirfuse.inspect import listing
from mlirfuse.inspect.listing import Names
from mlirfuse.ir.graph import Graph, Op
from mlirfuse.passes.segmentation.copies import COPIED


def group_log(graph: Graph) -> str:
    """Format the ops that grouping left out, and why."""
    names = Names(graph)
    groups: dict[Any, list[Op]] = {}
    for op in graph.ops:
        if op.group is not None:
            groups.setdefault(op.group, []).append(op)
    out = []
    for group, ops in groups.items():
        reported = [op for op in ops if not listing.is_literal(op)]
        span = f"{reported[0].name} … {reported[-1].name}" if reported else "constants"
        out.append(f"group {group.number}: {len(reported)} ops, {span}; {group.why}\n")
        out += [f"  {note}\n" for note in group.notes]
    loose = [op for op in graph.ops if op.group is None and not listing.is_literal(op)]
    rows = [(names.statement(op), op.attrs.get("note", "is alone"), listing.place(op.loc)) for op in loose]
    if rows:
        out.append("left out:\n" + listing.table(rows, "  "))
    return "".join(out)


def segmenter_log(decisions, graph: Graph) -> str:
    """Format what was merged, what was not and what is recomputed, in the order of the decisions."""
    names, out, reported = Names(graph), [], set()
    for a, count_a, b, count_b, why in decisions:
        verdict = "merged  " if why is None else "again   " if why == COPIED else "not     "
        line = f"{verdict} {_of(a, count_a, names)} + {_of(b, count_b, names)}" + (f": {why}" if why else "")
        if why is None or line not in reported:
            out.append(line)
        reported.add(line)
    segments: dict = {}
    for op in graph.ops:
        if op.segment is not None:
            segments.setdefault(op.segment, []).append(op)
    for segment, ops in segments.items():
        ops = [op for op in ops if not listing.is_literal(op)]
        why = f"; {segment.why}" if segment.why else ""
        out.append(f"segment {segment.number}: {segment.scheduler}, {len(ops)} ops{why}")
    return "\n".join(out)


def _of(op: Op, count: int, names: Names) -> str:
    text = f"{names.of(op.results[0])} = {op.name}"
    return text if count == 1 else f"{{{text} and {count - 1} more}}"


def math(graph: Graph) -> str:
    """Format the ops of each segment, without its schedule."""
    names = Names(graph)
    runs: list[tuple[Any, list[Op]]] = []
    for op in graph.ops:
        if not runs or runs[-1][0] is not op.segment or op.segment is None:
            runs.append((op.segment, []))
        runs[-1][1].append(op)
    out = [f"inputs:  {', '.join(f'{names.of(v)}: {names.type(v)}' for v in graph.args)}\n"]
    for segment, ops in runs:
        if segment is None:
            if not listing.is_literal(ops[0]):
                out.append(f"{ops[0].attrs.get('note', 'outside of kernels')}:\n" + listing.statements(ops, names))
            continue
        out.append(f"segment {segment.number}, {segment.scheduler}:\n" + listing.statements(ops, names))
    out.append(f"outputs: {', '.join(f'{names.of(v)}: {names.type(v)}' for v in graph.returns)}\n")
    return "".join(out)
