"""The parameters of a product's kernel, and the layout of its shared memory."""

from __future__ import annotations

from typing import NamedTuple

from mlirfuse.schedule.tiling import Tiling

WARP_GROUP = 128  # threads that multiply together
WGMMA_M, WGMMA_BYTES = 64, 32  # rows of a consumer, and the extent along K of one instruction
ROW = 128  # bytes of a row in shared memory, whose 16-byte units are swizzled: of a stage's extent along K
COLUMNS = ROW // 2  # 16-bit elements of such a row
TILE_M = 2 * WGMMA_M  # rows of a tile: more columns would not leave enough registers
WARP_ROWS = 16  # rows of a warp's sums
STAGING = 2 * WARP_ROWS * ROW  # bytes of a warp for results on their way to memory: two buffers
PANEL_BYTES = WGMMA_M * ROW  # of a part of another input
_BARRIER = 8  # bytes


class Tiles(NamedTuple):
    """Tiles of ``m`` by ``n`` elements of the result; ``group``: how many tiles are computed below each other before
    those to the right of them; ``blocks`` in the grid; ``tma``: TMA copies operands and results, whose rows are
    aligned; else threads load and store elements, which takes several times as long; ``added``: the other inputs that
    TMA copies, by number among :attr:`operands.Operands.added`; ``apart``: the warp groups compute tiles of their own
    in turns, one multiplies while the other computes the ops on its sums; else both compute a tile together, 64 rows
    each; ``panels``: how many parts of those inputs, 64 rows of 128 bytes, each warp group has room for in shared
    memory."""

    m: int
    n: int
    group: int
    blocks: int
    tma: bool
    added: tuple[int, ...] = ()
    apart: bool = False
    panels: int = 0


class Layout:
    """The tiles of a kernel and its shared memory, which has ``stages`` of tiles of the operands."""

    def __init__(self, p: Tiling):
        self.access, self.stages = p.access, p.stages
        self.m, self.n, self.group, self.blocks, self.tma, self.added, self.apart, self.panels = p.own

    @property
    def consumers(self) -> int:
        """The warp groups that multiply."""
        return 2 if self.apart else self.m // WGMMA_M

    @property
    def parts(self) -> int:
        """How many times 64 rows of a tile a consumer computes."""
        return self.m // WGMMA_M if self.apart else 1

    @property
    def readers(self) -> int:
        """The warps that read a stage."""
        return WARP_GROUP // 32 * (1 if self.apart else self.consumers)

    @property
    def threads(self) -> int:
        return WARP_GROUP * (1 + self.consumers)

    @property
    def a_bytes(self) -> int:
        """Bytes of a stage's rows of the first operand."""
        return self.m * ROW

    @property
    def stage_bytes(self) -> int:
        return (self.m + self.n) * ROW

    @property
    def staging_at(self) -> int:
        """The offset of the results' buffers."""
        return self.stages * self.stage_bytes

    @property
    def panels_at(self) -> int:
        """The offset of the panels, those of a consumer one after the other."""
        return self.staging_at + self.consumers * WARP_GROUP // 32 * STAGING

    @property
    def all_panels(self) -> int:
        """The panels of all consumers."""
        return self.consumers * self.panels

    @property
    def full_at(self) -> int:
        """The offset of the barriers that a stage is full; those that it is empty follow."""
        return self.panels_at + self.all_panels * PANEL_BYTES

    @property
    def empty_at(self) -> int:
        return self.full_at + self.stages * _BARRIER

    @property
    def turns_at(self) -> int:
        """The offset of the barriers that it is a consumer's turn to multiply, with tiles of their own."""
        return self.empty_at + self.stages * _BARRIER

    @property
    def panel_full_at(self) -> int:
        """The offset of the barriers that a panel is full; those that it is empty follow."""
        return self.turns_at + (self.consumers * _BARRIER if self.apart else 0)

    @property
    def panel_empty_at(self) -> int:
        return self.panel_full_at + self.all_panels * _BARRIER

    @property
    def shared_bytes(self) -> int:
        return self.panel_empty_at + self.all_panels * _BARRIER
