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
        if outer:
            return gpu_columns.candidates(analysis, access, env, alignments, machine)
        return gpu_rows.candidates(analysis, access, env, machine)
    pointwise = gpu_pointwise.candidates(analysis, access, env, machine)
    return itertools.chain(gpu_transpose.candidates(analysis, access, env, alignments, machine), pointwise)


def emit(name: str, analysis: Analysis, slots: Slots, params) -> list[GpuKernel]:
    """The kernels of the scheduler that ``params`` belong to."""
    return _EMITTERS[type(params)](name, analysis, slots, params)


class _Reach:
    """What decides how a segment's tensors can be accessed along the innermost loop of its kept or its reduced axes. ``evaluate(env)`` gives
    what depends on the sizes: the loop's extent; the largest offset in elements; starts and lengths of pieces that vectors must not cross,
    or-ed; the sizes that may be multiples of a vector; for each tensor its stride along the loop and, or-ed, the strides but 1 that the
    kernel steps by. The lowest bit of numbers or-ed is the largest power of two that divides them all."""

    def __init__(self, analysis: Analysis, along_kept: bool):
        loops = analysis.loops(analysis.kept if along_kept else analysis.reduced)
        inner = loops[-1] if loops else []
        lane = inner[-1] if inner else None
        both = analysis.inputs + analysis.outputs
        tensors = list(dict.fromkeys(both))
        self.tensors = [(v, v.dtype.bytes, v in analysis.outputs) for v in tensors]
        self.places = [tensors.index(v) for v in both]
        self.pinned = lane in analysis.pinned
        self.multiples = sorted(_symbolic_lengths(analysis, inner), key=str)
        ends = [loop[-1] for loop in analysis.loops(analysis.kept) + analysis.loops(analysis.reduced)]
        domain = set(analysis.domain)
        pieces = _pieces(analysis)
        numbers = [size_of(inner), sz.product(a.size for a in analysis.domain), *pieces, *self.multiples]
        offsets, rows = [numbers[1]], []
        for value in tensors:
            axes, strides = analysis.axes.flat(value), analysis.strides[value]
            plain = domain.issuperset(axes) and not analysis.pinned.intersection(axes)
            along = analysis.axis_stride(value, lane) if lane else 0
            steps = [analysis.axis_stride(value, a) for a in ends] if plain else strides
            rows.append(f"({along}, {_ored(f'({s} if {s} != 1 else 0)' for s in dict.fromkeys(steps) if s not in (0, 1))})")
            offsets.append("+".join(f"({n}-1)*abs({s})" for n, s in zip(value.shape, strides)) or 0)
            numbers += [along, *steps, *value.shape, *strides]
        source = f"{numbers[0]}, max({sz.spelled(offsets)}), {_ored(f'({n})' for n in pieces)}, {sz.spelled(self.multiples)}, ({', '.join(rows)},)"
        self.evaluate = sz.function(source, sz.symbols_of(numbers))


def _ored(numbers) -> str:
    return "|".join(numbers) or "0"


def access_of(analysis: Analysis, along_kept: bool, env: dict[str, int], alignments: dict[Value, int]) -> Access:
    """How wide accesses can be along the innermost loop of the kept or the reduced axes, and whether offsets fit 32 bits."""
    reach = analysis.once(_Reach, along_kept)
    extent, largest, pieces, sizes, strides = reach.evaluate(env)
    aligns, wanted = [], 1
    for (value, nbytes, written), (along, steps) in zip(reach.tensors, strides):
        limit = min(alignments.get(value, WIDEST), WIDEST, _power((steps | pieces) * nbytes))
        aligns.append(max(nbytes, limit))
        if along == 1 or written:
            wanted = max(wanted, limit // nbytes)
    lanes = min(wanted, 8)
    while extent % lanes:
        lanes //= 2
    if reach.pinned:
        lanes = min(lanes, _power(pieces))
    aligns = [min(align, lanes * nbytes) for align, (_, nbytes, _) in zip(aligns, reach.tensors)]
    known = frozenset([n for n, value in zip(reach.multiples, sizes) if not value % lanes] if lanes > 1 else ())
    return Access(dt.i32 if largest + 2**20 < 2**31 else dt.i64, lanes, tuple([aligns[k] for k in reach.places]), known)


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
