"""The one place that lists what runs: the tensor-level passes of every front end and target, and the named pipelines of
mlirfuse-opt that go on from there to linalg, to scheduled kernels, to PTX, to LLVM IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlirfuse.core import config
from mlirfuse.core.device_properties import DeviceProperties, HostProperties
from mlirfuse.core.errors import MlirfuseError, UnsupportedError, located
from mlirfuse.core.pipeline_text import PipelineError, items_of
from mlirfuse.ir.graph import Graph, Op
from mlirfuse.lowering import devices, llvm, ptx
from mlirfuse.passes.base import PIPELINES, options, register_pipeline, run_pipeline
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.program import Schedules, decide


def to_segments(
    properties: HostProperties | DeviceProperties,
    single_op: bool = True,
    horizontal: bool = True,
    max_args: int = 128,
    foreach: bool = False,
) -> str:
    """The tensor-level passes from a front end's graph to groups and segments: what `jit`, `FusionDefinition` and the
    torch back end run, and what `fusion-to-segments` stands for. ``foreach``: equal segments are launched together,
    which the torch back end asks for, whose graphs a host program runs anyway, and views of what is accumulated stay
    outside of kernels."""
    return ",".join(
        [
            "fusion-remove-inplace",
            "fusion-carry-in-place",
            *(["fusion-write-windows"] if isinstance(properties, HostProperties) else []),
            "fusion-decompose",
            "fusion-reverse-scans",
            "fusion-topk",
            "fusion-reduce-broadcasts",
            "fusion-cse",
            *([] if isinstance(properties, HostProperties) else ["fusion-add-at-once"]),
            "fusion-dce",
            *(["fusion-scale-products"] if isinstance(properties, HostProperties) else []),
            _group(single_op, horizontal, max_args, foreach),
            "fusion-recompose",
            f"fusion-compute-again{{max-args={max_args}}}",
            "fusion-sigmoid",
            *_of_device(properties),
            _segment(properties),
            "fusion-overlap-collectives",
            *(["fusion-foreach"] if foreach else []),
        ]
    )


def _group(single_op: bool, horizontal: bool, max_args: int, views: bool = False) -> str:
    on = f"single-op={str(single_op).lower()} horizontal={str(horizontal).lower()}"
    return f"fusion-group{{{on} max-args={max_args}{' views=true' * views}}}"


def _segment(properties: HostProperties | DeviceProperties) -> str:
    if isinstance(properties, HostProperties):
        return f"fusion-segment{{repeated={heuristics_of(properties).tasks.repeated}}}"
    return "fusion-segment"


def _of_device(properties: HostProperties | DeviceProperties) -> list[str]:
    """What a target's kernels need beside the common passes."""
    if isinstance(properties, HostProperties):
        return ["fusion-dce"]
    return [
        "fusion-one-pass-variance",
        "fusion-flatten-stacks",
        "fusion-dce",
        f"fusion-inner-outer{{parts={2 * properties.sm_count}}}",
    ]


def to_real_tensors() -> str:
    """What `FusionDefinition` runs first where tensors are complex or floats of a byte: no kernel computes with
    those."""
    return "fusion-decompose,fusion-split-complex,fusion-narrow-floats"


def lower_to_segments(
    graph: Graph,
    properties: HostProperties | DeviceProperties,
    after: Callable[[Any, Any, float], None] | None = None,
    schedules: Schedules = None,
    max_args: int | None = None,
    foreach: bool = False,
) -> Graph:
    """Runs the tensor-level passes for ``properties`` on a front end's graph, in place; ``after`` as for
    :func:`run_pipeline`; ``schedules``: what is decided about some segments, as for ``jit``; ``max_args`` as the
    switch, where it is given; ``foreach`` as for :func:`to_segments`. Raises :class:`UnsupportedError` where a kernel
    would have to compute with complex numbers."""
    _refuse_complex(graph)
    passes = to_segments(properties, config.single_op, config.horizontal, max_args or config.max_args, foreach)
    created = run_pipeline([graph], passes, after).graphs[0]
    decide(created, schedules or {})
    return created


def complex_kernels(graph: Graph) -> list[Op]:
    """The ops that would make kernels compute with complex numbers. Views and library ops need no kernel."""
    return [
        op
        for op in graph.ops
        if not op.row.view
        and op.row.kind != "library"
        and any(v.dtype is not None and v.dtype.kind == "c" for v in (*op.operands, *op.results))
    ]


def _refuse_complex(graph: Graph) -> None:
    found = complex_kernels(graph)
    if found:  # not a number that it is used with
        op = next((op for op in found if op.row.kind != "create"), found[0])
        problem = f"{op.name} of complex numbers is not compiled"
        remedy = "compute with arrays of the real and the imaginary parts"
        raise UnsupportedError(located(f"{problem}: {remedy}", op.loc))


def users_of(name: str) -> list[str]:
    """The named pipelines that run the pass ``name``, for a CPU or a GPU; none: it is for pipeline strings of one's
    own."""
    found = []
    for pipeline in PIPELINES.values():
        serialized = [pipeline.build()]
        if any(option.name == "target" for option in options(pipeline)):
            serialized.append(pipeline.build(target="cuda:sm_90"))
        if any(option.name == "foreach" for option in options(pipeline)):
            serialized.append(pipeline.build(foreach=True))
        if any(item.name == name for text in serialized for item in items_of(text)):
            found.append(pipeline.name)
    return sorted(found)


# ---- by name, for mlirfuse-opt


@register_pipeline("fusion-to-segments")
def fusion_to_segments(target: str = "cpu", foreach: bool = False) -> str:
    """The tensor-level passes that every front end runs for a target: a function's groups and segments. ``foreach``:
    equal segments are launched together, as in graphs of torch."""
    try:
        return to_segments(devices.named(target), foreach=foreach)
    except MlirfuseError as error:
        raise PipelineError(str(error)) from error


@register_pipeline("fusion-to-real-tensors")
def fusion_to_real_tensors() -> str:
    """What `FusionDefinition` runs before fusion-to-segments where tensors are complex or floats of a byte."""
    return to_real_tensors()


@register_pipeline("linalg-to-buffers")
def linalg_to_buffers() -> str:
    """Functions of tensors in linalg inlined into the entry, and their tensors as buffers, by MLIR's own
    bufferization."""
    return "inline,symbol-dce,canonicalize,one-shot-bufferize{bufferize-function-boundaries=true},copies-to-linalg"


@register_pipeline("loops-to-llvm")
def loops_to_llvm() -> str:
    """Loops over elements of buffers to the LLVM dialect, by MLIR's own conversions."""
    return (
        "expand-strided-metadata,lower-affine,arith-expand{include-bf16=true},convert-scf-to-cf,"
        "finalize-memref-to-llvm,convert-math-to-llvm,convert-index-to-llvm,convert-arith-to-llvm,convert-func-to-llvm,"
        "convert-cf-to-llvm,reconcile-unrealized-casts"
    )


@register_pipeline("parallel-loops-to-kernels")
def parallel_loops_to_kernels() -> str:
    """Parallel loops of one dimension to kernels of 128 threads a block, by MLIR's own passes, in one module."""
    return (
        "func.func(scf-parallel-loop-tiling{parallel-loop-tile-sizes=128 no-min-max-bounds=true},"
        "gpu-map-parallel-loops),convert-parallel-loops-to-gpu,lower-affine,canonicalize,gpu-launch-sink-index-computations,"
        "gpu-kernel-outlining,merge-gpu-modules,canonicalize"
    )


@register_pipeline("kernels-to-nvvm")
def kernels_to_nvvm() -> str:
    """Kernels on buffers to the LLVM and NVVM dialects, a buffer as its pointer, by MLIR's own conversions."""
    return (
        "gpu.module(expand-strided-metadata,lower-affine,arith-expand{include-bf16=true},convert-scf-to-cf,"
        "convert-math-to-llvm,convert-gpu-to-nvvm{use-bare-ptr-memref-call-conv=true},convert-index-to-llvm,"
        "convert-arith-to-llvm,reconcile-unrealized-casts)"
    )


@register_pipeline("linalg-to-llvm")
def linalg_to_llvm() -> str:
    """Functions of tensors in linalg to the LLVM dialect for a CPU, by MLIR's own passes: what `jit(fn,
    lowering="linalg")` runs behind convert-fusion-to-linalg."""
    return f"{linalg_to_buffers()},allocs-to-workspace,convert-linalg-to-loops,{loops_to_llvm()}"


@register_pipeline("linalg-to-ptx")
def linalg_to_ptx(chip: str = "sm_90") -> str:
    """As linalg-to-llvm for an NVIDIA architecture: a kernel for each loop nest, 128 threads a block, an element a
    thread; the kernels as a ``gpu.binary`` of PTX."""
    return (
        f"{linalg_to_buffers()},allocs-to-workspace,convert-linalg-to-parallel-loops,fold-memref-alias-ops,"
        f"flatten-parallel-loops,{parallel_loops_to_kernels()},{ptx.attach_target(chip)},{kernels_to_nvvm()},"
        "gpu-module-to-binary{format=isa}"
    )


@register_pipeline("fusion-graph-fuser")
def fusion_graph_fuser(single_op: bool = False, horizontal: bool = True, max_args: int = 128) -> str:
    """What a graph fuser for programs with control flow does, in its order: writes in place go, composite ops are taken
    apart, chunks move above their producers, groups form (in nested blocks too), what was taken apart for nothing is
    put back, sizes come from expressions, groups stand behind guards with their fallbacks, outputs that are asked for
    size or type only go, views of views read the first source, views at the edges of groups leave them; then what has
    become equal or unused goes, and groups are cut into kernels.

    ``jit`` runs neither guards, as a kind of call is chosen before it, nor the passes on chunks, outputs and views: its
    scheduler sees through them."""
    group = _group(single_op, horizontal, max_args)
    return (
        f"fusion-remove-inplace,fusion-decompose,fusion-move-chunks,{group},fusion-recompose,"
        "fusion-shapes{annotate=false},fusion-guard,fusion-prune-outputs,fusion-separate-views,fusion-strip-views,"
        "fusion-cse,fusion-dce,fusion-segment"
    )


@register_pipeline("fusion-to-linalg")
def fusion_to_linalg() -> str:
    """A function to linalg on tensors: fusion-to-segments, then convert-fusion-to-linalg."""
    return f"{fusion_to_segments()},convert-fusion-to-linalg"


@register_pipeline("fusion-to-tiled")
def fusion_to_tiled(target: str = "cpu", sizes: str = "") -> str:
    """A function to the kernels that the schedulers write for these sizes: fusion-to-segments, then fusion-schedule."""
    return f"{fusion_to_segments(target)},fusion-schedule{{target={target} sizes={sizes}}}"


@register_pipeline("fusion-to-host")
def fusion_to_host(target: str = "cpu") -> str:
    """A function to what the host does between launches: fusion-to-segments, then convert-fusion-to-host."""
    return f"{fusion_to_segments(target)},convert-fusion-to-host"


@register_pipeline("fusion-to-nvvm")
def fusion_to_nvvm(chip: str = "sm_90", sizes: str = "") -> str:
    """A function to kernels in the NVVM dialect for an NVIDIA architecture; ``sizes`` as for fusion-schedule."""
    return f"{fusion_to_tiled(f'cuda:{chip}', sizes)},map-forall-to-ids,{ptx.to_gpu_passes(chip)},{ptx.TO_NVVM}"


@register_pipeline("fusion-to-ptx")
def fusion_to_ptx(chip: str = "sm_90", sizes: str = "") -> str:
    """A function all the way to PTX for an NVIDIA architecture, on a machine with or without a GPU; ``sizes`` as for
    fusion-schedule."""
    return f"{fusion_to_nvvm(chip, sizes)},emit-ptx"


@register_pipeline("fusion-to-llvm")
def fusion_to_llvm(sizes: str = "") -> str:
    """A function all the way to LLVM IR for this machine's processor, its host function included; ``sizes`` as for
    fusion-schedule."""
    inside = llvm.PIPELINE.removeprefix("builtin.module(").removesuffix(")")
    return f"{fusion_to_segments()},fusion-schedule{{sizes={sizes} host=true}},{inside},emit-llvm-ir"
