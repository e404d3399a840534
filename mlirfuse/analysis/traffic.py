"""A segment's memory traffic in symbolic bytes: every tensor once, as in a kernel that keeps what it has read.

A tensor that is only sliced and gathered from counts as its slices and gathers. Buffers of a split reduction and
by-value scalars do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlirfuse.analysis import views as noop
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Block, Graph, Op, Segment, Value
from mlirfuse.ir.sizes import Size

NAMES = "bytes_read", "bytes_written"  # keys of a segment's params


def result_views(graph: Graph, results: Sequence[Value] | None = None) -> dict[Value, noop.View]:
    """Return the results that are views of an argument, or of another result: they need no kernel. ``results``: of
    these, whether arguments take over their values or not."""
    strides = {v: layout.strides for v, layout in zip(graph.args, graph.layouts) if layout is not None}
    written = {graph.returns[k] for k in graph.aliases} if results is None else set()
    memory = {v for v in written if v.op is not None} | {graph.args[k] for k in graph.aliases.values()}
    out = {}
    for value in dict.fromkeys(graph.returns if results is None else results):
        found = noop.view_of(value, strides) if value.op is not None else None
        if found is not None and value not in written and found[0] not in memory:
            out[value] = found
    return out


def _elements(value: Value, users: dict[Value, list[Op]], strides, outputs) -> Size:
    """Return how many elements of ``value`` its ``users`` read; all where it is stored."""
    while value not in outputs and value not in strides:  # a chain of views reads what its end reads
        (op, *others) = users.get(value, ()) or (None,)
        if op is None or others or op.row.view not in ("all", "some") or len(op.results) != 1:
            break
        value = op.result
    steps = strides.get(value)
    all_of_it = value.numel if steps is None else sz.product(n for n, s in zip(value.shape, steps) if s != 0)
    if value in outputs:
        return all_of_it
    total: Size = 0
    for op in users.get(value, ()):
        if op.row.view in ("all", "some"):
            elements = sum((_elements(v, users, {}, outputs) for v in op.results), 0)
        elif op.row.kind == "index" and op.operands[1] is not value:
            elements = op.result.numel
        else:
            return all_of_it
        if elements == all_of_it:
            return all_of_it
        total = total + elements
    return (
        total
        if isinstance(total, int) and total == 0
        else sz.minimum(total, all_of_it)
        if len(users.get(value, ())) > 1
        else total
    )


def of_segment(
    ops: list[Op], inputs: list[Value], outputs: list[Value], strides: dict[Value, tuple[Size, ...]]
) -> tuple[Size, Size]:
    """Return (bytes read, bytes written) by a kernel of ``ops``. ``strides``: of arguments, whose extents with stride 0
    count as one element."""
    users: dict[Value, list[Op]] = {}
    for op in ops:
        for value in dict.fromkeys(op.operands):
            users.setdefault(value, []).append(op)
    read: Size = 0
    for value in inputs:
        read = read + sz.mul(_elements(value, users, strides, outputs), value.dtype.bytes)
    written: Size = 0
    for value in dict.fromkeys(outputs):
        written = written + sz.mul(value.numel, value.dtype.bytes)
    return read, written


def annotate(graph: Graph) -> None:
    """Store each segment's bytes read and written in its params, and set the scheduler of segments that launch nothing
    to "no-op"."""
    strides = {v: layout.strides for v, layout in zip(graph.args, graph.layouts) if layout is not None}
    outside = [op for op in graph.ops if op.group is None]
    roots = strides | {v: sz.contiguous_strides(v.shape) for op in outside for v in op.results}
    views = set(result_views(graph)) | {
        v for op in outside for v in op.operands if v.op is not None and noop.view_of(v, roots) is not None
    }
    _annotate(graph.body, set(graph.returns) - views, {graph.args[k] for k in graph.scalars}, strides, views)


def _annotate(block: Block, returned: set[Value], scalars: set[Value], strides, views=frozenset()) -> None:
    """``views``: results that users outside of groups see as views only."""
    users = block.users()
    members: dict[Segment, list[Op]] = {}
    for op in block.ops:
        for nested in op.blocks:
            _annotate(nested, set(nested.returns), scalars, strides)
        if op.segment is not None:
            members.setdefault(op.segment, []).append(op)
    for segment, ops in members.items():
        inside = set(ops)
        outs = []
        for v in [v for op in ops for v in op.results]:
            elsewhere = [u for u in users.get(v, ()) if u not in inside and not (v in views and u.group is None)]
            if v in returned or elsewhere:
                outs.append(v)
        created = {v for op in ops for v in op.results}
        needed = live(ops, outs)
        ins = [
            v for v in dict.fromkeys(v for op in needed for v in op.operands) if v not in created and v not in scalars
        ]
        if not outs:
            segment.scheduler = "no-op"
        read, written = of_segment(needed, ins, outs, strides)
        segment.params |= serialized(read, written)


def live(ops: list[Op], outputs: list[Value]) -> list[Op]:
    """Return the ops that ``outputs`` need."""
    needed, out = set(outputs), []
    for op in reversed(ops):
        if any(v in needed for v in op.results):
            needed.update(op.operands)
            out.append(op)
    return out[::-1]


def serialized(read: Size, written: Size) -> dict[str, int | str]:
    """Return a segment's params for these bytes: numbers, or expressions over the symbols as text."""
    return {name: size if isinstance(size, int) else str(size) for name, size in zip(NAMES, (read, written))}


_MOVES = ("shape", "create", "query", "library", "foreign", "composite", "update")


def operations(ops: Iterable[Op]) -> Size:
    """Roughly how many instructions ``ops`` take, by the costs of the op table: of each element that they compute or
    reduce. Views and constants take none."""
    return sz.total(
        sz.mul(op.row.cost, _largest([*op.operands, *op.results])) for op in ops if op.row.kind not in _MOVES
    )


def _largest(values: list[Value]) -> Size:
    """The elements of the value that has most, where unknown extents are supposed to be large."""
    return max((v.numel for v in values if v.dtype is not None), key=sz.supposed, default=0)


def of_step(step, env: dict[str, int]) -> tuple[int, int]:
    """Return (bytes read, bytes written) by an analyzed segment in a call with these sizes."""
    analysis = step.analysis
    inputs = [v for v in analysis.inputs if v not in analysis.outputs or any(v in op.operands for op in analysis.ops)]
    read, written = of_segment(analysis.ops, inputs, analysis.outputs, analysis.strides)
    return sz.substitute(read, env), sz.substitute(written, env)
