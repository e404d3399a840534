"""NumPy's private names: that this release has them, that no other file uses one, and what runs without them."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import mlirfuse
from mlirfuse.runtime import numpy_private

FOLDER = pathlib.Path(mlirfuse.__file__).parent


@pytest.mark.parametrize("name", numpy_private.NAMES, ids=lambda n: f"{n.where}.{n.name}")
def test_numpy_has_the_name(name):
    """A failure names what this release of NumPy changed: ``numpy_private.py`` needs another way."""
    assert name.found, f"NumPy {np.__version__} has no {name.where}.{name.name}: {name.instead}"


def private_uses(path: pathlib.Path) -> list[str]:
    """The names with an underscore in front that a file takes of NumPy, also by a string."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names if (node.module or "").startswith("numpy")]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            found.append(node.value)
        elif isinstance(node, ast.Attribute):
            found.append(ast.unparse(node))
    parts = [name.split(".") for name in found if name.split(".")[0] in ("np", "numpy")]
    private = [name for name in parts if any(n.startswith("_") and not n.startswith("__") for n in name)]
    return [".".join(name) for name in private if name[1] != "_NoValue"]


def test_one_file_uses_private_names():
    files = [*(FOLDER / "frontend" / "numpy").rglob("*.py"), *(FOLDER / "runtime").rglob("*.py")]
    uses = {path.name: private_uses(path) for path in files}
    assert {name for name, found in uses.items() if found} == {"numpy_private.py"}


PROGRAM = """
import numpy as np
from mlirfuse.runtime import numpy_private
assert numpy_private._use("numpy._core.umath", "of_no_release", "") is None and not numpy_private.NAMES[-1].found
assert numpy_private._use("numpy.of_no_release", "name", "") is None
for name in ("clip_ufunc", "clip_method", "replace_nan", "numeric_name", "error_state", "make_error_state"):
    assert getattr(numpy_private, name) is not None
    setattr(numpy_private, name, None)
import mlirfuse, warnings
warnings.simplefilter("ignore")
x = np.linspace(-2, 2, 3000).reshape(50, 60)
x[0, 0] = np.nan
for f in (lambda x: np.clip(x, -1, 1) + 1, lambda x: np.nansum(x, 0), lambda x: np.nanprod(x[:2]) * x, lambda x: x @ x.T,
          lambda x: np.linalg.norm(x[1:], np.inf), lambda x: np.linalg.inv(x[1:, :49]), lambda x: np.nan_to_num(x)):
    for _ in range(2):
        np.testing.assert_allclose(mlirfuse.jit(f)(x), f(x), 1e-9)
"""


def test_without_the_names_functions_run_as_numpys_own():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=300)
