"""The layers: imports point down, and an import that points up is found."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytest.importorskip("importlinter")


def lint(folder):
    """Runs the contracts of ``folder``'s pyproject.toml over the package there."""
    program = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path.insert(0, ".")  # the package of this folder, not the one that is installed for editing
from importlinter.cli import lint_imports
sys.exit(lint_imports(no_cache=True))"""
    return subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)


@pytest.fixture
def copied(tmp_path):
    """A copy of the package's sources, to change."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "native")
    shutil.copytree(ROOT / "mlirfuse", tmp_path / "mlirfuse", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_imports_point_down():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "file, line, told",
    [
        (
            "ir/graph.py",
            "def _up():\n    from mlirfuse.runtime import cache",
            "mlirfuse.ir.graph -> mlirfuse.runtime.cache",
        ),
        ("runtime/cache.py", "from mlirfuse.inspect import dump", "mlirfuse.runtime.cache -> mlirfuse.inspect.dump"),
        (
            "frontend/nvfuser/values.py",
            "from mlirfuse.frontend.numpy import symint",
            "nvfuser.values -> mlirfuse.frontend.numpy",
        ),
    ],
    ids=["in a function", "at the top", "between front ends"],
)
def test_an_upward_import_fails(copied, file, line, told):
    path = copied / "mlirfuse" / file
    path.write_text(path.read_text() + f"\n\n{line}\n")
    done = lint(copied)
    assert done.returncode == 1 and told in done.stdout


def test_a_new_folder_needs_its_layer(copied):
    (copied / "mlirfuse" / "elsewhere.py").write_text("")
    assert lint(copied).returncode == 1


def circle(folder) -> list[str]:
    """Modules of ``folder``'s package that import each other in a circle, functions' imports included; none: []."""
    program = """import sys, graphlib, grimp
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path.insert(0, ".")
graph = grimp.build_graph("mlirfuse", exclude_type_checking_imports=True, cache_dir=None)
try:
    graphlib.TopologicalSorter({m: graph.find_modules_directly_imported_by(m) for m in graph.modules}).prepare()
except graphlib.CycleError as error:
    print(*error.args[1])"""
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_there_are_no_circles(copied):
    assert circle(ROOT) == []
    path = copied / "mlirfuse" / "frontend" / "torch" / "lower.py"
    path.write_text(path.read_text() + "\n\ndef _round():\n    from mlirfuse.frontend.torch import backend\n")
    assert {"mlirfuse.frontend.torch.lower", "mlirfuse.frontend.torch.backend"} <= set(circle(copied))
