"""Stencils of a GPU: windows that end outside of the tensor, read by vectors that neighbours share."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from test_gpu_emulated import check, normal

import mlirfuse
from mlirfuse.core.errors import ScheduleError
from mlirfuse.lowering import host_plan
from mlirfuse.runtime import load
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.gpu.scheduler_list import SCHEDULERS
from mlirfuse.schedule.scheduler import SizedCall


def pooled(x, kernel=3, stride=1, padding=1, dilation=1, combine=np.add):
    """Windows over the last two dimensions."""
    edges = [(0, 0)] * (x.ndim - 2) + [(padding, padding)] * 2
    p, reach = np.pad(x, edges), (kernel - 1) * dilation
    ends = [n - reach for n in p.shape[-2:]]
    found = None
    for i, j in itertools.product(range(kernel), repeat=2):
        at = p[..., i * dilation : i * dilation + ends[0] : stride, j * dilation : j * dilation + ends[1] : stride]
        found = at if found is None else combine(found, at)
    return found


def spread(g, size, stride=2, padding=1, windows=2):
    """At each place of images of ``size``, of the windows over the last two dimensions that it is in: those that begin
    at the last multiple of ``stride`` before it, and at ``windows - 1`` before that one."""
    *lead, h, w = g.shape
    each = np.broadcast_to(g[..., :, None, :, None], (*lead, h, stride, w, stride)).reshape(
        *lead, h * stride, w * stride
    )
    found = None
    for back in itertools.product(range(windows), repeat=2):
        more = [(b * stride, max(0, n + padding - b * stride - m)) for b, n, m in zip(back, size, each.shape[-2:])]
        at = np.pad(each, [(0, 0)] * len(lead) + more)
        at = at[..., padding : padding + size[0], padding : padding + size[1]]
        found = at if found is None else found * 2 + at
    return found


def only_stencils(params) -> bool:
    return params.scheduler == "stencil"


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("how, shape", [
    (dict(), (3, 9, 16)),
    (dict(), (2, 8, 24)),
    (dict(), (2, 5, 13)),  # vectors would end in the middle of a row
    (dict(stride=2), (2, 3, 17, 32)),
    (dict(kernel=2, stride=2), (3, 15, 31)),
    (dict(kernel=5, padding=2), (2, 11, 16)),
    (dict(stride=3), (2, 14, 48)),
    (dict(dilation=2), (2, 12, 18)),
    (dict(dilation=3, padding=2, stride=2), (2, 20, 36)),
    (dict(padding=2), (2, 4, 4)),  # whole windows outside
    (dict(kernel=7, padding=3), (1, 2, 8)),
])  # fmt: skip
def test_windows_with_padding(how, shape, dtype):
    x = normal(*shape) * (30 if dtype is np.int8 else 1)
    cut = dtype is not np.float32 and how.get("kernel", 3) > 3  # what large windows of little are read from is stored
    only = (lambda _: True) if cut else only_stencils
    check(lambda x: pooled(x, **how), x.astype(dtype), candidates=16, only=only)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
@pytest.mark.parametrize("how, size, shape", [
    (dict(), (8, 16), (3, 4, 8)),
    (dict(), (7, 16), (2, 2, 4, 8)),
    (dict(padding=0), (12, 24), (2, 5, 11)),  # places beyond the last window
    (dict(windows=3), (16, 32), (2, 8, 16)),
    (dict(stride=4, padding=2), (16, 16), (3, 5, 5)),
    (dict(stride=3), (12, 24), (2, 4, 9)),  # no vector begins with a window
    (dict(stride=3, windows=1), (12, 16), (2, 5, 6)),
    (dict(), (6, 10), (3, 3, 5)),
])  # fmt: skip
def test_places_read_their_windows(how, size, shape, dtype):
    """As gradients of pools with a stride do."""
    g = (np.abs(normal(*shape)) * 8).astype(dtype)
    check(lambda g: spread(g, size, **how), g, candidates=16, only=only_stencils if how.get("windows") != 1 else None)


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2)])
def test_images_that_lie_otherwise(order):
    """Strides are those of the image that is read, whatever they are."""
    inverse = np.argsort(order)
    x = normal(6, 10, 16).transpose(order).copy().transpose(inverse)
    check(lambda x: pooled(x) * 2, x, candidates=8)


def test_parts_of_a_larger_tensor():
    """Lanes outside read other elements of the tensor, never beyond its memory."""
    check(lambda x: pooled(x, combine=np.maximum), normal(4, 11, 19)[:, 1:-1, 1:17], candidates=8)


def test_with_what_is_around():
    """Computed elements are read, and a residual and a bias of each image added."""

    def f(x, y, b):
        return np.maximum(pooled(x * 0.5 + 1), y) + b[:, None, None]

    check(f, normal(3, 9, 16), normal(3, 9, 16), normal(3), candidates=8, only=only_stencils)


def test_each_element_is_loaded_once():
    """Of a thread with four vectors of 16 bytes below each other: six rows of a vector and those on both
    sides."""
    x = np.ones((64, 128, 256), np.float32)
    lowered = mlirfuse.jit(pooled, target="cuda:sm_90").lower(x)
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    (params,) = program.parameters(lowered.env, {})
    assert (params.scheduler, params.access.lanes, params.rows_per_thread) == ("stencil", 4, 4)
    text = load.ptx_of(program.target.write(program, (params,), program.slots()).tiled(), "sm_90")
    assert len(re.findall(r"ld\.global", text)) == 18


def test_each_window_is_loaded_once():
    """Of four vectors below each other, with a stride of 2: four rows of windows, each in three pairs."""
    lowered = mlirfuse.jit(lambda g: spread(g, (112, 128)), target="cuda:sm_90").lower(
        np.ones((64, 56, 64), np.float32)
    )
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    (step,), call = program.steps, SizedCall(lowered.env, {}, program.target.properties)
    candidates = SCHEDULERS.candidates(step.analysis, call)
    params = next(p for p in candidates if (p.access.lanes, p.rows_per_thread) == (4, 4))
    assert (params.scheduler, params.own.at_once) == ("stencil", 2)
    text = load.ptx_of(program.target.write(program, (params,), program.slots()).tiled(), "sm_90")
    assert len(re.findall(r"ld\.global", text)) == 12


def test_conditions_that_another_program_computed():
    """A stencil after a product reads the condition from memory, whatever computed it."""

    def f(x, y):
        inner = np.arange(x.shape[-1])[None, None] >= x.shape[-1] // 2
        product = np.where(inner, pooled(x), 0) @ np.ones((x.shape[-1], x.shape[-1]), np.float32)
        return product, np.where(inner, pooled(y + product[:1]), 0)

    given = np.ones((8, 64, 128), np.float32), np.ones((12, 64, 128), np.float32)
    lowered = mlirfuse.jit(f, target="cuda:sm_90").lower(*given)
    region = host_plan.regions_of(host_plan.plan(lowered.segmented()))[-1]
    assert "ge" in [v.op.name for v in region.graph.args if v.op is not None]
    program = Program(region.graph, targets.of("cuda:sm_90"), lowered.env)
    (params,) = program.parameters(lowered.env, {})
    assert params.scheduler == "stencil"
    assert load.ptx_of(program.target.write(program, (params,), program.slots()).tiled(), "sm_90")


@pytest.mark.parametrize("wrong", [{"rows_per_thread": 20}, {"at_once": 3}, {"lanes": 8}, {"tx": 96}])
def test_impossible_parameters(wrong):
    lowered = mlirfuse.jit(pooled, target="cuda:sm_90").lower(np.ones((2, 16, 16), np.float32))
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    (step,), call = program.steps, SizedCall(lowered.env, {}, program.target.properties)
    params = next(SCHEDULERS.candidates(step.analysis, call))
    if "lanes" in wrong:
        params = params._replace(access=params.access._replace(lanes=wrong["lanes"]))
    else:
        params = params.replaced(**wrong)
    with pytest.raises(ScheduleError):
        SCHEDULERS.check(step.analysis, params, call)
