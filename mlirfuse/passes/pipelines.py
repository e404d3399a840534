"""All pipelines: the tensor-level passes of every front end and target, and the named pipelines of mlirfuse-opt that
continue to linalg, to scheduled kernels, to PTX, to LLVM IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlirfuse.analysis import device_costs
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
    """Return the tensor-level passes from a front end's graph to groups and segments: the passes of `jit`,
    `FusionDefinition` and the torch backend, and of `fusion-to-segments`. ``foreach``: equal segments are launched
    together, and views of a scatter-add stay outside of kernels; for the torch backend, whose graphs a host program
    runs anyway."""
    return ",".join(
        [
            "fusion-remove-inplace",
            "fusion-carry-in-place",
            *(["fusion-write-windows"] if isinstance(properties, HostProperties) else []),
            "fusion-decompose",
            "fusion-reverse-scans",
            "fusion-topk",
            "fusion-reduce-broadcasts",
            *([] if isinstance(properties, HostProperties) else ["fusion-unroll-reductions"]),
            "fusion-cse",
            "fusion-join-pads",
            "fusion-permute-slices",
            *([] if isinstance(properties, HostProperties) else ["fusion-add-at-once"]),
            "fusion-dce",
            f"fusion-extern-products{{tensor-cores={str(_tensor_cores(properties)).lower()}}}",
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


def before_products() -> str:
    """Return the passes after which it is chosen which products kernels compute."""
    return f"fusion-remove-inplace,fusion-decompose,fusion-cse,fusion-dce,{_group(True, True, 128, True)}"


def around_products() -> str:
    """Return the passes that cut what is around a product into the kernels that are priced."""
    return f"fusion-dce,{_group(True, True, 128, True)},fusion-compute-again,fusion-sigmoid,fusion-segment"


def _tensor_cores(properties: HostProperties | DeviceProperties) -> bool:
    """Whether kernels compute matrix products."""
    return isinstance(properties, DeviceProperties) and properties.tensor_cores


def _group(single_op: bool, horizontal: bool, max_args: int, views: bool = False) -> str:
    on = f"single-op={str(single_op).lower()} horizontal={str(horizontal).lower()}"
    return f"fusion-group{{{on} max-args={max_args}{' views=true' * views}}}"


def _segment(properties: HostProperties | DeviceProperties) -> str:
    if isinstance(properties, HostProperties):
        return f"fusion-segment{{repeated={heuristics_of(properties).tasks.repeated} splits=cpu}}"
    device = device_costs.nearest(properties)
    return f"fusion-segment{{prices={device} splits={device}}}"


def _of_device(properties: HostProperties | DeviceProperties) -> list[str]:
    """Return the passes for a target's kernels, besides the common ones."""
    if isinstance(properties, HostProperties):
        return ["fusion-dce"]
    return [
        "fusion-one-pass-variance",
        "fusion-flatten-stacks",
        "fusion-dce",
        f"fusion-inner-outer{{parts={2 * properties.sm_count}}}",
    ]


def to_real_tensors(saturate: bool = True) -> str:
    """Return the passes that run first where tensors are complex or float8: no kernel computes with those.
    ``saturate``: what casts to float8 do with numbers that are too large, in a `FusionDefinition` or (False) in
    NumPy."""
    return f"fusion-decompose,fusion-split-complex,fusion-narrow-floats{{saturate={str(saturate).lower()}}}"


def lower_to_segments(
    graph: Graph,
    properties: HostProperties | DeviceProperties,
    after: Callable[[Any, Any, float], None] | None = None,
    schedules: Schedules = None,
    max_args: int | None = None,
    foreach: bool = False,
) -> Graph:
    """Run the tensor-level passes for ``properties`` on a front end's graph, in place; ``after`` as for
    :func:`run_pipeline`; ``schedules``: fixed schedules of some segments, as for ``jit``; ``max_args`` as the setting,
    if given; ``foreach`` as for :func:`to_segments`. Raises :class:`UnsupportedError` where a kernel would have to
    compute with complex numbers."""
    _refuse_complex(graph)
    passes = to_segments(properties, config.single_op, config.horizontal, max_args or config.max_args, foreach)
    created = run_pipeline([graph], passes, after).graphs[0]
    decide(created, schedules or {})
    return created


def complex_kernels(graph: Graph) -> list[Op]:
    """Return the ops that would make kernels compute with complex numbers. Views and extern ops need no kernel."""
    return [
        op
        for op in graph.ops
        if not op.row.view
        and op.row.kind != "library"
        and any(v.dtype is not None and v.dtype.kind == "c" for v in (*op.operands, *op.results))
    ]


def _refuse_complex(graph: Graph) -> None:
    found = complex_kernels(graph)
    if found:  # preferably not the constant that it is used with
        op = next((op for op in found if op.row.kind != "create"), found[0])
        problem = f"{op.name} of complex numbers is not compiled"
        remedy = "compute with arrays of the real and the imaginary parts"
        raise UnsupportedError(located(f"{problem}: {remedy}", op.loc))


def users_of(name: str) -> list[str]:
    """Return the named pipelines that run the pass ``name``, for a CPU or a GPU; none for a pass that only user-defined
    pipeline strings run."""
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


# ---- named pipelines, for mlirfuse-opt


@register_pipeline("fusion-to-segments")
def fusion_to_segments(target: str = "cpu", foreach: bool = False) -> str:
    """The tensor-level passes that every front end runs for a target: they create a function's groups and segments.
    ``foreach``: equal segments are launched together, as in graphs of torch."""
    try:
        return to_segments(devices.named(target), foreach=foreach)
    except MlirfuseError as error:
        raise PipelineError(str(error)) from error


@register_pipeline("fusion-to-real-tensors")
def fusion_to_real_tensors() -> str:
    """The passes of `FusionDefinition` before fusion-to-segments where tensors are complex or float8."""
    return to_real_tensors()


@register_pipeline("linalg-to-buffers")
def linalg_to_buffers() -> str:
    """Inline functions of linalg on tensors into the entry, and bufferize them, by MLIR's own passes."""
    return "inline,symbol-dce,canonicalize,one-shot-bufferize{bufferize-function-boundaries=true},copies-to-linalg"


@register_pipeline("loops-to-llvm")
def loops_to_llvm() -> str:
    """Convert loops over elements of buffers to the LLVM dialect, by MLIR's own passes."""
    return (
        "expand-strided-metadata,lower-affine,arith-expand{include-bf16=true},convert-scf-to-cf,"
        "finalize-memref-to-llvm,convert-math-to-llvm,convert-index-to-llvm,convert-arith-to-llvm,convert-func-to-llvm,"
        "convert-cf-to-llvm,reconcile-unrealized-casts"
    )


@register_pipeline("parallel-loops-to-kernels")
def parallel_loops_to_kernels() -> str:
    """Convert one-dimensional parallel loops to kernels of 128 threads a block, by MLIR's own passes, in one module."""
    return (
        "func.func(scf-parallel-loop-tiling{parallel-loop-tile-sizes=128 no-min-max-bounds=true},"
        "gpu-map-parallel-loops),convert-parallel-loops-to-gpu,lower-affine,canonicalize,gpu-launch-sink-index-computations,"
        "gpu-kernel-outlining,merge-gpu-modules,canonicalize"
    )


@register_pipeline("kernels-to-nvvm")
def kernels_to_nvvm() -> str:
    """Convert kernels on buffers to the LLVM and NVVM dialects, a buffer as its pointer, by MLIR's own passes."""
    return (
        "gpu.module(expand-strided-metadata,lower-affine,arith-expand{include-bf16=true},convert-scf-to-cf,"
        "convert-math-to-llvm,convert-gpu-to-nvvm{use-bare-ptr-memref-call-conv=true},convert-index-to-llvm,"
        "convert-arith-to-llvm,reconcile-unrealized-casts)"
    )


@register_pipeline("linalg-to-llvm")
def linalg_to_llvm() -> str:
    """Lower functions of linalg on tensors to the LLVM dialect for a CPU, by MLIR's own passes: what `jit(fn,
    lowering="linalg")` runs after convert-fusion-to-linalg."""
    return f"{linalg_to_buffers()},allocs-to-workspace,convert-linalg-to-loops,{loops_to_llvm()}"


@register_pipeline("linalg-to-ptx")
def linalg_to_ptx(chip: str = "sm_90") -> str:
    """Like linalg-to-llvm, for an NVIDIA architecture: a kernel for each loop nest, 128 threads a block, an element per
    thread; the kernels as a ``gpu.binary`` of PTX."""
    return (
        f"{linalg_to_buffers()},allocs-to-workspace,convert-linalg-to-parallel-loops,fold-memref-alias-ops,"
        f"flatten-parallel-loops,{parallel_loops_to_kernels()},{ptx.attach_target(chip)},{kernels_to_nvvm()},"
        "gpu-module-to-binary{format=isa}"
    )


@register_pipeline("fusion-graph-fuser")
def fusion_graph_fuser(single_op: bool = False, horizontal: bool = True, max_args: int = 128) -> str:
    """A graph fuser for programs with control flow, in this order: remove in-place writes, expand composite ops, move
    splits above their producers, form groups (in nested blocks too), recompose what was expanded for nothing, take
    sizes from expressions, put groups behind guards with their fallbacks, prune outputs that are used for size or type
    only, make views of views read the first source, move views at the edges of groups out of them; then remove equal
    and unused ops, and cut groups into kernels.

    ``jit`` runs neither guards, as a specialization is chosen before its code runs, nor the passes on splits, outputs
    and views: its schedulers handle these."""
    group = _group(single_op, horizontal, max_args)
    return (
        f"fusion-remove-inplace,fusion-decompose,fusion-move-chunks,{group},fusion-recompose,"
        "fusion-shapes{annotate=false},fusion-guard,fusion-prune-outputs,fusion-separate-views,fusion-strip-views,"
        "fusion-cse,fusion-dce,fusion-segment"
    )


@register_pipeline("fusion-to-linalg")
def fusion_to_linalg() -> str:
    """Convert a function to linalg on tensors: fusion-to-segments, then convert-fusion-to-linalg."""
    return f"{fusion_to_segments()},convert-fusion-to-linalg"


@register_pipeline("fusion-to-tiled")
def fusion_to_tiled(target: str = "cpu", sizes: str = "") -> str:
    """Lower a function to the kernels that the schedulers generate for these sizes: fusion-to-segments, then
    fusion-schedule."""
    return f"{fusion_to_segments(target)},fusion-schedule{{target={target} sizes={sizes}}}"


@register_pipeline("fusion-to-host")
def fusion_to_host(target: str = "cpu") -> str:
    """Convert a function to the host code between launches: fusion-to-segments, then convert-fusion-to-host."""
    return f"{fusion_to_segments(target)},convert-fusion-to-host"


@register_pipeline("fusion-to-nvvm")
def fusion_to_nvvm(chip: str = "sm_90", sizes: str = "") -> str:
    """Lower a function to kernels in the NVVM dialect for an NVIDIA architecture; ``sizes`` as for fusion-schedule."""
    return f"{fusion_to_tiled(f'cuda:{chip}', sizes)},map-forall-to-ids,{ptx.to_gpu_passes(chip)},{ptx.TO_NVVM}"


@register_pipeline("fusion-to-ptx")
def fusion_to_ptx(chip: str = "sm_90", sizes: str = "") -> str:
    """Compile a function to PTX for an NVIDIA architecture, with or without a GPU present; ``sizes`` as for
    fusion-schedule."""
    return f"{fusion_to_nvvm(chip, sizes)},emit-ptx"


@register_pipeline("fusion-to-llvm")
def fusion_to_llvm(sizes: str = "") -> str:
    """Compile a function to LLVM IR for this computer's processor, its host function included; ``sizes`` as for
    fusion-schedule."""
    inside = llvm.PIPELINE.removeprefix("builtin.module(").removesuffix(")")
    return f"{fusion_to_segments()},fusion-schedule{{sizes={sizes} host=true}},{inside},emit-llvm-ir"
