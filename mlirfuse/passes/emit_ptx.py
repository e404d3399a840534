"""emit-ptx: translate kernels in the NVVM dialect to PTX."""

from __future__ import annotations

from mlirfuse.passes.base import IR, Pass, register


@register
class EmitPtx(Pass):
    """Translates the kernels of a module, in the LLVM and NVVM dialects and with a target attached, to PTX. No pass can
    follow it.

    Before::

        gpu.module @kernels [#nvvm.target<chip = "sm_90">] {
          llvm.func @mlirfuse_reduction0(%p: !llvm.ptr<1>) attributes {nvvm.kernel} { … }
        }

    After::

        .version 8.1
        .target sm_90
        .visible .entry mlirfuse_reduction0( …
    """

    name = "emit-ptx"

    def run_on_ir(self, ir: IR) -> None:
        from mlirfuse.lowering import ptx

        ir.emit("PTX", ptx.assemble(ir.module))
