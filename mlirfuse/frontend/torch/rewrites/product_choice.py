"""Which matrix products a kernel computes with the ops on their results, and which the library, by what the kernels on
both sides are expected to take.

A product and the groups that read its result are cut out of the graph, grouped and segmented once with the product in a
kernel and once with the library's product, so that what the kernel stores for others, and what no longer shares a
kernel with a reduction, is priced on both sides."""

from __future__ import annotations

from typing import NamedTuple

from mlirfuse.analysis import traffic
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Block, Graph, Layout, Op, Segment, Value
from mlirfuse.passes.base import run_pipeline
from mlirfuse.passes.pipelines import around_products, before_products
from mlirfuse.schedule.gpu.matmul import model

_PRODUCT = "product"  # attribute of a library's product: the number of the `dot` that it stands for


class Choice(NamedTuple):
    """``kernel_us``: what the kernels around a product are expected to take in microseconds if one of them computes it,
    ``library_us``: with the library's product; None where that is not known. ``fuses``: whether a kernel is to."""

    fuses: bool
    kernel_us: float | None = None
    library_us: float | None = None


def choose(graph: Graph, properties: DeviceProperties) -> list[Choice]:
    """What is expected of each ``dot`` of ``graph``, in order. The graph is not changed."""
    graph = graph.copy()
    numbers = {op: k for k, op in enumerate(op for op in graph.ops if op.name == "dot")}
    _use_library(graph.body, numbers)
    run_pipeline([graph], before_products())
    calls = {op.attrs[_PRODUCT]: op for op in graph.ops if _PRODUCT in op.attrs}
    users, compared = graph.body.users(), _Compared(properties)
    chosen = [Choice(False)] * len(numbers)
    for number, call in sorted(calls.items()):
        groups = {user.group for user in users.get(call.result, ()) if user.group is not None}
        ops = [op for op in graph.ops if op.group in groups]
        taken = [
            other for k, other in calls.items() if chosen[k].fuses and any(other.result in o.operands for o in ops)
        ]
        if groups:
            chosen[number] = compared.choice(call, taken, ops, users, set(graph.returns))
    return chosen


def _use_library(block: Block, numbers: dict[Op, int]) -> None:
    """Replace each ``dot``, and the addition of a bias to it, by the library's product."""
    users = block.users()
    for op, number in numbers.items():
        last = op
        readers = users.get(op.result, ())
        if len(readers) == 1 and _adds_bias(readers[0], op.result) and op.result not in block.returns:
            (last,) = readers
        call = Op("matmul", op.operands, {_PRODUCT: number}, [Value(last.result.dtype, last.result.shape)], loc=op.loc)
        block.replace(last.result, call.result)
        block.ops[block.ops.index(last)] = call


def _adds_bias(op: Op, product: Value) -> bool:
    other = [v for v in op.operands if v is not product]
    return op.name == "add" and len(other) == 1 and other[0].op is not None and other[0].op.name == "broadcast_in_dim"


class _Compared:
    """What was found, by the text of what was compared: equal layers are compared once."""

    def __init__(self, properties: DeviceProperties) -> None:
        self.properties = properties
        self.known: dict[tuple, Choice] = {}

    def choice(self, call: Op, taken: list[Op], ops: list[Op], users: dict, returned: set[Value]) -> Choice:
        """The choice for ``call``, whose result ``ops`` read; ``taken``: products that they read, too, and that kernels
        compute."""
        region = [call, *taken, *ops]
        key = _text(region, users, returned)
        if key not in self.known:
            kernel, library = (
                _cost(_cut_out(region, products, users, returned), self.properties)
                for products in ({call, *taken}, {*taken})
            )
            gains = (
                kernel is not None and library is not None and kernel < library * (1 - model.margin(self.properties))
            )
            self.known[key] = Choice(gains, kernel, library)
        return self.known[key]


def _text(ops: list[Op], users: dict[Value, list[Op]], returned: set[Value]) -> tuple:
    """What tells different lists of ops apart: names, attributes, operands, and which results others read."""
    names: dict[Value, int] = {}
    inside, lines = set(ops), []
    for op in ops:
        operands = tuple((names.setdefault(v, len(names)), v.type, str(v.shape)) for v in op.operands)
        attrs = tuple(sorted((k, str(v)) for k, v in op.attrs.items() if k not in (_PRODUCT, "note")))
        outside = tuple(v in returned or any(u not in inside for u in users.get(v, ())) for v in op.results)
        lines.append((op.name, operands, attrs, outside, tuple(v.type for v in op.results)))
        for v in op.results:
            names.setdefault(v, len(names))
    return tuple(lines)


def _cut_out(ops: list[Op], kernels: set[Op], users: dict[Value, list[Op]], returned: set[Value]) -> Graph:
    """A graph of copies of ``ops``, in which kernels compute the products ``kernels``."""
    inside, values, block = set(ops), dict[Value, Value](), Block()

    def of(value: Value) -> Value:
        if value not in values:
            values[value] = Value(value.dtype, value.shape)
            block.args.append(values[value])
        return values[value]

    for op in ops:
        operands = [of(v) for v in op.operands]
        results = [Value(v.dtype, v.shape) for v in op.results]
        values.update(zip(op.results, results))
        block.ops.append(Op("dot" if op in kernels else op.name, operands, op.attrs, results))
    block.returns = [
        values[v]
        for op in ops
        for v in op.results
        if v in returned or any(user not in inside for user in users.get(v, ()))
    ]
    graph = Graph("region", block)
    graph.layouts[:] = [Layout(sz.contiguous_strides(v.shape), model.ALIGNED) for v in block.args]
    return graph


def _cost(graph: Graph, properties: DeviceProperties) -> float | None:
    """The microseconds that the kernels and products of ``graph`` are expected to take; None if that is not known."""
    run_pipeline([graph], around_products())
    total = sum(model.library_us(*_extents(op), properties) for op in graph.ops if op.name == "matmul")
    members: dict[Segment, list[Op]] = {}
    for op in graph.ops:
        if op.segment is not None:
            members.setdefault(op.segment, []).append(op)
    for segment, ops in members.items():
        sizes = [segment.params[name] for name in traffic.NAMES]
        amounts = model.amounts(ops, *sizes) if segment.scheduler == "matmul" else sizes
        if not all(isinstance(number, int) for number in amounts):
            return None
        if segment.scheduler == "matmul":
            work = model.Work.of(*amounts)
            if not model.covers(work, properties):
                return None
            total += _product_us(work, properties)
        elif segment.scheduler != "no-op":
            total += model.elementwise_us(sum(sizes), properties)
    return total


def _product_us(work: model.Work, properties: DeviceProperties) -> float:
    """What a kernel of a product is expected to take; without ops on the result no less than the library's."""
    least = 0.0 if work.instructions else model.library_us(work.m, work.n, work.k, properties)
    return max(least, model.kernel_us(work, properties))


def _extents(op: Op) -> tuple[int, int, int]:
    """M, N and K of a product, the latter in units of 16 bits; they are numbers in those that a kernel can compute."""
    a, b = op.operands
    m, n, k = (size if isinstance(size, int) else sz.supposed(size) for size in (a.shape[0], b.shape[1], a.shape[1]))
    return m, n, k * a.dtype.bytes // 2
