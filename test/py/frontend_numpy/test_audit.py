"""Audits: bounds by stated rates, rows that are those of `explain`, memory at the peak, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mlirfuse
import mlirfuse.torch
from mlirfuse.analysis import traffic
from mlirfuse.inspect import audit, memory, rates
from mlirfuse.inspect.audit import Audit, AuditedKernel, merged
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Value
from mlirfuse.nvfuser import DataType, FusionDefinition

# A device of 1 GB/s and of 1e9 operations a second, half as many of float64; a launch takes 4 µs.
GPU = SimpleNamespace(
    device=0,
    copy_ms=lambda n: n / 1e6,
    operations_ms=lambda n, double=False: n / 1e6 * (2 if double else 1),
    launch_ms=0.004,
)
CPU = SimpleNamespace(**{**vars(GPU), "device": None})


def kernel(ms=2.0, read=500_000, written=500_000, operations=10, times=1, **more) -> AuditedKernel:
    given = {"where": "f", "scheduler": "pointwise", "ops": "add", "lines": "f.py:1", "schedule": ""} | more
    return AuditedKernel(times=times, ms=ms, read=read, written=written, operations=operations, **given)


@pytest.mark.parametrize(
    ("device", "given", "double", "bound", "limit"),
    [
        (GPU, {}, False, 1.0, "memory"),
        (GPU, {"read": 100_000, "written": 0}, False, 0.1, "cache"),
        (GPU, {"operations": 1_500_000}, False, 1.5, "operations"),
        (GPU, {"operations": 750_000}, True, 1.5, "operations"),
        (GPU, {"read": 1000, "written": 1000}, False, 0.004, "launch"),
        (GPU, {"read": 4500, "written": 0}, False, 0.0045, "launch"),
        (GPU, {"times": 3, "ms": 6.0}, False, 3.0, "memory"),
        (CPU, {}, False, 1.0, "memory"),
        (CPU, {"ms": 0.999}, False, 0.0, ""),
        (CPU, {"ms": 1.5, "times": 2}, False, 0.0, ""),
    ],
)
def test_the_bound_is_the_largest_of_copy_operations_and_launch(device, given, double, bound, limit):
    found = kernel(**given)
    found.judge(device, cache_bytes=200_000, double=double)
    assert (found.bound_ms, found.limit) == (pytest.approx(bound), limit)
    assert found.lost_ms == pytest.approx(found.ms - bound if limit else 0.0)


def test_a_kernel_below_its_bound_loses_nothing():
    found = kernel(ms=0.5)
    found.judge(GPU, 0)
    assert (found.lost_ms, found.of_bound) == (0.0, 1.0)


def test_equal_kernels_are_one_row_and_those_that_lose_most_come_first(tmp_path):
    rows = [kernel(1.5, ops="a"), kernel(3.0, ops="b"), kernel(1.5, ops="a"), kernel(9.0, 9_000_000, ops="c")]
    for row in rows:
        row.judge(GPU, 0)
    found = Audit("a device", merged(rows), 20.0, 1.0, {"library": (4.0, 2)}, [("x", 3000)], 3000)
    assert [(k.ops, k.times, k.ms, k.bound_ms) for k in found.kernels] == [
        ("b", 1, 3.0, 1.0), ("a", 2, 3.0, 2.0), ("c", 1, 9.0, 9.5)
    ]  # fmt: skip
    assert found.lost_ms == 3.0 and found.kernel_ms == 15.0
    for name in ("f.json", "f.html"):
        found.save(tmp_path / name)
    read = json.loads((tmp_path / "f.json").read_text())
    assert [k["lost_ms"] for k in read["kernels"]] == [2.0, 1.0, 0.0] and read["other"] == {"library": [4.0, 2]}
    page = (tmp_path / "f.html").read_text()
    assert page.count("<rect") == 6 and "<svg" in page and "f.py:1" in page
    assert "library 4.000 ms (2)" in str(found) and "67%" in str(found)


def test_operations_count_costs_of_elements():
    n = sz.symbol("s0")
    x = Value(dt.f32, (n, 4))
    b = Builder(Block([x]))
    y = b.op("exp", b.op("mul", b.permute(x, (1, 0)), b.constant(2.0, dt.f32)))
    b.op("sum", y, axes=(0,))
    cost = y.op.row.cost
    assert cost > 1
    assert traffic.operations(b.block.ops) == sz.mul(n, 4 * (1 + cost + 1))


def test_rates_rise_with_size_and_are_measured_once(monkeypatch):
    found = rates.Rates(rates.targets.cpu())
    measured = []
    times = {12: 1.0, 13: 0.5, 20: 64.0, 21: 128.0, 30: 1000.0}  # a smaller one that seems slower

    def fastest(graph, leaves, n):
        measured.append(n)
        return times[(8 * n).bit_length() - 1]

    monkeypatch.setattr(found, "_fastest", fastest)
    monkeypatch.setattr(found, "_zeros", lambda n, dtype: None)
    assert found.copy_ms(1) == found.launch_ms == 1.0 and found.copy_ms(1 << 13) >= 1.0
    assert found.copy_ms(1 << 20) == 64.0
    assert found.copy_ms(3 << 19) == pytest.approx(64.0 * 2 ** np.log2(1.5))
    assert found.copy_ms(3 << 30) == 3000.0
    assert len(measured) == len(set(measured)) == 5


def test_rates_of_this_processor():
    found = rates.Rates(rates.targets.cpu())
    assert 0 < found.launch_ms <= found.copy_ms(1 << 20)
    assert 0 < found.operations_ms(1000) < found.operations_ms(10**9)


def test_a_function_is_audited_by_what_it_launches(monkeypatch):
    monkeypatch.setattr(audit, "CPU_MS", 0.0)
    f = mlirfuse.jit(lambda x: (np.tanh(x) @ x).sum(0) + np.exp(x))
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    found, explained = f.audit(x), f.explain(x)
    kernels = [k for k in explained.kernels if k.launches]
    assert sorted((k.scheduler, k.read, k.written, k.times) for k in found.kernels) == sorted(
        (k.scheduler, k.bytes_read, k.bytes_written, 1) for k in kernels
    )
    assert all(k.ms > 0 and k.bound_ms > 0 and k.limit for k in found.kernels)
    assert any("test_audit.py" in k.lines for k in found.kernels) and found.ms > 0
    assert [k.lost_ms for k in found.kernels] == sorted((k.lost_ms for k in found.kernels), reverse=True)


def test_other_schedules_are_measured_where_that_is_asked_for():
    f = mlirfuse.jit(lambda x, i: (x * 2)[i].sum(0))
    x = np.random.default_rng(0).standard_normal((50, 40)).astype(np.float32)
    i = np.arange(30) % 50
    before = f(x, i).copy()
    found = f.audit(x, i, tune=True)
    assert all(k.best_ms is not None and 0 <= k.best_ms <= k.ms for k in found.kernels)
    np.testing.assert_array_equal(f(x, i), before)


def test_a_definition_is_audited():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.relu(x), [1]))
    (row,) = fd.audit([torch.randn(8, 16)]).kernels
    assert (row.read, row.written, row.times) == (8 * 16 * 4, 8 * 4, 1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

    def forward(self, x):
        for _ in range(2):
            x = x + self.down(torch.nn.functional.gelu(self.up(x)))
        return x.pow(2).mean()


def test_a_model_is_audited_by_its_profile(monkeypatch):
    monkeypatch.setattr(audit, "CPU_MS", 0.0)
    x = torch.randn(32, 16)
    found = mlirfuse.torch.audit(Net(), x)
    graphs = mlirfuse.torch.explain(Net(), x).graphs
    assert sum(k.times for k in found.kernels) == sum(len(g.kernels) for g in graphs)
    assert {k.where for k in found.kernels} == {"forward", "backward"}
    assert sum((k.read + k.written) * k.times for k in found.kernels) == sum(
        k.read + k.written for g in graphs for k in g.kernels
    )
    assert found.other["library"][1] == sum(sum(g.outside.values()) for g in graphs)
    assert all(k.schedule for k in found.kernels)
    held = dict(found.memory)
    assert found.peak == sum(held.values()) and any(name.startswith("saved ") for name in held)


def test_the_peak_is_what_is_held_between_two_steps():
    found = mlirfuse.torch.explain(lambda x, w: torch.relu((x @ w).exp() @ w) + x, torch.randn(8, 4), torch.randn(4, 4))
    (graph,) = found.graphs
    held = memory.peak(graph.host, graph.host.last_sizes)
    # x, w, the first product and its exponential; behind the second product w is freed
    assert held.arguments == 4 * (8 * 4 + 4 * 4)
    assert sum(n for _, n in held.others) == 2 * 4 * 8 * 4
    assert all("test_audit.py" in name for name, _ in held.others)


def test_the_command_runs_a_script_and_ends_as_it_does(tmp_path):
    (tmp_path / "beside.py").write_text("import numpy as np\nsize = 32\n")
    script = tmp_path / "program.py"
    script.write_text(
        "import sys\nfrom beside import np, size\nimport mlirfuse\n"
        "f = mlirfuse.jit(lambda x: np.tanh(x) * 2)\nx = np.ones((size, size))\n"
        "for _ in range(int(sys.argv[1])):\n    f(x)\nsys.exit(5)\n"
    )
    saved = tmp_path / "found.json"
    run = [sys.executable, "-m", "mlirfuse", "audit", "--save", str(saved), str(script), "4"]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 5, done.stderr
    (row,) = json.loads(saved.read_text())["kernels"]
    assert (row["times"], row["read"], row["lines"]) == (4, 32 * 32 * 8, "program.py:4")
    assert "tanh" in done.stdout and "none of them judged" in done.stdout
    done = subprocess.run([*run[:4], "nothing.py"], capture_output=True, text=True)
    assert done.returncode == 2 and "no file 'nothing.py'" in done.stderr
