"""fusion-segment: groups are cut into kernels."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from mlirfuse.analysis import traffic
from mlirfuse.analysis.axes import Axes
from mlirfuse.analysis.phases import is_reduction
from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Block, Graph, Group, Op, Segment, Value
from mlirfuse.passes.base import Pass, register

COPIED = "computed again there, which moves fewer bytes than storing it"
CYCLE = "merging it would make a cycle"
APART = "shares no tensor with the segments before it"
_FEW = 8  # ops that are computed again rather than stored
_COPIES = 1 << 20  # more than a group has: a copy's position is the original's and a fraction
# how often a segment is tried with others that read the same tensor, so that the number of readers does not count
_TRIES = 8
# The cost of a kernel's ops (OpDef.cost) above which it takes no more. LLVM's time grows faster than a body's
# length: on a CPU, sums of 100 sines (a cost of 2,200) take 5 s to compile in one kernel, of 300 (6,600) 30 s.
LARGEST = 2000
TOO_LARGE = "its kernel would be too large together with the segment before it"
ASKED = "segment_set"  # the op by which a user asks for a cut, and the reason of the cut


Decision = tuple[
    Op, int, Op, int, str | None
]  # an op of each of two segments, how many ops they had, and why they were not merged (None: they were), or COPIED


@dataclass(eq=False)
class _Part:
    """A segment in the making. Axis sets are bit masks over the group's axes."""

    ops: list[Op]  # in no order until all is merged
    first: float  # the smallest and the largest position of its ops in the group
    last: float
    reduced: int = 0  # axes reduced, 0 if there is no reduction
    domain: int = 0  # axes of the reductions' operands
    rows: int = 0  # axes that partial sums go over
    why: str = ""
    ins: dict[Value, int] = field(default_factory=dict)  # how many of its ops read it
    outs: dict[Value, int] = field(
        default_factory=dict
    )  # values used outside of it: by how many ops, and by the block's end
    masks: dict[int, int] = field(default_factory=dict)  # how many of ``outs``, partial sums aside, have these axes
    late: set[Value] = field(default_factory=set)  # values that depend on one of its reductions
    cost: int = 0  # of its ops
    into: _Part | None = None  # what it was merged into

    @property
    def kind(self) -> tuple[int, int, int]:
        """Segments with reductions can only become one where these are the same."""
        return self.reduced, self.domain, self.rows


class _Segmenter:
    """Merges the ``members`` of a group. A merge costs what the smaller side and its border are worth, not what has
    been merged before: a part keeps counts of its uses, and only values that begin to depend on a reduction are looked
    at."""

    def __init__(
        self,
        members: list[Op],
        axes: Axes,
        users: dict[Value, list[Op]],
        returned: set[Value],
        unread: set[Value],
        written: set[Value],
    ):
        """``unread``: values that come from no memory; ``written``: arguments that the program gives new values to."""
        self.axes = axes
        self.bits: dict[object, int] = {}
        self.mask: dict[Value, int] = {}
        self.dims: dict[Value, list] = {}
        self.users, self.returned, self.unread, self.written = users, returned, unread, written
        self.members: dict[float, Op] = dict(enumerate(members))
        self.order: dict[Op, float] = {op: k for k, op in enumerate(members)}
        self.original: dict[
            Op, Op
        ] = {}  # of an op that was copied into a segment, which does not read the result from memory
        self.asked = [v for op in members if op.row.barrier for v in op.results]
        self.partial = [v for op in members if op.row.kind == "partial" for v in op.results]
        self.log: list[Decision] = []
        self.parts = [self._single(op, position) for position, op in enumerate(members)]
        self.part = dict(zip(members, self.parts))

    def axis_mask(self, value: Value) -> int:
        found = self.mask.get(value)
        if found is None:
            found = 0
            for axis in self.axes.flat(value):
                found |= self.bits.setdefault(axis, 1 << len(self.bits))
            self.mask[value] = found
        return found

    def axes_of(self, value: Value) -> list:
        """The axes of each dimension."""
        found = self.dims.get(value)
        if found is None:
            found = self.dims[value] = self.axes.dims(value)
        return found

    def _single(self, op: Op, position: int) -> _Part:
        part = _Part([op], position, position, cost=op.row.cost)
        if is_reduction(op):
            for axis in self.axes.reduced(op):
                part.reduced |= self.bits.setdefault(axis, 1 << len(self.bits))
            if part.reduced:
                part.domain = self.axis_mask(op.operands[0])
                part.late.update(op.results)
        if op.row.kind == "partial":
            part.domain = self.axis_mask(op.operands[0])
            for d in op.attrs["axes"]:
                for axis in self.axes_of(op.operands[0])[d]:
                    part.rows |= self.bits.setdefault(axis, 1 << len(self.bits))
        part.ins = dict.fromkeys(op.operands, 1)
        for value in op.results:
            uses = len(self.users.get(value, ())) + (value in self.returned)
            if uses:
                part.outs[value] = uses
                if op.row.kind != "partial":
                    part.masks[self.axis_mask(value)] = part.masks.get(self.axis_mask(value), 0) + 1
        return part

    def part_of(self, op: Op | None) -> _Part | None:
        if op is None:
            return None
        part = self.part.get(op)
        if part is None or part.into is None:
            return part
        root = part.into
        while root.into is not None:
            root = root.into
        while part is not root:
            part.into, part = root, part.into
        self.part[op] = root
        return root

    @staticmethod
    def _between(a: _Part, b: _Part) -> list[tuple[_Part, _Part, Value, int]]:
        """The values that one of the two makes and the other reads, and how many uses are left when the two are one."""
        found = []
        for maker, reader in ((a, b), (b, a)):
            few, many = (maker.outs, reader.ins) if len(maker.outs) <= len(reader.ins) else (reader.ins, maker.outs)
            found += [(maker, reader, v, maker.outs[v] - reader.ins[v]) for v in few if v in many]
        return found

    def refusal(self, a: _Part, b: _Part) -> str | None:
        """Why no scheduler takes ``a`` and ``b`` (a before b) as one, or None."""
        if any(self._passes(v, a, b) for v in self.asked):
            return ASKED
        if a.cost + b.cost > LARGEST:
            return TOO_LARGE
        if a.reduced and b.reduced:
            if a.reduced != b.reduced:
                return "reduces other axes than the segment before it"
            if a.domain != b.domain:
                return "iterates over other axes than the segment before it"
        domain, reduced, rows = a.domain | b.domain, a.reduced | b.reduced, a.rows | b.rows
        between = self._between(a, b)
        outs = a.masks.copy()
        for mask, count in b.masks.items():
            outs[mask] = outs.get(mask, 0) + count
        for _, _, value, uses in between:
            if not uses and value.op.row.kind != "partial":
                outs[self.axis_mask(value)] -= 1
        masks = [mask for mask, count in outs.items() if count]
        if rows:
            if (a.rows and b.rows and a.rows != b.rows) or (a.domain and b.domain and a.domain != b.domain):
                return "its partial sums go over other axes than the segment before it"
            if reduced and reduced != domain & ~rows:
                return "its partial sums do not go over the rows of the segment before it"
            if any(self._passes(v, a, b) for v in self.partial):
                return "partial sums are complete only after their kernel"
            if any(mask & ~domain for mask in masks):
                return "its results are not rows"
        if not reduced and not rows:
            if not masks:
                return None
            domain = max(masks, key=int.bit_count)
        if any(mask & ~domain for mask in masks):
            return "its results run over other axes than the segment before it"
        found = self._becoming_late(a, b, between)
        return found if isinstance(found, str) else None

    def _passes(self, value: Value, a: _Part, b: _Part) -> bool:
        """Whether ``value`` goes from one of the two to the other. For what a user cut off, :meth:`cycle` sees to it
        that nothing else crosses."""
        maker = self.part_of(value.op)
        return (maker is a and value in b.ins) or (maker is b and value in a.ins)

    def _becoming_late(self, a: _Part, b: _Part, between) -> set[Value] | str:
        """What depends on a reduction once ``a`` and ``b`` are one and did not before; or why that cannot be: such
        values have to stay inside the reduction's domain, at the same index. What was late before has been looked
        at."""
        domain = a.domain | b.domain
        made: set[Value] = set()
        pending = [
            self.order[op] for maker, reader, v, _ in between if v in maker.late for op in self._readers(v, (reader,))
        ]
        heapq.heapify(pending)
        previous = None
        while pending:  # in the program's order, so that all that an op reads has been decided
            op = self.members[heapq.heappop(pending)]
            if op is previous or op.row.kind == "partial":
                continue
            previous = op
            if not (is_reduction(op) and self.axes.reduced(op)):
                if any(self.axis_mask(v) & ~domain for v in op.results):
                    return "uses a reduction's result over other axes"
                if not self._same_index(op, [v for v in op.operands if v in a.late or v in b.late or v in made]):
                    return f"{op.name} moves a reduction's result to another index"
            for value in op.results:
                if value not in a.late and value not in b.late:
                    made.add(value)
                    for reader in self._readers(value, (a, b)):
                        heapq.heappush(pending, self.order[reader])
        return made

    def _readers(self, value: Value, parts) -> list[Op]:
        """The ops of ``parts`` that read ``value``."""
        users = self.users.get(value, ())
        if len(users) > sum(len(p.ops) for p in parts):
            return [op for p in parts for op in p.ops if value in op.operands]
        return [op for op in users if self.part_of(op) in parts]

    def _same_index(self, op: Op, late: list[Value]) -> bool:
        """Whether ``op`` uses each of its operands ``late`` at the index at which it gives a result."""
        kind = op.row.kind
        if kind == "elementwise":
            out = self.axes_of(op.result)
            return all(
                n == 1 or dim == out[d] for v in late for d, (n, dim) in enumerate(zip(v.shape, self.axes_of(v)))
            )
        if op.name == "reshape":
            return self.axes.flat(op.operands[0]) == self.axes.flat(op.result)
        if op.name == "broadcast_in_dim":
            operand, out = op.operands[0], self.axes_of(op.result)
            return all(
                n == 1 or dim == out[d] for d, n, dim in zip(op.attrs["dims"], operand.shape, self.axes_of(operand))
            )
        if kind == "reduce":
            return not self.axes.reduced(op)
        return op.row.view == "all" or kind == "create"

    def cycle(self, a: _Part, b: _Part) -> bool:
        """Whether a path leads from ``a`` to ``b`` through another segment. It is looked for from both ends, a step of
        each at a time: often one of them has few ways to go, and when it has gone all, there is no path."""

        def after(p: _Part):
            return (self.part_of(u) for v in p.outs for u in self.users.get(v, ()))

        def before(p: _Part):
            return (self.part_of(v.op) for v in p.ins)

        steps = zip(
            self._search(a, b, after, lambda p: p.first < b.last),
            self._search(b, a, before, lambda p: p.last > a.first),
        )
        return any(forward or backward for forward, backward in steps)

    @staticmethod
    def _search(start: _Part, target: _Part, nexts, may_reach) -> Iterator[bool]:
        """Yields for each way from one part to the next, beginning at ``start``, whether it reaches ``target``, but not
        straight."""
        seen, pending = {start, target, None}, [start]
        while pending:
            part = pending.pop()
            for p in nexts(part):
                if p not in seen and may_reach(p):
                    seen.add(p)
                    pending.append(p)
                yield p is target and part is not start

    def merge(self, a: _Part, b: _Part) -> None:
        self.log.append((self.members[a.last], len(a.ops), self.members[b.first], len(b.ops), None))
        between = self._between(a, b)
        late = self._becoming_late(a, b, between)
        a.late, others = (a.late, b.late) if len(a.late) >= len(b.late) else (b.late, a.late)
        a.late.update(others, () if isinstance(late, str) else late)
        a.outs |= b.outs
        for mask, count in b.masks.items():
            a.masks[mask] = a.masks.get(mask, 0) + count
        for value, count in b.ins.items():
            a.ins[value] = a.ins.get(value, 0) + count
        for _, _, value, uses in between:
            del a.ins[value]
            a.outs[value] = uses
            if not uses:
                del a.outs[value]
                if value.op.row.kind != "partial":
                    a.masks[self.axis_mask(value)] -= 1
        a.ops, fewer = (a.ops, b.ops) if len(a.ops) >= len(b.ops) else (b.ops, a.ops)
        a.ops += fewer
        a.cost += b.cost
        a.reduced |= b.reduced
        a.domain |= b.domain
        a.rows |= b.rows
        a.first, a.last = min(a.first, b.first), max(a.last, b.last)
        a.why = b.why if b.why == ASKED else a.why or b.why
        b.into = a

    def run(self) -> list[_Part]:
        changed = True
        while changed:
            while changed:
                changed = self._along_values() | self._siblings()
            changed = self._compute_again()
        self._join_sums()
        self._share_copies()
        self.parts = [p for p in self.parts if p.into is None and p.ops]
        for part in self.parts:
            part.ops.sort(key=self.order.__getitem__)
        return self.parts

    def _join_sums(self) -> None:
        """What adds up a segment's partial sums joins it, where it needs nothing else of that segment, and nothing of
        others: then their scheduler can do without partial sums."""
        for part in [p for p in self.parts if p.into is None and p.rows]:
            readers = {
                self.part_of(user) for v in self.partial if self.part_of(v.op) is part for user in self.users.get(v, ())
            } - {part}
            if len(readers) == 1:
                (reader,) = readers
                if reader is None:
                    continue
                if reader.why != ASKED and all(
                    self.part_of(v.op) is None or (v in self.partial and self.part_of(v.op) is part) for v in reader.ins
                ):
                    why = part.why
                    self.merge(part, reader)
                    part.why = why

    def _along_values(self) -> bool:
        changed = False
        for part in self.parts:
            if part.into is not None or not part.ops:
                continue
            again = True
            while again:
                again = False
                for value in reversed(list(part.ins)):
                    producer = self.part_of(value.op)
                    if producer is None:
                        continue
                    why = self.refusal(producer, part)
                    if why is None and not self.cycle(producer, part):
                        self.merge(producer, part)
                        part, again, changed = producer, True, True
                        break
                    self._refused(producer, part, why or CYCLE)
        return changed

    def _refused(self, a: _Part, b: _Part, why: str) -> None:
        self.log.append((self.members[a.last], len(a.ops), self.members[b.first], len(b.ops), why))
        b.why = why if why == ASKED else b.why or why

    def _siblings(self) -> bool:
        """Segments that read the same tensor over the same axes become one: the tensor is read once."""
        changed = False
        readers: dict[object, list[_Part]] = {}
        alive = [part for part in self.parts if part.into is None and part.ops]
        for part in alive:
            for value in part.ins:
                if value.rank:
                    readers.setdefault(value, []).append(part)
        for part in alive:  # reductions of what one segment makes, over the same axes, share a kernel too
            for value in part.ins if part.reduced else ():
                producer = self.part_of(value.op)
                if producer is not None:
                    readers.setdefault((producer, part.reduced), []).append(part)
        for parts in readers.values():
            heads: dict[tuple, _Part] = {}  # the last segment of each kind of reduction, the latest at the end
            tries: dict[_Part, int] = {}
            for part in parts:
                if part.into is not None:
                    continue
                for head in list(reversed(heads.values()))[:_TRIES]:
                    if head.into is not None or head is part or tries.get(head) == _TRIES:
                        continue
                    if self._merged(head, part):
                        part, changed = head, True
                        break
                    tries[head] = tries.get(head, 0) + 1
                heads.pop(part.kind, None)
                heads[part.kind] = part
        return changed

    def _merged(self, a: _Part, b: _Part) -> bool:
        """Merges two segments that read the same, if that is legal."""
        why = self.refusal(a, b)
        if why is None and (self.cycle(a, b) or self.cycle(b, a)):
            why = CYCLE
        if why is None:
            self.merge(a, b)
        else:
            self._refused(a, b, why)
        return why is None

    # ---- what is computed again rather than stored

    def _compute_again(self) -> bool:
        """Where a segment reads what few cheap ops make of things that are in memory anyway, it gets its own copy of
        those ops if that moves fewer bytes."""
        changed = False
        for part in self.parts:
            if part.into is None:
                for value in list(part.outs):
                    changed |= self._copies_for_readers(value, part)
        return changed

    def _copies_for_readers(self, value: Value, part: _Part) -> bool:
        cone = self._cheap_ops(value, part)
        if cone is None:
            return False
        inside = {op.result for op in cone}
        sources = [v for v in dict.fromkeys(v for op in cone for v in op.operands) if v not in inside]
        readers = dict.fromkeys(self.part_of(op) for op in self.users.get(value, ()))
        others = [p for p in readers if p is not None and p is not part]
        stored = _bytes(value)
        costs = {p: sum(_bytes(v) for v in sources if v not in self.unread and v not in p.ins) for p in others}
        if value in self.returned or None in readers or sum(costs.values()) >= stored * (len(others) + 1):
            others = [p for p in others if costs[p] < stored]  # it is stored in any case, for some of its readers
        for reader in others:
            first, count = self.members[reader.first], len(reader.ops)
            self._copy(cone, value, part, reader)
            self.log.append((next(reversed(self.original)), len(cone), first, count, COPIED))
        return bool(others)

    def _cheap_ops(self, value: Value, part: _Part) -> list[Op] | None:
        """The ops of ``part`` that compute ``value`` from what is in memory, in order; None if they are not few and
        cheap."""
        found: set[Op] = set()
        pending = [value.op]
        while pending:
            op = pending.pop()
            if op in found:
                continue
            if not op.row.may_be_copied or op.row.barrier or len(found) == _FEW:
                return None
            found.add(op)
            for v in op.operands:
                if self.part_of(v.op) is part and v not in part.outs:
                    pending.append(v.op)
                elif v in self.written:
                    return None
        return sorted(found, key=self.order.__getitem__)

    def _copy(self, cone: list[Op], value: Value, part: _Part, reader: _Part) -> None:
        """Gives ``reader`` its own ``value``."""
        made: dict[Value, Value] = {}
        for op in cone:
            copy = Op(
                op.name,
                [made.get(v, v) for v in op.operands],
                op.attrs,
                [Value(op.result.dtype, op.result.shape)],
                loc=op.loc,
            )
            copy.group = op.group
            made[op.result] = copy.result
            self.axes.share(copy.result, op.result)
            self.original[copy] = self.original.get(op, op)
            position = self.order[copy] = int(self.order[op]) + len(self.original) / _COPIES
            self.members[position] = copy
            self.part[copy] = reader
            reader.ops.append(copy)
            reader.first, reader.last = min(reader.first, position), max(reader.last, position)
            for v in dict.fromkeys(copy.operands):
                self.users.setdefault(v, []).append(copy)
                if self.part_of(v.op) is not reader:
                    reader.ins[v] = reader.ins.get(v, 0) + 1
                    self._uses(v, 1)
        for op in [op for op in self.users[value] if self.part_of(op) is reader]:
            self._replace(op, value, made[value])
        self._uses(value, -reader.ins.pop(value))
        self._drop_unused(value.op)

    def _replace(self, user: Op, old: Value, new: Value) -> None:
        user.operands = [new if v is old else v for v in user.operands]
        self.users[old].remove(user)
        self.users.setdefault(new, []).append(user)

    def _uses(self, value: Value, more: int) -> None:
        """``value`` has so many more uses outside of the segment that makes it."""
        part = self.part_of(value.op)
        if part is None:
            return
        part.outs[value] += more
        if not part.outs[value]:
            del part.outs[value]
            part.masks[self.axis_mask(value)] -= 1

    def _drop_unused(self, op: Op) -> None:
        """Removes ``op`` if nobody uses it any more, and what is then unused of that from which it was computed."""
        part = self.part_of(op)
        if part is None or self.users.get(op.result) or op.result in self.returned:
            return
        part.ops.remove(op)
        del self.part[op]
        for v in dict.fromkeys(op.operands):
            self.users[v].remove(op)
            if v in part.ins:
                part.ins[v] -= 1
                self._uses(v, -1)
                if not part.ins[v]:
                    del part.ins[v]
            if v.op is not None:
                self._drop_unused(v.op)

    def _share_copies(self) -> None:
        """Segments that have become one since need one copy."""
        kept: dict[tuple[_Part, Op], Op] = {}
        for copy, op in self.original.items():
            part = self.part_of(copy)
            if part is None:
                continue
            same = op if self.part_of(op) is part else kept.setdefault((part, op), copy)
            if same is not copy and same.operands == copy.operands:
                for user in list(self.users.get(copy.result, ())):
                    self._replace(user, copy.result, same.result)
                self._drop_unused(copy)

    def in_order(self) -> dict[Op, list[Op]]:
        """For ops that have been removed or copied: what stands in their place, after :meth:`run`."""
        out: dict[Op, list[Op]] = {op: [op] if op in self.part else [] for op in self.original.values()}
        for copy, op in self.original.items():
            if copy in self.part:
                out[op].append(copy)
        return out


def _bytes(value: Value) -> int:
    """How many bytes ``value`` has where all sizes are large: to compare tensors with each other."""
    size = sz.mul(value.numel, value.dtype.bytes)
    return sz.substitute(size, dict.fromkeys(sz.symbols(size), 1024))


def scheduler_of(members: list[Op], axes: Axes) -> str:
    """The kind of scheduler that takes these ops."""
    reductions = [op for op in members if is_reduction(op) and axes.reduced(op)]
    if any(op.row.kind == "partial" for op in members):
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
    """Cuts each group into as few kernels as schedulers can take. Every op starts as a segment of its own; segments
    merge along values, then between siblings that read the same tensor, as long as one scheduler can take the result
    and no cycle arises, until nothing changes. What a few cheap ops make of tensors that are in memory anyway is
    computed again in the segments that need it, where that moves fewer bytes than to store it and read it. What adds up
    a segment's partial sums joins it. Each segment names its scheduler, and ``why`` it is cut from the one before it.

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
        self._block(graph.body, {graph.args[k] for k in graph.scalars}, {graph.args[k] for k in graph.aliases.values()})
        traffic.annotate(graph)

    def _block(self, block: Block, scalars: set[Value], written: set[Value]) -> None:
        users = block.users()
        returned = set(block.returns)
        groups: dict[Group, list[Op]] = {}
        for op in block.ops:
            for nested in op.blocks:
                self._block(nested, scalars, written)
            if op.group is not None:
                groups.setdefault(op.group, []).append(op)
        axes = Axes(block.ops)  # of the whole block: a program's kernels are made with the same ones
        copies: dict[Op, list[Op]] = {}
        small: set[Op] = set()
        for group, members in groups.items():
            free = self._free(members, users, returned, scalars)
            unread = scalars.union(op.result for op in free)
            segmenter = _Segmenter([op for op in members if op not in free], axes, users, returned, unread, written)
            for k, part in enumerate(segmenter.run()):
                why = (part.why or APART) if k else part.why if part.why == ASKED else ""
                segment = Segment(group, scheduler_of(part.ops, segmenter.axes), {}, why)
                for op in part.ops:
                    op.segment = segment
            self.log += segmenter.log
            copied = self._copied(free, users)
            small.update(op for made in copied.values() for op in made)
            copies |= segmenter.in_order() | copied
        block.ops = self._beside_their_segments([copy for op in block.ops for copy in copies.get(op, [op])], small)

    @staticmethod
    def _free(members: list[Op], users, returned: set[Value], scalars: set[Value]) -> dict[Op, None]:
        """What costs nothing to make again: constants, sizes, positions, and scalars computed of those and of scalar
        arguments. They connect nothing, and no memory passes them on."""
        inside = set(members)
        out: dict[Op, None] = {}
        for op in members:
            row = table.TABLE[op.name]
            cheap = row.kind == "create" or (row.kind == "elementwise" and not op.result.shape and not op.row.barrier)
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
            readers: dict[Segment | None, list[Op]] = {}
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

    @staticmethod
    def _beside_their_segments(ops: list[Op], small: set[Op]) -> list[Op]:
        """``ops`` with those in ``small`` moved down to the first other op of their segment, so that segments stand in
        the order of what they do."""
        waiting: dict[Segment | None, list[Op]] = {}
        begun: set[Segment] = set()
        out = []
        for op in ops:
            if op in small and op.segment not in begun:
                waiting.setdefault(op.segment, []).append(op)
                continue
            if op.segment is not None and op.segment not in begun:
                begun.add(op.segment)
                out += waiting.pop(op.segment, [])
            out.append(op)
        return out
