"""fusion-recompose: put back extern ops whose expansion fused with nothing."""

from __future__ import annotations

from mlirfuse.ir.graph import Block, Graph, Op, Value, uses
from mlirfuse.passes.base import Pass, blocks, register


@register
class Recompose(Pass):
    """Puts back a linear or a convolution with a bias whose bias was fused with nothing: the library adds it for free.
    It uses what `fusion-decompose` has recorded on the ops, so it has to run in the same pipeline, after
    `fusion-group`.

    Before::

        %0 = "fusion.linear"(%x, %w) {note = "runs through a library"}
        %1 = "fusion.group"(%0, %b) ({
          %2 = "fusion.expand_dims"(%b) {axes = [0]}
          %3 = "fusion.add"(%0, %2)
          "fusion.yield"(%3)
        })

    After::

        %0 = "fusion.linear"(%x, %w, %b) {note = "runs through a library"}
    """

    name = "fusion-recompose"

    def run(self, graph: Graph) -> None:
        for block in list(blocks(graph)):
            expansion: dict[Op, list[Op]] = {}
            for op in block.ops:
                if op.origin is not None and op.origin.row.kind == "library":
                    expansion.setdefault(op.origin, []).append(op)
            for origin, members in expansion.items():
                _put_back(block, origin, members)


def _put_back(block: Block, origin: Op, expansion: list[Op]) -> None:
    """Put ``origin`` in place of its expansion ``parts``, if their groups contain nothing else and nothing else uses
    their intermediate values."""
    inside, users = set(expansion), block.users()
    groups = {op.group for op in expansion if op.group is not None}
    if any(op.group in groups and op not in inside and not op.row.literal for op in block.ops):
        return
    created = {v for op in expansion for v in op.results}
    needed = {v for op in expansion for v in uses(op) if v not in created}
    seen = [v for v in created if v in block.returns or any(u not in inside for u in users.get(v, ()))]
    if len(seen) != 1 or len(origin.results) != 1 or not needed <= set(origin.operands):
        return  # an op of the expansion now serves another op, too
    extern = next((op for op in expansion if op.row.kind == "library"), None)
    if extern is None:
        return
    result = Value(seen[0].dtype, seen[0].shape)
    op = Op(
        origin.name, origin.operands, origin.attrs | {"note": extern.attrs.get("note", "")}, [result], loc=origin.loc
    )
    block.ops[block.ops.index(expansion[-1])] = op
    block.ops = [other for other in block.ops if other not in inside and other.group not in groups]
    block.replace(seen[0], result)
