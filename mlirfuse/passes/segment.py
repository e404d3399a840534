"""fusion-segment: groups are cut into kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlirfuse import ops as table
from mlirfuse.graph import Block, Graph, Group, Op, Segment, Value
from mlirfuse.passes.base import Pass, register
from mlirfuse.schedule import traffic
from mlirfuse.schedule.analysis import is_reduction
from mlirfuse.schedule.axes import Axes


CYCLE = "merging it would make a cycle"
APART = "shares no tensor with the segments before it"
ASKED = "segment_set"  # the op by which a user asks for a cut, and the reason of the cut


Decision = tuple[Op, int, Op, int, str | None]  # an op of each of two segments, how many ops they had, and why they were not merged (None: they were)


@dataclass(eq=False)
class _Part:
    """A segment in the making. Axis sets are bit masks over the group's axes."""

    ops: list[Op]
    first: int  # smallest position of an op in the block
    reduced: int = 0  # axes reduced, 0 if there is no reduction
    domain: int = 0  # axes of the reductions' operands
    rows: int = 0  # axes that partial sums go over
    why: str = ""
    ins: dict[Value, None] = field(default_factory=dict)
    outs: dict[Value, None] = field(default_factory=dict)  # values used outside of it


class _Segmenter:
    def __init__(self, members: list[Op], axes: Axes, users: dict[Value, list[Op]], returned: set[Value]):
        self.axes = axes
        self.bits: dict[object, int] = {}
        self.mask: dict[Value, int] = {}
        self.users, self.returned = users, returned
        self.members = set(members)
        self.part: dict[Op, _Part] = {}
        self.depends: set[Value] = set()  # values that depend on a reduction of the group
        self.parts: list[_Part] = []
        self.log: list[Decision] = []
        for position, op in enumerate(members):
            self.parts.append(self._single(op, position))
            self.part[op] = self.parts[-1]
        self.order = {op: k for k, op in enumerate(members)}

    def axis_mask(self, value: Value) -> int:
        found = self.mask.get(value)
        if found is None:
            found = 0
            for axis in self.axes.flat(value):
                found |= self.bits.setdefault(axis, 1 << len(self.bits))
            self.mask[value] = found
        return found

    def _single(self, op: Op, position: int) -> _Part:
        part = _Part([op], position)
        if is_reduction(op):
            for axis in self.axes.reduced(op):
                part.reduced |= self.bits.setdefault(axis, 1 << len(self.bits))
            part.domain = self.axis_mask(op.operands[0]) if part.reduced else 0
        if op.name == "partial_sum":
            part.domain = self.axis_mask(op.operands[0])
            for d in op.attrs["axes"]:
                for axis in self.axes.dims(op.operands[0])[d]:
                    part.rows |= self.bits.setdefault(axis, 1 << len(self.bits))
        part.ins = dict.fromkeys(op.operands)
        part.outs = {v: None for v in op.results if self._leaves(v, part)}
        return part

    def _leaves(self, value: Value, part: _Part) -> bool:
        return value in self.returned or any(self.part.get(u) is not part for u in self.users.get(value, ()))

    def _outs(self, parts) -> list[Value]:
        both = set(parts)
        candidates = [v for p in parts for v in p.outs]
        return [v for v in candidates if v in self.returned or any(self.part.get(u) not in both for u in self.users.get(v, ()))]

    def refusal(self, a: _Part, b: _Part) -> str | None:
        """Why no scheduler takes ``a`` and ``b`` (a before b) as one, or None."""
        if self._asked(a, b) or self._asked(b, a):
            return ASKED
        if a.reduced and b.reduced:
            if a.reduced != b.reduced:
                return "reduces other axes than the segment before it"
            if a.domain != b.domain:
                return "iterates over other axes than the segment before it"
        outs = self._outs((a, b))
        domain, reduced, rows = a.domain | b.domain, a.reduced | b.reduced, a.rows | b.rows
        if rows:
            if (a.rows and b.rows and a.rows != b.rows) or (a.domain and b.domain and a.domain != b.domain):
                return "its partial sums go over other axes than the segment before it"
            if reduced and reduced != domain & ~rows:
                return "its partial sums do not go over the rows of the segment before it"
            if any(op.name == "partial_sum" and v in y.ins for x, y in ((a, b), (b, a)) for op in x.ops for v in op.results):
                return "partial sums are complete only after their kernel"
            outs = [v for v in outs if v.op.name != "partial_sum"]
            if any(not self._leads_a_row(v, domain) for v in outs):
                return "its results are not rows"
        if not reduced and not rows:
            if not outs:
                return None
            domain = max((self.axis_mask(v) for v in outs), key=lambda m: m.bit_count())
        for value in outs:
            if self.axis_mask(value) & ~domain:
                return "its results run over other axes than the segment before it"
        if reduced or rows:
            members = sorted(a.ops + b.ops, key=self.order.__getitem__)  # of siblings, either may use the other's results
            return self._reduction_refusal([op for op in members if op.name != "partial_sum"], domain, outs)
        return None

    @staticmethod
    def _asked(a: _Part, b: _Part) -> bool:
        """Whether the user put a cut between ``a`` and what reads it in ``b``. With :meth:`cycle`, nothing crosses the cut."""
        return any(v.op is not None and v.op.name == ASKED and v.op in a.ops for v in b.ins)

    def _leads_a_row(self, value: Value, domain: int) -> bool:
        return not self.axis_mask(value) & ~domain

    def _reduction_refusal(self, members: list[Op], domain: int, outs: list[Value]) -> str | None:
        """Values that depend on a reduction must stay inside its domain, at the same index."""
        late: set[Value] = set()
        for op in members:
            after = any(v in late for v in op.operands)
            if is_reduction(op) and self.axes.reduced(op):
                after = True
            elif after:
                if any(self.axis_mask(v) & ~domain for v in op.results):
                    return "uses a reduction's result over other axes"
                if not self._same_index(op, late):
                    return f"{op.name} moves a reduction's result to another index"
            if after:
                late.update(op.results)
        return None

    def _same_index(self, op: Op, late: set[Value]) -> bool:
        if op.name not in table.TABLE:
            return False
        kind = table.TABLE[op.name].kind
        if kind == "elementwise":
            return all(
                v.shape[d] == 1 or self.axes.dims(v)[d] == self.axes.dims(op.result)[d]
                for v in op.operands if v in late for d in range(v.rank)
            )  # fmt: skip
        if op.name == "reshape":
            return self.axes.flat(op.operands[0]) == self.axes.flat(op.result)
        if op.name == "broadcast_in_dim":
            operand = op.operands[0]
            return all(
                n == 1 or self.axes.dims(operand)[k] == self.axes.dims(op.result)[d]
                for k, (d, n) in enumerate(zip(op.attrs["dims"], operand.shape))
            )  # fmt: skip
        if kind == "reduce":
            return not self.axes.reduced(op)
        return op.name in ("permute", "squeeze", "expand_dims", "full")

    def cycle(self, a: _Part, b: _Part) -> bool:
        """Whether a path leads from ``a`` to ``b`` through another segment."""
        seen: set[int] = set()
        stack = [self.part[u] for v in a.outs for u in self.users.get(v, ()) if u in self.members]
        stack = [p for p in stack if p is not a and p is not b]
        while stack:
            p = stack.pop()
            if id(p) in seen:
                continue
            seen.add(id(p))
            for v in p.outs:
                for u in self.users.get(v, ()):
                    target = self.part.get(u)
                    if target is b:
                        return True
                    if target is not None and target is not p and target is not a:
                        stack.append(target)
        return False

    def merge(self, a: _Part, b: _Part) -> None:
        self.log.append((a.ops[-1], len(a.ops), b.ops[0], len(b.ops), None))
        a.outs = dict.fromkeys(self._outs((a, b)))
        a.ops = sorted(a.ops + b.ops, key=self.order.__getitem__)
        a.reduced |= b.reduced
        a.domain |= b.domain
        a.rows |= b.rows
        a.first = min(a.first, b.first)
        for op in b.ops:
            self.part[op] = a
        made = {v for op in a.ops for v in op.results}
        a.ins = {v: None for v in list(a.ins) + list(b.ins) if v not in made}
        a.why = b.why if b.why == ASKED else a.why or b.why
        b.ops = []

    def run(self) -> list[_Part]:
        changed = True
        while changed:
            changed = self._along_values() | self._siblings()
        return [p for p in self.parts if p.ops]

    def _along_values(self) -> bool:
        changed = False
        for part in self.parts:
            if not part.ops:
                continue
            again = True
            while again:
                again = False
                for value in reversed(list(part.ins)):
                    producer = self.part.get(value.op) if value.op is not None else None
                    if producer is None or producer is part or not producer.ops:
                        continue
                    why = self.refusal(producer, part)
                    if why is None and not self.cycle(producer, part):
                        target = producer
                        self.merge(producer, part)
                        part, again, changed = target, True, True
                        break
                    why = why or CYCLE
                    self.log.append((producer.ops[-1], len(producer.ops), part.ops[0], len(part.ops), why))
                    part.why = why if why == ASKED else part.why or why
        return changed

    def _siblings(self) -> bool:
        """Segments that read the same tensor over the same axes become one: the tensor is read once."""
        changed = False
        readers: dict[object, list[_Part]] = {}
        for part in self.parts:
            for value in part.ins if part.ops else ():
                if value.rank:
                    readers.setdefault(value, []).append(part)
        for part in self.parts:  # reductions of what one segment makes, over the same axes, share a kernel too
            for value in part.ins if part.ops and part.reduced else ():
                producer = self.part.get(value.op) if value.op is not None else None
                if producer is not None:
                    readers.setdefault(("reductions of", id(producer), part.reduced), []).append(part)
        for parts in readers.values():
            for first, second in zip(parts, parts[1:]):
                if not first.ops or not second.ops or first is second:
                    continue
                why = self.refusal(first, second)
                if why is None and not self.cycle(first, second) and not self.cycle(second, first):
                    self.merge(first, second)
                    changed = True
                else:
                    why = why or CYCLE
                    self.log.append((first.ops[-1], len(first.ops), second.ops[0], len(second.ops), why))
                    second.why = second.why or why
        return changed


def scheduler_of(members: list[Op], axes: Axes) -> str:
    """The kind of scheduler that takes these ops."""
    reductions = [op for op in members if is_reduction(op) and axes.reduced(op)]
    if any(op.name == "partial_sum" for op in members):
        return "inner-outer"
    if not reductions:
        return "pointwise"
    late = {v for op in reductions for v in op.results}
    for op in members:
        if op not in reductions and any(v in late for v in op.operands):
            late.update(op.results)
    reduced = {a for op in reductions for a in axes.reduced(op)}
    again = any(v in late for op in reductions for v in op.operands)
    wide = any(reduced & set(axes.flat(v)) for op in members for v in op.results if v in late)
    return "normalization" if again or wide else "reduction"


@register
class SegmentPass(Pass):
    """Cuts each group into as few kernels as schedulers can take. Every op starts as a segment of its own; segments merge along values, then
    between siblings that read the same tensor, as long as one scheduler can take the result and no cycle arises, until nothing changes.
    Each segment names its scheduler, and ``why`` it is cut from the one before it.

    Before::

        "fusion.group"(%x) ({
          %m = "fusion.max"(%a) {axes = [1], keepdims = true}
          %d = "fusion.sub"(%a, %m)
          %s = "fusion.sum"(%a) {axes = [0]}
          "fusion.yield"(%d, %s)
        })

    After::

        "fusion.group"(%x) ({
          %0 = "fusion.segment"(%a) ({
            %m = "fusion.max"(%b) {axes = [1], keepdims = true}
            %d = "fusion.sub"(%b, %m)
            "fusion.yield"(%d)
          }) {scheduler = "normalization"}
          %1 = "fusion.segment"(%a) ({
            %s = "fusion.sum"(%b) {axes = [0]}
            "fusion.yield"(%s)
          }) {scheduler = "reduction", why = "reduces other axes than the segment before it"}
          "fusion.yield"(%0, %1)
        })
    """

    name = "fusion-segment"

    def run(self, graph: Graph) -> None:
        self.log: list[Decision] = []  # what was tried, for those who look at it after the pass
        self._block(graph.body, {graph.args[k] for k in graph.scalars})
        traffic.annotate(graph)

    def _block(self, block: Block, scalars: set[Value]) -> None:
        users = block.users()
        returned = set(block.returns)
        groups: dict[Group, list[Op]] = {}
        for op in block.ops:
            for nested in op.blocks:
                self._block(nested, scalars)
            if op.group is not None:
                groups.setdefault(op.group, []).append(op)
        axes = Axes(block.ops)  # of the whole block: a program's kernels are made with the same ones
        copies: dict[Op, list[Op]] = {}
        for group, members in groups.items():
            free = self._free(members, users, returned, scalars)
            segmenter = _Segmenter([op for op in members if op not in free], axes, users, returned)
            for k, part in enumerate(segmenter.run()):
                why = (part.why or APART) if k else part.why if part.why == ASKED else ""
                segment = Segment(group, scheduler_of(part.ops, segmenter.axes), {}, why)
                for op in part.ops:
                    op.segment = segment
            self.log += segmenter.log
            copies |= self._copied(free, users)
        block.ops = [copy for op in block.ops for copy in copies.get(op, [op])]

    @staticmethod
    def _free(members: list[Op], users, returned: set[Value], scalars: set[Value]) -> dict[Op, None]:
        """What costs nothing to make again: constants, sizes, positions, and scalars computed of those and of scalar arguments. They
        connect nothing, and no memory passes them on."""
        inside, out = set(members), {}
        for op in members:
            row = table.TABLE[op.name]
            cheap = row.kind == "create" or row.kind == "elementwise" and not op.result.shape and op.name != ASKED
            if cheap and all(v in scalars or v.op in out for v in op.operands):
                readers = users.get(op.result, ())
                if readers and op.result not in returned and inside.issuperset(readers):
                    out[op] = None
        return out

    @staticmethod
    def _copied(free: dict[Op, None], users) -> dict[Op, list[Op]]:
        """Gives each segment its own copy of the ops in ``free`` that it uses; the copies of each."""
        copies: dict[Op, list[Op]] = {}
        for op in reversed(free):
            readers: dict[Segment, list[Op]] = {}
            for user in users[op.result]:
                for reader in copies.get(user, [user]):
                    readers.setdefault(reader.segment, []).append(reader)
            made = copies[op] = []
            for segment, members in readers.items():
                copy = op
                if made:
                    copy = Op(op.name, op.operands, op.attrs, [Value(op.result.dtype, op.result.shape)], loc=op.loc)
                    for member in members:
                        member.operands = [copy.result if v is op.result else v for v in member.operands]
                copy.group, copy.segment = op.group, segment
                made.append(copy)
        return copies
