"""Topological order of ops that respects side effects."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mlirfuse.ir.effects import memory_order
from mlirfuse.ir.graph import Op, uses


def topological(ops, clusters=None) -> list[Op]:
    """Sort ``ops`` topologically and stably; ops with the same ``clusters[op]`` become neighbours.

    Ops with an effect keep their order, and stay between the ops that must come before and after them
    (:mod:`mlirfuse.ir.effects`).

    Raises ValueError where clusters depend on each other in a cycle.
    """
    return Units(ops, clusters).ordered()


class Units:
    """``ops`` in units that stay together, those with the same ``clusters[op]``, and the dependencies between units.

    ``members``: the ops of each unit; ``of``: the unit of each op; ``followers``: the units that come after each.
    """

    def __init__(self, ops, clusters=None):
        self.ops: list[Op] = list(ops)
        self.of: dict[Op, Any] = {op: (clusters.get(op) if clusters else None) or op for op in self.ops}
        self.members: dict[Any, list[Op]] = {}
        for op in self.ops:
            self.members.setdefault(self.of[op], []).append(op)
        self._predecessors: dict[Any, set[Any]] = {unit: set() for unit in self.members}
        self.followers: dict[Any, list[Any]] = {unit: [] for unit in self.members}
        self._readers: dict[Any, set[Any]] = {unit: set() for unit in self.members}
        producer = {value: op for op in self.ops for value in op.results}
        earlier = memory_order(self.ops)
        for op in self.ops:
            read = [producer[value] for value in uses(op) if value in producer]
            for source in [*read, *earlier.get(op, ())]:
                self.add(source, op)
            for source in read:
                self._readers[self.of[source]].add(self.of[op])

    def add(self, first: Op, second: Op) -> None:
        """Require the unit of ``first`` to come before that of ``second``."""
        before, after = self.of[first], self.of[second]
        if before is not after and before not in self._predecessors[after]:
            self._predecessors[after].add(before)
            self.followers[before].append(after)

    def only_before(self, unit: Any) -> list[Any]:
        """Return the units that come before ``unit`` and whose results no other unit reads."""
        return [first for first in self._predecessors[unit] if self._readers[first] - {first} == {unit}]

    def behind(self, unit: Any) -> set[Any]:
        """Return all units that come after ``unit``."""
        return self._reached(unit, self.followers)

    def before(self, unit: Any) -> set[Any]:
        """Return all units that come before ``unit``."""
        return self._reached(unit, self._predecessors)

    @staticmethod
    def _reached(unit: Any, steps: Mapping[Any, Iterable[Any]]) -> set[Any]:
        found: set[Any] = set()
        left = [unit]
        while left:
            new = [other for other in steps[left.pop()] if other not in found]
            found.update(new)
            left += new
        return found

    def ordered(self, key: Callable[[Any], tuple] | None = None) -> list[Op]:
        """Return the ops in order; of the units that are ready, the one with the smallest ``key`` is next, the first
        among equals. Raises ValueError where units depend on each other in a cycle."""
        units = list(self.members)
        rank = {unit: ((key(unit) if key else ()), index) for index, unit in enumerate(units)}
        left = {unit: len(pending) for unit, pending in self._predecessors.items()}
        ready = [rank[unit] for unit in units if not left[unit]]
        heapq.heapify(ready)
        out: list[Op] = []
        while ready:
            unit = units[heapq.heappop(ready)[1]]
            out.extend(self.members[unit])
            for follower in self.followers[unit]:
                left[follower] -= 1
                if not left[follower]:
                    heapq.heappush(ready, rank[follower])
        if len(out) != len(self.ops):
            raise ValueError("the groups depend on each other in a cycle")
        return out
