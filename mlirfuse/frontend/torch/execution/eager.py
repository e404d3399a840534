"""Runs a graph op by op with torch's own ops: where it does not compile, and in calls under functorch transforms.

Kernels read memory. Batched gradients (``is_grads_batched``, ``jacobian(vectorize=True)``) are tensors without memory,
and forward mode's tangents are not part of the graph: such calls run here.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from torch.autograd import forward_ad
from torch.fx import GraphModule, Interpreter

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.torch.execution.execute import Boxed
from mlirfuse.frontend.torch.torch_private import LazyGraphModule, vmap_enter, vmap_exit


def _in_vmap() -> bool:
    """Whether gradients are batched (inside vmap): torch exposes only the transform stack."""
    vmap_enter()
    return vmap_exit() > 0


_TRANSFORMED: dict[str, Callable[[], bool]] = {
    "inference": lambda: forward_ad._current_level >= 0,
    "backward": _in_vmap,
}


def op_by_op(module: GraphModule) -> Boxed:
    """``module`` as a function of AOTAutograd's boxed calling convention."""
    interpreter = Interpreter(module)

    def run(args: list[Any]) -> list[Any]:
        return interpreter.boxed_run(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def transformed(which: str) -> bool:
    """Whether a transform is active for this call of a forward, backward or inference graph."""
    return which in _TRANSFORMED and _TRANSFORMED[which]()


def where_transformed(run: Boxed, module: Callable[[], GraphModule | None], which: str) -> Boxed:
    """``run``, or in a transformed call :func:`op_by_op` of the graph that ``module`` returns. Raises
    :class:`UnsupportedError` in such a call where that is None."""
    if which not in _TRANSFORMED:  # torch rejects tangents in training
        return run
    known: list[Boxed] = []

    def either(args: list[Any]) -> list[Any]:
        if not transformed(which):
            return run(args)
        if not known:
            found = module()
            if found is None:
                raise UnsupportedError(
                    f"this {which} graph came from torch's cache without its ops: for batched gradients and dual "
                    "numbers set torch._functorch.config.enable_autograd_cache = False before it is compiled"
                )
            known.append(op_by_op(found))
        return known[0](args)

    either._boxed_call = True  # type: ignore[attr-defined]
    return either


def packed(module: GraphModule | None, which: str) -> bytes | None:
    """``module`` pickled for :func:`where_transformed` in another process; None where it is not needed there, or cannot
    be pickled."""
    if module is None or which not in _TRANSFORMED:
        return None
    plain = LazyGraphModule(module, module.graph)  # generates its code once, when pickled
    plain.meta.clear()
    try:
        return pickle.dumps(plain)
    except Exception:
        return None


def unpacked(body: bytes | None) -> GraphModule | None:
    """The inverse of :func:`packed`."""
    return None if body is None else pickle.loads(body)
