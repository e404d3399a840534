"""fusion-remove-inplace: make programs that write into tensors functional."""

from __future__ import annotations

from mlirfuse.ir import ops as table
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.effects import has_effect, writes_in_place
from mlirfuse.ir.graph import Block, Graph, Op, Value, uses
from mlirfuse.ir.sizes import Size
from mlirfuse.passes.base import Pass, register
from mlirfuse.passes.dce import DeadCode

STAYS = "stays in place: "  # prefix of the note on ops that still write in place


@register
class RemoveInplace(Pass):
    """Replaces ops that write into their first operand (``inplace``, ``update``) by ops that compute a new value. Later
    reads of the tensor, or of a view of it, read the new value; a write through a view is a write into its source. An
    argument that is written becomes a result with ``fusion.alias``, so that the caller still sees the change.

    Before::

        %0 = "fusion.slice"(%x) {start = ["0", "4"], size = ["s0", "4"], step = [1, 1]}
        %1 = "fusion.add"(%0, %y) {inplace = true}
        return

    After::

        %0 = "fusion.slice"(%x) {start = ["0", "4"], size = ["s0", "4"], step = [1, 1]}
        %1 = "fusion.add"(%0, %y)
        %2 = "fusion.set_slice"(%x, %1) {start = ["0", "4"], size = ["s0", "4"], step = [1, 1]}
        return %2        {fusion.alias = 0}

    A write that may be visible elsewhere stays, with the reason in ``note``: into a tensor of an enclosing block, one
    that a loop carries or that is a result of control flow, one passed to an unknown op, or one whose elements overlap.
    """

    name = "fusion-remove-inplace"

    def run(self, graph: Graph) -> None:
        tensors = _Tensors(graph.body)
        if not tensors.written:
            return
        writer = _Functional(tensors)
        writer.block(graph.body)
        for k, argument in enumerate(graph.args):
            if argument not in writer.contents:
                continue
            final = writer.contents[argument]
            free = [p for p, v in enumerate(graph.returns) if v is final and p not in graph.aliases]
            if not free:
                graph.returns.append(final)
            graph.aliases[free[0] if free else len(graph.returns) - 1] = k
        DeadCode().run(graph)


class _Tensors:
    """The tensor that each value is a view of, and the tensors whose writes are visible elsewhere."""

    def __init__(self, body: Block):
        self.root: dict[Value, Value] = {}
        self.path: dict[Value, tuple] = {}  # the views from the root to the value: (op, which result)
        self.shared: dict[Value, str] = {}  # root -> why its writes stay
        self.written = False
        self.scan(body, set(), "")

    def root_of(self, value: Value) -> Value:
        return self.root.get(value, value)

    def scan(self, block: Block, local: set[Value], around: str) -> None:
        for argument in block.args:
            local.add(argument)
            if around:
                self.shared[argument] = f"the tensor is carried by {around}"
        for op in block.ops:
            if op.row.view and "inplace" not in op.attrs:
                source = op.operands[0]
                for k, value in enumerate(op.results):
                    self.root[value] = self.root_of(source)
                    self.path[value] = (*self.path.get(source, ()), (op, k))
            elif writes_in_place(op):
                self.written = True
                root = self.root_of(op.operands[0])
                self.root[op.result], self.path[op.result] = root, self.path.get(op.operands[0], ())
                if root not in local:
                    self.shared[root] = "the tensor belongs to an enclosing block"
                elif any(view.name == "broadcast_in_dim" for view, _ in self.path.get(op.operands[0], ())):
                    self.shared[root] = "elements of the view overlap"
            elif op.blocks:
                self.shared.update((v, f"the tensor is a result of {op.name}") for v in op.results)
                self.shared.update((self.root_of(v), f"the tensor is carried by {op.name}") for v in op.operands)
            elif has_effect(op):
                self.shared.update(
                    (self.root_of(v), f"{op.name} may keep the tensor") for v in [*op.operands, *op.results]
                )
            local.update(op.results)
            for nested in op.blocks:
                own: set[Value] = set()
                self.scan(nested, own, op.name)
                given_on = (root for root in map(self.root_of, nested.returns) if root not in own)
                self.shared.update((root, f"the tensor is also a result of {op.name}") for root in given_on)


class _Functional:
    """Rewrites block by block; ``contents``: the current value of each written tensor."""

    def __init__(self, tensors: _Tensors):
        self.tensors = tensors
        self.contents: dict[Value, Value] = {}
        self.read_as: dict[Value, tuple[Value, Value]] = {}  # value -> (contents of its root, its current value)

    def block(self, block: Block) -> None:
        ops, block.ops = block.ops, []
        builder = Builder(block)
        for op in ops:
            builder.loc = lambda op=op: op.loc
            if writes_in_place(op) and self.tensors.root_of(op.operands[0]) not in self.tensors.shared:
                self.write(op, builder)
                continue
            if writes_in_place(op):
                op.attrs["note"] = f"{STAYS}{self.tensors.shared[self.tensors.root_of(op.operands[0])]}"
            self.refresh(op, builder)
            block.ops.append(op)
            for nested in op.blocks:
                self.block(nested)
        builder.loc = lambda: None
        block.returns = [self.read(v, builder) for v in block.returns]

    def refresh(self, op: Op, builder: Builder) -> None:
        """Make ``op`` read the current values of its tensors; for its blocks, outer values are read before it."""
        if op.row.view and self.tensors.root_of(op.operands[0]) in self.contents:
            return  # a view is recreated where it is read
        op.operands = [self.read(v, builder) for v in op.operands]
        if op.blocks:
            for value in dict.fromkeys(uses(op)):
                new = self.read(value, builder)
                if new is not value:
                    for nested in op.blocks:
                        nested.replace(value, new)

    def read(self, value: Value, builder: Builder) -> Value:
        """Return the current value of ``value``."""
        root = self.tensors.root_of(value)
        content = self.contents.get(root)
        if content is None:
            return value
        known = self.read_as.get(value)
        if known is None or known[0] is not content:
            new = content
            for view, k in self.tensors.path.get(value, ()):
                new = _view(builder, view, k, new)
            known = self.read_as[value] = (content, new)
        return known[1]

    def write(self, op: Op, builder: Builder) -> None:
        target, *others = op.operands
        before = self.read(target, builder)
        attrs = {key: op.attrs[key] for key in table.TABLE[op.name].attrs}
        name = "set_slice" if op.name == "update" else op.name
        new = _only(builder.op(name, before, *(self.read(v, builder) for v in others), **attrs))
        root, path = self.tensors.root_of(target), self.tensors.path.get(target, ())
        sources = [self.contents.get(root, root)]
        for view, k in path[:-1]:
            sources.append(_view(builder, view, k, sources[-1]))
        for (view, k), source in zip(reversed(path), reversed(sources)):
            new = _unview(builder, view, k, source, new)
        self.contents[root] = new


def _view(builder: Builder, view: Op, k: int, source: Value) -> Value:
    created = builder.op(view.name, source, **{key: view.attrs[key] for key in table.TABLE[view.name].attrs})
    return created[k] if isinstance(created, list) else created


def _unview(builder: Builder, view: Op, k: int, source: Value, new: Value) -> Value:
    """Return ``source`` with the elements that ``view`` selects replaced by ``new``."""
    if view.name in ("reshape", "squeeze", "expand_dims"):
        return builder.reshape(new, source.shape)
    if view.name == "permute":
        return builder.permute(new, [view.attrs["dims"].index(d) for d in range(new.rank)])
    if view.name == "slice":
        return _only(
            builder.op("set_slice", source, new, **{key: view.attrs[key] for key in ("start", "size", "step")})
        )
    assert view.name == "split", view.name
    axis, sizes = view.attrs["axis"], view.attrs["sizes"]
    start: list[Size] = [0] * source.rank
    for size in sizes[:k]:
        start[axis] = start[axis] + size
    return _only(builder.op("set_slice", source, new, start=tuple(start), size=new.shape, step=(1,) * source.rank))


def _only(created: Value | list[Value]) -> Value:
    assert isinstance(created, Value)
    return created
