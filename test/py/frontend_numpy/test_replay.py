"""Calls with graph breaks whose steps repeat run as straight-line code, and walk along the tree where a step differs."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import scipy.stats

import mlirfuse
from mlirfuse.frontend.numpy.graph_breaks import replay

RNG = np.random.default_rng(3)
CALLS = 6  # more than it takes until a call is replayed


@pytest.fixture
def written(monkeypatch):
    """The functions that are written, with counts of their calls."""
    found = []

    def noted(self, original=replay._Writer.written):
        run, count = original(self), [0]
        found.append(count)

        def counted(*leaves):
            result = run(*leaves)
            count[0] += 1
            return result

        return counted

    monkeypatch.setattr(replay._Writer, "written", noted)
    return found


def same(found, expected):
    if isinstance(expected, (tuple, list)):
        assert type(found) is type(expected) and len(found) == len(expected)
        for a, b in zip(found, expected):
            same(a, b)
        return
    assert type(found) is type(expected)
    if isinstance(expected, (np.ndarray, np.generic)):
        assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def ridge(X, y, weight):
    w = np.linalg.solve(X.T @ X + weight * np.eye(X.shape[1]), X.T @ y)
    return w, np.sqrt(np.mean((y - X @ w) ** 2))


def fit(x, y, degree):
    V = np.vander(x, degree + 1)
    Q, R = np.linalg.qr(V)
    return V @ np.linalg.solve(R, Q.T @ y)


def line(x, y):
    coefficients, _, rank, _ = np.linalg.lstsq(np.vstack([x, np.ones(len(x))]).T, y, rcond=None)
    return coefficients * 2, rank


def whitened(X):
    values, vectors = np.linalg.eigh(X.T @ X)
    found = np.linalg.eigh(X.T @ X)
    return X @ vectors / np.sqrt(values), found.eigenvalues[::-1] + 1


def spectrum(x):
    return np.abs(np.fft.rfft(x * np.hanning(len(x)))) ** 2, np.median(x)


VECTOR, MATRIX = RNG.random(3000), RNG.random((600, 5))


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (ridge, (MATRIX, VECTOR[:600], 0.1)),
        (fit, (np.linspace(0, 1, 3000), VECTOR, 3)),
        (line, (np.linspace(0, 1, 3000), VECTOR)),
        (whitened, (MATRIX,)),
        (spectrum, (VECTOR,)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_results_of_replayed_calls(function, args, written):
    fused = mlirfuse.jit(function)
    for k in range(CALLS):
        given = [a + k * 0.01 if isinstance(a, np.ndarray) else a for a in args]
        kept = copy.deepcopy(given)
        same(fused(*given), function(*given))
        same(given, kept)
    assert len(written) == 1 and written[0][0] >= CALLS - 3


def test_results_do_not_share_memory(written):
    fused = mlirfuse.jit(ridge)
    first = [fused(MATRIX, VECTOR[:600], 0.1)[0] for _ in range(CALLS)]
    first[-1][:] = 0
    same(first[-2], ridge(MATRIX, VECTOR[:600], 0.1)[0])
    assert not any(np.shares_memory(a, b) for a, b in itertools.pairwise(first))


def test_a_function_gives_another_number_of_elements(written):
    def distinct(x):
        found = np.unique(np.round(x * 10))
        return found * 2 + len(found)

    fused = mlirfuse.jit(distinct)
    for scale in (1, 1, 1, 1, 0.5, 1, 0.5, 0.5, 0.5, 0.5, 0.1, 0.1):
        same(fused(VECTOR * scale), distinct(VECTOR * scale))
    assert sum(count[0] for count in written) > 2


def test_a_value_that_is_read_changes(written):
    def centered(x):
        found = np.linalg.norm(np.sort(x)[:10])
        if x.max() > 2:
            return x - found
        return x + found

    fused = mlirfuse.jit(centered)
    for factor in (1, 1, 1, 1, 3, 3, 3, 3, 1, 3, 1, 1, 1, 3):
        same(fused(VECTOR * factor), centered(VECTOR * factor))
    assert written


def test_a_number_that_branches(written):
    def powers(x, degree):
        found = np.vander(x, degree)
        return found * 2 if degree > 2 else found + 1

    fused = mlirfuse.jit(powers)
    for degree in (3, 3, 3, 3, 2, 3, 2, 2, 2, 2):
        same(fused(VECTOR, degree), powers(VECTOR, degree))


def test_errors_are_the_programs_own(written):
    def solved(a, b):
        try:
            return np.linalg.solve(a * 2, b) + 1
        except np.linalg.LinAlgError:
            return b - 1

    def inverse(a):
        return np.linalg.inv(a * 2) + 1

    a = RNG.random((50, 50)) + 50 * np.eye(50)
    handled, raised = mlirfuse.jit(solved), mlirfuse.jit(inverse)
    for given in (a, a, a, a, 0 * a, a, 0 * a, 0 * a, 0 * a, a, a, a):
        same(handled(given, a), solved(given, a))
        if given is a:
            same(raised(given), inverse(given))
        else:
            with pytest.raises(np.linalg.LinAlgError, match="Singular"):
                raised(given)
    assert written


def test_what_is_written_is_not_replayed(written):
    def noted(x, log):
        log[0] += np.median(x * 2)
        x[0] = np.linalg.norm(x)
        return x * 2

    fused = mlirfuse.jit(noted)
    ours, theirs = [VECTOR.copy(), np.zeros(2)], [VECTOR.copy(), np.zeros(2)]
    for _ in range(CALLS):
        same(fused(*ours), noted(*theirs))
        same(ours, theirs)
    assert not written


def test_captured_arrays_are_read_in_each_call(written):
    scale = np.ones(3000)

    def scaled(x):
        return np.median(x * scale) + x

    fused = mlirfuse.jit(scaled)
    for _ in range(CALLS):
        scale += 1
        same(fused(VECTOR), scaled(VECTOR))


def drawn(x):
    noise = scipy.stats.norm.rvs(loc=x)
    return noise * 2 if np.sort(x)[0] > 0 else noise - 1


def saved(x):
    (x * 2).tofile(files[-1])
    return x * 2 if np.sort(x)[0] > 0 else x + 1


files = []


@pytest.mark.parametrize("function", [drawn, saved])
def test_steps_that_act_run_once(function, tmp_path, written):
    """A call whose values lead elsewhere would start again, and draw or write twice."""
    found = []
    for index, run in enumerate([function, mlirfuse.jit(function)]):
        np.random.seed(0)
        with open(tmp_path / str(index), "wb") as file:
            files.append(file)
            found.append([run(sign * (abs(VECTOR) + 1)) for sign in (1, 1, 1, 1, -1, 1, 1, 1, -1, -1)])
            file.flush()
            found[-1].append((np.random.random(), files.pop().tell()))
    same(found[1], found[0])
    assert not written
