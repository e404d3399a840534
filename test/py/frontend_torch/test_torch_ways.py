"""The ways of ``torch.compile`` with this back end: modes, sizes, autocast, checkpoints, mutation, fallbacks."""

from __future__ import annotations

import copy
import importlib.metadata
import math
import random
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")

from functorch.compile import aot_function
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_models import Encoder, EncoderLayer, error, gradients

import mlirfuse.torch
from mlirfuse.frontend.torch import explain
from mlirfuse.runtime import counters


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(model, **more):
    more["options"] = {"fallback": False, **more.get("options", {})}
    return torch.compile(model, backend="mlirfuse", **more)


def words(batch=3, length=8):
    return torch.randint(0, 50, (batch, length)), torch.randint(0, 50, (batch, length))


def same(found, wanted, **tolerance):
    torch.testing.assert_close(found, wanted, **tolerance)
    for a, b in zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(wanted)):
        if isinstance(b, torch.Tensor):
            assert a.stride() == b.stride()


# ---- found, refused, told


@pytest.mark.skipif(
    not any(e.name == "mlirfuse" for e in importlib.metadata.entry_points(group="torch_dynamo_backends")),
    reason="the package is not installed",
)
def test_the_back_end_is_found_without_an_import():
    code = (
        "import torch; f = torch.compile(lambda x: x.relu() + 1, backend='mlirfuse'); print(f(torch.ones(3)).tolist())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[2.0, 2.0, 2.0]"


def test_a_graph_that_does_not_compile_runs_op_by_op_with_a_warning(monkeypatch):
    from mlirfuse.frontend.torch import backend

    def broken(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(backend, "lower_to_host", broken)
    x = torch.randn(4, requires_grad=True)
    f = torch.compile(lambda x: x.sin() * 2, backend="mlirfuse")
    with pytest.warns(UserWarning, match="runs it op by op: RuntimeError: no such kernel"):
        y = f(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    torch._dynamo.reset()
    with pytest.raises(Exception, match="no such kernel"):
        compiled(lambda x: x.sin() * 2)(x)


# ---- training and inference


@pytest.mark.parametrize("way", [torch.no_grad, torch.inference_mode])
def test_inference(way):
    model, batch = Encoder().eval(), words()
    with way():
        same(compiled(model)(*batch), model(*batch))


def test_fullgraph_and_mode():
    model, batch = Encoder(), words()
    wanted = gradients(copy.deepcopy(model), *batch)
    assert error(gradients(compiled(model, fullgraph=True, options={"eager_random": True}), *batch), wanted) < 1e-5
    torch._dynamo.reset()
    f = torch.compile(model, backend="mlirfuse", mode="reduce-overhead")
    assert error(gradients(f, *batch), wanted) < 1e-5


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_sizes_that_change(dynamic):
    layer = EncoderLayer()
    f = compiled(layer, dynamic=dynamic)
    for batch, length in ((2, 7), (3, 7), (4, 9), (5, 11), (2, 12)):
        x = torch.randn(batch, length, 32)
        if (batch, length) == (5, 11):
            before = counters.snapshot()
        same(f(x), layer(x), rtol=1e-4, atol=1e-5)
    if dynamic is not False:
        assert counters.snapshot() == before


def tutorial(input1, input2, weight, bias1, bias2, axis, p):
    return F.layer_norm(F.dropout(input1 + bias1, p, True) + input2, (input1.size(axis),), weight, bias2)


def tutorial_in_primitive_ops(input1, input2, weight, bias1, bias2, axis, p):
    x = F.dropout(input1 + bias1, p, True) + input2
    centered = x - x.mean(axis, keepdim=True)
    var = (centered * centered).mean(axis, keepdim=True)
    return weight * (centered / torch.sqrt(var + 1e-12)) + bias2


@pytest.mark.parametrize("way", ["dynamic=True", "mark_dynamic"])
@pytest.mark.parametrize("function", [tutorial, tutorial_in_primitive_ops])
def test_the_tutorials_twenty_random_sizes_run_on_one_compilation(function, way):
    """Its loop: shapes and seed as there, forward and backward. The first step compiles a program each."""
    size = [64, 128, 1024]
    weight, bias1, bias2 = (torch.randn(size[2], requires_grad=True) for _ in range(3))
    random.seed(42)
    shapes = [(size[0] + random.randrange(-2, 3), size[1] + random.randrange(-2, 3), size[2]) for _ in range(20)]
    numbers = torch.rand(3, 66 * 130 * 1024)
    run = compiled(function, dynamic=way == "dynamic=True" or None)
    count = lambda: (torch._dynamo.utils.counters["stats"]["unique_graphs"], counters.snapshot()["compiled_programs"])  # noqa: E731
    graphs, programs = count()
    for shape in shapes:
        *inputs, grad_output = (part[: math.prod(shape)].view(shape) for part in numbers)
        inputs = [x.detach().requires_grad_() for x in inputs]
        if way == "mark_dynamic":
            for x in inputs:
                torch._dynamo.mark_dynamic(x, (0, 1))
        run(*inputs, weight, bias1, bias2, 2, 0.1).backward(grad_output)
        assert count() == (graphs + 1, programs + 2)


def test_sizes_are_numbers_inside_of_kernels():
    """What a size stands in as a number, or as an extent to be filled, is no call of torch's."""

    def sizes(x, mask, i):
        n, m = x.shape
        filled = torch.full((n, m), n, dtype=x.dtype) + torch.rand(n, m)
        return x * n + filled, mask * n, i * m, x / m, i // n, x.sum(0, keepdim=True).expand(n, m) / n

    said = []
    with explain.compiled(sizes, {}, lambda *graph: said.append(explain.described(*graph)), dynamic=True) as run:
        for n in (6, 9):
            x, mask, i = torch.randn(n, 5), torch.rand(n, 5) < 0.5, torch.randint(-9, 9, (n, 5), dtype=torch.int32)
            for found, wanted in zip(run(x, mask, i)[1:], sizes(x, mask, i)[1:]):
                same(found, wanted)
    (graph,) = said
    assert {name for name, *_ in graph.outside} == {"mlirfuse.seed.default"}


def test_a_graph_that_gives_a_size_and_computes_nothing():
    def f(x):
        few = x.shape[0] - 3
        torch._dynamo.graph_break()
        return torch.arange(few) + x[:few]

    run = compiled(f, dynamic=True)
    for rows in (8, 5, 9):
        same(run(torch.arange(float(rows))), f(torch.arange(float(rows))))


def test_numbers_that_are_sizes_and_places():
    """A symbol that only a number tells: it is read from the number, not from the first result that has it."""
    f = lambda x, n: (x.view(-1).narrow(0, n, n).exp(), x.view(-1)[:n] * n)  # noqa: E731
    run = compiled(f, dynamic=True)
    for n in (3, 5, 2):
        x = torch.randn(6, 4, requires_grad=True)
        found, wanted = run(x, n), f(x, n)
        same(found, wanted)
        same(torch.autograd.grad(sum(y.sum() for y in found), x), torch.autograd.grad(sum(y.sum() for y in wanted), x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_numbers_that_torch_draws_beside_a_tensor_without_dimensions(dtype):
    """It is read behind the call that draws, whose effects order it."""
    p = torch.tensor(0.5, dtype=dtype)
    drawn = compiled(lambda p: torch.bernoulli(p) + 2 * p, fullgraph=True, options={"eager_random": True})
    torch.manual_seed(3)
    wanted = [torch.bernoulli(p) + 2 * p for _ in range(8)]
    torch.manual_seed(3)
    assert [drawn(p) for _ in range(8)] == wanted


def test_pythons_random_numbers():
    """Dynamo tells of float32 and gives float64."""

    def f(x):
        numbers = random.Random(3)
        y = x + 1 if numbers.random() < 0.5 else x - 1
        return y * numbers.random()

    x = torch.randn(3)
    run = compiled(f)
    for _ in range(2):
        same(run(x), f(x))


def test_the_sign_of_nan_is_torchs():
    x = torch.tensor([float("nan"), -0.0, 2, -float("inf")], requires_grad=True)
    f = lambda x: (x.sign(), x.sgn(), x.abs(), x.bfloat16().sign())  # noqa: E731
    found, wanted = compiled(f)(x), f(x)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    same(torch.autograd.grad(found[2].sum(), x), torch.autograd.grad(wanted[2].sum(), x))


def test_marked_dimensions_compile_once():
    layer = EncoderLayer()
    f = compiled(layer)
    graphs = None
    for batch, length in ((2, 7), (3, 9), (6, 5), (4, 20)):
        x = torch.randn(batch, length, 32)
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(x, 1)
        same(f(x), layer(x), rtol=1e-4, atol=1e-5)
        now = torch._dynamo.utils.counters["stats"]["unique_graphs"], counters.snapshot()
        assert graphs in (None, now)
        graphs = now


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    """Half types: against float64, not worse than twice eager."""
    model, batch = Encoder(), words()
    exact = gradients(copy.deepcopy(model).double(), *batch)
    with torch.autocast("cpu", dtype=dtype):
        eager = error(gradients(copy.deepcopy(model), *batch), exact)
        assert error(gradients(compiled(model), *batch), exact) <= 2 * eager + 1e-3


def test_a_half_model():
    model, x = EncoderLayer().bfloat16(), torch.randn(2, 5, 32).bfloat16()
    exact = copy.deepcopy(model).double()(x.double())
    eager = (model(x).double() - exact).abs().max()
    y = compiled(model)(x)
    assert y.dtype is torch.bfloat16
    assert (y.double() - exact).abs().max() <= 2 * eager


def chains(x, y):
    """Pointwise ops whose functions round alike in eager: what differs is where results are rounded."""
    a = x * 1.1 + y
    b = torch.where(a > 0, a, a * 0.3) * (x - 2 * y) / (y.abs() + 0.7)
    c = (b.sqrt().nan_to_num() + a.relu() + 1) * b.clamp(-3, 1.7)
    wide = (c * x).to(torch.float32) * 0.1
    return a, b, c, torch.addcmul(c, a, b), wide, c.t().contiguous() * 3 - 1 / a.t()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_eagers_rounding(dtype):
    """Bit for bit with ``eager_rounding``; without it some number is rounded later, so that the option is seen."""
    x, y = torch.randn(2, 40, 64).to(dtype)
    wanted = chains(x, y)
    for option in (True, False):
        torch._dynamo.reset()
        found = compiled(chains, options={"eager_rounding": option})(x, y)
        equal = [torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(found, wanted)]
        assert all(equal) is option, equal


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_eagers_rounding_of_gradients(dtype):
    given = [torch.randn(40, 64).to(dtype).requires_grad_() for _ in range(2)]
    f = lambda x, y: (x * y + x).relu() * (y - 0.3) * x  # noqa: E731
    run = compiled(f, options={"eager_rounding": True})
    found, wanted = [torch.autograd.grad(g(*given).sum(), given) for g in (run, f)]
    assert all(map(torch.equal, found, wanted))


def test_accumulated_gradients():
    model = Encoder()
    theirs = copy.deepcopy(model)
    f = compiled(model)
    for _ in range(3):
        batch = words()
        f(*batch).backward()
        theirs(*batch).backward()
    assert error([p.grad for p in model.parameters()], [p.grad for p in theirs.parameters()]) < 1e-5


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant):
    """Dropout inside: what is recomputed has the same mask, so that a gradient is where the output is."""

    def f(x):
        return checkpoint(lambda x: F.dropout(x * 3, 0.5).sin() + x * 0, x, use_reentrant=reentrant)

    x = torch.full((512,), 0.1, requires_grad=True)
    y = compiled(f)(x)
    (g,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(g != 0, y != 0) and 150 < int((y != 0).sum()) < 350
    torch.testing.assert_close(g[g != 0], torch.full_like(g[g != 0], 6) * torch.cos(torch.tensor(0.6)))


def test_a_retained_graph_gives_the_same_gradient_twice():
    x = torch.randn(5, requires_grad=True)
    y = compiled(lambda x: (x.exp() * x).sum())(x)
    first = torch.autograd.grad(y, x, retain_graph=True)
    torch.testing.assert_close(first, torch.autograd.grad(y, x))


def saves(x, w):
    """What is saved for the backward is nobody else's: a product's result."""
    return ((x * 2) @ w).sin().tanh().sum()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_backward_that_saved_tensors_of_its_own_runs_twice(dynamic):
    """As in eager; AOTAutograd refuses it where a compiler may have overwritten them."""
    mine, theirs = [[t.requires_grad_() for t in (torch.randn(4, 4), torch.eye(4))] for _ in range(2)]
    mine[0].data = theirs[0].data
    for f, given in ((compiled(saves, dynamic=dynamic), mine), (saves, theirs)):
        loss = f(*given)
        loss.backward()
        loss = f(*given)
        loss.backward(retain_graph=True)
        loss.backward()
    same([t.grad for t in mine], [t.grad for t in theirs])


def test_gradients_come_in_batches():
    f = lambda x: x.sin().cumsum(0) * x.softmax(0)  # noqa: E731
    x = torch.randn(4, requires_grad=True)
    wanted = torch.autograd.grad(f(x), x, torch.eye(4), is_grads_batched=True)
    same(torch.autograd.grad(compiled(f)(x), x, torch.eye(4), is_grads_batched=True), wanted)
    jacobian = torch.autograd.functional.jacobian
    same(jacobian(compiled(f), x.detach(), vectorize=True), jacobian(f, x.detach()))


def test_tangents_of_forward_mode():
    f = lambda x, y: (x.sin() * y).softmax(0)  # noqa: E731
    x, y, tangent = torch.randn(3, 4)
    run = compiled(f)
    same(run(x, y), f(x, y))
    with forward_ad.dual_level():
        found, wanted = (forward_ad.unpack_dual(g(forward_ad.make_dual(x, tangent), y)) for g in (run, f))
    assert wanted.tangent.abs().max() > 0
    same(tuple(found), tuple(wanted))


def test_unused_and_missing_gradients():
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    a, b = compiled(lambda x, y: (x * 2, y.detach() + 1))(x, y)
    assert not b.requires_grad
    assert torch.autograd.grad(a.sum(), [x, y], allow_unused=True)[1] is None


def test_gradients_inside():
    x = torch.randn(6)
    f = lambda x: torch.func.grad(lambda x: (x.tanh() ** 2).sum())(x) + torch.func.vmap(torch.sin)(x)  # noqa: E731
    same(compiled(f)(x), f(x))


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_optimizers_see_the_same_gradients(make):
    model, batch = Encoder(layers=1), words()
    theirs = copy.deepcopy(model)
    f = compiled(model)
    for m, run in ((model, f), (theirs, theirs)):
        opt = make(m.parameters(), lr=0.01)
        for _ in range(3):
            opt.zero_grad()
            run(*batch).backward()
            opt.step()
    assert abs(float(f(*batch) - theirs(*batch))) < 1e-3


# ---- mutation, aliases, odd outputs


def test_mutation_of_inputs():
    def f(x, y):
        x.mul_(2)
        y[1:3] += x[:2]
        return x + y, y.sum()

    given, theirs = [[torch.arange(4.0), torch.ones(4)] for _ in range(2)]
    same(compiled(f)(*given), f(*theirs))
    same(given, theirs)


class Counted(nn.Module):
    """Its result depends on a buffer, and on what that was before the call wrote it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("calls", torch.full((4,), 0.5))

    def forward(self, x):
        before = self.calls * 2
        self.calls.mul_(0.5).add_(x.detach(), alpha=0.5)
        return (x * self.weight) * self.calls.sin() * before.exp()


def test_gradients_see_buffers_as_they_were():
    model = Counted()
    run, theirs = compiled(copy.deepcopy(model)), model
    for _ in range(3):
        for f in (run, theirs):
            f.zero_grad()
            f(torch.tensor([1.0, 2, 3, 4])).sum().backward()
        torch.testing.assert_close(run.weight.grad, theirs.weight.grad)
        torch.testing.assert_close(run.calls, theirs.calls)


def test_outputs_that_are_inputs_views_and_each_other():
    def f(x):
        y = x.view(-1)
        z = x + 1
        return x, y, z, z, z.t(), y[2:5]

    x = torch.randn(3, 4)
    found = compiled(f)(x)
    same(found, f(x))
    assert found[0] is x and found[1].data_ptr() == x.data_ptr() and found[5].data_ptr() == x[0, 2:].data_ptr()
    assert found[2].data_ptr() == found[3].data_ptr() == found[4].data_ptr() != x.data_ptr()
    found[2].add_(1)
    torch.testing.assert_close(found[4], found[2].t())


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x.exp(), x.exp(), x.exp() * 1),
        lambda x: (x.exp(), x.exp().t(), x.exp()[1:, ::2]),
        lambda x: (x.amax(0), x.amax(0, keepdim=True), x.amax(0).unsqueeze(0)),
        lambda x: (x @ x.t(), (x @ x.t()).t(), (x @ x.t())[0]),
    ],
)
def test_what_is_computed_twice_is_in_two_places(f, trains):
    """Equal outputs, and views of equal ones, may be written into apart from each other."""
    x = torch.randn(4, 5, requires_grad=trains)
    found, wanted = compiled(f)(x), f(x)
    same(found, wanted)
    together = [
        [[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for b in outputs] for a in outputs]
        for outputs in (found, wanted)
    ]
    assert together[0] == together[1]


def test_numbers_bools_and_none_among_outputs():
    def f(x, n):
        return (x > 0).any(), x.argmax(), x.shape[0] * 2, None, x.sum() > n, x.to(torch.int32), n + 1

    x = torch.randn(7)
    same(compiled(f)(x, 3), f(x, 3))


def test_a_view_into_a_product_is_not_copied():
    """Weights come to ``mm`` transposed, as torch gives them: no kernel moves them."""
    told = mlirfuse.torch.explain(lambda a, w: (a * 2) @ w.t(), torch.randn(5, 6), torch.randn(7, 6))
    assert [(k.scheduler, k.read) for k in told.graphs[0].kernels] == [("pointwise", 5 * 6 * 4)]


def test_strided_inputs_and_channels_last():
    def f(x):
        y = x.relu() + 1
        return y, y.mean((2, 3)), y.sum(1)

    x = torch.randn(2, 3, 4, 5)
    run = compiled(f)
    for given in (x, x.to(memory_format=torch.channels_last), x.transpose(2, 3), x[:, :, ::2], x.expand(2, 3, 4, 5)):
        same(run(given), f(given))


def test_sizes_that_values_tell():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):

        def f(x):
            n = x.nonzero()
            return n.shape[0], (n + 1).sum(), x[x > 0] * 2, x.sum().item() + 1

        for x in (torch.tensor([1.0, 0, -2, 3]), torch.zeros(3), torch.randn(20)):
            same(compiled(f, fullgraph=True)(x), f(x))


def test_tensors_without_elements():
    def f(x):
        return x * 2, x.sum(), torch.cat([x, x + 1])

    run = compiled(f)
    for n in (0, 3, 0, 5, 1):
        x = torch.randn(n, 4)
        same(run(x), f(x))


def test_higher_order_and_custom_ops():
    @torch.library.custom_op("mlirfuse_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(lambda x: torch.empty_like(x))

    def f(x):
        y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return twice(y + 1).relu()

    for x in (torch.ones(4), -torch.ones(4)):
        same(compiled(f)(x), f(x))


def test_complex_and_other_types_run_outside():
    def f(x):
        z = torch.fft.rfft(x * 2)
        return z * 1j, z.abs() + 1, torch.view_as_real(z) * 2

    x = torch.randn(8)
    same(compiled(f)(x), f(x))


def test_hooks_see_gradients():
    seen = []
    layer = nn.Linear(4, 4)
    layer.weight.register_hook(lambda g: seen.append(g.clone()))
    compiled(layer)(torch.ones(2, 4)).sum().backward()
    torch.testing.assert_close(seen, [torch.full((4, 4), 2.0)])


def test_two_models_in_one_process_and_threads():
    import threading

    models = [Encoder(layers=1), EncoderLayer()]
    inputs = [words(), (torch.randn(2, 6, 32),)]
    found = {}

    def run(k):
        found[k] = compiled(models[k])(*inputs[k]).detach()

    threads = [threading.Thread(target=run, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k in range(2):
        same(found[k], models[k](*inputs[k]).detach(), rtol=1e-4, atol=1e-5)


# ---- looking inside, other ways in


def test_explain_tells_kernels_lines_calls_and_what_is_saved():
    model, batch = Encoder(p=0.1), words()
    statistics = copy.deepcopy(model.state_dict())
    told = mlirfuse.torch.explain(model, *batch)
    assert [g.which for g in told.graphs] == ["forward", "backward"]
    forward, backward = told.graphs
    assert {k[0] for k in forward.outside} >= {"aten.addmm.default"} and "aten.mm.default" in str(backward)
    assert any("torch_models.py" in line for k in forward.kernels for line in k.lines)
    assert forward.programs < len(forward.kernels)  # equal layers share theirs
    assert any(name == "seed" and n == 8 for name, n in forward.saved)
    assert not any(n == 3 * 8 * 32 for _, n in forward.saved), "a mask of dropout is saved"
    assert any(op == "mlirfuse.uniform.default" and "free" in why for op, _, why, _ in backward.recomputed)
    assert "recomputed" in str(backward) and not forward.recomputed
    torch.testing.assert_close(model.state_dict(), statistics)
    assert all(p.grad is None for p in model.parameters())


def test_explain_tells_what_a_checkpoint_computes_again():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True)
    plain = lambda x: layer(x).tanh()  # noqa: E731
    _, backward = mlirfuse.torch.explain(lambda x: checkpoint(plain, x, use_reentrant=False).sum(), x).graphs
    assert {op: why for op, _, why, _ in backward.recomputed} == dict.fromkeys(
        ("aten.addmm.default", "aten.tanh.default"), "required by a checkpoint"
    )
    _, backward = mlirfuse.torch.explain(lambda x: plain(x).sum(), x).graphs
    assert [(op, why) for op, _, why, _ in backward.recomputed] == [
        ("aten.tanh.default", "free in the kernel that reads it")
    ]


def test_explain_draws_each_graph(tmp_path):
    x = torch.randn(6, 32, requires_grad=True)
    torch._dynamo.mark_dynamic(x, 0)
    told = mlirfuse.torch.explain(lambda x, w: (x @ w).tanh().softmax(-1), x, torch.randn(32, 32))
    told.save(tmp_path / "graphs.html")
    text = (tmp_path / "graphs.html").read_text()
    assert text.count("<iframe") == 2 and text.count("&lt;svg") == 2
    assert "tanh" in text and "f32[6, 32]" in text and "saved for the backward" in text


def test_memory_efficient_fusion():
    layer = EncoderLayer()
    x = torch.randn(2, 5, 32)
    wanted = layer(x)
    same(mlirfuse.torch.memory_efficient_fusion(layer)(x), wanted, rtol=1e-4, atol=1e-5)
    same(mlirfuse.torch.memory_efficient_fusion(lambda x: x.tanh() * 2)(x), x.tanh() * 2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compilers_of_aot_function(dynamic):
    told = []
    mlirfuse_graphs = mlirfuse.frontend.torch.backend.observers
    mlirfuse_graphs.append(lambda which, lowered, host: told.append(which))
    try:
        f = lambda x, w: (x @ w).tanh().softmax(-1)  # noqa: E731
        run = aot_function(f, dynamic=dynamic, **mlirfuse.torch.compilers(fallback=False, eager_rounding=True))
        given = [torch.randn(n, 5, requires_grad=True) for n in (3, 5)]
        found, wanted = run(*given), f(*given)
        same(found, wanted)
        t = torch.randn_like(wanted)
        same(torch.autograd.grad(found, given, t), torch.autograd.grad(wanted, given, t))
        with torch.no_grad():
            same(run(*given), wanted)
        assert told[:2] == ["forward", "backward"]
    finally:
        mlirfuse_graphs.pop()
    with pytest.raises(ValueError, match="no option 'fast'"):
        mlirfuse.torch.compilers(fast=True)


def test_results_of_recorded_graphs_are_in_storages_of_torch(monkeypatch):
    """``cudagraph_trees`` frees them, which it can only do with those that torch's allocator made."""
    from mlirfuse.frontend.torch.execution import cuda_graphs

    def f(x):
        return x.tanh() * 2, x.sum(-1), x > 0, x.to(torch.bfloat16).t() * 2

    created, empty = [], cuda_graphs._empty
    monkeypatch.setattr(cuda_graphs, "_empty", lambda *args: created.append(empty(*args)) or created[-1])
    run, x = compiled(f), torch.randn(33, 17)
    found = cuda_graphs.in_own_storages(lambda args: run(*args))([x])
    assert {r.untyped_storage().data_ptr() for r in found} == {m.untyped_storage().data_ptr() for m in created}
    for result, wanted in zip(found, f(x), strict=True):
        torch.testing.assert_close(result, wanted)
        assert result.stride() == wanted.stride()
    run(x)
    assert len(created) == len(found)  # only what is recorded


def test_compiled_autograd():
    """The whole backward as one graph, whose inputs are in lists."""
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), torch.randn(3, 4)
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    run = torch.compile(model, backend="mlirfuse")
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="mlirfuse")):
        for _ in range(2):
            model.zero_grad()
            run(x).square().sum().backward()
    assert torch._dynamo.utils.counters["compiled_autograd"]["captures"] == 1
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-6)


def test_fake_tensors_are_no_arguments_of_what_is_compiled():
    from torch._subclasses import FakeTensorMode

    run = torch.compile(lambda x: x.softmax(-1), backend="mlirfuse")
    with FakeTensorMode():
        x = torch.ones(3, 4, requires_grad=True)
        with pytest.raises(ValueError, match="FakeTensor has no memory"):
            run(x)
    assert run(torch.ones(3, 4)).sum() == 3


@pytest.mark.parametrize("training", [True, False])
def test_parameters_and_buffers_stay_where_they_are_in_recorded_graphs(training, monkeypatch):
    """A replay reads and writes them in place, and copies the other inputs; without a GPU, so that nothing is
    recorded."""
    from mlirfuse.frontend.torch import backend
    from mlirfuse.frontend.torch.execution import cuda_graphs

    looked = []

    def examine(self, module, inputs, which, visible):
        seen = see(self, module, inputs, which, visible)
        looked.append((which, set(seen.fixed), len(inputs), seen.mutated))
        return seen

    see = cuda_graphs.Recorder.examine
    monkeypatch.setattr(cuda_graphs.Recorder, "examine", examine)
    monkeypatch.setattr(backend, "_recorder", lambda mode, options, count: cuda_graphs.Recorder(count))
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6))
    run = torch.compile(model.train(training), backend="mlirfuse")
    if training:
        run(torch.randn(4, 6)).sum().backward()
    else:
        with torch.no_grad():
            run(torch.randn(4, 6))
    which, fixed, places, mutated = looked[0]
    assert which == ("forward" if training else "inference") and places - len(fixed) == 1  # the batch
    assert mutated <= fixed and bool(mutated) == training


class Manager:
    """As much of cudagraph_trees' as decides what is replayed; nothing is recorded without a GPU."""

    marked = running_forwards_with_pending_backwards = False
    invocation_is_new = True
    graph: object = "none, as nothing is recorded"
    generations = 0

    def user_invoked_mark_step(self):
        return self.marked

    def in_new_torch_compile_invocation(self):
        return self.invocation_is_new

    def can_start_new_generation(self):
        if not self.in_new_torch_compile_invocation():
            return False
        return self.marked or not self.running_forwards_with_pending_backwards

    def set_to_running_backward(self):
        self.running_forwards_with_pending_backwards = False

    def replayed(self, which):
        """As the trees note it of a forward, a backward or an inference graph."""
        self.generations += self.can_start_new_generation()
        self.invocation_is_new = False
        if which != "inference":
            self.running_forwards_with_pending_backwards = which == "forward"


class Recorded(torch.autograd.Function):
    """A step of a recorded graph as AOTAutograd makes it, whose result is saved."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        result, saved = forward([x])
        ctx.save_for_backward(saved.detach() if saved._is_view() else saved)
        ctx.backward = backward
        return result

    @staticmethod
    def backward(ctx, gradient):
        return ctx.backward([gradient, *ctx.saved_tensors])[0], None, None


@pytest.fixture
def recorded(monkeypatch):
    """Recorded graphs' stand-ins that share a manager: ``make()`` gives a function, ``heard`` what ran. A replay gives
    the same tensor in each call, as cudagraph_trees does."""
    from mlirfuse.frontend.torch import torch_private
    from mlirfuse.frontend.torch.execution.cuda_graphs import GraphFacts, Recorder
    from mlirfuse.frontend.torch.execution.live_saved_tensors import SavedTensor

    manager, heard = Manager(), []
    monkeypatch.setattr(torch_private, "get_manager", lambda device, create_if_none_exists: manager)

    def make(exposed=False, which="forward", backward_too=True):
        recorder, shown, kept = Recorder(0), torch.zeros(2), torch.zeros(2)

        def replay(args):
            heard.append("replay")
            torch_private.get_manager(0, create_if_none_exists=False).replayed(which)
            return [kept.detach() if exposed else torch.add(args[0], 1, out=shown), kept]

        def run(args):
            heard.append("run")
            result = args[0] + 1
            return [result, result if exposed else args[0] * 2]

        def replay_back(args):
            heard.append("replay back")
            used = torch_private.get_manager(0, create_if_none_exists=False)
            assert not used.can_start_new_generation()
            used.replayed("backward")
            return [args[0]]

        def run_back(args):
            heard.append("run back")
            return [args[0]]

        saved_tensor = SavedTensor(1, 0 if exposed else None) if which == "forward" else None
        forward = recorder._forward(replay, run, 0, which, GraphFacts(None, [], set(), 1, saved_tensor))
        backward = recorder._backward(replay_back if backward_too else None, run_back, 0)

        def call():
            torch_private.get_manager(0, create_if_none_exists=False).invocation_is_new = shared.calls_are_new
            return Recorded.apply(torch.ones(2, requires_grad=True), forward, backward)

        return call

    shared = types.SimpleNamespace(make=make, manager=manager, heard=heard, calls_are_new=True)
    return shared


@pytest.mark.parametrize("exposed", [False, True])
def test_graphs_are_replayed(recorded, exposed):
    """Steps, and forwards whose backwards follow in turn; results that are kept do not matter."""
    first, second = recorded.make(exposed), recorded.make(exposed)
    results = []
    for _ in range(3):
        results.append(first())
        results[-1].sum().backward()
    a, b = first(), second()
    (a + b).sum().backward()
    first().sum().backward()
    both = ["replay", "replay back"]
    assert recorded.heard == both * 3 + ["replay"] * 2 + ["replay back"] * 2 + both


@pytest.mark.parametrize("exposed", [False, True])
def test_nothing_is_replayed_over_what_a_backward_will_read(recorded, exposed, caplog):
    """Another model's step between a forward and its backward would begin a new generation of memory."""
    first, second = recorded.make(exposed), recorded.make(exposed)
    loss = first().sum()
    for _ in range(3):
        second().sum().backward()
    loss.backward()
    second().sum().backward()
    both, plain = ["replay", "replay back"], ["run", "run back"]
    assert recorded.heard == ["replay", *both, *plain, *plain, "run back", *both]
    assert caplog.text.count("are not replayed") == 1


@pytest.mark.parametrize("exposed", [False, True])
def test_what_a_forward_saved_is_not_held_when_its_results_are_gone(recorded, exposed):
    """A replay gives the same tensors each time; the graph that autograd notes on a result is the user's alone."""
    first, second = recorded.make(exposed), recorded.make(exposed)
    for _ in range(2):
        first()  # no backward follows
        second().sum().backward()
    assert recorded.heard == ["replay", "replay", "replay back"] * 2


@pytest.mark.parametrize("exposed", [False, True])
def test_a_backward_that_runs_again_is_not_replayed(recorded, exposed):
    """Nor is what runs before it does; where it does not, the next forward begins a new generation of memory."""
    first, second = recorded.make(exposed), recorded.make()
    loss = first().sum()
    loss.backward(retain_graph=True)
    second().sum().backward()
    loss.backward()
    assert recorded.heard == ["replay", "run back", "run", "run back", "replay back"]
    recorded.heard.clear()
    loss = first().sum()
    loss.backward(retain_graph=True)
    del loss
    generations = recorded.manager.generations
    second()
    assert recorded.heard == ["replay", "run back", "replay"]
    assert recorded.manager.generations == generations + 1


def test_within_one_step_all_is_replayed(recorded):
    """One that the user marks, or one call of a compiled function: no generation begins in it."""
    loss = recorded.make()().sum()
    loss.backward(retain_graph=True)
    for of, name, value in ((recorded.manager, "marked", True), (recorded, "calls_are_new", False)):
        setattr(of, name, value)
        recorded.make()().sum().backward()
        setattr(of, name, not value)
    assert recorded.heard == ["replay", "run back", *["replay", "replay back"] * 2]


def test_what_a_backward_computes_again_begins_no_generation(recorded):
    """As checkpoints have it: the next layer's forward in the backward. Replayed, it would begin one."""
    inner = recorded.make()
    outer = inner()  # its backward is still to come

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            recorded.manager.running_forwards_with_pending_backwards = False
            with torch.enable_grad():
                inner().sum().backward()
            return gradient

    Again.apply(outer).sum().backward()
    assert recorded.heard == ["replay", "run", "run back", "run back"]
    assert recorded.manager.generations == 1


def test_what_a_hook_of_a_backward_calls_begins_no_generation(recorded):
    """Such as a compiled optimizer's step; the next forward does, whose result is kept or not."""
    model, update = recorded.make(), recorded.make(which="inference")
    results = []
    for step in range(3):
        results.append(model())
        leaf = results[-1].grad_fn.next_functions[0][0].variable
        leaf.register_post_accumulate_grad_hook(lambda x: (update(), None)[1])
        results[-1].sum().backward()
        assert recorded.manager.generations == step + 1
        assert not recorded.manager.running_forwards_with_pending_backwards
    assert recorded.heard == ["replay", "replay back", "run"] * 3


def test_a_backward_runs_again_of_what_ran_as_it_is(recorded):
    first, second = recorded.make(), recorded.make()
    loss = first().sum()
    second().sum().backward()
    plain = second().sum()
    plain.backward(retain_graph=True)
    plain.backward()
    loss.backward()
    assert recorded.heard == ["replay", "replay", "replay back", "run", "run back", "run back", "run back"]


def test_a_backward_that_is_not_recorded_ends_its_generation(recorded):
    """But where it may run again."""
    model, other = recorded.make(backward_too=False), recorded.make()
    model().sum().backward()
    assert not recorded.manager.running_forwards_with_pending_backwards
    loss = model().sum()
    loss.backward(retain_graph=True)
    other().sum().backward()
    loss.backward()
    assert recorded.heard == ["replay", "run back", "replay", "run back", "run", "run back", "run back"]


def test_a_graph_that_is_skipped_runs_as_it_is(recorded, monkeypatch, caplog):
    """A backward still ends the generation of the forward that is recorded."""
    from mlirfuse.frontend.torch import torch_private
    from mlirfuse.frontend.torch.execution import cuda_graphs

    monkeypatch.setattr(torch_private, "get_device_index", lambda module: 0)
    recorder, seen = cuda_graphs.Recorder(0), cuda_graphs.GraphFacts("its sizes change", [], set())
    backward = recorder.recorded(lambda args: args, None, [], "backward", seen)
    recorded.manager.running_forwards_with_pending_backwards = True
    y = Recorded.apply(torch.ones(2, requires_grad=True), lambda args: [args[0] + 1, args[0] * 2], backward)
    y.sum().backward()
    assert not recorded.manager.running_forwards_with_pending_backwards
    run = len
    assert recorder.recorded(run, None, [], "forward", seen) is run
    assert recorder.recorded(run, None, [], "backward", seen) is run  # of a forward that is not recorded either
    assert caplog.text.count("is not recorded: its sizes change") == 3


def test_recorded_graphs_that_are_thrown_away(recorded, monkeypatch):
    """torch makes another manager, and what is held is held of that one."""
    from mlirfuse.frontend.torch import torch_private

    model, old, new = recorded.make(), recorded.manager, Manager()
    loss = model().sum()
    old.graph = None
    monkeypatch.setattr(torch_private, "get_manager", lambda device, create_if_none_exists: new)
    model()
    loss.backward()
    assert recorded.heard == ["replay", "replay", "replay back"]


def test_tangents_are_not_replayed(recorded):
    model = recorded.make(which="inference")
    with forward_ad.dual_level(), torch.no_grad():
        model()
    with torch.no_grad():
        model()
    assert recorded.heard == ["run", "replay"]


def test_what_is_saved_on_a_context_does_not_wait_for_ever(recorded):
    """AOTAutograd leaves some of it there until the result goes, which is kept here."""
    model = recorded.make()
    results = []
    for _ in range(3):
        results.append(model())
        results[-1].grad_fn.also = results[-1].grad_fn.saved_tensors
        results[-1].sum().backward()
    assert recorded.heard == ["replay", "replay back"] * 3


def test_gradients_in_batches_are_not_replayed(recorded):
    y = recorded.make()()
    x = y.grad_fn.next_functions[0][0].variable
    torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)
    assert recorded.heard == ["replay", "run back"]
    assert not recorded.manager.running_forwards_with_pending_backwards


def test_what_was_saved_is_not_free_for_the_trees():
    """By their own count of a tensor that they keep from replay to replay; and where nothing waits for it, it is."""
    from torch._inductor.cudagraph_trees import StorageWeakRefWrapper

    from mlirfuse.frontend.torch.execution.live_saved_tensors import SavedTensor, followed

    kept = [torch.zeros(2)]

    def only_ours():
        return sys.getrefcount(kept[0]) == (3 if kept[0]._use_count() > 1 else 2)

    seen = StorageWeakRefWrapper(kept[0], extra_ref_check=only_ours)
    results = [None, kept[0]]
    saved = followed(results, SavedTensor(1, None))
    result = Recorded.apply(torch.ones(2, requires_grad=True), lambda args: [args[0] + 1, results.pop()], list)
    results.clear()
    assert not seen.expired() and saved() is not None
    result.sum().backward()
    assert seen.expired() and saved() is None


@pytest.mark.parametrize("exposed", [False, True])
@pytest.mark.parametrize("make", [lambda: torch.ones(3, 4).t(), lambda: torch.ones(0), lambda: torch.ones(4, 1).expand(4, 3),
                                  lambda: torch.ones(3, dtype=torch.complex64).conj().imag])  # fmt: skip
def test_what_is_followed_is_what_was_saved(make, exposed):
    """As it lies, whatever that is; of a result its version too, which a replay's other tensors do not share."""
    from mlirfuse.frontend.torch.execution.live_saved_tensors import SavedTensor, followed

    saved, result = make(), make()
    results = [result, saved]
    ref = followed(results, SavedTensor(1, 0 if exposed else None))
    assert ref() is results[1] is not saved and not results[1]._is_view()
    assert results[1].stride() == saved.stride() and torch.equal(results[1], saved)
    users = result if exposed else saved
    version = results[1]._version
    with torch.no_grad():
        users[:1].add_(1) if users.numel() == 3 else users.data_ptr()
    assert (results[1]._version > version) == (users.numel() == 3)


@pytest.mark.parametrize(
    ("model", "followed"),
    [
        (lambda x, w: torch.layer_norm(x @ w, (4,), x[0]), "own"),  # the mean of each row
        (lambda x, w: (x @ w).exp(), "given"),  # x: each replay copies it
        (lambda x, w: w.exp(), "result"),
        (lambda x, w: w.t() * w, None),  # only w, where it is
    ],
)
def test_which_saved_tensor_is_followed(model, followed):
    from functorch.compile import aot_function, make_boxed_func

    from mlirfuse.frontend.torch.execution.live_saved_tensors import saved_tensor

    found = []

    def compiler(module, inputs):
        which = saved_tensor(module, [k for k, x in enumerate(inputs) if x.shape == (4, 4)], 1)
        if which is None:
            found.append(None)
        else:
            node = module.graph.output_node().args[0][which.output_index]
            found.append("result" if which.result == 0 else "given" if node.op == "placeholder" else "own")
        return make_boxed_func(module)

    run = aot_function(model, fw_compiler=compiler, bw_compiler=lambda module, inputs: make_boxed_func(module))
    run(torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)).sum().backward()
    assert found == [followed]


@pytest.mark.parametrize(
    ("mode", "option", "recorded"),
    [
        (None, None, []),
        (None, True, ["still"]),
        (None, False, []),
        ("reduce-overhead", None, ["still", "changes"]),
        ("reduce-overhead", False, []),
    ],
)
def test_which_graphs_are_recorded(mode, option, recorded, monkeypatch):
    """Of two graphs, one with a size that changes; without a GPU, so that nothing is run."""
    from mlirfuse.frontend.torch import backend, torch_private
    from mlirfuse.frontend.torch.options import Options

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    recorder = backend._recorder(mode, Options.of({"cuda_graphs": option}), 1)
    assert (recorder is None) == (not recorded)
    if recorder is None:
        return
    monkeypatch.setattr(torch_private, "check_for_skip", lambda module, fixed: None)
    monkeypatch.setattr(torch_private, "find_input_mutations", lambda graph: {0})
    monkeypatch.setattr(torch_private, "get_device_index", lambda module: 0)
    heard = []
    replay = lambda args: args  # noqa: E731
    monkeypatch.setattr(
        torch_private, "cudagraphify_impl", lambda run, inputs, *_, **more: heard.append((inputs, more)) or replay
    )
    shape_env = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    size = shape_env.create_unbacked_symint()
    module = torch.fx.symbolic_trace(lambda x: x * 2)
    runs = {}
    for name, given in (("still", [torch.ones(3)]), ("changes", [size])):
        recorder.on = True
        plain = lambda args: args  # noqa: E731
        seen = recorder.examine(module, given, "inference", None)
        runs[name] = recorder.recorded(plain, module, given, "inference", seen) is not plain
    assert [name for name, on in runs.items() if on] == recorded
    assert len(heard) == len(recorded) and all(more["mutated_input_idxs"] == {0} for _, more in heard)
