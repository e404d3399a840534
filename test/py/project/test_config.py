"""The switches of ``mlirfuse.config``: each does what it says, also for functions that have been compiled before."""

import logging
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import mlirfuse
from mlirfuse.core import config, environment
from mlirfuse.core.errors import CompileError, FallbackWarning, UnsupportedError
from mlirfuse.frontend.numpy.trace_state import current
from mlirfuse.nvfuser import DataType, FusionDefinition
from mlirfuse.passes import pipelines
from mlirfuse.runtime import counters


def test_override_sets_for_a_while():
    with config.override(horizontal=False, max_specializations=3):
        assert (config.horizontal, config.max_specializations) == (False, 3)
    assert (config.horizontal, config.max_specializations) == (True, 256)
    with (
        pytest.raises(TypeError, match="no setting 'fuse_tpu': did you mean 'fuse_gpu'"),
        config.override(fuse_tpu=True),
    ):
        pass


def test_override_comes_back_after_an_error():
    with pytest.raises(ValueError), config.override(fallback=False, dump="nothing"):
        pass
    assert config.fallback is True


def test_switches_from_the_environment():
    script = "from mlirfuse import config; print(config.fuse_cpu, config.guards, config.max_specializations)"
    environment = {**os.environ, "MLIRFUSE_FUSE_CPU": "off", "MLIRFUSE_MAX_SPECIALIZATIONS": "7"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "7"]


def _import_with(**environment: str) -> subprocess.CompletedProcess:
    script = "from mlirfuse import _native; print(_native.num_threads(), _native.pool_stats()['idle_limit'])"
    return subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment}, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "read, values, takes",
    [
        (
            environment.size,
            ["abc", "-1", "1e9", "1.5G", "2GiB", "9223372036854775808", "9000000T"],
            "a number of bytes such as",
        ),
        (
            lambda name: environment.count(name, 7, 4096),
            ["abc", "0", "-1", "2.0", "4097", "9" * 20, "١"],
            "from 1 to 4096",
        ),
        (lambda name: environment.flag(name, True), ["maybe", "2", "-1"], "1, on, true, yes or 0, off, false, no"),
        (lambda name: environment.choice(name, ("compiled", "reference")), ["fast"], "compiled or reference"),
    ],
)
def test_settings_that_do_not_parse(monkeypatch, read, values, takes):
    for value in values:
        monkeypatch.setenv("MLIRFUSE_X", value)
        with pytest.raises(ValueError) as raised:
            read("MLIRFUSE_X")
        assert f"MLIRFUSE_X is '{value}', but takes" in str(raised.value) and takes in str(raised.value)


@pytest.mark.parametrize(
    "name, value, kept",
    [
        ("fuse_cpu", "no", False), ("fuse_cpu", 0, False), ("fuse_cpu", np.False_, False), ("fuse_cpu", "ON", True),
        ("max_args", "12", 12), ("max_args", np.int64(12), 12), ("compile_seconds", 0, 0),
        ("dump", "ptx, sass", {"ptx", "sass"}), ("dump", None, set()), ("dump_dir", "/tmp", "/tmp"),
    ],
)  # fmt: skip
def test_switches_take_what_variables_take(name, value, kept):
    with config.override(**{name: value}):
        assert getattr(config, name) == kept


@pytest.mark.parametrize(
    "name, values",
    [
        ("fuse_cpu", ["maybe", 2, None, 1.0, np.zeros(3)]), ("max_args", ["many", 0, True, 1.5, None]),
        ("max_specializations", [0, -1]), ("compile_seconds", [-1, "soon"]), ("dump", ["segmnted"]), ("dump_dir", [3]),
    ],
)  # fmt: skip
def test_switches_refuse_other_values(name, values):
    before = getattr(config, name)
    for value in values:
        for how in (lambda: setattr(config, name, value), lambda: config.override(**{name: value}).__enter__()):
            with pytest.raises(ValueError, match=name if name != "dump" else "segmnted"):
                how()
    assert getattr(config, name) == before


def test_switches_that_there_are_not():
    for way in (lambda: setattr(config, "fuse_cqu", False), lambda: config.fuse_cqu):
        with pytest.raises(AttributeError, match="no setting 'fuse_cqu': did you mean 'fuse_cpu'"):
            way()
    with pytest.raises(AttributeError, match="no setting 'listen'"):
        config.listen = None
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del config.fuse_cpu


def test_an_unknown_variable_is_one_warning():
    script = "import mlirfuse; mlirfuse.jit(lambda x: x + 1)(2.0)"
    names = {"MLIRFUSE_FUSE_CQU": "0", "MLIRFUSE_FOO": "1", "MLIRFUSE_TEST_FUZZ": "1"}
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, **names}, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.count("Warning") == 1
    assert done.stderr.startswith("<string>:1: UserWarning: ") and "TEST_FUZZ" not in done.stderr
    assert "MLIRFUSE_FUSE_CQU is no setting of mlirfuse: did you mean 'MLIRFUSE_FUSE_CPU'?" in done.stderr
    assert "MLIRFUSE_FOO is no setting of mlirfuse; there are MLIRFUSE_CACHE, " in done.stderr


def test_every_variable_is_known():
    """What the package reads, what the docs list, and what is known are the same."""
    root = Path(environment.__file__).parents[2]
    rows = [
        r.split("|")[1] for r in (root / "docs/reference/settings.md").read_text().splitlines() if r.startswith("|")
    ]
    listed = set(re.findall(r"`(MLIRFUSE_\w+)`", " ".join(rows)))
    assert listed == set(environment.VARIABLES)
    assert {f"MLIRFUSE_{name.upper()}" for name in config.NAMES} <= listed


def test_options_of_jit_are_checked():
    f = lambda x: x + 1  # noqa: E731
    for options, error, text in [
        ({"static_argnames": "xx"}, ValueError, "no parameter 'xx': did you mean 'x'"),
        ({"target": "cqu"}, UnsupportedError, "no target 'cqu'"),
        ({"fallback": "maybe"}, ValueError, "fallback takes"),
        ({"max_args": 0}, ValueError, "max_args takes a whole number"),
    ]:
        with pytest.raises(error, match=text):
            mlirfuse.jit(f, **options)
    with pytest.raises(TypeError, match=r"takes a function, not 3 \(int\)"):
        mlirfuse.jit(3)
    assert mlirfuse.jit(f, fallback="no").fallback is False
    assert "test_options_of_jit" in repr(mlirfuse.jit(f))


def test_public_names():
    script = (
        "import sys, mlirfuse; print([n for n in dir(mlirfuse) if n.startswith('_') or n not in mlirfuse.__all__]);"
        "[getattr(mlirfuse, n) for n in dir(mlirfuse)]; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "['__version__']\n", done.stderr
    with pytest.raises(AttributeError) as raised:
        mlirfuse.jiit  # noqa: B018
    assert raised.value.name == "jiit" and raised.value.obj is mlirfuse


def test_the_compilers_import_collects_no_garbage_and_loads_no_gpus_heuristics():
    script = (
        "import gc, sys, numpy, mlirfuse\n"
        "full = []\n"
        "gc.callbacks.append(lambda phase, info: full.append(1) if info['generation'] == 2 else None)\n"
        "mlirfuse.jit(lambda x: x + 1)(numpy.ones(3))\n"
        "print(len(full), gc.isenabled(), 'mlirfuse.schedule.gpu.tuning.heuristics' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "0 True False\n", done.stderr


@pytest.mark.parametrize(
    "name", ["NUM_THREADS", "MAX_SPECIALIZATIONS", "PROGRESS", "MAX_ARGS", "FUSE_GPU", "GUARDS", "CACHE", "DEFINITIONS"]
)
def test_each_setting_is_checked_at_import(name):
    done = _import_with(**{f"MLIRFUSE_{name}": "-1"})
    assert done.returncode == 1 and f"the environment variable MLIRFUSE_{name} is '-1'" in done.stderr


def test_settings_stop_the_import():
    done = _import_with(MLIRFUSE_POOL_BYTES="abc")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ValueError: the environment variable MLIRFUSE_POOL_BYTES is 'abc', but takes a number of bytes such as "
        "500000000, 512M or 2G (K, M, G, T: 1024 and its powers)"
    )


@pytest.mark.parametrize("text, size", [("0", 0), ("123", 123), ("64k", 1 << 16), ("512M", 1 << 29), ("2G", 1 << 31)])
def test_sizes_with_units(monkeypatch, text, size):
    monkeypatch.setenv("MLIRFUSE_POOL_BYTES", text)
    assert environment.size("MLIRFUSE_POOL_BYTES") == size


def test_native_module_takes_settings():
    assert _import_with(MLIRFUSE_POOL_BYTES="2G", MLIRFUSE_NUM_THREADS="3").stdout.split() == ["3", str(2 << 30)]
    assert _import_with(MLIRFUSE_POOL_BYTES="", MLIRFUSE_FUSE_CPU="").returncode == 0  # as if not set


def test_a_free_threaded_interpreter_is_refused():
    script = "import sys; sys._is_gil_enabled = lambda: {}; import mlirfuse; print(mlirfuse.jit(lambda x: x + 1)(2))"
    done = [subprocess.run([sys.executable, "-c", script.format(on)], capture_output=True, text=True) for on in (0, 1)]
    assert done[0].returncode == 1 and "ImportError: mlirfuse needs Python's global interpreter lock" in done[0].stderr
    assert done[1].stdout.split() == ["3"], done[1].stderr


def test_fuse_cpu():
    @mlirfuse.jit
    def function(x):
        return np.exp(x) + (2 if current() is not None else 1)  # 2 in what is compiled

    x = np.ones(4)
    kinds = counters.specializations
    assert np.allclose(function(x), np.exp(x) + 2)
    with config.override(fuse_cpu=False):
        for _ in range(2):
            assert np.allclose(function(x), np.exp(x) + 1)  # the function itself
    assert np.allclose(function(x), np.exp(x) + 2)  # what was compiled is still there
    assert counters.specializations == kinds + 1


def test_fuse_cpu_for_definitions():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float)
        fd.add_output(fd.ops.cosh(fd.ops.exp(x)))
    compiled_programs = counters.compiled_programs
    with config.override(fuse_cpu=False):
        (result,) = fd.execute([np.ones(3, np.float32)])
    assert counters.compiled_programs == compiled_programs
    np.testing.assert_allclose(result, np.cosh(np.exp(np.ones(3))), rtol=1e-6)
    fd.execute([np.ones(3, np.float32)])
    assert counters.compiled_programs == compiled_programs + 1


def test_fuse_gpu():
    assert config.enabled_for("cuda")
    with config.override(fuse_gpu=False):
        assert not config.enabled_for("cuda") and config.enabled_for("cpu")


def test_fuse_gpu_runs_op_by_op():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    compiled = mlirfuse.jit(lambda x: np.exp(x) + 1, fallback=False)
    x = torch.ones(5, device="cuda")
    compiled_programs, fallbacks = counters.compiled_programs, counters.fallbacks
    with config.override(fuse_gpu=False):
        result = compiled(x)
    assert result.is_cuda and torch.allclose(result, torch.exp(x) + 1)
    assert (counters.compiled_programs, counters.fallbacks) == (compiled_programs, fallbacks + 1)


def test_single_op():
    compiled = mlirfuse.jit(lambda x, w: np.exp(x @ w), fallback=False)
    x = np.random.default_rng(0).random((4, 4))
    assert compiled.explain(x, x).launches == 1
    with config.override(single_op=False):
        explained = compiled.explain(x, x)
        assert explained.launches == 0 and "alone" in explained.outside[1].why
        assert np.allclose(compiled(x, x), np.exp(x @ x))
    assert np.allclose(compiled(x, x), np.exp(x @ x))


def test_horizontal():
    compiled = mlirfuse.jit(lambda x: (np.exp(x), x * 2), fallback=False)
    x = np.ones((4, 5))
    assert compiled.explain(x).launches == 1
    with config.override(horizontal=False):
        assert compiled.explain(x).launches == 2
        kinds = counters.specializations
        a, b = compiled(x)
        assert np.allclose(a, np.exp(x)) and np.array_equal(b, 2 * x)
        assert counters.specializations == kinds + 1
    compiled(x)


def test_guards_off_runs_the_first_trace():
    @mlirfuse.jit(fallback=False)
    def function(x, n):
        return x * 2 if n > 3 else x + 100

    x = np.ones(4)
    assert np.array_equal(function(x, 5), 2 * x)
    with config.override(guards=False):
        assert np.array_equal(function(x, 1), 2 * x)  # wrong, as asked for
        assert np.array_equal(function(x.astype(np.float32), 5), 2 * x)  # other dtypes are other code
    assert np.array_equal(function(x, 1), x + 100)


def test_guards_off_for_sizes_and_closures():
    factor = 2

    @mlirfuse.jit(fallback=False)
    def function(x):
        return x * factor if x.shape[0] > 4 else x

    assert np.array_equal(function(np.ones(6)), np.full(6, 2.0))
    with config.override(guards=False):
        factor = 3
        assert np.array_equal(function(np.ones(3)), np.full(3, 2.0))
        assert np.array_equal(function(np.ones(7)), np.full(7, 2.0))
    assert np.array_equal(function(np.ones(3)), np.ones(3))
    assert np.array_equal(function(np.ones(7)), np.full(7, 3.0))


def fail(*_, **__):
    raise CompileError("no scheduler today")


def test_fallback(monkeypatch):
    x = np.arange(4.0)
    monkeypatch.setattr(pipelines, "lower_to_segments", fail)
    compiled = mlirfuse.jit(lambda x: np.exp(x) + 1)
    with config.override(fallback=False), pytest.raises(CompileError, match="no scheduler today"):
        compiled(x)
    fallbacks = counters.fallbacks
    with pytest.warns(
        FallbackWarning, match="could not compile .* and runs it op by op: CompileError: no scheduler today"
    ):
        assert np.allclose(compiled(x), np.exp(x) + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert np.allclose(compiled(x), np.exp(x) + 1)
    assert counters.fallbacks == fallbacks + 2
    with pytest.raises(CompileError), config.override(fallback=False):
        mlirfuse.jit(lambda x: np.exp(x) + 1)(x)


def test_max_kinds(caplog):
    compiled = mlirfuse.jit(lambda x: np.sqrt(x) + 1)
    arrays = [np.ones((2,) * rank, dtype) for rank in (1, 2) for dtype in (np.float32, np.float64)]
    with config.override(max_specializations=2), caplog.at_level(logging.WARNING, "mlirfuse"):
        kinds, fallbacks = counters.specializations, counters.fallbacks
        for x in arrays * 2:
            assert np.array_equal(compiled(x), np.sqrt(x) + 1)
        assert counters.specializations == kinds + 2 and counters.fallbacks == fallbacks + 4
        assert len(caplog.records) == 1 and "the limit max_specializations" in caplog.text
        with config.override(fallback=False), pytest.raises(CompileError, match="2 specializations"):
            compiled(arrays[-1])
    compiled(arrays[-1])  # now there is room
    assert counters.specializations == kinds + 3


def test_a_function_of_values_alone_is_not_traced_past_the_limit():
    def same_digits(a, b):
        return sorted(str(a)) == sorted(str(b))

    def scaled(x, n):
        return x * n if n % 2 else x * (n + 1)

    def in_python(fn):
        return [strategy.in_python for entry in fn._entries.values() for strategy in entry.chosen.values()]

    of_values, of_arrays, x = mlirfuse.jit(same_digits), mlirfuse.jit(scaled), np.ones(3)
    with config.override(max_specializations=4):
        for k in range(8):
            assert of_values(100 + k, 101) == same_digits(100 + k, 101)
            assert np.array_equal(of_arrays(x, k), scaled(x, k))
    assert in_python(of_values) == [True] and not any(in_python(of_arrays))


def test_max_args():
    """Groups have no more inputs and outputs than the switch says; each setting is compiled for itself."""
    fn = mlirfuse.jit(lambda a, b, c, d: (a + b) * (c + d))
    x = np.ones(8, np.float32)
    assert fn(x, x, x, x).tolist() == [4.0] * 8 and fn.kernels(x, x, x, x) == 1
    with config.override(max_args=4):
        groups = fn.lower(x, x, x, x).as_text("grouped").count('"fusion.group"(')
        assert groups > 1 and fn(x, x, x, x).tolist() == [4.0] * 8
    assert fn.lower(x, x, x, x).as_text("grouped").count('"fusion.group"(') == 1
    own = mlirfuse.jit(fn.fn, max_args=4)
    assert own.lower(x, x, x, x).as_text("grouped").count('"fusion.group"(') == groups
    assert own(x, x, x, x).tolist() == [4.0] * 8 and own.kernels(x, x, x, x) > 1
