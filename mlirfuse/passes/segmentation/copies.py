"""Recomputation of values in several segments instead of storing them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from mlirfuse.analysis.memory_order import against_memory_order
from mlirfuse.analysis.min_cut import Edge, sink_side
from mlirfuse.analysis.work import cost_of, moves
from mlirfuse.ir.graph import Op, Value
from mlirfuse.passes.segmentation.drafts import MULTIPLIES, OfPairs, SegmentDraft, SegmentDrafts
from mlirfuse.passes.segmentation.legality import LARGEST

COPIED = "recomputed there, which moves fewer bytes than storing it"
_FEW = 8  # the most ops that are recomputed rather than stored, views and copies in another memory order aside
# Instructions that take as long as the transfer of a byte: float32 instructions a second over bytes a second of memory
# are 10 on an H100 and some 5 on a core of a CPU; other instructions, addresses among them, take a share of that.
_PER_BYTE = 4
_SOURCE, _SINK = "source", "sink"
_COPIES = 1 << 20  # more than a group has: a copy's position is the original's plus a fraction


class Copies:
    """Copies of ops in segments that recompute their inputs."""

    def __init__(self, drafts: SegmentDrafts):
        self.drafts = drafts
        self.original: dict[Op, Op] = {}  # copy -> original
        self.cheaper_boundary = OfPairs(self._cheaper_boundary)

    def compute_again(self) -> bool:
        """Where a segment reads a value that few cheap ops compute from values in memory, copy those ops into it if
        that moves fewer bytes."""
        changed = False
        for draft in self.drafts.all:
            if draft.into is None:
                for value in list(draft.outs):
                    changed |= self._copies_for_readers(value, draft)
        return changed

    def move_boundaries(self, too: Callable[[SegmentDraft, SegmentDraft], bool] | None = None) -> bool:
        """Where a segment reads several values of another, and fewer bytes cross between the two if it recomputes them
        from their inputs, move the boundary: a gradient is stored rather than each product of it, and computed indices
        are not stored. ``too``: pairs besides those that read at other indices."""
        changed = False
        for draft in self.drafts.alive():
            for reader in dict.fromkeys(
                self.drafts.draft_of(op) for v in draft.outs for op in self.drafts.users.get(v, ())
            ):
                if reader is None or reader is draft or reader.into is not None or reader.ways == MULTIPLIES:
                    continue
                # The memory order has no cost in the cut.
                if not (draft.moving or reader.moving or (too is not None and too(draft, reader))):
                    continue
                found = self.cheaper_boundary(draft, reader)
                if found is not None:
                    cone, values = found
                    first, count = self.drafts.members[reader.first], len(reader.ops)
                    self.copy(cone, values, reader)
                    self.drafts.log.append((next(reversed(self.original)), len(cone), first, count, COPIED))
                    changed = True
        return changed

    def _cheaper_boundary(self, draft: SegmentDraft, reader: SegmentDraft) -> tuple[list[Op], list[Value]] | None:
        """Return the ops of ``draft`` that ``reader`` should recompute, in order, and those of its inputs that they
        compute; None if its inputs are best stored. By a minimum cut: a value on it is stored and read, an op on the
        sink's side is recomputed."""
        read = [v for v in reader.ins if v in draft.outs]
        work = self.drafts.work(reader) if reader.moving else None
        if reader.moving and work is None:
            return None
        often = max(work.counts.get(v, 0) / self.drafts.elements(v) for v in read) if work else 1
        edges: list[Edge] = []
        # Ops that more instructions than this depend on are not recomputed.
        most = sum(self._boundary_price(v, draft, reader, read) for v in read)
        price_to = {v.op: 0.0 for v in read}  # the cost of the ops from it to a read value, on the cheapest path
        # How often the reader executes an op, with no results shared between threads: once for each element.
        times = {v.op: self.drafts.elements(v) * often for v in read}
        worklist = [-self.drafts.order[op] for op in price_to]
        heapq.heapify(worklist)
        seen: set[Op] = set()
        while worklist:  # in reverse order, so that all users of an op have been visited
            op = self.drafts.members[-heapq.heappop(worklist)]
            if op in seen:
                continue
            seen.add(op)
            price = cost_of(op) * times[op]
            may = op.row.recomputable and not op.row.barrier
            may &= price_to[op] + price < most
            edges.append((_SOURCE, op, price if may else math.inf))
            edges.append((op, op.result, self._boundary_price(op.result, draft, reader, read)))
            for v in op.operands if may else ():
                edges.append((v, op, math.inf))
                if self.drafts.draft_of(v.op) is draft:
                    price_to[v.op] = min(price_to[op] + price, price_to.get(v.op, math.inf))
                    times[v.op] = max(times[op], times.get(v.op, 0))
                    heapq.heappush(worklist, -self.drafts.order[v.op])
                else:
                    given = math.inf if v in self.drafts.written else self._boundary_price(v, draft, reader, read)
                    edges.append((_SOURCE, v, given))
        edges += [(v, _SINK, math.inf) for v in read]
        sink = sink_side(edges, _SOURCE, _SINK)
        if sink is None:
            return None
        cone = sorted((op for op in seen if op in sink), key=self.drafts.order.__getitem__)
        values = [v for v in read if v.op in sink]
        sources = [v for v in dict.fromkeys(v for op in cone for v in op.operands) if v.op not in sink]
        if not cone or reader.cost + sum(op.row.cost for op in cone) > LARGEST:
            return None
        if any(self._strided(v, sources, reader) for v in values) or not self._stays_one(
            draft, reader, values, sources
        ):
            return None
        return cone, values

    def _stays_one(self, draft: SegmentDraft, reader: SegmentDraft, values: list[Value], sources: list[Value]) -> bool:
        """Whether one loop nest computes the outputs of ``draft`` once ``reader`` reads ``sources`` instead of
        ``values``."""
        if draft.reduced or draft.rows:
            return True
        left = [v for v in draft.outs if v not in values or draft.outs[v] > reader.ins[v]]
        masks = [self.drafts.axis_mask(v) for v in (*left, *sources) if self.drafts.draft_of(v.op) is draft]
        widest = max(masks, key=int.bit_count, default=0)
        return not any(mask & ~widest for mask in masks)

    def _boundary_price(self, value: Value, draft: SegmentDraft, reader: SegmentDraft, read: list[Value]) -> float:
        """Return the cost, in instructions, of writing ``value``, unless others need it anyway, and of reading it;
        infinite where ``draft`` cannot output it."""
        if value in self.drafts.unread:
            return 0
        mine = self.drafts.draft_of(value.op) is draft
        if mine and self._is_permuted_copy(value) and value not in self.drafts.returned:
            return math.inf  # the copy is stored, in the order that its elements are computed in
        if mine and value not in draft.outs:
            widest = draft.domain if draft.reduced or draft.rows else max(draft.masks, key=int.bit_count)
            if self.drafts.axis_mask(value) & ~widest:
                return math.inf
        users = (self.drafts.draft_of(op) for op in self.drafts.users.get(value, ()))
        others = value in self.drafts.returned or any(p is not draft and p is not reader for p in users)
        times = (mine and not others) + (value in read or value not in reader.ins)
        return times * self._bytes(value) * _PER_BYTE

    def keep_order(self) -> None:
        """Where the permuted view of a copy would be stored for other segments, store the copy instead, in its own
        memory order, and give those segments the view."""
        for draft in self.drafts.alive():
            for value in list(draft.outs):
                if value.op.name != "permute" or value in self.drafts.returned:
                    continue
                source = value.op.operands[0]
                readers = dict.fromkeys(self.drafts.draft_of(op) for op in self.drafts.users[value])
                if not self._is_permuted_copy(value) or None in readers:
                    continue
                if self.drafts.draft_of(source.op) is draft and source not in draft.outs:
                    draft.outs[source] = 0
                    draft.masks[self.drafts.axis_mask(source)] = draft.masks.get(self.drafts.axis_mask(source), 0) + 1
                    draft.changed()
                for reader in filter(None, readers):
                    if reader is not draft:
                        self.copy([value.op], [value], reader)

    @staticmethod
    def _is_permuted_copy(value: Value) -> bool:
        source = value.op.operands[0].op if value.op.name == "permute" else None
        return source is not None and source.name == "copy"

    def _copies_for_readers(self, value: Value, draft: SegmentDraft) -> bool:
        cone = self._cheap_ops(value, draft)
        if cone is None or self._holds_together(value, draft):
            return False
        inside = {op.result for op in cone}
        sources = [v for v in dict.fromkeys(v for op in cone for v in op.operands) if v not in inside]
        readers = dict.fromkeys(self.drafts.draft_of(op) for op in self.drafts.users.get(value, ()))
        others = [p for p in readers if p is not None and p is not draft]
        if not all(op.row.view == "all" for op in cone):  # a product's kernel reads its operands from memory
            others = [p for p in others if value not in self.drafts.operands_of_products(p)]
        stored = self._bytes(value)
        costs = {
            p: sum(self._bytes(v) for v in sources if v not in self.drafts.unread and v not in p.ins) for p in others
        }
        if value in self.drafts.returned or None in readers or sum(costs.values()) >= stored * (len(others) + 1):
            others = [p for p in others if costs[p] < stored]  # it is stored anyway, for some of its readers
        others = [p for p in others if not self._too_often(cone, value, p) and not self._strided(value, sources, p)]
        for reader in others:
            first, count = self.drafts.members[reader.first], len(reader.ops)
            self.copy(cone, [value], reader)
            self.drafts.log.append((next(reversed(self.original)), len(cone), first, count, COPIED))
        return bool(others)

    def _cheap_ops(self, value: Value, draft: SegmentDraft) -> list[Op] | None:
        """Return the ops of ``draft`` that compute ``value`` from values in memory, in order; None if they are too many
        or too expensive."""
        found: set[Op] = set()
        worklist, computing = [value.op], 0
        while worklist:
            op = worklist.pop()
            if op in found:
                continue
            if not op.row.may_be_copied or op.row.barrier or computing == _FEW:
                return None
            found.add(op)
            computing += not (op.row.view or op.name == "copy")
            for v in op.operands:
                if self.drafts.draft_of(v.op) is draft and v not in draft.outs:
                    worklist.append(v.op)
                elif v in self.drafts.written:
                    return None
        return sorted(found, key=self.drafts.order.__getitem__)

    def _too_often(self, cone: list[Op], value: Value, reader: SegmentDraft) -> bool:
        """Whether ``reader`` reads ``value`` at so many indices that it is better stored."""
        if not reader.moving:
            return False
        both = self.drafts.work_with(reader, cone)
        if both is None or both.code > LARGEST:
            return True
        more = sum(cost_of(op) * both.counts.get(op, 0) for op in cone)
        return more > (self.drafts.repeated + sum(map(cost_of, cone))) * self.drafts.elements(value)

    def _strided(self, value: Value, sources: list[Value], reader: SegmentDraft) -> bool:
        """Whether ``reader`` would access memory with strides, which it does not with ``value`` stored."""
        along = self.drafts.axes.flat(value)
        others = [v for v in reader.ins if v is not value and v not in self.drafts.unread]
        given = self.drafts.axes, self.drafts.layouts, self._bytes
        return bool(along) and against_memory_order(along[-1], sources, others, *given)

    def _holds_together(self, value: Value, draft: SegmentDraft) -> bool:
        """Whether ``draft``'s other results share one domain only because ``value``'s axes contain all of theirs."""
        if draft.reduced or draft.rows:
            return False
        mine = self.drafts.axis_mask(value)
        others = [mask for mask, count in draft.masks.items() if count > (mask == mine)]
        widest = max(others, key=int.bit_count, default=0)
        return any(mask & ~widest for mask in others)

    def copy(self, cone: list[Op], values: list[Value], reader: SegmentDraft) -> None:
        """Copy ``cone``, which computes ``values``, into ``reader``."""
        created: dict[Value, Value] = {}
        for op in cone:
            copy = Op(
                op.name,
                [created.get(v, v) for v in op.operands],
                op.attrs,
                [Value(op.result.dtype, op.result.shape)],
                loc=op.loc,
            )
            copy.group = op.group
            created[op.result] = copy.result
            self.drafts.axes.share(copy.result, op.result)
            self.original[copy] = self.original.get(op, op)
            position = self.drafts.order[copy] = int(self.drafts.order[op]) + len(self.original) / _COPIES
            self.drafts.members[position] = copy
            self.drafts.draft[copy] = reader
            reader.ops.append(copy)
            reader.first, reader.last = min(reader.first, position), max(reader.last, position)
            reader.moving += moves(copy)
            reader.changed()
            for v in dict.fromkeys(copy.operands):
                self.drafts.users.setdefault(v, []).append(copy)
                if self.drafts.draft_of(v.op) is not reader:
                    reader.ins[v] = reader.ins.get(v, 0) + 1
                    self._uses(v, 1)
        for value in values:
            for op in [op for op in self.drafts.users[value] if self.drafts.draft_of(op) is reader]:
                self._replace(op, value, created[value])
            self._uses(value, -reader.ins.pop(value))
        for value in values:
            self._drop_unused(value.op)

    def _replace(self, user: Op, old: Value, new: Value) -> None:
        user.operands = [new if v is old else v for v in user.operands]
        self.drafts.users[old].remove(user)
        self.drafts.users.setdefault(new, []).append(user)

    def _uses(self, value: Value, more: int) -> None:
        """Add ``more`` to the number of uses of ``value`` outside of the segment that computes it."""
        draft = self.drafts.draft_of(value.op)
        if draft is None:
            return
        mask = self.drafts.axis_mask(value)
        if value not in draft.outs:
            draft.masks[mask] = draft.masks.get(mask, 0) + 1
        draft.outs[value] = draft.outs.get(value, 0) + more
        if not draft.outs[value]:
            del draft.outs[value]
            draft.masks[mask] -= 1
        draft.changed()

    def _drop_unused(self, op: Op) -> None:
        """Remove ``op`` if it has no users, and the operands' producers that are then unused."""
        draft = self.drafts.draft_of(op)
        if draft is None or self.drafts.users.get(op.result) or op.result in self.drafts.returned:
            return
        draft.ops.remove(op)
        draft.moving -= moves(op)
        draft.changed()
        del self.drafts.draft[op]
        for v in dict.fromkeys(op.operands):
            self.drafts.users[v].remove(op)
            if v in draft.ins:
                draft.ins[v] -= 1
                self._uses(v, -1)
                if not draft.ins[v]:
                    del draft.ins[v]
            if v.op is not None:
                self._drop_unused(v.op)

    def _bytes(self, value: Value) -> int:
        """Return the bytes of ``value`` for large sizes."""
        return self.drafts.elements(value) * value.dtype.bytes

    def share(self) -> None:
        """Merge copies in segments that have been merged since."""
        kept: dict[tuple[SegmentDraft, Op], Op] = {}
        for copy, op in self.original.items():
            draft = self.drafts.draft_of(copy)
            if draft is None:
                continue
            same = op if self.drafts.draft_of(op) is draft else kept.setdefault((draft, op), copy)
            if same is not copy and same.operands == copy.operands:
                for user in list(self.drafts.users.get(copy.result, ())):
                    self._replace(user, copy.result, same.result)
                self._drop_unused(copy)

    def in_order(self) -> dict[Op, list[Op]]:
        """Return the replacements of ops that were removed or copied, after :meth:`run`."""
        out: dict[Op, list[Op]] = {op: [op] if op in self.drafts.draft else [] for op in self.original.values()}
        for copy, op in self.original.items():
            if copy in self.drafts.draft:
                out[op].append(copy)
        return out
