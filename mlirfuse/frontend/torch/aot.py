"""AOTAutograd for one of Dynamo's graphs, as torch's own ``torch._dynamo.backends.common.aot_autograd`` calls it.

That one imports half of Inductor for the file that it logs into with ``TORCH_COMPILE_DEBUG=1``, half a second.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch.compiler import disable
from torch.nn import Module

from mlirfuse.core import gc_control
from mlirfuse.frontend.torch import equal_layers
from mlirfuse.frontend.torch import torch_private as private
from mlirfuse.frontend.torch.torch_private import RestartAnalysis, aot_autograd, aot_module_simplified


def compiled(module: Module, inputs: Sequence[Any], compilers: dict[str, Any]) -> Callable[..., Any]:
    """What runs ``module``; ``compilers``: by the names of ``aot_module_simplified``'s parameters, the backward's
    :func:`untraced`."""
    if os.environ.get("TORCH_COMPILE_DEBUG") == "1":
        return aot_autograd(**compilers)(module, inputs)
    if any(isinstance(x, (list, tuple, dict)) for x in inputs):
        return private.flatten_graph_inputs(module, inputs, functools.partial(compiled, compilers=compilers))
    counts = private.counters["aot_autograd"] if private.counters is not None else Counter[str]()
    counts["total"] += 1
    try:
        with gc_control.gc_disabled(aged=True):
            run = equal_layers.compiled(
                module, compilers["decompositions"], lambda: aot_module_simplified(module, inputs, **compilers)
            )
    except RestartAnalysis:  # Dynamo begins again
        raise
    except Exception:
        counts["not_ok"] += 1
        raise
    counts["ok"] += 1
    return disable(run, reason="do not trace AOT-compiled graph")


def logged() -> bool:
    """Whether somebody reads torch's logs: ``TORCH_LOGS``, ``TORCH_TRACE``."""
    return private.logged(lazy=not os.environ.get("TORCH_TRACE"))  # its handler goes once it finds that there is none


def untraced(compiler: Callable[..., Any]) -> Callable[..., Any]:
    """A backward's ``compiler`` that Dynamo does not look into, nor into what it gives: both run within autograd."""

    def compile_backward(*args: Any, **kwargs: Any) -> Any:
        found = disable(compiler, reason="do not trace backward compiler function")(*args, **kwargs)
        return disable(found, reason="do not trace generated backwards pass")

    compile_backward._is_wrapped_bw_compiler = True  # type: ignore[attr-defined]  # read by torch's own
    return compile_backward
