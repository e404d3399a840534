"""Renames variables that a block assigns several times, so that each value may have its own type:

    y = x.reshape(4, 4) @ y              y#1 = x.reshape(4, 4) @ y
    y = y.sum(axis=0)              =>    y = y#1.sum(axis=0)

Within a loop the last value keeps the name, as the next iteration and the code behind the loop may read it; within a
function, which ends, it does not.
"""

from __future__ import annotations

import ast
import copy
import functools
import types

from mlirfuse.frontend.numpy.syntax import parsed

MARK = "#"  # in renamed variables, which are thus no identifiers
_LEAVING = (ast.Break, ast.Continue, ast.Return, ast.Raise)


def split(loop: ast.stmt) -> None:
    """Renames the variables in the blocks of a loop, in place."""
    for node in ast.walk(loop):
        for field in ("body", "orelse"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                _split_block(block, True)


@functools.lru_cache(256)
def split_body(function: types.FunctionType) -> ast.FunctionDef:
    """The definition of a function with its variables renamed. Raises NotOutlinable."""
    definition = copy.deepcopy(parsed(function))
    for statement in definition.body:
        split(statement)
    if not any(isinstance(n, (ast.FunctionDef, ast.Lambda)) for s in definition.body for n in ast.walk(s)):
        _split_block(definition.body, False)
    return definition


def _split_block(block: list[ast.stmt], keeps_last: bool) -> None:
    places: dict[str, list[int]] = {}
    for k, statement in enumerate(block):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]):
                places.setdefault(name, []).append(k)
    for name, starts in places.items():
        if MARK in name or (keeps_last and len(starts) < 2):
            continue
        for number, first in enumerate(starts, 1):
            last = number == len(starts)
            if last and keeps_last:
                break
            end = len(block) if last else starts[number]
            between = block[first + 1 : end]
            if keeps_last and any(isinstance(n, _LEAVING) for s in between for n in ast.walk(s)):
                continue
            _rename(block, first, end, name, f"{name}{MARK}{block[first].lineno}.{block[first].col_offset}")


def _rename(block: list[ast.stmt], first: int, end: int, name: str, new: str) -> None:
    """Renames the value that statement ``first`` assigns, up to the statement ``end``, which reads it at most."""
    head = block[first]
    assert isinstance(head, ast.Assign) and isinstance(head.targets[0], ast.Name)
    head.targets[0].id = new
    parts: list[ast.AST] = list(block[first + 1 : end])
    if end < len(block):
        after = block[end]
        assert isinstance(after, ast.Assign)
        parts.append(after.value)
    for part in parts:
        for node in ast.walk(part):
            if isinstance(node, ast.Name) and node.id == name:
                node.id = new
