"""nvFuser's element types and type promotion: torch's, with float16 and bfloat16 computed (and returned) in float32.

Operands fall into three categories: tensors with dimensions, 0-d tensors, scalars. A higher category decides, unless a
lower one has a higher kind (bool < integer < float < complex).
"""

from __future__ import annotations

import enum

from mlirfuse.core.errors import MlirfuseError, UnsupportedError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType


class DataType(enum.Enum):
    """nvFuser's names of element types. ``Null`` stands for "not given"."""

    Double = "double"
    Float = "float"
    Half = "__half"
    Int = "int64_t"
    Int32 = "int"
    UInt64 = "uint64_t"
    Index = "nvfuser_index_t"
    Bool = "bool"
    BFloat16 = "__bfloat"
    Float8_e4m3fn = "__e4m3"
    Float8_e5m2 = "__e5m2"
    Float8_e8m0fnu = "__e8m0"
    Float4_e2m1fn = "__e2m1"
    Float4_e2m1fn_x2 = "__e2m1x2"
    ComplexFloat = "std::complex<float>"
    ComplexDouble = "std::complex<double>"
    Null = "null_type"

    def __str__(self) -> str:
        return f"DataType.{self.name}"

    __repr__ = __str__


_TO_DTYPE = {
    DataType.Double: dt.f64,
    DataType.Float: dt.f32,
    DataType.Half: dt.f16,
    DataType.BFloat16: dt.bf16,
    DataType.Int: dt.i64,
    DataType.Int32: dt.i32,
    DataType.UInt64: dt.u64,
    DataType.Index: dt.i64,
    DataType.Bool: dt.bool_,
    DataType.ComplexFloat: dt.c64,
    DataType.ComplexDouble: dt.c128,
}
_NARROW = {DataType.Float8_e4m3fn: "f8e4m3fn", DataType.Float8_e5m2: "f8e5m2", DataType.Float8_e8m0fnu: "f8e8m0fnu"}
_FROM_DTYPE = {t: name for name, t in _TO_DTYPE.items() if name is not DataType.Index}


def to_dtype(data_type: DataType) -> DType:
    """The element type behind nvFuser's name. Raises UnsupportedError for one that mlirfuse lacks."""
    if not isinstance(data_type, DataType):
        raise TypeError(f"{data_type!r} is not a DataType: use one of {', '.join(t.name for t in _TO_DTYPE)}")
    found = _TO_DTYPE.get(data_type) or dt.BY_NAME.get(_NARROW.get(data_type, ""))
    if found is None:
        raise UnsupportedError(
            f"{data_type} is not supported; the supported ones are {', '.join(t.name for t in _TO_DTYPE)}"
        )
    return found


def from_dtype(dtype: DType) -> DataType:
    """nvFuser's name of an element type."""
    found = _FROM_DTYPE.get(dtype)
    if found is None:
        for data_type, name in _NARROW.items():
            if name == dtype.name:
                return data_type
        raise UnsupportedError(f"element type {dtype} has no nvFuser DataType; cast the array to one that has one")
    return found


class PromotionError(MlirfuseError, TypeError, RuntimeError):
    """An op does not support its operands' dtypes."""


_RANK = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


def promote_types(a: DType, b: DType) -> DType:
    """The smallest dtype that both convert to, as ``torch.promote_types``."""
    if a is b:
        return a
    if "n" in (a.kind, b.kind):
        raise PromotionError(
            f"{from_name(a)} and {from_name(b)} have no common type: cast float8 before computing with it"
        )
    high, low = (a, b) if _RANK[a.kind] >= _RANK[b.kind] else (b, a)
    if high.kind == "c":
        return dt.c128 if dt.c128 in (a, b) or dt.f64 in (a, b) else dt.c64
    if _RANK[high.kind] > _RANK[low.kind]:
        return high
    if high.kind == "f":
        if high.bits == low.bits:  # float16 and bfloat16
            return dt.f32
        return max(high, low, key=lambda t: t.bits)
    if high.kind == low.kind:
        return max(high, low, key=lambda t: t.bits)
    unsigned, signed = (high, low) if high.kind == "u" else (low, high)
    if unsigned.bits < signed.bits:
        return signed
    if unsigned.bits < 64:
        return dt.BY_NAME[f"i{unsigned.bits * 2}"]
    raise PromotionError(f"{from_name(a)} and {from_name(b)} have no common type: cast one of them")


def from_name(dtype: DType) -> str:
    try:
        return str(from_dtype(dtype))
    except UnsupportedError:
        return str(dtype)


def _skip(a: DType | None, b: DType | None) -> DType | None:
    return b if a is None else a if b is None else promote_types(a, b)


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.kind == "c":
        return higher
    if higher.kind == "f":
        return promote_types(higher, dt.c64) if lower.kind == "c" else higher
    if higher.kind == "b" or lower.kind in "fc":
        return promote_types(higher, lower)
    return higher


def common_dtype(operands, *, integers_to_float=False, halves_to_float=True, full_precision=False) -> DType:
    """The type in which an op computes. ``operands`` are pairs of dtype and category: "tensor", "0-d" or "scalar".

    ``integers_to_float``: as for sin. ``halves_to_float``: nvFuser's rule for all ops but where. ``full_precision``:
    only float and double are accepted, as by nextafter.
    """
    dtypes = {dtype for dtype, _ in operands}
    if len(dtypes) == 1:
        (common,) = dtypes
    else:
        parts: dict[str, DType | None] = {"tensor": None, "0-d": None, "scalar": None}
        for dtype, category in operands:
            if category == "scalar" and dtype.kind == "f" and dtype.bits == 16:
                dtype = dt.f32
            parts[category] = _skip(parts[category], dtype)
        common = _combine(parts["tensor"], _combine(parts["0-d"], parts["scalar"]))
    if integers_to_float and common.kind in "iub":
        common = dt.f32
    if halves_to_float and common.kind == "f" and common.bits == 16:
        common = dt.f32
    if full_precision and common not in (dt.f32, dt.f64):
        raise PromotionError(f"Promoted type must be single or double precision float but found {from_name(common)}")
    return common


def reduction_dtype(dtype: DType, given: DataType) -> DType:
    """The dtype of a sum or product and its result: as given; else Int for integers and bools."""
    if given is not DataType.Null:
        return to_dtype(given)
    return dt.i64 if dtype.kind in "ib" else dtype
