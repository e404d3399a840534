"""``python -m mlirfuse`` and what its programs have in common with mlirfuse-opt."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import mlirfuse
from mlirfuse.runtime import cache
from mlirfuse.tools.main import COMMANDS, main


def run(*arguments: str, module: str = "mlirfuse", **settings) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, **settings)


def test_info_says_versions_devices_settings_and_cache():
    done = run("info", env={**os.environ, "MLIRFUSE_CACHE": "0", "MLIRFUSE_NUM_THREADS": "3"})
    rows = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    assert rows["mlirfuse"].startswith(mlirfuse.__version__) and rows["cache"] == "off (MLIRFUSE_CACHE)"
    assert "3 threads" in rows["CPU"] and rows["MLIRFUSE_NUM_THREADS"] == "3" and "GPU" in done.stdout
    assert "tested: 2." in rows["torch"]


def test_clear_cache_removes_entries_and_nothing_else(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLIRFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MLIRFUSE_CACHE", "1")
    for part in "ab":
        cache.store(cache.key("object", part), b"x" * 68)
    (tmp_path / ".writing-abc").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("keep")
    (tmp_path / "src").mkdir()
    assert main(["clear-cache"]) == 0
    assert capsys.readouterr().out.startswith("removed 3 entries, 200 B, from ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "src"]
    monkeypatch.setenv("MLIRFUSE_CACHE_DIR", str(tmp_path / "none"))
    assert main(["clear-cache"]) == 0 and not (tmp_path / "none").exists()


def test_commands_that_there_are_not(capsys):
    assert main(["inof"]) == 2
    assert "no command 'inof': did you mean 'info'?" in capsys.readouterr().err
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0 and f"python -m mlirfuse {name}" in capsys.readouterr().out


def test_versions():
    assert run("--version").stdout == f"mlirfuse {mlirfuse.__version__}\n"
    assert run("--version", module="mlirfuse.tools.opt").stdout.startswith(f"mlirfuse {mlirfuse.__version__}, MLIR of ")


@pytest.mark.parametrize(
    "module, arguments",
    [
        ("mlirfuse.tools.opt", ["--list-passes"]),
        ("mlirfuse.tools.opt", ["--help"]),
        ("mlirfuse.tools.opt", ["-"]),
        ("mlirfuse", ["info"]),
        ("mlirfuse", ["--help"]),
    ],
)
def test_nobody_reads_on(module, arguments):
    """As with ``… | head``: no traceback, whether the pipe is found closed at a write or at the end."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            input="module {}\n",
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(write)
    assert done.returncode in (0, 141) and done.stderr == ""  # argparse takes no notice of what it cannot write
