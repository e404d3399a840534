"""Layered graph layout: nodes with a size get coordinates, and edges that cross a layer get dummy nodes in it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from mlirfuse.ir.graph import Value

GAP = 18  # between neighbours in a layer
RISE = 27  # between layers
SWEEPS = 16


@dataclass(eq=False)
class Node:
    """A node with a size: its middle is at ``x``, its upper edge at ``y``, the lower edge of its layer at ``floor``.
    Dummy nodes of edges that cross a layer have no ``key``. A ``light`` node follows its neighbours, without attracting
    them."""

    key: object
    width: float
    height: float
    layer: int = 0
    x: float = 0
    y: float = 0
    floor: float = 0
    light: bool = False


@dataclass(eq=False)
class Edge:
    """``start`` and ``end``: the distances of its ends from the nodes' middles; ``path``: the nodes that it passes,
    both ends included."""

    source: Node
    target: Node
    start: float = 0
    end: float = 0
    value: Value | None = None
    path: list[Node] = field(default_factory=list)

    def points(self) -> list[tuple[float, float]]:
        """Its points: through its dummy nodes, vertical within a layer, so that it passes between the layer's nodes."""
        first, *between, last = self.path
        x = first.x + self.start
        out = [(x, first.y + first.height), (x, first.floor)]
        for node in between:
            out += [(node.x, node.y), (node.x, node.floor)]
        return [*out, (last.x + self.end, last.y)]


def lay_out(nodes: list[Node], edges: list[Edge], rise: float = RISE) -> tuple[float, float]:
    """Lay out ``nodes`` in their layers, with few crossings and short edges. Returns width and height."""
    layers: list[list[Node]] = [[] for _ in range(max((n.layer for n in nodes), default=0) + 1)]
    for node in nodes:
        layers[node.layer].append(node)
    for edge in edges:
        edge.path = [edge.source]
        for layer in range(edge.source.layer + 1, edge.target.layer):
            edge.path.append(Node(None, 4, 0, layer))
            layers[layer].append(edge.path[-1])
        edge.path.append(edge.target)
    above: dict[
        Node, list[tuple[Node, float, float]]
    ] = {}  # neighbour, offset from its middle, offset from the own middle
    below: dict[Node, list[tuple[Node, float, float]]] = {}
    for edge in edges:
        for k, (a, b) in enumerate(zip(edge.path, edge.path[1:])):
            out, into = edge.start if k == 0 else 0, edge.end if b is edge.target else 0
            below.setdefault(a, []).append((b, into, out))
            above.setdefault(b, []).append((a, out, into))
    _order(layers, above, below)
    _assign_x(layers, above, below)
    y = 0.0
    for row in layers:
        height = max((n.height for n in row), default=0)
        for node in row:
            node.y, node.floor = y, y + height
        y += height + rise
    left = min((n.x - n.width / 2 for layer in layers for n in layer), default=0)
    right = max((n.x + n.width / 2 for layer in layers for n in layer), default=0)
    for row in layers:
        for node in row:
            node.x -= left
    return right - left, y - rise


def _order(layers, above, below) -> None:
    """Order each layer by its neighbours' indices, up and down, and keep the order with the fewest crossings."""
    best, fewest = [list(layer) for layer in layers], None
    for sweep in range(SWEEPS):
        crossings = sum(_crossings(a, b, below) for a, b in itertools.pairwise(layers))
        if fewest is None or crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
        if not fewest:
            break
        down = sweep % 2 == 0
        neighbours = above if down else below
        for layer in layers[1:] if down else layers[-2::-1]:
            index = {n: k for other in layers for k, n in enumerate(other)}

            def middle(node, index=index, neighbours=neighbours):
                near = [index[n] + offset / 1000 for n, offset, _ in neighbours.get(node, ())]
                return sum(near) / len(near) if near else index[node]

            layer.sort(key=middle)
    layers[:] = best


def _crossings(upper, lower, below) -> int:
    index = {n: k for k, n in enumerate(lower)}
    ends = [(k, index[b], out, into) for k, a in enumerate(upper) for b, into, out in below.get(a, ())]
    ends.sort(key=lambda e: (e[0], e[2], e[1], e[3]))
    seen: list[tuple[int, float]] = []
    count = 0
    for _, at, _, into in ends:
        count += sum(other > (at, into) for other in seen)
        seen.append((at, into))
    return count


def _assign_x(layers, above, below) -> None:
    for layer in layers:
        x = 0.0
        for node in layer:
            node.x = x + node.width / 2
            x += node.width + GAP
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else layers[::-1]:
            desired = []
            for node in layer:
                near = [_pull(node, *to) for to in (above if down else below).get(node, ())]
                if not near or sweep >= SWEEPS:  # in the end, between both sides
                    near += [_pull(node, *to) for to in (below if down else above).get(node, ())]
                total = sum(weight for _, weight in near)
                desired.append((sum(x * weight for x, weight in near) / total, total) if near else (node.x, 0.1))
            _separate(layer, desired)


def _pull(node: Node, neighbour: Node, there: float, here: float) -> tuple[float, float]:
    """Return the ``x`` of ``node`` that makes the edge straight, and its weight: largest where an edge only passes."""
    return neighbour.x + there - here, 0.05 if neighbour.light else (1.0, 3.0, 9.0)[
        (node.key is None) + (neighbour.key is None)
    ]


def _separate(layer: list[Node], desired: list[tuple[float, float]]) -> None:
    """Move nodes as close to their desired (x, weight) as their order and widths permit: by least squares."""
    offsets, at = [], 0.0
    for k, node in enumerate(layer):
        at += (layer[k - 1].width / 2 + GAP + node.width / 2) if k else 0
        offsets.append(at)
    blocks: list[list[float]] = []  # [weighted sum, weight, how many]
    for (target, weight), offset in zip(desired, offsets):
        blocks.append([(target - offset) * weight, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last)]
    k = 0
    for total, weight, count in blocks:
        for _ in range(int(count)):
            layer[k].x = total / weight + offsets[k]
            k += 1


def layer_by_depth(order, inputs_of, first: int = 0) -> dict:
    """Assign each item to the layer below the lowest of its inputs; then as low as its users permit, to shorten
    edges."""
    depth: dict[Any, int] = {}
    users: dict[Any, list] = {}
    for item in order:
        for source in inputs_of(item):
            users.setdefault(source, []).append(item)
        depth[item] = max((depth[s] + 1 for s in inputs_of(item) if s in depth), default=first)
    for item in reversed(order):
        if item in users:
            depth[item] = min(depth[u] for u in users[item]) - 1
    return depth


def topological(items, inputs_of) -> list:
    """Sort ``items`` topologically; stable."""
    out, done = [], set()

    def visit(item) -> None:
        stack = [(item, iter(inputs_of(item)))]
        open_ = {item}
        while stack:
            at, sources = stack[-1]
            following = next((s for s in sources if s not in done and s not in open_), None)
            if following is not None:
                open_.add(following)
                stack.append((following, iter(inputs_of(following))))
                continue
            stack.pop()
            done.add(at)
            out.append(at)

    for item in items:
        if item not in done:
            visit(item)
    return out
