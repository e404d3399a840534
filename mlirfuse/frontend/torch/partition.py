"""The cut of AOTAutograd's joint graph into forward and backward: torch's partitioner, with the values to keep as
:mod:`mlirfuse.frontend.torch.min_cut` finds them, one seed a device, and no collective that runs twice."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch._functorch import partitioners
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._ordered_set import OrderedSet
from torch.utils.checkpoint import CheckpointPolicy

from mlirfuse.core import garbage, threads
from mlirfuse.frontend.torch import (
    channels_last,
    collectives,
    equal_layers,
    equal_nodes,
    min_cut,
    pools,
    products,
    random,
)
from mlirfuse.frontend.torch.ops import pointwise
from mlirfuse.frontend.torch.ops.rules import RULES, VIEWS

_torchs_list = partitioners.get_default_op_list
_torchs_cut = partitioners.solve_min_cut
_DEFAULT = partitioners.MinCutOptions(True, True, True, True, True)
_ELEMENTWISE = pointwise.__name__
_lock = threads.lock()
AGAIN = "mlirfuse_again"  # in the ``meta`` of a node of the backward: why it is computed there once more


@garbage.uncollected()
def partition(
    joint: GraphModule, inputs: Sequence[Any], turned: bool | None = None, **options: Any
) -> tuple[GraphModule, GraphModule]:
    """Forward and backward, as ``partition_fn`` of ``aot_autograd``. ``turned``: the option ``channels_last``."""
    equal_layers.put_back(joint)
    channels_last.decide(joint, turned)
    pools.by_offsets(joint.graph)
    random.share_seeds(joint.graph)
    for node in joint.graph.nodes:
        if collectives.role(node) is not None:  # in a checkpoint, too
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    with (
        _lock,
        mock.patch.object(partitioners, "get_default_op_list", _our_list),
        mock.patch.object(partitioners, "solve_min_cut", _cut),
        mock.patch.object(partitioners, "fx_graph_cse", equal_nodes.merge),
        _unwritten() as unwritten,
    ):
        forward, backward = partitioners.min_cut_rematerialization_partition(joint, inputs, **options)
    forward, backward = (_LazyGraphModule.from_graphmodule(m) if m in unwritten else m for m in (forward, backward))
    if joint in unwritten:
        joint.recompile()
    _keep_what_inputs_were(forward, options["num_fwd_outputs"])
    _tell_what_is_computed_again(forward, backward)
    products.pad_both(forward, backward, options["num_fwd_outputs"])
    return forward, backward


@contextlib.contextmanager
def _unwritten() -> Iterator[set[GraphModule]]:
    """Meanwhile this thread writes no Python code of modules: their graphs go on changing, and most are never run.
    Gives those whose code is stale."""
    write, here = GraphModule.recompile, threading.get_ident()
    stale: set[GraphModule] = set()

    def recompile(module: GraphModule) -> Any:
        if threading.get_ident() != here or isinstance(module, _LazyGraphModule):
            return write(module)
        stale.add(module)

    with mock.patch.object(GraphModule, "recompile", recompile):
        yield stale


def _keep_what_inputs_were(forward: GraphModule, visible: int) -> None:
    """A copy of each input that is kept for the backward though the forward writes it: the backward, which may compute
    again what was made of it, would find what was written. torch's partitioner does not look at that. ``visible``: how
    many of the results, the first, are not kept alone."""
    graph = forward.graph
    written = min_cut.written_inputs(graph)
    given = graph.output_node().args[0][visible:]
    kept = [n for n in dict.fromkeys(given) if isinstance(n, Node) and n.op == "placeholder" and n in written]
    if not kept:
        return
    copies: dict[Any, Any] = {}
    with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
        for node in kept:
            copies[node] = graph.call_function(torch.ops.aten.clone.default, (node,))
            copies[node].meta = {**node.meta, "val": torch.clone(node.meta["val"])}
    graph.output_node().args = ([*graph.output_node().args[0][:visible], *(copies.get(n, n) for n in given)],)
    forward.recompile()


def _tell_what_is_computed_again(forward: GraphModule, backward: GraphModule) -> None:
    """Notes on each op of the backward that the forward has too why it is not kept. Nodes keep the joint graph's
    names."""
    computed = {node.name for node in forward.graph.nodes if node.op == "call_function" and node.all_input_nodes}
    for node in backward.graph.nodes:
        again = node.name in computed and str(node.target) not in VIEWS
        if again and isinstance(node.meta.get("val"), torch.Tensor):
            node.meta[AGAIN] = _why_again(node)


def _why_again(node: Node) -> str:
    if node.meta.get("recompute") in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE):
        return "a checkpoint asks for it"
    if min_cut.COSTS not in node.meta:
        return "torch's own cut"
    again, kept = node.meta[min_cut.COSTS]
    return f"costs {again} instead of {kept}" if again else "free in the kernel that reads it"


def _cut(graph: Graph, info: Any, options: Any, dont_ban: Any = None) -> Any:
    """As torch's function of this place; what is asked for otherwise than by default is left to it."""
    found = min_cut.saved_values(graph, info) if dont_ban is None and options == _DEFAULT else None
    return _torchs_cut(graph, info, options, dont_ban) if found is None else (found, OrderedSet())


def _our_list() -> Any:
    """torch's kinds of ops, with ours among what may be computed again: it has no other way to say so."""
    ops = _torchs_list()
    for kinds in (ops.fusible_ops, ops.recomputable_ops):
        kinds.update(_free())
    return ops


@functools.cache
def _free() -> tuple[Any, ...]:
    """What a kernel of ours computes again as it reads the operands: elementwise ops, and numbers of a seed."""
    names = dict.fromkeys(name.rpartition(".")[0] for name, rule in RULES.items() if rule.__module__ == _ELEMENTWISE)
    found = [getattr(getattr(torch.ops, space), op, None) for space, _, op in (name.partition(".") for name in names)]
    return (*filter(None, found), torch.ops.mlirfuse.uniform, torch.ops.mlirfuse.normal)
