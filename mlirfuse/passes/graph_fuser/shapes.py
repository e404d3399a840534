"""fusion-shapes: size expressions over the arguments' sizes."""

from __future__ import annotations

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.assumptions import substituted
from mlirfuse.ir.graph import Graph, Op, Value, walk
from mlirfuse.ir.ops import map_sizes
from mlirfuse.ir.sizes import Size
from mlirfuse.passes.base import Pass, register


@register
class Shapes(Pass):
    """Gives every result a size expression over the sizes of the arguments, and replaces queries of a size
    (``fusion.extent``) by that expression. Sizes that are broadcast against each other become the same size: a symbol
    that equals another one, or a constant, is replaced by it everywhere, the arguments' declarations included, so that
    a call checks it. A size that the arguments do not determine is read from the first tensor that has it and is stored
    anyway.
    `jit` does not run this pass: fusion-graph-fuser says why.

    ``annotate`` writes the expressions on the ops, as ``extents``.

    Before::

        func.func @f(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>) {
          %0 = "fusion.add"(%x, %y)
          %1 = "fusion.extent"(%0) {axis = 1}

    After::

        func.func @f(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]},
                     %y: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) {
          %0 = "fusion.add"(%x, %y) {extents = [["s0", "s1"]]}
          %1 = "fusion.size"() {value = "s1"}
    """

    name = "fusion-shapes"
    annotate: bool = True

    def run(self, graph: Graph) -> None:
        same = _equalities(graph)
        if same:
            for value in [v for op in walk(graph.body) for v in op.results] + graph.args:
                _resize(value, same)
            for layout in graph.layouts:
                if layout is not None:
                    layout.strides = tuple(sz.substitute(n, same) for n in layout.strides)
            pairs = [(sz.substitute(a, same), sz.substitute(b, same)) for a, b in graph.equal or ()]
            graph.equal = graph.equal and [(a, b) for a, b in pairs if a != b]
            for op in walk(graph.body):
                if op.name == "guard":
                    op.attrs = substituted(op.attrs, same)
                op.attrs = map_sizes(op.row.attr_types, op.attrs, lambda n: sz.substitute(n, same))
        known = {s for value in graph.args for n in value.shape for s in sz.symbols(n)}
        stored: dict[Size, tuple[Value, int]] = {}
        for op in walk(graph.body):
            if op.name == "extent":
                _answer(op, known, stored)
            if op.row.kind in ("foreign", "library"):
                stored = {n: (v, k) for v in op.results for k, n in enumerate(v.shape) if v.dtype is not None} | stored
            if self.annotate and op.row.kind != "foreign" and any(v.shape for v in op.results):
                op.attrs["extents"] = [[n if isinstance(n, int) else str(n) for n in v.shape] for v in op.results]


def _answer(op: Op, known: set[str], stored: dict[Size, tuple[Value, int]]) -> None:
    axis = op.attrs["axis"] % op.operands[0].rank
    extent = op.operands[0].shape[axis]
    if sz.symbols(extent) <= known:
        op.name, op.operands, op.attrs = "size", [], {"value": extent}
    elif extent in stored:
        value, axis = stored[extent]
        op.operands, op.attrs = [value], op.attrs | {"axis": axis}


def _equalities(graph: Graph) -> dict[str, Size]:
    """Return the symbols that must equal another symbol, or a constant, because they are broadcast against it."""
    same: dict[str, Size] = {}

    def settled(size: Size) -> Size:
        while isinstance(size, sz.Expr) and size.is_symbol and str(size) in same:
            size = same[str(size)]
        return size

    rank = {
        str(n): k
        for k, n in enumerate(n for v in graph.args for n in v.shape if isinstance(n, sz.Expr) and n.is_symbol)
    }
    for op in walk(graph.body):
        if op.row.kind != "elementwise":
            continue
        shapes = [v.shape for v in (*op.operands, *op.results) if v.shape]
        for extents in zip(*shapes):
            sizes = list(dict.fromkeys(settled(n) for n in extents if n != 1))
            if len(sizes) == 2 and _stand_for(sizes[0], sizes[1], rank, same):
                continue
            symbols = [n for n in sizes if isinstance(n, sz.Expr) and n.is_symbol]
            constants = [n for n in sizes if isinstance(n, int)]
            if constants:  # only an argument's size can become a constant
                symbols = [n for n in symbols if str(n) in rank]
            if len(sizes) < 2 or not symbols:
                continue
            # The first symbol that the arguments declare replaces all.
            chosen = constants[0] if constants else min(symbols, key=lambda n: rank.get(str(n), len(rank)))
            for symbol in symbols:
                if symbol != chosen:
                    same[str(symbol)] = chosen
    return {name: _closed(size, same) for name, size in same.items()}


def _stand_for(a: Size, b: Size, declared: dict[str, int], same: dict[str, Size]) -> bool:
    """Replace a symbol that an argument declares by an expression of other declared symbols, where ``a`` and ``b`` are
    these."""
    for name, size in ((a, b), (b, a)):
        if not (isinstance(name, sz.Expr) and name.is_symbol and isinstance(size, sz.Expr) and not size.is_symbol):
            continue
        size, used = _closed(size, same), sz.symbols(_closed(size, same))
        needed = {s for other in same.values() for s in sz.symbols(other)}  # symbols in replacements stay
        if str(name) in declared and str(name) not in used | needed and used <= declared.keys():
            same[str(name)] = size
            return True
    return False


def _closed(size: Size, same: dict[str, Size]) -> Size:
    """Return ``size`` with all replacements applied."""
    while isinstance(size, sz.Expr) and not sz.symbols(size).isdisjoint(same):
        size = sz.substitute(size, same)
    return size


def _resize(value: Value, same) -> None:
    if value.dtype is not None and any(isinstance(n, sz.Expr) for n in value.shape):
        value.become(value.dtype, (sz.substitute(n, same) for n in value.shape))
