"""Whether two segments can be one: a scheduler has to take the result, and no cycle may arise."""

from __future__ import annotations

from collections.abc import Iterator

from mlirfuse.passes.segmentation.drafts import ACCUMULATES, ASKED, REDUCES, SCANS, SCANS_BACK, Part, Parts

CYCLE = "merging it would make a cycle"
# The cost of a kernel's ops (OpDef.cost) above which it takes no more. The time of LLVM and of a GPU's assembler grows
# faster than a body's length.
LARGEST = 2000
REPEATED = "reads what is before it at several positions, each of which would be computed again"
TOO_LARGE = "its kernel would be too large together with the segment before it"


def refusal(parts: Parts, a: Part, b: Part) -> str | None:
    """Why no scheduler takes ``a`` and ``b`` (a before b) as one, or None."""
    if any(parts.passes(v, a, b) for v in parts.asked):
        return ASKED
    if a.cost + b.cost > LARGEST:
        return TOO_LARGE
    ways = a.ways | b.ways | (REDUCES if a.rows or b.rows else 0)
    if ways.bit_count() > 1:
        if ways not in (REDUCES | SCANS, REDUCES | SCANS_BACK) or a.rows or b.rows:
            return "goes along its rows in another way than the segment before it"
        if parts.reduces_scans(a, b):
            return "reduces what follows from scans of the same rows"
    if ACCUMULATES in (a.ways, b.ways):
        return _beside_accumulation(*((a, b) if a.ways == ACCUMULATES else (b, a)))
    if a.reduced and b.reduced:
        if a.reduced != b.reduced:
            return "reduces other axes than the segment before it"
        if a.domain != b.domain:
            return "iterates over other axes than the segment before it"
    domain, reduced, rows = a.domain | b.domain, a.reduced | b.reduced, a.rows | b.rows
    between = parts.between(a, b)
    if again := _repeats(parts, a, b, between):
        return again
    outs = a.masks.copy()
    for mask, count in b.masks.items():
        outs[mask] = outs.get(mask, 0) + count
    for _, _, value, uses in between:
        if not uses and value.op.row.kind != "partial":
            outs[parts.axis_mask(value)] -= 1
    masks = [mask for mask, count in outs.items() if count]
    if rows:
        if (a.rows and b.rows and a.rows != b.rows) or (a.domain and b.domain and a.domain != b.domain):
            return "its partial sums go over other axes than the segment before it"
        if reduced and reduced != domain & ~rows:
            return "its partial sums do not go over the rows of the segment before it"
        if any(parts.passes(v, a, b) for v in parts.partial):
            return "partial sums are complete only after their kernel"
        if any(mask & ~domain for mask in masks):
            return "its results are not rows"
    if not reduced and not rows:
        if not masks:
            return None
        domain = max(masks, key=int.bit_count)
    if any(mask & ~domain for mask in masks):
        return "its results run over other axes than the segment before it"
    found = parts.becoming_late(a, b, between)
    return found if isinstance(found, str) else None


def _repeats(parts: Parts, a: Part, b: Part, between) -> str | None:
    """Why one kernel of both would compute too much more than the two, as it reads at several positions what it makes;
    None if it does not."""
    if not any(reader.moving for _, reader, _, _ in between):
        return None
    both = parts.work_of_both(a, b, between)
    if both is None or both.code > LARGEST:
        return TOO_LARGE
    for maker, reader in ((a, b), (b, a)):
        passed = {value: uses for of, _, value, uses in between if of is maker}
        more = parts.repeated_of(maker, both) if passed and reader.moving else 0
        if more > 0:
            if any(uses > (value in parts.returned) for value, uses in passed.items()):
                return REPEATED  # it is stored in any case, unless all who read it are one first
            read = parts.work(reader)
            saved = sum(parts.elements(value) + (read.counts.get(value, 0) if read else 0) for value in passed)
            if more - saved > parts.repeated * max(map(parts.elements, passed)):
                return REPEATED
    return None


def _beside_accumulation(accumulation: Part, other: Part) -> str | None:
    """Why ``other`` cannot be in the kernel of an accumulation, or None."""
    if other.ways:
        return "accumulates into rows, as the segment before it"
    if any(v in other.ins for v in accumulation.outs):
        return "what is accumulated is complete only after its kernel"
    if any(uses > accumulation.ins.get(v, 0) for v, uses in other.outs.items()):
        return "gives more than what the segment beside it accumulates"
    return None


def cycle(parts: Parts, a: Part, b: Part) -> bool:
    """Whether a path leads from ``a`` to ``b`` through another segment. It is looked for from both ends, a step of
    each at a time: often one of them has few ways to go, and when it has gone all, there is no path."""

    def after(p: Part):
        return (parts.part_of(u) for v in p.outs for u in parts.users.get(v, ()))

    def before(p: Part):
        return (parts.part_of(v.op) for v in p.ins)

    steps = zip(
        _search(a, b, after, lambda p: p.first < b.last),
        _search(b, a, before, lambda p: p.last > a.first),
    )
    return any(forward or backward for forward, backward in steps)


def _search(start: Part, target: Part, nexts, may_reach) -> Iterator[bool]:
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
