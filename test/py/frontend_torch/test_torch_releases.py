"""What the back end has to do with torch's own modules: which names it uses, that it changes none, and what happens on a
release that lacks some or was not tested."""

from __future__ import annotations

import ast
import importlib
import os
import pathlib
import subprocess
import sys
import types
import warnings

import pytest

torch = pytest.importorskip("torch")

import mlirfuse.torch
from mlirfuse.core import version
from mlirfuse.frontend.torch import backend, torch_private
from mlirfuse.frontend.torch.aot import min_cut
from mlirfuse.frontend.torch.aot import partition as partitions
from mlirfuse.frontend.torch.rewrites import channels_last

FOLDER = pathlib.Path(torch_private.__file__).parent
PUBLIC = {"torch.__file__", "torch._dynamo.reset", "torch._dynamo.config", "torch._dynamo.mark_dynamic"}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


# ---- the names


for late in torch_private.LATE:
    assert late.found is not None


@pytest.mark.parametrize("name", torch_private.NAMES, ids=lambda n: f"{n.where}.{n.name}")
def test_torch_has_the_name(name):
    """A failure names what this release of torch changed: ``torch_private.py`` needs another way."""
    if name.name == "_get_memory_budget_annotation" and torch.__version__ < "2.13":
        pytest.skip("as of torch 2.13")
    assert name.found, f"torch {torch.__version__} has no {name.where}.{name.name}{name.takes}: {name.instead}"


def test_this_release_is_one_of_those_tested():
    assert ".".join(torch.__version__.split(".")[:2]) in version.TORCH_TESTED


def private_uses(path: pathlib.Path) -> list[str]:
    """The names with an underscore in front that a file takes of torch."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("torch.")]
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch."):
            found.append(ast.unparse(node))
    internal = [
        name
        for name in found
        if any(part.startswith("_") for part in name.split(".")) or name.startswith(("torch.fx.exp", "torch.multip"))
    ]
    return [n for n in internal if not n.startswith("torch.ops.") and not any(n.startswith(p) for p in PUBLIC)]


def test_no_other_file_uses_private_names():
    files = [*FOLDER.rglob("*.py"), pathlib.Path(mlirfuse.torch.__file__)]
    files.remove(pathlib.Path(torch_private.__file__))
    uses = {path.name: names for path in files if (names := [n for n in private_uses(path) if n != "torch._dynamo"])}
    assert uses == {}


# ---- nothing of torch's is changed

WATCHED = (
    "torch._functorch.partitioners",
    "torch._functorch.aot_autograd",
    "torch._functorch.compile_utils",
    "torch._functorch._aot_autograd.autograd_cache",
    "torch._functorch._aot_autograd.graph_compile",
    "torch._functorch._aot_autograd.graph_capture",
    "torch._functorch._aot_autograd.runtime_wrappers",
    "torch._inductor.codecache",
    "torch._inductor.cudagraph_trees",
    "torch._inductor.cudagraph_utils",
    "torch._inductor.output_code",
    "torch._dynamo.convert_frame",
    "torch._dynamo.output_graph",
    "torch._dynamo.backends.common",
    "torch._dynamo.backends.cudagraphs",
    "torch._logging._internal",
    "torch._guards",
    "torch.fx.graph_module",
    "torch.fx.graph",
    "torch.fx.node",
    "torch.fx._lazy_graph_module",
)


def what_torch_has() -> dict[str, int]:
    """Each function and class of the modules above, and each attribute of those classes, by identity."""
    found = {}
    for where in WATCHED:
        module = importlib.import_module(where)
        for name, value in vars(module).items():
            if isinstance(value, (types.FunctionType, type)) or name.isupper():
                found[f"{where}.{name}"] = id(value)
            if isinstance(value, type) and value.__module__.startswith("torch."):
                for attribute, held in vars(value).items():
                    if isinstance(held, (types.FunctionType, staticmethod, classmethod, property)):
                        found[f"{where}.{name}.{attribute}"] = id(held)
    return found


def changes(before: dict[str, int]) -> set[str]:
    now = what_torch_has()
    return {name for name, held in before.items() if now.get(name) != held}


def changed_by_torch(before: dict[str, int]) -> set[str]:
    """What torch itself changes as it compiles: counters, and what it patches for a while."""
    from functorch.compile import default_partition
    from torch._dynamo.backends.common import aot_autograd

    seen = set()

    def watched(f):
        return lambda *args, **kwargs: (seen.update(changes(before)), f(*args, **kwargs))[1]

    compiler = watched(lambda module, inputs: module)
    f = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=watched(default_partition))
    torch.compile(torch.nn.Linear(3, 3), backend=f)(torch.randn(2, 3)).sum().backward()
    torch._dynamo.reset()
    return seen


def test_nothing_of_torchs_is_changed(monkeypatch):
    """Before, while AOTAutograd partitions and compiles, as the graphs run, and after."""
    before, seen = what_torch_has(), []
    by_torch = changed_by_torch(before)

    def watched(f):
        def run(*args, **kwargs):
            seen.append(changes(before) - by_torch)
            return f(*args, **kwargs)

        return run

    monkeypatch.setattr(min_cut, "saved_values", watched(min_cut.saved_values))
    monkeypatch.setattr(partitions.extract, "modules", watched(partitions.extract.modules))
    monkeypatch.setattr(backend, "lower_to_host", watched(backend.lower_to_host))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(8))
    y = torch.compile(model, backend="mlirfuse", options={"fallback": False})(torch.randn(4, 8))
    seen.append(changes(before) - by_torch)
    y.sum().backward()
    seen.append(changes(before) - by_torch)
    assert len(seen) >= 6 and not any(seen)
    torch._dynamo.reset()
    assert not changes(before) - by_torch


# ---- fallbacks


def broken(*args, **kwargs):
    raise RuntimeError("no longer so")


WHERE = [
    (partitions.extract, "modules"),
    (min_cut, "saved_values"),
    (channels_last, "convert_if_it_pays"),
    (backend, "_compilers"),
    (torch_private, "forward_metadata"),
]


@pytest.mark.parametrize(("module", "name"), WHERE)
def test_what_fails_before_a_launch_runs_as_in_eager(module, name, monkeypatch):
    monkeypatch.setattr(module, name, broken)
    layer, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    f = lambda x: layer(x).tanh().sum()  # noqa: E731
    with pytest.warns(UserWarning, match="mlirfuse could not compile.*no longer so"):
        loss = torch.compile(f, backend="mlirfuse")(x)
        loss.backward()
    torch.testing.assert_close(loss, f(x))
    torch.testing.assert_close(layer.weight.grad, torch.autograd.grad(f(x), layer.weight)[0])
    torch._dynamo.reset()
    with pytest.raises(Exception, match="no longer so"):
        torch.compile(f, backend="mlirfuse", options={"fallback": False})(x).backward()


def test_a_partition_that_fails_is_torchs_for_aot_function(monkeypatch):
    from functorch.compile import aot_function

    monkeypatch.setattr(partitions.extract, "modules", broken)
    x = torch.randn(4, requires_grad=True)
    with pytest.warns(UserWarning, match="could not partition a graph.*no longer so"):
        y = aot_function(lambda x: (x.sin() * x).sum(), **mlirfuse.torch.compilers())(x)
    torch.testing.assert_close(torch.autograd.grad(y, x)[0], x.cos() * x + x.sin())
    with pytest.raises(RuntimeError, match="no longer so"):
        aot_function(lambda x: (x.sin() * x).sum(), **mlirfuse.torch.compilers(fallback=False))(x)


def test_errors_of_a_program_are_still_its_own():
    """They come while Dynamo traces, which the fallback does not touch."""
    with pytest.raises(Exception, match="shape|size|dimension"):
        torch.compile(lambda x: x @ torch.ones(3, 3), backend="mlirfuse", fullgraph=True)(torch.ones(4, 4))


def test_an_untested_release_is_warned_of_once(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "3.1.0")
    monkeypatch.setattr(
        torch_private, "NAMES", [*torch_private.NAMES, torch_private.Name("torch._new", "f", (), "g", False)]
    )
    torch_private.warn_of_untested.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for f in (torch.sin, torch.cos):
                torch.compile(lambda x, f=f: f(x) * 2, backend="mlirfuse")(torch.ones(3))
        told = [str(w.message) for w in caught if "was tested with torch" in str(w.message)]
        assert len(told) == 1 and "3.1.0" in told[0] and "torch._new.f (g)" in told[0]
    finally:
        torch_private.warn_of_untested.cache_clear()


SCRIPT = """
import sys, warnings
import torch, torch._dynamo.backends.registry, {module} as owner
torch._dynamo.list_backends()  # torch's own import it
del owner.{name}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = torch.ones(3, requires_grad=True)
    import mlirfuse.torch
    y = torch.compile(lambda x: (x.sin() * x).sum(), backend="mlirfuse")(x)
    y.backward()
torch.testing.assert_close(x.grad, x.cos() * x + x.sin())
print(sum("mlirfuse" in str(w.message) for w in caught))
"""


@pytest.mark.parametrize(
    ("module", "name", "warned"),
    [
        ("torch._functorch.aot_autograd", "aot_module_simplified", 1),
        ("torch._functorch._aot_autograd.schemas", "AOTAutogradCacheInfo", 0),
        ("torch._inductor.output_code", "OutputCode", 0),
    ],
)
def test_a_name_that_torch_lacks_stops_nothing(module, name, warned):
    script = SCRIPT.format(module=module, name=name)
    env = {**os.environ, "MLIRFUSE_CACHE": "0"} if warned else None  # with a cache few graphs need the name
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) == warned
