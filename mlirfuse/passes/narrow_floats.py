"""fusion-narrow-floats: float8 as integers."""

from __future__ import annotations

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops as table
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.float8 import encoded
from mlirfuse.ir.graph import Graph, Op, Value
from mlirfuse.passes.base import Pass, PassError, register


@register
class NarrowFloats(Pass):
    """Rewrites casts from and to f8E4M3FN and f8E5M2 to integer ops on bytes, which every target has; all other ops
    only copy float8 values, and copy the bytes. Arguments and results become ui8, marked ``fusion.part = "bits"``:
    their memory reinterpreted.

    A number that is too large, and an infinity, becomes the largest one, as in the hardware's conversions and
    nvFuser's; unless ``saturate``, NaN in e4m3fn and an infinity in e5m2, as in ml_dtypes' casts.

    Before::

        func.func @f(%x: tensor<?xf8E4M3FN> {fusion.shape = ["s0"]}) -> tensor<?xf8E5M2> {
          %0 = "fusion.cast"(%x) {to = f32}
          %1 = "fusion.exp"(%0)
          %2 = "fusion.cast"(%1) {to = f8E5M2}

    After::

        func.func @f(%x: tensor<?xui8> {fusion.part = "bits", …}) -> (tensor<?xui8> {fusion.part = "bits"}) {
          %0 = "fusion.decode_e4m3fn"(%x) {to = f32}
          %1 = "fusion.exp"(%0)
          %2 = "fusion.encode_e5m2"(%1) {to = ui8}
    """

    name = "fusion-narrow-floats"
    saturate: bool = True

    def run(self, graph: Graph) -> None:
        if not is_narrow(graph):
            return
        new: dict[Value, Value] = {}
        for k, value in enumerate(graph.args):
            if narrow(value):
                new[value] = graph.args[k] = Value(dt.u8, value.shape, name=value.name)
                graph.parts[k] = "bits"
        ops, graph.body.ops = graph.body.ops, []
        builder = Builder(graph.body)
        for op in ops:
            if op.blocks:
                raise PassError("fusion-narrow-floats: control flow is not supported", op.loc)
            builder.loc = lambda op=op: op.loc
            operands = [new.get(v, v) for v in op.operands]
            if not any(map(narrow, (*op.operands, *op.results))):
                op.operands = operands
                graph.body.ops.append(op)
                continue
            created = self.op(builder, op, operands)
            new.update(zip(op.results, created if isinstance(created, list) else [created]))
        for k, value in enumerate(graph.returns):
            if narrow(value):
                graph.result_parts[k] = "bits"
        graph.body.returns = [new.get(v, v) for v in graph.returns]

    def op(self, b: Builder, op: Op, operands: list[Value]):
        row = op.row
        if op.name == "cast":
            (given,), (x,), to = op.operands, operands, op.attrs["to"]
            if narrow(given):
                x = b.op(f"decode_{given.dtype.name[2:]}", x)
            return self.encoded(b, b.cast(x, dt.f32), to) if to.kind == "n" else b.cast(x, to)
        if op.name == "constant":
            return b.constant(op.attrs["value"].view("u1"), dt.u8)
        if row.calls:
            return self.call(b, op, operands)
        if not row.only_moves:
            raise PassError(
                f"fusion-narrow-floats: {op.name} of {op.operands[0].dtype}: float8 can only be copied and cast",
                op.loc,
            )
        return b.op(op.name, *operands, **{k: op.attrs[k] for k in row.attrs})

    def encoded(self, b: Builder, x: Value, to: DType) -> Value:
        bits = encoded(b, x, to, self.saturate)
        if self.saturate or to is not dt.f8e5m2:
            return bits
        return b.op("where", b.op("isnan", x), b.op("sub", bits, b.constant(1, dt.u8)), bits)  # the NaN of ml_dtypes

    def call(self, b: Builder, op: Op, operands: list[Value]):
        """Pass the bytes to an extern function."""
        if any(map(narrow, op.results)):
            raise PassError(f"fusion-narrow-floats: results of {op.attrs['callee']} cannot be float8", op.loc)
        attrs = {k: op.attrs[k] for k in table.TABLE["call"].attrs} | {"shares": None}
        return b.op("call", *operands, **attrs)


def narrow(value: Value) -> bool:
    return value.dtype is not None and value.dtype.kind == "n"


def is_narrow(graph: Graph) -> bool:
    """Whether there is a float8 value in ``graph``."""
    return any(map(narrow, [*graph.args, *(v for op in graph.ops for v in op.results)]))
