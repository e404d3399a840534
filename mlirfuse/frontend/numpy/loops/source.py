"""The source of the user's functions, as Python's syntax tree."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import linecache
import textwrap
import types

from mlirfuse.frontend.numpy.loops.values import NotLiftable


@functools.lru_cache(256)
def _parsed(code: types.CodeType) -> ast.FunctionDef:
    try:
        linecache.checkcache(code.co_filename)
        lines = linecache.getlines(code.co_filename)  # inspect.getsource looks at the path of every module: 20 ms
        tree = ast.parse(textwrap.dedent("".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))))
    except SyntaxError as error:
        raise NotLiftable(f"no source: {error}") from None
    found = tree.body[0] if tree.body else None
    if not isinstance(found, ast.FunctionDef) or found.name != code.co_name or not _is_of(found, code):
        raise NotLiftable("no source of a function")
    ast.increment_lineno(found, code.co_firstlineno - 1)
    return found


def parsed(function: types.FunctionType) -> ast.FunctionDef:
    """The definition of ``function``, with the lines of its file. Raises NotLiftable where there is none, or it is not
    what was compiled."""
    linecache.lazycache(function.__code__.co_filename, function.__globals__)  # a module's loader may have its source
    return _parsed(function.__code__)


def _is_of(definition: ast.FunctionDef, code: types.CodeType) -> bool:
    """Whether the source still is what ``code`` was compiled from."""
    spec = definition.args
    names = [a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
    if tuple(names) != code.co_varnames[: len(names)]:
        return False
    plain = copy.copy(definition)
    plain.decorator_list = []
    try:
        module = compile(ast.Module([plain], []), "<source>", "exec")
    except (SyntaxError, ValueError):
        return False
    made = next((c for c in module.co_consts if isinstance(c, types.CodeType)), None)
    # Free variables are globals there: the names tell, not the instructions.
    return made is not None and set(made.co_varnames) == set(code.co_varnames) and _constants(made) == _constants(code)


def _constants(code: types.CodeType) -> set:
    return {repr(c) for c in code.co_consts if isinstance(c, (int, float, complex, bytes, tuple))}


def appended(node: ast.Expr) -> ast.Name | None:
    """The name of the list in ``name.append(value)``; None for another statement."""
    call = node.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "append":
        return None
    name = call.func.value
    plain = len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)
    return name if plain and isinstance(name, ast.Name) else None
