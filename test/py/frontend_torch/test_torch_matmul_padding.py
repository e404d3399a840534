"""Products of extents that no 16 bytes divide are padded, and stay the same matmul_padding."""

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from mlirfuse.frontend.torch.rewrites import matmul_padding

aten = torch.ops.aten


@pytest.fixture
def on_the_cpu(monkeypatch):
    """The rule for small products on the CPU, so that it can run here."""
    monkeypatch.setattr(matmul_padding, "MIN_MULTIPLY_ADDS", 1)
    monkeypatch.setattr(matmul_padding, "_can_be_padded", lambda a, b: True)


def traced(fn, *args):
    return make_fx(fn, tracing_mode="fake")(*args)


def shapes(module):
    """The operands' shapes of each product."""
    return [
        tuple(tuple(a.meta["val"].shape) for a in n.args) for n in module.graph.nodes if n.target is aten.mm.default
    ]


CASES = {
    "columns": ((16, 24), (24, 13), False, [((16, 24), (24, 16))]),
    "inner": ((16, 13), (13, 24), False, [((16, 16), (16, 24))]),
    "all": ((5, 13), (13, 11), False, [((5, 16), (16, 16))]),
    "rows of a transposed tensor": ((24, 13), (24, 16), True, [((16, 24), (24, 16))]),
}


@pytest.mark.parametrize("case", CASES)
def test_padded(case, on_the_cpu):
    left, right, transposed, want = CASES[case]
    torch.manual_seed(0)
    a, b = torch.randn(left, dtype=torch.bfloat16), torch.randn(right, dtype=torch.bfloat16)

    def fn(a, b):
        return (a.t() if transposed else a) @ b

    module = traced(fn, a, b)
    matmul_padding.pad(module)
    assert shapes(module) == want
    got, expected = module(a, b), fn(a.double(), b.double())
    assert got.shape == expected.shape and got.is_contiguous()
    torch.testing.assert_close(got.double(), expected, rtol=2**-7, atol=2**-6)


def test_an_operand_is_padded_once(on_the_cpu):
    a, w = torch.randn(16, 24), torch.randn(13, 24)

    def fn(a, w):
        logits = a @ w.t()
        return logits, torch.exp(logits) @ w

    module = traced(fn, a, w)
    matmul_padding.pad(module)
    pads = [n for n in module.graph.nodes if n.target is aten.constant_pad_nd.default]
    assert len(pads) == len({(n.args[0], tuple(n.args[1])) for n in pads})
    for got, want in zip(module(a, w), fn(a, w)):
        torch.testing.assert_close(got, want)


def test_what_is_left_alone():
    with FakeTensorMode():
        a, b = torch.empty(1 << 14, 768, dtype=torch.bfloat16), torch.empty(768, 50257, dtype=torch.bfloat16)
        module = make_fx(lambda a, b: a @ b)(a, b)
    matmul_padding.pad(module)
    assert shapes(module) == [((1 << 14, 768), (768, 50257))]  # on the CPU


def test_what_both_directions_pad_is_kept_padded(on_the_cpu):
    """A tied weight of 13 words, padded to 16 for the logits and for the gradient of what they are made of."""
    import mlirfuse.torch  # noqa: F401 the back end

    table = torch.nn.Parameter(torch.randn(13, 24, dtype=torch.bfloat16) / 4)
    x = torch.randn(40, 24, dtype=torch.bfloat16, requires_grad=True)
    seen = {}

    def logits(x, table):
        return torch.exp(x @ (table * 2).t())

    def look(which, lowered, host):
        seen[which] = [op for op in lowered.graph.ops if op.name == "pad"]

    from mlirfuse.frontend.torch import backend

    backend.observers.append(look)
    try:
        compiled = torch.compile(logits, backend="mlirfuse")
        gradient = torch.randn(40, 13, dtype=torch.bfloat16)
        (got := compiled(x, table)).backward(gradient)
    finally:
        backend.observers.remove(look)
    padded = [tuple(op.result.shape) for op in seen["backward"]]
    assert padded == [(40, 16)] and (16, 24) in [tuple(op.result.shape) for op in seen["forward"]]
    found = got.detach(), x.grad, table.grad
    x64, table64 = (t.detach().double().requires_grad_() for t in (x, table))
    (want := logits(x64, table64)).backward(gradient.double())
    for a, b in zip(found, (want, x64.grad, table64.grad)):
        assert (a.double() - b).norm() <= 2e-2 * b.norm()


def test_a_size_that_is_kept_and_pads():
    """Of what is kept for the backward, sizes are no operands that are padded."""
    import mlirfuse.torch  # noqa: F401 the back end

    x, w = (torch.randn(4, 5, requires_grad=True), torch.randn(10, 3, requires_grad=True))

    def fn(x, w):
        return (torch.nn.functional.pad(x, (0, x.shape[1])) @ w).sin()

    compiled = torch.compile(fn, backend="mlirfuse", dynamic=True, options={"fallback": False})
    got = torch.autograd.grad(compiled(x, w).sum(), (x, w))
    for a, b in zip(got, torch.autograd.grad(fn(x, w).sum(), (x, w))):
        torch.testing.assert_close(a, b)
