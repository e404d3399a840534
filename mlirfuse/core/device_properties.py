"""What schedulers know of a machine: an NVIDIA GPU, or the host's processor. :mod:`mlirfuse.lowering.devices` finds
those that are there."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceProperties:
    """``chip`` as LLVM names it; shared memory in bytes."""

    chip: str
    sm_count: int
    threads_per_sm: int
    shared_per_block: int
    l2_bytes: int

    @functools.cached_property
    def architecture(self) -> int:
        """Its number, 90 for sm_90."""
        return int(self.chip.removeprefix("sm_").rstrip("af"))

    @functools.cached_property
    def cluster_sizes(self) -> tuple[int, ...]:
        """How many blocks a cluster can have: 8 wherever there are clusters, 16 on the large chips, unless this is a
        slice of one."""
        if self.architecture < 90:
            return (1,)
        return (1, 2, 4, 8, 16) if self.architecture in (90, 100, 103) and self.sm_count >= 100 else (1, 2, 4, 8)

    @functools.cached_property
    def async_copies(self) -> bool:
        """Whether threads can copy from memory into shared memory without waiting (``cp.async``)."""
        return self.architecture >= 80

    @property
    def cache_policies(self) -> bool:
        """Whether an access can say how long its line shall stay in the second-level cache."""
        return self.architecture >= 80

    @property
    def early_launch(self) -> bool:
        """Whether a kernel may be launched before the one before it has ended (programmatic dependent launch)."""
        return self.architecture >= 90

    @staticmethod
    def of_architecture(chip: str) -> DeviceProperties:
        """A typical machine of an architecture, for compiling without one."""
        typical = {
            "sm_70": (80, 2048, 96 << 10, 6 << 20),
            "sm_75": (72, 1024, 64 << 10, 6 << 20),
            "sm_80": (108, 2048, 163 << 10, 40 << 20),
            "sm_86": (84, 1536, 99 << 10, 6 << 20),
            "sm_89": (142, 1536, 99 << 10, 96 << 20),
            "sm_90": (132, 2048, 227 << 10, 50 << 20),
            "sm_120": (170, 1536, 99 << 10, 96 << 20),
            "sm_121": (48, 1536, 99 << 10, 24 << 20),
        }
        return DeviceProperties(chip, *typical.get(chip, (148, 2048, 227 << 10, 126 << 20)))


@dataclass(frozen=True)
class HostProperties:
    """The processor that CPU code is made for: its ``features`` as LLVM names them, the threads of a parallel loop, and
    the bytes of cache that a core has for itself and of the last one, which all share."""

    features: frozenset[str]
    threads: int
    own_cache: int
    last_cache: int

    @functools.cached_property
    def vector_bytes(self) -> int:
        """The width of its vector registers."""
        if {"avx512f", "avx512vl", "avx512bw"} <= self.features:
            return 64
        return 32 if "avx2" in self.features else 16


def serialized(properties: DeviceProperties | HostProperties) -> str:
    """All that a machine's description says, in one order."""
    reported = {field.name: getattr(properties, field.name) for field in dataclasses.fields(properties)}
    return str({name: sorted(x) if isinstance(x, frozenset) else x for name, x in reported.items()})
