"""Detects calls that eager PyTorch rejects, by operand dtypes or numeric arguments.

torch's kernels reject some calls that its decompositions and fake tensors accept: a softmax of integers, an int32
target, a negative ``beta``. This module runs the op on small tensors of the same dtypes. A rejected call is neither
decomposed nor compiled: it stays an extern op, which raises eager's error.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence, ValuesView
from typing import Any

import torch

from mlirfuse.frontend.torch.fx.sizes import OpaqueSize, concrete, hint
from mlirfuse.frontend.torch.torch_private import OpOverload, disable_current_modes

_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_DTYPE_ERROR = re.compile(
    r"not implemented for|[Ee]xpected .*(dtype|scalar type|type)|not supported|can't be cast|[Dd]type"
)
_SMALL_EXTENT = 2  # the largest extent of tensors in the first trial run
_MAX_ELEMENTS = 1 << 16  # the most elements for a trial run with the call's own sizes
_errors: dict[Any, str] = {}  # of trial runs


def unless_refused(op: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """``decomposition`` of ``op``, returning NotImplemented for calls that eager rejects."""

    @functools.wraps(decomposition)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if refused(op, args, kwargs) else decomposition(*args, **kwargs)

    return decomposed


def refused(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether ``op`` raises for tensors of these types and these numbers on the CPU. ``args``: with fake tensors."""
    tensors = _tensors((args, kwargs))
    types = {x.dtype for x in tensors}
    numbers = any(map(_may_be_refused, (*args, *kwargs.values())))
    if not tensors or (len(types) == 1 and types <= _FLOATS and not numbers):
        return False
    if any(x.device.type != "cpu" or x.layout is not torch.strided for x in tensors) or not _is_pure(op):
        return False
    try:
        small = _error(op, args, kwargs, _SMALL_EXTENT)
        few = sum(_count(x) for x in tensors) <= _MAX_ELEMENTS
        error = _error(op, args, kwargs, None) if small and few else small  # the shrunken sizes may be inconsistent
    except OpaqueSize:
        return False
    integers = any(not x.dtype.is_floating_point for x in tensors)
    if not error or (integers and "ZeroDivisionError" in error):  # zeros of the trial run, not the call's
        return False
    return few or _DTYPE_ERROR.search(error) is not None


def _tensors(given: Any) -> list[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, Mapping):
        given = given.values()
    return [x for part in given for x in _tensors(part)] if isinstance(given, (list, tuple, ValuesView)) else []


def _may_be_refused(number: Any) -> bool:
    """Whether some op refuses the number for floats; of ints those that a float16 cannot hold."""
    most = torch.finfo(torch.float16).max
    return isinstance(number, (float, bool)) or (isinstance(number, int) and not -most <= number <= most)


@functools.cache
def _is_pure(op: Any) -> bool:
    """Whether a user's call has no side effects, on torch's random state either. Gradients' arguments come from
    decompositions, with dtypes that eager's own need not have."""
    if not isinstance(op, OpOverload) or op.namespace != "aten" or "_backward" in op.name():
        return False
    return not op._schema.is_mutable and torch.Tag.nondeterministic_seeded not in op.tags


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A tensor of a trial run."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def _key(given: Any) -> Any:
    """A cache key of the arguments of a trial run."""
    if isinstance(given, (list, tuple)):
        return tuple([_key(x) for x in given])
    if isinstance(given, Mapping):
        return tuple([(name, _key(x)) for name, x in given.items()])
    return type(given), given if given == given else None


def real(given: Any, most: int | None) -> Any:
    """The arguments with real tensors in place of fake ones, their extents clamped to ``most``. Raises
    :class:`OpaqueSize`."""
    return _real(_described(given, most))


def _described(given: Any, most: int | None) -> Any:
    def tensor(x: torch.Tensor) -> _Tensor:
        return _Tensor(x.dtype, tuple([hint(n) if most is None else min(hint(n), most) for n in x.shape]))

    return concrete(given, tensor)


def _real(given: Any) -> Any:
    if isinstance(given, _Tensor):
        return torch.full(given.shape, 0.5 if given.dtype.is_floating_point else 0, dtype=given.dtype)
    if isinstance(given, (list, tuple)):
        return [_real(x) for x in given]
    if isinstance(given, Mapping):
        return {name: _real(x) for name, x in given.items()}
    return given


def _count(x: torch.Tensor) -> int:
    count = 1
    for n in x.shape:
        count *= hint(n)
    return count


def _error(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], most: int | None) -> str:
    """What the op raises for real tensors in place of fake ones, their extents clamped to ``most``, or "". Symbols are
    what they are in this trace: the op may refuse other values of them. Raises :class:`OpaqueSize`."""
    given = _described((args, kwargs), most)
    key = op, _key(given)
    if key not in _errors:
        if len(_errors) > 1 << 14:
            _errors.clear()
        _errors[key] = _raised(op, *given)
    return _errors[key]


def _raised(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    try:
        with disable_current_modes(), torch.no_grad():
            op(*_real(args), **_real(kwargs))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
