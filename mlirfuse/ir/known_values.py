"""Constant evaluation: values that depend on constants alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.interpreter import evaluate

T = TypeVar("T")

_LARGEST = 1 << 16  # elements; larger values are not computed


def known_value(value: Value) -> np.ndarray | None:
    """Return the value that ``value`` has in every call, by the references of its ops; None if it depends on an
    argument or a symbol, or if it or an intermediate value has more than 65,536 elements."""
    return folded(value, _is_small, lambda op, operands: evaluate(op, operands)[0])


def _is_small(v: Value) -> bool:
    return isinstance(v.numel, int) and v.numel <= _LARGEST and not (v.op and v.op.blocks)


def folded(value: Value, takes: Callable[[Value], bool], computed: Callable[[Op, list[T]], T | None]) -> T | None:
    """Return what is known of ``value``: ``computed`` by its op from what is known of the operands; None where that is
    None of one, or it is of no creation, elementwise op or view, or ``takes`` does not take it."""
    found: dict[Value, T | None] = {}
    worklist = [value]
    while worklist:
        v = worklist[-1]
        if v in found:
            worklist.pop()
            continue
        if v.op is None or v.op.row.kind not in ("create", "elementwise", "shape") or not takes(v):
            found[v] = None
            continue
        waiting = [x for x in v.op.operands if x not in found]
        if waiting:
            worklist += waiting
            continue
        given = [found[x] for x in v.op.operands]
        known = [x for x in given if x is not None]
        found[v] = computed(v.op, known) if len(known) == len(given) else None
    return found[value]
