"""Joined and shifted rows piece by piece, in the emulator: it finds what is read outside of a tensor, or stored
twice."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from heuristics_override import fit
from test_gpu_emulated import check, normal

import mlirfuse
from mlirfuse import numpy as mnp
from mlirfuse.core.errors import ScheduleError
from mlirfuse.ir import dtypes as dt
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.gpu.scheduler_list import SCHEDULERS
from mlirfuse.schedule.scheduler import SizedCall

bf16, f16, f32 = ml_dtypes.bfloat16, np.float16, np.float32


def is_pieces(params) -> bool:
    return params.scheduler == "concat"


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    fit(monkeypatch, "concat", fewest=(1, 1), bytes=8, reads=4, least=0, wide=1, mean=0, rolls=True)


def joined(*shapes, dtype=bf16):
    return [normal(*shape, dtype=dtype) for shape in shapes]


def assigned(low, high):
    def fn(x, y):
        out = x.copy()
        out[:, low : x.shape[1] - high] = y * 2
        return out

    return fn


def beside(*parts):
    return np.concatenate(parts, -1) * 2


@pytest.mark.parametrize("dtype", [np.int16, np.int8, f16])
def test_what_an_earlier_stage_passes_on(dtype):
    """A smallest row, which is read at any element, as an argument is."""
    x = np.random.default_rng(0).integers(-50, 50, (8, 37)).astype(dtype)

    def less_the_least(x):
        joined = np.concatenate([x, x[:, :21]], 1)
        return joined - joined.min(0, keepdims=True)

    def padded_less_the_least(x):
        padded = np.pad(x, ((0, 0), (1, 2)))
        return padded - padded.min(0, keepdims=True)

    for fn in (less_the_least, padded_less_the_least):
        check(fn, x, only=lambda p: p.scheduler == "multi_stage" and is_pieces(p.own.schedules[-1]), candidates=2)


@pytest.mark.parametrize("width", range(1, 41))
def test_every_width(width):
    """Parts that are narrower than a vector, and wider ones, in all orders."""
    dtype = (bf16, f16)[width % 2]
    check(beside, *joined((5, width), (5, 17), (5, 41 - width), dtype=dtype), only=is_pieces, candidates=1)
    check(beside, *joined((3, 19), (3, width), dtype=dtype), only=is_pieces, candidates=1)


@pytest.mark.parametrize("width", [9, 15, 17, 23, 33, 41])
@pytest.mark.parametrize("rows", [1, 2, 31, 67])
def test_stacks(width, rows):
    inputs = joined(*[(rows, width)] * 3)
    check(lambda x, y, z: np.stack([x, y * 2, z + 1], 1), *inputs, only=is_pieces, candidates=3)


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.uint16, np.int32, f32, np.int64, np.float64])
def test_every_size_of_elements(dtype):
    values = [(normal(7, n) * 50).astype(dtype) for n in (21, 3, 34)]
    check(lambda *parts: np.concatenate(parts, 1), *values, only=is_pieces, candidates=1)
    check(lambda x: np.roll(x, 5, 1).copy(), values[2][:, :33].copy(), only=is_pieces, candidates=1)


def test_elements_of_different_sizes():
    x, y, z = normal(9, 21, dtype=bf16), normal(9, 35), (normal(9, 5) * 20).astype(np.int8)
    wider = lambda x, y, z: np.concatenate([x.astype(f32), y, z.astype(f32)], 1)  # noqa: E731
    check(wider, x, y, z, only=is_pieces, candidates=1)
    several = lambda x, y: (lambda u: (u * 2, u > 0))(np.concatenate([x, y], 1))  # noqa: E731
    check(several, x, normal(9, 20, dtype=bf16), only=is_pieces, candidates=1)


@pytest.mark.parametrize("fn, shapes", [
    (lambda x: np.pad(x, ((0, 0), (3, 6))), [(9, 31)]),
    (lambda x: np.pad(x, ((1, 2), (1, 0)), constant_values=3) + 1, [(9, 40)]),
    (lambda x: np.pad(x, ((0, 0), (20, 0))), [(9, 15)]),
    (assigned(3, 3), [(9, 33), (9, 27)]),
    (assigned(0, 9), [(9, 33), (9, 24)]),
    (assigned(17, 0), [(9, 41), (9, 24)]),
    (lambda x: np.roll(x, 5, 1) + 1, [(9, 33)]),
    (lambda x: np.roll(x, -1, 1) + x, [(9, 33)]),
    (lambda x: x[:, 3:-2] * 2, [(9, 38)]),
    (lambda x: x[1:, 1:] - x[:-1, :-1], [(9, 34)]),
    (lambda x: x[:, ::2] + 1, [(9, 34)]),
    (lambda x: x[:, ::-1][:, 1:] + 1, [(9, 34)]),
    (lambda x, b: x[1:, 2:] * 2 + b, [(9, 43), (41,)]),
    (lambda x, b: np.concatenate([x, x[:, 1:]], 1) + b, [(9, 20), (9, 1)]),
    (lambda x, b: np.concatenate([x, b], 1)[:, 1:] + 1, [(9, 20), (9, 18)]),
    (lambda x, b: np.concatenate([np.pad(x, ((0, 0), (1, 2))), np.roll(b, 2, 1)], 1), [(9, 20), (9, 18)]),
    (lambda x: x[:, 1:] + np.arange(x.shape[1] - 1, dtype=x.dtype), [(9, 42)]),
    (lambda x, y: np.concatenate([x, y]) * 2, [(37,), (24,)]),
    (lambda x, y: np.stack([x[:, :, 1:], y], 2), [(3, 5, 18), (3, 5, 17)]),
    (lambda x: x[:, 1:, 1:] * 2, [(3, 5, 20)]),
    (lambda x: np.concatenate([x, np.zeros((9, 5), x.dtype)], 1), [(9, 20)]),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [f16, f32])
def test_joins_and_shifts(fn, shapes, dtype):
    check(fn, *joined(*shapes, dtype=dtype), only=is_pieces, candidates=2)


@pytest.mark.parametrize("rows", [1, 2, 4, 16, 64, 256])
def test_rows_at_a_time(rows):
    changed = lambda p: p._replace(coalesced_rows=rows, tx=256)  # noqa: E731
    check(beside, *joined((30, 19), (30, 3), (30, 25)), only=is_pieces, candidates=1, changed=changed)


def test_wide_pieces_that_others_compute():
    """A wide piece without blocks of its own lies between others."""
    inputs = joined((8, 19), (8, 30), (8, 16))
    for wide in ((0,), (1,), (2,), (0, 2), (1, 2)):
        check(beside, *inputs, only=is_pieces, candidates=1, changed=lambda p, w=wide: p.replaced(wide=w))


def test_positions_of_64_bits():
    changed = lambda p: p._replace(access=p.access._replace(index=dt.i64))  # noqa: E731
    check(beside, *joined((9, 19), (9, 3), (9, 25)), only=is_pieces, candidates=1, changed=changed)


@pytest.mark.parametrize("dtype", [f16, f32])
def test_inputs_that_are_not_contiguous(dtype):
    x, y = joined((9, 40), (30, 9), dtype=dtype)
    check(beside, x[:, :19], x[:, :23], only=is_pieces, candidates=1)
    check(beside, x[::2, :19], y.T[4:], only=is_pieces, candidates=1)  # along a row elements are not neighbours


def test_inputs_at_odd_addresses():
    unaligned = lambda p: p._replace(access=p.access._replace(aligns=(2, 16, 2, 16)))  # noqa: E731
    inputs = joined((9, 19), (9, 3), (9, 25))
    lowered = mlirfuse.jit(beside, target="cuda:sm_90").lower(*inputs)
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    (step,), (first, _, last) = program.steps, program.graph.args
    odd = {first: 2, last: 6}
    chosen = SCHEDULERS.choose(step.analysis, SizedCall(lowered.env, odd, program.target.properties))
    check(beside, *inputs, only=is_pieces, candidates=1, changed=lambda p: chosen)
    assert chosen == unaligned(chosen) and is_pieces(chosen)
    assert not is_pieces(
        SCHEDULERS.choose(
            step.analysis, SizedCall(lowered.env, {step.analysis.outputs[0]: 4}, targets.of("cuda:sm_90").properties)
        )
    )


@pytest.mark.parametrize("given, why", [
    ({"wide": (3,)}, "wide"), ({"wide": (1,)}, "wide"), ({"wide": ()}, "wide"), ({"coalesced_rows": 3}, "rows"),
    ({"tx": 96}, "power"),
])  # fmt: skip
def test_what_cannot_be(given, why):
    inputs = joined((9, 19), (9, 3), (9, 25))
    with pytest.raises(ScheduleError, match=why):
        mlirfuse.jit(beside, target="cuda:sm_90", schedule={0: {"scheduler": "concat", **given}}).lower(
            *inputs
        ).as_text("tiled")


def test_the_choice(monkeypatch):
    """Wide and large enough, of half types, and joined: as the model of the machine says."""
    monkeypatch.undo()

    def chosen(fn, *shapes, dtype=bf16):
        created = mlirfuse.jit(fn, target="cuda:sm_90").lower(*[np.empty(shape, dtype) for shape in shapes])
        return re.findall(r'scheduler = "(\w+)", tx', created.as_text("segmented"))[0]

    def erf_beside(*parts):
        return mnp.erf(np.concatenate(parts, -1))

    assert chosen(beside, (9000, 577), (9000, 331), (9000, 349)) == "concat"
    assert chosen(beside, (9000, 577), (9000, 331), (9000, 349), dtype=f32) == "pointwise"
    assert chosen(beside, (9000, 280), (9000, 136)) == "pointwise"
    assert chosen(beside, (900, 577), (900, 331)) == "pointwise"
    assert chosen(beside, (9000, 1), (9000, 131), (9000, 49)) == "pointwise"
    assert chosen(erf_beside, (9000, 177), (9000, 131), (9000, 49)) == "concat"
    assert chosen(lambda x: np.roll(x, 3, 1), (9000, 1001)) == "pointwise"
    assert chosen(beside, (90000, 7), (90000, 13)) == "pointwise"  # shorter than a vector
    assert chosen(lambda x: x[:, 1:] * 2, (9000, 1000)) == "pointwise"


def test_caches_are_told(monkeypatch):
    fit(monkeypatch, "access", staying=0)
    check(beside, *joined((9, 19), (9, 3), (9, 25)), only=is_pieces, candidates=1)
