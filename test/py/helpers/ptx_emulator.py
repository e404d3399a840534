"""Runs the PTX of the GPU kernels on NumPy: all threads of a launch at once, without a GPU.

What it models: grids, blocks and clusters in one dimension, registers, shared memory (static, dynamic, and that of
other blocks in a cluster), global memory, asynchronous copies (done at once), shuffles, divergent branches, barriers of
blocks and clusters. What it checks: alignment of every access, global addresses that lie in no allocation (each is
followed by a red zone), global writes to what may only be read, addresses past the end of shared memory, races in
shared memory, threads that wait for ever, barriers that a warp's lanes reach apart, or a block's threads at different
places or not at all.

What it does not model: races in global memory, as the threads that are furthest behind always go first; kernels that
overlap; the errors of ``ex2.approx`` and ``lg2.approx``, which are exact but for rounding; subnormals flushed to zero;
time. Of PTX it knows what the tests need: anything else is an :class:`EmulationError` that names the opcode.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
TYPES = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "b8": np.uint8, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64,
}  # fmt: skip
PAIRS = {"f16x2": "f16", "bf16x2": "bf16", "s16x2": "s16", "u16x2": "u16"}  # of which a register of 32 bits has two
FLOAT8_PAIRS = {"e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2}  # and one of 16 bits two
REGISTERS = [
    ("%rd", np.uint64),
    ("%rs", np.uint16),
    ("%fd", np.uint64),
    ("%r", np.uint32),
    ("%f", np.uint32),
    ("%p", np.bool_),
]
WARP = 32
ENDED = 1 << 40  # the program counter of a thread that has returned
RED_ZONE = 1 << 16  # bytes after each allocation that nothing may touch
MOST_STEPS = 400_000
NOBODY, SEVERAL = -1, -2  # in place of a thread


class EmulationError(Exception):
    """The kernel does what it must not, or what the emulator does not know."""


class Instruction(NamedTuple):
    """One instruction: ``parts`` are the opcode's, between its dots."""

    guard: str | None
    negated: bool
    opcode: str
    parts: list[str]
    operands: list[str]

    @property
    def type(self) -> str:
        """The type at the opcode's end."""
        return self.parts[-1]

    @property
    def by_warp(self) -> bool:
        """Whether the lanes of a warp do this together."""
        return self.parts[0] in ("shfl", "bar") or "aligned" in self.parts


@dataclass
class Kernel:
    """A kernel's instructions, the places of its labels among them, and the bytes of its static shared arrays."""

    name: str
    instructions: list[Instruction]
    labels: dict[str, int]
    shared: dict[str, int]


def parse(text: str) -> dict[str, Kernel]:
    """The kernels of a PTX module by name."""
    kernels = {}
    for name, body in re.findall(r"\.visible \.entry (\w+)\(.*?\)\n(.*?)\n\}\n", text, re.S):
        arrays = re.findall(r"\.shared \.align \d+ \.(\w+) ([\w$]+)(?:\[(\d+)\])?", body)
        shared = {array: int(count or 1) * np.dtype(TYPES[kind]).itemsize for kind, array, count in arrays}
        kernel = Kernel(name, [], {}, shared)
        for statement in re.split(r"(?<=;)|\n", re.sub(r"//.*", "", body)):
            statement = statement.strip()
            if statement.endswith(":"):
                kernel.labels[statement[:-1]] = len(kernel.instructions)
            elif statement and statement not in "{}" and not statement.startswith("."):
                kernel.instructions.append(_instruction(statement.rstrip(";")))
        kernels[name] = kernel
    return kernels


def _instruction(statement: str) -> Instruction:
    negated, guard, opcode, rest = re.match(r"(?:@(!?)(%p\d+)\s+)?(\S+)\s*(.*)$", statement, re.S).groups()
    operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest)
    name, *modifiers = opcode.split(".")
    if name not in OPERATIONS or not KNOWN.get(name, CALCULATED).issuperset(modifiers):
        raise EmulationError(f"unknown opcode {opcode}")
    if name in ARITHMETIC and len(set(modifiers).intersection(TYPES)) > 1:
        raise EmulationError(f"unknown opcode {opcode}")  # of operands that differ
    return Instruction(guard, bool(negated), opcode, [name, *modifiers], operands)


def _bytes_of(number: int) -> np.ndarray:
    """A parameter of 8 bytes; of a shorter one the first are read."""
    return np.array([number & ((1 << 64) - 1)], np.uint64).view(np.uint8)


def room_for(sizes: list[int]) -> int:
    """The bytes of a :class:`Memory` for allocations of these sizes in bytes."""
    return 4096 + sum(size + RED_ZONE + 256 for size in sizes)


class Memory:
    """Global memory of ``size`` bytes: allocations with red zones between them."""

    def __init__(self, size: int):
        self.bytes = np.zeros(size, np.uint8)
        self.readable = np.zeros(size, bool)
        self.writable = np.zeros(size, bool)
        self.top = 4096

    def allocate(self, data: np.ndarray, writable: bool) -> int:
        """The address of a copy of ``data``."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        start, end = self.top, self.top + raw.size
        self.bytes[start:end] = raw
        self.readable[start:end] = True
        self.writable[start:end] = writable
        self.top = (end + RED_ZONE + 255) // 256 * 256
        if self.top > self.bytes.size:
            raise EmulationError(f"global memory of {self.bytes.size} bytes is too small")
        return start

    def fetch(self, address: int, shape: tuple[int, ...], dtype) -> np.ndarray:
        """A copy of the array at ``address``."""
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.bytes[address : address + count].copy().view(dtype).reshape(shape)


class LastAccess:
    """For each byte of shared memory the thread that accessed it last, and how many barriers, how many of its cluster,
    and how many of its warp, it had passed by then."""

    def __init__(self, size: int):
        self.by = np.full(size, NOBODY, np.int64)
        self.barriers, self.waits, self.syncs = (np.zeros(size, np.int64) for _ in range(3))


class Launch:
    """One launch of a kernel. Registers are arrays with an element for each thread of the grid; all else is done for an
    array of threads (their numbers in the grid) at a time."""

    def __init__(
        self,
        kernel: Kernel,
        memory: Memory,
        params: list[int | np.ndarray],
        grid: int,
        threads: int,
        dynamic_shared: int = 0,
        cluster: int = 1,
    ):
        self.kernel, self.memory = kernel, memory
        self.threads, self.cluster = threads, cluster
        self.registers: dict[str, np.ndarray] = {}
        self.symbols: dict[str, int] = {}  # addresses in shared memory, and those of parameters
        given = [x.view(np.uint8) if isinstance(x, np.ndarray) else _bytes_of(x) for x in params]
        for k in range(len(given)):
            self.symbols[f"{kernel.name}_param_{k}"] = sum(x.size for x in given[:k])
        self.params = np.concatenate([*given, np.zeros(0, np.uint8)])
        top = 0
        for name, size in (kernel.shared | {kernel.name + "_dynamic": dynamic_shared}).items():
            self.symbols[name] = (top + 15) // 16 * 16
            top = self.symbols[name] + size
        self.shared_size = top
        self.shared = np.full(grid * top, 0xFF, np.uint8)
        self.stored_by = np.full(memory.bytes.size, NOBODY, np.int32)
        self.written, self.read_ = (LastAccess(grid * top) for _ in range(2))
        everyone = np.arange(grid * threads)
        self.special = {
            "%tid.x": everyone % threads,
            "%ctaid.x": everyone // threads,
            "%nctaid.x": np.full(grid * threads, grid),
            "%lanemask_lt": (1 << everyone % WARP) - 1,
            "%cluster_ctarank": everyone // threads % cluster,
        }
        self.counters = np.zeros(grid * threads, np.int64)
        self.at_barrier = np.zeros(grid * threads, bool)
        self.barriers = np.zeros(grid * threads, np.int64)  # of its block that each thread has passed
        self.arrivals, self.waits = (np.zeros(grid * threads, np.int64) for _ in range(2))  # at the cluster's barrier
        self.releases = 0  # stores that others may wait for
        looks = [at for at, instruction in enumerate(kernel.instructions) if _looks(instruction)]
        self.looks = np.full(len(kernel.instructions) + 1, -1)  # which load that looks for one each instruction is
        self.looks[looks] = np.arange(len(looks))
        self.looked = np.full((grid * threads, len(looks)), -1)  # after how many each thread has been at each of those
        self.syncs = np.zeros(grid * threads, np.int64)  # of its warp

    def run(self) -> None:
        """Runs all threads to their ends: always the instruction that the threads furthest behind are at, of those that
        no barrier holds, and that have not looked in vain for what none has released since."""
        kernel = self.kernel
        with np.errstate(all="ignore"):
            for _ in range(MOST_STEPS):
                counters = np.where(self._held() | self._in_vain(), ENDED, self.counters)
                at = self.pick(counters)
                while (
                    at < len(kernel.instructions)
                    and kernel.instructions[at].by_warp
                    and (apart := (counters == at) & self._apart()).any()
                ):
                    counters = np.where(apart, ENDED, counters)  # until the other lanes are there
                    at = self.pick(counters)
                if at >= len(kernel.instructions):
                    if (self.counters < len(kernel.instructions)).any():
                        raise EmulationError(
                            f"{kernel.name}: threads wait for ever, at a barrier, a shuffle or for another"
                        )
                    return
                self._step(kernel.instructions[at], np.nonzero(counters == at)[0], at)
        raise EmulationError("too many steps")

    def pick(self, counters: np.ndarray) -> int:
        """The instruction that runs next, of those that threads are at."""
        return int(counters.min())

    def _in_vain(self) -> np.ndarray:
        """Which threads are at a load that they have done since the last release."""
        look = self.looks[np.minimum(self.counters, len(self.looks) - 1)]
        found = np.zeros(len(look), bool)
        at_one = np.nonzero(look >= 0)[0]
        found[at_one] = self.looked[at_one, look[at_one]] == self.releases
        return found

    def _held(self) -> np.ndarray:
        """Which threads are at a barrier where others of their block or cluster, if these have not ended, are still to
        come."""
        ended = self.counters >= len(self.kernel.instructions)
        blocks = (self.at_barrier | ended).reshape(-1, self.threads).all(1)
        passing = self.at_barrier & np.repeat(blocks, self.threads)
        places = self.counters.reshape(-1, self.threads)[passing.reshape(-1, self.threads).any(1)]
        if (places != places[:, :1]).any():
            raise EmulationError(
                f"{self.kernel.name}: threads of a block are at different barriers, or have ended before one"
            )
        self.barriers[passing] += 1
        self.at_barrier &= ~passing
        arrivals = np.where(ended, MOST_STEPS, self.arrivals).reshape(-1, self.threads * self.cluster).min(1)
        return self.at_barrier | (self.waits > np.repeat(arrivals, self.threads * self.cluster))

    def _apart(self) -> np.ndarray:
        """Which threads are elsewhere than another lane of their warp that has not ended."""
        lanes = self.counters.reshape(-1, min(WARP, self.threads))
        last = np.where(lanes == ENDED, -1, lanes).max(1)
        return np.repeat(lanes.min(1) != last, lanes.shape[1])

    def converged(self, threads: np.ndarray) -> None:
        """Raises unless all lanes of these threads' warps are among them."""
        lanes = min(WARP, self.threads)
        warps, count = np.unique(threads // lanes, return_counts=True)
        if (count < lanes).any():
            block, thread = divmod(int(warps[count < lanes][0]) * lanes, self.threads)
            raise EmulationError(
                f"{self.kernel.name}: barrier without all lanes of the warp of block {block}, thread {thread}"
            )

    def _step(self, instruction: Instruction, threads: np.ndarray, at: int) -> None:
        self.counters[threads] = at + 1
        if instruction.guard:
            holds = self.register(instruction.guard)[threads]
            threads = threads[holds != instruction.negated]
            if not threads.size:
                return
        OPERATIONS[instruction.parts[0]](self, instruction, threads)

    # ---- registers and operands

    def register(self, name: str) -> np.ndarray:
        """The register of all threads; predicates are bool, all others unsigned."""
        if name not in self.registers:
            dtype = next((dtype for prefix, dtype in REGISTERS if re.fullmatch(prefix + r"\d+", name)), None)
            if dtype is None:
                raise EmulationError(f"unknown register {name}")
            self.registers[name] = np.zeros(self.counters.size, dtype)
        return self.registers[name]

    def bits(self, operand: str, size: int, threads: np.ndarray) -> np.ndarray:
        """A register, number or address as unsigned integers of ``size`` bytes."""
        if operand in self.special:
            return self.special[operand][threads].astype(UNSIGNED[size])
        if operand.startswith("%"):
            return self.register(operand)[threads].astype(UNSIGNED[size])
        if operand in self.symbols:
            number = self.symbols[operand]
        elif operand.startswith(("0f", "0d")):
            number = int(operand[2:], 16)
        else:
            number = int(operand.rstrip("U"), 0) & ((1 << 8 * size) - 1)
        return np.full(threads.size, number, UNSIGNED[size])

    def read(self, operand: str, type: str, threads: np.ndarray) -> np.ndarray:
        """An operand as ``type``; of a pair, as two columns."""
        if type == "pred":
            return self.bits(operand, 1, threads) != 0
        if type in PAIRS:
            return self.bits(operand, 4, threads).view(TYPES[PAIRS[type]]).reshape(-1, 2)
        dtype = np.dtype(TYPES[type])
        return self.bits(operand, dtype.itemsize, threads).view(dtype)

    def write(self, name: str, values: np.ndarray, threads: np.ndarray) -> None:
        """Sets a register; two columns are packed, short integers extended as their type says."""
        register = self.register(name)
        if values.ndim == 2:
            values = np.ascontiguousarray(values).view(UNSIGNED[2 * values.itemsize]).reshape(-1)
        if values.dtype.kind not in "iub":
            values = values.view(UNSIGNED[values.itemsize])
        register[threads] = values.astype(register.dtype)

    # ---- memory

    def address(self, operand: str, threads: np.ndarray) -> np.ndarray:
        """The address that an operand like ``[%rd1+16]`` stands for."""
        base, offset = re.fullmatch(r"\[([^+]+?)(?:\+(-?\d+))?\]", operand).groups()
        return self.bits(base, 8, threads).astype(np.int64) + int(offset or 0)

    def global_places(self, operand: str, size: int, threads: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        """Where in global memory each of the ``size`` bytes lies, once checked."""
        address = self.address(operand, threads)
        self.check(address % size == 0, "misaligned global access", size, address, threads)
        self.check(
            (address >= 0) & (address + size <= allowed.size), "global access out of bounds", size, address, threads
        )
        places = address[:, None] + np.arange(size)
        self.check(allowed[places].all(1), "global access out of bounds", size, address, threads)
        return places

    def shared_places(self, operand: str, size: int, threads: np.ndarray) -> np.ndarray:
        """Where in the shared memory of all blocks each of the ``size`` bytes lies, once checked."""
        address = self.address(operand, threads)
        other, offset = address >> 32, address & 0xFFFFFFFF  # the upper half is a block of the cluster, see _mapa
        self.check(offset % size == 0, "misaligned shared access", size, offset, threads)
        self.check(offset + size <= self.shared_size, "shared access out of bounds", size, offset, threads)
        block = np.where(other > 0, other - 1, threads // self.threads)
        return (block * self.shared_size + offset)[:, None] + np.arange(size)

    def load_shared(self, operand: str, size: int, threads: np.ndarray) -> np.ndarray:
        """``size`` bytes of shared memory for each thread. Raises where another thread wrote them, with no barrier
        since."""
        places = self.shared_places(operand, size, threads)
        bytes_, by = places.ravel(), np.repeat(threads, size)
        racing = self._at_once(self.written, bytes_, by).reshape(places.shape)
        self.check(~racing.any(1), "race: reads what another thread writes,", size, places[:, 0], threads)
        several = self._at_once(self.read_, bytes_, by)
        self._note(self.read_, bytes_, by)
        self.read_.by[bytes_[several | (self.read_.by[bytes_] != by)]] = SEVERAL
        return self.shared[places]

    def claim(self, places: np.ndarray, size: int, threads: np.ndarray) -> None:
        """Says that these threads store to global memory there. Raises where another one has: if it is over an
        argument, one of them may have read what the other stored."""
        before = self.stored_by[places]
        self.check(
            ((before == NOBODY) | (before == threads[:, None])).all(1),
            "race: another thread stores",
            size,
            places[:, 0],
            threads,
        )
        self.stored_by[places] = threads[:, None]
        self.check(
            (self.stored_by[places] == threads[:, None]).all(1),
            "race: another thread stores",
            size,
            places[:, 0],
            threads,
        )

    def store_shared(self, operand: str, size: int, threads: np.ndarray, raw: np.ndarray) -> None:
        """Puts ``size`` bytes of each thread into shared memory. Raises where that changes what another thread reads or
        wrote, with no barrier since."""
        places = self.shared_places(operand, size, threads)
        bytes_, by = places.ravel(), np.repeat(threads, size)
        racing = (self._at_once(self.written, bytes_, by) | self._at_once(self.read_, bytes_, by)).reshape(places.shape)
        self.check(
            ~(racing & (self.shared[places] != raw)).any(1),
            "race: changes what another thread reads or writes,",
            size,
            places[:, 0],
            threads,
        )
        self.shared[places] = raw
        self.check((self.shared[places] == raw).all(1), "race: several threads write,", size, places[:, 0], threads)
        self._note(self.written, bytes_, by)

    def _note(self, last: LastAccess, bytes_: np.ndarray, by: np.ndarray) -> None:
        last.by[bytes_], last.barriers[bytes_], last.waits[bytes_], last.syncs[bytes_] = (
            by,
            self.barriers[by] + self.waits[by],
            self.waits[by],
            self.syncs[by],
        )

    def _at_once(self, last: LastAccess, bytes_: np.ndarray, by: np.ndarray) -> np.ndarray:
        """Whether the last access to each byte was another thread's, with no barrier that both have passed between that
        and now: of threads of several blocks, no barrier of their cluster, of those of a warp, none of the warp."""
        other, own = last.by[bytes_], bytes_ // self.shared_size
        block = np.where(other == SEVERAL, own, other // self.threads)
        within = last.barriers[bytes_] == self.barriers[by] + self.waits[by]
        lanes = min(WARP, self.threads)
        within &= (other // lanes != by // lanes) | (other == SEVERAL) | (last.syncs[bytes_] == self.syncs[by])
        across = last.waits[bytes_] == self.waits[by]
        return (other != NOBODY) & (other != by) & np.where(block == by // self.threads, within, across)

    def check(self, fine: np.ndarray, what: str, size: int, address: np.ndarray, threads: np.ndarray) -> None:
        if fine.all():
            return
        bad = np.nonzero(~fine)[0]
        block, thread = divmod(int(threads[bad[0]]), self.threads)
        raise EmulationError(
            f"{self.kernel.name}: {what} of {size} bytes at {address[bad[0]]}, block {block}, thread {thread}; {bad.size} threads"
        )


# ---- control


def launch_members(kernel: Kernel, memory: Memory, members: list[int], pointers: list[int], ints: list[int]) -> int:
    """Runs the launches of a kernel for many members that ``runtime/native/foreach.h`` describes; how many there
    are."""
    count, words, threads, shared, most, padded, _, workspace = members[:8]

    def at(place: int) -> int:
        slot, kind = divmod(place, 4)
        return pointers[slot] if kind == 0 else ints[slot] + (pointers[workspace] if kind == 2 else 0)

    found = np.array([at(place) for place in members[8 : 8 + count * (1 + words)]]).reshape(count, 1 + words)
    launches = 0
    for begin in range(0, count, most):
        here = found[begin : begin + most]
        table = np.full(padded + most * words, np.iinfo(np.int64).max)
        table[: len(here)] = here[:, 0].cumsum() - here[:, 0]
        table[padded : padded + here[:, 1:].size] = here[:, 1:].ravel()
        Launch(kernel, memory, [table], int(here[:, 0].sum()), threads, shared).run()
        launches += 1
    return launches


def _nothing(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    """Waiting for earlier kernels: they have ended."""


def _barrier(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    launch.converged(threads)
    if "warp" in instruction.parts:
        launch.syncs[threads] += 1
    else:
        launch.at_barrier[threads] = True


def _cluster_barrier(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    if "aligned" in instruction.parts:
        launch.converged(threads)
    (launch.waits if "wait" in instruction.parts else launch.arrivals)[threads] += 1


def _branch(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    launch.counters[threads] = launch.kernel.labels[instruction.operands[0]]


def _trap(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    raise EmulationError(f"thread {threads[0]} trapped")


def _return(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    launch.counters[threads] = ENDED


# ---- memory


def _access(instruction: Instruction) -> tuple[int, int]:
    """Bytes of an element, and of the whole vector."""
    size = np.dtype(TYPES[instruction.type]).itemsize
    count = next((int(part[1]) for part in instruction.parts if re.fullmatch(r"v\d", part)), 1)
    return size, size * count


def _looks(instruction: Instruction) -> bool:
    """Whether this looks for what another thread may write meanwhile."""
    return instruction.parts[0] == "ld" and "relaxed" in instruction.parts


def _load(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    target, source = instruction.operands[:2]  # a third is the cache's business
    _, whole = _access(instruction)
    if "param" in instruction.parts:
        address = launch.address(source, threads)
        inside = (address >= 0) & (address + whole <= launch.params.size)
        launch.check(inside & (address % whole == 0), "parameters are read out of bounds,", whole, address, threads)
        raw = launch.params[address[:, None] + np.arange(whole)]
    elif "global" in instruction.parts:
        if _looks(instruction):
            launch.looked[threads, launch.looks[launch.counters[threads[0]] - 1]] = launch.releases
        raw = launch.memory.bytes[launch.global_places(source, whole, threads, launch.memory.readable)]
    else:
        raw = launch.load_shared(source, whole, threads)
    values = raw.view(TYPES[instruction.type])
    for lane, name in enumerate(re.findall(r"%\w+", target)):
        launch.write(name, values[:, lane], threads)


def _store(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    target, source = instruction.operands
    size, whole = _access(instruction)
    lanes = [launch.bits(name, size, threads) for name in re.findall(r"[%\w.-]+", source)]
    raw = np.stack(lanes, 1).view(np.uint8)
    if "global" in instruction.parts:
        places = launch.global_places(target, whole, threads, launch.memory.writable)
        launch.claim(places, whole, threads)
        launch.memory.bytes[places] = raw
        launch.releases += "relaxed" in instruction.parts
    else:
        launch.store_shared(target, whole, threads, raw)


def _atomic(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    """A comparison with a swap, or an addition, on memory: one thread after the other."""
    target, address, *given = instruction.operands
    dtype = np.dtype(TYPES[instruction.type])
    if "shared" in instruction.parts:
        memory, places = launch.shared, launch.shared_places(address, dtype.itemsize, threads)
    else:
        memory = launch.memory.bytes
        places = launch.global_places(address, dtype.itemsize, threads, launch.memory.writable)
    numbers = [launch.read(operand, instruction.type, threads) for operand in given]
    before = np.empty(threads.size, dtype)
    for k, place in enumerate(places):
        cell = memory[place[0] : place[0] + dtype.itemsize].view(dtype)
        before[k] = cell[0]
        if "add" in instruction.parts:
            cell += numbers[0][k]
        elif cell[0] == numbers[0][k]:
            cell[:] = numbers[1][k]
    launch.write(target, before, threads)


def _copy(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    """cp.async: a copy from global to shared memory; its commit and wait do nothing, as it is done at once."""
    if instruction.parts[2] in ("commit_group", "wait_group", "wait_all"):
        return
    size = int(instruction.operands[2])
    places = launch.global_places(instruction.operands[1], size, threads, launch.memory.readable)
    launch.store_shared(instruction.operands[0], size, threads, launch.memory.bytes[places])


def _policy(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    """How a cache shall treat accesses: they are the same whatever it is."""
    launch.write(instruction.operands[0], np.zeros(threads.size, np.uint64), threads)


def _mapa(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    """The address of another block's shared memory: that block's number in the grid, from 1, is put in the upper
    half."""
    target, address, rank = instruction.operands
    first = threads // launch.threads // launch.cluster * launch.cluster
    block = first + launch.bits(rank, 4, threads).astype(np.int64)
    launch.write(target, launch.bits(address, 8, threads) + ((block + 1) << 32).astype(np.uint64), threads)


# ---- moves and conversions


def _shuffle(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    target, source, by = instruction.operands[:3]
    own = threads % launch.threads  # warps are those of a block, however few threads that has
    lanes, by = own % WARP, launch.read(by, "u32", threads).astype(threads.dtype)
    if "bfly" in instruction.parts:
        others = lanes ^ by
    elif "up" in instruction.parts:
        others = np.where(lanes >= by, lanes - by, lanes)
    else:
        others = by % WARP
    last = threads - own + np.minimum(own // WARP * WARP + WARP, launch.threads) - 1  # of a warp
    launch.write(target, launch.register(source)[np.minimum(threads - lanes + others, last)], threads)


def _move(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    target, source = instruction.operands
    if target.startswith("{"):  # splits a register
        names = re.findall(r"[%\w]+", target)
        whole = launch.read(source, instruction.type, threads)
        lanes = whole.view(UNSIGNED[whole.itemsize // len(names)]).reshape(threads.size, -1)
        for lane, name in enumerate(names):
            if name != "_":
                launch.write(name, lanes[:, lane], threads)
    elif source.startswith("{"):  # packs registers
        names = re.findall(r"[%\w]+", source)
        size = np.dtype(TYPES[instruction.type]).itemsize
        lanes = np.stack([launch.bits(name, size // len(names), threads) for name in names], 1)
        launch.write(target, lanes.view(UNSIGNED[size]).reshape(-1), threads)
    else:
        launch.write(target, launch.read(source, instruction.type, threads), threads)


WHOLE = {
    "rzi": np.trunc,
    "rni": np.rint,
    "rmi": np.floor,
    "rpi": np.ceil,
}  # to a whole number, that of an integer type the nearest it has


def _convert(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    target, *sources = instruction.operands
    to, of = instruction.parts[-2:]
    values = [launch.read(source, of, threads) for source in sources]
    if to in PAIRS:  # the first operand goes to the upper half
        launch.write(target, np.stack(values[::-1], 1).astype(TYPES[PAIRS[to]]), threads)
        return
    if to in FLOAT8_PAIRS:  # likewise; what is too large, infinities too, becomes the largest number
        type_ = FLOAT8_PAIRS[to]
        largest = np.float32(ml_dtypes.finfo(type_).max)
        pair = np.clip(np.stack(values[::-1], 1), -largest, largest).astype(type_).view(np.uint8)
        pair[np.isnan(np.stack(values[::-1], 1))] = 0x7F
        launch.write(target, pair, threads)
        return
    (value,) = values
    for rounded in WHOLE.keys() & set(instruction.parts):
        value = WHOLE[rounded](value)
        if np.dtype(TYPES[to]).kind != "f":
            limits = np.iinfo(TYPES[to])
            value = np.clip(np.nan_to_num(value.astype(np.float64), nan=0), limits.min, limits.max)
    launch.write(target, value.astype(TYPES[to]), threads)


def _select(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    target, first, second, condition = instruction.operands
    values = [launch.read(operand, instruction.type, threads) for operand in (first, second)]
    launch.write(target, np.where(launch.register(condition)[threads], *values), threads)


COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
UNORDERED = {f"{name}u" for name in ("eq", "ne", "lt", "le", "gt", "ge")}  # also true of NaNs


def _compare(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    target, *sources = instruction.operands
    x, y = (launch.read(source, instruction.type, threads) for source in sources)
    comparison = instruction.parts[1]
    unordered = (x != x) | (y != y)  # where one of them is NaN
    if comparison in ("nan", "num"):
        found = unordered == (comparison == "nan")
    elif comparison in UNORDERED:
        found = COMPARISONS[comparison[:-1]](x, y) | unordered
    else:
        found = COMPARISONS[comparison](x, y) & ~unordered
    for lane, name in zip(found.reshape(threads.size, -1).T, target.split("|")):  # of a pair, two predicates
        launch.write(name, lane, threads)


# ---- arithmetic: functions of the opcode's parts and of the operands' values


def _fused(parts: list[str], x, y, z):
    """In float64, where the product of two float32 is exact: rounded once, but for the sum's own rounding."""
    exact = x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)
    rounded = exact.astype(x.dtype)
    if "rm" in parts:
        return np.where(rounded > exact, np.nextafter(rounded, x.dtype.type(-np.inf)), rounded)
    return rounded


def _extreme(of_numbers: Callable, of_all: Callable) -> Callable:
    """max or min: of a NaN and a number it is the number, unless the opcode says NaN; relu takes 0 for what is
    negative."""

    def extreme(parts: list[str], x, y):
        result = of_all(x, y) if "NaN" in parts else of_numbers(x, y)
        return np.maximum(result, x.dtype.type(0)) if "relu" in parts else result

    return extreme


def _divide(parts: list[str], x, y):
    """With .full, not rounded as a division is: within 2 ulp."""
    if "full" in parts:
        return x * (np.float32(1) / y)
    return x // y if x.dtype.kind == "u" else x / y


def _shift_left(parts: list[str], x, count):
    bits = 8 * x.itemsize
    return np.where(count >= bits, 0, x << np.minimum(count, bits - 1).astype(x.dtype)).astype(x.dtype)


def _shift_right(parts: list[str], x, count):
    bits = 8 * x.itemsize
    moved = x >> np.minimum(count, bits - 1).astype(x.dtype)
    return moved if x.dtype.kind == "i" else np.where(count >= bits, 0, moved).astype(x.dtype)


def _funnel(parts: list[str], low, high, count):
    """A word of the 64 bits that two make, so many bits further."""
    pair = (high.astype(np.uint64) << np.uint64(32)) | low
    count = count.astype(np.uint64) & np.uint64(31)
    return (pair >> count if "r" in parts else pair << count >> np.uint64(32)).astype(np.uint32)


def _extract_bits(parts: list[str], x, start, count):
    """Of a signed number, the uppermost one is the sign of the result."""
    one, start, count = x.dtype.type(1), start.astype(x.dtype), count.astype(x.dtype)
    bits = (x >> start) & ((one << count) - one)
    return bits - ((bits >> (count - one)) << count) if x.dtype.kind == "i" else bits


def _insert_bits(parts: list[str], x, into, start, count):
    """The lowest bits of ``x`` in place of those of ``into``."""
    one, start = x.dtype.type(1), start.astype(x.dtype)
    mask = np.where(count < 8 * x.itemsize, (one << count.astype(x.dtype)) - one, ~x.dtype.type(0)) << start
    return (into & ~mask) | ((x << start) & mask)


def _permute(parts: list[str], x, y, selector):
    """Each half-byte of the selector names one of 8 bytes; its upper bit asks for that byte's sign instead. With .f4e,
    four bytes from the selector's on."""
    candidates = np.stack([x, y], 1).view(np.uint8)
    if "f4e" in parts:
        selector = (selector & 3) * np.uint32(0x1111) + np.uint32(0x3210)
    result = np.zeros_like(x)
    for at in range(4):
        choice = (selector >> np.uint32(4 * at)) & 15
        byte = candidates[np.arange(x.size), choice & 7]
        byte = np.where(choice & 8, np.where(byte & 128, 255, 0), byte)
        result |= byte.astype(np.uint32) << np.uint32(8 * at)
    return result


def _multiply(parts: list[str], x, y):
    """With .hi, the upper half of the product."""
    if "hi" not in parts:
        return x * y
    return (x.astype(object) * y.astype(object) >> 8 * x.itemsize).astype(x.dtype)


def _rounded(function: Callable) -> Callable:
    """In float64, then rounded: NumPy's float32 functions are less exact."""
    return lambda parts, x: function(x.astype(np.float64)).astype(x.dtype)


def _reciprocal(function: Callable) -> Callable:
    """Of ``.approx`` the float on the other side of the exact result, where that is none: code must not count on the
    last bit."""

    def compute(parts, x):
        exact = function(x.astype(np.float64))
        result = exact.astype(x.dtype)
        off = ("approx" in parts) & (result != exact) & np.isfinite(result)
        return np.where(off, np.nextafter(result, np.where(result < exact, np.inf, -np.inf).astype(x.dtype)), result)

    return compute


ARITHMETIC = {
    "add": lambda parts, x, y: x + y,
    "sub": lambda parts, x, y: x - y,
    "mul": _multiply,
    "mad": lambda parts, x, y, z: x * y + z,
    "fma": _fused,
    "neg": lambda parts, x: -x,
    "abs": lambda parts, x: np.abs(x),
    "copysign": lambda parts, sign, x: np.copysign(x, sign),
    "max": _extreme(np.fmax, np.maximum),
    "min": _extreme(np.fmin, np.minimum),
    "div": _divide,
    "rem": lambda parts, x, y: x % y,
    "rcp": _reciprocal(np.reciprocal),
    "rsqrt": _reciprocal(lambda x: 1 / np.sqrt(x)),
    "sqrt": _rounded(np.sqrt),
    "ex2": _rounded(np.exp2),
    "lg2": _rounded(np.log2),
    "and": lambda parts, x, y: x & y,
    "or": lambda parts, x, y: x | y,
    "xor": lambda parts, x, y: x ^ y,
    "not": lambda parts, x: ~x,
    "shl": _shift_left,
    "shr": _shift_right,
    "shf": _funnel,
    "bfe": _extract_bits,
    "bfi": _insert_bits,
    "prmt": _permute,
}
WIDER = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}


def _arithmetic(launch: Launch, instruction: Instruction, threads: np.ndarray) -> None:
    target, *sources = instruction.operands
    parts, type = instruction.parts, instruction.type
    types = ["u32" if parts[0] in ("shf", "prmt") else type] * len(sources)
    if parts[0] in ("shl", "shr"):
        types[1] = "u32"
    if "wide" in parts:
        types[2:] = [WIDER[type]] * len(types[2:])
    values = [launch.read(source, t, threads) for source, t in zip(sources, types)]
    dtype = values[0].dtype
    if "wide" in parts:
        dtype = np.dtype(TYPES[WIDER[type]])
        values = [value.astype(dtype) for value in values]
    result = ARITHMETIC[parts[0]](parts, *values)
    launch.write(target, result.astype(dtype), threads)


OPERATIONS = {"griddepcontrol": _nothing, "bar": _barrier, "barrier": _cluster_barrier} | dict.fromkeys(
    ARITHMETIC, _arithmetic
)
OPERATIONS |= {
    "bra": _branch,
    "ret": _return,
    "trap": _trap,
    "ld": _load,
    "st": _store,
    "cp": _copy,
    "mapa": _mapa,
    "createpolicy": _policy,
    "shfl": _shuffle,
    "atom": _atomic,
}
OPERATIONS |= {"mov": _move, "cvta": _move, "cvt": _convert, "selp": _select, "setp": _compare}

# What opcodes may have after their names: anything else, as .hi or .sat, may mean something that is not done here.
MEMORY = {"global", "shared", "shared::cluster", "param", "nc", "L1::no_allocate", "L2::cache_hint", "v2", "v4", *TYPES}
CALCULATED = {"rn", "rm", "approx", "ftz", "NaN", "lo", "wide", "pred", *TYPES, *PAIRS}
KNOWN = {
    "mul": CALCULATED | {"hi"},
    "max": CALCULATED | {"relu"},
    "min": CALCULATED | {"relu"},
    "bar": {"sync", "warp"},
    "barrier": {"cluster", "arrive", "relaxed", "wait", "aligned"},
    "griddepcontrol": {"launch_dependents", "wait"},
    "bra": {"uni"},
    "ld": MEMORY | {"relaxed", "gpu"},
    "st": MEMORY | {"relaxed", "release", "sys", "gpu"},
    "cp": {"async", "ca", "cg", "shared", "global", "L2::cache_hint", "commit_group", "wait_group", "wait_all"},
    "createpolicy": {"fractional", "L2::evict_last", "b64"},
    "atom": {"acq_rel", "relaxed", "cta", "gpu", "sys", "global", "shared", "cas", "add", *TYPES},
    "mapa": {"shared::cluster", "u64"},
    "cvta": {"to", "global", "u64"},  # addresses are those of global memory
    "prmt": {"b32", "f4e"},
    "shf": {"l", "r", "wrap", "b32"},
    "shfl": {"sync", "bfly", "up", "idx", "b32"},
    "cvt": {"rn", "satfinite", *WHOLE, *TYPES, *PAIRS, *FLOAT8_PAIRS},
    "div": {"rn", "full", "f32", "f64", "u32", "u64"},
    "rem": {"u32", "u64"},
    "setp": {"nan", "num", *COMPARISONS, *UNORDERED, *TYPES, *PAIRS},
}
