"""Concatenations with operands that have no elements, as caches of keys and values begin with."""

import pytest

torch = pytest.importorskip("torch")

import mlirfuse.torch


def first_of_a_cache(x, y):
    keys = torch.cat([torch.tensor([], dtype=x.dtype, device=x.device), x.transpose(1, 2)], dim=-2)
    words = torch.cat([torch.empty(0), y, torch.empty(2, 0, 5)], dim=1)
    return keys, words.tanh(), (keys * 2).sum()


def widened_by_an_empty_tensor(x, y):
    return torch.cat([torch.tensor([], dtype=torch.float64), y.sum(1)], -1), torch.cat([torch.empty(0), torch.empty(0)])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [first_of_a_cache, widened_by_an_empty_tensor])
def test_operands_without_elements(function, dynamic):
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 4, 5).requires_grad_(), torch.randn(2, 3, 5).requires_grad_()
    ours, eagers = torch.compile(function, backend="mlirfuse", dynamic=dynamic)(x, y), function(x, y)
    for one, other in zip(ours, eagers):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        torch.testing.assert_close(one, other)
    ours, eagers = (
        torch.autograd.grad(sum(each.square().sum() for each in results), (x, y), allow_unused=True)
        for results in (ours, eagers)
    )
    for one, other in zip(ours, eagers):
        torch.testing.assert_close(one if other is not None else None, other)


def test_torchs_own_concatenation_keeps_the_wider_type():
    """No kernel reads complex numbers: the call is torch's, with all operands."""
    torch._dynamo.reset()
    x = torch.randn(2, 3, dtype=torch.complex64)
    found = torch.compile(lambda x: torch.cat([torch.empty(0, dtype=torch.complex128), x]), backend="mlirfuse")(x)
    assert found.dtype is torch.complex128 and torch.equal(found, x.to(torch.complex128))


def test_kernels_read_what_is_concatenated():
    torch._dynamo.reset()
    told = str(mlirfuse.torch.explain(first_of_a_cache, torch.randn(2, 3, 4, 5), torch.randn(2, 3, 5)))
    assert "aten.cat" not in told and "2 kernels" in told
