"""Norms as they are taken apart, against eager in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from mlirfuse.frontend.torch.aot import norms

aten = torch.ops.aten
FORWARD, BACKWARD = aten._native_batch_norm_legit_functional.default, aten.native_batch_norm_backward.default


def given(shape, affine, dtype):
    generator = torch.Generator().manual_seed(len(shape))
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 1
    weight, bias = (torch.randn(shape[1], generator=generator, dtype=torch.float64) if affine else None for _ in "wb")
    mean, var = (torch.rand(shape[1], generator=generator, dtype=torch.float64) + 0.5 for _ in "mv")
    cast = [None if t is None else t.to(dtype) for t in (weight, bias, mean, var)]
    return x.to(dtype), *cast


def double(values):
    return [v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values]


def close(found, expected, bound):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert (one is None) == (other is None)
        if one is not None:
            scale = max([1.0, *other.abs().flatten().tolist()])
            torch.testing.assert_close(one.double(), other, rtol=0, atol=bound * scale)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 2)])
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-14), (torch.float32, 1e-5)])
def test_forward_and_backward(shape, affine, dtype, bound, training):
    x, weight, bias, mean, var = given(shape, affine, dtype)
    args = (x, weight, bias, mean, var, training, 0.3, 1e-4)
    found = norms.DECOMPOSITIONS[FORWARD](*args)
    expected = FORWARD(*double(args))
    assert [t.dtype for t in found] == [dtype] * 5
    close(found, expected, bound)

    grad = torch.randn(shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(dtype)
    for mask in ([True, True, True], [True, False, True], [True, True, False]):
        if not affine:
            mask = [True, False, False]
        args = (grad, x, weight, mean, var, *found[1:3], training, 1e-4, mask)
        close(norms.DECOMPOSITIONS[BACKWARD](*args), BACKWARD(*double(args)), 10 * bound)


def test_half_types_are_normalized_in_float32():
    x, _, _, mean, var = given((64, 3, 8), True, torch.bfloat16)
    weight, bias = torch.rand(3), torch.rand(3)
    y, *_ = norms.DECOMPOSITIONS[FORWARD](x, weight, bias, mean.float(), var.float(), True, 0.1, 1e-5)
    expected = FORWARD(*double((x, weight, bias, mean, var, True, 0.1, 1e-5)))[0]
    assert y.dtype is torch.bfloat16
    assert float((y.double() - expected).abs().max()) <= 2**-8 * float(expected.abs().max())


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape, axis", [((6, 5), 1), ((2, 3, 4), 2), ((2, 3, 4), 1), ((3, 4), 0), ((0, 4), 1)])
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-14), (torch.float32, 1e-5)])
def test_gradients_of_layer_norms(shape, axis, affine, dtype, bound):
    generator = torch.Generator().manual_seed(3)
    normalized = list(shape[axis:])
    x, grad = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(normalized, generator=generator).to(dtype) if affine else None for _ in range(2))
    _, mean, rstd = aten.native_layer_norm.default(*double((x, normalized, weight, bias, 1e-5)))
    backward = aten.native_layer_norm_backward.default
    for mask in ([True, affine, affine], [False, affine, affine], [True, False, False]):
        args = grad, x, normalized, mean.to(dtype), rstd.to(dtype), weight, bias, mask
        found = norms.DECOMPOSITIONS[backward](*args)
        assert all(t is None or t.dtype is dtype for t in found)
        close(found, backward(*double(args)), 10 * bound)
