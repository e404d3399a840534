"""Attention, forward and backward: extern ops, between groups of kernels."""

from __future__ import annotations

import functools

from mlirfuse.frontend.nvfuser import attention_kernels
from mlirfuse.frontend.nvfuser.ops.base import OperatorBase
from mlirfuse.frontend.nvfuser.ops.operation import operation
from mlirfuse.frontend.nvfuser.values import Scalar, Tensor
from mlirfuse.ir import dtypes as dt


class Attention(OperatorBase):
    """``sdpfa_fwd`` and ``sdpfa_bwd``. Queries have the shape (batch, heads, L, E) with optional leading dimensions,
    keys (…, S, E), values (…, S, Ev)."""

    def _attention(self, query, key, value, dropout_p, is_causal, scale, bias, mask, state=None):
        """An attention's operands and options: options that are not constants become operands."""
        values = [self._tensor(t, n).value for t, n in ((query, "query"), (key, "key"), (value, "value"))]
        if len({v.dtype for v in values}) > 1 or values[0].dtype.kind != "f":
            raise TypeError("query, key and value must have the same float type")
        rank = values[0].rank
        if rank < 4 or any(v.rank != rank for v in values):
            raise ValueError(f"query, key and value must have one rank of at least 4, not {[v.rank for v in values]}")
        leading = tuple(range(rank - 2))
        for a, b, dims in ((0, 1, (*leading, rank - 1)), (1, 2, (*leading, rank - 2))):
            for d in dims:
                self._fd.equal(values[a].shape[d], values[b].shape[d], "sdpfa")
        constants, given = {}, {}
        for name, option, dtype in (
            ("dropout", dropout_p, dt.f64),
            ("causal", is_causal, dt.bool_),
            ("scale", scale, dt.f64),
        ):
            option = option.constant if isinstance(option, Scalar) and option.constant is not None else option
            if isinstance(option, (Tensor, Scalar)):
                given[name] = self._at(option, dtype)
            else:
                constants[name] = option
        scores = (*values[0].shape[:-1], values[1].shape[-2])
        for name, tensor in (("bias", bias), ("mask", mask)):
            if tensor is None:
                continue
            added = self._tensor(tensor, name).value
            if name == "mask" and added.dtype is not dt.bool_:
                raise TypeError(f"mask must be of DataType.Bool, not {tensor.dtype}: pass additive masks as bias")
            if added.rank > rank:
                raise ValueError(f"{name} must broadcast to {rank} dimensions, it has {added.rank}")
            for n, m in zip(added.shape[::-1], scores[::-1]):
                if n != 1:
                    self._fd.equal(n, m, "sdpfa")
            given[name] = added
        if state is not None:
            given["state"] = self._tensor(state, "philox_seed").value
        options = attention_kernels.Options(
            constants.get("causal"), constants.get("dropout"), constants.get("scale"), tuple(given)
        )
        return values, options, list(given.values())

    @operation
    def sdpfa_fwd(self, query, key, value, dropout_p=None, is_causal=None, scale=None, bias=None, mask=None):
        """Attention by the framework: its result, the logsumexp of each row's scores, and the random state of its
        dropout, as two UInt64 numbers and an offset. ``bias`` is added to the scores; positions where ``mask`` is False
        are masked."""
        (q, k, v), options, more = self._attention(query, key, value, dropout_p, is_causal, scale, bias, mask)
        wide = dt.f64 if q.dtype is dt.f64 else dt.f32
        results = [(q.dtype, (*q.shape[:-1], v.shape[-1])), (wide, q.shape[:-1]), (dt.u64, (2,)), (dt.u64, ())]
        function = functools.partial(attention_kernels.forward, options)
        return tuple(map(self._make, self._called("sdpfa_fwd", function, (q, k, v, *more), results)))

    @operation
    def sdpfa_bwd(
        self,
        grad_output,
        query,
        key,
        value,
        output,
        log_sumexp,
        dropout_p=None,
        is_causal=None,
        philox_seed=None,
        philox_offset=None,
        scale=None,
        bias=None,
        mask=None,
    ):
        """The gradients of attention's query, key and value. ``philox_seed`` is the random state that sdpfa_fwd
        returned."""
        (q, k, v), options, more = self._attention(
            query, key, value, dropout_p, is_causal, scale, bias, mask, philox_seed
        )
        grad, out = self._tensor(grad_output, "grad_output"), self._tensor(output, "output")
        rows = self._tensor(log_sumexp, "log_sumexp")
        function = functools.partial(attention_kernels.backward, options)
        operands = (grad.value, q, k, v, out.value, rows.value, *more)
        return tuple(
            map(self._make, self._called("sdpfa_bwd", function, operands, [(t.dtype, t.shape) for t in (q, k, v)]))
        )
