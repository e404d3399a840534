"""``mlirfuse.jit``: a Python function over arrays, compiled for the kinds of arguments that it is called with."""

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
    """Compiles ``fn``, a function of arrays written with NumPy, for each kind of arguments it is called with.

    ``static_argnames``: arguments whose values are constants of the compiled code. ``target``: "cpu", "cuda" or
    "cuda:sm_90"; the default follows the arrays. ``fallback``: what happens where compiling fails: run op by op with a
    warning (True), raise (False), or as :data:`mlirfuse.config.fallback` says (None). ``max_args``: inputs and outputs,
    together, that a group has at most; None: as :data:`mlirfuse.config.max_args` says. Usable as a decorator with and
    without arguments, above ``@classmethod``, ``@staticmethod`` and ``@property`` too.

    ``schedule``: parameters of some segments' schedules, instead of those that the model chooses: a dict by a segment's
    number in ``explain``, or by its kind where it is the only one, of what stands as its ``schedule`` in
    ``lower(…).as_text("segmented")``, as a dict or as text; what it does not name is chosen. A call raises
    :class:`ScheduleError` with the constraint where a schedule is not possible for its sizes.

    ``lowering="linalg"``: segments become code through linalg and MLIR's own passes, not through this project's
    schedulers: slower, and a check of them. ``pipeline``: the same with the caller's passes, spelled as for
    ``mlirfuse-opt``, from ``from_level`` on, which is "linalg" (docs/internals/own-passes.md). Raises ValueError for
    others, and for what another option does not take; TypeError for what is no function.
    """
    if fallback is not None:
        fallback = _checked("fallback", fallback)
    if max_args is not None:
        max_args = _checked("max_args", max_args)
    if target not in (None, "cpu", "cuda"):
        devices.named(target)  # raises for what is no target
    if lowering not in (None, "linalg") or from_level != "linalg":
        raise ValueError(f"lowering is None or 'linalg', and from_level 'linalg'; got {lowering!r} and {from_level!r}")
    if pipeline is not None:
        build(pipeline)  # its spelling, now rather than at the first call
    lowering_path = _lowering_path(pipeline) if lowering or pipeline else None
    if lowering_path and schedule:
        raise ValueError("schedule: MLIR's own passes take none; leave lowering and pipeline out")
    options = (static_argnames, target, fallback, lowering_path, schedule, max_args)
    return (lambda f: _jitted(f, options)) if fn is None else _jitted(fn, options)


def _jitted(fn: Any, options: tuple) -> Any:
    """``fn`` compiled; of a method's descriptor, a descriptor of the function in it."""
    if isinstance(fn, (classmethod, staticmethod)):
        return type(fn)(_jitted(fn.__func__, options))
    if isinstance(fn, property):
        return type(fn)(_jitted(fn.fget, options), fn.fset, fn.fdel, fn.__doc__)
    if isinstance(fn, functools.cached_property):
        return type(fn)(_jitted(fn.func, options))
    if not callable(fn):
        raise TypeError(f"mlirfuse.jit takes a function, and not {fn!r} ({type(fn).__name__})")
    return Jitted(fn, *options)


def _checked(name: str, value: Any) -> Any:
    """An option that a switch of the same name has for all functions."""
    try:
        return config.checked(name, value)
    except ValueError as error:
        raise ValueError(str(error).replace(f"mlirfuse.config.{name}", f"mlirfuse.jit's {name}")) from None


def synchronize() -> None:
    """Waits for all that has been launched on GPUs. Raises IndexError where a kernel has met a position that is not in
    its array (:data:`mlirfuse.config.check_indices`)."""
    for device in range(_native.cuda_device_count()) if _native.cuda_available() else ():
        _native.synchronize(device)
    _native.check_bad_index()


def _lowering_path(pipeline: str | None) -> LoweringPath:
    """By linalg, whose part of the compiler is imported where somebody asks for it."""
    from mlirfuse.runtime.linalg_program import LoweringPath

    return LoweringPath(pipeline)
