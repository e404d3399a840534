"""Matrix products that a kernel computes together with the ops on the result; others are extern calls."""

from __future__ import annotations

from mlirfuse.frontend.torch.fx.sizes import shape
from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, rule
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value


@rule("aten.mm.default")
def mm(c: Context, a: Value, b: Value) -> Value:
    return _dot(c, a, b)


@rule("aten.addmm.default")
def addmm(c: Context, bias: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Value:
    if beta != 1 or alpha != 1:
        raise Unsupported("its summands are scaled")
    product = _dot(c, a, b)
    return c.op("add", product, c.b.broadcast_to(bias, shape(c.out.shape)))


def _dot(c: Context, a: Value, b: Value) -> Value:
    if not c.fuses:
        raise Unsupported("no mlirfuse kernel")
    return c.op("dot", a, b, tf32=a.dtype is dt.f32)  # the choice respects torch's setting
