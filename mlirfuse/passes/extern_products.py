"""fusion-extern-products: products that no kernel computes are extern ops."""

from __future__ import annotations

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.passes.base import Pass, blocks, register


@register
class ExternProducts(Pass):
    """Replaces ``dot`` by the extern op ``matmul`` where the target has no kernel for it: other element types than
    16-bit floats, and float32 with ``tf32``, no sums, and all where ``tensor-cores`` is off. ``float8_dot`` becomes one
    of float32 there, of its operands decoded.

    Before::

        %0 = "fusion.dot"(%a, %b)   // f32

    After::

        %0 = "fusion.matmul"(%a, %b)
    """

    name = "fusion-extern-products"
    tensor_cores: bool = False

    def run(self, graph: Graph) -> None:
        for block in blocks(graph):
            products = [op for op in block.ops if op.row.kind == "product"]
            for op in products:
                if not (self.tensor_cores and _has_kernel(op)):
                    self._replace(block, op)

    @staticmethod
    def _replace(block: Block, op: Op) -> None:
        result = Value(op.result.dtype, op.result.shape)
        block.replace(op.result, result)
        at = block.ops.index(op)
        behind, block.ops[at:] = block.ops[at + 1 :], []
        builder = Builder(block, lambda: op.loc)
        operands = op.operands
        if op.name == "float8_dot":
            operands = [builder.op(f"decode_{name}", v) for v, name in zip(operands, op.attrs["formats"])]
        block.ops += [Op("matmul", operands, {}, [result], loc=op.loc), *behind]


def _has_kernel(op: Op) -> bool:
    a = op.operands[0]
    wide = a.dtype is dt.f32 and not op.attrs["tf32"]
    return a.dtype in (dt.bf16, dt.f16, dt.f32, dt.u8) and not wide and a.shape[1] != 0
