"""Exported functions on a GPU: by mlirfuse_runtime, and by a library's C function on a stream."""

from __future__ import annotations

import ctypes
import shutil

import numpy as np
import pytest
from export_abi import CallOptions, Tensor

import mlirfuse
from mlirfuse import _native
from mlirfuse.export import ShapeDtype

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not _native.cuda_available() or not torch.cuda.is_available(), reason="there is no GPU")


def chip() -> str:
    major, minor = _native.cuda_device_attributes(0)["cc"]
    return f"cuda:sm_{major}{minor}"


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rows_and_total(x, w):
    y = np.tanh(x) * w
    return y, y.sum(0)


@pytest.mark.parametrize("target", ["here", "cuda:sm_80"])  # the second's PTX is compiled by the driver
def test_in_python(target, tmp_path):
    target = chip() if target == "here" else target
    mlirfuse.export(softmax, ShapeDtype(("n", 1000)), targets=target).save(tmp_path / "f.mlirfuse")
    loaded = mlirfuse.load(tmp_path / "f.mlirfuse")
    for n in (1, 3, 130, 4096, 20001):
        x = torch.randn(n, 1000, device="cuda")
        np.testing.assert_allclose(loaded(x).cpu(), torch.softmax(x.double(), -1).cpu(), rtol=1e-5, atol=1e-7)
    with pytest.raises(RuntimeError, match="and not for cpu"):
        loaded(np.ones((3, 1000), np.float32))


def norm(x, w):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + np.float32(1e-5)) * w


def heat(u):
    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    return u[1:-1, 1:-1] + np.float32(0.1) * (around - 4 * u[1:-1, 1:-1])


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (softmax, [("n", 1000)]),
        (norm, [("n", 1024), (1024,)]),
        (heat, [("n", 300)]),
        (rows_and_total, [("n", 96), (96,)]),
    ],
)
def test_jit_gives_the_same_bit_for_bit(f, shapes, tmp_path):
    """Where one size is open, over all magnitudes of it."""
    artifact = mlirfuse.export(f, *map(ShapeDtype, shapes), targets=chip(), max_programs=256)
    artifact.save(tmp_path / "f.mlirfuse")
    loaded, jitted = mlirfuse.load(tmp_path / "f.mlirfuse"), mlirfuse.jit(f, fallback=False)
    rng, different = np.random.default_rng(0), []
    for n in np.round(2 ** rng.uniform(2, 15, 50)).astype(int).tolist():
        given = [torch.randn([n if size == "n" else size for size in shape], device="cuda") for shape in shapes]
        found, expected = loaded(*given), jitted(*given)
        pairs = zip(found, expected) if isinstance(found, tuple) else [(found, expected)]
        different += [n for a, b in pairs if not torch.equal(a, b)]
    assert not different, (different, artifact.programs)


def test_a_definition_is_the_same_bit_for_bit(tmp_path):
    with mlirfuse.FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, 768], contiguity=[True, True], dtype=mlirfuse.DataType.Float)
        total = fd.ops.broadcast_in_dim(fd.ops.sum(fd.ops.tanh(x), [1]), fd.ops.shape(x), [0])
        fd.add_output(fd.ops.div(x, total))
    mlirfuse.export(fd, ShapeDtype(("n", 768)), targets=chip()).save(tmp_path / "f.mlirfuse")
    loaded = mlirfuse.load(tmp_path / "f.mlirfuse")
    for n in (2, 5, 131, 1000, 4096, 20001):
        x = torch.randn(n, 768, device="cuda")
        assert torch.equal(loaded(x)[0], fd.execute([x])[0]), n


def test_several_kernels_and_a_stream(tmp_path):
    specs = ShapeDtype(("n", 512)), ShapeDtype((512,))
    mlirfuse.export(rows_and_total, *specs, targets=(chip(), "cpu:x86-64-v3")).save(tmp_path / "f.mlirfuse")
    loaded = mlirfuse.load(tmp_path / "f.mlirfuse")
    stream = torch.cuda.Stream()
    for n in (2, 77, 30000):
        x, w = torch.randn(n, 512, device="cuda"), torch.randn(512, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            y, total = loaded(x, w)
        stream.synchronize()
        expected = torch.tanh(x.double()) * w.double()
        np.testing.assert_allclose(y.cpu(), expected.cpu(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(total.cpu(), expected.sum(0).cpu(), rtol=1e-4, atol=1e-3)


def described(x) -> Tensor:
    shape = (ctypes.c_int64 * x.ndim)(*x.shape)
    return Tensor(x.data_ptr(), (2, 0), x.ndim, (2, 32, 1, 0), shape, None, 0)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("target", ["here", "cuda:sm_80"])
def test_a_library(target, tmp_path):
    target = chip() if target == "here" else target
    specs = ShapeDtype(("n", 512)), ShapeDtype((512,))
    mlirfuse.export(rows_and_total, *specs, targets=(target, "cpu:x86-64-v3")).save(tmp_path / "f.so")
    library = ctypes.CDLL(str(tmp_path / "f.so"))
    library.f_error.restype = ctypes.c_char_p
    stream = torch.cuda.Stream()
    call = CallOptions(1, stream.cuda_stream)
    for n in (2, 77, 30000):
        x, w = torch.randn(n, 512, device="cuda"), torch.randn(512, device="cuda")
        y, total = torch.empty_like(x), torch.empty(512, device="cuda")
        torch.cuda.synchronize()
        given = [described(a) for a in (x, w, y, total)]
        assert library.f(*map(ctypes.byref, given), ctypes.byref(call)) == 0, library.f_error()
        stream.synchronize()
        expected = torch.tanh(x.double()) * w.double()
        np.testing.assert_allclose(y.cpu(), expected.cpu(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(total.cpu(), expected.sum(0).cpu(), rtol=1e-4, atol=1e-3)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_an_index_is_reported_by_the_next_call(tmp_path, monkeypatch):
    def take(x, i):
        return x[i] * 2

    monkeypatch.setattr(mlirfuse.config, "check_indices", True)
    artifact = mlirfuse.export(take, ShapeDtype((10,)), ShapeDtype(("m",), "int64"), targets=chip())
    artifact.save(tmp_path / "take.so")
    library = ctypes.CDLL(str(tmp_path / "take.so"))
    library.take_error.restype = ctypes.c_char_p
    x, i, y = torch.ones(10, device="cuda"), torch.tensor([3, 10], device="cuda"), torch.empty(2, device="cuda")
    given = [described(a) for a in (x, i, y)]
    given[1].dtype[:] = (0, 64, 1, 0)
    assert library.take(*map(ctypes.byref, given), None) == 0, library.take_error()
    torch.cuda.synchronize()
    assert library.take(*map(ctypes.byref, given), None) == 10
    assert b"index 10 of an earlier call is out of bounds" in library.take_error()
