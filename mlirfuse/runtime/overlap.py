"""Devices and overlaps of a call's arrays: on one device or two, identical, or overlapping in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse.runtime import arrays
from mlirfuse.runtime.signature import ArgSpec


def on_two_devices(leaves: Sequence) -> tuple[tuple[int, str], tuple[int, str]] | None:
    """Return the indices of two arrays on different devices, and the devices; None where all are on one. 0-d CPU arrays
    are allowed with any device."""
    found: dict[tuple, int] = {}
    for index, leaf in enumerate(leaves):
        device = arrays.device_of(leaf)
        if device is not None and not (device == ("cpu",) and getattr(leaf, "ndim", 1) == 0):
            found.setdefault(device, index)
    if len(found) < 2:
        return None
    first, second = [(index, ":".join(map(str, device))) for device, index in list(found.items())[:2]]
    return first, second


def aliases(leaves: Sequence) -> dict[int, int]:
    """Return the leaves that are the same memory as an earlier one, mapped to that."""
    out: dict[int, int] = {}
    seen: dict[tuple, int] = {}
    for index, leaf in enumerate(leaves):
        if arrays.framework(leaf) is not None:
            spec = arrays.spec_of(leaf)
            key = (arrays.address_of(leaf), spec.shape, spec.strides, spec.dtype.name, spec.writable)
            if key in seen:
                out[index] = seen[key]
            else:
                seen[key] = index
    return out


def identical(leaves: Sequence, count: int) -> frozenset[tuple[int, int]]:
    """Return the pairs of the first ``count`` leaves that are one array."""
    where: dict[int, list[int]] = {}
    for index, leaf in enumerate(leaves[:count]):
        if arrays.framework(leaf) is not None:
            where.setdefault(id(leaf), []).append(index)
    return frozenset((first, other) for first, *others in where.values() for other in others)


@dataclass(frozen=True)
class Overlap:
    """Two overlapping leaves, the first of which is written; ``shared``: whether they (may) share elements."""

    first: int
    second: int
    shared: bool


def find_overlap(
    written: Collection[int], same: dict[int, int], arguments: Collection[int], leaves: Sequence
) -> Overlap | None:
    """Return a leaf of ``written`` that overlaps itself or another of the leaves ``arguments``, and is not the same
    array; None if there is none. ``same``: :func:`aliases` that are known."""
    spans: dict[int, tuple[int, int]] = {}
    for index in arguments:
        leaf = leaves[index]
        if arrays.framework(leaf) is None or 0 in leaf.shape:
            continue
        spec = arrays.spec_of(leaf)
        spans[index] = _span(spec, arrays.address_of(leaf))
        if index in written and _overlaps_itself(spec):
            return Overlap(index, index, True)
    for i in written:
        for j, (low, high) in spans.items():
            if i in spans and same.get(i, i) != same.get(j, j) and low < spans[i][1] and spans[i][0] < high:
                return Overlap(i, j, _share(leaves[i], leaves[j]))
    return None


def _span(spec: ArgSpec, address: int) -> tuple[int, int]:
    """Return the address range of an array: its first byte, and the one after its last."""
    reach = [(n - 1) * s * spec.dtype.bytes for n, s in zip(spec.shape, spec.strides)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    return address + low, address + high + spec.dtype.bytes


def _share(a: Any, b: Any) -> bool:
    """Whether two overlapping arrays (may) have an element in common."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return True
    try:
        return np.shares_memory(a, b, max_work=100_000)  # type: ignore[arg-type]  # NumPy takes any count, its stub two
    except RuntimeError:  # undecided within the limit
        return True


def _overlaps_itself(spec: ArgSpec) -> bool:
    """Whether two elements of an array may have the same address."""
    reach = 0
    for stride, extent in sorted((abs(s), n) for s, n in zip(spec.strides, spec.shape) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False
