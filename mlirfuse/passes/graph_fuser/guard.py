"""fusion-guard: check a compiled group's assumptions before it runs."""

from __future__ import annotations

from mlirfuse.ir.assumptions import relation
from mlirfuse.ir.graph import Block, Graph, Group, Op, Value, uses
from mlirfuse.ir.order import topological
from mlirfuse.ir.size_relations import bounds, equalities
from mlirfuse.passes.base import Pass, blocks, register


@register
class Guard(Pass):
    """Puts each group behind a ``fusion.guard``, in an ``scf.if`` whose other branch has the same ops unfused. The
    guard states the group's assumptions about its inputs: ``types`` and ranks with the extents that are
    constant (1 for a broadcast dimension), ``strides`` and ``aligns`` where a layout is known, sizes that are
    assumed to be ``equal`` or ``within`` others, and ``constants``: axes, view sizes and other attributes that
    were values in the source program. A group of a function whose device is unknown is replaced by the
    fallback.
    `jit` does not run this pass: fusion-graph-fuser says why.

    Before::

        %0 = "fusion.group"(%x) ({ … "fusion.exp" … "fusion.sum" {axes = [1]} … })

    After::

        %0 = "fusion.guard"(%x) {types = ["f32[s0, s1]"], constants = ["sum axes = [1]"], …} : (tensor<?x?xf32>) -> i1
        %1 = scf.if %0 -> tensor<?xf32> {
          %2 = "fusion.group"(%x) ({ … "fusion.exp" … "fusion.sum" … })
          scf.yield %2
        } else {
          %2 = "fusion.exp"(%x)
          %3 = "fusion.sum"(%2) {axes = [1]}
          scf.yield %3
        }
    """

    name = "fusion-guard"

    def run(self, graph: Graph) -> None:
        layouts = dict(zip(graph.args, graph.layouts))
        for block in list(blocks(graph)):
            if graph.device is None:
                for op in block.ops:
                    if op.group is not None:
                        op.group = op.segment = None
                        op.attrs["note"] = "runs unfused: the device is not known"
            else:
                _guard(block, layouts)


def _guard(block: Block, layouts) -> None:
    block.ops = topological(block.ops, {op: op.group for op in block.ops if op.group is not None})
    groups: dict[Group, list[Op]] = {}
    for op in block.ops:
        if op.group is not None:
            groups.setdefault(op.group, []).append(op)
    users = block.users()
    returned = set(block.returns)
    last = {members[-1]: members for members in groups.values()}
    ops = []
    for op in block.ops:
        if op.group is None:
            ops.append(op)
        elif op in last:
            ops += _guarded(block, last[op], layouts, users, returned)
    block.ops = ops


def _guarded(block: Block, members: list[Op], layouts, users, returned) -> list[Op]:
    """Return the guard and the branch that replace a group."""
    inside = set(members)
    created = {v for op in members for v in op.results}
    inputs = list(dict.fromkeys(v for op in members for v in uses(op) if v not in created and v.dtype is not None))
    if not inputs:
        return members
    outputs = [
        v for op in members for v in op.results if v in returned or any(u not in inside for u in users.get(v, ()))
    ]
    condition = Value(None, type="i1")
    guard = Op("guard", inputs, _assumptions(inputs, members, layouts), [condition], loc=members[0].loc)
    copies: dict[Value, Value] = {}
    fallback = Block()
    for op in members:
        copy = Op(
            op.name,
            [copies.get(v, v) for v in op.operands],
            op.attrs,
            [Value(v.dtype, v.shape) for v in op.results],
            loc=op.loc,
        )
        copies.update(zip(op.results, copy.results))
        fallback.ops.append(copy)
    results = [Value(v.dtype, v.shape, name=v.name) for v in outputs]
    fallback.returns = [copies[v] for v in outputs]
    branch = Op("scf.if", [condition], {}, results, [Block((), members, outputs), fallback], loc=members[0].loc)
    # Users of the group's results now use those of the branch.
    new = dict(zip(outputs, results))
    for op in {u: None for v in outputs for u in users.get(v, ()) if u not in inside}:
        op.operands = [new.get(v, v) for v in op.operands]
        for nested in op.blocks:
            for old, value in new.items():
                nested.replace(old, value)
    block.returns = [new.get(v, v) for v in block.returns]
    for op in (u for v in outputs for u in users.get(v, ())):
        for value in new.values():
            users.setdefault(value, []).append(op)
    returned.update(new[v] for v in outputs if v in returned)
    return [guard, branch]


_TAKEN = {
    "axes",
    "keepdims",
    "axis",
    "shape",
    "dims",
    "start",
    "size",
    "step",
    "sizes",
    "low",
    "high",
    "correction",
    "to",
}


def _assumptions(inputs: list[Value], members: list[Op], layouts) -> dict:
    out: dict = {"types": [f"{v.dtype}[{', '.join(map(str, v.shape))}]" for v in inputs]}
    known = [layouts.get(v) for v in inputs]
    if any(known):
        out["strides"] = [f"[{', '.join(map(str, layout.strides))}]" if layout else "any" for layout in known]
        out["aligns"] = [layout.align if layout else 1 for layout in known]
    out |= relation("equal", [pair for op in members for pair in equalities(op)])
    out |= relation("within", [(bound.low, bound.high) for op in members for bound in bounds(op)])
    constants = [
        f"{op.name} {k} = {_serialized(v)}"
        for op in members
        for k, v in op.attrs.items()
        if k in _TAKEN and v is not None
    ]
    if constants:
        out["constants"] = list(dict.fromkeys(constants))
    return out


def _serialized(value) -> str:
    return (
        f"[{', '.join(map(str, value))}]"
        if isinstance(value, (list, tuple))
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
