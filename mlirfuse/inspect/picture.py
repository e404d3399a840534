"""An explanation's graph as SVG, its segments as boxes.

Each box is laid out separately, with the values that enter and leave it as points on its upper and lower edge; then
boxes, inputs, ops outside of kernels and results are laid out as the nodes of another graph.
"""

from __future__ import annotations

import textwrap
from html import escape
from typing import Any

from mlirfuse.inspect import listing
from mlirfuse.inspect.layout import Edge, Node, lay_out, layer_by_depth, topological
from mlirfuse.ir.graph import Op, Value

CHAR = 6.7  # width of a character of the drawing's font

_DEFS = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'markerUnits="userSpaceOnUse" orient="auto">'
    '<path d="M0 0.5 L8 4 L0 7.5 z" class="head"/></marker></defs>'
)


class _Box:
    """A segment: its ops laid out, and the points on its edges where values enter and leave."""

    PAD = 14

    def __init__(self, kernel, ops: list[Op], picture: Picture):
        self.kernel, self.ops = kernel, ops
        inside = set(ops)
        created = {v for op in ops for v in op.results}
        self.ins = list(dict.fromkeys(v for op in ops for v in op.operands if v not in created and picture.shown(v)))
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
                elif v in created and v.op in inside:
                    self.edges.append(Edge(self.nodes[v.op], self.nodes[op], value=v))
        for v in self.outs:
            assert v.op is not None  # outputs are computed by these ops
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
        for node in self.entries.values():  # on the box's upper edge, above its text
            node.y = top

    def _head(self, columns: int) -> list[tuple[str, str]]:
        """Return lines of text with their CSS classes."""
        k = self.kernel
        out = [("title", k.title)]
        if not k.computes:
            return [*out, ("fact", "only changes metadata: nothing to launch")] if k.scheduler == "no-op" else out
        facts = [f"reads {listing.bytes_text(k.bytes_read)}, writes {listing.bytes_text(k.bytes_written)}"]
        facts += k.threads
        for text, kind in [
            *((f, "fact") for f in facts),
            (k.chosen, "fact"),
            (f"why: {k.why}" if k.why else "", "why"),
        ]:
            out += [(kind, line) for line in textwrap.wrap(text, max(columns, 30))]
        return out


class Picture:
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
        """Return the op without the operands that edges show."""
        words = [self.names.of(v) for v in op.operands if not self.shown(v)]
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
        margin = 9 + 5 * len(str(self.number[op]))  # the number is in a corner
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
            f'<path d="{" ".join(d)}" class="edge {kind}" data-v="{escape(self.names.of(value))}"{end}>'
            f"<title>{escape(tip)}</title></path>"
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
        for v, entry in box.entries.items():  # from the box's upper edge, under its text, to the first layer
            self.parts.append(
                f'<line x1="{entry.x + dx:.1f}" y1="{dy:.1f}" x2="{entry.x + dx:.1f}" y2="{entry.y + dy:.1f}" '
                f'class="edge port" data-v="{escape(self.names.of(v))}"/>'
            )
        for at, (kind, words) in enumerate(box.head):
            self.text(dx + box.PAD, dy + 20 + 16 * at, words, kind, "start")
        for op in box.ops:
            self.draw_op(op, box.nodes[op], dx, dy)
        for v, port in [*box.entries.items(), *box.exits.items()]:
            y = dy if v in box.entries and box.entries[v] is port else dy + box.height
            self.parts.append(
                f'<circle cx="{port.x + dx:.1f}" cy="{y:.1f}" r="3" class="dot">'
                f"<title>{escape(f'{self.names.of(v)}: {self.names.type(v)}')}</title></circle>"
            )
        self.parts.append("</g>")

    def draw(self) -> str:
        """The picture as SVG: arguments on top, then boxes of kernels and single ops, then results."""
        owner: dict[Value, Any] = {}
        items = self.items(owner)
        items = topological(items, lambda item: [owner[v] for v in self.values_into(item)])
        depth = layer_by_depth(items, lambda item: [owner[v] for v in self.values_into(item)])
        nodes = {item: self.node_of(item, depth[item]) for item in items}
        results = self.results(max(depth.values(), default=0) + 1)
        edges = []
        for item in items:
            for v in self.values_into(item):
                source = owner[v]
                ends = _port(source, v, True), _port(item, v, False)
                edges.append(Edge(nodes[source], nodes[item], *ends, v))
        for value, _, node in results:
            if value in owner:
                source = owner[value]
                edges.append(Edge(nodes[source], node, _port(source, value, True), 0, value))
        width, height = lay_out([*nodes.values(), *(n for _, _, n in results)], edges, rise=44)
        for edge in edges:
            self.curve(edge.points(), "outer", edge.value)
        for item, node in nodes.items():
            self.draw_item(item, node)
        for k, (value, title, node) in enumerate(results):
            type_ = self.names.type(value)
            tip = [title, f"{self.names.of(value)}: {type_}"]
            self.draw_end(f"result{k}", node, "output", title, type_, tip)
        size = (
            f'viewBox="-12 -12 {width + 24:.0f} {height + 24:.0f}" width="{width + 24:.0f}" height="{height + 24:.0f}"'
        )
        return f'<svg id="graph" xmlns="http://www.w3.org/2000/svg" {size}>{_DEFS}{"".join(self.parts)}</svg>'

    def items(self, owner: dict[Value, Any]) -> list:
        """Arguments, boxes of kernels and other ops, in program order. Sets the ``owner`` of each value: the item that
        it comes from."""
        by_segment: dict = {}
        for op in self.ops:
            if op.segment is not None:
                by_segment.setdefault(op.segment, []).append(op)
        kernel_of = {k.segment: k for k in self.e.kernels}
        boxes = {s: _Box(kernel_of[s], ops, self) for s, ops in by_segment.items() if s in kernel_of}
        items: list = [v for v in self.graph.args if v in self.users or v in self.returned]
        owner.update((v, v) for v in items)
        for op in self.ops:
            item = boxes.get(op.segment, op)
            if item not in items:
                items.append(item)
            owner.update((v, item) for v in op.results)
        return items

    def values_into(self, item) -> list[Value]:
        """The values that an item reads."""
        if isinstance(item, _Box):
            return item.ins
        return [] if isinstance(item, Value) else [v for v in dict.fromkeys(item.operands) if self.shown(v)]

    def node_of(self, item, layer: int) -> Node:
        """The node of a box, an op or an argument."""
        if isinstance(item, _Box):
            return Node(item, item.width, item.height, layer)
        if isinstance(item, Op):
            return self.op_node(item, layer)
        return self.end_node(item, [self.names.of(item), self.names.type(item)], layer)

    def end_node(self, key, lines: list[str], layer: int) -> Node:
        """The node of an argument or a result with these lines of text."""
        return Node(key, max(map(len, lines)) * CHAR + 30, 36, layer, light=True)

    def results(self, layer: int) -> list[tuple[Value, str, Node]]:
        """The results, with their titles and nodes."""
        graph, out = self.graph, []
        for k, value in enumerate(graph.returns):
            title = f"result {k}"
            if k in graph.aliases:
                part = "a slice of " if k in graph.windows else ""
                title += f", written into {part}{self.names.of(graph.args[graph.aliases[k]])}"
            out.append((value, title, self.end_node(("result", k), [title, self.names.type(value)], layer)))
        return out

    def draw_item(self, item, node: Node) -> None:
        """Draw a box, an op or an argument."""
        if isinstance(item, _Box):
            self.draw_box(item, node)
        elif isinstance(item, Op):
            self.draw_op(item, node, 0, 0)
        else:
            k, name, type_ = self.graph.args.index(item), self.names.of(item), self.names.type(item)
            self.draw_end(f"arg{k}", node, "input", name, type_, [f"argument {k}: {name}", type_])


def _port(item, value: Value, leaving: bool) -> float:
    """Where an edge of ``value`` meets a box, relative to the box's middle; 0 for others."""
    if not isinstance(item, _Box):
        return 0
    return (item.exits if leaving else item.entries)[value].x - item.width / 2
