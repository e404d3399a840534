"""Lowers an AOTAutograd graph to a :class:`mlirfuse.ir.graph.Graph`: fusible ops become ops of the table, all others
extern calls of torch.

Views are lowered twice. *Inside* a group they are shape ops, which are free in a kernel; *outside* they are torch
views, which give extern calls the traced strides: a single step from the base tensor, however many the user took. Dead
code elimination removes the unused version. So a group never copies a view for a matmul that could have read the tensor
transposed.

A group's results have the strides of their fake tensors: :mod:`mlirfuse.frontend.torch.fx.layouts`.
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
from mlirfuse.frontend.torch import ops as _rules  # noqa: F401  (registers them)
from mlirfuse.frontend.torch.aot import collectives, input_mutations
from mlirfuse.frontend.torch.aot.partition import WHY_RECOMPUTED
from mlirfuse.frontend.torch.as_eager import refusals
from mlirfuse.frontend.torch.attention import cudnn_attention, inductor_calls
from mlirfuse.frontend.torch.calls import Literal, Serializer, serialized, view_of, view_of_sizes
from mlirfuse.frontend.torch.fx import layouts, sizes
from mlirfuse.frontend.torch.fx.nodes import FUSES, WHY
from mlirfuse.frontend.torch.fx.sizes import OpaqueSize
from mlirfuse.frontend.torch.fx.source_lines import user_line
from mlirfuse.frontend.torch.ops.rules import RULES, VIEWS, Context, Unsupported, dtype_of, is_part
from mlirfuse.frontend.torch.rewrites import cpu_matmul
from mlirfuse.frontend.torch.torch_private import FakeTensor, HigherOrderOperator, OpOverload
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Block, Graph, Layout, Op, Value
from mlirfuse.ir.ops import TABLE
from mlirfuse.ir.sizes import Size

# MLIR's type, valid in any context, of values that kernels cannot read: numbers, None, tensors of other dtypes.
_OBJECT = "none"
_ALIGN = 16  # bytes; each call checks the addresses of its arguments


@dataclass
class Lowered:
    """``graph``, and how its arguments and results map to those of the traced graph.

    ``device``: where its kernels run.
    ``tensors``: the input indices of the graph's first arguments; ``constants``: the values of the others.
    ``symbols``: each symbol's value as a Python expression over the list of inputs, ``args``.
    ``outputs``: for each result of the traced graph the index of a result of ``graph``, a size, or a constant.
    ``visible``: the number of leading outputs that the caller of the compiled function sees. ``parts``: those of them
    that are differentiable and among several views that one op gives.
    ``outside``: extern calls: op, reason, the user's line. ``saved``: the tensors that only the backward needs, and
    their bytes. ``recomputed``: by the backward: op, bytes of the result, why it is not saved, the user's line.
    """

    graph: Graph
    device: torch.device
    tensors: list[int]
    constants: list[Any]
    symbols: dict[str, str]
    outputs: list[tuple[str, Any]]
    visible: int = 0
    parts: set[int] = field(default_factory=set)
    outside: list[tuple[str, str, tuple[str, int] | None]] = field(default_factory=list)
    saved: list[tuple[str, int | str]] = field(default_factory=list)
    recomputed: list[tuple[str, int | str, str, tuple[str, int] | None]] = field(default_factory=list)


def lower(module: GraphModule, name: str, visible: int | None = None, rounds: bool = False,
          donated: Iterable[int] = ()) -> Lowered:  # fmt: skip
    """Lowers ``module``. ``visible``: the number of leading outputs that are not just saved for the backward; None:
    all. ``rounds``: round float16 and bfloat16 results to their dtype inside kernels too, not just when stored.
    ``donated``: the indices of inputs that are dead after the graph."""
    lowered = _Lowering(module, name, visible, rounds).run()
    if name != "backward":  # gradients are autograd's
        lowered.visible = len(lowered.outputs) if visible is None else visible
    inputs = module.graph.find_nodes(op="placeholder")
    given = [node.meta.get("val") for node in inputs]
    alone = layouts.alone_in_memory(given)
    lowered.graph.hints = sizes.hinted(lowered.symbols, given) if lowered.symbols else {}
    lowered.graph.donated = {k for k, index in enumerate(lowered.tensors) if index in donated and index in alone}
    return lowered


@dataclass
class _Created:
    """A node's representations inside and outside of groups."""

    inside: Any
    outside: Any


class _Lowering:
    def __init__(self, module: GraphModule, name: str, visible: int | None, rounds: bool):
        self.module, self.rounds = module, rounds
        self.templates = inductor_calls.Templates(module)
        self.visible = visible
        self.block = Block()
        self.node: Node | None = None
        self.builder = Builder(self.block, lambda: user_line(self.node))
        self.created: dict[Node, _Created] = {}
        self.device = main_device(module)
        self.result = Lowered(Graph(name, self.block), self.device, [], [], {}, [])
        self.result.graph.device = self.device.type
        self.writes = input_mutations.at_end(module)
        self.in_place = input_mutations.in_place(self.writes)
        self.mutated: list[tuple[Value, Value]] = []  # (argument, its new value)
        self.constant_arguments: list[tuple[Value, Any]] = []  # of the module; the graph's last arguments
        self.view_bases: dict[Value, tuple[Value, torch.Tensor]] = {}  # view -> its base and the base's fake tensor
        self.detached: set[Node] = set()  # and views of these: their base's gradient is not theirs

    def run(self) -> Lowered:
        placeholders = [n for n in self.module.graph.nodes if n.op == "placeholder"]
        for index, node in enumerate(placeholders):
            self.placeholder(index, node)
        for index, node in enumerate(placeholders):
            self._symbols_of_expressions(index, node.meta.get("val"))
        for node in placeholders:
            if isinstance(node.meta.get("val"), torch.SymInt) and (size := self._size_of(node)) is not None:
                self.created[node].inside = size  # kernels compute with it; a call is given torch's number
        graph = self.result.graph  # tensors that no kernel reads, such as empty ones, define sizes too
        graph.numbers |= set(self.result.symbols) - sz.symbols_of(
            [n for value in graph.args for n in value.shape or ()]
        )
        for node in self.module.graph.nodes:
            self.node = node
            if node.op == "get_attr":
                self.constant(node)
            elif node.op == "call_function":
                self.call_function(node)
                if WHY_RECOMPUTED in node.meta:
                    recomputed = str(node.target), _bytes(node) or 0, node.meta[WHY_RECOMPUTED], user_line(node)
                    self.result.recomputed.append(recomputed)
            elif node.op == "output":
                self.output(node)
        for value, what in self.constant_arguments:
            self.argument(value, what)
        self.result.constants = [what for _, what in self.constant_arguments]
        graph.layouts += [None] * (len(graph.args) - len(graph.layouts))
        return self.result

    # ---- inputs

    def placeholder(self, index: int, node: Node) -> None:
        fake = node.meta.get("val")
        if isinstance(fake, torch.SymInt):
            try:
                size = sizes.size(fake)
            except OpaqueSize:
                size = None
            if isinstance(size, sz.Expr) and size.is_symbol:
                self.result.symbols.setdefault(str(size), f"args[{index}]")
                self.result.graph.numbers.add(str(size))
        if isinstance(fake, torch.Tensor):
            self._symbols_of_dimensions(index, fake)
        value = self._value_for(fake)
        self.argument(value, fake)
        self.result.tensors.append(index)
        self.created[node] = _Created(value, value)

    def argument(self, value: Value, like: Any) -> None:
        graph = self.result.graph
        graph.args.append(value)
        layout = None
        if value.dtype is not None and isinstance(like, torch.Tensor):
            layout = Layout(sizes.shape(like.stride()), _ALIGN)
        graph.layouts.append(layout)

    def _symbols_of_dimensions(self, index: int, fake: torch.Tensor) -> None:
        for k, n in enumerate(fake.shape):
            if isinstance(n, torch.SymInt) and n.node.expr.is_symbol:
                self.result.symbols.setdefault(n.node.expr.name, f"args[{index}].shape[{k}]")

    def _symbols_of_expressions(self, index: int, fake: Any) -> None:
        """Solves for symbols that are no dimension themselves: n from ``2 * n + 3``."""
        for k, n in enumerate(fake.shape if isinstance(fake, torch.Tensor) else ()):
            try:
                found = sz.affine(sizes.size(n))
            except OpaqueSize:
                continue
            if found is not None:
                name, factor, rest = found
                self.result.symbols.setdefault(name, f"(args[{index}].shape[{k}] - {rest}) // {factor}")

    def constant(self, node: Node) -> None:
        what: Any = self.module
        for part in str(node.target).split("."):
            what = getattr(what, part)
        if not isinstance(what, torch.Tensor):  # the body of a higher-order op
            self.created[node] = _Created(Literal(what), Literal(what))
            return
        value = self._value_for(what)
        self.constant_arguments.append((value, what))
        self.created[node] = _Created(value, value)

    def _value_for(self, like: Any) -> Value:
        """A value of a dtype that kernels can read, or an opaque object."""
        if isinstance(like, torch.Tensor):
            try:
                return Value(self.readable(like), sizes.shape(like.shape))
            except (Unsupported, OpaqueSize):
                pass
        return Value(None, type=_OBJECT)

    def readable(self, like: torch.Tensor) -> DType:
        """The element type of a tensor that kernels can read. Raises :class:`Unsupported`, :class:`OpaqueSize`."""
        if like.layout is not torch.strided or type(like) not in _STRIDED_TYPES:
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
                self.mutated.append((target, source))
                return
        name = str(node.target)
        reason = "no mlirfuse kernel" if collectives.role(node) is None else "a collective"
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
            reason = self.templates.reasons.get(node, reason)
            why = (node.meta.get("custom") or {}).get(WHY, reason)
            self.result.outside.append((name, why, user_line(node)))
        self.created[node] = _Created(outside, outside)

    def by_rule(self, node: Node, name: str) -> None:
        """Lowers the node by its rule. Raises, with the block restored, where the rule does not cover it."""
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
            pairs = [self._materialized(value, fake) for value, fake in zip(inside, node.meta["val"])]
            self.created[node] = _Created([p.inside for p in pairs], [p.outside for p in pairs])
        else:
            created = self._materialized(inside, node.meta["val"])
            if _is_number(inside):  # groups recompute it; an extern call gets torch's
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
            raise Unsupported("a number where a tensor is expected")
        if refusals.refused(node.target, *map_arg((node.args, node.kwargs), lambda x: x.meta["val"])):
            raise Unsupported("eager rejects such operands")
        if name not in VIEWS:  # a new result with gaps in memory
            for fake in fakes:
                if layouts.memory_order(fake) is None:
                    raise Unsupported("the result has gaps in memory")
        context = Context(
            self.builder, fakes[0], flat, self.rounds, fakes, bool(node.meta.get(FUSES)), _is_guarded(node)
        )
        found = RULES[name](context, *args, **kwargs)
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
        """``value`` rounded as if stored: kernels hold float16 and bfloat16 as float32."""
        op, dtype = value.op, value.dtype
        if dtype.compute is dtype or op is None or op.name == "cast" or op.row.only_moves:
            return value
        return self.builder.cast(self.builder.cast(value, dtype.compute), dtype)

    def _operand(self, x: Node) -> Any:
        inside = self.created[x].inside
        if isinstance(inside, Value) and inside.dtype is None:
            size = self._size_of(x) if isinstance(x.meta.get("val"), torch.SymInt) else None
            if size is not None:
                return size
            raise Unsupported(f"{x.name} is not a tensor that kernels can read")
        return inside

    def _materialized(self, value: Value, fake: torch.Tensor) -> _Created:
        """A kernel's result outside of the group, with eager's strides, those of extents of 1 included."""
        order = layouts.memory_order(fake)
        assert order is not None
        inside = packed = value
        if order != tuple(range(len(order))):
            # A copy, as readers would otherwise get a view of the value in its original memory order.
            copied = self.builder.op("copy", self.builder.permute(value, order))
            assert isinstance(copied, Value)
            packed, inside = copied, self.builder.permute(copied, layouts.inverse(order))
        shape, strides = sizes.shape(fake.shape), sizes.shape(fake.stride())
        rank = len(shape)
        if strides != layouts.natural_strides(shape, order):
            restride = serialized(f"lambda x, *n: x.as_strided(n[:{rank}], n[{rank}:])", single=True)
            given = {"sizes": (*shape, *strides)}
            outside = self._call_op("aten.as_strided.default", restride, [packed], [fake], given | {"shares": (0,)})[0]
        elif packed is not value:
            back = layouts.inverse(order)
            permute = serialized(f"lambda x: x.permute({back})", single=True)
            outside = self._call_op("aten.permute.default", permute, [packed], [fake], {"shares": (0,)})[0]
        else:
            outside = value
        return _Created(inside, outside)

    # ---- extern calls of torch

    def view(self, node: Node) -> Any:
        """A view as one step from its base tensor: its value, or a list of them."""
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
        root, held = self.view_bases.get(whole, (whole, source.meta["val"]))
        detached = node.target is torch.ops.aten.detach.default or source in self.detached
        if detached:
            self.detached.add(node)
        # AOTAutograd reads no base of a gradient.
        based = returned and self.result.graph.name != "backward" and not detached
        created = []
        for fake in fakes if several else [fakes]:
            if fake.dtype is not held.dtype or layouts.storage(fake) != layouts.storage(held):
                return None
            start = sizes.size(fake.storage_offset() - held.storage_offset())
            numbers = [sizes.shape(held.stride()), sizes.shape(fake.shape), sizes.shape(fake.stride()), (start,)]
            unchanged = start == 0 and numbers[0] == numbers[2] and sizes.shape(held.shape) == numbers[1]
            if unchanged and not (based or detached) and root.op is not None:  # a transpose of a transpose
                created.append(root)
                continue
            first = based and self._is_first_of_its_memory(root, held, fake)
            created.append(self._window(root, fake, numbers, based and not first))
            self.view_bases[created[-1]] = (created[-1], fake) if first else (root, held)
        return created if several else created[0]

    def _is_first_of_its_memory(self, root: Value, held: torch.Tensor, view: torch.Tensor) -> bool:
        """Whether a returned view of ``root`` is the base of other results of a forward: it has all elements of a
        tensor of this graph that is not returned itself, as decompositions create (``stack`` is a view of ``cat``). To
        autograd it is no view, and the caller may write into it."""
        returned = self.module.graph.output_node().all_input_nodes
        return (
            self.result.graph.name == "forward"
            and root.op is not None
            and sz.product(sizes.shape(held.shape)) == sz.product(sizes.shape(view.shape))
            and not any(n in self.created and self.created[n].outside is root for n in returned)
        )

    def _window(self, root: Value, fake: torch.Tensor, numbers: list[tuple[Size, ...]], based: bool) -> Value:
        """The view ``fake`` of ``root``; ``numbers``: strides of root, and shape, strides and first element of the
        view. ``based``: with ``root`` as its base."""
        attrs: dict[str, Any] = {"shares": (0,)}
        if sz.symbols_of([n for part in numbers for n in part]):
            function = view_of_sizes(len(numbers[0]), len(fake.shape), based)
            attrs["sizes"] = tuple(n for part in numbers for n in part)
        else:
            expected, shape, strides, (start,) = numbers
            function = view_of(expected, shape, strides, start, based)
        return self._call_op("aten.as_strided.default", function, [root], [fake], attrs)[0]

    def call(self, node: Node) -> Any:
        """Lowers the node to an extern call; its result, or a list of them."""
        serializer = Serializer(lambda x: self.created[x].outside)
        fakes = node.meta.get("val")
        several = isinstance(fakes, (list, tuple))
        target = torch.ops._c10d_functional.all_reduce_.default if collectives.in_place(node) else node.target
        if (template := self.templates.of(node)) is not None:
            function = serializer.function(*template, {}, True)
        else:
            instead = self.in_place.get(node) or cpu_matmul.faster(node) or cudnn_attention.with_own_plans(node)
            called = instead or target
            function = serializer.function(called, node.args, node.kwargs, several)
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
        """For each result the operand whose memory it shares, by the fake tensors' storages."""
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

    # ---- outputs

    def output(self, node: Node) -> None:
        (given,) = node.args
        returns: list[Value] = []
        result_indices: dict[Value, int] = {}
        differentiable = self.result.graph.name == "forward"
        for k, leaf in enumerate(given if isinstance(given, (list, tuple)) else (given,)):
            what = self.created[leaf].outside if isinstance(leaf, Node) else leaf
            if isinstance(what, Value):
                if what not in result_indices:
                    result_indices[what] = len(returns)
                    returns.append(what)
                self.result.outputs.append(("result", result_indices[what]))
                if differentiable and (self.visible is None or k < self.visible) and is_part(leaf):
                    self.result.parts.add(k)
            elif isinstance(what, sz.Expr):
                self.result.outputs.append(("size", what))
            else:
                self.result.outputs.append(("literal", what.value if isinstance(what, Literal) else what))
            if self.visible is not None and k >= self.visible and isinstance(leaf, Node):
                self._saved(leaf)
        for target, source in self.mutated:
            self.result.graph.aliases[len(returns)] = self.result.graph.args.index(target)
            returns.append(source)
        self.block.returns = returns

    def _saved(self, node: Node) -> None:
        nbytes = _bytes(node) if node.op != "placeholder" else None
        if nbytes is not None:
            self.result.saved.append((node.name, nbytes))


def _leaves(given: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts; torch's pytrees would take a third of the lowering's time."""
    if isinstance(given, (tuple, list)):
        return [leaf for part in given for leaf in _leaves(part)]
    return _leaves(list(given.values())) if isinstance(given, dict) else [given]


def _bytes(node: Node) -> int | str | None:
    """The bytes of a tensor, a number or an expression over the graph's sizes; None for anything else."""
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor):
        return None
    try:
        nbytes = sz.mul(sz.product(sizes.shape(fake.shape)), fake.dtype.itemsize)
    except OpaqueSize:
        return None
    return nbytes if isinstance(nbytes, int) else str(nbytes)


def _is_number(value: Value) -> bool:
    """Whether a value is a scalar that does not depend on arguments."""
    op = value.op
    if op is None or value.shape:
        return False
    return op.row.kind == "create" or (op.row.kind == "elementwise" and all(map(_is_number, op.operands)))


_STRIDED_TYPES = {torch.Tensor, torch.nn.Parameter, FakeTensor}


def _is_returned(node: Node) -> bool:
    """Whether the graph returns a node, or a part of its result."""
    users = [*node.users, *(user for part in node.users if part.target is operator.getitem for user in part.users)]
    return any(user.op == "output" for user in users)


def _is_guarded(node: Node) -> bool:
    """Whether the graph adds a positive number to a node's result, or to the first of its results, and otherwise at
    most scales it."""
    first = [part for part in node.users if part.target is operator.getitem and part.args[1] == 0]
    users = [user for source in first or [node] for user in source.users]
    added = [user for user in users if user.target is torch.ops.aten.add.Tensor and _number_of(user) > 0]
    scaled = [user for user in users if user.target is torch.ops.aten.mul.Tensor and _number_of(user)]
    return bool(added) and len(added) + len(scaled) == len(users)


def _number_of(node: Node) -> float:
    """The Python number that is the second operand of a node; 0 where there is none."""
    return node.args[1] if isinstance(node.args[1], (int, float)) else 0


def main_device(module: GraphModule) -> torch.device:
    """The device of the graph's kernels: the first GPU among its tensors' devices, else the CPU."""
    found = None
    for node in module.graph.nodes:
        for fake in _leaves(node.meta.get("val")):
            if isinstance(fake, torch.Tensor):
                if fake.device.type == "cuda":
                    return fake.device
                found = found or fake.device
    return found or torch.device("cpu")


def _is_tensor(target: Any, index: int) -> bool:
    """Whether the op's schema has a tensor as its argument at ``index``."""
    return isinstance(target, OpOverload) and str(target._schema.arguments[index].type) == "Tensor"


def _has_effects(node: Node) -> bool:
    """Whether a call has side effects."""
    if isinstance(node.target, OpOverload):
        return node.target._schema.is_mutable or (node.is_impure() and not _drops_nothing(node))
    return isinstance(node.target, HigherOrderOperator) and node.target not in inductor_calls.GRAPHS


def _drops_nothing(node: Node) -> bool:
    """Whether ``node`` is an attention that draws no random numbers: torch tags these ops as random, whatever share of
    the weights they drop."""
    for k, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[k] if k < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return given == 0
    return False
