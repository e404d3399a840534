"""The work of a segment whose intermediate values are read at several indices.

A kernel computes a value for each index at which it is read: with ``y = exp(x)``, ``y[1:] - y[:-1]`` as one kernel
takes two exponentials an element, and a chain of k such steps 2 to the k. If it is stored in between, each is computed
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, overload

from mlirfuse.ir.graph import Op, Value

# Instructions of an op that reads its operand at computed indices (pad, roll, concatenate, take): comparisons, selects
# and loads.
MOVE = 4
CODE_OF_A_MOVE = 8  # its code is this many times as long: vectors and remainders repeat it
_MOST_PATHS = 64  # from the results to a value that are told apart


class Work(NamedTuple):
    """``counts``: for how many elements each op is computed and each input loaded; ``code``: instructions in the
    kernel's text."""

    counts: dict[Op | Value, int]
    code: int


def moves(op: Op) -> bool:
    """Whether ``op`` reads its operands at other indices than its results'."""
    return op.row.indexed


def cost_of(what: Op | Value) -> int:
    """Return the instructions of an op, or of a load."""
    if isinstance(what, Value):
        return 1
    if what.name == "concatenate":  # tests each operand for the element
        return MOVE * len(what.operands)
    row = what.row
    return 0 if row.view else MOVE if row.indexed else row.cost


@overload
def work_of(ops: Iterable[Op], outs: Iterable[Value], elements: Callable[[Value], int]) -> Work: ...


@overload
def work_of(
    ops: Iterable[Op], outs: Iterable[Value], elements: Callable[[Value], int], limited: bool
) -> Work | None: ...


def work_of(
    ops: Iterable[Op], outs: Iterable[Value], elements: Callable[[Value], int], limited: bool = False
) -> Work | None:
    """Return the work of a kernel of ``ops``, the last first, that stores ``outs``. ``elements``: the number of
    elements of a value. Paths beyond :data:`_MOST_PATHS` count as one that stands for them: what several of them share
    counts several times. ``limited``: None where a value that is not small has more."""
    # The paths from results to a value, by their ops that remap indices: the number of elements read on each.
    paths: dict[Value, dict[int, int]] = {value: {0: elements(value)} for value in outs}
    names: dict[tuple[Op | Value, int], int] = {}
    several: dict[int, int] = {}  # how many paths one stands for, if more than one
    counts: dict[Op | Value, int] = {}
    largest = max((size for path in paths.values() for size in path.values()), default=0)
    code = 0
    for op in ops:
        here: dict[int, int] = {}
        for value in op.results:
            if (read := paths.pop(value, None)) is not None:
                here = here | read if here else read
        if not here:
            continue
        row = op.row  # looked up once, as this loop takes much of the time of segmentation
        number = sum(several.get(path, 1) for path in here) if several else len(here)
        counts[op], code = sum(here.values()), code + cost_of(op) * number
        if row.indexed:
            size, before, here = elements(op.result), here, {}
            for path, n in before.items():
                name = names.setdefault((op, path), len(names) + 1)
                here[name] = min(n, size * several.get(path, 1))
                if path in several:
                    several[name] = several[path]
        if row.kind == "accumulate":  # goes over all values, however little of its result is read
            here = dict.fromkeys(here, max(map(elements, op.operands)))
        most = max(here.values())
        for value in dict.fromkeys(op.operands):
            size, known = elements(value), paths.setdefault(value, {})
            reduced = max(1, size // elements(op.result)) if row.kind == "reduce" else 1
            fits = reduced == 1 and most <= size
            known |= here if fits else {path: min(n * reduced, size * several.get(path, 1)) for path, n in here.items()}
            if len(known) > _MOST_PATHS:
                if limited and _MOST_PATHS * size > largest:
                    return None
                name = names.setdefault((value, 0), len(names) + 1)
                several[name] = sum(several.get(path, 1) for path in known)
                paths[value] = {name: sum(known.values())}
    return Work(counts | {value: sum(known.values()) for value, known in paths.items()}, code)
