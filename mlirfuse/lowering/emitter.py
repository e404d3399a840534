"""Emits MLIR text with typed values: the arithmetic of kernels and linalg bodies.

Text that is parsed once costs about a microsecond per op; building ops through the bindings costs tens. A :class:`Val`
is an SSA name with an element type and a number of lanes (1: a scalar, more: a ``vector<…>``). Methods take Vals or
Python numbers, splat scalars to the other operand's lanes, and select the float, signed or unsigned op by the element
type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlirfuse.core import deadline
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType


@dataclass(frozen=True, slots=True)
class Val:
    """An SSA value: ``name`` as printed, element type, and lanes (1 for a scalar)."""

    name: str
    dtype: DType
    lanes: int = 1

    @property
    def type(self) -> str:
        element = self.dtype.signless
        return element if self.lanes == 1 else f"vector<{self.lanes}x{element}>"

    def __str__(self) -> str:
        return self.name


_FLOAT_CMP = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "uno": "uno", "ord": "ord"}
_INTRINSICS = {"absf": "fabs"}  # where LLVM's name differs from the math dialect's
_INT_CMP = {"eq": "eq", "ne": "ne"}

MOST_TERMS, LONGEST_TERM = 8, 256  # limits for the tracked terms of integer sums


class Emitter:
    """Collects the lines of one function's body.

    ``target`` is ``"cpu"``, ``"gpu"`` or ``"linalg"`` (neither); only code with target-specific instructions depends on
    it. ``features`` has CPU features by LLVM's names: with ``avx512f`` and ``avx512vl``, code may use AVX-512
    instructions; of a GPU those of :class:`mlirfuse.core.device_properties.DeviceProperties`. Constants are emitted at
    the function's entry (:attr:`entry`), so that they dominate every use in any region."""

    def __init__(self, target: str = "cpu", features=()):
        self.target = target
        self.pointer_type = "!llvm.ptr<1>" if target == "gpu" else "!llvm.ptr"
        self.features = frozenset(features)
        self.entry: list[str] = []
        self.lines: list[str] = []
        self.depth = 1
        self._count = 0
        self._constants: dict[tuple, Val] = {}
        self._known: dict[str, object] = {}  # by name: the values of constants
        self._sums: dict[str, tuple[tuple[str, ...], int]] = {}
        self._selected: set[str] = set()  # names of what was extended from a selection
        self._narrow: dict[str, Val] = {}  # by name: the narrower value of the same kind that it was extended from

    # ---- lines and names

    def fresh(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)
        if not len(self.lines) & 1023:
            deadline.check()

    def op(self, text: str, dtype: DType, lanes: int = 1) -> Val:
        """Emit ``%new = text``, and return the new value."""
        name = self.fresh()
        self.line(f"{name} = {text}")
        return Val(name, dtype, lanes)

    def text(self) -> str:
        return "\n".join(self.entry + self.lines)

    # ---- constants and lanes

    def const(self, value, dtype: DType, lanes: int = 1) -> Val:
        """A constant of ``dtype``. ``value`` is a Python or NumPy number; NaN and infinities are preserved."""
        bits = dt.literal(value, dtype)
        key = (bits, dtype, lanes)
        found = self._constants.get(key)
        if found is None:
            name = f"%c{len(self._constants)}"
            found = self._constants[key] = Val(name, dtype, lanes)
            self._known[name] = value
            if lanes == 1:
                self.entry.append(
                    f"  {name} = arith.constant {bits}" + (f" : {found.type}" if dtype.kind != "b" else "")
                )
            else:
                self.entry.append(f"  {name} = arith.constant dense<{bits}> : {found.type}")
        return found

    def known(self, v: Val):
        """The value of a constant; None for other values."""
        return self._known.get(v.name)

    def sum_of(self, v: Val) -> tuple[tuple[str, ...], int]:
        """An integer as a sum of named terms and a constant. Integers with the same terms and constant are equal."""
        number = self.known(v)
        return self._sums.get(v.name, ((v.name,), 0)) if number is None else ((), int(number))

    def splat(self, v: Val, lanes: int) -> Val:
        """``v`` broadcast to ``lanes`` lanes."""
        if v.lanes == lanes:
            return v
        assert v.lanes == 1, (v, lanes)
        return self.op(f"vector.broadcast {v} : {v.type} to vector<{lanes}x{v.dtype.signless}>", v.dtype, lanes)

    def extract(self, v: Val, lane: int) -> Val:
        """Lane ``lane`` of a vector."""
        return v if v.lanes == 1 else self.op(f"vector.extract {v}[{lane}] : {v.dtype.signless} from {v.type}", v.dtype)

    def from_lanes(self, scalars: list[Val]) -> Val:
        """The vector of these scalars."""
        if len(scalars) == 1:
            return scalars[0]
        names = ", ".join(s.name for s in scalars)
        dtype = scalars[0].dtype
        type_ = f"vector<{len(scalars)}x{dtype.signless}>"
        return self.op(f"vector.from_elements {names} : {type_}", dtype, len(scalars))

    def shuffle(self, a: Val, b: Val, lanes: Sequence[int]) -> Val:
        """The vector of these lanes of two vectors of one type, of which those of ``b`` follow those of ``a``."""
        if a.lanes == 1 or len(lanes) == 1:  # MLIR shuffles vectors alone, and gives a vector of one element
            return self.from_lanes([self.extract((a, b)[n // a.lanes], n % a.lanes) for n in lanes])
        text = f"vector.shuffle {a}, {b} [{', '.join(map(str, lanes))}] : {a.type}, {b.type}"
        return self.op(text, a.dtype, len(lanes))

    def load_lanes(
        self, address: str, dtype: DType, lanes: int, align: int, mask: Val | None = None, flags="", pointer=""
    ) -> Val:
        """Load ``lanes`` contiguous elements, those outside of ``mask`` as 0. ``align``: bytes; ``pointer``: the type
        of the address, if not that of global memory."""
        pointer, type_ = pointer or self.pointer_type, Val("", dtype, lanes).type
        if mask is None:
            text = f"llvm.load {address}{flags} {{alignment = {align} : i64}} : {pointer} -> {type_}"
            return self.op(text, dtype, lanes)
        mask, zero = self.splat(mask, lanes), self.const(0, dtype, lanes)
        text = f"llvm.intr.masked.load {address}, {mask}, {zero} {{alignment = {align} : i32}}"
        return self.op(f"{text} : ({pointer}, {mask.type}, {type_}) -> {type_}", dtype, lanes)

    def store_lanes(self, address: str, val: Val, align: int, mask: Val | None = None, flags="", pointer="") -> None:
        """Store the lanes of ``mask`` contiguously, see :meth:`load_lanes`."""
        pointer = pointer or self.pointer_type
        if mask is None:
            self.line(f"llvm.store {val}, {address} {{alignment = {align} : i64{flags}}} : {val.type}, {pointer}")
        else:
            mask = self.splat(mask, val.lanes)
            text = f"llvm.intr.masked.store {val}, {address}, {mask} {{alignment = {align} : i32}}"
            self.line(f"{text} : {val.type}, {mask.type} into {pointer}")

    def per_lane(self, function, *vals: Val) -> Val:
        """``function`` applied to the scalars of each lane, for instructions without a vector form."""
        lanes = max(v.lanes for v in vals)
        splat = [self.splat(v, lanes) for v in vals]
        return self.from_lanes([function(*(self.extract(v, k) for v in splat)) for k in range(lanes)])

    def iota(self, dtype: DType, lanes: int) -> Val:
        """The vector 0, 1, 2, …"""
        key = ("iota", dtype, lanes)
        found = self._constants.get(key)
        if found is None:
            if lanes == 1:
                return self.const(0, dtype)
            found = self._constants[key] = Val(f"%c{len(self._constants)}", dtype, lanes)
            values = ", ".join(str(k) for k in range(lanes))
            self.entry.append(f"  {found} = arith.constant dense<[{values}]> : {found.type}")
        return found

    def _pair(self, a, b) -> tuple[Val, Val]:
        if not isinstance(a, Val):
            a = self.const(a, b.dtype, b.lanes)
        elif not isinstance(b, Val):
            b = self.const(b, a.dtype, a.lanes)
        if a.lanes != b.lanes:
            lanes = max(a.lanes, b.lanes)
            a, b = self.splat(a, lanes), self.splat(b, lanes)
        assert a.dtype == b.dtype, (a, b)
        return a, b

    def _binary(self, name: str, a, b) -> Val:
        a, b = self._pair(a, b)
        return self.op(f"{name} {a}, {b} : {a.type}", a.dtype, a.lanes)

    # ---- arithmetic

    def add(self, a, b) -> Val:
        a, b = self._pair(a, b)
        out = self._binary("arith.addf" if a.dtype.is_float else "arith.addi", a, b)
        if out.lanes == 1 and not out.dtype.is_float:
            (terms, n), (others, m) = self.sum_of(a), self.sum_of(b)
            if len(terms) + len(others) <= MOST_TERMS:
                self._sums[out.name] = tuple(sorted((*terms, *others))), n + m
        return out

    def sub(self, a, b) -> Val:
        a, b = self._pair(a, b)
        return self._binary("arith.subf" if a.dtype.is_float else "arith.subi", a, b)

    def mul(self, a, b) -> Val:
        a, b = self._pair(a, b)
        out = self._binary("arith.mulf" if a.dtype.is_float else "arith.muli", a, b)
        if out.lanes == 1 and not out.dtype.is_float:
            (terms, n), by = self.sum_of(a), self.known(b)
            product = f"{self.sum_of(a)} * {self.sum_of(b)}"
            if by is not None and all(len(term) <= LONGEST_TERM for term in terms):
                self._sums[out.name] = tuple(f"{by} * ({term})" for term in terms), n * int(by)
            elif len(product) <= LONGEST_TERM:  # nested products of powers grow exponentially
                self._sums[out.name] = (product,), 0
        return out

    def div(self, a, b) -> Val:
        """The quotient. Integers are truncated toward zero; division by 0 is undefined."""
        a, b = self._pair(a, b)
        return self._binary({"f": "arith.divf", "i": "arith.divsi"}.get(a.dtype.kind, "arith.divui"), a, b)

    def rem(self, a, b) -> Val:
        """The remainder of :meth:`div`, for integers."""
        a, b = self._pair(a, b)
        return self._binary("arith.remsi" if a.dtype.kind == "i" else "arith.remui", a, b)

    def neg(self, a: Val) -> Val:
        if a.dtype.is_float:
            return self.op(f"arith.negf {a} : {a.type}", a.dtype, a.lanes)
        return self.sub(0, a)

    def fma(self, a, b, c) -> Val:
        """``a * b + c`` of floats, rounded once."""
        given = [v for v in (a, b, c) if isinstance(v, Val)]
        dtype, lanes = given[0].dtype, max(v.lanes for v in given)
        a, b, c = (self.splat(v, lanes) if isinstance(v, Val) else self.const(v, dtype, lanes) for v in (a, b, c))
        if self.target == "gpu":
            return self.intrinsic("llvm.fma", a, b, c)
        return self.op(f"math.fma {a}, {b}, {c} : {a.type}", a.dtype, lanes)

    def min(self, a, b) -> Val:
        """The smaller operand; for floats NaN if either is NaN."""
        a, b = self._pair(a, b)
        if a.dtype.is_float and self.target == "cpu":
            return self._extreme("lt", a, b)
        return self._binary({"f": "arith.minimumf", "i": "arith.minsi"}.get(a.dtype.kind, "arith.minui"), a, b)

    def max(self, a, b) -> Val:
        """The larger operand; for floats NaN if either is NaN."""
        a, b = self._pair(a, b)
        if a.dtype.is_float and self.target == "cpu":
            return self._extreme("gt", a, b)
        return self._binary({"f": "arith.maximumf", "i": "arith.maxsi"}.get(a.dtype.kind, "arith.maxui"), a, b)

    def _extreme(self, better: str, a: Val, b: Val) -> Val:
        # As in NumPy, of zeros the second one. x86's instruction does that, and also returns the second operand if
        # either is NaN, so that only a NaN in the first needs a select; minimumf and maximumf, which order zeros by
        # sign, take six instructions.
        chosen = self.select(self.cmp(better, a, b), a, b)
        return self.select(self.isnan(a), a, chosen)

    def _unary(self, name: str, a: Val) -> Val:
        return self.op(f"{name} {a} : {a.type}", a.dtype, a.lanes)

    def _math(self, name: str, a: Val) -> Val:
        # convert-gpu-to-nvvm lowers these math ops to libdevice calls; LLVM's intrinsics are instructions.
        if self.target == "gpu":
            return self.intrinsic(f"llvm.{_INTRINSICS.get(name, name)}", a)
        return self._unary(f"math.{name}", a)

    def intrinsic(self, name: str, *vals: Val) -> Val:
        """LLVM's intrinsic ``name`` (without type suffix), whose operands and result have one type."""
        types = ", ".join(v.type for v in vals)
        operands = ", ".join(v.name for v in vals)
        return self.op(
            f'llvm.call_intrinsic "{name}"({operands}) : ({types}) -> {vals[0].type}', vals[0].dtype, vals[0].lanes
        )

    def sqrt(self, a: Val) -> Val:
        return self._math("sqrt", a)

    def abs(self, a: Val) -> Val:
        if a.dtype.kind in "ub":
            return a
        if a.dtype.is_float:
            return self._math("absf", a)
        if self.target == "gpu":
            return self.op(
                f'"llvm.intr.abs"({a}) <{{is_int_min_poison = false}}> : ({a.type}) -> {a.type}', a.dtype, a.lanes
            )
        return self._unary("math.absi", a)

    def floor(self, a: Val) -> Val:
        return self._math("floor", a) if a.dtype.is_float else a

    def ceil(self, a: Val) -> Val:
        return self._math("ceil", a) if a.dtype.is_float else a

    def trunc(self, a: Val) -> Val:
        return self._math("trunc", a) if a.dtype.is_float else a

    def rint(self, a: Val) -> Val:
        """``a`` rounded to the nearest integer, halves to even."""
        return self._math("roundeven", a) if a.dtype.is_float else a

    def copysign(self, magnitude, sign) -> Val:
        if self.target != "gpu":
            return self._binary("math.copysign", magnitude, sign)
        return self.intrinsic("llvm.copysign", *self._pair(magnitude, sign))

    # ---- bits and logic (bools are i1)

    def and_(self, a, b) -> Val:
        return self._binary("arith.andi", a, b)

    def or_(self, a, b) -> Val:
        return self._binary("arith.ori", a, b)

    def xor(self, a, b) -> Val:
        return self._binary("arith.xori", a, b)

    def not_(self, a: Val) -> Val:
        return self.xor(a, True if a.dtype is dt.bool_ else -1)

    def shl(self, a, b) -> Val:
        return self._binary("arith.shli", a, b)

    def shr(self, a, b) -> Val:
        """Shift right: arithmetic for signed integers, logical for unsigned."""
        a, b = self._pair(a, b)
        return self._binary("arith.shrsi" if a.dtype.kind == "i" else "arith.shrui", a, b)

    def cmp(self, predicate: str, a, b) -> Val:
        """Compare by ``eq ne lt le gt ge``; for floats ordered (false with NaN) except ``ne``; ``uno``: either operand
        is NaN."""
        a, b = self._pair(a, b)
        if a.dtype.is_float:
            text = f"arith.cmpf {_FLOAT_CMP[predicate]}, {a}, {b} : {a.type}"
        else:
            signed = "s" if a.dtype.kind == "i" else "u"
            text = f"arith.cmpi {_INT_CMP.get(predicate) or signed + predicate}, {a}, {b} : {a.type}"
        return self.op(text, dt.bool_, a.lanes)

    def _selects_bits(self, dtype: DType) -> bool:
        """Whether LLVM selects elements of a type as float32, by library calls: without AVX512-BF16."""
        return self.target == "cpu" and dtype is dt.bf16

    def select(self, condition: Val, a, b) -> Val:
        """``a`` where ``condition``, else ``b``, per lane. Values that were extended are selected before that, with one
        conversion for both; but on a CPU not in a chain, as of a maximum over a window, which would wait for each."""
        a, b = self._pair(a, b)
        narrow, other = self.narrow(a), self.narrow(b)
        chained = self.target == "cpu" and not self._selected.isdisjoint((a.name, b.name))
        if narrow is not None and other is not None and narrow.dtype == other.dtype and not chained:
            found = self.cast(self.select(condition, narrow, other), a.dtype)
            self._selected.add(found.name)
            return found
        if self._selects_bits(a.dtype):
            bits = self.select(condition, self.bitcast(a, dt.u16), self.bitcast(b, dt.u16))
            return self.bitcast(bits, a.dtype)
        lanes = max(condition.lanes, a.lanes)
        a, b, condition = self.splat(a, lanes), self.splat(b, lanes), self.splat(condition, lanes)
        if lanes == 1:
            return self.op(f"arith.select {condition}, {a}, {b} : {a.type}", a.dtype)
        return self.op(f"arith.select {condition}, {a}, {b} : {condition.type}, {a.type}", a.dtype, lanes)

    def isnan(self, a: Val) -> Val:
        return self.cmp("uno", a, a)

    # ---- types

    def bitcast(self, a: Val, dtype: DType) -> Val:
        """The same bits as another type of the same width."""
        to = Val("", dtype, a.lanes)
        if to.type == a.type:
            return Val(a.name, dtype, a.lanes)
        return self.op(f"arith.bitcast {a} : {a.type} to {to.type}", dtype, a.lanes)

    def of_loaded_bits(self, bits: Val, dtype: DType) -> Val:
        """The elements with these bits. LLVM loads bfloat16 as such, and then selects it by library calls, unless
        something stands between the load and the cast."""
        if self._selects_bits(dtype):
            bits = self.op(f"llvm.freeze {bits} : {bits.type}", bits.dtype, bits.lanes)
        return self.bitcast(bits, dtype)

    def words(self, a: Val) -> list[Val]:
        """The bits of a vector of a multiple of 32 bits, as u32 words."""
        count = a.lanes * a.dtype.bits // 32
        as_words = self.op(f"llvm.bitcast {a} : {a.type} to {Val('', dt.u32, count).type}", dt.u32, count)
        return [self.extract(as_words, w) for w in range(count)]

    def of_words(self, words: list[Val], dtype: DType, lanes: int) -> Val:
        """The vector with these bits: the inverse of :meth:`words`."""
        bits = self.from_lanes(words)
        return self.op(f"llvm.bitcast {bits} : {bits.type} to {Val('', dtype, lanes).type}", dtype, lanes)

    def halves(self, a: Val) -> tuple[Val, Val]:
        """The lower and the upper 32 bits of 64-bit numbers, as u32."""
        bits = self.bitcast(a, dt.u64)
        return self.cast(bits, dt.u32), self.cast(self.shr(bits, 32), dt.u32)

    def of_halves(self, low: Val, high: Val, dtype: DType) -> Val:
        """The 64-bit numbers with these halves."""
        return self.bitcast(self.or_(self.cast(low, dt.u64), self.shl(self.cast(high, dt.u64), 32)), dtype)

    def cast(self, a: Val, dtype: DType) -> Val:
        """Convert as C does, with defined results where C's are undefined and NumPy's are not.

        To bool: ``a != 0`` (NaN is true). Float to integer: toward zero; out of range is target-dependent as in NumPy,
        but never undefined behaviour. Complex values are not supported here."""
        source = a.dtype
        if source == dtype:
            return a
        to = Val("", dtype, a.lanes)
        convert = lambda name: self.op(f"{name} {a} : {a.type} to {to.type}", dtype, a.lanes)  # noqa: E731
        if dtype is dt.bool_:
            return self.cmp("ne", a, 0)
        if source is dt.bool_:
            if dtype.is_float and dtype.bits == 16:  # otherwise a library call for bfloat16
                return self.cast(self.cast(a, dt.f32), dtype)
            if dtype.is_float and self.target == "gpu":  # one instruction; LLVM would convert to an integer first
                return self.select(a, self.const(1, dtype), self.const(0, dtype))
            return convert("arith.uitofp" if dtype.is_float else "arith.extui")
        if source.is_float and dtype.is_float:
            narrow = self.narrow(a)
            if narrow is not None and narrow.dtype is dtype:
                return narrow
            out = self._cast_float(a, dtype, convert)
            if source.bits < dtype.bits:
                self._narrow[out.name] = a
            return out
        if source.is_float:
            return self._float_to_int(a, dtype)
        if dtype.is_float:
            if dtype.bits == 16:  # through float32: one rounding for 8 and 16 bits, two for wider integers
                wide = dt.f32 if source.bits <= 16 else dt.f64
                return self.cast(self.cast(a, wide), dtype)
            return convert("arith.sitofp" if source.kind == "i" else "arith.uitofp")
        if source.bits == dtype.bits:
            return Val(a.name, dtype, a.lanes)
        if source.bits > dtype.bits:
            narrow = self.narrow(a)
            return narrow if narrow is not None and narrow.dtype is dtype else convert("arith.trunci")
        out = convert("arith.extsi" if source.kind == "i" else "arith.extui")
        if source.kind == dtype.kind:
            self._narrow[out.name] = a
        return out

    def narrow(self, v: Val) -> Val | None:
        """The value of a narrower type of the same kind that ``v`` was extended from; None if there is none."""
        return self._narrow.get(v.name)

    def _cast_float(self, a: Val, dtype: DType, convert) -> Val:
        if a.dtype.bits == dtype.bits:  # f16 <-> bf16
            return self.cast(self.cast(a, dt.f32), dtype)
        if self.target == "cpu" and a.dtype is dt.bf16:  # library calls without AVX512-BF16
            return self.cast(self._bf16_to_f32(a), dtype)
        if self.target == "gpu" and a.dtype is dt.bf16 and a.lanes % 2 == 0:
            return self.cast(self._pairs_to_f32(a), dtype)
        if self.target == "cpu" and dtype is dt.bf16:
            return self._f32_to_bf16(self._round_to_odd(a) if a.dtype is dt.f64 else a)
        if a.dtype is dt.f64 and dtype.bits == 16:
            return self.cast(self._round_to_odd(a), dtype)
        return convert("arith.extf" if dtype.bits > a.dtype.bits else "arith.truncf")

    def _bf16_to_f32(self, a: Val) -> Val:
        wide = self.cast(self.bitcast(a, dt.u16), dt.u32)
        return self.bitcast(self.shl(wide, 16), dt.f32)

    def _pairs_to_f32(self, a: Val) -> Val:
        """One operation per element: the upper element of a word is masked in place instead of shifted down and up."""
        halves = [half for w in self.words(a) for half in (self.shl(w, 16), self.and_(w, 0xFFFF0000))]
        return self.bitcast(self.from_lanes(halves), dt.f32)

    def _f32_to_bf16(self, a: Val) -> Val:
        bits = self.bitcast(a, dt.u32)
        odd = self.and_(self.shr(bits, 16), 1)
        rounded = self.shr(self.add(bits, self.add(odd, 0x7FFF)), 16)
        quiet = self.or_(self.shr(bits, 16), 0x40)
        bits = self.select(self.isnan(a), quiet, rounded)
        return self.bitcast(self.cast(bits, dt.u16), dt.bf16)

    def _round_to_odd(self, a: Val) -> Val:
        """float64 to float32 rounded to odd, so that further rounding to a 16-bit float is correct (no double
        rounding)."""
        near = self.op(f"arith.truncf {a} : {a.type} to {Val('', dt.f32, a.lanes).type}", dt.f32, a.lanes)
        back = self.cast(near, dt.f64)
        bits = self.bitcast(near, dt.u32)
        even = self.cmp("eq", self.and_(bits, 1), 0)
        inexact = self.cmp("ne", back, a)  # NaN compares unequal and stays NaN below: it is excluded by `ordered`
        too_small = self.cmp("lt", self.abs(back), self.abs(a))
        step = self.select(too_small, self.add(bits, 1), self.sub(bits, 1))
        finite = self.cmp("lt", self.abs(a), math.inf)
        fix = self.and_(self.and_(even, inexact), finite)
        return self.bitcast(self.select(fix, step, bits), dt.f32)

    def whole(self, a: Val) -> Val:
        """A float, known to be in the range of i32, as an i32."""
        to = Val("", dt.i32, a.lanes)
        return self.op(f"arith.fptosi {a} : {a.type} to {to.type}", dt.i32, a.lanes)

    def _float_to_int(self, a: Val, dtype: DType) -> Val:
        # fptosi of a value out of range is poison: it becomes the least number of the type that x86 converts in, which
        # is that of 32 bits for signed integers of as many and fewer; 0 as an unsigned integer above 2^64.
        if a.dtype.bits == 16:
            a = self.cast(a, dt.f32)
        signed = dtype.kind == "i" and dtype.bits <= 32
        wide = dt.i32 if signed or (dtype.bits < 32 and a.dtype is not dt.f64) else dt.i64
        low = float(-(2 ** (wide.bits - 1)))
        inside = self.and_(self.cmp("ge", a, low), self.cmp("lt", a, -low))
        safe = self.select(inside, a, 0.0)
        to = Val("", wide, a.lanes)
        value = self.op(f"arith.fptosi {safe} : {safe.type} to {to.type}", wide, a.lanes)
        if dtype is dt.u64:  # 2^63 and above
            shifted = self.select(
                self.and_(self.cmp("ge", a, -low), self.cmp("lt", a, -2 * low)), self.sub(a, -low), 0.0
            )
            high = self.op(f"arith.fptosi {shifted} : {shifted.type} to {to.type}", wide, a.lanes)
            high = self.select(self.cmp("ge", a, -2 * low), 0, self.xor(high, -(2**63)))
            value = self.select(self.cmp("ge", a, -low), high, value)
            inside = self.cmp("ge", a, low)
        value = self.select(inside, value, -(2 ** (wide.bits - 1)))
        return self.cast(value, dtype)
