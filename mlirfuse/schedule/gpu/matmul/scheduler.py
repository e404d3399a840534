"""Matrix products of float8, 16-bit floats and float32 as TF32 on Hopper's tensor cores, with the ops on their
results."""

from __future__ import annotations

from collections.abc import Iterator

from mlirfuse.analysis import traffic
from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.access import access_of, narrowed
from mlirfuse.schedule.gpu.matmul import operands
from mlirfuse.schedule.gpu.matmul.body import MatmulBody
from mlirfuse.schedule.gpu.matmul.model import Work, amounts, best_tiles
from mlirfuse.schedule.gpu.matmul.operands import UNIT, Matrix
from mlirfuse.schedule.gpu.matmul.params import COLUMNS, TILE_M, WGMMA_M, Layout, Tiles
from mlirfuse.schedule.gpu.scheduler import GpuScheduler
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.scheduler import Alignments, KernelSpec, SizedCall, require
from mlirfuse.schedule.tiling import Tiling

LANES = 2  # most adjacent columns of a thread
WIDEST = 256  # columns of a tile: of one instruction
ADDED = 192  # columns, where threads hold a stage's sums, too
PANELS = 4  # most of a warp group
STAGES = 3  # fewest, where panels need room


class Matmul(GpuScheduler):
    """Computes a matrix product and elementwise ops on its result."""

    name = "matmul"
    fields = "access", "stages"
    own = Tiles

    def takes(self, analysis: Analysis) -> bool:
        product = analysis.product
        return product is not None and (product.name == "float8_dot" or product.operands[0].dtype in operands.TYPES)

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        if not call.properties.tensor_cores:
            return
        access = access_of(analysis, True, call)
        access = narrowed(analysis, access, min(access.lanes, LANES))._replace(hint="")
        tma = not _unaligned(analysis, call)
        added = _added(analysis, call) if tma else ()
        work, group, blocks = (
            _work(analysis, call),
            heuristics_of(call.properties).matmul.group,
            call.properties.sm_count,
        )
        for rows, columns, stages, apart, _ in best_tiles(work, call.properties):
            if operands.adds(analysis) and (apart or columns > ADDED):
                continue
            own = Tiles(rows, columns, group, blocks, tma, added, apart)
            yield _with_panels(Tiling(self.name, access, stages=stages, own=own), analysis, call)

    def check(self, analysis: Analysis, params: Tiling, call: SizedCall) -> None:
        p = Layout(params)
        require(call.properties.tensor_cores, f"matmul: {call.properties.chip} has no wgmma instructions")
        unaligned = _unaligned(analysis, call)
        require(not (p.tma and unaligned), f"tma = true: {unaligned}")
        added = _added(analysis, call) if p.tma else ()
        require(set(p.added) <= set(added), f"added = {list(p.added)}: TMA can copy {list(added)}")
        require(p.panels >= bool(p.added), f"panels = {p.panels}: TMA copies other inputs to them")
        require(p.m in (WGMMA_M, TILE_M), f"m = {p.m}: must be {WGMMA_M} or {TILE_M}")
        adds = operands.adds(analysis)
        most = (ADDED if adds else WIDEST) // p.parts  # more would not leave enough registers
        require(
            not (adds and p.apart), "apart = true: threads add sums of float8, one warp group has too few registers"
        )
        require(p.n % COLUMNS == 0 and 0 < p.n <= most, f"n = {p.n}: must be a multiple of {COLUMNS} up to {most}")
        require(p.stages >= 2, f"stages = {p.stages}: must be at least 2")
        require(p.group >= 1 and p.blocks >= 1, f"group = {p.group}, blocks = {p.blocks}: must be at least 1")
        room = call.properties.shared_per_block
        require(p.shared_bytes <= room, f"stages = {p.stages}: {p.shared_bytes} bytes of shared memory, of {room}")
        require(p.access.lanes <= LANES, f"lanes = {p.access.lanes}: at most {LANES}")
        self.check_access(analysis, params, True, call)

    def kernels(self, spec: KernelSpec) -> list[GpuKernel]:
        return [MatmulBody(spec).kernel()]


def _with_panels(params: Tiling, analysis: Analysis, call: SizedCall) -> Tiling:
    """``params`` with room for the panels of other inputs, instead of some stages: two of each that a part of 64 rows
    and columns has, up to :data:`PANELS`."""
    found = analysis.once(operands.operands)
    each = sum(COLUMNS // found.added[n].columns for n in params.own.added)
    tried = params.replaced(panels=min(2 * each, PANELS))
    while tried.stages > STAGES and Layout(tried).shared_bytes > call.properties.shared_per_block:
        tried = tried.replaced(stages=tried.stages - 1)
    while tried.own.panels > 1 and Layout(tried).shared_bytes > call.properties.shared_per_block:
        tried = tried.replaced(panels=tried.own.panels - 1)
    return tried


def _work(analysis: Analysis, call: SizedCall) -> Work:
    """The work of the kernel for these sizes."""
    return Work.of(*analysis.values(_amounts, call.sizes))


def _amounts(analysis: Analysis) -> list[Size]:
    return [*amounts(analysis.ops, *traffic.of_segment(analysis.ops, analysis.inputs, analysis.outputs, {}))]


def _unaligned(analysis: Analysis, call: SizedCall) -> str:
    """What TMA cannot copy for these sizes and alignments; empty if it can."""
    found = analysis.once(operands.operands)
    if found.a is None or found.b is None:
        return "an operand's rows or columns are several dimensions of memory, or none is contiguous"
    across = [m for m in (found.a, found.b) if not m.contiguous and m.value.dtype.bytes != 2]
    if across:  # which wgmma takes of 16-bit elements only
        return f"{across[0].value!r} is not contiguous along the sums"
    both = zip((found.a, found.b, *found.stored), analysis.values(_pitches, call.sizes))
    return next((problem for matrix, pitch in both if (problem := _problem(matrix, pitch, call.alignments))), "")


def _added(analysis: Analysis, call: SizedCall) -> tuple[int, ...]:
    """Which inputs besides the operands TMA can copy for these sizes and alignments."""
    found = analysis.once(operands.operands)
    both = zip(found.added, analysis.values(_pitches_of_added, call.sizes))
    return tuple([n for n, (matrix, pitch) in enumerate(both) if not _problem(matrix, pitch, call.alignments)])


def _problem(matrix: Matrix, pitch: int, alignments: Alignments) -> str:
    if pitch * matrix.value.dtype.bytes % UNIT or pitch < 1:
        return f"rows of {matrix.value!r} are {pitch} elements apart, not a multiple of {UNIT} bytes"
    aligned = alignments.get(matrix.value, UNIT) % UNIT == 0
    return "" if aligned else f"{matrix.value!r} is not aligned to {UNIT} bytes"


def _pitches(analysis: Analysis) -> list[Size]:
    found = analysis.once(operands.operands)
    return [matrix.pitch for matrix in (found.a, found.b, *found.stored)]


def _pitches_of_added(analysis: Analysis) -> list[Size]:
    return [matrix.pitch for matrix in analysis.once(operands.operands).added]
