"""An exported function beside ``jit``, JAX's export and Numba's pycc: how long it takes until the first result, and how
long a call takes.

    python benchmarks/export.py [PYTHON-WITH-JAX-AND-NUMBA]
    python benchmarks/export.py --gpu

Each figure comes from a process of its own: the time from before the import that loads the function to its first
result (the least of five processes), and the least mean of twenty runs of many calls. The C program's calls are timed
in C. With ``--gpu`` arrays are torch's on this machine's GPU, whose context is there before the time begins; the first
result is waited for, and calls are waited for once behind each run. Prints rows for the tables of docs/start/export.md.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHAPE = 16, 1024
COMMON = """
import json, sys, time
import numpy as np
folder = sys.argv[1]
x = np.sin(np.arange({rows} * 1024, dtype=np.float32)).reshape({rows}, 1024)
w = np.linspace(0, 1, 1024, dtype=np.float32)
def report(begin, call):
    result = np.asarray(call())
    first = time.perf_counter() - begin
    expected = np.load(folder + "/expected.npy")
    assert np.allclose(result, expected, atol=1e-5), abs(result - expected).max()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(2000):
            call()
        times.append((time.perf_counter() - start) / 2000)
    print(json.dumps([first * 1e3, min(times) * 1e6]))
"""
GPU = """
import torch
device = torch.device("cuda")
x, w = torch.from_numpy(x).to(device), torch.from_numpy(w.astype(np.float32)).to(device)
torch.cuda.synchronize()
def report(begin, call):
    result = call().cpu().numpy()
    first = time.perf_counter() - begin
    expected = np.load(folder + "/expected.npy")
    assert np.allclose(result, expected, atol=1e-5), abs(result - expected).max()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(2000):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 2000)
    print(json.dumps([first * 1e3, min(times) * 1e6]))
"""
NORM = """
def norm(x, w, eps):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * w
"""
SAVE = """
import mlirfuse
from mlirfuse.export import ShapeDtype
artifact = mlirfuse.export(norm, ShapeDtype(("n", 1024)), ShapeDtype((1024,)), 1e-5)
artifact.save(folder + "/norm.so")
artifact.save(folder + "/norm.mlirfuse")
np.save(folder + "/expected.npy", norm(x, w, 1e-5))
"""
GPU_SAVE = SAVE.replace(
    "1e-5)\n", "1e-5, targets=f\"cuda:sm_{'%d%d' % torch.cuda.get_device_capability()}\")\n", 1
).replace("norm(x, w, 1e-5)", "norm(x.cpu().numpy(), w.cpu().numpy(), 1e-5)")
LOADED = """
begin = time.perf_counter()
import mlirfuse_runtime
loaded = time.perf_counter()
norm = mlirfuse_runtime.load(folder + "/norm.mlirfuse")
sys.stderr.write(f"{(time.perf_counter() - loaded) * 1e3:.2f}\\n")
report(begin, lambda: norm(x, w, 1e-5))
"""
JIT = """
begin = time.perf_counter()
import mlirfuse
norm = mlirfuse.jit(norm, fallback=False)
report(begin, lambda: norm(x, w, 1e-5))
"""
JAX_SAVE = """
import jax, jax.numpy as jnp
from jax import export
def norm(x, w, eps):
    d = x - x.mean(-1, keepdims=True)
    return d / jnp.sqrt((d * d).mean(-1, keepdims=True) + eps) * w
n, = export.symbolic_shape("n")
specs = jax.ShapeDtypeStruct((n, 1024), jnp.float32), jax.ShapeDtypeStruct((1024,), jnp.float32)
kept = export.export(jax.jit(norm))(*specs, jax.ShapeDtypeStruct((), jnp.float32))
open(folder + "/norm.jax", "wb").write(kept.serialize())
"""
JAX = """
begin = time.perf_counter()
import jax
from jax import export
norm = jax.jit(export.deserialize(bytearray(open(folder + "/norm.jax", "rb").read())).call)
x, w, eps = jax.numpy.asarray(x), jax.numpy.asarray(w), jax.numpy.float32(1e-5)
report(begin, lambda: norm(x, w, eps).block_until_ready())
"""
NUMBA_SAVE = """
from numba.pycc import CC
cc = CC("norm_numba")
cc.output_dir = folder
@cc.export("norm", "f4[:,::1](f4[:,::1], f4[::1], f8)")
def norm(x, w, eps):
    out = np.empty_like(x)
    for i in range(x.shape[0]):
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += x[i, j]
        mean = total / np.float32(x.shape[1])
        squares = np.float32(0)
        for j in range(x.shape[1]):
            squares += (x[i, j] - mean) ** 2
        scale = np.float32(1) / np.sqrt(squares / np.float32(x.shape[1]) + np.float32(eps))
        for j in range(x.shape[1]):
            out[i, j] = (x[i, j] - mean) * scale * w[j]
    return out
cc.compile()
"""
NUMBA = """
begin = time.perf_counter()
sys.path.insert(0, folder)
import norm_numba
report(begin, lambda: norm_numba.norm(x, w, 1e-5))
"""
C_CLOCK = """
#include <stdio.h>
#include <stdlib.h>
#include <math.h>
#include <time.h>
#include "norm.h"
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}
"""
C = (
    C_CLOCK
    + """
int main(void) {
  int64_t shape[] = {ROWS, 1024};
  float *x = aligned_alloc(64, ROWS * 4096), *w = aligned_alloc(64, 4096), *y = aligned_alloc(64, ROWS * 4096);
  for (int i = 0; i < ROWS * 1024; ++i) x[i] = sinf(i);
  for (int i = 0; i < 1024; ++i) w[i] = i / 1023.0f;
  DLTensor a = {x, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0}, b = a, c = a;
  b.data = w, b.ndim = 1, b.shape = shape + 1, c.data = y;
  double best = 1, first = now();
  if (norm(&a, &b, 1e-5, &c, NULL)) return 1;
  first = now() - first;
  for (int run = 0; run < 20; ++run) {
    const double begin = now();
    for (int i = 0; i < 2000; ++i) norm(&a, &b, 1e-5, &c, NULL);
    const double mean = (now() - begin) / 2000;
    if (mean < best) best = mean;
  }
  printf("[%g, %g]", first * 1e3, best * 1e6);
  return 0;
}
"""
)

C_GPU = (
    C_CLOCK
    + """
#include <dlfcn.h>
#define CU(name, ...) do { if (((int (*)())dlsym(cuda, name))(__VA_ARGS__)) return puts(name), 1; } while (0)
int main(void) {
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context, *x, *w, *y;
  if (!cuda) return 1;
  CU("cuInit", 0);
  CU("cuDevicePrimaryCtxRetain", &context, 0);
  CU("cuCtxSetCurrent", context);
  CU("cuMemAlloc_v2", &x, (size_t)(ROWS * 4096));
  CU("cuMemAlloc_v2", &w, (size_t)4096);
  CU("cuMemAlloc_v2", &y, (size_t)(ROWS * 4096));
  CU("cuMemsetD32_v2", x, 0x3f800000, (size_t)(ROWS * 1024));
  CU("cuMemsetD32_v2", w, 0x3f800000, (size_t)1024);
  CU("cuCtxSynchronize");
  int64_t shape[] = {ROWS, 1024};
  DLTensor a = {x, {kDLCUDA, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0}, b = a, c = a;
  b.data = w, b.ndim = 1, b.shape = shape + 1, c.data = y;
  double best = 1, first = now();
  if (norm(&a, &b, 1e-5, &c, NULL)) return puts(norm_error()), 1;
  CU("cuCtxSynchronize");
  first = now() - first;
  for (int run = 0; run < 20; ++run) {
    const double begin = now();
    for (int i = 0; i < 2000; ++i) norm(&a, &b, 1e-5, &c, NULL);
    CU("cuCtxSynchronize");
    const double mean = (now() - begin) / 2000;
    if (mean < best) best = mean;
  }
  printf("[%g, %g]", first * 1e3, best * 1e6);
  return 0;
}
"""
)


BESIDE = """
import mlirfuse, mlirfuse_runtime
functions = [mlirfuse_runtime.load(folder + "/norm.mlirfuse"), mlirfuse.jit(norm, fallback=False)]
for rows in (1, len(x)):
    best = [1.0, 1.0]
    for _ in range(100):
        for at, function in enumerate(functions):
            function(x[:rows], w, 1e-5)
            given, start = x[:rows], time.perf_counter()
            for _ in range(300):
                function(given, w, 1e-5)
            best[at] = min(best[at], (time.perf_counter() - start) / 300)
    print(f"{rows} rows, in turns in one process: {best[0] * 1e6:.2f} µs loaded, {best[1] * 1e6:.2f} µs by jit")
"""


def run(python: str, folder: str, *parts: str) -> str:
    """What a program prints, in a process of its own."""
    program = "".join([COMMON.replace("{rows}", str(SHAPE[0])), *parts])
    paths = [str(ROOT), *([os.environ.get("PYTHONPATH", "")] if python == sys.executable else [])]
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONPYCACHEPREFIX": f"{folder}/pycache"}
    settings.pop("PYTHONDONTWRITEBYTECODE", None)  # as what is installed is compiled
    done = subprocess.run([python, "-c", program, folder], capture_output=True, text=True, env=settings)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    if done.stderr.strip() and LOADED in parts:
        LOADS.append(float(done.stderr.strip().splitlines()[-1]))
    return done.stdout


LOADS: list[float] = []


def row(name: str, python: str, folder: str, *parts: str) -> None:
    try:
        found = [json.loads(run(python, folder, *parts)) for _ in range(5)]
    except (RuntimeError, OSError) as error:
        print(f"| {name} | {textwrap.shorten(str(error), 80)} | |", flush=True)
        return
    first, call = (min(column) for column in zip(*found))
    print(f"| {name} | {first:.1f} ms | {call:.2f} µs |", flush=True)


def row_of_c(folder: str, source: str) -> None:
    """A row for a C program."""
    (Path(folder) / "main.c").write_text(source.replace("ROWS", str(SHAPE[0])))
    flags = ["-O2", "-o", f"{folder}/main", f"{folder}/main.c", f"{folder}/norm.so", "-lm", "-ldl"]
    subprocess.run(["cc", *flags, f"-Wl,-rpath,{folder}"], check=True)
    done = [subprocess.run([f"{folder}/main"], capture_output=True, text=True, check=True) for _ in range(5)]
    first, call = (min(column) for column in zip(*(json.loads(each.stdout) for each in done)))
    print(f"| `norm.so` from C | {first:.2f} ms | {call:.2f} µs |", flush=True)


def sizes(folder: str) -> None:
    print(f"`mlirfuse_runtime.load` alone: {min(LOADS):.2f} ms; files: ", end="")
    print(", ".join(f"{n} {(Path(folder) / n).stat().st_size / 1e3:.0f} kB" for n in ("norm.so", "norm.mlirfuse")))


def on_gpu() -> None:
    print(f"norm of float32{list(SHAPE)} on a GPU\n| | first result, imports included | a call |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, folder, GPU, NORM, GPU_SAVE)
        row_of_c(folder, C_GPU)
        row("`norm.mlirfuse` by `mlirfuse_runtime`", sys.executable, folder, GPU, LOADED)
        row("`jit`, code in its cache", sys.executable, folder, GPU, NORM, JIT)
        sizes(folder)


def main() -> None:
    if "--gpu" in sys.argv:
        on_gpu()
        return
    other = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    print(f"norm of float32{list(SHAPE)}; {platform.processor() or platform.machine()}, {os.cpu_count()} processors")
    print("| | first result, imports included | a call |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, folder, NORM, SAVE)
        row_of_c(folder, C)
        row("`norm.mlirfuse` by `mlirfuse_runtime`", sys.executable, folder, LOADED)
        row("`jit`, code in its cache", sys.executable, folder, NORM, JIT)
        for name, save, load in (("JAX's export", JAX_SAVE, JAX), ("Numba's pycc", NUMBA_SAVE, NUMBA)):
            try:
                run(other, folder, save)
            except RuntimeError as error:
                print(f"| {name} | {textwrap.shorten(str(error), 80)} | |", flush=True)
                continue
            row(name, other, folder, load)
        print(run(sys.executable, folder, NORM, BESIDE), end="")
        sizes(folder)


if __name__ == "__main__":
    main()
