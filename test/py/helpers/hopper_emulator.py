"""Adds to the PTX emulator what kernels for Hopper's tensor cores need: memory barriers in shared memory, copies of tiles
by the tensor memory accelerator (TMA), products by ``wgmma``, ``stmatrix``.

What is asynchronous happens as early or as late as the kernel allows, whichever shows more errors: copies into shared
memory at once, products and copies out of it only when their results are waited for. Importing this module teaches the
emulator these opcodes; such kernels run as :class:`HopperLaunch`.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import ptx_emulator
from ptx_emulator import ENDED, KNOWN, OPERATIONS, WARP, EmulationError, Instruction, Kernel, Launch

WARP_GROUP = 4 * WARP
ROW = 128  # bytes of a swizzled row
WGMMA_BYTES = 32  # of the extent along K of one product
TF32 = np.uint32(0xFFFFE000)
_OPERANDS = {  # of products, by the instruction's names
    "tf32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


class TensorMap(NamedTuple):
    """A matrix in global memory, as a kernel's tensor map describes it: its address, extents (the contiguous one
    first), the bytes from one row to the next, the box of a copy, and the bytes of an element."""

    address: int
    dims: tuple[int, int]
    pitch: int
    box: tuple[int, int]
    nbytes: int


class MemoryBarrier:
    """A barrier in shared memory. ``phase``: how many phases are complete."""

    def __init__(self, count: int):
        self.count = self.pending = count
        self.transactions = self.phase = 0


def parse(text: str) -> dict[str, Kernel]:
    """The kernels of a PTX module by name, with the scopes of inline assembly flattened."""
    text = re.sub(
        r"\{\s*\.reg \.pred\s+P1;\s*LAB_WAIT:\s*(mbarrier\.try_wait[^;]*?)P1, ([^;]*);.*?DONE:\s*\}",
        r"\1WAITED, \2;",
        text,
        flags=re.S,
    )
    text = re.sub(
        r"\{\s*\.reg \.pred p;\s*setp\.ne\.b32 p, (\d), 0;\s*(wgmma[^;]*), p, ([^;]*);\s*\}",
        r"\2, \1, \3;",
        text,
        flags=re.S,
    )
    text = re.sub(r"\.extern \.shared \.align (\d+)", "", text)
    return ptx_emulator.parse(text)


class HopperLaunch(Launch):
    """A launch whose kernel may use the opcodes below; ``params`` may have tensor maps. ``ahead``: the threads that are
    furthest run first, consumers before producers; else those furthest behind."""

    ahead = False

    def pick(self, counters: np.ndarray) -> int:
        running = counters[counters != ENDED]
        return int(running.max()) if self.ahead and running.size else super().pick(counters)

    def __init__(self, kernel: Kernel, memory: Any, params: list, *arguments: Any):
        self.maps = [x for x in params if isinstance(x, TensorMap)]
        numbers = iter(range(len(self.maps)))
        given = [np.full(16, next(numbers), np.uint64) if isinstance(x, TensorMap) else x for x in params]
        super().__init__(kernel, memory, given, *arguments)
        self.memory_barriers: dict[tuple[int, int], MemoryBarrier] = {}  # by block and offset
        self.products: dict[int, list[list[tuple]]] = {}  # of each warp, by group; the last group is open
        self.stores: dict[int, list[list[tuple]]] = {}  # of each thread
        self.unfenced = np.zeros(len(self.counters), bool)  # threads that have loaded from shared memory since a fence
        self.unordered = np.zeros(len(self.counters), bool)  # those when their warp's lanes last met

    def run(self) -> None:
        super().run()
        if any(any(groups) for groups in (*self.stores.values(), *self.products.values())):
            raise EmulationError(f"{self.kernel.name}: ends before a store or a product is waited for")

    def tensor_map(self, operand: str, threads: np.ndarray) -> tuple[TensorMap, list[int]]:
        """The map of an operand ``[map, {x, y}]``, and its coordinates; of one thread."""
        base, *coordinates = re.findall(r"[%\w]+", operand)
        at = int(self.bits(base, 8, threads)[0])
        number = int(self.params[at : at + 8].view(np.uint64)[0])
        return self.maps[number], [int(self.read(c, "s32", threads)[0]) for c in coordinates]

    def barrier_at(self, operand: str, thread: int) -> MemoryBarrier:
        block, offset = thread // self.threads, int(self.address(operand, np.array([thread]))[0])
        if (block, offset) not in self.memory_barriers:
            raise EmulationError(f"{self.kernel.name}: no barrier at {offset} of block {block}")
        return self.memory_barriers[block, offset]

    def complete(self, barrier: MemoryBarrier) -> None:
        """Ends the barrier's phase if nothing is pending."""
        if barrier.pending < 0:
            raise EmulationError(f"{self.kernel.name}: more arrivals at a barrier than it counts")
        if barrier.pending == 0 and barrier.transactions == 0:
            barrier.pending, barrier.phase = barrier.count, barrier.phase + 1
            self.releases += 1

    def swizzled(self, offsets: np.ndarray) -> np.ndarray:
        """Where in a block's shared memory 128-byte swizzling puts bytes."""
        return offsets ^ ((offsets >> 7 & 7) << 4)


def _looks(instruction: Instruction) -> bool:
    return _plain_looks(instruction) or "try_wait" in instruction.parts


_plain_looks = ptx_emulator._looks
ptx_emulator._looks = _looks


def _memory_barrier(launch: HopperLaunch, instruction: Instruction, threads: np.ndarray) -> None:
    parts, operands = instruction.parts, instruction.operands
    for thread in threads:
        one = np.array([thread])
        if "init" in parts:
            place = thread // launch.threads, int(launch.address(operands[0], one)[0])
            launch.memory_barriers[place] = MemoryBarrier(int(launch.read(operands[1], "s32", one)[0]))
            continue
        barrier = launch.barrier_at(operands[0 if operands[0].startswith("[") else 1], thread)
        if "try_wait" in parts:
            if barrier.phase % 2 == int(launch.read(operands[2], "u32", one)[0]):  # that phase is not complete
                at = launch.counters[thread] - 1
                launch.counters[thread] = at
                launch.looked[thread, launch.looks[at]] = launch.releases
            continue
        lanes = slice(thread // WARP * WARP, thread // WARP * WARP + WARP)
        if launch.unordered[lanes].any():  # TMA may overwrite what they have not loaded yet
            raise EmulationError(f"{launch.kernel.name}: arrives at a barrier before a fence of its loads")
        if "expect_tx" in parts:
            barrier.transactions += int(launch.read(operands[2], "s32", one)[0])
        barrier.pending -= 1
        launch.complete(barrier)


def _box(launch: HopperLaunch, found: TensorMap, at: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The addresses in global memory of the bytes of a box, and which are inside of the matrix."""
    (x, y), (columns, rows), nbytes = at, found.box, found.nbytes
    xs, ys = x * nbytes + np.arange(columns * nbytes), y + np.arange(rows)
    inside = ((ys >= 0) & (ys < found.dims[1]))[:, None] & ((xs >= 0) & (xs < found.dims[0] * nbytes))
    if found.address % 16 or found.pitch % 16:
        raise EmulationError(f"{launch.kernel.name}: a tensor map of rows that are not aligned")
    return found.address + ys[:, None] * found.pitch + xs, inside


def _bulk(launch: HopperLaunch, instruction: Instruction, threads: np.ndarray) -> None:
    """Copies of tiles, by single threads."""
    parts, operands = instruction.parts, instruction.operands
    if "tensor" not in parts:
        _stores_done(launch, instruction, threads)
        return
    for thread in threads:
        one, block = np.array([thread]), thread // launch.threads
        to_shared = parts[5] == "shared::cluster"
        found, at = launch.tensor_map(operands[1 if to_shared else 0], one)
        shared = int(launch.address(operands[0 if to_shared else 1], one)[0])
        columns, rows = found.box
        if columns * found.nbytes != ROW or shared % 16:
            raise EmulationError(f"{launch.kernel.name}: a box of {columns} elements at {shared}")
        units = launch.swizzled(shared + np.arange(rows)[:, None] * ROW + np.arange(ROW))
        if to_shared:
            addresses, inside = _box(launch, found, at)
            values, places = np.zeros(addresses.shape, np.uint8), addresses[inside]
            assert launch.memory.readable[places].all(), "TMA reads outside of the tensor"
            values[inside] = launch.memory.bytes[places]
            launch.shared[block * launch.shared_size + units] = values
            barrier = launch.barrier_at(operands[2], thread)
            barrier.transactions -= rows * ROW
            launch.complete(barrier)
        else:
            launch.stores.setdefault(int(thread), [[]])[-1].append((found, at, block * launch.shared_size + units))


def _stores_done(launch: HopperLaunch, instruction: Instruction, threads: np.ndarray) -> None:
    for thread in map(int, threads):
        groups = launch.stores.setdefault(thread, [[]])
        if "commit_group" in instruction.parts:
            groups.append([])
            continue
        count = int(instruction.operands[0])
        while len(groups) - 1 > count:
            for found, at, units in groups.pop(0):
                addresses, inside = _box(launch, found, at)
                places = addresses[inside]
                assert launch.memory.writable[places].all(), "TMA writes outside of the tensor"
                launch.claim(places[:, None], 1, np.full(len(places), thread))
                launch.memory.bytes[places] = launch.shared[units[inside]]


def _matrix(launch: HopperLaunch, block: int, descriptor: int, rows: np.ndarray, transposed: bool, dtype) -> np.ndarray:
    """Elements [rows, 32 bytes] of an operand in shared memory."""
    start, lead, step = ((descriptor >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    if descriptor >> 62 != 1:
        raise EmulationError(f"{launch.kernel.name}: an operand that is not swizzled by 128 bytes")
    nbytes = np.dtype(dtype).itemsize
    k = np.arange(WGMMA_BYTES // nbytes)
    row = rows[:, None]
    if transposed:
        offsets = start + row // 64 * lead + k // 8 * step + k % 8 * ROW + row % 64 * 2
    else:
        offsets = start + row // 8 * step + row % 8 * ROW + k * nbytes
    places = (block * launch.shared_size + launch.swizzled(offsets))[..., None] + np.arange(nbytes)
    found = launch.shared[places].view(dtype)[..., 0]
    return found if nbytes < 4 else (found.view(np.uint32) & TF32).view(dtype)  # its other bits are not read


def _wgmma(launch: HopperLaunch, instruction: Instruction, threads: np.ndarray) -> None:
    launch.converged(threads)
    parts, operands = instruction.parts, instruction.operands
    for first in threads[::WARP]:
        warp = int(first) // WARP
        groups = launch.products.setdefault(warp, [[]])
        if "fence" in parts:
            continue
        if "commit_group" in parts:
            groups.append([])
        elif "wait_group" in parts:
            while len(groups) - 1 > int(operands[0]):
                for product in groups.pop(0):
                    _multiply(launch, *product)
        else:
            lanes = np.arange(first, first + WARP)
            names = re.findall(r"%\w+", operands[0])
            a, b = (int(launch.bits(operand, 8, lanes)[0]) for operand in operands[1:3])
            flags = operands[6:8] or ["0", "0"]  # only 16-bit operands can be transposed
            scale, transposed = operands[3] != "0", [flag == "1" for flag in flags]
            groups[-1].append((lanes, names, a, b, scale, transposed, [_OPERANDS[name] for name in parts[-2:]]))


def _multiply(launch: HopperLaunch, lanes, names, a: int, b: int, scale: bool, transposed, dtypes) -> None:
    """What one warp of a warp group computes: 16 of its 64 rows."""
    block, warp = int(lanes[0]) // launch.threads, int(lanes[0]) // WARP % 4
    n = len(names) * 2
    x = _matrix(launch, block, a, 16 * warp + np.arange(16), transposed[0], dtypes[0]).astype(np.float64)
    y = _matrix(launch, block, b, np.arange(n), transposed[1], dtypes[1]).astype(np.float64)
    product = (x @ y.T).astype(np.float32)
    lane = np.arange(WARP)
    for at, name in enumerate(names):
        row, column = lane // 4 + at // 2 % 2 * 8, at // 4 * 8 + lane % 4 * 2 + at % 2
        before = launch.read(name, "f32", lanes) if scale else np.float32(0)
        launch.write(name, before + product[row, column], lanes)


def _store_matrices(launch: HopperLaunch, instruction: Instruction, threads: np.ndarray) -> None:
    launch.converged(threads)
    target, source = instruction.operands
    words = [launch.bits(name, 4, threads).reshape(-1, WARP) for name in re.findall(r"%\w+", source)]
    # Lane 8 i + r has the address of row r of matrix i, whose words lanes 4 r … 4 r + 3 have.
    rows = np.stack([word.reshape(-1, 8, 4) for word in words], 1).reshape(-1, 4)
    launch.store_shared(target, 16, threads, np.ascontiguousarray(rows).view(np.uint8))


def _load(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    if isinstance(launch, HopperLaunch) and instruction.parts[1] == "shared":
        launch.unfenced[threads] = True
    _plain_load(launch, instruction, threads)


_plain_load = OPERATIONS["ld"]


def _bar(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    if isinstance(launch, HopperLaunch):
        launch.unordered[threads] = launch.unfenced[threads]
    _plain_bar(launch, instruction, threads)


_plain_bar = OPERATIONS["bar"]


def _fence(launch: HopperLaunch, instruction: Instruction, threads: np.ndarray) -> None:
    if "async" in instruction.parts:
        launch.unfenced[threads] = False


def _copy(launch: HopperLaunch, instruction: Instruction, threads: np.ndarray) -> None:
    (_bulk if "bulk" in instruction.parts else ptx_emulator._copy)(launch, instruction, threads)


OPERATIONS |= {
    "setmaxnreg": ptx_emulator._nothing,
    "fence": _fence,
    "ld": _load,
    "bar": _bar,
    "mbarrier": _memory_barrier,
    "wgmma": _wgmma,
    "stmatrix": _store_matrices,
    "cp": _copy,
}
KNOWN |= {
    "setmaxnreg": {"inc", "dec", "sync", "aligned", "u32"},
    "fence": {"proxy", "async", "shared::cta", "mbarrier_init", "release", "cluster"},
    "mbarrier": {"init", "arrive", "expect_tx", "try_wait", "parity", "shared", "b64"},
    "wgmma": {"fence", "commit_group", "wait_group", "mma_async", "sync", "aligned", "f32", "f16", "bf16", "tf32"}
    | {"e4m3", "e5m2"}
    | {f"m64n{n}k{k}" for n in range(8, 257, 8) for k in (8, 16, 32)},
    "stmatrix": {"sync", "aligned", "m8n8", "x4", "shared", "b16"},
    "cp": KNOWN["cp"]
    | {"bulk", "tensor", "2d", "tile", "shared::cluster", "shared::cta", "mbarrier::complete_tx::bytes", "bulk_group"}
    | {"read"},
    "cvta": KNOWN["cvta"] | {"shared", "shared::cluster", "param"},
    "cvt": KNOWN["cvt"] | {"rn"},
}
