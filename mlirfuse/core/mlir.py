"""The one place that imports MLIR's Python bindings.

They come from the package ``numba_cuda_mlir``, or from ``mlirfuse_mlir``, which has its bindings alone and is loaded
under the same name, because that name is compiled in (see docs/internals/mlir.md). Importing ``numba_cuda_mlir`` runs
its ``__init__``, a CUDA compiler of its own, which takes 0.3 s; so an empty module stands in for it in ``sys.modules``
and only the bindings underneath are loaded. The original ``__init__`` loads its libraries with ``RTLD_DEEPBIND`` so
that another LLVM in the process (llvmlite's, torch's) cannot override their symbols; the same is done here.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import importlib.util
import os
import re
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

from mlirfuse.core.errors import CompileError

_PACKAGE = "numba_cuda_mlir"


def _load_bindings() -> list[ctypes.CDLL]:
    if _PACKAGE in sys.modules:
        return []
    spec = importlib.util.find_spec("mlirfuse_mlir") or importlib.util.find_spec(_PACKAGE)
    if spec is None:
        raise ImportError("mlirfuse needs MLIR's Python bindings: pip install 'numba-cuda-mlir>=0.6,<0.7'")
    stand_in = types.ModuleType(_PACKAGE)
    stand_in.__path__ = list(spec.submodule_search_locations or ())
    stand_in.__spec__ = spec
    libraries = os.path.join(stand_in.__path__[0], "_mlir", "_mlir_libs")
    # Binding every symbol of MLIR at once would take 15 ms.
    mode = os.RTLD_LAZY | os.RTLD_LOCAL | getattr(os, "RTLD_DEEPBIND", 0)
    names = ("libMLIRPythonCAPI.so", "libMLIRPythonSupport-numba_cuda_mlir.so")
    handles = [ctypes.CDLL(os.path.join(libraries, name), mode=mode) for name in names]
    sys.modules[_PACKAGE] = stand_in
    return handles


_handles = _load_bindings()

from numba_cuda_mlir._mlir import ir, passmanager  # noqa: E402
from numba_cuda_mlir._mlir._mlir_libs import _mlir, _mlirRegisterEverything, get_dialect_registry  # noqa: E402
from numba_cuda_mlir._mlir._mlir_libs import _mlirDialectsLLVM as _llvm  # noqa: E402
from numba_cuda_mlir._mlir.dialects import ext  # noqa: E402, F401

# Where the bindings look for a dialect's Python module: where they find none, they search again at each operation,
# which takes half of a pass's time.
_mlir.globals.append_dialect_search_prefix("mlirfuse.dialects")

PassManager = passmanager.PassManager
MLIRError = ir.MLIRError

_BareContext: type[ir.Context] = ir.Context.__base__  # ir.Context loads each dialect there is, which takes 4 to 11 ms

_local = threading.local()
_USES_OF_A_CONTEXT = 256  # a context keeps every constant, type and name that it has seen


def version() -> str:
    """The version of the package that the bindings come from."""
    from numba_cuda_mlir._version import __version__

    return __version__


def plain_context() -> ir.Context:
    """Return this thread's MLIR context without the fusion dialect, which takes longer to load than a small kernel to
    compile. It is replaced from time to time, so that its uniqued constants and types do not accumulate."""
    found, uses = getattr(_local, "plain", (None, _USES_OF_A_CONTEXT))
    if uses >= _USES_OF_A_CONTEXT:
        found, uses = _BareContext(), 0
        found.append_dialect_registry(get_dialect_registry())
        _mlirRegisterEverything.register_llvm_translations(found)
        found.enable_multithreading(False)
    _local.plain = found, uses + 1
    return found


def parsed(text: str) -> ir.Module:
    """The module ``text`` in this thread's context without the fusion dialect; :data:`MLIRError` for a faulty one."""
    context = plain_context()
    if _handles and getattr(_local, "without_lock", False):
        module = _parsed_without_gil(text.encode(), context)
        if module is not None:
            return module
    with context:
        return ir.Module.parse(text)


def run_passes(module: ir.Module, pipeline: str, verify: bool = True) -> None:
    """Run MLIR's own passes on ``module`` in place; ``pipeline`` has the syntax of ``mlir-opt``. ``verify``: verify the
    module after each pass, which takes two fifths of the time of the lowerings to LLVM's dialect."""
    with module.context:
        manager = PassManager.parse(pipeline)
        manager.enable_verifier(verify)
        if _handles and getattr(_local, "without_lock", False):
            _run_without_gil(manager, module)
        else:
            manager.run(module.operation)


@contextlib.contextmanager
def without_lock() -> Iterator[None]:
    """Within it, this thread parses modules and runs passes without the GIL, concurrently with other threads. The
    process must not fork meanwhile."""
    _local.without_lock = True
    try:
        yield
    finally:
        _local.without_lock = False


def _run_without_gil(manager: Any, module: ir.Module) -> None:
    """Run the passes without the GIL. Raises :class:`CompileError`; MLIR's diagnostics are on stderr."""
    run = _handles[0].mlirPassManagerRunOnOp
    run.argtypes, run.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int8
    if not run(_pointer(manager._CAPIPtr), _pointer(module.operation._CAPIPtr)):
        raise CompileError("MLIR's passes failed")


class _StringRef(ctypes.Structure):
    """MlirStringRef."""

    _fields_ = [("data", ctypes.c_char_p), ("length", ctypes.c_size_t)]


_CAPSULE = f"{_PACKAGE}._mlir.ir.Module._CAPIPtr".encode()  # kept: a capsule does not copy its name


def _parsed_without_gil(text: bytes, context: ir.Context) -> ir.Module | None:
    """The module, parsed without the GIL: a sixth of what compiling a kernel takes. None for a faulty one, for which
    the bindings raise a better error."""
    parse = _handles[0].mlirModuleCreateParse
    parse.argtypes, parse.restype = [ctypes.c_void_p, _StringRef], ctypes.c_void_p
    found = parse(_pointer(context._CAPIPtr), _StringRef(text, len(text)))
    if found is None:
        return None
    create = ctypes.pythonapi.PyCapsule_New
    create.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    create.restype = ctypes.py_object
    return ir.Module._CAPICreate(create(found, _CAPSULE, None))


def _pointer(capsule: Any) -> int:
    """The pointer in a capsule of MLIR's Python bindings."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.argtypes, api.PyCapsule_GetName.restype = [ctypes.py_object], ctypes.c_char_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    return api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))


def _library() -> ctypes.PyDLL:
    """MLIR's and LLVM's C API, in the library that the bindings use. Calls keep the GIL, so that no fork happens during
    one."""
    return ctypes.PyDLL(os.path.join(os.path.dirname(_llvm.__file__), "libMLIRPythonCAPI.so"))


def _set_llvm_options(*options: str) -> None:
    """Set LLVM's command-line options for the process."""
    words = [b"mlirfuse", *(option.encode() for option in options)]
    _library().LLVMParseCommandLineOptions(len(words), (ctypes.c_char_p * len(words))(*words), None)


# The generated kernels are already vectorized: LLVM's SLP vectorizer finds nothing more, and took up to half of the
# time of the whole lowering to PTX.
_set_llvm_options("-vectorize-slp=false")


def _pointer_of(owner: Any) -> ctypes.c_void_p:
    """The C API's pointer to a context or an operation of the bindings, valid while ``owner`` lives."""
    unwrap, capsule_name = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_GetName
    unwrap.restype, unwrap.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule_name.restype, capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    capsule = owner._CAPIPtr
    return ctypes.c_void_p(unwrap(capsule, capsule_name(capsule)))


def _declared(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_library(), name)
    function.restype, function.argtypes = result, arguments
    return function


_new_llvm_context = _declared("LLVMContextCreate", ctypes.c_void_p)
_free_llvm_context = _declared("LLVMContextDispose", None, ctypes.c_void_p)
_to_llvm = _declared("mlirTranslateModuleToLLVMIR", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_free_llvm_module = _declared("LLVMDisposeModule", None, ctypes.c_void_p)
_print_llvm_module = _declared("LLVMPrintModuleToString", ctypes.c_void_p, ctypes.c_void_p)
_free_llvm_text = _declared("LLVMDisposeMessage", None, ctypes.c_void_p)


def to_llvm_ir(module: ir.Module) -> str:
    """Return the LLVM IR of a module in the LLVM dialect. Raises :class:`CompileError` if MLIR cannot translate it."""
    # The bindings' own function for this leaks the text.
    context = _new_llvm_context()
    try:
        translated = _to_llvm(_pointer_of(module.operation), context)
        if not translated:
            raise CompileError("MLIR cannot translate the module to LLVM IR")
        try:
            text = _print_llvm_module(translated)
            try:
                return ctypes.string_at(text).decode()
            finally:
                _free_llvm_text(text)
        finally:
            _free_llvm_module(translated)
    finally:
        _free_llvm_context(context)


def allow_unknown_ops(context: ir.Context, namespace: str) -> None:
    """Let the loaded dialect ``namespace`` hold operations that are not registered with MLIR.

    C++ dialects do this with ``allowUnknownOperations()``; neither the bindings nor MLIR's C API have it, and IRDL
    cannot declare an op whose variadic operands differ in type, which ``fusion.group`` needs. So the flag is written
    into ``mlir::Dialect``, behind its name, type id and context, and only if those are found at the expected offsets.
    """
    get_dialect = _declared("mlirContextGetOrLoadDialect", ctypes.c_void_p, ctypes.c_void_p, _StringRef)
    pointer = _pointer_of(context).value
    serialized = namespace.encode()
    address = get_dialect(pointer, _StringRef(serialized, len(serialized)))
    words = (ctypes.c_uint64 * 5).from_address(address)
    if words[2] != len(serialized) or words[4] != pointer or ctypes.string_at(words[1], words[2]) != serialized:
        raise ImportError("this build of MLIR lays out mlir::Dialect differently: install numba-cuda-mlir>=0.6,<0.7")
    flags = ctypes.c_uint8.from_address(address + 5 * 8)
    flags.value |= 1


def walk(module: ir.Module):
    """Iterate over all operations of ``module``, in pre-order."""

    def visit(op):
        yield op
        for region in op.operation.regions:
            for block in region.blocks:
                for nested in block.operations:
                    yield from visit(nested)

    yield from visit(module.operation)


_OPERATION = re.compile(
    r'^ *(?:%[\w:, %]+ = )?"([\w.]+)"', re.MULTILINE
)  # in the generic form, where every name is quoted


def operation_names(module: ir.Module) -> set[str]:
    """Return the names of all operations in ``module``, parsed from its text: for each operation that they return, the
    bindings load the Python classes of its dialect, which takes 50 ms for LLVM's."""
    return set(_OPERATION.findall(module.operation.get_asm(print_generic_op_form=True)))


def gpu_object(attribute) -> bytes:
    """The contents of a ``#gpu.object``."""
    from numba_cuda_mlir._mlir.dialects import gpu

    return gpu.ObjectAttr(attribute).object
