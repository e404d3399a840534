"""On a GPU: the same functions on torch and CuPy arrays against float64, on other streams, captured in CUDA graphs."""

import itertools

import numpy as np
import pytest
from heuristics_override import fit

import mlirfuse
import mlirfuse.numpy as mnp
from mlirfuse import _native
from mlirfuse.core.errors import CudaError
from mlirfuse.schedule.gpu.scheduler_list import SCHEDULERS
from mlirfuse.schedule.scheduler import SizedCall

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

BOUND = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float64: 1e-14}


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


def check(fn, *inputs, bound=None, scale=1e-30):
    """``fn`` compiled, on the GPU, against the same function of NumPy on float64 copies; error relative to the result's
    size, or to ``scale`` if that is larger: a sum of n numbers of both signs may be near 0, and is off by what sqrt(n)
    of them are."""
    compiled = mlirfuse.jit(fn, fallback=False)
    out = compiled(*inputs)
    outs = out if isinstance(out, (tuple, list)) else [out]
    wide = [t.detach().double().cpu().numpy() if isinstance(t, torch.Tensor) and t.is_floating_point()
            else t.cpu().numpy() if isinstance(t, torch.Tensor) else t for t in inputs]  # fmt: skip
    expected = fn(*wide)
    expected = expected if isinstance(expected, (tuple, list)) else [expected]
    for got, want in zip(outs, expected):
        want = np.asarray(want)
        assert tuple(got.shape) == want.shape
        if not got.is_floating_point():
            assert np.array_equal(got.cpu().numpy(), want)
            continue
        bounds = [BOUND[t.dtype] for t in (*inputs, got) if isinstance(t, torch.Tensor) and t.dtype in BOUND]
        error = np.abs(got.double().cpu().numpy() - want).max() / max(scale, np.abs(want).max()) if want.size else 0
        assert error <= (bound or 4 * max(bounds)), error
    return out


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def norm(x, w, b):
    d = x - x.mean(-1, keepdims=True)
    return w * (d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)) + b


ROWS = [
    (1, 1),
    (3, 5),
    (16, 32),
    (7, 257),
    (33, 770),
    (64, 1024),
    (5, 8191),
    (9, 8192),
    (4, 16384),
    (3, 40000),
    (2, 131072),
    (2, 262144),
    (1000, 16),
]


@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows(shape, dtype):
    x = torch.randn(shape, device="cuda").to(dtype)
    w, b = (torch.randn(shape[1], device="cuda").to(dtype) for _ in range(2))
    check(softmax, x)
    check(norm, x, w, b)
    check(lambda x: x.max(-1), x)
    check(
        lambda x: x.sum(-1, dtype=x.dtype if x.dtype == np.float64 else None),
        x,
        bound=2e-2 if dtype != torch.float32 else 2e-5,
    )


@pytest.mark.parametrize(
    "shape", [(1, 7), (5, 3), (257, 33), (1024, 1024), (4096, 8), (8, 4096), (3000, 770), (100000, 4), (2, 300, 257)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_columns(shape, dtype):
    x = torch.randn(shape, device="cuda").to(dtype)
    bound = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-13}[dtype]
    axis = len(shape) - 2
    check(lambda x: x.sum(axis), x, bound=bound, scale=shape[axis] ** 0.5)
    check(lambda x: x.max(axis), x)
    check(lambda x: x - x.mean(axis, keepdims=True), x, bound=bound)
    check(lambda x: x.sum(), x, bound=bound * 10, scale=x.numel() ** 0.5)
    check(lambda x: (x.max(), x.min()), x)


@pytest.mark.parametrize("shape", [(5,), (1024,), (1 << 20,), (33, 770), (4, 3, 257), (1000, 3), (3, 100000)])
def test_pointwise(shape):
    x, y = torch.randn(2, *shape, device="cuda")
    w = torch.randn(shape[-1], device="cuda")
    check(lambda x, y: np.tanh(x * 2 + y), x, y)
    check(lambda x, w: np.exp(x + w) * 0.5, x, w)
    check(lambda x: (x > 0, np.where(x > 0, x, -x), x.astype(np.int32)), x)
    check(lambda x, k: x * k, x, 2.5)


def test_views_and_strides():
    x = torch.randn(64, 48, 40, device="cuda")
    check(lambda x: x.transpose(2, 0, 1) + 1, x)
    check(lambda x: np.concatenate([-x[..., 20:], x[..., :20]], -1) * 2, x)
    check(lambda x: x[::2, ::-1, 1:-1].sum(0), x, bound=1e-5)
    check(lambda x: x.reshape(64 * 48, 40) * 3, x)
    check(lambda x: mnp.softmax(x.reshape(96, 1280)), x, bound=1e-5)
    check(lambda x: x.reshape(96, 8, 160).sum(1), x, bound=1e-5)
    check(lambda x: x.reshape(24, 64, 80).transpose(0, 2, 1) * 2, x)
    check(lambda x: (x.reshape(96, 1280).sum(1), x * 2), x, bound=1e-5)
    check(lambda x: x * 3, x.permute(1, 2, 0))
    check(lambda x: x * 3, x[1:, 3:, ::3])
    check(lambda x: x + x[:1], x[:, :, 1:])
    square = torch.randn(100, 100, device="cuda")
    check(lambda x: x + x.T, square)
    channels = torch.randn(8, 16, 14, 14, device="cuda")
    check(lambda x: (x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(x.var((0, 2, 3), keepdims=True) + 1e-5), channels)


def test_argmax_and_integers():
    x = torch.randn(50, 3000, device="cuda")
    check(lambda x: (x.argmax(-1), x.argmin(0), x.argmax()), x)
    i = torch.randint(-100, 100, (33, 500), device="cuda")
    check(lambda i: (i.sum(-1), i // 7, i % 7, i.max(0), i << 2), i)


def test_take():
    x = torch.randn(1000, 64, device="cuda")
    i = torch.randint(0, 1000, (77,), device="cuda")
    check(lambda x, i: np.take(x, i, 0) * 2, x, i)


def test_writing_into_an_argument():
    x = torch.arange(12.0, device="cuda").reshape(3, 4)

    @mlirfuse.jit(fallback=False)
    def f(x):
        x += 1
        x[0] = 5
        return x.sum()

    total = f(x)
    assert x[0].tolist() == [5] * 4 and x[1].tolist() == [5, 6, 7, 8] and float(total) == x.sum().item()


def test_streams_and_graphs():
    f = mlirfuse.jit(lambda x: np.exp(x).sum(0), fallback=False)
    x = torch.randn(512, 512, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = f(x)
    stream.synchronize()
    assert torch.allclose(y, x.exp().sum(0), rtol=1e-5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = f(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.allclose(z, x.exp().sum(0), rtol=1e-5)


def test_cupy():
    cupy = pytest.importorskip("cupy")
    x = cupy.random.standard_normal((100, 257)).astype(np.float32)
    y = mlirfuse.jit(softmax, fallback=False)(x)
    assert isinstance(y, cupy.ndarray)
    assert np.allclose(y.get(), softmax(x.get().astype(np.float64)), atol=1e-6)


def test_dropout_is_the_same_on_the_cpu():
    f = mlirfuse.jit(lambda x: mnp.dropout(x, 0.3, seed=7), fallback=False)
    x = np.ones((37, 65), np.float32)
    assert np.array_equal(f(torch.from_numpy(x).cuda()).cpu().numpy(), f(x))


@pytest.mark.parametrize("name, bound", [("exp", 2), ("log", 2), ("tanh", 2), ("sqrt", 0.5001), ("sin", 4), ("erf", 4), ("expm1", 4), ("log1p", 4), ("sigmoid", 4),
                                         ("silu", 4), ("softplus", 4)])  # fmt: skip
def test_functions_to_the_last_places(name, bound):
    """A sample of all float32, against float64, in units of the last place of the rounded result."""
    bits = torch.arange(0, 2**32, 4099, dtype=torch.int64, device="cuda").to(torch.int32)
    x = bits.view(torch.float32)
    function = getattr(mnp, name) if name in ("erf", "sigmoid", "silu", "softplus") else getattr(np, name)
    y = mlirfuse.jit(function, fallback=False)(x).double()
    want = (
        getattr(torch.nn.functional if name == "silu" else torch, name)(x.double())
        if name != "softplus"
        else (x.double().clamp(min=0) + torch.log1p(torch.exp(-x.double().abs())))
    )
    rounded = want.float()
    finite = torch.isfinite(rounded) & ~torch.isnan(want)
    place = torch.maximum(
        torch.ldexp(torch.ones_like(want), torch.frexp(rounded.double().abs())[1] - 24),
        torch.tensor(2.0**-149, device="cuda"),
    )
    error = ((y - want).abs() / place)[finite & torch.isfinite(y)].max().item()
    assert error <= bound, error
    assert torch.equal(torch.isnan(y), torch.isnan(want)) and torch.equal(
        torch.isinf(y) & ~finite, torch.isinf(rounded)
    )


@pytest.mark.parametrize("shape", [(64, 64), (65, 1000), (257, 770), (1024, 512)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_transposes(shape, dtype):
    x, y = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
    z = torch.randn(shape[::-1], device="cuda").to(dtype)
    check(lambda x, y: (x + y).T * 2, x, y)
    check(lambda x, z: np.exp(x).T + z, x, z)
    check(lambda x: (x > 0).T, x)
    check(lambda x, y: (x + y).T, x, y.T.contiguous().T)


def test_transposes_whose_tiles_are_wider_than_their_inputs():
    """Four inputs of a half type make one staged value of eight bytes: a tile has fewer vectors of them than
    threads."""
    parts = [torch.randn(256, 512, device="cuda").half() for _ in range(4)]
    check(lambda a, b, c, d: (a.astype(np.float64) + b + c + d).T.copy(), *parts)
    check(
        lambda a: a.astype(np.float64).T.copy(), torch.arange(-64, 64, device="cuda", dtype=torch.int8).repeat(256, 4)
    )


def candidates_of(fn, *inputs, only=lambda params: True, most=None):
    """What each of the schedulers' candidates that are ``only`` such ones computes, of each segment's the first
    ``most``; those that the machine cannot run left out."""
    compiled = mlirfuse.jit(fn, fallback=False)
    compiled(*inputs)
    kind, leaves, env = compiled.specialization_of(*inputs)
    executor, places = kind.executor, kind.leaf_of_arg
    program = executor.program
    alignments = executor.alignments(leaves, places)
    chosen = program.parameters(env, alignments)
    for at, step in enumerate(program.steps):
        found = dict.fromkeys(
            filter(only, SCHEDULERS.candidates(step.analysis, SizedCall(env, alignments, executor.target.properties)))
        )
        for params in itertools.islice(found, most):
            program.tuned[program.call_key(env, alignments)] = (*chosen[:at], params, *chosen[at + 1 :])
            try:
                record = executor.record(leaves, places, env, list)
                yield params, _native.Dispatcher(lambda _, r=record: r)(*leaves)
            except CudaError:
                continue


def check_candidates(fn, *inputs, only=lambda params: True, fewest=2):
    """That at least so many candidates are there and compute the same, which float64 confirms."""
    half = inputs[0].dtype == torch.bfloat16
    expected = check(fn, *inputs, bound=4e-2 if half else 1e-4)
    expected = expected if isinstance(expected, (tuple, list)) else [expected]
    tried = 0
    for params, got in candidates_of(fn, *inputs, only=only):
        tried += 1
        for a, b in zip(got, expected):
            off = (a.double() - b.double()).abs().max() / max(b.double().abs().max(), 1e-30)
            assert off < (2e-2 if half else 1e-5), (params, off)
            a.fill_(torch.nan if a.is_floating_point() else -1)  # the next one's memory
    assert tried >= fewest


def centred(x, w):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * w


def backward(g, x):
    dot = (g * x).sum(-1, keepdims=True)
    return g - x * dot, (g * x).sum(0), g.sum(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn, shapes", [
    (lambda x: np.tanh(x) * 2, [(300, 770)]),
    (lambda x: (x + 1).T.copy(), [(264, 520)]),
    (lambda x: (x + 1).transpose(2, 0, 1).copy(), [(3, 40, 264)]),
    (softmax, [(37, 4096)]),
    (softmax, [(5, 40_000)]),
    (softmax, [(3, 19_456)]),
    (lambda x: (x.sum(-1), x.var(-1)), [(2, 37_888)]),
    (centred, [(33, 2048), (2048,)]),
    (centred, [(3, 65_536), (65_536,)]),
    (lambda x: x.sum(-1), [(3, 100_000)]),
    (lambda x: x.max(0), [(3000, 264)]),
    (lambda x: (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), [(700, 264)]),
    (backward, [(600, 1024), (600, 1024)]),
])  # fmt: skip
def test_every_candidate(fn, shapes, dtype):
    """Whatever autotune may choose computes the same."""
    check_candidates(fn, *[torch.randn(shape, device="cuda").to(dtype) for shape in shapes])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn, shapes", [
    (lambda x: np.tanh(x) * 2, [(300, 776)]),
    (lambda x: (x + 1).T.copy(), [(264, 520)]),
    (softmax, [(37, 4096)]),
    (softmax, [(5, 40_000)]),
    (softmax, [(3, 19_456)]),
    (centred, [(3, 65_536), (65_536,)]),
    (backward, [(600, 1024), (600, 1024)]),
])  # fmt: skip
def test_inputs_that_stay_in_the_cache(fn, shapes, dtype, monkeypatch):
    """What kernels of large tensors do, done on small ones."""
    fit(monkeypatch, "access", staying=0)
    test_every_candidate(fn, shapes, dtype)


@pytest.mark.parametrize("shape", [(100, 96), (7, 4096), (513, 770), (64, 40000)])
def test_norm_backward(shape):
    """Rows normalized and summed over in one kernel."""

    def backward(dy, x, w, mean, rstd):
        xh = (x - mean) * rstd
        g = dy * w
        dx = (g - xh * (g * xh).mean(-1, keepdims=True) - g.mean(-1, keepdims=True)) * rstd
        return dx, (dy * xh).sum(0), dy.sum(0)

    dy, x = torch.randn(2, *shape, device="cuda")
    w = torch.randn(shape[1], device="cuda")
    mean, rstd = x.mean(-1, keepdim=True), 1 / x.std(-1, keepdim=True)
    check(backward, dy, x, w, mean, rstd, bound=2e-5)


def logsumexp(axis):
    return lambda x: np.log(np.exp(x - x.max(axis, keepdims=True)).sum(axis)) + x.max(axis)


@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 5), (33, 770), (4, 3000), (600, 40000), (2, 300001), (9000, 31), (70000, 8)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("axis", [0, 1])
def test_maximum_and_sum_in_one_pass(shape, dtype, axis):
    x = (30 * torch.randn(shape, device="cuda")).to(dtype)
    check(logsumexp(axis), x)
    check(lambda x: np.exp(x - x.max(axis, keepdims=True)).sum(axis), x, bound=1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("shape", [(4, 100), (4, 5000), (4, 100_003), (5000, 4)])
def test_infinities_in_one_pass(shape):
    """Rows that are all -inf, begin with -inf, hold +inf or NaN: as in two passes."""
    axis = int(shape[0] < shape[1])
    x = torch.randn(shape, device="cuda")
    rows = x if axis else x.T
    rows[0] = -torch.inf
    rows[1, : rows.shape[1] - 1] = -torch.inf
    rows[2, 3] = torch.inf
    rows[3, 1] = torch.nan
    for fn in (logsumexp(axis), lambda x: np.exp(x - x.max(axis, keepdims=True)).sum(axis)):
        with np.errstate(all="ignore"):
            want = fn(x.double().cpu().numpy())
        np.testing.assert_allclose(mlirfuse.jit(fn)(x).cpu().numpy(), want, rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3), (300, 257), (8192, 4096), (100_000, 8), (33, 100_001)])
def test_elements_and_their_sums_over_columns(shape):
    """The gradient of a bias beside the elements that it sums: written in the same pass, also where the rows are split
    over blocks."""
    g, x = (torch.randn(shape, device="cuda") for _ in range(2))
    check(lambda g, x: (g * np.tanh(x), (g * np.tanh(x)).sum(0)), g, x, bound=1e-5)


def test_kernels_of_one_call_that_overlap():
    """Kernels start before the ones before them have ended: those that need their results wait, and the call's end is
    the end of all."""
    x, y = torch.randn(4096, 4096, device="cuda"), torch.randn(8192, 2048, device="cuda")
    fn = mlirfuse.jit(lambda x, y: (np.tanh(x) * 2, y.sum(0), np.exp(y - y.sum(0)), x.sum()))
    want = fn(x, y)
    reference = torch.tanh(x.double()) * 2
    assert (want[0] - reference).abs().max() < 1e-5 and (want[1] - y.double().sum(0)).abs().max() < 1e-3
    for _ in range(200):
        for given, expected in zip(fn(x, y), want):
            assert torch.equal(given, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = fn(x, y)
    x.normal_(), y.normal_()
    graph.replay()
    for given, expected in zip(captured, fn(x, y)):
        assert torch.equal(given, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_division_by_what_many_share(dtype):
    """Float32 is rounded exactly, so that x / x is 1, but for quotients below 2^-100, which may be 1 ulp off; of half
    types the divisor is inverted once, which may cost a tie. Special values as in any division."""
    limits = torch.finfo(dtype)
    tiny, most = limits.smallest_normal, limits.max
    places = [
        0.0,
        tiny * limits.eps,
        tiny / 3,
        tiny,
        1e-3,
        0.3,
        1.0,
        1.9375,
        3.0,
        49.0,
        most / 2,
        most,
        torch.inf,
        torch.nan,
    ]
    values = torch.tensor(places + [-v for v in places], device="cuda", dtype=torch.float64).to(dtype)
    spread = (torch.rand(4000, device="cuda") + 1) * torch.exp2(torch.linspace(-14, 14, 4000, device="cuda"))
    a = torch.cat([values, spread.to(dtype)])
    for x, y in ((a[None, :], values[:, None]), (a[:, None], values[None, :])):
        got = mlirfuse.jit(lambda a, b: a / b)(x.contiguous(), y.contiguous())
        want = (x.double() / y.double()).to(dtype)
        number = ~want.isnan()
        assert torch.equal(got.isnan(), want.isnan())
        if dtype == torch.float32:
            exact = number & ~(want.abs() < 2.0**-100)
            assert torch.equal(got[exact], want[exact]) and torch.equal(got[number].signbit(), want[number].signbit())
            assert (got.view(torch.int32) - want.view(torch.int32))[number].abs().max() <= 1
        else:
            off = (got.view(torch.int16).int() - want.view(torch.int16).int())[number].abs()
            assert off.max() <= 1 and (off > 0).float().mean() < 1e-2


@pytest.mark.parametrize("exponent", [0, -60, 60, -140])
def test_inverse_square_roots(exponent):
    """Every float32 in two octaves, here scaled, within 1 ulp; special values as 1 / sqrt(x)."""
    x = torch.arange(0x3F800000, 0x40800000, device="cuda").to(torch.int32).view(torch.float32)
    x = (x.double() * 2.0**exponent).float()
    got, want = mlirfuse.jit(lambda x: mnp.rsqrt(x))(x).double(), 1 / x.double().sqrt()
    assert ((got - want).abs() <= torch.exp2(torch.floor(torch.log2(want)) - 23)).all()
    special = torch.tensor([0.0, -0.0, torch.inf, -1.0, torch.nan, -torch.inf], device="cuda")
    got, want = mlirfuse.jit(lambda x: mnp.rsqrt(x))(special), 1 / special.sqrt()
    assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0)) and torch.equal(got.isnan(), want.isnan())


@pytest.mark.parametrize("columns", [3, 7, 770, 1000, 4099, 65_537])
def test_means_are_rounded_once(columns):
    """Sums are divided by the number of elements as a division that rounds does it."""
    x = torch.randint(-1000, 1000, (512, columns), device="cuda").float()
    got = mlirfuse.jit(lambda x: (x.mean(1), x - x.mean(1, keepdims=True)))(x)[0]
    assert torch.equal(got, (x.double().sum(1).float().double() / columns).float())
    by_none = mlirfuse.jit(lambda x, none: x.sum(1, keepdims=True) / none.shape[0] + x)(
        torch.eye(4, columns, device="cuda"), torch.empty(0, 2, device="cuda")
    )
    assert (by_none[:3] == torch.inf).all()


def test_columns_with_random_numbers():
    """Random tensors count their elements in their own shapes, also where odd rows could be folded."""
    x = torch.randn(4096, 33, device="cuda")
    for shape in ((33,), (4096, 1), (4096, 33)):
        drawn = torch.from_numpy(
            np.array(mlirfuse.jit(lambda z: mnp.uniform(shape, 3) + z)(np.zeros(1, np.float32)))
        ).cuda()
        fn = mlirfuse.jit(lambda x: (x * mnp.uniform(shape, 3)).sum(0))
        assert (fn(x).double() - (x.double() * drawn.double()).sum(0)).abs().max() < 1e-3


def test_columns_of_many_passes():
    """Each pass over the columns has shared memory of its own: all of it fits."""
    x = torch.randn(4096, 1024, device="cuda").to(torch.bfloat16)

    def chain(x):
        x = x if x.dtype == np.float64 else x.astype(np.float32)
        d = x - x.max(0)
        e = d / np.abs(d).sum(0)
        u = e - (e * e).max(0)
        return u / (u * u).sum(0)

    check(chain, x, bound=2e-2)


@pytest.mark.parametrize("shape", [(7, 64), (5, 4096), (5, 4099), (3, 70000), (2, 1_000_003)])
def test_means_beside_variances(shape):
    """A mean comes with the deviations from it, also where rows hold infinities or numbers far from 0."""
    x = torch.randn(shape, device="cuda") + 1000
    check(lambda x: (x.mean(-1), x.var(-1), x.sum(-1)), x, bound=2e-5)
    x[0, 1] = x[0, 3] = torch.inf
    x[1, 2], x[1, 5] = torch.inf, -torch.inf
    mean, var = mlirfuse.jit(lambda x: (x.mean(-1), x.var(-1)))(x)
    assert mean[0] == torch.inf and mean[1].isnan() and var[0].isnan() and var[1].isnan() and mean[2:].isfinite().all()


def standardized(x, axes):
    d = x - x.mean(axes, keepdims=True)
    return d / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


@pytest.mark.parametrize(
    "shape",
    [
        (3, 20_004),
        (5, 24_576),
        (300, 40_000),
        (7, 19_456),
        (3, 37_888),
        (2, 131_072),
        (3, 200_004),
        (2, 401_408),
        (2, 802_820),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rows_in_shared_memory(shape, dtype):
    """Rows that a block's registers do not hold, in one block or a cluster, each thread with as many vectors or not."""
    x, g = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
    x[0, 7], x[-1, -1] = 12.0, -12.0
    w = torch.rand(shape[1], device="cuda").to(dtype)
    check(softmax, x)
    check(lambda x, w: (standardized(x, -1) * w, x.max(-1)), x, w)
    check(lambda g, x: x * (g - (g * x).sum(-1, keepdims=True) / x.shape[-1]), g, x)
    check(lambda x: (x / np.abs(x).max(-1, keepdims=True), x.argmax(-1)), x)


@pytest.mark.parametrize(
    "shape",
    [(9, 4099), (300, 12_345), (17, 50_257), (3, 5, 32_001), (5, 24_002), (2, 100_001), (3, 200_003), (2, 401_409)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_rows_that_begin_at_any_element(shape, dtype):
    """Every candidate whose vectors begin before the row computes the same: nothing before the row or behind it is in
    its results."""
    x, g = (torch.randint(-50, 50, shape, device="cuda").to(dtype) for _ in range(2))
    w, b = (
        torch.randint(-50, 50, shape[-1:], device="cuda").to(torch.float32 if dtype is torch.int8 else dtype)
        for _ in range(2)
    )
    shifted = lambda params: getattr(params, "unaligned", False)  # noqa: E731
    check_candidates(lambda x: (x.sum(-1), x.argmax(-1)), x, only=shifted, fewest=1)
    if dtype is not torch.int8:
        x, g, w, b = (v / 16 for v in (x, g, w, b))
        check_candidates(softmax, x, only=shifted, fewest=1)
        check_candidates(lambda x, w, b: standardized(x, -1) * w + b, x, w, b, only=shifted, fewest=1)
        check_candidates(lambda x, w: standardized(x, -1) * w, x, w.float(), only=shifted, fewest=1)
        check_candidates(
            lambda g, x: (x * (g - (g * x).sum(-1, keepdims=True)), x.max(-1)), g, x, only=shifted, fewest=1
        )


@pytest.mark.parametrize(
    "shape", [(128, 3, 56, 56), (33, 5, 50, 52), (64, 2, 112, 112), (256, 7, 7, 7), (7, 4, 129, 36)]
)
def test_channels_in_shared_memory(shape):
    """Batch norm: a channel is many pieces of memory."""
    x = torch.randn(shape, device="cuda") * 3 + 100
    y = check(lambda x: standardized(x, (0, 2, 3)), x, bound=1e-4)
    assert (y.double().mean((0, 2, 3)).abs() < 1e-4).all()
    check(lambda x: standardized(x, (0, 2, 3)), x.to(torch.bfloat16))


@pytest.mark.parametrize("shape", [(4096, 8191), (4096, 770), (8192, 257), (2048, 33), (640, 1), (4095, 8191)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_columns_of_odd_rows(shape, dtype):
    """Several rows of an odd length are taken as one that vectors divide; not where rows are left over, or the memory
    is not aligned."""
    x = torch.randint(-50, 50, shape, device="cuda").to(dtype)
    y = torch.randint(-50, 50, (shape[0] + 1, shape[1]), device="cuda").to(dtype)[1:]
    bound = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2, torch.int8: 0}[dtype]
    for a in (x, y):
        check(lambda a: a.max(0), a)
        check(lambda a: (a * 2).min(0), a)
        if dtype != torch.int8:
            check(lambda a: a.sum(0), a, bound=bound)
            check(lambda a: a.var(0), a, bound=bound)
            check(logsumexp(0), a, bound=bound)
    check(lambda a, b: (a > b).sum(0), x, y)
    check(lambda a: a.argmax(0), x)


@pytest.mark.parametrize("shape", [(1024, 512), (4096, 2048), (3, 5000, 264)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_columns_whose_parts_meet_in_a_cluster(shape, dtype):
    clusters = lambda params: (  # noqa: E731
        getattr(params, "scheduler", "") == "columns" and params.cluster > 1 and not params.stages
    )
    x, along = torch.randn(shape, device="cuda").to(dtype), len(shape) - 2
    check_candidates(lambda x: (x.max(along), x.var(along)), x, only=clusters, fewest=1)
    check_candidates(lambda x: (x * 2, abs(x).sum(along)), x, only=clusters, fewest=1)


@pytest.mark.parametrize("shape", [(700, 264), (4096, 1000), (3, 5000, 40), (30_000, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_columns_in_shared_memory(shape, dtype):
    staged = lambda params: getattr(params, "scheduler", "") == "columns" and params.stages  # noqa: E731
    x = torch.randn(shape, device="cuda").to(dtype)
    w = torch.randn(shape[-1], device="cuda").to(dtype)
    along = len(shape) - 2
    check_candidates(lambda x, w: (standardized(x, along) * w, x.max(along)), x, w, only=staged, fewest=1)
    check_candidates(
        lambda x: (
            np.exp(x - x.max(along, keepdims=True)) / np.exp(x - x.max(along, keepdims=True)).sum(along, keepdims=True)
        ),
        x,
        only=staged,
        fewest=1,
    )


@pytest.mark.parametrize("shape", [(256, 50_257), (16, 50_257), (4096, 8191), (640, 999), (16, 1, 1978)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_columns_of_odd_rows_that_meet_in_a_block(shape, dtype):
    gathered = lambda params: getattr(params, "unaligned", False)  # noqa: E731
    x = torch.randint(-50, 50, shape, device="cuda").to(dtype)
    check_candidates(lambda x: (x.sum(0), x.max(0)), x, only=gathered, fewest=1)
    if dtype is not torch.int8:
        check_candidates(lambda x: x.var(0, keepdims=True), x / 16, only=gathered, fewest=1)


@pytest.mark.parametrize(
    "shape", [(4096, 8191), (1000, 257), (70_000, 3), (33, 7), (12, 50257), (64, 1024, 5), (3, 256, 129)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_vectors_across_rows(shape, dtype):
    """Pointwise kernels over rows that no vector divides, with what is the same in all rows or all along one;
    contiguous, aligned or not."""
    x = torch.randint(-50, 50, shape, device="cuda").to(dtype)
    odd = torch.randint(-50, 50, (x.numel() + 1,), device="cuda").to(dtype)[1:].reshape(shape)
    bias, column = (torch.randint(1, 9, n, device="cuda").to(dtype) for n in (shape[-1:], (*shape[:-1], 1)))
    for a in (x, odd, x.mT.contiguous().mT):
        check(lambda a, b: a + b, a, bias)
        check(lambda a, b, c: (a * c + b, a > b), a, bias, column)
    if dtype.is_floating_point:
        shift, scale = torch.randn(shape[-1], device="cuda"), torch.rand(shape[-1], device="cuda") + 0.5
        check(
            lambda a, m, s: ((a - m) / s).astype(a.dtype),
            x,
            shift,
            scale,
            bound=1e-2 if dtype == torch.bfloat16 else 1e-6,
        )


@pytest.mark.parametrize("shape", [(1,), (10,), (300,), (4, 7), (3, 4, 6)])
def test_few_elements_are_written_over_once(shape):
    """Fewer than a block may have threads: each element is added to by one of them."""

    def add(x, b):
        x += b

    compiled = mlirfuse.jit(add, fallback=False)
    x, b = torch.zeros(shape, device="cuda"), torch.ones(shape[-1], device="cuda")
    for _ in range(200):
        compiled(x, b)
    assert (x == 200).all()


@pytest.mark.parametrize("columns", [64, 71, 1000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("along", [0, 1])
def test_exact_quotients(columns, dtype, along):
    """Whole numbers that are quotients of whole numbers stay such until they are rounded to integers."""
    divisor = (
        torch.arange(1, (columns if along else 64) + 1, device="cuda").clamp(max=128).to(dtype).unsqueeze(1 - along)
    )
    x = 8 * divisor * torch.ones(64, columns, device="cuda", dtype=dtype)
    check(lambda x, d: (np.floor(x / d).astype(np.int8), (x / d).astype(np.int16), x / d == 8), x, divisor)
    check(lambda x: np.floor(x / x.max(0)).astype(np.int8), x)
    check(lambda x: np.floor(x / x.max(-1, keepdims=True)).astype(np.int8), x)


@pytest.mark.parametrize(
    "shape",
    [
        (40, 32768),
        (20, 49152),
        (9, 65536),
        (5, 100_000),
        (3, 150_000),
        (3, 262_144),
        (4, 12_345),
        (3, 32_001),
        (3, 50_257),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_long_rows_beside_weights(shape, dtype):
    """In the registers of a cluster where its threads have as much each, otherwise in shared memory or, of odd rows, in
    registers."""
    x, w, b = (torch.randn(n, device="cuda").to(dtype) for n in (shape, shape[1], shape[1]))
    check(norm, x, w, b)
    check(lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w, x, w)
    check(lambda x, w: (x * w).sum(-1), x, w, scale=3 * shape[1] ** 0.5)


@pytest.mark.parametrize("shape", [(3000, 2049), (1000, 3001), (500, 12_345), (300, 6002)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reduced_rows_that_vectors_do_not_divide(shape, dtype):
    x = torch.randn(shape, device="cuda").to(dtype)
    check(lambda x: (x.sum(-1), x.max(-1)), x, scale=3 * shape[1] ** 0.5)
    check(lambda x: x.argmin(-1), x)


@pytest.mark.parametrize(
    "shape", [(1, 1 << 21), (3, 1_700_001), (1 << 18, 1), (1 << 17, 24), (100_001, 7), (20_001, 130)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_few_rows_or_columns(shape, dtype):
    """In stages, each over all of the machine. One call behind the other: the workspace is used again."""
    x = torch.randn(shape, device="cuda").to(dtype)
    axis = 0 if shape[0] > shape[1] else 1
    softmax = lambda x: (  # noqa: E731
        np.exp(x - x.max(axis, keepdims=True)) / np.exp(x - x.max(axis, keepdims=True)).sum(axis, keepdims=True)
    )

    def standardized(x):
        mean = x.mean(axis, keepdims=True)
        variance = ((x - mean) ** 2).mean(axis, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5), mean, variance

    check(softmax, x)
    check(standardized, x, scale=0.1)
    again = mlirfuse.jit(lambda x: standardized(softmax(x) * 1e4)[0], fallback=False)
    first = again(x)
    assert all(torch.equal(again(x), first) for _ in range(5))


@pytest.mark.parametrize("shape", [(32, 56, 56, 64), (8, 112, 112, 24), (64, 7, 7, 512)])
def test_batch_norm_with_channels_last(shape):
    def batch_norm(x, weight, bias):
        mean = x.mean((0, 1, 2))
        variance = x.var((0, 1, 2))
        return (x - mean) / np.sqrt(variance + 1e-5) * weight + bias, mean, variance

    x, weight, bias = (
        torch.randn(shape, device="cuda") + 3,
        torch.rand(shape[-1], device="cuda"),
        torch.randn(shape[-1], device="cuda"),
    )
    check(batch_norm, x, weight, bias)


@pytest.mark.parametrize("shape", [(12, 5000), (16, 70_000), (20, 40_000), (40, 8008), (63, 1024), (64, 1001), (257, 8192), (500, 770), (1024, 333),
                                   (1000, 4096)])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_columns_in_registers(shape, dtype):
    """Columns that are normalized, all rows of them in registers."""
    x = torch.randn(shape, device="cuda").to(dtype) + 2
    check(lambda x: np.exp(x - x.max(0)) / np.exp(x - x.max(0)).sum(0), x)
    check(lambda x: ((x - x.mean(0)) / np.sqrt(((x - x.mean(0)) ** 2).mean(0) + 1e-5), x.argmax(0)), x, scale=1.0)
    check(lambda x, y: x * (y - (x * y).sum(0)), x, torch.flip(x, (0,)), scale=float(shape[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "shape", [(60_000, 200_000, 64), (50_257, 16_384, 1280), (300, 40_000, 257), (48, 90_000, 512)]
)
@pytest.mark.parametrize("hot", [False, True])
def test_values_added_to_rows(shape, dtype, hot):
    """Every candidate, sums in any order; a tenth of the values in one row, if ``hot``."""
    rows, count, width = shape
    at = torch.randint(rows, (count,), device="cuda")
    at[:: 10 if hot else count] = rows // 2
    values = torch.randn(count, width, device="cuda").to(dtype)

    def fn(at, values):
        out = np.zeros((rows, width), values.dtype)
        np.add.at(out, at, values)
        return out

    expected = torch.zeros(rows, width, dtype=torch.float64, device="cuda").index_add_(0, at, values.double())
    magnitudes = torch.zeros_like(expected).index_add_(0, at, values.double().abs())
    scale = magnitudes.sqrt() * 8 + expected.abs()  # sums of both signs: of n numbers sqrt(n) times one's error
    unit = torch.finfo(torch.float32).eps * 8
    for params, (got,) in candidates_of(fn, at, values, only=lambda p: not getattr(p, "ordered", False), most=6):
        error = (got.double() - expected).abs() - expected.abs() * torch.finfo(dtype).eps
        assert (error <= scale * unit).all(), params


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(700, 3000), (4096, 770), (300, 20_001), (3000, 40), (100_000, 12)])
def test_logarithms_of_running_sums(shape, axis):
    """By the hardware's exponentials and logarithms, within the bound of ``docs/reference/limits.md``."""
    x = torch.randn(shape, device="cuda") * 3
    along = x.select(1 - axis, 0)
    along.copy_(torch.linspace(-90, 90, len(along)))
    got = mlirfuse.jit(lambda x: mnp.logcumsumexp(x, axis))(x).double()
    want = x.double().logcumsumexp(axis)
    largest = x.double().cummax(axis).values
    eps, combined = 2.0**-23, 24 + shape[axis] / 256
    bound = eps * (want.abs() + combined) + 2.0**-22 * (want - largest).clamp(min=1)
    assert ((got - want).abs() <= bound).all()


@pytest.mark.parametrize("axis", [0, 1])
def test_logarithms_of_running_sums_of_infinities(axis):
    x = torch.randn(64, 64, device="cuda")
    for at, value in enumerate((-np.inf, np.inf, np.nan)):
        x.select(1 - axis, at)[5:9] = value
    x.select(1 - axis, 4)[:7] = -np.inf
    got = mlirfuse.jit(lambda x: mnp.logcumsumexp(x, axis))(x)
    torch.testing.assert_close(got, x.double().logcumsumexp(axis).float(), equal_nan=True)
