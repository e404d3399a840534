"""fusion-overlap-collectives: run other ops during collectives."""

from __future__ import annotations

import math
from typing import Any

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.effects import is_collective, starts, waits
from mlirfuse.ir.graph import Block, Graph, Op
from mlirfuse.ir.order import Units
from mlirfuse.passes.base import Pass, blocks, register


@register
class OverlapCollectives(Pass):
    """Orders groups and ops so that collectives start as early, and are waited for as late, as data dependencies allow.
    A collective starts as soon as its operands are computed, and ops that the next one needs come first; a wait comes
    once nothing else is left to do. Collectives keep their order, which is the same on every rank: only the graph
    determines it.

    Collectives whose results are larger than their operands, above all all-gathers of weights, would all start at once;
    at most ``gathers`` of them are in flight or not yet waited for.

    Before::

        %0 = "fusion.call"(%x) {callee = "all_reduce", collective = "start", …}
        %1 = "fusion.call"(%0) {callee = "wait_tensor", collective = "wait", …}
        %2 = "fusion.group"(%1) …
        %3 = "fusion.group"(%y) …

    After::

        %0 = "fusion.call"(%x) {callee = "all_reduce", collective = "start", …}
        %3 = "fusion.group"(%y) …
        %1 = "fusion.call"(%0) {callee = "wait_tensor", collective = "wait", …}
        %2 = "fusion.group"(%1) …
    """

    name = "fusion-overlap-collectives"
    gathers: int = 2

    def run(self, graph: Graph) -> None:
        for block in list(blocks(graph)):
            if any(map(is_collective, block.ops)):
                self._order(block)

    def _order(self, block: Block) -> None:
        units = Units(block.ops, {op: op.group for op in block.ops if op.group is not None})
        self._limit_gathers(block, units)
        first = _first_start(block, units)

        def key(unit: Any) -> tuple[int, float]:
            op = units.members[unit][0]
            return (0 if starts(op) else 2 if waits(op) else 1), first.get(unit, math.inf)

        block.ops = units.ordered(key)

    def _limit_gathers(self, block: Block, units: Units) -> None:
        """Require a gather to start after the wait for the one ``gathers`` before it."""
        if self.gathers < 1:
            return
        waiting: dict[Op, list[Op]] = {}
        gathers: list[Op] = []
        for op in block.ops:
            if waits(op) and (source := op.operands[0].op) in waiting:
                waiting[source].append(op)
            if starts(op) and _grows(op):
                for wait in waiting[gathers[-self.gathers]] if len(gathers) >= self.gathers else ():
                    units.add(wait, op)
                gathers.append(op)
                waiting[op] = []


def _grows(op: Op) -> bool:
    """Whether a collective's results have a multiple of its operands' elements."""
    given, created = (sum(sz.product(v.shape) for v in values) for values in (op.operands, op.results))
    times = sz.quotient(created, given) if given != 0 else None
    return isinstance(times, int) and times > 1


def _first_start(block: Block, units: Units) -> dict[Any, int]:
    """Return for each unit the index of the first collective that depends on it."""
    indices = {units.of[op]: index for index, op in enumerate(op for op in block.ops if starts(op))}
    first: dict[Any, int] = {}
    for op in reversed(units.ordered()):
        unit = units.of[op]
        found = [first[follower] for follower in units.followers[unit] if follower in first]
        if unit in indices:
            found.append(indices[unit])
        if found:
            first[unit] = min(found)
    return first
