"""Properties of the devices that code can be compiled for: this host, its CUDA devices, and architectures by name."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from mlirfuse import _native
from mlirfuse.core.device_properties import DeviceProperties, HostProperties
from mlirfuse.core.errors import UnsupportedError
from mlirfuse.lowering import llvm


def host() -> HostProperties:
    """The properties of this host's processor."""
    return HostProperties(
        llvm.host_features(), _native.num_threads(), cache_bytes(2, 1 << 20), cache_bytes(3, 16 << 20)
    )


def device(index: int) -> DeviceProperties:
    """The properties of CUDA device ``index``. Raises :class:`UnsupportedError` if there is no CUDA device."""
    if not _native.cuda_available():
        raise UnsupportedError(f"no CUDA device: {_native.cuda_error()}")
    found = _native.cuda_device_attributes(index)
    chip = "sm_{}{}".format(*found["cc"])
    counts = found["sm_count"], found["max_threads_per_sm"], found["shared_per_block_optin"], found["l2_bytes"]
    return DeviceProperties(chip, *counts, memory_bandwidth(found) or _typical_bandwidth(chip, found["sm_count"]))


def memory_bandwidth(found: dict[str, int]) -> int:
    """Bytes per second of a device with these attributes, whose bus transfers twice per clock; 0 if the driver reports
    no clock."""
    return 2000 * found.get("memory_clock_khz", 0) * found.get("bus_width", 0) // 8


def _typical_bandwidth(chip: str, sm_count: int) -> int:
    """As much for each multiprocessor as the architecture's typical card has."""
    typical = DeviceProperties.of_architecture(chip)
    return typical.memory_bandwidth * sm_count // typical.sm_count


def named(name: str) -> HostProperties | DeviceProperties:
    """The properties for a target's name: "cpu", "cuda" (this host's first GPU) or e.g. "cuda:sm_90". Raises
    :class:`UnsupportedError` for other names."""
    if name == "cpu":
        return host()
    if name == "cuda":
        return device(0)
    if name.startswith("cuda:sm_"):
        return DeviceProperties.of_architecture(name.removeprefix("cuda:"))
    raise UnsupportedError(
        f"no target '{name}': the targets are 'cpu', 'cuda', and 'cuda:sm_90' or any architecture from sm_70 on"
    )


@functools.cache
def cache_bytes(level: int, otherwise: int, processors: Path = Path("/sys/devices/system/cpu")) -> int:
    """The bytes of the data cache of ``level`` of the first processor that this process may run on, from Linux sysfs
    (glibc reports the sum of all such caches of an AMD processor); ``otherwise`` if it is unknown."""
    for cache in processors.glob(f"cpu{min(os.sched_getaffinity(0))}/cache/index*"):
        try:
            kind, found, size = ((cache / name).read_text().strip() for name in ("type", "level", "size"))
            if kind != "Instruction" and int(found) == level:
                return int(size.removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
    return otherwise
