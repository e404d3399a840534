#!/usr/bin/env python3
"""Small programs of torch beside eager, Inductor and a copy: pools, what stands around convolutions, reductions, index
ops (``kernel_cases.py``), and four-dimensional tensors drawn at random.

    python benchmarks/torch_kernels.py --json benchmarks/results/torch-kernels-h200.json
    python benchmarks/torch_kernels.py --groups drawn --draw 60 --json benchmarks/results/torch-drawn-h200.json
    OMP_NUM_THREADS=1 python benchmarks/torch_kernels.py --device cpu --only "resizing;pool;Mish" --lanes 1

Processes (``--lanes``) compile side by side, wait for each other, and then measure one by one, each case's
implementations in turns. Inductor's choice among its own candidates is made then, too, on a GPU that nothing else uses.
Results, and gradients where an input wants one, are compared with eager's in float64: an implementation's error counts
where it is more than three times eager's, and than the type's rounding. A row is flagged where it is below 0.97 of the
better peer and half a microsecond behind it, a drawn point also under 70% of its neighbours' median share of a copy;
flagged ones are measured again. On a CPU times are one thread's processor time, and batches are divided by 16.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import itertools
import multiprocessing
import os
import queue
import statistics
import sys
import threading
import time
import types

import timing

IMPLEMENTATIONS = ("eager", "inductor", "mlirfuse")
PATIENCE = 8  # seconds that processes wait for those that still compile, and for the last rows
LIMIT, RESOLUTION_MS, CLIFF = 0.97, 0.5e-3, 0.7
ROUNDING = {"f32": 2e-6, "bf16": 8e-3, "f16": 1e-3}  # of the norm; products of float32 on a GPU are in TF32
TF32 = 2e-3


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="write every figure to this file")
    parser.add_argument("--groups", default="pools,convolutions,reductions,index_ops", help="of cases, or drawn")
    parser.add_argument("--only", default="", help="cases with one of these in their names, by semicolons")
    parser.add_argument("--sizes", type=int, default=5, help="the first sizes of each kind of case")
    parser.add_argument("--peers", default="eager,inductor", help="eager is the check's reference for errors, too")
    parser.add_argument("--draw", type=int, default=60, help="families of four drawn points each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--lanes", type=int, default=max(1, (os.cpu_count() or 1) - 2), help="processes that compile")
    parser.add_argument("--compile-limit", type=float, default=400, help="seconds after which nothing more is compiled")
    parser.add_argument("--time-limit", type=float, default=560, help="seconds after which nothing more is measured")
    parser.add_argument("--calls", type=int, default=24)
    parser.add_argument("--divide", type=int, default=0, help="the batch by this (0: 16 on a CPU, 1 else)")
    return parser.parse_args(argv)


def chosen_cases(options) -> list:
    import kernel_cases

    found = []
    for group in options.groups.split(","):
        found += kernel_cases.drawn(options.draw, options.seed) if group == "drawn" else getattr(kernel_cases, group)()
    names = [name for name in options.only.split(";") if name]
    divide = options.divide or (16 if options.device == "cpu" else 1)
    seen = collections.defaultdict(itertools.count)
    found = [case for case in found if not names or any(name in case.name for name in names)]
    found = [case for case in found if case.family is not None or next(seen[case.name]) < options.sizes]
    return [dataclasses.replace(case, inputs=divided(case.inputs, divide)) for case in found]


def divided(inputs, by: int) -> tuple:
    """Inputs with the first input's batch divided, wherever that extent comes first."""
    batch = inputs[0].shape[0]
    less = lambda i: i.shape[0] == batch and i.scale == 1  # noqa: E731  (weights have another scale)
    return tuple(
        dataclasses.replace(i, shape=(max(1, batch // by), *i.shape[1:])) if by > 1 and less(i) else i for i in inputs
    )


class LaterTuning:
    """Puts off Inductor's choice among a kernel's candidates: while others compile it would measure them, too."""

    def __init__(self):
        self.compiling, self.found = True, []
        try:
            from torch._inductor.runtime.triton_heuristics import CachingAutotuner
        except ImportError:
            return
        tune = CachingAutotuner.autotune_to_one_config

        def later(tuner, *args, **kwargs):
            if not self.compiling:
                return tune(tuner, *args, **kwargs)
            self.found.append((tuner, list(tuner.launchers)))
            tuner.launchers = tuner.launchers[:1]

        CachingAutotuner.autotune_to_one_config = later

    def taken(self) -> list:
        found, self.found = self.found, []
        return found


def flat_gradients(found) -> list:
    """The results and gradients of a call with gradients, as one list."""
    return [tensor for part in found for tensor in part]


class Lane:
    """A process that compiles cases and later measures them."""

    def __init__(self, options):
        timing.use_repository()
        import torch

        import mlirfuse.torch  # noqa: F401  (the back end)

        torch.set_num_threads(1)
        torch.set_float32_matmul_precision("high")
        torch._dynamo.config.recompile_limit = 10**6
        torch._dynamo.config.accumulated_recompile_limit = 10**6
        self.torch, self.options, self.cuda = torch, options, options.device == "cuda"
        self.tuning = LaterTuning()
        self.timer = timing.CudaTimer() if self.cuda else timing.ProcessTimer()
        self.copies = timing.Copies(self.timer)
        self.programs = 0

    def inputs(self, case, turn: int = 0):
        """Tensors, and the gradients that come in."""
        torch = self.torch
        generator = torch.Generator(device=self.options.device).manual_seed(turn + 1)
        made = [given.make(self.options.device, generator) for given in case.inputs]
        for given, tensor in zip(case.inputs, made):
            tensor.requires_grad_(given.gradient)
        return made

    def call(self, case, fn, tensors, incoming=None):
        """A call without arguments: results, and gradients."""
        wanted = [t for t in tensors if t.requires_grad]
        if not wanted:
            return functools.partial(fn, *tensors)

        def both():
            results = timing.as_tuple(fn(*tensors))
            grads = (
                [incoming[k] for k in range(len(results))] if incoming else [self.torch.ones_like(r) for r in results]
            )
            return results, self.torch.autograd.grad(results, wanted, grads)

        return both

    def implementation(self, name: str, case):
        if name == "eager":
            return case.fn

        def program(*tensors):
            return case.fn(*tensors)

        self.programs += 1  # Dynamo keeps what it compiled by code objects: each program gets its own
        code = program.__code__.replace(co_name=f"program{self.programs}", co_firstlineno=self.programs)
        own = types.FunctionType(code, globals(), code.co_name, None, program.__closure__)
        how = {"backend": "mlirfuse", "options": {"fallback": False}} if name == "mlirfuse" else {}
        return self.torch.compile(own, dynamic=False, fullgraph=True, **how)

    def compile(self, case) -> dict:
        """The case's implementations, what its kernels have to be tuned among, errors, and times of the first calls."""
        torch, tensors = self.torch, self.inputs(case)
        row = {"name": case.name, "size": case.size, "dtype": case.dtype, "family": case.family}
        incoming = [torch.randn_like(r) for r in timing.as_tuple(case.fn(*tensors))] if case.trains else None
        flat = flat_gradients if case.trains else timing.as_tuple
        # Row-major: CUDA's gradient of a padded average pool is wrong for channels-last images (pytorch/pytorch#188344).
        wide = [t.detach().double().contiguous() if t.is_floating_point() else t for t in tensors]
        wide = [t.requires_grad_(like.requires_grad) for t, like in zip(wide, tensors)]
        want = flat(self.call(case, case.fn, wide, incoming and [t.double().contiguous() for t in incoming])())
        eager = flat(self.call(case, case.fn, tensors, incoming)())
        row["bytes"] = sum(t.numel() * t.element_size() for t in (*tensors, *eager))
        del eager
        functions, errors = {}, {}
        self.tuning.taken()
        for name in (*self.options.peers.split(","), "mlirfuse"):
            try:
                functions[name] = self.implementation(name, case)
                start = time.perf_counter()
                got = flat(self.call(case, functions[name], tensors, incoming)())
                row[f"{name}_first_s"] = time.perf_counter() - start
                errors[name] = max(self.error(g, w) for g, w in zip(got, want, strict=True))
            except Exception as error:
                row[f"{name}_failed"] = timing.summary(error)
                functions.pop(name, None)
        row["errors"] = errors
        bound = 3 * max(errors.get("eager", 0.0), ROUNDING[case.dtype])
        row["wrong"] = not errors.get("mlirfuse", 1.0) <= bound
        return {"case": case, "row": row, "functions": functions, "tuned": self.tuning.taken()}

    def error(self, got, want) -> float:
        if not want.is_floating_point():
            return float((got != want).double().mean())
        undefined = want.isnan() & got.isnan()  # a variance of one element
        wide = want.double().masked_fill(undefined, 0)
        return ((got.double().masked_fill(undefined, 0) - wide).norm() / (wide.norm().item() or 1.0)).item()

    def measure(self, made: dict, calls: int) -> dict:
        """The row of a compiled case with the times of all its implementations, in turns."""
        case, row = made["case"], made["row"]
        for tuner, launchers in made["tuned"]:
            tuner.launchers = launchers
        made["tuned"] = []
        count = timing.turns(row["bytes"]) if self.cuda else 1
        sets = [self.inputs(case, turn) for turn in range(min(count, 4))]
        incoming = None
        if case.trains:
            incoming = [self.torch.randn_like(r) for r in timing.as_tuple(case.fn(*sets[0]))]
        samplers = {}
        for name, fn in made["functions"].items():
            call = timing.in_turn([self.without_gradient(case, self.call(case, fn, s, incoming)) for s in sets])
            for _ in sets:
                call()
            samplers[name] = (self.timer, call, self.timer.host_seconds(call))
        times = timing.interleaved(samplers, 4, max(1, calls // 4))
        for name, found in times.items():
            row[name] = timing.steady(found)
        row["copy"] = self.copies.milliseconds(row["bytes"])
        if "mlirfuse" in row:
            row["share"] = row["copy"] / row["mlirfuse"]
        peers = [row[name] for name in IMPLEMENTATIONS[:2] if name in row]
        if peers and "mlirfuse" in row:
            row["ratio"] = min(peers) / row["mlirfuse"]
            row["slower"] = row["ratio"] < LIMIT and row["mlirfuse"] - min(peers) > RESOLUTION_MS
        return row

    def without_gradient(self, case, call):
        return call if case.trains else self.torch.no_grad()(call)


def lane(options, todo, results, lock, ready, begin) -> None:
    """Compiles cases of ``todo`` until none is left; then measures its own, alone."""
    mine = []
    try:
        worker = Lane(options)
        cases = chosen_cases(options)
        while time.time() - begin < options.compile_limit:
            try:
                unit = todo.get_nowait()
            except queue.Empty:
                break
            for k in unit:
                try:
                    with worker.torch.enable_grad() if cases[k].trains else worker.torch.no_grad():
                        mine.append((k, worker.compile(cases[k])))
                except Exception as error:
                    results.put((k, {"name": cases[k].name, "size": cases[k].size, "dtype": cases[k].dtype,
                                     "failed": timing.summary(error)}))  # fmt: skip
                if worker.cuda:
                    worker.torch.cuda.empty_cache()
    finally:
        try:
            ready.wait(max(1.0, begin + options.compile_limit + PATIENCE - time.time()))
        except Exception:
            print("# some processes still compile while others measure", flush=True)
    worker.tuning.compiling = False
    with lock:
        measure_all(worker, mine, options, results, begin)
    results.put((None, None))
    threading.Event().wait()  # to be ended: what the end of a process costs would disturb the next one's times


def measure_all(worker, mine, options, results, begin) -> None:
    for k, made in mine:
        if time.time() - begin > options.time_limit:
            return
        try:
            row = worker.measure(made, options.calls)
            if row.get("slower"):
                before = row["mlirfuse"], row["ratio"]
                row = worker.measure(made, options.calls * 2) | {"before": before}
            results.put((k, dict(row)))
        except Exception as error:
            results.put((k, made["row"] | {"failed": timing.summary(error)}))
        if worker.cuda:
            worker.torch.cuda.empty_cache()


def units(cases) -> list[list[int]]:
    """The numbers of cases that a process takes at once, one or a family: the first size of each kind, the second …,
    and families between them."""
    found, sizes = collections.defaultdict(list), collections.Counter()
    for k, case in enumerate(cases):
        size = 0.5 + case.family / 10 if case.family is not None else sizes[case.name]
        sizes[case.name] += 1
        found[size, case.name if case.family is None else ""].append(k)
    return [found[key] for key in sorted(found, key=lambda key: key[0])]


def run(options, cases) -> dict[int, dict]:
    """The rows by the numbers of their cases."""
    context = multiprocessing.get_context("spawn")
    todo, results = context.Queue(), context.Queue()
    work = units(cases)
    for unit in work:
        todo.put(unit)
    lanes = min(options.lanes, len(work))
    lock, ready, begin = context.Lock(), context.Barrier(lanes), time.time()
    time.sleep(0.2)  # what is put into a queue arrives a little later
    processes = [
        context.Process(target=lane, args=(options, todo, results, lock, ready, begin), daemon=True)
        for _ in range(lanes)
    ]
    for process in processes:
        process.start()
    rows, left, first = {}, lanes, None
    while left and time.time() - begin < options.time_limit + PATIENCE:
        try:
            k, row = results.get(timeout=5)
        except queue.Empty:
            if not any(process.is_alive() for process in processes):
                break
            continue
        except KeyboardInterrupt:
            break
        if k is None:
            left -= 1
            continue
        if first is None and "ratio" in row:
            first = time.time() - begin
            print(f"# compiled in {first:.0f} s by {lanes} processes", flush=True)
        rows[k] = row
        print(line_of(row), flush=True)
    for process in processes:
        process.terminate()
    return rows


def flag_neighbours(rows: list[dict]) -> None:
    """Adds ``cliff``: a share of a copy under 70% of the median of the others of its family."""
    families = collections.defaultdict(list)
    for row in rows:
        if row.get("family") is not None and "share" in row:
            families[row["family"]].append(row)
    for members in families.values():
        for row in members:
            others = [other["share"] for other in members if other is not row]
            row["cliff"] = bool(others) and row["share"] < CLIFF * statistics.median(others)


def line_of(row) -> str:
    text = f"{row['name']:<42.42} {row['size']:<34.34} {row['dtype']:>4}"
    if "failed" in row:
        return f"{text}  FAILED {row['failed']}"
    for name in IMPLEMENTATIONS:
        failed = f"  failed ({row[f'{name}_failed'][:70]})" if f"{name}_failed" in row else " " * 9 + "-"
        text += f" {row[name]:9.4f}" if name in row else failed
    text += f" copy {row['copy']:8.4f}"
    if "ratio" in row:
        text += f"  {row['ratio']:5.2f}"
    flags = [name for name in ("slower", "cliff", "wrong") if row.get(name)]
    return text + "".join(f" {name.upper()}" for name in flags) + (f" {row['errors']}" if row.get("wrong") else "")


def summarize(rows: list[dict]) -> dict:
    """What a group of rows says as a whole."""
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    return {
        "rows": len(rows),
        "measured": len(ratios),
        "mean": timing.geometric_mean(ratios),
        "least": min(ratios, default=None),
        "over": {
            name: timing.geometric_mean(r[name] / r["mlirfuse"] for r in rows if name in r and "mlirfuse" in r)
            for name in IMPLEMENTATIONS[:2]
        },
        "slower": sum(bool(row.get("slower")) for row in rows),
        "cliffs": sum(bool(row.get("cliff")) for row in rows),
        "wrong": sum(bool(row.get("wrong")) for row in rows),
        "failed": sum("failed" in row or "mlirfuse_failed" in row for row in rows),
    }


def main() -> int:
    options = arguments()
    timing.cold_caches()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    timing.use_repository()
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch_kernels.py: torch sees no CUDA device here (--device cpu)", file=sys.stderr)
        return 2
    cases = chosen_cases(options)
    by_number = run(options, cases)
    rows = [by_number[k] for k in sorted(by_number)]
    flag_neighbours(rows)
    by_name = collections.defaultdict(list)
    for row in rows:
        by_name["drawn" if row.get("family") is not None else row["name"]].append(row)
    print(f"\n{'':<44} {'mean':>5} {'least':>6} {'eager':>6} {'induct':>6}")
    number = lambda value: f"{value:6.2f}" if value else "     -"  # noqa: E731
    for name, of in (*by_name.items(), ("all", rows)):
        t = summarize(of)
        text = "".join(number(v) + " " for v in (t["mean"], t["least"], *t["over"].values()))
        print(f"{name:<44}{text} slower {t['slower']}, cliffs {t['cliffs']}, wrong {t['wrong']}, failed {t['failed']}")
    for row in rows:
        if row.get("cliff"):
            print("CLIFF", line_of(row), f"{row['share']:.0%}")
    if options.json:
        timing.write_json(options.json, {"benchmark": "torch_kernels", "environment": timing.environment(),
                                         "totals": summarize(rows), "rows": rows})  # fmt: skip
    return 0


if __name__ == "__main__":
    os.chdir(timing.ROOT)
    sys.exit(main())
