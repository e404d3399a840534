"""copies-to-linalg: copies of buffers as loops."""

from __future__ import annotations

from mlirfuse.core import mlir
from mlirfuse.passes.base import Pass, register


@register
class CopiesToLinalg(Pass):
    """Turns ``memref.copy``, which becomes a call of a library function, into ``linalg.copy``, which becomes loops:
    these run on a GPU too, and code without calls needs no linking.

    Before::

        memref.copy %a, %b : memref<8xf32> to memref<8xf32>

    After::

        linalg.copy ins(%a : memref<8xf32>) outs(%b : memref<8xf32>)
    """

    name = "copies-to-linalg"

    def run_on_module(self, module):
        ir = mlir.ir
        with module.context:
            for op in [op.operation for op in mlir.walk(module) if op.operation.name == "memref.copy"]:
                source, target = op.operands
                sizes = ir.DenseI32ArrayAttr.get([1, 1])
                with ir.InsertionPoint(op), op.location:
                    copy = ir.Operation.create(
                        "linalg.copy", [], [source, target], {"operandSegmentSizes": sizes}, regions=1
                    )
                    elements = [_element(v.type) for v in (source, target)]
                    body = copy.regions[0].blocks.append(*elements, arg_locs=[op.location] * 2)
                with ir.InsertionPoint(body), op.location:
                    ir.Operation.create("linalg.yield", [], [body.arguments[0]])
                op.erase()
        return module


def _element(type_):
    return mlir.ir.MemRefType(type_).element_type
