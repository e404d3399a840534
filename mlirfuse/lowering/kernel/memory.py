"""Tensors in memory: layouts, loads and stores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from mlirfuse.analysis.axes import Axes, Axis
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.kernel.index import ZERO, Env, Index, Indices

WIDEST = 16  # bytes of the widest access of a GPU
PICKED = (*range(2, 9), -1, -2, -3, -4)  # steps of vectors that are shuffled out of contiguous ones

# Cache hints for vector loads on a GPU.
PASS_L1 = "pass L1"  # no allocation in L1: for inputs that are read once
STAY_L2 = "stay in L2"  # evicted from L2 last, after written data
_HINTED = {
    PASS_L1: "ld.global.nc.L1::no_allocate.v4.b32 {$0, $1, $2, $3}, [$4];",
    STAY_L2: "ld.global.nc.L2::cache_hint.v4.b32 {$0, $1, $2, $3}, [$4], $5;",
}
_PREDICATED = {  # by bytes
    4: "@$0 st.global.b32 [$1], $2;",
    8: "@$0 st.global.v2.b32 [$1], {$2, $3};",
    16: "@$0 st.global.v4.b32 [$1], {$2, $3, $4, $5};",
}


@dataclass(frozen=True, slots=True)
class Memory:
    """A tensor in memory: an SSA pointer, strides in elements, the alignment in bytes of every vector access, the cache
    hint ``PASS_L1`` or ``STAY_L2`` for its vectors, and the number of elements that it spans."""

    pointer: str
    strides: tuple[Size, ...]
    dtype: dt.DType
    align: int
    read_only: bool = False
    hint: str = ""
    span: Size | None = None


@dataclass(frozen=True, slots=True)
class Flat:
    """Vectors whose lanes run across two nested loops: ``index`` counts their elements row-major from ``origin`` of the
    outer loop on; ``outer`` and ``inner`` are each lane's indices in the two loops."""

    loops: tuple[Axis, Axis]  # their innermost axes
    extent: Size  # of the inner loop
    origin: Val | int
    index: Index
    outer: Index
    inner: Index


@dataclass(frozen=True, slots=True)
class Line:
    """Tensors that are contiguous across all loops: at ``env``, their vectors start at ``offset``, a multiple of the
    lanes."""

    values: frozenset[Value]
    env: Env
    offset: Val
    lanes: int


class Accesses(Indices):
    """Loads and stores elements of the tensors in ``memories``, with the dimensions ``axes``. Values that were loaded
    or computed for an index are memoized in the scope where they are visible. ``scalar`` returns a by-value argument.
    ``prefetch``: the software prefetch distance of a CPU's vector loads in bytes; 0: none. ``past_end``: vectors may
    extend beyond tensors whose spans are known."""

    def __init__(self, e: Emitter, axes: Axes, memories: dict[Value, Memory], size: Callable[[Size], Val],
                 index: dt.DType, scalar: Callable[[Value], Val] | None, inverse: Callable[[Size], Val] | None,
                 known_multiples: frozenset[Size], multiple_of: int, prefetch: int, past_end: bool):  # fmt: skip
        super().__init__(e, index, size, inverse, known_multiples, multiple_of)
        self.axes, self.memories, self._scalar = axes, memories, scalar
        self.pointer_type = e.pointer_type
        self._memo: list[dict] = [{}]
        self._dims: dict[Value, list[tuple[Axis, ...]]] = {}
        self._policy: str | None = None
        self.copies: dict[Value, Memory] = {}  # second locations of stored values
        self.mask: Val | None = None  # lanes that exist (CPU tails); loads and stores respect it
        self.prefetch, self.past_end = prefetch, past_end
        self.runs = 0  # unaligned vectors are loaded by so many elements at once, each only once
        self.tiled = False  # a thread's vectors are neighbours: what they share is read once, and lanes may be outside
        self.flat: Flat | None = None  # vectors run across two loops, at envs with its indices
        self.line: Line | None = None  # vectors run across all loops

    # ---- scopes

    @contextmanager
    def region(self, head: str, tail: str = "}"):
        """A nested region: values computed in it are not visible after it. ``head`` is its opening line."""
        self.e.line(head)
        self.e.depth += 1
        self._memo.append({})
        yield
        self._memo.pop()
        self.e.depth -= 1
        self.e.line(tail)

    def where(self, condition: Val, this, that, like: Sequence[Val] = ()) -> list[Val]:
        """The results of ``this()`` if ``condition`` holds, else of ``that()``, of the types of ``like``. Emits a
        branch."""
        name, types = self.e.fresh(), ", ".join(v.type for v in like)
        count = f":{len(like)}" if len(like) > 1 else ""
        head = f"{name}{count} = scf.if {condition} -> ({types}) {{" if like else f"scf.if {condition} {{"
        for opening, computed, closing in ((head, this, "} else {"), ("", that, "}")):
            with self.region(opening, closing):
                found = computed()
                if like:
                    self.e.line(f"scf.yield {', '.join(v.name for v in found)} : {types}")
        return [Val(f"{name}#{k}" if count else name, v.dtype, v.lanes) for k, v in enumerate(like)]

    @contextmanager
    def forget(self):
        """Values computed in this context are recomputed after it, which keeps fewer alive."""
        self._memo.append({})
        yield
        self._memo.pop()

    @contextmanager
    def masked(self, mask: Val | None, kept: bool = False):
        """Loads and stores in this context access only the lanes of ``mask``; other lanes load 0. ``kept``: values
        computed in it are used after it, where the same mask holds or nothing needs one."""
        saved, self.mask = self.mask, mask
        if not kept:
            self._memo.append({})
        yield
        if not kept:
            self._memo.pop()
        self.mask = saved

    @contextmanager
    def coalesced(self, flat: Flat | None, runs: int | None = None):
        """Loads and stores in this context are of vectors that cross rows as ``flat`` says; ``runs``: elements per load
        that several vectors share, if none of them crosses a row boundary (None: as outside)."""
        saved = self.flat, self.runs
        self.flat, self.runs = flat, self.runs if runs is None else runs
        yield
        self.flat, self.runs = saved

    @contextmanager
    def contiguous(self, line: Line):
        """Loads and stores in this context are of vectors that cross all loops as ``line`` says."""
        saved, self.line = self.line, line
        yield
        self.line = saved

    def dims(self, value: Value) -> list[tuple[Axis, ...]]:
        found = self._dims.get(value)
        if found is None:
            found = self._dims[value] = [tuple(d) for d in self.axes.dims(value)]
        return found

    def _key(self, value: Value, env: Env):
        return value, tuple(env.get(axis, ZERO) for dim in self.dims(value) for axis in dim)

    def bind(self, value: Value, env: Env, val: Val) -> None:
        """Set the value of ``value`` at ``env``: a reduction's result."""
        self._memo[-1][self._key(value, env)] = val

    # ---- addresses, loads and stores

    def _offset(self, value: Value, strides, env: Env) -> Index:
        line = self.line
        if line and value in line.values and all(env.get(a) is line.env.get(a) for d in self.dims(value) for a in d):
            return Index(line.offset, 1, line.lanes)
        steps = self._steps(value, strides)
        flat, start = self.flat, ZERO
        if flat is not None and env.get(flat.loops[0]) is flat.outer and env.get(flat.loops[1]) is flat.inner:
            step_of = dict(steps)
            outer, inner = (step_of.get(axis, 0) for axis in flat.loops)
            if inner != 0 and outer == sz.mul(inner, flat.extent):  # memory is contiguous across both loops
                env = {**env, flat.loops[0]: Index(flat.origin), flat.loops[1]: ZERO}
                start = self.scale(flat.index, inner)
        return functools.reduce(
            lambda out, step: self.add(out, self.scale(env.get(step[0], ZERO), step[1])), steps, start
        )

    def _steps(self, value: Value, strides) -> list[tuple[Axis, Size]]:
        """The stride along each axis of a tensor."""
        steps = []
        for dim, stride in zip(self.dims(value), strides):
            for axis in reversed(dim):
                steps.append((axis, stride))
                stride = sz.mul(stride, axis.size)
        return steps

    def address(self, memory: Memory, offset: Val | int) -> str:
        if isinstance(offset, int):
            offset = self.scalar(offset)
        name = self.e.fresh()
        kind = self.pointer_type if offset.lanes == 1 else f"vector<{offset.lanes}x{self.pointer_type}>"
        self.e.line(
            f"{name} = llvm.getelementptr {memory.pointer}[{offset}] : ({self.pointer_type}, {offset.type}) -> {kind}, "
            f"{memory.dtype.memory}"
        )
        return name

    def place(self, value: Value, env: Env) -> str:
        """The address of an input's element, or of a vector's first."""
        return self.address(self.memories[value], self.offset(value, env).base)

    def offset(self, value: Value, env: Env, memory: Memory | None = None) -> Index:
        """The offset in elements of ``env`` in an input or output, or in other ``memory`` of its elements."""
        return self._offset(value, (memory or self.memories[value]).strides, env)

    def load_aligned(self, value: Value, offset: Val, lanes: int) -> Val:
        """Load an input's vector at an offset that is a multiple of its lanes, in its memory format."""
        memory = self.memories[value]
        return self._load(replace(memory, align=min(WIDEST, lanes * memory.dtype.bytes)), Index(offset, 1, lanes))

    def load(self, value: Value, env: Env) -> Val:
        if value not in self.memories:
            assert self._scalar is not None, value  # without arguments by value, all are in memory
            return self._scalar(value)
        return self._from_memory(self.preload(value, env), value.dtype)

    def reload(self, value: Value, env: Env, memory: Memory | None = None) -> Val:
        """Load an output's element, as last stored there or in other ``memory``."""
        memory = memory or self.memories[value]
        return self._from_memory(self._load(memory, self.offset(value, env, memory)), value.dtype)

    def preload(self, value: Value, env: Env) -> Val:
        """Load an input's element in its memory format; a later :meth:`value` converts it. Inside :meth:`forget`,
        earlier loads are still known."""
        key = ("loaded", self._key(value, env))
        return self._once(key, lambda: self._load(self.memories[value], self.offset(value, env)))

    def load_inside(self, value: Value, env: Env, inside: Val) -> Val | None:
        """A CPU's vector of an input whose lanes that are not ``inside`` are outside of the tensor and not read; None
        if there is no instruction for that."""
        if self.e.target != "cpu" or self.mask is not None:
            return None
        offset, features = self.offset(value, env), self.e.features
        nbytes = self.held(self.memories[value].dtype).bytes
        wide = {"avx512f", "avx512vl"} <= features and (nbytes >= 4 or "avx512bw" in features)
        if offset.vector is not None or offset.step != 1 or not (wide or ("avx2" in features and nbytes >= 4)):
            return None

        def load() -> Val:
            self.mask = inside
            loaded = self._load(self.memories[value], offset)
            self.mask = None
            return loaded

        return self._from_memory(self._once(("inside", str(inside), self._key(value, env)), load), value.dtype)

    def load_of_one(self, loads: list[tuple[Value, Env]], behind: list[Val], lanes: int) -> Val | None:
        """A vector of one of several inputs: of the last one for which ``behind`` holds (conditions for all but the
        first). None if lanes are not contiguous."""
        e = self.e
        memories = [self.memories[value] for value, _ in loads]
        indices = [self.offset(value, env) for value, env in loads]
        if any(index.vector is not None or index.step != 1 or index.lanes != lanes for index in indices):
            return None
        pointer, base = memories[0].pointer, self.scalar(indices[0].base)
        for memory, index, condition in zip(memories[1:], indices[1:], behind):
            before, pointer = pointer, e.fresh()
            e.line(f"{pointer} = llvm.select {condition}, {memory.pointer}, {before} : i1, {self.pointer_type}")
            base = e.select(condition, self.scalar(index.base), base)
        align, read_only = min(m.align for m in memories), all(m.read_only for m in memories)
        chosen = replace(memories[0], pointer=pointer, align=align, read_only=read_only)
        return self._load(chosen, Index(base, 1, lanes, divisor=min(map(self._divisor, indices))))

    def bind_loaded(self, value: Value, env: Env, val: Val) -> None:
        """Set what loading ``value`` at ``env`` returns, e.g. from a copy in shared memory."""
        self._memo[-1]["loaded", self._key(value, env)] = val

    def _from_memory(self, val: Val, dtype: dt.DType) -> Val:
        if dtype is dt.bool_:
            return self.e.cmp("ne", val, 0)
        return self.e.cast(val, dtype.compute)

    def held(self, dtype: dt.DType) -> dt.DType:
        """The dtype that elements are loaded and stored as: bools as bytes; 16-bit floats on the CPU as bits, since
        LLVM lowers masked accesses of vectors of them to calls of missing conversion functions."""
        if dtype is dt.bool_:
            return dt.u8
        return dt.u16 if dtype.is_float and dtype.bits == 16 and self.e.target == "cpu" else dtype

    def _load(self, memory: Memory, offset: Index) -> Val:
        e, dtype = self.e, self.held(memory.dtype)
        if dtype is not memory.dtype and memory.dtype is not dt.bool_:
            as_bits = Memory(memory.pointer, memory.strides, dtype, memory.align, memory.read_only)
            return e.of_loaded_bits(self._load(as_bits, offset), memory.dtype)
        scalar = offset.vector is None and (offset.lanes == 1 or offset.step == 0)
        flags = " invariant" if memory.read_only and e.target == "gpu" else ""
        shared = self.runs and memory.read_only and offset.vector is None and offset.step in (1, *PICKED[:3])
        if scalar:
            if self.tiled and shared and offset.lanes == 1:
                return self._element_of_run(memory, offset, 0)
            base = self._inside_span(memory, self.scalar(offset.base), 1) if offset.outside else offset.base
            return e.load_lanes(self.address(memory, base), dtype, 1, dtype.bytes, flags=flags)
        lanes = offset.lanes
        if memory.span is not None and (self.past_end or (offset.outside and not shared)):
            return self._load_past(memory, offset)
        if offset.vector is None and offset.step == 1:
            address = self.address(memory, offset.base)
            if self.prefetch:
                self._fetch(address)
            if self.mask is not None:
                return e.load_lanes(address, dtype, lanes, dtype.bytes, self.mask)
            align = min(memory.align, lanes * dtype.bytes)
            if shared and align < lanes * dtype.bytes:
                return e.from_lanes([self._element_of_run(memory, offset, k) for k in range(lanes)])
            return self._load_vector(memory, address, lanes, align)
        if shared:
            return e.from_lanes([self._element_of_run(memory, offset, k) for k in range(lanes)])
        if e.target == "cpu" and offset.vector is None and self.mask is None and offset.step in PICKED:
            return self._load_picked(memory, offset)
        if e.target == "cpu":
            addresses = self.address(memory, self.materialize(offset))
            mask, zero = e.splat(self.mask or e.const(True, dt.bool_), lanes), e.const(0, dtype, lanes)
            text = f"llvm.intr.masked.gather {addresses}, {mask}, {zero} {{alignment = {dtype.bytes} : i32}}"
            types = f"(vector<{lanes}x{self.pointer_type}>, {mask.type}, {zero.type}) -> {zero.type}"
            return e.op(f"{text} : {types}", dtype, lanes)
        return e.from_lanes([self._load(memory, Index(self._lane(offset, k))) for k in range(lanes)])

    def _load_vector(self, memory: Memory, address: str, lanes: int, align: int) -> Val:
        e, dtype = self.e, self.held(memory.dtype)
        if memory.hint and align == lanes * dtype.bytes == WIDEST:
            return self._load_hinted(address, dtype, lanes, memory.hint)
        flags = " invariant" if memory.read_only and e.target == "gpu" else ""
        return e.load_lanes(address, dtype, lanes, align, flags=flags)

    def _load_past(self, memory: Memory, offset: Index) -> Val:
        """A vector with lanes that may be outside of the tensor: those are undefined, and nothing outside is read.
        Unaligned vectors of short types are funnel-shifted from two aligned ones; if those extend beyond the tensor,
        elements are loaded one by one."""
        e, dtype, lanes, span = self.e, self.held(memory.dtype), offset.lanes, memory.span
        assert span is not None
        last = self.size(span - 1)

        def inside(offset: Val | int) -> Val:
            return self._load(memory, Index(e.max(e.min(self.scalar(offset), last), 0)))

        if offset.vector is not None or offset.step != 1:
            return e.from_lanes([inside(self._lane(offset, k)) for k in range(lanes)])
        start, nbytes = self.scalar(offset.base), lanes * dtype.bytes
        aligned = memory.align >= nbytes
        exact = aligned and self._divisor(offset) >= lanes
        pair = aligned and not exact and dtype.bytes < 4 <= nbytes
        first = e.and_(start, -lanes) if pair else start
        firsts = [Index(first, 1, lanes), Index(e.add(first, lanes), 1, lanes)][: 1 + pair]

        def vectors() -> list[Val]:
            if exact or pair:
                return [self._load_vector(memory, self.address(memory, i.base), lanes, nbytes) for i in firsts]
            return [e.from_lanes([self._load(memory, Index(self._lane(offset, k))) for k in range(lanes)])]

        def elements() -> list[Val]:
            return [e.from_lanes([inside(self._lane(i, k)) for k in range(lanes)]) for i in firsts]

        fits = e.and_(e.cmp("ge", first, 0), e.cmp("le", first, self.size(span - len(firsts) * lanes)))
        found = self.where(fits, vectors, elements, [Val("", dtype, lanes)] * len(firsts))
        return self._out_of_two(found[0], found[1], start) if pair else found[0]

    def _out_of_two(self, low: Val, high: Val, start: Val, divisor: int = 1) -> Val:
        """Funnel-shift two adjacent vectors: the vector that starts at element ``start``, modulo the lanes.
        ``divisor``: a power of two that divides ``start``."""
        e, lanes, nbytes = self.e, low.lanes, low.dtype.bytes
        words, count = e.words(low) + e.words(high), lanes * nbytes // 4
        step = count // 2
        while step * 4 >= divisor * nbytes:
            far = e.cmp("ne", e.and_(start, step * 4 // nbytes), 0)
            words = [e.select(far, words[k + step], words[k]) for k in range(count + step)]
            step //= 2
        if divisor * nbytes < 4:
            bits = e.cast(e.mul(e.and_(start, 4 // nbytes - 1), 8 * nbytes), dt.u32)
            words = [e.intrinsic("llvm.fshr", words[k + 1], words[k], bits) for k in range(count)]
        return e.of_words(words[:count], low.dtype, lanes)

    def _fetch(self, address: str) -> None:
        """Prefetch the memory :attr:`ahead` bytes after an address, which may be beyond the tensor."""
        name, pointer = self.e.fresh(), self.pointer_type
        self.e.line(f"{name} = llvm.getelementptr {address}[{self.prefetch}] : ({pointer}) -> {pointer}, i8")
        how = "<{rw = 0 : i32, hint = 3 : i32, cache = 1 : i32}>"  # to read, into all caches, data
        self.e.line(f'"llvm.intr.prefetch"({name}) {how} : ({pointer}) -> ()')

    def _element_of_run(self, memory: Memory, offset: Index, k: int) -> Val:
        """Lane ``k`` of an input's vector that shares elements with others, extracted from aligned vectors of
        :attr:`runs` elements. If its place in one is not known at compile time, two adjacent vectors are funnel-shifted
        to one that starts a multiple of its length after the common base of the run's indices."""
        e, (divisor, rest), base = self.e, self.modulo(offset), self.scalar(offset.base)
        assert isinstance(offset.step, int)
        lane, many = k * offset.step, min(self.runs, WIDEST // memory.dtype.bytes)
        many = many if many * memory.dtype.bytes >= 4 else min(many, divisor)  # bits are shifted within words
        if divisor >= many:
            at = (rest + lane) % many
            start = self.add(Index(base), Index(lane - at)).base
            if k in offset.outside:
                start = self._inside_span(memory, self.scalar(start), many)
            return e.extract(self._aligned_vector(memory, start, many), at)
        _, number = e.sum_of(base)
        begin = e.add(base, -number)
        left = (rest - number) % divisor
        number, at = divmod(number + lane, many)

        def two() -> Val:
            low, high = (self._clamped_aligned_vector(memory, begin, number + k, many) for k in range(2))
            return self._out_of_two(low, high, begin, left & -left or divisor)

        return e.extract(self._once(("two", memory.pointer, e.sum_of(begin), number), two), at)

    def _clamped_aligned_vector(self, memory: Memory, begin: Val, number: int, lanes: int) -> Val:
        """The aligned vector ``number`` vectors after the one that contains the element ``begin``, clamped to the
        tensor (clamped vectors are not used)."""
        e = self.e

        def load() -> Val:
            start = e.add(e.and_(begin, -lanes), number * lanes)
            return self._aligned_vector(memory, self._inside_span(memory, start, lanes), lanes)

        return self._once(("behind", memory.pointer, e.sum_of(begin), number), load)

    def _inside_span(self, memory: Memory, start: Val, lanes: int) -> Val:
        """The start of a vector, clamped to the tensor."""
        e, span = self.e, memory.span
        assert span is not None  # known for inputs
        key = "inside", memory.pointer, lanes, e.sum_of(start)
        return self._once(key, lambda: e.max(e.min(start, self.size(span - lanes)), 0))

    def _aligned_vector(self, memory: Memory, start: Val | int, lanes: int) -> Val:
        """The vector that starts at an aligned element."""
        key = "whole", memory.pointer, lanes, self.e.sum_of(self.scalar(start))
        aligned = replace(memory, align=lanes * memory.dtype.bytes)
        return self._once(key, lambda: self._load(aligned, Index(start, int(lanes > 1), lanes)))

    def _once(self, key: tuple, make: Callable[[], Any]) -> Any:
        """The memoized value for ``key`` in an enclosing scope, or ``make()``."""
        found = next((scope[key] for scope in reversed(self._memo) if key in scope), None)
        if found is None:
            found = self._memo[-1][key] = make()
        return found

    def _load_picked(self, memory: Memory, offset: Index) -> Val:
        """A vector with a constant stride of 2 to 8 elements, or backwards, shuffled out of contiguous vectors over its
        span, not beyond it. Gathers take four times as long."""
        e, lanes, step = self.e, offset.lanes, offset.step
        assert isinstance(step, int)
        span = abs(step) * (lanes - 1) + 1
        low = self.add(Index(offset.base), Index(min(step, 0) * (lanes - 1)))
        offsets = [k * step if step > 0 else span - 1 + k * step for k in range(lanes)]
        found: Val | None = None
        for start in (*range(0, span - lanes, lanes), span - lanes):
            vector = self._load(memory, Index(self.add(low, Index(start)).base, 1, lanes))
            picked = [lanes + at - start if start <= at < start + lanes else k for k, at in enumerate(offsets)]
            found = e.shuffle(found or vector, vector, picked)
        assert found is not None
        return found

    def _masks_stores(self, val: Val) -> bool:
        """Whether a masked store of such a vector is as fast as an unmasked one."""
        return self.mask is None and {"avx512f", "avx512vl"} <= self.e.features and val.dtype.bytes >= 4

    def _store_spread(self, memory: Memory, offset: Index, val: Val) -> None:
        """Store a vector with a constant stride of 2 to 4 elements by contiguous masked stores over its span: scatters
        take two to three times as long."""
        e, lanes, step = self.e, offset.lanes, offset.step
        assert isinstance(step, int)
        for start in range(0, step * lanes, lanes):
            places = range(start, start + lanes)
            part = e.shuffle(val, val, [at // step for at in places])
            kept = ", ".join(str(at % step == 0).lower() for at in places)
            mask = e.op(f"arith.constant dense<[{kept}]> : vector<{lanes}xi1>", dt.bool_, lanes)
            address = self.address(memory, self.add(Index(offset.base), Index(start)).base)
            e.store_lanes(address, part, val.dtype.bytes, mask)

    def _load_hinted(self, address: str, dtype: dt.DType, lanes: int, hint: str) -> Val:
        """A load of 16 bytes with a cache hint, as inline assembly, since LLVM has no instruction for it."""
        e, struct, name = self.e, "!llvm.struct<(i32, i32, i32, i32)>", self.e.fresh()
        operands, constraints, types = address, "=r,=r,=r,=r,l", self.pointer_type
        if hint == STAY_L2:
            operands, constraints, types = f"{operands}, {self.policy()}", constraints + ",l", types + ", i64"
        e.line(f'{name} = llvm.inline_asm "{_HINTED[hint]}", "{constraints}" {operands} : ({types}) -> {struct}')
        return e.of_words([e.op(f"llvm.extractvalue {name}[{k}] : {struct}", dt.u32) for k in range(4)], dtype, lanes)

    def policy(self) -> str:
        """The cache policy operand of accesses with the hint ``STAY_L2``."""
        if self._policy is None:
            self._policy = self.e.fresh()
            self.e.entry.append(
                f'  {self._policy} = llvm.inline_asm "createpolicy.fractional.L2::evict_last.b64 $0, 1.0;", '
                '"=l" : () -> i64'
            )
        return self._policy

    def _lane(self, i: Index, lane: int) -> Val | int:
        if i.vector is not None:
            return self.e.extract(i.vector, lane)
        if lane == 0 or i.step == 0:
            return i.base
        return self.add(Index(i.base), self.scale(Index(lane), i.step)).base

    def store(self, value: Value, env: Env, val: Val, memory: Memory | None = None) -> None:
        """Store the element of ``value`` at ``env``, in all of its locations or only in other ``memory``."""
        self._store(value, env, val, memory or self.memories[value])
        if value in self.copies and memory is None:
            self._store(value, env, val, self.copies[value])

    def store_if(self, condition: Val, value: Value, env: Env, val: Val) -> None:
        """Store if ``condition`` holds. Vectors of 4, 8 or 16 bytes use a predicated store: a branch would separate the
        scheduling of the code before and after it."""
        for memory in filter(None, (self.memories[value], self.copies.get(value))):
            if not self._store_predicated(condition, value, env, val, memory):
                with self.region(f"scf.if {condition} {{"):
                    self._store(value, env, val, memory)

    def store_at_zero(self, value: Value, env: Env, val: Val, indices: Sequence[Index]) -> None:
        """Store if all of ``indices`` are 0."""
        condition = None
        for index in indices:
            at_zero = self.e.cmp("eq", self.scalar(index.base), 0)
            condition = at_zero if condition is None else self.e.and_(condition, at_zero)
        if condition is None:
            self.store(value, env, val)
        else:
            with self.region(f"scf.if {condition} {{"):
                self.store(value, env, val)

    def _store_predicated(self, condition: Val, value: Value, env: Env, val: Val, memory: Memory) -> bool:
        """:meth:`_store` as one predicated instruction; False if there is none for it."""
        e, offset = self.e, self._offset(value, memory.strides, env)
        nbytes = offset.lanes * self.held(memory.dtype).bytes
        if nbytes not in _PREDICATED or nbytes > memory.align or offset.vector is not None or offset.step != 1:
            return False
        words = e.words(e.splat(self._stored(val, memory), offset.lanes))
        constraints = ",".join(["b", "l", *("r" for _ in words), "~{memory}"])
        e.line(
            f'llvm.inline_asm has_side_effects "{_PREDICATED[nbytes]}", "{constraints}" {condition}, '
            f"{self.address(memory, offset.base)}, {', '.join(map(str, words))} : "
            f"(i1, {self.pointer_type}, {', '.join(w.type for w in words)}) -> ()"
        )
        return True

    def _stored(self, val: Val, memory: Memory) -> Val:
        """``val`` in its memory format."""
        e = self.e
        if memory.dtype is dt.bool_:
            return e.cast(val, dt.u8)
        return e.bitcast(e.cast(val, memory.dtype), self.held(memory.dtype))

    def _store(self, value: Value, env: Env, val: Val, memory: Memory) -> None:
        e = self.e
        val = self._stored(val, memory)
        offset = self._offset(value, memory.strides, env)
        if offset.vector is None and (offset.lanes == 1 or offset.step == 0):
            address, val = self.address(memory, offset.base), e.extract(val, 0)
            e.store_lanes(address, val, val.dtype.bytes)
            return
        lanes = offset.lanes
        val = e.splat(val, lanes)
        if offset.vector is None and offset.step == 1:
            align = val.dtype.bytes if self.mask is not None else min(memory.align, lanes * val.dtype.bytes)
            e.store_lanes(self.address(memory, offset.base), val, align, self.mask)
            return
        if e.target == "cpu" and offset.vector is None and offset.step in (2, 3, 4) and self._masks_stores(val):
            self._store_spread(memory, offset, val)
            return
        if e.target == "cpu":
            addresses = self.address(memory, self.materialize(offset))
            mask = e.splat(self.mask or e.const(True, dt.bool_), lanes)
            text = f"llvm.intr.masked.scatter {val}, {addresses}, {mask} {{alignment = {val.dtype.bytes} : i32}}"
            e.line(f"{text} : {val.type}, {mask.type} into vector<{lanes}x{self.pointer_type}>")
            return
        for k in range(lanes):
            address, lane = self.address(memory, self._lane(offset, k)), e.extract(val, k)
            e.store_lanes(address, lane, lane.dtype.bytes)
