"""``jit(f).lower(*args)``: every level's text, and the compiled callable."""

import re
import sys
from typing import ClassVar

import numpy as np
import pytest

import mlirfuse
from mlirfuse.core.errors import ScheduleError
from mlirfuse.dialects import fusion
from mlirfuse.inspect.lowered import CPU_LEVELS, CUDA_LEVELS

MLIR_LEVELS = {"fusion", "grouped", "segmented", "linalg", "tiled", "gpu", "nvvm", "host"}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def backward(g, x):
    h = g * x
    return g - h.sum(-1, keepdims=True), h.sum(0)


def two(x):
    return x.sum(-1), x.max(0)


def mutating(x, y):
    x += y
    return x.sum(0)


def views(x):
    return x.T[1:], x.reshape(-1)


def halves(x):
    return x[:, : x.shape[1] // 2] * x[:, x.shape[1] // 2 :]


def product(x, w):
    return np.tanh(np.exp(x) @ w) + 1


X = np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)
CASES = {
    softmax: (X,), backward: (X, X + 1), two: (X,), mutating: (X.copy(), X), views: (X,), halves: (X,), product: (X, X.T.copy()),
}  # fmt: skip


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_70", "cuda:sm_80", "cuda:sm_90", "cuda:sm_100"])
@pytest.mark.parametrize("fn", CASES, ids=lambda f: f.__name__)
def test_every_level(fn, target):
    lowered = mlirfuse.jit(fn, target=target).lower(*CASES[fn])
    assert lowered.levels == (CPU_LEVELS if target == "cpu" else CUDA_LEVELS)
    for level in lowered.levels:
        text = lowered.as_text(level)
        assert text.endswith("\n") and text.strip()
        if level in MLIR_LEVELS:
            for part in text.split("// -----\n"):
                module = fusion.parse(part)
                if level in ("fusion", "grouped", "segmented", "linalg"):  # printing what was parsed gives the same
                    assert str(fusion.parse(str(module))) == str(module)
    assert ("ptx" in lowered.levels) == target.startswith("cuda")
    if target != "cpu":
        ptx = lowered.as_text("ptx")
        assert ptx.count(".visible .entry") == lowered.kernels and ".local" not in ptx


def test_locations_are_the_users_lines():
    lowered = mlirfuse.jit(softmax).lower(X)
    line = softmax.__code__.co_firstlineno + 1
    for level in ("fusion", "grouped", "segmented", "linalg"):
        assert f'test_lowered.py":{line}:' in lowered.as_text(level, locations=True)
        assert "test_lowered.py" not in lowered.as_text(level)


def test_segments_carry_their_parameters():
    text = mlirfuse.jit(softmax, target="cuda:sm_90").lower(X).as_text("segmented")
    assert 'scheduler = "normalization"' in text and "params = {" in text and "tx = " in text
    assert "why = " in mlirfuse.jit(two).lower(X).as_text("segmented")
    heads = mlirfuse.jit(two, target="cuda:sm_90").lower(X).as_text("tiled")
    assert heads.startswith("// segment 0: reduction {") and "//   @mlirfuse_reduction1" in heads and "threads" in heads


def test_clusters_from_sm_90_on():
    x = np.zeros((4, 131072), np.float32)
    assert "mapa" in mlirfuse.jit(softmax, target="cuda:sm_90").lower(x).as_text("ptx")
    assert "cluster" not in mlirfuse.jit(softmax, target="cuda:sm_80").lower(x).as_text("ptx")


def test_levels_that_are_not_there():
    lowered = mlirfuse.jit(softmax).lower(X)
    for level in ("gpu", "nvvm", "ptx"):
        with pytest.raises(
            ValueError,
            match="not one that a CPU has; this target's levels are fusion, grouped, segmented, linalg, tiled, host, llvm",
        ):
            lowered.as_text(level)
    with pytest.raises(ValueError, match="not one that an NVIDIA GPU has; .* ptx, host"):
        mlirfuse.jit(softmax, target="cuda:sm_90").lower(X).as_text("llvm")
    with pytest.raises(ValueError, match="no level 'nvm'; this target's levels are fusion"):
        lowered.as_text("nvm")


def test_a_schedule_that_does_not_fit_is_told_each_time():
    lowered = mlirfuse.jit(lambda x: x * 2, target="cpu", schedule={7: {"split": 2}}).lower(np.ones(8))
    for _ in range(2):
        with pytest.raises(ScheduleError):
            lowered.as_text()


def test_levels_in_any_order():
    """Texts are written when they are asked for: what was lowered meanwhile does not show in them."""
    fn = lambda x: np.cumsum(np.exp(x - x.max(1, keepdims=True)), 1)  # noqa: E731
    x, texts = np.ones((64, 100), np.float32), []
    for order in (CUDA_LEVELS, CUDA_LEVELS[::-1]):
        lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(x)
        found = {level: lowered.as_text(level) for level in order}
        texts.append([found[level] for level in CUDA_LEVELS])
    for level, one, other in zip(CUDA_LEVELS, *texts, strict=True):
        assert one == other, level


def test_compile():
    lowered = mlirfuse.jit(softmax).lower(X)
    compiled = lowered.compile()
    assert compiled.kernels == lowered.kernels == 1
    np.testing.assert_array_equal(compiled(X), mlirfuse.jit(softmax)(X))
    other = X[:5]
    np.testing.assert_allclose(compiled(other), softmax(other), rtol=1e-5)
    for wrong in (X.astype(np.float64), X[:, ::2], X[0], X[:, :1]):
        with pytest.raises(TypeError, match="compiled for other arguments"):
            compiled(wrong)
    with pytest.raises(TypeError, match="another structure"):
        compiled(X, X)


def test_compile_keeps_to_its_constants():
    @mlirfuse.jit
    def f(x, axis):
        return x.sum(axis)

    compiled = f.lower(X, 0).compile()
    np.testing.assert_allclose(compiled(X, 0), X.sum(0), rtol=1e-4)
    with pytest.raises(TypeError, match="values taken as constants"):
        compiled(X, 1)


def test_compile_writes_into_arguments():
    x, y = X.copy(), X + 1
    total = mlirfuse.jit(mutating).lower(X.copy(), y).compile()(x, y)
    np.testing.assert_allclose(x, X + y, rtol=1e-6)
    np.testing.assert_allclose(total, (X + y).sum(0), rtol=1e-4)


def test_compile_with_library_ops():
    w = X.T.copy()
    lowered = mlirfuse.jit(product).lower(X, w)
    assert lowered.kernels == 2 and lowered.as_text("tiled").count("// -----") == 1
    np.testing.assert_allclose(lowered.compile()(X, w), product(X, w), rtol=1e-4, atol=1e-6)


def test_keyword_arguments_numbers_and_captured_arrays():
    shift = np.float32(3) * np.ones(64, np.float32)

    @mlirfuse.jit
    def f(x, *, scale):
        return x * scale["by"] + shift

    compiled = f.lower(X, scale={"by": 2.5}).compile()
    np.testing.assert_allclose(compiled(X, scale={"by": -1.0}), -X + shift, rtol=1e-6)


def test_empty_arrays():
    lowered = mlirfuse.jit(softmax).lower(X[:0])
    assert "fusion.exp" in lowered.as_text("segmented")
    with pytest.raises(mlirfuse.UnsupportedError, match="no elements"):
        lowered.as_text("tiled")
    compiled = lowered.compile()
    assert compiled.kernels == 0 and compiled(X[:0]).shape == (0, 64)


def test_targets_that_this_machine_is_not():
    with pytest.raises(mlirfuse.UnsupportedError, match="its code can only be inspected"):
        mlirfuse.jit(softmax, target="cuda:sm_90").lower(X).compile()
    with pytest.raises(mlirfuse.CompileError, match="unknown GPU architecture sm_42"):
        mlirfuse.jit(softmax, target="cuda:sm_42").lower(X).as_text("ptx")


def test_kernels_of_a_call():
    assert mlirfuse.jit(softmax).kernels(X) == 1
    assert mlirfuse.jit(two).kernels(X) >= 2
    assert mlirfuse.jit(views).kernels(X) == 0


def test_host_arrays_stand_for_cuda_arrays_in_wide_allocations():
    x = np.zeros((256, 1024), np.float32)
    whole = mlirfuse.jit(lambda x: -x, target="cuda:sm_90")
    assert "ld.global.nc.v4.b32" in whole.lower(x).as_text("ptx")
    flat = x.reshape(-1)
    assert "ld.global.nc.v4.b32" not in whole.lower(flat[1 : 1 + 1024]).as_text("ptx")


def test_shared_memory_of_a_block():
    """No kernel declares more than the 48 KiB that every GPU gives a block, however many passes over its columns it
    makes."""

    def chain(x):
        d = x.astype(np.float32) - x.astype(np.float32).max(0)
        e = d / np.abs(d).sum(0)
        u = e - (e * e).max(0)
        return u / (u * u).sum(0)

    x = np.zeros((4096, 1024), np.float16)
    for target in ("cuda:sm_70", "cuda:sm_90"):
        tiled = mlirfuse.jit(chain, target=target).lower(x).as_text("tiled")
        sizes = [int(n) for n in re.findall(r"_shared\(\).*llvm\.array<(\d+) x i8>", tiled)]
        assert sizes and max(sizes) <= 48 << 10


def test_the_dialects_module_is_looked_for_once(monkeypatch):
    """Not at each operation again, which takes longer than all else."""

    class Finder:
        looked_for: ClassVar[list] = []

        def find_spec(self, name, path=None, target=None):
            self.looked_for.append(name)

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    mlirfuse.jit(softmax).lower(np.ones((4, 8), np.float32)).as_text("segmented")
    assert sum(name.endswith(".fusion") for name in Finder.looked_for) <= 2  # each of two places once


def test_a_long_loop_has_no_graph_to_lower():
    """It is not unrolled, as a call does not: a trace of all of it would take minutes."""

    def summed(a):
        for i in range(1, a.shape[0]):
            a[i] += a[i - 1]
        return a

    compiled = mlirfuse.jit(summed)
    assert compiled.lower(np.ones(5)).as_text("fusion").count('"fusion.add"') == 4  # a short one has
    with pytest.raises(mlirfuse.TraceError, match="no single graph.*as explain.. shows.*more than 500 ops") as raised:
        compiled.lower(np.ones(100_000))
    assert "a[i] += a[i - 1]" in str(raised.value)
