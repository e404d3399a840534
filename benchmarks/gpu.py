#!/usr/bin/env python3
"""The GPU table: mlirfuse, torch eager, torch.compile, JAX and a same-size copy, in one run.

    python benchmarks/gpu.py --json benchmarks/results/gpu-h100.json --plot docs/images/gpu-h100.png
    python benchmarks/gpu.py --table second --json benchmarks/results/gpu-second-h100.json

Every implementation's result is first compared with the reference in float64, computed from the same inputs; results
are overwritten with NaN and computed again before that, so that what is not written shows. Only what passed is timed.
The times are medians over interleaved rounds of CUDA-event timings, the L2 cache flushed before each call, small inputs
others each time (``timing.turns``). JAX's are of chains of calls (see ``timing.Chain``), and so is what mlirfuse is
compared with them by. The copy is the best of several that move the row's model bytes (each input read once, each
output written once), timed in the same rounds.

The rows run in a child process that is started again after a crash or a hang: a row that fails is a line in the table.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import timing

IMPLEMENTATIONS = ("mlirfuse", "eager", "compile", "jax")
PEERS = IMPLEMENTATIONS[1:]
FIRST_CALLS = 3  # of which the median counts
LABELS = {"mlirfuse": "mlirfuse", "eager": "torch eager", "compile": "torch.compile", "jax": "JAX/XLA"}


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--table", default="first", choices=("first", "second"), help="second: what the first has nothing of"
    )
    parser.add_argument("--json", help="write every figure to this file")
    parser.add_argument("--plot", help="write the plot to this PNG file")
    parser.add_argument("--from", dest="source", help="run nothing: print and plot this JSON file")
    parser.add_argument(
        "--only", action="append", default=[], help="only rows whose name holds this text (may be given again)"
    )
    parser.add_argument("--no-peers", action="store_true", help="only mlirfuse and the copy")
    parser.add_argument("--peers", default=",".join(PEERS), help="which peers, by commas: eager,compile,jax")
    parser.add_argument("--quick", action="store_true", help="small sizes: to try the script, not to quote")
    parser.add_argument(
        "--device", default="cuda", choices=("cuda", "cpu"), help="cpu: a dry run of the script with NumPy arrays"
    )
    parser.add_argument("--compile-mode", default=None, help="torch.compile's mode, such as max-autotune-no-cudagraphs")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--calls", type=int, default=10, help="calls of each implementation in a round")
    parser.add_argument(
        "--row-timeout", type=float, default=150, help="seconds without progress after which a row is given up"
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=570,
        help="seconds after which no further row starts; what is done is reported",
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rows", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


# ------------------------------------------------------------------------------------------------------------ the
# worker


class Worker:
    """Runs rows and reports each as a line of JSON."""

    def __init__(self, options):
        import torch

        self.options = options
        self.torch = torch
        self.cuda = options.device == "cuda"
        self.peers = [] if options.no_peers else [p for p in options.peers.split(",") if p]
        self.timer = timing.CudaTimer() if self.cuda else timing.HostTimer()
        self.copies = timing.Copies(self.timer)
        self.file = open(options.worker, "a")  # noqa: SIM115  # as long as the process
        self.mlirfuse = self.jax = None
        self.missing: dict[str, str] = {}
        self.first_use: dict[str, float] = {}

    def emit(self, **event) -> None:
        self.file.write(json.dumps(event, default=float) + "\n")
        self.file.flush()

    def prepare(self) -> None:
        """Imports each implementation and takes its first call of all on something small, which is no row's cost."""
        torch, device = self.torch, self.options.device
        x = torch.ones(256, device=device)
        for name, start in (
            ("mlirfuse", self._start_mlirfuse),
            ("compile", self._start_compile),
            ("jax", self._start_jax),
        ):
            if name != "mlirfuse" and name not in self.peers:
                continue
            begin = time.perf_counter()
            try:
                start(x)
                self.timer.synchronize()
                self.first_use[name] = time.perf_counter() - begin
            except Exception as error:
                self.missing[name] = timing.summary(error)
                self._healthy()
        self.emit(environment=timing.environment(), first_use_s=self.first_use, missing=self.missing)

    def _start_mlirfuse(self, x):
        self.mlirfuse = timing.Mlirfuse()
        import numpy as np

        self.mlirfuse.jit(lambda a: np.maximum(a * 2 + 1, 0))(x if self.cuda else x.numpy())

    def _start_compile(self, x):
        self.torch.compile(lambda a: self.torch.relu(a * 2 + 1), mode=self.options.compile_mode)(x)

    def _start_jax(self, x):
        import jax

        self.jax = jax
        jax.block_until_ready(jax.jit(lambda a: a * 2 + 1)(jax.dlpack.from_dlpack(x)))
        self.chain = timing.JaxChain() if self.cuda else timing.HostTimer()
        self.own_chain = timing.TorchChain() if self.cuda else None

    def _healthy(self) -> None:
        """After an error of the CUDA context nothing works any more: the process ends, and the parent starts
        another."""
        if self.cuda:
            try:
                self.torch.cuda.synchronize()
                self.torch.zeros(8, device="cuda").sum().item()
            except Exception as error:
                self.emit(crash=timing.summary(error))
                os._exit(3)

    # -- one row

    def _build(self, name, w):
        """An implementation: its function, one that takes torch tensors and waits, what makes its own inputs of torch
        tensors, and what calls it with such inputs."""
        torch = self.torch
        same = lambda t: t  # noqa: E731
        if name == "mlirfuse":
            fn = self.mlirfuse.jit(w.fused)
            convert = same if self.cuda else to_numpy
            return fn, lambda *args: fn(*map(convert, args), *w.extra), convert, lambda given: fn(*given, *w.extra)
        if name == "eager":
            fn = w.torch
        elif name == "compile":
            torch._dynamo.reset()
            fn = torch.compile(w.compiled or w.torch, dynamic=False, mode=self.options.compile_mode)
        else:
            fn = self.jax.jit(w.jax)
            convert = lambda t: self.jax.dlpack.from_dlpack(t.int() if t.dtype == torch.int64 else t)  # noqa: E731
            wait = self.jax.block_until_ready
            return (
                fn,
                lambda *args: wait(fn(*map(convert, args))),
                convert,
                lambda given: fn(*given) if self.cuda else wait(fn(*given)),
            )
        return fn, fn, same, lambda given: fn(*given)

    def _first_call(self, name: str, call) -> tuple:
        """The milliseconds of a call, with its kernels, and its results."""
        self.timer.synchronize()
        gc.collect()  # a collection of what the others left behind is no part of this call
        start = time.perf_counter()
        results = call()
        if name == "jax":
            self.jax.block_until_ready(results)
        self.timer.synchronize()
        return (time.perf_counter() - start) * 1e3, results

    def _another_first_call(self, w, inputs) -> float:
        """The milliseconds of mlirfuse's first call once more, of a new function with an empty cache: a host that is
        held up for a while adds to one."""
        timing.empty_cache()
        _, _, convert, run = self._build("mlirfuse", w)
        given = [convert(t) for t in inputs]
        return self._first_call("mlirfuse", lambda: run(given))[0]

    def row(self, w, without_mlirfuse: bool) -> dict:
        torch = self.torch
        inputs = w.make(self.options.device)
        others = []  # further inputs, which calls take in turn
        if self.cuda:
            others = [
                w.make("cuda", seed)
                for seed in range(1, timing.turns(sum(t.numel() * t.element_size() for t in inputs)))
            ]
        like, nbytes = None, None
        try:
            like = timing.as_tuple(w.torch(*inputs))
            nbytes = w.model_bytes(inputs, like)
            like = [torch.empty_like(t, device="meta") for t in like]  # dtypes and shapes alone: no memory kept
        except Exception as error:
            print(f"# {w.name}: eager failed: {timing.summary(error)}", flush=True)
            self._healthy()
        if nbytes is None:
            nbytes = w.model_bytes(inputs, timing.as_tuple(w.reference_function()(*inputs)))
        row = {"name": w.name, "shape": w.shape, "dtype": w.dtype, "target": w.target, "model_bytes": nbytes}
        names = [n for n in IMPLEMENTATIONS if n == "mlirfuse" or n in self.peers]
        samplers = {}
        for name in names:
            entry = row[name] = {}
            if name == "jax" and w.jax is None:
                continue
            if name in self.missing:
                entry["error"] = self.missing[name]
                continue
            if name == "mlirfuse" and without_mlirfuse:
                entry["error"] = "ended the process"
                continue
            call = None
            try:
                fn, fresh, convert, run = self._build(name, w)
                calls = [functools.partial(run, [convert(t) for t in given]) for given in (inputs, *others)]
                call = calls[0]
                variants = self.mlirfuse.variants() or 0 if name == "mlirfuse" else 0
                entry["first_ms"], results = self._first_call(name, call)
                if name == "mlirfuse":
                    entry["kernels"] = self.mlirfuse.kernels(fn)
                    entry["variants"] = (self.mlirfuse.variants() or 0) - variants
                    entry["first_ms_each"] = [
                        entry["first_ms"],
                        *(self._another_first_call(w, inputs) for _ in range(FIRST_CALLS - 1)),
                    ]
                    entry["first_ms"] = statistics.median(entry["first_ms_each"])
                if w.check:
                    del results
                    errors = w.check(fresh, inputs)
                else:
                    if name != "jax":
                        timing.poison(results, inputs)
                    del results
                    alike = like
                    if name == "jax" and like:  # which has integers of 32 bits, unless told otherwise
                        alike = [t.int() if t.dtype == torch.int64 else t for t in like]
                    errors = timing.compare(call(), inputs, w.reference_function(), w.rows, alike, w.tolerances)
                entry["errors"] = errors
                call = timing.in_turn(calls)
                if name == "jax" and self.cuda:
                    samplers[name] = (self.chain, call, 0.0)
                else:
                    samplers[name] = (self.timer, call, self.timer.host_seconds(call))
            except Exception as error:
                entry["error"] = timing.summary(error)
                if not isinstance(error, (timing.Mismatch, AssertionError)):
                    trace(error)
                self._healthy()
            if self.cuda:
                torch.cuda.empty_cache()
        if self.cuda and {"mlirfuse", "jax"} <= samplers.keys():
            samplers["mlirfuse chain"] = (self.own_chain, samplers["mlirfuse"][1], 0.0)
        copies = self.copies.pick(nbytes)
        for name, call in copies.items():
            samplers["copy: " + name] = (self.timer, call, self.timer.host_seconds(call))
        times = timing.interleaved(samplers, self.options.rounds, self.options.calls)
        medians = {name: statistics.median(values) for name, values in times.items()}
        best = min((n for n in medians if n.startswith("copy: ")), key=medians.get)
        row["copy"] = {"kind": best.removeprefix("copy: "), "ms": medians[best], "gb_s": nbytes / medians[best] / 1e6}
        if "mlirfuse chain" in medians:
            row["mlirfuse"]["chain_ms"] = medians["mlirfuse chain"]
        for name in names:
            if name in medians:
                ordered = sorted(times[name])
                row[name].update(
                    ms=medians[name],
                    low_ms=ordered[len(ordered) // 10],
                    high_ms=ordered[-1 - len(ordered) // 10],
                    share=medians[best] / medians[name],
                    gb_s=nbytes / medians[name] / 1e6,
                )
        return row

    def run(self, table) -> None:
        self.prepare()
        for item in self.options.rows.split(","):
            index, without = int(item.rstrip("-")), item.endswith("-")
            self.emit(start=index)
            try:
                row = self.row(table[index], without)
            except Exception as error:
                trace(error)
                w = table[index]
                row = {
                    "name": w.name,
                    "shape": w.shape,
                    "dtype": w.dtype,
                    "target": w.target,
                    "error": timing.summary(error),
                }
                self._healthy()
            self.emit(row=row, index=index)
            if self.cuda:
                self.torch.cuda.empty_cache()


def trace(error) -> None:
    """The last frames of an error that is no mismatch, for whoever repairs it."""
    text = "".join(traceback.format_exception(error, limit=-4))
    print(text if len(text) < 1500 else text[:700] + " [...] " + text[-700:], flush=True)


def to_numpy(tensor):
    """A CPU tensor as a NumPy array over the same memory."""
    import ml_dtypes
    import torch

    if not isinstance(tensor, torch.Tensor):
        return tensor
    return (
        tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
    )


# ------------------------------------------------------------------------------------------------------------ the
# parent


def supervise(options, indices: list[int]) -> tuple[dict, dict]:
    """Runs the rows in a child, again after a crash. Gives the environment and the rows by index."""
    environment: dict = {}
    rows: dict[int, dict] = {}
    pending = [str(i) for i in indices]
    deadline, ended = time.monotonic() + options.time_limit, threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # what is done by then is reported
        signal.signal(number, lambda *_: ended.set())
    over = lambda: time.monotonic() > deadline or ended.is_set()  # noqa: E731
    while pending and not over():
        handle, path = tempfile.mkstemp(suffix=".jsonl")
        os.close(handle)
        command = [
            sys.executable,
            "-u",
            os.path.abspath(__file__),
            *sys.argv[1:],
            "--worker",
            path,
            "--rows",
            ",".join(pending),
        ]
        child = subprocess.Popen(command)
        position, current, crash, last = 0, None, None, time.monotonic()
        while True:
            done = child.poll() is not None
            with open(path) as file:
                file.seek(position)
                for line in iter(file.readline, ""):
                    if not line.endswith("\n"):
                        break
                    position += len(line.encode())
                    event, last = json.loads(line), time.monotonic()
                    if "environment" in event:
                        if not environment:
                            environment.update(
                                event["environment"], first_use_s=event["first_use_s"], missing=event["missing"]
                            )
                        for name, why in event["missing"].items():
                            print(f"# {LABELS[name]}: n/a ({why})", flush=True)
                    elif "start" in event:
                        current = event["start"]
                    elif "crash" in event:
                        crash = event["crash"]
                    elif "row" in event:
                        why = environment.get("crashes", {}).get(str(event["index"]))
                        if why and "error" in event["row"].get("mlirfuse", {}):
                            event["row"]["mlirfuse"]["error"] = why
                        rows[event["index"]] = event["row"]
                        pending = [p for p in pending if int(p.rstrip("-")) != event["index"]]
                        current = None
                        print(line_of(event["row"]), flush=True)
            if done:
                break
            if time.monotonic() - last > options.row_timeout or over():
                crash = "no progress" if not over() else "the end of the run"
                child.kill()
            time.sleep(0.1)
        os.unlink(path)
        if not pending:
            break
        if current is None and not crash:
            print(f"# the benchmark's child ended with code {child.returncode} before a row was started", flush=True)
            break
        failed = next((p for p in pending if int(p.rstrip("-")) == current), pending[0])
        why = crash or f"the process ended with code {child.returncode}"
        print(f"# row {failed}: {why}", flush=True)
        if failed.endswith("-"):
            rows[int(failed.rstrip("-"))] = {"name": f"row {failed}", "error": why}
            pending.remove(failed)
        else:  # once more without mlirfuse, so that the peers' figures are there
            pending[pending.index(failed)] = failed + "-"
            environment.setdefault("crashes", {})[failed] = why
    for left in pending:
        rows.setdefault(int(left.rstrip("-")), {"name": f"row {left}", "error": "not run: the time limit of the run"})
    return environment, rows


def speedup(row, name) -> float | None:
    """How many times faster than a peer mlirfuse is, both by the same clock."""
    ours, peer = row.get("mlirfuse", {}), row.get(name, {})
    own = ours.get("chain_ms") if name == "jax" and "chain_ms" in ours else ours.get("ms")
    return peer["ms"] / own if own and peer.get("ms") else None


def best_peer(row) -> tuple[str, float] | None:
    """The peer that is fastest beside mlirfuse, and how many times faster than it mlirfuse is."""
    found = {name: speedup(row, name) for name in PEERS}
    return min(((n, r) for n, r in found.items() if r), key=lambda item: item[1], default=None)


def line_of(row) -> str:
    """One row as one line."""
    head = f"{row['name']:<35.35} {row.get('shape', ''):>16} {row.get('dtype', ''):>4}"
    if "copy" not in row:
        return f"{head}  failed: {row.get('error')}"
    parts = [
        f"{head} {row['model_bytes'] / 1e6:7.1f} MB",
        f"copy {row['copy']['ms']:.4f} ms {row['copy']['gb_s']:.0f} GB/s",
    ]
    for name in IMPLEMENTATIONS:
        entry = row.get(name)
        if not entry:
            continue
        if "ms" not in entry:
            parts.append(f"{LABELS[name]} n/a ({entry.get('error', '')[:100]})")
            continue
        text = f"{LABELS[name]} {entry['ms']:.4f} ms {entry['share']:.0%}"
        if name == "mlirfuse":
            if row.get("target"):
                text += f" (to reach {row['target']:.0%}: {'yes' if entry['share'] >= row['target'] else 'NO'})"
            text += f", {'?' if entry.get('kernels') is None else entry['kernels']} kernels"
        if name in ("mlirfuse", "compile"):
            text += f", first call {entry['first_ms']:.0f} ms"
        parts.append(text)
    peer = best_peer(row)
    if peer:
        parts.append(f"{peer[1]:.2f}x {LABELS[peer[0]]}")
    return " | ".join(parts)


def totals(rows) -> dict:
    """What the table says as a whole."""
    ours = [r for r in rows if r.get("mlirfuse", {}).get("ms")]
    over = lambda name: timing.geometric_mean(filter(None, (speedup(r, name) for r in ours)))  # noqa: E731
    compared = [(r, best_peer(r)[1]) for r in ours if best_peer(r)]
    return {
        "rows": len(rows),
        "rows_measured": len(ours),
        "rows_at_target": sum(r["mlirfuse"]["share"] >= r["target"] for r in ours if r.get("target")),
        "rows_slower_than_best_peer": [
            f"{r['name']} {r['shape']} {r['dtype']} ({times:.3f})" for r, times in compared if times < 1
        ],
        "geometric_mean_over_best_peer": timing.geometric_mean(times for _, times in compared),
        "geometric_mean_over": {name: over(name) for name in PEERS},
        "geometric_mean_share": timing.geometric_mean(r["mlirfuse"]["share"] for r in ours),
        "first_call_ms_max": max((r["mlirfuse"]["first_ms"] for r in ours), default=None),
    }


def show(record) -> None:
    """The table and the totals."""
    width = 35
    print(f"\n{'workload':<{width}} {'shape':>16} {'type':>4} {'MB':>6} {'copy':>7} " + " ".join(f"{LABELS[n]:>18}" for n in IMPLEMENTATIONS)
          + "  to reach  kernels  first ms  vs best")  # fmt: skip
    for row in record["rows"]:
        if "copy" not in row:
            print(line_of(row))
            continue
        cells = []
        for name in IMPLEMENTATIONS:
            entry = row.get(name) or {}
            cells.append(
                f"{entry['ms']:9.4f} ms {entry['share']:5.0%}"
                if "ms" in entry
                else "FAILED"
                if entry.get("error")
                else "-"
            )
        ours, peer = row.get("mlirfuse", {}), best_peer(row)
        ratio = f"{peer[1]:.2f}" if peer else "-"
        kernels = "?" if ours.get("kernels") is None else str(ours["kernels"])
        print(
            f"{row['name']:<{width}.{width}} {row['shape']:>16} {row['dtype']:>4} {row['model_bytes'] / 1e6:6.0f} {row['copy']['ms']:7.4f} "
            + " ".join(f"{c:>18}" for c in cells)
            + f"  {row.get('target') or 0:8.0%}  {kernels:>7}  {ours.get('first_ms', 0):8.0f}  {ratio:>7}"
        )
    t = record["totals"]
    print(f"\nmlirfuse: {t['rows_measured']} of {t['rows']} rows measured, {t['rows_at_target']} at their target")
    for name, value in t["geometric_mean_over"].items():
        if value:
            print(f"geometric mean over {LABELS[name]}: {value:.3f}x")
    if t["geometric_mean_over_best_peer"]:
        print(f"geometric mean over each row's best peer: {t['geometric_mean_over_best_peer']:.3f}x")
    if t["rows_slower_than_best_peer"]:
        print("slower than the best peer: " + "; ".join(t["rows_slower_than_best_peer"]))


COLORS = {"mlirfuse": "#c1121f", "eager": "#9aa5b1", "compile": "#2f6690", "jax": "#d08c2e"}
MARKERS = {"mlirfuse": "D", "eager": "s", "compile": "o", "jax": "^"}


def plot(record, path: str) -> None:
    """The share of a same-size copy, by workload and implementation, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [r for r in record["rows"] if "copy" in r]
    figure, axes = plt.subplots(figsize=(10, 0.36 * len(rows) + 1.7), dpi=150)
    for y, row in enumerate(rows):
        shares = [row[n]["share"] for n in IMPLEMENTATIONS if "share" in (row.get(n) or {})]
        if shares:
            axes.plot([min(shares), max(shares)], [y, y], color="#e3e6ea", linewidth=2, zorder=1)
        if row.get("target"):
            axes.plot([row["target"]] * 2, [y - 0.32, y + 0.32], color="#222222", linewidth=1.4, zorder=2)
    for name in reversed(IMPLEMENTATIONS):
        points = [(row[name]["share"], y) for y, row in enumerate(rows) if "share" in (row.get(name) or {})]
        if points:
            axes.scatter(*zip(*points), s=44 if name == "mlirfuse" else 34, marker=MARKERS[name], color=COLORS[name], label=LABELS[name],
                         zorder=4 if name == "mlirfuse" else 3, edgecolors="white", linewidths=0.5)  # fmt: skip
    axes.plot([], [], color="#222222", linewidth=1.4, label="to reach")
    axes.axvline(1, color="#888888", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    axes.set_yticks(range(len(rows)), [f"{r['name']}  {r['shape']} {r['dtype']}" for r in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    right = max(
        [1.05] + [row[n]["share"] * 1.03 for row in rows for n in IMPLEMENTATIONS if "share" in (row.get(n) or {})]
    )
    axes.set_xlim(0, min(right, 1.3))
    axes.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    axes.set_xlabel("share of a copy of the same bytes (more is better)", fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color="#eef0f2", zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda k: ([*LABELS.values(), "to reach"]).index(labels[k]))
    axes.legend([handles[k] for k in order], [labels[k] for k in order], loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, frameon=False, fontsize=8,
                handletextpad=0.3, columnspacing=1.2, borderaxespad=0.2)  # fmt: skip
    machine = record["environment"].get("gpu") or record["environment"].get("cpu") or ""
    figure.text(
        0.99,
        0.005,
        f"{machine}, {record['environment'].get('date', '')[:10]}",
        ha="right",
        va="bottom",
        fontsize=7,
        color="#666666",
    )
    figure.tight_layout()
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def main() -> int:
    options = arguments()
    if options.source:
        with open(options.source) as file:
            record = json.load(file)
        record["totals"] = totals(record["rows"])
        show(record)
        if options.plot:
            plot(record, options.plot)
        return 0
    if not options.worker:
        timing.cold_caches()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.4")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if options.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    import second_table
    import torch
    import workloads

    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "gpu.py: torch sees no CUDA device here (--device cpu --quick is a dry run of the script)", file=sys.stderr
        )
        return 2
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    table = {"first": workloads.gpu_table, "second": second_table.second_table}[options.table](options.quick)
    if options.worker:
        Worker(options).run(table)
        return 0
    indices = [
        i
        for i, w in enumerate(table)
        if not options.only or any(o.lower() in f"{w.name} {w.shape} {w.dtype}".lower() for o in options.only)
    ]
    if not indices:
        print(
            "gpu.py: no row has that name; the rows are: " + "; ".join(f"{w.name} {w.shape} {w.dtype}" for w in table),
            file=sys.stderr,
        )
        return 2
    begin = time.monotonic()
    environment, rows = supervise(options, indices)
    ordered = [
        {"name": table[i].name, "shape": table[i].shape, "dtype": table[i].dtype, **rows[i]} if i in rows else None
        for i in indices
    ]
    ordered = [r for r in ordered if r]
    for row, i in zip(ordered, [i for i in indices if i in rows]):
        if row["name"].startswith("row "):
            row.update(name=table[i].name, shape=table[i].shape, dtype=table[i].dtype)
    record = {
        "benchmark": "gpu",
        "table": options.table,
        "environment": environment,
        "method": {
            "timer": (timing.CudaTimer if options.device == "cuda" else timing.HostTimer).name,
            "jax": "host clock over chains of (256 MB read and write, call), less a chain without the calls; against mlirfuse's chain_ms"
            if options.device == "cuda"
            else "host clock",
            "copy": "the best of the driver's memcpy, torch's elementwise kernels and 16-byte copy kernels, for the same number of bytes",
            "rounds": options.rounds,
            "calls_a_round": options.calls,
            "quick": options.quick,
        },
        "wall_s": time.monotonic() - begin,
        "rows": ordered,
        "totals": totals(ordered),
    }
    show(record)
    print(
        f"{record['wall_s']:.0f} s in all; first use: "
        + ", ".join(f"{LABELS[k]} {v:.1f} s" for k, v in environment.get("first_use_s", {}).items())
    )
    if options.json:
        timing.write_json(options.json, record)
    if options.plot:
        plot(record, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
