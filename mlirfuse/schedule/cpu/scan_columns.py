"""Column scans on the CPU, across contiguous memory. A task is a block of columns; it iterates down the rows with the
scan states in registers. Rows that are a small fraction of a vector are scanned the same way, with one row per lane."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from mlirfuse.analysis.phases import Analysis, is_outer, size_of
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, store_all
from mlirfuse.schedule.cpu.scheduler import CpuScheduler, across_scanned_rows
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall
from mlirfuse.schedule.tiling import Tiling

STATES = 8  # vectors of states in registers: half of those that AVX-512 has left beside temporaries


class ScanColumns(CpuScheduler):
    """Scans down columns, fused with elementwise ops on their domain."""

    name = "scan_columns"
    fields = ("streamed",)

    def takes(self, analysis: Analysis) -> bool:
        return bool(analysis.scans) and bool(analysis.kept) and not analysis.phases

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        if across_scanned_rows(analysis, call):
            yield Tiling("scan_columns")
        elif is_outer(analysis, call.sizes):
            yield Tiling("scan_columns", streamed=self.streams(analysis, call))

    def kernels(self, spec: KernelSpec) -> list[CpuKernel]:
        return [_columns(spec)]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        super().check(analysis, p, call)


def _columns(spec: KernelSpec) -> CpuKernel:
    body, analysis = CpuBody(spec), spec.analysis
    e, k, scans, lanes = body.e, body.k, analysis.scans, body.lanes
    reverse = bool(scans[0].attrs["reverse"])
    *outer, inner = analysis.loops(analysis.kept)
    vectors = max(1, STATES // sum(len(sc.state_types(op)) for op in scans))

    def some(env: Env, starts: list[Index], mask: Val | None) -> None:
        """Scan the vectors of columns at ``starts``."""

        def visit(row: Env, carried: list[Val]) -> list[Val]:
            values, envs = iter(carried), [body.placed(row, inner, start) for start in starts]
            following: list[Val] = []
            for here, op in itertools.product(envs, scans):
                state = tuple(next(values) for _ in sc.state_types(op))
                state = sc.combine(e, op, state, sc.element(e, op, k.operands(op, here), lanes))
                k.bind(op.result, here, sc.result(e, op, state))
                following += state
            store_all(body, body.full, envs, analysis.domain)
            return following

        nothing = [v for _ in starts for v in body.nothing_scanned(lanes)]
        body.nest(env, analysis.loops(analysis.reduced), nothing, visit, reverse)
        for start in starts if body.small else ():
            store_all(body, body.small, [body.placed(env, inner, start)], analysis.kept)

    return body.of_columns(outer, inner, vectors, size_of(analysis.reduced), some)
