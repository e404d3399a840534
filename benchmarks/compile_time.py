#!/usr/bin/env python3
"""How long the tensor-level passes take, by the number of ops.

    python benchmarks/compile_time.py --json benchmarks/results/compile-time.json

Four families of graphs, 10 to 5000 ops: "block" (transformer-like: pointwise, norms over rows, products through a
library every 25 ops, residuals), "chain" (pointwise, one after another, an input mixed in now and then), "wide" (many
short branches that are summed) and "mixed" (drawn at random: pointwise, softmax rows, products through a library, long
skips). Each pass is timed alone, in processor time, the least of a few runs on fresh graphs. The total is of grouping
and segmentation; "growth" is its exponent between the last two sizes: 1 is linear, 2 quadratic.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time

import timing

SIZES = (10, 30, 100, 300, 1000, 2000, 5000)

TOTAL = "fusion-group", "fusion-segment"
BOUND = (300, 0.2)  # ops, seconds of the total


def _start(inputs: int, columns: int = 1024):
    from mlirfuse.ir import dtypes as dt
    from mlirfuse.ir import sizes as sz
    from mlirfuse.ir.builder import Builder
    from mlirfuse.ir.graph import Block, Graph, Value

    rows = sz.symbol("s0")
    block = Block([Value(dt.f32, (rows, columns), name=f"x{k}") for k in range(inputs)])
    graph = Graph("f", block, layouts=[None] * inputs)
    return graph, Builder(block)


def block_graph(count: int):
    graph, b = _start(4)
    h, residual, k = graph.args[0], graph.args[1], 0
    while len(graph.ops) < count:
        k += 1
        if k % 5 == 0:
            mean = b.op("mean", h, axes=(1,), keepdims=True)
            d = b.op("sub", h, mean)
            var = b.op("mean", b.op("mul", d, d), axes=(1,), keepdims=True)
            h = b.op("mul", d, b.op("rsqrt", b.op("add", var, b.constant(1e-5, h.dtype))))
        elif k % 7 == 0:
            h = residual = b.op("add", h, residual)
        elif k % 12 == 0:
            square = b.op("matmul", b.op("permute", h, dims=(1, 0)), h)
            h = b.op("matmul", h, square)
        else:
            h = b.op(("tanh", "exp", "neg", "abs")[k % 4], h)
            h = b.op("mul", h, graph.args[2 + k % 2])
    graph.body.returns = [h]
    return graph


def chain_graph(count: int):
    graph, b = _start(3)
    h, k = graph.args[0], 0
    while len(graph.ops) < count:
        k += 1
        h = b.op("add", h, graph.args[k % 3]) if k % 4 == 0 else b.op(("tanh", "neg", "abs")[k % 3], h)
    graph.body.returns = [h]
    return graph


def wide_graph(count: int):
    graph, b = _start(8)
    total, k = graph.args[0], 0
    while len(graph.ops) < count:
        branch = b.op("mul", graph.args[k % 8], b.constant(float(k), total.dtype))
        for name in ("tanh", "neg", "abs"):
            branch = b.op(name, branch)
        total = b.op("add", total, branch)
        k += 1
    graph.body.returns = [total]
    return graph


def mixed_graph(count: int):
    r = random.Random(0)
    graph, b = _start(2)
    values = list(graph.args)
    while len(graph.ops) < count:
        recent, draw = values[-6:], r.random()
        if draw < 0.04:
            square = b.op("matmul", b.op("permute", r.choice(recent), dims=(1, 0)), r.choice(recent))
            values.append(b.op("matmul", r.choice(recent), square))
        elif draw < 0.5:
            values.append(b.op("add", r.choice(recent), r.choice(values if r.random() < 0.05 else recent)))
        elif draw < 0.55:
            values.append(b.op("softmax", values[-1]))
        elif draw < 0.7:
            values.append(b.op("mul", r.choice(recent), b.constant(float(r.randrange(3)), values[0].dtype)))
        else:
            values.append(b.op(r.choice(["exp", "tanh", "neg"]), r.choice(recent)))
    graph.body.returns = values[-6:]
    return graph


FAMILIES = {"block": block_graph, "chain": chain_graph, "wide": wide_graph, "mixed": mixed_graph}


def pipeline() -> str:
    """The tensor-level passes that `jit` runs for this processor."""
    from mlirfuse.lowering import devices
    from mlirfuse.passes import pipelines

    return pipelines.to_segments(devices.host())


def run(graph) -> tuple[dict[str, float], dict]:
    """Seconds of each pass, and what came out."""
    from mlirfuse.passes import base

    seconds: dict[str, float] = {}
    for step in base.build(pipeline()):
        start = time.process_time()
        step.run(graph)
        seconds[step.name] = seconds.get(step.name, 0) + time.process_time() - start
    groups = {op.group for op in graph.ops if op.group is not None}
    segments = {op.segment for op in graph.ops if op.segment is not None}
    return seconds, {"groups": len(groups), "segments": len(segments)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="write every figure to this file")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--limit",
        type=float,
        default=60,
        help="seconds for one graph, after which larger ones of its family are left out",
    )
    options = parser.parse_args()
    try:
        timing.use_repository()
        from mlirfuse.passes import base

        base.build(pipeline())
    except Exception as error:
        print(f"compile_time.py: n/a ({timing.summary(error)})")
        return 1
    figures = []
    for family, make in FAMILIES.items():
        previous = None
        for count in (int(s) for s in options.sizes.split(",")):
            entry = {"family": family, "ops": count}
            figures.append(entry)
            begin = time.perf_counter()
            try:
                runs = []
                for _ in range(options.repeat):
                    graph = make(count)
                    entry["ops"] = len(graph.ops)
                    runs.append(run(graph))
                    if time.perf_counter() - begin > options.limit:
                        break
                least = {name: min(r[0][name] for r in runs) for name in runs[0][0]}
                entry.update(seconds=least, total=sum(least[name] for name in TOTAL), **runs[0][1])
            except Exception as error:
                entry["error"] = timing.summary(error)
                print(f"{family:<6} {count:>5} ops  failed: {entry['error']}")
                continue
            growth = ""
            if previous and entry["ops"] > previous["ops"]:
                entry["growth"] = math.log(entry["total"] / previous["total"]) / math.log(
                    entry["ops"] / previous["ops"]
                )
                growth = f", growth {entry['growth']:.2f}"
            bound = ""
            if abs(entry["ops"] - BOUND[0]) < 20:
                bound = f" (to reach {BOUND[1]} s: {'yes' if entry['total'] <= BOUND[1] else 'NO'})"
            passes = ", ".join(f"{n.removeprefix('fusion-')} {s * 1e3:.1f} ms" for n, s in least.items())
            an_op = f"{entry['total'] / entry['ops'] * 1e6:6.1f} µs an op"
            print(
                f"{family:<6} {entry['ops']:>5} ops  {passes}; {an_op}, {entry['groups']} groups, {entry['segments']} segments{growth}{bound}",
                flush=True,
            )
            previous = entry
            if entry["total"] > options.limit:
                break
    if options.json:
        import torch  # noqa: F401  (its version is part of the record)

        timing.write_json(
            options.json,
            {
                "benchmark": "compile_time",
                "environment": timing.environment(),
                "pipeline": pipeline(),
                "figures": figures,
            },
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
