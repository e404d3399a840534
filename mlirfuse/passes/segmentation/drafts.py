"""Segments under construction: their inputs, outputs and merges."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mlirfuse.analysis.axes import Axes, Axis
from mlirfuse.analysis.phases import following, is_product, is_reduction, is_scan, is_scatter_add
from mlirfuse.analysis.work import Work, cost_of, moves, work_of
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Layout, Op, Value

ASKED = "segment_set"  # the op by which a user requests a cut, and the cut's reason

# What a kernel does along its rows besides elementwise work: one of these.
REDUCES, SCANS, SCANS_BACK, ACCUMULATES, MULTIPLIES = 1, 2, 4, 8, 16

# An op of each of two segments, how many ops they had, and why they were not merged (None: they were), or that ops of
# the first were copied into the second.
Decision = tuple[Op, int, Op, int, str | None]


@dataclass(eq=False)
class SegmentDraft:
    """A segment under construction. Axis sets are bit masks over the group's axes."""

    ops: list[Op]  # unordered until merging is done
    first: float  # the smallest and the largest position of its ops in the group
    last: float
    rank: int  # smaller than that of every draft that reads its values
    reduced: int = 0  # axes reduced or scanned, 0 if there is no reduction and no scan
    ways: int = 0  # how these are processed: a mask of REDUCES, SCANS, …
    domain: int = 0  # axes of the reductions' operands or the scans' results
    rows: int = 0  # axes that partial sums reduce
    why: str = ""
    ins: dict[Value, int] = field(default_factory=dict)  # how many of its ops read it
    # values used outside of it: the number of users, and of the block's returns
    outs: dict[Value, int] = field(default_factory=dict)
    masks: dict[int, int] = field(default_factory=dict)  # how many of ``outs``, partial sums aside, have these axes
    late: set[Value] = field(default_factory=set)  # values that depend on one of its reductions
    cost: int = 0  # of its ops
    moving: int = 0  # how many of its ops read their operands at other indices
    version: int = 0  # the number of changes of its ops, inputs and outputs
    work: Work | None = None  # of this version, once it was asked for
    into: SegmentDraft | None = None  # the draft that it was merged into

    @property
    def kind(self) -> tuple[int, int, int, int]:
        """The key that has to be equal for segments with reductions or scans to merge."""
        return self.reduced, self.ways, self.domain, self.rows

    def changed(self) -> None:
        """Has to be called when ops, inputs or outputs have changed."""
        self.version, self.work = self.version + 1, None


T = TypeVar("T")


class OfPairs(Generic[T]):
    """Results of ``function`` for pairs of drafts, each computed once until one of the two changes. Merging to a fixed
    point asks for the same pairs again and again."""

    def __init__(self, function: Callable[[SegmentDraft, SegmentDraft], T]):
        self.function = function
        self.found: dict[tuple[SegmentDraft, SegmentDraft], tuple[tuple[int, int], T]] = {}

    def __call__(self, a: SegmentDraft, b: SegmentDraft) -> T:
        state, known = (a.version, b.version), self.found.get((a, b))
        if known is None or known[0] != state:
            known = self.found[a, b] = state, self.function(a, b)
        return known[1]


class SegmentDrafts:
    """The segments of a group's ``members`` so far, one for each op at the start. The cost of a merge depends on the
    smaller side and the boundary, not on earlier merges: a draft keeps counts of its uses, and only values that newly
    depend on a reduction are visited."""

    def __init__(
        self,
        members: list[Op],
        axes: Axes,
        users: dict[Value, list[Op]],
        returned: set[Value],
        unread: set[Value],
        written: set[Value],
        layouts: Mapping[Value, Layout],
        repeated: int,
        priced: bool = False,
        hints: Mapping[str, int] | None = None,
    ):
        """``unread``: values that are not read from memory; ``written``: arguments that the program overwrites;
        ``layouts``: of arguments, where known; ``repeated``: the most instructions of recomputation for each element of
        a value, before it is stored; ``priced``: predicted times decide that instead; ``hints``: values of symbols, for
        predictions."""
        self.axes = axes
        self.bits: dict[Axis, int] = {}
        self.mask: dict[Value, int] = {}
        self.dims: dict[Value, list] = {}
        self.users, self.returned, self.unread, self.written = users, returned, unread, written
        self.layouts, self.repeated, self.priced, self.hints = layouts, repeated, priced, hints
        self.counts: dict[Value, int] = {}
        self.members: dict[float, Op] = dict(enumerate(members))
        self.order: dict[Op, float] = {op: k for k, op in enumerate(members)}
        self.asked = [v for op in members if op.row.barrier for v in op.results]
        self.partial = [v for op in members if op.row.kind == "partial" for v in op.results]
        self.log: list[Decision] = []
        self._last_pair: tuple[tuple, Work | None] = (), None
        self.all = [self._single(op, position) for position, op in enumerate(members)]
        self.draft = dict(zip(members, self.all))

    def elements(self, value: Value) -> int:
        """Return the number of elements of ``value`` in a typical call: to compare tensors with each other."""
        found = self.counts.get(value)
        if found is None:
            found = self.counts[value] = max(1, sz.supposed(value.numel, self.hints))
        return found

    def work(self, draft: SegmentDraft) -> Work | None:
        """Return the work of ``draft`` as a kernel."""
        if draft.work is None:
            draft.work = self._work(draft.ops, draft.outs)
        return draft.work

    def outs_of_both(self, a: SegmentDraft, b: SegmentDraft) -> list[Value]:
        """Return what ``a`` and ``b`` store as one kernel."""
        inside = {value for _, _, value, uses in self.between(a, b) if not uses}
        return [v for v in (*a.outs, *b.outs) if v not in inside]

    def work_of_both(self, a: SegmentDraft, b: SegmentDraft) -> Work | None:
        """Return the work of ``a`` and ``b`` as one kernel. Only the last is kept, which is large: whether a merge is
        legal and whether it is faster is asked in turn."""
        pair = a, a.version, b, b.version
        if self._last_pair[0] != pair:
            self._last_pair = pair, self._work([*a.ops, *b.ops], self.outs_of_both(a, b))
        return self._last_pair[1]

    def work_with(self, draft: SegmentDraft, ops: list[Op]) -> Work | None:
        """Return the work of ``draft`` as a kernel that also has ``ops``."""
        return self._work([*draft.ops, *ops], draft.outs)

    def _work(self, ops: list[Op], outs: Iterable[Value]) -> Work | None:
        return work_of(sorted(ops, key=self.order.__getitem__, reverse=True), outs, self.elements, limited=True)

    def repeated_of(self, draft: SegmentDraft, inside: Work) -> int:
        """Return how many instructions, over all elements, a kernel with this work spends on repeating what ``draft``
        computes, beyond what ``draft`` itself does."""
        own = self.work(draft)
        more = 0
        for what, count in (own.counts if own else {}).items():
            again = inside.counts.get(what, 0)
            if again > count:
                once = self.elements(what if isinstance(what, Value) else what.results[0])
                more += cost_of(what) * (again - once)
        return more

    def axis_mask(self, value: Value) -> int:
        found = self.mask.get(value)
        if found is None:
            found = 0
            for axis in self.axes.flat(value):
                found |= self.bits.setdefault(axis, 1 << len(self.bits))
            self.mask[value] = found
        return found

    def axes_of(self, value: Value) -> list:
        """Return the axes of each dimension."""
        found = self.dims.get(value)
        if found is None:
            found = self.dims[value] = self.axes.dims(value)
        return found

    def _single(self, op: Op, position: int) -> SegmentDraft:
        draft = SegmentDraft([op], position, position, position, cost=op.row.cost, moving=int(moves(op)))
        if is_reduction(op):
            for axis in self.axes.reduced(op):
                draft.reduced |= self.bits.setdefault(axis, 1 << len(self.bits))
            if draft.reduced:
                draft.domain, draft.ways = self.axis_mask(op.operands[0]), REDUCES
                draft.late.update(op.results)
        if is_scan(op) and self.axes.scanned(op):
            for axis in self.axes.scanned(op):
                draft.reduced |= self.bits.setdefault(axis, 1 << len(self.bits))
            draft.domain, draft.ways = self.axis_mask(op.result), SCANS_BACK if op.attrs["reverse"] else SCANS
            draft.late.update(op.results)
        if is_scatter_add(op):
            draft.domain, draft.ways = self.axis_mask(op.operands[2]), ACCUMULATES
        if is_product(op):
            draft.domain, draft.ways = self.axis_mask(op.result), MULTIPLIES
            draft.late.update(op.results)
        if op.row.kind == "partial":
            draft.domain = self.axis_mask(op.operands[0])
            for d in op.attrs["axes"]:
                for axis in self.axes_of(op.operands[0])[d]:
                    draft.rows |= self.bits.setdefault(axis, 1 << len(self.bits))
        draft.ins = dict.fromkeys(op.operands, 1)
        for value in op.results:
            uses = len(self.users.get(value, ())) + (value in self.returned)
            if uses:
                draft.outs[value] = uses
                if op.row.kind != "partial":
                    draft.masks[self.axis_mask(value)] = draft.masks.get(self.axis_mask(value), 0) + 1
        return draft

    def draft_of(self, op: Op | None) -> SegmentDraft | None:
        if op is None:
            return None
        draft = self.draft.get(op)
        if draft is None or draft.into is None:
            return draft
        root = draft.into
        while root.into is not None:
            root = root.into
        while draft is not root:
            draft.into, draft = root, draft.into
        self.draft[op] = root
        return root

    def alive(self) -> list[SegmentDraft]:
        """Return the drafts that have not been merged into another."""
        return [draft for draft in self.all if draft.into is None and draft.ops]

    @staticmethod
    def between(a: SegmentDraft, b: SegmentDraft) -> list[tuple[SegmentDraft, SegmentDraft, Value, int]]:
        """Return the values that one of the two computes and the other reads, and how many uses are left once they are
        merged."""
        found = []
        for maker, reader in ((a, b), (b, a)):
            few, many = (maker.outs, reader.ins) if len(maker.outs) <= len(reader.ins) else (reader.ins, maker.outs)
            found += [(maker, reader, v, maker.outs[v] - reader.ins[v]) for v in few if v in many]
        return found

    def passes(self, value: Value, a: SegmentDraft, b: SegmentDraft) -> bool:
        """Whether ``value`` goes from one of the two to the other. For a cut requested by a user, :meth:`cycle` ensures
        that nothing else crosses."""
        maker = self.draft_of(value.op)
        return (maker is a and value in b.ins) or (maker is b and value in a.ins)

    def becoming_late(self, a: SegmentDraft, b: SegmentDraft, between) -> set[Value] | str:
        """Return the values that newly depend on a reduction once ``a`` and ``b`` are merged; or why they cannot be
        merged: such values have to stay inside the reduction's domain, at the same index. Values that were late before
        have been checked."""
        domain = a.domain | b.domain
        created: set[Value] = set()
        worklist = [
            self.order[op] for maker, reader, v, _ in between if v in maker.late for op in self._readers(v, (reader,))
        ]
        heapq.heapify(worklist)
        previous = None
        while worklist:  # in program order, so that an op's operands have been decided
            op = self.members[heapq.heappop(worklist)]
            if op is previous or op.row.kind == "partial":
                continue
            previous = op
            if not (is_reduction(op) and self.axes.reduced(op)):
                if any(self.axis_mask(v) & ~domain for v in op.results):
                    return "uses a reduction's result over other axes"
                if not self._same_index(op, [v for v in op.operands if v in a.late or v in b.late or v in created]):
                    return f"{op.name} moves a reduction's result to another index"
            for value in op.results:
                if value not in a.late and value not in b.late:
                    created.add(value)
                    for reader in self._readers(value, (a, b)):
                        heapq.heappush(worklist, self.order[reader])
        return created

    def _readers(self, value: Value, drafts) -> list[Op]:
        """Return the ops of ``drafts`` that read ``value``."""
        users = self.users.get(value, ())
        if len(users) > sum(len(p.ops) for p in drafts):
            return [op for p in drafts for op in p.ops if value in op.operands]
        return [op for op in users if self.draft_of(op) in drafts]

    @staticmethod
    def operands_of_products(draft: SegmentDraft) -> set[Value]:
        """Return the operands of the draft's matrix products, and what they are views of."""
        found = {value for op in draft.ops if is_product(op) for value in op.operands}
        views = {op.result: op.operands[0] for op in draft.ops if op.row.view == "all"}
        worklist = list(found)
        while worklist:
            base = views.get(worklist.pop())
            if base is not None and base not in found:
                found.add(base)
                worklist.append(base)
        return found

    def reduces_scans(self, a: SegmentDraft, b: SegmentDraft) -> bool:
        """Whether a reduction of the two depends on one of their scans."""
        ops = sorted([*a.ops, *b.ops], key=self.order.__getitem__)
        scans = [op for op in ops if is_scan(op) and self.axes.scanned(op)]
        return any(is_reduction(op) and self.axes.reduced(op) for op in following(ops, scans))

    def _same_index(self, op: Op, late: list[Value]) -> bool:
        """Whether ``op`` reads each of its operands ``late`` at the index of its result."""
        kind = op.row.kind
        if kind in ("elementwise", "scan"):
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

    def readers(self, draft: SegmentDraft) -> Iterator[SegmentDraft | None]:
        """Yield the drafts that read values of ``draft``, itself and None, for ops outside of drafts, among them."""
        return (self.draft_of(op) for v in draft.outs for op in self.users.get(v, ()))

    def producers(self, draft: SegmentDraft) -> Iterator[SegmentDraft | None]:
        """Yield the drafts that compute the inputs of ``draft``, and None for values from elsewhere."""
        return (self.draft_of(v.op) for v in draft.ins)

    def _rank_as_one(self, a: SegmentDraft, b: SegmentDraft) -> None:
        """Give ``a`` a rank for both: what ``b``, if it is the later, needs comes before, what needs ``a`` behind. Only
        drafts ranked between the two change (Pearce and Kelly's dynamic topological order). Of the two ranks the later
        one stays, so that there is nothing between ``a`` and a neighbour behind it."""
        early, late = (a, b) if a.rank < b.rank else (b, a)
        if late.rank == early.rank + 1:
            a.rank = late.rank
            return
        before = _reached(late, self.producers, lambda p: p.rank > early.rank)
        behind = _reached(early, self.readers, lambda p: p.rank < late.rank)
        ranks = sorted(p.rank for p in (*before, *behind, early, late))
        del ranks[len(before)]
        order = [*sorted(before, key=lambda p: p.rank), a, *sorted(behind, key=lambda p: p.rank)]
        for draft, rank in zip(order, ranks, strict=True):
            draft.rank = rank

    def divide(self, draft: SegmentDraft, ops: list[Op]) -> SegmentDraft:
        """Move ``ops`` of a finished segment, which no others of it depend on, to a new one."""
        moved = set(ops)
        new = SegmentDraft(ops, min(self.order[op] for op in ops), max(self.order[op] for op in ops), draft.rank)
        draft.ops = [op for op in draft.ops if op not in moved]
        self.draft |= dict.fromkeys(draft.ops, draft) | dict.fromkeys(ops, new)
        for part in (draft, new):
            members = set(part.ops)
            part.ins, part.outs, part.masks = {}, {}, {}
            part.changed()
            part.moving, part.cost = sum(map(moves, part.ops)), sum(op.row.cost for op in part.ops)
            for op in part.ops:
                for v in dict.fromkeys(op.operands):
                    if v.op not in members:
                        part.ins[v] = part.ins.get(v, 0) + 1
                for v in op.results:
                    uses = sum(user not in members for user in self.users.get(v, ())) + (v in self.returned)
                    if uses:
                        part.outs[v] = uses
                        part.masks[self.axis_mask(v)] = part.masks.get(self.axis_mask(v), 0) + 1
        return new

    def merge(self, a: SegmentDraft, b: SegmentDraft) -> None:
        self._rank_as_one(a, b)
        self.log.append((self.members[a.last], len(a.ops), self.members[b.first], len(b.ops), None))
        between = self.between(a, b)
        late = self.becoming_late(a, b, between)
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
        a.moving += b.moving
        a.changed()
        a.reduced |= b.reduced
        a.ways |= b.ways
        a.domain |= b.domain
        a.rows |= b.rows
        a.first, a.last = min(a.first, b.first), max(a.last, b.last)
        a.why = b.why if b.why == ASKED else a.why or b.why
        b.into = a


def _reached(
    start: SegmentDraft,
    nexts: Callable[[SegmentDraft], Iterable[SegmentDraft | None]],
    among: Callable[[SegmentDraft], bool],
) -> set[SegmentDraft]:
    """Return the drafts ``among`` those reached from ``start`` by ``nexts``, without ``start``."""
    found: set[SegmentDraft] = set()
    worklist = [start]
    while worklist:
        new = {p for p in nexts(worklist.pop()) if p is not None and p is not start and p not in found and among(p)}
        found |= new
        worklist += new
    return found
