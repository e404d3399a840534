"""Code of kernels, from the disk cache where it is there, and the functions in memory that launch them."""

from __future__ import annotations

from typing import Any

from mlirfuse import _native
from mlirfuse.core.errors import UnsupportedError
from mlirfuse.core.threads import beside
from mlirfuse.lowering import llvm, ptx
from mlirfuse.lowering.module import AssembledModule, GpuKernel, KernelModule
from mlirfuse.lowering.slots import BAD_INDEX, Slots
from mlirfuse.runtime import cache
from mlirfuse.schedule.targets import Target


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


def load(target: Target, module: KernelModule, slots: Slots) -> tuple[int, Any]:
    """The address of the function that launches the kernels of ``module``, 0 where there are none, and what must live
    as long as it. Writes the addresses that ``slots`` asks for. Raises :class:`CompileError`, and
    :class:`UnsupportedError` for a GPU that is not there."""
    if not module.kernels:
        return 0, None
    slots.functions = {
        what: _native.symbols()[what] for kind, what in slots.ints if kind == "handle" and what in _native.symbols()
    }
    if not module.on_gpu:
        code = host_code(module.text())
        return code.address("launch"), code
    chip: str = target.machine.chip  # type: ignore[union-attr]  # a GPU's, for it has GPU kernels
    device = target.device
    if device is None:
        raise UnsupportedError(f"target {chip} is no device of this machine: only its code can be looked at")
    if BAD_INDEX in slots.functions:
        _native.map_bad_index(device)
    text = code_of(module, chip)
    loading = beside(lambda: _native.Module(text.encode() + b"\0", device))
    try:
        host = host_code(module.launching())  # while the driver compiles the kernels
    finally:
        loaded = loading.result()
    for kernel in module.kernels:
        assert isinstance(kernel, GpuKernel)
        slots.functions[kernel.name] = loaded.function(kernel.name, 0, kernel.cluster > 8)
    return host.address("launch"), [loaded, host]


def load_kernel(target: Target, module: KernelModule) -> tuple[int, Any]:
    """The only kernel of ``module``, without its host function: its address on the CPU, the driver's handle on a GPU;
    and what must live as long as it. Raises as :func:`load` does."""
    (kernel,) = module.kernels
    if not module.on_gpu:
        code = host_code(module.tiled())
        return code.address(kernel.name), code
    chip: str = target.machine.chip  # type: ignore[union-attr]  # a GPU's, for it has GPU kernels
    if target.device is None:
        raise UnsupportedError(f"target {chip} is no device of this machine: only its code can be looked at")
    loaded = _native.Module(code_of(module, chip).encode() + b"\0", target.device)
    return loaded.function(kernel.name), loaded
