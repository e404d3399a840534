"""Straight-line parts of a torch graph run by one call of C++, as their steps one by one would."""

import weakref

import pytest
import torch

import mlirfuse
import mlirfuse.torch
from mlirfuse import _native
from mlirfuse.frontend.torch import backend
from mlirfuse.frontend.torch.execution import shims
from mlirfuse.runtime import native_regions

aten = torch.ops.aten
FLOAT32 = 6  # c10::ScalarType


@pytest.fixture
def regions(monkeypatch):
    """All recorders made in a test."""
    made = []
    create = native_regions.Recorder.__init__

    def recording(self, *given):
        made.append(self)
        create(self, *given)

    monkeypatch.setattr(native_regions.Recorder, "__init__", recording)
    torch._dynamo.reset()
    yield made
    torch._dynamo.reset()


def natives(regions):
    found = [r.scope[r.region.name] for r in regions]
    return [f for f in found if type(f) is _native.Region]


class Net(torch.nn.Module):
    """Products with weights as they lie and transposed, norms with running statistics, views of results."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8, bias=False)
        self.norm, self.running = torch.nn.LayerNorm(8), torch.nn.BatchNorm1d(8)

    def forward(self, x):
        q, k, v = self.inner(self.norm(x)).chunk(3, -1)
        mixed = (q @ k.transpose(1, 2)).softmax(-1) @ v
        return self.running(self.outer(mixed).transpose(1, 2)).transpose(1, 2) + x


def steps(model, run, batches):
    """Gradients and results of each batch."""
    out = []
    for x in batches:
        x = x.clone().requires_grad_()
        y = run(x)
        y.square().sum().backward()
        out.append([y.detach(), x.grad, *(p.grad.clone() for p in model.parameters())])
        out[-1] += [b.clone() for b in model.buffers()]
        model.zero_grad()
    return out


def models():
    torch.manual_seed(0)
    eager, ours = Net(), Net()
    ours.load_state_dict(eager.state_dict())
    return eager.double(), ours


def compare(eager, ours, batches):
    run = torch.compile(ours, backend="mlirfuse", dynamic=False)
    expected = steps(eager, eager, [x.double() for x in batches])
    for exact, found in zip(expected, steps(ours, run, batches)):
        for a, b in zip(exact, found):
            torch.testing.assert_close(b.to(a.dtype), a, rtol=3e-5, atol=2e-4)


def test_training_as_in_eager(regions):
    compare(*models(), [torch.randn(4, 5, 8) for _ in range(5)])
    assert len(natives(regions)) >= 2 and all(n.hits == 3 for n in natives(regions))


def test_results_of_earlier_calls_stay(regions):
    _, ours = models()
    run = torch.compile(ours.eval(), backend="mlirfuse")
    with torch.no_grad():
        xs = [torch.randn(4, 5, 8) for _ in range(6)]
        found, expected = [run(x) for x in xs], [ours(x) for x in xs]
    assert natives(regions)
    torch.testing.assert_close(found, expected)


def test_inputs_of_other_layouts(regions):
    """Other strides and alignments are recorded a few times, and then run step by step."""
    _, ours = models()
    run = torch.compile(ours.eval(), backend="mlirfuse", dynamic=True)

    def batch(kind):
        x = torch.randn(4, 5, 8)
        if kind == 1:
            return x.transpose(0, 1).contiguous().transpose(0, 1)
        if kind == 2:
            return torch.randn(4, 5, 16)[..., ::2]
        if kind == 3:
            return torch.randn(4 * 5 * 8 + 1)[1:].view(4, 5, 8)
        return x if kind == 0 else torch.randn(4, 5, 8 * kind)[..., :8]

    with torch.no_grad():
        for kind in (0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6):
            x = batch(kind)
            torch.testing.assert_close(run(x), ours(x))


def test_settings_are_heeded(regions, monkeypatch):
    """A setting that changes kernels makes a program forget the Records that regions hold."""
    _, ours = models()
    programs = []
    monkeypatch.setattr(backend, "observers", [lambda which, lowered, host: programs.append(host)])
    run = torch.compile(ours.eval(), backend="mlirfuse")
    x = torch.randn(4, 5, 8)
    with torch.no_grad():
        expected = ours(x)
        for _ in range(3):
            run(x)
        assert natives(regions)
        before = mlirfuse.config.single_op
        try:
            mlirfuse.config.single_op = not before
            assert not natives(regions)
            torch.testing.assert_close(run(x), expected)
        finally:
            mlirfuse.config.single_op = before


def test_several_threads(regions):
    import threading

    _, ours = models()
    run = torch.compile(ours.eval(), backend="mlirfuse")
    xs = [torch.randn(4, 5, 8) for _ in range(4)]
    with torch.no_grad():
        expected = [ours(x) for x in xs]
        run(xs[0])
    found = [None] * 4

    def work(k):
        with torch.no_grad():
            for _ in range(50):
                found[k] = run(xs[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(found, expected)


def test_profiles_see_each_step(regions):
    """A watched program runs step by step."""
    seen = []
    backend.observers.append(lambda which, lowered, host: host.watch(Watch(seen)))
    try:
        _, ours = models()
        run = torch.compile(ours.eval(), backend="mlirfuse")
        with torch.no_grad():
            for _ in range(3):
                run(torch.randn(4, 5, 8))
    finally:
        backend.observers.clear()
    assert not regions and len(seen) % 3 == 0 and seen


class Watch:
    def __init__(self, seen):
        self.seen = seen

    def before(self, place):
        self.seen.append(place)

    def after(self, place):
        pass


# ---- the native type


def region(steps, inputs, outputs, handles, registers, fallback=lambda given: "fallback"):
    shim = shims.of("cpu")
    return _native.Region(
        shim.addresses, False, 0, _native.layouts(inputs), handles, registers, tuple(steps), outputs, fallback,
        shim.out_of_memory(inputs[0].device),
    )  # fmt: skip


def product(name, args, to, shape):
    strides = [1] * len(shape)
    for k in range(len(shape) - 2, -1, -1):
        strides[k] = strides[k + 1] * shape[k + 1]
    function = getattr(torch, name.removesuffix("_out"))
    address = shims.of("cpu")._products[name]
    return "product", address, args, to, (shape, tuple(strides), FLOAT32), function


def test_products_and_views():
    a, b, c = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    transposed = ("view", 1, 3, ((4, 5), (1, 4), FLOAT32), 0, 0, True)
    row = ("view", 4, 5, ((5,), (1,), FLOAT32), 20, 5, True)
    run = region([transposed, product("addmm_out", [2, 0, 3], 4, (3, 5)), row], [a, b, c], [4, 5, 1], [0, 1, 2], 6)
    for _ in range(2):
        given = [a, b, c]
        whole, second, same = run(given)
        assert given == [] and same is b
        torch.testing.assert_close(whole, torch.addmm(c, a, b.t()))
        assert torch.equal(second, whole[1]) and second.untyped_storage().data_ptr() == whole.data_ptr()
    assert run.hits == 2


def test_other_inputs_go_to_the_fallback():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    run = region([product("mm_out", [0, 1], 2, (3, 5))], [a, b], [2], [0, 1], 3)
    others = [a.double(), torch.randn(3, 5), torch.randn(4, 3).t(), torch.nn.Parameter(a), 1.0, None]
    for other in others:
        assert run([other, b]) == "fallback"
    assert run([a]) == "fallback" and run.hits == 0


def test_inputs_are_freed_where_a_step_says():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    wrong = product("mm_out", [2, 0], 3, (3, 4))  # fails: the inputs before it are gone
    run = region([product("mm_out", [0, 1], 2, (3, 5)), ("free", [1]), wrong], [a, b], [3], [0, 1], 4)
    given, ref = [a, b], weakref.ref(b)
    del b
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run(given)
    assert given[1] is None and ref() is None and given[0] is a


def test_memory_that_is_not_there():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    run = region([product("mm_out", [0, 1], 2, (1 << 40, 1 << 20))], [a, b], [2], [0, 1], 3)
    with pytest.raises(RuntimeError, match="alloc|memory|overflow"):
        run([a, b])


@pytest.mark.parametrize("steps", [[("jump", 1)], [("free", [7])], [("view", 0, 9, ((1,), (1,), 6), 0, 0, True)]])
def test_steps_that_do_not_exist(steps):
    with pytest.raises((ValueError, IndexError)):
        region(steps, [torch.randn(3, 4)], [0], [0], 2)


def test_gradients_that_are_zeros_without_memory(regions):
    def mixed(x, w):
        return torch.tanh(torch.sin(x @ w) @ w.T) * 2

    compiled = torch.compile(mixed, backend="mlirfuse")
    x, w = torch.randn(8, 16, requires_grad=True), torch.randn(16, 16)
    for k in range(5):
        y = compiled(x, w)
        incoming = torch.ones_like(y) if k == 3 else torch._efficientzerotensor(y.shape)
        (ours,) = torch.autograd.grad(y, x, incoming)
        (eagers,) = torch.autograd.grad(mixed(x, w), x, incoming)
        torch.testing.assert_close(ours, eagers)
    assert natives(regions)


def test_layouts_are_of_tensors_with_memory():
    assert _native.layouts([torch.ones(3)]) is not None
    assert _native.layouts([torch.ones(3), torch._efficientzerotensor((3,))]) is None
