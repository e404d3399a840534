"""fusion-cse: common subexpression elimination, and one constant for equal constants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlirfuse.ir.effects import consumes, has_effect, is_collective, memory_of, viewed, written_memory
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.passes.base import Pass, register


@register
class CommonSubexpressions(Pass):
    """Replaces an op by an earlier one of the same name, operands and attributes. Only ops of one group are merged with
    each other, so that groups do not exchange more values; ops are not merged across an op with an effect, nor tensors
    of which one is written in place, nor collectives. Reductions that differ in ``keepdims`` alone become one and a
    view; results that had memory of their own keep it.

    Before::

        %0 = "fusion.exp"(%x)
        %1 = "fusion.exp"(%x)
        %2 = "fusion.add"(%0, %1)

    After::

        %0 = "fusion.exp"(%x)
        %1 = "fusion.add"(%0, %0)

    ``pool-constants`` also moves constants and sizes to the beginning of the function, so that those of nested blocks
    are shared, too. MLIR's ``cse`` does the rest of this on the module, but would make a group's region use outer
    values.
    """

    name = "fusion-cse"
    pool_constants: bool = True

    def run(self, graph: Graph) -> None:
        if self.pool_constants:
            pooled: list[Op] = []
            _pool(graph.body, pooled)
            graph.body.ops = pooled + graph.body.ops
        before = [memory_of(v) for v in graph.returns]
        _number(graph.body, {}, {}, written_memory(graph.ops))
        _keep_results_apart(graph.body, before)


def _pool(block: Block, pooled: list[Op]) -> None:
    """Remove the ops from ``block`` and its nested blocks that have no operands and are in no group."""
    kept: list[Op] = []
    for op in block.ops:
        (pooled if op.row.literal and op.group is None else kept).append(op)
        for nested in op.blocks:
            _pool(nested, pooled)
    block.ops = kept


def _number(block: Block, seen: dict, new: dict[Value, Value], written: Callable[[Value], bool]) -> None:
    kept = []
    for op in block.ops:
        op.operands = [new.get(v, v) for v in op.operands]
        if is_collective(op) or consumes(op):
            pass
        elif has_effect(op):
            seen = {}
        elif not op.blocks and (op.row.view or not any(map(written, op.results))):  # equal views share memory anyway
            attrs = {k: v for k, v in op.attrs.items() if k != "keepdims" or len(op.results) > 1}
            first = seen.setdefault((op.name, tuple(map(id, op.operands)), _frozen(attrs), op.group, op.segment), op)
            if first is not op and bool(first.attrs.get("keepdims")) != bool(op.attrs.get("keepdims")):
                op = _other_rank(first, op)
            elif first is not op:
                new.update(zip(op.results, first.results))
                continue
        kept.append(op)
        for nested in op.blocks:
            _number(nested, dict(seen), new, written)
    block.ops = kept
    block.returns = [new.get(v, v) for v in block.returns]


def _other_rank(first: Op, op: Op) -> Op:
    """Return an op that computes the result of ``op`` from that of ``first``, which differs only in ``keepdims``."""
    axes, rank = op.attrs.get("axes", op.attrs.get("axis")), op.operands[0].rank
    axes = tuple(range(rank)) if axes is None else axes if isinstance(axes, tuple) else (axes,)
    view = "expand_dims" if op.attrs.get("keepdims") else "squeeze"
    created = Op(view, first.results, {"axes": axes}, op.results, loc=op.loc)
    created.group, created.segment = op.group, op.segment
    return created


def _keep_results_apart(body: Block, before: list[Value]) -> None:
    """Copy results that had memory of their own before, and now share it with an earlier one."""
    seen: dict[Value, Value] = {}
    for k, (value, had) in enumerate(zip(body.returns, before)):
        now = memory_of(value)
        if seen.setdefault(now, had) is not had and now.op is not None:
            body.returns[k] = _anew(value, now, body)


def _anew(value: Value, root: Value, body: Block) -> Value:
    """Return ``value`` as a view of a copy of ``root``. If the view is a call's result, only the call knows its layout:
    the call runs again."""
    source = viewed(value)
    op = value.op
    if source is None or value is root or op is None or op.row.view:
        created = Op("copy", [value], {}, [Value(value.dtype, value.shape)], loc=op and op.loc)
    else:
        operands = [_anew(source, root, body) if v is source else v for v in op.operands]
        created = Op(
            op.name, operands, dict(op.attrs), [Value(v.dtype, v.shape, type=v.type) for v in op.results], loc=op.loc
        )
    body.ops.append(created)
    return created.results[0 if op is None or created.name == "copy" else op.results.index(value)]


def _frozen(value):
    """Return an attribute as a hashable key: numbers by their bits, so that -0.0 and 0.0 differ and NaN equals
    itself."""
    if isinstance(value, dict):
        return tuple((k, _frozen(v)) for k, v in sorted(value.items()) if k not in ("note", "extents"))
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    if isinstance(value, (float, np.generic)):
        value = np.asarray(value)
        return value.dtype, value.tobytes()
    return type(value), value
