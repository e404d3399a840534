"""Runs a graph op by op on a call's arrays: the fallback."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlirfuse.ir import interpreter
from mlirfuse.ir.graph import Graph, shows_argument
from mlirfuse.runtime import arrays, extern_ops


def run(graph: Graph, leaves: Sequence, leaf_of_arg: list[int], env: dict[str, int]) -> list:
    """Return the results by the table's references, in the arguments' framework. Those with an alias are written into
    that argument; everything is computed before anything is written."""
    given = [arrays.to_numpy(leaves[k]) for k in leaf_of_arg]
    given = [
        np.asarray(a, v.dtype.numpy) if v.dtype.numpy != getattr(a, "dtype", None) else a
        for a, v in zip(given, graph.args)
    ]
    like = next((leaves[k] for k in leaf_of_arg if arrays.framework(leaves[k])), np.empty(0))
    with np.errstate(all="ignore"):
        results = interpreter.run(graph, given, env)
    out = []
    for k, value in enumerate(results):
        target = graph.aliases.get(k)
        if target is not None:
            window = graph.windows.get(k)
            if window is None:
                arrays.write_into(leaves[leaf_of_arg[target]], value)
            else:
                extern_ops.update(window.update(graph.args[target], graph.returns[k]), env)(
                    leaves[leaf_of_arg[target]], value
                )
        shown = not graph.aliases and shows_argument(graph.returns[k])  # as in a compiled call
        out.append(arrays.from_numpy(value if shown else np.array(value, copy=True), like))
    return out
