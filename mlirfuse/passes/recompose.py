"""fusion-recompose: a library op that was taken apart for nothing is put back together."""

from __future__ import annotations

from mlirfuse.ir.graph import Block, Graph, Op, Value, uses
from mlirfuse.passes.base import Pass, blocks, register


@register
class Recompose(Pass):
    """Puts back a linear or a convolution with a bias whose bias fused with nothing: the library adds it as it
    computes. It goes by what `fusion-decompose` has left on the ops, so it has to run in the same pipeline, after
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
            parts: dict[Op, list[Op]] = {}
            for op in block.ops:
                if op.origin is not None and op.origin.row.kind == "library":
                    parts.setdefault(op.origin, []).append(op)
            for origin, members in parts.items():
                _put_back(block, origin, members)


def _put_back(block: Block, origin: Op, parts: list[Op]) -> None:
    """Puts ``origin`` in the place of its ``parts``, if nothing else is in their groups or uses what they pass on."""
    inside, users = set(parts), block.users()
    groups = {op.group for op in parts if op.group is not None}
    if any(op.group in groups and op not in inside and not op.row.literal for op in block.ops):
        return
    created = {v for op in parts for v in op.results}
    needed = {v for op in parts for v in uses(op) if v not in created}
    seen = [v for v in created if v in block.returns or any(u not in inside for u in users.get(v, ()))]
    if len(seen) != 1 or len(origin.results) != 1 or not needed <= set(origin.operands):
        return  # some part has become another op's, too
    library = next((op for op in parts if op.row.kind == "library"), None)
    if library is None:
        return
    result = Value(seen[0].dtype, seen[0].shape)
    op = Op(
        origin.name, origin.operands, origin.attrs | {"note": library.attrs.get("note", "")}, [result], loc=origin.loc
    )
    block.ops[block.ops.index(parts[-1])] = op
    block.ops = [other for other in block.ops if other not in inside and other.group not in groups]
    block.replace(seen[0], result)
