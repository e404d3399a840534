"""fusion-extern-products: products that no kernel computes are extern ops."""

from __future__ import annotations

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.passes.base import Pass, blocks, register


@register
class ExternProducts(Pass):
    """Replaces ``dot`` by the extern op ``matmul`` where the target has no kernel for it: other element types than
    16-bit floats, and float32 with ``tf32``, no sums, and all where ``tensor-cores`` is off.

    Before::

        %0 = "fusion.dot"(%a, %b)   // f32

    After::

        %0 = "fusion.matmul"(%a, %b)
    """

    name = "fusion-extern-products"
    tensor_cores: bool = False

    def run(self, graph: Graph) -> None:
        for block in blocks(graph):
            for at, op in enumerate(block.ops):
                if op.name == "dot" and not (self.tensor_cores and _has_kernel(op)):
                    self._replace(block, at, op)

    @staticmethod
    def _replace(block: Block, at: int, op: Op) -> None:
        result = Value(op.result.dtype, op.result.shape)
        block.replace(op.result, result)
        block.ops[at] = Op("matmul", op.operands, {}, [result], loc=op.loc)


def _has_kernel(op: Op) -> bool:
    a = op.operands[0]
    return (a.dtype in (dt.bf16, dt.f16) or (a.dtype is dt.f32 and op.attrs["tf32"])) and a.shape[1] != 0
