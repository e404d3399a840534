"""Extern calls: serializes a call of a torch op with nested arguments as a Python function of tensors and sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.fx import Node

from mlirfuse.frontend.torch.torch_private import OpOverload, reinterpret_tensor
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size

aten = torch.ops.aten


@dataclass(frozen=True)
class Literal:
    """A value that a call takes unchanged: the module of a higher-order op."""

    value: Any


def serialized(source: str, names: Mapping[str, Any] | None = None, single: bool = False) -> Callable[..., list]:
    """The function with this ``source``, evaluated with these ``names``; keeps them as its attribute ``serialized``, so
    that it can be cached on disk. ``single``: the source returns one result itself; the function returns it in a list,
    and its attribute ``single`` is what a host program calls, which needs no list."""
    names = dict(names or {})
    inside = {name: _bound(x) for name, x in names.items()}
    function = eval(_code(source), dict(inside))
    if single:
        function = _in_list(_called_alone(source, inside) or function)
    function.serialized = source, names, single
    return function


def _in_list(single: Callable[..., Any]) -> Callable[..., list]:
    def function(*given: Any) -> list:
        return [single(*given)]

    function.single = single  # type: ignore[attr-defined]
    return function


def _called_alone(source: str, names: Mapping[str, Any]) -> Callable[..., Any] | None:
    """What ``source`` calls with its own parameters and nothing else, in their order."""
    parameters, _, body = source.removeprefix("lambda ").partition(": ")
    return names["target"] if body == f"target({parameters})" else None


def _bound(x: Any) -> Any:
    """``x``, or the faster function that does the same."""
    return _BINDINGS.get(x, x) if isinstance(x, (OpOverload, FunctionType)) else x


def window(x: torch.Tensor, shape: Sequence[int], strides: Sequence[int], start: int) -> torch.Tensor:
    """The view of ``x`` with this shape and strides, starting ``start`` elements after ``x``."""
    return reinterpret_tensor(x, shape, strides, start)


# torch's generated bindings of the same ops parse arguments in half the time of an op overload. Only ops are here that
# programs call often, and whose arguments fit no other overload.
_BINDINGS: dict[Any, Callable[..., Any]] = {
    window: reinterpret_tensor,  # as_strided, with a quarter of its overhead
    aten.mm.default: torch.mm,
    aten.bmm.default: torch.bmm,
    aten.addmm.default: torch.addmm,
    aten.baddbmm.default: torch.baddbmm,
    aten.convolution.default: torch.convolution,
    aten.index_select.default: torch.index_select,
    aten.gather.default: torch.gather,
}


@functools.lru_cache(maxsize=4096)
def _code(source: str) -> CodeType:
    """Compiles source text; cached, as equal layers have equal sources."""
    return compile(source, "<string>", "eval")


def view_of(expected_strides: Sequence[Size], shape: Sequence[Size], strides: Sequence[Size], start: Size,
            base: bool = False) -> Callable[..., list]:  # fmt: skip
    """A function of a tensor that returns its view with this shape and strides, starting ``start`` elements after it;
    of a copy of the tensor, if its strides are not ``expected_strides``, for which the view was computed. ``base``: an
    autograd view, for a graph's outputs: all views of one tensor share one ``_base``, by which AOTAutograd detects
    inputs of the next graph that share memory."""
    x = f"x if x.stride() == {expected_strides!r} else with_strides(x, {expected_strides!r})"
    names = {"with_strides": with_strides, "view": based_window if base else window}
    return serialized(f"lambda x: view({x}, {tuple(shape)!r}, {tuple(strides)!r}, {start})", names, single=True)


def view_of_sizes(count: int, rank: int, base: bool = False) -> Callable[..., list]:
    """:func:`view_of` as a function of a tensor of ``count`` dimensions, its expected strides, and the shape, strides
    and start of the view of ``rank`` dimensions, one after the other."""
    a, b, c = count, count + rank, count + 2 * rank
    names = {"with_strides": with_strides, "view": based_window if base else window}
    return serialized(f"lambda x, *n: view(with_strides(x, n[:{a}]), n[{a}:{b}], n[{b}:{c}], n[{c}])", names, True)


def based_window(x: torch.Tensor, shape: Sequence[int], strides: Sequence[int], start: int) -> torch.Tensor:
    """:func:`window` as an autograd view."""
    return x.as_strided(shape, strides, x.storage_offset() + start)


def with_strides(x: torch.Tensor, expected_strides: tuple[int, ...]) -> torch.Tensor:
    """``x``, or a copy with the strides ``expected_strides`` if its strides differ."""
    if x.stride() != expected_strides and any(
        n > 1 and a != b for n, a, b in zip(x.shape, x.stride(), expected_strides)
    ):
        return x.new_empty_strided(x.shape, expected_strides).copy_(x)
    return x


class Serializer:
    """Collects the ``operands`` and ``sizes`` of one call. ``created(node)``: a node's representation outside of
    groups: a value, a list of them, a size, a :class:`Literal`."""

    def __init__(self, created: Callable[[Node], Any]):
        self.created = created
        self.operands: list[Value] = []
        self.sizes: list[Size] = []
        self.constants: dict[str, Any] = {}

    def function(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], several: bool
    ) -> Callable[..., list]:
        """A function of the operands followed by the sizes, which calls ``target`` and returns the list of its results;
        ``several``: it returns a list or tuple itself."""
        given = [self.serialize(x) for x in args]
        given += [f"{name}={self.serialize(x)}" for name, x in kwargs.items()]
        call = f"target({', '.join(given)})"
        names = [f"x{k}" for k in range(len(self.operands))] + [f"n{k}" for k in range(len(self.sizes))]
        source = f"lambda {', '.join(names)}: {f'list({call})' if several else call}"
        return serialized(source, {"target": target, **self.constants}, single=not several)

    def serialize(self, x: Any) -> str:
        """An argument's source text."""
        if isinstance(x, Node):
            x = self.created(x)
        if isinstance(x, Literal):
            return self.constant(x.value)
        if isinstance(x, Value):
            if x not in self.operands:
                self.operands.append(x)
            return f"x{self.operands.index(x)}"
        if isinstance(x, sz.Expr):
            self.sizes.append(x)
            return f"n{len(self.sizes) - 1}"
        if x is None or isinstance(x, (bool, int, str)):
            return repr(x)
        if isinstance(x, slice):
            return f"slice({self.serialize(x.start)}, {self.serialize(x.stop)}, {self.serialize(x.step)})"
        if type(x) is tuple:
            return f"({''.join(f'{self.serialize(part)}, ' for part in x)})"
        if isinstance(x, (list, tuple)):
            return f"[{', '.join(map(self.serialize, x))}]"
        if isinstance(x, dict):
            return f"{{{', '.join(f'{self.serialize(k)}: {self.serialize(part)}' for k, part in x.items())}}}"
        return self.constant(x)

    def constant(self, x: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = x
        return name
