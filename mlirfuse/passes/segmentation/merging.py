"""Merging the segments of a group until nothing changes."""

from __future__ import annotations

from mlirfuse.passes.segmentation.copies import Copies
from mlirfuse.passes.segmentation.drafts import ASKED, Part, Parts
from mlirfuse.passes.segmentation.legality import CYCLE, cycle, refusal

# how often a segment is tried with others that read the same tensor, so that the number of readers does not count
_TRIES = 8


class Segmenter:
    """Merges ``parts`` along values, then between siblings; what is cheap is computed again."""

    def __init__(self, parts: Parts):
        self.parts = parts
        self.copies = Copies(parts)

    def run(self) -> list[Part]:
        """The segments, each with its ops in order."""
        changed = True
        while changed:
            while changed:
                changed = self._along_values() | self._siblings()
            changed = self.copies.compute_again() or self.copies.move_boundaries()
        self.copies.keep_order()
        self._join_sums()
        self.copies.share()
        self.parts.all = self.parts.alive()
        for part in self.parts.all:
            part.ops.sort(key=self.parts.order.__getitem__)
        return self.parts.all

    def _join_sums(self) -> None:
        """What adds up a segment's partial sums joins it, where it needs nothing else of that segment, and nothing of
        others: then their scheduler can do without partial sums."""
        part_of, users = self.parts.part_of, self.parts.users
        for part in [p for p in self.parts.alive() if p.rows]:
            sums = {v for v in self.parts.partial if part_of(v.op) is part}
            readers = {part_of(user) for v in sums for user in users.get(v, ())} - {part}
            reader = readers.pop() if len(readers) == 1 else None
            if reader is None or reader.why == ASKED:
                continue
            if all(part_of(v.op) is None or v in sums for v in reader.ins):
                why = part.why
                self.parts.merge(part, reader)
                part.why = why

    def _along_values(self) -> bool:
        changed = False
        for part in self.parts.all:
            if part.into is not None or not part.ops:
                continue
            again = True
            while again:
                again = False
                for value in reversed(list(part.ins)):
                    producer = self.parts.part_of(value.op)
                    if producer is None:
                        continue
                    why = refusal(self.parts, producer, part)
                    if why is None and not cycle(self.parts, producer, part):
                        self.parts.merge(producer, part)
                        part, again, changed = producer, True, True
                        break
                    self._refused(producer, part, why or CYCLE)
        return changed

    def _refused(self, a: Part, b: Part, why: str) -> None:
        self.parts.log.append((self.parts.members[a.last], len(a.ops), self.parts.members[b.first], len(b.ops), why))
        b.why = why if why == ASKED else b.why or why

    def _siblings(self) -> bool:
        """Segments that read the same tensor over the same axes become one: the tensor is read once."""
        changed = False
        readers: dict[object, list[Part]] = {}
        alive = self.parts.alive()
        for part in alive:
            for value in part.ins:
                if value.rank:
                    readers.setdefault(value, []).append(part)
        for part in alive:  # reductions of what one segment makes, over the same axes, share a kernel too
            for value in part.ins if part.reduced else ():
                producer = self.parts.part_of(value.op)
                if producer is not None:
                    readers.setdefault((producer, part.reduced), []).append(part)
        for parts in readers.values():
            heads: dict[tuple, Part] = {}  # the last segment of each kind of reduction, the latest at the end
            tries: dict[Part, int] = {}
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

    def _merged(self, a: Part, b: Part) -> bool:
        """Merges two segments that read the same, if that is legal."""
        why = refusal(self.parts, a, b)
        if why is None and (cycle(self.parts, a, b) or cycle(self.parts, b, a)):
            why = CYCLE
        if why is None:
            self.parts.merge(a, b)
        else:
            self._refused(a, b, why)
        return why is None
