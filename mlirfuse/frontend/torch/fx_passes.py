"""All rewrites of torch's FX graphs, in the order in which they run; for the passes on the IR see
:mod:`mlirfuse.passes.pipelines`.

A graph comes from Dynamo, is traced to ATen ops by AOTAutograd (as a joint graph, or as an inference graph where
nothing requires gradients), is partitioned into forward and backward if it is a joint graph, and is then lowered:

    dynamo_graph → (equal layers are outlined, AOTAutograd traces) → AFTER_TRACING
    → joint_graph → (partition) → PARTITIONED → before_lowering      for a joint graph
    → inference_graph → before_lowering                              for an inference graph

:func:`mlirfuse.frontend.torch.rewrites.equal_layers.compiled` outlines the layers, as it also repeats the trace where
a layer cannot be traced by itself. Where a graph cannot be traced at all, custom ops' backwards become ops
(:mod:`mlirfuse.frontend.torch.rewrites.opaque_gradients`), and it is traced again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch.fx import Graph, GraphModule

from mlirfuse.core.device_properties import DeviceProperties, HostProperties
from mlirfuse.frontend.torch import torch_private as private
from mlirfuse.frontend.torch.attention import selection
from mlirfuse.frontend.torch.losses import cross_entropy, distillation
from mlirfuse.frontend.torch.options import Options
from mlirfuse.frontend.torch.rewrites import (
    channels_last,
    circular_pads,
    concatenations,
    cse,
    embedding_bags,
    equal_layers,
    float8,
    matmul_padding,
    pools,
    query_layouts,
    random,
    real_dtypes,
    resizing,
    row_major,
    unfused_bias,
)
from mlirfuse.frontend.torch.rewrites import matmul_epilogues as epilogues

Pass = Callable[[GraphModule], object]  # changes the module in place


def run(passes: Iterable[Pass], module: GraphModule) -> None:
    """Runs ``passes`` on ``module`` in order."""
    for one in passes:
        one(module)


def dynamo_graph(options: Options) -> list[Pass]:
    """The passes on Dynamo's graph, which has the user's calls of torch's functions."""
    return [
        selection.simplify_masks,  # provable attention masks become is_causal or a window: fused kernels take those
        lambda module: cross_entropy.chunk_losses(module, options.chunked_loss),  # no logits of all rows in memory
        lambda module: distillation.chunk_divergences(module, options.chunked_loss),  # nor those of two models
        embedding_bags.as_reductions,  # kernels look up rows and reduce them
        resizing.gather_gradients,  # an element sums the pixels that read it
        circular_pads.as_gathers,  # a pixel reads the one that it repeats
    ]


# On each graph of AOTAutograd, before anything else reads it.
AFTER_TRACING: tuple[Pass, ...] = (
    equal_layers.inline_layers,  # the ops of layers that were traced once
)


def inference_graph(options: Options, training: bool = False) -> list[Pass]:
    """The passes on a graph that is not partitioned. All of them run on joint graphs, too, which have forward and
    backward side by side (``training``)."""
    return [
        lambda module: channels_last.convert_if_it_pays(module, options.channels_last, training),
        *([] if training else [_on_graph(unfused_bias.unfuse)]),  # kernels add it
        row_major.prefer,  # of elementwise results that lie in another order than most of what is beside them
        query_layouts.join_heads_in_place,  # attention's result is what the next layer reads
        _on_graph(concatenations.drop_empty_operands),  # kernels read the others
        _on_graph(pools.read_offsets),  # a max pool's backward reads bytes instead of indices
        _on_graph(random.share_seeds),  # one seed per device, to be saved instead of dropout masks
    ]


def joint_graph(options: Options) -> list[Pass]:
    """The passes on a joint graph before it is partitioned."""
    return [
        *inference_graph(options, training=True),
        _on_graph(Graph.eliminate_dead_code),
        # What the backward recomputes is recognized as the forward's value.
        *([_on_graph(cse.eliminate_common_subexpressions)] if private.functorch_config.cse else []),
    ]


# On forward, backward, and the number of the forward's results that are not saved.
PARTITIONED: tuple[Callable[[GraphModule, GraphModule, int], object], ...] = (
    matmul_padding.pad_both,  # an operand that both pad is saved padded
)


def before_lowering(properties: DeviceProperties | HostProperties, matmul_epilogues: str) -> list[Pass]:
    """The passes on each forward, backward and inference graph, for a device; ``matmul_epilogues`` as in
    :class:`Options`."""
    return [
        real_dtypes.correct,  # dtypes of eager's kernels where fake tensors have others
        matmul_padding.pad,  # 16-bit matmuls get aligned rows
        float8.explain_scales,
        lambda module: epilogues.mark(module, properties, matmul_epilogues),  # kernels compute products and their users
        float8.as_bytes,  # kernels cast from and to float8, and multiply it
    ]


def _on_graph(function: Callable[[Graph], object]) -> Pass:
    return lambda module: function(module.graph)
