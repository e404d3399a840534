"""Benchmarks run by hand, and seldom: what they take from the package is there."""

from __future__ import annotations

import ast
import importlib
import pathlib
import types

import pytest

FILES = sorted((pathlib.Path(__file__).parents[3] / "benchmarks").rglob("*.py"))


def _found(module: str, name: str | None = None):
    """The module, or what it has under that name; None where a package that it needs is not installed."""
    try:
        found = importlib.import_module(module)
        if name is None or hasattr(found, name):
            return getattr(found, name) if name else found
        return importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("mlirfuse", "mlirfuse_runtime"):
            raise
        return None


def missing(text: str) -> list[str]:
    """The names of mlirfuse's modules that a program uses and that are not there."""
    modules, found = {}, []
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mlirfuse":
            for name in node.names:
                try:
                    value = _found(node.module, name.name)
                except ImportError:
                    found.append(f"{node.module}.{name.name}")
                else:
                    if isinstance(value, types.ModuleType):
                        modules[name.asname or name.name] = value
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            if isinstance(node.ctx, ast.Load) and not hasattr(module, node.attr):
                found.append(f"{module.__name__}.{node.attr}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_names_of_the_package(path):
    assert missing(path.read_text()) == []


def test_a_missing_name_is_found():
    text = "from mlirfuse.core import config, conflict\nfrom mlirfuse.core.errors import NoError\nconfig.fallbacks\n"
    assert missing(text) == ["mlirfuse.core.conflict", "mlirfuse.core.errors.NoError", "mlirfuse.core.config.fallbacks"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_helpers_are_in_the_folders_that_are_named(path):
    """What a benchmark imports from the tests is in a folder that it puts on the path."""
    tests, text = pathlib.Path(__file__).parents[1], path.read_text()
    imported = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    foreign = [name for name in imported if name and not (path.parent / f"{name}.py").exists()]
    for folder in {found.parent.name for name in foreign for found in tests.glob(f"*/{name}.py")}:
        assert f"test/py/{folder}" in text
