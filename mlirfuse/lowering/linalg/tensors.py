"""Decides which values of a segment are tensors, and lowers shape ops to ``tensor`` ops."""

from __future__ import annotations

from collections.abc import Callable

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.linalg.elements import RENAMING, renaming_reshape
from mlirfuse.lowering.linalg.generics import Generics
from mlirfuse.lowering.linalg.writer import Tensor, kind_of, type_of

IN_BODIES = RENAMING | {
    "full", "iota", "constant", "size", "extent", "dtype_of", "take", "take_along_axis", "roll", "uniform", "normal",
}  # fmt: skip


class Function(Generics):
    """Writes the body of one ``func.func`` that computes ``members``. ``symbol`` returns the ``index`` value of a size
    symbol."""

    def __init__(self, members: list[Op], symbol: Callable[[str], str], on_device: bool):
        super().__init__(members, symbol, on_device)
        self.inside = set(members)

    def tensor(self, value: Value) -> Tensor:
        """``value`` as a tensor, created now if it does not exist."""
        found = self.tensors.get(value)
        if found is None:
            with self.outside():
                found = self.tensors[value] = self._make(value)
        return found

    def _make(self, value: Value) -> Tensor:
        op = value.op
        if self.in_body(value):
            return self.generic(value, value.dtype.compute)
        if kind_of(op) == "reduce":
            return self._reduction(op)
        if kind_of(op) == "scan":
            return self._scan(op)
        if kind_of(op) in ("accumulate", "product"):
            raise UnsupportedError(f"{op.name} has no linalg form", op.loc)
        if op.name == "slice":
            return self._slice(self.full(op.operands[0]), op.attrs["start"], value.shape, op.attrs["step"])
        if op.name == "split":
            return self._split(op, value)
        return {
            "partial_sum": self._partial_sum,
            "reshape": self._reshape,
            "concatenate": self._concatenate,
            "pad": self._pad,
        }[op.name](op)

    def full(self, value: Value, dtype: DType | None = None) -> Tensor:
        """``value`` as a tensor with all of its dimensions, of ``dtype`` if that is given."""
        if dtype is not None and (value.rank or self.on_device) and value not in self.tensors and self.in_body(value):
            return self.generic(value, dtype)
        if value.rank == 0 and value not in self.tensors and self.in_body(value) and not self.on_device:
            scalar = self.scalar(value)
            with self.outside():
                scalar = self.e.cast(scalar, dtype or value.dtype.compute)
                created = self.emit(f"tensor.from_elements {scalar} : {type_of((), scalar.dtype)}")
            return Tensor(created, scalar.dtype, (), ())
        tensor = self.tensor(value)
        if dtype is not None and tensor.dtype is not dtype:
            return self.generic(value, dtype)
        if len(tensor.dims) < value.rank:
            groups, at = [], 0
            for number, dim in enumerate(tensor.dims):
                last = value.rank if number == len(tensor.dims) - 1 else dim + 1
                groups.append(list(range(at, last)))
                at = last
            tensor = self._expand(tensor, groups, value.shape)
        return tensor

    def _expand(self, tensor: Tensor, groups, shape) -> Tensor:
        sizes = self.serialized(shape)
        with self.outside():
            to = type_of(shape, tensor.dtype)
            created = self.emit(
                f"tensor.expand_shape {tensor.name} {groups} output_shape [{sizes}] : {tensor.type} into {to}"
            )
        return Tensor(created, tensor.dtype, tuple(shape), tuple(range(len(shape))))

    def in_body(self, value: Value) -> bool:
        """Whether ``value`` is computed in the body of its user, or in its own generic."""
        op = value.op
        if op is None or op not in self.inside:
            return False
        if op.name in IN_BODIES or kind_of(op) == "elementwise":
            return True
        if kind_of(op) == "reduce":
            return not _reduces(op)
        if kind_of(op) == "scan":
            return value.shape[op.attrs["axis"]] == 1
        if op.name == "slice":
            return any(step < 0 for step in op.attrs["step"]) or not value.rank
        if op.name == "pad":
            return self.on_device or not _only_adds(op)
        return op.name == "reshape" and renaming_reshape(op.operands[0].shape, value.shape) is not None

    def _slice(self, source: Tensor, start, shape, step) -> Tensor:
        lists = [f"[{self.serialized(sizes)}]" for sizes in (start, shape, step)]
        created = self.emit(
            f"tensor.extract_slice {source.name}{''.join(lists)} : {source.type} to {type_of(shape, source.dtype)}"
        )
        return Tensor(created, source.dtype, tuple(shape), tuple(range(len(shape))))

    def _split(self, op: Op, value: Value) -> Tensor:
        axis, rank = op.attrs["axis"], value.rank
        start: list[Size] = [0] * rank
        for result, size in zip(op.results, op.attrs["sizes"]):
            if result is value:
                break
            start[axis] = start[axis] + size
        return self._slice(self.full(op.operands[0]), start, value.shape, (1,) * rank)

    def _concatenate(self, op: Op) -> Tensor:
        value, axis = op.result, op.attrs["axis"]
        sources = [self.full(v) for v in op.operands]
        dtype = sources[0].dtype
        if any(s.dtype is not dtype for s in sources):
            dtype = value.dtype.compute
            sources = [self.full(v, dtype) for v in op.operands]
        created = self.empty(value.shape, dtype)
        offsets: list[Size] = [0] * value.rank
        for source in sources:
            place = (
                f"[{self.serialized(offsets)}] [{self.serialized(source.shape)}] [{', '.join('1' for _ in offsets)}]"
            )
            to = type_of(value.shape, dtype)
            created = self.emit(f"tensor.insert_slice {source.name} into {created}{place} : {source.type} into {to}")
            offsets[axis] = offsets[axis] + source.shape[axis]
        return Tensor(created, dtype, value.shape, tuple(range(value.rank)))

    def _pad(self, op: Op) -> Tensor:
        value = op.result
        source, fill = self.full(op.operands[0]), self.scalar(op.operands[1])
        with self.outside():
            fill = self.e.cast(fill, source.dtype)
        low, high = (", ".join(map(str, op.attrs[key])) for key in ("low", "high"))
        names = ", ".join(f"{self.e.fresh()}: index" for _ in value.shape)
        created = self.e.fresh()
        self.e.line(f"{created} = tensor.pad {source.name} low[{low}] high[{high}] {{")
        self.e.line(f"^bb0({names}):")
        self.e.line(f"  tensor.yield {fill} : {fill.type}")
        self.e.line(f"}} : {source.type} to {type_of(value.shape, source.dtype)}")
        return Tensor(created, source.dtype, value.shape, tuple(range(value.rank)))

    def _reshape(self, op: Op) -> Tensor:
        """Collapse runs of dimensions with equal numbers of elements, and expand them again."""
        source, shape = self.full(op.operands[0]), op.result.shape
        runs = _runs(source.shape, shape)
        given = source.type
        if len(runs) < len(source.shape):
            extents = [[source.shape[d] for d in old] for old, _ in runs]
            collapsed = [sz.product(run) if all(isinstance(n, int) for n in run) else "?" for run in extents]
            given = type_of(collapsed, source.dtype)
            name = self.emit(
                f"tensor.collapse_shape {source.name} {[old for old, _ in runs]} : {source.type} into {given}"
            )
            source = Tensor(name, source.dtype, tuple(map(sz.product, extents)), tuple(range(len(runs))))
        source = self._cast_type(source, given, [sz.product(shape[d] for d in new) for _, new in runs])
        return self._expand(source, [new for _, new in runs], shape) if len(runs) < len(shape) else source

    def _cast_type(self, tensor: Tensor, given: str, wanted) -> Tensor:
        """``tensor``, of type ``given``, cast to the ``wanted`` extents: one may be constant where the other is a
        symbol."""
        to = type_of(wanted, tensor.dtype)
        name = tensor.name if to == given else self.emit(f"tensor.cast {tensor.name} : {given} to {to}")
        return Tensor(name, tensor.dtype, tuple(wanted), tensor.dims)

    def result(self, value: Value) -> Tensor:
        """``value`` as the function returns it: with all dimensions, in its element type."""
        return self.full(value, value.dtype)


def _reduces(op: Op) -> bool:
    """Whether a reduction reduces extents other than 1."""
    source = op.operands[0]
    return any(source.shape[d] != 1 for d in table.axes_of(op.attrs, source.rank))


def _only_adds(op: Op) -> bool:
    """Whether a pad is known to have no negative padding."""
    return all(isinstance(n, int) and n >= 0 for key in ("low", "high") for n in op.attrs[key])


def _runs(old, new) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of old and new dimensions with equal numbers of elements; one run of all if sizes are
    unknown."""
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        a, b = old[i], new[j]
        left, right = [i], [j]
        i, j = i + 1, j + 1
        while a != b:
            grow_left = i < len(old) and (j >= len(new) or sz.quotient(b, a) is not None)
            if grow_left:
                a, left, i = sz.mul(a, old[i]), [*left, i], i + 1
            elif j < len(new):
                b, right, j = sz.mul(b, new[j]), [*right, j], j + 1
            else:
                return [(list(range(len(old))), list(range(len(new))))]
        runs.append((left, right))
    if not runs:
        return [(list(range(len(old))), list(range(len(new))))]
    for k in range(i, len(old)):  # extents of 1 at the end
        runs[-1][0].append(k)
    for k in range(j, len(new)):
        runs[-1][1].append(k)
    return runs
