"""The memory layout that NumPy would give to the arrays of a trace.

NumPy lays out results in the dimension order of the operands (``order="K"``), and a reshape is a view where strides
allow one. Strides here count elements, are symbolic, and are those that NumPy's array would have. Kernels write results
row-major, with dimensions permuted to that order (:func:`order_of`). A layout that depends on how an argument's strides
compare becomes a condition of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from mlirfuse.analysis import views as noop
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.views import Reshape, Strides
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.trace_state import Trace
    from mlirfuse.frontend.numpy.traced_array import TracedArray

_OF_THE_FIRST = {"set_slice", "scatter", "index_put_accumulate", "update", "position", "roll", "sort"}


def strides_of(t: Trace, value: Value) -> Strides | None:
    """The strides that NumPy would give a value; None where unknown."""
    pending = [value]
    while pending:
        v = pending[-1]
        if v in t.strides:
            pending.pop()
            continue
        needed = [x for x in _sources(t, v) if x not in t.strides]
        if needed:
            pending += needed
            continue
        t.strides[v] = _of_op(t, v)
        pending.pop()
    return t.strides[value]


def strides_of_array(t: Trace, x: TracedArray) -> Strides | None:
    """The strides of a traced array; of a view, within its base's memory."""
    origin = x._buffer.origin
    return along(t, strides_of(t, origin), origin.shape, x._path)


def along(t: Trace, strides: Strides | None, shape: Sequence[Size], path: Sequence) -> Strides | None:
    """The strides of the view at the steps ``path``; a reshape that must copy is row-major."""
    for step in path:
        if strides is not None:
            strides = step.strides(t, tuple(map(t.canonical, shape)), strides)
        elif isinstance(step, Reshape):  # may be a view or a copy
            strides = None
        shape = step.out(shape)
    return strides


def is_view(t: Trace, strides: Strides | None, shape: Sequence[Size], new: Sequence[Size]) -> bool:
    """Whether the reshape to ``new`` is a view in every call."""
    if strides is None:
        return False
    return noop.reshaped_strides(tuple(map(t.canonical, shape)), strides, tuple(map(t.canonical, new))) is not None


def may_be_view(t: Trace, strides: Strides, shape: Sequence[Size], new: Sequence[Size]) -> bool:
    """Whether the reshape to ``new`` is a view in the traced call."""
    return noop.reshaped_strides(*map(t.hints_of, (shape, strides, new))) is not None


def is_row_major(t: Trace, strides: Strides | None, shape: Sequence[Size]) -> bool:
    """Whether an array is C-contiguous in every call."""
    if strides is None:
        return False
    shape = tuple(map(t.canonical, shape))
    wanted = sz.contiguous_strides(shape)
    return 0 in shape or all(n == 1 or t.canonical(a) == t.canonical(b) for n, a, b in zip(shape, strides, wanted))


def is_column_major(t: Trace, strides: Strides | None, shape: Sequence[Size]) -> bool:
    """Whether an array is F-contiguous in every call."""
    return strides is not None and is_row_major(t, strides[::-1], tuple(shape)[::-1])


def order_of(t: Trace, strides: Strides | None, shape: Sequence[Size]) -> tuple[int, ...]:
    """The dimensions from outermost to innermost in memory, as a copy with order "K" has them."""
    dims = tuple(range(len(shape)))
    if strides is None or len(dims) < 2 or is_row_major(t, strides, shape):
        return dims
    if is_column_major(t, strides, shape):
        return dims[::-1]
    out: list[int] = []  # a stable sort by stride
    for axis in dims:
        at = next((k for k, d in enumerate(out) if not _at_most(t, strides[axis], strides[d])), len(out))
        out.insert(at, axis)
    return tuple(out)


def order_of_new(t: Trace, strides: Strides | None, shape: Sequence[Size]) -> tuple[int, ...]:
    """The dimensions from outermost to innermost in which a new array is computed: on a GPU all are row-major."""
    return order_of(t, strides, shape) if t.device == "cpu" else tuple(range(len(shape)))


def packed(shape: Sequence[Size], order: Sequence[int]) -> Strides:
    """The strides, by dimension, of a gap-free array with this dimension order."""
    inner = sz.contiguous_strides([shape[k] for k in order])
    out: list[Size] = [0] * len(order)
    for k, d in enumerate(order):
        out[d] = inner[k]
    return tuple(out)


def checked_order(order: str | None) -> str:
    """The order as 'C', 'F', 'A' or 'K'; None gives 'K'. Raises TypeError or ValueError for others."""
    if order is None:
        return "K"
    if not isinstance(order, str):
        fail(TypeError, f"order must be str, not {type(order).__name__}")
    if order.upper() not in ("C", "F", "A", "K"):
        fail(ValueError, f"order must be one of 'C', 'F', 'A', or 'K' (got '{order}')")
    return order.upper()


def forced(
    t: Trace, value: Value, order: str, strides: Strides | None = None, prototype: Sequence[Size] | None = None
) -> Value:
    """A fresh ``value`` in one of NumPy's orders; ``strides``: the layout that "A" and "K" keep, of an array of the
    shape ``prototype``, or of this shape."""
    shape = t.shape(value)
    like = shape if prototype is None else prototype
    dims = tuple(range(len(shape)))
    if order == "F" or (order == "A" and is_column_major(t, strides, like) and not is_row_major(t, strides, like)):
        dims = dims[::-1]
    elif order == "K":
        dims = order_of(t, strides, like)
    t.strides[value] = packed(shape, dims)
    return value


# ---- layouts of op results


def _sources(t: Trace, value: Value) -> list[Value]:
    """The operands that determine the layout of ``value``."""
    op = value.op
    if value in t.views:
        return [t.views[value][0]]
    if op is None or op.row.kind in ("create", "random"):
        return []
    if op.row.kind in ("elementwise", "reduce", "scan") or op.row.view or op.name == "concatenate":
        return [v for v in op.operands if v.rank == value.rank or op.row.view or op.row.kind == "reduce"]
    return op.operands[:1] if op.name in _OF_THE_FIRST or _takes_one(op) else []


def _takes_one(op: Op) -> bool:
    """Whether it reads one index of an axis, known at run time: a view in NumPy."""
    return op.name == "take" and not op.operands[1].rank


def _of_op(t: Trace, value: Value) -> Strides | None:
    op, shape = value.op, t.shape(value)
    if op is None:
        args = t.block.args
        layout = t.layouts[args.index(value)] if value in args else None
        return sz.contiguous_strides(shape) if layout is None else tuple(map(t.canonical, layout.strides))
    if value in t.views:
        base, step = t.views[value]
        return t.strides[base] and step.strides(t, t.shape(base), t.strides[base])
    if value.rank < 2 and not op.row.view:
        return sz.contiguous_strides(shape)
    given = [t.strides[v] for v in _sources(t, value)]
    if any(strides is None for strides in given):
        return None
    known = [strides for strides in given if strides is not None]
    if op.row.view:
        through = noop.strides_through(op, known[0])
        return through or sz.contiguous_strides(shape)
    if op.row.kind == "reduce":
        return _reduced(t, op, known[0], shape)
    if op.name == "cast":  # an operand as its consumer's type: NumPy makes no array of it (`forced` tells of others)
        return known[0]
    if op.row.kind in ("elementwise", "scan") or op.name in ("concatenate", "roll", "sort"):
        shapes = [t.shape(v) for v in _sources(t, value)]
        sort = _sorted_with_zeros if op.name == "concatenate" else _sorted
        return packed(shape, sort(t, known, shapes)) if known else sz.contiguous_strides(shape)
    if op.name in _OF_THE_FIRST:
        return known[0]
    if op.name == "take":
        axis = op.attrs["axis"]
        return known[0][:axis] + known[0][axis + 1 :] if _takes_one(op) else None
    return sz.contiguous_strides(shape)


def _reduced(t: Trace, op: Op, strides: Strides, shape: Strides) -> Strides:
    if op.name in ("argmax", "argmin"):
        return sz.contiguous_strides(shape)
    axes = op.attrs.get("axes", op.attrs.get("axis"))
    return reduced(t, t.shape(op.operands[0]), strides, axes, bool(op.attrs.get("keepdims")), shape)


def reduced(
    t: Trace, given: Strides, strides: Strides, axes: tuple[int, ...] | int | None, keepdims: bool, shape: Strides
) -> Strides:
    """The strides of a reduction's result of this ``shape``, from the extents and strides of its operand."""
    rank = len(given)
    gone = set(range(rank)) if axes is None else {a % rank for a in (axes if isinstance(axes, tuple) else (axes,))}
    kept = [d for d in _sorted(t, [strides], [given]) if keepdims or d not in gone]
    number = {d: k for k, d in enumerate(sorted(kept))}
    return packed(shape, [number[d] for d in kept])


def order_of_flat(t: Trace, strides: Strides, shape: Strides) -> tuple[int, ...]:
    """The dimensions from outermost to innermost as flattening with order "K" reads them: unlike :func:`order_of`, one
    that does not step through memory stays where row-major order has it."""
    return _sorted(t, [strides], [shape])


def _sorted(t: Trace, strides: Sequence[Strides], shapes: Sequence[Strides]) -> tuple[int, ...]:
    """The dimension order that NumPy's iterators choose for a result: by the operands' strides, row-major where these
    are equal or conflict."""
    axes = reversed(range(len(strides[0])))
    innermost_first = _inserted(axes, lambda axis, other: _lies_inside(t, axis, other, strides, shapes))
    return tuple(reversed(innermost_first))


def _sorted_with_zeros(t: Trace, strides: Sequence[Strides], shapes: Sequence[Strides]) -> tuple[int, ...]:
    """The dimension order that NumPy chooses for a concatenation: unlike :func:`_sorted`, a stride of 0 counts, and
    dimensions are placed from the outermost on."""
    axes = range(len(strides[0]))
    return tuple(_inserted(axes, lambda axis, other: _lies_inside(t, other, axis, strides, shapes, zeros=True)))


def _inserted(axes: Iterable[int], goes_before: Callable[[int, int], bool | None]) -> list[int]:
    """``axes`` by NumPy's insertion sort: each goes before those placed last, until one that it must not go before;
    those that do not tell (None) are passed over."""
    out: list[int] = []
    for axis in axes:
        at = len(out)
        for place in reversed(range(len(out))):
            swap = goes_before(axis, out[place])
            if swap is None:
                continue
            if not swap:
                break
            at = place
        out.insert(at, axis)
    return out


def _lies_inside(t: Trace, axis: int, other: int, strides, shapes, zeros: bool = False) -> bool | None:
    """Whether ``axis`` must move inside ``other``, which follows it; None where no operand has both: an extent above 1
    and, unless ``zeros``, a stride other than 0."""
    found = None
    for given, shape in zip(strides, shapes):
        a, b = given[axis], given[other]
        if shape[axis] == 1 or shape[other] == 1 or (not zeros and (a == 0 or b == 0)):
            continue
        if _at_most(t, b, a):
            return False
        found = True
    return found


def _at_most(t: Trace, a: Size, b: Size) -> bool:
    """Whether ``abs(a) <= abs(b)``."""
    a, b = (sz.mul(n, -1) if t.hint(n) < 0 else n for n in (a, b))
    return t.decide(a, "<=", b)
