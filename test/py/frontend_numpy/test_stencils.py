"""Programs that read what they make at several positions: right, in kernels whose number and size are linear in the
program, on the CPU and in PTX."""

import numpy as np
import pytest

import mlirfuse


def heat(u, steps):
    for _ in range(steps):
        u[1:-1, 1:-1] = u[1:-1, 1:-1] + 0.1 * (
            u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        )
    return u * 1


def windows(u, steps):
    for _ in range(steps):
        u = (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] + u[1:-1, 1:-1]) / 5
    return u


def rolled(u, steps):
    for _ in range(steps):
        u = np.sqrt(u * u + 1)
        u = np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u
    return u


def blurred(u, steps):
    for _ in range(steps):
        (n, m), p = u.shape, np.pad(u, 2, mode="reflect")
        u = sum(p[i : i + n, j : j + m] for i in range(5) for j in range(5)) / 25
    return u


PROGRAMS = [heat, windows, rolled, blurred]


def chain(program, steps):
    """``program`` with so many steps in a row, as one trace."""

    def function(u):
        return program(u, steps)

    return function


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_chain_is_right(program):
    u = np.random.default_rng(3).standard_normal((29, 37))
    expected = program(u.copy(), 5)
    got = mlirfuse.jit(chain(program, 5), fallback=False)(u.copy())
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("target", "level"), [("cpu", "llvm"), ("cuda:sm_90", "ptx")])
@pytest.mark.parametrize("program", PROGRAMS)
def test_code_is_linear_in_the_steps(program, target, level):
    u = np.zeros((64, 64))

    def lines(steps):
        lowered = mlirfuse.jit(chain(program, steps), target=target).lower(u)
        return len(lowered.as_text(level).splitlines())

    few, many = lines(3), lines(12)
    assert many < 1.2 * 4 * few
