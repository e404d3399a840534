"""What is computed again rather than stored."""

from __future__ import annotations

from mlirfuse.analysis.memory_order import turned
from mlirfuse.ir.graph import Op, Value
from mlirfuse.passes.segmentation.legality import LARGEST
from mlirfuse.passes.segmentation.parts import Part, Parts
from mlirfuse.passes.segmentation.work import cost_of, moves

COPIED = "computed again there, which moves fewer bytes than storing it"
_FEW = 8  # ops that are computed again rather than stored
_COPIES = 1 << 20  # more than a group has: a copy's position is the original's and a fraction


class Copies:
    """Copies of ops that segments got, to compute what they would else read."""

    def __init__(self, parts: Parts):
        self.parts = parts
        self.original: dict[Op, Op] = {}  # of a copy

    def compute_again(self) -> bool:
        """Where a segment reads what few cheap ops make of things that are in memory anyway, it gets its own copy of
        those ops if that moves fewer bytes."""
        changed = False
        for part in self.parts.all:
            if part.into is None:
                for value in list(part.outs):
                    changed |= self._copies_for_readers(value, part)
        return changed

    def keep_order(self) -> None:
        """Where the permuted view of a copy would be stored for other segments, the copy is, in the order of memory for
        which it was made, and those segments have the view."""
        for part in self.parts.alive():
            for value in list(part.outs):
                if value.op.name != "permute" or value in self.parts.returned:
                    continue
                source = value.op.operands[0]
                readers = dict.fromkeys(self.parts.part_of(op) for op in self.parts.users[value])
                if source.op is None or source.op.name != "copy" or {None, part} & readers.keys():
                    continue
                if self.parts.part_of(source.op) is part and source not in part.outs:
                    part.outs[source] = 0
                    part.masks[self.parts.axis_mask(source)] = part.masks.get(self.parts.axis_mask(source), 0) + 1
                for reader in filter(None, readers):
                    self._copy([value.op], value, part, reader)

    def _copies_for_readers(self, value: Value, part: Part) -> bool:
        cone = self._cheap_ops(value, part)
        if cone is None or self._holds_together(value, part):
            return False
        inside = {op.result for op in cone}
        sources = [v for v in dict.fromkeys(v for op in cone for v in op.operands) if v not in inside]
        readers = dict.fromkeys(self.parts.part_of(op) for op in self.parts.users.get(value, ()))
        others = [p for p in readers if p is not None and p is not part]
        stored = self._bytes(value)
        costs = {
            p: sum(self._bytes(v) for v in sources if v not in self.parts.unread and v not in p.ins) for p in others
        }
        if value in self.parts.returned or None in readers or sum(costs.values()) >= stored * (len(others) + 1):
            others = [p for p in others if costs[p] < stored]  # it is stored in any case, for some of its readers
        others = [p for p in others if not self._too_often(cone, value, p) and not self._turned(value, sources, p)]
        for reader in others:
            first, count = self.parts.members[reader.first], len(reader.ops)
            self._copy(cone, value, part, reader)
            self.parts.log.append((next(reversed(self.original)), len(cone), first, count, COPIED))
        return bool(others)

    def _cheap_ops(self, value: Value, part: Part) -> list[Op] | None:
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
                if self.parts.part_of(v.op) is part and v not in part.outs:
                    pending.append(v.op)
                elif v in self.parts.written:
                    return None
        return sorted(found, key=self.parts.order.__getitem__)

    def _too_often(self, cone: list[Op], value: Value, reader: Part) -> bool:
        """Whether ``reader`` reads ``value`` at so many positions that it is better stored."""
        if not reader.moving:
            return False
        both = self.parts.work_with(reader, cone)
        if both is None or both.code > LARGEST:
            return True
        more = sum(cost_of(op) * both.counts.get(op, 0) for op in cone)
        return more > (self.parts.repeated + sum(map(cost_of, cone))) * self.parts.elements(value)

    def _turned(self, value: Value, sources: list[Value], reader: Part) -> bool:
        """Whether ``reader`` would go over memory in strides, which it does not with ``value`` stored."""
        along = self.parts.axes.flat(value)
        others = [v for v in reader.ins if v is not value and v not in self.parts.unread]
        given = self.parts.axes, self.parts.layouts, self._bytes
        return bool(along) and turned(along[-1], sources, others, *given)

    def _holds_together(self, value: Value, part: Part) -> bool:
        """Whether ``part``'s other results run over axes of one domain only as ``value``'s has them all."""
        if part.reduced or part.rows:
            return False
        mine = self.parts.axis_mask(value)
        others = [mask for mask, count in part.masks.items() if count > (mask == mine)]
        widest = max(others, key=int.bit_count, default=0)
        return any(mask & ~widest for mask in others)

    def _copy(self, cone: list[Op], value: Value, part: Part, reader: Part) -> None:
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
            self.parts.axes.share(copy.result, op.result)
            self.original[copy] = self.original.get(op, op)
            position = self.parts.order[copy] = int(self.parts.order[op]) + len(self.original) / _COPIES
            self.parts.members[position] = copy
            self.parts.part[copy] = reader
            reader.ops.append(copy)
            reader.first, reader.last = min(reader.first, position), max(reader.last, position)
            reader.moving, reader.work = reader.moving + moves(copy), None
            for v in dict.fromkeys(copy.operands):
                self.parts.users.setdefault(v, []).append(copy)
                if self.parts.part_of(v.op) is not reader:
                    reader.ins[v] = reader.ins.get(v, 0) + 1
                    self._uses(v, 1)
        for op in [op for op in self.parts.users[value] if self.parts.part_of(op) is reader]:
            self._replace(op, value, made[value])
        self._uses(value, -reader.ins.pop(value))
        self._drop_unused(value.op)

    def _replace(self, user: Op, old: Value, new: Value) -> None:
        user.operands = [new if v is old else v for v in user.operands]
        self.parts.users[old].remove(user)
        self.parts.users.setdefault(new, []).append(user)

    def _uses(self, value: Value, more: int) -> None:
        """``value`` has so many more uses outside of the segment that makes it."""
        part = self.parts.part_of(value.op)
        if part is None:
            return
        part.outs[value] += more
        if not part.outs[value]:
            del part.outs[value]
            part.masks[self.parts.axis_mask(value)] -= 1

    def _drop_unused(self, op: Op) -> None:
        """Removes ``op`` if nobody uses it any more, and what is then unused of that from which it was computed."""
        part = self.parts.part_of(op)
        if part is None or self.parts.users.get(op.result) or op.result in self.parts.returned:
            return
        part.ops.remove(op)
        part.moving, part.work = part.moving - moves(op), None
        del self.parts.part[op]
        for v in dict.fromkeys(op.operands):
            self.parts.users[v].remove(op)
            if v in part.ins:
                part.ins[v] -= 1
                self._uses(v, -1)
                if not part.ins[v]:
                    del part.ins[v]
            if v.op is not None:
                self._drop_unused(v.op)

    def _bytes(self, value: Value) -> int:
        """How many bytes ``value`` has where all sizes are large."""
        return self.parts.elements(value) * value.dtype.bytes

    def share(self) -> None:
        """Segments that have become one since need one copy."""
        kept: dict[tuple[Part, Op], Op] = {}
        for copy, op in self.original.items():
            part = self.parts.part_of(copy)
            if part is None:
                continue
            same = op if self.parts.part_of(op) is part else kept.setdefault((part, op), copy)
            if same is not copy and same.operands == copy.operands:
                for user in list(self.parts.users.get(copy.result, ())):
                    self._replace(user, copy.result, same.result)
                self._drop_unused(copy)

    def in_order(self) -> dict[Op, list[Op]]:
        """For ops that have been removed or copied: what stands in their place, after :meth:`run`."""
        out: dict[Op, list[Op]] = {op: [op] if op in self.parts.part else [] for op in self.original.values()}
        for copy, op in self.original.items():
            if copy in self.parts.part:
                out[op].append(copy)
        return out
