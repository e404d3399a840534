"""What becomes of a model, for people: the kernels of each graph with the user's lines and their bytes, what runs as
torch's own and why, which collectives go over the wire and what runs meanwhile, what is saved for the backward."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mlirfuse.frontend.torch import backend
from mlirfuse.frontend.torch.description import GraphExplanation, described
from mlirfuse.frontend.torch.lower import Lowered
from mlirfuse.runtime.host_program import HostProgram


@dataclass
class Explanation:
    """The graphs of a model, in the order in which they were compiled. ``str()`` is the tables; :meth:`save` draws."""

    graphs: list[GraphExplanation] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.graphs))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one page with the tables and the drawing of each graph."""
        parts = [
            f'<h1>{g.which}</h1><pre>{escape(str(g))}</pre><iframe srcdoc="{escape(g.to_html())}"></iframe>'
            for g in self.graphs
        ]
        style = "<style>iframe { width: 100%; height: 90vh; border: 0; }</style>"
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                f'<!DOCTYPE html><html><head><meta charset="utf-8">{style}</head><body>{"".join(parts)}</body></html>'
            )


def explain(model: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Compiles ``model``, a module or a function, for these arguments and tells what became of it.

    Runs it once, with its gradients where the outputs have some; buffers and gradients of a module stay as they were.
    Raises what compiling raises: nothing falls back.
    """
    found = Explanation()
    with _observed(found), _kept(model):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend=backend.mlirfuse, options={"fallback": False})
        out = compiled(*args, **kwargs)
        smooth = [y for y in pytree.tree_leaves(out) if isinstance(y, torch.Tensor) and y.requires_grad]
        inputs = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
        inputs += [p for p in getattr(model, "parameters", list)() if p.requires_grad]
        if smooth and inputs:
            torch.autograd.grad(smooth, inputs, [torch.zeros_like(y) for y in smooth], allow_unused=True)
    torch._dynamo.reset()
    return found


@contextlib.contextmanager
def _observed(found: Explanation) -> Iterator[None]:
    def observer(which: str, lowered: Lowered, host: HostProgram) -> None:
        found.graphs.append(described(which, lowered, host))

    backend.observers.append(observer)
    try:
        yield
    finally:
        backend.observers.remove(observer)


@contextlib.contextmanager
def _kept(model: Any) -> Iterator[None]:
    buffers = [(b, b.detach().clone()) for b in model.buffers()] if isinstance(model, torch.nn.Module) else []
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
