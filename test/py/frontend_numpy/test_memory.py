"""What is compiled and dropped is given back: kernels, graphs, and what LLVM and MLIR made on the way."""

from __future__ import annotations

import ctypes
import gc
import importlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import numpy as np
import pytest

import mlirfuse
from mlirfuse.core.threads import uninterrupted
from mlirfuse.lowering.llvm import HostCode

X = np.linspace(0, 1, 300, dtype=np.float32)


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def in_use() -> dict[str, int]:
    """Blocks that Python has allocated; bytes that malloc has handed out, and that the process has in memory."""
    gc.collect()
    uninterrupted(lambda: None)  # behind what waits to be freed
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    libc.mallinfo2.restype = _Mallinfo
    info = libc.mallinfo2()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return {"blocks": sys.getallocatedblocks(), "native": info.uordblks + info.hblkhd, "resident": resident}


def softmax_like(k: int):
    scale = np.float32(k + 1)
    mlirfuse.jit(lambda x: np.exp(-x * scale) / (x.max() + scale), fallback=False)(X)


def around_a_product(k: int):
    a, scale = np.ones((20, 20), np.float32), np.float32(k + 1)
    mlirfuse.jit(lambda a: np.exp(a @ a * scale) + a.sum(), fallback=False)(a)


def by_linalg(k: int):
    scale = np.float32(k + 1)
    mlirfuse.jit(lambda x: np.exp(x * scale), lowering="linalg", fallback=False)(X)


def make_and_drop(name: str, *counts: int) -> list[dict[str, int]]:
    """What is in use after as many functions; run in a process of its own."""
    found, created = [], 0
    for count in counts:
        for k in range(created, count):
            globals()[name](k)
        created = count
        found.append(in_use())
    return found


def apart(name: str, *counts: int) -> list[dict[str, int]]:
    return counted_apart(f"import json; print(json.dumps(t.make_and_drop({name!r}, *{counts})))")


def counted_apart(code: str) -> list:
    """What ``code`` prints last, in a process where nothing else is alive; ``t`` is this module."""
    code = f"import test_memory as t; {code}"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    env = {**os.environ, "MLIRFUSE_CACHE": "0", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_dropped_functions_are_given_back():
    """Most of the time: a table of Python's or MLIR's that doubles once, by a megabyte, is in one of the stretches."""
    found = apart("softmax_like", 60, 110, 160, 210)
    each = {key: median((b[key] - a[key]) / 50 for a, b in itertools.pairwise(found)) for key in found[0]}
    assert each["native"] < 4e3, "bytes a function"  # 15 KB of LLVM IR, 4 KB of passes
    assert each["blocks"] < 5, "Python's objects a function"
    assert each["resident"] < 40e3, "bytes in memory a function"


def _live(kind: type) -> int:
    gc.collect()
    return sum(type(found) is kind for found in gc.get_objects())


def test_code_goes_with_its_function():
    before = _live(HostCode)
    for door in (softmax_like, around_a_product, by_linalg):
        door(1)
    assert _live(HostCode) == before


def torch_graphs() -> list[int]:
    """Live codes before a graph, with it, and after torch forgot it."""
    torch = importlib.import_module("torch")
    found, x = [_live(HostCode)], torch.linspace(0, 1, 300, requires_grad=True)
    torch.compile(lambda x: torch.sin(x * 1.25).sum(), backend="mlirfuse")(x).backward()
    found.append(_live(HostCode))
    torch._dynamo.reset()
    return [*found, _live(HostCode)]


def definitions(most: int) -> list[int]:
    """Live codes before and after six definitions, of which ``most`` are kept."""
    torch = importlib.import_module("torch")
    from mlirfuse.frontend.nvfuser import program
    from mlirfuse.nvfuser import DataType, FusionDefinition

    program.MAX_PROGRAMS = most
    found = [_live(HostCode)]
    for k in range(6):
        with FusionDefinition() as fd:
            t = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float)
            fd.add_output(fd.ops.sin(fd.ops.mul(t, fd.define_scalar(k + 0.5, dtype=DataType.Double))))
        fd.execute([torch.ones(9)])
    del fd, t
    return [*found, _live(HostCode)]


def test_code_of_torch_goes_with_its_graphs():
    pytest.importorskip("torch")
    before, there, after = counted_apart("import mlirfuse.torch; print(t.torch_graphs())")
    assert there > before == after


def test_definitions_that_are_dropped_are_kept_up_to_a_bound():
    pytest.importorskip("torch")
    before, after = counted_apart("print(t.definitions(3))")
    assert after == before + 3


@pytest.mark.abuse
@pytest.mark.parametrize("name", ["softmax_like", "around_a_product"])
def test_very_many_dropped_functions(name):
    start, end = apart(name, 2000, 10000)
    print(f"\n{name}: {start} after 2,000 functions, {end} after 10,000")
    assert end["resident"] - start["resident"] < 4e6
