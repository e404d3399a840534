"""Loops that run natively: what they compute, what they leave behind after an error, and what runs as Python instead.
Expected values are the function's own, run by Python."""

from __future__ import annotations

import collections
import copy
import dataclasses
import pickle
import subprocess
import sys
import warnings
import zlib

import numpy as np
import numpy_program_fuzzer
import pytest
from beside_numpy import function_of

import mlirfuse
from mlirfuse.frontend.numpy import strategies
from mlirfuse.frontend.numpy.loops.outline import Outlined
from mlirfuse.frontend.numpy.loops.statements import Statements


def outcome(fn, args):
    """The result or the exception of a call, and the arguments after it."""
    given = copy.deepcopy(args)
    try:
        result = fn(*given)
    except Exception as error:
        result = error
    return result, given


def same(got, want) -> bool:
    if isinstance(want, Exception):
        return type(got) is type(want) and str(got) == str(want)
    if isinstance(want, (tuple, list)):
        return type(got) is type(want) and len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, (np.ndarray, np.generic)):
        return type(got) is type(want) and got.dtype == want.dtype and got.shape == want.shape and np.allclose(
            got, want, rtol=1e-12, atol=1e-300, equal_nan=True
        )  # fmt: skip
    return type(got) is type(want) and (got == want or got != got)


def check(fn, *args, native: bool = True):
    """``fn`` does the same lifted; ``native``: its outermost loop does not run as Python."""
    lifted = Outlined(fn)
    want, got = outcome(fn, args), outcome(lifted.function, args)
    assert same(got, want), (got, want)
    assert same(again := outcome(lifted.function, args), want), (again, want)  # what is written for calls like it
    assert lifted.loops[0].ran or isinstance(want[0], Exception) or not native, lifted.loops[0].refused
    return got


@pytest.mark.parametrize(
    "body",
    ["a = a * 2 + a[::-1]", "b = a + 1; a = b[::-1] - a", "a, b = b + a[::-1], a", "b = a; a = a[::-1] + i; c = b",
     "a = np.concatenate([a[::-1], a])", "a = (a + a[::-1])[: len(a) - 1]", "kept.append(a[::-1] + a); a = a[::-1] * 2",
     "kept.append(a); a = a[::-1] + 1", "b = a + 1 if i % 2 else a[::-1] * 2; a = b[::-1] - a",
     "a = step(a, b); b = a + b[::-1]", "b = a[::-1] + 1; a = b.reshape(2, -1)[::-1].ravel() + b",
     "d = (a + 1, b + 2); a = d[1][::-1] + d[0]; b = d[0]"],
)  # fmt: skip
def test_memory_that_a_variable_uses_is_not_reused(body):
    """Whether one variable may have an allocation's memory, or several, or none, and of whatever size."""
    source = "def step(a, b):\n    c = a + 1\n    return c[::-1] + b\n\n\ndef f(a, n):\n    b, c, kept = a, a, []\n    for i in range(n):\n"
    source += "".join(f"        {statement}\n" for statement in body.split("; ")) + "    return a, b, c, kept\n"
    check(function_of(source), np.arange(1.0, 9.0), 5)


def total(x):
    s = 0
    for i in range(len(x)):
        s += x[i]
    return s


def test_a_sum_has_numpys_type():
    for dtype in ("float64", "float32", "int64", "int32"):
        check(total, np.arange(7).astype(dtype))


def test_no_trip_leaves_variables_as_they_are():
    def last(n):
        s = 5
        for i in range(n):
            s = i * 0.5
        return s

    assert check(last, 0)[0] == 5
    check(last, 3)

    def unbound(n):
        for i in range(n):
            k = i
        return k

    check(unbound, 0)
    check(unbound, 2)


def test_positions_count_from_the_end_and_out_of_range_is_an_error():
    def shifted(a, k):
        for i in range(len(a)):
            a[i] = a[i - k] + 1
        return a

    check(shifted, np.arange(5.0), 2)
    check(shifted, np.arange(5.0), -1)  # an IndexError, after four elements are written
    check(shifted, np.arange(5.0), 9)

    def diagonal(a, n):
        for i in range(n):
            a[i, i] = i
        return a

    check(diagonal, np.zeros((3, 4)), 3)
    check(diagonal, np.zeros((3, 4)), 4)


def test_division_by_zero_is_pythons_for_pythons_numbers_alone():
    def ratio(a, n):
        x = 1.0
        for i in range(n):
            a[i] = a[i] / x
            x = 1.0 / (n - i - 2)
        return a

    check(ratio, np.ones(4), 4)

    def of_elements(a):
        for i in range(len(a)):
            a[i] = 1 / a[i]
        return a

    with np.errstate(all="ignore"):
        check(of_elements, np.array([1.0, 0.0, 2.0]))


def test_floor_division_and_remainder_of_negative_numbers():
    def both(out, n):
        for i in range(-n, n):
            out[i + n, 0] = i // 3
            out[i + n, 1] = i % 3
            out[i + n, 2] = i % -3
            out[i + n, 3] = (i * 0.5) // 0.3
            out[i + n, 4] = (i * 0.5) % 0.3
        return out

    check(both, np.zeros((12, 5)), 6)


def test_a_slice_is_read_whole_before_it_is_written():
    def moved(a, n):
        for _ in range(n):
            a[1:] = a[:-1]
            a[::-1] += a * 2
        return a

    check(moved, np.arange(6.0), 3)


def test_views_see_writes():
    def through(a, n):
        row = a[1]
        t = a.T
        for i in range(n):
            row[i] = i
            a[0, i] = t[i, 1] + 10
            t[0, 0] += 1
        return a

    check(through, np.zeros((3, 4)), 4, native=False)

    def inside(a, n):
        for i in range(n):
            row = a[i]
            row[1:] += row[:-1]
            a[i, 0] = row[-1]
        return a

    check(inside, np.ones((3, 4)), 3)


def test_arguments_that_overlap():
    def copied(a, b):
        for k in range(2):
            a[k:] = b[k:] + 1
            for i in range(len(a)):
                a[i] = b[i] + 1
        return a

    for shift in (0, 1, 3):
        got, want = np.arange(10.0), np.arange(10.0)
        lifted = Outlined(copied)
        lifted.function(got[shift:], got[: 10 - shift])
        copied(want[shift:], want[: 10 - shift])
        assert lifted.loops[0].ran
        np.testing.assert_array_equal(got, want)


def test_arrays_swapped_and_made_anew():
    def swapped(u, n):
        un = np.zeros_like(u)
        for _ in range(n):
            un[1:-1] = 0.5 * (u[2:] + u[:-2])
            un[0] = un[-1] = 1
            u, un = un, u
        return u, un

    for n in (0, 1, 4, 5):
        check(swapped, np.arange(9.0), n)

    def anew(u, n):
        history = u
        for _ in range(n):
            new = u * 0.5 + 1
            history = u
            u = new
        return history, u

    for n in (0, 1, 2, 5):
        check(anew, np.arange(9.0), n)

    u = np.arange(9.0)
    first, _ = Outlined(anew).function(u, 1)
    assert first is u  # the caller's own array, not a copy


def test_broadcasting_of_extents_that_are_1_only_at_run_time():
    def rows(a, b, n):
        for i in range(n):
            a[i:] += b[i : i + 2] * a[:1]
        return a

    check(rows, np.ones((2, 3)), np.arange(12.0).reshape(4, 3), 1)
    check(rows, np.ones((5, 3)), np.arange(3.0).reshape(1, 3), 1)

    def mismatch(a, b):
        for i in range(2):
            a[i] = b[: len(a) - i]
        return a

    lifted = Outlined(mismatch)
    with pytest.raises(ValueError, match="broadcast"):
        lifted.function(np.ones((4, 3)), np.ones(9))


def test_an_array_with_more_elements_than_there_is_room_for():
    def written(a, b):
        for _ in range(2):
            a[1:] = b
            a += b[:1]
            a += b
        return a

    lifted = Outlined(written)
    for a, b in ((2, 1), (2, 2), (3, 2)):
        args = (np.ones(a), np.arange(1.0, b + 1))
        got, want = outcome(lifted.function, args), outcome(written, args)
        assert type(got[0]) is type(want[0])
        assert same(got[1], want[1])


def test_types_that_only_the_run_tells():
    def larger(a, n):
        for i in range(n):
            x = max(2, a[i])
            y = i if a[i] > 1 else 0.5
            z = y * 2
        return x, y, z

    for a in ([1.0, 5.0], [5.0, 1.0]):
        check(larger, np.array(a), 2)


def test_variables_after_an_error_that_is_caught():
    def caught(a, n):
        s = 0.0
        try:
            for i in range(n):
                s = a[i] + i
        except IndexError:
            return i, s
        return s

    jitted = mlirfuse.jit(caught)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert jitted(np.ones(3), 5) == (3, 3.0)


def _to_powers(a, n):
    k = 1
    try:
        for i in range(n):
            k = k * 7
            a[i % len(a)] = k % 11
    except OverflowError:
        return -1
    return k


class _Suppressing:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self.kind = kind
        return True


def _tried(a, idx):
    n = 0
    try:
        for i in range(len(idx)):
            x = a[idx[i]] * 2
            x = x + 1
            a[idx[i]] += x
            n += 1
            y = n
    except IndexError as error:
        return a, n, i, str(error)
    else:
        for j in range(len(a)):
            a[j] += n
    finally:
        for j in range(len(a)):
            a[j] -= 1
    return a, n, x, y


def _managed(a, idx):
    with _Suppressing() as found:
        for i in range(len(idx)):
            a[idx[i]] += 1
            k = i
    return a, found.kind, i, k


@pytest.mark.parametrize("dtype", [np.float64, np.int8])
@pytest.mark.parametrize("idx", [[0, 1, 2], [0, 1, 7, 2], [5], []])
@pytest.mark.parametrize("fn", [_tried, _managed])
def test_loops_in_try_and_with_leave_what_python_leaves(fn, idx, dtype):
    check(fn, np.arange(4, dtype=dtype), np.array(idx, int))
    jitted, args = mlirfuse.jit(fn), (np.arange(4, dtype=dtype), np.array(idx, int))
    assert same(outcome(jitted, args), outcome(fn, args))


def test_a_handler_does_not_catch_what_only_native_loops_do_not_support():
    with pytest.raises(OverflowError, match="exceeds 64 bits"):
        Outlined(_to_powers).function(np.zeros(3), 50)
    assert Outlined(_to_powers).function(np.zeros(3), 5) == 7**5


@pytest.mark.parametrize("mode", ["add", "multiply", "zero", "none", 1])
def test_loops_that_compare_strings(mode):
    def by_mode(a, mode):
        for i in range(len(a)):
            if mode == "add":
                a[i] += 1
            elif mode == "multiply" and mode > "a":
                a[i] *= 2
            elif mode != "none":
                a[i] = 0
            else:
                raise KeyError(mode)
        return a

    check(by_mode, np.arange(3.0), mode, native=isinstance(mode, str))


def test_equal_strings_share_code():
    def by_mode(a, mode):
        for i in range(len(a)):
            a[i] += 2 if mode == "two" else 1
        return a

    outlined = Outlined(by_mode)
    for _ in range(40):
        assert outlined.function(np.zeros(3), "".join(["t", "wo"]))[0] == 2
        assert outlined.function(np.zeros(3), "".join(["o", "ne"]))[0] == 1
    assert outlined.loops[0].refused is None


@pytest.mark.parametrize("values", [[0, 1, 4], [0, 1, -4], [0, 9, 1]])
def test_asserts_in_loops(values):
    """From text, as pytest rewrites the asserts of this file."""
    roots = function_of(
        "def f(a):\n    for i in range(len(a)):\n        assert a[i] >= 0, f'{a[i]} at {i}'\n"
        "        a[i] = a[i] ** 0.5\n        assert a[i] < 3\n    return a\n"
    )
    check(roots, np.array(values, float))


@pytest.mark.parametrize("low", [0, 1])
def test_a_draw_from_an_empty_range_is_numpys_error(low):
    def drawn(a, low):
        rng = np.random.default_rng(3)
        for i in range(len(a)):
            a[i] = rng.integers(low, low + 2 - i)
        return a

    check(drawn, np.zeros(4), low)


def test_errstate_that_ignores_is_around_and_in_native_loops():
    def inverse(a, b):
        with np.errstate(all="ignore"):
            return a / b

    def around(a, n):
        with np.errstate(divide="ignore", invalid="ignore"):
            for i in range(n):
                a[i] = 1 / a[i]
        return a

    def within(a, n):
        for i in range(n):
            with np.errstate(divide="ignore"):
                x = 1 / a[i]
                if x > 3:
                    continue
            a[i] = inverse(x, a[i - 1])
        return a

    def returning(a, n):
        for i in range(n):
            with np.errstate(divide="ignore"):
                if a[i] == 0:
                    return 1 / a[i]
            a[i] = 2
        return a

    for fn in (around, within):
        for a in (np.arange(5.0), np.arange(1, 5)):
            check(fn, a, len(a))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mlirfuse.jit(returning, fallback=True)(np.array([1.0, 0.0]), 2) == np.inf


@pytest.mark.parametrize("value, error", [(np.nan, ValueError), (np.inf, OverflowError), (1e30, OverflowError)])
def test_int_of_floats_without_one(value, error):
    def whole(a):
        k = 0
        for i in range(len(a)):
            k += int(a[i])
        return k

    assert Outlined(whole).function(np.array([1.5, -2.75])) == -1
    with pytest.raises(error) as found:
        Outlined(whole).function(np.array([1.5, value]))
    if value != 1e30:
        with pytest.raises(error, match=str(found.value)):
            whole(np.array([1.5, value]))


def test_sums_of_float32_are_as_exact_as_numpys():
    def sums(a, n):
        for _ in range(n):
            s = a.sum()
            m = a.mean(axis=0)
        return s, m

    a = np.full((1000, 300), 0.1, np.float32)
    s, m = Outlined(sums).function(a, 1)
    exact = float(np.float32(0.1)) * a.size
    assert s.dtype == m.dtype == np.float32
    assert abs(float(s) - exact) <= 1e-6 * exact
    np.testing.assert_allclose(m, np.float32(0.1), rtol=1e-6)


def test_ints_that_64_bits_do_not_hold():
    def scaled(a, k):
        for i in range(len(a)):
            a[i] = a[i] * 2.0
            k += 1
        return a, k

    lifted = Outlined(scaled)
    assert lifted.function(np.ones(2), 2**70)[1] == 2**70 + 2
    assert lifted.function(np.ones(2), 2)[1] == 4


def test_ints_are_compared_with_floats_exactly():
    def f(a, n, y):
        out, i = np.zeros((a.size, 10)), 0
        while a[i] > 0:
            m = n - i
            out[i, 0], out[i, 1], out[i, 2] = m == y, m != y, m < y
            out[i, 3], out[i, 4], out[i, 5] = y <= m, m > 9007199254740992.0, y >= m
            out[i, 6], out[i, 7], out[i, 8] = y == 9007199254740993, y > -9007199254740993, (m > 0) <= y
            if m == y or m > 2.5:
                out[i, 9] = m / 3  # of ints beyond 2**53 as of floats
            i += 1
        return out

    compiled = mlirfuse.jit(f)
    a = np.ones(4)
    a[-1] = 0
    near = [s * 2**k + d for k in (53, 54, 60, 62) for d in (-1, 0, 1, 2) for s in (1, -1)]
    floats = {2.0**53, 2.0**63, -(2.0**53), -(2.0**63), 2.5, -1 + 2**-53, float("inf"), float("nan")}
    for n in [3, 0, 1, *near, 2**63 - 1, 2**63 - 513, 2**63 - 512, 4 - 2**63]:
        for y in floats | {float(n), float(n) * (1 + 2**-52)}:
            ours, pythons = compiled(a, n, y), f(a, n, y)
            np.testing.assert_array_equal(ours[:, :9], pythons[:, :9], f"{n} {y}")
            np.testing.assert_array_max_ulp(ours[:, 9], pythons[:, 9], 1 if abs(n) > 2**53 else 0)


def test_while_break_continue():
    def collatz(n):
        steps = 0
        while n != 1:
            if n % 2 == 0:
                n //= 2
            else:
                n = 3 * n + 1
            steps += 1
            if steps > 500:
                break
        return steps

    for n in (1, 7, 27):
        check(collatz, n)

    def odd(a):
        s = 0.0
        for i in range(len(a)):
            if a[i] < 0:
                continue
            for j in range(i, len(a)):
                if a[j] > 3:
                    break
                s += a[j]
        return s

    check(odd, np.array([1.0, -2, 2, 0.5, 4, 1]))


def by_label(x, labels, n):
    centers, sizes, above = np.zeros((n, x.shape[1])), np.zeros(n, dtype=np.int64), np.zeros(n)
    for j in range(n):
        members = x[labels == j]
        sizes[j] = len(members)
        if len(members) > 0:
            centers[j] = members.mean(axis=0)
        above[j] = x[x > j * 0.1].sum()
    return centers, sizes, above


def at_positions(x, where, n):
    for _ in range(n):
        x += x[where]  # read whole before it is written
        y = x[where] * 2
        x[where] = y
        x[where] -= 1
        x[x > 3] *= 0.25
        x[x > 2] = x[x > 2] - 1
    return x, y


def written(x, chosen, value, n):
    for _ in range(n):
        x[chosen] = value
    return x


def picked(x, chosen, n):
    for t in range(n):
        y = x[chosen] + t
    return y


def test_masks_and_positions():
    rng = np.random.default_rng(0)
    x, v, labels = rng.random((20, 3)), rng.random(20) * 4, rng.integers(0, 4, 20)
    check(by_label, x, labels, 6)
    check(by_label, x, labels[:5], 6)
    for where in (rng.permutation(20) - 10, labels, labels + 17, np.arange(20) + 1, np.arange(20) - 21):
        check(at_positions, v, where, 5)
    x = x[:6]
    rows, elements, none = x[:, 0] > 0.5, x > 0.5, x > 5
    for chosen, shape in (
        (rows, ()), (rows, (3,)), (rows, (int(rows.sum()), 3)), (elements, ()), (elements, (int(elements.sum()),)),
        (elements, (40,)), (none, (0,)), (none, (1,)), (np.array([0, -1, 3]), (3, 3)), (np.array([[0, -1, 3]]), (3, 3)),
        (np.array([0, -1, 6]), (3, 3)),
    ):  # fmt: skip
        check(written, x, chosen, rng.random(shape) if shape else 1.5, 1)
    for chosen, shape in ((rows, (5, 3)), (np.array([0, -1, 6]), (3, 2))):
        with pytest.raises(ValueError, match="shape mismatch"):
            Outlined(written).function(x, chosen, rng.random(shape), 1)
    for chosen in (np.array([[0, -1], [3, 3]]), np.array([], int), np.array([True, False] * 3), np.array([True] * 4)):
        check(picked, x, chosen, 2)
    check(picked, x[:0, 0], np.array([], bool), 2)


def escaping(xs, ys, limit):
    c = xs + ys[:, None] * 1j
    n, z = np.zeros(c.shape, dtype=np.int64), np.zeros(c.shape, dtype=c.dtype)
    for t in range(limit):
        alive = np.less(abs(z), 2.0)
        n[alive] = t
        z[alive] = z[alive] ** 2 + c[alive]
    n[n == limit - 1] = 0
    return n, z


def orbits(xs, ys, limit):
    out = np.zeros((len(ys), len(xs)), dtype=np.int64)
    last = 0j
    for i in range(len(ys)):
        for j in range(len(xs)):
            c = complex(xs[j], ys[i])
            z = 0j
            while out[i, j] < limit and z.real * z.real + z.imag * z.imag <= 4.0:
                z = z * z + c
                out[i, j] += 1
            last = last + z * 0.5
    return out, last, c


def waves(z, w, n):
    total, seen = z[0], []
    for t in range(n):
        z += w * 0.5
        z *= np.exp(1j * w.real)
        z[t] = (z[t] - 2j) / (z[t + 1] + 1)
        z = z / (w + 2)
        z.real[t] = -1.5
        w = z.conj() * w + z.imag - np.abs(z)
        total = total + (z * w).sum() + np.dot(z, w) + z.mean() + w[t].real
        seen.append(total)
        seen.append(z[t] == w[t])
        seen.append(z[0] != w[1])
        z -= w.imag
    return z, w, total, seen


def mixed(z, n):
    s, real = 0, np.zeros(3)
    for t in range(n):
        s = s + z[t]
        real[t] = z[t].imag
    return s, real


def lossy(z, n):
    real = np.zeros(n)
    for t in range(n):
        real[t] = z[t]
    return real


def rotated(m, n):
    while n > 0:
        m = m @ m.conj().T / 9
        n -= 1
    return m


def test_complex_numbers():
    rng = np.random.default_rng(0)
    xs, ys = np.linspace(-2, 1, 12), np.linspace(-1, 1, 9)
    check(escaping, xs, ys, 15)
    check(orbits, xs, ys, 15)
    z, w = (rng.normal(size=9) + 1j * rng.normal(size=9) for _ in range(2))
    check(waves, z, w, 5)
    check(waves, np.stack([z, w])[:, 1:].T[:, 0], w[1:], 5)
    check(mixed, z, 3)
    check(mixed, z, 0)
    with pytest.warns(np.exceptions.ComplexWarning):
        check(lossy, z, 3, native=False)
    for size in (3, 30):
        m = rng.normal(size=(size, size)) + 1j * rng.normal(size=(size, size))
        check(rotated, m, 3)
    a, b = z.astype("complex64"), w.astype("complex64")
    got, want = (f(a.copy(), b.copy(), 5) for f in (Outlined(waves).function, waves))
    for mine, theirs in zip(got[:3], want[:3]):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-3)


_OF_COMPLEX = (
    "exp", "log", "log2", "log10", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan",
    "arcsinh", "arccosh", "arctanh",
)  # fmt: skip


@pytest.mark.parametrize("name", _OF_COMPLEX)
def test_functions_of_complex_numbers(name):
    function = getattr(np, name)

    def applied(z, out):
        for i in range(len(z)):
            out[i] = function(z[i])
        return out

    ends = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan]
    z = np.array([complex(x, y) for x in ends for y in ends] + [0.3 - 4j, 1e-3 + 2j])
    with np.errstate(all="ignore"):
        lifted = Outlined(applied)
        found, want = (f(z, np.zeros_like(z)) for f in (lifted.function, applied))
    assert lifted.loops[0].ran, lifted.loops[0].refused
    for got, wanted in zip(found, want):
        np.testing.assert_allclose([got.real, got.imag], [wanted.real, wanted.imag], rtol=1e-14, atol=1e-300)


def test_complex_division_at_the_edges():
    def quotients(a, b):
        out = np.zeros((len(a), len(b)), dtype=np.complex128)
        for i in range(len(a)):
            for j in range(len(b)):
                out[i, j] = a[i] / b[j]
        return out

    ends = [0.0, -0.0, 1.0, -2.5, 1e200, 1e-200, np.inf, np.nan]
    numbers = np.array([complex(x, y) for x in ends for y in ends])
    with np.errstate(all="ignore"):
        check(quotients, numbers, numbers)


def extremes(m, n):
    rows, others = np.zeros((n, m.shape[0]), dtype=np.int64), np.zeros(n, dtype=np.int64)
    for t in range(n):
        rows[t] = m.argmin(axis=1)
        others[t] = np.argmax(m) + m.argmax(axis=0).sum()
        m[t] = -m[t]
    return rows, others


def spread(m, n):
    out, sums = np.zeros((n, 3)), np.zeros((n, m.shape[1]))
    for t in range(n):
        out[t, 0], out[t, 1], out[t, 2] = m.var(), np.std(m), m.std(axis=0).sum()
        sums[t] = np.cumsum(m[t])
        m[t] += np.arange(m.shape[1])
        m[t] += np.arange(2, 2 + 3 * m.shape[1], 3)
        m[t] += np.arange(m.shape[1], 0, -1)
        sums[t] += m.cumsum(axis=0)[-1]
    return out, sums


def test_extremes_spread_and_sums_along_axes():
    m = np.random.default_rng(0).random((6, 5))
    with_nan = m.copy()
    with_nan[1, 2] = np.nan
    for given in (m, with_nan, m[:, :0]):
        check(extremes, given, 3)
    check(spread, m, 3)


def trained(x, y, w, v, steps, rate):
    losses = []
    for _ in range(steps):
        hidden = np.tanh(x @ w)
        error = hidden @ v - y
        losses.append((error**2).mean())
        slope = np.outer(error, v) * (1 - hidden**2)
        v = v - rate * (hidden.T @ error)
        w = w - rate * x.T @ slope
    return w, v, losses


@pytest.mark.parametrize("rows, columns, hidden", [(5, 3, 2), (60, 20, 12), (60, 20, 1), (0, 3, 2)])
def test_products_of_matrices(rows, columns, hidden):
    """Small ones are loops, large ones NumPy's."""
    rng = np.random.default_rng(0)
    x, y, w, v = (
        rng.normal(size=(rows, columns)),
        rng.normal(size=rows),
        rng.random((columns, hidden)),
        rng.random(hidden),
    )
    check(trained, x, y, w, v, 5, 0.01)
    check(trained, x[::-1], y, w, v[::-1], 5, 0.01)
    check(trained, np.asfortranarray(x).astype("float32"), y.astype("float32"), w, v, 5, 0.01)
    whole = rng.integers(-9, 9, (9, 9))
    check(powers, whole, 5)
    check(powers, whole.astype("int32"), 5)
    check(powers, whole.astype("float32"), 5)
    check(powers, whole[:, :8], 5)


def powers(m, n):
    p = m
    while n > 0:
        p = p @ m % 7
        n -= 1
    return p


def dominant(m, v, tol):
    value = 0.0
    while True:
        w = m @ v
        new = np.linalg.norm(w)
        v = w / new
        if abs(new - value) < tol:
            return new, v
        value = new


def found(m, x):
    for i in range(m.shape[0]):
        for j in range(m.shape[1]):
            if m[i, j] == x:
                return i, j, m[i]
            if m[i, j] < 0:
                raise ValueError(f"negative at {i}, {j}")


def test_return_and_raise_leave_a_loop():
    m = np.random.default_rng(0).random((9, 9))
    check(dominant, m + m.T, m[0], 1e-9)
    line = np.arange(12.0).reshape(3, 4)
    for args in ((line, 7.0), (line, 70.0), (line - 1, 3.0), (line[:0], 1.0)):
        check(found, *args)


def recorded(a, n):
    sums, path, mixed = [], [a], []
    for t in range(n):
        a = a * 0.5 + 1
        sums.append(a.sum())
        path.append(a)
        a += 1  # of what was appended, too
        mixed.append((t, t * 2.0, a[1:]))
        mixed.append(t > 2)
    a -= 7
    return sums, path, mixed, a


def counted(a, n):
    ints, floats = [], []
    for t in range(n):
        floats.append(a[t])
        ints.append(t)
    return ints, floats


def of_floats(a):
    halves, numbers = [], []
    for t in range(len(a)):
        half = t * 0.5
        halves.append(half)
    for t in range(len(a) + 1):
        number = a[t]
        numbers.append(number)
    return halves, numbers


def more_than_appends(a, n):
    path = [a]
    for t in range(n):
        path.append(path[-1] * 2)
        a[t] = len(path)
    return path


def test_lists_that_are_appended_to():
    for n in (0, 1, 9):
        check(recorded, np.ones(5), n)
    check(counted, np.ones(30000), 30000)  # more than a chunk of the log holds
    check(of_floats, np.ones(5))
    with pytest.raises(mlirfuse.frontend.numpy.loops.values.NotOutlinable):
        check(more_than_appends, np.ones(5), 4)


def test_what_is_appended_is_what_it_was():
    """Lists hold the arrays themselves, and what was appended before an error."""

    def kept(a, into, n):
        for t in range(n):
            into.append(a)
            into.append(a[t + 1 :])
            a[t] = 0

    a, into = np.ones(4), []
    with pytest.raises(IndexError):
        Outlined(kept).function(a, into, 6)
    assert len(into) == 10 and into[0] is a and into[-2] is a
    into[3][1] = 7
    np.testing.assert_array_equal(a, [0, 0, 0, 7])


def orbit(y, steps, h, k):
    def slope(y):
        return np.array([k * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])

    path = [y]
    for _ in range(steps):
        middle = slope(y)
        y = y + h * slope(y + h / 2 * middle)
        path.append(y)
    return np.array(path)


def rebound(y, steps):
    factor = 1.0

    def scaled(y):
        return y * factor

    for _ in range(steps):
        y = scaled(y)
        factor = factor + 1
    return y


def test_functions_made_in_functions_are_inlined():
    check(orbit, np.ones(3), 9, 0.01, 10)
    check(orbit, np.ones(3), 9, 0.01, 10.5)
    check(rebound, np.ones(3), 4, native=False)
    lifted = Outlined(orbit)
    for steps in range(4):  # each call makes another function, of the same code
        lifted.function(np.ones(3), steps, 0.01, 10)
    assert len(lifted.loops[0]._calls) == 1


def test_loops_that_only_append_are_traced_where_they_cannot_run_natively():
    def told(x, n):
        out = []
        for k in range(n):
            frequencies = np.fft.rfft(x * k)
            out.append(frequencies.real.sum())
        return out

    jitted, x = mlirfuse.jit(told), np.arange(5000.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            np.testing.assert_allclose(jitted(x, 3), told(x, 3))


def test_reductions():
    def all_of_them(a, out):
        for i in range(a.shape[0]):
            r = a[i]
            out[i, 0] = r.sum()
            out[i, 1] = np.mean(r)
            out[i, 2] = r.max()
            out[i, 3] = np.min(r * r)
            out[i, 4] = r @ r
            out[i, 5] = np.linalg.norm(r)
            out[i, 6] = np.argmax(r)
            out[i, 7] = (r > 0).any()
        s = a.sum(axis=0)
        return out, s

    a = np.random.default_rng(0).normal(size=(4, 33))
    a[2, 5] = np.nan
    check(all_of_them, a, np.zeros((4, 8)))

    def empty(a):
        for i in range(2):
            m = a[i:i].max()
        return m

    check(empty, np.ones(3))


def test_functions_of_the_users_are_inlined():
    check(pairs, np.arange(6))


def step(a, b):
    if a + b == 3:
        return 1
    return 0


def pairs(x):
    n = 0
    for i in range(len(x)):
        for j in range(len(x)):
            n += step(x[i], x[j])
    return n


def test_integers_wrap_as_numpys_and_not_as_pythons():
    def factorial(n):
        f = 1
        for i in range(1, n + 1):
            f *= i
        return f

    assert check(factorial, 20)[0] == 2432902008176640000
    with pytest.raises(OverflowError, match="64 bits"):
        Outlined(factorial).function(21)

    def wrapped(a, n):
        for _ in range(n):
            a[0] = a[0] * a[0]
        return a

    with np.errstate(all="ignore"):
        check(wrapped, np.array([3], np.int32), 6)


def by_element(out, given, n):
    for i in range(n):
        out[i] = given[i]


def by_update(out, given, n):
    for i in range(n):
        out[i] += given[i]


def by_slice(out, given, n):
    for i in range(n):
        out[: i + 1] = given[i]


def by_pythons(out, given, n):
    for i in range(n):
        out[i] = float(given[i])


def by_mask(out, given, n):
    for i in range(n):
        out[out < 2] = float(given[i])


@pytest.mark.parametrize("fn", [by_element, by_update, by_slice, by_pythons, by_mask])
@pytest.mark.parametrize("into", ["int8", "int32", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("of", ["int64", "uint64", "uint8", "float32", "float64"])
def test_numbers_that_an_integer_element_does_not_hold(fn, into, of):
    """They are NumPy's errors, or wrap, as NumPy has it; elements before them are stored. Of NumPy's floats in unsigned
    elements only those are compared that these hold: of others C says nothing."""
    run = mlirfuse.jit(fn)
    values = [3, 200, -3, -200, 40000, -40000, 2**31, 2**33, -(2**62), 2**63 + 2**12]
    if of.startswith("float"):
        values += [2.75, -2.75, 127.9, -128.9, 128.0, -129.0, 1e30, np.inf, -np.inf, np.nan, 2147483647.5]
        if into.startswith("u") and fn in (by_element, by_update, by_slice):
            values = [v for v in values if 0 <= v <= np.iinfo(into).max]
    else:
        values = [v for v in values if np.iinfo(of).min <= v <= np.iinfo(of).max]
    for value in values:
        given = np.array([1, value, 2]).astype(of) if of.startswith("float") else np.array([1, value, 2], of)
        found = []
        for f in (run, fn):
            out, told = np.zeros(4, into), None
            try:
                with np.errstate(all="ignore"):
                    f(out, given, 3)
            except (OverflowError, ValueError) as error:
                told = type(error)
            found.append((told, out.tolist()))
        assert found[0] == found[1], value


NUMBERS = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]


@pytest.mark.parametrize("to", NUMBERS)
def test_numpy_types_of_numbers(to):
    """NumPy's numbers wrap around where a type does not hold them; Python's ints are its error."""
    kind = np.dtype(to).type

    def converted(out, given, n):
        for i in range(n):
            out[i] = kind(given[i]) + kind(1)

    def of_ints(out, given, n):
        for i in range(n):
            out[i] = kind(int(given[i]))

    for of in NUMBERS:
        if np.dtype(of).kind == "f" and np.dtype(to).kind in "iu":
            values = [0, 1, 100]  # of others C says nothing
        else:
            held = np.iinfo(of) if np.dtype(of).kind in "iu" else np.iinfo("i2")
            values = [0, 1, 127] + [v for v in (200, -3, 40000, -(2**31) - 7, 2**32 - 1) if held.min <= v <= held.max]
        given = np.array(values).astype(of)
        exact = not {np.dtype(of).kind, np.dtype(to).kind} & {"f"}
        for fn in (converted, of_ints):
            with np.errstate(all="ignore"):
                check(fn, np.zeros(len(given), to), given, len(given), native=exact and (fn is converted or of != "u8"))


def test_checksum_in_a_type_of_numpy():
    def crc32(data):
        crc = np.uint32(0xFFFFFFFF)
        for byte in data:
            crc = np.uint32(crc ^ np.uint32(byte))
            for _ in range(8):
                if crc & np.uint32(1):
                    crc = np.uint32((crc >> np.uint32(1)) ^ np.uint32(0xEDB88320))
                else:
                    crc = np.uint32(crc >> np.uint32(1))
        return np.uint32(crc ^ np.uint32(0xFFFFFFFF))

    data = b"from tables to anything"
    for given in (np.frombuffer(data, np.uint8), data):
        found, _ = check(crc32, given)
        assert found == zlib.crc32(data)


def doubled(data, at):
    return 2 * data[at]


@pytest.mark.parametrize("data", [b"", b"a", bytes(range(256)), b"\xff" * 1000], ids=len)
def test_bytes(data):
    """The bytes of a bytes object are Python's ints, in an inlined function too."""

    def adler(data):
        low, high = 1, 0
        for k in range(len(data)):
            low = (low + data[k]) % 65521
            high = (high + low) % 65521
        return high << 16 | low

    def written(data, out, end):
        for k, byte in enumerate(data):
            out[k] = (byte << 8) - doubled(data, k) + data[-1]
        for k in range(end):
            out[0] += data[k]

    found, _ = check(adler, data)
    assert found == zlib.adler32(data)
    for end in (len(data), len(data) + 1):  # the second raises an IndexError
        check(written, data, np.zeros(len(data) + 1), end)


def test_bytes_are_no_constants():
    """One program for all bytes: a trace would hold for those of the call alone."""

    def total(data):
        found = 0
        for byte in data:
            found = found * 31 % 65521 + byte
        return found

    fused = mlirfuse.jit(total)
    for k in range(20):
        data = bytes(range(k, 2 * k + 1))
        assert fused(data) == total(data)
    assert "1 of 1 natively" in str(fused.explain(b"abc"))


def test_slices_of_bytes_run_as_python():
    def halves(data, out):
        for k in range(2):
            out[k] = len(data[k:])

    check(halves, b"abcd", np.zeros(2), native=False)


def test_one_compilation_for_all_trip_counts_and_sizes():
    def heat(u, n):
        for _ in range(n):
            u[1:-1] += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
        return u

    lifted = Outlined(heat)
    for size, n in ((5, 1), (50, 200), (7, 3)):
        u = np.linspace(0, 1, size) ** 2
        assert same(outcome(lifted.function, (u, n)), outcome(heat, (u, n)))
    assert lifted.loops[0].ran and len(lifted.loops[0]._calls) == 1


def stencil(u, v, w, n, m):
    for k in range(3):
        old = u.copy()
        u[1:-1, 2:] = old[:-2, 2:] + 0.5 * v[2:, :-2][:, : m - 2] - w
        v[0] = u[-1, ::-1]
        u[:, -1] = v[:n, 0] * w[-1]
        if k == 5:
            v = v[::2]
        if old[1:m].shape[0] != n - 1:
            w = w + 1
    return u, v, w, old[n // 2 :]


def test_code_for_some_extents_is_not_used_for_others():
    """Equal extents, extents of 1 that stretch, and small ones, in one loop's calls: each as NumPy has it, errors
    too."""
    lifted, rng = Outlined(stencil), np.random.default_rng(0)
    sizes = [(6, 6), (6, 9), (9, 6), (2, 2), (1, 1), (0, 3), (3, 1), (1, 4), (5, 5), (40, 40), (3, 2)]
    for rows, columns in sizes + sizes:
        for wide in (columns - 2, 1, 0, columns):
            if wide < 0:
                continue
            args = (*rng.random((2, rows, columns)), rng.random(wide), rows, columns)
            (got, after), (want, wanted) = outcome(lifted.function, args), outcome(stencil, args)
            alike = type(got) is type(want) if isinstance(want, Exception) else same(got, want)
            assert alike and same(after, wanted), (rows, columns, wide)
    assert lifted.loops[0].ran, lifted.loops[0].refused
    compiled = len(lifted.loops[0]._calls)
    for rows, columns in ((7, 7), (7, 8), (8, 70), (60, 50)):  # code for any extents is there
        lifted.function(*rng.random((2, rows, columns)), rng.random(columns - 2), rows, columns)
    assert len(lifted.loops[0]._calls) == compiled


def test_ints_that_equal_an_extent_are_not_taken_for_it_later():
    def shifted(a, n, k):
        for _ in range(2):
            a[1 : n - 1] = a[2:n] + k
            n = n - 1 if k > 8 else n
        return a, n

    lifted = Outlined(shifted)
    for size, n, k in ((20, 20, 1), (20, 12, 1), (20, 20, 20), (20, 40, 3), (20, -2, 20), (7, 7, 7), (20, 20, 9)):
        args = (np.arange(float(size)), n, k)
        assert same(outcome(lifted.function, args), outcome(shifted, args)), (size, n, k)


@pytest.mark.parametrize("part", ["real", "imag"])
def test_a_part_of_complex_numbers_is_a_view(part):
    def parts(z, n):
        for _ in range(n):
            view = z.real if part == "real" else z.imag
            z[0] += 1 + 2j
        return view

    z, given = np.arange(4) * (1 - 2j), np.arange(4) * (1 - 2j)
    lifted = Outlined(parts)
    found = lifted.function(z, 2)
    assert lifted.loops[0].ran and same(found, parts(given, 2)) and np.shares_memory(found, z)


def test_appended_tuples_keep_the_results_of_numpys_functions():
    def sorted_ones(x, n):
        out = []
        for i in range(n):
            out.append((np.sort(x)[::-1], i))
            x = x * 1.5
        return out

    check(sorted_ones, np.arange(5.0), 6)


def test_arrays_and_ints_in_a_tuple():
    """Other types, ranks and memory of what is in a tuple, after calls that there is code for."""

    def weighed(pair, a, n):
        for i in range(n):
            a[1:] = pair[0][:-1] * pair[1] + i
        return a

    def alike(make):
        assert same(outcome(lifted.function, make()), outcome(weighed, make())), make()

    lifted, x = Outlined(weighed), np.arange(6.0)
    alike(lambda: ((x, 2), np.zeros(6), 3))
    assert lifted.loops[0].ran, lifted.loops[0].refused
    for first in (x.astype(np.float32), x[::-1], np.outer(x, x), x[:3], 1.5):
        alike(lambda first=first: ((first, 2), np.zeros(6), 3))
    for factor in (2**70, 2**50, 2.5, True, np.int8(3)):
        alike(lambda factor=factor: ((x, factor), np.zeros(6), 3))

    def in_one_memory():
        a = np.arange(6.0)
        return (a, 2), a, 3

    alike(in_one_memory)
    alike(lambda: ((x, 2), np.zeros(6), 3))


FACTOR = 3


def weighed(a, b, n, x):
    for i in range(n):
        a[i] += FACTOR * b[i] + x
        best = a
    return a, best, n, x, i


def test_later_calls_see_what_has_changed(monkeypatch):
    """Other types, extents, layouts, arrays in one memory, globals and errors, after calls that there is a function
    for."""
    lifted, rng = Outlined(weighed), np.random.default_rng(0)

    def alike(a, b, n, x):
        assert same(outcome(lifted.function, (a, b, n, x)), outcome(weighed, (a, b, n, x))), (a, b, n, x)

    a, b = rng.random((2, 9))
    usual = lambda: [alike(a, b, 9, 0.5) for _ in range(3)]  # noqa: E731
    usual()
    assert lifted.loops[0]._calls
    for changed in (
        (a, b, 8, 0.5), (a, b, 10, 0.5), (a, b, 0, 0.5), (a, b, -1, 0.5), (a, b, 9, 1),
        (a, b, 9, np.float32(2)), (a, b, 9, True), (a, b, np.int64(9), 0.5), (a[:5], b, 5, 0.5), (a, b[::-1], 9, 0.5),
        (a, b.astype(np.float32), 9, 0.5), (a.astype(np.int64), b, 9, 0.5), (a, a, 9, 0.5), (a[1:], a[:-1], 8, 0.5),
        (a[:-1], a[1:], 8, 0.5), (np.outer(a, a), b, 9, 0.5), (list(a), b, 9, 0.5), (a, b, 9, None), (a, b, 9, 1j),
    ):  # fmt: skip
        for _ in range(2):
            alike(*changed)
        usual()
    fixed = a.copy()
    fixed.flags.writeable = False
    assert isinstance(outcome_of(lifted.function, fixed, b), ValueError)
    for factor in (4, 2.5, np.arange(9.0), 3):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        usual()
    monkeypatch.setitem(globals(), "range", lambda n: [n // 2])
    usual()
    monkeypatch.delitem(globals(), "range")
    usual()


def test_a_later_call_with_arrays_in_one_memory():
    def moved(a, b, n):
        for _ in range(n):
            a[1:] = b[:-1] + 1
        return a

    lifted = Outlined(moved)
    for _ in range(3):
        lifted.function(np.zeros(9), np.ones(9), 2)
    one, other = (np.arange(10.0) for _ in range(2))
    moved(one[1:], one[:-1], 2), lifted.function(other[1:], other[:-1], 2)
    moved(one[:9], one[:9], 2), lifted.function(other[:9], other[:9], 2)
    np.testing.assert_array_equal(other, one)


def outcome_of(fn, a, b):
    try:
        return fn(a, b, 9, 0.5)
    except Exception as error:
        return error


def test_a_later_call_gives_the_callers_own_arrays():
    lifted = Outlined(weighed)
    for _ in range(3):
        a, b = np.ones(6), np.ones(6)
        got = lifted.function(a, b, 6, 0.5)
        assert got[0] is a and got[1] is a and type(got[4]) is int
    assert lifted.loops[0]._calls


def test_loops_that_write_nothing_are_unrolled_where_they_are_short(monkeypatch):
    """Long ones run natively, whatever the trip count; and are unrolled where they cannot."""

    def descended(x, y, w, steps):
        for _ in range(steps):
            p = 1 / (1 + np.exp(-(x @ w)))
            w = w - 0.1 * (p - y) @ x / len(y)
        return w

    def turned(x, steps):
        for k in range(steps):
            x = x[::-1] * float("0.5") + np.cos(x) - k
        return x

    monkeypatch.setattr(strategies, "_MOST_OPS_OF_LOOPS", 50)
    x, y, w = np.random.default_rng(0).random((9, 4)), np.arange(9.0) % 2, np.zeros(4)
    for fn, args, long, natively in ((descended, (x, y, w), 12, True), (turned, (x,), 12, False)):
        short, far = mlirfuse.jit(fn), mlirfuse.jit(fn)
        for _ in range(3):
            np.testing.assert_allclose(short(*args, 3), fn(*args, 3), rtol=1e-12)
            for steps in (long, long + 5):
                np.testing.assert_allclose(far(*args, steps), fn(*args, steps), rtol=1e-12)
        assert not any(loop.ran for loop in short.eager.outlined.loops)
        assert [loop.ran for loop in far.eager.outlined.loops] == [natively]
        if natively:
            assert len(far.eager.outlined.loops[0]._calls) == 1


def test_small_arrays_that_a_loop_makes_stay_what_they_are():
    def created(x, n):
        kept, row = [], x
        for k in range(n):
            row = row * 0.5 + np.full(len(x), k)
            part = np.zeros(3)
            part[k % 3] = row[0]
            kept.append(part[1:])
        return row, part, kept, row[::-1]

    lifted = Outlined(created)
    for size, n in ((5, 4), (5, 400), (300, 7), (1, 3)):
        args = (np.arange(float(size)), n)
        several = [lifted.function(*args) for _ in range(4)]
        for row, part, kept, back in several:
            assert same((row, part, kept, back), created(*args))
            assert np.shares_memory(row, back) and np.shares_memory(part, kept[-1])
            row[:], part[:] = -1, -1
    assert lifted.loops[0].ran, lifted.loops[0].refused


def test_effects_beside_a_loop_happen_at_every_call(capsys):
    log = []

    @mlirfuse.jit
    def f(a, n):
        log.append(n)
        for i in range(n):
            a[i] = i
        print("done", n)
        return a

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (1, 2, 2):
            f(np.zeros(3), n)
    assert log == [1, 2, 2]
    assert capsys.readouterr().out == "done 1\ndone 2\ndone 2\n"


def test_what_is_read_from_around_a_loop_is_read_at_every_call():
    scale = 2.0

    @mlirfuse.jit
    def f(a):
        for i in range(len(a)):
            a[i] = a[i] * scale
        return a

    np.testing.assert_array_equal(f(np.ones(3)), [2, 2, 2])
    scale = 3.0
    np.testing.assert_array_equal(f(np.ones(3)), [3, 3, 3])


def test_what_cannot_be_compiled_runs_and_is_told_about_once():
    @mlirfuse.jit
    def spelled(x, tol):
        if x.max() > tol:
            x = x / 8
        return (x * 2).astype(str)

    x = np.append(np.ones(4000), 8.0)
    with pytest.warns(UserWarning, match=r"(?s)spelled.*test_loops.py"):
        assert spelled(x, 1.5)[-1] == "2.0"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert spelled(x * 2, 1.5)[-1] == "4.0"


@pytest.mark.parametrize("make", [
    lambda: (lambda x: x[x > 1]),
    lambda: (lambda x: np.unique(np.round(x))),
    lambda: (lambda x: np.linalg.svd(np.outer(x, x))[1] > 1),
    lambda: (lambda x: float(x.sum())),
    lambda: (lambda x: x * 2 if x.sum() > 0 else x),
    lambda: (lambda x: [v + 1 for v in x]),
    lambda: (lambda x: np.percentile(x, [25, 50])),
    lambda: (lambda x: np.fft.rfft(x)),
    lambda: (lambda x: np.histogram(x, 3)[0]),
    lambda: (lambda x: x + 1j * x),
])  # fmt: skip
def test_nothing_that_numpy_runs_is_refused(make):
    function, x = make(), np.array([0.5, 1.5, 2.5, 0.25])
    jitted = mlirfuse.jit(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            got, want = jitted(x), function(x)
            np.testing.assert_allclose(got, want, rtol=1e-12)
            assert type(got) is type(want)


def test_what_the_compiler_fails_at_numpy_runs(monkeypatch):
    def halves(n):
        total = 0.0
        for i in range(n):
            total += np.zeros(3, dtype="float16").sum() + np.ones(2, dtype=object)[0] + i
        return total

    check(halves, 4, native=False)
    monkeypatch.setattr(Statements, "_AugAssign", lambda *_: {}["nothing"])
    assert "KeyError" in check_refused(total, np.arange(3.0))


def check_refused(fn, *args) -> str:
    """Why the function's loop runs as Python."""
    lifted = Outlined(fn)
    assert same(outcome(lifted.function, args), outcome(fn, args)) and not lifted.loops[0].ran
    return lifted.loops[0].refused


def test_explain_tells_how_each_loop_runs():
    def counted(a, words):
        n = 0
        for word in words:
            n += len(word)
        for i in range(a.shape[0]):
            for j in range(i, a.shape[0]):
                a[j] += i
        while n > 100:
            n -= 1
        return a, n

    fn, a = mlirfuse.jit(counted), np.ones(6)
    explained = fn.explain(a, ["ab", "c"])
    words, outer, inner, down = explained.parts
    assert (words.source, words.natively, words.as_python) == ("for word in words:", 0, 1)
    assert (outer.source, outer.natively, outer.as_python) == ("for i in range(a.shape[0]):", 1, 0)
    assert (inner.natively, inner.as_python) == (0, 0) and "inside a native loop" in inner.why
    assert (down.source, down.natively) == ("while n > 100:", 1)  # no turn of it, but natively
    assert 0 < sum(loop.seconds for loop in explained.parts) < explained.seconds
    assert "2 of 4 natively" in explained.summary() and "for word in words:" in str(explained)
    np.testing.assert_array_equal(a, np.ones(6))  # it ran on copies


def test_a_loop_without_draws_does_not_load_numpys_generators(tmp_path):
    (tmp_path / "running.py").write_text(
        "import sys, mlirfuse, numpy as np\n"
        "def running(a):\n"
        "    for i in range(1, a.shape[0]):\n"
        "        a[i] += np.sqrt(a[i - 1])\n"
        "jitted = mlirfuse.jit(running)\n"
        "jitted(np.ones(50))\n"
        "assert jitted.eager.loops[0].ran and 'numpy.random' not in sys.modules\n"
    )
    subprocess.run([sys.executable, str(tmp_path / "running.py")], check=True)


def test_explain_tells_why_a_loop_runs_as_python():
    def strings(a, tags):
        for i in range(a.shape[0]):
            a[i] += len(tags[i].strip())
        return a

    (loop,) = mlirfuse.jit(strings).explain(np.ones(2), ["x ", "yz"]).parts
    assert (loop.natively, loop.as_python) == (0, 1) and loop.why


def test_an_error_of_numpys_own_is_raised_and_no_fallback_told():
    jitted = mlirfuse.jit(lambda x: x[7] if x.sum() > 0 else x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(IndexError):
                jitted(np.ones(3))


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_random_programs(first):
    """``python -m numpy_program_fuzzer FIRST LAST`` runs more."""
    for seed in range(first, first + 25):
        different = numpy_program_fuzzer.differs(seed)
        assert different is None, different


@mlirfuse.jit
def smoothed(x, n):
    for _ in range(n):
        x[1:-1] = (x[2:] + x[:-2]) / 2
    return x


@mlirfuse.jit
def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


ROWS = np.linspace(0, 3, 24).reshape(4, 6)


def test_jitted_functions_are_pickled():
    cloudpickle = pytest.importorskip("cloudpickle")
    assert pickle.loads(pickle.dumps(softmax)) is softmax
    local = mlirfuse.jit(lambda x: np.exp(x) + 1)
    again = cloudpickle.loads(cloudpickle.dumps(local))
    np.testing.assert_allclose(again(ROWS), np.exp(ROWS) + 1)


def test_dask_map_blocks():
    dask = pytest.importorskip("dask.array")
    blocks = dask.from_array(ROWS, chunks=(2, 6))
    np.testing.assert_allclose(dask.map_blocks(softmax, blocks).compute(scheduler="threads"), softmax(ROWS))


def test_joblib():
    joblib = pytest.importorskip("joblib")
    results = joblib.Parallel(n_jobs=2)(joblib.delayed(softmax)(row) for row in ROWS)
    np.testing.assert_allclose(results, softmax(ROWS))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_multiprocessing(method):
    import multiprocessing

    with multiprocessing.get_context(method).Pool(1) as pool:
        results = pool.starmap(smoothed, [(row.copy(), 3) for row in ROWS])
    np.testing.assert_allclose(results, [smoothed.fn(row.copy(), 3) for row in ROWS])


def towers_of_hanoi(n, moves):
    if n == 0:
        return 0
    before = towers_of_hanoi(n - 1, moves)
    for i in range(1):
        moves[i] += 1
    return before + 1 + towers_of_hanoi(n - 1, moves)


def test_a_function_with_loops_that_calls_itself():
    for n in (3, 5):
        moves, others = np.zeros(1), np.zeros(1)
        assert mlirfuse.jit(towers_of_hanoi)(n, moves) == towers_of_hanoi(n, others)
        assert moves == others == 2**n - 1


# ---- attributes, helpers, positions of a loop, and where an error was


class Filter:
    k = 0.5

    def __init__(self, gain, weights):
        self.gain, self.weights = gain, weights

    @property
    def slow(self):
        return self.gain * 2


def test_attributes_of_objects_are_read_once():
    """Numbers and arrays that they hold, as they are at each call; one code for all objects of a class."""

    def smooth(self, a):
        for i in range(1, len(a)):
            a[i] = a[i - 1] * self.k + a[i] * self.gain + self.weights[i % len(self.weights)]
        return a

    compiled, a = mlirfuse.jit(smooth), np.random.default_rng(0).random(300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for gain in (1.0, 2.0, 3):
            created = Filter(gain, np.full(4, gain))
            for k in (0.5, 0.25, 0.25):
                created.k = k
                assert np.allclose(compiled(created, a.copy()), smooth(created, a.copy()))
            created.weights[1] = 7.0
            assert np.allclose(compiled(created, a.copy()), smooth(created, a.copy()))


class Slotted:
    __slots__ = ("k", "n")

    def __init__(self, k, n):
        self.k, self.n = k, n


@pytest.mark.parametrize(
    "kind", [Slotted, collections.namedtuple("Pair", "k n"), dataclasses.make_dataclass("Data", ["k", "n"])]
)
def test_attributes_of_slots_and_fields(kind):
    def f(c, a):
        for i in range(c.n, len(a)):
            a[i] = a[i - c.n] * c.k + stepped(a[i], by=c.k)
        return a

    def stepped(x, low=2.0, by=1.0):
        return x * low + by

    compiled = mlirfuse.jit(f)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in ((0.5, 1), (0.25, 2), (0.5, 1)):
            assert np.allclose(compiled(kind(*given), np.ones(300)), f(kind(*given), np.ones(300)))


def test_an_attribute_that_runs_code_names_the_remedy():
    def f(self, a):
        for i in range(1, len(a)):
            a[i] = a[i - 1] * self.slow
        return a

    created = Filter(0.25, None)
    with pytest.warns(UserWarning, match="self.slow of an object: read it into a variable before the loop"):
        got = mlirfuse.jit(f)(created, np.ones(300))
    assert np.array_equal(got, f(created, np.ones(300)))


def test_loops_that_call_helpers_for_what_they_write():
    def walls(u, low):
        u[0, :] = low
        u[-1, :] = 1
        if low > 100:
            return
        u[:, 0] = u[:, 1]

    def scaled(u, by):
        for j in range(u.shape[1]):
            u[1, j] = u[1, j] * by

    def flow(u, n):
        for k in range(n):
            before = u.copy()
            walls(u, k * 60.0)
            scaled(u, 0.5)
            u[1:-1] = before[1:-1] + 0.1 * (before[2:] - before[:-2])
        return u

    u, compiled = np.random.default_rng(0).random((9, 9)), mlirfuse.jit(flow)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (3, 60):
            assert np.allclose(compiled(u.copy(), n), flow(u.copy(), n))


def test_a_loop_over_the_elements_of_an_array():
    """With a loop inside; over a list, it runs as Python."""

    def crc(data):
        crc = 0xFFFFFFFF
        for byte in data:
            crc ^= int(byte)
            for _ in range(8):
                if crc & 1:
                    crc = crc >> 1 ^ 0xEDB88320
                else:
                    crc >>= 1
        return crc ^ 0xFFFFFFFF

    def sums(rows):
        total = 0.0
        for row in rows:
            for k in range(len(row)):
                total += row[k] * k
        return total

    data = np.random.default_rng(0).integers(0, 256, 500, dtype=np.uint8)
    compiled = mlirfuse.jit(crc)
    assert compiled(data) == compiled(data) == crc(data) and type(compiled(data)) is int
    assert compiled(data[:0]) == crc(data[:0])
    rows = np.arange(12.0).reshape(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert mlirfuse.jit(sums)(rows) == sums(rows) and mlirfuse.jit(sums)(list(rows)) == sums(rows)
        assert mlirfuse.jit(crc)([1, 2, 3]) == crc([1, 2, 3])


def test_an_error_names_its_statement():
    def lp(a):
        for i in range(len(a)):
            b = a[i] * 2
            a[i] = b
            a[i + 1] = b  # past the end, at last
        return a

    with pytest.raises(IndexError, match="index 50 is out of bounds") as error:
        mlirfuse.jit(lp)(np.arange(50.0))
    (note,) = error.value.__notes__
    assert f"test_loops.py:{lp.__code__.co_firstlineno + 4}: a[i + 1] = b" in note


def test_loops_without_source_say_so():
    names = {"np": np}
    exec(
        "def f(a):\n    s = np.zeros_like(a)\n    for i in range(1, len(a)):\n        s[i] = s[i - 1] + a[i]\n    return s",
        names,
    )
    with pytest.warns(UserWarning, match="source cannot be read"):
        got = mlirfuse.jit(names["f"])(np.ones(3000))
    assert got[-1] == 2999


def test_a_global_is_not_the_value_of_an_unassigned_variable():
    def last(x, n):
        for k in range(n):
            FACTOR = x[k] > 0.5
        return FACTOR

    x = np.linspace(0, 1, 5)
    for n in (5, 3, 0, 4):
        check(last, x, n)


def scaled(x, by):
    return shifted(x * by, SHIFT)


def shifted(x, by):
    if by is None:
        return x
    x = x.reshape(2, -1)
    x = x.sum(axis=0)
    return x + by


SHIFT = 1.5


def twice_shifted(x, by):
    return x.reshape(2, -1)[0] + 2 * by


def test_functions_that_an_inlined_function_calls_and_their_globals_may_change(monkeypatch):
    def stepped(x, n):
        out = np.zeros((n, x.size // 2))
        for k in range(n):
            out[k] = scaled(x, k)
        return out

    lifted, x = Outlined(stepped), np.arange(6.0)
    module = sys.modules[__name__]
    for name, value in (("SHIFT", 1.5), ("SHIFT", 2.5), ("shifted", twice_shifted), ("SHIFT", 3.0)):
        monkeypatch.setattr(module, name, value)
        for _ in range(2):
            np.testing.assert_array_equal(lifted.function(x, 3), stepped(x, 3))
    assert lifted.loops[0].ran and lifted.loops[0].refused is None


def test_pythons_ints_and_bools():
    def ints(n, base, out):
        for k in range(n):
            out[k, 0] = base**k
            out[k, 1] = (1 << k) >> 1
            out[k, 2] = ~k & 7
            out[k, 3] = (k > 2) * 3 - (k == 1) + -(k > 3)
            out[k, 4] = (k > 2) ^ (k > 4)
            out[k, 5] = 2**k // (1 + (k > 1))
        return out

    check(ints, 6, 3, np.zeros((6, 6), np.int64))
    check(ints, 6, -2, np.zeros((6, 6), np.int64))

    def power(n, out):
        for k in range(n):
            out[k] = 2 ** (k - 1)
        return out

    with pytest.raises(OverflowError, match="negative power"):
        Outlined(power).function(3, np.zeros(3, np.int64))


@pytest.mark.parametrize(
    "index",
    ["[[0, 2]]", "[:, [2, 0]]", "[[0, 2], [1, 1]]", "[1, [0, 2]]", "[p, :2]", "[p, q]", "[:, p]", "[m]", "[:, m3]",
     "[m, 1]", "[None, p]", "[..., q]", "[p[:, None], q]", "[p, 1:, q]"],
)  # fmt: skip
def test_subscripts_by_several_arrays(index):
    cube = index == "[p, 1:, q]"
    source = f"""
def f(x, p, q, m, m3, n):
    for k in range(n):
        y = x{index} + k
        x{index} = y * 2
        x{index} += 1
    return x, y
"""
    fn = function_of(source)
    shape = (4, 3, 3) if cube else (4, 3)
    x = np.arange(float(np.prod(shape))).reshape(shape)
    check(fn, x, np.array([3, -4, 1]), np.array([0, 2, -1]), np.array([True, False, True, True]),
          np.array([True, False, True]), 2)  # fmt: skip


def test_an_index_out_of_range_beside_a_slice():
    def taken(x, p, n):
        for k in range(n):
            x[:, p] = x[:, p] + k
        return x

    check(taken, np.ones((2, 3)), np.array([0, 3]), 2)


def test_steps_that_numpy_runs(monkeypatch):
    """Their results' extents are known at run time, and their errors are raised at their line."""

    def steps(a, b, n):
        for k in range(n):
            b = np.linalg.solve(a + k * np.eye(len(b)), b)
            w, v = np.linalg.eigh(a)
            b = np.sort(b)[::-1] + v[0] * w[-1]
            b = b + len(np.unique(np.round(b, 1)))
            b = b + np.median(b) + np.fft.rfft(b).real[0]
        return b

    rng = np.random.default_rng(0)
    for size in (3, 3, 5):
        a = rng.random((size, size))
        check(steps, a + a.T + 9 * np.eye(size), rng.random(size), 4)
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        Outlined(steps).function(np.zeros((3, 3)), np.ones(3), 2)


def test_draws_of_numbers_and_arrays_are_numpys():
    def drawn(rng, out, n):
        for k in range(n):
            out[k, 0] = rng.random() + rng.uniform(-1, 3) + rng.integers(7) + rng.integers(-5, 2**40)
            out[k, 1] = rng.normal(1.0, 2.0) + rng.standard_normal() + rng.lognormal() + rng.logistic(1, 2)
            out[k, 2] = rng.gamma(2.5, 0.5) + rng.standard_gamma(0.3) + rng.beta(0.5, 2.0) + rng.chisquare(3)
            out[k, 3] = rng.exponential(2.0) + rng.laplace() + rng.rayleigh() + rng.standard_exponential()
            out[k, 4:] = rng.normal(size=3) + rng.permutation(3)
        return out

    lifted = Outlined(drawn)
    for bits in (np.random.PCG64, np.random.MT19937, np.random.Philox):
        one, other = (np.random.Generator(bits(3)) for _ in range(2))
        got, want = lifted.function(one, np.zeros((50, 7)), 50), drawn(other, np.zeros((50, 7)), 50)
        np.testing.assert_array_equal(got, want)
        assert one.random() == other.random()
    assert lifted.loops[0].ran and lifted.loops[0].refused is None
    with pytest.raises(ValueError, match="scale < 0"):
        Outlined(bad_scale).function(np.random.default_rng(0), -1.0)


def bad_scale(rng, scale):
    total = 0.0
    for _ in range(3):
        total += rng.normal(0.0, scale)
    return total


def test_reshapes_are_views_or_must_not_be_written():
    def through(x, n):
        for k in range(n):
            y = x.reshape(-1, 2)
            y[k] += 1
            z = x.ravel()
            z[0] = k
        return x

    check(through, np.arange(12.0), 3)

    def strided(x, n):
        s = 0.0
        for _ in range(n):
            s += x.T.reshape(-1)[1] + x[:, ::2].reshape(2, -1)[1, 0]
        return s

    check(strided, np.arange(12.0).reshape(3, 4), 2)

    def written(x, n):
        for k in range(n):
            y = x.reshape(-1)
            y[k] = 7
        return x

    check(written, np.arange(12.0).reshape(3, 4).T, 2, native=False)
    check(written, np.arange(12.0).reshape(3, 4), 2, native=False)


def test_a_loop_that_draws_numbers_is_no_fallback():
    def inside(n, rng):
        hits = 0
        for _ in range(n):
            x, y = rng.random(), rng.random()
            hits += x * x + y * y < 1
        return 4 * hits / n

    fn = mlirfuse.jit(inside)
    with warnings.catch_warnings():
        warnings.simplefilter("error", mlirfuse.FallbackWarning)
        for seed in (0, 1, 1):
            assert fn(700, np.random.default_rng(seed)) == inside(700, np.random.default_rng(seed))
    assert fn.eager.loops[0].ran


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (3, 1)])
def test_diagonals_of_matrices_of_any_shape(shape):
    def f(a, n):
        total = 0.0
        for k in range(n):
            np.fill_diagonal(a, k * 0.5)
            total += a.sum()
        return total

    ours, wanted = np.ones(shape), np.ones(shape)
    with warnings.catch_warnings(action="error"):  # no fallback
        found = mlirfuse.jit(f)(ours, 4)
    assert found == f(wanted, 4) and np.array_equal(ours, wanted)


def test_arguments_by_position_are_the_functions_own():
    def typed(x, n):
        s = np.zeros((3, 3), np.float32)
        for _ in range(n):
            s += np.identity(3, np.float32)
            total = np.sum(x, 0, np.float32)
        return s, total

    check(typed, np.arange(6.0).reshape(2, 3), 2, native=False)

    def of_a_vector(x, n):
        for _ in range(n):
            y = np.diagonal(x)
        return y

    check(of_a_vector, np.arange(3.0), 2, native=False)  # an error: no diagonal


class _WithPrivateNames:
    def __init__(self):
        self.__factor = 3.0

    def __scaled(self, x, *, by):
        return x * self.__factor * by

    def repeated(self, x):
        while x.sum() < 100:
            x = self.__scaled(x, by=1.5)
        return x

    def element_by_element(self, x):
        __out = np.zeros(len(x))
        for __i in range(1, len(x)):
            __out[__i] = __out[__i - 1] + x[__i] * self.__factor
        return __out

    def nested(self):
        def f(x):
            out = np.zeros(len(x))
            for i in range(1, len(x)):
                out[i] = out[i - 1] + x[i] * self.__factor
            return out

        return f

    def with_a_class_of_its_own(self, x):
        class Inner:
            def __init__(self, value):
                self.__value = value

            def get(self):
                return self.__value

        total = 0.0
        for i in range(len(x)):
            total += x[i] * self.__factor
        return Inner(total).get()


@pytest.mark.parametrize("name", ["repeated", "element_by_element", "with_a_class_of_its_own", "nested"])
def test_private_names_of_methods_are_those_of_their_class(name):
    kind, x = _WithPrivateNames, np.arange(5.0)
    plain = getattr(kind(), name)
    method = mlirfuse.jit(getattr(kind, name).__get__(kind()))
    if name == "nested":
        plain, method = plain(), mlirfuse.jit(kind().nested())
    with warnings.catch_warnings():
        # a loop that calls a method of an object runs as Python
        warnings.simplefilter("ignore" if name == "repeated" else "error", mlirfuse.FallbackWarning)
        assert np.array_equal(method(x), plain(x))


def _first_above(x, y, bound):
    found = None
    for i in range(len(x)):
        y[i] = 0.0 if found is None else found
        if x[i] > bound and found is None:
            found = x[i]
    return found


def _assigned_then_read(x, y, bound):
    found = None
    for i in range(len(x)):
        if x[i] > bound:
            found = x[i]
        y[i] = 1.0 if found is None else 2.0
    return found


def _a_list_that_becomes_an_array(x, y, bound):
    values, order = [0.5, 1.0, 2.0], np.array([1, 2, 0])
    for _ in range(3):
        values = np.take(values, order) * bound
    return values


@pytest.mark.parametrize("bound", [2.0, 10.0])
@pytest.mark.parametrize("function", [_first_above, _assigned_then_read, _a_list_that_becomes_an_array])
def test_variables_that_are_objects_when_a_loop_begins(function, bound):
    x, ours, wanted = np.arange(5.0), np.zeros(5), np.zeros(5)
    expected = function(x, wanted, bound)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mlirfuse.FallbackWarning)
        found = mlirfuse.jit(function)(x, ours, bound)
    assert type(found) is type(expected) and np.array_equal(found, expected) and np.array_equal(ours, wanted)


def test_a_loop_may_assign_what_was_none_before():
    def last_above(x, y):
        found = None
        for i in range(len(x)):
            y[i] = 2 * x[i]
            if x[i] > 2:
                found = x[i]
        return found

    check(last_above, np.arange(5.0), np.zeros(5))
    check(last_above, np.zeros(5), np.zeros(5))


def test_annotations_of_nested_functions_are_those_of_the_file(tmp_path, monkeypatch):
    """This file imports ``annotations`` from ``__future__``; the other does not."""
    source = """
import numpy as np

def running(x, n):
    def twice(value: float) -> float:
        return 2 * value

    total = np.zeros(n)
    for i in range(1, n):
        total[i] = total[i - 1] + x[i]
    return total * twice(1.0), twice.__annotations__
"""
    for name, before in (("evaluated", ""), ("as_text", "from __future__ import annotations\n")):
        (tmp_path / f"{name}.py").write_text(before + source)
        monkeypatch.syspath_prepend(tmp_path)
        module = __import__(name)
        fn = mlirfuse.jit(module.running)
        found, annotations = fn(np.arange(5.0), 5)
        expected, wanted = module.running(np.arange(5.0), 5)
        assert np.array_equal(found, expected) and annotations == wanted
        assert fn.eager.loops[0].ran


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_a_variable_that_is_an_int_or_a_float(kind):
    """An int that the float's type does not hold is an error and not rounded."""

    def f(x, n):
        v = x[0]
        for k in range(len(x)):
            if k == 1:
                v = n + k
            x[k] = v % 1000
        return x, v

    compiled, exact = mlirfuse.jit(f), 2 ** (np.finfo(kind).nmant + 1)
    for n in (3, exact - 1, -exact, exact + 1, exact, -exact - 2):
        x = np.array([0.5, 1.5, 2.5], kind)
        if abs(n + 1) <= exact or (n + 1) % 2 == 0:
            found, wanted = compiled(x.copy(), n), f(x.copy(), n)
            np.testing.assert_array_equal(found[0], wanted[0])
            assert found[1] == wanted[1]
        else:
            with pytest.raises(OverflowError, match="a float does not hold"):
                compiled(x.copy(), n)


def _written_reshaped(a, out):
    for i in range(a.shape[0]):
        flat = a[i].T.reshape(-1)
        flat[0] = 9
        out[i] = a[i]


def _written_differences(a, out):
    for i in range(a.shape[0]):
        same = np.diff(a[i], n=0)
        same[0] = 9
        out[i] = a[i]


def _written_transposed(a, out):
    for i in range(a.shape[0]):
        view = np.einsum("jk->kj", a[i])
        view[0] = 9
        out[i] = a[i]


def _written_into_out(a, out):
    for i in range(a.shape[0]):
        view = np.clip(a[i], 0, 0.5, out=out[i])
        view += 1


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("fn", [_written_reshaped, _written_differences, _written_transposed, _written_into_out])
@pytest.mark.filterwarnings("ignore::mlirfuse.FallbackWarning")
def test_views_that_may_be_copies_here_are_not_written(fn, order):
    """NumPy's results are views of what they are computed from, which a loop's copies are not."""
    compiled = mlirfuse.jit(fn)
    for seed in range(3):
        a = np.asarray(np.random.default_rng(seed).random((5, 4, 4)), order=order)
        ours, pythons = [a.copy("K"), np.zeros_like(a)], [a.copy("K"), np.zeros_like(a)]
        compiled(*ours)
        fn(*pythons)
        for found, wanted in zip(ours, pythons):
            np.testing.assert_array_equal(found, wanted)


def test_writes_into_reshaped_rows_are_native():
    def fn(a):
        for i in range(a.shape[0]):
            flat = a[i].reshape(-1)
            flat[1] = 7

    ours, pythons = np.zeros((5, 4, 4)), np.zeros((5, 4, 4))
    mlirfuse.jit(fn, fallback=False)(ours)
    fn(pythons)
    np.testing.assert_array_equal(ours, pythons)
