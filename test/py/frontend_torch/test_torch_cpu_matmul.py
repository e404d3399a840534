"""Large float32 matmuls by oneDNN: values, gradients and strides against eager, and which matmuls stay torch's."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from mlirfuse.frontend.torch.rewrites import cpu_matmul
from mlirfuse.frontend.torch.torch_private import linear_of_onednn
from mlirfuse.lowering import llvm

M, K, N = 256, 512, 260


@pytest.fixture
def calls(monkeypatch):
    """The matmuls that oneDNN has run, as on a processor on which MKL is slow."""
    if linear_of_onednn is None:
        pytest.skip("torch has no oneDNN")
    found = []

    def counted(x, weight, *more):
        found.append((*x.shape, len(weight)))
        return linear_of_onednn(x, weight, *more)

    monkeypatch.setattr(cpu_matmul, "linear_of_onednn", counted)
    monkeypatch.setattr(cpu_matmul, "_mkl_is_slow", lambda: True)
    torch._dynamo.reset()
    return found


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_and_its_gradients(bias, calls):
    torch.manual_seed(0)
    layer = torch.nn.Linear(K, N, bias=bias)
    x = torch.randn(M, K)
    results = []
    for module, given in ((copy.deepcopy(layer).double(), x.double()), (layer, x)):
        run = module if module is not layer else torch.compile(layer, backend="mlirfuse")
        leaf = given.clone().requires_grad_()
        out = run(leaf)
        out.sin().sum().backward()
        results.append([out.detach(), leaf.grad, *(p.grad for p in module.parameters())])
        assert out.stride() == (N, 1)
    for wanted, found in zip(*results):
        assert found.stride() == wanted.stride()
        assert (found.double() - wanted).norm() <= 1e-6 * wanted.norm()
    assert sorted(calls) == sorted([(M, K, N), (M, N, K), (N, M, K)])


OTHERS = {
    "small": (lambda x, y: x[:8] @ y, torch.float32),
    "float64": (lambda x, y: x @ y, torch.float64),
    "of one summand": (lambda x, y: torch.addmm(y[0, :1], x, y), torch.float32),
    "scaled": (lambda x, y: torch.addmm(y[0], x, y, alpha=2), torch.float32),
}


@pytest.mark.parametrize("which", OTHERS)
def test_others_stay_torchs(which, calls):
    fn, dtype = OTHERS[which]
    x, y = torch.randn(M, K, dtype=dtype), torch.randn(K, N, dtype=dtype)
    torch.testing.assert_close(torch.compile(fn, backend="mlirfuse")(x, y), fn(x, y))
    assert not calls


@pytest.mark.parametrize("columns", [False, True])
def test_operands_in_any_order_of_memory(columns, calls):
    x, y = torch.randn(K, M).T, torch.randn(N, K).T if columns else torch.randn(K, N)
    found = torch.compile(lambda x, y: x @ y + 1, backend="mlirfuse")(x, y)
    wanted = x.double() @ y.double() + 1
    assert (found.double() - wanted).norm() <= 1e-6 * wanted.norm()
    assert calls == [(M, K, N)]


def test_tangents_pass(calls):
    """Forward derivatives of an inference graph are those of torch's op."""
    x, y, tangent = torch.randn(M, K), torch.randn(K, N), torch.randn(M, K)
    fn = torch.compile(lambda x, y: x @ y * 2, backend="mlirfuse")
    with torch.no_grad():
        fn(x, y)
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        out = fn(torch.autograd.forward_ad.make_dual(x, tangent), y)
        found = torch.autograd.forward_ad.unpack_dual(out).tangent
    torch.testing.assert_close(found, tangent @ y * 2)


PROCESSORS = {("znver4", "avx512f avx2"): True, ("znver3", "avx2"): False, ("sapphirerapids", "avx512f avx2"): False}


@pytest.mark.parametrize("name, features", PROCESSORS)
def test_mkl_is_slow_on_amd_with_avx512(name, features, monkeypatch):
    if linear_of_onednn is None or not torch.backends.mkl.is_available():
        pytest.skip("torch has not both libraries")
    processor = llvm.Processor(name, frozenset(features.split()), "")
    monkeypatch.setattr(llvm, "host_processor", lambda: processor)
    assert cpu_matmul._mkl_is_slow.__wrapped__() is PROCESSORS[name, features]
