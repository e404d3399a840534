"""Attention with masks that values decide: the blocks that the device computes, values and gradients of all rows beside
float64, and which masks go to the kernel that skips blocks. On a CPU the ops run without a template; the graphs that a
GPU compiles run by torch's own implementation of flex attention."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

import mlirfuse.torch
from mlirfuse.frontend.torch.attention import attention_calls, masked_attention

WIDTH, HEADS, SHARED = 16, 4, 2
TAKES = "flex attention's kernel, which skips blocks"


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Rewrites attention on the CPU as on a GPU."""

    def unsupported(node):
        return None if attention_calls.example(node).dim() == 4 else "takes tensors of 4 dimensions"

    monkeypatch.setattr(attention_calls, "_unsupported", unsupported)
    monkeypatch.setattr(attention_calls, "has_triton", lambda: True)
    monkeypatch.setattr(attention_calls, "takes_windows", lambda node: False)
    monkeypatch.setattr(attention_calls, "_FEWEST_KEYS", 1)


def operands(queries=150, keys=150, dtype=torch.float32, batches=2):
    shapes = (queries, HEADS), (keys, SHARED), (keys, SHARED)
    made = [torch.randn(batches, n, heads, WIDTH, dtype=dtype).transpose(1, 2) for n, heads in shapes]
    return [x.requires_grad_() for x in made]


def exact(q, k, v, mask, scale=WIDTH**-0.5):
    """Result and gradients in float64; a query that sees no key gives 0."""
    given = [x.detach().double().requires_grad_() for x in (q, k, v)]
    key, value = (x.repeat_interleave(HEADS // SHARED, 1) for x in given[1:])
    sees = mask.any(-1, keepdim=True)
    scores = (scale * given[0] @ key.mT).masked_fill(~mask & sees, -torch.inf)
    found = (scores.softmax(-1) * sees) @ value
    return found, torch.autograd.grad(found, given, torch.ones_like(found))


def check(found, given, mask):
    """Results and gradients of float32: 24 units in the last place of sums of up to 150 terms."""
    wanted, gradients = exact(*given, mask)
    torch.testing.assert_close(found.double(), wanted, rtol=3e-6, atol=3e-6)
    for got, want in zip(torch.autograd.grad(found, given, torch.ones_like(found)), gradients):
        torch.testing.assert_close(got.double(), want, rtol=3e-6, atol=3e-5)


def attend(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def indices(q, k):
    batch = torch.arange(q.shape[0])[:, None, None, None]
    return batch, torch.arange(q.shape[2])[None, None, :, None], torch.arange(k.shape[2])[None, None, None, :]


def padded(b, i, j, kept):
    return (j <= i) & kept[b, j]


def packed(b, i, j, documents):
    return (j <= i) & (documents[b, i] == documents[b, j])


def packed_by_positions(b, i, j, positions):
    """As transformers does: positions that do not follow their neighbour begin a document."""
    documents = (torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    return (positions[b, j] <= positions[b, i]) & (documents[b, i] == documents[b, j])


LENGTHS = torch.tensor([[60], [150]])
RIGHT = torch.arange(150)[None] < LENGTHS
DOCUMENTS = torch.arange(150)[None] // torch.tensor([[40], [7]])
# Masks, what they are said to be, and their values.
MASKS = {
    "padded": (padded, "causal and padding given by values", RIGHT),
    "padded on the left": (padded, "causal and padding given by values", RIGHT.flip(1)),
    "nothing kept": (padded, "causal and padding given by values", torch.zeros_like(RIGHT)),
    "keys": (lambda b, i, j, kept: kept[b, j], "padding given by values", RIGHT),
    "documents": (packed, "causal and documents given by values", DOCUMENTS),
    "documents that come back": (packed, "causal and documents given by values", DOCUMENTS % 2),
    "positions": (packed_by_positions, "an order of positions given by values", torch.arange(150)[None] % LENGTHS),
    "window and padding": (
        lambda b, i, j, kept: (j <= i) & (j > i - 30) & kept[b, j],
        "causal and a window of 30 and padding given by values",
        RIGHT,
    ),
    "prefix": (lambda b, i, j, first: (j <= i) | (j < first[b]), "a choice of masks", torch.tensor([40, 3])),
    "chunks": (lambda b, i, j, _: (j <= i) & (i // 32 == j // 32), "causal and a pattern of indices", RIGHT),
    "-inf": (
        lambda b, i, j, kept: torch.where(padded(b, i, j, kept), 0.0, -torch.inf),
        "rows that may hide every key",
        RIGHT.flip(1),
    ),
}


@pytest.mark.parametrize("shown, what, values", MASKS.values(), ids=MASKS)
def test_values_and_gradients_of_all_rows(as_on_a_gpu, shown, what, values):
    def fn(q, k, v, values):
        return attend(q, k, v, shown(*indices(q, k), values))

    given = operands()
    explained = str(mlirfuse.torch.explain(fn, *given, values))
    assert what in explained and TAKES in explained and "masked_attention" in explained
    found = torch.compile(fn, backend="mlirfuse", options={"fallback": False})(*given, values)
    mask = shown(*indices(*given[:2]), values)
    check(found, given, (mask if mask.dtype is torch.bool else mask == 0).expand(2, 1, 150, 150))


@pytest.mark.parametrize("name", ["padded", "positions"])
def test_symbolic_sizes(as_on_a_gpu, name):
    shown, _, values = MASKS[name]

    def fn(q, k, v, values):
        return attend(q, k, v, shown(*indices(q, k), values))

    run = torch.compile(fn, backend="mlirfuse", options={"fallback": False})
    for length in (150, 140, 256):  # more than one block each
        values = torch.nn.functional.pad(values, (0, max(0, length - values.shape[1])))
        given = operands(length, length)
        for x in given:
            torch._dynamo.mark_dynamic(x, 2)
        kept = values[:, :length].clone()
        torch._dynamo.mark_dynamic(kept, 1)
        with torch.compiler.set_stance("default" if length == 150 else "fail_on_recompile"):
            found = run(*given, kept)
        check(found, given, shown(*indices(*given[:2]), kept).expand(2, 1, length, length))


def test_new_values_need_no_other_code(as_on_a_gpu):
    run = torch.compile(lambda q, k, v, kept: attend(q, k, v, padded(*indices(q, k), kept)), backend="mlirfuse")
    run(*operands(), RIGHT)
    with torch.compiler.set_stance("fail_on_recompile"):
        given = operands()
        found = run(*given, RIGHT.flip(0).flip(1))
    check(found, given, padded(*indices(*given[:2]), RIGHT.flip(0).flip(1)))


def test_autocast_decides_the_type(as_on_a_gpu):
    """Rotary embeddings give float32 queries and keys under autocast, which converts them in attention alone."""

    def fn(q, k, v, kept):
        with torch.autocast("cpu", torch.bfloat16):
            return attend(q * 1.0, k * 1.0, v.bfloat16(), padded(*indices(q, k), kept))

    given = operands()
    found = torch.compile(fn, backend="mlirfuse", options={"fallback": False})(*given, RIGHT)
    assert found.dtype is torch.bfloat16
    wanted, gradients = exact(*(x.bfloat16() for x in given), padded(*indices(*given[:2]), RIGHT))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-2, atol=1e-2)
    for got, want, x in zip(torch.autograd.grad(found, given, torch.ones_like(found)), gradients, given):
        assert got.dtype is x.dtype
        assert (got - want).norm() <= 2**-6 * want.norm()


TRANSFORMS = {
    "vmap": lambda f, q, k, v, kept: torch.vmap(f, (0, 0, 0, None))(
        *(torch.stack([x, 2 * x]) for x in (q, k, v)), kept
    ),
    "grad": lambda f, q, k, v, kept: torch.func.grad(lambda q: f(q, k, v, kept).square().sum())(q),
    "vjp": lambda f, q, k, v, kept: torch.func.vjp(lambda q, k: f(q, k, v, kept), q, k)[1](torch.ones_like(q)),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("window", [None, 30])
def test_transforms_of_functions_keep_the_mask(as_on_a_gpu, monkeypatch, transform, window):
    """The kernels that take the mask's blocks, or a window, have no batching rules; others do as before."""
    monkeypatch.setattr(attention_calls, "takes_windows", lambda node: window is not None)

    def attends(q, k, v, kept):
        b, i, j = (torch.arange(n) for n in (q.shape[0], q.shape[2], k.shape[2]))
        i, j = i[:, None], j[None]
        mask = (j <= i) & (j > i - window) if window else padded(b[:, None, None, None], i, j, kept)
        return attend(q, k, v, mask)

    given = [x.detach() for x in (*operands(), RIGHT)]
    fn = lambda *args: transform(attends, *args)  # noqa: E731
    explained = str(mlirfuse.torch.explain(fn, *given))
    assert "a transform of torch.func computes attention" in explained
    assert "mlirfuse.masked_attention" not in explained
    found = torch.compile(fn, backend="mlirfuse", options={"fallback": False})(*given)
    torch.testing.assert_close(found, fn(*given), rtol=1e-5, atol=1e-5)


def test_checkpoints_and_more_than_one_attention(as_on_a_gpu):
    def fn(q, k, v, kept):
        mask = padded(*indices(q, k), kept)
        inner = lambda q, k, v, mask: attend(q, k, v, mask)  # noqa: E731
        first = torch.utils.checkpoint.checkpoint(inner, q, k, v, mask, use_reentrant=False)
        return attend(first + q, k, v, mask)

    given = operands()
    found = torch.compile(fn, backend="mlirfuse", options={"fallback": False})(*given, RIGHT)
    wanted = fn(*given, RIGHT)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    for a, b in zip(*(torch.autograd.grad(x.sum(), given) for x in (found, wanted))):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def another_graphs(mask):
    torch._dynamo.graph_break()
    return mask


@pytest.mark.parametrize(
    "form", [lambda m: m, lambda m: ~~m, lambda m: m[..., :150] & True], ids=["as it is", "not", "part"]
)
def test_boolean_masks_of_another_graph(as_on_a_gpu, form):
    def fn(q, k, v, kept):
        mask = another_graphs(padded(*indices(q, k), kept))
        return attend(q, k, v, form(mask))

    given = operands()
    explained = str(mlirfuse.torch.explain(fn, *given, RIGHT))
    assert "the mask is an input of the graph" in explained and TAKES in explained
    found = torch.compile(fn, backend="mlirfuse", options={"fallback": False})(*given, RIGHT)
    check(found, given, padded(*indices(*given[:2]), RIGHT).expand(2, 1, 150, 150))


LEAST = torch.finfo(torch.float32).min
STAY = {
    "hides by a finite number": (lambda mask: torch.where(mask, 0.0, LEAST), "by a finite number"),
    "adds values": (lambda mask: torch.where(mask, 0.5, -torch.inf), "added values"),
    "another graph's": (
        lambda mask: another_graphs(torch.where(mask, 0.0, -torch.inf)),
        "that the same graph computes",
    ),
    "chosen here and there": (
        lambda mask: mask & (torch.arange(22500).sin().view(150, 150) > 0),
        "that the same graph computes",
    ),
}


@pytest.mark.parametrize("change, why", STAY.values(), ids=STAY)
def test_masks_that_stay_say_why(as_on_a_gpu, change, why):
    def fn(q, k, v, kept):
        mask = padded(*indices(q, k), kept)
        return attend(q, k, v, change(mask))

    given = operands()
    explained = str(mlirfuse.torch.explain(fn, *given, RIGHT))
    assert "stays a tensor" in explained and why in explained and TAKES not in explained
    torch.testing.assert_close(torch.compile(fn, backend="mlirfuse")(*given, RIGHT), fn(*given, RIGHT))


def test_a_cpu_keeps_the_mask():
    def fn(q, k, v, kept):
        return attend(q, k, v, padded(*indices(q, k), kept))

    assert "which skips what it hides, runs on a GPU" in str(mlirfuse.torch.explain(fn, *operands(), RIGHT))


# ---- blocks


@pytest.mark.parametrize("queries, keys", [(256, 384), (300, 130), (1, 500)])
def test_blocks_are_those_of_torch(queries, keys):
    from torch.nn.attention.flex_attention import create_block_mask

    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    mask = torch.stack([(j <= i) & (j >= 100), (j // 128 == 1) | (i < 5)])[:, None]
    seen, *blocks = torch.ops.mlirfuse.mask_blocks(mask, -1, -1)
    assert torch.equal(seen, mask)
    wanted = create_block_mask(lambda b, h, q, k: mask[b, 0, q, k], 2, 1, queries, keys, device="cpu")
    names = ["kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"]
    names += [name.replace("kv", "q") for name in names]
    for name, found in zip(names, blocks):
        assert torch.equal(found, getattr(wanted, name)) and found.is_contiguous(), name


def test_broadcast_masks_are_read_once():
    row = torch.arange(200) < 150
    seen, *blocks = torch.ops.mlirfuse.mask_blocks(row.expand(3, 4, 1, 200), 300, -1)
    assert seen.shape == (1, 1, 300, 200) and seen.untyped_storage().nbytes() == 200
    assert all(x.shape[:2] == (1, 1) for x in blocks)
    assert torch.ops.mlirfuse.mask_blocks(torch.zeros(300, 200), -1, -1)[0].all()  # additive


# ---- what a GPU compiles


def fake_call(mode, target, graph, *args):
    """A call of an op on new inputs, with fake results."""

    def placed(x):
        if isinstance(x, list):
            return [placed(part) for part in x]
        if not isinstance(x, torch.Tensor):
            return x
        node = graph.placeholder(f"x{len(graph.nodes)}")
        node.meta["val"] = mode.from_tensor(x.detach())
        return node

    node = graph.call_function(target, tuple(placed(x) for x in args))
    with mode:
        node.meta["val"] = target(*torch.fx.map_arg(node.args, lambda n: n.meta["val"]))
    return node


@pytest.mark.parametrize("queries, keys", [(256, 256), (150, 200)])
def test_the_graphs_of_the_template(monkeypatch, queries, keys):
    monkeypatch.setattr(masked_attention, "_on_cpu", lambda node: False)
    given = operands(queries, keys, torch.float64)
    mask = (torch.arange(keys) <= torch.arange(queries)[:, None] - 20)[None, None]
    blocks = torch.ops.mlirfuse.mask_blocks(mask, -1, -1)
    mode, graph = FakeTensorMode(), torch.fx.Graph()
    q, k, v = (x.detach() for x in given)
    node = fake_call(mode, masked_attention.FORWARD, graph, q, k, v, blocks, 0.25)
    out, logsumexp = masked_attention._forward_alone(node, None).module(q, k, v, *blocks)
    wanted, gradients = exact(*given, mask.expand(2, 1, queries, keys), 0.25)
    torch.testing.assert_close(out, wanted)
    assert out.stride() == node.meta["val"][0].stride() == q.stride()

    grad = torch.ones_like(out)
    node = fake_call(mode, masked_attention.BACKWARD, graph, grad, q, k, v, out, logsumexp, blocks, 0.25)
    found = masked_attention._backward_alone(node, None).module(grad, q, k, v, out, logsumexp, *blocks)
    for got, want, fake, x in zip(found, gradients, node.meta["val"], (q, k, v)):
        torch.testing.assert_close(got, want)
        assert got.stride() == fake.stride() == x.stride()
