"""Functions that draw without a seed, and torch functions that meet an array of a compiled function."""

import numpy as np
import pytest

import mlirfuse
import mlirfuse.numpy as mnp
from mlirfuse.core.errors import TraceError
from mlirfuse.runtime import counters


def drop(x):
    return mnp.dropout(x, 0.5)


def test_another_mask_at_each_call():
    f, x = mlirfuse.jit(drop), np.ones(4000, np.float32)
    masks = [f(x) != 0 for _ in range(3)]
    before = counters.compiled_programs
    masks.append(f(x) != 0)
    assert counters.compiled_programs == before
    assert all((a != b).mean() > 0.3 for k, a in enumerate(masks) for b in masks[:k])
    assert all(abs(m.mean() - 0.5) < 0.05 for m in masks)


def test_a_seed_repeats():
    """The call that compiles draws what later ones do after the same seed."""
    f, x = mlirfuse.jit(lambda x: x + mnp.random.normal(x.shape)), np.zeros(100, np.float32)
    mnp.random.seed(7)
    first = [f(x) for _ in range(3)]
    mnp.random.seed(7)
    assert all(np.array_equal(a, f(x)) for a in first)
    g = mlirfuse.jit(lambda x: x + mnp.random.normal(x.shape) * 1)
    mnp.random.seed(7)
    assert np.array_equal(first[0], g(x))
    mnp.random.seed()
    assert not np.array_equal(first[0], f(x))


def test_two_draws_in_one_function():
    f = mlirfuse.jit(lambda x: (mnp.random.uniform(x.shape), mnp.random.uniform(x.shape), drop(x) != 0))
    a, b, mask = f(np.ones(1000, np.float32))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.1 and ((a < 0.5) != mask).mean() > 0.3


def test_outside_of_a_compiled_function():
    mnp.random.seed(3)
    first = mnp.random.uniform((50,))
    assert not np.array_equal(first, mnp.random.uniform((50,)))
    mnp.random.seed(3)
    assert np.array_equal(first, mnp.random.uniform((50,)))


def test_new_sizes_draw_too():
    f = mlirfuse.jit(drop)
    for n in (100, 200, 300):
        assert 0 < (f(np.ones(n, np.float32)) != 0).mean() < 1


def test_not_in_training():
    f = mlirfuse.jit(lambda x, training: mnp.dropout(x, 0.5, training=training), static_argnames="training")
    x = np.arange(1, 50, dtype=np.float32)
    assert np.array_equal(f(x, False), x) and (f(x, True) == 0).any()


def test_an_offset_needs_a_seed():
    with pytest.raises(ValueError, match=r"(?s)an offset needs a seed.*test_default_generator.py"):
        mlirfuse.jit(lambda x: mnp.dropout(x, 0.5, offset=3))(np.ones(3, np.float32))


def test_torch_functions():
    torch = pytest.importorskip("torch")
    x = np.ones(3, np.float32)
    for function, words in (
        (torch.relu, "use mlirfuse.numpy.relu"),
        (torch.nn.functional.gelu, "use mlirfuse.numpy.gelu"),
        (torch.sub, "use mlirfuse.numpy.subtract"),
        (torch.linalg.svd, "torch.compile"),
        (lambda x: torch.cat([x, x]), "use mlirfuse.numpy.concatenate"),
    ):
        with pytest.raises(TraceError, match=f"(?s){words}.*test_default_generator.py"):
            mlirfuse.jit(lambda x, f=function: f(x, x) if f is torch.sub else f(x))(x)
    outside = torch.arange(3.0)
    assert mlirfuse.jit(lambda x: outside * x + x)(x).tolist() == [1, 2, 3]
    assert mlirfuse.jit(lambda x: outside - x)(torch.ones(3)).tolist() == [-1, 0, 1]
