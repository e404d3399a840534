"""Estimates of the time of products on tensor cores, and whether a kernel of theirs pays."""

from __future__ import annotations

from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.schedule.gpu.matmul.params import TILE_M
from mlirfuse.schedule.gpu.tuning import heuristics_of


def cost(m: int, n: int, width: int, properties: DeviceProperties) -> int:
    """The time of an m × n product with tiles of ``width`` columns, by what one multiprocessor computes, in columns of
    a tile."""
    waves = -(-_tiles(m, n, width) // properties.sm_count)
    return waves * (width + heuristics_of(properties).matmul.results)


def busy(m: int, n: int, width: int, properties: DeviceProperties) -> float:
    """The share of the multiprocessors' time in which they compute elements of an m × n result."""
    waves = -(-_tiles(m, n, width) // properties.sm_count)
    return m * n / (waves * properties.sm_count * TILE_M * width)


def pays(m: int, n: int, k: int, properties: DeviceProperties) -> bool:
    """Whether a kernel of an m × n product and of elementwise ops on its result is expected to be faster than the
    library's product and a kernel of the ops."""
    heuristics = heuristics_of(properties).matmul
    if not properties.tensor_cores or not heuristics.least_k <= k <= heuristics.most_k:
        return False
    width = min((width for width, _ in heuristics.tiles), key=lambda width: cost(m, n, width, properties))
    return busy(m, n, width, properties) >= heuristics.busy


def _tiles(m: int, n: int, width: int) -> int:
    return -(-m // TILE_M) * -(-n // width)
