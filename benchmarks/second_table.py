"""The second GPU table: work that the first (``workloads.gpu_table``) has nothing of, at sizes that nothing was tuned
to. Scans, scatters, shifted reads, joins of odd widths, heavy producers before a sum over rows, odd extents, lookups,
several outputs, many small tensors, small batches, selections.

Functions that need no library are the same for all; where they differ, torch's and JAX's use their own function. ``up``
computes half types in float32, and leaves the reference's float64 as it is.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from workloads import EPS, Workload, bf16, dtype_name, f16, f32, jax, jnp, maker, mnp, rms_norm, show, silu_mul, softmax

Shape = tuple[int, ...]


def up(x):
    """``x`` in at least float32, of a torch tensor or of what mlirfuse traces."""
    if isinstance(x, torch.Tensor):
        return x.float() if x.dtype in (f16, bf16) else x
    return x.astype(np.float32)


def back(y, x):
    """``y`` in the dtype of ``x``."""
    return y.to(x.dtype) if isinstance(y, torch.Tensor) else y.astype(x.dtype)


def library(x):
    """Torch for its tensors, JAX for its arrays, and NumPy for what mlirfuse traces."""
    if isinstance(x, torch.Tensor):
        return torch
    return jnp if type(x).__module__.startswith("jax") else np


def same(name, shape, dtype, fn, *kinds_and_shapes, **fields) -> Workload:
    """A row whose function is one for all; inputs as ``(kind, shape)`` (see ``workloads.maker``)."""
    make = maker(*((kind, of, dtype) for kind, of in kinds_and_shapes))
    return Workload(name, show(*shape), dtype_name(dtype), make, fn, fn, fn, **fields)


# ------------------------------------------------------------------------------------------------------------ scans


def cumsum(rows: int, width: int, axis: int, dtype=f32) -> Workload:
    name = f"cumsum, {('down columns', 'along rows')[axis]}"
    fused = lambda x: np.cumsum(x, axis)  # noqa: E731
    torch_ = lambda x: torch.cumsum(x, axis)  # noqa: E731
    jax_ = lambda x: back(jnp.cumsum(up(x), axis), x)  # noqa: E731
    return Workload(name, show(rows, width), dtype_name(dtype), maker(("n", (rows, width), dtype)), fused, torch_, jax_)


def cumprod(rows: int, width: int) -> Workload:
    def make(device, seed=0):
        (x,) = maker(("n", (rows, width), f32))(device, seed)
        return [x.mul_(0.01).add_(1)]

    fn = lambda x: library(x).cumprod(x, 1)  # noqa: E731
    return Workload("cumprod, along rows", show(rows, width), "f32", make, fn, fn, fn)


def cummax(rows: int, width: int) -> Workload:
    return Workload("cummax, down columns", show(rows, width), "f32", maker(("n", (rows, width), f32)),
                    lambda x: np.maximum.accumulate(x, 0), lambda x: torch.cummax(x, 0).values, lambda x: jax.lax.cummax(x, 0), tolerances=(0.0, 0.0))  # fmt: skip


def logcumsumexp(rows: int, width: int) -> Workload:
    return Workload("logcumsumexp, along rows", show(rows, width), "f32", maker(("n", (rows, width), f32)),
                    lambda x: mnp.logcumsumexp(x, 1), lambda x: torch.logcumsumexp(x, 1), lambda x: jax.lax.cumlogsumexp(x, 1))  # fmt: skip


def scan_between(rows: int, width: int, dtype=bf16) -> Workload:
    def fused(x, y):
        return back(np.cumsum(mnp.softplus(up(x)), 1) * up(y), x)

    def torch_(x, y):
        return back(torch.cumsum(F.softplus(up(x)), 1) * up(y), x)

    def jax_(x, y):
        return back(jnp.cumsum(jax.nn.softplus(up(x)), 1) * up(y), x)

    make = maker(*[("n", (rows, width), dtype)] * 2)
    return Workload(
        "softplus, cumsum, product", show(rows, width), dtype_name(dtype), make, fused, torch_, jax_, rows=(0, 1)
    )


def suffix_sums(rows: int, width: int) -> Workload:
    def fused(x, y):
        return library(x).cumsum((x * y)[:, ::-1], 1)[:, ::-1]

    def torch_(x, y):
        return torch.cumsum((x * y).flip(1), 1).flip(1)

    make = maker(*[("n", (rows, width), f32)] * 2)
    return Workload("product, cumsum from the end", show(rows, width), "f32", make, fused, torch_, fused, rows=(0, 1))


def running_share(rows: int, width: int) -> Workload:
    def fused(x):
        return library(x).cumsum(x, 1) / x.sum(1, keepdims=True)

    def torch_(x):
        return torch.cumsum(x, 1) / x.sum(1, keepdim=True)

    make = maker(("u", (rows, width), f32))
    return Workload("cumsum over the row's sum", show(rows, width), "f32", make, fused, torch_, fused, rows=(0,))


# ------------------------------------------------------------------------------------------------------------ scatters


def positions(count: int, rows: int, order: str, device: str, seed: int) -> torch.Tensor:
    """``count`` positions in ``rows`` rows: "unsorted" and "sorted" each as likely, "zipf" as words are in a text."""
    generator = torch.Generator(device=device).manual_seed(4321 + seed)
    if order == "zipf":
        uniform = torch.rand(count, device=device, generator=generator, dtype=torch.float64)
        return (float(rows) ** uniform).long().sub_(1).clamp_(0, rows - 1)
    found = torch.randint(0, rows, (count,), device=device, generator=generator)
    return found.sort().values if order == "sorted" else found


def added_at(
    name: str, rows: int, width: int, count: int, order: str = "unsorted", dtype=f32, way="index_put"
) -> Workload:
    """``count`` values added to rows of zeros; ``way``: by which of torch's functions."""
    tail = (width,) if width > 1 else ()

    def make(device, seed=0):
        (values,) = maker(("n", (count, *tail), dtype))(device, seed)
        return [positions(count, rows, order, device, seed), values]

    def fused(at, values):
        out = np.zeros((rows, *tail), values.dtype)
        np.add.at(out, at, values)
        return out

    def torch_(at, values):
        if way == "embedding":
            return torch.ops.aten.embedding_dense_backward(values, at, rows, -1, False)
        out = torch.zeros((rows, *tail), dtype=values.dtype, device=values.device)
        return out.index_add_(0, at, values) if way == "index_add" else out.index_put_((at,), values, accumulate=True)

    def jax_(at, values):
        return back(jnp.zeros((rows, *tail), jnp.float32).at[at].add(up(values)), values)

    return Workload(f"{name}, {order}", f"{count}→{show(rows, *tail)}", dtype_name(dtype), make, fused, torch_, jax_)


def bincount(count: int, bins: int) -> Workload:
    def fused(at):
        out = np.zeros(bins, np.int64)
        np.add.at(out, at, 1)
        return out

    make = lambda device, seed=0: [positions(count, bins, "unsorted", device, seed)]  # noqa: E731
    torch_ = lambda at: torch.bincount(at, minlength=bins)  # noqa: E731
    jax_ = lambda at: jnp.bincount(at, length=bins)  # noqa: E731
    return Workload("bincount", f"{count}→{bins}", "i64", make, fused, torch_, jax_, tolerances=(0.0, 0.0))


# ------------------------------------------------------------------------------------------------------------ shifted
# reads


def five_points(x):
    return 0.25 * (x[1:-1, :-2] + x[1:-1, 2:] + x[:-2, 1:-1] + x[2:, 1:-1]) - x[1:-1, 1:-1]


def nine_points(x):
    across = [x[:, k : x.shape[1] - 2 + k] for k in range(3)]
    rows = across[0] + 2 * across[1] + across[2]
    return (rows[:-2] + 2 * rows[1:-1] + rows[2:]) * 0.0625


def seven_taps(x):
    n = x.shape[1] - 6
    return sum(w * x[:, k : n + k] for k, w in enumerate((0.05, 0.1, 0.2, 0.3, 0.2, 0.1, 0.05)))


def largest_of_four(dtype, *shape) -> Workload:
    def parts(x):
        return x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]

    def fn(x):
        a, b, c, d = parts(x)
        maximum = library(x).maximum
        return maximum(maximum(a, b), maximum(c, d))

    name, make = "2×2 maxima, strided slices", maker(("n", shape, dtype))
    return Workload(name, show(*shape), dtype_name(dtype), make, fn, fn, fn, tolerances=(0.0, 0.0))


def stencils(q: bool) -> list[Workload]:
    a, b, c = ((65, 129), (66, 96), (40, 201)) if q else ((8000, 8001), (6001, 9000), (2048, 40001))
    d, e = ((40, 71), (48, 96)) if q else ((12_000, 7001), (9001, 12_288))
    return [
        same("5-point stencil", a, f32, five_points, ("n", a)),
        same("9-point stencil", b, f32, nine_points, ("n", b)),
        same("window of 7 along rows", c, f32, seven_taps, ("n", c)),
        same("differences along rows", d, f32, lambda x: x[:, 1:] - x[:, :-1], ("n", d)),
        same("differences down columns", e, bf16, lambda x: back(up(x[1:]) - up(x[:-1]), x), ("n", e)),
        largest_of_four(f32, *((2, 3, 12, 16) if q else (48, 64, 224, 224))),
    ]


# ------------------------------------------------------------------------------------------------------------ joins


def joined_gelu(dtype, rows: int, *widths: int) -> Workload:
    def fused(*parts):
        return mnp.gelu(np.concatenate(parts, -1), approximate="tanh")

    def torch_(*parts):
        return F.gelu(torch.cat(parts, -1), approximate="tanh")

    def jax_(*parts):
        joined = jnp.concatenate(parts, -1)
        return back(jax.nn.gelu(up(joined)), joined)

    make = maker(*(("n", (rows, n), dtype) for n in widths))
    shape = f"{rows}×({'+'.join(map(str, widths))})"
    rows_of = tuple(range(len(widths)))
    return Workload("concatenate, GELU", shape, dtype_name(dtype), make, fused, torch_, jax_, rows=rows_of)


def stacked(dtype, axis: int, *shape: int) -> Workload:
    def fn(x, y, z):
        return library(x).stack([x, y * 2, z + 1], axis)

    make = maker(*[("n", shape, dtype)] * 3)
    return Workload(f"stack of 3, axis {axis}", show(*shape), dtype_name(dtype), make, fn, fn, fn)


def padded(dtype, rows: int, width: int, before: int, behind: int) -> Workload:
    def fused(x):
        return library(x).pad(x, ((0, 0), (before, behind)))

    make = maker(("n", (rows, width), dtype))
    return Workload("pad at odd offsets", show(rows, width), dtype_name(dtype), make,
                    fused, lambda x: F.pad(x, (before, behind)), fused, rows=(0,), tolerances=(0.0, 0.0))  # fmt: skip


def slice_assigned(dtype, rows: int, width: int, begin: int, end: int) -> Workload:
    def fused(x, y):
        out = x.copy()
        out[:, begin:end] = y * 2
        return out

    def torch_(x, y):
        out = x.clone()
        out[:, begin:end] = y * 2
        return out

    def jax_(x, y):
        return x.at[:, begin:end].set(y * 2)

    def moved(inputs, results):  # what is overwritten is not read
        return results[0].nbytes * 2

    make = maker(("n", (rows, width), dtype), ("n", (rows, end - begin), dtype))
    return Workload("slice assignment at odd offsets", show(rows, width), dtype_name(dtype), make, fused, torch_, jax_, rows=(0, 1), moved=moved,
                    tolerances=(0.0, 0.0))  # fmt: skip


# ------------------------------------------------------------------------------------------------------------
# reductions


def gelu_backward_and_its_sum(dtype, rows: int, width: int) -> Workload:
    c, a = 0.7978845608028654, 0.044715

    def fused(g, x):
        g, u = up(g), up(x)
        t = library(x).tanh(c * (u + a * u * u * u))
        dx = g * (0.5 * (1.0 + t) + 0.5 * u * (1.0 - t * t) * c * (1.0 + 3.0 * a * u * u))
        return back(dx, x), back(dx.sum(0), x)

    def torch_(g, x):
        dx = torch.ops.aten.gelu_backward(g, x, approximate="tanh")
        return dx, dx.sum(0)

    def compiled(g, x):
        dx = torch.ops.aten.gelu_backward(up(g), up(x), approximate="tanh")
        return back(dx, x), back(dx.sum(0), x)

    make = maker(*[("n", (rows, width), dtype)] * 2)
    return Workload(
        "GELU backward, its sum over rows",
        show(rows, width),
        dtype_name(dtype),
        make,
        fused,
        torch_,
        fused,
        compiled=compiled,
    )


def silu_backward_and_its_sum(dtype, rows: int, width: int) -> Workload:
    def fn(g, x):
        s = 1 / (1 + library(x).exp(-up(x)))
        dx = up(g) * s * (1 + up(x) * (1 - s))
        return back(dx, x), back(dx.sum(0), x)

    return same("SiLU backward, its sum over rows", (rows, width), dtype, fn, *[("n", (rows, width))] * 2)


def norm_by_batch(dtype, batch: int, length: int, width: int) -> Workload:
    def fused(x, scale, shift):
        u = up(x)
        d = u - u.mean(-1, keepdims=True)
        return back(
            d / library(x).sqrt((d * d).mean(-1, keepdims=True) + EPS) * (1 + up(scale)[:, None]) + up(shift)[:, None],
            x,
        )

    def torch_(x, scale, shift):
        return F.layer_norm(x, (width,), eps=EPS) * (1 + scale[:, None]) + shift[:, None]

    make = maker(("n", (batch, length, width), dtype), *[("n", (batch, width), dtype)] * 2)
    return Workload("adaptive layer norm", show(batch, length, width), dtype_name(dtype), make, fused, torch_, fused, rows=(0, 1, 2),
                    tolerances=(8e-3, 4e-2) if dtype == bf16 else None)  # fmt: skip


def jax_layer_norm(x, w, b):
    u = up(x)
    d = u - u.mean(-1, keepdims=True)
    return back(d * jax.lax.rsqrt((d * d).mean(-1, keepdims=True) + EPS) * up(w) + up(b), x)


def long_layer_norm(dtype, rows: int, width: int) -> Workload:
    make = maker(("n", (rows, width), dtype), ("w", (width,), dtype), ("n", (width,), dtype))
    return Workload("layer norm", show(rows, width), dtype_name(dtype), make,
                    lambda x, w, b: mnp.layer_norm(x, w, b, eps=EPS), lambda x, w, b: F.layer_norm(x, (width,), w, b, EPS), jax_layer_norm, rows=(0,))  # fmt: skip


def small_layer_norm(rows: int, width: int) -> Workload:
    row = long_layer_norm(f32, rows, width)
    row.name = "layer norm, small"
    return row


def cross_entropy_gradient(dtype, rows: int, width: int) -> Workload:
    def fused(logits, target):
        u = up(logits)
        e = library(u).exp(u - u.max(-1, keepdims=True))
        hot = library(u).arange(width)[None, :] == target[:, None]
        return back((e / e.sum(-1, keepdims=True) - hot.astype(np.float32)) / rows, logits)

    def torch_(logits, target):
        share = torch.softmax(up(logits), -1)
        hot = torch.arange(width, device=logits.device)[None, :] == target[:, None]
        return back((share - hot.to(share.dtype)) / rows, logits)

    make = maker(("n", (rows, width), dtype), ("i", (rows, width), None))
    name = "softmax less the target"
    return Workload(name, show(rows, width), dtype_name(dtype), make, fused, torch_, fused, rows=(0, 1))


def lookup_add_norm(dtype, batch: int, length: int, words: int, width: int) -> Workload:
    def fused(at, table, place, w, b):
        return mnp.layer_norm(mnp.embedding(table, at) + place, w, b, eps=EPS)

    def torch_(at, table, place, w, b):
        return F.layer_norm(F.embedding(at, table) + place, (width,), w, b, EPS)

    def jax_(at, table, place, w, b):
        return jax_layer_norm(table[at] + place, w, b)

    def moved(inputs, results):  # rows of the table that are read
        at, table, place, *_ = inputs
        return at.nbytes + torch.unique(at).numel() * width * table.itemsize + place.nbytes + results[0].nbytes

    make = maker(("i", (batch, length, words), None), ("n", (words, width), dtype), ("n", (length, width), dtype), ("w", (width,), dtype), ("n", (width,), dtype))  # fmt: skip
    return Workload(
        "lookup, addition, layer norm",
        show(batch, length, width),
        dtype_name(dtype),
        make,
        fused,
        torch_,
        jax_,
        rows=(0,),
        moved=moved,
    )


# ------------------------------------------------------------------------------------------------------------ several
# outputs, many tensors, selections


def split_in_three(dtype, rows: int, width: int) -> Workload:
    def fused(x, bias):
        y = back(up(x) + up(bias), x)
        return tuple(y[:, k * width : (k + 1) * width].copy() for k in range(3))

    def torch_(x, bias):
        y = x + bias
        return tuple(y[:, k * width : (k + 1) * width].contiguous() for k in range(3))

    make = maker(("n", (rows, 3 * width), dtype), ("n", (3 * width,), dtype))
    name = "bias, split in three"
    return Workload(name, show(rows, 3 * width), dtype_name(dtype), make, fused, torch_, fused, rows=(0,))


def step_of_many(count: int, width: int) -> Workload:
    """A step of gradient descent over ``count`` matrices, each with its bias, all of other sizes."""
    shapes = [s for k in range(count) for s in ((width + 8 * k, width - 3 * k), (width + 8 * k,))]

    def fused(*tensors):
        half = len(tensors) // 2
        return tuple(p - 0.01 * g for p, g in zip(tensors[:half], tensors[half:]))

    def eager(*tensors):
        half = len(tensors) // 2
        return tuple(torch._foreach_add(tensors[:half], tensors[half:], alpha=-0.01))

    make = maker(*(("n", s, f32) for s in shapes * 2))
    return Workload("step over many tensors", f"{2 * count} tensors", "f32", make, fused, eager, fused, compiled=fused)


def argmax(rows: int, width: int, axis: int) -> Workload:
    return Workload(f"argmax, axis {axis}", show(rows, width), "f32", maker(("n", (rows, width), f32)),
                    *[lambda x: x.argmax(axis)] * 3, tolerances=(0.0, 0.0))  # fmt: skip


def largest(rows: int, width: int, k: int) -> Workload:
    return Workload(f"the {k} largest of a row", show(rows, width), "f32", maker(("n", (rows, width), f32)),
                    lambda x: np.sort(x, -1)[:, ::-1][:, :k], lambda x: torch.topk(x, k).values, lambda x: jax.lax.top_k(x, k)[0], rows=(0,), tolerances=(0.0, 0.0))  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ the table


def second_table(quick: bool = False) -> list[Workload]:
    """The rows; ``quick``: at sizes for a machine without a GPU."""
    s = lambda small, usual: small if quick else usual  # noqa: E731
    middle, odd = s((3, 40, 33), (64, 1000, 333)), s((4, 30, 197), (160, 1024, 197))
    return [
        cumsum(*s((40, 93), (8191, 4093)), 1),
        cumsum(*s((64, 96), (5000, 6144)), 0),
        cumsum(*s((3, 30_001), (12, 2_500_000)), 1),
        cumsum(*s((3000, 12), (2_500_000, 12)), 0),
        cumsum(*s((40, 96), (6000, 9000)), 1, bf16),
        cumprod(*s((40, 150), (20_000, 1500))),
        cummax(*s((60, 50), (6000, 5000))),
        logcumsumexp(*s((40, 90), (7000, 3000))),
        scan_between(*s((40, 96), (8192, 5120))),
        suffix_sums(*s((40, 90), (9000, 3000))),
        running_share(*s((40, 91), (10_000, 3001))),
        added_at("values into few", *s((16, 1, 4000), (16, 1, 8_000_000)), way="index_add"),
        added_at("values into many", *s((4001, 1, 9000), (3_000_001, 1, 8_000_000)), way="index_add"),
        added_at("values into many", *s((4001, 1, 9000), (3_000_001, 1, 8_000_000)), "sorted"),
        added_at("rows into few", *s((12, 32, 300), (48, 512, 100_000))),
        added_at("rows into many", *s((500, 32, 900), (60_000, 256, 200_000))),
        added_at("rows into many", *s((500, 32, 900), (60_000, 256, 200_000)), "sorted"),
        added_at("rows into many", *s((500, 24, 900), (20_000, 384, 150_000)), dtype=bf16),
        added_at("embedding's gradient", *s((300, 48, 200), (30_522, 768, 32_768)), "zipf", way="embedding"),
        added_at("embedding's gradient", *s((500, 48, 200), (50_257, 1280, 16_384)), "zipf", bf16, "embedding"),
        bincount(*s((4000, 256), (16_000_000, 256))),
        *stencils(quick),
        joined_gelu(bf16, s(200, 300_000), 77, 131, 49),
        joined_gelu(f32, s(20, 40_000), 1001, 500),
        stacked(f32, -1, *s((900,), (25_000_000,))),
        stacked(bf16, 1, *s((20, 33), (80_000, 333))),
        padded(bf16, *s((30, 91), (16_000, 5001)), 3, 6),
        slice_assigned(f16, *s((30, 91), (16_000, 6001)), 3, s(88, 5998)),
        gelu_backward_and_its_sum(bf16, *s((300, 96), (16_384, 6144))),
        gelu_backward_and_its_sum(f16, *s((300, 96), (30_000, 3072))),
        silu_backward_and_its_sum(bf16, *s((300, 95), (20_000, 2730))),
        same("sum, middle axis, odd inner", middle, f32, lambda x: x.sum(1), ("n", middle)),
        same("sum, middle axis, odd inner", odd, bf16, lambda x: back(up(x).sum(1), x), ("n", odd)),
        softmax(*s((300, 77), (131_072, 77)), target=None),
        softmax(*s((300, 13), (1_000_000, 13)), bf16, None),
        long_layer_norm(bf16, *s((4, 7000), (1500, 70_000))),
        rms_norm(*s((4, 7001), (1200, 70_001)), dtype=f16),
        norm_by_batch(bf16, *s((3, 20, 96), (48, 1024, 1152))),
        norm_by_batch(f32, *s((3, 20, 96), (32, 576, 1408))),
        softmax(*s((6, 5257), (2048, 50_257)), target=None),
        cross_entropy_gradient(bf16, *s((6, 5257), (3000, 50_257))),
        lookup_add_norm(f32, *s((3, 16, 300, 96), (64, 512, 30_522, 768))),
        split_in_three(bf16, *s((40, 96), (24_576, 768))),
        step_of_many(*s((4, 40), (40, 400))),
        rms_norm(1, s(96, 4096)),
        small_layer_norm(8, s(96, 768)),
        softmax(64, s(96, 8192), target=None),
        silu_mul(16, s(96, 5632)),
        rms_norm(32, s(96, 2048)),
        largest(*s((20, 200), (4096, 4096)), 32),
        argmax(*s((30, 201), (16_384, 5001)), 1),
        argmax(*s((30, 201), (16_384, 5001)), 0),
    ]
