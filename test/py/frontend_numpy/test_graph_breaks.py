"""Functions that run in pieces: programs as people write them, with branches on values, sizes that values tell, and
functions without a kernel, beside NumPy."""

from __future__ import annotations

import math
import os
import sys
import warnings

import graph_break_fuzzer
import numpy as np
import numpy_program_fuzzer
import pytest

import mlirfuse
from mlirfuse.frontend.numpy import programs
from mlirfuse.frontend.numpy.graph_breaks import program


@pytest.fixture(autouse=True)
def however_small(monkeypatch):
    """Pieces are compiled for small arrays too, and nothing falls back."""
    monkeypatch.setattr(program, "SMALL", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def agree(got, want) -> None:
    assert type(got) is type(want), (got, want)
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            agree(g, w)
    elif isinstance(want, dict):
        assert got.keys() == want.keys()
        for key, value in want.items():
            agree(got[key], value)
    elif isinstance(want, (np.ndarray, np.generic)):
        assert got.dtype == want.dtype and np.shape(got) == np.shape(want)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    else:
        assert got == (want if isinstance(want, str) else pytest.approx(want, rel=1e-9))


def copies(args):
    return [a.copy() if isinstance(a, np.ndarray) else a for a in args]


def run(fn, args):
    """What a call gives or raises, and what it leaves in its arguments."""
    given = copies(args)
    try:
        return fn(*given), given
    except Exception as error:
        return type(error), given


def check(fn, *calls) -> program.Tree:
    """Calls with each of ``calls``, twice in turn; the tree of what they met."""
    compiled = mlirfuse.jit(fn)
    for args in calls * 2:
        (got, ours), (want, theirs) = run(compiled, args), run(fn, args)
        agree(got, want) if not isinstance(want, type) else agree(got is want, True)
        agree(ours, theirs)
    (entry,) = compiled._entries.values()
    (kind,) = entry.specializations.all()
    assert isinstance(kind, programs.ProgramSpecialization) and kind.program.refused is None
    return kind.program.tree


RNG = np.random.default_rng(0)
X = RNG.normal(size=40)
M = RNG.normal(size=(12, 4))


# ---- programs that people wrote for other purposes


def whiten(x, least):
    """Principal components of variance above ``least``, each of variance 1."""
    centred = x - x.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(centred, rowvar=False))
    keep = values > least
    return np.abs(centred @ vectors[:, keep]) / np.sqrt(values[keep])


def remove_outliers(x):
    q1, q3 = np.percentile(x, [25, 75])
    fence = 1.5 * (q3 - q1)
    kept = x[(x >= q1 - fence) & (x <= q3 + fence)]
    return kept.mean(), kept.std(), len(kept)


def spectrum_peak(signal, rate):
    window = np.hanning(len(signal))
    power = np.abs(np.fft.rfft((signal - signal.mean()) * window)) ** 2
    frequency = np.fft.rfftfreq(len(signal), 1 / rate)
    return frequency[np.argmax(power)], power / power.sum()


def otsu(image):
    counts, edges = np.histogram(image, bins=16)
    centres = (edges[:-1] + edges[1:]) / 2
    below = np.cumsum(counts)
    above = np.cumsum(counts[::-1])[::-1]
    low = np.cumsum(counts * centres) / np.maximum(below, 1)
    high = (np.cumsum((counts * centres)[::-1]) / np.maximum(np.cumsum(counts[::-1]), 1))[::-1]
    between = below[:-1] * above[1:] * (low[:-1] - high[1:]) ** 2
    return image > centres[np.argmax(between)]


def solve_or_least_squares(a, b):
    try:
        return np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        return np.linalg.lstsq(a, b, rcond=None)[0]


def detrended(y):
    t = np.arange(len(y))
    slope, intercept = np.polyfit(t, y, 1)
    rest = y - (slope * t + intercept)
    if np.abs(rest).max() > 2:
        rest = np.clip(rest, -2, 2)
    return rest


def confusion(truth, guess):
    classes = max(truth.max(), guess.max()) + 1
    table = np.bincount(truth * classes + guess, minlength=classes**2).reshape(classes, classes)
    return table, np.trace(table) / table.sum()


def pagerank(links):
    degree = links.sum(axis=0)
    if (degree == 0).any():
        links = links + (degree == 0)
        degree = links.sum(axis=0)
    values, vectors = np.linalg.eig(links / degree)
    first = np.abs(vectors[:, np.argmax(values.real)].real)
    return first / first.sum()


def regions(signal, level):
    """Where runs above a level begin and end."""
    edges = np.diff(np.concatenate(([0], (signal > level).astype(int), [0])))
    starts, ends = np.nonzero(edges == 1)[0], np.nonzero(edges == -1)[0]
    if starts.size == 0:
        return starts, ends, 0.0
    return starts, ends, (ends - starts).mean()


def normalized(x):
    low, high = x.min(), x.max()
    if high == low:
        return np.zeros_like(x)
    x -= low
    x /= high - low
    return x


def checked_log(x):
    assert isinstance(x, np.ndarray) and x.ndim == 1
    if not np.all(x > 0):
        raise ValueError("not above 0")
    return np.log(x) - float(np.log(x).mean())


def smoothed(x, width):
    padded = np.pad(x, width // 2, mode="linear_ramp")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    return np.median(windows, axis=-1) * 1.0


def deviations(table):
    return {"by row": np.apply_along_axis(np.ptp, 1, table), "of all": float(table.std()), "shape": table.shape}


def filled(m):
    np.fill_diagonal(m, 0)
    rows = m[m.sum(axis=1) > 0]
    m += 1
    return rows, rows.shape[0]


def joined(a, b):
    both = np.intersect1d(np.round(a, 1), np.round(b, 1))
    return both, np.setdiff1d(np.round(a, 1), both) * 2


SQUARE = M[:4] @ M[:4].T + np.eye(4)
PROGRAMS = {
    "whiten": (whiten, (M, 0.5), (M * [1, 1, 1, 1e-3], 0.5), (RNG.normal(size=(30, 4)), 0.1)),
    "outliers": (remove_outliers, (X,), (X**3,), (np.append(X, 100.0),)),
    "spectrum": (spectrum_peak, (np.sin(np.arange(64) * 0.7), 10.0), (np.cos(np.arange(90) * 0.3), 5.0)),
    "otsu": (otsu, (RNG.random((9, 8)),), (RNG.random((20, 30)) ** 3,)),
    "solve": (solve_or_least_squares, (SQUARE, X[:4]), (np.ones((4, 4)), X[:4])),
    "detrended": (detrended, (X + np.arange(40),), (5 * X,)),
    "confusion": (confusion, (np.arange(30) % 3, np.arange(30) % 5 % 3), (np.arange(9) % 4, np.arange(9) % 2)),
    "pagerank": (pagerank, ((M[:4] > 0) * 1.0,), (np.ones((4, 4)),)),
    "regions": (regions, (X, 0.3), (-X, 0.3), (X, 9.0)),
    "normalized": (normalized, (X.copy(),), (np.ones(40),)),
    "checked-log": (checked_log, (np.abs(X),), (X,), (np.abs(X) + 1,)),
    "smoothed": (smoothed, (X, 5), (X[:17], 5)),
    "deviations": (deviations, (M,), (M[:5],)),
    "filled": (filled, (M[:4].copy(),), (-np.abs(M[:4]),)),
    "joined": (joined, (X, X[::-1] + 0.1), (X[:20], X[20:])),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    fn, *calls = PROGRAMS[name]
    check(fn, *calls)


# ---- what it is made of


def test_a_known_way_runs_no_python(monkeypatch):
    """An outcome that was met before is found in the tree: the function is traced once an outcome."""
    traced = []
    before = program.GraphBreakProgram._session
    monkeypatch.setattr(
        program.GraphBreakProgram, "_session", lambda self, *args: traced.append(1) or before(self, *args)
    )

    def either(x):
        return np.sort(x) * 2 if x.sum() > 0 else x[x < 0]

    compiled = mlirfuse.jit(either)
    for x in (X, -np.abs(X), X + 1, -np.abs(X) - 1, X * 2):
        agree(compiled(x), either(x))
    assert len(traced) == 2


def test_other_counts_compile_nothing():
    def counted(x):
        kept = x[x > 0]
        count = int((x < 0).sum())
        return np.sqrt(kept) * count, np.arange(count) * 0.5

    compiled = mlirfuse.jit(counted)
    for at in (0.1, 0.2):
        agree(compiled(X + at), counted(X + at))
    (entry,) = compiled._entries.values()
    (kind,) = entry.specializations.all()
    steps = kind.program.tree.steps
    for at in (-0.5, 0.05, 0.7, 0.3):
        agree(compiled(X + at), counted(X + at))
    assert kind.program.tree.steps == steps


def test_equal_and_other_sizes():
    tree = check(lambda x: np.unique(x)[::2] + x.sum(), (X,), (X[:9],), (X[:30],))
    assert tree.steps < 12


def test_what_is_read_from_around_the_function():
    scale = np.arange(4.0)
    factor = 2.0

    def scaled(m):
        return np.linalg.svd(m * scale)[1] * factor

    compiled = mlirfuse.jit(scaled)
    agree(compiled(M), scaled(M))
    scale = np.ones(4)
    agree(compiled(M), scaled(M))
    scale[1] = 7
    agree(compiled(M), scaled(M))
    factor = 3.0
    agree(compiled(M), scaled(M))


def test_views_and_writes_over_a_cut():
    """What was written before a value is read is seen after it, through views too, and in the caller's array."""

    def written(a, b):
        tail, turned = a[1:], b.T
        tail += 1
        if a.sum() > 0:
            turned[0] = 5
            tail[:2] = b[0, :2]
        b *= 2
        return a[::-1], turned

    check(written, (X.copy(), M.copy()), (X - 9, M.copy()))
    out = mlirfuse.jit(written)
    a, b = X + 9, M.copy()
    back, _ = out(a, b)
    assert np.shares_memory(back, a)


def placed(x):
    y = np.zeros(5)
    np.copyto(y, x[:5])
    np.put(y, [0, 1], [9.0, 8.0])
    y.sort()
    np.putmask(y, y > 5, 1)
    return y


def started(x):
    out = np.zeros(3)
    out[0] = x.sum()
    least = np.unique(x)[0]
    return out[0] + least, out * 2


def iterated(x):
    y = np.fromiter((float(k) for k in range(5)), float)
    np.copyto(y, x[:5], "unsafe")
    return y


def windowed(x):
    y = np.hanning(5)
    np.putmask(y, x[:5] > 0, x[:5])
    return y * 2


def indexed(x):
    (y,) = np.indices((5,))
    np.put(y, [0, 3], x[:2].astype(int))
    return y


@pytest.mark.parametrize("fn", [placed, started])
def test_arrays_made_inside_are_no_constants_once_they_are_written(fn):
    check(fn, (X,), (X + 1,))


@pytest.mark.parametrize("fn", [iterated, windowed, indexed])
def test_what_writes_into_an_array_of_numpys_runs_as_python(fn):
    """One that NumPy makes of numbers while the function is traced."""
    compiled = mlirfuse.jit(fn)
    with pytest.warns(mlirfuse.FallbackWarning, match="an array that NumPy made"):
        agree(compiled(X), fn(X))
    agree(compiled(X + 1), fn(X + 1))


def test_what_writes_into_an_array_of_constants():
    """In a trace of the whole, too: no function that writes is computed ahead."""

    def base(x):
        y = np.zeros(4)
        np.put_along_axis(y, np.array([2]), 3.0, 0)
        return x[:4] + y

    compiled = mlirfuse.jit(base, fallback=False)
    agree(compiled(X), base(X))


_SHORT, _LONG = np.arange(5.0), np.arange(8.0)


def test_branches_with_constants_of_other_sizes():
    def repeated(a, n):
        np.put(a, [0], 1)
        made = np.array([2 for _ in range(n)])
        return np.convolve(made, made, "same")

    def outside(a, n):
        np.put(a, [0], 1)
        found = _LONG if a.sum() > 6 else _SHORT
        return np.convolve(found, found, "same")

    for fn in (repeated, outside):
        check(fn, *[(np.ones(n), n) for n in (7, 5, 9)])


def test_numbers_in_text():
    check(lambda x: f"{np.median(x):.3f} of {np.unique(x).size}, {x.max()}", (np.round(X),), (np.round(X) + 1,))


def test_results_are_new_in_each_call():
    compiled = mlirfuse.jit(lambda x: (np.linalg.inv(x), np.zeros(3)))
    first, zeros = compiled(SQUARE)
    first[:] = zeros[:] = 7
    agree(compiled(SQUARE), (np.linalg.inv(SQUARE), np.zeros(3)))


def test_an_error_leaves_what_numpy_leaves():
    def spoiled(a, b):
        a += 1
        if b.sum() > 0:
            a *= 2
        return np.linalg.cholesky(b) + a[0]

    check(spoiled, (X.copy(), SQUARE), (X.copy(), -SQUARE), (X.copy(), SQUARE - 100))


def test_numbers_that_are_arguments():
    check(
        lambda x, k: np.unique(x)[k] + x[k] if k < 5 else np.unique(x[:k]).sum() * np.median(x),
        (X, 2),
        (X, 3),
        (X, 7),
        (X, 8),
    )


def test_effects_happen_in_every_call():
    """They are no pieces: the function runs as it is."""
    seen = []

    def told(x):
        y = np.linalg.eigvalsh(x)
        seen.append(float(y[0]))
        return y if y[0] > 0 else -y

    compiled = mlirfuse.jit(told)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(3):
            agree(compiled(SQUARE * (k + 1)), np.linalg.eigvalsh(SQUARE * (k + 1)))
    assert len(seen) == 3 and seen[1] == pytest.approx(2 * seen[0])


def test_more_outcomes_than_are_kept_run_by_numpy():
    def many(x):
        return [float(v) if v > 0 else -1 for v in x]

    compiled = mlirfuse.jit(many)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(60):
            x = np.random.default_rng(seed).normal(size=30)
            assert compiled(x) == many(x)


def test_small_calls_are_numpys(monkeypatch):
    monkeypatch.setattr(program, "SMALL", 2048)
    compiled = mlirfuse.jit(lambda x: np.sort(x)[::-1] * 2)
    agree(compiled(X), np.sort(X)[::-1] * 2)
    long = np.tile(X, 100)
    agree(compiled(long), np.sort(long)[::-1] * 2)


def test_explain_lists_pieces_calls_and_reads():
    told = mlirfuse.jit(whiten).explain(M, 0.5)
    assert [s.kind for s in told.parts].count("call") >= 2 and "eigh" in {s.what for s in told.parts}
    assert all(s.where is None or s.where[0].endswith("test_graph_breaks.py") for s in told.parts)
    assert "subgraphs" in told.summary() and "values, vectors = np.linalg.eigh" in str(told)
    told = mlirfuse.jit(lambda x: (np.linalg.inv(x) > 0).astype(str)).explain(SQUARE)
    assert told.launches == 0 and "runs op by op" in told.summary() and "test_graph_breaks.py" in told.summary()


# ---- types that are no numbers

DATES = np.array(["2020-01-01", "2020-03-01"], "M8[D]")
RECORDS = np.array([(1.5, 2), (2.5, 3)], [("mass", "f8"), ("count", "i4")])


def weighed(records):
    records["count"] += 1
    return records["mass"] * records["count"], records


@pytest.mark.parametrize("fn, args", [
    (lambda d: d + np.timedelta64(1, "D"), (DATES,)), (lambda d, x: (d, x * 2), (DATES, X)), (weighed, (RECORDS,)),
    (lambda s: np.char.upper(s), (np.array(["a", "b"]),)), (lambda o: o + o, (np.array([1, "a"], object),)),
    (lambda x: x * 2, (np.arange(3.0).astype(">f8"),)), (lambda x: x + 1, (np.ma.masked_array([1.0, 2.0], [0, 1]),)),
], ids=range(7))  # fmt: skip
def test_types_that_are_no_numbers(fn, args):
    """NumPy runs the function; one warning says so."""
    compiled = mlirfuse.jit(fn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            ours, theirs = copies(args), copies(args)
            got, want = compiled(*ours), fn(*theirs)
            for g, w in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want))):
                assert type(g) is type(w) and g.dtype == w.dtype and (g == w).all()
            assert all((a == b).all() for a, b in zip(ours, theirs))
    assert len([w for w in told if issubclass(w.category, UserWarning)]) == 1


def stored_in_turn(a, b, m):
    """The last element of ``b``, its only one, is stored before ``b`` changes."""
    if a.sum() < 1000:
        m[0] = b[-1]
    b += a
    return m


def one_view_twice(a, b, m):
    v = np.sort(b)[::-1]
    if v[0] > 1000:
        v = v * 2
    w = v
    return v, w, w[:1]


@pytest.mark.parametrize("fn", [stored_in_turn, one_view_twice])
@pytest.mark.parametrize("n", [1, 4])
def test_views_among_what_is_written_and_given_back(fn, n):
    args = [np.arange(n) + 1.5, np.arange(n) + 7.0, np.zeros(n)]
    ours, theirs = copies(args), copies(args)
    compiled = mlirfuse.jit(fn)
    got, want = compiled(*ours), fn(*theirs)
    np.testing.assert_equal((got, ours), (want, theirs))
    if fn is one_view_twice:
        assert (got[0] is got[1]) and np.shares_memory(got[0], got[2])


def element_or_none(b, k):
    try:
        return b[k] * 2
    except IndexError:
        return None


def stored_or_not(b, k):
    if b.sum() > 1000:
        return None
    try:
        return b.astype(np.int8) + k
    except OverflowError:
        return None


@pytest.mark.parametrize("fn", [element_or_none, stored_or_not])
@pytest.mark.parametrize("first", [300, 1])
def test_an_error_that_is_caught_is_that_of_its_number(fn, first):
    compiled, b = mlirfuse.jit(fn), np.arange(5.0)
    for k in (first, 0, 3, -2, 1, 500, -400, 4):
        np.testing.assert_equal(compiled(b, k), fn(b, k))


# ---- random programs


@pytest.mark.parametrize("seed", range(30))
def test_random_programs(seed):
    found = graph_break_fuzzer.differs(seed)
    assert found is None, found


@pytest.mark.parametrize(
    "decided, steady", [("np.abs(np.fft.fft(b))[2]", False), ("b.sum() / 2", True), ("np.sqrt(abs(b) ** 2)[2]", True)]
)
def test_what_roundings_decide_is_not_compared(decided, steady):
    """Of integers, too: NumPy's 7.0 may be 6.999999999999999."""
    fn = numpy_program_fuzzer.compiled(f"def program(a, b, m, n, k, x):\n    return int({decided})\n", 0)
    args = [np.arange(3), np.array([2, -3, 5]), np.eye(3), 3, 4, 0.5]
    assert numpy_program_fuzzer.steady(fn, args, numpy_program_fuzzer.outcome(fn, args)) is steady


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # NumPy's, after errors of np.add.at
@pytest.mark.parametrize("first", range(100, 1000, 100))
def test_many_random_programs(first):
    for seed in range(first, first + 100):
        found = graph_break_fuzzer.differs(seed)
        assert found is None, found


def test_a_number_of_an_array_that_is_0_divides_nothing():
    """Its value is no constant of what is compiled: only whether it is 0 is told apart."""

    def mean_of_large(x):
        count = int((x > 5).sum())
        try:
            return float(x.sum()) / count, 10 % count
        except ZeroDivisionError:
            return None

    compiled = mlirfuse.jit(mean_of_large)
    assert compiled(np.zeros(9)) is compiled(np.ones(9)) is None
    for x in (np.full(9, 7.0), np.arange(12.0), np.arange(40.0)):
        agree(compiled(x), mean_of_large(x))
    with pytest.raises(ZeroDivisionError):
        mlirfuse.jit(lambda x: 10 // int(x.sum()))(np.array([0, 0]))


def test_what_is_around_a_function_is_no_argument_of_calls_that_run_as_they_are():
    """Some kinds are compiled, beside an array around the function; others are not."""
    table = np.arange(5.0)

    def scaled(a):
        y = a * table
        if a.dtype == np.float32:
            return y * len(set(a[0]))
        return y

    compiled = mlirfuse.jit(scaled)
    x = np.ones((5, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for a in (x.astype(np.float32), x, x.astype(np.float32), x):
            agree(compiled(a), scaled(a))


def test_a_value_that_is_asked_for_is_computed_once():
    """What a loop computes is as deep as it has turns, and each of these is read twice."""

    def length(x, v, n):
        for _ in range(n):
            x, v = x + 0.01 * v, v - 0.01 * x
        return math.sqrt(x * x + v * v)

    agree(mlirfuse.jit(length)(1.0, 0.0, 400), length(1.0, 0.0, 400))


def test_hot_calls_run_little_python_between_the_steps():
    def fit(x, y):
        coefficients, _, _, _ = np.linalg.lstsq(np.stack([x, np.ones_like(x)]).T, y, rcond=None)
        return coefficients

    x, y = np.random.default_rng(2).random((2, 100))
    compiled = mlirfuse.jit(fit)
    for _ in range(4):
        agree(compiled(x, y), fit(x, y))
    folder = os.path.dirname(mlirfuse.__file__)
    names: list[str] = []

    def observe(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            names.append(frame.f_code.co_name)

    sys.setprofile(observe)
    try:
        compiled(x, y)
    finally:
        sys.setprofile(None)
    assert len(names) <= 60, names
