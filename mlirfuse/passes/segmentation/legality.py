"""Legality of merging two segments: a scheduler has to take the result, and no cycle may arise."""

from __future__ import annotations

from collections.abc import Iterator

from mlirfuse.passes.segmentation.drafts import (
    ACCUMULATES,
    ASKED,
    MULTIPLIES,
    REDUCES,
    SCANS,
    SCANS_BACK,
    SegmentDraft,
    SegmentDrafts,
)

CYCLE = "merging it would create a cycle"
# The cost of a kernel's ops (OpDef.cost) above which no more are merged into it. The time of LLVM and of ptxas grows
# faster than the length of a kernel.
LARGEST = 2000
REPEATED = "reads a value at several indices, and would recompute it for each"
TOO_LARGE = "its kernel would be too large together with the segment before it"


def refusal(drafts: SegmentDrafts, a: SegmentDraft, b: SegmentDraft) -> str | None:
    """Return why no scheduler takes ``a`` and ``b`` (a before b) as one, or None."""
    if any(drafts.passes(v, a, b) for v in drafts.asked):
        return ASKED
    if a.cost + b.cost > LARGEST:
        return TOO_LARGE
    ways = a.ways | b.ways | (REDUCES if a.rows or b.rows else 0)
    if ways.bit_count() > 1:
        if ways not in (REDUCES | SCANS, REDUCES | SCANS_BACK) or a.rows or b.rows:
            return "reduces or scans its rows in another way than the segment before it"
        if drafts.reduces_scans(a, b):
            return "reduces results of scans of the same rows"
    if ACCUMULATES in (a.ways, b.ways):
        return _with_scatter_add(*((a, b) if a.ways == ACCUMULATES else (b, a)))
    if MULTIPLIES in (a.ways, b.ways):
        return _with_product(drafts, *((a, b) if a.ways == MULTIPLIES else (b, a)))
    if a.reduced and b.reduced:
        if a.reduced != b.reduced:
            return "reduces other axes than the segment before it"
        if a.domain != b.domain:
            return "iterates over other axes than the segment before it"
    domain, reduced, rows = a.domain | b.domain, a.reduced | b.reduced, a.rows | b.rows
    between = drafts.between(a, b)
    if again := _repeats(drafts, a, b, between):
        return again
    outs = a.masks.copy()
    for mask, count in b.masks.items():
        outs[mask] = outs.get(mask, 0) + count
    for _, _, value, uses in between:
        if not uses and value.op.row.kind != "partial":
            outs[drafts.axis_mask(value)] -= 1
    masks = [mask for mask, count in outs.items() if count]
    if rows:
        if (a.rows and b.rows and a.rows != b.rows) or (a.domain and b.domain and a.domain != b.domain):
            return "its partial sums go over other axes than the segment before it"
        if reduced and reduced != domain & ~rows:
            return "its partial sums do not go over the rows of the segment before it"
        if any(drafts.passes(v, a, b) for v in drafts.partial):
            return "partial sums are complete only after their kernel"
        if any(mask & ~domain for mask in masks):
            return "its results are not rows"
    if not reduced and not rows:
        if not masks:
            return None
        domain = max(masks, key=int.bit_count)
    if any(mask & ~domain for mask in masks):
        return "its results run over other axes than the segment before it"
    found = drafts.becoming_late(a, b, between)
    return found if isinstance(found, str) else None


def _repeats(drafts: SegmentDrafts, a: SegmentDraft, b: SegmentDraft, between) -> str | None:
    """Return why one kernel of both would recompute too much, as it reads its intermediate values at several indices;
    None if it would not."""
    if not any(reader.moving for _, reader, _, _ in between):
        return None
    both = drafts.work_of_both(a, b)
    if both is None or both.code > LARGEST:
        return TOO_LARGE
    for maker, reader in ((a, b), (b, a)):
        passed = {value: uses for of, _, value, uses in between if of is maker}
        more = drafts.repeated_of(maker, both) if passed and reader.moving else 0
        if more > 0:
            if any(uses > (value in drafts.returned) for value, uses in passed.items()):
                return REPEATED  # it is stored anyway, unless all of its readers are merged first
            if drafts.priced:
                continue
            read = drafts.work(reader)
            saved = sum(drafts.elements(value) + (read.counts.get(value, 0) if read else 0) for value in passed)
            if more - saved > drafts.repeated * max(map(drafts.elements, passed)):
                return REPEATED
    return None


def _with_scatter_add(scatter_add: SegmentDraft, other: SegmentDraft) -> str | None:
    """Return why ``other`` cannot be in the kernel of a scatter-add, or None."""
    if other.ways:
        return "is a scatter-add, as is the segment before it"
    if any(v in other.ins for v in scatter_add.outs):
        return "a scatter-add's result is complete only after its kernel"
    if any(uses > scatter_add.ins.get(v, 0) for v, uses in other.outs.items()):
        return "has results besides the values that the other segment scatter-adds"
    return None


def _with_product(drafts: SegmentDrafts, product: SegmentDraft, other: SegmentDraft) -> str | None:
    """Return why ``other`` cannot be in the kernel of a matrix product, or None. The kernel reads the product's
    operands from memory, and computes ops on elements of its result."""
    if other.ways or other.rows:
        return "is a matrix product, as is the segment before it"
    between = drafts.between(product, other)
    operands = drafts.operands_of_products(product)
    if any(maker is other and value in operands for maker, _, value, _ in between):
        if not all(op.row.view == "all" for op in other.ops):
            return "computes an operand of a matrix product, which is read from memory"
        if any(uses for _, _, _, uses in between):
            return "has results besides an operand of a matrix product"
        return None
    if other.moving:
        return "reads at other indices than the matrix product"
    outs = product.masks.copy()
    for mask, count in other.masks.items():
        outs[mask] = outs.get(mask, 0) + count
    for _, _, value, uses in between:
        outs[drafts.axis_mask(value)] -= not uses
    if any(count and mask != product.domain for mask, count in outs.items()):
        return "its results run over other axes than the matrix product"
    found = drafts.becoming_late(product, other, between)
    return found if isinstance(found, str) else None


def cycle(drafts: SegmentDrafts, a: SegmentDraft, b: SegmentDraft) -> bool:
    """Whether a path leads from ``a`` to ``b`` through another segment. Searches from both ends, alternating single
    steps: often one end has few paths, and once they are exhausted, there is none. Ranks grow along a path."""
    steps = zip(
        _search(a, b, drafts.readers, lambda p: p.rank < b.rank),
        _search(b, a, drafts.producers, lambda p: p.rank > a.rank),
    )
    return any(forward or backward for forward, backward in steps)


def _search(start: SegmentDraft, target: SegmentDraft, nexts, may_reach) -> Iterator[bool]:
    """Yield for each edge from one draft to the next, beginning at ``start``, whether it reaches ``target``
    indirectly."""
    seen, worklist = {start, target, None}, [start]
    while worklist:
        draft = worklist.pop()
        for p in nexts(draft):
            if p not in seen and may_reach(p):
                seen.add(p)
                worklist.append(p)
            yield p is target and draft is not start
