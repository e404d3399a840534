#!/usr/bin/env python3
"""A sweep of sizes on the GPU: does any shape fall off a cliff?

    python benchmarks/gpu_sweep.py --json benchmarks/results/gpu-sweep-h100.json
    python benchmarks/gpu_sweep.py --peer compile --sample 60
    python benchmarks/gpu_sweep.py --table second --cap-mb 600 --json benchmarks/results/gpu-sweep-second-h100.json

Rows 16 to 131072 by columns 32 to 262144 (257, 770, 8191 and 50257 among them), in f32, bf16 and f16: softmax over each
axis, layer norm, sums over each axis and over all, pointwise, a bias, transpose, the backward of layer norm. The second
table: running sums along each axis, stencils, joins, slices, stacks, sums into rows at positions. Each point
is checked against float64 and timed beside the peer with CUDA events, the L2 cache flushed before each call. A point is
flagged where its share of a same-size copy is under 70% of the median of its neighbours' (the next sizes up and down in
rows and in columns), and where it takes more than 5% longer than the peer; flagged points are measured again, and count
if they are flagged then too. The number of variants that mlirfuse compiled is printed.
"""

from __future__ import annotations

import argparse
import collections
import functools
import os
import random
import statistics
import sys
import time

import timing

ROWS = (16, 64, 256, 1024, 4096, 8192, 32768, 131072)
COLUMNS = (32, 128, 257, 512, 770, 1024, 2048, 4096, 8191, 8192, 16384, 50257, 65536, 131072, 262144)
DTYPES = ("f32", "bf16", "f16")


def operations():
    """Name to (the mlirfuse function, the torch function, the reference's rows, kinds of the inputs: see
    :func:`shape_of`)."""
    import numpy as np
    import torch.nn.functional as F
    from workloads import EPS, layer_norm_backward, mnp

    backward = layer_norm_backward()
    return {
        "softmax": (lambda x: mnp.softmax(x, axis=-1), lambda x: F.softmax(x, -1), (0,), "x"),
        "softmax 0": (lambda x: mnp.softmax(x, axis=0), lambda x: F.softmax(x, 0), None, "x"),
        "layer norm": (
            lambda x, w, b: mnp.layer_norm(x, w, b, eps=EPS),
            lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b, EPS),
            (0,),
            "xwb",
        ),
        "sum 1": (lambda x: x.sum(1), lambda x: x.sum(1), (0,), "x"),
        "sum 0": (lambda x: x.sum(0), lambda x: x.sum(0), None, "x"),
        "sum": (lambda x: x.sum(), lambda x: x.sum(), None, "x"),
        "pointwise": (lambda x, y: np.maximum((x + y) * 1.5, 0), lambda x, y: F.relu((x + y) * 1.5), (0, 1), "xy"),
        "bias": (lambda x, b: np.maximum(x + b, 0), lambda x, b: F.relu(x + b), (0,), "xb"),
        "transpose": (lambda x: x.T.copy(), lambda x: x.t().contiguous(), None, "x"),
        "layer norm backward": (backward.fused, backward.torch, None, "xymrw"),
    }


def second_operations():
    """As :func:`operations`."""
    import numpy as np
    import torch
    from second_table import five_points, seven_taps

    def added(at, x):
        out = np.zeros(x.shape, x.dtype)
        np.add.at(out, at, x)
        return out

    return {
        "cumsum 1": (lambda x: np.cumsum(x, 1), lambda x: torch.cumsum(x, 1), (0,), "x"),
        "cumsum 0": (lambda x: np.cumsum(x, 0), lambda x: torch.cumsum(x, 0), None, "x"),
        "stencil": (five_points, five_points, None, "x"),
        "window": (seven_taps, seven_taps, (0,), "x"),
        "join": (
            lambda x, y: np.concatenate([x, y[:, :-1]], 1) * 2,
            lambda x, y: torch.cat([x, y[:, :-1]], 1) * 2,
            (0, 1),
            "xy",
        ),
        "slice": (lambda x: x[:, 3:-2] + 1, lambda x: x[:, 3:-2] + 1, (0,), "x"),
        "stack": (lambda x, y: np.stack([x, y * 2], 1), lambda x, y: torch.stack([x, y * 2], 1), (0, 1), "xy"),
        "sums into rows": (added, lambda at, x: torch.zeros_like(x).index_put_((at,), x, accumulate=True), None, "ix"),
    }


TABLES = {"first": operations, "second": second_operations}


def shape_of(kind: str, rows: int, columns: int) -> tuple[int, ...]:
    """Of an input: "x" and "y" are matrices, "w" and "b" have an element a column, "m" and "r", in float32, one a
    row, and "i" a position of a row for each row."""
    return (rows, columns) if kind in "xy" else (rows, 1) if kind in "mr" else (rows,) if kind == "i" else (columns,)


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="write every figure to this file")
    parser.add_argument("--peer", default="eager", choices=("eager", "compile", "none"))
    parser.add_argument(
        "--sample",
        type=int,
        default=0,
        help="compare with the peer at about this many points only (0: eager at all, compile at 60)",
    )
    parser.add_argument("--table", default="first", choices=TABLES)
    parser.add_argument("--ops", default="", help="only these of the table, by commas")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--columns", default=",".join(map(str, COLUMNS)))
    parser.add_argument("--cap-mb", type=float, default=2200, help="no matrix larger than this")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument(
        "--resolution-us", type=float, default=0.5, help="a difference from the peer smaller than this is not counted"
    )
    parser.add_argument(
        "--time-limit", type=float, default=560, help="seconds after which the points that are left are not run"
    )
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: a dry run of the script")
    parser.add_argument("--all", action="store_true", help="print every point, not only those that are flagged")
    return parser.parse_args(argv)


class Sweep:
    def __init__(self, options):
        import torch

        self.options, self.torch = options, torch
        self.operations = TABLES[options.table]()
        self.cuda = options.device == "cuda"
        self.timer = timing.CudaTimer() if self.cuda else timing.HostTimer()
        self.copies = timing.Copies(self.timer)
        self.mlirfuse = None
        self.store: dict = {}

    def matrix(self, name, dtype, rows, columns, turn):
        """A matrix over random data made once for each dtype: 256 distinct megabytes of elements, repeated. Of another
        ``turn``, another part of them."""
        torch = self.torch
        need = rows * columns
        start = turn * (need + -need % 128)
        have = self.store.get((name, dtype))
        if have is None or have.numel() < start + need:
            self.store.pop((name, dtype), None)
            cap = int(self.options.cap_mb * 1e6) // dtype.itemsize
            size = min(cap, max(start + need, 1 << 24)) if not self.cuda else max(cap, start + need)
            draw = torch.empty(size, dtype=dtype, device=self.options.device)
            generator = torch.Generator(device=self.options.device).manual_seed(len(self.store) + 1)
            step = 1 << 26
            for k in range(0, size, step):
                part = draw[k : k + step]
                part.copy_(torch.randn(part.numel(), device=self.options.device, generator=generator))
            self.store[name, dtype] = have = draw
        return have[start : start + need].view(rows, columns)

    def inputs(self, kinds, dtype, rows, columns, turn=0) -> list:
        shapes = [shape_of(k, rows, columns) for k in kinds]
        types = [self.torch.float32 if k in "mr" else dtype for k in kinds]
        return [
            self.positions(rows, turn) if k == "i" else self.matrix(k, of, *(1, *shape)[-2:], turn).view(shape)
            for k, of, shape in zip(kinds, types, shapes)
        ]

    def positions(self, rows, turn):
        """A random row for each row."""
        generator = self.torch.Generator(device=self.options.device).manual_seed(turn)
        return self.torch.randint(0, rows, (rows,), device=self.options.device, generator=generator)

    def point(self, op, dtype_name, rows, columns, fused, with_peer) -> dict:
        torch = self.torch
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype_name]
        fn, torch_fn, chunk_rows, kinds = self.operations[op]
        inputs = self.inputs(kinds, dtype, rows, columns)
        turns = timing.turns(sum(t.numel() * t.element_size() for t in inputs)) if self.cuda else 1
        sets = [inputs, *(self.inputs(kinds, dtype, rows, columns, turn) for turn in range(1, turns))]
        point = {"op": op, "dtype": dtype_name, "rows": rows, "columns": columns}
        samplers = {}
        like = timing.as_tuple(torch_fn(*inputs))
        nbytes = sum(t.numel() * t.element_size() for t in [*inputs, *like])
        point["model_bytes"] = nbytes
        try:
            if self.mlirfuse is None:
                self.mlirfuse = timing.Mlirfuse()
            if op not in fused:
                fused[op] = self.mlirfuse.jit(fn)
            from gpu import to_numpy

            calls = [functools.partial(fused[op], *(given if self.cuda else map(to_numpy, given))) for given in sets]
            call = calls[0]
            variants = self.mlirfuse.variants() or 0
            start = time.perf_counter()
            results = call()
            self.timer.synchronize()
            point["first_ms"] = (time.perf_counter() - start) * 1e3
            point["compiled"] = (self.mlirfuse.variants() or 0) - variants
            if not self.options.no_check:
                timing.poison(results, inputs)
                del results
                terms = {"sum 1": columns, "sum 0": rows, "sum": rows * columns, "layer norm backward": rows}.get(op, 0)
                point["errors"] = timing.compare(call(), inputs, torch_fn, chunk_rows, like, floor=terms**0.5)
            call = timing.in_turn(calls)
            samplers["mlirfuse"] = (self.timer, call, self.timer.host_seconds(call))
        except Exception as error:
            point["error"] = timing.summary(error)
            if self.cuda:
                torch.cuda.synchronize()  # raises where the context is gone: the sweep ends there
        del like
        if with_peer:
            peer_fn = torch_fn
            if self.options.peer == "compile":
                torch._dynamo.reset()
                peer_fn = torch.compile(torch_fn, dynamic=False)
            peer = timing.in_turn([functools.partial(peer_fn, *given) for given in sets])
            try:
                peer()
                samplers["peer"] = (self.timer, peer, self.timer.host_seconds(peer))
            except Exception as error:
                point["peer_error"] = timing.summary(error)
        times = timing.interleaved(samplers, 2, -(-self.options.calls // 2))
        copy = self.copies.milliseconds(nbytes)
        for name, values in times.items():
            point["ms" if name == "mlirfuse" else "peer_ms"] = timing.steady(values)
        point["copy_ms"] = copy
        if "ms" in point:
            point["share"] = copy / point["ms"]
        return point


def grid(options):
    import torch  # noqa: F401

    names = [o.strip() for o in options.ops.split(",") if o.strip()] or list(TABLES[options.table]())
    rows = [int(r) for r in options.rows.split(",")]
    columns = [int(c) for c in options.columns.split(",")]
    points = []
    for op in names:
        for dtype in options.dtypes.split(","):
            size = 4 if dtype == "f32" else 2
            points += [(op, dtype, r, c) for r in rows for c in columns if r * c * size <= options.cap_mb * 1e6]
    return points


def flag(points, resolution_ms: float) -> None:
    """Adds ``neighbours`` (the median of their shares), ``cliff`` and ``slower`` to points."""
    at = {(p["op"], p["dtype"], p["rows"], p["columns"]): p for p in points}
    axis = {"rows": sorted({p["rows"] for p in points}), "columns": sorted({p["columns"] for p in points})}
    for p in points:
        if "share" not in p:
            continue
        near = []
        for which in ("rows", "columns"):
            k = axis[which].index(p[which])
            for j in (k - 1, k + 1):
                if 0 <= j < len(axis[which]):
                    key = (
                        p["op"],
                        p["dtype"],
                        axis[which][j] if which == "rows" else p["rows"],
                        axis[which][j] if which == "columns" else p["columns"],
                    )
                    if "share" in at.get(key, {}):
                        near.append(at[key]["share"])
        p["neighbours"] = statistics.median(near) if near else None
        p["cliff"] = bool(near) and p["share"] < 0.7 * p["neighbours"]
        if "peer_ms" in p:
            p["slower"] = p["ms"] > 1.05 * p["peer_ms"] and p["ms"] - p["peer_ms"] > resolution_ms


def again(sweep, p, fused) -> dict:
    """A flagged point measured a second time, with what its first call took and ``before_ms``: something else on the
    machine strikes once."""
    second = sweep.point(p["op"], p["dtype"], p["rows"], p["columns"], fused, "peer_ms" in p)
    return (
        second | {"first_ms": p["first_ms"], "compiled": p["compiled"], "before_ms": p["ms"]} if "ms" in second else p
    )


def line_of(p) -> str:
    text = f"{p['op']:<19} {p['dtype']:>4} {p['rows']:>7}×{p['columns']:<7}"
    if "ms" not in p:
        return f"{text} failed: {p.get('error')}"
    text += f" {p['ms']:8.4f} ms, {p['share']:4.0%} of copy"
    if p.get("neighbours"):
        text += f", neighbours {p['neighbours']:4.0%}{' CLIFF' if p['cliff'] else ''}"
    if "peer_ms" in p:
        text += f", peer {p['peer_ms']:8.4f} ms ({p['peer_ms'] / p['ms']:.2f}x){' SLOWER' if p['slower'] else ''}"
    return text


def main() -> int:
    options = arguments()
    timing.cold_caches()
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("gpu_sweep.py: torch sees no CUDA device here (--device cpu is a dry run of the script)", file=sys.stderr)
        return 2
    torch.set_grad_enabled(False)
    sweep = Sweep(options)
    todo = grid(options)
    sample = options.sample or (60 if options.peer == "compile" else 0)
    chosen = set(random.Random(0).sample(range(len(todo)), min(sample, len(todo)))) if sample else range(len(todo))
    points, fused, begin = [], {}, time.monotonic()
    for k, (op, dtype, rows, columns) in enumerate(todo):
        if time.monotonic() - begin > options.time_limit:
            print(f"# time limit: {len(todo) - k} of {len(todo)} points were not run")
            break
        try:
            points.append(sweep.point(op, dtype, rows, columns, fused, options.peer != "none" and k in chosen))
        except Exception as error:  # the peer's own failure, or the CUDA context is gone
            points.append({"op": op, "dtype": dtype, "rows": rows, "columns": columns, "error": timing.summary(error)})
            if options.device == "cuda":
                try:
                    torch.cuda.synchronize()
                except Exception:
                    print(f"# the CUDA context is gone after {op} {dtype} {rows}×{columns}: {timing.summary(error)}")
                    break
    flag(points, options.resolution_us / 1e3)
    sweep.copies.best.clear()
    for at, p in enumerate(points):
        if p.get("cliff") or p.get("slower"):
            points[at] = again(sweep, p, fused)
    flag(points, options.resolution_us / 1e3)
    measured = [p for p in points if "ms" in p]
    cliffs, slower = [p for p in measured if p["cliff"]], [p for p in measured if p.get("slower")]
    failed = [p for p in points if "ms" not in p]
    if options.all:
        for p in points:
            print(line_of(p))
    for title, found in (
        ("under 70% of their neighbours' median", cliffs),
        (f"more than 5% slower than {options.peer}", slower),
    ):
        print(f"\n{len(found)} points {title}")
        for p in sorted(found, key=lambda p: p["share"])[:60]:
            print("  " + line_of(p))
    print(f"\n{len(failed)} points failed")
    for why, count in collections.Counter(p.get("error") for p in failed).most_common(10):
        example = next(p for p in failed if p.get("error") == why)
        print(
            f"  {count} times, first at {example['op']} {example['dtype']} {example['rows']}×{example['columns']}: {why}"
        )
    print(f"\n{len(measured)} points measured in {time.monotonic() - begin:.0f} s")
    by_op = collections.defaultdict(list)
    for p in measured:
        by_op[p["op"]].append(p)
    for op, chosen in by_op.items():
        shares = sorted(p["share"] for p in chosen)
        over = timing.geometric_mean(p["peer_ms"] / p["ms"] for p in chosen if "peer_ms" in p)
        print(
            f"  {op:<19} variants compiled {sum(p.get('compiled', 0) for p in chosen):>3}, share of copy: least {shares[0]:.0%}, "
            f"median {statistics.median(shares):.0%}" + (f", {over:.2f}x {options.peer}" if over else "")
        )
    total = sweep.mlirfuse.counters() if sweep.mlirfuse else {}
    print(
        f"variants compiled over the sweep: {total.get('compiled_programs', '?')}, kinds: {total.get('specializations', '?')}, fallbacks: {total.get('fallbacks', '?')}"
    )
    if options.json:
        timing.write_json(options.json, {
            "benchmark": "gpu_sweep", "environment": timing.environment(), "peer": options.peer, "calls": options.calls,
            "resolution_us": options.resolution_us, "counters": total, "cliffs": len(cliffs), "slower": len(slower), "failed": len(failed),
            "points": points,
        })  # fmt: skip
    return 0


if __name__ == "__main__":
    os.chdir(timing.ROOT)
    sys.exit(main())
