"""Which matrix products of torch's graphs kernels compute together with the ops on their results."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from mlirfuse.frontend.torch import fx_passes, lower
from mlirfuse.frontend.torch.ops import float8
from mlirfuse.frontend.torch.rewrites import matmul_epilogues, product_choice
from mlirfuse.lowering import devices
from mlirfuse.passes import pipelines


def kernels(function, *shapes, **how):
    """The schedulers of the segments of ``function`` on tensors that have no memory, on such a GPU; "extern" for each
    product of the library."""
    graph = segmented(function, *shapes, **how)[0]
    products = [op for op in graph.ops if "mm" in str(op.attrs.get("callee", ""))]
    return [segment.scheduler for segment in graph.labels()[1]] + ["extern"] * len(products)


def segmented(function, *shapes, mode="auto", chip="sm_90", dtype=torch.bfloat16, changed=lambda *tensors: tensors):
    """The segmented graph, and the calls of torch's own ops with the reason for each."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        tensors = changed(*(torch.empty(shape, device="cuda", dtype=dtype) for shape in shapes))
        module = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
    properties = devices.named(f"cuda:{chip}")
    fx_passes.run(fx_passes.before_lowering(properties, mode), module)
    lowered = lower.lower(module, "inference")
    if mode == "auto" and matmul_epilogues.keep(module, lowered.graph, properties):
        lowered = lower.lower(module, "inference")
    return pipelines.lower_to_segments(lowered.graph, properties, foreach=True), lowered.outside


def gelu_of_linear(x, w, b):
    return F.gelu(F.linear(x, w, b), approximate="tanh")


LINEAR = (4, 2048, 768), (3072, 768), (3072,)


def test_a_linear_layer_with_an_activation_is_one_kernel():
    assert kernels(gelu_of_linear, *LINEAR) == ["matmul"]
    assert kernels(gelu_of_linear, *LINEAR, dtype=torch.float16) == ["matmul"]
    assert kernels(gelu_of_linear, *LINEAR, mode="never") == ["pointwise", "extern"]


def test_a_gradient_through_an_activation_is_one_kernel():
    def backward(dy, w, u):
        return torch.ops.aten.gelu_backward(dy @ w, u, approximate="tanh")

    assert kernels(backward, (8192, 768), (768, 3072), (8192, 3072)) == ["matmul"]


@pytest.fixture
def tf32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def test_float32_is_multiplied_as_torch_is_told_to(tf32):
    assert kernels(gelu_of_linear, *LINEAR, dtype=torch.float32, mode="always") == ["matmul"]
    sizes = (2048, 768), (768, 3072)  # the second is not contiguous along the sums
    assert "extern" in kernels(lambda x, w: torch.relu(x @ w), *sizes, dtype=torch.float32, mode="always")


@pytest.mark.parametrize(
    "chip, dtype", [("sm_80", torch.bfloat16), ("sm_100", torch.bfloat16), ("sm_90", torch.float32)]
)
def test_other_devices_and_types_use_the_library(chip, dtype):
    assert kernels(gelu_of_linear, *LINEAR, chip=chip, dtype=dtype, mode="always") == ["pointwise", "extern"]


E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def scaled_linear(x, w, rows, columns, b):
    """A linear layer of float8, whose operands kernels cast, with scales of rows and columns, and GELU."""
    x, w = (x.float() / rows).to(E5M2), (w.t().float() / columns).to(E4M3).t().contiguous().t()
    return F.gelu(torch._scaled_mm(x, w, rows, columns, b, out_dtype=torch.bfloat16), approximate="tanh")


SCALED = (8192, 768), (3072, 768), (8192, 1), (1, 3072), (3072,)


def with_scales(x, w, rows, columns, b):
    return x, w, rows.float(), columns.float(), b


@pytest.mark.parametrize("scales", [SCALED[2:4], ((), ()), ((1, 1), (1,))])
def test_products_of_float8(monkeypatch, scales):
    """With scales and what follows; by choice alone, as no estimate was measured."""
    monkeypatch.setattr(float8, "_saturates", lambda dtype, device: True)  # which a device tells
    shapes = (*SCALED[:2], *scales, SCALED[4])
    found = kernels(scaled_linear, *shapes, mode="always", changed=with_scales)
    assert found.count("matmul") == 1 and "extern" not in found
    assert "extern" in kernels(scaled_linear, *shapes, mode="auto", changed=with_scales)
    graph = segmented(scaled_linear, *shapes, mode="always", changed=with_scales)[0]
    (product,) = [op for op in graph.ops if op.name == "float8_dot"]
    assert product.attrs == {"formats": ("e5m2", "e4m3fn"), "fast_sums": False}
    assert graph.returns[0].op.segment is product.segment


def test_products_of_float8_given_as_such():
    def body(x, w, rows, columns):
        return torch._scaled_mm(x, w.t(), rows, columns, out_dtype=torch.float32, use_fast_accum=True)

    def cast(x, w, rows, columns):
        return x.to(E4M3), w.to(E4M3), rows.float(), columns.float()

    shapes = SCALED[:4]
    assert kernels(body, *shapes, mode="always", changed=cast) == ["matmul"]
    rows = (*SCALED[:4], ())

    def scaled(x, w, rows, columns, b):
        return torch._scaled_mm(x, w.t(), rows, columns, scale_result=b, out_dtype=torch.bfloat16)

    assert "matmul" not in kernels(scaled, *rows, mode="always", changed=lambda *t: (*cast(*t[:4]), t[4].float()))


def test_what_gains_nothing_uses_the_library():
    assert kernels(lambda x, w: F.linear(x, w), (8192, 768), (3072, 768)) == ["extern"]  # no op on the result
    few = (64, 768), (768, 768), (768,)  # not enough tiles for all multiprocessors
    assert kernels(gelu_of_linear, *few) == ["pointwise", "extern"]
    assert kernels(gelu_of_linear, *few, mode="always") == ["matmul"]


@pytest.mark.parametrize("others, found", [(2, "matmul"), (3, "extern")])
def test_what_no_estimate_was_fitted_to_uses_the_library(others, found):
    """More matrices are read than by any kernel that was measured."""

    def body(x, w, *rest):
        product = F.linear(x, w)
        for r in rest:
            product = product + r
        return product

    shapes = (16384, 768), (3072, 768), *[(16384, 3072)] * others
    assert found in kernels(body, *shapes)


def test_explain_tells_what_is_expected_of_both():
    few = (64, 768), (768, 768), (768,)
    ((name, why, _),) = segmented(gelu_of_linear, *few)[1]
    assert name == "aten.addmm.default"
    library, kernel = map(
        int, re.fullmatch(r"(\d+) µs with what follows, (\d+) as one kernel \(estimated\)", why).groups()
    )
    assert library < kernel


def test_equal_layers_are_compared_once(monkeypatch):
    def layers(x, *parameters):
        for w, b in zip(parameters[::2], parameters[1::2]):
            x = gelu_of_linear(x, w, b)
        return x

    costs = []
    cost = product_choice._cost
    monkeypatch.setattr(product_choice, "_cost", lambda *given: costs.append(cost(*given)) or costs[-1])
    assert kernels(layers, (8192, 768), *[(768, 768), (768,)] * 3) == ["matmul"] * 3
    assert len(costs) == 2  # with and without a kernel


def test_a_gate_is_computed_with_one_of_its_products():
    """The other would gain too little by what is left."""
    shapes = (16384, 1536), (4096, 1536), (4096, 1536)
    for body in (
        lambda x, w, v: F.silu(F.linear(x, w)) * F.linear(x, v),
        lambda x, w, v: F.linear(x, w) + F.linear(x, v),
    ):
        assert sorted(kernels(body, *shapes)) == ["extern", "matmul"]


def test_what_tma_cannot_copy_uses_the_library():
    def strided(x, w, b):
        return torch.ops.aten.slice.Tensor(x, 1, 8, 776), w, b

    def parts(x, w, b):
        return gelu_of_linear(torch.ops.aten.slice.Tensor(x, 2, 0, 768), w, b)

    odd = (8192, 772), (3072, 772), (3072,)
    assert kernels(gelu_of_linear, *odd, mode="always") == ["pointwise", "extern"]
    assert "extern" in kernels(parts, (4, 2048, 2304), *LINEAR[1:], mode="always")
    aligned = (8192, 776), (3072, 768), (3072,)
    assert kernels(gelu_of_linear, *aligned, changed=strided) == ["matmul"]  # an argument with longer rows
