"""Programs that go down by MLIR's own passes: from ``convert-fusion-to-linalg``'s form to code, by a pipeline.

:class:`WayDown` gives a target that compiles so, for any other one. It is slow: loops over elements, one after another
on a CPU, an element a thread on a GPU. What it computes is written by other code than the schedulers' kernels, down to
the loops and addresses of single elements, and so checks them.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirfuse.core import mlir
from mlirfuse.core.errors import CompileError
from mlirfuse.core.machine import Host
from mlirfuse.dialects import fusion
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.linalg.entry import ENTRY, WORKSPACE, Entry, Parameter, entry_of
from mlirfuse.lowering.module import CpuKernel, KernelModule
from mlirfuse.lowering.slots import Slots
from mlirfuse.passes.allocs_to_workspace import BYTES_NEEDED
from mlirfuse.passes.base import run_pipeline
from mlirfuse.schedule.program import SegmentedProgram
from mlirfuse.schedule.targets import CpuTarget, Target

CPU_PIPELINE = "builtin.module(linalg-to-buffers,allocs-to-workspace,convert-linalg-to-loops,loops-to-llvm)"


@dataclass(frozen=True)
class WayDown:
    """How segments become code without our schedulers: from linalg on by ``pipeline``, or by ours where that is
    None."""

    pipeline: str | None = None

    def target(self, base: Target) -> CpuByLinalg:
        """The target that compiles so for the machine of ``base``."""
        return CpuByLinalg(base, self.pipeline)


@dataclass(frozen=True)
class CpuByLinalg:
    """A CPU whose programs are compiled from linalg. There is a variant for each set of sizes."""

    base: CpuTarget
    pipeline: str | None

    name = "cpu"
    early_launch = False
    device = None

    @property
    def machine(self) -> Host:
        """The processor."""
        return self.base.machine

    @property
    def passes(self) -> str:
        """Tensor-level passes beside the common ones: the base's, so that the segments are those of its schedulers."""
        return self.base.passes

    def parameters(self, program: SegmentedProgram, env: dict[str, int], alignments: dict[Value, int]) -> tuple:
        """What decides the code: the sizes."""
        return tuple(sorted(env.items()))

    def write(self, program: SegmentedProgram, params: tuple, slots: Slots) -> KernelModule:
        """The functions of ``program`` for these sizes in the LLVM dialect, and one that calls the entry. Raises
        :class:`UnsupportedError` for what has no linalg form, :class:`CompileError` where the pipeline fails."""
        made = entry_of(program.graph, dict(params), slots, on_device=False)
        if not made.writes:
            return KernelModule((), False)
        module = lowered(made, self.pipeline or CPU_PIPELINE)
        attributes = _checked_entry(module, made.parameters).attributes
        slots.temporary_bytes[WORKSPACE] = attributes[BYTES_NEEDED].value if BYTES_NEEDED in attributes else 0
        text = "\n".join(str(op) for op in module.body.operations)
        return KernelModule((CpuKernel(ENTRY, text, 1, 1),), False, cpu_launch(made.parameters, slots))


def lowered(made: Entry, pipeline: str):
    """The module after ``pipeline``. Raises :class:`CompileError` where a pass fails."""
    try:
        return run_pipeline(fusion.parse(made.text), pipeline).module
    except mlir.MLIRError as error:
        raise CompileError(f"the way down from linalg failed: {error}") from error


def _checked_entry(module, parameters: tuple[Parameter, ...]):
    """The entry of a module that should be in the LLVM dialect. Raises :class:`CompileError` for what is missing."""
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
            f"the pipeline's code calls {', '.join(outside)}, which nobody provides: put allocs-to-workspace and "
            "copies-to-linalg behind one-shot-bufferize"
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


def cpu_launch(parameters: tuple[Parameter, ...], slots: Slots) -> str:
    """The function that a call runs, in the LLVM dialect: calls the entry, a buffer as MLIR's descriptor of it in
    single arguments (allocated and aligned pointer, offset, extents, strides)."""
    lines: list[str] = []
    given: list[tuple[str, str]] = []

    def value(text: str) -> str:
        lines.append(f"  %v{len(lines)} = {text}")
        return f"%v{len(lines) - 1}"

    def constant(number: int) -> str:
        return value(f"llvm.mlir.constant({number} : i64) : i64")

    def int_at(slot: int) -> str:
        at = value(f"llvm.getelementptr %ints[{slot}] : (!llvm.ptr) -> !llvm.ptr, i64")
        return value(f"llvm.load {at} : !llvm.ptr -> i64")

    def pointer_at(slot: int) -> str:
        at = value(f"llvm.getelementptr %ptrs[{slot}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
        return value(f"llvm.load {at} : !llvm.ptr -> !llvm.ptr")

    for p in parameters:
        if p.kind == "scalar":
            given.append((int_at(p.slot), "i64"))
            continue
        if p.kind == "pointer":
            place, sizes = pointer_at(p.slot), (*p.shape, *p.strides)
            if p.offset:
                place = value(f"llvm.getelementptr {place}[{p.offset * p.dtype.bytes}] : (!llvm.ptr) -> !llvm.ptr, i8")
        else:
            base, offset = pointer_at(slots.workspace), int_at(p.slot)
            place = value(f"llvm.getelementptr {base}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
            sizes = (slots.temporary_bytes[WORKSPACE], 1)
        given += [(place, "!llvm.ptr")] * 2 + [(constant(n), "i64") for n in (0, *sizes)]
    names, types = ", ".join(name for name, _ in given), ", ".join(type_ for _, type_ in given)
    lines.append(f"  llvm.call @{ENTRY}({names}) : ({types}) -> ()")
    ok = value("llvm.mlir.constant(0 : i32) : i32")
    head = "llvm.func @launch(%ptrs: !llvm.ptr, %ints: !llvm.ptr, %stream: !llvm.ptr) -> i32 {"
    return "\n".join([head, *lines, f"  llvm.return {ok} : i32", "}"])
