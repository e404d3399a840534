"""Rewrites the Kullback-Leibler divergence of two linear layers' softmax, as in distillation, to run in blocks of
words: neither the student's nor the teacher's logits are stored.

``kl_div(log_softmax(student), softmax(teacher))``, or with the teacher's ``log_softmax`` and ``log_target=True``; the
reductions "batchmean", "mean" and "sum". The teacher requires no gradients.
:mod:`mlirfuse.frontend.torch.losses.cross_entropy` says what may stand between a linear layer and its softmax.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch.fx.nodes import explain
from mlirfuse.frontend.torch.fx.sizes import OpaqueSize, hint
from mlirfuse.frontend.torch.losses import chunked_loss, cross_entropy

_NAMES = ("input", "target", "size_average", "reduce", "reduction", "log_target")
_SOFTMAX = {torch.nn.functional.softmax, torch.softmax, "softmax"}
_KL = torch.ops.mlirfuse.linear_kl.default


def chunk_divergences(module: GraphModule, option: str) -> None:
    """Rewrites the divergences in ``module``. ``option``: "auto", "always" or "never"."""
    changed = False
    for node in module.graph.find_nodes(op="call_function", target=torch.nn.functional.kl_div):
        found = None if option == "never" else _sides(node)
        if found is None:
            continue
        why = _why_not(node, found, option)
        if why is None:
            _replace(module, node, found)
            changed = True
        else:
            explain(found[0].linear, why)
    if changed:
        module.recompile()


def _arguments(node: Node) -> dict[str, Any]:
    default = {"reduction": "mean", "log_target": False}
    return {name: default.get(name) for name in _NAMES} | dict(zip(_NAMES, node.args)) | dict(node.kwargs)


def _sides(node: Node) -> tuple[cross_entropy.Chain, cross_entropy.Chain] | None:
    """Student and teacher; None for other forms."""
    given = _arguments(node)
    if given["size_average"] is not None or given["reduce"] is not None:
        return None
    if given["reduction"] not in ("batchmean", "mean", "sum"):
        return None
    student = _side(given["input"], cross_entropy.LOG_SOFTMAX)
    teacher = _side(given["target"], cross_entropy.LOG_SOFTMAX if given["log_target"] else _SOFTMAX)
    if student is None or teacher is None or cross_entropy.value_of(teacher.linear).requires_grad:
        return None
    shapes = [cross_entropy.value_of(side.logits).shape for side in (student, teacher)]
    known = given["reduction"] == "sum" or all(isinstance(n, int) for n in shapes[0])
    return (student, teacher) if known and list(map(str, shapes[0])) == list(map(str, shapes[1])) else None


def _side(softmax: Any, names: set[Any]) -> cross_entropy.Chain | None:
    if not isinstance(softmax, Node) or softmax.target not in names or not cross_entropy.is_over_words(softmax):
        return None
    found = cross_entropy.Chain(softmax, softmax, softmax.args[0], softmax)
    return found if found.reaches_linear() and not found.vocabulary_is_dim_1 else None


def _why_not(node: Node, sides: tuple[cross_entropy.Chain, cross_entropy.Chain], option: str) -> str | None:
    """Why the full logits are stored; None where they need not be."""
    for side in sides:
        made = [side.loss, *side.between]
        for created, reader in zip(made, [node, *made]):
            for user in created.users:
                if user is not reader:
                    who = (
                        "the graph returns them"
                        if user.op == "output"
                        else f"{cross_entropy.named(user)} also reads them"
                    )
                    return f"the full logits are stored: {who}; otherwise the loss would run in blocks of words"
        if reason := cross_entropy.unfit(side.linear, side.overwritten(node)):
            return reason
    if reason := sides[0].refused_by_modes():
        return reason
    if option == "always":
        return None
    try:
        *rows, words = (hint(n) for n in cross_entropy.value_of(sides[0].linear).shape)
        saved = 3 * math.prod(rows) * words * cross_entropy.value_of(sides[0].linear).element_size()
    except OpaqueSize:
        return "the full logits are stored: their size is known only at run time; chunked_loss='always' forces chunks"
    if saved >= cross_entropy.LEAST_SAVED and math.prod(rows) >= 2 * chunked_loss.ROWS:
        return None
    return f"the full logits are stored: chunks would save {saved} bytes; chunked_loss='always' forces chunks"


def _replace(module: GraphModule, node: Node, sides: tuple[cross_entropy.Chain, cross_entropy.Chain]) -> None:
    graph, given = module.graph, _arguments(node)
    value, student = cross_entropy.value_of(node), sides[0]
    before = set(graph.nodes)
    with graph.inserting_before(node):
        operands: list[Any] = []
        for side in sides:
            operands += [cross_entropy.rows_of_inputs(graph, side), *cross_entropy.linear_operands(side.linear)[1:]]
        needs = [
            bool(value.requires_grad and n is not None and cross_entropy.value_of(n).requires_grad)
            for n in cross_entropy.linear_operands(student.linear)
        ]
        dtypes = [cross_entropy.value_of(side.linear).dtype for side in sides]
        transforms = "|".join(";".join(reversed(side.steps)) for side in sides)
        rows = graph.call_function(_KL, (*operands, transforms, *dtypes, needs))
        each = graph.call_function(operator.getitem, (rows, 0))
        created = graph.call_method("sum", (each,))
        if given["reduction"] != "sum":
            sizes = cross_entropy.value_of(student.logits).shape
            count = sizes[0] if given["reduction"] == "batchmean" else math.prod(sizes)
            created = graph.call_function(operator.truediv, (created, count))
        created = graph.call_method("to", (created, value.dtype))
    explain(rows, "the divergence of two linear layers runs in blocks of words; the backward recomputes the logits")
    for new in graph.nodes:
        if new not in before and "stack_trace" in node.meta:
            new.meta["stack_trace"] = node.meta["stack_trace"]
    node.replace_all_uses_with(created)
    graph.erase_node(node)
    for side in sides:
        for old in (side.loss, *side.between):
            graph.erase_node(old)
