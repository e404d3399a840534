"""Detects functions that only write boundary slices of their arguments: ``u[0] = u[1]; u[-1] = u[-2]``.

A graph writes whole new arguments, since several boundary writes may overlap in a corner; NumPy writes the boundary
alone, which is cheaper.
"""

from __future__ import annotations

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph, Value


def alone(graph: Graph) -> bool:
    """Whether ``graph`` writes several slices, and nothing else in it reads or computes as much as the arrays they
    belong to."""
    writes = [op for op in graph.ops if op.name == "set_slice"]
    if len(writes) < 2:
        return False
    wholes = {value for op in writes for value in (op.operands[0], op.result)}

    def thin(value: Value) -> bool:
        return all(_far_less(value, whole) for whole in wholes)

    for op in graph.ops:
        read = op.operands[1:] if op.name == "set_slice" else [] if op.name == "slice" else op.operands
        if not all(map(thin, [*read, *(() if op.name == "set_slice" else op.results)])):
            return False
    return all(value in wholes for value in graph.returns)


def _far_less(value: Value, whole: Value) -> bool:
    """Whether ``value`` is far smaller than ``whole``: it lacks a symbolic dimension or, where all are known, has at
    most an eighth of the elements."""
    unknown, most = (sum(not isinstance(n, int) for n in v.shape) for v in (value, whole))
    if most:
        return unknown < most
    return 8 * sz.known(value.numel, {}) <= sz.known(whole.numel, {})
