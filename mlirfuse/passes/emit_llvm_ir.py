"""emit-llvm-ir: translate a module in the LLVM dialect to LLVM IR."""

from __future__ import annotations

from mlirfuse.passes.base import IR, Pass, register


@register
class EmitLlvmIr(Pass):
    """Translates a module in the LLVM dialect to LLVM IR. No pass can follow it.

    Before::

        llvm.func @mlirfuse_reduction0(%begin: i64, %end: i64, %ctx: !llvm.ptr) { … }

    After::

        define void @mlirfuse_reduction0(i64 %0, i64 %1, ptr %2) { …
    """

    name = "emit-llvm-ir"

    def run_on_ir(self, ir: IR) -> None:
        from mlirfuse.lowering import llvm

        ir.emit("LLVM IR", llvm.translate(ir.module))
