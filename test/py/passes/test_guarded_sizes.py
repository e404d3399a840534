"""Graphs whose sizes are related only by their ops, through the pass orders that the reference allows: with sizes that
hold a call gives what NumPy gives, with others an error, and nothing beside a tensor is read.

``python test/py/passes/test_guarded_sizes.py FIRST LAST`` runs more graphs by hand.
"""

import random
import re
import sys

import numpy as np
import pytest

import mlirfuse
from mlirfuse.core.errors import ShapeError
from mlirfuse.dialects import fusion
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.size_relations import Relations
from mlirfuse.passes import base
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.schedule import targets
from mlirfuse.tools import run

GUARDED = [
    "fusion-decompose,fusion-group{single-op=true},fusion-guard,fusion-segment",
    "fusion-decompose,fusion-group{single-op=true},fusion-shapes{annotate=false},fusion-guard,fusion-segment",
    "fusion-decompose,fusion-group{single-op=true},fusion-guard,fusion-prune-outputs,fusion-segment",
    "fusion-decompose,fusion-group{single-op=true},fusion-guard,fusion-shapes{annotate=false},fusion-cse,fusion-dce,"
    "fusion-segment",
    "fusion-graph-fuser{single-op=true}",
]
# Without guards: where sizes do not follow from what is stated, fusion-segment refuses.
UNGUARDED = [
    "fusion-decompose,fusion-group{single-op=true},fusion-segment",
    "fusion-shapes,fusion-decompose,fusion-cse,fusion-group{single-op=true},fusion-segment",
    "fusion-to-segments",
]
VECTOR, MATRIX = "tensor<?xf32>", "tensor<?x?xf32>"


class Case:
    """A random graph in text, with what has to hold of its sizes, NumPy's reference, and arrays of a call. ``holds``:
    whether their sizes are right."""

    def __init__(self, seed: int):
        self.random = r = random.Random(seed)
        self.order = r.choice(GUARDED + UNGUARDED)
        self.args: list[str] = []
        self.body: list[str] = []
        self.steps: list = []  # (result, function of the values so far)
        self.conditions: list[str] = []  # Python, over the symbols
        self.true: dict[str, int] = {}  # sizes for which all holds
        self.shapes: list[tuple[str, ...]] = []  # of the arguments
        value = self.vector_of(self.argument(*(r.randint(2, 5) for _ in range(r.randint(1, 2)))))
        for _ in range(r.randint(1, 4)):
            value = r.choice([self.joined, self.sliced, self.added, self.rolled, self.split, self.unary])(value)
        self.result, _ = self.added(value)
        env = dict(self.true)
        if r.random() < 0.6:
            for symbol in r.sample(sorted(env), min(len(env), r.randint(1, 2))):
                env[symbol] = max(1, env[symbol] + r.choice([-3, -1, 1, 7]))
        self.env = env
        self.holds = all(eval(condition, {"min": min, "max": max}, dict(env)) for condition in self.conditions)
        head = f'func.func @f({", ".join(self.args)}) -> {VECTOR} attributes {{fusion.device = "cpu"}} {{'
        self.text = "\n  ".join([head, *self.body, f"return {self.result} : {VECTOR}"]) + "\n}"
        # Amid other memory: what is read beside an array is no number.
        self.arrays = []
        for shape in self.shapes:
            extents = [env[n] for n in shape]
            held = np.full(int(np.prod(extents)) + 64, np.nan, np.float32)
            held[: int(np.prod(extents))] = np.arange(int(np.prod(extents)))
            self.arrays.append(held[: int(np.prod(extents))].reshape(extents))

    # ---- values are (name, size in text)

    def argument(self, *extents: int) -> tuple[str, tuple[str, ...]]:
        names = tuple(f"s{len(self.true) + k}" for k in range(len(extents)))
        self.true |= dict(zip(names, extents))
        at = f"%a{len(self.args)}"
        listed = ", ".join(f'"{n}"' for n in names)
        strides = ", ".join(['"1"'] if len(names) == 1 else [f'"{names[1]}"', '"1"'])
        type_ = VECTOR if len(names) == 1 else MATRIX
        self.args.append(f"{at}: {type_} {{fusion.shape = [{listed}], fusion.strides = [{strides}]}}")
        self.shapes.append(names)
        return at, names

    def op(self, name: str, operands: list[str], attributes: str, types: list[str], function, results=1) -> str:
        created = f"%{len(self.steps)}"
        tail = f" {{{attributes}}}" if attributes else ""
        out = VECTOR if results == 1 else f"({', '.join([VECTOR] * results)})"
        left = created if results == 1 else f"{created}:{results}"
        self.body.append(f'{left} = "fusion.{name}"({", ".join(operands)}){tail} : ({", ".join(types)}) -> {out}')
        self.steps.append((created, operands, function))
        return created

    def vector_of(self, given):
        at, names = given
        if len(names) == 1:
            return at, names[0]
        size = "*".join(names)
        return self.op("reshape", [at], f'shape = ["{size}"]', [MATRIX], lambda env, x: x.reshape(-1)), size

    def known(self, size: str) -> int:
        return eval(size, {"min": min, "max": max}, dict(self.true))

    def added(self, value):
        """With an argument of as many elements."""
        at, size = value
        n = self.known(size)
        two = next((k for k in (2, 3, 5) if n % k == 0 and n > k), None) if self.random.random() < 0.4 else None
        if n < 2:
            return value
        other, other_size = self.vector_of(self.argument(*((two, n // two) if two else (n,))))
        self.conditions.append(f"({size}) == ({other_size})")
        pair = [at, other] if self.random.random() < 0.5 else [other, at]
        created = self.op("add", pair, "", [VECTOR, VECTOR], lambda env, a, b: a + b)
        return created, self.random.choice([size, other_size])

    def joined(self, value):
        at, size = value
        other, (other_size,) = self.argument(self.random.randint(2, 4))
        join = self.op("concatenate", [at, other], "axis = 0", [VECTOR] * 2, lambda env, *x: np.concatenate(x))
        return join, f"{size}+{other_size}"

    def sliced(self, value):
        """As many elements as an argument has, of which it is multiplied by one."""
        at, size = value
        n = self.known(size)
        step = self.random.choice([1, 1, 2, -1])
        count = self.random.randint(1, max(1, n // 2))
        if count < 2 or n < count * abs(step):
            return value
        start = n - 1 if step < 0 else self.random.randint(0, n - ((count - 1) * step + 1))
        other, (length,) = self.argument(count)
        first, last = (f"{start}", f"{start}+({length}-1)*{step}")[:: 1 if step > 0 else -1]
        self.conditions += [f"0 <= {first}", f"{last} < {size}"]
        if step < 0:
            self.conditions.append(f"{start} < {size}")

        def function(env, x):
            return x[start + np.arange(env[length]) * step]

        attributes = f'start = ["{start}"], size = ["{length}"], step = [{step}]'
        part = self.op("slice", [at], attributes, [VECTOR], function)
        return self.op("mul", [part, other], "", [VECTOR] * 2, lambda env, a, b: a * b), length

    def rolled(self, value):
        at, size = value
        shift = self.random.randint(0, self.known(size) - 1)
        self.conditions.append(f"{shift} <= {size}")
        roll = self.op("roll", [at], f'axis = 0, shift = "{shift}"', [VECTOR], lambda env, x: np.roll(x, shift))
        return roll, size

    def split(self, value):
        at, size = value
        n = self.known(size)
        first = self.random.randint(1, n - 1) if n > 1 else 0
        if not first:
            return value
        rest = f"{size}-{first}"
        self.conditions.append(f"{rest} >= 0")
        parts = self.op("split", [at], f'axis = 0, sizes = ["{first}", "{rest}"]', [VECTOR],
                        lambda env, x: x[first:], 2)  # fmt: skip
        created = self.op("abs", [f"{parts}#1"], "", [VECTOR], lambda env, x: np.abs(x))
        return created, rest

    def unary(self, value):
        return self.op("neg", [value[0]], "", [VECTOR], lambda env, x: -x), value[1]

    # ---- a call

    def reference(self) -> np.ndarray:
        values = {f"%a{k}": array for k, array in enumerate(self.arrays)}
        for created, operands, function in self.steps:
            given = [values[name.partition("#")[0]] for name in operands]
            values[created] = function(self.env, *given)
        return values[self.result]

    def problem(self) -> str | None:
        """What is wrong, or None."""
        program = base.IR(fusion.parse(self.text))
        try:
            base.run_pipeline(program, f"builtin.module({self.order})")
        except base.PassError as error:
            refused = "which nothing states" in str(error) and self.order in UNGUARDED
            return None if refused else f"PassError: {error}"
        (graph,) = fusion.read(fusion.parse(program.as_text(False)))  # what is written is what runs
        host = HostProgram(graph, targets.of("cpu"))
        env = {str(n): k for v, a in zip(graph.args, self.arrays) for n, k in zip(v.shape, a.shape)}
        try:
            (given,) = host.run(list(self.arrays), {n: k for n, k in env.items() if n in host.symbols})
        except (ValueError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}" if self.holds else None
        try:
            wanted = self.reference()
        except (ValueError, IndexError):
            return f"no error; {given}"
        right = given.shape == wanted.shape and np.allclose(given, wanted, 1e-5, equal_nan=True)
        return None if right and not np.isnan(given).any() else f"{given}\nnot {wanted}"


def problem(seed: int) -> str | None:
    case = Case(seed)
    try:
        found = case.problem()
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    return None if found is None else f"{seed}: {found}\n{case.order}\n{[a.shape for a in case.arrays]}\n{case.text}"


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_orders(first):
    problems = [p for seed in range(first, first + 20) if (p := problem(seed))]
    assert not problems, "\n".join(problems)


ADDED = """
func.func @f(%x: tensor<?xf32> {fusion.shape = ["s0"]}, %y: tensor<?xf32> {fusion.shape = ["s1"]}) -> tensor<?xf32> ATTRIBUTES {
  %0 = "fusion.group"(%x, %y) ({
  ^bb0(%a: tensor<?xf32>, %b: tensor<?xf32>):
    %1 = "fusion.segment"(%a, %b) ({
    ^bb0(%c: tensor<?xf32>, %d: tensor<?xf32>):
      %2 = "fusion.add"(%c, %d) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
      "fusion.yield"(%2) : (tensor<?xf32>) -> ()
    }) {scheduler = "pointwise"} : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
    "fusion.yield"(%1) : (tensor<?xf32>) -> ()
  }) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}"""


def test_segments_of_sizes_that_nothing_states_are_refused():
    with pytest.raises(fusion.FusionIRError, match=r"takes the sizes s0 and s1 to be equal, which nothing states"):
        fusion.read(fusion.parse(ADDED.replace("ATTRIBUTES", 'attributes {fusion.device = "cpu"}')))
    stated = 'attributes {fusion.device = "cpu", fusion.equal = ["s1 == s0"]}'
    f = run.of_text(ADDED.replace("ATTRIBUTES", stated), passes="")
    np.testing.assert_array_equal(f(np.ones(3, np.float32), np.ones(3, np.float32))[0], [2, 2, 2])
    with pytest.raises(ShapeError, match="s1 == s0 does not hold: 2 against 3"):
        f(np.ones(3, np.float32), np.ones(2, np.float32))
    with pytest.raises(fusion.FusionIRError, match="fusion.equal"):
        fusion.read(fusion.parse(ADDED.replace("ATTRIBUTES", 'attributes {fusion.equal = ["s0"]}')))
    with pytest.raises(fusion.FusionIRError, match="'s9'"):
        fusion.read(fusion.parse(ADDED.replace("ATTRIBUTES", 'attributes {fusion.equal = ["s0 == s9"]}')))


def test_text_states_the_sizes_that_a_front_end_compares():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    text = mlirfuse.jit(lambda x: np.exp(x.reshape(-1, 8)).sum(0)).lower(x).as_text("segmented")
    assert "fusion.equal = [" in text
    (graph,) = fusion.read(fusion.parse(text))
    assert fusion.to_module_text([graph]).count("fusion.equal") == 1
    with pytest.raises(fusion.FusionIRError, match="which nothing states"):
        fusion.read(fusion.parse(re.sub(r", fusion.equal = \[[^]]*\]", "", text)))


def test_what_follows_from_equalities():
    a, b, c, d = map(sz.symbol, "abcd")
    known = Relations([(a * b, c), (c, d), (a + b, 2 * d)])
    assert known.hold(d, a * b) and known.hold(a + b, c + d) and known.hold(2 * c + a, 2 * a * b + a)
    assert not known.hold(a, b) and not known.hold(c, 2 * d) and not known.hold(a + b, c)
    quarters = Relations([(4 * sz.floordiv(a, 4), a)])
    assert quarters.hold(a + 1, 4 * sz.floordiv(a, 4) + 1) and not quarters.hold(a, 8 * sz.floordiv(a, 8))


@pytest.mark.parametrize("order", [None, GUARDED[0], GUARDED[-1]])
def test_slices_by_a_number_of_the_call(order):
    f = run.of_text("""
func.func @f(%x: tensor<?xf32> {fusion.shape = ["s0"]}, %n: tensor<si64> {fusion.scalar}) -> tensor<?xf32>
    attributes {fusion.device = "cpu"} {
  %0 = "fusion.slice"(%x) {start = ["v1"], size = ["s0-v1"], step = [1]} : (tensor<?xf32>) -> tensor<?xf32>
  %1 = "fusion.neg"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  return %1 : tensor<?xf32>
}""", passes=order)  # fmt: skip
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(f(x[1:6], 2)[0], [-3, -4, -5])
    assert f(x[1:6], 5)[0].shape == (0,)
    with pytest.raises(ShapeError, match="0 <= v1 does not hold: 0 against -1"):
        f(x[1:6], -1)


if __name__ == "__main__":
    problems = [p for seed in range(int(sys.argv[1]), int(sys.argv[2])) if (p := problem(seed))]
    print("\n".join(problems), f"{len(problems)} wrong", sep="\n")
    sys.exit(bool(problems))
