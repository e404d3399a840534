"""Constant evaluation: values that depend on constants alone."""

from __future__ import annotations

import numpy as np

from mlirfuse.ir.graph import Value
from mlirfuse.ir.interpreter import evaluate

_LARGEST = 1 << 16  # elements; larger values are not computed


def known_value(value: Value) -> np.ndarray | None:
    """Return the value that ``value`` has in every call, by the references of its ops; None if it depends on an
    argument or a symbol, or if it or an intermediate value has more than 65,536 elements."""
    found: dict[Value, np.ndarray | None] = {}
    worklist = [value]
    while worklist:
        v = worklist[-1]
        if v in found:
            worklist.pop()
            continue
        small = isinstance(v.numel, int) and v.numel <= _LARGEST
        if v.op is None or not small or v.op.row.kind not in ("create", "elementwise", "shape") or v.op.blocks:
            found[v] = None
            continue
        waiting = [x for x in v.op.operands if x not in found]
        if waiting:
            worklist += waiting
            continue
        operands = [found[x] for x in v.op.operands]
        arrays = [x for x in operands if x is not None]
        found[v] = evaluate(v.op, arrays)[0] if len(arrays) == len(operands) else None
    return found[value]
