"""Named pipelines: a function all the way to linalg, to scheduled kernels, to PTX, to LLVM IR."""

from __future__ import annotations

from mlirfuse.core.errors import MlirfuseError
from mlirfuse.lowering import llvm, ptx
from mlirfuse.passes.base import PipelineError, register_pipeline
from mlirfuse.schedule import targets


def _target(name: str):
    try:
        return targets.of(name)
    except MlirfuseError as error:
        raise PipelineError(str(error)) from error


@register_pipeline("fusion-to-segments")
def fusion_to_segments(target: str = "cpu") -> str:
    """The tensor-level passes of ``jit`` for a target: a function's groups and segments."""
    common = "fusion-remove-inplace,fusion-decompose,fusion-cse,fusion-dce,fusion-group{single-op=true horizontal=true}"
    return f"{common}{_target(target).passes},fusion-segment"


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
    return f"{fusion_to_tiled(f'cuda:{chip}', sizes)},{ptx.to_gpu_passes(chip)},{ptx.TO_NVVM}"


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
