"""How long the tensor-level passes take by the number of ops: python benchmarks/passes.py [ops …]

The program is like a model's: chains of elementwise ops with long skips, softmax rows, a library op every dozen ops. Times are the best of
three, in milliseconds; the last column is the growth of the total against the growth of the program (1 is linear).
"""

from __future__ import annotations

import random
import sys
import time

from mlirfuse import dtypes as dt
from mlirfuse.builder import Builder
from mlirfuse.graph import Block, Graph, Value
from mlirfuse.passes.base import run_pipeline

PIPELINE = "fusion-decompose,fusion-cse,fusion-dce,fusion-group{single-op=true horizontal=true},fusion-segment"


def program(count: int, seed: int = 0) -> Graph:
    r = random.Random(seed)
    x, w = Value(dt.f32, (64, 64)), Value(dt.f32, (64, 64))
    graph = Graph("f", Block([x, w]))
    b = Builder(graph.body)
    values = [x, w]
    while len(graph.ops) < count:
        recent = values[-6:]
        draw = r.random()
        if draw < 0.08:
            values.append(b.op("matmul", r.choice(recent), w))
        elif draw < 0.5:
            values.append(b.op("add", r.choice(recent), r.choice(values if r.random() < 0.05 else recent)))
        elif draw < 0.55:
            values.append(b.op("softmax", values[-1]))
        elif draw < 0.7:
            values.append(b.op("mul", r.choice(recent), b.constant(float(r.randrange(3)), dt.f32)))
        else:
            values.append(b.op(r.choice(["exp", "tanh", "neg"]), r.choice(recent)))
    graph.body.returns = values[-6:]
    return graph


def main() -> None:
    counts = [int(n) for n in sys.argv[1:]] or [100, 300, 1000, 3000, 5000]
    run_pipeline([program(100)], PIPELINE)
    names, before = [], None
    for count in counts:
        best: dict[str, float] = {}
        for seed in range(3):
            graph = program(count, seed)
            made = len(graph.ops)
            run_pipeline([graph], PIPELINE, lambda step, ir, s: best.__setitem__(step.name, min(s, best.get(step.name, 1e9))))
        if not names:
            names = list(best)
            print(f"{'ops':>6} " + " ".join(f"{n.removeprefix('fusion-'):>10}" for n in names) + f" {'total':>10} {'growth':>7}")
        total = sum(best.values())
        growth = f"{(total / before[1]) / (made / before[0]):7.2f}" if before else ""
        print(f"{made:>6} " + " ".join(f"{1e3 * best[n]:10.1f}" for n in names) + f" {1e3 * total:10.1f} {growth}")
        before = (made, total)


if __name__ == "__main__":
    main()
