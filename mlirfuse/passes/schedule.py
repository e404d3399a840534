"""fusion-schedule: generate kernels by a target's schedulers."""

from __future__ import annotations

from dataclasses import replace

from mlirfuse.core import mlir
from mlirfuse.dialects import fusion
from mlirfuse.passes.base import IR, Pass, PassError, register
from mlirfuse.passes.choose import choose, programs_of


@register
class Schedule(Pass):
    """Generates the kernels of a segmented function by a target's schedulers, for one set of sizes: ``func.func``
    kernels of ``scf`` loops and vectors for the CPU, ``gpu.func`` kernels for ``cuda:sm_90`` and others.

    The schedule is the ``schedule`` of each segment; where it is missing or incomplete, it is chosen first, as by
    `fusion-choose` with the same options. ``host`` adds the function that launches the kernels.

    For a function with control flow, guards or extern ops, the pass generates the kernels of all of its kernel
    programs, those in loops and branches too; the host function of a program is ``launch0``. The host program calls
    these, and runs branches and loops: see convert-fusion-to-host.

    Before::

        func.func @f(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?xf32> {
          %0 = "fusion.group"(%x) ({ … "fusion.segment" … })
          return %0

    After::

        gpu.module @kernels {
          gpu.func @mlirfuse_reduction0(%p0: !llvm.ptr<1>, %p1: !llvm.ptr<1>, %p2: i32) kernel attributes {…} {
            …
    """

    name = "fusion-schedule"
    target: str = "cpu"
    sizes: str = ""
    host: bool = False

    def run_on_ir(self, ir: IR) -> None:
        graphs = ir.graphs
        if len(graphs) != 1:
            raise PassError(
                f"fusion-schedule takes a module of one function; this one has {len(graphs)}: separate them for "
                "--split-input-file"
            )
        programs, env = programs_of(graphs[0], self.name, self.target, self.sizes)
        modules = []
        for program, _, number in programs:
            slots = program.slots()
            module = program.target.write(program, choose(program, env), slots)
            if number:
                host = program.target.host(module.kernels, slots, f"launch{number}")  # type: ignore[arg-type]
                module = replace(module, host=host)
            modules.append(module)
        if not modules:
            raise PassError("fusion-schedule: this function has no kernels: all of its ops run through the framework")
        kernels = tuple(kernel for module in modules for kernel in module.kernels)
        module = replace(modules[0], kernels=kernels, host="\n".join(module.host for module in modules))
        with fusion.context():
            ir.module = mlir.ir.Module.parse(module.text() if self.host else module.tiled())
