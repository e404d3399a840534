"""fusion-schedule: the kernels that a target's schedulers write."""

from __future__ import annotations

from dataclasses import replace

from mlirfuse.core import mlir
from mlirfuse.dialects import fusion
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph, walk
from mlirfuse.lowering.host_plan import parts_of, plan
from mlirfuse.lowering.module import KernelModule
from mlirfuse.passes.base import IR, Pass, PassError, register
from mlirfuse.schedule import targets
from mlirfuse.schedule.program import SegmentedProgram
from mlirfuse.schedule.targets import Target


@register
class Schedule(Pass):
    """Lets the schedulers of a target write the kernels of a segmented function, for one set of sizes: ``func.func``
    kernels of ``scf`` loops and vectors for the CPU, ``gpu.func`` kernels for ``cuda:sm_90`` and others.

    ``target`` is spelled as for ``jit``. ``sizes`` gives the sizes that parameters are chosen for, by symbol:
    ``sizes=s0:1024,s1:770``. Those that it leaves out are 1024 for the innermost dimension of an argument, 256 for the
    next one, 8 for the others; strides that are symbols are those of rows without gaps. Alignment is what
    ``fusion.align`` states; an argument that states nothing about its layout is contiguous and 256-byte aligned.
    ``host`` adds the function that launches the kernels.

    A function with control flow, guards or library ops gives the kernels of all of its parts, in loops and branches
    too: those of a part end in ``_part0``, its host function is ``launch0``. What calls these, branches and loops is
    the host program: see convert-fusion-to-host.

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
                f"fusion-schedule takes a module of one function; this one has {len(graphs)}: give each a part of its own, --split-input-file"
            )
        (graph,) = graphs
        ops = [op for op in walk(graph.body) if op.row.kind != "foreign"]
        loose = next(
            (op for op in ops if op.segment is None and (op.group is not None or op.row.kind != "library")), None
        )
        if loose is not None and (loose.group is not None or all(op.segment is None for op in ops)):
            raise PassError(f"fusion-schedule: {loose.name} is in no segment: run fusion-to-segments first", loose.loc)
        env = example_sizes(graph, parse_sizes(self.sizes))
        text = code_text(graph, targets.of(self.target), env, self.host)
        with fusion.context():
            ir.module = mlir.ir.Module.parse(text)


def parse_sizes(text: str) -> dict[str, int]:
    """``s0:1024,s1:770`` as a dict. Raises :class:`PassError`."""
    out = {}
    for piece in filter(None, text.split(",")):
        name, _, number = piece.partition(":")
        if not name or not number.isdigit() or int(number) < 1:
            raise PassError(f"sizes: '{piece}' is no NAME:NUMBER with a positive number; such as sizes=s0:1024,s1:770")
        out[name] = int(number)
    return out


def example_sizes(graph: Graph, given: dict[str, int]) -> dict[str, int]:
    """A value for each size symbol of ``graph``: the ``given`` one, or what :class:`Schedule` says."""
    env = {}
    for value in graph.args:
        for inner, n in enumerate(reversed(value.shape)):
            for symbol in sorted(sz.symbols(n)):
                env.setdefault(symbol, (1024, 256)[inner] if inner < 2 else 8)
    unknown = (
        set(given) - set(env) - {s for layout in graph.layouts if layout for n in layout.strides for s in sz.symbols(n)}
    )
    if unknown:
        raise PassError(
            f"sizes: the function has no symbol '{sorted(unknown)[0]}'; it has {', '.join(sorted(env)) or 'none'}"
        )
    env |= given
    for value, layout in zip(graph.args, graph.layouts):
        running = 1
        for n, stride in zip(reversed(value.shape), reversed(layout.strides if layout else ())):
            for symbol in sorted(sz.symbols(stride)):
                env.setdefault(symbol, running)
            running *= sz.substitute(n, env)
    return env


def code_text(graph: Graph, target: Target, env: dict[str, int], host: bool) -> str:
    """The module that the schedulers of ``target`` write for ``graph`` and these sizes; with ``host``, the functions
    that launch too."""
    if all(op.segment is not None for op in graph.ops):
        module = _written(SegmentedProgram(graph, target, env), target, env)
    else:
        modules = []
        for at, part in enumerate(parts_of(plan(graph))):
            for symbol in part.symbols:
                env.setdefault(symbol, 256)  # told by a value as the program runs
            program = SegmentedProgram(part.graph, target, {s: env[s] for s in part.symbols}, part.axes)
            for step in program.steps:
                step.name += f"_part{at}"
            modules.append(_written(program, target, env, f"launch{at}"))
        kernels = tuple(kernel for module in modules for kernel in module.kernels)
        module = KernelModule(kernels, target.name != "cpu", "\n".join(module.host for module in modules))
    return module.text() if host else module.tiled()


def _written(program: SegmentedProgram, target: Target, env: dict[str, int], launch: str = "launch") -> KernelModule:
    graph = program.graph
    alignments = {v: layout.align for v, layout in zip(graph.args, graph.layouts) if layout is not None}
    params = target.parameters(program, env, program.aligned(alignments))
    slots = program.slots()
    module = target.write(program, params, slots)
    return module if launch == "launch" else replace(module, host=target.host(module.kernels, slots, launch))
