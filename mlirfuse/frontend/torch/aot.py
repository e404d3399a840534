"""AOTAutograd for one of Dynamo's graphs, as torch's own ``torch._dynamo.backends.common.aot_autograd`` calls it.

That one imports half of Inductor for the file that it logs into with ``TORCH_COMPILE_DEBUG=1``, half a second.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch._dynamo import disable
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.utils import counters, flatten_graph_inputs
from torch._functorch.aot_autograd import aot_module_simplified
from torch._logging._internal import LazyTraceHandler, log_state, trace_log
from torch.fx import GraphModule
from torch.nn import Module

from mlirfuse.core import garbage, threads
from mlirfuse.frontend.torch import equal_layers


def compiled(module: Module, inputs: Sequence[Any], compilers: dict[str, Any]) -> Callable[..., Any]:
    """What runs ``module``; ``compilers``: by the names of ``aot_module_simplified``'s parameters, the backward's
    :func:`untraced`."""
    if os.environ.get("TORCH_COMPILE_DEBUG") == "1":
        return aot_autograd(**compilers)(module, inputs)
    if any(isinstance(x, (list, tuple, dict)) for x in inputs):
        return flatten_graph_inputs(module, inputs, functools.partial(compiled, compilers=compilers))
    counters["aot_autograd"]["total"] += 1
    try:
        with garbage.uncollected(aged=True), _unlisted():
            run = equal_layers.compiled(
                module, compilers["decompositions"], lambda: aot_module_simplified(module, inputs, **compilers)
            )
    except TensorifyScalarRestartAnalysis:  # Dynamo begins again
        raise
    except Exception:
        counters["aot_autograd"]["not_ok"] += 1
        raise
    counters["aot_autograd"]["ok"] += 1
    return disable(run, reason="do not trace AOT-compiled graph")


@contextlib.contextmanager
def _unlisted() -> Iterator[None]:
    """Meanwhile this thread spells no graphs where nobody reads torch's logs. AOTAutograd has the joint graph, the
    forward and the backward spelled in any case, and keeps that in its cache, whose key says whether there is a log
    (:func:`mlirfuse.frontend.torch.warm.start`)."""
    if logged():
        yield
        return
    here = threading.get_ident()
    with _lock:
        _unread.append(here)
        GraphModule.print_readable = _readable
    try:
        yield
    finally:
        with _lock:
            _unread.remove(here)
            if not _unread:
                GraphModule.print_readable = _spelled


_lock = threads.lock()
_unread: list[int] = []  # the threads that spell no graphs
_spelled = GraphModule.print_readable


def _readable(module: GraphModule, print_output: bool = True, *args: Any, **kwargs: Any) -> str:
    if print_output or threading.get_ident() not in _unread:
        return _spelled(module, print_output, *args, **kwargs)
    return ""


def logged() -> bool:
    """Whether somebody reads torch's logs: ``TORCH_LOGS``, ``TORCH_TRACE``."""
    lazy = not os.environ.get("TORCH_TRACE")  # torch's own handler goes away once it finds that there is no folder
    traced = any(not (lazy and isinstance(handler, LazyTraceHandler)) for handler in trace_log.handlers)
    return bool(traced or log_state.artifact_names or log_state.log_qname_to_level)


def untraced(compiler: Callable[..., Any]) -> Callable[..., Any]:
    """A backward's ``compiler`` that Dynamo does not look into, nor into what it gives: both run within autograd."""

    def compile_backward(*args: Any, **kwargs: Any) -> Any:
        found = disable(compiler, reason="do not trace backward compiler function")(*args, **kwargs)
        return disable(found, reason="do not trace generated backwards pass")

    compile_backward._is_wrapped_bw_compiler = True  # type: ignore[attr-defined]  # read by torch's own
    return compile_backward
