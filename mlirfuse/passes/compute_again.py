"""fusion-compute-again: recompute cheap values in each group rather than store them between groups."""

from __future__ import annotations

import functools
from collections.abc import Callable

from mlirfuse.analysis.axes import Axes
from mlirfuse.analysis.memory_order import against_memory_order, strided
from mlirfuse.analysis.work import cost_of
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.effects import written_memory
from mlirfuse.ir.graph import Block, Graph, Group, Layout, Op, Value
from mlirfuse.ir.order import topological
from mlirfuse.passes.base import Pass, blocks, register

_LARGE = 1024  # the assumed value of unknown sizes
_LONGEST = 32  # ops in a copy, views and constants among them
_SMALL = 4  # times the bytes of a tensor that are gathered from it, for it to be stored rather than computed for each


@register
class ComputeAgain(Pass):
    """Copies the ops that compute a shared value into each group that reads it, where the group then reads fewer bytes:
    the 16-bit tensor that was cast, the row that was broadcast. Where a group's output is a view, the group outputs the
    source instead, and each reader takes the view itself: memory then has one order of the elements, that of the ops
    that compute them. ``least``: bytes of a tensor that is worth it; ``most``: instructions of a copy for each two
    bytes saved (``cost`` of the ops), which take less time than moving the bytes; a group whose inputs and outputs
    together would exceed ``max-args`` gets no copy.

    A value that ops outside of groups read, or that is returned, is in memory anyway, and is read where that takes no
    more bytes. So is a transposed tensor that was stored to be read along other axes. Rows that are gathered from a
    tensor take as many bytes to gather again as to read, but need not be written, and memory need not hold them; a
    tensor that is smaller than what is gathered from it is stored for that.

    Before::

        %0 = "fusion.group"(%x) ({
          %a = "fusion.cast"(%p) {to = f32}
          %b = "fusion.exp"(%a)
          "fusion.yield"(%a, %b)
        })
        %1 = "fusion.matmul"(%0#1, %w)
        %2 = "fusion.group"(%0#0, %1) ({ … %a … })

    After::

        %0 = "fusion.group"(%x) ({ … "fusion.yield"(%b) })
        %1 = "fusion.matmul"(%0, %w)
        %2 = "fusion.group"(%x, %1) ({
          %a = "fusion.cast"(%p) {to = f32}
          …
        })
    """

    name = "fusion-compute-again"
    least: int = 1 << 16
    most: int = 8
    max_args: int = 128

    def run(self, graph: Graph) -> None:
        written = written_memory(graph.ops)
        replaced = {graph.args[k] for k in graph.aliases.values()}
        layouts = {v: layout for v, layout in zip(graph.args, graph.layouts) if layout is not None}
        for block in list(blocks(graph)):
            _Between(block, lambda v: v in replaced or written(v), layouts, self).run()
        graph.number()


class _Between:
    """The groups of one block."""

    def __init__(
        self, block: Block, written: Callable[[Value], bool], layouts: dict[Value, Layout], options: ComputeAgain
    ):
        self.block, self.written, self.layouts, self.options = block, written, layouts, options
        self.users = block.users()
        self.returned = set(block.returns)
        self.own = set(block.ops)
        # Copies come right before the first op that reads them, the latest copies first.
        self.place = {op: (k, 1, 0) for k, op in enumerate(block.ops)}
        self.number = 0
        self.members: dict[Group, set[Op]] = {}
        self.inputs: dict[Group, set[Value]] = {}  # the values that each group reads of others
        self.shown: dict[Group, int] = {}  # an upper bound of the results of it that others read
        for op in block.ops:
            if op.group is not None:
                read = {v for v in op.operands if v.op is None or v.op.group is not op.group}
                self.members.setdefault(op.group, set()).add(op)
                self.inputs.setdefault(op.group, set()).update(read)
                shown = sum(self.in_memory(v, op.group) for v in op.results)
                self.shown[op.group] = self.shown.get(op.group, 0) + shown

    def run(self) -> None:
        for visit in (self.show_source, self.visit):  # first the views: then the layout of all inputs is known
            for op in reversed(self.block.ops):
                if op.group is not None and _may_be_copied(op) and _bytes(op.result) >= self.options.least:
                    visit(op)
        if len(self.place) > len(self.block.ops):
            ops = sorted(self.own, key=self.place.__getitem__)
            self.block.ops = topological(ops, {op: op.group for op in ops if op.group is not None})

    def show_source(self, op: Op) -> None:
        """Copy the view ``op`` into other groups that read it, which then read its source."""
        readers, stored = self.readers(op)
        if op.row.keeps_all and not stored and not self.written(op.operands[0]):
            for group in readers:
                if not self.against_memory_order([op], op.operands, group):
                    self.copy([op], op.result, group)
            self.drop(op)

    def visit(self, op: Op) -> None:
        """Copy the ops that compute the result of ``op`` into other groups that read it, where that is cheaper."""
        value, (readers, stored) = op.result, self.readers(op)
        cone = self.cone(op) if readers else None
        if cone is None:
            return
        sources = _sources(cone)
        if any(map(self.written, sources)):
            return
        own, gathered = _bytes(value), _gathered(cone)
        unwritten = 0 if stored else own // len(readers)  # each group's share of that, if all recompute it
        for group in readers:
            read = self.inputs[group]
            more = [v for v in sources if v not in read]
            saved = own - sum(gathered.values()) - sum(_bytes(v) for v in more if v not in gathered)
            least = -unwritten if gathered else 0
            if saved <= least or not self.pays(cone, saved + unwritten) or self.against_memory_order(cone, more, group):
                continue
            if len(read) - 1 + len(more) + self.shown[group] <= self.options.max_args:
                self.copy(cone, value, group)
        self.drop(op)

    def readers(self, op: Op) -> tuple[list[Group], bool]:
        """Return the other groups that read the result of ``op``, and whether it is in memory for other users."""
        users = self.users.get(op.result, ())
        groups = dict.fromkeys(u.group for u in users if u.group is not None and u.group is not op.group)
        return list(groups), op.result in self.returned or any(u.group is None for u in users)

    def cone(self, last: Op) -> list[Op] | None:
        """Return the ops of its group that compute ``last`` from values in memory, in order; None if they are too many
        or must not be copied."""
        found: dict[Op, None] = {}
        worklist = [last]
        while worklist:
            op = worklist.pop()
            if op in found:
                continue
            found[op] = None
            if not _may_be_copied(op) or len(found) > _LONGEST:
                return None
            worklist += [v.op for v in op.operands if not self.in_memory(v, last.group) and not _is_small_table(v, op)]
        return sorted(found, key=self.place.__getitem__)

    def pays(self, cone: list[Op], saved: int) -> bool:
        """Whether moving ``saved`` bytes takes longer than computing ``cone``."""
        computed = [op for op in cone if not op.row.literal]
        if any(op.row.kind == "index" for op in cone):  # an index is computed for each row alone
            instructions = sum(cost_of(op) * _elements(op.result.numel) for op in computed)
        else:
            instructions = sum(map(cost_of, computed)) * _elements(cone[-1].result.numel)
        return 2 * instructions <= self.options.most * saved

    def against_memory_order(self, cone: list[Op], sources: list[Value], group: Group) -> bool:
        """Whether ``group`` would read one of ``sources`` with strides, unlike the result of ``cone`` and most of its
        other inputs."""
        value, axes = cone[-1].result, Axes(cone)
        along = axes.flat(value)[-1]
        if not any(strided(v, along, axes, self.layouts) for v in sources):
            return False
        axes = Axes(cone + sorted(self.members[group] & self.own, key=self.place.__getitem__))
        others = [v for v in self.inputs[group] if v is not value]
        decided = [v for v in others if v.op is None or v.op.group is None or not self.changes(v.op)]
        return against_memory_order(axes.flat(value)[-1], sources, decided, axes, self.layouts, _bytes)

    def changes(self, op: Op) -> bool:
        """Whether readers may soon read something other than the result of ``op``: its source."""
        if op.row.keeps_all:
            return True
        cone = self.cone(op)
        if cone is None:
            return False
        saved = _bytes(op.result) - sum(map(_bytes, _sources(cone)))
        return saved > 0 and self.pays(cone, saved)

    def in_memory(self, value: Value, group: Group | None) -> bool:
        """Whether ``value`` is in memory anyway for ops that are not in ``group``."""
        if value.op is None or value.op not in self.own or value.op.group is not group or value in self.returned:
            return True
        return any(user.group is not group for user in self.users.get(value, ()))

    def copy(self, cone: list[Op], value: Value, group: Group) -> None:
        """Copy ``cone`` into ``group``, to compute ``value`` there."""
        members = [user for user in self.users[value] if user.group is group]
        new: dict[Value, Value] = {}
        first = min(self.place[user] for user in members)[0]
        self.number -= len(cone)
        for number, op in enumerate(cone, self.number):
            operands = [new.get(v, v) for v in op.operands]
            copy = Op(op.name, operands, op.attrs, [Value(v.dtype, v.shape) for v in op.results], loc=op.loc)
            copy.group = group
            new.update(zip(op.results, copy.results))
            for v in dict.fromkeys(operands):
                self.users.setdefault(v, []).append(copy)
                if v.op is None or v.op.group is not group:
                    self.inputs[group].add(v)
            self.own.add(copy)
            self.members[group].add(copy)
            self.place[copy] = first, 0, number
        for user in members:
            user.operands = [new[value] if v is value else v for v in user.operands]
            self.users[value].remove(user)
        self.users[new[value]] = list(members)
        self.inputs[group].discard(value)

    def drop(self, op: Op) -> None:
        """Remove ``op`` if it has no users, and the operands' producers that are then unused."""
        if any(self.users.get(v) or v in self.returned for v in op.results) or op not in self.own:
            return
        self.own.remove(op)
        for v in dict.fromkeys(op.operands):
            self.users[v].remove(op)
            if v.op is not None and v.op.group is op.group and _may_be_copied(v.op):
                self.drop(v.op)


def _sources(cone: list[Op]) -> list[Value]:
    """Return the inputs of the ops of ``cone``."""
    return list(dict.fromkeys(v for op in cone for v in op.operands if v.op not in cone))


def _is_small_table(value: Value, op: Op) -> bool:
    """Whether ``op`` gathers from ``value`` several times as many elements as it has."""
    return op.row.kind == "index" and value is op.operands[0] and _SMALL * _bytes(value) <= _bytes(op.result)


def _gathered(cone: list[Op]) -> dict[Value, int]:
    """Return the tensors that the ops of ``cone`` gather from, with the bytes that they read of them."""
    found: dict[Value, int] = {}
    for op in cone:
        if op.row.kind == "index":
            table = op.operands[0]
            found[table] = found.get(table, 0) + _elements(op.result.numel) * table.dtype.bytes
    return found


def _may_be_copied(op: Op) -> bool:
    row = op.row
    may = row.may_be_copied or row.kind == "index"
    return may and len(op.results) == 1 and not row.barrier and not op.blocks


@functools.lru_cache(1024)
def _elements(numel: sz.Size) -> int:
    return sz.substitute(numel, dict.fromkeys(sz.symbols(numel), _LARGE))


def _bytes(value: Value) -> int:
    """Return the bytes of ``value`` for large sizes."""
    return 0 if value.dtype is None else _elements(value.numel) * value.dtype.bytes
