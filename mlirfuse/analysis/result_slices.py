"""Results that are concatenations of equal parts, stored part by part.

A kernel that iterates over a concatenation computes, at each element, every part, and selects one. Where parts share
what they read, as both halves of a gate's gradient do, it iterates over one part instead, and stores each part at its
offset in the result: each input is read, and each part computed, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mlirfuse.analysis.axes import Axes
from mlirfuse.analysis.views import reshaped_strides
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size

MOST = 8  # parts of one result: a thread holds a vector of each
LINE = 128  # bytes: shorter runs of a part would leave cache lines that several stores write
ALLOCATED = 64  # bytes: the alignment of results
VECTOR = 16  # bytes that a part's memory is aligned to, as vectors need
_VIEWS = "reshape", "permute", "squeeze", "expand_dims"


class ResultSlice(NamedTuple):
    """Where a part is stored: the result that it is a part of, the elements from that one's first to its own first, and
    its strides in elements."""

    whole: Value
    start: Size
    strides: tuple[Size, ...]


class SlicedResults(NamedTuple):
    """A segment whose results are ``outputs`` instead of concatenations of the values ``inside``."""

    program: list[Op]
    outputs: list[Value]
    axes: Axes
    inside: dict[Value, ResultSlice]


def sliced_results(
    program: list[Op],
    outputs: list[Value],
    strides_of: Callable[[Value], tuple[Size, ...]],
    hint: Mapping[str, int],
    around: Axes | None,
) -> SlicedResults | None:
    """Return the segment with parts instead of its concatenated results; None if it has none, if its other results run
    over other axes, or if the parts share no tensor of their own size. ``strides_of``: of an output in memory."""
    if not any(op.name == "concatenate" for op in program) or not all(_moves_or_computes(op) for op in program):
        return None
    readers: dict[Value, int] = {}
    for op in program:
        for value in op.operands:
            readers[value] = readers.get(value, 0) + 1
    chains = {v: chain for v in outputs if (chain := _chain(v, program, outputs, readers)) is not None}
    created = {op.result: op for op in program if op.results}
    if not any(_shared(chain[-1].operands, created, hint) for chain in chains.values()):
        return None
    dropped = {op for chain in chains.values() for op in chain}
    ops, results, inside = [op for op in program if op not in dropped], [], {}
    for value in outputs:
        if value not in chains:
            results.append(value)
            continue
        found = _stored(value, chains[value], strides_of(value), hint)
        if found is None:
            return None
        for part, made in found:
            ops += made
            inside[made[-1].result] = part
            results.append(made[-1].result)
    axes = Axes(ops, around)
    first: dict[tuple[Size, ...], Value] = {}
    for value in inside:
        axes.share(value, first.setdefault(value.shape, value))
    return SlicedResults(ops, results, axes, inside) if _one_domain(results, axes) else None


def _moves_or_computes(op: Op) -> bool:
    """Whether each element of the op's results depends on elements of its operands alone, or on none."""
    return len(op.results) == 1 and op.row.kind in ("elementwise", "shape", "create", "index")


def _one_domain(outputs: list[Value], axes: Axes) -> bool:
    domain = max((set(axes.flat(v)) for v in outputs), key=len)
    return all(domain.issuperset(axes.flat(v)) for v in outputs)


def _chain(value: Value, program: list[Op], outputs: list[Value], readers: Mapping[Value, int]) -> list[Op] | None:
    """Return the ops from a result back to the concatenation of equal parts that it is a view of, or each element of
    which it is computed from; None if there is none, or if something else reads what is between."""
    inside, chain, at = set(program), [], value
    while at.op in inside and (at is value or (readers[at] == 1 and at not in outputs)):
        op = at.op
        chain.append(op)
        if op.name == "concatenate":
            parts = op.operands
            equal = len({v.shape for v in parts}) == 1 and parts[0].shape != op.result.shape
            return chain if equal and len(parts) <= MOST and readers.get(value, 0) == 0 else None
        wide = [v for v in op.operands if v.rank]
        if len(wide) != 1 or not (op.name in _VIEWS or op.row.kind == "elementwise"):
            return None
        [at] = wide
    return None


def _shared(parts: list[Value], created: Mapping[Value, Op], hint: Mapping[str, int]) -> bool:
    """Whether two parts need the same value of at least their own size, at the same indices."""
    found: set[Value] = set()
    size = sz.supposed(parts[0].numel, hint)
    for part in parts:
        needed: set[Value] = set()
        worklist = [part]
        while worklist:
            value = worklist.pop()
            if value in needed or sz.supposed(value.numel, hint) < size:
                continue
            needed.add(value)
            op = created.get(value)
            worklist += op.operands if op is not None and not op.row.indexed else []
        if needed & found:
            return True
        found |= needed
    return False


def _stored(
    value: Value, chain: list[Op], strides: tuple[Size, ...], hint: Mapping[str, int]
) -> list[tuple[ResultSlice, list[Op]]] | None:
    """Return where each part of the result ``value`` is stored, and the ops that compute what is; None where its memory
    is not a tensor's of its own, in vectors and lines."""
    for op in chain[:-1]:
        found = _before(op, strides)
        if found is None:
            return None
        strides = found
    axis, parts = chain[-1].attrs["axis"], chain[-1].operands
    step = sz.mul(strides[axis], parts[0].shape[axis])
    run = sz.supposed(step, hint) * value.dtype.bytes
    if run < LINE or run % VECTOR:
        return None
    computed = [op for op in reversed(chain[:-1]) if op.row.kind == "elementwise"]
    out = []
    for number, part in enumerate(parts):
        ops: list[Op] = []
        for op in computed:
            here = [v if v.rank == 0 else ops[-1].result if ops else part for v in op.operands]
            ops.append(Op(op.name, here, op.attrs, [Value(op.result.dtype, part.shape)]))
        ops = ops or [Op("copy", [part], {}, [Value(part.dtype, part.shape)])]
        out.append((ResultSlice(value, sz.mul(step, number), strides), ops))
    return out


def _before(op: Op, strides: tuple[Size, ...]) -> tuple[Size, ...] | None:
    """Return the strides of a view's operand in memory, from those of its result."""
    if op.name == "permute":
        return tuple(strides[op.attrs["dims"].index(d)] for d in range(len(strides)))
    if op.name in _VIEWS:
        return reshaped_strides(op.result.shape, strides, op.operands[0].shape)
    return strides


def alignment_of(part: ResultSlice, alignments: Mapping[Value, int], env: Mapping[str, int]) -> int:
    """Return the bytes that a part's address is a multiple of in a call with the sizes ``env``; ``alignments``: those
    of other tensors, where they are not those of allocated results."""
    number = sz.substitute(part.start, env) * part.whole.dtype.bytes | alignments.get(part.whole, ALLOCATED)
    return number & -number
