"""Which tensors a call of Dynamo's graph may write, by the called function rather than its name: ATen's schemas say so,
``operator``'s functions are listed, and other functions may write every argument."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch.fx import layouts
from mlirfuse.frontend.torch.torch_private import HigherOrderOperator, OpOverload, OpOverloadPacket, nn_functions
from mlirfuse.frontend.torch.torch_private import vmap_functions as vmap

_IN_PLACE_NAMES = (
    *("iadd", "isub", "imul", "imatmul", "itruediv", "ifloordiv", "imod", "ipow", "ilshift", "irshift", "iand", "ior"),
    *("ixor", "iconcat", "setitem", "delitem"),
)
_IN_PLACE_OPERATORS = {getattr(operator, name) for name in _IN_PLACE_NAMES}
_OPERATORS = {f for f in vars(operator).values() if callable(f)} - _IN_PLACE_OPERATORS
_F = torch.nn.functional
_UPDATES_BUFFERS = {
    _F.batch_norm,
    _F.instance_norm,
    torch.batch_norm,
    torch.instance_norm,
    _F.embedding,
    _F.embedding_bag,
}


def written_by(node: Node, module: GraphModule) -> Iterable[Node]:
    """The arguments of ``node`` whose memory the call may write."""
    if node.op == "call_method":
        return _by_name(node, str(node.target))
    if node.op == "call_module":
        return node.all_input_nodes
    if node.op != "call_function" or node.target in _OPERATORS:
        return ()
    if node.target in _IN_PLACE_OPERATORS:
        return _nodes(node.args[:1])
    if isinstance(node.target, OpOverload):
        return _mutable(node, [node.target._schema])
    if isinstance(node.target, OpOverloadPacket):
        return _mutable(node, _schemas(node.target))
    name = getattr(node.target, "__name__", "")
    if isinstance(node.target, HigherOrderOperator):
        return _by_subgraph(node, module)
    if node.target in _UPDATES_BUFFERS:
        return node.all_input_nodes
    if getattr(vmap, name, None) is node.target:
        return ()
    if any(getattr(space, name, None) is node.target for space in (torch, nn_functions, torch.nn.functional)):
        return _by_name(node, name)
    return node.all_input_nodes


def is_function(node: Node, module: GraphModule) -> bool:
    """Whether the call is pure, as far as is known."""
    if node.target in vars(vmap).values() or list(written_by(node, module)):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if isinstance(node.target, OpOverload):
        overloads = [node.target]
    else:
        packet = _packet(str(name))
        if packet is None:
            return node.op == "call_method" or node.target in _OPERATORS
        overloads = [getattr(packet, overload) for overload in packet.overloads()]
    return not any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


def written_storages(module: GraphModule) -> set[int]:
    """The storages of fake tensors that some call of ``module`` may write."""
    found = set()
    for node in module.graph.nodes:
        for source in written_by(node, module):
            storage = layouts.storage(source.meta.get("example_value"))
            if storage is not None:
                found.add(storage)
    return found


def ambiguous_storages(module: GraphModule) -> set[int]:
    """The storages that some call of ``module`` writes while an older name of the memory is still read later: there a
    node's name does not tell its value. After ``y = operator.iadd(x, 1)`` it does, unless ``x`` or a view made before
    is read again."""
    order = {node: k for k, node in enumerate(module.graph.nodes)}
    names: dict[int, list[Node]] = {}
    found = set()
    for node in module.graph.nodes:
        for source in written_by(node, module):
            storage = layouts.storage(source.meta.get("example_value"))
            older = [] if storage is None else names.get(storage, [])
            if storage is not None and any(order[user] > order[node] for name in older for user in name.users):
                found.add(storage)
        storage = layouts.storage(node.meta.get("example_value"))
        if storage is not None:
            names.setdefault(storage, []).append(node)
    return found


def subgraph(node: Node, module: GraphModule) -> tuple[GraphModule, list[Any]] | None:
    """The module that a higher-order op calls once, as for a checkpoint, and its placeholders' arguments."""
    if not isinstance(node.target, HigherOrderOperator):
        return None
    inner: list[tuple[int, GraphModule]] = []
    for k, x in enumerate(node.args):
        called = getattr(module, str(x.target), None) if isinstance(x, Node) and x.op == "get_attr" else None
        if isinstance(called, GraphModule):
            inner.append((k, called))
    if len(inner) != 1:
        return None
    place, called = inner[0]
    given = list(node.args[place + 1 :])
    return (called, given) if len(called.graph.find_nodes(op="placeholder")) == len(given) else None


def _packet(name: str) -> Any:
    """The ATen op of this name; None where the namespace has something else under it, such as ``__eq__``."""
    found = getattr(torch.ops.aten, name, None)
    return found if isinstance(found, OpOverloadPacket) else None


def _schemas(packet: Any) -> list[Any]:
    return [getattr(packet, overload)._schema for overload in packet.overloads()]


def _by_subgraph(node: Node, module: GraphModule) -> Iterable[Node]:
    found = subgraph(node, module)
    if found is None:
        return node.all_input_nodes
    called, given = found
    written = written_storages(called)
    places = called.graph.find_nodes(op="placeholder")
    return _nodes(
        x for place, x in zip(places, given) if layouts.storage(place.meta.get("example_value")) in written
    )  # fmt: skip


def _by_name(node: Node, name: str) -> Iterable[Node]:
    """A tensor method or torch function: by the schemas of the ATen op of the same name, if there is one."""
    if "out" in node.kwargs:
        return node.all_input_nodes
    if node.kwargs.get("inplace") or (node.op == "call_function" and any(x is True for x in node.args)):
        return node.all_input_nodes  # possibly ``inplace=True``
    packet = _packet(name)
    if packet is not None:
        return _mutable(node, _schemas(packet))
    dunder = name.startswith("__") and name.endswith("__")
    in_place = name[2:-2] in _IN_PLACE_NAMES if dunder else name.endswith("_")
    return _nodes(node.args[:1]) if in_place else ()


def _mutable(node: Node, schemas: Iterable[Any]) -> Iterable[Node]:
    found: list[Any] = []
    for schema in schemas:
        for place, argument in enumerate(schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            found += [node.kwargs[argument.name]] if argument.name in node.kwargs else []
            found += [node.args[place]] if not argument.kwarg_only and place < len(node.args) else []
    return _nodes(found)


def _nodes(args: Iterable[Any]) -> list[Node]:
    found: list[Node] = []
    torch.fx.map_arg(tuple(args), found.append)
    return found
