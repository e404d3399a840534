"""Detects calls that eager PyTorch rejects, by operand dtypes or numeric arguments.

torch's kernels reject some calls that its decompositions and fake tensors accept: a softmax of integers, an int32
target, a negative ``beta``. This module runs the op on small tensors of the same dtypes. A rejected call is neither
decomposed nor compiled: it stays an extern op, which raises eager's error.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
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
_answers: dict[Any, bool] = {}


def unless_refused(op: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """``decomposition`` of ``op``, returning NotImplemented for calls that eager rejects."""

    @functools.wraps(decomposition)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if refused(op, args, kwargs) else decomposition(*args, **kwargs)

    return decomposed


def refused(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether ``op`` raises for tensors of these types and these numbers on the CPU. ``args``: with fake tensors."""
    tensors: list[torch.Tensor] = []
    key = _key((args, kwargs), tensors)
    types = {x.dtype for x in tensors}
    numbers = any(isinstance(x, (float, bool)) for x in (*args, *kwargs.values()))
    if not tensors or (len(types) == 1 and types <= _FLOATS and not numbers):
        return False
    if any(x.device.type != "cpu" or x.layout is not torch.strided for x in tensors) or not _is_pure(op):
        return False
    known = _answers.get((op, key))
    if known is None:
        if len(_answers) > 1 << 14:
            _answers.clear()
        known = _answers[op, key] = _rejects(op, args, kwargs, tensors)
    return known


@functools.cache
def _is_pure(op: Any) -> bool:
    """Whether a user's call has no side effects, on torch's random state either. Gradients' arguments come from
    decompositions, with dtypes that eager's own need not have."""
    if not isinstance(op, OpOverload) or op.namespace != "aten" or "_backward" in op.name():
        return False
    return not op._schema.is_mutable and torch.Tag.nondeterministic_seeded not in op.tags


def _key(given: Any, tensors: list[torch.Tensor]) -> Any:
    """A cache key of what decides the answer: types and ranks of tensors, which it appends to ``tensors``, and other
    arguments."""
    if isinstance(given, torch.Tensor):
        tensors.append(given)
        return given.dtype, given.dim()
    if isinstance(given, (list, tuple)):
        return tuple([_key(x, tensors) for x in given])
    if isinstance(given, Mapping):
        return tuple([(name, _key(x, tensors)) for name, x in given.items()])
    if isinstance(given, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return type(given)
    return type(given), given if given == given else None


def _rejects(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: list[torch.Tensor]) -> bool:
    try:
        few = sum(_count(x) for x in tensors) <= _MAX_ELEMENTS
        with disable_current_modes(), torch.no_grad():
            error = _error(op, args, kwargs, _SMALL_EXTENT)
            if error is not None and few:  # the shrunken sizes may be inconsistent
                error = _error(op, args, kwargs, None)
    except OpaqueSize:
        return False
    integers = any(not x.dtype.is_floating_point for x in tensors)
    if error is None or (integers and "ZeroDivisionError" in str(error)):  # zeros of the trial run, not the call's
        return False
    return few or _DTYPE_ERROR.search(str(error)) is not None


def _count(x: torch.Tensor) -> int:
    count = 1
    for n in x.shape:
        count *= hint(n)
    return count


def _error(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], most: int | None) -> Exception | None:
    try:
        op(*real(args, most), **real(kwargs, most))
    except OpaqueSize:
        raise
    except Exception as error:
        return error
    return None


def real(given: Any, most: int | None) -> Any:
    """The arguments with real tensors in place of fake ones, their extents clamped to ``most``. Raises
    :class:`OpaqueSize`."""

    def small(x: torch.Tensor) -> torch.Tensor:
        shape = [hint(n) if most is None else min(hint(n), most) for n in x.shape]
        return torch.full(shape, 0.5 if x.dtype.is_floating_point else 0, dtype=x.dtype)

    return concrete(given, small)
