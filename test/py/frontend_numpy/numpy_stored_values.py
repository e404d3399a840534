"""Random writes of values into arrays and calls that take a value for elements: numbers of Python's and NumPy's, in range
and beyond it, special values, sequences, arrays and computed values, in straight-line code, native loops and as
arguments. What NumPy stores is stored, and what it refuses is refused.

By hand, thousands: ``python test/py/fuzz.py COUNT FIRST numpy_stored_values``.
"""

from __future__ import annotations

import random

import numpy as np
from beside_numpy import Case, main

_TYPES = ["?", "i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
_VALUES = [
    "1", "-1", "300", "2**31", "2**63", "2**64", "-2**63", "2.5", "-0.0", "1e300", "np.nan", "np.inf", "1j", "True",
    "[1]", "[1, 2]", "(3,)", "[[1]]", "np.float32(2.5)", "np.int64(300)", "np.uint8(200)", "np.bool_(True)",
    "np.complex64(1j)", "np.array(2.5)", "np.array([2.5])", "np.array([300])", "np.array(1j)", "np.array([1j])",
]  # fmt: skip
_COMPUTED = ["a[1] * 1j", "a[2] * 2.5", "a * 1j", "a * 100", "len(a)", "a.sum()", "[a[0], 2]"]
_STATEMENTS = [
    "a[0] = {}", "a[:] = {}", "a[1:3] = {}", "a[a > 1] = {}", "a[[0, 1]] = {}", "a[..., 0] = {}", "a.fill({})",
    "np.copyto(a, {})", "np.put(a, [0], {})", "np.place(a, a > 1, {})", "np.putmask(a, a > 1, {})", "a[0], a[1] = {}, {}",
    "a = np.full(3, {}, a.dtype)", "a = np.full_like(a, {})", "a += {}", "a *= {}", "a[1:] -= {}", "a = a + {}",
    "np.add(a, {}, out=a)", "a = np.where(a > 1, a, {})", "a = np.array([a[0], {}])", "a = np.append(a, {})",
    "a = np.array([{}], a.dtype)", "a = np.array([{}, a[1]], a.dtype)", "np.add.at(a, [0, 0], {})", "a = np.maximum(a, {})",
    "a = a == {}", "a = np.clip(a, {}, None)", "a = a < {}", "a = np.insert(a, 1, {})", "a = a.sum(initial={})",
    "a = np.pad(a, 1, constant_values={})", "a = np.select([a > 1], [a], {})", "a = a // {}", "a = a ** {}",
    "a = np.concatenate([a, [{}]])", "np.fill_diagonal(b, {})", "b[1, 1] = {}", "b[1] = {}", "a = a.dtype.type({})",
    "a = np.isclose(a, {})", "a = np.stack([a[0], {}])", "a = np.hstack([a, {}])", "a = np.nan_to_num(a, nan={})",
]  # fmt: skip


def generate(seed: int) -> Case:
    """The program of a seed."""
    r = random.Random(seed)
    statement, kind, way = (
        r.choice(_STATEMENTS),
        r.choice(_TYPES),
        r.choice(["straight", "straight", "loop", "argument"]),
    )
    value = r.choice(_VALUES if way == "argument" else _VALUES + _COMPUTED)
    body = statement.replace("{}", "v" if way == "argument" else value)
    if way == "loop":
        body = f"for i in range(2):\n        b[0, 0] = b[1, 1]\n        {body}"
    source = f"def f(a, b, v):\n    {body}\n    return a, b\n"

    def make() -> tuple:
        a = np.array([0, 1, 2, 3, 5, 7]).astype(kind)
        return a, np.arange(9).reshape(3, 3).astype(kind), eval(value) if way == "argument" else 0

    return Case(source, make, ulps=8, strides=False, sharing=False, specializations=False)


if __name__ == "__main__":
    main(generate)
