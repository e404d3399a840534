"""Finished segments are cut in two where that is faster: a costly value that a kernel would compute for each reader of
it, each pass over long rows or each element that it is broadcast to is stored once; what a reduction would load one by
one is computed by a kernel that reads windows at once, if it is stored anyway."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mlirfuse.analysis import cost, device_costs
from mlirfuse.analysis.phases import is_reduction
from mlirfuse.analysis.work import cost_of
from mlirfuse.ir.graph import Op, Value
from mlirfuse.passes.segmentation.copies import Copies
from mlirfuse.passes.segmentation.drafts import REDUCES, SCANS, SCANS_BACK, SegmentDraft, SegmentDrafts
from mlirfuse.passes.segmentation.prices import Prices, comparison

DEVICES = {**device_costs.DEVICES, "cpu": device_costs.CPU}
# By what share of its time a segment has to be slower than its two parts: with coefficients that are fitted to measured
# kernels, and with rough ones.
MEASURED, ROUGH = 0.25, 0.5
_OFTEN = 1.5  # how often a value is computed, for it to be a candidate
_TRIED = 32  # candidates of a segment, those that could save most
_SMALL = 8  # a stored value is small if its kernel has so many times as many elements


class _Cut(NamedTuple):
    """``first`` and ``second``: the ops of both kernels, in order, some of them in both; ``seconds`` of one kernel and
    of two."""

    first: list[Op]
    second: list[Op]
    seconds: tuple[float, float]


class Splits:
    """Cuts segments in two, by ``prices``; what both kernels compute is copied by ``copies``. ``gain``: by what share
    of its time the segment has to be slower than the two."""

    def __init__(self, drafts: SegmentDrafts, copies: Copies, prices: Prices, gain: float):
        self.drafts, self.copies, self.prices, self.gain = drafts, copies, prices, gain
        self.on_cpu = prices.device is device_costs.CPU

    def run(self) -> None:
        """Cut each segment until none is faster as two."""
        found = []
        for draft in self.drafts.alive():
            worklist = [draft]
            while worklist:
                one = worklist.pop()
                cut = self._best(one)
                if cut is None:
                    found.append(one)
                else:
                    worklist += [self._divide(one, cut), one]
        self.drafts.all = found

    def _best(self, draft: SegmentDraft) -> _Cut | None:
        """The fastest cut of ``draft``, if it is faster than the segment."""
        if draft.rows or draft.ways not in (0, REDUCES, SCANS, SCANS_BACK) or len(draft.ops) < 3:
            return None
        program = sorted(draft.ops, key=self.drafts.order.__getitem__)
        if any(op.row.barrier for op in program):
            return None
        features = self.prices.features(program, draft.outs)
        device = self.prices.device
        one = cost.seconds(features, device)
        if self.gain * one < device.launch:
            return None
        stored = [[value] for value in draft.outs] if features.shifted and device.shifted else []
        best, saved = None, 0.0
        for values in itertools.chain(stored, self._candidates(program, list(draft.outs))):
            cut = self._cut(program, list(draft.outs), values, one)
            if cut is not None and cut.seconds[1] < min(one - saved, self._limit(one, values, draft)):
                best, saved = cut, one - cut.seconds[1]
        return best

    def _limit(self, one: float, values: list[Value], draft: SegmentDraft) -> float:
        """The time that a cut at ``values`` has to be below. Where these are small, both sides move the same memory but
        for them: then the times differ by instructions alone, and what a wrong prediction could cost is a launch, on a
        CPU less than its coefficient."""
        elements = self.drafts.elements
        widest = max(elements(v) for op in draft.ops for v in op.results)
        if self.on_cpu and _SMALL * sum(map(elements, values)) <= widest:
            return one - self.prices.device.launch
        return (1 - self.gain) * one

    def _candidates(self, program: list[Op], outs: list[Value]) -> Iterator[list[Value]]:
        """Values that the kernel computes several times: each, and those over the same axes that others are computed
        from."""
        times, indexed = self.prices.times(program, outs), any(op.row.kind == "index" for op in program)
        behind: dict[Op, float] = {}  # instructions that storing an op's result saves, at most
        again = []
        for op in program:
            more = max(0.0, times.get(op, 0) - 1) * self.drafts.elements(op.results[0]) * cost_of(op)
            behind[op] = more + sum(behind.get(v.op, 0) for v in dict.fromkeys(op.operands) if v.op is not None)
            wanted = len(op.results) == 1 and not op.row.view and op.row.kind != "create"
            wanted = wanted and (self.on_cpu or op.result not in outs)
            if wanted and times.get(op, 0) >= _OFTEN and not (indexed and op.result.dtype.is_integer):
                again.append(op.result)  # indices are computed where they are used
        again.sort(key=lambda value: -behind[value.op])
        yield from ([value] for value in again[:_TRIED])
        together: dict[int, list[Value]] = {}
        members = set(program)
        for value in again:
            if any(2 * times.get(op, 0) < times[value.op] for op in self._readers(value) if op in members):
                together.setdefault(self.drafts.axis_mask(value), []).append(value)
        yield from (values for values in together.values() if len(values) > 1)

    def _readers(self, value: Value) -> Iterator[Op]:
        """The readers of ``value``, through views too."""
        for op in self.drafts.users.get(value, ()):
            if op.row.view:
                yield from self._readers(op.results[0])
            else:
                yield op

    def _cut(self, program: list[Op], outs: list[Value], values: list[Value], one: float) -> _Cut | None:
        """The cut at ``values``, which the first kernel stores; None where it is none."""
        first = _needed(program, values, ())
        made = {v for op in first for v in op.results}
        stored = list(dict.fromkeys([*values, *(v for v in outs if v in made)]))
        rest = [v for v in outs if v not in made]
        second = _needed(program, rest, stored)
        both = made.intersection(v for op in second for v in op.results)
        if (
            not rest or not second or len({*first, *second}) < len(program)
        ):  # ops that nothing needs stay where they are
            return None
        if not all(v.op.row.recomputable and not v.op.row.barrier for v in both):
            return None
        if not (self._is_one(first, stored) and self._is_one(second, rest)):
            return None
        two = self.prices.seconds(first, stored) + self.prices.seconds(second, rest)
        return _Cut(first, second, (one, two))

    def _is_one(self, ops: list[Op], outs: list[Value]) -> bool:
        """Whether one loop nest computes ``outs``."""
        mask = self.drafts.axis_mask
        reductions = [op for op in ops if is_reduction(op) and self.drafts.axes.reduced(op)]
        masks = [mask(op.operands[0]) for op in reductions] or [mask(v) for v in outs]
        domain = max(masks, key=int.bit_count)
        return not any(mask(v) & ~domain for v in outs)

    def _divide(self, draft: SegmentDraft, cut: _Cut) -> SegmentDraft:
        """Leave ``draft`` the first kernel's ops; return the second."""
        first = set(cut.first)
        own = [op for op in cut.second if op not in first]
        again = [op for op in cut.second if op in first]
        second = self.drafts.divide(draft, own)
        second.why = comparison(*cut.seconds)
        if again:
            read = dict.fromkeys(v for op in own for v in op.operands)
            copied = {v for op in again for v in op.results}
            self.copies.copy(again, [v for v in read if v in copied], second)
        return second


def _needed(program: list[Op], values: Iterable[Value], stored: Iterable[Value]) -> list[Op]:
    """The ops of ``program`` that compute ``values`` from inputs and ``stored`` values, in order."""
    needed, given, found = set(values), set(stored), []
    for op in reversed(program):
        if any(v in needed and v not in given for v in op.results):
            needed.update(op.operands)
            found.append(op)
    return found[::-1]
