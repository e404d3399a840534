"""Vectors of what is joined, of several parts or of one, on the emulator."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from test_gpu_emulated import check, fit, normal

import mlirfuse
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets

f16, f32, bf16 = np.float16, np.float32, ml_dtypes.bfloat16


def of_vectors(params) -> bool:
    return params.scheduler == "pointwise" and params.access.lanes > 1


@pytest.fixture(params=[1 << 30, 2])
def wide_or_narrow(request, monkeypatch):
    """With the vectors that larger tensors have, and with narrower ones."""
    fit(monkeypatch, "pointwise", least_bytes=16, spread_coalesced=request.param)


def of(shapes, dtype):
    if dtype in (np.bool_, np.int8):
        return [(normal(*shape) * 50).astype(np.int8).astype(dtype) for shape in shapes]
    return [normal(*shape, dtype=dtype) for shape in shapes]


def beside(*parts):
    return np.concatenate(parts, -1)


def overlapping(x, y, z):
    """Two joins, some of whose parts are the same elements at the same places."""
    return np.concatenate([x, y, z], 1) + np.concatenate([x, z * 2, y], 1)


@pytest.mark.parametrize("dtype", [f32, f16, bf16, np.int8, np.bool_])
@pytest.mark.parametrize("fn, shapes", [
    (beside, [(16, 13), (16, 5), (16, 8)]),
    (beside, [(16, 16), (16, 32), (16, 8)]),  # each vector in one part
    (beside, [(48, 1), (48, 1), (48, 1)]),  # in many of them
    (beside, [(16, 13), (16, 6)]),
    (lambda x, y: np.stack([x, y], 1), [(16, 13), (16, 13)]),
    (lambda x, y: np.concatenate([x, y], 1), [(8, 5, 8), (8, 4, 8)]),
    (lambda x, y, z: np.concatenate([x, y, z], 0), [(5, 8), (1, 8), (4, 8)]),
])  # fmt: skip
def test_parts_of_every_type(fn, shapes, dtype, wide_or_narrow):
    check(fn, *of(shapes, dtype), only=of_vectors, candidates=3)


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
@pytest.mark.parametrize("fn, shapes", [
    (lambda x, y: np.concatenate([x, y * 2], 1), [(16, 13), (16, 6)]),
    (lambda x, y: np.concatenate([x, y * 2], 1), [(16, 16), (16, 8)]),
    (lambda x, y: np.stack([x + 1, np.sin(y)], 1), [(16, 15), (16, 15)]),
    (lambda x, y: np.stack([x, x * 2, x + y], 1), [(16, 15), (1, 1)]),
    (lambda x, y: np.concatenate([x[:, ::2], y[:, ::-1] * 3, x[:, 4:9]], 1), [(16, 13), (16, 6)]),
    (lambda x, y: np.concatenate([x.astype(np.float32), y + np.float32(1)], 1), [(16, 13), (16, 6)]),
    (lambda x, y: np.concatenate([x[:, ::2], y * 2], 1), [(16, 32), (16, 16)]),
    (lambda x, y: np.concatenate([x, np.broadcast_to(y[:, :1], (16, 4))], 1), [(16, 13), (16, 6)]),
    (lambda x, y: np.concatenate([x * y[:, :1], y], 1), [(16, 13), (16, 6)]),  # of two inputs
    (lambda x, y: np.concatenate([x * y, y], 1), [(16, 16), (16, 16)]),
    (lambda x, y: np.concatenate([x, np.zeros_like(y)], 1), [(16, 13), (16, 6)]),  # of none
    (lambda x, y: np.roll(np.concatenate([x, y * 2], 1), 3, 1), [(16, 13), (16, 6)]),
    (lambda x, y: np.concatenate([np.concatenate([x, y], 1) * y[:, :1], x], 1), [(16, 14), (16, 6)]),
])  # fmt: skip
def test_what_parts_are_made_of(fn, shapes, dtype, wide_or_narrow):
    check(fn, *of(shapes, dtype), only=of_vectors, candidates=3)


@pytest.mark.parametrize("dtype", [f32, f16])
def test_joins_that_share_parts(dtype, wide_or_narrow):
    check(overlapping, *of([(16, 13), (16, 5), (16, 8)], dtype), only=of_vectors, candidates=3)


@pytest.mark.parametrize("widths", [(13, 6), (16, 8)])
def test_parts_of_other_types(widths, wide_or_narrow):
    """In memory; what is joined has one."""
    x, y = normal(16, widths[0], dtype=f16), normal(16, widths[1])
    check(lambda x, y: np.concatenate([x.astype(f32), y * 2], 1), x, y, only=of_vectors, candidates=3)


def test_parts_of_other_alignment(monkeypatch):
    fit(monkeypatch, "pointwise", least_bytes=16)
    x, y = normal(16, 16, dtype=f16), normal(16, 12, dtype=f16)[:, :8]
    lowered = mlirfuse.jit(lambda x, y: np.concatenate([x, y * 2], 1), target="cuda:sm_90").lower(x, y)
    loads = re.findall(r"ld\.global\.nc\.(\S+)", lowered.as_text("ptx"))
    assert loads and "v4.b32" not in loads  # rows of y begin at multiples of eight bytes


@pytest.mark.parametrize("fn, parts", [
    (beside, 3),
    (lambda x, y, z: beside(x, y, z * 2), 3),
    (lambda x, y: np.concatenate([x[:, 8:], y * 2], 1), 2),
    (lambda x, y: np.stack([x + 1, y], 1), 2),
])  # fmt: skip
def test_each_vector_is_loaded_once(fn, parts):
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*[np.empty((4096, 256), f16) for _ in range(parts)])
    (params,) = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env).parameters(lowered.env, {})
    vectors = params.vectors_per_thread * params.rows_per_thread
    assert vectors > 1
    assert len(re.findall(r"\bld\.global", lowered.as_text("ptx"))) == 2 * vectors  # of whole tiles, and of others


def standardized_channels(*parts):
    """Norms of the channels of images that are joined along them."""
    joined = np.concatenate([part.astype(np.float32) for part in parts], 1)
    centred = joined - joined.mean((0, 2), keepdims=True)
    return np.maximum(centred / np.sqrt((centred**2).mean((0, 2), keepdims=True) + 1e-5), 0)


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("widths, pixels", [((2, 3, 1), 64), ((1,) * 5, 24), ((4, 4), 21)])
def test_norms_of_joined_channels(widths, pixels, dtype):
    check(standardized_channels, *of([(3, width, pixels) for width in widths], dtype), bound=1e-5)


@pytest.mark.parametrize("fn", [
    standardized_channels,
    lambda *parts: np.concatenate(parts, 1) * 2,
    lambda *parts: np.concatenate([part * 2 for part in parts], 1),
])  # fmt: skip
def test_a_vector_of_one_part_is_one_load(fn):
    """However many parts are joined along another axis: the pointer is selected, not the value."""
    loads = []
    for count in (2, 12):
        parts = [np.zeros((64, 32, 784), bf16) for _ in range(count)]
        text = mlirfuse.jit(fn, target="cuda:sm_90").lower(*parts).as_text("ptx")
        loads.append(len(re.findall(r"ld\.global\S*\.v", text)))
    assert loads[1] < 2 * loads[0]  # schedules differ


@pytest.mark.parametrize("axis", [0, 1])
def test_inputs_that_are_also_read_where_a_part_ends(axis):
    """What one load gives where another part is selected is not the input's element there."""

    def first(x, y):
        return np.split(x, 2, axis)[0] * 2, np.split(y, 2, axis)[0] * 3

    for fn in (
        lambda x, y: np.concatenate(first(x, y), axis) + x,
        lambda x, y: np.concatenate(first(y, x), axis) * y,
        lambda x, y: (np.concatenate(first(x, y), axis), x * 5),
        lambda x, y: np.concatenate(np.split(x * 2, 2, axis)[:1] + np.split(y, 2, axis)[:1], axis) - x * 2,
    ):
        for dtype in (np.float32, np.float16):
            check(fn, normal(16, 64, dtype=dtype), normal(16, 64, dtype=dtype), candidates=3, bound=5e-3)
