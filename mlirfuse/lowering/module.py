"""What schedulers write: kernels, and the module that holds them and the function that launches them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mlirfuse.ir.sizes import Size


@dataclass
class CpuKernel:
    """A CPU kernel's text, how many tasks it has, how many a thread should take at a time at least, and the slots of
    the pointers that it is given."""

    name: str
    text: str
    tasks: Size
    grain: Size
    passed: tuple[int, ...] = ()


@dataclass
class GpuKernel:
    """A GPU kernel's code and how it is launched: ``grid`` in blocks (expressions), threads a block, blocks a cluster,
    bytes of shared memory.

    One that ``waits`` is launched before the kernel before it in the call has ended, as soon as all blocks of that one
    have started if it ``lets`` it. It waits for that end before it begins ("before"), or, where it has nothing to do
    with earlier kernels, when it is done ("after"): a kernel's end always means that those before it have ended too.
    """

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

    @property
    def text(self) -> str:
        """The kernel as a ``gpu.func``."""
        head, lines = self.head, []
        if self.lets:
            lines.append("    nvvm.griddepcontrol launch_dependents")
        if self.waits == "before":
            lines.append("    nvvm.griddepcontrol wait")
            for name, type_ in self.passed.values():
                if "ptr" in type_:
                    head = head.replace(f"{name}: ", f"{name}_early: ")
                    lines.append(known_from_here(name, type_))
        lines = [head, *lines, self.body]
        if self.waits == "after":  # the last block alone: others make room for the next ones
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
    """The text of a kernel, the same for those of the same code, whatever their names are."""
    return kernel.text.replace(f"@{kernel.name}", "@kernel")


def known_from_here(name: str, type_: str) -> str:
    """A line that makes the pointer ``name`` of ``{name}_early``, so that no load of what never changes, as LLVM sees
    it, comes before a wait above."""
    return (
        f'    {name} = llvm.inline_asm has_side_effects "mov.b64 $0, $1;", "=l,l" {name}_early : ({type_}) -> {type_}'
    )


Kernel = CpuKernel | GpuKernel


@dataclass(frozen=True)
class KernelModule:
    """The kernels of one program for one choice of schedules, in the order in which they are launched, and ``host``,
    the functions (``func.func``) that launch them. MLIR text is made here alone."""

    kernels: tuple[Kernel, ...]
    on_gpu: bool
    host: str = ""

    def only(self, kernels: Iterable[Kernel]) -> KernelModule:
        """The module of some of the kernels, without a host function."""
        return replace(self, kernels=tuple(kernels), host="")

    def tiled(self) -> str:
        """The kernels alone."""
        return _module(self._kernels())

    def text(self) -> str:
        """The kernels and the host function in one module."""
        return _module([*self._kernels(), self.host])

    def launching(self) -> str:
        """What is compiled for the host: for a GPU the host function alone, else kernels and host function."""
        return _module([self.host]) if self.on_gpu else self.text()

    def _kernels(self) -> list[str]:
        texts = [kernel.text for kernel in self.kernels]
        return ["gpu.module @kernels {", *(texts or [""]), "}"] if self.on_gpu else texts or [""]


@dataclass(frozen=True)
class AssembledModule(KernelModule):
    """Kernels of a GPU that come as ``ptx``, without text of their own."""

    ptx: str = ""


def _module(parts: list[str]) -> str:
    return "\n".join(["module {", *parts, "}"]) + "\n"
