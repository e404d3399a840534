"""Random calls of NumPy's ufuncs and functions over types, special values and keyword arguments. Types, shapes,
integers and booleans are NumPy's, floats within :data:`ULPS` of their last place, and what NumPy refuses is refused.

By hand, thousands: ``python test/py/fuzz.py COUNT FIRST numpy_ufunc_calls``.
"""

from __future__ import annotations

import random

import numpy as np
from beside_numpy import Case, main

ULPS = 64
_TYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
_UNARY = [
    "positive", "negative", "absolute", "fabs", "sign", "rint", "floor", "ceil",
    "trunc", "square", "sqrt", "cbrt", "reciprocal", "exp", "exp2", "expm1",
    "log", "log2", "log10", "log1p", "sin", "cos", "tan", "arcsin",
    "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh",
    "deg2rad", "rad2deg", "isnan", "isinf", "isfinite", "signbit", "logical_not", "invert",
    "conjugate", "spacing",
]  # fmt: skip
_BINARY = [
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "power",
    "float_power", "maximum", "minimum", "fmax", "fmin", "arctan2", "hypot", "copysign",
    "nextafter", "logaddexp", "logaddexp2", "gcd", "lcm", "heaviside", "less", "less_equal",
    "equal", "not_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor", "bitwise_and",
    "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
]  # fmt: skip
_REDUCTIONS = [
    "sum", "prod", "max", "min", "any", "all", "mean", "var",
    "std", "argmax", "argmin", "ptp", "count_nonzero", "nansum", "nanprod", "nanmax",
    "nanmin", "nanmean", "nanvar", "nanstd", "cumsum", "cumprod", "median",
]  # fmt: skip
_OTHERS = [
    "np.angle({x})", "np.angle({x}, deg=True)", "np.real({x})", "np.imag({x})", "np.round({x}, {n})", "np.fix({x})", "np.sinc({x})",
    "np.nan_to_num({x})", "np.clip({x}, {s}, {s2})", "np.clip({x}, {s}, None)", "np.clip({x}, {y}, {s}, dtype='{d}')",
    "np.where({x} == {x}, {x}, {s})", "np.where({x} == {y}, {x}, {y})", "np.select([{x} == 1, {x} == 2], [{x}, {s}], {s2})",
    "np.linspace({x}[0, 0], {y}[0, 0], 5)", "np.linspace({s}, {x}[0, 1], 4, endpoint=False)", "np.concatenate([{x}, {y}])",
    "np.concatenate([{x}, {y}], dtype='{d}', casting='{c}')", "np.stack([{x}, {y}], -1)", "np.hstack([{x}, {y}])", "{x}.astype('{d}')",
    "{x}.astype('{d}', casting='{c}')", "np.diff({x})", "np.isclose({x}, {y})", "np.cross({x}[:, :3], {y}[:, :3])", "{x} ** 2", "{x} ** {n}",
    "{x} // {s}", "{x} % {s}", "{x} + {s}", "{s} - {x}", "{x} << 1", "divmod({x}, {y})", "np.modf({x})", "np.isreal({x})", "np.isposinf({x})",
    "np.full_like({x}, {s})", "np.full({x}.shape, {s}, '{d}')", "np.tril({x})", "np.trace({x})", "np.average({x}, 0)", "np.unwrap({x})",
    "np.interp({s}, [0, 1], [0, 1]) + {x}", "np.add.at({x}, i, {s})", "np.add.at({x}, i, {y}[i])", "np.maximum.at({x}, i, {y}[i])",
    "np.subtract.at({x}, i, {s})", "np.logical_or.at({x}, i, {s})", "np.copysign({s}, {x})", "np.add.outer({x}[0], {y}[0])", "np.maximum.reduce({x})",
    "np.add.accumulate({x}, 1)", "np.logical_xor.reduce({x})", "np.bitwise_or.reduce({x})", "np.multiply.reduce({x}, 1)", "np.ldexp({x}, 2)",
]  # fmt: skip


def generate(seed: int) -> Case:
    """The call of a seed."""
    r = random.Random(seed)
    kinds = r.choice(_TYPES), r.choice(_TYPES)
    if r.random() < 0.5:
        kinds = kinds[0], kinds[0]
    words = {
        "x": "a", "y": "b", "n": r.choice([0, 1, 2, -1]), "s": r.choice([0, 1, 2, -1, 3, 300, 2.5, -0.0, True, 1j, 70000]),
        "s2": r.choice([0, 1, 7, 2.5]), "d": r.choice(_TYPES), "c": r.choice(["no", "equiv", "safe", "same_kind", "unsafe"]),
    }  # fmt: skip
    kind = r.randrange(8)
    if kind < 2:
        text = f"np.{r.choice(_UNARY)}(a{_keywords(r, words)})"
    elif kind < 5:
        given = r.choice(["a, b", "a, b", f"a, {words['s']}", f"{words['s']}, a"])
        name = r.choice(_BINARY)
        given = "a, b" if "less" in name or "equal" in name or "greater" in name else given  # NumPy 2.4 crashes on some
        text = f"np.{name}({given}{_keywords(r, words)})"
    elif kind == 5:
        text = f"np.{r.choice(_REDUCTIONS)}(a{_of_reduction(r, words)})"
    else:
        text = r.choice(_OTHERS).format(**words)
    if "f2" in kinds:  # else rounded once, not twice
        words["d"] = "f2"
    if kinds[0] == "f2":  # the sine of pi * 100 in float16 is all rounding
        text = text.replace("np.sinc(a)", "np.sinc(a.astype('f8'))")
    of_integers = kind == 5 and "dtype='f" in text and kinds[0][0] in "iu"  # large ones cancel in some order only
    tame = ".astype(" in text or of_integers  # of floats beyond a type's range a cast gives anything
    if "out=o" in text and _stores_anything(text, _arguments(seed, kinds, words["d"], tame)):
        text = text.replace("casting='unsafe'", "casting='same_kind'")
    source = f"def f(a, b, o, w, i):\n    r = {text}\n    return (r,), o, a + a\n"
    return Case(
        source,
        lambda: _arguments(seed, kinds, words["d"], tame),
        ulps=ULPS,
        computed=_computed(text, _arguments(seed, kinds, words["d"], tame)) if "out=o" in text else "f8",
        strides=False,
        sharing=False,
        specializations=False,
    )


def _without_out(text: str, arguments: tuple) -> np.ndarray:
    """The result of the loop that a ufunc's call runs, whatever ``out`` holds; float64 where NumPy refuses the call."""
    given = dict(zip("abowi", arguments), np=np)
    try:
        with np.errstate(all="ignore"):
            return np.asarray(eval(text.replace(", out=o", "").replace(", where=w", ""), given))
    except Exception:
        return np.zeros(0)


def _stores_anything(text: str, arguments: tuple) -> bool:
    """Whether floats go into integers that do not hold them, or those of float16, which kernels need not round."""
    result, out = _without_out(text, arguments), arguments[2]
    if out.dtype.kind not in "iu" or result.dtype.kind != "f":
        return False
    low, high = float(np.iinfo(out.dtype).min), float(np.iinfo(out.dtype).max)
    return result.dtype == np.float16 or not ((result >= low) & (result < high)).all()


def _computed(text: str, arguments: tuple) -> str:
    """The float type of the loop that a ufunc's call runs."""
    result = _without_out(text, arguments)
    return np.empty(0, result.dtype).real.dtype.str[1:] if result.dtype.kind in "fc" else "f8"


def _keywords(r: random.Random, words: dict) -> str:
    return r.choice(["", "", "", f", dtype='{words['d']}'", ", out=o", ", out=o, where=w", f", casting='{words['c']}'",
                     f", out=o, casting='{words['c']}'", ", order='F'"])  # fmt: skip


def _of_reduction(r: random.Random, words: dict) -> str:
    return r.choice(["", ", 0", ", -1", ", axis=1, keepdims=True", f", 0, dtype='{words['d']}'", f", initial={words['s']}", ", 0, where=w",
                     f", where=w, initial={words['s']}", ", axis=(0, 1)", ", axis=5"])  # fmt: skip


def _arguments(seed: int, kinds: tuple[str, str], third: str, tame: bool) -> tuple:
    rng = np.random.default_rng(seed)
    return (
        _filled(rng, kinds[0], tame),
        _filled(rng, kinds[1], tame),
        _filled(rng, third),
        rng.integers(0, 2, (4, 5)) > 0,
        np.array([0, 2, 2]),
    )


def _filled(rng, kind: str, tame: bool = False) -> np.ndarray:
    dtype = np.dtype(kind)
    if dtype.kind == "b":
        return rng.integers(0, 2, (4, 5)) > 0
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        special = np.array([0, 1, 2, 3, info.min, info.max, 7, info.max - 1], dtype)
        few = [0, 1, 2, 6] if tame else [0, 1, 2, 3, 6]
        return rng.choice(special if rng.integers(2) and not tame else special[few], (4, 5))
    if dtype.kind == "c":
        return (rng.integers(-4, 5, (4, 5)) + 1j * rng.integers(-4, 5, (4, 5))).astype(dtype)
    special = np.array([0.0, -0.0, 1, -1, 0.5, 2, np.inf, -np.inf, np.nan, 3, -2.5, 100], dtype)
    return rng.choice(special if rng.integers(2) and not tame else special[[0, 2, 4, 5, 9, 11]], (4, 5))


if __name__ == "__main__":
    main(generate)
