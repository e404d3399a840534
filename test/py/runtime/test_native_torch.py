"""The hot call on torch's CPU tensors, through DLPack's C exchange API."""

import ctypes
import gc

import pytest

torch = pytest.importorskip("torch")
if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    pytest.skip("this torch has no DLPack exchange API", allow_module_level=True)

from mlirfuse import _native

LaunchType = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p
)
TORCH = ("cpu", "torch")
F32 = (2, 32)


def dispatcher(outputs, function=None, result=None, **fields):
    args = dict(ints=[], arg_slots=[], scalars=[], workspace=0)
    args.update(fields)
    callback = LaunchType(function) if function else None
    address = ctypes.cast(callback, ctypes.c_void_p).value if function else 0
    return _native.Dispatcher(
        lambda leaves: _native.Record(address, outputs=outputs, device=TORCH, result=result, keep=callback, **args)
    )


def is_hit(call, *leaves):
    before = call.misses
    call(*leaves)
    return call.misses == before


def test_pointers_and_results():
    def add(pointers, ints, stream):
        x, y, out = (ctypes.cast(pointers[i], ctypes.POINTER(ctypes.c_float)) for i in range(3))
        for i in range(6):
            out[i] = x[i] + y[i]
        return 0

    call = dispatcher([("new", (2, 3), None, F32)], add, arg_slots=[0, 1])
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    for _ in range(3):
        assert torch.equal(call(x, y), x + y)
    storage = torch.rand(100)
    assert torch.equal(call(storage[10:16].view(2, 3), y), storage[10:16].view(2, 3) + y)  # an offset into the storage


def test_signature():
    call = dispatcher([("arg", 0)])
    x = torch.zeros(4, 6)
    call(x)
    assert is_hit(call, x)
    others = (
        x.T,
        x[:, ::2],
        x.double(),
        x.bfloat16(),
        x.half(),
        x[None],
        x.clone().requires_grad_(),
        torch.nn.Parameter(x),
    )
    for other in others:
        assert not is_hit(call, other)
        assert is_hit(call, other)
    with torch.no_grad():
        assert is_hit(call, x.clone().requires_grad_())
    z = torch.zeros(4, dtype=torch.complex64)
    assert not is_hit(call, z) and not is_hit(call, z.conj())
    assert not is_hit(call, z.imag) and not is_hit(call, z.conj().imag)


@pytest.mark.parametrize(
    "dtype, code",
    [
        (torch.float16, (2, 16)),
        (torch.bfloat16, (4, 16)),
        (torch.float32, (2, 32)),
        (torch.float64, (2, 64)),
        (torch.int8, (0, 8)),
        (torch.int64, (0, 64)),
        (torch.uint8, (1, 8)),
        (torch.uint64, (1, 64)),
        (torch.bool, (6, 8)),
        (torch.complex64, (5, 64)),
    ],
)
def test_dtypes(dtype, code):
    x = torch.ones(3, dtype=dtype)
    out = dispatcher([("new", (2, 5), None, code)])(x)
    assert out.dtype == dtype and out.shape == (2, 5) and out.is_contiguous() and not out.requires_grad
    scalars = []

    def read(pointers, ints, stream):
        scalars.append(ctypes.cast(ints, ctypes.POINTER(ctypes.c_double))[0])
        return 0

    dispatcher([("arg", 0)], read, ints=[0, 0], scalars=[(0, 0, "c" if dtype.is_complex else "f")])(
        torch.ones((), dtype=dtype)
    )
    assert scalars == [1.0]


def test_layouts_and_views():
    x = torch.arange(12.0).view(3, 4)
    outputs = [
        ("new", (3, 4), (1, 3), F32),
        ("new", (), None, F32),
        ("new", (0, 4), None, F32),
        ("arg", 0),
        ("view", ("arg", 0), (4, 3), (1, 4), 0, F32),
        ("view", ("arg", 0), (2,), (4,), 8, F32),
        ("view", ("out", 0), (12,), (1,), 0, F32),
    ]
    permuted, scalar, empty, same, transposed, part, flat = dispatcher(outputs, result="tuple")(x)
    assert permuted.stride() == (1, 3) and scalar.shape == () and empty.shape == (0, 4) and same is x
    assert torch.equal(transposed, x.T) and transposed.data_ptr() == x.data_ptr()
    assert torch.equal(part, x[:2, 2])
    flat.copy_(torch.arange(12.0))
    assert torch.equal(permuted, torch.arange(12.0).view(4, 3).T)
    tail = x.view(-1)[4:].view(2, 4)  # a view of a tensor that starts inside its storage
    assert torch.equal(dispatcher([("view", ("arg", 0), (2,), (4,), 4, F32)])(tail), tail[:, 1])
    with pytest.raises(TypeError, match="keeps its dtype"):
        dispatcher([("view", ("arg", 0), (2,), (4,), 0, (0, 32))])(x)


def test_memory_is_given_back():
    call = dispatcher([("new", (1 << 20,), None, F32)], workspace=1 << 20)
    x = torch.zeros(1)
    for _ in range(300):  # 1.2 GB in all
        call(x)
    gc.collect()
    out = call(x)
    out.fill_(1)
    assert out.sum() == 1 << 20


def test_errors_of_torch_come_through():
    with pytest.raises(TypeError, match="no argument belongs to a framework"):
        dispatcher([("new", (1,), None, F32)])(1.0)
    with pytest.raises(Exception):  # noqa: B017  # torch's, of no class of its own
        dispatcher([("arg", 0)])(torch.zeros(2, 2).to_sparse())
    with pytest.raises((RuntimeError, MemoryError)):
        dispatcher([("new", (1 << 50,), None, F32)])(torch.zeros(1))
