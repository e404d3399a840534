"""The documentation is up to date: generated pages are what their generators give, code runs, links lead somewhere."""

import importlib.util
import pathlib
import re
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page):
    return str(page.relative_to(ROOT))


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


def test_page_of_outputs():
    """What the page quotes is what is printed, times and addresses aside."""
    from mlirfuse.lowering import llvm

    if not {"avx512f", "avx512vl", "avx512bw"} <= llvm.host_processor().features:
        pytest.skip("the page is of a processor with AVX-512")
    module = load("generate_debugging")
    text = pathlib.Path(module.PAGE).read_text()
    assert module.settled(text) == module.settled(module.page()), "run docs/generate_debugging.py"


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


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name_of)
def test_links(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        if "://" in target:
            continue
        found = (page.parent / target) if target else page
        assert found.exists(), f"{page.name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(found), f"{page.name} links to {target}#{anchor}, which is no heading"


def anchors(page):
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).strip().replace(" ", "-") for text in headings}


def test_every_page_is_in_the_site():
    """mkdocs.yml lists each page of docs/ once, and nothing else."""
    listed = re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    hooks = load("hooks")
    there = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted([*there, *hooks.OUTSIDE.values()])


def test_links_out_of_the_docs_folder_are_no_links_on_the_site():
    links = load("hooks").links
    there = {"README.md", "docs/torch/guide.md", "docs/images/explain.png", "mlirfuse/api.py"}
    for source, text, wanted in [
        ("docs/start/a.md", "[a](../torch/guide.md#x)", "[a](../torch/guide.md#x)"),
        ("docs/start/a.md", "[the code](../../mlirfuse/api.py)", "the code (`mlirfuse/api.py`)"),
        ("docs/start/a.md", "[`mlirfuse/api.py`](../../mlirfuse/api.py)", "`mlirfuse/api.py`"),
        ("docs/start/a.md", "[how](../../CONTRIBUTING.md#tests)", "[how](../project/contributing.md#tests)"),
        ("CONTRIBUTING.md", "![](docs/images/explain.png)", "![](../images/explain.png)"),
        ("docs/start/a.md", "[x](https://x.org) [y](#z)", "[x](https://x.org) [y](#z)"),
    ]:
        assert links(text, source, there.__contains__) == wanted
    assert links("[c](../../mlirfuse/api.py)", "docs/start/a.md", there.__contains__, "https://h/r") == (
        "[c](https://h/r/blob/HEAD/mlirfuse/api.py)"
    )
    with pytest.raises(ValueError, match=r"docs/start/a.md links to mlirfuse/none.py"):
        links("[c](../../mlirfuse/none.py)", "docs/start/a.md", there.__contains__)


def test_the_map_names_files_that_are_there():
    names = {
        path.name for folder in ("mlirfuse", "test", "docs") for path in (ROOT / folder).rglob("*") if path.is_file()
    }
    for name in re.findall(r"[\w/]+\.(?:py|cpp)\b", (ROOT / "docs" / "internals" / "architecture.md").read_text()):
        assert name.rpartition("/")[2] in names, f"docs/internals/architecture.md names {name}, which is not there"


def test_contributing_names_files_and_tests_that_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = [ROOT / path for path in re.findall(r"`((?:mlirfuse|test|docs|benchmarks)/[\w./-]+)`", text)]
    missing = [str(path) for path in paths if not path.exists()]
    tests = {path.stem for path in (ROOT / "test" / "py").rglob("test_*.py")}
    missing += set(re.findall(r"`(test_\w+)(?:\.py)?`", text)) - tests
    folders = {path.name for path in (ROOT / "test" / "py").iterdir() if path.is_dir() and path.name[0] not in "._"}
    missing += folders - set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert not missing and len(paths) > 20


def test_the_page_of_the_seeds_names_what_is_there():
    """Its passes, pipelines, switches, variables, dumps, files and tests."""
    from mlirfuse.core import config
    from mlirfuse.passes import base

    base.discover()
    spans = re.findall(r"`([^`]+)`", (ROOT / "docs" / "nvfuser" / "seeds.md").read_text())
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
    "page",
    ["README.md", "docs/index.md", "docs/start/tutorial.md", "docs/start/export.md", "docs/numpy/programs.md",
     "docs/internals/levels.md", "docs/torch/guide.md", "docs/torch/tutorial.md",
     "docs/torch/memory-and-precision.md"],
)  # fmt: skip
def test_code_runs(page, capsys, monkeypatch, tmp_path):
    """A page's blocks run one after the other, with nothing but what they define."""
    page = ROOT / page
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    text = page.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert blocks
    for block in blocks:
        if "import torch" in block.group(1):
            pytest.importorskip("torch")
        line = text[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block.group(1), str(page), "exec"), module.__dict__)
    from mlirfuse.passes import base

    base.PASSES.pop("example-exp2", None)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_of_prose_are_no_longer_than_those_of_code(page):
    code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        assert code or line.startswith("|") or len(line) <= 120, f"line {number}"
