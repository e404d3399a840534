"""The commands of docs/nvfuser/seeds.md, run as they stand in its table: ``MLIRFUSE_DUMP=… python script.py``, with the readme's
script, which compiles a scripted function."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from mlirfuse.core import config

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "nvfuser" / "seeds.md"
SCRIPT = """
import torch
import mlirfuse.torch

def forward(x):
    o = x + 1.0
    o = o.relu()
    return o

shape = (2, 32, 128, 512)
input = torch.rand(*shape)
t = torch.compile(torch.jit.script(forward), backend="mlirfuse")
for k in range(4):
    o = t(input)
assert torch.equal(o, (input + 1.0).relu())
"""
# Imports torch once and runs the script in a child process for each command: a command is its variables.
RUNNER = """
import os, runpy, sys
import torch, torch._dynamo, torch._functorch.aot_autograd
for folder in sys.argv[2:]:
    child = os.fork()
    if not child:
        for k, name in enumerate(("stdout", "stderr"), 1):
            os.dup2(os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY), k)
        os.environ.update(line.rstrip("\\n").split("=", 1) for line in open(os.path.join(folder, "variables")))
        code = 1
        try:
            runpy.run_path(sys.argv[1], run_name="__main__")
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    open(os.path.join(folder, "status"), "w").write(str(os.waitstatus_to_exitcode(status)))
"""


def commands() -> list[tuple[str, list[str]]]:
    """The table's rows that name a channel: what stands there, and the channels here."""
    found = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `") and "MLIRFUSE_DUMP=" in line:
            there, here = line.strip("| ").split(" | ")[:2]
            named = re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`]*)`", here.replace("MLIRFUSE_DUMP=", ""))))
            found.append((there, [name for name in named if name in config.DUMPS]))
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What each command printed to stderr."""
    top = tmp_path_factory.mktemp("commands")
    (top / "script.py").write_text(SCRIPT)
    folders = []
    for at, (_, channels) in enumerate(commands()):
        folders.append(top / str(at))
        folders[-1].mkdir()
        variables = {"MLIRFUSE_DUMP": ",".join(channels), "MLIRFUSE_FALLBACK": "0"}
        variables["MLIRFUSE_CACHE_DIR"] = str(folders[-1] / "cache")
        (folders[-1] / "variables").write_text("".join(f"{k}={v}\n" for k, v in variables.items()))
    subprocess.run(
        [sys.executable, "-c", RUNNER, str(top / "script.py"), *map(str, folders)], check=True, env=dict(os.environ)
    )
    return [((f / "status").read_text(), (f / "stderr").read_text()) for f in folders]


def test_each_command_prints_its_channels(runs):
    assert len(runs) >= 10
    for (there, channels), (status, text) in zip(commands(), runs, strict=True):
        assert channels and status == "0", (there, text)
        for channel in channels:
            assert f"mlirfuse {channel}: " in text, (there, channel, text)


def test_what_is_fused_is_seen_before_and_after(runs):
    """``="graph_fuser"``: the graph, and the group behind its guard with a fallback."""
    (text,) = [text for (there, _), (_, text) in zip(commands(), runs) if '="graph_fuser"' in there]
    before, after = text.split("===---- mlirfuse grouped: ")
    assert "fusion.add" in before and '"fusion.group"' not in before
    assert after.count('"fusion.group"') >= 1 and '"fusion.guard"' in after
