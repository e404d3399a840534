"""Reductions and normalizations on the CPU.

*Inner*: the reduced axes are the contiguous ones. A task is a row (one point of the kept axes); each phase of reductions passes over
the row, which stays in the cache, and so does the writing of full-size outputs.

*Outer*: a kept axis is the contiguous one. A task is a block of columns, whose accumulators stay in registers while the rows go by.

*Split*: where there are too few tasks to share, a task takes a part of the reduced range and stores its accumulators; a second
kernel combines them. Only for a single phase whose outputs are all over the kept axes.

Sums run in blocks of :data:`BLOCK` vectors that are added up, which keeps the error near that of pairwise summation.
"""

from __future__ import annotations

from mlirfuse import dtypes as dt
from mlirfuse import ops as table
from mlirfuse import sizes as sz
from mlirfuse.graph import Op, Value
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index, Memory
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.analysis import Analysis, size_of
from mlirfuse.schedule.cpu import I64, CpuBody, CpuKernel, lanes_of, rows_grain, store_outputs

BLOCK = 64


def is_outer(analysis: Analysis, hint: dict[str, int]) -> bool:
    """Whether memory runs along a kept axis: the smallest stride of the widest input is not a reduced axis'."""
    if not analysis.kept:
        return False
    inputs = [v for v in analysis.inputs if set(analysis.reduced) & set(analysis.axes.flat(v))]
    if not inputs:
        return False
    main = max(inputs, key=lambda v: len(analysis.axes.flat(v)))

    def stride(axis):
        value = abs(sz.substitute(analysis.axis_stride(main, axis), hint))
        return value or 1 << 62

    return min(map(stride, analysis.kept)) < min(map(stride, analysis.reduced))


def _late_outputs(analysis: Analysis) -> tuple[list[Value], list[Value]]:
    """Outputs over the whole domain (or with a reduced axis), and outputs over kept axes only."""
    reduced = set(analysis.reduced)
    full = [v for v in analysis.outputs if reduced & set(analysis.axes.flat(v))]
    return full, [v for v in analysis.outputs if v not in full]


def can_split(analysis: Analysis) -> bool:
    return len(analysis.phases) == 1 and not _late_outputs(analysis)[0]


def cpu(name: str, analysis: Analysis, slots: Slots, outer: bool, split: int) -> list[CpuKernel]:
    """The kernels that compute ``analysis`` on the CPU; two if ``split`` > 1, the number of parts of the reduced range."""
    first = (_columns if outer else _rows)(name, analysis, slots, split)
    return [first] if split == 1 else [first, _finish(f"{name}_finish", analysis, slots, split)]


def _cost(reductions: list[Op], analysis: Analysis) -> int:
    return sum(table.TABLE[op.name].cost for op in analysis.ops if op.name in table.TABLE)


def _partials(body: CpuBody, reductions: list[Op], kept: sz.Size, split: int) -> list[tuple[Op, int, Memory]]:
    """The buffers of a split reduction's accumulators: [split, kept] each."""
    out = []
    for op in reductions:
        for part, dtype in enumerate(red.accumulator_types(op)):
            stored = dt.u8 if dtype is dt.bool_ else dtype
            nbytes = sz.mul(kept, split, stored.bytes)
            out.append((op, part, Memory(body.args.temporary((op, part), nbytes), (), stored, stored.bytes)))
    return out


def _rows(name: str, analysis: Analysis, slots: Slots, split: int) -> CpuKernel:
    body = CpuBody(name, analysis, slots)
    e, k = body.e, body.k
    kept_loops, loops = analysis.loops(analysis.kept), analysis.loops(analysis.reduced)
    kept = sz.product(a.size for a in analysis.kept)
    lanes = lanes_of(analysis)
    full, small = _late_outputs(analysis)
    unroll = 4 if _cost([], analysis) < 24 else 1

    def span(low, high, part):
        """The range of the outermost reduced loop that this task takes."""
        if split == 1:
            return low, high
        step = body.size(sz.mul(sz.ceildiv(size_of(loops[0]), split * lanes), lanes) if len(loops) == 1 else sz.ceildiv(size_of(loops[0]), split))
        start = e.min(e.mul(part, step), high)
        return start, e.min(e.add(start, step), high)

    def over_row(env: Env, carried, step, part, blocked=False):
        """Runs ``step(env, mask, carried)`` over the reduced axes, the innermost in vectors."""

        def nest(depth, env, carried):
            low, high = e.const(0, I64), body.size(size_of(loops[depth]))
            if depth == 0:
                low, high = span(low, high, part)
            if depth < len(loops) - 1:

                def inside(i, state):
                    deeper = dict(env)
                    body.set_loop(deeper, loops[depth], Index(i))
                    return nest(depth + 1, deeper, state)

                return body.loop(low, high, 1, carried, inside)

            def vector(i, mask, state):
                here = dict(env)
                body.set_loop(here, loops[depth], i)
                return step(here, mask, state)

            if not blocked:
                return body.vectors(low, high, lanes, carried, vector, unroll if carried else 1)
            return body.loop(low, high, BLOCK * lanes * unroll, carried, lambda i, state: block(i, high, state, vector))

        def block(i, high, state, vector):
            stop = e.min(e.add(i, BLOCK * lanes * unroll), high)
            fresh = [v for _ in range(unroll) for v in body.identities(blocked, lanes)]
            done = body.vectors(i, stop, lanes, fresh, vector, unroll)
            return _merge(e, blocked, state, _fold(e, blocked, done, unroll))

        return nest(0, env, carried)

    def task(index):
        part = e.const(0, I64)
        if split > 1:
            at, which = k.divmod(Index(index), split)
            index, part = k.scalar(at.base), k.scalar(which.base)
        env: Env = {}
        body.unlinear(env, kept_loops, index)
        for phase in analysis.phases:
            start = body.identities(phase, lanes)
            done = over_row(env, start, lambda here, mask, state: body.accumulate(phase, here, mask, state, lanes), part, phase)
            for op, accumulator in zip(phase, _grouped(phase, done)):
                total = red.across_lanes(e, op, accumulator)
                if split == 1:
                    k.bind(op.result, env, red.result(e, op, total))
                else:
                    for (owner, p, memory) in partials:
                        if owner is op:
                            _store_partial(body, memory, e.add(e.mul(part, body.size(kept)), index), total[p])
        if full:

            def write(here, mask, state):
                store_outputs(body, full, here, analysis.domain)
                return []

            over_row(env, [], write, part)
        if small and split == 1:
            store_outputs(body, small, env, analysis.kept)

    partials = _partials(body, analysis.phases[0], kept, split) if split > 1 else []
    body.tasks(task)
    length = sz.product(a.size for a in analysis.reduced)
    return body.finish(sz.mul(kept, split), rows_grain(length) if split == 1 else 1)


def _columns(name: str, analysis: Analysis, slots: Slots, split: int) -> CpuKernel:
    body = CpuBody(name, analysis, slots)
    e, k = body.e, body.k
    kept_loops, loops = analysis.loops(analysis.kept), analysis.loops(analysis.reduced)
    kept = sz.product(a.size for a in analysis.kept)
    inner, outer = kept_loops[-1], kept_loops[:-1]
    lanes = lanes_of(analysis)
    vectors = 8 if sum(len(red.accumulator_types(op)) for op in analysis.phases[0]) == 1 and lanes > 1 else 2
    block = lanes * vectors
    blocks = sz.ceildiv(size_of(inner), block)
    full, small = _late_outputs(analysis)
    partials = _partials(body, analysis.phases[0], kept, split) if split > 1 else []

    def over_rows(env, carried, step, part):
        def nest(depth, env, carried):
            low, high = e.const(0, I64), body.size(size_of(loops[depth]))
            if depth == 0 and split > 1:
                length = body.size(sz.ceildiv(size_of(loops[0]), split))
                low = e.min(e.mul(part, length), high)
                high = e.min(e.add(low, length), high)

            def inside(i, state):
                deeper = dict(env)
                body.set_loop(deeper, loops[depth], Index(i))
                return step(deeper, state) if depth == len(loops) - 1 else nest(depth + 1, deeper, state)

            if depth == len(loops) - 1 and carried:  # blocked, as in rows: the carried sums stay near each other in size

                def one_block(i, state):
                    stop = e.min(e.add(i, BLOCK * 4), high)
                    width = len(state) // len(body.identities(analysis.phases[0], lanes)) if state else 1
                    fresh = [v for _ in range(width) for v in body.identities(current[0], lanes)]
                    done = body.loop(i, stop, 1, fresh, inside)
                    return [x for w in range(width) for x in _merge(e, current[0], state[w * per() : (w + 1) * per()], done[w * per() : (w + 1) * per()])]

                return body.loop(low, high, BLOCK * 4, carried, one_block)
            return body.loop(low, high, 1, carried, inside)

        return nest(0, env, carried)

    current: list[list[Op]] = [analysis.phases[0]]

    def per():
        return len(body.identities(current[0], lanes))

    def columns(env, starts, mask, part, index_base):
        """All phases and outputs for some vectors of columns; ``starts``: each vector's index along the inner kept loop."""

        def at(here, start):
            new = dict(here)
            body.set_loop(new, inner, start)
            return new

        for phase in analysis.phases:
            current[0] = phase
            carried = [v for _ in starts for v in body.identities(phase, lanes)]
            width = per()

            def step(here, state):
                out = []
                for w, start in enumerate(starts):
                    out += body.accumulate(phase, at(here, start), mask, state[w * width : (w + 1) * width], lanes)
                return out

            done = over_rows(env, carried, step, part)
            for w, start in enumerate(starts):
                for op, total in zip(phase, _grouped(phase, done[w * width : (w + 1) * width])):
                    if split == 1:
                        k.bind(op.result, at(env, start), red.result(e, op, total))
                    else:
                        for owner, p, memory in partials:
                            if owner is op:
                                offset = e.add(e.add(e.mul(part, body.size(kept)), index_base), k.scalar(start.base))
                                _store_partial(body, memory, offset, total[p], mask)
        if full:

            def write(here, state):
                for start in starts:
                    store_outputs(body, full, at(here, start), analysis.domain)
                return []

            over_rows(env, [], write, part)
        if small and split == 1:
            for start in starts:
                store_outputs(body, small, at(env, start), analysis.kept)

    def task(index):
        part = e.const(0, I64)
        if split > 1:
            rest, which = k.divmod(Index(index), split)
            index, part = k.scalar(rest.base), k.scalar(which.base)
        row, column = k.divmod(Index(index), blocks)
        env: Env = {}
        body.unlinear(env, outer, k.scalar(row.base))
        low = e.mul(k.scalar(column.base), block)
        extent = body.size(size_of(inner))
        base = e.mul(k.scalar(row.base), extent)
        whole = e.cmp("le", e.add(low, block), extent)
        with k.region(f"scf.if {whole} {{", "} else {"):
            columns(env, [Index(e.add(low, w * lanes), 1, lanes) for w in range(vectors)], None, part, base)
        e.depth += 1
        k._memo.append({})

        def edge(i, mask, state):
            columns(env, [i], mask, part, base)
            return []

        body.vectors(low, extent, lanes, [], edge)
        k._memo.pop()
        e.depth -= 1
        e.line("}")

    body.tasks(task)
    rows = sz.product(a.size for a in analysis.reduced)
    tasks = sz.mul(sz.product(size_of(loop) for loop in outer), blocks, split)
    return body.finish(tasks, rows_grain(sz.mul(rows, block)) if split == 1 else 1)


def _finish(name: str, analysis: Analysis, slots: Slots, split: int) -> CpuKernel:
    """Combines the parts of a split reduction and computes what depends on it: a task is a point of the kept axes."""
    body = CpuBody(name, analysis, slots)
    e = body.e
    kept = sz.product(a.size for a in analysis.kept)
    (phase,) = analysis.phases
    partials = _partials(body, phase, kept, split)

    def task(index):
        env: Env = {}
        body.unlinear(env, analysis.loops(analysis.kept), index)

        def add(i, state):
            out, at = [], 0
            for op in phase:
                width = len(red.accumulator_types(op))
                offset = e.add(e.mul(i, body.size(kept)), index)
                parts = tuple(_load_partial(body, memory, offset, red.accumulator_types(op)[p]) for owner, p, memory in partials if owner is op)
                out += red.combine(e, op, tuple(state[at : at + width]), parts)
                at += width
            return out

        done = body.loop(e.const(0, I64), e.const(split, I64), 1, body.identities(phase, 1), add)
        for op, total in zip(phase, _grouped(phase, done)):
            body.k.bind(op.result, env, red.result(e, op, total))
        store_outputs(body, analysis.outputs, env, analysis.kept)

    body.tasks(task)
    return body.finish(kept, rows_grain(split))


def _store_partial(body: CpuBody, memory: Memory, offset: Val, val: Val, mask: Val | None = None) -> None:
    e = body.e
    val = e.cast(val, memory.dtype)
    address = body.k.address(memory, offset)
    if mask is None or val.lanes == 1:
        e.line(f"llvm.store {val}, {address} {{alignment = {memory.dtype.bytes} : i64}} : {val.type}, !llvm.ptr")
    else:
        e.line(f"llvm.intr.masked.store {val}, {address}, {mask} {{alignment = {memory.dtype.bytes} : i32}} : {val.type}, {mask.type} into !llvm.ptr")


def _load_partial(body: CpuBody, memory: Memory, offset: Val, dtype: dt.DType) -> Val:
    address = body.k.address(memory, offset)
    val = body.e.op(f"llvm.load {address} : !llvm.ptr -> {memory.dtype.memory}", memory.dtype)
    return body.e.cast(val, dtype)


def _grouped(reductions: list[Op], flat: list[Val]) -> list[tuple[Val, ...]]:
    out, at = [], 0
    for op in reductions:
        width = len(red.accumulator_types(op))
        out.append(tuple(flat[at : at + width]))
        at += width
    return out


def _merge(e, reductions: list[Op], a: list[Val], b: list[Val]) -> list[Val]:
    pairs = zip(reductions, _grouped(reductions, a), _grouped(reductions, b))
    return [v for op, x, y in pairs for v in red.combine(e, op, x, y)]


def _fold(e, reductions: list[Op], flat: list[Val], sets: int) -> list[Val]:
    """Combines ``sets`` sets of accumulators pairwise."""
    width = len(flat) // sets
    groups = [flat[i * width : (i + 1) * width] for i in range(sets)]
    while len(groups) > 1:
        groups = [_merge(e, reductions, groups[i], groups[i + 1]) if i + 1 < len(groups) else groups[i] for i in range(0, len(groups), 2)]
    return groups[0]
