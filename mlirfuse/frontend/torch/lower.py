"""A graph of AOTAutograd's as one :class:`mlirfuse.ir.graph.Graph`: fusible ops as ops of the table, all others as
calls of torch's own.

Views are lowered twice. *Inside* they are shape ops, which cost a kernel nothing; *outside* they are torch's views,
which give a call the strides that it was traced with: one step from what lies in memory, however many the user took.
What nobody uses of either goes with the dead code. So a group never copies a view for a product that would have read
the tensor transposed.

What leaves a group has the strides of its fake tensor: :mod:`mlirfuse.frontend.torch.layouts`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from mlirfuse.core.errors import ShapeError
from mlirfuse.frontend.torch import collectives, input_mutations, layouts, refusals, sizes
from mlirfuse.frontend.torch import ops as _rules  # noqa: F401  (registers them)
from mlirfuse.frontend.torch.calls import Literal, Serializer, base_window, serialized, window
from mlirfuse.frontend.torch.nodes import WHY
from mlirfuse.frontend.torch.ops.rules import RULES, VIEWS, Context, Unsupported, dtype_of
from mlirfuse.frontend.torch.partition import AGAIN
from mlirfuse.frontend.torch.sizes import OpaqueSize
from mlirfuse.frontend.torch.source_lines import user_line
from mlirfuse.frontend.torch.torch_private import FakeTensor, HigherOrderOperator, OpOverload
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Block, Graph, Layout, Op, Value
from mlirfuse.ir.ops import TABLE
from mlirfuse.ir.sizes import Size

# MLIR's type, which any context reads, of what is no tensor with kernels: a number, None, a tensor of another type.
_OBJECT = "none"
_ALIGN = 16  # bytes; a call looks at the addresses that it is given


@dataclass
class Lowered:
    """``graph`` and how its arguments and results stand to those of the traced graph.

    ``device``: where its kernels run.
    ``tensors``: the places, among the inputs, of the graph's first arguments; ``constants``: what the others are.
    ``symbols``: what gives each symbol, as Python over the list of inputs, ``args``.
    ``outputs``: for each result of the traced graph the place of a result of ``graph``, a size, or a constant.
    ``outside``: calls of torch's, and why they are: op, reason, the user's line. ``saved``: the tensors that only the
    backward needs, and their bytes. ``again``: what the backward computes though the forward did: op, bytes of the
    result, why it is not saved, the user's line.
    """

    graph: Graph
    device: torch.device
    tensors: list[int]
    constants: list[Any]
    symbols: dict[str, str]
    outputs: list[tuple[str, Any]]
    outside: list[tuple[str, str, tuple[str, int] | None]] = field(default_factory=list)
    saved: list[tuple[str, int | str]] = field(default_factory=list)
    again: list[tuple[str, int | str, str, tuple[str, int] | None]] = field(default_factory=list)


def lower(module: GraphModule, name: str, visible: int | None = None, rounds: bool = False,
          donated: Iterable[int] = ()) -> Lowered:  # fmt: skip
    """``visible``: how many of the outputs, the first, are not only saved for the backward; None: all. ``rounds``: a
    result of a half type is rounded to it inside of kernels too, not where it is stored alone. ``donated``: the places
    of inputs that nobody reads after the graph."""
    lowered = _Lowering(module, name, visible, rounds).run()
    given = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    alone = layouts.alone_in_memory(given)
    lowered.graph.donated = {k for k, place in enumerate(lowered.tensors) if place in donated and place in alone}
    return lowered


@dataclass
class _Created:
    """What a node is inside of groups and outside of them."""

    inside: Any
    outside: Any


class _Lowering:
    def __init__(self, module: GraphModule, name: str, visible: int | None, rounds: bool):
        self.module, self.rounds = module, rounds
        self.visible = visible
        self.block = Block()
        self.node: Node | None = None
        self.builder = Builder(self.block, lambda: user_line(self.node))
        self.created: dict[Node, _Created] = {}
        self.device = _main_device(module)
        self.result = Lowered(Graph(name, self.block), self.device, [], [], {}, [])
        self.result.graph.device = self.device.type
        self.writes = input_mutations.at_end(module)
        self.in_place = input_mutations.in_place(self.writes)
        self.written: list[tuple[Value, Value]] = []  # an argument, and what is written into it
        self.late: list[tuple[Value, Any]] = []  # constants of the module, which become arguments at the end
        self.windows: dict[Value, tuple[Value, torch.Tensor]] = {}  # views -> what they are of, and its fake tensor

    def run(self) -> Lowered:
        placeholders = [n for n in self.module.graph.nodes if n.op == "placeholder"]
        for place, node in enumerate(placeholders):
            self.placeholder(place, node)
        for place, node in enumerate(placeholders):
            self._solve(place, node.meta.get("val"))
        for node in placeholders:
            if isinstance(node.meta.get("val"), torch.SymInt) and (size := self._size_of(node)) is not None:
                self.created[node].inside = size  # kernels compute with it; a call is given torch's number
        graph = self.result.graph  # what no kernel reads, a tensor without elements, tells sizes too
        graph.numbers |= set(self.result.symbols) - sz.symbols_of(
            [n for value in graph.args for n in value.shape or ()]
        )
        for node in self.module.graph.nodes:
            self.node = node
            if node.op == "get_attr":
                self.constant(node)
            elif node.op == "call_function":
                self.call_function(node)
                if AGAIN in node.meta:
                    again = str(node.target), _bytes(node) or 0, node.meta[AGAIN], user_line(node)
                    self.result.again.append(again)
            elif node.op == "output":
                self.output(node)
        for value, what in self.late:
            self.argument(value, what)
        self.result.constants = [what for _, what in self.late]
        graph.layouts += [None] * (len(graph.args) - len(graph.layouts))
        return self.result

    # ---- what comes in

    def placeholder(self, place: int, node: Node) -> None:
        fake = node.meta.get("val")
        if isinstance(fake, torch.SymInt):
            try:
                size = sizes.size(fake)
            except OpaqueSize:
                size = None
            if isinstance(size, sz.Expr) and size.is_symbol:
                self.result.symbols.setdefault(str(size), f"args[{place}]")
                self.result.graph.numbers.add(str(size))
        if isinstance(fake, torch.Tensor):
            self._learn(place, fake)
        value = self._value_for(fake)
        self.argument(value, fake)
        self.result.tensors.append(place)
        self.created[node] = _Created(value, value)

    def argument(self, value: Value, like: Any) -> None:
        graph = self.result.graph
        graph.args.append(value)
        layout = None
        if value.dtype is not None and isinstance(like, torch.Tensor):
            layout = Layout(sizes.shape(like.stride()), _ALIGN)
        graph.layouts.append(layout)

    def _learn(self, place: int, fake: torch.Tensor) -> None:
        for k, n in enumerate(fake.shape):
            if isinstance(n, torch.SymInt) and n.node.expr.is_symbol:
                self.result.symbols.setdefault(n.node.expr.name, f"args[{place}].shape[{k}]")

    def _solve(self, place: int, fake: Any) -> None:
        """Reads symbols that are no dimension themselves off what is computed of them: n of ``2 * n + 3``."""
        for k, n in enumerate(fake.shape if isinstance(fake, torch.Tensor) else ()):
            try:
                found = sz.affine(sizes.size(n))
            except OpaqueSize:
                continue
            if found is not None:
                name, factor, rest = found
                self.result.symbols.setdefault(name, f"(args[{place}].shape[{k}] - {rest}) // {factor}")

    def constant(self, node: Node) -> None:
        what: Any = self.module
        for part in str(node.target).split("."):
            what = getattr(what, part)
        if not isinstance(what, torch.Tensor):  # the body of a higher-order op
            self.created[node] = _Created(Literal(what), Literal(what))
            return
        value = self._value_for(what)
        self.late.append((value, what))
        self.created[node] = _Created(value, value)

    def _value_for(self, like: Any) -> Value:
        """A value of the type that kernels can read, or an object."""
        if isinstance(like, torch.Tensor):
            try:
                return Value(self.readable(like), sizes.shape(like.shape))
            except (Unsupported, OpaqueSize):
                pass
        return Value(None, type=_OBJECT)

    def readable(self, like: torch.Tensor) -> DType:
        """The element type of a tensor that kernels can read. Raises :class:`Unsupported`, :class:`OpaqueSize`."""
        if like.layout is not torch.strided or type(like) not in _PLAIN:
            raise Unsupported(f"a {type(like).__name__} of layout {like.layout}")
        if like.is_conj() or like.is_neg():
            raise Unsupported("a view that is conjugated or negated when it is read")
        if like.device != self.device:
            raise Unsupported(f"a tensor on {like.device} among those on {self.device}")
        sizes.shape(like.stride())
        if any(n == 0 for n in sizes.shape(like.shape)):
            raise Unsupported("a tensor without elements")
        return dtype_of(like.dtype)

    # ---- nodes

    def call_function(self, node: Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            whole = self.created[source]
            if isinstance(whole.outside, (list, tuple)) and isinstance(index, int):
                self.created[node] = _Created(whole.inside[index], whole.outside[index])
                return
        if node in self.writes:
            if node.args[1] in self.in_place:
                return
            target, source = (self.created[x].outside for x in node.args)
            if target.dtype is not None and source.dtype is not None:
                self.written.append((target, source))
                return
        name = str(node.target)
        reason = "no kernel of ours" if collectives.role(node) is None else "a collective"
        if name in RULES and node not in self.in_place:
            try:
                self.by_rule(node, name)
                return
            except (Unsupported, OpaqueSize, ShapeError, TypeError) as error:
                reason = str(error)
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int)):
            size = self._size_of(node)
            if size is not None:
                self.created[node] = _Created(size, size)
                return
        if name in VIEWS:
            outside = self.view(node)
        else:
            outside = self.call(node)
            why = (node.meta.get("custom") or {}).get(WHY, reason)
            self.result.outside.append((name, why, user_line(node)))
        self.created[node] = _Created(outside, outside)

    def by_rule(self, node: Node, name: str) -> None:
        """Raises where the rule does not cover the node, with the block as it was."""
        count = len(self.block.ops)
        pooled = dict(self.builder._constants)
        try:
            inside = self._inside(node, name)
        except Exception:
            del self.block.ops[count:]
            self.builder._constants = pooled
            raise
        if name in VIEWS:
            self.created[node] = _Created(inside, self.view(node))
        elif isinstance(inside, list):
            pairs = [self._stored(value, fake) for value, fake in zip(inside, node.meta["val"])]
            self.created[node] = _Created([p.inside for p in pairs], [p.outside for p in pairs])
        else:
            created = self._stored(inside, node.meta["val"])
            if _is_number(inside):  # each group computes it anew; a call is given torch's
                created.outside = self.call(node)
            self.created[node] = created

    def _inside(self, node: Node, name: str) -> Any:
        fakes = _leaves(node.meta["val"])
        for fake in fakes:
            self.readable(fake)
        args, kwargs = map_arg((node.args, node.kwargs), self._operand)
        operands = {x for x in _leaves((args, kwargs)) if isinstance(x, Value)}
        flat = [x.meta["val"] if isinstance(x, Node) else x for x in _leaves((node.args, node.kwargs))]
        if not operands and args and isinstance(args[0], (bool, int, float)) and _is_tensor(node.target, 0):
            raise Unsupported("a number in a tensor's place")
        if refusals.refused(node.target, *map_arg((node.args, node.kwargs), lambda x: x.meta["val"])):
            raise Unsupported("eager refuses such operands")
        if name not in VIEWS:  # a fresh result that does not lie without gaps
            for fake in fakes:
                if layouts.memory_order(fake) is None:
                    raise Unsupported("the result has gaps in memory")
        found = RULES[name](Context(self.builder, fakes[0], flat, self.rounds, fakes), *args, **kwargs)
        results = list(found) if isinstance(found, (list, tuple)) else [found]
        for k, fake in enumerate(fakes):
            value, shape = results[k], sizes.shape(fake.shape)
            if value.dtype is not dtype_of(fake.dtype):
                value = self.builder.cast(value, dtype_of(fake.dtype))
            if value.shape != shape:
                value = self.builder.broadcast_to(value, shape)
            if name not in VIEWS and value in operands:
                value = self.builder.op("copy", value)
            results[k] = self._rounded(value) if self.rounds else value
        return results if isinstance(node.meta["val"], (list, tuple)) else results[0]

    def _rounded(self, value: Value) -> Value:
        """``value`` as a tensor in memory would be: a kernel holds half types as float32."""
        op, dtype = value.op, value.dtype
        if dtype.compute is dtype or op is None or op.name == "cast" or op.row.only_moves:
            return value
        return self.builder.cast(self.builder.cast(value, dtype.compute), dtype)

    def _operand(self, x: Node) -> Any:
        inside = self.created[x].inside
        if isinstance(inside, Value) and inside.dtype is None:
            raise Unsupported(f"{x.name} is no tensor that kernels read")
        return inside

    def _stored(self, value: Value, fake: torch.Tensor) -> _Created:
        """A kernel's result, where it leaves the kernel: with eager's strides, those of extents of 1 too."""
        order = layouts.memory_order(fake)
        assert order is not None
        inside = packed = value
        if order != tuple(range(len(order))):
            # A copy, as a permuted view alone would be given to its readers as a view of what lies in the other order.
            copied = self.builder.op("copy", self.builder.permute(value, order))
            assert isinstance(copied, Value)
            packed, inside = copied, self.builder.permute(copied, layouts.inverse(order))
        shape, strides = sizes.shape(fake.shape), sizes.shape(fake.stride())
        rank = len(shape)
        if strides != layouts.natural_strides(shape, order):
            restride = serialized(f"lambda x, *n: [x.as_strided(n[:{rank}], n[{rank}:])]")
            given = {"sizes": (*shape, *strides)}
            outside = self._call_op("aten.as_strided.default", restride, [packed], [fake], given | {"shares": (0,)})[0]
        elif packed is not value:
            back = layouts.inverse(order)
            permute = serialized(f"lambda x: [x.permute({back})]")
            outside = self._call_op("aten.permute.default", permute, [packed], [fake], {"shares": (0,)})[0]
        else:
            outside = value
        return _Created(inside, outside)

    # ---- calls of torch's own

    def view(self, node: Node) -> Any:
        """A view as one step from the tensor that the views before it are of: its value, or the list of them."""
        try:
            return self._windows(node) or self.call(node)
        except OpaqueSize:
            return self.call(node)

    def _windows(self, node: Node) -> Any:
        source = node.args[0]
        whole = self.created[source].outside if isinstance(source, Node) else None
        fakes, returned = node.meta["val"], _is_returned(node)
        several = isinstance(fakes, (list, tuple))
        if not isinstance(whole, Value) or whole.dtype is None or (several and returned):
            return None
        root, held = self.windows.get(whole, (whole, source.meta["val"]))
        created = []
        for fake in fakes if several else [fakes]:
            if fake.dtype is not held.dtype or layouts.storage(fake) != layouts.storage(held):
                return None
            start = sizes.size(fake.storage_offset() - held.storage_offset())
            numbers = [sizes.shape(held.stride()), sizes.shape(fake.shape), sizes.shape(fake.stride()), (start,)]
            created.append(self._window(root, fake, numbers, base_window if returned else window))
            self.windows[created[-1]] = root, held
        return created if several else created[0]

    def _window(self, root: Value, fake: torch.Tensor, numbers: list[tuple[Size, ...]],
                make: Callable[..., list[Any]]) -> Value:  # fmt: skip
        """The view ``fake`` of ``root``, by ``make``; ``numbers``: strides of root, shape, strides and first element of
        the view."""
        names = {"window": make}
        attrs: dict[str, Any] = {"shares": (0,)}
        if sz.symbols_of([n for part in numbers for n in part]):
            a, b, c = len(numbers[0]), len(numbers[0]) + len(fake.shape), len(numbers[0]) + 2 * len(fake.shape)
            function = serialized(f"lambda x, *n: window(x, n[:{a}], n[{a}:{b}], n[{b}:{c}], n[{c}])", names)
            attrs["sizes"] = tuple(n for part in numbers for n in part)
        else:
            *given, (start,) = numbers
            function = serialized(f"lambda x: window(x, {', '.join(map(repr, given))}, {start})", names)
        return self._call_op("aten.as_strided.default", function, [root], [fake], attrs)[0]

    def call(self, node: Node) -> Any:
        """The node as a call. Gives its result, or the list of them."""
        serializer = Serializer(lambda x: self.created[x].outside)
        fakes = node.meta.get("val")
        several = isinstance(fakes, (list, tuple))
        target = torch.ops._c10d_functional.all_reduce_.default if collectives.in_place(node) else node.target
        function = serializer.function(self.in_place.get(node, target), node.args, node.kwargs, several)
        given = list(fakes) if several else [fakes]
        attrs: dict[str, Any] = {"sizes": tuple(serializer.sizes), "effects": _has_effects(node)}
        if node in self.in_place:
            attrs |= {"consumes": True, "shares": (0,)}
        elif not attrs["effects"]:
            attrs["shares"] = self._shares(node, serializer.operands, given)
        if (role := collectives.role(node)) is not None:
            attrs |= {"collective": role, "ranks": collectives.ranks(node) if role == "start" else None}
        created = self._call_op(str(target), function, serializer.operands, given, attrs)
        return created if several else created[0]

    def _shares(self, node: Node, operands: list[Value], fakes: Sequence[Any]) -> tuple[int, ...] | None:
        """For each result the operand in whose memory it lies, by the storages of the fake tensors."""
        known: dict[Any, int] = {}
        for source in node.all_input_nodes:
            outside = self.created[source].outside
            if isinstance(outside, (list, tuple)):
                return None
            storage = layouts.storage(source.meta.get("val"))
            if outside in operands and storage is not None:
                known.setdefault(storage, operands.index(outside))
        storages = [layouts.storage(fake) for fake in fakes]
        apart = [storage for storage in storages if storage not in known]
        if None in storages or len(set(apart)) < len(apart):
            return None
        return tuple(known.get(storage, -1) for storage in storages)

    def _call_op(self, callee: str, function: Callable[..., list[Any]], operands: list[Value], fakes: Sequence[Any],
                 given: dict[str, Any]) -> list[Value]:  # fmt: skip
        results = [self._value_for(fake) for fake in fakes]
        strides = tuple(sizes.shape(fake.stride()) if v.dtype is not None else () for v, fake in zip(results, fakes))
        attrs = TABLE["call"].attrs | {
            "callee": callee,
            "dtypes": tuple(v.dtype for v in results),
            "shapes": tuple(v.shape for v in results),
            "strides": strides,
            "function": function,
        }
        attrs |= given
        self.block.ops.append(Op("call", operands, attrs, results, loc=user_line(self.node)))
        return results

    def _size_of(self, node: Node) -> Size | None:
        fake = node.meta["val"]
        try:
            size = sizes.size(fake)
        except OpaqueSize:
            return None
        return size if sz.symbols_of([size]) <= set(self.result.symbols) else None

    # ---- what goes out

    def output(self, node: Node) -> None:
        (given,) = node.args
        returns: list[Value] = []
        places: dict[Value, int] = {}
        for k, leaf in enumerate(given if isinstance(given, (list, tuple)) else (given,)):
            what = self.created[leaf].outside if isinstance(leaf, Node) else leaf
            if isinstance(what, Value):
                if what not in places:
                    places[what] = len(returns)
                    returns.append(what)
                self.result.outputs.append(("result", places[what]))
            elif isinstance(what, sz.Expr):
                self.result.outputs.append(("size", what))
            else:
                self.result.outputs.append(("literal", what.value if isinstance(what, Literal) else what))
            if self.visible is not None and k >= self.visible and isinstance(leaf, Node):
                self._saved(leaf)
        for target, source in self.written:
            self.result.graph.aliases[len(returns)] = self.result.graph.args.index(target)
            returns.append(source)
        self.block.returns = returns

    def _saved(self, node: Node) -> None:
        nbytes = _bytes(node) if node.op != "placeholder" else None
        if nbytes is not None:
            self.result.saved.append((node.name, nbytes))


def _leaves(given: Any) -> list[Any]:
    """What stands in tuples, lists and dicts; torch's own trees take a third of the time of a whole lowering."""
    if isinstance(given, (tuple, list)):
        return [leaf for part in given for leaf in _leaves(part)]
    return _leaves(list(given.values())) if isinstance(given, dict) else [given]


def _bytes(node: Node) -> int | str | None:
    """Of a tensor, a number or an expression over the graph's sizes; None for anything else."""
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor):
        return None
    try:
        nbytes = sz.mul(sz.product(sizes.shape(fake.shape)), fake.dtype.itemsize)
    except OpaqueSize:
        return None
    return nbytes if isinstance(nbytes, int) else str(nbytes)


def _is_number(value: Value) -> bool:
    """Whether a value is one number that no argument decides."""
    op = value.op
    if op is None or value.shape:
        return False
    return op.row.kind == "create" or (op.row.kind == "elementwise" and all(map(_is_number, op.operands)))


_PLAIN = {torch.Tensor, torch.nn.Parameter, FakeTensor}


def _is_returned(node: Node) -> bool:
    """Whether the graph gives a node back, or a part of what it gives."""
    users = [*node.users, *(user for part in node.users if part.target is operator.getitem for user in part.users)]
    return any(user.op == "output" for user in users)


def _main_device(module: GraphModule) -> torch.device:
    """Where the graph's kernels run: the first GPU among its tensors' devices, else the CPU."""
    found = None
    for node in module.graph.nodes:
        for fake in _leaves(node.meta.get("val")):
            if isinstance(fake, torch.Tensor):
                if fake.device.type == "cuda":
                    return fake.device
                found = found or fake.device
    return found or torch.device("cpu")


def _is_tensor(target: Any, place: int) -> bool:
    """Whether the schema of an op has a tensor as its argument at ``place``."""
    return isinstance(target, OpOverload) and str(target._schema.arguments[place].type) == "Tensor"


def _has_effects(node: Node) -> bool:
    """Whether a call does more than compute its results."""
    if isinstance(node.target, OpOverload):
        return node.target._schema.is_mutable or node.is_impure()
    return isinstance(node.target, HigherOrderOperator)
