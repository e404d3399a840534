"""The registry of rules that lower ATen and prims overloads to ops of the table, and the rules' context."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.fx import Node

from mlirfuse.frontend.torch.fx import sizes
from mlirfuse.frontend.torch.torch_private import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size


class Unsupported(Exception):
    """A rule does not cover these operands: the op stays extern, for the reason in the message."""


DTYPES: dict[torch.dtype, DType] = {
    torch.float16: dt.f16,
    torch.bfloat16: dt.bf16,
    torch.float32: dt.f32,
    torch.float64: dt.f64,
    torch.int8: dt.i8,
    torch.int16: dt.i16,
    torch.int32: dt.i32,
    torch.int64: dt.i64,
    torch.uint8: dt.u8,
    torch.bool: dt.bool_,
}
Rule = Callable[..., Any]  # a value, or a list of them
F = TypeVar("F", bound=Rule)
RULES: dict[str, Rule] = {}
VIEWS: set[str] = {"aten.as_strided.default", "aten.view.dtype"}  # and those registered as views


def rule(*names: str, view: bool = False) -> Callable[[F], F]:
    """Registers a function as the rule of these overloads (``"aten.add.Tensor"``).

    It takes a :class:`Context` and the op's arguments: tensors as :class:`Value`, sizes as :data:`Size`. ``view``: the
    result shares the first argument's memory.
    """

    def register(function: F) -> F:
        for name in names:
            assert name not in RULES, f"two rules for {name}"
            RULES[name] = function
            if view:
                VIEWS.add(name)
        return function

    return register


def is_view(node: Node) -> bool:
    """Whether a call's result, or what is taken from its results, is a view."""
    if node.target is operator.getitem:
        return is_view(node.args[0])
    return node.op == "call_function" and str(node.target) in VIEWS


def is_part(node: Node) -> bool:
    """Whether ``node`` is one of several views that one op gives (``split``, ``unbind``), or a view of such: what
    autograd refuses writes into."""
    while is_view(node) and node.target is not torch.ops.aten.detach.default:
        if node.target is operator.getitem:
            return True
        node = node.args[0]
    return False


def dtype_of(dtype: torch.dtype) -> DType:
    """The IR's element type. Raises :class:`Unsupported`."""
    found = DTYPES.get(dtype)
    if found is None:
        raise Unsupported(f"there are no kernels for {dtype}")
    return found


@dataclass
class Context:
    """A rule's context. ``out``: the fake tensor of the (first) result; ``fakes``: the flat list of fake tensors and
    numbers among the arguments. ``rounds``: round where eager rounds to float16 or bfloat16. ``outs``: the fake tensors
    of all results. ``fuses``: a kernel computes this matrix product. ``guarded``: the graph adds a positive number to
    the (first) result, as norms do before they divide by it, and otherwise at most scales it."""

    b: Builder
    out: torch.Tensor
    fakes: list[Any]
    rounds: bool = False
    outs: Sequence[torch.Tensor] = ()
    fuses: bool = False
    guarded: bool = False

    @property
    def dtype(self) -> DType:
        """The result's element type."""
        return dtype_of(self.out.dtype)

    @property
    def shape(self) -> tuple[Size, ...]:
        """The result's shape."""
        return sizes.shape(self.out.shape)

    def op(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """An op of the table with one result."""
        created = self.b.op(name, *operands, **attrs)
        assert isinstance(created, Value)
        return created

    def common_dtype(self) -> DType:
        """The dtype in which eager compares or combines the operands."""
        given = [0 if isinstance(x, torch.SymInt) else x for x in self.fakes]
        given = [x for x in given if isinstance(x, (torch.Tensor, bool, int, float))]
        _, found = elementwise_dtypes(*given, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
        return dtype_of(found)

    def value(self, x: Value | Size | float | bool, dtype: DType) -> Value:
        """An operand, a number or a size as a value of ``dtype``."""
        if isinstance(x, Value):
            return self.b.cast(x, dtype)
        if isinstance(x, sz.Expr):
            return self.b.cast(self.b.size(x), dtype)
        if isinstance(x, (bool, int, float)):
            if isinstance(x, float) and dtype.kind in "iu":
                x = int(x)  # as C++ converts: towards zero; a bool is whether it is not zero
            return self.b.constant(x, dtype)
        raise Unsupported(f"an operand is a {type(x).__name__}")

    def elementwise(
        self, name: str, *operands: Value | Size | float | bool, dtype: DType, rounds: bool = False
    ) -> Value:
        """The table's op ``name`` computed in ``dtype``, cast to the result's dtype. Computes float16 and bfloat16 with
        numbers that they do not hold exactly in float32, or ``rounds`` these numbers, as eager does before it compares
        and takes remainders."""
        work = dtype
        if dtype.is_float and dtype.bits == 16 and not rounds and any(not _exact(x, dtype) for x in operands):
            work = dt.f32
        created = self.b.elementwise(name, *(self.value(x, work) for x in operands))
        return self.b.cast(created, dtype) if work is not dtype and created.dtype is work else created

    def known(self, a: Size, relation: str, b: Size) -> bool:
        """Whether ``a < b``, ``a <= b`` or ``a >= b`` holds for all calls of the graph, by Dynamo's guards."""
        return sizes.known(_RELATIONS[relation], a, b, [*self.fakes, self.out])

    def spread(self, x: Value) -> Value:
        """``x`` broadcast to the result's shape."""
        return self.b.broadcast_to(x, self.shape)


_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}


def _exact(x: Value | Size | float | bool, dtype: DType) -> bool:
    if isinstance(x, (Value, bool)):
        return True
    if isinstance(x, sz.Expr):
        return False
    return x != x or float(dtype.numpy.type(x)) == x


def element(x: Value) -> DType:
    """The element type of a tensor."""
    assert x.dtype is not None
    return x.dtype


def without_negative_zero(c: Context, x: Value) -> Value:
    """``x`` with 0 in place of -0: eager's sums start at 0."""
    dtype = element(x)
    return c.op("add", x, c.b.constant(0, dtype)) if dtype.is_float else x


def axis(dim: int, rank: int) -> int:
    """``dim`` as a nonnegative number."""
    return dim % rank if rank else 0


def axes(dims: Sequence[int] | int | None, rank: int) -> tuple[int, ...] | None:
    """``dims`` as nonnegative numbers; None, for all, where there are none."""
    if dims is None or (isinstance(dims, Sequence) and not dims):
        return None
    return tuple(sorted(axis(d, rank) for d in (dims if isinstance(dims, Sequence) else (dims,))))
