"""Rewrites the user's function: loops and branches stay in Python, and the straight-line regions between them become
calls.

    for t in range(n):                        for t in iterated(regions[0](locals())):
        un = u.copy()                   =>        (un, err) = regions[1](locals())
        u[1:] = un[:-1]                           (test,) = regions[2](locals())
        err = np.abs(u - un).max()                if truth(test): break
        if err < tol: break
"""

from __future__ import annotations

import ast
import copy
import types
from collections.abc import Callable
from typing import Any

from mlirfuse.frontend.numpy import syntax

REGIONS, TRUTH, ITERATED = "mlirfuse_regions", "mlirfuse_truth", "mlirfuse_iterated"
_STRAIGHT = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Pass)
_AS_THEY_ARE = (ast.Break, ast.Continue, ast.Raise, ast.Import, ast.ImportFrom, ast.Delete)
_NEVER = (
    ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.NamedExpr, ast.Global, ast.Nonlocal, ast.Try,
    ast.TryStar, ast.With, ast.AsyncWith, ast.AsyncFor, ast.Await, ast.Match,
)  # fmt: skip
PERHAPS = (ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)  # lazily evaluated
_READ = {"float", "int", "bool", "complex", "print", "str", "repr", "round", "range"}  # functions that need host values


def rewritten(
    fn: types.FunctionType, region: Callable[[list[ast.stmt], list[str], set[str]], Any], helpers: dict[str, Any]
) -> types.FunctionType:
    """``fn`` with each region replaced by a call of ``region(statements, names, variables)``, created once: it takes
    the variables and returns the values of those names, which later code reads. ``helpers``: the functions of truth and
    iteration. Raises NotOutlinable."""
    definition = syntax.parsed(fn)
    if syntax.looks_at_variables(definition):
        raise syntax.NotOutlinable("a function that reads locals() or its frame")
    for found in ast.walk(definition):
        if found is not definition and isinstance(found, _NEVER):
            raise syntax.NotOutlinable(f"a {type(found).__name__} in a function with loops")
        if isinstance(found, (ast.For, ast.While)) and found.orelse:
            raise syntax.NotOutlinable("a loop with an else")
    if not any(isinstance(found, (ast.For, ast.While)) for found in ast.walk(definition)):
        raise syntax.NotOutlinable("no loops")
    local = set(fn.__code__.co_varnames) | set(fn.__code__.co_cellvars)
    rewriter = _Rewriter(local)
    body = rewriter.block(definition.body)
    wanted = _wanted(rewriter.runs, body)
    for names, call in zip(wanted, rewriter.calls):
        call.targets[0].elts = [ast.copy_location(ast.Name(name, ast.Store()), call) for name in names]
    created = [region(run, names, rewriter.local) for run, names in zip(rewriter.runs, wanted)]
    return syntax.remade(fn, definition.name, definition.args, body, {REGIONS: created, **helpers})


class _Rewriter:
    """Rewrites blocks; ``runs`` are the regions' statements, ``calls`` the statements that replace them."""

    def __init__(self, local: set[str]):
        self.local = local
        self.runs: list[list[ast.stmt]] = []
        self.calls: list[Any] = []
        self._temporaries = 0

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        run: list[ast.stmt] = []
        for statement in statements:
            self._statement(statement, run, out)
        self._end(run, out)
        return out

    def _statement(self, node: ast.stmt, run: list[ast.stmt], out: list[ast.stmt]) -> None:
        """Appends the statement to the current region, or ends it."""
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
            return
        created: ast.stmt | None
        if isinstance(node, _STRAIGHT):
            created = self._append(node, run)
            if created is None:
                run += self._apart(node)
                return
        elif isinstance(node, ast.If):
            test = self._condition(node.test, run, out)
            self._end(run, out)
            created = ast.If(test, self.block(node.body), self.block(node.orelse))
        elif isinstance(node, ast.While):
            self._end(run, out)
            inside: list[ast.stmt] = []
            head: list[ast.stmt] = []
            test = self._condition(node.test, head, inside)
            self._end(head, inside)
            inside.append(syntax.at(node, ast.If(ast.UnaryOp(ast.Not(), test), [ast.Break()], [])))
            created = ast.While(ast.Constant(True), inside + self.block(node.body), [])
        elif isinstance(node, ast.For):
            values = self._iterated(node.iter, run)
            self._end(run, out)
            created = ast.For(node.target, values, self.block(node.body), [])
        elif isinstance(node, ast.Return):
            created = node
            if node.value is not None and not _only_names(node.value):
                created = ast.Return(self._value(node.value, run))
        elif isinstance(node, ast.Assert):
            created = ast.Assert(self._condition(node.test, run, out), node.msg)
        elif isinstance(node, _AS_THEY_ARE):
            created = node
        else:
            raise syntax.NotOutlinable(f"a {type(node).__name__} in a function with loops")
        self._end(run, out)
        out.append(syntax.at(node, created))

    def _end(self, run: list[ast.stmt], out: list[ast.stmt]) -> None:
        if run:
            call: Any = ast.parse(f"() = {REGIONS}[{len(self.runs)}](locals())").body[0]
            syntax.place([call], run[0])
            self.runs.append(list(run))
            self.calls.append(call)
            out.append(call)
            run.clear()

    def _temporary(self) -> str:
        self._temporaries += 1
        name = f"mlirfuse_value{self._temporaries}"
        self.local.add(name)
        return name

    def _value(self, expression: ast.expr, run: list[ast.stmt]) -> ast.expr:
        """The expression's value, computed at the end of the region."""
        name = self._temporary()
        run += self._apart(syntax.assignment(name, expression))
        return syntax.at(expression, ast.Name(name, ast.Load()))

    def _iterated(self, expression: ast.expr, run: list[ast.stmt]) -> ast.expr:
        """A loop's iterable; those within zip and enumerate are converted one by one."""
        if isinstance(expression, ast.Call) and getattr(expression.func, "id", "") in ("zip", "enumerate"):
            created = copy.copy(expression)
            created.args = [self._iterated(arg, run) for arg in expression.args]
            return created
        return _call(ITERATED, self._value(expression, run))

    def _condition(self, test: ast.expr, run: list[ast.stmt], out: list[ast.stmt]) -> ast.expr:
        """The truth of a test; operands of ``and`` and ``or`` are evaluated where Python evaluates them."""
        if not isinstance(test, ast.BoolOp):
            return _call(TRUTH, self._value(test, run))
        self._end(run, out)
        name = self._temporary()
        into = out
        for k, value in enumerate(test.values):
            part: list[ast.stmt] = []
            inside: list[ast.stmt] = []
            found = self._condition(value, part, inside)
            self._end(part, inside)
            inside.append(syntax.assignment(name, found))
            into += inside
            if k < len(test.values) - 1:
                known: ast.expr = ast.Name(name, ast.Load())
                goes_on = known if isinstance(test.op, ast.And) else ast.UnaryOp(ast.Not(), known)
                further: list[ast.stmt] = []
                into.append(syntax.at(value, ast.If(goes_on, further, [])))
                into = further
        return syntax.at(test, ast.Name(name, ast.Load()))

    def _append(self, node: ast.stmt, run: list[ast.stmt]) -> ast.stmt | None:
        """``name.append(value)`` as Python, its value computed in the region before."""
        name = syntax.appended(node) if isinstance(node, ast.Expr) else None
        if name is None or name.id not in self.local:
            return None
        assert isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        call = copy.copy(node.value)
        call.args = [call.args[0] if _only_names(call.args[0]) else self._value(call.args[0], run)]
        return syntax.at(node, ast.Expr(call))

    def _apart(self, node: ast.stmt) -> list[ast.stmt]:
        """The statement, with values that float, int … convert to Python numbers computed in statements before it, and
        also values stored into an element, as a list's elements are Python's to store."""
        parts = (ast.Subscript, ast.Attribute)
        stored = isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], parts)
        if isinstance(node, ast.Assign) and stored and not _only_names(node.value):
            name = self._temporary()
            store = syntax.at(node, ast.Assign(node.targets, ast.Name(name, ast.Load())))
            return [*self._apart(syntax.assignment(name, node.value)), *self._apart(store)]
        taken = _Numbers(self._temporary)
        created: Any = taken.visit(copy.deepcopy(node))
        return [*taken.before, created]


class _Numbers(syntax.Hoisting):
    """Moves the arguments of float, int … out of an expression, except where they may not be evaluated."""

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, PERHAPS):
            return node
        self.generic_visit(node)
        if isinstance(node, ast.Call) and reads_values(node):
            stay = (ast.Name, ast.Constant, ast.Starred, ast.JoinedStr)
            node.args = [arg if isinstance(arg, stay) else self.hoisted(arg) for arg in node.args]
        return node


def reads_values(node: ast.Call) -> bool:
    """Whether a call is float(x), int(x), print(x) …"""
    return isinstance(node.func, ast.Name) and node.func.id in _READ


def _only_names(node: ast.expr) -> bool:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return all(isinstance(part, (ast.Name, ast.Constant)) for part in parts)


def _call(helper: str, value: ast.expr) -> ast.Call:
    return syntax.at(value, ast.Call(ast.Name(helper, ast.Load()), [value], []))


def _wanted(runs: list[list[ast.stmt]], body: list[ast.stmt]) -> list[list[str]]:
    """For each region, the names it assigns that another region reads, Python between them, or itself in the next
    iteration."""
    readers: dict[str, set[int | None]] = {}
    for k, run in enumerate(runs):
        for name in syntax.names_of(run, ast.Load):
            readers.setdefault(name, set()).add(k)
    for name in syntax.names_of(body, ast.Load):
        readers.setdefault(name, set()).add(None)
    return [
        [
            name
            for name in syntax.names_of(run, ast.Store)
            if readers.get(name, set()) - {k} or name in syntax.read_before_assigned(run)
        ]
        for k, run in enumerate(runs)
    ]
