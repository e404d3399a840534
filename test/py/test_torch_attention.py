"""Attention keeps eager's kernel: masks that hide nothing are seen to, others stay."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F

import mlirfuse.torch  # noqa: F401
from mlirfuse.frontend.torch import attention


def masks_of(fn, *args, seen=None):
    """The masks of the attentions in the graph of ``fn``, after `attention.prepare`: each node, or None."""
    found = []

    def backend(module, inputs):
        attention.prepare(module)
        calls = [node for node in module.graph.nodes if node.target is F.scaled_dot_product_attention]
        found.extend(n.kwargs.get("attn_mask", n.args[3] if len(n.args) > 3 else None) for n in calls)
        if seen is not None:
            seen.extend(n.kwargs["is_causal"] for n in calls)
        return module.forward

    torch._dynamo.reset()
    got = torch.compile(fn, backend=backend)(*args)
    torch.testing.assert_close(got, fn(*args))
    return found


def qkv():
    torch.manual_seed(0)
    return torch.randn(3, 2, 4, 16, 8).unbind(0)


def made_inside(q, k, v, first):
    """A mask as encoders make theirs while they are traced: positions from ``first`` on, for every row."""
    positions = torch.arange(16) + 0
    mask = (positions >= first)[None, None, :, None].expand(2, 1, 16, 16)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_a_mask_that_hides_nothing_goes():
    assert masks_of(lambda q, k, v: made_inside(q, k, v, 0), *qkv()) == [None]


def causal(q, k, v):
    """A mask as decoders make theirs."""
    positions = torch.arange(16) + 0
    mask = (positions[None, None, None, :] <= positions[None, None, :, None]).expand(2, -1, 16, 16)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=False)


def test_a_mask_of_what_comes_later_is_said_so():
    seen = []
    assert masks_of(causal, *qkv(), seen=seen) == [None]
    assert seen == [True]


def test_a_mask_that_hides_something_else_stays():
    def fn(q, k, v):
        mask = (torch.arange(16) % 3 > 0)[None, :].expand(16, 16)
        return F.scaled_dot_product_attention(q, k, v, mask)

    assert masks_of(fn, *qkv()) != [None]


def test_a_mask_that_is_an_argument_stays():
    q, k, v = qkv()
    mask = torch.ones(16, 16, dtype=torch.bool)
    assert masks_of(lambda m: F.scaled_dot_product_attention(q, k, v, m), mask) != [None]


def test_a_mask_of_random_numbers_stays():
    def fn(q, k, v):
        torch.manual_seed(0)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.rand(16, 16) >= 0)

    assert None not in masks_of(fn, *qkv())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_kernel_is_eagers():
    q, k, v = (x.cuda().bfloat16().requires_grad_() for x in qkv())
    with torch.profiler.profile() as eager:
        F.scaled_dot_product_attention(q, k, v)
    kernels = ("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention")
    chosen = next(name for name in kernels if any(e.key == f"aten::{name}" for e in eager.key_averages()))
    seen = []

    def backend(module, inputs):
        attention.prepare(module)
        with attention.eagers_kernels():
            from torch._dynamo.backends.common import aot_autograd

            def compiler(graph, given):
                seen.extend(str(n.target) for n in graph.graph.nodes if "attention" in str(n.target))
                return graph.forward

            return aot_autograd(fw_compiler=compiler, bw_compiler=compiler)(module, inputs)

    torch.compile(F.scaled_dot_product_attention, backend=backend)(q, k, v)
    assert any(chosen in name for name in seen)
