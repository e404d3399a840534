"""fusion-decompose: expand composite ops."""

from __future__ import annotations

from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import ops as table
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.passes.base import Pass, PassError, register


@register
class Decompose(Pass):
    """Expands composite ops: softmax, the norms, GELU, dropout, cross entropy, their backwards, and all others with an
    expansion in the op table; linear and conv with a bias become one without and an add, so that the add can be fused.

    ``statistics`` also expands mean, var and std to sums; ``keep`` names ops, separated by colons, that are not
    expanded because a scheduler compiles them as such.

    Before::

        %0 = "fusion.softmax"(%x) {axis = 1 : i64}

    After::

        %0 = "fusion.max"(%x) {axes = [1], keepdims = true}
        %1 = "fusion.sub"(%x, %0)
        %2 = "fusion.exp"(%1)
        %3 = "fusion.sum"(%2) {axes = [1], keepdims = true}
        %4 = "fusion.div"(%2, %3)
    """

    name = "fusion-decompose"
    statistics: bool = True
    keep: str = ""

    def run(self, graph: Graph) -> None:
        kept = set(filter(None, self.keep.split(":")))
        unknown = kept - set(table.TABLE)
        if unknown:
            raise PassError(f"fusion-decompose: keep names '{sorted(unknown)[0]}', which is not in the op table")
        self.kept = kept if self.statistics else kept | {row.name for row in table.TABLE.values() if row.statistic}
        self.block(graph.body, {}, {})

    def block(self, block: Block, new: dict[Value, Value], constants: dict) -> None:
        """``new`` maps results of expanded ops to their replacements; ``constants``: those of the enclosing blocks."""
        builder = Builder(block)
        builder._constants.update(constants)
        out: list[Op] = []
        for op in block.ops:
            op.operands = [new.get(v, v) for v in op.operands]
            self.op(op, builder, new, out)
            for nested in op.blocks:
                self.block(nested, new, builder._constants)
        block.ops = out
        block.returns = [new.get(v, v) for v in block.returns]

    def op(self, op: Op, builder: Builder, new: dict[Value, Value], out: list[Op]) -> None:
        created = None if op.name in self.kept or "inplace" in op.attrs else expand(op, builder)
        if created is None:
            out.append(op)
            return
        ops, results = created
        begin = len(out)
        # The new ops may be composite too, and share constants with their expansions: constants go first.
        for inner in sorted(ops, key=lambda created: created.name != "constant"):
            inner.operands = [new.get(v, v) for v in inner.operands]
            inner.group, inner.segment = op.group, op.segment
            self.op(inner, builder, new, out)
        for inner_op in out[begin:]:
            inner_op.origin = op
        for old, value in zip(op.results, results):
            new[old] = new.get(value, value)


def expand(op: Op, builder: Builder) -> tuple[list[Op], list[Value]] | None:
    """Return the ops that the op table expands ``op`` to, and its results; None if it is not composite. Constants are
    ``builder``'s."""
    row = op.row
    if row.expand is None:
        return None
    block, builder.block, builder.loc = builder.block, Block(), lambda: op.loc
    try:
        results = row.expand(builder, *op.operands, **{key: op.attrs[key] for key in row.attrs})
        if results is None:
            return None
        return builder.block.ops, results if isinstance(results, list) else [results]
    except (TypeError, ShapeError) as error:
        raise PassError(f"fusion-decompose: {op.name}: {error}", op.loc) from error
    finally:
        builder.block = block
