"""The fusion dialect in an MLIR context: a class for each op of the table, with its verifier."""

from __future__ import annotations

import re
import threading
import typing

from mlirfuse.core import mlir
from mlirfuse.core.errors import FusionIRError
from mlirfuse.core.mlir import ext, ir
from mlirfuse.dialects.fusion import verifier
from mlirfuse.ir import ops


class Fusion(ext.Dialect, name="fusion"):  # type: ignore[call-arg]  # mypy does not see the bindings' bases
    """Tensor operations that may be fused into kernels."""


def _define(row: ops.OpDef) -> typing.Any:
    fields: dict = {f"in{k}": ext.Operand[typing.Any] for k in range(len(row.operands))} | {
        "out": ext.Result[typing.Any]
    }
    body = {"__annotations__": fields, "verify_invariants": staticmethod(verifier.verify_op)}
    return type(f"{row.name.title()}Op", (Fusion.Operation,), body, name=row.name)


# IRDL, on which Python-defined ops are based, gives all values of a variadic field one type. Ops with a variable number
# of operands or results are therefore not registered with MLIR; verify() checks them, and the regions, by the same
# rules.
_CLASSES = [_define(row) for row in ops.TABLE.values() if not row.variadic]


class _NoEffects(ir.MemoryEffectsOpInterface):
    @staticmethod
    def get_effects(op, effects):
        pass


def load(context: ir.Context) -> None:
    """Register the dialect in ``context``."""
    with context, ir.Location.unknown():
        Fusion.load(reload=True)
        for cls in _CLASSES:
            if ops.TABLE[cls._op_name].kind != "update":
                _NoEffects.attach(cls.OPERATION_NAME)
    mlir.allow_unknown_ops(context, "fusion")


_local = threading.local()


def context() -> ir.Context:
    """Return this thread's MLIR context with the fusion dialect loaded. Contexts are not shared between threads."""
    found = getattr(_local, "context", None)
    if found is None:
        found = _local.context = ir.Context()
        found.enable_multithreading(False)
        load(found)
    return found


_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2}|.)")


def _check_strings(text: str) -> None:
    """Raise :class:`FusionIRError` for a string whose escaped bytes are not UTF-8: MLIR accepts any bytes, but its
    bindings cannot convert them to text."""
    for found in _STRING.finditer(text) if "\\" in text else ():
        content = _ESCAPE.sub(lambda m: bytes.fromhex(m[1].decode()) if len(m[1]) == 2 else m[1], found[0].encode())
        try:
            content.decode()
        except UnicodeDecodeError as error:
            before = text[: found.start()]
            line, column = before.count("\n") + 1, found.start() - before.rfind("\n")
            bad = f"{content[error.start]:#04x}"
            message = f"the string {found[0]} is not UTF-8: it has the byte {bad}"
            raise FusionIRError(message, f'loc("-":{line}:{column})') from error


def parse(text: str) -> ir.Module:
    """Parse and verify ``text``. Returns the module. Raises ``ir.MLIRError`` for a syntax or verifier error, and
    :class:`FusionIRError` for what MLIR's verifier cannot check."""
    _check_strings(text)
    with context():
        module = ir.Module.parse(text)
    verifier.verify(module)
    return module
