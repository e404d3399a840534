"""``flex_attention`` by torch's compiled template: values beside eager, masks and captured tensors as inputs, sizes,
equal calls that share code, pickled code, what has no template."""

from __future__ import annotations

import pickle

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import mlirfuse.torch
from mlirfuse.frontend.torch import torch_private as private
from mlirfuse.frontend.torch.attention import flex_attention as flex_attention_calls
from mlirfuse.frontend.torch.attention import inductor_calls


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """With the template on all processors: its values are wrong on some, but not of these numbers of keys."""
    monkeypatch.setattr(flex_attention_calls, "_right_on_this_cpu", lambda: True)
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def uncompiled(monkeypatch):
    """Runs the graphs for Inductor as they are; the list of them."""
    graphs = []

    def instead(module, fakes):
        graphs.append(module)
        return lambda args: list(module(*args))

    monkeypatch.setattr(private, "compiled_by_inductor", instead)
    monkeypatch.setattr("mlirfuse.frontend.torch.warm.cache.enabled", lambda: False)
    return graphs


def operands(length=208, heads=2):
    return [torch.randn(1, heads, length, 16) for _ in range(3)]


def documents_of(size, length=208):
    documents = torch.arange(length) // size
    return create_block_mask(
        lambda b, h, q, k: (k <= q) & (documents[q] == documents[k]), 1, 1, length, length, device="cpu"
    )


def biased(q, k, v, mask, slopes):
    """Ops in the score function that Inductor has no lowering for unless it decomposes them itself."""

    def score(score, b, h, q, k):
        return torch.rsub((q - k) * slopes[h], score).masked_fill(slopes[h] > 9, 0.0)

    first = flex_attention(q * 2, k, v, score_mod=score, block_mask=mask)
    return flex_attention(first + q, k, v, score_mod=score, block_mask=mask) + 1


def test_masks_and_captured_tensors_are_inputs(monkeypatch):
    calls = {}  # by template: arguments and results of its last call

    class Watched(inductor_calls.Template):
        def __call__(self, *args):
            found = super().__call__(*args)
            calls[self] = args, found
            return found

    monkeypatch.setattr(inductor_calls, "Template", Watched)
    monkeypatch.setattr("mlirfuse.frontend.torch.warm.cache.enabled", lambda: False)
    run = torch.compile(biased, backend="mlirfuse", options={"fallback": False})
    for step, size in enumerate((70, 30, 200)):
        given = [*operands(), documents_of(size), torch.randn(2)]
        wanted = biased(*given)
        with torch.compiler.set_stance("fail_on_recompile" if step else "default"):
            found = run(*given)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        assert found.stride() == wanted.stride()
    ((template, (args, results)),) = calls.items()  # both calls share it
    again = Watched.__new__(Watched)
    again.__setstate__(pickle.loads(pickle.dumps(template.__getstate__())))  # as another process reads it
    assert torch.equal(again(*args)[0], results[0])


def test_equal_calls_share_code_and_others_do_not(uncompiled):
    def fn(q, k, v, slopes):
        far = lambda score, b, h, q, k: score - slopes[h] * (q - k)  # noqa: E731
        first = flex_attention(q, k, v, score_mod=far)
        second = flex_attention(q + first, k, v, score_mod=far)
        return flex_attention(second, k, v, score_mod=lambda score, *_: score * 2) + second

    given = [*operands(), torch.randn(2)]
    found = torch.compile(fn, backend="mlirfuse", options={"fallback": False})(*given)
    torch.testing.assert_close(found, fn(*given), rtol=1e-5, atol=1e-5)
    assert len(uncompiled) == 2


def test_symbolic_lengths(uncompiled):
    def causal(q, k, v, mask, shift):
        return flex_attention(q * 2, k, v, block_mask=mask, score_mod=lambda s, b, h, i, j: s + shift[i] * q.shape[2])

    run = torch.compile(causal, backend="mlirfuse", dynamic=True, options={"fallback": False})
    for step, length in enumerate((200, 300, 500)):  # Dynamo compiles another number of blocks once more
        given = [*operands(length), documents_of(length, length), torch.randn(length)]
        with torch.compiler.set_stance("fail_on_recompile" if step > 1 else "default"):
            found = run(*given)
        torch.testing.assert_close(found, causal(*given), rtol=1e-5, atol=1e-5)


def test_explain_says_what_runs(uncompiled):
    assert "torch's compiled template" in str(mlirfuse.torch.explain(lambda x: flex_attention(x, x, x), operands()[0]))


def test_what_has_no_template_runs_uncompiled_and_says_so(monkeypatch):
    def refused(module, fakes):
        raise NotImplementedError("no such template")

    monkeypatch.setattr(private, "compiled_by_inductor", refused)
    run = torch.compile(lambda q, k, v: flex_attention(q, k, v), backend="mlirfuse", options={"fallback": False})
    given = operands()
    with pytest.warns(UserWarning, match="flex attention runs uncompiled.*no such template"):
        found = run(*given)
    torch.testing.assert_close(found, torch.nn.functional.scaled_dot_product_attention(*given), rtol=1e-5, atol=1e-5)
