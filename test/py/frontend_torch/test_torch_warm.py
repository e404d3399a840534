"""Warm start: what AOTAutograd's cache has is not compiled again, and what it has wrongly is."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad

import mlirfuse.torch
from mlirfuse.core import config
from mlirfuse.frontend.torch import backend, torch_private, warm
from mlirfuse.frontend.torch.aot import graph_cache
from mlirfuse.runtime import cache
from mlirfuse.runtime.program import Program

SCRIPT = """
import json, sys
import torch
import mlirfuse.torch
from mlirfuse.frontend.torch import backend
from mlirfuse.runtime import cache

compiled = []
backend.lower_to_host = lambda *given, lower=backend.lower_to_host: (compiled.append(given[1]), lower(*given))[1]
if "precompile" in sys.argv:
    torch._dynamo.config.caching_precompile = True
if "load" in sys.argv:
    torch.compiler.load_cache_artifacts(open("artifacts", "rb").read())

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(8)
)
run = torch.compile(model, backend="mlirfuse", options={"fallback": False})
out = run(torch.randn(4, 8))
out.square().sum().backward()
numbers = [out.tolist(), *(p.grad.tolist() for p in model.parameters()), *(b.tolist() for b in model.buffers())]

f = torch.compile(lambda x, w: ((x @ w).t().softmax(-1), x.mT, x.shape[0] + 1), backend="mlirfuse")
for n in (3, 5):
    x = torch.arange(4.0 * n).reshape(n, 4).requires_grad_()
    torch._dynamo.mark_dynamic(x, 0)
    y, view, size = f(x, torch.eye(4))
    y[0].sum().backward()
    numbers += [y.tolist(), y.stride(), view.data_ptr() == x.data_ptr(), size, x.grad.tolist()]
if "save" in sys.argv:
    open("artifacts", "wb").write(torch.compiler.save_cache_artifacts()[0])
generators = [name for name in ("cpp", "triton", "wrapper") if f"torch._inductor.codegen.{name}" in sys.modules]
found = {"compiled": compiled, "misses": cache.misses, "numbers": numbers, "generators": generators}
found["traced"] = torch._dynamo.utils.counters["frames"]["total"]
print(json.dumps(found))
"""


def process(folder: Path, where: str, *given: str) -> dict:
    """What a process of its own tells, with caches in ``folder / where``."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    env = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / where / "torch"),
        "MLIRFUSE_CACHE_DIR": str(folder / where / "mlirfuse"),
    }
    found = subprocess.run([sys.executable, script, *given], cwd=folder, env=env, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1])


def test_a_second_process_compiles_nothing(tmp_path):
    """Neither graphs nor kernels, forward and backward; nor does one elsewhere that was given torch's artifacts."""
    first = process(tmp_path, "here", "save")
    assert first["compiled"] == ["forward", "backward"] * 2 and first["misses"] > 0
    assert first["generators"] == []  # of Inductor
    warm = {**first, "compiled": [], "misses": 0}
    assert process(tmp_path, "here") == warm
    assert process(tmp_path, "elsewhere", "load") == warm


def test_a_process_with_dynamos_results_does_not_trace_them(tmp_path):
    """The model is neither traced nor compiled; torch does not find its result for the function of a dynamic size."""
    first = process(tmp_path, "here", "save", "precompile")
    assert first["compiled"] == ["forward", "backward"] * 2 and first["traced"] > 0
    found = process(tmp_path, "elsewhere", "load", "precompile")
    assert found["numbers"] == first["numbers"] and found["misses"] == 0
    assert found["traced"] < first["traced"] and found["compiled"] in ([], ["forward", "backward"])


# ---- in one process: Dynamo forgets, what is on disk stays


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """The graphs that were compiled so far, with caches of this test's own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MLIRFUSE_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(torch_private, "traced", lambda: False)  # pytest's handlers hear torch's traces
    seen = []

    def observe(module, which, *rest):
        seen.append(which)
        return lower(module, which, *rest)

    lower = backend.lower_to_host
    monkeypatch.setattr(backend, "lower_to_host", observe)
    with torch._functorch.config.patch(enable_autograd_cache=True):
        yield seen


def f(x):
    return torch.nn.functional.scaled_dot_product_attention(x, x, x).tanh().sum() + torch.linalg.det(x[0, 0])


def step(**options):
    """Loss and gradient of ``f``, which Dynamo sees for the first time."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(1, 2, 4, 4, requires_grad=True)
    loss = torch.compile(f, backend="mlirfuse", options={"fallback": False, **options})(x)
    (gradient,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(gradient, torch.autograd.grad(f(x), x)[0])
    torch.testing.assert_close(loss, f(x))
    return loss


BOTH = ["forward", "backward"]


def test_it_is_found_again(compiled):
    step()
    step()
    assert compiled == BOTH


@pytest.mark.parametrize(
    "rewritten",
    [
        lambda x, i: torch.nn.functional.embedding_bag(i, x, mode="mean"),
        lambda x, i: torch.nn.functional.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
        lambda x, i: torch.nn.functional.max_pool2d(x[None], 2),
        lambda x, i: torch.nn.functional.cross_entropy(x @ x.T, i[:, 0]),
        lambda x, i: torch.nn.functional.pad(x.roll(1, 0), (1, 1)),
        lambda x, i: torch.cat([x[:0], x, x.sin()]),
    ],
)
def test_what_rewrites_make_is_found_again(compiled, rewritten):
    """A graph with a function that no op is would never be stored."""
    x, i = torch.randn(8, 8, requires_grad=True), torch.arange(16).view(8, 2) % 8
    for _ in range(2):
        torch._dynamo.reset()
        found = torch.compile(rewritten, backend="mlirfuse", options={"fallback": False})(x, i)
        torch.testing.assert_close(found, rewritten(x, i))
        found.sum().backward()
    assert compiled == BOTH


def entries(tmp_path):
    return [path for path in (tmp_path / "aotautograd").rglob("*") if path.is_file()]


def flipped(data: bytes) -> bytes:
    """One bit of what is ours is another: of the name of an op in the graph."""
    place = data.index(b"tanh")
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize("damaged", [lambda d: b"", lambda d: d[: len(d) // 2], lambda d: b"x" + d[1:], flipped])
def test_a_damaged_entry_is_compiled_anew(damaged, compiled, tmp_path):
    step()
    (entry,) = entries(tmp_path)
    entry.write_bytes(damaged(entry.read_bytes()))
    for _ in range(2):
        step()
    assert compiled[:4] == BOTH * 2
    assert len(entries(tmp_path)) <= 2  # they do not pile up


def test_other_options_are_compiled_anew(compiled):
    step()
    step(eager_random=True)
    assert compiled == BOTH * 2


@pytest.mark.parametrize(
    "other",
    [
        lambda patch: patch.setattr(cache, "sources", lambda: "another version"),
        lambda patch: patch.setattr(warm, "serialized", lambda properties: "another processor"),
        lambda patch: patch.setattr(config, "horizontal", not config.horizontal),
    ],
)
def test_another_compiler_or_machine_compiles_anew(other, compiled, monkeypatch):
    step()
    other(monkeypatch)
    step()
    assert compiled == BOTH * 2


def test_another_choice_of_attention_is_compiled_anew(compiled):
    step()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        step()
    assert compiled == BOTH * 2


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "setting",
    [
        lambda: torch._functorch.config.patch(activation_memory_budget=0.5),
        lambda: torch._functorch.config.patch(activation_memory_budget_solver="greedy"),
        lambda: torch._inductor.config.patch(fallback_random=not torch._inductor.config.fallback_random),
        lambda: torch.compiler.config.patch(cache_key_tag="a user's"),
        lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=True, enabled=True),
        deterministic,
    ],
)
def test_another_setting_compiles_anew(setting, compiled):
    f = lambda x: (x @ x).sin().sum()  # noqa: E731
    for context in (contextlib.nullcontext, setting, setting):
        torch._dynamo.reset()
        with context():
            torch.compile(f, backend="mlirfuse")(torch.randn(4, 4, requires_grad=True)).backward()
    assert compiled == BOTH * 2


def test_other_inputs_compile_anew(compiled):
    """The graph's text is the same for all; each second call finds an entry."""
    x = torch.randn(4, 6)
    for given in (x, x.clone().requires_grad_(), torch.randn(6, 4).T, x.double(), x[:2]):
        for _ in range(2):
            torch._dynamo.reset()
            y = torch.compile(torch.sin, backend="mlirfuse")(given)
            assert y.requires_grad == given.requires_grad and y.stride() == given.sin().stride()
            torch.testing.assert_close(y, given.sin())
    assert compiled == ["inference", *BOTH, *["inference"] * 3]


def test_torchs_sources_are_read_once_and_when_a_file_changes(monkeypatch, compiled):
    """By an installation: a digest of them is in the kernel cache, by the files' sizes and times."""
    read, found = [], lambda: graph_cache._torchs_sources.__wrapped__()
    monkeypatch.setattr(torch_private, "torchs_sources", lambda: (read.append(1), b"digest %d" % len(read))[1])
    first = found()
    assert found() == first and len(read) == 1
    files = list(graph_cache._files(os.path.dirname(torch.__file__)))
    assert any("/_decomp/decompositions.py " in line for line in files)
    monkeypatch.setattr(graph_cache, "_files", lambda root: [*files[1:], files[0] + "1"])
    assert found() != first and len(read) == 2
    graph_cache._torchs_sources.cache_clear()
    step()
    monkeypatch.setattr(graph_cache, "_torchs_sources", lambda: "a patched torch")
    step()
    assert compiled == BOTH * 2


def test_unknown_graphs_have_torchs_key(monkeypatch, compiled):
    """With ops whose text does not say what they compute; AOTAutograd compiles and caches them as ever."""
    by_torch = []
    monkeypatch.setattr(
        graph_cache,
        "aot_module_simplified",
        lambda module, *rest, **more: (by_torch.append(1), torch_private.aot_module_simplified(module, *rest, **more))[
            1
        ],
    )

    @torch.library.custom_op("mlirfuse_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    checkpoint = lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)  # noqa: E731
    for f, unknown in ((torch.sin, 0), (twice, 1), (checkpoint, 1)):
        by_torch.clear()
        for _ in range(2):
            torch._dynamo.reset()
            x = torch.randn(3, requires_grad=f is not twice)
            torch.testing.assert_close(torch.compile(lambda x: f(x), backend="mlirfuse")(x), f(x))
        assert len(by_torch) == 2 * unknown
    assert compiled == [*BOTH, "inference", *BOTH]


def test_the_processor_decides():
    """Its features and caches are in the key."""
    properties = warm.target_of(torch.device("cpu")).properties
    assert all(feature in warm.serialized(properties) for feature in properties.features)
    assert str(properties.last_cache) in warm.serialized(properties)


def test_where_caches_are_off_nothing_is_kept(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("MLIRFUSE_CACHE", "0")
    step()
    step()
    assert compiled == BOTH * 2 and not entries(tmp_path)


def test_what_is_looked_at_is_compiled(compiled):
    step()
    torch._dynamo.reset()
    told = mlirfuse.torch.explain(f, torch.randn(1, 2, 4, 4, requires_grad=True))
    assert [graph.which for graph in told.graphs] == BOTH and compiled == BOTH * 2


def test_what_ran_outside_is_told_again(compiled):
    for _ in range(2):
        with pytest.warns(UserWarning, match="linalg_lu"):
            step(warn_outside=True)
    assert compiled == BOTH


def test_a_graph_that_runs_op_by_op_is_not_kept(compiled, tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("no such kernel")

    with monkeypatch.context() as patch:
        patch.setattr(backend, "lower_to_host", broken)
        with pytest.warns(UserWarning, match="no such kernel"):
            step(fallback=True, repro=str(tmp_path / "scripts"))
    step(fallback=True, repro=str(tmp_path / "scripts"))
    assert compiled == BOTH


def test_a_kernel_that_fails_later_is_one_warning(compiled, monkeypatch):
    """There is no graph to write a script of: the warning says how to get one."""

    def compiled_program(self, env, alignments):
        raise RuntimeError("no code for it")

    step(fallback=True)
    monkeypatch.setattr(Program, "compiled_program", compiled_program)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        step(fallback=True)
    told = [str(w.message) for w in seen if "no code for it" in str(w.message)]
    assert len(told) == 2 and all(
        "to get a script that reproduces it, set" in text for text in told
    )  # forward and backward
    assert compiled == BOTH


def test_custom_ops_are_kept_and_what_belongs_to_a_process_is_not(compiled):
    """One that writes into its argument comes as a higher-order op."""

    @torch.library.custom_op("mlirfuse_test::fill", mutates_args=("x",))
    def fill(x: torch.Tensor, by: float) -> None:
        x.fill_(by)

    def g(x):
        y = x.sin()
        fill(y, 2.0)
        return y * x

    for x in (torch.ones(3), torch.full((3,), 2.0)):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(g, backend="mlirfuse")(x), 2 * x)
    assert compiled == ["inference"]
    with pytest.raises(Exception, match="belongs to its process"):
        warm._Pickler(io.BytesIO()).dump(torch.ops.higher_order.triton_kernel_wrapper_functional)


def test_calls_that_torch_transforms_have_what_they_need(compiled):
    """Batches of gradients and tangents run by torch's own ops, which the cache keeps too."""
    f = lambda x: x.sin().cumsum(0) * x.softmax(0)  # noqa: E731
    x = torch.randn(4, requires_grad=True)
    for _ in range(2):
        torch._dynamo.reset()
        run = torch.compile(f, backend="mlirfuse", options={"fallback": False})
        torch.testing.assert_close(
            *[torch.autograd.grad(g(x), x, torch.eye(4), is_grads_batched=True)[0] for g in (run, f)]
        )
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x.detach(), torch.ones(4))
            torch.testing.assert_close(*[forward_ad.unpack_dual(g(dual)).tangent for g in (run, f)])
    traced = torch.__version__ < "2.14"  # later Dynamo leaves calls with tangents to eager
    assert compiled == [*BOTH, *["inference"] * traced]


def test_a_backward_runs_twice(compiled):
    x = torch.randn(4, 4, requires_grad=True)
    for _ in range(2):
        torch._dynamo.reset()
        loss = torch.compile(lambda x: ((x * 2) @ x).sin().tanh().sum(), backend="mlirfuse")(x)
        torch.testing.assert_close(*[torch.autograd.grad(loss, x, retain_graph=retain)[0] for retain in (True, False)])
    assert compiled == BOTH
