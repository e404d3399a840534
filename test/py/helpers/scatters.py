"""What of a compiled function runs as scatter-adds or as calls of torch's ops."""

from __future__ import annotations

from mlirfuse.passes.segment import SegmentPass


def scatters_and_calls(monkeypatch) -> list[str]:
    """A list that gets the names of scatter-adds, and of calls that compute, as graphs are segmented."""
    calls, run = [], SegmentPass.run

    def computes(op):
        return op.name == "index_put_accumulate" or (op.name == "call" and not op.attrs["shares"])

    def recorded(self, graph):
        run(self, graph)
        calls.extend(op.name for op in graph.ops if computes(op))

    monkeypatch.setattr(SegmentPass, "run", recorded)
    return calls
