"""A GPU kernel that one launch runs for many members. Pointers and sizes come from a table, a parameter by value, in
which each block finds its member by a prefix sum of the members' block counts. ``runtime/native/foreach.h`` fills
it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from mlirfuse.ir import sizes as sz
from mlirfuse.lowering.module import GpuKernel, known_from_here
from mlirfuse.lowering.ptx import parameter_bytes

LEAST = 3  # members; fewer are launched one by one
_THREADS = re.compile(r"^ *scf\.forall \(%thread\) in .*\{$", re.MULTILINE)


@dataclass(frozen=True)
class Table:
    """The layout of the table: ``padded`` block counts (a power of two), then ``words`` words of 8 bytes for each of
    ``members`` members per launch."""

    members: int
    words: int
    padded: int

    @staticmethod
    def of(kernel: GpuKernel, members: int, chip: str) -> Table:
        """The table for ``members`` members, or for as many of them as fit in the parameters."""
        words, room = len(kernel.passed), parameter_bytes(chip) // 8
        powers = [1 << k for k in range(room.bit_length())]
        tables = [Table(min(members, padded, (room - padded) // words), words, padded) for padded in powers]
        return max(tables, key=lambda table: (table.members, -table.padded))


@dataclass
class GpuForeach(GpuKernel):
    """A kernel for all ``members``, which have the same code; if there is only one, for as many copies as ``table``
    has."""

    members: tuple[GpuKernel, ...] = ()
    table: Table = Table(0, 0, 0)

    @property
    def text(self) -> str:
        """The kernel as an ``llvm.func``, because MLIR's lowering of ``gpu.func`` has no parameters by value."""
        count = self.table.padded + self.table.members * self.table.words
        by_value = f"llvm.byval = !llvm.array<{count} x i64>, llvm.align = 8 : i64, nvvm.grid_constant"
        block = f"nvvm.maxntid = array<i32: {self.threads}, 1, 1>"
        head = f"  llvm.func @{self.name}(%table: !llvm.ptr {{{by_value}}}) attributes {{nvvm.kernel, {block}}} {{"
        body = self.body.replace("scf.forall (%block) in", "scf.forall (%launched) in", 1)
        body = _THREADS.sub(lambda found: "\n".join([found[0], *self._loaded()]), body, count=1)
        kernel = replace(self.members[0], head=head, body=body, passed={}, end="llvm.return")
        kernel.lets, kernel.waits = self.lets, self.waits
        return kernel.text

    def described(self, members: Sequence[Sequence[int]], workspace: int = 0) -> list[int]:
        """The integers that ``runtime/native/foreach.h`` reads. ``members``: for each, the :func:`operand` of its block
        count, and of its parameters; ``workspace``: the workspace's slot."""
        table = self.table
        head = [len(members), table.words, self.threads, self.dynamic_shared, table.members, table.padded]
        return [*head, int(self.waits != ""), workspace, *(at for member in members for at in member)]

    def _loaded(self) -> list[str]:
        """The lines that find a block's member, and load its parameters from the table."""
        lines = ["    %launched_block = arith.index_cast %launched : index to i64"]
        created = 0

        def value(text: str) -> str:
            nonlocal created
            created += 1
            lines.append(f"    %member_{created} = {text}")
            return f"%member_{created}"

        def word(at: str, type_: str = "i64") -> str:
            address = value(f"llvm.getelementptr %table[{at}] : (!llvm.ptr, i64) -> !llvm.ptr, i64")
            return value(f"llvm.load {address} : !llvm.ptr -> {type_}")

        member = value("arith.constant 0 : i64")
        step = self.table.padded // 2
        while step:  # binary search for the last member that starts at or before this block
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


def operand(kind: str, slot: int) -> int:
    """A member's operand: the slot of a kernel's parameter of this kind, encoded as in ``runtime/native/foreach.h``."""
    return 4 * slot + {"pointer": 0, "temporary": 2}.get(kind, 1)


def of_many(kernels: Sequence[GpuKernel], table: Table) -> GpuForeach:
    """One kernel that does the work of ``kernels``, which have the same code; if there is only one, for as many copies
    as ``table`` has."""
    grid = sz.total(kernel.grid for kernel in kernels)
    of_first = {each.name: getattr(kernels[0], each.name) for each in fields(GpuKernel)}
    return GpuForeach(**of_first | {"grid": grid, "passed": {}}, members=tuple(kernels), table=table)
