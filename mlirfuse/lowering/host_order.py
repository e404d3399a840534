"""Orders the groups and ops of a host program to reduce peak memory, within their dependences."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.effects import memory_of, viewed
from mlirfuse.ir.graph import Block, Graph, Op, Value, uses
from mlirfuse.ir.order import Units, topological


def in_order(block: Block, graph: Graph) -> list[Op]:
    """The ops of a block of ``graph`` in execution order, with those of a group adjacent.

    - Groups that only compute new values of arguments come last: nothing reads those arguments after them, so that
      their kernels may write in place.
    - Groups that produce at least an eighth more bytes than they read, and read only arguments, come just before their
      first user.
    - Groups that produce more than they read wait until as much is freed, unless they are needed earlier; so does
      everything that is computed only for them.
    - Of ops outside of groups that read the same value, the one that frees most of what else it reads is first, unless
      more memory is produced exclusively for another, which then is.
    """
    groups = {op: op.group for op in block.ops if op.group is not None}
    if block is not graph.body:
        return topological(block.ops, groups)
    written, users = {graph.returns[k] for k in graph.aliases}, block.users()
    last = {op.group for op in groups if any(v in written for v in op.results)}
    last -= {op.group for op in groups for v in op.results for u in users.get(v, ()) if u.group is not op.group}
    units = Units(block.ops, groups)
    position: dict[object, float] = {unit: at for at, unit in enumerate(units.members)}
    arguments, returned = set(graph.args), set(graph.returns)
    for group in dict.fromkeys(groups.values()):
        read, given = _exchanged(set(units.members[group]), users)
        followers = [position[unit] for unit in units.followers[group]]
        if followers and read <= arguments and given.isdisjoint(returned) and _bytes(given) > _bytes(read) * 9 / 8:
            position[group] = min(followers) - 0.5
            continue
        created = {v for v in read if v.op in units.of}
        readers = _readers_of_more(created, _bytes(given) - _bytes(created), units, users) - {group}
        freed = max((position[unit] for unit in readers - units.behind(group)), default=0) if readers else 0
        if position[group] < freed < min(followers, default=math.inf):
            position[group] = freed + 0.5
            position |= dict.fromkeys(_created_for(group, units), freed + 0.25)
    kept = {memory_of(v) for v in graph.returns} | {v for k, v in enumerate(graph.args) if k not in graph.donated}
    for unit, other in _freeing(units, users, position, kept).items():
        position[unit] = position[other] - 0.25
        position |= dict.fromkeys(_created_for(unit, units), position[other] - 0.375)
    for unit, after in _waiting(units, users, position).items():
        position[unit] = position[after] + 0.25
        position |= dict.fromkeys(_created_for(unit, units), position[after] + 0.125)
    return units.ordered(lambda unit: (unit in last, position[unit]))


def _freeing(
    units: Units, users: dict[Value, list[Op]], position: dict[object, float], kept: set[Value]
) -> dict[object, object]:
    """For ops outside of groups, the op before which each should be, the first that reads the same value: a weight's
    gradient, the last reader of a saved operand, so that this is not live together with the operand's gradient.
    ``kept``: memory that is not freed."""
    found: dict[object, object] = {}
    for reading in _reading_same(units).values():
        frees = {unit: _bytes(m for m in _only_read_by(unit, users) if m not in kept) for unit in reading}
        unit = max(reading, key=lambda unit: frees[unit])
        first = min(reading, key=lambda unit: position[unit])
        if frees[unit] > frees[first] and position[unit] > position[first] and unit not in units.behind(first):
            found[unit] = first
    return found


def _only_read_by(op: Op, users: dict[Value, list[Op]]) -> set[Value]:
    """The memory that ``op`` alone reads, also through views."""
    return {m for m in map(memory_of, uses(op)) if set(_readers(m, users)) == {op}}


def _waiting(units: Units, users: dict[Value, list[Op]], position: dict[object, float]) -> dict[object, object]:
    """For ops outside of groups, the op that each should follow: the one that reads the same value, and for which most
    memory is produced exclusively, e.g. a padded weight, so that this memory is not live together with the first op's
    result."""
    alone = {
        unit: sum(
            _bytes(_exchanged(set(units.members[u]), users)[1]) for u in _created_for(unit, units) if not _is_view(u)
        )
        for unit in _ops_outside(units)
    }
    found: dict[object, object] = {}
    for reading in _reading_same(units).values():
        after = max(reading, key=lambda unit: alone[unit])
        waiting = [unit for unit in reading if alone[unit] < alone[after] and position[unit] < position[after]]
        if waiting:
            depending = units.behind(after) | units.before(after)
            found |= {unit: after for unit in waiting if unit not in depending}
    return found


def _ops_outside(units: Units) -> list[Op]:
    """The ops outside of groups but views."""
    return [unit for unit in units.members if isinstance(unit, Op) and unit.group is None and not _is_view(unit)]


def _reading_same(units: Units) -> dict[Value, list[Op]]:
    """For each value that is produced here, the ops outside of groups that read its memory."""
    readers: dict[Value, list[Op]] = {}
    for unit in _ops_outside(units):
        for value in dict.fromkeys(map(memory_of, uses(unit))):
            if value.op in units.of:
                readers.setdefault(value, []).append(unit)
    return readers


def _exchanged(group: set[Op], users: dict[Value, list[Op]]) -> tuple[set[Value], set[Value]]:
    """The values that a group reads from others, and those that it gives to others."""
    read = {v for op in group for v in uses(op) if v.op not in group}
    return read, {v for op in group for v in op.results if not users.get(v) or not group.issuperset(users[v])}


def _readers_of_more(read: set[Value], added: int, units: Units, users: dict[Value, list[Op]]) -> set[object]:
    """Other units that read the sources of the operands ``read`` of a group that adds ``added`` bytes, if those sources
    are larger: a weight's gradient, which is widened, waits for the product for the other gradient, which reads the
    same large source."""
    if added <= 0:
        return set()
    makers = {op for v in read if (op := memory_of(v).op) in units.of}
    sources = {memory_of(v) for op in makers for v in uses(op) if _bytes([v]) > added}
    readers = {units.of[op] for v in sources if v.op in units.of for op in _readers(v, users)}
    return readers - {units.of[op] for op in makers}


def _created_for(unit: object, units: Units) -> list[object]:
    """The units whose results only ``unit`` reads, and views of those."""
    found = units.only_before(unit)
    return [*found, *(other for first in found if _is_view(first) for other in _created_for(first, units))]


def _is_view(unit: object) -> bool:
    """Whether it is an op outside of groups whose result is a view of its operand."""
    return isinstance(unit, Op) and unit.group is None and len(unit.results) == 1 and viewed(unit.result) is not None


def _readers(value: Value, users: dict[Value, list[Op]]) -> Iterable[Op]:
    """The ops that read a value, also through views of it."""
    for op in users.get(value, ()):
        if _is_view(op):
            yield from _readers(op.result, users)
        else:
            yield op


def _bytes(values: Iterable[Value]) -> int:
    """The total bytes of tensors; unknown sizes are assumed to be large."""
    return sum(sz.supposed(v.numel) * v.dtype.bytes for v in values if v.dtype is not None)
