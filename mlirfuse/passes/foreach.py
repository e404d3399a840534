"""fusion-foreach: launch independent segments with equal bodies together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mlirfuse.analysis.traffic import NAMES
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Block, Graph, Group, Layout, Op, Segment, Value, uses
from mlirfuse.ir.order import Units, topological
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.foreach import LEAST
from mlirfuse.passes.base import Pass, register

_FEW = 8  # groups moved to the front have at most such a share of the bytes each: larger ones occupy the device
_VECTORS = 16  # elements: members whose sizes are multiples of this are separate from others


@dataclass
class _Body:
    """What a segment computes, independent of its sizes: ``ops`` compute ``outs`` from ``ins``. ``key``: equal for
    segments that differ in sizes alone. ``size``: the number of elements of its tensors, all treated as 1-d; None for
    scalars. ``numbers``: equal for equal values."""

    ops: list[Op]
    ins: list[Value]
    outs: list[Value]
    size: int | None
    numbers: dict[Value, int]
    key: tuple


@register
class ForeachPass(Pass):
    """Merges ``least`` or more independent segments that compute the same of tensors of different sizes, each
    contiguous, or of scalars, into one ``fusion.foreach``: like an optimizer's step for each parameter. Its block
    computes one member, whose tensors are 1-d with ``line`` elements. It is one kernel and one launch. Extern ops stay
    between the segments that they were between, except that groups that compute small results from the graph's
    arguments alone, such as each weight in a narrower type, move to the front, at most ``early`` bytes of them
    together. The torch backend runs this pass.

    Before::

        "fusion.group"(%p, %q) ({
          %0 = "fusion.segment"(%p) ({ fusion.exp }) : (tensor<4x5xf32>) -> tensor<4x5xf32>
          %1 = "fusion.segment"(%q) ({ fusion.exp }) : (tensor<7xf32>) -> tensor<7xf32>
          "fusion.yield"(%0, %1)
        })

    After::

        %0:2 = "fusion.foreach"(%p, %q) ({
        ^bb0(%x: tensor<?xf32>):
          "fusion.group"(%x) ({ "fusion.segment"(%x) ({ fusion.exp }) … })
          "fusion.yield"(%y)
        }) {members = 2, line = "each"} : (tensor<4x5xf32>, tensor<7xf32>) -> (tensor<4x5xf32>, tensor<7xf32>)
    """

    name = "fusion-foreach"
    least: int = LEAST
    early: int = 64 << 20

    def run(self, graph: Graph) -> None:
        self.users, self.returned = graph.body.users(), set(graph.returns)
        self.layouts = dict(zip(graph.args, graph.layouts))
        self.by_value, self.hints = {graph.args[k] for k in graph.scalars}, graph.hints
        ordered = self._ordered(graph)
        out: list[Op] = []
        run: list[Op] = []
        for op in ordered:
            if op.segment is not None:
                run.append(op)
                continue
            out += self._run(run)
            run = []
            out.append(op)
        graph.body.ops = out + self._run(run)
        graph.number()

    def _ordered(self, graph: Graph) -> list[Op]:
        """Return the ops, those of a group together; first the groups with small results that need arguments alone, so
        that no extern op is between them."""
        units = Units(graph.ops, {op: op.group for op in graph.ops if op.group is not None})
        arguments, first, room = set(graph.args), set(), self.early
        for unit, ops in units.members.items():
            if not isinstance(unit, Group):
                continue
            inside = set(ops)
            read = {v for op in ops for v in uses(op) if v.op not in inside}
            given = {v for op in ops for v in op.results if not inside.issuperset(self.users.get(v, ()))}
            taken = sum(sz.supposed(v.numel, self.hints) * v.dtype.bytes for v in given if v.dtype is not None)
            if read <= arguments and given.isdisjoint(self.returned) and taken <= min(room, self.early // _FEW):
                first.add(unit)
                room -= taken
        return units.ordered(lambda unit: (unit not in first,))

    def _run(self, run: list[Op]) -> list[Op]:
        """Return ``run``, ops in segments with none between them, with a foreach for each set of members."""
        if len({op.segment for op in run}) < self.least:
            return run
        levels = _levels(run)
        members: dict[Segment, list[Op]] = {}
        for op in run:
            assert op.segment is not None
            members.setdefault(op.segment, []).append(op)
        alike: dict[tuple, list[tuple[Segment, _Body]]] = {}
        for segment, ops in members.items():
            body = self._body(segment, ops)
            if body is not None:  # of one level: they do not depend on each other, even indirectly
                alike.setdefault((levels[segment], body.key), []).append((segment, body))
        alike = {key: found for key, found in alike.items() if len(found) >= self.least}
        if not alike:
            return run
        gone = {segment for found in alike.values() for segment, _ in found}
        groups: dict[tuple[int, Group], Group] = {}
        by_level: dict[int, list[Op]] = {}
        for segment, ops in members.items():
            if segment in gone:
                continue
            level = levels[segment]
            group = groups.setdefault((level, segment.group), Group(segment.group.notes, segment.group.why))
            segment.group = group
            for op in ops:
                op.group = group
            by_level.setdefault(level, []).extend(ops)
        for (level, _), found in alike.items():
            by_level.setdefault(level, []).append(_foreach(found))
        return [op for level in sorted(by_level) for op in by_level[level]]

    def _body(self, segment: Segment, ops: list[Op]) -> _Body | None:
        """Return the body of ``segment``, if it may be a member."""
        if segment.scheduler != "pointwise" or segment.schedule:
            return None
        inside = set(ops)
        outs = [
            v
            for op in ops
            for v in op.results
            if v in self.returned or any(user not in inside for user in self.users.get(v, ()))
        ]
        ordered, ins = _in_order(outs, inside)
        if not outs or not ins:
            return None
        shape = max((v.shape for v in outs), key=len)
        values = [*ins, *(v for op in ordered for v in op.results)]
        known = all(isinstance(n, int) for n in shape) and all(v.shape in (shape, ()) for v in values)
        if not known or not all(map(self._is_line, ins)):
            return None
        size = sz.product(shape) if shape else None
        assert size is None or isinstance(size, int)
        if size == 0 or all(v.shape != shape for v in ins):  # a launch reads the members' sizes from their arguments
            return None
        numbers = {v: k for k, v in enumerate(ins)}
        kept: dict[tuple, Op] = {}  # one of several equal ops
        for op in ordered:
            attrs = _attributes(op, shape, ("each",))
            if attrs is None or len(op.results) != 1:
                return None
            serialized = tuple((key, repr(value)) for key, value in attrs.items() if key != "note")
            computed = (op.name, tuple(numbers[v] for v in op.operands), serialized, _type(op.result, shape))
            same = kept.setdefault(computed, op)
            numbers[op.result] = numbers[same.result] if same is not op else len(ins) + len(kept)
        full_vectors = None if size is None else size % _VECTORS == 0
        given = tuple(_type(v, shape) for v in ins)
        key = (given, tuple(kept), tuple(numbers[v] for v in outs), full_vectors)
        return _Body(list(kept.values()), ins, outs, size, numbers, key)

    def _is_line(self, value: Value) -> bool:
        """Whether ``value``, computed elsewhere, is a row-major tensor."""
        op = value.op
        if value.dtype is None or value in self.by_value:
            return False
        if op is None:
            layout: Layout | None = self.layouts.get(value)
            return layout is None or tuple(layout.strides) == sz.contiguous_strides(value.shape)
        if op.group is not None:
            return not op.row.view
        given = op.attrs.get("strides") or ()
        strides = dict(zip(op.results, given)).get(value)
        return strides is not None and tuple(strides) == sz.contiguous_strides(value.shape)


def _type(value: Value, shape: tuple[Size, ...]) -> tuple[str, bool]:
    """Return a key that is equal for values of one type that both are, or are not, tensors of the 1-d shape."""
    return value.dtype.name, value.shape == shape


def _in_order(outs: list[Value], inside: set[Op]) -> tuple[list[Op], list[Value]]:
    """Return the ops of ``inside`` that ``outs`` need, and the values from elsewhere, in an order determined by the
    computation alone."""
    ops: dict[Op, None] = {}
    ins: dict[Value, None] = {}
    worklist: list[Value | Op] = list(reversed(outs))
    while worklist:
        item = worklist.pop()
        if isinstance(item, Op):
            ops.setdefault(item)
        elif item.op not in inside:
            ins.setdefault(item)
        elif item.op not in ops:
            worklist += [item.op, *reversed(item.op.operands)]
    return list(ops), list(ins)


def _levels(run: list[Op]) -> dict[Segment, int]:
    """Return for each segment the length of the longest chain of segments before it."""
    levels: dict[Segment, int] = {}
    for op in topological(run, {op: op.segment for op in run}):
        mine = op.segment
        before = [v.op.segment for v in op.operands if v.op is not None and v.op.segment in levels]
        assert mine is not None
        needed = max((levels[s] + 1 for s in before if s is not None and s is not mine), default=0)
        levels[mine] = max(levels.get(mine, 0), needed)
    return levels


def _attributes(op: Op, shape: tuple[Size, ...], line: tuple[Any, ...]) -> dict[str, Any] | None:
    """Return the attributes of ``op`` with ``shape`` replaced by ``line``; None for an op that is not elementwise."""
    if op.name in ("broadcast_in_dim", "full"):
        fills = op.operands[0].shape == () and op.result.shape == shape
        return op.attrs | {"shape": line} if fills else None
    if op.row.kind == "elementwise":
        return None if op.row.barrier or "inplace" in op.attrs else op.attrs
    return op.attrs if op.name == "constant" and op.result.shape == () else None


def _foreach(found: Iterable[tuple[Segment, _Body]]) -> Op:
    """Return the op with these segments as members."""
    members = list(found)
    segment, body = members[0]
    size = sz.symbol("each")
    line = (size,) if body.size is not None else ()
    shape = max((v.shape for v in body.outs), key=len)
    group = Group(why=segment.group.why)
    read, written = (sum(int(str(s.params.get(name, 0))) for s, _ in members) for name in NAMES)
    one = Segment(group, "pointwise", dict(zip(NAMES, (read, written))), f"{len(members)} segments of equal bodies")
    values: dict[int, Value] = {}

    def value(v: Value) -> Value:
        return values.setdefault(body.numbers[v], Value(v.dtype, line if v.shape == shape else ()))

    inner = Block([value(v) for v in body.ins])
    for op in body.ops:
        attrs = _attributes(op, shape, line)
        created = Op(op.name, [value(v) for v in op.operands], attrs, [value(v) for v in op.results], loc=op.loc)
        created.group, created.segment = group, one
        inner.ops.append(created)
    inner.returns = [value(v) for v in body.outs]
    attrs = {"members": len(members)} | ({"line": "each"} if line else {})
    operands, results = ([v for _, m in members for v in of(m)] for of in (lambda m: m.ins, lambda m: m.outs))
    return Op("foreach", operands, attrs, results, [inner], loc=body.ops[-1].loc)
