"""``guards``: what a new kind assumes of a call, and what keeps the call from the kinds that there were."""

from __future__ import annotations

from typing import Any

from mlirfuse.core import events
from mlirfuse.inspect import listing
from mlirfuse.inspect.dump import labels
from mlirfuse.inspect.dump.output import write
from mlirfuse.inspect.listing import Names
from mlirfuse.runtime.kinds import Kind


def traced(event: events.Traced) -> None:
    """A front end has made a kind."""
    names = event.source.argument_names()
    text = _arguments(event.kind) + _conditions(event.kind, names)
    known = [(key, kind) for key, kinds in event.known.items() for kind in kinds]
    if known:
        text += "the kinds before it are for other calls:\n"
        for at, (key, _) in enumerate(known):
            text += f"  kind {at}: {_difference(key, event.call.key, names)}\n"
    write("guards", labels.of_kind(event.kind), text)


def _arguments(kind: Kind) -> str:
    graph, rows = kind.graph, []
    shown = Names(graph)
    for value, layout in zip(graph.args, graph.layouts):
        strides = "" if value.shape else "by value"
        if layout is not None and value.shape:
            strides = f"strides ({', '.join(map(str, layout.strides))})"
        rows.append((shown.of(value), shown.type(value), strides))
    return "arguments:\n" + (listing.table(rows, "  ") if rows else "")


def _conditions(kind: Kind, names: list[str]) -> str:
    graph, assumes = kind.graph, kind.assumes
    shown = Names(graph)
    lines = [
        f"{symbol} is {shown.of(graph.args[argument])}.{what}[{axis}]"
        for symbol, (argument, what, axis) in assumes.symbols.items()
    ]
    extents = [symbol for symbol, (_, what, _) in assumes.symbols.items() if what == "shape"]
    lines += [f"{', '.join(extents)}: neither 0 nor 1"] if extents else []
    lines += [str(guard) for guard in assumes.size_guards]
    lines += [f"{a} == {b}" for a, b in assumes.equalities]
    bounds: list[tuple[int, Any]] = [*assumes.scalar_ranges.items(), *assumes.index_ranges.items()]
    for leaf, ranges in bounds:
        lines += [f"{low} <= {_leaf(names, leaf)} <= {high}" for low, high in ranges]
    lines += [f"{_leaf(names, leaf)} is {value!r}" for leaf, value in assumes.constants]
    lines += [f"{name} around the function is {value!r}" for name, value in kind.surroundings()]
    return "holds where:\n" + "".join(f"  {line}\n" for line in dict.fromkeys(lines))


_PARTS = ("dtype", "extents of 0 and 1", "layout", "by value", "a Python number", "device", "writable")


def _difference(old: tuple, new: tuple, names: list[str]) -> str:
    """What distinguishes two keys of kinds."""
    out = []
    for leaf, (a, b) in enumerate(zip(old[:-1], new[:-1])):
        if len(a) == len(b) == len(_PARTS):
            out += [f"{_leaf(names, leaf)}: {what} {x}, now {y}" for what, x, y in zip(_PARTS, a, b) if x != y]
        elif a != b:
            out.append(f"{_leaf(names, leaf)}: {a[-1]}, now {b[-1]}")
    if old[-1] != new[-1]:
        out.append("the switches were others")
    return "; ".join(out) or "sizes, values or aliases that it does not hold for"


def _leaf(names: list[str], leaf: int) -> str:
    return names[leaf] if leaf < len(names) else f"leaf {leaf}"
