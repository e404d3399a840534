"""fusion-split-complex: complex tensors as two real ones."""

from __future__ import annotations

from typing import Any

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.complex_functions import FUNCTIONS, Pair, RealOps
from mlirfuse.ir.graph import Graph, Layout, Op, Value
from mlirfuse.passes.base import Pass, PassError, register


@register
class SplitComplex(Pass):
    """Rewrites complex ops to real ones, so that no later pass sees complex numbers: vectors do not support them.

    A complex argument becomes two, marked ``fusion.part = "re"`` and ``"im"``: its memory reinterpreted as real tensors
    with doubled strides, the second starting one real number later. A complex result becomes two likewise. Division
    scales by the larger part of the divisor (Smith 1962) and ``abs`` is ``hypot``, so that no square overflows. A call
    takes and returns each complex tensor as two.

    Before::

        func.func @f(%x: tensor<?xcomplex<f32>> {…}, %y: tensor<?xcomplex<f32>> {…}) -> tensor<?xf32> {
          %0 = "fusion.mul"(%x, %y)
          %1 = "fusion.real"(%0)

    After::

        func.func @f(%x_re: tensor<?xf32> {fusion.strides = ["2"], fusion.part = "re", …}, %x_im: … "im"}, …) {
          %0 = "fusion.mul"(%x_re, %y_re)
          %1 = "fusion.mul"(%x_im, %y_im)
          %2 = "fusion.sub"(%0, %1)
    """

    name = "fusion-split-complex"

    def run(self, graph: Graph) -> None:
        if is_complex(graph):
            _Split(graph).run()


def _strides(result: Value, known) -> tuple[sz.Size, ...]:
    """The strides of a call's ``result``, or of its parts, which are views of complex memory. ``known``: those of the
    result itself; None: row-major."""
    strides = sz.contiguous_strides(result.shape) if known is None else known
    return tuple(sz.mul(s, 2) for s in strides) if result.dtype.kind == "c" else tuple(strides)


def is_complex(graph: Graph) -> bool:
    """Whether there is a complex tensor in ``graph``."""
    values = [*graph.args, *(v for op in graph.ops for v in op.results)]
    return any(v.dtype is not None and v.dtype.kind == "c" for v in values)


class _Split:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.pairs: dict[Value, Pair] = {}
        self.new: dict[Value, Value] = {}  # replacements of real values
        self.b = Builder(graph.body)
        self.r = RealOps(self.b)

    def run(self) -> None:
        graph = self.graph
        indices = self.arguments()
        ops, graph.body.ops = graph.body.ops, []
        for op in ops:
            if op.blocks:
                raise PassError("fusion-split-complex: control flow around complex values is not supported", op.loc)
            self.op(op)
        returns: list[Value] = []
        aliases: dict[int, int] = {}
        for k, value in enumerate(graph.returns):
            pair = self.pairs.get(value)
            targets = [indices[graph.aliases[k]] + n for n in range(2)] if k in graph.aliases else []
            for n, part in enumerate(pair or [self.new.get(value, value)]):
                if targets:
                    aliases[len(returns)] = targets[n]
                if pair:
                    graph.result_parts[len(returns)] = ("re", "im")[n]
                returns.append(part)
        graph.body.returns, graph.aliases = returns, aliases

    def arguments(self) -> list[int]:
        """Replace the complex arguments; return the new index of each original one."""
        graph = self.graph
        indices: list[int] = []
        args: list[Value] = []
        layouts: list[Layout | None] = []
        scalars: set[int] = set()
        for k, value in enumerate(graph.args):
            indices.append(len(args))
            layout = graph.layouts[k] if k < len(graph.layouts) else None
            if value.dtype is None or value.dtype.kind != "c":
                if k in graph.scalars:
                    scalars.add(len(args))
                args.append(value)
                layouts.append(layout)
                continue
            real = value.dtype.real
            strides = layout.strides if layout else sz.contiguous_strides(value.shape)
            align = min(layout.align if layout else 1, real.bytes)
            parts = []
            for part in ("re", "im"):
                graph.parts[len(args)] = part
                parts.append(Value(real, value.shape, name=f"{value.name}_{part}" if value.name else None))
                if k in graph.scalars:
                    scalars.add(len(args))
                args.append(parts[-1])
                layouts.append(None if k in graph.scalars else Layout(tuple(sz.mul(s, 2) for s in strides), align))
            self.pairs[value] = parts[0], parts[1]
        graph.body.args, graph.layouts, graph.scalars = args, layouts, scalars
        return indices

    # ---- ops

    def op(self, op: Op) -> None:
        if not any(v.dtype is not None and v.dtype.kind == "c" for v in (*op.operands, *op.results)):
            op.operands = [self.new.get(v, v) for v in op.operands]
            self.graph.body.ops.append(op)
            return
        row = table.TABLE.get(op.name)
        rule = getattr(self, f"_{op.name}", None)
        function = FUNCTIONS.get(op.name)
        if (
            rule is None
            and function is None
            and (
                row is None
                or (
                    row.kind not in ("shape", "index")
                    and op.name not in ("full", "sum", "cumsum", "index_put_accumulate")
                    and not op.row.identity
                )
            )
        ):
            raise PassError(f"fusion-split-complex: {op.name} of complex values is not split into real ops", op.loc)
        self.b.loc = lambda: op.loc
        results: Any
        if function is not None:
            results = function(self.r, *(self.pair(v) for v in op.operands))
        else:
            results = rule(op, *op.operands) if rule else self.per_part(op)
        for old, created in zip(op.results, results if isinstance(results, list) else [results]):
            if isinstance(created, tuple):
                self.pairs[old] = created
            else:
                self.new[old] = created

    def pair(self, value: Value) -> Pair:
        """Return the real and the imaginary part of a value; of a real one, itself and zeros."""
        if value.dtype.kind == "c":
            return self.pairs[value]
        value = self.new.get(value, value)
        zero = self.b.constant(0, value.dtype)
        return value, self.b.op("full", zero, shape=value.shape) if value.shape else zero

    def per_part(self, op: Op) -> list:
        """Apply the op to the real and to the imaginary parts."""
        created = []
        for n in range(2):
            operands = [self.pair(v)[n] if v.dtype.kind == "c" else self.new.get(v, v) for v in op.operands]
            out = self.b.op(op.name, *operands, **{k: op.attrs[k] for k in table.TABLE[op.name].attrs})
            created.append(out if isinstance(out, list) else [out])
        return list(zip(*created))

    def _call(self, op, *operands):
        """Return the call with each complex operand and result as two: the front end's function takes and returns them
        so."""
        given = [p for v in operands for p in (self.pair(v) if v.dtype.kind == "c" else (self.new.get(v, v),))]
        types = [(d.real, d.real) if d.kind == "c" else (d,) for d in op.attrs["dtypes"]]
        shapes = [s for t, s in zip(types, op.attrs["shapes"]) for _ in t]
        strides = [_strides(v, known) for v, known in zip(op.results, op.attrs["strides"] or [None] * len(types))]
        attrs = op.attrs | {
            "dtypes": tuple(d for t in types for d in t),
            "shapes": tuple(shapes),
            "shares": None,
            "strides": tuple(s for t, s in zip(types, strides) for _ in t),
        }
        created = self.b.op("call", *given, **{key: attrs[key] for key in op.row.attrs})
        parts = iter(created if isinstance(created, list) else [created])
        return [tuple(next(parts) for _ in t) if len(t) == 2 else next(parts) for t in types]

    def _constant(self, op):
        real = op.result.dtype.real
        return self.b.constant(op.attrs["value"].real, real), self.b.constant(op.attrs["value"].imag, real)

    def _complex(self, op, a, b):
        a, b = (self.new.get(v, v) for v in (a, b))
        shape = op.result.shape  # broadcast both to the result: shape ops rewrite each part separately
        return tuple(v if v.shape == shape else self.b.broadcast_to(v, shape) for v in (a, b))

    def _cast(self, op, x):
        to, (re, im) = op.attrs["to"], self.pair(x)
        if to.kind == "c":
            return self.b.cast(re, to.real), self.b.cast(im, to.real)
        if to is dt.bool_:
            return self.r.logical_or(self.r.ne(re, 0), self.r.ne(im, 0))
        return self.b.op("copy", re) if to is re.dtype else self.b.cast(re, to)  # unlike `real`, which is a view

    def _real(self, op, x):
        return self.pair(x)[0]

    def _imag(self, op, x):
        return self.pair(x)[1]

    def _conj(self, op, x):
        re, im = self.pair(x)
        return re, self.r.neg(im)

    def _neg(self, op, x):
        re, im = self.pair(x)
        return self.r.neg(re), self.r.neg(im)

    def _abs(self, op, x):
        return self.r.hypot(*self.pair(x))

    def _add(self, op, x, y):
        (a, b), (c, d) = self.pair(x), self.pair(y)
        return self.r.add(a, c), self.r.add(b, d)

    def _sub(self, op, x, y):
        (a, b), (c, d) = self.pair(x), self.pair(y)
        return self.r.sub(a, c), self.r.sub(b, d)

    def _eq(self, op, x, y):
        (a, b), (c, d) = self.pair(x), self.pair(y)
        return self.r.logical_and(self.r.eq(a, c), self.r.eq(b, d))

    def _ne(self, op, x, y):
        (a, b), (c, d) = self.pair(x), self.pair(y)
        return self.r.logical_or(self.r.ne(a, c), self.r.ne(b, d))

    def _where(self, op, condition, x, y):
        condition = self.new.get(condition, condition)
        return tuple(self.r.where(condition, a, b) for a, b in zip(self.pair(x), self.pair(y)))

    def _isreal(self, op, x):
        return self.r.eq(self.pair(x)[1], 0)

    def _isnan(self, op, x):
        return self.r.logical_or(*map(self.r.isnan, self.pair(x)))

    def _isinf(self, op, x):
        return self.r.logical_or(*map(self.r.isinf, self.pair(x)))

    def _isfinite(self, op, x):
        return self.r.logical_and(*map(self.r.isfinite, self.pair(x)))
