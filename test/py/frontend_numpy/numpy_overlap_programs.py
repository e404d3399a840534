"""Random programs that write arrays onto memory that they read: copies between views of one array, updates in place,
exchanges, ``out=``, arguments that share memory, in straight-line code and in loops. A statement reads all before it
writes any: the reference copies what is assigned, since NumPy does not in one case (``a[::2] = a[:n]``).

By hand, thousands: ``python test/py/fuzz.py COUNT FIRST numpy_overlap_programs``.
"""

from __future__ import annotations

import random
import re

import numpy as np
from beside_numpy import Case, main

_DTYPES = ["f8", "f8", "f4", "i8", "i4", "u1", "c16", "?"]


class _Program:
    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.dtype = self.pick(*_DTYPES)
        self.n = self.pick(6, 8, 33, 64, 1000)
        self.side = self.pick(4, 6, 17, 40)
        self.vectors, self.squares = ["a"], ["m"]
        self.share = self.pick("none", "none", "same", "shifted", "reversed", "transposed")
        if self.share != "none" or self.pick(True, False):
            self.vectors.append("b")
            self.squares.append("o")

    def pick(self, *choices):
        return self.random.choice(choices)

    def cut(self, n: int) -> list[str]:
        """Slices that give as many elements of n as each other."""
        k = self.random.randrange(1, 4)
        kind = self.random.randrange(5)
        if kind == 0:
            return [":", "::-1"]
        if kind == 1:
            return [f"{k}:", f":-{k}", f":{k - 1 or ''}:-1" if k > 1 else f"{k}:", f"-{k + 1}::-1"]
        if kind == 2:
            return ["::2", f":{(n + 1) // 2}", f"{n // 2}:", "::-2", f"{n // 2}::-1" if n % 2 == 0 else "::2"][:4]
        if kind == 3:
            return [f"{k}:-{4 - k}", f"{4 - k}:-{k}", "2:-2", f"-{k + 1}:{3 - k if k < 4 else ''}:-1"]
        return [f"{j}:{j + n // 3}" for j in (0, 1, n // 3, n - n // 3)]

    def same(self, n: int, cuts: list[str]) -> list[str]:
        sizes = [len(eval(f"x[{c}]", {"x": range(n)})) for c in cuts]
        return [c for c, size in zip(cuts, sizes) if size == sizes[0]]

    def views(self, count: int) -> list[str]:
        """Views of one shape, of one array or several."""
        if self.pick(True, False):
            cuts = self.same(self.n, self.cut(self.n))
            if self.share not in ("none", "same") and any("2" in c.rpartition(":")[2] for c in cuts):
                cuts = [":", "::-1"]  # NumPy itself runs where arguments overlap, and is wrong there
            return [f"{self.random.choice(self.vectors)}[{self.random.choice(cuts)}]" for _ in range(count)]
        rows, columns = (self.same(self.side, self.cut(self.side)) for _ in range(2))
        out = []
        square = list(self.squares)
        turns = rows[0] == columns[0] and len(rows) == len(columns)
        for _ in range(count):
            name, row, column = self.random.choice(square), self.random.choice(rows), self.random.choice(columns)
            text = f"{name}[{row}, {column}]"
            if turns and self.pick(True, False):
                text = f"{name}[{row}, {column}].T"
            elif turns and self.pick(True, False):
                text = f"{name}.T[{row}, {column}]"
            out.append(text)
        if count > 1 and self.pick(True, False, False):
            out[1:] = [f"{v}[0]" if v.startswith(("m[", "o[")) and not v.endswith("T") else v for v in out[1:]]
        return out

    def statement(self) -> str:
        kind = self.random.randrange(12)
        x, y, z = self.views(3)
        if x.endswith("[0]"):
            x = x[:-3]
        if kind < 5:
            return f"{x} = COPY({y})"
        if kind == 5:
            return f"{x} {self.pick('|', '&') if self.dtype == '?' else self.pick('+', '-', '*')}= {y}"
        if kind == 6 and not y.endswith("[0]"):
            return f"{x}, {y} = {self.pick(f'{y}.copy(), {x}.copy()', f'{y} | {y}, {x} | {x}' if self.dtype == '?' else f'{y} + 0, {x} + 0')}"
        if kind == 6:
            return f"t, u = {y}, {x}; {x} = COPY(t); {y} = COPY(u)" if not y.endswith("[0]") else f"{x} = COPY({y})"
        if kind == 7:
            return f"np.add({y}, {z}, out={x})"
        if kind == 8:
            return f"t = {y}.copy(); {x} = COPY({z}); {x} = t"
        if kind == 9:
            return f"t = {y}; {x} = COPY({z}); {x} = COPY(t)"
        if kind == 10:
            return f"{x}, {z} = TUPLE({y}, {x})" if not z.endswith("[0]") else f"{x} = COPY({z})"
        v, m = self.random.choice(self.vectors), self.random.choice(self.squares)
        return self.pick(
            f"{v}[i] = {v}[j]", f"{v}[i] = COPY({v})", f"{v}[:] = {v}[j]", f"np.add.at({v}, i, {v}[j])",
            f"{m}[:] = np.sort({m}.T, 0)", f"{m}[:] = {m} @ {m}.T", f"{v}[::-1] = np.sort({v})", f"{m}[0] = {m}.max(0)",
            f"{v}[1:] = {v}[:-1].max()", f"{v}.sort()"
        )  # fmt: skip

    def text(self) -> str:
        arguments = ", ".join([*self.vectors, *self.squares, "i", "j"])
        lines = [self.statement() for _ in range(self.random.randrange(1, 4))]
        indent = "    "
        self.products = sum(line.count("@") for line in lines)
        if self.products:  # sums of what is not negative: nothing cancels
            lines = [line.replace(" -= ", " += ") for line in lines]
        if self.pick(True, False, False):
            lines = ["for k in range(3):", *(indent + line for line in lines)]
            self.products *= 3
        if self.pick(True, False, False):
            lines.append(f"return {self.pick('a', 'm', 'm.T', 'a[::-1]', 'm + m')}")
        return f"def f({arguments}):\n" + "".join(f"{indent}{line}\n" for line in lines)

    def ulps(self) -> int:
        """How far elements may lie from NumPy's: a matrix product sums ``side`` floats in an order of its own, which
        adds ``side`` roundings to twice those of its operand, ``m @ m.T``."""
        return self.side * 2**self.products if self.products else 0

    def make(self) -> tuple:
        rng = np.random.default_rng(self.n)
        n, side = self.n, self.side

        def filled(count: int) -> np.ndarray:
            return (rng.integers(0, 2 if self.dtype == "?" else 9, count) + 0).astype(self.dtype)

        base, square = filled(n + 3), filled((side + 3) ** 2).reshape(side + 3, side + 3)
        a, m = base[:n], square[:side, :side]
        if self.share == "none":
            a, m = a.copy(), m.copy()
        seconds = {
            "none": (filled(n), filled(side * side).reshape(side, side)), "same": (a, m), "shifted": (base[2 : n + 2], square[1:side + 1, 2:side + 2]),
            "reversed": (a[::-1], m[::-1]), "transposed": (base[3:], m.T),
        }[self.share]  # fmt: skip
        vectors = [a, *seconds[:1]][: len(self.vectors)]
        squares = [m, *seconds[1:]][: len(self.squares)]
        return (*vectors, *squares, rng.permutation(n), rng.permutation(n))


def generate(seed: int) -> Case:
    """The program of a seed."""
    program = _Program(seed)
    text = program.text()
    reference = re.sub(
        r"(\S+\[.*\]\S*), (\S+\[.*\]\S*) = TUPLE\((.*)\)",
        r"p, q = (\3); \1 = np.copy(p); \2 = np.copy(q)",  # each is read when it is its turn
        text,
    )
    return Case(
        text.replace("COPY", "").replace("TUPLE", ""),
        program.make,
        ulps=program.ulps(),
        reference=reference.replace("COPY", "np.copy"),
        strides=False,
    )


if __name__ == "__main__":
    main(generate)
