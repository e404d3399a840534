"""``mlirfuse.jit``: compiles a Python function over arrays for each signature that it is called with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from mlirfuse import _native
from mlirfuse.core import config
from mlirfuse.frontend.numpy.jit import Jitted
from mlirfuse.lowering import devices
from mlirfuse.passes.base import build
from mlirfuse.schedule.program import Schedules

if TYPE_CHECKING:
    from mlirfuse.runtime.linalg_program import LoweringPath


@overload
def jit(
    fn: Callable,
    *,
    static_argnames: str | Sequence[str] = (),
    target: str | None = None,
    fallback: bool | None = None,
    lowering: str | None = None,
    pipeline: str | None = None,
    from_level: str = "linalg",
    schedule: Schedules = None,
    max_args: int | None = None,
) -> Jitted: ...


@overload
def jit(
    *,
    static_argnames: str | Sequence[str] = (),
    target: str | None = None,
    fallback: bool | None = None,
    lowering: str | None = None,
    pipeline: str | None = None,
    from_level: str = "linalg",
    schedule: Schedules = None,
    max_args: int | None = None,
) -> Callable[[Callable], Jitted]: ...


def jit(
    fn: Callable | None = None,
    *,
    static_argnames: str | Sequence[str] = (),
    target: str | None = None,
    fallback: bool | None = None,
    lowering: str | None = None,
    pipeline: str | None = None,
    from_level: str = "linalg",
    schedule: Schedules = None,
    max_args: int | None = None,
) -> Jitted | Callable[[Callable], Jitted]:
    """Compiles ``fn``, a function of arrays written with NumPy, for each signature it is called with.

    ``static_argnames``: arguments whose values become constants of the compiled code. ``target``: "cpu", "cuda" or
    "cuda:sm_90"; the default follows the arrays. ``fallback``: where compilation fails, run op by op with a warning
    (True) or raise (False); None: as :data:`mlirfuse.config.fallback`. ``max_args``: the limit on a fusion group's
    inputs plus outputs; None: as :data:`mlirfuse.config.max_args`. Usable as a decorator with and without arguments,
    also above ``@classmethod``, ``@staticmethod`` and ``@property``.

    ``schedule``: schedule parameters that override the heuristics' choice: a dict from a segment's number in
    ``explain`` (or its kind, where only one segment has it) to its ``schedule`` as ``lower(…).as_text("segmented")``
    prints it, a dict or text; parameters left out are chosen. A call raises :class:`ScheduleError` with the violated
    constraint where a schedule is invalid for its sizes.

    ``lowering="linalg"``: lower segments through linalg and MLIR's own passes instead of this project's schedulers:
    slower, for cross-checks. ``pipeline``: the same with your own passes, in ``mlirfuse-opt``'s syntax, from the level
    ``from_level`` on, which is "linalg" (docs/internals/own-passes.md). Raises ValueError for other values and
    for options that exclude each other; TypeError where ``fn`` is not a function.
    """
    if fallback is not None:
        fallback = _checked("fallback", fallback)
    if max_args is not None:
        max_args = _checked("max_args", max_args)
    if target not in (None, "cpu", "cuda"):
        devices.named(target)  # raises for an unknown target
    if lowering not in (None, "linalg") or from_level != "linalg":
        raise ValueError(f"lowering must be None or 'linalg', from_level 'linalg'; got {lowering!r} and {from_level!r}")
    if pipeline is not None:
        build(pipeline)  # reports syntax errors now rather than at the first call
    lowering_path = _lowering_path(pipeline) if lowering or pipeline else None
    if lowering_path and schedule:
        raise ValueError("schedule applies to this project's schedulers only: leave out lowering and pipeline")
    options = (static_argnames, target, fallback, lowering_path, schedule, max_args)
    return (lambda f: _jitted(f, options)) if fn is None else _jitted(fn, options)


def _jitted(fn: Any, options: tuple) -> Any:
    """``fn`` compiled; for a method's descriptor, a descriptor of the compiled function."""
    if isinstance(fn, (classmethod, staticmethod)):
        return type(fn)(_jitted(fn.__func__, options))
    if isinstance(fn, property):
        return type(fn)(_jitted(fn.fget, options), fn.fset, fn.fdel, fn.__doc__)
    if isinstance(fn, functools.cached_property):
        return type(fn)(_jitted(fn.func, options))
    if not callable(fn):
        raise TypeError(f"mlirfuse.jit takes a function, not {fn!r} ({type(fn).__name__})")
    return Jitted(fn, *options)


def _checked(name: str, value: Any) -> Any:
    """The value of an option that :mod:`mlirfuse.config` has under the same name, validated."""
    try:
        return config.checked(name, value)
    except ValueError as error:
        raise ValueError(str(error).replace(f"mlirfuse.config.{name}", f"mlirfuse.jit's {name}")) from None


def synchronize() -> None:
    """Waits for all work launched on GPUs. Raises IndexError where a kernel met an out-of-bounds index
    (:data:`mlirfuse.config.check_indices`)."""
    for device in range(_native.cuda_device_count()) if _native.cuda_available() else ():
        _native.synchronize(device)
    _native.check_bad_index()


def _lowering_path(pipeline: str | None) -> LoweringPath:
    """The lowering through linalg, imported on first use."""
    from mlirfuse.runtime.linalg_program import LoweringPath

    return LoweringPath(pipeline)
