"""Exported functions at the edges of what they take: constants, views as results, definitions with reshapes, arguments
that no caller should pass."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
from export_abi import ALLOCATE, CallOptions, Tensor

import mlirfuse
import mlirfuse_runtime
from mlirfuse import DataType, FusionDefinition
from mlirfuse.core.errors import UnsupportedError
from mlirfuse.export import ShapeDtype
from mlirfuse.lowering import llvm

TARGET = "cpu:x86-64-v3"
pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="exported code is x86's"),
    pytest.mark.skipif(
        platform.machine() == "x86_64"
        and not llvm.processor_of_level("x86-64-v3").features <= llvm.host_processor().features,
        reason="this processor has no AVX2",
    ),
]
with_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture
def exported(tmp_path):
    """Exports a function and loads it."""

    def load(f, *specs, **options):
        artifact = mlirfuse.export(f, *specs, targets=TARGET, **options)
        path = tmp_path / f"f{len(list(tmp_path.iterdir()))}.mlirfuse"
        artifact.save(path)
        return mlirfuse_runtime.load(path)

    return load


# ---- constants

WEIGHTS = np.linspace(-1, 1, 32, dtype=np.float32)
TABLE = {"rows": [np.arange(8 * 64, dtype=np.float32).reshape(8, 64)[::-1, ::2]]}
ZERO_D = np.asarray(2.5, np.float32)


def with_constants(x):
    return x * WEIGHTS + TABLE["rows"][0][3] * ZERO_D + np.linspace(0, 1, 32).astype(np.float32)


def test_arrays_from_around_a_function_are_part_of_it(exported):
    """As they were when it was exported; of any layout."""
    loaded, jitted = exported(with_constants, ShapeDtype(("n", 32))), mlirfuse.jit(with_constants, target=TARGET)
    x = np.random.default_rng(0).standard_normal((300, 32), np.float32)
    expected = jitted(x)
    assert loaded(x).tobytes() == expected.tobytes()
    before = WEIGHTS.copy()
    try:
        WEIGHTS[:] = 0
        assert loaded(x).tobytes() == expected.tobytes() != jitted(x).tobytes()
    finally:
        WEIGHTS[:] = before


@with_compiler
def test_constants_in_a_library(tmp_path):
    targets = (TARGET, "cpu:x86-64-v4")
    mlirfuse.export(with_constants, ShapeDtype((32,)), targets=targets).save(tmp_path / "f.so")
    library = ctypes.CDLL(str(tmp_path / "f.so"))
    library.f_target.restype = ctypes.c_char_p
    x, y = np.random.default_rng(0).standard_normal(32, np.float32), np.zeros(32, np.float32)
    assert library.f(*map(ctypes.byref, map(described, (x, y))), None) == 0
    expected = mlirfuse.jit(with_constants, target=library.f_target().decode())(x)
    assert y.tobytes() == expected.tobytes()


def test_the_same_array_is_kept_once(tmp_path):
    table = np.random.default_rng(0).standard_normal(1 << 18)

    mlirfuse.export(
        lambda x: x + table[:512] + table.copy()[:512],
        ShapeDtype(("n", 512), "float64"),
        targets=(TARGET, "cpu:x86-64-v4"),
    ).save(tmp_path / "f.mlirfuse")
    assert (tmp_path / "f.mlirfuse").stat().st_size < 1.2 * table.nbytes


def test_random_numbers_need_a_seed():
    with pytest.raises(UnsupportedError, match="draws random numbers without a seed"):
        mlirfuse.export(lambda x: x + mlirfuse.numpy.uniform(x.shape), ShapeDtype((8,)), targets=TARGET)


# ---- results


def views(x):
    return {"turned": x.T, "rows": x[::2], "flat": x.reshape(-1), "back": (x * 2)[:, ::-1], "all": WEIGHTS}


def test_views_are_returned_as_copies(exported):
    loaded = exported(views, ShapeDtype(("n", 6)), max_programs=256)
    for n in (1, 2, 5, 64, 1000):
        x = np.random.default_rng(n).standard_normal((n, 6), np.float32)
        found, expected = loaded(x), views(x)
        for name, y in found.items():
            assert y.flags.c_contiguous and y.flags.writeable and not np.shares_memory(y, x), name
            assert np.array_equal(y, expected[name]), (n, name)


def test_views_of_what_is_written(exported):
    def written(x):
        x += 1
        return x[1:]

    loaded = exported(written, ShapeDtype(("n", 8)))
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    expected = x + 1
    y = loaded(x)
    assert np.array_equal(x, expected) and np.array_equal(y, expected[1:]) and not np.shares_memory(x, y)
    x = np.ones((1, 8), np.float32)
    with pytest.raises(ValueError, match="no code was exported for n = 1"):  # a result has no elements
        loaded(x)
    assert np.array_equal(x, np.ones((1, 8)))


# ---- definitions


def defined(build, *ranks):
    with FusionDefinition() as fd:
        build(fd, *[fd.define_tensor([-1] * n, [True] * n, dtype=DataType.Float) for n in ranks])
    return fd


def heads(fd, x):
    fd.add_output(fd.ops.sum(fd.ops.reshape(x, new_shape=[x.size(0), 8, -1]), [2]))


def merged(fd, x):
    fd.add_output(fd.ops.exp(fd.ops.reshape(x, new_shape=[fd.ops.mul(x.size(0), x.size(1)), x.size(2)])))


def cut(fd, x):
    fd.add_output(fd.ops.mul(fd.ops.slice(x, start_indices=[0, 0], end_indices=[2, 16]), 2.0))


def turned(fd, x):
    fd.add_output(fd.ops.permute(x, [1, 0]))
    fd.add_output(fd.ops.permute(fd.ops.exp(x), [1, 0]), stride_order=[0, 1])


@pytest.mark.parametrize(
    ("build", "shape", "calls"),
    [
        (heads, ("n", "m"), [(3, 512), (1, 8), (300, 24)]),
        (heads, ("n", 512), [(3, 512), (1, 512)]),
        (merged, ("b", "n", 12), [(3, 5, 12), (1, 5, 12), (40, 1, 12)]),
        (cut, ("n", "m"), [(12, 40), (1, 7), (2, 16), (5, 9), (2, 20)]),
        (turned, ("n", 40), [(12, 40), (1, 40), (70, 40)]),
    ],
)
def test_reshapes_slices_and_views_in_definitions(build, shape, calls, exported):
    fd = defined(build, len(shape))
    loaded = exported(fd, ShapeDtype(shape), max_programs=256)
    for call in calls:
        x = np.random.default_rng(0).standard_normal(call, np.float32)
        found, expected = loaded(x), fd.execute([x])
        assert len(found) == len(expected)
        for y, z in zip(found, expected):
            assert y.flags.c_contiguous
            np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-6)


def test_a_reshape_that_does_not_fit_is_refused(exported):
    loaded = exported(defined(heads, 2), ShapeDtype(("n", "m")))
    with pytest.raises(ValueError, match="no code was exported for n = 3, m = 30"):
        loaded(np.ones((3, 30), np.float32))


# ---- arguments


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_arrays_that_are_refused(exported):
    loaded = exported(lambda x: x + 1, ShapeDtype(("n", 2)))
    x = np.ones((4, 2), np.float32)
    bytes_ = np.zeros(33, np.uint8)
    for given, error, text in (
        (x.astype(">f4"), TypeError, "byte-swapped float32"),
        (bytes_[1:].view(np.float32).reshape(4, 2), ValueError, "no multiple of its items' 4 bytes"),
        (x[::-1], ValueError, "stride -2"),
        (np.asfortranarray(x), ValueError, "C-contiguous"),
        (np.matrix(x), TypeError, r"np.asarray\(x\)"),
        (np.ma.masked_array(x, mask=x > 0), TypeError, r"np.asarray\(x\)"),
        (x.astype([("a", "f4")]), TypeError, "void32"),
        (np.float32(1), TypeError, "is an array"),
        (None, TypeError, "is an array"),
    ):
        for _ in range(2):  # also where others of the type have been taken
            with pytest.raises(error, match=text):
                loaded(given)
            assert np.array_equal(loaded(x), x + 1)


def test_tensors_that_are_refused(exported):
    torch = pytest.importorskip("torch")
    loaded = exported(lambda x: x + 1, ShapeDtype(("n",), "float32", ("s",)))
    assert torch.equal(loaded(torch.ones(8)), torch.full((8,), 2.0))
    with pytest.raises(TypeError, match="requires grad"):
        loaded(torch.ones(8, requires_grad=True))
    negated = torch.complex(torch.zeros(8), torch.ones(8)).conj().imag
    assert negated.is_neg()
    with pytest.raises(TypeError, match="resolve_neg"):
        loaded(negated)
    assert torch.equal(loaded(negated.resolve_neg()), torch.zeros(8))


def test_named_strides(exported):
    """Contiguous, turned, reversed, and of 0."""
    loaded = exported(lambda x: x * 2, ShapeDtype(("n", 6), "float32", ("s", "t")))
    x = np.arange(36, dtype=np.float32).reshape(6, 6)
    wide = np.arange(144, dtype=np.float32).reshape(12, 12)
    for view in (x, x[::-1], x[:, ::-1], wide[::2, ::2], x.T, np.broadcast_to(x[0], (4, 6)), x[:0], x[:1]):
        assert np.array_equal(loaded(view), view * 2), (view.shape, view.strides)


def test_what_is_written_has_memory_of_its_own(exported):
    def add(x, y):
        x += y
        return x * 2

    contiguous, strided = ShapeDtype(("n",)), ShapeDtype(("n",), "float32", ("s",))
    loaded = exported(add, strided, contiguous)
    base = np.ones(16, np.float32)
    assert np.array_equal(loaded(base[::2], np.ones(8, np.float32)), np.full(8, 4)) and base[1] == 1
    with pytest.raises(ValueError, match="shares memory with y"):
        loaded(base[::2], base[:8])
    row = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (8,), (0,))
    with pytest.raises(ValueError, match="elements that share memory"):
        loaded(row, base[:8])


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float64"]
)
def test_dtypes(dtype, exported):
    loaded = exported(lambda x: (x + x, x.sum(), x.max(), x.reshape(-1)), ShapeDtype(("n", 3), dtype))
    x = (np.arange(12).reshape(4, 3) % 7).astype(dtype)
    for found, expected in zip(loaded(x), (x + x, x.sum(), x.max(), x.reshape(-1))):
        assert np.array_equal(found, expected) and found.dtype == expected.dtype and type(found) is type(expected)


def test_bfloat16(exported):
    torch = pytest.importorskip("torch")
    loaded = exported(lambda x: x + x, ShapeDtype(("n", 3), "bfloat16"))
    x = torch.arange(12).reshape(4, 3).to(torch.bfloat16)
    assert torch.equal(loaded(x), x + x)
    for dtype in ("complex64", "float8_e4m3fn"):
        with pytest.raises(UnsupportedError, match=dtype):
            ShapeDtype((3,), dtype)


# ---- processes


def test_several_files_at_once_from_threads_and_in_a_child(tmp_path):
    for name, f in (("a", lambda x: np.tanh(x) + 1), ("b", lambda x: np.exp(x) * 2)):
        mlirfuse.export(f, ShapeDtype(("n",)), targets=TARGET).save(tmp_path / f"{name}.mlirfuse")
    program = f"""
import os, threading, sys
import numpy as np
import mlirfuse_runtime
a, same, b = (mlirfuse_runtime.load({str(tmp_path)!r} + "/" + n + ".mlirfuse") for n in "aab")
x = np.linspace(-3, 3, 300_000, dtype=np.float32)
expected = a(x).tobytes(), a(x).tobytes(), b(x).tobytes()
failed = []
def check():
    for _ in range(20):
        failed.extend(f for f, y in zip((a, same, b), expected) if f(x).tobytes() != y)
threads = [threading.Thread(target=check) for _ in range(8)]
[t.start() for t in threads]
child = os.fork()
if child == 0:
    check()
    os._exit(len(failed))
[t.join() for t in threads]
assert os.waitpid(child, 0)[1] == 0 and not failed
os.remove({str(tmp_path)!r} + "/a.mlirfuse")  # what is mapped stays
check()
print("done" if not failed else failed)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr


def described(x: np.ndarray) -> Tensor:
    shape, strides = ((ctypes.c_int64 * x.ndim)(*n) for n in (x.shape, (s // x.itemsize for s in x.strides)))
    return Tensor(x.ctypes.data, (1, 0), x.ndim, (2, 8 * x.itemsize, 1, 0), shape, strides, 0)


@with_compiler
def test_wrong_descriptors(tmp_path):
    def add(x, y):
        x += y
        return x * 2

    specs = ShapeDtype(("n", 6), "float32", ("s", 1)), ShapeDtype(("n", 6))
    mlirfuse.export(add, *specs, targets=TARGET).save(tmp_path / "add.so")
    library = ctypes.CDLL(str(tmp_path / "add.so"))
    library.add_error.restype = ctypes.c_char_p
    arrays = [np.ones((4, 6), np.float32) for _ in range(3)]

    def call(options=None, **changed):
        given = [described(x) for x in arrays]
        for name, value in changed.items():
            setattr(given[int(name[-1])], name[:-1], value)
        status = library.add(*map(ctypes.byref, given), ctypes.byref(options) if options else None)
        return status, library.add_error() or b""

    assert call()[0] == 0 and np.array_equal(arrays[2], np.full((4, 6), 4))
    sizes = ctypes.c_int64 * 2
    null = CallOptions(1, None, ALLOCATE(lambda context, tensor, nbytes: None))
    for changed, code, text in (
        ({"shape0": sizes(1 << 61, 6)}, 2, b"larger than the memory"),
        ({"shape0": sizes(-4, 6)}, 2, b"extent -4"),
        ({"shape0": ctypes.POINTER(ctypes.c_int64)()}, 1, b"has no shape"),
        ({"strides0": sizes(0, 1)}, 8, b"no code for these sizes"),
        ({"strides0": sizes(4, 1)}, 3, b"elements that share memory"),
        ({"strides0": sizes(6, 2)}, 3, b"stride 2"),
        ({"strides1": sizes(-6, 1)}, 3, b"stride -6"),
        ({"dtype0": (2, 32, 4, 0)}, 1, b"dtype"),
        ({"dtype0": (200, 32, 1, 0)}, 1, b"dtype ?32"),
        ({"byte_offset0": 2}, 4, b"no multiple"),
        ({"data1": None}, 1, b"y has no data"),
        ({"data2": None}, 1, b"result has no data"),
        ({"options": null, "data2": None}, 9, b"no 96 bytes for result"),
        ({"options": CallOptions(7)}, 1, b"version 7 of the ABI"),
    ):
        before = arrays[0].copy()
        status, message = call(**changed)
        assert status == code and text in message, (changed, status, message)
        assert np.array_equal(arrays[0], before), "something was computed"


@with_compiler
def test_a_process_forks_while_a_library_computes(tmp_path):
    mlirfuse.export(lambda x: np.tanh(x), ShapeDtype(("n",)), targets=TARGET).save(tmp_path / "tanh.so")
    library = ctypes.CDLL(str(tmp_path / "tanh.so"))
    library.tanh_set_threads(4)
    x, stop = np.linspace(-1, 1, 1 << 20, dtype=np.float32), threading.Event()

    def compute(y):
        return library.tanh(*map(ctypes.byref, map(described, (x, y))), None)

    def again():
        while not stop.is_set():
            compute(np.empty_like(x))

    threads = [threading.Thread(target=again) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                y = np.zeros_like(x)
                os._exit(0 if compute(y) == 0 and np.allclose(y, np.tanh(x), atol=1e-6) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
