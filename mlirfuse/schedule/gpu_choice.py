"""Which GPU scheduler takes a segment, with which parameters for the sizes of a call."""

from __future__ import annotations

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
    return candidates(analysis, env, alignments, machine)[0]


def candidates(analysis: Analysis, env: dict[str, int], alignments: dict[Value, int], machine) -> list:
    """Parameters worth measuring for these sizes, the model's choice first."""
    if analysis.partials:
        access = access_of(analysis, analysis.loops(analysis.reduced), env, alignments)
        return gpu_inner_outer.candidates(analysis, access, env, machine)
    outer = bool(analysis.phases) and is_outer(analysis, env)
    loops = analysis.loops(analysis.kept if outer or not analysis.phases else analysis.reduced)
    access = access_of(analysis, loops, env, alignments)
    if analysis.phases:
        return (gpu_columns if outer else gpu_rows).candidates(analysis, access, env, machine)
    pointwise = gpu_pointwise.candidates(analysis, access, env, machine)
    return gpu_transpose.candidates(analysis, access, env, alignments, machine) + pointwise


def emit(name: str, analysis: Analysis, slots: Slots, params) -> list[GpuKernel]:
    """The kernels of the scheduler that ``params`` belong to."""
    return _EMITTERS[type(params)](name, analysis, slots, params)


def access_of(analysis: Analysis, loops, env: dict[str, int], alignments: dict[Value, int]) -> Access:
    """How wide accesses can be along the innermost of ``loops``, and whether offsets fit 32 bits."""
    tensors = list(dict.fromkeys(analysis.inputs + analysis.outputs))
    lane = loops[-1][-1] if loops else None
    extent = sz.substitute(sz.product(a.size for a in loops[-1]), env) if loops else 1
    lengths = _indexed_lengths(analysis, env)
    aligns: dict[Value, int] = {}
    wanted = 1
    steps = [loop[-1] for loop in analysis.loops(analysis.kept) + analysis.loops(analysis.reduced)]
    domain = set(analysis.domain)
    for value in tensors:
        size = value.dtype.bytes
        if domain.issuperset(analysis.axes.flat(value)) and not analysis.pinned.intersection(analysis.axes.flat(value)):
            strides = [sz.substitute(analysis.axis_stride(value, axis), env) for axis in steps]  # what the kernel steps by
        else:
            strides = [sz.substitute(s, env) for s in analysis.strides[value]]
        limit = min(alignments.get(value, 256), WIDEST)
        unit = lane is not None and sz.substitute(analysis.axis_stride(value, lane), env) == 1
        for s in strides:
            if s not in (0, 1):
                limit = min(limit, _power(s * size))
        for n in lengths:
            limit = min(limit, _power(n * size))
        aligns[value] = max(size, limit)
        if unit or value in analysis.outputs:
            wanted = max(wanted, limit // size)
    lanes = min(wanted, 8)
    while lanes > 1 and extent % lanes:
        lanes //= 2
    if lane in analysis.pinned:
        lanes = min(lanes, max(1, min((_power(n) for n in lengths), default=lanes)))
    for value in tensors:
        aligns[value] = min(aligns[value], _power(lanes * value.dtype.bytes), WIDEST)
    known = frozenset(n for n in _symbolic_lengths(analysis, loops[-1] if loops else []) if sz.substitute(n, env) % lanes == 0) if lanes > 1 else frozenset()
    biggest = max((_reach(analysis, v, env) for v in tensors), default=0)
    domain = sz.substitute(sz.product(a.size for a in analysis.domain), env)
    index = dt.i32 if max(biggest, domain) + 2**20 < 2**31 else dt.i64
    return Access(index, lanes, tuple(aligns[v] for v in analysis.inputs + analysis.outputs), known)


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


def _indexed_lengths(analysis: Analysis, env) -> list[int]:
    """Values of the starts, paddings and pieces of ops that index along a dimension."""
    out = []
    for op in analysis.ops:
        if op.name in ("slice", "pad"):
            for key in ("start", "low"):
                out += [sz.substitute(n, env) for n in op.attrs.get(key, ()) if n != 0]
        elif op.name == "concatenate":
            out += [sz.substitute(v.shape[op.attrs["axis"]], env) for v in op.operands]
    return out


def _reach(analysis: Analysis, value: Value, env) -> int:
    """The largest offset in elements that indexing ``value`` reaches."""
    extents = (sz.substitute(n, env) for n in value.shape)
    strides = (abs(sz.substitute(s, env)) for s in analysis.strides[value])
    return sum((n - 1) * s for n, s in zip(extents, strides))
