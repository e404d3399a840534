"""Graphs whose sizes are related only by their ops, through the pass orders that the reference allows: with sizes that
hold a call gives what NumPy gives, with others an error, and nothing beside a tensor is read.

``python test/py/test_guarded_sizes.py FIRST LAST`` runs more graphs by hand.
"""

import random
import sys

import numpy as np
import pytest

from mlirfuse.dialects import fusion
from mlirfuse.passes import base
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.schedule import targets

ORDERS = [
    "fusion-decompose,fusion-group{single-op=true},fusion-guard,fusion-segment",
    "fusion-decompose,fusion-group{single-op=true},fusion-shapes{annotate=false},fusion-guard,fusion-segment",
    "fusion-decompose,fusion-group{single-op=true},fusion-guard,fusion-prune-outputs,fusion-segment",
    "fusion-decompose,fusion-group{single-op=true},fusion-guard,fusion-shapes{annotate=false},fusion-cse,fusion-dce,"
    "fusion-segment",
    "fusion-graph-fuser{single-op=true}",
]


def argument(name: str, *shape: str) -> str:
    strides = ["1"] if len(shape) == 1 else [shape[1], "1"]
    listed = ", ".join(f'"{n}"' for n in shape)
    lines = ", ".join(f'"{n}"' for n in strides)
    extents = "x".join("?" for _ in shape)
    return f"%{name}: tensor<{extents}xf32> {{fusion.shape = [{listed}], fusion.strides = [{lines}]}}"


class Case:
    """A graph that adds tensors of related sizes, in text, with its NumPy reference."""

    def __init__(self, seed: int):
        r = random.Random(seed)
        self.order = r.choice(ORDERS)
        kind = r.choice(["product", "equal", "twice", "joined", "reshaped"])
        m, n = r.randint(2, 5), r.randint(2, 6)
        wrong = r.random() < 0.5
        more = r.choice([-1, 1, 7]) * wrong
        one, two = "tensor<?xf32>", "tensor<?x?xf32>"
        if kind == "product":
            args, shapes = [argument("x", "s0", "s1"), argument("b", "s2")], [(m, n), (m * n + more,)]
            body = [f'%0 = "fusion.reshape"(%x) {{shape = ["s0*s1"]}} : ({two}) -> {one}',
                    f'%1 = "fusion.add"(%0, %b) : ({one}, {one}) -> {one}']  # fmt: skip
            self.reference = lambda x, b: x.reshape(-1) + b
        elif kind == "equal":
            args, shapes = [argument("x", "s0"), argument("b", "s1"), argument("c", "s2")], [(m,), (m,), (m + more,)]
            body = [f'%0 = "fusion.add"(%x, %b) : ({one}, {one}) -> {one}',
                    f'%1 = "fusion.mul"(%0, %c) : ({one}, {one}) -> {one}']  # fmt: skip
            self.reference = lambda x, b, c: (x + b) * c
        elif kind == "twice":
            args = [argument("x", "s0", "s1"), argument("y", "s2", "s3"), argument("b", "s4")]
            shapes = [(m, n), (n, m), (m * n + more,)]
            body = [f'%0 = "fusion.reshape"(%x) {{shape = ["s0*s1"]}} : ({two}) -> {one}',
                    f'%2 = "fusion.reshape"(%y) {{shape = ["s2*s3"]}} : ({two}) -> {one}',
                    f'%3 = "fusion.add"(%0, %2) : ({one}, {one}) -> {one}',
                    f'%1 = "fusion.add"(%3, %b) : ({one}, {one}) -> {one}']  # fmt: skip
            self.reference = lambda x, y, b: x.reshape(-1) + y.reshape(-1) + b
        elif kind == "joined":
            args, shapes = [argument("x", "s0"), argument("b", "s1")], [(m,), (2 * m + more,)]
            body = [f'%0 = "fusion.concatenate"(%x, %x) {{axis = 0}} : ({one}, {one}) -> {one}',
                    f'%1 = "fusion.add"(%0, %b) : ({one}, {one}) -> {one}']  # fmt: skip
            self.reference = lambda x, b: np.concatenate([x, x]) + b
        else:
            args, shapes = [argument("x", "s0", "s1"), argument("b", "s2", "s3")], [(m, n), (n, m + more)]
            body = [f'%0 = "fusion.reshape"(%x) {{shape = ["s2", "s3"]}} : ({two}) -> {two}',
                    f'%2 = "fusion.add"(%0, %b) : ({two}, {two}) -> {two}',
                    f'%1 = "fusion.reshape"(%2) {{shape = ["s2*s3"]}} : ({two}) -> {one}']  # fmt: skip
            self.reference = lambda x, b: (x.reshape(b.shape) + b).reshape(-1)
        self.holds = not wrong
        self.text = (
            "\n  ".join(
                [
                    f'func.func @f({", ".join(args)}) -> {one} attributes {{fusion.device = "cpu"}} {{',
                    *body,
                    f"return %1 : {one}",
                ]
            )
            + "\n}"
        )
        # Amid other memory: what is read beside an array is no number.
        self.arrays = []
        for shape in shapes:
            held = np.full(int(np.prod(shape)) + 64, np.nan, np.float32)
            inner = held[: int(np.prod(shape))]
            inner[:] = np.arange(len(inner))
            self.arrays.append(inner.reshape(shape))

    def problem(self) -> str | None:
        """What is wrong, or None."""
        program = base.IR(fusion.parse(self.text))
        base.run_pipeline(program, f"builtin.module({self.order})")
        (graph,) = fusion.read(fusion.parse(program.as_text(False)))  # what is written is what runs
        env = {}
        for value, array in zip(graph.args, self.arrays):
            env |= {str(n): k for n, k in zip(value.shape, array.shape) if not isinstance(n, int) and n.is_symbol}
        host = HostProgram(graph, targets.of("cpu"))
        try:
            (given,) = host.run(list(self.arrays), env)
        except (ValueError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}" if self.holds else None
        try:
            wanted = self.reference(*self.arrays)
        except ValueError:
            return f"no error; {given}"
        return None if np.array_equal(given, wanted) else f"{given}"  # one element broadcasts, unfused


def problem(seed: int) -> str | None:
    case = Case(seed)
    found = case.problem()
    return None if found is None else f"{seed}: {found}\n{case.order}\n{[a.shape for a in case.arrays]}\n{case.text}"


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_orders(first):
    problems = [p for seed in range(first, first + 20) if (p := problem(seed))]
    assert not problems, "\n".join(problems)


if __name__ == "__main__":
    problems = [p for seed in range(int(sys.argv[1]), int(sys.argv[2])) if (p := problem(seed))]
    print("\n".join(problems), f"{len(problems)} wrong", sep="\n")
    sys.exit(bool(problems))
