"""Selects the values of a joint graph that the forward saves for the backward: a minimum cut, with costs in bytes that
kernels move and memory holds.

Saving a value costs its bytes for being held, for being read, and for being written where the forward would not write
it anyway. Recomputing a value is free inside a kernel that reads its operands; it costs a write and a read where an
extern op or several of the backward's kernels read it: a residual connection is not summed again over all layers. If a
value's inputs have no more bytes than itself, recomputing it is free for several kernels too: each reads the inputs
instead (fusion-compute-again). So a norm's result is not saved beside the convolution's result it is computed from.
Only elementwise ops and views are recomputed.

So a dropout seed is saved rather than its mask; the float16 or bfloat16 source of a float32 cast rather than the cast;
and norms' statistics, one number per row.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.utils import flop_counter

from mlirfuse.frontend.torch.aot.joint import Joint, has_effects, is_mutable, is_random, must_recompute, must_save
from mlirfuse.frontend.torch.fx import sizes
from mlirfuse.frontend.torch.fx.nodes import FUSES
from mlirfuse.frontend.torch.ops import pointwise, random, shapes
from mlirfuse.frontend.torch.ops.rules import DTYPES, RULES, is_view
from mlirfuse.frontend.torch.rewrites import float8
from mlirfuse.frontend.torch.rewrites.matmul_epilogues import PRODUCTS
from mlirfuse.frontend.torch.torch_private import HigherOrderOperator, is_sym_node

# What a byte costs, as integers, so that the cut is the same in every process.
HELD_COST = 1  # held until the backward: trades memory for time
MOVED_COST = 4  # written or read once

_SIZE_TOLERANCE = 16  # inputs up to 1/16 larger count as no larger: a norm's statistics beside its input

_UNBACKED_EXTENT = 4096  # assumed of sizes that depend on values

COSTS = "mlirfuse_costs"  # ``meta`` key of a node: the costs of recomputing and of saving it

_CHEAP = {module.__name__ for module in (pointwise, random, shapes)}
_SCATTERS = {"aten.scatter.value"}
_TRIALS = 48  # of ops that might be saved within a budget after all


class Settings(NamedTuple):
    """torch's settings of recomputation. ``budget``: the fraction (0 to 1) of the memory beyond inputs that saved
    values may take. ``reductions``, ``others``: whether reductions, and other ops than matmuls, convolutions and
    attention, may be recomputed where that is cheaper."""

    budget: float = 1.0
    reductions: bool = False
    others: bool = False


def saved_values(joint: Joint, settings: Settings = Settings()) -> list[Node] | None:  # noqa: B008
    """The values to save, in graph order; None where something, such as an object without bytes, can be neither saved
    nor recomputed."""
    costs = _Costs(joint)
    costs.allowed = {n for n in joint.required_forward if _is_allowed(n, settings)}
    saved = _cut(joint, costs)
    return saved if settings.budget >= 1 or saved is None else _within_budget(joint, settings.budget, saved)


def _cut(joint: Joint, costs: _Costs) -> list[Node] | None:
    flow = _FlowNetwork()
    results = {n for n in joint.backward_results if isinstance(n, Node)}
    for node in joint.graph.nodes:
        if node.op == "output":
            continue
        if node in joint.of_tangents:
            flow.add((node, "in"), "sink", math.inf)
            continue
        if node in results:
            flow.add((node, "out"), "sink", math.inf)
        if must_recompute(node):
            flow.add((node, "in"), "sink", math.inf)
            continue
        recompute_cost, save_cost = costs.recompute_cost(node), costs.save_cost(node)
        if save_cost is None:
            return None
        node.meta[COSTS] = recompute_cost, save_cost
        if recompute_cost:
            flow.add("source", (node, "in"), recompute_cost)
        flow.add((node, "in"), (node, "out"), save_cost)
        for user in node.users:
            flow.add((node, "out"), (user, "in"), math.inf)
    if "source" not in flow.vertices or "sink" not in flow.vertices:
        return []
    sink_side = flow.sink_side("source", "sink")
    if sink_side is None:
        return None
    nodes = joint.graph.nodes
    return [n for n in nodes if (n, "out") in sink_side and (n, "in") in flow.vertices and (n, "in") not in sink_side]


def _within_budget(joint: Joint, budget: float, default: list[Node]) -> list[Node] | None:
    """The values to save where their bytes, beyond the fewest possible, are at most ``budget`` times those of the
    ``default`` ones, as torch counts. Recomputes as few ops as needed, in the order of time per byte."""
    costs = _MemoryCosts(joint)
    candidates = [n for n in joint.graph.nodes if costs.is_recomputable(n)]
    ranks = {n: (_estimated_time(n) / max(1, _bytes(n)), k) for k, n in enumerate(candidates)}
    candidates.sort(key=ranks.__getitem__)

    def cut(allowed: list[Node]) -> tuple[list[Node] | None, float]:
        costs.allowed = set(allowed)
        saved = _cut(joint, costs)
        return saved, math.inf if saved is None else sum(costs.saved_bytes(n) for n in saved)

    found, bytes_of_least = cut(candidates)
    if found is None:
        return None
    most = sum(costs.saved_bytes(n) for n in default)
    limit = bytes_of_least + budget * max(0, most - bytes_of_least)
    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        saved, saved_bytes = cut(candidates[:middle])
        if saved_bytes <= limit:
            high, found = middle, saved
        else:
            low = middle + 1
    allowed = candidates[:high]
    for node in allowed[: -_TRIALS - 1 : -1]:  # what the budget has room for after all
        fewer = [n for n in allowed if n is not node]
        saved, saved_bytes = cut(fewer)
        if saved_bytes <= limit:
            allowed, found = fewer, saved
    return found


def _is_allowed(node: Node, settings: Settings) -> bool:
    """Whether torch's settings allow recomputing ``node``, which is not free."""
    if not (settings.reductions or settings.others) or not _is_repeatable(node) or _is_compute_bound(node):
        return False
    return settings.others or (settings.reductions and is_fused(node))


def _is_repeatable(node: Node) -> bool:
    """Whether recomputing ``node`` gives the same result without side effects."""
    if node.op != "call_function" or must_save(node) or is_random(node) or is_mutable(node) or has_effects(node):
        return False
    return not isinstance(node.target, HigherOrderOperator) and not node.is_impure()


def _is_compute_bound(node: Node) -> bool:
    """Whether ``node`` is a matmul, a convolution or attention."""
    return getattr(node.target, "overloadpacket", None) in flop_counter.flop_registry


def _estimated_time(node: Node) -> float:
    """An estimated time of an op that is not free, from its operations or the bytes it moves."""
    moved = _bytes(node) + sum(map(_bytes, node.all_input_nodes))
    count = flop_counter.flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is None:
        return moved
    try:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        return max(moved, sizes.hint(count(*args, **kwargs, out_val=node.meta["val"])))
    except Exception:  # only an estimate
        return moved


class _FlowNetwork:
    """A flow network; computes the sink side of its minimum cut. Uses Dinic's algorithm: on a model's graph a few
    rounds of shortest paths, 30 times as fast as networkx's general one."""

    def __init__(self) -> None:
        self.vertices: dict[Hashable, int] = {}
        self.edges: list[list[int]] = []  # per vertex; edge ``e ^ 1`` is the reverse of ``e``
        self.ends: list[int] = []
        self.residual: list[float] = []  # residual capacities

    def add(self, start: Hashable, end: Hashable, capacity: float) -> None:
        a, b = self._vertex(start), self._vertex(end)
        self.edges[a].append(len(self.ends))
        self.edges[b].append(len(self.ends) + 1)
        self.ends += (b, a)
        self.residual += (capacity, 0)

    def _vertex(self, node: Hashable) -> int:
        if node not in self.vertices:
            self.vertices[node] = len(self.edges)
            self.edges.append([])
        return self.vertices[node]

    def sink_side(self, source: Hashable, sink: Hashable) -> set[Hashable] | None:
        """The sink side of the minimum cut from ``source`` to ``sink`` that is closest to the sink; None where no cut
        is finite. Consumes the capacities."""
        start, end = self.vertices[source], self.vertices[sink]
        while (distance := self._distances(end))[start] >= 0:
            if not self._saturate(start, end, distance):
                return None
        return {node for node, vertex in self.vertices.items() if distance[vertex] >= 0}

    def _distances(self, end: int) -> list[int]:
        """The number of edges with residual capacity from each vertex to ``end``; -1 where unreachable."""
        distance = [-1] * len(self.edges)
        distance[end] = 0
        found = [end]
        for vertex in found:
            for edge in self.edges[vertex]:
                before = self.ends[edge]
                if distance[before] < 0 and self.residual[edge ^ 1]:
                    distance[before] = distance[vertex] + 1
                    found.append(before)
        return distance

    def _saturate(self, start: int, end: int, distance: list[int]) -> bool:
        """Saturates the shortest paths; False where one is unbounded."""
        ends, residual = self.ends, self.residual
        tried = [0] * len(self.edges)  # number of exhausted edges per vertex
        path: list[int] = []
        vertex = start
        while True:
            if vertex == end:
                flow = min([residual[edge] for edge in path])
                if flow == math.inf:
                    return False
                for edge in path:
                    residual[edge] -= flow
                    residual[edge ^ 1] += flow
                saturated = next(k for k, edge in enumerate(path) if not residual[edge])
                vertex = ends[path[saturated] ^ 1]
                del path[saturated:]
                continue
            edges, nearer = self.edges[vertex], distance[vertex] - 1
            for k in range(tried[vertex], len(edges)):
                edge = edges[k]
                if residual[edge] and distance[ends[edge]] == nearer:
                    tried[vertex] = k
                    path.append(edge)
                    vertex = ends[edge]
                    break
            else:
                if not path:
                    return True
                tried[vertex] = len(edges)
                vertex = ends[path.pop() ^ 1]
                tried[vertex] += 1


class _Costs:
    def __init__(self, joint: Joint):
        self.joint, graph = joint, joint.graph
        self.allowed: set[Node] = set()  # nodes that may be recomputed though it is not free
        self.results = {_base(n) for n in joint.forward_results if isinstance(n, Node)}  # written anyway
        self.level: dict[Node, int] = {}  # number of extern ops on the longest path to a node
        self.source: dict[Node, int] = {}  # bytes it can be recomputed from within a kernel, at most its own
        self.inputs_no_larger: set[Node] = set()  # nodes whose inputs have no more bytes than themselves
        for node in graph.nodes:
            if node.op != "output":
                inputs = node.all_input_nodes
                is_extern = node.op == "call_function" and not is_fused(node) and node.target is not operator.getitem
                self.level[node] = max((self.level[n] for n in inputs), default=0) + is_extern
                own = _bytes(node)
                self.source[node] = own
                if is_free(node):
                    created_from = sum(self.source[n] for n in inputs)
                    self.source[node] = min(own, created_from)
                    if created_from <= own + own // _SIZE_TOLERANCE:
                        self.inputs_no_larger.add(node)
        self.needed: dict[Node, set[int]] = {}  # levels of the backward's kernels that read or recompute it
        for node in reversed(list(graph.nodes)):
            needed = self.needed[node] = set()
            for user in node.users:
                if user in joint.of_tangents:
                    needed |= {self.level[user]} if is_fused(user) else set()
                elif is_free(user) and not self.is_read_by_extern_op(user):
                    needed |= self.needed[user]

    def is_read_by_extern_op(self, node: Node) -> bool:
        """Whether an extern op reads ``node`` in the backward."""
        return any(u not in self.joint.required_forward and not is_fused(u) for u in _readers(node))

    def recompute_cost(self, node: Node) -> float:
        """The cost of recomputing ``node`` in the backward; infinite if not allowed."""
        if node.op == "placeholder" or must_save(node):
            return math.inf
        if node.op == "get_attr" or node.target is operator.getitem or node not in self.joint.required_forward:
            return 0
        if is_view(node):
            return 0
        if not is_free(node):
            return self.traffic_cost(node) if node in self.allowed else math.inf
        if self.is_read_by_extern_op(node):  # by a kernel of its own, whose result others read
            return MOVED_COST * 2 * _bytes(node)
        # The first of several kernels that need it stores it.
        is_stored = len(self.needed[node]) > 1 and node not in self.inputs_no_larger
        return MOVED_COST * 2 * self.source[node] if is_stored else 0

    def traffic_cost(self, node: Node) -> float:
        """The cost of an op that reads its operands and writes its result."""
        return MOVED_COST * (_bytes(node) + sum(map(_bytes, node.all_input_nodes)))

    def save_cost(self, node: Node) -> float | None:
        """The cost of saving ``node``; infinite where impossible, and for views, whose base is saved."""
        value = node.meta.get("val")
        if is_sym_node(node):
            return 4 if isinstance(value, torch.SymFloat) else 1
        if value is None or isinstance(value, (list, tuple)) or is_view(node):
            return math.inf
        if not isinstance(value, torch.Tensor):
            return None
        readers = list(_readers(node))
        later = [u for u in readers if u not in self.joint.required_forward]
        read = any(map(is_fused, later)) or not later
        written = (
            is_fused(node)
            and node not in self.results
            and all(
                is_fused(u) and self.level[u] == self.level[node] for u in readers if u in self.joint.required_forward
            )
        )
        if node in self.joint.overwritten:
            return _bytes(node) * (HELD_COST + MOVED_COST * (read + 2))
        is_held = node not in self.joint.static
        return _bytes(node) * (HELD_COST * is_held + MOVED_COST * (read + written))


class _MemoryCosts(_Costs):
    """Memory costs only: inputs are held anyway, unless they are overwritten."""

    def is_recomputable(self, node: Node) -> bool:
        """Whether ``node`` may be recomputed, and is not free."""
        return node in self.joint.required_forward and not is_free(node) and _is_repeatable(node)

    def recompute_cost(self, node: Node) -> float:
        return 0 if node in self.allowed or math.isfinite(super().recompute_cost(node)) else math.inf

    def save_cost(self, node: Node) -> float | None:
        usual = super().save_cost(node)
        return usual if usual is None or math.isinf(usual) or is_sym_node(node) else self.saved_bytes(node)

    def saved_bytes(self, node: Node) -> int:
        """The bytes that saving ``node`` takes."""
        there = node.op == "placeholder" and node not in self.joint.overwritten
        return 0 if there else _bytes(node)


def is_fused(node: Node) -> bool:
    """Whether ``node`` is fusible, or a view."""
    name = str(node.target)
    if node.op != "call_function" or name not in RULES:
        return is_sym_node(node)
    if node.target in PRODUCTS:  # library calls unless they are marked
        return FUSES in node.meta
    dtypes = {n.meta["val"].dtype for n in (node, *node.all_input_nodes) if _is_tensor(n)}
    return dtypes <= DTYPES.keys() or (not dtypes.isdisjoint(float8.FLOAT8) and float8.is_fusible(node))


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


def _base(node: Node) -> Node:
    """The node that ``node`` is a view of, or ``node``."""
    while is_view(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _readers(node: Node) -> Iterable[Node]:
    """The readers of ``node``, through its views too."""
    for user in node.users:
        if is_view(user):
            yield from _readers(user)
        elif user.op != "output":
            yield user


def _bytes(node: Node) -> int:
    """The bytes of a tensor; unbacked sizes count as :data:`_UNKNOWN`."""
    if not _is_tensor(node):
        return 0
    value = node.meta["val"]
    return math.prod(map(_extent, value.shape)) * value.dtype.itemsize


def _extent(n: Any) -> int:
    try:
        return n if type(n) is int else sizes.hint(n)
    except sizes.OpaqueSize:
        return _UNBACKED_EXTENT


def _is_tensor(node: Node) -> Any:
    return isinstance(node.meta.get("val"), torch.Tensor)
