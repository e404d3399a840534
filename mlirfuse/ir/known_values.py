"""Values that a graph computes of constants alone."""

from __future__ import annotations

import numpy as np

from mlirfuse.ir.graph import Value
from mlirfuse.ir.interpreter import evaluate

_LARGEST = 1 << 16  # elements; what has more is not computed


def known_value(value: Value) -> np.ndarray | None:
    """What ``value`` is in every call, by the references of its ops; None if it depends on an argument or a symbol, or
    anything on the way to it has more than 65,536 elements."""
    found: dict[Value, np.ndarray | None] = {}
    pending = [value]
    while pending:
        v = pending[-1]
        if v in found:
            pending.pop()
            continue
        small = isinstance(v.numel, int) and v.numel <= _LARGEST
        if v.op is None or not small or v.op.row.kind not in ("create", "elementwise", "shape") or v.op.blocks:
            found[v] = None
            continue
        waiting = [x for x in v.op.operands if x not in found]
        if waiting:
            pending += waiting
            continue
        operands = [found[x] for x in v.op.operands]
        arrays = [x for x in operands if x is not None]
        found[v] = evaluate(v.op, arrays)[0] if len(arrays) == len(operands) else None
    return found[value]
