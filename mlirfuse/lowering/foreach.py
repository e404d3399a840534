"""A GPU kernel that one launch runs for many members: pointers and sizes come out of a table, a parameter by value, in
which each block finds its member by the numbers of blocks before each. ``runtime/native/foreach.h`` fills it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from mlirfuse.ir import sizes as sz
from mlirfuse.lowering.module import GpuKernel, known_from_here
from mlirfuse.lowering.ptx import parameter_bytes

LEAST = 3  # members: fewer are launched one by one
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


@dataclass
class GpuForeach(GpuKernel):
    """A kernel for all ``members``, kernels of one code, or for as many as ``table`` says of the only one."""

    members: tuple[GpuKernel, ...] = ()
    table: Table = Table(0, 0, 0)

    @property
    def text(self) -> str:
        """The kernel as an ``llvm.func``: what MLIR makes of a ``gpu.func`` takes no parameter by value."""
        count = self.table.padded + self.table.members * self.table.words
        by_value = f"llvm.byval = !llvm.array<{count} x i64>, llvm.align = 8 : i64, nvvm.grid_constant"
        block = f"nvvm.maxntid = array<i32: {self.threads}, 1, 1>"
        head = f"  llvm.func @{self.name}(%table: !llvm.ptr {{{by_value}}}) attributes {{nvvm.kernel, {block}}} {{"
        body = self.body.replace("scf.forall (%block) in", "scf.forall (%launched) in", 1)
        body = _THREADS.sub(lambda found: "\n".join([found[0], *self._loaded()]), body, count=1)
        whole = replace(self.members[0], head=head, body=body, passed={}, end="llvm.return")
        whole.lets, whole.waits = self.lets, self.waits
        return whole.text

    def described(self, members: Sequence[Sequence[int]], workspace: int = 0) -> list[int]:
        """What ``runtime/native/foreach.h`` wants to know. ``members``: of each the :func:`place` of its number of
        blocks, and of its parameters; ``workspace``: its slot."""
        table = self.table
        head = [len(members), table.words, self.threads, self.dynamic_shared, table.members, table.padded]
        return [*head, int(self.waits != ""), workspace, *(at for member in members for at in member)]

    def _loaded(self) -> list[str]:
        """Lines that find the member of a block, and make its parameters what the table says."""
        lines = ["    %launched_block = arith.index_cast %launched : index to i64"]
        created = 0

        def value(text: str) -> str:
            nonlocal created
            created += 1
            lines.append(f"    %member_{created} = {text}")
            return f"%member_{created}"

        def word(at: str, type_: str = "i64") -> str:
            place = value(f"llvm.getelementptr %table[{at}] : (!llvm.ptr, i64) -> !llvm.ptr, i64")
            return value(f"llvm.load {place} : !llvm.ptr -> {type_}")

        member = value("arith.constant 0 : i64")
        step = self.table.padded // 2
        while step:  # the last one with no more blocks before it
            further = value(f"arith.addi {member}, {value(f'arith.constant {step} : i64')} : i64")
            begun = value(f"arith.cmpi sle, {word(further)}, %launched_block : i64")
            member = value(f"arith.select {begun}, {further}, {member} : i64")
            step //= 2
        own = value(f"arith.subi %launched_block, {word(member)} : i64")
        lines.append(f"    %block = arith.index_cast {own} : i64 to index")
        row = value(f"arith.muli {member}, {value(f'arith.constant {self.table.words} : i64')} : i64")
        for at, (name, type_) in enumerate(self.members[0].passed.values()):
            place = value(f"arith.addi {row}, {value(f'arith.constant {self.table.padded + at} : i64')} : i64")
            if type_ == "i32":
                lines.append(f"    {name} = arith.trunci {word(place)} : i64 to i32")
                continue
            early = "ptr" in type_ and self.waits == "before"
            where = value(f"llvm.getelementptr %table[{place}] : (!llvm.ptr, i64) -> !llvm.ptr, i64")
            lines.append(f"    {name}{'_early' if early else ''} = llvm.load {where} : !llvm.ptr -> {type_}")
            if early:
                lines.append(known_from_here(name, type_))
        return lines


def place(kind: str, slot: int) -> int:
    """Where a kernel's parameter of this kind is found, as ``runtime/native/foreach.h`` spells it."""
    return 4 * slot + {"pointer": 0, "temporary": 2}.get(kind, 1)


def of_many(kernels: Sequence[GpuKernel], table: Table) -> GpuForeach:
    """The kernel that does the work of all these, which have one code, or of as many as ``table`` says of the only
    one."""
    grid = sz.total(kernel.grid for kernel in kernels)
    of_first = {each.name: getattr(kernels[0], each.name) for each in fields(GpuKernel)}
    return GpuForeach(**of_first | {"grid": grid, "passed": {}}, members=tuple(kernels), table=table)
