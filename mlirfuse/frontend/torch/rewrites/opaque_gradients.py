"""Custom ops whose backward reads values on the host, which AOTAutograd cannot trace: such a backward is an op, too.

Grouped products of experts are written so: a loop over ``offsets.tolist()``. Their gradients are then computed as in
eager, of a second forward, inside of the compiled backward; what is around them is compiled as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch import torch_private as private
from mlirfuse.frontend.torch.fx import layouts

_library = torch.library.Library("mlirfuse", "FRAGMENT")
_library.define("opaque(str name, Tensor[] tensors) -> Tensor")
_library.define("opaque_gradients(str name, Tensor[] tensors, Tensor gradient, bool[] needed) -> Tensor[]")


_rewritten: set[str] = set()  # names of ops


def reads(target: Any) -> bool:
    """Whether an op is taken to read values on the host, as its backward could not be traced; or is that backward."""
    name = getattr(target, "name", None)
    return target is torch.ops.mlirfuse.opaque_gradients.default or (callable(name) and name() in _rewritten)


def rewrite(module: GraphModule) -> bool:
    """Replaces the calls of custom ops of tensors, with one result and an autograd formula, in Dynamo's graph
    ``module``. Returns whether there were any."""
    calls = [(node, given) for node in module.graph.nodes if (given := _given(node)) is not None]
    for node, given in calls:
        target: Any = node.target
        _rewritten.add(_name(target))
        node.target = torch.ops.mlirfuse.opaque.default
        node.args, node.kwargs = (_name(target), given), {}
    if calls:
        module.recompile()
    return bool(calls)


def _given(node: Node) -> list[Any] | None:
    """The tensors that a call takes, in the schema's order, if :func:`rewrite` replaces it."""
    target: Any = getattr(node.target, "default", node.target)
    schema = getattr(target, "_schema", None)
    if node.op != "call_function" or schema is None or private.is_builtin(target) or not private.has_autograd(target):
        return None
    if torch.Tag.nondeterministic_seeded in target.tags:
        return None  # a second forward would draw other numbers
    tensors = [argument.name for argument in schema.arguments if str(argument.type) == "Tensor"]
    if len(tensors) < len(schema.arguments) or schema.is_mutable or [str(r.type) for r in schema.returns] != ["Tensor"]:
        return None
    given = dict(zip(tensors, node.args)) | node.kwargs
    return [given[name] for name in tensors] if given.keys() == set(tensors) else None


def _name(target: Any) -> str:
    return getattr(target, "default", target).name()


def _op(name: str) -> Any:
    space, _, rest = name.partition("::")
    op, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), op), overload or "default")


class _Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.name = name
        ctx.save_for_backward(*tensors)
        return _op(name)(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        needed = list(ctx.needs_input_grad[1:])
        found = iter(torch.ops.mlirfuse.opaque_gradients(ctx.name, list(ctx.saved_tensors), gradient, needed))
        return None, *(next(found) if need else None for need in needed)


def _opaque(name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return _Opaque.apply(name, *tensors)


def _gradients(name: str, tensors: Sequence[torch.Tensor], gradient: torch.Tensor,
               needed: Sequence[bool]) -> list[torch.Tensor]:  # fmt: skip
    with private.above_autograd(), torch.enable_grad():
        leaves = [x.detach().requires_grad_(need) for x, need in zip(tensors, needed)]
        wanted = [x for x, need in zip(leaves, needed) if need]
        found = torch.autograd.grad(_op(name)(*leaves), wanted, gradient, allow_unused=True)
    results = [x.new_zeros(x.shape) if g is None else g.contiguous() for x, g in zip(wanted, found)]
    return _apart(results, [*tensors, gradient])


def _apart(results: list[torch.Tensor], others: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """``results``, those copied that share memory with ``others`` or an earlier one: a backward may return one tensor
    for several inputs, an op may not, as the compiled graph writes over what is no longer read."""
    taken = {layouts.storage(x) for x in others} - {None}
    apart = []
    for x in results:
        apart.append(x.clone() if layouts.storage(x) in taken else x)
        taken.add(layouts.storage(apart[-1]))
    return apart


def _like(name: str, tensors: Sequence[torch.Tensor], gradient: torch.Tensor,
          needed: Sequence[bool]) -> list[torch.Tensor]:  # fmt: skip
    return [x.new_empty(x.shape) for x, need in zip(tensors, needed) if need]


_library.impl("opaque", _opaque, "CompositeImplicitAutograd")
_library.impl("opaque_gradients", _gradients, "CompositeExplicitAutograd")
torch.library.register_fake("mlirfuse::opaque_gradients", _like, lib=_library)
