"""Torch's settings and its own ways around kernels: deterministic algorithms, precision, attention's choice, scaled
gradients, checkpoints, higher-order ops, tensor subclasses."""

from __future__ import annotations

import copy
import operator

import pytest

torch = pytest.importorskip("torch")

from test_torch_ways import compiled, same, words
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint
from torch_models import Encoder

import mlirfuse.torch
from mlirfuse import _native
from mlirfuse.frontend.torch.backend import compile_graph
from mlirfuse.frontend.torch.execution import execute
from mlirfuse.frontend.torch.options import Options


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


# ---- settings


def test_deterministic_algorithms():
    """What torch does then it does for compiled code too: memory that is not written is filled."""
    f = lambda x: (x * 2, torch.empty_like(x))  # noqa: E731
    torch.use_deterministic_algorithms(True)
    try:
        found = compiled(f)(torch.ones(5))
    finally:
        torch.use_deterministic_algorithms(False)
    assert found[1].isnan().all() and torch.equal(found[0], torch.full((5,), 2.0))


def test_deterministic_algorithms_refuse_what_has_none():
    f = lambda x: F.max_unpool2d(x * 2, torch.arange(4).view(1, 1, 2, 2), 2)  # noqa: E731
    torch.use_deterministic_algorithms(True)
    try:
        for run in (f, compiled(f)):
            with pytest.raises(Exception, match="deterministic"):
                run(torch.ones(1, 1, 2, 2))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture
def threads():
    """Sets the pool's threads and torch's."""
    before = _native.num_threads(), torch.get_num_threads()

    def set_both(pool, torchs):
        _native.set_num_threads(pool)
        torch.set_num_threads(torchs)

    yield set_both
    set_both(*before)


def test_kernels_get_as_many_threads_as_torchs_ops(threads):
    seen = []

    @torch.library.custom_op("mlirfuse_tests::seen", mutates_args=())
    def observe(x: torch.Tensor) -> torch.Tensor:
        seen.append(_native.num_threads())
        if len(seen) == 5:
            raise RuntimeError("stop")
        return x.clone()

    observe.register_fake(torch.empty_like)
    found = compiled(lambda x: observe(x * 2) + 1)
    for pool, torchs in ((4, 1), (4, 2), (4, 8), (1, 2)):
        threads(pool, torchs)
        assert torch.equal(found(torch.ones(5)), torch.full((5,), 3.0))
        assert _native.num_threads() == pool
    assert seen == [1, 2, 4, 1]
    threads(4, 2)
    with pytest.raises(RuntimeError, match="stop"):
        found(torch.ones(5))
    assert _native.num_threads() == 4


def test_schedules_are_for_torchs_threads(threads):
    threads(4, 1)
    assert execute.target_of(torch.device("cpu")).properties.threads == 1
    threads(4, 3)
    assert execute.target_of(torch.device("cpu")).properties.threads == 3


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_precision_of_products_is_torchs(precision):
    """TF32 and its kin belong to torch's own products, which read the setting as they run."""
    f = lambda x, w: (x * 1) @ w  # noqa: E731
    run, given = compiled(f), torch.randn(2, 64, 64)
    before = torch.get_float32_matmul_precision()
    run(*given)
    try:
        torch.set_float32_matmul_precision(precision)
        assert torch.equal(run(*given), f(*given))
    finally:
        torch.set_float32_matmul_precision(before)


def test_attention_is_the_kernel_that_is_allowed():
    x = torch.randn(1, 2, 8, 16)
    f = lambda x: F.scaled_dot_product_attention(x * 2, x, x)  # noqa: E731
    seen = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        with sdpa_kernel(backend):
            (graph,) = mlirfuse.torch.explain(f, x).graphs
            seen[backend] = {op for op, _, _ in graph.outside}
            same(compiled(f)(x), f(x))
    assert any("flash" in op for op in seen[SDPBackend.FLASH_ATTENTION])
    assert not any("flash" in op for op in seen[SDPBackend.MATH])


def test_scaled_gradients():
    """Half-type autocast with a scaler: steps and scales as in eager, one step left out for an infinite gradient."""
    ours = Encoder(layers=1)
    theirs = copy.deepcopy(ours)
    batches = [words() for _ in range(4)]
    scales = []
    for model, run in ((ours, compiled(ours)), (theirs, theirs)):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=2)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        scales.append([])
        for k, batch in enumerate(batches):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = run(*batch)
            scaler.scale(loss * (1e36 if k == 1 else 1)).backward()
            scaler.step(opt)
            scaler.update()
            scales[-1].append(scaler.get_scale())
    assert scales[0] == scales[1] and scales[0][1] < scales[0][0]
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-3)


# ---- checkpoints

RANDOM = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.4)) * x,
    "rrelu": lambda x: F.rrelu(x, training=True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3),
}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", RANDOM)
def test_checkpoints_draw_the_same_numbers_again(name, reentrant):
    """The gradient is that of the numbers which the forward drew: against finite differences under one seed."""

    def f(x):
        return checkpoint(lambda x: RANDOM[name](x * 2).sin(), x, use_reentrant=reentrant)

    run, weights = compiled(f), torch.randn(2, 3, 4, 4, dtype=torch.float64)

    def value(x):
        torch.manual_seed(5)
        return (run(x.detach().requires_grad_()) * weights).sum()

    x, way = torch.randn(2, 2, 3, 4, 4, dtype=torch.float64)
    x.requires_grad_()
    torch.manual_seed(5)
    (gradient,) = torch.autograd.grad((run(x) * weights).sum(), x)
    slope = (value(x + 1e-6 * way) - value(x - 1e-6 * way)) / 2e-6
    torch.testing.assert_close((gradient * way).sum(), slope.detach(), rtol=1e-5, atol=1e-6)


# ---- higher-order ops, each by its own implementation


def test_loops():
    def f(x):
        n, y = while_loop(lambda n, y: n < 4, lambda n, y: (n + 1, (y * 2).sin()), (torch.tensor(0), x + 1))
        last, all_of_them = scan(lambda carry, row: ((carry + row).tanh(), carry * 2), x[0] * 0, x)
        return n, y.exp(), last + 1, all_of_them

    x = torch.randn(3, 4)
    wanted = [torch.tensor(4), x + 1]
    for _ in range(4):
        wanted[1] = (wanted[1] * 2).sin()
    carry, rows = torch.zeros(4), []
    for row in x:
        rows.append(carry * 2)
        carry = (carry + row).tanh()
    same(compiled(f)(x), (wanted[0], wanted[1].exp(), carry + 1, torch.stack(rows)))


def test_flex_attention():
    def f(x):
        return flex_attention(x * 2, x, x, score_mod=lambda score, b, h, q, k: score - (q - k).abs()) + 1

    x = torch.randn(1, 2, 8, 16)
    places = torch.arange(8)
    bias = -(places[:, None] - places).abs().float()
    torch.testing.assert_close(compiled(f)(x), F.scaled_dot_product_attention(x * 2, x, x, attn_mask=bias) + 1)


class Kernel(torch._ops.HigherOrderOperator):
    """As the one that launches a user's Triton kernels: arguments by name, and a dict of what was written."""

    def __init__(self):
        super().__init__("mlirfuse_test_kernel")

    def __call__(self, *, number, kwargs, clones):
        return super().__call__(number=number, kwargs=kwargs, clones=clones)


def test_users_kernels_run_by_their_own_implementation():
    launched = []

    def launch(*, number, kwargs, clones):
        launched.append(number)
        return {name: kwargs[name] + kwargs["by"] for name in clones}

    kernel = Kernel()
    kernel.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)(launch)
    kernel.fallthrough(torch._C.DispatchKey.AutogradCPU)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    doubled = graph.call_function(torch.ops.aten.mul.Tensor, (x, 2.0))
    given = {"number": 7, "kwargs": {"out": doubled, "by": 3}, "clones": ["out"]}
    written = graph.call_function(kernel, (), given)
    out = graph.call_function(operator.getitem, (written, "out"))
    graph.output((graph.call_function(torch.ops.aten.exp.default, (out,)),))
    for node in graph.nodes:
        node.meta["val"] = {"out": torch.empty(4)} if node is written else torch.empty(4)
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    x = torch.randn(4)
    run = compile_graph(module, [x], options=Options(fallback=False), which="inference")
    for _ in range(2):
        torch.testing.assert_close(run([x])[0], (x * 2 + 3).exp())
    assert launched == [7, 7]


# ---- tensor subclasses


def test_a_tensor_subclass():
    """AOTAutograd takes it apart: both of its tensors are computed, and it comes out again, with its gradient."""
    parts = torch.randn(2, 5)
    x = TwoTensor(parts[0].clone(), parts[1].clone()).requires_grad_()
    f = lambda x: (x * 2).tanh() + 1  # noqa: E731
    y = compiled(f)(x)
    assert type(y) is TwoTensor
    torch.testing.assert_close(torch.stack([y.a, y.b]), f(parts))
    y.sum().backward()
    slope = 2 * (1 - (2 * parts).tanh() ** 2)
    torch.testing.assert_close(torch.stack([x.grad.a, x.grad.b]), slope)


@pytest.mark.parametrize("forward", [False, True])
def test_a_backward_under_autocast_that_the_forward_has_not_seen(forward):
    """Its products have the types of the forward's; eager's are in bfloat16 in either case."""
    torch.manual_seed(0)
    net, x = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)), torch.randn(5, 4)
    run = compiled(net)
    gradients = []
    for fn in (net, run):
        with torch.autocast("cpu", torch.bfloat16, enabled=forward):
            y = fn(x)
        with torch.autocast("cpu", torch.bfloat16, enabled=not forward):
            gradients.append(torch.autograd.grad(y.float().sum(), list(net.parameters())))
    for wanted, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted, atol=2e-2, rtol=2e-2)
