"""What the transposes of both targets ask of a segment."""

from __future__ import annotations

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, reads_elsewhere
from mlirfuse.ir.graph import Value


def unmapped_inputs(analysis: Analysis) -> list[Value]:
    """The inputs that are read at the indices of the loops, of which there are several."""
    domain, several = set(analysis.kept), len(analysis.loops(analysis.kept)) > 1
    axes = {v: set(analysis.axes.flat(v)) for v in analysis.inputs} if several else {}
    return [v for v, own in axes.items() if len(own) > 1 and own <= domain and _is_in_order(v, own, analysis)]


def _is_in_order(value: Value, own: set[Axis], analysis: Analysis) -> bool:
    """Whether an input with the loops' axes ``own`` is read at their indices alone."""
    return not own & analysis.pinned or not reads_elsewhere(analysis, value)


def selected_inputs(analysis: Analysis) -> list[Value]:
    """The inputs that are read at the indices of the loops, but for dimensions of which slices select an element."""
    domain, users = set(analysis.kept), {v: [op for op in analysis.ops if v in op.operands] for v in analysis.inputs}
    found = []
    for value, ops in users.items():
        dims = [set(dim) for dim in analysis.axes.dims(value)]
        selected = [not dim <= domain for dim in dims]
        alone = all(
            op.name == "slice" and all(n == 1 for n, one in zip(op.attrs["size"], selected) if one) for op in ops
        )
        own = set().union(*(dim for dim, one in zip(dims, selected) if not one))
        if any(selected) and alone and len(own) > 1 and not own & analysis.pinned:
            found.append(value)
    return found if len(analysis.loops(analysis.kept)) > 1 else []


def frontier(analysis: Analysis, inputs: list[Value]) -> list[Value]:
    """The last values that depend on ``inputs`` alone, or on elements that are selected of them: those that other ops
    need, and outputs."""
    alone, needed = set(inputs), []
    selects = {op for op in analysis.ops if op.name == "slice" and op.operands[0] in selected_inputs(analysis)}
    for op in analysis.ops:
        of_them = bool(op.operands) and all(v in alone or not v.rank for v in op.operands)
        if (op.row.kind in ("elementwise", "create") or op in selects or op.name == "squeeze") and of_them:
            alone.update(op.results)
        elif op.name != "constant":
            needed += [v for v in op.operands if v in alone and v.rank]
    return list(dict.fromkeys(needed + [v for v in analysis.outputs if v in alone]))
