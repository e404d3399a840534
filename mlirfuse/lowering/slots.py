"""Numbers the pointers and integers that one compiled program passes to its kernels.

A call fills two arrays: ``ptrs`` (arguments in memory, then outputs, then the workspace) and ``ints`` (sizes and
strides, grid dimensions, workspace offsets, and the bits of scalar arguments). The host function passes each kernel the
ones that it uses: to a GPU kernel as parameters, to a CPU kernel as an array of pointers in the order of first use, and
``ints``. Kernels that do the same therefore have the same code, independent of their tensors' slots in a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.emitter import Emitter, Val

# The report of an out-of-bounds index: a flag (1; 2 while the rest is written), the index, its source location, the
# extent.
BAD_INDEX = "mlirfuse_bad_index"


@dataclass
class Slots:
    """``pointers``: tensors in the order of ``ptrs``; ``temporaries`` in the workspace, each with the slot of its byte
    offset in ``ints``. ``ints``: the expressions to evaluate for each new set of sizes. ``functions``: addresses by
    name, once kernels are loaded."""

    pointers: dict[Value, int] = field(default_factory=dict)
    # Value or key of a scheduler's own buffer -> slot of its offset.
    temporaries: dict[object, int] = field(default_factory=dict)
    temporary_bytes: dict[object, Size] = field(default_factory=dict)
    ints: dict[tuple[str, Any], int] = field(default_factory=dict)
    functions: dict[str, int] = field(default_factory=dict)
    # For results written into a window of an argument: bytes from the argument's first element to the result's.
    starts: dict[Value, Size] = field(default_factory=dict)
    # For values stored as parts of a result: the result, and the elements from its first to theirs.
    inside: dict[Value, tuple[Value, Size]] = field(default_factory=dict)
    workspace: int = 0  # the workspace's slot in ptrs
    # Slots that earlier kernels of the call write: with overlapping launches their loads are not invariant.
    written: frozenset = frozenset()
    features: frozenset[str] = frozenset()  # of the target, for the emitters of its kernels

    def size(self, size: Size) -> int:
        """The slot of a size expression."""
        return self.ints.setdefault(("size", size), len(self.ints))

    def inverse(self, size: Size) -> int:
        """The slot of the multiplicative inverse of a size, see :func:`mlirfuse_runtime.sizes.inverse_of`."""
        return self.ints.setdefault(("inverse", size), len(self.ints))

    def scalar(self, value: Value) -> int:
        """The slot of a by-value argument's bits."""
        return self.ints.setdefault(("scalar", value), len(self.ints))

    def handle(self, function: str) -> int:
        """The slot of the address of a kernel, or of a runtime function, by name."""
        return self.ints.setdefault(("handle", function), len(self.ints))

    def numbers(self, what: str, numbers: Sequence[int]) -> int:
        """The first of consecutive slots for ``numbers``, identified by ``what``."""
        slots = [self.ints.setdefault(("number", (what, at, n)), len(self.ints)) for at, n in enumerate(numbers)]
        return slots[0]

    def temporary(self, key, nbytes: Size) -> int:
        """The slot of the byte offset of a workspace buffer, whose size is the largest that any kernel requests."""
        if key not in self.temporaries:
            self.temporaries[key] = self.ints.setdefault(("offset", key), len(self.ints))
            self.temporary_bytes[key] = nbytes
        elif self.temporary_bytes[key] != nbytes:
            self.temporary_bytes[key] = sz.maximum(self.temporary_bytes[key], nbytes)
        return self.temporaries[key]

    def place(self, value: Value) -> tuple[str, int]:
        """The location of a tensor, or of the result that it is a part of: ("pointer", slot) or ("temporary", slot of
        its offset)."""
        if value in self.inside:
            return self.place(self.inside[value][0])
        if value in self.pointers:
            return "pointer", self.pointers[value]
        return "temporary", self.temporary(value, sz.mul(value.numel, value.dtype.bytes))


class TensorMap(NamedTuple):
    """A description of a matrix in global memory for the tensor memory accelerator (TMA), which the host function
    encodes for each launch. ``place``: its memory, as :meth:`Slots.place` gives it; ``dims`` and ``pitch``: the slots
    of its extents, the contiguous one first, and of the bytes from one row to the next; ``box``: the extents of a copy,
    in the same order, whose rows have at most 128 bytes, and are swizzled by 128 bytes in shared memory."""

    place: tuple[str, int]
    dtype: str
    dims: tuple[int, int]
    pitch: int
    box: tuple[int, int]


class CpuArguments:
    """A CPU kernel's arguments, loaded from ``ctx`` (a pointer to {its pointers, ints}) at its entry. ``passed``: the
    slots of its pointers, in order."""

    def __init__(self, e: Emitter, slots: Slots, index: dt.DType):
        self.e, self.slots, self.index = e, slots, index
        self.passed: dict[int, int] = {}  # slot -> index among the kernel's pointers
        self._created: dict[object, str] = {}
        e.entry += [
            "  %ptrs = llvm.load %ctx : !llvm.ptr -> !llvm.ptr",
            "  %ints_at = llvm.getelementptr %ctx[1] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr",
            "  %ints = llvm.load %ints_at : !llvm.ptr -> !llvm.ptr",
        ]

    def _load(self, array: str, slot: int, type_: str) -> str:
        key = (array, slot, type_)
        if key not in self._created:
            if array == "ptrs":
                slot = self.passed.setdefault(slot, len(self.passed))
            name = self._created[key] = f"%{array}{slot}_{len(self._created)}"
            self.e.entry.append(
                f"  {name}_at = llvm.getelementptr %{array}[{slot}] : (!llvm.ptr) -> !llvm.ptr, {type_}"
            )
            self.e.entry.append(f"  {name} = llvm.load {name}_at : !llvm.ptr -> {type_}")
        return self._created[key]

    def place(self, value: Value) -> str:
        """The pointer to a tensor."""
        if value in self.slots.inside:
            whole, start = self.slots.inside[value]
            return (
                self.place(whole) if start == 0 else self._inside(self.place(whole), sz.mul(start, whole.dtype.bytes))
            )
        kind, slot = self.slots.place(value)
        if value in self.slots.starts:
            return self._inside(self._load("ptrs", slot, "!llvm.ptr"), self.slots.starts[value])
        if kind == "pointer":
            return self._load("ptrs", slot, "!llvm.ptr")
        return self.temporary(value, self.slots.temporary_bytes[value])

    def _inside(self, base: str, start: Size) -> str:
        """The pointer ``start`` bytes after ``base``."""
        name = f"%part{len(self._created)}"
        offset = self._load("ints", self.slots.size(start), "i64")
        self._created[name] = name
        self.e.entry.append(f"  {name} = llvm.getelementptr {base}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
        return name

    def temporary(self, key, nbytes: Size) -> str:
        """The pointer to a buffer in the workspace."""
        created = ("temporary", key)
        if created not in self._created:
            base = self._load("ptrs", self.slots.workspace, "!llvm.ptr")
            offset = self._load("ints", self.slots.temporary(key, nbytes), "i64")
            name = self._created[created] = f"%temp{len(self._created)}"
            self.e.entry.append(f"  {name} = llvm.getelementptr {base}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
        return self._created[created]

    def reports(self) -> str:
        """The pointer to ``mlirfuse_bad_index``."""
        created = ("reports",)
        if created not in self._created:
            bits = self._load("ints", self.slots.handle(BAD_INDEX), "i64")
            self._created[created] = "%reports"
            self.e.entry.append(f"  %reports = llvm.inttoptr {bits} : i64 to !llvm.ptr")
        return self._created[created]

    def size(self, size: Size) -> Val:
        return Val(self._load("ints", self.slots.size(size), "i64"), dt.i64)

    def scalar(self, value: Value) -> Val:
        return decode_scalar(self.e, self._load("ints", self.slots.scalar(value), "i64"), value.dtype)


class GpuArguments:
    """A GPU kernel's parameters, in order of first use. ``passed`` has the slot of each."""

    def __init__(self, e: Emitter, slots: Slots, index: dt.DType):
        self.e, self.slots, self.index = e, slots, index
        self.passed: dict[tuple, tuple[str, str]] = {}  # (kind, slot) -> (name, type)
        self._reporting = False

    def _parameter(self, kind: str, slot, type_: str) -> str:
        key = (kind, slot)
        if key not in self.passed:
            self.passed[key] = (f"%p{len(self.passed)}", type_)
        return self.passed[key][0]

    def place(self, value: Value) -> str:
        """The pointer to a tensor."""
        if value in self.slots.inside:
            whole, start = self.slots.inside[value]
            return self.place(whole) if start == 0 else self._inside(self.place(whole), start, whole.dtype)
        kind, slot = self.slots.place(value)
        return self._parameter(kind, slot, "!llvm.ptr<1>")

    def _inside(self, base: str, start: Size, dtype: dt.DType) -> str:
        """The pointer ``start`` elements after ``base``."""
        name = self.e.fresh()
        constant = isinstance(start, int) and start < 1 << 31
        at, typed = (start, "") if constant else (self.size(start), f", {self.index.signless}")
        self.e.entry.append(
            f"  {name} = llvm.getelementptr {base}[{at}] : (!llvm.ptr<1>{typed}) -> !llvm.ptr<1>, {dtype.memory}"
        )
        return name

    def tensor_map(
        self, value: Value, dtype: dt.DType, extents: tuple[Size, Size], pitch: Size, box: tuple[int, int]
    ) -> str:
        """The pointer to a :class:`TensorMap` of ``value``, whose rows have ``extents[0]`` elements and are ``pitch``
        elements apart."""
        size = self.slots.size
        dims = size(extents[0]), size(extents[1])
        of = TensorMap(self.slots.place(value), dtype.name, dims, size(sz.mul(pitch, dtype.bytes)), box)
        return self._parameter("tensor_map", of, "!llvm.ptr")

    def temporary(self, key, nbytes: Size) -> str:
        """The pointer to a buffer in the workspace."""
        return self._parameter("temporary", self.slots.temporary(key, nbytes), "!llvm.ptr<1>")

    def reports(self) -> str:
        """The pointer to ``mlirfuse_bad_index``, which has the same address on device and host."""
        bits = self._parameter("handle", self.slots.handle(BAD_INDEX), "i64")
        if not self._reporting:
            self._reporting = True
            self.e.entry.append(f"  %reports = llvm.inttoptr {bits} : i64 to !llvm.ptr<1>")
        return "%reports"

    def size(self, size: Size) -> Val:
        return Val(self._parameter("size", self.slots.size(size), self.index.signless), self.index)

    def inverse(self, size: Size) -> Val:
        return Val(self._parameter("inverse", self.slots.inverse(size), "i64"), dt.u64)

    def scalar(self, value: Value) -> Val:
        return decode_scalar(self.e, self._parameter("scalar", self.slots.scalar(value), "i64"), value.dtype)


def decode_scalar(e: Emitter, name: str, dtype: dt.DType) -> Val:
    """A by-value argument of ``dtype``, decoded from 64 bits: floats are passed as doubles, integers as i64."""
    key = ("scalar", name, dtype)
    if key not in e._constants:
        lines, e.lines, depth, e.depth = e.lines, [], e.depth, 1
        bits = Val(name, dt.i64)
        if dtype.is_float:
            val = e.cast(e.cast(e.bitcast(bits, dt.f64), dtype), dtype.compute)
        else:
            val = e.cast(bits, dtype)
        e.entry += e.lines
        e.lines, e.depth = lines, depth
        e._constants[key] = val
    return e._constants[key]
