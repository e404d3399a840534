"""An explanation as a drawing: one HTML page with the graph as SVG, laid out here in layers, its segments as boxes.

Each box is laid out by itself, the values that enter and leave it as points on its upper and lower edge; then boxes,
inputs, ops outside of kernels and results are laid out as the nodes of a graph of their own. In both, edges that pass a
layer get a place of their own there.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass, field
from html import escape
from string import Template

from mlirfuse.inspect import listing
from mlirfuse.ir.graph import Op, Value

CHAR = 6.7  # width of a character of the drawing's font
GAP = 18  # between neighbours in a layer
RISE = 27  # between layers
SWEEPS = 16


# ----------------------------------------------------------------------------------------------------------------
# layers


@dataclass(eq=False)
class Node:
    """Something with a size at a place: its middle is at ``x``, its upper edge at ``y``, the lower edge of its layer at
    ``floor``. Edges that pass a layer have nodes without ``key``. A ``light`` one goes to where its neighbours are, and
    does not draw them."""

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
    """``start`` and ``end`` are how far from the nodes' middles it begins and ends; ``path`` the nodes that it goes
    through, both ends included."""

    source: Node
    target: Node
    start: float = 0
    end: float = 0
    value: Value | None = None
    path: list[Node] = field(default_factory=list)

    def points(self) -> list[tuple[float, float]]:
        """Where it goes: down through its places, straight within a layer, so that it passes between the layer's
        nodes."""
        first, *between, last = self.path
        x = first.x + self.start
        out = [(x, first.y + first.height), (x, first.floor)]
        for node in between:
            out += [(node.x, node.y), (node.x, node.floor)]
        return [*out, (last.x + self.end, last.y)]


def lay_out(nodes: list[Node], edges: list[Edge], rise: float = RISE) -> tuple[float, float]:
    """Places ``nodes`` in their layers, with few crossings, near what they are connected to. Gives width and height."""
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
    ] = {}  # neighbour, how far from its middle, how far from the own middle
    below: dict[Node, list[tuple[Node, float, float]]] = {}
    for edge in edges:
        for k, (a, b) in enumerate(zip(edge.path, edge.path[1:])):
            out, into = edge.start if k == 0 else 0, edge.end if b is edge.target else 0
            below.setdefault(a, []).append((b, into, out))
            above.setdefault(b, []).append((a, out, into))
    _order(layers, above, below)
    _place(layers, above, below)
    y = 0.0
    for layer in layers:
        height = max((n.height for n in layer), default=0)
        for node in layer:
            node.y, node.floor = y, y + height
        y += height + rise
    left = min((n.x - n.width / 2 for layer in layers for n in layer), default=0)
    right = max((n.x + n.width / 2 for layer in layers for n in layer), default=0)
    for layer in layers:
        for node in layer:
            node.x -= left
    return right - left, y - rise


def _order(layers, above, below) -> None:
    """Orders each layer by its neighbours' places, up and down, and keeps the order with the fewest crossings."""
    best, fewest = [list(layer) for layer in layers], None
    for sweep in range(SWEEPS):
        crossings = sum(_crossings(a, b, below) for a, b in zip(layers, layers[1:]))
        if fewest is None or crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
        if not fewest:
            break
        down = sweep % 2 == 0
        neighbours = above if down else below
        for layer in layers[1:] if down else layers[-2::-1]:
            place = {n: k for other in layers for k, n in enumerate(other)}

            def middle(node, place=place):
                near = [place[n] + offset / 1000 for n, offset, _ in neighbours.get(node, ())]
                return sum(near) / len(near) if near else place[node]

            layer.sort(key=middle)
    layers[:] = best


def _crossings(upper, lower, below) -> int:
    place = {n: k for k, n in enumerate(lower)}
    ends = [(k, place[b], out, into) for k, a in enumerate(upper) for b, into, out in below.get(a, ())]
    ends.sort(key=lambda e: (e[0], e[2], e[1], e[3]))
    seen, count = [], 0
    for _, at, _, into in ends:
        count += sum(1 for other in seen if other > (at, into))
        seen.append((at, into))
    return count


def _place(layers, above, below) -> None:
    for layer in layers:
        x = 0.0
        for node in layer:
            node.x = x + node.width / 2
            x += node.width + GAP
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else layers[::-1]:
            wanted = []
            for node in layer:
                near = [_pull(node, *to) for to in (above if down else below).get(node, ())]
                if not near or sweep >= SWEEPS:  # in the end, between both sides
                    near += [_pull(node, *to) for to in (below if down else above).get(node, ())]
                total = sum(weight for _, weight in near)
                wanted.append((sum(x * weight for x, weight in near) / total, total) if near else (node.x, 0.1))
            _apart(layer, wanted)


def _pull(node: Node, neighbour: Node, there: float, here: float) -> tuple[float, float]:
    """Where ``node`` would stand for a straight edge, and how much that matters: most where an edge only passes."""
    return neighbour.x + there - here, 0.05 if neighbour.light else (1.0, 3.0, 9.0)[
        (node.key is None) + (neighbour.key is None)
    ]


def _apart(layer: list[Node], wanted: list[tuple[float, float]]) -> None:
    """Moves nodes as near to where they want to be, (place, weight), as their order and widths admit: in the sense of
    least squares."""
    offsets, at = [], 0.0
    for k, node in enumerate(layer):
        at += (layer[k - 1].width / 2 + GAP + node.width / 2) if k else 0
        offsets.append(at)
    blocks: list[list[float]] = []  # [weighted sum, weight, how many]
    for (want, weight), offset in zip(wanted, offsets):
        blocks.append([(want - offset) * weight, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last)]
    k = 0
    for total, weight, count in blocks:
        for _ in range(int(count)):
            layer[k].x = total / weight + offsets[k]
            k += 1


def layer_by_depth(order, inputs_of, first: int = 0) -> dict:
    """Each item one layer below the lowest of its inputs; then as low as its users let it, so that it stands near
    them."""
    depth, users = {}, {}
    for item in order:
        for source in inputs_of(item):
            users.setdefault(source, []).append(item)
        depth[item] = max((depth[s] + 1 for s in inputs_of(item) if s in depth), default=first)
    for item in reversed(order):
        if item in users:
            depth[item] = min(depth[u] for u in users[item]) - 1
    return depth


# ---------------------------------------------------------------------------------------------------------------- the
# picture


class _Box:
    """A segment: its ops laid out, and where on its edges values enter and leave."""

    PAD = 14

    def __init__(self, kernel, ops: list[Op], picture: _Picture):
        self.kernel, self.ops = kernel, ops
        inside = set(ops)
        made = {v for op in ops for v in op.results}
        self.ins = list(dict.fromkeys(v for op in ops for v in op.operands if v not in made and picture.shown(v)))
        self.outs = [
            v
            for op in ops
            for v in op.results
            if v in picture.returned or any(u not in inside for u in picture.users.get(v, ()))
        ]
        depth = layer_by_depth(ops, lambda op: [v.op for v in op.operands if v.op in inside], 1)
        last = max(depth.values(), default=0) + 1
        self.nodes = {op: picture.op_node(op, depth[op]) for op in ops}
        self.entries = {v: Node(v, 8, 0, 0) for v in self.ins}
        self.exits = {v: Node(v, 8, 0, last) for v in self.outs}
        self.edges = []
        for op in ops:
            for v in dict.fromkeys(op.operands):
                if v in self.entries:
                    self.edges.append(Edge(self.entries[v], self.nodes[op], value=v))
                elif v in made and v.op in inside:
                    self.edges.append(Edge(self.nodes[v.op], self.nodes[op], value=v))
        for v in self.outs:
            self.edges.append(Edge(self.nodes[v.op], self.exits[v], value=v))
        width, height = lay_out([*self.entries.values(), *self.nodes.values(), *self.exits.values()], self.edges)
        self.width = max(width + 2 * self.PAD, 290)
        self.head = self._head(int((self.width - 2 * self.PAD) / CHAR))
        top = 16 + 16 * len(self.head)
        self.height = top + height
        shift = (self.width - width) / 2
        for node in {n for e in self.edges for n in e.path} | set(self.nodes.values()):
            node.x += shift
            node.y += top
            node.floor += top
        for node in self.entries.values():  # they are on the box's upper edge, above its text
            node.y = top

    def _head(self, columns: int) -> list[tuple[str, str]]:
        """Lines of text with their classes."""
        k = self.kernel
        out = [("title", k.title)]
        if not k.launches:
            return [*out, ("fact", "only changes metadata: nothing to launch")] if k.scheduler == "no-op" else out
        facts = [f"reads {listing.bytes_text(k.bytes_read)}, writes {listing.bytes_text(k.bytes_written)}"]
        facts += [launch.threads for launch in k.launches]
        for text, kind in [
            *((f, "fact") for f in facts),
            (k.chosen, "fact"),
            (f"cut: {k.why}" if k.why else "", "why"),
        ]:
            out += [(kind, line) for line in textwrap.wrap(text, max(columns, 30))]
        return out


class _Picture:
    def __init__(self, explanation):
        self.e = explanation
        graph = self.graph = explanation.graph
        self.names = explanation.names
        self.users = graph.body.users()
        self.returned = set(graph.returns)
        self.ops = [op for op in graph.ops if not listing.is_literal(op) or op.result in self.returned]
        self.number = {op: k for k, op in enumerate(self.ops)}
        self.views = {o.line.op: o.why for o in explanation.views}
        self.outside = {o.line.op: o.why for o in explanation.outside}
        self.parts: list[str] = []
        self.tips: dict[str, list[str]] = {}

    def shown(self, value: Value) -> bool:
        return value.op is None or not listing.is_literal(value.op)

    def label(self, op: Op) -> str:
        """The op without the operands that edges show."""
        words = []
        for v in op.operands:
            if not self.shown(v):
                words.append(self.names.of(v))
        expression = self.names.expression(op)
        attributes = (
            [w for w in expression[len(op.name) + 1 : -1].split(", ") if "=" in w or w.endswith("]")]
            if op.attrs
            else []
        )
        if attributes:
            words.append(
                expression[len(op.name) + 1 : -1].split("=", 1)[1] if len(op.attrs) == 1 else ", ".join(attributes)
            )
        text = " ".join([op.name, *words])
        return text if len(text) <= 34 else text[:33] + "…"

    def result(self, op: Op) -> str:
        text = (
            f"{self.names.of(op.results[0])}: {self.names.type(op.results[0])}"
            if len(op.results) == 1
            else f"{len(op.results)} results"
        )
        return text if len(text) <= 34 else text[:33] + "…"

    def op_node(self, op: Op, layer: int) -> Node:
        margin = 9 + 5 * len(str(self.number[op]))  # the number stands in a corner
        return Node(op, max(len(self.label(op)), len(self.result(op)), 8) * CHAR + 2 * margin, 40, layer)

    # ---- drawing

    def text(self, x, y, words, kind="", anchor="middle") -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>')

    def curve(self, points, kind: str, value: Value | None, arrow: bool = True) -> None:
        (x, y), d = points[0], []
        d.append(f"M{x:.1f} {y:.1f}")
        for a, b in points[1:]:
            if (a, b) == (x, y):
                continue
            if abs(a - x) < 0.5:
                d.append(f"L{a:.1f} {b:.1f}")
            else:
                bend = max((b - y) / 2, 8)
                d.append(f"C{x:.1f} {y + bend:.1f} {a:.1f} {b - bend:.1f} {a:.1f} {b:.1f}")
            x, y = a, b
        tip = f"{self.names.of(value)}: {self.names.type(value)}" if value is not None else ""
        end = ' marker-end="url(#arrow)"' if arrow else ""
        self.parts.append(
            f'<path d="{" ".join(d)}" class="edge {kind}" data-v="{escape(self.names.of(value))}"{end}><title>{escape(tip)}</title></path>'
        )

    def draw_op(self, op: Op, node: Node, dx: float, dy: float) -> None:
        kind = "view" if op in self.views else "outside" if op.group is None else "op"
        ident = f"op{self.number[op]}"
        statement = self.names.statement(op)
        tip = [statement, ", ".join(self.names.type(v) for v in op.results)]
        tip += [f"{op.loc[0]}:{op.loc[1]}", listing.source(op.loc)] if op.loc else []
        tip += (
            [f"{'view, no kernel' if op in self.views else 'outside of kernels'}: {(self.views | self.outside)[op]}"]
            if op in self.views | self.outside
            else []
        )
        self.tips[ident] = [t for t in tip if t]
        x, y = node.x - node.width / 2 + dx, node.y + dy
        self.parts.append(
            f'<g id="{ident}" class="node {kind}"><title>{escape(chr(10).join(self.tips[ident]))}</title>'
        )
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{node.width:.1f}" height="{node.height:.1f}" rx="5"/>')
        self.text(x + 4, y + 9, str(self.number[op]), "order", "start")
        self.text(node.x + dx, y + 17, self.label(op), "name")
        self.text(node.x + dx, y + 32, self.result(op), "type")
        self.parts.append("</g>")

    def draw_end(self, ident: str, node: Node, kind: str, title: str, type_: str, tip: list[str]) -> None:
        self.tips[ident] = tip
        x = node.x - node.width / 2
        self.parts.append(f'<g id="{ident}" class="node {kind}"><title>{escape(chr(10).join(tip))}</title>')
        self.parts.append(
            f'<rect x="{x:.1f}" y="{node.y:.1f}" width="{node.width:.1f}" height="{node.height:.1f}" rx="16"/>'
        )
        self.text(node.x, node.y + 14, title, "name")
        self.text(node.x, node.y + 28, type_, "type")
        self.parts.append("</g>")

    def draw_box(self, box: _Box, node: Node) -> None:
        dx, dy = node.x - node.width / 2, node.y
        k = box.kernel
        self.parts.append(f'<g class="box {k.scheduler}" id="box{k.number}">')
        self.parts.append(f'<rect x="{dx:.1f}" y="{dy:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="8"/>')
        for edge in box.edges:
            points = [(x + dx, y + dy) for x, y in edge.points()]
            self.curve(
                points,
                "inner",
                edge.value,
                arrow=edge.target.key not in box.exits or box.exits.get(edge.target.key) is not edge.target,
            )
        for v, entry in box.entries.items():  # from the box's upper edge, behind its text, to the first layer
            self.parts.append(
                f'<line x1="{entry.x + dx:.1f}" y1="{dy:.1f}" x2="{entry.x + dx:.1f}" y2="{entry.y + dy:.1f}" class="edge port" data-v="{escape(self.names.of(v))}"/>'
            )
        for at, (kind, words) in enumerate(box.head):
            self.text(dx + box.PAD, dy + 20 + 16 * at, words, kind, "start")
        for op in box.ops:
            self.draw_op(op, box.nodes[op], dx, dy)
        for v, port in [*box.entries.items(), *box.exits.items()]:
            y = dy if v in box.entries and box.entries[v] is port else dy + box.height
            self.parts.append(
                f'<circle cx="{port.x + dx:.1f}" cy="{y:.1f}" r="3" class="dot"><title>{escape(f"{self.names.of(v)}: {self.names.type(v)}")}</title></circle>'
            )
        self.parts.append("</g>")

    def draw(self) -> str:
        graph, names = self.graph, self.names
        by_segment: dict = {}
        for op in self.ops:
            if op.segment is not None:
                by_segment.setdefault(op.segment, []).append(op)
        kernel_of = {k.segment: k for k in self.e.kernels}
        boxes = {s: _Box(kernel_of[s], ops, self) for s, ops in by_segment.items() if s in kernel_of}
        owner = {}
        items: list = []  # arguments, boxes, loose ops in program order
        for value in graph.args:
            if value in self.users or value in self.returned:
                items.append(value)
                owner[value] = value
        for op in self.ops:
            item = boxes.get(op.segment, op)
            if item not in items:
                items.append(item)
            for v in op.results:
                owner[v] = item

        def values_into(item) -> list[Value]:
            if isinstance(item, _Box):
                return item.ins
            return [] if isinstance(item, Value) else [v for v in dict.fromkeys(item.operands) if self.shown(v)]

        items = _topological(items, lambda item: [owner[v] for v in values_into(item)])
        depth = layer_by_depth(items, lambda item: [owner[v] for v in values_into(item)])
        nodes: dict = {}
        for item in items:
            if isinstance(item, _Box):
                nodes[item] = Node(item, item.width, item.height, depth[item])
            elif isinstance(item, Op):
                nodes[item] = self.op_node(item, depth[item])
            else:
                text = max(len(names.of(item)), len(names.type(item)))
                nodes[item] = Node(item, text * CHAR + 30, 36, depth[item], light=True)
        last = max(depth.values(), default=0) + 1
        results = []
        for k, value in enumerate(graph.returns):
            title = f"result {k}" + (
                f", written into {names.of(graph.args[graph.aliases[k]])}" if k in graph.aliases else ""
            )
            results.append(
                (
                    value,
                    title,
                    Node(("result", k), max(len(title), len(names.type(value))) * CHAR + 30, 36, last, light=True),
                )
            )
        edges = []

        def end(item, v, leaving) -> float:
            if isinstance(item, _Box):
                port = (item.exits if leaving else item.entries)[v]
                return port.x - item.width / 2
            return 0

        for item in items:
            for v in values_into(item):
                source = owner[v]
                edges.append(Edge(nodes[source], nodes[item], end(source, v, True), end(item, v, False), v))
        for value, _, node in results:
            if value in owner:
                source = owner[value]
                edges.append(Edge(nodes[source], node, end(source, value, True), 0, value))
        width, height = lay_out([*nodes.values(), *(n for _, _, n in results)], edges, rise=44)
        for edge in edges:
            self.curve(edge.points(), "outer", edge.value)
        for item, node in nodes.items():
            if isinstance(item, _Box):
                self.draw_box(item, node)
            elif isinstance(item, Op):
                self.draw_op(item, node, 0, 0)
            else:
                tip = [f"argument {graph.args.index(item)}: {names.of(item)}", names.type(item)]
                self.draw_end(f"arg{graph.args.index(item)}", node, "input", names.of(item), names.type(item), tip)
        for k, (value, title, node) in enumerate(results):
            self.draw_end(
                f"result{k}",
                node,
                "output",
                title,
                names.type(value),
                [title, f"{names.of(value)}: {names.type(value)}"],
            )
        size = (
            f'viewBox="-12 -12 {width + 24:.0f} {height + 24:.0f}" width="{width + 24:.0f}" height="{height + 24:.0f}"'
        )
        return f'<svg id="graph" xmlns="http://www.w3.org/2000/svg" {size}>{_DEFS}{"".join(self.parts)}</svg>'


def _topological(items, inputs_of) -> list:
    """``items``, each after its inputs; stable."""
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


_DEFS = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
    '<path d="M0 0.5 L8 4 L0 7.5 z" class="head"/></marker></defs>'
)


def _listing(picture: _Picture) -> str:
    """The ops in program order, as a table."""
    e, rows, last = picture.e, [], None
    number = {k.segment: k for k in e.kernels}
    for op in picture.ops:
        kernel = number.get(op.segment)
        where = (
            f"{kernel.number}"
            if kernel is not None and op not in picture.views
            else "view"
            if op in picture.views
            else "outside"
        )
        source = listing.source(op.loc) if op.loc != last else ""
        last = op.loc
        cells = [
            str(picture.number[op]),
            picture.names.statement(op),
            ", ".join(picture.names.type(v) for v in op.results),
            where,
            listing.place(op.loc),
            source,
        ]
        rows.append(
            f'<tr data-op="op{picture.number[op]}">' + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>"
        )
    heads = "".join(f"<th>{h}</th>" for h in ("", "op", "type", "kernel", "line", "source"))
    return f'<table class="ops"><tr>{heads}</tr>{"".join(rows)}</table>'


def _kernels(e) -> str:
    rows = []
    for k in e.kernels:
        threads = "<br>".join(escape(launch.threads) for launch in k.launches) or "nothing to launch"
        cells = [
            str(k.number),
            k.scheduler,
            str(len(k.launches)),
            str(len(k.ops)),
            listing.bytes_text(k.bytes_read),
            listing.bytes_text(k.bytes_written),
        ]
        rows.append(
            "<tr>"
            + "".join(f"<td>{escape(c)}</td>" for c in cells)
            + f"<td>{threads}</td><td>{escape(k.chosen)}</td><td>{escape(k.why)}</td></tr>"
        )
    heads = "".join(
        f"<th>{h}</th>"
        for h in (
            "kernel",
            "scheduler",
            "launches",
            "ops",
            "reads",
            "writes",
            "threads",
            "chosen",
            "why it is cut from the one before",
        )
    )
    return f'<table class="kernels"><tr>{heads}</tr>{"".join(rows)}</table>' if rows else ""


def page(explanation) -> str:
    """The HTML page of an :class:`mlirfuse.inspect.explain.Explanation`."""
    picture = _Picture(explanation)
    svg = picture.draw()
    sections = []
    for title, items in (
        ("Outside of kernels", explanation.outside),
        ("Views, which cost no kernel", explanation.views),
    ):
        if items:
            rows = "".join(
                f"<tr><td>{escape(o.line.text)}</td><td>{escape(o.line.type)}</td><td>{escape(o.why)}</td><td>{escape(o.line.place)}</td></tr>"
                for o in items
            )
            sections.append(f"<h2>{title}</h2><table>{rows}</table>")
    if explanation.notes:
        sections.append(
            "<h2>Not merged</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in explanation.notes) + "</ul>"
        )
    return _PAGE.substitute(
        name=escape(explanation.name), summary=escape(explanation.summary()), kernels=_kernels(explanation), svg=svg, listing=_listing(picture),
        sections="".join(sections), tips=json.dumps(picture.tips).replace("</", "<\\/"),
    )  # fmt: skip


_PAGE = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>$name</title>
<style>
:root { color-scheme: light; }
body { font: 13px/1.45 system-ui, sans-serif; margin: 20px 24px; color: #1c2430; background: #fff; }
h1 { font-size: 17px; margin: 0 0 10px; } h2 { font-size: 14px; margin: 22px 0 6px; }
table { border-collapse: collapse; font-size: 12.5px; } th { text-align: left; font-weight: 600; color: #5a6675; }
table.kernels td:not(:nth-last-child(-n+2)) { white-space: nowrap; }
th, td { padding: 3px 14px 3px 0; vertical-align: top; border-bottom: 1px solid #e8ebef; }
table.ops td, .tip, table td:first-child { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: 11.5px; white-space: pre-wrap; max-width: 72ch; }
table.ops tr.on td { background: #fff3c4; }
.pane { overflow: auto; border: 1px solid #dfe3e8; border-radius: 6px; margin: 14px 0; background: #fbfcfd; text-align: center; position: relative; }
.zoom { position: sticky; left: 8px; top: 8px; float: left; margin: 8px; z-index: 1; } .zoom button { min-width: 28px; height: 24px; }
svg text { font: 11px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1c2430; }
svg text.type { fill: #5a6675; font-size: 10.5px; } svg text.title { font: 600 13px system-ui, sans-serif; }
svg text.order { fill: #9aa5b1; font-size: 8px; } svg text.fact { fill: #3d4855; } svg text.why { fill: #a3441b; }
svg .node rect { fill: #fff; stroke: #8793a3; } svg .node.view rect { fill: #f1f3f5; stroke-dasharray: 3 2; }
svg .node.outside rect { fill: #fdeaea; stroke: #c0392b; } svg .node.input rect { fill: #e9eef5; stroke: #6b7c93; } svg .node.output rect { fill: #e6f4ea; stroke: #4d8a5c; }
svg .node.on rect { stroke: #d18b00; stroke-width: 2.5; fill: #fff3c4; }
svg .box { --fill: #eef4fc; --line: #5b8bc9; } svg .box.reduction { --fill: #eef8f0; --line: #57a36b; } svg .box.normalization { --fill: #f5f0fb; --line: #8d6bbf; }
svg .box.inner-outer { --fill: #eaf7f7; --line: #3f9a9a; } svg .box.transpose { --fill: #fdf4e7; --line: #d0913a; } svg .box.no-op { --fill: #f6f7f8; --line: #9aa5b1; }
svg .box > rect { fill: var(--fill); stroke: var(--line); stroke-width: 1.5; } svg .box.no-op > rect { stroke-dasharray: 6 4; }
svg .box > text { paint-order: stroke; stroke: var(--fill); stroke-width: 5px; stroke-linejoin: round; }
svg .edge { fill: none; stroke: #7d8997; stroke-width: 1.2; } svg .edge.port { stroke-opacity: .25; } svg .head { fill: #7d8997; } svg .dot { fill: #7d8997; }
svg .edge.on { stroke: #d18b00; stroke-width: 2.2; stroke-opacity: 1; }
.tip { position: fixed; display: none; background: #1c2430; color: #fff; padding: 7px 10px; border-radius: 5px; max-width: 700px; pointer-events: none; z-index: 9; white-space: pre-wrap; }
</style></head><body>
<h1>$summary</h1>
$kernels
<div class="pane"><div class="zoom"><button data-by="1.25" title="larger">+</button><button data-by="0.8" title="smaller">&minus;</button><button data-by="fit" title="as wide as the page">fit</button></div>$svg</div>
<h2>The program, in order</h2>
$listing
$sections
<div class="tip"></div>
<script>
const tips = $tips, tip = document.querySelector(".tip"), svg = document.getElementById("graph"), first = svg.querySelector("g.node, g.box");
if (first) {  // a wide graph: the beginning is in sight
  const at = first.getBoundingClientRect(), pane = svg.parentNode.getBoundingClientRect();
  svg.parentNode.scrollLeft += at.left + at.width / 2 - pane.left - pane.width / 2;
}
svg.querySelectorAll("title").forEach(t => t.remove());  // what works without scripts; with them the tip below is quicker
function light(id, on) {
  document.querySelectorAll('#' + id + ', tr[data-op="' + id + '"]').forEach(e => e.classList.toggle("on", on));
}
svg.querySelectorAll("g.node").forEach(g => {
  g.addEventListener("mousemove", e => {
    tip.textContent = (tips[g.id] || []).join("\\n"); tip.style.display = "block";
    tip.style.left = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(e.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px"; light(g.id, true);
  });
  g.addEventListener("mouseleave", () => { tip.style.display = "none"; light(g.id, false); });
});
svg.querySelectorAll(".edge").forEach(p => {
  const all = () => svg.querySelectorAll('.edge[data-v="' + p.dataset.v + '"]');
  p.addEventListener("mouseenter", () => all().forEach(q => q.classList.add("on")));
  p.addEventListener("mouseleave", () => all().forEach(q => q.classList.remove("on")));
});
document.querySelectorAll("tr[data-op]").forEach(r => {
  r.addEventListener("mouseenter", () => light(r.dataset.op, true)); r.addEventListener("mouseleave", () => light(r.dataset.op, false));
});
document.querySelectorAll(".zoom button").forEach(b => b.addEventListener("click", () => {
  const by = b.dataset.by == "fit" ? (svg.parentNode.clientWidth - 2) / svg.getAttribute("width") : b.dataset.by;
  for (const side of ["width", "height"]) svg.setAttribute(side, svg.getAttribute(side) * by);
}));
</script></body></html>
""")
