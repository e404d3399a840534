"""Every operation of nvFuser's list on the inputs that its own tests give: tensors that require a gradient, of rank 0,
and empty ones, of each kind of element type, against torch; and on what no operation takes. test_gpu_definition.py runs
them on a GPU."""

import pytest

torch = pytest.importorskip("torch")

from mlirfuse.core import config
from mlirfuse.frontend.nvfuser.ops import operators
from mlirfuse.nvfuser import DefinitionError, FusionDefinition

F = torch.nn.functional
DEVICE = "cpu"
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.int64, torch.int32]
ANY = [*FLOATS, *INTEGERS, torch.bool]


@pytest.fixture(autouse=True)
def compiled_or_failed():
    """What cannot be compiled fails, instead of running op by op."""
    with config.override(fallback=False):
        yield


def dim(x):
    """The last dimension, which a tensor of rank 0 has as torch sees it."""
    return -1


def moments(function):
    return lambda x: function(x.float() if x.element_size() == 2 else x)


# For each operation: how it is called, what torch has for it, how many tensors it takes, of which types.
UNARY_FLOAT = [
    "asin",
    "atan",
    "asinh",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "sigmoid",
    "sin",
    "sinh",
    "tan",
    "tanh",
    "lgamma",
]
UNARY_POSITIVE = ["log", "log10", "log1p", "log2", "rsqrt", "sqrt", "reciprocal"]
UNARY_ANY = ["abs", "neg", "ceil", "floor", "round", "trunc", "frac", "relu"]
CHECKS = ["isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal", "signbit"]
COMPLEX_TOO = {
    *[
        "abs",
        "neg",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "cos",
        "cosh",
        "exp",
        "log",
        "log10",
        "log2",
        "sigmoid",
        "sin",
        "sinh",
        "sqrt",
        "rsqrt",
        "tan",
        "tanh",
        "reciprocal",
    ],
    *[
        "isfinite",
        "isinf",
        "isnan",
        "isreal",
        "add",
        "sub",
        "mul",
        "div",
        "eq",
        "ne",
        "sum",
        "prod",
        "mean",
        "var",
        "set",
        "permute",
        "reshape",
        "cat",
        "where",
        "log1p",
        "segment_set",
        "truediv",
        "pow",
        "addcmul",
        "lerp",
        "rsub",
        "add_alpha",
        "sub_alpha",
        "var_mean",
        "broadcast",
        "broadcast_in_dim",
        "expand",
        "squeeze",
        "cast",
        "full",
    ],
}
CASES = {
    **{n: (lambda o, x, n=n: getattr(o, n)(x), getattr(torch, n), 1, FLOATS) for n in UNARY_FLOAT},
    **{
        n: (
            lambda o, x, n=n: getattr(o, n)(o.add(o.abs(x), 1.0)),
            lambda x, n=n: getattr(torch, n)(x.abs() + 1.0),
            1,
            FLOATS,
        )
        for n in (*UNARY_POSITIVE, "acosh")
    },
    **{
        n: (
            lambda o, x, n=n: getattr(o, n)(o.mul(o.sin(x), 0.5)),
            lambda x, n=n: getattr(torch, n)(torch.sin(x) * 0.5),
            1,
            FLOATS,
        )
        for n in ("acos", "atanh", "erfinv")
    },
    **{
        n: (lambda o, x, n=n: getattr(o, n)(x), F.relu if n == "relu" else getattr(torch, n), 1, FLOATS)
        for n in UNARY_ANY
    },
    **{n: (lambda o, x, n=n: getattr(o, n)(x), getattr(torch, n), 1, FLOATS) for n in CHECKS},
    "silu": (lambda o, x: o.silu(x), F.silu, 1, FLOATS),
    "sign": (lambda o, x: o.sign(x), torch.sign, 1, FLOATS + INTEGERS),
    "logical_not": (lambda o, x: o.logical_not(x), torch.logical_not, 1, ANY),
    "bitwise_not": (lambda o, x: o.bitwise_not(x), torch.bitwise_not, 1, [*INTEGERS, torch.bool]),
    **{n: (lambda o, x, n=n: getattr(o, n)(x), torch.clone, 1, ANY) for n in ("set", "segment_set")},
    **{
        n: (lambda o, x, y, n=n: getattr(o, n)(x, y), getattr(torch, n), 2, FLOATS + INTEGERS)
        for n in ["add", "sub", "mul", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"]
    },
    **{
        n: (lambda o, x, y, n=n: getattr(o, n)(x, y), getattr(torch, n), 2, INTEGERS)
        for n in ["bitwise_and", "bitwise_or", "bitwise_xor", "gcd"]
    },
    **{n: (lambda o, x, y, n=n: getattr(o, n)(x, y), getattr(torch, n), 2, ANY) for n in ("logical_and", "logical_or")},
    "div": (lambda o, x, y: o.div(x, y), torch.div, 2, FLOATS),
    "truediv": (lambda o, x, y: o.truediv(x, y), torch.div, 2, FLOATS),
    "atan2": (lambda o, x, y: o.atan2(x, y), torch.atan2, 2, FLOATS),
    "pow": (lambda o, x, y: o.pow(o.abs(x), y), lambda x, y: torch.pow(x.abs(), y), 2, FLOATS),
    "nextafter": (lambda o, x, y: o.nextafter(x, y), torch.nextafter, 2, FLOATS[:2]),
    "fmod": (lambda o, x, y: o.fmod(x, o.add(o.abs(y), 1.0)), lambda x, y: torch.fmod(x, y.abs() + 1.0), 2, FLOATS[:2]),
    "remainder": (
        lambda o, x, y: o.remainder(x, o.add(o.abs(y), 1.0)),
        lambda x, y: torch.remainder(x, y.abs() + 1.0),
        2,
        FLOATS[:2],
    ),
    "where": (lambda o, x, y: o.where(o.ne(x, y), x, y), lambda x, y: torch.where(x != y, x, y), 2, FLOATS + INTEGERS),
    "clamp": (lambda o, x: o.clamp(x, -0.5, 0.5), lambda x: x.clamp(-0.5, 0.5), 1, FLOATS),
    "threshold": (lambda o, x: o.threshold(x, 0.25, 2.0), lambda x: F.threshold(x, 0.25, 2.0), 1, FLOATS),
    "addcmul": (
        lambda o, x, y, z: o.addcmul(x, y, z, 0.5),
        lambda x, y, z: torch.addcmul(x, y, z, value=0.5),
        3,
        FLOATS,
    ),
    "lerp": (lambda o, x, y, z: o.lerp(x, y, z), torch.lerp, 3, FLOATS[:2]),
    "rsub": (lambda o, x, y: o.rsub(x, y), torch.rsub, 2, FLOATS),
    "add_alpha": (lambda o, x, y: o.add_alpha(x, y, 0.5), lambda x, y: torch.add(x, y, alpha=0.5), 2, FLOATS),
    "sub_alpha": (lambda o, x, y: o.sub_alpha(x, y, 0.5), lambda x, y: torch.sub(x, y, alpha=0.5), 2, FLOATS),
    "sum": (lambda o, x: o.sum(x), torch.sum, 1, FLOATS + INTEGERS),
    "sum of the last": (lambda o, x: o.sum(x, [dim(x)]), lambda x: x.sum(dim(x)), 1, FLOATS + INTEGERS),
    "sum kept": (lambda o, x: o.sum(x, [dim(x)], True), lambda x: x.sum(dim(x), keepdim=True), 1, FLOATS),
    "prod": (lambda o, x: o.prod(x, [dim(x)]), lambda x: x.prod(dim(x)), 1, FLOATS + INTEGERS),
    "mean": (lambda o, x: o.mean(x, [dim(x)]), moments(lambda x: x.mean(dim(x))), 1, FLOATS),
    "var": (lambda o, x: o.var(x, [dim(x)], 0), moments(lambda x: x.var(dim(x), correction=0)), 1, FLOATS),
    "var_mean": (lambda o, x: o.var_mean(x, [dim(x)], 0)[0], lambda x: x.var(dim(x), correction=0), 1, FLOATS[:2]),
    "permute": (
        lambda o, x: o.permute(x, list(range(x.ndim))[::-1]),
        lambda x: x.permute(list(range(x.ndim))[::-1]),
        1,
        ANY,
    ),
    "reshape": (lambda o, x: o.reshape(x, [1, *o.shape(x)]), lambda x: x[None], 1, ANY),
    "broadcast": (lambda o, x: o.broadcast(x, [True, *[False] * x.ndim]), lambda x: x[None], 1, ANY),
    "broadcast_in_dim": (
        lambda o, x: o.broadcast_in_dim(x, [3, *o.shape(x)], list(range(1, x.ndim + 1))),
        lambda x: x.expand(3, *x.shape),
        1,
        ANY,
    ),
    "expand": (lambda o, x: o.expand(x, [3, *[-1] * x.ndim]), lambda x: x.expand(3, *x.shape), 1, ANY),
    "squeeze": (lambda o, x: o.squeeze(o.broadcast(x, [True, *[False] * x.ndim]), [0]), torch.clone, 1, ANY),
    "cat": (
        lambda o, x, y: o.cat([o.broadcast(t, [True, *[False] * t.ndim]) for t in (x, y)], 0),
        lambda x, y: torch.stack([x, y]),
        2,
        ANY,
    ),
    "cast": (lambda o, x: o.cast(x, x.dtype), torch.clone, 1, ANY),
    "full": (lambda o, x: o.full(o.shape(x), 2, x.dtype), lambda x: torch.full_like(x, 2), 1, FLOATS + INTEGERS),
    "cumsum": (lambda o, x: o.cumsum(x, dim(x)), lambda x: x.cumsum(dim(x)), 1, FLOATS[:2] + INTEGERS),
    "cumprod": (lambda o, x: o.cumprod(x, dim(x)), lambda x: x.cumprod(dim(x)), 1, FLOATS[:2] + INTEGERS),
    "cummax": (lambda o, x: o.cummax(x, dim(x)), lambda x: x.cummax(dim(x)).values, 1, FLOATS[:2] + INTEGERS),
    "cummin": (lambda o, x: o.cummin(x, dim(x)), lambda x: x.cummin(dim(x)).values, 1, FLOATS[:2] + INTEGERS),
    "argsort": (lambda o, x: o.argsort(x, dim(x)), lambda x: x.argsort(dim=dim(x)), 1, FLOATS + INTEGERS),
    "topk": (lambda o, x: list(o.topk(x, 1, dim(x))), lambda x: list(x.topk(1, dim(x))), 1, FLOATS + INTEGERS),
    "take_along_axis": (
        lambda o, x: o.take_along_axis(x, o.argsort(x, dim(x)), dim(x)),
        lambda x: x.sort(dim(x)).values,
        1,
        FLOATS + INTEGERS,
    ),
    "gather": (
        lambda o, x: o.gather(x, o.argsort(x, dim(x)), dim(x)),
        lambda x: x.sort(dim(x)).values,
        1,
        FLOATS + INTEGERS,
    ),
    "rand_like": (lambda o, x: o.mul(o.cast(o.ge(o.rand_like(x), 0.0), x.dtype), x), torch.clone, 1, FLOATS),
}
EXTREMA = {"max": torch.amax, "min": torch.amin}
CASES |= {
    n: (lambda o, x, n=n: getattr(o, n)(x, [dim(x)]), lambda x, f=f: f(x, dim(x)), 1, FLOATS + INTEGERS)
    for n, f in EXTREMA.items()
}
# Their calls here read the tensor's rank or type.
ASK_THE_TENSOR = {"permute", "broadcast", "broadcast_in_dim", "expand", "squeeze", "cat", "cast", "full", "rand_like"}
NOTHING_TO_REDUCE = {"max", "min", "topk"}  # of no elements there is none


def given(dtype, shape, count, gradient):
    generator = torch.Generator().manual_seed(3)
    out = []
    for _ in range(count):
        x = torch.randn(shape, generator=generator, dtype=torch.complex128 if dtype.is_complex else torch.float64)
        x = (x > 0) if dtype is torch.bool else (4 * x).to(dtype) if dtype in INTEGERS else x.to(dtype)
        x = x.to(DEVICE)
        out.append(x.requires_grad_() if gradient and (dtype.is_floating_point or dtype.is_complex) else x)
    return out


def execute(inputs, body):
    with FusionDefinition() as fd:
        returned = body(fd.ops, *[fd.from_pytorch(x) for x in inputs])
        for out in returned if isinstance(returned, list) else [returned]:
            fd.add_output(out)
    return fd.execute(inputs)


def close(out, wanted, label):
    assert not out.requires_grad, label
    assert out.shape == wanted.shape, f"{label}: {out.shape}, not {wanted.shape}"
    kind = (out.is_complex(), out.is_floating_point())
    assert kind == (wanted.is_complex(), wanted.is_floating_point()), f"{label}: {out.dtype} for {wanted.dtype}"
    bound = {torch.float64: 1e-11, torch.complex128: 1e-11, torch.bfloat16: 3e-2, torch.float16: 5e-3}.get(
        wanted.dtype, 3e-5
    )
    wide = torch.complex128 if out.is_complex() else torch.float64
    torch.testing.assert_close(
        out.to(wide),
        wanted.detach().to(wide),
        rtol=bound,
        atol=bound,
        equal_nan=True,
        msg=lambda text: f"{label}: {text}",
    )


def types_of(name):
    return CASES[name][3] + (COMPLEX if name.split()[0] in COMPLEX_TOO else [])


@pytest.mark.parametrize("shape", [(3, 5), (), (0, 5)], ids=["gradient", "rank 0", "empty"])
@pytest.mark.parametrize("name", CASES)
def test_operation(name, shape):
    """Each dtype of one operation. In half types nvFuser computes, and gives back, Float: compared in torch's."""
    call, function, count, _ = CASES[name]
    if shape == (0, 5) and name in NOTHING_TO_REDUCE:
        shape = (5, 0, 3)  # torch reduces what is beside no elements
    for dtype in types_of(name):
        inputs = given(dtype, shape, count, gradient=True)
        wanted = function(*inputs)
        for out, expected in zip(execute(inputs, call), wanted if isinstance(wanted, list) else [wanted]):
            close(out, expected, f"fd.ops.{name} of {dtype} {shape}")


@pytest.mark.parametrize("name", CASES)
def test_error_inputs(name):
    """What is no tensor, and a tensor of another definition: errors with the user's line, before anything runs."""
    call, _, count, types = CASES[name]
    (x,) = given(types[0], (3, 5), 1, gradient=False)
    with FusionDefinition() as other:
        stranger = other.from_pytorch(x)
    for wrong in (stranger, "text", [1.0, 2.0], None):
        with FusionDefinition() as fd:
            own = fd.from_pytorch(x)
            for position in range(count):
                tensors = [wrong if k == position else own for k in range(count)]
                if not hasattr(wrong, "ndim") and name in ASK_THE_TENSOR:
                    continue
                with pytest.raises(DefinitionError, match=r"test_definition_inputs.py:\d+: "):
                    call(fd.ops, *tensors)


def test_every_operation_is_there():
    """What takes other arguments has tests of its own in test_definition_ops.py."""
    elsewhere = {
        "at",
        "shape",
        "size",
        "tensor_sizes",
        "slice",
        "pad",
        "split",
        "chunk",
        "flip",
        "view",
        "iota",
        "uniform",
        "normal",
        "randn_like",
        "dropout",
        "index_select",
        "select",
        "scatter",
        "index_put_accumulate",
        "index_accumulate",
        "embedding_fwd",
        "embedding_bwd",
        "triu",
        "matmul",
        "linear",
        "grouped_mm",
        "scaled_mm",
        "scaled_grouped_mm",
        "sdpfa_fwd",
        "sdpfa_bwd",
        "welford",
        "std",
        "stride_order",
        "layer_norm",
        "layer_norm_backward",
        "rms_norm",
        "rms_norm_backward",
        "batch_norm",
        "batch_norm_backward",
        "instance_norm",
        "instance_norm_backward",
        "group_norm",
        "group_norm_backward",
        "complex",
        "real",
        "imag",
        "erfcinv",
        "ceilDiv",
        "ceil_div",
        "trunc_div",
        "mod",
        "bitwise_left_shift",
        "bitwise_right_shift",
        "logical_right_shift",
    }
    assert set(operators.names()) - elsewhere - set(CASES) == set()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("place", ["before", "behind", "between, twice", "written", "alone"])
def test_numbers_in_tensors_that_are_outputs(place, dtype):
    """0-d CPU tensors are passed by value: they take no slot among the pointers, as outputs neither."""
    x, y = torch.tensor(3).to(dtype), torch.tensor([1, 0, 2]).to(dtype)
    with FusionDefinition() as fd:
        t, v = fd.from_pytorch(x), fd.from_pytorch(y)
        computed = [fd.ops.logical_not(v), fd.ops.set(t)]
        outputs = {
            "before": [t, *computed],
            "behind": [*computed, t],
            "between, twice": [t, computed[0], t, computed[1], v],
            "written": [t, computed[0]],
            "alone": [t],
        }[place]
        for value in outputs:
            fd.add_output(value)
        if place == "written":
            fd.add_output(fd.ops.broadcast_in_dim(fd.ops.select(v, 1, 0), [], []), t)
    expected = {id(t): x.clone(), id(v): y, id(computed[0]): y == 0, id(computed[1]): x.clone()}
    if place == "written":
        expected[id(t)] = y[1]
    for given, value in zip(fd.execute([x, y]), outputs, strict=True):
        assert torch.equal(given, expected[id(value)])
