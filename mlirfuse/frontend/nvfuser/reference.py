"""Runs a definition's graph op by op with the op table's references, on the CPU."""

from __future__ import annotations

import numpy as np

from mlirfuse.frontend.nvfuser.inputs import is_torch
from mlirfuse.frontend.nvfuser.replay import Planned
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import interpreter
from mlirfuse.runtime import arrays


def run_reference(planned: Planned, leaves: list, env: dict[str, int]) -> list:
    """The results of the graph by the table's references on the CPU, in the inputs' framework and on their device.
    Results with an alias are written into that argument; results that are an argument are returned as it."""
    graph = planned.graph
    given = [np.asarray(arrays.to_numpy(leaf)).astype(v.dtype.numpy, copy=False) for leaf, v in zip(leaves, graph.args)]
    results = interpreter.run(graph, given, env)
    like = (
        next(leaf for leaf, v in zip(leaves, graph.args) if arrays.framework(leaf) and v.shape != ())
        if any(v.shape for v in graph.args)
        else (next(leaf for leaf in leaves if arrays.framework(leaf)))
    )
    position = {v: k for k, v in enumerate(graph.args)}
    written = {k: np.array(results[k], copy=True) for k in graph.aliases}
    out = []
    for k, (value, result) in enumerate(zip(graph.returns, results)):
        if k in graph.aliases:
            target = leaves[graph.aliases[k]]
            arrays.write_into(target, written[k].reshape(given[graph.aliases[k]].shape))
            out.append(target)
        elif value in position:
            out.append(leaves[position[value]])
        else:
            own = any(result is a or np.may_share_memory(result, a) for a in given) and result.flags.writeable
            result = result if own else np.array(result, copy=True, order="C")
            out.append(_shared(result, like))
    return out


def _shared(array: np.ndarray, like):
    """``array`` in the framework of ``like``, sharing memory where possible."""
    if (
        not is_torch(like)
        or like.is_cuda
        or not array.ndim
        or any(s < 0 for s in array.strides)
        or dt.of(array.dtype).kind == "n"
    ):
        return arrays.from_numpy(array, like)
    import torch

    dtype = dt.of(array.dtype)
    if dtype is dt.bf16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
