"""Random graphs for tests of the passes: views, splits, broadcasts, reductions, composites, library ops, control flow,
writes in place, several results, results that are arguments. Everything is float64, so that rewriting barely changes a
value."""

from __future__ import annotations

import random

import numpy as np

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Layout, Op, Value

SIZES = {"s0": 3, "s1": 4}
_UNARY = ["tanh", "neg", "abs", "sin", "sigmoid", "cos", "relu"]
_BINARY = ["add", "sub", "mul", "maximum", "minimum"]


def arguments(graph: Graph, seed: int) -> list[np.ndarray]:
    """Arrays for the arguments of a random graph."""
    rng = np.random.default_rng(seed)
    out = []
    for value in graph.args:
        if value.dtype is None:
            out.append(np.asarray(bool(rng.integers(2))))
        else:
            out.append(
                rng.uniform(-1, 1, tuple(sz.substitute(n, SIZES) for n in value.shape)).astype(value.dtype.numpy)
            )
    return out


def fitting(b: Builder, out: Value) -> Value:
    """``out``, of which the extents that are taken to be equal are equal; else it goes."""
    for value in out.op.operands:
        for n, m in zip(value.shape, out.shape):
            if n != 1 and sz.substitute(n, SIZES) != sz.substitute(m, SIZES):
                b.block.ops.pop()
                raise ValueError("the sizes do not match")
    return out


class _Maker:
    def __init__(self, seed: int, in_place: bool):
        self.r = random.Random(seed)
        self.in_place = in_place
        s0, s1 = sz.symbol("s0"), sz.symbol("s1")
        self.extents = [s0, s1, 6, 2]
        shapes = [(s0, s1), (s0, s1), (s1,), (6, s1), (s0, 1), (s0, s1, 2), ()]
        self.args = [Value(dt.f64, shape, name=f"a{k}") for k, shape in enumerate(shapes)]
        self.flag = Value(None, type="i1")
        self.graph = Graph(f"random_{seed}", Block([*self.args, self.flag]))
        self.graph.layouts = [Layout(sz.contiguous_strides(v.shape)) for v in self.args] + [None]
        self.graph.device = "cpu"

    def make(self, count: int) -> Graph:
        body = self.graph.body
        values = self.fill(body, list(self.args), count, 0)
        results = self.r.sample(values, min(len(values), self.r.randint(1, 4)))
        if self.r.random() < 0.2:
            results.append(self.r.choice(self.args))
        body.returns = results
        return self.graph

    def fill(self, block: Block, values: list[Value], count: int, depth: int) -> list[Value]:
        """Appends about ``count`` ops to ``block``; gives the values that can be used after them."""
        b = Builder(block, lambda: ("random.py", len(block.ops) + 1))
        for _ in range(count):
            if depth < 2 and self.r.random() < 0.04:
                values.append(self.branch(block, values, depth))
                continue
            try:
                created = self.op(b, values)
            except (ValueError, TypeError, IndexError):  # a draw that does not fit
                continue
            values += created if isinstance(created, list) else [created]
        return values

    def pick(self, values, least=0):
        """A value, of late more often, with at least so many dimensions."""
        fit = [v for v in values if v.rank >= least]
        return fit[max(self.r.randrange(len(fit)), self.r.randrange(len(fit)))]

    def branch(self, block: Block, values, depth) -> Value:
        like = self.pick(values)
        blocks = []
        for _ in range(2):
            inner = Block()
            local = self.fill(inner, list(values), self.r.randint(1, 4), depth + 1)
            inner.returns = [self.r.choice([v for v in local if v.shape == like.shape and v.dtype is like.dtype])]
            blocks.append(inner)
        op = Op("scf.if", [self.flag], {}, [Value(like.dtype, like.shape)], blocks)
        block.ops.append(op)
        return op.result

    def op(self, b: Builder, values: list[Value]):
        r = self.r
        choice = r.random()
        if self.in_place and choice < 0.12:
            return self.write(b, values)
        if choice < 0.3:
            return b.op(r.choice(_UNARY), self.pick(values))
        if choice < 0.55:
            return self.binary(b, values)
        if choice < 0.62:
            x = self.pick(values, 1)
            axes = tuple(sorted(r.sample(range(x.rank), r.randint(1, x.rank))))
            return b.op(r.choice(["sum", "max", "mean", "var"]), x, axes=axes, keepdims=r.random() < 0.5)
        if choice < 0.66:
            x = self.pick(values, 1)
            name = r.choice(["softmax", "log_softmax", "gelu", "layer_norm", "rms_norm"])
            return b.op(name, x)
        if choice < 0.69:
            x = self.pick(values, 2)
            return b.op("matmul", x, b.permute(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2)))
        if choice < 0.72:
            x = self.pick(values, 1)
            return b.elementwise("mul", x, b.cast(b.op("extent", x, axis=r.randrange(x.rank)), x.dtype))
        return self.view(b, values)

    def binary(self, b: Builder, values):
        x = self.pick(values)
        if self.r.random() < 0.2:
            y = b.constant(self.r.choice([0.5, 2.0, -1.0]), x.dtype)
        else:
            y = self.pick(values)
        return fitting(b, b.elementwise(self.r.choice(_BINARY), x, y))

    def view(self, b: Builder, values):
        r = self.r
        x = self.pick(values, 1)
        axis = r.randrange(x.rank)
        kind = r.choice(
            [
                "reshape",
                "permute",
                "slice",
                "split",
                "concatenate",
                "pad",
                "expand_dims",
                "squeeze",
                "broadcast_in_dim",
                "reshape",
            ]
        )
        if kind == "reshape":
            flat = b.op("reshape", x, shape=(x.numel,))
            return r.choice([flat, b.op("reshape", flat, shape=x.shape[::-1])])
        if kind == "permute":
            return b.op("permute", x, dims=tuple(r.sample(range(x.rank), x.rank)))
        extent = sz.substitute(x.shape[axis], SIZES)
        if kind == "slice":
            step = r.choice([1, 1, 2, -1])
            start = r.randrange(extent)
            room = (extent - start + step - 1) // step if step > 0 else start // -step + 1
            start_all, step_all, size = [0] * x.rank, [1] * x.rank, list(x.shape)
            start_all[axis], step_all[axis], size[axis] = start, step, r.randint(1, room)
            return b.op("slice", x, start=tuple(start_all), size=tuple(size), step=tuple(step_all))
        if kind == "split":
            pieces = r.randint(2, 3)
            if extent < pieces:
                raise ValueError("empty pieces")
            sizes = [extent // pieces] * (pieces - 1)
            out = b.op(
                "split",
                x,
                axis=axis,
                sizes=(*sizes, extent - sum(sizes))
                if isinstance(x.shape[axis], int)
                else (*sizes, x.shape[axis] - sum(sizes)),
            )
            if r.random() < 0.5:  # as a gate, or the other way round
                return b.op("concatenate", *reversed(out), axis=axis)
            return out
        if kind == "concatenate":
            return b.op("concatenate", x, b.op(r.choice(_UNARY), x), axis=axis)
        if kind == "pad":
            low, high = [0] * x.rank, [0] * x.rank
            low[axis], high[axis] = r.randint(0, 2), r.randint(-1 if extent > 1 else 0, 2)
            return b.op("pad", x, b.constant(0.25, x.dtype), low=tuple(low), high=tuple(high))
        if kind == "expand_dims":
            return b.op("expand_dims", x, axes=(r.randint(0, x.rank),))
        if kind == "squeeze":
            return b.op("squeeze", x, axes=tuple(k for k, n in enumerate(x.shape) if n == 1)[:1])
        return b.op("broadcast_in_dim", x, shape=(2, *x.shape), dims=tuple(range(1, x.rank + 1)))

    def write(self, b: Builder, values):
        r = self.r
        dest = self.pick(values)
        kind = r.choice(["unary", "binary", "update"])
        if kind == "update" and dest.rank:
            axis = r.randrange(dest.rank)
            extent = sz.substitute(dest.shape[axis], SIZES)
            start = r.randrange(extent)
            size = list(dest.shape)
            first, step = [0] * dest.rank, [1] * dest.rank
            first[axis] = start
            if r.random() < 0.3:
                step[axis] = r.choice([2, -1])
            size[axis] = (extent - start + step[axis] - 1) // step[axis] if step[axis] > 0 else start + 1
            source = b.op("slice", dest, start=(0,) * dest.rank, size=tuple(size), step=(1,) * dest.rank)
            value = b.op(r.choice(_UNARY), source) if r.random() < 0.7 else b.constant(0.5, dest.dtype)
            return b.op("update", dest, value, start=tuple(first), size=tuple(size), step=tuple(step))
        if kind == "unary":
            out = b.op(r.choice(_UNARY), dest)
        else:
            others = [v for v in values if v.rank in (0, dest.rank)]
            out = fitting(b, b.op(r.choice(_BINARY), dest, r.choice(others)))
            if out.shape != dest.shape:
                b.block.ops.pop()
                raise ValueError("the result does not fit its place")
        out.op.attrs["inplace"] = True
        return out


def random_graph(seed: int, in_place: bool = False, count: int | None = None) -> Graph:
    """A graph of about ``count`` ops, the same for the same ``seed``."""
    maker = _Maker(seed, in_place)
    return maker.make(count or maker.r.randint(3, 30))
