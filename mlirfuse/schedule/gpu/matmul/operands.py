"""The matrices of a product in memory, as TMA copies them."""

from __future__ import annotations

from typing import NamedTuple

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size
from mlirfuse.schedule.gpu.matmul.params import ROW

UNIT = 16  # bytes that addresses and strides of a matrix are multiples of, where TMA copies it
TYPES = {dt.bf16: "bf16", dt.f16: "f16", dt.f32: "tf32"}  # of operands, and what the instruction multiplies
FLOAT8 = {"e4m3fn": "e4m3", "e5m2": "e5m2"}  # likewise, by the format of an operand's bytes
COPIED = (dt.bf16, dt.f16, dt.f32)  # element types of matrices besides the operands that TMA copies


class Matrix(NamedTuple):
    """A matrix in memory: ``value``, its extents, and its strides in elements. One stride is 1."""

    value: Value
    extents: tuple[Size, Size]
    strides: tuple[Size, Size]

    @property
    def contiguous(self) -> int:
        """The dimension along which elements are adjacent."""
        return 1 if self.strides[1] == 1 else 0

    @property
    def pitch(self) -> Size:
        """The elements from one contiguous line to the next."""
        return self.strides[1 - self.contiguous]

    @property
    def columns(self) -> int:
        """Elements of a row in shared memory."""
        return ROW // self.value.dtype.bytes


class Operands(NamedTuple):
    """The matrices of a product: ``a`` of [m, k], ``b`` of [n, k], None where TMA cannot copy one; ``added``: the other
    inputs of [m, n] that TMA can copy; ``stored``: the outputs that it can write; ``direct``: the other outputs."""

    a: Matrix | None
    b: Matrix | None
    added: tuple[Matrix, ...]
    stored: tuple[Matrix, ...]
    direct: tuple[Value, ...]


def operands(analysis: Analysis) -> Operands:
    """The matrices of the segment's product."""
    assert analysis.product is not None
    a, b = analysis.product.operands
    axes = analysis.axes
    rows, columns = axes.dims(analysis.product.result)
    stored: list[Matrix] = []
    direct: list[Value] = []
    for value in analysis.outputs:
        matrix = _tile_of(analysis, value, rows, columns) if value not in analysis.results else None
        direct += [value] if matrix is None else []
        stored += [matrix] if matrix is not None else []
    first = _matrix(analysis, _base(analysis, a), *axes.dims(a))
    second = _matrix(analysis, _base(analysis, b), *reversed(axes.dims(b)))
    read = {v for op in analysis.ops if op is not analysis.product for v in op.operands}
    added = [_tile_of(analysis, v, rows, columns) for v in dict.fromkeys(analysis.inputs) if v in read]
    return Operands(first, second, tuple(filter(None, added)), tuple(stored), tuple(direct))


def _tile_of(analysis: Analysis, value: Value, rows: list[Axis], columns: list[Axis]) -> Matrix | None:
    """``value`` as a matrix of the result's extents of which TMA copies tiles; None if it is none."""
    matrix = _matrix(analysis, value, rows, columns)
    return matrix if matrix is not None and matrix.strides[1] == 1 and value.dtype in COPIED else None


def multiplied(product: Op) -> tuple[str, str]:
    """The types of the operands as the instruction names them."""
    if product.name == "float8_dot":
        first, second = product.attrs["formats"]
        return FLOAT8[first], FLOAT8[second]
    kind = TYPES[product.operands[0].dtype]
    return kind, kind


def adds(analysis: Analysis) -> bool:
    """Whether threads add what a stage gives to the sums: the tensor cores have fewer bits for those of float8."""
    product = analysis.product
    return product is not None and product.name == "float8_dot" and not product.attrs["fast_sums"]


def extents(analysis: Analysis) -> tuple[Size, Size, Size]:
    """M, N and K of the product."""
    assert analysis.product is not None
    a, b = analysis.product.operands
    return a.shape[0], b.shape[1], a.shape[1]


def _base(analysis: Analysis, value: Value) -> Value | None:
    """The input that ``value`` is a view of; None if there is none."""
    inside = set(analysis.ops)
    while value.op in inside:
        assert value.op is not None
        if value.op.row.view != "all":
            return None
        value = value.op.operands[0]
    return value if value in analysis.inputs else None


def _matrix(analysis: Analysis, value: Value | None, rows: list[Axis], columns: list[Axis]) -> Matrix | None:
    """``value`` as a matrix with these axes as its rows and columns; None if it is none in memory."""
    if value is None or set(analysis.axes.flat(value)) != {*rows, *columns}:
        return None
    strides = [_stride(analysis, value, axes) for axes in (rows, columns)]
    if None in strides or 1 not in strides:
        return None
    return Matrix(value, (size_of(rows), sz.product(a.size for a in columns)), tuple(strides))  # type: ignore[arg-type]


def _stride(analysis: Analysis, value: Value, axes: list[Axis]) -> Size | None:
    """The stride along all of ``axes`` as one dimension; None if they are not one in memory."""
    strides = [analysis.axis_stride(value, axis) for axis in axes]
    for outer, inner, axis in zip(strides, strides[1:], axes[1:]):
        if outer != sz.mul(inner, axis.size):
            return None
    return strides[-1] if strides else None
