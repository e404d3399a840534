"""fusion-strip-views: move views at the edges of a group out of it."""

from __future__ import annotations

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.ir.order import topological
from mlirfuse.passes.base import Pass, blocks, register

_ANY_LAYOUT = {"squeeze", "expand_dims", "permute"}  # metadata for all strides


@register
class StripViews(Pass):
    """Moves views at the edges of a group out of it: a view of an input before the group, a view that is only an output
    after it. Outside they are metadata, and the group's kernels need not handle them.
    `jit` does not run this pass: fusion-graph-fuser says why.

    A reshape moves only where it is metadata: of a result, or of an argument that is known to be contiguous. A slice
    moves at the inputs, and at the outputs where its source is an output anyway.

    Before::

        %0 = "fusion.group"(%x) ({
        ^bb0(%a):
          %1 = "fusion.exp"(%a)
          %2 = "fusion.reshape"(%1) {shape = ["s0*s1"]}
          "fusion.yield"(%2)
        })

    After::

        %0 = "fusion.group"(%x) ({
        ^bb0(%a):
          %2 = "fusion.exp"(%a)
          "fusion.yield"(%2)
        })
        %1 = "fusion.reshape"(%0) {shape = ["s0*s1"]}
    """

    name = "fusion-strip-views"

    def run(self, graph: Graph) -> None:
        contiguous = {
            value: layout is not None and tuple(layout.strides) == sz.contiguous_strides(value.shape)
            for value, layout in zip(graph.args, graph.layouts)
        }
        for block in list(blocks(graph)):
            _strip(block, contiguous)


def _strip(block: Block, contiguous: dict[Value, bool]) -> None:
    """``contiguous`` maps values outside groups to whether they are known to be contiguous; results of ops other than
    views are."""

    def is_contiguous(value: Value) -> bool:
        if value not in contiguous:
            op = value.op
            if op is None:
                contiguous[value] = False
            elif op.group is None and op.row.view:
                keeps = op.row.view == "all" and op.row.in_order
                contiguous[value] = keeps and is_contiguous(op.operands[0])
            else:
                contiguous[value] = True
        return contiguous[value]

    users = block.users()
    returned = set(block.returns)

    def leave(op: Op) -> None:
        op.group = op.segment = None

    for op in block.ops:  # at the inputs, in order: a view of a moved view can move, too
        if op.group is None or not op.operands:
            continue
        source = op.operands[0]
        outside = source.op is None or source.op.group is not op.group
        if outside and (
            op.name in _ANY_LAYOUT or op.name == "slice" or (op.name == "reshape" and is_contiguous(source))
        ):
            leave(op)
    stays: set[Op] = set()
    for op in reversed(block.ops):  # at the outputs
        if op.group is None or not op.operands:
            continue
        if any(user.group is op.group for v in op.results for user in users.get(v, ())):
            continue
        source = op.operands[0]
        seen = source in returned or any(user.group is not op.group for user in users.get(source, ()))
        if op not in stays and (op.name in _ANY_LAYOUT or op.name == "reshape" or (op.name == "slice" and seen)):
            if (
                op.name == "reshape"
                and source.op is not None
                and source.op.name in ("permute", "slice", "broadcast_in_dim", "split")
            ):
                stays.add(source.op)  # the source of a reshape outside has to be stored contiguously
            leave(op)
    block.ops = topological(block.ops, {op: op.group for op in block.ops if op.group is not None})
