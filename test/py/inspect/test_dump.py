"""``MLIRFUSE_DUMP`` and ``config.dump``: what is printed, where, and that calls that compile nothing do not pay for
it."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import mlirfuse
from mlirfuse.core import config
from mlirfuse.dialects import fusion
from mlirfuse.inspect import dump, lowered
from mlirfuse.inspect.dump import calls, sass
from mlirfuse.nvfuser import DataType, FusionDefinition
from mlirfuse.passes.base import run_pipeline
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.schedule import targets


def program():
    """A new function each time: two kernels in one group, an alias and a library op."""

    def sums_and_products(x, w):
        e = np.exp(x)
        return e.sum(0), e.sum(1), (x @ w) + 1, x.T

    return mlirfuse.jit(sums_and_products, fallback=False)


def arrays():
    return np.ones((8, 24), np.float32), np.ones((24, 4), np.float32)


def dumped(capfd, names, call=None):
    """What a new function prints to stderr."""
    with config.override(dump=names):
        (call or (lambda: program()(*arrays())))()
    return capfd.readouterr().err


def headers(text):
    return re.findall(r"===---- mlirfuse (\S+): (.*) ----===", text)


LABEL = r"sums_and_products(-\d+)?, specialization 0"


def test_every_name_is_documented():
    for name in config.DUMPS:
        assert f"``{name}``" in dump.__doc__ or name in config.LEVELS
    assert set(config.LEVELS) == set(lowered.LEVELS)


def test_unknown_names_list_those_that_there_are(monkeypatch):
    with pytest.raises(
        ValueError, match="no dump is called 'asm', 'pttx'; there are fusion, grouped,.* sass, guards, cache"
    ):
        config.dump = "ptx,pttx,asm"
    assert config.dump == frozenset()
    done = subprocess.run(
        [sys.executable, "-c", "import mlirfuse"],
        env={**os.environ, "MLIRFUSE_DUMP": "nope"},
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 1 and "ValueError: MLIRFUSE_DUMP: no dump is called 'nope'; there are fusion" in done.stderr
    )


def test_from_the_environment(tmp_path):
    script = "import mlirfuse, numpy as np\ndef f(x): return np.exp(x)\nmlirfuse.jit(f)(np.ones(4))\n"
    environment = {**os.environ, "MLIRFUSE_DUMP": "math, launch-params", "MLIRFUSE_DUMP_DIR": str(tmp_path / "dumps")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(p.name for p in (tmp_path / "dumps").iterdir()) == [
        "f.specialization0.math.txt",
        "f.specialization0.program0.segment0.launch-params.txt",
    ]


@pytest.mark.parametrize("level", ["fusion", "grouped", "segmented", "linalg"])
def test_tensor_levels(capfd, level):
    text = dumped(capfd, level)
    assert len(headers(text)) == 1 and re.fullmatch(LABEL, headers(text)[0][1])
    assert {
        "fusion": "fusion.matmul",
        "grouped": "fusion.group",
        "segmented": "fusion.segment",
        "linalg": "linalg.generic",
    }[level] in text
    if level == "segmented":
        assert "bytes_read = 768 : i64" in text and "split = " in text  # with what is chosen for this call
        assert 'test_dump.py":' in text and 'why = "reduces other axes than the segment before it"' in text


@pytest.mark.parametrize("level", ["tiled", "llvm"])
def test_segments_do_not_mix(capfd, level):
    found = headers(dumped(capfd, level))
    text = [f"region {p}, program 0, segment {s}" for p, s in ((0, 0), (0, 1))]
    assert [re.sub(r" \(.*", "", h.split(", ", 2)[2]) for _, h in found[:2]] == text
    pieces = dumped(capfd, level).split("===---- ")[1:]
    for k, piece in enumerate(pieces[:2]):
        assert f"@mlirfuse_reduction{k}" in piece and f"@mlirfuse_reduction{1 - k}" not in piece


def test_host(capfd):
    text = dumped(capfd, "host")
    assert "func.func @launch(" in text and "segment" not in text.splitlines()[0]


def test_levels_that_a_cpu_has_not(capfd):
    lines = dumped(capfd, "gpu,nvvm,ptx,sass").splitlines()
    assert [line for line in lines if "region 0" in line] == [
        f"mlirfuse {level}: {re.search('sums_and_products(-[0-9]+)?', lines[0]).group()}, specialization 0, region 0: "
        "code for the CPU has no such level"
        for level in ("gpu", "nvvm", "ptx", "sass")
    ]


def test_groups_behind_guards_on_request(capfd):
    text = dumped(capfd, "guarded")
    assert text.count('"fusion.guard"') == text.count("} else {") == text.count('"fusion.group"') == 2
    assert '"fusion.guard"' not in dumped(capfd, "grouped")
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=[True])
        fd.add_output(fd.ops.relu(x))
    text = dumped(capfd, "guarded", lambda: fd.execute([np.ones(3, np.float32)]))
    assert text.count('"fusion.guard"') == text.count('"fusion.group"') == 1


def test_logs(capfd):
    text = dumped(capfd, "group-log,segmenter-log,math")
    assert "runs through a library" in text and "not merged" not in text
    assert re.search(r"not      .* \+ .*: reduces other axes than the segment before it", text)
    assert re.search(r"merged   t\d+ = exp \+ t\d+ = sum", text)
    assert re.search(r"again    t\d+ = exp \+ t\d+ = sum: recomputed there", text)
    assert "segment 1: reduction, 2 ops; reduces other axes than the segment before it" in text
    assert re.search(r"t\d+ = exp\(x\) +f32\[s0, s1\] +test_dump.py:\d+ +e = np.exp\(x\)", text)


def test_guards(capfd):
    function = program()
    text = dumped(capfd, "guards", lambda: (function(*arrays()), function(*(a.astype(np.float64) for a in arrays()))))
    first, second = text.split("===---- mlirfuse guards")[1:]
    assert "x  f32[s0, s1]  strides (s1, 1)" in first and "s1 is x.shape[1]" in first and "before it" not in first
    assert "specialization 0: x: dtype f32, now f64; w: dtype f32, now f64" in second


def test_guards_say_which_values_are_constants(capfd):
    compiled = mlirfuse.jit(lambda x, n: x.sum(n), fallback=False)
    text = dumped(capfd, "guards", lambda: compiled(np.ones((4, 4)), 1))
    assert "  n is 1\n" in text


def test_guards_are_pythons_conditions_on_numbers(capfd):
    compiled = mlirfuse.jit(lambda x, n: x * 2 if n > 3 or 1 / (n * n + 1) == 0.5 else x / -n, fallback=False)
    text = dumped(capfd, "guards", lambda: compiled(np.ones(4), 2))
    assert (
        "  not (n > 3)\n  (abs(n) - 67108864) < 0\n  ((n * n) + 1) != 0\n  not ((1 / ((n * n) + 1)) == 0.5)\n" in text
    )


def test_guards_say_which_condition_failed_and_its_values(capfd):
    compiled = mlirfuse.jit(lambda x, n: x * 2 if x.shape[0] <= 5 and n else x + 1, fallback=False)
    x = np.ones((3, 4))
    text = dumped(capfd, "guards", lambda: (compiled(x, 1), compiled(x, 0), compiled(np.ones((7, 4)), 0)))
    _, second, third = text.split("===---- mlirfuse guards")[1:]
    assert "  specialization 0: n != 0: n is 0\n" in second
    assert (
        "  specialization 0: s0 <= 5: s0 is 7; n != 0: n is 0\n" in third
        and "  specialization 1: s0 <= 5: s0 is 7\n" in third
    )

    def write(x, y):
        x += y
        return x

    written = mlirfuse.jit(write, fallback=False)
    text = dumped(capfd, "guards", lambda: (written(x, np.ones((3, 4))), written(x, x)))
    assert "  specialization 0: other arguments share memory, and one is written\n" in text
    with FusionDefinition() as fd:
        t = fd.define_tensor(shape=[-1, -1])
        fd.add_output(fd.ops.relu(t))
    narrow = np.ones((3, 1), np.float32)
    text = dumped(capfd, "guards", lambda: (fd.execute([np.ones((3, 4), np.float32)]), fd.execute([narrow])))
    assert "  specialization 0: tv0: f32[s0, s1], now f32[s0, 1]\n" in text


def test_a_guard_in_the_program_says_what_it_did_not_meet(capfd):
    source = """func.func @f(%x: tensor<?xf32> {fusion.shape = ["s0"], fusion.strides = ["1"]}) -> tensor<?xf32>
        attributes {fusion.device = "cpu"} {
      %0 = "fusion.exp"(%x) : (tensor<?xf32>) -> tensor<?xf32>
      %1 = "fusion.neg"(%0) : (tensor<?xf32>) -> tensor<?xf32>
      return %1 : tensor<?xf32>
    }"""
    graph = run_pipeline(fusion.read(fusion.parse(source)), "fusion-group,fusion-guard,fusion-segment").graphs[0]
    host, x = HostProgram(graph, targets.cpu()), np.ones(8, np.float32)
    assert dumped(capfd, "guards", lambda: host.run([x], {"s0": 8})) == ""
    text = dumped(capfd, "guards", lambda: host.run([x[::2]], {"s0": 4}))
    assert (
        text == "mlirfuse guards: fusion.guard at -:3: input 0 has stride 2 in dimension 0, not 1: the fallback runs\n"
    )


def test_launches(capfd):
    text = dumped(capfd, "launch-params,occupancy")
    assert re.search(r"mlirfuse_reduction0: \d+ tasks?", text) and "split = " in text
    assert re.search(r"mlirfuse_reduction0: \d of \d+ threads busy", text)


def test_cache(capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("MLIRFUSE_CACHE_DIR", str(tmp_path))
    function = program()
    text = dumped(capfd, "cache", lambda: (function(*arrays()), function(*arrays())))
    assert "traced and segmented in" in text and "compiled in" in text and "stored," in text
    text = dumped(capfd, "cache", lambda: program()(*arrays()))  # another function with the same kernels
    assert "found," in text and "stored," not in text
    compiled = mlirfuse.jit(np.exp)
    text = dumped(capfd, "cache", lambda: [compiled(np.ones(n)) for n in (4, 5)])
    assert "new signature, of a known specialization" in text


def test_kernel_arguments_and_bandwidth_at_each_call(capfd):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    compiled = mlirfuse.jit(lambda x, n: ((x + n).sum(0), (x + n).sum(1)), fallback=False)
    compiled(x, 2.5)
    capfd.readouterr()
    with config.override(dump="kernel-args,effective-bandwidth"):
        for n in (2.5, 3.5, 3.5):
            a, b = compiled(x, n)
            assert np.array_equal(a, (x + np.float32(n)).sum(0)) and np.array_equal(b, (x + np.float32(n)).sum(1))
    text = capfd.readouterr().err
    assert len(re.findall(r"mlirfuse kernel-args: .*segment 0 \(reduction\)", text)) == 3
    assert f"f32[3, 4]  strides (4, 1)  {x.ctypes.data:#x}" in text
    assert list(dict.fromkeys(re.findall(r"scalar +n .* ([\d.]+)$", text, re.MULTILINE))) == ["2.5", "3.5"]
    assert len(re.findall(r"effective-bandwidth: .*segment 1 \(reduction\): 60 B in [\d.]+ ms: [\d.]+ GB/s", text)) == 3
    compiled(x, 2.5)
    assert capfd.readouterr().err == ""


def test_bandwidth_of_values_between_kernels(capfd):
    """What kernels pass on lies in the workspace, and a split reduction's two kernels are timed together."""
    x = np.random.default_rng(0).standard_normal((2, 1 << 17)).astype(np.float32)
    compiled = mlirfuse.jit(lambda x: (np.exp(x).sum(1), (x - x.sum(0)).max(1)), fallback=False)
    plain = compiled(x)
    with config.override(dump="kernel-args,effective-bandwidth"):
        watched = compiled(x)
    for a, b in zip(plain, watched):
        assert np.array_equal(a, b)
    assert "in the workspace" in capfd.readouterr().err


def test_what_is_compiled_prints_nothing(capfd):
    function = program()
    function(*arrays())
    capfd.readouterr()
    everything = set(config.DUMPS) - {"kernel-args", "effective-bandwidth", "cache"}
    with config.override(dump=everything):
        function(*arrays())
    assert capfd.readouterr().err == ""


def test_calls_are_as_fast_as_without(capfd):
    """The dispatcher finds the record by itself: the compiler's Python does not run."""
    compiled = mlirfuse.jit(np.exp, fallback=False)
    x = np.ones(8)
    with config.override(dump="segmented"):
        compiled(x)
        (entry,) = compiled._entries.values()
        before = entry.dispatch.misses
        for _ in range(5):
            compiled(x)
        assert entry.dispatch.misses == before


def test_functions_of_one_name_get_numbers(capfd):
    where = re.findall(
        r"math: ([^,\s]+), specialization",
        dumped(capfd, "math", lambda: [f(np.ones(3)) for f in [mlirfuse.jit(lambda x: x + 1) for _ in range(2)]]),
    )
    assert len(set(where)) == 2 and all(w.startswith("<lambda>") for w in where), where


def test_definitions(capfd):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        fd.add_output(fd.ops.add(fd.ops.sinh(x), x))
    text = dumped(capfd, "segmented,launch-params,kernel-args", lambda: fd.execute([np.ones((3, 4), np.float32)]))
    assert [what for what, _ in headers(text)] == ["segmented", "launch-params", "kernel-args"]
    assert {re.sub(r"\d+", "N", where.split(", ")[0]) for _, where in headers(text)} == {"fusionN"}


def test_a_folder_gets_a_file_each(tmp_path):
    with config.override(dump="segmented,tiled,cache,kernel-args", dump_dir=tmp_path / "new" / "folder"):
        function = program()
        for _ in range(2):
            function(*arrays())
    files = {
        re.sub(r"sums_and_products(-\d+)?", "f", p.name): p.read_text() for p in (tmp_path / "new" / "folder").iterdir()
    }
    expected = {
        "f.specialization0.segmented.mlir",
        "f.specialization0.region0.program0.segment0.tiled.mlir",
        "f.specialization0.region0.program0.segment1.tiled.mlir",
        "f.cache.txt",
    }
    assert expected <= files.keys()
    assert files["f.specialization0.region0.program0.segment0.tiled.mlir"].startswith("module {")
    assert files["f.specialization0.region0.program0.segment0.kernel-args.txt"].count("mlirfuse_reduction0: ") == 2


def test_groups_run_by_themselves(tmp_path):
    def mixed(x, w, i):
        c = np.concatenate([x, np.tanh(x)], 1)[::-1, 1::2]
        s = np.where(c > 0, c, 0).astype(np.float16)
        return (
            s,
            np.pad(x, ((1, 0), (2, 3))).T.reshape(-1, 7),
            (x @ w).mean(0) / x.shape[0],
            np.take(x, i, 0).argmax(1),
            x.sum(),
            np.arange(4) * x[0, 0],
        )

    x, w, i = np.random.default_rng(0).random((6, 8), np.float32), np.ones((8, 3), np.float32), np.array([1, -1])
    with config.override(dump="groups", dump_dir=tmp_path):
        mlirfuse.jit(mixed, fallback=False)(x, w, i)
    programs = sorted(tmp_path.glob("*.py"))
    assert len(programs) >= 2
    for path in programs:
        done = subprocess.run([sys.executable, path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for difference in re.findall(r"at most (\S+)", done.stdout):
            assert float(difference) < 1e-3
        assert "at most" in done.stdout and "# test_dump.py:" in path.read_text()


def test_sass_names_the_missing_tool(monkeypatch):
    monkeypatch.setattr(sass, "_tool", lambda name: None)
    assert "ptxas was not found" in sass.sass("", "sm_90")


def test_a_dump_that_fails_does_not_stop_the_call(capfd, monkeypatch):
    def broken(*_):
        raise RuntimeError("out of ink")

    monkeypatch.setattr(calls, "Watch", broken)
    with config.override(dump="kernel-args"):
        assert np.array_equal(mlirfuse.jit(lambda x: x + 1, fallback=False)(np.ones(3)), [2, 2, 2])
    assert "cannot be instrumented: RuntimeError: out of ink" in capfd.readouterr().err


# ---------------------------------------------------------------------------------------------------------------- on a
# GPU


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("no CUDA device")
    return found


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_gpu_code(capfd, torch):
    x = torch.ones((64, 256), device="cuda")
    text = dumped(capfd, "tiled,gpu,nvvm,ptx,host,sass", lambda: mlirfuse.jit(softmax, fallback=False)(x))
    pieces = dict(zip((what for what, _ in headers(text)), text.split("===---- ")[1:]))
    for what, expected in {"tiled": "gpu.func @", "nvvm": "llvm.func @", "ptx": ".visible .entry "}.items():
        assert expected + "mlirfuse_normalization0(" in pieces[what]
    assert "#nvvm.target" in pieces["gpu"]
    assert "EXIT" in pieces["sass"] or "was not found" in pieces["sass"]
    assert "mgpuLaunchKernel" in pieces["host"]


def test_gpu_launches(capfd, torch):
    x = torch.ones((64, 256), device="cuda")
    text = dumped(capfd, "launch-params,occupancy", lambda: mlirfuse.jit(softmax, fallback=False)(x))
    assert re.search(r"mlirfuse_normalization0: \d+ blocks? of \d+ threads", text) and "cluster = 1" in text
    assert re.search(
        r"mlirfuse_normalization0: \d+ registers, \d+ bytes of shared memory, 0 bytes spilled; \d+ blocks of \d+ threads a multiprocessor",
        text,
    )


def test_gpu_calls(capfd, torch):
    x = torch.randn((64, 1000), device="cuda")
    compiled = mlirfuse.jit(lambda x, n: (softmax(x) * n, x.sum()), fallback=False)
    with config.override(dump="kernel-args,effective-bandwidth"):
        for n in (2.0, 3.0):
            result, total = compiled(x, n)
            assert torch.allclose(result, torch.softmax(x, -1) * n, atol=1e-6) and torch.allclose(
                total, x.sum(), rtol=1e-4, atol=1e-2
            )
        with torch.cuda.stream(torch.cuda.Stream()) as stream:
            compiled(x, 3.0)
    text = capfd.readouterr().err
    assert f"f32[64, 1000]  strides (1000, 1)  {x.data_ptr():#x}" in text
    assert (
        len(
            re.findall(
                r"effective-bandwidth: .*segment 0 \(normalization\): 512 kB in [\d.]+ ms: [\d.]+ GB/s, \d+% of \d+ GB/s",
                text,
            )
        )
        == 3
    )
    assert re.findall(r"scalar +n .* ([\d.]+)$", text, re.MULTILINE) == ["2.0", "3.0", "3.0"]
    assert (", stream 0x0" in text and stream is None) or len(set(re.findall(r"stream (0x\w+)", text))) == 2


_OF_GRAPHS = [
    "fusion",
    "grouped",
    "guarded",
    "segmented",
    "linalg",
    "math",
    "groups",
    "group-log",
    "segmenter-log",
    "guards",
]


@pytest.mark.parametrize("form", ["function", "script"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_every_channel_of_torchs_graphs(capfd, form, dynamic):
    """A forward and a backward, as the way from a scripted function by ``torch.compile``; not of a warm start: what is
    dumped is compiled."""
    torch = pytest.importorskip("torch")

    def scores(x, y):
        return torch.softmax(x * y + 1.0, -1).relu().sum(0)

    created = torch.jit.script(scores) if form == "script" else scores
    torch._dynamo.reset()

    def call():
        x = torch.randn(8, 16, requires_grad=True)
        torch.compile(created, backend="mlirfuse", dynamic=dynamic)(x, torch.randn(8, 16)).sum().backward()

    text = dumped(capfd, ",".join([*_OF_GRAPHS, "launch-params"]), call)
    found = [(channel, re.sub(r"-\d+|,.*", "", where)) for channel, where in headers(text)]
    for channel in _OF_GRAPHS:
        assert {where for named, where in found if named == channel} == {"forward", "backward"}, channel
    assert "failed at" not in text and "error:" not in text
    for expected in (
        '"fusion.guard"',
        "linalg.generic",
        "segment 0, ",
        "merged ",
        "def group0(",
        "torch's guards decide",
    ):
        assert expected in text, expected
