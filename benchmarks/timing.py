"""What the benchmarks share: timers, the same-size copy, checks against float64, and the record of a run.

Everything here treats mlirfuse and its peers alike. torch is needed; JAX, CuPy and a GPU are used where they are there.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import itertools
import json
import math
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import time

import numpy as np

FLUSH_BYTES = 256 << 20  # what is written before each call, five times the L2 cache
LOAD = os.getloadavg()[0]  # of other work, before the benchmark's own
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


def use_repository() -> None:
    """The package in this checkout is measured, not one that happens to be installed."""
    if ROOT not in sys.path:
        sys.path.insert(0, ROOT)


def summary(error: BaseException, limit: int = 160) -> str:
    """An exception in one line."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:limit]


# ------------------------------------------------------------------------------------------------------------ mlirfuse


class Mlirfuse:
    """mlirfuse's counters as the benchmarks read them: each gives None where this build does not tell."""

    def __init__(self):
        use_repository()
        self.module = importlib.import_module("mlirfuse")

    def jit(self, fn, **options):
        """``fn`` jitted with the fallback off: what does not compile is an error here, not a slow figure."""
        try:
            return self.module.jit(fn, fallback=False, **options)
        except TypeError:
            return self.module.jit(fn, **options)

    def kernels(self, fn) -> int | None:
        """Launches of a call of ``fn``, a jitted function that has run one kind of call with one set of sizes."""
        found = None
        with contextlib.suppress(Exception):
            for entry in fn._entries.values():
                for kind in entry.specializations.all():
                    if kind.executor is not None:
                        found = (found or 0) + _kernels_of(kind.executor)
        return found

    def counters(self) -> dict:
        """Specializations and variants compiled so far in this process, and calls that fell back."""
        try:
            return dict(importlib.import_module("mlirfuse.runtime.counters").snapshot())
        except Exception:
            return {}

    def variants(self) -> int | None:
        return self.counters().get("compiled_programs")


def _kernels_of(executor) -> int:
    if executor.host is not None:
        programs = [program for program, _ in executor.programs({})]
        return sum(list(program.compiled_programs.values())[-1].kernels for program in programs)
    return list(executor.program.compiled_programs.values())[-1].kernels


def cold_caches() -> str:
    """Points every compile cache on disk at a new folder, so that first calls are cold. To be called before the
    imports."""
    import atexit
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="mlirfuse-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for variable, name in (
        ("MLIRFUSE_CACHE_DIR", "mlirfuse"),
        ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
        ("TRITON_CACHE_DIR", "triton"),
    ):
        os.environ[variable] = os.path.join(folder, name)
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    return folder


def empty_cache() -> None:
    """Points mlirfuse's cache at another new folder in that of :func:`cold_caches`."""
    import tempfile

    os.environ["MLIRFUSE_CACHE_DIR"] = tempfile.mkdtemp(dir=os.path.dirname(os.environ["MLIRFUSE_CACHE_DIR"]))


# ------------------------------------------------------------------------------------------------------------ timers


class CudaTimer:
    """CUDA-event times of calls, the L2 cache flushed before each: what ``triton.testing.do_bench`` does, for several
    implementations in turn.

    Before each flush a short spin keeps the device busy for as long as the host needs to queue the call, so that the
    time between the two events is the device's alone. The host's own cost is what ``host_overhead.py`` measures.
    """

    name = "CUDA events, L2 flushed by a 256 MB fill before each call"

    def __init__(self):
        import torch

        self.torch = torch
        self.buffer = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def host_seconds(self, call, n: int = 5) -> float:
        """Host time of queueing one call."""
        times = []
        for _ in range(n):
            self.synchronize()
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        self.synchronize()
        return statistics.median(times)

    def sample(self, call, n: int, host: float = 30e-6) -> list[float]:
        """Milliseconds of ``n`` calls."""
        event = self.torch.cuda.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(n)]
        spin = int(min(host + 30e-6, 5e-3) * 2e9)
        for start, end in pairs:
            self.torch.cuda._sleep(spin)
            self.buffer.zero_()
            start.record()
            call()
            end.record()
        self.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]


class HostTimer:
    """Wall-clock times of calls that are done when they return (the CPU)."""

    name = "host clock"

    def synchronize(self) -> None:
        pass

    def host_seconds(self, call, n: int = 1) -> float:
        return 0.0

    def sample(self, call, n: int, host: float = 0.0) -> list[float]:
        times = []
        for _ in range(n):
            start = time.perf_counter()
            result = call()
            times.append((time.perf_counter() - start) * 1e3)
            del result
        return times


class ProcessTimer(HostTimer):
    """The processor time of calls, which other work on the machine does not add to. For one thread: threads that spin
    would count."""

    name = "processor time"

    def sample(self, call, n: int, host: float = 0.0) -> list[float]:
        times = []
        for _ in range(n):
            start = time.process_time()
            result = call()
            times.append((time.process_time() - start) * 1e3)
            del result
        return times


class Chain:
    """Times of calls where no event can be placed, such as a jitted JAX function's, which runs on streams of JAX's own:
    a chain of (flush, call) is timed by the host's clock with one wait at its end, and so is a chain of flushes alone;
    the difference is the calls', good to about a microsecond a call. The flush reads and writes 256 MB, long enough to
    hide the dispatch of what follows.

    A launch's own latency is hidden too, so that times are up to 2 µs shorter than an event's: compare them with a
    chain's only.
    """

    LEAST = 8e-3  # of ten calls of 20 µs the times were 15 to 41

    def _chain(self, call, n: int) -> float:
        out = None
        self.flush()
        self.wait(None)
        start = time.perf_counter()
        for _ in range(n):
            self.flush()
            out = call() if call else None
        self.wait(out)
        return time.perf_counter() - start

    def sample(self, call, n: int, host: float = 0.0) -> list[float]:
        """One figure in milliseconds: the mean of a chain of ``n`` calls, or of as many more as take ``LEAST``
        seconds."""
        n = max(n, int(n * self.LEAST / self._chain(call, n)))
        alone = min(self._chain(None, n) for _ in range(2))
        return [max(self._chain(call, n) - alone, 0.0) * 1e3 / n]


class JaxChain(Chain):
    """Chains of JAX's calls."""

    def __init__(self):
        import jax

        self.jax = jax
        self.step = jax.jit(lambda b: b + 1, donate_argnums=0)
        self.buffer = jax.numpy.zeros(FLUSH_BYTES // 4, dtype=jax.numpy.int32)

    def flush(self) -> None:
        self.buffer = self.step(self.buffer)

    def wait(self, out) -> None:
        self.jax.block_until_ready((self.buffer, out))


class TorchChain(Chain):
    """Chains of calls on torch's current stream."""

    def __init__(self):
        import torch

        self.torch = torch
        self.buffer = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def flush(self) -> None:
        self.buffer.add_(1)

    def wait(self, out) -> None:
        self.torch.cuda.synchronize()


def interleaved(samplers: dict, rounds: int, n: int) -> dict[str, list[float]]:
    """Milliseconds over ``rounds`` rounds of ``n`` calls of each implementation in turn; the order rotates.
    ``samplers`` maps a name to ``(timer, call, host seconds of queueing a call)``."""
    times: dict[str, list[float]] = {name: [] for name in samplers}
    names = list(samplers)
    for r in range(rounds if names else 0):
        for name in names[r % len(names) :] + names[: r % len(names)]:
            timer, call, host = samplers[name]
            times[name] += timer.sample(call, n, host)
    return times


def steady(times: list[float]) -> float:
    """The smaller of the medians of the first and the second half: a host that is held up for a while only ever
    adds."""
    half = -(-len(times) // 2)
    return min(statistics.median(part) for part in (times[:half], times[half:]) if part)


def turns(nbytes: int) -> int:
    """How many sets of inputs of so many bytes calls shall take in turn, so that none finds in the L2 cache what one
    before it read there: on some cards the flush leaves a tenth of 67 MB, and a kernel whose inputs survive it looks 7%
    faster than it is."""
    return max(1, min(8, -(-FLUSH_BYTES // max(nbytes, 1))))


def in_turn(calls):
    """A call of each of ``calls`` in turn."""
    following = itertools.cycle(calls)
    return lambda: next(following)()


# ------------------------------------------------------------------------------------------------------------ the
# same-size copy

_COPY_KERNEL = r"""
extern "C" __global__ void NAME(const uint4* __restrict__ s, uint4* __restrict__ d, int n) {
  long long base = (long long)blockIdx.x * blockDim.x * UNROLL + threadIdx.x;
  uint4 v[UNROLL];
#pragma unroll
  for (int i = 0; i < UNROLL; ++i) { long long k = base + (long long)i * blockDim.x; if (k < n) v[i] = LOAD(s + k); }
#pragma unroll
  for (int i = 0; i < UNROLL; ++i) { long long k = base + (long long)i * blockDim.x; if (k < n) STORE(d + k, v[i]); }
}
"""
_COPY_SHAPES = [(1, 256), (1, 1024), (2, 512), (4, 128), (4, 256), (4, 1024), (8, 256)]


class Copies:
    """The best device-to-device copy that moves a given number of bytes (read plus written): the driver's memcpy,
    torch's own elementwise kernels, and hand-written 16-byte copy kernels (through CuPy or torch's NVRTC, where one is
    there)."""

    def __init__(self, timer):
        import torch

        self.torch = torch
        self.timer = timer
        self.best: dict[int, tuple[str, float]] = {}
        self.kernels = self._compile()

    def _compile(self) -> dict[str, tuple]:
        made = {}
        if not isinstance(self.timer, CudaTimer):
            return made
        for unroll, block in _COPY_SHAPES:
            for streaming in (False, True):
                name = f"copy_u{unroll}_b{block}{'_cs' if streaming else ''}"
                source = _COPY_KERNEL.replace("NAME", name).replace("UNROLL", str(unroll))
                source = source.replace("LOAD(s + k)", "__ldcs(s + k)" if streaming else "__ldg(s + k)")
                source = source.replace("STORE(d + k, v[i])", "__stcs(d + k, v[i])" if streaming else "d[k] = v[i]")
                try:
                    made[name] = (self._load(name, source), unroll, block)
                except Exception as error:
                    print(f"# copy kernel {name} left out: {summary(error)}", flush=True)
                    return made
        return made

    def _load(self, name, source):
        """``launch(grid, block, source, destination, count)`` on torch's current stream."""
        torch = self.torch
        try:
            import cupy

            kernel = cupy.RawKernel(source, name)
            kernel.compile()

            def launch(grid, block, s, d, n):
                with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
                    kernel((grid,), (block,), (np.uintp(s.data_ptr()), np.uintp(d.data_ptr()), np.int32(n)))
        except ImportError:
            kernel = torch.cuda._compile_kernel(source, name)

            def launch(grid, block, s, d, n):
                kernel(grid=(grid, 1, 1), block=(block, 1, 1), args=[s, d, n])

        return launch

    def calls(self, nbytes: int) -> tuple[dict, list, object]:
        """Name to a call that reads and writes ``nbytes`` in all; the sources, in turn, and the target."""
        torch = self.torch
        device = "cuda" if isinstance(self.timer, CudaTimer) else "cpu"
        count = max(nbytes // 2 // 16 * 16, 16)
        sources = [torch.randint(0, 255, (count,), dtype=torch.uint8, device=device) for _ in range(turns(count))]
        target = torch.empty_like(sources[0])
        t32, t64 = target.view(torch.int32), target.view(torch.int64)
        made = {
            "copy_": lambda s: target.copy_(s),
            "add 0 (4 bytes)": lambda s: torch.add(s.view(torch.int32), 0, out=t32),
            "add 0 (8 bytes)": lambda s: torch.add(s.view(torch.int64), 0, out=t64),
        }
        for name, (launch, unroll, block) in self.kernels.items():
            grid = -(-(count // 16) // (unroll * block))
            made[name] = lambda s, launch=launch, grid=grid, block=block: launch(grid, block, s, target, count // 16)
        return (
            {name: in_turn([functools.partial(call, s) for s in sources]) for name, call in made.items()},
            sources,
            target,
        )

    def pick(self, nbytes: int, n: int = 12, keep: int = 2) -> dict:
        """The ``keep`` fastest calls of :meth:`calls`, by a short trial, fastest first. One that does not copy is left
        out."""
        calls, sources, target = self.calls(nbytes)
        trial = {}
        for name, call in calls.items():
            target.zero_()
            call()
            if not self.torch.equal(sources[0], target):
                print(f"# {name} is no copy of {nbytes} bytes: left out", flush=True)
                continue
            trial[name] = statistics.median(self.timer.sample(call, n, self.timer.host_seconds(call)))
        return {name: calls[name] for name in sorted(trial, key=trial.get)[:keep]}

    def milliseconds(self, nbytes: int, n: int = 20) -> float:
        """The best copy's median, measured once for each size (sizes within 2% share it, scaled)."""
        key = round(math.log(max(nbytes, 1)) / 0.02)
        if key not in self.best:
            calls = self.pick(nbytes)
            times = {
                name: steady(self.timer.sample(call, n, self.timer.host_seconds(call))) for name, call in calls.items()
            }
            name = min(times, key=times.get)
            self.best[key] = (nbytes, times[name])
        size, ms = self.best[key]
        return ms * nbytes / size


# ------------------------------------------------------------------------------------------------------------ checks

# Per element type: the norm of the error over the norm of the reference, and the largest error of one element, as a
# share of its reference and the root mean square together. A half type's own rounding is 1.7e-3 (bf16) and 2e-4 (f16)
# of the norm.
TOLERANCES = {"float32": (1e-5, 1e-4), "bfloat16": (6e-3, 2e-2), "float16": (8e-4, 3e-3), "float64": (1e-13, 1e-11)}


def as_tuple(results) -> tuple:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def as_torch(value):
    """A result of any implementation as a torch tensor, on its device, without a copy where that can be."""
    import torch

    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.name == "bfloat16":
            return torch.from_numpy(np.ascontiguousarray(value).view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(np.ascontiguousarray(value) if value.ndim else value.reshape(1)[0:1].reshape(()).copy())
    if hasattr(value, "block_until_ready"):
        value.block_until_ready()
    if hasattr(value, "__dlpack__"):
        return torch.from_dlpack(value)
    return torch.as_tensor(np.asarray(value))


def poison(results, inputs) -> None:
    """Overwrites results with NaN before their memory goes back to its allocator: the next call very likely gets that
    memory, and what it does not write shows."""
    import torch

    owned = {t.untyped_storage().data_ptr() for t in inputs if isinstance(t, torch.Tensor)}
    owned |= {t.__array_interface__["data"][0] for t in inputs if isinstance(t, np.ndarray)}
    for value in as_tuple(results):
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() and value.untyped_storage().data_ptr() not in owned:
                value.fill_(float("nan"))
        elif isinstance(value, np.ndarray) and value.flags.writeable and value.ndim:  # noqa: SIM102
            if value.dtype.kind in "fV" and value.__array_interface__["data"][0] not in owned:
                value[...] = np.nan


def _upcast(value):
    import torch

    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


class Mismatch(AssertionError):
    """A result that is not the reference's."""


def compare(
    results, inputs, reference, rows=None, like=None, tolerances=None, floor: float = 0.0, chunk: int = 1 << 26
) -> list[dict]:
    """Errors of ``results`` against ``reference(*inputs)`` computed in float64; raises :class:`Mismatch`.

    ``rows``: which inputs are cut along their first dimension, where each slice of the inputs gives the same slice of
    every result; the reference is then computed chunk by chunk. ``like``: results whose dtypes and shapes are the
    expected ones. ``floor``: the least size of a result that errors are a share of (a sum of n normal numbers may be
    near 0; its error is judged against sqrt(n)).
    """
    import torch

    results = [as_torch(r) for r in as_tuple(results)]
    if like is not None:
        like = as_tuple(like)
        if len(results) != len(like):
            raise Mismatch(f"{len(results)} results, not {len(like)}")
        for k, (got, want) in enumerate(zip(results, like)):
            if tuple(got.shape) != tuple(want.shape) or got.dtype != want.dtype:
                raise Mismatch(f"result {k} is {got.dtype} {tuple(got.shape)}, not {want.dtype} {tuple(want.shape)}")
            if not got.is_contiguous():
                raise Mismatch(f"result {k} is not contiguous (strides {tuple(got.stride())})")
    if rows is None:
        pieces = [(slice(None), inputs)]
    else:
        count = inputs[rows[0]].shape[0]
        step = max(1, chunk // max(1, inputs[rows[0]].numel() // count))
        pieces = [
            (slice(k, min(k + step, count)), [v[k : k + step] if i in rows else v for i, v in enumerate(inputs)])
            for k in range(0, count, step)
        ]
    report = [{"l2": [0.0, 0.0], "worst": 0.0} for _ in results]
    for where, part in pieces:
        expected = as_tuple(reference(*map(_upcast, part)))
        if len(expected) != len(results):
            raise Mismatch(f"{len(results)} results, the reference has {len(expected)}")
        for entry, got, want in zip(report, results, expected):
            subnormal = (
                torch.finfo(got.dtype).smallest_normal * torch.finfo(got.dtype).eps if got.is_floating_point() else 0.0
            )
            got = got[where].double() if got.dim() and rows is not None else got.double()
            difference = (
                (got - want).abs_().sub_(subnormal / 2).clamp_(min=0)
            )  # what any rounding of a subnormal result costs is no error
            want = want.abs().double()  # positions and counts too
            rms = max(float(want.square().mean().sqrt()), floor) if want.numel() else 0.0
            entry["l2"][0] += float(difference.square().sum())
            entry["l2"][1] += rms * rms * want.numel()
            worst = float((difference / (want + (rms or 1.0))).max()) if want.numel() else 0.0
            entry["worst"] = worst if not worst <= entry["worst"] else entry["worst"]
    for k, (entry, got) in enumerate(zip(report, results)):
        entry["l2"] = math.sqrt(entry["l2"][0] / entry["l2"][1]) if entry["l2"][1] else math.sqrt(entry["l2"][0])
        l2, worst = tolerances or TOLERANCES[str(got.dtype).removeprefix("torch.")]
        if not (entry["l2"] <= l2 and entry["worst"] <= worst):
            raise Mismatch(
                f"result {k}: error {entry['l2']:.1e} of the norm, worst element {entry['worst']:.1e} (bounds {l2:.0e}, {worst:.0e})"
            )
    return report


# ------------------------------------------------------------------------------------------------------------ the
# record of a run


def _output_of(*command) -> str | None:
    try:
        return (
            subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=ROOT, check=True).stdout.strip()
            or None
        )
    except Exception:
        return None


def environment() -> dict:
    """Date, command, machine and versions."""
    import torch

    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    for name in ("jax", "triton", "cupy", "llvmlite"):
        if name in sys.modules or name != "cupy":
            with contextlib.suppress(Exception):
                versions[name] = importlib.import_module(name).__version__
    with contextlib.suppress(Exception):
        from importlib.metadata import version

        versions["numba-cuda-mlir"] = version("numba-cuda-mlir")
    cpu = None
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": _command(sys.argv),
        "commit": _output_of("git", "rev-parse", "HEAD"),
        "load_before": LOAD,
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions,
    }
    if torch.cuda.is_available():
        record["gpu"] = torch.cuda.get_device_name()
        record["driver"] = _output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        record["cuda"] = torch.version.cuda
    return record


def _command(argv: list[str]) -> str:
    """``argv`` as one gives it in the repository: without what a script tells its own workers."""
    script, given = os.path.relpath(os.path.abspath(argv[0]), ROOT), list(argv[1:])
    for option in ("--worker", "--rows"):
        if "--worker" in argv and option in given:
            at = given.index(option)
            del given[at : at + 2]
    return " ".join(["python", script, *map(shlex.quote, given)])


def write_json(path: str, record: dict) -> None:
    """Writes ``record`` whole or not at all."""
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    part = path + ".part"
    with open(part, "w") as file:
        json.dump(record, file, indent=1, default=float)
        file.write("\n")
    os.replace(part, path)


def warn_of_load() -> None:
    """Says so where other work shares the processor: CPU figures are then not to be quoted."""
    if LOAD > 0.3:
        print(
            f"# load average {LOAD:.1f} before the start: other work runs on these {len(os.sched_getaffinity(0))} cores"
        )


def geometric_mean(values) -> float | None:
    values = [v for v in values if v]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None
