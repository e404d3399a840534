"""merge-gpu-modules: move a program's kernels into one module."""

from __future__ import annotations

from mlirfuse.core import mlir
from mlirfuse.passes.base import Pass, register


@register
class MergeGpuModules(Pass):
    """Moves the kernels of all ``gpu.module`` ops into the first one, each under its module's name, so that the driver
    loads one module.

    Before::

        gpu.launch_func @entry_kernel::@entry_kernel …
        gpu.launch_func @entry_kernel_0::@entry_kernel …
        gpu.module @entry_kernel { gpu.func @entry_kernel … }
        gpu.module @entry_kernel_0 { gpu.func @entry_kernel … }

    After::

        gpu.launch_func @entry_kernel::@entry_kernel …
        gpu.launch_func @entry_kernel::@entry_kernel_0 …
        gpu.module @entry_kernel { gpu.func @entry_kernel …  gpu.func @entry_kernel_0 … }
    """

    name = "merge-gpu-modules"

    def run_on_module(self, module):
        ir = mlir.ir
        with module.context:
            modules = [op.operation for op in module.body.operations if op.operation.name == "gpu.module"]
            names: dict[tuple[str, str], str] = {}
            for gpu_module in modules:
                outer = gpu_module.attributes["sym_name"].value
                kernels = [op.operation for op in gpu_module.regions[0].blocks[0].operations]
                for at, kernel in enumerate(kernels):
                    inner = kernel.attributes["sym_name"].value
                    names[outer, inner] = name = outer if len(kernels) == 1 else f"{outer}_{at}"
                    kernel.attributes["sym_name"] = ir.StringAttr.get(name)
                    if gpu_module is not modules[0]:
                        modules[0].regions[0].blocks[0].append(kernel)
            for op in [op.operation for op in mlir.walk(module) if op.operation.name == "gpu.launch_func"]:
                outer, inner = ir.SymbolRefAttr(op.attributes["kernel"]).value
                first = modules[0].attributes["sym_name"].value
                op.attributes["kernel"] = ir.SymbolRefAttr.get([first, names[outer, inner]])
            for gpu_module in modules[1:]:
                gpu_module.erase()
        return module
