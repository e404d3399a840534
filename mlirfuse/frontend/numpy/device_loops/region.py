"""A straight-line region of statements: the parts that compute with arrays are compiled, the rest runs as Python."""

from __future__ import annotations

import ast
import copy
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.device_loops.rewrite import PERHAPS, reads_values
from mlirfuse.frontend.numpy.scope import spec_of
from mlirfuse.frontend.numpy.syntax import Hoisting, NotOutlinable, Scope, names_of, read_before_assigned, remade
from mlirfuse.frontend.numpy.syntax import at as located
from mlirfuse.runtime import arrays

_MANY = 32  # arrays in a list, from which building one array in NumPy costs less
_SHAPES = {"shape", "ndim", "size", "dtype", "itemsize", "nbytes"}
_OF_SHAPES = {"len", "isinstance", "type"}
_NUMBERS = (int, float, complex, np.number, np.bool_)


# ---- values


def kind(value: Any) -> Any:
    """What a variable holds: a device "array", a device "number", a "list" or "long list" of arrays; on the host "host"
    for numbers, "host list", or the value itself, to which the code specializes."""
    if value is None or isinstance(value, _NUMBERS):
        return "host"
    if _on_device(value):
        return "array" if value.ndim else "number"
    if isinstance(value, (list, tuple, dict)):
        leaves = trees.flatten(value)[0]
        count = sum(map(_on_device, leaves))
        if count:
            return "list" if count < _MANY else "long list"
        if all(leaf is None or isinstance(leaf, _NUMBERS) for leaf in leaves):
            return "host" if isinstance(value, tuple) else "host list"
    try:
        hash(value)
    except TypeError:
        return id(value)
    return _Is(value)


@dataclass(frozen=True)
class _Is:
    value: Any


_ARRAYS = ("array", "number", "list", "long list")
_LISTS = ("list", "long list", "host list")
_TAKE_LISTS = {"sum", "len", "max", "min", "zip", "enumerate", "list", "tuple", "sorted", "reversed", "any", "all"}


def _on_device(value: Any) -> bool:
    return arrays.framework(value) in ("torch", "cupy")


def to_host(value: Any) -> Any:
    """A device value as NumPy's; a 0-d array as a number."""
    if _on_device(value):
        return arrays.to_numpy(value)[()]
    if isinstance(value, (list, tuple, dict)):
        leaves, tree = trees.flatten(value)
        if any(map(_on_device, leaves)):
            return tree.unflatten([to_host(leaf) for leaf in leaves])
    return value


def _shape_of(value: Any) -> Any:
    """A NumPy array with a device array's dtype and shape, and no memory."""
    if not _on_device(value):
        return value
    return np.broadcast_to(np.empty((), spec_of(value).dtype.numpy), tuple(value.shape))


def _owned(value: Any, like: Callable[[], Any], known: dict[int, Any]) -> Any:
    """NumPy arrays converted to device arrays."""
    if isinstance(value, np.ndarray) and value.ndim:
        if value.dtype.kind not in "biufc":
            raise NotOutlinable(f"an array of {value.dtype}")
        if id(value) not in known:
            known[id(value)] = arrays.from_numpy(value, like())
        return known[id(value)]
    if type(value) is tuple:
        return tuple(_owned(x, like, known) for x in value)
    if type(value) is list:
        value[:] = [_owned(x, like, known) for x in value]
    elif type(value) is dict:
        value.update((k, _owned(x, like, known)) for k, x in value.items())
    return value


# ---- how names are used


def _uses(node: ast.AST) -> dict[str, set[str]]:
    """For each name, how a statement uses it: its "shape", its "value" on the host, or the "array"."""
    found: dict[str, set[str]] = {}

    def use(part: ast.AST, how: str) -> None:
        if isinstance(part, ast.Name):
            found.setdefault(part.id, set()).add(how)
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.attr in _SHAPES:
            use(part.value, "shape")
        elif isinstance(part, ast.Call) and reads_values(part):
            for arg in (*part.args, *(k.value for k in part.keywords)):
                use(arg, "value" if isinstance(arg, (ast.Name, ast.JoinedStr)) else "array")
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in _OF_SHAPES:
            for arg in part.args:
                use(arg, "shape" if isinstance(arg, ast.Name) else "array")
        elif isinstance(part, ast.FormattedValue):
            use(part.value, "value" if isinstance(part.value, ast.Name) else how)
        elif isinstance(part, ast.JoinedStr):
            for value in part.values:
                use(value, how)
        else:
            for child in ast.iter_child_nodes(part):
                use(child, "array")

    use(node, "array")
    return found


def _moves(node: ast.stmt) -> bool:
    """Whether a statement only renames values."""

    def names(part: ast.expr) -> bool:
        return all(isinstance(x, ast.Name) for x in (part.elts if isinstance(part, (ast.Tuple, ast.List)) else [part]))

    return isinstance(node, ast.Assign) and names(node.value) and all(names(target) for target in node.targets)


class _HostParts(Hoisting):
    """Moves out subexpressions that Python computes from host values alone: calls, attributes and list lookups."""

    def __init__(self, region: Region, kinds: dict[str, Any]):
        super().__init__(region.name)
        self.region, self.kinds = region, kinds

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, PERHAPS):
            return node
        read = isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        computed = not isinstance(node, (ast.Slice, ast.Starred)) and self._computes(node)
        of_host = computed and not self.region.of_arrays(node, self.kinds)
        if read and (of_host or self.region.finds(node, self.kinds)):
            return self.hoisted(node)  # type: ignore[arg-type]  # an expression
        if isinstance(node, ast.Call):  # the callee stays
            node.args = [self.visit(arg) for arg in node.args]  # type: ignore[misc]
            node.keywords = [self.visit(keyword) for keyword in node.keywords]  # type: ignore[misc]
            if isinstance(node.func, ast.Attribute):
                node.func.value = self.visit(node.func.value)  # type: ignore[assignment]
            return node
        return self.generic_visit(node)

    def _computes(self, node: ast.AST) -> bool:
        for found in ast.walk(node):
            if isinstance(found, ast.Call):
                return True
            if isinstance(found, ast.Attribute) and self.region.variables(names_of([found], ast.Load)):
                return True
        return False


# ---- steps


@dataclass
class _Step:
    """Statements as a function from the variables ``reads`` to those of ``gives``. ``how``, of statements that run as
    Python: by name, what they need of an array."""

    function: Callable[..., tuple]
    reads: list[str]
    gives: list[str]
    how: dict[str, Callable[[Any], Any]] | None = None

    def run(self, env: dict[str, Any]) -> None:
        try:
            given = [env[name] for name in self.reads]
        except KeyError as error:
            name = error.args[0]
            message = f"cannot access local variable '{name}' where it is not associated with a value"
            raise UnboundLocalError(message) from None
        if self.how is None:
            created: Sequence = self.function(*given)
        else:
            known: dict[int, Any] = {}
            given = [self.how[name](value) for name, value in zip(self.reads, given)]
            created = [_owned(value, lambda: _like(env), known) for value in self.function(*given)]
        env.update(zip(self.gives, created))


def _like(env: dict[str, Any]) -> Any:
    for value in env.values():
        if _on_device(value):
            return value
    raise NotOutlinable("no array determines the device")


class _Compiled(_Step):
    """A group of statements, compiled per kinds of the ``opened`` names, which Python assigns before."""

    def __init__(self, region: Region, body: list[ast.stmt], kinds: dict[str, Any], opened: set[str], gives: list[str]):
        reads = region.variables(read_before_assigned(body))
        super().__init__(self._dispatch, reads, gives)
        self.region, self.body, self.kinds = region, body, kinds
        self._open = [k for k, name in enumerate(reads) if name in opened]
        self._variants: dict[tuple, Callable[..., tuple]] = {}

    def _dispatch(self, *given: Any) -> tuple:
        key = tuple([kind(given[k]) for k in self._open])
        function = self._variants.get(key)
        if function is None:
            function = self._variants[key] = self._compiled(key)
        return function(*given)

    def _compiled(self, key: tuple) -> Callable[..., tuple]:
        kinds = self.kinds | {self.reads[k]: found for k, found in zip(self._open, key)}
        fixed = {name: kinds[name].value for name in self.reads if isinstance(kinds.get(name), _Is)}
        left = [k for k, name in enumerate(self.reads) if name not in fixed]
        created = self.region.function(self.body, [self.reads[k] for k in left], self.gives, fixed)
        compiled = self.region.jit(created)
        self.region.created += 1
        return compiled if len(left) == len(self.reads) else lambda *given: compiled(*[given[k] for k in left])


class _Group:
    """Consecutive statements with arrays, while they are collected."""

    def __init__(self, region: Region, kinds: dict[str, Any]):
        self.region, self.kinds = region, kinds
        self.body: list[ast.stmt] = []
        self.before: list[ast.stmt] = []
        self._assigned: set[str] = set()
        self._opened: set[str] = set()  # names that Python assigns before; their kinds are not known yet
        self.in_two: list = []  # a rejected statement split in two, as the first results must be known

    def takes(self, node: ast.stmt) -> bool:
        """Adds a statement to the group, if it belongs there; whether it does."""
        read, written = set(names_of([node], ast.Load)), set(names_of([node], ast.Store))
        if self.region.stores_in_list(node, self.kinds) or written & self._opened:
            return False
        if not self.region.of_arrays(node, self.kinds):
            used = self._assigned | set(names_of(self.body, ast.Load))
            apart = not (read & (self._assigned | self._opened) or written & used)
            if apart:
                self.before.append(node)
                self._opened |= written
            return apart
        parts = _HostParts(self.region, self.kinds)
        created = parts.visit(_rebinding(copy.deepcopy(node), self.kinds, self._assigned))
        left = set(names_of([created], ast.Load))
        if self._needed(created) & set(names_of(parts.before, ast.Store)):
            self.in_two = [*parts.before, created]
            return False
        long = any(self.kinds.get(name) == "long list" for name in left)
        if long or set(names_of(parts.before, ast.Load)) & self._assigned or self._needed(created) & self._opened:
            return False
        self._check(created)
        self.before += parts.before
        self._opened |= set(names_of(parts.before, ast.Store))
        self.body.append(created)  # type: ignore[arg-type]
        self._assigned |= written
        self.kinds |= dict.fromkeys(written, "array")
        return True

    def steps(self, after: set[str]) -> list[_Step]:
        """The steps to run. ``after``: the names that later statements read."""
        gives = [name for name in names_of(self.body, ast.Store) if name in after]
        compiled = _Compiled(self.region, self.body, self.kinds, self._opened, gives)
        return [*[self.region.on_host(node, self.kinds) for node in self.before], compiled]

    @staticmethod
    def _needed(node: ast.AST) -> set[str]:
        """The names whose kinds must be known."""
        found: list[ast.AST] = []
        for part in ast.walk(node):
            if isinstance(part, ast.AugAssign):
                found.append(part.target if isinstance(part.target, ast.Name) else part.target.value)
            elif isinstance(part, ast.Call):
                found += [*part.args, *([part.func.value] if isinstance(part.func, ast.Attribute) else [])]
        return {part.id for part in found if isinstance(part, ast.Name)}

    def _check(self, node: ast.AST) -> None:
        """Raises :class:`NotOutlinable` where a compiled statement could mutate anything but arrays."""
        region, kinds = self.region, self.kinds
        if isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Name):
            target = node.target.value
            if not isinstance(target, ast.Name) or kinds.get(target.id) not in ("array", "number"):
                raise NotOutlinable("an in-place update of an element of a non-array")
        for found in ast.walk(node):
            if not isinstance(found, ast.Call):
                continue
            base = found.func.value if isinstance(found.func, ast.Attribute) else None
            if isinstance(base, ast.Name) and base.id in region.local and kinds.get(base.id) not in ("array", "number"):
                raise NotOutlinable(f"a method of '{base.id}'")
            given = [arg.id for arg in found.args if isinstance(arg, ast.Name) and kinds.get(arg.id) in _LISTS]
            if given and not region.takes_lists(found.func):
                raise NotOutlinable(f"the list '{given[0]}' is given to a function")


class Region:
    """A straight-line region of ``fn``: called with the variables, returns the values of the names ``wanted``.
    ``local``: the function's variables. ``jit`` compiles a function. ``created``: the number of compiled functions and
    of runs."""

    def __init__(self, fn: types.FunctionType, statements: list[ast.stmt], wanted: list[str], local: set[str],
                 jit: Callable[[Callable], Callable]):  # fmt: skip
        self.fn, self.statements, self.wanted, self.local, self.jit = fn, statements, wanted, local, jit
        self.scope = Scope(fn)
        self.line = statements[0].lineno
        self.created = self.runs = 0
        self._parts: dict[tuple, tuple[list[_Step], int]] = {}
        self._look()

    def _look(self) -> None:
        rests = [self.statements[k:] for k in range(len(self.statements))]
        self._reads = [self.variables(read_before_assigned(rest)) for rest in rests]

    def _split(self, at: int, statements: list[ast.stmt]) -> None:
        """Replaces one statement by several."""
        self.statements = [*self.statements[:at], *statements, *self.statements[at + 1 :]]
        self._parts = {key: part for key, part in self._parts.items() if part[1] <= at}
        self._look()

    def __call__(self, env: dict[str, Any]) -> list:
        self.runs += 1
        at = 0
        while at < len(self.statements):
            key = (at, *[kind(env.get(name)) for name in self._reads[at]])
            part = self._parts.get(key)
            if part is None:
                part = self._parts[key] = self._part(at, dict(zip(self._reads[at], key[1:])))
            steps, at = part
            for step in steps:
                step.run(env)
        return [env[name] for name in self.wanted]

    def variables(self, names: list[str]) -> list[str]:
        return [name for name in names if name in self.local]

    def _part(self, first: int, kinds: dict[str, Any]) -> tuple[list[_Step], int]:
        """The steps from a statement on, and the index of the next statement: one that runs as Python, or a compiled
        group, preceded by the independent Python statements within it."""
        statement = self.statements[first]
        plain = [self.on_host(statement, kinds)], first + 1
        if self.stores_in_list(statement, kinds) or not self.of_arrays(statement, kinds) or _moves(statement):
            return plain
        group = _Group(self, dict(kinds))
        at = first
        while at < len(self.statements) and group.takes(self.statements[at]):
            at += 1
        if at == first:
            if group.in_two:
                self._split(first, group.in_two)
                return self._part(first, kinds)
            return plain
        after = set(self.wanted) | set(self._reads[at] if at < len(self.statements) else [])
        return group.steps(after), at

    def name(self) -> str:
        name = f"mlirfuse_part{len(self.local)}"
        self.local.add(name)
        return name

    def of_arrays(self, node: ast.AST, kinds: dict[str, Any]) -> bool:
        """Whether a node computes with elements of arrays."""
        for name, how in _uses(node).items():
            if "array" not in how:
                continue
            if name in self.local:
                found = kinds.get(name)
                if isinstance(found, int):
                    raise NotOutlinable(f"'{name}', which is not a number, array or constant")
                if found in _ARRAYS:
                    return True
            elif _on_device(self.scope.get(name)):
                return True
        return False

    def on_host(self, statement: ast.stmt, kinds: dict[str, Any]) -> _Step:
        reads = self.variables(read_before_assigned([statement]))
        gives = names_of([statement], ast.Store)
        function = self.function([statement], reads, gives, {})
        named = isinstance(statement, ast.Assign) and self.finds(statement.value, kinds)
        if named or _moves(statement) or self.stores_in_list(statement, kinds):
            return _Step(function, reads, gives)
        uses = _uses(statement)
        how: dict[str, Callable[[Any], Any]] = {
            name: _shape_of if uses.get(name) == {"shape"} else to_host for name in reads
        }
        return _Step(function, reads, gives, how)

    def stores_in_list(self, node: ast.stmt, kinds: dict[str, Any]) -> bool:
        """Whether a statement stores into a list element or an object's attribute."""
        if not isinstance(node, ast.Assign) or not isinstance(node.value, (ast.Name, ast.Constant)):
            return False
        if any(isinstance(target, ast.Attribute) for target in node.targets):
            return not any(kinds.get(name) in _ARRAYS for name in names_of(node.targets, ast.Load))
        bases = [target.value for target in node.targets if isinstance(target, ast.Subscript)]
        return any(isinstance(base, ast.Name) and kinds.get(base.id) in _LISTS for base in bases)

    def takes_lists(self, function: ast.expr) -> bool:
        """Whether a function is known not to mutate list arguments."""
        if isinstance(function, ast.Name):
            if function.id in _TAKE_LISTS:
                return True
            return (getattr(self.scope.get(function.id), "__module__", None) or "").split(".")[0] == "numpy"
        while isinstance(function, ast.Attribute):
            function = function.value
        name = function.id if isinstance(function, ast.Name) else ""
        return name not in self.local and self.scope.get(name) is np

    def finds(self, node: ast.AST, kinds: dict[str, Any]) -> bool:
        """Whether an expression looks up an element of a list."""
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            return False
        return kinds.get(node.value.id) in ("list", "long list") and not self.of_arrays(node.slice, kinds)

    def function(self, body: list[ast.stmt], reads: list[str], gives: list[str], fixed: dict[str, Any]) -> Callable:
        """The statements compiled to a Python function from ``reads`` to ``gives``."""
        result = ast.Tuple([ast.Name(name, ast.Load()) for name in gives], ast.Load())
        spec = ast.arguments([], [ast.arg(name) for name in reads], None, [], [], None, [])
        created = remade(self.fn, self.fn.__name__, spec, [*body, located(body[-1], ast.Return(result))], fixed)
        created.__defaults__, created.__kwdefaults__ = None, None
        return created


def _rebinding(node: ast.stmt, kinds: dict[str, Any], assigned: set[str]) -> ast.stmt:
    """``s += x`` as an assignment for a number; for an array it stays in place."""
    if not (isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)):
        return node
    name = node.target.id
    if name in assigned or kinds.get(name) == "array":
        return node
    if kinds.get(name) in ("list", "long list"):
        raise NotOutlinable(f"the list '{name}' is extended in place")
    return located(node, ast.Assign([node.target], ast.BinOp(ast.Name(name, ast.Load()), node.op, node.value)))
