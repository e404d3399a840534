"""Attention and grouped and scaled products of definitions, against torch's autograd and float64."""

import itertools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mlirfuse.core import config
from mlirfuse.nvfuser import DataType, DefinitionError, FusionDefinition

F = torch.nn.functional
BOUND = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@pytest.fixture(autouse=True)
def compiled_or_failed():
    with config.override(fallback=False):
        yield


def execute(inputs, body):
    with FusionDefinition() as fd:
        for out in body(fd.ops, *[fd.from_pytorch(x) for x in inputs]):
            fd.add_output(out)
    return fd.execute(inputs)


def heads(dtype, lengths=(7, 7), width=8, leading=(2, 3)):
    generator = torch.Generator().manual_seed(1)
    shapes = [(*leading, lengths[0], width), *[(*leading, lengths[1], width)] * 2]
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def close(given, wanted, dtype):
    """Sums of products err by the size of what is summed, not of what is left."""
    scale = max(1.0, wanted.abs().max().item())
    torch.testing.assert_close(given.double(), wanted.double(), rtol=BOUND[dtype], atol=BOUND[dtype] * scale)


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "scale at run time": {"scale": "given"},
    "bias": {"bias": (1, 3, 7, 7)},
    "bias and mask": {"bias": (2, 1, 1, 7), "mask": (7, 7)},
    "more dimensions in front": {"leading": (2, 2, 3), "bias": (2, 1, 3, 7, 7)},
    "keys of another length": {"lengths": (5, 9)},
}


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_attention(case, dtype):
    """Forward, the logarithms of the row sums, and the gradients by query, key and value."""
    torch.manual_seed(3)
    options = dict(CASES[case])
    q, k, v = heads(dtype, options.pop("lengths", (7, 7)), leading=options.pop("leading", (2, 3)))
    extra = {}
    for name in ("bias", "mask"):
        if name in options:
            extra[name] = torch.randn(options.pop(name)).to(dtype)
    if "mask" in extra:
        extra["mask"] = (extra["mask"] > 0) | torch.eye(7, dtype=torch.bool)
    at_run_time = options.get("scale") == "given"
    dy = torch.randn(q.shape).to(dtype)

    def arguments(fd, tensors):
        given = dict(zip(extra, tensors))
        return {**options, **given, **({"scale": fd.define_scalar(dtype=DataType.Double)} if at_run_time else {})}

    def forward(o, q, k, v, *more):
        return o.sdpfa_fwd(q, k, v, **arguments(o._fd, more))

    scalars = [0.7] if at_run_time else []
    with FusionDefinition() as fd:
        tensors = [fd.from_pytorch(x) for x in (q, k, v, *extra.values())]
        for out in forward(fd.ops, *tensors):
            fd.add_output(out)
    out, logs, state, offset = fd.execute([q, k, v, *extra.values(), *scalars])
    assert state.shape == (2,) and offset.shape == () and state.dtype == offset.dtype == torch.uint64

    wide = [t.double().requires_grad_() for t in (q, k, v)]
    scale = 0.7 if at_run_time else options.get("scale") or 1 / math.sqrt(q.shape[-1])
    scores = wide[0] @ wide[1].mT * scale + (extra["bias"].double() if "bias" in extra else 0)
    if "mask" in extra:
        scores = scores.masked_fill(~extra["mask"], -math.inf)
    if options.get("is_causal"):
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    wanted = scores.softmax(-1) @ wide[2]
    close(out, wanted, dtype)
    close(logs, scores.logsumexp(-1), torch.float64 if dtype is torch.float64 else dtype)
    wanted.backward(dy.double())

    with FusionDefinition() as fd:
        tensors = [fd.from_pytorch(x) for x in (dy, q, k, v, out, logs, *extra.values())]
        for gradient in fd.ops.sdpfa_bwd(*tensors[:6], **arguments(fd, tensors[6:])):
            fd.add_output(gradient)
    gradients = fd.execute([dy, q, k, v, out, logs, *extra.values(), *scalars])
    for gradient, t in zip(gradients, wide):
        close(gradient, t.grad, dtype)


def test_dropout():
    """What forward drops, backward drops: the gradient by the values is that of the same mask. Half of the weights are
    dropped, and what is left is twice as much."""
    q, k, v = heads(torch.float32, (64, 64))
    v = torch.eye(64).expand(2, 3, 64, 64).contiguous()
    q, k = (torch.randn(2, 3, 64, 64) for _ in range(2))
    out, logs, state, offset = execute([q, k, v], lambda o, *t: o.sdpfa_fwd(*t, dropout_p=0.5))
    weights = (q @ k.mT / 8).softmax(-1)
    kept = out != 0
    torch.testing.assert_close(out, torch.where(kept, 2 * weights, 0.0))
    assert abs(kept.double().mean() - 0.5) < 0.02
    other = execute([q, k, v], lambda o, *t: o.sdpfa_fwd(*t, dropout_p=0.5))[0]
    assert not torch.equal(other != 0, kept)
    dy = torch.randn_like(out)
    by_value = execute(
        [dy, q, k, v, out, logs, state, offset], lambda o, *t: [o.sdpfa_bwd(*t[:6], 0.5, False, *t[6:])[2]]
    )[0]
    torch.testing.assert_close(by_value, out.mT @ dy, rtol=1e-4, atol=1e-4)


def test_numpy_arrays():
    q, k, v = (t.numpy() for t in heads(torch.float32))
    out = execute([q, k, v], lambda o, *t: o.sdpfa_fwd(*t)[:1])[0]
    assert isinstance(out, np.ndarray)
    np.testing.assert_allclose(
        out, F.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v))), rtol=1e-5, atol=1e-5
    )


def test_kernels_before_and_after():
    q, k, v = heads(torch.float32)
    out = execute([q, k, v], lambda o, q, k, v: [o.relu(o.sdpfa_fwd(o.neg(q), k, o.mul(v, 2.0))[0])])[0]
    torch.testing.assert_close(out, F.scaled_dot_product_attention(-q, k, 2 * v).relu())


def test_what_attention_does_not_take():
    with FusionDefinition() as fd:
        q, k, v = (fd.from_pytorch(t) for t in heads(torch.float32))
        half = fd.ops.cast(k, DataType.Half)
        for arguments, words in (
            ((q, half, v), "the same float type"),
            ((fd.ops.sum(q, [0]), k, v), "one rank of at least 4"),
            ((q, k, v, None, None, None, None, q), "pass additive masks as bias"),
        ):
            with pytest.raises(DefinitionError, match=f"test_definition_attention.py.*{words}"):
                fd.ops.sdpfa_fwd(*arguments)


GROUPS = torch.tensor([5, 7, 16, 20], dtype=torch.int32)  # where each group ends


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_grouped_mm(dtype):
    """Rows, columns and the reduced dimension in groups, each with a matrix of its own."""
    rows, weights = torch.randn(20, 16).to(dtype), torch.randn(4, 16, 8).to(dtype)
    ends = [0, *GROUPS.tolist()]
    spans = list(itertools.pairwise(ends))
    out = execute([rows, weights, GROUPS], lambda o, *t: [o.grouped_mm(*t)])[0]
    wanted = torch.cat([rows[a:b].double() @ w.double() for (a, b), w in zip(spans, weights)])
    assert out.dtype is dtype
    close(out, wanted, dtype)
    stack, columns = torch.randn(4, 8, 16).to(dtype), torch.randn(16, 20).to(dtype)
    out = execute([stack, columns, GROUPS], lambda o, *t: [o.grouped_mm(*t)])[0]
    close(out, torch.cat([s.double() @ columns[:, a:b].double() for (a, b), s in zip(spans, stack)], 1), dtype)
    out = execute([rows.mT.contiguous(), torch.randn(20, 8).to(dtype), GROUPS], lambda o, *t: [o.grouped_mm(*t)])[0]
    assert out.shape == (4, 16, 8)


@pytest.mark.parametrize("scales", ["tensor", "rows"])
def test_scaled_mm(scales):
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(s, generator=generator).to(torch.float8_e4m3fn) for s in ((16, 32), (48, 32)))
    shape = ((1,), (1,)) if scales == "tensor" else ((16, 1), (1, 48))
    by = [torch.rand(s, generator=generator) + 0.5 for s in shape]
    with FusionDefinition() as fd:
        tensors = [fd.from_pytorch(x) for x in (a, b, *by)]
        out, block, whole = fd.ops.scaled_mm(
            tensors[0], fd.ops.permute(tensors[1], [1, 0]), *tensors[2:], dtype=DataType.BFloat16
        )
        fd.add_output(fd.ops.add(out, 1.0))
    assert block is None and whole is None
    given = fd.execute([a, b, *by])[0]
    wanted = (a.double() @ b.double().T * by[0] * by[1]).bfloat16().double() + 1
    torch.testing.assert_close(given.double(), wanted, rtol=1e-2, atol=1e-2)


def test_scaled_grouped_mm():
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(20, 16, generator=generator).to(torch.float8_e4m3fn)
    weights = torch.randn(4, 16, 8, generator=generator).to(torch.float8_e4m3fn)
    by = [torch.rand(s, generator=generator) + 0.5 for s in ((20, 1), (4, 1, 8))]
    out = execute([rows, weights, GROUPS, *by], lambda o, *t: [o.scaled_grouped_mm(*t)[0]])[0]
    ends = [0, *GROUPS.tolist()]
    wide = [w.double() * s for w, s in zip(weights, by[1])]
    wanted = torch.cat([rows[a:b].double() * by[0][a:b] @ w for a, b, w in zip(ends, ends[1:], wide)])
    assert out.dtype is torch.bfloat16
    close(out, wanted, torch.bfloat16)
