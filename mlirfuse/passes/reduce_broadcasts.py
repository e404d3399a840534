"""fusion-reduce-broadcasts: a reduction over axes along which its operand repeats reads one element of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.effects import written_memory
from mlirfuse.ir.graph import Block, Graph, Op, Value, walk
from mlirfuse.ir.ops import axes_of
from mlirfuse.ir.sizes import Size
from mlirfuse.passes.base import Pass, blocks, register

_REDUCTIONS = ("sum", "mean", "max", "min", "any", "all")
_CHOOSING = ("max", "min", "any", "all", "mean")  # of n equal elements they give the element, where n > 0
Dims = frozenset[int]
Origins = list[list[tuple[int, int]] | None]
Written = Callable[[Value], bool]  # whether an op writes into the memory of a value


@register
class ReduceBroadcasts(Pass):
    """Rewrites a reduction along axes on which all elements of its operand are equal, because they come from a
    broadcast through elementwise ops and views: ``sum`` becomes the extent times the sum over the other axes, ``mean``,
    ``max``, ``min``, ``any`` and ``all`` leave the axes out. The ops between the broadcast and the reduction are
    repeated with extent 1. A reduction along axes of extent 1 alone becomes a ``squeeze``. The gradient of a mean is
    such a broadcast, and the gradient of a bias sums it.

    The product is computed in the accumulation type (float32 for 16-bit floats) and rounded once; of integers it wraps
    around as the sum does. An extent that may be 0 gives 0 for a sum; the other reductions stay as they are then.
    Complex sums stay.

    Before::

        %0 = "fusion.broadcast_in_dim"(%g) {shape = [8, 64, 64], dims = []}
        %1 = "fusion.div"(%0, %n)
        %2 = "fusion.sum"(%1) {axes = [0, 1, 2]}

    After::

        %0 = "fusion.broadcast_in_dim"(%g) {shape = [1, 1, 1], dims = []}
        %1 = "fusion.div"(%0, %n)
        %2 = "fusion.squeeze"(%1) {axes = [0, 1, 2]}
        %3 = "fusion.mul"(%2, %extent)              // 32768.0
    """

    name = "fusion-reduce-broadcasts"

    def run(self, graph: Graph) -> None:
        if not any(op.name in _REDUCTIONS for op in walk(graph.body)):
            return
        nonzero = {str(n) for v in graph.args for n in v.shape if isinstance(n, sz.Expr) and n.is_symbol}
        written = written_memory(graph.ops)
        constant: dict[Value, Dims] = {}
        fresh = _returned(graph)
        for block in blocks(graph):
            self._block(block, constant, nonzero, written, fresh)

    def _block(
        self, block: Block, constant: dict[Value, Dims], nonzero: set[str], written: Written, fresh: set[Value]
    ) -> None:
        """``constant``: for values of the blocks around and of this one, the dimensions along which they repeat.
        ``fresh``: values that need memory of their own."""
        new: dict[Value, Value] = {}
        kept: list[Op] = []
        for op in block.ops:
            if op.name in _REDUCTIONS and "inplace" not in op.attrs:
                created = _reduced(op, constant, nonzero)
                if created is not None:
                    ops, found = created
                    if op.result in fresh and _viewed(found).op not in ops:
                        b = Builder(Block(), lambda op=op: op.loc)
                        found = b.op("copy", found)
                        _place(b.block.ops, op)
                        ops = [*ops, *b.block.ops]
                    new[op.result] = new.get(found, found)  # which may be what an earlier reduction has become
                    kept += ops
                    for part in ops:
                        _note(part, constant, written)
                    continue
            kept.append(op)
            _note(op, constant, written)
        block.ops = kept
        for old, value in new.items():
            block.replace(old, value)


def _returned(graph: Graph) -> set[Value]:
    """The values that are returned, and those whose views are: callers must not see other memory in them."""
    found: set[Value] = set()
    for block in blocks(graph):
        for value in block.returns:
            found.add(value)
            while value.op is not None and value.op.row.view:
                value = value.op.operands[0]
                found.add(value)
    return found


def _viewed(value: Value) -> Value:
    """What ``value`` is a view of, or it."""
    while value.op is not None and value.op.row.view:
        value = value.op.operands[0]
    return value


def _reduced(op: Op, constant: Mapping[Value, Dims], nonzero: set[str]) -> tuple[list[Op], Value] | None:
    """The ops that compute the reduction ``op`` without the axes on which its operand repeats, and their result."""
    source = op.operands[0]
    axes = set(axes_of(op.attrs, source.rank))
    equal = constant.get(source, frozenset()) & axes
    if op.name in _CHOOSING:
        equal = frozenset(d for d in equal if _positive(source.shape[d], nonzero))
    single = bool(axes) and all(source.shape[d] == 1 for d in axes)  # nothing to reduce
    if not (equal or single) or 0 in source.shape or (op.name == "sum" and source.dtype.kind == "c"):
        return None
    b = Builder(Block(), lambda: op.loc)
    narrow = _Narrowing(b).run(source, equal)
    count = sz.product(source.shape[d] for d in sorted(equal))
    found = _of_others(b, op, narrow, axes, count, nonzero)
    _place(b.block.ops, op)
    return b.block.ops, found


def _place(ops: list[Op], replaced: Op) -> None:
    for part in ops:
        part.group, part.segment, part.origin = replaced.group, replaced.segment, replaced.origin


def _of_others(b: Builder, op: Op, x: Value, axes: set[int], count: Size, nonzero: set[str]) -> Value:
    """The reduction ``op`` of ``x``, times ``count`` for a sum: some of its ``axes`` have extent 1 in ``x``."""
    multiply = op.name == "sum" and count != 1
    wide = b.cast(x, x.dtype.compute) if multiply else x
    if any(x.shape[a] != 1 for a in axes):
        found = b.op(op.name, wide, **{key: op.attrs[key] for key in op.row.attrs})
    else:
        found = wide if op.attrs.get("keepdims") else b.op("squeeze", wide, axes=tuple(sorted(axes)))
        if count == 1:
            found = b.cast(found, op.result.dtype)
            if op.name in ("sum", "mean") and found.dtype.kind == "f":  # they begin with 0: -0.0 becomes 0.0
                found = b.op("add", found, b.constant(0.0, found.dtype))
        elif op.name in ("any", "all"):
            found = b.cast(found, dt.bool_)
    if multiply:
        dtype = found.dtype
        number = b.constant(count, dtype) if isinstance(count, int) else b.cast(b.size(count), dtype)
        product = b.op("mul", found, number)
        if not _positive(count, nonzero):
            empty = b.op("eq", b.size(count), b.constant(0, dt.i64))
            product = b.op("where", empty, b.constant(0, dtype), product)
        found = b.cast(product, op.result.dtype)
    return found


def _positive(size: Size, nonzero: set[str]) -> bool:
    """Whether ``size`` is known not to be 0: a positive number, or a product of extents of arguments and one."""
    if isinstance(size, int):
        return size > 0
    terms = size.terms
    return all(c > 0 and all(str(atom) in nonzero for atom in factors) for factors, c in terms)


# ---------------------------------------------------------------------------------------------- where values repeat


def _note(op: Op, constant: dict[Value, Dims], written: Written) -> None:
    """Enters the dimensions along which the result of ``op`` repeats, where there are some."""
    if len(op.results) != 1 or op.blocks or "inplace" in op.attrs or written(op.result):
        return
    if op.name not in _MAKES and not any(v in constant for v in op.operands):
        return
    origins = _origins(op)
    if origins is None:
        return
    shape = op.result.shape
    found = frozenset(
        d
        for d, pairs in enumerate(origins)
        if shape[d] != 1 and pairs is not None and all(_repeats(op.operands[k], j, constant) for k, j in pairs)
    )
    if found:
        constant[op.result] = found


def _repeats(value: Value, dim: int, constant: Mapping[Value, Dims]) -> bool:
    return value.shape[dim] == 1 or dim in constant.get(value, ())


_MAKES = ("broadcast_in_dim", "full")


def _origins(op: Op) -> Origins | None:
    """For each dimension of the result of ``op``: the (operand's number, dimension) that must all repeat for the result
    to repeat along it, None where it never does. None for an op that is not looked through."""
    if op.row.kind == "elementwise":
        given = [k for k, v in enumerate(op.operands) if v.rank]
        return [[(k, d) for k in given] for d in range(op.result.rank)]
    rule = _RULES.get(op.name)
    return None if rule is None else rule(op)


def _broadcast(op: Op) -> Origins:
    places = {d: k for k, d in enumerate(op.attrs["dims"])}
    return [[(0, places[d])] if d in places else [] for d in range(op.result.rank)]


def _full(op: Op) -> Origins:
    return [[] for _ in op.result.shape]


def _permute(op: Op) -> Origins:
    return [[(0, d)] for d in op.attrs["dims"]]


def _squeeze(op: Op) -> Origins:
    axes = {a % op.operands[0].rank for a in op.attrs["axes"]}
    return [[(0, d)] for d in range(op.operands[0].rank) if d not in axes]


def _expand_dims(op: Op) -> Origins:
    axes, old = set(op.attrs["axes"]), iter(range(op.operands[0].rank))
    return [[] if d in axes else [(0, next(old))] for d in range(op.result.rank)]


def _same(op: Op) -> Origins:
    return [[(0, d)] for d in range(op.result.rank)]


def _concatenate(op: Op) -> Origins:
    along = op.attrs["axis"] % op.result.rank
    return [None if d == along else [(k, d) for k in range(len(op.operands))] for d in range(op.result.rank)]


def _reshape(op: Op) -> Origins:
    """A dimension repeats where all do whose elements it has: those up to the next boundary of both shapes."""
    out: Origins = []
    for old, new in _runs(op.operands[0].shape, op.result.shape):
        out += [[(0, d) for d in old]] * len(new)
    return out


def _runs(before: tuple[Size, ...], after: tuple[Size, ...]) -> list[tuple[range, range]]:
    """The dimensions of two shapes of one size, cut where the products of the extents so far are equal."""
    ends: dict[Size, int] = {}
    product: Size = 1
    for k, n in enumerate(before):
        product = sz.mul(product, n)
        ends[product] = k + 1
    out: list[tuple[range, range]] = []
    i = j = 0
    product = 1
    for k, n in enumerate(after):
        product = sz.mul(product, n)
        if ends.get(product, -1) > i or k + 1 == len(after):
            end = len(before) if k + 1 == len(after) else ends[product]
            out.append((range(i, end), range(j, k + 1)))
            i, j = end, k + 1
    return out


_RULES: dict[str, Callable[[Op], Origins]] = {
    "broadcast_in_dim": _broadcast,
    "full": _full,
    "permute": _permute,
    "squeeze": _squeeze,
    "expand_dims": _expand_dims,
    "slice": _same,
    "concatenate": _concatenate,
    "reshape": _reshape,
}


# ------------------------------------------------------------------------------------------------- with extents of 1


@dataclass
class _Narrowing:
    """Repeats ops for one element along dimensions on which their results repeat."""

    b: Builder
    done: dict[tuple[Value, Dims], Value] = field(default_factory=dict)

    def run(self, value: Value, dims: Dims) -> Value:
        """``value`` with extent 1 along ``dims``, on which it repeats. A stack, as chains are longer than Python's."""
        pending = [(value, dims)]
        while pending:
            v, wanted = pending[-1]
            if (v, wanted) in self.done:
                pending.pop()
                continue
            wide = frozenset(d for d in wanted if v.shape[d] != 1)
            if not wide:
                self.done[v, wanted] = v
                continue
            needs = _needs(v.op, wide)
            waiting = [need for need in needs if need not in self.done]
            if waiting:
                pending += waiting
                continue
            self.done[v, wanted] = _with_extents_of_1(self.b, v.op, [self.done[need] for need in needs], wide)
        return self.done[value, dims]


def _needs(op: Op, dims: Iterable[int]) -> list[tuple[Value, Dims]]:
    """The operands of ``op`` and the dimensions along which one element of theirs is enough."""
    origins = _origins(op)
    assert origins is not None
    pairs = {pair for d in dims for pair in origins[d] or ()}
    return [(v, frozenset(j for n, j in pairs if n == k)) for k, v in enumerate(op.operands)]


def _with_extents_of_1(b: Builder, op: Op, operands: list[Value], dims: Dims) -> Value:
    """``op`` of ``operands``, with extent 1 along ``dims`` of the result."""
    attrs = {key: op.attrs[key] for key in op.row.attrs if key in op.attrs}
    shape = tuple(1 if d in dims else n for d, n in enumerate(op.result.shape))
    if op.name in _MAKES:
        if shape == (operands[0].shape if op.row.in_order else ()):
            return operands[0]
        attrs["shape"] = shape
    elif op.name == "slice":
        attrs["size"] = shape
        attrs["start"], attrs["step"] = (
            tuple(first if d in dims else given for d, given in enumerate(attrs[key]))
            for key, first in (("start", 0), ("step", 1))
        )
    elif op.name == "reshape":
        runs = _runs(op.operands[0].shape, op.result.shape)
        flat = {d for _, new in runs if not dims.isdisjoint(new) for d in new}
        narrow = b.reshape(operands[0], tuple(1 if d in flat else n for d, n in enumerate(op.result.shape)))
        return b.broadcast_to(narrow, shape)
    return b.op(op.name, *operands, **attrs)
