"""The joint graph of AOTAutograd: which of its nodes belong to the forward and which to the backward, and what must be
saved or recomputed whatever it costs."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from mlirfuse.frontend.torch import collectives, layouts
from mlirfuse.frontend.torch.torch_private import BackwardState, HigherOrderOperator, OpOverload, pytree

_RECOMPUTE = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


class Refused(Exception):
    """A joint graph that only torch's own partitioner cuts."""


class Joint(NamedTuple):
    """The nodes of a joint graph. ``primals``, ``tangents``, ``seeds``: its inputs by what AOTAutograd names them,
    ``seeds`` of the forward and of the backward. ``of_tangents``: what depends on a tangent, or is computed in the
    backward alone. ``required_forward``: what the forward has to compute. ``static``: inputs that live on without the
    graph, parameters and buffers. ``overwritten``: inputs that hold other values once the forward has returned."""

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
        """In the order of the forward's parameters."""
        return self.primals + self.seeds[0]


def read(module: GraphModule, count: int, static: Iterable[int] = ()) -> Joint:
    """The roles of the nodes of ``module``. ``count``: of the results, those of the forward, which come first.
    ``static``: the indices of the primals that live on. Raises :class:`Refused`."""
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
        raise Refused("a result of the forward is computed in the backward")
    impure = [n for n in graph.nodes if n.op == "call_function" and n not in of_tangents and n.is_impure()]
    required = _closure(forward + impure + primals + seeds[0], lambda n: n.all_input_nodes)
    if not of_tangents.isdisjoint(required):
        raise Refused("the forward needs what the backward computes")
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
    """``nodes`` and what ``step`` leads to from them."""
    found, left = set[Node](), list(nodes)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += step(node)
    return found


# ---- inputs that are written


def overwritten(graph: Graph, count: int) -> set[Node]:
    """The inputs whose values are others when the backward runs: those that the graph copies to, those that AOTAutograd
    copies to after the forward (of whose ``count`` results each such new value is one), and inputs in their memory."""
    inputs = graph.find_nodes(op="placeholder")
    found = written_inputs(graph)
    mutated = [getattr(result, "mutated_input", None) for result in descriptions(graph)[:count]]
    found |= {n for n in inputs if n.meta.get("desc") is not None and n.meta["desc"] in mutated}
    found |= {n for n in inputs if n.meta.get("aot_runtime_epilogue_input_mutation")}  # as of torch 2.15
    memory = {layouts.storage(n.meta.get("val")) for n in found} - {None}
    return found | {n for n in inputs if layouts.storage(n.meta.get("val")) in memory}


def descriptions(graph: Graph) -> list[Any]:
    """What AOTAutograd says of each result; nothing where it says nothing."""
    return pytree.arg_tree_leaves(*(graph.output_node().meta.get("desc") or ()))


def written_inputs(graph: Graph) -> set[Node]:
    """The inputs that ``graph`` itself copies to."""
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return {node.args[0] for node in copies if node.args[0].op == "placeholder"}


# ---- what a node asks for


def must_recompute(node: Node) -> bool:
    """Whether a checkpoint wants ``node`` computed again in the backward."""
    return node.meta.get("recompute") in _RECOMPUTE


def must_save(node: Node) -> bool:
    """Whether ``node`` is never computed again."""
    return node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE


def is_random(node: Node) -> bool:
    """Whether two calls of ``node`` with the same arguments give other numbers, as torch's generator goes on."""
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
    """Whether AOTAutograd says so of ``node``: a write, or another effect, of the backward's."""
    if _tag(node) == "is_backward":
        return node.op == "call_function" and node.is_impure()
    return _tag(node) == "must_be_in_backward"


# ---- decisions before any cost is counted


def mark(module: GraphModule) -> None:
    """Marks on the nodes of ``module`` what must be saved: results of collectives, in checkpoints too, and of ops with
    effects, the ends of checkpointed regions, and what both passes write into the same input."""
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
    """The values of an op that may have several."""
    parts = [user for user in node.users if user.target is operator.getitem]
    for part in parts:
        yield from _leaves(part)
    if not parts and not isinstance(node.meta.get("val"), (tuple, list)):
        yield node


def has_effects(node: Node) -> bool:
    """Whether ``node`` is an op within a chain of tokens."""
    return isinstance(node.target, HigherOrderOperator) and node.target.name() == "with_effects"


def _ends_checkpoint(node: Node) -> bool:
    """Whether the next checkpointed region reads ``node``: else the backward would go on into its own region."""
    region = node.meta.get("ac_graph_id")
    regions = [user.meta.get("ac_graph_id") for user in node.users if must_recompute(user)]
    return region is not None and any(other is not None and other > region for other in regions)


def _meets_its_hook(node: Node) -> bool:
    """Whether a region's result has a hook for its gradient, as FSDP2's: that gathers what computing it again needs."""
    return bool(node.meta.get("has_backward_hook")) and not any(map(must_recompute, node.users))


def _mark_sources_of_both(graph: Graph) -> None:
    """An input that forward and backward write: what the forward writes must not be made again of the new value."""
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    again = {node.args[0] for node in copies if _tag(node) == "must_be_in_backward"}
    for node in copies:
        if _tag(node) == "must_be_in_forward" and node.args[0] in again and isinstance(node.args[1], Node):
            node.args[1].meta["recompute"] = CheckpointPolicy.MUST_SAVE
