"""fusion-sigmoid: one plus a hyperbolic tangent as a logistic function."""

from __future__ import annotations

from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.passes.base import Pass, blocks, register


@register
class Sigmoid(Pass):
    """Rewrites ``1 + tanh(u)`` to ``2 sigmoid(2 u)``, the same function, where the hyperbolic tangent has no other use.
    GELU's usual approximation is made of it. It takes half the instructions, and for negative ``u`` no digits cancel.

    Before::

        %t = "fusion.tanh"(%u)
        %y = "fusion.add"(%one, %t)

    After::

        %v = "fusion.add"(%u, %u)
        %s = "fusion.sigmoid"(%v)
        %y = "fusion.add"(%s, %s)
    """

    name = "fusion-sigmoid"

    def run(self, graph: Graph) -> None:
        for block in list(blocks(graph)):
            users = block.users()
            for op in list(block.ops):
                tangent = _tangent_plus_one(op)
                if (
                    tangent is not None
                    and tangent.group is op.group
                    and users.get(tangent.result) == [op]
                    and tangent.result not in block.returns
                ):
                    self._replace(block, op, tangent)

    def _replace(self, block: Block, op: Op, tangent: Op) -> None:
        shape, dtype = tangent.result.shape, tangent.result.dtype

        def new(name: str, *operands: Value) -> Op:
            made = Op(name, operands, {}, [Value(dtype, shape)], loc=op.loc)
            made.group, made.segment = op.group, op.segment
            return made

        double = new("add", tangent.operands[0], tangent.operands[0])
        half = new("sigmoid", double.result)
        whole = new("add", half.result, half.result)
        at = block.ops.index(op)
        block.ops[at : at + 1] = [double, half, whole]
        block.replace(op.result, whole.result)
        block.ops.remove(tangent)


def _tangent_plus_one(op: Op) -> Op | None:
    """The hyperbolic tangent that ``op`` adds 1 to, or None."""
    if op.name != "add" or not op.result.dtype.is_float:
        return None
    for one, other in (op.operands, op.operands[::-1]):
        if _is_one(one) and other.op is not None and other.op.name == "tanh" and other.shape == op.result.shape:
            return other.op
    return None


def _is_one(value: Value) -> bool:
    while value.op is not None and value.op.name in ("cast", "full", "broadcast_in_dim"):
        value = value.op.operands[0]
    return value.op is not None and value.op.name == "constant" and value.op.attrs["value"] == 1
