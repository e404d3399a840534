"""Symbolic sizes: polynomials over symbols, the extents and strides of a function's arguments.

A size is a Python int or an :class:`Expr`. Exprs are normalized, so that equal polynomials compare equal: `s0*s1 ==
s1*s0`. In the IR they are strings (``"s0*64"``), which :func:`parse` reads; :func:`str` prints them, also as Python
source for the code of a call.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any, Union, overload

Size = Union[int, "Expr"]


@dataclass(frozen=True, slots=True)
class Atom:
    """A symbol (``op == "sym"``), or an operation on sizes that polynomials cannot express."""

    op: str  # sym, floordiv, mod, max, min
    args: tuple

    def __str__(self) -> str:
        if self.op == "sym":
            return self.args[0]
        if self.op in ("max", "min"):
            return f"{self.op}({', '.join(map(str, self.args))})"
        a, b = (f"({x})" if isinstance(x, Expr) and not x.is_symbol else str(x) for x in self.args)
        return f"({a}{'//' if self.op == 'floordiv' else '%'}{b})"


@dataclass(frozen=True, slots=True, eq=True)
class Expr:
    """A polynomial: a sorted tuple of (factors, coefficient), factors a sorted tuple of Atoms."""

    terms: tuple[tuple[tuple[Atom, ...], int], ...]
    _hash: int = field(init=False, repr=False, compare=False)  # cached: exprs are often dict keys

    def __post_init__(self):
        object.__setattr__(self, "_hash", hash(self.terms))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple:
        return Expr, (self.terms,)  # hashes differ between processes

    @property
    def is_symbol(self) -> bool:
        return (
            len(self.terms) == 1
            and self.terms[0][1] == 1
            and len(self.terms[0][0]) == 1
            and self.terms[0][0][0].op == "sym"
        )

    def __add__(self, other):
        return _sum(((self, 1), (other, 1)))

    __radd__ = __add__

    def __sub__(self, other):
        return _sum(((self, 1), (other, -1)))

    def __rsub__(self, other):
        return _sum(((other, 1), (self, -1)))

    def __mul__(self, other):
        return mul(self, other)

    __rmul__ = __mul__

    def __neg__(self):
        return mul(self, -1)

    def __str__(self) -> str:
        terms = []
        for factors, coefficient in self.terms:
            body = "*".join(map(str, factors))
            if not factors:
                body = str(coefficient)
            elif coefficient != 1:
                body = f"{body}*{coefficient}" if coefficient > 0 else f"{coefficient}*{body}"
            terms.append(body)
        return "+".join(terms).replace("+-", "-")

    __repr__ = __str__


def symbol(name: str) -> Expr:
    return Expr((((Atom("sym", (name,)),), 1),))


def _terms(size: Size):
    if isinstance(size, Expr):
        return size.terms
    return (((), int(size)),) if size else ()


def monomials(size: Size) -> list[tuple[int, list[Size]]]:
    """The terms of ``size``, each a coefficient and its factors."""
    return [(c, [Expr((((atom,), 1),)) for atom in factors]) for factors, c in _terms(size)]


def _make(terms: dict) -> Size:
    kept = [(f, c) for f, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    if len(kept) > 1:
        kept.sort(key=lambda t: (-len(t[0]), str(t[0])))
    return Expr(tuple(kept))


def _sum(terms) -> Size:
    out: dict = {}
    for size, sign in terms:
        for factors, coefficient in _terms(size):
            out[factors] = out.get(factors, 0) + sign * coefficient
    return _make(out)


def total(sizes) -> Size:
    """Return the sum of any number of sizes."""
    return _sum((size, 1) for size in sizes)


def mul(*sizes: Size) -> Size:
    """Return the product."""
    if all(type(size) is int for size in sizes):
        return math.prod(sizes)
    out: dict = {(): 1}
    for size in sizes:
        following: dict = {}
        for f, c in out.items():
            for g, d in _terms(size):
                key = tuple(sorted(f + g, key=str)) if f and g else f or g
                following[key] = following.get(key, 0) + c * d
        out = following
    return _make(out)


def quotient(a: Size, b: Size) -> Size | None:
    """Return ``a / b`` where that is known to be exact, else None. ``b`` must be a single product."""
    if a == b:
        return 1
    if b == 0:
        return None
    divisor = _terms(b)
    if len(divisor) != 1:
        return None
    (factors, coefficient), out = divisor[0], {}
    for f, c in _terms(a):
        rest = list(f)
        for g in factors:
            if g not in rest:
                return None
            rest.remove(g)
        if c % coefficient:
            return None
        out[tuple(rest)] = c // coefficient
    return _make(out)


def floordiv(a: Size, b: Size) -> Size:
    if b == 0:
        raise ZeroDivisionError("a size divided by 0")
    exact = quotient(a, b)
    if exact is not None:
        return exact
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return Expr((((Atom("floordiv", (a, b)),), 1),))


def mod(a: Size, b: Size) -> Size:
    if b == 0:
        raise ZeroDivisionError("a size divided by 0")
    if quotient(a, b) is not None:
        return 0
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return Expr((((Atom("mod", (a, b)),), 1),))


def known_multiple(difference: Size) -> tuple[str, Size] | None:
    """Return, where ``difference`` is 0 only if a symbol n is a multiple of an int k (``n % k``, ``n - k * (n // k)``),
    the symbol's name and ``k * (n // k)``."""
    for factors, _ in _terms(difference):
        (atom, *others) = factors or [None]
        if others or atom is None or atom.op not in ("mod", "floordiv"):
            continue
        operand, by = atom.args
        if isinstance(by, int) and isinstance(operand, Expr) and operand.is_symbol:
            rounded = mul(by, floordiv(operand, by))
            if (
                difference in (operand - rounded, rounded - operand)
                or quotient(difference, mod(operand, by)) is not None
            ):
                return str(operand), rounded
    return None


def reported_by(extent: Size) -> str | None:
    """Return the symbol that has the value of ``extent``: itself, or n for ``k * (n // k)``, which replaces an n that
    is a multiple of k."""
    if isinstance(extent, int):
        return None
    if extent.is_symbol:
        return str(extent)
    for name in symbols(extent):
        if known_multiple(symbol(name) - extent):
            return name
    return None


def affine(size: Size) -> tuple[str, int, int] | None:
    """Return a symbol's name, its factor and the constant term, where ``size`` is affine in one symbol with
    integers."""
    terms = dict(_terms(size))
    rest = terms.pop((), 0)
    if len(terms) != 1:
        return None
    ((atom, *others), factor) = next(iter(terms.items()))
    return None if others or atom.op != "sym" else (atom.args[0], factor, rest)


def at_least(a: Size, b: Size) -> bool:
    """Whether ``a >= b`` is known for all extents: none is negative."""
    return all(c >= 0 and all(atom.op == "sym" for atom in factors) for factors, c in _terms(a - b))


def ceildiv(a: Size, b: Size) -> Size:
    exact = quotient(a, b)
    return exact if exact is not None else floordiv(a + (b - 1), b)


def maximum(a: Size, b: Size) -> Size:
    if a == b:
        return a
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return Expr((((Atom("max", (a, b)),), 1),))


def minimum(a: Size, b: Size) -> Size:
    if a == b:
        return a
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return Expr((((Atom("min", (a, b)),), 1),))


def symbols(size: Size) -> set[str]:
    """Return the names of the symbols in ``size``."""
    out: set[str] = set()
    for factors, _ in _terms(size):
        for atom in factors:
            if atom.op == "sym":
                out.add(atom.args[0])
            else:
                for argument in atom.args:
                    out |= symbols(argument)
    return out


@overload
def substitute(size: Size, values: Mapping[str, int]) -> int: ...  # values of all symbols, as in a call


@overload
def substitute(size: Size, values: Mapping[str, Size]) -> Size: ...


def substitute(size: Size, values: Mapping[str, Any]) -> Any:
    """Return ``size`` with symbols replaced; an int where every symbol is replaced by one."""
    if isinstance(size, int):
        return size
    if size.is_symbol:
        return values.get(size.terms[0][0][0].args[0], size)
    total: Size = 0
    for factors, coefficient in size.terms:
        term: Size = coefficient
        for atom in factors:
            term = mul(term, _substitute_atom(atom, values))
        total = _sum(((total, 1), (term, 1)))
    return total


class Substitution:
    """A substitution of symbols that grows. A later entry is applied to earlier ones lazily, so that adding one costs
    nothing for the others. A symbol may occur in its own replacement (``6*(n//6)`` for an n that is a multiple of 6):
    it is replaced once."""

    def __init__(self) -> None:
        self._learned: dict[str, int] = {}  # for each symbol, its index in the order of addition
        self._values: dict[str, tuple[Size, int]] = {}  # with the entries before this index applied
        self._count = 0

    def add(self, name: str, size: Size) -> None:
        """Replace the symbol ``name`` by ``size`` from now on."""
        self._learned[name] = self._count
        self._count += 1
        self._values[name] = size, self._count

    def __call__(self, size: Size, since: int = 0) -> Size:
        """Return ``size`` with all entries from the index ``since`` on applied."""
        passed: list[str] = []
        while isinstance(size, Expr) and size.is_symbol:
            name = str(size)
            if self._learned.get(name, -1) < since:
                break
            passed.append(name)
            size, since = self._values[name]
        if isinstance(size, Expr) and not size.is_symbol:
            names = [name for name in symbols(size) if self._learned.get(name, -1) >= since]
            if names:
                size = substitute(size, {name: self(symbol(name), since) for name in names})
        for name in passed:
            self._values[name] = size, self._count
        return size


_SUPPOSED = 1024


def supposed(size: Size, hints: Mapping[str, int] | None = None) -> int:
    """Return the value in a typical call, to compare sizes before they are known: by ``hints`` of symbols; others are
    large."""
    return substitute(size, {**dict.fromkeys(symbols(size), _SUPPOSED), **(hints or {})})


_OFTEN = 8  # evaluations after which a size is compiled to a function
_asked: dict[Expr, Any] = {}  # the number of evaluations of each, or its function


def evaluated(size: Size, values: Mapping[str, int]) -> Size:
    """Return :func:`substitute` of a call's values, which may be incomplete, at a tenth of its cost for frequent
    sizes."""
    if isinstance(size, int):
        return size
    found = _asked.get(size, 0)
    if isinstance(found, int):
        if len(_asked) > 1 << 14:
            _asked.clear()
        _asked[size] = found + 1 if found < _OFTEN else function(str(size), symbols(size))
        return substitute(size, values)
    try:
        return found(values)
    except KeyError:
        return substitute(size, values)


def known(size: Size, values: Mapping[str, int]) -> int:
    """Return the value of ``size``. Raises KeyError where a symbol in it has none."""
    found = evaluated(size, values)
    if not isinstance(found, int):
        raise KeyError(f"{size}: no value for {', '.join(sorted(symbols(found)))}")
    return found


_FUNCTIONS = {"floordiv": floordiv, "mod": mod, "max": maximum, "min": minimum}


def _substitute_atom(atom: Atom, values) -> Size:
    if atom.op == "sym":
        return values.get(atom.args[0], Expr((((atom,), 1),)))
    return _FUNCTIONS[atom.op](*(substitute(a, values) for a in atom.args))


def function(source: str, symbols, first=(), parameters=("env",), **names):
    """Compile the Python expression ``source``, after the statements ``first``, to a function of a dict with the
    symbols' values. Sizes are printed by ``str``; ``parameters`` and ``names`` are further names that the code uses. A
    compiled size takes some tens of nanoseconds a call instead of microseconds."""
    read = [f"{name} = env[{name!r}]" for name in sorted(symbols)]
    lines = [
        f"def evaluate({', '.join(parameters)}):",
        *(f"    {line}" for line in [*read, *first]),
        f"    return {source}",
    ]
    scope = {"max": max, "min": min, **names}
    exec(_code_of("\n".join(lines)), scope)
    return scope["evaluate"]


@lru_cache(4096)
def _code_of(source: str) -> CodeType:
    """Compile source text; cached, because equal programs have equal expressions."""
    return compile(source, "<sizes>", "exec")


def tuple_function(sizes):
    """Return a function of a dict with the symbols' values that returns the values of these sizes as a tuple."""
    sizes = list(sizes)
    return function(serialized(sizes), symbols_of(sizes))


def serialized(sizes) -> str:
    """Return the Python source of a tuple of sizes, for :func:`function`."""
    return f"({''.join(f'{n},' for n in sizes)})"


def symbols_of(sizes) -> set[str]:
    """Return the names of the symbols in any of ``sizes``."""
    return set().union(*map(symbols, sizes))


def product(sizes) -> Size:
    return mul(1, *sizes)


def contiguous_strides(shape) -> tuple[Size, ...]:
    """Return row-major strides, in elements."""
    strides: list[Size] = []
    running: Size = 1
    for size in reversed(shape):
        strides.append(running)
        running = mul(running, size)
    return tuple(reversed(strides))


@lru_cache(maxsize=65536)
def parse(text: str) -> Size:
    """Parse the text of a size. Raises ValueError for anything else."""
    try:
        return _from_ast(ast.parse(text, mode="eval").body)
    except (SyntaxError, KeyError, AttributeError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(f"'{text}' is not a size expression") from error


def parse_all(text: str) -> tuple[Size, ...]:
    """Reads sizes with commas between them, as :func:`parse` does."""
    try:
        return tuple(map(_from_ast, ast.parse(f"[{text}]", mode="eval").body.elts))  # type: ignore[attr-defined]
    except (SyntaxError, KeyError, AttributeError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(f"'{text}' is no list of size expressions") from error


_BINARY: dict[type[ast.operator], Callable[[Size, Size], Size]] = {
    ast.Add: lambda a, b: _sum(((a, 1), (b, 1))),
    ast.Sub: lambda a, b: _sum(((a, 1), (b, -1))),
    ast.Mult: mul,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
}


def _from_ast(node) -> Size:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return symbol(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return mul(_from_ast(node.operand), -1)
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](_from_ast(node.left), _from_ast(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _FUNCTIONS[node.func.id](*map(_from_ast, node.args))
    raise ValueError(f"'{ast.unparse(node)}' is not a size expression")
