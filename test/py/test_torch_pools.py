"""Pools of maxima: their gradients, and what the backward keeps of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import mlirfuse.torch

WINDOWS = {
    "overlapping": dict(kernel_size=3, stride=2, padding=1),
    "apart": dict(kernel_size=2),
    "uneven": dict(kernel_size=(3, 2), stride=(1, 2), padding=(1, 0)),
    "dilated": dict(kernel_size=3, stride=2, padding=1, dilation=2, ceil_mode=True),
    "wide": dict(kernel_size=(5, 4), stride=3, padding=2),
}


@pytest.fixture(autouse=True)
def from_the_start():
    torch._dynamo.reset()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 17, 23), (1, 2, 40, 300), (3, 30, 40)])
@pytest.mark.parametrize("name", WINDOWS)
def test_gradients(name, shape, channels_last):
    """Distances of one byte, and of two in wide images; windows that begin and end outside."""

    def f(x):
        return torch.nn.functional.max_pool2d(x.sin(), **WINDOWS[name]).cos()

    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if channels_last and len(shape) == 4:
        x = x.to(memory_format=torch.channels_last)
    given = [x.clone().requires_grad_() for _ in range(2)]
    results = [g(y) for g, y in zip((f, torch.compile(f, backend="mlirfuse")), given)]
    for y in results:
        (y * torch.arange(y.numel()).reshape(y.shape)).sum().backward()
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*[y.grad for y in given])


def test_gradients_of_sizes_that_change():
    f = torch.compile(lambda x: torch.nn.functional.max_pool2d(x.sin(), 3, 2, 1), backend="mlirfuse", dynamic=True)
    for n in (9, 12, 30):
        x = torch.randn(2, 3, n, n + 3)
        given = [x.clone().requires_grad_() for _ in range(2)]
        f(given[0]).sum().backward()
        torch.nn.functional.max_pool2d(given[1].sin(), 3, 2, 1).sum().backward()
        torch.testing.assert_close(*[y.grad for y in given])


class Stem(torch.nn.Module):
    """As image models begin."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8)

    def forward(self, x):
        return torch.nn.functional.max_pool2d(self.norm(self.convolution(x)).relu(), 3, 2, 1).sum()


def test_what_is_kept():
    """The convolution's result, which the norm's backward reads, and a byte a maximum: neither the image of the pool,
    of which its backward takes the size, nor places of eight bytes."""
    (_, _, height, width) = shape = (4, 8, 32, 40)
    report = mlirfuse.torch.explain(Stem(), torch.randn(4, 3, height, width))
    kept = sum(nbytes for graph in report.graphs for _, nbytes in graph.saved)
    image, maxima = 4 * torch.Size(shape).numel(), torch.Size(shape).numel() // 4
    assert kept - image - maxima in range(1000)  # and statistics of channels
