"""No view costs a kernel or a copy: the programs of nvFuser's issue on "bookend" views, and views alone."""

import itertools
import math

import numpy as np
import pytest

import mlirfuse
import mlirfuse.numpy as mnp
from mlirfuse.nvfuser import DataType, FusionDefinition

FLAT, CUBE = (48, 40), (6, 8, 40)  # two shapes of the same elements


def array(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def erf(x):
    return np.vectorize(math.erf, otypes=[np.float32])(x)


def launches_once(explanation, *, reads, writes):
    """One kernel that reads and writes no more than the program's arguments and results need."""
    assert explanation.launches == 1, str(explanation)
    assert explanation.bytes_read == reads, str(explanation)
    assert explanation.bytes_written == writes, str(explanation)


def define_gelu(fd, view_is_output):
    x = fd.define_tensor(symbolic_sizes=[-1, -1], contiguous=[True, True], dtype=DataType.Float)
    t1 = fd.ops.reshape(x, list(CUBE))
    t3 = fd.ops.mul(t1, fd.define_constant(0.5))
    t5 = fd.ops.mul(t1, fd.define_constant(0.707107))
    t8 = fd.ops.add(fd.ops.erf(t5), fd.define_constant(1.0))
    t10 = fd.ops.reshape(fd.ops.mul(t3, t8), list(FLAT))
    if view_is_output:
        fd.add_output(t1)
    fd.add_output(t10)


@pytest.mark.parametrize("view_is_output", [False, True])
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80"])
def test_gelu_between_views(view_is_output, target):
    x = array(FLAT)
    with FusionDefinition() as fd:
        define_gelu(fd, view_is_output)
    launches_once(fd.explain([x], target), reads=x.nbytes, writes=x.nbytes)
    *views, result = fd.execute([x])
    np.testing.assert_allclose(result, x * 0.5 * (erf(x * np.float32(0.707107)) + 1), rtol=1e-5, atol=1e-6)
    for view in views:
        assert np.shares_memory(view, x) and np.array_equal(view, x.reshape(CUBE))


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80"])
def test_permute_between_views(target):
    """Heads beside each other become rows: the only copy is the permutation itself."""
    x = array((24, 8, 4))
    with FusionDefinition() as fd:
        t0 = fd.define_tensor(symbolic_sizes=[-1, -1, -1], contiguous=[True, True, True], dtype=DataType.Float)
        t1 = fd.ops.reshape(t0, [2, 12, 8, 4])
        t3 = fd.ops.set(fd.ops.permute(t1, dims=[0, 2, 1, 3]))
        fd.add_output(fd.ops.reshape(fd.ops.reshape(t3, [2, 8, 48]), [16, 48]))
    launches_once(fd.explain([x], target), reads=x.nbytes, writes=x.nbytes)
    (result,) = fd.execute([x])
    assert np.array_equal(result, x.reshape(2, 12, 8, 4).transpose(0, 2, 1, 3).reshape(16, 48))


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80"])
@pytest.mark.parametrize(
    "views",
    list(itertools.product([False, True], repeat=3)),
    ids=lambda v: "".join(n for n, on in zip("ABC", v) if on) or "none",
)
def test_views_around_two_ops(views, target):
    """View A, add, view B, multiply, view C, each view there or not: one kernel in all eight cases."""
    x = array(FLAT)

    def function(x):
        shapes = itertools.cycle([CUBE, FLAT])
        x = x.reshape(next(shapes)) if views[0] else x
        x = x + x
        x = x.reshape(next(shapes)) if views[1] else x
        x = x * x
        return x.reshape(next(shapes)) if views[2] else x

    launches_once(mlirfuse.jit(function, target=target).explain(x), reads=x.nbytes, writes=x.nbytes)
    assert np.array_equal(mlirfuse.jit(function, fallback=False)(x), function(x))
    with FusionDefinition() as fd:
        t = fd.define_tensor(symbolic_sizes=[-1, -1], contiguous=[True, True], dtype=DataType.Float)
        shapes = itertools.cycle([CUBE, FLAT])
        for view, op in zip(views, (fd.ops.add, fd.ops.mul, None)):
            t = fd.ops.reshape(t, list(next(shapes))) if view else t
            t = op(t, t) if op else t
        fd.add_output(t)
    launches_once(fd.explain([x], target), reads=x.nbytes, writes=x.nbytes)
    (result,) = fd.execute([x])
    assert np.array_equal(result, function(x))


ALIASES = {
    "reshape": lambda x: x.reshape(-1),
    "reshape to a size": lambda x: x.reshape(x.shape[0] // 2, -1),
    "reshape into fixed rows": lambda x: x.reshape(-1, 16),
    "transpose": lambda x: x.T,
    "slice": lambda x: x[3:7, ::2],
    "reverse": lambda x: x[::-1],
    "new axis": lambda x: x[:, None],
    "broadcast": lambda x: np.broadcast_to(x, (3, *x.shape)),
    "diagonal of views": lambda x: x.T[4:].reshape(-1, 2, x.shape[0]).transpose(1, 2, 0),
    "view of a view": lambda x: x.reshape(2, -1, x.shape[1])[1].T,
}


@pytest.mark.parametrize("name", ALIASES)
def test_metadata_alone_launches_nothing(name):
    x, function = array(FLAT), ALIASES[name]
    compiled = mlirfuse.jit(function, fallback=False)
    explained = compiled.explain(x)
    assert explained.launches == 0 and explained.bytes_read == explained.bytes_written == 0
    assert [k.scheduler for k in explained.kernels] == ["no-op"]
    result = compiled(x)
    assert np.shares_memory(result, x) and np.array_equal(result, function(x))
    (result if result.flags.writeable else x)[...] = 1  # an alias: what is written is seen
    assert np.array_equal(function(x), result) and np.array_equal(result, np.ones_like(result))


def test_an_alias_beside_a_kernel():
    """The views of an argument that are returned do not make the kernel beside them larger."""
    x = array(FLAT)

    def function(x):
        return x.T, np.exp(x), x.reshape(CUBE)

    compiled = mlirfuse.jit(function, fallback=False)
    launches_once(compiled.explain(x), reads=x.nbytes, writes=x.nbytes)
    transposed, result, cube = compiled(x)
    assert np.shares_memory(transposed, x) and np.shares_memory(cube, x)
    np.testing.assert_allclose(result, np.exp(x), rtol=1e-6)


def test_slices_read_what_they_show():
    x = array(FLAT)
    explained = mlirfuse.jit(lambda x: np.exp(x[4:8])).explain(x)
    launches_once(explained, reads=4 * 40 * 4, writes=4 * 40 * 4)
    expanded = np.broadcast_to(array((40,)), FLAT)
    assert mlirfuse.jit(lambda a, b: a + b).explain(x, expanded).bytes_read == x.nbytes + 40 * 4


@pytest.mark.parametrize("norm", [lambda x: mnp.softmax(x), lambda x: mnp.layer_norm(x)])
def test_views_around_a_normalization(norm):
    x = array(CUBE)

    def function(x):
        return norm(x.reshape(-1, x.shape[-1])).reshape(x.shape).swapaxes(0, 1)

    compiled = mlirfuse.jit(function, fallback=False)
    assert compiled.explain(x).launches == 1
    np.testing.assert_allclose(compiled(x), norm(x).swapaxes(0, 1), rtol=1e-4, atol=1e-5)


def test_library_ops_take_views_as_they_are(monkeypatch):
    from mlirfuse.runtime import extern_ops

    seen, function = [], extern_ops.function

    def watched(op, env):
        compute = function(op, env)
        return lambda like, *given: (seen.append(given), compute(like, *given))[1]

    monkeypatch.setattr(extern_ops, "function", watched)
    x, w = array(FLAT), array((24, 40))
    compiled = mlirfuse.jit(lambda x, w: x.reshape(-1, 40) @ w.T, fallback=False)
    assert compiled.explain(x, w).launches == 0
    np.testing.assert_allclose(compiled(x, w), x @ w.T, rtol=1e-5)
    for given, argument in zip(seen[0], (x, w)):
        assert np.shares_memory(given, argument)


RESHAPES = {
    "alone": lambda x: x.reshape(6, 8, 40) + 1,
    "rows": lambda x: mnp.softmax(x.reshape(96, 20)),
    "columns": lambda x: x.reshape(6, 8, 40).sum(1),
    "the outermost": lambda x: x.reshape(6, 320).sum(0),
    "permuted": lambda x: x.reshape(6, 8, 40).transpose(2, 0, 1) * 2,
    "with extents of one": lambda x: x.reshape(1, 96, 1, 20) * 2,
    "twice the same": lambda x: x.reshape(96, 20) + x.reshape(96, 20) * 2,
    "two shapes": lambda x: (x.reshape(96, 20).sum(1), x.reshape(6, 320).sum(0)),
    "beside itself": lambda x: (x.reshape(6, 320).sum(0), x * 2),
    "sliced": lambda x: x.reshape(6, 8, 40)[:, 1:, 3:] * 2,
    "and again": lambda x: (x.reshape(96, 20) + 1).reshape(6, 320).sum(1),
    "of what is computed": lambda x: (x.sum(1, keepdims=True) * x).reshape(96, 20).sum(1),
}


@pytest.mark.parametrize("which", RESHAPES)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "every other row"])
def test_reshapes_to_constants(which, layout):
    """Sizes that are not known to divide each other, contiguous arguments and others: the same elements as NumPy's."""
    x = {"contiguous": array((48, 40)), "transposed": array((40, 48)).T, "every other row": array((96, 40))[::2]}[
        layout
    ]
    found, wanted = mlirfuse.jit(RESHAPES[which])(x), RESHAPES[which](x.astype(np.float64))
    for got, want in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
