"""Composite ops: results against NumPy in float64, gradients against differences, and the expansion against the row's
own reference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import interpreter
from mlirfuse.ir import ops as table
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Value
from mlirfuse.passes.base import PassError, run_pipeline

R = np.random.default_rng(0)


def call(name, *arrays, decomposed=True, **attrs):
    """The results of one op, run after fusion-decompose or by the row's reference."""
    arrays = [np.asarray(a) for a in arrays]
    graph = Graph("f", Block([Value(dt.of(a.dtype), a.shape) for a in arrays]))
    out = Builder(graph.body).op(name, *graph.args, **attrs)
    graph.body.returns = out if isinstance(out, list) else [out]
    declared = [(v.dtype, v.shape) for v in graph.returns]
    if decomposed:
        run_pipeline(graph, "fusion-decompose")
        assert all(table.TABLE[op.name].kind != "composite" for op in graph.ops)
        assert [(v.dtype, v.shape) for v in graph.returns] == declared
    results = interpreter.run(graph, arrays)
    return results if len(results) > 1 else results[0]


def gradient(name, arrays, at, upstream, result=0, **attrs):
    """The gradient of sum(upstream * op(arrays)[result]) with respect to ``arrays[at]``, by central differences."""

    def value(x):
        out = call(name, *[x if k == at else a for k, a in enumerate(arrays)], **attrs)
        return float(np.sum(upstream * (out[result] if isinstance(out, list) else out)))

    x, step = arrays[at].astype(np.float64), 1e-6
    out = np.empty_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        out[index] = (value(up) - value(down)) / (2 * step)
    return out


def close(a, b, tolerance=1e-12):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def erf(x):
    return np.vectorize(math.erf)(x)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(axis):
    x, g = R.normal(size=(3, 4, 5)), R.normal(size=(3, 4, 5))
    close(call("softmax", x, axis=axis), softmax(x, axis))
    close(call("log_softmax", x + 1000, axis=axis), np.log(softmax(x, axis)), 1e-9)
    close(call("softmax_backward", g, softmax(x, axis), axis=axis), gradient("softmax", [x], 0, g, axis=axis), 1e-7)
    close(
        call("log_softmax_backward", g, np.log(softmax(x, axis)), axis=axis),
        gradient("log_softmax", [x], 0, g, axis=axis),
        1e-7,
    )


def test_activations():
    x, g = R.normal(size=(4, 5)) * 3, R.normal(size=(4, 5))
    close(call("gelu", x), 0.5 * x * (1 + erf(x / math.sqrt(2))))
    close(call("gelu", x, approximate="tanh"), 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    for how in ("none", "tanh"):
        close(call("gelu_backward", g, x, approximate=how), gradient("gelu", [x], 0, g, approximate=how), 1e-7)
    close(call("silu_backward", g, x), gradient("silu", [x], 0, g), 1e-7)
    with pytest.raises(PassError, match="approximate is 'erf'; it is 'none' or 'tanh'"):
        call("gelu", x, approximate="erf")


@pytest.mark.parametrize("axes", [(-1,), (1, 2)])
def test_layer_and_rms_norm(axes):
    x, g = R.normal(size=(3, 4, 5)) + 2, R.normal(size=(3, 4, 5))
    shape = tuple(x.shape[a] for a in axes)
    w, b, eps = R.normal(size=shape), R.normal(size=shape), 1e-3
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    normal = (x - mean) / np.sqrt(var + eps)
    close(call("layer_norm", x, axes=axes, eps=eps), normal)
    close(call("layer_norm", x, w, axes=axes, eps=eps), normal * w)
    close(call("layer_norm", x, b, axes=axes, eps=eps, has=["bias"]), normal + b)
    y, m, r = call("layer_norm", x, w, b, axes=axes, eps=eps, stats=True)
    close(y, normal * w + b), close(m, mean), close(r, 1 / np.sqrt(var + eps))
    dx, dw, db = call("layer_norm_backward", g, x, m, r, w, axes=axes)
    for k, computed in enumerate((dx, dw, db)):
        close(computed, gradient("layer_norm", [x, w, b], k, g, axes=axes, eps=eps), 1e-6)
    close(
        call("layer_norm_backward", g, x, m, r, axes=axes), gradient("layer_norm", [x], 0, g, axes=axes, eps=eps), 1e-6
    )

    rms = x / np.sqrt((x * x).mean(axes, keepdims=True) + eps)
    y, r = call("rms_norm", x, w, axes=axes, eps=eps, stats=True)
    close(y, rms * w)
    dx, dw = call("rms_norm_backward", g, x, r, w, axes=axes)
    close(dx, gradient("rms_norm", [x, w], 0, g, axes=axes, eps=eps), 1e-6)
    close(dw, gradient("rms_norm", [x, w], 1, g, axes=axes, eps=eps), 1e-6)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 2), (2, 4, 3, 2)])
def test_batch_norm(shape):
    x, g = R.normal(size=shape) + 1, R.normal(size=shape)
    w, b, rm, rv = (R.uniform(0.5, 1.5, size=4) for _ in range(4))
    axes = (0, *range(2, len(shape)))
    channels = (1, 4, *(1,) * (len(shape) - 2))
    mean, var = x.mean(axes), x.var(axes)
    normal = (x - mean.reshape(channels)) / np.sqrt(var.reshape(channels) + 1e-5)
    y, m, r, new_mean, new_var = call("batch_norm", x, w, b, rm, rv, momentum=0.1)
    close(y, normal * w.reshape(channels) + b.reshape(channels))
    close(m, mean), close(r, 1 / np.sqrt(var + 1e-5))
    close(new_mean, 0.9 * rm + 0.1 * mean), close(new_var, 0.9 * rv + 0.1 * x.var(axes, ddof=1))
    assert len(call("batch_norm", x, w, b)) == 3
    y = call("batch_norm", x, rm, rv, training=False, has=["running_mean", "running_var"])
    close(y, (x - rm.reshape(channels)) / np.sqrt(rv.reshape(channels) + 1e-5))
    dx, dw, db = call("batch_norm_backward", g, x, m, r, w)
    for k, computed in enumerate((dx, dw, db)):
        close(computed, gradient("batch_norm", [x, w, b], k, g), 1e-6)
    dx, dw, db = call("batch_norm_backward", g, x, rm, 1 / np.sqrt(rv + 1e-5), w, training=False)
    for k, computed in enumerate((dx, dw, db)):
        close(computed, gradient("batch_norm", [x, w, b, rm, rv], k, g, training=False), 1e-6)
    with pytest.raises(PassError, match="running_mean and running_var must be given"):
        call("batch_norm", x, training=False)
    with pytest.raises(PassError, match="does not name the 1 optional operands"):
        call("batch_norm", x, w, training=False, has=["weight", "bias"])


def test_group_and_instance_norm():
    x, g = R.normal(size=(2, 6, 3, 2)) + 1, R.normal(size=(2, 6, 3, 2))
    w, b, rm, rv = (R.uniform(0.5, 1.5, size=6) for _ in range(4))
    per_channel = (1, 6, 1, 1)
    split = x.reshape(2, 3, 2, 3, 2)
    normal = (
        (split - split.mean((2, 3, 4), keepdims=True)) / np.sqrt(split.var((2, 3, 4), keepdims=True) + 1e-5)
    ).reshape(x.shape)
    close(call("group_norm", x, w, b, groups=3), normal * w.reshape(per_channel) + b.reshape(per_channel))
    dx, dw, db = call("group_norm_backward", g, x, w, groups=3)
    for k, computed in enumerate((dx, dw, db)):
        close(computed, gradient("group_norm", [x, w, b], k, g, groups=3), 1e-6)

    mean, var = x.mean((2, 3)), x.var((2, 3))
    y, m, r, new_mean, new_var = call("instance_norm", x, w, b, rm, rv, momentum=0.25)
    normal = (x - mean[:, :, None, None]) / np.sqrt(var[:, :, None, None] + 1e-5)
    close(y, normal * w.reshape(per_channel) + b.reshape(per_channel)), close(m, mean)
    close(new_mean, 0.75 * rm + 0.25 * mean.mean(0)), close(new_var, 0.75 * rv + 0.25 * x.var((2, 3), ddof=1).mean(0))
    dx, dw, db = call("instance_norm_backward", g, x, m, r, w)
    for k, computed in enumerate((dx, dw, db)):
        close(computed, gradient("instance_norm", [x, w, b], k, g), 1e-6)


def test_dropout():
    x, g = R.normal(size=(50, 40)), R.normal(size=(50, 40))
    y, kept = call("dropout", x, np.int64(7), np.int64(0), p=0.25)
    assert kept.dtype == bool and 0.7 < kept.mean() < 0.8
    close(y, np.where(kept, x / 0.75, 0))
    close(call("dropout_backward", g, kept, p=0.25), np.where(kept, g / 0.75, 0))
    assert np.array_equal(call("dropout", x, np.int64(7), np.int64(0), p=0.25)[1], kept)
    assert not np.array_equal(call("dropout", x, np.int64(8), np.int64(0), p=0.25)[1], kept)
    assert not call("dropout", x, np.int64(7), np.int64(0), p=1.0)[0].any()
    close(call("dropout", x, np.int64(7), np.int64(0), p=0.0)[0], x)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(reduction, smoothing):
    for shape in ((6, 5), (3, 5, 4)):
        x = R.normal(size=shape)
        target = R.integers(0, 5, size=(shape[0], *shape[2:]))
        target.flat[1] = -100
        logs = np.moveaxis(np.log(softmax(x, 1)), 1, -1).reshape(-1, 5)
        flat, counted = target.reshape(-1), target.reshape(-1) != -100
        loss = -(1 - smoothing) * logs[np.arange(len(flat)), np.where(counted, flat, 0)] - smoothing * logs.mean(1)
        loss = np.where(counted, loss, 0)
        expected = {"mean": loss.sum() / counted.sum(), "sum": loss.sum(), "none": loss.reshape(target.shape)}[
            reduction
        ]
        attrs = {"reduction": reduction, "label_smoothing": smoothing}
        close(call("cross_entropy", x, target, **attrs), expected)
        g = R.normal(size=np.shape(expected))
        close(
            call("cross_entropy_backward", g, x, target, **attrs),
            gradient("cross_entropy", [x, target], 0, g, **attrs),
            1e-7,
        )
    with pytest.raises(TypeError, match="targets that are i32 or i64"):
        call("cross_entropy", x, x)


def test_linear_and_conv():
    x, w, b = R.normal(size=(2, 3, 4)), R.normal(size=(5, 4)), R.normal(size=5)
    close(call("linear", x, w, b), x @ w.T + b)
    close(call("linear", x, w), x @ w.T)
    for stride, padding, dilation, groups in ((1, 0, 1, 1), (2, 1, 1, 2), (1, 2, 2, 1), (3, 1, 2, 4)):
        i, k, c = R.normal(size=(2, 4, 9, 8)), R.normal(size=(8, 4 // groups, 3, 2)), R.normal(size=8)
        attrs = {"stride": (stride, 1), "padding": (padding, 1), "dilation": (dilation,), "groups": groups}
        padded = np.pad(i, ((0, 0), (0, 0), (padding, padding), (1, 1)))
        rows = (padded.shape[2] - dilation * 2 - 1) // stride + 1
        columns = padded.shape[3] - dilation
        expected = np.zeros((2, 8, rows, columns))
        for n, o, p, q in np.ndindex(expected.shape):
            group = o // (8 // groups)
            for ci, ki, kj in np.ndindex(k.shape[1:]):
                expected[n, o, p, q] += (
                    padded[n, group * (4 // groups) + ci, p * stride + ki * dilation, q + kj * dilation]
                    * k[o, ci, ki, kj]
                )
        close(call("conv", i, k, **attrs), expected)
        close(call("conv", i, k, c, **attrs), expected + c.reshape(1, 8, 1, 1))
    with pytest.raises(ShapeError, match="of one rank"):
        call("conv", x, i)


@pytest.mark.parametrize("name", ["mean", "var", "std"])
def test_statistics(name):
    x = R.normal(size=(3, 4, 5)) + 1e6
    for axes in (None, (0,), (1, 2)):
        for keepdims in (False, True):
            attrs = {"axes": axes, "keepdims": keepdims} | ({} if name == "mean" else {"correction": 1})
            close(call(name, x, **attrs), call(name, x, decomposed=False, **attrs), 1e-9)
    half = (x - 1e6).astype(np.float16)
    assert call(name, half).dtype == np.float16
    close(call(name, half).astype(float), getattr(np, name)(half.astype(np.float64)), 1e-3)


def test_halves_are_rounded_once():
    x, w = R.normal(size=(8, 256)).astype(np.float16), R.normal(size=256).astype(np.float16)
    wide = x.astype(np.float64)
    normal = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    y, mean, _ = call("layer_norm", x, w, stats=True)
    assert y.dtype == np.float16 and mean.dtype == np.float32
    wanted = normal * w
    assert np.all(np.abs(y - wanted) <= np.spacing(np.abs(wanted).astype(np.float16)) * 0.51)


def test_set_slice():
    r = np.random.default_rng(1)
    for _ in range(200):
        shape = tuple(map(int, r.integers(1, 7, size=r.integers(1, 4))))
        x, window, size = r.normal(size=shape), [], []
        for n in shape:
            step = int(r.choice([1, 1, 2, 3, -1, -2]))
            start = int(r.integers(n))
            room = (n - start + step - 1) // step if step > 0 else start // -step + 1
            count = int(r.integers(0, room + 1)) if r.random() < 0.7 else n if step == 1 and start == 0 else room
            window.append((start, count, step))
            size.append(count)
        value = r.normal(size=size if r.random() < 0.7 else ())
        expected = x.copy()
        index = np.ix_(*(np.arange(c) * p + s for s, c, p in window))
        expected[index] = value
        attrs = {key: tuple(t[k] for t in window) for k, key in enumerate(("start", "size", "step"))}
        assert np.array_equal(call("set_slice", x, value, **attrs), expected), (shape, attrs)
        assert np.array_equal(call("set_slice", x, value, decomposed=False, **attrs), expected), (shape, attrs)
