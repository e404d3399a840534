"""``mlirfuse.torch.profile``: its rows are the steps of the host programs, with the bytes that ``explain`` tells."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_models import Encoder, ResNet

import mlirfuse.torch
from mlirfuse.frontend.torch import profile as profiles
from mlirfuse.frontend.torch.fx.source_lines import module_name
from mlirfuse.lowering import host_steps as st


@pytest.fixture(scope="module")
def step():
    """A model, its batch and the profile of a training step."""
    torch.manual_seed(0)
    model = Encoder(layers=1, p=0.1)
    batch = torch.randint(0, 50, (3, 8)), torch.randint(0, 50, (3, 8))
    return model, batch, mlirfuse.torch.profile(model, *batch)


def test_the_rows_are_all_steps_of_the_programs(step):
    _, _, told = step
    assert [g.which for g in told.graphs] == ["forward", "backward"]
    for at, graph in enumerate(told.graphs):
        rows = [row for row in told.rows if row.graph == at]
        steps = [s for s in graph.host.sequence.steps if not isinstance(s, st.Free)]
        assert sum(row.kind == "kernel" for row in rows) == len(graph.kernels)
        called = sum(isinstance(s, st.Call) for s in steps)
        no_kernels = sum(isinstance(s, st.Kernels) and {g.scheduler for g in s.segments} == {"no-op"} for s in steps)
        assert sum(row.kind in ("library", "view") for row in rows) == called + no_kernels
        assert sum(row.kind == "library" for row in rows) == sum(graph.outside.values())


def test_bytes_are_those_of_explain(step):
    model, batch, told = step
    explained = mlirfuse.torch.explain(model, *batch).graphs
    for at, graph in enumerate(explained):
        rows = [row for row in told.rows if row.graph == at and row.kind == "kernel"]
        assert sorted((r.what, r.read, r.written) for r in rows) == sorted(
            (k.scheduler, k.read, k.written) for k in graph.kernels
        )
        assert {line for row in rows for line in row.lines.split(", ")} == {x for k in graph.kernels for x in k.lines}


def test_the_bytes_of_a_product_are_its_operands_and_result():
    told = mlirfuse.torch.profile(lambda x, w: (x * 2) @ w, torch.randn(6, 5), torch.randn(5, 7))
    (product,) = [row for row in told.rows if row.kind == "library"]
    assert (product.what, product.read, product.written) == ("aten.mm.default", 4 * (6 * 5 + 5 * 7), 4 * 6 * 7)


def test_parts_are_in_order_and_no_more_than_the_whole(step):
    _, _, told = step
    assert all(row.ms >= 0 for row in told.rows)
    assert [row.start for row in told.rows] == sorted(row.start for row in told.rows)
    assert sum(row.ms for row in told.rows) <= told.ms * (1 + 1e-9)
    assert all(row.start + row.ms <= told.ms * (1 + 1e-9) for row in told.rows)


def test_the_kernels_of_a_program_share_its_time_as_they_take_it(monkeypatch):
    """A small sum and a large one, over different axes, are two kernels of one program, launched by one step."""
    heard = []
    by_segment = profiles._by_segment
    monkeypatch.setattr(profiles, "_by_segment", lambda *given: heard.append(by_segment(*given)) or heard[-1])
    told = mlirfuse.torch.profile(lambda x: ((x * 2).sum(0), (x + 1).sum(1)), torch.randn(300, 200))
    kernels = [row for row in told.rows if row.kind == "kernel"]
    (graph,), (taken,) = told.graphs, heard
    assert len(kernels) == 2 and len(graph.host.kernels) == 1
    one, two = taken.values()  # of launches one by one
    assert one > 0 and two > 0
    whole = sum(row.ms for row in kernels)
    assert sorted(row.ms / whole for row in kernels) == pytest.approx(sorted(t / (one + two) for t in (one, two)))


def test_sizes_that_change_have_the_bytes_of_the_last_call():
    x = torch.randn(6, 5)
    torch._dynamo.mark_dynamic(x, 0)
    told = mlirfuse.torch.profile(lambda x: x.exp() + 1, x)
    assert [(r.read, r.written) for r in told.rows if r.kind == "kernel"] == [(120, 120)]


def test_a_profile_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model, batch = ResNet(), (torch.randn(2, 3, 32, 32), torch.randint(0, 10, (2,)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mlirfuse.torch.profile(model, *batch)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_the_page_and_the_table(step, tmp_path):
    _, _, told = step
    text = str(told)
    assert "forward:" in text and "backward:" in text and "outside of graphs:" in text
    assert "aten.addmm.default" in text and "torch_models.py:" in text
    told.save(tmp_path / "step.html")
    page = (tmp_path / "step.html").read_text()
    drawn = sum(row.kind != "gap" for row in told.rows)
    assert page.count("<rect x=") == drawn and page.count("<iframe") == 2
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "<pre>" not in page and page.count('width="100%"') == 1  # it is as wide as the window
    assert 'class="number" data-key=' in page and "<thead>" in page  # and its tables sort, by numbers
    assert told._repr_html_().startswith("<iframe srcdoc=")


def test_modules_of_torchs_own_are_named():
    """A model without a line of the user's: each kernel and op says which of its modules it is of, or which one's
    gradient."""
    layers = [torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.RMSNorm(32)]
    model = torch.nn.Sequential(torch.nn.Sequential(*layers), torch.nn.ModuleDict({"last": torch.nn.Tanh()})["last"])
    told = mlirfuse.torch.explain(model, torch.randn(4, 16))
    names = {"0.0 (Linear)", "0.1 (GELU)", "0.2 (RMSNorm)", "1 (Tanh)"}
    for graph in told.graphs:
        found = [set(kernel.lines) for kernel in graph.kernels] + [{line} for _, _, line in graph.outside]
        assert all(lines and lines <= names for lines in found)
        assert set().union(*found) == names
    assert told._repr_html_().startswith("<iframe srcdoc=") and "0.1 (GELU)" in told.to_html()


@pytest.mark.parametrize(
    "path, kind, name",
    [
        ("L['self'].layers[3].fc", torch.nn.Linear, "layers.3.fc (Linear)"),
        ("L['fn']._modules['a']._modules['0']", "torch.nn.modules.linear.Linear", "a.0 (Linear)"),
        ("L['self']", torch.nn.Sequential, "Sequential"),
        ("G['model'].table['key']", torch.nn.GELU, "table.key (GELU)"),
    ],
)
def test_names_of_modules(path, kind, name):
    assert module_name(path, kind) == name
