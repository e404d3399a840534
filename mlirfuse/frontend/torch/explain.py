"""``mlirfuse.torch.explain``: the kernels of each graph of a model with source lines and bytes, the extern ops and why
they do not fuse, collectives and the work that overlaps them, and tensors saved for the backward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

import torch

from mlirfuse.frontend.torch import backend
from mlirfuse.frontend.torch.reports.description import GraphExplanation, described
from mlirfuse.frontend.torch.torch_private import pytree
from mlirfuse.inspect.shown import Shown, frame, page


@dataclass
class Explanation(Shown):
    """A model's graphs in compilation order. ``str()`` gives tables; :meth:`save` adds drawings."""

    graphs: list[GraphExplanation] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.graphs))

    def to_html(self) -> str:
        """An HTML page with each graph's tables and drawing."""
        return page("explanation", map(section, self.graphs))


def section(graph: GraphExplanation) -> str:
    """One graph's HTML: its tables, then its drawing."""
    tables = "".join(table.to_html() for table in graph.tables())
    return f"<h1>{escape(graph.summary())}</h1>{tables}{frame(graph.to_html())}"


def explain(model: Any, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> Explanation:
    """Compiles ``model``, a module or a function, for these arguments and explains the compiled graphs. ``options``: as
    those of ``torch.compile``.

    Runs the model once, backward included where an output requires gradients; restores the module's buffers and
    gradients. Raises compilation errors instead of falling back.
    """
    found = Explanation()
    with compiled(model, options, lambda *graph: found.graphs.append(described(*graph))) as run:
        step(run, model, args, kwargs)
    return found


@contextlib.contextmanager
def compiled(
    model: Any, options: dict[str, Any] | None, observer: backend.Observer, dynamic: bool | None = None
) -> Iterator[Any]:
    """``model`` compiled with fallback off; ``observer`` is called for each graph; ``dynamic`` as in ``torch.compile``.
    Restores the model's buffers at the end."""
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
    """Calls ``run``, and computes gradients of ``model``'s parameters and of the inputs where an output requires
    them."""
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
