"""From a pipeline's output for a program's entry to what a call runs: on a CPU a function that calls the entry, for a
GPU the kernels that the entry launches."""

from __future__ import annotations

import math
import re

from mlirfuse.core import mlir
from mlirfuse.core.errors import CompileError
from mlirfuse.lowering.host import HostLines
from mlirfuse.lowering.linalg.entry import ENTRY, WORKSPACE, Parameter
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots


def checked_entry(module, parameters: tuple[Parameter, ...]):
    """The entry of a module in the LLVM dialect. Raises :class:`CompileError` if the pipeline's output cannot be
    called."""
    left = {n for n in mlir.operation_names(module) if not n.startswith("llvm.") and n != "builtin.module"}
    if left:
        raise CompileError(f"the pipeline has to end in the LLVM dialect and leaves {', '.join(sorted(left))}")
    functions = {
        op.operation.attributes["sym_name"].value: op.operation
        for op in module.body.operations
        if op.operation.name == "llvm.func"
    }
    if ENTRY not in functions:
        raise CompileError(f"the pipeline leaves no llvm.func @{ENTRY}: it must keep the entry and its name")
    outside = [name for name, function in functions.items() if not function.regions[0].blocks]
    if outside:
        raise CompileError(
            f"the pipeline's code calls {', '.join(outside)}, which are not defined: put allocs-to-workspace and "
            "copies-to-linalg after one-shot-bufferize"
        )
    found, wanted = str(functions[ENTRY].attributes["function_type"]), _descriptors(parameters)
    if found != wanted:
        raise CompileError(f"the pipeline gives @{ENTRY} the type {found}; its caller takes {wanted}")
    return functions[ENTRY]


def _descriptors(parameters: tuple[Parameter, ...]) -> str:
    """The type of the entry in the LLVM dialect."""
    types: list[str] = []
    for p in parameters:
        rank = 1 if p.kind == "workspace" else len(p.shape)
        types += ["i64"] if p.kind == "scalar" else ["ptr", "ptr", "i64", *["i64"] * (2 * rank)]
    return f"!llvm.func<void ({', '.join(types)})>"


def cpu_launch(parameters: tuple[Parameter, ...], slots: Slots, nbytes: int) -> str:
    """The function that a call runs, in the LLVM dialect. It calls the entry with each buffer as MLIR's memref
    descriptor, in separate arguments (allocated and aligned pointer, offset, extents, strides). ``nbytes``: of the
    workspace."""
    host = HostLines()
    given: list[tuple[str, str]] = []
    for p in parameters:
        if p.kind == "scalar":
            given.append((host.int_at(p.slot), "i64"))
            continue
        if p.kind == "pointer":
            place, sizes = host.pointer_at(p.slot), (*p.shape, *p.strides)
            if p.offset:
                place = host.value(
                    f"llvm.getelementptr {place}[{p.offset * p.dtype.bytes}] : (!llvm.ptr) -> !llvm.ptr, i8"
                )
        else:
            place, sizes = host.temporary_at(slots, p.slot), (nbytes, 1)
        given += [(place, "!llvm.ptr")] * 2 + [(host.constant(n), "i64") for n in (0, *sizes)]
    names, types = ", ".join(name for name, _ in given), ", ".join(type_ for _, type_ in given)
    host.lines.append(f"  llvm.call @{ENTRY}({names}) : ({types}) -> ()")
    ok = host.value("llvm.mlir.constant(0 : i32) : i32")
    head = "llvm.func @launch(%ptrs: !llvm.ptr, %ints: !llvm.ptr, %stream: !llvm.ptr) -> i32 {"
    return "\n".join([head, *host.lines, f"  llvm.return {ok} : i32", "}"])


def gpu_kernels(module, parameters: tuple[Parameter, ...], slots: Slots) -> list[GpuKernel]:
    """The kernels that the entry launches, in order, without their code; each buffer in the workspace is a temporary in
    ``slots``. Raises :class:`CompileError` if the entry does anything else, or has another type than its caller
    expects."""
    ir = mlir.ir
    functions = {op.operation.attributes["sym_name"].value: op.operation for op in module.body.operations
                 if op.operation.name == "func.func"}  # fmt: skip
    if ENTRY not in functions:
        raise CompileError(f"the pipeline leaves no func.func @{ENTRY}: it must keep the entry and its name")
    function = functions[ENTRY]
    found, wanted = str(function.attributes["function_type"]), f"({', '.join(p.type for p in parameters)}) -> ()"
    if found != wanted:
        raise CompileError(f"the pipeline gives @{ENTRY} the type {found}; its caller takes {wanted}")
    binaries = [op.operation for op in module.body.operations if op.operation.name == "gpu.binary"]
    if len(binaries) != 1:
        raise CompileError(
            f"the pipeline has to end in one gpu.binary and leaves {len(binaries)}: run merge-gpu-modules after "
            "gpu-kernel-outlining, and gpu-module-to-binary{format=isa} at the end"
        )
    block = function.regions[0].blocks[0]
    arguments = list(block.arguments)
    kernels = []

    def known(value) -> int:
        if isinstance(value.owner, ir.Block) or value.owner.name != "arith.constant":
            raise CompileError("a kernel's launch depends on values that are not constants")
        return ir.IntegerAttr(value.owner.attributes["value"]).value

    def place(value) -> tuple[tuple[str, int], str]:
        """The source of a kernel's parameter, and its type."""
        if isinstance(value.owner, ir.Block):
            parameter = parameters[arguments.index(value)]
            if parameter.offset:
                raise CompileError("an array with negative strides on a GPU has no linalg form: copy it first")
            return (parameter.kind, parameter.slot), "i64" if parameter.kind == "scalar" else "!llvm.ptr"
        source, shift = value.owner.operands[0], value.owner.operands[1]
        if value.owner.name != "memref.view" or source != arguments[-1]:
            raise CompileError(f"a kernel is given the result of {value.owner.name}: run fold-memref-alias-ops before")
        key = f"{WORKSPACE} from {known(shift)} on"
        return ("temporary", slots.temporary(key, buffer_bytes(str(value.type)))), "!llvm.ptr"

    for op in [op.operation for op in block.operations]:
        if op.name == "gpu.launch_func":
            operands, segments = list(op.operands), list(op.attributes["operandSegmentSizes"])
            grid, threads = known(operands[0]), known(operands[3])
            if any(known(v) != 1 for v in (*operands[1:3], *operands[4:6])):
                raise CompileError("a kernel is launched in several dimensions: run flatten-parallel-loops before")
            given = operands[len(operands) - segments[-2] :]
            places = [place(v) for v in given]
            passed = {where: (f"%p{k}", type_) for k, (where, type_) in enumerate(places)}
            if len(passed) < len(places):
                raise CompileError("a kernel is given one buffer twice: run fold-memref-alias-ops before")
            name = ir.SymbolRefAttr(op.attributes["kernel"]).value[-1]
            kernels.append(GpuKernel(name, "", "", grid, threads, 1, passed))
        elif op.name not in ("arith.constant", "memref.view", "func.return"):
            raise CompileError(
                f"the host runs {op.name}: on a GPU the entry only launches kernels; flatten-parallel-loops moves "
                "other ops into loops, and allocs-to-workspace removes memref.alloc"
            )
    return kernels


def buffer_bytes(type_: str) -> int:
    """The bytes of a contiguous buffer of this memref type. Raises :class:`CompileError` if its size is not
    constant."""
    found = re.fullmatch(r"memref<((?:\d+x)*)[a-z]+(\d+)>", type_)
    if found is None:
        raise CompileError(f"a buffer of type {type_} has no constant size")
    return math.prod(int(n) for n in found[1].split("x") if n) * -(-int(found[2]) // 8)
