"""The documentation is up to date: generated pages are what their generators give, code runs, links lead somewhere."""

import importlib.util
import pathlib
import re
import sys
import types

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("generator", ["generate_ops", "generate_passes", "generate_levels", "generate_numpy_programs"])
def test_generated_page(generator, monkeypatch):
    from mlirfuse.passes import base

    base.discover()
    ours = {name: cls for name, cls in base.PASSES.items() if cls.__module__.startswith("mlirfuse.")}
    monkeypatch.setattr(base, "PASSES", ours)  # not those that other tests register
    module = load(generator)
    assert pathlib.Path(module.PAGE).read_text() == module.page(), f"run docs/{generator}.py"


@pytest.mark.parametrize("path, make", [("PAGE", "page"), ("SEGMENTED_PAGE", "segmented_page")])
def test_page_of_outputs(path, make):
    """What the pages quote is what is printed, times and addresses aside."""
    module = load("generate_debugging")
    text = pathlib.Path(getattr(module, path)).read_text()
    assert module.settled(text) == module.settled(getattr(module, make)()), "run docs/generate_debugging.py"


def test_times_and_addresses_are_no_difference():
    settled = load("generate_debugging").settled
    first = """in   x  f32[8]  strides (1)  0x55c5718c4c20
mlirfuse effective-bandwidth: f, segment 2 (reduction): 526 kB in 0.0256 ms (mlirfuse_reduction1 0.0234 + mlirfuse_reduction1_finish 0.0022): 20.6 GB/s
mlirfuse cache: disk: object-6d0dd3e667ae5ef97 stored, 6224 bytes"""
    second = """in   x  f32[8]  strides (1)  0x7f872e000000
mlirfuse effective-bandwidth: f, segment 2 (reduction): 526 kB in 1.2 ms (mlirfuse_reduction1 1.1 + mlirfuse_reduction1_finish 0.1): 7 GB/s
mlirfuse cache: disk: object-d006a2cf06b25bac5 stored, 16240 bytes"""
    assert settled(first) == settled(second)
    assert settled(first) != settled(second.replace("526 kB", "525 kB")) and settled(first) != settled(
        second.replace("f32[8]", "f32[9]")
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_the_map_names_files_that_are_there():
    names = {
        path.name for folder in ("mlirfuse", "test", "docs") for path in (ROOT / folder).rglob("*") if path.is_file()
    }
    for name in re.findall(r"[\w/]+\.(?:py|cpp)\b", (ROOT / "docs" / "architecture.md").read_text()):
        assert name.rpartition("/")[2] in names, f"docs/architecture.md names {name}, which is not there"


def test_the_page_of_the_seeds_names_what_is_there():
    """Its passes, pipelines, switches, variables, dumps, files and tests."""
    from mlirfuse.core import config
    from mlirfuse.passes import base

    base.discover()
    spans = re.findall(r"`([^`]+)`", (ROOT / "docs" / "seeds.md").read_text())
    missing = []
    for span in spans:
        for name in re.findall(r"(?<![\w/-])fusion-[a-z-]+", span):
            missing += [name] if name not in {**base.PASSES, **base.PIPELINES} else []
        for name in re.findall(r"\bconfig\.(\w+)", span):
            missing += [name] if name not in config.NAMES else []
        for name in re.findall(r"\bMLIRFUSE_[A-Z_]+", span):
            missing += [name] if f"``{name}``" not in config.__doc__ else []
        for names in re.findall(r"MLIRFUSE_DUMP=([\w,-]+)", span):
            missing += [name for name in names.split(",") if name not in config.DUMPS]
        for path, name in re.findall(r"\b((?:mlirfuse|test|examples|benchmarks)/[\w./-]*)(?:::(\w+))?", span):
            file = ROOT / path
            if not file.exists() or (name and f"def {name}(" not in file.read_text()):
                missing.append(span)
    assert not missing and len(spans) > 200


@pytest.mark.parametrize(
    "page", ["README.md", "docs/tutorial.md", "docs/levels.md", "docs/torch-tutorial.md", "docs/export.md"]
)
def test_code_runs(page, capsys, monkeypatch, tmp_path):
    """A page's blocks run one after the other."""
    if "torch" in page:
        pytest.importorskip("torch")
    page = ROOT / page
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, r = rng.standard_normal((2, 4, 8, 64), np.float32)
    w, b1, b2 = rng.standard_normal((3, 64), np.float32)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    module.__dict__.update({"x": x, "r": r, "w": w, "b1": b1, "b2": b2})
    text = page.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert blocks
    for block in blocks:
        line = text[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block.group(1), str(page), "exec"), module.__dict__)
    from mlirfuse.passes import base

    base.PASSES.pop("example-exp2", None)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_lines_of_prose_are_no_longer_than_those_of_code(page):
    code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        assert code or line.startswith("|") or len(line) <= 120, f"line {number}"
