"""fusion-scale-products: scale the result of a matrix product instead of an operand."""

from __future__ import annotations

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.passes.base import Pass, blocks, register

_LARGE = 1024  # the assumed value of unknown sizes


@register
class ScaleProducts(Pass):
    """Rewrites ``(s * A) @ B`` with a number ``s`` to ``s * (A @ B)``, where nothing else reads ``s * A`` and the
    product is not larger than it: no scaled copy of ``A`` is written, and the factor is fused with the users of the
    product. 16-bit floats are excluded, because their products could overflow, and so are complex numbers.

    Before::

        %0 = "fusion.mul"(%s, %a)      // f64, [s0, s1]
        %1 = "fusion.matmul"(%0, %x)   // f64, [s0]

    After::

        %0 = "fusion.matmul"(%a, %x)
        %1 = "fusion.mul"(%s, %0)
    """

    name = "fusion-scale-products"

    def run(self, graph: Graph) -> None:
        for block in list(blocks(graph)):
            if any(op.name == "matmul" for op in block.ops):
                self._block(block)

    def _block(self, block: Block) -> None:
        users, returned = block.users(), set(block.returns)
        for product in [op for op in block.ops if op.name == "matmul"]:
            for k, scaled in enumerate(product.operands):
                factor = _factor(scaled)
                once = users.get(scaled) == [product] and product.operands.count(scaled) == 1
                if factor is None or not once or scaled in returned:
                    continue
                if _elements(product.result) > _elements(scaled):
                    continue
                self._swap(block, product, k, factor)
                users, returned = block.users(), set(block.returns)

    def _swap(self, block: Block, product: Op, k: int, factor: Value) -> None:
        """Insert the product of the unscaled operand ``k``, and its multiple in place of ``product``."""
        scale = product.operands[k].op
        assert scale is not None
        matrix = scale.operands[1 - scale.operands.index(factor)]
        before = product.result
        after = Value(before.dtype, before.shape)
        product.operands = [matrix if n == k else v for n, v in enumerate(product.operands)]
        block.replace(before, after)
        scale.operands, scale.results = [factor, before], [after]
        after.op = scale
        block.ops.remove(scale)
        block.ops.insert(block.ops.index(product) + 1, scale)


def _factor(value: Value) -> Value | None:
    """Return the scalar factor of ``value``, a scaled tensor, or None."""
    op = value.op
    if op is None or op.name != "mul" or value.dtype.kind == "c" or (value.dtype.is_float and value.dtype.bits < 32):
        return None
    numbers = [v for v in op.operands if not v.shape]
    return numbers[0] if len(numbers) == 1 else None


def _elements(value: Value) -> int:
    """Return the number of elements of ``value`` for large sizes."""
    return sz.substitute(value.numel, dict.fromkeys(sz.symbols(value.numel), _LARGE))
