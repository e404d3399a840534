"""Indices along axes, and index arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mlirfuse.analysis.axes import Axis
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.emitter import Emitter, Val


@dataclass(frozen=True, slots=True)
class Index:
    """An index along an axis: lane k is ``base + k * step``, or lane k of ``vector`` if that is set.

    ``divisor``: a power of two that divides ``base - rest``; 0: the number of lanes, as for schedulers' indices.
    ``span``: the range ``span[0] … span[1]-1`` of all lanes whose values are used; None: unknown. ``outside``: the
    lanes that may be outside of the tensor: what they read is not used, and may be any of its elements."""

    base: Val | int
    step: Size = 0
    lanes: int = 1
    vector: Val | None = None
    divisor: int = field(default=0, compare=False)
    rest: int = field(default=0, compare=False)
    span: tuple[Size, Size] | None = field(default=None, compare=False)
    outside: frozenset[int] = field(default=frozenset(), compare=False)


ZERO = Index(0)
Env = dict[Axis, Index]
_MOST = 64  # the largest tracked power of two


class Indices:
    """Arithmetic on indices of type ``index``, i32 or i64. ``size`` returns a size as a Val of that type; ``inverse``
    the multiplicative inverse of a size, for cheaper division. ``known_multiples``: sizes known to be multiples of
    ``multiple_of``, a power of two."""

    def __init__(self, e: Emitter, index: dt.DType, size: Callable[[Size], Val], inverse: Callable[[Size], Val] | None,
                 known_multiples: frozenset[Size], multiple_of: int):  # fmt: skip
        self.e, self.index_type, self.known_multiples, self.multiple_of = e, index, known_multiples, multiple_of
        self._size_of, self._inverse = size, inverse

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
        base: Val | int
        if isinstance(i.base, int) and isinstance(j.base, int):
            base = i.base + j.base
        elif i.base == 0 and isinstance(i.base, int):
            base = j.base
        elif j.base == 0 and isinstance(j.base, int):
            base = i.base
        else:
            base = self.e.add(self.scalar(i.base), self.scalar(j.base))
        (one, rest), (other, more) = self.modulo(i), self.modulo(j)
        divisor = min(one, other)
        return Index(
            base,
            i.step + j.step,
            max(i.lanes, j.lanes),
            divisor=divisor,
            rest=(rest + more) % divisor,
            outside=i.outside | j.outside,
        )

    def moved(self, i: Index, by: Size) -> Index:
        """``i + by``, with the span of ``i`` shifted."""
        span = (i.span[0] + by, i.span[1] + by) if i.span else None
        return replace(self.add(i, self._constant_index(by)), span=span) if by != 0 else i

    def lies_in(self, i: Index, low: Size, high: Size) -> bool | None:
        """Whether all used lanes of ``i`` are in ``low … high-1``; False if none is, None if unknown."""
        if i.span is None:
            return None
        first, end = i.span
        if sz.at_least(first, low) and sz.at_least(high, end):
            return True
        return False if sz.at_least(low, end) or sz.at_least(first, high) else None

    def _constant_index(self, size: Size) -> Index:
        return Index(size if isinstance(size, int) else self.size(size), divisor=self.power_in(size))

    def scale(self, i: Index, by: Size) -> Index:
        if by == 1 or i == ZERO:
            return i
        if by == 0:
            return ZERO
        if i.vector is not None:
            return self._of_val(self.e.mul(i.vector, self.size(by)))
        base: Val | int
        if i.base == 0 and isinstance(i.base, int):
            base = 0
        elif isinstance(i.base, int) and isinstance(by, int):
            base = i.base * by
        else:
            base = self.e.mul(self.scalar(i.base), self.size(by))
        divisor, rest = self.modulo(i) if isinstance(by, int) else (self._divisor(i), 0)
        divisor = min(divisor * self.power_in(by), _MOST)
        rest = rest * by % divisor if rest else 0
        span = None
        if i.span and isinstance(by, int) and by > 0:
            span = sz.mul(i.span[0], by), sz.mul(i.span[1] - 1, by) + 1
        return Index(base, sz.mul(i.step, by), i.lanes, divisor=divisor, rest=rest, span=span, outside=i.outside)

    def divmod(self, i: Index, by: Size) -> tuple[Index, Index]:
        """Quotient and remainder of a non-negative index."""
        if i == ZERO:
            return ZERO, ZERO
        if i.step != 0 and i.step == 1 and self._is_multiple(by, i.lanes) and self._divisor(i) >= i.lanes:
            first, rest = self.divmod(Index(i.base), by)  # lanes do not cross a multiple of `by`
            return first, Index(rest.base, 1, i.lanes)
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
        """A quotient of indices in three instructions; a division takes twenty on a GPU."""
        assert self._inverse is not None
        e, inverse = self.e, self._inverse(by)
        factor, shift = e.cast(e.cast(inverse, dt.u32), dt.u64), e.shr(inverse, 32)
        return e.cast(e.shr(e.mul(e.cast(a, dt.u64), e.splat(factor, a.lanes)), e.splat(shift, a.lanes)), dt.u32)

    def _is_multiple(self, size: Size, lanes: int) -> bool:
        return self.power_in(size) >= lanes

    def power_in(self, size: Size) -> int:
        """A power of two that is known to divide a size."""
        if isinstance(size, int):
            return min(size & -size, _MOST) or _MOST
        known = self.known_multiples
        if not known or size in known:
            return self.multiple_of if known else 1
        powers = [(c & -c) * (self.multiple_of if known.intersection(by) else 1) for c, by in sz.monomials(size)]
        return min(_MOST, *powers)

    def modulo(self, i: Index) -> tuple[int, int]:
        """A power of two, and the base of an index modulo it."""
        return (_MOST, i.base % _MOST) if isinstance(i.base, int) else (i.divisor or i.lanes, i.rest)

    def _divisor(self, i: Index) -> int:
        """A power of two that is known to divide the base of an index."""
        divisor, rest = self.modulo(i)
        return rest & -rest or divisor

    def dim_index(self, dim, env: Env) -> Index:
        """The index along a dimension with these axes."""
        out = ZERO
        for axis in dim:
            out = self.add(self.scale(out, axis.size), env.get(axis, ZERO))
        return out

    def spread(self, dim, index: Index, env: Env) -> None:
        """Set the axes of a dimension in ``env`` from the index along it. Lanes that may be outside are clamped before
        they are divided."""
        if len(dim) > 1 and index.outside:
            last = self.size(sz.product(axis.size for axis in dim) - 1)
            index = self._of_val(self.e.max(self.e.min(self.materialize(index), last), 0))
        for axis in reversed(dim[1:]):
            index, env[axis] = self.divmod(index, axis.size)
        if dim:
            env[dim[0]] = index
