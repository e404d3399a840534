"""Views between torch's own ops: one step from what lies in memory, however many the user wrote."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import mlirfuse.torch  # noqa: F401 known to torch without an installation, too
from mlirfuse.frontend.torch import backend
from mlirfuse.lowering import host_steps as st


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def graphs():
    """The steps of each graph that is compiled."""
    found: list[list[st.Step]] = []
    backend.observers.append(lambda which, lowered, host: found.append(list(host.sequence.walk())))
    yield found
    backend.observers.pop()


def compiled(f, **options):
    return torch.compile(f, backend="mlirfuse", fullgraph=True, options={"fallback": False}, **options)


def calls(steps) -> list[str]:
    return [step.op.attrs["callee"] for step in steps if isinstance(step, st.Call)]


def heads(x, w):
    """The scores of an attention of 2 heads."""
    q, k = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (x @ w).chunk(2, -1))
    return (q @ k.transpose(-1, -2)).flatten(0, 1).sum(-1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_views_are_one_step(graphs, dynamic):
    run = compiled(heads)
    w = torch.randn(6, 16)
    for length in (3, 5, 7):
        x = torch.randn(2, length, 6)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 1)
        exact = heads(x.double(), w.double())
        assert (run(x, w) - exact).abs().max() <= 1e-5 * exact.abs().max()
    steps = graphs[-1]
    views = [
        step for step in steps if isinstance(step, st.Call) and step.op.attrs["callee"] == "aten.as_strided.default"
    ]
    products = [step for step in steps if isinstance(step, st.Call) and step not in views]
    assert [step.op.attrs["callee"] for step in products] == ["aten.mm.default", "aten.bmm.default"]
    created = {v for step in views for v in step.makes}
    assert views and not any(v in created for step in views for v in step.reads)


def test_gradients_through_views():
    x, w = (torch.randn(*shape, requires_grad=True) for shape in ((2, 5, 6), (6, 16)))
    found = torch.autograd.grad(compiled(heads)(x, w).square().sum(), (x, w))
    exact = torch.autograd.grad(heads(x.double(), w.double()).square().sum(), (x, w))
    for ours, theirs in zip(found, exact):
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def test_a_view_of_what_does_not_lie_as_was_told():
    @torch.library.custom_op("mlirfuse_tests::turned", mutates_args=())
    def turned(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous().t() * 2  # columns first, which the fake does not say

    turned.register_fake(lambda x: torch.empty(x.shape))

    def f(x, y):
        return turned(x)[1:, 2:].t() @ y

    x, y = torch.randn(4, 5), torch.randn(3, 2)
    assert torch.allclose(compiled(f)(x, y), (2 * x)[1:, 2:].t() @ y)


def test_views_that_are_given_back_have_one_base(graphs):
    """As torch's own have: AOTAutograd finds by it that inputs of the next graph share memory."""

    def f(x, w):
        created = (x @ w).view(2, 3, 4)
        return created.transpose(0, 1), created[0].t(), created.sum()

    x, w = torch.randn(6, 5), torch.randn(5, 4)
    with torch.no_grad():
        a, b, _ = compiled(f)(x, w)
    assert a.stride() == f(x, w)[0].stride()
    assert a._is_view() and a._base is b._base
    assert a._base.data_ptr() == b.data_ptr()


def test_writes_into_views_across_a_graph_break():
    def f():
        a = torch.zeros(2)[0:1]
        b = a.view(1)
        a[0] = 1
        torch._dynamo.graph_break()
        a[0] = 6
        return b

    torch._dynamo.reset()
    assert torch.compile(f, backend="mlirfuse")().item() == 6


def _shifted(x):
    """As decoders shift their targets."""
    shifted = x.new_zeros(x.shape)
    shifted[..., 1:] = x[..., :-1].clone()
    shifted[..., 0] = 3
    return shifted


def _inner(x):
    padded = x.new_zeros([n + 2 for n in x.shape])
    padded[(slice(1, -1),) * x.dim()] = x
    return padded


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize("f", [_shifted, _inner])
def test_slices_of_tensors_of_symbolic_sizes_are_assigned(f, rank):
    c = compiled(f, dynamic=True)
    for sizes in ((4, 5, 6, 7), (6, 4, 5, 8)):
        x = torch.randn(sizes[:rank])
        assert torch.equal(c(x), f(x))


def test_gradients_are_no_views_of_themselves(graphs):
    """A weight's gradient is transposed twice: it is the product itself."""
    layer = torch.nn.Linear(6, 16)
    x = torch.randn(3, 6)
    compiled(layer)(x).square().sum().backward()
    backward = [step for step in graphs[-1] if isinstance(step, st.Call)]
    product = next(step for step in backward if step.op.attrs["callee"] == "aten.mm.default")
    assert not any(set(product.makes) & set(step.reads) for step in backward)
    w = layer.weight.detach().double()
    exact = 2 * (x.double() @ w.T + layer.bias.detach().double()).T @ x.double()
    assert (layer.weight.grad - exact).abs().max() <= 1e-5 * exact.abs().max()


@pytest.mark.parametrize(
    "fn",
    [
        lambda y: (y[:, None].detach(), y),
        lambda y: (y.detach()[:, None], y),
        lambda y: (y.detach(), y),
        lambda y: (y.t().detach().t(), y, y.t()),
        lambda y: (y.view(-1).detach()[2:], y),
    ],
)
@pytest.mark.parametrize("computed", [False, True])
def test_detached_views_require_no_gradient(fn, computed):
    """Beside the tensor that they are views of, which does."""

    def program(x):
        return fn(x * 2 if computed else x)

    x = torch.randn(4, 4, requires_grad=True)
    found, expected = torch.compile(program, backend="mlirfuse", fullgraph=True)(x), program(x)
    assert [y.requires_grad for y in found] == [y.requires_grad for y in expected]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert len({y.untyped_storage().data_ptr() for y in found}) == 1


def _rows_of(x):
    y = x * 2
    return y[0], y[1]


def _row_and_all(x):
    y = x * 2
    return y[-1], y


@pytest.mark.parametrize("fn", [_rows_of, _row_and_all])
def test_views_of_results_that_do_not_lie_row_by_row_may_be_written(fn):
    """The result has the order of its transposed operand: it is no view of another tensor to autograd."""

    def run(call):
        x = torch.arange(24.0).reshape(4, 6).requires_grad_()
        results = call((x * 1).T)
        results[0].mul_(3)
        return *results, *torch.autograd.grad(sum(y.sum() for y in results), x)

    for found, wanted in zip(run(torch.compile(fn, backend="mlirfuse")), run(fn), strict=True):
        assert torch.equal(found, wanted)


def _last_of_a_split(x):
    x.mul_(2)
    return (x.split(1)[-1],)


def _view_of_a_row(x):
    x.mul_(2)
    return x.unbind()[1].view(2, 3), x


@pytest.mark.parametrize("fn", [_last_of_a_split, _view_of_a_row])
def test_one_of_several_views_is_not_written(fn):
    """Autograd refuses it in eager, too: the op that gives several has one gradient for all."""
    for call in (fn, torch.compile(fn, backend="mlirfuse")):
        x = torch.arange(24.0).reshape(4, 6).requires_grad_()
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            call(x * 1)[0].mul_(3)


def test_a_detached_one_of_several_views_is_written():
    def fn(x):
        x.mul_(2)
        return (x.unbind()[1].detach(),)

    for call in (fn, torch.compile(fn, backend="mlirfuse")):
        given = torch.arange(24.0).reshape(4, 6).requires_grad_() * 1
        call(given)[0].mul_(3)
        assert torch.equal(given[1], torch.arange(6.0, 12.0) * 6)
