"""What compilation reports, to whom, and that calls do not pay for it."""

import numpy as np
import pytest

import mlirfuse
from mlirfuse.core import config
from mlirfuse.nvfuser import DataType, FusionDefinition
from mlirfuse.passes import pipelines
from mlirfuse.runtime import counters, events

EVENTS = (
    events.SpecializationFound, events.Traced, events.PassRan, events.Segmented, events.FellBack, events.Scheduled, events.Compiled,
    events.Launching, events.CacheRead, events.CacheStored,
)  # fmt: skip


@pytest.fixture
def heard():
    """The events of a test, in order."""
    found = []
    stops = [events.observe(kind, found.append) for kind in EVENTS]
    yield found
    for stop in stops:
        stop()


def names(heard):
    return [type(event).__name__ for event in heard]


def test_a_first_call_a_new_size_and_a_call_again(heard):
    compiled = mlirfuse.jit(lambda x: np.exp(x).sum(1), fallback=False)
    compiled(np.ones((4, 8)))
    told = [n for n in names(heard) if not n.startswith("Cache")]
    assert told[0] == "Traced" and told[-4:] == ["Segmented", "Scheduled", "Compiled", "Launching"]
    passes = [event.step.name for event in heard if isinstance(event, events.PassRan)]
    assert passes[0] == "fusion-remove-inplace" and passes[-2:] == ["fusion-segment", "fusion-overlap-collectives"]
    (traced,) = (event for event in heard if isinstance(event, events.Traced))
    assert traced.source.owner is compiled and traced.specialization.graph.args[0].rank == 2
    heard.clear()
    compiled(np.ones((5, 8)))
    assert names(heard) == ["Launching", "SpecializationFound"]
    heard.clear()
    compiled(np.ones((5, 8)))
    assert heard == []


def test_a_definition_reports_too(heard):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Double)
        fd.add_output(fd.ops.add(fd.ops.cosh(x), x))
    fd.execute([np.ones((3, 4))])
    told = [n for n in names(heard) if not n.startswith("Cache") and n != "PassRan"]
    assert told == ["Traced", "Segmented", "Scheduled", "Compiled", "Launching"]


def test_what_cannot_be_compiled_falls_back(heard, monkeypatch):
    def fails(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(pipelines, "lower_to_segments", fails)
    with pytest.warns(UserWarning, match="out of luck") as warned:
        mlirfuse.jit(np.exp, fallback=True)(np.ones(3))
    assert warned[0].filename == __file__  # at the user's line
    assert names(heard) == ["Traced", "FellBack"] and heard[1].problem == "out of luck"


def test_the_cache_reports(heard, tmp_path, monkeypatch):
    monkeypatch.setenv("MLIRFUSE_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        mlirfuse.jit(lambda x: x * 3 + 1, fallback=False)(np.ones(5))
    read = [event for event in heard if isinstance(event, events.CacheRead)]
    (stored,) = (event for event in heard if isinstance(event, events.CacheStored))
    assert [event.body for event in read] == [None, stored.body] and read[0].problem == "is not there"


def test_dumps_listen_only_while_they_are_on():
    before = [kind.observers for kind in EVENTS]
    with config.override(dump="cache,kernel-args"):
        assert events.SpecializationFound.observers and events.Launching.observers
        with config.override(dump="ptx"):
            assert not events.SpecializationFound.observers and not events.Launching.observers
    assert [kind.observers for kind in EVENTS] == before
    assert (
        not events.SpecializationFound.observers and not events.Launching.observers
    )  # nothing listens where calls pass


def test_an_observer_that_fails_stops_nothing(capfd):
    def broken(event):
        raise RuntimeError("out of ink")

    stop = events.observe(events.Traced, broken)
    try:
        assert np.array_equal(mlirfuse.jit(lambda x: x + 1, fallback=False)(np.ones(3)), [2, 2, 2])
    finally:
        stop()
    assert "failed at Traced: RuntimeError: out of ink" in capfd.readouterr().err


def test_counters_count():
    before = counters.snapshot()
    compiled = mlirfuse.jit(lambda x: x - 7, fallback=False)
    for n in (3, 4, 5):
        compiled(np.ones(n))
    after = counters.snapshot()
    assert (
        after["specializations"] == before["specializations"] + 1
        and after["compiled_programs"] > before["compiled_programs"]
    )
    assert after["fallbacks"] == before["fallbacks"]
