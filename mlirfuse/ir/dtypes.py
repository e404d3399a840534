"""Element types: their names in NumPy and MLIR, sizes and classes. The only place that defines them."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True, eq=False)
class DType:
    """An element type; there is one object for each, compared by identity.

    ``kind`` is ``f`` (float), ``i`` (signed), ``u`` (unsigned), ``b`` (bool), ``c`` (complex) or ``n`` (float8, which
    is only copied and cast); ``bits`` its width in memory.
    """

    name: str
    kind: str
    bits: int
    numpy: np.dtype
    mlir: str  # at the fusion level, where integers carry their sign

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_inexact(self) -> bool:
        """A float or complex type, as NumPy calls them."""
        return self.kind in "fc"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def is_signed(self) -> bool:
        return self.kind in "if"

    @property
    def signless(self) -> str:
        """The MLIR type below the fusion level: signless integers, bools as i1."""
        return f"i{self.bits}" if self.is_integer else self.mlir

    @property
    def memory(self) -> str:
        """The MLIR type in memory: as :attr:`signless`, with bools as bytes."""
        return "i8" if self.kind == "b" else self.signless

    @property
    def compute(self) -> DType:
        """The type that arithmetic runs in: float32 for 16-bit floats."""
        return f32 if self.kind == "f" and self.bits == 16 else self

    @property
    def real(self) -> DType:
        """The type of a complex number's parts; the type itself for others."""
        return {"c64": f32, "c128": f64}.get(self.name, self)

    @property
    def complex(self) -> DType:
        """The complex type with parts of this float type; a complex type itself."""
        return c128 if self.bits == 64 and self.kind == "f" else self if self.kind == "c" else c64

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__

    def __reduce__(self) -> tuple:
        return _named, (self.name,)  # unpickled, it is the same object


def _named(name: str) -> DType:
    return BY_NAME[name]


f16 = DType("f16", "f", 16, np.dtype(np.float16), "f16")
bf16 = DType("bf16", "f", 16, np.dtype(ml_dtypes.bfloat16), "bf16")
f32 = DType("f32", "f", 32, np.dtype(np.float32), "f32")
f64 = DType("f64", "f", 64, np.dtype(np.float64), "f64")
i8, i16, i32, i64 = (DType(f"i{b}", "i", b, np.dtype(f"int{b}"), f"si{b}") for b in (8, 16, 32, 64))
u8, u16, u32, u64 = (DType(f"u{b}", "u", b, np.dtype(f"uint{b}"), f"ui{b}") for b in (8, 16, 32, 64))
bool_ = DType("bool", "b", 8, np.dtype(np.bool_), "i1")
c64 = DType("c64", "c", 64, np.dtype(np.complex64), "complex<f32>")
c128 = DType("c128", "c", 128, np.dtype(np.complex128), "complex<f64>")

f8e4m3fn = DType("f8e4m3fn", "n", 8, np.dtype(ml_dtypes.float8_e4m3fn), "f8E4M3FN")
f8e5m2 = DType("f8e5m2", "n", 8, np.dtype(ml_dtypes.float8_e5m2), "f8E5M2")

ALL = (f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_, c64, c128)
FLOATS = (f16, bf16, f32, f64)
INTEGERS = (i8, i16, i32, i64, u8, u16, u32, u64)
NARROW = (f8e4m3fn, f8e5m2)  # supported by nvFuser definitions only: see the pass fusion-narrow-floats

# For float8: bits of the mantissa, bias of the exponent, the largest number, the bits of a NaN as torch and
# hardware write it.
NARROW_FORMATS = {f8e4m3fn: (3, 7, 448.0, 0x7F), f8e5m2: (2, 15, 57344.0, 0x7F)}

BY_NAME = {t.name: t for t in ALL + NARROW}
BY_MLIR = {t.mlir: t for t in ALL + NARROW}
_BY_NUMPY = {t.numpy: t for t in ALL + NARROW}


def of(numpy_dtype) -> DType:
    """Return the element type of a NumPy dtype (or of anything that ``np.dtype`` accepts). Raises TypeError for an
    unsupported one."""
    if isinstance(numpy_dtype, DType):
        return numpy_dtype
    dtype = np.dtype(numpy_dtype)
    found = _BY_NUMPY.get(dtype)
    if found is None or not (dtype.isnative or dtype.itemsize == 1):
        names = ", ".join(t.name for t in ALL)
        raise TypeError(
            f"dtype {dtype} is not supported: convert the array to one of {names} in native byte order first"
        )
    return found


def literal(value, dtype: DType) -> str:
    """Return the MLIR literal of ``value`` as a constant of ``dtype``, exact to the bit."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.is_integer:
        value = int(value)
        if value >= 2 ** (dtype.bits - 1):
            value -= 2**dtype.bits
        return str(value)
    with np.errstate(over="ignore"):
        exact = np.asarray(float(value)).astype(dtype.numpy)
    if dtype.bits >= 32 and np.isfinite(exact):
        text = repr(float(exact))
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    return f"0x{exact.tobytes()[::-1].hex().upper()}"
