"""Which ops do more than compute their results, and in which order those have to stay."""

from __future__ import annotations

from mlirfuse import ops as table
from mlirfuse.graph import Op, Value, uses

# Dialects whose ops on tensors and scalars only compute. What is not known to be harmless counts as having an effect.
_PURE_DIALECTS = {"arith", "math", "index", "complex", "shape"}
_PURE_OPS = {"guard", "tensor.dim", "tensor.extract", "tensor.cast", "tensor.from_elements", "tensor.empty", "tensor.rank"}
_STRUCTURED = {"scf.if", "scf.for", "scf.while"}

# Results of these lie in their operand's memory: a write to either is seen through the other.
VIEWS = {"reshape", "permute", "squeeze", "expand_dims", "slice", "split", "broadcast_in_dim"}


def writes_in_place(op: Op) -> bool:
    """Writes into the memory of its first operand."""
    row = table.TABLE.get(op.name)
    return row is not None and ("inplace" in op.attrs or row.kind == "update")


def has_effect(op: Op) -> bool:
    """Writes into memory, or is not known not to. An op with blocks has the effects of what is in them."""
    if op.name in table.TABLE:
        return writes_in_place(op)
    if op.name in _STRUCTURED:
        return any(has_effect(nested) for block in op.blocks for nested in block.ops)
    return op.name not in _PURE_OPS and op.name.split(".")[0] not in _PURE_DIALECTS


def memory_order(ops: list[Op]) -> dict[Op, list[Op]]:
    """For each op, earlier ones that it must come after although it does not use their results.

    A write into a tensor stays after what read the tensor before, and before what reads it later; an op with an unknown effect stays where
    it is. Empty where nothing has an effect, which is the usual case.
    """
    effects = {op for op in ops if has_effect(op)}
    if not effects:
        return {}
    roots: dict[Value, Value] = {}
    after: dict[Op, list[Op]] = {}
    fence: list[Op] = []
    since_fence: list[Op] = []
    writers: dict[Value, Op] = {}
    readers: dict[Value, list[Op]] = {}
    for op in ops:
        touched = {roots.get(v, v) for v in uses(op)}
        preceding = fence + [writers[r] for r in touched if r in writers]
        if op in effects and writes_in_place(op):
            root = roots.get(op.operands[0], op.operands[0])
            preceding += readers.pop(root, [])
            writers[root] = op
            roots.update((v, root) for v in op.results)
        elif op in effects:
            preceding += since_fence
            fence, since_fence, writers, readers = [op], [], {}, {}
        elif op.name in VIEWS:
            roots.update((v, roots.get(op.operands[0], op.operands[0])) for v in op.results)
        if op not in fence:
            since_fence.append(op)
            for root in touched:
                readers.setdefault(root, []).append(op)
        if preceding:
            after[op] = preceding
    return after
