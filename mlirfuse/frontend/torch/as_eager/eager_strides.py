"""Matches eager's strides and dtypes, where torch's decompositions or fake tensors differ.

Where an operand is not row-major, an operand or result is empty, or floats are of several dtypes, the op itself runs on
small real tensors with the operands' layouts. If its result's layout differs from the traced one,
``mlirfuse::restrided`` converts it; the kernel that computes the result writes that layout directly.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mlirfuse.frontend.torch.fx import layouts
from mlirfuse.frontend.torch.fx.sizes import OpaqueSize, concrete, hint, is_empty
from mlirfuse.frontend.torch.torch_private import OpOverload, disable_current_modes

_MAX_ELEMENTS = 1 << 14  # the most elements of an operand's memory for a trial run with the call's own sizes
_EXTENT_UNIT = 6  # small extents are multiples of this
_local = threading.local()  # .tracing: the op whose result is being traced
_trials: dict[Any, Any] = {}

_library = torch.library.Library("mlirfuse", "FRAGMENT")
_library.define("restrided(Tensor x, SymInt[] strides) -> Tensor")


def _restrided(x: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    return x.new_empty_strided(x.shape, strides).copy_(x)


for _key in ("CompositeExplicitAutograd", "Autograd"):
    _library.impl("restrided", _restrided, _key)


@torch.library.register_fake("mlirfuse::restrided", lib=_library)
def _fake_restrided(x: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    return x.new_empty_strided(x.shape, strides)


RESTRIDED = torch.ops.mlirfuse.restrided.default


def as_eager(op: Any, decomposition: Callable[..., Any] | None) -> Callable[..., Any]:
    """``decomposition`` of ``op``, or None for an op that is not decomposed, giving results with eager's layout."""

    @functools.wraps(decomposition or op)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        if getattr(_local, "tracing", None) is op:  # an op that is not decomposed
            return NotImplemented
        tensors = _tensors((args, kwargs))
        mixed = len({x.dtype for x in tensors if x.dtype.is_floating_point}) > 1
        # Without elements eager's strides follow no rule.
        unusual = mixed or any(is_empty(x) or not _is_row_major(x) for x in tensors)
        if decomposition is not None:
            found = decomposition(*args, **kwargs)
            unusual = unusual or any(map(is_empty, _tensors(found)))
            if not unusual or not _needs_trial(op, [*tensors, *_tensors(found)]):
                return found
        elif not unusual or not _needs_trial(op, tensors):
            return NotImplemented
        else:
            before, _local.tracing = getattr(_local, "tracing", None), op
            try:
                found = op(*args, **kwargs)
            finally:
                _local.tracing = before
        return found if found is NotImplemented else _with_eager_layout(op, args, kwargs, found)

    return decomposed


def _tensors(given: Any) -> list[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, Mapping):
        given = given.values()
    elif not isinstance(given, (list, tuple)):
        return []
    return [x for part in given for x in _tensors(part)]


def _is_row_major(x: torch.Tensor) -> bool:
    """Compares the strides of all extents, those of 1 included, as eager's results repeat them."""
    expected: Any = 1
    for n, stride in zip(reversed(x.shape), reversed(x.stride())) if x.layout is torch.strided else ():
        if _expression(stride) != _expression(expected):
            return False
        expected = expected * n
    return True


def _expression(n: Any) -> Any:
    """``n`` as an expression that can be compared without a guard."""
    return n.node.expr if isinstance(n, torch.SymInt) else n


@functools.cache
def _is_functional(op: Any) -> bool:
    if not isinstance(op, OpOverload) or op.namespace != "aten" or "_backward" in op.name():
        return False
    schema = op._schema
    fresh = all(r.alias_info is None and str(r.type) == "Tensor" for r in schema.returns)
    return fresh and not schema.is_mutable and torch.Tag.nondeterministic_seeded not in op.tags


def _needs_trial(op: Any, tensors: Sequence[torch.Tensor]) -> bool:
    return _is_functional(op) and all(x.device.type == "cpu" and x.layout is torch.strided for x in tensors)


def _with_eager_layout(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], found: Any) -> Any:
    """``found``, a call's traced result, converted to the layout of eager's result."""
    results = list(found) if isinstance(found, (list, tuple)) else [found]
    if not all(x is None or isinstance(x, torch.Tensor) for x in results):
        return found
    try:
        wanted = _trial_results(op, args, kwargs)
        if wanted is None or len(wanted) != len(results):
            return found
        operands = _tensors((args, kwargs))
        created = [
            x if x is None or eager is None else _converted(x, operands, *eager) for x, eager in zip(results, wanted)
        ]
    except OpaqueSize:
        return found
    if not isinstance(found, (list, tuple)):
        return created[0]
    return created if isinstance(found, list) else tuple(created)  # also for torch's named tuples


def _converted(x: torch.Tensor, operands: Sequence[torch.Tensor], dtype: torch.dtype, shape: tuple[int, ...],
               strides: tuple[int, ...]) -> torch.Tensor:  # fmt: skip
    """``x`` in eager's dtype, with the given strides for the same shape, else with strides in the same order; without
    elements with those of the operand that has them."""
    x = x if x.dtype is dtype else x.to(dtype)
    if len(shape) != x.dim():
        return x
    hints = tuple(hint(n) for n in x.shape)
    fills = 0 in shape or layouts.fills(shape, strides)
    if hints == shape:
        if tuple(hint(n) for n in x.stride()) == strides:
            return x
        if all(isinstance(n, int) for n in (*x.shape, *x.stride())):
            return RESTRIDED(x, strides) if fills else x
        alike = [y for y in operands if 0 in shape and tuple(map(hint, y.shape)) == shape]
        for y in alike:
            if tuple(map(hint, y.stride())) == strides:
                return RESTRIDED(x, y.stride())
    if 0 in shape or any((n == 1) != (m == 1) for n, m in zip(hints, shape)) or not fills:
        return x
    order = sorted(range(x.dim()), key=lambda k: (-strides[k], shape[k] == 1, k))
    ours = layouts.memory_order(x)
    apart = [k for k in order if shape[k] != 1]
    same = ours is not None and [k for k in ours if shape[k] != 1] == apart
    if same and (hints != shape or any(n == 1 and not isinstance(m, int) for n, m in zip(hints, x.shape))):
        return x  # else strides of extents that are always 1 differ
    running: Any = 1
    given: list[Any] = [0] * x.dim()
    for k in reversed(order):
        given[k] = running
        running = running * x.shape[k]
    return x if same and tuple(map(hint, given)) != strides else RESTRIDED(x, given)


def _trial_results(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Dtype, shape and strides of each result of a trial run with the fake tensors' layouts; None where the op cannot
    run."""
    few = all(_span(x) <= _MAX_ELEMENTS for x in _tensors((args, kwargs)))
    try:
        given = _real((args, kwargs), None if few else {})
    except OpaqueSize:
        return None
    key = op, repr(_described(given))
    if key not in _trials:
        if len(_trials) > 1 << 14:
            _trials.clear()
        _trials[key] = _run_trial(op, *given)
    return _trials[key]


def _run_trial(op: Any, args: Any, kwargs: Any) -> Any:
    try:
        with disable_current_modes(), torch.no_grad():
            created = op(*_filled(args), **_filled(kwargs))
    except Exception:
        return None
    created = created if isinstance(created, (list, tuple)) else [created]
    return [(x.dtype, tuple(x.shape), x.stride()) if isinstance(x, torch.Tensor) else None for x in created]


def _span(x: torch.Tensor) -> int:
    return 1 + sum((hint(n) - 1) * hint(s) for n, s in zip(x.shape, x.stride()))


class _Layout:
    """A tensor to create: dtype, shape, strides."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]):
        self.facts = dtype, shape, strides


def _described(given: Any) -> Any:
    if isinstance(given, _Layout):
        return given.facts
    if isinstance(given, (list, tuple)):
        return [_described(x) for x in given]
    if isinstance(given, Mapping):
        return {name: _described(x) for name, x in given.items()}
    return given


def _filled(given: Any) -> Any:
    if isinstance(given, _Layout):
        dtype, shape, strides = given.facts
        span = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if 0 not in shape else 0
        memory = torch.full((span,), 0.5 if dtype.is_floating_point else 1, dtype=dtype)
        return memory.as_strided(shape, strides)
    if isinstance(given, (list, tuple)):
        return [_filled(x) for x in given]
    if isinstance(given, Mapping):
        return {name: _filled(x) for name, x in given.items()}
    return given


def _real(given: Any, scale: dict[int, int] | None) -> Any:
    """The arguments with :class:`_Layout` for fake tensors; ``scale``: maps extents to small ones, None for the call's
    own. Raises :class:`OpaqueSize`."""

    def layout_of(x: torch.Tensor) -> _Layout:
        shape, strides = (tuple(map(hint, of)) for of in (x.shape, x.stride()))
        return _Layout(x.dtype, *((shape, strides) if scale is None else _scaled(shape, strides, scale)))

    return concrete(given, layout_of)


def _scaled(shape: tuple[int, ...], strides: tuple[int, ...], scale: dict[int, int]) -> Any:
    """Small extents (equal for equal ones, multiples of the group size for large ones), and strides in the same order,
    with gaps where the original has some."""
    small = tuple(n if n <= _EXTENT_UNIT else scale.setdefault(n, _EXTENT_UNIT * (len(scale) + 2)) for n in shape)
    running, true = 1, 1
    out = [0] * len(shape)
    for k in sorted(range(len(shape)), key=lambda k: (strides[k], shape[k] != 1, -k)):
        if strides[k] == 0:
            continue
        running *= 2 if strides[k] > true else 1
        out[k] = running
        running, true = running * small[k], strides[k] * shape[k]
    return small, tuple(out)
