"""fusion-sigmoid: what is a logistic function, written otherwise."""

from __future__ import annotations

from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.passes.base import Pass, blocks, register


@register
class Sigmoid(Pass):
    """Rewrites ``1 / (1 + exp(-u))`` to ``sigmoid(u)``, whose quotient needs no branch for what such a sum is not, and
    with ``tangents`` ``1 + tanh(u)`` to ``2 sigmoid(2 u)``, the same function: GELU's usual approximation is made of
    it. On a CPU that takes half the instructions, and for negative ``u`` no digits cancel. The exponential, its sum
    with 1 and the hyperbolic tangent have no other use.

    Before::

        %n = "fusion.neg"(%u)
        %e = "fusion.exp"(%n)
        %a = "fusion.add"(%one, %e)
        %y = "fusion.reciprocal"(%a)
        %t = "fusion.tanh"(%u)
        %z = "fusion.add"(%one, %t)

    After::

        %y = "fusion.sigmoid"(%u)
        %v = "fusion.add"(%u, %u)
        %s = "fusion.sigmoid"(%v)
        %z = "fusion.add"(%s, %s)
    """

    name = "fusion-sigmoid"
    tangents: bool = True

    def run(self, graph: Graph) -> None:
        for block in list(blocks(graph)):
            self.users, self.returned = block.users(), set(block.returns)
            for op in list(block.ops):
                total = _divides_one(op)
                exponential = None if total is None else self._plus_one(total, "exp")
                if total is not None and exponential is not None and self._is_all_of(total, op):
                    _replace_quotient(block, op, total, exponential)
                    continue
                tangent = self._plus_one(op, "tanh") if self.tangents else None
                if tangent is not None:
                    _replace_sum(block, op, tangent)

    def _plus_one(self, op: Op, name: str) -> Op | None:
        """The op ``name`` that ``op`` adds 1 to, and that nothing else uses, or None."""
        if op.name != "add" or not op.result.dtype.is_float:
            return None
        for one, other in (op.operands, op.operands[::-1]):
            made = other.op
            if _is_one(one) and made is not None and made.name == name and other.shape == op.result.shape:
                return made if self._is_all_of(made, op) else None
        return None

    def _is_all_of(self, op: Op, user: Op) -> bool:
        """Whether ``user`` alone, of the same group, uses what ``op`` gives."""
        return self.users.get(op.result) == [user] and op.result not in self.returned and op.group is user.group


def _made(name: str, like: Op, *operands: Value) -> Op:
    made = Op(name, operands, {}, [Value(like.result.dtype, like.result.shape)], loc=like.loc)
    made.group, made.segment = like.group, like.segment
    return made


def _replace_quotient(block: Block, op: Op, total: Op, exponential: Op) -> None:
    (power,) = exponential.operands
    negated = power.op
    if negated is not None and negated.name == "neg":
        made = [_made("sigmoid", op, *negated.operands)]
    else:
        made = [_made("neg", op, power)]
        made.append(_made("sigmoid", op, made[0].result))
    at = block.ops.index(op)
    block.ops[at : at + 1] = made
    block.replace(op.result, made[-1].result)
    block.ops.remove(total)
    block.ops.remove(exponential)


def _replace_sum(block: Block, op: Op, tangent: Op) -> None:
    double = _made("add", op, tangent.operands[0], tangent.operands[0])
    half = _made("sigmoid", op, double.result)
    whole = _made("add", op, half.result, half.result)
    at = block.ops.index(op)
    block.ops[at : at + 1] = [double, half, whole]
    block.replace(op.result, whole.result)
    block.ops.remove(tangent)


def _divides_one(op: Op) -> Op | None:
    """What makes the number that ``op`` divides 1 by, or None."""
    if op.name != "reciprocal" and not (op.name == "div" and _is_one(op.operands[0])):
        return None
    by = op.operands[-1]
    return by.op if by.shape == op.result.shape and by.dtype is op.result.dtype else None


def _is_one(value: Value) -> bool:
    while value.op is not None and value.op.name in ("cast", "full", "broadcast_in_dim"):
        value = value.op.operands[0]
    return value.op is not None and value.op.name == "constant" and value.op.attrs["value"] == 1
