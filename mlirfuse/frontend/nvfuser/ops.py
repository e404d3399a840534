"""``fd.ops``: nvFuser's operations. Elementwise ones are derived from the op table's ``nvfuser`` names; the others
compose.

A public method is an operation: its call is checked, recorded for printing and for replay, and emitted into the
definition's graph. Methods call each other freely; only the outermost call is recorded.
"""

from __future__ import annotations

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.frontend.nvfuser import promotion
from mlirfuse.frontend.nvfuser.norms import Normalizations
from mlirfuse.frontend.nvfuser.operation import operation
from mlirfuse.frontend.nvfuser.promotion import DataType, from_dtype, to_dtype
from mlirfuse.frontend.nvfuser.values import (
    DefinitionError,
    DefinitionTypeError,
    InputError,
    Scalar,
    Tensor,
    Val,
    Vector,
    at_line,
    user_line,
)
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.ops import table


class Operators(Normalizations):
    """The operations of a definition; those of the op table's elementwise rows are added below the class."""

    def __init__(self, definition):
        self._fd = definition

    def __getattr__(self, name):
        raise AttributeError(f"fd.ops has no operation '{name}'; see docs/nvfuser-api.md for what there is")

    # -- helpers

    @property
    def _b(self):
        return self._fd.builder

    def _operand(self, value):
        """An argument as it is recorded: values checked to be this definition's, NumPy numbers and torch.Size made
        plain."""
        if isinstance(value, Val):
            self._fd._own(value)
            return value
        if isinstance(value, Vector):
            return Vector(map(self._operand, value))
        if isinstance(value, (list, tuple)):
            return [self._operand(v) for v in value]
        if isinstance(value, np.generic):
            return value.item()
        return value

    def _tensor(self, value, name="arg") -> Tensor:
        if not isinstance(value, Tensor):
            raise DefinitionTypeError(f"{at_line(user_line())}'{name}' must be a tensor, not {type(value).__name__}")
        return value

    def _make(self, value, **more) -> Tensor:
        return Tensor(self._fd, value, **more)

    def _size(self, value) -> sz.Size:
        if isinstance(value, Scalar):
            return value.as_size()
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"a size must be an integer or a scalar, not {type(value).__name__}")
        return int(value)

    def _sizes(self, values, what, check=True) -> list:
        if isinstance(values, (Val, int)) or not hasattr(values, "__iter__"):
            raise TypeError(f"{what} must be a list of integers and scalars")
        out = [self._size(v) for v in values]
        for k, n in enumerate(out):
            if check and isinstance(n, int) and n < -1:
                raise ValueError(
                    f"The value {n} at index {k} was neither symbolic(-1), zero_element(0), broadcast(1), or static(>1)."
                )
        return out

    def _dim(self, dim, rank, what="dim") -> int:
        if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)):
            raise TypeError(f"{what} must be an integer, not {type(dim).__name__}")
        if not -rank <= dim < rank:
            raise ValueError(f"{what} {dim} is out of range for a tensor of rank {rank}")
        return int(dim) % rank

    def _dims(self, dims, rank, what="dims") -> tuple[int, ...]:
        dims = [dims] if isinstance(dims, (int, np.integer)) else list(dims)
        out = tuple(self._dim(d, rank, what) for d in dims)
        if len(set(out)) != len(out):
            raise ValueError(f"{what} {list(dims)} has duplicates")
        return out

    def _equal_shapes(self, values, what) -> None:
        """Notes that extents of aligned operands must be equal where neither broadcasts."""
        rank = max((v.rank for v in values), default=0)
        for k in range(rank):
            extents = [v.shape[k - rank + v.rank] for v in values if v.rank >= rank - k]
            extents = [n for n in extents if n != 1]
            for n in extents[1:]:
                self._fd.equal(extents[0], n, what)

    def _within(self, a, b, what, words) -> None:
        """Notes that ``a <= b``, without which elements beyond a tensor's would be read. Raises where that is known not
        to be so, as does a call where it is not. ``words`` are the same at every call."""
        replay, label = self._fd._replay, f"{what}: {words}"
        if replay is None:
            if self._fd.at_most(a, b, label) is not a:
                raise ShapeError(words)
        elif not replay.guards.get((replay.record, label), True):
            raise InputError(f"{at_line(self._b.loc())}fd.ops.{label}")

    def _operands(self, *values) -> list[Val]:
        return [self._fd.as_val(v) for v in values]

    def _common(self, operands, **rules):
        pairs = [
            (o.value.dtype, "tensor" if o.ndim else "0-d") if isinstance(o, Tensor) else (o.dtype, "scalar")
            for o in operands
        ]
        return promotion.common_dtype(pairs, **rules)

    def _at(self, operand: Val, dtype):
        return self._b.cast(operand.value, dtype) if isinstance(operand, Tensor) else operand.as_value(dtype)

    def _elementwise(self, row: str, operands, dtype, what=None, **attrs) -> Val:
        """The row on operands cast to ``dtype``: a tensor if any is one, else a scalar."""
        if not any(isinstance(o, Tensor) for o in operands):
            return self._scalar(row, operands, dtype, attrs)
        values = [self._at(o, dtype) for o in operands]
        self._equal_shapes(values, what or row)
        return self._make(self._b.elementwise(row, *values, **attrs))

    def _scalar(self, row: str, operands, dtype, attrs) -> Scalar:
        """An op on scalars: a constant of constants, a size of sizes; computed on the host where a size is needed from
        another."""
        definition = table.TABLE[row]
        result = table.result_dtypes(definition, [dtype] * len(operands), attrs)[0]
        data_type = from_dtype(result)
        out = Scalar(self._fd, data_type, expr=(row, tuple(operands), attrs, dtype))
        if all(o.constant is not None for o in operands):
            out.constant = out.evaluate(None).item()
            out.expr = None
        elif row in ("add", "sub", "mul", "cast", "copy") and result.is_integer and all(_is_size(o) for o in operands):
            parts = [o.as_size() if o.constant is not None else o.size for o in operands]
            out.size = {
                "add": lambda: parts[0] + parts[1],
                "sub": lambda: parts[0] - parts[1],
                "mul": lambda: sz.mul(*parts),
            }.get(row, lambda: parts[0])()
        return out

    # -- casts and copies

    @operation
    def cast(self, arg, dtype):
        """``arg`` as another element type."""
        arg, target = self._fd.as_val(arg), to_dtype(dtype)
        if isinstance(arg, Tensor):
            if arg.value.dtype.kind == "c" and target.kind != "c":
                raise TypeError(f"cannot cast from {arg.dtype} to {dtype}: use real, imag or abs")
            return self._make(self._b.cast(arg.value, target))
        if arg.constant is not None:
            return Scalar(self._fd, dtype, {"f": float, "c": complex, "b": bool}.get(target.kind, int)(arg.constant))
        out = self._scalar("cast", [arg], arg.dtype, {"to": target})
        out.data_type = dtype
        return out

    @operation
    def set(self, x):
        """The same values."""
        x = self._fd.as_val(x)
        if isinstance(x, Scalar):
            return self._scalar("copy", [x], x.dtype, {})
        return self._make(self._b.op("copy", x.value))

    @operation
    def segment_set(self, x):
        """The same values; what makes them and what uses them go into different kernels."""
        return self._make(self._b.op("segment_set", self._tensor(x).value))

    @operation
    def stride_order(self, arg, stride_order):
        """The same values; as an output they lie in memory in this order (0: innermost)."""
        arg = self._tensor(arg)
        order = self._fd._stride_order(stride_order, arg.ndim)
        return self._make(self._b.op("copy", arg.value), stride_order=order)

    # -- ternary and derived elementwise operations

    @operation
    def where(self, condition, x, y):
        """``x`` where condition, else ``y``. Half types stay."""
        condition, x, y = self._operands(condition, x, y)
        kind = condition.value.dtype if isinstance(condition, Tensor) else condition.dtype
        if kind is not dt.bool_:
            raise TypeError(f"Condition should be of DataType Bool, not {promotion.from_name(kind)}")
        common = self._common([x, y], halves_to_float=False)
        if not any(isinstance(o, Tensor) for o in (condition, x, y)):
            if condition.constant is not None:
                return self.cast(x if condition.constant else y, from_dtype(common))
            return _Choice(self._fd, from_dtype(common), expr=("where", (condition, x, y), {}, common))
        values = [self._at(condition, dt.bool_), self._at(x, common), self._at(y, common)]
        self._equal_shapes(values, "where")
        return self._make(self._b.elementwise("where", *values))

    @operation
    def addcmul(self, x, y, z, alpha):
        """``x + alpha * y * z``."""
        return self.add(x, self.mul(self.mul(alpha, y), z))

    @operation
    def lerp(self, x, y, weight):
        """``x + weight * (y - x)``, exact at both ends."""
        operands = self._operands(x, y, weight)
        common = self._common(operands)
        start, end, w = (self.cast(o, from_dtype(common)) for o in operands)
        near = self.add(start, self.mul(w, self.sub(end, start)))
        far = self.sub(end, self.mul(self.sub(end, start), self.sub(self._number(1.0, common), w)))
        return self.where(self.lt(self.abs(w), self._number(0.5, common)), near, far)

    @operation
    def clamp(self, x, min=None, max=None):
        """``x`` within [min, max]; NaN stays."""
        x = self._fd.as_val(x)
        out = x
        for bound, row in ((min, "maximum"), (max, "minimum")):
            if bound is not None:
                bound = self._fd.as_val(bound)
                common = self._common([out, bound], halves_to_float=False)
                out = self._elementwise(row, [out, bound], common)
        return out if out is not x else self.set(x)

    @operation
    def threshold(self, x, threshold, value):
        """``value`` where ``x <= threshold``, else ``x``."""
        x, threshold, value = self._operands(x, threshold, value)
        kept = self._common([x, value], halves_to_float=False)
        below = self._elementwise("le", [x, threshold], self._common([x, threshold]))
        x, value = (
            self.cast(x, from_dtype(kept)),
            self.cast(value, from_dtype(kept)) if isinstance(value, Scalar) else value,
        )
        return self.where(below, value, x)

    @operation
    def rsub(self, x, y):
        """``y - x``."""
        return self.sub(y, x)

    @operation
    def add_alpha(self, x, y, alpha):
        """``x + alpha * y``."""
        return self.add(x, self.mul(alpha, y))

    @operation
    def sub_alpha(self, x, y, alpha):
        """``x - alpha * y``."""
        return self.sub(x, self.mul(alpha, y))

    @operation
    def div(self, lhs, rhs):
        """``lhs / rhs``; of integers, truncated toward zero."""
        operands = self._operands(lhs, rhs)
        common = self._common(operands)
        if common.kind == "b":
            raise TypeError("it takes floats and integers, not bools")
        return self._elementwise("div" if common.kind in "fc" else "trunc_div", operands, common, "div")

    @operation
    def sign(self, x):
        """-1, 0 or 1; 0 for NaN, as in torch."""
        x = self._fd.as_val(x)
        kind = x.value.dtype if isinstance(x, Tensor) else x.dtype
        if kind.kind not in table.NUMBER:
            raise TypeError(f"it takes floats and integers, not {promotion.from_name(kind)}")
        zero = self._number(0, kind)
        return self.where(
            self.gt(x, zero), self._number(1, kind), self.where(self.lt(x, zero), self._number(-1, kind), zero)
        )

    def _number(self, value, dtype) -> Scalar:
        return Scalar(self._fd, from_dtype(dtype), {"f": float, "c": complex, "b": bool}.get(dtype.kind, int)(value))

    # -- reductions

    def _reduce(self, row, arg, dims, keepdim, dtype=None, **attrs) -> Tensor:
        arg = self._tensor(arg)
        axes = tuple(range(arg.ndim)) if dims is None else self._dims(dims, arg.ndim)
        if self._fd._depth == 1:
            self._fd._shown["dims"] = sorted(axes)
        value = arg.value if dtype is None else self._b.cast(arg.value, dtype)
        if not axes:
            if arg.ndim:
                raise ValueError("No reduction dimensions were given")
            return self._make(self._b.op("copy", value))
        return self._make(self._b.op(row, value, axes=tuple(sorted(axes)), keepdims=bool(keepdim), **attrs))

    def _sum_like(self, row, arg, dims, keepdim, dtype):
        if isinstance(dims, DataType):
            dims, dtype = None, dims
        computed = promotion.reduction_dtype(self._tensor(arg).value.dtype, dtype)
        if self._fd._depth == 1:
            self._fd._shown["dtype"] = from_dtype(computed)
        return self._reduce(row, arg, dims, keepdim, computed)

    @operation
    def sum(self, arg, dims=None, keepdim=False, dtype=DataType.Null):
        """The sum over ``dims`` (all unless given), computed and returned as ``dtype``; of integers and bools as
        Int."""
        return self._sum_like("sum", arg, dims, keepdim, dtype)

    @operation
    def prod(self, arg, dims=None, keepdim=False, dtype=DataType.Null):
        """The product over ``dims`` (all unless given), typed as a sum."""
        return self._sum_like("prod", arg, dims, keepdim, dtype)

    def _extremum(self, row, arg, dims, keepdim):
        if isinstance(dims, DataType):
            dims = None
        return self._reduce(row, arg, dims, keepdim)

    @operation
    def max(self, arg, dims=None, keepdim=False, dtype=DataType.Null):
        """The largest over ``dims`` (all unless given); NaN if any is. ``dtype`` is not used."""
        return self._extremum("max", arg, dims, keepdim)

    @operation
    def min(self, arg, dims=None, keepdim=False, dtype=DataType.Null):
        """The smallest over ``dims`` (all unless given); NaN if any is. ``dtype`` is not used."""
        return self._extremum("min", arg, dims, keepdim)

    def _moments_input(self, arg, what, halves: bool) -> Tensor:
        arg = self._tensor(arg)
        if arg.value.dtype.kind not in "f":
            raise TypeError(f"{what} is not supported for {arg.dtype}: cast to a float type")
        if arg.value.dtype.bits == 16:
            if not halves:
                raise TypeError(f"{what} is not supported for {arg.dtype} please upcast to float")
            return self.cast(arg, DataType.Float)
        return arg

    @operation
    def mean(self, arg, dims=None, keepdim=False):
        """The arithmetic mean over ``dims`` (all unless given); of half types as Float."""
        return self._reduce("mean", self._moments_input(arg, "mean", True), dims, keepdim)

    @operation
    def var(self, arg, dims=None, correction=1, keepdim=False):
        """The variance over ``dims``: squares of deviations divided by the count minus ``correction``."""
        return self._reduce("var", self._moments_input(arg, "var", True), dims, keepdim, correction=int(correction))

    @operation
    def std(self, arg, dims=None, correction=1, keepdim=False):
        """The standard deviation over ``dims``."""
        return self._reduce("std", self._moments_input(arg, "std", True), dims, keepdim, correction=int(correction))

    @operation
    def var_mean(self, arg, dims=None, correction=1, keepdim=False):
        """Variance and mean over ``dims``."""
        arg = self._moments_input(arg, "variance_mean", False)
        return self._reduce("var", arg, dims, keepdim, correction=int(correction)), self._reduce(
            "mean", arg, dims, keepdim
        )

    @operation
    def welford(self, arg, dims):
        """Mean, sum of squared deviations and count (an Int scalar's tensor) over ``dims``."""
        arg = self._moments_input(arg, "welford", False)
        axes = self._dims(dims, arg.ndim)
        count = sz.product(arg.value.shape[a] for a in axes)
        mean = self._reduce("mean", arg, dims, False)
        variance = self._reduce("var", arg, dims, False, correction=0)
        number = self._b.size(count)
        squares = self._make(self._b.elementwise("mul", variance.value, self._b.cast(number, arg.value.dtype)))
        full = self._b.op("full", number, shape=mean.value.shape)
        return mean, squares, self._make(full)

    # -- shapes

    @operation
    def broadcast(self, arg, is_broadcast_dim):
        """New dimensions of extent 1 where flagged."""
        arg, flags = self._tensor(arg), [bool(f) for f in is_broadcast_dim]
        if flags.count(False) != arg.ndim:
            raise ValueError(
                f"is_broadcast_dim has {flags.count(False)} dimensions that are not broadcast, the tensor has rank {arg.ndim}"
            )
        axes = tuple(k for k, f in enumerate(flags) if f)
        return self._make(self._b.op("expand_dims", arg.value, axes=axes) if axes else arg.value)

    @operation
    def broadcast_in_dim(self, arg, shape, broadcast_dims):
        """``arg``'s dimension k becomes dimension ``broadcast_dims[k]`` of a tensor of this shape, repeated along the
        others."""
        arg, sizes, dims = (self._tensor(arg), self._sizes(shape, "shape"), [int(d) for d in broadcast_dims])
        if len(sizes) < len(dims):
            raise ValueError("broadcast_dims vector size is too big for output shape!")
        if arg.ndim != len(dims):
            raise ValueError(f"The broadcast dimensions should match the input dimensions: {arg.ndim} vs {len(dims)}")
        if any(not 0 <= d < len(sizes) for d in dims):
            raise ValueError(f"Invalid broadcast_dims value: {dims} for an output of rank {len(sizes)}")
        if any(a >= b for a, b in zip(dims, dims[1:])):
            raise ValueError("Broadcast dimension is not greater than the previous value.")
        if len(dims) < len(sizes) and self._fd._depth == 1:
            self._fd._number("tv")  # nvFuser makes a tensor for the broadcast and one for the expansion
        return self._expanded(arg, sizes, dims)

    @operation
    def expand(self, arg, shape):
        """Dimensions of extent 1 repeated to ``shape``; -1 keeps one as it is."""
        arg, sizes = self._tensor(arg), self._sizes(shape, "shape")
        if len(sizes) < arg.ndim:
            raise ValueError(f"the expanded shape has {len(sizes)} dimensions, the tensor {arg.ndim}")
        return self._expanded(arg, sizes, list(range(len(sizes) - arg.ndim, len(sizes))))

    def _expanded(self, arg, sizes, dims) -> Tensor:
        back = dict(zip(dims, arg.value.shape))
        out = []
        for k, n in enumerate(sizes):
            if n == -1:
                if k not in back:
                    raise ValueError(f"the extent of the new dimension {k} must be given")
                n = back[k]
            elif k in back and back[k] != 1:
                self._fd.equal(back[k], n, "expand")
                n = back[k] if not isinstance(n, int) else n
            out.append(n)
        if tuple(out) == arg.value.shape and dims == list(range(len(out))):
            return self._make(arg.value, expanded=arg.expanded)
        expanded = [k for k in range(len(out)) if out[k] != 1 and (k not in back or back[k] == 1)]
        return self._make(
            self._b.op("broadcast_in_dim", arg.value, shape=tuple(out), dims=tuple(dims)), expanded=expanded
        )

    @operation
    def squeeze(self, arg, dims, squeeze_expanded=False):
        """Without ``dims``, which broadcast; with ``squeeze_expanded`` also expanded ones."""
        arg = self._tensor(arg)
        axes = self._dims(dims, arg.ndim)
        value = arg.value
        for a in axes:
            n = value.shape[a]
            if n == 1:
                continue
            if squeeze_expanded and a in arg.expanded:
                value = self._b.slice(value, a, 0, 1)
            elif isinstance(n, int) or _is_input_extent(n):
                raise ValueError(
                    f"Squeeze dimension should be of extent 1: dimension {a} is {'not broadcast' if not isinstance(n, int) else n}"
                )
            else:
                self._fd.equal(n, 1, "squeeze")
                value = self._b.reshape(value, [1 if k == a else m for k, m in enumerate(value.shape)])
        return self._make(self._b.op("squeeze", value, axes=tuple(sorted(axes))) if axes else value)

    @operation
    def permute(self, arg, dims):
        """Dimension k of the result is dimension ``dims[k]`` of ``arg``."""
        arg = self._tensor(arg)
        if len(dims) != arg.ndim:
            raise ValueError("Operator permute expects `dims` argument to have the same length as input!")
        return self._make(self._b.permute(arg.value, self._dims(dims, arg.ndim)))

    @operation
    def reshape(self, arg, new_shape):
        """The same elements in row-major order in another shape; one extent may be -1."""
        arg = self._tensor(arg)
        sizes = self._sizes(new_shape, "new_shape")
        return self._make(self._reshaped(arg.value, sizes))

    def _reshaped(self, value, sizes):
        unknown = [k for k, n in enumerate(sizes) if n == -1]
        if len(unknown) > 1:
            raise ValueError("A maximum of one value can be -1 in a new shape")
        total = value.numel
        if unknown:
            known = sz.product(n for n in sizes if n != -1)
            if known == 0 or (isinstance(total, int) and isinstance(known, int) and total % known):
                raise ShapeError(f"cannot reshape {total} elements into {sizes}")
            sizes[unknown[0]] = sz.floordiv(total, known)
            if sz.quotient(total, known) is None:
                self._fd.equal(sz.mul(known, sizes[unknown[0]]), total, "reshape")
        else:
            wanted = sz.product(sizes)
            if isinstance(total, int) and isinstance(wanted, int) and total != wanted:
                raise ShapeError(f"Total element counts across view operation must match: {total} and {wanted}")
            self._fd.equal(wanted, total, "reshape")
        return self._b.reshape(value, tuple(sizes))

    @operation
    def view(self, arg, original_shape, new_shape):
        """The older API's reshape: ``arg`` must have ``original_shape``."""
        arg = self._tensor(arg)
        sizes = self._sizes(original_shape, "original_shape")
        if len(sizes) != arg.ndim:
            raise ValueError(f"original_shape has {len(sizes)} dimensions, the tensor {arg.ndim}")
        for n, m in zip(sizes, arg.value.shape):
            self._fd.equal(n, m, "view")
        return self._make(self._reshaped(arg.value, self._sizes(new_shape, "new_shape")))

    @operation
    def slice(self, arg, start_indices, end_indices, strides=None, manual_normalization=False):
        """Elements from start to before end of each dimension; both are clamped to the extents unless
        ``manual_normalization``."""
        arg = self._tensor(arg)
        starts = self._sizes(start_indices, "start_indices", check=False)
        ends = self._sizes(end_indices, "end_indices", check=False)
        steps = [1] * len(starts) if strides is None else self._sizes(strides, "strides", check=False)
        if len(starts) != arg.ndim:
            raise ValueError(
                f"Number of tensor dimensions does not match slice dimensions! Tensor-dims: {arg.ndim} Slice-dims: {len(starts)}"
            )
        if len(ends) != len(starts):
            raise ValueError(
                f"Slice indexing attribute dimensions don't match! Start Indices: {len(starts)} End Indices: {len(ends)}"
            )
        if len(steps) != len(starts):
            raise ValueError(
                f"Slice start_indices and strides don't match! Start Indices: {len(starts)} Strides: {len(steps)}"
            )
        from_, sizes = [], []
        for k, (start, end, step, extent) in enumerate(zip(starts, ends, steps, arg.value.shape)):
            if isinstance(start, int) and start < 0:
                raise ValueError(
                    f"Slice operation start_indices must be greater than or equal to 0. Start Indices: {start}"
                )
            if isinstance(start, int) and isinstance(end, int) and end < start:
                raise ValueError(
                    f"Slice operation end_indices must be greater than or equal to start_indices. Start Indices: {start} End Indices: {end}"
                )
            if not isinstance(step, int) or step < 1:
                raise ValueError("Slice operation strides must be constants of 1 or more")
            if not manual_normalization:
                end = self._fd.at_most(end, extent, f"end {k}")
                start = self._fd.at_most(start, end, f"start {k}")
            from_.append(start)
            sizes.append(end - start if step == 1 else sz.ceildiv(end - start, step))
        if all(s == 0 for s in from_) and tuple(sizes) == arg.value.shape and all(s == 1 for s in steps):
            return self._make(arg.value, expanded=arg.expanded)
        return self._make(self._b.op("slice", arg.value, start=tuple(from_), size=tuple(sizes), step=tuple(steps)))

    @operation
    def pad(self, arg, pad_widths, value=None):
        """``value`` (0 unless given) added around: ``pad_widths`` are before and after the last dimension, then the one
        before it, …"""
        arg, widths = (self._tensor(arg), self._sizes(pad_widths, "pad_widths", check=False))
        if len(widths) % 2 or len(widths) > 2 * arg.ndim:
            raise ValueError(
                f"Number of pad widths must be at most twice the input dimension, and even: {len(widths)} for rank {arg.ndim}"
            )
        low, high = [0] * arg.ndim, [0] * arg.ndim
        for k in range(len(widths) // 2):
            low[arg.ndim - 1 - k], high[arg.ndim - 1 - k] = (widths[2 * k], widths[2 * k + 1])
        if all(n == 0 for n in low + high):
            return self._make(arg.value)
        fill = self._fd.as_val(0 if value is None else value)
        if isinstance(fill, Tensor) and fill.ndim:
            raise TypeError("pad: value must be a scalar")
        return self._make(
            self._b.op("pad", arg.value, self._at(fill, arg.value.dtype), low=tuple(low), high=tuple(high))
        )

    @operation
    def cat(self, tensors, dim=0, manual_padding=False):
        """Tensors joined along ``dim``; types are promoted."""
        tensors = [self._tensor(t, "tensors") for t in tensors]
        if not tensors:
            raise ValueError("Attempting to concatenate empty list of tensors")
        rank = tensors[0].ndim
        if any(t.ndim != rank for t in tensors) or rank == 0:
            raise ValueError(
                f"Unexpected number of dimensions: cat takes tensors of one rank, at least 1, not {[t.ndim for t in tensors]}"
            )
        axis = self._dim(dim, rank)
        common = self._common(tensors, halves_to_float=False)
        values = [self._b.cast(t.value, common) for t in tensors]
        for k in range(rank):
            for v in values[1:]:
                if k != axis:
                    self._fd.equal(values[0].shape[k], v.shape[k], "cat")
        return self._make(
            self._b.op("concatenate", *values, axis=axis) if len(values) > 1 else self._b.op("copy", values[0])
        )

    @operation
    def split(self, arg, sizes, dim=0):
        """Consecutive pieces of these sizes along ``dim``."""
        arg = self._tensor(arg)
        axis, sizes = self._dim(dim, arg.ndim), self._sizes(sizes, "sizes")
        total = 0
        for n in sizes:
            total = total + n
        for k, n in enumerate(sizes):
            self._within(0, n, "split", f"the size of piece {k} must be 0 or more")
        self._fd.equal(total, arg.value.shape[axis], "split")
        return self._pieces(arg, axis, sizes)

    def _pieces(self, arg, axis, sizes) -> list[Tensor]:
        out, start = [], 0
        for n in sizes:
            out.append(self._make(self._b.slice(arg.value, axis, start, n)))
            start = start + n
        return out

    @operation
    def chunk(self, arg, chunks, dim=0):
        """``chunks`` pieces along ``dim``, equal but for the last; fewer where the extent is known to be too small, as
        in torch. Where it is not known, there are ``chunks``, and a call with an extent that gives fewer is an
        error."""
        arg = self._tensor(arg)
        axis, extent = (self._dim(dim, arg.ndim), arg.value.shape[self._dim(dim, arg.ndim)])
        if chunks < 1:
            raise ValueError(f"chunk expects chunks to be positive, not {chunks}")
        step = sz.ceildiv(extent, chunks)
        before = sz.mul(step, chunks - 1)
        if not isinstance(extent, int) or self._fd._replay is not None:  # an extent may be known in a call alone
            self._within(before + sz.minimum(extent, 1), extent, "chunk", f"the extent of dimension {axis} makes fewer than {chunks} pieces, as in torch: "
                         "ask for fewer, or declare the extent")  # fmt: skip
        if isinstance(extent, int):
            sizes = [min(step, extent - at) for at in range(0, extent, step)] if extent else [0] * chunks
        else:
            sizes = [step] * (chunks - 1) + [extent - before]
        return self._pieces(arg, axis, sizes)

    @operation
    def flip(self, arg, dims):
        """Elements of ``dims`` in reverse order."""
        arg = self._tensor(arg)
        axes = self._dims(dims, arg.ndim)
        start = tuple(n - 1 if k in axes else 0 for k, n in enumerate(arg.value.shape))
        step = tuple(-1 if k in axes else 1 for k in range(arg.ndim))
        return self._make(self._b.op("slice", arg.value, start=start, size=arg.value.shape, step=step))

    # -- sizes

    @operation
    def size(self, arg, dim):
        """The extent of a dimension, as a scalar."""
        arg = self._tensor(arg)
        return Scalar(self._fd, DataType.Int, size=arg.value.shape[self._dim(dim, arg.ndim)])

    def shape(self, arg) -> Vector:
        """The extents, as a vector of scalars."""
        return Vector(self.size(arg, k) for k in range(self._tensor(arg).ndim))

    tensor_sizes = shape

    def at(self, vector, index: int) -> Scalar:
        """Element ``index`` of a vector."""
        if not -len(vector) <= index < len(vector):
            raise DefinitionError(
                f"{at_line(user_line())}fd.ops.at: The index {index} is out of bounds of a vector of size {len(vector)}"
            )
        return vector[index]

    # -- creation

    @operation
    def full(self, shape, fill_value, dtype=None):
        """``fill_value`` everywhere."""
        fill, sizes = self._fd.as_val(fill_value), self._sizes(shape, "shape")
        if any(n == -1 for n in sizes):
            raise ValueError("full: the extents must be given, -1 has no meaning here")
        if isinstance(fill, Tensor) and fill.ndim:
            raise TypeError("full: fill_value must be a scalar")
        kind = fill.value.dtype if isinstance(fill, Tensor) else fill.dtype
        return self._make(
            self._b.op("full", self._at(fill, kind if dtype is None else to_dtype(dtype)), shape=tuple(sizes))
        )

    @operation
    def iota(self, length, start=None, step=None, dtype=DataType.Int):
        """``start + k * step`` for k below ``length``; from 0 in steps of 1 unless given."""
        n, target = self._size(length), to_dtype(dtype)
        if isinstance(n, int) and n < 0:
            raise ValueError("length must be non-negative.")
        if target.kind not in "iuf":
            raise TypeError(f"iota: it makes integers and floats, not {dtype}")
        wide = dt.f64 if target is dt.f64 else dt.f32 if target.kind == "f" else target
        out = self._b.op("iota", shape=(n,), axis=0, dtype=wide)
        for other, row, neutral in ((step, "mul", 1), (start, "add", 0)):
            if other is not None:
                other = self._fd.as_val(other)
                if row == "mul" and isinstance(other, Scalar) and other.constant == 0:
                    raise ValueError("step must not be 0")
                if not (isinstance(other, Scalar) and other.constant == neutral):
                    out = self._b.op(row, out, self._at(other, wide))
        return self._make(self._b.cast(out, target))

    # -- random numbers: element i of the k-th random op draws Philox block i at offset k of the call's seed

    def _seeds(self, rng_seed, rng_offset):
        if (rng_seed is None) != (rng_offset is None):
            raise ValueError("rng_seed and rng_offset must be provided together!")
        if rng_seed is not None:
            return [self._at(self._fd.as_val(v), dt.i64) for v in (rng_seed, rng_offset)]
        seed = self._fd.hidden_argument("seed", _call_seed)[0]
        return [seed, self._b.constant(self._fd._number("random"), dt.i64)]

    def _random(self, row, shape, dtype, rng_seed, rng_offset, scale, shift) -> Tensor:
        target = to_dtype(dtype)
        if target.kind != "f":
            raise TypeError(f"random numbers are floats, not {dtype}")
        sizes = self._sizes(shape, "shape")
        made = target if target is dt.f64 else dt.f32
        out = self._b.op(row, *self._seeds(rng_seed, rng_offset), shape=tuple(sizes), dtype=made)
        if scale is not None:
            out = self._b.op("mul", out, self._at(scale, made))
        if shift is not None:
            out = self._b.op("add", out, self._at(shift, made))
        return self._make(self._b.cast(out, target))

    @operation
    def uniform(self, minval, maxval, shape, dtype=DataType.Float, rng_seed=None, rng_offset=None):
        """Uniform in [minval, maxval). Without a seed, another each call, from torch's generator."""
        minval, maxval = self._operands(minval, maxval)
        return self._random("uniform", shape, dtype, rng_seed, rng_offset, self.sub(maxval, minval), minval)

    @operation
    def normal(self, mean, std, shape, dtype=DataType.Float, rng_seed=None, rng_offset=None):
        """Normally distributed. Without a seed, another each call, from torch's generator."""
        mean, std = self._operands(mean, std)
        return self._random("normal", shape, dtype, rng_seed, rng_offset, std, mean)

    def _shape_of(self, arg) -> list[Scalar]:
        return [Scalar(self._fd, DataType.Int, size=n) for n in arg.value.shape]

    @operation
    def rand_like(self, x, rng_seed=None, rng_offset=None):
        """Uniform in [0, 1), of the shape and type of ``x``."""
        x = self._tensor(x)
        return self._random("uniform", self._shape_of(x), x.dtype, rng_seed, rng_offset, None, None)

    @operation
    def randn_like(self, x, rng_seed=None, rng_offset=None):
        """Standard normal, of the shape and type of ``x``."""
        x = self._tensor(x)
        return self._random("normal", self._shape_of(x), x.dtype, rng_seed, rng_offset, None, None)

    @operation
    def dropout(self, x, prob, scale=None, rng_seed=None, rng_offset=None):
        """``x`` times ``scale`` where a uniform number is below ``prob`` (that of keeping), else 0; and the mask.
        ``scale`` is 1 / prob unless given."""
        x, prob = self._tensor(x), self._fd.as_val(prob)
        made = dt.f64 if x.value.dtype is dt.f64 else dt.f32
        draw = self._random("uniform", self._shape_of(x), from_dtype(made), rng_seed, rng_offset, None, None)
        mask = self.lt(draw, prob)
        scale = self.reciprocal(prob) if scale is None else self._fd.as_val(scale)
        return self.mul(self.mul(x, self.cast(mask, x.dtype)), scale), mask

    # -- indexing

    def _indices(self, index) -> Val:
        index = self._fd.as_val(index)
        kind = index.value.dtype if isinstance(index, Tensor) else index.dtype
        if kind not in (dt.i32, dt.i64):
            raise TypeError(f"index must be Int or Int32, not {promotion.from_name(kind)}")
        return index

    @operation
    def index_select(self, arg, index, dim):
        """Slices of ``arg`` at ``index``, of rank 0 or 1, along ``dim``."""
        arg, index = self._tensor(arg), self._indices(self._tensor(index, "index"))
        if index.ndim > 1:
            raise ValueError(f"index array must be 1D or scalar tensor, not of rank {index.ndim}")
        axis, indices = self._dim(dim, arg.ndim), index.value
        if not index.ndim:
            indices = self._b.reshape(indices, (1,))
        return self._make(self._b.op("take", arg.value, indices, axis=axis))

    @operation
    def select(self, arg, index, dim):
        """The slice of ``arg`` at a scalar ``index`` along ``dim``, without that dimension."""
        arg, index = self._tensor(arg), self._indices(index)
        if isinstance(index, Tensor) and index.ndim:
            raise ValueError("select takes a scalar index; index_select takes several")
        value = index.value if isinstance(index, Tensor) else index.as_value(dt.i64)
        return self._make(self._b.op("take", arg.value, value, axis=self._dim(dim, arg.ndim)))

    @operation
    def gather(self, arg, index, dim):
        """``out[i, j] = arg[index[i, j], j]`` for dim 0; ``index`` may be smaller than ``arg`` in the other
        dimensions."""
        arg, index = self._tensor(arg), self._indices(self._tensor(index, "index"))
        if arg.ndim != index.ndim:
            raise ValueError(f"arg and index must have one rank, not {arg.ndim} and {index.ndim}")
        axis, value = self._dim(dim, arg.ndim), arg.value
        for k, n in enumerate(index.value.shape):
            if k != axis:
                self._within(n, arg.value.shape[k], "gather", f"index must have at most arg's extent in dimension {k}")
                value = self._b.slice(value, k, 0, n)
        return self._make(self._b.op("take_along_axis", value, index.value, axis=axis))

    @operation
    def take_along_axis(self, arg, index, dim):
        """As gather, where ``index`` has ``arg``'s extents, or 1, in the other dimensions."""
        arg, index = self._tensor(arg), self._indices(self._tensor(index, "index"))
        if arg.ndim != index.ndim:
            raise ValueError(f"arg and index must have one rank, not {arg.ndim} and {index.ndim}")
        axis = self._dim(dim, arg.ndim)
        shape = [list(arg.value.shape), list(index.value.shape)]
        for k in range(arg.ndim):
            if k != axis:
                a, b = shape[0][k], shape[1][k]
                if a != 1 and b != 1:
                    self._fd.equal(a, b, "take_along_axis")
                shape[0][k] = shape[1][k] = b if a == 1 else a
        lookup, indices = (self._b.broadcast_to(v, s) for v, s in zip((arg.value, index.value), shape))
        return self._make(self._b.op("take_along_axis", lookup, indices, axis=axis))

    @operation
    def scatter(self, arg, index, src, dim):
        """``arg`` with ``out[index[i, j], j] = src[i, j]`` for dim 0; ``src`` may be a scalar."""
        arg, index, src = (self._tensor(arg), self._indices(self._tensor(index, "index")), self._fd.as_val(src))
        if arg.ndim != index.ndim or (isinstance(src, Tensor) and src.ndim != arg.ndim):
            raise ValueError("arg, index and src must have one rank")
        if isinstance(src, Tensor) and src.value.dtype is not arg.value.dtype:
            raise TypeError(f"arg and src must have one type, not {arg.dtype} and {src.dtype}")
        return self._make(
            self._b.op("scatter", arg.value, index.value, self._at(src, arg.value.dtype), axis=self._dim(dim, arg.ndim))
        )

    @operation
    def index_put_accumulate(self, acc, index, value):
        """``acc`` with row ``value[k]`` added to its row ``index[k]``."""
        acc, index, value = (self._tensor(acc), self._indices(self._tensor(index, "index")), self._tensor(value))
        if acc.ndim != value.ndim or index.ndim != 1 or not acc.ndim:
            raise ValueError(
                f"acc and value must have one rank and index rank 1, not {acc.ndim}, {value.ndim} and {index.ndim}"
            )
        if acc.value.dtype is not value.value.dtype:
            raise TypeError(f"acc and value must have one type, not {acc.dtype} and {value.dtype}")
        self._fd.equal(index.value.shape[0], value.value.shape[0], "index_put_accumulate")
        for a, b in zip(acc.value.shape[1:], value.value.shape[1:]):
            self._fd.equal(a, b, "index_put_accumulate")
        return self._make(self._b.op("index_put_accumulate", acc.value, index.value, value.value))

    index_accumulate = index_put_accumulate

    @operation
    def embedding_fwd(
        self, input, weight, padding_idx=None, max_norm=None, norm_type=None, scale_grad_by_freq=None, sparse=None
    ):
        """Rows of ``weight`` at ``input``, scaled down to ``max_norm`` where longer by the ``norm_type``-norm. The
        others matter only backward; ``weight`` itself is not changed."""
        input, weight = (self._indices(self._tensor(input, "input")), self._tensor(weight, "weight"))
        if weight.ndim != 2:
            raise ValueError(f"weight must have rank 2, not {weight.ndim}")
        rows = self._make(self._b.op("take", weight.value, input.value, axis=0))
        if max_norm is None:
            return rows
        size, order = (self.abs(self.cast(rows, DataType.Float)), 2.0 if norm_type is None else norm_type)
        norm = self.pow(self.sum(self.pow(size, order), [-1], True), self.reciprocal(self._fd.as_val(order)))
        scale = self.div(max_norm, self.add(norm, 1e-7))
        return self.cast(self.mul(rows, self.where(self.gt(norm, max_norm), scale, 1.0)), rows.dtype)

    @operation
    def embedding_bwd(self, grad, input, num_embeddings, padding_idx=None):
        """The gradient of an embedding's weight: rows of ``grad`` added up by index, none for ``padding_idx``."""
        grad, input = (self._tensor(grad, "grad"), self._indices(self._tensor(input, "input")))
        width = grad.value.shape[-1]
        value = self._b.reshape(grad.value, (sz.product(grad.value.shape[:-1]), width))
        index = self._b.reshape(input.value, (input.value.numel,))
        if padding_idx is not None:
            pad = self._at(self._fd.as_val(padding_idx), input.value.dtype)
            n = self._size(num_embeddings)
            pad = self._b.op(
                "where",
                self._b.op("lt", pad, self._b.constant(0, pad.dtype)),
                self._b.op("add", pad, self._b.cast(self._b.size(n), pad.dtype)),
                pad,
            )
            keep = self._b.op("expand_dims", self._b.op("ne", index, pad), axes=(1,))
            value = self._b.op("where", keep, value, self._b.constant(0, value.dtype))
        zeros = self._b.op("full", self._b.constant(0, value.dtype), shape=(self._size(num_embeddings), width))
        return self._make(self._b.op("index_put_accumulate", zeros, index, value))

    @operation
    def triu(self, input, diagonal=0):
        """Zeros below the given diagonal of the last two dimensions."""
        input, offset = self._tensor(input, "input"), self._fd.as_val(diagonal)
        if input.ndim < 2:
            raise ValueError(f"input tensor for triu must have 2 or more dims, but got {input.ndim} dims")
        rows, columns = input.value.shape[-2:]
        i = self._b.op("iota", shape=(rows, 1), axis=0, dtype=dt.i64)
        j = self._b.op("iota", shape=(1, columns), axis=1, dtype=dt.i64)
        keep = self._b.op("ge", j, self._b.op("add", i, self._at(offset, dt.i64)))
        return self._make(self._b.elementwise("where", keep, input.value, self._b.constant(0, input.value.dtype)))

    # -- scans, sorting and products: not fused, groups form around them

    def _scan(self, row, arg, dim, dtype=None) -> Tensor:
        arg = self._tensor(arg)
        value = arg.value if dtype is None else self._b.cast(arg.value, dtype)
        return self._make(self._b.op(row, value, axis=self._dim(dim, arg.ndim)))

    @operation
    def cumsum(self, arg, dim):
        """Running sums along ``dim``; of integers and bools as Int."""
        return self._scan("cumsum", arg, dim, promotion.reduction_dtype(self._tensor(arg).value.dtype, DataType.Null))

    @operation
    def cumprod(self, arg, dim):
        """Running products along ``dim``; of integers and bools as Int."""
        return self._scan("cumprod", arg, dim, promotion.reduction_dtype(self._tensor(arg).value.dtype, DataType.Null))

    @operation
    def cummax(self, arg, dim):
        """Running maxima along ``dim``."""
        return self._scan("cummax", arg, dim)

    @operation
    def cummin(self, arg, dim):
        """Running minima along ``dim``."""
        return self._scan("cummin", arg, dim)

    @operation
    def argsort(self, arg, dim=-1, descending=False, stable=False):
        """The order that sorts ``arg`` along ``dim``."""
        arg = self._tensor(arg)
        return self._make(self._b.op("argsort", arg.value, axis=self._dim(dim, arg.ndim), descending=bool(descending)))

    @operation
    def topk(self, arg, k, dim=-1, largest=True, sorted=True):
        """The ``k`` largest (or smallest) along ``dim`` in order, and their positions."""
        arg, axis = self._tensor(arg), self._dim(dim, self._tensor(arg).ndim)
        count = self._size(k)
        extent = arg.value.shape[axis]
        self._within(0, count, "topk", "k must be 0 or more")
        self._within(count, extent, "topk", f"k must be within the extent of dimension {axis}")
        order = self._b.op("argsort", arg.value, axis=axis, descending=bool(largest))
        indices = self._b.slice(order, axis, 0, count)
        return self._make(self._b.op("take_along_axis", arg.value, indices, axis=axis)), self._make(indices)

    @operation
    def matmul(self, arg1, arg2):
        """The matrix product, as torch's."""
        a, b = self._tensor(arg1, "arg1").value, self._tensor(arg2, "arg2").value
        if a.dtype is not b.dtype:
            raise TypeError(f"A and B must have one type, not {arg1.dtype} and {arg2.dtype}")
        if a.rank and b.rank:
            self._fd.equal(a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0], "matmul")
        return self._make(self._b.op("matmul", a, b))

    @operation
    def linear(self, arg1, arg2, bias=None):
        """``arg1`` times ``arg2`` transposed, plus ``bias``."""
        values = [self._tensor(t).value for t in (arg1, arg2, bias) if t is not None]
        if len({v.dtype for v in values}) > 1:
            raise TypeError("input, weight and bias must have one type")
        if values[0].rank and values[1].rank:
            self._fd.equal(values[0].shape[-1], values[1].shape[-1], "linear")
        if len(values) == 3 and values[2].rank and values[1].rank > 1:
            self._fd.equal(values[1].shape[0], values[2].shape[0], "linear")
        return self._make(self._b.op("linear", *values))

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


class _Choice(Scalar):
    """``where`` of scalars: the operands have two types."""

    __slots__ = ()

    def as_value(self, dtype):
        b = self.definition.builder
        if self._value is None:
            condition, x, y = self.expr[1]
            self._value = b.op("where", condition.as_value(dt.bool_), x.as_value(self.dtype), y.as_value(self.dtype))
        return b.cast(self._value, dtype)

    def evaluate(self, bindings):
        condition, x, y = self.expr[1]
        return np.asarray((x if condition.evaluate(bindings) else y).evaluate(bindings)).astype(self.dtype.numpy)[()]


def _is_size(scalar: Scalar) -> bool:
    return scalar.dtype.is_integer and (scalar.constant is not None or scalar.size is not None)


def _is_input_extent(size) -> bool:
    return isinstance(size, sz.Expr) and size.is_symbol and str(size)[0] == "s"


def _call_seed(bindings) -> int:
    """A seed for a call, from torch's generator where torch is loaded, else from NumPy's."""
    import sys

    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.randint(2**62, (), dtype=torch.int64))
    return int(np.random.randint(2**62, dtype=np.int64))


# ---------------------------------------------------------------------------------------------------------------- from
# the table

_FLOATS = {"integers_to_float": True}  # as exp: integers and bools as Float
_PLAIN = None  # the operand's type stays
_DEFAULT: dict = {}
_TO_BOOL = "bool"

# How the operands of an elementwise row are promoted. Rows of one operand on floats only default to _FLOATS, of one on
# more to
# _PLAIN, of two to _DEFAULT.
_RULES = {
    **dict.fromkeys(("silu", "frac"), _PLAIN),
    **dict.fromkeys(("logical_not", "logical_and", "logical_or"), _TO_BOOL),
    "atan2": _FLOATS,
    "nextafter": {"full_precision": True},
}


def _rule(row):
    if row.name in _RULES:
        return _RULES[row.name]
    if len(row.operands) == 1:
        return _FLOATS if row.takes.replace(table.COMPLEX, "") == table.FLOAT else _PLAIN
    return _DEFAULT


def _from_row(row, name):
    rule = _rule(row)

    def emit(self, *values):
        operands = self._operands(*values)
        if rule is _TO_BOOL:
            operands, common = [self.cast(o, DataType.Bool) for o in operands], dt.bool_
        elif rule is _PLAIN:
            common = operands[0].value.dtype if isinstance(operands[0], Tensor) else operands[0].dtype
        else:
            common = self._common(operands, **rule)
        return self._elementwise(row.name, operands, common, name)

    if len(row.operands) == 1:

        def call(self, x):
            return emit(self, x)
    else:

        def call(self, lhs, rhs):
            return emit(self, lhs, rhs)

    call.__name__ = name
    call.__qualname__ = f"Operators.{name}"
    word = row.doc.split()[0]
    # no formula is capitalized
    call.__doc__ = f"{row.doc[0].upper() if word.isalpha() and len(word) > 1 else row.doc[0]}{row.doc[1:]}."
    return operation(call)


def _derive() -> None:
    for row in table.TABLE.values():
        if row.kind == "elementwise" and len(row.operands) in (1, 2):
            for name in row.nvfuser:
                if not hasattr(Operators, name):
                    setattr(Operators, name, _from_row(row, name))
    Operators.truediv = _truediv
    Operators.ceilDiv = Operators.ceil_div


@operation
def truediv(self, lhs, rhs):
    """``lhs / rhs`` as floats."""
    operands = self._operands(lhs, rhs)
    return self._elementwise("div", operands, self._common(operands, integers_to_float=True), "truediv")


_truediv = truediv
_derive()


def names() -> list[str]:
    """All operations."""
    return sorted(n for n in dir(Operators) if not n.startswith("_"))
