"""AOTAutograd for one of Dynamo's graphs, as torch's own ``torch._dynamo.backends.common.aot_autograd`` calls it.

That one imports half of Inductor for the file that it logs into with ``TORCH_COMPILE_DEBUG=1``, half a second.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from torch._dynamo import disable
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.utils import counters, flatten_graph_inputs
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx import GraphModule

from mlirfuse.core import garbage


def compiled(module: GraphModule, inputs: Sequence[Any], compilers: dict[str, Any]) -> Callable[..., Any]:
    """What runs ``module``; ``compilers``: by the names of ``aot_module_simplified``'s parameters, the backward's
    :func:`untraced`."""
    if os.environ.get("TORCH_COMPILE_DEBUG") == "1":
        return aot_autograd(**compilers)(module, inputs)
    if any(isinstance(x, (list, tuple, dict)) for x in inputs):
        return flatten_graph_inputs(module, inputs, functools.partial(compiled, compilers=compilers))
    counters["aot_autograd"]["total"] += 1
    try:
        with garbage.uncollected():
            run = aot_module_simplified(module, inputs, **compilers)
    except TensorifyScalarRestartAnalysis:  # Dynamo begins again
        raise
    except Exception:
        counters["aot_autograd"]["not_ok"] += 1
        raise
    counters["aot_autograd"]["ok"] += 1
    return disable(run, reason="do not trace AOT-compiled graph")


def untraced(compiler: Callable[..., Any]) -> Callable[..., Any]:
    """A backward's ``compiler`` that Dynamo does not look into, nor into what it gives: both run within autograd."""

    def compile_backward(*args: Any, **kwargs: Any) -> Any:
        found = disable(compiler, reason="do not trace backward compiler function")(*args, **kwargs)
        return disable(found, reason="do not trace generated backwards pass")

    compile_backward._is_wrapped_bw_compiler = True  # type: ignore[attr-defined]  # read by torch's own
    return compile_backward
