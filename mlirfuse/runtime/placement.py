"""Where the arrays of a call lie, and which target that makes."""

from __future__ import annotations

from collections.abc import Sequence

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.runtime import arrays
from mlirfuse.schedule import targets
from mlirfuse.schedule.targets import Target


def target_of(leaves: Sequence) -> Target:
    """The target that the arrays lie on."""
    for leaf in leaves:
        device = arrays.device_of(leaf)
        if device is not None and device[0] == "cuda":
            return targets.gpu(device[1])
        if device is not None and device[0] != "cpu":
            raise UnsupportedError(f"device {device[0]} is not supported: move the array to the CPU or a CUDA GPU")
    return targets.cpu()


def check_placement(target: Target, leaves: Sequence) -> None:
    """Raises :class:`UnsupportedError` where the arguments do not lie where ``target`` computes."""
    for position, leaf in enumerate(leaves):
        device = arrays.device_of(leaf)
        if device is None or (device == ("cpu",) and leaf.ndim == 0):
            continue
        where = ":".join(map(str, device))
        if target.name == "cpu" and device[0] != "cpu":
            raise UnsupportedError(f"the target is the CPU, and argument {position} lies on {where}: pass a host array")
        if target.name != "cpu" and target.device is not None and device != ("cuda", target.device):
            raise UnsupportedError(
                f"the target is CUDA device {target.device}, and argument {position} lies on {where}: move it there"
            )
