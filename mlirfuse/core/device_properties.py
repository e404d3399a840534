"""Properties of a device that schedulers use: an NVIDIA GPU, or the host's processor. :mod:`mlirfuse.lowering.devices`
detects those of the present devices."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceProperties:
    """Properties of a GPU. ``chip``: LLVM's name of it; shared memory in bytes; ``memory_bandwidth``: bytes per second
    at the memory's clock."""

    chip: str
    sm_count: int
    threads_per_sm: int
    shared_per_block: int
    l2_bytes: int
    memory_bandwidth: int

    @functools.cached_property
    def key(self) -> str:
        """All properties as text, to look up what depends on them."""
        return serialized(self)

    @functools.cached_property
    def architecture(self) -> int:
        """The compute capability as a number: 90 for sm_90."""
        return int(self.chip.removeprefix("sm_").rstrip("af"))

    @functools.cached_property
    def cluster_sizes(self) -> tuple[int, ...]:
        """The possible numbers of blocks in a cluster: up to 8 wherever clusters exist, 16 on the large chips, but not
        on a MIG slice of one."""
        if self.architecture < 90:
            return (1,)
        return (1, 2, 4, 8, 16) if self.architecture in (90, 100, 103) and self.sm_count >= 100 else (1, 2, 4, 8)

    @functools.cached_property
    def async_copies(self) -> bool:
        """Whether threads can copy from global into shared memory asynchronously (``cp.async``)."""
        return self.architecture >= 80

    @property
    def tensor_cores(self) -> bool:
        """Whether there are kernels for the tensor cores: by Hopper's ``wgmma``, which no later architecture has."""
        return self.architecture == 90

    @property
    def features(self) -> frozenset[str]:
        """Instructions that kernels may use beyond those of the oldest architecture: ``"float8"``, conversions of pairs
        of float32 to float8. (sm_89 has them as of PTX 8.1 only.)"""
        return frozenset(["float8"] if self.architecture >= 90 else [])

    @property
    def cache_policies(self) -> bool:
        """Whether a load or store can carry an L2 eviction policy."""
        return self.architecture >= 80

    @property
    def early_launch(self) -> bool:
        """Whether a kernel may be launched before its predecessor has ended (programmatic dependent launch)."""
        return self.architecture >= 90

    @staticmethod
    def of_architecture(chip: str) -> DeviceProperties:
        """Typical properties for an architecture, to compile without a GPU."""
        typical = {  # a V100, TITAN RTX, A100, RTX A6000, L40S, H100 (SXM), RTX 5090 and GB10
            "sm_70": (80, 2048, 96 << 10, 6 << 20, 898),
            "sm_75": (72, 1024, 64 << 10, 6 << 20, 672),
            "sm_80": (108, 2048, 163 << 10, 40 << 20, 1555),
            "sm_86": (84, 1536, 99 << 10, 6 << 20, 768),
            "sm_89": (142, 1536, 99 << 10, 96 << 20, 864),
            "sm_90": (132, 2048, 227 << 10, 50 << 20, 3352),
            "sm_120": (170, 1536, 99 << 10, 96 << 20, 1792),
            "sm_121": (48, 1536, 99 << 10, 24 << 20, 273),
        }
        b200 = 148, 2048, 227 << 10, 126 << 20, 8000
        sm_count, threads, shared, l2_bytes, bandwidth = typical.get(chip, b200)
        return DeviceProperties(chip, sm_count, threads, shared, l2_bytes, bandwidth * 10**9)


@dataclass(frozen=True)
class HostProperties:
    """Properties of the processor that CPU code is compiled for: its ``features`` as LLVM names them, the threads of a
    parallel loop, the bytes of a core's private cache and of the shared last-level cache."""

    features: frozenset[str]
    threads: int
    own_cache: int
    last_cache: int

    @functools.cached_property
    def vector_bytes(self) -> int:
        """The width of its vector registers, in bytes."""
        if {"avx512f", "avx512vl", "avx512bw"} <= self.features:
            return 64
        return 32 if "avx2" in self.features else 16


def serialized(properties: DeviceProperties | HostProperties) -> str:
    """Serialize all properties of a device, in a fixed order."""
    reported = {field.name: getattr(properties, field.name) for field in dataclasses.fields(properties)}
    return str({name: sorted(x) if isinstance(x, frozenset) else x for name, x in reported.items()})
