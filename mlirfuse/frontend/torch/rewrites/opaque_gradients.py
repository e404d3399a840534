"""Custom ops whose backward reads values on the host, which AOTAutograd cannot trace: such a backward is an op, too.

Grouped products of experts are written so: a loop over ``offsets.tolist()``. Their gradients are then computed as in
eager, inside of the compiled backward, by the op's own formula: autograd records the op again for its inputs and its
result, without running it. What is around them is compiled as usual.
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
_library.define("opaque_gradients(str name, Tensor[] tensors, Tensor? out, Tensor gradient, "
                "bool[] needed) -> Tensor[]")  # fmt: skip


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
        out = _op(name)(*tensors)
        kept = _keeps_result(_op(name), tensors, ctx.needs_input_grad[1:])
        ctx.save_for_backward(*tensors, out if kept else None)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        needed = list(ctx.needs_input_grad[1:])
        *tensors, out = ctx.saved_tensors
        found = iter(torch.ops.mlirfuse.opaque_gradients(ctx.name, tensors, out, gradient, needed))
        return None, *(next(found) if need else None for need in needed)


def _opaque(name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return _Opaque.apply(name, *tensors)


def _keeps_result(op: Any, tensors: Sequence[torch.Tensor], needed: Sequence[bool]) -> bool:
    """Whether the backward of ``op`` to the tensors that are ``needed`` may read its result, or what was computed from
    it; False only if what it keeps is known: inputs, and plain values."""
    try:
        with private.disable_current_modes(), private.above_autograd(), torch.enable_grad():
            made = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for x in tensors]
            out = op(*(x.requires_grad_(need) for x, need in zip(made, needed)))
            kept = private.pytree.tree_leaves([out.grad_fn.saved_tensors, vars(out.grad_fn)])
            inputs = {x.untyped_storage()._cdata for x in made}
            computed = [x for x in kept if isinstance(x, torch.Tensor) and x.untyped_storage()._cdata not in inputs]
    except Exception:  # such as of an op without a Python formula, or of symbolic sizes
        return True
    plain = (torch.Tensor, bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.Size)
    return bool(computed) or any(not isinstance(x, plain) for x in kept)


def _gradients(name: str, tensors: Sequence[torch.Tensor], out: torch.Tensor | None, gradient: torch.Tensor,
               needed: Sequence[bool]) -> list[torch.Tensor]:  # fmt: skip
    op = _op(name)
    given = [*tensors, gradient] if out is None else [*tensors, out, gradient]
    out = torch.empty_like(gradient) if out is None else out  # whose values nothing reads
    with private.above_autograd(), torch.enable_grad():
        leaves = [x.detach().requires_grad_(need) for x, need in zip(tensors, needed)]
        wanted = [x for x, need in zip(leaves, needed) if need]
        with private.computed(op, out):
            again = op(*leaves)
        found = torch.autograd.grad(again, wanted, gradient, allow_unused=True)
    results = [_in_order(g, x) for x, g in zip(wanted, found)]
    return _apart(results, given)


def _in_order(gradient: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """The gradient of ``x`` in the memory order that :func:`_like` has told."""
    if gradient is None:
        return torch.zeros_like(x)
    like = torch.empty_like(x, device="meta")
    return gradient if gradient.stride() == like.stride() else torch.empty_like(x).copy_(gradient)


def _apart(results: list[torch.Tensor], others: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """``results``, those copied that share memory with ``others`` or an earlier one: a backward may return one tensor
    for several inputs, an op may not, as the compiled graph writes over what is no longer read."""
    taken = {layouts.storage(x) for x in others} - {None}
    apart = []
    for x in results:
        apart.append(x.clone() if layouts.storage(x) in taken else x)
        taken.add(layouts.storage(apart[-1]))
    return apart


def _like(name: str, tensors: Sequence[torch.Tensor], out: torch.Tensor | None, gradient: torch.Tensor,
          needed: Sequence[bool]) -> list[torch.Tensor]:  # fmt: skip
    return [torch.empty_like(x) for x, need in zip(tensors, needed) if need]


_library.impl("opaque", _opaque, "CompositeImplicitAutograd")
_library.impl("opaque_gradients", _gradients, "CompositeExplicitAutograd")
torch.library.register_fake("mlirfuse::opaque_gradients", _like, lib=_library)
