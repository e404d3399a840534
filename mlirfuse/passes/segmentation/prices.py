"""Compares one kernel with the same work cut in two, by the predicted times of a device."""

from __future__ import annotations

from collections.abc import Iterable

from mlirfuse.analysis import cost
from mlirfuse.analysis.work import Work
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.passes.segmentation.drafts import OfPairs, SegmentDraft, SegmentDrafts

_GAIN = 0.15  # by which two kernels have to be faster: what predictions are off by in the median


class Prices:
    """Predicted times of the segments of ``drafts`` on a device with these coefficients."""

    def __init__(self, drafts: SegmentDrafts, device: cost.Coefficients):
        self.drafts, self.device = drafts, device
        self.lengths: dict[int, int] = {}  # elements of the axes of a mask
        self.slower = OfPairs(self._compare)
        self.apart: dict[SegmentDraft, tuple[int, float | None]] = {}  # its version and its seconds

    def refusal(self, a: SegmentDraft, b: SegmentDraft) -> str | None:
        """Return why ``a`` and ``b`` are faster as two kernels, with both times, or None."""
        if not any(reader.moving for _, reader, _, _ in self.drafts.between(a, b)) and not self.walks_again(a, b):
            return None
        return self.slower(a, b)

    def walks_again(self, a: SegmentDraft, b: SegmentDraft) -> bool:
        """Whether one kernel would walk over long rows for the reductions of one of the two, and then again for results
        of the other that depend on these."""
        for maker, reader, value, _ in self.drafts.between(a, b):
            if value not in maker.late or reader.reduced or reader.ways or maker.rows:
                continue
            full = maker.domain
            if self._length(maker.reduced) > self.device.column and any(mask == full for mask in reader.masks):
                return not any(self.drafts.axis_mask(v) == full for v in maker.late)
        return False

    def _compare(self, a: SegmentDraft, b: SegmentDraft) -> str | None:
        both = self.drafts.work_of_both(a, b)
        one = self._of_work([*a.ops, *b.ops], self.drafts.outs_of_both(a, b), both)
        two = [self._of_draft(draft) for draft in (a, b)]
        if one is None or None in two:
            return None
        apart = sum(seconds for seconds in two if seconds is not None)
        if apart > (1 - _GAIN) * one:
            return None
        return comparison(one, apart)

    def _of_draft(self, draft: SegmentDraft) -> float | None:
        known = self.apart.get(draft)
        if known is None or known[0] != draft.version:
            known = self.apart[draft] = draft.version, self._of_work(draft.ops, draft.outs, self.drafts.work(draft))
        return known[1]

    def _of_work(self, ops: Iterable[Op], outs: Iterable[Value], work: Work | None) -> float | None:
        """As :meth:`seconds`, of a kernel whose work is known: None where a value is read on too many paths."""
        if work is None:
            return None
        program = sorted(ops, key=self.drafts.order.__getitem__)
        return cost.seconds(self._features(program, outs, work), self.device)

    def seconds(self, ops: Iterable[Op], outs: Iterable[Value]) -> float:
        """Return the predicted time of a kernel of ``ops`` that stores ``outs``."""
        return cost.seconds(self.features(ops, outs), self.device)

    def features(self, ops: Iterable[Op], outs: Iterable[Value]) -> cost.Features:
        """Return what a kernel of ``ops`` that stores ``outs`` does."""
        return self._features(sorted(ops, key=self.drafts.order.__getitem__), outs)

    def _features(self, program: list[Op], outs: Iterable[Value], work: Work | None = None) -> cost.Features:
        drafts = self.drafts
        free = drafts.unread.__contains__
        given = drafts.axes, drafts.layouts, drafts.elements, free, self.device.vector
        return cost.of_kernel(program, outs, *given, work)

    def times(self, program: list[Op], outs: list[Value]) -> dict[Op, float]:
        """How often a kernel of ``program``, in order, computes each element of an op's result."""
        drafts = self.drafts
        return cost.times_computed(program, outs, drafts.axes, drafts.layouts, drafts.elements, self.device)

    def _length(self, mask: int) -> int:
        if mask not in self.lengths:
            axes = [axis for axis, bit in self.drafts.bits.items() if bit & mask]
            self.lengths[mask] = sz.supposed(sz.product(axis.size for axis in axes), self.drafts.hints)
        return self.lengths[mask]


def comparison(one: float, apart: float) -> str:
    """The reason of a cut, with the predicted times of one kernel and of two."""
    return f"one kernel with the segment before it would take {_text(one)}, two take {_text(apart)}"


def _text(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
