"""Estimates of the time of products on tensor cores, and of what else runs instead. Times are in microseconds."""

from __future__ import annotations

from typing import NamedTuple

from mlirfuse.analysis import traffic
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.ir.sizes import Size
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.gpu.tuning.heuristics import ProductTile

ALIGNED = 16  # bytes that addresses are supposed to be multiples of
LIBRARY_TILE = 128  # rows and columns


class Work(NamedTuple):
    """What a kernel of a product does: the product's extents, the last in units of 16 bits, and for each element of its
    result the bytes of other matrices that are read, the bytes written, and the instructions of the ops."""

    m: int
    n: int
    k: int
    read: float
    written: float
    instructions: float

    @staticmethod
    def of(m: int, n: int, k: int, read: int, written: int, instructions: int) -> Work:
        return Work(m, n, k, max(0, read) / (m * n), written / (m * n), instructions / (m * n))


def amounts(ops: list[Op], read: Size, written: Size) -> tuple[Size, ...]:
    """What :meth:`Work.of` takes, of a kernel of ``ops``, one of them a product, and the bytes that it moves."""
    (product,) = [op for op in ops if op.row.kind == "product"]
    a, b = product.operands
    others = read - sz.total(sz.mul(v.numel, v.dtype.bytes) for v in (a, b))
    k = sz.ceildiv(sz.mul(a.shape[1], a.dtype.bytes), 2)
    return a.shape[0], b.shape[1], k, others, written, traffic.operations(op for op in ops if op is not product)


def best_tiles(work: Work, properties: DeviceProperties) -> list[ProductTile]:
    """The tiles that a kernel may have, the one that is expected to be fastest first."""
    tiles = heuristics_of(properties).matmul.tiles
    if work.read >= 1:  # with tiles of their own, the turn to multiply passes once all other matrices are there: late
        tiles = tuple(tile for tile in tiles if not tile.apart)
    return sorted(tiles, key=lambda tile: _tiled_us(work, tile, properties))


def kernel_us(work: Work, properties: DeviceProperties) -> float:
    """The time of a kernel of ours."""
    return _tiled_us(work, best_tiles(work, properties)[0], properties)


def library_us(m: int, n: int, k: int, properties: DeviceProperties) -> float:
    """The time of the library's product."""
    h = heuristics_of(properties).matmul
    rate, costs = h.library_rate, h.library_costs
    elements = _waves(m, n, LIBRARY_TILE, LIBRARY_TILE, properties) * LIBRARY_TILE**2
    whole = elements * (2e-6 * k / rate + costs.element)
    divided = 2e-6 * m * n * k / (properties.sm_count * rate * h.library_divided)
    return costs.start + min(whole, divided)


def elementwise_us(nbytes: int, properties: DeviceProperties) -> float:
    """The time of a kernel that moves ``nbytes``."""
    h = heuristics_of(properties).matmul
    return h.launch + nbytes / (h.bandwidth * properties.memory_bandwidth) * 1e6


def covers(work: Work, properties: DeviceProperties) -> bool:
    """Whether estimates were fitted to kernels that read and write as much for an element of the result."""
    h = heuristics_of(properties).matmul
    return work.read <= h.most_read and work.written <= h.most_written


def margin(properties: DeviceProperties) -> float:
    """The share of the time that a kernel must be expected to gain."""
    return heuristics_of(properties).matmul.margin


def _tiled_us(work: Work, tile: ProductTile, properties: DeviceProperties) -> float:
    h = heuristics_of(properties).matmul
    costs, elements = h.apart if tile.apart else h.shared, tile.rows * tile.columns
    waves = _waves(work.m, work.n, tile.rows, tile.columns, properties)
    products = elements * 2e-6 * work.k / tile.rate
    ops = elements * (costs.element + costs.byte * (work.read + work.written) + costs.instruction * work.instructions)
    if tile.apart:  # one warp group multiplies while the other computes the ops
        return costs.start + waves * max(products, (products + ops) / 2) + ops
    return costs.start + waves * (products + ops)


def _waves(m: int, n: int, rows: int, columns: int, properties: DeviceProperties) -> int:
    """The tiles that a multiprocessor computes one after the other."""
    return -(-(-(-m // rows) * -(-n // columns)) // properties.sm_count)
