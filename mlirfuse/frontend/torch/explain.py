"""What becomes of a model, for people: the kernels of each graph with the user's lines and their bytes, what runs as
torch's own and why, which collectives go over the wire and what runs meanwhile, what is saved for the backward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

import torch

from mlirfuse.frontend.torch import backend
from mlirfuse.frontend.torch.description import GraphExplanation, described
from mlirfuse.frontend.torch.torch_private import pytree
from mlirfuse.inspect.shown import Shown, frame, page


@dataclass
class Explanation(Shown):
    """The graphs of a model, in the order in which they were compiled. ``str()`` is the tables; :meth:`save` draws."""

    graphs: list[GraphExplanation] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.graphs))

    def to_html(self) -> str:
        """One page with the tables and the drawing of each graph."""
        return page("explanation", map(section, self.graphs))


def section(graph: GraphExplanation) -> str:
    """A graph's part of a page: its tables, and its drawing below them."""
    tables = "".join(table.to_html() for table in graph.tables())
    return f"<h1>{escape(graph.summary())}</h1>{tables}{frame(graph.to_html())}"


def explain(model: Any, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> Explanation:
    """Compiles ``model``, a module or a function, for these arguments and tells what became of it. ``options``: as
    those of ``torch.compile``.

    Runs it once, with its gradients where the outputs have some; buffers and gradients of a module stay as they were.
    Raises what compiling raises: nothing falls back.
    """
    found = Explanation()
    with compiled(model, options, lambda *graph: found.graphs.append(described(*graph))) as run:
        step(run, model, args, kwargs)
    return found


@contextlib.contextmanager
def compiled(
    model: Any, options: dict[str, Any] | None, observer: backend.Observer, dynamic: bool | None = None
) -> Iterator[Any]:
    """``model`` as a compiled function that raises what compiling raises; ``observer`` is told of its graphs;
    ``dynamic``: as that of ``torch.compile``. At the end its buffers are as they were."""
    torch._dynamo.reset()
    backend.observers.append(observer)
    try:
        with _kept(model):
            options = {**(options or {}), "fallback": False}
            yield torch.compile(model, backend=backend.mlirfuse, options=options, dynamic=dynamic)
    finally:
        backend.observers.remove(observer)
        torch._dynamo.reset()


def step(run: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A call of ``run``, and gradients of ``model``'s parameters and of the inputs where the outputs have some."""
    out = run(*args, **kwargs)
    smooth = [y for y in pytree.tree_leaves(out) if isinstance(y, torch.Tensor) and y.requires_grad]
    inputs = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
    inputs += [p for p in getattr(model, "parameters", list)() if p.requires_grad]
    if smooth and inputs:
        torch.autograd.grad(smooth, inputs, [torch.zeros_like(y) for y in smooth], allow_unused=True)


@contextlib.contextmanager
def _kept(model: Any) -> Iterator[None]:
    buffers = [(b, b.detach().clone()) for b in model.buffers()] if isinstance(model, torch.nn.Module) else []
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
