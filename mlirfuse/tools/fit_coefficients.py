"""Generates ``mlirfuse/lowering/math/coefficients.py``: ``python -m mlirfuse.tools.fit_coefficients >
mlirfuse/lowering/math/coefficients.py``.

Needs mpmath, and some minutes. Each polynomial is the minimax one for a weighted error, by the Remez exchange algorithm
in 60 digits. The first coefficients are rounded to the working precision one at a time, lowest power first, refitting
the rest each time, so that the others absorb the rounding error.
"""

from __future__ import annotations

import functools
import struct
import sys
from typing import Any

from mpmath import mp, mpf

mp.dps = 60


def round_to(x, bits: int):
    if bits == 32:
        return mpf(struct.unpack("<f", struct.pack("<f", float(x)))[0])
    return mpf(float(x))


def remez(f, weight, powers, a, b, rounds=12, grid=24):
    """Return the coefficients of ``sum c[k] x**powers[k]`` that minimize max |(f - p) * weight| on [a, b], and that
    maximum."""
    n = len(powers)
    a, b = mpf(a), mpf(b)
    node = lambda k, m: (a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * k / m)  # noqa: E731
    # offset so that no point is at a zero of the weight's denominator in the middle of the interval
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
        # one extremum per run of equal sign
        extrema: list[int] = []
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
    """Fit a polynomial of ``degree`` with coefficients of ``bits``; return it and the binary logarithm of its error.

    Rounding one by one helps most for the first coefficients, and is not always possible: across 0 the powers without
    the lowest ones do not form a Chebyshev system. So several depths are tried and the best is kept.
    """
    n = 300
    a, b = mpf(a), mpf(b)
    samples = [a + (b - a) * (k + mpf("0.13") * (k < n)) / n for k in range(n + 1)]
    samples = [(x, f(x), abs(weight(x))) for x in samples]
    best: tuple[list, Any] | None = None
    for depth in (0, 1, 2) if a < 0 < b else (0, 1, 2, 4):
        done: list = []
        tail: Any = None
        for k in range(degree + 1):
            if k <= min(depth, degree - 2) or tail is None:
                base = list(done)
                g = lambda x, base=base: f(x) - poly(base, range(len(base)), x)  # noqa: E731
                tail, _ = remez(g, weight, list(range(k, degree + 1)), a, b, grid=12 if degree > 10 else 24)
            done.append(round_to(tail[0], bits))
            tail = tail[1:]
        worst = max(abs(fx - poly(done, range(degree + 1), x)) * w for x, fx, w in samples)
        if best is None or worst < best[1]:
            best = (done, worst)
    assert best is not None
    log_error = float(mp.log(best[1], 2))
    print(f"{name} f{bits} degree {degree} on [{float(a):.4g}, {float(b):.4g}]: 2^{log_error:.1f}", file=sys.stderr)
    return best[0], log_error


# ---- the functions


def over_odd(function, first):
    """Return ``(function(x) / x - first) / z`` in ``z = x²``, for an odd function, and the weight that makes its error
    relative."""

    def f(z):
        x = mp.sqrt(z)
        return (function(x) / x - first) / z

    def weight(z):
        x = mp.sqrt(z)
        return z * x / function(x)

    return f, weight


def inverse_erf_ratio(w):
    """Return ``y / erf(y)`` with ``-log(1 - erf(y)²) = w``, by Newton's method."""
    if w < mpf("1e-25"):
        return mp.sqrt(mp.pi) / 2
    y = mp.sqrt(w) * mpf("0.886") if w < 2 else mp.sqrt(w - mp.log(w + 1) / 2 - mpf("0.3"))
    for _ in range(60):
        c = mp.erfc(y)
        value = mp.log(c * (2 - c)) + w
        slope = -2 / mp.sqrt(mp.pi) * mp.exp(-y * y) * (2 - 2 * c) / (c * (2 - c))
        step = value / slope
        y -= step
        if abs(step) < y * mpf("1e-45"):
            break
    return y / mp.erf(y)


def remembered(f):
    memory = {}

    def g(x):
        if x not in memory:
            memory[x] = f(x)
        return memory[x]

    return g


def relative(f):
    f = remembered(f)
    return f, lambda x: 1 / f(x)


def mobius(function, center):
    """Return ``function`` of x in ``t = (x - center) / (x + center)``, and the map of x to t."""
    center = mpf(center)
    return (lambda t: function(center * (1 + t) / (1 - t))), (lambda x: (mpf(x) - center) / (mpf(x) + center))


def scaled_erfc(x):
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def tail_ratio(s):
    return inverse_erf_ratio(s * s) / s


def stirling_rest(q):
    z = 1 / mp.sqrt(q)
    return (mp.loggamma(z) - ((z - mpf("0.5")) * (mp.log(z) - 1) + mp.log(2 * mp.pi) / 2 - mpf("0.5"))) * z


ZERO = mpf("1e-20")
SMALL = mp.log(2) / 2 * mpf("1.01")  # half a step of the exponential's range reduction, with a margin
ANGLE = (mp.pi / 4 * mpf("1.02")) ** 2
THIRD = mpf(1) / 3

# name, comment, (function, weight), range, degree by bits
TABLES = [
    (
        "EXPM1",
        "(exp(r) - 1 - r) / r² on [-0.35, 0.35], relative to exp(r) - 1",
        (lambda r: (mp.expm1(r) - r) / r**2, lambda r: r**2 / mp.expm1(r)),
        (-SMALL, SMALL),
        {32: 4, 64: 10},
    ),
    (
        "EXP2",
        "(2^r - 1) / r on [-1/2, 1/2]",
        (lambda r: (mpf(2) ** r - 1) / r, lambda r: r),
        (-0.5, 0.5),
        {32: 5, 64: 10},
    ),
    (
        "LOG",
        "(log(1 + r) - r + r²/2) / r³ on [-1/3, 1/3]",
        (lambda r: (mp.log1p(r) - r + r * r / 2) / r**3, lambda r: r**3 / mp.log1p(r)),
        (-THIRD, THIRD),
        {32: 7, 64: 18},
    ),
    (
        "LOG1P",
        "(log1p(t) - t) / t² on [0, 1]",
        (lambda t: (mp.log1p(t) - t) / t**2, lambda t: t**2 / mp.log1p(t)),
        (ZERO, 1),
        {32: 8, 64: 19},
    ),
    (
        "LOG_ATANH",
        "(2 atanh(s) - 2s) / s³ in s², s up to 0.1717",
        (over_odd(lambda s: 2 * mp.atanh(s), 2)[0], lambda z: z),
        (ZERO, mpf("0.1717") ** 2),
        {32: 3, 64: 8},
    ),
    ("SIN", "(sin(r) - r) / r³ in r², r up to 0.8", over_odd(mp.sin, 1), (mpf("1e-30"), ANGLE), {32: 2, 64: 5}),
    (
        "COS",
        "(cos(r) - 1 + r²/2) / r⁴ in r², r up to 0.8",
        (lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, lambda z: z**2 / mp.cos(mp.sqrt(z))),
        (mpf("1e-12"), ANGLE),
        {32: 2, 64: 5},
    ),
    ("ATAN", "(atan(t) - t) / t³ in t² on [0, 1]", over_odd(mp.atan, 1), (ZERO, 1), {32: 8, 64: 18}),
    ("ASIN", "(asin(t) - t) / t³ in t² on [0, 1/2]", over_odd(mp.asin, 1), (ZERO, 0.25), {32: 4, 64: 12}),
    ("TANH", "(tanh(x) - x) / x³ in x² on [0, 0.6]", over_odd(mp.tanh, 1), (ZERO, mpf("0.36")), {32: 4, 64: 11}),
    ("SINH", "(sinh(x) - x) / x³ in x² on [0, 1]", over_odd(mp.sinh, 1), (ZERO, mpf("1.01")), {32: 3, 64: 7}),
    (
        "ERF",
        "erf(x) / x - 1 in x² on [0, 1]",
        (lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z))),
        (ZERO, 1),
        {32: 6, 64: 12},
    ),
    ("RCBRT", "x^(-1/3) on [1, 2]", relative(lambda x: x ** (-THIRD)), (1, 2), {32: 3, 64: 5}),
]


def number(x, bits: int) -> str:
    """Return the shortest decimal that parses to ``x``."""
    if bits == 64:
        return repr(float(x))
    for digits in range(1, 10):
        text = f"{float(x):.{digits}g}"
        if round_to(mpf(text), 32) == x:
            return repr(float(text))
    raise AssertionError(x)


def split(x, bits: int, count: int, short: int | None = None) -> list:
    """Return ``x`` as a sum of ``count`` floats, the first of them of ``short`` bits if given."""
    parts, x = [], mpf(x)
    for k in range(count):
        if k == 0 and short:
            unit = mpf(2) ** (mp.floor(mp.log(abs(x), 2)) + 1 - short)
            part = mp.nint(x / unit) * unit
        else:
            part = round_to(x, bits)
        parts.append(part)
        x -= part
    return parts


def pair(x, bits, count, short=None) -> str:
    return "(" + ", ".join(number(v, bits) for v in split(x, bits, count, short)) + ")"


def words_of_two_over_pi(zeros: int, width: int, count: int) -> str:
    """Return the first words of 2/pi after ``zeros`` zero bits."""
    total = width * count
    with mp.workdps(500):
        bits = int(mp.floor(2 / mp.pi * mpf(2) ** (total - zeros)))
    words = [(bits >> (total - width * (k + 1))) & ((1 << width) - 1) for k in range(count)]
    return "\n".join(f"    0x{w:0{width // 4}X}," for w in words)


def rows(coefficients, bits, indent) -> str:
    return "\n".join(f"{' ' * indent}{number(c, bits)}," for c in coefficients)


HEADER = '''"""Constants of :mod:`mlirfuse.lowering.math`: minimax polynomials and splits of constants.

Computed by ``python -m mlirfuse.tools.fit_coefficients``, with Remez's algorithm in 60 digits. Coefficients are listed
from the lowest power on, by the bits of the float type. The comment before a polynomial gives its function and range;
the power of two is its largest error, relative to the function that it is used for, in exact arithmetic with the
rounded coefficients.
"""
'''


def constants() -> None:
    """Print logarithms and multiples of pi."""
    ln2 = mp.log(2)
    print(f"LOG2E = {float(1 / ln2)!r}")
    print(f"LOG10E = {float(mp.log10(mp.e))!r}")
    print(f"LOG2E_F32 = {pair(1 / ln2, 32, 2)}")
    for bits in (32, 64):
        print(f"LN2_F{bits} = {pair(ln2, bits, 2)}")
    print("# with a first part so short that its product with any exponent is exact")
    for bits, short in ((32, 15), (64, 41)):
        print(f"LN2_SHORT_F{bits} = {pair(ln2, bits, 2, short)}")
    print(f"LOG10_2_SHORT = {{32: {pair(mp.log10(2), 32, 2, 15)}, 64: {pair(mp.log10(2), 64, 2, 41)}}}")
    for bits in (32, 64):
        print(f"PI_2_F{bits} = {pair(mp.pi / 2, bits, 3)}")
    print("# above these, angles are reduced by bits of 2/pi instead of a split pi/2")
    print("TRIG_LIMIT = {32: 80000.0, 64: 800000.0}")
    for width, zeros, count in ((32, 26, 8), (64, 66, 20)):
        print(f"# {zeros} zeros, then the bits of 2/pi")
        print(f"TWO_OVER_PI_{width} = (\n{words_of_two_over_pi(zeros, width, count)}\n)")


def tables() -> None:
    """Print the polynomials of :data:`TABLES`."""
    for name, comment, (f, weight), (a, b), degrees in TABLES:
        print(f"# {comment}")
        print(f"{name} = {{")
        for bits, degree in degrees.items():
            c, error = fit(name, f, weight, degree, a, b, bits)
            print(f"    # 2^{error:.1f}\n    {bits}: (\n{rows(c, bits, 8)}\n    ),")
        print("}")


def error_functions() -> None:
    """Print erf and erfc."""
    c, error = fit("ERF_HIGH", lambda x: mp.log(mp.erfc(x), 2) / x, lambda x: x * mp.erfc(x) * mp.log(2), 6, 0.9, 4, 32)
    print(
        f"# log2(erfc(x)) / x on [0.9, 4], float32, relative to erf: 2^{error:.1f}\nERF_HIGH = (\n{rows(c, 32, 4)}\n)"
    )

    print("# (1 + 2x) exp(x²) erfc(x) in (x - center) / (x + center), for x up to the limit")
    print("ERFC_CENTER = {32: 2.0, 64: 3.0}\nERFC_LIMIT = {32: 10.1, 64: 27.3}\nERFC = {")
    for bits, middle, limit, degree in ((32, 2, "10.1", 9), (64, 3, "27.3", 22)):
        f, to_t = mobius(scaled_erfc, middle)
        f, weight = relative(f)
        c, error = fit("ERFC", f, weight, degree, -1, to_t(limit), bits)
        print(f"    # 2^{error:.1f}\n    {bits}: (\n{rows(c, bits, 8)}\n    ),")
    print("}")


def inverse_error_functions() -> None:
    """Print erfinv and erfcinv."""
    print(
        "# y / erf(y), where w = -log(1 - erf(y)²): in w up to the first number; then in sqrt(w) - center, up to w = "
        "the number"
    )
    print("ERFINV = {")
    regions: dict[int, list[tuple[float, float, float | None, int, str]]] = {
        32: [(0, 5, None, 9, "5.0"), (2.236, 4.1, 3.25, 9, "16.8")],
        64: [(0, 6.25, None, 24, "6.25"), (2.5, 4, 3.25, 20, "16.0"), (4, 6.1, 5.0, 18, "37.2")],
    }
    for bits, parts in regions.items():
        print(f"    {bits}: (")
        for a, b, center, degree, end in parts:
            if center is None:
                f, low, high = inverse_erf_ratio, mpf(a), mpf(b)
            else:
                f = functools.partial(lambda k, t: inverse_erf_ratio((t + k) ** 2), mpf(center))
                low, high = mpf(a) - mpf(center), mpf(b) - mpf(center)
            f, weight = relative(f)
            c, error = fit("ERFINV", f, weight, degree, low, high, bits)
            head = f"({end}, (" if center is None else f"({end}, {center}, ("
            print(f"        # 2^{error:.1f}\n        {head}\n{rows(c, bits, 12)}\n        )),")
        print("    ),")
    print("}")
    print("# the same over s = sqrt(w), in (s - center) / (s + center), from w = the first number on")
    print("ERFCINV_FAR = {")
    for bits, a, b, center, degree, start in ((32, 4.1, 10.3, 6.5, 6, "16.8"), (64, 6.1, 27.4, 13.0, 22, "37.2")):
        f, to_t = mobius(tail_ratio, center)
        f, weight = relative(f)
        c, error = fit("ERFCINV_FAR", f, weight, degree, to_t(a), to_t(b), bits)
        print(f"    # 2^{error:.1f}\n    {bits}: ({start}, {center}, (\n{rows(c, bits, 8)}\n    )),")
    print("}")


def log_gamma() -> None:
    """Print lgamma."""
    near = relative(lambda t: mp.loggamma(t + 2) / ((t + 1) * t))
    middle = relative(lambda t: mp.loggamma(t + mpf("5.5")))
    far = (remembered(stirling_rest), lambda q: mp.sqrt(q) / 8)
    for name, comment, (f, weight), (a, b), degrees in (
        ("LGAMMA_NEAR", "lgamma(t + 2) / (t (t + 1)) on [-1, 1]", near, (-1 + mpf("1e-15"), 1), {32: 13, 64: 26}),
        ("LGAMMA_MIDDLE", "lgamma(t + 5.5) on [-2.5, 2.5]", middle, (-2.5, 2.5), {32: 12, 64: 24}),
        (
            "LGAMMA_FAR",
            "z times the rest of Stirling's series in 1/z², z >= 8",
            far,
            (mpf("1e-10"), mpf(1) / 64),
            {32: 2, 64: 4},
        ),
    ):
        print(f"# {comment}; in float64, for results in float32 and in float64")
        print(f"{name} = {{")
        for bits, degree in degrees.items():
            c, error = fit(name, f, weight, degree, a, b, 64)
            print(f"    # 2^{error:.1f}\n    {bits}: (\n{rows(c, 64, 8)}\n    ),")
        print("}")
    print(f"LGAMMA_CONSTANT = {float(mp.log(2 * mp.pi) / 2 - mpf('0.5'))!r}  # log(2 pi) / 2 - 1/2")


def main() -> None:
    print(HEADER)
    constants()
    tables()
    error_functions()
    inverse_error_functions()
    log_gamma()


if __name__ == "__main__":
    main()
