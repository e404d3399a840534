"""Queries that kernels compute lie in memory such that joining the heads of attention's result is no copy."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import mlirfuse.torch
from mlirfuse.frontend.torch.rewrites import query_layouts

aten = torch.ops.aten
BATCH, LENGTH, HEADS, FEATURES = 2, 16, 3, 8


class Attention(torch.nn.Module):
    """A layer whose query and key are joined from a rotated half and another."""

    def __init__(self):
        super().__init__()
        self.heads = torch.nn.Linear(24, 3 * HEADS * FEATURES)
        self.out = torch.nn.Linear(HEADS * FEATURES, 24)

    def queries(self, x):
        qkv = self.heads(x).view(BATCH, LENGTH, 3, HEADS, FEATURES).transpose(1, 3)
        q, k, v = qkv.unbind(2)
        return *(torch.cat([-y[..., 4:] * 2, y[..., :4].sin()], -1) for y in (q, k)), v

    def forward(self, x):
        out = F.scaled_dot_product_attention(*self.queries(x), is_causal=True)
        return self.out(out.transpose(1, 2).reshape(BATCH, LENGTH, -1))


class Rotated(Attention):
    """Where eager's query has the layout of the projection, but lies beside a row-major tensor."""

    def queries(self, x):
        q, k, v = self.heads(x).view(BATCH, LENGTH, 3, HEADS, FEATURES).transpose(1, 3).unbind(2)
        return *(y * 2 + torch.cat([-y[..., 4:], y[..., :4]], -1).sin() for y in (q, k)), v


@pytest.mark.parametrize("kind", [Attention, Rotated])
def test_the_result_is_saved_once(kind, monkeypatch):
    torch.manual_seed(0)
    model, x = kind(), torch.randn(BATCH, LENGTH, 24, requires_grad=True)

    def saved():
        return sum(n for graph in mlirfuse.torch.explain(model, x).graphs for _, n in graph.saved)

    found = saved()
    expected = [model(x), *torch.autograd.grad(model(x).sin().sum(), [x, *model.parameters()])]
    torch._dynamo.reset()
    out = torch.compile(model, backend="mlirfuse")(x)
    got = [out, *torch.autograd.grad(out.sin().sum(), [x, *model.parameters()])]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
        assert a.stride() == b.stride()
    monkeypatch.setattr(query_layouts, "_FORWARD", set())
    assert found == saved() - BATCH * LENGTH * HEADS * FEATURES * 4


def copies(f, *shapes):
    """How many copies a graph has of attention's result, after the pass."""
    module = make_fx(f, tracing_mode="fake")(*(torch.randn(shape) for shape in shapes))
    query_layouts.join_heads_in_place(module)
    return [node.target for node in module.graph.nodes].count(aten.clone.default)


HEADS_FIRST = (BATCH, HEADS, LENGTH, FEATURES)


def attention(q, k, v):
    return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]


@pytest.mark.parametrize(
    ("f", "left"),
    [
        (lambda q, k, v: attention(q * 2, k, v).transpose(1, 2).clone(memory_format=torch.contiguous_format).sin(), 0),
        (lambda q, k, v: attention(aten.alias(q.cos()), k, v).permute(0, 2, 1, 3).contiguous().view(-1).sin(), 0),
        (lambda q, k, v: attention(q.transpose(2, 3).sin().mT, k, v).transpose(1, 2).contiguous().sin(), 0),
        (lambda q, k, v: attention(q, k, v).transpose(1, 2).contiguous().sin(), 1),  # an argument
        (lambda q, k, v: (lambda q: attention(q, k, v).transpose(1, 2).contiguous() * q.reshape(-1)[0])(q * 2), 1),
        (lambda q, k, v: attention(q * 2, k, v).transpose(1, 2).contiguous(), 1),  # eager returns one in its own memory
        (lambda q, k, v: [x.contiguous().sin() for x in (lambda a: (a.mT, a.transpose(1, 2)))(attention(q * 2, k, v))],
         2),  # two orders
    ],
)  # fmt: skip
def test_copies(f, left):
    assert copies(f, HEADS_FIRST, HEADS_FIRST, HEADS_FIRST) == left


def test_results_beside_eager():
    """Also where attention's result itself is an output, which keeps eager's strides."""

    def f(q, k, v):
        out = F.scaled_dot_product_attention(torch.cat([q[..., :4].sin(), q[..., 4:]], -1), k, v)
        other = F.scaled_dot_product_attention(torch.cat([k, v[..., :4]], -1)[..., :FEATURES].exp(), k, v)
        return out.transpose(1, 2).reshape(BATCH, LENGTH, -1).cos(), other, other.transpose(1, 2).contiguous()

    given = [torch.randn(HEADS_FIRST) for _ in range(3)]
    with torch.no_grad():
        for a, b in zip(torch.compile(f, backend="mlirfuse")(*given), f(*given), strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
