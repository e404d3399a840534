"""Every op of torch's own ``op_db`` through AOTAutograd and our compilers, against eager: values, types, strides,
aliasing and gradients. A share of it always runs; all of it, with more samples, by ``-m slow``."""

from __future__ import annotations

import itertools
import warnings
import zlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from torch.testing._internal.common_methods_invocations import op_db
from torch_ops_harness import check, uncompiled

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
LEFT_OUT = ("linalg", "sparse", "torch.ops.aten._safe", "fft.", "svd", "jiterator")
NO_VALUES = {  # what they give is not determined
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
ALWAYS = 13  # one op of so many, by its name: releases of torch differ in which ops they have


def _name(op) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


OPS = [op for op in op_db if not op.name.startswith(LEFT_OUT) and "sparse" not in op.name and op.name not in NO_VALUES]
SHARE = [pytest.param(op, id=_name(op)) for op in OPS if zlib.crc32(_name(op).encode()) % ALWAYS == 0]
ALL = [pytest.param(op, id=_name(op)) for op in OPS]


def _check(op, dtype, count: int) -> None:
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip("eager has no such type")
    gradients = dtype.is_floating_point and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), count):
            try:
                check(op, sample, gradients)
            except Exception:
                try:
                    check(op, sample, gradients, uncompiled)
                except Exception:
                    pytest.skip("AOTAutograd alone differs from eager")
                raise


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("op", SHARE)
def test_a_share_of_the_ops(op, dtype):
    _check(op, dtype, 1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ALL)
def test_all_ops(op, dtype):
    _check(op, dtype, 2)


@pytest.mark.parametrize("beta, threshold", [(1, 20), (2.5, 20), (0.5, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_softplus(beta, threshold, dtype):
    """Within 4 units in the last place of float64, or 1e-15 of it, down to the smallest normal result, where ``beta``
    rounds nothing, else within as many more as the exponent is large; the gradient as eager's."""
    torch._dynamo.reset()
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 1e30, -1e30])
    x = torch.cat([torch.linspace(-80 / beta, 80 / beta, 3001), special]).to(dtype).requires_grad_()
    f = torch.compile(lambda x: torch.nn.functional.softplus(x, beta, threshold), backend="mlirfuse")
    found, eager = f(x), torch.nn.functional.softplus(x, beta, threshold)
    exact = torch.nn.functional.softplus(x.detach().double(), beta, threshold)
    bound = max((84 if beta == 2.5 else 4) * torch.finfo(dtype).eps, 1e-15)
    torch.testing.assert_close(found.detach().double(), exact, rtol=bound, atol=0, equal_nan=True)
    gradients = [torch.autograd.grad(y.nan_to_num(0, 0, 0).sum(), x)[0] for y in (found, eager)]
    torch.testing.assert_close(*gradients, rtol=max(bound, 2e-6), atol=1e-30, equal_nan=True)
