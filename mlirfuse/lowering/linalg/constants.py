"""Specializes a graph to one set of sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph, Value, Window, walk


def with_constant_sizes(graph: Graph, env: Mapping[str, int]) -> Graph:
    """A copy of ``graph`` with constant sizes and strides, for the symbols' values ``env``."""
    created, values = graph.copy(), dict(env)

    def substituted(value: Any) -> Any:
        if isinstance(value, sz.Expr):
            return sz.substitute(value, values)
        return tuple(map(substituted, value)) if isinstance(value, (tuple, list)) else value

    for op in walk(created.body):
        op.attrs = {key: substituted(value) for key, value in op.attrs.items()}
    for value in {
        *created.args,
        *created.returns,
        *(v for op in walk(created.body) for v in (*op.operands, *op.results)),
    }:
        if value.dtype is not None and value.shape:
            fixed = Value(value.dtype, substituted(value.shape))
            value.shape, value.type = fixed.shape, fixed.type
    created.windows = {k: Window(substituted(window.start), window.step) for k, window in created.windows.items()}
    for layout in created.layouts:
        if layout is not None:
            layout.strides = substituted(tuple(layout.strides))
    return created
