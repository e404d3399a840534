"""The source of the user's functions: parsed to syntax trees, asked about, and compiled again once rewritten."""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import inspect
import itertools
import linecache
import textwrap
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np

from mlirfuse.frontend.numpy.scope import UNSET, attribute_of, content_of, namespace_of


class NotOutlinable(Exception):
    """The function, a loop, or a part of it, cannot be compiled; the message says why."""


class NoSource(NotOutlinable):
    """The source of a function cannot be read: it came from ``exec``, or its file has changed."""


@functools.lru_cache(256)
def _parsed(code: types.CodeType) -> ast.FunctionDef:
    if code.co_name == "<lambda>":
        raise NotOutlinable("a lambda")
    try:
        linecache.checkcache(code.co_filename)
        lines = linecache.getlines(code.co_filename)  # inspect.getsource visits every module: 20 ms
        tree = ast.parse(textwrap.dedent("".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))))
    except SyntaxError as error:
        raise NoSource(str(error)) from None
    found = tree.body[0] if tree.body else None
    _mangle(found, _class_of(code))
    if not isinstance(found, ast.FunctionDef) or found.name != code.co_name or not _is_of(found, code):
        raise NoSource("a function whose source has changed")
    ast.increment_lineno(found, code.co_firstlineno - 1)
    return found


def _class_of(code: types.CodeType) -> str:
    """The class whose body defines a function or the function around it; empty if there is none."""
    names = code.co_qualname.split(".")
    found = [name for name, inside in itertools.pairwise(names) if "<locals>" not in (name, inside)]
    return found[-1] if found else ""


def _mangle(definition: ast.stmt | None, owner: str) -> None:
    """Writes the private names (``__name``) of a method as Python does in the body of the class ``owner``, which a
    method that is compiled outside of it has lost. Classes inside of the method keep theirs."""
    prefix = f"_{owner.lstrip('_')}"
    if definition is None or prefix == "_":
        return
    queue = list(ast.iter_child_nodes(definition))
    while queue:
        found = queue.pop()
        for field in () if isinstance(found, ast.keyword) else _IDENTIFIERS:  # nor does Python in calls
            name = getattr(found, field, None)
            if isinstance(name, list):
                setattr(found, field, [_mangled(n, prefix) if isinstance(n, str) else n for n in name])
            elif isinstance(name, str):
                setattr(found, field, _mangled(name, prefix))
        outside = [*found.decorator_list, *found.bases] if isinstance(found, ast.ClassDef) else None
        queue.extend(ast.iter_child_nodes(found) if outside is None else outside)


_IDENTIFIERS = ("id", "attr", "arg", "name", "asname", "names", "rest")  # as the nodes of a syntax tree call them


def _mangled(name: str, prefix: str) -> str:
    return prefix + name if name.startswith("__") and not name.endswith("__") and "." not in name else name


def parsed(function: types.FunctionType) -> ast.FunctionDef:
    """The definition of ``function``, with its file's line numbers. Raises NotOutlinable where there is none, or it
    differs from the compiled code."""
    linecache.lazycache(function.__code__.co_filename, function.__globals__)  # a module's loader may have its source
    return _parsed(function.__code__)


def _is_of(definition: ast.FunctionDef, code: types.CodeType) -> bool:
    """Whether the source still compiles to ``code``."""
    spec = definition.args
    names = [a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
    if tuple(names) != code.co_varnames[: len(names)]:
        return False
    plain = copy.copy(definition)
    plain.decorator_list = []
    try:
        module = _compiled(plain, code)
    except (SyntaxError, ValueError):
        return False
    created = next((c for c in module.co_consts if isinstance(c, types.CodeType)), None)
    # Free variables compile to globals here: compare names, not instructions.
    return (
        created is not None
        and set(created.co_varnames) == set(code.co_varnames)
        and _constants(created) == _constants(code)
    )


def _compiled(definition: ast.stmt, code: types.CodeType) -> types.CodeType:
    """A module of this definition, whose annotations are evaluated or not as in the file of ``code``."""
    future = code.co_flags & __future__.annotations.compiler_flag
    return compile(ast.Module([definition], []), code.co_filename, "exec", future, dont_inherit=True)


def _constants(code: types.CodeType) -> set:
    return {repr(c) for c in code.co_consts if isinstance(c, (int, float, complex, bytes, tuple))}


def appended(node: ast.Expr) -> ast.Name | None:
    """The name of the list in ``name.append(value)``; None for other statements."""
    call = node.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "append":
        return None
    name = call.func.value
    plain = len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)
    return name if plain and isinstance(name, ast.Name) else None


def ignores(call: ast.Call) -> bool:
    """Whether a call of ``np.errstate`` or the like sets errors to "ignore" alone."""
    return not call.args and all(isinstance(k.value, ast.Constant) and k.value.value == "ignore" for k in call.keywords)


def dotted(node: ast.expr) -> str | None:
    """``a.b.c`` as text; None for anything but attributes of a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) and names else None


def attributes_read(node: ast.stmt, assigned: Collection[str]) -> set[str]:
    """The attributes, as :func:`dotted`, of variables that a loop does not assign: they are loop-invariant, as compiled
    code assigns no attributes."""
    found = {dotted(n) for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
    return {name for name in found if name is not None and name.partition(".")[0] not in assigned}


def only_for_attributes(node: ast.stmt, names: Collection[str]) -> set[str]:
    """The subset of ``names`` whose attributes alone a loop uses."""
    nodes = list(ast.walk(node))
    bases = {id(n.value) for n in nodes if isinstance(n, ast.Attribute)}
    return set(names) - {n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in bases}


def has_attributes(value: Any) -> bool:
    """Whether ``value`` is a user's object, also with slots, or a named tuple."""
    if namespace_of(value) is not None:
        return True
    return hasattr(type(value), "_fields") or any("__slots__" in vars(kind) for kind in type(value).__mro__)


_USUAL_ACCESS = (object.__getattribute__, tuple.__getattribute__)
_DATA = (bool, int, float, complex, np.ndarray)


def attribute_data(value: Any, attributes: Collection[str]) -> Any:
    """The number or array at a path of attributes of a user's object, where reading them runs no code; else
    :func:`attribute_data` itself."""
    for name in attributes:
        if not has_attributes(value) or type(value).__getattribute__ not in _USUAL_ACCESS:
            return attribute_data
        kind = inspect.getattr_static(type(value), name, None)
        if isinstance(kind, types.MemberDescriptorType) or name in getattr(type(value), "_fields", ()):
            value = getattr(value, name, attribute_data)  # a slot, or a named tuple's field
        elif hasattr(type(kind), "__get__"):  # a property
            return attribute_data
        else:
            value = attribute_of(value, name)[1] if namespace_of(value) is not None else attribute_data
    return value if type(value) in _DATA or isinstance(value, np.generic) else attribute_data


def looks_at_variables(definition: ast.FunctionDef) -> bool:
    """Whether a function reads its own variables (``locals()``, frames), or is a generator."""
    words = {"locals", "vars", "exec", "eval", "dir", "super", "_getframe", "currentframe"}
    for found in ast.walk(definition):
        name = found.id if isinstance(found, ast.Name) else found.attr if isinstance(found, ast.Attribute) else None
        if name in words or (name or "").startswith("mlirfuse_") or isinstance(found, (ast.Yield, ast.YieldFrom)):
            return True
    return False


class Scope:
    """Resolves a name that is not a local variable of the function. Raises LookupError."""

    def __init__(self, fn: types.FunctionType):
        self.globals, self.file = fn.__globals__, fn.__code__.co_filename
        builtins = self.globals["__builtins__"]
        self.builtins: dict[str, Any] = builtins if isinstance(builtins, dict) else vars(builtins)
        self.cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))

    def __call__(self, name: str) -> Any:
        found = self.get(name, UNSET)
        if found is UNSET:
            raise LookupError(name)
        return found

    def get(self, name: str, otherwise: Any = None) -> Any:
        """The value of a name; ``otherwise`` where it has none."""
        if name in self.cells:
            found = content_of(self.cells[name])
            return otherwise if found is UNSET else found
        return self.globals[name] if name in self.globals else self.builtins.get(name, otherwise)


def remade(
    fn: types.FunctionType, name: str, spec: ast.arguments, body: list[ast.stmt], added: dict[str, Any]
) -> types.FunctionType:
    """A function ``name`` with these arguments and statements, the globals and closure of ``fn``, and its defaults;
    ``added``: further closure variables."""
    free = list(fn.__code__.co_freevars)
    bare = copy.deepcopy(spec)
    bare.defaults, bare.kw_defaults = [], [None for _ in spec.kwonlyargs]
    for arg in (*bare.posonlyargs, *bare.args, *bare.kwonlyargs, bare.vararg, bare.kwarg):
        if arg is not None:
            arg.annotation = None
    inner: Any = ast.parse("def inner(): pass").body[0]
    inner.name = f".{name}"  # not an identifier: in its own body the name must still refer to the original function
    inner.args, inner.body = bare, body
    outer: Any = ast.parse(f"def outer({', '.join([*free, *added])}): pass").body[0]
    outer.body = [inner]
    ast.copy_location(inner, body[0])
    ast.fix_missing_locations(outer)
    module = _compiled(outer, fn.__code__)
    code = next(c for c in module.co_consts if isinstance(c, types.CodeType))
    code = next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == inner.name)
    code = code.replace(co_name=name, co_qualname=name)
    cells = dict(zip(free, fn.__closure__ or ())) | {k: types.CellType(v) for k, v in added.items()}
    created = types.FunctionType(
        code, fn.__globals__, fn.__name__, fn.__defaults__, tuple(cells[name] for name in code.co_freevars)
    )
    created.__kwdefaults__ = fn.__kwdefaults__
    created.__qualname__, created.__module__, created.__doc__ = fn.__qualname__, fn.__module__, fn.__doc__
    return created


# ---- what statements do


def over_range(node: ast.For) -> bool:
    called = node.iter.args if called_by_name(node.iter, "reversed") else [node.iter]
    return len(called) == 1 and called_by_name(called[0], "range")


def called_by_name(node: ast.expr, name: str) -> TypeGuard[ast.Call]:
    """Whether an expression is a call of this name without keywords."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name and not node.keywords


def loops_of(statements: list[ast.stmt]) -> Iterator[ast.For | ast.While]:
    """The ``while`` loops and those over a range, without nested functions'."""
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(statement, ast.While) or (isinstance(statement, ast.For) and over_range(statement)):
            yield statement
        for field in ("body", "orelse", "finalbody"):
            yield from loops_of(getattr(statement, field, []))


def unrolls(definition: ast.FunctionDef, known_counts: bool = True) -> bool:
    """Whether a trace would unroll a function's loops at a cost: it has a ``while``, or writes into arrays in a loop
    over a range. ``known_counts``: also in one of constant trip count."""
    for loop in loops_of(definition.body):
        if isinstance(loop, ast.While):
            return True
        assert isinstance(loop.iter, ast.Call)
        counted = all(isinstance(arg, ast.Constant) for arg in loop.iter.args)
        written = any(isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store) for n in ast.walk(loop))
        if written and (known_counts or not counted):
            return True
    return False


def natively(node: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a loop that are compiled: all but the statements that leave the function, which run as Python."""
    queue: list[ast.AST] = [node]
    while queue:
        found = queue.pop()
        yield found
        if not isinstance(found, (ast.Return, ast.Raise)):
            queue.extend(ast.iter_child_nodes(found))


def names_of(nodes: Sequence[ast.AST], context: type) -> list[str]:
    """The names read (``ast.Load``) or assigned (``ast.Store``), in order without duplicates; excludes comprehensions'
    own names."""
    found: dict[str, None] = {}
    for node in nodes:
        _add_names(node, context, frozenset(), found)
    return list(found)


def _add_names(node: ast.AST, context: type, own: frozenset[str], found: dict[str, None]) -> None:
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, context) and node.id not in own:
            found[node.id] = None
        return
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        targets = [n for part in node.generators for n in ast.walk(part.target)]
        own = own | {n.id for n in targets if isinstance(n, ast.Name)}
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and context is ast.Load:
        found[node.target.id] = None
    for child in ast.iter_child_nodes(node):
        _add_names(child, context, own, found)


def assigned_names(statements: Sequence[ast.stmt]) -> list[str]:
    """The names that statements assign."""
    return names_of(statements, ast.Store)


def read_before_assigned(statements: Sequence[ast.stmt]) -> list[str]:
    """The names whose values from before the statements are used."""
    found: dict[str, None] = {}
    assigned: set[str] = set()
    for statement in statements:
        found |= dict.fromkeys(name for name in names_of([statement], ast.Load) if name not in assigned)
        assigned |= set(names_of([statement], ast.Store))
    return list(found)


# ---- new nodes


def at(where: ast.AST, node: Any) -> Any:
    """The new ``node`` at the source location of ``where``, with the new nodes in it."""
    return ast.fix_missing_locations(ast.copy_location(node, where))


def assignment(name: str, value: ast.expr) -> ast.Assign:
    """``name = value``, where the value stands."""
    return at(value, ast.Assign([ast.Name(name, ast.Store())], value))


class Hoisting(ast.NodeTransformer):
    """Moves subexpressions of a statement into assignments ``before`` it. ``name`` returns the name of a new
    variable."""

    def __init__(self, name: Callable[[], str]):
        self.name = name
        self.before: list[ast.stmt] = []

    def hoisted(self, node: ast.expr) -> ast.Name:
        """The variable that gets the value of ``node``."""
        name = self.name()
        self.before.append(assignment(name, node))
        return at(node, ast.Name(name, ast.Load()))


def place(nodes: Sequence[ast.AST], where: ast.stmt, but: Collection[ast.stmt] = ()) -> None:
    """Copies a statement's source location to others, except ``but``."""
    queue: list[ast.AST] = list(nodes)
    while queue:
        found = queue.pop()
        if found in but:
            continue
        if hasattr(found, "lineno") or isinstance(found, (ast.stmt, ast.expr)):
            ast.copy_location(found, where)
        queue.extend(ast.iter_child_nodes(found))
