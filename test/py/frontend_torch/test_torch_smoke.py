"""``torch.compile(backend="mlirfuse")`` in the small: what has to hold before anything else is tried."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch_models import Encoder, error, gradients

import mlirfuse.torch  # noqa: F401  # registers the backend
from mlirfuse.frontend.torch.execution.execute import boxed
from mlirfuse.frontend.torch.options import MODES
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.runtime import counters


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(model, **more):
    more.setdefault("options", {}).setdefault("fallback", False)
    return torch.compile(model, backend="mlirfuse", **more)


def words(batch=3, length=8):
    return torch.randint(0, 50, (batch, length)), torch.randint(0, 50, (batch, length))


def test_an_encoder_trains_as_in_eager():
    """Loss and gradients against float64: not further from it than twice eager, plus 1e-6."""
    model, batch = Encoder(), words()
    exact = gradients(copy.deepcopy(model).double(), *batch)
    eager = error(gradients(copy.deepcopy(model), *batch), exact)
    assert error(gradients(compiled(model), *batch), exact) <= 2 * eager + 1e-6


def test_dropout_repeats_and_its_gradient_has_the_same_mask():
    x = torch.ones(1000, requires_grad=True)
    f = compiled(lambda x: torch.nn.functional.dropout(x * 2, 0.25))
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        y = f(x)
        (g,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(g, y)  # of 2 x at x = 1
        outputs.append(y.detach())
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[1], outputs[2])
    kept = float((outputs[0] != 0).float().mean())
    assert abs(kept - 0.75) < 5 * (0.25 * 0.75 / 1000) ** 0.5
    torch.testing.assert_close(outputs[0].unique(), torch.tensor([0, 2 / 0.75]))


def test_outputs_have_eagers_strides():
    def f(x):
        y = x.transpose(0, 1) * 2
        return y, y.sum(0), (y + 1).permute(2, 0, 1), x.expand(2, 3, 4, 5) + 1

    x = torch.randn(3, 4, 5)
    for a, b in zip(compiled(f)(x), f(x)):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()


def test_equal_layers_compile_once():
    """Four layers have no more kernels compiled than three."""
    counts = []
    for layers in (3, 4):
        torch._dynamo.reset()
        before = counters.compiled_programs
        gradients(compiled(Encoder(layers=layers)), *words())
        counts.append(counters.compiled_programs - before)
    assert counts[1] <= counts[0]


def test_a_new_size_compiles_nothing():
    model = Encoder(layers=1)
    f = compiled(model, dynamic=True)
    gradients(f, *words(3, 8))
    before = counters.snapshot()
    compiles = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for shape in ((5, 8), (4, 11), (7, 13)):
        batch = words(*shape)
        wanted = gradients(copy.deepcopy(model), *batch)
        assert error(gradients(f, *batch), wanted) < 1e-5
    assert counters.snapshot() == before
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiles


def test_batch_norms_statistics_are_updated_once():
    model = torch.nn.BatchNorm2d(4)
    x = torch.randn(2, 4, 5, 5) + 3
    theirs = copy.deepcopy(model)
    f = compiled(model)
    for _ in range(2):
        torch.testing.assert_close(f(x), theirs(x))
    torch.testing.assert_close(model.state_dict(), theirs.state_dict())


def test_a_view_of_an_input_is_one():
    x = torch.randn(4, 6)
    y, z = compiled(lambda x: (x.t(), x[1:] + 1))(x)
    assert y.data_ptr() == x.data_ptr() and y.stride() == (1, 6)
    torch.testing.assert_close(z, x[1:] + 1)


def test_what_has_no_kernel_runs_as_torchs_own():
    x = torch.randn(5, 7)
    f = torch.compile(lambda x: torch.linalg.qr(x + 1)[1].abs() * 2, backend="mlirfuse", options={"warn_outside": True})
    with pytest.warns(UserWarning, match="linalg_qr"):
        found = f(x)
    torch.testing.assert_close(found, torch.linalg.qr(x + 1)[1].abs() * 2)


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"options": {"fallbak": True}}, "no option 'fallbak': did you mean 'fallback'"),
        ({"options": {"fallback": "maybe"}}, "'fallback' takes True or False, not 'maybe'"),
        ({"options": {"cuda_graphs": 2}}, "'cuda_graphs' takes True, False or None, not 2"),
        ({"options": {"repro": 3}}, "'repro' takes the path of a folder"),
        ({"mode": "max-autotnue"}, "no mode 'max-autotnue': did you mean 'max-autotune'"),
        ({"mode": "fastest"}, "no mode 'fastest'"),
    ],
)
def test_unknown_options_values_and_modes_are_errors(settings, text):
    torch._dynamo.reset()
    with pytest.raises(Exception, match=text):
        torch.compile(lambda x: x + 1, backend="mlirfuse", **settings)(torch.ones(3))


def test_modes_are_those_of_torchs_own_back_end():
    from torch._inductor import list_mode_options

    assert set(list_mode_options()) <= set(MODES)


@pytest.mark.parametrize(
    ("outputs", "wanted"), [([("result", 0)], [5]), ([("literal", None), ("result", 0)], [None, 5])]
)
def test_what_has_one_size_is_asked_for_before_it_runs(outputs, wanted):
    """Then a GPU's kernels are compiled while Python goes on."""
    asked: list[dict] = []
    host = SimpleNamespace(symbols=[], function=lambda env: asked.append(env) or list)
    graph = SimpleNamespace(name="forward", returns=[Value(dt.f32, ())], donated=[])
    cpu = torch.device("cpu")
    run = boxed(
        SimpleNamespace(
            constants=[],
            symbols={},
            outputs=outputs,
            parts=set(),
            graph=graph,
            tensors=[],
            tangents=[],
            saved=[],
            device=cpu,
        ),
        host,
    )
    assert asked == [{}]
    assert run([5]) == wanted and asked == [{}]
