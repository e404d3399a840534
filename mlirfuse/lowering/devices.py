"""Properties of the devices that code can be compiled for: this host, its CUDA devices, and architectures by name."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from mlirfuse import _native
from mlirfuse.core.device_properties import DeviceProperties, HostProperties
from mlirfuse.core.errors import UnsupportedError
from mlirfuse.lowering import llvm


def host() -> HostProperties:
    """This host's processor."""
    features = llvm.host_processor().features
    return HostProperties(features, _native.num_threads(), cache_bytes(2, 1 << 20), cache_bytes(3, 16 << 20))


def processor(level: str) -> HostProperties:
    """A typical machine with the instruction set of a level of x86-64, for code that runs on others than this one.
    Raises :class:`UnsupportedError` for a level that there is none of."""
    found = llvm.processor_of_level(level)
    if found is None or "avx2" not in found.features:
        raise UnsupportedError(f"no target 'cpu:{level}': there are 'cpu:x86-64-v3' and 'cpu:x86-64-v4'")
    return HostProperties(found.features, 8, 1 << 20, 32 << 20)


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
    """The machine of a target's name: "cpu", "cpu:x86-64-v3", "cuda" (this host's first GPU) or "cuda:sm_90". Raises
    :class:`UnsupportedError` for any other."""
    if name == "cpu":
        return host()
    if name.startswith("cpu:"):
        return processor(name.removeprefix("cpu:"))
    if name == "cuda":
        return device(0)
    if re.fullmatch(r"cuda:sm_\d+[af]?", name):
        return DeviceProperties.of_architecture(name.removeprefix("cuda:"))
    raise UnsupportedError(
        f"no target '{name}': there are 'cpu', 'cpu:x86-64-v3' or -v4, 'cuda' and 'cuda:sm_90' with any architecture "
        "from sm_70 on"
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
