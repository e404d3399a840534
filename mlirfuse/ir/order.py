"""The order of ops: producers first, and what has an effect where it was."""

from __future__ import annotations

import heapq
from typing import Any

from mlirfuse.ir.effects import memory_order
from mlirfuse.ir.graph import Op, uses


def topological(ops, clusters=None) -> list[Op]:
    """``ops`` so ordered that producers come first, stable; ops with the same ``clusters[op]`` become neighbours.

    Ops with an effect keep their order and stay between what must come before and after them
    (:mod:`mlirfuse.ir.effects`).

    Raises ValueError where clusters depend on each other in a cycle.
    """
    ops = list(ops)
    earlier = memory_order(ops)
    cluster = {op: (clusters.get(op) if clusters else None) or op for op in ops}
    producer = {value: op for op in ops for value in op.results}
    members: dict[Any, list[Op]] = {}
    for op in ops:
        members.setdefault(cluster[op], []).append(op)
    pending: dict[Any, set[Any]] = {key: set() for key in members}
    followers: dict[Any, list] = {key: [] for key in members}
    for op in ops:
        for source in [*(producer.get(value) for value in uses(op)), *earlier.get(op, ())]:
            if (
                source is not None
                and cluster[source] is not cluster[op]
                and cluster[source] not in pending[cluster[op]]
            ):
                pending[cluster[op]].add(cluster[source])
                followers[cluster[source]].append(cluster[op])
    order = {key: k for k, key in enumerate(members)}
    keys = list(members)
    left = {key: len(p) for key, p in pending.items()}
    ready = [order[key] for key in keys if not left[key]]
    heapq.heapify(ready)
    out: list[Op] = []
    while ready:
        key = keys[heapq.heappop(ready)]
        out.extend(members[key])
        for follower in followers[key]:
            left[follower] -= 1
            if not left[follower]:
                heapq.heappush(ready, order[follower])
    if len(out) != len(ops):
        raise ValueError("the groups depend on each other in a cycle")
    return out
