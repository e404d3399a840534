"""Outlines the loops of the user's function: in the rewritten function each loop statement first tries to run natively.

    for t in range(n):            done = loops[0](locals())
        a[1:] = a[:-1] + t   =>   if done is None:
                                      for t in range(n): …       # its inner loops rewritten in the same way
                                  else:
                                      t, left, = done
                                      if t is unset: del t       # the loop did not run

A ``return`` or ``raise`` in a loop leaves it with the number of that statement, which then runs as Python. In ``try``
and ``with``, an error leaves it with the variables' values, and is then raised. Appends to
lists are logged, and done when the loop ends. The rest of the function runs as Python, on the real arrays.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import types
import warnings
from typing import Any

import numpy as np

from mlirfuse import _native
from mlirfuse.frontend.numpy.loops import live_ranges
from mlirfuse.frontend.numpy.loops.helpers import Calls, Helpers
from mlirfuse.frontend.numpy.loops.iteration import POSITION, iterables, over_ranges
from mlirfuse.frontend.numpy.loops.kernel import Loop
from mlirfuse.frontend.numpy.loops.values import UnsupportedInt, require
from mlirfuse.frontend.numpy.scope import UNSET
from mlirfuse.frontend.numpy.syntax import (
    Scope,
    appended,
    at,
    attributes_read,
    dotted,
    ignores,
    looks_at_variables,
    natively,
    over_range,
    parsed,
    place,
    remade,
    unrolls,
)

_LOOPS, _DONE, _UNSET, _LEFT = "mlirfuse_loops", "mlirfuse_done", "mlirfuse_unset", "mlirfuse_left"
_HELPERS, _UNSUPPORTED = "mlirfuse_helpers", "mlirfuse_unsupported"
_FORMS = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Break, ast.Continue, ast.Pass, ast.Expr,
    ast.Return, ast.Raise, ast.With,
)  # fmt: skip


class Outlined:
    """A function with its loops, and those of the functions that it calls, outlined: the ``function`` to call, its own
    ``loops``, and those ``left`` in Python. ``preferred``: run it so rather than trace it, as it has a ``while``, or a
    loop that writes into arrays; ``longer``: so has it one of a trip count that is not constant; ``tried``: run it so
    if a loop turns out to run natively, as it appends to lists. Raises NotOutlinable."""

    def __init__(self, fn: types.FunctionType, helpers: Helpers | None = None):
        definition = parsed(fn)
        require(not looks_at_variables(definition), "a function that reads locals() or its frame")
        require(not _watches_errors(definition), "a function that enables NumPy's floating-point warnings or errors")
        self.loops: list[Loop] = []
        scope = Scope(fn)
        locals_ = set(fn.__code__.co_varnames) | set(fn.__code__.co_cellvars)
        rewriter = _Rewriter(self.loops, locals_, scope)
        self.left = rewriter.left
        body = rewriter.block(definition.body)
        self._helpers = helpers or Helpers(Outlined)
        calls = Calls(_HELPERS, self._helpers, locals_, scope)
        body = calls.of(body)
        require(self.loops or calls.found, "no loops")
        added = {_LOOPS: self.loops, _UNSET: UNSET, _HELPERS: self._helpers, _UNSUPPORTED: UnsupportedInt}
        self.function = remade(fn, definition.name, definition.args, body, added)
        self.longer: bool = unrolls(definition, False) or any(found.longer for found in calls.found)
        self.preferred = unrolls(definition) or any(found.longer for found in calls.found)
        self.tried = any(loop.lists for loop in self.all_loops())

    def all_loops(self) -> list[Loop]:
        """The function's loops and, behind them, those of functions that it calls."""
        found = [self, *(other for other in self._helpers.all() if other is not self)]
        return [loop for outlined in found for loop in outlined.loops]


def _watches_errors(definition: ast.FunctionDef) -> bool:
    """Whether the function sets NumPy's floating-point errors to other than "ignore"
    (``np.errstate(divide="raise")``)."""
    for node in ast.walk(definition):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("seterr", "seterrcall") or (name == "errstate" and not ignores(node)):
            return True
    return False


_NOT_ENTERED = (contextlib.suppress, warnings.catch_warnings)  # NumPy's warnings and errors of ints reach them


def _enters(node: ast.With, scope: Scope) -> bool:
    """Whether loops may be outlined from a ``with`` statement: it calls known context managers."""
    for item in node.items:
        call = item.context_expr
        named = (dotted(call.func) or getattr(call.func, "id", "")) if isinstance(call, ast.Call) else ""
        path = str(named).split(".")
        try:
            found = functools.reduce(getattr, path[1:], scope(path[0]))
        except (LookupError, AttributeError):
            return False
        if found in _NOT_ENTERED:
            return False
    return True


def _candidate(node: ast.stmt, scope: Scope) -> bool:
    """Whether a loop contains no statement that is never compiled."""
    if isinstance(node, ast.For) and (not over_range(node) or not isinstance(node.target, ast.Name)):
        return False
    if getattr(node, "orelse", None):
        return False
    for found in natively(node):
        if isinstance(found, ast.stmt) and not isinstance(found, _FORMS):
            return False
        if isinstance(found, ast.For) and not over_range(found):
            return False
        if isinstance(found, ast.With) and any(isinstance(n, (ast.Return, ast.Raise)) for n in ast.walk(found)):
            return False  # they would run outside of it
        if isinstance(found, ast.Expr) and not (
            isinstance(found.value, ast.Constant) or appended(found) or _calls_users(found.value, scope)
        ):
            return False
        if isinstance(found, (ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.Dict, ast.DictComp, ast.SetComp,
                              ast.Yield, ast.Await, ast.NamedExpr, ast.JoinedStr)):  # fmt: skip
            return False
    return True


_IN_PLACE = {"fill", "sort", "copyto", "fill_diagonal", "put", "putmask"}  # they write into arrays


def _calls_users(node: ast.expr, scope: Scope) -> bool:
    """Whether an expression calls a function of the user's by name, or one of NumPy's that writes into an array."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _IN_PLACE or isinstance(getattr(np, node.func.attr, None), np.ufunc)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    return isinstance(scope.get(node.func.id), (types.FunctionType, _native.Function))


class _Rewriter:
    """Rewrites blocks of statements."""

    def __init__(self, loops: list[Loop], local: set[str], scope: Scope):
        self.loops, self.local, self.scope = loops, local, scope
        self.left: list[ast.stmt] = []
        self._caught = 0  # statements around, with handlers

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [created for statement in statements for created in self.statement(statement)]

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            return [node]
        if isinstance(node, ast.TryStar) or (isinstance(node, ast.With) and not _enters(node, self.scope)):
            return [node]
        if isinstance(node, (ast.Try, ast.With)):
            return [self._guarded(node)]
        loop = isinstance(node, (ast.For, ast.While))
        native = over_ranges(node, self.local) if loop else node
        outlined = self._outlined(node, native) if loop and _candidate(native, self.scope) else None
        if loop and outlined is None:
            self.left.append(node)
        plain = self._within(node)
        return [plain] if outlined is None else outlined(plain)

    def _guarded(self, node: ast.Try | ast.With) -> ast.stmt:
        """A statement that may catch errors. Its handlers do not get those of unsupported ints."""
        self._caught += 1
        created = self._within(node)
        if isinstance(created, ast.Try) and created.handlers:
            handlers = [copy.copy(handler) for handler in created.handlers]
            for handler in handlers:
                handler.body = self.block(handler.body)
            again = ast.parse(f"try: pass\nexcept {_UNSUPPORTED}: raise").body[0].handlers[0]  # type: ignore[attr-defined]
            created = copy.copy(created)
            created.handlers = [at(node, again), *handlers]
        self._caught -= 1
        return created

    def _within(self, node: ast.stmt) -> ast.stmt:
        """The statement with its blocks rewritten."""
        fields: dict[str, Any] = {}
        for field in ("body", "orelse", "finalbody"):
            inside = getattr(node, field, None)
            if isinstance(inside, list):
                fields[field] = self.block(inside)
        if not fields:
            return node
        created = copy.copy(node)
        for name, value in fields.items():
            setattr(created, name, value)
        return created

    def _outlined(self, node: ast.stmt, native: ast.stmt):
        """Replaces a loop by the call of its native version; ``native``: the statement to compile."""
        if not self._caught:
            live_ranges.split(native)
        found = [n for n in natively(native) if isinstance(n, ast.Name) and live_ranges.MARK not in n.id]
        assigned = sorted({n.id for n in found if isinstance(n.ctx, ast.Store)})
        variables = {name for name in assigned if not name.startswith(POSITION)}
        if not variables <= self.local:  # it assigns globals or enclosing functions' variables
            return None
        appends = [name for n in natively(native) if isinstance(n, ast.Expr) and (name := appended(n)) is not None]
        lists = {name.id for name in appends}
        if any(n.id in lists and n not in appends for n in found):  # a list is used for more than appends
            return None
        number, caught = len(self.loops), bool(self._caught)
        leaves = [n for n in ast.walk(native) if isinstance(n, (ast.Return, ast.Raise))]
        attributes = {name for name in attributes_read(native, set(assigned)) if live_ranges.MARK not in name}
        names = {n.id for n in found} | attributes
        self.loops.append(Loop(native, assigned, sorted(names), self.scope, leaves, lists, iterables(node),
                               caught))  # fmt: skip

        def around(plain: ast.stmt) -> list[ast.stmt]:
            text = f"{_DONE} = {_LOOPS}[{number}](locals())\nif {_DONE} is None:\n    pass\nelse:\n"
            text += f"    {', '.join([*assigned, _LEFT])}, = {_DONE}\n"
            text += "".join(f"    if {name} is {_UNSET}: del {name}\n" for name in assigned)
            text += f"    if {_LEFT}.__class__ is not int: raise {_LEFT}\n" if caught else ""
            text += "".join(f"    if {_LEFT} == {k + 1}: pass\n" for k in range(len(leaves)))
            created = ast.parse(text).body
            ways = created[1].orelse[-len(leaves) :] if leaves else []  # type: ignore[attr-defined]
            created[1].body = [plain]  # type: ignore[attr-defined]
            for way, leave in zip(ways, leaves):
                way.body = [leave]
            place(created, node, {plain, *leaves})
            return created

        return around
