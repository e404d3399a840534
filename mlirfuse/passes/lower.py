"""Passes and pipelines below the tensor level: to linalg, to scheduled kernels, to PTX and LLVM IR."""

from __future__ import annotations

from mlirfuse import sizes as sz
from mlirfuse.errors import MlirfuseError
from mlirfuse.graph import Graph
from mlirfuse.passes.base import IR, Pass, PassError, register, register_pipeline


@register
class ConvertFusionToLinalg(Pass):
    """Spells what each segment computes in ``linalg`` on tensors, a function for each segment: chains of elementwise ops and reductions as
    ``linalg.generic``, other shape ops as ops of ``tensor``. Ops outside of segments are converted in place; library ops become calls of
    declared functions. The result is for other back ends, and can be checked: MLIR's own passes lower it to loops that run. The
    schedulers of this project do not start from it; they read the segment itself (fusion-schedule).

    Before::

        %0 = "fusion.segment"(%x, %w) ({
        ^bb0(%a: tensor<?x?xf32>, %b: tensor<1x?xf32>):
          %1 = "fusion.add"(%a, %b)
          %2 = "fusion.sum"(%1) {axes = [1]}
          "fusion.yield"(%2)
        })

    After::

        %0 = call @f_segment0(%x, %w, %s0)

        func.func private @f_segment0(%a: tensor<?x?xf32>, %b: tensor<1x?xf32>, %s0: index) -> tensor<?xf32> {
          %e = tensor.empty(%s0)
          %f = linalg.fill ins(%zero) outs(%e)
          %r = linalg.generic {iterator_types = ["parallel", "reduction"], …} ins(%a, %b) outs(%f) {
          ^bb0(%i: f32, %j: f32, %acc: f32):
            %1 = arith.addf %i, %j
            %2 = arith.addf %acc, %1
            linalg.yield %2
          }
          return %r
    """

    name = "convert-fusion-to-linalg"

    def run_on_ir(self, ir: IR) -> None:
        from mlirfuse.lowering.linalg import to_linalg

        graphs = ir.graphs
        ir.module = to_linalg(graphs, ir._kept)


@register
class Schedule(Pass):
    """Lets the schedulers of a target write the kernels of a segmented function, for one set of sizes: ``func.func`` kernels of ``scf``
    loops and vectors for the CPU, ``gpu.func`` kernels for ``cuda:sm_90`` and others.

    ``target`` is spelled as for ``jit``. ``sizes`` gives the sizes that parameters are chosen for, by symbol: ``sizes=s0:1024,s1:770``. Those that
    it leaves out are 1024 for the innermost dimension of an argument, 256 for the next one, 8 for the others; strides that are symbols
    are those of rows without gaps. Alignment is what ``fusion.align`` states; an argument that states nothing about its layout is
    contiguous and 256-byte aligned. ``host`` adds the function that launches the kernels.

    Before::

        func.func @f(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?xf32> {
          %0 = "fusion.group"(%x) ({ … "fusion.segment" … })
          return %0

    After::

        gpu.module @kernels {
          gpu.func @kernel0(%p0: !llvm.ptr<1>, %p1: !llvm.ptr<1>, %p2: i32) kernel attributes {…} {
            …
    """

    name = "fusion-schedule"
    target: str = "cpu"
    sizes: str = ""
    host: bool = False

    def run_on_ir(self, ir: IR) -> None:
        from mlirfuse import mlir, targets

        graphs = ir.graphs
        if len(graphs) != 1:
            raise PassError(f"fusion-schedule takes a module of one function; this one has {len(graphs)}: give each a part of its own, --split-input-file")
        (graph,) = graphs
        for op in graph.ops:
            if op.segment is None:
                raise PassError(f"fusion-schedule: {op.name} is in no segment: library ops are called between programs of kernels", op.loc)
        env = example_sizes(graph, parse_sizes(self.sizes))
        text = code_text(graph, targets.of(self.target), env, self.host)
        with mlir.context():
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
    unknown = set(given) - set(env) - {s for layout in graph.layouts if layout for n in layout.strides for s in sz.symbols(n)}
    if unknown:
        raise PassError(f"sizes: the function has no symbol '{sorted(unknown)[0]}'; it has {', '.join(sorted(env)) or 'none'}")
    env |= given
    for value, layout in zip(graph.args, graph.layouts):
        running = 1
        for n, stride in zip(reversed(value.shape), reversed(layout.strides if layout else ())):
            for symbol in sorted(sz.symbols(stride)):
                env.setdefault(symbol, running)
            running *= sz.substitute(n, env)
    return env


def code_text(graph: Graph, target, env: dict[str, int], host: bool) -> str:
    """The module that the schedulers of ``target`` write for ``graph`` and these sizes; with ``host``, the function that launches too."""
    from mlirfuse.program import Program
    from mlirfuse.targets import whole

    program = Program(graph, target, env)
    alignments = {v: layout.align for v, layout in zip(graph.args, graph.layouts) if layout is not None}
    slots = program.slots()
    kernels, text = target.kernels(program, program.parameters(env, alignments), slots)
    return whole(text, target.host(kernels, slots)) if host else text


@register
class EmitPtx(Pass):
    """Turns the kernels of a module, in the LLVM and NVVM dialects and with a target attached, into PTX. Nothing can come after it.

    Before::

        gpu.module @kernels [#nvvm.target<chip = "sm_90">] {
          llvm.func @kernel0(%p: !llvm.ptr<1>) attributes {nvvm.kernel} { … }
        }

    After::

        .version 8.0
        .target sm_90
        .visible .entry kernel0( …
    """

    name = "emit-ptx"
    generates_code = True

    def run_on_ir(self, ir: IR) -> None:
        from mlirfuse.lowering import ptx

        ir.emit("PTX", ptx.assemble(ir.module))


@register
class EmitLlvmIr(Pass):
    """Turns a module in the LLVM dialect into LLVM IR. Nothing can come after it.

    Before::

        llvm.func @kernel0(%begin: i64, %end: i64, %ctx: !llvm.ptr) { … }

    After::

        define void @kernel0(i64 %0, i64 %1, ptr %2) { …
    """

    name = "emit-llvm-ir"
    generates_code = True

    def run_on_ir(self, ir: IR) -> None:
        from mlirfuse.lowering import llvm

        ir.emit("LLVM IR", llvm.translate(ir.module))


# ---------------------------------------------------------------------------------------------------------------- pipelines


def _target(name: str):
    from mlirfuse import targets
    from mlirfuse.passes.base import PipelineError

    try:
        return targets.of(name)
    except MlirfuseError as error:
        raise PipelineError(str(error)) from error


@register_pipeline("fusion-to-segments")
def fusion_to_segments(target: str = "cpu") -> str:
    """The tensor-level passes of ``jit`` for a target: a function's groups and segments."""
    common = "fusion-remove-inplace,fusion-decompose,fusion-cse,fusion-dce,fusion-group{single-op=true horizontal=true}"
    return f"{common}{_target(target).passes},fusion-segment"


@register_pipeline("fusion-to-linalg")
def fusion_to_linalg() -> str:
    """A function to linalg on tensors: fusion-to-segments, then convert-fusion-to-linalg."""
    return f"{fusion_to_segments()},convert-fusion-to-linalg"


@register_pipeline("fusion-to-tiled")
def fusion_to_tiled(target: str = "cpu", sizes: str = "") -> str:
    """A function to the kernels that the schedulers write for these sizes: fusion-to-segments, then fusion-schedule."""
    return f"{fusion_to_segments(target)},fusion-schedule{{target={target} sizes={sizes}}}"


@register_pipeline("fusion-to-nvvm")
def fusion_to_nvvm(chip: str = "sm_90", sizes: str = "") -> str:
    """A function to kernels in the NVVM dialect for an NVIDIA architecture; ``sizes`` as for fusion-schedule."""
    from mlirfuse.lowering import ptx

    return f"{fusion_to_tiled(f'cuda:{chip}', sizes)},{ptx.to_gpu_passes(chip)},{ptx.TO_NVVM}"


@register_pipeline("fusion-to-ptx")
def fusion_to_ptx(chip: str = "sm_90", sizes: str = "") -> str:
    """A function all the way to PTX for an NVIDIA architecture, on a machine with or without a GPU; ``sizes`` as for fusion-schedule."""
    return f"{fusion_to_nvvm(chip, sizes)},emit-ptx"


@register_pipeline("fusion-to-llvm")
def fusion_to_llvm(sizes: str = "") -> str:
    """A function all the way to LLVM IR for this machine's processor, its host function included; ``sizes`` as for fusion-schedule."""
    from mlirfuse.lowering import llvm

    inside = llvm.PIPELINE.removeprefix("builtin.module(").removesuffix(")")
    return f"{fusion_to_segments()},fusion-schedule{{sizes={sizes} host=true}},{inside},emit-llvm-ir"
