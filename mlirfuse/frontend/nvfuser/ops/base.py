"""The base of ``fd.ops``: argument checks, type promotion, creation of values and scalars."""

from __future__ import annotations

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.frontend.nvfuser import promotion
from mlirfuse.frontend.nvfuser.promotion import from_dtype
from mlirfuse.frontend.nvfuser.values import (
    Bindings,
    DefinitionTypeError,
    InputError,
    Scalar,
    Tensor,
    Val,
    Vector,
    at_line,
    user_line,
)
from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value


class OperatorBase:
    """Public methods of derived classes are operations: a call is checked, recorded for printing and replay, and
    emitted into the definition's graph. Methods call each other freely; only the outermost call is recorded."""

    def __init__(self, definition):
        self._fd = definition

    def __getattr__(self, name):
        raise AttributeError(f"fd.ops has no operation '{name}'; see docs/nvfuser/api.md for the list")

    @property
    def _b(self):
        return self._fd.builder

    def _operand(self, value):
        """An argument in recorded form: checks that values belong to this definition, converts NumPy numbers and
        torch.Size."""
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

    def _list(self, values, what: str) -> list:
        if not isinstance(values, (list, tuple)):
            raise TypeError(f"incompatible function arguments: {what} must be a list, not {type(values).__name__}")
        return list(values)

    def _integers(self, values, what: str) -> list[int]:
        return [self._integer(n, what) for n in self._list(values, what)]

    def _integer(self, value, what: str) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"incompatible function arguments: {what} must be integers, not {type(value).__name__}")
        return int(value)

    def _sizes(self, values, what, check=True) -> list:
        if isinstance(values, (Val, int)) or not hasattr(values, "__iter__"):
            raise TypeError(f"{what} must be a list of integers and scalars")
        out = [self._size(v) for v in values]
        for k, n in enumerate(out):
            if check and isinstance(n, int) and n < -1:
                raise ValueError(
                    f"The value {n} at index {k} was neither symbolic(-1), zero_element(0), broadcast(1), "
                    "or static(>1)."
                )
            if check and n != -1:
                self._within(0, n, self._fd.operation, f"{what}[{k}] must be 0 or more")
        return out

    def _dim(self, dim, rank, what="dim", beyond="dim") -> int:
        """A dimension counted from 0. ``beyond``: nvFuser's message for one out of range."""
        if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)):
            raise TypeError(f"incompatible function arguments: {what} must be an integer, not {type(dim).__name__}")
        if rank == 0 and dim in (0, -1):  # as in torch
            return 0
        if not -rank <= dim < rank:
            raise ValueError(f"{beyond}: {what} {dim} is out of range for a tensor of rank {rank}")
        return int(dim) % rank

    def _with_dimension(self, value: Value) -> Value:
        """A 0-d tensor as a 1-d one, for ops along a dimension; others unchanged."""
        return value if value.rank else self._b.reshape(value, (1,))

    def _dims(self, dims, rank, what="dims", beyond="dims", twice="duplicated dimension entries") -> tuple[int, ...]:
        dims = list(dims) if isinstance(dims, (list, tuple)) else [dims]
        out = tuple(self._dim(d, rank, what, beyond) for d in dims)
        if len(set(out)) != len(out):
            raise ValueError(f"{twice}: {what} {list(dims)} has duplicates")
        return out

    def _equal_shapes(self, values, what) -> None:
        """Records that extents of aligned operands must be equal where neither broadcasts."""
        rank = max((v.rank for v in values), default=0)
        for k in range(rank):
            extents = [v.shape[k - rank + v.rank] for v in values if v.rank >= rank - k]
            extents = [n for n in extents if n != 1]
            for n in extents[1:]:
                self._fd.equal(extents[0], n, what)

    def _within(self, a, b, what, words) -> None:
        """Records that ``a <= b``, which keeps reads in bounds. Raises where this is known to be false; a call raises
        where it is false. ``words`` must be the same at every call."""
        if a == 0 and not isinstance(b, int) and not _may_be_negative(b):
            return
        replay, label = self._fd._replay, f"{what}: {words}"
        if replay is None:
            if self._fd.at_most(a, b, label) is not a:
                raise ShapeError(words)
        elif not replay.guards.get((replay.record, label), True):
            raise InputError(f"{at_line(self._b.loc())}fd.ops.{label}")

    def _called(self, name: str, function, operands, results: list[tuple], sizes: tuple = ()) -> list[Value]:
        """An extern call; ``results``: pairs of dtype and shape. The function gets the values of ``sizes`` after its
        operands."""
        created: Value | list[Value] = self._b.op(
            "call",
            *operands,
            callee=name,
            dtypes=tuple(dtype for dtype, _ in results),
            shapes=tuple(tuple(shape) for _, shape in results),
            sizes=sizes,
            function=function,
        )
        return created if isinstance(created, list) else [created]

    def _operands(self, *values) -> list[Tensor | Scalar]:
        return [self._fd.as_val(v) for v in values]

    def _common(self, operands, **rules):
        pairs = [
            (o.value.dtype, "tensor" if o.ndim else "0-d") if isinstance(o, Tensor) else (o.dtype, "scalar")
            for o in operands
        ]
        return promotion.common_dtype(pairs, **rules)

    def _at(self, operand: Tensor | Scalar, dtype):
        return self._b.cast(operand.value, dtype) if isinstance(operand, Tensor) else operand.as_value(dtype)

    def _elementwise(self, row: str, operands, dtype, what=None, **attrs) -> Tensor | Scalar:
        """The table's op on operands cast to ``dtype``: a tensor if any operand is one, else a scalar."""
        if not any(isinstance(o, Tensor) for o in operands):
            return self._scalar(row, operands, dtype, attrs)
        values = [self._at(o, dtype) for o in operands]
        self._equal_shapes(values, what or row)
        return self._make(self._b.elementwise(row, *values, **attrs))

    def _scalar(self, row: str, operands, dtype, attrs) -> Scalar:
        """An op on scalars: folds constants, and sizes symbolically; other sizes are computed on the host."""
        definition = table.TABLE[row]
        result = table.result_dtypes(definition, [dtype] * len(operands), attrs)[0]
        data_type = from_dtype(result)
        out = Scalar(self._fd, data_type, expr=(row, tuple(operands), attrs, dtype))
        if all(o.constant is not None for o in operands):
            out.constant = out.evaluate(Bindings([], {})).item()
            out.expr = None
        elif row in ("add", "sub", "mul", "cast", "copy") and result.is_integer and all(_is_size(o) for o in operands):
            parts = [o.as_size() if o.constant is not None else o.size for o in operands]
            out.size = {
                "add": lambda: parts[0] + parts[1],
                "sub": lambda: parts[0] - parts[1],
                "mul": lambda: sz.mul(*parts),
            }.get(row, lambda: parts[0])()
        return out

    def _number(self, value, dtype) -> Scalar:
        return Scalar(self._fd, from_dtype(dtype), {"f": float, "c": complex, "b": bool}.get(dtype.kind, int)(value))


def _may_be_negative(size: sz.Size) -> bool:
    """Whether a size from a call's numbers, or a difference, can be negative."""
    if isinstance(size, int):
        return False
    return any(factor < 0 for _, factor in size.terms) or any(name[0] in "vh" for name in sz.symbols(size))


def _is_size(scalar: Scalar) -> bool:
    return scalar.dtype.is_integer and (scalar.constant is not None or scalar.size is not None)
