"""Training programs as users of torch write them, five steps beside eager (:mod:`torch_training_programs`)."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.utils import counters
from torch_training_programs import PROGRAMS, check, taken

import mlirfuse.torch  # noqa: F401


def programs(*quick: str):
    """All of them, ``slow`` but for the ``quick``."""
    marked = [pytest.param(p, marks=[pytest.mark.slow] * (p.__name__ not in quick), id=p.__name__) for p in PROGRAMS]
    return pytest.mark.parametrize("program", marked)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@programs("chains", "diffusion", "experts", "quantized_training", "structures", "transport")
def test_five_steps(program):
    check(program)


@programs("experts", "quantized_training")
def test_graphs_break_where_those_of_aot_eager_do(program):
    def broken(backend: str) -> tuple[dict[str, int], int]:
        """How often for what reason, and how many graphs there are."""
        torch._dynamo.reset()
        counters.clear()
        taken(program, lambda f: torch.compile(f, backend=backend), torch.float32, "cpu")
        return dict(counters["graph_break"]), counters["stats"]["unique_graphs"]

    assert broken("mlirfuse") == broken("aot_eager")
