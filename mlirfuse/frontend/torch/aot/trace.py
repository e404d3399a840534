"""Calls AOTAutograd for one of Dynamo's graphs, as ``torch._dynamo.backends.common.aot_autograd`` does.

torch's version imports half of Inductor for the log file of ``TORCH_COMPILE_DEBUG=1``, which takes half a second.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch.compiler import disable
from torch.fx import GraphModule
from torch.nn import Module

from mlirfuse.core import gc_control
from mlirfuse.frontend.torch import torch_private as private
from mlirfuse.frontend.torch.aot import graph_cache
from mlirfuse.frontend.torch.rewrites import equal_layers, opaque_gradients
from mlirfuse.frontend.torch.torch_private import RestartAnalysis, aot_autograd


def compiled(module: Module, inputs: Sequence[Any], compilers: dict[str, Any]) -> Callable[..., Any]:
    """``module`` compiled to a callable; ``compilers``: keyword arguments of ``aot_module_simplified``, the backward's
    wrapped by :func:`untraced`."""
    if os.environ.get("TORCH_COMPILE_DEBUG") == "1":
        return aot_autograd(**compilers)(module, inputs)
    if any(isinstance(x, (list, tuple, dict)) for x in inputs):
        return private.flatten_graph_inputs(module, inputs, functools.partial(compiled, compilers=compilers))
    counts = private.counters["aot_autograd"] if private.counters is not None else Counter[str]()
    counts["total"] += 1
    try:
        with gc_control.gc_disabled(aged=True):
            run = _traced(module, inputs, compilers)
    except RestartAnalysis:  # Dynamo restarts the analysis
        raise
    except Exception:
        counts["not_ok"] += 1
        raise
    counts["ok"] += 1
    return disable(run, reason="do not trace AOT-compiled graph")


def _traced(module: Module, inputs: Sequence[Any], compilers: dict[str, Any]) -> Callable[..., Any]:
    def attempt() -> Callable[..., Any]:
        return equal_layers.compiled(
            module, compilers["decompositions"], lambda: graph_cache.compiled(module, inputs, compilers)
        )

    try:
        return attempt()
    except (RestartAnalysis, private.TorchDynamoException):
        raise
    except Exception:  # of several types, by torch's release, where a custom op's backward reads values
        if not isinstance(module, GraphModule) or not opaque_gradients.rewrite(module):
            raise
        return attempt()


def logged() -> bool:
    """Whether torch's logs are enabled: ``TORCH_LOGS``, ``TORCH_TRACE``."""
    return private.logged(lazy=not os.environ.get("TORCH_TRACE"))  # a lazy handler may find no log, and go


def untraced(compiler: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a backward's ``compiler`` so that Dynamo traces neither it nor its result: both run within autograd."""

    def compile_backward(*args: Any, **kwargs: Any) -> Any:
        found = disable(compiler, reason="do not trace backward compiler function")(*args, **kwargs)
        return disable(found, reason="do not trace generated backwards pass")

    compile_backward._is_wrapped_bw_compiler = True  # type: ignore[attr-defined]  # read by torch
    return compile_backward
