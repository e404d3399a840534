"""Rewrites loops over arrays to loops over ranges, which are equivalent for arrays and are what is compiled.

    for x in a:                      for p in range(len(a)): x = a[p]; …
    for i, x in enumerate(a):        for p in range(len(a)): i = p; x = a[p]; …
    for x, y in zip(a, b):           for p in range(min(len(a), len(b))): x = a[p]; y = b[p]; …
    for i in reversed(range(n)):     for i in range(n - 1, -1, -1): …
    assert t, text                   if not t: raise AssertionError(text)

Other iterables stay. What is no array is found out by its type when the loop begins.
"""

from __future__ import annotations

import ast
import copy

from mlirfuse.frontend.numpy.syntax import at, called_by_name, place

POSITION = "mlirfuse_position"  # begins the names of index variables


def over_ranges(loop: ast.stmt, local: set[str]) -> ast.stmt:
    """A loop statement with it and its inner loops rewritten; ``local``: the function's variables."""
    return _Rewriter(local).visit(copy.deepcopy(loop))


def iterables(loop: ast.stmt) -> list[str]:
    """The variables that a loop, as written, runs over by index."""
    found = loop.iter if isinstance(loop, ast.For) else None
    by_name = [found] if isinstance(found, ast.Name) else found.args if isinstance(found, ast.Call) else []
    if isinstance(found, ast.Call) and not (called_by_name(found, "enumerate") or called_by_name(found, "zip")):
        return []
    return [node.id for node in by_name if isinstance(node, ast.Name)]


class _Rewriter(ast.NodeTransformer):
    def __init__(self, local: set[str]):
        self.local = local

    def visit_Assert(self, node: ast.Assert) -> ast.If | ast.Pass:
        if not __debug__:
            return ast.copy_location(ast.Pass(), node)
        error = ast.Call(ast.Name("AssertionError", ast.Load()), [node.msg] if node.msg else [], [])
        return at(node, ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Raise(error)], []))

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        position = f"{POSITION}_{node.lineno}_{node.col_offset}"
        found = node.iter
        if called_by_name(found, "reversed"):
            self._backwards(node, found)
        elif isinstance(found, ast.Name):
            if self._arrays(node, [found]):
                self._counted(
                    node, position, f"len({found.id})", f"{ast.unparse(node.target)} = {found.id}[{position}]"
                )
        elif called_by_name(found, "enumerate") or called_by_name(found, "zip"):
            if not isinstance(node.target, ast.Tuple) or not self._arrays(node, found.args):
                return node
            names = [ast.unparse(arg) for arg in found.args]
            parts = [ast.unparse(part) for part in node.target.elts]
            values = [f"{name}[{position}]" for name in names]
            if called_by_name(found, "enumerate"):
                values = [position, *values]
            if len(values) == len(parts):
                least = [f"len({name})" for name in names]
                count = least[0] if len(least) == 1 else f"min({', '.join(least)})"
                self._counted(node, position, count, *(f"{part} = {value}" for part, value in zip(parts, values)))
        return node

    def _arrays(self, node: ast.For, iterables: list[ast.expr]) -> bool:
        """Whether the loop may run over these by index: variables that it does not assign."""
        names = {n.id for n in iterables if isinstance(n, ast.Name)}
        changed = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        return len(names) == len(iterables) > 0 and names <= self.local and not names & changed

    def _counted(self, node: ast.For, position: str, count: str, *first: str) -> None:
        (head,) = ast.parse(f"for {position} in range({count}):\n" + "".join(f"    {line}\n" for line in first)).body
        assert isinstance(head, ast.For)
        place([head], node)
        node.target, node.iter, node.body = head.target, head.iter, [*head.body, *node.body]

    def _backwards(self, node: ast.For, reversed_: ast.Call) -> None:
        if len(reversed_.args) != 1 or not called_by_name(numbers := reversed_.args[0], "range"):
            return
        bounds = [ast.unparse(arg) for arg in numbers.args]
        if len(bounds) > 2 or any(isinstance(arg, ast.Starred) for arg in numbers.args):
            return
        start, stop = ("0", bounds[0]) if len(bounds) == 1 else bounds
        node.iter = ast.parse(f"range(({stop}) - 1, ({start}) - 1, -1)", mode="eval").body
        place([node.iter], node)
