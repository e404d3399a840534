"""Converts torch's symbolic sizes: a ``SymInt`` over its ``ShapeEnv`` becomes a polynomial over the same symbols.

Nothing here asks torch for a size's value: ``int(s)`` and ``bool(s == 3)`` would add a guard, and cause recompilation
for other sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import sympy
import torch

from mlirfuse.frontend.torch.torch_private import statically_known_true
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.sizes import Size


class OpaqueSize(Exception):
    """An unbacked size, known only from tensors' values, or one that polynomials, ``//``, ``%``, max and min cannot
    express."""


def size(value: Any) -> Size:
    """A size of a fake tensor as the IR's. Raises :class:`OpaqueSize`."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    if isinstance(value, torch.SymInt):
        return of_expr(value.node.expr)
    raise OpaqueSize(f"{value} is not a size")


def shape(values) -> tuple[Size, ...]:
    """A fake tensor's shape or strides as the IR's sizes. Raises :class:`OpaqueSize`."""
    return tuple([n if type(n) is int else size(n) for n in values])


def strides(tensor: torch.Tensor) -> tuple[Size, ...]:
    """A fake tensor's strides as the IR's sizes, those that it has with elements: torch's ``max(1, n)`` of an extent
    is the extent. Raises :class:`OpaqueSize`."""
    return tuple([n if type(n) is int else of_expr(_of_elements(n.node.expr)) for n in tensor.stride()])


@functools.lru_cache(maxsize=65536)
def _of_elements(expr: sympy.Expr) -> sympy.Expr:
    def at_least_one(part: sympy.Expr) -> bool:
        return type(part).__name__ == "Max" and len(part.args) == 2 and 1 in part.args

    return expr.replace(at_least_one, lambda part: next(n for n in part.args if n != 1))


@functools.lru_cache(maxsize=65536)
def of_expr(expr: sympy.Expr) -> Size:
    """A sympy expression over a ``ShapeEnv``'s symbols as the IR's size. Raises :class:`OpaqueSize`."""
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if isinstance(expr, sympy.Symbol):
        if expr.name.startswith(("u", "zuf", "zf")):
            raise OpaqueSize(f"{expr.name} is known only once its tensor is computed")
        return sz.symbol(expr.name)
    parts = tuple(map(of_expr, expr.args)) if not isinstance(expr, sympy.Pow) else ()
    if isinstance(expr, sympy.Add):
        total: Size = 0
        for part in parts:
            total = total + part
        return total
    if isinstance(expr, sympy.Mul):
        return sz.mul(*parts)
    if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and 0 < expr.exp < 16:
        return sz.mul(*[of_expr(expr.base)] * int(expr.exp))
    name = type(expr).__name__
    if name in ("FloorDiv", "CleanDiv"):
        return sz.floordiv(*parts)
    if name in ("Mod", "PythonMod"):
        return sz.mod(*parts)
    if name == "ModularIndexing":
        return sz.mod(sz.floordiv(parts[0], parts[1]), parts[2])
    if name in ("Max", "Min"):
        function = sz.maximum if name == "Max" else sz.minimum
        return functools.reduce(function, parts)
    raise OpaqueSize(f"{expr} cannot be expressed as a size")


def known(relation: Callable[[Any, Any], Any], a: Size, b: Size, fakes: Iterable[Any]) -> bool:
    """Whether ``relation`` of two sizes, an operator's function, follows from the guards of the ``ShapeEnv`` of
    ``fakes``: tensors and numbers with the sizes' symbols. Adds no guard."""
    if isinstance(a, int) and isinstance(b, int):
        return bool(relation(a, b))
    numbers = [n for fake in fakes for n in (_sizes_of(fake) if isinstance(fake, torch.Tensor) else [fake])]
    names: dict[str, Any] = {"max": torch.sym_max, "min": torch.sym_min}
    for n in numbers:
        for found in n.node.expr.free_symbols if isinstance(n, torch.SymInt) else ():
            names.setdefault(found.name, n.node.shape_env.create_symintnode(found, hint=None))
    try:
        return statically_known_true(relation(*(eval(str(x), names) for x in (a, b))))
    except NameError:  # a symbol of tensors not among ``fakes``
        return False


def _sizes_of(fake: torch.Tensor) -> list[Any]:
    return [*fake.shape, *fake.stride(), fake.storage_offset()] if fake.layout is torch.strided else []


def hint(value: Any) -> int:
    """A size's value in the traced call, for heuristics. Adds no guard. Raises :class:`OpaqueSize`."""
    if isinstance(value, int):
        return value
    found = value.node.hint if isinstance(value, torch.SymInt) and value.node.has_hint() else None
    if found is None:
        raise OpaqueSize(f"{value} has no value yet")
    return int(found)


def hint_or(value: Any, instead: int) -> int:
    """:func:`hint`, or ``instead`` where there is none."""
    try:
        return hint(value)
    except OpaqueSize:
        return instead


def hinted(symbols: dict[str, str], inputs: list) -> dict[str, int]:
    """The symbols' values in the traced call. ``symbols``: each symbol as a Python expression over the list of inputs,
    ``args``; ``inputs``: the fake ones. Omits symbols without a value."""
    shaped = [_Hinted([_known(n) for n in v.shape]) if isinstance(v, torch.Tensor) else _known(v) for v in inputs]
    out = {}
    for name, source in symbols.items():
        try:
            out[name] = int(eval(source, {"args": shaped}))
        except TypeError:  # an input without a value
            continue
    return out


class _Hinted(NamedTuple):
    shape: list[int | None]


def _known(value: Any) -> int | None:
    try:
        return hint(value)
    except OpaqueSize:
        return None


def concrete(given: Any, tensor: Callable[[torch.Tensor], Any]) -> Any:
    """Arguments of a call for eager: ``tensor`` converts fake tensors, hints replace symbolic integers. Raises
    :class:`OpaqueSize` for other symbols."""
    if isinstance(given, torch.Tensor):
        return tensor(given)
    if isinstance(given, torch.SymInt):
        return hint(given)
    if isinstance(given, (torch.SymFloat, torch.SymBool)):
        raise OpaqueSize(f"{given} is not a size")
    if isinstance(given, Mapping):
        return {name: concrete(x, tensor) for name, x in given.items()}
    if isinstance(given, (list, tuple)):  # FX's lists are of a type of its own
        return [concrete(x, tensor) for x in given]
    return given


def is_empty(x: torch.Tensor) -> bool:
    """Whether ``x`` has no elements in every call."""
    return any(n == 0 if type(n) is int else statically_known_true(n == 0) for n in x.shape)
