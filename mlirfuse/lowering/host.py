"""Emits the host function of a program: it runs CPU kernels on the thread pool in order, or launches GPU kernels on the
caller's stream through MLIR's CUDA runtime.

``launch(ptrs, ints, stream)``: kernel handles, grid dimensions and parameters are read from ``ints`` and ``ptrs`` (see
:mod:`mlirfuse.lowering.slots`), so that the code is independent of the process and can be cached on disk."""

from __future__ import annotations

from collections.abc import Sequence

from mlirfuse.lowering.foreach import GpuForeach, operand
from mlirfuse.lowering.module import CpuKernel, GpuKernel
from mlirfuse.lowering.slots import Slots, TensorMap

ENCODE = "mgpuTensorMapEncodeTiled"
_TENSOR_MAP_TYPES = {"u8": 0, "f16": 6, "f32": 7, "bf16": 9}  # CUtensorMapDataType
_SWIZZLE_128, _PROMOTE_256 = 3, 3  # CUtensorMapSwizzle, CUtensorMapL2promotion


def _runtime_function(name: str, slots: Slots) -> list[str]:
    """Lines that define ``%name`` as the address of a runtime function. It is read from ``ints``, because code without
    external references needs no linking."""
    slot = slots.handle(name)
    return [
        f"  %{name}_at = llvm.getelementptr %ints[{slot}] : (!llvm.ptr) -> !llvm.ptr, i64",
        f"  %{name}_bits = llvm.load %{name}_at : !llvm.ptr -> i64",
        f"  %{name} = llvm.inttoptr %{name}_bits : i64 to !llvm.ptr",
    ]


def cpu_host(kernels: Sequence[CpuKernel], slots: Slots, name: str = "launch") -> str:
    """The host function of CPU kernels as MLIR: runs each kernel's tasks on the thread pool, in order."""
    lines = [
        f"func.func @{name}(%ptrs: !llvm.ptr, %ints: !llvm.ptr, %stream: !llvm.ptr) -> i32 {{",
        "  %two = llvm.mlir.constant(2 : i64) : i64",
        "  %ctx = llvm.alloca %two x !llvm.ptr : (i64) -> !llvm.ptr",
        "  %second = llvm.getelementptr %ctx[1] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr",
        "  llvm.store %ints, %second : !llvm.ptr, !llvm.ptr",
        *_runtime_function("mlirfuse_parallel_for", slots),
    ]
    for k, kernel in enumerate(kernels):
        lines += [
            f"  %count{k} = llvm.mlir.constant({len(kernel.passed)} : i64) : i64",
            f"  %given{k} = llvm.alloca %count{k} x !llvm.ptr : (i64) -> !llvm.ptr",
        ]
        for at, slot in enumerate(kernel.passed):
            lines += [
                f"  %from{k}_{at} = llvm.getelementptr %ptrs[{slot}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr",
                f"  %pointer{k}_{at} = llvm.load %from{k}_{at} : !llvm.ptr -> !llvm.ptr",
                f"  %to{k}_{at} = llvm.getelementptr %given{k}[{at}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr",
                f"  llvm.store %pointer{k}_{at}, %to{k}_{at} : !llvm.ptr, !llvm.ptr",
            ]
        lines.append(f"  llvm.store %given{k}, %ctx : !llvm.ptr, !llvm.ptr")
        handle, counts = slots.handle(kernel.name), []
        for what, size in (("tasks", kernel.tasks), ("grain", kernel.grain)):
            slot = slots.size(size)
            lines.append(f"  %{what}{k}_at = llvm.getelementptr %ints[{slot}] : (!llvm.ptr) -> !llvm.ptr, i64")
            lines.append(f"  %{what}{k} = llvm.load %{what}{k}_at : !llvm.ptr -> i64")
            counts.append(f"%{what}{k}")
        lines += [
            f"  %function{k}_at = llvm.getelementptr %ints[{handle}] : (!llvm.ptr) -> !llvm.ptr, i64",
            f"  %function{k}_bits = llvm.load %function{k}_at : !llvm.ptr -> i64",
            f"  %function{k} = llvm.inttoptr %function{k}_bits : i64 to !llvm.ptr",
            f"  llvm.call %mlirfuse_parallel_for(%function{k}, %ctx, {', '.join(counts)}) : "
            "!llvm.ptr, (!llvm.ptr, !llvm.ptr, i64, i64) -> ()",
        ]
    lines += ["  %ok = llvm.mlir.constant(0 : i32) : i32", "  return %ok : i32", "}"]
    return "\n".join(lines)


class HostLines:
    """The lines of a host function with pointers in ``%ptrs`` and integers in ``%ints``."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0

    def value(self, text: str) -> str:
        """Append a line, and return the name of its result."""
        self._count += 1
        self.lines.append(f"  %h{self._count} = {text}")
        return f"%h{self._count}"

    def constant(self, number: int) -> str:
        return self.value(f"llvm.mlir.constant({number} : i64) : i64")

    def int_at(self, slot: int) -> str:
        at = self.value(f"llvm.getelementptr %ints[{slot}] : (!llvm.ptr) -> !llvm.ptr, i64")
        return self.value(f"llvm.load {at} : !llvm.ptr -> i64")

    def pointer_at(self, slot: int) -> str:
        at = self.value(f"llvm.getelementptr %ptrs[{slot}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
        return self.value(f"llvm.load {at} : !llvm.ptr -> !llvm.ptr")

    def temporary_at(self, slots: Slots, slot: int) -> str:
        """A pointer into the workspace, at the byte offset in slot ``slot`` of ``ints``."""
        base, offset = self.pointer_at(slots.workspace), self.int_at(slot)
        return self.value(f"llvm.getelementptr {base}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")

    def encoded(self, slots: Slots, of: TensorMap) -> str:
        """A pointer to the encoded ``of``."""
        kind, slot = of.place
        address = self.pointer_at(slot) if kind == "pointer" else self.temporary_at(slots, slot)
        one = self.constant(1)
        made = self.value(f"llvm.alloca {one} x !llvm.array<128 x i8> {{alignment = 64 : i64}} : (i64) -> !llvm.ptr")
        dims = self._array("i64", [self.int_at(n) for n in of.dims])
        pitch = self._array("i64", [self.int_at(of.pitch)])
        box, steps = (self._array("i32", [self._i32(n) for n in numbers]) for numbers in (of.box, (1, 1)))
        numbers = [self._i32(n) for n in (_TENSOR_MAP_TYPES[of.dtype], 2, 0, _SWIZZLE_128, _PROMOTE_256, 0)]
        dtype, rank, interleave, swizzle, promotion, fill = numbers
        given = f"{made}, {dtype}, {rank}, {address}, {dims}, {pitch}, {box}, {steps}, {interleave}, {swizzle}"
        pointers = ", ".join(["!llvm.ptr"] * 5)
        self.lines.append(
            f"  llvm.call %{ENCODE}({given}, {promotion}, {fill}) : !llvm.ptr, "
            f"(!llvm.ptr, i32, i32, {pointers}, i32, i32, i32, i32) -> ()"
        )
        return made

    def _i32(self, number: int) -> str:
        return self.value(f"llvm.mlir.constant({number} : i32) : i32")

    def _array(self, type_: str, numbers: list[str]) -> str:
        """A pointer to an array of ``numbers``."""
        array = self.value(f"llvm.alloca {self.constant(len(numbers))} x {type_} : (i64) -> !llvm.ptr")
        for at, number in enumerate(numbers):
            to = self.value(f"llvm.getelementptr {array}[{at}] : (!llvm.ptr) -> !llvm.ptr, {type_}")
            self.lines.append(f"  llvm.store {number}, {to} : {type_}, !llvm.ptr")
        return array


def gpu_host(kernels: Sequence[GpuKernel], slots: Slots, name: str = "launch") -> str:
    """The host function of GPU kernels as MLIR."""
    host = HostLines()
    lines, value, constant, int_at = host.lines, host.value, host.constant, host.int_at
    one, zero = constant(1), value("llvm.mlir.constant(0 : i32) : i32")
    null = value("llvm.mlir.zero : !llvm.ptr")
    for kernel in kernels:
        function = value(f"llvm.inttoptr {int_at(slots.handle(kernel.name))} : i64 to !llvm.ptr")
        if isinstance(kernel, GpuForeach):  # a loop in native code: emitted code would take long to compile
            members = value(f"llvm.getelementptr %ints[{_members(kernel, slots)}] : (!llvm.ptr) -> !llvm.ptr, i64")
            given = f"({function}, {members}, %ptrs, %ints, %stream)"
            lines.append(f"  llvm.call %{_launch(kernel)}{given} : !llvm.ptr, ({', '.join(['!llvm.ptr'] * 5)}) -> ()")
            continue
        params = value(f"llvm.alloca {constant(max(1, len(kernel.passed)))} x !llvm.ptr : (i64) -> !llvm.ptr")
        for at, ((kind, slot), (_, type_)) in enumerate(kernel.passed.items()):
            if kind == "tensor_map":
                source = host.encoded(slots, slot)
                slot_of = value(f"llvm.getelementptr {params}[{at}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
                lines.append(f"  llvm.store {source}, {slot_of} : !llvm.ptr, !llvm.ptr")
                continue
            if kind == "pointer":
                source, stored_type = host.pointer_at(slot), "!llvm.ptr"
            elif kind == "temporary":
                source, stored_type = host.temporary_at(slots, slot), "!llvm.ptr"
            elif type_ == "i32":
                source, stored_type = value(f"llvm.trunc {int_at(slot)} : i64 to i32"), "i32"
            else:
                source, stored_type = int_at(slot), "i64"
            cell = value(f"llvm.alloca {one} x {stored_type} : (i64) -> !llvm.ptr")
            lines.append(f"  llvm.store {source}, {cell} : {stored_type}, !llvm.ptr")
            slot_of = value(f"llvm.getelementptr {params}[{at}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
            lines.append(f"  llvm.store {cell}, {slot_of} : !llvm.ptr, !llvm.ptr")
        grid, threads = int_at(slots.size(kernel.grid)), constant(kernel.threads)
        shared = value(f"llvm.mlir.constant({kernel.dynamic_shared} : i32) : i32")
        passed = constant(len(kernel.passed))
        sizes = f"{grid}, {one}, {one}, {threads}, {one}, {one}, {shared}, %stream, {params}, {null}, {passed}"
        types = "!llvm.ptr, i64, i64, i64, i64, i64, i64, i32, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64"
        lines.append(f"  llvm.call %{_launch(kernel)}({function}, {sizes}) : !llvm.ptr, ({types}) -> ()")
    head = [f"func.func @{name}(%ptrs: !llvm.ptr, %ints: !llvm.ptr, %stream: !llvm.ptr) -> i32 {{"]
    encodes = any(kind == "tensor_map" for kernel in kernels for kind, _ in kernel.passed)
    for function in dict.fromkeys([*map(_launch, kernels), *([ENCODE] if encodes else [])]):
        head += _runtime_function(function, slots)
    return "\n".join(head + lines + [f"  return {zero} : i32", "}"])


def _members(kernel: GpuForeach, slots: Slots) -> int:
    """The slot in ``ints`` of the first integer that describes the members of a launch."""
    members = [
        [operand("size", slots.size(one.grid)), *(operand(*key) for key in one.passed)] for one in kernel.members
    ]
    return slots.numbers(kernel.name, kernel.described(members, slots.workspace))


def _launch(kernel: GpuKernel) -> str:
    if isinstance(kernel, GpuForeach):
        return "mlirfuse_launch_members"
    return "mlirfuse_launch_early" if kernel.waits else "mgpuLaunchKernel"
