"""Torch's own tools: its logs and structured traces, back ends overridden by graph, its minifier."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.exc import BackendCompilerFailed
from torch._logging._internal import trace_log

from mlirfuse.dialects import fusion
from mlirfuse.frontend.torch import backend


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


class Artifacts(logging.Handler):
    """The artifacts of ours that torch's structured trace gets."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def emit(self, record):
        name = record.metadata.get("artifact", {}).get("name", "")
        if name.startswith("mlirfuse"):
            assert name not in self.found and json.dumps(record.metadata)
            self.found[name] = record.payload


@pytest.fixture
def artifacts():
    handler = Artifacts()
    trace_log.addHandler(handler)
    yield handler.found
    trace_log.removeHandler(handler)


def program(x, w):
    return (x @ w).tanh().sum(-1)


def test_structured_traces_have_our_graphs(artifacts):
    x = torch.randn(3, 4, requires_grad=True)
    torch.compile(program, backend="mlirfuse")(x, torch.randn(4, 5)).sum().backward()
    names = {f"mlirfuse_{which}_{what}" for which in ("forward", "backward") for what in ("fusion", "segmented")}
    assert set(artifacts) == names | {"mlirfuse_forward_explain", "mlirfuse_backward_explain"}
    before, after = artifacts["mlirfuse_forward_fusion"], artifacts["mlirfuse_forward_segmented"]
    assert "fusion.tanh" in before and "fusion.segment" not in before and "fusion.segment" in after
    for name in names:
        fusion.parse(artifacts[name])
    assert "aten.mm.default" in artifacts["mlirfuse_forward_explain"]


@pytest.mark.parametrize(("setting", "graph_too"), [("mlirfuse", False), ("+mlirfuse", True)])
def test_torchs_logs(setting, graph_too, tmp_path):
    """TORCH_LOGS takes a package's name: tables by itself, the graph too with a plus."""
    (tmp_path / "script.py").write_text(
        "import torch, mlirfuse.torch\ntorch.compile(lambda x: x.tanh() + 1, backend='mlirfuse')(torch.ones(3))\n"
    )
    env = {**os.environ, "TORCH_LOGS": setting, "TORCH_LOGS_OUT": "log", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, capture_output=True, check=True)
    told = (tmp_path / "log").read_text()
    assert "the inference graph, explain:" in told and "pointwise" in told
    assert ("fusion.tanh" in told) == ("inference graph, segmented" in told) == graph_too


def test_what_has_no_strides_is_written_too(artifacts):
    """Results of torch's own ops that are complex lie in no memory of ours."""
    f = lambda x: (torch.fft.rfft(x * 2).abs() + 1).sum()  # noqa: E731
    x = torch.randn(8)
    torch.testing.assert_close(torch.compile(f, backend="mlirfuse", options={"fallback": False})(x), f(x))
    text = artifacts["mlirfuse_inference_fusion"]
    assert "unit" in text and "fusion.sum" in text


def test_nothing_is_written_where_nobody_looks(monkeypatch):
    """Text of a graph is made for a log or a trace alone."""
    monkeypatch.setattr(trace_log, "handlers", [])
    monkeypatch.setattr(fusion, "to_text", None)
    torch.compile(program, backend="mlirfuse", options={"fallback": False})(torch.ones(3, 4), torch.ones(4, 5))


def test_back_ends_overridden_by_graph(monkeypatch):
    compiled = []

    def observe(module, which, *rest):
        compiled.append(which)
        return lower(module, which, *rest)

    lower = backend.lower_to_host
    monkeypatch.setattr(backend, "lower_to_host", observe)

    def broken_in_two(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y.sin()

    x = torch.ones(3)
    for override, ours in (("", 2), (">0:eager", 1), ("0:mlirfuse", 2)):
        torch._dynamo.reset()
        compiled.clear()
        with torch._dynamo.config.patch(debug_backend_override=override):
            torch.testing.assert_close(torch.compile(broken_in_two, backend="mlirfuse")(x), (2 * x).sin())
        assert len(compiled) == ours, override


def test_torchs_minifier_writes_a_script(monkeypatch, tmp_path):
    """``TORCHDYNAMO_REPRO_AFTER=dynamo``: a graph that we fail on is written down, to be run with this back end."""

    def broken(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(backend, "lower_to_host", broken)
    settings = {"repro_after": "dynamo", "repro_level": 2, "debug_dir_root": str(tmp_path)}
    with torch._dynamo.config.patch(settings), pytest.raises(BackendCompilerFailed, match="no such kernel"):
        f = torch.compile(program, backend="mlirfuse", options={"fallback": False, "repro": str(tmp_path)})
        f(torch.ones(3, 4), torch.ones(4, 5))
    (script,) = tmp_path.rglob("minifier_launcher.py")
    assert "backend='mlirfuse'" in script.read_text() and "tanh" in script.read_text()


BREAKS = """
from mlirfuse.frontend.torch import backend

def broken(module, *rest, lower=backend.lower_to_host):
    if any("tanh" in str(node.target) for node in module.graph.nodes):
        raise RuntimeError("no such kernel")
    return lower(module, *rest)

backend.lower_to_host = broken
"""


@pytest.mark.slow
@pytest.mark.parametrize("level", [2, 3])
def test_torchs_minifier_makes_the_graph_small(level, tmp_path):
    """Its script runs in a process of its own, and keeps what leads to the op that we fail on."""
    (tmp_path / "sitecustomize.py").write_text(BREAKS)
    (tmp_path / "script.py").write_text(
        "import torch\nf = lambda x, w: ((((x @ w).relu() + 1).tanh() * 2).sum(-1)).exp()\n"
        "torch.compile(f, backend='mlirfuse', options={'fallback': False})(torch.ones(3, 4), torch.ones(4, 5))\n"
    )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TORCHDYNAMO_REPRO_AFTER": "dynamo",
        "TORCHDYNAMO_REPRO_LEVEL": str(level),
    }
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, capture_output=True)
    (launcher,) = tmp_path.rglob("minifier_launcher.py")
    subprocess.run([sys.executable, launcher], cwd=tmp_path, env=env, capture_output=True, check=True)
    small = (tmp_path / "repro.py").read_text()
    assert "tanh()" in small and "exp()" not in small and "sum(" not in small
