"""What code is made for: a CPU or an NVIDIA GPU. A target chooses parameters, writes a variant's kernels and its host
function."""

from __future__ import annotations

import functools
import threading

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.core.machine import Host
from mlirfuse.lowering import llvm, ptx
from mlirfuse.lowering.host import gpu_host, runtime_function
from mlirfuse.lowering.slots import Slots
from mlirfuse.runtime import autotune
from mlirfuse.runtime.program import Program, Variant
from mlirfuse.schedule.cpu import choice as cpu_choice
from mlirfuse.schedule.cpu.kernel import CpuKernel
from mlirfuse.schedule.gpu import choice as gpu_choice


class CpuTarget:
    """This machine's processor."""

    name = "cpu"
    early_launch = False
    passes = ",fusion-sigmoid,fusion-dce"  # tensor-level passes beside the common ones

    @functools.cached_property
    def machine(self) -> Host:
        """The processor."""
        return Host.here()

    def parameters(self, program: Program, env, alignments) -> tuple:
        """For each segment its scheduler's parameters."""
        return tuple([cpu_choice.choose(step.analysis, env, alignments, self.machine) for step in program.steps])

    def kernels(self, program: Program, params: tuple, slots: Slots) -> tuple[list[CpuKernel], str]:
        """The kernels of a variant and the module that holds them."""
        kernels: list[CpuKernel] = []
        for step, choice in zip(program.steps, params):
            kernels += cpu_choice.emit(step.name, step.analysis, slots, choice, self.machine)
        return kernels, "module {\n" + "\n".join(k.text for k in kernels) + "\n}\n"

    def host(self, kernels: list[CpuKernel], slots: Slots) -> str:
        """The host function of a variant."""
        return _host(kernels, slots)

    def compile(self, program: Program, params: tuple, slots: Slots) -> Variant:
        kernels, tiled = self.kernels(program, params, slots)
        host = self.host(kernels, slots)
        if not kernels:
            return Variant(params, {"tiled": tiled, "host": host}, 0, slots, 0, None)
        code = llvm.HostCode(llvm.compile_object(whole(tiled, host)))
        return Variant(params, {"tiled": tiled, "host": host}, code.address("launch"), slots, len(kernels), code)


def whole(tiled: str, host: str) -> str:
    """One module of a CPU variant's kernels and its host function."""
    return tiled.removesuffix("}\n") + host + "\n}\n"


def _host(kernels: list[CpuKernel], slots: Slots) -> str:
    """The function that a call runs: each kernel's tasks shared by the thread pool, in order."""
    lines = [
        "func.func @launch(%ptrs: !llvm.ptr, %ints: !llvm.ptr, %stream: !llvm.ptr) -> i32 {",
        "  %two = llvm.mlir.constant(2 : i64) : i64",
        "  %ctx = llvm.alloca %two x !llvm.ptr : (i64) -> !llvm.ptr",
        "  llvm.store %ptrs, %ctx : !llvm.ptr, !llvm.ptr",
        "  %second = llvm.getelementptr %ctx[1] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr",
        "  llvm.store %ints, %second : !llvm.ptr, !llvm.ptr",
        *runtime_function("mlirfuse_parallel_for", slots),
    ]
    for k, kernel in enumerate(kernels):
        counts = []
        for what, size in (("tasks", kernel.tasks), ("grain", kernel.grain)):
            slot = slots.size(size)
            lines.append(f"  %{what}{k}_at = llvm.getelementptr %ints[{slot}] : (!llvm.ptr) -> !llvm.ptr, i64")
            lines.append(f"  %{what}{k} = llvm.load %{what}{k}_at : !llvm.ptr -> i64")
            counts.append(f"%{what}{k}")
        lines += [
            f"  %function{k} = func.constant @{kernel.name} : (i64, i64, !llvm.ptr) -> ()",
            f"  %pointer{k} = builtin.unrealized_conversion_cast %function{k} : (i64, i64, !llvm.ptr) -> () to !llvm.ptr",
            f"  llvm.call %mlirfuse_parallel_for(%pointer{k}, %ctx, {', '.join(counts)}) : !llvm.ptr, (!llvm.ptr, !llvm.ptr, i64, i64) -> ()",
        ]
    lines += ["  %ok = llvm.mlir.constant(0 : i32) : i32", "  return %ok : i32", "}"]
    return "\n".join(lines)


class _Beside(threading.Thread):
    """``function()`` in a thread of its own. Executors take nothing more once the interpreter waits for its last
    threads; threads still start."""

    def __init__(self, function):
        super().__init__()
        self._function, self._error = function, None
        self.start()

    def run(self) -> None:
        try:
            self._found = self._function()
        except BaseException as error:
            self._error = error

    def result(self):
        """What the function gave; raises what it raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._found


class GpuTarget:
    """An NVIDIA GPU: a device of this machine, or (``device`` None) an architecture to compile for."""

    name = "cuda"

    @property
    def passes(self) -> str:
        """Tensor-level passes beside the common ones."""
        return f",fusion-one-pass-variance,fusion-dce,fusion-inner-outer{{parts={2 * self.machine.sm_count}}}"

    def __init__(self, machine, device: int | None):
        self.machine, self.device, self.early_launch = machine, device, machine.early_launch

    def parameters(self, program: Program, env, alignments) -> tuple:
        """For each segment its scheduler's parameters: what autotune found for these sizes, else the model's choice."""
        if program.tuned_before is None:
            program.tuned_before = autotune.any_remembered()
        if program.tuned or program.tuned_before:
            key = program.call_key(env, alignments)
            if key not in program.tuned:
                program.tuned[key] = autotune.remembered(program, env, alignments, self.machine)
            if program.tuned[key] is not None:
                return program.tuned[key]
        return tuple([gpu_choice.choose(step.analysis, env, alignments, self.machine) for step in program.steps])

    def kernels(self, program: Program, params: tuple, slots: Slots) -> tuple[list, str]:
        """The kernels of a variant and the module that holds them."""
        kernels: list = []
        read, written = set(), set()  # places in memory
        for step, choice in zip(program.steps, params):
            fresh, buffers = not slots.temporaries, set()
            slots.written = frozenset(written)
            for stage, made in gpu_choice.kernels(step.name, step.analysis, slots, choice):
                reads = {slots.place(v) for v in stage.inputs if v not in stage.passed_on}
                writes = {slots.place(v) for v in stage.outputs if v not in stage.passed_on or v in stage.results}
                # What a kernel of an earlier step still uses of the workspace may lie where this step's part of it
                # does.
                used = {slot for kernel in made for kind, slot in kernel.passed if kind == "temporary"}
                apart = not used or (fresh and used.isdisjoint(buffers))
                waits = (
                    "after" if apart and written.isdisjoint(reads | writes) and read.isdisjoint(writes) else "before"
                )
                for kernel in made:
                    if kernels and self.early_launch:
                        kernels[-1].lets, kernel.waits = True, waits
                    kernels.append(kernel)
                    waits = "before"
                read |= reads
                written |= writes
                buffers |= used
        return kernels, "module {\ngpu.module @kernels {\n" + "\n".join(k.text for k in kernels) + "\n}\n}\n"

    def compile(self, program: Program, params: tuple, slots: Slots) -> Variant:
        from mlirfuse import _native

        if self.device is None:
            raise UnsupportedError(
                f"target {self.machine.chip} is no device of this machine: only its code can be looked at"
            )
        kernels, tiled = self.kernels(program, params, slots)
        if not kernels:
            return Variant(params, {"tiled": tiled, "host": ""}, 0, slots, 0, None)
        code = ptx.to_ptx(tiled, self.machine.chip)
        host = self.host(kernels, slots)
        loading = _Beside(lambda: _native.Module(code.encode() + b"\0", self.device))
        try:
            launch = llvm.HostCode(
                llvm.compile_object("module {\n" + host + "\n}\n")
            )  # while the driver compiles the kernels
        finally:
            module = loading.result()
        slots.functions = {k.name: module.function(k.name, 0, k.cluster > 8) for k in kernels}
        return Variant(
            params,
            {"tiled": tiled, "ptx": code, "host": host},
            launch.address("launch"),
            slots,
            len(kernels),
            [module, launch],
        )

    def host(self, kernels: list, slots: Slots) -> str:
        """The host function of a variant."""
        return gpu_host(kernels, slots)


@functools.cache
def cpu() -> CpuTarget:
    return CpuTarget()


def of(name: str):
    """The target named "cpu", "cuda" (this machine's GPU) or "cuda:sm_90" (any GPU, for looking at its code)."""
    if name == "cpu":
        return cpu()
    if name == "cuda":
        return gpu(0)
    if name.startswith("cuda:sm_"):
        from mlirfuse.core.machine import Machine

        return GpuTarget(Machine.of_architecture(name.removeprefix("cuda:")), None)
    raise UnsupportedError(
        f"no target '{name}': there are 'cpu', 'cuda' and 'cuda:sm_90' with any architecture from sm_70 on"
    )


@functools.cache
def gpu(device: int):
    """The GPU ``device``. Raises :class:`UnsupportedError` where there is none."""
    from mlirfuse import _native
    from mlirfuse.core.machine import Machine

    if not _native.cuda_available():
        raise UnsupportedError(f"no CUDA device: {_native.cuda_error()}")
    return GpuTarget(Machine.of_device(device), device)


def for_arrays(leaves):
    """The target that the arrays lie on."""
    from mlirfuse.runtime import arrays

    for leaf in leaves:
        device = arrays.device_of(leaf)
        if device is not None and device[0] == "cuda":
            return gpu(device[1])
        if device is not None and device[0] != "cpu":
            raise UnsupportedError(f"device {device[0]} is not supported: move the array to the CPU or a CUDA GPU")
    return cpu()


def check_place(target, leaves) -> None:
    """Raises :class:`UnsupportedError` where the arguments do not lie where ``target`` computes."""
    from mlirfuse.runtime import arrays

    for position, leaf in enumerate(leaves):
        device = arrays.device_of(leaf)
        if device is None or (device == ("cpu",) and leaf.ndim == 0):
            continue
        where = ":".join(map(str, device))
        if target.name == "cpu" and device[0] != "cpu":
            raise UnsupportedError(f"the target is the CPU, and argument {position} lies on {where}: pass a host array")
        if target.name != "cpu" and target.device is not None and device != ("cuda", target.device):
            raise UnsupportedError(
                f"the target is CUDA device {target.device}, and argument {position} lies on {where}: move it there"
            )
