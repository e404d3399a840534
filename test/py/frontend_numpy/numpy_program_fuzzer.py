"""Random NumPy programs with loops, branches on values, arrays made inside, writes in place, views and aliases, complex
numbers, functions and generators made inside, random numbers, ``out=``, and errors that are caught or not, beside NumPy:
types, shapes, results, what is written into the arguments, which results share memory with what, and exceptions are
compared. Floats have a bound, :func:`_close`, and :func:`steady` says what it cannot be asked of.

By hand, thousands: ``python test/py/fuzz.py COUNT FIRST numpy_program_fuzzer``. A program that differs is printed.
"""

from __future__ import annotations

import ast
import collections
import copy
import inspect
import linecache
import random
import re
import sys
import textwrap
import warnings

import numpy as np

import mlirfuse
from mlirfuse.frontend.numpy import fallback

_DTYPES = ["float64", "float64", "float32", "int64", "int32"]


class Program:
    """One program's text, made from a seed. ``a`` and ``b`` are vectors of one length, ``m`` a square matrix, ``n`` its
    extent, ``k`` a small int, ``x`` a float."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.vectors, self.matrices, self.numbers, self.counters = ["a", "b"], ["m"], ["x"], ["k"]
        self.complexes: list[str] = []
        self.functions: list[str] = []
        self.names = 0
        self.depth = 0

    def pick(self, *choices):
        return self.random.choice(choices)

    def fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def line(self, text: str) -> None:
        self.lines.append("    " * (self.depth + 1) + text)

    # ---- expressions

    def index(self) -> str:
        c = self.random.choice(self.counters)
        return self.pick(
            c, c, f"{c} - 1", f"{c} // 2", "0", "-1", "2", f"{c} + 1", f"({c} * 3) % n", f"n - 1 - ({c} % n)"
        )

    def element(self) -> str:
        if self.pick(True, False):
            return f"{self.random.choice(self.vectors)}[{self.index()}]"
        return f"{self.random.choice(self.matrices)}[{self.index()}, {self.index()}]"

    def number(self, depth: int = 2) -> str:
        if depth == 0:
            c = self.random.choice(self.counters)
            return self.pick(self.element(), self.random.choice(self.numbers), c, "2", "0.5", "1.5", "3")
        a, b = self.number(depth - 1), self.number(depth - 1)
        v = self.random.choice(self.vectors)
        return self.pick(
            f"{a} + {b}", f"{a} - {b}", f"({a}) * ({b})", f"({a}) / 4", f"abs({a})", f"min({a}, {b})", f"max({a}, {b})",
            f"({a} if {self.condition(0)} else {b})", f"({a}) ** 2", f"np.sqrt(abs({a}))", f"float({a})", f"{v}.sum()",
            f"({a}) // 3", f"({a}) % 5", f"-({a})", f"np.maximum({a}, {b})", f"int({self.random.choice(self.counters)})",
            self.number(0), self.number(0), self.special(a),
        )  # fmt: skip

    def special(self, a: str) -> str:
        """Numbers of rarer kinds."""
        c, v = self.random.choice(self.counters), self.random.choice(self.vectors)
        z = self.random.choice(self.complexes) if self.complexes else f"{v} * 1j"
        name = self.fresh("t")
        called = f"{self.random.choice(self.functions)}({a}, {self.number(0)})" if self.functions else a
        return self.pick(
            called, called, f"1 / ({c} - 2)", f"7 % {c}", f"n // ({c} - 1)", f"abs(({z})[{self.index()}])",
            f"({z})[{self.index()}].imag", f"sum({name} * 2 for {name} in range({c}))", f"max({name} for {name} in {v})",
            f"sum([{v}[{name}] for {name} in range(n)])", f"np.vdot({z}, {z}).real", f"{v}[{v} > {a}].sum()",
            f"np.count_nonzero({v} > 0)", f"{v}.argmax()", f"len({v})",
        )  # fmt: skip

    def condition(self, depth: int = 1) -> str:
        a, b = self.number(0), self.number(0)
        plain = f"{a} {self.pick('<', '<=', '>', '>=', '==', '!=')} {b}"
        if depth == 0 or self.pick(True, False):
            return plain
        return f"{plain} {self.pick('and', 'or')} {self.pick('', 'not ')}({self.condition(0)})"

    def vector(self, depth: int = 2) -> str:
        """An expression of a vector with n elements."""
        v = self.random.choice(self.vectors)
        if depth == 0:
            m = self.random.choice(self.matrices)
            return self.pick(v, v, f"{m}[{self.index()}]", f"{m}[:, {self.index()}]", f"{v}[::-1]", f"np.flip({v})")
        a, b = self.vector(depth - 1), self.vector(depth - 1)
        return self.pick(
            f"{a} + {b}", f"{a} - {b}", f"({a}) * 0.5", f"({a}) * ({b})", f"np.where({a} > {b}, {a}, {b})",
            f"np.abs({a})", f"np.minimum({a}, {b})", f"({a}) + {self.number(0)}", f"np.sqrt(np.abs({a}))",
            f"({a}).copy()", f"np.maximum({a}, 0)", f"({a}) / 3", f"({a}) // 2", self.vector(0),
        )  # fmt: skip

    # ---- statements

    def statement(self, level: int) -> None:
        v, m = self.random.choice(self.vectors), self.random.choice(self.matrices)
        c = self.random.choice(self.counters)
        kind = self.random.randrange(24)
        if kind == 20:
            self.rare(v, m, c)
        elif kind == 21:
            self.complex(level)
        elif kind == 22 and level < 3:
            self.caught(level)
        elif kind == 23 and level < 3:
            self.until(level)
        elif kind == 0:
            self.line(f"{self.element()} = {self.number()}")
        elif kind == 1:
            self.line(f"{self.element()} {self.pick('+', '-', '*')}= {self.number(1)}")
        elif kind == 2:
            self.line(f"{v}[1:] = ({self.vector(1)})[:-1]")
        elif kind == 3:
            self.line(f"{v}[1:-1] = 0.5 * ({v}[2:] + {v}[:-2])")
        elif kind == 4:
            self.line(f"{m}[1:-1, 1:-1] = ({m}[2:, 1:-1] + {m}[:-2, 1:-1] + {m}[1:-1, 2:] + {m}[1:-1, :-2]) / 4")
        elif kind == 5:
            self.line(f"{v} {self.pick('+', '-')}= {self.vector(1)}")
        elif kind == 6:
            row, value = f"{m}[{self.index()}]", self.vector(1)
            self.line(f"{row} = {value}{' + 0' * value.startswith(f'{m}[:, ')}")  # NumPy has elements there twice
        elif kind == 7:
            self.line(f"{m}[:, {self.index()}] += {self.vector(0)}")
        elif kind == 8:
            name = self.fresh("v")
            self.line(f"{name} = {self.vector()}")
            if level == 0:
                self.vectors.append(name)
        elif kind == 9:
            name = self.random.choice(self.numbers)
            self.line(f"{name} = {self.number()}")
        elif kind == 10:
            name = self.random.choice(self.numbers)
            self.line(f"{name} += {self.number(1)}")
        elif kind == 11:
            self.line(f"{v}[{v} > {self.number(0)}] = {self.pick('0', '1', self.number(0))}")
        elif kind == 12:
            lo = self.pick("0", "1", c, "-2", f"{c} - 1")
            self.line(f"{v}[{lo}:{self.pick('', c, 'n', '-1')}] = {self.number(1)}")
        elif kind == 13:
            row = self.fresh("r")
            self.line(f"{row} = {m}[{self.index()}]")
            self.line(f"{row}[{self.index()}] = {self.number(0)}")
        elif kind == 14:
            u, w = self.random.choice(self.vectors), self.random.choice(self.vectors)
            self.line(f"{u}, {w} = {w}, {u}")
        elif kind == 15:
            self.line(f"{self.random.choice(self.numbers)} = {self.vector(0)} @ {self.vector(0)} * 0.1")
        elif kind == 16:
            name = self.fresh("z")
            self.line(f"{name} = np.{self.pick('zeros', 'ones', 'empty')}(n)")
            self.line(f"{name}[:] = {self.vector(1)}")
            self.line(f"{v}[:] = {name}")
        elif level < 3 and kind == 17:
            self.line(f"if {self.condition()}:")
            self.block(level + 1, self.random.randint(1, 2))
            if self.pick(True, False):
                self.line("else:")
                self.block(level + 1, 1)
        elif level < 3 and 18 <= kind < 20:
            self.loop(level)
        else:
            self.line(f"{v}[{self.index()}] = {self.random.choice(self.numbers)}")

    def rare(self, v: str, m: str, c: str) -> None:
        w = self.random.choice(self.vectors)
        name = self.fresh("w")
        self.line(self.pick(
            f"np.add.at({v}, {self.pick('np.arange(n) % 3', 'np.arange(n) // 2', '[0, -1, 0]', f'{c}')}, {self.pick('1', w)})",
            f"np.{self.pick('add', 'multiply', 'maximum')}({v}, {w}, out={v}, casting='unsafe')",
            f"np.negative({w}, {v})", f"{v} = {v} + {w}[:{c}]", f"{v}[1:] = {w}", f"{v}[:{c}] += {w}[:{c}]",
            f"{v} = np.clip({v}, {self.number(0)}, 5)", f"{m} = {m} @ {m} / 50", f"{v} = {m} @ {w} * 0.1",
            f"{v} = {m}.{self.pick('sum', 'mean', 'max', 'min')}(axis={self.pick('0', '1')})", f"{m} = {m}.T",
            f"{v} = rng.{self.pick('normal(size=n)', 'random(n)', 'integers(0, 9, n)', 'permutation(n)')} + {v}",
            f"{self.random.choice(self.numbers)} = rng.random()", f"{v} = {v}[rng.permutation(n)]",
            f"{v}, {w} = {w}.copy(), {v}[:]", f"{name} = {v}.reshape(1, -1)[0]; {name}[0] = {self.number(0)}",
            f"{v} = np.array([{self.number(0)} for {name} in range(n)])", f"{v}[np.arange(n) % 2 == 0] *= 2",
            f"{v} = np.concatenate([{w}[{c}:], {w}[:{c}]])", f"{m} = np.outer({v}, {w})", f"{m}[{m} < 0] = {self.number(0)}",
            f"raise ValueError('found') if {self.condition(0)} else KeyError({c})" if self.pick(True, *[False] * 9)
            else f"assert {self.condition(0)} or n < 9",
            f"{v} = np.fromiter(({self.number(0)} for {name} in range(n)), float)", f"{v}[[0, -1]] = {v}[[-1, 0]]",
            f"{m}[np.triu_indices(n)] = 0", f"{v} = np.cumsum({v})", f"{m}[{c} % n, :] -= {m}[0, :] * {self.number(0)}",
        ))  # fmt: skip

    def complex(self, level: int) -> None:
        """A complex vector, new or changed."""
        v, c = self.random.choice(self.vectors), self.random.choice(self.counters)
        if not self.complexes or (level == 0 and self.pick(True, False)):
            name = self.fresh("c")
            self.line(
                f"{name} = {self.pick(f'{v} + 1j', f'np.exp(1j * {v})', f'{v} * (0.5 - 2j)', 'np.zeros(n, complex)')}"
            )
            if level == 0:
                self.complexes.append(name)
            return
        z, y = self.random.choice(self.complexes), self.random.choice(self.complexes)
        self.line(self.pick(
            f"{z} = {z} * {y} * 0.1 + 0.1j", f"{z}[{self.index()}] = {self.number(0)} + 1j", f"{z} *= 1j", f"{z}[0] += {y}[-1]",
            f"{z} = np.conj({y})", f"{z}[np.abs({y}) > 1.25] = {self.number(0)}", f"{v} = {z}.real + {z}.imag",
            f"{z}.real = {self.number(0)}", f"{z}[1:] = {y}[:-1] / 2", f"{z} += {self.number(0)}", f"{v} = np.abs({z})",
            f"{z} = np.where({v} > 0, {z}, {y}[::-1])", f"{z}[{c} % n] **= 2", f"{v} = np.angle({z})", f"{z} = np.sqrt({y})",
        ))  # fmt: skip

    def caught(self, level: int) -> None:
        self.line("try:")
        self.block(level + 1, self.random.randint(1, 2))
        self.line(
            f"except {self.pick('IndexError', 'ZeroDivisionError', 'ValueError', '(IndexError, ArithmeticError)')}:"
        )
        self.block(level + 1, 1)

    def until(self, level: int) -> None:
        """A loop to a condition on values."""
        name, v = self.random.choice(self.numbers), self.random.choice(self.vectors)
        count = self.fresh("i")
        self.line(f"{count} = 0")
        self.line(self.pick(
            f"while abs({name}) > 0.1:", "while True:", f"while {v}.sum() > {name}:", f"while np.abs({v}).max() > 1:"
        ))  # fmt: skip
        self.depth += 1
        self.line(f"{count} += 1")
        self.line(self.pick(f"{name} = {name} * 0.5", f"{v} = {v} * 0.5", f"{v} *= 0", f"{name} -= 1"))
        self.line(f"if {count} > {self.pick('20', 'n', 'k')}{self.pick('', f' or {self.condition(0)}')}:")
        self.line("    break")
        self.depth -= 1
        self.block(level + 1, 1)

    def inner(self) -> None:
        """A function made inside, which may read what is around it."""
        name = self.fresh("f")
        a = self.pick("p", "p", "a[0]", "x", "n")
        kind = self.random.randrange(4)
        if kind == 0:
            self.line(f"def {name}(p, q):")
            self.line(f"    return {self.pick(f'{a} + q', f'{a} * 0.5 - q', f'max({a}, q)', f'(p, q)[{a} > q]')}")
        elif kind == 1:
            self.line(f"def {name}(p, q=1):")
            self.line(f"    if {a} > q:")
            self.line("        return q")
            self.line(f"    return {self.pick('p', 'p / 2', 'abs(p)', 'p % 3')}")
        elif kind == 2:
            self.line(f"{name} = lambda p, q: {self.pick(f'{a} - q', 'p * q', f'{a} if p else q')}")
        else:
            self.line(f"def {name}(p, q):")
            self.line("    def values():")
            self.line(f"        for t in range({self.pick('3', 'k', 'n')}):")
            self.line(f"            yield {self.pick('t', 'p', 'a[t % n]')}")
            self.line(f"    return {self.pick('sum(values())', 'max(values())', 'sum(t * q for t in values())')}")
        self.functions.append(name)

    def block(self, level: int, count: int) -> None:
        self.depth += 1
        for _ in range(count):
            self.statement(level)
        self.depth -= 1

    def loop(self, level: int) -> None:
        name = self.fresh("i")
        if self.pick(True, True, True, False):
            c = self.random.choice(self.counters)
            self.line(
                f"for {name} in range({self.pick('n', 'n', 'k', '1, n', 'n - 1, -1, -1', f'{c}, n', '0, n, 2')}):"
            )
        else:
            self.line(f"{name} = 0")
            self.line(f"while {name} < n{self.pick('', f' and {self.condition(0)}')}:")
            self.depth += 1
            self.line(f"{name} += 1")
            self.depth -= 1
        self.counters.append(name)
        self.block(level + 1, self.random.randint(1, 3))
        if self.pick(True, False, False, False):
            self.depth += 1
            self.line(f"if {self.condition(0)}:")
            self.depth += 1
            self.line(self.pick("break", "continue"))
            self.depth -= 2
        self.counters.remove(name)

    def begin(self) -> None:
        if self.pick(True, False, False):
            self.inner()

    def written(self) -> str:
        text = "\n".join(self.lines)
        if "rng." in text:
            text = "    rng = np.random.default_rng(7)\n" + text
        return "def program(a, b, m, n, k, x):\n" + text + "\n"

    def text(self) -> str:
        self.begin()
        self.loop(0)
        for _ in range(self.random.randint(0, 2)):
            self.statement(0)
        if self.pick(True, False):
            self.loop(0)
        self.line(f"return {', '.join([*self.vectors[:4], *self.complexes[:3], *self.matrices, *self.numbers])}")
        return self.written()


def arguments(seed: int) -> list:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 8))
    dtype = _DTYPES[seed % len(_DTYPES)]
    a, b, m = (np.asarray(rng.normal(size=shape) * 4).astype(dtype) for shape in (n, n, (n, n)))
    if seed % 7 == 0:
        b = a  # one array under two names
    elif seed % 11 == 0:
        b = m[0]
    elif seed % 13 == 0:
        m = m.T
    return [a, b, m, n, int(rng.integers(0, 5)), float(rng.normal())]


def compiled(text: str, seed: int):
    """The function of a program's text, with a source that can be looked up."""
    name = f"<program {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict = {"np": np}
    exec(compile(text, name, "exec"), space)
    return space["program"]


def outcome(fn, args: list):
    given = copy.deepcopy(args)  # one array under two names stays one
    try:
        with np.errstate(all="ignore"):
            return fn(*given), given[:3]
    except Exception as error:
        return error, given[:3]


def scale_of(*outcomes) -> float:
    """The largest finite magnitude among some outcomes."""
    largest = 1.0
    for leaf in leaves_of(outcomes):
        x = np.asarray(leaf)
        if x.dtype.kind in "fc":
            largest = max(largest, float(np.abs(x[np.isfinite(x)]).max(initial=0.0)))
    return largest


def leaves_of(x) -> list:
    if isinstance(x, (tuple, list)):
        return [leaf for part in x for leaf in leaves_of(part)]
    return [] if isinstance(x, Exception) else [x]


def _close(got, want, tolerance: float) -> bool:
    """Integers are equal. Floats and complex numbers, Python's too, differ by at most ``tolerance``; what is infinite or
    no number is the same."""
    if np.asarray(want).dtype.kind not in "fc":
        return bool(np.array_equal(got, want))
    with np.errstate(all="ignore"):
        return bool(np.allclose(got, want, rtol=0, atol=tolerance, equal_nan=True))


def same(got, want, tolerance: float) -> bool:
    if isinstance(want, Exception):
        return isinstance(got, type(want))  # ours may be a subclass, which names the line and the remedy
    if isinstance(want, (tuple, list)):
        return (
            type(got) is type(want) and len(got) == len(want) and all(same(g, w, tolerance) for g, w in zip(got, want))
        )
    if type(got) is not type(want):
        return False
    if isinstance(want, (np.ndarray, np.generic)) and (got.dtype, got.shape) != (want.dtype, want.shape):
        return False
    return _close(got, want, tolerance)


def shared(found, identity: bool) -> list:
    """Which pairs of arrays among the results and the arguments share memory, and (``identity``) are one object."""
    arrays = [x for x in leaves_of(found) if isinstance(x, np.ndarray)]
    return [
        (i, j, identity and arrays[i] is arrays[j])
        for j in range(len(arrays)) for i in range(j) if np.shares_memory(arrays[i], arrays[j])
    ]  # fmt: skip


def bound(args: list, *outcomes) -> float:
    """How far results may lie from NumPy's: a thousand roundings of the least precise float among the arguments (what is
    float32 there may be a Python float in the end), relative to the largest number that is there. A program has some
    tens of statements on vectors of at most 7, and sums in another order differ by fewer roundings than elements."""
    single = any(x.dtype == np.float32 for x in args[:3])
    return 1000 * float(np.finfo(np.float32 if single else np.float64).eps) * scale_of(args, *outcomes)


def _numbers(found) -> np.ndarray:
    """All numbers of results and arguments, of errors none."""
    if isinstance(found, (tuple, list)):
        return np.concatenate([np.zeros(0), *map(_numbers, found)])
    if isinstance(found, (np.ndarray, np.generic, int, float, complex)):
        return np.ravel(np.abs(found)).astype(float)
    return np.zeros(0)


def steady(fn, args: list, want) -> bool:
    """Whether NumPy itself gives results within the bound where every float argument, or what calls and operators round,
    is one unit in its last place off. Where it does not (branches on numbers that are equal but for roundings,
    conversions to integers, roundings that later statements make large), results say nothing of the compiler. Nor do
    those that float32 does not hold and float64 does: in which order a sum is taken decides whether it is infinite."""
    wide = outcome(fn, [x.astype("f8") if getattr(x, "dtype", None) == "f4" else x for x in args])
    if np.isfinite(_numbers(wide)).all() and not np.isfinite(_numbers(want)).all():
        return False
    for towards in (np.inf, -np.inf):
        moved = [
            np.nextafter(x, x.dtype.type(towards)) if getattr(x, "dtype", None) in ("f4", "f8") else x for x in args
        ]
        for j in (1, 2):  # what shared memory still does
            for i in range(j):
                if np.shares_memory(args[i], args[j]):
                    moved[j] = args[j]
                    moved[i] = args[i]
        other = outcome(fn, moved)
        if not same(other, want, bound(args, want, other)):
            return False
    for seed in range(8):
        other = outcome(_rounded_otherwise(fn, seed), args)
        if not same(other, want, bound(args, want, other)):
            return False
    return True


class _Moved(ast.NodeTransformer):
    """Passes what calls and operators give through ``moved``."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(ast.Call(ast.Name("moved", ast.Load()), [node], []), node)

    visit_BinOp = visit_Call  # type: ignore[assignment]


def _rounded_otherwise(fn, seed: int):
    """``fn`` with every float that is a result of a call or an operator one unit in its last place off, or as it is, by
    chance. Those with few digits are exact, as a rule, and stay; so do views, which are no results of arithmetic."""
    rng = np.random.default_rng(seed)

    def moved(x):
        if isinstance(x, (complex, np.complexfloating)):
            return type(x)(complex(moved(x.real), moved(x.imag)))
        if isinstance(x, (float, np.floating)):
            return type(x)(_nudged(np.array(x), rng)[()])
        if type(x) is np.ndarray and x.dtype.kind in "fc" and x.flags.owndata and x.flags.writeable:
            for part in (x.real, x.imag) if x.dtype.kind == "c" else (x,):
                part[...] = _nudged(part, rng)
        return x

    tree = _Moved().visit(ast.parse(textwrap.dedent(inspect.getsource(fn))))
    space: dict = {"np": np, "moved": moved}
    exec(compile(ast.fix_missing_locations(tree), "<rounded otherwise>", "exec"), space)
    return space[fn.__name__]


def _nudged(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    with np.errstate(all="ignore"):
        exact = np.ldexp(x, 16) == np.rint(np.ldexp(x, 16))
        towards = rng.choice([-np.inf, np.inf], x.shape).astype(x.dtype)
        return np.where(exact | (rng.random(x.shape) < 0.5), x, np.nextafter(x, towards))


def difference(fn, jitted, args: list, identity: bool = False) -> str | None:
    """What is not as in NumPy in a call of ``jitted``. ``identity``: results that are an argument itself are told from
    views of all of it, which lifted loops do not."""
    want, got = outcome(fn, args), outcome(jitted, args)
    if not same(got, want, bound(args, want)) and steady(fn, args, want):
        return f"arguments {args}\ngot  {got}\nwant {want}"
    mine, theirs = shared(got, identity), shared(want, identity)
    if mine != theirs and same(got, want, bound(args, want)):
        return f"arguments {args}\nshared {mine}\nwant   {theirs}"
    return None


def differs(seed: int) -> str | None:
    """The text of a program that does not do what NumPy does, with both outcomes."""
    text = Program(seed).text()
    fn, args = compiled(text, seed), arguments(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jitted = mlirfuse.jit(fn)
        for _ in range(2):
            found = difference(fn, jitted, args)
            if found is not None:
                return f"seed {seed}\n{text}\n{found}"
    return None


def run(differs) -> None:
    """The programs of the seeds from ``FIRST`` to ``LAST``: those that differ, and at the end how many did and how many
    warned, by the warning's words."""
    first, last = map(int, sys.argv[1:3])
    told: collections.Counter[str] = collections.Counter()
    wrong = 0
    real = fallback.warn
    fallback.warn = lambda message: told.update([re.sub(r"\n.*|op by op: ", "", str(message), flags=re.DOTALL)])  # type: ignore[assignment]
    try:
        for seed in range(first, last):
            found = differs(seed)
            if found is not None:
                wrong += 1
                print(found, flush=True)
    finally:
        fallback.warn = real
    for message, count in told.most_common():
        print(f"{count} warn: {message}")
    print(f"{last - first} programs, {wrong} differ")


if __name__ == "__main__":
    run(differs)
