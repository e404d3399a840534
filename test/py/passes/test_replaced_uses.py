"""Replacement of values by their uses, beside the walk over the whole block."""

import pytest

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Block, Op, Uses, Value


def _block() -> tuple[Block, list[Value]]:
    """``x`` read by an op, twice by another, in a nested block and its returns, and returned; and more values."""
    x, y, z = (Value(dt.f32, (4,)) for _ in range(3))
    inner = Op("add", [x, y], {}, [Value(dt.f32, (4,))])
    nested = Block([], [inner], [inner.result, x], "scf.yield")
    ops = [
        Op("neg", [x], {}, [Value(dt.f32, (4,))]),
        Op("mul", [x, x], {}, [Value(dt.f32, (4,))]),
        Op("scf.if", [z], {}, [Value(dt.f32, (4,)) for _ in range(2)], [nested]),
    ]
    return Block([x, y, z], ops, [x, ops[0].result]), [x, y, z]


def _names(block: Block, names: dict[Value, int]) -> list:
    """The structure of ``block`` with values as numbers, in the order of their first use."""

    def number(values):
        return [names.setdefault(v, len(names)) for v in values]

    body = [
        (op.name, number(op.operands), [_names(b, names) for b in op.blocks], number(op.results)) for op in block.ops
    ]
    return [body, number(block.returns)]


@pytest.mark.parametrize("chained", [False, True])
def test_uses_replace_as_blocks_do(chained):
    found = []
    for keeps in (False, True):
        block, (x, y, z) = _block()
        names = {x: 0, y: 1, z: 2}
        target = Uses(block) if keeps else block
        new = Op("exp", [y], {}, [Value(dt.f32, (4,))])
        block.ops.insert(0, new)
        if keeps:
            target.add(new)
        target.replace(x, new.result)
        if chained:  # what used x uses y in the end, and what used y uses z
            target.replace(y, z)
            target.replace(new.result, y)
        found.append(_names(block, names))
    assert found[0] == found[1]
