"""Blocks of a scan that each have a part of a row, or of a strip of columns, and tell those behind how to begin.

A block takes the next part by a ticket: those that have the parts before have begun then, so that it may wait for them.
It leaves the state of its part in the workspace and raises a flag, and waits for the flags of the parts before its own
in the same group. The last part of a group leaves the state behind the group, too, for which all of the next group
wait. So states are combined in one order, whichever block is first, and a chain has as many links as there are groups.
A small kernel lowers the flags before: no state is left from one call to the next, which several streams and replays of
a graph would share.

Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back (2016), whose blocks look back as far as
they have to, which is another order in each call.
"""

from __future__ import annotations

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Memory
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.partial import store_partial
from mlirfuse.schedule.gpu.scan_body import ScanBody

THREADS = 256  # of a block of the kernel that lowers the flags


class Links:
    """``rows``: rows, or strips of columns, each of so many ``parts``; ``points``: of the kept axes, each with a state
    for each part; ``group``: parts, a power of two."""

    def __init__(self, body: ScanBody, rows: sz.Size, points: sz.Size, parts: sz.Size, group: int):
        self.body, self.e = body, body.e
        self.rows, self.parts, self.group = rows, parts, group
        groups = sz.ceildiv(parts, group)
        self.flags = _flags(body, rows, parts, group)
        self.of_parts = body.buffers("part", sz.mul(points, parts))
        self.of_groups = body.buffers("group", sz.mul(points, groups))

    def ticket(self) -> Val:
        """Which part of all this block has: those with smaller numbers have begun."""
        body, e = self.body, self.e
        offset = body.reserve(4)
        address = body.shared_address(offset, e.const(0, dt.i32), 4)
        with body.leader(e.cmp("eq", body.thread, 0)):
            order = 'syncscope("device") monotonic'
            counter = body.k.address(self.flags, e.const(0, body.index))
            add = f"llvm.atomicrmw add {counter}, {e.const(1, dt.i32)} {order} : {body.k.pointer_type}, i32"
            body.shared_store(address, e.op(add, dt.i32))
        body.barrier()
        return body.wide(body.shared_load(address, dt.i32))

    def place(self, part: Val) -> tuple[Val, Val]:
        """A part's group, and its place there."""
        bits = self.group.bit_length() - 1
        return self.e.shr(part, bits), self.e.and_(part, self.group - 1)

    def flag_of(self, part: Val, row: Val) -> Val:
        return self.e.add(self.e.add(self.e.mul(part, self.body.size(self.rows)), row), 1)

    def flag_of_group(self, group: Val, row: Val) -> Val:
        return self.e.add(self.flag_of(group, row), self.body.size(sz.mul(self.rows, self.parts)))

    def raise_(self, flag: Val) -> None:
        """Shows what this thread has written, or seen written behind a barrier, to all that see the flag."""
        address, one = self.body.k.address(self.flags, flag), self.e.const(1, dt.i32)
        order = 'atomic syncscope("device") release {alignment = 4 : i64}'
        self.e.line(f"llvm.store {one}, {address} {order} : i32, {self.body.k.pointer_type}")

    def wait(self, flag: Val) -> None:
        e, address, zero = self.e, self.body.k.address(self.flags, flag), self.e.const(0, dt.i32)
        found, lowered = e.fresh(), e.fresh()
        order = 'atomic syncscope("device") acquire {alignment = 4 : i64}'
        e.line("scf.while : () -> () {")
        e.line(f"  {found} = llvm.load {address} {order} : {self.body.k.pointer_type} -> i32")
        e.line(f"  {lowered} = arith.cmpi eq, {found}, {zero} : i32")
        e.line(f"  scf.condition({lowered})")
        e.line("} do {")
        e.line("  scf.yield")
        e.line("}")


def _flags(body: ScanBody, rows: sz.Size, parts: sz.Size, group: int) -> Memory:
    """The ticket, and the flags of parts and of groups."""
    count = _count(rows, parts, group)
    pointer = body.args.temporary((body.scans[0], "flags"), sz.mul(count, 4))
    body.between_blocks.add(pointer)
    return Memory(pointer, (), dt.i32, 4)


def _count(rows: sz.Size, parts: sz.Size, group: int) -> sz.Size:
    return sz.mul(rows, parts + sz.ceildiv(parts, group)) + 1


def lowered(body: ScanBody, rows: sz.Size, parts: sz.Size, group: int) -> GpuKernel:
    """The kernel that lowers the flags."""
    e, count = body.e, _count(rows, parts, group)
    flags = _flags(body, rows, parts, group)
    at = e.add(e.mul(body.wide(body.block), THREADS), body.wide(body.thread))
    with body.leader(e.cmp("lt", at, body.size(count))):
        store_partial(body, flags, at, e.const(0, dt.i32))
    return body.finish(sz.ceildiv(count, THREADS))
