"""Which values of a joint graph the forward keeps for the backward: the cut of least cost, counted in bytes that our
kernels move and that memory holds.

A value that is kept costs its bytes while it is held, as they are read again, and as they are written where the forward
would not write them anyway. A value that is computed again costs nothing inside of a kernel that reads its operands;
it costs a write and a read where an op of torch's reads it, or more than one of the backward's kernels: a residual
connection is not added up again from all layers. What is made of no more bytes than it has costs several kernels
nothing either: each reads these in its place (fusion-compute-again). So what a norm makes of a convolution's result is
not kept beside that. What is no elementwise op or view is never computed again.

So no mask is kept, its seed is; a value in float32 that is the cast of a half type's is kept as that; statistics of
norms are kept, of a row's size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch._functorch.partitioners import NodeInfo, _size_of, is_sym_node, must_recompute, sym_node_size
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from mlirfuse.frontend.torch.ops import pointwise, random, shapes
from mlirfuse.frontend.torch.ops.rules import DTYPES, RULES, VIEWS

# What a byte costs, in whole numbers, so that the cut is the same in every process.
HELD = 1  # until the backward: memory for time
MOVED = 4  # written or read once

_BESIDE = 16  # one byte of so many more is no more: a norm's statistics beside what they are of

COSTS = "mlirfuse_costs"  # in the ``meta`` of a node: the cost of computing it again, and of keeping it

_CHEAP = {module.__name__ for module in (pointwise, random, shapes)}
_SCATTERS = {"aten.scatter.value"}


def saved_values(graph: Graph, info: NodeInfo) -> list[Node] | None:
    """The values to keep, in the graph's order; None where that is left to torch, as for objects without bytes."""
    costs = _Costs(graph, info)
    flow = _Flow()
    for node in graph.nodes:
        if node.op == "output":
            continue
        if node in info.required_bw_nodes:
            if node in info.tangents_closure:
                flow.add((node, "in"), "sink", math.inf)
                continue
            flow.add((node, "out"), "sink", math.inf)
        if must_recompute(node):
            flow.add((node, "in"), "sink", math.inf)
            continue
        again, kept = costs.again(node), costs.kept(node)
        if kept is None:
            return None
        node.meta[COSTS] = again, kept
        if again:
            flow.add("source", (node, "in"), again)
        flow.add((node, "in"), (node, "out"), kept)
        for user in node.users:
            flow.add((node, "out"), (user, "in"), math.inf)
    if "source" not in flow.places or "sink" not in flow.places:
        return []
    behind = flow.behind("source", "sink")
    if behind is None:  # something can neither be kept nor computed again: torch says what
        return None
    return [n for n in graph.nodes if (n, "out") in behind and (n, "in") in flow.places and (n, "in") not in behind]


class _Flow:
    """A network of whose least cut the side behind it is asked for. By Dinic's algorithm: in a model's graph a few
    rounds of shortest paths, a thirtieth of the time of the general one of networkx."""

    def __init__(self) -> None:
        self.places: dict[Hashable, int] = {}
        self.edges: list[list[int]] = []  # of each place; edge ``e ^ 1`` is ``e`` the other way round
        self.ends: list[int] = []
        self.room: list[float] = []  # what may still flow

    def add(self, start: Hashable, end: Hashable, capacity: float) -> None:
        a, b = self._place(start), self._place(end)
        self.edges[a].append(len(self.ends))
        self.edges[b].append(len(self.ends) + 1)
        self.ends += (b, a)
        self.room += (capacity, 0)

    def _place(self, node: Hashable) -> int:
        if node not in self.places:
            self.places[node] = len(self.edges)
            self.edges.append([])
        return self.places[node]

    def behind(self, source: Hashable, sink: Hashable) -> set[Hashable] | None:
        """What is behind the least cut from ``source`` to ``sink``, of several the last one; None where none is
        finite. Uses the capacities up."""
        start, end = self.places[source], self.places[sink]
        while (distance := self._distances(end))[start] >= 0:
            if not self._fill(start, end, distance):
                return None
        return {node for node, place in self.places.items() if distance[place] >= 0}

    def _distances(self, end: int) -> list[int]:
        """The edges with room from each place to ``end``; -1 where there is no way."""
        distance = [-1] * len(self.edges)
        distance[end] = 0
        found = [end]
        for place in found:
            for edge in self.edges[place]:
                before = self.ends[edge]
                if distance[before] < 0 and self.room[edge ^ 1]:
                    distance[before] = distance[place] + 1
                    found.append(before)
        return distance

    def _fill(self, start: int, end: int, distance: list[int]) -> bool:
        """Lets flow what fits through shortest ways; False where one has no limit."""
        ends, room = self.ends, self.room
        tried = [0] * len(self.edges)  # how many edges of each place lead on no more
        way: list[int] = []
        place = start
        while True:
            if place == end:
                flow = min([room[edge] for edge in way])
                if flow == math.inf:
                    return False
                for edge in way:
                    room[edge] -= flow
                    room[edge ^ 1] += flow
                full = next(k for k, edge in enumerate(way) if not room[edge])
                place = ends[way[full] ^ 1]
                del way[full:]
                continue
            edges, nearer = self.edges[place], distance[place] - 1
            for k in range(tried[place], len(edges)):
                edge = edges[k]
                if room[edge] and distance[ends[edge]] == nearer:
                    tried[place] = k
                    way.append(edge)
                    place = ends[edge]
                    break
            else:
                if not way:
                    return True
                tried[place] = len(edges)
                place = ends[way.pop() ^ 1]
                tried[place] += 1


def written_inputs(graph: Graph) -> set[Node]:
    """The inputs of a graph that it writes."""
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return {node.args[0] for node in copies if node.args[0].op == "placeholder"}


class _Costs:
    def __init__(self, graph: Graph, info: NodeInfo):
        self.info = info
        self.copied = written_inputs(graph)  # where they are kept
        self.level: dict[Node, int] = {}  # how many of torch's ops are on the longest way to it
        self.source: dict[Node, int] = {}  # bytes that it can be computed of within a kernel, at most its own
        self.no_more: set[Node] = set()  # what is made of no more bytes than it has
        for node in graph.nodes:
            if node.op != "output":
                inputs = node.all_input_nodes
                called = node.op == "call_function" and not is_fused(node) and node.target is not operator.getitem
                self.level[node] = max((self.level[n] for n in inputs), default=0) + called
                own = _bytes(node)
                self.source[node] = own
                if is_free(node):
                    made_of = sum(self.source[n] for n in inputs)
                    self.source[node] = min(own, made_of)
                    if made_of <= own + own // _BESIDE:
                        self.no_more.add(node)
        self.needed: dict[Node, set[int]] = {}  # the levels of the backward's kernels that read it, or compute it again
        for node in reversed(list(graph.nodes)):
            needed = self.needed[node] = set()
            for user in node.users:
                if user in info.tangents_closure:
                    needed |= {self.level[user]} if is_fused(user) else set()
                elif is_free(user) and not self.called(user):
                    needed |= self.needed[user]

    def called(self, node: Node) -> bool:
        """Whether an op of torch's reads ``node`` in the backward."""
        return any(not self.info.is_required_fw(u) and not is_fused(u) for u in _readers(node))

    def again(self, node: Node) -> float:
        """The cost of computing ``node`` in the backward too; infinite for what never is."""
        if node.op == "placeholder" or node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE:
            return math.inf
        if node.op == "get_attr" or node.target is operator.getitem or not self.info.is_required_fw(node):
            return 0
        if not is_free(node):
            return math.inf
        if _is_view(node):
            return 0
        if self.called(node):  # by a kernel of its own, which others read
            return MOVED * 2 * _bytes(node)
        # The first of some kernels that need it stores it.
        return MOVED * 2 * self.source[node] if len(self.needed[node]) > 1 and node not in self.no_more else 0

    def kept(self, node: Node) -> float | None:
        """The cost of keeping ``node``; infinite for what cannot be, and for views, whose memory is."""
        value = node.meta.get("val")
        if is_sym_node(node):
            return sym_node_size(node)
        if value is None or isinstance(value, (list, tuple)) or _is_view(node):
            return math.inf
        if not isinstance(value, torch.Tensor):
            return None
        readers = list(_readers(node))
        later = [u for u in readers if not self.info.is_required_fw(u)]
        read = any(map(is_fused, later)) or not later
        written = is_fused(node) and all(
            is_fused(u) and self.level[u] == self.level[node] for u in readers if self.info.is_required_fw(u)
        )
        if node in self.copied:
            return _bytes(node) * (HELD + MOVED * (read + 2))
        held = node not in self.info.static_lifetime_input_nodes
        return _bytes(node) * (HELD * held + MOVED * (read + written))


def is_fused(node: Node) -> bool:
    """Whether a kernel of ours computes ``node``, or it is a view."""
    name = str(node.target)
    if node.op != "call_function" or name not in RULES:
        return is_sym_node(node)
    return all(n.meta["val"].dtype in DTYPES for n in (node, *node.all_input_nodes) if _is_tensor(n))


def is_free(node: Node) -> bool:
    """Whether a kernel that reads the operands of ``node`` computes it without more bytes."""
    if node.op != "call_function":
        return False
    if is_sym_node(node):
        return True
    name = str(node.target)
    if node.target is operator.getitem:
        return is_free(node.args[0])
    return is_fused(node) and RULES[name].__module__ in _CHEAP and name not in _SCATTERS


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:
        return _is_view(node.args[0])
    return node.op == "call_function" and str(node.target) in VIEWS


def _readers(node: Node) -> Iterable[Node]:
    """What reads ``node``, through views of it too."""
    for user in node.users:
        if _is_view(user):
            yield from _readers(user)
        elif user.op != "output":
            yield user


def _bytes(node: Node) -> int:
    return _size_of(node) if _is_tensor(node) else 0


def _is_tensor(node: Node) -> Any:
    return isinstance(node.meta.get("val"), torch.Tensor)
