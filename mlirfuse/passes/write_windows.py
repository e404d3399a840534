"""fusion-write-windows: write only the changed slice of an argument."""

from __future__ import annotations

from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Graph, Window
from mlirfuse.passes.base import Pass, register


@register
class WriteWindows(Pass):
    """Where an argument's new value is a ``set_slice`` of its old one and has no other users, makes the slice the
    result, with its location in ``fusion.start`` and ``fusion.step``: the rest of the argument is neither read nor
    written. It has to run after fusion-remove-inplace and before fusion-decompose.

    Before::

        %0 = "fusion.set_slice"(%b, %a) {start = ["1"], size = ["s0 - 2"], step = [1]}
        return %0        {fusion.alias = 0}

    After::

        return %a        {fusion.alias = 0, fusion.start = ["1"], fusion.step = [1]}
    """

    name = "fusion-write-windows"

    def run(self, graph: Graph) -> None:
        builder = Builder(graph.body)
        for k, argument in graph.aliases.items():
            value = graph.returns[k]
            op = value.op
            if op is None or op.name != "set_slice" or op not in graph.ops or k in graph.windows:
                continue
            if op.operands[0] is not graph.args[argument] or graph.body.users().get(value):
                continue
            if graph.returns.count(value) > 1 or list(graph.aliases.values()).count(argument) > 1:
                continue
            size = tuple(op.attrs["size"])
            if 0 in size or not size:
                continue
            builder.loc = lambda op=op: op.loc
            graph.body.returns[k] = builder.broadcast_to(op.operands[1], size)
            graph.windows[k] = Window(tuple(op.attrs["start"]), tuple(op.attrs["step"]))
            graph.ops.remove(op)
