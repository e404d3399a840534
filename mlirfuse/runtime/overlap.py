"""Where a call's arrays lie: on one device or two, at one place, over each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse.runtime import arrays
from mlirfuse.runtime.signature import ArgSpec


def on_two_devices(leaves: Sequence) -> tuple[tuple[int, str], tuple[int, str]] | None:
    """Two arrays that lie on two devices, by position, and the devices; None where all lie on one. 0-d CPU arrays go
    anywhere."""
    found: dict[tuple, int] = {}
    for position, leaf in enumerate(leaves):
        device = arrays.device_of(leaf)
        if device is not None and not (device == ("cpu",) and getattr(leaf, "ndim", 1) == 0):
            found.setdefault(device, position)
    if len(found) < 2:
        return None
    first, second = [(position, ":".join(map(str, device))) for device, position in list(found.items())[:2]]
    return first, second


def aliases(leaves: Sequence) -> dict[int, int]:
    """Leaves that are the same memory as an earlier one, and which."""
    out: dict[int, int] = {}
    seen: dict[tuple, int] = {}
    for position, leaf in enumerate(leaves):
        if arrays.framework(leaf) is not None:
            spec = arrays.spec_of(leaf)
            key = (arrays.address_of(leaf), spec.shape, spec.strides, spec.dtype.name, spec.writable)
            if key in seen:
                out[position] = seen[key]
            else:
                seen[key] = position
    return out


def identical(leaves: Sequence, count: int) -> frozenset[tuple[int, int]]:
    """The pairs of the first ``count`` leaves that are one array."""
    where: dict[int, list[int]] = {}
    for position, leaf in enumerate(leaves[:count]):
        if arrays.framework(leaf) is not None:
            where.setdefault(id(leaf), []).append(position)
    return frozenset((first, other) for first, *others in where.values() for other in others)


@dataclass(frozen=True)
class Overlap:
    """Two leaves, the first of which is written, that lie over each other; ``shared``: they (may) share elements."""

    first: int
    second: int
    shared: bool


def of_written(
    written: Collection[int], same: dict[int, int], positions: Collection[int], leaves: Sequence
) -> Overlap | None:
    """A leaf that is written and lies over another of ``positions`` without being the same array, or over itself.
    ``same``: the leaves that are known to be an earlier one."""
    spans: dict[int, tuple[int, int]] = {}
    for position in positions:
        leaf = leaves[position]
        if arrays.framework(leaf) is None or 0 in leaf.shape:
            continue
        spec = arrays.spec_of(leaf)
        spans[position] = _span(spec, arrays.address_of(leaf))
        if position in written and _overlaps_itself(spec):
            return Overlap(position, position, True)
    for i in written:
        for j, (low, high) in spans.items():
            if i in spans and same.get(i, i) != same.get(j, j) and low < spans[i][1] and spans[i][0] < high:
                return Overlap(i, j, _share(leaves[i], leaves[j]))
    return None


def _span(spec: ArgSpec, address: int) -> tuple[int, int]:
    """The bytes from the first that an array has to behind its last."""
    reach = [(n - 1) * s * spec.dtype.bytes for n, s in zip(spec.shape, spec.strides)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    return address + low, address + high + spec.dtype.bytes


def _share(a: Any, b: Any) -> bool:
    """Whether two arrays over each other (may) have an element in common."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return True
    try:
        return np.shares_memory(a, b, max_work=100_000)  # type: ignore[arg-type]  # NumPy takes any count, its stub two
    except RuntimeError:  # too hard to tell
        return True


def _overlaps_itself(spec: ArgSpec) -> bool:
    """Whether two elements of an array may be one in memory."""
    reach = 0
    for stride, extent in sorted((abs(s), n) for s, n in zip(spec.strides, spec.shape) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False
