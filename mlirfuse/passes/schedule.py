"""fusion-schedule: the kernels that a target's schedulers write."""

from __future__ import annotations

from dataclasses import replace

from mlirfuse.core import mlir
from mlirfuse.dialects import fusion
from mlirfuse.passes.base import IR, Pass, PassError, register
from mlirfuse.passes.choose import choose, programs_of


@register
class Schedule(Pass):
    """Lets the schedulers of a target write the kernels of a segmented function, for one set of sizes: ``func.func``
    kernels of ``scf`` loops and vectors for the CPU, ``gpu.func`` kernels for ``cuda:sm_90`` and others.

    The schedule is the one that stands on each segment; where there is none, or some of it, it is chosen first, as
    `fusion-choose` does with the same options.
    ``host`` adds the function that launches the kernels.

    A function with control flow, guards or library ops gives the kernels of all of its parts, in loops and branches
    too; the host function of a part is ``launch0``. What calls these, branches and loops is the host program: see
    convert-fusion-to-host.

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
                f"fusion-schedule takes a module of one function; this one has {len(graphs)}: give each a part "
                "of its own, --split-input-file"
            )
        programs, env = programs_of(graphs[0], self.name, self.target, self.sizes)
        modules = []
        for program, _, part in programs:
            slots = program.slots()
            module = program.target.write(program, choose(program, env), slots)
            if part:
                host = program.target.host(module.kernels, slots, f"launch{part}")  # type: ignore[arg-type]  # its own
                module = replace(module, host=host)
            modules.append(module)
        if not modules:
            raise PassError("fusion-schedule writes kernels, and this function has none: its ops are the framework's")
        kernels = tuple(kernel for module in modules for kernel in module.kernels)
        module = replace(modules[0], kernels=kernels, host="\n".join(module.host for module in modules))
        with fusion.context():
            ir.module = mlir.ir.Module.parse(module.text() if self.host else module.tiled())
