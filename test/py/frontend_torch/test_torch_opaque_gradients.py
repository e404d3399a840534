"""Custom ops whose backward reads values on the host."""

import gc

import pytest
import torch

library = torch.library.Library("mlirfuse_test_experts", "FRAGMENT")


def grouped(x, weight, offsets):
    out, first = x.new_zeros(len(x), weight.shape[-1]), 0
    for k, last in enumerate(offsets.tolist()):
        out[first:last] = x[first:last] @ weight[k]
        first = last
    return out


def gradients(ctx, grad):
    x, weight, offsets = ctx.saved_tensors
    gx, gw, first = torch.zeros_like(x), torch.zeros_like(weight), 0
    for k, last in enumerate(offsets.tolist()):  # which AOTAutograd cannot trace
        gx[first:last] = grad[first:last] @ weight[k].t()
        gw[k] = x[first:last].t() @ grad[first:last]
        first = last
    return gx, gw, None


library.define("grouped(Tensor x, Tensor weight, Tensor offsets) -> Tensor")
library.impl("grouped", grouped, "CompositeExplicitAutograd")
torch.library.register_fake(
    "mlirfuse_test_experts::grouped", lambda x, w, o: x.new_empty(len(x), w.shape[-1]), lib=library
)
torch.library.register_autograd(
    "mlirfuse_test_experts::grouped", gradients, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    lib=library,
)  # fmt: skip


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.weight = torch.nn.Linear(8, 4), torch.nn.Parameter(torch.randn(4, 8, 8) / 3)

    def forward(self, x):
        scores, chosen = self.router(x).softmax(-1).max(-1)
        order = chosen.argsort()
        counts = torch.nn.functional.one_hot(chosen, 4).sum(0)
        mixed = torch.ops.mlirfuse_test_experts.grouped(x[order], self.weight, offsets=counts.cumsum(0).int())
        return torch.zeros_like(x).index_copy(0, order, mixed) * scores[:, None] + x


@pytest.mark.filterwarnings("error::mlirfuse.core.errors.FallbackWarning")
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_as_in_eager(dynamic):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Experts()
    run = torch.compile(model, backend="mlirfuse", fullgraph=True, dynamic=dynamic)
    for rows in (12, 12, 12, 20):
        x = torch.randn(rows, 8)
        found = []
        for f in (model.double(), model.float(), run):
            y = f(x.to(model.weight.dtype).requires_grad_())
            grads = torch.autograd.grad(y.sigmoid().sum(), list(model.parameters()))
            found.append([y.detach(), *(g.clone() for g in grads)])
        exact, _, ours = found
        for a, b in zip(exact, ours):
            torch.testing.assert_close(b.to(a.dtype), a, rtol=1e-5, atol=1e-5)


def test_gradients_share_no_memory():
    """A backward that returns one tensor for two inputs, what autograd allows: each is written over on its own."""
    library.define("weighed_sum(Tensor x, Tensor y, Tensor weight) -> Tensor")
    library.impl("weighed_sum", lambda x, y, weight: (x + y) * weight, "CompositeExplicitAutograd")
    name = "mlirfuse_test_experts::weighed_sum"
    torch.library.register_fake(name, lambda x, y, weight: torch.empty_like(x), lib=library)

    def backward(ctx, grad):
        weight = ctx.saved_tensors[0].item()
        shared = grad if weight == 1 else grad * weight
        return shared, shared, None

    keep = lambda ctx, inputs, output: ctx.save_for_backward(inputs[2])  # noqa: E731
    torch.library.register_autograd(name, backward, setup_context=keep, lib=library)

    def f(x, y, weight):
        op = torch.ops.mlirfuse_test_experts.weighed_sum
        first = op(x.sin(), y.cos(), weight)
        return op(first, first.exp(), weight).square()

    torch._dynamo.reset()
    run = torch.compile(f, backend="mlirfuse", fullgraph=True)
    for weight in (1, 2, 1, 2):
        given = [torch.randn(6, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        expected, found = (torch.autograd.grad(g(*given, torch.tensor(weight)).sum(), given) for g in (f, run))
        torch.testing.assert_close(found, expected)


def test_ops_that_read_are_not_recorded():
    """A CUDA graph cannot be recorded around what synchronizes."""
    from mlirfuse.frontend.torch.rewrites import opaque_gradients

    op = torch.ops.mlirfuse_test_experts.grouped
    module = torch.fx.GraphModule({}, torch.fx.Graph())
    given = [module.graph.placeholder(name) for name in "xwo"]
    module.graph.output(module.graph.call_function(op.default, tuple(given)))
    assert opaque_gradients.rewrite(module)
    assert opaque_gradients.reads(op.default) and opaque_gradients.reads(torch.ops.mlirfuse.opaque_gradients.default)
    assert not opaque_gradients.reads(torch.ops.aten.mm.default) and not opaque_gradients.reads("x")


def test_other_errors_are_not_hidden():
    """A graph that reads values elsewhere is no reason to rewrite its custom ops, nor is one without any."""
    from mlirfuse.frontend.torch.rewrites import opaque_gradients

    module = torch.fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    assert not opaque_gradients.rewrite(module)


def test_ops_are_not_run_again():
    """The backward computes of the first run's result, here of the numbers that it drew."""
    runs = []

    def noisy(x):
        runs.append(x.shape)
        return x * torch.rand_like(x)

    library.define("noisy(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    library.impl("noisy", noisy, "CompositeExplicitAutograd")
    torch.library.register_fake("mlirfuse_test_experts::noisy", torch.empty_like, lib=library)

    def backward(ctx, grad):
        x, out = ctx.saved_tensors
        return grad * out / x if x.sum().item() else None

    torch.library.register_autograd(
        "mlirfuse_test_experts::noisy",
        backward,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, output),
        lib=library,
    )
    torch._dynamo.reset()
    run = torch.compile(lambda x: torch.ops.mlirfuse_test_experts.noisy(x * 2), backend="mlirfuse", fullgraph=True)
    for _ in range(3):
        x = torch.rand(5, 3).add_(1).t().requires_grad_()
        runs.clear()
        y = run(x)
        (found,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(found, (y / x).detach())
        assert len(runs) == 1


def test_no_cycle_holds_tensors():
    """What a backward has read is freed without a collection."""
    torch._dynamo.reset()
    run = torch.compile(lambda *x: torch.ops.mlirfuse_test_experts.grouped(*x), backend="mlirfuse", fullgraph=True)
    x, weight, offsets = torch.randn(12, 8), torch.randn(4, 8, 6).requires_grad_(), torch.tensor([2, 2, 9, 12])
    held = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            torch.autograd.grad(run(x, weight, offsets).sum(), weight)
            held.append(sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()))
    finally:
        gc.enable()
    assert held[3] == held[1]


def test_results_are_saved_where_the_backward_reads_them():
    from mlirfuse.frontend.torch.rewrites import opaque_gradients

    given = torch.randn(12, 8), torch.randn(4, 8, 6), torch.tensor([2, 2, 9, 12])
    grouped = torch.ops.mlirfuse_test_experts.grouped.default
    assert not opaque_gradients._keeps_result(grouped, given, (True, True, False))
    for kind, keep in (
        ("saved", lambda ctx, inputs, output: ctx.save_for_backward(output)),
        ("detached", lambda ctx, inputs, output: ctx.save_for_backward(output.detach())),
        ("copied", lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], output.clone())),
        ("computed", lambda ctx, inputs, output: setattr(ctx, "kept", output.sum(-1))),
        ("attribute", lambda ctx, inputs, output: setattr(ctx, "kept", (1, [output]))),
        ("hidden", lambda ctx, inputs, output: setattr(ctx, "kept", lambda: output)),
    ):
        library.define(f"{kind}(Tensor x) -> Tensor")
        name = f"mlirfuse_test_experts::{kind}"
        torch.library.register_fake(name, torch.empty_like, lib=library)
        torch.library.register_autograd(name, lambda ctx, grad: grad, setup_context=keep, lib=library)
        assert opaque_gradients._keeps_result(getattr(torch.ops.mlirfuse_test_experts, kind).default, given[:1], [True])


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1)])
def test_gradients_keep_the_order_of_memory(order):
    """A gradient that lies as its tensor does, as ``zeros_like`` makes it, is not copied."""
    torch._dynamo.reset()
    run = torch.compile(lambda *x: torch.ops.mlirfuse_test_experts.grouped(*x), backend="mlirfuse", fullgraph=True)
    back = [order.index(k) for k in range(3)]
    weight = torch.randn([(4, 8, 6)[k] for k in order]).permute(back).requires_grad_()
    x, offsets = torch.randn(12, 8), torch.tensor([2, 2, 9, 12])
    (found,) = torch.autograd.grad(run(x, weight, offsets).sum(), weight)
    (expected,) = torch.autograd.grad(torch.ops.mlirfuse_test_experts.grouped(x, weight, offsets).sum(), weight)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride() == weight.stride()


@pytest.mark.parametrize("needed", [True, False])
def test_a_formula_that_keeps_what_is_needed(needed):
    """The result is saved by what this call's gradients read, which are not all that there are."""
    name = f"mlirfuse_test_experts::scaled_exp{needed:d}"
    library.define(f"scaled_exp{needed:d}(Tensor x, Tensor weight) -> Tensor")
    library.impl(f"scaled_exp{needed:d}", lambda x, weight: (x * weight).exp(), "CompositeExplicitAutograd")
    torch.library.register_fake(name, lambda x, weight: torch.empty_like(x), lib=library)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs, *([] if ctx.needs_input_grad[1] else [output]))

    def backward(ctx, grad):
        x, weight, *out = ctx.saved_tensors
        grad = grad * (out[0] if out else (x * weight).exp()) if weight.sum().item() else grad
        return grad * weight, grad * x

    torch.library.register_autograd(name, backward, setup_context=keep, lib=library)
    op = getattr(torch.ops.mlirfuse_test_experts, f"scaled_exp{needed:d}")
    torch._dynamo.reset()
    run = torch.compile(lambda *given: op(*given), backend="mlirfuse", fullgraph=True)
    x, weight = torch.randn(6, 4, requires_grad=True), torch.randn(6, 4, requires_grad=needed)
    wanted = [x, weight] if needed else [x]
    expected, found = (torch.autograd.grad(g(x, weight).sum(), wanted) for g in (op, run))
    torch.testing.assert_close(found, expected)
