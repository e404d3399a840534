"""torch's own ``aot_compile`` keeps what the back end made: a saved model runs in a new process."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not hasattr(torch.compiler, "load_compiled_function"), reason="this release of torch has no aot_compile"
)

MODEL = """
import sys
import torch
torch.manual_seed(0)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(32, 32), torch.nn.LayerNorm(32)

    def forward(self, x):
        return torch.nn.functional.gelu(self.norm(self.linear(x))) * 2

model, x = Model(), torch.randn(16, 32)
"""
SAVE = """
with torch.no_grad():
    compiled = torch.compile(model, backend="mlirfuse", fullgraph=True).forward.aot_compile(((x,), {}))
    compiled.save_compiled_function(sys.argv[1])
    torch.testing.assert_close(compiled(model, x), model(x))
"""
LOAD = """
with open(sys.argv[1], "rb") as file:
    compiled = torch.compiler.load_compiled_function(file)
import mlirfuse
with torch.no_grad():
    torch.testing.assert_close(compiled(model, x), model(x))
counted = mlirfuse.counters.snapshot()
assert counted["specializations"] == 0 and counted["compiled_programs"] > 0 and counted["fallbacks"] == 0, counted
print("done")
"""


def test_a_saved_model_in_a_new_process(tmp_path):
    for program in (SAVE, LOAD):
        command = [sys.executable, "-c", MODEL + program, str(tmp_path / "model.pt2")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
