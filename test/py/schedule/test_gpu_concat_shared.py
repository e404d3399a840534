"""Rows joined of short parts in shared memory, in the emulator: it finds what is read outside of a tensor, stored
twice, or read before a barrier."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from heuristics_override import fit
from test_gpu_emulated import check, normal, results_of

import mlirfuse
from mlirfuse import numpy as mnp
from mlirfuse.core.errors import ScheduleError
from mlirfuse.ir import dtypes as dt
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.gpu.scheduler_list import SCHEDULERS
from mlirfuse.schedule.scheduler import SizedCall

bf16, f16, f32 = ml_dtypes.bfloat16, np.float16, np.float32


def is_joins(params) -> bool:
    return params.scheduler == "concat_shared"


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    fit(monkeypatch, "concat_shared", bytes=8, least=0)


def parts(*shapes, dtype=bf16):
    return [normal(*shape, dtype=dtype) for shape in shapes]


def beside(*parts):
    return np.concatenate(parts, -1) * 2


def chosen(fn, *inputs, aligned=16):
    """The parameters for the only kernel of ``fn``, whose first input begins at a multiple of so many bytes."""
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*inputs)
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    (step,) = program.steps
    odd = {step.analysis.inputs[0]: aligned}
    return SCHEDULERS.choose(step.analysis, SizedCall(lowered.env, odd, program.target.properties))


def few_rows(p):
    """``p`` with as few rows a block as can be: some blocks have all of theirs."""
    return p._replace(coalesced_rows=p.access.lanes, tx=64)


def runs(fn, *inputs, **options):
    check(fn, *inputs, only=is_joins, candidates=1, **options)
    check(fn, *inputs, only=is_joins, candidates=1, changed=few_rows, **options)


@pytest.mark.parametrize("width", range(8, 25))
def test_every_width(width):
    dtype = (bf16, f16)[width % 2]
    runs(beside, *parts((21, width), (21, 17), (21, 33 - width), dtype=dtype))


@pytest.mark.parametrize("shape", [(21, 17), (9, 41), (3, 5, 9)])
def test_stacks_before_the_last_dimension(shape):
    runs(lambda x, y: np.stack([x, y * 2], -2), *parts(shape, shape))
    runs(lambda x, y, z: np.stack([x, z + 1, y], -2) if x.ndim == 2 else np.stack([x, y, z], 2), *parts(*[shape] * 3))


def test_what_is_only_written_is_held_as_it_is_written():
    """Half as many bytes of shared memory, of as many rows, where nothing computes with what is joined."""
    inputs = parts((64, 133), (64, 147))
    kept, read = (
        chosen(fn, *inputs) for fn in (lambda x, y: np.concatenate([x, y * 2], 1), lambda x, y: beside(x, y * 2))
    )
    assert is_joins(kept) and is_joins(read)
    assert kept.coalesced_rows * read.own.shared_bytes == 2 * read.coalesced_rows * kept.own.shared_bytes


@pytest.mark.parametrize("join", [np.concatenate, np.stack])
@pytest.mark.parametrize("moved", [lambda x: np.roll(x, 1, 0), lambda x: x[::-1] * 2])
def test_rows_beside_others_of_the_same_tensor(join, moved):
    """A part whose rows are others than those of the result is read where they are."""

    def fn(x):
        v = moved(x)
        return np.maximum(v, 0), v, join([v, x], 1), v.sum(1)

    (x,) = parts((16, 19), dtype=f16)
    for got, want in zip(results_of(fn, x), fn(x.astype(np.float64)), strict=True):
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("rows", [2, 7, 8, 9, 16, 31, 40])
@pytest.mark.parametrize("dtype", [bf16, f32, np.float64])
def test_every_number_of_rows(rows, dtype):
    runs(beside, *parts((rows, 9), (rows, 21), (rows, 11), dtype=dtype))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, bool])
def test_numbers_that_are_no_floats(dtype):
    x, y = (np.arange(n * 19).reshape(19, n) % 7 < 3 if dtype is bool else np.arange(n * 19).reshape(19, n).astype(dtype)
            for n in (9, 30))  # fmt: skip
    runs(lambda x, y: np.concatenate([y, x], 1) | True if dtype is bool else np.concatenate([y, x], 1) + 1, x, y)


@pytest.mark.parametrize("fn, shapes", [
    (lambda x, y, bias: np.concatenate([x, y], 1) + bias, [(21, 9), (21, 30), (39,)]),
    (lambda x, y, scale: np.concatenate([x, y], 1) * scale, [(21, 9), (21, 30), (21, 1)]),
    (lambda x, y, z: np.concatenate([x, y], 1) * z, [(21, 9), (21, 30), (21, 39)]),
    (lambda x, y, w: np.concatenate([x * w, y + 1], 1) + 1, [(21, 9), (21, 30), (9,)]),
    (lambda x, y, z: np.concatenate([x * z, np.exp(y)], 1), [(21, 9), (21, 30), (21, 9)]),
    (lambda x, y: (np.concatenate([x, y], 1), np.concatenate([x, y], 1) * 3), [(21, 9), (21, 30)]),
    (lambda x, y: np.concatenate([x, y], 2) * 2, [(3, 7, 9), (3, 7, 30)]),
    (lambda x, y: np.concatenate([x, y], 1).astype(np.float32) * 2, [(21, 9), (21, 30)]),
    (lambda x: np.concatenate([x, x, x], 1) * 2, [(21, 13)]),
    (lambda x: np.concatenate([x, np.ones((21, 9), x.dtype)], 1), [(21, 13)]),
    (lambda x: np.pad(x, ((0, 0), (9, 8)), constant_values=3) * 2, [(21, 13)]),
    (lambda x: np.pad(x * 2, ((0, 0), (0, 9))) + 1, [(21, 13)]),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [f16, f32])
def test_what_stands_around_a_join(fn, shapes, dtype):
    runs(fn, *parts(*shapes, dtype=dtype))


def test_candidates():
    check(beside, *parts((90, 77), (90, 131), (90, 49)), only=is_joins, candidates=4)


def test_positions_of_64_bits():
    inputs = parts((29, 19), (29, 9), (29, 25))
    wide = lambda p: few_rows(p)._replace(access=p.access._replace(index=dt.i64))  # noqa: E731
    check(beside, *inputs, only=is_joins, candidates=1, changed=wide)


def test_not_what_lies_otherwise_in_memory():
    """Parts with gaps between their rows, with rows along another dimension, at odd addresses; rows shorter than a
    vector, or that are vectors by themselves."""

    def taken(fn, *inputs, aligned=16):
        return is_joins(chosen(fn, *inputs, aligned=aligned))

    x, y = parts((32, 19), (32, 9))
    assert taken(beside, x, y) and not taken(beside, x, y, aligned=2)
    assert not taken(beside, parts((32, 30))[0][:, :19], y)
    assert not taken(beside, parts((19, 32))[0].T, y)
    assert not taken(beside, x, parts((32, 7))[0])
    assert not taken(beside, *parts((32, 24), (32, 16)))
    assert not taken(lambda x, y: beside(x, y)[:, 1:] * 2, x, y)
    assert not taken(lambda x, y: beside(x, y).T.copy(), x, y)


@pytest.mark.parametrize("given, why", [
    ({"coalesced_rows": 12}, "rows"), ({"coalesced_rows": 0}, "rows"), ({"tx": 96}, "power"), ({"shared_bytes": 64}, "shared"),
    ({"shared_bytes": 1 << 20}, "shared"),
])  # fmt: skip
def test_what_cannot_be(given, why):
    inputs = parts((29, 19), (29, 9), (29, 25))
    with pytest.raises(ScheduleError, match=why):
        mlirfuse.jit(beside, target="cuda:sm_90", schedule={0: {"scheduler": "concat_shared", **given}}).lower(
            *inputs
        ).as_text("tiled")


def test_the_choice(monkeypatch):
    """Short parts of half types where there is enough to do: as the model of the machine says."""
    monkeypatch.undo()

    def chosen(fn, *shapes, dtype=bf16):
        created = mlirfuse.jit(fn, target="cuda:sm_90").lower(*[np.empty(shape, dtype) for shape in shapes])
        return re.findall(r'scheduler = "(concat_shared|concat|pointwise)"', created.as_text("segmented"))[0]

    def gelu_beside(*parts):
        return mnp.gelu(np.concatenate(parts, -1))

    assert chosen(gelu_beside, (9000, 77), (9000, 131), (9000, 49)) == "concat_shared"
    assert chosen(beside, (9000, 77), (9000, 131), (9000, 49)) == "concat_shared"
    assert chosen(beside, (9000, 277), (9000, 131), (9000, 149)) == "concat_shared"
    assert chosen(gelu_beside, (9000, 277), (9000, 131), (9000, 149)) == "concat"
    assert chosen(beside, (9000, 777), (9000, 331), (9000, 555)) == "concat"
    assert chosen(gelu_beside, (9000, 777), (9000, 331)) == "concat"
    assert chosen(beside, (9000, 777), (9000, 331)) == "pointwise"
    assert chosen(lambda x, y: np.concatenate([x, y * 2], 1), (9000, 777), (9000, 331)) == "concat"
    assert chosen(beside, (900, 77), (900, 131)) == "pointwise"
