"""The programs of nvFuser's users that mlirfuse started from, with only the import line and the device changed, against
torch, at their sizes; with the number of kernels that a call launches.

On an sm_90 GPU a call's launches are counted in what would be run there: no GPU is needed for that.
"""

import dataclasses
import itertools
import math
import pathlib
import runpy

import pytest

torch = pytest.importorskip("torch")

import mlirfuse.torch
from mlirfuse import DataType, FusionDefinition
from mlirfuse.core import config
from mlirfuse.nvfuser import DefinitionError, Fusion, InputError
from mlirfuse.schedule import targets

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
close = torch.testing.assert_close


@pytest.fixture(autouse=True)
def compiled_or_failed():
    """What cannot be compiled fails, instead of running op by op."""
    with config.override(fallback=False):
        yield


EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"  # the programs of the issue on segments

TRANSPOSE_WITH_VIEWS = """
def nvfuser_fusion_id0(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(symbolic_sizes=[-1, -1, -1], contiguous=[True, True, True], dtype=DataType.Float)
    T1 = fd.ops.view(T0, original_shape=[768, 128, 64], new_shape=[64, 12, 128, 64])
    T2 = fd.ops.permute(T1, dims=[0, 2, 1, 3])
    T3 = fd.ops.set(T2)
    T4 = fd.ops.view(T3, original_shape=[64, 128, 12, 64], new_shape=[64, 128, 768])
    T5 = fd.ops.view(T4, original_shape=[64, 128, 768], new_shape=[8192, 768])
    fd.add_output(T5)
"""

GELU_WITH_VIEWS = """
def nvfuser_fusion_id0(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(symbolic_sizes=[-1, -1], contiguous=[True, True], dtype=DataType.Float)
    T1 = fd.ops.view(T0, original_shape=[8192, 3072], new_shape=[64, 128, 3072])
    S2 = fd.define_constant(0.500000)
    T3 = fd.ops.mul(T1, S2)
    S4 = fd.define_constant(0.707107)
    T5 = fd.ops.mul(T1, S4)
    T6 = fd.ops.erf(T5)
    S7 = fd.define_constant(1.00000)
    T8 = fd.ops.add(T6, S7)
    T9 = fd.ops.mul(T3, T8)
    T10 = fd.ops.view(T9, original_shape=[64, 128, 3072], new_shape=[8192, 3072])
    fd.add_output(T10)
"""

GELU_WITHOUT_VIEWS = """
def nvfuser_fusion_id0(fd : FusionDefinition) -> None :
    T0 = fd.define_tensor(symbolic_sizes=[-1, -1, -1], contiguous=[True, True, True], dtype=DataType.Float)
    S2 = fd.define_constant(0.500000)
    T3 = fd.ops.mul(T0, S2)
    S4 = fd.define_constant(0.707107)
    T5 = fd.ops.mul(T0, S4)
    T6 = fd.ops.erf(T5)
    S7 = fd.define_constant(1.00000)
    T8 = fd.ops.add(T6, S7)
    T9 = fd.ops.mul(T3, T8)
    fd.add_output(T9)
"""


def function(text):
    names = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(text, names)
    return next(v for k, v in names.items() if k.startswith("nvfuser_fusion"))


def gelu(x):
    return (x * 0.5).mul_((x * 0.707107).erf_().add_(1.0))


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    """Launches on the CPU depend on how many threads share the work, and on caches."""
    host = dataclasses.replace(targets.cpu().properties, threads=2, own_cache=1 << 20, last_cache=32 << 20)
    monkeypatch.setitem(vars(targets.cpu()), "properties", host)


def launched(fd, inputs) -> dict[str, int]:
    """How many kernels a call launches, by target, and how many segments it has."""
    cpu, gpu = fd.lower(inputs, "cpu"), fd.lower(inputs, "cuda:sm_90")
    segments = {lowered.as_text("segmented").count('"fusion.segment"(') for lowered in (cpu, gpu)}
    assert len(segments) == 1
    return {"cpu": cpu.kernels, "sm_90": gpu.kernels, "segments": segments.pop()}


ONE = {"cpu": 1, "sm_90": 1, "segments": 1}
# A sum over the outer dimensions beside elementwise ops on other tensors: nvFuser's two segments. The sum is shared by
# many threads, and a second
# launch finishes it, or by the blocks of clusters, in which it is finished.
SUM_AND_POINTWISE = {"cpu": 3, "sm_90": 2, "segments": 2}


def ran(fd) -> list[int]:
    """The launches of what has been compiled for a definition."""
    kinds = fd._finished().runner().specializations.all()
    return [
        compiled_program.kernels
        for kind in kinds
        for compiled_program in kind.executor.program.compiled_programs.values()
    ]


@pytest.mark.parametrize("shape", [(16, 16, 64), (16, 512, 4096)])
def test_segmented_fusion(shape):
    inputs = [torch.randn(shape, device=DEVICE), torch.randn(shape, device=DEVICE)]
    with FusionDefinition() as fd:
        runpy.run_path(str(EXAMPLES / "segmented_ir_small.py"))["define"](fd)
    for _ in range(5 if shape[1] == 16 else 1):
        out = fd.execute(inputs)
    close(out[0], inputs[0].sum([0, 1]), rtol=1e-4, atol=2e-3)
    close(out[1], inputs[1].pow(3))
    if shape[1] == 512:
        assert launched(fd, inputs) == SUM_AND_POINTWISE
        assert DEVICE == "cuda" or ran(fd)[-1] == 3


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(16, 16, 64), (16, 512, 4096)])
def test_gelu_backward_and_bias_gradient(shape):
    inputs = [1.0, 2.0, 3.0, 4.0] + [torch.randn(shape, device=DEVICE) for _ in range(3)]
    with FusionDefinition() as fd:
        runpy.run_path(str(EXAMPLES / "segmented_ir_gelu_backward.py"))["define"](fd)
    for _ in range(5 if shape[1] == 16 else 1):
        out = fd.execute(inputs)
    s0, s1, s2, s3, t4, t5, t6 = inputs
    close(out[0], t4.sum([0, 1]), rtol=1e-4, atol=2e-3)
    for got, t5, t6 in zip(out[1], t5, t6):  # noqa: B020  # sample by sample: the whole would take much memory
        t16 = torch.tanh(0.797885 * (t6 + 0.0447150 * t6**3))
        t30 = t5 * (0.5 * t6) * (1 - t16 * t16) * s3
        close(got, t30 + t30 * s2 * s1 * t6**2 + t5 * (1 + t16) * s0, rtol=1e-4, atol=2e-3)  # 1 - tanh² cancels
    if shape[1] == 512:
        assert launched(fd, inputs) == SUM_AND_POINTWISE
        assert DEVICE == "cuda" or ran(fd)[-1] == 3


def test_transpose_with_views_around_it():
    fs = Fusion()
    with FusionDefinition(fs) as fd:
        function(TRANSPOSE_WITH_VIEWS)(fd)
    x = torch.randn(768, 128, 64, device=DEVICE)
    for _ in range(2):
        (out,) = fs.execute([x])
    close(out, x.view(64, 12, 128, 64).permute(0, 2, 1, 3).reshape(8192, 768))
    assert launched(fd, [x]) == ONE and ran(fd) == [1]  # nvFuser made two
    with pytest.raises(InputError):
        fs.execute([torch.randn(384, 128, 64, device=DEVICE)])


@pytest.mark.parametrize("also_the_view", [False, True])
def test_gelu_with_views_around_it(also_the_view):
    text = GELU_WITH_VIEWS
    if also_the_view:
        text = text.replace("    fd.add_output(T10)", "    fd.add_output(T1)\n    fd.add_output(T10)")
    fs = Fusion()
    with FusionDefinition(fs) as fd:
        function(text)(fd)
    x = torch.randn(8192, 3072, device=DEVICE)
    for _ in range(2):
        out = fs.execute([x])
    close(out[-1], gelu(x), rtol=1e-5, atol=1e-5)
    if also_the_view:
        close(out[0], x.view(64, 128, 3072))
        assert out[0].data_ptr() == x.data_ptr()  # a view, with no kernel
    assert launched(fd, [x]) == ONE and ran(fd) == [1]  # nvFuser made two


def test_gelu_without_views():
    fs = Fusion()
    with FusionDefinition(fs) as fd:
        function(GELU_WITHOUT_VIEWS)(fd)
    x = torch.randn(64, 128, 3072, device=DEVICE)
    (out,) = fs.execute([x])
    close(out, gelu(x), rtol=1e-5, atol=1e-5)
    assert launched(fd, [x]) == ONE and ran(fd) == [1]


@pytest.mark.parametrize("views", list(itertools.product([True, False], repeat=3)), ids=str)
def test_views_between_pointwise_ops(views):
    """The study of segmentation, its sizes divided by 4: any of the views A, B and C may be left out. nvFuser made one
    to three segments."""

    def simple_fusion(fd: FusionDefinition) -> None:
        T = fd.define_tensor(symbolic_sizes=[-1, -1], contiguous=[True, True], dtype=DataType.Float)
        shapes = [[2048, 768], [16, 128, 768]]

        def insert_view(_T, wanted):
            if not wanted:
                return _T
            shapes.reverse()
            return fd.ops.view(_T, original_shape=shapes[1], new_shape=shapes[0])

        T = insert_view(T, views[0])
        T = fd.ops.add(T, T)
        T = insert_view(T, views[1])
        T = fd.ops.mul(T, T)
        T = insert_view(T, views[2])
        fd.add_output(T)

    fs = Fusion()
    with FusionDefinition(fs) as fd:
        simple_fusion(fd)
    x = torch.randn(2048, 768, device=DEVICE)
    (out,) = fs.execute([x])
    close(out.view(2048, 768), (x + x).square_())
    assert out.dim() == (3 if sum(views) % 2 else 2) and out.numel() == math.prod(x.shape)
    assert launched(fd, [x]) == ONE and ran(fd) == [1]


def test_the_program_with_a_typing_error():
    """``fd.permute(T1)`` without dims: the message says what to write."""
    with FusionDefinition() as fd:
        T0 = fd.define_tensor(symbolic_sizes=[-1, -1, -1], contiguous=[True, True, True], dtype=DataType.Float)
        T1 = fd.ops.view(T0, original_shape=[768, 128, 64], new_shape=[64, 12, 128, 64])
        with pytest.raises(AttributeError, match=r"operations are in fd.ops, write fd.ops.permute\("):
            fd.permute(T1)
        with pytest.raises(
            DefinitionError,
            match=r"fd.ops.permute: missing a required argument: 'dims'; its arguments are \(arg, dims\)",
        ):
            fd.ops.permute(T1)


def add_and_relu(x):
    """The readme's example script."""
    o = x + 1.0
    o = o.relu()
    return o


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("form", ["compiled", "converted"])
def test_torchscript_example(form):
    """The readme's example script in both forms: the scripted function itself where fusion is switched on around it,
    and a function that is made of it once. Four calls, as there."""
    t = torch.jit.script(add_and_relu)
    if form == "converted":
        t = mlirfuse.torch.from_torchscript(t)
    x = torch.rand(2, 32, 128, 512, device=DEVICE)
    (graph,) = mlirfuse.torch.explain(t, x).graphs
    assert len(graph.kernels) == 1 and not graph.outside
    fused = torch.compile(t, backend="mlirfuse", options={"fallback": False})
    for _ in range(4):
        close(fused(x), add_and_relu(x))


def test_torchscript_example_as_a_definition():
    x = torch.rand(2, 32, 128, 512, device=DEVICE)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.ops.add(fd.from_pytorch(x), 1.0)))
    close(fd.execute([x])[0], add_and_relu(x))
    assert launched(fd, [x]) == ONE and ran(fd) == [1]
