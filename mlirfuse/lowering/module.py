"""The output of schedulers: kernels, and the module of kernels and the host function that launches them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.slots import TensorMap


@dataclass
class CpuKernel:
    """A CPU kernel: its text, its number of tasks, the least number that a thread takes at a time, and the slots of its
    pointers."""

    name: str
    text: str
    tasks: Size
    grain: Size
    passed: tuple[int, ...] = ()


@dataclass
class GpuKernel:
    """A GPU kernel: its code, and its launch configuration: ``grid`` in blocks (an expression), threads per block,
    blocks per cluster, bytes of shared memory.

    A kernel that ``waits`` uses programmatic dependent launch: it is launched before the previous kernel of the call
    has ended, as soon as all blocks of that one have started if that one ``lets`` it. It waits for that end before it
    begins ("before") or, if it does not depend on earlier kernels, after its own work ("after"): the end of a kernel
    always implies the end of those before it."""

    name: str
    head: str
    body: str
    grid: Size
    threads: int
    cluster: int
    passed: dict[tuple, tuple[str, str]]
    static_shared: int = 0
    dynamic_shared: int = 0
    lets: bool = False
    waits: str = ""
    end: str = "gpu.return"

    def buffers(self) -> Iterator[tuple[str, Any]]:
        """The kind and slot of each parameter; those of the memory, for a tensor map."""
        for kind, slot in self.passed:
            yield slot.place if isinstance(slot, TensorMap) else (kind, slot)

    @property
    def text(self) -> str:
        """The kernel as a ``gpu.func``."""
        head, lines = self.head, []
        if self.lets:
            lines.append("    nvvm.griddepcontrol launch_dependents")
        if self.waits == "before":
            lines.append("    nvvm.griddepcontrol wait")
            for name, type_ in self.passed.values():
                if type_ == "!llvm.ptr<1>":
                    head = head.replace(f"{name}: ", f"{name}_early: ")
                    lines.append(known_from_here(name, type_))
        lines = [head, *lines, self.body]
        if self.waits == "after":  # only the last block waits, so that others make room for the next kernel's
            lines += [
                "    %waiting = gpu.block_id x",
                "    %waited_for = gpu.grid_dim x",
                "    %one_block = arith.constant 1 : index",
                "    %last_block = arith.subi %waited_for, %one_block : index",
                "    %is_last = arith.cmpi eq, %waiting, %last_block : index",
                "    scf.if %is_last {",
                "      nvvm.griddepcontrol wait",
                "    }",
            ]
        return "\n".join([*lines, f"    {self.end}", "  }"])


def nameless(kernel: Kernel) -> str:
    """The text of a kernel without its name: equal for kernels with the same code."""
    return kernel.text.replace(f"@{kernel.name}", "@kernel")


def known_from_here(name: str, type_: str) -> str:
    """A line that defines the pointer ``name`` from ``{name}_early``, so that LLVM does not move invariant loads above
    a preceding wait."""
    return (
        f'    {name} = llvm.inline_asm has_side_effects "mov.b64 $0, $1;", "=l,l" {name}_early : ({type_}) -> {type_}'
    )


Kernel = CpuKernel | GpuKernel


@dataclass(frozen=True)
class KernelModule:
    """The kernels of one program for one choice of schedules, in launch order, and ``host``, the functions
    (``func.func``) that launch them. All MLIR module text is made here."""

    kernels: tuple[Kernel, ...]
    on_gpu: bool
    host: str = ""

    def only(self, kernels: Iterable[Kernel]) -> KernelModule:
        """The module of some of the kernels, without a host function."""
        return replace(self, kernels=tuple(kernels), host="")

    def tiled(self) -> str:
        """The text of the kernels alone."""
        return _module(self._kernels())

    def text(self) -> str:
        """The text of the kernels and the host function in one module."""
        return _module([*self._kernels(), self.host])

    def launching(self) -> str:
        """The text to compile for the host: for a GPU only the host function, else kernels and host function."""
        return _module([self.host]) if self.on_gpu else self.text()

    def _kernels(self) -> list[str]:
        texts = [kernel.text for kernel in self.kernels]
        return ["gpu.module @kernels {", *(texts or [""]), "}"] if self.on_gpu else texts or [""]


@dataclass(frozen=True)
class AssembledModule(KernelModule):
    """Kernels of a GPU that are given as ``ptx``, without MLIR text."""

    ptx: str = ""


def _module(parts: list[str]) -> str:
    return "\n".join(["module {", *parts, "}"]) + "\n"
