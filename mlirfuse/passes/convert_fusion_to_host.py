"""convert-fusion-to-host: the host code between and around launches."""

from __future__ import annotations

from mlirfuse.dialects import fusion
from mlirfuse.ir.graph import Block, Graph, Op, Value, uses
from mlirfuse.lowering import host_steps as st
from mlirfuse.lowering.host_order import in_order
from mlirfuse.lowering.host_plan import plan, regions_of
from mlirfuse.passes.base import IR, Pass, register


@register
class ConvertFusionToHost(Pass):
    """Replaces the groups of a segmented function by calls of their kernel programs, one call for all groups with
    nothing between them. What remains is the host code: branches, loops, guards, extern ops and calls, views.

    ``@f_part0`` is launched by ``launch0``, which `fusion-schedule{host=true}` writes with the kernels of the program.
    The function is run by a host program (:mod:`mlirfuse.runtime.host_program`), as Python: it allocates the results of
    a kernel program, fills in pointers and sizes, and calls the launch function. It is not lowered to native code,
    because extern ops and calls need Python.

    Before::

        %0 = scf.for %i = %a to %b step %c iter_args(%v = %x) -> tensor<?xf32> {
          %1 = "fusion.group"(%v) ({ … "fusion.segment" … })
          scf.yield %1
        }

    After::

        func.func private @f_part0(tensor<?xf32>) -> tensor<?xf32>
        …
        %0 = scf.for %i = %a to %b step %c iter_args(%v = %x) -> tensor<?xf32> {
          %1 = func.call @f_part0(%v)
          scf.yield %1
        }
    """

    name = "convert-fusion-to-host"

    def run_on_ir(self, ir: IR) -> None:
        graphs = ir.graphs
        kept = list(ir.kept)
        for graph in graphs:
            kept += _convert(graph)
        ir.module = fusion.parse(fusion.to_module_text(graphs, locations=True, kept=kept))


def _convert(graph: Graph) -> list[str]:
    """Convert ``graph`` in place; return the declarations of the functions that it calls."""
    sequence = plan(graph)
    numbers = {region: at for at, region in enumerate(regions_of(sequence))}
    launched: dict[Op, st.Kernels] = {}
    for step in sequence.walk():
        if isinstance(step, st.Kernels):
            launched |= dict.fromkeys(step.ops, step)
    _replace(graph, graph.body, launched, lambda step: f"@{graph.name}_part{numbers[step.region]}")
    return [
        f"func.func private @{graph.name}_part{at}({_types(region.graph.args)}) -> ({_types(region.graph.returns)})"
        for region, at in numbers.items()
    ]


def _replace(graph: Graph, block: Block, launched: dict[Op, st.Kernels], name) -> None:
    returned = set(block.returns)
    ops: list[Op] = []
    called: set[st.Kernels] = set()
    for op in in_order(block, graph):
        for nested in op.blocks if op.name != "foreach" else ():
            _replace(graph, nested, launched, name)
        step = launched.get(op)
        if step is None:
            if op.group is None:  # else nothing reads it
                ops.append(op)
        elif step not in called:
            called.add(step)
            ops.append(Op("func.call", step.reads, {"callee": fusion.MLIRText(name(step))}, step.makes, loc=op.loc))
    used = returned | {v for op in ops for v in uses(op)}
    block.ops = [op for op in ops if not (op.row.literal and op.group is None and op.result not in used)]


def _types(values: list[Value]) -> str:
    return ", ".join(v.type for v in values)
