"""flatten-parallel-loops: one-dimensional parallel loops for GPU kernels."""

from __future__ import annotations

import math

from mlirfuse.core import mlir
from mlirfuse.passes.base import Pass, PassError, register

# What remains outside of loops: host code, which accesses no element.
_STAYS = {
    "arith.constant",
    "func.return",
    "memref.alloc",
    "memref.cast",
    "memref.collapse_shape",
    "memref.expand_shape",
    "memref.reinterpret_cast",
    "memref.subview",
    "memref.view",
    "scf.parallel",
}


@register
class FlattenParallelLoops(Pass):
    """Moves the code of functions that is outside of parallel loops (the loop of a full reduction, elements of 0-d
    buffers) into parallel loops of one iteration, and makes all parallel loops, whose bounds are constants,
    one-dimensional: MLIR's GPU passes then turn each into a kernel with a one-dimensional launch.

    Before::

        scf.parallel (%i, %j) = (%c0, %c0) to (%c4, %c5) step (%c1, %c1) { … }
        memref.store %x, %a[] : memref<f32>

    After::

        scf.parallel (%k) = (%c0) to (%c20) step (%c1) {
          %i = arith.divui %k, %c5
          %j = arith.remui %k, %c5
          …
        }
        scf.parallel (%k) = (%c0) to (%c1) step (%c1) {
          memref.store %x, %a[] : memref<f32>
        }
    """

    name = "flatten-parallel-loops"

    def run_on_module(self, module):
        with module.context:
            for function in module.body.operations:
                if function.operation.name == "func.func" and function.operation.regions[0].blocks:
                    block = function.operation.regions[0].blocks[0]
                    _put_into_loops(block)
                    for op in [op.operation for op in block.operations if op.operation.name == "scf.parallel"]:
                        _flatten(op)
        return module


def _put_into_loops(block) -> None:
    """Move each run of operations that access elements into a loop of its own."""
    runs: list[list] = [[]]
    for op in [op.operation for op in block.operations]:
        if op.name not in _STAYS:
            runs[-1].append(op)
        elif op.name == "scf.parallel":
            runs.append([])
    for run in filter(None, runs):
        _check_used_within(run)
        loop = _loop(run[-1], 1)
        body = loop.regions[0].blocks[0]
        for op in run:
            op.move_before(body.operations[len(body.operations) - 1])


def _check_used_within(run: list) -> None:
    """Raise PassError where a result is used after ``run``: a loop returns no values."""
    for op in run:
        for user in (use.owner.operation for result in op.results for use in result.uses):
            while user.parent != op.parent:
                user = user.parent.operation
            if user not in run:
                raise PassError(
                    f"flatten-parallel-loops: '{op.name}' is outside of loops, and '{user.name}' uses its result: "
                    "computations have to be on buffers"
                )


def _loop(before, extent: int):
    """Create an empty parallel loop of ``extent`` iterations before ``before``."""
    ir = mlir.ir
    index = ir.IndexType.get()
    with ir.InsertionPoint(before), before.location:
        zero, one, end = (_constant(n) for n in (0, 1, extent))
        loop = ir.Operation.create(
            "scf.parallel", [], [zero, end, one],
            {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1, 1, 0])}, regions=1,
        )  # fmt: skip
        body = loop.regions[0].blocks.append(index, arg_locs=[before.location])
    with ir.InsertionPoint(body), before.location:
        ir.Operation.create("scf.reduce", [], [])
    return loop


def _constant(number: int):
    ir = mlir.ir
    index = ir.IndexType.get()
    return ir.Operation.create(
        "arith.constant", [index], attributes={"value": ir.IntegerAttr.get(index, number)}
    ).result


def _flatten(loop) -> None:
    ir = mlir.ir
    body = loop.regions[0].blocks[0]
    rank = len(body.arguments)
    if rank == 1:
        return
    low, high, step = ([_known(v) for v in list(loop.operands)[at * rank : (at + 1) * rank]] for at in range(3))
    if any(low) or any(n != 1 for n in step):
        raise PassError("flatten-parallel-loops: a loop does not have the lower bound 0 and the step 1")
    created = _loop(loop, math.prod(high))
    target = created.regions[0].blocks[0]
    end = target.operations[0]
    with ir.InsertionPoint(end), loop.location:
        left = target.arguments[0]
        for at in reversed(range(rank)):
            index = left
            if at:
                extent = _constant(high[at])
                index = ir.Operation.create("arith.remui", [left.type], [left, extent]).result
                left = ir.Operation.create("arith.divui", [left.type], [left, extent]).result
            body.arguments[at].replace_all_uses_with(index)
    for op in [op.operation for op in body.operations][:-1]:
        op.move_before(end)
    loop.erase()


def _known(value) -> int:
    owner = value.owner
    if isinstance(owner, mlir.ir.Block) or owner.name != "arith.constant":
        raise PassError("flatten-parallel-loops: the bounds of a loop are not constant")
    return mlir.ir.IntegerAttr(owner.attributes["value"]).value
