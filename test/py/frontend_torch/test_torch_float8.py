"""Float8 in torch's graphs: casts as eager's to the bit, scales, copies and products, torchao's recipes."""

import re

import pytest

torch = pytest.importorskip("torch")

import ml_dtypes
import numpy as np
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import mlirfuse.torch
from mlirfuse.frontend.torch.lower import lower
from mlirfuse.frontend.torch.ops import float8 as rules
from mlirfuse.frontend.torch.rewrites import float8

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
NUMPY = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}


@pytest.fixture(autouse=True)
def reset():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(fn):
    return torch.compile(fn, backend="mlirfuse", options={"fallback": False})


def bits(x):
    return x.reshape(-1).contiguous().view(torch.uint8)


def edges(dtype):
    """Numbers around the largest of both types, halves between numbers, infinities, NaN, subnormals; random bits."""
    large = [447.9, 448, 463.9, 464, 464.1, 480, 57344, 61439, 61440, 61441, 65504, torch.inf, torch.nan, 0.0]
    small = [2**-6, 2**-7 * 1.5, 2**-9, 2**-10, 2**-10 * 1.01, 2**-14, 2**-16, 2**-17, 2**-17 * 1.01]
    given = torch.tensor([*large, *small])
    if dtype is torch.float32:
        random = torch.randint(-(2**31), 2**31 - 1, (4096,), dtype=torch.int32).view(dtype)
    else:
        random = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    return torch.cat([given.to(dtype), -given.to(dtype), random])


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("to", [E4M3, E5M2])
def test_casts_to_float8_are_eagers(source, to):
    x = edges(source)
    assert torch.equal(bits(compiled(lambda x: x.to(to))(x)), bits(x.to(to)))


@pytest.mark.parametrize("to", [E4M3, E5M2])
def test_casts_of_a_torch_that_does_not_saturate(monkeypatch, to):
    """As of torch's releases in which a number that is too large becomes NaN or an infinity, as in ml_dtypes."""
    monkeypatch.setattr(rules, "_saturates", lambda dtype, device: False)
    x = edges(torch.float32)
    found = compiled(lambda x: x.to(to))(x)
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(x.numpy().astype(NUMPY[to]).view(np.uint8))
    numbers = ~x.isnan()
    assert torch.equal(bits(found)[numbers], expected[numbers])
    assert found.float()[~numbers].isnan().all()


@pytest.mark.parametrize("to", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("source", [E4M3, E5M2])
def test_casts_from_float8(source, to):
    x = torch.arange(256, dtype=torch.uint8).view(source)
    torch.testing.assert_close(compiled(lambda x: x.to(to))(x), x.to(to), rtol=0, atol=0, equal_nan=True)


def test_casts_between_float8():
    x = torch.arange(256, dtype=torch.uint8).view(E4M3)
    found, back = compiled(lambda x: (x.to(E5M2), x.to(E5M2).to(E4M3)))(x)
    assert torch.equal(bits(found), bits(x.to(E5M2)))
    assert torch.equal(bits(back), bits(x.to(E5M2).to(E4M3)))


def test_what_only_moves():
    x, y = torch.randn(12, 8).to(E4M3), torch.randn(4, 8).to(E4M3)

    def fn(x, y):
        both = torch.cat([x, y])
        return both, both.t().contiguous(), both[3:, 1:].t(), both.view(2, 8, 8).float().amax(-1), both.flip(0)

    for found, expected in zip(compiled(fn)(x, y), fn(x, y)):
        assert found.dtype is expected.dtype
        assert found.stride() == expected.stride()
        assert torch.equal(bits(found), bits(expected))


# ---- scales


def tensorwise(x):
    scale = torch.finfo(E4M3).max / x.abs().amax().float().clamp(min=1e-12)
    scaled = (x.float() * scale).clamp(-448, 448).to(E4M3)
    return scaled, scaled.t().contiguous(), scale.reciprocal()


def rowwise(x):
    scale = 448.0 / x.abs().amax(1, keepdim=True).float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-448, 448).to(E4M3), scale.reciprocal()


def columnwise(x):
    scale = 448.0 / x.abs().amax(0, keepdim=True).float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-448, 448).to(E4M3).t().contiguous(), scale.reciprocal()


def by_blocks_of_a_row(x):
    y = x.view(x.shape[0], -1, 128).float()
    scale = 448.0 / y.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    return (y * scale).to(E4M3).view(x.shape), scale.squeeze(-1).reciprocal()


def by_square_blocks(x):
    y = x.view(x.shape[0] // 128, 128, -1, 128).float()
    scale = 448.0 / y.abs().amax((1, 3), keepdim=True).clamp(min=1e-12)
    return (y * scale).to(E5M2).view(x.shape), scale[:, 0, :, 0].reciprocal()


SCALES = {f.__name__: f for f in (tensorwise, rowwise, columnwise, by_blocks_of_a_row, by_square_blocks)}


@pytest.mark.parametrize("scaled", SCALES.values(), ids=SCALES)
def test_scales(scaled):
    """All of it in kernels: no cast, copy or sum is left to torch."""
    x = torch.randn(256, 384).bfloat16() * torch.linspace(0.01, 300, 384).bfloat16()
    explained = mlirfuse.torch.explain(scaled, x)
    assert not [name for graph in explained.graphs for name, _, _ in graph.outside]
    torch._dynamo.reset()
    for found, expected in zip(compiled(scaled)(x), scaled(x)):
        assert found.stride() == expected.stride()
        assert torch.equal(bits(found), bits(expected))


def test_a_cast_and_its_transposed_copy_are_one_kernel():
    def fn(x, scale):
        y = (x.float() * scale).to(E4M3)
        return y, y.t().contiguous()

    (graph,) = mlirfuse.torch.explain(fn, torch.randn(64, 96).bfloat16(), torch.tensor(3.0)).graphs
    assert len(graph.host.launches) == 1


# ---- products


class Linear(torch.autograd.Function):
    """A linear layer with three scaled products, with scales of tensors, as in recipes of training."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        (a, _, a_scale), (_, b, b_scale) = tensorwise(x), tensorwise(weight.t().contiguous())
        return torch._scaled_mm(a, b.t(), a_scale, b_scale, out_dtype=torch.bfloat16)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        (g, gt, g_scale), (_, w, w_scale), (_, xt, x_scale) = map(tensorwise, (grad, weight, x))
        dx = torch._scaled_mm(g, w.t(), g_scale, w_scale, out_dtype=torch.bfloat16)
        dw = torch._scaled_mm(gt, xt.t(), g_scale, x_scale, out_dtype=torch.bfloat16)
        return dx, dw


def test_training_with_scaled_products():
    x = torch.randn(32, 64).bfloat16().requires_grad_()
    weight = torch.randn(48, 64).bfloat16().requires_grad_()

    def fn(x, weight):
        return torch.nn.functional.silu(Linear.apply(x, weight).float()).sum()

    explained = mlirfuse.torch.explain(fn, x, weight)
    assert {name for graph in explained.graphs for name, _, _ in graph.outside} == {"aten._scaled_mm.default"}
    torch._dynamo.reset()
    expected = torch.autograd.grad(fn(x, weight), (x, weight))
    found = torch.autograd.grad(compiled(fn)(x, weight), (x, weight))
    for got, wanted in zip(found, expected):
        assert (got - wanted).abs().max() <= 2**-6 * wanted.abs().max()  # a step of e4m3fn where SiLU's ends differ


def test_gradients_through_casts():
    """Autograd casts the gradient of a cast to the operand's type, so through float8."""

    def fn(x, w):
        y = (x * w).to(E4M3)
        return (y.to(torch.bfloat16) @ w).float().square().mean()  # gradients below 448

    x, w = torch.randn(32, 32).bfloat16(), torch.randn(32, 32).bfloat16().requires_grad_()
    run = torch.compile(fn, backend="mlirfuse", options={"fallback": False, "eager_rounding": True})
    (found,), (expected,) = torch.autograd.grad(run(x, w), w), torch.autograd.grad(fn(x, w), w)
    assert (found - expected).abs().max() <= 2**-7 * expected.abs().max()


def by_rows(x):
    scale = torch.finfo(E4M3).max / x.abs().amax(1, keepdim=True)
    return (x * scale).to(E4M3), 1 / scale


def by_tensor(x):
    scale = torch.finfo(E4M3).max / x.abs().amax()
    return (x * scale).to(E4M3), 1 / scale


@pytest.mark.parametrize("scaled, said", [
    (by_tensor, "first operand: one, of the second: one; the largest magnitude is found before the cast"),
    (by_rows, "first operand: one of each row, of the second: one of each column"),
])  # fmt: skip
def test_explain_says_which_scales(scaled, said):
    def product(x, w):
        (a, of_a), (b, of_b) = scaled(x), scaled(w)
        return torch._scaled_mm(a, b.t(), of_a, of_b if of_b.dim() == 0 else of_b.t(), out_dtype=torch.bfloat16)

    x, w = torch.randn(32, 64), torch.randn(48, 64)
    try:
        product(x, w)
    except RuntimeError as error:
        pytest.skip(f"this torch has no such product on a CPU: {error}")
    assert said in str(mlirfuse.torch.explain(product, x, w))


def test_grouped_products_of_float8_are_torchs():
    """A CPU has none: the graph of one calls it, with what kernels cast."""

    def grouped(x, w, ends):
        scale = 448 / x.abs().amax(1)
        rows = (x * scale[:, None]).to(E4M3)
        scales = 1 / scale, x.new_ones(4, 48)
        return torch._scaled_grouped_mm(rows, w.transpose(-2, -1), *scales, offs=ends, out_dtype=torch.bfloat16)

    with FakeTensorMode():
        given = torch.empty(64, 32), torch.empty(4, 48, 32).to(E4M3), torch.empty(4, dtype=torch.int32)
        module = make_fx(grouped)(*given)
    float8.as_bytes(module)
    ops = lower(module, "inference").graph.body.ops
    calls = {op.attrs["callee"] for op in ops if op.name == "call"}
    assert "encode_e4m3fn" in {op.name for op in ops}
    assert "aten._scaled_grouped_mm.default" in calls
    assert not any("copy" in name for name in calls)


def exponents(x):
    """MXFP8: of each 32 numbers the exponent of the largest, as bits, and the numbers over it."""
    parts = x.view(-1, 32)
    bits = parts.abs().amax(1, keepdim=True).float().view(torch.int32)
    biased = ((bits >> 23) & 255) - 8  # of e4m3fn's largest power of two
    scale = biased.clamp(0, 254).to(torch.uint8)
    of_one = (scale.to(torch.int32) << 23).view(torch.float32).clamp(min=2.0**-126)
    return (parts / of_one).clamp(-448, 448).to(E4M3).view(x.shape), scale.view(torch.float8_e8m0fnu)


def test_exponents_of_blocks_are_kernels():
    x = torch.randn(64, 128).bfloat16() * 100
    x[0], x[1, 7] = 0, 2.0**100
    explained = mlirfuse.torch.explain(exponents, x)
    assert not any(graph.outside for graph in explained.graphs)
    for got, wanted in zip(compiled(exponents)(x), exponents(x)):
        assert got.dtype is wanted.dtype
        assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
def test_casts_to_exponents_are_torchs(source):
    x = torch.tensor([0.0, 1, 1.4, 1.5, 3, 1e30, 2.0**-126, torch.inf, torch.nan]).to(source)
    f = lambda x: ((x * 2).to(torch.float8_e8m0fnu), (x * 2).to(torch.float8_e8m0fnu).float() + 1)  # noqa: E731
    for got, wanted in zip(compiled(f)(x), f(x)):
        assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))


# ---- torchao


def network():
    layers = [torch.nn.Linear(64, 128, bias=False), torch.nn.GELU(), torch.nn.Linear(128, 64, bias=False)]
    return torch.nn.Sequential(*layers).bfloat16()


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_recipes_of_torchao(recipe):
    training = pytest.importorskip("torchao.float8")
    model = training.convert_to_float8_training(network(), config=training.Float8LinearConfig.from_recipe_name(recipe))
    x = torch.randn(32, 64).bfloat16()

    def step(run):
        model.zero_grad()
        y = run(x)
        y.float().square().sum().backward()
        return [y.detach(), *(p.grad for p in model.parameters())]

    expected = step(model)
    for got, wanted in zip(step(compiled(model)), expected):
        assert (got - wanted).abs().max() <= 2**-6 * wanted.abs().max()
    explained = mlirfuse.torch.explain(model, x)
    products = {"aten._scaled_mm.default", "aten.mm.default"}
    assert {name for graph in explained.graphs for name, _, _ in graph.outside} <= products


@pytest.mark.parametrize("mode", ["FLOOR", "RCEIL", "CEIL", "EVEN"])
def test_mxfp8_of_torchao(mode):
    config = pytest.importorskip("torchao.prototype.mx_formats.config")
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    x = torch.randn(64, 128).bfloat16() * 100
    f = lambda x: to_mx(x, E4M3, 32, config.ScaleCalculationMode[mode])  # noqa: E731
    for got, wanted in zip(compiled(f)(x), f(x)):
        assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("config", ["Float8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
def test_inference_quantized_by_torchao(config):
    quantization = pytest.importorskip("torchao.quantization")
    model, x = network().eval(), torch.randn(32, 64).bfloat16()
    quantization.quantize_(model, getattr(quantization, config)())
    with torch.no_grad():
        expected, found = model(x), compiled(model)(x)
    assert (found - expected).abs().max() <= 2**-7 * expected.abs().max()


# ---- casts of numbers that are not too large


def limits(dtype):
    return torch.finfo(dtype).min, torch.finfo(dtype).max


CLAMPED = {
    "clamp": lambda x, to: x.float().clamp(*limits(to)).to(to),
    "of a scaled number": lambda x, to: (x.float() * 3).clamp(*limits(to)).to(to),
    "two": lambda x, to: x.clamp(max=limits(to)[1]).clamp(min=limits(to)[0]).to(to),
    "less": lambda x, to: x.clamp(-1, 1).to(to),
}
NOT_CLAMPED = {
    "below alone": lambda x, to: x.clamp(max=limits(to)[1]).to(to),
    "more": lambda x, to: x.float().clamp(*(1.5 * n for n in limits(to))).to(to),
    "and added to": lambda x, to: (x.float().clamp(*limits(to)) + 4096).to(to),
    "by values": lambda x, to: x.clamp(-x.abs().amax(), x.abs().amax()).to(to),
}


@pytest.mark.parametrize("to", [E4M3, E5M2])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", [*CLAMPED.values(), *NOT_CLAMPED.values()], ids=[*CLAMPED, *NOT_CLAMPED])
def test_casts_of_clamped_numbers(monkeypatch, fn, source, to):
    """Without the ops for what is too large where nothing is, and with them elsewhere, for releases of torch in which
    such a number becomes NaN or an infinity."""
    monkeypatch.setattr(rules, "_saturates", lambda dtype, device: False)
    x = edges(source)[:4096]
    told = str(mlirfuse.torch.explain(lambda x: fn(x, to), x))
    assert bool(re.search(r"\b(gt|ge)\b", told)) == (fn in NOT_CLAMPED.values())
    if fn in CLAMPED.values():
        found, expected, numbers = compiled(lambda x: fn(x, to))(x), fn(x, to), ~x.isnan()
        assert torch.equal(bits(found)[numbers], bits(expected)[numbers])
        assert found.float()[~numbers].isnan().all()
