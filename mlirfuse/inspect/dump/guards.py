"""``guards``: the assumptions of a new specialization about a call, and the assumptions of earlier ones that the call
violates."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlirfuse.inspect import listing
from mlirfuse.inspect.dump import labels
from mlirfuse.inspect.dump.output import log, write
from mlirfuse.inspect.listing import Names
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph
from mlirfuse.ir.sizes import Size
from mlirfuse.runtime import events
from mlirfuse.runtime.signature import NumberGuard, SizeGuard, same_value
from mlirfuse.runtime.specializations import Call, Specialization

Sizes = dict[str, int]


@dataclass
class _Condition:
    """An assumption of a specialization. ``holds`` and ``found`` take a call's leaves and sizes: whether it holds, and
    the values that it concerns."""

    text: str
    holds: Callable[[Sequence, Sizes], bool]
    found: Callable[[Sequence, Sizes], str]


def traced(event: events.Traced) -> None:
    """A front end has created a specialization."""
    names = event.source.argument_names()
    text = _arguments(event.specialization.graph) + _holds_where(event.specialization, names)
    known = [
        (key, specialization) for key, specializations in event.known.items() for specialization in specializations
    ]
    if known:
        text += "the earlier specializations are for other calls:\n"
        for at, (key, specialization) in enumerate(known):
            text += (
                f"  specialization {at}: {_difference(key, specialization, event.call, event.specialization, names)}\n"
            )
    write("guards", labels.of_specialization(event.specialization), text)


def lowered(event: events.GraphLowered) -> None:
    """torch has passed a graph: torch decides which calls run it."""
    text = _arguments(event.graph) + "torch's guards decide which calls run this graph: TORCH_LOGS=guards,recompiles\n"
    write("guards", labels.of_graph(event.graph), text)


def guard_failed(event: events.GuardFailed) -> None:
    """A group's fallback runs."""
    location = f" at {listing.place(event.op.loc)}" if event.op.loc else ""
    log("guards", labels.Where(f"fusion.guard{location}"), f"{event.problem}: the fallback runs")


def _arguments(graph: Graph) -> str:
    rows = []
    shown = Names(graph)
    for value, layout in zip(graph.args, graph.layouts):
        strides = "" if value.shape else "by value"
        if layout is not None and value.shape:
            strides = f"strides ({', '.join(map(str, layout.strides))})"
        rows.append((shown.of(value), shown.type(value), strides))
    return "arguments:\n" + (listing.table(rows, "  ") if rows else "")


def _holds_where(specialization: Specialization, names: list[str]) -> str:
    assumes, shown = specialization.assumes, Names(specialization.graph)
    lines = [
        f"{symbol} is {shown.of(specialization.graph.args[argument])}.{what}[{axis}]"
        for symbol, (argument, what, axis) in assumes.symbols.items()
    ]
    extents = [symbol for symbol, (_, what, _) in assumes.symbols.items() if what == "shape"]
    lines += [f"{', '.join(extents)}: neither 0 nor 1"] if extents else []
    lines += [condition.text for condition in _conditions(specialization, names)]
    lines += [f"{name} around the function is {value!r}" for name, value in specialization.captured_constants()]
    return "holds where:\n" + "".join(f"  {line}\n" for line in dict.fromkeys(lines)) if lines else ""


def _conditions(specialization: Specialization, names: list[str]) -> list[_Condition]:
    assumes = specialization.assumes
    guards = [*assumes.size_guards, *(SizeGuard(a, "==", b) for a, b in assumes.equalities)]
    out = [_of_sizes(str(guard), guard.holds, guard.left, guard.right) for guard in guards]
    bounds: list[tuple[int, Any]] = [*assumes.scalar_ranges.items(), *assumes.index_ranges.items()]
    out += [_of_range(leaf, _leaf(names, leaf), *ends) for leaf, ranges in bounds for ends in ranges]
    out += [_of_number(guard, names) for guard in assumes.number_guards]
    return out + [_of_value(leaf, _leaf(names, leaf), value) for leaf, value in assumes.constants]


def _of_sizes(text: str, holds: Callable[[Sizes], bool], *sizes: Size) -> _Condition:
    return _Condition(text, lambda _, env: holds(env), lambda _, env: _values(env, sizes))


def _of_range(leaf: int, name: str, low: Size, high: Size) -> _Condition:
    def holds(leaves: Sequence, env: Sizes) -> bool:
        return sz.substitute(low, env) <= leaves[leaf] <= sz.substitute(high, env)

    def found(leaves: Sequence, env: Sizes) -> str:
        return ", ".join(filter(None, (f"{name} is {leaves[leaf]!r}", _values(env, (low, high)))))

    return _Condition(f"{low} <= {name} <= {high}", holds, found)


def _of_number(guard: NumberGuard, names: list[str]) -> _Condition:
    read = [(leaf, _leaf(names, leaf)) for leaf in sorted(guard.leaves)]
    return _Condition(
        _number_text(guard, dict(read)),
        lambda leaves, env: guard.holds(leaves.__getitem__, env),
        lambda leaves, _: ", ".join(f"{name} is {leaves[leaf]!r}" for leaf, name in read),
    )


_INFIX: dict[Any, str] = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.mod: "%", operator.pow: "**", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
    operator.eq: "==", operator.ne: "!=",
}  # fmt: skip


def _number_text(guard: NumberGuard, names: dict[int, str]) -> str:
    """The condition as Python source; where it has steps other than Python's operators, what it is computed from."""
    texts: list[str] = []
    for step in guard.steps:
        if step.compute is None:
            texts.append(names[step.operands[0]])
            continue
        operands = [texts[x] if what == "step" else str(x) for what, x in step.operands]
        if step.compute in _INFIX:
            texts.append(f"({operands[0]} {_INFIX[step.compute]} {operands[1]})")
        elif step.compute is operator.neg:
            texts.append(f"(-{operands[0]})")
        elif step.compute in (abs, operator.abs):
            texts.append(f"abs({operands[0]})")
        else:
            return f"a number computed from {', '.join(names.values())} {guard.op} 0"
    last = guard.steps[-1].compute
    if last not in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        return f"{texts[-1]} {guard.op} 0"
    return texts[-1][1:-1] if guard.op == "!=" else f"not {texts[-1]}"


def _of_value(leaf: int, name: str, value: Any) -> _Condition:
    return _Condition(
        f"{name} is {value!r}",
        lambda leaves, _: same_value(leaves[leaf], value),
        lambda leaves, _: f"{name} is {leaves[leaf]!r}",
    )


def _values(env: Sizes, sizes: tuple[Size, ...]) -> str:
    return ", ".join(f"{s} is {env[s]}" for s in sorted(sz.symbols_of(sizes)))


_PROPERTIES = ("dtype", "extents of 0 and 1", "layout", "by value", "a Python number", "device", "writable")


def _difference(key: tuple, specialization: Specialization, call: Call, new: Specialization, names: list[str]) -> str:
    """Return why ``call``, for which ``new`` was created, does not match ``specialization``."""
    out = _unmet(specialization, call, names) if key == call.key else []
    for leaf, (a, b) in enumerate(zip(key[:-1], call.key[:-1])):
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b) == len(_PROPERTIES):
            out += [f"{_leaf(names, leaf)}: {what} {x}, now {y}" for what, x, y in zip(_PROPERTIES, a, b) if x != y]
        elif isinstance(a, tuple) and isinstance(b, tuple) and a != b:
            out.append(f"{_leaf(names, leaf)}: {a[-1]}, now {b[-1]}")
    if key[-1] != call.key[-1]:
        out.append("the settings were different")
    return (
        "; ".join(out or _of_graphs(specialization.graph, new.graph))
        or "what it captures or which arguments share memory"
    )


def _unmet(specialization: Specialization, call: Call, names: list[str]) -> list[str]:
    """Return the assumptions of a specialization that a call with its key violates, with the call's values."""
    leaves, env = call.leaves, specialization.env(call)
    if specialization.mutated and specialization.aliases != call.aliases:
        return ["other arguments share memory, and one is written"]
    return [f"{c.text}: {c.found(leaves, env)}" for c in _conditions(specialization, names) if not c.holds(leaves, env)]


def _of_graphs(old: Graph, new: Graph) -> list[str]:
    """Return how two graphs' arguments differ: for front ends that choose a specialization by them, as definitions
    do."""
    names = Names(new)
    pairs = [(names.of(b), Names(old).type(a), names.type(b)) for a, b in zip(old.args, new.args)]
    return [f"{name}: {a}, now {b}" for name, a, b in pairs if a != b]


def _leaf(names: list[str], leaf: int) -> str:
    return names[leaf] if leaf < len(names) else f"leaf {leaf}"
