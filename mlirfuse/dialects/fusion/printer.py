"""Prints a :class:`Graph` as MLIR text; labelled ops become nested ``fusion.group`` and ``fusion.segment`` regions."""

from __future__ import annotations

import re

from mlirfuse.dialects.fusion.attributes import attribute, constant_attribute, quoted, size_list
from mlirfuse.ir import graph as gr
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.ir.ops.attributes import BY_NAME
from mlirfuse.ir.order import topological
from mlirfuse.ir.size_relations import needed_equalities


class _Printer:
    def __init__(self, locations: bool, numbers: bool):
        self.locations, self.numbers = locations, numbers
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.count = 0

    def name(self, value: Value) -> str:
        if value not in self.names:
            self.names[value] = f"%{self.count}"
            self.count += 1
        return self.names[value]

    def attributes(self, op: Op) -> str:
        entries = []
        for key, value in op.attrs.items():
            if value is None:
                continue
            if key == "value" and op.name == "constant":
                text = constant_attribute(value, op.attrs["dtype"])
            elif key == "value" and op.name == "size":
                text = f'"{value}"'
            elif key in op.row.attr_types and not op.row.attr_types[key].printed:
                continue
            elif key in BY_NAME and BY_NAME[key].sizes == 1:
                text = size_list(value)
            else:
                text = attribute(value)
            entries.append(f"{key} = {text}")
        return " {" + ", ".join(entries) + "}" if entries else ""

    def statement(self, indent, name, operands, results, tail, loc, regions="") -> None:
        left = ", ".join(self.name(v) for v in results)
        left = f"{left} = " if left else ""
        types = ", ".join(v.type for v in operands)
        out = ", ".join(v.type for v in results)
        out = out if len(results) == 1 else f"({out})"
        where = (f" loc({quoted(loc[0])}:{loc[1]}:0)" if loc else " loc(unknown)") if self.locations else ""
        used = ", ".join(self.name(v) for v in operands)
        self.lines.append(f'{indent}{left}"{name}"({used}){regions}{tail} : ({types}) -> {out}{where}')

    def op(self, op: Op, indent: str) -> None:
        name = op.name if "." in op.name else f"fusion.{op.name}"
        if not op.blocks:
            self.statement(indent, name, op.operands, op.results, self.attributes(op), op.loc)
            return
        # The region's text goes between the operands and the types of the statement.
        outer, self.lines = self.lines, []
        regions = []
        for block in op.blocks:
            self.lines = []
            head = ", ".join(f"{self.name(v)}: {v.type}" for v in block.args)
            if head:
                self.lines.append(f"{indent}^bb0({head}):")
            self.block(
                block,
                indent + "  ",
                block.terminator or (f"{op.name.split('.')[0]}.yield" if "." in op.name else "fusion.yield"),
            )
            regions.append("{\n" + "\n".join(self.lines) + f"\n{indent}}}")
        self.lines = outer
        self.statement(
            indent, name, op.operands, op.results, self.attributes(op), op.loc, " (" + ", ".join(regions) + ")"
        )

    def block(self, block: Block, indent: str, terminator: str) -> None:
        used_after = set(block.returns)
        self.nested(block.ops, indent, used_after, lambda op: op.group, "group")
        self.statement(indent, terminator, block.returns, [], "", None)

    def nested(self, block_ops, indent, live_out, label, kind) -> None:
        """Print ops in order, those with the same label together inside a region."""
        ordered = topological(block_ops, {op: label(op) for op in block_ops if label(op) is not None})
        runs: list[tuple[object, list[Op]]] = []
        for op in ordered:
            if runs and label(op) is not None and runs[-1][0] is label(op):
                runs[-1][1].append(op)
            else:
                runs.append((label(op), [op]))
        last_use = {v: k for k, (_, members) in enumerate(runs) for op in members for v in gr.uses(op)}
        for k, (owner, members) in enumerate(runs):
            if owner is None:
                for op in members:
                    self.op(op, indent)
            else:
                outs = [v for op in members for v in op.results if last_use.get(v, -1) > k or v in live_out]
                self.region(owner, members, indent, outs, kind)

    def region(self, owner, members, indent, outs, kind) -> None:
        created = {v for op in members for v in op.results}
        ins = list(dict.fromkeys(v for op in members for v in gr.uses(op) if v not in created))
        outer_names = [self.name(v) for v in ins]
        saved = dict(self.names)
        outer, self.lines = self.lines, []
        for v in ins:
            del self.names[v]
        head = ", ".join(f"{self.name(v)}: {v.type}" for v in ins)
        inner = indent + "  "
        if head:
            self.lines.append(f"{indent}^bb0({head}):")
        if kind == "group" and any(op.segment for op in members):
            self.nested(members, inner, set(outs), lambda op: op.segment, "segment")
        else:
            for op in members:
                self.op(op, inner)
        self.statement(inner, "fusion.yield", outs, [], "", None)
        text = "{\n" + "\n".join(self.lines) + f"\n{indent}}}"
        self.lines, self.names = outer, saved
        for v, name in zip(ins, outer_names):
            self.names[v] = name
        keys = ("notes",) if kind == "group" else ("params", "schedule")
        attrs = {key: found for key in (*keys, "why") if (found := getattr(owner, key))}
        if kind == "segment":
            attrs["scheduler"] = owner.scheduler
        if self.numbers and owner.number >= 0:
            attrs["number"] = owner.number
        tail = (" " + attribute(attrs)) if attrs else ""
        self.statement(indent, f"fusion.{kind}", ins, outs, tail, None, f" ({text})")


def to_text(graph: Graph, locations: bool = False, numbers: bool = True) -> str:
    """Return ``graph`` as a ``func.func``; with ``locations``, each op with the user's line. Groups and segments are
    nested regions, with their ``numbers``."""
    printer = _Printer(locations, numbers)
    head = []
    for k, value in enumerate(graph.args):
        printer.names[value] = f"%arg{k}"
        attrs = []
        if value.name:
            attrs.append(f"fusion.name = {quoted(value.name)}")
        if value.shape:
            attrs.append(f"fusion.shape = {size_list(value.shape)}")
        layout = graph.layouts[k] if k < len(graph.layouts) else None
        if layout is not None and value.shape:
            attrs.append(f"fusion.strides = {size_list(layout.strides)}")
        if layout is not None and layout.align > 1:
            attrs.append(f"fusion.align = {layout.align} : i64")
        if k in graph.scalars:
            attrs.append("fusion.scalar")
        if k in graph.donated:
            attrs.append("fusion.donated")
        if k in graph.parts:
            attrs.append(f'fusion.part = "{graph.parts[k]}"')
        head.append(f"%arg{k}: {value.type}" + (" {" + ", ".join(attrs) + "}" if attrs else ""))
    results = []
    for k, value in enumerate(graph.returns):
        attrs = [f"fusion.alias = {graph.aliases[k]} : i64"] if k in graph.aliases else []
        if k in graph.windows:
            window = graph.windows[k]
            attrs += [f"fusion.start = {size_list(window.start)}", f"fusion.step = {size_list(window.step)}"]
        if k in graph.result_parts:
            attrs.append(f'fusion.part = "{graph.result_parts[k]}"')
        results.append(value.type + (f" {{{', '.join(attrs)}}}" if attrs else ""))
    printer.block(graph.body, "    ", "func.return")
    arrow = f" -> ({', '.join(results)})" if results else ""
    stated = [f'fusion.device = "{graph.device}"'] if graph.device else []
    if equal := needed_equalities(graph):
        stated.append(f"fusion.equal = {attribute([f'{a} == {b}' for a, b in equal])}")
    if graph.hints:
        stated.append(f"fusion.hints = {attribute([f'{s} = {n}' for s, n in sorted(graph.hints.items())])}")
    attributes = f" attributes {{{', '.join(stated)}}}" if stated else ""
    body = "\n".join(printer.lines)
    name = graph.name if re.fullmatch(r"[A-Za-z_][\w$.]*", graph.name, re.ASCII) else quoted(graph.name)
    return f"  func.func @{name}({', '.join(head)}){arrow}{attributes} {{\n{body}\n  }}"


def to_module_text(graphs, locations: bool = False, kept=()) -> str:
    """Return a module of ``graphs`` and of ``kept``, the text of what else the module contains."""
    return "module {\n" + "\n".join([*kept, *(to_text(g, locations) for g in graphs)]) + "\n}\n"
