"""A real model with real weights: embeddings of sentences as eager's, for batches of any size and length."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from sentence_encoder import SentenceEncoder, sentences
from torch_models import error

import mlirfuse.torch  # noqa: F401

BATCHES = (1, 2, 3, 8, 5, 1, 13, 4)


@pytest.mark.slow
def test_embeddings_are_eagers():
    """Against float64 no worse than twice eager; once both sizes have changed, Dynamo makes no more graphs."""
    model = SentenceEncoder()
    exact = copy.deepcopy(model).double()
    torch._dynamo.reset()
    run = torch.compile(model, backend="mlirfuse", options={"fallback": False})
    text = sentences(2 * sum(BATCHES))
    lengths, graphs = set(), []
    for count in 2 * BATCHES:
        given = model.tokens([text.pop() for _ in range(count)])
        lengths.add(given["input_ids"].shape[1])
        with torch.inference_mode():
            found, eager, wanted = run(**given), model(**given), exact(**given)
        assert found.shape == (count, 384)
        assert error([found], [wanted]) <= 2 * error([eager], [wanted]) + 1e-6
        torch.testing.assert_close(found.norm(dim=1), torch.ones(count))
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert len(lengths) > 8
    assert len(set(graphs[len(BATCHES) - 1 :])) == 1
