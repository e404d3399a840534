"""Partitions AOTAutograd's joint graph into forward and backward: saves the cut of
:mod:`mlirfuse.frontend.torch.aot.min_cut`, draws random numbers from one seed per device, and runs no collective twice.

Nothing in torch is patched. Graphs with features that only torch's partitioner handles (user streams, offloaded
activations, C++ objects) are left to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from mlirfuse.core import gc_control
from mlirfuse.core.errors import warn
from mlirfuse.frontend.torch import fx_passes
from mlirfuse.frontend.torch import torch_private as private
from mlirfuse.frontend.torch.aot import extract, min_cut, trace
from mlirfuse.frontend.torch.aot import joint as joints
from mlirfuse.frontend.torch.fx import layouts
from mlirfuse.frontend.torch.ops.rules import VIEWS
from mlirfuse.frontend.torch.options import Options

WHY_RECOMPUTED = "mlirfuse_why_recomputed"  # ``meta`` key of a backward node: why it is recomputed
_STREAM_OPS = ("control_deps",)  # higher-order ops that only torch's partitioner cuts


@gc_control.gc_disabled()
def partition(
    joint: GraphModule, inputs: Sequence[Any], backend_options: Options | None = None, **options: Any
) -> tuple[GraphModule, GraphModule]:
    """Forward and backward, as AOTAutograd's ``partition_fn``; ``options``: AOTAutograd's."""
    fx_passes.run(fx_passes.AFTER_TRACING, joint)
    fx_passes.run(fx_passes.joint_graph(backend_options or Options()), joint)
    try:
        forward, backward = _partitioned(
            joint, options["num_fwd_outputs"], options.get("static_lifetime_input_indices")
        )
    except joints.NeedsTorchsPartitioner:
        joint.recompile()
        forward, backward = private.torchs_partition(joint, inputs, **options)
    _explain_recomputation(forward, backward)
    for one in fx_passes.PARTITIONED:
        one(forward, backward, options["num_fwd_outputs"])
    return forward, backward


def partition_or_torchs(
    joint: GraphModule, inputs: Sequence[Any], backend_options: Options | None = None, **options: Any
) -> tuple[GraphModule, GraphModule]:
    """:func:`partition`; falls back to torch's own with a warning where that raises."""
    copy = Graph(joint.graph.owning_module)
    results = copy.graph_copy(joint.graph, known := dict[Node, Node]())
    copy.output(results).meta = dict(joint.graph.output_node().meta)
    assert len(known) == len(joint.graph.nodes) - 1
    try:
        return partition(joint, inputs, backend_options, **options)
    except Exception as error:
        warn(f"mlirfuse could not partition a graph, and torch's partitioner does: {type(error).__name__}: {error}")
        joint.graph = copy
        return private.torchs_partition(joint, inputs, **options)


def _partitioned(module: GraphModule, count: int, static: Sequence[int] | None) -> tuple[GraphModule, GraphModule]:
    """The modules of forward, the first ``count`` of whose results are not saved, and backward. Raises
    ``NeedsTorchsPartitioner``."""
    _leave_to_torch(module)
    recomputes_random = any(joints.must_recompute(n) and joints.is_random(n) for n in module.graph.nodes)
    joints.mark(module)
    joint = joints.read(module, count, static or ())
    for node in joint.primals:
        node.meta["is_static_input"] = node in joint.static  # torch 2.15's marker
    saved = min_cut.saved_values(joint, _settings(module))
    if saved is None:
        raise joints.NeedsTorchsPartitioner("something can be neither saved nor recomputed")
    forward, backward, sizes = extract.modules(module, joint, saved, silent=not trace.logged())
    if recomputes_random:
        forward, backward = private.functionalize_rng_ops(module, forward, backward, sizes)
    if module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph):
        forward = private.thread_graphsafe_rng_from_hops(forward, is_backward=False)
        backward = private.thread_graphsafe_rng_from_hops(backward, is_backward=True)
    _save_overwritten_inputs(forward, joint)
    return forward, backward


def _leave_to_torch(module: GraphModule) -> None:
    """Raises ``NeedsTorchsPartitioner`` for features that only torch's partitioner handles."""
    config = private.functorch_config
    for setting in ("enable_activation_offloading", "_sync_decision_cross_ranks"):
        if getattr(config, setting, False):
            raise joints.NeedsTorchsPartitioner(f"torch._functorch.config.{setting}")
    for node in module.graph.nodes:
        if isinstance(node.target, private.HigherOrderOperator) and node.target.name() in _STREAM_OPS:
            raise joints.NeedsTorchsPartitioner("streams")


def _settings(module: GraphModule) -> min_cut.Settings:
    """The recomputation settings of torch's config and of annotated regions. Raises RuntimeError for regions with
    different budgets."""
    config = private.functorch_config
    budget: float = config.activation_memory_budget
    marked = (n.meta["memory_budget"] for n in module.graph.nodes if isinstance(n.meta.get("memory_budget"), float))
    budget = next(marked, budget)
    regions = {b for b in private.memory_budgets(module) if b is not None}
    if len(regions) > 1:
        raise RuntimeError(
            f"regions with several activation memory budgets, {sorted(regions)}, are in one graph: separate them with "
            "torch._dynamo.graph_break()"
        )
    budget = next(iter(regions), budget)
    if not 0 <= budget <= 1:
        raise RuntimeError(f"an activation memory budget must be from 0 to 1, not {budget}")
    others = config.aggressive_recomputation or not config.ban_recompute_not_in_allowlist
    return min_cut.Settings(budget, not config.ban_recompute_reductions, others)


def _save_overwritten_inputs(forward: GraphModule, joint: joints.Joint) -> None:
    """Makes the forward save copies of values that share memory with an input that is overwritten before the backward
    runs, by the forward itself or by AOTAutograd after it."""
    graph, count = forward.graph, len(joint.forward_results)
    memory = {layouts.storage(n.meta.get("val")) for n in joint.overwritten} - {None}
    names = {n.name for n in joint.overwritten}
    given = graph.output_node().args[0]
    kept = [
        n
        for n in dict.fromkeys(given[count:])
        if isinstance(n, Node)
        and isinstance(n.meta.get("val"), torch.Tensor)
        and (n.name in names or layouts.storage(n.meta["val"]) in memory)
    ]
    if not kept:
        return
    copies: dict[Any, Any] = {}
    first = next(n for n in graph.nodes if n.op != "placeholder")
    for node in kept:
        with graph.inserting_before(first if node.op == "placeholder" else node.next):
            copies[node] = graph.call_function(torch.ops.aten.clone.default, (node,))
            copies[node].meta = {**node.meta, "val": torch.clone(node.meta["val"])}
    graph.output_node().args = ((*given[:count], *(copies.get(n, n) for n in given[count:])),)
    forward.recompile()


def _explain_recomputation(forward: GraphModule, backward: GraphModule) -> None:
    """Records on each backward op that the forward has too why it is recomputed. Nodes keep the joint graph's names."""
    computed = {node.name for node in forward.graph.nodes if node.op == "call_function" and node.all_input_nodes}
    for node in backward.graph.nodes:
        again = node.name in computed and str(node.target) not in VIEWS
        if again and isinstance(node.meta.get("val"), torch.Tensor):
            node.meta[WHY_RECOMPUTED] = _why_recomputed(node)


def _why_recomputed(node: Node) -> str:
    if node.meta.get("recompute") in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE):
        return "required by a checkpoint"
    if min_cut.COSTS not in node.meta:
        return "torch's own cut"
    again, kept = node.meta[min_cut.COSTS]
    return f"costs {again} instead of {kept}" if again else "free in the kernel that reads it"
