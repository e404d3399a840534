"""Reduces a graph that reproduces a failure to a small one that still fails."""

from __future__ import annotations

from collections.abc import Callable

from mlirfuse.ir.graph import Graph, uses, walk
from mlirfuse.passes.dce import DeadCode


def reduce(graph: Graph, fails: Callable[[Graph], bool]) -> Graph:
    """Return the smallest graph found, by removing results, ops and operands from ``graph``, for which ``fails`` is
    still true.

    ``fails`` gets a copy each time and may change it; an exception of it does not count as the failure.
    """

    def still(candidate: Graph) -> bool:
        try:
            return fails(candidate.copy())
        except Exception:
            return False

    changed = True
    while changed:
        changed = False
        for attempt in _attempts(graph):
            if still(attempt):
                graph, changed = attempt, True
                break  # the remaining attempts are for the previous graph
    return graph


def _attempts(graph: Graph):
    """Iterate over smaller graphs than ``graph``, the smallest first."""
    swept = graph.copy()
    DeadCode().run(swept)
    if len(swept.ops) < len(graph.ops):
        yield swept
    count = len(graph.returns)
    for keep in range(count):
        if count > 1:
            smaller = graph.copy()
            smaller.body.returns = [smaller.returns[keep]]
            smaller.aliases = {0: graph.aliases[keep]} if keep in graph.aliases else {}
            smaller.windows = {0: graph.windows[keep]} if keep in graph.windows else {}
            yield smaller
    # Ops are removed in runs, the longest first; users of their results get another value of the same type.
    total = len(graph.ops)
    length = max(total // 2, 1)
    while total and length:
        for start in range(0, total, length):
            without = _without(graph, start, start + length)
            if without is not None:
                yield without
        length //= 2
    for index, op in enumerate(graph.ops):  # replace control flow by the ops in it
        for k in range(len(op.blocks)):
            yield from _inlined(graph, index, k)
    for k in range(len(graph.args)):
        smaller = graph.copy()
        used = {v for op in walk(smaller.body) for v in uses(op)} | set(smaller.returns)
        if smaller.args[k] not in used and k not in smaller.aliases.values():
            del smaller.body.args[k]
            del smaller.layouts[k : k + 1]
            smaller.scalars = {j - (j > k) for j in smaller.scalars if j != k}
            smaller.aliases = {p: j - (j > k) for p, j in smaller.aliases.items()}
            yield smaller


def _without(graph: Graph, start: int, end: int) -> Graph | None:
    smaller = graph.copy()
    gone, kept = smaller.ops[start:end], smaller.ops[:start] + smaller.ops[end:]
    at_hand = list(smaller.args) + [v for op in smaller.ops[:start] for v in op.results]
    smaller.body.ops = kept
    for op in gone:
        for value in op.results:
            # The op's own operand first, then the value that was computed last.
            candidates = [
                v
                for v in (*op.operands, *reversed(at_hand))
                if v.type == value.type and v.shape == value.shape and v.op not in gone
            ]
            if candidates:
                smaller.body.replace(value, candidates[0])
            elif value in smaller.returns or any(value in uses(user) for user in kept):
                return None
    return smaller


def _inlined(graph: Graph, index: int, k: int):
    smaller = graph.copy()
    op = smaller.ops[index]
    block = op.blocks[k]
    if block.args or len(block.returns) != len(op.results):
        return
    smaller.body.ops[index : index + 1] = block.ops
    for old, new in zip(op.results, block.returns):
        smaller.body.replace(old, new)
    yield smaller
