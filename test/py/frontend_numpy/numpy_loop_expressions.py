"""Expressions of elements, numbers and arrays in native loops, whose values are left in a variable or appended to a
list: types, values, order of memory and what shares memory are NumPy's.

By hand, all: ``python test/py/fuzz.py COUNT FIRST numpy_loop_expressions``.
"""

from __future__ import annotations

import random

import numpy as np
from beside_numpy import Case, main

_TYPES = ["f8", "i8", "f4", "i4", "u1", "i1", "u8", "?", "c16", "f2"]
_OF_NUMBERS = [
    "{x} + 1", "{x} * 2.5", "{x} / 2", "{x} // 2", "{x} % 3", "{x} ** 2", "{x} ** 0.5", "{x} ** 3", "-{x}", "abs({x})", "~{x}",
    "{x} << 1", "{x} >> 1", "{x} & 1", "{x} | i", "not {x}", "{x} / i", "{x} // i", "{x} % i", "i / {x}", "i // {x}", "i % {x}",
    "i ** {x}", "2 ** {x}", "{x} ** {y}", "{x} >> 70", "int({x})", "float({x})", "bool({x})", "round({x}, 1)", "divmod({x}, 3)",
    "pow({x}, 2)", "min({x}, 2)", "max(i, {x}, 2.5)", "min({x}, {y})", "sum([{x}, 1])", "int({x}) ** 2", "float({x}) % -3",
    "float({x}) // 3", "int({x}) // 2", "int({x}) % -3", "int({x}) / 2", "~int({x})", "{x} * 1j", "({x} * 1j).imag", "{x} or i",
    "i and {x}", "{x} if i > 1 else i", "{x} in (1, 2)", "{x} == None", "({x}, i)", "[{x}, i]", "type({x}).__name__",
    "isinstance({x}, np.integer)", "{x}.item()", "{x}.dtype", "np.float32({x})", "np.int8(i) * 100", "np.uint8(i) - 1",
    "np.float32(i) * 2.5", "np.int32(i) / 2", "np.uint64(i) + np.int64(1)", "np.bool_(i) + np.bool_(1)", "np.float16(i) * 1.5",
    "f'{{{x}}} {{i}}'", "{{'k': {x}}}", "math.sqrt(i)", "math.floor({x})", "math.pow(i, 2)", "math.hypot(i, 2)", "math.comb(5, i)",
    "round(2.5 * i)", "round(i, -1)", "-i // 2", "-i % 3", "7.5 // (i + 1)", "-7.5 % (i + 1)", "0.0 * -i", "1 / (i - 5)", "i * 2**40",
]  # fmt: skip
_UFUNCS = [
    "absolute", "sqrt", "floor", "ceil", "rint", "trunc", "sign", "square", "reciprocal", "negative", "conjugate", "isnan",
    "isfinite", "signbit", "cbrt", "fabs", "exp2", "log1p", "deg2rad", "invert", "logical_not", "spacing", "round", "real",
    "positive", "tanh",
]  # fmt: skip
_BINARY = [
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "power", "float_power", "maximum", "minimum",
    "fmax", "copysign", "gcd", "lcm", "heaviside", "logaddexp", "left_shift", "right_shift", "bitwise_and", "logical_and",
    "equal", "less", "greater_equal", "hypot", "arctan2",
]  # fmt: skip
_OF_ARRAYS = [
    "a.sum()", "a.mean()", "a.std()", "a.var(ddof=1)", "a.min()", "a.prod()", "a.any()", "a.argmax()", "np.ptp(a)",
    "np.count_nonzero(a)", "np.count_nonzero(a > 1)", "np.cumsum(a)", "a @ a", "np.vdot(a, a)", "np.outer(a, a)",
    "np.linalg.norm(a)", "np.linalg.norm(a, 1)", "np.linalg.norm(a, np.inf)", "np.median(a)", "np.diff(a)", "np.average(a)",
    "np.sum(a, dtype='f4')", "np.sum(a, initial=5)", "a.sum(keepdims=True)", "np.sum(a[:0])", "a[:i].sum()", "np.max(a[:i])",
    "np.mean(a > 1)", "len(a)", "a.shape", "a.dtype", "a + 1", "a * 2.5", "a / 2", "a ** 2", "a + i", "a > 1", "a == a[i]", "a // i",
    "a.copy()", "a[::-1]", "a[i:]", "a[[0, 1]]", "a[a > 1]", "a[:, None] * a", "np.where(a > 1, a, 2.5)", "np.maximum(a, 1.5)",
    "np.clip(a, 0, 1)", "np.concatenate([a, a])", "np.stack([a, a])", "np.append(a, i)", "np.roll(a, i)", "np.zeros(i)",
    "np.ones_like(a, dtype=float)", "np.full(3, a[i])", "np.full(3, i)", "np.full(3, i, a.dtype)", "np.full_like(a, 2.5)",
    "np.arange(i)", "np.arange(0, i, 0.5)", "np.linspace(0, i, 3)", "np.array([a[i], i])", "np.array([1, 2.5, i])",
    "np.array([a[i], i], a.dtype)", "np.array(i)", "np.sort(a)", "np.argsort(a)", "np.unique(a)", "np.repeat(a, 2)", "np.flip(a)",
    "np.diag(a)", "a.astype(bool)", "a.tolist()", "np.isclose(a, 1)", "np.allclose(a, 1)", "np.searchsorted(a, 2)", "np.nonzero(a)",
    "np.histogram(a)[0]", "np.cross(a[:3], a[:3])", "np.kron(a, a)", "np.cov(a)", "np.cov(a[None])", "np.gradient(a)",
    "np.meshgrid(a, a)", "np.broadcast_to(a, (2, len(a)))", "a.reshape(-1, 1)", "a.ravel()", "np.atleast_2d(a)", "np.split(a, 2)",
    "np.take(a, i)", "np.select([a > 2, a > 1], [a, -a], 0)", "np.real(a)", "np.imag(a)", "a.real", "np.linalg.qr(np.outer(a, a))",
    "(np.sort(a), i)", "(i, (np.sort(a)[::2], a * 2))", "np.sort(a)[::-1]", "np.interp(i, [0, 1], [0, 2])", "np.tril(np.outer(a, a))",
]  # fmt: skip


def generate(seed: int) -> Case:
    """The program of a seed."""
    r = random.Random(seed)
    kind, way = r.choice(_TYPES), r.randrange(3)
    words = {"x": r.choice(["a[i]", "a[i]", "i", "a[0]"]), "y": r.choice(["a[i]", "a[0]", "i"])}
    chosen = r.choice([_OF_NUMBERS, _OF_ARRAYS, _OF_ARRAYS, _UFUNCS, _BINARY])
    text = r.choice(chosen)
    if chosen is _UFUNCS:
        text = f"np.{text}({r.choice(['a', words['x']])})"
    elif chosen is _BINARY:
        text = f"np.{text}({r.choice(['a', words['x']])}, {r.choice(['2', '2.5', words['y']])})"
    elif chosen is _OF_NUMBERS:
        text = text.format(**words)
    if way == 0:
        source = (
            f"def f(a, n):\n    r = 0\n    for i in range(n):\n        a[0] = a[1]\n        r = {text}\n    return r\n"
        )
    else:  # the value is changed after it is kept, where it is an array
        after = (
            "\n        if isinstance(t, np.ndarray) and t.flags.writeable and t.size:\n            t.flat[0] = i"
            * (way - 1)
        )
        source = (
            f"def f(a, n):\n    i = 0\n    r = []\n    while i < n:\n        a[0] = a[1]\n        t = {text}\n"
            f"        r.append(t){after}\n        i += 1\n    return r\n"
        )
    return Case(source, lambda: (np.array([0, 1, 2, 3, 5, 7]).astype(kind), 4), ulps=8, strides=False, sharing=way != 1)


if __name__ == "__main__":
    main(generate)
