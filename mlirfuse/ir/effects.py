"""Side effects of ops, and the order that they impose."""

from __future__ import annotations

from collections.abc import Callable

from mlirfuse.ir.graph import Op, Value, uses

# Dialects whose ops on tensors and scalars are pure. An unknown op counts as having an effect.
_PURE_DIALECTS = {"arith", "math", "index", "complex", "shape"}
_PURE_OPS = {
    "guard",
    "tensor.dim",
    "tensor.extract",
    "tensor.cast",
    "tensor.from_elements",
    "tensor.empty",
    "tensor.rank",
}
_STRUCTURED = {"scf.if", "scf.for", "scf.while"}


def writes_in_place(op: Op) -> bool:
    """Whether it writes into the memory of its first operand."""
    row = op.row
    return row.kind == "update" or ("inplace" in op.attrs and row.kind != "foreign")


def viewed(value: Value) -> Value | None:
    """Return the value that ``value`` is a view of; None where it has memory of its own, or that is unknown."""
    op = value.op
    if op is None or op.blocks:
        return None
    if op.row.view:
        return op.operands[0]
    shares = op.attrs.get("shares")
    index = -1 if shares is None else shares[op.results.index(value)]
    return None if index < 0 else op.operands[index]


def memory_of(value: Value) -> Value:
    """Return the value whose memory ``value`` is a view of, itself if it is not a view."""
    while (source := viewed(value)) is not None:
        value = source
    return value


def is_collective(op: Op) -> bool:
    """Whether it is a call that other processes take part in: it is not removed or duplicated, and it starts in order
    among the collectives. It writes into none of its operands, so all other ops may move across it."""
    return op.attrs.get("collective") is not None


def consumes(op: Op) -> bool:
    """Whether it is a call that writes into its first operand, which nothing else reads, and returns it. It is not
    removed; since its result is the only access to what it wrote, all other ops may move across it."""
    return bool(op.attrs.get("consumes"))


def starts(op: Op) -> bool:
    """Whether it starts a collective; where another op waits for it, kernels may run in between."""
    return op.attrs.get("collective") == "start"


def waits(op: Op) -> bool:
    """Whether it waits for the collective that its operand is from, and returns that tensor."""
    return op.attrs.get("collective") == "wait"


def has_effect(op: Op) -> bool:
    """Whether it writes into memory, might write, or is a collective. An op with blocks has the effects of the ops in
    them."""
    if op.row.kind != "foreign":
        return writes_in_place(op) or bool(op.attrs.get("effects")) or is_collective(op) or consumes(op)
    if op.name in _STRUCTURED:
        return any(has_effect(nested) for block in op.blocks for nested in block.ops)
    return op.name not in _PURE_OPS and op.name.split(".")[0] not in _PURE_DIALECTS


def only_writes_in_place(op: Op) -> bool:
    """Whether the only effects of ``op`` are writes into tensors among its operands, or those of ops in its blocks."""
    if op.name in _STRUCTURED:
        return all(only_writes_in_place(nested) for block in op.blocks for nested in block.ops if has_effect(nested))
    return writes_in_place(op)


def memory_order(ops: list[Op]) -> dict[Op, list[Op]]:
    """Return for each op the earlier ones that it must come after although it does not use their results.

    A write into a tensor stays after earlier reads of the tensor, and before later ones; an op with an unknown effect
    keeps its order relative to ops that read tensors; a collective starts after the one before it. Empty where nothing
    has an effect, which is the usual case.
    """
    started = [op for op in ops if starts(op)]
    before = dict(zip(started[1:], started))
    effects = {op for op in ops if has_effect(op) and not is_collective(op) and not consumes(op)}
    if not effects:
        return {op: [earlier] for op, earlier in before.items()}
    memory = _memories(ops)
    after: dict[Op, list[Op]] = {}
    fence: list[Op] = []
    since_fence: list[Op] = []
    writers: dict[Value, Op] = {}
    readers: dict[Value, list[Op]] = {}
    constant: set[Value] = set()  # values that no write can change
    for op in ops:
        touched = {memory(v) for v in uses(op) if v not in constant}
        if not touched and op not in effects and not is_collective(op):
            constant.update(op.results)
            continue
        preceding = fence + [writers[m] for m in touched if m in writers]
        if op in before:
            preceding.append(before[op])
        if op in effects and only_writes_in_place(op):
            for m in {memory(op.operands[0])} if writes_in_place(op) else touched:
                preceding += readers.pop(m, [])
                writers[m] = op
        elif op in effects:
            preceding += since_fence
            fence, since_fence, writers, readers = [op], [], {}, {}
        if op not in fence:
            since_fence.append(op)
            for m in touched:
                readers.setdefault(m, []).append(op)
        if preceding:
            after[op] = list(dict.fromkeys(preceding))
    return after


def written_memory(ops: list[Op]) -> Callable[[Value], bool]:
    """Return a predicate: whether ``ops``, or ops nested in them, may write into a value's memory."""
    writers: list[Op] = []

    def visit(op: Op) -> None:
        if has_effect(op) and not is_collective(op) and not consumes(op):
            if not op.blocks:
                writers.append(op)
            for block in op.blocks:
                for nested in block.ops:
                    visit(nested)

    for op in ops:
        visit(op)
    if not writers:
        return lambda value: False
    memory = _memories(ops)
    written = {memory(v) for op in writers for v in (op.operands[:1] if writes_in_place(op) else op.operands)}
    return lambda value: memory(value) in written


def _memories(ops: list[Op]):
    """Return a function that maps values which may share memory to the same value."""
    parent: dict[Value, Value] = {}

    def find(value: Value) -> Value:
        while value in parent:
            value = parent[value]
        return value

    def merge(values) -> None:
        first, *rest = map(find, values)
        for other in rest:
            other = find(other)
            if other is not first:
                parent[other] = first

    def visit(op: Op) -> None:
        for block in op.blocks:
            for nested in block.ops:
                visit(nested)
        if op.row.view or writes_in_place(op):
            merge([op.operands[0], *op.results])
        elif op.attrs.get("shares") is not None:
            for value in op.results:
                source = viewed(value)
                if source is not None:
                    merge([source, value])
        elif op.blocks or op.row.kind == "foreign" or op.row.calls:  # may return an operand, or a view of one
            tensors = [*op.operands, *op.results, *(v for block in op.blocks for v in (*block.args, *block.returns))]
            tensors = [v for v in tensors if v.dtype is not None]
            if tensors:
                merge(tensors)

    for op in ops:
        visit(op)
    return find
