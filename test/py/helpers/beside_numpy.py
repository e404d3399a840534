"""What generators of NumPy programs share: a program is run by NumPy and compiled, and all that a caller sees of the
two runs is compared.

A generator is a function from a seed to a :class:`Case`. :func:`main` runs a range of seeds by hand and prints the
programs that differ.
"""

from __future__ import annotations

import itertools
import linecache
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import mlirfuse


@dataclass
class Case:
    """``source`` defines ``f``; ``make()`` gives its arguments, new at each call. ``reference``: what NumPy runs in its
    place. ``ulps``: how far floats may lie apart, in units of the last place of the result, or of the float type
    ``computed`` where that is narrower; ``strides``: whether results must lie in memory as NumPy's; ``sharing``: whether results and arguments must share memory as NumPy's;
    ``specializations``: whether a call that NumPy refuses must be refused with the same kind of error."""

    source: str
    make: Callable[[], tuple]
    ulps: int = 0
    strides: bool = True
    specializations: bool = True
    sharing: bool = True
    reference: str = ""
    computed: str = "f8"


def function_of(source: str) -> Callable:
    """The function ``f`` that ``source`` defines, whose source can be read."""
    name = f"<case {next(_numbers)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace = {"np": np, "math": math}
    exec(compile(source, name, "exec"), namespace)
    return namespace["f"]


_numbers = itertools.count()


def _leaves(x) -> list:
    if isinstance(x, (tuple, list)):
        return [leaf for item in x for leaf in _leaves(item)]
    return [x]


def _run(f: Callable, case: Case) -> tuple:
    """The exception's class or None, the leaves of the result, the arguments, which of them share memory."""
    args = case.make()
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            result, error = f(*args), None
    except Exception as problem:
        result, error = None, problem
    arrays = [x for x in (*_leaves(result), *_leaves(args)) if isinstance(x, np.ndarray)]
    shared = [np.shares_memory(a, b) for a, b in itertools.combinations(arrays, 2)] if case.sharing else []
    return error, _leaves(result), _leaves(args), shared


def differs(case: Case, calls: int = 1) -> str | None:
    """What is not the same in ``calls`` compiled calls as in NumPy's, None where all is. A call may also give what NumPy
    gives without the ``reference``: NumPy itself runs some functions."""
    found = _differs_from(case.reference or case.source, case, calls)
    return found if not (found and case.reference) or _differs_from(case.source, case, calls) else None


def _differs_from(reference: str, case: Case, calls: int) -> str | None:
    compiled = mlirfuse.jit(function_of(case.source))
    error, result, args, shared = _run(function_of(reference), case)
    for _ in range(calls):
        ours = _run(compiled, case)
        if (ours[0] is None) != (error is None):
            return f"NumPy: {error!r}, compiled: {ours[0]!r} {ours[1] if ours[0] is None else ''}"
        if error is not None:
            if case.specializations and not isinstance(ours[0], _raised(error)):
                return f"NumPy: {error!r}, compiled: {ours[0]!r}"
            continue
        if len(ours[1]) != len(result):
            return f"{len(ours[1])} results for {len(result)}"
        for what, got, want in (("result", ours[1], result), ("argument", ours[2], args)):
            for k, (x, y) in enumerate(zip(got, want)):
                found = _differs(x, y, case)
                if found and not (_alike(x, y) and _casts_beyond(reference, case)):
                    return f"{what} {k}: {found}"
        if ours[3] != shared:
            return f"sharing: {ours[3]} for {shared}"
    return None


def _alike(x, y) -> bool:
    """Whether two results are integers of one type and shape."""
    return (
        isinstance(y, (np.ndarray, np.generic)) and y.dtype.kind in "iub" and (x.dtype, x.shape) == (y.dtype, y.shape)
    )


def _casts_beyond(reference: str, case: Case) -> bool:
    """Whether NumPy converts a float to an integer type that does not hold it: it gives any integer then, another one in
    a vector than alone."""
    with warnings.catch_warnings(record=True) as seen, np.errstate(all="ignore", invalid="warn"):
        warnings.simplefilter("always")
        function_of(reference)(*case.make())
    return any("encountered in cast" in str(warning.message) for warning in seen)


def _raised(error: Exception) -> tuple[type, ...]:
    """The classes that an error of NumPy's may be raised as: its own, or the public one that it is derived from."""
    return tuple(c for c in type(error).__mro__ if c not in (Exception, BaseException, object))[:2] or (Exception,)


def _differs(x, y, case: Case) -> str | None:
    if type(x) is not type(y):
        return f"{type(x).__name__} {x!r} for {type(y).__name__} {y!r}"
    if type(y) in (float, complex):
        return _far(np.array([x]), np.array([y]), case.ulps, case.computed)
    if not isinstance(y, (np.ndarray, np.generic)):
        return None if x == y or (x != x and y != y) else f"{x!r} for {y!r}"
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        return f"{x.dtype}{x.shape} for {y.dtype}{y.shape}"
    if isinstance(y, np.ndarray):
        if case.strides and x.size and not _same_strides(x, y):
            return f"strides {x.strides} for {y.strides} of {y.shape}"
        if x.flags.writeable != y.flags.writeable:
            return f"writeable {x.flags.writeable} for {y.flags.writeable}"
    return _far(np.atleast_1d(x), np.atleast_1d(y), case.ulps, case.computed)


def _same_strides(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether two arrays lie alike: the same strides; of what is a view with gaps in NumPy, the same order."""
    mine, wanted = ([s for s, n in zip(a.strides, a.shape) if n != 1] for a in (x, y))
    if _is_dense(y):
        return mine == wanted
    return np.argsort(np.abs(mine), kind="stable").tolist() == np.argsort(np.abs(wanted), kind="stable").tolist()


def _is_dense(x: np.ndarray) -> bool:
    running = x.itemsize
    for stride, extent in sorted((s, n) for s, n in zip(x.strides, x.shape) if n != 1):
        if stride != running:
            return False
        running *= extent
    return True


def _far(x: np.ndarray, y: np.ndarray, ulps: int, computed: str) -> str | None:
    if x.dtype.kind == "c":
        return _far(x.real, y.real, ulps, computed) or _far(x.imag, y.imag, ulps, computed)
    if x.dtype.kind != "f":
        wrong = x != y
    else:
        same = (x == y) & (np.signbit(x) == np.signbit(y)) | (np.isnan(x) & np.isnan(y))
        if ulps:
            with np.errstate(all="ignore"):
                largest = np.maximum(np.abs(x), np.abs(y))
                bound = ulps * np.maximum(np.spacing(largest), np.spacing(largest.astype(computed)))
                same |= np.abs(x - y) <= np.where(np.isfinite(bound), bound, 0)
        wrong = ~same
    if not wrong.any():
        return None
    at = tuple(int(k) for k in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {x.size} wrong, at {at} {x[at]!r} for {y[at]!r}"


def main(generate: Callable[[int], Case]) -> None:
    """Runs the seeds from the first to below the second number of the command line; prints those that differ."""
    first, last = (int(n) for n in sys.argv[1:3])
    failed = 0
    for seed in range(first, last):
        case = generate(seed)
        found = differs(case)
        if found:
            failed += 1
            print(f"--- seed {seed}: {found}\n{case.source}", flush=True)
            for arg in case.make():
                print("   ", describe(arg))
    print(f"{failed} of {last - first} differ")
    sys.exit(bool(failed))


def describe(arg) -> str:
    """An argument in a line."""
    if not isinstance(arg, np.ndarray):
        return repr(arg)
    text = np.array2string(arg, threshold=12).replace("\n", "")
    return f"{arg.dtype}{list(arg.shape)} strides {arg.strides}: {text}"
