"""fusion-segment: cut groups into kernels. Merging of segments is in ``passes/segmentation/``."""

from __future__ import annotations

from dataclasses import replace

from mlirfuse.analysis import device_costs, traffic
from mlirfuse.analysis.axes import Axes
from mlirfuse.analysis.phases import is_product, is_reduction, is_scan, is_scatter_add
from mlirfuse.ir import ops as table
from mlirfuse.ir.graph import Block, Graph, Group, Op, Segment, Value
from mlirfuse.ir.size_relations import problem_of_segments
from mlirfuse.passes.base import Pass, PassError, register
from mlirfuse.passes.segmentation import splits
from mlirfuse.passes.segmentation.drafts import ASKED, Decision, SegmentDrafts
from mlirfuse.passes.segmentation.merging import Segmenter
from mlirfuse.passes.segmentation.prices import Prices

APART = "shares no tensor with the segments before it"


def scheduler_of(members: list[Op], axes: Axes) -> str:
    """Return the scheduler of a segment of these ops, as printed by ``scheduler = …``. The lists in
    ``schedule/*/scheduler_list.py`` decide which schedulers take such a segment."""
    reductions = [op for op in members if is_reduction(op) and axes.reduced(op)]
    if any(op.row.kind == "partial" for op in members):
        return "inner-outer"
    if any(is_scan(op) and axes.scanned(op) for op in members):
        return "scan"
    if any(map(is_scatter_add, members)):
        return "scatter_add"
    if any(map(is_product, members)):
        return "matmul"
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
    """Cuts each group into as few kernels as the schedulers allow. Every op starts as a segment of its own; segments
    merge along values, then between siblings that read the same tensor, as long as one scheduler can take the result
    and no cycle arises, until nothing changes. A value that few cheap ops compute from tensors that are in memory
    anyway is recomputed in the segments that need it, where that moves fewer bytes than storing and reading it. Where
    one of two segments reads at other indices, the boundary between them is a minimum cut of the ops in between: bytes
    written and read against instructions of recomputation. A value that is read at several indices, as in a chain of
    stencils, is stored where recomputing it for each of them would take more than ``repeated`` instructions an element.
    With ``prices``, the name of a device whose kernels were measured, predicted times decide that: where one kernel
    would repeat work, at several indices or in each pass over long rows, it is compared with the same work cut in two.
    With ``splits``, the name of such a device or ``cpu``, finished segments are cut in two where that is faster: at a
    value that a kernel would compute in each pass, at each index, or for each element that it is broadcast to.
    Where the permuted view of a copy would be stored, the copy is stored instead, in its own memory order. The sum of a
    segment's partial sums joins that segment. Each segment has a number, names its scheduler, and ``why`` has the
    reason that it is cut from the one before it; that of the first segment is its group's.

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
          }) {number = 0, scheduler = "normalization", why = "the first group"}
          %1 = "fusion.segment"(%a) ({
            %s = "fusion.sum"(%b) {axes = [0]}
            "fusion.yield"(%s)
          }) {number = 1, scheduler = "reduction", why = "reduces other axes than the segment before it"}
          "fusion.yield"(%0, %1)
        })
    """

    name = "fusion-segment"
    repeated: int = 96
    prices: str = ""
    splits: str = ""

    def run(self, graph: Graph) -> None:
        for option, known in (("prices", device_costs.DEVICES), ("splits", splits.DEVICES)):
            if getattr(self, option) not in ("", *known):
                raise PassError(f"{option} is the name of a device whose coefficients are known: {', '.join(known)}")
        self.log: list[Decision] = []  # the merges that were tried, for readers after the pass
        self._layouts = {v: layout for v, layout in zip(graph.args, graph.layouts) if layout is not None}
        self._own, self._hints = graph.own_results, graph.hints
        self._block(graph.body, {graph.args[k] for k in graph.scalars}, {graph.args[k] for k in graph.aliases.values()})
        traffic.annotate(graph)
        graph.number()
        if found := problem_of_segments(graph):
            raise PassError(f"'fusion.{found[0].name}' op {found[1]}", found[0].loc)

    def _block(self, block: Block, scalars: set[Value], written: set[Value]) -> None:
        users = block.users()
        returned = set(block.returns)
        groups: dict[Group, list[Op]] = {}
        for op in block.ops:
            for nested in op.blocks:
                self._block(nested, scalars, written)
            if op.group is not None:
                groups.setdefault(op.group, []).append(op)
        axes = Axes(block.ops, own=self._own)  # of the whole block, as a program's kernels have them
        copies: dict[Op, list[Op]] = {}
        small: set[Op] = set()
        for group, members in groups.items():
            free = self._free(members, users, returned, scalars)
            unread = scalars.union(op.result for op in free)
            used = [op for op in members if op not in free]
            given = used, axes, users, returned, unread, written, self._layouts, self.repeated, bool(self.prices)
            drafts = SegmentDrafts(*given, self._hints)
            # What is loaded one by one, one kernel and two load alike while segments merge: it would hide the rest.
            prices = Prices(drafts, replace(device_costs.DEVICES[self.prices], shifted=0.0)) if self.prices else None
            cuts = Prices(drafts, splits.DEVICES[self.splits]) if self.splits else None
            segmenter = Segmenter(drafts, prices, cuts)
            for k, draft in enumerate(segmenter.run()):
                why = (draft.why or APART) if k else draft.why if draft.why == ASKED else group.why
                segment = Segment(group, scheduler_of(draft.ops, axes), {}, why)
                for op in draft.ops:
                    op.segment = segment
            self.log += drafts.log
            copied = self._copied(free, users)
            small.update(op for created in copied.values() for op in created)
            copies |= segmenter.copies.in_order() | copied
        block.ops = self._next_to_their_segments([copy for op in block.ops for copy in copies.get(op, [op])], small)

    @staticmethod
    def _free(members: list[Op], users, returned: set[Value], scalars: set[Value]) -> dict[Op, None]:
        """Return the ops that are free to recompute: constants, sizes, indices, and scalars computed from those and
        from scalar arguments. They connect no segments, and are not passed through memory."""
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
        """Copy the ops in ``free`` into each segment that uses them; return the copies of each."""
        copies: dict[Op, list[Op]] = {}
        for op in reversed(free):
            readers: dict[Segment | None, list[Op]] = {}
            for user in users[op.result]:
                for reader in copies.get(user, [user]):
                    readers.setdefault(reader.segment, []).append(reader)
            created = copies[op] = []
            for segment, members in readers.items():
                copy = op
                if created:
                    copy = Op(op.name, op.operands, op.attrs, [Value(op.result.dtype, op.result.shape)], loc=op.loc)
                    for member in members:
                        member.operands = [copy.result if v is op.result else v for v in member.operands]
                copy.group, copy.segment = op.group, segment
                created.append(copy)
        return copies

    @staticmethod
    def _next_to_their_segments(ops: list[Op], small: set[Op]) -> list[Op]:
        """Return ``ops`` with those in ``small`` moved down to the first other op of their segment, so that segments
        are in the order of their main ops."""
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
