"""fusion-move-chunks: move splits above the producers of their operands."""

from __future__ import annotations

from mlirfuse.ir import ops as table
from mlirfuse.ir.effects import writes_in_place
from mlirfuse.ir.graph import Block, Graph, Op, Value, uses
from mlirfuse.passes.base import Pass, blocks, register


@register
class MoveChunks(Pass):
    """Moves a split between an elementwise producer and its only consumer above the producer, so that producer and
    consumer are adjacent and a fuser that does not support splits can still fuse them. It requires that all results of
    the split go to that consumer (an op, or a group) and that the producer is otherwise used only for its size, which
    is then taken from the size expressions. The producer's inputs are broadcast explicitly first, so that every input
    can be split; the last slice may have another size. Splits move over several producers in a row. An input with an
    equal split is not split again: the existing results are used.
    `jit` does not run this pass: fusion-graph-fuser says why.

    Before::

        %0 = "fusion.mul"(%x, %w)                    // %x: 4x6, %w: 1x6
        %1:2 = "fusion.split"(%0) {axis = 1, sizes = ["4", "2"]}
        %2 = "fusion.concatenate"(%1#1, %1#0) {axis = 1}

    After::

        %0 = "fusion.broadcast_in_dim"(%w) {shape = ["4", "6"], dims = [0, 1]}
        %1:2 = "fusion.split"(%x) {axis = 1, sizes = ["4", "2"]}
        %2:2 = "fusion.split"(%0) {axis = 1, sizes = ["4", "2"]}
        %3 = "fusion.mul"(%1#0, %2#0)
        %4 = "fusion.mul"(%1#1, %2#1)
        %5 = "fusion.concatenate"(%4, %3) {axis = 1}
    """

    name = "fusion-move-chunks"

    def run(self, graph: Graph) -> None:
        for block in list(blocks(graph)):
            _Mover(block).run()


class _Mover:
    def __init__(self, block: Block):
        self.block = block
        self.users = block.users()
        self.returned = set(block.returns)
        self.belongs: dict[Op, object] = {}  # slices of a producer belong to the consumer of the original split
        self.new: dict[Value, Value] = {}
        self.gone: set[Op] = set()
        self.before: dict[Op, list[Op]] = {}  # the replacement of a split
        self.created: set[Op] = set()  # splits and broadcasts that were added

    def run(self) -> None:
        worklist = [op for op in self.block.ops if op.name == "split"]
        while worklist:
            worklist += self.move(worklist.pop())
        self.block.ops = list(self.placed(self.block.ops))
        self.share()

    def share(self) -> None:
        """Merge equal splits of one tensor, and their broadcasts."""
        first: dict[tuple, Op] = {}
        gone: set[Op] = set()
        for op in self.block.ops:
            if op.name not in ("split", "broadcast_in_dim"):
                continue
            key = op.name, op.operands[0], op.group, repr({k: v for k, v in op.attrs.items() if k != "note"})
            other = first.setdefault(key, op)
            if other is not op and (op in self.created or other in self.created):
                gone.add(op)
                for old, new in zip(op.results, other.results):
                    self.block.replace(old, new)
        self.block.ops = [op for op in self.block.ops if op not in gone]

    def placed(self, ops):
        for op in ops:
            yield from self.placed(self.before.get(op, ()))
            if op not in self.gone:
                op.operands = [self.new.get(v, v) for v in op.operands]
                for nested in op.blocks:
                    for old, new in self.new.items():
                        nested.replace(old, new)
                yield op

    def consumer(self, split: Op) -> object | None:
        """Return the op or group that uses all results of the split, or None if there are several or one is
        returned."""
        found = {self.belongs.get(u) or u.group or u for v in split.results for u in self.users.get(v, ())}
        return found.pop() if len(found) == 1 and not self.returned & set(split.results) else None

    def move(self, split: Op) -> list[Op]:
        """Move ``split`` over its producer if that is legal; return the new splits, which may move further."""
        operand = split.operands[0]
        producer, consumer = operand.op, self.consumer(split)
        row = table.TABLE.get(producer.name) if producer is not None else None
        if (
            consumer is None
            or producer is None
            or row is None
            or row.kind != "elementwise"
            or writes_in_place(producer)
            or producer in self.gone
        ):
            return []
        others = [u for u in self.users[operand] if u is not split]
        if (
            operand in self.returned
            or any(u.name != "extent" for u in others)
            or not all(_fusible(u) for v in split.results for u in self.users.get(v, ()))
        ):
            return []
        created, splits, slices = [], [], {}
        for value in dict.fromkeys(producer.operands):
            if value.shape == ():
                slices[value] = [value] * len(split.results)
                continue
            source = value
            if value.shape != operand.shape:
                attrs = {"shape": operand.shape, "dims": tuple(range(operand.rank))}
                created.append(
                    Op("broadcast_in_dim", [value], attrs, [Value(value.dtype, operand.shape)], loc=producer.loc)
                )
                source = created[-1].result
            splits.append(
                Op("split", [source], split.attrs, [Value(value.dtype, r.shape) for r in split.results], loc=split.loc)
            )
            slices[value] = splits[-1].results
            created.append(splits[-1])
        clones = []
        for k, slice_ in enumerate(split.results):
            clone = Op(
                producer.name,
                [slices[v][k] for v in producer.operands],
                producer.attrs,
                [Value(slice_.dtype, slice_.shape)],
                loc=producer.loc,
            )
            self.new[slice_] = clone.result
            self.users[clone.result] = self.users.get(slice_, [])
            self.belongs[clone] = consumer
            clones.append(clone)
        self.before[split] = created + clones
        self.created.update(created)
        for op in created + clones:
            op.group, op.segment = producer.group, producer.segment
            for value in uses(op):
                self.users.setdefault(value, []).append(op)
        for value in dict.fromkeys(producer.operands):
            self.users[value] = [u for u in self.users[value] if u is not producer]
        self.gone |= {split, producer}
        for query in others:  # the producer's size, from the size expression
            extent = operand.shape[query.attrs["axis"]]
            query.name, query.operands, query.attrs = "size", [], {"value": extent}
        return splits


def _fusible(op: Op) -> bool:
    row = table.TABLE.get(op.name)
    return row is not None and row.kind in ("elementwise", "reduce", "shape", "index") and not writes_in_place(op)
