"""fusion-group: choose which ops are compiled together."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.effects import is_collective, memory_order, starts, waits, writes_in_place, written_memory
from mlirfuse.ir.graph import Block, Graph, Group, Op, Value, uses
from mlirfuse.ir.order import topological
from mlirfuse.passes.base import Pass, blocks, register
from mlirfuse.passes.remove_inplace import STAYS

FUSIBLE = {"elementwise", "reduce", "scan", "accumulate", "product", "shape", "index", "create", "random"}
_ALONE = "is alone: no neighbour can be fused with it, and single-op is off"
FIRST = "the first group"
_NOTES = 8  # printed per group; further ones are counted
_FEW = 16  # at most so many scalar ops are recomputed


@register
class GroupOps(Pass):
    """Collects ops that may be fused into groups: producers are merged into their consumers from the last op to the
    first, and groups with groups, as long as no cycle through an op outside arises. Extern ops, ops that write in place
    and ops of another dialect stay outside, with the reason in ``note``. Each group has a number, and ``why`` has the
    reason that it is a group of its own; rejected merges are listed in its ``notes``.

    A producer of a collective's operand is not merged with an op that waits for another collective, where that would
    delay the start of the former.

    ``horizontal`` also merges ops that only share a tensor input; ``single-op`` creates groups of one op, and without
    it a group of a single op, or of views only, is undone: views, constants and the other ops of one composite op do
    not count; a group whose inputs and outputs together would exceed ``max-args`` is not formed. With ``views``, for
    graphs that a host program runs anyway, some reshapes are views outside of groups: of a scatter-add, if it is only a
    result, which would be a kernel that copies; and those that keep a result from the shape of a donated argument, over
    which it can be written.

    Before::

        %0 = "fusion.exp"(%x)
        %1 = "fusion.matmul"(%x, %w)
        %2 = "fusion.add"(%0, %1)
        return %2

    After::

        %0 = "fusion.matmul"(%x, %w) {note = "runs through a library"}
        %1 = "fusion.group"(%x, %0) ({
        ^bb0(%a, %b):
          %2 = "fusion.exp"(%a)
          %3 = "fusion.add"(%2, %b)
          "fusion.yield"(%3)
        }) {number = 0, why = "the first group"}
        return %1

    Constants and sizes are copied into every group that uses them.
    """

    name = "fusion-group"
    horizontal: bool = False
    single_op: bool = False
    max_args: int = 128
    views: bool = False

    def run(self, graph: Graph) -> None:
        scalars = {graph.args[k] for k in graph.scalars}
        written = written_memory(graph.ops)
        _sink_literals(graph.body, {})
        for block in list(blocks(graph)):
            donated = _donated(graph) if self.views and block is graph.body else set()
            _Grouping(block, scalars, written, self, donated).run()
        graph.number()


def left_out(op: Op) -> str | None:
    """Return why ``op`` cannot be in a group, or None if it can."""
    row = table.TABLE.get(op.name)
    if row is None:
        return "is not a tensor op"
    if writes_in_place(op):
        return "writes into its first operand"
    if row.kind == "library":
        return "runs through a library"
    if row.kind == "composite":
        return "is composite: fusion-decompose expands it"
    return None if row.kind in FUSIBLE else f"{row.kind} ops are not fused"


def _sink_literals(block: Block, around: dict[Value, Op]) -> None:
    """Copy the constants and sizes of the enclosing blocks ``around`` into nested blocks that use them: a group only
    copies those of its block."""
    own = {op.result: op for op in block.ops if op.row.literal}
    for op in block.ops:
        for nested in op.blocks:
            _sink_literals(nested, around | own)
    used = {v for op in block.ops for v in op.operands if op.row.kind != "foreign"}
    copies = []
    for value in [v for v in around if v in used]:
        literal = around[value]
        copy = Op(literal.name, [], literal.attrs, [Value(value.dtype, value.shape)], loc=literal.loc)
        copies.append(copy)
        for op in block.ops:
            if op.row.kind != "foreign":
                op.operands = [copy.result if v is value else v for v in op.operands]
    block.ops[:0] = copies


def _around_collectives(block: Block, users: dict[Value, list[Op]]) -> tuple[dict[Op, int], dict[Op, int]]:
    """Return for each op the bit set of waits before it, and the bit set of collectives that depend on it."""
    found = [op for op in block.ops if is_collective(op)]
    bits = {op: 1 << place for place, op in enumerate(found)}
    before: dict[Op, int] = {}
    after: dict[Op, int] = {}
    if not found:
        return before, after
    for op in block.ops:
        before[op] = functools.reduce(
            operator.or_, (before.get(v.op, 0) for v in uses(op)), bits[op] if waits(op) else 0
        )
    for op in reversed(block.ops):
        below = (after.get(u, 0) for v in op.results for u in users.get(v, ()))
        after[op] = functools.reduce(operator.or_, below, bits[op] if starts(op) else 0)
    return before, after


def _delays(first: _Node, second: _Node) -> bool:
    """Whether a collective that depends on ``first`` alone would be delayed by a wait that ``second`` alone depends
    on."""
    return bool(first.starts & ~second.starts and second.waits & ~first.waits)


def _computing(ops: list[Op]) -> set[Op]:
    """Return what ``ops`` compute besides views and constants: the ops of a composite op count as that op."""
    return {op.origin or op for op in ops if not op.row.view and not op.row.literal}


def _donated(graph: Graph) -> set[Value]:
    """Return the donated arguments of ``graph`` with elements in row-major order."""
    layouts = ((graph.args[k], graph.layouts[k]) for k in graph.donated)
    return {v for v, layout in layouts if layout and layout.strides == sz.contiguous_strides(v.shape)}


def _is_scatter_add(value: Value) -> bool:
    return value.op is not None and value.op.row.kind == "accumulate"


class _Node:
    """A group under construction, or an op outside: a node of the contracted graph.

    ``mask`` has the bits of its ops, ``below`` those of (at least one op of) every node that it reaches. ``followers``
    has at least one op of each direct successor, ``leaders`` of each direct predecessor. ``waits`` has the bits of the
    waits for collectives that its ops depend on, ``starts`` of the collectives that depend on them.
    """

    __slots__ = (
        "below", "followers", "fusible", "ins", "leaders", "mask", "ops", "outs", "position", "starts", "waits"
    )  # fmt: skip

    def __init__(self, index: int, op: Op, fusible: bool):
        self.position = index
        self.ops = [op]
        self.mask = 1 << index
        self.below = 0
        self.followers: set[Op] = set()
        self.leaders: set[Op] = set()
        self.ins: set[Value] = set()
        self.outs: set[Value] = set()
        self.fusible = fusible
        self.waits = self.starts = 0


class _Grouping:
    def __init__(
        self,
        block: Block,
        scalars: set[Value],
        written: Callable[[Value], bool],
        options: GroupOps,
        donated: set[Value],
    ):
        self.block = block
        self.scalars = scalars
        self.options = options
        self.returned = set(block.returns)
        self.users = block.users()
        self.node: dict[Op | None, _Node] = {}
        self.refused: list[tuple[Op, Op, str]] = []
        self.why = {op: left_out(op) for op in block.ops}
        for op in block.ops:  # a kernel's result would be a copy
            if op.row.view and written(op.operands[0]):
                self.why[op] = "is a view of a tensor that is written in place"
            elif (
                options.views
                and op.name == "reshape"
                and _is_scatter_add(op.operands[0])
                and op.result not in self.users
            ):
                self.why[op] = "is a view of a scatter-add, which is complete only after its kernel"
            elif donated and op.name == "reshape" and self._keeps_from(donated, op):
                self.why[op] = "is a view, without which a result has the shape of a donated argument"
        # Ops without inputs, and scalars computed from them, are recomputed wherever they are used: they connect no
        # groups. So are a few scalar ops on scalar arguments, and their broadcasts, where only groups use them; except
        # next to ops with unknown effects, among which every op keeps its order.
        self.order = memory_order(block.ops)
        ordered = self.order.keys() | {op for earlier in self.order.values() for op in earlier}
        given = {v for v in block.args if v.dtype is not None and not v.shape and not written(v)}
        self.free: dict[Op | None, set[Value]] = {}  # with the scalar arguments that each depends on
        on_given: dict[Op | None, int] = {}  # the number of ops of a scalar that depends on scalar arguments
        for op in block.ops:
            row = table.TABLE.get(op.name)
            if row is None or any(v.shape for v in op.operands):
                continue
            cheap = row.kind in ("create", "elementwise") or op.name == "broadcast_in_dim"
            if (
                not cheap
                or op in ordered
                or "inplace" in op.attrs
                or not all(v in given or v.op in self.free for v in op.operands)
            ):
                continue
            if any(v in given or v.op in on_given for v in op.operands):
                on_given[op] = 1 + sum(on_given.get(v.op, 0) for v in op.operands)
                users = self.users.get(op.result)
                grouped = users and op.result not in self.returned and all(self.why[u] is None for u in users)
                if on_given[op] > _FEW or not grouped or row.barrier:
                    continue
            self.free[op] = {v for x in op.operands for v in self.free.get(x.op, {x})}
        self.waits, self.starts = _around_collectives(block, self.users)

    def _keeps_from(self, donated: set[Value], reshape: Op) -> bool:
        """Whether the reshape of a result keeps it from the shape of a donated argument, or the reshape of a donated
        argument keeps it from the shape of a result. A result is what ops outside of groups read."""

        def read_outside(value: Value) -> bool:
            return value in self.returned or any(left_out(u) for u in self.users.get(value, ()))

        def alike(a: Value, b: Value) -> bool:
            return (a.dtype, a.shape) == (b.dtype, b.shape)

        given, view = reshape.operands[0], reshape.result
        if given in donated:
            ops = (op for op in self.block.ops if not op.row.view)
            return any(alike(view, v) and read_outside(v) for op in ops for v in op.results)
        users = self.users.get(view, ())
        return read_outside(view) and all(map(left_out, users)) and any(alike(given, v) for v in donated)

    def run(self) -> None:
        for op in self.block.ops:
            op.group = op.segment = None
            if not op.attrs.get("note", "").startswith(STAYS):
                op.attrs.pop("note", None)
        followers: dict[Op, list[Op]] = {}
        for op, preceding in self.order.items():
            for earlier in preceding:
                followers.setdefault(earlier, []).append(op)
        for index in range(len(self.block.ops) - 1, -1, -1):
            op = self.block.ops[index]
            if op not in self.free:
                self.place(op, index, followers.get(op, ()))
        while self.merge_neighbours():
            pass
        if self.options.horizontal:
            self.merge_siblings()
        self.label()

    def place(self, op: Op, index: int, followers) -> None:
        """Add ``op``, whose users all have nodes, and merge it with them."""
        node = self.node[op] = _Node(index, op, self.why[op] is None)
        node.followers.update(u for v in op.results for u in self.users.get(v, ()))
        node.followers.update(followers)
        for follower in {self.node[u] for u in node.followers}:
            node.below |= follower.below | follower.mask
            follower.leaders.add(op)
        node.ins = {v for x in uses(op) for v in self.free.get(x.op, {x})}
        node.outs = {v for v in op.results if v in self.returned or v in self.users}
        node.waits, node.starts = self.waits.get(op, 0), self.starts.get(op, 0)
        if node.fusible:
            self.merge_into_consumers(op)

    def merge_into_consumers(self, op: Op) -> bool:
        """Merge the group of ``op`` with those of its consumers, the next one in the program first."""
        merged = False
        consumers = {self.node[u]: u for v in op.results for u in reversed(self.users.get(v, ()))}
        for consumer, user in sorted(consumers.items(), key=lambda item: item[0].position):
            if consumer.fusible and self.node[user] is not self.node[op]:
                merged |= self.merge(op, user)
        return merged

    def merge_neighbours(self) -> bool:
        """Retry the rejected merges: another merge may have removed the cycle. Returns whether that changed
        anything."""
        again, self.refused = self.refused, []
        changed = False
        for a, b, _ in again:
            if self.node[a] is not self.node[b]:
                changed |= self.merge(a, b)
        return changed

    def merge_siblings(self) -> None:
        for value in dict.fromkeys(v for op in self.block.ops for v in op.operands):
            if value in self.scalars or value.dtype is None or value.op in self.free or not value.shape:
                continue  # reading a scalar again is free
            heads: list[Op] = []
            for user in self.users[value]:
                if user not in self.node or not self.node[user].fusible:
                    continue
                if not any(self.node[user] is self.node[head] or self.merge_sibling(head, user) for head in heads):
                    heads.append(user)

    def merge_sibling(self, a: Op, b: Op) -> bool:
        """Merge the groups of two ops that read the same, unless one of them could run while the other waits."""
        if self.node[a].waits != self.node[b].waits:
            self.refused.append((a, b, "they wait for different collectives"))
            return False
        return self.merge(a, b)

    def merge(self, a: Op, b: Op) -> bool:
        """Merge the groups of ``a`` and ``b`` if that is legal; else record the rejection."""
        first, second = self.node[a], self.node[b]
        if self.path_between(first, second) or self.path_between(second, first):
            self.refused.append((a, b, "cycle"))
            return False
        if _delays(first, second) or _delays(second, first):
            self.refused.append((a, b, "a collective would start later"))
            return False
        big, small = (first, second) if len(first.ops) >= len(second.ops) else (second, first)
        both = (big, small)

        def seen_outside(value: Value) -> bool:
            return value in self.returned or any(self.node[u] not in both for u in self.users.get(value, ()))

        gained = {v for v in small.ins if self.node.get(v.op) is not big and v not in big.ins}
        lost = small.outs & big.ins
        inner = {v for v in small.ins if self.node.get(v.op) is big and not seen_outside(v)}
        shown = {v for v in small.outs if seen_outside(v)}
        count = len(big.ins) + len(gained) - len(lost) + len(big.outs) - len(inner) + len(shown)
        if count > self.options.max_args:
            self.refused.append((a, b, f"{count} inputs and outputs together exceed max-args={self.options.max_args}"))
            return False
        self.spread(first, second)
        self.spread(second, first)
        big.ins |= gained
        big.ins -= lost
        big.outs |= shown
        big.outs -= inner
        big.below |= small.below
        big.mask |= small.mask
        big.waits |= small.waits
        big.starts |= small.starts
        big.followers |= small.followers
        big.leaders |= small.leaders
        big.ops += small.ops
        big.position = min(big.position, small.position)
        for op in small.ops:
            self.node[op] = big
        return True

    def path_between(self, source: _Node, target: _Node) -> bool:
        """Whether ``source`` reaches ``target`` through a third node: merging the two would close a cycle."""
        if not source.below & target.mask:
            return False
        source.followers = {self.node[u].ops[0] for u in source.followers}  # one op per node is enough
        for op in source.followers:
            between = self.node[op]
            if between is not source and between is not target and between.below & target.mask:
                return True
        return False

    def spread(self, source: _Node, target: _Node) -> None:
        """Propagate: nodes that reach ``target`` also reach all below ``source``."""
        new = source.below & ~(target.below | target.mask | source.mask)
        worklist = [target] if new else []
        while worklist:
            node = worklist.pop()
            node.leaders = {self.node[op].ops[0] for op in node.leaders}
            for op in node.leaders:
                leader = self.node[op]
                if leader is not source and leader is not target and leader.below & new != new:
                    leader.below |= new
                    worklist.append(leader)

    def label(self) -> None:
        """Set groups and notes on the ops, copy recomputed ops into the groups, and make the ops of each group adjacent
        in the block."""
        groups: dict[_Node, Group] = {}
        alone: dict[_Node, bool] = {}  # whether it has no more than one op's work
        for op in self.block.ops:
            node = self.node.get(op)
            if node is None:
                continue
            if node not in alone:
                alone[node] = not self.options.single_op and len(_computing(node.ops)) <= 1
            if not node.fusible:
                if op.row.kind != "foreign":
                    op.attrs.setdefault("note", self.why[op])
            elif not alone[node]:
                op.group = groups.setdefault(node, Group())
            else:
                op.attrs["note"] = _ALONE
        self.explain(groups)
        for node, group in groups.items():
            group.why = self.why_apart(node, group, first=group is next(iter(groups.values())))
        self.copy_free()
        self.block.ops = topological(self.block.ops, {op: op.group for op in self.block.ops if op.group is not None})

    def explain(self, groups: dict[_Node, Group]) -> None:
        reported: dict[tuple[_Node, _Node, bool], None] = {}
        for a, b, reason in self.refused:
            first, second = self.node[a], self.node[b]
            key = (first, second, reason == "cycle")
            if first is second or key in reported:
                continue
            reported[key] = None
            if reason == "cycle":
                reason = f"a cycle would arise through {self.between(first, second) or self.between(second, first)}"
            text = f"{a.name} was not merged with {b.name}: {reason}"
            for node in (first, second):
                if node in groups:
                    groups[node].notes.append(text)
                elif node.fusible and _ALONE in node.ops[0].attrs["note"]:
                    node.ops[0].attrs["note"] = f"is alone: {text}"
        for group in groups.values():
            if len(group.notes) > _NOTES:
                group.notes[_NOTES:] = [f"and {len(group.notes) - _NOTES} more"]

    def why_apart(self, node: _Node, group: Group, first: bool) -> str:
        """Return why a group is separate from those before it."""
        if first:
            return FIRST
        outside = [v.op for op in node.ops for v in uses(op) if v.op in self.node and not self.node[v.op].fusible]
        if outside:
            maker = min(outside, key=lambda op: self.node[op].position)
            note = maker.attrs.get("note", "is not a tensor op")
            return f"another group: it reads the result of {maker.name}, which {note}"
        return f"another group: {group.notes[0] if group.notes else 'shares no tensor with earlier groups'}"

    def between(self, source: _Node, target: _Node) -> str | None:
        """Return an op outside all groups on a path from ``source`` to ``target``, for a note."""
        at, visited = source, {source}
        while True:
            nexts = {self.node[u] for u in at.followers} - visited - {target}
            step = next((n for n in nexts if n.below & target.mask), None)
            if step is None:
                return None if at is source else "another group"
            if not step.fusible:
                return step.ops[0].name
            visited.add(step)
            at = step

    def copy_free(self) -> None:
        """Copy the constants that each group uses into it; users outside keep the original."""
        placed: dict[Op, list[Op]] = {}
        for op in reversed(self.block.ops):
            if op not in self.free:
                continue
            users: dict[Group | None, list[Op]] = {}
            for user in self.users.get(op.result, ()):
                for copy in placed.get(user, [user]):
                    users.setdefault(copy.group, []).append(copy)
            outside = None in users or op.result in self.returned or not users
            if outside and self.options.single_op and (op.result in self.returned or op.result.rank):
                op.group = Group(why="another group: computes its values from constants")
            elif outside and op.operands:
                op.attrs.setdefault("note", _ALONE)
            copies = placed[op] = [op] if outside else []
            for group, members in users.items():
                if group is None:
                    continue
                copy = op
                if copies:
                    copy = Op(op.name, op.operands, op.attrs, [Value(v.dtype, v.shape) for v in op.results], loc=op.loc)
                    for member in members:
                        member.operands = [copy.result if v is op.result else v for v in member.operands]
                copy.group = group
                copies.append(copy)
        self.block.ops = [copy for op in self.block.ops for copy in placed.get(op, [op])]
