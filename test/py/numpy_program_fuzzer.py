"""Random NumPy programs with loops, branches on values, arrays made inside, writes in place, views and aliases, beside
NumPy: types, shapes, results, what is written into the arguments, and exceptions are compared.

By hand, thousands: ``PYTHONPATH=test/py python -m numpy_program_fuzzer FIRST LAST``. A program that differs is printed.
"""

from __future__ import annotations

import copy
import linecache
import random
import sys
import warnings

import numpy as np

import mlirfuse

_DTYPES = ["float64", "float64", "float32", "int64", "int32"]


class Program:
    """One program's text, made from a seed. ``a`` and ``b`` are vectors of one length, ``m`` a square matrix, ``n`` its
    extent, ``k`` a small int, ``x`` a float."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.vectors, self.matrices, self.numbers, self.counters = ["a", "b"], ["m"], ["x"], ["k"]
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
            self.number(0), self.number(0),
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
        kind = self.random.randrange(20)
        if kind == 0:
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
            self.line(f"{m}[{self.index()}] = {self.vector(1)}")
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
        elif level < 3 and kind >= 18:
            self.loop(level)
        else:
            self.line(f"{v}[{self.index()}] = {self.random.choice(self.numbers)}")

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

    def text(self) -> str:
        self.loop(0)
        for _ in range(self.random.randint(0, 2)):
            self.statement(0)
        if self.pick(True, False):
            self.loop(0)
        self.line(f"return {', '.join([*self.vectors[:4], *self.matrices, *self.numbers])}")
        return "def program(a, b, m, n, k, x):\n" + "\n".join(self.lines) + "\n"


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


def _close(got, want) -> bool:
    kind = np.asarray(want).dtype
    if kind.kind != "f":
        return bool(np.array_equal(got, want))
    # A sum in another order, carried through a program: relative to the largest that is there.
    tolerance = 1e-3 if kind == np.float32 else 1e-7
    with np.errstate(all="ignore"):
        finite = np.abs(np.asarray(want)[np.isfinite(want)])
        scale = finite.max(initial=1.0)
        return bool(np.allclose(got, want, rtol=tolerance, atol=tolerance * float(scale), equal_nan=True))


def same(got, want) -> bool:
    if isinstance(want, Exception):
        return type(got) is type(want)
    if isinstance(want, (tuple, list)):
        return type(got) is type(want) and len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, (np.ndarray, np.generic)):
        return type(got) is type(want) and got.dtype == want.dtype and got.shape == want.shape and _close(got, want)
    return type(got) is type(want) and _close(got, want)


def differs(seed: int) -> str | None:
    """The text of a program that does not do what NumPy does, with both outcomes."""
    text = Program(seed).text()
    fn, args = compiled(text, seed), arguments(seed)
    want = outcome(fn, args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jitted = mlirfuse.jit(fn)
        for _ in range(2):
            got = outcome(jitted, args)
            if not same(got, want):
                return f"seed {seed}\n{text}\narguments {args}\ngot  {got}\nwant {want}"
    return None


def main() -> None:
    first, last = map(int, sys.argv[1:3])
    wrong = 0
    for seed in range(first, last):
        found = differs(seed)
        if found is not None:
            wrong += 1
            print(found, flush=True)
    print(f"{last - first} programs, {wrong} differ")


if __name__ == "__main__":
    main()
