"""Row scans on a GPU, along contiguous memory: a row is scanned by some lanes of a warp, a warp, or a block.

In an iteration each thread has some vectors of the row; those of a warp are contiguous. A thread scans the elements of
its vectors, the lanes of the warp scan the totals by shuffles, and the warps scan theirs through shared memory. Each
element then combines the carried state before the iteration with those before its warp, vector and thread. A row longer
than an iteration takes several, in a loop: one pass over memory for any number of dependent scans.

If memory is not aligned for vectors, as in rows of odd length, elements are *striped*: a warp reads neighbouring
elements together, and transposes them through shared memory, so that a lane scans consecutive elements; results are
transposed back.

Reductions of the same rows come first, with one pass over the row per phase. Rows of one iteration stay in registers;
longer rows are read again from the caches, which must hold all rows that are processed concurrently.

A few long rows use a *chained* scan: each block has one iteration, and gets the prefix before it from the blocks of the
earlier iterations (``gpu/chained_scan.py``), again with one pass over memory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis, apart, is_outer, row_extents, size_of
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.access import access_of, hint_of, narrowed
from mlirfuse.schedule.gpu.chained_scan import Asker
from mlirfuse.schedule.gpu.row_body import Place, row_inputs
from mlirfuse.schedule.gpu.scan_body import Places, ScanKernel, elements_of, numbers, pairs, widest_bytes
from mlirfuse.schedule.gpu.scheduler import WARP, GpuScheduler, chained
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, power_from, power_of_two, require
from mlirfuse.schedule.tiling import Access, Tiling

MOST_REGISTER_ELEMENTS = 64  # per thread and iteration: their states are in registers together
SHARED = 44 << 10  # bytes of shared memory for elements


class ScanRows(GpuScheduler):
    """Scans along rows, fused with elementwise ops on their domain."""

    name = "scan_rows"
    fields = "access", "tx", "ty", "vectors_per_thread", "persistent", "in_shared", "chained"

    def takes(self, analysis: Analysis) -> bool:
        return bool(analysis.scans)

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        if is_outer(analysis, call.sizes):
            return
        found = self._modelled(analysis, call)
        yield from (p for p in found if not analysis.phases or _at_once(analysis, p, call))

    def _modelled(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        access = access_of(analysis, False, call, hint_of(analysis, call))
        kept, length = analysis.values(row_extents, call.sizes)
        heuristics = heuristics_of(call.properties).scans
        besides, scan = analysis.once(_costs)
        widest = analysis.once(widest_bytes)
        narrow = access.lanes < min(heuristics.lanes, 16 // widest) and scan >= heuristics.costly_scan
        if access.lanes == 1 or access.lanes * widest < heuristics.vector or narrow:
            yield from self._striped(analysis, narrowed(analysis, access, 1), kept, length, call.properties)
        needed = -(-length // access.lanes)  # vectors of a row

        def params(most_threads: int, vectors: int) -> Tiling:
            tx = min(power_from(needed), most_threads)
            if needed > WARP:
                tx = max(WARP, min(most_threads, power_from(-(-needed // vectors))))
            vectors = min(vectors, -(-needed // tx))
            ty = max(1, min(heuristics.short_block // tx, power_from(kept))) if tx <= WARP else 1
            return Tiling("scan_rows", access, tx, ty, vectors, persistent=needed <= tx * vectors)

        short = widest <= heuristics.short
        costly = short and besides >= heuristics.costly
        usual = max(1, elements_of(analysis, heuristics.elements) // (2 if costly else 1) // access.lanes)
        block = heuristics.alone if kept < heuristics.few * call.properties.sm_count else heuristics.block
        first = params(block, usual)
        if not first.persistent and short and not costly:
            usual = max(usual, heuristics.elements // access.lanes)
            first = params(block, usual)
        if not first.persistent and (costly or scan >= heuristics.costly_scan or analysis.once(numbers) > 1):
            first = min(first, *(params(first.tx >> n, usual) for n in (1, 2)), key=lambda p: _idle(p, length))
        if not first.persistent and analysis.phases:  # a row that is register-resident in a larger block is read once
            first = min(first, params(heuristics.alone, usual), key=lambda p: not p.persistent)
        most = max(1, elements_of(analysis, heuristics.chained.elements) // access.lanes)
        yield from self._chained(analysis, params(heuristics.chained.block, most), kept, length, call.properties)
        tried = itertools.product((heuristics.block, WARP, heuristics.alone), (usual, 1, max(1, usual // 2)))
        yield from [first, *(params(*given) for given in tried)]

    def _chained(
        self, analysis: Analysis, p: Tiling, rows: int, length: int, properties: DeviceProperties
    ) -> Iterator[Tiling]:
        """``p`` as a chained scan, if there are few long rows."""
        heuristics = heuristics_of(properties).scans.chained
        few = rows <= properties.sm_count // 2 and p.tx >= WARP and _iterations(p, length) >= heuristics.iterations
        p = p._replace(chained=1, persistent=False)
        if few and not analysis.phases and analysis.once(apart) and not _long_chain(analysis, p, length):
            yield p

    def _striped(
        self, analysis: Analysis, access: Access, rows: int, length: int, properties: DeviceProperties
    ) -> Iterator[Tiling]:
        scans = heuristics_of(properties).scans
        heuristics, costly = scans.striped, analysis.once(_costs)[0] >= scans.costly

        def params(most_threads: int, elements: int) -> Tiling:
            """Parameters with at most ``elements`` elements per thread; fewer if the row fits in one iteration, but an
            odd number, which needs no padding in shared memory."""
            tx = min(power_from(-(-length // elements_of(analysis, heuristics.short))), most_threads)
            if tx <= WARP:
                few = min(heuristics.few, elements)
                tx = 1 if length <= min(heuristics.alone, few) else min(max(2, power_from(-(-length // few))), WARP)
            looped = length > tx * elements
            count = elements if looped else -(-length // tx)
            if not looped and not costly and tx not in (1, WARP):
                count |= 1
            block = heuristics.block_of_few if count <= heuristics.few + 1 else heuristics.block
            ty = min(block // tx, power_from(-(-rows // properties.sm_count))) if tx <= WARP else 1
            return Tiling("scan_rows", access, tx, max(1, ty), count, persistent=not looped, in_shared=True)

        first = params(heuristics.threads, elements_of(analysis, heuristics.elements))
        if not first.persistent and costly:
            first = first._replace(vectors_per_thread=elements_of(analysis, heuristics.costly))
        busy = heuristics.busy * properties.sm_count
        while not first.persistent and first.tx < scans.alone and rows * first.tx < busy:
            wide = params(2 * first.tx, elements_of(analysis, heuristics.short))
            wide = params(2 * first.tx, elements_of(analysis, heuristics.wide)) if not wide.persistent else wide
            if wide.tx == first.tx or _striped_bytes(analysis, wide) > SHARED:
                break
            first = wide
        most = elements_of(analysis, heuristics.reduced) + 1
        if analysis.phases and (not first.persistent or first.vectors_per_thread > most):
            counts = (elements_of(analysis, n) for n in (heuristics.reduced, heuristics.elements))
            wider = [params(n * heuristics.threads, most) for most in counts for n in (1, 2, 4)]
            first = min((p for p in wider if _striped_bytes(analysis, p) <= SHARED), key=lambda p: not p.persistent)
        if not first.persistent:
            chained_heuristics = scans.chained
            block, usual = chained_heuristics.striped, elements_of(analysis, chained_heuristics.elements)
            tried = (params(block, usual >> n) for n in range(usual.bit_length()))
            chained = next(p for p in tried if _striped_bytes(analysis, p) <= SHARED)
            yield from self._chained(analysis, chained, rows, length, properties)
        others = [params(n, elements_of(analysis, heuristics.short)) for n in (WARP, 2 * heuristics.threads)]
        yield from [first, *others]

    def kernels(self, spec: KernelSpec) -> list[GpuKernel]:
        kernel = _Kernel(spec)
        for phase in joint.in_phases(spec.analysis):
            kernel.reduce(phase)
        return kernel.emit(sz.ceildiv(kernel.chains, spec.params.ty))

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        _, length = analysis.values(row_extents, call.sizes)
        self.check_access(analysis, p, False, call)
        require(p.ty == 1 or p.tx <= WARP, f"ty = {p.ty}: must be 1 for rows of more than a warp")
        iteration = p.tx * p.width
        power = power_of_two(p.vectors_per_thread) or (p.vectors_per_thread > 0 and p.persistent)
        few = f"must be a power of two in loops, with at most {MOST_REGISTER_ELEMENTS} elements per thread"
        p.must("vectors_per_thread", power and p.width <= MOST_REGISTER_ELEMENTS, few)
        require(not p.in_shared or p.access.lanes == 1, "in_shared: needs lanes = 1")
        nbytes = _striped_bytes(analysis, p)
        require(nbytes <= SHARED, f"in_shared: needs {nbytes} bytes of shared memory, {SHARED} are available")
        alone = p.ty == 1 and p.tx >= WARP and not p.persistent and analysis.once(apart) and not analysis.phases
        needs = "needs persistent = false, ty = 1, a warp or more, and independent scans without reductions"
        p.must("chained", not p.chained or alone, needs)
        sums = f"sums over {length // iteration} iterations need a kernel of their own (multi_stage)"
        require(not _long_chain(analysis, p, length), f"persistent = false: {sums}")
        fits = not p.persistent or length <= iteration
        require(fits, f"persistent: an iteration has {iteration} elements, but a row has {length}")


def _at_once(analysis: Analysis, p: Tiling, call: SizedCall) -> bool:
    """Whether a kernel that reduces rows before it scans them reads memory only once: L2 holds the rows that are
    processed concurrently, and as much output."""
    kept, length = analysis.values(row_extents, call.sizes)
    if p.persistent:
        return True
    properties, (streamed, _) = call.properties, analysis.once(row_inputs)
    rows = min(kept, properties.sm_count * (properties.threads_per_sm // (p.tx * p.ty)) * p.ty)
    nbytes = rows * length * sum(analysis.stored(v).bytes for v in streamed)
    return nbytes <= properties.l2_bytes // 2 and not _long_chain(analysis, p, length)


def _costs(analysis: Analysis) -> tuple[int, int]:
    """The instructions per element besides its scans, and those of its most expensive scan."""
    ops = [op for op in analysis.ops if not op.row.view and op not in analysis.scans]
    return sum(op.row.cost for op in ops), max(op.row.cost for op in analysis.scans)


def _idle(p: Tiling, length: int) -> float:
    """The missing elements of the last iteration, relative to a row, rounded to tenths."""
    iteration = p.tx * p.width
    return round(-length % iteration / length, 1)


def _iterations(p: Tiling, length: int) -> int:
    """The number of full iterations per row."""
    return length // (p.tx * p.width)


def _long_chain(analysis: Analysis, p: Tiling, length: int) -> bool:
    """Whether sums over iterations, or over groups of them, are too long a chain of uncompensated additions."""
    return chained(analysis, _iterations(p, length) // (p.tx if p.chained else 1))


class _Kernel(ScanKernel):
    """The kernel of a segment. A thread has some vectors of a row."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        analysis, p = spec.analysis, spec.params
        e = self.e
        self.chains = kept = size_of(analysis.kept)
        self.width, self.iteration = width, _ = min(p.tx, WARP), p.tx * p.width
        self.iterations = sz.ceildiv(self.length, self.iteration)
        self.x = x = e.and_(self.thread, p.tx - 1) if p.ty > 1 else self.thread
        self.lane, self.warp, self.warps = e.and_(x, width - 1), self.quotient(x, width), p.tx // width
        self.row = self.own_row(self.k.scalar(self.begin(kept, p.tx).base), kept)
        self.env = self.point(analysis.loops(analysis.kept), Index(self.row))
        self.first = self.wide(e.mul(e.add(e.mul(self.warp, width * p.vectors_per_thread), self.lane), self.lanes))
        # Short rows take 2% less time without a branch for each store. If registers are scarce, ptxas spills more.
        self.predicated = not p.chained and (analysis.once(pairs) or analysis.once(numbers) == 1)
        self.reserve_states(2 * self.warps * 8, self.warps > 1 or p.chained > 0)
        nbytes = _striped_bytes(analysis, p)
        self.stripes = _Stripes(self, self.lane, width, p.vectors_per_thread, nbytes) if p.in_shared else None

    def reduce(self, phase: list[Op]) -> None:
        """Compute the reductions of a phase, before the scans."""
        e, p = self.e, self.p
        low, high = e.const(0, self.index), self.size(self.length)

        def reduced(start: Val, state: list[Val]) -> list[Val]:
            return self.accumulated(phase, [Place(*place) for place in self.loaded(start)[0]], state)

        nothing = self.identities(phase, self.lanes)
        found = self.loop(low, high, self.iteration, nothing, reduced) if not p.persistent else reduced(low, nothing)
        totals = [red.across_lanes(e, op, a) for op, a in zip(phase, red.grouped(phase, found))]
        self.bind(phase, self.across_block(phase, totals, p.tx), self.env)

    def places(self, start: Val) -> list[Places]:
        e, step = self.e, self.width * self.lanes
        starts = (e.add(e.add(start, self.first), u * step) for u in range(self.p.vectors_per_thread))
        return [[self.along(self.env, at, self.lanes) for at in starts]]

    def runs_of(self, op: Op, places: list[Places]) -> tuple[list[list[sc.State]], list[sc.State]]:
        if self.stripes:
            run = _run(self, op, self.stripes.elements(op, [here for here, _ in places[0]]))
            return [run], run[-1:]
        runs = [_run(self, op, _elements(self, op, here, self.lanes)) for here, _ in places[0]]
        return runs, [run[-1] for run in runs]

    def bind_runs(self, op: Op, places: list[Places], runs: list[list[sc.State]], before: list[sc.State]) -> None:
        e = self.e
        found = [[sc.result(e, op, sc.combine(e, op, begun, s)) for s in run] for run, begun in zip(runs, before)]
        if self.stripes:
            found = [[val] for val in self.stripes.striped(found[0])]
        for (here, _), vals in zip(places[0], found):
            self.k.bind(op.result, here, e.from_lanes(vals[::-1] if self.reverse else vals))

    def store_places(self, places: list[Places]) -> None:
        for here, inside in places[0]:
            self.store_at(self.full, here, self.analysis.domain, self.both(self.row_inside, inside), self.predicated)

    def points(self) -> list[tuple[Env, Val | None]]:
        return [(self.env, self.both(self.e.cmp("eq", self.x, 0), self.row_inside))]

    def own_point(self) -> Val:
        return self.row

    # ---- exchange between threads

    def starts(
        self, at: int, op: Op, carried: sc.State, totals: list[sc.State], parity: Val
    ) -> tuple[list[sc.State], sc.State]:
        e = self.e
        combine = functools.partial(sc.combine, e, op)
        scanned = [self.along_lanes(op, total, self.width) for total in totals]
        ends = [self.of_last(state, self.width) for state in scanned]
        warp_total = functools.reduce(combine, ends)
        if self.warps > 1:
            slot = e.mul(parity, self.warps)
            with self.leader(e.cmp("eq", self.lane, 0)):
                self.put(self.offsets[at], e.add(slot, self.warp), warp_total)
            self.barrier()
            source = e.add(slot, e.and_(self.lane, self.warps - 1))
            of_warps = self.along_lanes(op, self.get(self.offsets[at], source, warp_total), self.warps)
            after = combine(carried, self.of_last(of_warps, self.warps))
            begin = combine(carried, self.before_own_warp(op, of_warps))
        else:
            after, begin = combine(carried, warp_total), carried
        out = []
        for state, end in zip(scanned, ends):
            out.append(combine(begin, self.before_lane(op, state)))
            begin = combine(begin, end)
        return out, after

    def asker(self) -> Asker:
        """Each thread reads the states of another part, and the first one those of the row."""
        x = self.wide(self.thread)
        leads = self.e.cmp("eq", x, 0)
        return Asker([x], leads, leads, self.e.const(0, dt.i32))

    def along_lanes(self, op: Op, state: sc.State, width: int) -> sc.State:
        """Each lane's state combined with those of all lanes before it."""

        for n in (1 << k for k in range(width.bit_length() - 1)):
            longer = sc.combine(self.e, op, self.up(state, n), state)
            state = sc.select(self.e, self.has(n, width), longer, state)
        return state

    def has(self, n: int, width: int) -> Val:
        """Whether ``n`` lanes precede this one in its group of ``width``."""
        return self.e.cmp("ge", self.e.and_(self.lane, width - 1) if width < self.width else self.lane, n)

    def up(self, state: sc.State, n: int) -> sc.State:
        return tuple(self.exchanged(v, "up", n) for v in state)

    def before_lane(self, op: Op, state: sc.State) -> sc.State:
        """The combined state of all lanes before each."""
        if self.width == 1:
            return sc.identity(self.e, op, 1)
        return sc.select(self.e, self.has(1, self.width), self.up(state, 1), sc.identity(self.e, op, 1))

    def of_last(self, state: sc.State, width: int) -> sc.State:
        """The state of the last lane of each group of ``width`` lanes."""
        last = self.e.or_(self.e.and_(self.thread, WARP - 1), width - 1) if width < WARP else WARP - 1
        return tuple(self.exchanged(v, "idx", last) for v in state) if width > 1 else state

    def before_own_warp(self, op: Op, of_warps: sc.State) -> sc.State:
        """The combined state of all warps before this one; lane n holds that of the warps up to the n-th."""
        before = self.e.max(self.e.sub(self.warp, 1), 0)
        found = tuple(self.exchanged(v, "idx", before) for v in of_warps)
        return sc.select(self.e, self.e.cmp("gt", self.warp, 0), found, sc.identity(self.e, op, 1))


def _elements(body: ScanKernel, op: Op, here: Env, lanes: int) -> list[sc.State]:
    """The states of a vector's elements, in scan order."""
    e = body.e
    vector = sc.element(e, op, body.k.operands(op, here), lanes)
    order = reversed(range(lanes)) if body.reverse else range(lanes)
    return [tuple(e.extract(v, lane) for v in vector) for lane in order]


def _run(body: ScanKernel, op: Op, elements: list[sc.State]) -> list[sc.State]:
    """The inclusive scan of ``elements``."""
    return list(itertools.accumulate(elements, functools.partial(sc.combine, body.e, op)))


def _striped_bytes(analysis: Analysis, p: Tiling) -> int:
    """Bytes of shared memory for transposing a block's elements."""
    count = p.tx * p.ty * p.vectors_per_thread
    return (count + count // WARP + 1) * _element_bytes(analysis) if p.in_shared else 0


def _element_bytes(analysis: Analysis) -> int:
    """Bytes of shared memory per element: of the widest operand or result of the scans."""
    return max(4, *(v.dtype.compute.bytes for op in analysis.scans for v in (*op.operands, op.result)))


class _Stripes:
    """Transposes a thread's elements, which are a row's threads of a warp apart, to as many consecutive ones, and back.

    The elements of the lanes of one row are contiguous in shared memory, in a buffer that is used in place: a lane
    reads what others have written, and writes where it has read. If the number per lane is even, a word of padding
    follows every 32, so that the lanes of a warp access different banks."""

    def __init__(self, body: ScanKernel, lane: Val, width: int, count: int, nbytes: int):
        self.body, self.e, self.count, self.alone = body, body.e, count, width == 1
        e = body.e
        self.offset = body.reserve(nbytes)
        first = e.mul(e.sub(body.thread, lane), count)
        self.apart = [e.add(e.add(first, lane), n * width) for n in range(count)]
        self.neighbours = [e.add(e.add(first, e.mul(lane, count)), n) for n in range(count)]
        self.read = self.neighbours  # the indices that a lane has read last, and no other lane reads

    def elements(self, op: Op, places: list[Env]) -> list[sc.State]:
        """The states of a thread's consecutive elements, in scan order. ``places`` are the envs of its striped
        elements."""
        operands = [
            self._transposed(list(vals), self.apart, self.neighbours)
            for vals in zip(*(self.body.k.operands(op, here) for here in places))
        ]
        return [sc.element(self.e, op, list(vals), 1) for vals in zip(*operands)]

    def striped(self, vals: list[Val]) -> list[Val]:
        """A thread's consecutive elements, transposed back to striped ones."""
        return self._transposed(vals, self.neighbours, self.apart)

    def _transposed(self, vals: list[Val], write: list[Val], read: list[Val]) -> list[Val]:
        body = self.body
        if self.alone or all(val is vals[0] for val in vals):
            return vals
        if write is not self.read:  # other lanes may still be reading
            body.warp_barrier()
        self.read = read
        for val, at in zip(vals, write):
            body.shared_store(self._address(at), val)
        body.warp_barrier()
        return [body.shared_load(self._address(at), vals[0].dtype) for at in read]

    def _address(self, at: Val) -> str:
        at = at if self.count % 2 else self.e.add(at, self.body.quotient(at, WARP))
        return self.body.shared_address(self.offset, at, _element_bytes(self.body.analysis))
