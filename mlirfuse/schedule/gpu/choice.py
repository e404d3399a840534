"""Which GPU scheduler takes a segment, with which parameters for the sizes of a call."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis, is_outer, size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.ops import sizes_in
from mlirfuse.lowering.kernel import PASS_L1, STAY_L2
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule import inner_outer, staged
from mlirfuse.schedule.gpu import (
    columns as gpu_columns,
)
from mlirfuse.schedule.gpu import (
    inner_outer as gpu_inner_outer,
)
from mlirfuse.schedule.gpu import (
    pointwise as gpu_pointwise,
)
from mlirfuse.schedule.gpu import (
    rows as gpu_rows,
)
from mlirfuse.schedule.gpu import (
    transpose as gpu_transpose,
)
from mlirfuse.schedule.gpu.kernel import Access, GpuKernel


def _phases(analysis: Analysis) -> list[Analysis]:
    return staged.stages(analysis, joint.online)


_STAGES = {"phases": _phases, "together": inner_outer.together, "apart": inner_outer.apart}
_SCHEDULERS = {m.Params: m for m in (gpu_columns, gpu_inner_outer, gpu_pointwise, gpu_rows, gpu_transpose)}
WIDEST = 16  # bytes of the widest access
# Second-level caches full that a kernel reads and writes, where hints begin to help or to hurt.
REDUCED = 4  # up to here what is only reduced passes the first-level cache: time -12% for one, +3% for twenty
# from here on what else is read stays in the second-level one: copies -0.5%, transposes -1%, softmax -0.8 to -1.5%
STAYING = 1.5


def choose(analysis: Analysis, env: dict[str, int], alignments: dict[Value, int], machine):
    """The parameters of the scheduler that takes ``analysis``; their class tells which one."""
    return next(candidates(analysis, env, alignments, machine))


def candidates(analysis: Analysis, env: dict[str, int], alignments: dict[Value, int], machine) -> Iterator:
    """Parameters worth measuring for these sizes, the model's choice first; the others are made when they are asked
    for."""
    if analysis.finishing:
        return _inner_outer(analysis, env, alignments, machine)
    read, written = (nbytes / machine.l2_bytes for nbytes in analysis.values(_bytes, env))
    hint = _hint(analysis, read, written, machine)
    if analysis.partials:
        access = access_of(analysis, False, env, alignments, hint)
        return gpu_inner_outer.candidates(analysis, access, env, machine)
    outer = bool(analysis.phases) and is_outer(analysis, env)
    access = access_of(analysis, outer or not analysis.phases, env, alignments, hint)
    if analysis.phases:
        if outer:
            whole = gpu_columns.candidates(analysis, access, env, alignments, machine)
        else:
            whole = gpu_rows.candidates(analysis, access, env, alignments, machine)
        return _with_staged(whole, analysis, env, alignments, machine)
    pointwise = gpu_pointwise.candidates(analysis, access, env, alignments, machine, read + written < STAYING)
    return itertools.chain(gpu_transpose.candidates(analysis, access, env, alignments, machine), pointwise)


def kernels(name: str, analysis: Analysis, slots: Slots, params) -> Iterator[tuple[Analysis, list[GpuKernel]]]:
    """The kernels of the scheduler that ``params`` belong to; of a segment in stages, those of each, with what it reads
    and writes."""
    if isinstance(params, staged.Params):
        for at, (stage, given) in enumerate(zip(analysis.once(_STAGES[params.form]), params.stages)):
            yield from kernels(f"{name}_{at}", stage, slots, given)
    else:
        yield analysis, _SCHEDULERS[type(params)].emit(name, analysis, slots, params)


def _inner_outer(
    analysis: Analysis, env: dict[str, int], alignments: dict[Value, int], machine
) -> Iterator[staged.Params]:
    """Reductions within rows and sums over them, in one pass over the rows or apart."""
    rows, sums = analysis.once(inner_outer.together)
    found = candidates(rows, env, alignments, machine)
    apart = gpu_inner_outer.few(rows, env)
    if not apart:
        first = next(found)
        apart = gpu_inner_outer.better_apart(rows, first, env)
        found = itertools.chain([first], found)
    if apart:
        yield _in_stages("apart", analysis, env, alignments, machine)
    sizes = tuple([(name, env[name]) for name in sums.once(_symbols)])
    added_up = sums.remembered(
        _chosen, sizes, tuple([(v, alignments[v]) for v in sums.inputs + sums.outputs if v in alignments]), machine
    )
    together = (staged.Params((p, added_up), "together") for p in found)
    if not apart:
        yield next(together)
        yield _in_stages("apart", analysis, env, alignments, machine)
    yield from together


def _chosen(analysis: Analysis, sizes, alignments, machine):
    """As :func:`choose`, of sizes and alignments as pairs, which can be remembered by."""
    return choose(analysis, dict(sizes), dict(alignments), machine)


def _symbols(analysis: Analysis) -> list[str]:
    """The symbols that the sizes of a segment are made of."""
    sizes = [a.size for a in analysis.domain]
    for op in analysis.ops:
        for given in [v.shape for v in (*op.operands, *op.results)] + [sizes_in(op.row.attr_types, op.attrs)]:
            sizes += given
    for strides in analysis.strides.values():
        sizes += strides
    return sorted(sz.symbols_of(sizes))


def _in_stages(
    form: str, analysis: Analysis, env: dict[str, int], alignments: dict[Value, int], machine
) -> staged.Params:
    """The stages of this form, each as it is chosen by itself."""
    return staged.Params(
        tuple([choose(stage, env, alignments, machine) for stage in analysis.once(_STAGES[form])]), form
    )


def _with_staged(
    whole: Iterator, analysis: Analysis, env: dict[str, int], alignments: dict[Value, int], machine
) -> Iterator:
    """``whole``, candidates that pass several times over a row or a column, or over what is kept of it; and the same
    work in stages, which have all of the machine, but some launches more and the input to read once more: first where
    the model says so."""
    first = next(whole)
    if _SCHEDULERS[type(first)].in_one_pass(analysis):
        yield first
    else:
        better = _SCHEDULERS[type(first)].better_in_stages(analysis, first, env, machine)
        if not better:
            yield first
        yield _in_stages("phases", analysis, env, alignments, machine)
        if better:
            yield first
    yield from whole


def _hint(analysis: Analysis, read: float, written: float, machine) -> str:
    """How the caches shall treat what is read once, if so many second-level caches full are read and written."""
    if analysis.phases and gpu_rows.only_reduces(analysis):
        return PASS_L1 if read <= REDUCED else ""
    return STAY_L2 if read + written >= STAYING and machine.cache_policies else ""


def _bytes(analysis: Analysis) -> tuple:
    """The bytes of inputs and of outputs."""
    return tuple(
        sum((sz.mul(v.numel, v.dtype.bytes) for v in values), 0) for values in (analysis.inputs, analysis.outputs)
    )


class _Reach:
    """What decides how a segment's tensors can be accessed along the innermost loop of its kept or its reduced axes,
    compiled to one function: ``access(env, alignments, hint)``.

    Numbers are or-ed where a power of two must divide them all: the lowest bit of the result is the largest one that
    does. The function's own names begin with an underscore, symbols of sizes do not."""

    def __init__(self, analysis: Analysis, along_kept: bool):
        loops = analysis.loops(analysis.kept if along_kept else analysis.reduced)
        inner = loops[-1] if loops else []
        lane = inner[-1] if inner else None
        both = analysis.inputs + analysis.outputs
        tensors = list(dict.fromkeys(both))
        self.places = [(tensors.index(v), analysis.stored(v).bytes) for v in both]
        self.multiples = sorted(_symbolic_lengths(analysis, inner), key=str)
        ends = [loop[-1] for loop in analysis.loops(analysis.kept) + analysis.loops(analysis.reduced)]
        domain = set(analysis.domain)
        pieces = _pieces(analysis)  # starts and lengths of what no vector may reach across
        extent, elements = size_of(inner), sz.product(a.size for a in analysis.domain)
        numbers, offsets, lines, wanted = [extent, elements, *pieces, *self.multiples], [elements], [], [1]
        for at, value in enumerate(tensors):
            axes, strides, nbytes = analysis.axes.flat(value), analysis.strides[value], analysis.stored(value).bytes
            plain = domain.issuperset(axes) and not analysis.pinned.intersection(axes)
            along = analysis.axis_stride(value, lane) if lane else 0
            steps = [analysis.axis_stride(value, a) for a in (ends if plain else axes)]
            stepped = [
                s if isinstance(s, int) else f"({s} if {s} != 1 else 0)"
                for s in dict.fromkeys(steps)
                if s not in (0, 1)
            ]
            lines.append(
                f"_limit{at} = {_ored(stepped + pieces)} * {nbytes} | _alignments.get(_value{at}, {WIDEST}) | {WIDEST}"
            )
            lines.append(f"_limit{at} &= -_limit{at}")
            if along == 1 or value in analysis.outputs:
                wanted.append(f"_limit{at} // {nbytes}")
            elif not isinstance(along, int):
                wanted.append(f"_limit{at} // {nbytes} if {along} == 1 else 1")
            offsets.append(
                "+".join(
                    f"({n}-1)*{abs(s) if isinstance(s, int) else f'abs({s})'}" for n, s in zip(value.shape, strides)
                )
                or 0
            )
            numbers += [along, *steps, *value.shape, *strides]
        lines.append(
            f"_lanes = max({sz.spelled(wanted)}) | {_ored([extent, 8, *(pieces if lane in analysis.pinned else ())])}"
        )
        lines.append("_lanes &= -_lanes")
        limits, whole = [f"_limit{at}" for at in range(len(tensors))], [f"({n}) % _lanes == 0" for n in self.multiples]
        source = f"_made(max({sz.spelled(dict.fromkeys(offsets))}) < {2**31 - 2**20}, _lanes, {sz.spelled(limits)}, {sz.spelled(whole)}, _hint)"
        names = {f"_value{at}": value for at, value in enumerate(tensors)} | {"_made": functools.lru_cache(self._made)}
        self.access = sz.function(source, sz.symbols_of(numbers), lines, ("env", "_alignments", "_hint"), **names)

    def _made(self, narrow: bool, lanes: int, limits: tuple[int, ...], whole: tuple[bool, ...], hint: str) -> Access:
        """The Access with offsets of 32 bits or of 64, that many lanes, vectors of each tensor aligned to at most its
        limit, and these of the sizes that may be known multiples of the lanes."""
        aligns = tuple([max(nbytes, min(limits[at], lanes * nbytes)) for at, nbytes in self.places])
        known = frozenset([n for n, multiple in zip(self.multiples, whole) if multiple] if lanes > 1 else ())
        return Access(dt.i32 if narrow else dt.i64, lanes, aligns, known, hint)


def _ored(numbers) -> str:
    return f"({'|'.join(f'({n})' for n in numbers) or 0})"


def access_of(
    analysis: Analysis, along_kept: bool, env: dict[str, int], alignments: dict[Value, int], hint: str = ""
) -> Access:
    """How wide accesses can be along the innermost loop of the kept or the reduced axes, and whether offsets fit 32
    bits."""
    return analysis.once(_Reach, along_kept).access(env, alignments, hint)


def _symbolic_lengths(analysis: Analysis, inner) -> set:
    """Sizes that vectors along the loop ``inner`` must not cross: its extents, and starts, extents and paddings of ops
    that index along a dimension. No others: each that is a multiple or not makes another variant."""
    out = {a.size for a in analysis.pinned if not isinstance(a.size, int)}
    for op in analysis.ops:
        if op.row.indexed:
            out |= {n for n in (*op.cuts, *op.attrs.get("size", ())) if not isinstance(n, int)}
            start = 0
            for operand in op.operands if op.name == "concatenate" else ():
                start = start + operand.shape[op.attrs["axis"]]
                out |= {start} if not isinstance(start, int) else set()
            out |= {n for v in op.operands for n in v.shape if not isinstance(n, int)}
        elif op.row.kind == "random" and op.result.rank:
            out |= {op.result.shape[-1]} - {1}
    out |= {size_of(inner), *(a.size for a in inner)}
    return {n for n in out if not isinstance(n, int)}


def _pieces(analysis: Analysis) -> list:
    """The starts, paddings and pieces of ops that index along a dimension."""
    out: list = []
    for op in analysis.ops:
        out += [n for n in op.cuts if n != 0]
        if op.name == "concatenate":
            out += [v.shape[op.attrs["axis"]] for v in op.operands]
    return out
