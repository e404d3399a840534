"""The user's functions that an outlined function calls from Python code: their loops are outlined, too."""

from __future__ import annotations

import ast
import contextlib
import copy
import dis
import types
from collections.abc import Callable
from typing import Any

from mlirfuse import _native
from mlirfuse.frontend.numpy.syntax import NotOutlinable, Scope

_JUMPS_BACK = {code for name, code in dis.opmap.items() if "JUMP_BACKWARD" in name}
_DEEPEST = 8  # calls in calls


def jumps_back(function: Any) -> bool:
    """Whether a function may have loops: every loop jumps backward, which the bytecode shows cheaply."""
    return isinstance(function, types.FunctionType) and not _JUMPS_BACK.isdisjoint(function.__code__.co_code[::2])


def called(function: types.FunctionType) -> list[types.FunctionType]:
    """The user's functions among a function's globals that it may call."""
    found = [plain(function.__globals__.get(name)) for name in function.__code__.co_names]
    return [f for f in found if isinstance(f, types.FunctionType) and not str(f.__module__).startswith(_LIBRARIES)]


_LIBRARIES = ("numpy", "scipy", "torch", "mlirfuse.")


def plain(found: Any) -> Any:
    """The function that a jitted one wraps; others as they are."""
    return found.fn if isinstance(found, _native.Function) else found  # type: ignore[attr-defined]


def loops_in_helpers(function: Any, depth: int = 0) -> bool:
    """Whether functions that ``function`` calls, or those they call, may have loops."""
    if not isinstance(function, types.FunctionType) or depth > _DEEPEST:
        return False
    return any(jumps_back(f) or loops_in_helpers(f, depth + 1) for f in called(function) if f is not function)


class Helpers:
    """The outlined versions of functions, made at their first use: called with a function it gives that to call.
    ``make``: outlines a function, given this object; it raises NotOutlinable."""

    def __init__(self, make: Callable[[types.FunctionType, Helpers], Any]):
        self._make = make
        self._known: dict[Any, Any] = {}

    def __call__(self, function: Any) -> Any:
        try:
            found = self._known[function]
        except (KeyError, TypeError):
            found = self.outlined(function)
        return function if found is None else found.function

    def outlined(self, function: Any) -> Any:
        """The outlined version of a function; None where it has none."""
        own = plain(function)
        if not (jumps_back(own) or loops_in_helpers(own)):
            return None
        if function not in self._known:
            self._known[function] = None  # while it is made: a function that calls itself
            with contextlib.suppress(NotOutlinable):
                self._known[function] = self._make(own, self)
        return self._known[function]

    def all(self) -> list:
        """All outlined versions so far."""
        return [found for found in list(self._known.values()) if found is not None]


class Calls(ast.NodeTransformer):
    """Makes the calls of functions with loops, in Python code, call their outlined versions through the variable
    ``name``. ``found``: the functions."""

    def __init__(self, name: str, helpers: Helpers, local: set[str], scope: Scope):
        self.name, self.helpers, self.local, self.scope = name, helpers, local, scope
        self.found: list = []

    def of(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """The statements, rewritten in a copy."""
        return [self.visit(copy.deepcopy(statement)) for statement in statements]

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name) or node.func.id in self.local:
            return node
        try:
            outlined = self.helpers.outlined(self.scope(node.func.id))
        except (LookupError, TypeError):
            return node
        if outlined is not None:
            self.found.append(outlined)
            get = ast.copy_location(ast.Name(self.name, ast.Load()), node.func)
            node.func = ast.copy_location(ast.Call(get, [node.func], []), node.func)
        return node
