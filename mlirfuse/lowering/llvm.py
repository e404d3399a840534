"""Lowers MLIR to running host code: MLIR conversions, LLVM IR, llvmlite's code generator and JIT."""

from __future__ import annotations

import atexit
import ctypes
import functools
import struct
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from mlirfuse.core import mlir
from mlirfuse.core.errors import CompileError
from mlirfuse.core.threads import hold_over_forks, uninterrupted, when_dropped

# Kernels compute indices, bounds and masks where they are used, often in the innermost loop. LLVM's code generator
# moves what does not vary out of loops, but no comparisons, and so no masks that are made of them.
PIPELINE = (
    "builtin.module(loop-invariant-code-motion,convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,"
    "convert-arith-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)"
)

# llvmlite takes this lock around each call into LLVM, whose state all calls share. It is held during a fork, so that
# the child's copy is consistent, and at process exit, when a thread inside LLVM would see it being destroyed. llvmlite
# releases it in Python code, which an interrupt could leave halfway: calls of llvmlite therefore run uninterrupted.
_lock = llvm.ffi.lib._lock._lock
hold_over_forks(_lock)
atexit.register(_lock.acquire)


_free = ctypes.CDLL(None).free
_free.restype, _free.argtypes = None, [ctypes.c_void_p]


@functools.cache
def _target():
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


class Processor(NamedTuple):
    """A processor that code is generated for: LLVM's name of it, its features as LLVM names them, and LLVM's text of
    features to use or to leave."""

    name: str
    features: frozenset[str]
    flags: str


@functools.cache
def host_processor() -> Processor:
    """This machine's processor."""
    features = uninterrupted(llvm.get_host_cpu_features)
    # LLVM avoids 512-bit registers on many processors by default; our vectors are chosen for them.
    taken = [features.flatten()] + (["-prefer-256-bit"] if features.get("avx512f") else [])
    name = uninterrupted(llvm.get_host_cpu_name)
    # AMD's hardware prefetcher ignores gathers: sequential ones take five times as long as loads.
    taken += ["+prefer-no-gather"] if name.startswith("znver") else []
    return Processor(name, frozenset(name for name, there in features.items() if there), ",".join(taken))


_V2 = "cx16 popcnt sahf sse sse2 sse3 ssse3 sse4.1 sse4.2"
_V3 = f"{_V2} avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave"
_LEVELS = {"x86-64": "sse sse2", "x86-64-v3": _V3, "x86-64-v4": f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"}


def processor_of_level(level: str) -> Processor | None:
    """Any processor with the instruction set "x86-64", "x86-64-v3" or "x86-64-v4" of the x86-64 psABI; None for another
    name."""
    if level not in _LEVELS:
        return None
    features = frozenset(_LEVELS[level].split())
    return Processor(level, features, "-prefer-256-bit" if "avx512f" in features else "")


def target_machine(processor: Processor | None = None):
    """Code generation for ``processor``, or this machine's. A JIT engine takes the one it is given: make one for each.

    Code lies beside its constants (HostCode sees to that), so that it finds them relative to itself: the JIT's own code
    model loads the address of each of them in an instruction of its own.
    """
    name, _, flags = processor or host_processor()
    return _target().create_target_machine(cpu=name, features=flags, opt=2, reloc="pic", codemodel="small")


def code_key(processor: Processor | None) -> tuple:
    """What decides the native code of a text: the processor's name, its features, LLVM's version."""
    name, _, flags = processor or host_processor()
    return name, flags, llvm.llvm_version_info


def to_llvm_dialect(text: str):
    """The MLIR module ``text`` lowered to the LLVM dialect."""
    module = mlir.parsed(text)
    mlir.run_passes(module, PIPELINE, verify=False)  # LLVM verifies the result
    return module


def to_llvm_ir(text: str) -> str:
    """The LLVM IR of the MLIR module ``text``. Raises :class:`CompileError`."""
    try:
        module = to_llvm_dialect(text)
    except mlir.MLIRError as error:
        raise CompileError(f"lowering to LLVM failed: {error}") from error
    try:
        return mlir.to_llvm_ir(module)
    except CompileError:
        return translate(module)  # names the offending ops; checking for them every time would take milliseconds


def translate(module) -> str:
    """The LLVM IR of a module in the LLVM dialect. Raises :class:`CompileError` if it has ops of other dialects."""
    left = {n for n in mlir.operation_names(module) if not n.startswith("llvm.") and n != "builtin.module"}
    if left:  # the translation rejects some without naming them, and drops others
        raise CompileError(f"lowering to LLVM left these ops: {', '.join(sorted(left))}")
    return mlir.to_llvm_ir(module)


def optimize(module, machine) -> None:
    """Run the LLVM passes that pay for generated kernels. Their loops are already tiled, vectorized and unrolled, and
    have no common subexpressions, so that the standard pipeline, which takes four times as long, gains nothing more."""
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    passes = llvm.create_new_module_pass_manager()
    passes.add_loop_rotate_pass()  # required to hoist constants out of loops
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_new_gvn_pass()
    passes.add_simplify_cfg_pass()
    _run(passes, builder, module)


def _run(passes, builder, module) -> None:
    """Run passes on a module, and free them."""
    passes.run(module, builder)
    llvm.NewPassManager._dispose(passes)  # llvmlite 0.50 calls the wrong base class's method, which frees nothing
    passes.detach()
    _close(builder)


def _close(builder: Any) -> None:
    """Free a pass builder and its callbacks, 1.5 KB that llvmlite 0.50 leaks."""
    at = ctypes.cast(builder._ptr, ctypes.c_void_p).value
    assert at is not None
    callbacks, _, after = (ctypes.c_size_t * 3).from_address(at + 12 * 8)
    # The layout in LLVM 22: each contains a list whose first elements follow its head.
    known = llvm.llvm_version_info[0] == 22 and after == at + 16 * 8
    known = known and ctypes.c_size_t.from_address(callbacks).value == callbacks + 16
    builder.close()
    if known:
        _free(callbacks)


def optimize_loops(module, machine) -> None:
    """Run LLVM's standard pipeline, for code with the user's own loops: it vectorizes and unrolls them."""
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    _run(builder.getModulePassManager(), builder, module)


def compile_object(text: str, scalar_loops: bool = False, processor: Processor | None = None) -> bytes:
    """An object file (ELF) of the MLIR module ``text`` for ``processor``, or this machine's. ``scalar_loops``: nothing
    in it is vectorized or unrolled yet. Raises :class:`CompileError`."""
    ir = to_llvm_ir(text)
    code = uninterrupted(functools.partial(_object_of, ir, scalar_loops, processor))
    missing = called_outside(code)
    if missing == ["__truncsfbf2"]:
        code = uninterrupted(functools.partial(_object_of, ir + _BFLOAT16_OF_FLOAT32, scalar_loops, processor))
        missing = called_outside(code)
    if missing:  # to load it would end the process
        name = (processor or host_processor()).name
        raise CompileError(
            f"this processor ({name}) needs help for what the code does: {', '.join(missing)}; use float32 for float16"
        )
    return code


# What LLVM calls where it selects or moves bfloat16 as float32, on processors without AVX512-BF16. To the nearest, ties
# to even; the sign and upper bits of a NaN stay.
_BFLOAT16_OF_FLOAT32 = """
define bfloat @__truncsfbf2(float %x) {
  %bits = bitcast float %x to i32
  %upper = lshr i32 %bits, 16
  %odd = and i32 %upper, 1
  %half = add i32 %odd, 32767
  %added = add i32 %bits, %half
  %nearest = lshr i32 %added, 16
  %quiet = or i32 %upper, 64
  %nan = fcmp uno float %x, %x
  %found = select i1 %nan, i32 %quiet, i32 %nearest
  %short = trunc i32 %found to i16
  %result = bitcast i16 %short to bfloat
  ret bfloat %result
}
"""


def _object_of(ir: str, scalar_loops: bool, processor: Processor | None) -> bytes:
    # In a context of its own: one keeps all constants and types that it has seen.
    module, machine = llvm.parse_assembly(ir, llvm.create_context()), target_machine(processor)
    (optimize_loops if scalar_loops else optimize)(module, machine)
    return machine.emit_object(module)


def called_outside(code: bytes) -> list[str]:
    """The undefined symbols of an object file (64-bit ELF)."""
    word, long = (
        (lambda at: int.from_bytes(code[at : at + 4], "little")),
        (lambda at: int.from_bytes(code[at : at + 8], "little")),
    )
    start, size, count = long(0x28), *struct.unpack_from("<HH", code, 0x3A)
    sections = [start + k * size for k in range(count)]
    found = []
    for section in sections:
        if word(section + 4) == 2:  # a symbol table, and its string table
            names = long(sections[word(section + 0x28)] + 0x18)
            for at in range(long(section + 0x18), long(section + 0x18) + long(section + 0x20), 24):
                name, _, _, home = struct.unpack_from("<IBBH", code, at)
                if name and not home:
                    found.append(code[names + name : code.index(b"\0", names + name)].decode())
    return sorted(set(found) - {"_GLOBAL_OFFSET_TABLE_"})


class HostCode:
    """Loaded native code without external references; ``address(name)`` of its functions. Keep it alive while they may
    run."""

    # llvmlite's engine object would be freed wherever it is collected, even in the middle of an interrupt.

    def __init__(self, code: bytes):
        uninterrupted(functools.partial(self._load, code))

    def _load(self, code: bytes) -> None:
        self._engine = _loaded(code)
        when_dropped(self, functools.partial(llvm.ffi.lib.LLVMPY_DisposeExecutionEngine, self._engine))

    def address(self, name: str) -> int:
        return uninterrupted(lambda: llvm.ffi.lib.LLVMPY_GetFunctionAddress(self._engine, name.encode()))


def _loaded(code: bytes):
    """LLVM's pointer to an execution engine with the object file ``code``."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine(), use_lmm=True)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    pointer = engine._ptr
    engine.detach()
    return pointer
