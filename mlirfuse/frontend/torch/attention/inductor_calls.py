"""Extern calls by kernels that Inductor compiles for one call: flex attention's templates.

Each such call becomes a graph of its own, with its tensors and sizes as inputs, and its compiled code is called by the
host program like any other extern op. Equal calls share their code.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from mlirfuse.core.errors import warn
from mlirfuse.frontend.torch import torch_private as private


class Alone(NamedTuple):
    """A call as a graph: ``module``, the nodes of its inputs, and the call's results, nested as the call's, as indices
    of the graph's results (None: not needed). ``instead``: what runs if it does not compile, for the warning."""

    module: GraphModule
    inputs: list[Node]
    results: list[Any]
    instead: str


# By the called function: the call as a graph; None where torch has no template for it.
GRAPHS: dict[Any, Callable[[Node, GraphModule], Alone | None]] = {}


def traced(function: Callable[..., Any], fakes: Sequence[Any]) -> GraphModule:
    """The graph of ``function`` in the ops that Inductor has lowerings for."""
    found = private.make_fx(function, decomposition_table=private.inductor_decompositions())(*fakes)
    for module in found.modules():
        if isinstance(module, GraphModule):
            for node in module.graph.nodes:
                node.type = None  # annotations that are strings; Inductor's cache cannot pickle those
            module.recompile()
    return found


class Template:
    """Compiled code as a function of the call's tensors and sizes. ``code``: Inductor's; ``results``: as in
    :class:`Alone`. Can be pickled."""

    def __init__(self, code: Any, results: list[Any]):
        self.code, self.results = code, results

    def __call__(self, *args: Any) -> list[Any]:
        found = self.code(list(args))
        return [_result(found, index) for index in self.results]

    def __getstate__(self) -> tuple[bytes, list[Any]]:
        code = copy.copy(self.code)
        code.prepare_for_serialization()
        return pickle.dumps(code), self.results

    def __setstate__(self, state: tuple[bytes, list[Any]]) -> None:
        code, self.results = pickle.loads(state[0]), state[1]
        self.code = private.loaded_by_inductor(code)


def _result(found: Any, index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_result(found, k) for k in index)
    return None if index is None else found[index]


class Templates:
    """The templates of one graph, ``module``."""

    def __init__(self, module: GraphModule):
        self.module = module
        self.known: dict[Any, Template | str] = {}  # by equal calls: a template, or why there is none
        self.reasons: dict[Node, str] = {}  # how each call runs, for ``explain``

    def of(self, node: Node) -> tuple[Template, list[Node]] | None:
        """The template of a call and the nodes of its arguments; None where torch's op runs instead: it has no
        template, or one that does not compile, which warns."""
        make = GRAPHS.get(node.target)
        alone = None if make is None else make(node, self.module)
        if alone is None:
            return None
        key = _key(alone)
        if key not in self.known:
            self.known[key] = _compiled(alone)
        found = self.known[key]
        if isinstance(found, str):
            self.reasons[node] = found
            return None
        self.reasons[node] = "torch's compiled template"
        return found, alone.inputs


def _compiled(alone: Alone) -> Template | str:
    """The template, or why it does not compile."""
    try:
        fakes = [n.meta["val"] for n in alone.module.graph.find_nodes(op="placeholder")]
        return Template(private.compiled_by_inductor(alone.module, fakes), alone.results)
    except private.TorchDynamoException:
        raise
    except Exception as error:
        reason = f"torch's template does not compile: {' '.join(str(error).split())[:200] or type(error).__name__}"
        warn(f"{alone.instead}; {reason}")
        return reason


def _key(alone: Alone) -> Any:
    """Equal for calls that can share code: of equal graphs on tensors of equal sizes, strides and types."""
    modules = [m for m in alone.module.modules() if isinstance(m, GraphModule)]
    constants = [id(x) for m in modules for x in vars(m).values() if isinstance(x, torch.Tensor)]
    inputs = [_described(n.meta["val"]) for n in alone.module.graph.find_nodes(op="placeholder")]
    return tuple(m.code for m in modules), tuple(constants), tuple(inputs), repr(alone.results)


def _described(fake: Any) -> str:
    if not isinstance(fake, torch.Tensor):
        return str(fake)
    return f"{fake.dtype} {fake.device} {fake.shape} {fake.stride()} {fake.storage_offset()}"
