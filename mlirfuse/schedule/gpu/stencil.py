"""Stencils on a GPU: pointwise segments that read several neighbours of each element, some of them outside of the
tensor, such as pools of row-major images and their gradients.

A thread computes a vector of ``lanes`` elements along the innermost loop for each of ``rows_per_thread`` neighbouring
points of the loop around it. All elements that it reads are extracted from aligned vectors, each of which is loaded
once. Where padding begins is checked lane by lane, and only for lanes that may be outside. Threads are numbered along
the vectors of a row, then down: none is idle, whatever the extents."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from mlirfuse.analysis.phases import Analysis, points_of, size_of
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.access import access_of, check_exact, hint_of, of_results
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.gpu.scheduler import GpuScheduler
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.gpu.windows import read_at_once
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, power_of_two
from mlirfuse.schedule.tiling import Tiling

MOST_ROWS = 16
_NEAR = 8  # elements; vectors have at most so many
_WORD = 4  # bytes of a register
# Ops that map an index outside of an operand to one outside of theirs.
VIEWS = {"slice", "pad", "broadcast_in_dim", "permute", "squeeze", "expand_dims"}
CREATED = {"constant", "full", "iota", "size"}


class Own(NamedTuple):
    """``at_once``: elements per load."""

    at_once: int = 1


class _Kernel(GpuBody):
    """The kernel of a segment."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        self.k.tiled, self.k.runs = True, self.p.own.at_once
        *self.outer, self.inner = self.analysis.loops(self.analysis.kept)
        self.middle = self.outer.pop() if self.p.rows_per_thread > 1 else []

    def emit(self) -> GpuKernel:
        """The finished kernel."""
        k, p, analysis = self.k, self.p, self.analysis
        width, rows = size_of(self.inner), p.rows_per_thread
        vectors = sz.floordiv(width, self.lanes)
        tiles = sz.ceildiv(size_of(self.middle), rows) if self.middle else 1
        count = sz.mul(points_of(self.outer), tiles, vectors)
        number, valid = self.clamped(self.grid_thread(), count)
        down, vector = k.divmod(Index(number), vectors)
        around, tile = k.divmod(down, tiles) if self.middle else (down, Index(0))
        column = Index(k.scale(vector, self.lanes).base, int(self.lanes > 1), self.lanes, span=(0, width))
        env = self.placed(self.point(self.outer, around), self.inner, column)
        places = self.rows_of(env, tile, valid) if self.middle else [(env, valid)]
        for here, _ in places:
            for value in analysis.outputs:
                k.value(value, here)
        for here, inside in places:
            self.store_at(analysis.outputs, here, analysis.kept, inside, predicated=True)
        return self.finish(sz.ceildiv(count, p.tx))

    def rows_of(self, env: Env, tile: Index, valid: Val) -> list[tuple[Env, Val]]:
        """The env of each of a thread's rows, and whether it is the thread's to store: the last tile is moved up to end
        with the last row."""
        e, rows, height = self.e, self.p.rows_per_thread, size_of(self.middle)
        first = self.k.scalar(self.k.scale(tile, rows).base)
        full = isinstance(height, int) and height % rows == 0
        begin = first if full else e.min(first, self.size(height - rows))
        places = []
        for u in range(rows):
            row, divisor = e.add(begin, u) if u else begin, rows & -rows if full else 1
            at = Index(row, divisor=divisor, rest=u % divisor, span=(u, height - rows + u + 1))
            own = valid if full else e.and_(valid, e.cmp("ge", row, first))
            places.append((self.placed(env, self.middle, at), own))
        return places


class Reads(NamedTuple):
    """How a value is read along a loop: the first index of each result, and the steps between those of neighbouring
    results. ``times``: the indices that each element stands at."""

    starts: frozenset[int]
    step: int
    times: int

    def elements(self, results: int) -> int:
        """The number of elements that so many neighbouring results need."""
        if results * self.step % self.times:
            return results * len(self.starts)
        return len({(u * self.step + first) // self.times for u in range(results) for first in self.starts})

    def are_near(self) -> bool:
        """Whether vectors of results read from the same vectors, unlike halves of rows that are swapped."""
        starts = sorted(self.starts)
        return any(b - a < _NEAR * max(1, self.step) for a, b in itertools.pairwise(starts))


def reads(analysis: Analysis) -> list[tuple[Value, list[Reads]]]:
    """The values that are read at several indices along the innermost loop, and how along it and the one around it."""
    loops, result = analysis.loops(analysis.kept)[-2:], max(analysis.outputs, key=lambda v: v.rank)
    found: dict[Value, list[tuple[list[int], list[int], list[int]]]] = collections.defaultdict(list)
    inside, sliced = set(analysis.ops), {op.operands[0] for op in analysis.ops if op.name == "slice"}
    views = [op for op in analysis.ops if op.name in ("slice", "pad") and op.result not in sliced]
    views = [op for op in views if op.result.rank == result.rank]
    permuted = (op.result for op in views if loops[-1][-1] in analysis.axes.flat(op.result))  # results may be
    along = analysis.axes.dims(next(permuted, result))
    dims = [[d for d, dim in enumerate(along) if loop[-1] in dim] for loop in reversed(loops)]
    for op in views:
        value, *read = _origin(inside, op)
        starts, steps, times = ([of[d[0]] if d else none for d in dims] for of, none in zip(read, (0, 0, 1)))
        if all(isinstance(n, int) for n in (*starts, *steps)):
            found[value].append((starts, steps, times))
    out = []
    for value, places in found.items():
        along_loops = zip(*(zip(*of) for of in zip(*places)))
        each = [Reads(frozenset(first), max(steps), max(times)) for first, steps, times in along_loops]
        if len(each[0].starts) > 1 and any(one.are_near() for one in each):
            out.append((value, each))
    return out


def _origin(inside: set[Op], op: Op) -> tuple[Value, list, list, list[int]]:
    """What a slice or pad reads through others, and for each dimension the index of its first element, the step, and
    the indices that each element stands at."""
    rank = op.result.rank
    starts, steps = [0] * rank, [1] * rank
    value: Value = op.result
    while value.op in inside and value.op is not None and value.op.name in ("slice", "pad", "copy"):
        attrs = value.op.attrs
        for d in range(rank):
            if value.op.name == "slice":
                starts[d] = starts[d] * attrs["step"][d] + attrs["start"][d]
                steps[d] *= attrs["step"][d]
            elif value.op.name == "pad":
                starts[d] -= attrs["low"][d]
        value = value.op.operands[0]
    if value.op in inside and (times := repeats(value.op)):
        return value.op.operands[0].op.operands[0], starts, steps, times
    return value, starts, steps, [1] * rank


def repeats(op: Op | None) -> list[int] | None:
    """How often each element stands in a row along each dimension of a reshape, if it merges dimensions with those that
    a broadcast has put behind them, such as windows with the places that they begin at; None for others."""
    spread = op.operands[0].op if op is not None and op.name == "reshape" else None
    if op is None or spread is None or spread.name != "broadcast_in_dim":
        return None
    shape, d = spread.result.shape, 0
    times: list[int] = []
    varying = {d for d, n in zip(spread.attrs["dims"], spread.operands[0].shape) if n != 1}
    for extent in op.result.shape:
        together = d + 1 < len(shape) and d + 1 not in varying and sz.mul(shape[d], shape[d + 1]) == extent
        count = shape[d + 1] if together else 1
        if d == len(shape) or not (together or shape[d] == extent) or not isinstance(count, int):
            return None
        times.append(count)
        d += 1 + together
    return times if d == len(shape) else None


def _takes(analysis: Analysis) -> bool:
    if not any(op.name == "pad" for op in analysis.ops):
        return False  # nothing is outside: vectors of the pointwise scheduler share loads too
    known = all(
        op.row.kind == "elementwise" or op.name in VIEWS | CREATED or repeats(op) is not None for op in analysis.ops
    )
    return known and bool(analysis.loops(analysis.kept)) and bool(analysis.once(reads))


class Stencil(GpuScheduler):
    """Computes output elements from neighbours of input elements, some of them padding."""

    name = "stencil"
    fields = "access", "tx", "rows_per_thread"
    own = Own

    def takes(self, analysis: Analysis) -> bool:
        return analysis.elementwise and analysis.once(_takes)

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        heuristics = heuristics_of(call.properties).stencil
        access = of_results(analysis, access_of(analysis, True, call, hint_of(analysis, call)), call)
        at_once = read_at_once(analysis, call, along=True)
        if not at_once:
            return
        height, elements = analysis.values(_extents, call.sizes)
        most = elements // (heuristics.threads * call.properties.sm_count)  # of a thread: all multiprocessors have some
        times = analysis.once(_times)
        shapes = [(n, r) for n in (1, 2, 4, 8) for r in (1, 2, 4, 8) if n <= access.lanes and r <= height]
        if times > 1:  # rows that are moved up share nothing: none knows which element it repeats
            shapes = [(n, r) for n, r in shapes if height % r == 0]
        shapes = [(n, r) for n, r in shapes if n * r <= most] or [(1, 1)]
        shapes.sort(key=lambda shape: self.cost(analysis, heuristics.registers, *shape))
        below_a_word = all(analysis.stored(v).bytes < _WORD for v in analysis.outputs)
        if below_a_word and shapes[0] == (1, 1) and most >= _NEAR:
            return  # threads share nothing and write less than a word each: vectors across rows write more at once
        for lanes, rows in shapes:
            own = Own(min(at_once, max(lanes, 4 // _narrowest(analysis)) if times == 1 else max(lanes // times, 1)))
            narrow = of_results(analysis, access, call, lanes)
            yield Tiling("stencil", narrow, heuristics.threads, rows_per_thread=rows, own=own)

    @staticmethod
    def cost(analysis: Analysis, registers: int, lanes: int, rows: int) -> float:
        """Loads and stores per element; more than ``registers`` elements in a thread count as spilled."""
        loads, held = 0, lanes * rows * len(analysis.outputs)
        for _, (along, *around) in analysis.once(reads):
            count = around[0].elements(rows) if around else 1
            wide, at_once = along.elements(lanes), lanes // along.times
            loads += count * (wide if at_once <= 1 else -(-wide // at_once) + (len(along.starts) > 1))
            held += count * wide
        spilled = max(0, held - registers)
        return (loads + rows * len(analysis.outputs) + 2 * spilled) / (lanes * rows)

    def kernels(self, spec: KernelSpec) -> list[GpuKernel]:
        return [_Kernel(spec).emit()]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        height, _ = analysis.values(_extents, call.sizes)
        fits = 1 <= p.rows_per_thread <= min(height, MOST_ROWS)
        p.must("rows_per_thread", fits, f"must be from 1 to {min(height, MOST_ROWS)}")
        most = read_at_once(analysis, call, along=True)
        p.must("at_once", power_of_two(p.own.at_once) and p.own.at_once <= most, f"must be a power of two up to {most}")
        check_exact(p.access, of_results(analysis, access_of(analysis, True, call), call, p.access.lanes))


def _narrowest(analysis: Analysis) -> int:
    return min(v.dtype.bytes for v in analysis.inputs + analysis.outputs)


def _times(analysis: Analysis) -> int:
    """How often elements stand in a row along the innermost loop, at most."""
    return max(along.times for _, (along, *_) in analysis.once(reads))


def _extents(analysis: Analysis) -> tuple:
    """The extent of the loop around the innermost one if neighbouring points of it share elements, else 1, and the
    elements of the results."""
    shares = any(len(around[0].starts) > 1 for _, (_, *around) in analysis.once(reads) if around)
    loops = analysis.loops(analysis.kept)
    return size_of(loops[-2]) if shares else 1, size_of(analysis.domain)
