"""``fd.ops``' normalizations, forward and backward, as compositions of the other operations."""

from __future__ import annotations

from mlirfuse.core.errors import ShapeError
from mlirfuse.frontend.nvfuser.ops.base import OperatorBase
from mlirfuse.frontend.nvfuser.ops.operation import operation
from mlirfuse.frontend.nvfuser.promotion import DataType
from mlirfuse.frontend.nvfuser.values import Scalar, Tensor
from mlirfuse.ir import sizes as sz


class Normalizations(OperatorBase):
    """Half and BFloat16 are computed, and returned, in Float. Results disabled by a mask are None."""

    def _full_precision(self, x) -> Tensor:
        return self.cast(x, DataType.Float) if self._tensor(x).value.dtype.bits == 16 else x

    def _norm_dims(self, x, norm_shape) -> list[int]:
        """The inner dimensions that ``norm_shape`` (or their number, an integer) covers."""
        count = norm_shape if isinstance(norm_shape, int) else len(self._list(norm_shape, "norm_shape"))
        if not 0 < count <= x.ndim:
            raise ValueError(f"the normalized shape has {count} dimensions, but the input has {x.ndim}")
        if not isinstance(norm_shape, int):
            for n, m in zip(self._sizes(norm_shape, "norm_shape"), x.value.shape[x.ndim - count :]):
                if n != -1:
                    self._fd.equal(n, m, "norm_shape")
        return list(range(x.ndim - count, x.ndim))

    def _count(self, x, dims) -> Scalar:
        return Scalar(self._fd, DataType.Int, size=sz.product(x.value.shape[d] for d in dims))

    def _along(self, v, x, dims) -> Tensor:
        """A tensor over ``dims`` of ``x``, with extents of 1 elsewhere."""
        v = self._tensor(v, "a parameter")
        if v.ndim != len(dims):
            raise ValueError(f"a parameter of rank {v.ndim} does not fit {len(dims)} dimensions")
        return self.broadcast(v, [d not in dims for d in range(x.ndim)])

    @operation
    def layer_norm(self, x, norm_shape, weight=None, bias=None, eps=1e-5):
        """The normalized and scaled ``x``, its mean and reciprocal standard deviation over the dimensions of
        ``norm_shape``."""
        x = self._full_precision(self._tensor(x))
        dims = self._norm_dims(x, norm_shape)
        variance, mean = self.var_mean(x, dims, 0, True)
        rstd = self.rsqrt(self.add(variance, eps))
        out = self.mul(self.sub(x, mean), rstd)
        out = out if weight is None else self.mul(out, self._along(self._tensor(weight), x, dims))
        return (out if bias is None else self.add(out, self._along(self._tensor(bias), x, dims)), mean, rstd)

    @operation
    def layer_norm_backward(
        self, dy, x, norm_shape, mean, rstd, weight=None, bias=None, output_mask=(True, True, True)
    ):
        """The gradients of x, weight and bias (None where masked off)."""
        dy, x = (self._full_precision(self._tensor(dy)), self._full_precision(self._tensor(x)))
        inner = self._norm_dims(x, norm_shape)
        outer = [d for d in range(x.ndim) if d not in inner]
        centered = self.mul(self.sub(x, mean), rstd)
        grad = dy if weight is None else self.mul(dy, self._along(self._tensor(weight), x, inner))
        dx = dw = db = None
        if output_mask[0]:
            first = self.mean(grad, inner, True)
            second = self.mean(self.mul(grad, centered), inner, True)
            dx = self.mul(self.sub(self.sub(grad, first), self.mul(centered, second)), rstd)
        if output_mask[1] and weight is not None:
            dw = self.sum(self.mul(dy, centered), outer) if outer else self.mul(dy, centered)
        if output_mask[2] and bias is not None:
            db = self.sum(dy, outer) if outer else self.set(dy)
        return dx, dw, db

    @operation
    def rms_norm(self, x, norm_shape, weight=None, eps=1e-5):
        """``x`` over its root mean square, scaled; and the reciprocal of that root."""
        x = self._full_precision(self._tensor(x))
        dims = self._norm_dims(x, norm_shape)
        rstd = self.rsqrt(self.add(self.mean(self.mul(x, x), dims, True), eps))
        out = self.mul(x, rstd)
        return out if weight is None else self.mul(out, self._along(self._tensor(weight), x, dims)), rstd

    @operation
    def rms_norm_backward(self, dy, x, norm_shape, rstd, weight=None, output_mask=(True, True)):
        """The gradients of x and weight (None where masked off)."""
        dy, x = (self._full_precision(self._tensor(dy)), self._full_precision(self._tensor(x)))
        inner = self._norm_dims(x, norm_shape)
        outer = [d for d in range(x.ndim) if d not in inner]
        scaled = self.mul(x, rstd)
        grad = dy if weight is None else self.mul(dy, self._along(self._tensor(weight), x, inner))
        dx = dw = None
        if output_mask[0]:
            dx = self.mul(self.sub(grad, self.mul(scaled, self.mean(self.mul(grad, scaled), inner, True))), rstd)
        if output_mask[1] and weight is not None:
            dw = self.sum(self.mul(dy, scaled), outer) if outer else self.mul(dy, scaled)
        return dx, dw

    def _statistics(self, x, dims, running_mean, running_var, momentum, eps, training, over):
        """Mean and 1/std over ``dims``, of the batch or the running ones; training updates running statistics that are
        inputs. ``over``: the dimensions that running statistics keep."""
        if not training:
            mean = self._along(self._full_precision(running_mean), x, over)
            return mean, self.rsqrt(self.add(self._along(self._full_precision(running_var), x, over), eps))
        variance, mean = self.var_mean(x, dims, 0, True)
        if running_mean is not None:
            count = self._count(x, dims)
            unbiased = self.mul(
                self.squeeze(variance, dims),
                self.div(self.cast(count, DataType.Double), self.sub(self.cast(count, DataType.Double), 1.0)),
            )
            batch = [self.squeeze(mean, dims), unbiased]
            for running, now in zip((running_mean, running_var), batch):
                if running is None:
                    continue
                extra = list(range(now.ndim - running.ndim))
                now = self.mean(now, extra) if extra else now
                updated = self.add(self.mul(running, self.sub(1.0, momentum)), self.mul(now, momentum))
                if running.declaration is not None:
                    self._fd.update_input(self.cast(updated, running.dtype), running)
        return mean, self.rsqrt(self.add(variance, eps))

    def _channel(self, x: Tensor, last) -> int:
        """The dimension of the channels."""
        if x.ndim < 2:
            raise ValueError(f"the input must have rank 2 or more, not {x.ndim}")
        return x.ndim - 1 if last else 1

    @operation
    def batch_norm(self, arg, weight, bias, running_mean, running_var, momentum, eps, training, channels_last=False):
        """The normalized and scaled input, and each channel's mean and 1/std; training updates running statistics that
        are inputs."""
        x = self._full_precision(self._tensor(arg))
        channel = self._channel(x, channels_last)
        dims = [d for d in range(x.ndim) if d != channel]
        mean, rstd = self._statistics(x, dims, running_mean, running_var, momentum, eps, training, [channel])
        out = self.mul(self.sub(x, mean), rstd)
        out = out if weight is None else self.mul(out, self._along(self._tensor(weight), x, [channel]))
        out = out if bias is None else self.add(out, self._along(self._tensor(bias), x, [channel]))
        return out, self.squeeze(mean, dims), self.squeeze(rstd, dims)

    @operation
    def batch_norm_backward(
        self,
        input,
        grad_output,
        weight,
        running_mean,
        running_var,
        save_mean,
        save_invstd,
        training,
        eps,
        output_mask=(True, True, True),
        channels_last=False,
    ):
        """The gradients of input, weight and bias (None where masked off)."""
        x, dy = (
            self._full_precision(self._tensor(input)),
            self._full_precision(self._tensor(grad_output, "grad_output")),
        )
        channel = self._channel(x, channels_last)
        dims = [d for d in range(x.ndim) if d != channel]
        if training:
            mean, rstd = (self._along(save_mean, x, [channel]), self._along(save_invstd, x, [channel]))
        else:
            mean = self._along(self._full_precision(running_mean), x, [channel])
            rstd = self.rsqrt(self.add(self._along(self._full_precision(running_var), x, [channel]), eps))
        centered = self.mul(self.sub(x, mean), rstd)
        scale = rstd if weight is None else self.mul(rstd, self._along(self._tensor(weight), x, [channel]))
        dx = dw = db = None
        if output_mask[0]:
            dx = dy
            if training:
                dx = self.sub(
                    self.sub(dy, self.mean(dy, dims, True)),
                    self.mul(centered, self.mean(self.mul(dy, centered), dims, True)),
                )
            dx = self.mul(dx, scale)
        if output_mask[1]:
            dw = self.sum(self.mul(dy, centered), dims)
        if output_mask[2]:
            db = self.sum(dy, dims)
        return dx, dw, db

    @operation
    def instance_norm(
        self, arg, weight, bias, running_mean, running_var, momentum, eps, use_input_stats=True, channels_last=False
    ):
        """batch_norm with statistics of each channel of each sample."""
        x = self._full_precision(self._tensor(arg))
        channel = self._channel(x, channels_last)
        dims = [d for d in range(1, x.ndim) if d != channel]
        mean, rstd = self._statistics(x, dims, running_mean, running_var, momentum, eps, use_input_stats, [channel])
        out = self.mul(self.sub(x, mean), rstd)
        out = out if weight is None else self.mul(out, self._along(self._tensor(weight), x, [channel]))
        out = out if bias is None else self.add(out, self._along(self._tensor(bias), x, [channel]))
        return out, self.squeeze(mean, dims), self.squeeze(rstd, dims)

    @operation
    def instance_norm_backward(
        self, input, grad_output, weight, save_mean, save_invstd, output_mask=(True, True, True), channels_last=False
    ):
        """The gradients of input, weight and bias (None where masked off)."""
        x, dy = (
            self._full_precision(self._tensor(input)),
            self._full_precision(self._tensor(grad_output, "grad_output")),
        )
        channel = self._channel(x, channels_last)
        dims = [d for d in range(1, x.ndim) if d != channel]
        kept = [0, channel]
        mean, rstd = self._along(save_mean, x, kept), self._along(save_invstd, x, kept)
        centered = self.mul(self.sub(x, mean), rstd)
        dx = dw = db = None
        if output_mask[0]:
            inner = self.sub(
                self.sub(dy, self.mean(dy, dims, True)),
                self.mul(centered, self.mean(self.mul(dy, centered), dims, True)),
            )
            dx = self.mul(
                inner, rstd if weight is None else self.mul(rstd, self._along(self._tensor(weight), x, [channel]))
            )
        every = [d for d in range(x.ndim) if d != channel]
        if output_mask[1]:
            dw = self.sum(self.mul(dy, centered), every)
        if output_mask[2]:
            db = self.sum(dy, every)
        return dx, dw, db

    def _grouped(self, x, groups):
        if x.ndim < 2 or groups < 1:
            raise ValueError(f"needs 1 or more groups and a tensor of rank 2 or more, not {groups} of rank {x.ndim}")
        n, c, *rest = x.value.shape
        each = sz.floordiv(c, groups)
        if isinstance(c, int) and c % groups:
            raise ShapeError(f"{c} channels do not divide into {groups} groups")
        self._fd.equal(sz.mul(each, groups), c, "group_norm")
        return self._make(self._b.reshape(x.value, (n, groups, each, *rest)))

    @operation
    def group_norm(self, x, num_groups, weight=None, bias=None, eps=1e-5):
        """The normalized and scaled ``x``, mean and 1/std of each group of channels of each sample."""
        x = self._full_precision(self._tensor(x))
        grouped = self._grouped(x, self._integer(num_groups, "num_groups"))
        dims = list(range(2, grouped.ndim))
        variance, mean = self.var_mean(grouped, dims, 0, True)
        rstd = self.rsqrt(self.add(variance, eps))
        out = self._make(self._b.reshape(self.mul(self.sub(grouped, mean), rstd).value, x.value.shape))
        out = out if weight is None else self.mul(out, self._along(self._tensor(weight), x, [1]))
        out = out if bias is None else self.add(out, self._along(self._tensor(bias), x, [1]))
        return out, self.squeeze(mean, dims), self.squeeze(rstd, dims)

    @operation
    def group_norm_backward(self, dy, x, num_groups, mean, rstd, weight=None, output_mask=(True, True, True)):
        """The gradients of x, weight and bias (None where masked off)."""
        dy, x = (self._full_precision(self._tensor(dy)), self._full_precision(self._tensor(x)))
        groups = self._integer(num_groups, "num_groups")
        grouped = self._grouped(x, groups)
        dims = list(range(2, grouped.ndim))
        mean, rstd = (self._along(v, grouped, [0, 1]) for v in (mean, rstd))
        centered = self.mul(self.sub(grouped, mean), rstd)
        dx = dw = db = None
        if output_mask[0]:
            grad = dy if weight is None else self.mul(dy, self._along(self._tensor(weight), x, [1]))
            grad = self._grouped(grad, groups)
            inner = self.sub(
                self.sub(grad, self.mean(grad, dims, True)),
                self.mul(centered, self.mean(self.mul(grad, centered), dims, True)),
            )
            dx = self._make(self._b.reshape(self.mul(inner, rstd).value, x.value.shape))
        every = [d for d in range(x.ndim) if d != 1]
        if output_mask[1]:
            dw = self.sum(self.mul(dy, self._make(self._b.reshape(centered.value, x.value.shape))), every)
        if output_mask[2]:
            db = self.sum(dy, every)
        return dx, dw, db
