"""Serializes a graph to nested tuples and lists of plain Python objects, for the disk: values are numbers, so that the
recursion depth of unpickling does not grow with the graph."""

from __future__ import annotations

from typing import Any

from mlirfuse.ir.graph import Block, Graph, Group, Layout, Op, Segment, Value

Flat = tuple[Any, ...]


def flat(graph: Graph) -> Flat:
    """Serialize ``graph`` with its groups and segments; the composite ops of :attr:`Op.origin` are omitted."""
    numbers: dict[Any, int] = {None: -1}
    values: list[tuple] = []
    groups: list[dict[str, Any]] = []
    segments: list[dict[str, Any]] = []

    def value(v: Value) -> int:
        if v not in numbers:
            numbers[v] = len(values)
            values.append((v.dtype, v.shape, v.name, v.type if v.dtype is None else None))
        return numbers[v]

    def group(g: Group | None) -> int:
        if g not in numbers:
            numbers[g] = len(groups)
            groups.append(vars(g))  # of a dataclass: its fields
        return numbers[g]

    def segment(s: Segment | None) -> int:
        if s is not None and s not in numbers:
            numbers[s] = len(segments)
            segments.append({**vars(s), "group": group(s.group)})
        return numbers[s]

    def op(o: Op) -> tuple:
        created = [value(v) for v in o.results]
        given = [value(v) for v in o.operands]
        return o.name, given, o.attrs, created, [block(b) for b in o.blocks], o.loc, group(o.group), segment(o.segment)

    def block(b: Block) -> tuple:
        return [value(v) for v in b.args], [op(o) for o in b.ops], [value(v) for v in b.returns], b.terminator

    body = block(graph.body)
    layouts = [layout and (layout.strides, layout.align) for layout in graph.layouts]
    last = graph.numbers, graph.windows, graph.donated, graph.equal, graph.hints
    rest = graph.scalars, graph.aliases, graph.device, graph.parts, graph.result_parts, *last
    return values, groups, segments, graph.name, body, layouts, rest


def graph_of(given: Flat) -> Graph:
    """Rebuild the graph from the result of :func:`flat`."""
    described, labels, cuts, name, body, strides, rest = given
    values = [Value(dtype, shape, None, named, type) for dtype, shape, named, type in described]
    groups: list[Any] = [*(Group(**fields) for fields in labels), None]
    segments: list[Any] = [*(Segment(**{**fields, "group": groups[fields["group"]]}) for fields in cuts), None]

    def op(named, operands, attrs, results, blocks, loc, group, segment) -> Op:
        created = Op(named, [values[k] for k in operands], attrs, [values[k] for k in results], map(block, blocks), loc)
        created.group, created.segment = groups[group], segments[segment]
        return created

    def block(flat: tuple) -> Block:
        args, ops, returns, terminator = flat
        return Block([values[k] for k in args], [op(*o) for o in ops], [values[k] for k in returns], terminator)

    layouts = [at and Layout(*at) for at in strides]
    return Graph(name, block(body), layouts, *rest)
