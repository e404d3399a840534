"""Collectives in traced graphs: their roles, numbers of ranks, bytes sent, and the work that overlaps them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from mlirfuse.frontend.torch.fx import layouts, sizes
from mlirfuse.frontend.torch.fx.sizes import OpaqueSize
from mlirfuse.frontend.torch.ops.rules import VIEWS
from mlirfuse.frontend.torch.torch_private import OpOverload, resolve_process_group
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering import host_steps as st

aten = torch.ops.aten
_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem")
_OTHERS = ("_dtensor::shard_dim_alltoall",)
_WAITS = ("wait_tensor", "_wrap_tensor_autograd")
_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)  # their results are new
_VIEWS = (aten.view.default, aten._unsafe_view.default)


def role(node: Node) -> str | None:
    """The node's role: "start" of a collective, "wait" for one, or None."""
    target = node.target
    if not isinstance(target, OpOverload):
        return None
    name = target._schema.name
    if target.namespace not in _NAMESPACES and name not in _OTHERS:
        return None
    return "wait" if name.split("::")[1] in _WAITS else "start"


def in_place(node: Node) -> bool:
    """Whether an all-reduce may run in place on its operand, a product with no other reader. Otherwise it copies the
    operand first."""
    source = node.args[0] if node.args else None
    if str(node.target) != "_c10d_functional.all_reduce.default" or not isinstance(source, Node):
        return False
    given = source.meta["val"]
    try:
        if not layouts.is_dense(sizes.shape(given.shape), sizes.strides(given)):
            return False
    except OpaqueSize:
        return False
    while source.target in _VIEWS and len(source.users) == 1:
        source = source.args[0]
    return source.target in _PRODUCTS and len(source.users) == 1


def ranks(node: Node) -> int | None:
    """The number of ranks of a collective; None where it does not say."""
    names = [argument.name for argument in node.target._schema.arguments]
    given: dict[str, Any] = dict(zip(names, node.args)) | node.kwargs
    if isinstance(given.get("group_size"), int):
        return given["group_size"]
    group = given.get("group_name", given.get("process_group"))
    if isinstance(group, str):
        group = resolve_process_group(group)
    return None if group is None else group.size()


@dataclass(frozen=True)
class Collective:
    """A collective of a host program. ``sent``: bytes sent per rank, a number or an expression over the graph's sizes.
    ``kernels`` and ``calls`` (extern ops and their counts) run between its start and its wait."""

    op: Op
    name: str
    ranks: int | None
    sent: int | str
    kernels: int
    calls: Counter[str]

    @property
    def meanwhile(self) -> str:
        """A description of the overlapping work."""
        parts = [f"{self.kernels} kernels"] if self.kernels else []
        parts += [f"{count} × {name}" if count > 1 else name for name, count in self.calls.items()]
        return ", ".join(parts) or "nothing"


def of_program(sequence: st.Sequence) -> Iterator[Collective]:
    """The collectives of a host program, in order of their starts."""
    steps = list(sequence.walk())
    for place, step in enumerate(steps):
        if not isinstance(step, st.Start):
            continue
        kernels, calls = 0, Counter[str]()
        for later in steps[place + 1 :]:
            if isinstance(later, st.Wait) and later.reads[0] in step.makes:
                break
            if isinstance(later, st.Kernels):
                kernels += len({op.segment for op in later.ops if op.segment and op.segment.scheduler != "no-op"})
            elif type(later) is st.Call and not _is_view(later.op):
                calls[_name(later.op)] += 1
        else:  # no wait: it ends with its call
            kernels, calls = 0, Counter()
        sent = bytes_sent(step.op)
        serialized = sent if isinstance(sent, int) else str(sent)
        yield Collective(step.op, _name(step.op), step.op.attrs["ranks"], serialized, kernels, calls)


def bytes_sent(op: Op) -> Size:
    """The bytes that each rank sends in a ring implementation of the collective."""
    given, created = _bytes(op.operands), _bytes(op.results)
    ranks, name = op.attrs["ranks"] or 1, _name(op)
    if name.startswith("all_reduce"):
        return sz.floordiv(sz.mul(2 * (ranks - 1), given), ranks)
    if name.startswith("all_gather"):
        return sz.floordiv(sz.mul(ranks - 1, created), ranks)
    if name.startswith(("reduce_scatter", "all_to_all", "shard_dim")):
        return sz.floordiv(sz.mul(ranks - 1, given), ranks)
    return given


def _bytes(values: list[Value]) -> Size:
    total: Size = 0
    for value in values:
        if value.dtype is not None:
            total = total + sz.mul(sz.product(value.shape), value.dtype.bytes)
    return total


def _name(op: Op) -> str:
    return op.attrs["callee"].split(".")[1] if op.row.calls else op.name


def _is_view(op: Op) -> bool:
    return bool(op.row.view) or (op.row.calls and op.attrs["callee"] in VIEWS)
