"""Which ops do more than compute their results, and in which order those have to stay."""

from __future__ import annotations

from collections.abc import Callable

from mlirfuse.ir.graph import Op, Value, uses

# Dialects whose ops on tensors and scalars only compute. What is not known to be harmless counts as having an effect.
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
    """Writes into the memory of its first operand."""
    row = op.row
    return row.kind == "update" or ("inplace" in op.attrs and row.kind != "foreign")


def viewed(value: Value) -> Value | None:
    """What ``value`` is a view of; None where it has memory of its own, or nobody knows."""
    op = value.op
    if op is None or op.blocks:
        return None
    if op.row.view:
        return op.operands[0]
    shares = op.attrs.get("shares")
    place = -1 if shares is None else shares[op.results.index(value)]
    return None if place < 0 else op.operands[place]


def memory_of(value: Value) -> Value:
    """The value whose memory ``value`` is a view of, itself where it is none."""
    while (source := viewed(value)) is not None:
        value = source
    return value


def is_collective(op: Op) -> bool:
    """A call that other processes take part in: it stays, once, and is started in its order among them. It writes into
    no tensor that it is given, so all else may move across it."""
    return op.attrs.get("collective") is not None


def consumes(op: Op) -> bool:
    """A call that writes into its first operand, which nothing else reads, and gives it back: it stays, and as what it
    gives is the only way to what it wrote, all else may move across it."""
    return bool(op.attrs.get("consumes"))


def starts(op: Op) -> bool:
    """Starts a collective; where another op waits for it, kernels may run in between."""
    return op.attrs.get("collective") == "start"


def waits(op: Op) -> bool:
    """Waits for the collective that gave its operand, and gives that tensor."""
    return op.attrs.get("collective") == "wait"


def has_effect(op: Op) -> bool:
    """Writes into memory, or is not known not to, or is a collective. An op with blocks has the effects of what is in
    them."""
    if op.row.kind != "foreign":
        return writes_in_place(op) or bool(op.attrs.get("effects")) or is_collective(op) or consumes(op)
    if op.name in _STRUCTURED:
        return any(has_effect(nested) for block in op.blocks for nested in block.ops)
    return op.name not in _PURE_OPS and op.name.split(".")[0] not in _PURE_DIALECTS


def only_writes_in_place(op: Op) -> bool:
    """The effects of ``op`` are writes into tensors that it names, itself or in its blocks."""
    if op.name in _STRUCTURED:
        return all(only_writes_in_place(nested) for block in op.blocks for nested in block.ops if has_effect(nested))
    return writes_in_place(op)


def memory_order(ops: list[Op]) -> dict[Op, list[Op]]:
    """For each op, earlier ones that it must come after although it does not use their results.

    A write into a tensor stays after what read the tensor before, and before what reads it later; an op with an unknown
    effect stays where it is among those that read tensors; a collective starts after the one before it. Empty where
    nothing has an effect, which is the usual case.
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
    constant: set[Value] = set()  # what no write can change
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
    """Says of a value whether ``ops``, or what is nested in them, may write into its memory."""
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
    """A function that gives values which may share memory the same value."""
    parent: dict[Value, Value] = {}

    def find(value: Value) -> Value:
        while value in parent:
            value = parent[value]
        return value

    def join(values) -> None:
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
            join([op.operands[0], *op.results])
        elif op.attrs.get("shares") is not None:
            for value in op.results:
                source = viewed(value)
                if source is not None:
                    join([source, value])
        elif op.blocks or op.row.kind == "foreign" or op.row.calls:  # may give what it was given, or a view of that
            tensors = [*op.operands, *op.results, *(v for block in op.blocks for v in (*block.args, *block.returns))]
            tensors = [v for v in tensors if v.dtype is not None]
            if tensors:
                join(tensors)

    for op in ops:
        visit(op)
    return find
