"""What does not compile runs op by op with one warning: the op, the user's line, and a script that repeats it."""

from __future__ import annotations

import re
import runpy
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from test_torch_ways import same

from mlirfuse.core.errors import CompileError
from mlirfuse.frontend.torch import backend
from mlirfuse.frontend.torch.reports import repro
from mlirfuse.passes import pipelines
from mlirfuse.passes.segment import SegmentPass
from mlirfuse.runtime.program import Program


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def program(x, w):
    y = (x @ w).tanh()
    return y.softmax(-1), torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,))


def told(run):
    """What ``run`` gives, and the warnings of ours."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = run()
    return result, [str(w.message) for w in seen if "mlirfuse" in str(w.message)]


def line_of(text):
    return next(k for k, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


@pytest.fixture
def failing_pass(monkeypatch):
    def run(self, graph):
        for op in graph.ops:
            if op.name == "tanh":
                raise RuntimeError("no room")

    monkeypatch.setattr(SegmentPass, "run", run)


@pytest.fixture
def failing_kernel(monkeypatch):
    def compiled_program(self, env, alignments):
        raise RuntimeError("no code for it")

    monkeypatch.setattr(Program, "compiled_program", compiled_program)


def test_a_failing_pass_is_one_warning_and_a_script(failing_pass, tmp_path, monkeypatch):
    given = torch.randn(3, 4), torch.randn(4, 5)
    f = torch.compile(program, backend="mlirfuse", options={"repro": str(tmp_path)})
    found, messages = told(lambda: [f(*given), f(*given)][1])
    same(found, program(*given))
    assert len(messages) == 1 and "RuntimeError: no room" in messages[0]
    assert "in tanh" in messages[0] and f"{Path(__file__).name}:{line_of('.tanh()')}" in messages[0]
    (script,) = tmp_path.iterdir()
    assert str(script) in messages[0]
    with pytest.raises(CompileError, match="no room"):
        runpy.run_path(str(script))
    monkeypatch.undo()
    runpy.run_path(str(script))


def test_a_failing_kernel_is_one_warning_and_its_group_runs_op_by_op(failing_kernel, tmp_path):
    def f(x, w):
        y = x.mul_(2) @ w
        return y.tanh().t().contiguous().t() + 1, y.sum(0), (y > 0).to(torch.bfloat16)

    given, theirs = [[torch.arange(12.0).reshape(3, 4) / 9, torch.ones(4, 5) / 7] for _ in range(2)]
    run = torch.compile(f, backend="mlirfuse", options={"repro": str(tmp_path)})
    (found, messages), wanted = told(lambda: run(*given)), f(*theirs)
    same(found, wanted)
    same(given, theirs)
    assert len(messages) == 1 and "no code for it" in messages[0] and "x.mul_(2) @ w" in messages[0]
    assert told(lambda: run(*given))[1] == []
    (script,) = tmp_path.iterdir()
    with pytest.raises(CompileError, match="no code for it"):
        runpy.run_path(str(script))


@pytest.mark.parametrize("failing", ["failing_pass", "failing_kernel"])
def test_without_the_fallback_they_are_errors(failing, request, tmp_path):
    request.getfixturevalue(failing)
    f = torch.compile(program, backend="mlirfuse", options={"fallback": False, "repro": str(tmp_path)})
    with pytest.raises(Exception, match=r"(no room|no code for it)(.|\n)*this script reproduces it: ") as raised:
        f(torch.randn(3, 4), torch.randn(4, 5))
    assert re.search(r"mlirfuse_inference_\w+\.py", str(raised.value))


def test_scripts_of_graphs_with_symbolic_sizes_and_of_the_backward_run(monkeypatch, tmp_path):
    """Written of graphs that compile, they run."""
    written = []

    def observe(module, which, *rest):
        written.append(repro.write(module, which, str(tmp_path)))
        return lower(module, which, *rest)

    lower = backend.lower_to_host
    monkeypatch.setattr(backend, "lower_to_host", observe)
    x = torch.randn(6, 4, requires_grad=True)
    f = torch.compile(
        lambda x, n: torch.dropout(x, 0.5, True).view(-1).narrow(0, n, n).exp(), backend="mlirfuse", dynamic=True
    )
    f(x, 3).sum().backward()
    monkeypatch.undo()
    assert len(written) == 2 and "rand_strided((6, 4), (4, 1), torch.float32" in Path(written[0]).read_text()
    for path in written:
        runpy.run_path(path)


def test_passes_are_those_of_the_named_pipeline(monkeypatch):
    """The front end has no list of its own: it runs what ``fusion-to-segments`` stands for."""
    ran = []

    def observe(source, pipeline, after=None):
        ran.append(pipeline)
        return run(source, pipeline, after)

    run = pipelines.run_pipeline
    monkeypatch.setattr(pipelines, "run_pipeline", observe)
    torch.compile(lambda x: x.sin() + 1, backend="mlirfuse")(torch.randn(4))
    assert ran == [pipelines.fusion_to_segments("cpu", foreach=True)]
