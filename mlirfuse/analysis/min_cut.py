"""The minimum cut of a directed graph, by Dinic's algorithm."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from itertools import pairwise

Edge = tuple[Hashable, Hashable, float]


def sink_side(edges: Iterable[Edge], source: Hashable, sink: Hashable) -> set[Hashable] | None:
    """Return the nodes on the sink's side of a minimum cut between ``source`` and ``sink``, of several minimum cuts the
    one with the fewest nodes there; None if every cut is infinite. ``edges``: (from, to, capacity)."""
    capacity: dict[Hashable, dict[Hashable, float]] = {source: {}, sink: {}}
    for a, b, c in edges:
        capacity.setdefault(a, {})
        capacity.setdefault(b, {})
        capacity[a][b] = capacity[a].get(b, 0) + c
        capacity[b].setdefault(a, 0)
    while (level := _levels(capacity, source)).keys() >= {sink}:
        left = {node: list(nexts) for node, nexts in capacity.items()}
        while flow := _augment(capacity, level, left, source, sink):
            if flow == float("inf"):
                return None
    return _reaching(capacity, sink)


def _levels(capacity: dict[Hashable, dict[Hashable, float]], source: Hashable) -> dict[Hashable, int]:
    level, worklist = {source: 0}, deque([source])
    while worklist:
        node = worklist.popleft()
        for other, c in capacity[node].items():
            if c > 0 and other not in level:
                level[other] = level[node] + 1
                worklist.append(other)
    return level


def _augment(capacity, level, left, source: Hashable, sink: Hashable) -> float:
    """Send flow along one shortest path. Returns the amount, 0 if there is no path."""
    path = [source]
    while path[-1] != sink:
        node = path[-1]
        if not left[node]:
            if len(path) == 1:
                return 0
            path.pop()
            left[path[-1]].pop()
            continue
        other = left[node][-1]
        if capacity[node][other] > 0 and level.get(other) == level[node] + 1:
            path.append(other)
        else:
            left[node].pop()
    flow = min(capacity[a][b] for a, b in pairwise(path))
    if flow < float("inf"):
        for a, b in pairwise(path):
            capacity[a][b] -= flow
            capacity[b][a] += flow
    return flow


def _reaching(capacity: dict[Hashable, dict[Hashable, float]], sink: Hashable) -> set[Hashable]:
    """Return the nodes from which the sink can still be reached."""
    found, worklist = {sink}, [sink]
    while worklist:
        node = worklist.pop()
        for other in capacity[node]:  # each edge has its reverse
            if other not in found and capacity[other][node] > 0:
                found.add(other)
                worklist.append(other)
    return found
