"""fusion-separate-views: make a view of a view read the first source."""

from __future__ import annotations

from mlirfuse.ir.graph import Graph, Op, Value
from mlirfuse.ir.sizes import mul
from mlirfuse.passes.base import Pass, blocks, register

_RESHAPES = ("reshape", "squeeze", "expand_dims")


@register
class SeparateViews(Pass):
    """Makes a view of a view a view of the first source, and removes the intermediate view if nothing else uses it.
    Views that cancel out are removed. Reshapes, squeezes and expand_dims combine with each other, permutes with
    permutes, slices with slices, broadcasts with broadcasts.
    `jit` does not run this pass: fusion-graph-fuser says why.

    Before::

        %0 = "fusion.reshape"(%x) {shape = ["s0*s1"]}
        %1 = "fusion.reshape"(%0) {shape = ["s1", "s0"]}

    After::

        %0 = "fusion.reshape"(%x) {shape = ["s1", "s0"]}
    """

    name = "fusion-separate-views"

    def run(self, graph: Graph) -> None:
        new: dict[Value, Value] = {}  # identity views -> their sources
        bypassed: set[Op] = set()
        for block in blocks(graph):
            for op in block.ops:
                op.operands = [new.get(v, v) for v in op.operands]
                _read_first_source(op, new, bypassed)
            block.returns = [new.get(v, v) for v in block.returns]
        bypassed |= {value.op for value in new if value.op is not None}
        used = {v for block in blocks(graph) for v in block.returns}
        for block in reversed(list(blocks(graph))):  # users before producers
            kept = []
            for op in reversed(block.ops):
                if op not in bypassed or any(v in used for v in op.results):
                    kept.append(op)
                    used.update(op.operands)
            block.ops = kept[::-1]


def _read_first_source(op: Op, new: dict[Value, Value], bypassed: set[Op]) -> None:
    if op.name not in (*_RESHAPES, "permute", "slice", "broadcast_in_dim") or "inplace" in op.attrs:
        return
    view = op.operands[0].op
    if view is not None:
        attrs, b = view.attrs, op.attrs
        if op.name in _RESHAPES and view.name in _RESHAPES:
            op.name, op.attrs = "reshape", _noted(op, shape=op.result.shape)
        elif op.name == view.name == "permute":
            op.attrs = _noted(op, dims=tuple(attrs["dims"][d] for d in b["dims"]))
        elif op.name == view.name == "slice":
            start = tuple(s + mul(t, p) for s, t, p in zip(attrs["start"], b["start"], attrs["step"]))
            op.attrs = _noted(
                op, start=start, size=b["size"], step=tuple(p * q for p, q in zip(attrs["step"], b["step"]))
            )
        elif op.name == view.name == "broadcast_in_dim":
            op.attrs = _noted(op, shape=b["shape"], dims=tuple(b["dims"][d] for d in attrs["dims"]))
        else:
            view = None
    if view is not None:
        op.operands = [view.operands[0]]
        bypassed.add(view)
    identity = op.name != "permute" or tuple(op.attrs["dims"]) == tuple(range(op.result.rank))
    identity = identity and (op.name != "slice" or (not any(op.attrs["start"]) and set(op.attrs["step"]) <= {1}))
    identity = identity and (op.name != "broadcast_in_dim" or tuple(op.attrs["dims"]) == tuple(range(op.result.rank)))
    if identity and op.operands[0].shape == op.result.shape:
        new[op.result] = op.operands[0]


def _noted(op: Op, **attrs) -> dict:
    return attrs | ({"note": op.attrs["note"]} if "note" in op.attrs else {})
