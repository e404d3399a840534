"""Functions of torch's tensors, and on a GPU of CuPy's arrays, that run in pieces: the programs of ``test_pieces``,
whose results are NumPy's, as tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from test_graph_breaks import PROGRAMS, SQUARE, X

import mlirfuse
from mlirfuse.core.errors import MlirfuseError
from mlirfuse.frontend.numpy.graph_breaks import program

torch = pytest.importorskip("torch")


@dataclass
class Framework:
    """``created``: an array of its own from one of NumPy's; ``host``: one of NumPy's from it. ``array``: its type."""

    created: Callable
    host: Callable
    array: type

    def arrays(self, args) -> list:
        """Copies of the arrays."""
        return [self.created(np.ascontiguousarray(a).copy()) if isinstance(a, np.ndarray) else a for a in args]


FRAMEWORKS = ["cpu", "cuda", "cupy"]


def framework_of(name: str) -> Framework:
    if name == "cpu":
        return Framework(torch.from_numpy, torch.Tensor.numpy, torch.Tensor)
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    if name == "cuda":
        return Framework(lambda a: torch.from_numpy(a).cuda(), lambda a: a.cpu().numpy(), torch.Tensor)
    cupy = pytest.importorskip("cupy")
    return Framework(cupy.asarray, cupy.asnumpy, cupy.ndarray)


@pytest.fixture(params=FRAMEWORKS)
def framework(request) -> Framework:
    return framework_of(request.param)


def agree(framework, got, want) -> None:
    """Arrays of NumPy's are arrays of the framework, of the same type; its numbers are numbers or arrays of none."""
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            agree(framework, g, w)
    elif isinstance(want, dict):
        assert got.keys() == want.keys()
        for key, value in want.items():
            agree(framework, got[key], value)
    elif isinstance(want, np.ndarray):
        assert isinstance(got, framework.array)
        got = framework.host(got)
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    elif want is None:
        assert got is None
    else:
        got = framework.host(got) if isinstance(got, framework.array) else got
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-9, atol=1e-9)


def check(framework, fn, *calls) -> program.GraphBreakProgram:
    compiled = mlirfuse.jit(fn)
    for args in calls * 2:
        given, known = framework.arrays(args), [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        try:
            want = fn(*known)
        except Exception as error:
            with pytest.raises(type(error)):
                compiled(*given)
            continue
        agree(framework, compiled(*given), want)
        agree(framework, given, known)
    (entry,) = compiled._entries.values()
    (kind,) = entry.specializations.all()
    assert kind.program.refused is None
    return kind.program


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(framework, name):
    fn, *calls = PROGRAMS[name]
    if name == "checked-log":  # which asks for NumPy's own type

        def fn(x):
            if not np.all(x > 0):
                raise ValueError("not above 0")
            return np.log(x) - float(np.log(x).mean())

    check(framework, fn, *calls)


def test_a_loop_to_convergence_writes_into_the_argument(framework):
    def settle(x, least):
        rounds = 0
        while x.max() > least:
            x[1:] *= 0.5
            x[0] *= 0.25
            rounds += 1
        return rounds, x[0] + rounds

    def settled(x, least):
        return settle(x, least)

    pieces = check(framework, settled, (np.arange(1.0, 7.0), 0.5), (np.arange(1.0, 5.0), 0.5), (np.zeros(3), 0.5))
    assert pieces.tree.steps < 40


def test_what_a_function_writes_comes_back(framework):
    def sorted_in_place(x):
        tail = x[2:]
        np.copyto(tail, np.sort(x)[2:])
        if x[0] > 0:
            np.fill_diagonal(x.reshape(2, 4)[:, :2], -1.0)
        return tail * 2

    check(framework, sorted_in_place, (X[:8],), (np.abs(X[:8]),))


def test_views_of_the_arguments_are_views(framework):
    def tail(x):
        return x[2:] if x.max() > 0 else x.reshape(2, -1)[:, 1]

    (x,) = framework.arrays([np.arange(8.0)])
    found = mlirfuse.jit(tail)(x)
    x[3] = 50
    assert found[1] == 50 and found.shape == (6,)
    (x,) = framework.arrays([-np.arange(1.0, 9.0)])
    found = mlirfuse.jit(tail)(x)
    x[5] = 7
    assert found[1] == 7


def test_an_error_is_numpys_and_leaves_the_arguments(framework):
    def inverse(a, b):
        b += 1
        return np.linalg.inv(a) @ b

    a, b = framework.arrays([np.ones((4, 4)), np.ones(4)])
    with pytest.raises(np.linalg.LinAlgError):
        mlirfuse.jit(inverse)(a, b)
    assert (b == 1).all()
    (square,) = framework.arrays([SQUARE])
    agree(framework, mlirfuse.jit(inverse)(square, b), np.linalg.inv(SQUARE) @ np.full(4, 2.0))


def test_more_outcomes_than_are_kept_are_an_error_each_time(framework, monkeypatch):
    from mlirfuse.frontend.numpy.graph_breaks import tree

    monkeypatch.setattr(tree, "_MOST_STEPS", 6)

    def rounds(x):
        count = 0
        while x.sum() > 0:
            x = x - 1
            count += 1
        return count

    @mlirfuse.jit
    def counted(x):  # whose own loops would stay loops
        return rounds(x)

    for _ in range(2):
        with pytest.raises(MlirfuseError, match="more outcomes"):
            counted(*framework.arrays([np.full(4, 30.0)]))


def test_results_that_run_backwards_are_copies_in_torch(framework):
    (x,) = framework.arrays([np.arange(12.0).reshape(3, 4)])
    host = np.arange(12.0).reshape(3, 4)
    for fn in (
        lambda x: x[::-1, ::2],
        lambda x: np.flip(x)[1:],
        lambda x: np.sort(x)[:, ::-1],
        lambda x: x[::-1] @ x.T,
    ):
        agree(framework, mlirfuse.jit(fn)(x), fn(host))


def test_one_tensor_given_twice_is_an_error_with_a_remedy():
    torch = pytest.importorskip("torch")
    selected = mlirfuse.jit(lambda a, b: a[a > 0] * b.sum())
    x = torch.ones(5000)
    for _ in range(2):
        with pytest.raises(mlirfuse.UnsupportedError, match="arguments 0 and 1 are the same memory") as raised:
            selected(x, x)
        assert "Pass a copy" in str(raised.value)
        assert selected(x, x.clone()).shape == x.shape
