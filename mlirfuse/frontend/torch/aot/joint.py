"""Roles of the nodes of AOTAutograd's joint graph: forward or backward, and must be saved or must be recomputed."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from mlirfuse.frontend.torch.aot import collectives
from mlirfuse.frontend.torch.fx import layouts
from mlirfuse.frontend.torch.torch_private import BackwardState, HigherOrderOperator, OpOverload, pytree

_RECOMPUTE = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


class NeedsTorchsPartitioner(Exception):
    """Only torch's own partitioner can cut the joint graph."""


class Joint(NamedTuple):
    """The nodes of a joint graph. ``primals``, ``tangents``, ``seeds``: its inputs by AOTAutograd's names, ``seeds`` of
    forward and backward. ``of_tangents``: nodes that depend on a tangent, or are computed only in the backward.
    ``required_forward``: nodes that the forward must compute. ``static``: inputs that outlive the graph, parameters and
    buffers. ``overwritten``: inputs with other values once the forward has returned."""

    graph: Graph
    primals: list[Node]
    tangents: list[Node]
    seeds: tuple[list[Node], list[Node]]
    states: list[Node]
    forward_results: list[Any]
    backward_results: list[Any]
    of_tangents: set[Node]
    required_forward: set[Node]
    static: set[Node]
    overwritten: set[Node]

    @property
    def forward_inputs(self) -> list[Node]:
        """The forward's inputs, in the order of its parameters."""
        return self.primals + self.seeds[0]


def read(module: GraphModule, count: int, static: Iterable[int] = ()) -> Joint:
    """The roles of the nodes of ``module``. ``count``: the number of forward results, which come first. ``static``: the
    indices of primals that outlive the graph. Raises :class:`Refused`."""
    graph = module.graph
    placeholders = graph.find_nodes(op="placeholder")
    named = lambda *parts: [n for n in placeholders if any(p in str(n.target) for p in parts)]  # noqa: E731
    tangents = named("tangents")
    seeds = named("fwd_seed", "fwd_base_offset"), named("bwd_seed", "bwd_base_offset")
    others = {*tangents, *seeds[0], *seeds[1]}
    primals = [n for n in placeholders if n not in others]
    states = [n for n in placeholders if BackwardState is not None and isinstance(n.meta.get("val"), BackwardState)]
    results = pytree.arg_tree_leaves(*graph.output_node().args)
    of_tangents = _closure(tangents + [n for n in graph.nodes if must_be_in_backward(n)], lambda n: n.users)
    of_tangents.discard(graph.output_node())
    forward = [n for n in results[:count] if isinstance(n, Node)]
    if not of_tangents.isdisjoint(forward):
        raise NeedsTorchsPartitioner("a result of the forward is computed in the backward")
    impure = [n for n in graph.nodes if n.op == "call_function" and n not in of_tangents and n.is_impure()]
    required = _closure(forward + impure + primals + seeds[0], lambda n: n.all_input_nodes)
    if not of_tangents.isdisjoint(required):
        raise NeedsTorchsPartitioner("the forward needs what the backward computes")
    return Joint(
        graph,
        primals,
        tangents,
        seeds,
        states,
        results[:count],
        results[count:],
        of_tangents,
        required,
        {n for k, n in enumerate(primals) if k in set(static)},
        overwritten(graph, count),
    )


def _closure(nodes: Iterable[Node], step: Any) -> set[Node]:
    """The transitive closure of ``nodes`` under ``step``."""
    found, left = set[Node](), list(nodes)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += step(node)
    return found


# ---- mutated inputs


def overwritten(graph: Graph, count: int) -> set[Node]:
    """The inputs with other values when the backward runs: those that the graph copies to, those that AOTAutograd
    copies to after the forward (each new value is one of its ``count`` results), and inputs that share their memory."""
    inputs = graph.find_nodes(op="placeholder")
    found = written_inputs(graph)
    mutated = [getattr(result, "mutated_input", None) for result in descriptions(graph)[:count]]
    found |= {n for n in inputs if n.meta.get("desc") is not None and n.meta["desc"] in mutated}
    found |= {n for n in inputs if n.meta.get("aot_runtime_epilogue_input_mutation")}  # as of torch 2.15
    memory = {layouts.storage(n.meta.get("val")) for n in found} - {None}
    return found | {n for n in inputs if layouts.storage(n.meta.get("val")) in memory}


def descriptions(graph: Graph) -> list[Any]:
    """AOTAutograd's descriptions of the results; empty where it has none."""
    return pytree.arg_tree_leaves(*(graph.output_node().meta.get("desc") or ()))


def written_inputs(graph: Graph) -> set[Node]:
    """The inputs that ``graph`` itself copies to."""
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return {node.args[0] for node in copies if node.args[0].op == "placeholder"}


# ---- recomputation tags


def must_recompute(node: Node) -> bool:
    """Whether a checkpoint requires recomputing ``node`` in the backward."""
    return node.meta.get("recompute") in _RECOMPUTE


def must_save(node: Node) -> bool:
    """Whether ``node`` must never be recomputed."""
    return node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE


def is_random(node: Node) -> bool:
    """Whether ``node`` draws from torch's generator, so that a second call gives other numbers."""
    if not isinstance(node.target, OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    if "dropout_p" not in names:
        return True
    place = names.index("dropout_p")
    p = node.args[place] if len(node.args) > place else node.kwargs.get("dropout_p", 0.0)
    return not (isinstance(p, (int, float)) and p == 0)


def is_mutable(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _tag(node: Node) -> str | None:
    return node.meta.get("partitioner_tag")


def must_be_in_backward(node: Node) -> bool:
    """Whether AOTAutograd marks ``node`` as an effect of the backward, such as a write."""
    if _tag(node) == "is_backward":
        return node.op == "call_function" and node.is_impure()
    return _tag(node) == "must_be_in_backward"


# ---- decisions that do not depend on costs


def mark(module: GraphModule) -> None:
    """Marks the nodes of ``module`` that must be saved: results of collectives, also in checkpoints, and of ops with
    effects, ends of checkpointed regions, and values that both passes write into the same input."""
    for node in module.graph.nodes:
        if collectives.role(node) is not None:
            for leaf in _leaves(node):
                leaf.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        elif has_effects(node) and not must_recompute(node) and _tag(node) != "is_backward":
            for leaf in _leaves(node):
                if leaf is not node:
                    leaf.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    for node in module.graph.nodes:
        if must_recompute(node) and (_ends_checkpoint(node) or _meets_its_hook(node)):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    _mark_sources_of_both(module.graph)


def _leaves(node: Node) -> Iterator[Node]:
    """The values of an op that may have several results."""
    parts = [user for user in node.users if user.target is operator.getitem]
    for part in parts:
        yield from _leaves(part)
    if not parts and not isinstance(node.meta.get("val"), (tuple, list)):
        yield node


def has_effects(node: Node) -> bool:
    """Whether ``node`` is an op in a chain of effect tokens."""
    return isinstance(node.target, HigherOrderOperator) and node.target.name() == "with_effects"


def _ends_checkpoint(node: Node) -> bool:
    """Whether the next checkpointed region reads ``node``: otherwise the backward would extend into its own region."""
    region = node.meta.get("ac_graph_id")
    regions = [user.meta.get("ac_graph_id") for user in node.users if must_recompute(user)]
    return region is not None and any(other is not None and other > region for other in regions)


def _meets_its_hook(node: Node) -> bool:
    """Whether a region's result has a gradient hook, such as FSDP2's, which gathers what recomputation needs."""
    return bool(node.meta.get("has_backward_hook")) and not any(map(must_recompute, node.users))


def _mark_sources_of_both(graph: Graph) -> None:
    """For an input that forward and backward write: the forward's writes must not be recomputed from the new value."""
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    again = {node.args[0] for node in copies if _tag(node) == "must_be_in_backward"}
    for node in copies:
        if _tag(node) == "must_be_in_forward" and node.args[0] in again and isinstance(node.args[1], Node):
            node.args[1].meta["recompute"] = CheckpointPolicy.MUST_SAVE
