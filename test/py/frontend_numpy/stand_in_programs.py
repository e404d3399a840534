"""Generated programs that ask what a trace has no array for: the text, the class, the identity, the hash, the attributes
and the copies of values, on their own and inside of containers. Each is compared with what Python gives, over calls whose
values, sizes and identities change.

``python -m stand_in_programs [seed [count]]`` in this folder runs ``count`` random programs, or all of them, and prints
those that differ."""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import json
import math
import pickle
import random
import sys
import warnings

import numpy as np

import mlirfuse

VALUES = (
    "a", "a.sum()", "a[0]", "a.shape", "a.shape[0]", "len(a)", "k", "n", "flag", "a.mean()", "(a > 1).any()", "a.dtype",
    "a[1:3]", "a[:3] * 2", "np.zeros(3)", "np.float32(a[1])", "n * 2", "k / 2", "a.max() > k", "h", "np.allclose(a, a)",
    "a.ndim", "z", "b", "float(a[0])", "[a[0], n]", "(a[1], k)", "dict(a=a.sum())", "a.size", "b if flag else a",
    "np.asarray(a)", "a.T", "n > 2", "np.array_equal(a, b)", "a[:2].astype(int)", "a.itemsize * n", "None",
)  # fmt: skip
QUESTIONS = (
    "str({})", "repr({})", "f'{{{}}}'", "f'{{{}!r}}'", "'%s' % ({},)", "'%r!' % ({},)", "format({})", "'<{{}}>'.format({})",
    "type({}).__name__", "({}).__class__.__name__", "isinstance({}, np.ndarray)", "isinstance({}, (int, float))",
    "isinstance({}, np.generic)", "isinstance({}, bool)", "isinstance({}, collections.abc.Hashable)",
    "issubclass(type({}), np.ndarray)", "({}) is None", "({}) is a", "({}) is b", "({}) is True", "({}) is not n",
    "a is ({})", "({}) == None", "({}) != None", "({}) == 'text'", "{{{}: 1}}", "{{1: 2}}.get({})", "len({{{}, 1}})",
    "hash({}) == hash({})", "hasattr({}, 'shape')", "hasattr({}, 'strides')", "getattr({}, 'ctypes', 7) == 7",
    "getattr({}, 'nothing', 7)", "callable({})", "np.isscalar({})", "np.iterable({})", "str([{}])", "str({{'v': {}}})",
    "json.dumps({}, default=str)", "copy.copy({})", "copy.deepcopy({})", "pickle.loads(pickle.dumps({}))", "bytes({})",
    "bytearray({})", "id({}) == id(a)", "shown({})", "refused({})", "matched({})", "dispatched({})", "'real' in dir({})",
    "np.array_repr(np.asarray({}))", "same({}, a)", "[str(v) for v in [{}, n]]", "(lambda v: v is a)({})", "str({}).upper()",
    "'%d items' % len(str({}))", "{{'key': {}}}", "({}) in (1, None)", "({}).nothing",
)  # fmt: skip


def shown(value, *more):
    return f"{value} {more}"


def refused(value):
    raise ValueError(f"no {value} here", value)


def same(x, y):
    return (x is y, x is not y)


def matched(value):
    match value:
        case None:
            return "none"
        case True:
            return "true"
        case int():
            return "int"
        case float():
            return "float"
        case np.ndarray():
            return "array"
    return "other"


@functools.singledispatch
def dispatched(value):
    return "object"


dispatched.register(int)(lambda value: "int")
dispatched.register(float)(lambda value: "float")
dispatched.register(np.ndarray)(lambda value: "array")

_NAMES = {
    "np": np, "json": json, "copy": copy, "pickle": pickle, "collections": collections, "shown": shown, "same": same,
    "refused": refused, "matched": matched, "dispatched": dispatched,
}  # fmt: skip


def program(value: str, question: str, guarded: bool):
    """A function that asks ``question`` of ``value``; ``guarded``: an error is its result."""
    asked = question.format(*[value] * question.count("{}"))
    if guarded:
        body = f"    try:\n        q = {asked}\n    except Exception as e:\n        q = type(e).__name__\n"
    else:
        body = f"    q = {asked}\n"
    text = f"def f(a, b, k, n, flag, z, h):\n{body}    return q, a + 1\n"
    names = dict(_NAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        exec(text, names)
    return names["f"], text


def calls(size: int) -> list[tuple]:
    """Arguments whose values, sizes and identities change. One object is two of them, or a view, or an equal one."""
    a = np.arange(float(size))
    return [
        (a, a + 1, 2.5, 3, True, np.array(4.0), np.float64(1.5)),
        (a, a, 2.5, 3, False, np.array(4.0), np.float64(1.5)),
        (a, a[:], -0.0, 1000, np.True_, np.array(5.0), np.float32(7)),
        (a[:-1] * 3, a, 7.0, 1000, np.False_, np.array(-1.0), np.float32(7)),
        (a, a + 1, 2.5, 3, True, np.array(4.0), np.float64(1.5)),
    ]


def outcome(function, args):
    """What a call gives, or its error's type and the first line of its text."""
    try:
        return function(*copy.deepcopy(args, {id(x): x for x in args}))
    except Exception as error:
        return type(error), str(error).splitlines()[:1]


def alike(got, want, inputs=()) -> bool:
    """Whether two results are the same in value and class, and the same of ``inputs``."""
    if isinstance(want, tuple) and want and isinstance(want[0], type):  # an error: its text where it is the user's own
        own = want[0] is ValueError
        return (
            isinstance(got, tuple)
            and len(got) == 2
            and isinstance(got[0], type)
            and issubclass(got[0], want[0])
            and (not own or got == want)
        )
    if type(got) is not type(want):
        return False
    if isinstance(want, np.ndarray):
        return got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(map(alike, got, want))
    if isinstance(want, dict):
        return len(got) == len(want) and alike(list(got), list(want)) and alike(list(got.values()), list(want.values()))
    if isinstance(want, float):
        return (got == want and math.copysign(1, got) == math.copysign(1, want)) or (got != got and want != want)
    return got == want


def differs(value: str, question: str, guarded: bool, size: int) -> str | None:
    """A report of how a program differs; None where it does not."""
    f, text = program(value, question, guarded)
    compiled = mlirfuse.jit(f)
    for number, args in enumerate(calls(size)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want, got = outcome(f, args), outcome(compiled, args)
        if not alike(got, want):
            return f"{text}call {number} of {size} elements: got {str(got)[:300]}\n  want {str(want)[:300]}"
    return None


def programs() -> list[tuple[str, str, bool]]:
    return list(itertools.product(VALUES, QUESTIONS, (True, False)))


def main(seed: int = 0, count: int | None = None) -> int:
    chosen, bad = programs(), 0
    random.Random(seed).shuffle(chosen)
    for value, question, guarded in chosen[:count]:
        for size in (4, 3000):
            report = differs(value, question, guarded, size)
            if report is not None:
                bad += 1
                print(report, flush=True)
                break
    print(f"{bad} of {len(chosen[:count])} programs differ")
    return bad


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
