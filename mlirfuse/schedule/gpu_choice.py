"""Which GPU scheduler takes a segment, with which parameters for the sizes of a call."""

from __future__ import annotations

import itertools
from typing import Iterator

from mlirfuse import dtypes as dt
from mlirfuse import sizes as sz
from mlirfuse.graph import Value
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule import gpu_columns, gpu_inner_outer, gpu_pointwise, gpu_rows, gpu_transpose
from mlirfuse.schedule.analysis import INDEXED, RANDOM, Analysis, size_of
from mlirfuse.schedule.gpu import Access, GpuKernel
from mlirfuse.schedule.rows import is_outer

_EMITTERS = {m.Params: m.emit for m in (gpu_columns, gpu_inner_outer, gpu_pointwise, gpu_rows, gpu_transpose)}
WIDEST = 16  # bytes of the widest access


def choose(analysis: Analysis, env: dict[str, int], alignments: dict[Value, int], machine):
    """The parameters of the scheduler that takes ``analysis``; their class tells which one."""
    return next(candidates(analysis, env, alignments, machine))


def candidates(analysis: Analysis, env: dict[str, int], alignments: dict[Value, int], machine) -> Iterator:
    """Parameters worth measuring for these sizes, the model's choice first; the others are made when they are asked for."""
    if analysis.partials:
        access = access_of(analysis, False, env, alignments)
        return gpu_inner_outer.candidates(analysis, access, env, machine)
    outer = bool(analysis.phases) and is_outer(analysis, env)
    access = access_of(analysis, outer or not analysis.phases, env, alignments)
    if analysis.phases:
        return (gpu_columns if outer else gpu_rows).candidates(analysis, access, env, machine)
    pointwise = gpu_pointwise.candidates(analysis, access, env, machine)
    return itertools.chain(gpu_transpose.candidates(analysis, access, env, alignments, machine), pointwise)


def emit(name: str, analysis: Analysis, slots: Slots, params) -> list[GpuKernel]:
    """The kernels of the scheduler that ``params`` belong to."""
    return _EMITTERS[type(params)](name, analysis, slots, params)


class _Reach:
    """What decides how a segment's tensors can be accessed along the innermost loop of its kept or its reduced axes; ``evaluate(env)`` gives
    what depends on the sizes: the loop's extent, the largest offset in elements, starts and lengths of pieces that vectors must not cross,
    the sizes that may be multiples of a vector, and for each tensor its stride along the loop and all strides that the kernel steps by."""

    def __init__(self, analysis: Analysis, along_kept: bool):
        loops = analysis.loops(analysis.kept if along_kept else analysis.reduced)
        inner = loops[-1] if loops else []
        lane = inner[-1] if inner else None
        both = analysis.inputs + analysis.outputs
        self.tensors = list(dict.fromkeys(both))
        self.places = [self.tensors.index(v) for v in both]
        self.pinned = lane in analysis.pinned
        self.multiples = sorted(_symbolic_lengths(analysis, inner), key=str)
        ends = [loop[-1] for loop in analysis.loops(analysis.kept) + analysis.loops(analysis.reduced)]
        domain = set(analysis.domain)
        strides, offsets = [], [sz.product(a.size for a in analysis.domain)]
        for value in self.tensors:
            axes = analysis.axes.flat(value)
            plain = domain.issuperset(axes) and not analysis.pinned.intersection(axes)
            along = analysis.axis_stride(value, lane) if lane else 0
            strides.append((along, *([analysis.axis_stride(value, a) for a in ends] if plain else analysis.strides[value])))
            offsets.append("+".join(f"({n}-1)*abs({s})" for n, s in zip(value.shape, analysis.strides[value])) or 0)
        pieces = _pieces(analysis)
        numbers = [size_of(inner), *pieces, *self.multiples, *(s for row in strides for s in row)]
        numbers += [n for v in self.tensors for n in (*v.shape, *analysis.strides[v])] + offsets[:1]
        rows = ", ".join(map(sz.spelled, strides))
        source = f"{size_of(inner)}, max({sz.spelled(offsets)}), {sz.spelled(pieces)}, {sz.spelled(self.multiples)}, ({rows},)"
        self.evaluate = sz.function(source, sz.symbols_of(numbers))


def access_of(analysis: Analysis, along_kept: bool, env: dict[str, int], alignments: dict[Value, int]) -> Access:
    """How wide accesses can be along the innermost loop of the kept or the reduced axes, and whether offsets fit 32 bits."""
    reach = analysis.once(_Reach, along_kept)
    extent, largest, pieces, sizes, strides = reach.evaluate(env)
    piece = min(map(_power, pieces), default=256)
    aligns, wanted = [], 1
    for value, (along, *steps) in zip(reach.tensors, strides):
        nbytes = value.dtype.bytes
        limit = min(alignments.get(value, 256), WIDEST, piece * nbytes)
        for s in steps:
            if s not in (0, 1):
                limit = min(limit, _power(s * nbytes))
        aligns.append(max(nbytes, limit))
        if along == 1 or value in analysis.outputs:
            wanted = max(wanted, limit // nbytes)
    lanes = min(wanted, 8)
    while lanes > 1 and extent % lanes:
        lanes //= 2
    if reach.pinned:
        lanes = min(lanes, piece)
    aligns = [min(align, lanes * value.dtype.bytes, WIDEST) for value, align in zip(reach.tensors, aligns)]
    known = frozenset([n for n, value in zip(reach.multiples, sizes) if value % lanes == 0] if lanes > 1 else ())
    index = dt.i32 if largest + 2**20 < 2**31 else dt.i64
    return Access(index, lanes, tuple([aligns[k] for k in reach.places]), known)


def _power(n: int) -> int:
    """The largest power of two that divides ``n``, up to 256."""
    n = abs(n)
    return min(n & -n, 256) if n else 256


def _symbolic_lengths(analysis: Analysis, inner) -> set:
    """Sizes that vectors along the loop ``inner`` must not cross: its extents, and starts, extents and paddings of ops that index along a
    dimension. No others: each that is a multiple or not makes another variant."""
    out = {a.size for a in analysis.pinned if not isinstance(a.size, int)}
    for op in analysis.ops:
        if op.name in INDEXED:
            for key in ("start", "low", "size"):
                out |= {n for n in op.attrs.get(key, ()) if not isinstance(n, int)}
            start = 0
            for operand in op.operands if op.name == "concatenate" else ():
                start = start + operand.shape[op.attrs["axis"]]
                out |= {start} if not isinstance(start, int) else set()
            out |= {n for v in op.operands for n in v.shape if not isinstance(n, int)}
        elif op.name in RANDOM and op.result.rank:
            out |= {op.result.shape[-1]} - {1}
    out |= {size_of(inner), *(a.size for a in inner)}
    return {n for n in out if not isinstance(n, int)}


def _pieces(analysis: Analysis) -> list:
    """The starts, paddings and pieces of ops that index along a dimension."""
    out: list = []
    for op in analysis.ops:
        if op.name in ("slice", "pad"):
            for key in ("start", "low"):
                out += [n for n in op.attrs.get(key, ()) if n != 0]
        elif op.name == "concatenate":
            out += [v.shape[op.attrs["axis"]] for v in op.operands]
    return out
