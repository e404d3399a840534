"""A graph by torch's own ops, one at a time: where it does not compile, and in calls that torch transforms.

Kernels read memory. A batch of gradients (``is_grads_batched``, ``jacobian(vectorize=True)``) comes as tensors that
have none, and the tangents of forward mode are no part of it: such calls run here.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from torch.autograd import forward_ad
from torch.fx import GraphModule, Interpreter

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.torch.execute import Boxed
from mlirfuse.frontend.torch.torch_private import LazyGraphModule, vmap_enter, vmap_exit


def _in_vmap() -> bool:
    """Whether gradients come in batches: torch tells the depth only as it changes."""
    vmap_enter()
    return vmap_exit() > 0


_TRANSFORMED: dict[str, Callable[[], bool]] = {
    "inference": lambda: forward_ad._current_level >= 0,
    "backward": _in_vmap,
}


def op_by_op(module: GraphModule) -> Boxed:
    """``module`` as a function of AOTAutograd's boxed convention."""
    interpreter = Interpreter(module)

    def run(args: list[Any]) -> list[Any]:
        return interpreter.boxed_run(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def transformed(which: str) -> bool:
    """Whether torch transforms this call of a forward, backward or inference graph."""
    return which in _TRANSFORMED and _TRANSFORMED[which]()


def where_transformed(run: Boxed, module: Callable[[], GraphModule | None], which: str) -> Boxed:
    """``run``, and :func:`op_by_op` of what ``module`` gives in a call that torch transforms. Raises
    :class:`UnsupportedError` in such a call where that is None."""
    if which not in _TRANSFORMED:  # torch refuses tangents for what trains
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
    """``module`` for :func:`where_transformed` in another process, without what was known of its values; None where it
    is not asked for there, or a part cannot go there."""
    if module is None or which not in _TRANSFORMED:
        return None
    plain = LazyGraphModule(module, module.graph)  # whose code is written once, as it is pickled
    plain.meta.clear()
    try:
        return pickle.dumps(plain)
    except Exception:
        return None


def unpacked(body: bytes | None) -> GraphModule | None:
    """What :func:`packed` made the bytes of."""
    return None if body is None else pickle.loads(body)
