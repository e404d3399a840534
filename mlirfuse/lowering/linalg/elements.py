"""Elements at an index, computed in the body of a generic: the counterpart of a kernel's rules
(:mod:`mlirfuse.lowering.kernel`) for tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops as table
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering import math as m
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.elementwise import EMIT
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.linalg.writer import I64, Dim, Index, Tensor, Writer, kind_of

RENAMING = {"broadcast_in_dim", "permute", "squeeze", "expand_dims"}


class Elements(Writer):
    """Computes the element of any value of ``members`` at an index of the current body. ``on_device``: 0-d values are
    also computed in bodies instead of in the function, because a GPU's host reads no elements."""

    def __init__(self, members: list[Op], symbol: Callable[[str], str], on_device: bool):
        super().__init__(symbol, on_device)
        self.on_device = on_device
        self.tensors: dict[Value, Tensor] = {}
        self.scalars: dict[Value, Val] = {}
        self.stored = _stored(members)

    @abstractmethod
    def tensor(self, value: Value) -> Tensor:
        """``value`` as a tensor, created now if it does not exist."""

    @abstractmethod
    def in_body(self, value: Value) -> bool:
        """Whether ``value`` is computed in the body of its user, or in its own generic."""

    def value(self, value: Value, index: tuple[Index, ...]) -> Val:
        """The element of ``value`` at ``index``, in its compute type."""
        if value.rank == 0 and not self.on_device:
            return self.scalar(value)
        memo = self.body.memo if self.body is not None else {}
        key = value, index
        if key not in memo:
            memo[key] = self._value(value, index)
        return memo[key]

    def scalar(self, value: Value) -> Val:
        """A 0-d value, computed in the function."""
        found = self.scalars.get(value)
        if found is None:
            with self.outside():
                if value in self.tensors or not self.in_body(value):
                    found = self.read(self.tensor(value), (), value)
                else:
                    found = self.compute(value, ())
            self.scalars[value] = found
        return found

    def _value(self, value: Value, index) -> Val:
        if value in self.tensors or value in self.stored or not self.in_body(value):
            return self.read(self.tensor(value), index, value)
        return self.compute(value, index)

    def read(self, tensor: Tensor, index, value: Value) -> Val:
        e = self.e
        at = tuple(index[d] for d in tensor.dims)
        if self.body is not None and not any(isinstance(i, Val) for i in at):
            key = tensor, at
            if key not in self.body.operands:
                self.body.operands[key] = Val(e.fresh(), tensor.dtype)
            val = self.body.operands[key]
        else:
            indices = ", ".join(self._as_index(i) for i in at)
            val = e.op(f"tensor.extract {tensor.name}[{indices}] : {tensor.type}", tensor.dtype)
        return e.cast(val, value.dtype.compute)

    def _as_index(self, i: Index) -> str:
        if isinstance(i, int):
            return self.index(i)
        if isinstance(i, Dim):
            assert self.body is not None
            key = ("index", i)
            if key not in self.body.memo:
                self.body.memo[key] = Val(self.emit(f"linalg.index {i.number} : index"), I64)
            return self.body.memo[key].name
        return self.emit(f"arith.index_cast {i} : i64 to index")

    def i64(self, i: Index) -> Val:
        """An index as an i64."""
        if isinstance(i, Val):
            return i
        if isinstance(i, int):
            return self.e.const(i, I64)
        assert self.body is not None
        key = ("i64", i)
        if key not in self.body.memo:
            name = self._as_index(i)
            self.body.memo[key] = Val(self.emit(f"arith.index_cast {name} : index to i64"), I64)
        return self.body.memo[key]

    def linear(self, index, extents) -> Val:
        """The row-major linear index of ``index``."""
        out = self.e.const(0, I64)
        for k, (i, n) in enumerate(zip(index, extents)):
            out = self.e.add(self.e.mul(out, self.size(n)), self.i64(i)) if k else self.i64(i)
        return out

    def spread(self, extents, linear: Val, places, at: list[Index]) -> None:
        """Set ``at[place]`` for each of ``places`` from a row-major linear index."""
        e = self.e
        for k in range(len(places) - 1, -1, -1):
            if k == 0:
                at[places[0]] = linear
            elif extents[k] != 1:
                n = self.size(extents[k])
                quotient = e.div(linear, n)
                at[places[k]] = e.sub(linear, e.mul(quotient, n))
                linear = quotient

    def compute(self, value: Value, index) -> Val:
        op = value.op
        if value.dtype.kind == "c":
            raise UnsupportedError(f"{op.name} of complex values has no linalg form", op.loc)
        rule = getattr(self, f"_at_{op.name}", None)
        if rule is not None:
            return rule(op, index)
        if kind_of(op) == "reduce":  # over extents of 1 only
            return self._reduce_of_one(op, index)
        if kind_of(op) == "scan":  # along an extent of 1
            return self.element_at(op.operands[-1], index)
        return EMIT[op.name](self.e, *(self.element_at(v, index) for v in op.operands))

    def element_at(self, value: Value, index) -> Val:
        """The element of a broadcast operand, at an index of the result."""
        return self.value(value, tuple(0 if n == 1 else i for n, i in zip(value.shape, index)))

    def _reduce_of_one(self, op: Op, index) -> Val:
        source = op.operands[0]
        axes = table.axes_of(op.attrs, source.rank)
        rest = iter(index)
        at = tuple(
            (next(rest) if op.attrs.get("keepdims") else 0) if d in axes else next(rest) for d in range(source.rank)
        )
        at = tuple(0 if n == 1 else i for n, i in zip(source.shape, at))
        new = red.element(self.e, op, self.value(source, at), self.e.const(0, I64))
        return red.result(self.e, op, red.combine(self.e, op, red.identity(self.e, op, 1), new))

    def _at_nextafter(self, op: Op, index) -> Val:
        vals = [self.value(v, tuple(0 if n == 1 else i for n, i in zip(v.shape, index))) for v in op.operands]
        return m.nextafter_of(self.e, *self.e._pair(*vals), op.result.dtype)

    def _at_cast(self, op: Op, index) -> Val:
        val, to = self.value(op.operands[0], index), op.attrs["to"]
        return self.e.cast(self.e.cast(val, to), to.compute)

    def _at_constant(self, op: Op, index) -> Val:
        return self.e.const(op.attrs["value"], op.attrs["dtype"].compute)

    def _at_size(self, op: Op, index) -> Val:
        return self.size(op.attrs["value"])

    def _at_extent(self, op: Op, index) -> Val:
        return self.size(op.operands[0].shape[op.attrs["axis"]])

    def _at_dtype_of(self, op: Op, index) -> Val:
        return self.e.const(dt.ALL.index(op.operands[0].dtype), I64)

    def _at_full(self, op: Op, index) -> Val:
        return self.value(op.operands[0], ())

    def _at_iota(self, op: Op, index) -> Val:
        dtype = op.attrs["dtype"]
        return self.e.cast(self.e.cast(self.i64(index[op.attrs["axis"]]), dtype), dtype.compute)

    def _at_broadcast_in_dim(self, op: Op, index) -> Val:
        source = op.operands[0]
        return self.value(source, tuple(0 if n == 1 else index[d] for d, n in zip(op.attrs["dims"], source.shape)))

    def _at_permute(self, op: Op, index) -> Val:
        at = [0] * len(index)
        for k, d in enumerate(op.attrs["dims"]):
            at[d] = index[k]
        return self.value(op.operands[0], tuple(at))

    def _at_squeeze(self, op: Op, index) -> Val:
        rest = iter(index)
        return self.value(
            op.operands[0], tuple(0 if d in op.attrs["axes"] else next(rest) for d in range(op.operands[0].rank))
        )

    def _at_expand_dims(self, op: Op, index) -> Val:
        return self.value(op.operands[0], tuple(i for d, i in enumerate(index) if d not in op.attrs["axes"]))

    def _at_reshape(self, op: Op, index) -> Val:
        places = renaming_reshape(op.operands[0].shape, op.result.shape)
        assert places is not None  # other reshapes are separate tensors
        return self.value(op.operands[0], tuple(0 if p is None else index[p] for p in places))

    def _at_slice(self, op: Op, index) -> Val:
        at = []
        for i, start, step in zip(index, op.attrs["start"], op.attrs["step"]):
            scaled = self.e.mul(self.i64(i), step) if i != 0 else self.e.const(0, I64)
            at.append(self.e.add(scaled, self.size(start)))
        return self.value(op.operands[0], tuple(at))

    def _at_roll(self, op: Op, index) -> Val:
        e, axis, source = self.e, op.attrs["axis"], op.operands[0]
        at = list(index)
        if source.shape[axis] != 1:
            back = e.sub(self.i64(index[axis]), self.size(op.attrs["shift"]))
            at[axis] = e.select(e.cmp("lt", back, 0), e.add(back, self.size(source.shape[axis])), back)
        return self.value(source, tuple(at))

    def _at_pad(self, op: Op, index) -> Val:
        e, source = self.e, op.operands[0]
        fill, inside, at = self.value(op.operands[1], ()), None, []
        if any(n == 0 for n in source.shape):
            return fill
        for i, low, high, n in zip(index, op.attrs["low"], op.attrs["high"], source.shape):
            if low == 0 and high == 0:
                at.append(i)
                continue
            place, last = e.sub(self.i64(i), self.size(low)), self.size(n - 1)
            here = e.and_(e.cmp("ge", place, 0), e.cmp("le", place, last))
            inside = here if inside is None else e.and_(inside, here)
            at.append(e.max(e.min(place, last), 0))
        val = self.value(source, tuple(at))
        return val if inside is None else e.select(inside, val, fill)

    def _clamped(self, val: Val, extent: Size, wraps: bool = True) -> Val:
        """An index from an array, clamped to the extent; negative ones count from the end if it ``wraps``."""
        e = self.e
        i, n = e.cast(val, I64), self.size(extent)
        if wraps:
            i = e.select(e.cmp("lt", i, 0), e.add(i, n), i)
        return e.max(e.min(i, e.sub(n, 1)), 0)

    def _at_position(self, op: Op, index) -> Val:
        """An index without a bounds check, since these kernels cannot report."""
        (operand,) = op.operands
        clamped = self._clamped(self.value(operand, index), op.attrs["extent"], op.attrs["wraps"])
        return self.e.cast(clamped, op.result.dtype)

    def _at_take(self, op: Op, index) -> Val:
        source, indices = op.operands
        axis = op.attrs["axis"]
        at = tuple(0 if n == 1 else i for n, i in zip(indices.shape, index[axis : axis + indices.rank]))
        clamped = self._clamped(self.value(indices, at), source.shape[axis])
        return self.value(source, (*index[:axis], clamped, *index[axis + indices.rank :]))

    def _at_take_along_axis(self, op: Op, index) -> Val:
        source, indices = op.operands
        axis = op.attrs["axis"]
        clamped = self._clamped(
            self.value(indices, tuple(0 if n == 1 else i for n, i in zip(indices.shape, index))), source.shape[axis]
        )
        return self.value(
            source, tuple(clamped if d == axis else 0 if source.shape[d] == 1 else i for d, i in enumerate(index))
        )

    def _random_words(self, op: Op, index, count: int) -> list[Val]:
        """``count`` random u32 for an element: see :func:`mlirfuse.ir.ops.random.random_words`."""
        e = self.e
        seed, offset = (e.cast(self.value(v, ()), dt.u64) for v in op.operands)
        position = e.cast(self.linear(index, op.result.shape), dt.u64)
        return m.words_at(e, position, seed, offset, count)

    def _at_uniform(self, op: Op, index) -> Val:
        dtype = op.attrs["dtype"]
        return m.uniform_of_words(self.e, self._random_words(op, index, 2 if dtype is dt.f64 else 1), dtype)

    def _at_normal(self, op: Op, index) -> Val:
        dtype = op.attrs["dtype"]
        return m.normal_of_words(self.e, self._random_words(op, index, 4 if dtype is dt.f64 else 2), dtype)


def renaming_reshape(old, new) -> tuple[int | None, ...] | None:
    """For each old dimension the corresponding new one (None for an extent of 1), if a reshape only adds or drops
    extents of 1; else None."""
    before = [n for n in old if n != 1]
    after = [(k, n) for k, n in enumerate(new) if n != 1]
    if before != [n for _, n in after]:
        return None
    places = iter(k for k, _ in after)
    return tuple(None if n == 1 else next(places) for n in old)


def _stored(members: list[Op]) -> set[Value]:
    """Elementwise values that are computed once and stored: those with several users, and those that are broadcast."""
    users: dict[Value, list[Op]] = {}
    for op in members:
        for value in dict.fromkeys(op.operands):
            users.setdefault(value, []).append(op)
    free: set[Value] = set()
    out: set[Value] = set()
    for op in members:
        row = table.TABLE.get(op.name)
        if row is None:
            continue
        if (
            row.kind == "create"
            or op.name in RENAMING
            or (op.name == "reshape" and all(v in free for v in op.operands))
        ):
            if all(v in free for v in op.operands):
                free.update(op.results)
            continue
        if row.kind == "elementwise" and all(v in free for v in op.operands):
            free.update(op.results)
            continue
        if row.kind not in ("elementwise", "random", "index"):
            continue
        value = op.result
        if value.rank and (
            len(users.get(value, ())) > 1 or any(_repeats(value, user) for user in users.get(value, ()))
        ):
            out.add(value)
    return out


def _repeats(value: Value, user: Op) -> bool:
    if user.name == "broadcast_in_dim":
        return True
    return kind_of(user) == "elementwise" and user.result.shape != value.shape
