"""The workloads of the benchmarks: one table for the GPU, one for the CPU.

Each row has the same computation as a mlirfuse function (plain NumPy style), as torch code for eager and for
torch.compile, and as a JAX function. The torch code is what a torch user writes: the library's own function where there
is one. The reference is the torch code in float64 unless a row says otherwise. Half types: mlirfuse computes in float32
and rounds where the function casts or returns, which is what torch.compile does; torch eager rounds after every op, and
the tolerances allow for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

EPS = 1e-5


class _Late:
    """A module imported at the first use of a name: the table can be read where the package is missing."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        return getattr(importlib.import_module(self._name), name)


mnp = _Late("mlirfuse.numpy")
jnp = _Late("jax.numpy")
jax = _Late("jax")


@dataclass
class Workload:
    """A row.

    ``make(device)`` gives the inputs (torch tensors), the same for the same seed; ``fused`` is the function for
    mlirfuse, ``torch`` the eager one, ``compiled`` the one for torch.compile where it differs, ``jax`` the JAX one or
    None. ``reference`` runs on the inputs in float64 (``torch`` unless given). ``rows``: the inputs whose first
    dimension is also every result's (see :func:`timing.compare`). ``target``: the share of a same-size copy to reach.
    ``extra``: arguments for mlirfuse alone, after the inputs. ``check(call, inputs)`` replaces the comparison for
    functions that draw random numbers. ``numpy``: the NumPy peer, where it is not ``fused`` itself. ``moved(inputs,
    results)``: the bytes to move, where they are not those of all inputs and results.
    """

    name: str
    shape: str
    dtype: str
    make: Callable[[str], list]
    fused: Callable
    torch: Callable
    jax: Callable | None = None
    compiled: Callable | None = None
    reference: Callable | None = None
    rows: tuple[int, ...] | None = None
    target: float | None = None
    extra: tuple = ()
    check: Callable | None = None
    tolerances: tuple[float, float] | None = None
    numpy: Callable | None = None
    moved: Callable | None = None

    def reference_function(self) -> Callable:
        return self.reference or self.torch

    def model_bytes(self, inputs, results) -> int:
        """Each input read once, each result written once."""
        if self.moved:
            return self.moved(inputs, results)
        return sum(t.numel() * t.element_size() for t in [*inputs, *results] if isinstance(t, torch.Tensor))


def maker(*specs):
    """Inputs from ``(kind, shape, dtype)``: "n" standard normal, "u" uniform in [0, 1), "w" near 1, "i" indices below
    the third entry of the shape, "z" zeros, "o" ones."""

    def make(device: str, seed: int = 0) -> list:
        generator = torch.Generator(device=device).manual_seed(1234 + seed)
        out = []
        for kind, shape, dtype in specs:
            if kind == "i":
                *shape, bound = shape
                out.append(torch.randint(0, bound, shape, device=device, generator=generator))
            elif kind in "zo":
                out.append(torch.full(shape, float(kind == "o"), device=device, dtype=dtype))
            else:
                draw = torch.rand if kind == "u" else torch.randn
                if dtype in (torch.bfloat16, torch.float16) and device == "cpu":
                    value = draw(shape, device=device, generator=generator).to(dtype)
                else:
                    value = draw(shape, device=device, dtype=dtype, generator=generator)
                out.append(value.mul_(0.25).add_(1) if kind == "w" else value)
        return out

    return make


def inputs_without_memory(workload: Workload) -> list:
    """A row's inputs as arrays of the same shapes and types whose memory is never touched."""
    import ml_dtypes
    from torch._subclasses import FakeTensorMode

    def empty(x):
        if not hasattr(x, "untyped_storage"):
            return x
        name = str(x.dtype).removeprefix("torch.")
        return np.empty(tuple(x.shape), ml_dtypes.bfloat16 if name == "bfloat16" else name)

    with FakeTensorMode():
        return [empty(x) for x in (*workload.make("cpu"), *workload.extra)]


def dtype_name(dtype) -> str:
    return {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]


f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16


def show(*shape) -> str:
    return "×".join(map(str, shape))


# ------------------------------------------------------------------------------------------------------------ norms of
# the tutorial


def _np_layer_norm(n, w, b, eps):
    d = n - n.mean(-1, keepdims=True)
    return w * (d / np.sqrt((d * d).mean(-1, keepdims=True) + eps)) + b


def _jax_layer_norm(n, w, b, eps):
    mean = jnp.mean(n, -1, keepdims=True)
    d = n - mean
    return d * jax.lax.rsqrt(jnp.mean(d * d, -1, keepdims=True) + eps) * w + b


def _tutorial_inputs(batch, length, width):
    x = (batch, length, width)
    return maker(("n", x, f32), ("n", x, f32), ("w", (width,), f32), ("n", (width,), f32), ("n", (width,), f32))


def bias_add_layer_norm(batch=64, length=128, width=1024):
    def fused(x, r, w, b1, b2):
        return mnp.layer_norm(x + b1 + r, w, b2, eps=EPS)

    def torch_(x, r, w, b1, b2):
        return F.layer_norm(x + b1 + r, (x.shape[-1],), w, b2, EPS)

    def jax_(x, r, w, b1, b2):
        return _jax_layer_norm(x + b1 + r, w, b2, EPS)

    return Workload("bias + add + layer norm", show(batch, length, width), "f32", _tutorial_inputs(batch, length, width), fused, torch_, jax_,
                    rows=(0, 1), target=0.97)  # fmt: skip


def bias_dropout_add_layer_norm(batch=64, length=128, width=1024):
    p = 0.1

    def fused(x, r, w, b1, b2, seed):
        return mnp.layer_norm(mnp.dropout(x + b1, p, seed) + r, w, b2, eps=EPS)

    def torch_(x, r, w, b1, b2):
        return F.layer_norm(F.dropout(x + b1, p, training=True) + r, (x.shape[-1],), w, b2, EPS)

    def check(call, inputs):
        """On inputs from which the mask can be read off the result: x in [1, 2), no residual, biases 0, weights 1. What
        was dropped is the least of its row, all alike; the rest must be the norm under that mask, and the mask's share
        must be right. Then once more on the real inputs: rows of mean 0 and variance 1 before weight and bias."""
        x, r, w, b1, b2 = inputs
        plain = [
            torch.rand_like(x) + 1,
            torch.zeros_like(r),
            torch.ones_like(w),
            torch.zeros_like(b1),
            torch.zeros_like(b2),
        ]
        y = _tensor(call(*plain)).double()
        mask = y > y.amin(-1, keepdim=True) + 0.9
        kept = torch.where(mask, plain[0].double() / (1 - p), 0.0)
        expected = F.layer_norm(kept, (x.shape[-1],), None, None, EPS)
        error = float((y - expected).norm() / expected.norm())
        if not error < 1e-5:
            raise AssertionError(f"error {error:.1e} of the norm under the mask read off the result")
        count = mask.numel()
        share = float(mask.double().mean())
        if not abs(share - (1 - p)) < 6 * (p * (1 - p) / count) ** 0.5:
            raise AssertionError(f"{share:.5f} of {count} elements kept, not {1 - p}")
        by_column = mask.double().mean((0, 1))
        if not float((by_column - (1 - p)).abs().max()) < 8 * (p * (1 - p) / (count / by_column.numel())) ** 0.5:
            raise AssertionError("the mask is not even over the columns")
        y = (_tensor(call(*inputs)).double() - b2.double()) / w.double()
        good = w.abs() > 0.05
        y = y[..., good]
        if not (
            float(y.mean(-1).abs().max()) < 0.5
            and abs(float(y.square().mean()) - 1) < 0.05
            and bool(torch.isfinite(y).all())
        ):
            raise AssertionError("the rows are not normalized")
        return [{"l2": error, "worst": None}]

    return Workload("bias + dropout + add + layer norm", show(batch, length, width), "f32", _tutorial_inputs(batch, length, width), fused, torch_,
                    target=0.93, extra=(7,), check=check)  # fmt: skip


def primitive_layer_norm(batch=64, length=128, width=1024):
    def fused(x, r, w, b1, b2):
        return _np_layer_norm(x + b1 + r, w, b2, 1e-12)

    def torch_(x, r, w, b1, b2):
        n = x + b1 + r
        mean = n.mean(2, keepdim=True)
        diff = n - mean
        var = (diff * diff).mean(2, keepdim=True)
        return w * ((n - mean) / torch.sqrt(var + 1e-12)) + b2

    def jax_(x, r, w, b1, b2):
        n = x + b1 + r
        d = n - jnp.mean(n, 2, keepdims=True)
        return w * (d / jnp.sqrt(jnp.mean(d * d, 2, keepdims=True) + 1e-12)) + b2

    return Workload("layer norm in primitive ops", show(batch, length, width), "f32", _tutorial_inputs(batch, length, width), fused, torch_, jax_,
                    rows=(0, 1), target=0.97)  # fmt: skip


def primitive_rms_norm(batch=64, length=128, width=1024):
    x = (batch, length, width)

    def fused(x, r, w, b1):
        n = x + b1 + r
        return w * (n / np.sqrt((n * n).mean(-1, keepdims=True) + 1e-12))

    def torch_(x, r, w, b1):
        n = x + b1 + r
        var = n.mul(n).mean(2, True)
        return w * (n / torch.sqrt(var + 1e-12))

    def jax_(x, r, w, b1):
        n = x + b1 + r
        return w * (n / jnp.sqrt(jnp.mean(n * n, 2, keepdims=True) + 1e-12))

    make = maker(("n", x, f32), ("n", x, f32), ("w", (width,), f32), ("n", (width,), f32))
    return Workload("RMS norm in primitive ops", show(*x), "f32", make, fused, torch_, jax_, rows=(0, 1), target=0.97)


# ------------------------------------------------------------------------------------------------------------ views


def view_gelu_view(rows=8192, width=3072, batch=64):
    def fused(x):
        h = x.reshape(batch, rows // batch, width)
        return (h * 0.5 * (1.0 + mnp.erf(h * 0.7071067811865476))).reshape(rows, width)

    def torch_(x):
        return F.gelu(x.view(batch, rows // batch, width)).view(rows, width)

    def jax_(x):
        return jax.nn.gelu(x.reshape(batch, rows // batch, width), approximate=False).reshape(rows, width)

    reference = lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5))  # noqa: E731  (rows are independent, views or not)
    return Workload("view, GELU (erf), view", show(rows, width), "f32", maker(("n", (rows, width), f32)), fused, torch_, jax_,
                    reference=reference, rows=(0,), target=0.99)  # fmt: skip


def view_permute_view(batch=64, heads=12, length=128, width=64):
    def fused(x):
        return x.reshape(batch, heads, length, width).transpose(0, 2, 1, 3).reshape(batch * length, heads * width)

    def torch_(x):
        return x.view(batch, heads, length, width).permute(0, 2, 1, 3).reshape(batch * length, heads * width)

    def jax_(x):
        return x.reshape(batch, heads, length, width).transpose(0, 2, 1, 3).reshape(batch * length, heads * width)

    return Workload("view, permute, view", show(batch * heads, length, width), "f32", maker(("n", (batch * heads, length, width), f32)), fused,
                    torch_, jax_, target=0.97, tolerances=(0.0, 0.0))  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ pointwise


def gelu_backward_bias_gradient(batch=16, length=512, width=4096):
    """nvFuser's own example (seed 001): the gradient of GELU (tanh), and beside it the sum of another gradient over the
    rows."""
    c, a = 0.7978845608028654, 0.044715

    def fused(g2, g, x):
        t = np.tanh(c * (x + a * x * x * x))
        dx = g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * a * x * x))
        return g2.sum((0, 1)), dx

    def torch_(g2, g, x):
        return g2.sum((0, 1)), torch.ops.aten.gelu_backward(g, x, approximate="tanh")

    def jax_(g2, g, x):
        t = jnp.tanh(c * (x + a * x * x * x))
        return g2.sum((0, 1)), g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * a * x * x))

    shape = (batch, length, width)
    return Workload(
        "GELU backward + bias gradient",
        show(*shape),
        "f32",
        maker(*[("n", shape, f32)] * 3),
        fused,
        torch_,
        jax_,
        target=0.98,
    )


def silu_mul(rows=16384, width=11008, dtype=bf16):
    def fused(a, b):
        return mnp.silu(a) * b

    def torch_(a, b):
        return F.silu(a) * b

    def jax_(a, b):
        return jax.nn.silu(a) * b

    return Workload("SiLU · mul", show(rows, width), dtype_name(dtype), maker(*[("n", (rows, width), dtype)] * 2), fused, torch_, jax_, rows=(0, 1),
                    target=0.99)  # fmt: skip


def scale_bias_relu(n=128, c=256, h=56, w=56):
    def fused(x, s, b):
        return np.maximum(x * s[:, None, None] + b[:, None, None], 0)

    def torch_(x, s, b):
        return F.relu(x * s[:, None, None] + b[:, None, None])

    def jax_(x, s, b):
        return jax.nn.relu(x * s[:, None, None] + b[:, None, None])

    return Workload("scale, bias, ReLU (NCHW)", show(n, c, h, w), "f32", maker(("n", (n, c, h, w), f32), ("n", (c,), f32), ("n", (c,), f32)), fused,
                    torch_, jax_, rows=(0,), target=0.98)  # fmt: skip


def rotary(batch=8, heads=32, length=4096, width=128, dtype=bf16):
    half = width // 2

    def make(device, seed=0):
        (x,) = maker(("n", (batch, heads, length, width), dtype))(device, seed)
        angle = torch.outer(
            torch.arange(length, device=device).float(), 10000.0 ** (-torch.arange(half, device=device) / half)
        )
        angle = torch.cat([angle, angle], -1)
        return [x, angle.cos().to(dtype), angle.sin().to(dtype)]

    def fused(x, cos, sin):
        rotated = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
        return x * cos + rotated * sin

    def torch_(x, cos, sin):
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def jax_(x, cos, sin):
        return x * cos + jnp.concatenate([-x[..., half:], x[..., :half]], -1) * sin

    return Workload(
        "rotary embedding",
        show(batch, heads, length, width),
        dtype_name(dtype),
        make,
        fused,
        torch_,
        jax_,
        rows=(0,),
        target=0.98,
    )


def add_transpose(rows=8192, width=16384):
    def fused(a, b):
        return (a + b).T.copy()

    def torch_(a, b):
        return (a + b).t().contiguous()

    def jax_(a, b):
        return (a + b).T

    return Workload(
        "add, then transpose",
        show(rows, width),
        "f32",
        maker(*[("n", (rows, width), f32)] * 2),
        fused,
        torch_,
        jax_,
        target=0.98,
    )


# ------------------------------------------------------------------------------------------------------------
# normalizations


def softmax(rows=16384, width=8192, dtype=f32, target=0.98):
    def fused(x):
        return mnp.softmax(x, axis=-1)

    def torch_(x):
        return F.softmax(x, -1)

    def jax_(x):
        return jax.nn.softmax(x, -1)

    return Workload(
        "softmax",
        show(rows, width),
        dtype_name(dtype),
        maker(("n", (rows, width), dtype)),
        fused,
        torch_,
        jax_,
        rows=(0,),
        target=target,
    )


def layer_norm(rows=16384, width=4096, dtype=bf16, target=0.98):
    def fused(x, w, b):
        return mnp.layer_norm(x, w, b, eps=EPS)

    def torch_(x, w, b):
        return F.layer_norm(x, (x.shape[-1],), w, b, EPS)

    def jax_(x, w, b):
        up = [t.astype(jnp.float32) for t in (x, w, b)]
        return _jax_layer_norm(*up, EPS).astype(x.dtype)

    return Workload("layer norm", show(rows, width), dtype_name(dtype), maker(("n", (rows, width), dtype), ("w", (width,), dtype), ("n", (width,), dtype)),
                    fused, torch_, jax_, rows=(0,), target=target)  # fmt: skip


def layer_norm_backward(rows=16384, width=4096, dtype=bf16):
    def make(device, seed=0):
        g, x, w = maker(("n", (rows, width), dtype), ("n", (rows, width), dtype), ("w", (width,), dtype))(device, seed)
        up = x.float()
        mean = up.mean(-1, keepdim=True)
        return [g, x, mean, torch.rsqrt(up.var(-1, keepdim=True, unbiased=False) + EPS), w]

    def fused(g, x, mean, rstd, w):
        g32 = g.astype(np.float32)
        xhat = (x.astype(np.float32) - mean) * rstd
        gw = g32 * w.astype(np.float32)
        c1 = gw.mean(-1, keepdims=True)
        c2 = (gw * xhat).mean(-1, keepdims=True)
        dx = (gw - c1 - xhat * c2) * rstd
        return dx.astype(x.dtype), (g32 * xhat).sum(0).astype(w.dtype), g32.sum(0).astype(w.dtype)

    def torch_(g, x, mean, rstd, w):
        return torch.ops.aten.native_layer_norm_backward(g, x, (x.shape[-1],), mean, rstd, w, w, (True, True, True))

    def reference(g, x, mean, rstd, w):
        xhat = (x - mean) * rstd
        gw = g * w
        dx = (gw - gw.mean(-1, keepdim=True) - xhat * (gw * xhat).mean(-1, keepdim=True)) * rstd
        return dx, (g * xhat).sum(0), g.sum(0)

    def jax_(g, x, mean, rstd, w):
        g32 = g.astype(jnp.float32)
        xhat = (x.astype(jnp.float32) - mean) * rstd
        gw = g32 * w.astype(jnp.float32)
        dx = (gw - gw.mean(-1, keepdims=True) - xhat * (gw * xhat).mean(-1, keepdims=True)) * rstd
        return dx.astype(x.dtype), (g32 * xhat).sum(0).astype(w.dtype), g32.sum(0).astype(w.dtype)

    return Workload(
        "layer norm backward",
        show(rows, width),
        dtype_name(dtype),
        make,
        fused,
        torch_,
        jax_,
        reference=reference,
        target=0.93,
    )


def rms_norm(rows=16384, width=8192, dtype=bf16):
    def fused(x, w):
        up = x.astype(np.float32)
        return (up * mnp.rsqrt((up * up).mean(-1, keepdims=True) + EPS) * w.astype(np.float32)).astype(x.dtype)

    def torch_(x, w):
        return F.rms_norm(x, (x.shape[-1],), w, EPS)

    def jax_(x, w):
        up = x.astype(jnp.float32)
        return (up * jax.lax.rsqrt(jnp.mean(up * up, -1, keepdims=True) + EPS) * w.astype(jnp.float32)).astype(x.dtype)

    def reference(x, w):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * w

    return Workload("RMS norm", show(rows, width), dtype_name(dtype), maker(("n", (rows, width), dtype), ("w", (width,), dtype)), fused, torch_, jax_,
                    reference=reference, rows=(0,), target=0.98)  # fmt: skip


def rms_norm_backward(rows=16384, width=8192, dtype=bf16):
    def make(device, seed=0):
        g, x, w = maker(("n", (rows, width), dtype), ("n", (rows, width), dtype), ("w", (width,), dtype))(device, seed)
        return [g, x, torch.rsqrt(x.float().square().mean(-1, keepdim=True) + EPS), w]

    def fused(g, x, rstd, w):
        g32 = g.astype(np.float32)
        xhat = x.astype(np.float32) * rstd
        gw = g32 * w.astype(np.float32)
        dx = (gw - xhat * (gw * xhat).mean(-1, keepdims=True)) * rstd
        return dx.astype(x.dtype), (g32 * xhat).sum(0).astype(w.dtype)

    def reference(g, x, rstd, w):
        xhat = x * rstd
        gw = g * w
        return (gw - xhat * (gw * xhat).mean(-1, keepdim=True)) * rstd, (g * xhat).sum(0)

    def eager(g, x, rstd, w):
        return torch.ops.aten._fused_rms_norm_backward(g, x, (x.shape[-1],), rstd, w, (True, True))

    def compiled(g, x, rstd, w):
        g32 = g.float()
        xhat = x.float() * rstd
        gw = g32 * w.float()
        dx = (gw - xhat * (gw * xhat).mean(-1, keepdim=True)) * rstd
        return dx.to(x.dtype), (g32 * xhat).sum(0).to(w.dtype)

    def jax_(g, x, rstd, w):
        g32 = g.astype(jnp.float32)
        xhat = x.astype(jnp.float32) * rstd
        gw = g32 * w.astype(jnp.float32)
        dx = (gw - xhat * (gw * xhat).mean(-1, keepdims=True)) * rstd
        return dx.astype(x.dtype), (g32 * xhat).sum(0).astype(w.dtype)

    return Workload(
        "RMS norm backward",
        show(rows, width),
        dtype_name(dtype),
        make,
        fused,
        eager,
        jax_,
        compiled=compiled,
        reference=reference,
        target=0.94,
    )


def batch_norm_training(n=128, c=256, h=56, w=56):
    momentum = 0.1
    count = n * h * w

    def fused(x, running_mean, running_var, weight, bias):
        mean = x.mean((0, 2, 3), keepdims=True)
        d = x - mean
        var = (d * d).mean((0, 2, 3), keepdims=True)
        y = d * mnp.rsqrt(var + EPS) * weight[:, None, None] + bias[:, None, None]
        new_mean = (1 - momentum) * running_mean + momentum * mean.reshape(-1)
        new_var = (1 - momentum) * running_var + momentum * (count / (count - 1)) * var.reshape(-1)
        return y, new_mean, new_var

    def torch_(x, running_mean, running_var, weight, bias):
        # F.batch_norm updates the running statistics in place; copies of 1 KB keep the inputs as they are.
        running_mean, running_var = running_mean.clone(), running_var.clone()
        return F.batch_norm(x, running_mean, running_var, weight, bias, True, momentum, EPS), running_mean, running_var

    def jax_(x, running_mean, running_var, weight, bias):
        mean = jnp.mean(x, (0, 2, 3), keepdims=True)
        d = x - mean
        var = jnp.mean(d * d, (0, 2, 3), keepdims=True)
        y = d * jax.lax.rsqrt(var + EPS) * weight[:, None, None] + bias[:, None, None]
        return (
            y,
            0.9 * running_mean + 0.1 * mean.reshape(-1),
            0.9 * running_var + 0.1 * (count / (count - 1)) * var.reshape(-1),
        )

    make = maker(("n", (n, c, h, w), f32), ("z", (c,), f32), ("o", (c,), f32), ("w", (c,), f32), ("n", (c,), f32))
    # The running mean is a tenth of a mean near 0: its error counts against the data's size, as part of this tolerance.
    return Workload(
        "batch norm, training",
        show(n, c, h, w),
        "f32",
        make,
        fused,
        torch_,
        jax_,
        target=0.66,
        tolerances=(2e-5, 2e-4),
    )


def cross_entropy(rows=4096, width=128256, dtype=bf16):
    def fused(logits, target):
        up = logits.astype(np.float32)
        top = up.max(-1, keepdims=True)
        total = np.log(np.exp(up - top).sum(-1)) + top[:, 0]
        picked = np.take_along_axis(logits, target[:, None], axis=1)[:, 0]
        return (total - picked.astype(np.float32)).astype(logits.dtype)

    def torch_(logits, target):
        return F.cross_entropy(logits, target, reduction="none")

    def jax_(logits, target):
        up = logits.astype(jnp.float32)
        picked = jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]
        return (jax.nn.logsumexp(up, -1) - picked.astype(jnp.float32)).astype(logits.dtype)

    return Workload("cross entropy, no reduction", show(rows, width), dtype_name(dtype), maker(("n", (rows, width), dtype), ("i", (rows, width), None)),
                    fused, torch_, jax_, rows=(0, 1), target=0.96)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ sums


def sum_axis(axis, rows=16384, width=16384, dtype=f32, target=None):
    def fused(x):
        return x.sum(axis)

    def torch_(x):
        return x.sum() if axis is None else x.sum(axis)

    def jax_(x):
        return jnp.sum(x, axis)

    name = {1: "sum, inner axis", 0: "sum, outer axis", None: "sum of all"}[axis]
    return Workload(
        name,
        show(rows, width),
        dtype_name(dtype),
        maker(("u", (rows, width), dtype)),
        fused,
        torch_,
        jax_,
        target=target,
    )


# ------------------------------------------------------------------------------------------------------------ the
# tables


def gpu_table(quick: bool = False) -> list[Workload]:
    """The first H100 table of docs/reference/performance.md, in its order; ``quick``: the same rows at sizes for a machine without
    a GPU. The second is ``second_table.py``'s."""
    q = quick
    norm = dict(batch=4, length=16, width=256) if q else {}
    return [
        bias_add_layer_norm(**norm),
        bias_dropout_add_layer_norm(**norm),
        primitive_layer_norm(**norm),
        primitive_rms_norm(**norm),
        view_gelu_view(*((128, 192, 4) if q else ())),
        view_permute_view(*((4, 3, 16, 32) if q else ())),
        gelu_backward_bias_gradient(*((2, 32, 256) if q else ())),
        silu_mul(*((64, 688) if q else ())),
        softmax(*((64, 512) if q else ()), target=0.98),
        softmax(*((64, 512) if q else (16384, 8192)), dtype=bf16, target=0.97),
        softmax(*((4, 16384) if q else (4096, 131072)), target=0.97),
        layer_norm(*((64, 512) if q else ())),
        layer_norm_backward(*((64, 512) if q else ())),
        rms_norm(*((64, 512) if q else ())),
        rms_norm_backward(*((64, 512) if q else ())),
        sum_axis(1, *((64, 512) if q else ()), target=1.00),
        sum_axis(0, *((64, 512) if q else ()), target=0.98),
        sum_axis(None, *((64, 512) if q else ()), target=0.99),
        add_transpose(*((64, 512) if q else ())),
        batch_norm_training(*((4, 8, 14, 14) if q else ())),
        scale_bias_relu(*((4, 8, 14, 14) if q else ())),
        cross_entropy(*((16, 4008) if q else ())),
        rotary(*((2, 2, 32, 64) if q else ())),
    ]


def cpu_table(size: int = 4096) -> list[Workload]:
    """The CPU table of docs/reference/performance.md: float32, ``size`` by ``size``. ``numpy`` is the NumPy peer where it is not
    ``fused`` itself."""
    shape, square = show(size, size), (size, size)

    def relu(x, y):
        return np.maximum((x + y) * np.float32(1.5), np.float32(0))

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)))

    def norm(x, w, b):
        return _np_layer_norm(x, w, b, np.float32(EPS))

    def soft(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    return [
        Workload("relu((x + y) · 1.5)", shape, "f32", maker(("n", square, f32), ("n", square, f32)), relu, lambda x, y: F.relu((x + y) * 1.5),
                 lambda x, y: jax.nn.relu((x + y) * 1.5), rows=(0, 1), target=0.70),
        Workload("GELU (tanh)", shape, "f32", maker(("n", square, f32)), gelu, lambda x: F.gelu(x, approximate="tanh"),
                 lambda x: jax.nn.gelu(x, approximate=True), rows=(0,), target=0.60),
        Workload("layer norm", shape, "f32", maker(("n", square, f32), ("w", (size,), f32), ("n", (size,), f32)), norm,
                 lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b, EPS), lambda x, w, b: _jax_layer_norm(x, w, b, EPS), rows=(0,), target=0.60),
        Workload("softmax", shape, "f32", maker(("n", square, f32)), soft, lambda x: F.softmax(x, -1), lambda x: jax.nn.softmax(x, -1),
                 rows=(0,), target=0.60),
        Workload("sum, outer axis", shape, "f32", maker(("u", square, f32)), lambda x: x.sum(0), lambda x: x.sum(0), lambda x: jnp.sum(x, 0),
                 target=0.80),
        Workload("add, then transpose", shape, "f32", maker(("n", square, f32), ("n", square, f32)), lambda a, b: (a + b).T.copy(),
                 lambda a, b: (a + b).t().contiguous(), lambda a, b: (a + b).T, target=0.50),
    ]  # fmt: skip


def _tensor(value):
    from timing import as_torch

    return as_torch(value)
