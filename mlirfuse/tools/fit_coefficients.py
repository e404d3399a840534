"""Derives the polynomials of ``mlirfuse/lowering/coefficients.py``: ``python -m mlirfuse.tools.fit_coefficients > …``.

Needs mpmath. Each polynomial is the minimax one for a weighted error, found by Remez's exchange in 60 digits. Coefficients are
rounded to the working precision one at a time, lowest power first, each time fitting the rest again; so what is left of a
coefficient's rounding is taken up by the others. The error printed beside each table is that of the rounded polynomial in exact
arithmetic, as a power of two, relative to the function that it serves.
"""

from __future__ import annotations

import struct
import sys

from mpmath import mp, mpf

mp.dps = 60


def round_to(x, bits: int):
    if bits == 32:
        return mpf(struct.unpack("<f", struct.pack("<f", float(x)))[0])
    return mpf(float(x))


def remez(f, weight, powers, a, b, rounds=12, grid=24):
    """Coefficients of ``sum c[k] x**powers[k]`` minimizing max |(f - p) * weight| on [a, b], and that maximum."""
    n = len(powers)
    a, b = mpf(a), mpf(b)
    node = lambda k, m: (a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * k / m)  # noqa: E731
    # offset so that no point falls on a zero of the weight's denominator in the middle of the interval
    points = [node(k + mpf("0.01") * (0 < k < n), n) for k in range(n + 1)]
    dense = [node(k + mpf("0.003") * (0 < k < grid * n), grid * n) for k in range(grid * n + 1)]
    if a < 0 < b:
        dense = [x for x in dense if abs(x) > (b - a) * mpf("1e-6")]
    signed = weight
    weight = lambda x: abs(signed(x))  # noqa: E731
    fd, wd = [f(x) for x in dense], [weight(x) for x in dense]
    best = None
    for _ in range(rounds):
        matrix = mp.matrix(n + 1, n + 1)
        right = mp.matrix(n + 1, 1)
        for i, x in enumerate(points):
            for k, power in enumerate(powers):
                matrix[i, k] = weight(x) * x**power
            matrix[i, n] = (-1) ** i
            right[i] = weight(x) * f(x)
        solution = mp.lu_solve(matrix, right)
        c = [solution[k] for k in range(n)]
        error = [(fx - poly(c, powers, x)) * w for x, fx, w in zip(dense, fd, wd)]
        worst = max(abs(v) for v in error)
        if best is None or worst < best[1]:
            best = (c, worst)
        # one extremum a run of equal sign
        extrema = []
        for k, v in enumerate(error):
            if extrema and (v > 0) == (error[extrema[-1]] > 0):
                if abs(v) > abs(error[extrema[-1]]):
                    extrema[-1] = k
            else:
                extrema.append(k)
        while len(extrema) > n + 1:
            extrema.pop(0 if abs(error[extrema[0]]) < abs(error[extrema[-1]]) else -1)
        if len(extrema) < n + 1:
            break
        points = [dense[k] for k in extrema]
        if worst - abs(solution[n]) < worst * mpf("0.01"):
            break
    return best


def poly(c, powers, x):
    if list(powers) == list(range(len(powers))):
        total = mpf(0)
        for v in reversed(c):
            total = total * x + v
        return total
    return sum((v * x**p for v, p in zip(c, powers)), mpf(0))


def fit(name, f, weight, degree, a, b, bits):
    """A polynomial of ``degree`` with coefficients of ``bits``, and the binary logarithm of its error.

    Rounding one by one helps most where few bits are left over, and is not always possible: across 0 the powers without the
    lowest ones are no Chebyshev system. So several depths are tried and the best is kept.
    """
    n = 300
    a, b = mpf(a), mpf(b)
    samples = [a + (b - a) * (k + mpf("0.13") * (k < n)) / n for k in range(n + 1)]
    samples = [(x, f(x), abs(weight(x))) for x in samples]
    best = None
    for depth in (0, 1, 2) if a < 0 < b else (0, 1, 2, 4):
        done, tail = [], None
        for k in range(degree + 1):
            if k <= min(depth, degree - 2) or tail is None:
                base = list(done)
                g = lambda x: f(x) - poly(base, range(len(base)), x)  # noqa: E731
                tail, _ = remez(g, weight, list(range(k, degree + 1)), a, b, grid=12 if degree > 10 else 24)
            done.append(round_to(tail[0], bits))
            tail = tail[1:]
        worst = max(abs(fx - poly(done, range(degree + 1), x)) * w for x, fx, w in samples)
        if best is None or worst < best[1]:
            best = (done, worst)
    log_error = float(mp.log(best[1], 2))
    print(f"{name} f{bits} degree {degree} on [{float(a):.4g}, {float(b):.4g}]: 2^{log_error:.1f}", file=sys.stderr)
    return best[0], log_error
