"""The hot call on NumPy arrays: signatures, records, results. Launch functions are Python callbacks here."""

import ctypes
import gc
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest

from mlirfuse import _native
from mlirfuse.core.errors import MlirfuseError

LaunchType = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p
)
F4 = np.dtype("f4")
CPU = ("cpu", "numpy")


def floats(pointer, count):
    return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (count,))


def make_record(function, **fields):
    callback = LaunchType(function)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    args = dict(ints=[], arg_slots=[], scalars=[], outputs=[], workspace=0, device=CPU, result="tuple")
    args.update(fields)
    return _native.Record(address, keep=callback, **args)


def counting_dispatcher(**options):
    """A dispatcher whose calls return nothing, and the leaves of its misses."""
    missed = []

    def miss(leaves):
        missed.append(leaves)
        return _native.Record(0, [], [], [], [], 0, CPU, "tuple")

    return _native.Dispatcher(miss, **options), missed


def is_hit(dispatcher, *leaves):
    before = dispatcher.misses
    dispatcher(*leaves)
    return dispatcher.misses == before


def test_runs_the_compiled_function():
    def axpy(pointers, ints, stream):
        n = ints[0]
        alpha = ctypes.cast(ints, ctypes.POINTER(ctypes.c_double))[1]
        floats(pointers[2], n)[:] = alpha * floats(pointers[0], n) + floats(pointers[1], n)
        return 0

    def miss(leaves):
        x = leaves[0]
        return make_record(
            axpy,
            ints=[x.size, 0],
            arg_slots=[0, 1],
            scalars=[(2, 1, "f")],
            outputs=[("new", x.shape, None, x.dtype)],
            result=None,
        )

    call = _native.Dispatcher(miss)
    x, y = np.arange(6, dtype="f4").reshape(2, 3), np.ones((2, 3), "f4")
    for alpha in (2, 2.5, np.float32(3), True):
        np.testing.assert_array_equal(call(x, y, alpha), np.float32(alpha) * x + y)
    out = call(x, y, 2)
    assert type(out) is np.ndarray and out.flags.c_contiguous and out.flags.writeable and out.flags.aligned
    assert out.ctypes.data % 64 == 0
    assert call.hits == 1 and call.misses == 4  # int, float, np.float32 and bool are four types


def test_signature_of_arrays():
    call, _ = counting_dispatcher()
    x = np.zeros((4, 6), "f4")
    call(x)
    assert is_hit(call, x)
    assert is_hit(call, _native.empty((4, 6), "f4"))
    frozen = x.copy()
    frozen.flags.writeable = False
    base = _native.empty((64,), "f4")
    for other in (
        x.T,
        x[:, ::2],
        x[::-1],
        x[:3],
        x.astype("f8"),
        x.astype("i4"),
        x.astype(">f4"),
        x[None],
        frozen,
        base[:24],
    ):
        assert not is_hit(call, other)
        assert is_hit(call, other)
    assert is_hit(call, base[4:28])  # no kernel uses more of a small array's alignment than allocations have …
    assert not is_hit(call, base[1:25])  # … but that
    for size, small in ((1 << 16, True), ((1 << 16) + 1, False)):
        large = _native.empty((size + 4,), "f4")
        assert not is_hit(call, large[:-4]) and is_hit(call, large[4:]) is small
    assert not is_hit(call, np.zeros(3, ml_dtypes.bfloat16))
    assert not is_hit(call, np.zeros(3, "f2"))
    assert not is_hit(call, np.zeros(3, "M8[s]"))
    assert not is_hit(call, np.zeros(3, "M8[ms]"))
    assert not is_hit(call, np.zeros(3, [("a", "i4"), ("b", "f4")]))
    assert not is_hit(call, np.zeros(3, [("a", "f4"), ("b", "i4")]))
    assert not is_hit(call, x, x)


def test_scalars_are_known_by_type_and_static_ones_by_value():
    call, _ = counting_dispatcher()
    assert not is_hit(call, 1)
    assert is_hit(call, 2)
    assert not is_hit(call, 1.0) and not is_hit(call, True) and not is_hit(call, 1j)
    assert not is_hit(call, np.float32(1)) and is_hit(call, np.float32(2)) and not is_hit(call, np.int64(1))
    assert not is_hit(call, ml_dtypes.bfloat16(1)) and is_hit(call, ml_dtypes.bfloat16(2))
    call.set_static(0)
    constants = (1, 2, 1.0, True, 0.0, -0.0, float("nan"), np.float32(1), np.float32("nan"), np.int8(1), 1j)
    for constant in constants:
        assert not is_hit(call, constant), constant
    for constant in constants:
        assert is_hit(call, type(constant)(constant)), constant
    assert not is_hit(call, np.array(5.0)) and is_hit(call, np.array(5.0)) and not is_hit(call, np.array(6.0))


def test_other_values_are_known_by_value():
    call, _ = counting_dispatcher()
    for value in (None, "sum", (0, 1), (0, True), (0.0, 1), ("a", (1, None)), np.dtype("f4"), frozenset({1}), len):
        assert not is_hit(call, value)
    assert is_hit(call, "".join(["s", "um"])) and is_hit(call, (0, 1)) and is_hit(call, np.dtype("f4"))
    given = {}  # without a hash: known by its identity
    assert not is_hit(call, given) and is_hit(call, given) and not is_hit(call, {})
    with pytest.raises(TypeError, match="positional"):
        call(x=1)

    class Strange:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            raise RuntimeError("no comparison")

    call(Strange())
    with pytest.raises(RuntimeError, match="no comparison"):
        call(Strange())


def test_set_static_during_a_miss_applies_to_that_call():
    def miss(leaves):
        call.set_static(0)
        return _native.Record(0, [], [], [], [("arg", 0)], 0, CPU)

    call = _native.Dispatcher(miss)
    assert call(3) == 3 and call(4) == 4 and call(3) == 3
    assert call.misses == 2 and call.hits == 1


def test_a_condition_is_known_by_the_sign_of_its_value():
    call, _ = counting_dispatcher()
    call.add_condition((("leaf", 0), ("value", 3), ("subtract", 0, 1), ("multiply", 2, 2), ("negative", 3)))
    assert not is_hit(call, 1.0) and is_hit(call, 2.5) and is_hit(call, float("inf"))
    assert not is_hit(call, 3.0) and is_hit(call, 3.0)
    assert not is_hit(call, float("nan")) and is_hit(call, -float("nan"))
    assert not is_hit(call, 1) and is_hit(call, 2) and not is_hit(call, 3) and not is_hit(call, True)
    x, y = _native.empty((4,), "f4"), _native.empty((4,), "f4")
    assert not is_hit(call, x) and is_hit(call, y)  # no number: no condition on it
    assert not is_hit(call, np.float64(1)) and not is_hit(call, np.float64(2))  # NumPy's arithmetic is not Python's


@pytest.mark.parametrize(
    "steps, values",
    [
        ((("leaf", 0), ("multiply", 0, 0)), (2**40, 2**40 + 1)),  # more than 64 bits
        ((("leaf", 0), ("value", 0.5), ("add", 0, 1)), (2**60, 2**60 + 1)),  # no float
        ((("leaf", 0), ("divide", 0, 0)), (0, 0.0, -0.0)),  # Python's error
    ],
)
def test_numbers_of_a_condition_that_cannot_be_evaluated_are_known_by_value(steps, values):
    call, _ = counting_dispatcher()
    call.add_condition(steps)
    for value in values:
        assert not is_hit(call, value), value
    for value in values:
        assert is_hit(call, value)


@pytest.mark.parametrize(
    "code, true, false",
    [("less", (0.0, 1.5), (2.0, 3.0)), ("at_most", (0.0, 2.0), (3.0, 4.0)), ("equal", (2.0, 2.0), (0.0, 3.0))],
)
def test_comparisons_in_a_condition(code, true, false):
    call, _ = counting_dispatcher()
    call.add_condition((("leaf", 0), ("value", 2), (code, 0, 1)))
    for of_type in (float, int):
        for one, other in (true, false):
            assert not is_hit(call, of_type(one)) and is_hit(call, of_type(other))
    assert is_hit(call, float("nan")) and is_hit(call, float("inf"))  # false


def test_a_condition_reads_extents():
    call, _ = counting_dispatcher()
    call.add_condition((("leaf", 1), ("extent", 0, 0), ("subtract", 0, 1)))
    x = np.zeros(4, "f4")
    assert not is_hit(call, x, 1) and is_hit(call, x, 3) and not is_hit(call, x, 4) and not is_hit(call, x, 5)
    assert is_hit(call, x, 2**62) and not is_hit(call, x, 2.0) and not is_hit(call, np.float32(1), 1)


@pytest.mark.parametrize(
    "steps, error",
    [
        ((), TypeError),
        ((("leaf", 0),) * 65, TypeError),
        ((("power", 0, 0),), ValueError),
        ((("add", 0),), ValueError),
        ((("value", 2**63),), ValueError),
        ((("value", "x"),), ValueError),
        ((("leaf", 0), ("add", 0, 1)), IndexError),
        ((("leaf", -1),), IndexError),
        ((("leaf", 0), 3), TypeError),
    ],
)
def test_malformed_conditions_are_refused(steps, error):
    call, _ = counting_dispatcher()
    with pytest.raises(error):
        call.add_condition(steps)
    call(1)
    assert is_hit(call, 2)  # nothing has been added


def test_aliasing():
    call, _ = counting_dispatcher()
    x = _native.empty((64,), "f4")
    y = _native.empty((64,), "f4")
    call(x, y)
    assert is_hit(call, x, x)
    call.set_alias_sensitive(True)
    assert not is_hit(call, x, y) and is_hit(call, y, x)
    assert not is_hit(call, x, x) and is_hit(call, y, y)
    assert not is_hit(call, x[:48], x[16:])
    assert is_hit(call, y[:48], y[16:])
    halves = x[:32], x[32:]
    assert not is_hit(call, *halves) and is_hit(call, y[:32], y[32:])
    assert not is_hit(call, x[::-1], x)
    assert not is_hit(call, *[x] * 12) and is_hit(call, *[y] * 12)


def test_full_table_is_cleared():
    call, missed = counting_dispatcher(max_entries=4)
    call.set_static(0)
    for i in range(100):
        call(i)
    assert len(call) <= 4 and len(missed) == 100
    assert is_hit(call, 99)
    call.clear()
    assert len(call) == 0 and not is_hit(call, 99)


def test_miss_may_return_the_result_itself_or_raise():
    call = _native.Dispatcher(lambda leaves: ("not a record", leaves))
    assert call(1, "a") == ("not a record", (1, "a"))
    assert len(call) == 0

    def fail(leaves):
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        _native.Dispatcher(fail)(1)


def test_outputs_arguments_views_and_containers():
    def fill(pointers, ints, stream):
        floats(pointers[0], 12)[:] = np.arange(12)
        return 0

    outputs = [
        ("new", (3, 4), (1, 3), F4),
        ("arg", 0),
        ("view", ("out", 0), (12,), (1,), 0, (2, 32)),
        ("view", ("arg", 0), (2, 2), (2, -1), 8, np.dtype("f8")),
    ]
    x = np.arange(6.0)
    for result, kind in (("tuple", tuple), ("list", list), (lambda created: {"made": created}, dict)):
        call = _native.Dispatcher(lambda leaves: make_record(fill, outputs=outputs, result=result))
        got = call(x)
        assert type(got) is kind
        new, argument, flat, view = got["made"] if kind is dict else got
        np.testing.assert_array_equal(new, np.arange(12, dtype="f4").reshape(4, 3).T)
        assert new.strides == (4, 12) and argument is x
        np.testing.assert_array_equal(flat, np.arange(12))
        np.testing.assert_array_equal(view, [[1, 0], [3, 2]])
        assert np.shares_memory(flat, new) and np.shares_memory(view, x)
        view[0, 0] = 10
        assert x[1] == 10
        x[1] = 1
        del new, got
        gc.collect()
        np.testing.assert_array_equal(flat, np.arange(12))  # a view keeps the buffer

    x.flags.writeable = False
    assert not call(x)["made"][3].flags.writeable


@pytest.mark.parametrize("dtype", ["f2", ml_dtypes.bfloat16, "f4", "f8", "i1", "i8", "u1", "u8", "?", "c8", "c16"])
def test_outputs_and_host_scalars_of_every_dtype(dtype):
    dtype = np.dtype(dtype)
    kind = "c" if dtype.kind == "c" else "f"
    seen = []

    def read(pointers, ints, stream):
        seen.append([ctypes.cast(ints, ctypes.POINTER(ctypes.c_double))[i] for i in (0, 1)])
        return 0

    call = _native.Dispatcher(
        lambda leaves: make_record(
            read, ints=[0, 0], scalars=[(0, 0, kind)], outputs=[("new", (2, 0, 3), None, dtype)], result=None
        )
    )
    value = 1 if dtype.kind == "b" else 3
    for scalar in (np.array(value, dtype), np.array(value, dtype)[()]):
        out = call(scalar)
        assert out.shape == (2, 0, 3) and out.dtype == dtype
    assert seen == [[value, 0.0]] * 2


def test_integer_scalars():
    seen = []

    def read(pointers, ints, stream):
        seen.append(ints[0])
        return 0

    call = _native.Dispatcher(lambda leaves: make_record(read, ints=[0], scalars=[(0, 0, "i")]))
    for value in (
        5,
        -5,
        True,
        np.bool_(True),
        np.int8(-3),
        np.uint64(2**64 - 1),
        2**64 - 1,
        np.array(7, "u2"),
        np.array(True),
    ):
        call(value)
    assert seen == [5, -5, 1, 1, -3, -1, -1, 7, 1]
    for value in (2**64, -(2**63) - 1):
        with pytest.raises(OverflowError, match="does not fit 64 bits"):
            call(value)
    for value in (1.5, np.float32(1), np.array(1.0)):
        with pytest.raises(TypeError):
            call(value)


def test_half_precision_special_values():
    seen = []

    def read(pointers, ints, stream):
        seen.append(ctypes.cast(ints, ctypes.POINTER(ctypes.c_double))[0])
        return 0

    call = _native.Dispatcher(lambda leaves: make_record(read, ints=[0], scalars=[(0, 0, "f")]))
    halves = np.arange(0, 1 << 16, 37, dtype="u2").view("f2")
    for half in halves:
        call(half.reshape(()) if isinstance(half, np.ndarray) else np.array(half))
    np.testing.assert_array_equal(np.array(seen), halves.astype("f8"))


def test_status_and_errors():
    call = _native.Dispatcher(lambda leaves: make_record(lambda p, i, s: 3))
    with pytest.raises(MlirfuseError, match="status 3"):
        call()
    record = _native.Record
    good = dict(launch=0, ints=[1], arg_slots=[], scalars=[], outputs=[], workspace=0, device=CPU, result="tuple")
    for bad in (
        dict(scalars=[(0, 1, "i")]),
        dict(scalars=[(0, 0, "c")]),
        dict(scalars=[(0, 0, "x")]),
        dict(arg_slots=[-1]),
        dict(outputs=[("new", (2,), (-1,), F4)]),
        dict(outputs=[("new", (2,), (1, 1), F4)]),
        dict(outputs=[("new", (-2,), None, F4)]),
        dict(outputs=[("new", (2**40, 2**40), None, F4)]),
        dict(outputs=[("new", (2,), None, np.dtype("M8[s]"))]),
        dict(outputs=[("other",)]),
        dict(outputs=[7]),
        dict(outputs=[("view", ("out", 0), (1,), (1,), 0, F4)]),
        dict(device=("cpu", "cupy")),
        dict(device="cpu"),
        dict(result=None),
        dict(result="set"),
    ):
        with pytest.raises((TypeError, ValueError, IndexError)):
            record(**{**good, **bad})
    with pytest.raises(TypeError, match="takes 1 arguments, 0 were given"):
        _native.Dispatcher(lambda leaves: record(0, [], [], [], [("arg", 0)], 0, CPU))()
    with pytest.raises(MemoryError):
        _native.Dispatcher(lambda leaves: record(0, [], [], [], [("new", (1 << 50,), None, F4)], 0, CPU))()


def test_workspace_comes_last_and_goes_back():
    seen = []

    def run(pointers, ints, stream):
        seen.append(pointers[2])
        ctypes.memset(pointers[2], 1, 1 << 20)
        return 0

    output = ("new", (3,), None, F4)
    call = _native.Dispatcher(lambda leaves: make_record(run, arg_slots=[0], outputs=[output], workspace=1 << 20))
    x = np.zeros(3)
    live = _native.pool_stats()["live_bytes"]
    call(x)
    call(x)
    assert seen[0] == seen[1] and seen[0] % 64 == 0
    assert _native.pool_stats()["live_bytes"] == live


def test_cycles_are_collected():
    class Owner:
        pass

    owner = Owner()
    owner.call = _native.Dispatcher(lambda leaves: _native.Record(0, [], [], [], [], 0, CPU, "tuple", keep=owner))  # noqa: F821
    owner.call(1)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_reentrant_comparison_that_clears_the_table():
    call, _ = counting_dispatcher()

    class Vicious:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            call.clear()
            return False

    for _ in range(50):
        call(Vicious())


def test_eight_threads_at_once():
    def add(pointers, ints, stream):
        floats(pointers[1], ints[0])[:] = floats(pointers[0], ints[0]) + 1
        return 0

    def miss(leaves):
        (x,) = leaves
        return make_record(add, ints=[x.size], arg_slots=[0], outputs=[("new", x.shape, None, x.dtype)], result=None)

    call = _native.Dispatcher(miss, max_entries=8)
    wrong = []

    def work(seed):
        for i in range(200):
            x = np.full(1 + (i * 7 + seed) % 13, i, "f4")
            if not (call(x) == i + 1).all():
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and call.hits + call.misses == 1600
