#!/usr/bin/env python3
"""Shapes of every class on the CPU, beside NumPy and torch: is there one that falls off a cliff?

    python benchmarks/cpu_sweep.py --json benchmarks/results/cpu-sweep.json

Each case is an operation and a shape. The implementations are called in turn; the figures are medians over the rounds
(with ``--least`` minima, for a machine that others work on). "ratio" is the best peer's time over mlirfuse's; a ratio
under 0.9 is flagged. "GB/s" counts each input read once and each output written once. Results are compared with a
float64 reference in the same run, and variants compiled for each operation are counted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np
import timing

BOUND = 0.9


def _softmax(axis):
    def numpy_(x):
        e = np.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    return numpy_, lambda torch: lambda x: torch.softmax(x, axis)


def _layer_norm():
    def numpy_(x):
        d = x - x.mean(-1, keepdims=True)
        return d / np.sqrt((d * d).mean(-1, keepdims=True) + np.float32(1e-5))

    return numpy_, lambda torch: lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-5)


def _batch_norm():
    def numpy_(x):
        axes = (0, *range(2, x.ndim))
        d = x - x.mean(axes, keepdims=True)
        return d / np.sqrt((d * d).mean(axes, keepdims=True) + np.float32(1e-5))

    return numpy_, lambda torch: lambda x: torch.nn.functional.batch_norm(x, None, None, training=True, eps=1e-5)


def _reduce(name, axis):
    def torch_(torch):
        if name in ("max", "min") and axis is not None:
            return lambda x: getattr(torch, "a" + name)(x, axis)
        return (lambda x: getattr(x, name)()) if axis is None else lambda x: getattr(x, name)(axis)

    return lambda x: getattr(x, name)(axis), torch_


def _elementwise(numpy_, torch_=None):
    return numpy_, lambda torch: torch_(torch) if torch_ else numpy_


def _scan(numpy_, torch_, axis):
    return lambda x: numpy_(x, axis), lambda torch: lambda x: torch_(torch)(x, axis)


def _added_at(rows):
    """Values added to so many rows, chosen by the fractions of a column."""

    def numpy_(v, where):
        out = np.zeros((rows, v.shape[1]), v.dtype)
        np.add.at(out, ((where[:, 0] - 0.5) / 4 * rows).astype(np.int64), v)
        return out

    def torch_(torch):
        def call(v, where):
            at = ((where[:, 0] - 0.5) / 4 * rows).long()
            return torch.zeros(rows, v.shape[1], dtype=v.dtype).index_add_(0, at, v)

        return call

    return numpy_, torch_


def _transpose(order):
    return lambda x: np.transpose(x, order).copy(), lambda torch: lambda x: x.permute(order).contiguous()


def cases(elements: int):
    """(operation, shape, dtype, extra shapes, (numpy function, torch function of the module)) with about ``elements``
    elements each."""
    rows = lambda n: (max(1, elements // n), n)  # noqa: E731
    widths = (2, 3, 8, 15, 16, 31, 64, 100, 257, 770, 1024, 4096, 16384, 65536, 262144)
    f32, f16, f64 = "float32", "float16", "float64"
    for n in widths:
        yield "softmax, inner", rows(n), f32, (), _softmax(-1)
        yield "layer norm", rows(n), f32, (), _layer_norm()
        yield "sum, inner", rows(n), f32, (), _reduce("sum", -1)
        yield "max, inner", rows(n), f32, (), _reduce("max", -1)
        yield "sum, outer", rows(n), f32, (), _reduce("sum", 0)
        yield "softmax, outer", rows(n), f32, (), _softmax(0)
        yield "x + bias", rows(n), f32, (n,), _elementwise(lambda x, b: x + b)
        yield "x * column", rows(n), f32, ((max(1, elements // n), 1)), _elementwise(lambda x, b: x * b)
        yield "transpose", rows(n), f32, (), _transpose((1, 0))
        yield "cumsum, inner", rows(n), f32, (), _scan(np.cumsum, lambda torch: torch.cumsum, -1)
        yield "cumsum, outer", rows(n), f32, (), _scan(np.cumsum, lambda torch: torch.cumsum, 0)
    for n in (1, 3, 64, 770, 4096):
        for few in (4, 4096):
            yield f"added at {few} rows", rows(n), f32, (rows(n)[0], 1), _added_at(few)
    for dtype in (f16, f64, "int64"):
        yield "cumsum, inner", rows(1024), dtype, (), _scan(np.cumsum, lambda torch: torch.cumsum, -1)
    for axis in (-1, 0):
        maxima = _scan(np.maximum.accumulate, lambda torch: lambda x, d: torch.cummax(x, d).values, axis)
        yield f"cummax, {('outer', 'inner')[axis]}", rows(1024), f32, (), maxima
        logs = _scan(np.logaddexp.accumulate, lambda torch: torch.logcumsumexp, axis)
        yield f"logcumsumexp, {('outer', 'inner')[axis]}", rows(1024), f32, (), logs
    for n in (100, 4096):
        yield "argmax, inner", rows(n), f32, (), _reduce("argmax", -1)
        yield "argmax, outer", rows(n), f32, (), _reduce("argmax", 0)
        yield "softmax, inner", rows(n), f64, (), _softmax(-1)
        yield "softmax, inner", rows(n), f16, (), _softmax(-1)
        yield "sum, inner", rows(n), "int32", (), _reduce("sum", -1)
        yield "sum, inner", rows(n), "uint8", (), _reduce("sum", -1)
        yield "any, inner", rows(n), "bool", (), _reduce("any", -1)
    yield "sum of all", (elements,), f32, (), _reduce("sum", None)
    yield "max of all", (elements,), f32, (), _reduce("max", None)
    yield "softmax of all", (1, elements), f32, (), _softmax(-1)
    for shape in (
        (8, 64, elements // 512),
        (64, 256, elements // 64 // 256),
        (elements // 64, 64),
        (4, 3, elements // 12),
        (256, elements // 256 // 4, 4),
    ):
        yield "batch norm", shape, f32, (), _batch_norm()
        if len(shape) == 3:
            yield "sum, middle", shape, f32, (), _reduce("sum", 1)
            yield "permute (0, 2, 1)", shape, f32, (), _transpose((0, 2, 1))
            yield "permute (1, 0, 2)", shape, f32, (), _transpose((1, 0, 2))
            yield "permute (2, 1, 0)", shape, f32, (), _transpose((2, 1, 0))
    for dtype in (f32, f64, f16, "uint8", "int64"):
        yield "x + y", (elements,), dtype, (elements,), _elementwise(lambda x, y: x + y)
        yield "transpose", rows(1024), dtype, (), _transpose((1, 0))
    for name in ("exp", "tanh", "log", "sin", "sqrt"):
        yield name, (elements,), f32, (), _elementwise(getattr(np, name), lambda torch, name=name: getattr(torch, name))
    for dtype in (f32, "uint8"):
        yield "x[:, ::2] + y", rows(1024), dtype, (elements // 1024, 512), _elementwise(lambda x, y: x[:, ::2] + y)
        yield "x[:, ::3] + y", rows(1536), dtype, (elements // 1536, 512), _elementwise(lambda x, y: x[:, ::3] + y)
        yield (
            "x[:, ::-1] + y",
            rows(1024),
            dtype,
            rows(1024),
            _elementwise(lambda x, y: x[:, ::-1] + y, lambda torch: lambda x, y: x.flip(1) + y),
        )
    yield (
        "where(x > 0, x, y)",
        (elements,),
        f32,
        (elements,),
        _elementwise(lambda x, y: np.where(x > 0, x, y), lambda torch: lambda x, y: torch.where(x > 0, x, y)),
    )


def inputs(shape, dtype, extra):
    rng = np.random.default_rng(0)

    def draw(shape):
        if dtype == "bool":
            return rng.random(shape) < 1e-3
        return (rng.random(shape, np.float32) * 4 + 0.5).astype(dtype)

    return [draw(shape)] + ([draw(extra)] if extra else [])


def measure(calls: dict, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each implementation, in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    once = {}
    for name, call in calls.items():
        start = time.perf_counter()
        call()
        once[name] = time.perf_counter() - start
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(max(1, min(20, int(seconds / rounds / max(once[name], 1e-7))))):
                start = time.perf_counter()
                result = call()
                times[name].append((time.perf_counter() - start) * 1e3)
                del result
    return times


def run(case, mlirfuse, torch, options) -> dict:
    operation, shape, dtype, extra, (numpy_, torch_) = case
    extra = (extra,) if isinstance(extra, int) else tuple(extra)
    given = inputs(shape, dtype, extra)
    row = {"operation": operation, "shape": list(shape), "dtype": dtype}
    fn = mlirfuse.jit(numpy_)
    before = mlirfuse.variants() or 0
    result = fn(*given)
    row["variants"] = (mlirfuse.variants() or 0) - before
    if np.asarray(result).dtype.kind == "f":
        expected = numpy_(*(a.astype(np.float64) for a in given))
        scale = np.abs(expected) + np.abs(expected).max() * 0.1 + 1e-30
        error = lambda r: float(np.max(np.abs(np.asarray(r, np.float64) - expected) / scale))  # noqa: E731
        row["error"], bound = error(result), {2: 5e-3, 4: 1e-5, 8: 1e-13}[np.asarray(result).dtype.itemsize]
        if not row["error"] < bound and not row["error"] < 2 * error(
            numpy_(*given)
        ):  # a norm of two nearly equal numbers is what any arithmetic makes of it
            row["wrong"] = True
    nbytes = sum(a.nbytes for a in given) + np.asarray(result).nbytes
    del result
    calls = {"mlirfuse": lambda: fn(*given), "numpy": lambda: numpy_(*given)}
    tensors = [torch.from_numpy(a) for a in given]
    theirs = torch_(torch)
    try:
        theirs(*tensors)
        calls["torch"] = lambda: theirs(*tensors)
    except Exception as error:
        row["torch_error"] = timing.summary(error)
    of = min if options.least else statistics.median
    row["ms"] = {name: of(values) for name, values in measure(calls, options.rounds, options.seconds).items()}
    row["ratio"] = min(v for name, v in row["ms"].items() if name != "mlirfuse") / row["ms"]["mlirfuse"]
    row["gb_s"] = nbytes / row["ms"]["mlirfuse"] / 1e6
    return row


def line_of(row) -> str:
    what = f"{row['operation']:<20} {' × '.join(map(str, row['shape'])):<18} {row['dtype']:<8}"
    times = "  ".join(f"{name} {ms:9.4f}" for name, ms in row["ms"].items())
    flag = "  WRONG" if row.get("wrong") else "" if row["ratio"] >= BOUND else "  <<<"
    return f"{what} {times} ms  {row['gb_s']:6.1f} GB/s  ratio {row['ratio']:5.2f}{flag}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="write every figure to this file")
    parser.add_argument(
        "--elements", type=int, action="append", help="elements of a case, about (may be given again; 2^16 and 2^22)"
    )
    parser.add_argument("--only", action="append", default=[], help="only cases whose operation holds this text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each implementation and case, about")
    parser.add_argument("--least", action="store_true", help="minima instead of medians")
    options = parser.parse_args()
    timing.cold_caches()
    import torch

    torch.set_grad_enabled(False)
    mlirfuse = timing.Mlirfuse()
    timing.warn_of_load()
    rows = []
    for elements in options.elements or (1 << 16, 1 << 22):
        for case in cases(elements):
            if options.only and not any(text in case[0] for text in options.only):
                continue
            try:
                rows.append(run(case, mlirfuse, torch, options))
                print(line_of(rows[-1]), flush=True)
            except Exception as error:
                rows.append(
                    {"operation": case[0], "shape": list(case[1]), "dtype": case[2], "failed": timing.summary(error)}
                )
                print(f"{case[0]:<20} {case[1]} {case[2]}: FAILED {rows[-1]['failed']}", flush=True)
    good = [r for r in rows if "ratio" in r]
    low = [r for r in good if r["ratio"] < BOUND]
    print(f"\n{len(good)} cases, {sum('failed' in r for r in rows)} failed, {sum('wrong' in r for r in rows)} wrong; {len(low)} under {BOUND} of the best peer; "
          f"geometric mean {timing.geometric_mean(r['ratio'] for r in good):.2f}x")  # fmt: skip
    for row in sorted(low, key=lambda r: r["ratio"])[:40]:
        print("  " + line_of(row))
    if options.json:
        timing.write_json(
            options.json,
            {"benchmark": "cpu_sweep", "environment": timing.environment(), "least": options.least, "rows": rows},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
