"""Attention: forward by the framework, backward as products by the framework with kernels between them."""

from __future__ import annotations

import numpy as np

from mlirfuse.frontend.nvfuser.ops.base import OperatorBase
from mlirfuse.frontend.nvfuser.ops.operation import operation
from mlirfuse.frontend.nvfuser.promotion import DataType
from mlirfuse.frontend.nvfuser.values import Scalar, Val
from mlirfuse.ir import dtypes as dt


class Attention(OperatorBase):
    """``sdpfa_fwd`` and ``sdpfa_bwd``. Queries, keys and values have the shape (batch, heads, length, width)."""

    def _attention(self, query, key, value, dropout_p, is_causal, scale):
        """The operands of an attention, and its options as constants: whether it is causal, and the scale."""
        values = [self._tensor(t, n).value for t, n in ((query, "query"), (key, "key"), (value, "value"))]
        if len({v.dtype for v in values}) > 1:
            raise TypeError("query, key and value must have one type")
        if any(v.rank != 4 for v in values):
            raise ValueError(f"query, key and value must have rank 4, not {[v.rank for v in values]}")
        for a, b, dims in ((0, 1, (0, 1, 3)), (1, 2, (0, 1, 2))):
            for d in dims:
                self._fd.equal(values[a].shape[d], values[b].shape[d], "sdpfa")
        options = []
        for given, name, otherwise in (
            (dropout_p, "dropout_p", 0.0),
            (is_causal, "is_causal", False),
            (scale, "scale", None),
        ):
            given = given.constant if isinstance(given, Scalar) and given.constant is not None else given
            if isinstance(given, Val):
                raise TypeError(f"{name} must be a constant")
            options.append(otherwise if given is None else given)
        if options[0]:
            raise ValueError("attention with dropout is not supported: dropout_p must be 0")
        return values, bool(options[1]), None if options[2] is None else float(options[2])

    def _scores(self, query, key, causal: bool, scale):
        """The scaled scores of an attention, in Float for half types; -inf where a position is not seen."""
        q, k = (self._make(v) for v in (query, key))
        scores = self.matmul(q, self.permute(k, [0, 1, 3, 2]))
        scores = scores if scores.value.dtype is dt.f64 else self.cast(scores, DataType.Float)
        if scale is None:
            width = query.shape[-1]
            scale = self.rsqrt(self.cast(Scalar(self._fd, DataType.Int, size=width), DataType.Double))
        scores = self.mul(scores, scale)
        if not causal:
            return scores
        rows, columns = scores.value.shape[-2:]
        i = self._b.op("iota", shape=(rows, 1), axis=0, dtype=dt.i64)
        j = self._b.op("iota", shape=(1, columns), axis=1, dtype=dt.i64)
        seen = self._b.op("expand_dims", self._b.op("ge", i, j), axes=(0, 1))
        return self._make(self._b.op("where", seen, scores.value, self._b.constant(-np.inf, scores.value.dtype)))

    @operation
    def sdpfa_fwd(self, query, key, value, dropout_p=None, is_causal=None, scale=None):
        """Attention, by the framework: its result, the logarithm of the sum of the exponentials of each row's scores,
        and two Int numbers that stand for the random state (there is no dropout)."""
        (q, k, v), causal, factor = self._attention(query, key, value, dropout_p, is_causal, scale)
        out = self._make(self._b.op("attention", q, k, v, causal=causal, scale=factor))
        scores = self._scores(q, k, causal, factor)  # not computed where it is not used
        highest = self.max(scores, [-1], True)
        logs = self.add(self.squeeze(highest, [-1]), self.log(self.sum(self.exp(self.sub(scores, highest)), [-1])))
        zeros = [self._make(self._b.op("full", self._b.constant(0, dt.i64), shape=())) for _ in range(2)]
        return out, logs, *zeros

    @operation
    def sdpfa_bwd(self, grad_output, query, key, value, output, log_sumexp, dropout_p=None, is_causal=None, philox_seed=None, philox_offset=None,
                  scale=None):  # fmt: skip
        """The gradients of attention by query, key and value: products by the framework with kernels between them."""
        (q, k, v), causal, factor = self._attention(query, key, value, dropout_p, is_causal, scale)
        grad, output = self._tensor(grad_output, "grad_output"), self._tensor(output, "output")
        scores = self._scores(q, k, causal, factor)
        wide = scores.dtype
        weights = self.exp(
            self.sub(scores, self.broadcast(self._tensor(log_sumexp, "log_sumexp"), [False, False, False, True]))
        )
        narrow = self.cast(weights, query.dtype)
        by_value = self.matmul(self.permute(narrow, [0, 1, 3, 2]), grad)
        inner = self.sum(self.mul(self.cast(grad, wide), self.cast(output, wide)), [-1], True)
        by_weights = self.cast(self.matmul(grad, self.permute(self._make(v), [0, 1, 3, 2])), wide)
        factor = self.rsqrt(self.cast(self.size(query, 3), DataType.Double)) if factor is None else factor
        by_scores = self.cast(self.mul(self.mul(weights, self.sub(by_weights, inner)), factor), query.dtype)
        by_query = self.matmul(by_scores, self._make(k))
        by_key = self.matmul(self.permute(by_scores, [0, 1, 3, 2]), self._make(q))
        return by_query, by_key, by_value
