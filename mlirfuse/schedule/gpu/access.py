"""How kernels of a GPU access memory: how wide vectors may be, for the sizes and alignments of a call."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from mlirfuse.analysis import joint
from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, late_outputs, size_of
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.kernel import PASS_L1, STAY_L2, WIDEST
from mlirfuse.schedule.gpu.heuristics import heuristics_of
from mlirfuse.schedule.scheduler import power_of_two, require


class Access(NamedTuple):
    """What a variant may assume of memory: ``index`` is i32 or i64, ``lanes`` elements a vector access, ``aligns`` the
    alignment in bytes of each input's and output's vector accesses, ``multiples`` the sizes known to be multiples of
    the lanes; ``hint``: how caches shall treat inputs (see
    :mod:`mlirfuse.lowering.kernel`): ``PASS_L1`` those that are read once, ``STAY_L2`` also those whose pieces are."""

    index: dt.DType  # type: ignore[assignment]  # no kernel asks a tuple where something is
    lanes: int
    aligns: tuple[int, ...]
    multiples: frozenset[Any] = frozenset()
    hint: str = ""


def moved(analysis: Analysis, env: dict[str, int], properties: DeviceProperties) -> tuple[float, float]:
    """How many second-level caches full a segment reads and writes."""
    read, written = analysis.values(_bytes, env)
    return read / properties.l2_bytes, written / properties.l2_bytes


def hint_of(analysis: Analysis, env: dict[str, int], properties: DeviceProperties) -> str:
    """How the caches shall treat what is read once, by how much is read and written."""
    heuristics = heuristics_of(properties).access
    read, written = analysis.values(_bytes, env)
    if analysis.phases and analysis.once(only_reduces):
        return PASS_L1 if read <= heuristics.reduced * properties.l2_bytes else ""
    return STAY_L2 if read + written >= heuristics.staying * properties.l2_bytes and properties.cache_policies else ""


def only_reduces(analysis: Analysis) -> bool:
    """Whether rows or columns are only reduced, in one pass: nothing as long is written."""
    full, _ = late_outputs(analysis)
    return len(analysis.once(joint.online)) == 1 and not full


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
        pieces = _pieces(analysis)
        cuts = [n for n, along in pieces if lane in along and lane in analysis.pinned]
        extent, elements = size_of(inner), sz.product(a.size for a in analysis.domain)
        numbers = [extent, elements, *(n for n, _ in pieces), *self.multiples]
        offsets: list[Size | str] = [elements]
        lines: list[str] = []
        wanted: list[int | str] = [1]
        for at, value in enumerate(tensors):
            axes, strides, nbytes = analysis.axes.flat(value), analysis.strides[value], analysis.stored(value).bytes
            plain = domain.issuperset(axes)  # then pinned axes are loops of their own
            along = analysis.axis_stride(value, lane) if lane else 0
            steps = [analysis.axis_stride(value, a) for a in (ends if plain else axes)]
            stepped = [
                s if isinstance(s, int) else f"({s} if {s} != 1 else 0)"
                for s in dict.fromkeys(steps)
                if s not in (0, 1)
            ]
            for n, across in pieces:
                found = {analysis.axis_stride(value, a) for a in across}
                symbolic = [f"{s} == 1" for s in sorted(found - {1}, key=str) if not isinstance(s, int)]
                if 1 in found or symbolic:
                    stepped.append(str(n) if 1 in found else f"({n} if {' or '.join(symbolic)} else 0)")
                numbers += found
            lines.append(f"_limit{at} = {_ored(dict.fromkeys(stepped))} * {nbytes} | {WIDEST}")
            lines.append(f"_limit{at} |= _alignments.get(_value{at}, {WIDEST})")
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
        lines.append(f"_lanes = max({sz.serialized(wanted)}) | {_ored([extent, 8, *cuts])}")
        lines.append("_lanes &= -_lanes")
        narrow = f"max({sz.serialized(dict.fromkeys(offsets))}) < {2**31 - 2**20}"
        limits, whole = [f"_limit{at}" for at in range(len(tensors))], [f"({n}) % _lanes == 0" for n in self.multiples]
        source = f"_made({narrow}, _lanes, {sz.serialized(limits)}, {sz.serialized(whole)}, _hint)"
        values = {f"_value{at}": value for at, value in enumerate(tensors)}
        names = values | {"_made": functools.lru_cache(self._created)}
        divided = _ored([extent, 8, *cuts])
        bounds = f"{narrow}, {divided}, {sz.serialized(limits)}, {sz.serialized(self.multiples)}"
        limited = [line for line in lines if not line.startswith("_lanes")]
        self.bounds = functools.partial(
            sz.function, bounds, sz.symbols_of(numbers), limited, ("env", "_alignments"), **values
        )
        self.access = sz.function(source, sz.symbols_of(numbers), lines, ("env", "_alignments", "_hint"), **names)

    def _created(self, narrow: bool, lanes: int, limits: tuple[int, ...], whole: tuple[bool, ...], hint: str) -> Access:
        """The Access with offsets of 32 bits or of 64, that many lanes, vectors of each tensor aligned to at most its
        limit, and these of the sizes that may be known multiples of the lanes."""
        aligns = tuple([max(nbytes, min(limits[at], lanes * nbytes)) for at, nbytes in self.places])
        known = frozenset([n for n, multiple in zip(self.multiples, whole) if multiple] if lanes > 1 else ())
        return Access(dt.i32 if narrow else dt.i64, lanes, aligns, known, hint)


def check(
    analysis: Analysis,
    access: Access,
    along_kept: bool,
    env: dict[str, int],
    alignments: dict[Value, int],
    properties: DeviceProperties,
    widest: Sequence[int],
) -> None:
    """Raises :class:`ScheduleError` where memory is not as ``access`` assumes for these sizes. ``widest``: the bytes of
    the widest vector of each input and output."""
    reach = analysis.once(_Reach, along_kept)
    narrow, divided, limits, multiples = reach.bounds()(env, alignments)
    lanes, both = access.lanes, analysis.inputs + analysis.outputs
    require(power_of_two(lanes) and lanes <= 8, f"lanes = {lanes}: vectors have 1, 2, 4 or 8 elements")
    whole = divided & -divided if divided else lanes
    require(
        lanes <= whole, f"lanes = {lanes}: for these sizes vectors of at most {whole} end where a line of memory does"
    )
    require(access.index in (dt.i32, dt.i64), f"index = {access.index}: it is i32 or i64")
    require(access.index is dt.i64 or narrow, "index = i32: for these sizes offsets need 64 bits")
    require(
        len(access.aligns) == len(both), f"aligns: there are {len(both)} inputs and outputs, not {len(access.aligns)}"
    )
    for (at, nbytes), align, most, value in zip(reach.places, access.aligns, widest, both):
        known = max(nbytes, min(limits[at], most))
        require(
            power_of_two(align) and nbytes <= align <= known,
            f"aligns: {align} bytes for {value!r}, whose vectors are known to be aligned to {known}",
        )
    for n in access.multiples:
        at = reach.multiples.index(n) if n in reach.multiples else None
        require(at is not None and multiples[at] % lanes == 0, f"multiples: {n} is not known to be one of {lanes}")
    require(access.hint in ("", PASS_L1, STAY_L2), f"hint = '{access.hint}': it is '', '{PASS_L1}' or '{STAY_L2}'")
    require(
        access.hint != STAY_L2 or properties.cache_policies,
        f"hint = '{STAY_L2}': {properties.chip} has no such accesses",
    )


def _ored(numbers) -> str:
    return f"({'|'.join(f'({n})' for n in numbers) or 0})"


def access_of(
    analysis: Analysis, along_kept: bool, env: dict[str, int], alignments: dict[Value, int], hint: str = ""
) -> Access:
    """How wide accesses can be along the innermost loop of the kept or the reduced axes, and whether offsets fit 32
    bits."""
    return analysis.once(_Reach, along_kept).access(env, alignments, hint)


def narrowed(analysis: Analysis, access: Access, lanes: int) -> Access:
    """The same with vectors of so many elements, of which ``access`` has a multiple."""
    both = analysis.inputs + analysis.outputs
    aligns = [min(align, lanes * analysis.stored(v).bytes) for align, v in zip(access.aligns, both)]
    return access._replace(lanes=lanes, aligns=tuple(aligns), multiples=access.multiples if lanes > 1 else frozenset())


def known_multiples(
    analysis: Analysis, lanes: int, env: dict[str, int], alignments: dict[Value, int]
) -> frozenset[Any]:
    """The sizes, of those that may be known as such along the kept axes, that are multiples of so many lanes."""
    reach = analysis.once(_Reach, True)
    *_, sizes = reach.bounds()(env, alignments)
    return frozenset(n for n, size in zip(reach.multiples, sizes) if lanes > 1 and size % lanes == 0)


def of_slices(analysis: Analysis, access: Access, env: dict[str, int], alignments: dict[Value, int]) -> Access | None:
    """``access`` with the widest vectors that results are aligned for, where all that moves elements along a dimension
    are slices: of what these read vectors begin anywhere."""
    if any(op.row.indexed and op.name != "slice" for op in analysis.ops):
        return None
    extent, *steps = analysis.values(_steps_of_results, env)
    sizes = [analysis.stored(v).bytes for v in analysis.inputs + analysis.outputs]
    lanes = functools.reduce(lambda a, b: a | b, (extent, *(s for s in steps if s != 1), 8))
    aligned = [alignments.get(v, WIDEST) // analysis.stored(v).bytes for v in analysis.outputs]
    lanes = min(lanes & -lanes, WIDEST // max(sizes), *aligned)
    written = set(analysis.outputs)
    both = analysis.inputs + analysis.outputs
    aligns = tuple(n * lanes if v in written else n for v, n in zip(both, sizes))
    return access._replace(lanes=lanes, aligns=aligns, multiples=known_multiples(analysis, lanes, env, alignments))


def _steps_of_results(analysis: Analysis) -> tuple:
    """The innermost loop's extent, and how far steps along the loops are in results."""
    loops = analysis.loops(analysis.kept)
    return size_of(loops[-1]), *(analysis.axis_stride(v, loop[-1]) for v in analysis.outputs for loop in loops)


def _symbolic_lengths(analysis: Analysis, inner) -> set:
    """Sizes that vectors along the loop ``inner`` must not cross: its extents, and starts, extents and paddings of ops
    that index along a dimension. No others: each that is a multiple or not makes another variant."""
    out: set[Size] = {a.size for a in analysis.pinned if not isinstance(a.size, int)}
    for op in analysis.ops:
        if op.row.indexed:
            out |= {n for n in (*op.cuts, *op.attrs.get("size", ())) if not isinstance(n, int)}
            start: Size = 0
            for operand in op.operands if op.name == "concatenate" else ():
                start = start + operand.shape[op.attrs["axis"]]
                out |= {start} if not isinstance(start, int) else set()
            out |= {n for v in op.operands for n in v.shape if not isinstance(n, int)}
        elif op.row.kind == "random" and op.result.rank:
            out |= {op.result.shape[-1]} - {1}
    out |= {size_of(inner), *(a.size for a in inner)}
    return {n for n in out if not isinstance(n, int)}


def _pieces(analysis: Analysis) -> list[tuple[Size, set[Axis]]]:
    """The starts, paddings and pieces of ops that index along a dimension, which no vector may reach across: each with
    the axes along which indices count from there."""
    together, out = _connected(analysis), []
    for op in analysis.ops:
        if op.name in ("concatenate", "roll"):
            lengths = [v.shape[op.attrs["axis"]] for v in op.operands] if op.name == "concatenate" else op.cuts
            cuts = [(n, op.attrs["axis"]) for n in lengths]
        else:
            cuts = [(n, d) for d, n in enumerate(op.cuts)]
        for n, d in cuts:
            dims = [analysis.axes.dims(v)[d] for v in (op.result, op.operands[0])]
            out.append((n, {b for dim in dims for a in dim for b in together.get(a, {a})}))
    return [(n, along) for n, along in out if n != 0]


def _connected(analysis: Analysis) -> dict[Axis, set[Axis]]:
    """Axes between which indices go over: those of an operand's dimension and of the result's that it becomes. Where
    that is no dimension alone, as in a reshape, all of both."""
    groups: dict[Axis, set[Axis]] = {}
    dims = analysis.axes.dims
    for op in analysis.ops:
        for value, result in itertools.product(op.operands, op.results):
            target = dims(result)
            if op.name in ("slice", "pad", "concatenate", "roll") or op.row.kind in ("elementwise", "scan"):
                pairs = list(zip(dims(value), target))
            elif op.name == "broadcast_in_dim":
                pairs = [(dim, target[d]) for dim, d in zip(dims(value), op.attrs["dims"])]
            else:
                one, other = set(analysis.axes.flat(value)), set(analysis.axes.flat(result))
                pairs = [] if one <= other or other <= one else [(list(one), list(other))]
            for source, found in pairs:
                if source != found:
                    joined = {a for axis in (*source, *found) for a in groups.get(axis, {axis})}
                    groups.update(dict.fromkeys(joined, joined))
    return groups
