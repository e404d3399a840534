"""Pointwise segments: every output element from input elements, no reductions.

The domain's axes merge into as few loops as memory admits. On the CPU a task is a chunk of the innermost loop, in vectors.
"""

from __future__ import annotations

from mlirfuse import sizes as sz
from mlirfuse.lowering.kernel import Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.analysis import Analysis, size_of
from mlirfuse.schedule.cpu import CpuBody, CpuKernel, lanes_of, rows_grain, store_outputs

CHUNK = 8192  # elements of the innermost loop a CPU task works on


def cpu(name: str, analysis: Analysis, slots: Slots) -> list[CpuKernel]:
    """The kernel that computes ``analysis`` on the CPU."""
    body = CpuBody(name, analysis, slots)
    loops = analysis.loops(analysis.kept)
    inner, outer = (loops[-1], loops[:-1]) if loops else ([], [])
    extent = size_of(inner)
    chunks = sz.ceildiv(extent, CHUNK) if loops else 1
    lanes = lanes_of(analysis) if loops else 1

    def task(index):
        env = {}
        at, chunk = body.k.divmod(Index(index), chunks) if loops else (Index(index), Index(0))
        body.unlinear(env, outer, body.k.scalar(at.base))
        if not loops:
            store_outputs(body, analysis.outputs, env, [])
            return
        low = body.e.mul(body.k.scalar(chunk.base), CHUNK)
        high = body.e.min(body.e.add(low, CHUNK), body.size(extent))

        def step(i, mask, state):
            inside = dict(env)
            body.set_loop(inside, inner, i)
            store_outputs(body, analysis.outputs, inside, analysis.kept)
            return []

        body.vectors(low, high, lanes, [], step)

    body.tasks(task)
    tasks = sz.mul(sz.product(size_of(loop) for loop in outer), chunks)
    return [body.finish(tasks, rows_grain(sz.minimum(extent, CHUNK)))]
