"""Random programs over NumPy arrays: made, run compiled and plain, compared within a bound, and reduced where they
differ.

A program is a list of Python statements, so that what fails can be read and run. The same statements run

- plainly, in NumPy: what results and changed arguments must look like;
- in float64, with every result of a statement changed at random by a few roundings of its type (and the operands of
  reductions, too): how far these runs scatter says how far apart two right answers may be.

The bound of an element is ``SCATTER`` times the largest distance of the scattered runs, plus twice NumPy's own distance
from float64, plus four roundings of the result. A few runs may miss a rounding of one element (of the divisor of a
remainder, say): a result is wrong where ``MANY`` do not come as far. An integer or a bool must be NumPy's wherever the scattered runs all
agree with it. What follows from a decision about a half-precision value (a comparison, ``floor``, a maximum's position)
is compared in type and shape only: compiled code rounds such values less often than NumPy does, and on so coarse a grid
equal values are no accident. So is what follows from a decision about a deviation of equal numbers: 0, or a rounding.

From a shell: ``python random_programs.py FIRST COUNT`` tries seeds and prints what fails.
"""

from __future__ import annotations

import copy
import linecache
import math
import random
import re
import sys
import traceback
import warnings
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

SCATTER = 8
RUNS, MANY = 4, 100
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
TYPES |= {f"{k}{b}": np.dtype(f"{'int' if k == 'i' else 'uint'}{b}").type for k in "iu" for b in (8, 16, 32, 64)} | {
    "b1": np.bool_
}
WIDE = {name: np.float64 if name in ("f16", "bf16", "f32") else type_ for name, type_ in TYPES.items()}
NAMES = {np.dtype(t): n for n, t in TYPES.items()}
UNIT = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}
TINY = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149, "f64": 0.0}
LARGEST = {"f16": 200.0, "bf16": 1e4, "f32": 1e5, "f64": 1e6}


def type_name(x) -> str:
    return NAMES[np.asarray(x).dtype]


def is_float(x) -> bool:
    return type_name(x) in UNIT


# ----------------------------------------------------------------------------------------------------------------
# arguments


@dataclass
class Arg:
    """An array argument: extents by name, dtype, and how it lies in memory; ``same`` names an argument whose array it
    is, ``over`` one whose buffer it is another view of. A number has ``number`` set to its Python or NumPy type."""

    name: str
    dims: tuple[str, ...] = ()
    dtype: str = "f32"
    same: str | None = None
    over: str | None = None
    number: str | None = None


@dataclass
class Buffer:
    """Memory of an array and a view of it, in elements."""

    values: np.ndarray
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    odd: bool = False
    writeable: bool = True


def lay_out(rng: random.Random, shape, free: bool) -> tuple[tuple[int, ...], int, int, bool]:
    """Strides, offset and number of elements of a buffer for an array of this shape, and whether elements repeat."""
    order = list(range(len(shape)))
    step, sign, gap, repeat = [1] * len(shape), [1] * len(shape), 0, set()
    kind = rng.random() if free else 0.0
    if kind > 0.55:
        if rng.random() < 0.5:
            rng.shuffle(order)
        for d in range(len(shape)):
            r = rng.random()
            if r < 0.15:
                step[d] = rng.choice((2, 3))
            elif r < 0.3:
                sign[d] = -1
            elif r < 0.36:
                repeat.add(d)
        gap = rng.choice((0, 0, 1, 3))
    strides, running = [0] * len(shape), 1
    for d in reversed(order):
        if d in repeat:
            continue
        running *= step[d]
        strides[d] = running * sign[d]
        running = running * max(shape[d], 1) + gap
    low = sum((n - 1) * s for n, s in zip(shape, strides) if s < 0 and n > 0)
    high = sum((n - 1) * s for n, s in zip(shape, strides) if s > 0 and n > 0)
    lead = rng.choice((0, 0, 1, 2)) if free else 0
    return tuple(strides), lead - low, lead - low + high + 1, any(shape[d] > 1 for d in repeat)


def random_values(rng: random.Random, dtype: str, count: int, special: bool) -> np.ndarray:
    g = np.random.default_rng(rng.getrandbits(32))
    if dtype == "b1":
        return g.random(count) < 0.5
    if dtype[0] in "iu":
        info = np.iinfo(TYPES[dtype])
        low, high = (0 if dtype[0] == "u" else -9), 10
        values = g.integers(low, high, count).astype(TYPES[dtype])
        if special and count:
            values[g.random(count) < 0.1] = info.min
            values[g.random(count) < 0.1] = info.max
        return values
    values = g.standard_normal(count).astype(TYPES[dtype])
    if special and count:
        for v in (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0):
            values[g.random(count) < 0.04] = v
    return values


def make_call(
    rng: random.Random, args: list[Arg], sizes: dict[str, int], special: bool, free: bool = True
) -> dict[str, object]:
    """Buffers and numbers for the arguments of one call."""
    out: dict[str, object] = {}
    for a in args:
        if a.number:
            out[a.name] = random_number(rng, a.number)
            continue
        shape = tuple(sizes[d] for d in a.dims)
        if a.same:
            out[a.name] = a.same
            continue
        if a.over:
            base = out[a.over]
            shift = rng.choice((0, 1))
            limit = len(base.values)
            strides = np.empty(shape).strides
            strides = tuple(s // 8 for s in strides)
            reach = sum((n - 1) * s for n, s in zip(shape, strides)) if 0 not in shape else 0
            if shift + reach < limit:
                out[a.name] = ("over", a.over, shape, strides, shift)
                continue
        strides, offset, count, repeats = lay_out(rng, shape, free)
        out[a.name] = Buffer(
            random_values(rng, a.dtype, count, special),
            shape,
            strides,
            offset,
            free and rng.random() < 0.06,
            not repeats,
        )
    return out


def random_number(rng: random.Random, kind: str):
    value = rng.choice((0, 1, 2, 3, 5)) if kind in ("int", "i32") else rng.choice((0.5, 1.0, 2.0, -1.5, 0.25, 3.0))
    return {"int": int, "float": float, "bool": bool, "f32": np.float32, "f64": np.float64, "i32": np.int32}[kind](
        value
    )


def instantiate(call: dict[str, object], wide: bool) -> dict[str, object]:
    """The arguments of a call, in memory of their own; ``wide``: floats as float64."""
    out, memory = {}, {}
    for name, what in call.items():
        if isinstance(what, str):
            out[name] = out[what]
        elif isinstance(what, Buffer):
            values = what.values
            if wide and NAMES[values.dtype] in UNIT:
                values = values.astype(np.float64)
            if what.odd and not wide:
                raw = np.empty(values.nbytes + 1, np.uint8)
                raw[1:] = values.view(np.uint8)
                held = raw[1:].view(values.dtype)
            else:
                held = values.copy()
            memory[name] = held
            out[name] = view_of(held, what.shape, what.strides, what.offset, what.writeable)
        elif isinstance(what, tuple):
            _, owner, shape, strides, offset = what
            out[name] = view_of(memory[owner], shape, strides, offset, True)
        else:
            out[name] = (np.float64(what) if isinstance(what, np.floating) else what) if wide else what
    return out


def view_of(memory, shape, strides, offset, writeable):
    item = memory.itemsize
    if 0 in shape:
        return memory[:0].reshape(shape)
    return np.lib.stride_tricks.as_strided(
        memory[offset:], shape, tuple(s * item for s in strides), writeable=writeable
    )


# ----------------------------------------------------------------------------------------------------------------
# programs


@dataclass
class Statement:
    """``kind``: "op" (a new array), "reduce" (one whose roundings depend on its operands' sizes), "view" (or an exact
    op) or "write"."""

    text: str
    target: str
    kind: str

    @property
    def code(self):
        return compile(self.text, "<statement>", "exec")

    def uses(self) -> set[str]:
        return set(re.findall(r"\b[xsv]\d+\b", self.text))


@dataclass
class RandomProgram:
    seed: int
    args: list[Arg]
    statements: list[Statement]
    returns: list[str]
    sizes: dict[str, int]
    special: bool
    calls: list[dict] = field(default_factory=list)

    def source(self) -> str:
        body = "".join(f"    {s.text}\n" for s in self.statements)
        return f"def program({', '.join(a.name for a in self.args)}):\n{body}    return {', '.join(self.returns)}{',' if len(self.returns) == 1 else ''}\n"

    def function(self):
        name = f"<random program {self.seed}>"
        source = self.source()
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        scope = {"np": np} | TYPES
        exec(compile(source, name, "exec"), scope)
        return scope["program"]

    def show(self, call: dict) -> str:
        lines = [f"# seed {self.seed}", self.source()]
        for name, what in instantiate(call, False).items():
            if isinstance(what, np.ndarray):
                lines.append(
                    f"# {name}: {what.dtype}{what.shape} strides {tuple(s // what.itemsize for s in what.strides)} address % 64 = {what.ctypes.data % 64}"
                )
            else:
                lines.append(f"# {name} = {what!r}")
        return "\n".join(lines)


class Maker:
    """Makes one program, running it as it grows: what NumPy refuses, or what grows too large, is not taken in.
    ``large``: on arrays of tens of thousands of elements and more."""

    def __init__(self, seed: int, length: tuple[int, int] = (5, 40), special: bool | None = None, large: bool = False):
        self.rng = rng = random.Random(seed)
        self.seed = seed
        self.special = rng.random() < 0.12 if special is None else special
        self.most = (150_000, 400_000) if large else (6000, 20_000)  # elements of an argument, and of a value
        self.sizes = {n: rng.choice((64, 129, 300, 700) if large else (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)) for n in "ABC"}
        self.args = self.arguments()
        self.first = make_call(rng, self.args, self.sizes, self.special)
        self.env: dict[str, object] = {"np": np} | TYPES
        self.env.update(instantiate(self.first, False))
        self.arrays = [a.name for a in self.args if not a.number]
        self.numbers = [a.name for a in self.args if a.number]
        self.statements: list[Statement] = []
        self.length = rng.randint(*length)
        self.halves = rng.random() < 0.15

    def arguments(self) -> list[Arg]:
        rng, out = self.rng, []
        main = rng.choices(("f32", "f64", "f16", "bf16", "i32", "i64", "mixed"), (50, 14, 6, 6, 6, 4, 14))[0]
        everything = list(TYPES)
        for k in range(rng.randint(1, 4)):
            rank = rng.choices((0, 1, 2, 3, 4), (4, 25, 45, 20, 6))[0]
            dims = tuple(rng.choice("ABC") for _ in range(rank))
            while math.prod(self.sizes[d] for d in dims) > self.most[0]:
                dims = dims[1:]
            dtype = main if main != "mixed" else rng.choice(everything)
            if rng.random() < 0.12:
                dtype = rng.choice(("f32", "i32", "b1", "f64", "i64", "u8"))
            arg = Arg(f"x{k}", dims, dtype)
            earlier = [a for a in out if not a.number]
            if earlier and rng.random() < 0.06:
                twin = rng.choice(earlier)
                arg = Arg(f"x{k}", twin.dims, twin.dtype, same=twin.name if rng.random() < 0.5 else None)
                if arg.same is None and twin.same is None and twin.over is None:
                    arg.over = twin.name
            out.append(arg)
        out += [
            Arg(f"s{k}", number=rng.choice(("int", "float", "float", "f32", "f64", "i32")))
            for k in range(rng.choices((0, 1, 2), (70, 22, 8))[0])
        ]
        return out

    def make(self) -> RandomProgram:
        tries = 0
        while len(self.statements) < self.length and tries < 12 * self.length:
            tries += 1
            self.step()
        mine = [s.target for s in self.statements if s.target.startswith("v")] or self.arrays
        rng = self.rng
        unused = [
            n for k, n in enumerate(mine) if not any(n in s.uses() for s in self.statements if s.target != n)
        ] or mine
        returns = rng.sample(unused, min(len(unused), rng.randint(1, 5)))
        returns += [rng.choice(mine + self.arrays) for _ in range(rng.choices((0, 1, 2), (50, 35, 15))[0])]
        program = RandomProgram(self.seed, self.args, self.statements, returns, self.sizes, self.special)
        program.calls = [self.first, make_call(rng, self.args, self.sizes, self.special)]
        other = dict(self.sizes)
        for n in "ABC":
            if rng.random() < 0.6:
                other[n] = rng.choice((1, 2, 3, 5, 6, 9, 16, 31, 64) if rng.random() < 0.93 else (0,))
        if max((math.prod(other[d] for d in a.dims) for a in self.args), default=0) <= 20000:
            program.calls.append(make_call(rng, self.args, other, self.special))
        program.calls.append(make_call(rng, self.args, self.sizes, self.special, free=False))
        return program

    # ---- one statement

    def step(self) -> None:
        rng = self.rng
        template = rng.choices(_TEMPLATES, _WEIGHTS)[0]
        created = template(self)
        if not created:
            return
        text, kind = created
        new = f"v{len(self.statements)}"
        target = text.split("#")[0].split("[")[0].split(" ")[0] if kind == "write" else new
        statement = Statement(text if kind == "write" else f"{new} = {text}", target, kind)
        saved = {k: v.copy() for k, v in self.env.items() if isinstance(v, np.ndarray)} if kind == "write" else {}
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                exec(statement.code, self.env)
                good = self.acceptable(self.env[target], kind) and (kind == "write" or self.promotes_as_half(statement))
            except Exception:
                good = False
        if good:
            self.statements.append(statement)
            if kind != "write":
                self.arrays.append(new)
            return
        if kind == "write":
            for k, v in saved.items():
                if self.env[k].flags.writeable:
                    self.env[k][...] = v
        else:
            self.env.pop(target, None)

    def promotes_as_half(self, statement: Statement) -> bool:
        """Whether NumPy promotes bfloat16 here as float16, which compiled functions always do: not beside a Python
        float, for one."""
        types = {
            n: type_name(self.env[n]) for n in statement.uses() if isinstance(self.env.get(n), (np.ndarray, np.generic))
        }
        if "bf16" not in types.values() or "f16" in types.values():
            return True
        env = self.env | {n: self.env[n].astype(np.float16) for n, t in types.items() if t == "bf16"}
        exec(statement.code, env)
        created, half = (type_name(found[statement.target]) for found in (self.env, env))
        return created == ("bf16" if half == "f16" else half)

    def acceptable(self, x, kind) -> bool:
        if (
            not isinstance(x, (np.ndarray, np.generic))
            or np.asarray(x).dtype not in NAMES
            or np.size(x) > self.most[1]
            or np.ndim(x) > 6
        ):
            return False
        if np.size(x) == 0:
            return False
        if self.special or not is_float(x):
            return True
        largest = np.max(np.abs(np.asarray(x, np.float64)))
        return bool(largest <= LARGEST[type_name(x)])

    # ---- choosing operands

    def any(self, *kinds: str):
        """The name of an array of one of these kinds ("f", "i", "b"), a later one rather than an earlier one."""
        names = [n for n in self.arrays if not kinds or self.kind(n) in kinds]
        if not names:
            return None
        rng = self.rng
        return rng.choice(names[-6:]) if rng.random() < 0.7 else rng.choice(names)

    def kind(self, name: str) -> str:
        t = type_name(self.env[name])
        return "f" if t in UNIT else "b" if t == "b1" else "i"

    def shape(self, name: str) -> tuple[int, ...]:
        return np.shape(self.env[name])

    def partner(self, name: str, *kinds: str):
        """Text of an operand that broadcasts with ``name``."""
        rng, shape = self.rng, self.shape(name)
        names = [n for n in self.arrays if not kinds or self.kind(n) in kinds]
        rng.shuffle(names)
        if rng.random() < 0.2:
            numbers = [n for n in self.numbers if not kinds or self.kind(n) in kinds]
            if numbers:
                return rng.choice(numbers)
        for n in names:
            try:
                if math.prod(np.broadcast_shapes(shape, self.shape(n))) <= 20000:
                    return n
            except ValueError:
                continue
        return None

    def axis(self, name: str):
        rank = len(self.shape(name))
        return self.rng.randrange(-rank, rank) if rank else None

    def axes(self, name: str):
        """Axes to reduce, as text."""
        rng, rank = self.rng, len(self.shape(name))
        r = rng.random()
        if r < 0.25 or not rank:
            return "None"
        if r < 0.7 or rank == 1:
            return str(rng.randrange(-rank, rank))
        return str(tuple(sorted(rng.sample(range(rank), rng.randint(2, rank)))))


_TEMPLATES, _WEIGHTS = [], []


def template(weight: int):
    def mark(function):
        _TEMPLATES.append(function)
        _WEIGHTS.append(weight)
        return function

    return mark


_SMOOTH = (
    "np.exp({0} * 0.25)",
    "np.tanh({0})",
    "np.sqrt(np.abs({0}))",
    "np.log1p(np.abs({0}))",
    "np.sin({0})",
    "np.cos({0})",
    "np.arctan({0})",
    "np.exp(-np.abs({0}))",
    "np.log(np.abs({0}) + 1)",
    "np.square({0})",
    "1 / (np.abs({0}) + 1)",
    "np.cbrt({0})",
    "np.expm1({0} * 0.1)",
    "np.arcsinh({0})",
    "np.reciprocal(np.abs({0}) + 0.5)",
    "{0} * 0.5",
    "{0} + 1",
    "2 - {0}",
    "{0} / 3",
    "np.log2(np.abs({0}) + 0.25)",
)
_EXACT = ("-{0}", "np.abs({0})", "np.floor({0})", "np.ceil({0})", "np.trunc({0})", "np.rint({0})", "np.sign({0})", "np.clip({0}, -1, 1)",
          "np.maximum({0}, 0)", "np.minimum({0}, 2)", "np.positive({0})", "np.copy({0})", "{0}.copy()")  # fmt: skip


@template(16)
def smooth(m):
    x = m.any("f")
    return x and (m.rng.choice(_SMOOTH).format(x), "op")


@template(6)
def exact(m):
    x = m.any("f", "i")
    return x and (m.rng.choice(_EXACT).format(x), "view")


@template(24)
def binary(m):
    x = m.any()
    y = x and m.partner(x)
    if y is None:
        return None
    text = m.rng.choice(("{0} + {1}", "{0} - {1}", "{0} * {1}", "{1} - {0}", "np.maximum({0}, {1})", "np.minimum({0}, {1})", "np.hypot({0}, {1})",
                         "np.arctan2({0}, {1})", "np.fmax({0}, {1})", "{0} / (np.abs({1}) + 1)", "np.add({0}, {1})", "np.multiply({0}, {1})",
                         "np.logaddexp({0}, {1})", "np.copysign({0}, np.nan_to_num({1}))", "0.5 * {0} + {1} * 0.25"))  # fmt: skip
    return text.format(x, y), "reduce" if "logaddexp" in text else "op"


@template(6)
def integers(m):
    x = m.any("i")
    y = x and m.partner(x, "i")
    if y is None:
        return None
    text = m.rng.choice(
        (
            "{0} // {1}",
            "{0} % {1}",
            "{0} & {1}",
            "{0} | {1}",
            "{0} ^ {1}",
            "{0} << ({1} & 3)",
            "{0} >> ({1} & 3)",
            "np.fmod({0}, {1})",
            "np.gcd({0}, {1})",
            "~{0}",
            "{0} ** 2",
            "{0} * {1}",
            "{0} / (np.abs({1}) + 1)",
            "np.power({0}, {1} & 3)",
        )
    )
    return text.format(x, y), "op"


@template(3)
def remainders(m):
    x = m.any("f")
    y = x and m.partner(x, "f")
    return y and (
        m.rng.choice(
            ("{0} // (np.abs({1}) + 0.5)", "{0} % (np.abs({1}) + 0.5)", "np.fmod({0}, np.abs({1}) + 0.5)")
        ).format(x, y),
        "op",
    )


@template(8)
def compare(m):
    x = m.any()
    y = x and m.partner(x)
    return y and (f"{x} {m.rng.choice(('<', '<=', '>', '>=', '==', '!='))} {y}", "view")


@template(4)
def logic(m):
    x = m.any("b")
    y = x and m.partner(x, "b")
    return y and (
        m.rng.choice(
            (
                "{0} & {1}",
                "{0} | {1}",
                "{0} ^ {1}",
                "~{0}",
                "np.logical_not({0})",
                "np.logical_and({0}, {1})",
                "{0} + {1}",
                "{0} * {1}",
            )
        ).format(x, y),
        "view",
    )


@template(2)
def tests(m):
    x = m.any()
    return x and (
        m.rng.choice(
            (
                "np.isnan({0})",
                "np.isfinite({0})",
                "np.logical_not({0})",
                "{0} != 0",
                "np.signbit(np.nan_to_num({0}))",
                "np.isinf({0})",
            )
        ).format(x),
        "view",
    )


@template(8)
def where(m):
    c = m.any("b")
    x = c and m.partner(c)
    y = x and m.partner(c)
    return y and (f"np.where({c}, {x}, {y})", "view")


@template(7)
def cast(m):
    x = m.any()
    if x is None:
        return None
    floats = ("f32", "f32", "f64") + (("f16", "bf16") if m.halves else ())
    to = m.rng.choice((*floats, "i32", "i64", "i8", "u8", "b1"))
    if m.kind(x) == "f" and to not in UNIT and to != "b1":
        return f"np.clip(np.nan_to_num({x}), {0 if to[0] == 'u' else -100}, 100).astype({to})", "view"
    return f"{x}.astype({to})", "op"


@template(14)
def reduce(m):
    x = m.any()
    if x is None:
        return None
    name = m.rng.choice(("sum", "sum", "mean", "mean", "max", "min", "var", "std", "any", "all", "prod"))
    axes, keep = m.axes(x), m.rng.random() < 0.5
    extra = (", keepdims=True" if keep else "") + (
        ", ddof=1" if name in ("var", "std") and m.rng.random() < 0.2 else ""
    )
    if name == "prod":
        x = f"np.tanh({x})" if m.kind(x) == "f" else f"({x} % 3)" if m.kind(x) == "i" else x
    call = (
        f"np.{name}({x}, axis={axes}{extra})" if m.rng.random() < 0.6 or "(" in x else f"{x}.{name}(axis={axes}{extra})"
    )
    return call, "view" if name in ("max", "min", "any", "all") else "reduce"


@template(8)
def normalise(m):
    """A reduction and what is computed from it over the same array."""
    x = m.any("f")
    axis = x and m.axis(x)
    if axis is None:
        return None
    text = m.rng.choice(("{0} - {0}.mean({1}, keepdims=True)", "{0} - {0}.max({1}, keepdims=True)", "{0} / (np.abs({0}).sum({1}, keepdims=True) + 1)",
                         "np.exp({0} - {0}.max({1}, keepdims=True))", "{0} * (({0} * {0}).mean({1}, keepdims=True) + 1)",
                         "({0} > {0}.mean({1}, keepdims=True)).sum({1})"))  # fmt: skip
    return text.format(x, axis), "reduce"


@template(4)
def positions(m):
    x = m.any()
    if x is None:
        return None
    axis = m.rng.choice(("None", str(m.axis(x) if m.shape(x) else None)))
    keep = m.rng.choice(("", ", keepdims=True"))
    return f"np.{m.rng.choice(('argmax', 'argmin'))}({x}, axis={axis}{keep})", "view"


@template(12)
def shapes(m):
    x = m.any()
    if x is None:
        return None
    rng, shape = m.rng, m.shape(x)
    rank = len(shape)
    choices = [
        f"{x}.reshape(-1)",
        f"np.ravel({x})",
        f"np.expand_dims({x}, {rng.randint(0, rank)})",
        f"np.atleast_2d({x})",
    ]
    if rank:
        choices += [f"{x}.T", f"np.flip({x}, {m.axis(x)})", f"{x}[::-1]", f"np.squeeze({x})", f"{x}.reshape({x}.shape[0], -1)", f"np.roll({x}, {rng.randint(-3, 3)}, {m.axis(x)})",
                    f"{x}.reshape(-1, {x}.shape[-1])", f"{x}[None]", f"{x}[..., None]"]  # fmt: skip
        for k in (2, 3, 4):
            if shape[-1] % k == 0:
                choices += [f"{x}.reshape(*{x}.shape[:-1], {k}, -1)", f"{x}.reshape(*{x}.shape[:-1], -1, {k})"]
    if rank > 1:
        dims = list(range(rank))
        rng.shuffle(dims)
        a, b = rng.sample(range(rank), 2)
        choices += [f"np.transpose({x}, {tuple(dims)})", f"{x}.swapaxes({a}, {b})", f"np.moveaxis({x}, {a}, {b})", f"{x}.reshape({x}.shape[0] * {x}.shape[1], *{x}.shape[2:])",
                    f"np.swapaxes({x}, {a}, {b}).reshape({x}.shape)"]  # fmt: skip
    return rng.choice(choices), "view"


def random_index(m, x: str) -> str:
    rng, shape = m.rng, m.shape(x)
    parts = []
    for n in shape[: rng.randint(1, len(shape))]:
        r = rng.random()
        if r < 0.25:
            parts.append(":")
        elif r < 0.4:
            parts.append(str(rng.choice((0, -1, n // 2))))
        elif r < 0.5:
            parts.append("::-1")
        elif r < 0.6:
            parts.append(rng.choice(("::2", "1::2", "::-2", "1::3")))
        else:
            parts.append(
                rng.choice(("1:", ":-1", "1:-1", ":3", "-3:", "2:9", f":{max(1, n // 2)}", f"{n // 2}:", "3:"))
            )
        if rng.random() < 0.06:
            parts.append("None")
    if rng.random() < 0.15:
        parts.insert(0, "...")
    return f"[{', '.join(parts)}]"


@template(10)
def slices(m):
    x = m.any()
    return x and m.shape(x) and (x + random_index(m, x), "view")


@template(6)
def joins(m):
    x = m.any()
    if x is None:
        return None
    rng, shape = m.rng, m.shape(x)
    same = [n for n in m.arrays if m.shape(n) == shape]
    y = rng.choice(same)
    rank = len(shape)
    if not rank or rng.random() < 0.3:
        return f"np.stack([{x}, {y}], {rng.randint(0, rank)})", "view"
    axis = m.axis(x)
    at = axis % rank
    longer = [
        n
        for n in m.arrays
        if len(m.shape(n)) == rank and all(a == b for k, (a, b) in enumerate(zip(m.shape(n), shape)) if k != at)
    ]
    return f"np.concatenate([{x}, {rng.choice(longer)}{rng.choice(('', ', ' + rng.choice(longer)))}], {axis})", "view"


@template(4)
def pads(m):
    x = m.any()
    if not x or not m.shape(x):
        return None
    rng = m.rng
    if rng.random() < 0.4:
        return rng.choice((f"np.repeat({x}, {rng.randint(1, 3)}, {m.axis(x)})", f"np.tile({x}, {rng.randint(1, 3)})", f"np.broadcast_to({x}, (2, *{x}.shape))",
                           f"np.stack([{x}] * 2)")), "view"  # fmt: skip
    widths = tuple((rng.randint(0, 3), rng.randint(0, 3)) for _ in m.shape(x))
    return f"np.pad({x}, {widths}{rng.choice(('', ', constant_values=2'))})", "view"


@template(5)
def takes(m):
    x = m.any()
    if not x or not m.shape(x):
        return None
    rng, axis = m.rng, m.axis(x)
    index = rng.choice(("[0, -1, 0]", "np.arange(2) * 0", None, None))
    if index is None:
        i = m.any("i")
        if i is None or type_name(m.env[i]) in ("u64",) or np.size(m.env[i]) > 200:
            return None
        if len(m.shape(i)) == len(m.shape(x)) and rng.random() < 0.4:
            return f"np.take_along_axis({x}, {i}.astype(i64) % {x}.shape[{axis}], {axis})", "view"
        index = f"{i}.astype(i64) % {x}.shape[{axis}]"
    return f"np.take({x}, {index}, {axis})", "view"


@template(3)
def created(m):
    x = m.any()
    if not x:
        return None
    choices = [
        f"np.zeros_like({x})",
        f"np.ones_like({x})",
        f"np.full_like({x}, 2)",
        f"np.zeros({x}.shape)",
        f"np.full({x}.shape, 3, f32)",
    ]
    if m.shape(x):
        choices += [
            f"np.arange({x}.shape[-1])",
            f"np.arange({x}.shape[0], dtype=f32) * 0.1",
            f"np.tril({x})" if len(m.shape(x)) > 1 else f"np.ones({x}.shape[0], i32)",
        ]
    return m.rng.choice(choices), "view"


@template(3)
def scans(m):
    x = m.any("f")
    if not x or not m.shape(x):
        return None
    text = m.rng.choice(
        (
            "np.cumsum({0}, {1})",
            "np.cumsum({0} * 0.5, {1})",
            "np.flip(np.cumsum(np.flip({0}, {1}), {1}), {1})",
            "np.cumprod(np.sin({0}), {1})",
            "np.maximum.accumulate({0}, {1})",
            "np.minimum.accumulate({0}, {1})",
        )
    )
    return text.format(x, m.axis(x)), "reduce"


@template(2)
def library(m):
    x = m.any("f")
    if not x or not m.shape(x):
        return None
    y = m.rng.choice([n for n in m.arrays if m.kind(n) == "f"])
    text = m.rng.choice(
        (
            "np.sort({0}, {1})",
            "{0} @ {2}",
            "np.argsort({0}, {1}, kind='stable')",
            "np.matmul({0}, {2}.T)",
        )
    )
    product = "@" in text or "matmul" in text
    if product and (type_name(m.env[x]) != type_name(m.env[y]) or type_name(m.env[x]) in ("f16", "bf16")):
        return None
    return text.format(x, m.axis(x), y), "reduce"


@template(9)
def writes(m):
    """In place: into an argument, a local array or a view of either."""
    rng = m.rng
    names = [n for n in m.arrays if isinstance(m.env[n], np.ndarray) and m.env[n].flags.writeable and m.shape(n)]
    if not names:
        return None
    x = rng.choice(names)
    if rng.random() < 0.5:
        names = [n for n in names if n.startswith("x")] or names
        x = rng.choice(names)
    at = random_index(m, x) if rng.random() < 0.6 else "[...]"
    try:
        part = np.shape(eval(x + at, m.env))
    except Exception:
        return None
    fitting = [n for n in m.arrays + m.numbers if fits(m.shape(n), part)]
    if not fitting:
        return None
    y = rng.choice(fitting)
    if rng.random() < 0.2:
        y = str(rng.choice((0, 1, 2)))
    operator = rng.choice(("=", "=", "+=", "-=", "*="))
    if rng.random() < 0.12:
        return f"{x}[{x} > 0] = {rng.choice((0, 1))}", "write"
    return f"{x}{at} {operator} {y}", "write"


def fits(shape, into) -> bool:
    try:
        return np.broadcast_shapes(shape, into) == into
    except ValueError:
        return False


def make(seed: int, **options) -> RandomProgram:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return Maker(seed, **options).make()


# ---------------------------------------------------------------------------------------------------------------- runs
# and bounds


@dataclass
class Runs:
    """``plain`` are NumPy's results and arguments; ``wide`` those of the scattered runs in float64, the first one
    exact."""

    plain: dict[str, object]
    wide: list[dict[str, object]]
    fragile: set[str] = field(default_factory=set)


def run_statements(
    program: RandomProgram, call, wide: bool, types: dict[str, str] | None, scatter: np.random.Generator | None
) -> tuple[dict, dict]:
    """The environment after the program, and the type of each statement's result. With ``scatter``, changed by
    roundings at random."""
    env: dict[str, object] = {"np": np} | (WIDE if wide else TYPES)
    env.update(instantiate(call, wide))
    seen = {}
    fragile, halves = (
        set(),
        {
            n
            for n, x in env.items()
            if isinstance(x, (np.ndarray, np.generic)) and NAMES.get(np.asarray(x).dtype) in ("f16", "bf16")
        },
    )
    for k, s in enumerate(program.statements):
        if scatter is not None and s.kind == "reduce":
            exec(*_scattered(s, env, types.get(("in", k), "f64"), scatter))
        else:
            exec(s.code, env)
        x = env[s.target]
        if wide and NAMES.get(np.asarray(x).dtype) in ("f16", "bf16", "f32"):  # made of bools or narrow integers
            x = env[s.target] = x.astype(np.float64)
        if not wide:
            seen[k] = type_name(x) if np.asarray(x).dtype in NAMES else "f64"
            inner = [
                type_name(env[n])
                for n in s.uses()
                if n in env and isinstance(env[n], (np.ndarray, np.generic)) and np.asarray(env[n]).dtype in NAMES
            ]
            seen["in", k] = max([t for t in inner if t in UNIT], key=UNIT.__getitem__, default="f64")
            related = s.uses() | {s.target}
            touched = {s.target} | {
                n
                for n in env
                if s.kind == "write" and isinstance(env[n], np.ndarray) and np.may_share_memory(env[n], x)
            }
            half = bool(related & halves) or seen[k] in ("f16", "bf16") or _is_residue(s, env)
            if related & fragile or (half and (seen[k] not in UNIT or _DECIDES.search(s.text))):
                fragile |= touched
            if half:
                halves |= touched
        elif scatter is not None and s.kind != "view" and np.asarray(x).dtype == np.float64:
            name = types[k] if types[k] in UNIT else "f64"
            factor = 1 + 8 * UNIT[name] * scatter.uniform(-1, 1, np.shape(x))
            if _CANCELS.search(s.text) and scatter.random() < 0.3:
                factor = np.where(np.abs(x) <= 64 * UNIT[name] * _largest(s, env), 0, factor)
            if s.kind == "write":
                if x.flags.writeable:
                    x *= factor
            else:
                env[s.target] = x * factor
    seen["fragile"] = fragile
    return env, seen


def _is_residue(s: Statement, env: dict) -> bool:
    """Whether some of a statement's results are deviations of equal numbers, or follow from them: 0, or what roundings
    leave of it. A mean of 17 equal numbers may be its neighbour, and the numbers are above it or not."""
    of_mean = re.search(r"(\w+) > (\1\.mean\([^)]*\))", s.text)
    if of_mean:
        x = env[of_mean[1]]
        apart = np.abs(np.asarray(x, np.float64) - np.asarray(eval(of_mean[2], env), np.float64))
        return bool((apart <= 16 * UNIT[type_name(x)] * np.abs(np.asarray(x, np.float64)).max(initial=0)).any())
    if not re.search(r"\b(std|var)\(", s.text) or not np.size(env[s.target]):
        return False
    return bool((np.abs(env[s.target]) <= 1e-5 * _largest(s, env)).any())


def _largest(s: Statement, env: dict) -> float:
    """The largest size of an operand's element."""
    operands = [np.abs(env[n]) for n in s.uses() if isinstance(env.get(n), (np.ndarray, np.generic))]
    return max([float(x.max()) for x in operands if x.size], default=0.0)


def _scattered(s: Statement, env: dict, name: str, scatter: np.random.Generator) -> tuple:
    """The code of a statement that reduces, and its names, the operands changed at random by roundings of the type
    ``name``. A 16-bit operand is another at each use, in all elements alike too: a kernel computes ``x - x.mean(0)``
    with x in float32 and the mean rounded, where NumPy has both rounded, which cancel exactly. Of integers, sometimes
    the largest of a row absorb the others, as sums do in some order: where the largest cancel, nothing is left."""
    changed: dict[str, np.ndarray] = {}

    def operand(found: re.Match) -> str:
        x = env.get(found[0])
        if not isinstance(x, np.ndarray) or found[0] == s.target:
            return found[0]
        if x.dtype != np.float64 and not (x.dtype.kind in "iu" and _AVERAGES.search(s.text)):
            return found[0]
        of_type = name in ("f16", "bf16")
        use = f"{found[0]}_{len(changed) if of_type else 0}"
        if use not in changed:
            if x.dtype != np.float64 and scatter.random() < 0.3:
                changed[use] = _absorbed(x, s.text)
                return use
            by = scatter.uniform(-1, 1, x.shape) + (scatter.uniform(-1, 1) if of_type else 0)
            changed[use] = x * (1 + 4 * UNIT[name] * by)
        return use

    text = re.sub(r"\b[xsv]\d+\b", operand, s.text)
    env.update(changed)
    return compile(text, "<statement>", "exec"), env


def _absorbed(x: np.ndarray, text: str) -> np.ndarray:
    """Integers as float64, rounded as sums of the row's largest are."""
    axis = re.search(r"\baxis=(None|-?\d+|\([^)]*\))", text)
    sizes = np.abs(x.astype(np.float64))
    largest = sizes.max(axis=eval(axis[1]) if axis else None, keepdims=True, initial=1)
    step = np.exp2(np.ceil(np.log2(largest)) + 1) * UNIT["f64"]
    return np.where(step > 1, np.rint(x / step) * step, x)


_AVERAGES = re.compile(r"\b(mean|std|var)\(")  # of integers, as float64: sums of large ones are rounded
_CANCELS = re.compile(r" [-+] |sum|mean|dot|@|std|var|diff|trace|einsum")  # may leave 0, or what roundings leave of it
_DECIDES = re.compile(r"floor|ceil|trunc|rint|sign|//|%|fmod|[<>]|==|!=|arg|nan_to_num")


def outcome(program: RandomProgram, env: dict) -> dict[str, object]:
    out = {f"result {k} ({n})": env[n] for k, n in enumerate(program.returns)}
    out |= {f"argument {a.name}": env[a.name] for a in program.args if not a.number}
    return out


def reference(program: RandomProgram, call, runs: int = RUNS) -> Runs:
    """Raises what NumPy raises. What only runs in float64 raise (a float64 number that int32 does not hold, where NumPy
    converts one of float32) says that roundings decide: no result is compared."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        env, types = run_statements(program, call, False, None, None)
        plain = copy.deepcopy(outcome(program, env))
        g = np.random.default_rng(program.seed)
        wide = []
        try:
            for k in range(runs + 1):
                env, _ = run_statements(program, call, True, types, g if k else None)
                wide.append(outcome(program, env))
        except Exception:
            return Runs(plain, [], {*plain})
    fragile = types["fragile"]
    names = {f"result {k} ({n})" for k, n in enumerate(program.returns) if n in fragile} | {
        f"argument {n}" for n in fragile
    }
    return Runs(plain, wide, names)


def difference(name: str, got, runs: Runs) -> str | None:
    """What is wrong with a result, or None."""
    want = runs.plain[name]
    if isinstance(want, np.ndarray) != isinstance(got, np.ndarray) and not (np.ndim(want) == 0 and np.ndim(got) == 0):
        return f"is a {type(got).__name__}, NumPy gives a {type(want).__name__}"
    want, got = np.asarray(want), np.asarray(got)
    if want.dtype != got.dtype or want.shape != got.shape:
        return f"is {got.dtype}{got.shape}, NumPy gives {want.dtype}{want.shape}"
    if not want.size or name in runs.fragile:
        return None
    wide = [np.asarray(w[name]) for w in runs.wide]
    if NAMES[want.dtype] not in UNIT:
        stable = np.ones(want.shape, bool)
        for w in wide:
            stable &= (w == want) if w.shape == want.shape else False
        wrong = stable & (got != want)
    else:
        t = NAMES[want.dtype]
        want, got = want.astype(np.float64), got.astype(np.float64)
        exact = wide[0].astype(np.float64)
        with np.errstate(all="ignore"):
            bound = 2 * np.abs(want - exact) + 4 * UNIT[t] * np.abs(exact) + 2 * TINY[t] + 1e-300
            if t in ("f16", "bf16"):
                bound += 2 * UNIT[t] * np.abs(exact)
            for w in wide[1:]:
                bound = np.maximum(bound, SCATTER * np.abs(w.astype(np.float64) - exact) + bound)
            near = np.abs(got - exact) <= bound
            classes = [classify(w.astype(np.float64)) for w in wide]
            settled = np.ones(want.shape, bool)
            for c in classes:
                settled &= c == classify(want)
            same = classify(got) == classify(want)
            wrong = settled & ~np.where(np.isfinite(want) & np.isfinite(got), near, same)
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"differs in {int(wrong.sum())} of {wrong.size} elements, first at {at}: {got[at]!r}, NumPy {want[at]!r}, exactly {np.asarray(wide[0])[at]!r}"


def classify(x):
    return np.where(np.isnan(x), 1, np.where(np.isposinf(x), 2, np.where(np.isneginf(x), 3, 0)))


REFUSALS = (
    "whether NumPy made the reshape a view or a copy",
    "into an array from outside the function",
    "cannot become a NumPy array",
    "with size 0",  # where others are empty too, NumPy gives nothing
)


def check(program: RandomProgram, compiled=None) -> tuple[str, dict] | None:
    """Runs the calls of a program; gives the first failure and its call."""
    import mlirfuse

    compiled = compiled or mlirfuse.jit(program.function(), fallback=False)
    for number, call in enumerate(program.calls):
        try:
            runs, error = reference(program, call), None
        except Exception as e:
            runs, error = None, e
        given = instantiate(call, False)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                results = compiled(*given.values())
        except Exception as e:
            if error is None and not any(r in str(e) for r in REFUSALS):
                return f"call {number}: {type(e).__name__}: {e}\n{traceback.format_exc(limit=-4)}", call
            continue
        if error is not None:
            return f"call {number}: no error, but NumPy raises {type(error).__name__}: {error}", call
        got = {f"result {k} ({n})": r for k, (n, r) in enumerate(zip(program.returns, results))}
        got |= {f"argument {a.name}": given[a.name] for a in program.args if not a.number}
        for name, value in got.items():
            if difference(name, value, runs) and (problem := difference(name, value, reference(program, call, MANY))):
                return f"call {number}: {name} {problem}", call
    return None


# ----------------------------------------------------------------------------------------------------------------
# reduction


def reduce_program(program: RandomProgram, call, message: str, budget: int = 150) -> RandomProgram:
    """A smaller program that still fails on this call (run once before on the program's first call, as a failure may
    need that)."""

    def kind_of(message: str) -> str:
        return re.sub(r"^call \d+: |result \d+ \(\w+\)|argument \w+|\d+", "", message)[:18]

    def fails(candidate: RandomProgram) -> bool:
        try:
            reference(candidate, candidate.calls[-1])
        except Exception as e:
            if not raises or type(e).__name__ not in message:
                return False
        failure = check(candidate)
        return failure is not None and kind_of(failure[0]) == kind_of(message)

    raises = "NumPy raises" in message
    best = copy.copy(program)
    for calls in ([call], [program.calls[0], call]):
        best.calls = calls
        if fails(best):
            break
    else:
        best.calls = program.calls
        return best
    spent = [0]

    def attempt(**changes) -> bool:
        nonlocal best
        spent[0] += 1
        candidate = copy.copy(best)
        for k, v in changes.items():
            setattr(candidate, k, v)
        if spent[0] <= budget and fails(candidate):
            best = candidate
            return True
        return False

    for name in dict.fromkeys(best.returns):
        if len(best.returns) > 1 and attempt(returns=[name]):
            break
    changed = True
    while changed and spent[0] <= budget:
        changed = False
        for k in reversed(range(len(best.statements))):
            rest = best.statements[:k] + best.statements[k + 1 :]
            if best.statements[k].kind == "write" or not any(best.statements[k].target in s.uses() for s in rest[k:]):
                if best.statements[k].target not in best.returns or best.statements[k].kind == "write":
                    changed |= attempt(statements=rest)
                elif rest and rest[-1].target.startswith("v"):
                    changed |= attempt(statements=rest, returns=[rest[-1].target])
                continue
            for other in best.statements[k].uses() - {best.statements[k].target}:
                renamed = [
                    Statement(
                        re.sub(rf"\b{best.statements[k].target}\b", other, s.text),
                        re.sub(rf"^{best.statements[k].target}$", other, s.target),
                        s.kind,
                    )
                    for s in rest
                ]
                if attempt(
                    statements=renamed, returns=[other if r == best.statements[k].target else r for r in best.returns]
                ):
                    changed = True
                    break
    used = set().union(*(s.uses() for s in best.statements), set(best.returns))
    kept = [a for a in best.args if a.name in used or any(b.same == a.name or b.over == a.name for b in best.args)]
    attempt(args=kept, calls=[{a.name: c[a.name] for a in kept} for c in best.calls])
    return best


def report(program: RandomProgram, failure: tuple[str, dict]) -> str:
    """The failure, the program and its reduction, to be read."""
    message, call = failure
    smaller = reduce_program(program, call, message)
    again = check(smaller)
    return f"seed {program.seed}: {message}\n{program.show(call)}\n\nreduced ({len(smaller.calls)} calls): {again and again[0]}\n{smaller.show(smaller.calls[-1])}"


def main(first: int, count: int) -> int:
    failed = 0
    for seed in range(first, first + count):
        try:
            program = make(seed)
            failure = check(program)
        except Exception:
            print(f"seed {seed}: the generator failed\n{traceback.format_exc()}", flush=True)
            continue
        if failure:
            failed += 1
            print("=" * 100 + "\n" + report(program, failure), flush=True)
        if (seed - first) % 200 == 199:
            print(f"# {seed + 1 - first} done, {failed} failed", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]))))
