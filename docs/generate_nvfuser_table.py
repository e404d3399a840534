"""Writes docs/nvfuser/api.md: what of nvFuser's Python API there is, from the code, and what there is not, with the
reason.

Run it from the repository: ``python docs/generate_nvfuser_table.py``; with ``--check`` it only says whether the page is
up to date.
"""

from __future__ import annotations

import inspect
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from pages import wrapped, write_or_check

from mlirfuse import nvfuser
from mlirfuse.frontend.nvfuser.ops import operators as definition_ops
from mlirfuse.ir import ops as table

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvfuser", "api.md")

# nvFuser's operations, by its own groups (python/python_direct/ops.cpp and csrc/python_frontend/python_bindings.cpp).
OPERATIONS = {
    "Unary": "abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf erfc erfcinv erfinv exp exp2 expm1 "
    "floor frac imag isfinite "
    "isinf isnan isneginf isposinf isreal lgamma log log10 log1p log2 logical_not neg rand_like randn_like real "
    "reciprocal relu round rsqrt "
    "segment_set set sigmoid sign signbit silu sin sinh sqrt tan tanh trunc",
    "Binary": "add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor ceilDiv complex "
    "div eq fmod gcd ge gt le "
    "logical_and logical_or logical_right_shift lt maximum minimum mod mul ne nextafter pow remainder sub truediv",
    "Ternary and with alpha": "add_alpha addcmul clamp lerp rsub sub_alpha threshold where",
    "Reductions": "max min prod sum var var_mean welford",
    "Shapes": "at broadcast broadcast_in_dim cat expand pad permute reshape shape size slice squeeze stride_order "
    "tensor_sizes view",
    "Creation and casts": "cast full iota normal uniform",
    "Indexing": "embedding_fwd gather index_put_accumulate index_select scatter select take_along_axis triu",
    "Scans and sorting": "argsort cummax cummin cumprod cumsum topk",
    "Products and attention": "grouped_mm linear matmul scaled_grouped_mm scaled_mm sdpfa_bwd sdpfa_fwd",
    "Normalizations": "batch_norm",
    "Block quantization": "nv_block_quantize preprocess_grouped_matmul_input_sf",
}

NOT_THERE = {
    "nv_block_quantize": "float4 and block-scaled types are not supported",
    "preprocess_grouped_matmul_input_sf": "as nv_block_quantize",
}

DEFINITION = (
    "add_output define_constant define_null_tensor define_scalar define_tensor define_vector definition execute "
    "from_pytorch fusion fusion_ir id "
    "last_repro_script lower ops repro_script_for validate getReproString"
)
DEFINITION_NOT_THERE = {
    "clone": "make the definition again: equal ones share what is compiled",
    "cuda_code_for": 'kernels are MLIR and PTX: `fd.lower(inputs).as_text("ptx")`, and every level above it',
    "debug_output": "nothing is captured: `fd.lower(inputs).as_text(level)` prints",
    "fec": "there is no separate executor cache object; `fd` and `fd.fusion` execute",
    "last_cuda_code": "as cuda_code_for",
    "last_scheduled_fusion_ir": "as cuda_code_for",
    "manual_execute, schedule, sched": "raise an error that says what there is instead: `FusionDefinition(schedule={0: {…}})`",
    "multidevice_schedule": "one device a call; [torch's ways](../torch/distributed.md)",
    "profile": "`with PythonProfiler() as prof`",
    "scheduled_fusion_ir_for": "as cuda_code_for",
    "segment": "segments are regions of the printed program, "
    '`fd.lower(inputs).as_text("segmented")`, not definitions of their own',
}
MODULE = (
    "DataType Fusion FusionCache FusionDefinition LRUCache PythonProfiler TensorView compute_contiguity compute_tensor_descriptor "
    "pytorch_utils version"
)
MODULE_NOT_THERE = {
    "Communicator, DeviceMesh, Sharding, …": "one device a call; [torch's ways](../torch/distributed.md)",
    "FusionExecutorCache, KernelExecutor": "definitions of equal content share their compiled form by themselves",
    "ParallelType, SchedulerType, LoadStoreOpType, …": "they serve schedules written by hand on nvFuser's IR",
    "enable_automatic_serialization, serialize": "compiled code is kept on disk by itself",
    "schedule": "as FusionDefinition.schedule",
}
DTYPES_NOT_THERE = "Float4_e2m1fn Float4_e2m1fn_x2 Float8_e8m0fnu"


def _signature(name: str) -> str:
    function = getattr(definition_ops.Operators, name)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return "(" + ", ".join(str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters) + ")"


def _first_sentence(function) -> str:
    text = " ".join(inspect.getdoc(function).split("\n\n")[0].split())
    return text.replace("``", "`").replace("|", "\\|").removesuffix("::")


_FUSED = {"elementwise", "reduce", "scan", "accumulate", "shape", "index", "create", "random", "composite"}


CALLED = ["embedding_bwd", "grouped_mm", "scaled_grouped_mm", "scaled_mm", "sdpfa_bwd", "sdpfa_fwd"]


def _runs(name: str) -> str:
    """Where an operation runs: fused into kernels, or as a library's."""
    rows = [row for row in table.TABLE.values() if name in row.nvfuser]
    if name in CALLED or any(row.kind not in _FUSED for row in rows):
        return "library"
    return "fused"


def page() -> str:
    there = set(definition_ops.names())
    named = {n for group in OPERATIONS.values() for n in group.split()}
    problem = [n for n in named if n not in there and n not in NOT_THERE] + [n for n in NOT_THERE if n in there]
    if problem:
        raise SystemExit(f"say in NOT_THERE why these are not there (or that they are): {', '.join(sorted(problem))}")
    lines = [
        "# nvFuser's API in mlirfuse",
        "",
        "Generated by docs/generate_nvfuser_table.py from the code: do not edit.",
        "",
        "What of nvFuser's Python API there is, and what there is not, with the reason. [Coming from "
        "nvFuser](migrating.md) has a script before and after.",
        "",
        "In the tables, **fused** operations become parts of kernels. **Library** operations run by the arrays' own "
        "framework, between kernels. All promote types as nvFuser does.",
        "",
    ]
    for group, names in OPERATIONS.items():
        lines += [f"## {group}", "", "| `fd.ops.` | runs | what it is |", "| --- | --- | --- |"]
        for name in names.split():
            if name in there:
                function = getattr(definition_ops.Operators, name)
                lines.append(f"| `{name}{_signature(name)}` | {_runs(name)} | {_first_sentence(function)} |")
            else:
                lines.append(f"| `{name}` | no | {NOT_THERE[name]} |")
        lines.append("")
    lines += ["## Beyond nvFuser's Python API", "", "| `fd.ops.` | runs | what it is |", "| --- | --- | --- |"]
    for name in sorted(there - named):
        function = getattr(definition_ops.Operators, name)
        lines.append(f"| `{name}{_signature(name)}` | {_runs(name)} | {_first_sentence(function)} |")
    lines += ["", "## FusionDefinition", "", "| name | |", "| --- | --- |"]
    for name in DEFINITION.split():
        member = inspect.getattr_static(nvfuser.FusionDefinition, name, None)
        member = member.fget if isinstance(member, property) else member
        lines.append(f"| `{name}` | {_first_sentence(member) if member is not None else 'the operations above'} |")
    lines += [f"| `{name}` | no: {why} |" for name, why in DEFINITION_NOT_THERE.items()]
    lines += ["", "## The module", "", "| name | |", "| --- | --- |"]
    for name in MODULE.split():
        lines.append(f"| `{name}` | {_first_sentence(getattr(nvfuser, name))} |")
    lines += [f"| `{name}` | no: {why} |" for name, why in MODULE_NOT_THERE.items()]
    missing = DTYPES_NOT_THERE.split()
    kept = [t.name for t in nvfuser.DataType if t.name not in missing]
    lines += ["", "## DataType", "", f"There are {', '.join(f'`{n}`' for n in kept)}.", ""]
    lines += [f"Named, but not supported: {', '.join(f'`{n}`' for n in missing)}.", ""]
    return wrapped("\n".join(lines))


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), "generate_nvfuser_table.py"))
