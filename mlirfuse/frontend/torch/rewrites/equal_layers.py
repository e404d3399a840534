"""Traces equal layers once.

AOTAutograd spends half a millisecond per op, most of a first step, and a model's layers are mostly the same ops on
tensors of the same shapes. In Dynamo's graph each such layer becomes one call, the layer is traced by itself, and its
ops are put back before anything else reads the joint graph::

    h1 = layer 0's ops (x, w0, b0)                    (h1,) = mlirfuse::layer("5f3a…", 0, [x, w0, b0])
    h2 = layer 1's ops (h1, w1, b1)           ->      (h2,) = mlirfuse::layer("5f3a…", 1, [h1, w1, b1])

A layer is what a module in a list of modules computes (``nn_module_stack`` names it). A layer is excluded if it depends
on the whole graph: symbolic sizes, results that are views of its inputs, writes into its inputs.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from mlirfuse.frontend.torch.fx import layouts
from mlirfuse.frontend.torch.torch_private import (
    AutoDispatchBelowAutograd,
    BypassAOTAutogradCache,
    FakeTensor,
    HigherOrderOperator,
    OpOverload,
    TracingContext,
    aot_module_simplified,
    check_node_safe,
    detect_fake_mode,
    disable_current_modes,
    is_traceable_wrapper_subclass,
    pytree,
    tracing,
)

_MIN_OPS = 10  # minimum ops of a layer; smaller ones save little
_LIST_ELEMENT = re.compile(r"\d+(?:'?\])?$")  # the path of a module in a list: "L['self'].layers.3"
# Calls that change how later ops are traced, besides autocast and grad mode.
_STATE_CHANGES = re.compile(r"(_enter|_exit|_increment_nesting|_decrement_nesting|inference_mode|_hooks)")
_IN_PLACE_NAMES = {"batch_norm", "instance_norm", "setitem"}

_library = torch.library.Library("mlirfuse", "FRAGMENT")
_library.define("layer(str name, int call, bool training, Tensor[] given) -> Tensor[]")
_library.define("layer_backward(str name, int call, Tensor[] tangents) -> Tensor[]")
LAYER = torch.ops.mlirfuse.layer.default
BACKWARD = torch.ops.mlirfuse.layer_backward.default


class LayerNotTraceable(Exception):
    """The layer of this ``name`` cannot be traced by itself."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


class Traced(NamedTuple):
    """A layer's graph of ATen ops. ``tangents``: the gradients of the ``results`` that have one; ``gradients``: those
    of ``given``, None where there is none."""

    module: GraphModule
    given: list[Node]
    tangents: list[Node]
    results: list[Node]
    gradients: list[Node | None]

    @property
    def computed_gradients(self) -> list[Node]:
        """The gradients that exist."""
        return [g for g in self.gradients if g is not None]


class Layer:
    """Ops that occur more than once in Dynamo's graph. ``given``, ``results``: fake tensors."""

    def __init__(self, name: str, body: GraphModule, given: list[torch.Tensor], results: list[torch.Tensor],
                 decompositions: Mapping[Any, Any]):  # fmt: skip
        self.name, self.differentiable = name, [x.requires_grad for x in results]
        self._body, self._given, self._decompositions = body, given, decompositions
        self._known: dict[bool, Traced] = {}
        self.refused = False  # set where raising would make autograd warn

    def traced(self, training: bool) -> Traced:
        """The traced layer, with its backward if ``training``. Raises :class:`Refused`."""
        if training not in self._known:
            self._known[training] = self._traced(training)
        return self._known[training]

    def _traced(self, training: bool) -> Traced:
        try:
            with disable_current_modes(), tracing(TracingContext(detect_fake_mode(self._given))), torch.enable_grad():
                given = [x.detach().requires_grad_(x.requires_grad and training) for x in self._given]
                module = self._by_aot_autograd(given)
        except Exception as error:
            raise LayerNotTraceable(self.name) from error
        placeholders, found = module.graph.find_nodes(op="placeholder"), module.graph.output_node().args[0]
        tangents, results = placeholders[len(given) :], found[: len(self.differentiable)]
        as_expected = (
            len(tangents) == training * sum(self.differentiable)
            and len(found) == len(results) + training * len(given)
            and all(isinstance(node, Node) for node in results)
            and not any(isinstance(n.target, OpOverload) and n.target._schema.is_mutable for n in module.graph.nodes)
        )
        if not as_expected:
            raise LayerNotTraceable(self.name)
        return Traced(module, placeholders[: len(given)], tangents, results, found[len(results) :])

    def _by_aot_autograd(self, given: list[torch.Tensor]) -> GraphModule:
        """The joint graph, or the inference graph; an exception stops AOTAutograd once it is traced."""

        def stop(module: GraphModule, *_: Any, **__: Any) -> Any:
            raise _Reached(module)

        try:
            aot_module_simplified(
                self._body, given, fw_compiler=stop, partition_fn=stop, decompositions=self._decompositions
            )
        except _Reached as reached:
            return reached.module
        raise LayerNotTraceable(self.name)


class _Reached(Exception):
    def __init__(self, module: GraphModule):
        super().__init__()
        self.module = module


_local = threading.local()  # ``layers``: name -> layer, of the graph that this thread compiles


def _layer(name: str) -> Layer:
    return _local.layers[name]


# ---- layer calls during AOTAutograd's tracing


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, call: int, *given: torch.Tensor) -> Any:
        ctx.name, ctx.call = name, call
        ctx.set_materialize_grads(False)
        with AutoDispatchBelowAutograd():
            results = LAYER(name, call, True, given)
        ctx.mark_non_differentiable(*(r for r, yes in zip(results, _layer(name).differentiable) if not yes))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        layer = _layer(ctx.name)
        traced = layer.traced(True)
        given = [t for t, yes in zip(tangents, layer.differentiable) if yes]
        laid_out = [_as_traced(t, n.meta["val"]) for t, n in zip(given, traced.tangents, strict=True)]
        if any(t is None for t in laid_out):
            layer.refused = True
            return (None,) * (2 + len(traced.given))
        found = iter(BACKWARD(ctx.name, ctx.call, laid_out))
        return None, None, *(None if g is None else next(found) for g in traced.gradients)


def _as_traced(tangent: torch.Tensor | None, traced: torch.Tensor) -> torch.Tensor | None:
    """``tangent`` with the strides of the layer's traced backward; None where that is impossible, and for a result that
    is not differentiated here."""
    if tangent is None or tangent.stride() == traced.stride():
        return tangent
    order = sorted(range(traced.dim()), key=traced.stride, reverse=True)
    tangent = tangent.permute(order).contiguous().permute([order.index(k) for k in range(traced.dim())])
    return tangent if tangent.stride() == traced.stride() else None


def _differentiable(name: str, call: int, training: bool, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    _layer(name).traced(differentiable)  # traces here, outside of autograd's restrictions
    if differentiable:
        return list(_Call.apply(name, call, *given))
    with AutoDispatchBelowAutograd():
        return LAYER(name, call, training, given)


def _empty_like(nodes: Sequence[Node]) -> list[torch.Tensor]:
    fakes = [node.meta["val"] for node in nodes]
    return [torch.empty_strided(f.shape, f.stride(), dtype=f.dtype, device=f.device) for f in fakes]


_library.impl("layer", _differentiable, "Autograd")


@torch.library.register_fake("mlirfuse::layer", lib=_library)
def _fake(name: str, call: int, training: bool, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return _empty_like(_layer(name).traced(training).results)


@torch.library.register_fake("mlirfuse::layer_backward", lib=_library)
def _fake_backward(name: str, call: int, tangents: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return _empty_like(_layer(name).traced(True).computed_gradients)


# ---- Dynamo's graph: which layers are equal


def compiled(module: torch.nn.Module, decompositions: Mapping[Any, Any], compile_: Callable[[], Any]) -> Any:
    """The result of ``compile_``, which compiles ``module`` by AOTAutograd and calls :func:`inline_layers` on each
    resulting graph. Meanwhile equal layers of ``module``, if it is one of Dynamo's graphs, are calls."""
    if not isinstance(module, GraphModule):  # a wrapper around a graph whose inputs are in lists
        return compile_()
    whole, refused = module.graph, set[str]()
    outside = getattr(_local, "layers", {})  # the layers of an outer compilation
    while True:
        _local.layers = {}
        try:
            graph = _with_calls(module, decompositions, refused)
            if graph is not None:
                module.graph = graph
            return compile_()
        except Exception as error:
            name = _layer_of_error(error)
            if name is None:
                raise
            refused.add(name)
        finally:
            _local.layers = outside
            if module.graph is not whole:
                module.graph = whole


def _layer_of_error(error: BaseException | None) -> str | None:
    """The layer's name where ``error`` is about one; wrappers may have extended its text."""
    while error is not None and not isinstance(error, LayerNotTraceable):
        error = error.__cause__ or error.__context__
    return None if error is None else error.name


class _LayerNodes(NamedTuple):
    """A layer in Dynamo's graph."""

    nodes: list[Node]
    given: list[Node]
    results: list[Node]


def _with_calls(module: GraphModule, decompositions: Mapping[Any, Any], refused: set[str]) -> Graph | None:
    """The module's graph with calls in place of equal layers; None where there are none."""
    nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
    in_initial_state = _in_initial_state(nodes)
    found: dict[Node, tuple[str, _LayerNodes]] = {}  # by a layer's last node
    for equal in _equal_layers(nodes, in_initial_state, 0):
        first = equal[0]
        body = _body(first)
        given = [n.meta["example_value"] for n in first.given]
        results = [n.meta["example_value"] for n in first.results]
        serialized = f"{body.graph.python_code('self').src} {_described(given)}"
        name = hashlib.sha256(serialized.encode()).hexdigest()[:16]
        if name not in refused:
            _local.layers[name] = Layer(name, body, given, results, decompositions)
            found |= {layer.nodes[-1]: (name, layer) for layer in equal}
    return _substituted(module.graph, found) if found else None


def _substituted(graph: Graph, found: dict[Node, tuple[str, _LayerNodes]]) -> Graph:
    inside = {node for _, layer in found.values() for node in layer.nodes}
    created, new = Graph(graph.owning_module), dict[Node, Node]()
    for node in graph.nodes:
        if node not in inside:
            new[node] = created.node_copy(node, new.__getitem__)
            vars(new[node]).update({key: value for key, value in vars(node).items() if key == "_dynamo_source"})
        elif node in found:
            name, layer = found[node]
            call = created.call_function(LAYER, (name, len(new), False, [new[n] for n in layer.given]))
            call.meta["example_value"] = [n.meta["example_value"] for n in layer.results]
            for place, result in enumerate(layer.results):
                new[result] = created.call_function(operator.getitem, (call, place))
                new[result].meta = dict(result.meta)
    return created


def _in_initial_state(nodes: list[Node]) -> set[Node]:
    """The nodes where autocast and grad mode are as at the graph's start."""
    in_initial_state, before, gradients = set[Node](), torch.is_grad_enabled(), torch.is_grad_enabled()
    entered: list[Any] = []
    for node in nodes:
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        if name == "_enter_autocast":
            entered.append(node)
        elif name == "_exit_autocast" and node.args[0] in entered:
            entered.remove(node.args[0])
        elif name in ("_set_grad_enabled", "set_grad_enabled"):
            gradients = node.args[0]
        elif _STATE_CHANGES.search(name):
            return set()
        elif not entered and gradients == before:
            in_initial_state.add(node)
    return in_initial_state


def _equal_layers(nodes: list[Node], in_initial_state: set[Node], depth: int) -> Iterator[list[_LayerNodes]]:
    """Groups of equal layers among consecutive ``nodes``; ``depth``: the nesting level of module lists."""
    runs = [list(run) for _, run in itertools.groupby(nodes, lambda n: _list_element(n, depth))]
    runs = [run for run in runs if _list_element(run[0], depth) is not None]
    by_key = defaultdict(list)
    for run in runs:
        layer = _traceable_layer(run) if in_initial_state.issuperset(run) else None
        by_key[_key(layer) if layer is not None else id(run)].append((layer, run))
    for equal in by_key.values():
        if len(equal) > 1:
            yield [layer for layer, _ in equal if layer is not None]
        elif len(run := equal[0][1]) > _MIN_OPS:
            yield from _equal_layers(run, in_initial_state, depth + 1)


def _list_element(node: Node, depth: int) -> str | None:
    """The path of the list element module that computes ``node``."""
    paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if _LIST_ELEMENT.search(path)]
    return paths[depth] if depth < len(paths) else None


def _traceable_layer(nodes: list[Node]) -> _LayerNodes | None:
    """``nodes`` as a layer; None where it cannot be traced by itself."""
    inside = set(nodes)
    given = list(dict.fromkeys(x for n in nodes for x in n.all_input_nodes if x not in inside))
    results = [n for n in nodes if any(user not in inside for user in n.users)]
    if len(nodes) < _MIN_OPS or not all(map(_is_static_tensor, given + results)):
        return None
    held = {layouts.storage(n.meta["example_value"]) for n in given}
    created = [layouts.storage(n.meta["example_value"]) for n in results]
    if not held.isdisjoint(created) or len(set(created)) < len(created):
        return None
    if any(_writes_given(n, inside) or not _is_cache_safe(n) for n in nodes):
        return None
    return _LayerNodes(nodes, given, results)


def _is_static_tensor(node: Node) -> bool:
    """Whether ``node`` is a plain tensor of known sizes."""
    value = node.meta.get("example_value")
    return (
        isinstance(value, torch.Tensor)
        and isinstance(value, FakeTensor)
        and not is_traceable_wrapper_subclass(value)
        and value.layout is torch.strided
        and all(type(n) is int for n in (*value.shape, *value.stride()))
    )


def _is_cache_safe(node: Node) -> bool:
    """Whether the call's name identifies its function, as torch's graph cache requires."""
    if node.op not in ("call_function", "call_method") or isinstance(node.target, HigherOrderOperator):
        return False
    if check_node_safe is None:
        return False
    try:
        check_node_safe(node)
    except BypassAOTAutogradCache:
        return False
    return True


def _writes_given(node: Node, inside: set[Node]) -> bool:
    """Whether the call's name says that it writes into the layer's inputs. Other writes are found by tracing."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name in _IN_PLACE_NAMES or (name.endswith("_") and not name.endswith("__"))
    return in_place and any(n not in inside for n in node.all_input_nodes)


def _key(layer: _LayerNodes) -> Any:
    places: dict[Node, Any] = {n: f"given {k}" for k, n in enumerate(layer.given)}
    places |= {n: f"node {k}" for k, n in enumerate(layer.nodes)}
    ops = [(n.op, n.target, repr(torch.fx.map_arg((n.args, n.kwargs), lambda x: places[x]))) for n in layer.nodes]
    return (
        tuple(ops),
        tuple(_described([n.meta["example_value"] for n in layer.given])),
        tuple(places[n] for n in layer.results),
    )


def _described(given: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    """The properties of a layer's inputs that its trace depends on, including which share memory."""
    memories = [layouts.storage(x) for x in given]
    return [
        (x.dtype, x.device, tuple(x.shape), x.stride(), x.storage_offset(), x.requires_grad, memories.index(memory))
        for x, memory in zip(given, memories)
    ]


def _body(layer: _LayerNodes) -> GraphModule:
    """The ops of a layer as a module."""
    graph, new = Graph(), dict[Node, Node]()
    for k, node in enumerate(layer.given):
        new[node] = graph.placeholder(f"given_{k}")
    for node in layer.nodes:
        new[node] = graph.node_copy(node, new.__getitem__)
    graph.output(tuple(new[n] for n in layer.results))
    return GraphModule(torch.nn.Module(), graph)


# ---- AOTAutograd's graphs


def inline_layers(module: GraphModule) -> None:
    """Replaces the calls of layers by their ops. Raises :class:`Refused`."""
    calls = [n for n in module.graph.nodes if n.target in (LAYER, BACKWARD)]
    for layer in getattr(_local, "layers", {}).values():
        if layer.refused:
            raise LayerNotTraceable(layer.name)
    known: dict[int, _InlinedLayer] = {}
    with disable_current_modes():
        for node in calls:
            _inline(module, node, known)
    if calls:
        module.recompile()


def _inline(module: GraphModule, node: Node, known: dict[int, _InlinedLayer]) -> None:
    """Replaces the call ``node`` by its ops; ``known``: the forward copies by call number, for backwards."""
    layer, call = _layer(node.args[0]), node.args[1]
    if node.target is LAYER:
        traced = layer.traced(node.args[2])
        copy, results = known.setdefault(call, _InlinedLayer(module, traced, node.args[3])), traced.results
    else:
        traced = layer.traced(True)
        copy, results = known[call], traced.computed_gradients
        copy.nodes |= zip(traced.tangents, node.args[2])
    with module.graph.inserting_before(node):
        copy.add(results)
    for user in list(node.users):
        user.replace_all_uses_with(copy.nodes[results[user.args[1]]])
        module.graph.erase_node(user)
    module.graph.erase_node(node)


class _InlinedLayer:
    """A copy of a layer's ops for one of its calls. ``nodes``: the layer's nodes to their copies."""

    def __init__(self, module: GraphModule, traced: Traced, given: Sequence[Node]):
        self.nodes = dict(zip(traced.given, given, strict=True))
        self._module, self._traced = module, traced
        self._memory = {
            layouts.storage(of.meta["val"]): to.meta["val"].untyped_storage() for of, to in self.nodes.items()
        }

    def add(self, results: Sequence[Node]) -> None:
        """Inserts the missing nodes that ``results`` need."""
        needed, left = set[Node](), list(results)
        while left:
            node = left.pop()
            if node not in self.nodes and node not in needed:
                needed.add(node)
                left += node.all_input_nodes
        for node in self._traced.module.graph.nodes:
            if node in needed:
                created = self._module.graph.node_copy(node, self.nodes.__getitem__)
                if node.op == "get_attr":
                    created.target = _constant(self._module, getattr(self._traced.module, node.target))
                value = node.meta.get("val")
                if isinstance(value, FakeTensor):
                    created.meta["val"] = self._in_own_storage(value)
                elif isinstance(value, (tuple, list)):
                    created.meta["val"] = pytree.tree_map_only(FakeTensor, self._in_own_storage, value)
                self.nodes[node] = created

    def _in_own_storage(self, fake: FakeTensor) -> FakeTensor:
        """A fake tensor like it in a storage of its own: alias analysis must keep the layers apart."""
        if fake.layout is not torch.strided:
            return fake
        memory = self._memory.get(layouts.storage(fake))
        if memory is None:
            memory = torch.UntypedStorage(fake.untyped_storage().nbytes(), device="meta")
            self._memory[layouts.storage(fake)] = memory
        meta = torch.empty(0, dtype=fake.dtype, device="meta")
        meta.set_(memory, fake.storage_offset(), fake.shape, fake.stride())
        return FakeTensor(fake.fake_mode, meta, fake.device)


def _constant(module: GraphModule, value: Any) -> str:
    """The name under which ``module`` has a constant."""
    name = next((name for name, held in vars(module).items() if held is value), "")
    if not name:
        name = f"_layers_constant{sum(key.startswith('_layers_constant') for key in vars(module))}"
        setattr(module, name, value)
    return name
