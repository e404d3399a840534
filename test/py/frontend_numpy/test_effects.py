"""What a function does beside computing happens at every call, in order: output, clocks, random numbers, and writes
into what is around it. The function then runs as plain Python, with a warning; an error with the fallback off."""

import abc
import collections
import concurrent.futures
import contextlib
import datetime
import functools
import importlib
import linecache
import operator
import random
import sys
import threading
import time
import types
import warnings
from time import perf_counter

import numpy as np
import pytest
from numpy.random import default_rng, rand

import mlirfuse
from mlirfuse import TraceError
from mlirfuse.frontend.numpy.scope import roots_of

X = np.arange(6.0).reshape(2, 3)

history: list = []
records: dict = {}
total = 0
counter = np.zeros(2)
GENERATOR = np.random.default_rng(7)
TWISTER = np.random.RandomState(7)
STDLIB = random.Random(7)
queue = collections.deque()
names: set = set()


class Model:
    created = 0

    def __init__(self):
        self.calls = 0
        self.losses = []
        self.generator = np.random.default_rng(3)


model = Model()


def appends(x):
    err = np.abs(x).sum()
    history.append(err)
    return x / err


def writes_a_global(x):
    global total
    total = total + 1
    return x + 1


def writes_an_item(x):
    records["last"] = x.sum()
    records.setdefault("count", []).append(1)
    return x + 1


def writes_an_attribute(x):
    model.calls += 1
    return x * 2


def writes_a_class(x):
    Model.created += 1
    return x * 2


def writes_a_list_in_an_object(x):
    model.losses.append(float((x * 2).shape[0]))
    return x * 2


def writes_an_array(x):
    counter[0] += 1
    return x + 1


def fills_a_queue_and_a_set(x):
    queue.append(1)
    names.add(len(queue))
    return x + 1


def counts_itself(x):
    counts_itself.calls = getattr(counts_itself, "calls", 0) + 1
    return x + 1


def changes_an_argument(x, parts):
    parts.append(x + 1)
    return x


def state():
    """All that the functions above write, as values."""
    return (
        [float(h) for h in history],
        {k: np.asarray(v).tolist() for k, v in records.items()},
        total,
        counter.tolist(),
        model.calls,
        Model.created,
        list(model.losses),
        list(queue),
        set(names),
        getattr(counts_itself, "calls", 0),
    )


def reset():
    global total
    total = model.calls = Model.created = 0
    counter[:] = 0
    for held in (history, records, model.losses, queue, names):
        held.clear()
    counts_itself.__dict__.clear()


WRITERS = [
    appends,
    writes_a_global,
    writes_an_item,
    writes_an_attribute,
    writes_a_class,
    writes_a_list_in_an_object,
    writes_an_array,
    fills_a_queue_and_a_set,
    counts_itself,
]


@pytest.mark.parametrize("fn", WRITERS, ids=lambda f: f.__name__)
def test_writes_happen_at_every_call(fn):
    reset()
    expected, states = [], []
    for k in range(4):
        expected.append(fn(X + k))
        states.append(state())
    reset()
    compiled = mlirfuse.jit(fn, fallback=True)
    with pytest.warns(UserWarning, match="every call") as warned:
        for k in range(4):
            np.testing.assert_allclose(compiled(X + k), expected[k])
            assert state() == states[k]
    assert len(warned) == 1


called = {
    "add": np.add, "add_at": np.add.at, "copyto": np.copyto, "partial": functools.partial(np.add, out=counter),
    "method": counter.fill, "iadd": operator.iadd,
}  # fmt: skip


@pytest.mark.parametrize("write", [
    lambda: counter.__iadd__(1),
    lambda: counter.__isub__(1),
    lambda: np.ndarray.__imul__(counter, 2),
    lambda: operator.iadd(counter, 1),
    lambda: operator.setitem(counter, 0, counter[0] + 1),
    lambda: counter.__setitem__(0, counter[0] + 1),
    lambda: np.add(counter, 1, counter),
    lambda: np.negative(counter, counter),
    lambda: np.cumsum(counter + 1, 0, None, counter),
    lambda: (counter + 1).cumsum(0, None, counter),
    lambda: np.clip(counter + 1, 0, 9, counter),
    lambda: np.take(counter + 1, [0, 0], 0, counter),
    lambda: np.round(counter + 1, 0, counter),
    lambda: called["add"](counter, 1, counter),
    lambda: called["add_at"](counter, [0], 1),
    lambda: called["copyto"](counter, counter + 1),
    lambda: called["partial"](counter, 1),
    lambda: called["method"](counter.sum() + 1),
    lambda: called["iadd"](counter, 1),
    lambda: (lambda f: f(counter, 1, counter))(np.add),
    lambda: np.add(*(counter, 1, counter)),
    lambda: [f(counter, 1, counter) for f in (np.add, np.multiply)],
    lambda: list(map(np.add, [counter], [1], [counter])),
    lambda: getattr(np, "".join(["a", "dd"]))(counter, 1, counter),
])  # fmt: skip
def test_writes_into_an_array_by_what_is_called(write):
    def fn(x):
        write()
        return x + counter.sum()

    def run(f):
        counter[:] = 1
        return [(f(X), counter.copy()) for _ in range(3)]

    expected = run(fn)
    with pytest.warns(UserWarning, match="every call"):
        found = run(mlirfuse.jit(fn, fallback=True))
    for pair, other in zip(found, expected, strict=True):
        for a, b in zip(pair, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("bytes_, seen", [(20 << 20, True), (300 << 20, False)])
def test_writes_into_large_arrays(bytes_, seen):
    """The limit: copies of what is around the function would take too much memory."""
    large = np.zeros(bytes_ // 8)

    def fn(x):
        large[0] += 1
        return x + 1

    compiled = mlirfuse.jit(fn, fallback=True)
    with pytest.warns(UserWarning, match="every call") if seen else contextlib.nullcontext():
        for _ in range(3):
            compiled(X)
    assert (large[0] == 3) == seen


def test_an_array_gets_another_shape_at_every_call():
    def fn(x):
        array.shape = (2, 3)
        return x + array

    array = np.ones(6)
    compiled = mlirfuse.jit(fn, fallback=True)
    with pytest.warns(UserWarning, match="every call"):
        for _ in range(3):
            array.shape = (6,)
            np.testing.assert_array_equal(compiled(X), X + 1)
            assert array.shape == (2, 3)


CLASSES = """
counts, log = {"n": 0}, []
class Counted:
    entered = []
    def __init__(self): counts["n"] += 1
    def __enter__(self): self.entered.append(1); return 2
    def __exit__(self, *error): log.append(len(self.entered)); return True
    def __add__(self, other): log.append("+"); return other
    def __getitem__(self, key): log.append(key); return key
class New:
    def __new__(cls): log.append("new"); return object.__new__(cls)
class Field:
    def __get__(self, owner, kind): log.append("get"); return 3
    def __set__(self, owner, value): log.append(value)
class Fields:
    field = Field()
kept, fields = Counted(), Fields()
"""


@pytest.mark.parametrize(
    "body",
    [
        "Counted(); return x",
        "return kept + x",
        "return x + kept[0]",
        "return (x * kept[1], kept)[0]",
        "New(); return x",
        "return x + fields.field",
        "fields.field = 4; return x",
    ],
)
@pytest.mark.parametrize("module", ["executed", __name__])
def test_special_methods_have_their_effects_at_every_call(body, module):
    """Those that no code names, also of classes whose module has no file."""
    source = f"{CLASSES}def f(x):\n    x = x * 2\n    {body}\n"
    source += "def g(x):\n    with Counted() as k:\n        y = x * k\n        raise KeyError\n    return y\n"
    sys.modules.setdefault("executed", types.ModuleType("executed"))
    name = f"<{module} {body}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    states = []
    for compiled in (False, True):
        space: dict = {"__name__": module}
        exec(compile(source, name, "exec"), space)
        seen = []
        for function in (space["f"], space["g"]):
            function = mlirfuse.jit(function, fallback=True) if compiled else function
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in range(3):
                    function(X)
                    seen.append((space["counts"]["n"], list(space["log"]), len(space["Counted"].entered)))
        states.append(seen)
    assert states[0] == states[1]


def test_a_nonlocal_is_written_at_every_call():
    def make():
        calls = 0

        def count(x):
            nonlocal calls
            calls += 1
            return x + calls

        return mlirfuse.jit(count, fallback=True)

    compiled = make()
    with pytest.warns(UserWarning, match="variable of an enclosing function"):
        assert [float(compiled(X)[0, 0]) for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]


def test_an_argument_that_is_a_list_is_changed():
    parts = []
    compiled = mlirfuse.jit(changes_an_argument, fallback=True)
    with pytest.warns(UserWarning, match="argument"):
        compiled(X, parts)
    assert len(parts) == 1 and np.array_equal(parts[0], X + 1)


def test_print_happens_at_every_call(capsys):
    def shows(x):
        print("mean", float(x.shape[0]))
        return x.mean()

    compiled = mlirfuse.jit(shows, fallback=True)
    with pytest.warns(UserWarning, match=r"test_effects.py:\d+: print"):
        for _ in range(3):
            assert compiled(X) == X.mean()
    assert capsys.readouterr().out == "mean 2.0\n" * 3


def draw_module(x):
    return x + np.random.rand(3)


def draw_generator(x):
    return x + GENERATOR.standard_normal(3)


def draw_twister(x):
    return x + TWISTER.rand(3)


def draw_stdlib(x):
    return x * random.random()


def draw_own_stdlib(x):
    return x * STDLIB.random()


def draw_attribute(x):
    return x + model.generator.random(3)


def draw_imported(x):
    return x + rand(3)


def draw_shuffled(x):
    order = list(range(3))
    random.shuffle(order)
    return x[:, order]


def draw_in_a_helper(x):
    return draw_module(x) * 2


def draw_by_argument(x, generator):
    return x + generator.random(3)


def seed_all():
    np.random.seed(3)
    random.seed(3)
    STDLIB.seed(3)
    GENERATOR.bit_generator.state = np.random.default_rng(3).bit_generator.state
    model.generator.bit_generator.state = np.random.default_rng(4).bit_generator.state
    TWISTER.seed(3)


DRAWERS = [
    draw_module,
    draw_generator,
    draw_twister,
    draw_stdlib,
    draw_own_stdlib,
    draw_attribute,
    draw_imported,
    draw_shuffled,
    draw_in_a_helper,
]


@pytest.mark.parametrize("fn", DRAWERS, ids=lambda f: f.__name__)
def test_random_numbers_are_numpys_in_its_order(fn):
    seed_all()
    expected = [fn(X) for _ in range(4)]
    seed_all()
    compiled = mlirfuse.jit(fn, fallback=True)
    with pytest.warns(UserWarning, match="every call"):
        got = [compiled(X) for _ in range(4)]
    for a, b in zip(got, expected):
        np.testing.assert_array_equal(a, b)


class Draws:
    def __init__(self):
        self.draw, self.step = np.random.rand, functools.partial(list.append, history)


draws, drawing = Draws(), {"rand": np.random.rand, "uniform": functools.partial(random.uniform, 0, 1)}


@pytest.mark.parametrize("fn", [
    lambda x: x + drawing["rand"](), lambda x: x + drawing["uniform"](), lambda x: x + draws.draw(),
    lambda x: x + draws.draw(), lambda x: x + len([draws.step(1), *history]),
])  # fmt: skip
def test_methods_in_containers_and_partials_change_what_they_are_of(fn):
    def run(f):
        history.clear()
        np.random.seed(3)
        random.seed(3)
        return [f(X) for _ in range(3)]

    wanted = run(fn)
    with pytest.warns(UserWarning, match="every call"):
        found = run(mlirfuse.jit(fn, fallback=True))
    np.testing.assert_array_equal(found, wanted)


def test_clocks_and_iterators_in_containers_are_not_seen():
    held = {"clock": time.perf_counter, "numbers": iter(range(9))}
    for fn in (lambda x: x * 0 + held["clock"](), lambda x: x + next(held["numbers"])):
        compiled = mlirfuse.jit(fn)
        assert compiled(X).tolist() == compiled(X).tolist()


def test_a_generator_that_is_an_argument():
    expected = [draw_by_argument(X, g) for g in [np.random.default_rng(5)] for _ in range(3)]
    generator, compiled = np.random.default_rng(5), mlirfuse.jit(draw_by_argument, fallback=True)
    with pytest.warns(UserWarning, match="generator"):
        for e in expected:
            np.testing.assert_array_equal(compiled(X, generator), e)


@pytest.mark.parametrize(
    "draw", [lambda x: x + default_rng().random(3), lambda x: x + np.random.default_rng().random(3)]
)
def test_a_generator_made_inside_is_new_in_each_call(draw):
    compiled = mlirfuse.jit(draw, fallback=True)
    with pytest.warns(UserWarning, match="default_rng"):
        assert not np.array_equal(compiled(X), compiled(X))


def test_first_use_of_random_numbers_in_a_process():
    import subprocess

    program = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import numpy as np, mlirfuse\n"
        "def f(x): return x + np.random.rand(3)\n"
        "f = mlirfuse.jit(f); x = np.zeros(3)\n"
        "assert not np.array_equal(f(x), f(x))\n"
    )
    path = __file__.rsplit(".", 1)[0] + "_first.py"  # a file: functions of `python -c` have no source
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, (path, done.stderr)


CLOCKS = [
    lambda x: x * 0 + time.time_ns(),
    lambda x: x * 0 + perf_counter(),
    lambda x: x * 0 + time.monotonic_ns() * 1.0,
    lambda x: x * 0 + datetime.datetime.now().timestamp(),
]


@pytest.mark.parametrize("fn", CLOCKS)
def test_clocks_are_read_at_every_call(fn):
    compiled = mlirfuse.jit(fn, fallback=True)
    with pytest.warns(UserWarning, match="every call"):
        first = compiled(X)
    time.sleep(0.01)
    assert compiled(X)[0, 0] > first[0, 0]


def _add(a, n):
    for k in range(n):
        a[k % len(a)] += k
    return a.sum()


def _by_threads(x):
    workers = [threading.Thread(target=_add, args=(x[k:], 1000)) for k in (0, 2)]
    for worker in workers:
        worker.start()
        worker.join()
    return x * 2


def _by_an_executor(x):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return x * sum(pool.map(_add, [x[:2], x[2:]], [10, 20]))


_POOL = concurrent.futures.ThreadPoolExecutor(1)


def _by_a_pool_outside(x):
    return x * _POOL.submit(_add, x, 10).result()


@pytest.mark.parametrize("fn", [_by_threads, _by_an_executor, _by_a_pool_outside])
def test_functions_that_use_threads_run_as_python(fn):
    compiled = mlirfuse.jit(fn, fallback=True)
    for _ in range(2):
        x = np.arange(4.0)
        y = x.copy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mlirfuse.FallbackWarning)
            np.testing.assert_array_equal(compiled(x), fn(y))
        np.testing.assert_array_equal(x, y)


def test_a_trace_is_not_continued_by_another_thread():
    """Such as one of a library's that the tracer does not know."""

    class Runner:
        def __call__(self, function):
            with contextlib.suppress(BaseException):
                _POOL.submit(function).result()

    run = Runner()

    def elsewhere(x):
        run(lambda: x.__iadd__(1))
        return x * 2

    x = np.arange(4.0)
    with pytest.warns(mlirfuse.FallbackWarning):
        np.testing.assert_array_equal(mlirfuse.jit(elsewhere, fallback=True)(x), [2, 4, 6, 8])


def test_files_and_iterators(tmp_path):
    file = tmp_path / "scale"
    numbers = iter([1.0, 2.0, 3.0])

    def reads(x):
        with open(file) as f:
            return x * float(f.read())

    def takes(x):
        return x * next(numbers)

    compiled = mlirfuse.jit(reads, fallback=True), mlirfuse.jit(takes, fallback=True)
    with pytest.warns(UserWarning, match="every call"):
        for value in (1.0, 2.0, 3.0):
            file.write_text(str(value))
            for fn in compiled:
                np.testing.assert_array_equal(fn(X), X * value)


def test_results_that_are_objects_are_new_in_each_call():
    def makes(x):
        return types.SimpleNamespace(y=x + 1)

    compiled = mlirfuse.jit(makes, fallback=True)
    with pytest.warns(UserWarning, match="creates a SimpleNamespace"):
        first, second = compiled(X), compiled(X + 1)
    np.testing.assert_array_equal(first.y, X + 1)
    np.testing.assert_array_equal(second.y, X + 2)


def test_a_failure_midway_has_its_effects_once():
    reset()

    def fails(x, y):
        history.append(x.shape[0])
        return x @ y

    compiled = mlirfuse.jit(fails, fallback=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(3):
            with pytest.raises(ValueError, match="matmul"):
                compiled(X, X)
            assert history == [2] * (k + 1)


def test_with_the_fallback_off_effects_are_errors_and_do_not_happen(capsys):
    reset()
    before = state()
    for fn in WRITERS:
        with pytest.raises(TraceError, match="every call"):
            mlirfuse.jit(fn, fallback=False)(X)
        assert state() == before

    def shows(x):
        with contextlib.suppress(Exception):
            print(x.shape)
        return x + 1

    with pytest.raises(TraceError, match="print"):
        mlirfuse.jit(shows, fallback=False)(X)
    assert capsys.readouterr().out == ""


def test_what_is_not_done_is_no_effect():
    def careful(x, verbose=False):
        if verbose:
            print(x)
        local = []
        local.append(x + 1)
        found = {"y": local[0]}
        found["z"] = found["y"] * 2
        holder = types.SimpleNamespace(n=0)
        holder.n += 1
        return found["z"] * holder.n

    np.testing.assert_array_equal(mlirfuse.jit(careful, fallback=False)(X), (X + 1) * 2)


def test_a_cache_that_fills_at_the_first_call_does_not_keep_a_function_from_compiling():
    tables: dict = {}

    def cached(x):
        if "scale" not in tables:
            tables["scale"] = 3.0
        return x * tables["scale"]

    compiled = mlirfuse.jit(cached, fallback=True)
    before = mlirfuse.counters.specializations
    with pytest.warns(UserWarning, match="tables"):
        compiled(X)
    compiled(X)
    assert mlirfuse.counters.specializations == before + 1


TABLE = np.arange(4.0)
HELD = types.SimpleNamespace(w=np.arange(4.0), n=2.0)
PARAMETERS = {"w": np.arange(4.0)}


def with_attribute(x):
    return x * with_attribute.scale


@mlirfuse.jit
def with_own_attribute(x):
    return x * with_own_attribute.scale


READERS = [
    lambda x: x * (TABLE * 2),
    lambda x: x * float(TABLE[1]),
    lambda x: x * (HELD.w + 1),
    lambda x: x * (PARAMETERS["w"] * 2),
    lambda x: x * TABLE[1:3].sum(),
    lambda x: x + np.sort(TABLE),
    lambda x: x[np.argsort(-TABLE)],
    lambda x: x * TABLE.copy(),
    lambda x: x * HELD.n,
    lambda x: (x, TABLE)[1] + x,
    lambda x: with_attribute(x),
    lambda x: with_own_attribute(x),
]


@pytest.mark.parametrize("fn", READERS)
def test_what_is_around_a_function_is_read_as_it_is_then(fn):
    compiled, x = mlirfuse.jit(fn, fallback=False), np.arange(4.0)[::-1]

    def change(k):
        for held in (TABLE, HELD.w, PARAMETERS["w"]):
            held[:] = np.arange(4.0) ** k
        HELD.n = with_attribute.scale = with_own_attribute.scale = float(k)

    for k in (1, 1, 3, 2):
        change(k)
        np.testing.assert_array_equal(compiled(x), fn(x))


def test_an_interrupt_is_never_taken_for_a_side_effect():
    count = 0

    def f(x):
        nonlocal count
        count += 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mlirfuse.jit(f, fallback=False)(np.ones(3))


def test_a_warning_during_the_trace_is_no_effect():
    """Python notes a shown warning among the globals of the function that it is attributed to."""
    zero = np.float64(0.0)

    def f(x):
        return x + np.log(zero)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        assert np.array_equal(mlirfuse.jit(f)(X), f(X))
    assert not any(issubclass(w.category, mlirfuse.FallbackWarning) for w in shown)


def _with_special_methods(other):
    """An object whose special methods name ``other``."""

    class Kept:
        def __init__(self):
            self.other = other

        def __enter__(self):
            return self.other, other

        def __exit__(self, *_):
            return other is None

        def __len__(self):
            return len(other)

        def __getitem__(self, k):
            return other[k]

    return Kept()


def test_objects_of_special_methods_are_looked_into_once():
    """However many functions lead to them: all that name one another took longer than anyone would wait."""
    kept: object = [1.0]
    for _ in range(8):
        kept = _with_special_methods(kept)

    def f(x):
        with kept as (a, b):
            return x * kept[0] + len(kept) + (a is b)

    found = [value for name, *_, value in roots_of(f)[0] if name == "self"]
    assert len({id(value) for value in found}) == len(found)
    assert np.array_equal(mlirfuse.jit(f)(X), f(X))


class CountingFinder:
    """An import hook that counts, as those of debuggers and test runners do."""

    asked = 0

    def find_spec(self, name, path=None, target=None):
        self.asked += 1


FINDER = CountingFinder()


def test_import_hooks_are_not_the_functions_state(monkeypatch):
    """The compiler's own imports during a trace, here an import in the function, change them."""

    def fn(x):
        if FINDER is None:
            return x
        importlib.import_module("mlirfuse.tools.main")
        return 2 * x

    monkeypatch.setattr(sys, "meta_path", [FINDER, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "mlirfuse.tools.main", raising=False)
    compiled = mlirfuse.jit(fn, fallback=False)
    np.testing.assert_array_equal(compiled(np.ones(3)), [2, 2, 2])
    assert FINDER.asked > 0


class Scale(metaclass=abc.ABCMeta):  # noqa: B024
    """Of a metaclass with methods, which are not its objects'."""

    factor = 2.0


SCALE = Scale()
REGISTRY = types.SimpleNamespace(register=lambda x: x)


def test_a_name_of_a_metaclass_method_is_no_method():
    def fn(x):
        return REGISTRY.register(x) * SCALE.factor

    np.testing.assert_array_equal(mlirfuse.jit(fn, fallback=False)(np.ones(3)), [2, 2, 2])


WRITTEN = {
    "a column": np.zeros((5, 4))[:, 1],
    "columns": np.zeros((5, 4))[:, ::2],
    "reversed": np.zeros(6)[::-2],
    "of Fortran": np.zeros((5, 4), order="F"),
    "without axes": np.array(0.0),
    "objects": np.array([0.0, None], dtype=object),
    "a field beside objects": np.zeros(3, [("a", "O"), ("b", "i8")])["b"],
    "with objects": np.zeros(3, [("a", "O"), ("b", "i8")]),
    "strings": np.zeros(3, np.dtypes.StringDType()) if hasattr(np.dtypes, "StringDType") else np.zeros(3, "U3"),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_arrays_of_all_layouts_and_types(kind):
    """What a trace writes into an array around the function happens once, and one that it does not write is no
    reason not to compile."""
    array = WRITTEN[kind]
    first = (0,) * array.ndim if array.dtype.names is None else "b"

    def counted(x):
        array[first] = array[first] * 2 + 1 if array.dtype.kind != "T" else array[first] + "a"
        return x * 2

    def read(x):
        return x * array.ndim

    pythons, ours = [], []
    for run, found in ((counted, pythons), (mlirfuse.jit(counted), ours)):
        before = array.copy()
        for _ in range(3):
            run(np.ones(3))
            found.append(array.tolist())
        array[...] = before
    assert ours == pythons
    np.testing.assert_array_equal(mlirfuse.jit(read, fallback=False)(np.ones(3)), read(np.ones(3)))
