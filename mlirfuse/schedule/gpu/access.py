"""Memory accesses of GPU kernels: vector width, alignment and index width for the sizes and alignments of a call."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from mlirfuse.analysis import joint
from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, late_outputs, size_of
from mlirfuse.core.errors import ScheduleError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.kernel import PASS_L1, STAY_L2, WIDEST
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.scheduler import SizedCall, power_of_two, require
from mlirfuse.schedule.tiling import Access


def moved(analysis: Analysis, call: SizedCall) -> tuple[float, float]:
    """The sizes of a segment's inputs and of its outputs, as multiples of the L2 cache size."""
    read, written = analysis.values(_bytes, call.sizes)
    return read / call.properties.l2_bytes, written / call.properties.l2_bytes


def hint_of(analysis: Analysis, call: SizedCall) -> str:
    """The cache hint for inputs that are read once, depending on the bytes read and written."""
    heuristics, (read, written) = heuristics_of(call.properties).access, moved(analysis, call)
    if analysis.phases and analysis.once(only_reduces):
        return PASS_L1 if read <= heuristics.reduced else ""
    return STAY_L2 if read + written >= heuristics.staying and call.properties.cache_policies else ""


def only_reduces(analysis: Analysis) -> bool:
    """Whether rows or columns are only reduced, in one pass, without full-size outputs."""
    full, _ = late_outputs(analysis)
    return len(analysis.once(joint.online)) == 1 and not full


def _bytes(analysis: Analysis) -> tuple:
    """The total bytes of inputs and of outputs."""
    both = analysis.inputs, analysis.outputs
    return tuple(sum((sz.mul(v.numel, v.dtype.bytes) for v in values), 0) for values in both)


class _AccessFunctions:
    """Computes how a segment's tensors can be accessed along the innermost loop of its kept or its reduced axes. The
    computation is compiled to one Python function, ``bounds(env, alignments)``, because it runs at each call with new
    sizes. It returns whether offsets have 32 bits, the widest vectors, a number that vectors along the innermost loop
    have to divide, the maximal alignment of each tensor, and the sizes ``multiples``.

    Numbers that a power of two must all divide are or-ed: the lowest set bit of the result is the largest such power.
    The generated function's own names start with an underscore; symbols of sizes do not."""

    def __init__(self, analysis: Analysis, along_kept: bool):
        loops = analysis.loops(analysis.kept if along_kept else analysis.reduced)
        inner = loops[-1] if loops else []
        lane = inner[-1] if inner else None
        both = analysis.inputs + analysis.outputs
        tensors = list(dict.fromkeys(both))
        self.tensor_and_bytes = [(tensors.index(v), analysis.stored(v).bytes) for v in both]
        self.multiples = sorted(_symbolic_lengths(analysis, inner), key=str)
        ends = [loop[-1] for loop in analysis.loops(analysis.kept) + analysis.loops(analysis.reduced)]
        domain = set(analysis.domain)
        boundaries = _boundaries(analysis)
        cuts = [n for across in boundaries if lane in across and lane in analysis.pinned for n in boundaries[across]]
        extent, elements = size_of(inner), size_of(analysis.domain)
        numbers: set[Size] = {extent, elements, *self.multiples}.union(*boundaries.values())
        offsets: list[Size | str] = [elements]
        lines: list[str] = []
        wanted: list[int | str] = [1]
        for at, value in enumerate(tensors):
            axes, strides, nbytes = analysis.axes.flat(value), analysis.strides[value], analysis.stored(value).bytes
            unmapped = domain.issuperset(axes)  # then pinned axes are loops of their own
            along = analysis.axis_stride(value, lane) if lane else 0
            steps = [analysis.axis_stride(value, a) for a in (ends if unmapped else axes)]
            start = analysis.inside[value].start if value in analysis.inside else 0
            others = [s for s in dict.fromkeys(steps) if s not in (0, 1)]
            stepped: list[Size | str] = [s if isinstance(s, int) else f"({s} if {s} != 1 else 0)" for s in others]
            for across, lengths in boundaries.items():
                found = {analysis.axis_stride(value, a) for a in across}
                symbolic = [f"{s} == 1" for s in sorted(found - {1}, key=str) if not isinstance(s, int)]
                if 1 in found:
                    stepped += lengths
                elif symbolic:
                    stepped += [f"({n} if {' or '.join(symbolic)} else 0)" for n in lengths]
                numbers |= found
            lines.append(f"_limit{at} = {_ored(dict.fromkeys(stepped))} * {nbytes} | {WIDEST}")
            lines.append(f"_limit{at} |= _alignments.get(_value{at}, {WIDEST})")
            lines.append(f"_limit{at} &= -_limit{at}")
            if along == 1 or value in analysis.outputs:
                wanted.append(f"_limit{at} // {nbytes}")
            elif not isinstance(along, int):
                wanted.append(f"_limit{at} // {nbytes} if {along} == 1 else 1")
            moves = [(n, abs(s) if isinstance(s, int) else f"abs({s})") for n, s in zip(value.shape, strides)]
            offsets.append("+".join([str(start), *(f"({n}-1)*{s}" for n, s in moves)]))
            numbers.update((along, start, *steps, *value.shape, *strides))
        lines.append(f"_divided = {_ored([extent, 8, *cuts])}")
        lines.append(f"_lanes = max({sz.serialized(wanted)}) | _divided")
        narrow = f"max({sz.serialized(dict.fromkeys(offsets))}) < {2**31 - 2**20}"
        limits = sz.serialized(f"_limit{at}" for at in range(len(tensors)))
        bounds = f"{narrow}, _lanes & -_lanes, _divided, {limits}, {sz.serialized(self.multiples)}"
        values = {f"_value{at}": value for at, value in enumerate(tensors)}
        self.bounds = sz.function(bounds, sz.symbols_of(numbers), lines, ("env", "_alignments"), **values)
        self.of_bounds = functools.lru_cache(self._access)

    def access(self, call: SizedCall, hint: str) -> Access:
        """The widest accesses possible for a call."""
        narrow, lanes, _, limits, sizes = self.bounds(call.sizes, call.alignments)
        return self.of_bounds(narrow, lanes, limits, tuple([n % lanes == 0 for n in sizes]), hint)

    def _access(
        self, narrow: bool, lanes: int, limits: tuple[int, ...], divisible: tuple[bool, ...], hint: str
    ) -> Access:
        """The Access with 32-bit (``narrow``) or 64-bit offsets and ``lanes`` elements per vector. ``limits``: the
        maximal alignment of each tensor; ``divisible``: which of the candidate sizes are multiples of the lanes."""
        aligns = tuple([max(nbytes, min(limits[at], lanes * nbytes)) for at, nbytes in self.tensor_and_bytes])
        known = frozenset([n for n, multiple in zip(self.multiples, divisible) if multiple] if lanes > 1 else ())
        return Access(dt.i32 if narrow else dt.i64, lanes, aligns, known, hint)


def check(
    analysis: Analysis, access: Access, along_kept: bool, call: SizedCall, widest: Sequence[int], innermost: bool = True
) -> None:
    """Raise :class:`ScheduleError` if memory does not satisfy the assumptions of ``access`` for these sizes.
    ``widest``: the bytes of the widest vector of each input and output; ``innermost``: vectors are along the innermost
    loop, else the caller has to check that they divide theirs."""
    functions = analysis.once(_AccessFunctions, along_kept)
    narrow, _, divided, limits, multiples = functions.bounds(call.sizes, call.alignments)
    lanes, both = access.lanes, analysis.inputs + analysis.outputs
    require(power_of_two(lanes) and lanes <= 8, f"lanes = {lanes}: vectors have 1, 2, 4 or 8 elements")
    most = divided & -divided if divided else lanes
    require(
        lanes <= most or not innermost, f"lanes = {lanes}: at most {most} divide the contiguous extents for these sizes"
    )
    require(access.index in (dt.i32, dt.i64), f"index = {access.index}: must be i32 or i64")
    require(access.index is dt.i64 or narrow, "index = i32: for these sizes offsets need 64 bits")
    require(len(access.aligns) == len(both), f"aligns: needs {len(both)} numbers, one per input and output")
    for (at, nbytes), align, widest_bytes, value in zip(functions.tensor_and_bytes, access.aligns, widest, both):
        known = max(nbytes, min(limits[at], widest_bytes))
        aligned = power_of_two(align) and nbytes <= align <= known
        require(
            aligned, f"aligns: {align} bytes for {value!r}, but its vectors are only known to be aligned to {known}"
        )
    divisible = [n for n, size in zip(functions.multiples, multiples) if size % lanes == 0]
    for n in access.multiples:
        require(n in divisible, f"multiples: {n} is not known to be a multiple of {lanes}")
    hint, policies = access.hint, call.properties.cache_policies
    require(hint in ("", PASS_L1, STAY_L2), f"hint = '{hint}': must be '', '{PASS_L1}' or '{STAY_L2}'")
    require(hint != STAY_L2 or policies, f"hint = '{STAY_L2}': {call.properties.chip} has no L2 cache policies")


def check_exact(given: Access, found: Access | None, otherwise: str = "") -> None:
    """Raise :class:`ScheduleError` unless ``given`` is the access that a scheduler has ``found``, but for a wider
    index, another hint, or fewer known multiples. ``otherwise``: why it has found none."""
    if found is None:
        raise ScheduleError(otherwise)
    same = (given.lanes, given.aligns) == (found.lanes, found.aligns)
    require(same, f"access: must have lanes = {found.lanes} and aligns = {found.aligns}")
    known = given.multiples <= found.multiples
    require(known, f"multiples: not all are known to be multiples of {found.lanes}")
    require(given.index in (found.index, dt.i64), "index = i32: for these sizes offsets need 64 bits")


def _ored(numbers: Iterable[Size | str]) -> str:
    numbers = list(numbers)
    known = functools.reduce(operator.or_, (n for n in numbers if isinstance(n, int)), 0)
    return f"({'|'.join([str(known), *(f'({n})' for n in numbers if not isinstance(n, int))])})"


def access_of(analysis: Analysis, along_kept: bool, call: SizedCall, hint: str = "") -> Access:
    """The widest accesses possible along the innermost loop of the kept or the reduced axes, and the index width."""
    return analysis.once(_AccessFunctions, along_kept).access(call, hint)


def narrowed(analysis: Analysis, access: Access, lanes: int) -> Access:
    """``access`` with vectors of ``lanes`` elements, which divide its own lanes."""
    both = analysis.inputs + analysis.outputs
    aligns = [min(align, lanes * analysis.stored(v).bytes) for align, v in zip(access.aligns, both)]
    return access._replace(lanes=lanes, aligns=tuple(aligns), multiples=access.multiples if lanes > 1 else frozenset())


def by_vectors(analysis: Analysis, access: Access, lanes: int, wide: Collection[Value]) -> Access:
    """``access`` with aligned vectors of ``lanes`` elements of the tensors ``wide``; those of others may start at any
    element."""
    both = analysis.inputs + analysis.outputs
    aligns = [min(WIDEST, analysis.stored(v).bytes * (lanes if v in wide else 1)) for v in both]
    return access._replace(lanes=lanes, aligns=tuple(aligns), multiples=frozenset())


def widened(
    analysis: Analysis, access: Access, lanes: int, wide: Collection[Value], required: Iterable[Value], call: SizedCall
) -> Access | None:
    """``access`` with vectors of ``lanes`` elements of the tensors ``wide``, where those are aligned; None if one of
    the ``required`` ones is not."""
    nbytes = {v: min(WIDEST, analysis.stored(v).bytes * lanes) for v in wide}
    aligned = {v for v in wide if call.alignments.get(v, WIDEST) % nbytes[v] == 0}
    return by_vectors(analysis, access, lanes, aligned) if aligned.issuperset(required) else None


def widest_access(
    analysis: Analysis, wide: Collection[Value], required: Iterable[Value], call: SizedCall
) -> Access | None:
    """The access with vectors of 16 bytes of the widest type of the tensors ``wide``; None if one of the ``required``
    tensors is not aligned for them, or if ordinary accesses are as wide."""
    lanes = min(WIDEST // max(analysis.stored(v).bytes for v in wide), 8)
    ordinary = access_of(analysis, True, call, hint_of(analysis, call))
    return None if ordinary.lanes >= lanes else widened(analysis, ordinary, lanes, wide, required, call)


def stores_strided(analysis: Analysis, along_kept: bool, call: SizedCall) -> bool:
    """Whether rows (columns if ``along_kept``) have a large result that is contiguous in memory along another loop than
    threads go along, so that each of its elements would be a store of its own, to another cache line."""
    heuristics = heuristics_of(call.properties).transpose
    extent, elements, *others = analysis.values(_results_along, call.sizes, along_kept)
    if extent <= heuristics.least_extent or elements < heuristics.stages:
        return False
    loops = 2 * len(analysis.loops(analysis.kept) + analysis.loops(analysis.reduced)) + 1
    for at in range(0, len(others), loops):
        along, *rest = others[at : at + loops]
        contiguous = (n > heuristics.least_extent for step, n in zip(rest[::2], rest[1::2]) if step == 1)
        if along not in (0, 1) and any(contiguous):
            return True
    return False


def _results_along(analysis: Analysis, along_kept: bool) -> tuple:
    """The extent of the innermost loop over the kept or the reduced axes, the elements of the domain, and for each
    result over reduced axes its stride along that loop, and its stride along every loop with the loop's extent."""
    loops = analysis.loops(analysis.kept) + analysis.loops(analysis.reduced)
    inner = analysis.loops(analysis.kept if along_kept else analysis.reduced)[-1]
    numbers = [size_of(inner), size_of(analysis.domain)]
    for value in late_outputs(analysis)[0]:
        numbers.append(analysis.axis_stride(value, inner[-1]))
        for loop in loops:
            numbers += [analysis.axis_stride(value, loop[-1]), size_of(loop)]
    return tuple(numbers)


def known_multiples(analysis: Analysis, lanes: int, call: SizedCall) -> frozenset[Any]:
    """The sizes along the kept axes that are multiples of ``lanes``."""
    functions = analysis.once(_AccessFunctions, True)
    *_, sizes = functions.bounds(call.sizes, call.alignments)
    return frozenset(n for n, size in zip(functions.multiples, sizes) if lanes > 1 and size % lanes == 0)


def of_slices(analysis: Analysis, access: Access, call: SizedCall) -> Access | None:
    """``access`` with the widest vectors that results are aligned for; vectors of sliced inputs may be unaligned. None
    if an op other than a slice remaps indices."""
    if any(op.row.indexed and op.name != "slice" for op in analysis.ops):
        return None
    return of_results(analysis, access, call)


def of_results(analysis: Analysis, access: Access, call: SizedCall, most: int = 8) -> Access:
    """``access`` with the widest vectors that results are aligned for, at most ``most`` elements; those of inputs may
    be unaligned."""
    extent, *steps = analysis.values(_steps_of_results, call.sizes)
    sizes = [analysis.stored(v).bytes for v in analysis.inputs + analysis.outputs]
    lanes = functools.reduce(lambda a, b: a | b, (extent, *(s for s in steps if s != 1), 8))
    aligned = [call.alignments.get(v, WIDEST) // analysis.stored(v).bytes for v in analysis.outputs]
    lanes = min(lanes & -lanes, WIDEST // max(sizes), most, *aligned)
    found = by_vectors(analysis, access, lanes, analysis.outputs)
    return found._replace(multiples=known_multiples(analysis, lanes, call))


def _steps_of_results(analysis: Analysis) -> tuple:
    """The innermost loop's extent, and the strides of results along each loop."""
    loops = analysis.loops(analysis.kept)
    return size_of(loops[-1]), *(analysis.axis_stride(v, loop[-1]) for v in analysis.outputs for loop in loops)


def _symbolic_lengths(analysis: Analysis, inner) -> set:
    """Symbolic sizes at whose multiples vectors along the loop ``inner`` must end: the loop's extents, and the starts,
    extents and paddings of ops that remap indices. It is a minimal set, since each of these sizes may double the number
    of compiled programs."""
    out: set[Size] = {a.size for a in analysis.pinned if not isinstance(a.size, int)}
    for op in analysis.ops:
        if op.row.indexed:
            out |= {*op.cuts, *op.attrs.get("size", ()), *(n for v in op.operands for n in v.shape)}
            if op.name == "concatenate":
                out |= set(itertools.accumulate(v.shape[op.attrs["axis"]] for v in op.operands))
        elif op.row.kind == "random" and op.result.rank:
            out |= {op.result.shape[-1]} - {1}
    out |= {size_of(inner), *(a.size for a in inner)}
    return {n for n in out if not isinstance(n, int)}


def _boundaries(analysis: Analysis) -> dict[frozenset[Axis], list[Size]]:
    """The starts, paddings and operand lengths of ops that remap indices, which no vector may cross, by the axes along
    which they count."""
    connected = _connected(analysis)
    out: dict[frozenset[Axis], list[Size]] = {}
    for op in analysis.ops:
        if op.name in ("concatenate", "roll"):
            lengths = [v.shape[op.attrs["axis"]] for v in op.operands] if op.name == "concatenate" else op.cuts
            cuts = [(n, op.attrs["axis"]) for n in lengths]
        else:
            cuts = [(n, d) for d, n in enumerate(op.cuts)]
        for d in dict.fromkeys(d for n, d in cuts if n != 0):
            dims = [analysis.axes.dims(v)[d] for v in (op.result, op.operands[0])]
            across = frozenset(b for dim in dims for a in dim for b in connected.get(a, {a}))
            out.setdefault(across, []).extend(n for n, along in cuts if along == d and n != 0)
    return out


def _connected(analysis: Analysis) -> dict[Axis, set[Axis]]:
    """Axes that an op maps to each other: those of an operand's dimension and of the corresponding result dimension.
    For ops without a correspondence of dimensions, such as reshapes, all axes of both."""
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
                    union = {a for axis in (*source, *found) for a in groups.get(axis, {axis})}
                    groups.update(dict.fromkeys(union, union))
    return groups
