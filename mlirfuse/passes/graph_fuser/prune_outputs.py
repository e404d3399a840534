"""fusion-prune-outputs: do not compute values that are only used for their size or type."""

from __future__ import annotations

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.passes.base import Pass, blocks, register
from mlirfuse.passes.dce import DeadCode
from mlirfuse.passes.graph_fuser.shapes import Shapes


@register
class PruneOutputs(Pass):
    """Removes outputs of groups that are used only for their size or their element type. Sizes are taken from size
    expressions, as in fusion-shapes. The type of a guarded group's output is a constant on the guarded path, and is
    read from the value on the fallback path, where the value exists; unused ops are then removed.
    `jit` does not run this pass: fusion-graph-fuser says why.

    Before::

        %0 = scf.if %ok -> tensor<?xf32> {
          %1 = "fusion.group"(%x) …
          scf.yield %1
        } else {
          %1 = "fusion.exp"(%x)
          scf.yield %1
        }
        %2 = "fusion.dtype_of"(%0)

    After::

        %0 = scf.if %ok -> tensor<si64> {
          %1 = "fusion.constant"() {value = 2 : si64, dtype = si64}
          scf.yield %1
        } else {
          %1 = "fusion.exp"(%x)
          %2 = "fusion.dtype_of"(%1)
          scf.yield %2
        }
    """

    name = "fusion-prune-outputs"

    def run(self, graph: Graph) -> None:
        Shapes(annotate=False).run(graph)
        for block in list(blocks(graph)):
            users = block.users()
            for op in list(block.ops):
                if op.name == "scf.if" and op.operands[0].op is not None and op.operands[0].op.name == "guard":
                    _prune_guarded(block, op, users)
        for block in blocks(graph):
            for op in block.ops:
                if op.name == "dtype_of" and op.operands[0].op is not None and op.operands[0].op.group is not None:
                    op.name, op.operands, op.attrs = "constant", [], _number(op.operands[0].dtype)
        DeadCode().run(graph)


def _number(dtype: dt.DType) -> dict:
    return {"value": dt.i64.numpy.type(dt.ALL.index(dtype)), "dtype": dt.i64}


def _prune_guarded(block: Block, branch: Op, users: dict[Value, list[Op]]) -> None:
    keep = []
    for k, value in enumerate(branch.results):
        asking = users.get(value, ())
        if value in block.returns or not all(u.name == "dtype_of" for u in asking):
            keep.append(k)
            continue
        if not asking:
            continue  # it is unused
        keep.append(k)
        fused, fallback = branch.blocks
        constant = Op("constant", [], _number(value.dtype), [Value(dt.i64)], loc=branch.loc)
        query = Op("dtype_of", [fallback.returns[k]], {}, [Value(dt.i64)], loc=branch.loc)
        for inner, op in ((fused, constant), (fallback, query)):
            inner.ops.append(op)
            inner.returns[k] = op.result
        number = branch.results[k] = Value(dt.i64, (), branch, value.name)
        for user in asking:
            block.replace(user.result, number)
            block.ops.remove(user)
    branch.results = [branch.results[k] for k in keep]
    for inner in branch.blocks:
        inner.returns = [inner.returns[k] for k in keep]
