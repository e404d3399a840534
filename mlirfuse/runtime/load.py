"""Loads kernels' code, from the disk cache if it is there, and the functions that launch them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mlirfuse import _native
from mlirfuse.core.errors import CompileError, UnsupportedError
from mlirfuse.core.threads import Task, start_thread
from mlirfuse.lowering import llvm, ptx
from mlirfuse.lowering.module import AssembledModule, GpuKernel, Kernel, KernelModule, nameless
from mlirfuse.lowering.slots import BAD_INDEX, Slots
from mlirfuse.runtime import cache, cubin
from mlirfuse.schedule.targets import Target


@dataclass(eq=False)
class LoadedKernel:
    """A loaded kernel: its address, a driver's handle on a GPU, 0 while it is being compiled; ``keep``: the objects
    that must live as long as it."""

    address: int
    keep: Any


SharedKernels = dict[tuple, LoadedKernel]  # kernels shared between programs
Loaded = tuple[int, Any]  # the address of the function that launches, and what must live as long
Submit = Callable[[Callable[[], Any]], Task]  # runs a function in another thread


def _key(kernel: Kernel) -> tuple:
    """Return a key that is equal for kernels with the same code."""
    cluster = kernel.cluster if isinstance(kernel, GpuKernel) else 0
    return cluster, hashlib.sha256(nameless(kernel).encode()).digest()


def ptx_of(text: str, chip: str) -> str:
    """Return the PTX of the gpu.modules in ``text``. Raises :class:`CompileError`."""
    key = cache.key("ptx", text, chip)
    found = cache.load(key)
    if found is not None:
        return found.decode()
    code = ptx.to_ptx(text, chip)
    cache.store(key, code.encode())
    return code


def ptx_of_kernels(module: KernelModule, chip: str) -> str:
    """Return the PTX of a GPU's kernels. Raises :class:`CompileError`."""
    return module.ptx if isinstance(module, AssembledModule) else ptx_of(module.tiled(), chip)


def object_of(text: str, scalar_loops: bool = False, processor: llvm.Processor | None = None) -> bytes:
    """The object file of the MLIR module ``text``; arguments and errors are those of :func:`llvm.compile_object`."""
    key = cache.key("object", text, *llvm.code_key(processor), *(["scalar loops"] if scalar_loops else []))
    code = cache.load(key)
    if code is None:
        code = llvm.compile_object(text, scalar_loops, processor)
        cache.store(key, code)
    return code


def host_code(text: str, scalar_loops: bool = False, level: str | None = None) -> llvm.HostCode:
    """The loaded functions of the MLIR module ``text``, made for this processor, or for any of a ``level``. Raises
    :class:`CompileError`, and :class:`UnsupportedError` where this processor has not all instructions of the level."""
    processor = level and llvm.processor_of_level(level)
    if processor and not processor.features <= llvm.host_processor().features:
        missing = ", ".join(sorted(processor.features - llvm.host_processor().features))
        raise UnsupportedError(f"this processor does not run code for {level}: it has no {missing}")
    return llvm.HostCode(object_of(text, scalar_loops, processor or None))


def start_loading(
    target: Target,
    module: KernelModule,
    slots: Slots,
    shared_kernels: SharedKernels | None = None,
    submit: Submit | None = None,
) -> Callable[[], Loaded]:
    """Return a function that loads ``module`` and returns the address of the function that launches its kernels, 0
    where there are none, and the objects that must live as long as it: its code, and each kernel by its name. It fills
    in the addresses that ``slots`` needs. Kernels in ``shared_kernels`` are not compiled again, new ones are added.

    ``submit`` starts to compile the kernels of a GPU at once; several modules may be started before they are loaded
    in the same order. The returned function raises :class:`CompileError`, and :class:`UnsupportedError` for a GPU that
    is not present."""
    if not module.kernels:
        return lambda: (0, None)
    slots.functions = {
        what: _native.symbols()[what] for kind, what in slots.ints if kind == "handle" and what in _native.symbols()
    }
    if not module.on_gpu and ("handle", module.kernels[0].name) not in slots.ints:  # its host function names it
        return lambda: _load_inlined(target, module)
    if shared_kernels is None or isinstance(module, AssembledModule):
        shared_kernels = {}
    keys = {kernel.name: _key(kernel) for kernel in module.kernels}
    found = {name: shared_kernels[key] for name, key in keys.items() if key in shared_kernels}
    reused = {name: kernel for name, kernel in found.items() if kernel.address or submit}
    new = replace(module, kernels=tuple(k for k in module.kernels if k.name not in reused))
    created = {kernel.name: LoadedKernel(0, None) for kernel in new.kernels}
    shared_kernels.update((keys[name], kernel) for name, kernel in created.items())
    code = None
    if submit is not None and module.on_gpu and created:
        code = submit(lambda: machine_code(new, _chip(target)))

    def finish() -> Loaded:
        try:
            host = (
                _load_on_gpu(target, new, slots, created, code) if module.on_gpu else _load_on_cpu(target, new, created)
            )
        except BaseException:
            for name in created:
                shared_kernels.pop(keys[name], None)
            raise
        kernels = reused | created
        for name, kernel in kernels.items():
            if not kernel.address:
                raise CompileError(f"{name}, shared with another program, failed to compile there")
            slots.functions[name] = kernel.address
        return host.address("launch"), [host, kernels]

    return finish


def _load_inlined(target: Target, module: KernelModule) -> Loaded:
    """Load a CPU program whose host function contains its kernels."""
    code = host_code(module.text(), level=_level(target))
    return code.address("launch"), code


def machine_code(module: KernelModule, chip: str) -> bytes | None:
    """Return the machine code of a GPU's kernels, or None where the driver compiles them. Raises
    :class:`CompileError`."""
    return cubin.of(ptx_of_kernels(module, chip), chip)


def _level(target: Target) -> str | None:
    """The instruction set that a CPU's code is made for; None: this processor's."""
    return getattr(target, "level", None)  # that by linalg has none


def _load_on_cpu(target: Target, module: KernelModule, created: dict[str, LoadedKernel]) -> llvm.HostCode:
    """The host function of ``module``; its kernels go into ``created``."""
    code = host_code(module.text(), level=_level(target))
    for name, kernel in created.items():
        kernel.address, kernel.keep = code.address(name), code
    return code


def _load_on_gpu(
    target: Target, module: KernelModule, slots: Slots, created: dict[str, LoadedKernel], code: Task | None
) -> llvm.HostCode:
    """Load the host function of ``module``; add its kernels, on the target's device, to ``created``. ``code``: the task
    that compiles them."""
    device = _device(target)
    if BAD_INDEX in slots.functions:
        _native.map_bad_index(device)
    if not module.kernels:
        return host_code(module.launching())
    loaded = _load_cubin(code, device)
    if loaded is not None:
        host = host_code(module.launching())
    else:
        text = ptx_of_kernels(module, _chip(target))
        loading = start_thread(lambda: _load_ptx(text, device))
        try:
            host = host_code(module.launching())  # while the driver compiles the kernels
        finally:
            loaded = loading.result()
    for kernel in module.kernels:
        assert isinstance(kernel, GpuKernel)
        one = created[kernel.name]
        one.address, one.keep = loaded.function(kernel.name, 0, kernel.cluster > 8), loaded
    return host


def _chip(target: Target) -> str:
    chip: str = target.properties.chip  # type: ignore[union-attr]  # a GPU's
    return chip


def _device(target: Target) -> int:
    """Return the device that a GPU's kernels are loaded on. Raises :class:`UnsupportedError` for a target that is not
    present."""
    if target.device is None:
        raise UnsupportedError(
            f"target {_chip(target)} is not a device of this computer: its code can only be inspected"
        )
    return target.device


def _load_cubin(code: Task | None, device: int) -> Any:
    """Return a module loaded from the machine code of the task ``code``; None where it has none, or where an older
    driver does not support it."""
    found = None if code is None else code.result()
    try:
        return None if found is None else _native.Module(found, device)
    except RuntimeError:
        return None


def _load_ptx(text: str, device: int) -> Any:
    """Return a module loaded from PTX, which the driver compiles."""
    return _native.Module(text.encode() + b"\0", device)


def start_loading_kernel(target: Target, module: KernelModule, submit: Submit | None = None) -> Callable[[], Loaded]:
    """As :func:`start_loading`, for the only kernel of ``module`` without its host function: the address is the
    kernel's on the CPU, the driver's handle on a GPU."""
    (kernel,) = module.kernels
    code = None
    if submit is not None and module.on_gpu:
        code = submit(lambda: machine_code(module, _chip(target)))

    def finish() -> Loaded:
        loaded: Any
        if module.on_gpu:
            device = _device(target)
            loaded = _load_cubin(code, device) or _load_ptx(ptx_of_kernels(module, _chip(target)), device)
            address = loaded.function(kernel.name)
        else:
            loaded = host_code(module.tiled(), level=_level(target))
            address = loaded.address(kernel.name)
        return address, [None, {kernel.name: LoadedKernel(address, loaded)}]

    return finish
