"""The value of any tensor of a segment at any index."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace

from mlirfuse.analysis.axes import Axes, equal_ends
from mlirfuse.core.errors import CompileError
from mlirfuse.core.sites import site_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering import math as m
from mlirfuse.lowering.elementwise import EMIT, ROUGH
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.kernel.bounds import RULES, Known
from mlirfuse.lowering.kernel.exactness import ReducedPrecision, is_less_its_largest, is_share, is_size
from mlirfuse.lowering.kernel.index import Env, Index
from mlirfuse.lowering.kernel.index_remapping import IndexRemapping, Steps
from mlirfuse.lowering.kernel.memory import Memory


class ElementEmitter(IndexRemapping):
    """Emits elements of a segment's tensors.

    ``axes`` are the segment's; ``memories`` its inputs and outputs in memory; ``size`` returns a size as a Val of the
    index type, ``scalar`` a by-value argument, ``inverse`` the multiplicative inverse of a size. ``index`` is i32 or
    i64. ``inside``: the segment's ops. ``known_multiples``: sizes known to be multiples of ``multiple_of``. ``reports``
    returns the pointer to the report of out-of-bounds indices."""

    def __init__(self, e: Emitter, axes: Axes, memories: dict[Value, Memory], size: Callable[[Size], Val],
                 index: dt.DType, inside: set[Op], scalar: Callable[[Value], Val] | None = None,
                 known_multiples: frozenset[Size] = frozenset(), multiple_of: int = 1,
                 inverse: Callable[[Size], Val] | None = None, reports: Callable[[], str] | None = None,
                 prefetch: int = 0, past_end: bool = False, short_means: bool = True):  # fmt: skip
        super().__init__(
            e, axes, memories, size, index, scalar, inverse, known_multiples, multiple_of, prefetch, past_end
        )
        self.inside = inside
        self.reports = reports
        self._reduced_precision = ReducedPrecision(inside, self.memories)
        self._bounds = Known()
        self.short_means = short_means

    def value(self, value: Value, env: Env) -> Val:
        """The element of ``value`` at ``env``, in its compute type (:attr:`DType.compute`).

        Each op has a rule, a generator that yields (operand, env) to get an operand's element, and returns the
        result's. The rules of a chain are on an explicit stack, because a long chain would overflow Python's."""
        stack: list[tuple[tuple, Steps]] = []
        while True:
            key = self._key(value, env)
            val = self._known(key)
            if val is None:
                created = self._created(value, env)
                if isinstance(created, Val):
                    val = self._memo[-1][key] = created
                else:
                    stack.append((key, created))
            while stack:
                try:
                    value, env = stack[-1][1].send(val)  # type: ignore[arg-type]  # None starts a rule
                    break
                except StopIteration as done:
                    val = self._memo[-1][stack.pop()[0]] = done.value
            else:
                assert val is not None
                return val

    def _known(self, key: tuple) -> Val | None:
        for scope in reversed(self._memo):
            if key in scope:
                return scope[key]
        return None

    def _created(self, value: Value, env: Env) -> Val | Steps:
        """The element, or the rule that computes it."""
        op = value.op
        if op is None or op not in self.inside:
            return self.load(value, env)
        if op.row.kind == "reduce":
            if self.axes.reduced(op):
                raise CompileError(
                    f"{op.name} is used before it is computed: the scheduler does not support this segment"
                )
            return self._reduce_of_one(op, env)
        if op.row.kind == "scan":
            if self.axes.scanned(op):
                raise CompileError(
                    f"{op.name} is used before it is computed: the scheduler does not support this segment"
                )
            return self._scan_of_one(op, env)
        return getattr(self, f"_{op.name}", self._elementwise)(op, env)

    def _reduce_of_one(self, op: Op, env: Env) -> Steps:
        """A reduction over extents of 1 only."""
        if op.row.accumulator == "position":
            return self.e.const(0, dt.i64)
        val = yield op.operands[0], self._through(op, env, self._kept(op))
        if op.row.accumulator == "moments":  # 0, or NaN for NaN and infinities
            return self.e.sub(val, val)
        if op.name == "sum" and val.dtype.is_float:  # sums start from 0, so that the sum of -0 is 0
            return self.e.add(val, 0.0)
        return self.e.cmp("ne", val, 0) if op.row.accumulator == "truth" and val.dtype is not dt.bool_ else val

    def _scan_of_one(self, op: Op, env: Env) -> Steps:
        """A scan along an extent of 1: its element; for a recurrence, the added operand."""
        last = len(op.operands) - 1
        added = op.operands[last]
        return (yield added, self._through(op, env, [(d, d) for d in range(added.rank)], last))

    def operands(self, op: Op, env: Env) -> list[Val]:
        """The elements of the operands of an elementwise op or scan, for its result at ``env``."""
        return [
            self.value(v, self._through(op, env, [(d, d) for d in range(v.rank)], k)) for k, v in enumerate(op.operands)
        ]

    def at_row(self, op: Op, env: Env, row: Index) -> Env:
        """The env of the elements of a scatter-add's result in ``row``, for the values at ``env``."""
        target, source = self.dims(op.result), self.dims(op.operands[2])
        new = dict(env)
        for d in range(1, op.result.rank):
            if target[d] != source[d]:
                self.spread(target[d], self.dim_index(source[d], env), new)
        self.spread(target[0], row, new)
        return new

    def _kept(self, op: Op):
        """(operand dim, result dim) pairs of a reduction."""
        axes, keep = ops.axes_of(op.attrs, op.operands[0].rank), op.attrs.get("keepdims")
        out, at = [], 0
        for d in range(op.operands[0].rank):
            if d not in axes or keep:
                out.append((d, at))
                at += 1
        return out

    def _elementwise(self, op: Op, env: Env) -> Steps:
        vals = []
        for k, operand in enumerate(op.operands):
            inner = self._through(op, env, [(d, d) for d in range(operand.rank)], k)
            vals.append((yield operand, inner))
        return self._typed(op.result, self._computed(op, vals))

    def _computed(self, op: Op, vals: list[Val]) -> Val:
        """An element of an elementwise op, from its operands' elements."""
        e = self.e
        if op.name in ROUGH and self._rough(op):
            return ROUGH[op.name](e, *vals)
        if op.name in RULES and self._short(op.result) and all(map(self._short, op.operands)):
            return e.cast(EMIT[op.name](e, *(e.cast(v, dt.i32) for v in vals)), dt.i64)
        return EMIT[op.name](e, *vals)

    def _exp(self, op: Op, env: Env) -> Steps:
        operand, negative = op.operands[0], is_less_its_largest(op.operands[0])
        val = yield operand, self._through(op, env, [(d, d) for d in range(operand.rank)])
        if negative and self._rough(op):
            return m.rough_exp(self.e, val)
        return self._typed(op.result, m.exp(self.e, val, negative=negative))

    def _rough(self, op: Op) -> bool:
        """Whether a GPU's approximation of a float32 result suffices: rounding to a 16-bit float hides its error, and
        it takes a quarter of the instructions."""
        return self.e.target == "gpu" and op.result.dtype.compute is dt.f32 and self._reduced_precision.hide(op.result)

    def _div(self, op: Op, env: Env) -> Steps:
        """On a GPU, a divisor that many elements share is inverted once, a constant at compile time. Quotients that are
        rounded to 16-bit floats are within 2.5 ulp of float32; others are corrected. A division takes twice as many
        instructions, and a branch."""
        axes = self.axes.flat
        if self.e.target != "gpu" or op.result.dtype.compute is not dt.f32:
            return (yield from self._elementwise(op, env))
        a, b = (self._through(op, env, [(d, d) for d in range(v.rank)], k) for k, v in enumerate(op.operands))
        dividend, divisor = (yield op.operands[0], a), (yield op.operands[1], b)
        reduced, number = self._reduced_precision.hide(op.result), self.e.known(divisor)
        if number is not None or not set(axes(op.operands[1])) < set(axes(op.result)):
            by_number = m.half_quotient_by if reduced else m.quotient_by_number
            quotient = by_number(self.e, dividend, float(number)) if number is not None else None
            return quotient or self._typed(op.result, self._computed(op, [dividend, divisor]))
        once = dividend.lanes == 1 and not axes(op.operands[1])  # such as a row's sum over its length
        if once and self.short_means and is_size(op.operands[1]):
            return m.quotient_by_size(self.e, dividend, divisor)
        if divisor.lanes > 1 or once:
            if reduced:
                return m.rough_quotient(self.e, dividend, divisor)
            return (yield from self._elementwise(op, env))
        key = self._key(op.operands[1], b)
        if is_share(op):
            (inverse,) = self._once(("reciprocal", key), lambda: (m.reciprocal(self.e, divisor),))
            return self.e.mul(dividend, inverse) if reduced else m.quotient_of_share(self.e, dividend, divisor, inverse)
        scale, inverse = self._once(("inverse", key), lambda: m.inverse(self.e, divisor))
        if reduced:
            return self.e.mul(self.e.mul(dividend, scale), inverse)
        return m.quotient_by_inverse(self.e, dividend, divisor, scale, inverse)

    def _typed(self, value: Value, val: Val) -> Val:
        assert val.dtype is value.dtype.compute, (value, val)
        return val

    def _nextafter(self, op: Op, env: Env) -> Steps:
        """The next number of the operands' own type: operands of 16-bit floats are rounded to it first."""
        dtype, vals = op.result.dtype, []
        for k, operand in enumerate(op.operands):
            vals.append((yield operand, self._through(op, env, [(d, d) for d in range(operand.rank)], k)))
        return m.nextafter_of(self.e, *self.e._pair(*vals), dtype)

    def _cast(self, op: Op, env: Env) -> Steps:
        operand = op.operands[0]
        val = yield operand, self._through(op, env, [(d, d) for d in range(operand.rank)])
        to = op.attrs["to"]
        if val.dtype.is_float and self._short(op.result):
            return self.e.cast(self.e.whole(val), to)
        return self.e.cast(self.e.cast(val, to), to.compute)

    def _where(self, op: Op, env: Env) -> Steps:
        """If the condition is known for all lanes, evaluate only the selected operand."""
        truth = self._truth(op.operands[0], env)
        if truth is None:
            return (yield from self._elementwise(op, env))
        k = 1 if truth else 2
        operand = op.operands[k]
        return (yield operand, self._through(op, env, [(d, d) for d in range(operand.rank)], k))

    def _truth(self, value: Value, env: Env) -> bool | None:
        """The known value of a condition on indices, e.g. of an assignment to a slice; None if unknown."""
        op = value.op
        if op is None or op not in self.inside or op.name not in ("logical_and", "ge", "lt"):
            return None
        if not any(i.span for i in env.values()):
            return None
        inner = [
            self._through(op, env, [(d, d) for d in range(operand.rank)], k) for k, operand in enumerate(op.operands)
        ]
        if op.name == "logical_and":
            both = [self._truth(v, at) for v, at in zip(op.operands, inner)]
            return False if False in both else True if both == [True, True] else None
        one, other = (self._range(v, at) for v, at in zip(op.operands, inner))
        if one is None or other is None:
            return None
        (low, high), (least, most) = one, other
        below, above = sz.at_least(least, high + 1), sz.at_least(low, most)
        return op.name == ("lt" if below else "ge") if below or above else None

    def _range(self, value: Value, env: Env) -> tuple[Size, Size] | None:
        """The known least and largest value of an integer computed from indices and sizes; None if unknown."""
        op = value.op
        if op is None or op not in self.inside or value.dtype.kind != "i":
            return None
        if op.name in ("constant", "size"):
            number = op.attrs["value"] if op.name == "size" else int(op.attrs["value"])
            return number, number
        if op.name == "iota":
            span = self.dim_index(self.dims(value)[op.attrs["axis"]], env).span
            return span and (span[0], span[1] - 1)
        if op.name not in ("add", "sub"):
            return None
        one, other = (
            self._range(v, self._through(op, env, [(d, d) for d in range(v.rank)], k))
            for k, v in enumerate(op.operands)
        )
        if one is None or other is None:
            return None
        if op.name == "sub":
            other = sz.mul(other[1], -1), sz.mul(other[0], -1)
        return one[0] + other[0], one[1] + other[1]

    def _constant(self, op: Op, env: Env) -> Val:
        dtype = op.attrs["dtype"]
        return self.e.const(op.attrs["value"], dtype.compute)

    def _size(self, op: Op, env: Env) -> Val:
        return self.e.cast(self.size(op.attrs["value"]), dt.i64)

    def _full(self, op: Op, env: Env) -> Steps:
        return (yield op.operands[0], env)

    def _iota(self, op: Op, env: Env) -> Val:
        i = self.dim_index(self.dims(op.result)[op.attrs["axis"]], env)
        dtype = op.attrs["dtype"]
        return self.e.cast(self.e.cast(self.materialize(i), dtype), dtype.compute)

    def _broadcast_in_dim(self, op: Op, env: Env) -> Steps:
        return (yield op.operands[0], self._through(op, env, list(enumerate(op.attrs["dims"]))))

    def _permute(self, op: Op, env: Env) -> Steps:
        return (yield op.operands[0], self._through(op, env, [(d, k) for k, d in enumerate(op.attrs["dims"])]))

    def _squeeze(self, op: Op, env: Env) -> Steps:
        kept = [d for d in range(op.operands[0].rank) if d not in op.attrs["axes"]]
        return (yield op.operands[0], self._through(op, env, [(d, k) for k, d in enumerate(kept)]))

    def _expand_dims(self, op: Op, env: Env) -> Steps:
        kept = [k for k in range(op.result.rank) if k not in op.attrs["axes"]]
        return (yield op.operands[0], self._through(op, env, list(enumerate(kept))))

    def _reshape(self, op: Op, env: Env) -> Steps:
        operand = op.operands[0]
        source = [a for d in self.dims(operand) for a in d]
        target = [a for d in self.dims(op.result) for a in d]
        if source != target:
            first, last = equal_ends(source, target)
            index, memory = self.dim_index(target, env), self.memories.get(operand)
            if (
                memory
                and operand.op not in self.inside
                and tuple(memory.strides) == sz.contiguous_strides(operand.shape)
            ):
                aligned = min(memory.align, self._divisor(index) * operand.dtype.bytes)
                # The same linear offset for any shape.
                return self._from_memory(self._load(replace(memory, align=aligned), index), operand.dtype)
            env = dict(env)
            index = self.dim_index(target[first : len(target) - last], env)
            self.spread(source[first : len(source) - last], index, env)
        return (yield operand, env)

    def _clamped_index(self, val: Val, indices: Value, extent: Size) -> Index:
        """An index from ``indices``: negative ones count from the end, out-of-bounds ones are clamped."""
        e, created = self.e, indices.op
        if created is not None and created.name == "position" and created.attrs["extent"] == extent:
            return self._of_val(e.cast(val, self.index_type))
        return self._of_val(e.cast(self._inside(val, indices, extent), self.index_type))

    def _inside(self, val: Val, given: Value, extent: Size, wraps: bool = True) -> Val:
        """An index ``val`` from ``given``, clamped to the extent; negative ones count from the end if it ``wraps``."""
        e = self.e
        if self._short(given) and isinstance(extent, int) and extent < 1 << 31:
            val = e.cast(val, dt.i32)
        n = e.cast(self.size(extent), val.dtype)
        if self._positive(given):
            return e.min(val, e.sub(n, 1))
        if wraps:
            val = e.select(e.cmp("lt", val, 0), e.add(val, n), val)
        return e.max(e.min(val, e.sub(n, 1)), 0)

    def _positive(self, value: Value) -> bool:
        found = self._bounds.of(value)
        return found is not None and found.positive

    def _short(self, value: Value) -> bool:
        """Whether 32 bits hold each element of a 64-bit integer."""
        found = self._bounds.of(value) if value.dtype is dt.i64 else None
        return found is not None and found.most < 1 << 30  # still in range if a float was rounded up

    def _position(self, op: Op, env: Env) -> Steps:
        e, (operand,) = self.e, op.operands
        given = yield operand, self._through(op, env, [(d, d) for d in range(operand.rank)])
        extent = op.attrs["extent"]
        if not op.attrs["checked"]:
            return e.cast(self._inside(given, operand, extent, op.attrs["wraps"]), given.dtype)
        n = e.cast(self.size(extent), given.dtype)
        counted = not op.attrs["wraps"] or self._positive(operand)
        val = given if counted else e.select(e.cmp("lt", given, 0), e.add(given, n), given)
        unsigned = dt.u64 if given.dtype is dt.i64 else dt.u32
        bad = e.cmp("ge", e.bitcast(val, unsigned), e.bitcast(n, unsigned))
        self._report(bad, given, n, site_of(op.loc, op.attrs["axis"], op.attrs["message"]))
        return e.select(bad, 0, val)

    def _any(self, lanes: Val) -> Val:
        if lanes.lanes == 1:
            return lanes
        return self.e.op(f"vector.reduction <or>, {lanes} : {lanes.type} into i1", dt.bool_)

    def _report(self, bad: Val, given: Val, extent: Val, site: int) -> None:
        """If a lane is ``bad``, write its index, the source location and the extent to ``mlirfuse_bad_index``, which
        the runtime checks after the call. Of several bad lanes the largest index is reported."""
        e = self.e
        if self.mask is not None:
            mask = self._any(self.mask) if bad.lanes == 1 else e.splat(self.mask, bad.lanes)
            bad = e.and_(bad, mask)
        found = self._any(bad)
        assert self.reports is not None
        to, zero, one, claimed = self.reports(), *(e.const(n, dt.i64) for n in (0, 1, 2))

        def store(val: Val, slot: int) -> None:
            at = e.op(f"llvm.getelementptr {to}[{slot}] : ({self.pointer_type}) -> {self.pointer_type}, i64", dt.i64)
            e.line(f"llvm.store {e.cast(val, dt.i64)}, {at.name} : i64, {self.pointer_type}")

        with self.region(f"scf.if {found} {{"):
            position = given
            if bad.lanes > 1:
                lanes = e.select(bad, e.splat(given, bad.lanes), -(2 ** (given.dtype.bits - 1)))
                reduced = f"vector.reduction <maxsi>, {lanes} : {lanes.type} into {given.dtype.signless}"
                position = e.op(reduced, given.dtype)
            swap = f"llvm.cmpxchg {to}, {zero}, {claimed} acq_rel monotonic : {self.pointer_type}, i64"
            swapped = e.op(swap, dt.i64)
            first = e.op(f"llvm.extractvalue {swapped}[1] : !llvm.struct<(i64, i1)>", dt.bool_)
            with self.region(f"scf.if {first} {{"):
                for slot, val in enumerate((position, e.const(site, dt.i64), e.extract(extent, 0)), 1):
                    store(val, slot)
                order = "atomic release {alignment = 8 : i64}"  # after the others
                e.line(f"llvm.store {one}, {to} {order} : i64, {self.pointer_type}")

    def _take(self, op: Op, env: Env) -> Steps:
        operand, indices = op.operands
        axis, rank = op.attrs["axis"], indices.rank
        at = self._through(op, env, [(d, axis + d) for d in range(rank)], 1)
        index = self._clamped_index((yield indices, at), indices, operand.shape[axis])
        pairs = [(d, d if d < axis else d + rank - 1) for d in range(operand.rank) if d != axis]
        inner = dict(self._through(op, env, pairs))
        self.spread(self.dims(operand)[axis], index, inner)
        return (yield operand, inner)

    def _take_along_axis(self, op: Op, env: Env) -> Steps:
        operand, indices = op.operands
        axis = op.attrs["axis"]
        index = self._clamped_index((yield indices, env), indices, operand.shape[axis])
        inner = dict(env)
        source, target = self.dims(operand), self.dims(op.result)
        for d in range(operand.rank):
            if d != axis and source[d]:
                self.spread(source[d], self.dim_index(target[d], env), inner)
        self.spread(source[axis], index, inner)
        return (yield operand, inner)

    def _random_words(self, op: Op, env: Env, count: int) -> Generator[tuple[Value, Env], Val, list[Val]]:
        """``count`` (1, 2 or 4) random u32 for an element: see :func:`mlirfuse.ir.ops.random.random_words`."""
        e = self.e
        key, counter = op.operands
        seed, offset = e.cast((yield key, env), dt.u64), e.cast((yield counter, env), dt.u64)
        i = self._offset(op.result, sz.contiguous_strides(op.result.shape), env)
        share = 4 // count  # elements per block of words
        extent = op.result.shape[-1] if op.result.rank else 1
        if (
            i.vector is None
            and i.step == 1
            and i.lanes % share == 0
            and self._is_multiple(extent, i.lanes)
            and self._divisor(i) >= share
        ):
            # The lanes are complete blocks, each of which is drawn once.
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
        return m.words_at(e, position, seed, offset, count)

    def _uniform(self, op: Op, env: Env) -> Steps:
        dtype = op.attrs["dtype"]
        words = yield from self._random_words(op, env, 2 if dtype is dt.f64 else 1)
        return m.uniform_of_words(self.e, words, dtype)

    def _normal(self, op: Op, env: Env) -> Steps:
        dtype = op.attrs["dtype"]
        words = yield from self._random_words(op, env, 4 if dtype is dt.f64 else 2)
        return m.normal_of_words(self.e, words, dtype)
