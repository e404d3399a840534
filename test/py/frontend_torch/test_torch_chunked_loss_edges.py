"""Losses in chunks at their edges: infinite logits, strides of gradients, inference, transforms, mixtures of losses."""

import pytest

torch = pytest.importorskip("torch")

from test_torch_chunked_loss import FEATURES, WORDS, by_kl_div, calls, check, given, gradients, plain, small_chunks
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from mlirfuse.frontend.torch.losses import cross_entropy

__all__ = ["small_chunks"]  # a fixture


def chunked(fn):
    torch._dynamo.reset()
    return torch.compile(fn, backend="mlirfuse", options={"chunked_loss": "always", "fallback": False})


def entropies(x, weight, bias, labels):
    return F.cross_entropy(F.linear(x, weight, bias), labels, reduction="none").sum()


def of_labels(x, weight, bias, labels):
    return F.linear(x, weight, bias).log_softmax(-1).gather(1, labels[:, None]).sum()


def less_logsumexp(x, weight, bias, labels):
    logits = F.linear(x, weight, bias)
    return (logits.gather(1, labels[:, None])[:, 0] - logits.logsumexp(-1)).sum()


def from_itself(x, weight, bias, labels):
    return by_kl_div(F.linear(x, weight, bias), F.linear(x.detach(), weight.detach(), bias.detach()), "sum")


def to_infinity(x, weight, bias, labels):
    return by_kl_div(F.linear(x, weight), F.linear(x.detach(), weight.detach(), bias.detach()), "sum")


@pytest.mark.parametrize("fn", [plain, entropies, of_labels, less_logsumexp, from_itself, to_infinity])
@pytest.mark.parametrize("number, words", [(torch.inf, 200), (torch.nan, 200), (-torch.inf, slice(None))], ids=str)
def test_infinite_logits_are_no_number_where_eagers_are(fn, number, words):
    """A softmax subtracts the maximum: inf - inf. A logsumexp alone is infinite."""
    x, weight, bias, labels = given(rows=(1, 40))
    x, labels = x.detach()[0].requires_grad_(), labels[0].clamp(0, 99)
    bias.data[words] = number

    def found(fn):
        loss = fn(x, weight, bias, labels)
        grads = torch.autograd.grad(loss, (x, weight, bias), allow_unused=True)
        return str(loss.item()), [None if g is None else g.isnan().tolist() for g in grads]

    assert found(chunked(fn)) == found(fn)


TRANSPOSED = {
    "stored transposed": lambda: torch.randn(FEATURES, WORDS).t(),
    "a slice of columns": lambda: torch.randn(WORDS, 2 * FEATURES)[:, ::2],
    "a slice of rows": lambda: torch.randn(2 * WORDS, FEATURES)[::2],
    "a slice, transposed": lambda: torch.randn(FEATURES, 2 * WORDS)[:, :WORDS].t(),
}


@pytest.mark.parametrize("weight", TRANSPOSED.values(), ids=TRANSPOSED)
@pytest.mark.parametrize("fn", [plain, entropies, from_itself])
def test_gradients_of_transposed_weights_have_eagers_strides(fn, weight):
    x, _, bias, labels = given(rows=(1, 40))
    x, weight, labels = x.detach()[0].requires_grad_(), weight().requires_grad_(), labels[0]
    expected, got = gradients(fn, (x, weight, bias, labels))[1], gradients(chunked(fn), (x, weight, bias, labels))[1]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert [g.stride() for g in got] == [g.stride() for g in expected]


@pytest.mark.parametrize("fn", [plain, of_labels])
def test_inference_mode(fn):
    with torch.inference_mode():
        x, weight, bias, labels = given(rows=(1, 40))
        x, labels = x[0], labels[0].clamp(min=0)
        found, expected = chunked(fn)(x, weight, bias, labels), fn(x, weight, bias, labels)
        torch.testing.assert_close(found, expected)
        assert found.is_inference()


TRANSFORMS = {
    "vmap": lambda x, weight, labels: torch.vmap(lambda x, t: plain(x, weight, None, t))(x, labels),
    "grad": lambda x, weight, labels: torch.func.grad(lambda w: plain(x, w, None, labels))(weight),
    "vmap of grad": lambda x, weight, labels: torch.vmap(torch.func.grad(lambda x, t: plain(x, weight, None, t)))(
        x, labels
    ),
}


@pytest.mark.parametrize("fn", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_of_functions_keep_logits_whole(fn):
    x, weight, _, labels = (None if t is None else t.detach() for t in given())
    torch.testing.assert_close(chunked(fn)(x, weight, labels), fn(x, weight, labels))
    ops, text = calls(fn, x, weight, labels)
    assert not ops
    assert "the full logits are stored: a transform of torch.func reads them" in text


def preferences(x, weight, teacher_x, teacher_weight, labels):
    """DPO of a policy beside a reference, with the divergence from the reference."""

    def each(x, weight):
        return F.linear(x, weight).log_softmax(-1).gather(1, labels[:, None])[:, 0]

    policy, reference = each(x, weight), each(teacher_x, teacher_weight)
    margin = (policy - reference)[:20].sum() - (policy - reference)[20:].sum()
    divergence = by_kl_div(F.linear(x, weight), F.linear(teacher_x, teacher_weight), "batchmean")
    return -F.logsigmoid(0.01 * margin) + 0.1 * divergence


def test_preferences_with_a_divergence():
    x, weight, _, labels = given(rows=(1, 40))
    args = x.detach()[0].requires_grad_(), weight, torch.randn(40, 12), torch.randn(WORDS, 12), labels[0].clamp(min=0)
    check(preferences, args, "linear_kl", 1e-5)
    ops = calls(preferences, *args)[0]
    assert {"linear_kl", "linear_rows"}.issubset(ops)


@pytest.mark.parametrize("rows, words, features, saved", [(8192, 32000, 4096, 0), (8192, 128256, 4096, 1580), (8192, 256000, 4096, 3660)])  # fmt: skip
def test_what_chunks_save_is_what_they_saved(monkeypatch, rows, words, features, saved):
    """Megabytes between the peaks of the loss with full logits and in chunks, float32 weights under bfloat16 autocast,
    as measured on a GPU (benchmarks/HISTORY.md); within 20."""
    monkeypatch.undo()  # the size of chunks
    monkeypatch.setattr(cross_entropy, "LEAST_SAVED", 1 << 60)

    def fn(x, weight, labels):
        with torch.autocast("cpu", torch.bfloat16):
            logits = F.linear(x, weight)
        return F.cross_entropy(logits.float(), labels)

    reasons = []
    monkeypatch.setattr(cross_entropy, "explain", lambda node, why: reasons.append(why))
    with FakeTensorMode():
        x, weight = torch.empty(rows, features, dtype=torch.bfloat16), torch.empty(words, features)
        labels = torch.empty(rows, dtype=torch.int64)
    x.requires_grad_(), weight.requires_grad_()

    def backend(module, inputs):
        cross_entropy.chunk_losses(module, "auto")
        return module.forward

    torch._dynamo.reset()
    torch.compile(fn, backend=backend)(x, weight, labels)
    (reason,) = reasons
    assert abs(int(reason.split("save ")[1].split()[0]) / 1e6 - saved) < 20, reason


def test_a_gather_of_a_scalar_is_no_loss():
    x, j = torch.tensor(3), torch.tensor([0, 0])
    f = lambda x, j: torch.logical_not(x).gather(-1, j)  # noqa: E731
    assert torch.equal(torch.compile(f, backend="mlirfuse")(x, j), f(x, j))
