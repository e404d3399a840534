"""What kernels take for granted about sizes, by their ops, and what follows from what is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.assumptions import stated_equalities
from mlirfuse.ir.graph import Block, Graph, Op
from mlirfuse.ir.sizes import Expr, Size

Pair = tuple[Size, Size]


def equalities(op: Op) -> list[Pair]:
    """The pairs of sizes that a kernel with ``op`` takes to be equal, and that are not seen to be."""
    pairs: list[Pair] = []
    if op.row.kind == "elementwise" or op.name == "linear_recurrence":
        shapes = [v.shape for v in (*op.operands, *op.results) if v.shape]
        for extents in zip(*shapes):
            first, *others = [n for n in extents if n != 1] or [1]
            pairs += [(first, n) for n in others]
    elif op.name == "reshape":
        pairs.append((op.operands[0].numel, op.result.numel))
    elif op.name in ("broadcast_to", "broadcast_in_dim"):
        given, created = op.operands[0].shape, op.result.shape
        dims = op.attrs.get("dims")
        dims = range(len(created) - len(given), len(created)) if dims is None else dims
        pairs += [(n, created[d]) for n, d in zip(given, dims) if n != 1]
    elif op.name == "squeeze":
        pairs += [(op.operands[0].shape[axis], 1) for axis in op.attrs["axes"]]
    elif op.name in ("concatenate", "take_along_axis"):
        axis = op.attrs["axis"] % max(op.operands[0].rank, 1)
        for other in op.operands[1:]:
            both = zip(op.operands[0].shape, other.shape)
            pairs += [(a, b) for k, (a, b) in enumerate(both) if k != axis and 1 not in (a, b)]
    elif op.row.kind == "product":
        pairs.append((op.operands[0].shape[1], op.operands[1].shape[0]))
    elif op.name == "index_put_accumulate":
        for indices, values in zip(op.operands[1::2], op.operands[2::2]):
            pairs += zip((indices.shape[0], *op.operands[0].shape[1:]), values.shape)
    return [(a, b) for a, b in dict.fromkeys(pairs) if a != b]


class Bound(NamedTuple):
    """``low <= high`` unless ``reads``, how many elements are read, is 0."""

    low: Size
    high: Size
    reads: Size = 1


def bounds(op: Op) -> list[Bound]:
    """What a kernel with ``op`` needs so that it reads inside of its operands, and what is not seen to hold."""
    found: list[Bound] = []
    if op.name == "slice":
        for extent, start, size, step in zip(op.operands[0].shape, *(op.attrs[k] for k in ("start", "size", "step"))):
            last = start + step * (size - 1)
            first, last = (start, last) if step > 0 else (last, start)
            found += [Bound(0, first, op.result.numel), Bound(last + 1, extent, op.result.numel)]
    elif op.name == "split":
        sizes = op.attrs["sizes"]
        found += [Bound(0, size) for size in sizes]
        found.append(Bound(sz.total(sizes), op.operands[0].shape[op.attrs["axis"]]))
    elif op.name == "roll":
        found += [Bound(0, op.attrs["shift"]), Bound(op.attrs["shift"], op.operands[0].shape[op.attrs["axis"]])]
    extents = {str(n) for v in op.operands for n in v.shape}  # other symbols may be numbers, which may be negative

    def seen(low: Size, high: Size) -> bool:
        return sz.at_least(high, low) and sz.symbols(high - low) <= extents

    return [bound for bound in dict.fromkeys(found) if bound.reads != 0 and not seen(bound.low, bound.high)]


class Relations:
    """Equalities of sizes that hold, and what follows from them by substitution and by linear combination."""

    def __init__(self, known: Iterable[Pair] = ()):
        self._same: dict[str, Size] = {}
        rest: list[Size] = []
        for a, b in known:
            a, b = self._closed(a), self._closed(b)
            name = _solved(a, b)
            if name is None:
                rest.append(a - b)
            else:
                value = b if a == sz.symbol(name) else a
                self._same = {n: sz.substitute(v, {name: value}) for n, v in self._same.items()} | {name: value}
        self._basis: list[dict] = []  # of what is 0: polynomials, each with a term that none before it has
        for difference in rest:
            left = self._reduced(self._closed(difference))
            if left:
                self._basis.append(left)

    def hold(self, a: Size, b: Size) -> bool:
        """Whether ``a == b`` follows."""
        difference = self._closed(a) - self._closed(b)
        return difference == 0 or not self._reduced(difference)

    def _closed(self, size: Size) -> Size:
        return sz.substitute(size, self._same) if self._same else size

    def _reduced(self, size: Size) -> dict:
        """The terms of ``size`` that are left where multiples of the basis are taken away."""
        terms = {factors: Fraction(c) for factors, c in (size.terms if isinstance(size, Expr) else ((((), size),)))}
        for row in self._basis:
            pivot = next(iter(row))
            factor = terms.get(pivot, Fraction(0)) / row[pivot]
            for factors, c in row.items():
                terms[factors] = terms.get(factors, Fraction(0)) - factor * c
        return {factors: c for factors, c in terms.items() if c}


def _solved(a: Size, b: Size) -> str | None:
    """The symbol that one of two equal sizes is, where it does not occur in the other."""
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Expr) and one.is_symbol and str(one) not in sz.symbols(other):
            return str(one)
    return None


def unproven(block: Block, known: tuple[Pair, ...] = ()) -> Iterator[tuple[Op, Pair]]:
    """The ops of segments in ``block``, and in blocks nested in it, with equalities that they need and that follow
    neither from those ``known`` nor from the guards around them."""
    relations = None
    for op in block.ops:
        if op.segment is not None and (needed := equalities(op)):
            relations = relations or Relations(known)
            yield from ((op, (a, b)) for a, b in needed if not relations.hold(a, b))
        guard = op.operands[0].op if op.name == "scf.if" else None
        for k, nested in enumerate(op.blocks):
            inside = stated_equalities(guard) if guard is not None and guard.name == "guard" and k == 0 else []
            yield from unproven(nested, (*known, *inside))


def problem_of_segments(graph: Graph) -> tuple[Op, str] | None:
    """An op of a segment whose sizes do not follow from the arguments' declarations, the equalities that a call of
    ``graph`` meets and those of the guards around it, and what is wrong with it; None: there is none, or the front end
    that made the graph sees to it."""
    for op, (a, b) in unproven(graph.body, tuple(graph.equal)) if graph.equal is not None else ():
        remedy = "run fusion-shapes or fusion-guard before fusion-segment, or state it as fusion.equal of the function"
        return op, f"takes the sizes {a} and {b} to be equal, which nothing states: {remedy}"
    return None


def failed(op: Op, env: Mapping[str, int]) -> str | None:
    """What of the sizes that ``op`` needs does not hold where symbols have these values, or None."""
    needed = [(Bound(a, b), "==") for a, b in equalities(op)] + [(bound, "<=") for bound in bounds(op)]
    for (low, high, reads), between in needed:
        a, b = sz.evaluated(low, env), sz.evaluated(high, env)
        known = isinstance(a, int) and isinstance(b, int) and sz.evaluated(reads, env) != 0
        if known and (a > b or (a < b and between == "==")):  # type: ignore[operator]  # ints both
            return f"{op.name}: {low} {between} {high} does not hold: {a} against {b}"
    return None


def needed_equalities(graph: Graph) -> list[Pair]:
    """What a call of ``graph`` has to meet so that its ops' sizes are right: ``graph.equal`` where it is text's, else
    what the ops take to be equal, which the front end that made the graph sees to."""
    if graph.equal is not None:
        return graph.equal

    def of(block: Block) -> Iterator[Pair]:
        for op in block.ops:
            yield from equalities(op)
            for nested in op.blocks if op.name != "scf.if" else ():
                yield from of(nested)

    return list(dict.fromkeys(of(graph.body)))
