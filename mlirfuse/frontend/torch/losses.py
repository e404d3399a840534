"""Rewrites the cross entropy of a linear layer in Dynamo's graph to run in chunks of rows.

Between the two there may be a cast to float32, a scale, a softcap, and views that keep the vocabulary dimension;
besides the loss, the logsumexp of the same logits may be read (a z-loss). With any other reader the full logits are
stored, and ``explain`` names the reader.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from mlirfuse.frontend.torch import chunked_loss
from mlirfuse.frontend.torch.nodes import explain
from mlirfuse.frontend.torch.sizes import OpaqueSize, hint
from mlirfuse.frontend.torch.torch_private import is_traceable_wrapper_subclass, nn_functions

LEAST_SAVED = 256 << 20  # bytes; below, "auto" stores the full logits

_LINEAR = {torch.nn.functional.linear, nn_functions.linear}
_PARAMETERS = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
_LINEAR_LOSS, _LINEAR_ROWS = torch.ops.mlirfuse.linear_loss.default, torch.ops.mlirfuse.linear_rows.default
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SCALES = {
    **dict.fromkeys((operator.mul, torch.mul, "mul", "multiply"), "mul"),
    **dict.fromkeys((operator.truediv, torch.div, torch.true_divide, "div", "true_divide"), "div"),
}


def chunk_losses(module: GraphModule, option: str) -> None:
    """Rewrites the losses of linear layers in ``module``. ``option``: "auto", "always" or "never"."""
    if option == "never":
        return
    changed = False
    for node in list(module.graph.nodes):
        if node.target is not torch.nn.functional.cross_entropy or node._erased:
            continue
        found = _Chain.of(node)
        if found is None:
            continue
        why = found.why_not_chunked(option)
        if why is None:
            _replace(module.graph, found)
            changed = True
        else:
            explain(found.linear, why)
    if changed:
        module.recompile()


@dataclass
class _Chain:
    """A linear layer, the steps and views after it, and the cross entropy of their result."""

    loss: Node
    linear: Node
    logits: Node  # what the loss reads
    steps: list[str] = field(default_factory=list)
    views: list[Node] = field(default_factory=list)
    between: list[Node] = field(default_factory=list)  # all nodes from the linear layer to ``logits``
    vocabulary_is_dim_1: bool = False  # the vocabulary is dimension 1, not the last

    @staticmethod
    def of(loss: Node) -> _Chain | None:
        """The chain that ends in ``loss``; None where no linear layer of a known form computes the logits, or for other
        losses."""
        given = _cross_entropy_arguments(loss)
        logits, target = given["input"], given["target"]
        if not isinstance(logits, Node) or not isinstance(target, Node):
            return None
        kind = getattr(_value(target), "dtype", None)
        known = given["weight"] is None and given["size_average"] is None and given["reduce"] is None
        if kind is not torch.int64 or not known or not isinstance(given["label_smoothing"], (int, float)):
            return None
        found = _Chain(loss, loss, logits)
        node: Any = logits
        while isinstance(node, Node) and node.target not in _LINEAR:
            found.between.append(node)
            if not found._records(node):
                return None
            node = node.args[0]
        if not isinstance(node, Node) or not all(isinstance(_value(n), torch.Tensor) for n in (node, *node.args[:2])):
            return None
        found.between.append(node)
        found.linear = node
        rank = _value(logits).dim()
        fits = (
            (rank == 3 and _value(target).dim() == 2)
            if found.vocabulary_is_dim_1
            else rank == 2 and _value(target).dim() == 1
        )
        return found if fits and _value(node).dtype in _FLOATS and _value(node).dim() > 1 else None

    def _records(self, node: Node) -> bool:
        """Whether ``node`` is a step or a view; records it."""
        source, value = (_value(n) for n in (node.args[0] if node.args else None, node))
        if not isinstance(source, torch.Tensor) or not isinstance(value, torch.Tensor):
            return False
        name = node.target
        if name in ("float", "to", "double", "type", "contiguous"):
            wider = value.dtype is source.dtype or (
                torch.finfo(value.dtype).bits > torch.finfo(source.dtype).bits
                if value.dtype in _FLOATS and source.dtype in _FLOATS
                else False
            )
            return wider and value.device == source.device
        if name in (torch.tanh, "tanh"):
            self.steps.append("tanh")
            return True
        if name in _SCALES:
            number = node.args[1] if len(node.args) == 2 and not node.kwargs else None
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
                return False
            self.steps.append(f"{_SCALES[name]} {float(number)!r}")
            return number != 0
        if name == "transpose" and not self.views and source.dim() == 3 and not self.vocabulary_is_dim_1:
            self.vocabulary_is_dim_1 = sorted(k % 3 for k in node.args[1:]) == [1, 2]
            return self.vocabulary_is_dim_1
        return self._records_view(node, source, value)

    def _records_view(self, node: Node, source: torch.Tensor, value: torch.Tensor) -> bool:
        same = str(source.shape[-1]) == str(value.shape[-1])
        if not same or value.dim() < 2:
            return False
        if node.target is operator.getitem:
            index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
            dense = [i for i in index if i is not Ellipsis and i is not None]
            sliced = all(isinstance(i, slice) for i in dense) and None not in index
            last = Ellipsis not in index[-1:] and (len(dense) == source.dim() or Ellipsis in index)
            if not sliced or (last and index[-1] != slice(None)):
                return False
        else:
            plain = node.target in ("view", "reshape", torch.reshape)
            if not plain or (_shape(node)[-1] == -1 and -1 in _shape(node)[:-1]):
                return False
        self.views.append(node)
        return True

    def why_not_chunked(self, option: str) -> str | None:
        """Why the full logits are stored; None where they need not be."""
        for created, reader in zip(self.between, [self.loss, *self.between]):
            for user in created.users:
                if user is not reader and not (created is self.logits and self._is_lse(user)):
                    who = "the graph returns them" if user.op == "output" else f"{_named(user)} also reads them"
                    return f"the full logits are stored: {who}; otherwise the loss would run in chunks of rows"
        if any(
            is_traceable_wrapper_subclass(_value(n))
            for n in (*_linear_operands(self.linear), self.loss)
            if n is not None
        ):
            return "the full logits are stored: they are sharded over ranks; chunks need plain tensors"
        if any(user < _cross_entropy_arguments(self.loss)["target"] for user in self.logits.users):
            return "the full logits are stored: they are read before there are labels"
        if option == "always":
            return None
        try:
            saved, rows = self._saved(), math.prod(hint(n) for n in _value(self.linear).shape[:-1])
        except OpaqueSize:
            return (
                "the full logits are stored: their size is known only at run time; chunked_loss='always' forces chunks"
            )
        if saved >= LEAST_SAVED and rows >= 2 * chunked_loss.ROWS:
            return None
        return (
            f"the full logits are stored: chunks would save {max(saved, 0)} bytes; chunked_loss='always' forces chunks"
        )

    def _saved(self) -> int:
        """The bytes that chunks save: logits and their gradient, less a chunk and the gradients' accumulators."""
        logits, features = _value(self.linear), hint(_value(self.linear.args[0]).shape[-1])
        *given, words = (hint(n) for n in logits.shape)
        rows, size = math.prod(given), logits.element_size()
        sums = words * features * 4 if size == 2 else 0
        return 2 * rows * words * size - min(rows, chunked_loss.ROWS) * words * 2 * size - sums

    def _is_lse(self, user: Node) -> bool:
        """Whether ``user`` is the logsumexp of each row."""
        if user.target not in (torch.logsumexp, "logsumexp") or self.vocabulary_is_dim_1:
            return False
        axis = user.args[1] if len(user.args) > 1 else user.kwargs.get("dim")
        keeps = user.args[2] if len(user.args) > 2 else user.kwargs.get("keepdim", False)
        return axis in (1, -1, (1,), (-1,), [1], [-1]) and not keeps and "out" not in user.kwargs


def _cross_entropy_arguments(node: Node) -> dict[str, Any]:
    default = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}
    return {name: default.get(name) for name in _PARAMETERS} | dict(zip(_PARAMETERS, node.args)) | dict(node.kwargs)


def _value(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, Node) else None


def _named(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _shape(node: Node) -> list[Any]:
    rest = node.args[1:] or (node.kwargs.get("shape"),)
    return list(rest[0]) if isinstance(rest[0], (tuple, list)) else list(rest)


# ---- the rewrite


def _replace(graph: Graph, chain: _Chain) -> None:
    loss, given = chain.loss, _cross_entropy_arguments(chain.loss)
    logsumexps = [user for user in chain.logits.users if user is not loss]
    before = set(graph.nodes)
    with graph.inserting_before(min((loss, *logsumexps))):
        call, method = graph.call_function, graph.call_method
        x = _rows_of_inputs(graph, chain)
        target = method("reshape", (given["target"], (-1,)))
        valid = call(operator.ne, (target, given["ignore_index"]))
        words = call(torch.where, (valid, target, 0))
        operands = (x, *_linear_operands(chain.linear)[1:], words)
        transforms = ";".join(reversed(chain.steps))
        grad = _value(loss).requires_grad
        needs = [bool(grad and n is not None and _value(n).requires_grad) for n in _linear_operands(chain.linear)]
        dtype, smoothing = _value(chain.linear).dtype, float(given["label_smoothing"])
        if given["reduction"] == "none" or logsumexps:
            rows = call(_LINEAR_ROWS, (*operands, transforms, dtype, needs))
            created = _of_rows(call, method, chain, rows, valid, smoothing)
            for user in logsumexps:
                first = method("to", (call(operator.getitem, (rows, 0)), _value(user).dtype))
                user.replace_all_uses_with(first)
                graph.erase_node(user)
            called = rows
        else:
            factors = method("to", (valid, torch.float32))
            count = method("sum", (factors,))
            if given["reduction"] == "mean":
                factors = call(operator.truediv, (factors, call(torch.clamp, (count, 1))))
            called = call(_LINEAR_LOSS, (*operands, factors, smoothing, transforms, dtype, needs))
            created = call(operator.getitem, (called, 0))
            if given["reduction"] == "mean":  # without rows: NaN, with zero gradients
                created = call(operator.add, (created, call(operator.truediv, (0.0, count))))
        created = method("to", (created, _value(loss).dtype))
    recomputes = "; the backward recomputes the logits" if called.target is _LINEAR_ROWS else ""
    explain(called, f"the loss of {_named(chain.linear)} runs in chunks of {chunked_loss.ROWS} rows{recomputes}")
    for node in graph.nodes:
        if node not in before and "stack_trace" in loss.meta:
            node.meta["stack_trace"] = loss.meta["stack_trace"]
    loss.replace_all_uses_with(created)
    for node in (loss, *chain.between):
        graph.erase_node(node)


def _linear_operands(linear: Node) -> tuple[Any, Any, Any]:
    """The linear layer's input, weight and bias."""
    bias = linear.args[2] if len(linear.args) > 2 else linear.kwargs.get("bias")
    return linear.args[0], linear.args[1], bias


def _rows_of_inputs(graph: Graph, chain: _Chain) -> Node:
    """The linear layer's inputs, one row per row of the loss, through the views of the logits."""
    features = _value(chain.linear.args[0]).shape[-1]
    if isinstance(features, torch.SymInt):
        features = graph.call_method("size", (chain.linear.args[0], -1))
    x: Any = chain.linear.args[0]
    for view in reversed(chain.views):
        if view.target is operator.getitem:
            x = graph.call_function(operator.getitem, (x, view.args[1]))
        else:
            x = graph.call_method("reshape", (x, (*_shape(view)[:-1], features)))
    return graph.call_method("reshape", (x, (-1, features)))


def _of_rows(call: Callable[..., Node], method: Callable[..., Node], chain: _Chain, rows: Node, valid: Node,
             smoothing: float) -> Node:  # fmt: skip
    """The loss from the per-row terms."""
    given = _cross_entropy_arguments(chain.loss)
    words = _value(chain.linear).shape[-1]
    if isinstance(words, torch.SymInt):
        words = call(operator.getitem, (method("size", (chain.linear.args[1],)), 0))
    logsumexp, picked, total = (call(operator.getitem, (rows, k)) for k in range(3))
    row = call(operator.sub, (logsumexp, call(operator.mul, (picked, 1 - smoothing))))
    if smoothing:
        row = call(operator.sub, (row, call(operator.mul, (total, call(operator.truediv, (smoothing, words))))))
    row = call(torch.where, (valid, row, 0.0))
    if given["reduction"] == "none":
        return method("view_as", (row, given["target"]))
    found = method("sum", (row,))
    return found if given["reduction"] == "sum" else call(operator.truediv, (found, method("sum", (valid,))))
