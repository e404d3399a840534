"""Exported functions: C and C++ programs that call them, Python without the compiler, and what cannot be exported."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mlirfuse
import mlirfuse_runtime
from mlirfuse import FusionDefinition
from mlirfuse.core.errors import TraceError, UnsupportedError
from mlirfuse.export import ShapeDtype, parse
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering import llvm
from mlirfuse.tools import main as command

LEVEL = "x86-64-v3"
TARGET = f"cpu:{LEVEL}"
PROGRAMS = Path(__file__).with_name("export_programs")
COMPILERS = shutil.which("cc"), shutil.which("c++")

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="exported code is x86's"),
    pytest.mark.skipif(
        platform.machine() == "x86_64"
        and not llvm.processor_of_level(LEVEL).features <= llvm.host_processor().features,
        reason="this processor has no AVX2",
    ),
]
with_compiler = pytest.mark.skipif(None in COMPILERS, reason="there is no C compiler")


def norm(x, w, eps):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * w


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def heat(u):
    u = u.copy()
    for _ in range(3):
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        u[1:-1, 1:-1] = u[1:-1, 1:-1] + np.float32(0.1) * (around - 4 * u[1:-1, 1:-1])
    return u


def fusion():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=mlirfuse.DataType.Float)
        w = fd.define_tensor(shape=[-1], contiguity=[True], dtype=mlirfuse.DataType.Float)
        weights = fd.ops.broadcast_in_dim(w, fd.ops.shape(x), [1])
        y = fd.ops.mul(fd.ops.tanh(x), weights)
        total = fd.ops.broadcast_in_dim(fd.ops.sum(y, [1]), fd.ops.shape(x), [0])
        fd.add_output(fd.ops.add(y, total))
    return fd


ROWS = ShapeDtype(("n", "m"))
SPECS = {
    "norm": (norm, (ShapeDtype(("n", 1024)), ShapeDtype((1024,)), 1e-5)),
    "softmax": (softmax, (ROWS,)),
    "heat": (heat, (ROWS,)),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with all of them, in both forms."""
    folder = tmp_path_factory.mktemp("exported")
    for name, (f, specs) in SPECS.items():
        artifact = mlirfuse.export(f, *specs, targets=TARGET)
        artifact.save(folder / f"{name}.mlirfuse")
        if None not in COMPILERS:
            artifact.save(folder / f"{name}.so")
    definition = mlirfuse.export(fusion(), ROWS, ShapeDtype(("m",)), targets=TARGET)
    definition.save(folder / "fusion.mlirfuse")
    if None not in COMPILERS:
        definition.save(folder / "fusion.so")
    return folder


def by_jit():
    """The same functions, compiled in this process."""
    found = {name: mlirfuse.jit(f, target=TARGET, fallback=False) for name, (f, _) in SPECS.items()}
    return found


def shapes(count: int, rng: np.random.Generator):
    """Sizes of all magnitudes up to some thousands."""
    for _ in range(count):
        n, m = np.round(2 ** rng.uniform(0, [9, 12])).astype(int).tolist()
        yield n, max(1, min(m, (1 << 18) // n))


def inputs(name: str, n: int, m: int, rng: np.random.Generator):
    m = 1024 if name == "norm" else m
    x = rng.standard_normal((n, m), np.float32)
    return (x, rng.standard_normal(m, np.float32)) if name in ("norm", "fusion") else (x,)


def build(folder: Path, source: str, names: tuple[str, ...]) -> Path:
    """A program of PROGRAMS, compiled as a user would."""
    program = folder / Path(source).stem
    compiler, standard = (COMPILERS[0], "c11") if source.endswith(".c") else (COMPILERS[1], "c++17")
    libraries = [str(folder / f"{name}.so") for name in names]
    flags = [f"-std={standard}", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{folder}"]
    command = [compiler, *flags, str(PROGRAMS / source), "-o", str(program), *libraries, f"-Wl,-rpath,{folder}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


# ---- in C and C++


@with_compiler
def test_a_c_program_gets_what_jit_gives_bit_for_bit(saved):
    """Over 200 random shapes, of each function 50; called again and again without growing."""
    write_cases(saved / "cases", shapes(200, np.random.default_rng(0)))
    program = build(saved, "check.c", ("norm", "softmax", "heat", "fusion"))
    assert_right(subprocess.run([program, saved / "cases", "25"], capture_output=True, text=True), 5000)
    # A million calls on a few elements each. The norm's rows are long.
    write_cases(saved / "small", [(1, 5), (3, 4), (4, 5), (2, 7)], functions=(1, 2, 3))
    assert_right(subprocess.run([program, saved / "small", "250000"], capture_output=True, text=True), 1_000_000)


def write_cases(path: Path, of, functions=(0, 1, 2, 3)) -> None:
    """Arguments and results of calls, as check.c reads them."""
    rng, jitted, fd = np.random.default_rng(0), by_jit(), fusion()
    names = ("norm", "softmax", "heat", "fusion")
    with open(path, "wb") as file:
        for number, (n, m) in enumerate(of):
            function = functions[number % len(functions)]
            given = inputs(names[function], n, m, rng)
            if function == 3:
                expected = as_target(fd, given)
            else:
                expected = jitted[names[function]](*given, *([1e-5] if function == 0 else []))
            head = np.array([function, *given[0].shape], np.int64)
            for part in (head, *given, expected):
                file.write(np.ascontiguousarray(part).tobytes())


def assert_right(done: subprocess.CompletedProcess, count: int) -> None:
    """That check.c made so many calls, got what was expected, and did not grow."""
    assert done.returncode == 0, done.stdout + done.stderr
    target, calls, wrong, grown = done.stdout.split()
    assert (target, calls, wrong) == (TARGET, f"calls={count}", "wrong=0")
    assert int(grown.removeprefix("grown=")) < 1 << 16


def as_target(fd, given):
    """What the definition gives by code for the exported target: its graph, run by a program for that."""
    from mlirfuse.export.sources import Definition
    from mlirfuse.runtime.executor import Executor
    from mlirfuse.schedule import targets

    specs = [ShapeDtype(x.shape, x.dtype) for x in given]
    kind = Definition(fd, specs, targets.of(TARGET)).specialization({})
    graph, env = kind.program.graph, {name: int(size) for name, size in kind.sizes.items()}
    record = Executor(graph, targets.of(TARGET), env).record(list(given), kind.leaf_of_arg, env)
    return mlirfuse._native.Dispatcher(lambda _: record)(*given)


@with_compiler
def test_a_cpp_program_with_threads_and_wrong_arguments(saved):
    program = build(saved, "threads.cpp", ("norm", "softmax"))
    done = subprocess.run([program, "40"], capture_output=True, text=True)
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0 and lines["threads"].startswith("failed=0 loops="), done.stdout + done.stderr
    assert int(lines["threads"].rpartition("=")[2]) >= 40  # the caller's own loop was used
    assert lines["allocated"] == "0 1 [3, 1000] 0"
    expected = {
        "right": "0",
        "null": "1 x is NULL",
        "rank": "1 x has 1 dimensions, expected 2",
        "shape": "2 x has extent 1000 in dimension 1, expected 1024",
        "result": "1 result has 1 dimensions, expected 2",
        "dtype": "1 x has dtype float64, expected float32",
        "strides": "3 x has stride 1 in dimension 0, expected C-contiguous = 1024",
        "alignment": "4 x lies at",
        "device": "5 w is on device 1:0, expected 2:0",
        "overlap": "7 result, which is written, shares memory with x",
        "abi": "1 the call is of version 2 of the ABI, the library of 1",
        "one thread": "0",
    }
    for what, text in expected.items():
        assert lines[what].startswith(text), (what, lines[what])


@with_compiler
def test_a_library_needs_libc_alone_and_shows_its_own_names_alone(saved):
    needed = subprocess.run(["readelf", "-d", saved / "norm.so"], capture_output=True, text=True, check=True).stdout
    libraries = [line.rpartition("[")[2].rstrip("]") for line in needed.splitlines() if "(NEEDED)" in line]
    assert set(libraries) <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}
    listed = subprocess.run(["nm", "-D", "--defined-only", saved / "norm.so"], capture_output=True, text=True).stdout
    names = {line.split()[-1] for line in listed.splitlines()}
    assert names == {"norm"} | {f"norm_{what}" for what in ("shapes", "error", "abi", "target", "set_threads")}


@with_compiler
def test_the_best_of_several_instruction_sets_is_taken(tmp_path):
    mlirfuse.export(softmax, ShapeDtype(("n", 64)), targets=(TARGET, "cpu:x86-64-v4")).save(tmp_path / "both.so")
    library = ctypes.CDLL(str(tmp_path / "both.so"))
    library.both_target.restype = ctypes.c_char_p
    best = llvm.processor_of_level("x86-64-v4").features <= llvm.host_processor().features
    assert library.both_target() == (b"cpu:x86-64-v4" if best else TARGET.encode())


@with_compiler
def test_a_library_may_be_unloaded(saved):
    """Its threads end first."""
    program = f"""
import ctypes, _ctypes
library = ctypes.CDLL({str(saved / "softmax.so")!r})
class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("dtype",
                ctypes.c_uint8 * 4), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64)]
shape, kind = (ctypes.c_int64 * 2)(2000, 100), (ctypes.c_uint8 * 4)(2, 32, 1, 0)
x, y = (ctypes.c_float * 200000)(), (ctypes.c_float * 200000)()
made = [Tensor(ctypes.addressof(data), (ctypes.c_int32 * 2)(1, 0), 2, kind, shape, None, 0) for data in (x, y)]
library.softmax_set_threads(4)
assert library.softmax(ctypes.byref(made[0]), ctypes.byref(made[1]), None) == 0 and abs(y[5] - 0.01) < 1e-6
_ctypes.dlclose(library._handle)
assert "softmax.so" not in open("/proc/self/maps").read()
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr


# ---- for GPUs, without one


@pytest.mark.parametrize(("name", "m"), [("softmax", 1000), ("norm", 1024)])
def test_where_one_size_is_open_a_gpu_runs_what_jit_would(name, m, monkeypatch):
    """The same schedule parameters for each size, and so the same results."""
    from mlirfuse.export import code
    from mlirfuse.export.sources import source_of
    from mlirfuse.schedule import targets

    chosen, leaf = [], code._leaf
    monkeypatch.setattr(
        code, "_leaf", lambda source, kind, params: chosen.append((kind, params)) or leaf(source, kind, params)
    )
    target, (f, specs) = targets.of("cuda:sm_90"), SPECS[name]
    source = source_of(f, (ShapeDtype(("n", m)), *specs[1:]), {}, target, "cuda:sm_90")
    found = code.compiled(source, "cuda:sm_90", 64)
    aligned = {code.alignment_of(k): 256 for k in range(2)} | {code.result_alignment(0): 64}
    for n in np.round(2 ** np.random.default_rng(0).uniform(0, 20, 200)).astype(int).tolist():
        kind, params = chosen[found.explored.at({"n": n, **aligned}).leaf]
        program, env = kind.program, kind.env(lambda size: sz.substitute(size, {"n": n}))
        alignments = {program.graph.args[k]: 256 for k in program.pointer_args} | dict.fromkeys(program.outputs, 64)
        assert params == target.parameters(program, env, alignments), n


def test_several_open_sizes_on_a_gpu_share_programs(tmp_path):
    artifact = mlirfuse.export(lambda x: np.tanh(x) * 2, ROWS, targets="cuda:sm_90")
    assert artifact.programs["cuda:sm_90"] <= 64


# ---- in Python


def test_python_gets_what_jit_gives_bit_for_bit(saved):
    rng, jitted = np.random.default_rng(1), by_jit()
    loaded = {name: mlirfuse.load(saved / f"{name}.mlirfuse") for name in jitted}
    for number, (n, m) in enumerate(shapes(200, rng)):
        name = ("norm", "softmax", "heat")[number % 3]
        given = (*inputs(name, n, m, rng), *([1e-5] if name == "norm" else []))
        assert loaded[name](*given).tobytes() == jitted[name](*given).tobytes(), (name, given[0].shape)


def test_a_definition_in_python(saved):
    loaded, fd, rng = mlirfuse_runtime.load(saved / "fusion.mlirfuse"), fusion(), np.random.default_rng(2)
    for n, m in [*shapes(20, rng), (1, 1), (1, 7), (5, 1)]:
        given = inputs("fusion", n, m, rng)
        (found,) = loaded(*given)
        assert found.tobytes() == as_target(fd, given).tobytes(), (n, m)
        np.testing.assert_allclose(found, fd.execute(list(given))[0], rtol=1e-4, atol=1e-4)


def test_python_without_the_compiler(saved, tmp_path):
    """A process that finds NumPy and mlirfuse_runtime alone."""
    site = Path(np.__file__).parent.parent
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            os.symlink(site / name, tmp_path / name)
    root = Path(mlirfuse_runtime.__file__).parent
    shutil.copytree(root, tmp_path / "mlirfuse_runtime", ignore=shutil.ignore_patterns("__pycache__"))
    rng, jitted = np.random.default_rng(3), by_jit()
    (x, w) = inputs("norm", 37, 1024, rng)
    known = {"x": x, "w": w, "norm": jitted["norm"](x, w, 1e-5), "softmax": jitted["softmax"](x)}
    np.savez(saved / "known.npz", heat=jitted["heat"](x), **known)
    program = [sys.executable, "-S", str(PROGRAMS / "without_compiler.py"), str(saved)]
    done = subprocess.run(program, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr


def test_sizes_without_elements(saved):
    loaded = mlirfuse.load(saved / "softmax.mlirfuse")
    assert loaded(np.empty((0, 5), np.float32)).shape == (0, 5)
    total = mlirfuse.export(lambda x: x.sum(0), ROWS, targets=TARGET)
    total.save(saved / "total.mlirfuse")
    total = mlirfuse.load(saved / "total.mlirfuse")
    assert total(np.empty((3, 0), np.float32)).shape == (0,)
    with pytest.raises(ValueError, match="no elements"):
        total(np.empty((0, 3), np.float32))


def test_what_a_function_returns(tmp_path):
    """Containers, numbers, arguments that are written, numbers that are constants, half types and integers."""

    def several(x, y, k):
        y += x
        return {"total": x.sum(), "parts": [x * k, (x > 0).reshape(-1)]}, y

    specs = ShapeDtype(("n", 8), "int64"), ShapeDtype(("n", 8), "int64"), 3
    mlirfuse.export(several, *specs, targets=TARGET).save(tmp_path / "several.mlirfuse")
    loaded = mlirfuse.load(tmp_path / "several.mlirfuse")
    x, y = np.arange(24).reshape(3, 8), np.ones((3, 8), np.int64)
    found, same = loaded(x, y, 5)
    assert found["total"] == x.sum() and isinstance(found["total"], np.int64) and same is y
    assert np.array_equal(found["parts"][0], 5 * x) and np.array_equal(found["parts"][1], (x > 0).reshape(-1))
    assert np.array_equal(y, x + 1)
    with pytest.raises(ValueError, match="y, which is written, shares memory with x"):
        loaded(x, x, 5)
    y.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        loaded(x, y, 5)

    def steps(x, count):
        for _ in range(count):
            x = x * 2
        return x

    mlirfuse.export(steps, ShapeDtype(("n",), "float16"), 3, targets=TARGET).save(tmp_path / "steps.mlirfuse")
    steps_of = mlirfuse.load(tmp_path / "steps.mlirfuse")
    assert np.array_equal(steps_of(np.ones(5, np.float16), 3), np.full(5, 8, np.float16))
    with pytest.raises(ValueError, match="count is 3 in the compiled code, and not 4"):
        steps_of(np.ones(5, np.float16), 4)

    def branches(x, h):
        return x * h if h > 1 else x / (h * h)

    mlirfuse.export(branches, ShapeDtype(("n",)), 2.0, targets=TARGET).save(tmp_path / "branches.mlirfuse")
    branches_of = mlirfuse.load(tmp_path / "branches.mlirfuse")
    assert np.array_equal(branches_of(np.ones(5, np.float32), 2.0), np.full(5, 2, np.float32))
    with pytest.raises(ValueError, match="h is 2.0 in the compiled code, and not 0.5"):
        branches_of(np.ones(5, np.float32), 0.5)


def test_strides(tmp_path):
    spec = ShapeDtype(("n", "m"), "float64", ("s", 1))
    mlirfuse.export(lambda x: np.exp(x) + 1, spec, targets=TARGET).save(tmp_path / "f.mlirfuse")
    loaded = mlirfuse.load(tmp_path / "f.mlirfuse")
    base = np.random.default_rng(0).random((40, 50))
    for x in (base, base[:, :17], base[::3, 5:9]):
        np.testing.assert_allclose(loaded(x), np.exp(x) + 1, rtol=1e-14)
    with pytest.raises(ValueError, match="x has stride 50 in dimension 1, expected 1"):
        loaded(base.T)


def test_indices_are_checked(tmp_path):
    mlirfuse.export(lambda x, i: x[i] * 2, ShapeDtype(("n",)), ShapeDtype(("m",), "int64"), targets=TARGET).save(
        tmp_path / "take.mlirfuse"
    )
    take = mlirfuse.load(tmp_path / "take.mlirfuse")
    x = np.arange(10, dtype=np.float32)
    assert np.array_equal(take(x, np.array([3, -1])), [6, 18])
    with pytest.raises(IndexError, match="index 10 is out of bounds"):
        take(x, np.array([3, 10]))


# ---- what cannot be exported, or loaded


@pytest.mark.parametrize(
    ("f", "specs", "error", "text"),
    [
        (lambda x: np.sort(x) + 1, [ROWS], UnsupportedError, r"sort cannot be exported.*\n.*test_export.py:\d+"),
        (lambda x: x @ x, [ShapeDtype(("n", "n"))], UnsupportedError, r"matmul cannot be exported.*\n.*test_export"),
        (lambda x: np.linalg.inv(x), [ShapeDtype(("n", "n"))], UnsupportedError, r"np.linalg.inv.*\n.*test_export"),
        (lambda x: x if x.sum() > 0 else -x, [ROWS], TraceError, r"truth of a traced array.*\n.*test_export"),
        (lambda x: (x + 1, x.shape[0]), [ROWS], UnsupportedError, "returns a size, and results are arrays"),
        (lambda x: x[:0] + 1, [ShapeDtype((4,))], UnsupportedError, "without elements"),
        (lambda x: x + LARGE, [ShapeDtype((1,))], UnsupportedError, "LARGE and others.*more than 256 MiB"),
        (lambda x: x, [ShapeDtype(("n",), "float32")], UnsupportedError, "computes nothing"),
        (lambda x, y: x + y, [ShapeDtype((3,)), ShapeDtype((4,))], ValueError, "shapes"),
    ],
)
def test_what_cannot_be_exported(f, specs, error, text):
    with pytest.raises(error, match=text):
        mlirfuse.export(f, *specs, targets=TARGET)


LARGE = np.empty(65 << 20, np.float32)  # untouched memory costs nothing


def test_bad_requests(tmp_path):
    with pytest.raises(UnsupportedError, match="no target 'cpu:x86-64-v9'"):
        mlirfuse.export(softmax, ROWS, targets="cpu:x86-64-v9")
    with pytest.raises(ValueError, match="names a machine"):
        mlirfuse.export(softmax, ROWS, targets="cpu")
    with pytest.raises(ValueError, match="more than 2 programs"):
        mlirfuse.export(softmax, ROWS, targets=TARGET, max_programs=2)
    with pytest.raises(TypeError, match="takes a function"):
        mlirfuse.export(3, ROWS)
    with pytest.raises(ValueError, match="not negative"):
        ShapeDtype((-1,))
    for name in ("in", "max", "align_0"):
        with pytest.raises(ValueError, match=f"cannot be called '{name}'"):
            ShapeDtype((name,))
    with pytest.raises(UnsupportedError, match="complex64"):
        ShapeDtype(("n",), "complex64")
    artifact = mlirfuse.export(softmax, ShapeDtype(("n", 8)), targets=TARGET)
    with pytest.raises(ValueError, match="save as"):
        artifact.save(tmp_path / "f.txt")


def test_damaged_files(saved, tmp_path):
    content = (saved / "norm.mlirfuse").read_bytes()
    for name, damaged, text in (
        ("empty", b"", "no file that mlirfuse.export has saved"),
        ("elf", b"\x7fELF" + bytes(60), "save as .mlirfuse"),
        ("version", content[:8] + b"\x09" + content[9:], "version 9"),
        ("cut", content[:3000], "damaged"),
    ):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(ValueError, match=text):
            mlirfuse_runtime.load(tmp_path / name)


def test_specs_as_text():
    assert parse("float32[n,1024]") == ShapeDtype(("n", 1024))
    assert parse("bfloat16[]") == ShapeDtype((), "bfloat16")
    assert parse("float64[n, m: s, 1]") == ShapeDtype(("n", "m"), "float64", ("s", 1))
    assert (parse("float"), parse("int"), parse("3"), parse("2.5"), parse("True")) == (1.0, 1, 3, 2.5, True)
    with pytest.raises(ValueError, match="no argument 'x y'"):
        parse("x y")


def test_the_command(tmp_path, capsys):
    (tmp_path / "module.py").write_text("import numpy as np\ndef double(x):\n    return x * 2\n")
    where, out = f"{tmp_path / 'module.py'}:double", tmp_path / "double.mlirfuse"
    assert command.main(["export", where, "--arg", "float32[n]", "--target", TARGET, "-o", str(out)]) == 0
    assert np.array_equal(mlirfuse.load(out)(np.ones(3, np.float32)), np.full(3, 2, np.float32))
    assert command.main(["export", f"{tmp_path / 'module.py'}:doubel", "-o", str(out)]) == 1
    assert "did you mean 'double'" in capsys.readouterr().err
