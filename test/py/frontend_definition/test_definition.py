"""FusionDefinition: declaring inputs and outputs, sizes, aliases, printing, caching, errors."""

import itertools
import sys

import numpy as np
import progress
import pytest

torch = pytest.importorskip("torch")

import contextlib

from mlirfuse import MlirfuseError
from mlirfuse.core import config
from mlirfuse.frontend.nvfuser import program as d
from mlirfuse.nvfuser import (
    DataType,
    DefinitionError,
    DefinitionTypeError,
    Fusion,
    FusionDefinition,
    InputError,
    LRUCache,
    compute_contiguity,
    compute_tensor_descriptor,
    pytorch_utils,
)

close = torch.testing.assert_close


@pytest.fixture(autouse=True)
def compiled_or_failed():
    """What cannot be compiled fails, instead of running op by op."""
    with config.override(fallback=False):
        yield


def define(body):
    """The definition that ``body(fd)`` writes, its printed form checked to give the same program."""
    with FusionDefinition() as fd:
        body(fd)
    names = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    assert again._finished() is fd._finished(), f"running this gives another fusion:\n{fd!r}"
    return fd


def run(body, *inputs):
    return define(body).execute(list(inputs))


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


# ---------------------------------------------------------------------------------------------------------------- the
# API


def basic(fd):
    t0 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float)
    t1 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float)
    c0 = fd.define_scalar(3.0)
    fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.add(t0, t1), c0), [-1], False, DataType.Float))


def test_basic_and_its_printed_form():
    a, b = rand(2, 4, 8), rand(2, 4, 8)
    fd = define(basic)
    (out,) = fd.execute([a, b])
    close(out, ((a + b) * 3).sum(-1))
    assert str(fd) == (
        "def nvfuser_fusion(fd : FusionDefinition) -> None :\n"
        "    tv0 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)\n"
        "    tv1 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)\n"
        "    tv2 = fd.ops.add(tv0, tv1)\n"
        "    c7 = fd.define_scalar(3.00000, dtype=DataType.Double)\n"
        "    tv3 = fd.ops.mul(tv2, c7)\n"
        "    tv4 = fd.ops.sum(tv3, dims=[2], dtype=DataType.Float)\n"
        "    fd.add_output(tv4)\n"
    )


def test_printed_order_is_that_of_the_outputs():
    def body(fd):
        t0 = fd.define_tensor(shape=[-1], contiguity=[True])
        t1 = fd.define_tensor(sizes=[1, 4, 1], strides=[4, 1, 1])
        t2 = fd.define_tensor(sizes=[2, 1, 4], strides=[4, 4, 1])
        t3 = fd.ops.squeeze(t1, [0, -1])
        t4 = fd.ops.squeeze(t2, [-2])
        t5 = fd.ops.sum(t4, [0])
        fd.ops.exp(t5)  # not used: not printed
        fd.add_output(fd.ops.mul(fd.ops.mul(t0, t3), t5))

    lines = [line.strip().split(" = ")[0] for line in str(define(body)).splitlines()[1:]]
    assert lines == ["tv0", "tv1", "tv2", "tv3", "tv7", "tv4", "tv5", "tv8", "fd.add_output(tv8)"]
    inputs = [rand(4), rand(1, 4, 1), rand(2, 1, 4)]
    close(run(body, *inputs)[0], inputs[0] * inputs[1].sum([0, 2]) * inputs[2].sum([0, 1]))


def test_numbers_print_so_that_they_read_back():
    def body(fd):
        t = fd.define_tensor([-1], [True], DataType.Double)
        for value in (0.1, 1 / 3, 1e300, -2.0, float("inf"), float("-inf"), float("nan"), 0.044715, 3, True, 2**40):
            t = fd.ops.add(t, fd.define_scalar(value))
        t = fd.ops.mul(fd.ops.cast(t, DataType.ComplexDouble), 1.5 - 0.25j) if False else t
        fd.add_output(t)

    text = str(define(body))
    for piece in (
        "0.100000,",
        "0.333333333",
        "1.00000e+300",
        'float("inf")',
        'float("-inf")',
        'float("nan")',
        "0.0447150",
        "3,",
        "True,",
    ):
        assert piece in text, piece


def test_older_api():
    fs = Fusion()
    with FusionDefinition(fs) as fd:
        t0 = fd.define_tensor(symbolic_sizes=[-1, 1, -1], contiguous=[True, True, True], dtype=DataType.Float)
        t1 = fd.define_tensor(symbolic_sizes=[-1, -1, -1], contiguous=[False, False, False], dtype=DataType.Float)
        s2 = fd.define_constant(3.0)
        fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.add(t0, t1), s2), axes=[-1], keepdim=False, dtype=DataType.Float))
    a, b = rand(2, 1, 4), rand(4, 3, 2).permute(2, 1, 0)
    for _ in range(2):
        (out,) = fs.execute([a, b])
        close(out, ((a + b) * 3).sum(-1))


def test_subclass():
    class Pointwise(FusionDefinition):
        def definition(self):
            t = self.define_tensor([-1], [True])
            self.add_output(self.ops.relu(t))

    x = rand(5)
    close(Pointwise().execute([x])[0], x.relu())


def test_from_pytorch_and_numpy():
    x = rand(3, 4).t()

    def body(fd):
        fd.add_output(fd.ops.neg(fd.from_pytorch(x)))

    close(run(body, x)[0], -x)
    array = np.arange(6.0).reshape(2, 3)

    def on_arrays(fd):
        fd.add_output(fd.ops.neg(fd.from_pytorch(array)))

    (out,) = run(on_arrays, array)
    assert isinstance(out, np.ndarray) and np.array_equal(out, -array)


def test_static_sizes():
    x = rand(3, 4)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.from_pytorch(x, static_sizes=True)))
    assert fd.inputs[0].declaration.shape == (3, 4)
    with pytest.raises(InputError, match="extent 3 in dimension 0"):
        fd.execute([rand(4, 4)])


def test_scalars_at_run_time():
    def body(fd):
        t, s, k = (
            fd.define_tensor([-1], [True]),
            fd.define_scalar(DataType.Double),
            fd.define_scalar(None, dtype=DataType.Int),
        )
        fd.add_output(fd.ops.add(fd.ops.mul(t, s), k))

    x = rand(7)
    fd = define(body)
    for s, k in ((0.5, 2), (float("inf"), -1), (3, 0)):
        close(fd.execute([x, s, k])[0], x * s + k)
    assert len(fd._finished().planned) == 1


def test_only_scalar_inputs():
    def body(fd):
        s = fd.ops.add(fd.define_scalar(), fd.define_scalar())
        t = fd.ops.full(shape=[2, 2], fill_value=fd.define_scalar(1.0, DataType.Float), dtype=DataType.Float)
        fd.add_output(fd.ops.mul(t, s))

    close(run(body, 2.0, 3.0)[0], torch.full([2, 2], 5.0))


def test_no_inputs():
    def body(fd):
        for length, start, step, dtype in (
            (2, 0, 2, DataType.Int),
            (3, 100, 1, DataType.Int32),
            (3, None, None, DataType.Float),
        ):
            fd.add_output(fd.ops.iota(fd.define_scalar(length), start, step, dtype))

    a, b, c = run(body)
    close(a, torch.tensor([0, 2]))
    close(b, torch.tensor([100, 101, 102], dtype=torch.int32))
    close(c, torch.arange(3.0))


def test_cpu_scalar_tensor():
    x, s = rand(3), torch.tensor(2.5)

    def body(fd):
        fd.add_output(fd.ops.mul(fd.from_pytorch(x), fd.from_pytorch(s)))

    fd = define(body)
    assert "is_cpu=True" in str(fd)
    close(fd.execute([x, s])[0], x * s)


def test_python_operators():
    def body(fd):
        a, b = fd.define_tensor([-1], [True]), fd.define_tensor([-1], [True])
        fd.add_output(-(a + b) * 2.0 / (1.0 - a) - b)

    a, b = rand(4), rand(4)
    close(run(body, a, b)[0], -(a + b) * 2.0 / (1.0 - a) - b)


# ----------------------------------------------------------------------------------------------------------------
# layouts and sizes


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_output_stride_order(order):
    x = rand(2, 3, 4)

    def by_op(fd):
        fd.add_output(fd.ops.stride_order(fd.ops.add(fd.from_pytorch(x), 3.0), order))

    def by_output(fd):
        fd.add_output(fd.ops.add(fd.from_pytorch(x), 3.0), stride_order=list(order))

    for body in (by_op, by_output):
        (out,) = run(body, x)
        close(out, x + 3)
        assert [sorted(out.stride()).index(s) for s in out.stride()] == list(order)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_input_stride_order(order):
    memory = sorted(range(3), key=lambda k: -order[k])
    x = rand(*[(2, 3, 4)[k] for k in memory]).permute([memory.index(k) for k in range(3)])

    def body(fd):
        t = fd.define_tensor([-1, -1, -1], [True] * 3, stride_order=order)
        fd.add_output(fd.ops.neg(t))

    assert x.shape == (2, 3, 4)
    close(run(body, x)[0], -x)
    with pytest.raises(InputError, match="contiguous"):
        define(body).execute([rand(4, 6, 8)[::2, ::2, ::2]])


def test_not_contiguous_and_expanded_inputs():
    def body(fd):
        a = fd.define_tensor([-1, -1], [False, False])
        b = fd.define_tensor([-1, -1], [None, True])
        c = fd.define_tensor([1, -1], [None, True])
        fd.add_output(fd.ops.add(fd.ops.add(a, b), c))
        fd.add_output(fd.ops.sum(b, [0]))

    a, b, c = rand(8, 6)[::2, ::3], rand(1, 2).expand(4, 2), rand(1, 2)
    out, total = run(body, a, b, c)
    close(out, a + b + c)
    close(total, b.sum(0))
    with pytest.raises(InputError, match="expanded"):
        define(body).execute([a, rand(4, 2), c])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 5), (5, 1), (1, 1)])
def test_extents_of_zero_and_one_at_run_time(shape):
    def body(fd):
        a, b = (fd.define_tensor([-1, -1], [True, True]), fd.define_tensor([-1, -1], [True, True]))
        c = fd.ops.add(a, b)
        fd.add_output(c)
        fd.add_output(fd.ops.sum(c, [1]))
        fd.add_output(fd.ops.broadcast_in_dim(fd.ops.sum(c, [1]), [*c.shape()], [0]))

    a, b = rand(*shape), rand(*shape)
    c, total, wide = run(body, a, b)
    close(c, a + b)
    close(total, (a + b).sum(1))
    close(wide, (a + b).sum(1, keepdim=True).expand(*shape).contiguous())


def test_declared_zero_extents():
    def body(fd):
        fd.add_output(fd.ops.relu(fd.define_tensor(shape=[0, 0], contiguity=[True, True])))

    assert run(body, torch.ones(0, 0))[0].shape == (0, 0)


def test_an_unknown_extent_of_one_does_not_broadcast():
    fd = define(basic)
    with pytest.raises(InputError, match="needs equal sizes"):
        fd.execute([rand(2, 1, 8), rand(2, 4, 8)])


def test_equal_extents_share_a_symbol():
    graph = define(basic).graph()
    assert graph.args[0].shape == graph.args[1].shape
    assert graph.layouts[0].strides == graph.layouts[1].strides

    def with_a_constant(fd):
        fd.add_output(fd.ops.add(fd.define_tensor([-1], [True]), fd.define_tensor([16], [True])))

    fd = define(with_a_constant)
    assert fd.graph().args[0].shape == (16,)
    with pytest.raises(InputError):
        fd.execute([rand(8), rand(16)])


def test_dynamic_reshape():
    def body(fd):
        x = fd.define_tensor([-1, -1], [True, True])
        d1, d2 = (fd.define_scalar(dtype=DataType.Int32), fd.define_scalar(dtype=DataType.Int32))
        fd.add_output(fd.ops.reshape(x, [fd.ops.size(x, 0), d1, d2]))

    fd, x = define(body), rand(3, 4)
    for d1, d2 in ((2, 2), (1, 4), (4, 1)):
        close(fd.execute([x, d1, d2])[0], x.reshape(3, d1, d2))
    with pytest.raises(InputError, match="reshape"):
        fd.execute([x, 3, 3])
    with pytest.raises(InputError, match="not compatible"):
        fd.execute([x, 2.0, 2])


def test_vectors():
    def body(fd):
        x = fd.define_tensor([-1, -1, -1], [True] * 3)
        shape = fd.define_vector(2)
        y = fd.ops.reshape(x, shape)
        fd.add_output(y)
        fd.add_output(fd.ops.reshape(x, [fd.ops.at(fd.ops.shape(y), 1), -1]))

    x = rand(2, 3, 4)
    for given in ([x, [6, 4]], [x, (6, 4)], [x, 6, 4]):
        a, b = define(body).execute(given)
        close(a, x.reshape(6, 4))
        close(b, x.reshape(4, 6))


def test_sizes_computed_on_the_host():
    """Shapes from scalars that are no polynomials of the sizes, floats among them."""

    def body(fd):
        s = fd.define_scalar(None, dtype=DataType.Int)
        t = fd.define_tensor([-1, -1, -1], [True] * 3)
        s3 = fd.ops.mul(fd.define_scalar(1, dtype=DataType.Int), s)
        s6 = fd.ops.ne(fd.ops.signbit(s3), fd.define_scalar(False, dtype=DataType.Bool))
        s9 = fd.ops.cast(fd.ops.fmod(fd.define_scalar(192, dtype=DataType.Int), s3), dtype=DataType.Int)
        s12 = fd.ops.bitwise_and(s6, fd.ops.ne(s9, fd.define_scalar(0, dtype=DataType.Int)))
        s15 = fd.ops.mul(fd.define_scalar(192, dtype=DataType.Int), fd.ops.reciprocal(s3))
        s17 = fd.ops.sub(s15, fd.ops.cast(s12, dtype=DataType.Int))
        fd.add_output(fd.ops.sum(fd.ops.reshape(t, new_shape=[s, s17]), dims=[1], keepdim=False, dtype=DataType.Null))
        fd.add_output(fd.ops.full([fd.ops.div(fd.ops.size(t, 0), 2)], fd.ops.div(s, 5), DataType.Int))

    x = rand(4, 8, 6)
    fd = define(body)
    for n in (32, 64):
        a, b = fd.execute([n, x])
        close(a, x.reshape(n, -1).sum(1))
        close(b, torch.full((2,), n // 5))


def test_slices_are_clamped():
    def body(fd):
        x = fd.define_tensor([-1, -1], [True, True])
        fd.add_output(fd.ops.slice(x, [1, 2], [3, 6]))
        start, end = fd.define_vector(2), fd.define_vector(2)
        fd.add_output(fd.ops.slice(x, start, end))

    fd = define(body)
    for shape in ((4, 8), (2, 8), (2, 4), (1, 1)):
        x = rand(*shape)
        a, b = fd.execute([x, [0, 1], [2, 9]])
        close(a, x[1:3, 2:6])
        close(b, x[0:2, 1:9])


def test_shapes():
    x, y = rand(1, 4, 1), rand(2, 3, 4)

    def body(fd):
        a, b = fd.from_pytorch(x), fd.from_pytorch(y)
        fd.add_output(fd.ops.expand(fd.ops.permute(a, [0, 2, 1]), [2, 3, -1]))
        fd.add_output(fd.ops.squeeze(a, [0, -1]))
        fd.add_output(fd.ops.broadcast_in_dim(fd.ops.squeeze(a, [0, 2]), b.shape(), [2]))
        fd.add_output(fd.ops.broadcast(b, [False, True, False, False]))
        fd.add_output(fd.ops.pad(b, [1, 2, 0, 1], 2.5))
        fd.add_output(fd.ops.cat([b, b, fd.ops.cast(b, DataType.Double)], -1))
        fd.add_output(fd.ops.flip(b, [0, -1]))
        for piece in fd.ops.chunk(b, 2, -1) + fd.ops.split(b, [1, 2], 1):
            fd.add_output(piece)

    outs = run(body, x, y)
    z = x[0, :, 0]
    wanted = [x.permute(0, 2, 1).expand(2, 3, 4), z, z.expand(2, 3, 4), y.unsqueeze(1), torch.nn.functional.pad(y, (1, 2, 0, 1), value=2.5),
              torch.cat([y, y, y.double()], -1), y.flip(0, 2), *y.chunk(2, -1), *y.split([1, 2], 1)]  # fmt: skip
    assert len(outs) == len(wanted)
    for a, b in zip(outs, wanted):
        close(a, b.contiguous(), check_stride=False)


def test_reshape_output_aliases_its_input():
    def body(fd):
        fd.add_output(fd.ops.reshape(fd.define_tensor([2, 3, 4], contiguity=[True] * 3), [2, 12]))

    x = rand(2, 3, 4)
    assert run(body, x)[0].data_ptr() == x.data_ptr()


# ----------------------------------------------------------------------------------------------------------------
# aliases


def test_output_written_into_an_input():
    def body(fd):
        t = fd.define_tensor([-1, -1], [True, True])
        t1 = fd.ops.add(t, 1.0)
        fd.add_output(t1, alias_input=t)
        fd.add_output(fd.ops.add(t1, 2.0))

    x = torch.ones(4, 4)
    outs = run(body, x)
    assert len(outs) == 1
    close(outs[0], torch.full((4, 4), 4.0))
    close(x, torch.full((4, 4), 2.0))


def test_aliased_outputs_that_are_returned():
    def body(fd):
        t = fd.define_tensor(shape=[-1] * 4, contiguity=[True] * 4, stride_order=[3, 2, 1, 0])
        t4 = fd.ops.where(fd.ops.gt(t, 0.0), t, 0.0)
        fd.add_output(t4)
        fd.add_output(t4, t)
        fd.add_output(t4)
        fd.add_output(t)

    x = rand(1, 2, 3, 4)
    wanted = x.relu()
    outs = run(body, x)
    assert len(outs) == 3 and all(o.data_ptr() == x.data_ptr() for o in outs)
    close(x, wanted)


def test_update_of_an_input_that_is_not_contiguous():
    def body(fd):
        t = fd.define_tensor(shape=[2, 2], contiguity=[False, True], stride_order=[0, 1])
        t6 = fd.ops.set(fd.ops.where(fd.ops.gt(t, 0.0), t, 0.0))
        fd.add_output(t6, t)
        fd.add_output(t6)

    base = rand(5)
    x = base.as_strided((2, 2), (1, 3))
    wanted, untouched = x.relu(), base[2].clone()
    (out,) = run(body, x)
    close(out, wanted)
    close(x, wanted)
    close(base[2], untouched)


def test_outputs_that_are_inputs():
    def body(fd):
        a, b = fd.define_tensor([-1], [True]), fd.define_tensor([-1], [True])
        fd.add_output(a)
        fd.add_output(fd.ops.add(a, b))
        fd.add_output(b)
        fd.add_output(a)

    a, b = rand(3), rand(3)
    outs = run(body, a, b)
    assert outs[0] is a and outs[2] is b and outs[3] is a
    close(outs[1], a + b)


# ----------------------------------------------------------------------------------------------------------------
# caching


def test_equal_definitions_share_a_program():
    d.reset_programs()
    first, second = define(basic), define(basic)
    assert first._finished() is second._finished() and d.statistics().programs == 1
    first.execute([rand(2, 4, 8), rand(2, 4, 8)])
    second.execute([rand(5, 6, 7), rand(5, 6, 7)])
    assert d.statistics().graphs == 1
    second.execute([rand(1, 6, 7), rand(1, 6, 7)])
    assert d.statistics().graphs == 2

    def other(fd):
        t0 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True])
        t1 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True])
        fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.add(t0, t1), 3.5), [-1]))

    assert define(other)._finished() is not first._finished()


def test_lru_cache():
    def fusion(value):
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.add(fd.define_tensor([-1], [True]), value))
        return fd.fusion

    cache = LRUCache(max_fusions=2)
    assert cache.stats() == "Max Fusions Allowed: 2\nThe fusion cache is empty.\n"
    first = cache.cache_compile(fusion(1.0))
    assert cache.cache_compile(fusion(1.0)) is first and cache.num_fusions() == 1
    cache.cache_compile(fusion(2.0))
    cache.cache_compile(fusion(3.0))
    assert cache.num_fusions() == 2 and cache.cache_compile(fusion(1.0)) is not first
    assert "Cache Lookups: 5" in cache.stats() and "Cache Hits: 1" in cache.stats()
    close(first.execute([torch.ones(2)])[0], torch.full((2,), 2.0))
    assert fusion(1.0) == fusion(1.0) and hash(fusion(1.0)) == hash(fusion(1.0)) and fusion(1.0) != fusion(2.0)


# ----------------------------------------------------------------------------------------------------------------
# errors


def test_nothing_defined():
    with pytest.raises(NotImplementedError, match="Fusion does not exist!"):
        FusionDefinition().execute([])
    with pytest.raises(NotImplementedError, match="Fusion is empty!"):
        with FusionDefinition() as fd:
            pass
        fd.execute([])
    with pytest.raises(NotImplementedError):
        Fusion().execute([])


def test_wrong_inputs():
    with FusionDefinition() as fd:
        t = fd.define_tensor(shape=[-1], contiguity=[True])
        fd.add_output(fd.ops.mul(t, fd.define_scalar()))
    x = rand(15)
    for inputs, message in (
        ([2.0, 2.0], "Expected input 0, tv0, to be an at::Tensor but got scalar 2"),
        ([x, x], "Expected input 1, .*, to be a scalar but got float tensor of rank 1"),
        (
            [x.half(), 2.0],
            "Expected input 0, .*, to be bound to a tensor of dtype float, but got a tensor of dtype __half",
        ),
        ([x, 2.0 + 1.0j], r"Scalar value \(2,1\) is not compatible with the expected data type: double."),
        ([x], "2 inputs, but received 1"),
        ([x, 1.0, 1.0], "2 inputs, but received 3"),
        ([rand(3, 5), 1.0], "rank 1, but got a tensor of rank 2"),
        ([rand(30)[::2], 1.0], "contiguous"),
        ([None, 1.0], "at::Tensor"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            fd.execute(inputs)
        assert isinstance(caught.value, RuntimeError)
    with pytest.raises(InputError, match="test_definition.py:"):
        fd.execute([x.half(), 2.0])
    with pytest.raises(InputError, match="device"):
        fd.execute([x, 1.0], device="cuda:0")


def test_broadcast_dimension_must_be_one():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([1, -1], [None, True])))
    with pytest.raises(InputError, match="extent 1 in dimension 0"):
        fd.execute([rand(2, 3)])


def test_errors_have_the_line():
    with pytest.raises(DefinitionTypeError, match=r"test_definition.py:\d+: fd.ops.sub: .*bool"):
        with FusionDefinition() as fd:
            t = fd.define_tensor([-1], [True], DataType.Bool)
            fd.ops.sub(t, t)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda fd, t: fd.ops.permute(t), "missing a required argument: 'dims'"),
        (lambda fd, t: fd.ops.permute(t, [0]), "same length"),
        (lambda fd, t: fd.ops.permute(t, [0, 2]), "out of range"),
        (lambda fd, t: fd.ops.permute(t, [0, 0]), "duplicates"),
        (lambda fd, t: fd.ops.sum(t, [2]), "out of range"),
        (lambda fd, t: fd.ops.sum(t, [0, -2]), "duplicates"),
        (lambda fd, t: fd.ops.squeeze(t, [0]), "extent 1"),
        (lambda fd, t: fd.ops.reshape(t, [5]), None),
        (lambda fd, t: fd.ops.reshape(fd.define_tensor([2, 3], True), [5]), "Total element counts"),
        (lambda fd, t: fd.ops.reshape(t, [-1, -1]), "one value of -1 can be"),
        (lambda fd, t: fd.ops.reshape(t, [-2]), "neither symbolic"),
        (lambda fd, t: fd.ops.broadcast(t, [True, False]), "rank 2"),
        (lambda fd, t: fd.ops.broadcast_in_dim(t, [2, 2], [0]), "match the input dimensions"),
        (lambda fd, t: fd.ops.broadcast_in_dim(t, [2, 2], [1, 0]), "not greater than"),
        (lambda fd, t: fd.ops.broadcast_in_dim(t, [2], [0, 1]), "too big"),
        (lambda fd, t: fd.ops.slice(t, [0], [1]), "does not match slice dimensions"),
        (lambda fd, t: fd.ops.slice(t, [-1, 0], [1, 1]), "greater than or equal to 0"),
        (lambda fd, t: fd.ops.slice(t, [2, 0], [1, 1]), "greater than or equal to start_indices"),
        (lambda fd, t: fd.ops.cat([], 0), "empty list"),
        (lambda fd, t: fd.ops.cat([t, fd.ops.sum(t, [0])], 0), "dimensions"),
        (lambda fd, t: fd.ops.pad(t, [1]), "padding widths"),
        (lambda fd, t: fd.ops.where(t, t, t), "should be of DataType Bool"),
        (lambda fd, t: fd.ops.bitwise_and(t, t), "takes"),
        (lambda fd, t: fd.ops.gcd(t, t), "takes"),
        (lambda fd, t: fd.ops.nextafter(fd.ops.cast(t, DataType.Int), 1), "single or double precision"),
        (lambda fd, t: fd.ops.var_mean(fd.ops.cast(t, DataType.Half), [0]), "upcast to float"),
        (lambda fd, t: fd.ops.index_select(t, t, 0), "index must be Int"),
        (lambda fd, t: fd.ops.add(t, fd.define_tensor([2, 3], True)), None),
        (lambda fd, t: fd.ops.add(fd.define_tensor([4, 3], True), fd.define_tensor([2, 3], True)), "must be equal"),
        (lambda fd, t: fd.ops.add(t, "x"), "not str"),
        (lambda fd, t: fd.ops.cast(t, DataType.Float8_e4m3fn), None),
        (lambda fd, t: fd.ops.cast(t, torch.float32), "not a DataType"),
        (lambda fd, t: fd.ops.uniform(0.0, 1.0, [3], rng_seed=1), "together"),
        (lambda fd, t: fd.ops.triu(fd.ops.sum(t, [0])), "2 or more dims"),
        (lambda fd, t: fd.ops.iota(-1), "non-negative"),
        (lambda fd, t: fd.ops.at(t.shape(), 2), "out of bounds"),
        (lambda fd, t: fd.add_output(t.size(0)), "not a scalar"),
        (lambda fd, t: fd.add_output(t, fd.ops.neg(t)), "must be an input"),
        (lambda fd, t: fd.define_tensor([-2], [True]), "neither symbolic"),
        (lambda fd, t: fd.define_tensor([-1, -1], [True]), "Length of contiguity argument"),
        (lambda fd, t: fd.define_tensor([-1, -1], [True, True], stride_order=[0, 0]), "duplicated"),
        (lambda fd, t: fd.define_tensor([-1, -1], [True, True], stride_order=[0, 2]), "out of range"),
        (lambda fd, t: fd.define_tensor([-1], [True], is_cpu=True), "CPU non-scalar"),
        (lambda fd, t: fd.define_tensor(sizes=[2, 3], strides=[1]), "the same length"),
        (lambda fd, t: fd.define_scalar("x"), "takes a bool"),
    ],
)  # fmt: skip
def test_wrong_definitions(wrong, message):
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1], [True, True])
        if message is None:
            with contextlib.suppress(DefinitionError):
                wrong(fd, t)
            return
        with pytest.raises(DefinitionError, match=message):
            wrong(fd, t)


def test_operations_are_in_ops():
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1], [True])
        with pytest.raises(AttributeError, match=r"fd.ops.permute\("):
            fd.permute(t)
        with pytest.raises(AttributeError, match="no operation 'fft'"):
            fd.ops.fft(t)


def test_values_of_another_definition():
    with FusionDefinition() as one:
        a = one.define_tensor([-1], [True])
    with FusionDefinition() as two, pytest.raises(DefinitionError, match="another FusionDefinition"):
        two.ops.neg(a)


# ----------------------------------------------------------------------------------------------------------------
# helpers


@pytest.mark.parametrize(
    "sizes, strides, contiguity, order",
    [
        ([2, 1, 3, 1, 4, 3], [12, 4, 4, 4, 1, 0], [True, None, True, None, True, None], [5, 4, 3, 2, 1, 0]),
        ([2, 3, 1, 5, 4], [28, 4, 14, 0, 1], [False, None, True, None, True], [4, 2, 3, 1, 0]),
        (
            [2, 2, 1, 1, 2, 2, 2],
            [8, 4, 3, 9, 2, 0, 1],
            [None, True, True, None, True, None, True],
            [5, 4, 3, 6, 2, 1, 0],
        ),
        ([2, 2, 1, 2, 4, 2], [2, 32, 1, 8, 0, 4], [False, True, True, False, None, None], [2, 5, 0, 4, 1, 3]),
        ([2, 2, 2, 2], [8, 4, 2, 1], [True] * 4, [3, 2, 1, 0]),
        ([2, 1, 3, 1, 4], [24, 4, 8, 4, 2], [True, True, None, None, False], [4, 2, 3, 1, 0]),
        ([2, 2, 2, 2], [8, 4, 0, 2], [True, True, None, False], [3, 2, 1, 0]),
    ],
)
def test_compute_tensor_descriptor(sizes, strides, contiguity, order):
    assert compute_tensor_descriptor(sizes, strides) == (contiguity, order)
    assert compute_contiguity(sizes, strides) == contiguity


def test_torch_dtypes():
    for dtype, name in (
        (torch.float32, "Float"),
        (torch.bfloat16, "BFloat16"),
        (torch.int64, "Int"),
        (torch.int32, "Int32"),
        (torch.complex64, "ComplexFloat"),
        (torch.float8_e4m3fn, "Float8_e4m3fn"),
        (float, "Double"),
        (bool, "Bool"),
    ):
        assert pytorch_utils.torch_dtype_to_nvfuser_dtype(dtype) is DataType[name]
    assert pytorch_utils.python_scalar_to_nvfuser_dtype(1j) is DataType.ComplexDouble


def test_repro_scripts():
    fd = define(basic)
    inputs = [rand(2, 4, 8), rand(2, 4, 8)]
    with pytest.raises(AssertionError, match="save_repro_inputs=True"):
        fd.last_repro_script()
    fd.execute(inputs, save_repro_inputs=True)
    script = fd.last_repro_script()
    assert script == fd.repro_script_for(inputs) and "fd.execute(inputs)" in script
    names = {}
    exec(script, names)
    assert names["fd"]._finished() is fd._finished()


def test_validate():
    fd = define(basic)
    inputs = [rand(2, 4, 8), rand(2, 4, 8)]
    fd.validate(inputs)
    fd.validate(inputs, [((inputs[0] + inputs[1]) * 3).sum(-1)])
    with pytest.raises(AssertionError, match="differs from the reference"):
        fd.validate(inputs, [torch.zeros(2, 4)])
    with pytest.raises(AssertionError, match="shape"):
        fd.validate(inputs, [torch.zeros(2)])


# ----------------------------------------------------------------------------------------------------------------
# kernels


def kernels(fd, *inputs) -> tuple[int, int]:
    """Launches on the CPU and on an sm_90 GPU."""
    return tuple(fd.lower(list(inputs), target).kernels for target in ("cpu", "cuda:sm_90"))


def test_segment_set_cuts():
    def chain(fd, cuts):
        t = fd.define_tensor([-1, -1], [True, True])
        for k, function in enumerate((fd.ops.exp, fd.ops.sin, fd.ops.tanh, fd.ops.neg)):
            t = function(t)
            t = fd.ops.segment_set(t) if k in cuts else t
        fd.add_output(t)

    x = rand(6, 40)
    for cuts in ((), (1,), (0, 2), (0, 1, 2), (3,)):
        fd = define(lambda fd, cuts=cuts: chain(fd, cuts))
        close(fd.execute([x])[0], -x.exp().sin().tanh())
        count = 1 + sum(k != 3 for k in cuts)
        assert kernels(fd, x) == (count, count), cuts
        assert fd.lower([x]).as_text().count('why = "segment_set"') == count - 1


def test_segment_set_in_a_normalization():
    """The whole is one kernel; cut behind the mean, it is two."""

    def body(fd, cut):
        x = fd.define_tensor([-1, -1], [True, True])
        mean = fd.ops.mean(x, [1], True)
        centred = fd.ops.sub(x, fd.ops.segment_set(mean) if cut else mean)
        fd.add_output(
            fd.ops.mul(centred, fd.ops.rsqrt(fd.ops.add(fd.ops.mean(fd.ops.mul(centred, centred), [1], True), 1e-5)))
        )

    x = rand(8, 96)
    for cut in (False, True):
        fd = define(lambda fd, cut=cut: body(fd, cut))
        close(fd.execute([x])[0], torch.nn.functional.layer_norm(x, (96,)), rtol=1e-5, atol=1e-5)
        assert kernels(fd, x) == (1 + cut, 1 + cut)


def test_levels_of_a_definition():
    fd = define(basic)
    inputs = [rand(2, 4, 8), rand(2, 4, 8)]
    lowered = fd.lower(inputs)
    assert 'scheduler = "reduction"' in lowered.as_text("segmented") and "llvm" in lowered.levels
    ptx = fd.lower(inputs, "cuda:sm_90").as_text("ptx")
    assert ".visible .entry mlirfuse_reduction0(" in ptx
    (out,) = fd.execute(inputs)  # looking at it changed nothing
    close(out, ((inputs[0] + inputs[1]) * 3).sum(-1))
    with pytest.raises(InputError, match="Number of inputs"):
        fd.lower(inputs[:1])
    with pytest.raises(MlirfuseError, match="fd.execute"):
        lowered.compile()


def test_the_packages_names():
    import mlirfuse

    assert (
        mlirfuse.FusionDefinition is FusionDefinition and mlirfuse.DataType is DataType and callable(mlirfuse.autotune)
    )
    assert {"FusionDefinition", "DataType", "autotune"} <= set(dir(mlirfuse))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = mlirfuse.Nothing
    code = (
        "import sys, mlirfuse; assert not any('definition' in m or m == 'torch' for m in sys.modules), 'imported early'"
    )
    done = progress.run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr


def test_joined_rows_in_another_shape_that_another_kernel_computes_again():
    """What is only written of a join need not be in the join's own order where a copy of it is computed with."""
    x, y = np.random.default_rng(0).standard_normal((2, 5, 6)).astype(np.float32)
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([5, 6], contiguity=[True, True]) for _ in range(2))
        joined = fd.ops.cat([a, b], 1)
        pairs = fd.ops.reshape(joined, [5, 2, 6])
        across = fd.ops.sum(joined, [1])
        down = fd.ops.sum(fd.ops.mul(joined, fd.define_scalar(2.0)), [0])
        less = fd.ops.sub(pairs, fd.ops.max(pairs, [0], keepdim=True))
        for output in (across, down, less, pairs, joined):
            fd.add_output(output)
    c = np.concatenate([x, y], 1)
    r = c.reshape(5, 2, 6)
    for got, want in zip(fd.execute([x, y]), (c.sum(1), 2 * c.sum(0), r - r.max(0), r, c), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_cached_executor_runs_without_the_definitions_own_fusion():
    """As scripts with an LRU cache do: ``fd.fec`` from the cache, and ``del fd._fusion``."""
    cache, x = LRUCache(max_fusions=4), np.float32([-1, 2, 3])
    for _ in range(2):
        with FusionDefinition() as fd:
            t = fd.define_tensor(shape=[-1], contiguity=[True])
            fd.add_output(fd.ops.add(fd.ops.relu(t), 2.0))
        assert hasattr(fd, "_fusion")
        fd.fec = cache.cache_compile(fd.fusion)
        del fd._fusion
        assert not hasattr(fd, "_fusion") and fd.fusion is fd.fec.fusion()
        assert np.array_equal(fd.execute([x])[0], np.maximum(x, 0) + 2)
    assert cache.num_fusions() == 1
