"""Split reductions on the CPU: partial accumulators ``[partials, kept]`` in the workspace, and the kernel that combines
them."""

from __future__ import annotations

from mlirfuse.analysis.phases import points_of, size_of
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering import compensated_sums
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Memory
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, rows_grain, store_all
from mlirfuse.schedule.scheduler import KernelSpec


def buffers(body: CpuBody, phase: list[Op], kept: Size, partials: Size) -> list[list[Memory]]:
    """For each reduction of the phase, the buffers of its accumulator's components."""
    count = sz.mul(kept, partials)
    return [[body.buffer((op, k), count, dtype) for k, dtype in enumerate(red.accumulator_types(op))] for op in phase]


def load(
    body: CpuBody, phase: list[Op], memories: list[list[Memory]], offset, lanes: int, types=red.accumulator_types
) -> list[Val]:
    """The accumulators at ``offset``, whose component types ``types(op)`` gives."""
    out = []
    for op, components in zip(phase, memories):
        out += [body.buffer_load(memory, offset, dtype, lanes) for memory, dtype in zip(components, types(op))]
    return out


def save(body: CpuBody, memories: list[list[Memory]], offset, vals) -> None:
    """Store accumulators, a flat list, at ``offset``."""
    for memory, val in zip([m for components in memories for m in components], vals):
        body.buffer_store(memory, offset, val)


def finish(spec: KernelSpec, together: Size = 1) -> CpuKernel:
    """The kernel that combines partial accumulators and computes everything that depends on them. A task is a point of
    the outer kept loops, and iterates over the innermost one in vectors.

    The partial accumulators are [split, outer kept loops, together, innermost kept loop]."""
    body, analysis, split = CpuBody(spec._replace(name=f"{spec.name}_finish")), spec.analysis, spec.params.split
    e, loops, (phase,), many = body.e, analysis.loops(analysis.kept), analysis.phases, together != 1
    kept, columns = size_of(analysis.kept), size_of(loops[-1]) if loops else 1
    memories = buffers(body, phase, kept, sz.mul(split, together))
    body.lanes = lanes = body.lanes if loops else 1

    def combine(env: Env, row: Val, column: Val) -> None:
        def add(partial: Val, state: list[Val]) -> list[Val]:
            of_partial = e.mul(partial, body.size(sz.mul(kept, together)))
            start = e.add(of_partial, e.mul(row, body.size(sz.mul(columns, together))))

            def one(k: Val, state: list[Val]) -> list[Val]:
                offset = e.add(start, e.add(e.mul(k, body.size(columns)), column))
                partial = load(body, phase, memories, offset, lanes)
                if many:
                    return compensated_sums.added(e, phase, state, partial)
                pairs = zip(phase, red.grouped(phase, state), red.grouped(phase, partial))
                return [v for op, a, b in pairs for v in red.combine(e, op, a, b)]

            zero = body.constant(0)
            return body.loop(zero, body.size(together), 1, state, one) if many else one(zero, state)

        begin = compensated_sums.nothing(e, phase, lanes) if many else body.identities(phase, lanes)
        done = body.loop(body.constant(0), body.constant(split), 1, begin, add)
        body.bind(phase, red.grouped(phase, compensated_sums.settled(e, phase, done) if many else done), env)
        store_all(body, analysis.outputs, [env], analysis.kept)

    def task(index: Val) -> None:
        if not loops:
            combine({}, body.constant(0), body.constant(0))
            return
        env = body.point(loops[:-1], index)

        def step(indices, mask, state):
            combine(body.placed(env, loops[-1], indices[0]), index, body.k.scalar(indices[0].base))

        body.vectors(body.constant(0), body.size(columns), lanes, [], step)

    outer = points_of(loops[:-1])
    return body.kernel(task, outer, rows_grain(sz.mul(columns, split, together), body.host))
