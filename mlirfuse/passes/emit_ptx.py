"""emit-ptx: kernels in the NVVM dialect as PTX."""

from __future__ import annotations

from mlirfuse.passes.base import IR, Pass, register


@register
class EmitPtx(Pass):
    """Turns the kernels of a module, in the LLVM and NVVM dialects and with a target attached, into PTX. Nothing can
    come after it.

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
