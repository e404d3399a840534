"""allocs-to-workspace: place a function's buffers in a workspace passed by the caller."""

from __future__ import annotations

from mlirfuse.core import mlir
from mlirfuse.core.errors import CompileError
from mlirfuse.passes.base import Pass, PassError, register

ALIGNMENT = 256
BYTES_NEEDED = "fusion.workspace_bytes"


@register
class AllocsToWorkspace(Pass):
    """Replaces every buffer that a function allocates by a view of its last argument, a buffer of bytes, and sets an
    attribute of the function to the number of bytes that it needs. So the caller chooses the memory and nothing has to
    be freed; on a GPU, where ``memref.alloc`` is host memory, kernels can access it. Buffers have constant sizes and do
    not overlap.

    Before::

        func.func @entry(%x: memref<8xf32>, %workspace: memref<?xi8>) {
          %a = memref.alloc() : memref<8xf32>

    After::

        func.func @entry(%x: memref<8xf32>, %workspace: memref<?xi8>) attributes {fusion.workspace_bytes = 32 : i64} {
          %c0 = arith.constant 0 : index
          %a = memref.view %workspace[%c0][] : memref<?xi8> to memref<8xf32>
    """

    name = "allocs-to-workspace"

    def run_on_module(self, module):
        with module.context:
            for function in module.body.operations:
                if function.operation.name == "func.func" and function.operation.regions[0].blocks:
                    _move(function.operation)
        return module


def _move(function) -> None:
    from mlirfuse.lowering.linalg.host import buffer_bytes  # imported here: most processes do not need it

    ir = mlir.ir
    block = function.regions[0].blocks[0]
    allocs = [op.operation for op in mlir.walk(function) if op.operation.name == "memref.alloc"]
    if not allocs:
        return
    arguments = list(block.arguments)
    if not arguments or str(arguments[-1].type) != "memref<?xi8>":
        raise PassError(
            f"allocs-to-workspace: the last argument of @{function.attributes['sym_name'].value} is not a memref<?xi8>"
        )
    index, total = ir.IndexType.get(), 0
    for alloc in allocs:
        try:
            nbytes = buffer_bytes(str(alloc.results[0].type))
        except CompileError as error:
            raise PassError(f"allocs-to-workspace: {error}") from error
        with ir.InsertionPoint(alloc), alloc.location:
            offset = ir.Operation.create(
                "arith.constant", [index], attributes={"value": ir.IntegerAttr.get(index, total)}
            )
            view = ir.Operation.create("memref.view", [alloc.results[0].type], [arguments[-1], offset.result])
        alloc.results[0].replace_all_uses_with(view.result)
        alloc.erase()
        total += -(-nbytes // ALIGNMENT) * ALIGNMENT
    function.attributes[BYTES_NEEDED] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), total)
