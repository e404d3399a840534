"""Rewrites the cross entropy of a linear layer in Dynamo's graph to run in chunks of rows.

Between the two there may be a cast to float32, a scale, a softcap, and views that keep the vocabulary dimension;
besides the loss, the logsumexp of the same logits may be read (a z-loss). The labels' log-probabilities, as of DPO, are
rewritten likewise. With any other reader the full logits are stored, and ``explain`` names the reader.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from mlirfuse.frontend.torch.fx import layouts, purity
from mlirfuse.frontend.torch.fx.nodes import explain, modes
from mlirfuse.frontend.torch.fx.sizes import OpaqueSize, hint
from mlirfuse.frontend.torch.losses import chunked_loss
from mlirfuse.frontend.torch.torch_private import is_traceable_wrapper_subclass, nn_functions

LEAST_SAVED = 256 << 20  # bytes; below, "auto" stores the full logits

_LINEAR = {torch.nn.functional.linear, nn_functions.linear}
_PARAMETERS = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
LOG_SOFTMAX = {torch.nn.functional.log_softmax, torch.log_softmax, "log_softmax"}
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
        if node._erased:
            continue
        found = Chain.of(node)
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
class Chain:
    """A linear layer, the steps and views after it, and what reads their result: the cross entropy, or the selection
    of one logit per row."""

    loss: Node
    linear: Node
    logits: Node  # what the loss reads
    target: Node
    normalized: Node | None = None  # the log-softmax of logits, from which ``loss`` selects
    steps: list[str] = field(default_factory=list)
    views: list[Node] = field(default_factory=list)
    between: list[Node] = field(default_factory=list)  # all nodes from the linear layer to ``logits``
    vocabulary_is_dim_1: bool = False  # the vocabulary is dimension 1, not the last

    @staticmethod
    def of(loss: Node) -> Chain | None:
        """The chain that ends in ``loss``; None where no linear layer of a known form computes the logits, or for other
        losses."""
        if loss.target is torch.nn.functional.cross_entropy:
            given = _cross_entropy_arguments(loss)
            logits, target, normalized = given["input"], given["target"], None
            known = given["weight"] is None and given["size_average"] is None and given["reduce"] is None
            if not known or not isinstance(given["label_smoothing"], (int, float)):
                return None
        elif loss.target in (torch.gather, "gather"):
            given = dict(zip(("input", "dim", "index"), loss.args)) | dict(loss.kwargs)
            if given.keys() != {"input", "dim", "index"}:
                return None
            logits, dim, target = (given[name] for name in ("input", "dim", "index"))
            normalized = logits if isinstance(logits, Node) and logits.target in LOG_SOFTMAX else None
            if normalized is not None and is_over_words(normalized):
                logits = normalized.args[0]
            if dim not in (-1, getattr(value_of(logits), "ndim", 0) - 1):
                return None
        else:
            return None
        if not isinstance(logits, Node) or getattr(value_of(target), "dtype", None) is not torch.int64:
            return None
        found = Chain(loss, loss, logits, target, normalized)
        return found if found.reaches_linear() and found._fits() else None

    def _fits(self) -> bool:
        """Whether there is one label per row."""
        logits, labels, value = value_of(self.logits), value_of(self.target), value_of(self.linear)
        if value.dtype not in _FLOATS or value.dim() < 2:
            return False
        if not self.is_entropy():
            return not self.vocabulary_is_dim_1 and list(map(str, labels.shape)) == [*map(str, logits.shape[:-1]), "1"]
        return (logits.dim(), labels.dim()) == ((3, 2) if self.vocabulary_is_dim_1 else (2, 1))

    def is_entropy(self) -> bool:
        """Whether ``loss`` is the cross entropy."""
        return self.loss.target is torch.nn.functional.cross_entropy

    def reaches_linear(self) -> bool:
        """Whether known steps and views lead from a linear layer to ``logits``; records them."""
        node: Any = self.logits
        while isinstance(node, Node) and node.target not in _LINEAR:
            self.between.append(node)
            if not self._records(node):
                return False
            node = node.args[0]
        if not isinstance(node, Node) or not all(isinstance(value_of(n), torch.Tensor) for n in (node, *node.args[:2])):
            return False
        self.between.append(node)
        self.linear = node
        return True

    def _records(self, node: Node) -> bool:
        """Whether ``node`` is a step or a view; records it."""
        source, value = (value_of(n) for n in (node.args[0] if node.args else None, node))
        if not isinstance(source, torch.Tensor) or not isinstance(value, torch.Tensor):
            return False
        name = node.target
        if name in ("float", "to", "double", "type", "contiguous"):
            return _keeps_precision(source.dtype, value.dtype) and value.device == source.device
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
        if min(source.dim(), value.dim()) < 2 or str(source.shape[-1]) != str(value.shape[-1]):
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
            extents = all(isinstance(n, (int, Node)) for n in _shape(node))  # not a dtype, and not by keyword
            if not plain or not extents or (_shape(node)[-1] == -1 and -1 in _shape(node)[:-1]):
                return False
        self.views.append(node)
        return True

    def why_not_chunked(self, option: str) -> str | None:
        """Why the full logits are stored; None where they need not be."""
        made = self.between if self.normalized is None else [self.normalized, *self.between]
        for created, reader in zip(made, [self.loss, *made]):
            for user in created.users:
                if user is not reader and not (created is self.logits and self._is_lse(user)):
                    who = "the graph returns them" if user.op == "output" else f"{named(user)} also reads them"
                    return f"the full logits are stored: {who}; otherwise the loss would run in chunks of rows"
        if any(user < self.target for user in self.logits.users if user is not self.normalized):
            return "the full logits are stored: they are read before there are labels"
        if reason := unfit(self.linear, self.overwritten()):
            return reason
        if reason := self.refused_by_modes():
            return reason
        if option == "always":
            return None
        try:
            saved, rows = self._saved(), math.prod(hint(n) for n in value_of(self.linear).shape[:-1])
        except OpaqueSize:
            return (
                "the full logits are stored: their size is known only at run time; chunked_loss='always' forces chunks"
            )
        if saved >= LEAST_SAVED and rows >= 2 * chunked_loss.ROWS:
            return None
        return (
            f"the full logits are stored: chunks would save {max(saved, 0)} bytes; chunked_loss='always' forces chunks"
        )

    def overwritten(self, end: Node | None = None) -> str | None:
        """The name of a call that writes an operand or the labels between where they are read and would be read;
        ``end``: there, if it is not before the first reader of the logits."""
        readers = (
            [end]
            if end is not None
            else [self.loss, *(user for user in self.logits.users if user is not self.normalized)]
        )
        spans = [(n, self.linear, max(readers)) for n in linear_operands(self.linear)]
        spans.append((self.target, min(readers), self.loss))
        nodes, module = list(self.loss.graph.nodes), self.loss.graph.owning_module
        for node in nodes[nodes.index(self.linear) + 1 : nodes.index(max(readers))]:
            written = {layouts.storage(value_of(n)) for n in purity.written_by(node, module)} - {None}
            if any(a < node < b and layouts.storage(value_of(read)) in written for read, a, b in spans if written):
                return named(node)
        return None

    def refused_by_modes(self) -> str | None:
        """Why chunks cannot compute the logits by the modes in which the linear layer and all that reads them run."""
        nodes, found = {self.linear, self.loss, *self.between, *self.logits.users}, modes(self.loss.graph)
        if any(depth for _, depth in map(found.__getitem__, nodes)):
            return "the full logits are stored: a transform of torch.func reads them"
        if len({found[node] for node in nodes}) > 1:
            return "the full logits are stored: some of what reads them runs in another grad mode"
        return None

    def _saved(self) -> int:
        """The bytes by which chunks lower the peak, where both the logits' gradient and the weight's are in memory. Of
        full logits the gradient overwrites them, and the weight is cast as a whole, as is its gradient from the
        product's type."""
        rows, words, features, itemsize, gradient = sizes = self._sizes()
        product, casts = (
            words * features * itemsize,
            value_of(linear_operands(self.linear)[1]).element_size() != itemsize,
        )
        full = rows * words * itemsize + product * (casts + bool(gradient))
        if self.is_scalar():
            plan = chunked_loss.Plan.of(*sizes)
            taken = plan.bytes_of(*sizes)
        else:
            plan = chunked_loss.Plan(rows, chunked_loss.words_of_block(rows, words, itemsize), False)
            taken = 2 * rows * plan.words * itemsize
        taken += words * features * gradient + plan.rows * features * 4  # the gradients, x's of a chunk in float32
        cast = product if rows > plan.rows else plan.words * features * itemsize
        return full - taken - cast * casts

    def _sizes(self) -> tuple[int, int, int, int, int]:
        """The arguments of :meth:`chunked_loss.Plan.of`. Raises ``OpaqueSize``."""
        logits, (x, weight, _) = value_of(self.linear), map(value_of, linear_operands(self.linear))
        *given, words = (hint(n) for n in logits.shape)
        gradient = weight.element_size() if weight.requires_grad and value_of(self.loss).requires_grad else 0
        return math.prod(given), words, hint(x.shape[-1]), logits.element_size(), gradient

    def is_scalar(self) -> bool:
        """Whether the loss is a number, the gradients of which are known up to a factor."""
        if not self.is_entropy() or any(user is not self.loss for user in self.logits.users):
            return False
        if value_of(self.linear).dtype is torch.float16:  # whose gradients may vanish before a loss's scale
            return False
        return _cross_entropy_arguments(self.loss)["reduction"] != "none"

    def explanation(self) -> str:
        """What :func:`mlirfuse.torch.explain` says of a chunked loss."""
        found = f"the loss of {named(self.linear)} runs without the full logits"
        try:
            sizes = self._sizes()
        except OpaqueSize:
            return f"{found}, in chunks of rows"
        if not self.is_scalar():
            block = chunked_loss.words_of_block(sizes[0], sizes[1], sizes[3])
            return f"{found}, in blocks of {block} words; the backward recomputes the logits"
        plan = chunked_loss.Plan.of(*sizes)
        chunks = f"in chunks of {plan.rows} rows and blocks of {plan.words} words"
        return f"{found}, {chunks}{', in the memory of the weight gradient' if plan.shared else ''}"

    def _is_lse(self, user: Node) -> bool:
        """Whether ``user`` is the logsumexp of each row."""
        if user.target not in (torch.logsumexp, "logsumexp") or self.vocabulary_is_dim_1:
            return False
        axis = user.args[1] if len(user.args) > 1 else user.kwargs.get("dim")
        keeps = user.args[2] if len(user.args) > 2 else user.kwargs.get("keepdim", False)
        axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
        return axes in ((-1,), (value_of(self.logits).dim() - 1,)) and not keeps and "out" not in user.kwargs


def unfit(linear: Node, written: str | None) -> str | None:
    """Why chunks cannot compute ``linear``: its operands are sharded, or ``written`` in place."""
    if any(n is not None and is_traceable_wrapper_subclass(value_of(n)) for n in (linear, *linear_operands(linear))):
        return "the full logits are stored: they are sharded over ranks; chunks need plain tensors"
    if written:
        return f"the full logits are stored: {written} changes in place what they are computed from"
    return None


def _keeps_precision(source: torch.dtype, to: torch.dtype) -> bool:
    """Whether a loss in float32, or in ``source`` if that is wider, is as exact as one of logits cast to ``to``."""
    return to is source or (to is torch.float32 and source in (torch.float16, torch.bfloat16))


def is_over_words(softmax: Node) -> bool:
    """Whether a log-softmax is over the last dimension, in its input's dtype or a wider one."""
    names = ("input", "dim", "_stacklevel", "dtype") if not isinstance(softmax.target, str) else ("", "dim", "dtype")
    given = dict(zip(names, softmax.args)) | dict(softmax.kwargs)
    source, value = value_of(softmax.args[0]) if softmax.args else None, value_of(softmax)
    if not isinstance(source, torch.Tensor) or value.dtype not in _FLOATS:
        return False
    return (
        _keeps_precision(source.dtype, value.dtype)
        and given.get("dim") in (-1, source.dim() - 1)
        and "out" not in softmax.kwargs
    )


def _cross_entropy_arguments(node: Node) -> dict[str, Any]:
    default = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}
    return {name: default.get(name) for name in _PARAMETERS} | dict(zip(_PARAMETERS, node.args)) | dict(node.kwargs)


def value_of(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, Node) else None


def named(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _shape(node: Node) -> list[Any]:
    rest = node.args[1:] or (node.kwargs.get("shape"),)
    return list(rest[0]) if isinstance(rest[0], (tuple, list)) else list(rest)


# ---- the rewrite


def _replace(graph: Graph, chain: Chain) -> None:
    loss, given = chain.loss, _cross_entropy_arguments(chain.loss)
    logsumexps = [user for user in chain.logits.users if user not in (loss, chain.normalized)]
    before, explanation = set(graph.nodes), chain.explanation()
    with graph.inserting_before(min((loss, *logsumexps))):
        call, method = graph.call_function, graph.call_method
        x = rows_of_inputs(graph, chain)
        target = method("reshape", (chain.target, (-1,)))
        valid = call(operator.ne, (target, given["ignore_index"])) if chain.is_entropy() else None
        words = call(torch.where, (valid, target, 0)) if chain.is_entropy() else target
        operands = (x, *linear_operands(chain.linear)[1:], words)
        transforms = ";".join(reversed(chain.steps))
        grad = value_of(loss).requires_grad
        needs = [bool(grad and n is not None and value_of(n).requires_grad) for n in linear_operands(chain.linear)]
        dtype, smoothing = value_of(chain.linear).dtype, float(given["label_smoothing"])
        if not chain.is_scalar():
            rows = call(_LINEAR_ROWS, (*operands, transforms, dtype, needs))
            created = (
                _selected(call, method, chain, rows)
                if valid is None
                else _of_rows(call, method, chain, rows, valid, smoothing)
            )
            for user in logsumexps:
                first = method("to", (call(operator.getitem, (rows, 0)), value_of(user).dtype))
                if not chain.is_entropy():
                    first = method("view_as", (first, call(operator.getitem, (chain.target, (..., 0)))))
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
        created = method("to", (created, value_of(loss).dtype))
    explain(called, explanation)
    for node in graph.nodes:
        if node not in before and "stack_trace" in loss.meta:
            node.meta["stack_trace"] = loss.meta["stack_trace"]
    loss.replace_all_uses_with(created)
    for node in (loss, *([chain.normalized] if chain.normalized else []), *chain.between):
        graph.erase_node(node)


def _selected(call: Callable[..., Node], method: Callable[..., Node], chain: Chain, rows: Node) -> Node:
    """The labels' logits or log-probabilities."""
    found = call(operator.getitem, (rows, 1))
    if chain.normalized is not None:
        found = call(operator.sub, (found, _normalizers(call, method, rows)))
    return method("view_as", (found, chain.target))


def _normalizers(call: Callable[..., Node], method: Callable[..., Node], rows: Node) -> Node:
    """What log_softmax subtracts from each row: the logsumexp, or NaN where that is infinite."""
    logsumexp = call(operator.getitem, (rows, 0))
    return call(operator.mul, (logsumexp, call(torch.where, (method("isinf", (logsumexp,)), math.nan, 1.0))))


def linear_operands(linear: Node) -> tuple[Any, Any, Any]:
    """The linear layer's input, weight and bias."""
    bias = linear.args[2] if len(linear.args) > 2 else linear.kwargs.get("bias")
    return linear.args[0], linear.args[1], bias


def rows_of_inputs(graph: Graph, chain: Chain) -> Node:
    """The linear layer's inputs, one row per row of the loss, through the views of the logits."""
    features = value_of(chain.linear.args[0]).shape[-1]
    if isinstance(features, torch.SymInt):
        features = graph.call_method("size", (chain.linear.args[0], -1))
    x: Any = chain.linear.args[0]
    for view in reversed(chain.views):
        if view.target is operator.getitem:
            x = graph.call_function(operator.getitem, (x, view.args[1]))
        else:
            x = graph.call_method("reshape", (x, (*_shape(view)[:-1], features)))
    return graph.call_method("reshape", (x, (-1, features)))


def _of_rows(call: Callable[..., Node], method: Callable[..., Node], chain: Chain, rows: Node, valid: Node,
             smoothing: float) -> Node:  # fmt: skip
    """The loss from the per-row terms."""
    given = _cross_entropy_arguments(chain.loss)
    words = value_of(chain.linear).shape[-1]
    if isinstance(words, torch.SymInt):
        words = call(operator.getitem, (method("size", (chain.linear.args[1],)), 0))
    picked, total = (call(operator.getitem, (rows, k)) for k in (1, 2))
    row = call(operator.sub, (_normalizers(call, method, rows), call(operator.mul, (picked, 1 - smoothing))))
    if smoothing:
        row = call(operator.sub, (row, call(operator.mul, (total, call(operator.truediv, (smoothing, words))))))
    row = call(torch.where, (valid, row, 0.0))
    if given["reduction"] == "none":
        return method("view_as", (row, given["target"]))
    found = method("sum", (row,))
    return found if given["reduction"] == "sum" else call(operator.truediv, (found, method("sum", (valid,))))
