"""Each operation of fd.ops that the op table names, on each element type that it takes, against torch; and on those it
does not."""

import importlib.util
import inspect
import itertools
import math
import pathlib
import re
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mlirfuse.core import config
from mlirfuse.frontend.nvfuser.ops import elementwise
from mlirfuse.frontend.nvfuser.ops import operators as definition_ops
from mlirfuse.frontend.nvfuser.promotion import common_dtype, to_dtype
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops as table
from mlirfuse.nvfuser import DataType, DefinitionError, DefinitionTypeError, FusionDefinition, InputError
from mlirfuse.nvfuser.pytorch_utils import torch_dtype_to_nvfuser_dtype

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool]
F = torch.nn.functional
KIND = {
    torch.float64: "f",
    torch.float32: "f",
    torch.float16: "f",
    torch.bfloat16: "f",
    torch.int64: "i",
    torch.int32: "i",
    torch.bool: "b",
}
HALVES = (torch.float16, torch.bfloat16)

TORCH = {
    "neg": torch.neg, "set": torch.clone, "segment_set": torch.clone, "silu": F.silu, "relu": torch.relu, "mod": torch.fmod,
    "erfcinv": lambda x: -torch.special.ndtri(x.double() / 2) / math.sqrt(2), "ceil_div": lambda a, b: torch.ceil(a / b) if a.is_floating_point() else -torch.div(-a, b, rounding_mode="floor"),
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "logical_right_shift": lambda a, b: _logical_right_shift(a, b),
    "div": lambda a, b: torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc"),
    "truediv": torch.true_divide, "reciprocal": torch.reciprocal, "add": torch.add, "mul": torch.mul,
}  # fmt: skip


def _logical_right_shift(a, b):
    bits = 8 * a.element_size()
    mask = torch.where(b == 0, torch.full_like(a, -1), (torch.ones_like(a) << (bits - b).clamp(max=bits - 1)) - 1)
    return (a >> b) & mask


def reference(name):
    return TORCH.get(name) or getattr(torch, name)


ELEMENTWISE = [(row, name) for row in table.TABLE.values() if row.kind == "elementwise" and len(row.operands) in (1, 2) for name in row.nvfuser
               if row.name not in ("cast", "complex")]  # fmt: skip
REDUCTIONS = [(row, name) for row in table.TABLE.values() if row.kind == "reduce" for name in row.nvfuser]


@pytest.fixture(autouse=True)
def compiled_or_failed():
    """What cannot be compiled fails, instead of running op by op."""
    with config.override(fallback=False):
        yield


SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    3.25,
    1e-4,
    -1e-4,
    0.999,
    7.0,
    -7.5,
    60.0,
    math.inf,
    -math.inf,
    math.nan,
]
NEAR = [0.25, -0.75, 0.1, 1.25, 2.0, -3.0, 5.5]


def samples(dtype, count, name=""):
    """``count`` operands that go through all pairs of special values."""
    generator = torch.Generator().manual_seed(7)
    if KIND[dtype] == "f":
        values = torch.cat(
            [
                torch.tensor(SPECIAL + NEAR, dtype=torch.float64),
                torch.randn(22, generator=generator, dtype=torch.float64),
            ]
        )
        values = values.to(dtype)
    elif dtype is torch.bool:
        values = torch.tensor([True, False])
    else:
        info = torch.iinfo(dtype)
        values = torch.tensor([0, 1, -1, 2, 3, -3, 7, -10, 12, 100, 12345, info.max, info.min + 1], dtype=dtype)
    if count == 1:
        return [values]
    first, second = torch.meshgrid(values, values, indexing="ij")
    first, second = first.reshape(-1), second.reshape(-1)
    if KIND[dtype] == "i":
        if "shift" in name:
            first, second = first, second.abs() % 31
        elif name == "pow":
            first, second = first % 11, second.abs() % 8
        elif name in ("div", "trunc_div", "ceil_div", "mod", "fmod", "remainder"):
            second = torch.where(second == 0, torch.full_like(second, 5), second)
    if dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64) and name in ("ceil_div", "trunc_div"):
        keep = torch.isfinite(first) & torch.isfinite(second) & (second != 0)
        first, second = first[keep], second[keep]
    return [first.contiguous(), second.contiguous()]


DEVICE = "cpu"  # where the arguments are put: test_gpu_definition.py changes it


def memory(t):
    """All elements of the memory that a tensor lies in."""
    return t.as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)


def run(fd, inputs):
    """``fd.execute`` on DEVICE, on tensors that lie in memory as these do; what is written into the inputs shows in
    them."""
    if DEVICE == "cpu":
        return fd.execute(list(inputs))
    there, moved = list(inputs), []
    for k, t in enumerate(inputs):
        if isinstance(t, torch.Tensor) and not fd.inputs[k].declaration.is_cpu:
            whole = memory(t).to(DEVICE)
            there[k] = whole.as_strided(t.size(), t.stride(), t.storage_offset())
            moved.append((t, whole))
    outs = fd.execute(there)
    for t, whole in moved:
        memory(t).copy_(whole)
    return [out.cpu() if isinstance(out, torch.Tensor) else out for out in outs]


def execute(inputs, body):
    """The results of ``body(fd, *tensors)``, the printed form checked to give the same program."""
    with FusionDefinition() as fd:
        returned = body(fd, *[fd.from_pytorch(x) for x in inputs])
        for out in returned if isinstance(returned, (list, tuple)) else [returned]:
            fd.add_output(out)
    names = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    assert again._finished() is fd._finished(), repr(fd)
    outs = run(fd, inputs)
    return outs if isinstance(returned, (list, tuple)) else outs[0]


def close(given, wanted, dtype=None, scale=1.0):
    assert given.dtype is (dtype or wanted.dtype), f"{given.dtype}, not {dtype or wanted.dtype}"
    assert given.shape == wanted.shape
    tolerance = {
        torch.float64: 1e-11,
        torch.float32: 4e-6,
        torch.float16: 2e-3,
        torch.bfloat16: 1.6e-2,
        torch.complex64: 4e-6,
    }.get(given.dtype, 0)
    wide = torch.complex128 if given.dtype.is_complex else torch.float64 if given.is_floating_point() else given.dtype
    torch.testing.assert_close(
        given.to(wide), wanted.to(wide), rtol=tolerance * scale, atol=tolerance * scale, equal_nan=True
    )


def promoted(row, dtype, operands) -> torch.dtype:
    """What nvFuser computes in: float32 for half types, and for integers in float ops; the operand's type for the plain
    ops."""
    rule = elementwise.promotion_rule(row)
    if rule is elementwise.PLAIN or rule is elementwise.TO_BOOL:
        return dtype
    ours = to_dtype(torch_dtype_to_nvfuser_dtype(dtype))
    common = common_dtype([(ours, "tensor")] * operands, **rule)
    return {
        dt.f64: torch.float64,
        dt.f32: torch.float32,
        dt.i64: torch.int64,
        dt.i32: torch.int32,
        dt.bool_: torch.bool,
    }[common]


def taken(row, name, dtype) -> bool:
    try:
        computed = promoted(row, dtype, len(row.operands))
    except TypeError:
        return False
    if elementwise.promotion_rule(row) is elementwise.TO_BOOL:
        return True
    kinds = row.takes + ("i" if name == "div" else "b" if name == "truediv" else "")
    return KIND[computed] in kinds and not (name == "truediv" and KIND[computed] != "f")


BATCH = 12  # operations a definition: compiling one each would take minutes


def operand_kind(name, dtype) -> str:
    """Operations with the same one take the same samples."""
    integer = ("shift", "pow", "div", "mod", "remainder")
    return next((k for k in (integer if KIND[dtype] == "i" else ("ceil_div", "trunc_div")) if k in name), "")


def batches(rows):
    """(dtype, operations) that are tested in one definition."""
    for dtype in DTYPES:
        kinds: dict = {}
        for row, name in rows:
            if name == "truediv" or taken(row, name, dtype):
                kinds.setdefault((len(row.operands), operand_kind(name, dtype)), []).append((row, name))
        for members in kinds.values():
            for k in range(0, len(members), BATCH):
                yield dtype, members[k : k + BATCH]


def batch_name(value):
    return "-".join(name for _, name in value) if isinstance(value, list) else str(value).removeprefix("torch.")


def check_elementwise(row, name, dtype, inputs, out):
    count = len(row.operands)
    computed = promoted(table.TABLE["atan2"] if name == "truediv" else row, dtype, count)
    operands = [x.to(torch.float32 if computed in HALVES else computed) for x in inputs]
    wanted = reference(name)(*operands)
    result = torch.bool if row.result == "bool" else computed
    scale = 50 if name in ("lgamma", "erfcinv", "erfinv", "acosh", "tan", "pow", "silu") else 1
    close(out, wanted.to(result), result, scale)


@pytest.mark.parametrize("dtype, members", list(batches(ELEMENTWISE)), ids=batch_name)
def test_elementwise(dtype, members):
    """Each operation on each element type that it takes."""
    inputs = samples(dtype, len(members[0][0].operands), members[0][1])
    outs = execute(inputs, lambda fd, *x: [getattr(fd.ops, name)(*x) for _, name in members])
    problems = []
    for (row, name), out in zip(members, outs):
        try:
            check_elementwise(row, name, dtype, inputs, out)
        except AssertionError as error:
            problems.append(f"fd.ops.{name} on {dtype}: {error}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elementwise_operations_on_types_that_they_do_not_take(dtype):
    refused = [(row, name) for row, name in ELEMENTWISE if name != "truediv" and not taken(row, name, dtype)]
    for row, name in refused:
        with FusionDefinition() as fd:
            x = fd.from_pytorch(torch.ones(2).to(dtype))
            with pytest.raises(DefinitionTypeError, match=rf"test_definition_ops.py:\d+: fd.ops.{name}: "):
                getattr(fd.ops, name)(*[x] * len(row.operands))
    assert refused or dtype in (torch.float64, torch.float32, *HALVES)


BINARY = {name: row for row, name in ELEMENTWISE if len(row.operands) == 2}
BINARY_BATCHES = [
    [(BINARY[name], name) for name in names[k : k + BATCH]]
    for floats in (True, False)
    for names in [sorted(n for n, row in BINARY.items() if ("f" in row.takes) == floats)]
    for k in range(0, len(names), BATCH)
]


@pytest.mark.parametrize("members", BINARY_BATCHES, ids=batch_name)
def test_a_scalar_beside_a_tensor(members):
    """A number on either side, which decides no type; and two numbers, computed on the host."""
    dtype = torch.float32 if "f" in members[0][0].takes else torch.int32
    x = torch.tensor([1.5, -2.5, 4.0, 0.5]) if dtype is torch.float32 else torch.tensor([6, -9, 4, 1], dtype=dtype)
    s = 2.5 if dtype is torch.float32 else 2
    other = torch.tensor(s, dtype=dtype).expand(4)
    y = x.abs() if dtype is torch.float32 else torch.tensor([0, 1, 2, 3], dtype=dtype)

    def body(fd, a, b):
        return [
            out
            for _, name in members
            for out in (getattr(fd.ops, name)(a, s), getattr(fd.ops, name)(fd.define_scalar(s), b))
        ]

    outs = execute([x, y], body)
    for (_, name), right, left in zip(members, outs[::2], outs[1::2]):
        for out, wanted in ((right, reference(name)(x, other)), (left, reference(name)(other, y))):
            close(out, wanted.to(out.dtype))
            assert out.dtype in (dtype, torch.bool), name
    if dtype is torch.int32:
        return

    def numbers(fd, a):
        pair = fd.define_scalar(3.5), fd.define_scalar(1.25)
        return [fd.ops.full([2], getattr(fd.ops, name)(*pair), DataType.Double) for _, name in members]

    for (_, name), out in zip(members, execute([x], numbers)):
        wanted = reference(name)(torch.tensor(3.5, dtype=torch.float64), torch.tensor(1.25, dtype=torch.float64))
        close(out, wanted.double().expand(2).contiguous())


@pytest.mark.parametrize(
    "a, b, common",
    [
        (torch.float16, torch.float16, torch.float32),
        (torch.float16, torch.bfloat16, torch.float32),
        (torch.float16, torch.float64, torch.float64),
        (torch.int32, torch.float16, torch.float32),
        (torch.int32, torch.int64, torch.int64),
        (torch.bool, torch.int32, torch.int32),
        (torch.int64, torch.float32, torch.float32),
        (torch.bool, torch.bool, torch.bool),
    ],
)
def test_promotion_of_tensors(a, b, common):
    x, y = torch.ones(3).to(a), torch.ones(3).to(b)
    out = execute([x, y], lambda fd, s, t: fd.ops.mul(s, t))
    close(out, torch.ones(3).to(common))


def test_promotion_with_scalars_and_rank_zero():
    x, i, h, z = (
        torch.ones(3),
        torch.ones(3, dtype=torch.int32),
        torch.ones(3).half(),
        torch.tensor(2.0, dtype=torch.float64, device=DEVICE),
    )

    def body(fd, x, i, h, z):
        double = fd.define_scalar(2.0)
        return [
            fd.ops.mul(x, double),
            fd.ops.mul(i, 2),
            fd.ops.mul(i, double),
            fd.ops.mul(h, double),
            fd.ops.mul(x, z),
            fd.ops.mul(z, double),
            fd.ops.mul(i, z),
            fd.ops.where(fd.ops.gt(h, 0.0), h, h),
            fd.ops.relu(h),
            fd.ops.exp(i),
            fd.ops.mul(i, fd.define_scalar(True)),
        ]

    kinds = [out.dtype for out in execute([x, i, h, z], body)]
    assert kinds == [torch.float32, torch.int32, torch.float64, torch.float32, torch.float32, torch.float64,
                     torch.float64, torch.float16, torch.float16, torch.float32, torch.int32]  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------
# reductions


@pytest.mark.parametrize(
    "dims, keepdim", [([0], False), ([-1], True), ([0, 2], False), ([0, 1, 2], False), (1, True)], ids=str
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions(dtype, dims, keepdim):
    x = (torch.randn(3, 4, 5) * (1 if KIND[dtype] == "f" else 3)).to(dtype)
    names = []
    for _, name in REDUCTIONS:
        if name in ("mean", "var", "std") and KIND[dtype] != "f":
            with pytest.raises(DefinitionTypeError, match="cast to a float type"):
                execute([x], lambda fd, t: getattr(fd.ops, name)(t, dims))
        else:
            names.append(name)
    outs = execute([x], lambda fd, t: [getattr(fd.ops, name)(t, dims, keepdim=keepdim) for name in names])
    axes = (dims,) if isinstance(dims, int) else tuple(d % 3 for d in dims)
    wide = x.double() if KIND[dtype] == "f" else x
    for name, out in zip(names, outs):
        result = dtype
        if name in ("max", "min"):
            wanted = getattr(torch, f"a{name}")(x, axes, keepdim)
        elif name == "prod":
            wanted = wide if KIND[dtype] == "f" else x.long()
            for d in sorted(axes, reverse=True):
                wanted = wanted.prod(d, keepdim)
        else:
            wanted = getattr(torch, name)(wide if KIND[dtype] == "f" else x.long(), axes, keepdim=keepdim)
        if KIND[dtype] != "f" and name in ("sum", "prod"):
            result = torch.int64
        if name in ("mean", "var", "std") and dtype in HALVES:
            result = torch.float32
        close(out, wanted.to(result), result, 4)


def test_reductions_over_all_and_as_another_type():
    x = torch.randn(3, 4).half()

    def body(fd, t):
        return [fd.ops.sum(t, DataType.Float), fd.ops.sum(t, [0], dtype=DataType.Double), fd.ops.max(t), fd.ops.prod(t, 1, False, DataType.Float),
                fd.ops.sum(t, dim=1), fd.ops.sum(t, axes=[1], keep_dim=True)]  # fmt: skip

    total, double, most, prod, by_dim, kept = execute([x], body)
    close(total, x.float().sum())
    close(double, x.double().sum(0))
    close(most, x.max())
    close(prod, x.float().prod(1))
    close(by_dim, x.sum(1))
    close(kept, x.sum(1, keepdim=True))


def test_nan_and_empty_reductions():
    x = torch.tensor([[1.0, math.nan], [2.0, 3.0]])
    high, low = execute([x], lambda fd, t: [fd.ops.max(t, [1]), fd.ops.min(t, [1])])
    close(high, x.amax(1))
    close(low, x.amin(1))
    total, product = execute([torch.ones(0, 3)], lambda fd, t: [fd.ops.sum(t, [0]), fd.ops.prod(t, [0])])
    close(total, torch.zeros(3))
    close(product, torch.ones(3))


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("dims, keepdim", [([-1], False), ([0, 2], True)])
def test_moments(correction, dims, keepdim):
    x = torch.randn(3, 4, 5)
    variance, mean = execute([x], lambda fd, t: fd.ops.var_mean(t, dims, correction, keepdim))
    wanted = torch.var_mean(x, dims, correction=correction, keepdim=keepdim)
    close(variance, wanted[0])
    close(mean, wanted[1])
    average, squares, count = execute([x], lambda fd, t: fd.ops.welford(t, dims))
    variance, mean = torch.var_mean(x, dims, correction=0)
    n = math.prod(x.shape[d] for d in dims)
    close(average, mean)
    close(squares, variance * n, scale=4)
    assert (count == n).all() and count.dtype is torch.int64
    close(
        execute([x], lambda fd, t: fd.ops.var(t, dims, correction, keepdim)),
        torch.var(x, dims, correction=correction, keepdim=keepdim),
    )


# ----------------------------------------------------------------------------------------------------------------
# composed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_ternary(dtype):
    a, b, c = (torch.randn(4, 5, dtype=dtype) for _ in range(3))

    def body(fd, x, y, z):
        return [fd.ops.addcmul(x, y, z, 0.1), fd.ops.lerp(x, y, z), fd.ops.lerp(x, y, 0.25), fd.ops.clamp(x, -0.5, 0.5), fd.ops.clamp(x, max=0.25),
                fd.ops.threshold(x, 0.1, 7.0), fd.ops.rsub(x, y), fd.ops.add_alpha(x, y, 2.5), fd.ops.sub_alpha(x, y, 2.5),
                fd.ops.where(fd.ops.gt(x, y), x, 0.0)]  # fmt: skip

    wanted = [
        torch.addcmul(a, b, c, value=0.1),
        torch.lerp(a, b, c),
        torch.lerp(a, b, 0.25),
        a.clamp(-0.5, 0.5),
        a.clamp(max=0.25),
        F.threshold(a, 0.1, 7.0),
        torch.rsub(a, b),
        torch.add(a, b, alpha=2.5),
        torch.sub(a, b, alpha=2.5),
        torch.where(a > b, a, 0.0),
    ]
    for given, expected in zip(execute([a, b, c], body), wanted):
        close(given, expected, scale=2)


def test_where_of_scalars():
    condition = torch.tensor([False, True])
    cases = [(3.0, 5.0, None, torch.float64), (3.0, 5.0, DataType.Float, torch.float32), (3, 5, DataType.Int32, torch.int32), (3, 5, None, torch.int64),
             (True, False, DataType.Bool, torch.bool), (3.0 + 0j, 5.0 + 0j, None, torch.complex128),
             (3.0 + 0j, 5.0 + 0j, DataType.ComplexFloat, torch.complex64)]  # fmt: skip
    with config.override(fallback=True), warnings.catch_warnings():  # complex types are not compiled yet
        warnings.simplefilter("ignore")
        outs = execute(
            [condition],
            lambda fd, c: [fd.ops.where(c, fd.define_scalar(a, t), fd.define_scalar(b, t)) for a, b, t, _ in cases],
        )
    for out, (a, b, _, dtype) in zip(outs, cases):
        close(out, torch.tensor([b, a], dtype=dtype))


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_cast(source):
    x = torch.tensor([0.0, 1.0, 2.0, 100.0]).to(source)
    outs = execute([x], lambda fd, t: [fd.ops.cast(t, torch_dtype_to_nvfuser_dtype(target)) for target in DTYPES])
    for out, target in zip(outs, DTYPES):
        close(out, x.to(target))


# ----------------------------------------------------------------------------------------------------------------
# random numbers


def test_random_numbers():
    shape = (64, 1000)
    x = torch.empty(shape)

    def body(fd, t):
        seeded = {"rng_seed": fd.define_scalar(5), "rng_offset": fd.define_scalar(3)}
        return [
            fd.ops.uniform(1.5, 4.5, t.shape(), DataType.Float),
            fd.ops.normal(3.0, 2.0, t.shape(), dtype=DataType.Double),
            fd.ops.uniform(0.0, 1.0, t.shape(), **seeded),
            fd.ops.uniform(0.0, 1.0, t.shape(), **seeded),
            fd.ops.rand_like(t),
            fd.ops.randn_like(t),
        ]

    torch.manual_seed(0)
    first = execute([x], body)
    torch.manual_seed(0)
    again = execute([x], body)
    third = execute([x], body)
    flat, normal, s1, s2, like, randn = first
    assert flat.min() >= 1.5 and flat.max() < 4.5 and abs(flat.mean() - 3) < 0.02 and flat.dtype is torch.float32
    assert normal.dtype is torch.float64 and abs(normal.mean() - 3) < 0.05 and abs(normal.std() - 2) < 0.05
    assert torch.equal(s1, s2) and 0 <= like.min() < 0.001 and abs(randn.std() - 1) < 0.02
    for a, b, c in zip(first, again, third):
        assert torch.equal(a, b)
        assert (c is s1) or torch.equal(a, c) == (a is s1 or a is s2)
    assert not torch.equal(flat / 3 - 0.5, like)


def test_dropout():
    x = torch.randn(100, 100)
    out, mask = execute([x], lambda fd, t: fd.ops.dropout(t, 0.75))
    assert mask.dtype is torch.bool and abs(mask.float().mean() - 0.75) < 0.02
    close(out, torch.where(mask, x / 0.75, 0.0))


# ----------------------------------------------------------------------------------------------------------------
# indexing


def test_indexing():
    x, i, j = torch.randn(8, 16), torch.randint(0, 8, (6,)), torch.randint(0, 8, (4, 4))
    k, wide, scalar = (torch.randint(0, 8, (8, 16)), torch.randint(0, 8, (3, 16)), torch.tensor(2))
    for dim in (0, 1):

        def body(fd, x, i, j, k, s):
            return [
                fd.ops.index_select(x, i, dim),
                fd.ops.gather(x, j, dim),
                fd.ops.take_along_axis(x, k, dim),
                fd.ops.select(x, 3, dim),
                fd.ops.index_select(x, s, dim),
                fd.ops.index_select(fd.ops.neg(x), fd.ops.cast(i, DataType.Int32), dim),
            ]

        outs = execute([x, i, j, k, scalar.reshape(1)], body)
        wanted = [
            x.index_select(dim, i),
            x.gather(dim, j),
            x.gather(dim, k),
            x.select(dim, 3),
            x.index_select(dim, scalar),
            -x.index_select(dim, i),
        ]
        for given, expected in zip(outs, wanted):
            close(given, expected)
    close(execute([x, wide], lambda fd, x, k: fd.ops.take_along_axis(x, k, 0)), torch.take_along_dim(x, wide, 0))
    with FusionDefinition() as fd:
        t, s = fd.from_pytorch(x), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.select(t, s, 1))
    for n in (0, 5):
        close(run(fd, [x, n])[0], x[:, n])
    with pytest.raises(InputError):
        execute([x, torch.randint(0, 8, (3, 15))], lambda fd, x, k: fd.ops.take_along_axis(x, k, 0))


def test_scatter_and_accumulation():
    x, src = torch.randn(8, 5), torch.randn(3, 5)
    index = torch.stack([torch.randperm(8)[:3] for _ in range(5)], 1)
    close(
        execute([x, index, src], lambda fd, x, i, s: fd.ops.sigmoid(fd.ops.scatter(x, i, s, 0))),
        x.scatter(0, index, src).sigmoid(),
    )
    close(execute([x, index], lambda fd, x, i: fd.ops.scatter(x, i, 1.5, 0)), x.scatter(0, index, 1.5))
    acc, rows, value = (torch.randn(6, 4), torch.tensor([1, 1, 5, 0, 1]), torch.randn(5, 4))
    out = execute([acc, rows, value], lambda fd, a, i, v: fd.ops.index_put_accumulate(a, i, v))
    close(out, acc.index_put((rows,), value, accumulate=True))


@pytest.mark.parametrize("max_norm, norm_type", [(None, None), (1.0, None), (0.5, 1.0)])
def test_embedding(max_norm, norm_type):
    index, weight = torch.randint(0, 10, (3, 4)), torch.randn(10, 6)
    out = execute([index, weight], lambda fd, i, w: fd.ops.embedding_fwd(i, w, None, max_norm, norm_type))
    close(out, F.embedding(index, weight.clone(), None, max_norm, norm_type or 2.0), scale=2)
    grad = torch.randn(3, 4, 6)
    for padding in (None, 3, -2):
        given = execute([grad, index], lambda fd, g, i: fd.ops.embedding_bwd(g, i, 10, padding))
        w = weight.clone().requires_grad_()
        F.embedding(index, w, padding).backward(grad)
        close(given, w.grad)


@pytest.mark.parametrize("diagonal", [0, -1, 3])
def test_triu(diagonal):
    for x in (torch.randn(4, 16).half(), torch.randn(2, 3, 3), torch.ones(3, 3, dtype=torch.bool)):
        close(execute([x], lambda fd, t: fd.ops.triu(t, diagonal)), x.triu(diagonal))


@pytest.mark.parametrize("dim", [0, -1])
def test_scans_and_sorting(dim):
    x = torch.randn(6, 7)
    outs = execute(
        [x],
        lambda fd, t: [
            fd.ops.cumsum(t, dim),
            fd.ops.cumprod(t, dim),
            fd.ops.cummax(t, dim),
            fd.ops.cummin(t, dim),
            fd.ops.argsort(t, dim),
            fd.ops.argsort(t, dim, True),
            *fd.ops.topk(t, 3, dim),
            *fd.ops.topk(t, 2, dim, False),
        ],
    )
    wanted = [x.cumsum(dim), x.cumprod(dim), x.cummax(dim)[0], x.cummin(dim)[0], x.argsort(dim), x.argsort(dim, descending=True),
              *x.topk(3, dim), *x.topk(2, dim, False)]  # fmt: skip
    for given, expected in zip(outs, wanted):
        close(given, expected, scale=4)
    i = torch.randint(-5, 5, (6, 7), dtype=torch.int32)
    close(execute([i], lambda fd, t: fd.ops.cumsum(t, dim)), i.cumsum(dim))


def unknown(body, rank=1):
    """A definition of a tensor of extents declared -1."""
    with FusionDefinition() as fd:
        for out in body(fd, fd.define_tensor([-1] * rank, [True] * rank, DataType.Double)):
            fd.add_output(out)
    return fd


def test_pieces_of_an_unknown_extent():
    """As many as torch makes, or an error that says so."""
    for chunks in (1, 2, 3, 4, 6):
        fd = unknown(lambda fd, t: [fd.ops.mul(piece, 2.0) for piece in fd.ops.chunk(t, chunks, 0)])
        for n in (0, 1, 2, 5, 6, 7, 8, 12, 13):
            x = torch.arange(n, dtype=torch.float64)
            wanted = x.chunk(chunks)
            if len(wanted) < chunks:
                with pytest.raises(
                    InputError,
                    match=f"test_definition_ops.py.*chunk: the extent of dimension 0 gives fewer than {chunks} slices",
                ):
                    fd.execute([x])
                continue
            for given, expected in zip(fd.execute([x]), wanted, strict=True):
                close(given, expected * 2)
    with FusionDefinition() as fd:
        t, n = fd.define_tensor([-1], [True], DataType.Double), fd.define_scalar(None, DataType.Int)
        for piece in fd.ops.split(t, [n, fd.ops.sub(fd.ops.size(t, 0), n)]):
            fd.add_output(fd.ops.neg(piece))
    x = torch.arange(5.0, dtype=torch.float64)
    for n in (0, 1, 2, 5):
        for given, expected in zip(fd.execute([x, n]), x.split([n, 5 - n])):
            close(given, -expected)
    for n, piece in ((6, 1), (-1, 0)):
        with pytest.raises(InputError, match=f"split: the size of slice {piece} must be 0 or more"):
            fd.execute([x, n])


def test_topk_of_an_unknown_extent():
    fd = unknown(lambda fd, t: fd.ops.topk(t, 7))
    for n in (7, 8, 30, 7):
        x = torch.randn(n, dtype=torch.float64)
        for given, expected in zip(fd.execute([x]), x.topk(7)):
            close(given, expected)
    for n in (0, 1, 5):
        with pytest.raises(InputError, match="topk: k must be within the extent of dimension 0"):
            fd.execute([torch.randn(n, dtype=torch.float64)])
    with FusionDefinition() as fd:
        t, k = fd.define_tensor([-1], [True], DataType.Double), fd.define_scalar(None, DataType.Int)
        fd.add_output(fd.ops.topk(t, k)[0])
    x = torch.randn(5, dtype=torch.float64)
    for k in (0, 1, 3, 5):
        close(fd.execute([x, k])[0], x.topk(k)[0])
    for k in (6, -1):
        with pytest.raises(InputError, match="topk: k must be"):
            fd.execute([x, k])


def test_gather_by_an_index_larger_than_the_tensor():
    with FusionDefinition() as fd:
        t, i = (
            fd.define_tensor([-1, -1], [True, True], DataType.Double),
            fd.define_tensor([-1, -1], [True, True], DataType.Int),
        )
        fd.add_output(fd.ops.gather(t, i, 0))
    x = torch.randn(3, 4, dtype=torch.float64)
    for columns in (1, 2, 4):
        i = torch.randint(0, 3, (5, columns))
        close(fd.execute([x, i])[0], x.gather(0, i))
    with pytest.raises(InputError, match="gather: index must have at most arg's extent in dimension 1"):
        fd.execute([x, torch.zeros(5, 6, dtype=torch.int64)])


def test_matmul_and_linear():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        a, b, w, bias = (torch.randn(*s).to(dtype) for s in ((24, 8), (8, 16), (16, 8), (16,)))
        outs = execute(
            [a, b, w, bias],
            lambda fd, a, b, w, c: [fd.ops.relu(fd.ops.matmul(a, b)), fd.ops.linear(a, w), fd.ops.linear(a, w, c)],
        )
        for given, expected in zip(outs, [(a @ b).relu(), F.linear(a, w), F.linear(a, w, bias)]):
            close(given, expected, scale=10)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    q, k, v, dy = (torch.randn(2, 3, 8, 16) for _ in range(4))
    out, logs, *_ = execute([q, k, v], lambda fd, q, k, v: fd.ops.sdpfa_fwd(q, k, v, None, causal))
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    close(out, wanted, scale=4)
    scores = (q @ k.transpose(-1, -2) / 4).masked_fill(
        ~torch.ones(8, 8, dtype=torch.bool).tril() if causal else torch.tensor(False), -math.inf
    )
    close(logs, scores.logsumexp(-1), scale=4)
    given = execute([dy, q, k, v, out, logs], lambda fd, *t: fd.ops.sdpfa_bwd(*t, None, causal))
    all_close(given, gradients(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), dy, q, k, v))


# ----------------------------------------------------------------------------------------------------------------
# normalizations


def gradients(function, dy, *operands):
    operands = [x.clone().requires_grad_() for x in operands]
    function(*operands).backward(dy)
    return [x.grad for x in operands]


def all_close(given, wanted):
    assert len(given) == len(wanted)
    for a, b in zip(given, wanted):
        close(a, b, scale=10)


def test_layer_norm():
    x, w, b, dy = (torch.randn(4, 3, 8), torch.randn(3, 8), torch.randn(3, 8), torch.randn(4, 3, 8))
    y, mean, rstd = execute([x, w, b], lambda fd, x, w, b: fd.ops.layer_norm(x, [3, 8], w, b, 1e-4))
    wanted = torch.native_layer_norm(x, (3, 8), w, b, 1e-4)
    all_close([y, mean, rstd], wanted)
    given = execute(
        [dy, x, mean, rstd, w, b], lambda fd, dy, x, m, r, w, b: fd.ops.layer_norm_backward(dy, x, [3, 8], m, r, w, b)
    )
    all_close(given, gradients(lambda x, w, b: F.layer_norm(x, (3, 8), w, b, 1e-4), dy, x, w, b))


def test_rms_norm():
    x, w, dy = torch.randn(4, 8), torch.randn(8), torch.randn(4, 8)
    y, rstd = execute([x, w], lambda fd, x, w: fd.ops.rms_norm(x, 1, w, 1e-4))
    close(y, F.rms_norm(x, (8,), w, 1e-4), scale=4)
    given = execute([dy, x, rstd, w], lambda fd, dy, x, r, w: fd.ops.rms_norm_backward(dy, x, 1, r, w))
    all_close(given, gradients(lambda x, w: F.rms_norm(x, (8,), w, 1e-4), dy, x, w))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("channels_last", [False, True])
def test_batch_norm(training, channels_last):
    x, w, b, dy = (torch.randn(4, 3, 5, 2), torch.randn(3), torch.randn(3), torch.randn(4, 3, 5, 2))
    mean, var = torch.randn(3), torch.rand(3) + 0.5
    given_mean, given_var, wanted_mean, wanted_var = (mean.clone(), var.clone(), mean.clone(), var.clone())
    last = (lambda t: t.permute(0, 2, 3, 1).contiguous()) if channels_last else (lambda t: t)
    back = (lambda t: t.permute(0, 3, 1, 2)) if channels_last else (lambda t: t)

    def forward(fd, x, w, b, m, v):
        return fd.ops.batch_norm(x, w, b, m, v, 0.1, 1e-5, training, channels_last)

    with FusionDefinition() as fd:
        tensors = [fd.from_pytorch(t) for t in (last(x), w, b, given_mean, given_var)]
        for out in forward(fd, *tensors):
            fd.add_output(out)
    y, save_mean, save_rstd = run(fd, [last(x), w, b, given_mean, given_var])
    wanted = F.batch_norm(x, wanted_mean, wanted_var, w, b, training, 0.1, 1e-5)
    all_close([back(y), given_mean, given_var], [wanted, wanted_mean, wanted_var])
    grads = execute(
        [last(x), last(dy), w, mean, var, save_mean, save_rstd],
        lambda fd, x, dy, w, m, v, sm, sr: fd.ops.batch_norm_backward(
            x, dy, w, m, v, sm, sr, training, 1e-5, channels_last=channels_last
        ),
    )
    expected = gradients(
        lambda x, w, b: F.batch_norm(x, mean.clone(), var.clone(), w, b, training, 0.1, 1e-5), dy, x, w, b
    )
    all_close([back(grads[0]), *grads[1:]], expected)


def test_instance_and_group_norm():
    x, w, b, dy = (torch.randn(4, 6, 5, 2), torch.randn(6), torch.randn(6), torch.randn(4, 6, 5, 2))
    y, mean, rstd = execute([x, w, b], lambda fd, x, w, b: fd.ops.instance_norm(x, w, b, None, None, 0.1, 1e-5))
    close(y, F.instance_norm(x, weight=w, bias=b), scale=10)
    given = execute([x, dy, w, mean, rstd], lambda fd, x, dy, w, m, r: fd.ops.instance_norm_backward(x, dy, w, m, r))
    all_close(given, gradients(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), dy, x, w, b))
    y, mean, rstd = execute([x, w, b], lambda fd, x, w, b: fd.ops.group_norm(x, 3, w, b))
    close(y, F.group_norm(x, 3, w, b), scale=10)
    given = execute([dy, x, mean, rstd, w], lambda fd, dy, x, m, r, w: fd.ops.group_norm_backward(dy, x, 3, m, r, w))
    all_close(given, gradients(lambda x, w, b: F.group_norm(x, 3, w, b), dy, x, w, b))
    running = [torch.zeros(6), torch.ones(6)]
    wanted = [t.clone() for t in running]
    execute([x, *running], lambda fd, x, m, v: fd.ops.instance_norm(x, None, None, m, v, 0.1, 1e-5)[0])
    F.instance_norm(x, *wanted, use_input_stats=True, momentum=0.1)
    all_close(running, wanted)


# ----------------------------------------------------------------------------------------------------------------
# complex numbers

COMPLEX = [(row, name) for row, name in ELEMENTWISE if table.COMPLEX in row.takes]


def complex_samples(dtype, count):
    values = [complex(a, b) for a in (0.0, 1.0, -1.5, 2.5, -1e-3, 40.0) for b in (0.0, 0.5, -2.0, 7.0)]
    values = torch.tensor(values, dtype=dtype)
    if count == 1:
        return [values]
    first, second = torch.meshgrid(values, values[1:], indexing="ij")
    return [first.reshape(-1).contiguous(), second.reshape(-1).contiguous()]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("count", [1, 2])
def test_complex_elementwise(count, dtype):
    members = [
        name for row, name in COMPLEX if len(row.operands) == count and name != "pow"
    ]  # test_complex_functions.py
    inputs = complex_samples(dtype, count)
    outs = execute(inputs, lambda fd, *x: [getattr(fd.ops, name)(*x) for name in members])
    tolerance = 2e-6 if dtype is torch.complex64 else 1e-14
    for name, out in zip(members, outs):
        function = {"div": torch.div, "truediv": torch.div}.get(name) or reference(name)
        wanted = function(*inputs)
        if name in ("rsqrt", "reciprocal"):
            out, wanted = out[1:], wanted[1:]  # of 0, frameworks give different infinities and NaNs
        assert out.dtype is wanted.dtype and out.shape == wanted.shape, name
        torch.testing.assert_close(
            out, wanted, rtol=tolerance, atol=tolerance, msg=lambda text: f"fd.ops.{name}: {text}"
        )


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_functions_at_special_values(dtype):
    """Within torch's own tolerances: where a part is infinite, ``isclose`` asks that the other one is equal."""
    names = ["exp", "log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan", "sinh", "cosh", "tanh",
             "asin", "acos", "atan", "asinh", "acosh", "atanh"]  # fmt: skip
    parts = [0.0, -0.0, 1.0, -2.0, 0.5, 88.0, -104.0, 710.0, math.inf, -math.inf, math.nan]
    x = torch.tensor([complex(a, b) for a, b in itertools.product(parts, parts)], dtype=torch.complex128).to(dtype)
    with FusionDefinition() as fd:
        given = fd.from_pytorch(x)
        for name in names:
            fd.add_output(getattr(fd.ops, name)(given))
    for name, found in zip(names, fd.execute([x]), strict=True):
        torch.testing.assert_close(found, getattr(torch, name)(x), equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_programs(dtype):
    x, y, real = torch.randn(6, 7, dtype=dtype), torch.randn(6, 7, dtype=dtype), torch.randn(6, 7)

    def body(fd, x, y, r):
        o = fd.ops
        product = o.mul(x, y)
        return [
            o.sum(product, [1]),
            o.sum(product, [0], True),
            o.permute(product, [1, 0]),
            o.mul(x, r),
            o.add(x, 2.0),
            o.mul(1 - 2j, x),
            o.where(o.gt(o.real(x), 0.0), x, y),
            o.cast(r, x.dtype),
            o.complex(o.real(x), o.imag(y)),
            x,
            o.cat([x, y], 1),
            o.slice(product, [1, 2], [5, 7]),
            o.reshape(product, [42]),
            o.abs(o.sum(x)),
            o.full([3], fd.define_scalar(0.5 + 1j), x.dtype),
            o.flip(x, [0]),
        ]

    wanted = [(x * y).sum(1), (x * y).sum(0, keepdim=True), (x * y).T, x * real.to(x.real.dtype), x + 2, (1 - 2j) * x,
              torch.where(x.real > 0, x, y), real.to(dtype), torch.complex(x.real, y.imag), x, torch.cat([x, y], 1), (x * y)[1:5, 2:7],
              (x * y).reshape(42), x.sum().abs(), torch.full([3], 0.5 + 1j, dtype=dtype), x.flip(0)]  # fmt: skip
    for given, expected in zip(execute([x, y, real], body), wanted):
        assert given.dtype is expected.dtype
        torch.testing.assert_close(given, expected)


def test_complex_arguments_as_they_lie_in_memory():
    wide = torch.randn(8, 10, dtype=torch.complex64)
    for x in (wide[:, ::2], wide.T, wide[3], wide[:0], wide[2:3, 4:5], wide[1, 1], wide[:, :1].expand(8, 5)):
        close(execute([x], lambda fd, t: fd.ops.mul(t, t)), x * x)
    array = wide.numpy()[1:, ::3]
    (out,) = execute([array], lambda fd, t: [fd.ops.mul(t, t)])
    assert isinstance(out, np.ndarray) and np.allclose(out, array * array)
    out = execute([wide], lambda fd, t: fd.ops.stride_order(fd.ops.neg(t), [0, 1]))
    assert out.stride() == (1, 8) and torch.equal(out, -wide)


def test_complex_numbers_and_aliases():
    x = torch.randn(5, 4, dtype=torch.complex64)
    with FusionDefinition() as fd:
        t, s = fd.from_pytorch(x), fd.define_scalar(None, DataType.ComplexDouble)
        new = fd.ops.mul(t, s)
        fd.add_output(new, alias_input=t)
        fd.add_output(fd.ops.real(new))
    for number in (2 - 1j, 0.5j, 3):
        expected = x * number
        (part,) = run(fd, [x, number])
        torch.testing.assert_close(x, expected)
        torch.testing.assert_close(part, expected.real)
    assert fd.lower([x, 1j]).kernels == 1 and fd.lower([x, 1j], "cuda:sm_90").kernels == 1


@pytest.mark.parametrize("name", ["exp2", "floor", "lt", "maximum", "atan2", "bitwise_and", "silu"])
def test_complex_numbers_that_an_operation_does_not_take(name):
    x = torch.ones(2, dtype=torch.complex64)
    row = next(r for r, n in ELEMENTWISE if n == name)
    with pytest.raises(DefinitionTypeError, match=f"fd.ops.{name}: "):
        execute([x] * len(row.operands), lambda fd, *t: getattr(fd.ops, name)(*t))


# ----------------------------------------------------------------------------------------------------------------
# kernels


def _created(*shape):
    return torch.zeros(shape)


def _kernel_cases():
    """Operation, arguments, launches on an sm_90 GPU, library ops."""
    x, i, j, c = (
        _created(64, 512),
        torch.zeros(32, dtype=torch.int64),
        torch.zeros(32, 512, dtype=torch.int64),
        _created(512),
    )
    images, channel, row, sample, group = (
        _created(8, 16, 14, 14),
        _created(16),
        _created(64, 1),
        _created(8, 16),
        _created(8, 4),
    )
    fused = {
        "index_select": (lambda o, x, i: o.neg(o.index_select(o.exp(x), i, 0)), (x, i)),
        "select": (lambda o, x: o.exp(o.select(x, 3, 0)), (x,)),
        "gather": (lambda o, x, j: o.exp(o.gather(x, j, 0)), (x, j)),
        "take_along_axis": (lambda o, x, j: o.exp(o.take_along_axis(x, j, 0)), (x, j)),
        "embedding_fwd": (lambda o, i, w: o.neg(o.embedding_fwd(i, w)), (i, x)),
        "embedding_fwd with max_norm": (lambda o, i, w: o.embedding_fwd(i, w, None, 1.0), (i, x)),
        "triu": (lambda o, x: o.neg(o.triu(o.exp(x))), (x,)),
        "rand_like": (lambda o, x: o.mul(x, o.rand_like(x)), (x,)),
        "randn_like": (lambda o, x: o.mul(x, o.randn_like(x)), (x,)),
        "dropout": (lambda o, x: o.dropout(x, 0.9), (x,)),
        "layer_norm": (lambda o, x, w, b: o.layer_norm(x, [512], w, b), (x, c, c)),
        "rms_norm": (lambda o, x, w: o.rms_norm(x, [512], w), (x, c)),
        "batch_norm": (lambda o, x, w, b, m, v: o.batch_norm(x, w, b, m, v, 0.1, 1e-5, True), (images, channel, channel, channel, channel)),
        "batch_norm in evaluation": (lambda o, x, w, b, m, v: o.batch_norm(x, w, b, m, v, 0.1, 1e-5, False)[0], (images, channel, channel, channel, channel)),
        "batch_norm_backward": (lambda o, x, dy, w, m, v, s, r: o.batch_norm_backward(x, dy, w, m, v, s, r, True, 1e-5), (images, images, *[channel] * 5)),
        "instance_norm": (lambda o, x, w, b: o.instance_norm(x, w, b, None, None, 0.1, 1e-5), (images, channel, channel)),
        "group_norm": (lambda o, x, w, b: o.group_norm(x, 4, w, b), (images, channel, channel)),
    }  # fmt: skip
    for name, (body, inputs) in fused.items():
        yield name, body, inputs, 1, []
    yield (
        "layer_norm_backward",
        lambda o, dy, x, m, r, w, b: o.layer_norm_backward(dy, x, [512], m, r, w, b),
        (x, x, row, row, c, c),
        2,
        [],
    )
    yield "rms_norm_backward", lambda o, dy, x, r, w: o.rms_norm_backward(dy, x, [512], r, w), (x, x, row, c), 2, []
    yield (
        "instance_norm_backward",
        lambda o, x, dy, w, m, r: o.instance_norm_backward(x, dy, w, m, r),
        (images, images, channel, sample, sample),
        2,
        [],
    )
    yield (
        "group_norm_backward",
        lambda o, dy, x, m, r, w: o.group_norm_backward(dy, x, 4, m, r, w),
        (images, images, group, group, channel),
        2,
        [],
    )
    yield "cumsum", lambda o, x: o.neg(o.cumsum(o.exp(x), 1)), (x,), 1, []
    yield "topk", lambda o, x: o.topk(o.exp(x), 3), (x,), 1, ["call"]
    yield "scatter", lambda o, x, j: o.neg(o.scatter(x, j, 1.5, 0)), (x, j), 1, ["scatter"]
    yield (
        "index_put_accumulate",
        lambda o, x, i, v: o.neg(o.index_put_accumulate(x, i, v)),
        (x, i, _created(32, 512)),
        3,
        [],
    )
    yield "linear", lambda o, x, w, b: o.relu(o.linear(x, w, b)), (x, x, row.reshape(64)), 1, ["linear"]


@pytest.mark.parametrize(
    "name, body, inputs, launches, libraries", list(_kernel_cases()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_kernels_of_tier_2(name, body, inputs, launches, libraries):
    """What is fused and what runs in between through a library. Nothing is run: no GPU is needed."""
    with FusionDefinition() as fd:
        returned = body(fd.ops, *[fd.from_pytorch(t) for t in inputs])
        for out in returned if isinstance(returned, (list, tuple)) else [returned]:
            fd.add_output(out)
    lowered = fd.lower(list(inputs), "cuda:sm_90")
    assert lowered.kernels == launches, lowered.as_text()
    assert re.findall(r'"fusion\.(\w+)"[^\n]*note = "runs through a library"', lowered.as_text()) == libraries


# ---------------------------------------------------------------------------------------------------------------- the
# list itself


def test_all_operations_are_documented_and_checked():
    for name in definition_ops.names():
        function = getattr(definition_ops.Operators, name)
        assert function.__doc__, name
        if name not in ("shape", "tensor_sizes", "at"):
            assert getattr(function, "operation", False), name
            with FusionDefinition() as fd:
                with pytest.raises(DefinitionError, match=r"test_definition_ops.py:\d+"):
                    getattr(fd.ops, name)(
                        *["x"]
                        * sum(p.default is p.empty for p in list(inspect.signature(function).parameters.values())[1:])
                    )


def test_the_page_of_the_api_is_up_to_date():
    root = pathlib.Path(__file__).parents[3]
    spec = importlib.util.spec_from_file_location("generate_nvfuser_table", root / "docs" / "generate_nvfuser_table.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert (root / "docs" / "nvfuser" / "api.md").read_text() == generator.page(), "run docs/generate_nvfuser_table.py"


def test_the_tables_names_are_operations():
    missing = {n for row in table.TABLE.values() for n in row.nvfuser} - set(definition_ops.names())
    assert not missing


# ----------------------------------------------------------------------------------------------------------------
# floats of a byte


@pytest.mark.parametrize("narrow, name", [(torch.float8_e4m3fn, "Float8_e4m3fn"), (torch.float8_e5m2, "Float8_e5m2")])
def test_narrow_floats(narrow, name):
    """Every value is read as torch reads it, and numbers in range are rounded as torch rounds them; larger ones become
    the largest, as nvFuser's casts make them."""
    every = torch.arange(256, dtype=torch.uint8).view(narrow)
    (read,) = execute([every], lambda fd, x: [fd.ops.add(fd.ops.cast(x, DataType.Float), fd.define_scalar(1.0))])
    wanted = every.float() + 1
    assert torch.equal(read.isnan(), wanted.isnan())
    largest = torch.finfo(narrow).max
    finite = every.float().abs() <= largest  # neither infinite nor NaN
    assert torch.equal(read[finite], wanted[finite])
    steps = every.float()[finite].sort().values
    x = torch.cat(
        [
            steps,
            (steps[1:] + steps[:-1]) / 2,
            torch.randn(7, 33).flatten() * 100,
            torch.tensor([-0.0, 1e-30, largest * 1.01, -largest]),
        ]
    )
    written, back = execute(
        [x], lambda fd, x: (lambda y: [y, fd.ops.cast(y, DataType.Float)])(fd.ops.cast(x, getattr(DataType, name)))
    )
    wanted = x.clamp(-largest, largest).to(narrow)
    assert written.dtype is narrow and torch.equal(written.view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(back, wanted.float())
    (far,) = execute(
        [torch.tensor([1e9, -torch.inf, torch.nan])], lambda fd, x: [fd.ops.cast(x, getattr(DataType, name))]
    )
    far = far.float()
    assert far[0] == largest and far[1] == -largest and far[2].isnan()


@pytest.mark.parametrize("n", [5, 16, 40, 1000])
def test_the_order_of_equal_elements_is_torchs(n):
    x = torch.randint(0, 4, (8, n))
    for dtype in (torch.int64, torch.float32, torch.bfloat16, torch.bool):
        y = x.to(dtype)
        for largest in (False, True):
            with FusionDefinition() as fd:
                t = fd.from_pytorch(y)
                fd.add_output(fd.ops.argsort(t, -1, largest))
                fd.add_output(fd.ops.argsort(t, -1, largest, True))
                for out in (*fd.ops.topk(t, 3, -1, largest), fd.ops.topk(t, 1, 0, largest)[1]):
                    fd.add_output(out)
            comparable = y.byte() if dtype is torch.bool else y
            wanted = [
                torch.argsort(y, -1, largest),
                torch.argsort(y, dim=-1, descending=largest, stable=True),
                torch.topk(comparable, 3, -1, largest)[0].to(dtype),
                torch.topk(comparable, 3, -1, largest)[1],
                torch.topk(comparable, 1, 0, largest)[1],
            ]
            for given, expected in zip(fd.execute([y]), wanted, strict=True):
                assert torch.equal(given, expected)
