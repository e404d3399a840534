"""What schedulers know of a GPU: read from the device, or typical of an architecture where there is none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """``chip`` as LLVM names it; shared memory in bytes; ``clusters``: has thread-block clusters."""

    chip: str
    sm_count: int
    threads_per_sm: int
    shared_per_block: int
    l2_bytes: int

    @property
    def clusters(self) -> bool:
        return int(self.chip.removeprefix("sm_").rstrip("af")) >= 90

    @staticmethod
    def of_device(index: int) -> Machine:
        """The machine that CUDA device ``index`` is."""
        from mlirfuse import _native

        found = _native.cuda_device_attributes(index)
        major, minor = found["cc"]
        return Machine(f"sm_{major}{minor}", found["sm_count"], found["max_threads_per_sm"], found["shared_per_block_optin"], found["l2_bytes"])

    @staticmethod
    def of_architecture(chip: str) -> Machine:
        """A typical machine of an architecture, for compiling without one."""
        typical = {
            "sm_70": (80, 2048, 96 << 10, 6 << 20), "sm_75": (72, 1024, 64 << 10, 6 << 20), "sm_80": (108, 2048, 163 << 10, 40 << 20),
            "sm_86": (84, 1536, 99 << 10, 6 << 20), "sm_89": (142, 1536, 99 << 10, 96 << 20), "sm_90": (132, 2048, 227 << 10, 50 << 20),
        }  # fmt: skip
        return Machine(chip, *typical.get(chip, (148, 2048, 227 << 10, 126 << 20)))
