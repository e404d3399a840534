"""What a segment computes for its results, where it reads what it makes at several positions.

A kernel makes a value at each position at which it is read: with ``y = exp(x)``, ``y[1:] - y[:-1]`` as one kernel takes
two exponentials an element, and a chain of k such steps 2 to the k. Stored in between, each is taken once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from mlirfuse.ir.graph import Op, Value

# Instructions of an op that reads its operand at computed positions (pad, roll, concatenate, take): what it compares,
# selects and gathers.
MOVE = 4
CODE_OF_A_MOVE = 8  # times as long as that is the text of one, which vectors and their ends repeat
_MOST_PATHS = 64  # from the results to a value: more are not counted


class Work(NamedTuple):
    """``counts``: at how many elements each op is computed and each input loaded; ``code``: instructions in the
    kernel's text."""

    counts: dict[Op | Value, int]
    code: int


def moves(op: Op) -> bool:
    """Whether ``op`` reads its operands at other positions than it gives results at."""
    return op.row.indexed


def cost_of(what: Op | Value) -> int:
    """Instructions of an op, or of a load."""
    if isinstance(what, Value):
        return 1
    if what.name == "concatenate":  # looks for the element in each operand in turn
        return MOVE * len(what.operands)
    return 0 if what.row.view else MOVE if moves(what) else what.row.cost


def work_of(ops: Iterable[Op], outs: Iterable[Value], elements: Callable[[Value], int]) -> Work | None:
    """The work of a kernel of ``ops``, the last first, that stores ``outs``; None where a value is read in more ways
    than can be counted. ``elements``: how many a value has."""
    # The ways on which results lead to a value, by their ops that move: how many elements it is read at on each.
    paths: dict[Value, dict[int, int]] = {value: {0: elements(value)} for value in outs}
    names: dict[tuple[Op, int], int] = {}
    counts: dict[Op | Value, int] = {}
    code = 0
    for op in ops:
        here: dict[int, int] = {}
        for value in op.results:
            here |= paths.pop(value, {})
        if not here:
            continue
        counts[op], code = sum(here.values()), code + cost_of(op) * len(here)
        if moves(op):
            size = elements(op.result)
            here = {names.setdefault((op, path), len(names) + 1): min(n, size) for path, n in here.items()}
        for value in dict.fromkeys(op.operands):
            size, known = elements(value), paths.setdefault(value, {})
            reduced = max(1, size // elements(op.result)) if op.row.kind == "reduce" else 1
            known |= {path: min(n * reduced, size) for path, n in here.items()}
            if len(known) > _MOST_PATHS:
                return None
    return Work(counts | {value: sum(known.values()) for value, known in paths.items()}, code)
