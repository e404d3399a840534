"""The order of a host program's groups and ops: where it is free, that in which less memory is held."""

from __future__ import annotations

import math
from collections.abc import Iterable

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.effects import memory_of, viewed
from mlirfuse.ir.graph import Block, Graph, Op, Value, uses
from mlirfuse.ir.order import Units, topological


def in_order(block: Block, graph: Graph) -> list[Op]:
    """The ops of a block of ``graph`` in the order in which a host program runs them, those of a group together. Groups
    that only compute what is written into arguments come last: nothing reads these after them, so that their kernels
    may write there. Groups that make an eighth more bytes of arguments alone come when these are needed. Those that
    make more than they read wait for what frees that much, if they are not needed before, and so does what is made for
    them alone. Of ops outside of groups that read the same value first comes that for which more is made alone."""
    groups = {op: op.group for op in block.ops if op.group is not None}
    if block is not graph.body:
        return topological(block.ops, groups)
    written, users = {graph.returns[k] for k in graph.aliases}, block.users()
    last = {op.group for op in groups if any(v in written for v in op.results)}
    last -= {op.group for op in groups for v in op.results for u in users.get(v, ()) if u.group is not op.group}
    units = Units(block.ops, groups)
    place: dict[object, float] = {unit: at for at, unit in enumerate(units.members)}
    arguments, returned = set(graph.args), set(graph.returns)
    for group in dict.fromkeys(groups.values()):
        read, given = _exchanged(set(units.members[group]), users)
        followers = [place[unit] for unit in units.followers[group]]
        if followers and read <= arguments and given.isdisjoint(returned) and _bytes(given) > _bytes(read) * 9 / 8:
            place[group] = min(followers) - 0.5
            continue
        created = {v for v in read if v.op in units.of}
        readers = _readers_of_more(created, _bytes(given) - _bytes(created), units, users) - {group}
        freed = max((place[unit] for unit in readers - units.behind(group)), default=0) if readers else 0
        if place[group] < freed < min(followers, default=math.inf):
            place[group] = freed + 0.5
            place |= dict.fromkeys(_created_for(group, units), freed + 0.25)
    for unit, after in _waiting(units, users, place).items():
        place[unit] = place[after] + 0.25
        place |= dict.fromkeys(_created_for(unit, units), place[after] + 0.125)
    return units.ordered(lambda unit: (unit in last, place[unit]))


def _waiting(units: Units, users: dict[Value, list[Op]], place: dict[object, float]) -> dict[object, object]:
    """Ops outside of groups, and behind which other one each waits: behind that which reads the same value and for
    which most is made alone, such as a padded weight, so that this does not lie beside the first one's result."""
    alone = {
        unit: sum(
            _bytes(_exchanged(set(units.members[u]), users)[1]) for u in _created_for(unit, units) if not _is_view(u)
        )
        for unit in units.members
        if isinstance(unit, Op) and unit.group is None and not _is_view(unit)
    }
    readers: dict[Value, list[Op]] = {}
    for unit in alone:
        for value in dict.fromkeys(map(memory_of, uses(unit))):
            if value.op in units.of:
                readers.setdefault(value, []).append(unit)
    found: dict[object, object] = {}
    for reading in readers.values():
        after = max(reading, key=lambda unit: alone[unit])
        waiting = [unit for unit in reading if alone[unit] < alone[after] and place[unit] < place[after]]
        if waiting:
            depending = units.behind(after) | units.before(after)
            found |= {unit: after for unit in waiting if unit not in depending}
    return found


def _exchanged(group: set[Op], users: dict[Value, list[Op]]) -> tuple[set[Value], set[Value]]:
    """What a group reads of others, and gives to others."""
    read = {v for op in group for v in uses(op) if v.op not in group}
    return read, {v for op in group for v in op.results if not users.get(v) or not group.issuperset(users[v])}


def _readers_of_more(read: set[Value], added: int, units: Units, users: dict[Value, list[Op]]) -> set[object]:
    """Who else reads what the operands ``read`` of a group that adds so many bytes were made of, if that is more: a
    weight's gradient, which is made wider, waits for the product for the other gradient, which reads the same large
    one."""
    if added <= 0:
        return set()
    makers = {op for v in read if (op := memory_of(v).op) in units.of}
    sources = {memory_of(v) for op in makers for v in uses(op) if _bytes([v]) > added}
    readers = {units.of[op] for v in sources if v.op in units.of for op in _readers(v, users)}
    return readers - {units.of[op] for op in makers}


def _created_for(unit: object, units: Units) -> list[object]:
    """The units that make what one alone reads, and views of that."""
    found = units.only_before(unit)
    return [*found, *(other for first in found if _is_view(first) for other in _created_for(first, units))]


def _is_view(unit: object) -> bool:
    """Whether it is an op outside of groups that gives a view of what it reads."""
    return isinstance(unit, Op) and unit.group is None and len(unit.results) == 1 and viewed(unit.result) is not None


def _readers(value: Value, users: dict[Value, list[Op]]) -> Iterable[Op]:
    """What reads a value, through views of it too."""
    for op in users.get(value, ()):
        if _is_view(op):
            yield from _readers(op.result, users)
        else:
            yield op


def _bytes(values: Iterable[Value]) -> int:
    """Bytes of tensors, where sizes that nobody knows are large."""
    return sum(sz.supposed(v.numel) * v.dtype.bytes for v in values if v.dtype is not None)
