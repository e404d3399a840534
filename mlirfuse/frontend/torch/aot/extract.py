"""Extracts forward and backward modules from a joint graph, given the saved values.

The forward returns its results, then the saved values: tensors, those whose versions autograd does not check, and
sizes. The backward takes the sizes, the tensors, and the tangents. It recomputes each value just before its first use,
so that only one checkpointed region's memory is live at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from mlirfuse.frontend.torch.aot.joint import (
    Joint,
    NeedsTorchsPartitioner,
    descriptions,
    is_mutable,
    must_be_in_backward,
)
from mlirfuse.frontend.torch.fx import layouts
from mlirfuse.frontend.torch.torch_private import (
    LazyGraphModule,
    find_symbol_binding_fx_nodes,
    free_symbols,
    is_sym_node,
    saved_for_backward,
)

DONATED = "mlirfuse_donated"  # ``meta`` key of a backward's input: its buffer is donated


class QuietGraphModule(LazyGraphModule):
    """A module that generates its code on first use. AOTAutograd prints it for its logs and its cache even if nobody
    reads them: ``silent`` modules print nothing then."""

    silent = False

    def print_readable(self, print_output: bool = True, *args: Any, **kwargs: Any) -> str:
        """As ``GraphModule.print_readable``."""
        return "" if self.silent and not print_output else super().print_readable(print_output, *args, **kwargs)


def modules(
    module: GraphModule, joint: Joint, saved: Sequence[Node], silent: bool
) -> tuple[QuietGraphModule, QuietGraphModule, int]:
    """Forward, backward, and the number of sizes that the forward saves. ``saved``: the cut, of which only what the
    backward reads is kept. Raises :class:`joint.Refused`."""
    order = {node: k for k, node in enumerate(joint.graph.nodes)}
    given = {*saved, *joint.tangents, *joint.seeds[1], *joint.states}
    wanted = [n for n in joint.backward_results if isinstance(n, Node)]
    wanted += [n for n in joint.graph.nodes if n in joint.of_tangents and _runs_anyway(n)]
    needed = _needed(wanted, given)
    _check(joint, needed, given)
    kept = [n for n in saved if n in needed and n not in joint.states]
    sizes = [n for n in kept if is_sym_node(n)]
    tensors = [n for n in kept if n not in sizes]
    unchecked = [n for n in tensors if n.meta.get("saved_tensor_with_no_vc_check")]
    tensors = [n for n in tensors if n not in unchecked] + unchecked
    sizes = _with_symbols(joint, sizes, [*tensors, *joint.tangents])

    forward = _forward(joint, order, [*tensors, *sizes], len(tensors) - len(unchecked), len(tensors))
    first = [n for n in joint.graph.nodes if n in needed and n in joint.of_tangents and n.op != "placeholder"]
    inputs = [*sizes, *tensors, *joint.tangents, *joint.seeds[1], *joint.states]
    backward = _graph(joint, order, inputs, first, joint.backward_results, needed)
    results = len(joint.forward_results)
    backward.output_node().meta["desc"] = descriptions(joint.graph)[results:]
    for node in backward.nodes:
        if node.op in ("call_function", "get_attr"):
            node.meta["autograd_backward"] = True
    both = QuietGraphModule(module, forward), QuietGraphModule(module, backward)
    for part in both:
        part.silent = silent
    _mark_donated(*both, results)
    return *both, len(sizes)


def _runs_anyway(node: Node) -> bool:
    return node.op == "call_function" and (must_be_in_backward(node) or node.is_impure())


def _needed(wanted: Iterable[Node], given: set[Node]) -> set[Node]:
    """The nodes needed for ``wanted``, given the values ``given``."""
    needed, left = set[Node](), list(wanted)
    while left:
        node = left.pop()
        if node not in needed:
            needed.add(node)
            if node not in given:
                left += node.all_input_nodes
    return needed


def _check(joint: Joint, needed: set[Node], given: set[Node]) -> None:
    """Raises :class:`Refused` where the backward would have to run something that belongs to the forward."""
    for node in needed - given:
        if node.op == "placeholder":
            raise NeedsTorchsPartitioner(f"the backward needs the input {node}, which is not saved")
        if is_mutable(node) and node not in joint.of_tangents:
            raise NeedsTorchsPartitioner(f"the backward needs {node}, a write of the forward")


def _with_symbols(joint: Joint, sizes: list[Node], values: Sequence[Node]) -> list[Node]:
    """``sizes`` and the symbols in the shapes of ``values``, from which the backward's sizes derive; symbols first."""
    binding = find_symbol_binding_fx_nodes(joint.graph)
    symbols = {node: symbol for symbol, node in binding.items()}
    bound = [n for n in sizes if n in symbols]
    derived = [n for n in sizes if n not in symbols]
    known = {symbols[n] for n in bound}
    for node in [*derived, *values]:
        for symbol in sorted(free_symbols(node.meta["val"]) if "val" in node.meta else (), key=lambda s: s.name):
            if symbol not in known and symbol in binding:
                bound.append(binding[symbol])
            known.add(symbol)
    return bound + derived


def _forward(joint: Joint, order: dict[Node, int], saved: list[Node], unchecked: int, sizes: int) -> Graph:
    """The forward's graph; ``unchecked``, ``sizes``: where in ``saved`` the unchecked tensors and the sizes start."""
    outputs = [*joint.forward_results, *saved]
    inputs = joint.forward_inputs
    needed = _needed([*joint.required_forward, *(n for n in outputs if isinstance(n, Node))], set(inputs))
    first = sorted((n for n in needed if n.op != "placeholder"), key=order.__getitem__)
    graph = _graph(joint, order, inputs, first, outputs, needed)
    described = descriptions(joint.graph)[: len(joint.forward_results)]
    described += [saved_for_backward(k, unchecked <= k < sizes) for k in range(len(saved))] if described else []
    graph.output_node().meta["desc"] = described
    return graph


def _graph(joint: Joint, order: dict[Node, int], inputs: Sequence[Node], first: Sequence[Node],
           outputs: Sequence[Any], needed: set[Node]) -> Graph:  # fmt: skip
    """A graph with these inputs, the nodes ``first`` in their order, and ``outputs``, each preceded by what it needs.
    Takes all parts of a multi-result op at once, so that the rest can be freed."""
    graph, new = Graph(), dict[Node, Node]()
    for node in inputs:
        new[node] = graph.placeholder(node.name)
        new[node].meta = dict(node.meta)

    def copy(node: Node) -> None:
        new[node] = graph.node_copy(node, new.__getitem__)
        if isinstance(node.meta.get("val"), (tuple, list)):
            for part in sorted((u for u in node.users if u in needed and u not in new), key=order.__getitem__):
                if len(part.all_input_nodes) == 1 and part.name in parts:
                    copy(part)

    parts = {n.name for n in needed if _is_getitem(n)}
    for node in [*first, *(n for n in outputs if isinstance(n, Node))]:
        if node not in new:
            for one in sorted(_missing(node, new), key=order.__getitem__):
                if one not in new:
                    copy(one)
    created = graph.output(tuple(new[n] if isinstance(n, Node) else n for n in outputs))
    created.meta["output_stack_traces"] = [n.meta.get("stack_trace") if isinstance(n, Node) else None for n in outputs]
    return graph


def _is_getitem(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def _missing(node: Node, there: dict[Node, Node]) -> set[Node]:
    """``node`` and its dependencies that are not in ``there``."""
    found, left = set[Node](), [node]
    while left:
        one = left.pop()
        if one not in found and one not in there:
            found.add(one)
            left += one.all_input_nodes
    return found


def _mark_donated(forward: QuietGraphModule, backward: QuietGraphModule, results: int) -> None:
    """Marks saved tensors that share no memory with inputs or results of the forward or backward. The backward may
    overwrite them, unless it runs again."""
    outputs = forward.graph.output_node().args[0]
    others = [*forward.graph.find_nodes(op="placeholder"), *outputs[:results], *backward.graph.output_node().args[0]]
    taken = {layouts.storage(n.meta.get("val")) for n in others if isinstance(n, Node)}
    names = {n.name for n in outputs[results:]}
    for node in backward.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if node.name in names and isinstance(value, torch.Tensor):
            memory = layouts.storage(value)
            if memory is not None and memory not in taken and not node.meta.get("saved_tensor_with_no_vc_check"):
                node.meta[DONATED] = True
