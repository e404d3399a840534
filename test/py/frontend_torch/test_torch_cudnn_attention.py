"""cuDNN's attention: its backward gets one memory layout, and plans that eager's calls do not share."""

import struct

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import mlirfuse.torch  # noqa: F401  (registers the back end)
from mlirfuse.frontend.torch.attention import cudnn_attention
from mlirfuse.frontend.torch.lower import lower

SHAPE = (2, 3, 5, 4)  # batches, heads, queries, features


def by_heads(shape=SHAPE, **how):
    return torch.randn(shape, **how)


def by_tokens(shape=SHAPE, **how):
    return by_heads(shape, **how).transpose(1, 2).contiguous().transpose(1, 2)


def within_three(shape=SHAPE, **how):
    """Queries of one product that gives queries, keys and values."""
    batches, heads, queries, features = shape
    return torch.randn(batches, queries, 3, heads, features, **how)[:, :, 0].transpose(1, 2)


LAYOUTS = [by_heads, by_tokens, within_three]


@pytest.mark.parametrize("query", LAYOUTS)
def test_gradients_and_results_lie_like_the_query(query, monkeypatch):
    """Whatever their layout was, torch's op gets the strides that the query's determine, and the same numbers."""
    seen = []
    monkeypatch.setattr(cudnn_attention, "BACKWARD", lambda *args, **kwargs: seen.append((args, kwargs)))
    q = query()
    wanted = torch.empty_like(q).stride()
    for grad in (by_heads(), by_tokens(), torch.ones(()).expand(SHAPE), by_heads((*SHAPE[:3], 8))[..., ::2]):
        for out in (by_heads(), by_tokens()):
            cudnn_attention._backward(grad, q, q, q, out, "logsumexp", "seed", 0.0, True, scale=0.5)
            (given_grad, *_, given_out, logsumexp, seed, dropout, is_causal), kwargs = seen.pop()
            assert given_grad.stride() == given_out.stride() == wanted
            assert torch.equal(given_grad, grad)
            assert torch.equal(given_out, out)
            assert (logsumexp, seed, is_causal, kwargs) == ("logsumexp", "seed", True, {"scale": 0.5})
            assert struct.pack("d", dropout) == struct.pack("d", -0.0) != struct.pack("d", 0.0)


def test_forward_and_backward_drop_the_same_elements(monkeypatch):
    """The probability that stands for 0.1 is another float32, in both."""
    seen = []
    for name in ("FORWARD", "BACKWARD"):
        monkeypatch.setattr(cudnn_attention, name, lambda *args: seen.append(args))
    q = by_heads()
    cudnn_attention._forward(q, q, q, None, True, 0.1, False)
    cudnn_attention._backward(q, q, q, q, q, 0.1, False)
    (*_, forward, _), (*_, backward, _) = seen
    assert forward == backward
    assert 0 < 0.1 - forward < 1e-8
    assert torch.tensor(forward) != torch.tensor(0.1)


def test_graphs_call_it():
    graph = torch.fx.Graph()
    with FakeTensorMode():
        fakes = {name: torch.empty(SHAPE) for name in ("grad", "q", "k", "v", "out")}
        fakes |= {"logsumexp": torch.empty(*SHAPE[:3], 1), "number": torch.empty((), dtype=torch.int64)}
    nodes = {}
    for name, fake in fakes.items():
        nodes[name] = graph.placeholder(name)
        nodes[name].meta["val"] = fake
    call = graph.call_function(
        cudnn_attention.BACKWARD, (*list(nodes.values())[:6], nodes["number"], nodes["number"], None, None, None, 5, 5,
                                   0.0, False)
    )  # fmt: skip
    call.meta["val"] = tuple(fakes[name] for name in "qkv")
    graph.output((call,))
    lowered = lower(torch.fx.GraphModule({}, graph), "backward")
    (op,) = lowered.graph.body.ops
    assert op.attrs["function"].serialized[1]["target"] is cudnn_attention._backward


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_after_those_of_another_layout(dynamic):
    """Eager's gradient in one layout, then compiled graphs' in both."""
    torch._dynamo.reset()
    queries = 416 if dynamic else 352  # sizes that no other test has: plans are cached
    shape = 2, 4, queries, 64
    q, k, v = (by_heads(shape, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    mask = (torch.arange(queries, device="cuda") < queries // 2)[None, None, None].expand(2, 1, queries, queries)
    run = torch.compile(F.scaled_dot_product_attention, backend="mlirfuse", dynamic=dynamic)
    for grad in (by_tokens(shape, device="cuda"), by_heads(shape, device="cuda")):
        wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
        expected = torch.autograd.grad(F.scaled_dot_product_attention(*wide, mask), wide, grad.double())
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            for attend in (F.scaled_dot_product_attention, run):
                found = torch.autograd.grad(attend(q, k, v, mask), (q, k, v), grad.bfloat16())
                if attend is run:
                    for a, b in zip(found, expected):
                        assert (a - b).norm() <= 0.02 * b.norm()
