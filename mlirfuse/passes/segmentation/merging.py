"""Merging of a group's segments to a fixed point."""

from __future__ import annotations

import functools

from mlirfuse.passes.segmentation.copies import Copies
from mlirfuse.passes.segmentation.drafts import ASKED, OfPairs, SegmentDraft, SegmentDrafts
from mlirfuse.passes.segmentation.legality import CYCLE, cycle, refusal
from mlirfuse.passes.segmentation.prices import Prices
from mlirfuse.passes.segmentation.splits import MEASURED, ROUGH, Splits

# how many segments that read the same tensor are tried with each, independent of the number of readers
_TRIES = 8


class Segmenter:
    """Merges ``drafts`` along values, then between siblings; cheap values are recomputed. ``prices``: keep those apart
    that are faster so; ``splits``: those by which finished segments are cut in two."""

    def __init__(self, drafts: SegmentDrafts, prices: Prices | None = None, splits: Prices | None = None):
        self.drafts, self.prices, self.splits = drafts, prices, splits
        self.apart = prices is not None  # what walks over long rows again stays apart, to be compared as a whole
        self.copies = Copies(drafts)
        self.refusal = OfPairs(functools.partial(refusal, drafts))

    def run(self) -> list[SegmentDraft]:
        """Return the segments, each with its ops in order."""
        self._to_fixed_point()
        if self.apart:
            self.apart = False
            self._to_fixed_point()
        self.copies.keep_order()
        self._merge_final_sums()
        self.copies.share()
        if self.splits is not None:
            Splits(self.drafts, self.copies, self.splits, MEASURED if self.prices is not None else ROUGH).run()
        self.drafts.all = self.drafts.alive()
        for draft in self.drafts.all:
            draft.ops.sort(key=self.drafts.order.__getitem__)
        return self.drafts.all

    def _to_fixed_point(self) -> None:
        changed = True
        while changed:
            while changed:
                changed = self._along_values() | self._siblings()
            if self.apart and self.prices is not None:
                self.copies.keep_order()  # as what is recomputed is read in the order of memory
                changed = self.copies.compute_again() or self.copies.move_boundaries(self.prices.walks_again)
            else:
                changed = self.copies.compute_again() or self.copies.move_boundaries()

    def _merge_final_sums(self) -> None:
        """Merge the sum of a segment's partial sums into that segment, where it needs nothing else of it or of other
        segments: their scheduler can then do without partial sums."""
        draft_of, users = self.drafts.draft_of, self.drafts.users
        for draft in [p for p in self.drafts.alive() if p.rows]:
            sums = {v for v in self.drafts.partial if draft_of(v.op) is draft}
            readers = {draft_of(user) for v in sums for user in users.get(v, ())} - {draft}
            reader = readers.pop() if len(readers) == 1 else None
            if reader is None or reader.why == ASKED:
                continue
            if all(draft_of(v.op) is None or v in sums for v in reader.ins):
                why = draft.why
                self.drafts.merge(draft, reader)
                draft.why = why

    def _along_values(self) -> bool:
        changed = False
        for draft in self.drafts.all:
            if draft.into is not None or not draft.ops:
                continue
            again = True
            while again:
                again = False
                for value in reversed(list(draft.ins)):
                    producer = self.drafts.draft_of(value.op)
                    if producer is None:
                        continue
                    if self._merge(producer, draft):
                        draft, again, changed = producer, True, True
                        break
        return changed

    def _siblings(self) -> bool:
        """Merge segments that read the same tensor over the same axes: the tensor is read once."""
        changed = False
        readers: dict[object, list[SegmentDraft]] = {}
        alive = self.drafts.alive()
        for draft in alive:
            for value in draft.ins:
                if value.rank:
                    readers.setdefault(value, []).append(draft)
        for draft in alive:  # reductions of one segment's results, over the same axes, share a kernel too
            for value in draft.ins if draft.reduced else ():
                producer = self.drafts.draft_of(value.op)
                if producer is not None:
                    readers.setdefault((producer, draft.reduced), []).append(draft)
        for drafts in readers.values():
            heads: dict[tuple, SegmentDraft] = {}  # the last segment of each form of reduction, the latest at the end
            tries: dict[SegmentDraft, int] = {}
            for draft in drafts:
                if draft.into is not None:
                    continue
                for head in list(reversed(heads.values()))[:_TRIES]:
                    if head.into is not None or head is draft or tries.get(head) == _TRIES:
                        continue
                    if self._merge(head, draft, siblings=True):
                        draft, changed = head, True
                        break
                    tries[head] = tries.get(head, 0) + 1
                heads.pop(draft.kind, None)
                heads[draft.kind] = draft
        return changed

    def _merge(self, a: SegmentDraft, b: SegmentDraft, siblings: bool = False) -> bool:
        """Merge two segments, of which ``b`` reads a result of ``a``, or both the same tensor, if that is legal and not
        slower."""
        if self.apart and self.prices is not None and self.prices.walks_again(a, b):
            return False
        why = self.refusal(a, b)
        if why is None and (cycle(self.drafts, a, b) or (siblings and cycle(self.drafts, b, a))):
            why = CYCLE
        if why is None and self.prices is not None:
            why = self.prices.refusal(a, b)
            b.why = why or b.why
        if why is None:
            self.drafts.merge(a, b)
            return True
        first, second = self.drafts.members[a.last], self.drafts.members[b.first]
        self.drafts.log.append((first, len(a.ops), second, len(b.ops), why))
        b.why = why if why == ASKED else b.why or why
        return False
