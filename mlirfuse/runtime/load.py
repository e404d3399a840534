"""Code of kernels, from the disk cache where it is there, and the functions in memory that launch them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from mlirfuse import _native
from mlirfuse.core.errors import UnsupportedError
from mlirfuse.core.threads import beside
from mlirfuse.lowering import llvm, ptx
from mlirfuse.lowering.module import AssembledModule, GpuKernel, Kernel, KernelModule, nameless
from mlirfuse.lowering.slots import BAD_INDEX, Slots
from mlirfuse.runtime import cache
from mlirfuse.schedule.targets import Target


@dataclass(eq=False)
class LoadedKernel:
    """A kernel in memory: its address, a driver's handle on a GPU; and what must live as long as it."""

    address: int
    home: Any


Known = dict[tuple, LoadedKernel]  # kernels that several programs may have


def _key(kernel: Kernel) -> tuple:
    """What kernels of the same code have in common."""
    cluster = kernel.cluster if isinstance(kernel, GpuKernel) else 0
    return cluster, hashlib.sha256(nameless(kernel).encode()).digest()


def ptx_of(text: str, chip: str) -> str:
    """PTX of the gpu.modules in ``text``. Raises :class:`CompileError`."""
    key = cache.key("ptx", text, chip)
    found = cache.load(key)
    if found is not None:
        return found.decode()
    code = ptx.to_ptx(text, chip)
    cache.store(key, code.encode())
    return code


def code_of(module: KernelModule, chip: str) -> str:
    """PTX of a GPU's kernels. Raises :class:`CompileError`."""
    return module.ptx if isinstance(module, AssembledModule) else ptx_of(module.tiled(), chip)


def host_code(text: str, plain_loops: bool = False) -> llvm.HostCode:
    """The loaded functions of the MLIR module ``text``. ``plain_loops``: as :func:`llvm.compile_object` has it. Raises
    :class:`CompileError`."""
    key = cache.key("object", text, *llvm.processor(), *(["plain loops"] if plain_loops else []))
    code = cache.load(key)
    if code is None:
        code = llvm.compile_object(text, plain_loops)
        cache.store(key, code)
    return llvm.HostCode(code)


def load(target: Target, module: KernelModule, slots: Slots, known: Known | None = None) -> tuple[int, Any]:
    """The address of the function that launches the kernels of ``module``, 0 where there are none, and what must live
    as long as it: its code, and each kernel by its name. Writes the addresses that ``slots`` asks for. Kernels that are
    in ``known`` are not compiled again, new ones are added. Raises :class:`CompileError`, and
    :class:`UnsupportedError` for a GPU that is not there."""
    if not module.kernels:
        return 0, None
    slots.functions = {
        what: _native.symbols()[what] for kind, what in slots.ints if kind == "handle" and what in _native.symbols()
    }
    if not module.on_gpu and ("handle", module.kernels[0].name) not in slots.ints:  # its host function names it
        code = host_code(module.text())
        return code.address("launch"), code
    known = {} if known is None or isinstance(module, AssembledModule) else known
    keys = {kernel.name: _key(kernel) for kernel in module.kernels}
    kernels = {name: known[key] for name, key in keys.items() if key in known}
    new = replace(module, kernels=tuple(k for k in module.kernels if k.name not in kernels))
    host, made = _load_on_gpu(target, new, slots) if module.on_gpu else _load_on_cpu(new)
    kernels |= made
    for name, key in keys.items():
        known[key] = kernels[name]
        slots.functions[name] = kernels[name].address
    return host.address("launch"), [host, kernels]


def _load_on_cpu(module: KernelModule) -> tuple[llvm.HostCode, dict[str, LoadedKernel]]:
    """The host function of ``module`` and its kernels."""
    code = host_code(module.text())
    return code, {kernel.name: LoadedKernel(code.address(kernel.name), code) for kernel in module.kernels}


def _load_on_gpu(target: Target, module: KernelModule, slots: Slots) -> tuple[llvm.HostCode, dict[str, LoadedKernel]]:
    """The host function of ``module`` and its kernels, on the target's device."""
    chip: str = target.machine.chip  # type: ignore[union-attr]  # a GPU's, for it has GPU kernels
    device = target.device
    if device is None:
        raise UnsupportedError(f"target {chip} is no device of this machine: only its code can be looked at")
    if BAD_INDEX in slots.functions:
        _native.map_bad_index(device)
    if not module.kernels:
        return host_code(module.launching()), {}
    text = code_of(module, chip)
    loading = beside(lambda: _native.Module(text.encode() + b"\0", device))
    try:
        host = host_code(module.launching())  # while the driver compiles the kernels
    finally:
        home = loading.result()
    made = {}
    for kernel in module.kernels:
        assert isinstance(kernel, GpuKernel)
        made[kernel.name] = LoadedKernel(home.function(kernel.name, 0, kernel.cluster > 8), home)
    return host, made


def load_kernel(target: Target, module: KernelModule) -> tuple[int, Any]:
    """The only kernel of ``module``, without its host function: its address on the CPU, the driver's handle on a GPU;
    and what must live as long as it. Raises as :func:`load` does."""
    (kernel,) = module.kernels
    if not module.on_gpu:
        code = host_code(module.tiled())
        return code.address(kernel.name), [None, {kernel.name: LoadedKernel(code.address(kernel.name), code)}]
    chip: str = target.machine.chip  # type: ignore[union-attr]  # a GPU's, for it has GPU kernels
    if target.device is None:
        raise UnsupportedError(f"target {chip} is no device of this machine: only its code can be looked at")
    loaded = _native.Module(code_of(module, chip).encode() + b"\0", target.device)
    handle = loaded.function(kernel.name)
    return handle, [None, {kernel.name: LoadedKernel(handle, loaded)}]
