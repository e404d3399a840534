"""The host function of a GPU program: launches the kernels in order on the caller's stream, through MLIR's CUDA
runtime.

``launch(ptrs, ints, stream)``: kernels' handles, grid dimensions and parameters come out of ``ints`` and ``ptrs`` (see
:mod:`mlirfuse.lowering.slots`), so that its code holds nothing of one process and can be kept on disk.
"""

from __future__ import annotations

from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.kernel import GpuKernel


def runtime_function(name: str, slots: Slots) -> list[str]:
    """Lines that make ``%name`` the address of a function of the runtime. It comes out of ``ints`` like everything
    else: code that refers to nothing outside needs no linking."""
    from mlirfuse import _native

    slot = slots.handle(_native.symbols()[name])
    return [
        f"  %{name}_at = llvm.getelementptr %ints[{slot}] : (!llvm.ptr) -> !llvm.ptr, i64",
        f"  %{name}_bits = llvm.load %{name}_at : !llvm.ptr -> i64",
        f"  %{name} = llvm.inttoptr %{name}_bits : i64 to !llvm.ptr",
    ]


def gpu_host(kernels: list[GpuKernel], slots: Slots) -> str:
    """The MLIR text of the host function."""
    lines: list[str] = []
    count = 0

    def value(text: str) -> str:
        nonlocal count
        count += 1
        lines.append(f"  %h{count} = {text}")
        return f"%h{count}"

    def constant(number: int) -> str:
        return value(f"llvm.mlir.constant({number} : i64) : i64")

    def int_at(slot: int) -> str:
        at = value(f"llvm.getelementptr %ints[{slot}] : (!llvm.ptr) -> !llvm.ptr, i64")
        return value(f"llvm.load {at} : !llvm.ptr -> i64")

    def pointer_at(slot: int) -> str:
        at = value(f"llvm.getelementptr %ptrs[{slot}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
        return value(f"llvm.load {at} : !llvm.ptr -> !llvm.ptr")

    one, zero = constant(1), value("llvm.mlir.constant(0 : i32) : i32")
    null = value("llvm.mlir.zero : !llvm.ptr")
    for kernel in kernels:
        function = value(f"llvm.inttoptr {int_at(slots.handle(kernel.name))} : i64 to !llvm.ptr")
        params = value(f"llvm.alloca {constant(max(1, len(kernel.passed)))} x !llvm.ptr : (i64) -> !llvm.ptr")
        for at, ((kind, slot), (_, type_)) in enumerate(kernel.passed.items()):
            if kind == "pointer":
                source, held = pointer_at(slot), "!llvm.ptr"
            elif kind == "temporary":
                base, offset = pointer_at(slots.workspace), int_at(slot)
                source, held = (
                    value(f"llvm.getelementptr {base}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, i8"),
                    "!llvm.ptr",
                )
            elif type_ == "i32":
                source, held = value(f"llvm.trunc {int_at(slot)} : i64 to i32"), "i32"
            else:
                source, held = int_at(slot), "i64"
            cell = value(f"llvm.alloca {one} x {held} : (i64) -> !llvm.ptr")
            lines.append(f"  llvm.store {source}, {cell} : {held}, !llvm.ptr")
            slot_of = value(f"llvm.getelementptr {params}[{at}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
            lines.append(f"  llvm.store {cell}, {slot_of} : !llvm.ptr, !llvm.ptr")
        grid, threads = int_at(slots.size(kernel.grid)), constant(kernel.threads)
        shared = value(f"llvm.mlir.constant({kernel.dynamic_shared} : i32) : i32")
        sizes = f"{grid}, {one}, {one}, {threads}, {one}, {one}, {shared}, %stream, {params}, {null}, {constant(len(kernel.passed))}"
        types = "!llvm.ptr, i64, i64, i64, i64, i64, i64, i32, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64"
        lines.append(f"  llvm.call %{_launch(kernel)}({function}, {sizes}) : !llvm.ptr, ({types}) -> ()")
    head = ["func.func @launch(%ptrs: !llvm.ptr, %ints: !llvm.ptr, %stream: !llvm.ptr) -> i32 {"]
    for name in dict.fromkeys(map(_launch, kernels)):
        head += runtime_function(name, slots)
    return "\n".join(head + lines + [f"  return {zero} : i32", "}"])


def _launch(kernel: GpuKernel) -> str:
    return "mlirfuse_launch_early" if kernel.waits else "mgpuLaunchKernel"
