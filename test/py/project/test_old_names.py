"""What scripts of the previous release name in the old way is read, with a warning that names the new."""

import os
import subprocess
import sys

import numpy as np
import pytest

import mlirfuse
import mlirfuse.numpy as mnp
from mlirfuse.core import config, old_names
from mlirfuse.runtime import counters
from mlirfuse.schedule import targets

X = np.ones((64, 8192), np.float32)


def test_options():
    with pytest.warns(DeprecationWarning, match="max_kinds is called max_specializations"):
        with config.override(max_kinds=3):
            assert config.max_specializations == 3
    with pytest.warns(DeprecationWarning, match="max_specializations"):
        assert config.max_kinds == config.max_specializations


def test_counters():
    with pytest.warns(DeprecationWarning, match="kinds is called specializations"):
        assert counters.kinds == counters.specializations
    with pytest.raises(AttributeError, match="nothing"):
        _ = counters.nothing


def test_environment():
    script = "import mlirfuse; print(mlirfuse.config.max_specializations)"
    ran = subprocess.run(
        [sys.executable, "-W", "always", "-c", script],
        env=os.environ | {"MLIRFUSE_MAX_KINDS": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "7\n" and "MLIRFUSE_MAX_KINDS is called MLIRFUSE_MAX_SPECIALIZATIONS" in ran.stderr


def lowered(fn, schedule, x=X):
    return str(mlirfuse.jit(fn, target="cuda:sm_90", schedule=schedule, fallback=False).lower(x).as_text("segmented"))


@pytest.mark.parametrize(
    "fn, old, new",
    [
        (lambda x: mnp.softmax(x, axis=-1), {"whole": 4}, {"unmasked": 4}),
        (lambda x: x + 1, {"unroll_rows": 1}, {"rows_per_thread": 1}),
        (lambda x: np.cumsum(x, 1), {"linked": False}, {"chained": 0}),
        (lambda x: np.cumsum(x, 1), {"looped": True}, {"persistent": False}),
        (lambda x: x.sum(0), {"checked": False}, {"unmasked": 1}),
        (lambda x: x.T.copy(), {"threads": 256}, {"tx": 256}),
    ],
)
def test_parameters_of_schedules(fn, old, new):
    with pytest.warns(DeprecationWarning, match=f"{next(iter(old))} is called {next(iter(new))}"):
        found = lowered(fn, {0: old})
    assert found == lowered(fn, {0: new})


@pytest.mark.parametrize(
    "old, new", [({"held": 0}, {"vectors_per_thread": 0}), ({"totals": True}, {"compensation_interval": 64})]
)
def test_parameters_of_cpu_schedules(old, new):
    """A number stays one, and a flag becomes the number that it stood for."""

    def text(schedule):
        return mlirfuse.jit(lambda x: x.sum(1), target="cpu", schedule={0: schedule}).lower(X).as_text("segmented")

    with pytest.warns(DeprecationWarning, match=f"{next(iter(old))} is called {next(iter(new))}"):
        found = text(old)
    assert found == text(new)


def test_schedulers():
    def joined(x):
        return np.concatenate([x, x[:, 1:], x * 2], 1)

    halves = np.ones((240, 8192), np.float16)
    with pytest.warns(DeprecationWarning, match="pieces is called concat"):
        found = lowered(joined, {0: {"scheduler": "pieces"}}, halves)
    assert found == lowered(joined, {0: {"scheduler": "concat"}}, halves)


def test_every_new_name_is_one():
    schedulers = [*targets.of("cuda:sm_90").schedulers.all, *targets.of("cpu").schedulers.all]
    assert set(old_names.SCHEDULERS.values()) <= {s.name for s in schedulers}
    fields = {field for s in schedulers for field in s.parameters}
    assert {new for names in old_names.FIELDS.values() for new in names} <= fields
    assert set(old_names.SETTINGS.values()) <= set(config.NAMES)
