"""Which CPU scheduler takes a segment, with which parameters for the sizes of a call."""

from __future__ import annotations

import math

from mlirfuse.analysis.phases import Analysis, is_outer, late_outputs, size_of
from mlirfuse.core.machine import Host
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule import staged
from mlirfuse.schedule.cpu import columns, pointwise, rows, transpose
from mlirfuse.schedule.cpu.kernel import CpuKernel, lanes_of

ALIGNED = 64  # bytes: what results and the workspace are aligned to
ACROSS = 16  # rows that vectors run across at least
ENOUGH = 1 << 16  # elements from which on work is shared between threads


def choose(analysis: Analysis, env: dict[str, int], alignments: dict[Value, int], host: Host):
    """The parameters of the scheduler that takes ``analysis``; their class tells which one."""
    if not analysis.phases:
        return _pointwise(analysis, env, alignments, host)
    if is_outer(analysis, env) or _across_short_rows(analysis, env):
        return _columns(analysis, env, alignments, host)
    return _rows(analysis, env, alignments, host)


def emit(name: str, analysis: Analysis, slots: Slots, params, host: Host) -> list[CpuKernel]:
    """The kernels of the scheduler that ``params`` belong to."""
    if isinstance(params, staged.Params):
        parts = enumerate(zip(staged.stages(analysis), params.stages))
        return [kernel for at, (stage, given) in parts for kernel in emit(f"{name}_{at}", stage, slots, given, host)]
    module = {pointwise.Params: pointwise, transpose.Params: transpose, rows.Params: rows, columns.Params: columns}[
        type(params)
    ]
    return module.cpu(name, analysis, slots, params, host)


def _pointwise(analysis: Analysis, env, alignments, host: Host):
    block = transpose.block_of(analysis, host, env)
    if block is not None:
        return transpose.Params(*block, _streams(analysis, analysis.outputs, env, alignments, host))
    extents = analysis.values(_kept_extents, env)
    if pointwise.flattens(analysis, host, extents):
        return pointwise.Params(flat=True)
    return pointwise.Params(streamed=_streams(analysis, analysis.outputs, env, alignments, host))


def _rows(analysis: Analysis, env, alignments, host: Host):
    kept, reduced = analysis.values(_extents, env)
    full, _ = late_outputs(analysis)
    if kept < 2 * host.threads and kept * reduced >= ENOUGH and host.threads > 1:
        if not full and len(analysis.phases) == 1:
            return rows.Params(split=_parts(host))
        if kept * reduced >= 2 * ENOUGH:
            return _staged(analysis, env, alignments, host)
    vectors = math.ceil(reduced / lanes_of(analysis, host))
    if vectors <= rows.HELD and len(analysis.loops(analysis.reduced)) == 1:
        return rows.Params(held=1 << (vectors - 1).bit_length())
    length = reduced * analysis.once(_stash_bytes)
    streamed = _streams(analysis, full, env, alignments, host)
    return rows.Params(stash=0 < length <= rows.STASH_BYTES, streamed=streamed)


def _columns(analysis: Analysis, env, alignments, host: Host):
    kept, reduced, width, height = analysis.values(_column_extents, env)
    full, _ = late_outputs(analysis)
    if full or len(analysis.phases) > 1:
        blocks = kept // width * -(-width // (lanes_of(analysis, host) * columns.block_vectors(analysis)))
        if blocks < 2 * host.threads and kept * reduced >= ENOUGH // 8:
            return _staged(analysis, env, alignments, host)
        return columns.Params(split=0, streamed=_streams(analysis, full, env, alignments, host))
    folded = columns.folds(analysis, (height, width))
    if reduced <= columns.FEW and not folded:
        return columns.Params(split=0)
    tasks = kept // width * (1 if folded else -(-width // columns.STRETCH))
    few = tasks < 4 * host.threads and kept * reduced >= ENOUGH and reduced >= 16 * _parts(host)
    return columns.Params(split=_parts(host) if few and host.threads > 1 else 1, folded=folded)


def _across_short_rows(analysis: Analysis, env) -> bool:
    """Whether vectors run across rows that lie one behind the other, though their elements must be gathered: where a
    row is a small part of a vector. Sums of rows alone take a fifth less time a row at a time."""
    if not analysis.kept:
        return False
    kept, reduced, width, height = analysis.values(_column_extents, env)
    if height > 8 or width < ACROSS or analysis.values(_row_steps, env) != (height,):
        return False
    if reduced > height:  # each row in pieces
        return kept * reduced >= 8 * ENOUGH
    names = {op.name for phase in analysis.phases for op in phase}
    return names != {"sum"} and height <= (4 if names & {"argmax", "argmin"} else 3)


def _row_steps(analysis: Analysis):
    """How far apart rows lie in memory, each such distance once."""
    row, lane = analysis.loops(analysis.kept)[-1][-1], analysis.loops(analysis.reduced)[-1][-1]
    return list(
        dict.fromkeys(analysis.axis_stride(v, row) for v in analysis.inputs if analysis.axis_stride(v, lane) != 0)
    )


def _staged(analysis: Analysis, env, alignments, host: Host) -> staged.Params:
    return staged.Params(tuple(choose(stage, env, alignments, host) for stage in staged.stages(analysis)))


def _parts(host: Host) -> int:
    """Parts that a reduction is split into: several a thread, so that one that is late does not hold up the others."""
    return min(4 * host.threads, 64)


# ---- sizes that choices depend on


def _kept_extents(analysis: Analysis):
    return [size_of(loop) for loop in analysis.loops(analysis.kept)]


def _extents(analysis: Analysis):
    return [sz.product(a.size for a in analysis.kept), sz.product(a.size for a in analysis.reduced)]


def _column_extents(analysis: Analysis):
    return [
        *_extents(analysis),
        size_of(analysis.loops(analysis.kept)[-1]),
        size_of(analysis.loops(analysis.reduced)[-1]),
    ]


def _stash_bytes(analysis: Analysis) -> int:
    """Bytes of an element in the buffers for values that are kept."""
    return sum(value.dtype.compute.bytes for stage in rows.stages(analysis, True) for value in stage.kept)


# ---- stores past the caches


def _streams(analysis: Analysis, outputs: list[Value], env, alignments, host: Host) -> bool:
    """Whether ``outputs`` should be stored past the caches: together they do not stay there, and every vector of them
    is aligned."""
    if not outputs or host.vector_bytes < 32:
        return False
    sizes = dict(zip(analysis.outputs, analysis.once(_output_sizes)(env)))
    if sum([sizes[v][0] for v in outputs]) <= host.last_cache // 2:
        return False
    lanes = lanes_of(analysis, host)
    for value in outputs:
        nbytes, vector = value.dtype.bytes, lanes * value.dtype.bytes
        aligned = all(s * nbytes % vector == 0 for s in sizes[value][1] if s != 1)
        if vector < 16 or not aligned or min(alignments.get(value, ALIGNED), ALIGNED) < vector:
            return False
    return True


def _output_sizes(analysis: Analysis):
    """A function of the sizes: the bytes of each output, and its strides."""
    pairs = [f"(({v.numel})*{v.dtype.bytes}, {sz.spelled(analysis.strides[v])})" for v in analysis.outputs]
    return sz.function(
        sz.spelled(pairs), sz.symbols_of(n for v in analysis.outputs for n in (v.numel, *analysis.strides[v]))
    )
