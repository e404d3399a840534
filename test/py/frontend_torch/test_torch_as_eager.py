"""Compiled functions do as eager does: Python numbers that change, strides, what is refused, signs of zeros. A small
part of what the generators beside this file run by hand."""

from __future__ import annotations

import functools
import random
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

import torch.nn.functional as F
import torch_checks_of_eager as checks
import torch_extremes as extremes
import torch_numbers as numbers
import torch_op_calls as calls
import torch_strides
import torch_view_programs as views
from torch._dynamo.utils import counters

import mlirfuse


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compiled(f, **more):
    torch._dynamo.reset()
    return torch.compile(f, backend="mlirfuse", **more)


# ---- numbers

INTEGER_PROGRAMS = (
    "x[-n:] * 2",
    "x[n - 6:] * 2",
    "x[-n::2] * 2",
    "x.select(0, -n) * 2",
    "x.narrow(0, n - 6, 2) * 2",
    "torch.slice_scatter(x, x[-n:] * 3, 0, -n) * 2",
    "torch.select_scatter(x, x[0] * 3, 0, n - 6) * 2",
    "x.roll((n, 1 - n), (0, 1)) * 2",
    "x[n + 8::2] * 2",
)


@pytest.mark.parametrize("text", INTEGER_PROGRAMS)
def test_integers_that_change(text):
    assert numbers.wrong_values(text, numbers.INTEGER_VALUES) == []


@pytest.mark.parametrize(
    "f",
    [lambda x, y, n: torch.select_scatter(x, y[0], 0, n + 8) * 2, lambda x, y, n: x.slice_scatter(y, 0, n) * 2,
     lambda x, y, n: torch.select_scatter(x, y[0], 0, -n - 8) * 2],
)  # fmt: skip
def test_scatters_at_integers_that_change_are_refused(f):
    """Out of range, or where the source has another shape than what it replaces; without gradients, which check it."""
    x, y, run = torch.randn(12, 9), torch.randn(9, 9), compiled(f)
    for n in (3, 4, 6, 2, 8, 3):
        try:
            wanted = f(x, y, n)
        except (IndexError, RuntimeError):
            with pytest.raises((IndexError, RuntimeError)):
                run(x, y, n)
        else:
            assert torch.equal(run(x, y, n), wanted)


FLOAT_PROGRAMS = (
    "(x * n, x.clamp(max=n))",
    "(x * n, x.abs() ** n)",
    "(x + n, torch.full((3,), n) * x[0, :3])",
    "(x * n, x.masked_fill(x > 0, n), n)",
    "F.leaky_relu(x, n) + n",
    "x.half() * n",
)


@pytest.mark.parametrize("text", FLOAT_PROGRAMS)
def test_floats_that_change(text):
    assert numbers.wrong_values(text, numbers.FLOAT_VALUES) == []


def test_random_programs_of_numbers():
    choose = random.Random(3)
    for _ in range(6):
        text, values = numbers.random_program(choose)
        if numbers.wrong_values(text, values):
            assert numbers.wrong_values(text, values, "aot_eager"), text


def test_a_float_that_was_not_specialized_is_kept_on_disk():
    x = torch.randn(7, 5)
    f = compiled(lambda x, e: torch.sin(x) * e + 11)
    for e in (0.5, 0.25, 2.0):
        assert torch.allclose(f(x, e), torch.sin(x) * e + 11)
    assert counters["aot_autograd"]["autograd_cache_bypass"] == 0


# ---- strides

STRIDED_OPS = (
    "copysign",
    "div",
    "roll",
    "addr",
    "std_mean",
    "nn.functional.layer_norm",
    "nn.functional.channel_shuffle",
    "native_dropout_backward",
)


@pytest.mark.parametrize("op", [op for op in torch_strides.ops() if op.name in STRIDED_OPS], ids=lambda op: op.name)
def test_strides(op):
    samples = torch_strides.samples_of(op)[:1]
    assert [found for found in torch_strides.differences(op, samples) if found[3] != found[4]] == []


@pytest.mark.parametrize("shape", [(0, 1), (3, 0), (2, 0, 1), (1, 0, 2)])
@pytest.mark.parametrize(
    "function",
    [lambda x: x.tril(), lambda x: x + 0, lambda x: x.T.triu() if x.dim() == 2 else x.flip(0),
     lambda x: torch.eye(x.shape[0], x.shape[1]), lambda x: torch.eye(x.shape[1], x.shape[0]) + 0],
)  # fmt: skip
def test_strides_of_empty_results(function, shape):
    for x in (torch.zeros(shape), torch.zeros(shape[::-1]).permute(*reversed(range(len(shape))))):
        torch._dynamo.reset()
        assert torch.compile(function, backend="mlirfuse")(x).stride() == function(x).stride()


def test_strides_of_large_operands():
    """Too large to ask eager with as many elements."""
    x = torch.rand(4, 16, 40, 40).to(memory_format=torch.channels_last)
    for f in (lambda x: x.roll(1, 0), lambda x: F.channel_shuffle(x, 2), lambda x: torch.copysign(x, x.neg())):
        assert compiled(f)(x).stride() == f(x).stride()


@pytest.mark.parametrize("shape, size", [((1,), (7,)), ((70,), (3, 70)), ((3, 1), (3, 70)), ((3, 1, 4), (3, 5, 4))])
def test_scatters_into_expanded_tensors(shape, size):
    x = torch.randn(shape).expand(size)
    for f in (
        lambda x: x.slice_scatter(x[1:] * 2, 0, 1),
        lambda x: x.select_scatter(x[0] * 2, 0, -1),
        lambda x: x.index_fill(0, torch.tensor([0, 1]), 2.0),
        lambda x: x.masked_scatter(x > 0, x * 2),
        lambda x: x.diagonal_scatter(x.diagonal() * 2) if x.dim() > 1 else x + 1,
    ):
        found, wanted = compiled(f)(x), f(x)
        assert torch.equal(found, wanted) and found.stride() == wanted.stride()


def test_views_of_what_lies_as_in_eager():
    x = torch.arange(100.0).reshape(2, 5, 2, 5).to(memory_format=torch.channels_last)
    f = lambda x: x.roll(-1, 0).as_strided((5, 10), (4, 1), 0)  # noqa: E731
    assert torch.equal(compiled(f)(x), f(x))


def test_memory_with_gaps_of_its_own():
    x = torch.rand(16, 16)[:, :8]
    f = lambda x: torch.empty_strided(x.shape, x.stride()).copy_(x)  # noqa: E731
    assert compiled(f)(x).stride() == (16, 1)


# ---- what eager refuses


@pytest.mark.parametrize("name", ["softmax", "F.silu", "argmax", "lerp", "minus True", "layer_norm", "dropout"])
def test_types(name):
    assert checks.wrong_types(name, (torch.int64, torch.bool, torch.float32)) == []


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.float32])
@pytest.mark.parametrize("shape", [(4, 0), (0,), (0, 3)])
def test_softmax_of_no_elements(shape, dtype):
    for f in (lambda x: x.softmax(-1), lambda x: F.softmin(x, 0), lambda x: x.log_softmax(0)):
        x = torch.zeros(shape, dtype=dtype)
        assert checks.equal(checks.run(f, (x,)), checks.outcome(f, (x,)))


def test_nan_to_num_of_complex_numbers():
    x = torch.tensor([complex("nan+infj"), complex("-inf+2j"), 1j])
    f = lambda x: torch.nan_to_num(x, nan=2) + 1  # noqa: E731
    assert torch.equal(compiled(f, options={"fallback": False})(x), f(x))


def test_softmax_of_a_size_that_values_tell():
    x = torch.randn(50)
    with warnings.catch_warnings(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        warnings.simplefilter("error", mlirfuse.FallbackWarning)
        found = compiled(lambda x: x[x > 0].softmax(0), fullgraph=True)(x)
    assert torch.allclose(found, x[x > 0].softmax(0), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool, torch.uint8])
@pytest.mark.parametrize("name", ["any", "all", "sum", "amax", "nansum"])
def test_reductions_over_no_dimensions(name, dtype):
    """Truth of each element; sums and maxima of all."""
    x = torch.tensor([[0, 1, 2], [0, 0, 3]]).to(dtype)
    for f in (lambda x: getattr(torch, name)(x, ()), lambda x: getattr(torch, name)(x, (), keepdim=True)):
        found, wanted = compiled(f)(x), f(x)
        assert found.dtype is wanted.dtype and torch.equal(found, wanted)


@pytest.mark.parametrize("name", ["sub", "F.binary_cross_entropy", "nll_loss", "F.smooth_l1_loss", "F.huber_loss"])
def test_types_of_two(name):
    assert checks.wrong_types(name, (torch.int32, torch.bool, torch.float32)) == []


@pytest.mark.parametrize("name", checks.OF_NUMBERS)
def test_numbers_and_values(name):
    function, given = checks.OF_NUMBERS[name]
    assert checks.equal(checks.run(function, given), checks.outcome(function, given))


@pytest.mark.parametrize("name", ["gather 1", "embedding", "cross_entropy", "cross_entropy ignored", "scatter value",
                                  "index_add 0", "index_fill", "index_put accumulate", "one_hot"])  # fmt: skip
def test_indices(name):
    assert checks.wrong_indices(name, (torch.int64,)) == []


def test_the_error_of_an_index_has_torchs_types_and_the_line():
    f = compiled(lambda x, i: torch.gather(x, 1, i) * 2)
    for error in (IndexError, RuntimeError):  # torch raises the one for some ops, the other for others
        with pytest.raises(error, match="index 5 is out of bounds for axis 1 with size 3"):
            f(torch.randn(2, 3), torch.tensor([[0], [5]]))
    assert f(torch.ones(2, 3), torch.tensor([[0], [2]])).tolist() == [[2.0], [2.0]]  # the next call is right again


FILLED = {  # with a number of another type than the tensor's
    "masked_fill": lambda x, v: x.masked_fill(x == 0, v),
    "masked_fill_": lambda x, v: x.clone().masked_fill_(x == 0, v),
    "where": lambda x, v: torch.where(x == 0, torch.tensor(v, dtype=x.dtype), x),
    "full_like": lambda x, v: torch.full_like(x, v),
    "full": lambda x, v: torch.full((3,), v, dtype=x.dtype),
    "new_full": lambda x, v: x.new_full((3,), v),
    "fill_": lambda x, v: x.clone().fill_(v),
    "fill_ by a tensor": lambda x, v: x.clone().fill_(torch.tensor(v)),
    "pad": lambda x, v: F.pad(x, (1, 2), value=v),
    "scatter": lambda x, v: x.scatter(0, torch.tensor([[1, 0, 1, 0]]), v),
    "scatter of a row": lambda x, v: x.scatter(1, torch.tensor([[1], [0], [3], [2]]), v),
    "index_fill": lambda x, v: x.index_fill(1, torch.tensor([1]), v),
    "index_put": lambda x, v: x.index_put((torch.tensor([1]),), torch.tensor(v).to(x.dtype)),
    "fill_diagonal_": lambda x, v: x.clone().fill_diagonal_(v),
    "a slice": lambda x, v: torch.slice_scatter(x, torch.full_like(x[1:], v), 0, 1),
    "an item": lambda x, v: _with_item(x.clone(), v),
    "scalar_tensor": lambda x, v: torch.scalar_tensor(v, dtype=x.dtype),
    "tensor": lambda x, v: torch.tensor([v, 1], dtype=x.dtype),
    "a cast": lambda x, v: torch.full((3,), v).to(x.dtype),
}


def _with_item(x, v):
    x[1] = v
    return x


def test_bools_are_filled_with_constants():
    """Which are in the graph; a float among the arguments is an input of it."""
    f = lambda x: (x.masked_fill(x, 0.5), torch.full_like(x, 0.5), x.new_full((2,), -0.25))  # noqa: E731
    for found in compiled(f)(torch.ones(4, dtype=torch.bool)):
        assert found.all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.int8])
@pytest.mark.parametrize("name", FILLED)
def test_numbers_of_another_type_than_the_tensor(name, dtype):
    """What is not zero fills bools with True, NaN too; integers are filled with the number rounded towards zero."""
    f, x = FILLED[name], torch.arange(16).reshape(4, 4).remainder(2).to(dtype)
    values = [0.5, -0.5, 0.0, -0.0, 2.7, -2.7] + [float("nan"), float("inf"), -3e30] * (dtype is torch.bool)
    g = lambda x: [f(x, value) for value in values]  # noqa: E731
    for value, found, wanted in zip(values, compiled(g)(x), g(x), strict=True):
        assert found.dtype is wanted.dtype and torch.equal(found, wanted), value


def test_many_tensors_filled_with_numbers_that_tensors_hold():
    """Equal groups whose arguments do not have the results' sizes."""
    f = lambda x: [x.new_zeros(3 + k).fill_(torch.tensor(k + 0.5)) for k in range(12)]  # noqa: E731
    x = torch.zeros(1)
    for found, wanted in zip(compiled(f, options={"fallback": False})(x), f(x), strict=True):
        assert torch.equal(found, wanted)


ROUNDED = {
    "comparisons": lambda x, v: (x == v, x != v, x < v, x <= v, x > v, x >= v),
    "numbers first": lambda x, v: (v < x, v >= x, v == x),
    "remainders": lambda x, v: (x % v, torch.fmod(x, v)),
    "hardshrink": lambda x, v: F.hardshrink(x, v),
    "a branch": lambda x, v: torch.where(x > v, x, -x),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ROUNDED)
def test_numbers_that_16_bit_floats_do_not_hold(name, dtype):
    """Are rounded before they are compared or divided by, as eager does: what was filled with 0.1 equals 0.1."""
    values = (0.1, 257, 1.001, 2049.0, 1e-3)
    x = torch.tensor([*values, -0.1, 256, 1.0]).to(dtype)
    f = lambda x: [ROUNDED[name](x, value) for value in values]  # noqa: E731
    for value, found, wanted in zip(values, compiled(f)(x), f(x), strict=True):
        for one, other in zip(*((y if isinstance(y, tuple) else (y,)) for y in (found, wanted)), strict=True):
            assert torch.equal(one, other), value


OF_THEIR_OWN = {
    "rolled by 0": lambda x: x.roll(0),
    "rolled by their length": lambda x: x.roll(x.shape[0], 0),
    "rolled not at all": lambda x: x.roll((0, 0), (0, 1)),
    "repeated": lambda x: x.repeat(2, 1),
    "repeated once": lambda x: x.repeat(1, 1),
    "repeated as a row": lambda x: x[:, 0].tile((2,)),
    "flipped not at all": lambda x: x.flip(()),
    "to the power of 1": lambda x: x**1,
    "padded by 0": lambda x: F.pad(x, (0, 0)),
}


@pytest.mark.parametrize(
    "given", [lambda x: x, lambda x: x[:1], lambda x: x[:1].expand(4, 3)], ids=["whole", "one row", "expanded"]
)
@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_results_share_no_memory(name, given):
    """With an argument, or among their own elements: others may write into them."""
    f, x = OF_THEIR_OWN[name], torch.arange(12.0).reshape(4, 3)
    found, wanted = compiled(f)(given(x)), f(given(x.clone()))
    before = x.clone()
    for y in (found, wanted):
        y.view(-1)[0] += 1
    assert found.stride() == wanted.stride() and torch.equal(found, wanted) and torch.equal(x, before)


# ---- zeros

ZEROS = torch.tensor([0.0, -0.0, 1.0, -1.0, float("nan"), -0.0])
SIGNED = {
    "relu": lambda x: F.relu(x),
    "clamp 0": lambda x: x.clamp(0, 1),
    "clamp -0": lambda x: x.clamp(-1.0, -0.0),
    "clamp_min": lambda x: x.clamp_min(0.0),
    "remainder": lambda x: x % 1.5,
    "remainder by tensors": lambda x: torch.tensor([-3.0, 3.0]).view(2, 1) % x,
    "fmod": lambda x: x.fmod(-1.5),
    "floor": lambda x: x // 1.5,
    "fmax": lambda x: torch.fmax(x, x.flip(0) * 0),
    "fmin": lambda x: torch.fmin(x, x.flip(0) * 0),
    "amax": lambda x: x[:4].amax(),
    "sum": lambda x: torch.full((3, 16), -0.0).sum(1) + 0 * x[0].abs(),
    "cumsum": lambda x: x[1:2].cumsum(0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("name", SIGNED)
def test_signs_of_zeros(name, dtype):
    f, x = SIGNED[name], ZEROS.to(dtype)
    found, wanted = compiled(f)(x), f(x)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.nan_to_num(7), wanted.nan_to_num(7))
    there = ~wanted.isnan()
    assert torch.equal(torch.signbit(found)[there], torch.signbit(wanted)[there])


# ---- special and extreme values


FEW = [(name, dtype, second) for name, dtype, second in extremes.CASES
       if (dtype is torch.float32 and second in ("", "floats", "int64")) or (name in ("/", "//") and second == "floats")]  # fmt: skip


@pytest.mark.parametrize("case", FEW, ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}")
def test_extreme_values(case):
    if found := extremes.wrong(*case, "cpu"):
        pytest.fail(found, pytrace=False)


def test_remainders_are_exact_where_the_quotient_overflows():
    """Eager's vectors give NaN, and the remainder for the elements after the last whole vector."""
    x, y = torch.full((67,), 1.5), torch.full((67,), -3e-39)
    f = torch.fmod
    assert f(x, y)[0].isnan() and not f(x, y)[-1].isnan()
    assert torch.equal(compiled(f)(x, y), f(x, y)[-1:].expand(67))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("loss", [F.l1_loss, F.mse_loss, F.huber_loss, F.smooth_l1_loss,
                                  functools.partial(F.smooth_l1_loss, beta=0.0),
                                  functools.partial(F.smooth_l1_loss, beta=2.5)])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_of_distances_at_special_values(loss, reduction, dtype):
    """A distance that is NaN has a NaN gradient, except l1's, which is a sign."""
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.25, 7.0, 3.0], dtype=dtype)
    y = torch.tensor([0.0] * 10 + [nan, 3.0], dtype=dtype)

    def gradients(f, x, y):
        x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
        return torch.autograd.grad(f(x, y, reduction=reduction).sum(), [x, y])

    for ours, eagers in zip(gradients(compiled(loss), x, y), gradients(loss, x, y), strict=True):
        torch.testing.assert_close(ours, eagers, equal_nan=True)


@pytest.mark.parametrize("f", [F.hardswish, F.hardtanh, F.relu6, F.elu, F.selu, F.celu, F.hardshrink])
def test_gradients_of_branches_at_nan(f):
    """Those of eager's tails, at any length."""
    x = torch.full((67,), float("nan"), requires_grad=True)
    found, eagers = (torch.autograd.grad(run(x).sum(), x)[0] for run in (compiled(f), f))
    assert not eagers[-1].isnan() and torch.equal(found, eagers[-1:].expand(67))


def test_the_gradient_of_logit():
    """At NaN it is NaN, as in eager's tails: its vectors give 0."""
    x = torch.tensor([float("nan"), 0.05, 0.3, 0.95, -1, float("inf"), float("nan")], requires_grad=True)
    for eps in (None, 0.1, 0.0, -1.0):
        found, eagers = (
            torch.autograd.grad(run(x).sum(), x)[0]
            for run in (compiled(lambda x: torch.logit(x, eps)), lambda x: torch.logit(x, eps))
        )
        torch.testing.assert_close(found, eagers, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_all_is_dropped(dtype):
    """By a product with 0, which keeps signs and NaN."""
    x = torch.tensor([float("nan"), -1, 2, 0, -0.0, float("inf")], dtype=dtype, requires_grad=True)
    results = [f(x) for f in (compiled(lambda x: F.dropout(x, 1.0)), lambda x: F.dropout(x, 1.0))]
    (found, wanted), gradients = results, [torch.autograd.grad(y.sum(), x)[0] for y in results]
    assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.signbit()[1:5], wanted.signbit()[1:5])
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num()) and torch.equal(*gradients)


def test_all_bools_are_dropped():
    x = torch.ones(4, 0, dtype=torch.bool)
    assert compiled(lambda x: F.dropout(x, 1.0))(x).dtype is F.dropout(x, 1.0).dtype is torch.bool


@pytest.mark.parametrize("threshold, value", [(-1.5, 0.5), (1.5, -2.9), (-1, 7)])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.float32, torch.bfloat16])
def test_thresholds_of_integers_are_cast(threshold, value, dtype):
    x = torch.tensor([-3, -2, -1, 0, 1, 2, 3]).to(dtype)

    def f(x):
        return F.threshold(x, threshold, value)

    found = compiled(f)(x)
    assert found.dtype == dtype and torch.equal(found, f(x))


def test_gcd_of_the_smallest_integer():
    x, y = (torch.tensor([n], dtype=torch.int16) for n in (127, -32768))
    assert torch.equal(compiled(torch.gcd)(x, y), torch.gcd(x, y).abs()) and torch.gcd(x, y).item() in (1, -1)
    assert compiled(torch.gcd)(y, y).item() == -32768  # 32768 is none of the type


def test_gelu_of_infinity():
    """Eager's vectors give NaN."""
    x = torch.full((32,), float("inf"))
    assert (F.gelu(x).isnan() | F.gelu(x).isposinf()).all()  # by the vectors that the processor has
    assert torch.equal(compiled(F.gelu)(x), x)


# ---- views, writes in place and gradients


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("f", [
    lambda x: (y := torch.stack([x, x]), y.swapaxes(0, 1)),
    lambda x: (y := torch.stack([x, x], 1), y[0], y.reshape(-1)),
    lambda x: (torch.stack([x, x]).mT, x * 2),
    lambda x: (y := torch.tile(x, (2, 2)), y.view(-1)[3:], y),
    lambda x: (y := torch.hstack([x, x]), y.t()),
])  # fmt: skip
def test_the_caller_writes_into_results_that_share_memory(f, requires_grad):
    """Decompositions create some of them as views: ``stack`` as one of ``cat``."""
    given = torch.randn(2, 3)

    def run(f):
        x = given.clone().requires_grad_(requires_grad)
        results = f(x)
        for k, y in enumerate(results):
            y.mul_(k + 2)
        if requires_grad:
            sum(y.sum() * (k + 1) for k, y in enumerate(results)).backward()
        return [y.detach() for y in results], x.grad

    torch.testing.assert_close(run(compiled(f)), run(f))


@pytest.mark.parametrize("first", range(0, 32, 8))
def test_views_writes_and_gradients(first):
    problems = [p for seed in range(first, first + 8) if (p := views.problem(seed))]
    assert not problems, "\n".join(problems)


OWN = {
    "a copy of a transposed matrix": lambda x: x.t().reshape(-1),
    "computed as it lies": lambda x: x.t() * 2,
    "a linear layer's": lambda x: F.linear(torch.ones(2, 3, 4), x),
    "a product's": lambda x: torch.ones(2, 4, 4) @ x,
    "a clone": lambda x: x.t().clone(),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("grad", [True, False])
def test_results_may_be_written_into(name, grad):
    """As in eager: they are no views, which autograd lets nobody write into that were made without it."""
    f, x, w = OWN[name], torch.rand(4, 4, requires_grad=grad), torch.rand(1, requires_grad=True)
    results = []
    for run in (compiled(f), f):
        y = run(x).mul_(w)
        results.append([y.detach(), *torch.autograd.grad(y.sum(), [x, w] if grad else [w])])
    assert all(torch.allclose(a, b) for a, b in zip(*results))


def test_what_was_written_since_it_was_saved_may_be_computed_again():
    """Eager refuses this backward; where nothing that was written into is saved, compiled functions give it."""

    def f(x):
        y = x * x
        z = F.layer_norm(y, y.shape[-1:])
        torch._dynamo.graph_break()
        y.zero_()
        return z

    x = torch.rand(4, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        f(x)[0, 0].backward()
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        (wanted,) = torch.autograd.grad(f(x)[0, 0], x)
    (found,) = torch.autograd.grad(compiled(f)(x)[0, 0], x)
    assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("write", [
    lambda x: x.unsqueeze_(0), lambda x: x.t_(), lambda x: x.transpose_(0, 1), lambda x: x.squeeze_(),
    lambda x: x.swapaxes_(0, 1), lambda x: x.as_strided_((2, 2), (1, 2)), lambda x: x.set_(torch.ones(3)),
    lambda x: x.mul_(2), lambda x: x.detach().zero_(),
])  # fmt: skip
@pytest.mark.parametrize("f", [torch.exp, torch.tanh, torch.sigmoid, torch.sqrt, lambda x: x.exp().t()[1:]])
def test_gradients_of_results_need_no_inputs(f, write):
    """As eager, the forward saves its result, where that is enough: its input may be written, or be another view."""
    leaf = torch.rand(4, 4, requires_grad=True)

    def step(x):
        y = f(x)
        write(x)
        return y

    found, wanted = (torch.autograd.grad(run(leaf * 1).sum(), leaf)[0] for run in (compiled(step), step))
    assert torch.allclose(found, wanted)


def test_strides_of_one_element_address_nothing():
    def f(x, i):
        return x.clone().index_put_((i,), x[0], accumulate=True)

    for shape in ((1,), (1, 3), (3, 1)):
        x = torch.arange(24.0).as_strided(shape, (2,) if len(shape) == 1 else (6, 2))
        found, wanted = compiled(f)(x, torch.tensor([0])), f(x, torch.tensor([0]))
        assert torch.equal(found, wanted)
        assert all(a == b for a, b, n in zip(found.stride(), wanted.stride(), shape) if n != 1)


def test_an_input_that_the_backward_computes_from_may_not_be_written():
    """The limit: torch's own cut recomputes, too, what is no result; the error is eager's for a written tensor."""
    for backend in ("mlirfuse", "aot_eager_decomp_partition"):
        torch._dynamo.reset()
        x = torch.rand(4, requires_grad=True) * 1
        y = torch.compile(lambda x: x.exp() * 3, backend=backend)(x)
        x.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_random_calls(first):
    problems = [p for seed in range(first, first + 8) if (p := calls.problem(seed))]
    assert not problems, "\n".join(problems)


# ---- types, and what a trace gives


def test_the_type_that_an_op_really_gives():
    f = lambda m, s: torch.normal(m, s) * 0  # noqa: E731
    m, s = torch.zeros(8).half(), torch.ones(8)
    assert compiled(f)(m, s).dtype is f(m, s).dtype is torch.float16


def test_the_type_that_a_loss_of_mixed_types_gives():
    f, x = F.huber_loss, torch.rand(4, 4)
    assert compiled(f)(x.half(), x).dtype is f(x.half(), x).dtype is torch.float16


def test_a_variance_of_one_number():
    run = compiled(lambda x: (x.var(0, correction=0), x.std(correction=0)), options={"fallback": False})
    assert [y.item() for y in run(torch.tensor(3.0))] == [0.0, 0.0]


@pytest.mark.parametrize("size", [1e25, 1e30, 1e37])
def test_variances_of_large_numbers_are_infinite(size):
    x = torch.linspace(-size, size, 300).reshape(20, 15) + size
    run = compiled(lambda x: (x.std(0), x.var(1), *torch.var_mean(x)), options={"fallback": False})
    assert all(y.isposinf().all() for y in run(x)[:3])


@pytest.mark.parametrize(
    "shape, dim, dtype",
    [((19, 33), 0, torch.float32), ((19, 33), 1, torch.float64), ((7, 5), 1, torch.float16),
     ((1000, 64), 0, torch.float64), ((1000, 65), 1, torch.float32), ((5003, 3), 1, torch.float32),
     ((3, 100_003), 1, torch.float32), ((100_003, 3), 0, torch.float32), ((4, 6, 5, 9), (0, 2, 3), torch.float32),
     ((4, 6, 5, 9), (1,), torch.bfloat16), ((51, 67), None, torch.float32)],
)  # fmt: skip
def test_equal_numbers_deviate_by_0(shape, dim, dtype):
    """Exactly, so that the gradient of the standard deviation is 0, too, and not noise over noise."""
    kept = [1 if dim is None or k in torch.tensor(dim) % len(shape) else n for k, n in enumerate(shape)]
    x = (torch.rand(kept, generator=torch.Generator().manual_seed(0)) * 10).to(dtype).expand(shape).clone()

    def f(x):
        deviation, (variance, mean) = x.std(dim), torch.var_mean(x, dim, correction=0)
        return deviation, variance, mean, torch.where(deviation == 0, 1, deviation)

    x.requires_grad_()
    deviation, variance, mean, divisor = compiled(f, options={"fallback": False})(x)
    assert not deviation.any() and not variance.any() and (divisor == 1).all()
    torch.testing.assert_close(mean, f(x)[2])
    deviation.sum().backward()
    assert not x.grad.any()


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize(
    "shape, dim, correction", [((4, 5, 1), 2, 1), ((4, 5, 2), 2, 2), ((4, 1), None, 7), ((), None, 1)]
)
def test_variances_without_degrees_of_freedom(shape, dim, correction):
    """Infinite, or NaN where all are equal: by kernels."""
    x = torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)

    def f(x):
        return *torch.var_mean(x, dim, correction=correction), torch.std(x, dim, correction=correction)

    got = compiled(f, options={"fallback": False})(x)
    torch.testing.assert_close(got, f(x), equal_nan=True)
    assert not [row for graph in mlirfuse.torch.explain(f, x).graphs for row in graph.outside]


def test_a_jacobian_with_more_results():
    g = lambda x, t: torch.exp(-(x - 4 * t).square() / (t + 1))  # noqa: E731
    f = lambda x, t: torch.func.jacrev(lambda x: (g(x, t), g(x, t)), has_aux=True)(x)  # noqa: E731
    x = torch.tensor(0.5)
    for found, wanted in zip(compiled(f, options={"fallback": False})(x, 0.3), f(x, 0.3)):
        assert torch.allclose(found, wanted)


def test_a_jagged_tensor_as_input():
    n = torch.nested.nested_tensor([torch.ones(2, 5), torch.ones(3, 5)], layout=torch.jagged)
    f = lambda n: n.sum(1)  # noqa: E731
    assert compiled(f)(n).tolist() == f(n).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_isin_finds_infinity_beside_nan(dtype):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0, -0.0, 0.0, 2.0] * 4)
    x = x.to(dtype) if dtype.is_floating_point else x.nan_to_num(3, 5, 7).to(dtype)
    for tests in (x, x[:2], x[3:20]):
        for invert in (False, True):
            f = lambda x, tests, invert=invert: torch.isin(x, tests, invert=invert)  # noqa: E731
            assert torch.equal(compiled(f)(x, tests), f(x, tests))


@pytest.mark.parametrize("bound", [float("nan"), 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_bound_that_is_nan(dtype, bound):
    x = torch.arange(-20, 20).to(dtype)
    for f in (
        lambda x: x.clamp(min=bound),
        lambda x: x.clamp(max=bound),
        lambda x: x.clamp(bound, 1),
        lambda x: x.clamp(0, bound),
        lambda x: x.clamp_min(bound) if dtype.is_floating_point else x * 2,
    ):
        torch.testing.assert_close(compiled(f)(x), f(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(
    "shape, dims", [((5, 1), -1), ((1, 1), (-2, -1)), ((3, 1, 1, 2), (-2, 1)), ((1,), -1)], ids=str
)
def test_norms_along_extents_of_1_counted_from_the_end(shape, dims, keepdim):
    x = torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)
    for p in (2, 1, -1, float("inf")):
        f = lambda x: torch.linalg.vector_norm(x, p, dims, keepdim=keepdim)  # noqa: E731
        torch.testing.assert_close(compiled(f, options={"fallback": False})(x), f(x))


def test_ints_that_float16_cannot_hold_are_refused():
    x = torch.ones(3, dtype=torch.float16)
    for f in (lambda x: x.clamp(min=2**40), lambda x: x.clamp(0, 70000), lambda x: F.hardtanh(x, -1, 2**40)):
        for run in (f, compiled(f)):
            with pytest.raises(RuntimeError, match="without overflow"):
                run(x)
    f = lambda x: (x.clamp(min=-60000), x + 2**40, x.bfloat16().clamp(max=2**40))  # noqa: E731
    for got, want in zip(compiled(f)(x), f(x)):
        assert torch.equal(got, want)


def test_what_is_refused_depends_on_the_symbols_values():
    """A crop of as many rows as there are, and of more, with one traced before the other."""
    x, f = torch.randn(12, 9), lambda x, n: F.pad(x, (0, 0, 8, n)) * 2
    for first, then in ((-6, -14), (-14, -6)):
        for n in (first, then):
            if n == -6:
                assert torch.equal(compiled(f, dynamic=True)(x, n), f(x, n))
            else:
                with pytest.raises(RuntimeError, match="narrow|negative"):
                    compiled(f, dynamic=True)(x, n)


def test_crops_are_checked_before_what_is_padded():
    """Eager crops an input before it pads the other end: the result having elements is not enough."""
    x, f = torch.randn(4, 6), lambda x, n, m: F.pad(x, (n, m)) + 1
    run = compiled(f, dynamic=True)
    for n, m in ((-2, 3), (-3, -2), (-6, 2), (4, -3)):
        assert torch.equal(run(x, n, m), f(x, n, m))
    for n, m in ((-7, 2), (-4, -3), (3, -7), (-9, 9)):
        for call in (f, run):
            with pytest.raises(RuntimeError, match="narrow|negative"):
                call(x, n, m)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.dropout(x, 0.5),
        lambda x: F.dropout(x.T, 0.5),
        torch.rand_like,
        torch.randn_like,
        lambda x: torch.rand(4, 0, 3),
        lambda x: torch.randn(0, 3),
    ],
)
def test_random_tensors_without_elements_have_eagers_strides(fn):
    x = torch.randn(4, 6)[:, :0]
    assert compiled(fn)(x).stride() == fn(x).stride()


EMPTY = {
    "columns": lambda x: x[:, :0],
    "every second row": lambda x: x[::2, 1:1],
    "turned": lambda x: x[:, :0].T,
}


@pytest.mark.parametrize("view", EMPTY)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.prelu(x, x.new_full((1,), 0.2)),
        torch.exp,
        lambda x: x + 1,
        lambda x: torch.where(x > 0, x, 0),
        lambda x: x.cumsum(0),
        lambda x: torch.lerp(x, x, 0.3),
        lambda x: x.roll(1, 0),
        lambda x: x.half(),
        lambda x: F.pad(x, (0, 0, 1, 1)),
    ],
)
def test_strides_without_elements_where_sizes_change(fn, view):
    x = EMPTY[view](torch.randn(8, 6))
    assert compiled(fn, dynamic=True)(x).stride() == fn(x).stride()
