"""Writes one kernel's body: the value of any tensor of a segment at any index.

A scheduler lays out loops and threads and then asks :meth:`Kernel.value` for elements. It evaluates producers
recursively: an elementwise op at the same index, a view at the index it maps to, an input by a load. What was computed
for an index once is not computed again inside the region where it is visible. A reduction's value must have been given
with :meth:`Kernel.bind`.

An index (:class:`Index`) is a scalar, or one a lane: affine lanes (``base + lane * step``) stay affine through strides,
slices and splits, so that a load of step 1 is one vector load, of step 0 one scalar load, and others gather.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from mlirfuse.analysis.axes import Axes, Axis
from mlirfuse.core.errors import CompileError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.ops import table as ops
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering import math as m
from mlirfuse.lowering.emitter import Emitter, Val


@dataclass(frozen=True, slots=True)
class Index:
    """A position along an axis: lane k is ``base + k * step``, or ``vector``'s lane k where that is set.

    ``divisor``: a power of two that is known to divide ``base``; 0: the lanes, as in the indices that schedulers make.
    """

    base: Val | int
    step: Size = 0
    lanes: int = 1
    vector: Val | None = None
    divisor: int = field(default=0, compare=False)


ZERO = Index(0)
PICKED = (2, 3, 4, -1, -2, -3, -4)  # steps of vectors that are picked out of whole ones
_MOST = 64  # what is known of powers of two is counted up to here
Env = dict[Axis, Index]

# What a GPU's caches do with vectors that are read.
PASS_L1 = "pass L1"  # they take no place in the first-level cache: for what is read once
STAY_L2 = "stay in L2"  # what is written leaves the second-level cache before them
_VIEWS = ("reshape", "permute", "squeeze", "expand_dims", "broadcast_in_dim")
_HINTED = {
    PASS_L1: "ld.global.nc.L1::no_allocate.v4.b32 {$0, $1, $2, $3}, [$4];",
    STAY_L2: "ld.global.nc.L2::cache_hint.v4.b32 {$0, $1, $2, $3}, [$4], $5;",
}


@dataclass(frozen=True, slots=True)
class Memory:
    """Where a tensor lies: an SSA pointer, strides in elements, the alignment in bytes of every vector access, and how
    a GPU's caches shall treat its vectors, ``PASS_L1`` or ``STAY_L2``."""

    pointer: str
    strides: tuple[Size, ...]
    dtype: dt.DType
    align: int
    read_only: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Flat:
    """Two loops, one inside the other, whose elements the lanes of a vector run across: ``index`` counts them
    row-major, from ``origin`` of the outer loop on; ``outer`` and ``inner`` are each lane's positions in the two."""

    loops: tuple[Axis, Axis]  # their innermost axes
    extent: Size  # of the inner loop
    origin: Val | int
    index: Index
    outer: Index
    inner: Index


class Kernel:
    """``axes`` are the segment's; ``memories`` its inputs' and outputs' places; ``size`` gives a size as a Val of the
    index type; ``scalar`` a by-value argument, ``inverse`` what divides by a size where that pays. ``index`` is i32 or
    i64. ``known_multiples``: sizes known to be multiples of the lanes."""

    def __init__(self, e: Emitter, axes: Axes, memories: dict[Value, Memory], size, index: dt.DType, inside: set[Op], scalar=None,
                 known_multiples=frozenset(), inverse=None):  # fmt: skip
        self.e, self.axes, self.memories, self.index_type = e, axes, memories, index
        self._size_of, self._scalar, self.inside, self.known_multiples, self._inverse = (
            size,
            scalar,
            inside,
            known_multiples,
            inverse,
        )
        self.pointer_type = "!llvm.ptr<1>" if e.target == "gpu" else "!llvm.ptr"
        self._memo: list[dict] = [{}]
        self._dims: dict[Value, list[tuple[Axis, ...]]] = {}
        self._policy: str | None = None
        self.copies: dict[Value, Memory] = {}  # second places of what is stored
        self.mask: Val | None = None  # lanes that exist (CPU tails); loads and stores respect it
        self.short_means = True  # what is divided by a number of elements takes no branch
        self.flat: Flat | None = None  # vectors run across two loops where their positions are those of the env

    # ---- scopes

    @contextmanager
    def region(self, head: str, tail: str = "}"):
        """A nested region: values computed in it are not seen after it. ``head`` is its opening line."""
        self.e.line(head)
        self.e.depth += 1
        self._memo.append({})
        yield
        self._memo.pop()
        self.e.depth -= 1
        self.e.line(tail)

    @contextmanager
    def forget(self):
        """Values computed in here are computed again after it: keeps fewer alive."""
        self._memo.append({})
        yield
        self._memo.pop()

    @contextmanager
    def masked(self, mask: Val | None):
        """Loads and stores in here touch only the lanes of ``mask``; the others' values are 0."""
        saved, self.mask = self.mask, mask
        self._memo.append({})
        yield
        self._memo.pop()
        self.mask = saved

    def dims(self, value: Value) -> list[tuple[Axis, ...]]:
        found = self._dims.get(value)
        if found is None:
            found = self._dims[value] = [tuple(d) for d in self.axes.dims(value)]
        return found

    def _key(self, value: Value, env: Env):
        return value, tuple(env.get(axis, ZERO) for dim in self.dims(value) for axis in dim)

    def bind(self, value: Value, env: Env, val: Val) -> None:
        """Says what ``value`` is at ``env``: a reduction's result."""
        self._memo[-1][self._key(value, env)] = val

    # ---- indices

    def size(self, size: Size) -> Val:
        return self.e.const(size, self.index_type) if isinstance(size, int) else self._size_of(size)

    def scalar(self, base) -> Val:
        return base if isinstance(base, Val) else self.e.const(base, self.index_type)

    def materialize(self, i: Index) -> Val:
        """The index as a scalar, or a vector of its lanes."""
        if i.vector is not None:
            return i.vector
        base = self.scalar(i.base)
        if i.lanes == 1 or i.step == 0:
            return base
        lanes = self.e.iota(self.index_type, i.lanes)
        if i.step != 1:
            lanes = self.e.mul(lanes, self.size(i.step))
        return self.e.add(self.e.splat(base, i.lanes), lanes)

    def _of_val(self, val: Val) -> Index:
        return Index(val) if val.lanes == 1 else Index(0, 0, val.lanes, val)

    def add(self, i: Index, j: Index) -> Index:
        if i == ZERO:
            return j
        if j == ZERO:
            return i
        if i.vector is not None or j.vector is not None:
            return self._of_val(self.e.add(self.materialize(i), self.materialize(j)))
        if isinstance(i.base, int) and isinstance(j.base, int):
            base = i.base + j.base
        elif i.base == 0 and isinstance(i.base, int):
            base = j.base
        elif j.base == 0 and isinstance(j.base, int):
            base = i.base
        else:
            base = self.e.add(self.scalar(i.base), self.scalar(j.base))
        return Index(base, i.step + j.step, max(i.lanes, j.lanes), divisor=min(self._divisor(i), self._divisor(j)))

    def scale(self, i: Index, by: Size) -> Index:
        if by == 1 or i == ZERO:
            return i
        if by == 0:
            return ZERO
        if i.vector is not None:
            return self._of_val(self.e.mul(i.vector, self.size(by)))
        if isinstance(i.base, int) and (i.base == 0 or isinstance(by, int)):
            base = i.base * by if i.base else 0
        else:
            base = self.e.mul(self.scalar(i.base), self.size(by))
        return Index(base, sz.mul(i.step, by), i.lanes, divisor=min(self._divisor(i) * self._power_in(by), _MOST))

    def divmod(self, i: Index, by: Size) -> tuple[Index, Index]:
        """Quotient and remainder of an index that is not negative."""
        if i == ZERO:
            return ZERO, ZERO
        if i.step != 0 and i.step == 1 and self._is_multiple(by, i.lanes) and self._divisor(i) >= i.lanes:
            q, r = self.divmod(Index(i.base), by)  # lanes do not cross a multiple of `by`
            return q, Index(r.base, 1, i.lanes)
        value, divisor = self.materialize(i), self.size(by)
        unsigned = dt.u32 if self.index_type is dt.i32 else dt.u64
        a, b = self.e.bitcast(value, unsigned), self.e.bitcast(divisor, unsigned)
        q = (
            self._times_inverse(a, by)
            if self._inverse and unsigned is dt.u32 and not isinstance(by, int)
            else self.e.div(a, b)
        )
        r = self.e.sub(a, self.e.mul(q, b))
        return self._of_val(self.e.bitcast(q, self.index_type)), self._of_val(self.e.bitcast(r, self.index_type))

    def _times_inverse(self, a: Val, by: Size) -> Val:
        """A quotient of indices in three instructions; a division takes a GPU twenty."""
        e, inverse = self.e, self._inverse(by)
        factor, shift = e.cast(e.cast(inverse, dt.u32), dt.u64), e.shr(inverse, 32)
        return e.cast(e.shr(e.mul(e.cast(a, dt.u64), e.splat(factor, a.lanes)), e.splat(shift, a.lanes)), dt.u32)

    def _is_multiple(self, size: Size, lanes: int) -> bool:
        return size % lanes == 0 if isinstance(size, int) else size in self.known_multiples

    def _power_in(self, size: Size) -> int:
        """A power of two that is known to divide a size."""
        return (
            min(size & -size, _MOST) or _MOST if isinstance(size, int) else _MOST if size in self.known_multiples else 1
        )

    def _divisor(self, i: Index) -> int:
        """A power of two that is known to divide the base of an index."""
        return self._power_in(i.base) if isinstance(i.base, int) else i.divisor or i.lanes

    def dim_index(self, dim, env: Env) -> Index:
        """The index along a dimension of these axes."""
        out = ZERO
        for axis in dim:
            out = self.add(self.scale(out, axis.size), env.get(axis, ZERO))
        return out

    def spread(self, dim, index: Index, env: Env) -> None:
        """Sets the axes of a dimension from the index along it."""
        for axis in reversed(dim[1:]):
            index, env[axis] = self.divmod(index, axis.size)
        if dim:
            env[dim[0]] = index

    # ---- values

    def value(self, value: Value, env: Env) -> Val:
        """The element of ``value`` at ``env``, in its compute type (:attr:`DType.compute`)."""
        key = self._key(value, env)
        for scope in reversed(self._memo):
            if key in scope:
                return scope[key]
        op = value.op
        if op is None or op not in self.inside:
            val = self.load(value, env)
        elif ops.TABLE[op.name].kind == "reduce":
            if self.axes.reduced(op):
                raise CompileError(f"{op.name} is used before it is computed: this segment's scheduler cannot take it")
            val = self._reduce_of_one(op, env)
        else:
            val = getattr(self, f"_{op.name}", self._elementwise)(op, env)
        self._memo[-1][key] = val
        return val

    def _reduce_of_one(self, op: Op, env: Env) -> Val:
        """A reduction over extents of 1 only."""
        if op.name in ("argmax", "argmin"):
            return self.e.const(0, dt.i64)
        val = self.value(op.operands[0], self._through(op, env, self._kept(op)))
        if op.name == "m2":  # of one number: 0, or NaN where it is none or infinite
            return self.e.sub(val, val)
        if op.name == "sum" and val.dtype.is_float:  # sums begin at 0: that of -0 is 0
            return self.e.add(val, 0.0)
        return self.e.cmp("ne", val, 0) if op.name in ("any", "all") and val.dtype is not dt.bool_ else val

    def _kept(self, op: Op):
        """(operand dim, result dim) pairs of a reduction."""
        axes, keep = ops.axes_of(op.attrs, op.operands[0].rank), op.attrs.get("keepdims")
        out, at = [], 0
        for d in range(op.operands[0].rank):
            if d not in axes or keep:
                out.append((d, at))
                at += 1
        return out

    def _through(self, op: Op, env: Env, pairs, operand: int = 0) -> Env:
        """The env of an operand whose dimension j is the result's dimension k, for (j, k) in ``pairs``."""
        source, target = self.dims(op.operands[operand]), self.dims(op.result)
        new = env
        for j, k in pairs:
            if source[j] and source[j] != target[k]:
                if new is env:
                    new = dict(env)
                self.spread(source[j], self.dim_index(target[k], env), new)
        return new

    def _elementwise(self, op: Op, env: Env) -> Val:
        vals = []
        for k, operand in enumerate(op.operands):
            inner = self._through(op, env, [(d, d) for d in range(operand.rank)], k)
            vals.append(self.value(operand, inner))
        return self._typed(op.result, ops.TABLE[op.name].emit(self.e, *vals))

    def _div(self, op: Op, env: Env) -> Val:
        """On a GPU, what divides many numbers is inverted once. Quotients that are rounded to half types are then
        within 2.5 ulp of float32, others are corrected: a division takes twice as many instructions, and a branch."""
        axes = self.axes.flat
        one_for_many = set(axes(op.operands[1])) < set(axes(op.result)) and not (
            op.operands[1].op and op.operands[1].op.name == "constant"
        )
        if self.e.target != "gpu" or op.result.dtype.compute is not dt.f32 or not one_for_many:
            return self._elementwise(op, env)
        a, b = (self._through(op, env, [(d, d) for d in range(v.rank)], k) for k, v in enumerate(op.operands))
        dividend, divisor = self.value(op.operands[0], a), self.value(op.operands[1], b)
        once = dividend.lanes == 1 and not axes(op.operands[1])  # such as a row's sum over its length
        half = self._becomes_half(op.result)
        if once and self.short_means and self._is_size(op.operands[1]):
            return m.quotient_by_size(self.e, dividend, divisor)
        if divisor.lanes > 1 or once:
            return m.rough_quotient(self.e, dividend, divisor) if half else self._elementwise(op, env)
        key = "inverse", self._key(op.operands[1], b)
        found = next((scope[key] for scope in reversed(self._memo) if key in scope), None)
        if found is None:
            found = self._memo[-1][key] = m.inverse(self.e, divisor)
        if half:
            return self.e.mul(self.e.mul(dividend, found[0]), found[1])
        return m.quotient_by_inverse(self.e, dividend, divisor, *found)

    @staticmethod
    def _is_size(value: Value) -> bool:
        """Whether ``value`` is a number of elements."""
        while value.op is not None and (value.op.name == "cast" or value.op.name in _VIEWS):
            value = value.op.operands[0]
        return value.op is not None and value.op.name == "size"

    def _becomes_half(self, value: Value) -> bool:
        """Whether all that is made of ``value`` is its rounding to a half type."""
        users = [op for op in self.inside if value in op.operands]
        if value in self.memories and not (value.dtype.is_float and value.dtype.bits == 16):
            return False
        return bool(users or value in self.memories) and all(self._rounds_to_half(op) for op in users)

    def _rounds_to_half(self, op: Op) -> bool:
        if op.name == "cast":
            return op.result.dtype.is_float and op.result.dtype.bits == 16
        return op.name in _VIEWS and self._becomes_half(op.result)

    def _typed(self, value: Value, val: Val) -> Val:
        assert val.dtype is value.dtype.compute, (value, val)
        return val

    def _nextafter(self, op: Op, env: Env) -> Val:
        """Among the numbers of the operands' own type: half types are rounded to it first."""
        dtype, vals = op.result.dtype, []
        for k, operand in enumerate(op.operands):
            vals.append(self.value(operand, self._through(op, env, [(d, d) for d in range(operand.rank)], k)))
        if dtype is dtype.compute:
            return m.nextafter(self.e, *self.e._pair(*vals))
        a, b = self.e._pair(*(self.e.cast(self.e.cast(v, dtype), dtype.compute) for v in vals))
        return self.e.cast(m.nextafter_half(self.e, a, b, dtype), dtype.compute)

    def _cast(self, op: Op, env: Env) -> Val:
        operand = op.operands[0]
        val = self.value(operand, self._through(op, env, [(d, d) for d in range(operand.rank)]))
        to = op.attrs["to"]
        return self.e.cast(self.e.cast(val, to), to.compute)

    def _constant(self, op: Op, env: Env) -> Val:
        dtype = op.attrs["dtype"]
        return self.e.const(op.attrs["value"], dtype.compute)

    def _size(self, op: Op, env: Env) -> Val:
        return self.e.cast(self.size(op.attrs["value"]), dt.i64)

    def _full(self, op: Op, env: Env) -> Val:
        return self.value(op.operands[0], env)

    def _iota(self, op: Op, env: Env) -> Val:
        i = self.dim_index(self.dims(op.result)[op.attrs["axis"]], env)
        dtype = op.attrs["dtype"]
        return self.e.cast(self.e.cast(self.materialize(i), dtype), dtype.compute)

    def _broadcast_in_dim(self, op: Op, env: Env) -> Val:
        return self.value(op.operands[0], self._through(op, env, list(enumerate(op.attrs["dims"]))))

    def _permute(self, op: Op, env: Env) -> Val:
        return self.value(op.operands[0], self._through(op, env, [(d, k) for k, d in enumerate(op.attrs["dims"])]))

    def _squeeze(self, op: Op, env: Env) -> Val:
        kept = [d for d in range(op.operands[0].rank) if d not in op.attrs["axes"]]
        return self.value(op.operands[0], self._through(op, env, [(d, k) for k, d in enumerate(kept)]))

    def _expand_dims(self, op: Op, env: Env) -> Val:
        kept = [k for k in range(op.result.rank) if k not in op.attrs["axes"]]
        return self.value(op.operands[0], self._through(op, env, list(enumerate(kept))))

    def _reshape(self, op: Op, env: Env) -> Val:
        operand = op.operands[0]
        source = [a for d in self.dims(operand) for a in d]
        target = [a for d in self.dims(op.result) for a in d]
        if source != target:
            index, memory = self.dim_index(target, env), self.memories.get(operand)
            if (
                memory
                and operand.op not in self.inside
                and tuple(memory.strides) == sz.contiguous_strides(operand.shape)
            ):
                aligned = min(memory.align, self._divisor(index) * operand.dtype.bytes)
                return self._from_memory(
                    self._load(replace(memory, align=aligned), index), operand.dtype
                )  # the same place, whatever the shape
            env = dict(env)
            self.spread(source, index, env)
        return self.value(operand, env)

    def _slice(self, op: Op, env: Env) -> Val:
        operand = op.operands[0]
        new = dict(env)
        source, target = self.dims(operand), self.dims(op.result)
        for j in range(operand.rank):
            if source[j] and source[j] != target[j]:
                i = self.scale(self.dim_index(target[j], env), op.attrs["step"][j])
                self.spread(source[j], self.add(i, self._constant_index(op.attrs["start"][j])), new)
        return self.value(operand, new)

    def _constant_index(self, size: Size) -> Index:
        return Index(size if isinstance(size, int) else self.size(size), divisor=self._power_in(size))

    def _split(self, op: Op, env: Env) -> Val:
        raise CompileError("fusion.split reaches a kernel: run fusion-decompose before fusion-segment")

    def _clamp(self, i: Index, low: Size, size: Size) -> tuple[Index, Val | None]:
        """``i - low`` held inside ``0 … size-1``, and whether it was inside (None: a whole index space of one)."""
        lanes = i.lanes
        uniform = (
            i.step == 1
            and self._divisor(i) >= lanes
            and self._is_multiple(low, lanes)
            and self._is_multiple(size, lanes)
        )
        i = self.add(i, self._constant_index(sz.mul(low, -1)))
        whole = i.vector is None and (i.lanes == 1 or i.step == 0)
        e = self.e
        if whole or uniform:  # all lanes are inside or none is
            base = self.scalar(i.base)
            last = self.size(size - (i.lanes if uniform else 1))
            inside = e.and_(e.cmp("ge", base, 0), e.cmp("le", base, last))
            held = e.max(e.min(base, last), 0)
            return Index(held, i.step, i.lanes, divisor=lanes if uniform else 1), inside
        value, last = self.materialize(i), self.size(size - 1)
        inside = e.and_(e.cmp("ge", value, 0), e.cmp("le", value, last))
        return self._of_val(e.max(e.min(value, last), 0)), inside

    def _pad(self, op: Op, env: Env) -> Val:
        operand, fill = op.operands
        source, target = self.dims(operand), self.dims(op.result)
        new, inside = dict(env), None
        for j, (low, high) in enumerate(zip(op.attrs["low"], op.attrs["high"])):
            if source[j] != target[j] or low != 0 or high != 0:
                held, here = self._clamp(self.dim_index(target[j], env), low, operand.shape[j])
                self.spread(source[j], held, new)
                inside = (
                    here if inside is None else self.e.and_(self.e.splat(inside, max(here.lanes, inside.lanes)), here)
                )
        val, other = self.value(operand, new), self.value(fill, env)
        return val if inside is None else self.e.select(inside, val, other)

    def _concatenate(self, op: Op, env: Env) -> Val:
        axis = op.attrs["axis"]
        target = self.dims(op.result)
        start: Size = 0
        result = None
        for k, operand in enumerate(op.operands):
            extent = operand.shape[axis]
            inner = dict(self._through(op, env, [(d, d) for d in range(operand.rank) if d != axis], k))
            held, _ = self._clamp(self.dim_index(target[axis], env), start, extent)
            self.spread(self.dims(operand)[axis], held, inner)
            val = self.value(operand, inner)
            if result is None:
                result = val
            else:
                i = self.dim_index(target[axis], env)
                uniform = (
                    i.vector is None
                    and i.step == 1
                    and self._is_multiple(start, i.lanes)
                    and self._divisor(i) >= i.lanes
                )
                at = self.scalar(i.base) if uniform else self.materialize(i)
                result = self.e.select(self.e.cmp("ge", at, self.size(start)), val, result)
            start = start + extent
        return result

    def _held_index(self, val: Val, extent: Size) -> Index:
        """An index out of an array: negative ones count from the end, out of range is clamped."""
        e = self.e
        n = e.cast(self.size(extent), val.dtype)
        val = e.select(e.cmp("lt", val, 0), e.add(val, n), val)
        val = e.max(e.min(val, e.sub(n, 1)), 0)
        return self._of_val(e.cast(val, self.index_type))

    def _take(self, op: Op, env: Env) -> Val:
        operand, indices = op.operands
        axis, rank = op.attrs["axis"], indices.rank
        at = self._through(op, env, [(d, axis + d) for d in range(rank)], 1)
        index = self._held_index(self.value(indices, at), operand.shape[axis])
        pairs = [(d, d if d < axis else d + rank - 1) for d in range(operand.rank) if d != axis]
        inner = dict(self._through(op, env, pairs))
        self.spread(self.dims(operand)[axis], index, inner)
        return self.value(operand, inner)

    def _take_along_axis(self, op: Op, env: Env) -> Val:
        operand, indices = op.operands
        axis = op.attrs["axis"]
        index = self._held_index(self.value(indices, env), operand.shape[axis])
        inner = dict(env)
        source, target = self.dims(operand), self.dims(op.result)
        for d in range(operand.rank):
            if d != axis and source[d]:
                self.spread(source[d], self.dim_index(target[d], env), inner)
        self.spread(source[axis], index, inner)
        return self.value(operand, inner)

    def _random_words(self, op: Op, env: Env, count: int) -> list[Val]:
        """``count`` (1, 2 or 4) random u32 for an element: see :func:`mlirfuse.ir.ops.table.random_words`."""
        e = self.e
        seed, offset = (e.cast(self.value(v, env), dt.u64) for v in op.operands)
        i = self._offset(op.result, sz.contiguous_strides(op.result.shape), env)
        share = 4 // count  # elements of one block
        extent = op.result.shape[-1] if op.result.rank else 1
        if (
            i.vector is None
            and i.step == 1
            and i.lanes % share == 0
            and self._is_multiple(extent, i.lanes)
            and self._divisor(i) >= share
        ):
            # The lanes are whole blocks: each is drawn once.
            blocks = [
                e.add(e.shr(e.cast(self.scalar(i.base), dt.u64), share.bit_length() - 1), b)
                for b in range(i.lanes // share)
            ]
            drawn = [m.philox4x32(e, (block, offset), seed) for block in blocks]
            return [
                e.from_lanes([words[part * count + w] for words in drawn for part in range(share)])
                for w in range(count)
            ]
        position = e.cast(self.materialize(i), dt.u64)
        words = m.philox4x32(e, (e.shr(position, share.bit_length() - 1), offset), seed)
        which = e.cast(e.and_(position, share - 1), dt.u32)
        out = []
        for w in range(count):
            word = words[w]
            for part in range(1, share):
                word = e.select(e.cmp("eq", which, part), words[part * count + w], word)
            out.append(word)
        return out

    def _uniform(self, op: Op, env: Env) -> Val:
        dtype = op.attrs["dtype"]
        words = self._random_words(op, env, 2 if dtype is dt.f64 else 1)
        val = m.uniform_from_bits(self.e, words[0], dtype.compute, *words[1:])
        return self.e.cast(self.e.cast(val, dtype), dtype.compute)

    def _normal(self, op: Op, env: Env) -> Val:
        dtype = op.attrs["dtype"]
        words = self._random_words(op, env, 4 if dtype is dt.f64 else 2)
        if dtype is dt.f64:
            words = [
                self.e.or_(self.e.cast(a, dt.u64), self.e.shl(self.e.cast(b, dt.u64), 32))
                for a, b in (words[:2], words[2:])
            ]
        val, _ = m.normal_from_bits(self.e, *words, dtype.compute)
        return self.e.cast(self.e.cast(val, dtype), dtype.compute)

    # ---- memory

    def _offset(self, value: Value, strides, env: Env) -> Index:
        steps = self._steps(value, strides)
        flat, start = self.flat, ZERO
        if flat is not None and env.get(flat.loops[0]) is flat.outer and env.get(flat.loops[1]) is flat.inner:
            step_of = dict(steps)
            outer, inner = (step_of.get(axis, 0) for axis in flat.loops)
            if inner != 0 and outer == sz.mul(inner, flat.extent):  # memory runs through both loops as through one
                env = {**env, flat.loops[0]: Index(flat.origin), flat.loops[1]: ZERO}
                start = self.scale(flat.index, inner)
        return functools.reduce(
            lambda out, step: self.add(out, self.scale(env.get(step[0], ZERO), step[1])), steps, start
        )

    def _steps(self, value: Value, strides) -> list[tuple[Axis, Size]]:
        """How far a step along each axis of a tensor is in memory."""
        steps = []
        for dim, stride in zip(self.dims(value), strides):
            for axis in reversed(dim):
                steps.append((axis, stride))
                stride = sz.mul(stride, axis.size)
        return steps

    def address(self, memory: Memory, offset: Val) -> str:
        if isinstance(offset, int):
            offset = self.scalar(offset)
        name = self.e.fresh()
        kind = self.pointer_type if offset.lanes == 1 else f"vector<{offset.lanes}x{self.pointer_type}>"
        self.e.line(
            f"{name} = llvm.getelementptr {memory.pointer}[{offset}] : ({self.pointer_type}, {offset.type}) -> {kind}, {memory.dtype.memory}"
        )
        return name

    def place(self, value: Value, env: Env) -> str:
        """The address of an input's element, of a vector the first one's."""
        return self.address(self.memories[value], self.offset(value, env).base)

    def offset(self, value: Value, env: Env) -> Index:
        """How many elements of an input or output ``env`` is behind its first one."""
        return self._offset(value, self.memories[value].strides, env)

    def load_aligned(self, value: Value, offset: Val, lanes: int) -> Val:
        """Loads an input's vector at an offset that is a multiple of its lanes, as it is in memory, which is aligned
        for such."""
        memory = self.memories[value]
        return self._load(replace(memory, align=min(16, lanes * memory.dtype.bytes)), Index(offset, 1, lanes))

    def load(self, value: Value, env: Env) -> Val:
        if value not in self.memories:
            return self._scalar(value)
        return self._from_memory(self.preload(value, env), value.dtype)

    def reload(self, value: Value, env: Env) -> Val:
        """Loads an output's element, as it was stored last."""
        return self._from_memory(self._load(self.memories[value], self.offset(value, env)), value.dtype)

    def preload(self, value: Value, env: Env) -> Val:
        """Loads an input's element as it is in memory; a later :meth:`value` converts it. Inside :meth:`forget`, what
        was loaded before is still known."""
        key = ("loaded", self._key(value, env))
        for scope in reversed(self._memo):
            if key in scope:
                return scope[key]
        val = self._memo[-1][key] = self._load(self.memories[value], self.offset(value, env))
        return val

    def bind_loaded(self, value: Value, env: Env, val: Val) -> None:
        """Says what loading ``value`` at ``env`` gives: what a scheduler staged elsewhere."""
        self._memo[-1]["loaded", self._key(value, env)] = val

    def _from_memory(self, val: Val, dtype: dt.DType) -> Val:
        if dtype is dt.bool_:
            return self.e.cmp("ne", val, 0)
        return self.e.cast(val, dtype.compute)

    def held(self, dtype: dt.DType) -> dt.DType:
        """The type that elements are loaded and stored as: bools as bytes; half types on the CPU as bits, since LLVM
        makes a masked access of vectors of them into calls of conversions that nobody provides."""
        if dtype is dt.bool_:
            return dt.u8
        return dt.u16 if dtype.is_float and dtype.bits == 16 and self.e.target == "cpu" else dtype

    def _load(self, memory: Memory, offset: Index) -> Val:
        e, dtype = self.e, self.held(memory.dtype)
        if dtype is not memory.dtype and memory.dtype is not dt.bool_:
            as_bits = Memory(memory.pointer, memory.strides, dtype, memory.align, memory.read_only)
            return e.bitcast(self._load(as_bits, offset), memory.dtype)
        scalar = offset.vector is None and (offset.lanes == 1 or offset.step == 0)
        flags = " invariant" if memory.read_only and e.target == "gpu" else ""
        if scalar:
            address = self.address(memory, offset.base)
            return e.op(
                f"llvm.load {address}{flags} {{alignment = {dtype.bytes} : i64}} : {self.pointer_type} -> {dtype.memory}",
                dtype,
            )
        lanes = offset.lanes
        type_ = Val("", dtype, lanes).type
        if offset.vector is None and offset.step == 1:
            address = self.address(memory, offset.base)
            if self.mask is not None:
                mask, zero = e.splat(self.mask, lanes), e.const(0, dtype, lanes)
                text = f"llvm.intr.masked.load {address}, {mask}, {zero} {{alignment = {dtype.bytes} : i32}}"
                return e.op(f"{text} : ({self.pointer_type}, {mask.type}, {type_}) -> {type_}", dtype, lanes)
            align = min(memory.align, lanes * dtype.bytes)
            if memory.hint and align == lanes * dtype.bytes == 16:
                return self._load_hinted(address, dtype, lanes, memory.hint)
            return e.op(
                f"llvm.load {address}{flags} {{alignment = {align} : i64}} : {self.pointer_type} -> {type_}",
                dtype,
                lanes,
            )
        if e.target == "cpu" and offset.vector is None and self.mask is None and offset.step in PICKED:
            return self._load_picked(memory, offset)
        if e.target == "cpu":
            addresses = self.address(memory, self.materialize(offset))
            mask, zero = e.splat(self.mask or e.const(True, dt.bool_), lanes), e.const(0, dtype, lanes)
            text = f"llvm.intr.masked.gather {addresses}, {mask}, {zero} {{alignment = {dtype.bytes} : i32}}"
            return e.op(
                f"{text} : (vector<{lanes}x{self.pointer_type}>, {mask.type}, {type_}) -> {type_}", dtype, lanes
            )
        return e.from_lanes([self._load(memory, Index(self._lane(offset, k))) for k in range(lanes)])

    def _load_picked(self, memory: Memory, offset: Index) -> Val:
        """A vector of every second to fourth element, or of elements backwards, out of whole vectors over what it
        spans, and not past that. To gather them takes four times as long."""
        e, dtype, lanes, step = self.e, self.held(memory.dtype), offset.lanes, offset.step
        span = abs(step) * (lanes - 1) + 1
        low = self.add(Index(offset.base), Index(min(step, 0) * (lanes - 1)))
        places = [k * step if step > 0 else span - 1 + k * step for k in range(lanes)]
        found = None
        for start in (*range(0, span - lanes, lanes), span - lanes):
            vector = self._load(memory, Index(self.add(low, Index(start)).base, 1, lanes))
            picked = ", ".join(
                str(lanes + at - start if start <= at < start + lanes else k) for k, at in enumerate(places)
            )
            found = e.op(
                f"vector.shuffle {found or vector}, {vector} [{picked}] : {vector.type}, {vector.type}", dtype, lanes
            )
        return found

    def _load_hinted(self, address: str, dtype: dt.DType, lanes: int, hint: str) -> Val:
        """A load of 16 bytes with a hint to the caches, which LLVM has no instruction for."""
        e, struct, name = self.e, "!llvm.struct<(i32, i32, i32, i32)>", self.e.fresh()
        operands, constraints, types = address, "=r,=r,=r,=r,l", self.pointer_type
        if hint == STAY_L2:
            operands, constraints, types = f"{operands}, {self.policy()}", constraints + ",l", types + ", i64"
        e.line(f'{name} = llvm.inline_asm "{_HINTED[hint]}", "{constraints}" {operands} : ({types}) -> {struct}')
        return e.of_words([e.op(f"llvm.extractvalue {name}[{k}] : {struct}", dt.u32) for k in range(4)], dtype, lanes)

    def policy(self) -> str:
        """What accesses with the hint ``STAY_L2`` take: a number that the GPU makes."""
        if self._policy is None:
            self._policy = self.e.fresh()
            self.e.entry.append(
                f'  {self._policy} = llvm.inline_asm "createpolicy.fractional.L2::evict_last.b64 $0, 1.0;", "=l" : () -> i64'
            )
        return self._policy

    def _lane(self, i: Index, lane: int) -> Val | int:
        if i.vector is not None:
            return self.e.extract(i.vector, lane)
        if lane == 0 or i.step == 0:
            return i.base
        return self.add(Index(i.base), self.scale(Index(lane), i.step)).base

    def store(self, value: Value, env: Env, val: Val) -> None:
        """Stores the element of ``value`` at ``env``, wherever it belongs."""
        self._store(value, env, val, self.memories[value])
        if value in self.copies:
            self._store(value, env, val, self.copies[value])

    def _store(self, value: Value, env: Env, val: Val, memory: Memory) -> None:
        e = self.e
        val = (
            e.cast(val, dt.u8)
            if memory.dtype is dt.bool_
            else e.bitcast(e.cast(val, memory.dtype), self.held(memory.dtype))
        )
        offset = self._offset(value, memory.strides, env)
        if offset.vector is None and (offset.lanes == 1 or offset.step == 0):
            address = self.address(memory, offset.base)
            val = e.extract(val, 0)
            e.line(
                f"llvm.store {val}, {address} {{alignment = {val.dtype.bytes} : i64}} : {val.type}, {self.pointer_type}"
            )
            return
        lanes = offset.lanes
        val = e.splat(val, lanes)
        if offset.vector is None and offset.step == 1:
            address = self.address(memory, offset.base)
            if self.mask is not None:
                mask = e.splat(self.mask, lanes)
                e.line(
                    f"llvm.intr.masked.store {val}, {address}, {mask} {{alignment = {val.dtype.bytes} : i32}} : {val.type}, {mask.type} into {self.pointer_type}"
                )
                return
            align = min(memory.align, lanes * val.dtype.bytes)
            e.line(f"llvm.store {val}, {address} {{alignment = {align} : i64}} : {val.type}, {self.pointer_type}")
            return
        if e.target == "cpu":
            addresses = self.address(memory, self.materialize(offset))
            mask = e.splat(self.mask or e.const(True, dt.bool_), lanes)
            e.line(
                f"llvm.intr.masked.scatter {val}, {addresses}, {mask} {{alignment = {val.dtype.bytes} : i32}} : {val.type}, {mask.type} into vector<{lanes}x{self.pointer_type}>"
            )
            return
        for k in range(lanes):
            address = self.address(memory, self._lane(offset, k))
            lane = e.extract(val, k)
            e.line(
                f"llvm.store {lane}, {address} {{alignment = {lane.dtype.bytes} : i64}} : {lane.type}, {self.pointer_type}"
            )
