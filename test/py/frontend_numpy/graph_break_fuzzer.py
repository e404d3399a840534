"""Random NumPy programs without loops beside NumPy: branches on values, sizes that values tell, masks, functions of
NumPy's without a kernel, arrays made inside, writes in place, views and aliases. They run in pieces.

By hand, thousands: ``python test/py/fuzz.py COUNT FIRST graph_break_fuzzer``. A program that differs is printed.
"""

from __future__ import annotations

import warnings

from numpy_program_fuzzer import Program, arguments, compiled, difference, run

import mlirfuse
from mlirfuse.frontend.numpy.graph_breaks import program as pieces

CALLS = [  # of vectors v and w, with a vector as the result
    "np.sort({v})", "np.cumsum({v})", "np.interp({v}, np.sort({w}), {w})", "np.convolve({v}, {w}, 'same')",
    "np.gradient({v}) if n > 1 else {v}", "np.searchsorted(np.sort({v}), {w})", "np.argsort({v}, kind='stable')[::-1]",
    "np.abs(np.fft.fft({v}))", "np.fft.ifft(np.fft.fft({v}) * 2).real", "np.roll({v}, {c})", "np.insert({v}, 0, 1)[1:]",
    "np.delete(np.append({v}, 1), 0)", "np.where(np.isin({v}, {w}), {v}, 0)", "np.unwrap({v})", "np.nan_to_num({v})",
    "np.piecewise({v}, [{v} < 0], [lambda t: -t, lambda t: t + 1])", "np.polyval([1, 2], {v})", "np.copy({v})",
    "np.linalg.solve({m} @ {m}.T + 50 * np.eye(n), {v})", "np.apply_along_axis(np.sum, 0, {m}) + {v}",
    "np.linalg.eigvalsh({m} + {m}.T)", "np.einsum('ii->i', {m}) * 1", "np.diag({m}) + {v}",
]  # fmt: skip
NUMBERS = [
    "np.median({v})", "np.percentile({v}, 30)", "np.linalg.norm({v})", "np.quantile({v}, 0.7)", "float({v}.sum())",
    "int(({v} > {x}).sum())", "{v}[{v} > {x}].sum()", "np.count_nonzero({v} > {x})", "{v}.argmax()", "np.unique({v}).size",
    "len(np.nonzero({v})[0])", "np.trace({m})", "np.linalg.det({m} / 8)", "{v}.item(0)", "max({v}[0], {v}[-1])",
    "abs({v}[0])", "np.ptp({v})", "np.einsum('ii', {m})", "np.corrcoef({v}, {w})[0, 0]", "bool({v}.any())",
]  # fmt: skip
CONDITIONS = [
    "{v}.sum() > {x}", "np.any({v} < 0)", "{v}[0] > {v}[-1]", "np.all({v} > {x})", "{v}.max() - {v}.min() > 3",
    "isinstance({v}, np.ndarray) and {v}.mean() > 0.05", "not np.allclose({v}, {w})", "np.median({v}) > {x}",
    "int({v}.sum()) % 2 == 0", "type({v}) is np.ndarray", "n > 3", "{x} > 0 or {v}.min() < -2",
]  # fmt: skip


class GraphBreakFuzzProgram(Program):
    """As :class:`Program`, without loops, and with what ends a piece."""

    def fill(self, text: str) -> str:
        return text.format(
            v=self.random.choice(self.vectors), w=self.random.choice(self.vectors), m=self.random.choice(self.matrices),
            x=self.random.choice([*self.numbers, "0.5", "-1"]), c=self.random.choice(["1", "k", "n // 2"]),
        )  # fmt: skip

    def index(self) -> str:
        return self.pick("0", "-1", "k % n", "n - 1", "n // 2", "2", "k")

    def element(self) -> str:
        return f"{self.random.choice(self.vectors)}[{self.index()}]"

    def number(self, depth: int = 1) -> str:
        if depth == 0:
            return self.pick(self.element(), self.random.choice(self.numbers), "2", "0.5", "k")
        a, b = self.number(0), self.number(0)
        call = self.fill(self.random.choice(NUMBERS))
        return self.pick(call, call, f"{a} + {b}", f"({a}) * 0.5", f"float({a})", f"np.maximum({a}, {b})", f"-({a})")

    def statement(self, level: int) -> None:
        v, m = self.random.choice(self.vectors), self.random.choice(self.matrices)
        kind = self.random.randrange(24)
        if kind <= 3:
            name = self.fresh("v")
            self.line(f"{name} = {self.fill(self.random.choice(CALLS))}")
            if level == 0:
                self.vectors.append(name)
        elif kind <= 5:
            name = self.fresh("x") if level == 0 else self.random.choice(self.numbers)
            self.line(f"{name} = {self.number()}")
            if name not in self.numbers:
                self.numbers.append(name)
        elif kind <= 8 and level < 3:
            self.line(f"if {self.fill(self.random.choice(CONDITIONS))}:")
            self.block(level + 1, self.random.randint(1, 2))
            if self.pick(True, False):
                self.line("else:")
                self.block(level + 1, 1)
        elif kind == 9:
            self.line(f"{v}[{v} > {self.number(0)}] = {self.pick('0', self.number(0))}")
        elif kind == 10:
            w = self.random.choice(self.vectors)
            self.line(f"{v}[{v} > {w}] = {w}[{v} > {w}]")
        elif kind == 11:
            name = self.fresh("z")
            self.line(f"{name} = np.zeros(int(({v} > {self.number(0)}).sum()) + 2)")
            self.line(f"{name}[1:] = {self.number(0)}")
            self.line(f"{self.random.choice(self.numbers)} = {name}.sum()")
        elif kind == 12:
            self.line(f"{v} {self.pick('+', '-', '*')}= {self.pick(self.vector(0), self.number(0))}")
        elif kind == 13:
            self.line(
                f"{self.pick(f'{v}[1:]', f'{m}[{self.index()}]', f'{m}[:, 0]', f'{v}[::2]')} {self.pick('', '+')}= 1"
            )
        elif kind == 14:
            row = self.fresh("r")
            self.line(f"{row} = {self.pick(f'{m}[{self.index()}]', f'{v}[::-1]', f'{m}.T[0]', f'{m}.reshape(-1)')}")
            self.line(f"if {self.fill(self.random.choice(CONDITIONS))}:")
            self.line(f"    {row}[0] = {self.number(0)}")
        elif kind == 15:
            self.line(f"np.fill_diagonal({m}, {self.number(0)})")
        elif kind == 16:
            self.line("try:")
            self.line(f"    {v} = np.linalg.solve({m}, {v}) * 1e-3")
            self.line("except np.linalg.LinAlgError:")
            self.line(f"    {v} = {v} * 2")
        elif kind == 17:
            self.line(f"assert np.all(np.isfinite({v})), 'not finite'")
        elif kind == 18:
            name = self.fresh("v")
            self.line(f"{name} = np.{self.pick('zeros(n)', 'ones(n)', 'arange(n, dtype=float)', 'full(n, 2.5)')}")
            if level == 0:
                self.vectors.append(name)
        elif kind == 19:
            w = self.random.choice(self.vectors)
            self.line(self.pick(
                f"np.put({v}, [0], {self.number(0)})", f"np.copyto({v}, {w}, 'unsafe')", f"{v}.sort()",
                f"np.putmask({v}, {v} > {self.number(0)}, 1)", f"np.add({v}, {w}, out={v}, casting='unsafe')",
            ))  # fmt: skip
        elif kind == 21:
            self.rare(v, m, "k")
        elif kind == 22:
            self.complex(level)
        elif kind == 23 and level < 3:
            self.caught(level)
        else:
            name = self.fresh("v")
            self.line(f"{name} = {self.vector()}")
            if level == 0:
                self.vectors.append(name)

    def text(self) -> str:
        self.begin()
        for _ in range(self.random.randint(2, 7)):
            self.statement(0)
        self.line(f"return {', '.join([*self.vectors[:5], *self.complexes[:3], *self.matrices, *self.numbers])}")
        return self.written()


def differs(seed: int) -> str | None:
    """The text of a program that does not do what NumPy does, on arguments of three seeds, twice each."""
    text = GraphBreakFuzzProgram(seed).text()
    fn = compiled(text, seed)
    small, pieces.SMALL = pieces.SMALL, 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            jitted = mlirfuse.jit(fn)
            for other in (seed, seed + 5, seed + 10, seed):
                found = difference(fn, jitted, arguments(other), True)
                if found is not None:
                    return f"seed {seed}\n{text}\n{found}"
    finally:
        pieces.SMALL = small
    return None


if __name__ == "__main__":
    run(differs)
