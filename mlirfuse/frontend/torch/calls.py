"""Extern calls: serializes a call of a torch op with nested arguments as a Python function of tensors and sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch.fx import Node

from mlirfuse.frontend.torch.torch_private import reinterpret_tensor
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size


@dataclass(frozen=True)
class Literal:
    """A value that a call takes unchanged: the module of a higher-order op."""

    value: Any


def serialized(source: str, names: Mapping[str, Any] | None = None) -> Callable[..., list]:
    """The function with this ``source``, evaluated with these ``names``; keeps them as its attribute ``serialized``, so
    that it can be cached on disk."""
    names = dict(names or {})
    function = eval(_code(source), dict(names))
    function.serialized = source, names
    return function


@functools.lru_cache(maxsize=4096)
def _code(source: str) -> CodeType:
    """Compiles source text; cached, as equal layers have equal sources."""
    return compile(source, "<string>", "eval")


def window(
    x: torch.Tensor, expected_strides: tuple[int, ...], shape: Sequence[int], strides: Sequence[int], start: int
) -> list:
    """The view of ``x`` with this shape and strides, starting ``start`` elements after ``x``; of a copy of ``x``, if
    its strides are not ``expected_strides``, for which the view was computed."""
    return [_reinterpret(_with_strides(x, expected_strides), shape, strides, start)]


def base_window(
    x: torch.Tensor, expected_strides: tuple[int, ...], shape: Sequence[int], strides: Sequence[int], start: int
) -> list:
    """:func:`window` as an autograd view, for a graph's outputs: all views of one tensor share one ``_base``, by which
    AOTAutograd detects inputs of the next graph that share memory."""
    x = _with_strides(x, expected_strides)
    return [x.as_strided(shape, strides, x.storage_offset() + start)]


def _with_strides(x: torch.Tensor, expected_strides: tuple[int, ...]) -> torch.Tensor:
    """``x``, or a copy with the strides ``expected_strides`` if its strides differ."""
    if x.stride() != expected_strides and any(
        n > 1 and a != b for n, a, b in zip(x.shape, x.stride(), expected_strides)
    ):
        return x.new_empty_strided(x.shape, expected_strides).copy_(x)
    return x


_reinterpret = reinterpret_tensor  # as_strided, with a quarter of its overhead


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
        source = f"lambda {', '.join(names)}: {f'list({call})' if several else f'[{call}]'}"
        return serialized(source, {"target": target, **self.constants})

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
