"""The device of a call's arrays, and its target."""

from __future__ import annotations

from collections.abc import Sequence

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.runtime import arrays
from mlirfuse.schedule import targets
from mlirfuse.schedule.targets import Target


def target_of(leaves: Sequence) -> Target:
    """Return the target for the device of the arrays."""
    for leaf in leaves:
        device = arrays.device_of(leaf)
        if device is not None and device[0] == "cuda":
            return targets.gpu(device[1])
        if device is not None and device[0] != "cpu":
            raise UnsupportedError(f"device {device[0]} is not supported: move the array to the CPU or a CUDA GPU")
    return targets.cpu()


def check_placement(target: Target, leaves: Sequence) -> None:
    """Raise :class:`UnsupportedError` where an argument is not on the device of ``target``."""
    for index, leaf in enumerate(leaves):
        device = arrays.device_of(leaf)
        if device is None or (device == ("cpu",) and leaf.ndim == 0):
            continue
        where = ":".join(map(str, device))
        if target.name == "cpu" and device[0] != "cpu":
            raise UnsupportedError(f"the target is the CPU, and argument {index} is on {where}: pass a host array")
        if target.name != "cpu" and target.device is not None and device != ("cuda", target.device):
            raise UnsupportedError(
                f"the target is CUDA device {target.device}, and argument {index} is on {where}: move it there"
            )
