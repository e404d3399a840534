"""The documentation is up to date: generated pages are what their generators give, code runs, links lead somewhere."""

import importlib.util
import pathlib
import re

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("generator", ["generate_ops", "generate_passes"])
def test_generated_page(generator, monkeypatch):
    from mlirfuse.passes import base

    ours = {name: cls for name, cls in base.PASSES.items() if cls.__module__.startswith("mlirfuse.")}
    monkeypatch.setattr(base, "PASSES", ours)  # not those that other tests register
    module = load(generator)
    assert pathlib.Path(module.PAGE).read_text() == module.page(), f"run docs/{generator}.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_the_map_names_files_that_are_there():
    names = {path.name for folder in ("mlirfuse", "test", "docs") for path in (ROOT / folder).rglob("*") if path.is_file()}
    for name in re.findall(r"[\w/]+\.(?:py|cpp)\b", (ROOT / "docs" / "architecture.md").read_text()):
        assert name.rpartition("/")[2] in names, f"docs/architecture.md names {name}, which is not there"


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "tutorial.md"], ids=lambda p: p.name)
def test_code_runs(page, capsys):
    """A page's blocks run one after the other."""
    rng = np.random.default_rng(0)
    x, r = rng.standard_normal((2, 4, 8, 64), np.float32)
    w, b1, b2 = rng.standard_normal((3, 64), np.float32)
    namespace = {"x": x, "r": r, "w": w, "b1": b1, "b2": b2}
    text = page.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert blocks
    for block in blocks:
        line = text[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block.group(1), str(page), "exec"), namespace)
    from mlirfuse.passes import base

    base.PASSES.pop("example-exp2", None)
