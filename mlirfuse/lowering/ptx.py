"""Lowers gpu.func to PTX, through MLIR's conversions and the NVPTX target inside the bindings."""

from __future__ import annotations

from typing import Any

from mlirfuse.core import mlir
from mlirfuse.core.errors import CompileError
from mlirfuse.lowering.mapping import loops_to_ids

TO_NVVM = (
    "gpu.module(convert-gpu-to-nvvm{index-bitwidth=32}),convert-vector-to-llvm,convert-cf-to-llvm,"
    "convert-arith-to-llvm,convert-math-to-llvm,convert-nvvm-to-llvm,reconcile-unrealized-casts"
)
PTX_VERSIONS = {
    70: 74,
    75: 74,
    80: 74,
    86: 74,
    89: 78,
    90: 81,
    100: 86,
    103: 88,
    120: 87,
    121: 88,
}  # lowest that supports the chip and cache hints; from sm_90 on also parameters of more than 4 KB


TENSOR_MAP_ALIGNMENT = "llvm.align = 64 : i64"  # the attribute by which a parameter is known to be a tensor map


def parameter_bytes(chip: str) -> int:
    """The most bytes of a kernel's parameters."""
    return 32764 if PTX_VERSIONS[int(chip.removeprefix("sm_").rstrip("af"))] >= 81 else 4096


def specific(text: str, chip: str) -> str:
    """``chip``, or the variant of it that the kernels in ``text``, MLIR or PTX, are for: those with Hopper's wgmma
    instructions run on sm_90a only."""
    return f"{chip}a" if "wgmma" in text and not chip.endswith(("a", "f")) else chip


def attach_target(chip: str) -> str:
    """The pass that attaches the target to kernels. Raises :class:`CompileError` for an unknown architecture."""
    architecture = chip.removeprefix("sm_").rstrip("af")
    if not architecture.isdigit() or int(architecture) not in PTX_VERSIONS:
        raise CompileError(f"unknown GPU architecture {chip}; known: {', '.join(f'sm_{a}' for a in PTX_VERSIONS)}")
    # O=1: with ptxas after it, kernels are as fast as with O=3, and LLVM takes a tenth less time.
    return f"nvvm-attach-target{{chip={chip} O=1 features=+ptx{PTX_VERSIONS[int(architecture)]}}}"


def to_gpu_passes(chip: str) -> str:
    """The passes that attach the target to kernels and lower their loops to branches. Raises :class:`CompileError`."""
    return f"{attach_target(chip)},convert-scf-to-cf"


def to_gpu(text: str, chip: str) -> Any:
    """The module ``text`` of gpu.modules with its target ``chip`` ("sm_90"), and loops lowered to branches."""
    passes = to_gpu_passes(specific(text, chip))
    module = mlir.parsed(loops_to_ids(text))
    mlir.run_passes(module, f"builtin.module({passes})", verify=False)  # LLVM verifies the result
    return module


def to_nvvm(text: str, chip: str) -> Any:
    """The module ``text`` of gpu.modules, with its kernels in the NVVM dialect, for ``chip`` ("sm_90")."""
    module = to_gpu(text, chip)
    mlir.run_passes(module, f"builtin.module({TO_NVVM})", verify=False)
    return module


def to_ptx(text: str, chip: str) -> str:
    """The PTX of the gpu.modules in ``text``. Raises :class:`CompileError`."""
    try:
        nvvm = to_nvvm(text, chip)
    except mlir.MLIRError as error:
        raise CompileError(f"lowering to PTX failed: {error}") from error
    return assemble(nvvm)


def assemble(module: Any) -> str:
    """The PTX of the gpu.modules of a module in the NVVM dialect. Raises :class:`CompileError` if it has ops of other
    dialects."""
    _pass_tensor_maps_by_value(module)
    try:
        mlir.run_passes(module, "builtin.module(gpu-module-to-binary{format=isa})")
    except mlir.MLIRError as error:
        raise CompileError(f"translation to PTX failed: {error}") from error
    return binary_of(module)


def _pass_tensor_maps_by_value(module: Any) -> None:
    """Have kernels take their tensor maps (:class:`mlirfuse.lowering.slots.TensorMap`) by value, as constants: TMA then
    reads them where they are, and no copy in local memory. Those are the generic pointers among the parameters.
    convert-gpu-to-nvvm drops ``llvm.byval``, and only functions of the LLVM dialect may have ``nvvm.grid_constant``."""
    for kernels in module.body.operations:
        if kernels.operation.name != "gpu.module":
            continue
        for op in kernels.operation.regions[0].blocks[0].operations:
            attributes = op.operation.attributes
            if "arg_attrs" not in attributes or TENSOR_MAP_ALIGNMENT not in (text := str(attributes["arg_attrs"])):
                continue
            given = "llvm.byval = !llvm.array<128 x i8>, nvvm.grid_constant, "
            marked = text.replace(TENSOR_MAP_ALIGNMENT, given + TENSOR_MAP_ALIGNMENT)
            attributes["arg_attrs"] = mlir.ir.Attribute.parse(marked, module.context)


def binary_of(module: Any) -> str:
    """The PTX inside the ``gpu.binary`` of ``module``."""
    for op in module.body.operations:
        if op.operation.name == "gpu.binary":
            (target,) = op.operation.attributes["objects"]
            text = mlir.gpu_object(target)
            return (text.decode() if isinstance(text, bytes) else text).rstrip("\0")
    raise CompileError("the module has no gpu.binary")
