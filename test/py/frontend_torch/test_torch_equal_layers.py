"""Equal layers of a model are traced once, and what is compiled is what it would be if each were traced."""

import copy
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F

from mlirfuse.frontend.torch import backend
from mlirfuse.frontend.torch.rewrites import equal_layers

WIDTH = 16
_traced = Counter()
_library = torch.library.Library("mlirfuse_test_equal_layers", "DEF")
_library.define("counted(Tensor x) -> Tensor")
_library.impl("counted", lambda x: x.clone(), "CompositeExplicitAutograd")


@torch.library.register_fake("mlirfuse_test_equal_layers::counted", lib=_library)
def _counted(x):
    _traced["layers"] += 1
    return torch.empty_like(x)


torch.library.register_autograd(
    "mlirfuse_test_equal_layers::counted",
    lambda ctx, grad: grad,
    setup_context=lambda ctx, inputs, output: None,
    lib=_library,
)


class Block(torch.nn.Module):
    """A residual block of more than ten ops."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, x):
        y = self.norm(x)
        y = y * torch.sigmoid(y) + torch.tanh(y)
        y = F.gelu(self.up(y))
        y = torch.ops.mlirfuse_test_equal_layers.counted(y)
        y = F.dropout(self.down(y) * 0.5, self.dropout, self.training)
        return (x + y) * 0.9


class Stack(torch.nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = torch.nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def joint_graphs(monkeypatch):
    """The joint graphs after the layers' ops are back."""
    seen = []
    partition = backend.partition

    def watched(joint, *args, **kwargs):
        equal_layers.inline_layers(joint)
        seen.append(joint)
        return partition(joint, *args, **kwargs)

    monkeypatch.setattr(backend, "partition", watched)
    return seen


def ops(module):
    return Counter(
        str(n.target) for n in module.graph.nodes if n.op == "call_function" and "detach" not in str(n.target)
    )


def whole(monkeypatch):
    monkeypatch.setattr(equal_layers, "_with_calls", lambda *_: None)


def calls_of(monkeypatch):
    """How many calls of layers each of Dynamo's graphs gets; a graph that is tried again counts again."""
    found = []
    with_calls = equal_layers._with_calls

    def watched(*args):
        graph = with_calls(*args)
        found.append(0 if graph is None else sum(n.target is equal_layers.LAYER for n in graph.nodes))
        return graph

    monkeypatch.setattr(equal_layers, "_with_calls", watched)
    return found


def trained(model, x, **options):
    """Result and gradients, by name, of one step; "x": the input's."""
    torch._dynamo.reset()
    x = x.clone().requires_grad_()
    result = torch.compile(model, backend="mlirfuse", **options)(x)
    (result.double() ** 2).sum().backward()
    return result, {"x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}


def agrees(model, x):
    """A compiled step beside one in float64, within a float32's rounding of some hundred ops."""
    result, gradients = trained(model, x)
    exact = copy.deepcopy(model).double()
    for p in exact.parameters():
        p.grad = None
    wide = x.double().requires_grad_()
    expected = exact(wide)
    (expected**2).sum().backward()
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-5)
    for name, p in [("x", wide), *exact.named_parameters()]:
        if p.grad is None:
            assert gradients[name] is None or not gradients[name].any()
        else:
            torch.testing.assert_close(gradients[name].double(), p.grad, rtol=1e-3, atol=1e-4)


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(8, WIDTH)


def test_a_layer_is_traced_as_often_in_six_as_in_two(x):
    traced = []
    for count in (2, 6):
        torch._dynamo.reset()
        model = Stack(Block() for _ in range(count))
        _traced.clear()
        torch.compile(model, backend=lambda m, i: m.forward)(x)
        by_dynamo = _traced["layers"]
        _traced.clear()
        trained(model, x)
        traced.append(_traced["layers"] - by_dynamo)
    assert 0 < traced[0] == traced[1]


def test_the_graph_is_the_one_of_a_whole_trace(x, monkeypatch):
    seen, found = joint_graphs(monkeypatch), calls_of(monkeypatch)
    model = Stack(Block(0.1) for _ in range(4))
    trained(model, x)
    whole(monkeypatch)
    trained(model, x)
    assert found == [4]
    assert ops(seen[0]) == ops(seen[1])
    assert equal_layers.LAYER not in {n.target for n in seen[0].graph.nodes}


def test_results_and_gradients(x, monkeypatch):
    found = calls_of(monkeypatch)
    agrees(Stack(Block() for _ in range(5)), x)
    assert found == [5]


def test_layers_of_layers(x, monkeypatch):
    """The stages are of other lengths; the blocks in them are equal."""
    found = calls_of(monkeypatch)
    agrees(Stack([Stack(Block() for _ in range(2)), Stack(Block() for _ in range(3))]), x)
    assert found == [5]


def test_layers_with_other_constants_are_not_equal(x, monkeypatch):
    found = calls_of(monkeypatch)
    model = Stack(Block() for _ in range(3))
    for k, block in enumerate(model.blocks):
        block.norm.eps = 1e-5 * 10**k
    agrees(model, x)
    assert found == [0]


def test_each_layer_drops_other_elements(monkeypatch):
    found = calls_of(monkeypatch)

    class Dropped(Block):
        def forward(self, x):
            kept = F.dropout(torch.ones_like(x), 0.5, True)
            return x + super().forward(x) * 0, kept

    class Masks(Stack):
        def forward(self, x):
            kept = []
            for block in self.blocks:
                x, mask = block(x)
                kept.append(mask)
            return x, torch.stack(kept)

    torch._dynamo.reset()
    _, masks = torch.compile(Masks(Dropped() for _ in range(3)), backend="mlirfuse")(
        torch.randn(64, WIDTH, requires_grad=True)
    )
    assert found == [3]
    assert all(0.4 < (mask == 0).float().mean() < 0.6 for mask in masks)
    assert all(0.3 < ((masks[a] == 0) == (masks[b] == 0)).float().mean() < 0.7 for a, b in ((0, 1), (1, 2), (0, 2)))


def test_buffers_that_a_layer_writes(x):
    class Normed(Block):
        def __init__(self):
            super().__init__()
            self.batch = torch.nn.BatchNorm1d(WIDTH)

        def forward(self, x):
            return self.batch(super().forward(x))

    model = Stack(Normed() for _ in range(3))
    eager = copy.deepcopy(model)
    torch._dynamo.reset()
    result = torch.compile(model, backend="mlirfuse")(x)
    torch.testing.assert_close(result, eager(x), rtol=1e-4, atol=1e-5)
    for ours, expected in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_a_write_into_a_view_of_what_is_given(x, monkeypatch):
    """Only the trace of the layer shows it; the graph is traced whole then."""
    found = calls_of(monkeypatch)

    class Writing(Block):
        def forward(self, x, total):
            y = super().forward(x)
            part = total[0]
            part += y.sum(0)
            return y

    class Model(Stack):
        def forward(self, x):
            total = torch.zeros(2, WIDTH)
            for block in self.blocks:
                x = block(x, total)
            return x + total[0]

    agrees(Model(Writing() for _ in range(3)), x)
    assert found == [3, 0]


def test_results_that_nobody_differentiates(x, monkeypatch, recwarn):
    """The layer by itself would have their gradients, the whole graph has none."""
    found = calls_of(monkeypatch)

    class Two(Block):
        def forward(self, x):
            y = super().forward(x)
            return y, y.exp()

    class Model(Stack):
        def forward(self, x):
            scale = 0
            for block in self.blocks:
                x, other = block(x)
                scale = scale + other.detach().mean()
            return x * scale

    agrees(Model(Two() for _ in range(3)), x)
    assert found == [3, 0]
    assert not [w for w in recwarn if "Error detected" in str(w.message)]


def test_parameters_without_gradients(x, monkeypatch):
    """Frozen in each layer, and used only where nothing is differentiated."""
    found = calls_of(monkeypatch)

    class Frozen(Block):
        def __init__(self):
            super().__init__()
            self.up.weight.requires_grad_(False)
            self.scale = torch.nn.Parameter(torch.ones(WIDTH))

        def forward(self, x):
            return super().forward(x) * self.scale.detach()

    agrees(Stack(Frozen() for _ in range(3)), x)
    assert found == [3]


def test_a_result_that_is_a_view_of_what_is_given(x):
    class Viewing(Block):
        def forward(self, x):
            return super().forward(x), x[::2]

    class Model(Stack):
        def forward(self, x):
            views = []
            for block in self.blocks:
                x, view = block(x)
                views.append(view)
            return x + sum(view.sum() for view in views)

    agrees(Model(Viewing() for _ in range(3)), x)


def test_gradients_that_lie_otherwise_than_results(x, monkeypatch):
    """A transposed product leaves the last layer a gradient with its axes changed, an expanded one strides of 0."""
    found = calls_of(monkeypatch)

    class Model(Stack):
        def __init__(self, blocks):
            super().__init__(blocks)
            self.left = torch.nn.Parameter(torch.randn(4, WIDTH))

        def forward(self, x):
            x = super().forward(x)
            return (self.left @ x.t()).sum(1) + x.mean()

    agrees(Model(Block() for _ in range(3)), x)
    assert found == [3]


def test_without_gradients(x, monkeypatch):
    found = calls_of(monkeypatch)
    model = Stack(Block() for _ in range(3)).eval()
    torch._dynamo.reset()
    with torch.no_grad():
        ours = torch.compile(model, backend="mlirfuse")(x)
        torch.testing.assert_close(ours.double(), copy.deepcopy(model).double()(x.double()), rtol=1e-4, atol=1e-5)
    assert found == [3]


def test_sizes_that_change(x):
    model = Stack(Block() for _ in range(3))
    torch._dynamo.reset()
    run = torch.compile(model, backend="mlirfuse")
    for rows in (8, 5, 3):
        given = torch.randn(rows, WIDTH)
        torch.testing.assert_close(
            run(given).double(), copy.deepcopy(model).double()(given.double()), rtol=1e-4, atol=1e-5
        )


def test_autocast(x, monkeypatch):
    seen = joint_graphs(monkeypatch)
    model = Stack(Block() for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        trained(model, x)
        whole(monkeypatch)
        trained(model, x)
    assert ops(seen[0]) == ops(seen[1])
    assert any("_to_copy" in name for name in ops(seen[0]))


def test_a_state_that_changes_within_the_graph(x, monkeypatch):
    """Autocast and gradients around some of the layers: the others are equal, after them too."""
    found = calls_of(monkeypatch)

    class Half(Stack):
        def forward(self, x):
            for k, block in enumerate(self.blocks):
                with torch.autocast("cpu", torch.bfloat16, enabled=k == 1):
                    x = block(x)
            with torch.no_grad():
                scale = self.blocks[0](x).mean()
            for block in self.blocks:
                x = block(x)
            return x * scale

    model = Half(Block() for _ in range(3))
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, backend="mlirfuse")(x), model(x), rtol=2e-2, atol=2e-2)
    assert found == [3]


def test_results_that_are_not_contiguous(x, monkeypatch, recwarn):
    """Their gradients come in other strides than the layer's backward was traced with."""
    found = calls_of(monkeypatch)

    class Turned(Block):
        def forward(self, x):
            y = super().forward(x)
            return y, (y.reshape(-1, 4, WIDTH // 4) * 2).permute(2, 0, 1)

    class Model(Stack):
        def forward(self, x):
            total = 0
            for block in self.blocks:
                x, turned = block(x)
                total = total + turned.permute(1, 2, 0).reshape(-1, WIDTH)
            return x + total

    agrees(Model(Turned() for _ in range(3)), x)
    assert found == [3]
    assert not [w for w in recwarn if "Error detected" in str(w.message)]
