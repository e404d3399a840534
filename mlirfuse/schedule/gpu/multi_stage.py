"""Multi-stage segments on a GPU: stages by phases of reductions, and, for reductions along rows with sums over rows,
one pass over the rows ("together") or separate kernels ("apart")."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from mlirfuse.analysis import joint, stages
from mlirfuse.analysis.phases import Analysis
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.ops import sizes_in
from mlirfuse.schedule.gpu import inner_outer
from mlirfuse.schedule.multi_stage import MultiStage
from mlirfuse.schedule.scheduler import Schedulers, SizedCall
from mlirfuse.schedule.tiling import Tiling


class GpuMultiStage(MultiStage[DeviceProperties]):
    """The stages of any segment. It is the only scheduler of segments that combine partial sums in a kernel of their
    own."""

    def __init__(self, schedulers: Schedulers[DeviceProperties]):
        super().__init__(schedulers, joint.online, {"together": stages.together, "apart": stages.apart})
        self.one_pass = inner_outer.InnerOuter()

    def takes(self, analysis: Analysis) -> bool:
        return bool(analysis.finishing) or super().takes(analysis)

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        if not analysis.finishing:
            return
        rows, sums = analysis.once(stages.together)
        found: Iterator[Tiling] = self.one_pass.candidates(rows, call)
        separate = inner_outer.rereading_is_cheaper(rows, call.sizes)
        if not separate:
            first = next(found, None)
            separate = first is None or inner_outer.separate_is_faster(rows, first, call)
            found = itertools.chain([first] if first else [], found)
        if separate:
            yield self.in_form("apart", analysis, call)
        sizes = tuple([(name, call.sizes[name]) for name in sums.once(_symbols)])
        aligned = tuple([(v, call.alignments[v]) for v in sums.inputs + sums.outputs if v in call.alignments])
        combine = sums.remembered(self._chosen, sizes, aligned, call.properties)
        together = (self.params("together", (p, combine)) for p in found)
        if not separate:
            yield next(together)
            yield self.in_form("apart", analysis, call)
        yield from together

    def _chosen(self, analysis: Analysis, sizes: tuple, alignments: tuple, properties: DeviceProperties) -> Tiling:
        """The choice for sizes and alignments that are given as hashable pairs, for memoization."""
        return self.schedulers.choose(analysis, SizedCall(dict(sizes), dict(alignments), properties))


def _symbols(analysis: Analysis) -> list[str]:
    """The symbols in the sizes of a segment."""
    sizes = [a.size for a in analysis.domain]
    for op in analysis.ops:
        for given in [v.shape for v in (*op.operands, *op.results)] + [sizes_in(op.row.attr_types, op.attrs)]:
            sizes += given
    for strides in analysis.strides.values():
        sizes += strides
    return sorted(sz.symbols_of(sizes))
