"""``explain``: what a call becomes, in words and as a page."""

import io
import os
import re
import sys
import traceback
import types
import warnings
from html.parser import HTMLParser

import numpy as np
import pytest

import mlirfuse
from mlirfuse.core import config, notebook
from mlirfuse.core.errors import located
from mlirfuse.inspect import listing, progress
from mlirfuse.nvfuser import DataType, FusionDefinition
from mlirfuse.runtime import events


def layer_norm(x, w, b):
    m = x.mean(-1, keepdims=True)
    v = ((x - m) ** 2).mean(-1, keepdims=True)
    return (x - m) / np.sqrt(v + 1e-5) * w + b


def arguments():
    return np.ones((64, 256), np.float32), np.ones(256, np.float32), np.ones(256, np.float32)


def two_layers(x, w, b):
    h = np.maximum(x @ w + b, 0)
    return np.exp(h @ w.T), h.sum(), h.T


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_70", "cuda:sm_90"])
def test_one_kernel(target):
    explained = mlirfuse.jit(layer_norm, target=target).explain(*arguments())
    assert (len(explained.kernels), explained.launches) == (1, 1)
    (kernel,) = explained.kernels
    assert kernel.scheduler == "normalization" and kernel.why == "the first group"
    assert (kernel.bytes_read, kernel.bytes_written) == (64 * 256 * 4 + 2 * 256 * 4, 64 * 256 * 4)
    assert list(kernel.reads) == ["x", "w", "b"] and list(kernel.writes.values()) == ["f32[64, 256]"]
    assert kernel.params and kernel.launches[0].threads.split()[1] in ("tasks", "blocks")
    text = str(explained)
    assert text.startswith(f"layer_norm for {target}: 1 kernel, 1 launch, 67.6 kB read and 65.5 kB written\n")
    assert "m = x.mean(-1, keepdims=True)" in text and "sum(x, axes=[1], keepdims=True)" in text


def test_each_op_has_its_line():
    first = layer_norm.__code__.co_firstlineno
    explained = mlirfuse.jit(layer_norm).explain(*arguments())
    lines = {op.op.name: op.place for op in explained.kernels[0].ops}
    assert lines["mul"].startswith("test_explain.py:") and lines["sqrt"] == f"test_explain.py:{first + 3}"
    sources = [op.source for op in explained.kernels[0].ops]
    assert sources[0] == "m = x.mean(-1, keepdims=True)" and sources[-1].startswith("return (x - m)")


def test_library_ops_and_views():
    x, w, b = np.ones((64, 256), np.float32), np.ones((256, 32), np.float32), np.ones(32, np.float32)
    explained = mlirfuse.jit(two_layers).explain(x, w, b)
    assert [o.line.op.name for o in explained.outside] == ["matmul", "matmul"]
    assert {o.why for o in explained.outside} == {"runs through a library"}
    views = {o.line.op.name: o.why for o in explained.views}
    assert views["expand_dims"] == "other indices inside kernel 0"
    assert "an alias of w" in {o.why for o in explained.views}
    last = explained.kernels[-1]
    assert last.why == "another group: it reads the result of matmul, which runs through a library"
    text = str(explained)
    for heading in ("outside of kernels:", "views, which cost no kernel:", "why it is a kernel of its own"):
        assert heading in text


def test_why_segments_are_cut():
    explained = mlirfuse.jit(lambda x: ((x + 1).sum(0), (x + 1).sum(1))).explain(np.ones((64, 48)))
    assert [k.scheduler for k in explained.kernels] == ["reduction", "reduction"]
    assert explained.kernels[1].why == "reduces other axes than the segment before it"


def mixed(x, w):
    y = np.exp(x @ w) + 1
    return y.T, np.exp(w), x.sum(0), x.T, (y @ w).sum(1)


def equal_layers(x, w):
    y = np.exp(x @ w) + 1
    return np.exp(y @ w) + 1


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize("function", [mixed, equal_layers])
def test_numbers_and_reasons_are_the_same_everywhere(function, target):
    """In the IR, in explanations and in kernels' names: also where a segment launches nothing, and where a GPU runs a
    reduction before what stands in front of it. Equal layers share kernels, which have the number of the first."""
    x = np.ones((64, 64), np.float32)
    function = mlirfuse.jit(function, target=target)
    lowered, explained = function.lower(x, x), function.explain(x, x)
    told = lowered.segmented().labels()[1]
    assert len(told) > 1 and [s.number for s in told] == list(range(len(told)))
    assert [(k.number, k.why) for k in explained.kernels] == [(s.number, s.why) for s in told]
    for segment in told:
        spelled = (
            rf'number = {segment.number} : i64.*scheduler = "{segment.scheduler}", why = "{re.escape(segment.why)}"'
        )
        assert re.search(spelled, lowered.as_text("segmented"))
    for kernel in explained.kernels:
        number = kernel.number if function.__name__ == "mixed" else 0
        names = [launch.name for launch in kernel.launches]
        assert all(re.match(rf"mlirfuse_[a-z_]+?{number}(_|$)", name) for name in names), (number, names)
        assert kernel.ops and {line.op.segment.number for line in kernel.ops} == {kernel.number}


def test_kernels_stand_in_the_order_of_what_they_do():
    """A constant that a later kernel uses too stands at the beginning of the program, and says nothing about the
    kernel's place."""

    def function(x):
        y = x - x.max(1, keepdims=True) * 2
        z = y * y.max(0, keepdims=True)
        return z.max(1) * 2, z

    explained = mlirfuse.jit(function).explain(np.ones((64, 48)))
    created = set()
    for kernel in explained.kernels:
        assert not {name for name in kernel.reads if name.startswith("t")} - created
        created.update(kernel.writes)
    assert len(explained.kernels) == 3


def test_a_split_reduction_launches_twice():
    explained = mlirfuse.jit(lambda x: x.sum(), target="cuda:sm_80").explain(np.ones(1 << 22, np.float32))
    assert len(explained.kernels) == 1 and explained.launches == 2


def test_on_the_gpu_that_is_there():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    explained = mlirfuse.jit(layer_norm).explain(*(torch.from_numpy(a).cuda() for a in arguments()))
    assert explained.target.startswith("cuda:sm_") and explained.launches == 1
    assert "blocks of" in str(explained)


def test_nothing_to_compile():
    assert "no elements" in str(mlirfuse.jit(lambda x: np.exp(x)).explain(np.empty((0, 3))))
    explained = mlirfuse.jit(lambda x: x).explain(np.ones(3))
    assert explained.launches == 0 and str(explained) == "<lambda> for cpu: 0 kernels, 0 launches\n"


def test_definitions():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        s = fd.ops.sum(x, axes=[1], keepdim=True)
        fd.add_output(fd.ops.div(x, s))
    explained = fd.explain([np.ones((8, 16), np.float32)], target="cuda:sm_90")
    assert explained.launches == 1 and explained.kernels[0].scheduler == "normalization"
    assert "s = fd.ops.sum(x, axes=[1], keepdim=True)" in str(explained)


def test_ops_stand_in_the_users_order():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        outs = [fd.ops.exp(x), fd.ops.sin(x), fd.ops.cos(x)]
        for out in reversed(outs):
            fd.add_output(out)
    (kernel,) = fd.explain([np.ones((8, 16), np.float32)]).kernels
    assert [line.op.name for line in kernel.ops] == ["exp", "sin", "cos"]


# ---------------------------------------------------------------------------------------------------------------- on
# the IR


def params(text):
    return [
        dict(re.findall(r"(\w+) = ([^,]+?)(?: : i64)?(?:, |$)", found))
        for found in re.findall(r"params = \{([^}]*)\}", text)
    ]


def test_segments_carry_what_was_chosen():
    text = mlirfuse.jit(layer_norm, target="cuda:sm_90").lower(*arguments()).as_text("segmented")
    (found,) = params(text)
    assert found["bytes_read"] == str(64 * 256 * 4 + 2 * 256 * 4) and found["bytes_written"] == str(64 * 256 * 4)
    assert "schedule = {access = {aligns = " in text and "tx = " in text and 'scheduler = "normalization"' in text


def test_bytes_are_symbolic_before_sizes_are_known():
    from mlirfuse.dialects import fusion
    from mlirfuse.passes.base import run_pipeline

    text = """
      func.func @f(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"], fusion.strides = ["s1", "1"]}) -> (tensor<?x?xf32>, tensor<?x?xf32>) {
        %0 = "fusion.slice"(%x) {start = ["2", "0"], size = ["s0-2", "s1"], step = [1, 1]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
        %1 = "fusion.exp"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
        %2 = "fusion.permute"(%x) {dims = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
        return %1, %2 : tensor<?x?xf32>, tensor<?x?xf32>
      }"""
    text = run_pipeline(fusion.parse(text), "fusion-group{single-op=true},fusion-segment").as_text()
    kernel, nothing = params(text)
    assert kernel == {"bytes_read": '"s0*s1*4-8*s1"', "bytes_written": '"s0*s1*4-8*s1"'}
    assert nothing == {"bytes_read": "0", "bytes_written": "0"} and 'scheduler = "no-op"' in text


# ---------------------------------------------------------------------------------------------------------------- pages


class Page(HTMLParser):
    """What is on a page: tags with their attributes, and whether they are closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag


@pytest.fixture
def page(tmp_path):
    x, w, b = np.ones((64, 256), np.float32), np.ones((256, 32), np.float32), np.ones(32, np.float32)
    explained = mlirfuse.jit(two_layers).explain(x, w, b)
    explained.save(tmp_path / "page.html")
    return explained, (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_page_needs_nothing_from_elsewhere(page):
    _, text = page
    parsed = Page(text)
    assert not parsed.open
    assert not [a for tag, a in parsed.tags if a.get("src") or tag in ("link", "iframe", "img")]
    assert set(re.findall(r"https?://[^\"' )]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "@import" not in text and "fetch(" not in text


def test_the_page_shows_every_op_and_segment(page):
    explained, text = page
    ids = {a["id"] for _, a in Page(text).tags if "id" in a}
    ops = [op for op in explained.graph.ops if not listing.is_literal(op)]
    assert {f"op{k}" for k in range(len(ops))} <= ids
    assert {f"box{k.number}" for k in explained.kernels} <= ids
    assert {"arg0", "arg1", "arg2", "result0", "result1", "result2"} <= ids
    assert "h = np.maximum(x @ w + b, 0)" in text  # where an op is hovered over
    for kernel in explained.kernels:
        assert kernel.title in text


def rectangles(text):
    """(kind, x, y, width, height) of the boxes and of the nodes."""
    out = []
    for kind, rest in re.findall(r'<g (?:id="[^"]*" )?class="(\w+)[^>]*>(.*?<rect [^>]*>)', text, re.DOTALL):
        out.append(
            (
                kind,
                *(
                    float(n)
                    for n in re.search(r'x="([-\d.]+)" y="([-\d.]+)" width="([\d.]+)" height="([\d.]+)"', rest).groups()
                ),
            )
        )
    return out


def forty_ops(x, y):
    for k in range(10):
        x = np.tanh(x * y + k) if k % 2 else x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        y = np.maximum(y, x.min()) if k == 5 else y
    return x, x.sum(0), y


def test_nothing_overlaps():
    explained = mlirfuse.jit(forty_ops).explain(np.ones((32, 64), np.float32), np.ones((32, 64), np.float32))
    assert sum(len(k.ops) for k in explained.kernels) >= 40
    for group in ("node", "box"):
        found = [r[1:] for r in rectangles(explained.to_html()) if r[0] == group]
        assert len(found) >= (40 if group == "node" else len(explained.kernels))
        for i, (x, y, w, h) in enumerate(found):
            for a, b, c, d in found[:i]:
                assert x + w <= a or a + c <= x or y + h <= b or b + d <= y, "two rectangles lie over each other"


def curves(text, kind):
    """Points along each edge of the drawing's outer or inner graph."""
    out = []
    for d in re.findall(rf'<path d="([^"]*)" class="edge {kind}"', text):
        points, at = [], (0.0, 0.0)
        for command, numbers in re.findall(r"([MLC])([-\d. ]+)", d):
            xs = [float(n) for n in numbers.split()]
            ends = list(zip(xs[::2], xs[1::2]))
            p = [at, *ends] if len(ends) == 3 else [at, at, ends[0], ends[0]]
            if command != "M":
                for t in np.linspace(0, 1, 20):
                    weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
                    points.append(tuple(sum(w * q[k] for w, q in zip(weights, p)) for k in (0, 1)))
            at = ends[-1]
        out.append(points)
    return out


def beside_a_tall_kernel(x, w1, w2):
    """An argument of a library op stands beside the kernel before it, and is much lower than that."""
    d = x - x.mean(-1, keepdims=True)
    h = d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-6)
    return np.tanh(h @ w1) @ w2 + x


@pytest.mark.parametrize("function", [beside_a_tall_kernel, forty_ops], ids=lambda f: f.__name__)
def test_edges_pass_between_the_boxes(function):
    x = np.ones((32, 32), np.float32)
    text = mlirfuse.jit(function).explain(*[x] * function.__code__.co_argcount).to_html()
    for kind, group in (("outer", "box"), ("outer", "node"), ("inner", "node")):
        rects = [r[1:] for r in rectangles(text) if r[0] == group]
        for points in curves(text, kind):
            for x, y, w, h in rects:
                assert not any(x + 1 < a < x + w - 1 and y + 1 < b < y + h - 1 for a, b in points), (
                    "an edge runs behind a rectangle"
                )


# ---- each way that a call may go has an explanation, a page and a number of kernels


def smoothed(a):
    s = np.zeros_like(a)
    for i in range(1, len(a)):
        s[i] = s[i - 1] * 0.5 + a[i]
    return s


def above_mean(v):
    return np.exp(v[v > v.mean()]).sum()


def prints(v):
    print(end="")
    return v * 2


def triangular(a):
    for i in range(a.shape[0]):
        for j in range(i):
            a[i, j] = (a[i, j] - np.dot(a[i, :j], a[j, :j])) / a[j, j]
        a[i, i] = np.sqrt(a[i, i] - np.dot(a[i, :i], a[i, :i]))
    return a


X = np.random.default_rng(0).random(5000)


@pytest.mark.parametrize(
    "fn, args, words, kernels",
    [
        (layer_norm, arguments(), "1 kernel", 1),
        (smoothed, (X,), "1 of 1 natively", 1),
        (above_mean, (X,), "compiled subgraphs", 2),
        (prints, (X,), "prints runs op by op: prints cannot be compiled: it uses print", 0),
        (lambda v: v * 2, (np.ma.masked_less(X, 2),), "is a MaskedArray, an array with semantics of its own", 0),
        (lambda v: np.char.upper(v), (np.array(["a"]),), "runs op by op", 0),
        (triangular, (np.eye(60),), "natively", 1),  # a call would not unroll it either
    ],
)
def test_each_way_is_explained(fn, args, words, kernels, tmp_path):
    compiled = mlirfuse.jit(fn)
    with warnings.catch_warnings(action="error"):  # asking is no call
        told = compiled.explain(*args)
    assert words in str(told) and words in told.summary()
    assert all(name in str(told) and why in told.to_html() for name, why in told.rejected)
    told.save(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and "http" not in text.replace("http://www.w3.org", "")
    assert told._repr_html_().startswith("<iframe srcdoc=") and "<html" not in told._repr_html_()  # it is escaped
    assert compiled.kernels(*args) == told.launches and (told.launches >= kernels if kernels else told.launches == 0)


def unrolled(a):
    for k in range(3):
        a = a * 2 + k
    return a


def test_why_the_strategies_before_are_not_taken():
    def rejected(fn, *args):
        return dict(mlirfuse.jit(fn).explain(*args).rejected)

    assert rejected(layer_norm, *arguments()) == {}  # no other is considered
    assert rejected(unrolled, X) == {"native loops": "a trace is tried first: its loops write into no array"}
    assert rejected(triangular, np.eye(60)) == {}
    assert "shape that depends on values" in rejected(above_mean, X)["traced"]
    assert list(rejected(prints, X)) == ["traced", "graph breaks"]
    explained = mlirfuse.jit(boundaries).explain(X)
    assert "NumPy touches these alone" in explained.summary() and dict(explained.rejected).keys() >= {"traced"}


def boundaries(u):
    u[0] = u[1]
    u[-1] = u[-2]


def test_loops_over_tensors_on_the_host_are_explained_as_numpys():
    torch = pytest.importorskip("torch")
    told = mlirfuse.jit(triangular).explain(torch.eye(60, dtype=torch.float64))
    assert "1 of 2 natively" in told.summary() and told.launches == 1


def test_a_mistake_is_raised_by_explain_too():
    wrong = mlirfuse.jit(lambda a, b: a + b)
    with pytest.raises(ValueError, match="broadcast"):
        wrong.explain(np.ones(3), np.ones(4))
    with pytest.raises(mlirfuse.TraceError, match="print"):
        mlirfuse.jit(prints, fallback=False).explain(X)


def test_explain_of_what_is_switched_off():
    with config.override(fuse_cpu=False):
        assert "config.fuse_cpu is off" in str(mlirfuse.jit(layer_norm).explain(*arguments()))


def test_tables_sort_by_numbers(tmp_path):
    """Cells with units carry the number that they are sorted by."""
    mlirfuse.jit(smoothed).explain(X).save(tmp_path / "loops.html")
    text = (tmp_path / "loops.html").read_text(encoding="utf-8")
    assert re.search(r'<td class="number" data-key="[0-9.e-]+">[0-9.]+ ms</td>', text)
    assert "head.dataset.up" in text and "<thead>" in text


# ---- notebooks


@pytest.fixture
def shell(monkeypatch):
    """IPython's shell in a kernel, as far as it is asked."""
    names = {"/tmp/ipykernel_7/12.py": ("Cell", "In[5]")}
    shell = types.SimpleNamespace(kernel=object(), compile=types.SimpleNamespace(format_code_name=names.get))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    return shell


def test_cells_are_called_as_in_the_notebook(shell):
    assert listing.place(("/tmp/ipykernel_7/12.py", 3)) == "Cell In[5], line 3"
    assert located("wrong", ("/tmp/ipykernel_7/12.py", 3)) == "wrong\n  at Cell In[5], line 3"
    assert listing.place(("/home/me/norms.py", 3)) == "norms.py:3" and listing.place(None) == ""
    assert listing.place(("layers.0 (Linear)", 0)) == "layers.0 (Linear)"


def test_progress_is_shown_in_a_notebook(shell, monkeypatch):
    def lines() -> list:
        followed: list = []
        monkeypatch.setattr(events, "observe", lambda kind, observer: followed.append(kind))
        progress.follow.__wrapped__()
        return followed

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr("mlirfuse.core.environment.PROGRESS", None)
    assert notebook.running() and len(lines()) == 2
    monkeypatch.setattr("mlirfuse.core.environment.PROGRESS", False)
    assert lines() == []
    del shell.kernel  # IPython in a terminal, of which stderr goes to a file
    monkeypatch.setattr("mlirfuse.core.environment.PROGRESS", None)
    assert not notebook.running() and lines() == []


# ---- tracebacks


def added(x, y):
    return x + y


def misshapen(x, y):
    return added(np.exp(x), y)


def misspelled(x, y):
    return x + y.shpe


def of_a_key(x, y):
    return x["q"] + y


def past_the_end(x, y):
    s = 0.0
    for i in range(len(x)):
        s += x[i + 1]
    return s + y


def frames(error):
    """How many frames of ours there are in all that is printed of an error, and the last function of the user's."""
    text = "".join(traceback.format_exception(error))
    last = [f.name for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__][-1]
    return text.count(os.path.dirname(mlirfuse.__file__) + os.sep), text.count('File "<'), last


@pytest.mark.parametrize(
    "fn, args, kind, last",
    [
        (misshapen, (np.ones(3), np.ones(4)), ValueError, "added"),
        (misspelled, (np.ones(3), np.ones(4)), AttributeError, "misspelled"),
        (of_a_key, ({"a": 1}, np.ones(3)), KeyError, "of_a_key"),
        (past_the_end, (np.ones(99), np.ones(3)), IndexError, "past_the_end"),
        (lambda x, y: added(x[x > y].reshape(3, 5), y), (np.ones(5000), 0.5), ValueError, "<lambda>"),
        (lambda x, y: undefined, (np.ones(5000), 0.5), NameError, "<lambda>"),  # noqa: F821
    ],
)
@pytest.mark.filterwarnings("ignore::mlirfuse.FallbackWarning")
def test_tracebacks_of_mistakes_have_one_frame_of_ours(fn, args, kind, last):
    compiled = mlirfuse.jit(fn)
    for _ in range(3):  # the ways of later calls are others
        with pytest.raises(kind) as raised:
            compiled(*args)
        assert frames(raised.value) == (1, 0, last)
    with pytest.raises(kind) as raised:
        compiled.explain(*args)
    assert frames(raised.value)[0] == 1


def test_the_error_that_numpy_raises_elsewhere_is_shown_too():
    """A trace stops at a branch on values, which says TypeError; so does NumPy's own, of another line."""

    def branches(x):
        y = len(3.0) if np.char.upper("a") == "A" else x
        return x if x.sum() > 0 else y

    with pytest.raises(TypeError) as raised:
        mlirfuse.jit(branches)(np.ones(3))
    assert "has no len()" in "".join(traceback.format_exception(raised.value))


def test_tracebacks_of_our_own_mistakes_stay_whole(monkeypatch):
    source = "def broken(*_, **__):\n    raise AssertionError('a pass is wrong')"
    scope: dict = {}
    exec(compile(source, os.path.join(os.path.dirname(mlirfuse.__file__), "passes", "broken.py"), "exec"), scope)
    broken = scope["broken"]
    monkeypatch.setattr("mlirfuse.frontend.numpy.tracing.trace", broken)
    with pytest.raises(AssertionError) as raised:
        mlirfuse.jit(added, fallback=False)(np.ones(3), 1.0)
    assert len(traceback.extract_tb(raised.value.__traceback__)) >= 5
