"""A GPU kernel that one launch runs for many members: pointers and sizes come out of a table, a parameter by value, in
which each block finds its member by the numbers of blocks before each. ``runtime/native/foreach.h`` fills it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.ptx import parameter_bytes

_THREADS = re.compile(r"^ *scf\.forall \(%thread\) in .*\{$", re.MULTILINE)


@dataclass(frozen=True)
class Table:
    """``members`` a launch, ``words`` of 8 bytes each, behind ``padded`` numbers of blocks, a power of two."""

    members: int
    words: int
    padded: int

    @staticmethod
    def of(kernel: GpuKernel, members: int, chip: str) -> Table:
        """The table for so many members, or as many of them as parameters have room for."""
        words, room = len(kernel.passed), parameter_bytes(chip) // 8
        powers = [1 << k for k in range(room.bit_length())]
        tables = [Table(min(members, padded, (room - padded) // words), words, padded) for padded in powers]
        return max(tables, key=lambda table: (table.members, -table.padded))


def of_many(kernel: GpuKernel, table: Table) -> GpuKernel:
    """``kernel``, whose parameters are those of its block's member."""
    lines = ["    %launched_block = arith.index_cast %launched : index to i64"]
    made = 0

    def value(text: str) -> str:
        nonlocal made
        made += 1
        lines.append(f"    %member_{made} = {text}")
        return f"%member_{made}"

    def word(at: str, type_: str = "i64") -> str:
        place = value(f"llvm.getelementptr %table[{at}] : (!llvm.ptr, i64) -> !llvm.ptr, i64")
        return value(f"llvm.load {place} : !llvm.ptr -> {type_}")

    member = value("arith.constant 0 : i64")
    step = table.padded // 2
    while step:  # the last one with no more blocks before it
        further = value(f"arith.addi {member}, {value(f'arith.constant {step} : i64')} : i64")
        begun = value(f"arith.cmpi sle, {word(further)}, %launched_block : i64")
        member = value(f"arith.select {begun}, {further}, {member} : i64")
        step //= 2
    own = value(f"arith.subi %launched_block, {word(member)} : i64")
    lines.append(f"    %block = arith.index_cast {own} : i64 to index")
    row = value(f"arith.muli {member}, {value(f'arith.constant {table.words} : i64')} : i64")
    for at, (name, type_) in enumerate(kernel.passed.values()):
        place = value(f"arith.addi {row}, {value(f'arith.constant {table.padded + at} : i64')} : i64")
        if type_ == "i32":
            lines.append(f"    {name} = arith.trunci {word(place)} : i64 to i32")
        else:
            where = value(f"llvm.getelementptr %table[{place}] : (!llvm.ptr, i64) -> !llvm.ptr, i64")
            lines.append(f"    {name} = llvm.load {where} : !llvm.ptr -> {type_}")
    count = table.padded + table.members * table.words
    given = f"%table: !llvm.ptr {{llvm.byval = !llvm.array<{count} x i64>, llvm.align = 8 : i64, nvvm.grid_constant}}"
    # No gpu.func: what MLIR makes of that is no kernel that takes a parameter by value.
    block = f"nvvm.maxntid = array<i32: {kernel.threads}, 1, 1>"
    head = f"  llvm.func @{kernel.name}({given}) attributes {{nvvm.kernel, {block}}} {{"
    body = kernel.body.replace("scf.forall (%block) in", "scf.forall (%launched) in", 1)
    body = _THREADS.sub(lambda found: "\n".join([found[0], *lines]), body, count=1)
    return replace(kernel, head=head, body=body, end="llvm.return")
