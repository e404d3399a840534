"""Heuristics of GPUs without a file of their own: derived from properties, or measured by ``calibrate``."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import gpu_choices
import numpy as np
import pytest

import mlirfuse
from mlirfuse import _native
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.core.errors import MlirfuseError
from mlirfuse.runtime import cache, calibration
from mlirfuse.runtime.calibration import Calibration
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.gpu import tuning
from mlirfuse.schedule.gpu.tuning import h100
from mlirfuse.schedule.gpu.tuning.derived import derive
from mlirfuse.schedule.gpu.tuning.measured import Measured
from mlirfuse.schedule.scheduler import SizedCall
from mlirfuse.tools import calibrate

H100 = h100.PROPERTIES
CARDS = {
    "A100": DeviceProperties("sm_80", 108, 2048, 163 << 10, 40 << 20, 1555 * 10**9),
    "L40S": DeviceProperties("sm_89", 142, 1536, 99 << 10, 96 << 20, 864 * 10**9),
    "B200": DeviceProperties("sm_100", 148, 2048, 227 << 10, 126 << 20, 8000 * 10**9),
    "H100": H100,
}


@pytest.fixture(autouse=True)
def nothing_found(monkeypatch, tmp_path):
    """No heuristics are known yet, and the cache is empty."""
    monkeypatch.setattr(tuning, "_found", {})
    monkeypatch.setenv("MLIRFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MLIRFUSE_CACHE", "1")


def flat(heuristics: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(heuristics):
        value, path = getattr(heuristics, field.name), prefix + field.name
        yield from flat(value, path + ".") if dataclasses.is_dataclass(value) else [(path, value)]


def test_derived_values_of_an_h100_are_those_measured_on_it():
    for measured in (None, h100.MEASURED):
        found = dict(flat(derive(H100, measured)))
        for path, value in flat(h100.HEURISTICS):
            near = isinstance(value, int | float) or path == "scatter_add.least_bytes"
            assert found[path] == (pytest.approx(value, rel=0.05) if near else value), path


PER_SM = "rows.threads.parallel", "rows.threads.busy", "rows.shared.hiding", "scans.striped.busy"
DEVICE = "columns.little", "columns.coalesced_many", "columns.blocks.work", "pointwise.coalesced", "concat.least"
BANDWIDTH = "rows.looped.huge", "rows.stages.kept_bytes", "columns.cluster_bytes", "inner_outer.beginning"


@pytest.mark.parametrize("name", CARDS)
def test_thresholds_grow_with_what_they_depend_on(name):
    card = CARDS[name]
    for field, paths in (("sm_count", DEVICE), ("threads_per_sm", PER_SM), ("memory_bandwidth", BANDWIDTH)):
        before = None
        for factor in (0.25, 0.5, 0.9, 1, 1.1, 2, 4):
            larger = derive(dataclasses.replace(card, **{field: int(getattr(card, field) * factor)}))
            found = [tuning.field(larger, path) for path in paths]
            assert before is None or all(a >= b > 0 for a, b in zip(found, before)), (field, factor)
            before = found
        quarter, fourfold = (
            derive(dataclasses.replace(card, **{field: int(getattr(card, field) * x)})) for x in (0.25, 4)
        )
        assert all(tuning.field(fourfold, p) >= 8 * tuning.field(quarter, p) for p in paths)


def test_slow_launches_make_splits_rarer():
    usual, slow = (derive(H100, dataclasses.replace(h100.MEASURED, launch=x * h100.MEASURED.launch)) for x in (1, 3))
    for path in ("rows.stages.kept_bytes", "columns.cluster_bytes"):
        assert tuning.field(slow, path) == pytest.approx(3 * tuning.field(usual, path), rel=0.01)
    assert slow.rows.looped == usual.rows.looped


@pytest.mark.parametrize("name", CARDS)
def test_every_segment_has_a_schedule_that_the_card_can_run(name):
    """Its checks hold, a block fits a multiprocessor, and vectors are no wider than a row allows."""
    properties = CARDS[name]
    target = targets.GpuTarget(properties, None)
    for what, (fn, rows) in gpu_choices.WORK.items():
        for shape in gpu_choices.SHAPES[1::2]:
            args = [np.empty(shape, np.float32)] + [np.empty(shape[1:], np.float32)] * rows
            lowered = mlirfuse.jit(fn, target=f"cuda:{properties.chip}").lower(*args)
            program = Program(lowered.segmented(), target, lowered.env)
            params = program.parameters(lowered.env, {})
            for step, choice in zip(program.steps, params, strict=True):
                attributes = target.schedulers.attributes(choice)
                assert (
                    target.schedulers.read(attributes, step.analysis, SizedCall(lowered.env, {}, properties)) == choice
                ), what
            for kernel in target.write(program, params, program.slots()).kernels:
                shared = kernel.static_shared + kernel.dynamic_shared
                assert 0 < kernel.threads <= min(1024, properties.threads_per_sm) and kernel.threads % 32 == 0, what
                assert shared <= properties.shared_per_block and kernel.cluster in properties.cluster_sizes, what


def test_a_gpu_without_a_file_is_logged_once(caplog):
    """When its first schedules are chosen. Code for a chip that is not there needs no calibration."""
    tuning.log_if_derived.cache_clear()
    l40s, part = CARDS["L40S"], dataclasses.replace(H100, sm_count=16)
    with caplog.at_level(logging.WARNING, "mlirfuse"):
        assert targets.GpuTarget(H100, 0).schedulers and targets.GpuTarget(l40s, None).schedulers
        assert caplog.records == []
        assert all(targets.GpuTarget(dataclasses.replace(l40s), device).schedulers for device in range(3))
        assert len(caplog.records) == 1 and "mlirfuse calibrate" in caplog.text and "sm_89" in caplog.text
        assert targets.GpuTarget(part, 0).schedulers and len(caplog.records) == 2
    assert tuning.heuristics_of(H100) is h100.HEURISTICS and tuning.heuristics_of(l40s) == derive(l40s)
    assert tuning.heuristics_of(part).columns.little < h100.HEURISTICS.columns.little


class FakeGpu:
    """A GPU of half an H100's bandwidth, whose programs are fastest with some values of fields; others take 10%
    longer."""

    def __init__(self, **best: Any):
        self.best, self.cases = {name.replace("__", "."): value for name, value in best.items()}, 0

    def copy(self, nbytes: int) -> float:
        rate = h100.MEASURED.bandwidth / (1 if nbytes <= 16 << 20 else 2)
        return 3e-6 + nbytes / rate

    def times(self, case, candidates):
        self.cases += 1
        return [1e-3 * 1.1 ** sum(tuning.field(c, p) != v for p, v in self.best.items()) for c in candidates]


def test_calibration_is_measured_kept_and_used(caplog):
    tuning.log_if_derived.cache_clear()
    card, reported = CARDS["L40S"], []
    found = calibrate.calibrate(card, FakeGpu(rows__registers__usual=32, scans__block=128), reported.append, lambda: 0)
    assert found.fields == {"rows.registers.usual": 32, "scans.block": 128}
    assert found.measured.bandwidth == pytest.approx(h100.MEASURED.bandwidth / 2, rel=0.01)
    assert found.measured.l2_bytes == 16 << 20 and found.measured.launch == pytest.approx(3e-6, rel=0.01)
    assert any("rows.registers.usual: 32 instead of 16, 9.1% faster" in line for line in reported)
    calibration.store(card, found)
    used = tuning.heuristics_of(card)
    assert used.rows.registers.usual == 32 and used.scans.block == 128
    assert targets.GpuTarget(card, 0).schedulers and caplog.records == []
    assert used == tuning.replaced(derive(card, found.measured), found.fields)
    assert tuning.heuristics_of(CARDS["A100"]).rows.registers.usual == 16  # another card


def test_small_gains_and_failed_cases_change_nothing():
    class Noisy(FakeGpu):
        def times(self, case, candidates):
            return [1e-3, *(None if at % 2 else 0.99e-3 for at in range(len(candidates) - 1))]

    assert calibrate.calibrate(CARDS["A100"], Noisy(), lambda line: None, lambda: 0).fields == {}


def test_calibration_ends_in_time():
    """What is not measured by then keeps its value, and is named."""
    gpu, reported, times = FakeGpu(scans__block=128), [], iter(range(0, 10_000, 45))
    found = calibrate.calibrate(CARDS["A100"], gpu, reported.append, lambda: next(times))
    measured = calibrate.THRESHOLDS[:2]
    assert gpu.cases == sum(len(t.cases) for t in measured) and found.fields == {}
    assert "no time left for" in reported[-1]
    assert all((t.field in reported[-1]) == (t not in measured) for t in calibrate.THRESHOLDS)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"measured": {"bandwidth": 1}, "fields": {}}'])
def test_a_calibration_of_another_version_is_not_used(content):
    card = CARDS["A100"]
    cache.store(calibration.name(card), content)
    assert tuning.heuristics_of(card) == derive(card)
    tuning._found.clear()
    calibration.store(card, Calibration(Measured(1e12, 2e-6, 1 << 20), {"rows.registers.none": 3}))
    assert tuning.heuristics_of(card) == derive(card)


def test_thresholds_to_measure_are_fields():
    for properties in CARDS.values():
        for threshold in calibrate.THRESHOLDS:
            value = tuning.field(derive(properties), threshold.field)
            assert all(type(value)(value * factor) != value for factor in threshold.factors)
            assert {case.program for case in threshold.cases} <= set(calibrate.PROGRAMS)


@pytest.mark.parametrize("program", calibrate.PROGRAMS)
def test_programs_to_measure_are_one_program_each(program):
    """They write their arguments, and compute what NumPy does."""
    x = np.random.default_rng(0).standard_normal((6, 8), np.float32)
    shapes = calibrate._written(program, *x.shape)
    found, expected = ([np.zeros(shape, np.float32) for shape in shapes] for _ in range(2))
    calibrate.PROGRAMS[program](x, *expected)
    fn = mlirfuse.jit(calibrate.PROGRAMS[program], fallback=False)
    fn(x, *found)
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert fn.specialization_of(x, *found)[0].executor.program is not None
    lowered = mlirfuse.jit(calibrate.PROGRAMS[program], target="cuda:sm_90", fallback=False).lower(x, *found)
    assert lowered.segmented()


def test_a_case_that_does_not_run_is_reported():
    class Broken(FakeGpu):
        def times(self, case, candidates):
            raise MlirfuseError("no memory")

    reported: list[str] = []
    assert calibrate.calibrate(CARDS["A100"], Broken(), reported.append, lambda: 0).fields == {}
    assert any("scans.block: 256, not measured: no memory" in line for line in reported)


def test_calibrate_says_what_is_missing(capsys, monkeypatch):
    monkeypatch.setattr(_native, "cuda_available", lambda: False)
    assert calibrate.main([]) == 1 and "no CUDA device" in capsys.readouterr().err
    monkeypatch.setattr(calibrate.devices, "device", lambda index: H100)
    monkeypatch.setenv("MLIRFUSE_CACHE", "0")
    assert calibrate.main([]) == 1 and "the cache, where results are kept, is off" in capsys.readouterr().err
