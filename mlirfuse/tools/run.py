"""Runs a function of an ``.mlir`` file on arrays, with its loops, branches, guards and extern ops.

For example::

    from mlirfuse.tools.run import load

    jacobi = load("jacobi.mlir")
    u, = jacobi(u, 100)

:class:`Loaded` is the compiled function.
"""

from __future__ import annotations

from typing import Any

from mlirfuse.core.errors import ShapeError
from mlirfuse.dialects import fusion
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph
from mlirfuse.passes.base import run_pipeline
from mlirfuse.runtime import arrays
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.schedule import targets


class Loaded:
    """A function of the fusion dialect, compiled for ``target``. Call it with an array for each tensor and a number for
    each number; it returns the list of results. Arguments with ``fusion.alias`` are written."""

    def __init__(self, graph: Graph, target: str = "cpu", passes: str | None = None):
        created = targets.of(target)
        if passes is None:
            passes = f"fusion-shapes{{annotate=false}},fusion-to-segments{{target={target}}}"
        (self.graph,) = run_pipeline([graph], passes).graphs if passes else [graph]
        self.host = HostProgram(self.graph, created)

    def __call__(self, *args: Any) -> list:
        if len(args) != len(self.graph.args):
            raise TypeError(f"{self.graph.name} takes {len(self.graph.args)} arguments, got {len(args)}")
        return self.host.run(args, self.sizes(args))

    def sizes(self, args) -> dict[str, int]:
        """Return the values of the symbols in the function's argument shapes. Raises :class:`ShapeError`."""
        env: dict[str, int] = {}
        for k, (value, given) in enumerate(zip(self.graph.args, args)):
            if k in self.graph.scalars and value.dtype is not None and value.dtype.kind in "iu":
                env[f"v{k}"] = int(given)
            if value.dtype is None or k in self.graph.scalars:
                continue
            spec = arrays.spec_of(given)
            if len(spec.shape) != value.rank:
                raise ShapeError(f"argument {k} of {self.graph.name} has rank {len(spec.shape)}, expected {value.rank}")
            layout = self.graph.layouts[k]
            pairs = [(value.shape, spec.shape)]
            pairs += [(layout.strides, spec.strides)] if layout is not None else []
            for stated, found in pairs:
                for size, extent in zip(stated, found):
                    name = sz.reported_by(size)
                    if name is not None:
                        env.setdefault(name, extent)
        if missing := set(self.host.symbols) - env.keys():
            raise ShapeError(f"{self.graph.name}: no argument has {min(missing)} itself as a size, only made of it")
        return env


def load(file: str, target: str = "cpu", passes: str | None = None) -> Loaded:
    """Load the function in ``file``. ``passes``: those that create segments; the default is what ``jit`` runs for the
    target."""
    with open(file) as source:
        return of_text(source.read(), target, passes)


def of_text(text: str, target: str = "cpu", passes: str | None = None) -> Loaded:
    """As :func:`load`, for the text of a module of one function."""
    (graph,) = fusion.read(fusion.parse(text))
    return Loaded(graph, target, passes)
