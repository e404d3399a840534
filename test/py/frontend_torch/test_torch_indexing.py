"""Reads and sums by index tensors as kernels, forward and backward, against eager in float64; routers of mixtures of
experts, whose weights, rows and counts these are."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import mlirfuse.torch  # noqa: F401 known to torch without an installation, too
from mlirfuse.frontend.torch import backend

X = (16, 5, 7)
ROWS, COLUMNS = torch.tensor([3, -1, 0, 3, 15, -16, 7]), torch.tensor([0, -5, 4, 4, 2, -1, 3])
TABLE = torch.tensor([[3, 3, 1, 0], [2, 15, 3, -7], [0, 0, 0, 9]])
READS = {
    "rows": lambda x: x[ROWS],
    "rows of a table": lambda x: x[TABLE],
    "int32": lambda x: x[TABLE.int()],
    "columns": lambda x: x[:, COLUMNS],
    "two": lambda x: x[ROWS, COLUMNS],
    "three": lambda x: x[ROWS, COLUMNS, COLUMNS + 2],
    "crossed": lambda x: x[ROWS[:, None], COLUMNS[None]],
    "broadcast": lambda x: x[ROWS[:4].reshape(2, 2, 1), COLUMNS[:3]],
    "the last two": lambda x: x[:, COLUMNS, COLUMNS],
    "transposed": lambda x: x.transpose(0, 1)[COLUMNS],
    "permuted, two": lambda x: x.permute(2, 0, 1)[:, ROWS, COLUMNS],
    "selected": lambda x: x.index_select(0, ROWS % 16),
    "selected columns": lambda x: x.index_select(1, COLUMNS % 5),
}


@pytest.fixture
def graphs():
    torch._dynamo.reset()
    found = {}

    def observer(which, lowered, host):
        found[which] = [name for name, _, _ in lowered.outside]

    backend.observers.append(observer)
    yield found
    backend.observers.remove(observer)


def gradient(fn, x, weights=None):
    """A result with its strides, and its gradient by random weights."""
    x = x.clone().requires_grad_()
    out = fn(x)
    torch.manual_seed(1)
    out.backward(torch.randn(out.shape, dtype=torch.float64).to(out.dtype))
    return out.detach(), x.grad


def close(found, wanted):
    assert (found.double() - wanted).abs().max() <= 1e-6 * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("read", READS)
def test_elements_by_index_tensors(read, graphs):
    fn = READS[read]
    x = torch.linspace(-3, 3, 16 * 5 * 7, dtype=torch.float64).reshape(X)
    wanted = gradient(lambda x: fn(x).sin(), x)
    found = gradient(torch.compile(lambda x: fn(x).sin(), backend="mlirfuse"), x.float())
    assert found[0].stride() == gradient(lambda x: fn(x).sin(), x.float())[0].stride()
    close(found[0], wanted[0])
    close(found[1], wanted[1])
    assert graphs == {"forward": [], "backward": []}


def test_indices_with_slices_between_run_as_torchs(graphs):
    x = torch.randn(X)
    found = torch.compile(lambda x: x[ROWS, :, COLUMNS] + 1, backend="mlirfuse")(x)
    torch.testing.assert_close(found, x[ROWS, :, COLUMNS] + 1)
    assert graphs["inference"] == ["aten.index.Tensor"]


@pytest.mark.parametrize(
    ("index", "message"),
    [((torch.tensor([3, 16]),), "index 16 is out of bounds"), ((torch.tensor([0]), torch.tensor([-6])), "index -6")],
    ids=["above", "below"],
)
def test_bad_indices_raise(index, message):
    torch._dynamo.reset()
    with pytest.raises(IndexError, match=message):
        torch.compile(lambda x: x[index] * 2, backend="mlirfuse")(torch.zeros(X))


def test_a_mask_runs_as_eager():
    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 12)
    found = torch.compile(lambda x: x[x > 0] * 2, backend="mlirfuse")(x)
    torch.testing.assert_close(found, x[x > 0] * 2)


@pytest.mark.parametrize("dim", [0, 1])
def test_scattered_values_of_each_row(dim, graphs):
    """Of equal indices the last value stays, as in eager on the CPU."""
    index = torch.tensor([[1, 4, 1], [0, 0, 2]])
    index, shape = (index, (2, 6)) if dim else (index.T.contiguous(), (6, 2))
    x, source = torch.randn(shape), torch.randn(index.shape)
    fn = lambda x, source: (x * 2).scatter(dim, index, source).sin()  # noqa: E731
    torch.testing.assert_close(torch.compile(fn, backend="mlirfuse")(x, source), fn(x, source))
    assert graphs["inference"] == []


@pytest.mark.parametrize("rows", [3, 4, 7])
@pytest.mark.parametrize("columns", [5, 21])
def test_rows_share_the_indices_of_a_gather(rows, columns):
    """Four at a time, the last ones again where fewer are left; a result that overwrites the argument, too."""
    x = torch.arange(2.0 * rows * 17).reshape(2, rows, 17)
    at = lambda: torch.arange(columns) * 5 // 2 % 17  # noqa: E731
    for fn in (lambda x: x[..., at()] * 2, lambda x: x.mul_(x[..., at()[torch.arange(17) % columns]])):
        given, wanted = x.clone(), x.clone()
        assert torch.equal(torch.compile(fn, backend="mlirfuse", dynamic=False)(given), fn(wanted))
        assert torch.equal(given, wanted)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_parts_are_gathered_and_their_gradients_added(dim, graphs):
    """Indices for some of the other dimensions' elements, several of them equal."""
    shape = [8 if d == dim else n - 2 for d, n in enumerate(X)]
    index = torch.randint(0, X[dim], shape, generator=torch.Generator().manual_seed(2))
    x = torch.linspace(-3, 3, 16 * 5 * 7, dtype=torch.float64).reshape(X)
    fn = lambda x: torch.gather(x, dim, index).sin()  # noqa: E731
    wanted, found = gradient(fn, x), gradient(torch.compile(fn, backend="mlirfuse"), x.float())
    close(found[0], wanted[0])
    close(found[1], wanted[1])
    assert graphs == {"forward": [], "backward": []}


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("repeated", [False, True])
def test_values_are_added_along_a_dimension(dim, repeated, graphs):
    """Each value has its own index, or all of a slice one; a source has more values than are added."""
    shape = [40 if d == dim else n for d, n in enumerate(X)]
    own = [40 if d == dim else 1 if repeated else n for d, n in enumerate(X)]
    index = torch.randint(0, X[dim], own, generator=torch.Generator().manual_seed(2)).expand(shape)
    x, source = torch.linspace(-3, 3, 16 * 5 * 7).reshape(X), torch.linspace(-1, 1, 50 * 16 * 7).reshape(-1)
    source = source[: index.numel() // 40 * 41].reshape([41 if d == dim else n for d, n in enumerate(X)])

    def fn(x, index, source):
        return (x * 2).scatter_add(dim, index, source), x.index_add(dim, index.flatten()[:41] % X[dim], source, alpha=2)

    found = torch.compile(fn, backend="mlirfuse")(x, index, source)
    for one, wanted in zip(found, fn(x.double(), index, source.double())):
        close(one, wanted)
    assert graphs["inference"] == []


BAGS = {
    "sum": {"mode": "sum"},
    "mean": {"mode": "mean"},
    "max": {"mode": "max"},
    "sum, padding": {"mode": "sum", "padding_idx": 2},
    "mean, padding": {"mode": "mean", "padding_idx": -3},
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("how", BAGS)
def test_bags_of_rows(how, scaled, graphs):
    """The third bag has padding alone."""
    if scaled and BAGS[how]["mode"] != "sum":
        pytest.skip("torch scales sums alone")
    index = torch.randint(0, 9, (7, 6), generator=torch.Generator().manual_seed(3))
    index[2] = BAGS[how].get("padding_idx", 4) % 9
    scales = torch.linspace(0.5, 2, 42, dtype=torch.float64).reshape(7, 6) if scaled else None

    def fn(w):
        weights = None if scales is None else scales.to(w.dtype)
        return torch.nn.functional.embedding_bag(index, w, per_sample_weights=weights, **BAGS[how])

    w = torch.linspace(-2, 3, 9 * 5, dtype=torch.float64).sin().reshape(9, 5)
    wanted, found = gradient(fn, w), gradient(torch.compile(fn, backend="mlirfuse"), w.float())
    close(found[0], wanted[0])
    close(found[1], wanted[1])
    assert graphs == {"forward": [], "backward": []}


@pytest.mark.parametrize(
    "how",
    [{"offsets": torch.tensor([0, 3, 3])}, {"mode": "max", "padding_idx": 2}, {"scale_grad_by_freq": True}],
    ids=["of various sizes", "maxima without padding", "by frequency"],
)
def test_other_bags_run_as_torchs(how):
    index = torch.tensor([3, 1, 2, 2, 8, 2]) if "offsets" in how else torch.tensor([[3, 1, 2], [2, 2, 8]])
    fn = lambda w: torch.nn.functional.embedding_bag(index, w, **how) * 2  # noqa: E731
    w = torch.linspace(-2, 3, 9 * 5).sin().reshape(9, 5)
    wanted, found = gradient(fn, w), gradient(torch.compile(fn, backend="mlirfuse"), w)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("bins", "low", "high"), [(8, 0, 7), (8, 0, 8), (5, -3, 9), (16, 2, 5)])
def test_counts_of_integers(bins, low, high, graphs):
    numbers = torch.arange(-5, 12).repeat_interleave(torch.arange(17) % 4)
    fn = lambda n: torch.histc(n.float(), bins=bins, min=low, max=high).cumsum(0)  # noqa: E731
    torch.testing.assert_close(torch.compile(fn, backend="mlirfuse")(numbers), fn(numbers), rtol=0, atol=0)
    assert graphs["inference"] == []


def routed(x, router, up, down, top=2):
    """A mixture of experts: words sorted by expert, weighted, and added up for each word."""
    weights, experts = torch.topk(torch.softmax(x @ router, -1), top, dim=-1)
    weights = (weights / weights.sum(-1, keepdim=True)).reshape(-1)
    sorted_experts, order = torch.sort(experts.reshape(-1), stable=True)
    counts = torch.histc(sorted_experts.float(), bins=len(up), min=0, max=len(up) - 1)
    rows = torch.nn.functional.silu(torch.bmm(x[order // top][:, None], up[sorted_experts]))
    rows = torch.bmm(rows, down[sorted_experts])[:, 0] * weights[order, None]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return rows[back].view(len(x), top, -1).sum(1) + counts.sum()


def test_a_mixture_of_experts(graphs):
    torch.manual_seed(0)
    given = [torch.randn(shape, dtype=torch.float64) for shape in ((12, 6), (6, 4), (4, 6, 5), (4, 5, 6))]
    results = []
    for fn, arguments in (
        (routed, given),
        (torch.compile(routed, backend="mlirfuse", fullgraph=True), [x.float() for x in given]),
    ):
        leaves = [x.clone().requires_grad_() for x in arguments]
        out = fn(*leaves)
        out.square().sum().backward()
        results.append([out.detach(), *(x.grad for x in leaves)])
    for wanted, found in zip(*results):
        assert (found.double() - wanted).norm() <= 1e-5 * wanted.norm()
    assert not {"aten.index.Tensor", "aten.histc.default", "aten.scatter.src"} & set(
        graphs["forward"] + graphs["backward"]
    )


def test_bools_are_added_as_by_eager():
    def fn(x, index, values):
        return x.index_put((index, index), values, accumulate=True), x.index_add(0, index, values.expand(3, 4))

    torch._dynamo.reset()
    args = torch.zeros(4, 4, dtype=torch.bool), torch.tensor([1, 1, 2]), torch.tensor(True)
    run = torch.compile(fn, backend="mlirfuse")
    assert all(torch.equal(a, b) for a, b in zip(run(*args), fn(*args)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_histogram_counts_rounded_integers(dtype):
    def fn(x):
        return torch.histc(x.to(dtype), 1000, 0, 4095)

    torch._dynamo.reset()
    x = torch.arange(0, 4095, 7)
    assert torch.equal(torch.compile(fn, backend="mlirfuse")(x), fn(x))
