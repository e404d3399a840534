"""``jit(f).explain(...)``: takes the same decisions as :meth:`Entry.make`, and builds the explanation of how the call
runs: compiled, with graph breaks, by regions between loops, with native loops, or eagerly."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mlirfuse.core import config
from mlirfuse.core.errors import TraceError, UnsupportedError, has_line
from mlirfuse.frontend.numpy.effects import SideEffect
from mlirfuse.frontend.numpy.graph_breaks import program as graph_break_program
from mlirfuse.frontend.numpy.graph_breaks.explanation import GraphBreaksExplanation
from mlirfuse.frontend.numpy.torch_functions import TorchFunctionError
from mlirfuse.frontend.numpy.trace_state import TooLong
from mlirfuse.inspect.eager import EagerExplanation
from mlirfuse.runtime import arrays

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.device_loops.explanation import DeviceLoopsExplanation
    from mlirfuse.frontend.numpy.device_loops.program import DeviceLoopProgram
    from mlirfuse.frontend.numpy.jit import Entry, LoweredFunction
    from mlirfuse.runtime.specializations import Call


def explain(entry: Entry, leaves: Sequence, args: tuple, kwargs: dict[str, Any],
            compiled: Callable[[LoweredFunction], Any]) -> Any:  # fmt: skip
    """The explanation of a call; ``compiled`` builds it for a call that one graph covers. ``entry``: a fresh one.
    Raises what the call raises."""
    owner, call = entry.owner, entry.describe(leaves)
    assert call is not None  # nothing is captured yet
    if call.refused is not None:
        return EagerExplanation(entry.name, str(call.refused))
    if not entry.may_fall_back():
        return compiled(entry.lowered(call))
    numpys = all(arrays.framework(leaf) in ("numpy", None) for leaf in leaves)
    if numpys and not config.enabled_for(call.device):
        return EagerExplanation(entry.name, "config.fuse_cpu is off")
    if owner.outlines(call):
        return owner.eager.explain(args, kwargs)
    device_loops = entry.device_loops(call)
    if device_loops is not None and device_loops.unrolls and (explanation := _regions(entry, device_loops, leaves)):
        return explanation
    try:
        return compiled(entry.lowered(call, entry.most_ops(call, device_loops)))
    except (Exception, TooLong) as error:
        refused = error
    return _not_compiled(entry, call, refused, device_loops, args, kwargs)


def _not_compiled(entry: Entry, call: Call, error: BaseException, device_loops: DeviceLoopProgram | None, args: tuple,
                  kwargs: dict[str, Any]) -> Any:  # fmt: skip
    """The explanation of a call that is not compiled as one graph, because of ``error``."""
    leaves, frameworks = call.leaves, [arrays.framework(leaf) for leaf in call.leaves]
    ended = isinstance(error, (SideEffect, TooLong))
    followed = isinstance(error, (TraceError, UnsupportedError, TypeError)) and not ended
    if device_loops is not None and (ended or followed) and (explanation := _regions(entry, device_loops, leaves)):
        return explanation
    known = all(name in ("numpy", "torch", "cupy", None) for name in frameworks)
    if known and followed and not isinstance(error, TorchFunctionError) and entry.owner.with_graph_breaks(leaves):
        try:
            return _graph_breaks(entry, leaves)
        except Exception as problem:
            error = problem
    if not all(name in ("numpy", None) for name in frameworks):
        raise error
    return _eager(entry, error, args, kwargs)


def _graph_breaks(entry: Entry, leaves: Sequence) -> GraphBreaksExplanation:
    """The explanation of a call with graph breaks. Raises the reason where the call cannot run so."""

    def not_so(_: list, refused: Any) -> Any:
        why = created.refused if refused is None else refused
        raise why if isinstance(why, Exception) else TraceError(str(why))

    created = graph_break_program.GraphBreakProgram(entry.owner.fn, entry.tree, not_so, entry.owner._watch_scope)
    return GraphBreaksExplanation.of(entry.name, created, list(leaves))


def _regions(entry: Entry, device_loops: DeviceLoopProgram, leaves: Sequence) -> DeviceLoopsExplanation | None:
    from mlirfuse.frontend.numpy.device_loops.explanation import DeviceLoopsExplanation

    return DeviceLoopsExplanation.of(entry.name, device_loops, list(leaves))


def _eager(entry: Entry, error: BaseException, args: tuple, kwargs: dict[str, Any]) -> Any:
    eager = entry.owner.eager
    if eager.outlined:
        explanation = eager.explain(args, kwargs)
        if explanation.launches:
            return explanation
    elif not isinstance(error, (TraceError, UnsupportedError, TooLong)):  # possibly the user's mistake
        given, named = copy.deepcopy((args, kwargs))
        try:
            eager.original(*given, **named)
        except Exception as raised:
            if isinstance(error, type(raised)) and has_line(error):
                raise error from raised
            raise
    return EagerExplanation(entry.name, str(error))
