"""``flex_attention`` in a graph: by torch's compiled template, forward and backward. Block masks and captured tensors
are its inputs, so another mask of the same form needs no other code.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from mlirfuse.frontend.torch import torch_private as private
from mlirfuse.frontend.torch.attention import inductor_calls
from mlirfuse.lowering import llvm

FORWARD, BACKWARD = torch.ops.higher_order.flex_attention, torch.ops.higher_order.flex_attention_backward
_INSTEAD = "flex attention runs uncompiled, with all scores in memory"


def _right_on_this_cpu() -> bool:
    """Whether torch's template for CPUs gives what eager gives: without AVX-512 it did not in 29 of 40 calls of 8 keys
    (torch 2.13)."""
    return "avx512f" in llvm.host_processor().features


def _alone(node: Node, module: GraphModule) -> inductor_calls.Alone | None:
    """The graph of ``node`` alone; None on a CPU for the backward, which torch has no template for, and for the forward
    where that of torch is wrong."""
    on_cpu = node.args[0].meta["val"].device.type == "cpu"
    if on_cpu and (node.target is BACKWARD or not _right_on_this_cpu()):
        return None
    graph, root = Graph(), torch.nn.Module()
    functions = [
        n for n in node.all_input_nodes if n.op == "get_attr" and isinstance(_attribute(module, n), GraphModule)
    ]
    inputs = _with_symbols([n for n in node.all_input_nodes if n not in functions], module)
    new: dict[Node, Node] = {}
    for k, n in enumerate(inputs):
        new[n] = graph.placeholder(f"given_{k}")
        new[n].meta["val"] = n.meta["val"]
    for k, n in enumerate(functions):
        function = _attribute(module, n)
        fakes = [x.meta["val"] for x in function.graph.find_nodes(op="placeholder")]
        setattr(root, f"function_{k}", inductor_calls.traced(function, fakes))
        new[n] = graph.get_attr(f"function_{k}")
    call = graph.call_function(node.target, *torch.fx.map_arg((node.args, node.kwargs), new.__getitem__))
    outputs: list[Node] = []

    def part(source: Node, fake: Any, index: int) -> Any:
        if fake is None:
            return None
        created = graph.call_function(operator.getitem, (source, index))
        created.meta["val"] = fake
        if isinstance(fake, (tuple, list)):
            return tuple(part(created, inner, k) for k, inner in enumerate(fake))
        outputs.append(created)
        return len(outputs) - 1

    used = {user.args[1] for user in node.users}
    results = [part(call, fake, k) if k in used else None for k, fake in enumerate(node.meta["val"])]
    graph.output(tuple(outputs)).meta["user_visible_output_idxs"] = list(range(len(outputs)))  # with the fakes' strides
    return inductor_calls.Alone(GraphModule(root, graph), inputs, results, _INSTEAD)


inductor_calls.GRAPHS |= {FORWARD: _alone, BACKWARD: _alone}


def _with_symbols(inputs: list[Node], module: GraphModule) -> list[Node]:
    """``inputs``, after the inputs of ``module`` with the symbols in their shapes."""
    symbols = {s for n in inputs for s in private.free_symbols(n.meta["val"])}
    binding = private.find_symbol_binding_fx_nodes(module.graph) if symbols else {}
    needed = {n for s, n in binding.items() if s in symbols and private.is_sym_node(n)}
    return [n for n in module.graph.nodes if n in needed and n not in inputs] + inputs


def _attribute(module: GraphModule, node: Node) -> Any:
    return operator.attrgetter(str(node.target))(module)
